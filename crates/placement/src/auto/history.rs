//! State across windows: requested moves that are not done yet, attempts that did not help, and
//! knowledge about processes.
//!
//! **Problem.** A slightly wrong model sees an improvement from A to B and another from B to A.
//! Moves are requests: an engine or a plane may hold them back or refuse them.
//!
//! **Approach.** After a plan, the policy decides nothing new until the plan's moves are made or
//! given up. Then it compares throughput with the time before. A plan that made things worse is
//! reverted, and its moves are not tried again. The promise of a plan counts as much as earlier
//! plans kept theirs. Plans for a load are made in its first windows, and each must promise twice
//! as much as the one before, so moves end whatever the model predicts. A changed load (other
//! threads, other demands) starts afresh.
//!
//! **Limits.** Measured and predicted throughput are those of the machine: one process's gain can
//! hide another's loss.

use rustc_hash::{FxHashMap, FxHashSet};
use topology::NodeId;

use super::asked::{Asked, CRUMBS, Now, OVERDUE, OVERDUE_WINDOWS, STALLED, left_behind, proceed};
use super::best::{Best, by_process, done};
use super::demand::{Demand, Demands, Known};
use crate::processes::sane;
use crate::{Move, Snapshot};

/// A thread's move counts as stuck after it was requested in this many windows.
const MOST_ASKED: u32 = 10;
/// Moves are requested in this many windows of a load.
const ASKING: u32 = 10;
/// Memory of a process has mostly arrived when at most this share of it is left behind.
const MOSTLY: f64 = 0.1;
/// A failed move is not requested again for this many seconds; a moved file stays for as long.
const STUCK_S: f64 = 600.0;
/// Number of windows in which a plan is measured, after one window that shows the moves themselves.
const MEASURED: u32 = 3;
/// A plan is reverted if it brought less than this share of the throughput before.
const WORSE: f64 = 0.99;
/// The same for a plan that took so long that nothing else should move.
const MUCH_WORSE: f64 = 0.9;
/// Each further plan for the same load must promise this many times as much.
const STRICTER: f64 = 2.0;
/// Largest number of moves of a thread for one load.
const MOST_MOVED: u32 = 2;
/// Plans are made in this many windows after a load appears, so that the last one is measured, and
/// if need be reverted, within ten.
const PLANNING: u32 = 7;
/// Additional windows if a plan's data could not be moved.
const LATE: u32 = 1;
/// Number of windows that the first plan waits while throughput still changes by more than
/// [`STEADY`]: the kernel spreads threads that start together first.
const SETTLING: u32 = 4;
/// The share for [`SETTLING`].
const STEADY: f64 = 0.03;
/// For this many seconds after its start, a thread is assumed to be on its way to where the kernel
/// wants it.
const YOUNG_S: f64 = 3.0;
/// A load that has lasted this long is examined again.
const AGAIN_S: f64 = 600.0;
/// The least weight of a plan's promise, whatever earlier plans kept.
const LEAST_TRUST: f64 = 0.3;
/// A load has changed when this share of its threads has.
const OTHERS: f64 = 0.2;
/// A thread has changed when it does this many times as much or as little, which no placement
/// explains; when its share of reads has changed by [`READS`]; or when its data has come to be
/// elsewhere without a move.
const FACTOR: f64 = 4.0;
/// The change of the share of reads for [`FACTOR`].
const READS: f64 = 0.25;
/// Data is on a node when more than this share of the reads comes from it.
const MAINLY: f64 = 0.7;

/// A plan that is being carried out, then measured.
#[derive(Clone, Debug)]
struct Trial {
    /// Bytes/s of its threads before.
    before: f64,
    /// Bytes/s promised for them.
    promised: f64,
    /// Whether some of its moves are made even if its data stays.
    without_data: bool,
    threads: FxHashSet<u32>,
    /// Moved processes, with their new nodes.
    moved: Vec<(u32, NodeId)>,
    windows: u32,
    sum: f64,
    /// The same by process.
    by: FxHashMap<u32, f64>,
}

