//! A volume from the command line: made, filled, looked at, moved, checked.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn homenode(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_homenode-fs")).args(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = homenode(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn code(args: &[&str]) -> i32 {
    homenode(args).status.code().unwrap()
}

/// Only the first 4 KiB were looked at: btrfs, ZFS, RAID and ISO images were overwritten without a
/// question.
#[test]
fn mkfs_without_force_overwrites_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let name = path.to_str().unwrap();
    let made = |at: u64, magic: &[u8]| {
        let file = fs::File::create(&path).unwrap();
        file.set_len(8 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, magic, at).unwrap();
    };
    let refused = |at: u64| {
        let before = fs::read(&path).unwrap();
        let output = homenode(&["mkfs", name]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let why = format!("byte {at} is not zero");
        assert!(output.status.code() == Some(2) && said.contains(&why), "{said}");
        assert!(fs::read(&path).unwrap() == before);
    };
    // As btrfs, ISO 9660, ZFS and a RAID begin, and anything else.
    for (at, magic) in [
        (0x10040, &b"_BHRfS_M"[..]),
        (0x8001, b"CD001"),
        ((8 << 20) - (256 << 10) + (128 << 10), b"\x0c\xb1\xba\0\0\0\0\0"),
        ((8 << 20) - 65536, b"\xfc\x4e\x2b\xa9"),
        (5_000_123, b"x"),
    ] {
        made(at, magic);
        refused(at);
    }
    stdout(&["mkfs", "--force", name]);
    assert_eq!(code(&["mkfs", name]), 2);
}

