//! `homenode-fs mount`, as people and mount(8) call it: what it returns, says and leaves behind.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testing::{Case, Tried, cases, linux_from, mounting, need};

const CASES: &[Case] = cases![
    [mounting()]
        it_returns_when_the_mount_works,
        refusals_are_one_line_with_their_exit_code,
        mount_8_finds_what_it_expects,
        a_policy_starts_with_a_mount_of_mount_8,
        a_mount_by_hand_says_what_decides,
        a_mount_that_works_is_none_that_failed_when_nobody_reads_it,
        a_signal_unmounts,
        a_server_serves_on_when_nobody_reads_what_it_says,
        a_dead_mount_is_told_with_what_to_do,
        fsck_says_that_a_volume_was_not_unmounted,
        a_mount_on_emulated_nodes_says_so,
        a_signal_ends_no_server_whose_mount_somebody_took_away,
        a_covered_mount_is_served_until_it_can_be_unmounted,
        a_remount_keeps_the_options_and_takes_homenodes_mounts_alone,
        an_aborted_connection_leaves_no_dead_mount,
        options_of_users_imply_what_mount_8_says,
        options_of_all_file_systems_are_known,
        a_damaged_directory_locks_nobody_out,
        a_damaged_file_can_be_removed_through_a_mount,
        a_volume_on_a_read_only_medium_can_be_mounted,
        a_sparse_region_is_filled_or_refused,
        files_of_a_mount_are_looked_at_and_moved,
        what_a_mount_refuses_to_move_is_told,
        a_scrub_of_a_mount_names_the_damaged_file_and_place,
        quotas_are_shown_and_set_on_a_mount,
        write_back_is_refused_where_it_would_mislead;
    [mounting(), sparing()] a_server_is_not_the_oom_killers_first_choice;
    [mounting(), need(cfg!(target_arch = "x86_64"), "memory that fails ends the process here")]
        a_server_goes_on_when_some_of_its_memory_has_failed;
    [mounting(), mapping_owners()] an_idmapped_mount_shows_and_keeps_mapped_owners;
];

fn main() {
    testing::run(&[], CASES.to_vec());
}

/// Needs to be allowed to spare a process from the OOM killer.
fn sparing() -> Tried {
    let spare = Command::new("sh").args(["-c", "echo -1000 > /proc/self/oom_score_adj"]).output();
    need(spare.is_ok_and(|done| done.status.success()), "CAP_SYS_RESOURCE is missing")
}

/// Needs FUSE mounts that can be idmapped.
fn mapping_owners() -> Tried {
    linux_from(6, 12)?;
    let made = Command::new("unshare").args(["--user", "true"]).output()?;
    need(made.status.success(), String::from_utf8_lossy(&made.stderr).trim())
}

/// A volume, and a directory to mount it on.
struct Place {
    volume: String,
    dir: String,
    place: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
        let (volume, dir) = (path("volume"), path("dir"));
        fs::create_dir(&dir).unwrap();
        assert!(homenode(&["mkfs", "--size", "8M", &volume]).status.success());
        Self { volume, dir, place }
    }

    /// With a region on each of nodes 0 and 1.
    fn on_two_nodes() -> Self {
        let mut place = Self::new();
        let [one, other] = [0, 1].map(|node| place.place.path().join(format!("region{node}")).display().to_string());
        let made = homenode(&["mkfs", "--size", "8M", &format!("{one}@0"), &format!("{other}@1")]);
        assert!(made.status.success(), "{made:?}");
        place.volume = one;
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.dir).join(name)
    }

    fn mount(&self, options: &[&str]) -> (i32, String) {
        ends(&homenode(&[&["mount", &self.volume, &self.dir], options].concat()))
    }

    /// Unmounts.
    fn unmount(&self) {
        run(&["umount", &self.dir]);
        assert_eq!(self.fsck(&[]).0, 0);
    }

    /// What fsck says once the server of a mount that has ended is done.
    fn fsck(&self, options: &[&str]) -> (i32, String) {
        loop {
            match ends(&homenode(&[&["fsck", &self.volume], options].concat())) {
                (8, _) => std::thread::yield_now(),
                checked => return checked,
            }
        }
    }

    /// A server in the foreground.
    fn server(&self) -> Child {
        let mut server = Command::new(env!("CARGO_BIN_EXE_homenode-fs"));
        server
            .args(["mount", "--foreground", "--no-hold", "--cache", "direct", &self.volume, &self.dir])
            .stderr(Stdio::piped());
        let server = server.spawn().unwrap();
        while !fs::read_to_string("/proc/mounts").unwrap().contains(&self.dir) {
            std::thread::yield_now();
        }
        fs::write(self.path("f"), b"x").unwrap();
        server
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.dir]).stderr(Stdio::null()).status();
    }
}

fn homenode(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_homenode-fs")).args(args).output().unwrap()
}

fn ends(output: &Output) -> (i32, String) {
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn it_returns_when_the_mount_works() {
    let place = Place::new();
    // The output ends although the server goes on: nobody who reads it waits.
    assert_eq!(
        place.mount(&["-o", "defaults,nosuid,cache=direct,x-systemd.automount", "--placement", "interleave"]),
        (0, String::new())
    );
    fs::write(place.path("f"), b"content").unwrap();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(&place.dir)).unwrap();
    assert!(line.contains(" fuse.homenode rw,nosuid,") && line.starts_with(&place.volume), "{line}");
    let (code, said) = place.mount(&[]);
    assert!(
        code == 4 && said.contains("(homenode-fs mount ") && said.lines().count() == 2,
        "a second mount: {code}, {said}"
    );
    place.unmount();
    assert_eq!(place.mount(&["-o", "ro"]), (0, String::new()));
    assert_eq!(fs::read(place.path("f")).unwrap(), b"content");
    assert_eq!(fs::write(place.path("g"), b"").unwrap_err().raw_os_error(), Some(libc::EROFS));
    place.unmount();
}

