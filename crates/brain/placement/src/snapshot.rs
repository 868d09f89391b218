//! The observations of one window. Plain data with a documented JSON form
//! (`docs/snapshot.schema.json`): a window can be recorded, replayed, attached to a bug report or
//! written by hand.
//!
//! Units: bytes, bytes/s, seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use topology::{CpuSet, FileId, MemoryKind, Node, NodeId, ProcessId, ThreadId, Topology};

use crate::{NodeBytes, Outcome, Pace};

/// The only snapshot version.
pub const VERSION: u32 = 2;

/// The observations of one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Format version, 2.
    pub version: u32,
    /// The end of the window: seconds on the plane's own clock (monotonic on a host, virtual in a
    /// simulation).
    #[serde(default)]
    pub time_s: f64,
    /// The measured length of the window in seconds.
    pub window_s: f64,
    /// All nodes of the machine.
    pub nodes: Vec<NodeLoad>,
    /// Threads that touched file data in the window.
    #[serde(default)]
    pub threads: Vec<Thread>,
    /// What threads touched that ended within the window, or that were in another control group
    /// before: sums by control group and node. Each has a `group`, the `node` of the CPUs that
    /// counted last, bytes and files; of a thread nothing else is known, and `tid` is 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Thread>,
    /// Files that threads touched in the window.
    #[serde(default)]
    pub files: Vec<ObservedFile>,
    /// Ranges of files that were read earlier and not in this window, on nodes with slower memory
    /// below them. Only for policies that look at ranges, and of many only those that were not read
    /// for longest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<IdleFile>,
    /// Processes whose memory was observed.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// Outcomes of the moves that the policy asked for in earlier windows. The engine adds them
    /// before the policy decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Outcome>,
    /// How long the engine lets a load be moved about, which it adds, too. No part of the JSON
    /// form: a replay has settings of its own.
    #[serde(skip)]
    pub pace: Pace,
    /// Limits of this observation, in plain sentences ("sampled 1 in 16", "tmpfs reads are not
    /// seen: …").
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Control groups whose owners have chosen a policy that does not count, and why
    /// ([`crate::delegated`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// One node in one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeLoad {
    /// Node id.
    pub id: NodeId,
    /// Online CPUs of the node.
    pub cpus: Vec<u32>,
    /// SLIT distance to every node.
    #[serde(default)]
    pub distance: BTreeMap<NodeId, u32>,
    /// Highest read bandwidth, bytes/s; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bw_max: Option<f64>,
    /// Highest write bandwidth, bytes/s; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bw_max: Option<f64>,
    /// File bytes that all threads together read from this node's memory in the window.
    #[serde(default)]
    pub read_bytes: u64,
    /// File bytes that all threads together wrote to this node's memory in the window.
    #[serde(default)]
    pub write_bytes: u64,
    /// CPU seconds that all threads, including those not listed, used on the node's CPUs in the
    /// window; absent: only the listed threads count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<f64>,
    /// Free memory in bytes.
    #[serde(default)]
    pub memory_free: u64,
    /// Bytes that the memory controllers of the node carried in the window, as the hardware counted
    /// them: all memory, not only file data. Absent where no counter exists; the counted file bytes
    /// are then all that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredLoad>,
    /// The tier of its memory: 0 is the fastest, and equal numbers are alike. Absent if unknown:
    /// then nothing goes to a node without CPUs, whose memory can be a GPU's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<u32>,
    /// Whether the kernel reclaims memory of the node. Absent if unknown, or if the policy does not
    /// look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<Reclaim>,
}

/// What the kernel does to keep memory of a node free.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reclaim {
    /// The sum of the high watermarks of the node's zones, in bytes: the kernel makes free what is
    /// missing to it once free memory has fallen below the low watermark.
    pub high_watermark: u64,
    /// Bytes of free pages of the node that the kernel keeps on lists of each CPU, which
    /// `memory_free` does not count: new pages come from them first, and the pages that a move
    /// leaves go there.
    #[serde(default)]
    pub free_on_lists: u64,
    /// Bytes in the pages that reclaim looked at in the window because the machine had no free
    /// memory, not because a control group had reached its limit. On kernels that do not count this
    /// by node, the sum of the machine, unless it is known that none of it was of this node.
    #[serde(default)]
    pub scanned: u64,
    /// Bytes written to swap in the window, of the machine.
    #[serde(default)]
    pub swapped_out: u64,
    /// Bytes of the node's pages that were read in again in the window, soon after they were
    /// reclaimed, for whatever reason.
    #[serde(default)]
    pub refaulted: u64,
    /// Bytes that the kernel demoted from the node to slower memory in the window.
    #[serde(default)]
    pub demoted: u64,
}

