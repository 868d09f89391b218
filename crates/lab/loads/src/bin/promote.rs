//! `homenode-promote`: what promotion brings a program, on a wall clock, on a mounted volume with
//! an emulated CXL expander.
//!
//! **Problem.** Emulated memory of virtual machines has no speed: there one sees where reads go,
//! and not what it brings.
//!
//! **Approach.** A volume has a region on each of two nodes with the figures of DRAM and one on a
//! memory node with those of a CXL expander (`homenode mount --emulate-nodes 2
//! --emulate-memory-nodes 1 --profile dram`). Threads, pinned to the CPUs of the two nodes, read
//! 64 KiB at a time from ranges of 2 MiB of one file, and note how long each read takes. Each load
//! runs three times a round: with all data on the memory node and no policy, the same under
//! `promote`, and, as the limit, with each range on a node with CPUs and no policy. Ratios are of
//! one round.
//!
//! **Limits.** Two emulated nodes share one real memory, its caches and CPUs; the model of the
//! expander is a bandwidth and a latency (`memory_model::Memory::CXL`), and whatever else slows
//! down a real one is missing. Ranges stay 2 MiB whatever the scale, so what promotion may copy in
//! a second is set to five of them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use lab::hot_set::{HotSet, Random};
use lab::mounted::Server;
use lab::page::wrapped;
use lab::threads;

const RANGE: u64 = 2 << 20;
/// Bytes of one read.
const BLOCK: u64 = 64 << 10;
/// What promotion may copy in a second, and all copies together, in bytes of emulated memory.
const RATES: (f64, f64) = (10e6, 5e6);
/// Bytes of a region beside file data: for inodes, logs and journals.
const BESIDE: u64 = 6 << 20;
/// Seconds at the start of a run that do not count.
const WARM_UP_S: f64 = 3.0;

/// Measure what promotion brings readers of slow memory.
#[derive(Parser)]
struct Args {
    /// The homenode-fs command
    #[arg(long)]
    homenode_fs: PathBuf,
    /// Directory for the regions and the mount point: in memory
    #[arg(long, default_value = "/dev/shm")]
    data: PathBuf,
    /// Directory for promote.md
    #[arg(long)]
    out: PathBuf,
    /// Rounds: each load once in each way
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Seconds of a run under promote; those without a policy take a third
    #[arg(long, default_value_t = 90.0)]
    seconds: f64,
    /// Readers of each node
    #[arg(long, default_value_t = 8)]
    readers: usize,
    /// How many times as slow as the profiles' memory
    #[arg(long, default_value_t = 800.0)]
    scale: f64,
    /// Only this load
    #[arg(long)]
    load: Option<String>,
}

/// What is read.
struct Load {
    name: &'static str,
    about: &'static str,
    /// MiB of the file, and of the region on each node with CPUs without what is beside data.
    mib: u64,
    room_mib: u64,
    /// One in so many ranges is read ([`HotSet`]).
    one_in: u64,
}

const LOADS: [Load; 2] = [
    Load {
        name: "zipf",
        about: "a tenth of a file of 160 MiB is read, by the readers of two nodes each its own ranges, by Zipf's law",
        mib: 160,
        room_mib: 160,
        one_in: 10,
    },
    Load {
        name: "all hot",
        about: "all of a file of 80 MiB is read alike by all readers, and regions of 16 MiB on their nodes hold a third of it (control)",
        mib: 80,
        room_mib: 10,
        one_in: 1,
    },
];

impl Load {
    /// What the readers of a node read.
    fn of_node(&self, node: usize) -> HotSet {
        HotSet::new((self.mib << 20) / RANGE, (self.one_in, self.one_in / 2), node)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Slow,
    Promote,
    Near,
}

impl Way {
    const ALL: [Self; 3] = [Self::Slow, Self::Promote, Self::Near];

    fn name(self) -> &'static str {
        match self {
            Self::Slow => "no policy, on the memory node",
            Self::Promote => "`promote`",
            Self::Near => "no policy, all near (limit)",
        }
    }
}

/// One read: when it ended, and how long it took, in seconds.
type Sample = (f64, f64);

