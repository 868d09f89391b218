//! NThread: moves threads to the data they read, unless a controller or the CPUs there would be
//! overloaded.
//!
//! Y. Wang, D. Jiang, J. Xiong: *NUMA-Aware Thread Migration for High Performance NVMM File
//! Systems*, MSST 2020. Section and equation numbers in this module are the paper's.
//!
//! **Problem.** The kernel places threads by CPU load and does not know where their file data is.
//! Moving every thread to its data may overload one node.
//!
//! **Approach.** Once per window, what-if analysis runs in steps. [`target`] gives each thread the
//! node it reads most from (step 1). The analysis supposes that each thread runs on its target:
//! reads stay with the data and writes move with the thread (step 2, [`state`]). If that would
//! overload a memory controller, [`controller`] sends writers elsewhere (step 3). If it would
//! overload a node's CPUs instead, [`cpu`] sends readers elsewhere (step 4). Steps 3 and 4 leave
//! out threads that share a file (step 5). [`Variant`] selects the steps (Table II).
//!
//! **A repeated decision makes no moves.** Targets depend on where data is, never on where threads
//! are. The next window's what-if therefore returns a thread that steps 3 or 4 sent away to its
//! target and sends it away again, so it does not move. A thread *without* a target is different:
//! it starts from where it is, so after its move the what-if starts from another state. Taken
//! literally, the rules then reverse their decision in the next window: H, relieved of such
//! threads, is no longer overloaded, and other threads that were sent away come back. So the policy
//! re-applies the rules to their own result until they decide nothing new. In nearly all cases one
//! round suffices, and the result is the paper's. The rounds end: step 3 moves writes only from
//! above the average to below it, which makes the loads more equal each time. Step 4 fills no node
//! above its limit, so it takes threads only from nodes that it never fills, and it makes no work
//! for step 3 (see [`cpu`]).
//!
//! **Limits.** The policy assumes that the next window is like this one. Writes over pages that are
//! already cached land where those pages are, not where the thread runs; the forecast is wrong for
//! them. The policy ignores file sizes and the cost of a move. The engine decides how often a
//! thread may move.

mod controller;
mod cpu;
mod forecast;
mod order;
mod report;
mod settings;
mod state;
mod target;

pub use report::MAX_DECLINED;
pub use settings::Settings;

use topology::{NodeId, Topology};

use crate::load::{Loads, Machine};
use crate::{Plan, Policy, Snapshot, Thread, Traits};
use state::State;
use target::Target;

/// The rules stop after this many rounds. They are proven to end; random workloads take three
/// rounds at most.
const MAX_ROUNDS: usize = 64;

/// Selects NThread's steps (Table II).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// `NThread_rl`: step 1.
    Locality,
    /// `NThread_cpu`: steps 1 and 4.
    Cpu,
    /// `NThread_nm`: steps 1, 3 and 4.
    Memory,
    /// `NThread`: all steps; threads that share a file stay together.
    Full,
}

impl Variant {
    /// All variants, in Table II's order.
    pub const ALL: [Self; 4] = [Self::Locality, Self::Cpu, Self::Memory, Self::Full];

    /// The name that the user types.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Locality => "nthread-rl",
            Self::Cpu => "nthread-cpu",
            Self::Memory => "nthread-nm",
            Self::Full => "nthread",
        }
    }

    fn relieves_controllers(self) -> bool {
        matches!(self, Self::Memory | Self::Full)
    }

    fn relieves_cpus(self) -> bool {
        self != Self::Locality
    }

    fn keeps_sharers(self) -> bool {
        self == Self::Full
    }
}

/// The policy.
#[derive(Clone, Debug)]
pub struct NThread {
    variant: Variant,
    settings: Settings,
}

impl NThread {
    /// Creates one of NThread's variants.
    pub fn new(variant: Variant, settings: Settings) -> Self {
        Self { variant, settings }
    }
}

