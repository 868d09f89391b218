//! The tier of each node's memory: which memory is as fast as which.
//!
//! **Problem.** Nothing tells it alone. The kernel's own tiers (`memory_tiering`) put DRAM and CXL
//! memory into one if the firmware has no performance data for its driver; much firmware tells no
//! latency; and a node without CPUs can have slow memory or, as HBM, the fastest.
//!
//! **Approach.** The first of these that says something about all memory: the latency that was
//! measured ([`from_measured`]), the latency that the firmware promises, the kernel's tiers where
//! there are several. Otherwise memory of nodes without CPUs is slower than other memory, unless
//! the firmware promises it more bandwidth. Each is compared as the nearest CPUs reach it.
//!
//! **Limits.** Tiers rank by latency. Two memories that differ in bandwidth alone are one tier.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{MemoryKind, Node, NodeId};

/// Memory is slower than other memory from so many times its latency on. DRAM of one machine
/// differs by less than a tenth, and local CXL memory takes 1.6 to 3 times as long as local DRAM
/// (Sun et al., "Demystifying CXL Memory with Genuine CXL-Ready Systems and Devices", MICRO'23).
const SLOWER: f64 = 1.3;

/// The tier of a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// 0 is the fastest memory of the machine.
    pub rank: u32,
    /// What tells it.
    pub from: TierSource,
}

/// What tells tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TierSource {
    /// Latency that `homenode nodes --measure` found.
    Measured,
    /// Latency that the firmware promises (ACPI HMAT; CDAT for CXL), or the profile of emulated
    /// memory.
    Firmware,
    /// The kernel's tiers (`memory_tiering`).
    Kernel,
    /// Whether the node has CPUs.
    Cpus,
    /// homenode.toml names it, so it is slower than the nodes with CPUs.
    Configuration,
}

impl std::fmt::Display for TierSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Measured => "measured",
            Self::Firmware => "firmware",
            Self::Kernel => "kernel",
            Self::Cpus => "CPUs",
            Self::Configuration => "configuration",
        })
    }
}

/// What sysfs says of a node's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    /// Latency of a read by the nearest CPU, ns.
    pub latency_ns: Option<f64>,
    /// The kernel's tier: a lower number is faster.
    pub kernel: Option<u32>,
}

/// Sets the tier of each node with memory from what sysfs says.
pub(crate) fn set(nodes: &mut [Node], said: &BTreeMap<NodeId, Said>) {
    let all = |of: &dyn Fn(&Said) -> Option<f64>| -> Option<Vec<(NodeId, f64)>> {
        with_memory(nodes).map(|node| Some((node.id, of(said.get(&node.id)?)?))).collect()
    };
    let kernel = all(&|said| said.kernel.map(f64::from)).filter(|all| all.iter().any(|one| one.1 != all[0].1));
    let (ranks, from) = if let Some(latencies) = all(&|said| said.latency_ns) {
        (ranks(latencies, SLOWER), TierSource::Firmware)
    } else if let Some(tiers) = kernel {
        (ranks(tiers, 1.0), TierSource::Kernel)
    } else {
        let most = |node: &&Node| !node.cpus.is_empty() || !node.offline_cpus.is_empty();
        let dram = with_memory(nodes).filter(most).filter_map(|node| node.read_bw_max).reduce(f64::max);
        let slow = |node: &Node| {
            let faster = node.read_bw_max.zip(dram).is_some_and(|(own, dram)| own > dram);
            node.memory == MemoryKind::CpuLess && !faster
        };
        (with_memory(nodes).map(|node| (node.id, u32::from(slow(node)))).collect(), TierSource::Cpus)
    };
    put(nodes, &ranks, from);
}

/// Makes the memory of nodes without CPUs a tier that the user named, and the other way round.
pub(crate) fn named(nodes: &mut [Node], named: &BTreeMap<NodeId, bool>) {
    let slowest = nodes.iter().filter(|node| !node.cpus.is_empty()).filter_map(|node| node.tier).map(|tier| tier.rank);
    let below = slowest.max().unwrap_or(0) + 1;
    for node in nodes {
        match (node.memory, named.get(&node.id)) {
            (MemoryKind::Unknown, Some(true)) => {
                node.memory = MemoryKind::CpuLess;
                node.tier = Some(Tier { rank: below, from: TierSource::Configuration });
            }
            (MemoryKind::CpuLess, Some(false)) => (node.memory, node.tier) = (MemoryKind::Unknown, None),
            _ => {}
        }
    }
}

/// Sets the tiers of these nodes from what was measured, if that has them all.
/// `latency_s` is what the nearest CPUs of a node get ([`Measured::latency_s`]).
///
/// [`Measured::latency_s`]: crate::measured::Measured::latency_s
pub fn from_measured(nodes: &mut [Node], latency_s: impl Fn(NodeId) -> Option<f64>) {
    let nearest = |node: &Node| latency_s(node.id).map(|latency| (node.id, latency));
    if let Some(latencies) = with_memory(nodes).map(nearest).collect() {
        put(nodes, &ranks(latencies, SLOWER), TierSource::Measured);
    }
}

/// Sets the tiers of nodes whose memory has these latencies, in any unit, as their nearest CPUs see
/// them.
pub fn from_latencies(nodes: &mut [Node], latencies: Vec<(NodeId, f64)>) {
    put(nodes, &ranks(latencies, SLOWER), TierSource::Firmware);
}

fn with_memory(nodes: &[Node]) -> impl Iterator<Item = &Node> {
    nodes.iter().filter(|node| !matches!(node.memory, MemoryKind::None | MemoryKind::Unknown))
}

fn put(nodes: &mut [Node], ranks: &BTreeMap<NodeId, u32>, from: TierSource) {
    for node in nodes {
        node.tier = ranks.get(&node.id).map(|rank| Tier { rank: *rank, from });
    }
}

/// Ranks by rising value. A new rank begins with a value above `slower` times the first of the rank
/// before.
fn ranks(mut values: Vec<(NodeId, f64)>, slower: f64) -> BTreeMap<NodeId, u32> {
    values.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (mut rank, mut first) = (0, f64::NAN);
    let ranked = values.into_iter().map(|(node, value)| {
        if first.is_nan() {
            first = value;
        } else if value > slower * first {
            rank += 1;
            first = value;
        }
        (node, rank)
    });
    ranked.collect()
}
