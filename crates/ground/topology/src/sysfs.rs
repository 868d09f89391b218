//! Reads the machine from sysfs.
//!
//! **Problem.** The data is spread over hundreds of small files, and the kernel's omissions matter
//! as much as its output: `cpulist` holds only online CPUs, a `distance` row has a column for each
//! *online* node and no ids, and a kernel without NUMA has no node directory.
//!
//! **Approach.** One reader reads every file, below any root, so that a directory captured on
//! another machine reads like that machine. A missing necessary file, or a text in it that no
//! kernel would write, is an error that names the file and the errno or the text; nothing is
//! guessed. What not every machine has (bandwidth, latency, tiers, regions) is unknown where it
//! cannot be read or understood: no command fails for it.
//!
//! Memory of a node without CPUs is taken for slow memory only where a DAX device, a region or the
//! user names it: on GH200, GB200, MI300A and POWER9 such a node is a GPU's memory.
//!
//! The bandwidth of a node's memory is what the firmware promises (ACPI HMAT; CDAT for CXL): in
//! MB/s, as the nearest CPU gets it (`access1`; kernels before 5.11 have `access0` only, the
//! nearest initiator of any kind, which may be a device instead of a CPU).
//!
//! **Limits.** CPUs to which the firmware gives no node (`NUMA_NO_NODE`) belong to no node here
//! either. Most machines without CXL, HBM or persistent memory tell no bandwidth.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::measured::Measured;
use crate::source::Source;
use crate::tiers::{self, Said};
use crate::{CpuSet, MemoryKind, Node, NodeId, Topology, TopologyError, regions};

const NODES: &str = "devices/system/node";
const CPUS: &str = "devices/system/cpu";
const MEMORY: &str = "devices/system/memory";
const TIERS: &str = "devices/virtual/memory_tiering";

/// Reads the machine below a sysfs mount (`/sys`), or below a directory that
/// [`capture`](crate::capture::capture) wrote.
///
/// Needs no privileges; without root the physical range of a persistent-memory region stays
/// unknown.
///
/// # Errors
///
/// [`TopologyError::Read`] for a file that is missing or refused, [`TopologyError::Text`] for one
/// with an invalid text.
pub fn read(sys: &Path) -> Result<Topology, TopologyError> {
    read_from(&Source::new(sys))
}

pub(crate) fn read_from(source: &Source<'_>) -> Result<Topology, TopologyError> {
    let online = source.list(&format!("{CPUS}/online"))?;
    if online.is_empty() {
        return Err(source.wrong(&format!("{CPUS}/online"), "", "names no CPU"));
    }
    let regions = regions::read(source);
    let nodes = match source.list(&format!("{NODES}/online")) {
        Ok(ids) => numa(source, &ids, &online, &regions::named(source, &regions))?,
        Err(e) if e.is_missing() && source.names(NODES)?.is_empty() => vec![flat(source, online)?],
        Err(e) => return Err(e),
    };
    Ok(Topology { nodes, regions })
}

/// The nodes of a NUMA machine; `ids` are those in `node/online`, `named` those that a device of
/// memory names.
fn numa(
    source: &Source<'_>,
    ids: &CpuSet,
    online: &CpuSet,
    named: &BTreeSet<NodeId>,
) -> Result<Vec<Node>, TopologyError> {
    if ids.is_empty() {
        return Err(source.wrong(&format!("{NODES}/online"), "", "names no node"));
    }
    let ids: Vec<NodeId> = ids.iter().map(NodeId).collect();
    let mut nodes = Vec::with_capacity(ids.len());
    let mut owner: BTreeMap<u32, NodeId> = BTreeMap::new();
    for &id in &ids {
        let mut node = node(source, id, &ids, online)?;
        if node.memory == MemoryKind::CpuLess && !named.contains(&id) {
            node.memory = MemoryKind::Unknown;
        }
        for cpu in node.cpus.iter().chain(node.offline_cpus.iter()) {
            if let Some(other) = owner.insert(cpu, id) {
                let file = format!("{NODES}/node{id}/cpulist");
                return Err(source.wrong(&file, &node.cpus.to_string(), format!("has CPU {cpu}, as has node {other}")));
            }
        }
        nodes.push(node);
    }
    tiers::set(&mut nodes, &said_of_tiers(source, &ids));
    if nodes.iter().all(|n| n.cpus.is_empty()) {
        let ids: CpuSet = ids.iter().map(|id| id.0).collect();
        return Err(source.wrong(&format!("{NODES}/online"), &ids.to_string(), "are nodes without any online CPU"));
    }
    Ok(nodes)
}

