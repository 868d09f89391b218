//! The machine: nodes with CPUs and memory, and the distances between them.
//!
//! **Problem.** A topology lists CPUs and memory by node. What a placement wins or loses depends
//! on how fast a thread on one node reaches the memory of another, alone and in a crowd.
//!
//! **Approach.** Each node's memory is a controller with a sustained read and write capacity
//! ([`Memory`]) and a time per byte for one thread without competition. Both get worse with
//! distance: `1 + (factor − 1) × hops`, where `hops = (SLIT − 10) / 11`. The usual distance of two
//! sockets, 21, is therefore one hop and costs exactly the factors that the papers measured. Of
//! several modules each request waits for one ([`Memory::modules`]), and many writers make an
//! Optane module write more bytes than they ask for ([`Memory::crowded`]). Bytes that cross nodes
//! also pass the interconnect port of both nodes.
//!
//! **Limits.** There are no routes: flows between different pairs of nodes meet in ports, not on
//! links. A node has one kind of memory.

mod drawn;

use std::collections::BTreeMap;

use memory_model::{at_hops, hops};
use topology::{CpuSet, MemoryKind, Node, NodeId, Topology};

use crate::constants::Constants;

/// Memory of one node: capacity of its controller, and speed for one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Bytes/s the controller sustains for reads alone.
    pub read_bw: f64,
    /// Bytes/s the controller sustains for writes alone.
    pub write_bw: f64,
    /// Seconds per byte for one thread that reads locally and alone.
    pub read_s: f64,
    /// Seconds per byte for one thread that writes locally and alone.
    pub write_s: f64,
    /// Ratio of `read_s` one hop away to `read_s`.
    pub remote_read: f64,
    /// Ratio of `write_s` one hop away to `write_s`.
    pub remote_write: f64,
    /// Load of a byte from one hop away, relative to a local byte.
    pub remote_load: f64,
    /// Seconds per byte for a background copy within or between memories of this kind.
    pub copy_s: f64,
    /// Number of modules, one of which serves each request; 1 if unknown.
    pub modules: f64,
    /// Strength of the contention of many writers for a module's buffer: 0 without such a buffer, 1
    /// as measured.
    pub crowding: f64,
}

impl Memory {
    /// Optane DC persistent memory of so many modules of 128 GB.
    pub fn optane(c: &Constants, modules: u32) -> Self {
        let n = f64::from(modules);
        Self {
            read_bw: n * c.optane_read_bw,
            write_bw: n * c.optane_write_bw,
            read_s: c.optane_read_s,
            write_s: c.optane_write_s,
            remote_read: c.remote_read_latency,
            remote_write: c.remote_write_latency,
            remote_load: c.remote_load,
            copy_s: c.optane_copy_s,
            modules: n,
            crowding: c.optane_crowding,
        }
    }

    /// DRAM with these sustained bandwidths in bytes/s.
    pub fn dram(c: &Constants, read_bw: f64, write_bw: f64) -> Self {
        Self {
            read_bw,
            write_bw,
            read_s: c.dram_read_s,
            write_s: c.dram_write_s,
            remote_read: c.dram_remote_latency,
            remote_write: c.dram_remote_latency,
            remote_load: 1.0,
            copy_s: c.dram_copy_s,
            modules: 1.0,
            crowding: 0.0,
        }
    }

    /// Seconds per byte that a thread `hops` away reads, alone.
    pub fn read_at(&self, hops: f64) -> f64 {
        (self.read_s * at_hops(self.remote_read, hops)).max(self.load_at(hops) / self.read_bw)
    }

    /// Seconds per byte that a thread `hops` away writes, alone.
    pub fn write_at(&self, hops: f64) -> f64 {
        (self.write_s.max(1.0 / self.write_bw) * at_hops(self.remote_write, hops))
            .max(self.load_at(hops) / self.write_bw)
    }

    /// Factor by which this many writers lengthen the write of a byte: 1 for up to four writers per
    /// module.
    pub fn crowded(&self, writers: f64) -> f64 {
        1.0 + self.crowding * (memory_model::crowded(writers / self.modules) - 1.0)
    }

    /// Load of a byte from `hops` away, relative to a local byte.
    pub fn load_at(&self, hops: f64) -> f64 {
        at_hops(self.remote_load, hops)
    }
}

/// One node of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeModel {
    /// Id in the topology.
    pub id: NodeId,
    /// CPUs; 0 for a node that has none.
    pub cpus: f64,
    /// Bytes of memory for files and processes.
    pub capacity: f64,
    /// Its memory; of a node without memory, that of the others (nothing is ever placed there).
    pub memory: Memory,
}

/// A machine to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    topology: Topology,
    nodes: Vec<NodeModel>,
    /// `hops[from × n + to]`, between node indices.
    hops: Vec<f64>,
    /// Reach of the memory of `to` for a thread on `from`, at `from × n + to`.
    reaches: Vec<Reach>,
    /// For each node, the index of the nearest node with memory.
    homes: Vec<usize>,
    /// Bytes/s through one node's interconnect port.
    port_bw: f64,
    /// The rest of the model's numbers.
    constants: Constants,
}

