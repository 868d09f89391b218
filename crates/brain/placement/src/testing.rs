//! Snapshots for tests, built by hand. For the tests of other crates: feature `testing`.

use topology::{FileId, NodeId, ThreadId};

use crate::{NodeBytes, NodeLoad, Snapshot, Subject, Thread};

/// Megabytes.
pub const MB: u64 = 1_000_000;

/// `[(0, 300)]`: 300 MB on node 0.
pub fn bytes(megabytes: &[(u32, u64)]) -> NodeBytes {
    megabytes.iter().map(|(node, mb)| (NodeId(*node), mb * MB)).collect()
}

/// A node with `cpus` CPUs, at distance 10 from itself and 20 from the other nodes of a machine
/// with ids 0 to 7.
pub fn node(id: u32, cpus: u32) -> NodeLoad {
    NodeLoad {
        id: NodeId(id),
        cpus: (id * 100..id * 100 + cpus).collect(),
        distance: (0..8).map(|other| (NodeId(other), if other == id { 10 } else { 20 })).collect(),
        memory_free: 1 << 30,
        ..NodeLoad::default()
    }
}

/// A node with a memory controller of `write_bw_max` MB/s and three times that for reads: capacity
/// `write_bw_max` (Eq. 1).
pub fn node_with_bandwidth(id: u32, cpus: u32, write_bw_max: f64) -> NodeLoad {
    NodeLoad { read_bw_max: Some(3e6 * write_bw_max), write_bw_max: Some(1e6 * write_bw_max), ..node(id, cpus) }
}

/// A thread of process 1000 on `node`, allowed on nodes 0 to 3, that reads the given MB per node
/// and writes `writes` MB where it runs.
pub fn thread(tid: u32, node: u32, reads: &[(u32, u64)], writes: u64) -> Thread {
    Thread {
        tid,
        pid: 1000,
        comm: format!("t{tid}"),
        start_ns: Some(u64::from(tid)),
        node: NodeId(node),
        allowed_nodes: (0..4).map(NodeId).collect(),
        read_bytes: bytes(reads),
        write_bytes: bytes(&[(node, writes)]),
        ..Thread::default()
    }
}

/// A file by the number of its inode: `8:1:9`.
pub const fn file(ino: u64) -> FileId {
    FileId { dev: FileId::device(8, 1), ino, generation: 0 }
}

/// A thread by its id and start time.
pub fn subject(tid: u32, start: u64) -> Subject {
    Subject::Thread(ThreadId::new(tid, start))
}

/// A window of one second on these nodes and no others.
pub fn snapshot(mut nodes: Vec<NodeLoad>, mut threads: Vec<Thread>) -> Snapshot {
    let ids: Vec<_> = nodes.iter().map(|n| n.id).collect();
    nodes.iter_mut().for_each(|node| node.distance.retain(|id, _| ids.contains(id)));
    threads.iter_mut().for_each(|thread| thread.allowed_nodes.retain(|id| ids.contains(id)));
    Snapshot { version: 2, window_s: 1.0, nodes, threads, ..Snapshot::default() }
}
