//! Snapshots for tests: generated at random, and advanced by one window.
#![allow(dead_code, unused_imports, reason = "each test target uses a part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeMap;

use placement::nthread::Settings;
pub use placement::testing::{MB, bytes, file, node, node_with_bandwidth, snapshot, thread};
use placement::{NodeLoad, Plan, Reason, Snapshot, Thread, policy};
use proptest::prelude::*;
use proptest::sample::select;
use topology::{MemoryKind, NodeId, Topology};

pub const VARIANTS: [&str; 4] = ["nthread-rl", "nthread-cpu", "nthread-nm", "nthread"];

pub fn decide_with(name: &str, settings: &Settings, topology: &Topology, snapshot: &Snapshot) -> Plan {
    policy(name, settings).unwrap().decide(topology, snapshot)
}

/// The plan of a policy with the paper's settings for a valid snapshot.
pub fn decide(name: &str, snapshot: &Snapshot) -> Plan {
    snapshot.validate().unwrap();
    decide_with(name, &Settings::default(), &snapshot.topology(), snapshot)
}

/// Thread moves as (tid, to, reason), by tid.
pub fn moves(plan: &Plan) -> Vec<(u32, u32, Reason)> {
    let mut moves: Vec<_> =
        plan.moves.iter().map(|mv| (mv.tid().expect("NThread moves threads only"), mv.to.0, mv.reason)).collect();
    moves.sort_by_key(|m| m.0);
    moves
}

/// Tids and nodes of the moves with one reason, by tid.
pub fn moves_for(plan: &Plan, reason: Reason) -> Vec<(u32, u32)> {
    moves(plan).into_iter().filter(|m| m.2 == reason).map(|m| (m.0, m.1)).collect()
}

pub fn declined(plan: &Plan, tid: u32) -> Option<(&str, &str)> {
    plan.declined.iter().find(|d| d.tid == tid).map(|d| (d.reason.as_str(), d.why.as_str()))
}

pub fn why(plan: &Plan, of: u32) -> std::borrow::Cow<'_, str> {
    plan.moves.iter().find_map(|mv| (mv.tid() == Some(of)).then(|| mv.why.text())).unwrap()
}

/// The node whose memory takes the writes on a node: the node itself, or the nearest if it has no
/// memory.
pub fn memory_of(topology: &Topology, node: NodeId) -> NodeId {
    let has = |id: NodeId| topology.node(id).is_some_and(|n| n.memory != MemoryKind::None);
    if has(node) {
        return node;
    }
    let others = topology.nodes.iter().map(|n| n.id).filter(|id| has(*id));
    others.min_by_key(|id| (topology.distance(node, *id).unwrap_or(u32::MAX), *id)).unwrap_or(node)
}

/// The next window if the plan's moves are made and all threads continue as before. Reads stay with
/// the data, writes and CPU time move with the thread, and loads of unlisted threads stay.
pub fn next_window(topology: &Topology, before: &Snapshot, plan: &Plan) -> Snapshot {
    let mut next = before.clone();
    // Totals below the sum of the listed threads would lose loads, so raise them first.
    let mut writes: BTreeMap<NodeId, u64> = BTreeMap::new();
    let mut cpu: BTreeMap<NodeId, f64> = BTreeMap::new();
    for t in &before.threads {
        t.write_bytes.iter().for_each(|(node, n)| *writes.entry(node).or_default() += n);
        *cpu.entry(t.node).or_default() += t.cpu_s;
    }
    for node in &mut next.nodes {
        node.write_bytes = node.write_bytes.max(writes.get(&node.id).copied().unwrap_or(0));
        let listed = cpu.get(&node.id).copied().unwrap_or(0.0);
        node.cpu_s = node.cpu_s.map(|total| total.max(listed));
    }
    for mv in &plan.moves {
        let tid = mv.tid().unwrap();
        let thread = next.threads.iter_mut().find(|t| t.tid == tid).unwrap();
        assert_eq!(thread.node, mv.from);
        let (written, cpu_s) = (thread.write_bytes.clone(), thread.cpu_s);
        let lands = memory_of(topology, mv.to);
        thread.node = mv.to;
        thread.write_bytes = [(lands, written.total())].into_iter().collect();
        for node in &mut next.nodes {
            node.write_bytes -= written.get(node.id);
            node.write_bytes += if node.id == lands { written.total() } else { 0 };
            let shift = if node.id == mv.from { -cpu_s } else { 0.0 } + if node.id == mv.to { cpu_s } else { 0.0 };
            node.cpu_s = node.cpu_s.map(|total| (total + shift).max(0.0));
        }
    }
    next
}

/// Sizes of random workloads.
#[derive(Clone, Copy)]
pub struct Size {
    pub nodes: usize,
    pub threads: usize,
    /// Nodes without CPUs or without memory may occur.
    pub odd_nodes: bool,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub topology: Topology,
    pub snapshot: Snapshot,
}

