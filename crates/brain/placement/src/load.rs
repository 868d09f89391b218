//! The machine by dense index, and the loads on its nodes.
//!
//! **Problem.** Node ids are sparse, and a decision about 100,000 threads cannot look each id up in
//! a map. A decision must not depend on the order in which threads are listed either, but sums of
//! floats do.
//!
//! **Approach.** [`Machine`] numbers the nodes 0, 1, 2 … once per window and turns each limit into
//! a whole number of bytes or CPU nanoseconds per window. [`Loads`] are sums of whole numbers:
//! adding in any order, and subtracting again, is exact.
//!
//! **Limits.** Weighted reads (Eq. 1) are rounded to whole bytes. Sums saturate instead of
//! overflowing; validated snapshots cannot reach the limit.

use topology::{MemoryKind, NodeId, Topology};

/// Node ids below this are looked up in a table.
const TABLE: usize = 1024;

/// When a node is overloaded, as shares of what it can do; a policy has them in its settings.
pub(crate) struct Limits {
    pub cpu_limit: f64,
    pub controller_limit: f64,
    /// Share of a write's cost that a read has (Eq. 1).
    pub read_weight: f64,
}

/// A machine in one window; nodes are numbered by rising id.
pub(crate) struct Machine {
    ids: Vec<NodeId>,
    /// Index of each small id; `u16::MAX` if no node has it.
    table: Vec<u16>,
    /// CPUs of each node; 0 for a CPU-less node.
    pub cores: Vec<u64>,
    /// The node whose memory takes the writes of threads on this node: the node itself, or for a
    /// node without memory, the nearest with memory.
    pub memory: Vec<usize>,
    /// Bytes per window that each controller can carry (Eq. 1 units); `None` if a bandwidth is
    /// unknown.
    pub capacity: Vec<Option<f64>>,
    /// Controller load (bytes per window) above which a node is overloaded.
    pub controller_limit: Vec<Option<u64>>,
    /// CPU nanoseconds per window above which a node is overloaded.
    pub cpu_limit: Vec<u64>,
    /// CPU nanoseconds of one core in a window.
    pub core_ns: u64,
    distance: Vec<u32>,
    read_weight: f64,
}

impl Machine {
    pub fn new(topology: &Topology, limits: impl Into<Limits>, window_s: f64) -> Self {
        let limits = limits.into();
        let mut nodes: Vec<_> = topology.nodes.iter().collect();
        nodes.sort_by_key(|n| n.id);
        let ids: Vec<_> = nodes.iter().map(|n| n.id).collect();
        let mut table = vec![u16::MAX; TABLE];
        for (i, id) in ids.iter().enumerate().take(usize::from(u16::MAX)) {
            if let Some(entry) = table.get_mut(id.0 as usize) {
                *entry = i as u16;
            }
        }
        let distance: Vec<u32> = nodes
            .iter()
            .flat_map(|from| ids.iter().map(|to| from.distance.get(to).copied().unwrap_or(u32::MAX)))
            .collect();
        let core_ns = nanoseconds(window_s);
        let cores: Vec<_> = nodes.iter().map(|n| n.cpus.len() as u64).collect();
        let capacity: Vec<_> = nodes
            .iter()
            .map(|n| Some(n.write_bw_max?.min(limits.read_weight * n.read_bw_max?) * window_s))
            .map(|capacity| capacity.filter(|bytes| *bytes > 0.0))
            .collect();
        let mut machine = Self {
            cpu_limit: cores
                .iter()
                .map(|c| (c.saturating_mul(core_ns) as f64 * limits.cpu_limit).round() as u64)
                .collect(),
            controller_limit: capacity
                .iter()
                .map(|c| c.map(|c| (c * limits.controller_limit).round() as u64))
                .collect(),
            memory: (0..ids.len()).collect(),
            capacity,
            cores,
            core_ns,
            distance,
            read_weight: limits.read_weight,
            table,
            ids,
        };
        let with_memory: Vec<_> = (0..nodes.len()).filter(|n| nodes[*n].memory != MemoryKind::None).collect();
        for (n, node) in nodes.iter().enumerate() {
            if node.memory == MemoryKind::None {
                let nearest = with_memory.iter().copied().min_by_key(|m| (machine.distance(n, *m), *m));
                machine.memory[n] = nearest.unwrap_or(n);
            }
        }
        machine
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn id(&self, node: usize) -> NodeId {
        self.ids[node]
    }

    #[inline]
    pub fn index(&self, id: NodeId) -> Option<usize> {
        match self.table.get(id.0 as usize) {
            Some(&u16::MAX) => None,
            Some(&index) => Some(usize::from(index)),
            None => self.ids.binary_search(&id).ok(),
        }
    }

    /// SLIT distance; `u32::MAX` if unknown.
    pub fn distance(&self, from: usize, to: usize) -> u32 {
        self.distance[from * self.ids.len() + to]
    }

    /// The nodes with a memory controller.
    pub fn controllers(&self) -> impl Iterator<Item = usize> + '_ {
        self.memory.iter().enumerate().filter(|(n, memory)| n == *memory).map(|(n, _)| n)
    }

    /// Weights read bytes as in Eq. 1.
    pub fn weigh(&self, read_bytes: u64) -> u64 {
        (read_bytes as f64 * self.read_weight).round() as u64
    }

    /// Converts a controller load to a fraction of the node's capacity.
    pub fn controller_fraction(&self, node: usize, load: u64) -> Option<f64> {
        self.capacity[node].map(|capacity| load as f64 / capacity)
    }

    /// Converts CPU nanoseconds to a fraction of the node's CPUs (Eq. 6).
    pub fn cpu_fraction(&self, node: usize, cpu: u64) -> Option<f64> {
        (self.cores[node] > 0).then(|| cpu as f64 / self.cores[node].saturating_mul(self.core_ns) as f64)
    }
}

/// Converts to whole nanoseconds; anything but a positive number of seconds becomes 0.
pub(crate) fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loads {
    /// Bytes read from the node's memory, weighted (Eq. 1).
    pub reads: Vec<u64>,
    /// Bytes written to the node's memory.
    pub writes: Vec<u64>,
    /// CPU nanoseconds used on the node's CPUs.
    pub cpu: Vec<u64>,
}

impl Loads {
    pub fn none(nodes: usize) -> Self {
        Self { reads: vec![0; nodes], writes: vec![0; nodes], cpu: vec![0; nodes] }
    }

    /// Controller load of a node in bytes per window: `BW × W` of Eq. 1.
    #[inline]
    pub fn controller(&self, node: usize) -> u64 {
        self.reads[node].saturating_add(self.writes[node])
    }

    /// Adds a thread's writes and CPU time to a node.
    #[inline]
    pub fn add(&mut self, machine: &Machine, node: usize, writes: u64, cpu: u64) {
        let written = &mut self.writes[machine.memory[node]];
        *written = written.saturating_add(writes);
        self.cpu[node] = self.cpu[node].saturating_add(cpu);
    }

    /// Subtracts a thread's writes and CPU time from a node.
    #[inline]
    pub fn remove(&mut self, machine: &Machine, node: usize, writes: u64, cpu: u64) {
        let written = &mut self.writes[machine.memory[node]];
        *written = written.saturating_sub(writes);
        self.cpu[node] = self.cpu[node].saturating_sub(cpu);
    }
}
