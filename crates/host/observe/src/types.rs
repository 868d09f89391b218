//! The types of an observation: settings, what one window showed, errors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::threads::Threads;
use placement::rules::Rules;
use placement::{NodeBytes, ObservedFile, Thread};
use serde::{Deserialize, Serialize};
use topology::{CpuSet, FileId, NodeId, ProcessId};

use crate::records::intf::COUNTED_PER_S;

/// Which threads are reported. Bytes of all others still count in the node totals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those that rules do not ignore; without rules, every thread of the machine.
    Ruled(Rules),
    /// The threads of this process and of all its descendants, including those whose parents have
    /// ended.
    Tree(u32),
}

impl Default for Scope {
    fn default() -> Self {
        Self::Ruled(Rules::default())
    }
}

impl Scope {
    /// The threads of the processes that have these ids now.
    ///
    /// # Errors
    ///
    /// There is no such process, or it cannot be looked at.
    pub fn of(pids: &[u32], proc_root: &Path) -> Result<Self, ObserveError> {
        let threads = Threads::new(proc_root);
        let process = |&pid: &u32| match threads.started(pid) {
            Ok(start_ns) => Ok(ProcessId::new(pid, start_ns)),
            Err(source) => Err(ObserveError::Io { what: format!("process {pid}"), source }),
        };
        pids.iter().map(process).collect::<Result<_, _>>().map(|processes| Self::Ruled(Rules::only(processes)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Count every event instead of a sample.
    pub exact: bool,
    /// Keep the hook on the read path attached, even where that slows reads: attaching it again
    /// interrupts every CPU. Implied by `exact`, and on machines with `nohz_full` CPUs.
    pub steady: bool,
    pub scope: Scope,
    pub proc_root: PathBuf,
    /// Number of (thread, file, node) entries that one window can hold, of ranges, and of watched
    /// threads. No user can take all of them. A note reports what did not fit. `None`: of the first
    /// as many as the machine's CPUs can need in a window, within bounds, and 65,536 of the others.
    pub max_entries: Option<u32>,
    /// Count also which ranges of files are read, and from where: [`ObservedFile::ranges`].
    pub ranges: bool,
    /// The length of the windows to come, for this number.
    pub window: Duration,
    pub hooks: Hooks,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            exact: false,
            steady: false,
            scope: Scope::default(),
            proc_root: PathBuf::from("/proc"),
            max_entries: None,
            ranges: false,
            window: Duration::from_secs(1),
            hooks: Hooks::Best,
        }
    }
}

impl Settings {
    /// Nearly five for each of 10,000 threads, in 15 MB of kernel memory; also enough for each CPU
    /// of a small machine.
    const ENTRIES: f64 = 49_152.0;
    /// A larger machine has 0.6 MB of kernel memory for each CPU.
    const ENTRIES_PER_CPU: f64 = 2048.0;

    /// Entries of a table on a machine with this many CPUs.
    pub(super) fn entries(&self, cpus: usize) -> u32 {
        let cpus = cpus.max(1) as f64;
        let most = cpus * f64::from(COUNTED_PER_S) * self.window.as_secs_f64().max(1.0);
        let bound = Self::ENTRIES.max(cpus * Self::ENTRIES_PER_CPU);
        self.max_entries.map_or(most.min(bound) as u32, |entries| entries.max(1))
    }
}

/// Which of the kernel's hooks to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hooks {
    /// Function hooks (fentry/fexit) where the kernel takes them, tracepoints elsewhere.
    #[default]
    Best,
    /// Tracepoints only, as on kernels that refuse function hooks.
    Tracepoints,
}

#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// When the window ended: seconds on `CLOCK_BOOTTIME`.
    pub time_s: f64,
    /// Length of the window in seconds, as measured.
    pub window_s: f64,
    /// Threads in scope that touched file data or used CPU time, by ascending tid.
    pub threads: Vec<ObservedThread>,
    /// What threads in scope touched that ended within the window, or left their control group: see
    /// [`placement::Snapshot::ended`].
    pub ended: Vec<Thread>,
    /// CPU seconds used on each node's CPUs by all threads of the machine, including those not
    /// listed.
    pub node_cpu_s: BTreeMap<NodeId, f64>,
    /// File bytes that all threads read from each node's memory.
    pub node_read: NodeBytes,
    /// File bytes that all threads wrote to each node's memory.
    pub node_write: NodeBytes,
    /// Files that threads in scope touched, by id.
    pub files: Vec<FileSeen>,
    /// Some descendants of watched threads are not watched: the table was full.
    pub births_lost: bool,
    /// Limits of this observation, in plain sentences.
    pub notes: Vec<String>,
    /// Control groups whose owners have chosen a policy that does not count, and why.
    pub refused: Vec<String>,
    /// Number of threads on the machine.
    pub tasks: usize,
    pub cost: Cost,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileSeen {
    pub id: FileId,
    /// Bytes that threads in scope read and wrote.
    pub bytes: u64,
    /// The file as policies see it, as far as the programs saw it.
    pub file: ObservedFile,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ObservedThread {
    /// The thread as policies see it; `allowed_nodes` are those of the mask, and `pinned` is always
    /// `None` (the plane sets it).
    pub thread: Thread,
    pub mask: CpuSet,
    /// Whether an affinity was ever asked for, by the thread, for it, or for a thread it descends
    /// from. `None` where the kernel does not say (before Linux 6.2).
    pub asked: Option<bool>,
    pub kernel_thread: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU seconds of our own process (all its threads).
    pub cpu_s: f64,
    /// Resident memory of our own process, bytes.
    pub rss_bytes: u64,
    /// Bytes of kernel memory that our maps and programs hold.
    pub kernel_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The kernel lacks something, or refuses it.
    #[error("cannot observe: {capability} is missing: {cause}")]
    Missing {
        /// The missing facility, such as `BTF` or `CAP_BPF`.
        capability: &'static str,
        /// Why, with the errno where there is one.
        cause: String,
    },
    /// The kernel refused a step that its capabilities promised.
    #[error("cannot observe: {step}: {source}")]
    Bpf {
        step: String,
        #[source]
        source: libbpf_rs::Error,
    },
    /// A file, process or object that a setting names, or that observing needs, cannot be used.
    #[error("cannot observe: {what}: {source}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
}