impl Reclaim {
    /// Bytes that say that the node has no memory to spare.
    pub fn pressure(&self) -> u64 {
        self.scanned.saturating_add(self.demoted)
    }

    /// Bytes that say so if the node had none a moment ago. A control group that has reached its
    /// limit swaps and reads in again, too, on a node with much free memory.
    pub fn after_pressure(&self) -> u64 {
        self.swapped_out.saturating_add(self.refaulted)
    }
}

/// Bytes that the hardware counted at the memory controllers of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLoad {
    /// The counter: `uncore_imc`, `uncore_imc+pmm` (DRAM and persistent memory), `cxl_pmu` or
    /// `amd_umc`.
    pub source: String,
    /// Bytes read and written.
    pub bytes: u64,
    /// Of these, bytes read; absent where the counter does not tell reads from writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
}

/// One thread in one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Name of the thread.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comm: String,
    /// Start time of the thread: nanoseconds since boot on a host. It tells this thread from a
    /// later one with the same tid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<u64>,
    /// Start time of its process, in the same units. It tells the process from a later one with the
    /// same pid, also in windows in which the first thread is idle and not listed. Absent if
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_start_ns: Option<u64>,
    /// Its control group at the end of the window: the path from the root of the hierarchy
    /// (version 2), `/` for the root group. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Arc<str>>,
    /// The node that the thread ran on at the end of the window.
    pub node: NodeId,
    /// Nodes where the thread may run (affinity and cpuset).
    pub allowed_nodes: Vec<NodeId>,
    /// Why no policy may move this thread ("has a custom affinity: 0-3"); absent if it may be
    /// moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// The rule that applies to its process ([`crate::rules`]); absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Arc<str>>,
    /// The rule, or its absence, allows no move of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_observed: bool,
    /// CPU seconds used in the window.
    pub cpu_s: f64,
    /// Seconds of the window in which the thread was ready to run but waited for a CPU; absent if
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
    /// Seconds that the server of a volume worked for requests of the thread that ended in the
    /// window; more than the window if some ran at once, or had begun before it. Absent: the thread
    /// makes its accesses itself, or this is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_s: Option<f64>,
    /// File bytes read, by the node of the data.
    #[serde(default)]
    pub read_bytes: NodeBytes,
    /// The part of `read_bytes` that crossed nodes; absent: all bytes that are not on `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_read_bytes: Option<u64>,
    /// File bytes written, by the node of the data.
    #[serde(default)]
    pub write_bytes: NodeBytes,
    /// File bytes that it handed on by `sendfile` or `splice`, by the node of the data. No CPU of
    /// its own touched them, so they are in no other figure, and no policy follows them.
    #[serde(default, skip_serializing_if = "NodeBytes::is_empty")]
    pub handed_bytes: NodeBytes,
    /// The files the thread touched.
    #[serde(default)]
    pub files: Vec<FileUse>,
    /// Whether another thread also touched one of these files in this window.
    #[serde(default)]
    pub shares_file: bool,
}

/// One thread's use of one file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileUse {
    /// File id: `major:minor:inode`.
    pub file: FileId,
    /// Bytes read, by node.
    #[serde(default)]
    pub read_bytes: NodeBytes,
    /// Bytes written, by node.
    #[serde(default)]
    pub write_bytes: NodeBytes,
    /// Mean bytes per read call; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_size: Option<u64>,
    /// Whether most reads began where the previous one ended; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequential: Option<bool>,
}

impl FileUse {
    /// File bytes read and written.
    pub fn file_bytes(&self) -> u64 {
        self.read_bytes.total().saturating_add(self.write_bytes.total())
    }
}

/// One file in one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObservedFile {
    /// File id: `major:minor:inode`.
    pub file: FileId,
    /// Generation of the inode, if known. It tells this file from a later one with the same inode
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>")]
    pub generation: Option<u32>,
    /// Path, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Length in bytes, cached or not; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Resident bytes per node, where counted.
    #[serde(default)]
    pub bytes: NodeBytes,
    /// The share of the file that was looked at to estimate `bytes`; absent: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<f64>,
    /// Where bytes written to it land; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<Writes>,
    /// Whether its data can be moved to another node; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub movable: Option<bool>,
    /// Why its data cannot be moved; only with `movable: false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// How many times it was open whenever it was touched, at least: open file descriptions, of one
    /// process or several. More than 1 is what NThread calls shared, whether or not the others
    /// touched the file in this window. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens: Option<u32>,
    /// Threads that touched it, by rising tid.
    #[serde(default)]
    pub readers: Vec<u32>,
    /// Threads touched it that are not listed: they have ended, or are out of scope.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub touched_by_others: bool,
    /// Its ranges that were read in this window, by rising `start`. Only for policies that look at
    /// them, and of many only those with the most bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<RangeHeat>,
}

