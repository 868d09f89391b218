//! What was observed in one window. Plain data with a documented JSON form (`docs/snapshot.schema.json`), so that a
//! window can be recorded, replayed, attached to a bug report or written by hand.
//!
//! Units: bytes are bytes, bandwidth is bytes/s, times are seconds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use topology::{CpuSet, MemoryKind, Node, NodeId, Topology};

use crate::NodeBytes;

/// The only snapshot version there is.
pub const VERSION: u32 = 1;

/// Everything one window showed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Format version, 1.
    pub version: u32,
    /// When the window ended: seconds on the plane's own clock (monotonic on a host, virtual in a simulation).
    #[serde(default)]
    pub time_s: f64,
    /// Length of the window in seconds, as measured.
    pub window_s: f64,
    /// Every node of the machine.
    pub nodes: Vec<NodeLoad>,
    /// Threads that touched file data in the window.
    #[serde(default)]
    pub threads: Vec<Thread>,
    /// Files that were touched in the window.
    #[serde(default)]
    pub files: Vec<ObservedFile>,
    /// Processes, where their memory was looked at.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// What limits this observation, in plain sentences ("sampled 1 in 16", "tmpfs reads are not seen: …").
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
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
    /// Highest read bandwidth, bytes/s; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bw_max: Option<f64>,
    /// Highest write bandwidth, bytes/s; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bw_max: Option<f64>,
    /// File bytes read from this node's memory in the window, by anybody.
    #[serde(default)]
    pub read_bytes: u64,
    /// File bytes written to this node's memory in the window, by anybody.
    #[serde(default)]
    pub write_bytes: u64,
    /// CPU seconds used on the node's CPUs in the window by all threads, those not listed included; absent: only the
    /// listed threads count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<f64>,
    /// Free memory in bytes.
    #[serde(default)]
    pub memory_free: u64,
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
    /// When the thread started: nanoseconds since boot on a host, so that a reused tid is not taken for this thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<u64>,
    /// Node the thread ran on at the end of the window.
    pub node: NodeId,
    /// Nodes the thread may run on (affinity and cpuset).
    pub allowed_nodes: Vec<NodeId>,
    /// Why this thread must not be moved although it could be ("has an affinity of its own: 0-3"); absent: it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// CPU seconds used in the window.
    pub cpu_s: f64,
    /// Seconds of the window in which it was ready to run and waited for a CPU; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
    /// File bytes read, by the node the data was on.
    #[serde(default)]
    pub read_bytes: NodeBytes,
    /// Of `read_bytes`, those that crossed nodes when they were read; absent: all that are not on `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_read_bytes: Option<u64>,
    /// File bytes written, by the node they landed on.
    #[serde(default)]
    pub write_bytes: NodeBytes,
    /// The files the thread touched.
    #[serde(default)]
    pub files: Vec<FileUse>,
    /// Whether another thread touched one of these files in this window too.
    #[serde(default)]
    pub shares_file: bool,
}

/// One thread's use of one file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileUse {
    /// File id: `major:minor:inode`.
    pub file: String,
    /// Bytes read, by node.
    #[serde(default)]
    pub read_bytes: NodeBytes,
    /// Bytes written, by node.
    #[serde(default)]
    pub write_bytes: NodeBytes,
    /// Mean bytes per read call; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_size: Option<u64>,
    /// Whether most reads went on where the one before had ended; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequential: Option<bool>,
}

/// One file in one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObservedFile {
    /// File id: `major:minor:inode`.
    pub file: String,
    /// Path, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Length in bytes, cached or not; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Bytes resident per node, where they were counted.
    #[serde(default)]
    pub bytes: NodeBytes,
    /// Threads that touched it, by rising tid.
    #[serde(default)]
    pub readers: Vec<u32>,
}

/// One process's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process id.
    pub pid: u32,
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
    /// Bytes in pages touched at all while they were watched; absent: all pages listed were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched_bytes: Option<u64>,
}

impl Snapshot {
    /// Reads a snapshot from JSON and checks that it can be true ([`Snapshot::validate`]).
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Parse`] names the field, the line and the column; [`SnapshotError::Version`] comes before
    /// complaints about fields, which another version may well have; [`SnapshotError::Value`] names the field and the value.
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
                _ if path == "." => Err(SnapshotError::Parse { at: String::new(), source }),
                _ => Err(SnapshotError::Parse { at: format!("{path}: "), source }),
            },
        }
    }

    /// The snapshot as one line of JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// The machine as far as the snapshot tells, for a snapshot that is looked at elsewhere.
    ///
    /// A node that only a distance table mentions has no CPUs here. How much memory a node has is not recorded:
    /// `memory_bytes` is what was free, and no node counts as memory-less.
    pub fn topology(&self) -> Topology {
        let mut nodes: BTreeMap<NodeId, Node> = BTreeMap::new();
        let node = |id, cpus: CpuSet, memory_bytes, distance, read_bw_max, write_bw_max| Node {
            id,
            memory: if cpus.is_empty() { MemoryKind::CpuLess } else { MemoryKind::Dram },
            cpus,
            offline_cpus: CpuSet::default(),
            memory_bytes,
            distance,
            read_bw_max,
            write_bw_max,
        };
        for n in &self.nodes {
            let cpus = n.cpus.iter().copied().collect();
            let listed = node(n.id, cpus, n.memory_free, n.distance.clone(), n.read_bw_max, n.write_bw_max);
            nodes.insert(n.id, listed);
        }
        for n in &self.nodes {
            for (&other, &distance) in &n.distance {
                let mentioned = nodes
                    .entry(other)
                    .or_insert_with(|| node(other, CpuSet::default(), 0, BTreeMap::new(), None, None));
                // Tables are symmetric on nearly every machine: better than not knowing.
                mentioned.distance.entry(n.id).or_insert(distance);
            }
        }
        Topology { nodes: nodes.into_values().collect(), regions: Vec::new() }
    }

    /// Remote file bytes / all file bytes that the listed threads read; `None` where nothing was read.
    pub fn remote_share(&self) -> Option<f64> {
        let (remote, all) = self.threads.iter().fold((0u64, 0u64), |(remote, all), t| {
            (remote.saturating_add(t.remote_bytes()), all.saturating_add(t.read_bytes.total()))
        });
        (all > 0).then(|| remote as f64 / all as f64)
    }
}

impl Thread {
    /// File bytes that crossed nodes when the thread read them: as observed, else those not on the node it runs on.
    pub fn remote_bytes(&self) -> u64 {
        let all = self.read_bytes.total();
        self.remote_read_bytes.map_or_else(|| all - self.read_bytes.get(self.node), |remote| remote.min(all))
    }

    /// The node most of its file bytes come from; `None` if it read nothing. Among equals the node it runs on, else the
    /// lowest id.
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
        /// Field with a colon after it, such as `threads[3].tid: `; empty where the text is not JSON at all.
        at: String,
        /// The parser's message, with line and column.
        source: serde_json::Error,
    },
    /// A version this build does not know.
    #[error("snapshot version {0} is not supported, this build reads version {VERSION}")]
    Version(u32),
    /// A value that cannot be: names the field and the value.
    #[error("{field}: {why}")]
    Value {
        /// Field, such as `threads[3].cpu_s`.
        field: String,
        /// What is wrong, with the value.
        why: String,
    },
}
