//! Policies on a real mount over two emulated nodes: this machine's kernel, FUSE and processors.
//!
//! A test whose needs are not met is skipped and says why.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::{Case, Over, Tried, cases, mounting, need};

use common::{homenode, homenode_fs, observing};

const CASES: &[Case] = cases![
    [emulating()]
        a_thread_and_its_journal_and_the_end,
        a_killed_server_leaves_nothing_bound_after_restore,
        the_next_mount_undoes_what_a_killed_server_left,
        a_policy_that_fails_takes_no_mount_away,
        what_can_fail_fails_before_the_mount,
        a_dry_run_writes_to_no_directory_of_another_user,
        a_recording_of_a_mount_replays,
        files_of_a_mount_are_shown_and_moved_as_others_are,
        a_volume_without_the_nodes_is_refused,
        emulated_nodes_have_the_cpus_that_the_server_may_use;
    [emulating(), observing()] top_and_explain_show_a_volume_beside_the_host;
];

fn main() {
    testing::run_one_by_one(&[], CASES.to_vec());
}

/// Needs mounts, and two CPUs for the nodes.
fn emulating() -> Tried {
    mounting()?;
    // A reader that may not use every CPU has an affinity of its own, and stays where it is.
    bind(0, &mut (0..rustix::thread::CpuSet::MAX_CPU as u32));
    need(mask(0).len() > 1, "two nodes are emulated on two CPUs or more")
}

/// The CPUs that a thread of this process may run on, as `/proc` lists them; 0: the calling one.
fn mask(tid: u32) -> Vec<u32> {
    let path = if tid == 0 { "/proc/thread-self/status".into() } else { format!("/proc/self/task/{tid}/status") };
    let status = std::fs::read_to_string(path).unwrap();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn volume(args: &[&str]) -> Output {
    homenode_fs(args).output().unwrap()
}

/// A volume with a file on each node, and a place to mount it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir_in("/dev/shm").unwrap() };
        std::fs::create_dir(place.path("mount")).unwrap();
        let at = |node: u32| format!("{}@{node}", place.region(node));
        let made = volume(&["mkfs", "--size", "32M", &at(0), &at(1)]);
        assert!(made.status.success(), "{made:?}");
        std::fs::write(place.path("data"), vec![7; 4 << 20]).unwrap();
        for node in [0, 1] {
            let (name, region) = (format!("/file{node}"), place.region(0));
            let put = volume(&["fs", "put", &region, text(&place.path("data")), &name]);
            assert!(put.status.success(), "{put:?}");
            let moved = volume(&["fs", "migrate", &region, &name, "--to", &node.to_string()]);
            assert!(moved.status.success(), "{moved:?}");
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn region(&self, node: u32) -> String {
        text(&self.path(&format!("region{node}"))).to_owned()
    }

    fn mount(&self, options: &[&str]) -> Server {
        let mut child = homenode_fs(&["mount", "--foreground", "--json", "--emulate-nodes", "2", "--window", "0.2"])
            .args(["--margin", "1B/s", "--min-bytes", "1", "--state-dir", text(&self.path("state"))])
            .args(options)
            .args([&self.region(0), text(&self.path("mount"))])
            .stdout(Stdio::piped())
            .stderr(File::create(self.path("stderr")).unwrap())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut server = Server { child, lines, mount: self.path("mount") };
        let start = server.line().unwrap();
        assert_eq!((start["kind"].as_str(), start["emulated"].as_str().is_some()), (Some("start"), true), "{start}");
        server
    }
}

struct Server {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    mount: PathBuf,
}

impl Server {
    fn line(&mut self) -> Option<Value> {
        Some(serde_json::from_str(&self.lines.next()?.unwrap()).unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// The rest of what it says.
    fn rest(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.line()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").args(["--lazy", text(&self.mount)]).stderr(Stdio::null()).status();
    }
}

/// Runs `work` beside a thread that reads a file until it ends; `work` gets the thread's id.
fn beside_a_reader(file: &Path, work: impl FnOnce(u32)) {
    let (stop, tid) = (AtomicBool::new(false), AtomicU32::new(0));
    let file = File::open(file).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            tid.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Release);
            let mut out = vec![0; 65_536];
            let mut at = 0;
            // When the server is killed, reading fails.
            while !stop.load(Ordering::Relaxed) {
                let _ = file.read_at(&mut out, at % (4 << 20));
                at += 65_536;
            }
        });
        let _stop = Over(&stop);
        while tid.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        work(tid.load(Ordering::Acquire));
    });
}

