//! Real programs under every policy: fio, RocksDB's db_bench, PostgreSQL's pgbench.
//!
//! A long test: set `HOMENODE_PROGRAMS_S` to the seconds of each program under each policy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use lab::daemon::{Window, remote_share};
use lab::threads;
use rustix::process::Signal;

use crate::lab_bench::{Bench, Outcome};
use crate::{Skip, Test, say};

pub const TESTS: &[Test] =
    &[Test { name: "programs::run_unharmed_under_every_policy", nodes: &[2, 4], run: run_unharmed_under_every_policy }];

const POLICIES: &[&str] =
    &["nthread-rl", "nthread-cpu", "nthread-nm", "nthread", "dragonfly", "npolicy", "arc", "arc-guarded", "auto"];

/// The policies that promise fewer remote reads for any load.
const FEWER_REMOTE_READS: &[&str] = &["nthread-rl", "nthread", "arc"];

fn run_unharmed_under_every_policy() -> Outcome {
    let Ok(seconds) = std::env::var("HOMENODE_PROGRAMS_S") else {
        return Err(Skip("a long test: set HOMENODE_PROGRAMS_S to the seconds of each program".to_owned()).into());
    };
    let seconds = seconds.parse::<u32>().context("HOMENODE_PROGRAMS_S")?;
    let bench = Bench::new()?;
    let kinds: [fn(&Path, u32) -> Result<Program>; 3] = [fio, db_bench, pgbench];
    for start in kinds {
        let dir = tempfile::Builder::new().prefix("program-").tempdir_in(bench.dir())?;
        let without = run(&bench, start(dir.path(), seconds)?, &["--dry-run", "--policy", "nthread"])?;
        for policy in POLICIES {
            let with = run(&bench, start(dir.path(), seconds)?, &["--policy", policy])?;
            let tail = |windows: &[Window]| remote_share(windows.get(windows.len() / 2..).unwrap_or_default());
            let (was, is) = (tail(&without.windows), tail(&with.windows));
            let moves = with.windows.iter().map(|w| w.moves.len()).sum::<usize>();
            say!("{} under {policy}: {moves} moves, remote share {was:?} without, {is:?} with", with.name);
            if FEWER_REMOTE_READS.contains(policy)
                && let (Some(was), Some(is)) = (was, is)
            {
                ensure!(is <= was + 0.02, "{} under {policy}: remote share {is:.2}, {was:.2} without", with.name);
            }
        }
    }
    Ok(())
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
fn run(bench: &Bench, mut program: Program, options: &[&str]) -> Result<Ran> {
    let name = program.name;
    let tree = || program.pids.iter().flat_map(|pid| threads::tree(*pid)).collect::<Vec<u32>>();
    let before = threads::affinities(&tree());
    let mut daemon = bench.daemon(options)?;
    let mut windows = Vec::new();
    let status = loop {
        windows.push(daemon.window()?);
        if let Some(status) = program.client.try_wait()? {
            break status;
        }
    };
    let (end, ended) = daemon.stop(Signal::TERM)?;
    ensure!(status.success(), "{name} {options:?}: the program ended with {status}");
    ensure!(ended.success(), "{name} {options:?}: homenode ended with {ended}");
    ensure!(end.is_some_and(|end| end.failed == 0), "{name} {options:?}: {end:?}");
    let after = threads::affinities(&tree());
    for (tid, mask) in &after {
        ensure!(
            before.get(tid).is_none_or(|was| was == mask),
            "{name} {options:?}: thread {tid} may run on {mask} now"
        );
    }
    Ok(Ran { name, windows })
}

fn start(command: &mut Command) -> Result<Child> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
    child.with_context(|| format!("{:?}", command.get_program()))
}

fn finished(command: &mut Command) -> Result<()> {
    let status = start(command)?.wait()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

fn fio(dir: &Path, seconds: u32) -> Result<Program> {
    let client = start(
        Command::new("fio")
            .args([
                "--name=job",
                "--thread",
                "--ioengine=psync",
                "--rw=randrw",
                "--rwmixread=80",
                "--bs=16k",
                "--numjobs=4",
            ])
            .args(["--size=32m", "--time_based", "--invalidate=0", &format!("--runtime={seconds}")])
            .arg("--output=/dev/null")
            .current_dir(dir),
    )?;
    Ok(Program { name: "fio", pids: vec![client.id()], client, _server: None })
}

fn db_bench(dir: &Path, seconds: u32) -> Result<Program> {
    let client = start(
        Command::new("db_bench")
            .args(["--benchmarks=fillseq,readrandom", "--num=20000", "--value_size=1000", "--threads=2"])
            .arg(format!("--duration={seconds}"))
            .arg(format!("--db={}", dir.join("rocksdb").display())),
    )?;
    Ok(Program { name: "db_bench", pids: vec![client.id()], client, _server: None })
}

/// A PostgreSQL server of its own, reached by a socket in its directory only; stopped when dropped.
struct Server {
    bin: PathBuf,
    data: PathBuf,
}

impl Server {
    fn start(dir: &Path) -> Result<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql").context("/usr/lib/postgresql")?;
        let bin = versions.flatten().map(|v| v.path().join("bin")).max().context("no PostgreSQL")?;
        let server = Self { bin, data: dir.join("postgresql") };
        if !server.data.exists() {
            fs::create_dir(&server.data)?;
            finished(Command::new("chown").arg("postgres").args([dir, &server.data]))?;
            finished(server.command("initdb").args(["--no-sync", "--auth=trust"]))?;
        }
        let options = format!("-c listen_addresses= -c unix_socket_directories={}", server.data.display());
        finished(server.command("pg_ctl").args(["--wait", "--silent", "--options", &options, "start"]))?;
        Ok(server)
    }

    /// One of PostgreSQL's commands, as the user that it demands.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(self.bin.join(name));
        command.env("PGDATA", &self.data).env("PGHOST", &self.data).env("PGDATABASE", "postgres").current_dir("/");
        command
    }

    fn pid(&self) -> Result<u32> {
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

fn pgbench(dir: &Path, seconds: u32) -> Result<Program> {
    let fresh = !dir.join("postgresql").exists();
    let server = Server::start(dir)?;
    if fresh {
        finished(server.command("pgbench").args(["--initialize", "--quiet", "--scale=2"]))?;
    }
    let Ok(client) =
        start(server.command("pgbench").args(["-S", "-c", "4", "-j", "2", "-n", "-T", &seconds.to_string()]))
    else {
        bail!("pgbench does not start");
    };
    Ok(Program { name: "pgbench", pids: vec![server.pid()?, client.id()], client, _server: Some(server) })
}
