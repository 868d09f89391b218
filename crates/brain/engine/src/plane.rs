//! The trait between engine and plane: observe, prepare, start, poll, undo.

use std::collections::BTreeMap;
use std::time::Duration;

use placement::{Move, Snapshot};
use serde::{Deserialize, Serialize};
use topology::{CpuSet, Topology};

use crate::{EngineError, Subject};

/// The word for a move that is not made because what undoes it cannot be written down.
pub(crate) const NOT_WRITTEN: &str = "state_not_written";

/// Names a job of a plane, for as long as it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// Immediate outcome of a move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// The job that copies; `None`: the move is complete.
    pub job: Option<JobId>,
    /// Subjects of undo records whose threads were not bound after all: they have ended, or have
    /// set an affinity of their own meanwhile.
    pub not_bound: Vec<Subject>,
}

impl Started {
    pub fn done() -> Self {
        Self::default()
    }

    pub fn job(job: JobId) -> Self {
        Self { job: Some(job), ..Self::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub job: JobId,
    /// Bytes to move, those already in place included.
    pub bytes: u64,
    /// Of these, in place.
    pub done: u64,
    /// Of these, in place before: nothing was copied for them, so they count in no limit.
    pub there: u64,
    /// Bytes that could not be moved, by reason.
    pub left: BTreeMap<String, u64>,
    pub state: JobState,
}

impl Progress {
    pub fn copied(&self) -> u64 {
        self.done.saturating_sub(self.there)
    }

    /// Bytes that could not be moved.
    pub fn failed(&self) -> u64 {
        self.left.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    Running,
    /// It is over; bytes may be left behind.
    Done,
    /// It ended early. What was copied stays.
    Failed {
        why: String,
    },
    /// It was stopped. What was copied stays.
    Cancelled,
    /// It must not be made. The job found that out before it copied anything.
    Refused {
        /// Stable word for programs, as in [`crate::PlaneError::Refused`].
        reason: &'static str,
        why: String,
    },
    /// The subject is gone, or another has its name. Nothing was copied.
    Gone,
}

/// Writes undo records to the state file. After an error, the plane must not make the change that
/// they would undo.
pub type Write<'a> = dyn FnMut(&[Undo]) -> Result<(), PlaneError> + 'a;

/// Something that can be observed and acted on: a host, homenode's own file system, a modelled
/// machine.
pub trait Plane {
    fn topology(&self) -> &Topology;

    /// Blocks for one window (virtual in the laboratory) and returns what it showed.
    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError>;

    /// Returns the undo records of this move: one for each thread that it binds, none for a file.
    /// Changes nothing, so that the records can be written before the move is made.
    /// [`PlaneError::Refused`] says that the move must not be made (the thread has an affinity of
    /// its own, …).
    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError>;

    /// Makes the move that `undo` was prepared for, or starts to make it: a move that copies goes
    /// on in the background as a job. Calls `write` with the records of further threads before it
    /// binds them (a process starts threads while it is moved). An error says that nothing was
    /// changed.
    fn start(&mut self, mv: &Move, undo: &[Undo], write: &mut Write<'_>) -> Result<Started, PlaneError>;

    /// All of these are going to be undone: a plane may look at them at once.
    fn undoing(&mut self, _undos: &[Undo]) {}

    /// Puts back what a move changed, unless somebody else has changed it since.
    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError>;

    /// Finds threads that moved threads have started and that inherited a value of ours. Called
    /// once a window, and again while everything is undone. An error means that none was found, but
    /// that there may be some.
    fn inherited(&mut self, _owned: &[Undo]) -> Result<Vec<Inherited>, PlaneError> {
        Ok(Vec::new())
    }

    /// Waits until forks that are under way show their children: a child has its parent's affinity
    /// long before [`inherited`](Self::inherited) can find it.
    fn let_forks_end(&mut self) {}

    /// Whether the record can be forgotten, because there is nothing left to undo: its thread has
    /// ended, or has set our value itself. `false` where that is not certain.
    fn ended(&mut self, _undo: &Undo) -> bool {
        false
    }

    /// Whether rules allow moves of this process's threads. Those that are bound while none does
    /// are put back.
    fn allows(&self, _pid: u32) -> bool {
        true
    }

    /// Names this run of the machine (a host's boot id). Records that were written in another run
    /// are void: their ids mean other threads now.
    fn epoch(&self) -> Option<String> {
        None
    }

    /// Its copies; `None` if no move of it copies.
    fn copies(&mut self) -> Option<&mut dyn Copies> {
        None
    }

    /// What observing costs, and how to observe less; `None` if it costs nothing.
    fn thrift(&mut self) -> Option<&mut dyn Thrift> {
        None
    }
}

/// A plane that is lent: one engine after the other can have it.
impl<P: Plane + ?Sized> Plane for &mut P {
    fn topology(&self) -> &Topology {
        (**self).topology()
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        (**self).observe(window)
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        (**self).prepare(mv)
    }

    fn start(&mut self, mv: &Move, undo: &[Undo], write: &mut Write<'_>) -> Result<Started, PlaneError> {
        (**self).start(mv, undo, write)
    }

    fn undoing(&mut self, undos: &[Undo]) {
        (**self).undoing(undos);
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        (**self).undo(undo)
    }

    fn inherited(&mut self, owned: &[Undo]) -> Result<Vec<Inherited>, PlaneError> {
        (**self).inherited(owned)
    }

    fn let_forks_end(&mut self) {
        (**self).let_forks_end();
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        (**self).ended(undo)
    }

    fn allows(&self, pid: u32) -> bool {
        (**self).allows(pid)
    }

    fn epoch(&self) -> Option<String> {
        (**self).epoch()
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        (**self).copies()
    }

    fn thrift(&mut self) -> Option<&mut dyn Thrift> {
        (**self).thrift()
    }
}

/// The copies of a plane, which go on in the background.
pub trait Copies {
    /// The progress of every job since the last call; the end of each is reported once.
    fn poll(&mut self) -> Vec<Progress>;

    /// Asks a job to stop as soon as it can. What it has copied stays. A job that is not known is
    /// ignored.
    fn cancel(&mut self, job: JobId);

    /// All jobs together copy no more than this many bytes a second from now on.
    fn pace(&mut self, _bytes_per_s: f64) {}

    /// Starts a move of a file that takes back an earlier one. It was prepared like any other. Only
    /// the data that the earlier move has moved goes back. If the plane does not know which data
    /// that is, the move is refused ([`PlaneError::not_known`]).
    fn take_back(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        Err(PlaneError::not_known(mv))
    }

    /// Copies that were given up because the kernel does not return from them. If there are many,
    /// no other one starts.
    fn stuck(&self) -> usize {
        0
    }

    /// Whether it remembers where the data was that jobs have moved, for
    /// [`move_back`](Self::move_back).
    fn moves_back(&self) -> bool {
        false
    }

    /// Takes the file or process that was moved last, starts a job that sends its data back to
    /// where it was before all its moves, and forgets these moves. Further calls take back one
    /// subject after the other, until no more are known (`None`). What these jobs move is not
    /// remembered.
    fn move_back(&mut self) -> Option<(Subject, Result<JobId, PlaneError>)> {
        None
    }
}

/// Observing less where homenode costs too much.
pub trait Thrift {
    /// Cost of homenode itself in the last window; `None` if it is not known.
    fn cost(&self) -> Option<Cost>;

    /// Observes less because homenode is over its budget. Says what it does from now on ("windows
    /// are twice as long"); `None` when there is nothing left to save.
    fn shed(&mut self) -> Option<String>;

    /// Takes one [`shed`](Self::shed) back because homenode has been far below its budget for long.
    /// Says what it does from now on; `None` when nothing had been saved.
    fn relax(&mut self) -> Option<String>;
}

impl PlaneError {
    /// A refusal by a rule of the plane.
    pub fn refused(reason: &'static str, why: impl Into<String>) -> Self {
        Self::Refused { reason, why: why.into(), cause: None }
    }

    /// A refusal because of an error. `what` failed.
    pub fn failed(reason: &'static str, what: impl Into<String>, cause: impl Into<Cause>) -> Self {
        Self::Refused { reason, why: what.into(), cause: Some(cause.into()) }
    }

    /// What undoes the move could not be written down.
    pub fn not_written(error: EngineError) -> Self {
        Self::failed(NOT_WRITTEN, "not moved, because its undo record cannot be written", error)
    }

    /// A refusal to take back a move: it is not known which data that move has moved.
    pub fn not_known(mv: &Move) -> Self {
        Self::refused("not_known", format!("what an earlier move of {} has moved is not known", mv.subject))
    }
}

/// Cost of homenode itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time used per second of window: 0.01 is one hundredth of one CPU.
    pub cpu: f64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
}

/// Undo record of a move of one thread, or of the memory of one process. Written to the state file
/// before the move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undo {
    pub subject: Subject,
    /// Its process; 0 for a file.
    #[serde(default)]
    pub pid: u32,
    /// The affinity before and after; absent where no affinity is put back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masks: Option<Masks>,
    /// Further data of the plane, in a form that only the plane understands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

/// A thread that inherited a value of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Record that restores its affinity.
    pub undo: Undo,
    /// It belongs to a process that was moved as a whole, so it keeps the value and is put back
    /// with the others of that process.
    pub keeps: bool,
}

/// The affinity of a thread before and after a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masks {
    /// Before our first move of it.
    pub before: CpuSet,
    pub ours: CpuSet,
    /// It had no affinity of its own before: undoing allows it every CPU again, also those that its
    /// cpuset or the machine has gained since, instead of pinning it to `before`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unbound: bool,
}

impl Undo {
    /// The same record, but it leads back to where `first` leads: undoing a second move must not
    /// restore the value that the first move set. If something else has changed the affinity
    /// between the two, undoing restores that value.
    pub(crate) fn back_to(mut self, first: &Self) -> Self {
        match (&mut self.masks, &first.masks) {
            (Some(new), Some(old)) if new.before == old.ours => {
                new.before.clone_from(&old.before);
                new.unbound = old.unbound;
            }
            (None, None) => self.payload.clone_from(&first.payload),
            _ => {}
        }
        self
    }

    /// The affinity that this leads back to, for people; empty where there is none.
    pub fn before(&self) -> String {
        self.masks.as_ref().map(|m| m.before.to_string()).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undone {
    Restored,
    /// Somebody else changed it since: left alone.
    ChangedByOthers,
    Gone,
}

pub type Cause = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The thread or process ended meanwhile: a fact, not a fault.
    #[error("{what} has ended")]
    Gone {
        /// The subject that ended, such as `thread 4121`.
        what: String,
    },
    /// The move must not or cannot be made.
    #[error("{why}{}", behind(.cause.as_deref()))]
    Refused {
        /// Stable word for programs, such as `own_affinity`, `kernel_thread`, `eperm`, `einval`.
        reason: &'static str,
        /// One sentence for people, without the cause.
        why: String,
        /// The error that stands behind it, such as the kernel's.
        #[source]
        cause: Option<Cause>,
    },
    /// The plane itself is broken: the loop ends.
    #[error(transparent)]
    Broken(#[from] Cause),
}

/// The end of a sentence that has a cause.
fn behind(cause: Option<&(dyn std::error::Error + Send + Sync)>) -> String {
    cause.map(|cause| format!(": {cause}")).unwrap_or_default()
}