fn node(source: &Source<'_>, id: NodeId, ids: &[NodeId], online: &CpuSet) -> Result<Node, TopologyError> {
    let dir = format!("{NODES}/node{id}");
    // `cpulist` has the node's online CPUs (drivers/base/node.c, node_read_cpumap); every present
    // CPU has a `cpuN` link.
    let listed = source.list(&format!("{dir}/cpulist"))?;
    let mut present = listed.clone();
    for (cpu, name) in source.numbered(&dir, "cpu")? {
        if !listed.contains(cpu) {
            source.note_link(&format!("{dir}/{name}"));
            present.insert(cpu);
        }
    }
    let cpus = listed.intersection(online);
    let offline_cpus = present.difference(&cpus);
    let memory_bytes = meminfo(source, &format!("{dir}/meminfo"), "MemTotal:")?;
    let memory = match (memory_bytes, present.is_empty()) {
        (0, _) => MemoryKind::None,
        (_, true) => MemoryKind::CpuLess,
        (_, false) => MemoryKind::Dram,
    };
    let distance = distances(source, &format!("{dir}/distance"), ids)?;
    let read_bw_max = bandwidth(source, &dir, "read_bandwidth");
    let write_bw_max = bandwidth(source, &dir, "write_bandwidth");
    Ok(Node { id, cpus, offline_cpus, memory_bytes, memory, distance, read_bw_max, write_bw_max, tier: None })
}

/// What the firmware tells about the bandwidth of a node's memory, in bytes/s.
fn bandwidth(source: &Source<'_>, dir: &str, what: &str) -> Option<f64> {
    performance(source, dir, what).map(|mb| mb * 1e6)
}

/// What the firmware and the kernel tell about the speed of each node's memory.
fn said_of_tiers(source: &Source<'_>, ids: &[NodeId]) -> BTreeMap<NodeId, Said> {
    let mut said: BTreeMap<NodeId, Said> = BTreeMap::new();
    for &id in ids {
        let latency_ns = performance(source, &format!("{NODES}/node{id}"), "read_latency");
        said.insert(id, Said { latency_ns, kernel: None });
    }
    for (tier, name) in source.numbered(TIERS, "memory_tier").unwrap_or_default() {
        let nodes = source.told::<CpuSet>(&format!("{TIERS}/{name}/nodelist"));
        for node in nodes.iter().flat_map(CpuSet::iter) {
            said.entry(NodeId(node)).or_default().kernel = Some(tier);
        }
    }
    said
}

/// A figure of a node's memory, as the nearest CPU gets it. The kernel shows 0 for unknown.
fn performance(source: &Source<'_>, dir: &str, what: &str) -> Option<f64> {
    let of = |class| source.told::<u32>(&format!("{dir}/{class}/initiators/{what}")).filter(|value| *value > 0);
    ["access1", "access0"].into_iter().find_map(of).map(f64::from)
}

/// The texts of the files that change when CPUs or nodes come or go: equal texts mean the same
/// machine. Four small files, so that a daemon can ask in every window.
///
/// # Errors
///
/// [`TopologyError::Read`] for a file that is refused, or if the list of online CPUs is missing.
pub fn outline(sys: &Path) -> Result<String, TopologyError> {
    let source = Source::new(sys);
    let mut all = source.text(&format!("{CPUS}/online"))?;
    for file in ["online", "has_cpu", "has_memory"] {
        all.push_str(file);
        all.push_str(&source.optional(&format!("{NODES}/{file}"))?.unwrap_or_default());
    }
    Ok(all)
}

/// Present free memory of each node in bytes, without nodes that do not tell. A kernel without NUMA
/// tells for none.
pub fn free_memory(sys: &Path, topology: &Topology) -> BTreeMap<NodeId, u64> {
    let source = Source::new(sys);
    let free = |id| meminfo(&source, &format!("{NODES}/node{id}/meminfo"), "MemFree:").ok();
    topology.nodes.iter().filter_map(|node| Some((node.id, free(node.id)?))).collect()
}

