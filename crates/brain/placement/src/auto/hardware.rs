//! The machine in the cost model: the cost of a byte between any two nodes, and the resources that
//! unlisted threads use.
//!
//! **Problem.** Topologies are incomplete (no bandwidths) and irregular (sparse ids, unequal
//! distances, nodes without CPUs or without memory).
//!
//! **Approach.** Nodes have dense indices. Distances become [`hops`](memory_model::hops), and all
//! effects of distance grow in proportion to them.
//!
//! Each node has a port that carries all its remote traffic. Firmware does not state a port's
//! bandwidth, so the model assumes [`Settings::link_bw`].
//!
//! **Limits.** A controller of unknown bandwidth never gets crowded. The model does not tell links
//! between nodes apart: flows meet only in ports.

use memory_model::queues::Visit;
use smallvec::SmallVec;
use topology::{MemoryKind, NodeId, Topology};

use super::Settings;
use crate::processes::sane;
use crate::{NodeBytes, Snapshot};

/// The least share of the CPUs that listed threads keep, however much others use: the kernel never
/// starves a thread, and a share of 0 has no solution.
const LEFT_OVER: f64 = 0.05;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub id: NodeId,
    /// CPUs; 0 where there are none.
    pub cpus: f64,
    /// CPUs that unlisted threads keep busy.
    pub others: f64,
    /// The node whose memory takes writes on this node: the node itself, or the nearest with
    /// memory.
    pub home: usize,
    /// Seconds of the controller per byte read, and written; 0 if the bandwidth is unknown.
    pub read_work: f64,
    pub write_work: f64,
    /// Seconds per byte of one thread, alone and local.
    pub read_s: f64,
    pub write_s: f64,
    /// The increase of these, and of the controller work, per hop: 0.655 for +65.5 %.
    pub read_hop: f64,
    pub write_hop: f64,
    pub work_hop: f64,
    /// Free memory, bytes.
    pub free: f64,
}

/// The visits of one thread, one for each station.
pub(super) type Visits = SmallVec<[Visit; 8]>;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hardware {
    pub nodes: Vec<Node>,
    hops: Vec<f64>,
    /// Seconds of a port per byte and hop.
    link_s: f64,
}

