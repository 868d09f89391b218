//! The input of one decision: the threads that may be moved, and their loads.
//!
//! **Problem.** Steps 3 and 4 look at the loads "if every thread sat on its target" (what-if
//! analysis, III). Reads stay with the data, each thread's writes and CPU time move with it, and
//! loads that belong to no listed thread stay.
//!
//! **Approach.** One pass over the snapshot yields each node's load *without* the threads that may
//! be moved ([`State::rest`]), and those threads as small records. A what-if load is `rest` plus
//! the threads at their places.
//!
//! A thread's CPU time includes the time that it waited for a CPU: eight busy threads on four CPUs
//! want 200 % of them. The paper's `Time_i` is "the time that thread i runs", yet its utilisation
//! passes 100 % (Fig. 8 tries limits up to 130 %). Time that threads ran on one node never passes
//! 100 %: the what-if would see the crowd before the threads come together, and never after.
//!
//! **Limits.** A snapshot says where a thread ran at the end of the window. The policy attributes
//! all its CPU time to that node.

use rustc_hash::FxHashSet;
use topology::FileId;

use super::Settings;
use super::target::{self, Target};
use crate::load::{Loads, Machine, nanoseconds};
use crate::{FileUse, Snapshot, Thread};

/// A thread that may be moved.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Index in the snapshot.
    pub thread: usize,
    /// Thread id, which breaks ties.
    pub tid: u32,
    /// Node it runs on.
    pub node: usize,
    /// The result of step 1; without a target, the thread starts from the node it is on.
    pub target: Target,
    /// Its node in the what-if analysis.
    pub initial: usize,
    pub place: usize,
    /// Whether another thread touched one of its files, or somebody has one open besides.
    pub shares: bool,
    /// File bytes read, `D_read_i`.
    pub reads: u64,
    /// File bytes written, `D_write_i`.
    pub writes: u64,
    /// CPU nanoseconds that it wants, `Time_i`: the time it ran plus the time it waited for a CPU.
    pub cpu: u64,
    /// CPU nanoseconds that it ran.
    pub used: u64,
    /// The relief (step 3 or 4) that assigned its place, as an index into [`State::reliefs`].
    pub relief: Option<u32>,
    /// Whether a relief would have moved it if it did not share a file.
    pub passed_over: bool,
}

impl Candidate {
    pub fn targeted(&self) -> bool {
        self.target.node().is_some()
    }
}

/// Files that are open more than once (III-D: an `i_count` above 1). Whoever has one open besides
/// need not have touched it in this window.
struct OpenTwice {
    files: FxHashSet<FileId>,
    /// Fewer bytes of them do not count: a page of a library, which every process has open.
    min_bytes: u64,
}

impl OpenTwice {
    fn of(snapshot: &Snapshot, settings: &Settings) -> Self {
        let twice = snapshot.files.iter().filter(|f| f.opens.is_some_and(|opens| opens > 1));
        Self { files: twice.map(|f| f.file).collect(), min_bytes: settings.min_bytes.max(1) }
    }

    fn used_by(&self, thread: &Thread) -> bool {
        if self.files.is_empty() {
            return false;
        }
        let of_them = thread.files.iter().filter(|used| self.files.contains(&used.file));
        of_them.map(FileUse::file_bytes).fold(0, u64::saturating_add) >= self.min_bytes
    }
}

/// The relief of one overloaded node by step 3 or 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Relief {
    pub kind: Contention,
    /// The overloaded node H.
    pub node: usize,
    /// Its load before the relief, as a fraction of its capacity.
    pub load: f64,
}

/// The scarce resource of an overloaded node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contention {
    Controller,
    Cpu,
}

/// One window, prepared for a decision.
pub(super) struct State {
    /// Threads that may be moved, in the snapshot's order.
    pub candidates: Vec<Candidate>,
    /// Pinned threads above `min_bytes`, as indices in the snapshot.
    pub pinned: Vec<usize>,
    /// Number of threads on nodes that are not in the topology.
    pub lost: usize,
    pub observed: Loads,
    /// The loads without the candidates.
    pub rest: Loads,
    /// The reliefs by steps 3 and 4.
    pub reliefs: Vec<Relief>,
}

impl State {
    pub fn new(machine: &Machine, settings: &Settings, snapshot: &Snapshot) -> Self {
        let margin = target::margin(settings, snapshot.window_s);
        let nodes = machine.len();
        let mut candidates = Vec::with_capacity(snapshot.threads.len());
        let (mut pinned, mut lost) = (Vec::new(), 0);
        // The part of the loads due to listed threads, and the part of that due to candidates.
        let (mut listed, mut movable) = (Loads::none(nodes), Loads::none(nodes));
        let open_twice = OpenTwice::of(snapshot, settings);
        for (index, thread) in snapshot.threads.iter().enumerate() {
            let node = machine.index(thread.node);
            let used = nanoseconds(thread.cpu_s);
            let wants = used.saturating_add(nanoseconds(thread.wait_s.unwrap_or(0.0)));
            let (reads, writes) = (thread.read_bytes.total(), thread.write_bytes.total());
            let considered = reads.saturating_add(writes) >= settings.min_bytes;
            let moves = considered && thread.pinned.is_none() && node.is_some();
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
                    pinned.push(index);
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
                shares: thread.shares_file || open_twice.used_by(thread),
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
        Self { candidates, pinned, lost, observed, rest, reliefs: Vec::new() }
    }

    /// The loads with each candidate on its initial node.
    pub fn what_if(&self, machine: &Machine) -> Loads {
        let mut loads = self.rest.clone();
        for c in &self.candidates {
            loads.add(machine, c.initial, c.writes, c.cpu);
        }
        loads
    }
}

/// The node totals (measured at the controllers, or else counted), or the sums over the listed
/// threads where those are larger (sampling, or a total that was not counted).
fn observed(machine: &Machine, snapshot: &Snapshot, mut loads: Loads) -> Loads {
    for load in &snapshot.nodes {
        let Some(node) = machine.index(load.id) else { continue };
        let (read, written) = load.controller_bytes();
        loads.reads[node] = loads.reads[node].max(read);
        loads.writes[node] = loads.writes[node].max(written);
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
