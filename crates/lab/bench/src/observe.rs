//! The cost of observing: `homenode-bench observe DIRECTORY RESULT.json [ROUNDS]`.
//!
//! Four questions. How much longer does a 4 KiB `pread` of cached data take under an observer? One
//! thread, pinned, reads for a quarter of a second of CPU time at a time; without, sampled and
//! exact take turns, each ratio is of neighbours in time. The same for bursts of 0.2, 1 and 10 s
//! after a pause, from the first read on, also with a hook that stays attached (`--steady`). What
//! does an observed read take more where ranges of files are counted, as for policy `promote`
//! (alone: `observe --ranges DIRECTORY ROUNDS`)? And what is used while 1,000 and 10,000 threads
//! read a little in every window, by the observer alone and by a whole `homenode run` (the program
//! in `HOMENODE`)?

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use observe::{Observer, Settings};
use rustix::thread::CpuSet;
use serde_json::{Value, json};

use crate::{Part, Result, quartiles};
use linux::clock::{self, ClockId};

const WINDOW: Duration = Duration::from_secs(1);
const FILES: usize = 1000;

pub fn main(args: &[&str]) -> Result<()> {
    let (directory, result, rounds) = match *args {
        ["--bursts", directory, rounds] => return bursts(Path::new(directory), &lengths(rounds.parse()?)).map(drop),
        ["--bursts", directory, rounds, seconds] => {
            return bursts(Path::new(directory), &[(seconds.parse()?, rounds.parse()?)]).map(drop);
        }
        ["--ranges", directory, rounds] => return ranges(Path::new(directory), rounds.parse()?).map(drop),
        ["--readers", directory, threads] => return readers(Path::new(directory), threads.parse()?),
        [directory, result] => (Path::new(directory), result, 15),
        [directory, result, rounds] => (Path::new(directory), result, rounds.parse()?),
        _ => return Err("usage: observe DIRECTORY RESULT.json [ROUNDS]".into()),
    };
    std::fs::create_dir_all(directory)?;
    let bursts = bursts(directory, &lengths(rounds))?;
    let overhead = overhead(directory, rounds)?;
    let ranges = ranges(directory, rounds)?;
    let capacity: Vec<Value> = [1000, 10_000].into_iter().map(|n| capacity(directory, n)).collect::<Result<_, _>>()?;
    let kernel = observe::Capabilities::probe().kernel;
    let json =
        json!({ "kernel": kernel, "bursts": bursts, "overhead": overhead, "ranges": ranges, "capacity": capacity });
    std::fs::write(result, serde_json::to_string_pretty(&json)? + "\n")?;
    Ok(())
}

/// A new file of 16 MiB to read.
fn cached_file(directory: &Path) -> std::io::Result<File> {
    std::fs::create_dir_all(directory)?;
    let path = directory.join("read");
    std::fs::write(&path, vec![1; 4096 * 4096])?;
    File::open(&path)
}

/// ns of CPU time per 4 KiB pread, over a quarter of a second of CPU time.
fn pread_ns(file: &File) -> std::io::Result<f64> {
    burst_ns(file, Duration::from_millis(250))
}

/// ns of CPU time per 4 KiB pread, over this much CPU time, which excludes the work of others.
fn burst_ns(file: &File, length: Duration) -> std::io::Result<f64> {
    let mut buffer = [0; 4096];
    let (start, mut n) = (clock::s(ClockId::ThreadCPUTime), 0u64);
    loop {
        for i in 0..1000u64 {
            file.read_exact_at(&mut buffer, (n + i) % 4096 * 4096)?;
        }
        n += 1000;
        let used = clock::s(ClockId::ThreadCPUTime) - start;
        if used >= length.as_secs_f64() {
            return Ok(used * 1e9 / n as f64);
        }
    }
}

/// The same after a round to warm up.
fn warm_ns(file: &File) -> std::io::Result<f64> {
    pread_ns(file)?;
    pread_ns(file)
}

