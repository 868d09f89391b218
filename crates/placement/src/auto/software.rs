//! Separates a thread's own time from the time of memory, controllers and locks.
//!
//! **Problem.** CPU time per byte includes waiting for memory, and sleep includes waiting for a
//! lock. Both change with the place.
//!
//! **Approach.** The waiting follows from the observed rates, by the equations of
//! [`network`](super::network) solved backwards. Memory time follows from the constants, corrected
//! per process if its threads reveal the cost of distance. A lock follows from the sleep of threads
//! that share data. Software is the rest.
//!
//! **Limits.** Behind a full controller, the observations do not show how much of the time is
//! waiting.

use rustc_hash::FxHashMap;

use super::Settings;
use super::demand::{Demand, Demands, Program};
use super::hardware::Hardware;
use super::network::{Visit, Visits};
use crate::Snapshot;

/// Threads that share data and sleep this share of the time are assumed to wait for a lock.
const BLOCKED: f64 = 0.1;
/// The least share of CPU time per byte that is software.
const LEAST_SOFTWARE: f64 = 0.02;
/// Bounds of the correction that a process's threads can make to the memory constants.
const LEAST_MEMORY: f64 = 0.05;
const MOST_MEMORY: f64 = 5.0;
/// A cost of distance that no distance explains, relative to the constants: a port is full.
const FULL_PORT: f64 = 3.0;
/// The differences of threads' distances must make up this share of the time per byte to reveal the
/// cost of distance.
const SPREAD: f64 = 0.05;
/// The highest assumed utilisation of a controller when waiting is derived.
const BUSIEST: f64 = 0.97;
/// The apparent utilisation of a full controller, within the accuracy of the constants.
const FULL: std::ops::Range<f64> = 0.85..1.3;
/// The utilisation assumed for a full controller.
const FULLEST: f64 = 0.999;
/// How many times queues and writers are derived from each other.
const ROUNDS: usize = 4;

impl Demands {
    /// `soft_s` holds all CPU time per byte so far: subtracts the waits at controllers, then
    /// memory.
    pub fn tell_memory_from_software(&mut self, hardware: &Hardware, snapshot: &Snapshot, settings: &Settings) {
        let visits: Vec<Visits> = self.threads.iter().map(|d| self.visits(hardware, d)).collect();
        let queues = self.queues(hardware, &visits);
        let see = |(d, visits): (&Demand, &Visits)| self.seen(hardware, settings, &queues, d, visits);
        let seen: Vec<Seen> = self.threads.iter().zip(&visits).map(see).collect();
        // The cost of distance, if threads of a process that do the same are at different
        // distances. A least-squares fit of y = own × software + distance × far, where each such
        // set of threads has its own software.
        let mut alike: FxHashMap<(usize, &str, u32), Vec<usize>> = FxHashMap::default();
        for (i, d) in self.threads.iter().enumerate() {
            let reads: f64 = d.private.iter().map(|s| s.1).sum::<f64>() + d.shared.iter().map(|s| s.1).sum::<f64>();
            let key = (d.process, snapshot.threads[d.thread].comm.as_str(), (8.0 * reads).round() as u32);
            if !d.shares || d.off_s * d.rate <= BLOCKED {
                alike.entry(key).or_default().push(i);
            }
        }
        let mut sums = vec![(0.0, 0.0); self.programs.len()];
        for ((process, _, _), members) in alike {
            let spread = |f: &dyn Fn(&Seen) -> f64| {
                let of = |i: &usize| f(&seen[*i]);
                members.iter().map(of).fold(0.0, f64::max) - members.iter().map(of).fold(f64::INFINITY, f64::min)
            };
            // Includes waiting: behind a full queue, distance does not show.
            let on = members.iter().map(|i| self.threads[*i].soft_s).sum::<f64>() / members.len() as f64;
            if members.len() < 2 || spread(&|s| s.far) < SPREAD * on {
                continue;
            }
            let (mut oo, mut of, mut ff, mut oy, mut fy) = (0.0, 0.0, 0.0, 0.0, 0.0);
            for s in members.iter().map(|i| &seen[*i]) {
                let y = s.on - (s.memory - s.far);
                (oo, of, ff) = (oo + s.own * s.own, of + s.own * s.far, ff + s.far * s.far);
                (oy, fy) = (oy + s.own * y, fy + s.far * y);
            }
            sums[process].0 += fy - of * oy / oo;
            sums[process].1 += ff - of * of / oo;
        }
        for (program, (xy, xx)) in self.programs.iter_mut().zip(sums) {
            if xx > 0.0 {
                self.port_full |= xy / xx > FULL_PORT;
                let now = (xy / xx).clamp(LEAST_MEMORY, MOST_MEMORY);
                program.measured = Some(program.measured.map_or(now, |before| (before * now).sqrt()));
            }
        }
        for (d, s) in self.threads.iter_mut().zip(&seen) {
            d.distance = self.programs[d.process].measured.unwrap_or(1.0);
            // Memory cannot take longer than the total.
            let memory = s.memory - s.far + d.distance * s.far;
            if memory > 0.0 {
                d.memory = f64::min(1.0, (1.0 - LEAST_SOFTWARE) * s.on / memory);
            }
            d.soft_s = (s.on - d.memory * memory).max(LEAST_SOFTWARE * s.on) / s.own;
        }
    }

