//! `homenode export`, run as a user would: what it serves, to whom, and what Prometheus makes of
//! it.
//!
//! The daemon's file is made by the daemon's own code from made-up windows, so no root is needed. A
//! test whose needs are not met is skipped and says why.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Cost, Tally, WindowReport};
use placement::{FileUse, NodeBytes, NodeLoad, ObservedFile, Plan, Snapshot, Thread, testing};
use serde_json::Value;
use session::totals::Totals;
use topology::NodeId;

use ::testing::{Case, Ends, Tried, cases, find, need};

use common::{command, homenode, text};

const CASES: &[Case] = cases![
    []
        a_large_machine_has_few_series,
        a_daemon_that_is_gone_shows_as_stale,
        only_loopback_addresses_are_served,
        slow_and_many_clients_keep_nobody_waiting,
        a_hundred_clients_share_one_text,
        a_unix_socket_is_served_and_removed,
        a_textfile_is_written_as_a_whole,
        what_cannot_be_read_is_said,
        trouble_is_no_reason_to_start_anew;
    [namespaces()] a_sidecar_sees_that_the_daemon_runs;
    [unpacked("promtool")] promtool_finds_nothing_wrong, alerts_fire_when_they_should;
    [unpacked("prometheus")] prometheus_answers_each_query;
];

fn main() {
    ::testing::run(&[], CASES.to_vec());
}

/// The program of PATH, or else the one that tools/setup has unpacked.
fn program(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| root().join("target/tools/prometheus/usr/bin").join(name))
}

fn unpacked(name: &str) -> Tried {
    need(program(name).is_file(), format!("{name} is not here (tools/setup testers)"))
}

/// Programs in process and time namespaces of their own.
fn unshare(program: &[&str]) -> std::process::Output {
    let own = ["--pid", "--fork", "--mount-proc", "--time", "--boottime", "86400"];
    Command::new("unshare").args(own).args(program).output().unwrap()
}

