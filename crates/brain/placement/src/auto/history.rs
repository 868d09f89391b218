//! State across windows: which moves are under way or did not work, and how long the load has been
//! the same.
//!
//! **Problem.** A slightly wrong model sees an improvement from A to B and another from B to A.
//! Moves are requests: the engine or the plane may hold them back or refuse them, and copies take
//! time.
//!
//! **Approach.** While moves of a plan are under way, as the snapshot's outcomes say, the policy
//! decides nothing new. It requests again what a rail held back, and leaves alone what was refused,
//! has failed or did not pay, until the engine would look at the same load again ([`Pace`]). For
//! one load, a process or a file moves once and a thread twice, plans are made only in the first
//! windows, and each must promise [`STRICTER`] times as much as the one before: moves end, whatever
//! the model predicts. Another load ([`Detector`]) starts afresh. Later, threads that something
//! else has taken from the place they had then may return to it, and nothing else moves: threads
//! that never had to move are not bound, and the kernel may move all of them at once. What a window
//! is for says [`Stage`].
//!
//! Another load forgets counts and plans, not what is stuck: refusals, and files from the request
//! on, wait until the load would be looked at again, whatever it is by then.
//!
//! **Limits.** Whether a plan paid is not measured here: the engine compares the windows before and
//! after it, and takes it back. Without outcomes, as in a single snapshot, moves count as made.

use rustc_hash::{FxHashMap, FxHashSet};
use topology::{NodeId, ProcessId, ThreadId};

use super::demand::{Demand, Demands};
use super::recent::Recent;
use crate::load_change::Detector;
use crate::processes::sane;
use crate::{Move, OutcomeState, Pace, Snapshot, Subject, Thread};

/// Windows after a plan's moves before the next plan: the first shows the moves themselves, and two
/// show their effect.
const AFTER_PLAN: u32 = 3;
/// Largest number of moves of a thread for one load: at once, and later with data.
const MOST_MOVED: u32 = 2;
/// Each further plan for the same load must promise this many times as much: with the least gain of
/// 1 %, a seventh plan has to promise 64 %.
const STRICTER: f64 = 2.0;
/// Number of windows that the first plan waits while throughput still changes by more than
/// [`STEADY`]: the kernel spreads threads that start together first.
const SETTLING: u32 = 4;
/// The share for [`SETTLING`]: three times the least gain of a plan, which a smaller change hides
/// less.
const STEADY: f64 = 0.03;
/// For this many seconds after its start, a thread is assumed to be on its way to where the kernel
/// wants it: a few times the longest balancing interval of a large machine.
const YOUNG_S: f64 = 3.0;
/// It is another load when this share of its threads has changed: fewer change too little of the
/// throughput.
const OTHERS: f64 = 0.2;

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Windows since the load last changed or was examined again.
    pub windows: u32,
    plans: i32,
    /// Windows to wait after the moves of the last plan.
    waits: u32,
    /// Windows since the last plan, or the first window.
    without_plan: u32,
    /// Bytes/s in the last window.
    rate: f64,
    /// When the load appeared or was last examined.
    since_s: f64,
    now_s: f64,
    pace: Pace,
    load: Detector,
    /// The node of each listed thread when the load was last planned for.
    assigned: FxHashMap<ThreadId, NodeId>,
    asked: Vec<Move>,
    /// How often threads have moved for this load, and when last; and the processes that have.
    moved_threads: FxHashMap<ThreadId, (u32, f64)>,
    moved_processes: FxHashSet<ProcessId>,
    /// When moves of these failed, or files were asked to move.
    stuck: FxHashMap<Subject, f64>,
    /// The longest inferred lock time per byte of each process, see [`super::locks`].
    locks: FxHashMap<ProcessId, f64>,
    /// The windows that the next plan is made from.
    pub recent: Recent,
}

/// What is to be done about a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Moves of the last plan are under way.
    UnderWay,
    /// They are made, and their effect shows in the next windows.
    Watched,
    /// The kernel still spreads threads that have just started, or throughput still changes.
    Spreading,
    /// A plan may be made.
    Open,
    /// The load has been planned for: threads that something else has displaced may return.
    Planned,
}

pub(super) enum Turn {
    /// Request these moves again, and decide nothing.
    Wait(Vec<Move>),
    /// Decide; a plan must promise this many times the least gain.
    Decide { strictness: f64 },
    /// The load has been planned for.
    Rest,
}

impl History {
    /// Processes count from so many bytes on, and their threads are busy from a quarter of it on.
    pub fn new(min_bytes: u64) -> Self {
        Self { load: Detector::new(min_bytes as f64 / 4.0), ..Self::default() }
    }

