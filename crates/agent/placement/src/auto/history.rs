//! State across windows: which moves are under way or did not work, and how long the load has been
//! the same.
//!
//! **Problem.** A slightly wrong model sees an improvement from A to B and another from B to A.
//! Moves are requests: the engine or the plane may hold them back or refuse them, and copies take
//! time.
//!
//! **Approach.** While moves of a plan are under way, as the snapshot's outcomes say, the policy
//! decides nothing new. It requests again what a rail held back, and leaves alone for [`STUCK_S`]
//! what was refused, has failed or did not pay. For one load, a process or a file moves once and a
//! thread twice, plans are made only in the first [`PLANNING`] windows, and each must promise
//! [`STRICTER`] times as much as the one before: moves end, whatever the model predicts. A changed
//! load (other threads, other demands) starts afresh. Later, threads that something else has taken
//! from the place they had then may return to it, and nothing else moves: threads that never had to
//! move are not bound, and the kernel may move all of them at once.
//!
//! **Limits.** Whether a plan paid is not measured here: the engine compares the windows before and
//! after it, and takes it back. Without outcomes, as in a single snapshot, moves count as made.

use rustc_hash::{FxHashMap, FxHashSet};
use topology::NodeId;

use super::demand::{Demand, Demands};
use super::recent::Recent;
use crate::processes::sane;
use crate::{Move, OutcomeState, Snapshot, Subject};

/// Seconds after which a load that stays the same is examined again, and a subject whose move
/// failed may be asked for again: as long as the engine's settled loads stay
/// (`engine.settle.again_s`).
const STUCK_S: f64 = 600.0;
/// Windows after a plan's moves before the next plan. The engine's dwell time of 3 s is as long,
/// for the same reason: the first window shows the move itself, and two show its effect.
const AFTER_PLAN: u32 = 3;
/// Largest number of moves of a thread for one load: at once, and later with data, which moves only
/// after [`BEFORE_DATA`](super::BEFORE_DATA) windows.
const MOST_MOVED: u32 = 2;
/// Each further plan for the same load must promise this many times as much: with the least gain of
/// 1 %, a seventh plan has to promise 64 %.
const STRICTER: f64 = 2.0;
/// Windows of a load in which plans are made. With [`AFTER_PLAN`], all moves end within the ten
/// windows after which the engine takes a load for settled.
const PLANNING: u32 = 7;
/// Windows of a load in which held back moves are requested again: until the engine takes it for
/// settled.
const ASKING: u32 = 10;
/// Number of windows that the first plan waits while throughput still changes by more than
/// [`STEADY`]: the kernel spreads threads that start together first.
const SETTLING: u32 = 4;
/// The share for [`SETTLING`]: three times the least gain of a plan, which a smaller change hides
/// less.
const STEADY: f64 = 0.03;
/// For this many seconds after its start, a thread is assumed to be on its way to where the kernel
/// wants it: a few times the longest balancing interval of a large machine.
const YOUNG_S: f64 = 3.0;
/// A load has changed when this share of its threads has: fewer change too little of the
/// throughput.
const OTHERS: f64 = 0.2;
/// A thread has changed when it does this many times as much or as little. No placement explains
/// that: the largest effect of distance alone that the papers measured is 3.6 (NP Fig. 3).
const FACTOR: f64 = 4.0;
/// Data is on a node when more than this share of the reads comes from it: a clear majority, so
/// that halves and thirds that drift are no change.
const MAINLY: f64 = 0.7;

/// The behaviour of a thread, as far as its place does not matter.
#[derive(Clone, Copy, Debug)]
struct Doing {
    rate: f64,
    /// The node of its data; `None` if the data is on several nodes or being rewritten.
    data: Option<NodeId>,
}

