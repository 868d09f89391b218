//! A volume from the command line: made, filled, looked at, moved, checked.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn homenode(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_homenode")).args(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = homenode(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn code(args: &[&str]) -> i32 {
    homenode(args).status.code().unwrap()
}

/// Nodes 0 and 1, or labels of them where the machine does not have them.
#[test]
fn the_whole_way_from_mkfs_to_fsck() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (a, b, local, back) = (path("a"), path("b"), path("local"), path("back"));
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 11) as u8).collect();
    fs::write(&local, &data).unwrap();

    let made = stdout(&["mkfs", "--size", "8M", &format!("{a}@0"), &format!("{b}@1")]);
    assert!(made.contains("2 regions"), "{made}");
    assert_eq!(code(&["mkfs", &a, &b]), 2, "a volume is not overwritten by accident");
    stdout(&["mkfs", "--force", &format!("{a}@0"), &format!("{b}@1")]);

    stdout(&["fs", "put", &a, &local, "/file"]);
    let place: serde_json::Value = serde_json::from_str(&stdout(&["fs", "where", &b, "/file", "--json"])).unwrap();
    assert_eq!((&place["path"], &place["size"]), (&"/file".into(), &3_000_000.into()));
    let total: u64 = place["nodes"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(total, 733 * 4096);

    stdout(&["fs", "migrate", &a, "/file", "--to", "1"]);
    let place: serde_json::Value = serde_json::from_str(&stdout(&["fs", "where", &a, "/file", "--json"])).unwrap();
    assert_eq!(place["nodes"], serde_json::json!({"1": 733 * 4096}));
    stdout(&["fs", "get", &a, "/file", &back]);
    assert!(fs::read(&back).unwrap() == data);

    let listed: serde_json::Value = serde_json::from_str(&stdout(&["fs", "ls", &a, "/", "--json"])).unwrap();
    assert_eq!(listed["names"][0]["name"], "file");
    let ino = listed["names"][0]["ino"].to_string();
    let log = stdout(&["fs", "debug", "log", &a, &ino]);
    assert!(log.contains("Attributes") && log.contains("Extent"), "{log}");
    assert!(stdout(&["fs", "info", &a]).contains("made durable by"));

    assert_eq!(code(&["fs", "get", &a, "/missing", "-"]), 5);
    assert_eq!(code(&["fs", "migrate", &a, "/file", "--to", "9"]), 2);
    check(&a);
}

fn check(region: &str) {
    assert_eq!(code(&["fsck", region]), 0);
    let mut bytes = fs::read(region).unwrap();
    bytes[..4096].fill(0); // the first copy of the superblock
    fs::write(region, &bytes).unwrap();
    assert_eq!(code(&["fsck", region]), 4);
    assert_eq!(code(&["fsck", "--repair", region]), 1);
    assert_eq!(code(&["fsck", region]), 0);
    assert_eq!(code(&["fsck", "--no-such-option", region]), 16, "fsck(8) has a code of its own for wrong usage");
    let name = Path::new(region).with_file_name("fsck.homenode");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_homenode"), &name).unwrap();
    let status = |args: &[&str]| Command::new(&name).args(args).output().unwrap().status.code();
    assert_eq!((status(&["-a", region]), status(&["--no-such-option"])), (Some(0), Some(16)));
    fs::write(region, [0; 100_000]).unwrap();
    assert_eq!(code(&["fsck", region]), 8);
    assert!(Path::new(region).exists());
}