/// Reads of a span: bytes per second, and percentiles of their time.
#[derive(Clone, Copy, Debug)]
struct Span {
    mb_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

fn span(samples: &[Sample], from_s: f64, to_s: f64) -> Option<Span> {
    let mut took: Vec<f64> =
        samples.iter().filter(|(at, _)| *at >= from_s && *at < to_s).map(|(_, took)| *took).collect();
    took.sort_by(f64::total_cmp);
    let at = |share: f64| Some(took.get(((took.len() as f64 * share) as usize).min(took.len().checked_sub(1)?))? * 1e3);
    let mb_s = took.len() as f64 * BLOCK as f64 / 1e6 / (to_s - from_s);
    Some(Span { mb_s, p50_ms: at(0.5)?, p99_ms: at(0.99)? })
}

fn main() -> ExitCode {
    lab::exit(run(&Args::parse()))
}

fn run(args: &Args) -> Result<()> {
    let cpus = threads::affinity()?;
    ensure!(cpus.len() >= 2, "two emulated nodes need two CPUs");
    // As `homenode mount --emulate-nodes 2` shares them out.
    let (first, second) = cpus.split_at(cpus.len() / 2);
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let load_before = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut text = format!(
        "# Promotion on a wall clock\n\nEmulated: two nodes with the figures of DRAM and a memory node with those of a CXL expander, all \
         {} times as slow (`--profile dram --emulate-memory-nodes 1`). {} readers on each node with CPUs read 64 KiB at a time. Bytes per \
         second and the time of a read, of which the first {WARM_UP_S:.0} s of a run do not count. Promotion may copy {:.0} MB/s. \
         {} CPUs; load average before: {}.\n",
        args.scale,
        args.readers,
        RATES.0 / 1e6,
        cpus.len(),
        load_before.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
    );
    for load in LOADS.iter().filter(|load| args.load.as_deref().is_none_or(|wanted| wanted == load.name)) {
        write!(
            text,
            "\n## {}\n\n{}.\n\n| round | | MB/s | p50 | p99 | of no policy | of the limit | on the readers' nodes |\n| --- | --- |{}\n",
            load.name,
            load.about,
            " ---: |".repeat(6)
        )?;
        let mut course = String::new();
        for round in 1..=args.rounds {
            let mut runs = Vec::new();
            for way in Way::ALL {
                let (samples, near) = one(args, load, way, [first, second])
                    .with_context(|| format!("{}, {}, round {round}", load.name, way.name()))?;
                let (from_s, to_s) = match way {
                    Way::Promote => (args.seconds * 2.0 / 3.0, args.seconds),
                    Way::Slow | Way::Near => (WARM_UP_S, args.seconds / 3.0),
                };
                let reads = span(&samples, from_s, to_s).context("nothing was read")?;
                eprintln!("{}, round {round}, {}: {reads:?}, {near} MiB near", load.name, way.name());
                if way == Way::Promote {
                    write!(course, "\nRound {round}, `promote`, spans of 5 s (MB/s; p50, p99 in ms):")?;
                    for at in (0..(args.seconds / 5.0) as u32).map(|n| f64::from(n) * 5.0) {
                        if let Some(Span { mb_s, p50_ms, p99_ms }) = span(&samples, at, at + 5.0) {
                            write!(course, " {mb_s:.0} ({p50_ms:.0}, {p99_ms:.0})")?;
                        }
                    }
                    course.push('\n');
                }
                runs.push((way, reads, near));
            }
            let of =
                |wanted: Way| runs.iter().find(|(way, ..)| *way == wanted).map_or(f64::NAN, |(_, reads, _)| reads.mb_s);
            for (way, Span { mb_s, p50_ms, p99_ms }, near) in &runs {
                let (slow, limit) = (mb_s / of(Way::Slow), mb_s / of(Way::Near));
                writeln!(
                    text,
                    "| {round} | {} | {mb_s:.1} | {p50_ms:.1} ms | {p99_ms:.1} ms | {slow:.2} | {limit:.2} | {near} MiB |",
                    way.name()
                )?;
            }
        }
        text.push_str(&course);
    }
    write!(
        text,
        "\nOf `promote` the last third of {:.0} s counts, of the others all of {:.0} s. Made by `bench/promote/run`.\n",
        args.seconds,
        args.seconds / 3.0
    )?;
    let text = wrapped(&text);
    print!("{text}");
    let path = args.out.join("promote.md");
    fs::write(&path, &text).with_context(|| path.display().to_string())
}

/// Makes a volume with the file, and reads it. Returns what was read, and the MiB of the file that
/// are on nodes with CPUs at the end.
fn one(args: &Args, load: &Load, way: Way, cpus: [&[u32]; 2]) -> Result<(Vec<Sample>, u64)> {
    let place = lab::scratch(&args.data, "homenode-promote-")?;
    let mount = place.path().join("mount");
    fs::create_dir_all(&mount).with_context(|| mount.display().to_string())?;
    let room = if way == Way::Near { load.mib } else { load.room_mib };
    let regions = [0, 1, 2].map(|node| place.path().join(format!("region{node}")));
    for (region, mib) in regions.iter().zip([room, room, load.mib]) {
        let file = File::create(region).with_context(|| region.display().to_string())?;
        file.set_len((mib << 20) + BESIDE).with_context(|| region.display().to_string())?;
    }
    let at = regions.iter().zip(0..).map(|(region, node)| format!("{}@{node}", region.display()));
    let made =
        Command::new(&args.homenode_fs).args(["mkfs", "--no-data-checksums"]).args(at).output().context("mkfs")?;
    ensure!(made.status.success(), "mkfs: {}", String::from_utf8_lossy(&made.stderr));

    let config = place.path().join("homenode.toml");
    // A mount divides them by the scale.
    let (promote, moves) = (RATES.0 * args.scale, RATES.1 * args.scale);
    fs::write(&config, format!("[promote]\nrate = {promote:.1}\n\n[moves]\nrate = {moves:.1}\n"))
        .with_context(|| config.display().to_string())?;
    let serve = |scale: f64, options: &[&str]| -> Result<Server> {
        let mut command = Command::new(&args.homenode_fs);
        command.args(["mount", "--foreground", "--state-dir"]).arg(place.path().join("state"));
        command.arg("--config").arg(&config).args(["--emulate-nodes", "2", "--emulate-memory-nodes", "1"]);
        command.args(["--profile", "dram", "--scale", &scale.to_string()]).args(options);
        let log = File::create(args.out.join("promote.log")).context("promote.log")?;
        command.args([&regions[0], &mount]).stdin(Stdio::null()).stdout(log);
        Ok(Server::start(&mut command, &mount, Duration::from_secs(60))?.0)
    };
    let stop = |mut server: Server| -> Result<()> {
        server.stop()?;
        server.wait(Duration::from_secs(60))
    };
    let file = mount.join("file");
    let server = serve(1.0, if way == Way::Near { &[] } else { &["--placement", "node2"] })?;
    fill(load, &file, cpus)?;
    stop(server)?;

    let seconds = if way == Way::Promote { args.seconds } else { args.seconds / 3.0 };
    let server = serve(args.scale, if way == Way::Promote { &["--policy", "promote"] } else { &[] })?;
    let (halt, began) = (AtomicBool::new(false), Instant::now());
    let samples = thread::scope(|scope| -> Result<Vec<Sample>> {
        let readers: Vec<_> = (0..2 * args.readers)
            .map(|n| {
                let (file, halt) = (&file, &halt);
                scope.spawn(move || read(load, n, cpus, file, began, halt))
            })
            .collect();
        thread::sleep(Duration::from_secs_f64(seconds));
        halt.store(true, Ordering::Relaxed);
        let mut samples = Vec::new();
        for reader in readers {
            samples.extend(reader.join().map_err(|_| anyhow!("a reader panicked"))??);
        }
        Ok(samples)
    })?;
    let near = near(&file)?;
    stop(server)?;
    Ok((samples, near))
}

/// Writes the file: each range by a thread on the node of its readers, and those that nobody reads,
/// or all, by one of each node in turn.
fn fill(load: &Load, file: &Path, cpus: [&[u32]; 2]) -> Result<()> {
    let context = || file.display().to_string();
    File::create(file).with_context(context)?.set_len(load.mib << 20).with_context(context)?;
    let own = [0, 1].map(|node| load.of_node(node));
    let node_of = |range: u64| match own.iter().position(|set| set.ranges().contains(&range)) {
        Some(node) if load.one_in > 1 => node as u64,
        _ => range % 2,
    };
    for (node, cpus) in (0u64..).zip(cpus) {
        let write = || -> Result<()> {
            threads::set_affinity(0, cpus)?;
            let open = File::options().read(true).write(true).open(file).with_context(context)?;
            // The server looks where a thread is once it has asked for something.
            open.read_exact_at(&mut [0], 0).with_context(context)?;
            thread::sleep(Duration::from_millis(100));
            for range in (0..(load.mib << 20) / RANGE).filter(|range| node_of(*range) == node) {
                open.write_all_at(&vec![range as u8 + 1; RANGE as usize], range * RANGE).with_context(context)?;
            }
            open.sync_all().with_context(context)
        };
        thread::scope(|scope| scope.spawn(write).join()).map_err(|_| anyhow!("a writer panicked"))??;
    }
    Ok(())
}

/// Reads on a node, every second reader on the same, until it is told to halt.
fn read(
    load: &Load,
    n: usize,
    cpus: [&[u32]; 2],
    file: &Path,
    began: Instant,
    halt: &AtomicBool,
) -> Result<Vec<Sample>> {
    let node = n % 2;
    threads::set_affinity(0, cpus[node])?;
    let set = load.of_node(node);
    let open = File::open(file).with_context(|| file.display().to_string())?;
    let (mut buffer, mut samples) = (vec![0; BLOCK as usize], Vec::new());
    let mut random = Random::new((n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    while !halt.load(Ordering::Relaxed) {
        let number = random.draw();
        let Some(range) = set.pick(number) else { continue };
        let within = number % (RANGE / BLOCK) * BLOCK;
        let before = Instant::now();
        open.read_exact_at(&mut buffer, range * RANGE + within).with_context(|| file.display().to_string())?;
        samples.push((began.elapsed().as_secs_f64(), before.elapsed().as_secs_f64()));
        let ends = [buffer.first(), buffer.last()].map(|byte| byte.copied().map(u64::from));
        ensure!(ends == [Some(range + 1); 2], "range {range} has other bytes than were written");
    }
    Ok(samples)
}

/// MiB of a file of a mount on nodes 0 and 1, as the server tells.
fn near(file: &Path) -> Result<u64> {
    let mut text = vec![0; 4096];
    let len = rustix::fs::getxattr(file, "homenode.nodes", text.as_mut_slice()).context("homenode.nodes")?;
    text.truncate(len);
    let nodes: serde_json::Value = serde_json::from_slice(&text).context("homenode.nodes")?;
    let bytes = |node: &str| nodes.get(node).and_then(serde_json::Value::as_u64).unwrap_or(0);
    Ok((bytes("0") + bytes("1")) >> 20)
}