impl Doing {
    fn like(&self, before: &Self) -> bool {
        (1.0 / FACTOR..FACTOR).contains(&(self.rate / before.rate))
            && (self.data.is_none() || before.data.is_none() || self.data == before.data)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Windows since the load last changed or was examined again.
    pub windows: u32,
    plans: i32,
    /// Windows to wait after the moves of the last plan.
    waits: u32,
    /// Bytes/s in the last window.
    rate: f64,
    /// When the load appeared or was last examined.
    since_s: f64,
    load: FxHashMap<u32, Doing>,
    /// The threads present when the load was last examined, busy or not.
    present: FxHashSet<u32>,
    /// The node of each listed thread, by tid, when the load was last planned for.
    seats: FxHashMap<u32, NodeId>,
    asked: Vec<Move>,
    /// How often threads, by tid, have moved for this load; and the processes, by pid, that have.
    moved_threads: FxHashMap<u32, u32>,
    moved_processes: FxHashSet<u32>,
    /// When moves of these failed, or files were asked to move.
    stuck: FxHashMap<Subject, f64>,
    /// The longest inferred lock time per byte of each process, see [`super::locks`].
    locks: FxHashMap<u32, f64>,
    /// The windows that the next plan is made from.
    pub recent: Recent,
}

/// The action of this window.
pub(super) enum Turn {
    /// Request these moves again, and decide nothing.
    Wait(Vec<Move>),
    /// Decide; a plan must promise this many times the least gain.
    Decide { strictness: f64 },
    /// The load has been planned for.
    Rest,
}

impl History {
    /// Takes one window in.
    pub fn turn(&mut self, snapshot: &Snapshot, demands: &Demands) -> Turn {
        let now_s = sane(snapshot.time_s);
        let (again, copies) = self.follow(snapshot, now_s);
        self.notice_changes(snapshot, demands, now_s);
        self.windows = self.windows.saturating_add(1);
        let rate: f64 = demands.threads.iter().map(|d| d.work.rate).sum();
        let before = std::mem::replace(&mut self.rate, rate);
        let young = before == 0.0 && mostly_young(snapshot, demands, now_s);
        let changing = self.plans == 0 && (young || before > 0.0 && (rate - before).abs() > STEADY * rate);
        if !(0.0..STUCK_S).contains(&(now_s - self.since_s)) {
            self.begin(now_s);
        }
        let pids: FxHashSet<u32> = snapshot.threads.iter().map(|t| t.pid).collect();
        self.locks.retain(|pid, _| pids.contains(pid));
        self.locks.extend(demands.programs.iter().filter(|p| p.lock_s > 0.0).map(|p| (p.pid, p.lock_s)));
        let under_way = copies || !again.is_empty();
        let back = snapshot.outcomes.iter().any(|o| matches!(o.result, OutcomeState::RolledBack { .. }));
        if self.windows == 1 || self.windows > PLANNING || under_way || back || self.waits == AFTER_PLAN {
            self.recent.clear();
        }
        if under_way {
            return Turn::Wait(again);
        }
        if self.windows <= PLANNING && self.waits < AFTER_PLAN {
            self.recent.push(snapshot);
        }
        let waits = self.waits;
        self.waits = waits.saturating_sub(1);
        let threads = || demands.threads.iter().map(|d| &snapshot.threads[d.thread]);
        if self.windows > PLANNING {
            let displaced =
                threads().filter(|t| t.held.is_none() && self.seat(t.tid).is_some_and(|seat| seat != t.node));
            if waits > 0 || displaced.count() as f64 <= OTHERS * demands.threads.len() as f64 {
                return Turn::Rest;
            }
            self.waits = AFTER_PLAN;
        } else if waits > 0 || changing && self.windows < SETTLING {
            return Turn::Wait(Vec::new());
        } else {
            self.seats = threads().map(|t| (t.tid, t.node)).collect();
        }
        Turn::Decide { strictness: STRICTER.powi(self.plans) }
    }

    /// Whether the load has been planned for, so that threads may only return to their
    /// [seats](Self::seat).
    pub fn planned_for(&self) -> bool {
        self.windows > PLANNING
    }

    /// Where the last plan for this load left a thread.
    pub fn seat(&self, tid: u32) -> Option<NodeId> {
        self.seats.get(&tid).copied()
    }

    /// Looks up what became of the requested moves. Returns those to request again, and whether any
    /// copies or waits for its turn to copy.
    fn follow(&mut self, snapshot: &Snapshot, now_s: f64) -> (Vec<Move>, bool) {
        self.stuck.retain(|_, since_s| (0.0..STUCK_S).contains(&(now_s - *since_s)));
        let over = self.windows >= ASKING;
        let (mut results, mut copies) = (FxHashMap::default(), false);
        for outcome in &snapshot.outcomes {
            use OutcomeState::{Done, Failed, Gone, HeldBack, Queued, Refused, RolledBack, Running};
            match outcome.result {
                Refused { .. } | Failed { .. } | RolledBack { .. } => {
                    self.stuck.insert(outcome.subject.clone(), now_s);
                }
                HeldBack { .. } if over => _ = self.stuck.insert(outcome.subject.clone(), now_s),
                HeldBack { .. } | Queued | Running { .. } | Done { .. } | Gone => {}
            }
            results.insert(&outcome.subject, &outcome.result);
        }
        let mut again = Vec::new();
        self.asked.retain(|mv| match results.get(&mv.subject) {
            Some(OutcomeState::HeldBack { .. }) if !over => {
                again.push(mv.clone());
                true
            }
            Some(OutcomeState::Queued | OutcomeState::Running { .. }) => {
                copies = true;
                true
            }
            _ => false,
        });
        (again, copies)
    }

