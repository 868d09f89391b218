//! homenode's own policy: moves threads, processes and data in one decision, by what the moves
//! save.
//!
//! **Problem.** Each paper moves one kind of thing for one reason. They leave out read contention
//! on the home node (NThread V-C), mapped files (NThread), more than two nodes at unequal distances
//! (thesis 9.1.4), memory without CPUs, and the choice between moving the data, the process or
//! nothing.
//!
//! **Approach.** One cost model counts seconds over a horizon ([`Settings::horizon_s`]). From a
//! window it derives each thread's demand apart from where it runs ([`demand`]) and merges similar
//! threads ([`team`]). For any placement it predicts the throughput of all threads, with latency by
//! distance, queues at controllers, shared CPUs and caches ([`seating`], [`network`]). A search
//! looks for a better placement, net of the cost of its moves ([`search`]). The policy makes a plan
//! that promises enough, measures it, and reverts it if things got worse ([`history`]). Each move
//! states what it saves and what the alternatives would save ([`plan`]).
//!
//! **Moves end.** Plans for a load are made in its first windows, and each must promise twice
//! as much as the one before.
//!
//! **Limits.** The model assumes that the load continues as it was. It infers locks from sleep.
//! Memory constants come from the papers until a process reveals its own.

mod asked;
mod best;
mod changes;
mod cost;
mod data;
mod demand;
mod hardware;
mod history;
mod mapped;
mod network;
mod plan;
mod search;
mod seating;
mod settings;
mod software;
mod team;

pub use settings::Settings;
use topology::Topology;

use crate::processes::{sane, show};
use crate::{Declined, Plan, Policy, Snapshot};
use demand::Demands;
use hardware::Hardware;
use history::{History, Turn};
use search::Change;
use seating::{Model, Scratch};
use team::Team;

/// Windows of the same load before data may move.
const BEFORE_DATA: u32 = 5;
/// Largest number of staying threads that are listed.
const MOST_DECLINED: usize = 1000;
/// Upper bound of the file system's own writes, relative to the writes of threads.
const MOST_OVERHEAD: f64 = 2.0;

/// The policy; see the module.
pub struct Auto {
    settings: Settings,
    history: History,
    scratch: Scratch,
    budget: crate::budget::Budget,
}

impl Auto {
    /// Creates a policy without history.
    pub fn new(settings: Settings) -> Self {
        let budget = crate::budget::Budget::full(settings.burst_bytes, settings.bytes_per_day);
        Self { settings, history: History::default(), scratch: Scratch::default(), budget }
    }

    /// The work of all decisions so far in solver steps, the unit that bounds a decision.
    pub fn work(&self) -> u64 {
        self.scratch.spent()
    }

    /// A plan that leads back.
    fn take_back(&mut self, mut plan: Plan, now_s: f64, mut moves: Vec<crate::Move>, share: f64) -> Plan {
        let text = format!("reverted: the plan that moved it brought {:.0} % of the throughput before", 100.0 * share);
        for mv in &mut moves {
            let (crate::Move::Thread { why, .. } | crate::Move::Process { why, .. } | crate::Move::File { why, .. }) =
                mv;
            *why = text.as_str().into();
        }
        self.history.taken_back(now_s, &moves);
        plan.moves = moves;
        plan
    }

    /// The machine without the part that unlisted threads use, and the CPUs that listed threads
    /// use.
    fn hardware(&self, topology: &Topology, snapshot: &Snapshot) -> Hardware {
        Hardware::new(topology, snapshot, &self.settings)
    }
}

