//! Services of many kinds at once: every byte has a name, and nothing moves but what rules allow.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{cache, threads};
use rustix::process::Signal;
use serde_json::Value;
use testing::{Case, cases, is_long};

use crate::lab_bench::{Bench, Ends, Group, Outcome, homenode, masks, play, set_mask};
use crate::programs::{Server, finished};
use crate::{nodes, say};

pub const CASES: &[Case] =
    cases![[is_long(), nodes([2])] five_services_at_once_have_their_names_and_only_two_are_moved];

const MIB: u64 = 1 << 20;
/// Of the idle service.
const THREADS: usize = 5000;
/// Processes of the loop, and the size of the file that each reads.
const CATS: u64 = 40;
const CAT_BYTES: u64 = 16 * MIB;
/// Connections to PostgreSQL, each with a process of its own.
const CONNECTIONS: usize = 15;
/// Calls of sendfile, and the bytes of each.
const CALLS: u64 = 100;
const CALL_BYTES: u64 = 4 * MIB;
/// A sample of reads is within so much of what a program counts itself (docs/guide.md).
const ERROR: f64 = 0.05;

const SENDFILE: &str = "
import os, socket, sys, threading
ours, theirs = socket.socketpair()
threading.Thread(target=lambda: [None for _ in iter(lambda: theirs.recv(1 << 20), b'')], daemon=True).start()
data = open(sys.argv[1], 'rb')
for _ in range(int(sys.argv[2])):
    at, end = 0, int(sys.argv[3])
    while at < end: at += os.sendfile(ours.fileno(), data.fileno(), at, end - at)
";

/// The role `idle`: so many threads that hardly ever run, as of a Java program.
pub fn be_idle(_: &[String]) -> Result<()> {
    for _ in 0..THREADS {
        let wait = || loop {
            std::thread::sleep(Duration::from_secs(5));
        };
        std::thread::Builder::new().stack_size(64 << 10).spawn(wait)?;
    }
    println!("ready");
    loop {
        std::thread::park();
    }
}

/// A program that begins in its control group.
fn in_group(group: &str, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = "echo $$ >\"$0\"/cgroup.procs && exec \"$@\"";
    command.args(["-c", script, &format!("/sys/fs/cgroup/{group}"), program]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// `homenode map`, until it is asked for its report.
struct Map(Child);

impl Map {
    fn start() -> Result<Self> {
        let mut command = Command::new(homenode());
        command.args(["--json", "map", "--steady", "--top", "100", "--windows", "300"]);
        Ok(Self(command.stdout(Stdio::piped()).spawn()?))
    }

    fn report(mut self) -> Result<Value> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), Signal::INT)?;
        let mut text = String::new();
        self.0.stdout.take().context("stdout")?.read_to_string(&mut text)?;
        ensure!(self.0.wait()?.success(), "map: {text}");
        Ok(serde_json::from_str(&text)?)
    }
}

/// A number of the row of these with this name; 0 if there is none.
fn number(rows: &Value, key: &str, name: &str, what: &str) -> f64 {
    let row = rows.as_array().into_iter().flatten().find(|row| row[key] == name);
    row.and_then(|row| row[what].as_f64()).unwrap_or(0.0)
}

fn is_close(what: &str, seen: f64, said: f64) -> Outcome {
    say!("{what}: homenode saw {:.1} MB of {:.1}", seen / 1e6, said / 1e6);
    ensure!((seen - said).abs() <= ERROR * said, "{what}: homenode saw {seen} bytes, the program {said}");
    Ok(())
}