/// The behaviour of a thread, as far as its place does not matter.
#[derive(Clone, Copy, Debug)]
struct Ask {
    rate: f64,
    reads: f64,
    /// The node of its data; `None` if the data is on several nodes or being rewritten.
    data: Option<NodeId>,
}

impl Ask {
    fn like(&self, before: &Self) -> bool {
        (self.reads - before.reads).abs() < READS
            && (1.0 / FACTOR..FACTOR).contains(&(self.rate / before.rate))
            && (self.data.is_none() || before.data.is_none() || self.data == before.data)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub known: FxHashMap<u32, Known>,
    /// The highest observed traffic through a node's port, in bytes/s times hops.
    pub link_bw: f64,
    /// Whether a port has shown that it carries no more.
    pub link_full: bool,
    /// Windows since the load last changed.
    pub windows: u32,
    plans: i32,
    /// The window of the last plan, and the number of windows lost waiting for data that could not
    /// be moved.
    planned_at: u32,
    lost: u32,
    /// Bytes/s in the last window.
    rate: f64,
    /// When the load appeared or was last examined.
    since_s: f64,
    /// Whether data has moved since; then it may be anywhere.
    moved_data: bool,
    /// The share of plans' promises that was kept.
    trust: Option<f64>,
    load: FxHashMap<u32, Ask>,
    /// The threads present when the load was last examined, busy or not.
    present: FxHashSet<u32>,
    /// The nodes of all threads; until a window has been taken in, their nodes before it.
    nodes: FxHashMap<u32, NodeId>,
    asked: Vec<Asked>,
    /// Moves that follow the requested data moves once the data is seen to move.
    after: Vec<Asked>,
    /// Whether requested data could not be moved.
    refused: bool,
    trial: Option<Trial>,
    best: Option<Best>,
    /// Processes that must not move to a node again, because that made things worse.
    veto: FxHashSet<(u32, NodeId)>,
    /// How often threads moved for this load, and processes: there and on, or back, is enough.
    moved_threads: FxHashMap<u32, (u32, NodeId)>,
    moved_processes: FxHashSet<u32>,
    stuck_threads: FxHashMap<u32, f64>,
    stuck_processes: FxHashMap<u32, f64>,
    stuck_files: FxHashMap<String, f64>,
}

/// The action of this window.
pub(super) enum Turn {
    /// Request these moves (again), and decide nothing.
    Wait(Vec<Move>),
    /// A plan made things worse: revert it. The figure is the share measured / before.
    /// Alternatively, make a plan that promises more than before; the last figure is the current
    /// bytes/s.
    Back(Vec<Move>, f64, f64),
    /// Decide; a plan must promise this many times the least gain.
    Decide { strictness: f64 },
    /// The load has been planned for.
    Rest,
}

impl History {
    /// Takes one window in.
    pub fn turn(&mut self, snapshot: &Snapshot, demands: &Demands) -> Turn {
        let now_s = sane(snapshot.time_s);
        self.learn(snapshot, demands, now_s);
        self.nodes = snapshot.threads.iter().map(|t| (t.tid, t.node)).collect();
        self.notice_changes(snapshot, demands, now_s);
        self.windows = self.windows.saturating_add(1);
        let rate = done(snapshot, demands);
        let before = std::mem::replace(&mut self.rate, rate);
        let young = before == 0.0 && mostly_young(snapshot, demands, now_s);
        let changing = self.plans == 0 && (young || before > 0.0 && (rate - before).abs() > STEADY * rate);
        for stuck in [&mut self.stuck_threads, &mut self.stuck_processes] {
            stuck.retain(|_, since_s| (0.0..STUCK_S).contains(&(now_s - *since_s)));
        }
        self.stuck_files.retain(|_, since_s| (0.0..STUCK_S).contains(&(now_s - *since_s)));
        if !(0.0..AGAIN_S).contains(&(now_s - self.since_s)) {
            self.since_s = now_s;
            self.windows = 1;
        }
        let mut again = self.follow(snapshot, now_s);
        if let Some(go) = self.data_moves() {
            let after = std::mem::take(&mut self.after);
            if go {
                again.extend(after.iter().map(|a| a.mv.clone()));
                self.asked.extend(after.into_iter().map(|a| Asked { since_s: now_s, ..a }));
            } else if let Some(trial) = self.trial.take() {
                self.lost = (self.windows - self.planned_at).min(LATE);
                if trial.without_data {
                    self.trial = Some(trial);
                } else {
                    // No move was tried.
                    self.plans -= 1;
                }
            }
        }
        if !self.asked.is_empty() || !again.is_empty() {
            return Turn::Wait(again);
        }
        if let Some(trial) = &mut self.trial {
            // A thread that has done little since is still here: a plan that starves threads has
            // not ended them.
            let count = snapshot.threads.iter().filter(|t| trial.threads.contains(&t.tid)).count();
            trial.windows += 1;
            trial.sum += done(snapshot, demands);
            by_process(demands, &mut trial.by);
            // A thread has ended, so there is nothing to compare with.
            if count != trial.threads.len() {
                (self.trial, self.best) = (None, None);
            } else if trial.windows < MEASURED && self.windows < ASKING {
                return Turn::Wait(Vec::new());
            } else if let Some(back) = self.measured(snapshot, demands) {
                return back;
            }
        }
        if self.windows > PLANNING + self.lost {
            return Turn::Rest;
        }
        if changing && self.windows < SETTLING {
            return Turn::Wait(Vec::new());
        }
        Turn::Decide { strictness: self.strictness() }
    }

