//! Moves that were requested but are not yet made or given up.
//!
//! **Problem.** An engine holds moves back, a plane or a file system refuses them, and copies take
//! seconds. Nothing reports this to the policy.
//!
//! **Approach.** The next windows show what a move has left behind. While that shrinks, the policy
//! waits. When it stalls, the policy requests the move again, and gives up after a while.
//!
//! **Limits.** If something else moves the same data, the policy takes that for its own move.

use crate::{Move, Snapshot};

/// Windows without progress after which data is requested again.
pub(super) const STALLED: u32 = 3;
/// Data is given up after this many windows plus [`OVERDUE`] times T_m.
pub(super) const OVERDUE_WINDOWS: f64 = 10.0;
/// See [`OVERDUE_WINDOWS`].
pub(super) const OVERDUE: f64 = 4.0;
/// A file has moved when at most this share of it is left behind; so has a process's memory.
pub(super) const CRUMBS: f64 = 0.02;

/// A requested move.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub mv: Move,
    /// Seconds that it should take.
    pub takes_s: f64,
    pub since_s: f64,
    pub times: u32,
    pub idle: u32,
    pub left: f64,
    pub least: f64,
    /// The bytes left when they were first observed.
    pub first: f64,
    /// Of a file: a process that uses it.
    pub owner: Option<u32>,
}

impl Asked {
    pub fn new(mv: &Move, takes_s: f64, since_s: f64) -> Self {
        let none = f64::INFINITY;
        Self { mv: mv.clone(), takes_s, since_s, times: 1, idle: 0, left: none, least: none, first: none, owner: None }
    }
}

/// Bytes that a data move has left behind; `None` if they are not observed.
pub(super) fn left_behind(snapshot: &Snapshot, mv: &Move) -> Option<f64> {
    match mv {
        Move::Thread { .. } => None,
        Move::Process { pid, to, .. } => {
            let memory = &snapshot.processes.iter().find(|p| p.pid == *pid)?.resident;
            Some(memory.total().saturating_sub(memory.get(*to)) as f64)
        }
        Move::File { file, from, .. } => Some(snapshot.files.iter().find(|f| f.file == *file)?.bytes.get(*from) as f64),
    }
}

/// A window in which requested moves are followed.
pub(super) struct Now {
    /// Whether any data makes progress.
    pub moving: bool,
    /// Whether it is too late to request a move again.
    pub over: bool,
    pub at_s: f64,
    pub window_s: f64,
}

/// Whether to keep waiting for moving data. Requests it again when it stalls, and gives up when it
/// is overdue.
pub(super) fn proceed(a: &mut Asked, left: f64, now: &Now, again: &mut Vec<Move>, give_up: impl FnOnce()) -> bool {
    let Now { moving, over, at_s, window_s } = *now;
    a.idle = if left < a.left || moving { 0 } else { a.idle + 1 };
    a.left = left;
    let overdue = at_s - a.since_s > OVERDUE * a.takes_s + OVERDUE_WINDOWS * window_s;
    // Something, such as writers, brings back data that was on its way; waiting for it would not
    // end.
    let comes_back = a.left.is_finite() && left > a.least * (1.0 + CRUMBS);
    a.least = a.least.min(left);
    // Files are requested once: a file system that does not move them now will not do so later, and
    // moves that wait for them are not measured.
    let once = over || matches!(a.mv, Move::File { .. });
    let stalled = a.idle >= if once { STALLED - 1 } else { STALLED };
    if overdue || (comes_back && !moving) || (stalled && (once || a.times >= STALLED)) {
        give_up();
        return false;
    }
    if a.idle >= STALLED {
        a.idle = 0;
        a.times += 1;
        again.push(a.mv.clone());
    }
    true
}
