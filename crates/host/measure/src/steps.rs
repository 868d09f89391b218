//! All steps, one after the other, within their time.

use std::fs::File;
use std::path::PathBuf;
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

/// How often each pair is measured, where the time allows steps of [`REPEATED`].
const ROUNDS: u32 = 3;

/// Least length of steps that are repeated.
const REPEATED: Duration = Duration::from_millis(40);

/// A step must last long enough for the clock, and for a thread to have run.
const SHORTEST: Duration = Duration::from_millis(20);

/// The steps' share of the time that taking memory leaves: threads start and end, too.
const STEPS_SHARE: f64 = 0.85;

/// Longest step of a careful caller on a busy machine, all its rounds together.
const CAREFUL: Duration = Duration::from_millis(600);

/// The limit's share for taking memory.
const TAKING_SHARE: f64 = 1.0 / 3.0;

/// Bytes that are taken first, to see how long that takes.
const FIRST: u64 = 64 << 20;

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
    pub most_bytes: u64,
    /// Measure although the machine runs on its battery.
    pub force: bool,
    /// While others use the machine, only time cached reads, by one thread: loads would slow others
    /// down. The figures then lack latencies and curves.
    pub careful: bool,
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
    let (busy, mut notes) = may(topology, settings, &allowed)?;
    let seats: Vec<(NodeId, Vec<u32>)> =
        topology.nodes.iter().map(|n| (n.id, allowed.of(&n.cpus))).filter(|(_, cpus)| !cpus.is_empty()).collect();
    let homes: Vec<&Node> = topology.nodes.iter().filter(|n| n.memory != MemoryKind::None).collect();
    let pairs = seats.len() * homes.len();
    let reads_only = settings.careful && busy.is_some();
    let steps = pairs * if reads_only { cached::SIZES.len() } else { STEPS };
    let needed = SHORTEST.mul_f64(steps as f64 / STEPS_SHARE);
    if settings.step.is_none() && settings.limit < needed {
        return Err(MeasureError::TooShort { pairs, needed });
    }
    let cache_bytes = topology.nodes.iter().map(|n| linux::processor::cache_bytes(&settings.sys, n)).max().unwrap_or(0);
    let go_on = |done: usize| {
        if stop() {
            return Err(MeasureError::Stopped);
        }
        let over = begin.elapsed() > settings.limit;
        if over { Err(MeasureError::TimeOver { done, pairs }) } else { Ok(()) }
    };
    let mut buffer_bytes = buffer_bytes(topology, settings, cache_bytes);
    if let Some(home) = homes.first() {
        let (first, taking) = (buffer_bytes.min(FIRST), Instant::now());
        drop(Buffer::on(home.id, first, &|| go_on(0))?);
        // Two buffers and a file on each.
        let each_s = settings.limit.as_secs_f64() * TAKING_SHARE / (3 * homes.len()) as f64;
        let most = first as f64 / taking.elapsed().as_secs_f64() * each_s;
        buffer_bytes = whole_pages(buffer_bytes.min(most as u64));
    }
    if buffer_bytes < 2 * cache_bytes {
        notes.push(format!(
            "there is no memory, or no time, for more than {} MiB, and the caches of a node have {} MiB: part of the \
             accesses were served by them",
            buffer_bytes >> 20,
            cache_bytes >> 20
        ));
    }
    let length = settings.step.unwrap_or_default();
    let cpus = topology.cpus().len();
    let mut run = Run {
        settings,
        begin,
        length,
        rounds: 1,
        reads_only,
        cpus,
        stop,
        tell,
        turn: 0,
        steps,
        pairs,
        done: Vec::new(),
    };
    let nodes = homes.len() as u32;
    let mut over = None;
    'all: for home in homes {
        let taking = Instant::now();
        let node = home.id;
        let go_on = || go_on(run.done.len());
        // Small ones where they are not used.
        let bytes = if run.reads_only { LEAST } else { buffer_bytes };
        let taken = || {
            let (read, write) = (Buffer::on(node, bytes, &go_on)?, Buffer::on(node, bytes, &go_on)?);
            Ok((read, write, cached::file(node, buffer_bytes, &go_on)?))
        };
        let (read, mut write, file) = match taken() {
            // What there is counts.
            Err(error @ MeasureError::TimeOver { done: 1.., .. }) => {
                over = Some(error);
                break;
            }
            taken => taken?,
        };
        if settings.step.is_none() && run.turn == 0 {
            // The other nodes' memory will take as long.
            let taken = begin.elapsed() + taking.elapsed() * (nodes - 1);
            let left = settings.limit.saturating_sub(taken);
            run.length = left.mul_f64(STEPS_SHARE) / u32::try_from(steps).unwrap_or(u32::MAX).max(1);
            if run.length < SHORTEST {
                return Err(MeasureError::TooShort { pairs, needed: taken + needed });
            }
            if run.reads_only {
                run.length = run.length.min(CAREFUL);
            }
            if run.length >= ROUNDS * REPEATED {
                (run.rounds, run.length, run.steps) = (ROUNDS, run.length / ROUNDS, steps * ROUNDS as usize);
            }
        }
        for (seat, cpus) in &seats {
            let mut memory = Memory { read: read.words(), write: write.words_mut() };
            match run.pair((*seat, cpus), node, &mut memory, &file) {
                Err(error @ MeasureError::TimeOver { done: 1.., .. }) => {
                    over = Some(error);
                    break 'all;
                }
                pair => run.done.push(pair?),
            }
        }
    }
    let mut done = run.done;
    // Memory that some nodes' CPUs have not tried could count as slower than it is.
    if over.is_some() {
        done.truncate(done.len() - done.len() % seats.len().max(1));
    }
    if let Some(error) = over.take_if(|_| done.is_empty()) {
        return Err(error);
    }
    let others = done.iter().map(|pair| pair.others_cpus).fold(0.0, f64::max);
    let busy = over.map(|over| over.to_string()).or(busy).or_else(|| quiet::busy(others, cpus));
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
        busy,
        notes,
    })
}

