//! Reads of a file that is cached on a node without CPUs: who brings what is hot nearer?
//!
//! **Problem.** The kernel promotes mapped pages that fault, and demotes when memory is short. What
//! is read by `read()` stays on slow memory, or goes down to it, unless somebody moves it.
//!
//! **Approach.** Threads pinned to one CPU of each of two nodes read 16 KiB at a time from ranges
//! of 2 MiB of one file, and count how often they read each. Every few seconds `move_pages(2)`
//! tells where the pages of the ranges are that were read. A range's reads since the last look,
//! times the share of its pages on the slow node, are its reads from there. What was moved is
//! `pgmigrate_success` of `/proc/vmstat`, the same for all.
//!
//! **Limits.** A look maps the pages of what was read for a moment, so the kernel can take them for
//! used once more. An emulated machine has no slow memory: this is where reads go, not how long
//! they take.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use lab::daemon::{Daemon, last_notes};
use lab::damon::{Damon, MigrateHot};
use lab::hot_set::{HotSet, Random};
use lab::machine::Machine;
use lab::plot::{self, Series};
use lab::{cache, pages, threads};
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};
use rustix::param::page_size;
use rustix::process::Signal;

use super::{AUTONUMA, Args, date, percent, read, write};

const RANGE: u64 = 2 << 20;
/// Bytes of one read.
const BLOCK: u64 = 16 << 10;
/// Time between two looks at where the pages are.
const PERIOD: Duration = Duration::from_secs(3);
/// Whether the kernel demotes what it would reclaim.
const DEMOTION: &str = "/sys/kernel/mm/numa/demotion_enabled";
/// The multi-generational LRU. While it is on, `read()` does not clear the idle flag of a page
/// (`folio_mark_accessed`), by which DAMON sees accesses to pages that nobody has mapped.
const GENERATIONS: &str = "/sys/kernel/mm/lru_gen/enabled";
/// Bytes of each node that homenode leaves free.
const RESERVE: u64 = 10_000_000;
/// Bytes per second that DAMON may migrate at most: homenode's default.
const RATE: u64 = 250_000_000;
/// DAMON's sampling interval: ten times its default, as a reader of an emulated machine needs
/// longer than 5 ms until it comes back to a page.
const SAMPLE: Duration = Duration::from_millis(50);

/// Who may move pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernel,
    Tiering,
    Damon,
    Homenode,
}

impl Way {
    const ALL: [Self; 4] = [Self::Kernel, Self::Tiering, Self::Damon, Self::Homenode];

    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel, as it booted",
            Self::Tiering => "`demotion_enabled`, `numa_balancing` 2",
            Self::Damon => "DAMON, `migrate_hot`",
            Self::Homenode => "homenode, `promote`",
        }
    }
}

/// What is read of the file.
struct Load {
    name: &'static str,
    about: &'static str,
    /// One in so many ranges is read ([`HotSet`]).
    one_in: u64,
    /// After a third of the time, and again after the second, other ranges are read.
    moves: bool,
    /// Beside them a thread reads through the file, three times.
    scan: bool,
    /// Memory is held so that only so much of the file's size fits on each node with CPUs; `None`:
    /// what is free stays.
    room: Option<f64>,
    /// The spans of the table, in parts of the time.
    spans: [(f64, f64); 3],
}

/// The first look, how it settles, and the second half.
const SETTLING: [(f64, f64); 3] = [(0.0, 1.0 / 6.0), (1.0 / 6.0, 0.5), (0.5, 1.0)];

