//! Policies: they decide from the observations of a window ([`Snapshot`]) what should move
//! ([`Plan`]).
//!
//! **Problem.** Threads read file bytes from the memory of nodes they do not run on.
//!
//! **Approach.** A [`Policy`] is a deterministic state machine: the same sequence of snapshots
//! gives the same plans. Its only inputs are the topology and the snapshots; it takes the time from
//! `Snapshot::time_s`.
//!
//! **Limits.** Pure: no I/O, no clock, no randomness, no knowledge of Linux. The engine decides
//! whether a move may be made *now* (dwell, rate, foreign affinities).

#![warn(missing_docs)]

pub mod at_home;
pub mod auto;
pub mod by_rule;
pub mod cache_affinity;
pub mod delegated;
pub mod dragonfly;
pub mod flow;
mod load;
pub mod load_change;
pub mod npolicy;
pub mod nthread;
mod numbers;
mod outcome;
mod pace;
pub mod plan;
mod processes;
pub mod promote;
pub mod ranges;
pub mod rules;
pub mod services;
pub mod snapshot;
mod subject;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod validate;
mod why;

pub use outcome::{Outcome, OutcomeState};
pub use pace::Pace;
pub use plan::{Declined, FileRange, Move, NodeForecast, Plan, Prediction, Reason};
pub use snapshot::{
    FileUse, IdleFile, IdleRange, MappedMemory, MeasuredLoad, NodeLoad, ObservedFile, Process, RANGE_BYTES, RangeHeat,
    Reclaim, Snapshot, SnapshotError, Thread, Writes,
};
pub use subject::Subject;
pub use validate::MAX_BYTES;
pub use why::Why;

pub use topology::NodeBytes;
use topology::Topology;

/// Decides moves from snapshots.
pub trait Policy: Send {
    /// The name that the user types, such as `nthread-rl`.
    fn name(&self) -> &'static str;

    /// Returns the plan for one window. Deterministic. The plan names only nodes in `topology`, and
    /// moves a thread only to nodes where it may run.
    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan;

    /// Seconds between decisions about threads and processes; 0 if the policy decides in each
    /// window.
    fn period_s(&self) -> f64 {
        0.0
    }

    /// What it moves beside threads, and what it needs.
    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// Seconds between decisions about files; 0 if the policy decides in each window.
    fn data_period_s(&self) -> f64 {
        self.period_s()
    }

    /// What its rules have copied of their bytes a day.
    fn spent(&self) -> by_rule::Spent {
        by_rule::Spent::default()
    }

    /// Why it can decide nothing any more: only a program of the user's can fail.
    fn trouble(&self) -> Option<&str> {
        None
    }
}

/// Whether a policy wants something that not every plane can observe; a stronger wish is larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// It does not look at it.
    #[default]
    No,
    /// It uses it where it is there.
    IfPossible,
    /// It can decide nothing without it.
    Needed,
}

impl Wish {
    /// Whether it is to be observed, where it is of use or not.
    pub fn is_granted(self, of_use: bool) -> bool {
        match self {
            Self::No => false,
            Self::IfPossible => of_use,
            Self::Needed => true,
        }
    }
}

/// What a policy moves beside threads, and what it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// It moves data of files.
    pub moves_files: bool,
    /// It moves processes with their memory.
    pub moves_processes: bool,
    /// Whether it looks at the mapped memory of processes ([`Process::mapped`]), which costs
    /// something to observe.
    pub wants_mapped: Wish,
    /// Whether it looks at the ranges of files ([`ObservedFile::ranges`]) and at what the kernel
    /// reclaims ([`NodeLoad::reclaim`]), which costs something to observe. They are of use where
    /// the machine has slow memory.
    pub wants_ranges: Wish,
    /// Whether it looks at ranges that were not read, too ([`Snapshot::idle`]).
    pub wants_idle: bool,
    /// What it leaves out where the bandwidth of a node is unknown.
    pub without_bandwidth: Option<&'static str>,
}