/// Cost of a node's memory for a thread on some node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Seconds per byte read, alone.
    pub read_s: f64,
    /// Seconds per byte written, alone.
    pub write_s: f64,
    /// Load of a byte, relative to a local byte.
    pub load: f64,
}

/// A machine that cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MachineError {
    /// No node has a CPU.
    #[error("the topology has no CPUs: nothing can run on it")]
    NoCpus,
    /// No node has memory.
    #[error("the topology has no memory: no file fits on it")]
    NoMemory,
    /// A figure that cannot be.
    #[error("{what} is {value}: it must be a positive, finite number")]
    Value {
        /// Which figure.
        what: String,
        /// Its value.
        value: f64,
    },
}

impl Machine {
    /// The machine of this topology. `memory` gives each node's memory; policies see the peak
    /// bandwidths of the topology, if it has them.
    ///
    /// # Errors
    ///
    /// [`MachineError`] for a machine on which nothing can run.
    pub fn new(
        constants: &Constants,
        topology: Topology,
        port_bw: f64,
        memory: impl Fn(&Node) -> Memory,
    ) -> Result<Self, MachineError> {
        positive("the interconnect bandwidth", port_bw)?;
        let nodes: Vec<NodeModel> = topology
            .nodes
            .iter()
            .map(|n| NodeModel {
                id: n.id,
                cpus: n.cpus.len() as f64,
                capacity: if n.memory == MemoryKind::None { 0.0 } else { n.memory_bytes as f64 },
                memory: memory(n),
            })
            .collect();
        for node in &nodes {
            for (what, value) in [("read", node.memory.read_bw), ("write", node.memory.write_bw)] {
                positive(&format!("the {what} bandwidth of node {}", node.id), value)?;
            }
        }
        if nodes.iter().all(|n| n.cpus == 0.0) {
            return Err(MachineError::NoCpus);
        }
        if nodes.iter().all(|n| n.capacity == 0.0) {
            return Err(MachineError::NoMemory);
        }
        let pairs = || nodes.iter().flat_map(|from| nodes.iter().map(move |to| (from, to)));
        let hops: Vec<f64> = pairs()
            .map(|(from, to)| if from.id == to.id { 0.0 } else { hops(topology.distance(from.id, to.id)) })
            .collect();
        let reaches = reaches(&nodes, &hops);
        let n = nodes.len();
        let nearest = |from: usize| {
            let near = |a: &usize, b: &usize| hops[from * n + a].total_cmp(&hops[from * n + b]).then(a.cmp(b));
            (0..n).filter(|to| nodes[*to].capacity > 0.0).min_by(near).unwrap_or(from)
        };
        let homes = (0..n).map(nearest).collect();
        Ok(Self { topology, nodes, hops, reaches, homes, port_bw, constants: *constants })
    }

    /// A machine of identical nodes, every pair one hop apart.
    ///
    /// # Errors
    ///
    /// As [`Machine::new`].
    pub fn uniform(
        constants: &Constants,
        (nodes, cpus, capacity): (u32, u32, u64),
        memory: Memory,
        port_bw: f64,
    ) -> Result<Self, MachineError> {
        let distance = |from: u32, to: u32| if from == to { 10 } else { 21 };
        Self::new(constants, topology(nodes, cpus, capacity, distance), port_bw, |_| memory)
    }

    /// The machine as policies see it.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Its topology with the peak bandwidths that an administrator would configure.
    #[must_use]
    pub fn with_peaks(mut self, read_bw: f64, write_bw: f64) -> Self {
        for node in &mut self.topology.nodes {
            node.read_bw_max = Some(read_bw);
            node.write_bw_max = Some(write_bw);
        }
        self
    }

    /// The same machine with so much of everything that nobody waits. Distances stay, and so do the
    /// bandwidths that policies see.
    #[must_use]
    pub(crate) fn without_queues(&self) -> Self {
        const PLENTY: f64 = 1e4;
        let mut machine = self.clone();
        machine.port_bw *= PLENTY;
        for node in &mut machine.nodes {
            node.cpus *= PLENTY;
            node.memory.read_bw *= PLENTY;
            node.memory.write_bw *= PLENTY;
            node.memory.crowding = 0.0;
        }
        machine.reaches = reaches(&machine.nodes, &machine.hops);
        machine
    }

    /// Nodes, in the topology's order; positions in it are the node indices used throughout this
    /// crate.
    pub fn nodes(&self) -> &[NodeModel] {
        &self.nodes
    }