/// Bytes of a range of a file: the largest folio of the page cache on x86-64.
pub const RANGE_BYTES: u64 = 2 << 20;

/// What the CPUs of one node read from one range of a file, as far as it is on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RangeHeat {
    /// The range's first byte: a multiple of 2 MiB. It ends after 2 MiB, or with the file.
    pub start: u64,
    /// The node that its data was on when it was read.
    pub node: NodeId,
    /// The node of the CPUs that read it.
    pub by: NodeId,
    /// Bytes read. What was read eight windows ago counts half, and so on.
    pub bytes: u64,
    /// In how many of the last 32 windows it was read: once by a program that reads through the
    /// file, and often by one that comes back.
    pub windows: u32,
}

/// A file with ranges that were not read in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdleFile {
    /// File id: `major:minor:inode`.
    pub file: FileId,
    /// Generation of the inode, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>")]
    pub generation: Option<u32>,
    /// The ranges, by rising `start`.
    pub ranges: Vec<IdleRange>,
}

/// A range that was read earlier, and not in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdleRange {
    /// The range's first byte: a multiple of 2 MiB. It ends after 2 MiB, or with the file.
    pub start: u64,
    /// The node that its data was on when it was last read, or that homenode moved it to since. The
    /// kernel may have reclaimed it meanwhile.
    pub node: NodeId,
    /// Bytes read, aged as those of a range that was read.
    pub bytes: u64,
    /// Windows since it was last read, at least 1.
    pub windows: u32,
}

/// Where bytes land that a thread writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Writes {
    /// On the node where the writer runs, also when they are written over others.
    Follow,
    /// New bytes land on the node where the writer runs; bytes written over others land where those
    /// are. So does the page cache.
    InPlace,
    /// They land on the node of the device, wherever the writer runs.
    Stay,
    /// The file system spreads them over the nodes.
    Spread,
}

/// One process's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time of the process, in the same units as that of a thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<u64>,
    /// Resident bytes per node.
    #[serde(default)]
    pub resident: NodeBytes,
    /// Mapped file or persistent memory per node.
    #[serde(default)]
    pub mapped: Vec<MappedMemory>,
}

/// Mapped memory of a process on one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MappedMemory {
    /// Node the memory is on.
    pub node: NodeId,
    /// Bytes in hot pages.
    pub hot_bytes: u64,
    /// Bytes in cold pages.
    pub cold_bytes: u64,
    /// Bytes in pages that were touched while watched; absent: all listed pages were touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched_bytes: Option<u64>,
}

impl Snapshot {
    /// Threads that touched file data or handed it on, those that ended included.
    pub fn touched(&self) -> impl Iterator<Item = &Thread> {
        let all = self.threads.iter().chain(&self.ended);
        all.filter(|thread| thread.file_bytes() > 0 || !thread.handed_bytes.is_empty())
    }

