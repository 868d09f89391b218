//! homenode's own policy: moves threads, processes and data in one decision, by what the moves
//! save.
//!
//! **Problem.** Each paper moves one kind of thing for one reason. They leave out read contention
//! on the home node (NThread V-C), mapped files (NThread), more than two nodes at unequal distances
//! (thesis 9.1.4), memory without CPUs, and the choice between moving the data, the process or
//! nothing.
//!
//! **Approach.** One cost model counts seconds over a horizon ([`Settings::horizon_s`]). From the
//! mean of the last windows ([`recent`]) it derives each thread's demand apart from where it runs
//! ([`demand`]) and merges similar threads ([`class`]). For any placement it predicts the
//! throughput of all threads, with latency by distance, queues at controllers, shared CPUs and
//! locks ([`assignment`], [`memory_model::queues`], [`locks`]). A search looks for a better
//! placement, net of the cost of its moves ([`search`], [`cost`]). The policy makes a plan that
//! promises enough, and waits until its moves are made ([`history`]). Each move states what it
//! saves ([`plan`]).
//!
//! **Terms.**
//!
//! - *Demand* ([`demand`]): what a thread does for each byte of its file data, wherever it runs: a
//!   rate, seconds of CPU, seconds asleep, and where its bytes are.
//! - *Class* ([`class`]): threads of one process and node whose demands are so alike that it does
//!   not matter which of them moves.
//! - *Group* ([`data`]): files that several threads share. They move together or not at all; data
//!   that no other thread reads is *private* and may move with its thread.
//! - *Own memory* ([`locks`], [`Settings::own_memory`]): the pages of a process apart from files.
//!   A thread that leaves them behind slows down.
//! - *Locks* ([`locks`]): threads of a process that share data and sleep are assumed to take turns,
//!   which costs more on several nodes.
//! - *Horizon* ([`Settings::horizon_s`]): for so many seconds the load is assumed to stay as it is.
//!
//! **Equations.** An assignment a gives the threads of each class on each node, the node of their
//! private data, of each group, and of the memory of each process. Solving the network of CPUs,
//! controllers, ports and locks gives the bytes/s of all threads, X(a). The cost C(a) is in bytes
//! that are not read or written while a is brought about ([`cost`]):
//!
//! ```text
//! threads     sum of rate × thread_move_s over those that change their node
//! files       (remote_load − 1) × rate × copy time: Dragonfly's O_m; one copy after the other
//! processes   rate × copy time × horizon / life, with life = T ln (1 + horizon / T) at age T
//! ```
//!
//! The search looks for the a with the greatest horizon × X(a) − C(a).
//!
//! **A decision** ([`Policy::decide`]), for each window:
//!
//! ```text
//! follow what became of the moves; notice whether it is another load
//! moves are under way or held back    -> request those again, decide nothing
//! the last plan has just been made    -> wait
//! throughput still changes            -> wait
//! the load has been planned for       -> rest; if many were displaced, let them return
//! examine the mean of the last windows: machine, demands, classes
//! search for an assignment that is worth more than to stay
//! it promises min_gain × strictness   -> its moves; otherwise say who stays and why
//! no move of these, and none judged   -> parts of files, as promote chooses
//! ```
//!
//! What the plane knows is in the snapshot and not inferred: where writes land, which files can
//! move, and what became of each move. A file moves only if the plane says that it can. Whether a
//! plan paid is judged by the engine, which takes it back if not.
//!
//! **Parts of files on slow memory.** Where the plane tells what is read of each range
//! ([`crate::ObservedFile::ranges`]), a file on memory without CPUs does not move as a whole, as
//! little of it may be read. While there is no other plan, and the last one has been judged, its
//! hot ranges move as policy [`promote`] chooses.
//!
//! **Moves end.** Plans for a load are made in its first windows, and each must promise twice as
//! much as the one before. Later, threads only return to where they were. What was refused or taken
//! back is left alone for ten minutes.
//!
//! **Limits.** The model assumes that the load continues as it was. A load that always changes is
//! planned for again and again, and as long no parts move. A plan that comes while parts copy or
//! are judged ends their trial if it has readers of theirs. It infers locks from sleep. Memory
//! constants come from the papers. Controller traffic of threads that are not listed is unknown.

mod assignment;
mod changes;
mod class;
mod cost;
mod data;
mod demand;
mod hardware;
mod history;
mod locks;
mod mapped;
mod plan;
mod recent;
mod search;
mod settings;

use memory_model::Shares;
use rustc_hash::FxHashSet;
pub use settings::Settings;
use topology::Topology;