/// A volume one of whose regions was elsewhere was called no volume.
#[test]
fn a_region_that_is_elsewhere_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    stdout(&["mkfs", "--size", "32MiB", &path("a"), &path("b")]);
    fs::rename(path("b"), path("c")).unwrap();
    let output = homenode(&["fs", "info", &path("a")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let missing = format!(": region 1 is missing, {}; what is on it gives EIO (--region PATH says", path("b"));
    assert!(output.status.code() == Some(0) && said.contains(&missing), "{said}");
    let output = homenode(&["fs", "rm", &path("a"), "/f"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let missing = format!(": region 1 is missing, {} (ENOENT)\n  hint: --region PATH says", path("b"));
    assert!(output.status.code() == Some(2) && said.contains(&missing), "{said}");
    stdout(&["fs", "info", "--region", &path("c"), &path("a")]);
}

/// The region was only numbered.
#[test]
fn a_region_that_is_none_any_more_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    stdout(&["mkfs", "--size", "4MiB", &path("a"), &path("b")]);
    fs::write(path("a"), vec![0; 4 << 20]).unwrap();
    for command in [&["fsck"][..], &["fsck", "--repair"], &["fs", "info"]] {
        let output = homenode(&[command, &[&path("b")]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("region 0, {}: not a homenode region", path("a"))), "{command:?}: {said}");
    }
}

/// As text, a program that reads JSON lines took it for an error of its own.
#[test]
fn a_node_that_is_not_there_is_told_in_the_form_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str, json: &[&str]| {
        let region = format!("{}@1000", dir.path().join(name).display());
        let output = homenode(&[&["mkfs", "--size", "1MiB", &region], json].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(made("a", &[]).contains("/a: this machine has no node 1000"));
    let line: serde_json::Value = serde_json::from_str(&made("b", &["--json"])).unwrap();
    assert!(line["fields"]["message"].as_str().unwrap().contains("/b: this machine has no node 1000"), "{line}");
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
    let place = json(&["fs", "where", &b, "/file"]);
    assert_eq!((&place["path"], &place["size"]), (&"/file".into(), &3_000_000.into()));
    let total: u64 = place["nodes"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(total, 733 * 4096);

    stdout(&["fs", "migrate", &a, "/file", "--to", "1"]);
    let place = json(&["fs", "where", &a, "/file"]);
    assert_eq!(place["nodes"], serde_json::json!({"1": 733 * 4096}));
    stdout(&["fs", "get", &a, "/file", &back]);
    assert!(fs::read(&back).unwrap() == data);

    let listed = json(&["fs", "ls", &a, "/"]);
    assert_eq!(listed["names"][0]["name"], "file");
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
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_homenode-fs"), &name).unwrap();
    let status = |args: &[&str]| Command::new(&name).args(args).output().unwrap().status.code();
    assert_eq!((status(&["-a", region]), status(&["--no-such-option"])), (Some(0), Some(16)));
    fs::write(region, [0; 100_000]).unwrap();
    assert_eq!(code(&["fsck", region]), 8);
    assert!(Path::new(region).exists());
}

/// Two regions of 2 MB; the path of one.
fn small_volume(dir: &Path) -> String {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    stdout(&["mkfs", "--size", "2M", &format!("{}@0", path("a")), &format!("{}@1", path("b"))]);
    path("a")
}

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&stdout(&[args, &["--json"]].concat())).unwrap()
}

#[test]
fn put_leaves_the_old_file_when_there_is_no_room_for_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let volume = small_volume(dir.path());
    let (local, large) = (dir.path().join("local"), dir.path().join("large"));
    fs::write(&local, [7; 300_000]).unwrap();
    fs::write(&large, vec![8; 5_000_000]).unwrap();
    let (local, large) = (local.to_str().unwrap(), large.to_str().unwrap());
    stdout(&["fs", "put", &volume, local, "/file"]);
    let before = json(&["fs", "info", &volume]);
    let failed = homenode(&["fs", "put", &volume, large, "/file"]);
    let error = String::from_utf8(failed.stderr).unwrap();
    assert_eq!((failed.status.code(), error.as_str()), (Some(5), "homenode: /file: the volume is full (ENOSPC)\n"));
    assert_eq!(homenode(&["fs", "get", &volume, "/file", "-"]).stdout, [7; 300_000]);
    assert_eq!(json(&["fs", "ls", &volume, "/"])["names"].as_array().unwrap().len(), 1);
    assert_eq!(json(&["fs", "info", &volume]), before, "every block came back");

    assert_eq!(code(&["fs", "put", &volume, local, "/"]), 2);
    assert_eq!(code(&["fs", "rm", &volume, "/missing"]), 5);
    let out = dir.path().join("out");
    assert_eq!(code(&["fs", "get", &volume, "/", out.to_str().unwrap()]), 5);
    assert!(!out.exists(), "a directory left an empty file");
    // A command that failed left the volume as after a crash.
    assert_eq!(json(&["fsck", &volume])["clean"], true);
    stdout(&["fs", "rm", &volume, "/file"]);
    assert_eq!(json(&["fs", "ls", &volume, "/"])["names"], serde_json::json!([]));
    assert_eq!(code(&["fsck", &volume]), 0);
}

/// Another name kept the old content, a file went to the user who ran it, and a link that led to
/// nothing became a file.
#[test]
fn getting_a_file_keeps_owner_names_and_links_of_the_local_one() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let volume = small_volume(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("new"), "new").unwrap();
    stdout(&["fs", "put", &volume, &path("new"), "/f"]);
    for name in ["one", "linked", "owned"] {
        fs::write(path(name), "longer than it").unwrap();
    }
    fs::hard_link(path("one"), path("two")).unwrap();
    std::os::unix::fs::symlink("linked", path("link")).unwrap();
    std::os::unix::fs::symlink("nothing", path("dangling")).unwrap();
    let owner = if std::os::unix::fs::chown(path("owned"), Some(1234), Some(1234)).is_ok() { 1234 } else { 0 };
    for name in ["one", "link", "owned", "dangling"] {
        stdout(&["fs", "get", &volume, "/f", &path(name)]);
        assert_eq!(fs::read_to_string(path(name)).unwrap(), "new", "{name}");
    }
    for name in ["two", "linked", "nothing"] {
        assert_eq!(fs::read_to_string(path(name)).unwrap(), "new", "{name}");
    }
    assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(path("dangling")).unwrap().is_symlink());
    if owner != 0 {
        assert_eq!(fs::metadata(path("owned")).unwrap().uid(), owner);
    } else {
        println!("skipped: only root gives a file to another user");
    }
}

