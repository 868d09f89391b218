//! The loop: observe a window, decide, keep what the safety rails let through, apply, write down why.
//!
//! **Problem.** A policy may be right on average and still do harm: move a thread back and forth, touch what is not ours,
//! or leave affinities behind when it dies.
//!
//! **Approach.** One loop for all planes. Nothing is applied before what undoes it is on disk; every move is journalled
//! with its reason; rails ([`rails`]) hold back what would oscillate or flood.
//!
//! **Limits.** The engine knows nothing of Linux: a [`Plane`] observes and acts.

use std::time::Duration;

use placement::{Move, Snapshot};
use serde::{Deserialize, Serialize};
use topology::{CpuSet, Topology};

/// Something that can be observed and acted on: a host, homenode's own file system, a simulated machine.
pub trait Plane {
    /// The machine.
    fn topology(&self) -> &Topology;

    /// Blocks for one window (virtual in a simulation) and returns what it showed.
    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError>;

    /// What would be needed to undo this move. Changes nothing, so that it can be written down before the move is made.
    /// [`PlaneError::Refused`] says that the move must not be made (the thread has an affinity of its own, …).
    fn prepare(&mut self, mv: &Move) -> Result<Undo, PlaneError>;

    /// Makes the move that `undo` was prepared for.
    fn apply(&mut self, mv: &Move, undo: &Undo) -> Result<(), PlaneError>;

    /// Puts back what a move changed, unless somebody else has changed it since.
    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError>;

    /// Threads and processes that were born of moved ones and so inherited a value of ours, as undo records of their own.
    /// Called once a window and again before everything is undone.
    fn inherited(&mut self, held: &[Undo]) -> Vec<Undo> {
        let _ = held;
        Vec::new()
    }
}

/// What undoes a move. Written to the state file before the move is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Undo {
    /// A thread's affinity.
    Thread {
        /// Thread id.
        tid: u32,
        /// Process id.
        pid: u32,
        /// Start time (nanoseconds or ticks since boot, as the plane counts): tells this thread from a later one with its id.
        start: u64,
        /// Affinity before our first move of this thread.
        before: CpuSet,
        /// Affinity that we set.
        ours: CpuSet,
    },
}

/// What became of an undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undone {
    /// Put back as it was.
    Restored,
    /// Somebody else changed it since: left alone.
    ChangedByOthers,
    /// The thread is gone.
    Gone,
}

/// Why a plane could not do something.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The thread or process ended meanwhile: a fact, not a fault.
    #[error("{what} has ended")]
    Gone {
        /// What ended, such as `thread 4121`.
        what: String,
    },
    /// The move must not or cannot be made, with the reason for a person.
    #[error("{why}")]
    Refused {
        /// Stable word for programs, such as `own_affinity`, `kernel_thread`, `eperm`, `einval`.
        reason: &'static str,
        /// One sentence.
        why: String,
    },
    /// The plane itself is broken: the loop ends.
    #[error(transparent)]
    Broken(#[from] Box<dyn std::error::Error + Send + Sync>),
}
