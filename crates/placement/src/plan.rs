//! The moves that a policy wants, with their reasons. Plain data with a documented JSON form
//! (`docs/plan.schema.json`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use topology::NodeId;

use crate::Why;

/// The only plan version.
pub const VERSION: u32 = 1;

/// The moves decided from one snapshot, and the threads left in place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Format version, 1.
    pub version: u32,
    /// The policy that made the plan.
    pub policy: String,
    /// Moves, in the order to make them.
    pub moves: Vec<Move>,
    /// Threads that stay although they read from another node, with the reason.
    pub declined: Vec<Declined>,
    /// Ids of threads that the plan relies on where they are. They are bound there, because the
    /// kernel would otherwise move them away when others arrive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keeps: Vec<u32>,
    /// The effect that the policy expects of the moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Prediction>,
    /// Remarks on data that the policy could not judge, in plain sentences ("node 0: bandwidth unknown, contention
    /// not judged").
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Plan {
    /// Creates an empty plan of this policy.
    pub fn new(policy: &str) -> Self {
        Self { version: VERSION, policy: policy.to_owned(), ..Self::default() }
    }

    /// The plan as one line of JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}

/// One move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Move {
    /// Moves a thread to another node's CPUs; its data stays.
    Thread {
        /// Thread id.
        tid: u32,
        /// Process id.
        pid: u32,
        /// Start time, as in the snapshot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start_ns: Option<u64>,
        /// The node it runs on.
        from: NodeId,
        /// The node it should run on.
        to: NodeId,
        /// The rule behind the move.
        reason: Reason,
        /// One sentence with the figures.
        why: Why,
    },
    /// Moves a process with all its threads and its memory.
    Process {
        /// Process id.
        pid: u32,
        /// Start time, as in the snapshot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start_ns: Option<u64>,
        /// The node it is on.
        from: NodeId,
        /// The node it should be on.
        to: NodeId,
        /// The rule behind the move.
        reason: Reason,
        /// One sentence with the figures.
        why: Why,
    },
    /// Moves a file's data.
    File {
        /// File id: `major:minor:inode`.
        file: String,
        /// Generation of the inode, as in the snapshot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u64>,
        /// The node the data is on.
        from: NodeId,
        /// The node the data should be on.
        to: NodeId,
        /// The rule behind the move.
        reason: Reason,
        /// One sentence with the figures.
        why: Why,
    },
}

/// The rules behind moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Most of the thread's file bytes are there (NThread III-A).
    ReadLocality,
    /// The memory controller of its home node is overloaded (NThread III-C1).
    ControllerContention,
    /// The CPUs of its home node are overloaded (NThread III-C2).
    CpuContention,
    /// None of the memory it touches is on a node it runs on (N-Policy a).
    RemoteOnly,
    /// One remote node holds most of the memory it touches (N-Policy b).
    Coverage,
    /// The other node has more hot pages (N-Policy c).
    Hotness,
    /// The file it reads is cached there (ARC task migration).
    CacheAffinity,
    /// Data moves because its home node is overloaded (Dragonfly).
    OverloadedHome,
}

/// A thread that stays where it is, with the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Declined {
    /// Thread id.
    pub tid: u32,
    /// A stable word for programs, such as `shares_file`, `below_margin`, `held`, `not_allowed`.
    pub reason: String,
    /// One sentence with the figures.
    pub why: String,
}

impl Declined {
    /// The thread stays with the threads that it shares a file with.
    pub const SHARES_FILE: &str = "shares_file";
}

/// The effect that a policy expects of its plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Share of file bytes read from another node in the observed window; absent if nothing was
    /// read.
    pub remote_share_before: Option<f64>,
    /// The same after the moves, if all threads continue reading as before.
    pub remote_share_after: Option<f64>,
    /// One forecast per node.
    pub nodes: Vec<NodeForecast>,
}

/// One node before and after a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeForecast {
    /// Node id.
    pub node: NodeId,
    /// Controller load (NThread Eq. 1) as a fraction of the node's capacity; absent if the capacity
    /// is unknown.
    pub controller_before: Option<f64>,
    /// The same after the moves.
    pub controller_after: Option<f64>,
    /// CPU utilisation as a fraction of the node's CPUs; absent for a node without CPUs.
    pub cpu_before: Option<f64>,
    /// The same after the moves; may exceed 1.
    pub cpu_after: Option<f64>,
}