fn refusals_are_one_line_with_their_exit_code() {
    let place = Place::new();
    let refused = |args: &[&str], code: i32, word: &str| {
        let (was, said) = ends(&homenode(&[&["mount"], args].concat()));
        assert_eq!(was, code, "{said}");
        assert!(said.contains(word) && said.lines().filter(|line| !line.contains("hint: ")).count() == 1, "{said}");
    };
    refused(&["/nowhere/volume", &place.dir], 5, "/nowhere/volume: No such file or directory (ENOENT)");
    refused(&[&place.volume, "/nowhere/dir"], 5, "/nowhere/dir: No such file or directory (ENOENT)");
    refused(&[&place.volume, &place.volume], 2, "not a directory");
    refused(&["-o", "wrong", &place.volume, &place.dir], 2, "\"wrong\": unknown");
    refused(&["-o", "workers=0", &place.volume, &place.dir], 2, "--workers");
    refused(&["--policy", "nthread", "--dry-run", &place.volume, &place.dir], 2, "--dry-run: it prints");
    refused(&["--placement", "node9", &place.volume, &place.dir], 2, "no region of the volume is on node 9");
    let data = place.place.path().join("data");
    fs::write(&data, vec![1; 1 << 20]).unwrap();
    refused(&[data.to_str().unwrap(), &place.dir], 2, "not a volume");
    // A failed mount leaves the volume free and clean.
    assert_eq!(homenode(&["fsck", &place.volume]).status.code(), Some(0));
}

fn mount_8_finds_what_it_expects() {
    let place = Place::new();
    for name in ["mount.homenode", "mount.fuse.homenode"] {
        let helper = place.place.path().join(name);
        symlink(env!("CARGO_BIN_EXE_homenode-fs"), &helper).unwrap();
        let call = |more: &[&str]| {
            let args = [&[&*place.volume, &*place.dir, "-n", "-o", "rw,noexec"], more].concat();
            Command::new(&helper).args(args).output().unwrap()
        };
        assert_eq!(ends(&call(&["-f"])), (0, String::new()));
        assert_eq!(ends(&call(&["-o", "cache=maybe"])).0, 1, "the codes of mount(8)");
        let missing = |options: &str| Command::new(&helper).args(["/nowhere/v", &*place.dir, "-o", options]).output();
        assert_eq!(ends(&missing("rw").unwrap()).0, 32);
        assert_eq!(ends(&missing("nofail").unwrap()), (0, String::new()));
        assert_eq!(ends(&missing("remount,nofail").unwrap()).0, 1, "nothing is mounted there");
        assert_eq!(ends(&Command::new(&helper).arg("--wrong").output().unwrap()).0, 1);
        assert!(!fs::read_to_string("/proc/mounts").unwrap().contains(&place.dir), "-f only pretends");
        assert_eq!(ends(&call(&["-t", "fuse.homenode"])), (0, String::new()));
        fs::write(place.path("f"), b"x").unwrap();
        let remount = ["remount,ro,user_id=0,group_id=0"];
        assert_eq!(
            ends(&Command::new(&helper).args([&*place.volume, &*place.dir, "-o", remount[0]]).output().unwrap()),
            (0, String::new())
        );
        assert_eq!(fs::write(place.path("g"), b"").unwrap_err().raw_os_error(), Some(libc::EROFS));
        place.unmount();
    }
}

/// `fstab` could not start one.
fn a_policy_starts_with_a_mount_of_mount_8() {
    let place = Place::on_two_nodes();
    let helper = place.place.path().join("mount.homenode");
    symlink(env!("CARGO_BIN_EXE_homenode-fs"), &helper).unwrap();
    let record = place.place.path().join("windows.jsonl");
    let call =
        |options: &str| Command::new(&helper).args([&*place.volume, &*place.dir, "-o", options]).output().unwrap();
    for (wrong, why) in [
        ("policy=best", "'best' for '--policy"),
        ("policy=auto,window=0", "'0' for '--window <SECONDS>': must be between 0.01 and 3600 seconds"),
        ("policy=auto,margin=much", "'much' for '--margin"),
        ("policy=auto,min-bytes=-1", "'-1' for '--min-bytes"),
        ("window=1", "not provided: --policy"),
        ("scale=10", "not provided: --emulate-nodes"),
        ("emulate-nodes=0", "'0' for '--emulate-nodes <N>': 0 is not in 1..=64"),
        ("polic=auto", "option \"polic=auto\": unknown"),
    ] {
        let (code, said) = ends(&call(wrong));
        let mut lines = said.lines().filter(|line| !line.trim_start().starts_with("hint:"));
        assert_eq!((code, lines.clone().count()), (1, 1), "{wrong}: {said}");
        assert!(lines.next().unwrap().contains(why), "{wrong}: {said}");
    }
    let options =
        format!("policy=auto,window=0.1,margin=1MB/s,min-bytes=1,emulate-nodes=2,record={}", record.display());
    let mounted = call(&format!("nosuid,{options}"));
    assert_eq!((ends(&mounted), mounted.stdout), ((0, String::new()), Vec::new()));
    assert!(shown(&place).contains("nosuid"), "{}", shown(&place));
    fs::write(place.path("f"), vec![1; 1 << 16]).unwrap();
    // The policy's windows are its own recording, which the server writes.
    while fs::read_to_string(&record).unwrap_or_default().lines().count() < 2 {
        std::thread::yield_now();
    }
    // mount(8) hands all options back for a remount.
    assert_eq!(ends(&call(&format!("remount,ro,{options}"))), (0, String::new()));
    place.unmount();
}