use crate::processes::{sane, show};
use crate::promote::{self, Promote};
use crate::{Declined, Plan, Policy, Snapshot, Subject, Traits, Wish};
use assignment::{Model, Scratch};
use demand::Demands;
use hardware::Hardware;
use history::{History, Turn};
use search::Change;

/// Largest number of staying threads that are listed.
const MOST_DECLINED: usize = 1000;
/// The policy; see the module.
pub struct Auto {
    settings: Settings,
    history: History,
    promote: Promote,
    scratch: Scratch,
}

impl Auto {
    /// Creates a policy without history.
    pub fn new(settings: Settings, promote: promote::Settings) -> Self {
        let history = History::new(settings.min_bytes);
        Self { settings, history, promote: Promote::new(promote), scratch: Scratch::default() }
    }

    /// The work of all decisions so far in solver steps, the unit that bounds a decision.
    pub fn work(&self) -> u64 {
        self.scratch.spent()
    }

    /// The machine, the demands, and how many listed threads are busy at a time, in a snapshot of
    /// this many windows.
    fn examine(&self, topology: &Topology, snapshot: &Snapshot, windows: u32) -> (Hardware, Demands, f64) {
        let mut hardware = Hardware::new(topology, snapshot, &self.settings);
        let mapped = mapped::mapped(&hardware, snapshot, self.settings.own_memory);
        let least = self.settings.min_bytes.saturating_mul(u64::from(windows));
        let listed = demand::listed(&hardware, snapshot, least, &mapped);
        let busy = take_others(&mut hardware, snapshot, &listed);
        let mut demands = Demands::new(&hardware, snapshot, &listed, &mapped);
        self.history.add_to(&mut demands, snapshot);
        demands.tell_locks_from_sleep(&hardware, &self.settings);
        (hardware, demands, busy)
    }
}

impl Policy for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn traits(&self) -> Traits {
        let of_parts = Traits { wants_ranges: Wish::IfPossible, ..self.promote.traits() };
        Traits { moves_files: true, moves_processes: true, wants_mapped: Wish::IfPossible, ..of_parts }
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        self.promote.follow(snapshot);
        let mut plan = self.whole(topology, snapshot);
        // With moves of both kinds at once, nobody could tell which have paid.
        if plan.moves.is_empty() && self.history.parts_may_move() {
            let parts = self.promote.choose(snapshot);
            self.history.parts(&parts.moves);
            plan.moves = parts.moves;
            plan.notes.extend(parts.notes);
        }
        plan
    }
}

impl Auto {
    /// The moves of threads, processes and whole files.
    fn whole(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        let mut plan = Plan::new(self.name());
        self.history.at(snapshot);
        let (mut hardware, mut demands, mut busy) = self.examine(topology, snapshot, 1);
        let strictness = match self.history.turn(snapshot, &demands) {
            Turn::Wait(again) => {
                plan.keeps = plan::keeps(snapshot, &demands, &again);
                plan.moves = again;
                return plan;
            }
            Turn::Rest => {
                plan.declined = staying(snapshot, &demands, 1);
                return plan;
            }
            Turn::Decide { strictness } => strictness,
        };
        let mean = self.history.recent.mean();
        if let Some((mean, windows)) = &mean {
            (hardware, demands, busy) = self.examine(topology, mean, *windows);
        }
        let window = snapshot;
        let (snapshot, windows) = mean.as_ref().map_or((snapshot, 1), |(mean, windows)| (mean, *windows));
        if demands.threads.is_empty() {
            return plan;
        }
        if self.history.planned_for() {
            for d in &mut demands.threads {
                let t = &snapshot.threads[d.thread];
                d.pinned |= self.history.assigned(t.id()).is_none_or(|node| node == t.node);
            }
        }
        let mut classes = class::classes(&demands);
        assignment::fit(&hardware, &demands, &mut classes, &self.settings, &mut self.scratch);
        let model = Model::new(&hardware, &demands, &classes, &self.settings, busy);
        let history = &self.history;
        let may = |change: &Change| allowed(&model, snapshot, history, change);
        let found = model.search(&mut self.scratch, &may);
        let least = self.settings.min_gain * strictness * found.stays.net;
        if found.worth.net - found.stays.net > least {
            plan.moves = plan::moves(&model, snapshot, &found, &mut self.scratch);
            // A thread that used no file in the last window may have ended.
            let here: FxHashSet<Subject> = window.threads.iter().map(Subject::thread).collect();
            plan.moves.retain(|mv| !mv.subject.is_thread() || here.contains(&mv.subject));
            plan.predicted = Some(plan::predict(&model, snapshot, &found, &mut self.scratch));
            plan.notes.push(plan::whole(&model, &found));
            self.history.planned(&plan.moves);
            plan.keeps = plan::keeps(snapshot, &demands, &plan.moves);
        } else {
            plan.declined = staying(snapshot, &demands, windows);
        }
        if hardware.nodes.iter().any(|n| n.read_work <= 0.0) {
            plan.notes.push("bandwidth of some nodes unknown; contention there not judged".into());
        }
        plan
    }
}