impl Traits {
    /// What either of two policies does or needs.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            moves_files: self.moves_files || other.moves_files,
            moves_processes: self.moves_processes || other.moves_processes,
            wants_mapped: self.wants_mapped.max(other.wants_mapped),
            wants_ranges: self.wants_ranges.max(other.wants_ranges),
            wants_idle: self.wants_idle || other.wants_idle,
            without_bandwidth: self.without_bandwidth.or(other.without_bandwidth),
        }
    }

    /// What it moves or needs that `granted` does not.
    pub fn beyond(self, granted: Self) -> Option<&'static str> {
        [
            (self.moves_files && !granted.moves_files, "moves of files"),
            (self.moves_processes && !granted.moves_processes, "moves of processes"),
            (self.wants_mapped > granted.wants_mapped, "a look at mapped files"),
            (self.wants_ranges > granted.wants_ranges, "a look at ranges of files"),
            (self.wants_idle && !granted.wants_idle, "a look at ranges that are not read"),
        ]
        .into_iter()
        .find_map(|(lacks, what)| lacks.then_some(what))
    }
}

/// The name of each policy, and its line in `--help`.
pub const POLICIES: &[(&str, &str)] = &[
    ("nthread", "data locality, then memory controllers, then CPUs; keeps threads that share a file together"),
    ("nthread-rl", "data locality only: moves each thread to the node it reads most from"),
    ("nthread-cpu", "data locality, then CPUs"),
    ("nthread-nm", "data locality, then memory controllers, then CPUs; ignores sharing"),
    ("dragonfly", "like nthread, but moves a thread's files to it if their node is overloaded and that pays back"),
    ("npolicy", "every 10 s, moves processes with mapped memory to the node with most of the data they touch"),
    ("arc", "at the first remote block, moves a process and its memory to the node that caches its file"),
    ("arc-guarded", "like arc, but only for large files, large repeated reads, and comparatively small processes"),
    (
        "promote",
        "moves parts of files that are read often from slower memory to their readers' node, while it has room",
    ),
    (
        "auto",
        "moves threads, processes and files by one cost model: the largest net saving over 30 s; hot parts as promote",
    ),
];

/// The settings of all policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Of the nthread policies and dragonfly.
    pub nthread: nthread::Settings,
    /// Of dragonfly.
    pub dragonfly: dragonfly::Settings,
    /// Of npolicy.
    pub npolicy: npolicy::Settings,
    /// Of arc and arc-guarded.
    pub arc: cache_affinity::Settings,
    /// Of promote.
    pub promote: promote::Settings,
    /// Of auto.
    pub auto: auto::Settings,
}

/// Returns the policy of this name, which is one of [`POLICIES`], with the default settings of all
/// but nthread.
pub fn policy(name: &str, nthread: &nthread::Settings) -> Option<Box<dyn Policy>> {
    policy_with(name, &Settings { nthread: nthread.clone(), ..Settings::default() })
}

/// Returns the policy of this name, which is one of [`POLICIES`].
pub fn policy_with(name: &str, settings: &Settings) -> Option<Box<dyn Policy>> {
    let Settings { nthread, dragonfly, npolicy, arc, promote, auto } = settings;
    if let Some(variant) = nthread::Variant::ALL.into_iter().find(|v| v.name() == name) {
        return Some(Box::new(nthread::NThread::new(variant, nthread.clone())));
    }
    let arc = |variant| Box::new(cache_affinity::CacheAffinity::new(variant, arc.clone()));
    match name {
        "auto" => Some(Box::new(auto::Auto::new(auto.clone(), promote.clone()))),
        "dragonfly" => Some(Box::new(dragonfly::Dragonfly::new(dragonfly.clone(), nthread.clone()))),
        "promote" => Some(Box::new(promote::Promote::new(promote.clone()))),
        "npolicy" => Some(Box::new(npolicy::NPolicy::new(npolicy.clone()))),
        "arc" => Some(arc(cache_affinity::Variant::Greedy)),
        "arc-guarded" => Some(arc(cache_affinity::Variant::Guarded)),
        _ => None,
    }
}