fn a_mount_by_hand_says_what_decides() {
    let place = Place::new();
    let mounted = homenode(&["mount", &place.volume, &place.dir]);
    let said = String::from_utf8(mounted.stdout).unwrap();
    assert_eq!(
        said,
        format!(
            "mounted on {}: no policy, so threads and files stay where they are (-o policy=auto starts one)\n",
            place.dir
        )
    );
    place.unmount();
    let mounted = homenode(&["mount", &place.volume, &place.dir, "-o", "policy=auto"]);
    assert_eq!(ends(&mounted), (0, String::new()));
    let said = String::from_utf8(mounted.stdout).unwrap();
    assert_eq!(said, format!("mounted on {}: policy auto decides; homenode top shows it\n", place.dir));
    place.unmount();
}

fn a_mount_that_works_is_none_that_failed_when_nobody_reads_it() {
    let place = Place::new();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for stdout in [Stdio::from(full()), Stdio::from(closed)] {
        let mut mount = Command::new(env!("CARGO_BIN_EXE_homenode-fs"));
        let done = mount.args(["mount", &place.volume, &place.dir]).stdout(stdout).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        place.unmount();
    }
}

fn a_signal_unmounts() {
    let place = Place::new();
    for signal in [Signal::TERM, Signal::INT] {
        let server = place.server();
        let open = fs::File::open(place.path("f")).unwrap();
        kill_process(Pid::from_child(&server), signal).unwrap();
        while fs::read_to_string("/proc/mounts").unwrap().contains(&place.dir) {
            std::thread::yield_now();
        }
        assert_eq!(std::io::read_to_string(&open).unwrap(), "x", "open files are served to their end");
        drop(open);
        let ended = server.wait_with_output().unwrap();
        let (code, said) = ends(&ended);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("in use: the mount ends when the last file is closed"), "{said}");
        assert_eq!(homenode(&["fsck", &place.volume]).status.code(), Some(0));
    }
}

/// The server panicked over its message that the mount is in use, and took the open file with it.
fn a_server_serves_on_when_nobody_reads_what_it_says() {
    let place = Place::new();
    let mut server = place.server();
    let open = fs::File::open(place.path("f")).unwrap();
    drop(server.stderr.take());
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    while fs::read_to_string("/proc/mounts").unwrap().contains(&place.dir) {
        std::thread::yield_now();
    }
    // It waits for half a second at most before it says so.
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(std::io::read_to_string(&open).unwrap(), "x");
    drop(open);
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert_eq!(homenode(&["fsck", &place.volume]).status.code(), Some(0));
}

fn a_dead_mount_is_told_with_what_to_do() {
    let place = Place::new();
    let mut server = place.server();
    server.kill().unwrap();
    server.wait().unwrap();
    let (code, said) = place.mount(&[]);
    assert_eq!(code, 5);
    assert!(said.contains("ENOTCONN") && said.contains(&format!("umount -l {}", place.dir)), "{said}");
    // It had recovered the volume by then.
    assert_eq!(json(&homenode(&["fsck", "--json", &place.volume])).1["unmounted"], false);
    run(&["umount", &place.dir]);
    assert_eq!(place.mount(&[]), (0, String::new()));
    assert_eq!(fs::read(place.path("f")).unwrap(), b"x");
    place.unmount();
}

/// The directory's line in the table of mounts.
fn shown(place: &Place) -> String {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    mounts.lines().find(|line| line.contains(&place.dir)).unwrap_or_default().to_owned()
}

fn run(command: &[&str]) {
    assert!(Command::new(command[0]).args(&command[1..]).status().unwrap().success(), "{command:?}");
}

/// The next line on stderr.
fn said(server: &mut Child) -> String {
    let mut line = String::new();
    let mut byte = [0];
    while server.stderr.as_mut().unwrap().read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0].into());
    }
    line
}

fn a_signal_ends_no_server_whose_mount_somebody_took_away() {
    let place = Place::new();
    let mut server = place.server();
    let open = fs::File::open(place.path("f")).unwrap();
    run(&["umount", "-l", &place.dir]);
    fs::remove_dir(&place.dir).unwrap();
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    let line = said(&mut server);
    assert!(line.contains("in use"), "{line}");
    assert_eq!(std::io::read_to_string(&open).unwrap(), "x");
    drop(open);
    assert_eq!(ends(&server.wait_with_output().unwrap()).0, 0);
}

fn a_covered_mount_is_served_until_it_can_be_unmounted() {
    let place = Place::new();
    let mut server = place.server();
    let open = fs::File::open(place.path("f")).unwrap();
    run(&["mount", "-t", "tmpfs", "none", &place.dir]);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    let line = said(&mut server);
    assert!(line.contains("cannot unmount") && line.contains("EBUSY"), "{line}");
    assert_eq!(std::io::read_to_string(&open).unwrap(), "x");
    run(&["umount", &place.dir]);
    drop(open);
    assert_eq!(ends(&server.wait_with_output().unwrap()).0, 0);
    assert_eq!(shown(&place), "");
}

fn a_remount_keeps_the_options_and_takes_homenodes_mounts_alone() {
    let place = Place::new();
    assert_eq!(place.mount(&["-o", "nosuid,nodev,noatime"]), (0, String::new()));
    assert_eq!(place.mount(&["-o", "remount,ro"]), (0, String::new()));
    let line = shown(&place);
    assert!(line.contains(" ro,nosuid,nodev,noatime,"), "{line}");
    assert_eq!(place.mount(&["-o", "remount,rw,suid"]), (0, String::new()));
    let line = shown(&place);
    assert!(line.contains(" rw,nodev,noatime,"), "{line}");
    fs::create_dir(place.path("sub")).unwrap();
    let refused = |dir: &str| {
        let (code, said) = ends(&homenode(&["mount", "-o", "remount,ro", &place.volume, dir]));
        assert!(code == 5 && said.contains("no mount of homenode is there"), "{code}: {said}");
    };
    refused(place.path("sub").to_str().unwrap());
    run(&["mount", "-t", "tmpfs", "none", &place.dir]);
    refused(&place.dir);
    run(&["umount", &place.dir]);
    place.unmount();
}

