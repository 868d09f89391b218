//! All steps, one after the other, within their time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use topology::measured::{Cached, Measured, Pair, Point, VERSION};
use topology::{MemoryKind, Node, NodeId, Topology, sysfs};

use crate::MeasureError;
use crate::buffer::Buffer;
use crate::cached;
use crate::kernels::WRITES;
use crate::load::{self, Memory, Mix, Step};
use crate::quiet::{self, Allowed, LOOK, Refusal, Used};

/// Shares of the highest bandwidth at which the latency is measured.
const SHARES: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];

/// Steps of a load: at full speed with every CPU, at shares of that, and as fast as the other CPUs
/// can.
const OF_A_LOAD: usize = SHARES.len() + 2;

/// Steps of a pair.
const STEPS: usize = 1 + Mix::ALL.len() * OF_A_LOAD + cached::SIZES.len();

/// A step must last long enough for the clock, and for a thread to have run.
const SHORTEST: Duration = Duration::from_millis(20);

/// The steps' share of the time that taking memory leaves: threads start and end, too.
const STEPS_SHARE: f64 = 0.85;

/// Smallest buffer in bytes.
const LEAST: u64 = 16 << 20;

/// Largest buffer in bytes: taking more would take long.
pub const MOST_BYTES: u64 = 4 << 30;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Longest time for everything.
    pub limit: Duration,
    /// Time of a step; else what the limit leaves.
    pub step: Option<Duration>,
    /// Most bytes of a buffer.
    pub most_bytes: u64,
    /// Measure although others use the machine, or it runs on its battery.
    pub force: bool,
    /// A sysfs mount.
    pub sys: PathBuf,
    pub proc: PathBuf,
}

#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub done: usize,
    pub all: usize,
    pub cpu_node: NodeId,
    pub memory_node: NodeId,
}

/// Measures each pair of a node with CPUs and a node with memory.
///
/// # Errors
///
/// [`MeasureError`]: refused, stopped, out of time, or a call has failed.
pub fn measure(
    topology: &Topology,
    settings: &Settings,
    tell: &mut dyn FnMut(Progress),
    stop: &dyn Fn() -> bool,
) -> Result<Measured, MeasureError> {
    let begin = Instant::now();
    let allowed = Allowed::of_self(&settings.proc);
    let mut notes = may(topology, settings, &allowed)?;
    let seats: Vec<(NodeId, Vec<u32>)> =
        topology.nodes.iter().map(|n| (n.id, allowed.of(&n.cpus))).filter(|(_, cpus)| !cpus.is_empty()).collect();
    let homes: Vec<&Node> = topology.nodes.iter().filter(|n| n.memory != MemoryKind::None).collect();
    let pairs = seats.len() * homes.len();
    let steps = pairs * STEPS;
    let needed = SHORTEST.mul_f64(steps as f64 / STEPS_SHARE);
    if settings.step.is_none() && settings.limit < needed {
        return Err(MeasureError::TooShort { pairs, needed });
    }
    let cache_bytes = topology.nodes.iter().map(|n| linux::processor::cache_bytes(&settings.sys, n)).max().unwrap_or(0);
    let buffer_bytes = buffer_bytes(topology, settings, cache_bytes);
    if buffer_bytes < 2 * cache_bytes {
        notes.push(format!(
            "memory is too short for more than {} MiB, and the caches of a node have {} MiB: part of the accesses were \
             served by them",
            buffer_bytes >> 20,
            cache_bytes >> 20
        ));
    }
    let length = settings.step.unwrap_or_default();
    let mut run = Run { settings, begin, length, stop, tell, turn: 0, steps, pairs, done: Vec::new() };
    let nodes = homes.len() as u32;
    for home in homes {
        let taking = Instant::now();
        let node = home.id;
        let what = |what: &str| format!("cannot {what} on node {node}");
        let read = Buffer::on(node, buffer_bytes).map_err(MeasureError::failed(what("take memory")))?;
        let mut write = Buffer::on(node, buffer_bytes).map_err(MeasureError::failed(what("take memory")))?;
        let file = cached::file(node, buffer_bytes).map_err(MeasureError::failed(what("cache a file")))?;
        if settings.step.is_none() && run.turn == 0 {
            // The other nodes' memory will take as long.
            let left = settings.limit.saturating_sub(begin.elapsed() + taking.elapsed() * (nodes - 1));
            run.length = left.mul_f64(STEPS_SHARE) / u32::try_from(steps).unwrap_or(u32::MAX).max(1);
            if run.length < SHORTEST {
                return Err(MeasureError::TooShort { pairs, needed: needed + settings.limit.saturating_sub(left) });
            }
        }
        for (seat, cpus) in &seats {
            let mut memory = Memory { read: read.words(), write: write.words_mut() };
            let pair = run.pair((*seat, cpus), node, &mut memory, &file)?;
            run.done.push(pair);
        }
    }
    let mut done = run.done;
    done.sort_by_key(|pair| (pair.cpu_node, pair.memory_node));
    let hypervisor = linux::processor::hypervisor(&settings.proc, &settings.sys);
    let emulated = hypervisor.as_deref() == Some("tcg");
    if emulated {
        notes.push("this processor is emulated (tcg): its times are those of the emulation".to_owned());
    } else if let Some(hypervisor) = &hypervisor {
        notes.push(format!("a virtual machine ({hypervisor}): others on the same processor are not seen"));
    }
    let mut machine = topology.clone();
    for node in &mut machine.nodes {
        (node.read_bw_max, node.write_bw_max) = (None, None);
    }
    Ok(Measured {
        version: VERSION,
        homenode: env!("CARGO_PKG_VERSION").to_owned(),
        unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        took_s: begin.elapsed().as_secs_f64(),
        processor: linux::processor::name(&settings.proc),
        hypervisor,
        emulated,
        topology: machine,
        buffer_bytes,
        cache_bytes,
        writes: WRITES,
        pairs: done,
        notes,
    })
}