    /// Whether moves that wait for data may go, because the data of each process moves or never
    /// will; `None` while that is unknown.
    fn data_moves(&mut self) -> Option<bool> {
        if std::mem::take(&mut self.refused) {
            return Some(false);
        }
        if self.after.is_empty() {
            return None;
        }
        let files = |a: &&Asked| matches!(a.mv, Move::File { .. });
        let goes = |owner: Option<u32>| self.asked.iter().filter(files).any(|a| a.owner == owner && a.least < a.first);
        self.asked.iter().filter(files).all(|a| goes(a.owner)).then_some(true)
    }

    /// The result of a plan that was carried out and measured: its promise against what it kept,
    /// and whether to revert it.
    fn measured(&mut self, snapshot: &Snapshot, demands: &Demands) -> Option<Turn> {
        let trial = self.trial.take()?;
        let rate = trial.sum / f64::from(trial.windows);
        let promised = trial.promised / trial.before.max(f64::MIN_POSITIVE) - 1.0;
        if promised > 0.0 {
            let won = rate / trial.before.max(f64::MIN_POSITIVE) - 1.0;
            let kept = (won / promised).clamp(LEAST_TRUST, 1.0);
            self.trust = Some(self.trust.map_or(kept, |trust| (trust + kept) / 2.0));
        }
        let best = self.best.take()?;
        let share = rate / best.rate.max(f64::MIN_POSITIVE);
        if share < if self.windows < ASKING { WORSE } else { MUCH_WORSE } {
            // A process that is better off since is not to blame.
            let mean = |pid: &u32| trial.by.get(pid).copied().unwrap_or(0.0) / f64::from(trial.windows);
            let worse = |pid: &u32| best.by.get(pid).is_some_and(|before| mean(pid) < WORSE * before);
            let any = trial.moved.iter().any(|(pid, _)| worse(pid));
            self.veto.extend(trial.moved.iter().filter(|(pid, _)| !any || worse(pid)));
            let back = best.back_to(snapshot, demands);
            self.best = Some(best);
            // Half of the way back can be worse than both ends.
            let stuck = |mv: &Move| matches!(mv, Move::Thread { tid, from, .. } if self.came_from(*tid) == Some(*from));
            let able = share < MUCH_WORSE || !back.iter().any(stuck);
            return (!back.is_empty() && able).then_some(Turn::Back(back, share, rate));
        }
        self.best = Some(if share > 1.0 { Best::measured(snapshot, demands, rate) } else { best });
        None
    }