fn an_aborted_connection_leaves_no_dead_mount() {
    let place = Place::new();
    let server = place.server();
    let control = place.place.path().join("control");
    fs::create_dir(&control).unwrap();
    run(&["mount", "-t", "fusectl", "none", control.to_str().unwrap()]);
    let connection = rustix::fs::minor(rustix::fs::stat(&*place.dir).unwrap().st_dev).to_string();
    fs::write(control.join(connection).join("abort"), "1").unwrap();
    run(&["umount", control.to_str().unwrap()]);
    let (_, said) = ends(&server.wait_with_output().unwrap());
    assert_eq!(shown(&place), "", "{said}");
}

fn options_of_users_imply_what_mount_8_says() {
    let place = Place::new();
    for (options, shows) in [("user=bob,exec", " rw,nosuid,nodev,relatime"), ("users", " rw,nosuid,nodev,noexec,")] {
        // Also after `--`.
        let mounted = ends(&homenode(&["mount", "-o", options, "--", &place.volume, &place.dir]));
        assert_eq!(mounted, (0, String::new()));
        let line = shown(&place);
        assert!(line.contains(shows), "{line}");
        place.unmount();
    }
}

/// They were unknown: lines of fstab that work with other file systems did not work.
fn options_of_all_file_systems_are_known() {
    let place = Place::new();
    let options = "nosymfollow,silent,iversion,nomand,user_xattr,errors=remount-ro";
    assert_eq!(place.mount(&["-o", options]), (0, String::new()));
    let line = shown(&place);
    assert!(line.contains(" rw,nosymfollow,relatime ") || line.contains(",nosymfollow"), "{line}");
    assert_eq!(place.mount(&["-o", "remount,symfollow"]), (0, String::new()));
    assert!(!shown(&place).contains("nosymfollow"));
    place.unmount();
    if Path::new("/sys/fs/selinux/enforce").exists() {
        eprintln!("skipped: labels, as SELinux is on and has its own");
    } else {
        // As mount(8), which drops them.
        let label = r#"context="system_u:object_r:tmp_t:s0:c1,c2",fscontext=system_u:object_r:tmp_t:s0,nosuid"#;
        assert_eq!(place.mount(&["-o", label]), (0, String::new()));
        assert!(shown(&place).contains("nosuid"));
        place.unmount();
    }
    // mount(8) does what these say, so alone they would be a promise that nobody keeps.
    let (code, said) = place.mount(&["-o", "X-mount.idmap=b:0:1000:1"]);
    assert!(code == 2 && said.contains("is for mount(8)"), "{code}: {said}");
    assert_eq!(place.mount(&["--helper", "-o", "X-mount.mkdir"]), (0, String::new()));
    place.unmount();
    assert_eq!(place.mount(&["-o", "errors=continue"]).0, 2);
}

/// Its mapped regions count as its memory, so it had a score of 683.
fn a_server_is_not_the_oom_killers_first_choice() {
    let place = Place::new();
    let mut server = place.server();
    let id = server.id();
    let read = |what: &str| fs::read_to_string(format!("/proc/{id}/{what}")).unwrap();
    assert_eq!((read("oom_score_adj").trim(), read("oom_score").trim()), ("-1000", "0"));
    place.unmount();
    server.wait().unwrap();
}

/// It said `unmounted cleanly`.
fn fsck_says_that_a_volume_was_not_unmounted() {
    let place = Place::new();
    crash(&place, place.server());
    let repaired = homenode(&["fsck", "-y", &place.volume]);
    let said = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert_eq!(repaired.status.code(), Some(1), "{said}");
    assert!(said.starts_with("was not unmounted, and is recovered: ") && said.ends_with("no damage\n"), "{said}");
    let again = homenode(&["fsck", "-y", &place.volume]);
    assert!(again.status.success() && again.stdout.starts_with(b"unmounted cleanly: "), "{again:?}");
}

fn a_mount_on_emulated_nodes_says_so() {
    let place = Place::on_two_nodes();
    let mounted = homenode(&["mount", &place.volume, &place.dir, "--emulate-nodes", "2", "--policy", "nthread"]);
    assert_eq!(ends(&mounted), (0, String::new()));
    let said = String::from_utf8(mounted.stdout).unwrap();
    let line = format!("mounted on {}, 2 emulated nodes: policy nthread decides; homenode top shows it\n", place.dir);
    assert_eq!(said, line);
    place.unmount();
}

/// Kills the server of a mount: as a crash does.
fn crash(place: &Place, mut server: Child) {
    server.kill().unwrap();
    server.wait().unwrap();
    run(&["umount", "-l", &place.dir]);
}

/// Nothing of the log of an inode can be read any more.
fn damage(place: &Place, ino: u64) {
    let mut bytes = fs::read(&place.volume).unwrap();
    let page = |block: &[u8]| block[4..8] == *b"HLOG" && block[8..16] == ino.to_le_bytes();
    let at = bytes.chunks(4096).position(page).unwrap() * 4096;
    bytes[at..at + 4096].fill(0xa5);
    fs::write(&place.volume, bytes).unwrap();
}

fn ino(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap())
}

