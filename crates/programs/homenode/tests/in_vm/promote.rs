//! `homenode run --policy promote`: what is read often leaves the memory without CPUs for the nodes
//! of its readers, and nothing else does. Judged by `move_pages(2)` from outside.

pub mod programs;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lab::daemon::Daemon;
use lab::{cache, pages};
use rustix::param::page_size;
use rustix::process::Signal;
use testing::{Case, Skip, cases, is_long};

use crate::lab_bench::{Bench, Ends, Outcome, cpus, ends, homenode, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![
    [nodes([2])]
        hot_ranges_go_to_their_readers,
        colder_cache_makes_room,
        memory_that_nobody_names_gets_nothing_unasked;
    [is_long(), nodes([2])]
        auto_promotes_hot_ranges_and_moves_no_file,
        what_does_not_fit_stays,
        a_scan_moves_nothing,
        what_the_load_left_makes_room_when_it_is_wanted;
];

/// The node without CPUs (vm/run --memory-nodes 1), and a setting of homenode for it.
pub const SLOW: i32 = 2;

pub const RANGE: u64 = 2 << 20;

/// Ranges of the file: 160 MiB.
const RANGES: u64 = 80;

/// The ranges that the readers of each node read, apart from each other: a tenth of the file.
const HOT: [[u64; 4]; 2] = [[3, 17, 18, 60], [9, 30, 44, 79]];

pub fn memory_node() -> Outcome {
    let list = fs::read_to_string(format!("/sys/devices/system/node/node{SLOW}/cpulist")).unwrap_or("x".to_owned());
    match list.trim() {
        "" => Ok(()),
        _ => Err(Skip(format!("needs a node {SLOW} without CPUs (vm/run --memory-nodes 1)")).into()),
    }
}

/// Reads 16 KiB at a time from ranges of a file, pinned to these CPUs, for ever. The first range is
/// read twice as often as the second, three times as often as the third, and so on (Zipf).
pub fn be_reader(args: &[String]) -> Result<()> {
    let [cpus, file, ranges @ ..] = args else { anyhow::bail!("CPUS FILE RANGE...") };
    lab::threads::set_affinity(0, &lab::machine::parse_list(cpus)?)?;
    let file = File::open(file)?;
    let ranges = ranges.iter().map(|range| Ok(range.parse()?)).collect::<Result<Vec<u64>>>()?;
    let weight: f64 = weights(ranges.len()).sum();
    let (mut buffer, mut random) = (vec![0; 16 << 10], 88_172_645_463_325_252_u64);
    loop {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut at = (random >> 11) as f64 / (1u64 << 53) as f64 * weight;
        let chosen = weights(ranges.len()).position(|weight| {
            at -= weight;
            at < 0.0
        });
        let range = chosen.and_then(|chosen| ranges.get(chosen)).or(ranges.last()).context("no range")?;
        let within = random % (RANGE / buffer.len() as u64) * buffer.len() as u64;
        file.read_exact_at(&mut buffer, range * RANGE + within)?;
    }
}

fn weights(n: usize) -> impl Iterator<Item = f64> {
    (1..=n).map(|rank| 1.0 / rank as f64)
}

/// A reader of ranges, killed when dropped.
pub struct Reader {
    _ends: Ends,
}

impl Reader {
    /// Starts one on the first CPU of a node ([`be_reader`]).
    pub fn start(bench: &Bench, node: u32, file: &Path, ranges: impl IntoIterator<Item = u64>) -> Result<Self> {
        let cpu = cpus(&bench.machine, node)?.first().context("a CPU")?.to_string();
        let mut command = testing::myself("range-reader");
        command.arg(cpu).arg(file).args(ranges.into_iter().map(|range| range.to_string()));
        Ok(Self { _ends: Ends(command.stdin(Stdio::null()).spawn()?) })
    }
}

/// The pages of each range of the file on each of three nodes.
fn found(file: &Path) -> Result<Vec<[u64; 3]>> {
    loop {
        let pages = pages::cached(file)?;
        // A page that moves just now is on no node. Each is on one in the next moment.
        if pages.iter().any(|(_, node)| *node < 0) {
            continue;
        }
        let last = pages.iter().map(|(page, _)| page * page_size() as u64 / RANGE).max().unwrap_or(0);
        let mut all = vec![[0u64; 3]; RANGES.max(last + 1) as usize];
        for (page, node) in pages {
            let range = all.get_mut((page * page_size() as u64 / RANGE) as usize).context("a page beyond the file")?;
            *range.get_mut(usize::try_from(node)?).context("an odd node")? += 1;
        }
        return Ok(all);
    }
}

/// Bytes of a file on a node.
fn bytes_on(found: &[[u64; 3]], node: usize) -> u64 {
    found.iter().filter_map(|range| range.get(node)).sum::<u64>() * page_size() as u64
}

pub fn daemon(bench: &Bench, reserve: f64, options: &[&str]) -> Result<Daemon> {
    daemon_with(bench, &format!("reserve_bytes = {reserve:.1}"), &[&["--policy", "promote"], options].concat())
}

fn daemon_with(bench: &Bench, settings: &str, options: &[&str]) -> Result<Daemon> {
    // In an emulated machine all memory is as fast: that a plan has not paid would be chance. And
    // what readers get depends on what else the host does, which the guardrail takes for harm.
    let rails = "[moves]\nrollback = 0\n\n[guardrail]\nwindows = 0";
    let config = bench.config(&format!("[node.{SLOW}]\nfile_data = true\n\n{rails}\n\n[promote]\n{settings}"))?;
    bench.daemon_of(&config, &[], options)
}

fn hot_ranges_go_to_their_readers() -> Outcome {
    served_near("promote")
}

/// After the windows that `auto` has for its own plans. A whole file would be ten times as much.
fn auto_promotes_hot_ranges_and_moves_no_file() -> Outcome {
    served_near("auto")
}

/// Readers on both nodes with CPUs read a tenth of a file that is cached on the node without.
fn served_near(policy: &str) -> Outcome {
    memory_node()?;
    let bench = Bench::new()?;
    let file = bench.dir().join("file");
    cache::put(&file, RANGES * RANGE, SLOW as u32)?;
    let _readers = [0, 1].map(|node| Reader::start(&bench, node, &file, HOT[node as usize]));
    let _readers = _readers.into_iter().collect::<Result<Vec<_>>>()?;
    let mut daemon = daemon_with(&bench, "reserve_bytes = 20000000.0", &["--policy", policy])?;
    // Share of the reads that the readers' own node serves, and of the file that has moved.
    let shares = || -> Result<(f64, f64)> {
        let found = found(&file)?;
        let (mut near, mut all) = (0.0, 0.0);
        for (node, ranges) in HOT.iter().enumerate() {
            for (range, weight) in ranges.iter().zip(weights(ranges.len())) {
                let pages = found.get(*range as usize).context("range")?;
                near += weight * pages[node] as f64 / pages.iter().sum::<u64>().max(1) as f64;
                all += weight;
            }
        }
        let pages: u64 = found.iter().flatten().sum();
        let slow: u64 = found.iter().map(|range| range[SLOW as usize]).sum();
        Ok((near / all, 1.0 - slow as f64 / pages as f64))
    };
    let windows = windows_until(&mut daemon, 60, "promotion of 90 % of the reads", |_| Ok(shares()?.0 >= 0.9))?;
    // What is cold stays also afterwards.
    for _ in 0..5 {
        daemon.window()?;
    }
    let (near, moved) = shares()?;
    let seconds: f64 = windows.iter().map(|window| window.window_s).sum();
    say!("{near:.3} of the reads are near after {seconds:.0} s; {moved:.3} of the file has moved");
    ensure!(near >= 0.9 && moved <= 0.15, "{near} of the reads, {moved} of the file: {:?}", found(&file)?);
    ends(daemon, Signal::INT)
}

/// A GPU's memory is a node without CPUs, too: `warm --interleave` put a third of each file there.
fn memory_that_nobody_names_gets_nothing_unasked() -> Outcome {
    memory_node()?;
    let bench = Bench::new()?;
    let file = bench.dir().join("file");
    cache::put(&file, 8 * RANGE, 0)?;
    for (how, expected) in [("--interleave", 0..=0), ("--interleave=all", RANGE..=4 * RANGE), ("--interleave", 0..=0)] {
        let done = Command::new(homenode()).args(["warm", "--drop-first", how]).arg(&file).output()?;
        ensure!(done.status.code() == Some(0), "{how}: {}", String::from_utf8_lossy(&done.stdout));
        // A third of eight ranges.
        let slow = bytes_on(&found(&file)?, SLOW as usize);
        ensure!(expected.contains(&slow), "{how}: {slow} bytes are there");
    }
    let config = bench.config("[moves]\nrollback = 0")?;
    let nodes = Command::new(homenode()).arg("--config").arg(&config).arg("nodes").output()?;
    let (nodes, error) = (String::from_utf8_lossy(&nodes.stdout), String::from_utf8_lossy(&nodes.stderr));
    ensure!(nodes.contains(&format!("the memory of node {SLOW} is of unknown kind")), "{error}{nodes}");
    // What is hot there stays there.
    cache::put(&file, 8 * RANGE, SLOW as u32)?;
    let _reader = Reader::start(&bench, 0, &file, [1, 2])?;
    let mut daemon = bench.daemon_of(&config, &[], &["--policy", "promote"])?;
    for _ in 0..8 {
        daemon.window()?;
    }
    ensure!(bytes_on(&found(&file)?, SLOW as usize) == 8 * RANGE, "{:?}", found(&file)?);
    ends(daemon, Signal::INT)
}

/// All of the file is hot, and the node of its readers has room for a part of it only.
fn what_does_not_fit_stays() -> Outcome {
    memory_node()?;
    let bench = Bench::new()?;
    let file = bench.dir().join("file");
    cache::put(&file, RANGES * RANGE, SLOW as u32)?;
    let _readers = [0, 1].map(|_| Reader::start(&bench, 0, &file, 0..RANGES));
    let _readers = _readers.into_iter().collect::<Result<Vec<_>>>()?;
    // Room for a quarter of it, as long as nothing else frees memory, or takes some.
    let reserve = free_bytes(0)?.saturating_sub(high_watermark(0)? + RANGES * RANGE / 4);
    let before = reclaimed()?;
    let mut daemon = daemon(&bench, reserve as f64, &[])?;
    // Bytes of each range that are promoted.
    let promoted = || -> Result<Vec<u64>> {
        Ok(found(&file)?.iter().map(|range| (range[0] + range[1]) * page_size() as u64).collect())
    };
    // A copy can take many windows on a slow machine: it is over when no more has come in eight.
    let (mut before_it, mut same) = (0, 0);
    windows_until(&mut daemon, 200, "end of promotion for want of room", |window| {
        let now = promoted()?.iter().sum::<u64>();
        let full = "; nothing that is known there is colder by the margin";
        let said = window.notes.iter().any(|note| note.contains("has no more room") && note.ends_with(full));
        same = if now > 0 && now == before_it && said { same + 1 } else { 0 };
        before_it = now;
        Ok(same == 8)
    })?;
    let (first, free_first) = (promoted()?, free_bytes(0)?);
    for _ in 0..20 {
        daemon.window()?;
    }
    let (last, free_last) = (promoted()?, free_bytes(0)?);
    let (first_bytes, last_bytes) = (first.iter().sum::<u64>(), last.iter().sum::<u64>());
    say!("{first_bytes} of {} bytes were promoted, and {last_bytes} after 20 windows more", RANGES * RANGE);
    ensure!(last_bytes < RANGES * RANGE / 2, "{last_bytes} bytes were promoted");
    let kept = reserve + high_watermark(0)?;
    ensure!(free_last + kept / 20 > kept, "{free_last} bytes are free, {kept} should stay free");
    // What is promoted stays, and no more comes than there is new room, but for what was free for a
    // moment between.
    let back = first.iter().zip(&last).filter(|(first, last)| last < first).count();
    ensure!(back == 0, "{back} ranges came back");
    let new_room = (free_last + last_bytes).saturating_sub(free_first + first_bytes);
    ensure!(last_bytes - first_bytes <= new_room + 2 * RANGE, "{last_bytes} bytes, {new_room} of new room");
    reclaimed_nothing(&before)
}

/// Node 0 is full of what was read once. What is hot takes its place, and the kernel reclaims
/// nothing.
fn colder_cache_makes_room() -> Outcome {
    const OTHERS: u64 = 12 * RANGE;
    memory_node()?;
    let bench = Bench::new()?;
    let hot = bench.dir().join("hot");
    cache::put(&hot, 40 * RANGE, SLOW as u32)?;
    let mut daemon = daemon_with(&bench, &format!("reserve_bytes = {KEPT}.0\nstay_s = 6.0"), &["--policy", "promote"])?;
    daemon.window()?;
    let (cold, size) = fill(&bench, RANGE)?;
    let before = reclaimed()?;
    // The file system has taken some memory for that, too, which is to be free again.
    let lacking = (KEPT + high_watermark(0)?).saturating_sub(free_bytes(0)?);
    say!("{} MiB of cold cache; {lacking} bytes are lacking", size >> 20);
    // A part of it is read once, when somebody counts.
    let known = 48 * RANGE;
    ensure!(size > known, "{size} bytes of cache are too few");
    let read = Command::new("taskset")
        .args(["--cpu-list", &cpus(&bench.machine, 0)?.first().context("a CPU")?.to_string(), "head", "--bytes"])
        .arg(known.to_string())
        .arg(&cold)
        .stdout(Stdio::null())
        .status()?;
    ensure!(read.success(), "head: {read}");
    let wanted: Vec<u64> = (0..40).step_by(4).collect();
    let _reader = Reader::start(&bench, 0, &hot, wanted.iter().copied())?;
    let windows = windows_until(&mut daemon, 120, "promotion into the place of what is cold", |_| {
        Ok(near(&hot, &wanted)? >= 0.9)
    })?;
    // What has left node 0 may not show as free yet, and nothing more goes down for that.
    for _ in 0..8 {
        daemon.window()?;
    }
    let (hot_found, cold_found) = (found(&hot)?, found(&cold)?);
    let (down, up) = (bytes_on(&cold_found, SLOW as usize), bytes_on(&hot_found, 0));
    let (free, kept) = (free_bytes(0)?, KEPT + high_watermark(0)?);
    say!("{} windows; {down} bytes went down, {up} came up, {free} are free, {kept} should stay free", windows.len());
    reclaimed_nothing(&before)?;
    let total = (0..3).map(|node| bytes_on(&cold_found, node)).sum::<u64>();
    ensure!(total == size, "{total} of {size} bytes are cached");
    // What nobody read stays: it is not known to be cold.
    let unknown = cold_found.iter().skip((known / RANGE) as usize).map(|range| range[SLOW as usize]).sum::<u64>();
    ensure!(unknown == 0, "{unknown} pages went down that were never read");
    // As much as came up and was lacking. Others take memory of node 0 meanwhile or give some back:
    // homenode itself, the readers' processes, and what they read of programs.
    ensure!(down + OTHERS >= up && down <= up + lacking + OTHERS, "{down} bytes went down for {up} and {lacking}");
    ensure!(free + kept / 8 > kept, "{free} bytes are free, {kept} should stay free");
    ends(daemon, Signal::INT)
}

/// Readers of a small file are promoted. Then a program reads once through a file that is four
/// times as large as what is free for promotion, all of it on the slow node: nothing of it goes up
/// for that, and nothing that is hot goes down. What is free is small because a file fills node 0.
fn a_scan_moves_nothing() -> Outcome {
    const ROOM: u64 = RANGES * RANGE / 4;
    memory_node()?;
    let bench = Bench::new()?;
    let (hot, scanned) = (bench.dir().join("hot"), bench.dir().join("scanned"));
    cache::put(&hot, 16 * RANGE, SLOW as u32)?;
    cache::put(&scanned, RANGES * RANGE, SLOW as u32)?;
    let mut daemon = daemon(&bench, KEPT as f64, &[])?;
    daemon.window()?;
    fill(&bench, ROOM)?;
    let before = reclaimed()?;
    let wanted = [2, 5, 9, 14];
    let _reader = Reader::start(&bench, 0, &hot, wanted)?;
    windows_until(&mut daemon, 60, "promotion of what is hot", |_| Ok(near(&hot, &wanted)? >= 0.99))?;
    windows_until(&mut daemon, 60, "end of reads from the slow node", |window| Ok(window.remote_bytes < RANGE))?;
    let (hot_before, room) = (found(&hot)?, room()?);
    ensure!(RANGES * RANGE >= 4 * room, "{room} bytes are free: the scan of {} is too short", RANGES * RANGE);
    // So fast that each range is read in one window, or in two where a window ends in it.
    let (file, mut buffer) = (File::open(&scanned)?, vec![0; 64 << 10]);
    let mut read = 0;
    for part in 0..RANGES / 4 {
        for at in (part * 4 * RANGE..(part + 1) * 4 * RANGE).step_by(buffer.len()) {
            file.read_exact_at(&mut buffer, at)?;
        }
        read += daemon.window()?.remote_bytes;
    }
    for _ in 0..8 {
        daemon.window()?;
    }
    let (hot_after, scanned_after) = (found(&hot)?, found(&scanned)?);
    let up = bytes_on(&scanned_after, 0) + bytes_on(&scanned_after, 1);
    say!("homenode counted {read} bytes of the scan, {room} were free; {up} of the scanned file went up");
    // Homenode has seen the scan.
    ensure!(read > RANGES * RANGE / 2, "homenode counted {read} bytes of {}", RANGES * RANGE);
    ensure!(up == 0, "{up} bytes of the scanned file were promoted");
    ensure!(bytes_on(&scanned_after, SLOW as usize) == RANGES * RANGE, "a part of the scanned file is not cached");
    ensure!(hot_before == hot_after, "what is hot has moved: {hot_before:?}, then {hot_after:?}");
    reclaimed_nothing(&before)
}

/// The load goes to other ranges of the file. As long as there is room, what it left stays; then
/// that goes down, the oldest first, for what comes; and then the load goes round. With the
/// settings that users have, but for the reserve, a third of the time until what is not read is
/// cold, and no rollback.
fn what_the_load_left_makes_room_when_it_is_wanted() -> Outcome {
    const STAY_S: u64 = 20;
    const A: std::ops::Range<u64> = 0..8;
    const B: std::ops::Range<u64> = 20..28;
    memory_node()?;
    let bench = Bench::new()?;
    let file = bench.dir().join("file");
    cache::put(&file, RANGES * RANGE, SLOW as u32)?;
    let settings = format!("reserve_bytes = {KEPT}.0\nstay_s = {STAY_S}.0");
    let mut daemon = daemon_with(&bench, &settings, &["--policy", "promote"])?;
    daemon.window()?;
    // Room for A and B, and some more.
    fill(&bench, 24 * RANGE)?;
    let before = reclaimed()?;
    let mut trips = Trips::default();
    // Reads a part of the file until all of it is near.
    let read = |part: std::ops::Range<u64>, trips: &mut Trips, daemon: &mut Daemon| -> Result<Reader> {
        let wanted: Vec<u64> = part.collect();
        let reader = Reader::start(&bench, 0, &file, wanted.iter().copied())?;
        windows_until(daemon, 150, &format!("promotion of {wanted:?}"), |_| {
            trips.look(&file)?;
            Ok(near(&file, &wanted)? >= 0.99)
        })?;
        Ok(reader)
    };
    let is_near = |part: std::ops::Range<u64>| near(&file, &part.collect::<Vec<_>>());
    drop(read(A, &mut trips, &mut daemon)?);
    let of_b = read(B, &mut trips, &mut daemon)?;
    // Nobody has read A for longer than what is cold needs.
    let since = Instant::now();
    while since.elapsed().as_secs() < STAY_S + 5 {
        daemon.window()?;
        trips.look(&file)?;
    }
    ensure!(is_near(A)? >= 0.99, "A went down, and nothing wanted its place: {:?}", found(&file)?);
    drop(of_b);
    // C takes what is free and half of A.
    let free = room()?;
    let c = 40..40 + free / RANGE + 4;
    let of_c = read(c.clone(), &mut trips, &mut daemon)?;
    let (a, b) = (is_near(A)?, is_near(B)?);
    say!("{free} bytes were free for the ranges {c:?}: {a:.2} of A and {b:.2} of B are near now");
    ensure!(a <= 0.7, "{a} of A is near, and C is, too");
    ensure!(b >= 0.99, "B went down, and A was older: {b}");
    drop(of_c);
    // It goes round, faster than anything turns cold.
    for part in [A, B, c.clone(), A, B] {
        let _reader = Reader::start(&bench, 0, &file, part)?;
        let since = Instant::now();
        while since.elapsed().as_secs() < STAY_S / 4 {
            daemon.window()?;
            trips.look(&file)?;
        }
    }
    let most = trips.within(STAY_S);
    say!("{} moves of ranges; of one, {most} within {STAY_S} s at most", trips.all());
    // A, B and C came up, and A went down at least in part.
    ensure!(trips.all() as u64 >= 8 + 8 + (c.end - c.start) + 3, "{} moves: they were not seen", trips.all());
    ensure!(most <= 2, "a range moved {most} times within {STAY_S} s: {trips:?}");
    reclaimed_nothing(&before)
}

/// When each range of a file was seen on another side than before: most of it on DRAM, or not.
#[derive(Debug, Default)]
struct Trips(BTreeMap<usize, (bool, Vec<Instant>)>);

impl Trips {
    fn look(&mut self, file: &Path) -> Result<()> {
        for (number, range) in found(file)?.iter().enumerate() {
            let fast = range[0] + range[1] > range[SLOW as usize];
            let (before, at) = self.0.entry(number).or_insert((fast, Vec::new()));
            if *before != fast {
                *before = fast;
                at.push(Instant::now());
            }
        }
        Ok(())
    }

    fn all(&self) -> usize {
        self.0.values().map(|(_, at)| at.len()).sum()
    }

    /// The most moves of one range within so many seconds.
    fn within(&self, seconds: u64) -> usize {
        let count = |at: &[Instant], first: &Instant| {
            at.iter().filter(|later| *later >= first && later.duration_since(*first).as_secs() < seconds).count()
        };
        self.0.values().filter_map(|(_, at)| at.iter().map(|first| count(at, first)).max()).max().unwrap_or(0)
    }
}

/// Share of the pages of these ranges that are on node 0.
fn near(file: &Path, ranges: &[u64]) -> Result<f64> {
    let found = found(file)?;
    let of = ranges.iter().filter_map(|range| found.get(*range as usize));
    let (near, all) = of.fold((0, 0), |(near, all), range| (near + range[0], all + range.iter().sum::<u64>()));
    Ok(near as f64 / all.max(1) as f64)
}

/// What is to stay free of a node beside the high watermark in tests that [`fill`] it: twice what
/// lists of CPUs hold there.
const KEPT: u64 = 96 << 20;

/// Bytes of node 0 that are free for promotion then.
fn room() -> Result<u64> {
    Ok(free_bytes(0)?.saturating_sub(high_watermark(0)? + KEPT))
}

/// Fills node 0 with a file that nobody reads, so that so much of it is free for promotion; returns
/// the file and its bytes. Comes after the start of homenode, which takes memory, too.
fn fill(bench: &Bench, free: u64) -> Result<(PathBuf, u64)> {
    let size = room()?.checked_sub(free).context("node 0 has too little free memory")? / RANGE * RANGE;
    let file = bench.dir().join("filler");
    cache::put(&file, size, 0)?;
    Ok((file, size))
}

/// Free memory of a node, with the pages that the kernel keeps on lists of each CPU: these are a
/// part of the reserve, and in a small machine they can hold tens of megabytes for minutes.
fn free_bytes(node: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo"))?;
    let line = text.lines().find(|line| line.contains("MemFree:")).context("MemFree")?;
    let kib = line.split_whitespace().rev().nth(1).context("a size")?.parse::<u64>()?;
    let text = fs::read_to_string("/proc/zoneinfo")?;
    let zones = text.split("Node ").filter(|zone| zone.starts_with(&format!("{node},")));
    let on_lists = zones.flat_map(str::lines).filter_map(|line| line.trim().strip_prefix("count:"));
    let on_lists = on_lists.map(|pages| -> Result<u64> { Ok(pages.trim().parse()?) }).sum::<Result<u64>>()?;
    Ok(kib * 1024 + on_lists * page_size() as u64)
}

/// What the kernel wants to be free of a node.
fn high_watermark(node: u32) -> Result<u64> {
    let text = fs::read_to_string("/proc/zoneinfo")?;
    let zones = text.split("Node ").filter(|zone| zone.starts_with(&format!("{node},")));
    let high = |zone: &str| zone.lines().find_map(|line| line.trim().strip_prefix("high "))?.trim().parse::<u64>().ok();
    Ok(zones.filter_map(high).sum::<u64>() * page_size() as u64)
}

fn reclaimed_nothing(before: &[String]) -> Outcome {
    let after = reclaimed()?;
    ensure!(before == after, "the kernel reclaimed: {before:?}, then {after:?}");
    Ok(())
}

/// What the kernel has reclaimed since boot.
fn reclaimed() -> Result<Vec<String>> {
    let text = fs::read_to_string("/proc/vmstat")?;
    let counts = ["pgscan_kswapd ", "pgscan_direct ", "pswpout ", "workingset_refault_file "];
    Ok(text.lines().filter(|line| counts.iter().any(|name| line.starts_with(name))).map(str::to_owned).collect())
}