    /// Records a plan that promises `gain` times as many bytes/s.
    pub fn planned(&mut self, snapshot: &Snapshot, demands: &Demands, moves: &[(Move, f64)], gain: f64) {
        let now_s = sane(snapshot.time_s);
        self.plans += 1;
        self.planned_at = self.windows;
        self.asked = moves.iter().map(|(mv, takes_s)| Asked::new(mv, *takes_s, now_s)).collect();
        if self.asked.iter().any(|a| matches!(a.mv, Move::File { .. })) {
            // File systems can refuse to move data, so threads that are to run beside it wait until
            // it is seen to move.
            self.refused = false;
            let pids: FxHashMap<u32, u32> = snapshot.threads.iter().map(|t| (t.tid, t.pid)).collect();
            let mut owners: FxHashSet<u32> = FxHashSet::default();
            for a in &mut self.asked {
                let Move::File { file, .. } = &a.mv else { continue };
                let observed = snapshot.files.iter().find(|f| f.file == *file);
                let readers = || observed.iter().flat_map(|f| &f.readers).filter_map(|tid| pids.get(tid).copied());
                a.first = left_behind(snapshot, &a.mv).unwrap_or(0.0);
                a.owner = readers().next();
                owners.extend(readers());
            }
            let waits = |a: &Asked| match &a.mv {
                Move::Thread { pid, .. } | Move::Process { pid, .. } => owners.contains(pid),
                Move::File { .. } => false,
            };
            (self.after, self.asked) = std::mem::take(&mut self.asked).into_iter().partition(waits);
        }
        let before = done(snapshot, demands);
        let best = self.best.get_or_insert_with(|| Best::measured(snapshot, demands, before));
        let mut moved = Vec::new();
        for (mv, _) in moves {
            match mv {
                Move::Thread { tid, pid, from, to, .. } => {
                    self.moved_threads.entry(*tid).or_insert((0, *from)).0 += 1;
                    moved.push((*pid, *to));
                }
                Move::Process { pid, from, to, .. } => {
                    self.moved_processes.insert(*pid);
                    best.processes.entry(*pid).or_insert(*from);
                    moved.push((*pid, *to));
                }
                Move::File { file, from, to, .. } => {
                    self.stuck_files.insert(file.clone(), now_s);
                    self.moved_data = true;
                    // A file that was on several nodes goes back to the first as a whole.
                    best.files.entry(file.clone()).or_insert((*from, *to));
                }
            }
        }
        self.trial = Some(Trial {
            before,
            promised: before * gain,
            without_data: self.asked.iter().any(|a| !matches!(a.mv, Move::File { .. })),
            threads: demands.threads.iter().map(|d| snapshot.threads[d.thread].tid).collect(),
            moved,
            windows: 0,
            sum: 0.0,
            by: FxHashMap::default(),
        });
    }

    /// Bytes/s at the best measured placement, and the strictness for a better one, if there is
    /// time for it.
    pub fn other_try(&self) -> Option<(f64, f64)> {
        let best = self.best.as_ref().filter(|_| self.windows <= PLANNING)?;
        Some((best.rate, self.strictness()))
    }

    fn strictness(&self) -> f64 {
        STRICTER.powi(self.plans) / self.trust.unwrap_or(1.0)
    }

    /// The moves of a reverted plan are requested like any move, but not measured.
    pub fn taken_back(&mut self, now_s: f64, moves: &[Move]) {
        self.plans += 1;
        self.asked = moves.iter().map(|mv| Asked::new(mv, 0.0, now_s)).collect();
    }

