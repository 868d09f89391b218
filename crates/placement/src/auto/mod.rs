//! homenode's own policy: threads, processes and data in one decision, by what it saves.
//!
//! **Problem.** Each paper moves one kind of thing for one reason. What they leave out: read contention on the home node (NThread
//! V-C), mapped files (NThread), more than two nodes at unequal distances (thesis 9.1.4), memory without CPUs; and when it is
//! better to move the data, the process or nothing.
//!
//! **Approach.** One cost model in seconds over a horizon ([`Settings::horizon_s`]). From a window it takes what each thread asks for
//! wherever it is ([`demand`]), merges alike threads ([`team`]), and predicts for any placement how fast all of them get, with
//! latency by distance, queues at controllers, shared CPUs and caches ([`seating`], [`network`]); a search looks for a better one, net
//! of what the moves cost ([`search`]). A plan is made if it promises enough; it is then measured, and taken back if things got
//! worse ([`history`]). Every move says what it saves and what the alternatives would ([`plan`]).
//!
//! **Moves stop.** Plans for a load are made in its first windows, and each must promise four times as much as the one before.
//!
//! **Limits.** The load is taken to go on as it did. Locks and links between sockets are not seen. Memory constants come from
//! the papers until a process shows its own.

mod data;
mod demand;
mod hardware;
mod history;
mod network;
mod plan;
mod search;
mod seating;
mod settings;
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

/// Windows of the same load that must have been seen before data is moved.
const BEFORE_DATA: u32 = 2;
/// Threads that stay which are listed.
const MOST_DECLINED: usize = 1000;
/// What the file system writes of its own is at most this many times what threads write.
const MOST_OVERHEAD: f64 = 2.0;

/// The policy: see the module.
pub struct Auto {
    settings: Settings,
    history: History,
    scratch: Scratch,
    budget: crate::budget::Budget,
}

impl Auto {
    /// A policy that has seen nothing yet.
    pub fn new(settings: Settings) -> Self {
        let budget = crate::budget::Budget::full(settings.burst_bytes, settings.bytes_per_day);
        Self { settings, history: History::default(), scratch: Scratch::default(), budget }
    }

    /// The machine with what is not listed taken away; and the CPUs that listed threads use.
    fn hardware(&self, topology: &Topology, snapshot: &Snapshot) -> Hardware {
        Hardware::new(topology, snapshot, &self.settings)
    }
}

impl Policy for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        let mut plan = Plan::new(self.name());
        let now_s = sane(snapshot.time_s);
        self.budget.fill(now_s);
        let mut hardware = self.hardware(topology, snapshot);
        let listed_cpus = take_others(&mut hardware, snapshot, &self.settings);
        let demands = Demands::new(&hardware, snapshot, &self.settings, &self.history);
        let strictness = match self.history.turn(snapshot, &demands) {
            Turn::Wait(again) => {
                plan.moves = again;
                return plan;
            }
            Turn::Back(mut moves, share) => {
                let text = format!(
                    "taken back: the plan that moved it brought {:.0} % of what there was before",
                    100.0 * share
                );
                for mv in &mut moves {
                    let (crate::Move::Thread { why, .. }
                    | crate::Move::Process { why, .. }
                    | crate::Move::File { why, .. }) = mv;
                    *why = text.as_str().into();
                }
                self.history.taken_back(now_s, &moves);
                plan.moves = moves;
                return plan;
            }
            Turn::Rest => {
                plan.declined = staying(snapshot, &demands);
                return plan;
            }
            Turn::Decide { strictness } => strictness,
        };
        if demands.threads.is_empty() {
            return plan;
        }
        let teams = team::teams(&demands);
        let model = Model::new(&hardware, &demands, &teams, &self.settings, listed_cpus);
        let history = &self.history;
        let budget = self.budget.left();
        let may = |change: &Change| allowed(&model, snapshot, history, budget, change);
        let found = model.search(&mut self.scratch, &may);
        let least = self.settings.min_gain * strictness * found.stays.net;
        if found.worth.net - found.stays.net > least {
            let moves = plan::moves(&model, snapshot, &found, &mut self.scratch);
            plan.predicted = Some(plan::predict(&model, snapshot, &found, &mut self.scratch));
            plan.notes.push(plan::whole(&model, &found));
            self.budget.take(file_bytes(snapshot, &moves));
            self.history.planned(snapshot, &demands, &moves, found.worth.rate / found.stays.rate);
            plan.moves = moves.into_iter().map(|(mv, _)| mv).collect();
            plan.keeps = plan::keeps(snapshot, &demands, &plan.moves);
        } else {
            plan.declined = staying(snapshot, &demands);
        }
        if hardware.nodes.iter().any(|n| n.read_work <= 0.0) {
            plan.notes.push("bandwidth of some nodes unknown: contention there not judged".into());
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
        node == t.node || !history.vetoed(pid(t.process), id(node))
    };
    match change {
        Change::Threads { team, node, data, count, .. } => {
            let t = &model.teams[*team];
            let own = t.members.iter().flat_map(|m| model.demands.threads[*m].files.iter().map(|f| f.0));
            threads(*team, *node) && (data.is_none() || files(Box::new(own), t.file_bytes * *count as f64))
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
            (0..model.teams.len()).all(|t| !uses(t) || threads(t, *node))
                && files(Box::new(g.files.iter().copied()), model.group_bytes(*group, *node))
        }
        Change::Swap { a, b } => threads(a.0, b.1.node) && threads(b.0, a.1.node),
    }
}

/// Takes what is not listed from the machine. Returns the CPUs that listed threads use.
fn take_others(hardware: &mut Hardware, snapshot: &Snapshot, settings: &Settings) -> f64 {
    let window_s = sane(snapshot.window_s);
    if window_s <= 0.0 {
        return 0.0;
    }
    let n = hardware.len();
    let (mut cpu, mut small, mut read, mut written) = (vec![0.0; n], vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    for t in &snapshot.threads {
        if let Some(node) = hardware.index(t.node) {
            cpu[node] += sane(t.cpu_s);
            if t.file_bytes() > 0 && t.file_bytes() < settings.min_bytes {
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
    let all_written: f64 = written.iter().sum();
    let seen_written: f64 = snapshot.nodes.iter().map(|l| l.write_bytes as f64).sum();
    // Journals and logs come with what threads write, wherever that is.
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

/// Bytes of files that these moves write anew.
fn file_bytes(snapshot: &Snapshot, moves: &[(crate::Move, f64)]) -> f64 {
    let bytes = |(mv, _): &(crate::Move, f64)| match mv {
        crate::Move::File { file, from, .. } => {
            snapshot.files.iter().find(|f| f.file == *file).map_or(0.0, |f| f.bytes.get(*from) as f64)
        }
        _ => 0.0,
    };
    moves.iter().map(bytes).sum()
}

/// Threads that read remotely and stay.
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
