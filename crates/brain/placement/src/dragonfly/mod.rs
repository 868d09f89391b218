//! Dragonfly: moves the data where NThread gives up because the home node's controller is
//! overloaded (Han et al., "Is Data Migration Evil in the NVM File System?").
//!
//! **Problem.** NThread does not send a thread to an overloaded node. The thread continues to read
//! remotely, through the very controller that is overloaded.
//!
//! **Approach.** Threads move by NThread's rules. In a window in which step 3 finds an overloaded
//! node, no thread moves to that node, or away from it to relieve it. A controller that is read
//! from afar is full at fewer bytes per second, so remote reads weigh TH_l / TH_r there. Instead,
//! the files that remote threads read from it enter a request queue ([`queue`]). T_window is the
//! paper's 6 s, or the first whole number of windows in which the best file pays back by Eq. 9
//! ([`mtp`]), from figures that migrations measure ([`estimate`], [`flight`]). When the queue has
//! waited for T_window and the node is still overloaded, the queue is emptied: a load that lasted
//! T_window is expected to last for another. The policy thus triggers itself, which the paper
//! leaves to future work. Files move in the order of benefit per byte. Only files that are read
//! often enough move, which bounds write amplification. A file that has moved stays for a time that
//! doubles with each move.
//!
//! **Limits.** One migration runs at a time. Files of unknown size do not move, nor do files whose
//! data the plane cannot move. The target needs enough memory and must not become the next
//! overloaded node. CPU contention is handled by NThread's step 4; the paper leaves it out.

mod estimate;
mod flight;
pub mod mtp;
mod queue;
mod settings;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
pub use settings::Settings;
use topology::{FileId, NodeId, Topology};

use crate::load::{Loads, Machine};
use crate::nthread::{self, MAX_DECLINED, NThread, Variant};
use crate::processes::{sane, show};
use crate::{Declined, Move, Plan, Policy, Reason, Snapshot, Subject, Traits};
use estimate::Estimates;
use flight::{Flight, Moving, Phase};
use queue::{Offer, Queue};

/// Spare memory that a target must keep, as a fraction of what is moved to it.
const SPARE: f64 = 0.1;
/// A file's moves are forgotten after this many cool-downs.
const REMEMBER: f64 = 64.0;

/// When a file last moved, and how often it has moved.
#[derive(Clone, Copy, Debug)]
struct Moved {
    at_s: f64,
    times: u32,
}

/// The policy; see the module.
pub struct Dragonfly {
    settings: Settings,
    threads: nthread::Settings,
    nthread: NThread,
    locality: NThread,
    queue: Queue,
    estimates: Estimates,
    flight: Option<Flight>,
    moved: FxHashMap<FileId, Moved>,
}

impl Dragonfly {
    /// Creates a policy without history.
    pub fn new(settings: Settings, threads: nthread::Settings) -> Self {
        Self {
            nthread: NThread::new(Variant::Full, threads.clone()),
            locality: NThread::new(Variant::Locality, threads.clone()),
            queue: Queue::default(),
            estimates: Estimates::initial(&settings),
            flight: None,
            moved: FxHashMap::default(),
            settings,
            threads,
        }
    }

    /// Follows the migration in progress through this window.
    fn follow(&mut self, plan: &mut Plan, snapshot: &Snapshot) {
        let Some(flight) = &mut self.flight else { return };
        match flight.pass(snapshot, &mut self.estimates) {
            Phase::Running | Phase::Ended => {}
            Phase::Stalled => {
                for (file, moving) in flight.unmoved() {
                    let why = format!("requested before; {} still on node {}", show(moving.left), flight.source);
                    plan.moves.push(file_move(snapshot, file, flight.source, moving.to, why));
                }
            }
            Phase::Over => {
                for (file, _) in flight.unmoved() {
                    plan.notes.push(format!("{file}: requested, but not moved"));
                }
                self.flight = None;
            }
        }
    }

