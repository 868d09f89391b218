//! On which region new blocks go.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use topology::{NodeId, Topology};

use crate::caller;
use crate::format::superblock::Superblock;

/// File blocks that go to one region before `Interleave` and `Random` change over.
pub const STRIPE: u64 = 16;

/// Distances where the machine tells none, as ACPI numbers them: on the node itself, and anywhere
/// else.
const NEAR: u32 = 10;
const FAR: u32 = 20;

/// Where a write's blocks go. A node's regions share what goes there, 64 KiB each in turn. Whatever
/// is chosen, full regions hand over to the next nearest one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The node where the calling thread runs, or the one that it works for; where that has no
    /// region, the nearest one.
    #[default]
    Local,
    /// Any region, for each 64 KiB.
    Random,
    /// The regions in turn, for each 64 KiB of the file.
    Interleave,
    Node(u32),
}

type Order = SmallVec<[usize; 8]>;

/// Regions by distance, for every node.
#[derive(Debug)]
pub struct Regions {
    nodes: Vec<Option<u32>>,
    node_of_cpu: Vec<Option<u32>>,
    /// For each region, all regions, nearest first.
    nearest: Vec<Order>,
    /// For each node of the machine and of the volume, the regions nearest to it.
    local: FxHashMap<u32, Order>,
    /// Those of a thread of which no node is known: the first region, and what is on its node.
    elsewhere: Order,
    all: Order,
}

impl Regions {
    /// From the nodes in the superblock and what is known of the machine.
    pub fn new(superblock: &Superblock, topology: Option<&Topology>) -> Self {
        let nodes: Vec<_> = superblock.regions.iter().map(|r| r.node).collect();
        let distance = |from: usize, to: usize| {
            let ids = nodes.get(from).copied().flatten().zip(nodes.get(to).copied().flatten());
            let known = ids.and_then(|(a, b)| topology.and_then(|t| t.distance(NodeId(a), NodeId(b))));
            let near = from == to || ids.is_some_and(|(a, b)| a == b);
            known.unwrap_or(if near { NEAR } else { FAR })
        };
        let nearest = (0..nodes.len()).map(|from| {
            let mut all: Order = (0..nodes.len()).collect();
            // Regions beginning with the next one, so that equally far ones share what a full
            // region hands over.
            all.sort_by_key(|&to| (to != from, distance(from, to), (to + nodes.len() - from) % nodes.len()));
            all
        });
        let elsewhere: Order = (0..nodes.len()).filter(|i| nodes.get(*i) == nodes.first()).collect();
        let local = |node: u32| -> Order {
            let far = |region: usize| {
                let of = nodes.get(region).copied().flatten()?;
                if of == node { Some(0) } else { topology?.distance(NodeId(node), NodeId(of)) }
            };
            let least = (0..nodes.len()).filter_map(far).min();
            // Where no distance is known, all threads agree at least.
            let Some(least) = least else { return elsewhere.clone() };
            (0..nodes.len()).filter(|region| far(*region) == Some(least)).collect()
        };
        let machine = topology.into_iter().flat_map(|t| t.nodes.iter().map(|node| node.id.0));
        let local = machine.chain(nodes.iter().flatten().copied()).map(|node| (node, local(node))).collect();
        let cpus = topology.map_or(0, |t| t.cpus().iter().max().map_or(0, |cpu| cpu + 1));
        let node_of_cpu = (0..cpus).map(|cpu| topology.and_then(|t| t.node_of_cpu(cpu)).map(|n| n.0));
        let (node_of_cpu, nearest, all) = (node_of_cpu.collect(), nearest.collect(), (0..nodes.len()).collect());
        Self { node_of_cpu, nearest, local, elsewhere, all, nodes }
    }

    /// The regions that a placement means, all alike: what goes there is spread over them
    /// ([`Regions::turn`]).
    pub fn meant(&self, placement: Placement, cpu: usize) -> &[usize] {
        match placement {
            Placement::Local => self.of_caller(cpu),
            Placement::Random | Placement::Interleave => &self.all,
            Placement::Node(node) => self.on_node(node),
        }
    }

    /// Whose turn it is among regions that are alike: they take [`STRIPE`] blocks of a file each.
    /// `file` lets one file begin elsewhere than another.
    pub fn turn(meant: &[usize], file: u64, file_block: u64) -> usize {
        let at = (file_block / STRIPE).wrapping_add(file).checked_rem(meant.len() as u64);
        at.and_then(|at| meant.get(at as usize)).copied().unwrap_or(0)
    }

