//! The result of a window, and of undoing.

use placement::{Move, Plan, Snapshot};
use serde::Serialize;

use crate::{Cost, JobReport, MoveEvent};

/// One window: the observation, the plan and the moves.
#[derive(Clone, Debug)]
pub struct WindowReport {
    pub snapshot: Snapshot,
    pub plan: Plan,
    /// The outcome of each move, in the plan's order.
    pub outcomes: Vec<Outcome>,
    /// Share of file bytes read from another node in this window; absent where nothing was read.
    pub remote_share: Option<f64>,
    /// Copies that go on, of files and of processes' memory.
    pub jobs: Vec<JobReport>,
    /// Moves that wait until others have been copied.
    pub queued: usize,
    /// Copies that the kernel does not return from.
    pub stuck: usize,
    /// Threads whose affinity is ours at the end of the window.
    pub owned_threads: usize,
    /// Threads whose inherited affinity was restored in this window.
    pub inherited_restored: usize,
    /// Faults and changes, in plain sentences.
    pub notes: Vec<String>,
    /// The cost of homenode itself, if the plane knows it.
    pub cost: Option<Cost>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub mv: Move,
    pub result: MoveEvent,
}

fn is_zero<N: Default + PartialEq>(n: &N) -> bool {
    *n == N::default()
}

/// The result of undoing everything, in numbers of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finished {
    /// Restored, including threads that inherited an affinity of ours.
    pub restored: usize,
    /// Of `restored`: threads that were never moved and had inherited our value.
    pub inherited: usize,
    /// Left alone because something else changed their affinity.
    pub changed_by_others: usize,
    pub gone: usize,
    /// Copies that were stopped, or that a crash interrupted. What they had copied stays.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copies: usize,
    /// Bytes of memory and file data that were sent back to where they were.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub moved_back: u64,
    /// Bytes that were to be sent back, and stay.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_moved_back: u64,
    /// Could not be restored; they stay in the state file, and the next start tries again.
    pub failed: usize,
    /// The first few reasons and other remarks, one sentence each.
    pub notes: Vec<String>,
}

impl Finished {
    /// Whether no affinity of ours is left, and no data that was to be sent back.
    pub fn complete(&self) -> bool {
        self.failed == 0 && self.not_moved_back == 0
    }

    /// Adds the numbers of another one. What becomes of its notes is for the caller.
    pub fn add_numbers(&mut self, other: &Self) {
        self.restored += other.restored;
        self.inherited += other.inherited;
        self.changed_by_others += other.changed_by_others;
        self.gone += other.gone;
        self.copies += other.copies;
        self.moved_back += other.moved_back;
        self.not_moved_back += other.not_moved_back;
        self.failed += other.failed;
    }

    /// Adds a sentence, unless it is there or there are many already.
    pub fn note(&mut self, text: String) {
        const ENOUGH: usize = 32;
        if self.notes.len() < ENOUGH && !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }
}