    /// The first requests of a plan that has just been made.
    pub fn asked_for(&self) -> Vec<Move> {
        self.asked.iter().map(|a| a.mv.clone()).collect()
    }

    pub fn may_move_thread(&self, tid: u32, pid: u32) -> bool {
        !self.stuck_threads.contains_key(&tid)
            && self.moved_threads.get(&tid).is_none_or(|moved| moved.0 < MOST_MOVED)
            && !self.moved_processes.contains(&pid)
    }

    /// The node that a thread was first moved away from. It returns there only when a plan is
    /// reverted: a thread that has gone back stays for a while, whatever happens (the engine's
    /// cool-down).
    pub fn came_from(&self, tid: u32) -> Option<NodeId> {
        self.moved_threads.get(&tid).map(|moved| moved.1)
    }

    /// Whether a thread is on the same node as at the end of the last window.
    pub fn stayed(&self, tid: u32, node: NodeId) -> bool {
        self.nodes.get(&tid) == Some(&node)
    }

    pub fn may_move_process(&self, pid: u32) -> bool {
        !self.stuck_processes.contains_key(&pid) && !self.moved_processes.contains(&pid)
    }

    pub fn may_move_file(&self, file: &str) -> bool {
        !self.stuck_files.contains_key(file)
    }

    /// Whether a process's file system did not move data on request.
    pub fn files_stay(&self, pid: u32) -> bool {
        self.known.get(&pid).is_some_and(|known| known.files_stay)
    }

    pub fn vetoed(&self, pid: u32, node: NodeId) -> bool {
        self.veto.contains(&(pid, node))
    }

    fn learn(&mut self, snapshot: &Snapshot, demands: &Demands, now_s: f64) {
        let pids: FxHashSet<u32> = snapshot.threads.iter().map(|t| t.pid).collect();
        let waiting =
            |asked: &[Asked], pid: u32| asked.iter().any(|a| matches!(a.mv, Move::Process { pid: p, .. } if p == pid));
        self.known.retain(|pid, _| pids.contains(pid) || waiting(&self.asked, *pid));
        for program in &demands.programs {
            let known = self.known.entry(program.pid).or_default();
            known.memory = program.measured.or(known.memory);
            known.lock_s = known.lock_s.max(program.lock_s);
            known.since_s = Some(now_s - program.age_s);
            known.writes_stay |= program.writes_follow == 0.0;
            known.writes_follow |= program.writes_follow == 1.0;
            known.writes_spread |= program.writes_spread;
        }
    }

    fn notice_changes(&mut self, snapshot: &Snapshot, demands: &Demands, now_s: f64) {
        let asks: FxHashMap<u32, Ask> = (demands.threads.iter())
            .map(|d| {
                let t = &snapshot.threads[d.thread];
                let reads = d.private.iter().map(|s| s.1).sum::<f64>() + d.shared.iter().map(|s| s.1).sum::<f64>();
                let written =
                    t.write_bytes.total() > 0 || d.shared.iter().any(|s| demands.groups.list[s.0].written > 0.0);
                let mostly = |home: &NodeId| t.read_bytes.get(*home) as f64 > MAINLY * t.read_bytes.total() as f64;
                let data = if written || self.moved_data { None } else { t.home().filter(mostly) };
                (t.tid, Ask { rate: d.rate, reads, data })
            })
            .collect();
        let same = |tid: &u32, ask: &Ask| self.load.get(tid).is_some_and(|before| ask.like(before));
        let kept = asks.iter().filter(|(tid, ask)| same(tid, ask)).count();
        let all = asks.len().max(self.load.len());
        // The effects of the policy's own moves are no change of the load.
        let ours = !self.asked.is_empty() || self.trial.is_some();
        let moving = self.asked.iter().any(|a| matches!(a.mv, Move::Process { .. }));
        // Neither is a thread that does so little since that it is not listed, or so much that it
        // is.
        let present = || self.nodes.keys().copied().collect();
        let gone = self.load.keys().filter(|tid| !self.nodes.contains_key(tid)).count();
        let new = asks.keys().filter(|tid| !self.present.contains(tid)).count();
        if ours && (moving || gone.max(new) as f64 <= OTHERS * all as f64) {
            if !moving {
                (self.load, self.present) = (asks, present());
            }
            return;
        }
        if ((all - kept) as f64) > OTHERS * all as f64 {
            (self.load, self.present) = (asks, present());
            self.windows = 0;
            self.plans = 0;
            self.lost = 0;
            self.since_s = now_s;
            self.trust = None;
            self.moved_data = false;
            (self.trial, self.best) = (None, None);
            self.veto.clear();
            self.moved_threads.clear();
            self.moved_processes.clear();
        }
    }