fn json_of(output: &std::process::Output, code: i32) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// One lost line of a file's log: `get`, `-o ro` and `cat` gave nothing of the file. And a `get`
/// that failed left half of the file under its name, in place of what was there.
#[test]
fn a_damaged_file_gives_all_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("a").to_str().unwrap().to_owned();
    stdout(&["mkfs", "--size", "8M", &volume]);
    let local = dir.path().join("local");
    let content: Vec<u8> = (0..3 << 20).map(|i: u32| (i >> 12) as u8 | 1).collect();
    fs::write(&local, &content).unwrap();
    stdout(&["fs", "put", &volume, local.to_str().unwrap(), "/f"]);
    let ino = json(&["fs", "ls", &volume])["names"][0]["ino"].as_u64().unwrap();
    // Attributes, then an entry for each MiB: the second.
    let region = dir.path().join("a");
    let mut bytes = fs::read(&region).unwrap();
    let page = |block: &[u8]| block[4..8] == *b"HLOG" && block[8..16] == ino.to_le_bytes();
    let at = bytes.chunks(4096).position(page).unwrap() * 4096;
    let line = (2..64).filter(|slot| bytes[at + slot * 64 + 4] == 3).nth(1).unwrap();
    bytes[at + line * 64..][..64].fill(0xa5);
    fs::write(&region, bytes).unwrap();

    let out = dir.path().join("out");
    fs::write(&out, b"precious").unwrap();
    assert_eq!(code(&["fs", "get", &volume, "/f", out.to_str().unwrap()]), 5);
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is left half");
    let got = homenode(&["fs", "get", "--damaged", &volume, "/f", out.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&got.stderr).into_owned();
    assert_eq!(got.status.code(), Some(1), "{said}");
    assert!(said.contains("/f: bytes 1048576 to 2097152 are lost"), "{said}");
    let mut kept = content.clone();
    kept[1 << 20..2 << 20].fill(0);
    assert!(fs::read(&out).unwrap() == kept);
    assert_eq!(code(&["fsck", "--repair", &volume]), 4);
    assert_eq!(code(&["fsck", "--yes", &volume]), 1);
    assert!(homenode(&["fs", "get", &volume, "/f", "-"]).stdout == kept);
}

/// Nothing of the log of an inode can be read any more.
fn damage(region: &Path, ino: u64) {
    let mut bytes = fs::read(region).unwrap();
    let page = |block: &[u8]| block[4..8] == *b"HLOG" && block[8..16] == ino.to_le_bytes();
    let at = bytes.chunks(4096).position(page).unwrap() * 4096;
    bytes[at..at + 4096].fill(0xa5);
    fs::write(region, bytes).unwrap();
}

/// Each command that met the damaged file, and `fsck --repair`, left a volume that nothing could
/// mount again; and then no check passed any more.
#[test]
fn a_damaged_file_can_be_seen_and_removed_and_a_repair_ends_it() {
    for repair in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let volume = small_volume(dir.path());
        let local = dir.path().join("local");
        fs::write(&local, [7; 9000]).unwrap();
        for name in ["/bad", "/good"] {
            stdout(&["fs", "put", &volume, local.to_str().unwrap(), name]);
        }
        let kinds = || -> Vec<String> {
            let listed = json(&["fs", "ls", &volume])["names"].as_array().unwrap().clone();
            listed.iter().map(|name| name["kind"].as_str().unwrap().to_owned()).collect()
        };
        let ino = json(&["fs", "ls", &volume])["names"][0]["ino"].as_u64().unwrap();
        damage(&dir.path().join("a"), ino);

        assert_eq!(code(&["fs", "get", &volume, "/bad", "-"]), 5);
        assert_eq!(kinds(), ["damaged", "file"]);
        if repair {
            let before = fs::read(dir.path().join("a")).unwrap();
            let asked = json_of(&homenode(&["fsck", "--repair", "--json", &volume]), 4);
            assert_eq!((&asked["repaired"], &asked["lost"].as_array().unwrap().len()), (&false.into(), &1));
            assert!(asked["hint"].as_str().unwrap().contains("--yes"), "{asked}");
            assert!(fs::read(dir.path().join("a")).unwrap() == before, "it was not asked for");
            assert_eq!(code(&["fsck", "--yes", &volume]), 1);
            assert_eq!(code(&["fsck", &volume]), 0);
            assert_eq!(kinds(), ["file", "file"]);
            assert_eq!(homenode(&["fs", "get", &volume, "/bad", "-"]).stdout, b"");
        }
        assert_eq!(homenode(&["fs", "get", &volume, "/good", "-"]).stdout, [7; 9000]);
        stdout(&["fs", "rm", &volume, "/bad"]);
        assert_eq!(kinds(), ["file"]);
        assert_eq!(code(&["fsck", "--repair", &volume]), if repair { 0 } else { 1 }, "the inode is freed");
        assert_eq!(code(&["fsck", "--repair", &volume]), 0);
    }
}

