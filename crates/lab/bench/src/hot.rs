//! The cost of sampling the accessed bits of a mapped file, to the program that maps it and to
//! homenode, beside DAMON.
//!
//! ```text
//! homenode-bench hot FILE MIB ROUNDS OUT.json    measure
//! homenode-bench hot --load FILE                the program: reads words of a mapped file at random
//! ```
//!
//! In each round the program runs for a while undisturbed, sampled by homenode as in a window of a
//! second, and watched by DAMON with the kernel's defaults, in turn, so that other work on the
//! machine affects all alike. Ratios are medians over rounds. CPU time is that of the sampling
//! thread and of the kernel's kdamond. The program's speed is in reads per second of its own CPU
//! time, which other work on the machine disturbs less. Needs root.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lab::damon::Damon;
use observe::mapped::Mapped;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use serde_json::json;
use topology::Topology;

use crate::{Result, again, median};
use linux::clock::{self, ClockId};

/// How long each of the three runs in a round.
const SPELL: Duration = Duration::from_secs(10);

pub fn main(args: &[&str]) -> Result<()> {
    match *args {
        ["--load", file] => load(Path::new(file)),
        [file, mib, rounds, out] => {
            measure(Path::new(file), mib.parse::<u64>().unwrap() << 20, rounds.parse().unwrap(), Path::new(out));
        }
        _ => return Err("usage: hot FILE MIB ROUNDS OUT.json | --load FILE".into()),
    }
    Ok(())
}

/// Reads at random; for each line on stdin prints how many reads it has made, and in how many CPU
/// seconds.
fn load(path: &Path) {
    static READS: AtomicU64 = AtomicU64::new(0);
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: a new mapping at an address that the kernel chooses; it stays for the life of the
    // process.
    let base = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
    let base = base.expose_provenance();
    let read = move |at: usize| {
        // SAFETY: within the mapping; nobody shortens the file.
        unsafe { std::ptr::with_exposed_provenance::<u64>(base + at).read_volatile() };
    };
    (0..len).step_by(4096).for_each(read);
    std::thread::spawn(move || {
        let mut state = 1u64;
        loop {
            for _ in 0..1024 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                read((state >> 20) as usize % (len / 8) * 8);
            }
            READS.fetch_add(1024, Ordering::Relaxed);
        }
    });
    for _ in std::io::stdin().lock().lines() {
        println!("{} {}", READS.load(Ordering::Relaxed), clock::s(ClockId::ProcessCPUTime));
    }
}

struct Program {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Program {
    fn start(file: &Path) -> Self {
        let mut child =
            again("hot").unwrap().arg("--load").arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    /// Reads and CPU seconds so far.
    fn reads(&mut self) -> (f64, f64) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let (reads, cpu_s) = line.trim().split_once(' ').unwrap();
        (reads.parse().unwrap(), cpu_s.parse().unwrap())
    }

    /// Reads in a CPU second while `work` runs, which gets the time that it is to end.
    fn rate(&mut self, work: impl FnOnce(Instant)) -> f64 {
        let before = self.reads();
        work(Instant::now() + SPELL);
        let after = self.reads();
        (after.0 - before.0) / (after.1 - before.1)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn measure(path: &Path, bytes: u64, rounds: usize, out: &Path) {
    let file = File::create(path).unwrap();
    // 4 KiB at a time: a folio for each page.
    for at in (0..bytes).step_by(4096) {
        file.write_all_at(&[1; 4096], at).unwrap();
    }
    let mut program = Program::start(path);
    let pid = program.child.id();
    program.reads();
    let topology = topology::sysfs::read(Path::new("/sys")).unwrap_or_else(|_| Topology::default());
    let mut mapped = Mapped::open(Path::new("/proc"), &topology).unwrap();
    // One sample by itself, several times: the cost of a GiB.
    let costs: Vec<f64> = (0..10).map(|_| mapped.sample_one(pid).unwrap().unwrap().cpu_s).collect();
    let per_gib_ms = median(costs) * 1e3 / (bytes as f64 / f64::from(1 << 30));
    let damon = Damon::free();
    if let Err(why) = &damon {
        println!("DAMON is left out: {why:#}");
    }
    let sleep = |until: Instant| std::thread::sleep(until.saturating_duration_since(Instant::now()));
    let (mut ours, mut theirs, mut our_cpu, mut their_cpu) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        let alone = program.rate(sleep);
        let before = clock::s(ClockId::ThreadCPUTime);
        let sampled = program.rate(|until| {
            while Instant::now() < until {
                mapped.sample(&[pid], 0.03).unwrap();
                std::thread::sleep(Duration::from_secs(1).min(until.saturating_duration_since(Instant::now())));
            }
        });
        our_cpu.push((clock::s(ClockId::ThreadCPUTime) - before) / SPELL.as_secs_f64());
        ours.push(sampled / alone);
        let mut line =
            format!("round {round}: {:.1} M reads in a CPU second alone, homenode {:.4}", alone / 1e6, sampled / alone);
        if let Ok(damon) = &damon {
            damon.watch(pid).unwrap();
            let before = damon.cpu_s().unwrap();
            let watched = program.rate(sleep);
            their_cpu.push((damon.cpu_s().unwrap() - before) / SPELL.as_secs_f64());
            damon.off().unwrap();
            theirs.push(watched / alone);
            line.push_str(&format!(", DAMON {:.4}", watched / alone));
        }
        println!("{line}");
    }
    let mut figures = json!({
        "mib": bytes >> 20,
        "rounds": rounds,
        "homenode": {"ms_per_gib_and_sample": per_gib_ms, "cpu": median(our_cpu), "speed": median(ours)},
    });
    if !theirs.is_empty() {
        figures["damon"] = json!({"cpu": median(their_cpu), "speed": median(theirs)});
    }
    println!("{figures:#}");
    fs::write(out, format!("{figures:#}\n")).unwrap();
}
