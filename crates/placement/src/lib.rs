//! The brain: from what was observed ([`Snapshot`]) to what should move ([`Plan`]).
//!
//! **Problem.** Threads read file bytes from the memory of nodes they do not run on.
//!
//! **Approach.** A [`Policy`] is a deterministic state machine: the same snapshots in the same order give the same plans.
//! Everything it knows comes from the topology and the snapshots; time is `Snapshot::time_s`.
//!
//! **Limits.** Pure: no I/O, no clock, no randomness, no knowledge of Linux. Whether a move may be carried out *now*
//! (dwell, rate, foreign affinities) is the engine's business, not a policy's.

mod bytes;
pub mod plan;
pub mod snapshot;

pub use bytes::NodeBytes;
pub use plan::{Declined, Move, NodeForecast, Plan, Prediction, Reason};
pub use snapshot::{FileUse, NodeLoad, ObservedFile, Process, Snapshot, SnapshotError, Thread};

use topology::Topology;

/// Decides moves from snapshots.
pub trait Policy: Send {
    /// Name as the user types it, such as `nthread-rl`.
    fn name(&self) -> &'static str;

    /// The plan for one window. Deterministic; never names a node that is not in `topology`, nor one that the thread may
    /// not run on.
    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan;
}
