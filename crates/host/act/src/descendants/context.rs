//! Contents of a thread's undo record beside its masks: facts by which the descendants of a moved
//! thread can be found after a crash, when their births were not watched. The engine carries it
//! and does not read it.

use engine::Undo;
use serde::{Deserialize, Serialize};

/// The session and control group of a moved thread, and the time of the move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveContext {
    /// When the move was prepared, as start times are: a thread that started earlier has inherited
    /// nothing.
    #[serde(with = "linux::threads::ticks")]
    pub at: u64,
    pub session: u32,
    /// Control group as homenode names it; `None` for the root group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The first thread of the process did not have our value: if it has it later and the moved
    /// thread is gone, the moved thread has become the first by exec.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_differs: bool,
}

impl MoveContext {
    /// As a record carries it.
    pub fn payload(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }

    /// The context in a record; `None` in a record of a descendant, or in a damaged one.
    pub fn of(undo: &Undo) -> Option<Self> {
        serde_json::from_str(undo.payload.as_deref()?).ok()
    }
}