    /// Index of a node.
    pub fn index(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |n| n.id).ok()
    }

    /// Hops between two nodes by index: 0 on the same one, 1 between usual sockets.
    pub fn hops(&self, from: usize, to: usize) -> f64 {
        self.hops[from * self.nodes.len() + to]
    }

    /// Cost of the memory of `to` for a thread on `from`, by index.
    pub fn reach(&self, from: usize, to: usize) -> &Reach {
        &self.reaches[from * self.nodes.len() + to]
    }

    /// Bytes/s through one node's interconnect port.
    pub fn port_bw(&self) -> f64 {
        self.port_bw
    }

    /// The model's numbers that do not belong to a node.
    pub fn constants(&self) -> &Constants {
        &self.constants
    }

    /// Nodes with CPUs, by index.
    pub fn seats(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|n| self.nodes[*n].cpus > 0.0)
    }

    /// Nodes with memory, by index.
    pub fn homes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|n| self.nodes[*n].capacity > 0.0)
    }

    /// The node with memory that is nearest to a node: itself where it has some.
    pub fn nearest_home(&self, node: usize) -> usize {
        self.homes[node]
    }

    /// CPUs of a node by index.
    pub fn cpus_of(&self, node: usize) -> &CpuSet {
        &self.topology.nodes[node].cpus
    }
}

/// Cost of each node's memory for threads on each node, in the order of `hops`.
fn reaches(nodes: &[NodeModel], hops: &[f64]) -> Vec<Reach> {
    let reach = |(memory, hops): (&Memory, &f64)| Reach {
        read_s: memory.read_at(*hops),
        write_s: memory.write_at(*hops),
        load: memory.load_at(*hops),
    };
    nodes.iter().map(|to| &to.memory).cycle().zip(hops).map(reach).collect()
}

fn positive(what: &str, value: f64) -> Result<(), MachineError> {
    match value > 0.0 && value.is_finite() {
        true => Ok(()),
        false => Err(MachineError::Value { what: what.to_owned(), value }),
    }
}

/// A topology of identical nodes with consecutive CPU numbers.
pub fn topology(nodes: u32, cpus: u32, capacity: u64, distance: impl Fn(u32, u32) -> u32) -> Topology {
    let row = |from| -> BTreeMap<NodeId, u32> { (0..nodes).map(|to| (NodeId(to), distance(from, to))).collect() };
    let node =
        |id| Node { distance: row(id), ..Node::new(NodeId(id), (id * cpus..(id + 1) * cpus).collect(), capacity) };
    (0..nodes).map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration as cal;

    const C: Constants = Constants::CALIBRATED;

    #[test]
    fn one_hop_costs_exactly_the_measured_factors() {
        let m = Memory::optane(&C, 1);
        assert!((m.read_at(1.0) / m.read_at(0.0) - cal::REMOTE_READ_LATENCY).abs() < 1e-12);
        assert!((m.write_at(1.0) / m.write_at(0.0) - cal::REMOTE_WRITE_LATENCY).abs() < 1e-12);
        // Two hops (SLIT 32): 1 + (2.9 − 1) × 2
        assert!((m.write_at(2.0) / m.write_at(0.0) - (1.0 + 2.0 * (cal::REMOTE_WRITE_LATENCY - 1.0))).abs() < 1e-12);
    }

    #[test]
    fn writers_push_each_other_out_of_a_modules_buffer() {
        let m = Memory::optane(&C, 6);
        // 2.20 GB/s with four writers a module and fewer, 1.53 with eight, 0.80 with 24 and more; 7
        // is half way from 6 to 8.
        let all = [1.0, 24.0, 48.0, 144.0, 480.0].map(|writers| m.crowded(writers));
        assert_eq!(all.map(|times| (2.20 / times * 100.0).round()), [220.0, 220.0, 153.0, 80.0, 80.0]);
        assert!((m.crowded(42.0) - (2.20 / 1.96 + 2.20 / 1.53) / 2.0).abs() < 1e-12);
        assert_eq!(Memory::dram(&C, 1e9, 1e9).crowded(48.0), 1.0);
    }

    #[test]
    fn distance_21_is_one_hop() {
        let machine = Machine::uniform(&C, (2, 4, 1 << 30), Memory::optane(&C, 1), 1e9).unwrap();
        assert_eq!((machine.hops(0, 0), machine.hops(0, 1)), (0.0, 1.0));
    }

    #[test]
    fn machines_on_which_nothing_runs_are_refused() {
        let memory = Memory::dram(&C, 1e9, 1e9);
        assert_eq!(Machine::uniform(&C, (2, 0, 1 << 30), memory, 1e9), Err(MachineError::NoCpus));
        assert_eq!(Machine::uniform(&C, (2, 4, 0), memory, 1e9), Err(MachineError::NoMemory));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = Machine::uniform(&C, (2, 4, 1), Memory::dram(&C, bad, 1e9), 1e9).unwrap_err().to_string();
            assert!(error.contains("read bandwidth of node 0"), "{error}");
            assert!(Machine::uniform(&C, (2, 4, 1), memory, bad).unwrap_err().to_string().contains("interconnect"));
        }
    }
}
