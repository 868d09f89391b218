//! The real binary beside a process that does not answer, and before a reader that does not read:
//! nothing waits for either.
//!
//! Bounds on time only tell a hang from an end.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod common;
#[path = "common/hung.rs"]
mod hung;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;
use testing::{Case, Ends, cases, mounting, roles, two_cpus};

use common::{command, homenode_fs, observing};
use hung::{Crowd, Hung, Silent};

/// What takes longer hangs. Alone on a machine, each of these ends within 2 s.
const LIMIT: Duration = Duration::from_secs(20);

const CASES: &[Case] = cases![
    [observing(), mounting(), two_cpus()]
        restore_undoes_others_beside_a_process_that_hangs_in_exec,
        restore_without_bpf_undoes_others_beside_a_process_that_hangs_in_exec,
        restore_puts_back_2000_threads_beside_1000_that_hang_and_100_that_are_busy,
        the_same_without_bpf,
        run_starts_and_ends_beside_a_process_that_hangs_in_exec,
        commands_end_beside_a_process_that_hangs_in_exec,
        commands_end_on_sigterm_beside_a_process_that_hangs_in_exec,
        warm_at_most_ends_well_where_a_server_does_not_answer,
        run_goes_on_and_ends_where_the_disk_of_its_history_does_not_answer,
        commands_end_on_sigterm_before_a_full_pipe;
    [observing()]
        run_ends_and_goes_on_before_a_full_pipe,
        the_loop_answers_systemds_watchdog;
    [mounting()]
        a_mount_ends_before_a_full_pipe,
        a_mount_ends_beside_a_user_that_hangs_in_exec;
];

fn main() {
    // What one test leaves hanging for a moment must not be another's surprise.
    testing::run_one_by_one(roles!["sleep": be_sleeper, "busy": be_busy], CASES.to_vec());
}

fn until(what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn cpus(pid: u32) -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(pid as i32)).unwrap();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

fn bind(pid: u32, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(Pid::from_raw(pid as i32), &set).unwrap();
}

fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// When a thread started, in the units of its `stat`.
fn start_ticks(tid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap()
}

/// Binds these threads (process, id, start) to the first CPU, and writes what a run leaves that has
/// bound them and crashed.
fn write_state(state: &Path, threads: &[(u32, u32, u64)], all: &[usize]) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mut text = json!({"record": "run", "version": 2, "epoch": boot.trim()}).to_string();
    for (pid, tid, start) in threads {
        bind(*tid, &all[..1]);
        let subject = json!({"kind": "thread", "tid": tid, "start": start * 10_000_000});
        let masks = json!({"before": list(all), "ours": list(&all[..1])});
        let payload = json!({"at": start, "session": 0}).to_string();
        let undo = json!({"subject": subject, "pid": pid, "masks": masks, "payload": payload});
        text += &format!("\n{}", json!({"record": "hold", "comm": "sleep", "undo": undo}));
        text += &format!("\n{}\n", json!({"record": "made", "subject": subject}));
    }
    fs::write(state.join("state.jsonl"), text).unwrap();
}

/// A process that hangs and another one, both bound to one CPU by a run that crashed.
struct Crashed {
    dir: tempfile::TempDir,
    hung: Hung,
    other: Ends,
    all: Vec<usize>,
}

impl Crashed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mount, state) = (dir.path().join("mount"), dir.path().join("state"));
        [&mount, &state].iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let all = cpus(std::process::id());
        let hung = Hung::start(&mount).unwrap();
        let other = Ends(Command::new("sleep").arg("600").spawn().unwrap());
        let start = |pid| (pid, pid, start_ticks(pid));
        // The one that hangs comes first: nothing after it was restored.
        let threads = [(hung.pid, hung.pid, hung.start_ticks()), start(other.0.id())];
        write_state(&state, &threads, &all);
        Self { dir, hung, other, all }
    }

    fn state(&self) -> String {
        self.dir.path().join("state").to_str().unwrap().to_owned()
    }

    /// Both are restored: the kernel's list of tasks answers for the one that hangs.
    fn check(&self) {
        assert_eq!(cpus(self.other.0.id()), self.all, "the other was not restored");
        assert_eq!(cpus(self.hung.pid), self.all, "the one that hangs was not restored");
    }
}