fn namespaces() -> Tried {
    let there = find("unshare").is_some() && unshare(&["true"]).status.success();
    need(there, "namespaces cannot be made here (unshare)")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// A machine with processes in control groups, and a daemon that counts what they read.
struct Machine {
    dir: tempfile::TempDir,
    totals: Totals,
    services: Vec<Arc<str>>,
    files: u32,
    threads: u32,
    nodes: u32,
    /// What the daemon took for its last window.
    took: Duration,
}

impl Machine {
    fn new(services: u32, threads: u32, files: u32) -> Self {
        Self::named(threads, files, (0..services).map(|n| format!("/system.slice/u{n}.service")))
    }

    /// Its processes are in these groups, process N + 10 in the Nth.
    fn named(threads: u32, files: u32, groups: impl Iterator<Item = String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let services: Vec<Arc<str>> = groups.map(Into::into).collect();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        let totals = Totals::new(&state, &dir.path().join("proc"), "nthread");
        Self { dir, totals, services, files, threads, nodes: 2, took: Duration::ZERO }
    }

    /// One window: each thread reads 1,000 bytes of its own node and 3,000 of each other one.
    fn window(&mut self) {
        let (nodes, services) = (self.nodes, self.services.len() as u32);
        let read = |node: u32| -> NodeBytes {
            (0..nodes).map(|from| (NodeId(from), if from == node { 1000 } else { 3000 })).collect()
        };
        let thread = |n: u32| {
            let node = if nodes > 2 { n / services % nodes } else { n % 2 };
            let uses = |k| FileUse {
                file: testing::file(u64::from((n * 10 + k) % self.files)),
                read_bytes: read(node),
                ..FileUse::default()
            };
            let files = (0..10).map(uses).collect();
            Thread {
                tid: 100_000 + n,
                pid: 10 + n % services,
                group: self.services.get((n % services) as usize).cloned(),
                comm: format!("secret-thread-{n}"),
                node: NodeId(node),
                allowed_nodes: vec![NodeId(0), NodeId(1)],
                read_bytes: read(node),
                files,
                ..Thread::default()
            }
        };
        let file = |n: u32| ObservedFile {
            file: testing::file(n.into()),
            path: Some(format!("/secret/path/{n}")),
            ..ObservedFile::default()
        };
        let node = |id| NodeLoad { id: NodeId(id), read_bytes: 1_000_000_000, ..NodeLoad::default() };
        let snapshot = Snapshot {
            version: 1,
            window_s: 1.0,
            nodes: vec![node(0), node(1)],
            threads: (0..self.threads).map(thread).collect(),
            files: (0..self.files).map(file).collect(),
            ..Snapshot::default()
        };
        let report = WindowReport {
            snapshot,
            plan: Plan::new("nthread"),
            outcomes: Vec::new(),
            remote_share: Some(0.75),
            jobs: Vec::new(),
            queued: 0,
            stuck: 0,
            owned_threads: 4,
            inherited_restored: 0,
            notes: Vec::new(),
            cost: Some(Cost { cpu: 0.01, memory_bytes: 50_000_000 }),
        };
        let moves = [("thread", "made", 3), ("thread", "refused", 2), ("process", "failed", 1)];
        let begun = Instant::now();
        self.totals.window(&report, &moves.into_iter().collect::<Tally>());
        self.took = begun.elapsed();
    }

    fn state(&self) -> String {
        self.dir.path().join("state").to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A program that listens, killed at the end of its test.
struct Running {
    child: Ends,
    address: String,
}

/// An exporter, and where it listens.
fn exporter(state: &str, listen: &str) -> Running {
    let mut command = command(&["export", "--state-dir", state, "--listen", listen]);
    let mut child = Ends(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().trim_start_matches("http://").trim_end_matches("/metrics").to_owned();
    Running { child, address }
}

/// Asks, and returns head and body.
fn get(address: &str, target: &str) -> (String, String) {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    asked(stream, target)
}

fn asked(mut stream: impl Read + Write, target: &str) -> (String, String) {
    stream.write_all(format!("GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
    (head.to_owned(), body.to_owned())
}

fn samples<'a>(metrics: &'a str, name: &str) -> Vec<&'a str> {
    metrics.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))).collect()
}

/// 10,000 threads of 1,000 services, and 100,000 files.
fn a_large_machine_has_few_series() {
    let mut machine = Machine::new(1000, 10_000, 100_000);
    let mut before: Vec<(String, u64)> = Vec::new();
    for _ in 0..5 {
        machine.window();
        let output = homenode(&["export", "--once", "--state-dir", &machine.state()]);
        let metrics = text(&output.stdout);
        let read = samples(&metrics, "homenode_file_read_bytes_total");
        // At most 100 services, and `other` and `unknown`, by two pairs of nodes each.
        assert!((1..=102 * 4).contains(&read.len()), "{}", read.len());
        assert!(metrics.lines().count() < 1500, "{}", metrics.lines().count());
        assert!(!metrics.contains("secret") && !metrics.contains("8:1:") && !metrics.contains("/proc"), "{metrics}");
        let now: Vec<(String, u64)> = read
            .iter()
            .map(|line| line.rsplit_once(' ').map(|(labels, n)| (labels.to_owned(), n.parse().unwrap())).unwrap())
            .collect();
        for (labels, was) in &before {
            assert!(now.iter().any(|(l, n)| l == labels && n >= was), "{labels} was {was}");
        }
        before = now;
    }
    // Nothing is lost: 10,000 threads read 4,000 bytes in five windows.
    assert_eq!(before.iter().map(|(_, n)| n).sum::<u64>(), 10_000 * 4_000 * 5);
    let file = fs::read_to_string(machine.path("state/totals.json")).unwrap();
    assert!(!file.contains("secret") && !file.contains("8:1:"), "the file that everybody may read");

    let exporter = exporter(&machine.state(), "127.0.0.1:0");
    let (mut times, mut size) = (Vec::new(), 0);
    for _ in 0..20 {
        let begun = Instant::now();
        let (head, body) = get(&exporter.address, "/metrics");
        times.push(begun.elapsed());
        size = body.len();
        assert!(head.starts_with("HTTP/1.1 200 OK") && body.contains("homenode_up 1\n"), "{head}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", exporter.child.0.id())).unwrap();
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim().to_owned();
    let kilobytes: u64 = field("VmHWM:").trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 20 << 10, "{kilobytes} kB");
    if std::env::var_os("HOMENODE_EXPORT_TIMES").is_some() {
        times.sort_unstable();
        println!(
            "a scrape: {:?} (median of {}), {:?} at most, {size} bytes; the exporter: {kilobytes} kB; the daemon's part of \
             a window: {:?}, {} bytes",
            times[times.len() / 2],
            times.len(),
            times.last().unwrap(),
            machine.took,
            file.len()
        );
    }
    assert_eq!(field("CapEff:").trim_start_matches('0'), "", "it has no privileges");
}

