//! Real programs under every policy: fio, RocksDB's db_bench, PostgreSQL's pgbench.
//!
//! Their data is in the page cache of node 0, and they are bound to node 1 until homenode moves
//! them: without it, all that they read is remote. `HOMENODE_PROGRAMS_S` sets the seconds of
//! each program under each policy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use lab::daemon::{Window, remote_share};
use lab::{cache, pages, threads};
use rustix::process::Signal;
use testing::{Case, cases, is_long};

use crate::lab_bench::{Bench, Outcome, homenode};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[is_long(), nodes([2])] run_unharmed_under_every_policy];

const POLICIES: &[&str] =
    &["nthread-rl", "nthread-cpu", "nthread-nm", "nthread", "dragonfly", "npolicy", "arc", "arc-guarded", "auto"];

/// The policies that promise fewer remote reads where no controller and no CPU is short, for any
/// file: npolicy looks at mapped files only, arc-guarded at larger ones, and auto may find that it
/// does not pay.
const FEWER_REMOTE_READS: &[&str] = &["nthread-rl", "nthread-cpu", "nthread-nm", "nthread", "dragonfly", "arc"];

/// Starts a program that runs for so many seconds, with its data in this directory.
type Start = fn(&Bench, &Path, u32) -> Result<Program>;

/// Where the data is, and where the programs begin.
const DATA: u32 = 0;
const AWAY: u32 = 1;

/// What the programs read in a second on an emulated machine is several times this.
const MARGIN: &str = "500kB/s";

fn run_unharmed_under_every_policy() -> Outcome {
    let seconds = std::env::var("HOMENODE_PROGRAMS_S").map_or(Ok(20), |seconds| seconds.parse::<u32>())?;
    let bench = Bench::new()?;
    let kinds: [Start; 3] = [pgbench, db_bench, fio];
    for start in kinds {
        let dir = tempfile::Builder::new().prefix("program-").tempdir_in(bench.dir())?;
        // Makes the data, which takes longer than a run and reads what is local.
        start(&bench, dir.path(), 1)?.client.wait()?;
        let start = || start(&bench, dir.path(), seconds);
        let without = run(&bench, &start, &["--dry-run", "--policy", "nthread"])?;
        let was = tail(&without.windows).context("the program read nothing")?;
        // The rest is what other programs read.
        ensure!(was > 0.5, "{}: remote share {was:.2} without homenode", without.name);
        for policy in POLICIES {
            let options = ["--policy", policy, "--touch-own-affinity"];
            let with = run(&bench, &start, &options)?;
            let is = tail(&with.windows).context("the program read nothing")?;
            let moves = || with.windows.iter().flat_map(|w| &w.moves);
            let other = |of: fn(&Window) -> usize| with.windows.iter().map(of).sum::<usize>();
            let mb = |w: &[Window]| w.iter().map(|w| w.read_bytes as f64 / 1e6).sum::<f64>() / w.len().max(1) as f64;
            say!(
                "{} under {policy}: remote share {was:.2} without, {is:.2} with; {} moves, {} held back, {} refused; {:.1} MB a \
                 window, {:.1} without (emulated)",
                with.name,
                moves().count(),
                other(|w| w.held_back.len()),
                other(|w| w.refused.len()),
                mb(&with.windows),
                mb(&without.windows),
            );
            if FEWER_REMOTE_READS.contains(policy) {
                let refused = with.windows.iter().flat_map(|w| &w.refused);
                let reasons: Vec<_> = moves()
                    .chain(refused)
                    .map(|mv| format!("{} to {}: {} {}", mv.subject(), mv.to, mv.why, mv.refused_why))
                    .collect();
                ensure!(
                    is < was - 0.2,
                    "{} under {policy}: remote share {is:.2}, {was:.2} without; {reasons:?}",
                    with.name
                );
                // What starts a program may have its own files elsewhere, and where the node has
                // too few CPUs, some threads leave it.
                let reads = |reason: &str| !matches!(reason, "cpu_contention" | "controller_contention");
                let wrong = moves().any(|mv| mv.comm == with.name && mv.to != DATA && reads(&mv.reason));
                ensure!(!wrong, "{} under {policy}: a wrong move: {reasons:?}", with.name);
            }
        }
    }
    Ok(())
}

