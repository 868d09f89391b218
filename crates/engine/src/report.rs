//! What a window and an end came to.

use placement::{Move, Plan, Snapshot};
use serde::Serialize;

use crate::{Cost, Rail};

/// One window: what was seen, decided and done.
#[derive(Clone, Debug, Serialize)]
pub struct WindowReport {
    /// What was seen.
    pub snapshot: Snapshot,
    /// What the policy decided.
    pub plan: Plan,
    /// What became of each move of the plan, in its order.
    pub outcomes: Vec<Outcome>,
    /// Share of file bytes read from another node in this window; absent where nothing was read.
    pub remote_share: Option<f64>,
    /// Threads whose affinity is ours at the end of the window.
    pub held_threads: usize,
    /// Threads born of moved ones whose inherited affinity was put back in this window.
    pub inherited_restored: usize,
    /// What went wrong or was changed, in plain sentences.
    pub notes: Vec<String>,
    /// What homenode itself cost, where the plane knows.
    pub cost: Option<Cost>,
}

/// What became of one move.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The move.
    #[serde(rename = "move")]
    pub mv: Move,
    /// What became of it.
    pub result: Verdict,
}

/// What became of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Verdict {
    /// It was made.
    Applied,
    /// A rail held it back.
    HeldBack {
        /// Which.
        rail: Rail,
        /// One sentence.
        why: String,
    },
    /// It must not or cannot be made.
    Refused {
        /// Stable word for programs.
        reason: String,
        /// One sentence.
        why: String,
    },
    /// The thread ended before it was made.
    Gone,
}

/// What undoing everything came to. Counts are of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finished {
    /// Put back as before, those born of moved ones included.
    pub restored: usize,
    /// Of `restored`: threads that were never moved but had inherited our value.
    pub inherited: usize,
    /// Left alone because somebody else changed them since.
    pub changed_by_others: usize,
    /// Ended meanwhile.
    pub gone: usize,
    /// Could not be put back; they stay in the state file and are tried again at the next start.
    pub failed: usize,
    /// Why, a sentence each (the first few), and other things worth knowing.
    pub notes: Vec<String>,
}

impl Finished {
    /// Whether nothing of ours is left.
    pub fn complete(&self) -> bool {
        self.failed == 0
    }

    /// Adds a sentence, unless there are many already.
    pub(crate) fn note(&mut self, text: String) {
        const ENOUGH: usize = 32;
        if self.notes.len() < ENOUGH && !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }
}