/// One bit in the log of one directory, and a crash: mount, `-o ro`, `fsck --repair`, `fs get` and
/// `fs ls` all refused.
fn a_damaged_directory_locks_nobody_out() {
    let place = Place::new();
    let server = place.server();
    for name in ["important", "junk"] {
        fs::create_dir(place.path(name)).unwrap();
        fs::write(place.path(name).join("data"), name).unwrap();
    }
    let (junk, data) = (ino(&place.path("junk")), ino(&place.path("junk/data")));
    crash(&place, server);
    damage(&place, junk);
    let before = fs::read(&place.volume).unwrap();
    let got = homenode(&["fs", "get", &place.volume, "/important/data", "-"]);
    assert_eq!((ends(&got).0, &got.stdout[..]), (0, &b"important"[..]));
    assert!(ends(&got).1.contains("\"junk\" stands for a directory that is damaged"), "{}", ends(&got).1);
    assert_eq!(ends(&homenode(&["fs", "ls", &place.volume])).0, 0);

    let (code, said) = place.mount(&["-o", "ro"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read(place.path("important/data")).unwrap(), b"important");
    let code = fs::read_dir(place.path("junk")).map(|names| names.map(|name| name.map(drop)).collect::<Vec<_>>());
    let code = code.map(|names| names.into_iter().find_map(Result::err)).unwrap_or_else(Some);
    assert_eq!(code.and_then(|e| e.raw_os_error()), Some(libc::EUCLEAN));
    let (code, said) = place.mount(&["-o", "remount,rw"]);
    assert!(code == 5 && said.contains("mounted with ro"), "{code}: {said}");
    assert!(shown(&place).contains(" ro,"), "{}", shown(&place));
    run(&["umount", &place.dir]);
    assert!(fs::read(&place.volume).unwrap() == before, "looking has changed the volume");

    // The server that looks may end a little later.
    let (code, said) = place.mount(&[]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read(place.path("important/data")).unwrap(), b"important");
    fs::remove_file(place.path("important/data")).unwrap();
    run(&["umount", &place.dir]);
    let repaired = place.fsck(&["--yes"]);
    assert_eq!(repaired.0, 1, "{repaired:?}");
    assert_eq!(place.mount(&[]), (0, String::new()));
    assert_eq!(fs::read(place.path(&format!("lost+found/#{data}"))).unwrap(), b"junk");
    fs::remove_dir(place.path("junk")).unwrap();
    place.unmount();
}

/// `rm` looks the name up first, and that was an error: so was `rm -rf` of the directory.
fn a_damaged_file_can_be_removed_through_a_mount() {
    let place = Place::new();
    assert_eq!(place.mount(&[]), (0, String::new()));
    fs::create_dir_all(place.path("dir/sub")).unwrap();
    fs::write(place.path("dir/file"), b"x").unwrap();
    let (file, sub) = (ino(&place.path("dir/file")), ino(&place.path("dir/sub")));
    place.unmount();
    damage(&place, file);
    damage(&place, sub);
    assert_eq!(place.mount(&[]).0, 0);
    let metadata = fs::metadata(place.path("dir/file")).unwrap();
    assert!(metadata.is_file() && metadata.permissions().readonly());
    let refused = [
        fs::read(place.path("dir/file")).map(drop),
        fs::write(place.path("dir/file"), b"new"),
        fs::rename(place.path("dir/file"), place.path("dir/other")),
    ];
    let refused = refused.map(|done| done.err().and_then(|e| e.raw_os_error()));
    assert_eq!(refused, [Some(libc::EUCLEAN); 3]);
    run(&["rm", "-rf", place.path("dir").to_str().unwrap()]);
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 0);
    run(&["umount", &place.dir]);
    let repaired = place.fsck(&["--yes"]);
    assert_eq!(repaired.0, 1, "{repaired:?}");
    assert_eq!(ends(&homenode(&["fsck", &place.volume])).0, 0);
}

/// Its regions were opened for writing, so a read-only snapshot was out of reach.
fn a_volume_on_a_read_only_medium_can_be_mounted() {
    let place = Place::new();
    let server = place.server();
    crash(&place, server); // so that it must be recovered
    let medium = place.place.path().join("medium");
    fs::create_dir(&medium).unwrap();
    fs::rename(&place.volume, medium.join("volume")).unwrap();
    let (path, volume) = (medium.to_str().unwrap(), medium.join("volume"));
    let volume = volume.to_str().unwrap();
    run(&["mount", "--bind", path, path]);
    run(&["mount", "-o", "remount,bind,ro", path]);
    let before = fs::read(volume).unwrap();
    // It was moved while it was mounted.
    let (code, said) = ends(&homenode(&["mount", "-o", "ro", volume, &place.dir]));
    assert!(code == 0 && said.contains("copied or moved here") && said.lines().count() == 1, "{said}");
    let content = fs::read(place.path("f"));
    run(&["umount", &place.dir]);
    let checked = ends(&homenode(&["fsck", volume]));
    let same = fs::read(volume).unwrap() == before;
    run(&["umount", "-l", path]);
    assert_eq!((content.unwrap(), checked.0, same), (b"x".to_vec(), 0, true), "{checked:?}");
}

/// `mkfs` took a file of 200 MB on a tmpfs of 20 MB, and the server ended without a word after 19
/// MB.
fn a_sparse_region_is_filled_or_refused() {
    let place = Place::new();
    let small = place.place.path().join("small");
    fs::create_dir(&small).unwrap();
    run(&["mount", "-t", "tmpfs", "-o", "size=20M", "none", small.to_str().unwrap()]);
    let sparse = |name: &str, len| {
        let path = small.join(name);
        fs::File::create(&path).unwrap().set_len(len).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (large, fits) = (sparse("large", 200 << 20), sparse("fits", 8 << 20));
    let refused = ends(&homenode(&["mkfs", &large]));
    let made = ends(&homenode(&["mkfs", &fits]));
    let allocated = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&fits).unwrap()) * 512;
    // A copy that leaves out what is zero.
    fs::remove_file(&large).unwrap();
    let copy = small.join("copy");
    run(&["cp", "--sparse=always", &fits, copy.to_str().unwrap()]);
    fs::remove_file(&fits).unwrap();
    let filler = small.join("filler");
    let _ = fs::write(&filler, vec![1; 16 << 20]);
    let full = ends(&homenode(&["mount", copy.to_str().unwrap(), &place.dir]));
    fs::remove_file(&filler).unwrap();
    let filled = ends(&homenode(&["mount", copy.to_str().unwrap(), &place.dir]));
    let _ = Command::new("umount").arg(&place.dir).status();
    run(&["umount", "-l", small.to_str().unwrap()]);
    assert!(refused.0 == 5 && refused.1.contains("ENOSPC"), "{refused:?}");
    assert_eq!((made.0, allocated), (0, 8 << 20), "{made:?}");
    assert!(full.0 == 5 && full.1.contains("is sparse"), "{full:?}");
    assert_eq!(filled, (0, String::new()));
}