    /// Follows the requested moves; returns those to request again.
    fn follow(&mut self, snapshot: &Snapshot, now_s: f64) -> Vec<Move> {
        let mut again = Vec::new();
        let window_s = sane(snapshot.window_s);
        // Planes copy one after the other: a move that waits its turn does not stall while another
        // makes progress.
        let left = |a: &Asked| left_behind(snapshot, &a.mv);
        let moving = self.asked.iter().any(|a| left(a).is_some_and(|left| left < a.left && a.left.is_finite()));
        let (stuck_threads, stuck_processes, stuck_files) =
            (&mut self.stuck_threads, &mut self.stuck_processes, &mut self.stuck_files);
        let (refused, known) = (&mut self.refused, &mut self.known);
        let now = Now { moving, over: self.windows >= ASKING, at_s: now_s, window_s };
        self.asked.retain_mut(|a| match &a.mv.clone() {
            Move::Thread { tid, to, .. } => match self.nodes.get(tid) {
                Some(node) if node != to => {
                    if now.over || a.times >= MOST_ASKED {
                        stuck_threads.insert(*tid, now_s);
                        return false;
                    }
                    a.times += 1;
                    again.push(a.mv.clone());
                    true
                }
                _ => false,
            },
            Move::Process { pid, to, .. } => {
                let listed = snapshot.threads.iter().filter(|t| t.pid == *pid);
                let arrived = listed.clone().count() > 0 && listed.clone().all(|t| t.node == *to);
                let all = snapshot.processes.iter().find(|p| p.pid == *pid).map_or(0, |p| p.resident.total());
                let left = left(a).unwrap_or(0.0);
                // If none of its threads is seen, the process has ended, or stops while it is
                // copied.
                if arrived && (left <= MOSTLY * all as f64 || a.idle >= STALLED) {
                    return false;
                }
                proceed(a, left, &now, &mut again, || {
                    stuck_processes.insert(*pid, now_s);
                })
            }
            Move::File { file, .. } => {
                let Some(left) = left(a) else {
                    return now_s - a.since_s < OVERDUE * a.takes_s + OVERDUE_WINDOWS * window_s;
                };
                let owner = a.owner;
                let all = snapshot.files.iter().find(|f| f.file == *file).map_or(0, |f| f.bytes.total());
                if left <= CRUMBS * all as f64 {
                    return false;
                }
                proceed(a, left, &now, &mut again, || {
                    *refused = true;
                    if let Some(known) = owner.and_then(|pid| known.get_mut(&pid)) {
                        known.files_stay = true;
                    }
                    stuck_files.insert(file.clone(), now_s);
                })
            }
        });
        again
    }
}

/// Whether most threads have only just started.
fn mostly_young(snapshot: &Snapshot, demands: &Demands, now_s: f64) -> bool {
    let started = |d: &Demand| snapshot.threads[d.thread].start_ns.map(|ns| ns as f64 / 1e9);
    let young = demands.threads.iter().filter(|d| started(d).is_some_and(|s| (0.0..YOUNG_S).contains(&(now_s - s))));
    young.count() as f64 > OTHERS * demands.threads.len() as f64
}