/// Looking into a backup gave its regions new numbers, so that they fitted the originals no more;
/// and read-only ones could not be read.
#[test]
fn looking_into_a_volume_changes_no_byte_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let volume = small_volume(dir.path());
    let local = dir.path().join("local");
    fs::write(&local, [7; 9000]).unwrap();
    stdout(&["fs", "put", &volume, local.to_str().unwrap(), "/file"]);
    let regions = ["a", "b"].map(|name| dir.path().join(name));
    for region in &regions {
        let mut permissions = fs::metadata(region).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(region, permissions).unwrap();
    }
    let bytes = || regions.clone().map(|region| fs::read(region).unwrap());
    let before = bytes();
    let other = fs::File::open(&regions[0]).unwrap();
    other.lock_shared().unwrap(); // somebody else looks, too
    for look in [
        &["fs", "info", &volume][..],
        &["fs", "ls", &volume],
        &["fs", "get", &volume, "/file", "-"],
        &["fs", "where", &volume, "/file"],
        &["fsck", &volume],
    ] {
        stdout(look);
        assert!(bytes() == before, "{look:?}");
    }
}

#[test]
fn a_migration_stops_at_a_signal_and_keeps_what_it_moved() {
    let dir = tempfile::tempdir().unwrap();
    let volume = small_volume(dir.path());
    let local = dir.path().join("local");
    let data: Vec<u8> = (0..1_000_000_u32).map(|i| (i / 13) as u8).collect();
    fs::write(&local, &data).unwrap();
    stdout(&["fs", "put", &volume, local.to_str().unwrap(), "/file"]);
    let to = ["1", "0"].into_iter().find(|node| {
        let all = json(&["fs", "where", &volume, "/file"]);
        all["nodes"].get(node).is_none()
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_homenode-fs"));
    command.args(["fs", "migrate", &volume, "/file", "--to", to.unwrap(), "--rate", "1kB/s", "--json"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let catches_interrupts = || {
        let text = fs::read_to_string(&status).unwrap();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << 1 != 0
    };
    while !catches_interrupts() {
        std::thread::yield_now();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["stopped"], true, "{said}");
    let place = json(&["fs", "where", &volume, "/file"]);
    assert_eq!(place["nodes"].get(to.unwrap()).map_or(0, |bytes| bytes.as_u64().unwrap()), said["moved"]);
    assert!(homenode(&["fs", "get", &volume, "/file", "-"]).stdout == data);
    assert_eq!(code(&["fsck", &volume]), 0);
    let finished = json(&["fs", "migrate", &volume, "/file", "--to", to.unwrap(), "--rate", "1GB/s"]);
    assert_eq!(finished["stopped"], false);
}

#[test]
fn mkfs_says_what_is_wrong_and_leaves_no_files_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let fails = |args: &[&str]| {
        let output = homenode(&[&["mkfs"], args].concat());
        assert!(!output.status.success(), "{args:?}");
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == "old"), "{args:?}: {left:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let error = fails(&["--size", "8M", &path("a@0"), &path("b@x")]);
    assert!(error.contains("b@x: `x` is no number of a node"), "{error}");
    assert!(fails(&["--size", "8M", &path("a@-1")]).contains("`-1` is no number of a node"));
    let error = fails(&["--size", "8", &path("a@0"), &path("b@1")]);
    assert!(error.contains("--size 8 B: a region has at least 256"), "{error}");
    assert!(error.contains("hint: --size 256KiB is the least"), "{error}");
    assert!(fails(&[&path("a@0")]).contains("hint: --size creates the files"));
    fs::write(path("old"), [0; 1_000_000]).unwrap();
    let error = fails(&["--size", "8M", &path("a@0"), &path("old@1")]);
    assert!(error.contains("File exists") && error.contains("hint: without --size"), "{error}");
    for twice in [&["--size", "8M", &path("a@0"), &path("a@1")][..], &[&path("old@0"), &path("./old@1")]] {
        let error = fails(twice);
        assert!(error.contains(": the same file is given twice") && !error.contains('@'), "{error}");
    }
    assert!(fails(&["--size", "100000TB", &path("a@0")]).contains("cannot"), "no space, or too large for a file");
    stdout(&["mkfs", "--size", "2M", &path("with@sign@0"), &path("another@sign@")]);
    assert!(dir.path().join("with@sign").exists() && dir.path().join("another@sign").exists());
}

/// umount(8) returns before the server of a mount has ended.
#[test]
fn a_volume_in_use_is_waited_for_and_then_its_user_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let region = small_volume(dir.path());
    let user = fs::File::open(&region).unwrap();
    user.lock().unwrap();
    let refused = homenode(&["fsck", &region]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(8), "{said}");
    assert!(said.contains(&format!("process {} (", std::process::id())), "{said}");

    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| code(&["fsck", &region]));
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(user);
        assert_eq!(waiting.join().unwrap(), 0);
    });
}