/// The server ended by a signal, and nobody was told why. Then it ended with a word.
fn a_server_goes_on_when_some_of_its_memory_has_failed() {
    let place = Place::new();
    let mut server = place.server();
    // Somebody cuts the region off: what is stored has no place any more.
    fs::File::options().write(true).open(&place.volume).unwrap().set_len(7 << 20).unwrap();
    let mut file = fs::File::create(place.path("g")).unwrap();
    let error = std::iter::repeat_with(|| file.write(&[1; 16384])).find_map(Result::err).unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    drop(file);
    fs::remove_file(place.path("g")).unwrap();
    let line = said(&mut server);
    assert!(line.contains(" has failed: ") && line.contains("(EIO)"), "{line}");
    assert_eq!(fs::read(place.path("f")).unwrap(), b"x");
    // Some of what was cut off may be met once more, a block at a time.
    assert!((0..300).any(|_| fs::write(place.path("h"), b"y").is_ok()));
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    let (code, said) = ends(&server.wait_with_output().unwrap());
    assert_eq!(code, 0, "{said}");
}

/// What a command prints as JSON, and its exit code.
fn json(output: &Output) -> (i32, serde_json::Value) {
    let (code, said) = ends(output);
    (code, serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}")))
}

fn place_of(file: &str) -> serde_json::Value {
    let (code, place) = json(&homenode(&["--json", "fs", "where", file]));
    assert_eq!((code, &place["path"]), (0, &file.into()));
    place["nodes"].clone()
}

/// They could not be had while the volume was mounted.
fn files_of_a_mount_are_looked_at_and_moved() {
    const LEN: u64 = 3 << 20;
    let place = Place::on_two_nodes();
    assert_eq!(place.mount(&[]), (0, String::new()));
    let file = place.path("f").to_str().unwrap().to_owned();
    let data: Vec<u8> = (0..LEN).map(|i| (i / 1000) as u8).collect();
    fs::write(&file, &data).unwrap();
    let moved = json(&homenode(&["--json", "fs", "migrate", &file, "--to", "1"]));
    assert_eq!(
        (moved.0, &moved.1["path"], &moved.1["to"], &moved.1["stopped"]),
        (0, &file.as_str().into(), &1.into(), &false.into())
    );
    assert_eq!(place_of(&file), serde_json::json!({"1": LEN}));
    let table = homenode(&["fs", "where", &file]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("node 1"), "{table:?}");

    // Ctrl-C.
    let mut slow = Command::new(env!("CARGO_BIN_EXE_homenode-fs"));
    slow.args(["--json", "fs", "migrate", &file, "--to", "0", "--rate", "500kB/s"]);
    let slow = slow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while place_of(&file).get("0").is_none() {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&slow), Signal::INT).unwrap();
    let (code, told) = json(&slow.wait_with_output().unwrap());
    assert_eq!((code, &told["stopped"]), (1, &true.into()));
    let nodes = place_of(&file);
    assert_eq!((&nodes["0"], nodes["0"].as_u64().unwrap() + nodes["1"].as_u64().unwrap()), (&told["moved"], LEN));
    assert!(nodes["1"].as_u64().unwrap() > 0, "{nodes}");

    let rest = ends(&homenode(&["fs", "migrate", &file, "--to", "0"]));
    assert_eq!(rest, (0, String::new()));
    assert_eq!(place_of(&file), serde_json::json!({"0": LEN}));
    assert!(fs::read(&file).unwrap() == data);
    place.unmount();
    // The same by the volume.
    let (code, by_volume) = json(&homenode(&["--json", "fs", "where", &place.volume, "/f"]));
    assert_eq!((code, &by_volume["nodes"]), (0, &serde_json::json!({"0": LEN})));
}