impl Policy for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn tries(&self) -> bool {
        true
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        let mut plan = Plan::new(self.name());
        let now_s = sane(snapshot.time_s);
        self.budget.fill(now_s);
        let mut hardware = self.hardware(topology, snapshot);
        self.history.link_bw = self.history.link_bw.max(hardware.busiest_port(snapshot));
        hardware.carried(self.history.link_bw, self.history.link_full);
        let mapped = mapped::mapped(&hardware, snapshot);
        let listed = demand::listed(&hardware, snapshot, &self.settings, &mapped);
        let listed_cpus = take_others(&mut hardware, snapshot, &listed, &mapped);
        let mut demands = Demands::new(&hardware, snapshot, &self.settings, &self.history, &listed, &mapped);
        if demands.port_full && !self.history.link_full {
            self.history.link_full = true;
            hardware.carried(self.history.link_bw, true);
            demands = Demands::new(&hardware, snapshot, &self.settings, &self.history, &listed, &mapped);
        }
        let (strictness, back) = match self.history.turn(snapshot, &demands) {
            Turn::Wait(again) => {
                plan.keeps = plan::keeps(snapshot, &demands, &again);
                plan.moves = again;
                return plan;
            }
            Turn::Back(moves, share, now) => (2.0, Some((moves, share, now))),
            Turn::Rest => {
                plan.declined = staying(snapshot, &demands);
                return plan;
            }
            Turn::Decide { strictness } => (strictness, None),
        };
        let other = self.history.other_try();
        if let Some((moves, share, _)) = back.as_ref().filter(|_| other.is_none()) {
            return self.take_back(plan, now_s, moves.clone(), *share);
        }
        if demands.threads.is_empty() {
            return plan;
        }
        let mut teams = team::teams(&demands);
        seating::fit(&hardware, &demands, &mut teams, &self.settings, &mut self.scratch);
        let model = Model::new(&hardware, &demands, &teams, &self.settings, listed_cpus);
        let history = &self.history;
        let budget = self.budget.left();
        let first = back.is_none();
        let may =
            |change: &Change| (first || !change.moves_data()) && allowed(&model, snapshot, history, budget, change);
        let found = model.search(&mut self.scratch, &may);
        let least = self.settings.min_gain * strictness * found.stays.net;
        let gain = found.worth.rate / found.stays.rate;
        // A plan that made things worse has shown something; with it, the model may find a
        // placement better than the one before.
        let beats = |now: f64| {
            other.is_some_and(|(best, strictness)| now * gain > (1.0 + self.settings.min_gain * strictness) * best)
        };
        if let Some((moves, share, _)) = back.filter(|b| !beats(b.2)) {
            return self.take_back(plan, now_s, moves, share);
        }
        if found.worth.net - found.stays.net > least {
            let moves = plan::moves(&model, snapshot, &found, &mut self.scratch);
            plan.predicted = Some(plan::predict(&model, snapshot, &found, &mut self.scratch));
            plan.notes.push(plan::whole(&model, &found));
            self.budget.take(file_bytes(snapshot, &moves));
            self.history.planned(snapshot, &demands, &moves, found.worth.rate / found.stays.rate);
            plan.moves = self.history.asked_for();
            plan.keeps = plan::keeps(snapshot, &demands, &plan.moves);
        } else {
            plan.declined = staying(snapshot, &demands);
        }
        if hardware.nodes.iter().any(|n| n.read_work <= 0.0) {
            plan.notes.push("bandwidth of some nodes unknown; contention there not judged".into());
        }
        plan
    }
}

/// Whether a change may be tried.
fn allowed(model: &Model, snapshot: &Snapshot, history: &History, budget: f64, change: &Change) -> bool {
    let id = |node: usize| model.hardware.nodes[node].id;
    let pid = |process: usize| model.demands.programs[process].pid;
    let files = |mut files: Box<dyn Iterator<Item = usize> + '_>, bytes: f64| {
        history.windows >= BEFORE_DATA
            && bytes <= budget
            && files.all(|f| history.may_move_file(&snapshot.files[f].file))
    };
    let threads = |team: usize, node: usize| {
        let t = &model.teams[team];
        node == t.node || (t.came_from != Some(node) && !history.vetoed(pid(t.process), id(node)))
    };
    match change {
        Change::Threads { team, node, data, count, .. } => {
            let t = &model.teams[*team];
            let own = t.members.iter().flat_map(|m| model.demands.threads[*m].files.iter().map(|f| f.0));
            threads(*team, *node)
                && (data.is_none()
                    || !history.files_stay(pid(t.process)) && files(Box::new(own), t.file_bytes * *count as f64))
        }
        Change::Process { process, node, .. } => {
            let mut teams = model.teams.iter().filter(|t| t.process == *process);
            !history.vetoed(pid(*process), id(*node))
                && history.may_move_process(pid(*process))
                && teams.all(|t| t.node == *node || !t.held)
        }
        Change::Group { group, node, users } => {
            let g = &model.demands.groups.list[*group];
            let uses = |t: usize| *users && model.teams[t].shared.iter().any(|s| s.0 == *group);
            let stays = |t: &Team| t.shared.iter().any(|s| s.0 == *group) && history.files_stay(pid(t.process));
            !model.teams.iter().any(stays)
                && (0..model.teams.len()).all(|t| !uses(t) || threads(t, *node))
                && files(Box::new(g.files.iter().copied()), model.group_bytes(*group, *node))
        }
        Change::Swap { a, b } => threads(a.0, b.1.node) && threads(b.0, a.1.node),
    }
}