/// Permissions of the files on a volume mean nothing to somebody who can read its regions.
#[test]
fn only_its_owner_can_read_a_new_region() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let region = small_volume(dir.path());
    assert_eq!(fs::metadata(region).unwrap().permissions().mode() & 0o777, 0o600);
}

/// It said `clean: true`, named no file, and left the user with that.
#[test]
fn damaged_file_data_is_named_with_its_file_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    stdout(&["mkfs", "--size", "8M", &path("a")]);
    fs::write(path("local"), vec![0x5a; 10_000]).unwrap();
    stdout(&["fs", "put", &path("a"), &path("local"), "/file"]);
    let whole = json(&["fsck", &path("a")]);
    assert_eq!((&whole["clean"], &whole["unmounted"], &whole["hint"]), (&true.into(), &true.into(), &().into()));
    let mut bytes = fs::read(path("a")).unwrap();
    let at = bytes.chunks(4096).position(|block| block.iter().all(|byte| *byte == 0x5a)).unwrap();
    bytes[at * 4096] ^= 1;
    fs::write(path("a"), bytes).unwrap();

    let output = homenode(&["fsck", "--json", &path("a")]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &told["clean"], &told["unmounted"]), (Some(4), &false.into(), &true.into()));
    assert!(told["damage"][0].as_str().unwrap().starts_with("/file: data in block "), "{told}");
    assert!(told["hint"].as_str().unwrap().contains("restore these files from a backup, or remove them"), "{told}");
    let repaired = homenode(&["fsck", "--repair", &path("a")]);
    let said = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(
        repaired.status.code() == Some(4) && said.contains("\n  hint: --repair cannot bring file data back"),
        "{said}"
    );
    stdout(&["fs", "rm", &path("a"), "/file"]);
    assert_eq!(code(&["fsck", &path("a")]), 0);
}