/// The remote share of the second half: the moves are made in the first.
fn tail(windows: &[Window]) -> Option<f64> {
    remote_share(windows.get(windows.len() / 2..).unwrap_or_default())
}

/// A program that ends by itself, and its server if it has one.
struct Program {
    name: &'static str,
    client: Child,
    /// Processes to watch.
    pids: Vec<u32>,
    _server: Option<Server>,
}

struct Ran {
    name: &'static str,
    windows: Vec<Window>,
}

/// Runs the program beside homenode; both must end well, and every affinity must be as before.
fn run(bench: &Bench, start: &dyn Fn() -> Result<Program>, options: &[&str]) -> Result<Ran> {
    // First, so that it sees all of the program.
    let mut daemon = bench.daemon_from(MARGIN, options)?;
    daemon.window()?;
    let mut program = start()?;
    let name = program.name;
    let away = bench.machine.list_of(AWAY);
    let tree = || program.pids.iter().flat_map(|pid| threads::tree(*pid)).collect::<Vec<u32>>();
    let mut windows = Vec::new();
    let status = loop {
        windows.push(daemon.window()?);
        if let Some(status) = program.client.try_wait()? {
            break status;
        }
    };
    // It reads less and less while it ends.
    windows.pop();
    let (end, ended) = daemon.stop(Signal::TERM)?;
    ensure!(status.success(), "{name} {options:?}: the program ended with {status}");
    ensure!(ended.success(), "{name} {options:?}: homenode ended with {ended}");
    ensure!(end.is_some_and(|end| end.failed == 0), "{name} {options:?}: {end:?}");
    // Those of the server go on, and no thread of theirs was bound anywhere else.
    for (tid, mask) in threads::affinities(&tree()) {
        ensure!(mask == away, "{name} {options:?}: thread {tid} may run on {mask} now, not on {away}");
    }
    Ok(Ran { name, windows })
}

/// A program that begins away from its data.
fn away(bench: &Bench, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &bench.machine.list_of(AWAY), program]);
    command
}

/// Brings the cached pages of these files to the node of the data.
fn to_data(files: &[PathBuf]) -> Result<()> {
    to_node(files, DATA)
}

/// Brings the cached pages of these files to a node.
pub fn to_node(files: &[PathBuf], node: u32) -> Result<()> {
    ensure!(!files.is_empty(), "the program has no files");
    let mut command = Command::new(homenode());
    command.args(["move", "--to", &node.to_string()]).args(files);
    // A page in use may stay, and then homenode says so: what counts is where the pages are.
    start(&mut command)?.wait()?;
    let (mut there, mut all) = (0.0, 0.0);
    for file in files {
        let bytes = fs::metadata(file)?.len() as f64;
        if bytes > 0.0 {
            there += bytes * pages::share_on(file, node)?;
            all += bytes;
        }
    }
    ensure!(there > 0.9 * all, "{:.2} of the data is on node {node}", there / all);
    Ok(())
}

pub fn start(command: &mut Command) -> Result<Child> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
    child.with_context(|| format!("{:?}", command.get_program()))
}

