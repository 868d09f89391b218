//! A migration on its way, and what it teaches.
//!
//! **Problem.** A plan only asks. How fast the data moves, what that costs its readers and what it wins shows in the windows after.
//!
//! **Approach.** The bytes that are still on the source tell how far each file is. While the migration runs, what its readers
//! get is held against the straight line of Eq. 2; when it has ended, two more windows give TH_l.
//!
//! **Limits.** A file that no thread touches in a window is taken to be where it last was.

use std::collections::BTreeMap;

use topology::NodeId;

use super::estimate::Estimates;
use super::mtp::Mtp;
use crate::Snapshot;
use crate::processes::sane;

/// Of a file, at most this share is left behind when it counts as moved.
const LEFT: f64 = 0.02;
/// Windows without any progress after which what is left is asked for again, and how often that is done.
const STALLED: u32 = 2;
const MOST_ASKED: u32 = 3;
/// A migration that takes this many times T_m, and this many windows more, is over.
const OVERDUE: f64 = 4.0;
const OVERDUE_WINDOWS: f64 = 10.0;
/// Windows after a migration whose reads give TH_l.
const WATCHED: u32 = 2;

#[derive(Clone, Debug)]
pub(super) struct Moving {
    pub to: NodeId,
    /// Bytes on the source when it was asked for, and now.
    pub asked: f64,
    pub left: f64,
}

/// Where a migration is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    Running,
    /// Nothing has moved for a while: ask again for what is left.
    Stalled,
    /// Ended; its readers are being watched.
    Ended,
    /// Everything there was to learn has been learned.
    Over,
}

#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub source: NodeId,
    pub files: BTreeMap<String, Moving>,
    mtp: Mtp,
    phase: Phase,
    lasted_s: f64,
    lost: f64,
    stalled: u32,
    asked: u32,
    watched: u32,
    after: f64,
    after_s: f64,
}

impl Flight {
    pub fn new(source: NodeId, mtp: Mtp, files: BTreeMap<String, Moving>) -> Self {
        Self {
            source,
            files,
            mtp,
            phase: Phase::Running,
            lasted_s: 0.0,
            lost: 0.0,
            stalled: 0,
            asked: 1,
            watched: 0,
            after: 0.0,
            after_s: 0.0,
        }
    }

    /// Takes in one window; corrects the estimates when there is something to learn.
    pub fn pass(&mut self, snapshot: &Snapshot, estimates: &mut Estimates) -> Phase {
        let window_s = sane(snapshot.window_s);
        let served = self.served(snapshot);
        if matches!(self.phase, Phase::Running | Phase::Stalled) {
            self.run(snapshot, window_s, served, estimates);
        } else if self.phase == Phase::Ended {
            self.after += served;
            self.after_s += window_s;
            self.watched += 1;
            if self.watched == WATCHED {
                self.phase = Phase::Over;
                if self.after_s > 0.0 {
                    estimates.read(self.mtp.remote_bw, self.after / self.after_s);
                }
            }
        }
        self.phase
    }

    fn run(&mut self, snapshot: &Snapshot, window_s: f64, served: f64, estimates: &mut Estimates) {
        let before = self.left();
        for observed in &snapshot.files {
            if let Some(moving) = self.files.get_mut(&observed.file)
                && !observed.bytes.is_empty()
            {
                moving.left = (observed.bytes.get(self.source) as f64).min(moving.asked);
            }
        }
        let (all, left) = (self.asked_bytes(), self.left());
        self.lasted_s += window_s;
        let done = if all > 0.0 { 1.0 - left / all } else { 1.0 };
        let line = self.mtp.remote_bw + (self.mtp.local_bw - self.mtp.remote_bw) * done;
        self.lost += (line * window_s - served).max(0.0);
        self.stalled = if left < before { 0 } else { self.stalled + 1 };
        self.phase = Phase::Running;
        let overdue = OVERDUE * self.mtp.migration_s + OVERDUE_WINDOWS * window_s;
        if left <= LEFT * all || self.lasted_s > overdue || (self.stalled >= STALLED && self.asked >= MOST_ASKED) {
            estimates.moved(all - left, self.lasted_s);
            if left <= LEFT * all {
                let rule = Mtp::overhead_by_rule(self.mtp.local_bw, self.mtp.remote_bw, self.lasted_s);
                estimates.lost(self.lost, rule);
                self.phase = Phase::Ended;
            } else {
                self.phase = Phase::Over;
            }
        } else if self.stalled >= STALLED {
            self.stalled = 0;
            self.asked += 1;
            self.phase = Phase::Stalled;
        }
    }

    /// Bytes of the moving files that were read by threads on the nodes they move to.
    fn served(&self, snapshot: &Snapshot) -> f64 {
        let of = |node: NodeId, file: &str| self.files.get(file).is_some_and(|m| m.to == node);
        let uses = snapshot.threads.iter().flat_map(|t| t.files.iter().map(move |u| (t.node, u)));
        uses.filter(|(node, used)| of(*node, &used.file)).map(|(_, used)| used.read_bytes.total() as f64).sum()
    }

    fn asked_bytes(&self) -> f64 {
        self.files.values().map(|m| m.asked).sum()
    }

    fn left(&self) -> f64 {
        self.files.values().map(|m| m.left).sum()
    }

    /// Files that have not moved, or not all of them.
    pub fn unmoved(&self) -> impl Iterator<Item = (&str, &Moving)> {
        self.files.iter().filter(|(_, m)| m.left > LEFT * m.asked).map(|(file, m)| (file.as_str(), m))
    }
}