/// Time until the observer knows the load: two of its windows.
const SETTLE: Duration = Duration::from_millis(2200);
/// Rounds per observed measurement: together a second, as the hook is attached in slices.
const ROUNDS_OBSERVED: u32 = 4;

/// What is measured while an observer takes its windows in another thread, on one of these CPUs.
fn observed_ns(settings: &Settings, cpus: &CpuSet, measure: impl FnOnce() -> std::io::Result<f64>) -> Result<f64> {
    let topology = topology::sysfs::read(Path::new("/sys"))?;
    let mut observer = Observer::open(settings, &topology)?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let windows = scope.spawn(|| -> Result<()> {
            rustix::thread::sched_setaffinity(None, cpus)?;
            while !done.load(Ordering::Relaxed) {
                observer.window(WINDOW)?;
            }
            Ok(())
        });
        let ns = measure();
        done.store(true, Ordering::Relaxed);
        windows.join().map_err(|_| "the observing thread panicked")??;
        Ok(ns?)
    })
}

fn settled_ns(file: &File) -> std::io::Result<f64> {
    let start = std::time::Instant::now();
    while start.elapsed() < SETTLE {
        pread_ns(file)?;
    }
    let rounds = (0..ROUNDS_OBSERVED).map(|_| pread_ns(file));
    Ok(rounds.sum::<std::io::Result<f64>>()? / f64::from(ROUNDS_OBSERVED))
}

/// Lengths of bursts in seconds, and how many of each. Those of ten seconds take most of the time:
/// fewer of them.
fn lengths(rounds: usize) -> [(f64, usize); 3] {
    [(0.2, rounds), (1.0, rounds), (10.0, rounds.div_ceil(4))]
}

/// What a burst of reads costs more, from the first read on, after an observer has seen nobody read
/// fast.
fn bursts(directory: &Path, lengths: &[(f64, usize)]) -> Result<Value> {
    /// An observer's first windows, in which it sees how little there is. Unobserved bursts follow
    /// a pause, too.
    const PAUSE: Duration = Duration::from_millis(1100);
    let file = cached_file(directory)?;
    let cpus = rustix::thread::sched_getaffinity(None)?;
    // Two threads throughout, as below.
    let (keep, parked) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || parked.recv());
    let unobserved = |length| -> std::io::Result<f64> {
        std::thread::sleep(PAUSE);
        burst_ns(&file, length)
    };
    let observed =
        |length, steady| observed_ns(&Settings { steady, ..Settings::default() }, &cpus, || unobserved(length));
    println!("4 KiB cached pread in bursts, ratio of CPU time   median   quartiles");
    let mut rows = serde_json::Map::new();
    for (seconds, rounds) in lengths {
        let length = Duration::from_secs_f64(*seconds);
        let ways = [("observed", false), ("observed, --steady", true)];
        let mut ratios = [Vec::new(), Vec::new()];
        let mut before = unobserved(length)?;
        for _ in 0..*rounds {
            for ((_, steady), ratios) in ways.iter().zip(&mut ratios) {
                let with = observed(length, *steady)?;
                let after = unobserved(length)?;
                ratios.push(with / ((before + after) / 2.0));
                before = after;
            }
        }
        for ((name, _), ratios) in ways.iter().zip(ratios) {
            let [low, median, high] = quartiles(ratios);
            println!("  {name:<24} {seconds:>4} s {rounds:>3} rounds   {median:>10.3}   {low:.3} to {high:.3}");
            rows.insert(format!("{name}, {seconds} s"), json!([low, median, high]));
        }
    }
    drop(keep);
    Ok(rows.into())
}