/// Gives a thread, 0 for the calling one, these CPUs.
fn bind(tid: u32, cpus: &mut dyn Iterator<Item = u32>) {
    use rustix::thread::{CpuSet, Pid, sched_setaffinity};
    let mut mask = CpuSet::new();
    cpus.for_each(|cpu| mask.set(cpu as usize));
    sched_setaffinity(Pid::from_raw(tid as i32), &mask).unwrap();
}

/// Displaces the reader to the other node until the server moves it to the node of its data.
fn wait_for_the_move(server: &mut Server, tid: u32, all: &[u32], home: &[u32]) {
    let over = AtomicBool::new(false);
    let moved = std::thread::scope(|scope| {
        let _stop = Over(&over);
        // While its node is busy, the kernel does not bring it home by itself.
        for cpu in home {
            scope.spawn(|| {
                bind(0, &mut std::iter::once(*cpu));
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        (0..400).any(|_| {
            let moved = mask(tid) != all;
            if !moved {
                bind(tid, &mut all.iter().copied().filter(|cpu| !home.contains(cpu)));
                bind(tid, &mut all.iter().copied());
                server.line().unwrap();
            }
            moved
        })
    });
    assert!(moved, "the reader has not moved");
    assert_eq!(mask(tid), home);
}

/// The CPUs of an emulated node: the halves, as the profile shares them out.
fn cpus_of(all: &[u32], node: usize) -> &[u32] {
    let half = all.len() / 2;
    if node == 0 { &all[..half] } else { &all[half..] }
}

fn a_thread_and_its_journal_and_the_end() {
    let (place, all) = (Place::new(), mask(0));
    let mut server = place.mount(&["--policy", "nthread-rl"]);
    beside_a_reader(&place.path("mount/file1"), |tid| {
        wait_for_the_move(&mut server, tid, &all, cpus_of(&all, 1));
        let said = homenode(&["explain", &tid.to_string(), "--state-dir", text(&place.path("state"))]);
        assert!(String::from_utf8_lossy(&said.stdout).contains("node 0 → 1"), "{said:?}");
        server.signal(Signal::TERM);
        // The mount itself ends when the reader has closed its file.
        let end = std::iter::from_fn(|| server.line()).find(|line| line["kind"] == "end").unwrap();
        assert_eq!((&end["restored"], &end["failed"]), (&1.into(), &0.into()));
        assert_eq!(mask(tid), all);
    });
    assert_eq!(server.rest(), [Value::Null; 0]);
    let status = server.child.wait().unwrap();
    assert!(status.success(), "{status}");
    // The file is where it was, and the volume is sound.
    let is = volume(&["--json", "fs", "where", &place.region(0), "/file1"]);
    let is: Value = serde_json::from_slice(&is.stdout).unwrap();
    assert!(is.to_string().contains("4194304"), "{is}");
    assert!(volume(&["fsck", &place.region(0)]).status.success());
}

fn top_and_explain_show_a_volume_beside_the_host() {
    let (place, all) = (Place::new(), mask(0));
    let mut server = place.mount(&["--policy", "nthread-rl"]);
    // The state directories of mounts are in `volumes` of the one that all share.
    std::fs::create_dir_all(place.path("all/volumes")).unwrap();
    std::os::unix::fs::symlink(place.path("state"), place.path("all/volumes/mount")).unwrap();
    let said = |args: &[&str]| homenode(&[args, &["--state-dir", text(&place.path("all"))]].concat());
    let volumes = || -> Vec<Value> {
        let top = said(&["top", "--once", "--json", "--window", "0.2"]);
        assert!(top.status.success(), "{top:?}");
        let top: Value = serde_json::from_slice(&top.stdout).unwrap();
        top["volumes"].as_array().cloned().unwrap_or_default()
    };
    beside_a_reader(&place.path("mount/file1"), |tid| {
        wait_for_the_move(&mut server, tid, &all, cpus_of(&all, 1));
        let shown = volumes();
        let [volume] = shown.as_slice() else { panic!("{shown:?}") };
        assert_eq!((&volume["policy"], volume["mount"].as_str()), (&"nthread-rl".into(), Some(text(&server.mount))));
        assert!(volume["emulated"].is_string(), "{volume}");
        let window = &volume["window"];
        let reader = window["threads"].as_array().unwrap().iter().find(|thread| thread["tid"] == tid).unwrap();
        assert!(reader["last_move"].as_str().unwrap().ends_with(" → 1"), "{reader}");
        assert_eq!(window["files"][0]["bytes"], serde_json::json!({"1": 4 << 20}), "{window}");
        assert!(window["files"][0]["read_bytes_per_s"].as_f64() > Some(0.0), "{window}");
        let moves = said(&["explain", &tid.to_string()]);
        assert!(String::from_utf8_lossy(&moves.stdout).contains(" on mount  node 0 → 1"), "{moves:?}");
    });
    server.signal(Signal::TERM);
    server.rest();
    assert!(server.child.wait().unwrap().success());
    assert_eq!(volumes(), [Value::Null; 0], "an unmounted volume is not shown");
}

/// What puts a thread back that a killed server has moved.
fn a_kill_is_undone_by(restore: impl FnOnce(&Place, Server)) -> Place {
    let (place, all) = (Place::new(), mask(0));
    let mut server = place.mount(&["--policy", "nthread-rl"]);
    beside_a_reader(&place.path("mount/file0"), |tid| {
        wait_for_the_move(&mut server, tid, &all, cpus_of(&all, 0));
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        assert_eq!(mask(tid), cpus_of(&all, 0), "a killed server cannot put anything back");
        restore(&place, server);
        assert_eq!(mask(tid), all);
    });
    place
}

fn a_killed_server_leaves_nothing_bound_after_restore() {
    a_kill_is_undone_by(|place, _mounted| {
        // The state directories of mounts are in `volumes` of the one that all share.
        std::fs::create_dir_all(place.path("all/volumes")).unwrap();
        std::fs::rename(place.path("state"), place.path("all/volumes/mount")).unwrap();
        let restored = homenode(&["restore", "--state-dir", text(&place.path("all"))]);
        assert!(restored.status.success(), "{restored:?}");
    });
}

fn the_next_mount_undoes_what_a_killed_server_left() {
    let place = a_kill_is_undone_by(|place, server| {
        drop(server);
        let (state, mount) = (place.path("state"), place.path("mount"));
        let again = volume(&["mount", "--state-dir", text(&state), &place.region(0), text(&mount)]);
        assert!(again.status.success(), "{again:?}");
    });
    assert!(Command::new("umount").arg(place.path("mount")).status().unwrap().success());
}

fn a_policy_that_fails_takes_no_mount_away() {
    let place = Place::new();
    let mut server = place.mount(&["--policy", "nthread-rl", "--record", "/dev/full"]);
    let mut said = String::new();
    while !said.ends_with('\n') {
        said = std::fs::read_to_string(place.path("stderr")).unwrap();
        std::thread::yield_now();
    }
    assert!(said.contains("the mount goes on") && said.contains("ENOSPC"), "{said}");
    std::fs::write(place.path("mount/new"), b"x").unwrap();
    server.signal(Signal::TERM);
    server.rest();
    assert!(!server.child.wait().unwrap().success(), "the failure is returned at the end");
}

fn what_can_fail_fails_before_the_mount() {
    let place = Place::new();
    std::fs::write(place.path("config"), "nonsense = 1").unwrap();
    let (config, state, mount) = (place.path("config"), place.path("data/state"), place.path("mount"));
    for options in [["--record", "/nowhere/windows"], ["--config", text(&config)], ["--state-dir", text(&state)]] {
        let common = ["mount", "--foreground", "--policy", "nthread", &place.region(0), text(&mount)];
        let refused = volume(&[&common[..], &options].concat());
        assert!(!refused.status.success(), "{refused:?}");
        assert!(volume(&["fsck", &place.region(0)]).status.success());
        assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(text(&mount)));
    }
}

/// It keeps no undo records, but tells `top` its windows in the state directory: through a link of
/// the directory's owner, root wrote over any file.
fn a_dry_run_writes_to_no_directory_of_another_user() {
    let place = Place::new();
    let (state, mount) = (place.path("theirs"), place.path("mount"));
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(65534), None).unwrap();
    let common = ["mount", "--foreground", "--policy", "nthread", "--dry-run", "--state-dir", text(&state)];
    let refused = volume(&[&common[..], &[&place.region(0), text(&mount)]].concat());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains(text(&state)), "{refused:?}");
    assert!(std::fs::read_dir(&state).unwrap().next().is_none());
}