const LOADS: [Load; 4] = [
    Load {
        name: "Zipf",
        about: "A tenth of the file is read, by the readers of two nodes each its own ranges, by Zipf's law",
        one_in: 10,
        moves: false,
        scan: false,
        room: None,
        spans: SETTLING,
    },
    Load {
        name: "moving hot set",
        about: "The same, but after a third of the time, and again after the second, another tenth is read. The spans are the \
                second half of each third",
        one_in: 10,
        moves: true,
        scan: false,
        room: None,
        spans: [(1.0 / 6.0, 1.0 / 3.0), (0.5, 2.0 / 3.0), (5.0 / 6.0, 1.0)],
    },
    Load {
        name: "scan beside Zipf",
        about: "As Zipf, and beside it a thread reads through the whole file, three times. Its reads are not in the shares",
        one_in: 10,
        moves: false,
        scan: true,
        room: None,
        spans: SETTLING,
    },
    Load {
        name: "all hot",
        about: "All of the file is read alike by both readers, and so much memory is held that an eighth of it fits on each \
                of their nodes (control)",
        one_in: 1,
        moves: false,
        scan: false,
        room: Some(0.125),
        spans: SETTLING,
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
    /// CPU seconds of homenode or kdamond.
    cpu_s: Option<f64>,
}

/// What ran beside the load.
enum Mover {
    None,
    Homenode(Daemon),
    Damon(Damon),
}

impl Mover {
    /// CPU seconds so far, of homenode or of DAMON's thread in the kernel.
    fn cpu_s(&self) -> Result<Option<f64>> {
        Ok(match self {
            Self::None => None,
            // With its copies, each of which ends with its thread.
            Self::Homenode(daemon) => Some(threads::cpu_ticks(daemon.pid())? as f64 / 100.0),
            Self::Damon(damon) => Some(damon.cpu_s()?),
        })
    }
}

impl Run {
    /// Shares of the reads from the slow node and from the readers' own within these seconds.
    fn within(&self, from_s: f64, to_s: f64) -> Option<(f64, f64)> {
        let looks: Vec<&Look> = self.looks.iter().filter(|look| look.at_s > from_s && look.at_s <= to_s).collect();
        let sum = |of: fn(&Look) -> f64| looks.iter().map(|look| of(look)).sum::<f64>();
        let all = sum(|look| look.all);
        (all > 0.0).then(|| (sum(|look| look.slow) / all, sum(|look| look.own) / all))
    }
}

/// A reader: the CPU and node where it runs, its ranges one set after the other, and how often it
/// read each range of the file.
struct Reader {
    cpu: u32,
    node: u32,
    sets: Vec<HotSet>,
    counts: Vec<AtomicU64>,
}

/// Runs each load under each way, and writes compare-tiers.md and compare-tiers.png.
pub fn compare(args: &Args, machine: &Machine, dir: &Path) -> Result<()> {
    let slow = slow_node(machine)?.context("this machine has no node without CPUs (vm/run --memory-nodes 1)")?;
    let (balancing, demotion) = (read(AUTONUMA)?, read(DEMOTION)?);
    let mut text = format!(
        "# Reads of a file that is cached on a node without CPUs\n\nThe file has {} MiB, all of them on node {slow} at first. \
         One thread on each of the two nodes with CPUs reads 16 KiB at a time. Share of the reads that come from node {slow} in \
         three spans of seconds, share that comes from the reader's own node in the last of them, and what was moved in all; by \
         the load's own counts, `move_pages(2)` and `pgmigrate_success`. Linux {}, {}, one boot, the file read in anew for each \
         row.\n",
        args.size,
        read("/proc/sys/kernel/osrelease")?,
        date()?,
    );
    let mut plots = Vec::new();
    let result = LOADS.iter().try_for_each(|load| -> Result<()> {
        let series = table(args, machine, slow, load, (&balancing, &demotion), dir, &mut text)?;
        plots.push((load.name.to_owned(), series));
        Ok(())
    });
    fs::write(AUTONUMA, &balancing).context(AUTONUMA)?;
    fs::write(DEMOTION, &demotion).context(DEMOTION)?;
    result?;
    plot::shares(&args.out.join("compare-tiers.png"), "reads from the slow node", &plots)?;
    write!(
        text,
        "\n- kernel, as it booted: `numa_balancing` {balancing}, `demotion_enabled` {demotion}; so it is beside DAMON and \
         homenode, too.\n- DAMON: {}.\n- homenode: the time begins with its first window; at least {} MB of each node stay free; it does not \
         judge its moves by the load's speed (`moves.rollback` 0).\n- CPU: seconds \
         of homenode, or of DAMON's thread in the kernel.\n- Made by `make bench` (`compare`).\n",
        match Damon::exists() {
            true => about_damon(machine)?,
            false => "not measured, this kernel has no DAMON".to_owned(),
        },
        RESERVE / 1_000_000,
    )?;
    let text = lab::page::wrapped(&text);
    print!("\n{text}");
    write(&args.out.join("compare-tiers.md"), &text)
}

/// Runs one load under each way, and adds its table.
fn table(
    args: &Args,
    machine: &Machine,
    slow: u32,
    load: &Load,
    (balancing, demotion): (&str, &str),
    dir: &Path,
    text: &mut String,
) -> Result<Vec<Series>> {
    let seconds = load.seconds(args);
    let spans = load.spans.map(|(from, to)| (from * seconds, to * seconds));
    write!(text, "\n## {}\n\n{}.\n\n| |", load.name, load.about)?;
    spans.iter().try_for_each(|(from, to)| write!(text, " {from:.0} to {to:.0} s |"))?;
    text.push_str(" own node | moved | CPU |\n| --- |");
    text.push_str(&" ---: |".repeat(spans.len() + 3));
    let mut series = Vec::new();
    for way in Way::ALL.into_iter().filter(|way| *way != Way::Damon || Damon::exists()) {
        println!("{}, {}", load.name, way.name());
        let (mode, demote) = match way {
            Way::Tiering => ("2", "1"),
            Way::Kernel | Way::Damon | Way::Homenode => (balancing, demotion),
        };
        fs::write(AUTONUMA, mode).context(AUTONUMA)?;
        fs::write(DEMOTION, demote).context(DEMOTION)?;
        let generations = (way == Way::Damon).then(|| read(GENERATIONS).ok()).flatten();
        if generations.is_some() {
            fs::write(GENERATIONS, "n").context(GENERATIONS)?;
        }
        let file = dir.join("tiers");
        cache::put(&file, args.size << 20, slow)?;
        let run = one(args, machine, slow, load, way, &file);
        if let Some(generations) = generations {
            fs::write(GENERATIONS, generations).context(GENERATIONS)?;
        }
        let run = run?;
        fs::remove_file(&file).with_context(|| file.display().to_string())?;
        let mut row = String::new();
        for (from_s, to_s) in spans {
            write!(row, " {} |", percent(run.within(from_s, to_s).map(|(slow, _)| slow)))?;
        }
        let last = spans.last().and_then(|(from_s, to_s)| run.within(*from_s, *to_s));
        let moved = run.looks.last().map_or(0, |look| look.moved) as f64 / f64::from(1 << 20);
        let cpu = run.cpu_s.map_or("–".to_owned(), |cpu_s| format!("{cpu_s:.1} s"));
        write!(row, " {} | {moved:.1} MiB | {cpu} |", percent(last.map(|(_, own)| own)))?;
        println!(" {row}");
        write!(text, "\n| {} |{row}", way.name())?;
        let points = run.looks.iter().filter(|look| look.all > 0.0).map(|look| (look.at_s, look.slow / look.all));
        series.push(Series { name: run.way.name().replace('`', ""), points: points.collect() });
    }
    text.push('\n');
    Ok(series)
}

impl Load {
    /// How long it runs: a hot set that moves twice as long, as it has to settle three times.
    fn seconds(&self, args: &Args) -> f64 {
        args.windows as f64 * if self.moves { 2.0 } else { 1.0 }
    }

    /// Its parts: in each of them other ranges are read.
    fn parts(&self) -> usize {
        if self.moves { 3 } else { 1 }
    }
}

/// Where DAMON sends what it finds: the first node with CPUs. It has one for all.
fn damon_target(machine: &Machine) -> Result<u32> {
    machine.nodes.keys().next().copied().context("a node with CPUs")
}

fn about_damon(machine: &Machine) -> Result<String> {
    let to = damon_target(machine)?;
    Ok(format!(
        "samples the physical memory of the slow node every {} ms, with the kernel's default regions; once a second \
         what was accessed goes to node {to}, at most {} MB/s, without pages that were not accessed since the last time (`young`) \
         and, where the kernel knows that filter (6.15), without mapped ones (`unmapped`). The multi-generational LRU is off, as \
         with it the kernel does not tell DAMON of pages that are accessed by `read()`, and nothing moved",
        SAMPLE.as_millis(),
        RATE / 1_000_000
    ))
}

/// The physical addresses of a node's memory, from its first to its last block.
fn addresses(node: u32) -> Result<Range<u64>> {
    let blocks = "/sys/devices/system/memory/block_size_bytes";
    let size = u64::from_str_radix(&read(blocks)?, 16).context(blocks)?;
    let dir = format!("/sys/devices/system/node/node{node}");
    let (mut start, mut end) = (u64::MAX, 0);
    for entry in fs::read_dir(&dir).with_context(|| dir.clone())? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("memory")).and_then(|n| n.parse::<u64>().ok());
        if let Some(number) = number {
            (start, end) = (start.min(number * size), end.max((number + 1) * size));
        }
    }
    ensure!(start < end, "{dir}: no memory");
    Ok(start..end)
}

