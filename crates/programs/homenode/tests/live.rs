//! The real binary on the running kernel: what needs root, BPF, a terminal or a tool that may be
//! missing.
//!
//! A test whose needs are not met is skipped and says why; it is never counted as passed.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use linux::threads::Threads;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::{Case, Ends, Tried, cases, disk, installed, need, root};

use common::{command, homenode, homenode_fs, json, observing, text};

const CASES: &[Case] = cases![
    [observing()]
        plan_of_this_machine,
        a_full_device_ends_a_recording_by_name,
        a_full_disk_leaves_whole_lines,
        a_reload_is_answered_where_the_state_directory_is_full,
        run_returns_what_its_command_returned,
        a_signal_ends_a_long_window,
        sigterm_is_passed_on_to_the_command,
        a_second_run_is_refused,
        a_closed_stdout_ends_run_quietly,
        readiness_is_told_to_systemd,
        what_is_not_there_cannot_be_observed,
        what_is_no_control_group_cannot_be_observed,
        run_says_that_it_waits_for_its_command,
        doctor_finds_everything,
        run_keeps_only_the_right_to_move_threads,
        each_policy_keeps_only_what_its_moves_take,
        its_command_keeps_what_the_user_has,
        a_command_that_never_began_does_not_keep_run_waiting,
        limits_of_the_kernel_take_one_line_a_run,
        a_policy_says_what_a_host_cannot_do,
        a_program_decides_in_run_as_its_user_and_ends_with_it,
        a_program_that_hangs_keeps_no_run_waiting;
    [observing(), on_disk()]
        top_once_shows_who_reads,
        what_is_recorded_can_be_replayed;
    [observing(), on_disk(), installed("perl")]
        a_report_names_nobody,
        run_sees_its_command_from_the_start;
    [observing(), on_disk(), overlayfs()] a_path_leads_to_the_inode_that_is_read;
    [observing(), installed("script")]
        top_gives_the_terminal_back_on_q,
        top_gives_the_terminal_back_on_sigterm,
        top_ends_when_its_terminal_is_gone,
        top_ends_as_always_when_its_terminal_is_gone;
    [observing(), installed("unshare"), systemd()] the_unit_runs_under_its_restrictions;
    [observing(), on_disk(), installed("strace"), installed("systemd-analyze")] the_units_allow_every_call;
    [root()]
        a_move_by_hand_is_explained,
        without_root_nodes_and_plans_work,
        without_root_where_says_what_is_hidden,
        without_root_observing_says_what_is_missing,
        moving_takes_cap_sys_nice_and_no_more;
    [root(), installed("unshare")] without_btf_it_says_so_and_does_the_rest;
    [root(), installed("unshare"), overlayfs()] where_goes_through_all_layers_of_an_overlay;
    [installed("systemd-analyze")] the_units_expose_little;
    [installed("bash")] bash_accepts_its_completions = || completions("bash", "-n");
    [installed("zsh")] zsh_accepts_its_completions = || completions("zsh", "-n");
    [installed("fish")] fish_accepts_its_completions = || completions("fish", "--no-execute");
    [installed("man"), installed("groff")] manual_pages_render_without_a_warning;
];

fn main() {
    testing::run(&[], CASES.to_vec());
}

fn overlayfs() -> Tried {
    let there = fs::read_to_string("/proc/filesystems").unwrap().contains("\toverlay\n");
    need(there, "this kernel has no overlayfs")
}

fn systemd() -> Tried {
    need(Path::new(SYSTEMD).exists(), format!("{SYSTEMD} is not installed"))
}

/// Needs test files whose reads every kernel shows.
fn on_disk() -> Tried {
    const TMPFS: i64 = 0x0102_1994;
    const V9FS: i64 = 0x0102_1997;
    let disk = disk();
    let kind = rustix::fs::statfs(&disk).unwrap().f_type as i64;
    need(![TMPFS, V9FS].contains(&kind), format!("{} is on tmpfs or 9p: set HOMENODE_TEST_DIR", disk.display()))
}

/// A directory for one test, with a state directory's path in it.
struct Place(tempfile::TempDir, tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self::below(&disk())
    }

    /// Root trusts no state directory below one of somebody else's, which a checkout may be.
    fn below(dir: &Path) -> Self {
        Self(tempfile::tempdir_in(dir).unwrap(), tempfile::tempdir().unwrap())
    }

    fn state(&self) -> String {
        self.1.path().join("state").to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// `homenode run` with a state directory of its own.
    fn run(&self, args: &[&str]) -> Command {
        command(&[&["run", "--state-dir", &self.state()], args].concat())
    }
}

/// A process that reads the same file over and over, by `read`, until dropped.
struct Reader(Ends);

impl Reader {
    fn new(place: &Place) -> Self {
        let file = place.path("read-me");
        fs::write(&file, vec![1; 8 << 20]).unwrap();
        let script = "while :; do dd if=\"$1\" of=/dev/null bs=64k status=none; done";
        Self(Ends(Command::new("bash").args(["-c", script, "reader", &file]).stderr(Stdio::null()).spawn().unwrap()))
    }

    fn pid(&self) -> String {
        self.0.0.id().to_string()
    }
}

