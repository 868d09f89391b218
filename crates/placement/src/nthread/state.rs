//! What one decision works on: the threads that may be moved, and the loads they make.
//!
//! **Problem.** Steps 3 and 4 look at the loads "if every thread sat on its target" (what-if analysis, III), where reads stay
//! with the data, each thread's writes and CPU time go with it, and what belongs to no listed thread stays.
//!
//! **Approach.** One pass takes from the snapshot each node's load *without* the threads that may be moved ([`State::rest`]) and
//! those threads as small records; a what-if load is `rest` plus the threads at their places.
//!
//! A thread's CPU time is what it had and what it waited for: eight busy threads on four CPUs want 200 % of them. The paper's
//! `Time_i` is "the time that thread i runs", yet its utilisation passes 100 % (Fig. 8 tries limits up to 130 %), which what
//! threads have had of one node never does: the what-if would see the crowd before it has come together and never after.
//!
//! **Limits.** A snapshot says where a thread ran at the end of the window: all its CPU time is taken to be from that node.

use super::Settings;
use super::target::{self, Target};
use crate::Snapshot;
use crate::load::{Loads, Machine, nanoseconds};

/// A thread that may be moved.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Index in the snapshot.
    pub thread: usize,
    /// Thread id, which breaks ties.
    pub tid: u32,
    /// Node it runs on.
    pub node: usize,
    /// What step 1 says; without a target it starts from the node it is on.
    pub target: Target,
    /// Node it has in the what-if analysis.
    pub initial: usize,
    /// Node it is given.
    pub place: usize,
    /// Whether another thread touched one of its files.
    pub shares: bool,
    /// File bytes read, `D_read_i`.
    pub reads: u64,
    /// File bytes written, `D_write_i`.
    pub writes: u64,
    /// CPU nanoseconds that it wants, `Time_i`: those it had, and those it was ready to run and waited for.
    pub cpu: u64,
    /// CPU nanoseconds that it had.
    pub used: u64,
    /// The relief (step 3 or 4) that gave it its place, as an index into [`State::reliefs`].
    pub relief: Option<u32>,
    /// Whether a relief would have taken it, had it not shared a file.
    pub passed_over: bool,
}

impl Candidate {
    /// Whether it has a target.
    pub fn targeted(&self) -> bool {
        self.target.node().is_some()
    }
}

/// Step 3 or 4 at work on one overloaded node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Relief {
    pub kind: Contention,
    /// The overloaded node H.
    pub node: usize,
    /// Its load as a fraction of its capacity, before.
    pub load: f64,
}

/// What an overloaded node is short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contention {
    Controller,
    Cpu,
}

/// One window, ready to decide.
pub(super) struct State {
    /// Threads that may be moved, in the snapshot's order.
    pub candidates: Vec<Candidate>,
    /// Threads above `min_bytes` that must not be moved, as indices in the snapshot.
    pub held: Vec<usize>,
    /// How many threads run on a node that the topology does not have.
    pub lost: usize,
    /// Loads as observed.
    pub observed: Loads,
    /// Loads without the candidates.
    pub rest: Loads,
    /// What steps 3 and 4 did.
    pub reliefs: Vec<Relief>,
}

impl State {
    pub fn new(machine: &Machine, settings: &Settings, snapshot: &Snapshot) -> Self {
        let margin = target::margin(settings, snapshot.window_s);
        let nodes = machine.len();
        let mut candidates = Vec::with_capacity(snapshot.threads.len());
        let (mut held, mut lost) = (Vec::new(), 0);
        // What the listed threads account for, and of that what the candidates do.
        let (mut listed, mut movable) = (Loads::none(nodes), Loads::none(nodes));
        for (index, thread) in snapshot.threads.iter().enumerate() {
            let node = machine.index(thread.node);
            let used = nanoseconds(thread.cpu_s);
            let wants = used.saturating_add(nanoseconds(thread.wait_s.unwrap_or(0.0)));
            let (reads, writes) = (thread.read_bytes.total(), thread.write_bytes.total());
            let considered = reads.saturating_add(writes) >= settings.min_bytes;
            let moves = considered && thread.held.is_none() && node.is_some();
            for (id, bytes) in thread.read_bytes.iter() {
                add(&mut listed.reads, machine.index(id), bytes);
            }
            for (id, bytes) in thread.write_bytes.iter() {
                let on = machine.index(id);
                add(&mut listed.writes, on, bytes);
                if moves {
                    add(&mut movable.writes, on, bytes);
                }
            }
            add(&mut listed.cpu, node, used);
            let Some(node) = node else {
                lost += 1;
                continue;
            };
            if !moves {
                if considered {
                    held.push(index);
                }
                continue;
            }
            add(&mut movable.cpu, Some(node), used);
            let target = target::of(machine, margin, thread);
            let initial = target.node().unwrap_or(node);
            candidates.push(Candidate {
                thread: index,
                tid: thread.tid,
                node,
                target,
                initial,
                place: initial,
                shares: thread.shares_file,
                reads,
                writes,
                cpu: wants,
                used,
                relief: None,
                passed_over: false,
            });
        }
        let observed = observed(machine, snapshot, listed);
        let rest = Loads {
            reads: observed.reads.clone(),
            writes: minus(&observed.writes, &movable.writes),
            cpu: minus(&observed.cpu, &movable.cpu),
        };
        Self { candidates, held, lost, observed, rest, reliefs: Vec::new() }
    }

    /// The loads if every candidate sat on its initial node.
    pub fn what_if(&self, machine: &Machine) -> Loads {
        let mut loads = self.rest.clone();
        for c in &self.candidates {
            loads.add(machine, c.initial, c.writes, c.cpu);
        }
        loads
    }
}

/// Node totals, or what the listed threads add up to where that is more (sampling, or a total that was not counted).
fn observed(machine: &Machine, snapshot: &Snapshot, mut loads: Loads) -> Loads {
    for load in &snapshot.nodes {
        let Some(node) = machine.index(load.id) else { continue };
        loads.reads[node] = loads.reads[node].max(load.read_bytes);
        loads.writes[node] = loads.writes[node].max(load.write_bytes);
        loads.cpu[node] = loads.cpu[node].max(load.cpu_s.map_or(0, nanoseconds));
    }
    for bytes in &mut loads.reads {
        *bytes = machine.weigh(*bytes);
    }
    loads
}

fn add(loads: &mut [u64], node: Option<usize>, amount: u64) {
    if let Some(load) = node.and_then(|n| loads.get_mut(n)) {
        *load = load.saturating_add(amount);
    }
}

fn minus(all: &[u64], part: &[u64]) -> Vec<u64> {
    all.iter().zip(part).map(|(all, part)| all.saturating_sub(*part)).collect()
}