fn a_daemon_that_is_gone_shows_as_stale() {
    let mut machine = Machine::new(3, 6, 6);
    machine.window();
    let exporter = exporter(&machine.state(), "127.0.0.1:0");
    let (_, body) = get(&exporter.address, "/metrics");
    assert!(body.contains("homenode_up 1\n") && body.contains("homenode_file_read_bytes_total{"), "{body}");
    // A daemon that was killed has left its file.
    let path = machine.path("state/totals.json");
    let mut told: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    told["boot_s"] = (told["boot_s"].as_f64().unwrap() - 60.0).into();
    fs::write(&path, told.to_string()).unwrap();
    let (_, body) = get(&exporter.address, "/metrics");
    let left: BTreeSet<&str> =
        body.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split([' ', '{']).next()).collect();
    assert_eq!(left, ["homenode_up", "homenode_window_timestamp_seconds"].into(), "{body}");
    assert!(body.contains("homenode_up 0\n"), "{body}");
    // One that has ended takes its file along.
    fs::remove_file(&path).unwrap();
    let (head, body) = get(&exporter.address, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK") && body.contains("homenode_up 0\n"), "{head}\n{body}");
    let once = homenode(&["export", "--once", "--state-dir", &machine.state()]);
    assert!(text(&once.stderr).contains("no counters: no homenode run publishes"), "{}", text(&once.stderr));
}

