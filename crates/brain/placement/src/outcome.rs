//! Outcomes of the moves that a policy asked for: part of the next snapshot.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use topology::NodeId;

use crate::Subject;

/// Outcome of one move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Subject of the move.
    pub subject: Subject,
    /// The node that it was to leave.
    pub from: NodeId,
    /// The node that it was to go to.
    pub to: NodeId,
    /// The result so far.
    pub result: OutcomeState,
}

/// The result of a move so far. `queued` and `running` are repeated in each window until the move
/// ends; everything else is said once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum OutcomeState {
    /// It was made.
    Done {
        /// Bytes that were copied; 0 for a thread.
        #[serde(default)]
        bytes: u64,
        /// Bytes that could not be moved and stay where they were.
        #[serde(default)]
        failed: u64,
    },
    /// It copies.
    Running {
        /// Bytes to copy.
        bytes: u64,
        /// Of these, copied so far.
        done: u64,
    },
    /// It waits until others have been copied.
    Queued,
    /// A rail of the engine held it back; nothing was changed.
    HeldBack {
        /// The rail, such as `dwell` or `settled`.
        rail: String,
        /// One sentence.
        why: String,
    },
    /// It must not or cannot be made; nothing was changed.
    Refused {
        /// Stable word for programs, such as `own_affinity`.
        reason: String,
        /// One sentence.
        why: String,
    },
    /// It ended before all was copied, or was stopped. What had been copied stays.
    Failed {
        /// Bytes copied until then.
        #[serde(default)]
        bytes: u64,
        /// One sentence.
        why: String,
    },
    /// The thread, process or file ended.
    Gone,
    /// It was made, did not pay, and was taken back.
    RolledBack {
        /// One sentence with the figures.
        why: String,
    },
}