/// A node with memory and without CPUs.
pub fn slow_node(machine: &Machine) -> Result<Option<u32>> {
    let list = fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    Ok(lab::machine::parse_list(&list)?.into_iter().find(|node| !machine.nodes.contains_key(node)))
}

fn one(args: &Args, machine: &Machine, slow: u32, load: &Load, way: Way, file: &Path) -> Result<Run> {
    let ranges = (args.size << 20) / RANGE;
    let nodes: Vec<(u32, &Vec<u32>)> = machine.nodes.iter().take(2).map(|(node, cpus)| (*node, cpus)).collect();
    ensure!(nodes.len() == 2, "this needs two nodes with CPUs");
    let reader = |(i, (node, cpus)): (usize, &(u32, &Vec<u32>))| -> Result<Reader> {
        let rest = |part: usize| (load.one_in / 2 + 3 * part as u64) % load.one_in;
        let set = |part: usize| HotSet::new(ranges, (load.one_in, rest(part)), i);
        Ok(Reader {
            cpu: *cpus.first().context("a CPU")?,
            node: *node,
            sets: (0..load.parts()).map(set).collect(),
            counts: (0..ranges).map(|_| AtomicU64::new(0)).collect(),
        })
    };
    let readers = nodes.iter().enumerate().map(reader).collect::<Result<Vec<_>>>()?;
    let scanner = *nodes.last().and_then(|(_, cpus)| cpus.last()).context("a CPU")?;
    let room = load.room.map(|share| (args.size << 20) as f64 * share);
    let held =
        room.map(|room| readers.iter().map(|reader| Held::all_but(reader.node, room as u64 + RESERVE)).collect());
    let held: Option<Result<Vec<Held>>> = held;
    let _held = held.transpose()?;
    let (stop, part) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let mut started: Vec<_> =
            readers.iter().map(|reader| scope.spawn(|| read_ranges(reader, file, &part, &stop))).collect();
        if load.scan {
            started.push(scope.spawn(|| scan(scanner, load.seconds(args) / 3.0, file, &stop)));
        }
        let looked = look(args, machine, slow, load, way, file, &readers, &part);
        stop.store(true, Ordering::Relaxed);
        for thread in started {
            thread.join().map_err(|_| anyhow!("a reader panicked"))??;
        }
        looked
    })
}