    /// Records the moves of a plan.
    pub fn planned(&mut self, snapshot: &Snapshot, moves: &[Move]) {
        self.plans += 1;
        self.waits = AFTER_PLAN;
        for mv in moves {
            match &mv.subject {
                Subject::Thread { tid, .. } => {
                    *self.moved_threads.entry(*tid).or_default() += 1;
                    self.seats.insert(*tid, mv.to);
                }
                Subject::Process { pid, .. } => _ = self.moved_processes.insert(*pid),
                file @ Subject::File { .. } => _ = self.stuck.insert(file.clone(), sane(snapshot.time_s)),
            }
            self.asked.push(mv.clone());
        }
    }

    /// Whether this thread, process or file may be asked to move; `pid` is a thread's process.
    pub fn may_move(&self, subject: &Subject, pid: u32) -> bool {
        let moved = match subject {
            Subject::Thread { tid, .. } => {
                self.moved_threads.get(tid).is_some_and(|times| *times >= MOST_MOVED)
                    || self.moved_processes.contains(&pid)
            }
            Subject::Process { pid, .. } => self.moved_processes.contains(pid),
            Subject::File { .. } => false,
        };
        !moved && !self.stuck.contains_key(subject)
    }

    /// The longest lock time of a process so far.
    pub fn lock_s(&self, pid: u32) -> f64 {
        self.locks.get(&pid).copied().unwrap_or(0.0)
    }

    /// Begins a load.
    fn begin(&mut self, now_s: f64) {
        (self.windows, self.plans, self.since_s) = (0, 0, now_s);
        self.moved_threads.clear();
        self.moved_processes.clear();
    }

    fn notice_changes(&mut self, snapshot: &Snapshot, demands: &Demands, now_s: f64) {
        // A process stands still while its memory is copied.
        if self.asked.iter().any(|mv| mv.subject.is_process()) {
            return;
        }
        let doing = |d: &Demand| {
            let t = &snapshot.threads[d.thread];
            let written =
                t.write_bytes.total() > 0 || d.work.shared.iter().any(|s| demands.groups.list[s.group].written > 0.0);
            let mainly = |home: &NodeId| t.read_bytes.get(*home) as f64 > MAINLY * t.read_bytes.total() as f64;
            (t.tid, Doing { rate: d.work.rate, data: t.home().filter(|home| !written && mainly(home)) })
        };
        let load: FxHashMap<u32, Doing> = demands.threads.iter().map(doing).collect();
        let present: FxHashSet<u32> = snapshot.threads.iter().map(|t| t.tid).collect();
        // The effects of the policy's own moves are no change of the load; neither is a thread that
        // is still there but does so little that it is not listed.
        let ours = !self.asked.is_empty() || self.waits > 0;
        let gone = self.load.keys().filter(|tid| !present.contains(tid)).count();
        let new = load.keys().filter(|tid| !self.present.contains(tid)).count();
        let other = |(tid, now): &(&u32, &Doing)| self.load.get(tid).is_some_and(|before| !now.like(before));
        let others = if ours { 0 } else { load.iter().filter(other).count() };
        let changed = (gone.max(new) + others) as f64 > OTHERS * load.len().max(self.load.len()) as f64;
        if changed {
            self.begin(now_s);
            self.waits = 0;
        }
        if changed || ours {
            (self.load, self.present) = (load, present);
        }
    }
}

/// Whether most threads have only just started.
fn mostly_young(snapshot: &Snapshot, demands: &Demands, now_s: f64) -> bool {
    let started = |d: &Demand| snapshot.threads[d.thread].start_ns.map(|ns| ns as f64 / 1e9);
    let young = demands.threads.iter().filter(|d| started(d).is_some_and(|s| (0.0..YOUNG_S).contains(&(now_s - s))));
    young.count() as f64 > OTHERS * demands.threads.len() as f64
}