/// What a read takes under an observer.
fn overhead(directory: &Path, rounds: usize) -> Result<Value> {
    let mut ratios = [("sampled", Vec::new()), ("exact", Vec::new())];
    let mut alone = Vec::new();
    on_one_cpu(directory, |file, all| {
        for round in 0..rounds {
            for (way, ratios) in &mut ratios {
                // An unobserved measurement before and after each observed one, so that other work
                // on the machine is in both.
                let before = warm_ns(file)?;
                let settings = Settings { exact: *way == "exact", ..Settings::default() };
                let with = observed_ns(&settings, all, || settled_ns(file))?;
                let after = warm_ns(file)?;
                alone.push((before + after) / 2.0);
                ratios.push(with / ((before + after) / 2.0));
            }
            eprint!("\rround {} of {rounds}", round + 1);
        }
        eprintln!();
        Ok(())
    })?;
    let alone = quartiles(alone);
    println!("4 KiB cached pread         median   quartiles");
    println!("  not observed          {:>6.0} ns   {:.0} to {:.0}", alone[1], alone[0], alone[2]);
    let mut json =
        serde_json::Map::from_iter([("rounds".to_owned(), json!(rounds)), ("alone_ns".to_owned(), json!(alone))]);
    for (way, ratios) in ratios {
        let [low, median, high] = quartiles(ratios);
        println!("  {:<22} {median:>7.3}   {low:.3} to {high:.3}", format!("{way}, ratio"));
        json.insert(format!("{way}_ratio"), json!([low, median, high]));
    }
    Ok(json.into())
}

/// What an observed pread takes more if its range is counted, too. The hook stays attached, so that
/// each read pays.
fn ranges(directory: &Path, rounds: usize) -> Result<Value> {
    let (mut ratios, mut without) = (Vec::new(), Vec::new());
    on_one_cpu(directory, |file, all| {
        let observed = |ranges| {
            let settings = Settings { ranges, steady: true, ..Settings::default() };
            observed_ns(&settings, all, || settled_ns(file))
        };
        let mut before = observed(false)?;
        for _ in 0..rounds {
            let with = observed(true)?;
            let after = observed(false)?;
            ratios.push(with / ((before + after) / 2.0));
            without.push(after);
            before = after;
        }
        Ok(())
    })?;
    let (ratio, without) = (quartiles(ratios), quartiles(without));
    println!("4 KiB cached pread, observed   median   quartiles");
    println!("  without ranges        {:>6.0} ns   {:.0} to {:.0}", without[1], without[0], without[2]);
    println!("  with, ratio           {:>8.4}   {:.4} to {:.4}", ratio[1], ratio[0], ratio[2]);
    Ok(json!({ "rounds": rounds, "without_ns": without, "ratio": ratio }))
}

/// Measures on one CPU; all CPUs are for observers.
fn on_one_cpu(directory: &Path, measure: impl FnOnce(&File, &CpuSet) -> Result<()>) -> Result<()> {
    let file = cached_file(directory)?;
    // Two threads throughout: in a process with one, the kernel does not count a file's users.
    let (keep, parked) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || parked.recv());
    let all = rustix::thread::sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &one)?;
    let measured = measure(&file, &all);
    rustix::thread::sched_setaffinity(None, &all)?;
    drop(keep);
    measured
}