/// PostgreSQL without a pooler, a shell loop of `cat`, fio, a sender by sendfile and 5,000 idle
/// threads, each in a control group of its own, the first and fio with rules. (A container has a
/// leg of its own: tools/test-container.)
fn five_services_at_once_have_their_names_and_only_two_are_moved() -> Outcome {
    let bench = Bench::new()?;
    let names = ["six-pg", "six-cat", "six-fio", "six-send", "six-idle"];
    let groups = names.iter().map(|name| Group::new(name)).collect::<Result<Vec<_>>>()?;
    let file = |name: &str, bytes: u64| -> Result<PathBuf> {
        let path = bench.dir().join(name);
        cache::put(&path, bytes, 0)?;
        Ok(path)
    };
    let (cat, sent, read) = (file("cat", CAT_BYTES)?, file("sent", CALL_BYTES)?, file("read", 32 * MIB)?);
    let all = bench.machine.nodes.values().flatten().copied().collect::<Vec<u32>>();
    let away = bench.machine.nodes.get(&1).context("node 1")?.clone();
    let (server, table) = database(&bench)?;
    groups[0].take(server.pid()?)?;
    let idle = play("idle", [""; 0])?;
    groups[4].take(idle.0.id())?;
    let idle_masks = masks(idle.0.id());

    let rule = |name: &str| {
        format!(
            "[[service]]\ngroup = \"/{name}\"\npolicy = \"nthread\"\nnthread = {{ min_bytes = \"1 MB\", locality_margin = \"2 MB/s\" }}\n"
        )
    };
    let config = bench.config(&("[guardrail]\nwindows = 0\n\n".to_owned() + &rule("six-fio") + &rule("six-pg")))?;
    let mut daemon = bench.daemon_of(&config, &[], &[])?;
    daemon.window()?;
    let map = Map::start()?;
    // It has loaded its programs when its thread waits for the first window: by then the daemon has
    // had several.
    for _ in 0..6 {
        daemon.window()?;
    }

    let report = bench.dir().join("fio.json");
    let args = [
        "--name=job",
        "--thread",
        "--numjobs=2",
        "--ioengine=psync",
        "--rw=randread",
        "--bs=64k",
        "--size=32m",
        "--time_based",
        "--runtime=20",
        "--invalidate=0",
        "--group_reporting",
        "--output-format=json",
        "--rate=20m",
    ];
    let output = [format!("--output={}", report.display()), format!("--filename={}", read.display())];
    let args: Vec<&str> = args.into_iter().chain(output.iter().map(String::as_str)).collect();
    let mut fio = Ends(in_group("six-fio", "fio", &args).spawn()?);
    let loops = format!("for n in $(seq {CATS}); do cat '{}' >/dev/null; done", cat.display());
    let mut cats = Ends(in_group("six-cat", "sh", &["-c", &loops]).spawn()?);
    let (calls, bytes) = (CALLS.to_string(), CALL_BYTES.to_string());
    let sender = ["-c", SENDFILE, sent.to_str().context("path")?, &calls, &bytes];
    let mut sender = Ends(in_group("six-send", "python3", &sender).spawn()?);

    let before = blocks(&server)?;
    let mut allowed: BTreeSet<u32> = BTreeSet::new();
    let (mut moves, mut connections) = (Vec::new(), 0);
    loop {
        for pid in [fio.0.id(), server.pid()?] {
            allowed.extend(threads::tree(pid));
        }
        if connections < CONNECTIONS {
            connections += 1;
            finished(server.command("psql").args([
                "--quiet",
                "--output=/dev/null",
                "-c",
                "select sum(n) from numbers",
            ]))?;
        }
        let window = daemon.window()?;
        moves.extend(window.moves);
        if moves.is_empty() {
            for tid in threads::affinities(&[fio.0.id()]).keys() {
                set_mask(*tid, &away).and_then(|()| set_mask(*tid, &all)).unwrap_or(());
            }
        }
        let ended = [&mut fio, &mut cats, &mut sender].map(|of| of.0.try_wait());
        if connections == CONNECTIONS && ended.iter().all(|ended| matches!(ended, Ok(Some(_)))) {
            for ended in ended {
                let status = ended?.context("it runs")?;
                ensure!(status.success(), "a program ended with {status}");
            }
            break;
        }
    }
    let seen = map.report()?;
    let blocks = blocks(&server)? - before;
    let fio_said: Value = serde_json::from_slice(&fs::read(&report)?)?;

    let of_file = |path: &Path, what: &str| -> Result<f64> {
        let found = fs::metadata(path)?;
        let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        Ok(number(&seen["files"], "file", &format!("{major}:{minor}:{}", found.ino()), what))
    };
    is_close("the loop of cat", of_file(&cat, "read_bytes")?, (CATS * CAT_BYTES) as f64)?;
    is_close("fio", of_file(&read, "read_bytes")?, fio_said["jobs"][0]["read"]["io_bytes"].as_f64().context("fio")?)?;
    is_close(
        "the sender",
        number(&seen["services"], "service", "/six-send", "handed_bytes"),
        (CALLS * CALL_BYTES) as f64,
    )?;
    ensure!(of_file(&sent, "read_bytes")? == 0.0, "what was handed on was read: {}", seen["files"]);
    is_close("PostgreSQL", of_file(&table, "read_bytes")?, blocks * 8192.0)?;
    for name in &names[..3] {
        ensure!(
            number(&seen["services"], "service", &format!("/{name}"), "read_bytes") > 25e6,
            "{name}: {}",
            seen["services"]
        );
    }
    let unnamed: f64 =
        seen["unlisted_read_bytes"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_f64()).sum();
    let unknown = number(&seen["services"], "service", "", "read_bytes");
    let named = seen["read_bytes"].as_f64().context("read_bytes")?;
    say!("{:.2} % of the bytes have a name; {} moves", 100.0 * (named - unknown) / (named + unnamed), moves.len());
    ensure!(named - unknown >= 0.99 * (named + unnamed), "{unnamed} and {unknown} of {named} bytes have no name");

    ensure!(!moves.is_empty(), "nothing was moved");
    let other = moves.iter().find(|mv| !allowed.contains(&mv.pid));
    ensure!(other.is_none(), "no rule is for {other:?}");
    let (_, status) = daemon.stop(Signal::TERM)?;
    ensure!(status.success(), "{status}");
    ensure!(masks(idle.0.id()) == idle_masks, "an idle thread has another affinity");
    Ok(())
}

/// Blocks of the table that the server has asked the kernel for.
fn blocks(server: &Server) -> Result<f64> {
    let read = "select pg_stat_force_next_flush(); select heap_blks_read from pg_statio_user_tables";
    let said = server.command("psql").args(["--quiet", "--no-align", "--tuples-only", "-c", read]).output()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.lines().last().and_then(|blocks| blocks.parse().ok()).with_context(|| format!("PostgreSQL said {said:?}"))
}

/// A server on all CPUs with one table, and the table's file.
fn database(bench: &Bench) -> Result<(Server, PathBuf)> {
    let dir = bench.dir().join("database");
    fs::create_dir(&dir)?;
    fs::set_permissions(bench.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let lists: Vec<String> = bench.machine.nodes.keys().map(|node| bench.machine.list_of(*node)).collect();
    let server = Server::start(&dir, lists.join(","))?;
    let make = "create table numbers as select n from generate_series(1, 200000) n; vacuum freeze numbers; checkpoint";
    for command in make.split("; ") {
        finished(server.command("psql").args(["--quiet", "-c", command]))?;
    }
    let path = ["--quiet", "--no-align", "--tuples-only", "-c", "select pg_relation_filepath('numbers')"];
    let path = server.command("psql").args(path).output()?;
    let table = server.data.join(String::from_utf8_lossy(&path.stdout).trim());
    Ok((server, table))
}
