//! Reads of a file that is cached on a node without CPUs: who brings what is hot nearer?
//!
//! **Problem.** The kernel promotes mapped pages that fault, and demotes when memory is short. What
//! is read by `read()` stays on slow memory, or goes down to it, unless somebody moves it.
//!
//! **Approach.** Threads pinned to one CPU of each of two nodes read 16 KiB at a time from ranges
//! of 2 MiB of one file, and count how often they read each. Every few seconds `move_pages(2)`
//! tells where the pages of each range are. A range's reads since the last look, times the share of
//! its pages on the slow node, are its reads from there. What was moved is `pgmigrate_success` of
//! `/proc/vmstat`, the same for all.
//!
//! **Limits.** A look maps the cached pages for a moment, so the kernel can take them for used. An
//! emulated machine has no slow memory: this is where reads go, not how long they take.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::daemon::Daemon;
use lab::machine::Machine;
use lab::plot::{self, Series};
use lab::{cache, pages, threads};
use rustix::param::page_size;
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{AUTONUMA, Args, date, read, write};

const RANGE: u64 = 2 << 20;
/// Bytes of one read.
const BLOCK: u64 = 16 << 10;
/// Time between two looks at where the pages are.
const PERIOD: Duration = Duration::from_secs(3);
/// Whether the kernel demotes what it would reclaim.
const DEMOTION: &str = "/sys/kernel/mm/numa/demotion_enabled";
/// DAMON's interface, where the kernel has it.
const DAMON: &str = "/sys/kernel/mm/damon/admin";

/// Who may move pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernel,
    Tiering,
    Homenode,
}

impl Way {
    const ALL: [Self; 3] = [Self::Kernel, Self::Tiering, Self::Homenode];

    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel, as it booted",
            Self::Tiering => "`demotion_enabled`, `numa_balancing` 2",
            Self::Homenode => "homenode, `promote`",
        }
    }
}

/// What is read of the file.
struct Load {
    name: &'static str,
    about: &'static str,
    /// One in so many ranges is read, in turn by the readers of one node and of the other.
    one_in: u64,
    /// The second of a reader's ranges is read half as often as the first, the third a third as
    /// often, and so on; otherwise all alike.
    zipf: bool,
    /// homenode may fill so much of the file's size on each node with CPUs; `None`: all that is
    /// free.
    room: Option<f64>,
}

const LOADS: [Load; 2] = [
    Load {
        name: "Zipf",
        about: "a tenth of the file is read, by the readers of two nodes each its own ranges, by Zipf's law",
        one_in: 10,
        zipf: true,
        room: None,
    },
    Load {
        name: "all hot",
        about: "all of the file is read alike, and homenode has room for an eighth of it on each node (control)",
        one_in: 1,
        zipf: false,
        room: Some(0.125),
    },
];

/// A look at where the reads since the last one came from.
struct Look {
    at_s: f64,
    /// Reads from the slow node, from the readers' own node, and all.
    slow: f64,
    own: f64,
    all: f64,
    /// Bytes that were moved since the start.
    moved: u64,
}

struct Run {
    way: Way,
    looks: Vec<Look>,
    /// CPU seconds of homenode.
    cpu_s: Option<f64>,
}

impl Run {
    /// Shares of the reads from the slow node and from the readers' own, and bytes moved, within
    /// these seconds.
    fn within(&self, from_s: f64, to_s: f64) -> Option<(f64, f64, u64)> {
        let looks: Vec<&Look> = self.looks.iter().filter(|look| look.at_s > from_s && look.at_s <= to_s).collect();
        let sum = |of: fn(&Look) -> f64| looks.iter().map(|look| of(look)).sum::<f64>();
        let before = self.looks.iter().rfind(|look| look.at_s <= from_s).map_or(0, |look| look.moved);
        let (all, last) = (sum(|look| look.all), looks.last()?.moved);
        (all > 0.0).then(|| (sum(|look| look.slow) / all, sum(|look| look.own) / all, last.saturating_sub(before)))
    }
}

/// A reader: the CPU and node where it runs, and its ranges.
struct Reader {
    cpu: u32,
    node: u32,
    ranges: Vec<u64>,
    counts: Vec<AtomicU64>,
}