/// A bit that flips under a mount: the scrub names file and place, and a read there gives EIO.
fn a_scrub_of_a_mount_names_the_damaged_file_and_place() {
    use std::os::unix::fs::FileExt;
    let place = Place::new();
    assert_eq!(place.mount(&["-o", "cache=direct"]), (0, String::new()));
    fs::create_dir(place.path("dir")).unwrap();
    fs::write(place.path("dir/whole"), vec![0x11; 3 << 20]).unwrap();
    fs::write(place.path("dir/bad"), [[0x22; 4096], [0x33; 4096]].concat()).unwrap();
    let scrub = |more: &[&str]| json(&homenode(&[&["--json", "fs", "scrub", &place.dir], more].concat()));
    let never = scrub(&["--status"]);
    assert_eq!((never.0, &never.1["state"]), (0, &serde_json::Value::Null));
    let (code, told) = scrub(&[]);
    assert_eq!((code, &told["state"], &told["faults"]), (0, &"done".into(), &serde_json::json!([])), "{told}");
    assert_eq!((&told["bytes"], &told["inodes"]), (&((3 << 20) + 8192).into(), &4.into()));

    let bytes = fs::read(&place.volume).unwrap();
    let at = bytes.chunks(4096).position(|block| block.iter().all(|byte| *byte == 0x33)).unwrap() as u64 * 4096;
    fs::OpenOptions::new().write(true).open(&place.volume).unwrap().write_all_at(&[0x32], at + 7).unwrap();
    let (code, told) = scrub(&[]);
    assert_eq!((code, &told["damaged"], &told["mended"]), (4, &1.into(), &0.into()), "{told}");
    let fault = &told["faults"][0];
    assert_eq!((&fault["path"], &fault["bytes"]), (&"/dir/bad".into(), &serde_json::json!([4096, 8192])), "{told}");
    let said = homenode(&["fs", "scrub", &place.dir, "--status"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.starts_with("/dir/bad: bytes 4096 to 8192: data in block "), "{text}");
    assert_eq!(said.status.code(), Some(4));
    let read = fs::read(place.path("dir/bad")).unwrap_err();
    assert_eq!(read.raw_os_error(), Some(libc::EIO));
    fs::remove_file(place.path("dir/bad")).unwrap();

    // A slow one, which is stopped and goes on: also after another mount.
    let (code, told) = scrub(&["--background", "--rate", "100kB/s"]);
    assert_eq!((code, &told["state"]), (0, &"running".into()));
    let busy = ends(&homenode(&["fs", "scrub", &place.dir]));
    assert!(busy.0 == 4 && busy.1.contains("under way"), "{busy:?}");
    while scrub(&["--status"]).1["bytes"].as_u64().unwrap() == 0 {
        std::thread::yield_now();
    }
    let (code, stopped) = scrub(&["--stop"]);
    assert_eq!((code, &stopped["state"]), (0, &"stopped".into()));
    let before = stopped["bytes"].as_u64().unwrap();
    assert!(0 < before && before < 3 << 20, "{stopped}");
    let (code, rest) = scrub(&[]);
    assert_eq!((code, &rest["state"], &rest["bytes"]), (0, &"done".into(), &(3 << 20).into()), "{rest}");
    assert!(rest["completed"].as_u64().is_some(), "{rest}");

    // Everybody may see how many faults there are, but not where.
    let mut told = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(&place.dir, "homenode.scrub", told.as_mut_slice()).unwrap();
    let told: serde_json::Value = serde_json::from_slice(&told[..len]).unwrap();
    assert_eq!(told["state"], serde_json::json!("done"));
    place.unmount();
    let (code, said) = ends(&homenode(&["fs", "scrub", &place.dir]));
    assert!(code == 2 && said.contains("is not on a mounted volume"), "{said}");
}

fn what_a_mount_refuses_to_move_is_told() {
    let place = Place::on_two_nodes();
    assert_eq!(place.mount(&[]), (0, String::new()));
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let migrate = |name: &str, to: &str| ends(&homenode(&["fs", "migrate", &path(name), "--to", to]));
    fs::write(path("f"), vec![1; 3 << 20]).unwrap();
    assert_eq!(migrate("f", "1").0, 0);
    fs::write(path("g"), vec![2; 6 << 20]).unwrap();
    assert_eq!(migrate("g", "0").0, 0);

    let full = migrate("f", "0");
    assert!(full.0 == 5 && full.1.contains("/f: node 0 has no room for more of it (ENOSPC)\n  hint: "), "{full:?}");
    let moved = place_of(&path("f"));
    assert_eq!(moved["0"].as_u64().unwrap() + moved["1"].as_u64().unwrap(), 3 << 20);
    assert!(fs::read(path("f")).unwrap().iter().all(|byte| *byte == 1));

    let wrong = migrate("f", "7");
    assert!(wrong.0 == 2 && wrong.1.contains("no region of the volume is on node 7 (ENXIO)"), "{wrong:?}");
    let missing = migrate("none", "0");
    assert!(missing.0 == 5 && missing.1.contains("ENOENT"), "{missing:?}");
    let elsewhere = ends(&homenode(&["fs", "where", &place.volume]));
    assert!(elsewhere.0 == 2 && elsewhere.1.contains("is not on a mounted volume\n  hint: "), "{elsewhere:?}");
    assert_eq!(homenode(&["fs", "where", &path("f"), "--region", &place.volume]).status.code(), Some(2));

    assert_eq!(place.mount(&["-o", "remount,ro"]), (0, String::new()));
    let refused = migrate("f", "1");
    assert!(refused.0 == 5 && refused.1.contains("the mount is read-only (EROFS)"), "{refused:?}");
    place_of(&path("f"));
    place.unmount();
}

fn quotas_are_shown_and_set_on_a_mount() {
    let place = Place::new();
    assert_eq!(place.mount(&[]), (0, String::new()));
    let quota = |args: &[&str]| homenode(&[&["--json", "fs", "quota", &place.dir], args].concat());
    let set = |args: &[&str]| assert_eq!(ends(&quota(args)), (0, String::new()));
    fs::create_dir(place.path("d")).unwrap();
    fs::write(place.path("d/f"), vec![1; 100 << 10]).unwrap();
    std::os::unix::fs::chown(place.path("d/f"), Some(1000), Some(1000)).unwrap();
    let (code, all) = json(&quota(&[]));
    let file = serde_json::json!({"user": 1000, "bytes": 104 << 10, "bytes_limit": 0, "files": 1, "files_limit": 0});
    assert!(code == 0 && all["quotas"].as_array().unwrap().contains(&file), "{all}");
    set(&["--user", "1000", "--bytes", "256KiB"]);
    set(&["--user", "1000", "--files", "9"]);
    set(&["--project", "7", "--assign", place.path("d").to_str().unwrap(), "--bytes", "1MiB"]);
    let grow = |len: u64| {
        fs::OpenOptions::new().write(true).open(place.path("d/f")).unwrap().write_all(&vec![2; len as usize])
    };
    assert_eq!(grow(300 << 10).unwrap_err().raw_os_error(), Some(libc::EDQUOT));
    grow(200 << 10).unwrap();
    let more = fs::write(place.path("d/g"), vec![3; 900 << 10]);
    assert_eq!(more.unwrap_err().raw_os_error(), Some(libc::EDQUOT), "the project's");
    assert_eq!(fs::read_dir(place.path("d")).unwrap().count(), 2);
    place.unmount();
    assert_eq!(place.mount(&[]), (0, String::new()));
    let (_, user) = json(&quota(&["--user", "1000"]));
    assert_eq!(
        (&user["quotas"][0]["bytes_limit"], &user["quotas"][0]["files_limit"]),
        (&(256 << 10).into(), &9.into())
    );
    assert_eq!(grow(300 << 10).unwrap_err().raw_os_error(), Some(libc::EDQUOT));
    set(&["--user", "1000", "--bytes", "0", "--files", "0"]);
    set(&["--project", "7", "--bytes", "0"]);
    grow(300 << 10).unwrap();
    let refused = ends(&quota(&["--user", "0", "--bytes", "1MiB"]));
    assert!(refused.0 == 2 && refused.1.contains("root has no limit"), "{refused:?}");
    let elsewhere = ends(&homenode(&["fs", "quota", place.place.path().to_str().unwrap()]));
    assert!(elsewhere.0 == 2 && elsewhere.1.contains("is not on a mounted volume"), "{elsewhere:?}");
    place.unmount();
}

/// Its writes carry no thread.
fn write_back_is_refused_where_it_would_mislead() {
    let place = Place::on_two_nodes();
    let (code, said) = place.mount(&["-o", "cache=writeback"]);
    assert!(code == 2 && said.contains("placement=local"), "{code} {said}");
    let (code, said) = place.mount(&["-o", "cache=writeback,policy=auto,placement=interleave"]);
    assert!(code == 2 && said.contains("policy"), "{code} {said}");
    assert_eq!(place.mount(&["-o", "cache=writeback,placement=interleave"]), (0, String::new()));
    place.unmount();
    let place = Place::new();
    assert_eq!(place.mount(&["-o", "cache=writeback"]), (0, String::new()));
    place.unmount();
}

/// A user namespace in which user and group 0 are 10000 outside, and so on.
struct UserNamespace(Child);

impl UserNamespace {
    fn new() -> Self {
        let mut child = Command::new("unshare").args(["--user", "sleep", "600"]).spawn().unwrap();
        let (own, other) = ("/proc/self/ns/user".to_owned(), format!("/proc/{}/ns/user", child.id()));
        while fs::read_link(&own).ok() == fs::read_link(&other).ok() {
            assert_eq!(child.try_wait().unwrap(), None);
            std::thread::yield_now();
        }
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{map}", child.id()), "0 10000 1000").unwrap();
        }
        Self(child)
    }

    fn file(&self) -> fs::File {
        fs::File::open(format!("/proc/{}/ns/user", self.0.id())).unwrap()
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of a mount that shows owners as the namespace has them.
fn idmapped(dir: &str, namespace: &fs::File) -> std::io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::AsRawFd;
    const IDMAP: u64 = 0x0010_0000;
    let flags = rustix::mount::OpenTreeFlags::OPEN_TREE_CLONE | rustix::mount::OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(rustix::fs::CWD, dir, flags)?;
    let attributes = [IDMAP, 0, 0, namespace.as_raw_fd() as u64];
    let (fd, empty, size) = (tree.as_raw_fd(), c"".as_ptr(), size_of_val(&attributes));
    // SAFETY: the call reads `size` bytes, which live through it.
    let set =
        unsafe { libc::syscall(libc::SYS_mount_setattr, fd, empty, libc::AT_EMPTY_PATH, attributes.as_ptr(), size) };
    if set == 0 { Ok(tree) } else { Err(std::io::Error::last_os_error()) }
}

/// Pods with user namespaces need it.
fn an_idmapped_mount_shows_and_keeps_mapped_owners() {
    use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let namespace = UserNamespace::new();
    assert_eq!(place.mount(&[]), (0, String::new()));
    assert_eq!(idmapped(&place.dir, &namespace.file()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    place.unmount();
    assert_eq!(place.mount(&["-o", "idmap"]), (0, String::new()));
    fs::write(place.path("f"), b"roots").unwrap();
    let mapped = idmapped(&place.dir, &namespace.file()).unwrap();
    let owner = |name: &str| statat(&mapped, name, AtFlags::empty()).map(|stat| (stat.st_uid, stat.st_gid)).unwrap();
    assert_eq!(owner("f"), (10000, 10000));
    // As root of the namespace, who has no rights outside.
    let as_user = |id: u32, work: &(dyn Fn() -> rustix::io::Result<()> + Sync)| {
        std::thread::scope(|scope| {
            let works = scope.spawn(|| {
                // SAFETY: of this thread only, which ends.
                unsafe { (libc::setfsgid(id), libc::setfsuid(id)) };
                work()
            });
            works.join().unwrap()
        })
    };
    let create = |name: &str| openat(&mapped, name, OFlags::CREATE | OFlags::WRONLY, Mode::from(0o600)).map(drop);
    as_user(10000, &|| create("g")).unwrap();
    assert_eq!(as_user(10001, &|| create("h")), Err(rustix::io::Errno::ACCESS));
    as_user(10000, &|| rustix::fs::mkdirat(&mapped, "d", Mode::from(0o700))).unwrap();
    as_user(10000, &|| rustix::fs::symlinkat("f", &mapped, "l")).unwrap();
    as_user(10000, &|| rustix::fs::renameat(&mapped, "g", &mapped, "h")).unwrap();
    assert_eq!(owner("h"), (10000, 10000));
    rustix::fs::chownat(&mapped, "h", Some(rustix::fs::Uid::from_raw(10007)), None, AtFlags::empty()).unwrap();
    for (name, uid) in [("f", 0), ("h", 7), ("d", 0), ("l", 0)] {
        assert_eq!(fs::symlink_metadata(place.path(name)).unwrap().uid(), uid, "{name}");
    }
    // Most requests tell no user: what is for root alone stays so.
    std::os::unix::fs::chown(place.path("f"), Some(5), Some(5)).unwrap();
    fs::set_permissions(place.path("f"), std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    as_user(10001, &|| rustix::fs::chownat(&mapped, "f", None, None, AtFlags::empty())).unwrap();
    assert_eq!(fs::metadata(place.path("f")).unwrap().mode() & 0o7777, 0o4755);
    drop(mapped);
    place.unmount();
}
