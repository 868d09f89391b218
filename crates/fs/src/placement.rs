//! On which region new blocks go.

use smallvec::SmallVec;
use topology::{NodeId, Topology};

use crate::caller;
use crate::format::superblock::Superblock;

/// File blocks that go to one region before `Interleave` and `Random` change over.
pub const STRIPE: u64 = 16;

/// Where a write's blocks go. Whatever is chosen, a full region hands over to the next nearest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The node where the calling thread runs, or the one that it works for.
    #[default]
    Local,
    /// Any region, for each 64 KiB.
    Random,
    /// The regions in turn, for each 64 KiB of the file.
    Interleave,
    /// This node.
    Node(u32),
}

/// Regions by distance, for every node.
#[derive(Debug)]
pub struct Regions {
    nodes: Vec<Option<u32>>,
    node_of_cpu: Vec<Option<u32>>,
    /// For each region, all regions, nearest first.
    nearest: Vec<SmallVec<[usize; 8]>>,
}

impl Regions {
    /// From the nodes in the superblock and what is known of the machine.
    pub fn new(superblock: &Superblock, topology: Option<&Topology>) -> Self {
        let nodes: Vec<_> = superblock.regions.iter().map(|r| r.node).collect();
        let distance = |from: usize, to: usize| {
            let ids = nodes.get(from).copied().flatten().zip(nodes.get(to).copied().flatten());
            let known = ids.and_then(|(a, b)| topology.and_then(|t| t.distance(NodeId(a), NodeId(b))));
            known.unwrap_or(if from == to { 10 } else { 20 })
        };
        let nearest = (0..nodes.len()).map(|from| {
            let mut all: SmallVec<[usize; 8]> = (0..nodes.len()).collect();
            // Regions beginning with the next one, so that equally far ones share what a full region hands over.
            all.sort_by_key(|&to| (to != from, distance(from, to), (to + nodes.len() - from) % nodes.len()));
            all
        });
        let cpus = topology.map_or(0, |t| t.cpus().iter().max().map_or(0, |cpu| cpu + 1));
        let node_of_cpu = (0..cpus).map(|cpu| topology.and_then(|t| t.node_of_cpu(cpu)).map(|n| n.0));
        Self { node_of_cpu: node_of_cpu.collect(), nearest: nearest.collect(), nodes }
    }

    /// The region to try first for a file block.
    pub fn first(&self, placement: Placement, cpu: usize, file_block: u64, random: u64) -> usize {
        let count = self.nodes.len() as u64;
        match placement {
            Placement::Local => self.of_caller(cpu),
            Placement::Random => (random % count) as usize,
            Placement::Interleave => (file_block / STRIPE % count) as usize,
            Placement::Node(node) => self.on_node(node).unwrap_or(0),
        }
    }

    /// The region on the caller's node, which is that of its CPU unless [`crate::on_node`] says otherwise; region 0 where there
    /// is none.
    pub fn of_caller(&self, cpu: usize) -> usize {
        let node = caller::node().or_else(|| self.node_of_cpu.get(cpu).copied().flatten());
        node.and_then(|node| self.on_node(node)).unwrap_or(0)
    }

    /// The first region on a node.
    pub fn on_node(&self, node: u32) -> Option<usize> {
        self.nodes.iter().position(|n| *n == Some(node))
    }

    /// The node of a region.
    pub fn node(&self, region: usize) -> Option<u32> {
        self.nodes.get(region).copied().flatten()
    }

    /// All regions, nearest first.
    pub fn nearest(&self, region: usize) -> &[usize] {
        self.nearest.get(region).map_or(&[], |order| order)
    }
}