    /// Reads a snapshot from JSON and checks its values ([`Snapshot::validate`]).
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Parse`] names the field, the line and the column.
    /// [`SnapshotError::Version`] takes precedence over complaints about fields, because another
    /// version may have other fields. [`SnapshotError::Value`] names the field and the value.
    pub fn from_json(text: &str) -> Result<Self, SnapshotError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }

        let mut json = serde_json::Deserializer::from_str(text);
        let parsed = serde_path_to_error::deserialize(&mut json).map_err(|e| (e.path().to_string(), e.into_inner()));
        let parsed = parsed.and_then(|snapshot: Self| match json.end() {
            Ok(()) => Ok(snapshot),
            Err(source) => Err((".".to_owned(), source)),
        });
        match parsed {
            Ok(snapshot) => snapshot.validate().map(|()| snapshot),
            Err((path, source)) => match serde_json::from_str(text) {
                Ok(Versioned { version }) if version != VERSION => Err(SnapshotError::Version(version)),
                _ if path == "." || path == "?" => Err(SnapshotError::Parse { at: String::new(), source }),
                _ => Err(SnapshotError::Parse { at: format!("{path}: "), source }),
            },
        }
    }

    /// The snapshot as one line of JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Reconstructs the machine from the snapshot, for use on another machine.
    ///
    /// A node that only a distance table mentions has no CPUs here. A snapshot does not record a
    /// node's total memory: `memory_bytes` is the free memory, and no node counts as memory-less.
    pub fn topology(&self) -> Topology {
        let node = |n: &NodeLoad| Node {
            distance: n.distance.clone(),
            read_bw_max: n.read_bw_max,
            write_bw_max: n.write_bw_max,
            // Slow memory has a tier.
            memory: match (n.cpus.is_empty(), n.tier) {
                (false, _) => MemoryKind::Dram,
                (true, Some(_)) => MemoryKind::CpuLess,
                (true, None) => MemoryKind::Unknown,
            },
            ..Node::new(n.id, n.cpus.iter().copied().collect(), n.memory_free)
        };
        let mut nodes: BTreeMap<NodeId, Node> = self.nodes.iter().map(|n| (n.id, node(n))).collect();
        for n in &self.nodes {
            for (&other, &distance) in &n.distance {
                let mentioned = nodes.entry(other).or_insert_with(|| Node::new(other, CpuSet::default(), 0));
                // Distance tables are symmetric on nearly every machine.
                mentioned.distance.entry(n.id).or_insert(distance);
            }
        }
        nodes.into_values().collect()
    }

    /// Remote file bytes / all file bytes that the listed threads read; `None` if nothing was read.
    pub fn remote_share(&self) -> Option<f64> {
        let (remote, all) = self.threads.iter().fold((0u64, 0u64), |(remote, all), t| {
            (remote.saturating_add(t.remote_bytes()), all.saturating_add(t.read_bytes.total()))
        });
        (all > 0).then(|| remote as f64 / all as f64)
    }
}

impl NodeLoad {
    /// A node of a machine that carried nothing.
    pub fn of(node: &Node) -> Self {
        Self {
            id: node.id,
            cpus: node.cpus.iter().collect(),
            distance: node.distance.clone(),
            read_bw_max: node.read_bw_max,
            write_bw_max: node.write_bw_max,
            tier: node.tier.map(|tier| tier.rank),
            ..Self::default()
        }
    }

    /// Bytes read and written of all the memory traffic of the node's controllers, if a counter
    /// shows it.
    pub fn whole(&self) -> Option<(f64, f64)> {
        self.measured.as_ref()?;
        let (read, written) = self.controller_bytes();
        Some((read as f64, written as f64))
    }

    /// Bytes read and written that count as the load of the node's controllers: those measured, or
    /// else the file bytes. Where reads were not measured apart from writes, they are shared out as
    /// the file bytes are.
    pub fn controller_bytes(&self) -> (u64, u64) {
        let Some(measured) = &self.measured else { return (self.read_bytes, self.write_bytes) };
        let read = measured.read_bytes.unwrap_or_else(|| {
            let counted = self.read_bytes.saturating_add(self.write_bytes);
            let share = if counted > 0 { self.read_bytes as f64 / counted as f64 } else { 1.0 };
            (measured.bytes as f64 * share).round() as u64
        });
        (read, measured.bytes.saturating_sub(read))
    }
}

impl Thread {
    /// Its id.
    pub fn id(&self) -> ThreadId {
        ThreadId::new(self.tid, self.start_ns)
    }

    /// The id of its process.
    pub fn process_id(&self) -> ProcessId {
        ProcessId::new(self.pid, self.of_process_since())
    }

    /// Start time of its process, if it is known from this thread: the first thread starts with the
    /// process.
    pub fn of_process_since(&self) -> Option<u64> {
        self.process_start_ns.or(self.start_ns.filter(|_| self.tid == self.pid))
    }

    /// File bytes that crossed nodes when the thread read them: the observed figure, or else all
    /// bytes that are not on its node.
    pub fn remote_bytes(&self) -> u64 {
        let all = self.read_bytes.total();
        self.remote_read_bytes.map_or_else(|| all - self.read_bytes.get(self.node), |remote| remote.min(all))
    }

    /// The node that most of its file bytes come from; `None` if it read nothing. In a tie, the
    /// node it runs on, otherwise the lowest id.
    pub fn home(&self) -> Option<NodeId> {
        let most = self.read_bytes.iter().map(|(_, bytes)| bytes).max().filter(|bytes| *bytes > 0)?;
        if self.read_bytes.get(self.node) == most {
            return Some(self.node);
        }
        self.read_bytes.iter().find(|(_, bytes)| *bytes == most).map(|(node, _)| node)
    }

    /// File bytes read and written.
    pub fn file_bytes(&self) -> u64 {
        self.read_bytes.total().saturating_add(self.write_bytes.total())
    }
}

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Not JSON, or not a snapshot.
    #[error("not a snapshot: {at}{source}")]
    Parse {
        /// The field with a colon, such as `threads[3].tid: `; empty if the text is not JSON at
        /// all.
        at: String,
        /// The parser's message, with line and column.
        source: serde_json::Error,
    },
    /// A version that this build does not support.
    #[error("snapshot version {0} is not supported, this build reads version {VERSION}")]
    Version(u32),
    /// An impossible value, with its field.
    #[error("{field}: {why}")]
    Value {
        /// The field, such as `threads[3].cpu_s`.
        field: String,
        /// The problem, with the value.
        why: String,
    },
}