    /// Fills the queue from one window in which `source` was overloaded.
    fn enqueue(&mut self, machine: &Machine, snapshot: &Snapshot, source: NodeId) {
        let window_s = snapshot.window_s;
        self.queue.pass(window_s, source);
        let in_flight = |file: FileId| self.flight.as_ref().is_some_and(|f| f.files.contains_key(&file));
        // First the threads that cannot go to their data, because they bring files in; then other
        // readers of the same files.
        let (away, others): (Vec<_>, Vec<_>) = snapshot
            .threads
            .iter()
            .partition(|t| t.node != source && nthread::data_home(machine, &self.threads, window_s, t) == Some(source));
        for (thread, brings) in away.iter().map(|t| (t, true)).chain(others.iter().map(|t| (t, false))) {
            for used in thread.files.iter().filter(|u| !in_flight(u.file)) {
                let bytes = used.read_bytes.get(source) as f64;
                if bytes > 0.0 && (brings || self.queue.contains(used.file)) {
                    self.queue.read(window_s, used.file, thread.node, bytes);
                }
            }
        }
        for observed in &snapshot.files {
            let counted = observed.bytes.get(source);
            let bytes = if observed.bytes.is_empty() { observed.size.unwrap_or(0) } else { counted };
            self.queue.resident(observed.file, bytes as f64);
            if observed.movable == Some(false) {
                self.queue.remove(observed.file);
            }
        }
    }

    /// Whether a file must stay, with the reason.
    fn refuse(&self, now_s: f64, offer: &Offer) -> Option<String> {
        if offer.remote_bw <= self.settings.margin * offer.local_bw {
            return Some(format!("{}/s read remotely, {}/s locally", show(offer.remote_bw), show(offer.local_bw)));
        }
        if (offer.remote_bw - offer.local_bw) * self.settings.reuse_s < offer.bytes {
            return Some(format!("{} read at only {}/s", show(offer.bytes), show(offer.remote_bw)));
        }
        let moved = self.moved.get(&offer.file)?;
        let stays = self.cooldown_s(moved.times);
        let since = now_s - moved.at_s;
        ((0.0..stays).contains(&since)).then(|| format!("moved {since:.0} s ago"))
    }

    fn cooldown_s(&self, times: u32) -> f64 {
        self.settings.cooldown_s * f64::from(2u32.saturating_pow(times.saturating_sub(1)))
    }

    /// The files of the queue that are worth moving together, best first, and T_window: the
    /// shortest window in which the first file pays back, filled up with other files that do so
    /// too.
    fn batch(&self, machine: &Machine, snapshot: &Snapshot, mut loads: Loads, source: usize) -> (Vec<Offer>, f64) {
        let now_s = sane(snapshot.time_s);
        let mut free: BTreeMap<NodeId, f64> =
            snapshot.nodes.iter().map(|n| (n.id, n.memory_free as f64 / (1.0 + SPARE))).collect();
        let (mut batch, mut bytes, mut remote_bw) = (Vec::new(), 0.0, 0.0);
        let mut window_s = self.settings.min_window_s;
        for offer in self.queue.offers() {
            let Some(to) = machine.index(offer.to).filter(|to| machine.memory[*to] == *to) else { continue };
            let Some(free) = free.get_mut(&offer.to).filter(|f| **f >= offer.bytes) else { continue };
            if self.refuse(now_s, &offer).is_some() {
                continue;
            }
            let mtp = self.estimates.mtp(remote_bw + offer.remote_bw, bytes + offer.bytes);
            let needs_s = mtp.window_s(snapshot.window_s);
            if needs_s > if batch.is_empty() { self.settings.max_window_s } else { window_s } {
                continue;
            }
            // As `loads` counts remote reads.
            let bw = offer.remote_bw * self.settings.local_gain + offer.local_bw;
            let load = machine.weigh((bw * snapshot.window_s) as u64);
            let (here, there) =
                (loads.controller(source).saturating_sub(load), loads.controller(to).saturating_add(load));
            if there > here && there > machine.controller_limit[to].unwrap_or(0) {
                continue;
            }
            loads.reads[source] = loads.reads[source].saturating_sub(load);
            loads.reads[to] = loads.reads[to].saturating_add(load);
            *free -= offer.bytes;
            bytes += offer.bytes;
            remote_bw += offer.remote_bw;
            window_s = window_s.max(needs_s);
            batch.push(offer);
        }
        (batch, window_s)
    }

