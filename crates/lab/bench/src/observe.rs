//! The cost of observing: `homenode-bench observe DIRECTORY RESULT.json [ROUNDS]`.
//!
//! Five questions. How many interrupts do CPUs send each other because hooks are attached and
//! detached? How much longer does a 4 KiB `pread` of cached data take under an observer? One
//! thread, pinned, reads for a quarter of a second of CPU time at a time; without, sampled and
//! exact take turns, each ratio is of neighbours in time. The same for bursts of 0.2, 1 and 10 s
//! after a pause, from the first read on, also with a hook that stays attached (`--steady`). What
//! does an observed read take more where ranges of files are counted, as for policy `promote`
//! (alone: `observe --ranges DIRECTORY ROUNDS`)? And what is used while 1,000 and 10,000 threads
//! read a little in every window, by the observer alone, by a whole `homenode run` (the program in
//! `HOMENODE`), and by its peers: a reader of `/proc/*/task/*/{stat,io}`, which learns who reads
//! how much but not from where, and numad, which learns neither?

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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
        ["--interrupts", directory, rounds] => return interrupts(Path::new(directory), rounds.parse()?).map(drop),
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
    let interrupts = interrupts(directory, rounds)?;
    let bursts = bursts(directory, &lengths(rounds))?;
    let overhead = overhead(directory, rounds)?;
    let ranges = ranges(directory, rounds)?;
    let capacity: Vec<Value> = [1000, 10_000].into_iter().map(|n| capacity(directory, n)).collect::<Result<_, _>>()?;
    let kernel = observe::Capabilities::probe().kernel;
    let json = json!({ "kernel": kernel, "interrupts": interrupts, "bursts": bursts, "overhead": overhead, "ranges": ranges, "capacity": capacity });
    std::fs::write(result, serde_json::to_string_pretty(&json)? + "\n")?;
    Ok(())
}

/// How an observer is set, by name; `None` for no observer.
type Way = (&'static str, Option<Settings>);

/// Interrupts that CPUs send each other, per second and CPU, while a thread reads as fast as it
/// can; and those of them that the observer's threads sent, by the function that was called.
fn interrupts(directory: &Path, rounds: usize) -> Result<Value> {
    let file = cached_file(directory)?;
    let topology = topology::sysfs::read(Path::new("/sys"))?;
    let ways: [Way; 3] = [
        ("not observed", None),
        ("observed", Some(Settings::default())),
        ("observed, --steady", Some(Settings { steady: true, ..Settings::default() })),
    ];
    let mut results = vec![Vec::new(); ways.len()];
    let mut senders: Vec<BTreeMap<String, f64>> = vec![BTreeMap::new(); ways.len()];
    let mut sliced = 0;
    let (done, reader) = (AtomicBool::new(false), AtomicU32::new(0));
    let sent = Sent::new();
    std::thread::scope(|scope| -> Result<()> {
        scope.spawn(|| -> std::io::Result<()> {
            reader.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::Relaxed);
            while !done.load(Ordering::Relaxed) {
                pread_ns(&file)?;
            }
            Ok(())
        });
        let all = (|| {
            for _ in 0..rounds {
                for (((_, settings), result), senders) in ways.iter().zip(&mut results).zip(&mut senders) {
                    let mut observer = settings.as_ref().map(|s| Observer::open(s, &topology)).transpose()?;
                    // The first windows tell the observer how much there is to see.
                    for measured in [false, true] {
                        if let Ok(sent) = &sent {
                            sent.begin(reader.load(Ordering::Relaxed))?;
                        }
                        let (before, start) = (sent_between_cpus()?, std::time::Instant::now());
                        for _ in 0..2 {
                            match &mut observer {
                                Some(observer) => {
                                    let notes = observer.window(WINDOW)?.notes;
                                    sliced += usize::from(
                                        notes.iter().any(|n| n.starts_with("reads: the hook was attached for")),
                                    );
                                }
                                None => std::thread::sleep(WINDOW),
                            }
                        }
                        let per_s = (sent_between_cpus()? - before) / start.elapsed().as_secs_f64();
                        if measured {
                            result.push(per_s / topology.cpus().len() as f64);
                            let share = start.elapsed().as_secs_f64() * (rounds * topology.cpus().len()) as f64;
                            for function in sent.as_ref().map_or(Ok(Vec::new()), Sent::end)? {
                                *senders.entry(function).or_default() += 1.0 / share;
                            }
                        }
                    }
                }
            }
            Ok(())
        })();
        done.store(true, Ordering::Relaxed);
        all
    })?;
    println!("function-call interrupts, a second and CPU   median   quartiles ({sliced} windows sliced)");
    let mut rows = serde_json::Map::new();
    for (((name, _), result), senders) in ways.iter().zip(results).zip(&senders) {
        let [low, median, high] = quartiles(result);
        println!("  {name:<42} {median:>7.0}   {low:.0} to {high:.0}");
        let by: Vec<_> = senders.iter().map(|(function, n)| format!("{function} {n:.1}")).collect();
        println!("    sent by the observer: {}", if by.is_empty() { "none".to_owned() } else { by.join(", ") });
        rows.insert((*name).to_owned(), json!({"all": [low, median, high], "sent_by_the_observer": senders}));
    }
    if let Err(error) = &sent {
        println!("  who sent them is not known: {error}");
    }
    Ok(rows.into())
}

/// Who sends function-call interrupts: the kernel's trace event `csd_queue_cpu` (since 6.4) in a
/// trace buffer of our own.
struct Sent(PathBuf);