fn a_recording_of_a_mount_replays() {
    let place = Place::new();
    let recording = place.path("windows");
    let mut server = place.mount(&["--policy", "nthread-rl", "--dry-run", "--record", text(&recording)]);
    let planned: Vec<Value> = {
        let mut seen = Vec::new();
        beside_a_reader(&place.path("mount/file1"), |_| {
            (0..10).for_each(|_| seen.push(server.line().unwrap()));
            server.signal(Signal::TERM);
        });
        seen.extend(server.rest().into_iter().filter(|line| line["kind"] == "window"));
        seen
    };
    let options = ["--policy", "nthread-rl", "--margin", "1B/s", "--min-bytes", "1"];
    let replayed = homenode(&[&["--json", "replay", text(&recording)], &options[..]].concat());
    let again: Vec<Value> = replayed.stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(again.len(), planned.len(), "{replayed:?}");
    // Every byte was of node 1, and the same windows gave the same plans.
    for (then, now) in planned.iter().zip(&again) {
        assert_eq!(
            (&then["declined"], &then["predicted"], &then["nodes"]),
            (&now["declined"], &now["predicted"], &now["nodes"])
        );
        assert_eq!(then["nodes"][0]["read_bytes"], 0);
    }
    assert!(planned.iter().any(|window| window["nodes"][1]["read_bytes"].as_u64() > Some(0)));
}