/// Whether a change may be tried: nothing that is pinned, was refused or has moved before, only
/// files that the plane can move, none on memory without CPUs whose parts may move, and in a load
/// that has been planned for, only returns.
fn allowed(model: &Model, snapshot: &Snapshot, history: &History, change: &Change) -> bool {
    let file = |f: &usize| {
        let file = &snapshot.files[*f];
        let subject = Subject::file(file);
        let bytes: Shares = model.hardware.by_node(&file.bytes).collect();
        let slow = data::main_node(&bytes).is_some_and(|node| model.hardware.nodes[node].cpus == 0.0);
        file.movable == Some(true) && (!slow || file.ranges.is_empty()) && history.may_move(&subject)
    };
    let data = history.data_may_move();
    if history.planned_for() {
        let Change::Threads { class, node, data: None, .. } = change else { return false };
        let node = Some(model.hardware.nodes[*node].id);
        let mut members = model.classes[*class].members.iter().map(|m| model.demands.threads[*m].thread);
        return members.all(|t| history.assigned(snapshot.threads[t].id()) == node);
    }
    match change {
        Change::Threads { data: None, .. } => true,
        Change::Threads { class, .. } => {
            let mut files = model.classes[*class].members.iter().flat_map(|m| &model.demands.threads[*m].files);
            data && files.all(|(f, _)| file(f))
        }
        Change::Process { process, node, .. } => {
            let one = &model.demands.processes[*process];
            let mut classes = model.of_process[*process].iter().map(|t| &model.classes[*t]);
            let subject = Subject::Process(one.id);
            history.may_move(&subject) && classes.all(|t| t.node == *node || !t.pinned)
        }
        Change::Group { group, .. } => data && model.demands.groups.list[*group].files.iter().all(file),
    }
}

/// Subtracts the CPU time of unlisted threads from the machine. Returns how many listed threads are
/// busy at a time: on a CPU, or while a server makes their accesses.
fn take_others(hardware: &mut Hardware, snapshot: &Snapshot, listed: &[usize]) -> f64 {
    let window_s = sane(snapshot.window_s).max(f64::MIN_POSITIVE);
    let (mut cpus, mut busy) = (vec![0.0; hardware.len()], 0.0);
    for t in listed.iter().map(|i| &snapshot.threads[*i]) {
        if let Some(node) = hardware.index(t.node) {
            let cpu_s = sane(t.cpu_s);
            cpus[node] += cpu_s / window_s;
            busy += (cpu_s + sane(t.served_s.unwrap_or(0.0))) / window_s;
        }
    }
    for load in &snapshot.nodes {
        if let (Some(node), Some(all)) = (hardware.index(load.id), load.cpu_s) {
            hardware.taken(node, (sane(all) / window_s - cpus[node]).max(0.0));
        }
    }
    busy
}

/// Threads that stay although they read remotely, with what they read in one of these windows.
fn staying(snapshot: &Snapshot, demands: &Demands, windows: u32) -> Vec<Declined> {
    let each = |bytes: u64| show(bytes as f64 / f64::from(windows));
    let mut staying: Vec<(u64, u32, Declined)> = Vec::new();
    for d in &demands.threads {
        let t = &snapshot.threads[d.thread];
        let Some(home) = t.home().filter(|home| *home != t.node) else { continue };
        let read = format!("{} of {} read from node {home}", each(t.read_bytes.get(home)), each(t.read_bytes.total()));
        let (reason, why) = match &t.pinned {
            Some(pinned) => ("pinned", format!("{pinned}; {read}")),
            None if !t.allowed_nodes.contains(&home) => ("not_allowed", format!("{read}, where it may not run")),
            None => ("no_gain", format!("{read}; no move would save enough")),
        };
        staying.push((t.remote_bytes(), t.tid, Declined { tid: t.tid, reason: reason.into(), why }));
    }
    staying.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    staying.truncate(MOST_DECLINED);
    staying.into_iter().map(|s| s.2).collect()
}