/// Waits for the end; a process that has not ended by then would hang the tests and is a failure.
fn ends(mut child: Child) -> (Option<i32>, String, String) {
    let give_up = Instant::now() + Duration::from_secs(120);
    let drain = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
            text(&bytes)
        })
    };
    let out = drain(child.stdout.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
    let err = drain(child.stderr.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > give_up {
            child.kill().unwrap();
            panic!("still running after two minutes");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    (status.code(), out.join().unwrap(), err.join().unwrap())
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Starts it and returns with its first line.
fn started(command: &mut Command) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    (child, lines, first)
}

fn top_once_shows_who_reads() {
    let place = Place::new();
    let reader = Reader::new(&place);
    let output = homenode(&["top", "--once", "--json", "--all"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let window = json(&output.stdout);
    assert_eq!(window["version"], 1);
    assert!(window["nodes"][0]["cpu"].as_f64().unwrap() > 0.0, "{window}");
    let read: f64 = window["threads"].as_array().unwrap().iter().map(|t| t["read_bytes_per_s"].as_f64().unwrap()).sum();
    assert!(read > 0.0, "{window}");
    // It ended as it began: a thread that had ended meanwhile had unparked the one that waits.
    assert!(window["window_s"].as_f64().unwrap() > 0.9, "{window}");
    assert!(window["cost"]["memory_bytes"].as_u64().unwrap() > 0, "{window}");
    let output = homenode(&["top", "--once", "--filter", &reader.pid(), "--all"]);
    let table = text(&output.stdout);
    assert!(table.contains(&reader.pid()) && table.contains("bash"), "{table}");
    // The reader is in our own group, whose name the table has in the place of its threads.
    let cgroups = Threads::new(Path::new("/proc")).cgroups(reader.0.0.id()).unwrap();
    let group = cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    let own = |_| {
        let output = homenode(&["top", "--once", "--json", "--by", "service"]);
        let services = json(&output.stdout)["services"].as_array().unwrap().clone();
        services.into_iter().find(|row| row["service"] == session::services::name(group))
    };
    let own = (0..50).find_map(own).unwrap();
    assert!(own["read_bytes_per_s"].as_f64().unwrap() > 0.0 && own["threads"].as_u64().unwrap() > 0, "{own}");
    assert!(window.get("services").is_none(), "{window}");
    let output = homenode(&["top", "--once", "--by", "service"]);
    let table = text(&output.stdout);
    assert!(table.contains("service") && !table.contains("last move"), "{table}");
}

/// Files of another layer than their directory's were left out as of another file system.
fn where_goes_through_all_layers_of_an_overlay() {
    const SCRIPT: &str = r#"
        mount -t tmpfs upper "$1"
        mkdir "$1/lower" "$1/upper" "$1/work" "$1/over"
        mount -t tmpfs lower "$1/lower"
        mkdir -p "$1/lower/sub" "$1/upper/sub" "$1/upper/below"
        echo >"$1/lower/sub/a"
        echo >"$1/upper/sub/b"
        mount -t overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" none "$1/over"
        mount -t tmpfs other "$1/over/below"
        echo >"$1/over/below/c"
        exec "$2" --config /dev/null --json where -r "$1/over"
    "#;
    let dir = tempfile::tempdir().unwrap();
    let args = ["-m", "sh", "-euc", SCRIPT, "sh", dir.path().to_str().unwrap(), env!("CARGO_BIN_EXE_homenode")];
    let output = Command::new("unshare").args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let files = json(&output.stdout)["files"].clone();
    let names = files.as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap().rsplit('/').next().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["a", "b"]);
}

/// Of a file of overlayfs, which each container's root is, `hot` said that nothing was read, and
/// `warm` that nobody did. All commands that take a path.
fn a_path_leads_to_the_inode_that_is_read() {
    const BYTES: u64 = 8 << 20;
    let place = Place::new();
    let (lower, over) = (place.path("lower"), place.path("over"));
    for name in ["lower", "upper", "work", "over"] {
        fs::create_dir(place.path(name)).unwrap();
    }
    let options = format!("lowerdir={lower},upperdir={},workdir={}", place.path("upper"), place.path("work"));
    let file = format!("{over}/f");
    fs::write(format!("{lower}/f"), vec![7; BYTES as usize]).unwrap();
    fs::File::open(format!("{lower}/f")).unwrap().sync_all().unwrap();
    let mounted = Command::new("mount").args(["-t", "overlay", "-o", &options, "none", &over]).output().unwrap();
    assert!(mounted.status.success(), "{}", text(&mounted.stderr));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                _ = std::io::copy(&mut fs::File::open(&file).unwrap(), &mut std::io::sink());
            }
        });
        let all = [
            vec!["hot", &file, "--seconds", "2"],
            vec!["warm", "--to-readers", "--seconds", "2", &file],
            vec!["where", &file],
            vec!["move", "--to", "0", &file],
        ];
        let said = all.map(|args| homenode(&[&["--json", "--config", "/dev/null"], args.as_slice()].concat()));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        said
    });
    assert!(Command::new("umount").arg(&over).status().unwrap().success());
    let shown: Vec<_> = said.iter().map(|said| text(&said.stdout) + &text(&said.stderr)).collect();
    let [hot, warm, whereis, mv] = said.map(|said| json(&said.stdout));
    let ranges = hot["files"][0]["ranges"].as_array().unwrap();
    let starts: std::collections::BTreeSet<_> = ranges.iter().map(|range| range["start"].as_u64()).collect();
    assert_eq!(starts.len() as u64, BYTES >> 21, "{shown:?}");
    assert!(warm["warmed"][0]["why"].is_null() && warm["warmed"][0]["bytes"] == BYTES, "{shown:?}");
    assert_eq!(whereis["files"][0]["resident"], BYTES, "{shown:?}");
    assert_eq!((&mv["moved"][0]["bytes"], &mv["moved"][0]["why"]), (&0.into(), &Value::Null), "{shown:?}");
}