/// Bytes of cached files on a node; `None` if it does not tell.
pub fn cached_files(sys: &Path, node: NodeId) -> Option<u64> {
    meminfo(&Source::new(sys), &format!("{NODES}/node{node}/meminfo"), "FilePages:").ok()
}

/// Network devices and the node that each is attached to, by name: those that say one.
pub fn network_devices(sys: &Path) -> Vec<(String, NodeId)> {
    let mut devices: Vec<(String, NodeId)> = std::fs::read_dir(sys.join("class/net"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            // -1 where the firmware does not say; virtual devices have no such file.
            let node = std::fs::read_to_string(entry.path().join("device/numa_node")).ok()?;
            Some((entry.file_name().into_string().ok()?, NodeId(node.trim().parse().ok()?)))
        })
        .collect();
    devices.sort_unstable();
    devices
}

/// A field of a node's meminfo (`Node 0 MemTotal:       65536 kB`), in bytes.
fn meminfo(source: &Source<'_>, file: &str, field: &str) -> Result<u64, TopologyError> {
    let text = source.text(file)?;
    let Some(line) = text.lines().find(|line| line.contains(field)) else {
        return Err(source.wrong(file, &text, format!("has no line with {}", field.trim_end_matches(':'))));
    };
    let value = line.split_once(field).and_then(|(_, value)| bytes(value));
    value.ok_or_else(|| source.wrong(file, line, "is not a size in kB"))
}

/// Bytes of a size as the kernel writes it: `65536 kB`.
pub fn bytes(size: &str) -> Option<u64> {
    size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A node's distance row: one column for each online node, in the order of their ids.
fn distances(source: &Source<'_>, file: &str, ids: &[NodeId]) -> Result<BTreeMap<NodeId, u32>, TopologyError> {
    let text = source.text(file)?;
    let row = text
        .split_whitespace()
        .map(|column| {
            column.parse::<u32>().map_err(|_| source.wrong(file, &text, format!("has `{column}`, not a distance")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    if row.len() != ids.len() {
        let why = format!("has {} distances for {} online nodes", row.len(), ids.len());
        return Err(source.wrong(file, &text, why));
    }
    Ok(ids.iter().copied().zip(row).collect())
}

/// A kernel without NUMA: node 0 has everything.
fn flat(source: &Source<'_>, cpus: CpuSet) -> Result<Node, TopologyError> {
    let present = source.list(&format!("{CPUS}/present"))?;
    Ok(Node {
        id: NodeId(0),
        offline_cpus: present.difference(&cpus),
        cpus,
        memory_bytes: flat_memory(source),
        memory: MemoryKind::Dram,
        distance: BTreeMap::from([(NodeId(0), 10)]),
        read_bw_max: None,
        write_bw_max: None,
        tier: None,
    })
}

/// Bytes in online memory blocks; 0 if the kernel has no memory blocks (no memory hotplug), or does
/// not tell.
fn flat_memory(source: &Source<'_>) -> u64 {
    // Hexadecimal without 0x (drivers/base/memory.c, block_size_bytes_show).
    let block = source.told::<String>(&format!("{MEMORY}/block_size_bytes"));
    let block = block.and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or(0);
    let blocks = source.numbered(MEMORY, "memory").unwrap_or_default().into_iter();
    let is_online =
        |name: &str| source.told::<String>(&format!("{MEMORY}/{name}/state")).is_some_and(|state| state == "online");
    let online = if block > 0 { blocks.filter(|(_, name)| is_online(name)).count() as u64 } else { 0 };
    online.checked_mul(block).unwrap_or(0)
}

/// A machine that was saved: by `homenode nodes --capture` to a directory, or by
/// `homenode nodes --measure` to a file.
///
/// # Errors
///
/// As [`read`] and [`Measured::read`].
pub fn saved(path: &Path) -> Result<Topology, TopologyError> {
    if path.is_file() { Measured::read(path).map(|measured| measured.machine()) } else { read(path) }
}
