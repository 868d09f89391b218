//! The machine's topology, read again when CPUs or nodes come or go.

use std::collections::BTreeMap;
use std::path::PathBuf;

use topology::config::NodeConfig;
use topology::{MemoryKind, NodeId, Topology, sysfs};

#[derive(Debug)]
pub struct Machine {
    topology: Topology,
    sys_root: PathBuf,
    /// What sysfs said about CPUs and nodes when the topology was read; `None` if it cannot be
    /// read, or does not matter.
    outline: Option<String>,
    /// What was known of each node that was ever there: what is configured is not in sysfs.
    bandwidths: BTreeMap<NodeId, NodeConfig>,
    /// A note about CPUs and nodes that came or went.
    changed: Option<String>,
}

impl Machine {
    /// A machine that had this topology just now. `fixed`: its nodes are made up, and stay as they
    /// are.
    pub fn new(topology: Topology, sys_root: PathBuf, fixed: bool) -> Self {
        let outline = (!fixed).then(|| sysfs::outline(&sys_root)).and_then(Result::ok);
        Self { outline, bandwidths: bandwidths(&topology), topology, sys_root, changed: None }
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn take_changed(&mut self) -> Option<String> {
        self.changed.take()
    }

    /// Reads the topology again if CPUs or nodes have come or gone. Says whether it is a new one.
    pub fn follow(&mut self) -> bool {
        if self.outline.is_none() {
            return false;
        }
        let Ok(outline) = sysfs::outline(&self.sys_root) else { return false };
        if self.outline.as_ref() == Some(&outline) {
            return false;
        }
        // While a node comes or goes its files may contradict each other: then the next window
        // reads them.
        let read = sysfs::read(&self.sys_root).and_then(|mut topology| {
            for (id, told) in bandwidths(&topology) {
                self.bandwidths.entry(id).or_insert(told);
            }
            let known = self.bandwidths.iter().filter(|(id, _)| topology.node(**id).is_some());
            let known = known.map(|(id, bandwidth)| (*id, bandwidth.clone())).collect();
            topology.configure(&known).map(|()| topology)
        });
        match read {
            Ok(topology) => {
                self.outline = Some(outline);
                let (before, now) = (shape(&self.topology), shape(&topology));
                self.topology = topology;
                self.changed = Some(format!("CPUs or nodes came or went: {now} (before: {before})"));
                true
            }
            Err(error) => {
                self.changed = Some(format!("CPUs or nodes come or go: {error}"));
                false
            }
        }
    }
}

/// The nodes with their online CPUs.
fn shape(topology: &Topology) -> String {
    let node = |node: &topology::Node| match node.cpus.is_empty() {
        true => format!("node {} without CPUs", node.id),
        false => format!("node {} with CPUs {}", node.id, node.cpus),
    };
    topology.nodes.iter().map(node).collect::<Vec<_>>().join(", ")
}

/// The bandwidth of each node, where it is known, and whether it is for file data.
fn bandwidths(topology: &Topology) -> BTreeMap<NodeId, NodeConfig> {
    let file_data = |node: &topology::Node| match node.memory {
        MemoryKind::CpuLess => Some(true),
        MemoryKind::Unknown => Some(false),
        _ => None,
    };
    let of = |node: &topology::Node| NodeConfig {
        read_bw_max: node.read_bw_max,
        write_bw_max: node.write_bw_max,
        file_data: file_data(node),
    };
    topology.nodes.iter().map(|node| (node.id, of(node))).collect()
}