/// Subtracts the loads of unlisted threads from the machine. Returns the CPUs that listed threads
/// use.
fn take_others(
    hardware: &mut Hardware,
    snapshot: &Snapshot,
    listed: &[usize],
    mapped: &rustc_hash::FxHashMap<u32, mapped::Mapped>,
) -> f64 {
    let window_s = sane(snapshot.window_s);
    if window_s <= 0.0 {
        return 0.0;
    }
    let n = hardware.len();
    let (mut cpu, mut small, mut read, mut written) = (vec![0.0; n], vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    let mut counts = vec![false; snapshot.threads.len()];
    listed.iter().for_each(|i| counts[*i] = true);
    for (t, counts) in snapshot.threads.iter().zip(counts) {
        if let Some(node) = hardware.index(t.node) {
            cpu[node] += sane(t.cpu_s);
            if t.file_bytes() > 0 && !counts {
                small[node] += sane(t.cpu_s);
            }
        }
        for (sum, bytes) in [(&mut read, &t.read_bytes), (&mut written, &t.write_bytes)] {
            for (id, bytes) in bytes.iter() {
                if let Some(node) = hardware.index(id) {
                    sum[node] += bytes as f64;
                }
            }
        }
    }
    for m in mapped.values() {
        for (id, by_reading, by_writing) in &m.nodes {
            if let Some(node) = hardware.index(*id) {
                read[node] += by_reading;
                written[node] += by_writing;
            }
        }
    }
    let all_written: f64 = written.iter().sum();
    let seen_written: f64 = snapshot.nodes.iter().map(|l| l.write_bytes as f64).sum();
    // Journals and logs accompany the writes of threads, wherever those land.
    let overhead = if all_written > 0.0 { (seen_written / all_written).clamp(1.0, MOST_OVERHEAD) } else { 1.0 };
    for node in &mut hardware.nodes {
        node.write_work *= overhead;
    }
    for load in &snapshot.nodes {
        let Some(node) = hardware.index(load.id) else { continue };
        let others = (load.cpu_s.map_or(0.0, sane) - cpu[node]).max(0.0) + small[node];
        let reads = (load.read_bytes as f64 - read[node]).max(0.0);
        let writes = (load.write_bytes as f64 - overhead * written[node]).max(0.0);
        let (n, bytes_s) = (&hardware.nodes[node], |bytes: f64| bytes / window_s);
        let controller = bytes_s(reads) * n.read_work + bytes_s(writes) * n.write_work / overhead;
        hardware.taken(node, others / window_s, controller);
    }
    cpu.iter().sum::<f64>() / window_s
}

/// Bytes of files that these moves rewrite.
fn file_bytes(snapshot: &Snapshot, moves: &[(crate::Move, f64)]) -> f64 {
    let bytes = |(mv, _): &(crate::Move, f64)| match mv {
        crate::Move::File { file, from, .. } => {
            snapshot.files.iter().find(|f| f.file == *file).map_or(0.0, |f| f.bytes.get(*from) as f64)
        }
        _ => 0.0,
    };
    moves.iter().map(bytes).sum()
}

/// Threads that stay although they read remotely.
fn staying(snapshot: &Snapshot, demands: &Demands) -> Vec<Declined> {
    let mut staying: Vec<(u64, u32, Declined)> = Vec::new();
    for d in &demands.threads {
        let t = &snapshot.threads[d.thread];
        let Some(home) = t.home().filter(|home| *home != t.node) else { continue };
        let read = format!(
            "{} of {} read from node {home}",
            show(t.read_bytes.get(home) as f64),
            show(t.read_bytes.total() as f64)
        );
        let (reason, why) = match &t.held {
            Some(held) => ("held", format!("{held}; {read}")),
            None if !t.allowed_nodes.contains(&home) => ("not_allowed", format!("{read}, where it may not run")),
            None => ("no_gain", format!("{read}; no move would save enough")),
        };
        staying.push((t.remote_bytes(), t.tid, Declined { tid: t.tid, reason: reason.into(), why }));
    }
    staying.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    staying.truncate(MOST_DECLINED);
    staying.into_iter().map(|s| s.2).collect()
}
