//! Locks, and a process's own memory: what a thread's place costs apart from its file data.
//!
//! **Problem.** Sleep includes waiting for a lock, and CPU time includes holding one. Both change
//! with the place of the threads that take the lock in turns.
//!
//! **Approach.** Threads of one process that share data and sleep a good part of the time are
//! assumed to wait for each other. The time that the lock is held follows from the time that they
//! wait. Threads whose accesses a server makes sleep for that reason, and tell nothing of locks.
//!
//! **Limits.** A thread that sleeps for another reason, such as a disk, looks like one that waits
//! for a lock.

use super::Settings;
use super::demand::{Demand, Demands, Process};
use super::hardware::Hardware;

/// Threads that share data and sleep this share of the time are assumed to wait for a lock. A lock
/// that they wait for less changes their throughput by less than that.
const BLOCKED: f64 = 0.1;

/// The least share of CPU time per byte that is software, so that no rate is infinite. Chosen, not
/// derived.
pub(super) const LEAST_SOFTWARE: f64 = 0.02;

impl Demands {
    /// The time h that a lock must be held to make k threads with X bytes/s together wait w seconds
    /// per byte: w = h A with A = (k − 1) / k × X (h + w), so h² + w h − w k / ((k − 1) X) = 0.
    pub fn tell_locks_from_sleep(&mut self, hardware: &Hardware, settings: &Settings) {
        for p in 0..self.processes.len() {
            let mut crowd = vec![0.0; hardware.len()];
            let (mut rate, mut asleep) = (0.0, 0.0);
            let takes_it = |d: &&mut Demand| d.process == p && d.work.shares && !d.work.asks;
            for d in self.threads.iter_mut().filter(takes_it).filter(|d| d.work.rate > 0.0) {
                crowd[d.node] += 1.0;
                rate += d.work.rate;
                asleep += d.work.off_s * d.work.rate;
            }
            let k: f64 = crowd.iter().sum();
            let on_node = |(n, threads): (usize, &f64)| threads * crossed(hardware, settings, &crowd, n);
            let factor = crowd.iter().enumerate().map(on_node).sum::<f64>() / k.max(1.0);
            // Where threads wait for CPUs, none waits for a lock; the value from another placement
            // is kept.
            let before = self.processes[p].lock_s;
            let mut w = 0.0;
            if k >= 2.0 && asleep > BLOCKED * k {
                w = asleep / rate;
                let hold_s = ((w * w + 4.0 * w * k / ((k - 1.0) * rate)).sqrt() - w) / 2.0;
                self.processes[p].lock_s = before.max(hold_s / factor);
            }
            let lock_s = self.processes[p].lock_s;
            for d in self.threads.iter_mut().filter(|_| lock_s > 0.0).filter(takes_it) {
                // Holding the lock is work; at another placement it is held for a different time.
                let hold_s = lock_s * crossed(hardware, settings, &crowd, d.node);
                let work = &mut d.work;
                work.off_s = (work.off_s - w).max(0.0);
                work.soft_s = (work.soft_s - hold_s).max(LEAST_SOFTWARE * work.soft_s);
            }
        }
    }
}

/// How many times as long a lock is held on a node as with all its sharers there.
pub(super) fn crossed(hardware: &Hardware, settings: &Settings, crowd: &[f64], node: usize) -> f64 {
    let all: f64 = crowd.iter().sum();
    let hops: f64 = crowd.iter().enumerate().map(|(m, threads)| threads * hardware.hops(node, m)).sum();
    1.0 + (settings.cross_lock - 1.0) * hops / (all - 1.0).max(1.0)
}

/// How much more time a process's own memory takes from a node than locally, relative.
pub(super) fn own_memory(hardware: &Hardware, process: &Process, node: usize) -> f64 {
    let all: f64 = process.memory.iter().map(|s| s.1).sum();
    if all <= 0.0 {
        return 0.0;
    }
    process.memory.iter().map(|(m, bytes)| bytes / all * hardware.hops(node, *m) * hardware.nodes[*m].read_hop).sum()
}