/// Runs each load under each way, and writes compare-tiers.md and compare-tiers.png.
pub fn compare(args: &Args, machine: &Machine, dir: &Path) -> Result<()> {
    let slow = slow_node(machine)?.context("this machine has no node without CPUs (vm/run --memory-nodes 1)")?;
    let (balancing, demotion) = (read(AUTONUMA)?, read(DEMOTION)?);
    let seconds = args.windows as f64;
    let spans = [(0.0, seconds / 6.0), (seconds / 6.0, seconds / 2.0), (seconds / 2.0, seconds)];
    let mut text = format!(
        "# Reads of a file that is cached on a node without CPUs\n\nThe file has {} MiB, all of them on node {slow} at first. \
         One thread on each of the two nodes with CPUs reads 16 KiB at a time. Share of the reads that come from node {slow}, \
         share that comes from the reader's own node, and what was moved, in three spans of seconds; by the load's own \
         counts, `move_pages(2)` and `pgmigrate_success`. Linux {}, {}, one boot, the file read in anew for each row.\n",
        args.size,
        read("/proc/sys/kernel/osrelease")?,
        date()?,
    );
    let result = (|| -> Result<()> {
        for load in &LOADS {
            write!(text, "\n## {}: {}\n\n| |", load.name, load.about)?;
            spans.iter().try_for_each(|(from, to)| write!(text, " {from:.0} to {to:.0} s |"))?;
            text.push_str(" CPU |\n| --- | ---: | ---: | ---: | ---: |");
            let mut series = Vec::new();
            for way in Way::ALL {
                println!("{}, {}", load.name, way.name());
                let (mode, demote) = match way {
                    Way::Tiering => ("2", "1"),
                    Way::Kernel | Way::Homenode => (balancing.as_str(), demotion.as_str()),
                };
                fs::write(AUTONUMA, mode).context(AUTONUMA)?;
                fs::write(DEMOTION, demote).context(DEMOTION)?;
                let file = dir.join("tiers");
                cache::put(&file, args.size << 20, slow)?;
                let run = one(args, machine, slow, load, way, &file)?;
                fs::remove_file(&file).with_context(|| file.display().to_string())?;
                write!(text, "\n| {} |", way.name())?;
                for (from_s, to_s) in spans {
                    let said = run.within(from_s, to_s).map_or("–".to_owned(), |(slow, own, moved)| {
                        format!(
                            "{:.0} %, {:.0} %, {:.1} MiB",
                            slow * 100.0,
                            own * 100.0,
                            moved as f64 / (1 << 20) as f64
                        )
                    });
                    println!("  {from_s:.0} to {to_s:.0} s: {said}");
                    write!(text, " {said} |")?;
                }
                write!(text, " {} |", run.cpu_s.map_or("–".to_owned(), |cpu_s| format!("{cpu_s:.1} s")))?;
                let points =
                    run.looks.iter().filter(|look| look.all > 0.0).map(|look| (look.at_s, look.slow / look.all));
                series.push(Series { name: run.way.name().replace('`', ""), points: points.collect() });
            }
            text.push('\n');
            if load.zipf {
                let title = format!("{} of a file on node {slow}, which has no CPUs", load.name);
                plot::remote_share(&args.out.join("compare-tiers.png"), &title, &series)?;
            }
        }
        Ok(())
    })();
    fs::write(AUTONUMA, &balancing).context(AUTONUMA)?;
    fs::write(DEMOTION, &demotion).context(DEMOTION)?;
    result?;
    write!(
        text,
        "\n- kernel, as it booted: `numa_balancing` {balancing}, `demotion_enabled` {demotion}; so it is beside homenode, too.\n- \
         DAMON's `migrate_hot`: {}\n- CPU: seconds that homenode took, of {seconds:.0}.\n- Made by `make bench` (`compare`).\n",
        match Path::new(DAMON).exists() {
            true => "not measured, although this kernel has DAMON.",
            false => "not measured, this kernel has no DAMON.",
        }
    )?;
    print!("\n{text}");
    write(&args.out.join("compare-tiers.md"), &text)
}

/// A node with memory and without CPUs.
pub fn slow_node(machine: &Machine) -> Result<Option<u32>> {
    let list = fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    Ok(lab::machine::parse_list(&list)?.into_iter().find(|node| !machine.nodes.contains_key(node)))
}

fn one(args: &Args, machine: &Machine, slow: u32, load: &Load, way: Way, file: &Path) -> Result<Run> {
    let ranges = (args.size << 20) / RANGE;
    let nodes: Vec<(u32, u32)> =
        machine.nodes.iter().take(2).filter_map(|(n, cpus)| Some((*n, *cpus.first()?))).collect();
    ensure!(nodes.len() == 2, "this needs two nodes with CPUs");
    let read: Vec<u64> = (0..ranges).filter(|range| range % load.one_in == load.one_in / 2).collect();
    let reader = |(i, (node, cpu)): (usize, &(u32, u32))| {
        // Of a file that is read as a whole, each reads all.
        let own = |(k, range): (usize, &u64)| (load.one_in == 1 || k % 2 == i).then_some(*range);
        let ranges: Vec<u64> = read.iter().enumerate().filter_map(own).collect();
        Reader { cpu: *cpu, node: *node, counts: ranges.iter().map(|_| AtomicU64::new(0)).collect(), ranges }
    };
    let readers: Vec<Reader> = nodes.iter().enumerate().map(reader).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let started: Vec<_> =
            readers.iter().map(|reader| scope.spawn(|| read_ranges(reader, load.zipf, file, &stop))).collect();
        let looked = look(args, slow, load, way, file, &readers);
        stop.store(true, Ordering::Relaxed);
        for thread in started {
            thread.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
        }
        looked
    })
}

