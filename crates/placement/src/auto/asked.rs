//! Moves that were asked for, until they are made or given up.
//!
//! **Problem.** An engine holds moves back, a plane or a file system refuses them, and copies take seconds: none of it is reported.
//!
//! **Approach.** What a move has still to take along is seen in the next windows. While it shrinks it is waited for; when it stands still
//! it is asked for again, and given up after a while.
//!
//! **Limits.** Data that others move as well is taken for our own.

use crate::{Move, Snapshot};

/// Windows without progress after which data is asked for again; and windows and times of T_m after which it is given up.
pub(super) const STALLED: u32 = 3;
pub(super) const OVERDUE_WINDOWS: f64 = 10.0;
pub(super) const OVERDUE: f64 = 4.0;
/// A file has moved when this share is left behind, a process's memory when that is.
pub(super) const CRUMBS: f64 = 0.02;

/// A move that was asked for.
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
    /// What was left when it was first seen.
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

/// Bytes that a move of data has still to take along; none where that is not seen.
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

/// A window in which moves are followed.
pub(super) struct Now {
    /// Whether any data makes progress.
    pub moving: bool,
    /// Whether it is too late to ask again.
    pub over: bool,
    pub at_s: f64,
    pub window_s: f64,
}

/// Whether data that is moving is still waited for: asks again when it stands still, gives up when it is overdue.
pub(super) fn proceed(a: &mut Asked, left: f64, now: &Now, again: &mut Vec<Move>, give_up: impl FnOnce()) -> bool {
    let Now { moving, over, at_s, window_s } = *now;
    a.idle = if left < a.left || moving { 0 } else { a.idle + 1 };
    a.left = left;
    let overdue = at_s - a.since_s > OVERDUE * a.takes_s + OVERDUE_WINDOWS * window_s;
    // What was on its way and comes back is brought back by somebody, such as writers: that would not end.
    let comes_back = a.left.is_finite() && left > a.least * (1.0 + CRUMBS);
    a.least = a.least.min(left);
    // Files are asked for once: a file system that does not move them will not do so later, and what waits for them is not measured.
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
