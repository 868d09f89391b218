//! What the process-wise policies ([`npolicy`](crate::npolicy), [`cache_affinity`](crate::cache_affinity),
//! [`auto`](crate::auto)) ask of a snapshot: which listed threads form a process, where it is, where it could be seated.
//!
//! **Problem.** A snapshot lists threads; some papers move processes. The data's node may have no CPUs, or be closed to a thread.
//!
//! **Approach.** A process is on the node where its threads spent most CPU time. Its seat for some data is the data's node, or
//! else the nearest node that has CPUs and that it may run on; equally near seats are told apart by how busy they are.
//!
//! **Limits.** Threads that did no file work in the window are not listed, so they do not count.

use std::collections::BTreeMap;

use topology::{NodeId, Topology};

use crate::{Snapshot, Thread};

/// A number as observed, or 0 where it cannot be one (NaN, infinite, negative).
pub(crate) fn sane(x: f64) -> f64 {
    if x.is_finite() && x > 0.0 { x } else { 0.0 }
}

/// Threads by process, both by rising id.
pub(crate) fn by_pid(snapshot: &Snapshot) -> BTreeMap<u32, Vec<&Thread>> {
    let mut processes: BTreeMap<u32, Vec<&Thread>> = BTreeMap::new();
    for thread in &snapshot.threads {
        processes.entry(thread.pid).or_default().push(thread);
    }
    for threads in processes.values_mut() {
        threads.sort_by_key(|t| t.tid);
    }
    processes
}

/// The node where these threads spent most CPU time; at a tie (idle threads) where most of them are, then the lowest id.
pub(crate) fn node_of(threads: &[&Thread]) -> Option<NodeId> {
    let mut nodes: BTreeMap<NodeId, (f64, usize)> = BTreeMap::new();
    for thread in threads {
        let entry = nodes.entry(thread.node).or_default();
        entry.0 += sane(thread.cpu_s);
        entry.1 += 1;
    }
    let by_rising_use = |a: &(NodeId, (f64, usize)), b: &(NodeId, (f64, usize))| {
        a.1.0.total_cmp(&b.1.0).then(a.1.1.cmp(&b.1.1)).then(b.0.cmp(&a.0))
    };
    nodes.into_iter().max_by(by_rising_use).map(|(node, _)| node)
}

/// CPU utilisation of every node with CPUs, as a fraction of its CPUs.
pub(crate) fn utilisation(topology: &Topology, snapshot: &Snapshot) -> BTreeMap<NodeId, f64> {
    let window = sane(snapshot.window_s);
    let mut used: BTreeMap<NodeId, f64> = BTreeMap::new();
    for thread in &snapshot.threads {
        *used.entry(thread.node).or_default() += sane(thread.cpu_s);
    }
    for node in &snapshot.nodes {
        if let Some(all) = node.cpu_s {
            let listed = used.entry(node.id).or_default();
            *listed = listed.max(sane(all));
        }
    }
    let cpus = |id| topology.node(id).map_or(0, |n| n.cpus.len());
    used.into_iter()
        .filter(|(id, _)| cpus(*id) > 0 && window > 0.0)
        .map(|(id, s)| (id, s / (window * cpus(id) as f64)))
        .collect()
}

/// Distance between two nodes, the machine's word where it gives one, else the two values that nearly every machine has.
pub(crate) fn distance(topology: &Topology, from: NodeId, to: NodeId) -> u32 {
    topology.distance(from, to).unwrap_or(if from == to { 10 } else { 20 })
}

/// Whether threads can run on this node at all.
pub(crate) fn has_cpus(topology: &Topology, node: NodeId) -> bool {
    topology.node(node).is_some_and(|n| !n.cpus.is_empty())
}

/// Where a thread should sit to be nearest to data on `data`: `data` itself if the thread may run there, else the nearest of
/// its nodes that has CPUs; of equally near ones the least used, then the lowest id.
pub(crate) fn seat(
    topology: &Topology,
    used: &BTreeMap<NodeId, f64>,
    allowed: &[NodeId],
    data: NodeId,
) -> Option<NodeId> {
    let busy = |node: &NodeId| used.get(node).copied().unwrap_or(0.0);
    allowed.iter().copied().filter(|n| has_cpus(topology, *n)).min_by(|a, b| {
        let near = distance(topology, *a, data).cmp(&distance(topology, *b, data));
        (*b == data).cmp(&(*a == data)).then(near).then(busy(a).total_cmp(&busy(b))).then(a.cmp(b))
    })
}

/// Bytes as a person reads them: decimal units.
pub(crate) fn show(bytes: f64) -> String {
    match bytes {
        b if b >= 1e12 => format!("{:.1} TB", b / 1e12),
        b if b >= 1e9 => format!("{:.1} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b:.0} B"),
    }
}
