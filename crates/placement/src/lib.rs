//! The brain: from what was observed ([`Snapshot`]) to what should move ([`Plan`]).
//!
//! **Problem.** Threads read file bytes from the memory of nodes they do not run on.
//!
//! **Approach.** A [`Policy`] is a deterministic state machine: the same snapshots in the same order give the same plans.
//! Everything it knows comes from the topology and the snapshots; time is `Snapshot::time_s`.
//!
//! **Limits.** Pure: no I/O, no clock, no randomness, no knowledge of Linux. Whether a move may be carried out *now*
//! (dwell, rate, foreign affinities) is the engine's business, not a policy's.

pub mod at_home;
pub mod auto;
mod budget;
mod bytes;
pub mod cache_affinity;
pub mod dragonfly;
mod load;
pub mod npolicy;
pub mod nthread;
pub mod plan;
mod processes;
pub mod snapshot;
mod validate;
mod why;
mod words;

pub use bytes::NodeBytes;
pub use plan::{Declined, Move, NodeForecast, Plan, Prediction, Reason};
pub use snapshot::{FileUse, MappedMemory, NodeLoad, ObservedFile, Process, Snapshot, SnapshotError, Thread};
pub use validate::MAX_BYTES;
pub use why::Why;

use topology::Topology;

/// Decides moves from snapshots.
pub trait Policy: Send {
    /// Name as the user types it, such as `nthread-rl`.
    fn name(&self) -> &'static str;

    /// The plan for one window. Deterministic; never names a node that is not in `topology`, nor one that the thread may
    /// not run on.
    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan;

    /// Seconds between its decisions about threads and processes, where they are further apart than windows; else 0.
    fn period_s(&self) -> f64 {
        0.0
    }

    /// The same of its decisions about files.
    fn data_period_s(&self) -> f64 {
        self.period_s()
    }
}

/// The policies, by name, with one line about each for `--help`.
pub const POLICIES: &[(&str, &str)] = &[
    ("nthread", "data locality, then memory controllers, then CPUs; threads that share a file stay together"),
    ("nthread-rl", "data locality only: every thread to the node it reads most from"),
    ("nthread-cpu", "data locality, then CPUs"),
    ("nthread-nm", "data locality, then memory controllers, then CPUs; sharing is ignored"),
    ("dragonfly", "as nthread, but where a thread's home node is overloaded its files move to it, if that pays back"),
    ("npolicy", "processes with mapped memory go to the node that holds most of what they touch, every 10 s"),
    ("arc", "a process goes, with its memory, to the node that caches what it reads, at the first remote block"),
    ("arc-guarded", "the same, only for large files, large and repeated reads, and processes small against them"),
    (
        "auto",
        "threads, processes and data by one cost model: what saves most over the next 30 s, net of what moving costs",
    ),
];

/// The policy with this name, one of [`POLICIES`].
pub fn policy(name: &str, settings: &nthread::Settings) -> Option<Box<dyn Policy>> {
    if let Some(variant) = nthread::Variant::ALL.into_iter().find(|v| v.name() == name) {
        return Some(Box::new(nthread::NThread::new(variant, settings.clone())));
    }
    let arc = |variant| Box::new(cache_affinity::CacheAffinity::new(variant, Default::default()));
    match name {
        "auto" => Some(Box::new(auto::Auto::new(Default::default()))),
        "dragonfly" => Some(Box::new(dragonfly::Dragonfly::new(Default::default(), settings.clone()))),
        "npolicy" => Some(Box::new(npolicy::NPolicy::default())),
        "arc" => Some(arc(cache_affinity::Variant::Greedy)),
        "arc-guarded" => Some(arc(cache_affinity::Variant::Guarded)),
        _ => None,
    }
}