fn a_volume_without_the_nodes_is_refused() {
    let place = Place::new();
    let mount = place.path("mount");
    let options = ["--emulate-nodes", "3", &place.region(0), text(&mount)];
    let refused = volume(&[&["mount", "--foreground"], &options[..]].concat());
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no region on node 2"), "{refused:?}");
}

fn emulated_nodes_have_the_cpus_that_the_server_may_use() {
    let (place, all) = (Place::new(), mask(0));
    let last = all[all.len() - 1];
    let mut server = std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            bind(0, &mut std::iter::once(last));
            place.mount(&["--policy", "nthread-rl"])
        });
        bound.join().unwrap()
    });
    let window = server.line().unwrap();
    let label =
        window["notes"].as_array().unwrap().iter().find(|note| note.as_str().unwrap().contains("CPUs")).unwrap();
    assert!(label.as_str().unwrap().contains(&format!("node 0 is CPUs , node 1 is CPUs {last};")), "{label}");
    server.signal(Signal::TERM);
    server.rest();
}

/// `where` showed, and `move` moved, what the kernel had in its cache of them.
fn files_of_a_mount_are_shown_and_moved_as_others_are() {
    const LEN: u64 = 4 << 20;
    let place = Place::new();
    let _server = place.mount(&["--policy", "nthread-rl", "--dry-run"]);
    let (file, other) = (place.path("mount/file0"), place.path("data"));
    let json = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let nodes = || json(&homenode(&["--json", "where", text(&file)]))["files"][0]["nodes"].clone();
    assert_eq!(nodes(), serde_json::json!({"0": LEN}));

    let moved = homenode(&["--json", "move", text(&file), "--to", "1"]);
    let told = &json(&moved)["moved"][0];
    let bytes = ["bytes", "moved_bytes", "already_bytes", "failed_bytes"].map(|key| told[key].as_u64().unwrap());
    assert_eq!((moved.status.code(), bytes, &told["why"]), (Some(0), [LEN, LEN, 0, 0], &Value::Null));
    assert_eq!(nodes(), serde_json::json!({"1": LEN}));
    assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 7));

    // Ctrl-C.
    let mut slow = Command::new(env!("CARGO_BIN_EXE_homenode"));
    slow.args(["--json", "move", text(&file), "--to", "0", "--rate", "500kB/s"]);
    let slow = slow.stdout(Stdio::piped()).spawn().unwrap();
    while nodes().get("0").is_none() {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&slow), Signal::INT).unwrap();
    let stopped = slow.wait_with_output().unwrap();
    let told = &json(&stopped)["moved"][0];
    assert!(
        stopped.status.code() == Some(1) && told["why"].as_str().unwrap().contains("stopped by a signal"),
        "{told}"
    );
    assert_eq!((&nodes()["0"], told["bytes"].as_u64()), (&told["moved_bytes"], Some(LEN)));

    // No such node, alone and beside a file of the page cache.
    let wrong = homenode(&["move", text(&file), "--to", "7"]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(2) && said.contains("no region of the volume is on node 7 (ENXIO)"), "{said}");
    let both = homenode(&["--json", "move", text(&file), text(&other), "--to", "0"]);
    let told = json(&both);
    assert!(both.status.success() && told["moved"][0]["moved_bytes"].as_u64() > Some(0), "{told}");
    assert_eq!(told["moved"][1]["path"], text(&other));
}
