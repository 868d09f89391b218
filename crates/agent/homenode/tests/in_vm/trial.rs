//! `homenode trial`: it moves threads in periods with a policy only, and everything is back
//! afterwards.
//!
//! An emulated machine does not model how far memory is. So the reader whose remote reads are
//! slower makes them slower itself: it computes after each read that it makes away from its file.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::machine::parse_list;
use lab::threads;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::lab_bench::{Bench, Outcome, homenode, masks};
use crate::{Test, say};

pub const TESTS: &[Test] =
    &[Test { name: "trial::everything_is_back_after_each_period", nodes: &[2], run: everything_is_back }];

/// Bytes of one read.
const BLOCK: usize = 64 << 10;

/// The reader: begins on some CPUs, may run on all, and reads a file again and again. Away from the
/// file's CPUs each read costs `factor` times its CPU time, by computing.
pub fn be_slowed(file: &str, begin: &str, home: &str, factor: &str) -> Result<()> {
    let factor: f64 = factor.parse()?;
    let (begin, home, all) = (parse_list(begin)?, parse_list(home)?, threads::affinity()?);
    threads::set_affinity(0, &begin)?;
    let file = File::open(file)?;
    let blocks = file.metadata()?.len() / BLOCK as u64;
    let mut buffer = vec![0; BLOCK];
    threads::set_affinity(0, &all)?;
    println!("reading");
    std::io::stdout().flush()?;
    let cpu_time = || clock_gettime(ClockId::ThreadCPUTime);
    let ns = |t: rustix::time::Timespec| t.tv_sec * 1_000_000_000 + t.tv_nsec;
    for n in 0_u64.. {
        let before = ns(cpu_time());
        file.read_exact_at(&mut buffer, n % blocks * BLOCK as u64)?;
        if !home.contains(&(rustix::thread::sched_getcpu() as u32)) {
            let read = ns(cpu_time()) - before;
            while ((ns(cpu_time()) - before) as f64) < factor * read as f64 {
                std::hint::spin_loop();
            }
        }
        // Most of a CPU, and now and then a moment in which it can be moved.
        if n % 64 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// The reader, killed when dropped.
struct Slowed(Child);

impl Slowed {
    fn start(bench: &Bench, file: &Path, factor: f64) -> Result<Self> {
        let (begin, home) = (bench.machine.list_of(1), bench.machine.list_of(0));
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--role", "slowed"])
            .arg(file)
            .args([&begin, &home, &factor.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
        ensure!(line == "reading\n", "the reader said {line:?}");
        Ok(Self(child))
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `homenode trial --json` with short periods, for one process.
fn trial(bench: &Bench, pid: u32, rounds: u32) -> Command {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vm/homenode.toml");
    let mut command = Command::new(homenode());
    command.args(["trial", "--json", "--steady", "--margin", "2MB/s", "--min-bytes", "1MB", "--window", "0.5"]);
    command.args(["--period", "3", "--wash-out", "1.5", "--minutes", &(f64::from(rounds) * 0.1).to_string()]);
    command.args(["--pid", &pid.to_string(), "--config"]).arg(config).arg("--state-dir").arg(bench.state_dir());
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

fn lines(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line.get("kind").and_then(Value::as_str) == Some(kind)).collect()
}

/// Periods alternate as the lot says, threads move in those with the policy only, and go back.
fn everything_is_back() -> Outcome {
    const ROUNDS: u32 = 6;
    let bench = Bench::new()?;
    let file = bench.files(0, 1)?.remove(0);
    let reader = Slowed::start(&bench, &file, 3.0)?;
    let before = masks(reader.0.id());
    let output = trial(&bench, reader.0.id(), ROUNDS).output()?;
    let lines = lines(std::str::from_utf8(&output.stdout)?)?;
    let periods = of_kind(&lines, "period");
    let end = *of_kind(&lines, "end").first().context("no end")?;
    ensure!(output.status.success(), "{}: {end}", output.status);
    ensure!(periods.len() == 2 * ROUNDS as usize, "{} periods", periods.len());
    let (off, on): (Vec<_>, Vec<_>) =
        periods.iter().partition(|period| period.get("arm").and_then(Value::as_str) == Some("off"));
    ensure!(off.len() == ROUNDS as usize, "{} of them off", off.len());
    let moves = |periods: &[&&Value]| -> u64 { periods.iter().filter_map(|p| p.get("moves")?.as_u64()).sum() };
    ensure!(moves(&off) == 0 && moves(&on) > 0, "{} moves while off, {} while on", moves(&off), moves(&on));
    ensure!(periods.iter().all(|period| period.get("stayed") == Some(&Value::Null)), "something stayed");
    ensure!(masks(reader.0.id()) == before, "affinities before {before:?}, after {:?}", masks(reader.0.id()));
    let result = end.pointer("/results/0").context("no result")?;
    say!("remote reads that cost three times as much, by the test itself: {result}");
    Ok(())
}