    /// A window ended, by an engine of this pace.
    pub fn at(&mut self, snapshot: &Snapshot) {
        (self.now_s, self.pace) = (sane(snapshot.time_s), snapshot.pace);
    }

    /// Takes one window in.
    pub fn turn(&mut self, snapshot: &Snapshot, demands: &Demands) -> Turn {
        let now_s = self.now_s;
        let (again, copies) = self.follow(snapshot);
        self.notice_changes(snapshot, demands);
        self.windows = self.windows.saturating_add(1);
        self.without_plan = self.without_plan.saturating_add(1);
        let rate: f64 = demands.threads.iter().map(|d| d.work.rate).sum();
        let before = std::mem::replace(&mut self.rate, rate);
        let young = before == 0.0 && mostly_young(snapshot, demands, now_s);
        let changing = self.plans == 0 && (young || before > 0.0 && (rate - before).abs() > STEADY * rate);
        if !(0.0..self.pace.again_s).contains(&(now_s - self.since_s)) {
            self.begin();
        }
        let pids: FxHashSet<u32> = snapshot.threads.iter().map(|t| t.pid).collect();
        self.locks.retain(|process, _| pids.contains(&process.pid));
        self.locks.extend(demands.processes.iter().filter(|p| p.lock_s > 0.0).map(|p| (p.id, p.lock_s)));
        let under_way = copies || !again.is_empty();
        let stage = if under_way {
            Stage::UnderWay
        } else if self.planned_for() {
            Stage::Planned
        } else if self.waits > 0 {
            Stage::Watched
        } else if changing && self.windows < SETTLING.min(self.planning()) {
            Stage::Spreading
        } else {
            Stage::Open
        };
        let back = snapshot.outcomes.iter().any(|o| matches!(o.result, OutcomeState::RolledBack { .. }));
        let moved = back || self.waits == AFTER_PLAN;
        if self.windows == 1 || moved || matches!(stage, Stage::UnderWay | Stage::Planned) {
            self.recent.clear();
        }
        if stage == Stage::UnderWay {
            // The engine begins to judge a plan when its copies are done.
            self.without_plan = 0;
            return Turn::Wait(again);
        }
        if stage != Stage::Planned && self.waits < AFTER_PLAN {
            self.recent.push(snapshot);
        }
        let waits = self.waits;
        self.waits = waits.saturating_sub(1);
        let threads = || demands.threads.iter().map(|d| &snapshot.threads[d.thread]);
        match stage {
            Stage::Planned => {
                let assigned = |t: &&Thread| self.assigned(t.id()).is_some_and(|node| node != t.node);
                let displaced = threads().filter(|t| t.pinned.is_none()).filter(assigned).count();
                if waits > 0 || displaced as f64 <= OTHERS * demands.threads.len() as f64 {
                    return Turn::Rest;
                }
                self.waits = AFTER_PLAN;
            }
            Stage::Open => self.assigned = threads().map(|t| (t.id(), t.node)).collect(),
            Stage::UnderWay | Stage::Watched | Stage::Spreading => return Turn::Wait(Vec::new()),
        }
        Turn::Decide { strictness: STRICTER.powi(self.plans) }
    }

    /// Windows of a load in which moves are made: until the engine takes it for settled. They end
    /// even if it never does.
    fn moving(&self) -> u32 {
        if self.pace.settle_windows > 0 { self.pace.settle_windows } else { Pace::default().settle_windows }
    }

    /// Windows of a load in which plans are made, so that there is time for their moves.
    fn planning(&self) -> u32 {
        self.moving().saturating_sub(AFTER_PLAN).max(1)
    }

    /// Whether the load has been planned for, so that threads may only return to where
    /// they were [assigned](Self::assigned).
    pub fn planned_for(&self) -> bool {
        self.windows > self.planning()
    }

    /// Whether data may move: in the second half of the windows, or if no plan can come after this
    /// one. Threads move first, because that costs next to nothing and may be enough.
    pub fn data_may_move(&self) -> bool {
        let next = self.windows + AFTER_PLAN + 1;
        self.windows >= self.moving() / 2 || next > self.planning()
    }

    /// Whether parts of files may move: nothing of a plan is under way, and the engine has judged
    /// the last one, which takes it less than as many windows as it lets a load be moved about.
    pub fn parts_may_move(&self) -> bool {
        self.asked.is_empty() && self.without_plan > self.moving()
    }

    /// Parts of files are to move: threads that read them there do not turn to other data.
    pub fn parts(&mut self, moves: &[Move]) {
        moves.iter().for_each(|mv| self.load.data_moves(&mv.subject));
    }

    /// The node where the last plan for this load left a thread.
    pub fn assigned(&self, thread: ThreadId) -> Option<NodeId> {
        self.assigned.get(&thread).copied()
    }