/// Memory of a node that is locked until this is dropped.
struct Held {
    at: *mut c_void,
    len: usize,
}

impl Held {
    /// Locks memory of a node until only so much is free above the high watermark, below which the
    /// kernel makes room.
    fn all_but(node: u32, free: u64) -> Result<Self> {
        let free = free + high_watermark(node)?;
        let len = usize::try_from(free_bytes(node)?.saturating_sub(free))? / page_size() * page_size();
        ensure!(len > 0, "node {node} has less than {free} bytes of free memory");
        let hold = || -> Result<usize> {
            cache::bind_memory(node).with_context(|| format!("binding memory to node {node}"))?;
            let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping at an address that the kernel chooses.
            let at = unsafe { mmap_anonymous(ptr::null_mut(), len, access, kind) }.context("mmap")?;
            // SAFETY: the mapping just made; its pages are allocated by this.
            unsafe { mlock(at, len) }.context("mlock")?;
            Ok(at.expose_provenance())
        };
        // The memory policy is that of the thread.
        let at = thread::scope(|scope| scope.spawn(hold).join()).map_err(|_| anyhow!("holding memory panicked"))??;
        Ok(Self { at: ptr::with_exposed_provenance_mut(at), len })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, to which nothing refers.
        if let Err(e) = unsafe { munmap(self.at, self.len) } {
            eprintln!("held memory could not be given back: {e}");
        }
    }
}