/// Whether to measure here and now, with what limits the figures.
fn may(topology: &Topology, settings: &Settings, allowed: &Allowed) -> Result<Vec<String>, MeasureError> {
    let hidden = allowed.hidden(topology);
    if !hidden.is_empty() {
        return Err(MeasureError::Refused(Refusal::Hidden(hidden)));
    }
    if let Some(why) = quiet::short_of_memory(&settings.proc) {
        return Err(MeasureError::Refused(Refusal::Memory(why)));
    }
    let battery = quiet::on_battery(&settings.sys).then_some(Refusal::Battery);
    let refusal = battery.or_else(|| quiet::waited_for_cpus(&settings.proc).map(Refusal::Busy)).or_else(|| {
        let before = Used::now(&settings.proc)?;
        thread::sleep(LOOK);
        quiet::busy(Used::now(&settings.proc)?.by_others(&before), topology.cpus().len())
    });
    let mut notes = Vec::new();
    match refusal {
        Some(refusal) if !(settings.force && refusal.can_be_forced()) => return Err(MeasureError::Refused(refusal)),
        Some(refusal) => notes.push(format!("measured all the same: {refusal}")),
        None => {}
    }
    let left_out = topology.cpus().len() - allowed.of(&topology.cpus()).len();
    if left_out > 0 {
        notes.push(format!("{left_out} CPUs are out of this process's reach, and were not used"));
    }
    Ok(notes)
}

/// Four times the caches, if there is memory for it: two buffers and a file take three eighths of
/// what is free, or somewhat more at the cost of file pages that nobody has used for long.
fn buffer_bytes(topology: &Topology, settings: &Settings, cache_bytes: u64) -> u64 {
    let free = sysfs::free_memory(&settings.sys, topology);
    let most = |node: &Node| {
        let free = free.get(&node.id).copied().unwrap_or(node.memory_bytes);
        let unused = linux::memory::room(&settings.sys, node.id).map_or(0, |room| room.unused);
        (free / 8).max((free + unused) / 16)
    };
    let homes = topology.nodes.iter().filter(|n| n.memory != MemoryKind::None);
    let most = homes.map(most).min().unwrap_or(0).min(settings.most_bytes).max(LEAST);
    let bytes = (4 * cache_bytes).max(4 * LEAST).min(most);
    // Whole huge pages.
    (bytes >> 21 << 21).max(LEAST)
}

struct Run<'a> {
    settings: &'a Settings,
    begin: Instant,
    length: Duration,
    stop: &'a dyn Fn() -> bool,
    tell: &'a mut dyn FnMut(Progress),
    turn: u64,
    steps: usize,
    pairs: usize,
    done: Vec<Pair>,
}