    /// Threads that share data and sleep a good part of their time wait for each other. The time h
    /// that a lock must be held to make k threads with X bytes/s together wait w seconds per byte:
    /// w = h A with A = (k − 1) / k × X (h + w), so h² + w h − w k / ((k − 1) X) = 0.
    pub fn tell_locks_from_sleep(&mut self, hardware: &Hardware, settings: &Settings) {
        for p in 0..self.programs.len() {
            let mut crowd = vec![0.0; hardware.len()];
            let (mut rate, mut asleep) = (0.0, 0.0);
            for d in self.threads.iter().filter(|d| d.process == p && d.shares && d.rate > 0.0) {
                crowd[d.node] += 1.0;
                rate += d.rate;
                asleep += d.off_s * d.rate;
            }
            let k: f64 = crowd.iter().sum();
            let on_node = |(n, threads): (usize, &f64)| threads * crossed(hardware, settings, &crowd, n);
            let factor = crowd.iter().enumerate().map(on_node).sum::<f64>() / k.max(1.0);
            // Where threads wait for CPUs, none waits for a lock; the value from another placement
            // is kept.
            let before = self.programs[p].lock_s;
            let mut w = 0.0;
            if k >= 2.0 && asleep > BLOCKED * k {
                w = asleep / rate;
                let hold_s = ((w * w + 4.0 * w * k / ((k - 1.0) * rate)).sqrt() - w) / 2.0;
                self.programs[p].lock_s = before.max(hold_s / factor);
            }
            if self.programs[p].lock_s > 0.0 {
                let hold_s = self.programs[p].lock_s * factor;
                for d in self.threads.iter_mut().filter(|d| d.process == p && d.shares) {
                    d.off_s = (d.off_s - w).max(0.0);
                    // Holding the lock is work; at another placement it is held for a different
                    // time.
                    let held_s = hold_s / factor * crossed(hardware, settings, &crowd, d.node);
                    d.soft_s = (d.soft_s - held_s).max(LEAST_SOFTWARE * d.soft_s);
                }
            }
        }
    }

    /// The queues that follow from the observed rates.
    fn queues(&self, hardware: &Hardware, visits: &[Visits]) -> Queues {
        // z = Σ k S q with q = x (R + v z) / (1 + x v S): linear in z, so z = Σ S x R / (1 + x v S)
        // / (1 − Σ S x v / (1 + x v S)). The number of writers follows from the queue, and the
        // queue from the length of writes.
        let n = hardware.stations();
        let full = self.full(hardware, visits);
        let mut queues = Queues { queue: vec![0.0; n], crowded: full.iter().map(|f| f.unwrap_or(1.0)).collect() };
        for _ in 0..ROUNDS {
            let (mut alone, mut busy, mut writers) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
            for (d, visits) in self.threads.iter().zip(visits) {
                for v in visits.0.iter().map(|v| queues.crowd(v)) {
                    let once = d.rate / (1.0 + d.rate * v.work * v.service);
                    alone[v.station] += v.service * once * v.alone;
                    busy[v.station] += v.service * once * v.work;
                }
            }
            for at in 0..n {
                let busy = if full[at].is_some() { FULLEST } else { busy[at].min(BUSIEST) };
                queues.queue[at] = alone[at] / (1.0 - busy);
            }
            for (d, visits) in self.threads.iter().zip(visits) {
                for v in visits.0.iter().filter(|v| v.written > 0.0).map(|v| queues.crowd(v)) {
                    writers[v.station] += v.queued(d.rate, queues.queue[v.station]) * v.written / v.work;
                }
            }
            for at in (0..hardware.len()).filter(|at| full[*at].is_none()) {
                queues.crowded[at] = hardware.crowded(at, writers[at]);
            }
        }
        queues
    }

