//! What the engine asks of a plane: observe, prepare, apply, undo.

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

    /// Makes the move that `undo` was prepared for. An error says that nothing was changed.
    fn apply(&mut self, mv: &Move, undo: &Undo) -> Result<(), PlaneError>;

    /// Puts back what a move changed, unless somebody else has changed it since.
    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError>;

    /// Threads and processes that were born of moved ones and so inherited a value of ours, as undo records of their own.
    /// Called once a window and again while everything is undone. An error says that none was found but some may be there.
    fn inherited(&mut self, held: &[Undo]) -> Result<Vec<Undo>, PlaneError> {
        let _ = held;
        Ok(Vec::new())
    }

    /// Whether this record has nothing to undo any more, because its thread has ended or has taken our value for its own, so that
    /// the record can be forgotten. `false` where that is not certain.
    fn ended(&mut self, undo: &Undo) -> bool {
        let _ = undo;
        false
    }

    /// Names this run of the machine (a host's boot id). Records that were written in another run are void: their ids
    /// mean other threads now.
    fn epoch(&self) -> Option<String> {
        None
    }

    /// What homenode itself cost in the last window.
    fn cost(&self) -> Option<Cost> {
        None
    }

    /// Asks the plane to observe less because homenode is over its budget. Says what it does from now on ("windows are
    /// twice as long"); `None` when there is nothing left to save.
    fn shed(&mut self) -> Option<String> {
        None
    }

    /// Takes one [`shed`](Self::shed) back because homenode has been far below its budget for long. Says what it does from
    /// now on; `None` when nothing had been saved.
    fn relax(&mut self) -> Option<String> {
        None
    }
}

/// What homenode itself costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time used per second of window: 0.01 is one hundredth of one CPU.
    pub cpu: f64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
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
        /// It had no affinity of its own before: undoing allows it every CPU again, also those that its cpuset or the
        /// machine has gained since, instead of pinning it to `before`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unbound: bool,
        /// By what descendants of this thread can be known, where the plane needs it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        family: Option<Family>,
    },
    /// The affinity of all threads of a process. Its memory stays where it was moved to.
    Process {
        /// Process id.
        pid: u32,
        /// Start time of the process, in the units of `Undo::Thread::start`.
        start: u64,
        /// Affinity of its threads before our first move of the process.
        before: CpuSet,
        /// Affinity that we set.
        ours: CpuSet,
        /// It had no affinity of its own before: undoing allows it every CPU again, also those that its cpuset or the
        /// machine has gained since, instead of pinning it to `before`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unbound: bool,
    },
    /// A file's data, which stays where it was moved to: nothing is put back, and nothing is written down.
    File {
        /// File id, as in the move.
        file: String,
    },
}

/// By what the descendants of a moved thread can be known after a crash, when nobody has watched their births.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Family {
    /// When the move was prepared, in the units of `Undo::Thread::start`: who started earlier has inherited nothing.
    pub at: u64,
    /// Session id.
    pub session: u32,
    /// Control group, as the plane names it; empty where it says nothing (the root group).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// The first thread of the process did not have our value: if it has it later and the moved thread is gone, the moved
    /// thread has become the first by exec.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_differs: bool,
}

/// Identity of what an undo record is about: thread id and start time.
pub(crate) type Key = (u32, u64);

impl Undo {
    /// What the record is about. A process is not its first thread, which has the same id and start time.
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::Thread { tid, start, .. } => (*tid, *start),
            Self::Process { pid, start, .. } => (*pid, !*start),
            Self::File { .. } => (0, 0),
        }
    }

    pub(crate) fn tid_pid(&self) -> (u32, u32) {
        match self {
            Self::Thread { tid, pid, .. } => (*tid, *pid),
            Self::Process { pid, .. } => (*pid, *pid),
            Self::File { .. } => (0, 0),
        }
    }

    /// The affinity that this leads back to, and ours; `None` where there is nothing to put back.
    pub(crate) fn masks(&self) -> Option<(&CpuSet, &CpuSet)> {
        match self {
            Self::Thread { before, ours, .. } | Self::Process { before, ours, .. } => Some((before, ours)),
            Self::File { .. } => None,
        }
    }

    /// The same record, undoing to what `first` undoes to: a second move of a thread must not lead back to the first
    /// move's value.
    pub(crate) fn back_to(mut self, first: &Self) -> Self {
        if let Self::Thread { before, unbound, .. } | Self::Process { before, unbound, .. } = &mut self
            && let Self::Thread { before: b, unbound: u, .. } | Self::Process { before: b, unbound: u, .. } = first
        {
            before.clone_from(b);
            *unbound = *u;
        }
        self
    }
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