fn only_loopback_addresses_are_served() {
    for address in ["0.0.0.0:9951", "[::]:9951", "192.0.2.7:80", "example.org:9951"] {
        let output = homenode(&["export", "--listen", address]);
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.contains("loopback") || error.contains("not an address"), "{error}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = homenode(&["export", "--listen", &taken.local_addr().unwrap().to_string()]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("EADDRINUSE"), "{}", text(&output.stderr));
}

fn slow_and_many_clients_keep_nobody_waiting() {
    let mut machine = Machine::new(3, 6, 6);
    machine.window();
    let exporter = exporter(&machine.state(), "127.0.0.1:0");
    // More than it serves at once; each has begun to ask.
    let mut slow: Vec<TcpStream> = (0..250).map(|_| TcpStream::connect(&exporter.address).unwrap()).collect();
    for stream in &mut slow {
        // The first ones may have been closed by now.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    for _ in 0..3 {
        let (head, _) = get(&exporter.address, "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    }
    // The last of them can still go on.
    let mut last = slow.pop().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    last.write_all(b"\r\n").unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    // The first was given up for others.
    slow[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ended = slow[0].read(&mut [0; 16]);
    assert!(matches!(&ended, Ok(0)) || ended.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
    // One that sends for ever is told so.
    let mut long = TcpStream::connect(&exporter.address).unwrap();
    long.write_all(&[b'a'; 9000]).unwrap();
    let mut answer = String::new();
    long.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

/// Each answer was made anew: 98 clients that did not read theirs took 120 MB on eight nodes.
fn a_hundred_clients_share_one_text() {
    let mut machine =
        Machine::named(800, 800, (0..100).map(|n| format!("/system.slice/u{n}-{}.service", "x".repeat(80))));
    machine.nodes = 8;
    machine.window();
    let exporter = exporter(&machine.state(), "127.0.0.1:0");
    let (_, body) = get(&exporter.address, "/metrics");
    assert!(body.len() > 1 << 20 && samples(&body, "homenode_file_read_bytes_total").len() >= 6400, "{}", body.len());
    let mut all: Vec<TcpStream> = (0..98).map(|_| TcpStream::connect(&exporter.address).unwrap()).collect();
    for stream in &mut all {
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    // Its answer comes, while nobody reads theirs.
    let (head, _) = get(&exporter.address, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let status = fs::read_to_string(format!("/proc/{}/status", exporter.child.0.id())).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    assert!(most.parse::<u64>().unwrap() < 40 << 10, "{most} kB");
    // All of them get theirs, the same.
    let mut texts = BTreeSet::new();
    for stream in &mut all {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        texts.insert(answer.split_once("\r\n\r\n").unwrap().1.to_owned());
    }
    assert_eq!(texts.len(), 1);
}

/// It has process ids, and a time since boot, of its own.
fn a_sidecar_sees_that_the_daemon_runs() {
    let mut machine = Machine::new(3, 6, 6);
    machine.window();
    let path = machine.path("state/totals.json");
    let mut told: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // No process of this id is there, nor in the sidecar.
    told["pid"] = i32::MAX.into();
    fs::write(&path, told.to_string()).unwrap();
    let program = env!("CARGO_BIN_EXE_homenode");
    let output = unshare(&[program, "export", "--once", "--state-dir", &machine.state()]);
    let (body, error) = (text(&output.stdout), text(&output.stderr));
    assert!(body.contains("homenode_up 1\n") && body.contains("homenode_file_read_bytes_total{"), "{error}{body}");
    told["boot_s"] = (told["boot_s"].as_f64().unwrap() - 60.0).into();
    fs::write(&path, told.to_string()).unwrap();
    let output = unshare(&[program, "export", "--once", "--state-dir", &machine.state()]);
    assert!(text(&output.stdout).contains("homenode_up 0\n"), "{}", text(&output.stdout));
}

/// A container whose reload failed was to be killed by its liveness check, and could not start
/// again with the file that had the mistake.
fn trouble_is_no_reason_to_start_anew() {
    let mut machine = Machine::new(3, 6, 6);
    machine.window();
    let path = machine.path("state/totals.json");
    let mut told: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    told["pid"] = std::process::id().into();
    let codes = |told: &Value| {
        fs::write(&path, told.to_string()).unwrap();
        [&["status"][..], &["status", "--alive"]]
            .map(|args| homenode(&[args, &["--state-dir", &machine.state()]].concat()).status.code().unwrap())
    };
    assert_eq!(codes(&told), [0, 0]);
    told["status"]["reload"] = serde_json::json!({ "unix_s": 1.0, "error": "line 1", "later": [] });
    assert_eq!(codes(&told), [1, 0]);
    told["boot_s"] = (told["boot_s"].as_f64().unwrap() - 60.0).into();
    assert_eq!(codes(&told), [5, 5]);
}

fn a_unix_socket_is_served_and_removed() {
    let mut machine = Machine::new(3, 6, 6);
    machine.window();
    let socket = machine.path("socket");
    let listen = format!("unix:{}", socket.display());
    let mut exporter = exporter(&machine.state(), &listen);
    assert_eq!(exporter.address, listen);
    let (_, body) = asked(UnixStream::connect(&socket).unwrap(), "/metrics");
    assert!(body.contains("homenode_up 1\n"), "{body}");
    let second = homenode(&["export", "--listen", &listen]);
    assert_eq!(second.status.code(), Some(4), "{}", text(&second.stderr));
    // One that was killed leaves its socket; the next one takes its place.
    exporter.child.0.kill().unwrap();
    exporter.child.0.wait().unwrap();
    assert!(socket.exists());
    let mut next = self::exporter(&machine.state(), &listen);
    asked(UnixStream::connect(&socket).unwrap(), "/metrics");
    let pid = rustix::process::Pid::from_child(&next.child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(next.child.0.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
}

fn a_textfile_is_written_as_a_whole() {
    let mut machine = Machine::new(3, 6, 6);
    machine.window();
    let out = machine.path("out");
    fs::create_dir(&out).unwrap();
    let file = out.join("homenode.prom");
    fs::write(&file, "old").unwrap();
    let output = homenode(&["export", "--once", "--state-dir", &machine.state(), "--textfile", file.to_str().unwrap()]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()), "{}", text(&output.stderr));
    assert!(fs::read_to_string(&file).unwrap().contains("homenode_up 1\n"));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    let gone = out.join("gone/homenode.prom");
    let output = homenode(&["export", "--once", "--state-dir", &machine.state(), "--textfile", gone.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stderr).contains("ENOENT"), "{}", text(&output.stderr));
}

fn what_cannot_be_read_is_said() {
    let machine = Machine::new(3, 6, 6);
    let file = machine.path("state/totals.json");
    let failure = |what: &str| {
        let output = homenode(&["export", "--once", "--state-dir", &machine.state()]);
        let error = text(&output.stderr);
        assert!(error.contains("totals.json") && error.contains(what) && error.lines().count() == 1, "{error}");
        output.status.code()
    };
    fs::write(&file, "{\"version\":1").unwrap();
    assert_eq!(failure("EOF"), Some(5));
    fs::create_dir(machine.path("x")).unwrap();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(failure("EISDIR"), Some(5));
}

/// Names that users can give their groups.
fn odd_names() -> impl Iterator<Item = String> {
    [
        "/user.slice/user-1000.slice/user@1000.service/app.slice/a\"b.service",
        "/odd/\"} 1 homenode_up 0",
        "/odd/back\\slash\\n",
        "/odd/\u{1b}[31mred\u{202e}\t",
        "/odd/{service=\"x\"}",
        "/odd/ends in a backslash\\",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([format!("/odd/{}", "long".repeat(60))])
}

fn promtool(args: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new(program("promtool"));
    let mut child =
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

/// Neither in the form nor in the names of metrics, nor in what users can do to it.
fn promtool_finds_nothing_wrong() {
    let mut machine = Machine::named(70, 70, odd_names());
    machine.window();
    let metrics = text(&homenode(&["export", "--once", "--state-dir", &machine.state()]).stdout);
    assert_eq!(samples(&metrics, "homenode_file_remote_read_bytes_total").len(), 7, "{metrics}");
    assert_eq!(samples(&metrics, "homenode_up"), ["homenode_up 1"]);
    let (right, said) = promtool(&["check", "metrics"], &metrics);
    assert!(right && said.is_empty(), "{said}\n{metrics}");
    let (right, _) = promtool(&["check", "metrics"], "homenode_bad{service=\"a\"b\"} 1\n");
    assert!(!right, "promtool looks at what it is given");
    drop(machine.totals);
    let stale = text(&homenode(&["export", "--once", "--state-dir", machine.dir.path().to_str().unwrap()]).stdout);
    let (right, said) = promtool(&["check", "metrics"], &stale);
    assert!(right && said.is_empty(), "{said}\n{stale}");
}

fn alerts_fire_when_they_should() {
    let rules = root().join("dist/homenode.rules.yml");
    let (right, said) = promtool(&["check", "rules", rules.to_str().unwrap()], "");
    assert!(right, "{said}");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inputs/rules.test.yml");
    let (right, said) = promtool(&["test", "rules", tests.to_str().unwrap()], "");
    assert!(right, "{said}");
    // Each alert has a test in which it fires.
    let (rules, tests) = (fs::read_to_string(rules).unwrap(), fs::read_to_string(tests).unwrap());
    let names: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        assert!(tests.contains(&format!("alertname: {name}\n        exp_alerts:\n          - ")), "{name}");
    }
}

/// A Prometheus that scrapes the exporter answers each query of the rules and of the dashboard,
/// with something to show.
fn prometheus_answers_each_query() {
    let mut machine = Machine::named(70, 70, odd_names());
    machine.window();
    let exporter = exporter(&machine.state(), "127.0.0.1:0");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: homenode\n    static_configs: [{{targets: ['{}']}}]\n",
        exporter.address
    );
    fs::write(machine.path("prometheus.yml"), config).unwrap();
    let log = fs::File::create(machine.path("log")).unwrap();
    let child = Command::new(program("prometheus"))
        .arg(format!("--config.file={}", machine.path("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", machine.path("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut prometheus = Running { child: Ends(child), address: format!("127.0.0.1:{port}") };
    // Until a rate can be computed: three scrapes of growing counters.
    let begun = Instant::now();
    let scraped = "count_over_time(homenode_windows_total[1m]) >= 3";
    while try_query(&prometheus.address, scraped).is_none_or(|found| found.is_empty()) {
        let ended = prometheus.child.0.try_wait().unwrap();
        let log = fs::read_to_string(machine.path("log")).unwrap();
        assert!(ended.is_none() && begun.elapsed() < Duration::from_secs(120), "{log}");
        std::thread::sleep(Duration::from_millis(300));
        machine.window();
    }
    let ask = |query: &str| try_query(&prometheus.address, query).unwrap_or_else(|| panic!("refused: {query}"));
    // The names came through as they were.
    let services = ask("homenode_file_remote_read_bytes_total");
    let names: BTreeSet<&str> = services.iter().filter_map(|series| series["metric"]["service"].as_str()).collect();
    assert!(names.contains("user@1000.service/a\"b.service") && names.contains("/odd/back\\slash\\n"), "{names:?}");
    assert_eq!(names.len(), 7, "{names:?}");

    let dashboard: Value = serde_json::from_slice(&fs::read(root().join("dist/grafana.json")).unwrap()).unwrap();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$__rate_interval", "1m").replace("$instance", ".*");
            assert!(!ask(&query).is_empty(), "{}: nothing to show: {query}", panel["title"]);
            queries += 1;
        }
    }
    assert!(queries >= 10, "{queries}");
    let rules = fs::read_to_string(root().join("dist/homenode.rules.yml")).unwrap();
    let alerts: Value = yaml_exprs(&rules);
    for query in alerts.as_array().unwrap() {
        ask(query.as_str().unwrap());
    }
}

/// The series that answer; `None` if nobody answers, or the query is refused.
fn try_query(address: &str, query: &str) -> Option<Vec<Value>> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
    answer["data"]["result"].as_array().cloned()
}

/// The expressions of a file of rules: each is a block of lines.
fn yaml_exprs(rules: &str) -> Value {
    let mut exprs: Vec<String> = Vec::new();
    let mut lines = rules.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(first) = line.trim().strip_prefix("expr: ") {
            let mut expr = first.trim_start_matches(">-").to_owned();
            let indent = line.len() - line.trim_start().len();
            while let Some(next) = lines.peek().filter(|next| next.len() - next.trim_start().len() > indent) {
                expr.push(' ');
                expr.push_str(next.trim());
                lines.next();
            }
            exprs.push(expr);
        }
    }
    assert!(exprs.len() >= 4, "{exprs:?}");
    exprs.into()
}