    /// By station: how much longer writes take at a full controller because of the number of
    /// writers. Where many writers slow memory down, the same rates can come from slow software and
    /// half a controller, or from threads that all wait for a whole one. Suppose that the threads
    /// do nothing but wait, as far as their CPU time and their demand of other stations allow. If
    /// that makes the controller just about full, waiting is the likelier explanation.
    fn full(&self, hardware: &Hardware, visits: &[Visits]) -> Vec<Option<f64>> {
        let n = hardware.stations();
        let (mut writers, mut busy) = (vec![0.0; n], vec![0.0; n]);
        for (d, visits) in self.threads.iter().zip(visits) {
            let all: f64 = visits.0.iter().map(|v| v.alone).sum();
            let on = (d.soft_s * d.rate).min(1.0);
            visits.0.iter().for_each(|v| writers[v.station] += on * v.alone / all * v.written / v.work);
        }
        let controller = |at: usize| at < hardware.len();
        let crowded: Vec<f64> =
            (0..n).map(|at| if controller(at) { hardware.crowded(at, writers[at]) } else { 1.0 }).collect();
        for (d, visits) in self.threads.iter().zip(visits) {
            for v in &visits.0 {
                busy[v.station] += d.rate * v.service * (v.work + v.written * (crowded[v.station] - 1.0));
            }
        }
        (0..n).map(|at| (controller(at) && FULL.contains(&busy[at])).then_some(crowded[at])).collect()
    }

    fn seen(&self, hardware: &Hardware, settings: &Settings, queues: &Queues, d: &Demand, visits: &Visits) -> Seen {
        let (mut memory, mut far, mut waits) = (0.0, 0.0, 0.0);
        for visit in &visits.0 {
            let (v, queue) = (queues.crowd(visit), queues.queue[visit.station]);
            waits += v.work * (queue - v.service * v.queued(d.rate, queue)).max(0.0);
        }
        self.each_flow(hardware, d, |node, read, written, group| {
            let relief = group.map_or(1.0, |g| 1.0 - settings.cache_shared * self.groups.beside(g, d.node));
            let cost = |at: usize| relief * read * hardware.read_s(at, node) + written * hardware.write_s(at, node);
            memory += cost(d.node);
            far += cost(d.node) - cost(node);
        });
        let own = 1.0 + settings.own_memory * own_memory(hardware, &self.programs[d.process], d.node);
        // Behind a full controller, a thread waits for any time left, so the observations do not
        // show its own part of the cycle. Memory is then assumed to cost what the constants say,
        // and only the rest is waiting.
        let waits = waits.min((d.soft_s - memory / (1.0 - LEAST_SOFTWARE)).max(0.0));
        Seen { on: d.soft_s - waits, memory, far, own }
    }
}

/// The queue at each station, and how much longer writes take there because of the number of
/// writers.
struct Queues {
    queue: Vec<f64>,
    crowded: Vec<f64>,
}

impl Queues {
    fn crowd(&self, visit: &Visit) -> Visit {
        let mut visit = *visit;
        visit.crowd(self.crowded[visit.station]);
        visit
    }
}

/// Observed CPU and memory seconds per byte of a thread.
struct Seen {
    /// CPU time per byte, without waits at controllers.
    on: f64,
    /// Memory time per byte by the constants.
    memory: f64,
    /// The part of it that distance adds.
    far: f64,
    /// How much more time software takes because the process's own memory is far away.
    own: f64,
}

/// How many times as long a lock is held on a node as with all its sharers there.
pub(super) fn crossed(hardware: &Hardware, settings: &Settings, crowd: &[f64], node: usize) -> f64 {
    let all: f64 = crowd.iter().sum();
    let hops: f64 = crowd.iter().enumerate().map(|(m, threads)| threads * hardware.hops(node, m)).sum();
    1.0 + (settings.cross_lock - 1.0) * hops / (all - 1.0).max(1.0)
}

/// How much more time a process's own memory takes from a node than locally, relative.
pub(super) fn own_memory(hardware: &Hardware, program: &Program, node: usize) -> f64 {
    let all: f64 = program.memory.iter().map(|s| s.1).sum();
    if all <= 0.0 {
        return 0.0;
    }
    program.memory.iter().map(|(m, bytes)| bytes / all * hardware.hops(node, *m) * hardware.nodes[*m].read_hop).sum()
}