    /// The caller's node, which is that of its CPU unless [`crate::on_node`] says otherwise.
    pub fn node_of_caller(&self, cpu: usize) -> Option<u32> {
        caller::node().or_else(|| self.node_of_cpu.get(cpu).copied().flatten())
    }

    /// The regions nearest to the caller's node.
    pub fn of_caller(&self, cpu: usize) -> &[usize] {
        let node = self.node_of_caller(cpu);
        node.and_then(|node| self.local.get(&node)).unwrap_or(&self.elsewhere)
    }

    /// The regions on a node; none is an error of the caller's.
    pub fn on_node(&self, node: u32) -> &[usize] {
        // Nothing is nearer to a node than what is on it.
        let local = self.local.get(&node).map_or(&[][..], |local| local);
        if local.first().is_some_and(|first| self.node(*first) == Some(node)) { local } else { &[] }
    }

    /// Whether two regions are on one node.
    pub fn together(&self, a: usize, b: usize) -> bool {
        a == b || self.node(a).is_some_and(|node| self.node(b) == Some(node))
    }

    pub fn node(&self, region: usize) -> Option<u32> {
        self.nodes.get(region).copied().flatten()
    }

    /// All regions, nearest first.
    pub fn nearest(&self, region: usize) -> &[usize] {
        self.nearest.get(region).map_or(&[], |order| order)
    }
}

#[cfg(test)]
mod tests {
    use topology::Node;

    use super::*;
    use crate::format::superblock::Region;

    fn regions(nodes: &[Option<u32>], topology: Option<&Topology>) -> Regions {
        let region = |node: &Option<u32>| Region { blocks: 100, inodes: 16, node: *node };
        let regions = nodes.iter().map(region).collect();
        let superblock =
            Superblock { volume: [1; 16], index: 0, journals: 1, created: 1, ro_features: 0, features: 0, regions };
        Regions::new(&superblock, topology)
    }

    /// Node `i` has CPU `i` where `cpus` says so, and these distances.
    fn machine(cpus: &[bool], distances: &[&[u32]]) -> Topology {
        let id = |at: usize| NodeId(at as u32);
        let node = |(at, (has, row)): (usize, (&bool, &&[u32]))| Node {
            distance: row.iter().enumerate().map(|(to, distance)| (id(to), *distance)).collect(),
            ..Node::new(id(at), has.then_some(at as u32).into_iter().collect(), 1 << 30)
        };
        cpus.iter().zip(distances).enumerate().map(node).collect()
    }

    /// Memory behind CXL is a node without CPUs: all that was written went to the first region.
    #[test]
    fn a_cpu_whose_node_has_no_region_writes_to_the_nearest_one() {
        let rows: [&[u32]; 4] = [&[10, 21, 14, 24], &[21, 10, 24, 14], &[14, 24, 10, 26], &[24, 14, 26, 10]];
        let machine_with_cxl = machine(&[true, true, false, false], &rows);
        let cxl = regions(&[Some(2), Some(3)], Some(&machine_with_cxl));
        assert_eq!((cxl.of_caller(0), cxl.of_caller(1)), (&[0][..], &[1][..]));
        // Sockets of two nodes each, with a region on the first of each.
        let rows: [&[u32]; 4] = [&[10, 12, 21, 21], &[12, 10, 21, 21], &[21, 21, 10, 12], &[21, 21, 12, 10]];
        let halves = regions(&[Some(0), Some(2)], Some(&machine(&[true; 4], &rows)));
        assert_eq!([0, 1, 2, 3].map(|cpu| halves.of_caller(cpu)), [&[0][..], &[0], &[1], &[1]]);
    }

    #[test]
    fn all_regions_of_a_node_take_turns_and_an_unknown_node_is_the_first_regions() {
        let rows: [&[u32]; 2] = [&[10, 21], &[21, 10]];
        let regions = |nodes| regions(nodes, Some(&machine(&[true; 2], &rows)));
        let two = regions(&[Some(1), Some(0), Some(1)]);
        assert_eq!((two.of_caller(0), two.of_caller(1), two.of_caller(7)), (&[1][..], &[0, 2][..], &[0, 2][..]));
        assert_eq!((two.on_node(1), two.on_node(2)), (&[0, 2][..], &[][..]));
        assert_eq!([0, 15, 16, 32].map(|block| Regions::turn(two.on_node(1), 0, block)), [0, 0, 2, 0]);
        assert_eq!(two.nearest(2), [2, 0, 1], "a full region hands over to the other one of its node");
        assert_eq!(regions(&[None, None]).of_caller(1), [0, 1]);
        assert_eq!(regions(&[Some(7), Some(8)]).of_caller(0), [0], "no distance is known");
    }
}
