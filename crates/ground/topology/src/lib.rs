//! The machine: its NUMA nodes, their CPUs, memory, distances and bandwidth.
//!
//! **Problem.** Every decision of homenode starts from "which CPUs and which memory belong
//! together, and how far apart are they?". Linux answers in many small sysfs files, with sparse
//! ids, nodes without CPUs (CXL, persistent memory) and nodes without memory.
//!
//! **Approach.** [`Topology`] is one plain value. [`sysfs`] reads it, below any root; [`config`]
//! adds what sysfs does not know from `homenode.toml`; [`measured`] is what homenode itself has
//! measured; [`capture`] saves a machine as a fixture.
//!
//! **Limits.** A topology shows one moment: CPUs that go on- or offline later show at the next
//! read. [`sysfs::outline`] tells cheaply whether one is due.

#![warn(missing_docs)]

mod bytes;
pub mod capture;
pub mod config;
mod cpus;
mod error;
mod ids;
pub mod measured;
mod regions;
mod source;
pub mod sysfs;
pub mod tiers;
pub mod units;

pub use bytes::NodeBytes;
pub use cpus::{CpuSet, ParseCpuSetError};
pub use error::TopologyError;
pub use ids::{FileId, ProcessId, ThreadId};
pub use tiers::{Tier, TierSource};

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A NUMA node's id, as the kernel numbers it. Ids can be sparse (0, 8) and are never used as an
/// index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The kind of a node's memory, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Ordinary memory of a node that has CPUs.
    Dram,
    /// Memory of a node without CPUs (CXL expander, or persistent memory onlined as system memory).
    CpuLess,
    /// Memory of a node without CPUs that neither a DAX device, a region nor the user names: it can
    /// be a GPU's. It has no tier, and no policy puts file data there.
    Unknown,
    /// The node has no memory at all.
    None,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Kernel id.
    pub id: NodeId,
    /// CPUs of the node that are online. Empty for a CPU-less node.
    pub cpus: CpuSet,
    /// CPUs of the node that exist but are offline.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub offline_cpus: CpuSet,
    /// Bytes of memory; 0 for a node without memory, and on a kernel without NUMA that does not
    /// tell.
    pub memory_bytes: u64,
    /// Kind of that memory.
    pub memory: MemoryKind,
    /// ACPI SLIT distance to every node (10 is local), keyed by node id.
    pub distance: BTreeMap<NodeId, u32>,
    /// Highest read bandwidth of the node's memory in bytes/s, if configured or told by the
    /// firmware. Unknown is `None`, never a guess.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bw_max: Option<f64>,
    /// Highest write bandwidth of the node's memory in bytes/s, if configured or told by the
    /// firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bw_max: Option<f64>,
    /// How fast its memory is beside that of other nodes; absent without memory, or if it or its
    /// kind is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
}

impl Node {
    /// A node with this much memory. Its distances and bandwidths are unknown.
    pub fn new(id: NodeId, cpus: CpuSet, memory_bytes: u64) -> Self {
        Self {
            id,
            memory: if cpus.is_empty() { MemoryKind::CpuLess } else { MemoryKind::Dram },
            cpus,
            offline_cpus: CpuSet::default(),
            memory_bytes,
            distance: BTreeMap::new(),
            read_bw_max: None,
            write_bw_max: None,
            tier: None,
        }
    }
}

/// A range of physical addresses that a persistent-memory or CXL driver manages, and the node it is
/// attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Region {
    /// Kernel name, such as `region0` (nvdimm) or `cxl-region0`.
    pub name: String,
    /// Node that the memory is attached to; `None` if the kernel does not tell (`numa_node` is -1).
    pub node: Option<NodeId>,
    /// First physical address, if readable (needs root).
    pub start: Option<u64>,
    /// Size in bytes.
    pub size: u64,
    /// Block devices on this region, such as `pmem0`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Topology {
    /// Nodes by ascending id. Never empty after [`sysfs`] has read a machine: one without NUMA has
    /// node 0.
    pub nodes: Vec<Node>,
    /// Persistent-memory and CXL regions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<Region>,
}

/// A machine without regions.
impl FromIterator<Node> for Topology {
    fn from_iter<I: IntoIterator<Item = Node>>(nodes: I) -> Self {
        Self { nodes: nodes.into_iter().collect(), regions: Vec::new() }
    }
}

impl Topology {
    /// The node with this id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |n| n.id).ok().map(|i| &self.nodes[i])
    }

    /// The node a CPU belongs to, if it is online.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<NodeId> {
        self.nodes.iter().find(|n| n.cpus.contains(cpu)).map(|n| n.id)
    }

    /// The nodes whose memory is of unknown kind.
    pub fn of_unknown_kind(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|n| n.memory == MemoryKind::Unknown).map(|n| n.id).collect()
    }

    /// The nodes with memory of which a bandwidth is not known.
    pub fn without_bandwidth(&self) -> Vec<NodeId> {
        let unknown = |n: &&Node| n.memory != MemoryKind::None && (n.read_bw_max.is_none() || n.write_bw_max.is_none());
        self.nodes.iter().filter(unknown).map(|n| n.id).collect()
    }

    /// Whether some node's memory is known to be slower than that of the fastest node with CPUs.
    pub fn has_slow_memory(&self) -> bool {
        let rank = |node: &Node| node.tier.as_ref().map(|tier| tier.rank);
        let best = self.nodes.iter().filter(|node| !node.cpus.is_empty()).filter_map(rank).min();
        self.nodes.iter().filter_map(rank).max() > best
    }

    /// The nodes whose memory is known to be faster than the slowest.
    pub fn above_the_slowest(&self) -> Vec<NodeId> {
        let tiers = self.nodes.iter().filter(|node| node.memory_bytes > 0);
        let tiers: Vec<(NodeId, u32)> = tiers.filter_map(|node| Some((node.id, node.tier.as_ref()?.rank))).collect();
        let slowest = tiers.iter().map(|(_, rank)| *rank).max().unwrap_or(0);
        tiers.into_iter().filter(|(_, rank)| *rank < slowest).map(|(node, _)| node).collect()
    }

    /// The nodes with a CPU in the set.
    pub fn nodes_of_cpus(&self, cpus: &CpuSet) -> Vec<NodeId> {
        self.nodes.iter().filter(|n| n.cpus.iter().any(|cpu| cpus.contains(cpu))).map(|n| n.id).collect()
    }

    /// SLIT distance between two nodes; `None` if the machine does not tell.
    pub fn distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        self.node(from)?.distance.get(&to).copied()
    }

    /// All online CPUs.
    pub fn cpus(&self) -> CpuSet {
        self.nodes.iter().fold(CpuSet::default(), |all, n| all.union(&n.cpus))
    }
}