/// `Usage: fsck.homenode fsck`.
#[test]
fn links_of_the_program_are_used_by_their_own_names() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["mkfs", "fsck", "mount"] {
        let link = dir.path().join(format!("{name}.homenode"));
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_homenode-fs"), &link).unwrap();
        let output = Command::new(&link).arg("--help").output().unwrap();
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(help.contains(&format!("Usage: {name}.homenode ")), "{help}");
        assert!(!help.contains(&format!("{name}.homenode {name}")), "{help}");
    }
    assert!(String::from_utf8_lossy(&homenode(&["fsck", "--help"]).stdout).contains("Usage: homenode-fs fsck "));
}

#[test]
fn thresholds_without_a_policy_are_refused() {
    for option in ["--margin=1MB/s", "--min-bytes=1MB", "--window=1", "--quiet"] {
        let output = homenode(&["mount", option, "/nowhere/volume", "/nowhere"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("--policy"), "{option}: {said}");
    }
}

/// `put` removed a user's file of the name that it used for its copy.
#[test]
fn putting_a_file_leaves_all_others_alone() {
    let dir = tempfile::tempdir().unwrap();
    let volume = small_volume(dir.path());
    let local = dir.path().join("local");
    for (content, path) in [("mine", "/.homenode-put"), ("also", "/.homenode-put.0"), ("old", "/f"), ("new", "/f")] {
        fs::write(&local, content).unwrap();
        stdout(&["fs", "put", &volume, local.to_str().unwrap(), path]);
    }
    let get = |path| String::from_utf8(homenode(&["fs", "get", &volume, path, "-"]).stdout).unwrap();
    assert_eq!([get("/.homenode-put"), get("/.homenode-put.0"), get("/f")], ["mine", "also", "new"]);
    assert_eq!(json(&["fs", "ls", &volume])["names"].as_array().unwrap().len(), 3);
    assert_eq!(code(&["fsck", &volume]), 0);
}

#[test]
fn the_number_of_inodes_can_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let free = |name: &str, ratio: &[&str]| {
        let region = dir.path().join(name).to_str().unwrap().to_owned();
        stdout(&[&["mkfs", "--size", "16MiB", &region], ratio].concat());
        json(&["fs", "info", &region])["regions"][0]["free_inodes"].as_u64().unwrap()
    };
    assert_eq!((free("a", &[]), free("b", &["--bytes-per-inode", "4KiB"])), (1022, 4094));
    let wrong =
        homenode(&["mkfs", "--size", "1MiB", "--bytes-per-inode", "100", dir.path().join("c").to_str().unwrap()]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn with_logs_twice_a_lost_region_costs_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let one = homenode(&["mkfs", "--size", "16MiB", "--logs", "twice", &path("one")]);
    let said = String::from_utf8(one.stderr).unwrap();
    assert!(one.status.code() == Some(2) && said.contains("two regions or more"), "{said}");
    assert!(!dir.path().join("one").exists());
    let [a, b] = ["a", "b"].map(path);
    stdout(&["mkfs", "--size", "16MiB", "--logs", "twice", &a, &b]);
    let local = path("local");
    fs::write(&local, "what it says").unwrap();
    stdout(&["fs", "put", &a, &local, "/f"]);
    stdout(&["fs", "put", &a, &local, "/g"]);
    assert_eq!(json(&["fs", "info", &a])["logs"], "twice");
    assert!(stdout(&["fs", "info", &a]).contains("logs: twice"));
    assert!(stdout(&["fsck", &a]).contains(", logs twice, no damage"));
    for (lost, left) in [(&a, &b), (&b, &a)] {
        fs::rename(lost, path("gone")).unwrap();
        let names = json(&["fs", "ls", left]);
        let names: Vec<_> = names["names"].as_array().unwrap().iter().map(|name| name["name"].clone()).collect();
        assert_eq!(names, ["f", "g"]);
        fs::rename(path("gone"), lost).unwrap();
    }
    assert_eq!(code(&["fsck", &a]), 0);
}

/// A copy of regions that was made while they were mounted was opened without a word; and without
/// one of its regions nothing of a volume could be read.
#[test]
fn copies_of_a_mounted_volume_are_told_and_a_missing_region_costs_its_own_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let volume = small_volume(dir.path());
    let said = |args: &[&str]| {
        let output = homenode(args);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    fs::write(path("local"), vec![7; 9000]).unwrap();
    stdout(&["fs", "put", &volume, path("local").to_str().unwrap(), "/f"]);
    let state = 2 * 4096;
    let copy = |mounted: bool| {
        for (from, to) in [("a", "c"), ("b", "d")] {
            fs::copy(path(from), path(to)).unwrap();
        }
        if mounted {
            // As a server that is there has it.
            let mut bytes = fs::read(path("c")).unwrap();
            let word = ::fs::format::word::Owner { id: 2, generation: 0 };
            let word = ::fs::format::word::seal(word, ::fs::format::word::Field::State, 2);
            bytes[state..state + 8].copy_from_slice(&word.to_le_bytes());
            fs::write(path("c"), bytes).unwrap();
        }
        let (c, d) = (path("c"), path("d"));
        said(&["fs", "ls", c.to_str().unwrap(), "--region", d.to_str().unwrap()])
    };
    assert_eq!(copy(false), (Some(0), String::new()));
    let (code, told) = copy(true);
    assert!(code == Some(0) && told.contains("was mounted when its regions were copied"), "{told}");

    fs::rename(path("b"), path("gone")).unwrap();
    assert_eq!(homenode(&["fsck", "--repair", &volume]).status.code(), Some(8));
    let (code, told) = said(&["fs", "ls", &volume]);
    assert!(code == Some(0) && told.contains("the region is missing"), "{told}");
}

#[test]
fn a_region_is_emptied_and_then_its_loss_costs_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    stdout(&["mkfs", "--size", "8MiB", &path("a@0"), &path("b@1")]);
    fs::write(path("file"), vec![7; 1 << 20]).unwrap();
    stdout(&["fs", "put", &path("a"), &path("file"), "/f"]);
    stdout(&["fs", "migrate", &path("a"), "/f", "--to", "1"]);
    for args in [vec!["2"], vec!["1", "--use-again"]] {
        assert_eq!(code(&[&["drain", &path("a")], args.as_slice()].concat()), 2, "{args:?}");
    }
    let told = json(&["drain", &path("a"), "1"]);
    let expected = serde_json::json!({
        "region": 1, "empty": true, "stopped": false, "moved": told["moved"], "left": 0, "left_inodes": 0,
        "stays": [], "more": 0, "hint": null,
    });
    assert_eq!((&told, told["moved"].as_u64() >= Some(1 << 20)), (&expected, true));
    // The root directory cannot leave, which the exit code says, too.
    let output = homenode(&["drain", &path("a"), "0"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = "region 0: 0 B of blocks and 1 inode are left\nstays: /: the root directory cannot leave region 0\n";
    assert_eq!((output.status.code(), said.as_str()), (Some(1), lines));
    stdout(&["drain", &path("a"), "1"]);
    fs::remove_file(path("b")).unwrap();
    stdout(&["fs", "get", &path("a"), "/f", &path("got")]);
    assert!(fs::read(path("got")).unwrap() == fs::read(path("file")).unwrap());
}

#[test]
fn a_manual_page_for_every_sub_command() {
    let of = ["mkfs", "fsck", "mount", "upgrade", "drain", "fs", "completions", "man"].map(str::to_owned);
    let of_fs = ["info", "ls", "put", "get", "rm", "where", "migrate", "scrub", "quota"];
    let all = [&of[..], &of_fs.map(|name| format!("fs-{name}"))].concat();
    let beside = ["mkfs.homenode.8", "fsck.homenode.8", "mount.homenode.8", "mount.fuse.homenode.8"];
    let pages = testing::pages::manual_pages(env!("CARGO_BIN_EXE_homenode-fs"), &all, &beside);
    let mkfs = &pages["homenode-fs-mkfs.1"];
    assert!(mkfs.contains(".TH") && mkfs.contains("no\\-data\\-checksums") && mkfs.contains("EXAMPLES"), "{mkfs}");
}