impl Run<'_> {
    fn pair(
        &mut self,
        (seat, cpus): (NodeId, &[u32]),
        node: NodeId,
        memory: &mut Memory<'_>,
        file: &File,
    ) -> Result<Pair, MeasureError> {
        let before = Used::now(&self.settings.proc);
        let what = format!("cannot measure with CPUs of node {seat}");
        let first = cpus.first().copied().unwrap_or(0);
        self.next(seat, node)?;
        let alone =
            Step { mix: Mix::Reads, cpus: &[], latency: Some(first), rate: None, length: self.length, turn: self.turn };
        let found = load::run(&alone, memory).map_err(MeasureError::failed(what.clone()))?;
        let mut curves = Vec::new();
        for mix in Mix::ALL {
            curves.push(self.curve((seat, cpus), node, mix, memory)?);
        }
        let mut calls: Vec<Cached> = Vec::new();
        for bytes in cached::SIZES {
            self.next(seat, node)?;
            calls.push(cached::run(file, first, bytes, self.length).map_err(MeasureError::failed(what.clone()))?);
        }
        let after = Used::now(&self.settings.proc);
        let others = before.zip(after).map_or(0.0, |(before, after)| after.by_others(&before));
        if let Some(busy) = quiet::busy(others, cpus_of(&self.settings.sys, cpus)).filter(|_| !self.settings.force) {
            return Err(MeasureError::Refused(busy));
        }
        let mut curves = curves.into_iter();
        let mut next = || curves.next().unwrap_or_default();
        Ok(Pair {
            cpu_node: seat,
            memory_node: node,
            latency_s: found.latency_s.unwrap_or_default(),
            reads: next(),
            writes: next(),
            reads_2_writes_1: next(),
            cached: calls,
            others_cpus: others,
        })
    }

    /// Latency over bandwidth, by rising bandwidth as asked for; last, every CPU at full speed.
    fn curve(
        &mut self,
        (seat, cpus): (NodeId, &[u32]),
        node: NodeId,
        mix: Mix,
        memory: &mut Memory<'_>,
    ) -> Result<Vec<Point>, MeasureError> {
        let mut step = |run: &mut Self, cpus: &[u32], latency: Option<u32>, rate: Option<f64>| {
            run.next(seat, node)?;
            let step = Step { mix, cpus, latency, rate, length: run.length, turn: run.turn };
            let what = format!("cannot measure with CPUs of node {seat}");
            let found = load::run(&step, memory).map_err(MeasureError::failed(what))?;
            let threads = cpus.len() as u32;
            Ok::<_, MeasureError>(Point { threads, bytes_per_s: found.bytes_per_s, latency_s: found.latency_s })
        };
        let most = step(self, cpus, None, None)?;
        let mut points = Vec::new();
        if let Some((first, others)) = cpus.split_first().filter(|(_, others)| !others.is_empty()) {
            for share in SHARES {
                points.push(step(self, others, Some(*first), Some(share * most.bytes_per_s))?);
            }
            points.push(step(self, others, Some(*first), None)?);
        }
        points.push(most);
        Ok(points)
    }

    /// Before a step: whether there is one.
    fn next(&mut self, cpu_node: NodeId, memory_node: NodeId) -> Result<(), MeasureError> {
        if (self.stop)() {
            return Err(MeasureError::Stopped);
        }
        if self.begin.elapsed() + self.length > self.settings.limit {
            return Err(MeasureError::TimeOver { done: self.done.len(), pairs: self.pairs });
        }
        if let Some(why) = quiet::short_of_memory(&self.settings.proc) {
            return Err(MeasureError::Refused(Refusal::Memory(why)));
        }
        (self.tell)(Progress { done: self.turn as usize, all: self.steps, cpu_node, memory_node });
        self.turn += 1;
        Ok(())
    }
}

/// CPUs of the machine, or at least these.
fn cpus_of(sys_root: &Path, cpus: &[u32]) -> usize {
    sysfs::read(sys_root).map_or(cpus.len(), |topology| topology.cpus().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(limit: Duration, step: Option<Duration>) -> Settings {
        Settings { limit, step, most_bytes: LEAST, force: true, sys: "/sys".into(), proc: "/proc".into() }
    }

    #[test]
    fn the_pairs_of_this_machine() {
        let topology = sysfs::read(Path::new("/sys")).unwrap();
        let mut told = 0;
        let settings = settings(Duration::from_secs(600), Some(Duration::from_millis(3)));
        let measured = match measure(&topology, &settings, &mut |_| told += 1, &|| false) {
            // Not for this test to judge.
            Err(MeasureError::Refused(refusal)) => return println!("skipped: {refusal}"),
            measured => measured.unwrap(),
        };
        let homes = topology.nodes.iter().filter(|n| n.memory != MemoryKind::None).count();
        let seats = topology.nodes.iter().filter(|n| !n.cpus.is_empty()).count();
        assert_eq!(measured.pairs.len(), homes * seats);
        assert_eq!(told % measured.pairs.len(), 0);
        // Text and back, with its checks: every figure is positive and finite.
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(Measured::from_json(&text).unwrap(), measured);
        for pair in &measured.pairs {
            assert_eq!(pair.cached.iter().map(|c| c.bytes).collect::<Vec<_>>(), cached::SIZES);
            let last = pair.reads.last().unwrap();
            assert!(last.latency_s.is_none() && last.threads >= 1);
        }
        assert_eq!(measured.why_not(&topology, linux::processor::name(Path::new("/proc")).as_deref()), None);
    }

    #[test]
    fn a_stop_and_too_short_a_time_end_it() {
        let topology = sysfs::read(Path::new("/sys")).unwrap();
        let error = measure(&topology, &settings(Duration::from_millis(10), None), &mut |_| {}, &|| false).unwrap_err();
        assert!(matches!(error, MeasureError::TooShort { .. } | MeasureError::Refused(_)), "{error}");
        let error = measure(&topology, &settings(Duration::from_secs(60), None), &mut |_| {}, &|| true).unwrap_err();
        assert!(matches!(error, MeasureError::Stopped | MeasureError::Refused(_)), "{error}");
    }
}