pub fn finished(command: &mut Command) -> Result<()> {
    let status = start(command)?.wait()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

const JOBS: u32 = 2;

fn fio(bench: &Bench, dir: &Path, seconds: u32) -> Result<Program> {
    for job in 0..JOBS {
        let file = dir.join(format!("file-{job}"));
        if !file.exists() {
            cache::put(&file, 32 << 20, DATA)?;
        }
    }
    let client = start(
        away(bench, "fio")
            .args(["--name=job", "--thread", "--ioengine=psync", "--rw=randrw", "--rwmixread=80", "--bs=64k"])
            .args(["--size=32m", "--time_based", "--invalidate=0", "--filename_format=file-$jobnum"])
            .args([format!("--numjobs={JOBS}"), format!("--runtime={seconds}"), "--output=/dev/null".to_owned()])
            .current_dir(dir),
    )?;
    Ok(Program { name: "fio", pids: vec![client.id()], client, _server: None })
}

/// Reads blocks that its own cache does not hold.
fn db_bench(bench: &Bench, dir: &Path, seconds: u32) -> Result<Program> {
    let db = dir.join("rocksdb");
    let command = |benchmark: &str| {
        let mut command = away(bench, "db_bench");
        command.arg(format!("--benchmarks={benchmark}")).arg(format!("--db={}", db.display()));
        command.args(["--num=40000", "--value_size=1000", "--compression_type=none", "--cache_size=1048576"]);
        // Nearly all of the 40 MB leave the write buffer.
        command.arg("--write_buffer_size=2097152");
        command
    };
    if !db.exists() {
        finished(&mut command("fillseq"))?;
    }
    let tables = fs::read_dir(&db)?.flatten().map(|entry| entry.path());
    to_data(&tables.filter(|path| path.extension().is_some_and(|e| e == "sst")).collect::<Vec<_>>())?;
    let duration = format!("--duration={seconds}");
    let client = start(command("readrandom").args(["--use_existing_db", "--threads=2", &duration]))?;
    Ok(Program { name: "db_bench", pids: vec![client.id()], client, _server: None })
}

/// A PostgreSQL server of its own, reached by a socket in its directory only; stopped when dropped.
pub struct Server {
    bin: PathBuf,
    pub data: PathBuf,
    cpus: String,
}

impl Server {
    /// Runs on these CPUs.
    pub fn start(dir: &Path, cpus: String) -> Result<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql").context("/usr/lib/postgresql")?;
        let bin = versions.flatten().map(|v| v.path().join("bin")).max().context("no PostgreSQL")?;
        let server = Self { bin, data: dir.join("postgresql"), cpus };
        if !server.data.exists() {
            fs::create_dir(&server.data)?;
            finished(Command::new("chown").arg("postgres").args([dir, &server.data]))?;
            finished(server.command("initdb").args(["--no-sync", "--auth=trust"]))?;
        }
        // Its own cache is as small as it can be: it reads from the page cache.
        let options = "-c listen_addresses= -c shared_buffers=128kB -c max_connections=8 -c unix_socket_directories=";
        let options = format!("{options}{}", server.data.display());
        finished(server.command("pg_ctl").args(["--wait", "--silent", "--options", &options, "start"]))?;
        Ok(server)
    }

    /// One of PostgreSQL's commands, as the user that it demands.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new("taskset");
        command
            .args(["--cpu-list", &self.cpus, "setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"])
            .arg(self.bin.join(name));
        command.env("PGDATA", &self.data).env("PGHOST", &self.data).env("PGDATABASE", "postgres").current_dir("/");
        command
    }

    /// Its first process.
    pub fn pid(&self) -> Result<u32> {
        let text = fs::read_to_string(self.data.join("postmaster.pid"))?;
        Ok(text.lines().next().context("postmaster.pid")?.parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = finished(self.command("pg_ctl").args(["--wait", "--silent", "--mode=fast", "stop"])) {
            eprintln!("PostgreSQL: {error}");
        }
    }
}

fn pgbench(bench: &Bench, dir: &Path, seconds: u32) -> Result<Program> {
    let fresh = !dir.join("postgresql").exists();
    let server = Server::start(dir, bench.machine.list_of(AWAY))?;
    if fresh {
        finished(server.command("pgbench").args(["--initialize", "--quiet", "--scale=2"]))?;
    }
    let tables = fs::read_dir(server.data.join("base"))?.flatten().map(|entry| fs::read_dir(entry.path()));
    let tables = tables.collect::<std::io::Result<Vec<_>>>()?.into_iter().flatten().flatten().map(|entry| entry.path());
    to_data(&tables.filter(|path| path.is_file()).collect::<Vec<_>>())?;
    let client = start(server.command("pgbench").args(["-S", "-c", "2", "-j", "1", "-n", "-T", &seconds.to_string()]))?;
    Ok(Program { name: "pgbench", pids: vec![server.pid()?, client.id()], client, _server: Some(server) })
}