impl Sent {
    fn new() -> std::io::Result<Self> {
        let dir = PathBuf::from(format!("/sys/kernel/tracing/instances/homenode-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        let sent = Self(dir);
        std::fs::write(sent.0.join("events/csd/csd_queue_cpu/enable"), "1")?;
        Ok(sent)
    }

    /// From now on: those of the threads of this process but one.
    fn begin(&self, but: u32) -> std::io::Result<()> {
        let tasks =
            std::fs::read_dir("/proc/self/task")?.map(|task| Ok(task?.file_name().to_string_lossy().into_owned()));
        let tids: Vec<String> = tasks.collect::<std::io::Result<_>>()?;
        let tids: Vec<_> = tids.into_iter().filter(|tid| *tid != but.to_string()).collect();
        std::fs::write(self.0.join("set_event_pid"), tids.join(" "))?;
        std::fs::write(self.0.join("trace"), "")
    }

    /// The functions of all since then.
    fn end(&self) -> std::io::Result<Vec<String>> {
        let text = std::fs::read_to_string(self.0.join("trace"))?;
        let function = |line: &str| Some(line.split_once(" func=")?.1.split([' ', '+']).next()?.to_owned());
        Ok(text.lines().filter_map(function).collect())
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Function-call interrupts of all CPUs so far: the row `CAL` of /proc/interrupts.
fn sent_between_cpus() -> std::io::Result<f64> {
    let text = std::fs::read_to_string("/proc/interrupts")?;
    let row = text.lines().find_map(|line| line.trim_start().strip_prefix("CAL:")).unwrap_or_default();
    Ok(row.split_whitespace().map_while(|n| n.parse::<f64>().ok()).sum())
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
    let peers = peers()?;
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
    for (name, peer) in &peers {
        match peer {
            Ok(Used { cpu, rss_bytes }) => {
                println!("  {name}: {:.2} % of a CPU, {:.1} MB resident", cpu * 100.0, *rss_bytes as f64 / 1e6)
            }
            Err(why) => println!("  {name}: {why}"),
        }
    }
    let peers: Value = peers
        .into_iter()
        .map(|(name, peer)| match peer {
            Ok(Used { cpu, rss_bytes }) => (name.to_owned(), json!({ "cpu_share": cpu, "rss_bytes": rss_bytes })),
            Err(why) => (name.to_owned(), json!({ "not_measured": why })),
        })
        .collect();
    Ok(json!({
        "threads": threads, "cpu_share": cpu, "rss_bytes": rss, "kernel_bytes": kernel, "reported": reported,
        "beside": peers,
    }))
}

/// A program's CPU seconds per second, and resident bytes.
struct Used {
    cpu: f64,
    rss_bytes: u64,
}

/// Programs by name, with their use, or why it was not measured.
type Peers = Vec<(&'static str, Result<Used, String>)>;

/// The use of homenode as a whole and of its peers under the present load.
fn peers() -> Result<Peers> {
    let own = |name: &str| format!("not measured: {name} could not be started");
    let homenode = match std::env::var_os("HOMENODE") {
        Some(program) => {
            let state = tempfile::tempdir()?;
            let mut command = Command::new(program);
            command.arg("--json").arg("--state-dir").arg(state.path()).args(["run", "--dry-run"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|_| own("homenode")).map(used_by)
        }
        None => Err("not measured: HOMENODE names no program".to_owned()),
    };
    let numad = numad();
    Ok(vec![
        ("homenode run --dry-run", homenode.and_then(|used| used)),
        ("a reader of /proc/*/task/*/{stat,io}", procfs_reader().map_err(|e| e.to_string())),
        ("numad, a look every second", numad),
    ])
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

/// numad puts itself into the background, writes a pid file and ends on request. With `-H 0` it
/// does not change the machine's huge-page setting.
fn numad() -> Result<Used, String> {
    let numad = |args: &[&str]| {
        let status = Command::new("numad").args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.map_err(|e| format!("not measured: numad could not be started: {e}"))
    };
    if Path::new("/run/numad.pid").exists() {
        return Err("not measured: another numad is running".to_owned());
    }
    numad(&["-i", "1:1", "-H", "0"])?;
    std::thread::sleep(Duration::from_millis(500));
    let pid = std::fs::read_to_string("/run/numad.pid").ok().and_then(|pid| pid.trim().parse().ok());
    let used = match pid {
        Some(pid) => used_in_ten_seconds(pid),
        None => Err("not measured: it did not stay".to_owned()),
    };
    numad(&["-i", "0"])?;
    used
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

/// One pass a second over every thread's CPU time and bytes read, five times.
fn procfs_reader() -> Result<Used> {
    let mut shares = Vec::new();
    for _ in 0..5 {
        let before = clock::s(ClockId::ThreadCPUTime);
        let mut seen = 0u64;
        for process in procfs::process::all_processes()?.flatten() {
            for task in process.tasks().into_iter().flatten().flatten() {
                // Skips threads that end meanwhile.
                if let (Ok(stat), Ok(io)) = (task.stat(), task.io()) {
                    seen = seen.wrapping_add(stat.utime + stat.stime).wrapping_add(io.rchar);
                }
            }
        }
        std::hint::black_box(seen);
        shares.push(clock::s(ClockId::ThreadCPUTime) - before);
        std::thread::sleep(WINDOW);
    }
    let rss_bytes = procfs::process::Process::myself()?.stat()?.rss * procfs::page_size();
    Ok(Used { cpu: quartiles(shares)[1], rss_bytes })
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
