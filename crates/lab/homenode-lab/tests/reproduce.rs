//! `homenode reproduce`, run as a user runs it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::{Command, Stdio};

/// Exit code, stdout, stderr.
fn reproduce(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homenode-lab"));
    command.arg("reproduce").args(args).env_remove("HOMENODE_LOG").env("COLUMNS", "100").stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn scores_on_the_terminal_and_files_in_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new");
    let (code, text, err) = reproduce(&["npolicy", "--out", out.to_str().unwrap(), "--seeds", "1"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let scores = text.lines().find(|l| l.starts_with("npolicy")).unwrap();
    let figures: Vec<u32> = scores.split_whitespace().skip(1).map(|n| n.parse().unwrap()).collect();
    assert_eq!(figures.len(), 10, "{text}");
    assert!(text.ends_with(&format!("\n{}\n", out.join("report.html").display())), "{text}");
    for file in ["report.html", "results.csv", "overview.png", "npolicy-2.png", "npolicy-3a.png", "npolicy-3b.png"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    assert_eq!(entries(&out), 6);
}

#[test]
fn json_has_scores_figures_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let (code, text, err) = reproduce(&["npolicy", "--out", dir.path().to_str().unwrap(), "--seeds", "1", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(json["scores"]["npolicy"]["predicted"]["met"].as_u64().unwrap() > 0);
    assert_eq!(json["figures"].as_array().unwrap().len(), 3);
    assert!(json["figures"][0]["points"][0]["homenode_value"].as_f64().unwrap() > 0.0);
    assert_eq!(json["files"].as_array().unwrap().len(), 6);
}

#[test]
fn wrong_usage_is_named() {
    for (args, named) in [
        (&["npolicy"][..], "--out"),
        (&["sysmon", "--out", "/tmp/x"], "sysmon"),
        (&["npolicy", "--out", "/tmp/x", "--seeds", "0"], "--seeds"),
        (&["npolicy", "--out", "/tmp/x", "--seeds", "-1"], "-1"),
        (&["npolicy", "--out", "/tmp/x", "--seeds", "many"], "--seeds"),
    ] {
        let (code, out, err) = reproduce(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(named), "{args:?}: {err}");
    }
}

#[test]
fn a_directory_that_cannot_be_written_to_is_named_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    for (bad, errno) in [(file.clone(), "EEXIST"), (file.join("below"), "ENOTDIR"), ("/proc/none".into(), "ENOENT")] {
        let (code, out, err) = reproduce(&["all", "--out", bad.to_str().unwrap()]);
        assert_eq!((code, out.as_str()), (5, ""), "{err}");
        assert!(err.contains(bad.to_str().unwrap()) && err.contains(errno), "{err}");
        let (_, _, json) = reproduce(&["all", "--out", bad.to_str().unwrap(), "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["error"]["exit_code"], 5);
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    assert_eq!(entries(dir.path()), 1);
}

#[test]
fn a_full_disk_changes_nothing() {
    struct Mounted(std::path::PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(&self.0).status();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Mounted(dir.path().join("disk"));
    std::fs::create_dir(&disk.0).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&disk.0).output();
    if !mount.is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: cannot mount a file system here");
        return;
    }
    std::fs::write(disk.0.join("results.csv"), "of last time").unwrap();
    let (code, out, err) = reproduce(&["npolicy", "--out", disk.0.to_str().unwrap(), "--seeds", "1"]);
    assert_eq!((code, out.as_str()), (5, ""), "{err}");
    assert!(err.contains(disk.0.to_str().unwrap()) && err.contains("ENOSPC"), "{err}");
    assert_eq!(std::fs::read_to_string(disk.0.join("results.csv")).unwrap(), "of last time");
    assert_eq!(entries(&disk.0), 1, "nothing half-written");
}