fn plan_of_this_machine() {
    let output = homenode(&["plan", "--window", "0.2", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan: placement::Plan = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((plan.version, plan.policy.as_str()), (2, "nthread"));
}

fn what_is_recorded_can_be_replayed() {
    let place = Place::new();
    let _reader = Reader::new(&place);
    let file = place.path("r.jsonl");
    for _ in 0..2 {
        let output = homenode(&["record", "--windows", "2", "--window", "0.2", &file]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let output = homenode(&["replay", "--json", &file]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let windows: Vec<Value> = text(&output.stdout).lines().map(|l| json(l.as_bytes())).collect();
    assert_eq!(windows.len(), 4);
    assert!(windows.iter().any(|w| w["read_bytes"].as_u64() > Some(0)), "{windows:?}");
}

fn a_full_device_ends_a_recording_by_name() {
    let output = homenode(&["record", "--windows", "1", "--window", "0.1", "/dev/full"]);
    assert_eq!(output.status.code(), Some(5));
    let error = text(&output.stderr);
    assert!(error.starts_with("homenode: cannot write /dev/full: ") && error.contains("(ENOSPC)"), "{error}");
}

/// A disk of a few pages, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(within: &tempfile::TempDir) -> Self {
        let disk = Self(within.path().join("disk"));
        fs::create_dir(&disk.0).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=96k,mode=755", "tmpfs"];
        assert!(Command::new("mount").args(options).arg(&disk.0).status().unwrap().success());
        disk
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// It was done, but `reload` said that homenode has not answered, and `status` that none runs.
fn a_reload_is_answered_where_the_state_directory_is_full() {
    let place = Place::new();
    let disk = Small::mount(&place.1);
    let config = place.path("homenode.toml");
    fs::write(&config, "[[service]]\nunit = \"nobody\"\npolicy = \"observe\"\n").unwrap();
    let global = ["--config", &config, "--state-dir", disk.0.to_str().unwrap()];
    let told = |what: &[&str]| homenode(&[&global[..], what].concat());
    let _run = Ends(command(&[&global[..], &["run", "--window", "0.1", "--quiet"]].concat()).spawn().unwrap());
    let windows = || serde_json::from_slice::<Value>(&told(&["--json", "status"]).stdout).unwrap()["windows"].as_u64();
    // Two windows are written side by side.
    while windows() < Some(3) {
        sleep(Duration::from_millis(50));
    }
    let mut filler = fs::File::create(disk.0.join("filler")).unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}
    let reloaded = told(&["reload"]);
    assert!(reloaded.status.success(), "{}", text(&reloaded.stderr));
    assert!(told(&["status"]).status.success());
}

fn a_full_disk_leaves_whole_lines() {
    let place = Place::new();
    let disk = Small::mount(&place.0);
    let file = disk.0.join("r.jsonl");
    let file = file.to_str().unwrap();
    let output = homenode(&["record", "--windows", "10000", "--window", "0.05", file]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let error = text(&output.stderr);
    assert!(error.contains(file) && error.contains("(ENOSPC)"), "{error}");
    let recorded = fs::read(file).unwrap();
    assert!(recorded.is_empty() || recorded.ends_with(b"\n"));
    let lines = recorded.iter().filter(|b| **b == b'\n').count();
    if lines > 0 {
        let output = homenode(&["replay", "--json", file]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout).lines().count(), lines);
    }
}

fn run_returns_what_its_command_returned() {
    let place = Place::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let output = place.run(&["--", "sh", "-c", script]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    }
    let output = place.run(&["--", "/nonexistent/command"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("cannot start /nonexistent/command: "), "{}", text(&output.stderr));
    let output = place.run(&["--json", "--", "/nonexistent/command"]).output().unwrap();
    let error = text(&output.stderr).lines().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let error = &error.unwrap()["error"];
    assert_eq!((&error["errno"], &error["exit_code"]), (&"ENOENT".into(), &127.into()), "{}", text(&output.stderr));
    let output = place.run(&["--", "/etc/passwd"]).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
}

/// All that the command reads it reads at once.
fn run_sees_its_command_from_the_start() {
    let place = Place::new();
    let file = place.path("data");
    fs::write(&file, vec![1; 32 << 20]).unwrap();
    let script = "open F, '<', $ARGV[0] or die; 1 while sysread F, $b, 65536; sleep 2";
    let output = place.run(&["--json", "--exact", "--", "perl", "-e", script, &file]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|l| json(l.as_bytes())).collect();
    assert_eq!((&lines[0]["kind"], &lines.last().unwrap()["kind"]), (&"start".into(), &"end".into()));
    let read: u64 = lines.iter().filter_map(|line| line["read_bytes"].as_u64()).sum();
    // perl and its libraries, too.
    assert!((32 << 20..40 << 20).contains(&read), "{read}: {lines:?}");
}

fn hang_ups_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1
}

fn a_signal_ends_a_long_window() {
    // With nohup(1), these tests too, homenode outlives its terminal.
    let hang_ups = (!hang_ups_are_ignored()).then_some(Signal::HUP);
    for how in [Signal::TERM, Signal::INT].into_iter().chain(hang_ups) {
        let place = Place::new();
        let (child, mut lines, first) = started(&mut place.run(&["--json", "--window", "3600"]));
        assert_eq!(json(first.as_bytes())["kind"], "start");
        signal(&child, how);
        let (code, _, err) = ends(child);
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        assert_eq!((code, err.as_str()), (Some(0), ""), "{how:?}");
        let last = json(rest.lines().last().unwrap().as_bytes());
        assert_eq!((&last["kind"], &last["failed"]), (&"end".into(), &0.into()), "{how:?}");
    }
}

fn sigterm_is_passed_on_to_the_command() {
    let place = Place::new();
    let script = "trap 'exit 42' TERM; echo ready; while :; do sleep 0.1; done";
    let (child, mut lines, _) = started(&mut place.run(&["--", "sh", "-c", script]));
    let mut line = String::new();
    while line != "ready\n" {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the command never started");
    }
    signal(&child, Signal::TERM);
    let drain = std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
    assert_eq!(ends(child).0, Some(42));
    drain.join().unwrap().unwrap();
}

fn a_second_run_is_refused() {
    let place = Place::new();
    let (first, _lines, _) = started(&mut place.run(&["--json", "--window", "3600"]));
    let other = place.path("other");
    let output = homenode(&["run", "--state-dir", &other, "--windows", "1", "--window", "0.05"]);
    let report = text(&output.stdout);
    let found = format!("note: another homenode: process {} (homenode run); ", first.id());
    assert!(report.contains(&found), "{report}{}", text(&output.stderr));
    let output = place.run(&["--windows", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let error = text(&output.stderr);
    assert!(error.contains(&format!("pid {}", first.id())), "{error}");
    let output = homenode(&["restore", "--state-dir", &place.state()]);
    assert_eq!(output.status.code(), Some(4));
    signal(&first, Signal::TERM);
    assert_eq!(ends(first).0, Some(0));
    let output = homenode(&["restore", "--state-dir", &place.state()]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "nothing to restore\n"));
}

/// `explain` knew only what a daemon had moved.
fn a_move_by_hand_is_explained() {
    let place = Place::new();
    let sleeper = Ends(Command::new("sleep").arg("600").spawn().unwrap());
    let (pid, state) = (sleeper.0.id().to_string(), place.state());
    let node = fs::read_to_string("/sys/devices/system/node/has_cpu").unwrap();
    let node: String = node.chars().take_while(char::is_ascii_digit).collect();
    let moved = homenode(&["move", "--pid", &pid, "--to", &node, "--state-dir", &state]);
    assert_eq!(moved.status.code(), Some(0), "{}", text(&moved.stderr));
    let explained = homenode(&["explain", &pid, "--state-dir", &state]);
    let said = text(&explained.stdout);
    let sentence = format!("moved by hand to node {node} (user 0): ");
    assert!(said.contains(&sentence) && said.contains(", 1 thread bound in "), "{said}{}", text(&explained.stderr));
    // A daemon adds to the same journal.
    let ran = homenode(&["run", "--state-dir", &state, "--windows", "1", "--window", "0.05"]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let all = text(&homenode(&["explain", "--state-dir", &state]).stdout);
    assert!(all.contains(&sentence) && all.contains("stopped: "), "{all}");
}

fn a_closed_stdout_ends_run_quietly() {
    let place = Place::new();
    let (child, lines, _) = started(&mut place.run(&["--window", "0.05"]));
    drop(lines);
    let (code, _, err) = ends(child);
    assert_eq!((code, err.as_str()), (Some(0), ""));
}

fn readiness_is_told_to_systemd() {
    let place = Place::new();
    let path = place.path("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let output = place.run(&["--windows", "1", "--window", "0.05"]).env("NOTIFY_SOCKET", &path).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    socket.set_nonblocking(true).unwrap();
    for state in ["READY=1", "STOPPING=1"] {
        let mut message = [0; 64];
        let length = socket.recv(&mut message).unwrap();
        assert_eq!(text(&message[..length]), state);
    }
}

fn what_is_not_there_cannot_be_observed() {
    let place = Place::new();
    let output = place.run(&["--cgroup", "/nonexistent"]).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{error}");
    assert!(error.contains("/nonexistent") && error.contains("(ENOENT)"), "{error}");
    let output = place.run(&["--pid", "2147483647"]).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), error.as_str()), (Some(2), "homenode: process 2147483647: no such process\n"));
}

/// Any directory was taken: nothing was ever found in it.
fn what_is_no_control_group_cannot_be_observed() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    let mut paths =
        vec![(place.path(""), "this is no control group"), (place.path("file"), "this is no control group")];
    // Where version 2 is, alone or beside version 1.
    let procs = ["/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs"].into_iter();
    paths.extend(procs.filter(|p| Path::new(p).exists()).map(|p| (p.to_owned(), "a control group is a directory")));
    if Path::new("/sys/fs/cgroup/cpu").is_dir() && Path::new("/sys/fs/cgroup/unified").is_dir() {
        paths.push(("/sys/fs/cgroup/cpu".to_owned(), "this is a control group of version 1"));
    }
    for (path, why) in paths {
        for command in [&["plan"][..], &["map"], &["top", "--once"]] {
            let output = homenode(&[command, &["--cgroup", &path]].concat());
            let error = text(&output.stderr);
            assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{command:?}: {error}");
            let line = format!("homenode: control group {path}: {why}");
            assert!(error.starts_with(&line) && error.contains("  hint: "), "{command:?}: {error}");
        }
    }
}

/// It looked as if it hung.
fn run_says_that_it_waits_for_its_command() {
    let place = Place::new();
    let script = "trap 'exit 42' TERM; for i in $(seq 200); do sleep 0.1; done";
    let (child, mut lines, _) =
        started(&mut place.run(&["--windows", "1", "--window", "0.05", "--", "sh", "-c", script]));
    let mut line = String::new();
    while !line.starts_with("no longer observing; waiting for sh (pid ") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended");
    }
    signal(&child, Signal::TERM);
    assert_eq!(ends(child).0, Some(42));
}

fn doctor_finds_everything() {
    let output = homenode(&["doctor"]);
    assert_eq!(output.status.code(), Some(0));
    let report = text(&output.stdout);
    assert!(report.contains("everything needed is available") && report.contains("filemap_get_pages"), "{report}");
    assert!(report.contains("\ninterferes\n"), "{report}");
    let broken = homenode(&["doctor", "--json", "--state-dir", "/etc/passwd/state"]);
    let report = json(&broken.stdout);
    assert_eq!((broken.status.code(), &report["ok"]), (Some(1), &false.into()), "{report}");
}

/// Lines of `/proc/…/status` with these names.
fn status_lines(status: &str, names: &[&str]) -> Vec<String> {
    let wanted = |line: &&str| names.iter().any(|name| line.starts_with(&format!("{name}:")));
    status.lines().filter(wanted).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

const CAPABILITIES: [&str; 6] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"];
const SYS_NICE: u64 = 1 << 23;

/// Lines of a thread's status that holds these capabilities and can get no others.
fn only(capabilities: u64) -> Vec<String> {
    let sets = [("CapInh", 0), ("CapPrm", capabilities), ("CapEff", capabilities), ("CapBnd", capabilities)];
    let lines = sets.iter().chain(&[("CapAmb", 0)]).map(|(name, bits)| format!("{name}: {bits:016x}"));
    lines.chain(["NoNewPrivs: 1".to_owned()]).collect()
}

/// Statuses of all threads of a process, with their names, the first thread's first. A thread that
/// ends meanwhile is left out.
fn named_statuses(pid: u32) -> Vec<(String, Vec<String>)> {
    let mut tids: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    tids.sort_unstable();
    let status =
        |tid| fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok().filter(|text| !text.is_empty());
    let name = |text: &str| status_lines(text, &["Name"]).concat().replace("Name: ", "");
    tids.into_iter().filter_map(status).map(|text| (name(&text), status_lines(&text, &CAPABILITIES))).collect()
}

fn statuses(pid: u32) -> Vec<Vec<String>> {
    named_statuses(pid).into_iter().map(|(_, status)| status).collect()
}

/// Where procfs hides processes, one more is kept to see them.
fn kept() -> u64 {
    const SYS_PTRACE: u64 = 1 << 19;
    let hidden = fs::read_to_string("/proc/self/mountinfo").unwrap().contains("hidepid=");
    if hidden { SYS_NICE | SYS_PTRACE } else { SYS_NICE }
}

fn run_keeps_only_the_right_to_move_threads() {
    let place = Place::new();
    let (child, _lines, first) = started(&mut place.run(&["--json", "--window", "3600"]));
    assert_eq!(json(first.as_bytes())["kind"], "start");
    // A thread that has just been started gives up its privileges first of all: wait for the last
    // one.
    let give_up = Instant::now() + Duration::from_secs(60);
    // One thread looks where files and processes are in memory: CAP_DAC_READ_SEARCH, FOWNER,
    // SYS_PTRACE, SYS_NICE.
    let looks = only(1 << 2 | 1 << 3 | 1 << 19 | 1 << 23);
    loop {
        let (now, nothing) = (statuses(child.id()), only(0));
        let others: Vec<_> = now.iter().skip(1).filter(|status| **status != nothing).collect();
        if now.first() == Some(&only(kept())) && others == [&looks] {
            assert!(now.len() > 3, "the threads for signals and slices are missing: {now:?}");
            break;
        }
        assert!(Instant::now() < give_up, "{now:?}");
        std::thread::yield_now();
    }
    signal(&child, Signal::TERM);
    assert_eq!(ends(child).0, Some(0));
}

/// All threads of the daemon, under each policy, by their names.
fn each_policy_keeps_only_what_its_moves_take() {
    let [overrides, reads, owns, traces]: [u64; 4] = [1 << 1, 1 << 2, 1 << 3, 1 << 19];
    let (files, memory) = (kept() | reads | owns, kept() | reads | traces);
    for (policy, first, hot) in [
        ("nthread", kept(), false),
        ("nthread-rl", kept(), false),
        ("nthread-cpu", kept(), false),
        ("nthread-nm", kept(), false),
        ("npolicy", kept(), true),
        ("dragonfly", files, false),
        ("promote", files, false),
        ("arc", memory, false),
        ("arc-guarded", memory, false),
        ("auto", files | memory, true),
    ] {
        let place = Place::new();
        let (child, _lines, _) = started(&mut place.run(&["--json", "--window", "3600", "--policy", policy]));
        let expected = |name: &str| match name {
            "facts" => SYS_NICE | reads | owns | traces,
            "hotness" => overrides | (kept() & traces),
            _ => 0,
        };
        let give_up = Instant::now() + Duration::from_secs(20);
        loop {
            let threads = named_statuses(child.id());
            let has = |wanted: &str| threads.iter().any(|(name, _)| name == wanted);
            // The thread for signals has no name of its own.
            let wrong = threads.iter().enumerate().find(|(i, (name, status))| {
                let expected = if *i == 0 { first } else { expected(name) };
                *status != only(expected)
            });
            if wrong.is_none()
                && ["homenode", "facts", "slices", "output", "history"].into_iter().all(has)
                && has("hotness") == hot
            {
                break;
            }
            assert!(Instant::now() < give_up, "{policy}: {wrong:?} of {threads:?}");
            std::thread::yield_now();
        }
        signal(&child, Signal::TERM);
        assert_eq!(ends(child).0, Some(0));
    }
}

fn its_command_keeps_what_the_user_has() {
    let place = Place::new();
    let had = status_lines(&fs::read_to_string("/proc/self/status").unwrap(), &CAPABILITIES);
    let output = place.run(&["--quiet", "--", "cat", "/proc/self/status"]).output().unwrap();
    assert_eq!(status_lines(&text(&output.stdout), &CAPABILITIES), had, "{}", text(&output.stderr));
}

/// The first line of `run` cannot be written.
fn a_command_that_never_began_does_not_keep_run_waiting() {
    let place = Place::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = place.run(&["--dry-run", "--", "true"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("ENOSPC"), "{}", text(&output.stderr));
}

/// The affinity of another user's process: the first set of capabilities is enough, the second is
/// not.
fn moving_takes_cap_sys_nice_and_no_more() {
    use rustix::thread::{CapabilitySet, sched_getaffinity, sched_setaffinity};
    // Not by the PATH: the user has no way into a home of root's.
    let other = Ends(Command::new("/bin/sleep").arg("1000").uid(65_534).gid(65_534).spawn().unwrap());
    let pid = Pid::from_child(&other.0);
    for (keep, result) in [(CapabilitySet::SYS_NICE, Ok(())), (CapabilitySet::empty(), Err(rustix::io::Errno::PERM))] {
        let set = std::thread::spawn(move || {
            linux::privileges::keep_only(keep).unwrap();
            sched_setaffinity(Some(pid), &sched_getaffinity(Some(pid)).unwrap())
        });
        assert_eq!(set.join().unwrap(), result);
    }
}

/// A program that decides: announces itself, then does this.
fn decider(dir: &Path, script: &str) -> String {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.join("decides");
    let first = r#"echo '{"homenode":1,"name":"mine"}'; read hello"#;
    // As above: not by the tests' PATH.
    fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{first}\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("exec:{}", path.display())
}

/// Whether a process ends within five seconds.
fn is_gone(pid: &str) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if !Path::new("/proc").join(pid).exists() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// By its keeper, as another user: homenode itself can neither start nor end it then. However
/// homenode ends, so does the program.
fn a_program_decides_in_run_as_its_user_and_ends_with_it() {
    let (place, dir) = (Place::new(), tempfile::tempdir().unwrap());
    let tells = r#"while read window; do
        printf '{"version":2,"policy":"","moves":[],"notes":["user %s, process %s, caps %s."]}\n' \
            "$(id -u)" "$$" "$(sed -n 's/^CapEff:\t//p' /proc/self/status)"
    done"#;
    let policy = decider(dir.path(), tells);
    let args = ["--dry-run", "--window", "0.3", "--policy", &policy, "--policy-user", "nobody"];
    for kill in [Signal::TERM, Signal::KILL] {
        let (child, out, _) = started(place.run(&args).stderr(Stdio::piped()));
        let told = out.lines().map_while(Result::ok).find(|line| line.contains("user ")).unwrap();
        assert!(told.contains("user 65534, process ") && told.contains("caps 0000000000000000."), "{told}");
        let pid = told.split("process ").nth(1).unwrap().split(',').next().unwrap().to_owned();
        signal(&child, kill);
        ends(child);
        assert!(is_gone(&pid), "process {pid} outlives homenode, {kill:?}");
    }
    let refused = place.run(&["--dry-run", "--policy", &policy]).env_remove("SUDO_UID").output().unwrap();
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("does not run as root"), "{said}");
    let refused = place.run(&["--dry-run", "--policy", &policy, "--policy-user", "no-such"]).output().unwrap();
    assert!(text(&refused.stderr).contains("--policy-user no-such: no such user"), "{}", text(&refused.stderr));
}

fn a_program_that_hangs_keeps_no_run_waiting() {
    let (place, dir) = (Place::new(), tempfile::tempdir().unwrap());
    let policy = decider(dir.path(), "sleep 3600");
    let args = ["--dry-run", "--window", "0.3", "--windows", "8", "--policy", &policy, "--policy-user", "nobody"];
    let output = place.run(&args).output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains("no answer within its window (1 of 3)"), "{said}");
    assert_eq!(said.matches("exec:mine: no answer in time in 3 windows").count(), 1, "{said}");
}

const SYSTEMD: &str = "/usr/lib/systemd/systemd";

fn unit() -> String {
    format!("{}/../../../tools/homenode.service", env!("CARGO_MANIFEST_DIR"))
}

/// At most 3.0 of 10, and the exporter 1.5, by systemd's own measure.
fn the_units_expose_little() {
    let place = Place::new();
    let dist = |name: &str| format!("{}/../../../dist/{name}", env!("CARGO_MANIFEST_DIR"));
    let (exporter, policy) = (dist("homenode-export.service"), dist("homenode-policy@.service"));
    for (unit, most) in [(unit(), "--threshold=30"), (exporter, "--threshold=15"), (policy, "--threshold=15")] {
        let path = place.path(Path::new(&unit).file_name().unwrap().to_str().unwrap());
        fs::write(&path, fs::read_to_string(unit).unwrap().replace("@BIN@", "/usr/bin")).unwrap();
        let output = Command::new("systemd-analyze").args(["security", "--offline=yes", most, &path]).output().unwrap();
        let (report, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{report}{errors}");
        // A directive that systemd does not know restricts nothing.
        assert!(!errors.contains("ignoring") && !errors.contains("Unknown"), "{errors}");
    }
}

/// The system calls that a unit allows: systemd's groups, written out by systemd itself. A line
/// adds, or with a tilde takes away.
fn allowed(unit: &str) -> BTreeSet<String> {
    fn members(name: &str) -> Vec<String> {
        if !name.starts_with('@') {
            return vec![name.to_owned()];
        }
        let output = Command::new("systemd-analyze").args(["syscall-filter", name]).output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        // The group's name, and below it a comment and the members.
        let said = text(&output.stdout);
        said.lines().skip(1).map(str::trim).filter(|m| !m.starts_with('#') && !m.is_empty()).flat_map(members).collect()
    }
    let mut calls = BTreeSet::new();
    for line in fs::read_to_string(unit).unwrap().lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (takes, names) = line.strip_prefix('~').map_or((false, line), |names| (true, names));
        for call in names.split_whitespace().flat_map(members) {
            if takes {
                calls.remove(&call);
            } else {
                calls.insert(call);
            }
        }
    }
    calls
}

/// What each unit's program does, with each policy, while a file is read: no call that the unit's
/// filter would refuse. `mincore` and `cachestat` are in no group of systemd's but the one of all.
fn the_units_allow_every_call() {
    let place = Place::new();
    let reader = Reader::new(&place);
    let (trace, file) = (place.path("trace"), place.path("warm"));
    fs::write(&file, vec![1; 1 << 20]).unwrap();
    let state = place.state();
    let daemon = |policy: &'static str| {
        vec!["run", "--state-dir", &state, "--policy", policy, "--windows", "4", "--window", "0.3", "--steady"]
    };
    let tools = format!("{}/../../../tools", env!("CARGO_MANIFEST_DIR"));
    let (agent, warm) = (unit(), format!("{tools}/homenode-warm@.service"));
    let exporter = format!("{tools}/../dist/homenode-export.service");
    // The variants of a policy act alike.
    let policies = placement::POLICIES.iter().map(|(policy, _)| *policy).filter(|policy| !policy.contains('-'));
    let mut commands: Vec<(&str, Vec<&str>)> = policies.map(|policy| (&*agent, daemon(policy))).collect();
    commands.push((&agent, vec!["report", "--state-dir", &state]));
    commands.push((&agent, vec!["move", &file, "--to", "0", "--state-dir", &state]));
    commands.push((&warm, vec!["warm", &file, "--to", "0", "--drop-first"]));
    commands.push((&warm, vec!["warm", &file, "--interleave"]));
    commands.push((&exporter, vec!["export", "--once", "--state-dir", &state]));
    for (unit, args) in commands {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qqq", "-e", "signal=none", "-o", &trace, env!("CARGO_BIN_EXE_homenode")]).args(&args);
        let output = strace.stdin(Stdio::null()).output().unwrap();
        let calls = fs::read_to_string(&trace).unwrap();
        // Older versions of strace do not know the name of call 451. `???` is that of a thread
        // which ended before strace could ask.
        let name = |line: &str| {
            let name = line.split_whitespace().nth(1)?.split_once('(')?.0.replace("syscall_0x1c3", "cachestat");
            (name != "???").then_some(name)
        };
        let made: BTreeSet<String> = calls.lines().filter_map(name).collect();
        assert!(made.contains("execve") && made.len() > 10, "{args:?}: {}", text(&output.stderr));
        let allowed = allowed(unit);
        let refused: Vec<&String> = made.difference(&allowed).collect();
        assert!(refused.is_empty(), "{args:?}: {unit} refuses {refused:?}");
    }
    drop(reader);
}

/// A process, its service, a file, configuration and state directory that are called secret.
fn a_report_names_nobody() {
    let place = Place::new();
    let file = place.path("secret-file");
    fs::write(&file, vec![1; 8 << 20]).unwrap();
    let config = place.path("secret-config.toml");
    fs::write(&config, "").unwrap();
    let state = place.1.path().join("secret-state");
    fs::create_dir(&state).unwrap();
    let trial = r#"{"version":1,"unix_s":1,"start":{"policies":["nthread"],"recovered":{"notes":["secret"]}},
        "end":{"rounds":3,"results":[],"put_back":{"notes":["/secret"]}}}"#;
    fs::write(state.join("trial.json"), trial).unwrap();

    const READER: &str = r#"
        $0 = "secret-comm";
        while (1) {
            open F, "<", $ARGV[0] or die;
            1 while sysread F, $b, 65536;
            select undef, undef, undef, 0.01;
        }
    "#;
    let mut reader = Command::new("perl").args(["-e", READER, &file]).spawn().unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let groups = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[2] == "cgroup2");
    let group = groups.map(|words| Path::new(words[1]).join("secret-unit.service"));
    let group = group.filter(|group| fs::create_dir(group).is_ok());
    if let Some(group) = &group {
        fs::write(group.join("cgroup.procs"), reader.id().to_string()).unwrap();
    }
    let report = |more: &[&str]| {
        let usual = ["report", "--windows", "4", "--window", "0.5", "--config", &config, "--state-dir"];
        let output = homenode(&[&usual[..], &[state.to_str().unwrap()], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let named = report(&["--names"]);
    let plain = report(&[]);
    let machine = json(report(&["--json"]).as_bytes());
    let written = place.path("report.md");
    report(&["--output", &written]);
    // What cannot be used is not named either.
    fs::write(&config, "secret_key = 1\n").unwrap();
    let broken = report(&[]);
    reader.kill().unwrap();
    reader.wait().unwrap();
    if let Some(group) = &group {
        fs::remove_dir(group).unwrap();
    }

    assert!(named.contains("secret-comm"), "{named}");
    assert!(group.is_none() || named.contains("secret-unit.service"), "{named}");
    for report in [&plain, &machine.to_string(), &broken, &fs::read_to_string(&written).unwrap()] {
        let secret = report.lines().find(|line| line.contains("secret"));
        assert!(secret.is_none() && !report.contains(place.1.path().to_str().unwrap()), "{secret:?} in {report}");
    }
    for part in ["doctor", "nodes", "measured", "map", "trial"] {
        assert!(machine[part].is_object(), "{part}: {machine}");
    }
    assert!(machine["map"]["read_bytes"].as_u64().unwrap() > 0, "{machine}");
    assert_eq!(machine["map"]["processes"][0]["comm"], "process", "{machine}");
    assert_eq!(machine["trial"]["policies"][0], "nthread", "{machine}");
    assert!(broken.contains("homenode.toml cannot be used"), "{broken}");
    assert_eq!(fs::metadata(&written).unwrap().permissions().mode() & 0o777, 0o600);
}

/// The unit, told to move threads, run by a systemd of its own: a user manager of root applies the
/// same restrictions.
fn the_unit_runs_under_its_restrictions() {
    const SCRIPT: &str = r#"
        mount -t tmpfs tmpfs /run
        mkdir -p /run/systemd/system /run/bin /run/units/systemd/user/homenode.service.d
        cp "$1" /run/bin/homenode
        sed 's|@BIN@|/run/bin|' "$2" >/run/units/systemd/user/homenode.service
        printf '[Service]
StandardError=append:/run/stderr
Environment=HOMENODE_OPTIONS=
EnvironmentFile=
' >/run/units/systemd/user/homenode.service.d/log.conf
        export XDG_RUNTIME_DIR=/run XDG_CONFIG_HOME=/run/units
        unset NOTIFY_SOCKET
        "$3" --user >/run/manager 2>&1 &
        manager=$!
        trap 'cat /run/manager /run/stderr >&2; kill $manager; wait $manager' EXIT
        until [ -S /run/systemd/private ]; do kill -0 $manager; sleep 0.1; done
        systemctl --user start homenode.service
        pid=$(systemctl --user show --property MainPID --value homenode.service)
        cat "/proc/$pid/status"
        until grep -q started /run/homenode/journal.jsonl; do kill -0 "$pid"; sleep 0.1; done
        systemctl --user stop homenode.service
        echo "Result: $(systemctl --user show --property Result --value homenode.service)"
        grep -c stopped /run/homenode/journal.jsonl
    "#;
    let output = Command::new("unshare")
        .args(["-m", "sh", "-euc", SCRIPT, "sh", env!("CARGO_BIN_EXE_homenode"), &unit(), SYSTEMD])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(status_lines(&out, &CAPABILITIES), only(kept()), "{out}{err}");
    assert_eq!(status_lines(&out, &["Seccomp", "Result"]), ["Seccomp: 2", "Result: success"], "{out}{err}");
    assert!(out.ends_with("\n1\n"), "{out}{err}");
}

fn limits_of_the_kernel_take_one_line_a_run() {
    let place = Place::new();
    let output = place.run(&["--windows", "3", "--window", "0.05"]).output().unwrap();
    let report = text(&output.stdout);
    let limits = json(&homenode(&["doctor", "--json"]).stdout)["limits"].as_array().unwrap().len();
    let line = match limits {
        1 => "note: 1 limit on what this kernel shows: `homenode doctor`".to_owned(),
        n => format!("note: {n} limits on what this kernel shows: `homenode doctor`"),
    };
    assert_eq!(report.matches(&line).count(), usize::from(limits > 0), "{report}");
    assert!(!report.contains("EPERM"), "{report}");
    let output = place.run(&["-v", "--windows", "1", "--window", "0.05"]).output().unwrap();
    let report = text(&output.stdout);
    assert!(!report.contains("this kernel shows") && report.matches("note: ").count() >= limits, "{report}");
}

fn a_policy_says_what_a_host_cannot_do() {
    let place = Place::new();
    for (policy, says) in [("nthread", false), ("dragonfly", true), ("npolicy", false), ("arc", false), ("auto", true)]
    {
        let output = place.run(&["--policy", policy, "--windows", "1", "--window", "0.05"]).output().unwrap();
        let report = text(&output.stdout);
        assert_eq!(report.contains(&format!("note: policy {policy}: on a host ")), says, "{report}");
    }
}

/// `homenode top` on a terminal of its own (script makes one), and what it wrote there.
fn on_a_terminal(end: impl FnOnce(&mut Child, u32)) -> (Option<i32>, String) {
    started_on_a_terminal(|top| format!("exec {top}"), end)
}

/// The same, with what the shell does with the command.
fn started_on_a_terminal(how: impl FnOnce(&str) -> String, end: impl FnOnce(&mut Child, u32)) -> (Option<i32>, String) {
    const ALTERNATE: &str = "\u{1b}[?1049h";
    let place = Place::new();
    let top = format!("{} top --window 0.2 --state-dir {}", env!("CARGO_BIN_EXE_homenode"), place.state());
    let line = format!("stty rows 24 cols 80; echo pid $$; {}", how(&top));
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = script.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut block = [0; 4096];
    while !text(&seen).contains(ALTERNATE) || !text(&seen).contains("q quit") {
        let n = output.read(&mut block).unwrap();
        assert_ne!(n, 0, "{}", text(&seen));
        seen.extend_from_slice(&block[..n]);
    }
    let begun = text(&seen);
    let pid = begun.split("pid ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    end(&mut script, pid);
    let rest = std::thread::spawn(move || {
        let mut rest = Vec::new();
        output.read_to_end(&mut rest).map(|_| text(&rest))
    });
    let (code, _, _) = ends(script);
    (code, rest.join().unwrap().unwrap())
}

/// What could not be given back was said to the terminal that was gone: SIGABRT.
fn top_ends_as_always_when_its_terminal_is_gone() {
    let place = Place::new();
    let noted = place.path("code");
    let code = Path::new(&noted);
    started_on_a_terminal(
        |top| format!("trap '' HUP; {top}; echo $? >{noted}.new; mv {noted}.new {noted}"),
        |script, _| script.kill().unwrap(),
    );
    let patience = Instant::now() + Duration::from_secs(20);
    while !code.exists() {
        assert!(Instant::now() < patience, "it goes on without a terminal");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(code).unwrap(), "0\n");
}

const GIVEN_BACK: &str = "\u{1b}[?1049l";

fn top_gives_the_terminal_back_on_q() {
    let (code, rest) = on_a_terminal(|script, _| script.stdin.take().unwrap().write_all(b"q").unwrap());
    assert!(code == Some(0) && rest.contains(GIVEN_BACK), "{code:?}: {rest:?}");
}

fn top_gives_the_terminal_back_on_sigterm() {
    let mut stdin = None;
    let (code, rest) = on_a_terminal(|script, pid| {
        stdin = script.stdin.take();
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::TERM).unwrap();
    });
    assert!(code == Some(0) && rest.contains(GIVEN_BACK), "{code:?}: {rest:?}");
}

/// Seen when tmux ended: it read the terminal that was gone, again and again, and SIGTERM did not
/// end it.
fn top_ends_when_its_terminal_is_gone() {
    let mut top = 0;
    on_a_terminal(|script, pid| {
        top = pid;
        script.kill().unwrap();
    });
    let over = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    let patience = Instant::now() + Duration::from_secs(20);
    while !over(top) {
        if Instant::now() > patience {
            let _ = kill_process(Pid::from_raw(i32::try_from(top).unwrap()).unwrap(), Signal::KILL);
            panic!("it goes on without a terminal");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The binary where anybody may run it, as nobody.
struct Nobody {
    place: Place,
    binary: PathBuf,
}

impl Nobody {
    fn new() -> Self {
        // Not below cargo's directory: nobody may have no way there.
        let place = Place::below(&std::env::temp_dir());
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let binary = place.0.path().join("homenode");
        fs::copy(env!("CARGO_BIN_EXE_homenode"), &binary).unwrap();
        Self { place, binary }
    }

    fn homenode(&self, args: &[&str]) -> Output {
        const NOBODY: u32 = 65_534;
        Command::new(&self.binary).args(args).current_dir("/").uid(NOBODY).gid(NOBODY).output().unwrap()
    }
}

fn without_root_nodes_and_plans_work() {
    let nobody = Nobody::new();
    let output = nobody.homenode(&["nodes"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let snapshot = nobody.place.path("s.json");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inputs/two-nodes.json"), &snapshot).unwrap();
    let output = nobody.homenode(&["plan", "--snapshot", &snapshot]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    assert!(text(&output.stdout).contains("move  "), "{}", text(&output.stdout));
}

fn without_root_where_says_what_is_hidden() {
    let nobody = Nobody::new();
    let [mine, roots] = ["mine", "roots"].map(|name| nobody.place.path(name));
    for path in [&mine, &roots] {
        fs::write(path, vec![1; 100_000]).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    std::os::unix::fs::chown(&mine, Some(65_534), Some(65_534)).unwrap();
    let output = nobody.homenode(&["where", "--json", &mine, &roots]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let files = json(&output.stdout);
    assert_eq!((&files["files"][0]["resident"], &files["files"][0]["hidden"]), (&100_000.into(), &Value::Null));
    assert_eq!(files["files"][1]["resident"], Value::Null);
    assert!(files["files"][1]["hidden"].is_string(), "{files}");
}

fn without_root_observing_says_what_is_missing() {
    let nobody = Nobody::new();
    for args in [&["plan"][..], &["top", "--once"], &["record", "-"]] {
        let output = nobody.homenode(args);
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), ""), "{args:?}: {error}");
        assert!(
            error.starts_with("homenode: cannot observe: the right to") && error.contains("hint: "),
            "{args:?}: {error}"
        );
        assert!(error.contains("BPF") && error.contains("EPERM"), "{args:?}: {error}");
    }
    let mark = nobody.place.path("started");
    let output = nobody.homenode(&["run", "--dry-run", "--", "touch", &mark]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(!Path::new(&mark).exists());
    let output = nobody.homenode(&["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report = json(&output.stdout);
    let missing: Vec<_> =
        report["facts"].as_array().unwrap().iter().filter(|f| f["available"] == false && f["needed"] == true).collect();
    assert!(!missing.is_empty() && missing.iter().all(|f| f["cause"].is_string() && f["fix"].is_string()), "{report}");
}

/// As on a kernel without BTF: an empty directory over the place where the kernel shows it. libbpf
/// used to say so too, on its own.
fn without_btf_it_says_so_and_does_the_rest() {
    let script = "mount -t tmpfs none /sys/kernel/btf || exit 99; shift; exec \"$0\" \"$@\"";
    let hidden = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_homenode"), "--"]).args(args);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let output = hidden(&["plan"]);
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), ""), "{error}");
    assert!(error.starts_with("homenode: cannot observe: BTF (/sys/kernel/btf/vmlinux) is missing: ENOENT"), "{error}");
    let output = hidden(&["doctor", "--json"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(1), ""));
    let report = json(&output.stdout);
    let btf = report["facts"].as_array().unwrap().iter().find(|f| f["available"] == false).unwrap();
    assert!(btf["name"].as_str().unwrap().contains("BTF") && btf["fix"].is_string(), "{report}");
    let output = hidden(&["nodes"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

fn completions(shell: &str, check_only: &str) {
    let place = Place::new();
    let file = place.path("completions");
    for program in [command, homenode_fs] {
        fs::write(&file, program(&["completions", shell]).output().unwrap().stdout).unwrap();
        let output = Command::new(shell).args([check_only, &file]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}

fn manual_pages_render_without_a_warning() {
    let place = Place::new();
    let pages = place.path("man");
    assert!([command, homenode_fs].iter().all(|program| program(&["man", &pages]).status().unwrap().success()));
    for page in fs::read_dir(&pages).unwrap() {
        let page = page.unwrap().path();
        // Another name of a page, which is found once it is installed.
        if fs::read_to_string(&page).unwrap().starts_with(".so ") {
            continue;
        }
        let output =
            Command::new("man").args(["--warnings", "--local-file"]).arg(&page).env("MANWIDTH", "80").output().unwrap();
        let (shown, warned) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && warned.is_empty(), "{}: {warned}", page.display());
        assert!(shown.contains("NAME") && shown.contains("SYNOPSIS"), "{}: {shown}", page.display());
        // Examples and exit codes keep their lines.
        let line = shown.lines().any(|l| l.trim_start().starts_with("sudo homenode") || l.trim() == "0  done");
        let plain = shown.lines().any(|l| l.trim_start().starts_with("homenode") && l.len() < 100);
        assert!(line || plain, "{}: {shown}", page.display());
    }
}