/// Whether to measure here and now: who uses the machine, and what else limits the figures.
fn may(
    topology: &Topology,
    settings: &Settings,
    allowed: &Allowed,
) -> Result<(Option<String>, Vec<String>), MeasureError> {
    let hidden = allowed.hidden(topology);
    if !hidden.is_empty() {
        return Err(MeasureError::Refused(Refusal::Hidden(hidden)));
    }
    if let Some(why) = quiet::short_of_memory(&settings.proc) {
        return Err(MeasureError::Refused(Refusal::Memory(why)));
    }
    let mut notes = Vec::new();
    if quiet::on_battery(&settings.sys) {
        if !settings.force {
            return Err(MeasureError::Refused(Refusal::Battery));
        }
        notes.push(format!("measured all the same: {}", Refusal::Battery));
    }
    let busy = quiet::waited_for_cpus(&settings.proc).or_else(|| {
        let before = Used::now(&settings.proc)?;
        thread::sleep(LOOK);
        quiet::busy(Used::now(&settings.proc)?.by_others(&before), topology.cpus().len())
    });
    let left_out = topology.cpus().len() - allowed.of(&topology.cpus()).len();
    if left_out > 0 {
        notes.push(format!("{left_out} CPUs are out of this process's reach, and were not used"));
    }
    Ok((busy, notes))
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
    whole_pages(bytes)
}

/// Whole huge pages, and no less than [`LEAST`].
fn whole_pages(bytes: u64) -> u64 {
    (bytes >> 21 << 21).max(LEAST)
}

struct Run<'a> {
    settings: &'a Settings,
    begin: Instant,
    length: Duration,
    rounds: u32,
    reads_only: bool,
    /// CPUs of the machine.
    cpus: usize,
    stop: &'a dyn Fn() -> bool,
    tell: &'a mut dyn FnMut(Progress),
    turn: u64,
    steps: usize,
    pairs: usize,
    done: Vec<Pair>,
}