fn restore_undoes_others_beside_a_process_that_hangs_in_exec() {
    let crashed = Crashed::new();
    let done = command(&["--state-dir", &crashed.state(), "restore"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    crashed.check();
    assert!(!crashed.dir.path().join("state/state.jsonl").exists());
}

/// The program without what loading BPF programs takes.
fn without_bpf(args: &[&str]) -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-all"]);
    setpriv.arg(command(&[]).get_program()).args(args);
    setpriv
}

fn restore_without_bpf_undoes_others_beside_a_process_that_hangs_in_exec() {
    let crashed = Crashed::new();
    let state = crashed.state();
    let mut restore = without_bpf(&["--state-dir", &state, "restore"]);
    let mut restore = Ends(restore.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let status = restore.end("restore", LIMIT);
    let mut said = String::new();
    restore.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    restore.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("does not answer"), "{said}");
    assert_eq!(cpus(crashed.other.0.id()), crashed.all, "the other was not restored");
    let left = fs::read_to_string(Path::new(&state).join("state.jsonl")).unwrap();
    assert!(left.contains(&format!(":{},", crashed.hung.pid)), "its record is lost: {left}");
    // Once it answers, it is restored, too.
    let Crashed { dir, hung, other, .. } = crashed;
    drop(hung);
    let again = command(&["--state-dir", &state, "restore"]).output().unwrap();
    assert!(again.status.success(), "{again:?}");
    assert!(!dir.path().join("state/state.jsonl").exists());
    drop(other);
}

fn be_sleeper(args: &[String]) {
    with_threads(&args[0], false);
}

fn be_busy(args: &[String]) {
    with_threads(&args[0], true);
}

fn with_threads(threads: &str, busy: bool) {
    for _ in 1..threads.parse().unwrap() {
        std::thread::Builder::new().stack_size(64 << 10).spawn(move || rest(busy)).unwrap();
    }
    rest(busy);
}

fn rest(busy: bool) -> ! {
    loop {
        if busy { std::hint::spin_loop() } else { std::thread::sleep(Duration::from_secs(600)) }
    }
}

fn child(role: &str, threads: &str) -> Ends {
    Ends(testing::myself(role).arg(threads).spawn().unwrap())
}

fn threads_of(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

fn restore_puts_back_2000_threads_beside_1000_that_hang_and_100_that_are_busy() {
    beside_a_crowd(command, 0);
}

fn the_same_without_bpf() {
    beside_a_crowd(without_bpf, 1000);
}

/// 530 that hung kept all others bound, and 8 that hung some of them where the machine was busy.
fn beside_a_crowd(restore: impl Fn(&[&str]) -> Command, hung_stay: usize) {
    let dir = tempfile::tempdir().unwrap();
    let (mount, state) = (dir.path().join("mount"), dir.path().join("state"));
    [&mount, &state].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let all = cpus(std::process::id());
    let hung = Crowd::start(&mount, 1000).unwrap();
    let processes: Vec<Ends> = (0..200).map(|_| child("sleep", "10")).collect();
    let mut threads: Vec<(u32, u32, u64)> = hung.processes.iter().map(|(pid, start)| (*pid, *pid, *start)).collect();
    for process in &processes {
        let pid = process.0.id();
        until("a process has its threads", || threads_of(pid).len() == 10);
        threads.extend(threads_of(pid).into_iter().map(|tid| (pid, tid, start_ticks(tid))));
    }
    write_state(&state, &threads, &all);
    let _busy = child("busy", "100");
    let bound = |threads: &[(u32, u32, u64)]| threads.iter().filter(|(_, tid, _)| cpus(*tid) != all).count();
    let (hung, healthy) = threads.split_at(1000);
    assert_eq!((bound(hung), bound(healthy)), (1000, 2000));
    let began = Instant::now();
    let done = restore(&["--state-dir", state.to_str().unwrap(), "restore"]).output().unwrap();
    println!("restore: {} after {:.2} s", done.status, began.elapsed().as_secs_f64());
    assert_eq!((bound(hung), bound(healthy)), (hung_stay, 0), "{done:?}");
}

fn run_starts_and_ends_beside_a_process_that_hangs_in_exec() {
    let crashed = Crashed::new();
    let mut run = command(&["--state-dir", &crashed.state(), "--json", "run", "--window", "0.2"]);
    let mut run = Ends(run.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(run.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.for_each(|line| _ = tell.send(line)));
    let began = Instant::now();
    while !told.recv_timeout(LIMIT.saturating_sub(began.elapsed())).unwrap().contains(r#""kind":"window""#) {}
    crashed.check();
    run.terminate();
    run.end("run", LIMIT);
    crashed.check();
}

fn commands_end_beside_a_process_that_hangs_in_exec() {
    let crashed = Crashed::new();
    let (state, pid) = (crashed.state(), crashed.hung.pid.to_string());
    let record = crashed.dir.path().join("record").to_str().unwrap().to_owned();
    let commands: [&[&str]; 6] = [
        &["move", "--pid", &pid, "--to", "0"],
        &["doctor"],
        &["plan", "--policy", "arc", "--window", "0.2"],
        &["top", "--once", "--window", "0.2"],
        &["record", &record, "--windows", "1", "--window", "0.2"],
        &["hot", "--pid", &pid],
    ];
    for args in commands {
        let mut one = command(&[&["--state-dir", &state], args].concat());
        let mut one = Ends(one.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        if args[0] == "hot" {
            // It reads the mappings of one process, which is all that it does.
            std::thread::sleep(Duration::from_millis(300));
            one.terminate();
        }
        one.end(&args.join(" "), LIMIT);
    }
}

/// A file server that did not answer kept the service that waits for `warm` from starting.
fn warm_at_most_ends_well_where_a_server_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![1; 8 << 20]).unwrap();
    let silent = dir.path().join("silent");
    fs::create_dir(&silent).unwrap();
    let mounted = Silent::mount(&silent).unwrap();
    let hangs = silent.join("f");
    // What is slow is stopped, and what hangs is left.
    let cases: [&[&str]; 2] = [&["--rate", "1kB/s", file.to_str().unwrap()], &[hangs.to_str().unwrap()]];
    for args in cases {
        let mut warm = command(&[&["warm", "--interleave", "--at-most", "0.5"], args].concat());
        let mut warm = Ends(warm.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let status = warm.end(&args.join(" "), LIMIT);
        let mut said = String::new();
        warm.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("(--at-most)"), "{said}");
    }
    drop(mounted);
}

fn run_goes_on_and_ends_where_the_disk_of_its_history_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let history = dir.path().join("history");
    fs::create_dir(&history).unwrap();
    let mounted = Silent::mount(&history).unwrap();
    let args = ["run", "--observe-only", "--window", "0.5", "--windows", "25", "--state-dir"];
    let mut run = command(&[&args[..], &[dir.path().to_str().unwrap()]].concat());
    let mut run = Ends(run.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(run.0.stdout.take().unwrap()).lines();
    // The first summary is on its way after twenty.
    let windows = lines.map_while(Result::ok).filter(|line| line.starts_with("window ")).count();
    assert_eq!((run.end("run", LIMIT).code(), windows), (Some(0), 25));
    drop(mounted);
}

/// Whether any link to a file of this process, or any place where its threads wait, is called so.
fn shows(pid: u32, what: &str) -> bool {
    let list = |name: &str| fs::read_dir(format!("/proc/{pid}/{name}")).into_iter().flatten().flatten();
    let link = |file: fs::DirEntry| fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().contains(what));
    let waits = |task: fs::DirEntry| fs::read_to_string(task.path().join("wchan")).is_ok_and(|at| at.contains(what));
    list("fd").any(link) || list("task").any(waits)
}

/// In windows that are long enough.
fn commands_end_on_sigterm_beside_a_process_that_hangs_in_exec() {
    let crashed = Crashed::new();
    let (state, record) = (crashed.state(), crashed.dir.path().join("record").to_str().unwrap().to_owned());
    let commands: [&[&str]; 4] = [
        &["plan", "--policy", "arc", "--window", "600"],
        &["top", "--once", "--window", "600"],
        &["--json", "top", "--once", "--window", "600"],
        &["record", &record, "--windows", "9", "--window", "600"],
    ];
    for args in commands {
        let mut one = command(&[&["--state-dir", &state], args].concat());
        let mut one = Ends(one.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("it observes", || shows(one.0.id(), "bpf_link"));
        one.terminate();
        one.end(&args.join(" "), LIMIT);
    }
}

fn commands_end_on_sigterm_before_a_full_pipe() {
    let crashed = Crashed::new();
    let (state, pid) = (crashed.state(), crashed.other.0.id().to_string());
    let commands: [&[&str]; 7] = [
        &["doctor"],
        &["plan", "--policy", "arc", "--window", "0.2"],
        &["top", "--once", "--window", "0.2"],
        &["--json", "top", "--once", "--window", "0.2"],
        &["record", "/dev/stdout", "--windows", "9", "--window", "0.2"],
        &["move", "--pid", &pid, "--to", "0"],
        &["restore"],
    ];
    for args in commands {
        let (_reader, writer) = full_pipe();
        let mut one = command(&[&["--state-dir", &state], args].concat());
        let mut one = Ends(one.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap());
        until("it waits for the pipe", || shows(one.0.id(), "pipe_write"));
        one.terminate();
        one.end(&args.join(" "), LIMIT);
    }
    crashed.check();
}

/// A pipe that takes no more.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    loop {
        match writer.write(&[b'\n'; 4096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

fn run_ends_and_goes_on_before_a_full_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = full_pipe();
    let state = dir.path().to_str().unwrap();
    let mut run = command(&["--state-dir", state, "-v", "run", "--window", "0.02"]);
    let mut run = Ends(run.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap());
    // The first window has ended.
    let journal = dir.path().join("journal.jsonl");
    until("a window ends", || fs::metadata(&journal).is_ok_and(|journal| journal.len() > 0));
    run.terminate();
    let status = run.end("run", LIMIT);
    assert!(status.success(), "{status}");
    let written = fs::read_to_string(&journal).unwrap();
    assert!(written.contains(r#""event":"stopped""#), "{written}");
    drop(reader);
}

fn the_loop_answers_systemds_watchdog() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut run = command(&["--state-dir", dir.path().join("state").to_str().unwrap(), "run", "--window", "0.1"]);
    run.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "1000000").stdout(Stdio::null());
    let mut run = Ends(run.spawn().unwrap());
    let receive = || {
        let mut message = [0; 64];
        let length = socket.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    // Windows of 0.1 s may take longer than a second in all.
    assert_eq!(receive(), "READY=1\nWATCHDOG_USEC=2000000");
    assert_eq!([receive(), receive()], ["WATCHDOG=1", "WATCHDOG=1"]);
    run.terminate();
    run.end("run", LIMIT);
}

/// A volume of one region in a file, and a directory to mount it on.
fn volume(dir: &Path) -> [String; 3] {
    let [region, mount, state] = ["region", "mounted", "states"].map(|n| dir.join(n).to_str().unwrap().to_owned());
    fs::create_dir(&mount).unwrap();
    assert!(homenode_fs(&["mkfs", "--size", "8M", &format!("{region}@0")]).output().unwrap().status.success());
    [region, mount, state]
}

fn serve([region, mount, state]: &[String; 3], output: std::io::PipeWriter) -> Ends {
    let mut server = homenode_fs(&["mount", "--foreground", "--emulate-nodes", "1", "--policy", "nthread"]);
    server.args(["--window", "0.02", "--state-dir", state, region, mount]);
    let server = Ends(server.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap());
    let point = format!(" {mount} ");
    until("the volume is mounted", || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&point));
    server
}

fn a_mount_ends_before_a_full_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let of = volume(dir.path());
    let (_reader, writer) = full_pipe();
    let mut server = serve(&of, writer);
    fs::write(Path::new(&of[1]).join("file"), "x").unwrap();
    server.terminate();
    server.end("mount", LIMIT);
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&of[1]));
}

fn a_mount_ends_beside_a_user_that_hangs_in_exec() {
    let dir = tempfile::tempdir().unwrap();
    let (of, hang) = (volume(dir.path()), dir.path().join("hang"));
    fs::create_dir(&hang).unwrap();
    let (_reader, writer) = full_pipe();
    let mut server = serve(&of, writer);
    let file = Path::new(&of[1]).join("file");
    let write = || fs::write(&file, "x").unwrap();
    write();
    // It has used the volume just before it hangs.
    let hung = Hung::start_after(&hang, Some(&file)).unwrap();
    (0..200).for_each(|_| {
        write();
        std::thread::sleep(Duration::from_millis(5));
    });
    server.terminate();
    server.end("mount", LIMIT);
    drop(hung);
}