    /// Looks up what became of the requested moves. Returns those to request again, and whether any
    /// copies or waits for its turn to copy.
    fn follow(&mut self, snapshot: &Snapshot) -> (Vec<Move>, bool) {
        let (now_s, again_s) = (self.now_s, self.pace.again_s);
        self.stuck.retain(|_, since_s| (0.0..again_s).contains(&(now_s - *since_s)));
        let over = self.windows >= self.moving();
        let (mut results, mut copies) = (FxHashMap::default(), false);
        for outcome in &snapshot.outcomes {
            use OutcomeState::{Done, Failed, Gone, HeldBack, Queued, Refused, RolledBack, Running};
            match outcome.result {
                Refused { .. } | Failed { .. } | RolledBack { .. } => {
                    if let Refused { .. } = outcome.result {
                        self.load.not_moved(&outcome.subject);
                    }
                    self.stuck.insert(outcome.subject, now_s);
                }
                HeldBack { .. } if over => _ = self.stuck.insert(outcome.subject, now_s),
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

    pub fn planned(&mut self, moves: &[Move]) {
        self.plans += 1;
        (self.waits, self.without_plan) = (AFTER_PLAN, 0);
        for mv in moves {
            match &mv.subject {
                Subject::Thread(thread) => {
                    let times = self.moved_threads.get(thread).map_or(0, |moved| moved.0);
                    self.moved_threads.insert(*thread, (times + 1, self.now_s));
                    self.assigned.insert(*thread, mv.to);
                }
                Subject::Process(process) => _ = self.moved_processes.insert(*process),
                file @ Subject::File(_) => _ = self.stuck.insert(*file, self.now_s),
            }
            self.load.moved(mv.subject);
            self.asked.push(mv.clone());
        }
    }

    /// Whether this thread, process or file may be asked to move.
    pub fn may_move(&self, subject: &Subject) -> bool {
        let moved = match subject {
            Subject::Thread(thread) => {
                let often = |(times, at_s): &(u32, f64)| {
                    *times >= MOST_MOVED || (0.0..self.pace.dwell_s).contains(&(self.now_s - at_s))
                };
                self.moved_threads.get(thread).is_some_and(often)
            }
            Subject::Process(process) => self.has_moved(*process),
            Subject::File(_) => false,
        };
        !moved && !self.stuck.contains_key(subject)
    }

    /// Whether this process has moved for this load: its threads stay with it.
    pub fn has_moved(&self, process: ProcessId) -> bool {
        self.moved_processes.contains(&process)
    }

    /// Adds what the windows before say: the longest lock time of each process so far, and the
    /// threads that stay, because they or their process have moved or cannot.
    pub fn add_to(&self, demands: &mut Demands, snapshot: &Snapshot) {
        for process in &mut demands.processes {
            process.lock_s = self.locks.get(&process.id).copied().unwrap_or(0.0);
        }
        for demand in &mut demands.threads {
            let moved = demands.processes.get(demand.process).is_some_and(|process| self.has_moved(process.id));
            demand.pinned |= moved || !self.may_move(&Subject::thread(&snapshot.threads[demand.thread]));
        }
    }

    fn begin(&mut self) {
        (self.windows, self.plans, self.since_s) = (0, 0, self.now_s);
        self.load.begin();
        // The engine holds them for as long, whatever the load is.
        let (now_s, dwell_s) = (self.now_s, self.pace.dwell_s);
        self.moved_threads.retain(|_, (times, at_s)| {
            *times = 0;
            (0.0..dwell_s).contains(&(now_s - *at_s))
        });
        self.moved_processes.clear();
    }

    fn notice_changes(&mut self, snapshot: &Snapshot, demands: &Demands) {
        let listed: FxHashSet<u32> = demands.threads.iter().map(|d| snapshot.threads[d.thread].tid).collect();
        self.load.window(snapshot, |t| listed.contains(&t.tid));
        // Those of the policy's own moves that are under way have effects for some windows more.
        self.asked.iter().for_each(|mv| self.load.moved(mv.subject));
        // A process stands still while its memory is copied.
        if !self.asked.iter().any(|mv| mv.subject.is_process()) {
            self.load.resumed();
        }
        if self.load.changes().exceed(OTHERS) {
            self.begin();
            self.waits = 0;
        }
    }
}

/// Whether most threads have only just started.
fn mostly_young(snapshot: &Snapshot, demands: &Demands, now_s: f64) -> bool {
    let started = |d: &Demand| snapshot.threads[d.thread].start_ns.map(|ns| ns as f64 / 1e9);
    let young = demands.threads.iter().filter(|d| started(d).is_some_and(|s| (0.0..YOUNG_S).contains(&(now_s - s))));
    young.count() as f64 > OTHERS * demands.threads.len() as f64
}
