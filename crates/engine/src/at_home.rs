//! Threads that are at home already, where others are about to join them.
//!
//! **Problem.** The kernel evens out the number of busy threads per node. When threads are moved to a node and bound there, it
//! pulls away others that it still may move: those that ran beside their data without our doing. Their reads become remote, they
//! are brought back a window later, and so on until each of them was pulled away once.
//!
//! **Approach.** The paper binds every thread to its node (NThread, V-B). Here as many threads that are at home are bound where
//! they are as threads come to that node for their data: about that many the kernel would pull away. Busiest readers first, and
//! only those that read at least as much there as one of those that come: what the policy finds too little to move is left alone.
//!
//! **Limits.** On a node to which nobody is moved, nobody is bound.

use placement::{Move, Plan, Reason, Snapshot, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::NodeId;

/// Who comes to a node for its data.
struct Coming {
    threads: usize,
    /// What the least of them reads from there.
    least_bytes: u64,
}

/// Moves from a node to itself: threads to bind where they are because the plan moves others there. `bound` are the ids of
/// threads whose affinity is ours already.
pub fn to_bind(plan: &Plan, snapshot: &Snapshot, bound: &FxHashSet<u32>) -> Vec<Move> {
    let threads: FxHashMap<u32, &Thread> = match plan.moves.is_empty() {
        true => return Vec::new(),
        false => snapshot.threads.iter().map(|t| (t.tid, t)).collect(),
    };
    let mut coming: FxHashMap<NodeId, Coming> = FxHashMap::default();
    let mut named: FxHashSet<u32> = plan.declined.iter().map(|d| d.tid).collect();
    for mv in &plan.moves {
        if let Move::Thread { tid, to, reason, .. } = mv {
            named.insert(*tid);
            if *reason == Reason::ReadLocality {
                let reads = threads.get(tid).map_or(u64::MAX, |t| t.read_bytes.get(*to));
                let node = coming.entry(*to).or_insert(Coming { threads: 0, least_bytes: u64::MAX });
                node.threads += 1;
                node.least_bytes = node.least_bytes.min(reads);
            }
        }
    }
    let candidate = |t: &&Thread| {
        coming.get(&t.node).is_some_and(|node| t.read_bytes.get(t.node) >= node.least_bytes)
            && t.held.is_none()
            && t.home() == Some(t.node)
            && !named.contains(&t.tid)
            && !bound.contains(&t.tid)
    };
    let mut staying: Vec<&Thread> = snapshot.threads.iter().filter(candidate).collect();
    staying.sort_by_key(|t| (std::cmp::Reverse(t.read_bytes.get(t.node)), t.tid));
    staying.retain(|t| match coming.get_mut(&t.node) {
        Some(node) if node.threads > 0 => {
            node.threads -= 1;
            true
        }
        _ => false,
    });
    staying.into_iter().map(bind).collect()
}

fn bind(thread: &Thread) -> Move {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    Move::Thread {
        tid: thread.tid,
        pid: thread.pid,
        start_ns: thread.start_ns,
        from: thread.node,
        to: thread.node,
        reason: Reason::ReadLocality,
        why: format!(
            "{:.1} MB of {:.1} MB read from node {}, where it is: bound before the kernel balances it away",
            mb(thread.read_bytes.get(thread.node)),
            mb(thread.read_bytes.total()),
            thread.node
        ),
    }
}

#[cfg(test)]
mod tests {
    use placement::NodeBytes;

    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn thread(tid: u32, node: NodeId, from_a: u64) -> Thread {
        let read_bytes: NodeBytes = [(A, from_a)].into_iter().collect();
        Thread {
            tid,
            pid: tid,
            comm: String::new(),
            start_ns: None,
            node,
            allowed_nodes: vec![A, B],
            held: None,
            cpu_s: 0.0,
            wait_s: None,
            read_bytes,
            remote_read_bytes: None,
            write_bytes: NodeBytes::default(),
            files: Vec::new(),
            shares_file: false,
        }
    }

    fn to_a(tid: u32, reason: Reason) -> Move {
        Move::Thread { tid, pid: tid, start_ns: None, from: B, to: A, reason, why: String::new() }
    }

    fn bound(moves: Vec<Move>, threads: Vec<Thread>, already: &[u32]) -> Vec<u32> {
        let plan = Plan { moves, ..Plan::default() };
        let snapshot = Snapshot { threads, ..Snapshot::default() };
        let already = already.iter().copied().collect();
        let tid = |mv: Move| match mv {
            Move::Thread { tid, from, to, .. } if from == to => tid,
            other => panic!("{other:?}"),
        };
        to_bind(&plan, &snapshot, &already).into_iter().map(tid).collect()
    }

    #[test]
    fn as_many_as_come_the_busiest_readers_first() {
        let threads = vec![thread(1, A, 5), thread(2, A, 9), thread(3, A, 7), thread(8, B, 9), thread(9, B, 4)];
        let moves = vec![to_a(8, Reason::ReadLocality), to_a(9, Reason::ReadLocality)];
        assert_eq!(bound(moves, threads, &[]), [2, 3]);
    }

    #[test]
    fn not_those_that_read_less_than_everybody_who_comes() {
        let threads = vec![thread(1, A, 5), thread(2, A, 6), thread(8, B, 9), thread(9, B, 6)];
        let moves = vec![to_a(8, Reason::ReadLocality), to_a(9, Reason::ReadLocality)];
        assert_eq!(bound(moves, threads, &[]), [2]);
    }

    #[test]
    fn nobody_without_a_reason() {
        let held = Thread { held: Some("its own affinity".into()), ..thread(2, A, 9) };
        let threads = vec![thread(1, A, 9), held, thread(3, B, 9), thread(4, A, 0), thread(8, B, 9)];
        // Bound already, an affinity of its own, away itself, reads nothing.
        assert_eq!(bound(vec![to_a(8, Reason::ReadLocality)], threads.clone(), &[1]), [] as [u32; 0]);
        // Nobody comes, or not for data.
        assert_eq!(bound(Vec::new(), threads.clone(), &[]), [] as [u32; 0]);
        assert_eq!(bound(vec![to_a(8, Reason::CpuContention)], threads, &[]), [] as [u32; 0]);
    }
}