/// The observer's cost while `threads` threads of another process read a little in every window.
fn capacity(directory: &Path, threads: usize) -> Result<Value> {
    let load = Part::start("observe", ["--readers".as_ref(), directory.as_os_str(), threads.to_string().as_ref()])?;
    if load.said != "ready\n" {
        return Err(format!("the readers did not start: {}", load.said).into());
    }
    let topology = topology::sysfs::read(Path::new("/sys"))?;
    let mut observer = Observer::open(&Settings::default(), &topology)?;
    // In the first window the buffers grow.
    observer.window(WINDOW)?;
    let (mut cpu, mut rss, mut kernel, mut reported) = (Vec::new(), 0, 0, Vec::new());
    for _ in 0..10 {
        let observed = observer.window(WINDOW)?;
        cpu.push(observed.cost.cpu_s / observed.window_s);
        rss = rss.max(observed.cost.rss_bytes);
        kernel = kernel.max(observed.cost.kernel_bytes);
        let pid = load.child.id();
        reported
            .push(observed.threads.iter().filter(|t| t.thread.pid == pid && t.thread.file_bytes() > 0).count() as f64);
    }
    drop(observer);
    let agent = agent();
    drop(load);
    let (cpu, reported) = (quartiles(cpu), quartiles(reported));
    println!(
        "{threads} threads: {:.2} % of a CPU ({:.2} to {:.2}), {:.1} MB resident, {:.1} MB in the kernel, {} reported",
        cpu[1] * 100.0,
        cpu[0] * 100.0,
        cpu[2] * 100.0,
        rss as f64 / 1e6,
        kernel as f64 / 1e6,
        reported[1],
    );
    let agent = match agent {
        Ok(Used { cpu, rss_bytes }) => {
            println!("  homenode run: {:.2} % of a CPU, {:.1} MB resident", cpu * 100.0, rss_bytes as f64 / 1e6);
            json!({ "cpu_share": cpu, "rss_bytes": rss_bytes })
        }
        Err(why) => {
            println!("  homenode run: {why}");
            json!({ "not_measured": why })
        }
    };
    Ok(json!({
        "threads": threads, "cpu_share": cpu, "rss_bytes": rss, "kernel_bytes": kernel, "reported": reported,
        "homenode_run": agent,
    }))
}

/// A program's CPU seconds per second, and resident bytes.
struct Used {
    cpu: f64,
    rss_bytes: u64,
}

/// The use of a whole `homenode run`, the program in `HOMENODE`, under the present load.
fn agent() -> Result<Used, String> {
    let program = std::env::var_os("HOMENODE").ok_or("not measured: HOMENODE names no program")?;
    let state = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.arg("--json").arg("--state-dir").arg(state.path()).args(["run", "--dry-run"]);
    let daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    used_by(daemon.map_err(|e| format!("not measured: homenode could not be started: {e}"))?)
}

/// The use of a daemon that we started. Ends the daemon.
fn used_by(mut daemon: Child) -> Result<Used, String> {
    let used = used_in_ten_seconds(daemon.id());
    let ended = daemon.try_wait().ok().flatten();
    _ = daemon.kill();
    _ = daemon.wait();
    match ended {
        Some(status) => Err(format!("not measured: it ended by itself ({status})")),
        None => used,
    }
}

/// After two seconds to settle.
fn used_in_ten_seconds(pid: u32) -> Result<Used, String> {
    let look = || -> procfs::ProcResult<(u64, u64)> {
        let stat = procfs::process::Process::new(pid as i32)?.stat()?;
        Ok((stat.utime + stat.stime, stat.rss * procfs::page_size()))
    };
    let measure = || -> procfs::ProcResult<Used> {
        std::thread::sleep(Duration::from_secs(2));
        let (before, _) = look()?;
        std::thread::sleep(Duration::from_secs(10));
        let (after, rss_bytes) = look()?;
        Ok(Used { cpu: (after - before) as f64 / procfs::ticks_per_second() as f64 / 10.0, rss_bytes })
    };
    measure().map_err(|e| format!("not measured: {e}"))
}

/// Threads that each read 64 KiB of a small file about three times a second, until standard input
/// ends.
fn readers(directory: &Path, threads: usize) -> Result<()> {
    let files: Vec<PathBuf> = (0..FILES.min(threads)).map(|i| directory.join(format!("small-{i}"))).collect();
    for path in &files {
        std::fs::write(path, [1; 65_536])?;
    }
    for i in 0..threads {
        let path = files.get(i % files.len()).cloned().ok_or("no files")?;
        std::thread::Builder::new().stack_size(65_536).spawn(move || {
            let Ok(file) = File::open(path) else { return };
            let mut buffer = [0; 4096];
            std::thread::sleep(Duration::from_micros((i as u64 * 7919) % 300_000));
            loop {
                for at in 0..16 {
                    if file.read_exact_at(&mut buffer, at * 4096).is_err() {
                        return;
                    }
                }
                std::thread::sleep(Duration::from_millis(300));
            }
        })?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().lines().for_each(drop);
    Ok(())
}
