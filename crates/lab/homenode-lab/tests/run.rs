//! `homenode-lab run` as a user runs it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::process::{Command, Stdio};

/// Exit code, stdout, stderr.
fn ends(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_homenode-lab"))
        .args(["--config", &format!("{}/tests/inputs/empty.toml", env!("CARGO_MANIFEST_DIR")), "run"])
        .args(args)
        .env_remove("HOMENODE_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const SMALL: &str = r#"
    paper = "none"
    figure = "1"
    title = "Two readers"
    value = "weighted_mb_s"
    seconds = 4.0
    paper_seconds = 4.0
    factor = 400.0
    [machine]
    nodes = 2
    cores = 2
    memory = "optane"
    [[point]]
    name = "read-only"
    load = { kind = "fio", threads = 2, block = 4096, file_bytes = 4e8, read = 1.0 }
    [[series]]
    name = "NOVA"
    placement = "node0"
    [[series]]
    name = "rl"
    placement = "local"
    policy = "nthread-rl"
    [[effect]]
    of = "rl"
    over = "NOVA"
    paper = 1.2
    kind = "predicted"
    source = "nowhere"
"#;

#[test]
fn a_number_that_no_run_has_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("odd.toml");
    let path = file.to_str().unwrap();
    for (from, to, what) in [
        ("factor = 400.0", "factor = 0.0", "factor is 0"),
        ("factor = 400.0", "factor = nan", "factor is NaN"),
        ("\n    seconds = 4.0", "\n    seconds = 0.0", "seconds is 0"),
        ("nodes = 2", "nodes = 50000", "machine.nodes is 50000"),
        ("cores = 2", "cores = 4000000000", "machine.cores is 4000000000"),
        ("cores = 2", "cores = 2\nlink_bw = 0.0", "machine.link_bw is 0"),
        ("threads = 2", "threads = 40000", "threads is 40000"),
        ("block = 4096", "block = 1000000000000000000", "block is 1000000000000000000"),
        ("file_bytes = 4e8", "file_bytes = 1e25", "file_bytes is 1"),
        ("read = 1.0", "read = 1.0, think_s = 1e12", "think_s is 1000000000000"),
    ] {
        assert!(SMALL.contains(from), "{from}");
        fs::write(&file, SMALL.replace(from, to)).unwrap();
        let (code, out, err) = ends(&[path]);
        assert!(code == 2 && out.is_empty() && err.contains(what), "{to}: {code} {err}");
    }
    fs::write(&file, SMALL).unwrap();
    for (args, what) in [
        (&["--factor", "3e9"][..], "factor is 3000000000"),
        (&["--factor", "0.5"], "factor is 0.5"),
        (&["--series", "typo"], "series typo"),
        (&["--seeds", "1000000000000"], "--seeds"),
    ] {
        let (code, _, err) = ends(&[&[path], args].concat());
        assert!(code == 2 && err.contains(what), "{args:?}: {code} {err}");
    }
}

#[test]
fn figures_are_listed_and_a_wrong_name_or_file_is_refused() {
    let (code, out, _) = ends(&[]);
    assert_eq!(code, 0);
    assert!(out.lines().any(|line| line == "nthread-5a"), "{out}");
    let (code, _, err) = ends(&["nthread-99"]);
    assert!(code == 5 && err.contains("nthread-99 is no figure"), "{code} {err}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wrong.toml");
    fs::write(&file, SMALL.replace("nthread-rl", "nthread-lr")).unwrap();
    let (code, _, err) = ends(&[file.to_str().unwrap()]);
    assert!(code == 2 && err.contains("there is no policy called nthread-lr"), "{code} {err}");
}

#[test]
fn an_experiment_gives_the_same_tables_each_time_and_writes_them() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("small.toml"), dir.path().join("out"));
    fs::write(&file, SMALL).unwrap();
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let args = [file, "--seeds", "2", "--out", out];
    let first = ends(&args);
    assert_eq!((first.0, first.2.as_str()), (0, ""));
    assert!(first.1.contains("| effect | paper | measured | kind | null | verdict |"), "{}", first.1);
    assert!(first.1.contains("| rl / NOVA, average (nowhere) | 1.20 | "), "{}", first.1);
    assert_eq!(ends(&args), first);
    let csv = fs::read_to_string(format!("{out}/small.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 2, "{csv}");
    assert_eq!(fs::read_to_string(format!("{out}/small.md")).unwrap(), first.1);
    let (_, one, _) = ends(&[file, "--series", "NOVA"]);
    assert!(one.contains("| not run |"), "{one}");
}