impl Policy for NThread {
    fn name(&self) -> &'static str {
        self.variant.name()
    }

    fn traits(&self) -> Traits {
        let controllers = self.variant.relieves_controllers();
        let without_bandwidth = controllers.then_some("no moves for controller contention");
        Traits { without_bandwidth, ..Traits::default() }
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        let mut plan = Plan::new(self.name());
        if !(snapshot.window_s > 0.0 && snapshot.window_s.is_finite()) {
            plan.notes.push(format!("nothing decided: the window lasted {} s", snapshot.window_s));
            return plan;
        }
        let machine = Machine::new(topology, &self.settings, snapshot.window_s);
        let mut state = State::new(&machine, &self.settings, snapshot);
        let settled = settle(&machine, snapshot, &mut state, self.variant);
        report::fill(&mut plan, &machine, &self.settings, snapshot, &state);
        plan.predicted = Some(forecast::predict(&machine, snapshot, &state));
        if self.variant.relieves_controllers() {
            report::note_unknown_bandwidth(&mut plan, &machine);
        }
        if !settled {
            plan.notes.push(format!("not settled after {MAX_ROUNDS} rounds: the next window may move threads again"));
        }
        plan
    }
}

/// Applies the rules until they decide nothing new. Returns whether they got there.
fn settle(machine: &Machine, snapshot: &Snapshot, state: &mut State, variant: Variant) -> bool {
    for _ in 0..MAX_ROUNDS {
        apply_once(machine, snapshot, state, variant);
        let mut new = false;
        for c in state.candidates.iter_mut().filter(|c| !c.targeted() && c.place != c.initial) {
            c.initial = c.place;
            new = true;
        }
        if !new {
            return true;
        }
    }
    false
}

/// Applies steps 2 to 5 once, from each candidate's initial node to its place.
fn apply_once(machine: &Machine, snapshot: &Snapshot, state: &mut State, variant: Variant) {
    for c in &mut state.candidates {
        c.place = c.initial;
        c.passed_over = false;
        // A thread without a target keeps the reason for its earlier move.
        if c.targeted() {
            c.relief = None;
        }
    }
    let mut loads = state.what_if(machine);
    let keep_sharers = variant.keeps_sharers();
    let number = state.reliefs.len() as u32;
    let candidates = &mut state.candidates;
    if variant.relieves_controllers()
        && let Some(h) = controller::overloaded(machine, &loads)
    {
        state.reliefs.push(controller::relief(machine, &loads, h));
        controller::relieve(machine, snapshot, &mut loads, candidates, h, number, keep_sharers);
    } else if variant.relieves_cpus()
        && let Some(h) = cpu::overloaded(machine, &loads)
    {
        state.reliefs.push(cpu::relief(machine, &loads, h));
        let rules = cpu::Rules { keep_sharers, spare_controllers: variant.relieves_controllers() };
        cpu::relieve(machine, snapshot, &mut loads, candidates, h, number, rules);
    }
}

/// Steps 1 to 3 for Dragonfly: the node whose controller would be overloaded with every thread on
/// its target, and the loads in that case. A byte that is read remotely now counts `local_gain`
/// times: it occupies the controller TH_l / TH_r times as long as a local one (NThread I: 34.6 %
/// less bandwidth; Dragonfly's 20.7 / 13.5), and once its reader is on its target, that many more
/// are read.
pub(crate) fn overloaded_home(
    machine: &Machine,
    settings: &Settings,
    local_gain: f64,
    snapshot: &Snapshot,
) -> Option<(usize, Loads)> {
    let mut loads = State::new(machine, settings, snapshot).what_if(machine);
    for thread in &snapshot.threads {
        for (id, bytes) in thread.read_bytes.iter().filter(|(id, _)| *id != thread.node) {
            if let Some(node) = machine.index(id) {
                let more = machine.weigh((bytes as f64 * (local_gain - 1.0)) as u64);
                loads.reads[node] = loads.reads[node].saturating_add(more);
            }
        }
    }
    controller::overloaded(machine, &loads).map(|node| (node, loads))
}

/// Step 1 for Dragonfly: the node of a thread's data, by the margin, whether or not the thread may
/// run there.
pub(crate) fn data_home(machine: &Machine, settings: &Settings, window_s: f64, thread: &Thread) -> Option<NodeId> {
    if thread.file_bytes() < settings.min_bytes {
        return None;
    }
    match target::of(machine, target::margin(settings, window_s), thread) {
        Target::Home(node) => Some(machine.id(node)),
        Target::Near { home, .. } | Target::NoCpus { home } | Target::NotAllowed { home } => Some(home),
        Target::None => None,
    }
}

#[cfg(test)]
mod tests;