    /// Empties the queue if it has waited for T_window and Eq. 9 holds.
    fn trigger(&mut self, plan: &mut Plan, machine: &Machine, snapshot: &Snapshot, loads: Loads, source: usize) {
        if self.flight.is_some() || self.queue.is_empty() {
            return;
        }
        let (batch, window_s) = self.batch(machine, snapshot, loads, source);
        let waited_s = self.queue.waited_s;
        if batch.is_empty() {
            if self.queue.unknown() > 0 {
                plan.notes.push(format!("{} queued files of unknown size are not moved", self.queue.unknown()));
            }
            if waited_s >= self.settings.max_window_s {
                self.estimates.forget(&self.settings);
                self.queue = Queue::default();
            }
            return;
        }
        let (bytes, remote_bw) = batch.iter().fold((0.0, 0.0), |sum, o| (sum.0 + o.bytes, sum.1 + o.remote_bw));
        let mtp = self.estimates.mtp(remote_bw, bytes);
        // A little slack, because window lengths are measured.
        if waited_s + 1e-6 < window_s || !mtp.pays(window_s) {
            let queued = format!("{} queued files, {}, have waited {waited_s:.1} s", batch.len(), show(bytes));
            plan.notes.push(format!(
                "{queued} of T_window {window_s:.1} s (K {:.1} s, T_m {:.1} s, {mtp})",
                mtp.k(),
                mtp.migration_s
            ));
            return;
        }
        let from = machine.id(source);
        let now_s = sane(snapshot.time_s);
        let mut files = BTreeMap::new();
        for offer in batch {
            let why = format!(
                "{}/s read from node {}, {}/s from node {from}, whose controller is overloaded; {} move, T_m {:.1} s < 2 × ({window_s:.1} s − K {:.1} s), {mtp}",
                show(offer.remote_bw),
                offer.to,
                show(offer.local_bw),
                show(offer.bytes),
                mtp.migration_s,
                mtp.k()
            );
            plan.moves.push(file_move(snapshot, offer.file, from, offer.to, why));
            let moved = self.moved.entry(offer.file).or_insert(Moved { at_s: now_s, times: 0 });
            *moved = Moved { at_s: now_s, times: moved.times.saturating_add(1) };
            files.insert(offer.file, Moving { to: offer.to, asked: offer.bytes, left: offer.bytes, told: false });
        }
        self.flight = Some(Flight::new(from, mtp, files));
        self.queue = Queue::default();
    }
}

fn file_move(snapshot: &Snapshot, file: FileId, from: NodeId, to: NodeId, why: String) -> Move {
    let generation = snapshot.files.iter().find(|f| f.file == file).and_then(|f| f.generation).unwrap_or(0);
    let subject = Subject::File(FileId { generation, ..file });
    Move { subject, pid: 0, from, to, reason: Reason::OverloadedHome, why: why.into(), ranges: Vec::new() }
}

impl Policy for Dragonfly {
    fn name(&self) -> &'static str {
        "dragonfly"
    }

    fn data_period_s(&self) -> f64 {
        self.settings.min_window_s
    }

    fn traits(&self) -> Traits {
        let without_bandwidth = Some("no file moves, and no moves for controller contention");
        Traits { moves_files: true, without_bandwidth, ..Traits::default() }
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        let usable = sane(snapshot.window_s) > 0.0;
        let machine = Machine::new(topology, &self.threads, if usable { snapshot.window_s } else { 1.0 });
        let gain = self.settings.local_gain;
        let overloaded = usable.then(|| nthread::overloaded_home(&machine, &self.threads, gain, snapshot)).flatten();
        let now_s = sane(snapshot.time_s);
        let forget_s = REMEMBER * self.settings.cooldown_s;
        self.moved.retain(|_, m| (0.0..=forget_s).contains(&(now_s - m.at_s)));
        let Some((source, loads)) = overloaded else {
            let mut plan = Plan { policy: self.name().to_owned(), ..self.nthread.decide(topology, snapshot) };
            if usable {
                self.follow(&mut plan, snapshot);
            }
            return plan;
        };
        // Step 3 has priority: apply steps 1 and 3 without the part that concerns the overloaded
        // node.
        let mut plan = Plan { policy: self.name().to_owned(), ..self.locality.decide(topology, snapshot) };
        let id = machine.id(source);
        let load = machine.controller_fraction(source, loads.controller(source)).unwrap_or(0.0);
        let stays = |mv: &Move| mv.subject.is_thread() && mv.to == id;
        for mv in plan.moves.iter().filter(|mv| stays(mv)) {
            if let Some(tid) = mv.tid()
                && plan.declined.len() < MAX_DECLINED
            {
                let why = format!(
                    "{}; node {id}'s memory controller would be at {:.0} %; its files wait to move",
                    mv.why,
                    100.0 * load
                );
                plan.declined.push(Declined { tid, reason: "overloaded_home".into(), why });
            }
        }
        plan.moves.retain(|mv| !stays(mv));
        // The prediction includes moves that were struck out.
        plan.predicted = None;
        self.follow(&mut plan, snapshot);
        self.enqueue(&machine, snapshot, id);
        let immovable = self.queue.take_immovable();
        if immovable > 0 {
            plan.notes.push(format!("{immovable} files on node {id} cannot be moved"));
        }
        self.trigger(&mut plan, &machine, snapshot, loads, source);
        plan
    }
}