/// Reads from its ranges until `stop` is set.
fn read_ranges(reader: &Reader, zipf: bool, file: &Path, stop: &AtomicBool) -> Result<()> {
    threads::set_affinity(0, &[reader.cpu])?;
    let open = File::open(file).with_context(|| file.display().to_string())?;
    // The sums of the weights up to each range.
    let weight = |rank: usize| if zipf { 1.0 / (rank + 1) as f64 } else { 1.0 };
    let mut sum = 0.0;
    let sums: Vec<f64> = (0..reader.ranges.len())
        .map(|rank| {
            sum += weight(rank);
            sum
        })
        .collect();
    let (mut buffer, mut random) = (vec![0; BLOCK as usize], 88_172_645_463_325_252_u64 ^ u64::from(reader.cpu));
    while !stop.load(Ordering::Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = (random >> 11) as f64 / (1u64 << 53) as f64 * sum;
        let chosen = sums.partition_point(|sum| *sum <= at);
        let (Some(range), Some(count)) = (reader.ranges.get(chosen), reader.counts.get(chosen)) else { continue };
        let within = random % (RANGE / BLOCK) * BLOCK;
        open.read_exact_at(&mut buffer, range * RANGE + within).with_context(|| file.display().to_string())?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Lets the way do its work, and looks every few seconds.
fn look(args: &Args, slow: u32, load: &Load, way: Way, file: &Path, readers: &[Reader]) -> Result<Run> {
    let reserve = match load.room {
        Some(share) => {
            let free = readers.iter().map(|reader| free_bytes(reader.node)).collect::<Result<Vec<_>>>()?;
            let room = (args.size << 20) as f64 * share;
            free.into_iter().max().unwrap_or(0) as f64 - room
        }
        None => 5e7,
    };
    let config = args.config(&format!("[promote]\nreserve_bytes = {:.1}\n", reserve.max(0.0)))?;
    let mut daemon = match way {
        Way::Homenode => {
            let options = ["--policy", "promote"].into_iter().chain(args.options.split_ascii_whitespace());
            let config = ["--config".as_ref(), config.path().as_os_str()];
            Some(Daemon::start(&args.homenode, options.map(AsRef::as_ref).chain(config))?)
        }
        Way::Kernel | Way::Tiering => None,
    };
    let (began, before) = (Instant::now(), migrated()?);
    let mut looks = Vec::new();
    let mut counted: Vec<Vec<u64>> = readers.iter().map(|reader| vec![0; reader.ranges.len()]).collect();
    while began.elapsed().as_secs_f64() < args.windows as f64 {
        let until = Instant::now() + PERIOD;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match &mut daemon {
                // Its output is read, or it would wait for us.
                Some(daemon) => _ = daemon.window()?,
                None => sleep(left),
            }
        }
        // Pages of each range: on the slow node, and by node.
        let mut on = vec![std::collections::BTreeMap::<i32, u64>::new(); ((args.size << 20) / RANGE) as usize];
        for (page, node) in pages::cached(file)? {
            if let Some(range) = on.get_mut((page * page_size() as u64 / RANGE) as usize) {
                *range.entry(node).or_default() += 1;
            }
        }
        let share = |range: u64, node: u32| -> f64 {
            let Some(pages) = on.get(range as usize) else { return 0.0 };
            let all: u64 = pages.values().sum();
            pages.get(&(node as i32)).copied().unwrap_or(0) as f64 / all.max(1) as f64
        };
        let mut look =
            Look { at_s: began.elapsed().as_secs_f64(), slow: 0.0, own: 0.0, all: 0.0, moved: migrated()? - before };
        for (reader, counted) in readers.iter().zip(&mut counted) {
            for ((range, count), before) in reader.ranges.iter().zip(&reader.counts).zip(counted) {
                let now = count.load(Ordering::Relaxed);
                let reads = (now - std::mem::replace(before, now)) as f64;
                look.all += reads;
                look.slow += reads * share(*range, slow);
                look.own += reads * share(*range, reader.node);
            }
        }
        looks.push(look);
    }
    let cpu_s = match daemon {
        Some(daemon) => {
            // Its copies end, each with its thread.
            let ticks = threads::cpu_ticks(daemon.pid())?;
            daemon.rest(Signal::TERM)?;
            Some(ticks as f64 / 100.0)
        }
        None => None,
    };
    Ok(Run { way, looks, cpu_s })
}

/// Bytes that the kernel has moved since boot, for whomever.
fn migrated() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("/proc/vmstat")?;
    let pages = text.lines().find_map(|line| line.strip_prefix("pgmigrate_success ")?.trim().parse::<u64>().ok());
    Ok(pages.context("pgmigrate_success")? * page_size() as u64)
}

/// Free memory of a node.
fn free_bytes(node: u32) -> Result<u64> {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = text.lines().find(|line| line.contains("MemFree:")).context("MemFree")?;
    let kib = line.split_whitespace().rev().nth(1).context("a size")?;
    Ok(kib.parse::<u64>()? * 1024)
}
