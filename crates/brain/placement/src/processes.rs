//! Helpers for the policies that move processes ([`npolicy`](crate::npolicy),
//! [`cache_affinity`](crate::cache_affinity), [`auto`](crate::auto)): the threads of a process, the
//! node it is on, and the nodes it could move to.
//!
//! **Problem.** A snapshot lists threads; some papers move processes. The data's node may have no
//! CPUs, or the thread may not be allowed to run there.
//!
//! **Approach.** A process is on the node where its threads spent most CPU time. To be
//! [nearest to](nearest_to) some data, it runs on the data's node or else on the nearest node with
//! CPUs where it may run. Of equally near nodes, it takes the least used.
//!
//! **Limits.** Threads without file I/O in the window are not listed, so they do not count.

use std::collections::BTreeMap;

use topology::{NodeId, Topology};

use crate::{Snapshot, Thread};

/// Returns the number, or 0 if it is NaN, infinite or negative.
pub(crate) fn sane(x: f64) -> f64 {
    if x.is_finite() && x > 0.0 { x } else { 0.0 }
}

/// Groups threads by process, both by rising id.
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

/// When each process started, as far as the snapshot says.
pub(crate) fn starts(snapshot: &Snapshot) -> BTreeMap<u32, u64> {
    let threads = snapshot.threads.iter().filter_map(|t| Some((t.pid, t.of_process_since()?)));
    threads.chain(snapshot.processes.iter().filter_map(|p| Some((p.pid, p.start_ns?)))).collect()
}

/// Whether these are the start times of two processes, one of which has the other's id; unknown
/// counts as the same.
pub(crate) fn other(one: Option<u64>, another: Option<u64>) -> bool {
    one.zip(another).is_some_and(|(one, another)| one != another)
}

/// The node where these threads spent most CPU time. In a tie (idle threads), the node with most of
/// them, then the lowest id.
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

/// CPU utilisation of each node with CPUs, as a fraction of its CPUs.
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

/// The distance between two nodes: the topology's if it has one, otherwise the value that nearly
/// all machines use.
pub(crate) fn distance(topology: &Topology, from: NodeId, to: NodeId) -> u32 {
    topology.distance(from, to).unwrap_or(if from == to { 10 } else { 20 })
}

pub(crate) fn has_cpus(topology: &Topology, node: NodeId) -> bool {
    topology.node(node).is_some_and(|n| !n.cpus.is_empty())
}

/// The node where a thread should run to be nearest to data on `data`: `data` itself if the thread
/// may run there, otherwise the nearest node with CPUs that it may run on. In a tie, the least
/// used, then the lowest id.
pub(crate) fn nearest_to(
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

pub(crate) fn show(bytes: f64) -> String {
    match bytes {
        b if b >= 1e12 => format!("{:.1} TB", b / 1e12),
        b if b >= 1e9 => format!("{:.1} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_where_it_ran_most_and_idle_where_most_threads_are() {
        let of = |threads: &[(u32, f64)]| {
            let thread =
                |(node, cpu_s): &(u32, f64)| Thread { node: NodeId(*node), cpu_s: *cpu_s, ..Thread::default() };
            let threads: Vec<Thread> = threads.iter().map(thread).collect();
            node_of(&threads.iter().collect::<Vec<_>>()).map(|node| node.0)
        };
        assert_eq!([of(&[(0, 1.0), (1, 0.6), (1, 0.6)]), of(&[(0, 1.0), (1, 0.3), (1, 0.3)])], [Some(1), Some(0)]);
        assert_eq!([of(&[(0, 0.0), (1, 0.0), (1, f64::NAN)]), of(&[(1, 0.0), (0, -1.0)])], [Some(1), Some(0)]);
        assert_eq!([sane(-1.0), sane(f64::INFINITY), sane(0.5)], [0.0, 0.0, 0.5]);
    }
}
