//! A migration in progress, and the measurements it yields.
//!
//! **Problem.** A plan only requests a migration. Its speed, its cost to readers and its gain show
//! in the windows after the request.
//!
//! **Approach.** The outcomes in the snapshot give the progress of each file; where there are none,
//! the bytes still on the source do, which may be some windows old. While the migration
//! runs, the readers' throughput is compared with the straight line of Eq. 2. After its end, two
//! more windows give TH_l.
//!
//! **Limits.** A file that no thread touches in a window is assumed to be where it was last seen.

use std::collections::BTreeMap;

use topology::{FileId, NodeId};

use super::estimate::Estimates;
use super::mtp::Mtp;
use crate::processes::sane;
use crate::{OutcomeState, Snapshot, Subject};

/// A file counts as moved when at most this share of it is left behind.
const LEFT: f64 = 0.02;
/// After this many windows without progress, the rest is requested again.
const STALLED: u32 = 2;
const MOST_ASKED: u32 = 3;
/// A migration ends after this many times T_m plus [`OVERDUE_WINDOWS`] windows.
const OVERDUE: f64 = 4.0;
/// See [`OVERDUE`].
const OVERDUE_WINDOWS: f64 = 10.0;
/// Number of windows after a migration whose reads give TH_l.
const WATCHED: u32 = 2;

#[derive(Clone, Debug)]
pub(super) struct Moving {
    pub to: NodeId,
    /// Bytes on the source at the time of the request, and now.
    pub asked: f64,
    pub left: f64,
    /// An outcome said what became of it, so that bytes on the source, which may be old, do not
    /// count.
    pub told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    Running,
    /// Nothing has moved for a while: request the rest again.
    Stalled,
    /// The migration ended; its readers are being observed.
    Ended,
    /// There is nothing more to learn from it.
    Over,
}

#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub source: NodeId,
    pub files: BTreeMap<FileId, Moving>,
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
    pub fn new(source: NodeId, mtp: Mtp, files: BTreeMap<FileId, Moving>) -> Self {
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

    /// Takes in one window, and corrects the estimates if it yields a measurement.
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
        let copies = self.hear(snapshot);
        for observed in &snapshot.files {
            if let Some(moving) = self.files.get_mut(&observed.file)
                && !observed.bytes.is_empty()
                && !moving.told
            {
                moving.left = (observed.bytes.get(self.source) as f64).min(moving.asked);
            }
        }
        let (all, left) = (self.asked_bytes(), self.left());
        self.lasted_s += window_s;
        let done = if all > 0.0 { 1.0 - left / all } else { 1.0 };
        let line = self.mtp.remote_bw + (self.mtp.local_bw - self.mtp.remote_bw) * done;
        self.lost += (line * window_s - served).max(0.0);
        self.stalled = if left < before || copies { 0 } else { self.stalled + 1 };
        self.phase = Phase::Running;
        let overdue = OVERDUE * self.mtp.migration_s + OVERDUE_WINDOWS * window_s;
        if left <= LEFT * all
            || (self.lasted_s > overdue && !copies)
            || (self.stalled >= STALLED && self.asked >= MOST_ASKED)
        {
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

    /// Takes in what became of the moves. Returns whether some are still being made.
    fn hear(&mut self, snapshot: &Snapshot) -> bool {
        let mut copies = false;
        for outcome in &snapshot.outcomes {
            let Subject::File(file) = &outcome.subject else { continue };
            let Some(moving) = self.files.get_mut(&file.any_generation()).filter(|m| m.to == outcome.to) else {
                continue;
            };
            moving.told = true;
            match outcome.result {
                OutcomeState::Done { failed, .. } => moving.left = (failed as f64).min(moving.asked),
                OutcomeState::Running { bytes, done } => {
                    moving.left = (bytes.saturating_sub(done) as f64).min(moving.asked);
                    copies = true;
                }
                OutcomeState::Queued => copies = true,
                _ => {}
            }
        }
        copies
    }

    /// Bytes of the moving files that threads on their target nodes read.
    fn served(&self, snapshot: &Snapshot) -> f64 {
        let of = |node: NodeId, file: FileId| self.files.get(&file).is_some_and(|m| m.to == node);
        let uses = snapshot.threads.iter().flat_map(|t| t.files.iter().map(move |u| (t.node, u)));
        uses.filter(|(node, used)| of(*node, used.file)).map(|(_, used)| used.read_bytes.total() as f64).sum()
    }

    fn asked_bytes(&self) -> f64 {
        self.files.values().map(|m| m.asked).sum()
    }

    fn left(&self) -> f64 {
        self.files.values().map(|m| m.left).sum()
    }

    pub fn unmoved(&self) -> impl Iterator<Item = (FileId, &Moving)> {
        self.files.iter().filter(|(_, m)| m.left > LEFT * m.asked).map(|(file, m)| (*file, m))
    }
}
