//! The simulated kernel: it places new threads, and moves threads to idle CPUs.
//!
//! **Problem.** Without homenode, CPU load alone places threads: that is the base line of every
//! experiment.
//!
//! **Approach.** A new thread starts on the node with the fewest threads per CPU
//! (`select_task_rq_fair` over NUMA domains); the seed breaks ties. When a node's threads want
//! more CPU than it has and another node has a CPU to spare, one thread that may run there is
//! pulled over (`load_balance`). AutoNUMA, if it is on, moves a process's own memory to its
//! threads, and never file data (thesis, chapter 6).
//!
//! **Limits.** The kernel does not shuffle a balanced machine.

use rand::RngExt;
use rand::rngs::ChaCha12Rng;

use super::{Shares, World};
use crate::machine::Machine;

/// How the threads of a job start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Where the kernel puts them.
    Kernel,
    /// All on one node, free to go.
    On(usize),
    /// All on one node, with an affinity of their own.
    Pinned(usize),
}

impl Start {
    pub fn pinned(self) -> Option<usize> {
        if let Self::Pinned(node) = self { Some(node) } else { None }
    }
}

/// Places new threads.
pub(crate) struct Placer {
    threads: Vec<u32>,
    rng: ChaCha12Rng,
}

/// How much of a CPU must be to spare before a thread is pulled.
const SPARE: f64 = 0.5;
/// Threads pulled in one step.
const PULLS: usize = 8;

impl Placer {
    pub fn new(machine: &Machine, rng: ChaCha12Rng) -> Self {
        Self { threads: vec![0; machine.nodes().len()], rng }
    }

    pub fn place(&mut self, machine: &Machine, start: Start) -> usize {
        let node = match start {
            Start::On(node) | Start::Pinned(node) => node,
            Start::Kernel => {
                let load = |n: &usize| f64::from(self.threads[*n]) / machine.nodes()[*n].cpus;
                let least = machine.seats().map(|n| load(&n)).fold(f64::INFINITY, f64::min);
                let idlest: Vec<usize> = machine.seats().filter(|n| load(n) <= least).collect();
                idlest[self.rng.random_range(0..idlest.len())]
            }
        };
        self.threads[node] += 1;
        node
    }
}

impl World {
    /// Pulls threads from nodes with more work than CPUs to nodes with idle CPUs.
    pub(super) fn balance(&mut self) {
        let rates = self.solver.rates();
        let mut load = vec![0.0; self.machine.nodes().len()];
        for (class, rate) in self.system.classes.iter().zip(rates) {
            load[class.node] += class.count * (rate.on + rate.ready);
        }
        let spare = |load: &[f64], n: usize| self.machine.nodes()[n].cpus - load[n];
        let mut pulls = Vec::new();
        while pulls.len() < PULLS {
            let busiest = self.machine.seats().min_by(|a, b| spare(&load, *a).total_cmp(&spare(&load, *b)));
            let idlest =
                self.machine.seats().max_by(|a, b| spare(&load, *a).total_cmp(&spare(&load, *b)).then(b.cmp(a)));
            let (Some(from), Some(to)) = (busiest, idlest) else { break };
            if spare(&load, from) > -SPARE || spare(&load, to) < 1.0 {
                break;
            }
            let free = |t: &super::Thread| t.node == from && t.mask.is_none() && t.runs(self.now);
            let Some(thread) = (0..self.threads.len()).find(|t| free(&self.threads[*t]) && !pulls.contains(&(*t, to)))
            else {
                break;
            };
            pulls.push((thread, to));
            load[from] -= 1.0;
            load[to] += 1.0;
        }
        for (thread, to) in pulls {
            self.threads[thread].node = to;
            self.threads[thread].debt_s += self.machine.constants().move_stall_s;
            self.changed = true;
        }
    }

    /// AutoNUMA: the memory of processes follows their threads, once they have run for a second
    /// (thesis 6: "it also only scans once every second").
    pub(super) fn follow(&mut self) {
        if !self.autonuma {
            return;
        }
        for p in 0..self.processes.len() {
            let pid = self.processes[p].pid;
            let mut threads =
                self.threads.iter().filter(|t| t.pid == pid && t.runs(self.now) && self.now > t.from_s + 1.0);
            let Some(node) = threads.next().map(|t| t.node) else { continue };
            let home = self.machine.nearest_home(node);
            if threads.all(|t| t.node == node) && !self.processes[p].resident.iter().all(|s| s.0 == home) {
                let bytes = super::total(&self.processes[p].resident);
                self.processes[p].resident = Shares::from_slice(&[(home, bytes)]);
                self.changed = true;
            }
        }
    }
}