/// Reads from the ranges of the part that it is, until `stop` is set.
fn read_ranges(reader: &Reader, file: &Path, part: &AtomicUsize, stop: &AtomicBool) -> Result<()> {
    threads::set_affinity(0, &[reader.cpu])?;
    let open = File::open(file).with_context(|| file.display().to_string())?;
    let (mut buffer, mut random) = (vec![0; BLOCK as usize], Random::new(reader.cpu.into()));
    while !stop.load(Ordering::Relaxed) {
        let number = random.draw();
        let Some(set) = reader.sets.get(part.load(Ordering::Relaxed)) else { continue };
        let Some(range) = set.pick(number) else { continue };
        let Some(count) = reader.counts.get(range as usize) else { continue };
        let within = number % (RANGE / BLOCK) * BLOCK;
        open.read_exact_at(&mut buffer, range * RANGE + within).with_context(|| file.display().to_string())?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads through the file again and again, each time in so many seconds, until `stop` is set.
fn scan(cpu: u32, seconds: f64, file: &Path, stop: &AtomicBool) -> Result<()> {
    threads::set_affinity(0, &[cpu])?;
    let open = File::open(file).with_context(|| file.display().to_string())?;
    let blocks = open.metadata().with_context(|| file.display().to_string())?.len() / BLOCK;
    let (mut buffer, began) = (vec![0; BLOCK as usize], Instant::now());
    for block in 0.. {
        let due = Duration::from_secs_f64(seconds * block as f64 / blocks as f64);
        while let Some(early) = due.checked_sub(began.elapsed()) {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            sleep(early.min(Duration::from_millis(50)));
        }
        open.read_exact_at(&mut buffer, block % blocks * BLOCK).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Lets the way do its work, and looks every few seconds.
#[expect(clippy::too_many_arguments, reason = "what a run is made of")]
fn look(
    args: &Args,
    machine: &Machine,
    slow: u32,
    load: &Load,
    way: Way,
    file: &Path,
    readers: &[Reader],
    part: &AtomicUsize,
) -> Result<Run> {
    // Moves that do not pay are taken back by the load's speed, and an emulated machine has none.
    let config = args.config(&format!(
        "[node.{slow}]\nfile_data = true\n\n[promote]\nreserve_bytes = {RESERVE}.0\n\n[moves]\nrollback = 0\n"
    ))?;
    let mut mover = match way {
        Way::Homenode => {
            let options = ["--policy", "promote"].into_iter().chain(args.options.split_ascii_whitespace());
            let config = ["--config".as_ref(), config.path().as_os_str()];
            let mut daemon = Daemon::start(&args.homenode, options.map(AsRef::as_ref).chain(config))?;
            // An emulated machine takes half a minute to check its programs.
            daemon.window()?;
            Mover::Homenode(daemon)
        }
        Way::Damon => {
            let damon = Damon::free()?;
            let (from, to) = (addresses(slow)?, damon_target(machine)?);
            damon.migrate_hot(&MigrateHot { from, to, rate: RATE, sample: SAMPLE })?;
            Mover::Damon(damon)
        }
        Way::Kernel | Way::Tiering => Mover::None,
    };
    let cpu_before = mover.cpu_s()?;
    let (began, before, seconds) = (Instant::now(), migrated()?, load.seconds(args));
    let mut looks = Vec::new();
    let counts = |reader: &Reader| reader.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let mut counted: Vec<Vec<u64>> = readers.iter().map(counts).collect();
    while began.elapsed().as_secs_f64() < seconds {
        part.store((began.elapsed().as_secs_f64() / seconds * load.parts() as f64) as usize, Ordering::Relaxed);
        let until = Instant::now() + PERIOD;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match &mut mover {
                // Its output is read, or it would wait for us.
                Mover::Homenode(daemon) => {
                    for made in daemon.window()?.moves {
                        let (at_s, from, to) = (began.elapsed().as_secs_f64(), made.from, made.to);
                        println!(
                            "  {at_s:.0} s: {} from {from} to {to}, {}: {}",
                            made.subject(),
                            made.reason,
                            made.why
                        );
                    }
                }
                Mover::Damon(_) | Mover::None => sleep(left),
            }
        }
        // Of each reader and range the reads since the last look.
        let mut reads = Vec::new();
        for (reader, counted) in readers.iter().zip(&mut counted) {
            for ((range, count), before) in (0u64..).zip(&reader.counts).zip(counted) {
                let now = count.load(Ordering::Relaxed);
                reads.push((reader, range, now - std::mem::replace(before, now)));
            }
        }
        reads.retain(|(_, _, reads)| *reads > 0);
        let range_of = |page: u64| page * page_size() as u64 / RANGE;
        let mut on: BTreeMap<u64, BTreeMap<i32, u64>> =
            reads.iter().map(|(_, range, _)| (*range, BTreeMap::new())).collect();
        let wanted: Vec<bool> = (0..(args.size << 20) / RANGE).map(|range| on.contains_key(&range)).collect();
        let wanted = |page: u64| wanted.get(range_of(page) as usize).copied().unwrap_or(false);
        for (page, node) in pages::cached_among(file, wanted)? {
            *on.entry(range_of(page)).or_default().entry(node).or_default() += 1;
        }
        let share = |range: u64, node: u32| -> f64 {
            let Some(pages) = on.get(&range) else { return 0.0 };
            let all: u64 = pages.values().sum();
            pages.get(&(node as i32)).copied().unwrap_or(0) as f64 / all.max(1) as f64
        };
        let mut look =
            Look { at_s: began.elapsed().as_secs_f64(), slow: 0.0, own: 0.0, all: 0.0, moved: migrated()? - before };
        for (reader, range, reads) in reads {
            let reads = reads as f64;
            look.all += reads;
            look.slow += reads * share(range, slow);
            look.own += reads * share(range, reader.node);
        }
        looks.push(look);
    }
    let cpu_s = mover.cpu_s()?.zip(cpu_before).map(|(now, before)| now - before);
    if let Mover::Homenode(mut daemon) = mover {
        println!("  at the end: {}", last_notes(&[daemon.window()?]));
        daemon.rest(Signal::TERM)?;
    }
    Ok(Run { way, looks, cpu_s })
}

/// Bytes that the kernel has moved since boot, for whomever.
fn migrated() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("/proc/vmstat")?;
    let pages = text.lines().find_map(|line| line.strip_prefix("pgmigrate_success ")?.trim().parse::<u64>().ok());
    Ok(pages.context("pgmigrate_success")? * page_size() as u64)
}

fn free_bytes(node: u32) -> Result<u64> {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = text.lines().find(|line| line.contains("MemFree:")).context("MemFree")?;
    let kib = line.split_whitespace().rev().nth(1).context("a size")?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// The high watermarks of a node's zones, in bytes.
fn high_watermark(node: u32) -> Result<u64> {
    let text = fs::read_to_string("/proc/zoneinfo").context("/proc/zoneinfo")?;
    let (mut here, mut pages) = (false, 0);
    for line in text.lines() {
        if let Some(zone) = line.strip_prefix("Node ") {
            here = zone.split(',').next().is_some_and(|id| id.trim().parse() == Ok(node));
        } else if let Some(high) = line.trim_start().strip_prefix("high ").filter(|_| here) {
            pages += high.trim().parse::<u64>().context("/proc/zoneinfo: high")?;
        }
    }
    Ok(pages * page_size() as u64)
}