/// Workloads that give each step work: few sizes, all multiples of 3 MB so that thirds are whole.
pub fn case(size: Size) -> impl Strategy<Value = Case> {
    let nodes = proptest::collection::vec(any_node(size.odd_nodes), 1..=size.nodes);
    let threads = proptest::collection::vec(any_thread(size.nodes), 0..=size.threads);
    (nodes, threads, select(vec![0.5, 1.0, 1.0, 2.0])).prop_map(move |(nodes, threads, window_s)| {
        let ids: Vec<u32> = [0, 1, 8, 9].into_iter().take(nodes.len()).collect();
        let mut loads = Vec::new();
        for (i, n) in nodes.iter().enumerate() {
            let others = ids.iter().zip(&n.distances).map(|(id, d)| (NodeId(*id), if *id == ids[i] { 10 } else { *d }));
            loads.push(NodeLoad {
                cpus: (ids[i] * 100..ids[i] * 100 + n.cpus).collect(),
                distance: others.collect(),
                write_bw_max: n.bandwidth.map(|mb| mb * 1e6),
                read_bw_max: n.bandwidth.map(|mb| mb * n.read_factor * 1e6),
                read_bytes: n.extra_reads * MB,
                write_bytes: n.extra_writes * MB,
                cpu_s: n.extra_cpu,
                ..node(ids[i], 0)
            });
        }
        let threads: Vec<_> = threads.iter().enumerate().map(|(i, t)| t.build(i as u32 + 1, &ids)).collect();
        for load in &mut loads {
            load.read_bytes += threads.iter().map(|t| t.read_bytes.get(load.id)).sum::<u64>();
            load.write_bytes += threads.iter().map(|t| t.write_bytes.get(load.id)).sum::<u64>();
            let listed: f64 = threads.iter().filter(|t| t.node == load.id).map(|t| t.cpu_s).sum();
            load.cpu_s = load.cpu_s.map(|extra| extra + listed);
        }
        let snapshot = Snapshot { version: 2, window_s, nodes: loads, threads, ..Snapshot::default() };
        let mut topology = snapshot.topology();
        for (node, any) in topology.nodes.iter_mut().zip(&nodes) {
            if any.memoryless && !node.cpus.is_empty() {
                (node.memory, node.memory_bytes) = (MemoryKind::None, 0);
            }
        }
        Case { topology, snapshot }
    })
}

#[derive(Clone, Debug)]
struct AnyNode {
    cpus: u32,
    memoryless: bool,
    bandwidth: Option<f64>,
    read_factor: f64,
    distances: Vec<u32>,
    extra_reads: u64,
    extra_writes: u64,
    extra_cpu: Option<f64>,
}

fn any_node(odd: bool) -> impl Strategy<Value = AnyNode> {
    (
        if odd { select(vec![0, 1, 1, 2, 2, 4]) } else { select(vec![1, 1, 2, 2, 4]) },
        if odd { proptest::bool::weighted(0.1).boxed() } else { Just(false).boxed() },
        select(vec![None, Some(300.0), Some(600.0), Some(600.0), Some(1800.0)]),
        select(vec![2.4, 3.0, 6.0]),
        proptest::collection::vec(select(vec![12, 20, 20, 31]), 4),
        select(vec![0, 0, 300]),
        select(vec![0, 0, 90, 300]),
        select(vec![None, Some(0.0), Some(0.2), Some(1.5)]),
    )
        .prop_map(|(cpus, memoryless, bandwidth, read_factor, distances, extra_reads, extra_writes, extra_cpu)| {
            AnyNode { cpus, memoryless, bandwidth, read_factor, distances, extra_reads, extra_writes, extra_cpu }
        })
}

#[derive(Clone, Debug)]
struct AnyThread {
    node: usize,
    allowed: Vec<bool>,
    pinned: bool,
    shares: bool,
    cpu_tenths: u32,
    reads: Vec<u64>,
    writes: u64,
    written_on: Option<usize>,
}

fn any_thread(nodes: usize) -> impl Strategy<Value = AnyThread> {
    (
        // Half of all threads run on the first node and read from it, so that overloads are common.
        prop_oneof![Just(0), 0..nodes],
        proptest::collection::vec(proptest::bool::weighted(0.85), nodes),
        proptest::bool::weighted(0.08),
        proptest::bool::weighted(0.15),
        0..=10u32,
        prop_oneof![
            select(vec![0, 150, 300, 600]).prop_map(|mb| vec![mb]),
            proptest::collection::vec(select(vec![0, 0, 3, 150, 201, 300, 600]), nodes),
        ],
        select(vec![0, 0, 3, 30, 90, 150, 300, 600]),
        proptest::option::weighted(0.1, 0..nodes),
    )
        .prop_map(|(node, allowed, pinned, shares, cpu_tenths, reads, writes, written_on)| AnyThread {
            node,
            allowed,
            pinned,
            shares,
            cpu_tenths,
            reads,
            writes,
            written_on,
        })
}

impl AnyThread {
    fn build(&self, tid: u32, ids: &[u32]) -> Thread {
        let at = ids[self.node % ids.len()];
        let reads: Vec<_> = ids.iter().copied().zip(self.reads.iter().copied()).collect();
        let allowed = ids.iter().zip(&self.allowed).filter(|(id, allowed)| **allowed || **id == at);
        Thread {
            allowed_nodes: allowed.map(|(id, _)| NodeId(*id)).collect(),
            pinned: self.pinned.then(|| "has an affinity of its own: 0".to_owned()),
            cpu_s: f64::from(self.cpu_tenths) / 10.0,
            write_bytes: bytes(&[(self.written_on.map_or(at, |i| ids[i % ids.len()]), self.writes)]),
            shares_file: self.shares,
            ..thread(tid, at, &reads, 0)
        }
    }
}