impl Run<'_> {
    /// The best of some rounds, and how far they lie apart.
    fn pair(
        &mut self,
        seat: (NodeId, &[u32]),
        node: NodeId,
        memory: &mut Memory<'_>,
        file: &File,
    ) -> Result<Pair, MeasureError> {
        let mut best = self.once(seat, node, memory, file)?;
        let (mut low, mut high) = (figures(&best), figures(&best));
        let mut again = false;
        for _ in 1..self.rounds {
            let next = match self.once(seat, node, memory, file) {
                // Others had the CPUs: what there is counts.
                Err(MeasureError::TimeOver { .. }) => break,
                next => next?,
            };
            for ((low, high), figure) in low.iter_mut().zip(&mut high).zip(figures(&next)) {
                (*low, *high) = (low.min(figure), high.max(figure));
            }
            (best, again) = (best_of(best, next), true);
        }
        let apart = low.iter().zip(&high).map(|(low, high)| high / low - 1.0);
        best.spread = again.then(|| apart.fold(0.0, f64::max));
        Ok(best)
    }

    fn once(
        &mut self,
        (seat, cpus): (NodeId, &[u32]),
        node: NodeId,
        memory: &mut Memory<'_>,
        file: &File,
    ) -> Result<Pair, MeasureError> {
        let before = Used::now(&self.settings.proc);
        let what = format!("cannot measure with CPUs of node {seat}");
        let first = cpus.first().copied().unwrap_or(0);
        let (mut latency_s, mut curves) = (0.0, Vec::new());
        if !self.reads_only {
            self.next(seat, node)?;
            let (length, turn) = (self.length, self.turn);
            let alone = Step { mix: Mix::Reads, cpus: &[], latency: Some(first), rate: None, length, turn };
            let found = load::run(&alone, memory).map_err(MeasureError::failed(what.clone()))?;
            latency_s = found.latency_s.unwrap_or_default();
            for mix in Mix::ALL {
                curves.push(self.curve((seat, cpus), node, mix, memory)?);
            }
        }
        let mut calls: Vec<Cached> = Vec::new();
        for bytes in cached::SIZES {
            self.next(seat, node)?;
            calls.push(cached::run(file, first, bytes, self.length).map_err(MeasureError::failed(what.clone()))?);
        }
        let after = Used::now(&self.settings.proc);
        let others_cpus = before.zip(after).map_or(0.0, |(before, after)| after.by_others(&before));
        self.reads_only |= self.settings.careful && quiet::busy(others_cpus, self.cpus).is_some();
        let mut curves = curves.into_iter();
        let mut next = || curves.next().unwrap_or_default();
        Ok(Pair {
            cpu_node: seat,
            memory_node: node,
            latency_s,
            reads: next(),
            writes: next(),
            reads_2_writes_1: next(),
            cached: calls,
            others_cpus,
            spread: None,
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

/// Highest bandwidth of a curve, bytes/s.
fn most(points: &[Point]) -> f64 {
    points.iter().map(|point| point.bytes_per_s).fold(0.0, f64::max)
}

/// What rounds are compared by; what was not measured is no number, and no least or largest one.
fn figures(pair: &Pair) -> Vec<f64> {
    let bandwidths = [&pair.reads, &pair.writes, &pair.reads_2_writes_1].map(|points| most(points));
    let calls = pair.cached.iter().map(|cached| cached.call_s);
    let all = [pair.latency_s].into_iter().chain(bandwidths).chain(calls);
    all.map(|figure| if figure > 0.0 { figure } else { f64::NAN }).collect()
}

/// The best figures of two rounds: others can only make memory slower. The busier round counts.
fn best_of(a: Pair, b: Pair) -> Pair {
    let faster = |a: Vec<Point>, b: Vec<Point>| if most(&b) > most(&a) { b } else { a };
    let cached = a.cached.iter().zip(&b.cached).map(|(a, b)| Cached { call_s: a.call_s.min(b.call_s), ..*a });
    Pair {
        latency_s: if b.reads.is_empty() { a.latency_s } else { a.latency_s.min(b.latency_s) },
        cached: cached.collect(),
        reads: faster(a.reads, b.reads),
        writes: faster(a.writes, b.writes),
        reads_2_writes_1: faster(a.reads_2_writes_1, b.reads_2_writes_1),
        others_cpus: a.others_cpus.max(b.others_cpus),
        ..a
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn settings(limit: Duration, step: Option<Duration>) -> Settings {
        Settings {
            limit,
            step,
            most_bytes: LEAST,
            force: true,
            careful: false,
            sys: "/sys".into(),
            proc: "/proc".into(),
        }
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
    fn the_best_of_rounds_counts_and_what_a_busy_round_lacks_is_kept() {
        let point = |bytes_per_s| vec![Point { threads: 1, bytes_per_s, latency_s: None }];
        let pair = |latency_s, read, write, call_s, others_cpus| Pair {
            cpu_node: NodeId(0),
            memory_node: NodeId(1),
            latency_s,
            reads: point(read),
            writes: point(write),
            reads_2_writes_1: Vec::new(),
            cached: vec![Cached { bytes: 4096, call_s }],
            others_cpus,
            spread: None,
        };
        let quiet = pair(1e-7, 8e9, 3e9, 3e-6, 0.1);
        let best = best_of(quiet.clone(), pair(2e-7, 9e9, 2e9, 2e-6, 0.5));
        assert_eq!((best.latency_s, &best.reads, &best.writes), (1e-7, &point(9e9), &point(3e9)));
        assert_eq!((best.cached[0].call_s, best.others_cpus), (2e-6, 0.5));
        let careful = Pair { latency_s: 0.0, reads: Vec::new(), writes: Vec::new(), ..pair(0.0, 0.0, 0.0, 4e-6, 2.0) };
        assert_eq!(best_of(quiet.clone(), careful.clone()), Pair { others_cpus: 2.0, ..quiet.clone() });
        let (whole, part) = (figures(&quiet), figures(&careful));
        assert_eq!((whole.len(), part.iter().filter(|figure| figure.is_nan()).count()), (part.len(), 4));
    }

    /// Others do not keep somebody who asks from figures; they are beside them.
    #[test]
    fn on_a_busy_machine_a_careful_caller_gets_cached_reads() {
        let topology = sysfs::read(Path::new("/sys")).unwrap();
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("pressure")).unwrap();
        std::fs::write(proc.path().join("pressure/cpu"), "some avg10=50.00 avg60=0.00 avg300=0.00 total=0\n").unwrap();
        let most = |careful, step| Settings {
            careful,
            proc: proc.path().to_owned(),
            ..settings(Duration::from_secs(600), Some(Duration::from_millis(step)))
        };
        let mut told = 0;
        let measured = measure(&topology, &most(true, 3), &mut |_| told += 1, &|| false).unwrap();
        assert!(measured.busy.as_ref().unwrap().contains("50 % of the last 10 s"), "{:?}", measured.busy);
        assert_eq!(told, measured.pairs.len() * cached::SIZES.len());
        let pair = &measured.pairs[0];
        assert!(pair.reads.is_empty() && pair.cached.iter().all(|cached| cached.call_s > 0.0), "{pair:?}");
        // Its steps are fewer, and fit into less time.
        let short = Settings { limit: Duration::from_millis(10), step: None, ..most(true, 3) };
        match measure(&topology, &short, &mut |_| (), &|| false) {
            Err(MeasureError::TooShort { pairs, needed }) => {
                assert!(needed < 3 * SHORTEST * pairs as u32, "{needed:?}")
            }
            other => panic!("{other:?}"),
        }
        let whole = measure(&topology, &most(false, 3), &mut |_| (), &|| false).unwrap();
        assert!(whole.busy.is_some() && !whole.pairs[0].reads.is_empty());
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