impl Hardware {
    pub fn new(topology: &Topology, snapshot: &Snapshot, settings: &Settings) -> Self {
        let seen = |id| snapshot.nodes.iter().find(|n| n.id == id);
        let nodes: Vec<Node> = (topology.nodes.iter().enumerate())
            .map(|(i, n)| {
                let load = seen(n.id);
                let read_bw = n.read_bw_max.or(load.and_then(|l| l.read_bw_max)).map_or(0.0, sane);
                let write_bw = n.write_bw_max.or(load.and_then(|l| l.write_bw_max)).map_or(0.0, sane);
                let work = |bw: f64| if bw > 0.0 { 1.0 / bw } else { 0.0 };
                // Persistent memory writes at less than half its read bandwidth (NT II-B: a third),
                // DRAM does not.
                let nvm = write_bw > 0.0 && read_bw > 2.0 * write_bw;
                let (read_s, write_s) =
                    if nvm { (settings.nvm_read_s, settings.nvm_write_s) } else { (settings.dram_s, settings.dram_s) };
                Node {
                    id: n.id,
                    cpus: n.cpus.len() as f64,
                    others: 0.0,
                    home: i,
                    read_work: work(if nvm { settings.nvm_sustained * read_bw } else { read_bw }),
                    write_work: work(write_bw),
                    read_s: read_s.max(work(read_bw)),
                    write_s: write_s.max(work(write_bw)),
                    read_hop: if nvm { settings.remote_read } else { settings.remote_dram } - 1.0,
                    write_hop: if nvm { settings.remote_write } else { settings.remote_dram } - 1.0,
                    work_hop: if nvm { settings.remote_load - 1.0 } else { 0.0 },
                    free: match n.memory {
                        // It is not for file data.
                        MemoryKind::Unknown => 0.0,
                        _ => load.map_or(0.0, |l| l.memory_free as f64),
                    },
                }
            })
            .collect();
        let hops: Vec<f64> = (topology.nodes.iter())
            .flat_map(|from| topology.nodes.iter().map(move |to| (from.id, to.id)))
            .map(|(from, to)| if from == to { 0.0 } else { memory_model::hops(topology.distance(from, to)) })
            .collect();
        let mut hardware = Self { nodes, hops, link_s: 1.0 / settings.link_bw.max(f64::MIN_POSITIVE) };
        let has_memory = |n: &usize| !matches!(topology.nodes[*n].memory, MemoryKind::None | MemoryKind::Unknown);
        for n in (0..hardware.len()).filter(|n| !has_memory(n)) {
            let near = |a: &usize, b: &usize| hardware.hops(n, *a).total_cmp(&hardware.hops(n, *b));
            let nearest = (0..hardware.len()).filter(has_memory).min_by(near);
            hardware.nodes[n].home = nearest.unwrap_or(n);
        }
        hardware
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes by the index of their node; bytes on unknown nodes are left out.
    pub fn by_node<'a>(&'a self, bytes: &'a NodeBytes) -> impl Iterator<Item = (usize, f64)> + 'a {
        bytes.iter().filter_map(|(id, bytes)| Some((self.index(id)?, bytes as f64)))
    }

    pub fn index(&self, id: NodeId) -> Option<usize> {
        // Ids mostly count from 0, and each thread looks up each node.
        let counts = usize::try_from(id.0).ok().filter(|at| self.nodes.get(*at).is_some_and(|n| n.id == id));
        counts.or_else(|| self.nodes.binary_search_by_key(&id, |n| n.id).ok())
    }

    /// Hops between two nodes: 0 on the same node, 1 between ordinary sockets.
    pub fn hops(&self, from: usize, to: usize) -> f64 {
        self.hops[from * self.nodes.len() + to]
    }

    /// Seconds per byte of a thread on `at` that reads from `node`, alone.
    pub fn read_s(&self, at: usize, node: usize) -> f64 {
        let n = &self.nodes[node];
        n.read_s * (1.0 + n.read_hop * self.hops(at, node))
    }

    /// Seconds per byte of a thread on `at` that writes to `node`, alone.
    pub fn write_s(&self, at: usize, node: usize) -> f64 {
        let n = &self.nodes[node];
        n.write_s * (1.0 + n.write_hop * self.hops(at, node))
    }

    /// How much more controller time a byte takes from there than a local byte.
    pub fn service(&self, at: usize, node: usize) -> f64 {
        1.0 + self.nodes[node].work_hop * self.hops(at, node)
    }

    /// Seconds of both ports per byte between a thread on `at` and `node`. Traffic over more than
    /// one hop passes more links.
    pub fn port_s(&self, at: usize, node: usize) -> f64 {
        if at == node { 0.0 } else { self.hops(at, node).max(1.0) * self.link_s }
    }

    pub fn stations(&self) -> usize {
        2 * self.len()
    }

    /// Adds the visits of the bytes that a thread on `at` reads and writes on `node`.
    pub fn flow(&self, visits: &mut Visits, at: usize, node: usize, read: f64, written: f64) {
        let mut visit = |station, work, service| match visits.iter_mut().find(|v| v.station == station) {
            _ if work <= 0.0 => {}
            Some(visit) => visit.work += work,
            None => visits.push(Visit { station, work, service }),
        };
        let n = &self.nodes[node];
        visit(node, read * n.read_work + written * n.write_work, self.service(at, node));
        let port = (read + written) * self.port_s(at, node);
        visit(self.len() + at, port, 1.0);
        visit(self.len() + node, port, 1.0);
    }

    /// Subtracts the CPUs that unlisted threads keep busy.
    pub fn taken(&mut self, node: usize, cpus: f64) {
        let n = &mut self.nodes[node];
        n.others = cpus.min(n.cpus * (1.0 - LEFT_OVER));
    }
}
