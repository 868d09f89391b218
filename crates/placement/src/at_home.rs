//! Threads that are at home already, where others are about to join them.
//!
//! **Problem.** The kernel evens out the number of busy threads per node. When threads are moved to a node and bound there, it
//! pulls away others that it still may move: those that ran beside their data without our doing. Their reads become remote, they
//! are brought back a window later, and so on until each of them was pulled away once.
//!
//! **Approach.** The paper binds every thread to its node (NThread, V-B). Here threads that are at home are bound where they are
//! once threads have come to that node for their data, as these then push the others away, sooner or later. Only those that read
//! a good part of what who came reads: what the policy finds too little to move is left alone. Of the process of somebody who came a
//! small part is enough: on a crowded node its threads get less done than one that was pulled away to an idle CPU. A policy that says whom it counts on
//! where they are ([`Plan::keeps`]) has those bound.
//!
//! **Limits.** On a node to which nobody was moved, nobody is bound.

use rustc_hash::{FxHashMap, FxHashSet};
use topology::NodeId;

use crate::{Declined, Move, Plan, Reason, Snapshot, Thread};

/// A thread at home is bound if it reads at least this part of what the busiest does that was moved there.
const GOOD_PART: u64 = 4;
/// The same for a thread of the same process.
const PART_OF_KIN: u64 = 64;

/// Moves from a node to itself: threads to bind where they are because the plan moves others there, or has done so before.
/// `bound` are the ids of threads whose affinity is ours already.
pub fn to_bind(plan: &Plan, snapshot: &Snapshot, bound: &FxHashSet<u32>) -> Vec<Move> {
    if plan.moves.is_empty() && plan.keeps.is_empty() && bound.is_empty() {
        return Vec::new();
    }
    // Who stays because it shares a file stays for good.
    let undecided = plan.declined.iter().filter(|d| d.reason != Declined::SHARES_FILE);
    let mut named: FxHashSet<u32> = undecided.map(|d| d.tid).collect();
    let mut coming: FxHashMap<u32, NodeId> = FxHashMap::default();
    let mut going: FxHashSet<u32> = FxHashSet::default();
    for mv in &plan.moves {
        match mv {
            Move::Thread { tid, to, reason, .. } => {
                named.insert(*tid);
                if *reason == Reason::ReadLocality {
                    coming.insert(*tid, *to);
                }
            }
            Move::Process { pid, .. } => _ = going.insert(*pid),
            Move::File { .. } => {}
        }
    }
    // What the busiest that came, or comes now, reads from each node.
    let mut busiest: FxHashMap<NodeId, u64> = FxHashMap::default();
    let mut kin: FxHashSet<(NodeId, u32)> = FxHashSet::default();
    for thread in &snapshot.threads {
        let at_home = bound.contains(&thread.tid) && thread.home() == Some(thread.node);
        let node = coming.get(&thread.tid).copied().or(at_home.then_some(thread.node));
        if let Some(node) = node {
            let most = busiest.entry(node).or_default();
            *most = (*most).max(thread.read_bytes.get(node));
            kin.insert((node, thread.pid));
        }
    }
    let candidate = |t: &&Thread| {
        let part = if kin.contains(&(t.node, t.pid)) { PART_OF_KIN } else { GOOD_PART };
        busiest.get(&t.node).is_some_and(|most| t.read_bytes.get(t.node) >= most / part)
            && t.held.is_none()
            && t.home() == Some(t.node)
            && !named.contains(&t.tid)
            && !going.contains(&t.pid)
            && !bound.contains(&t.tid)
    };
    let mut staying: Vec<&Thread> = snapshot.threads.iter().filter(candidate).collect();
    staying.sort_by_key(|t| (std::cmp::Reverse(t.read_bytes.get(t.node)), t.tid));
    let mut moves: Vec<Move> = staying.into_iter().map(bind).collect();
    if !plan.keeps.is_empty() {
        let binds: FxHashSet<u32> = moves.iter().filter_map(tid).chain(plan.moves.iter().filter_map(tid)).collect();
        let keeps: FxHashSet<u32> = plan.keeps.iter().copied().collect();
        let kept = |t: &&Thread| {
            keeps.contains(&t.tid) && t.held.is_none() && !bound.contains(&t.tid) && !binds.contains(&t.tid)
        };
        moves.extend(snapshot.threads.iter().filter(kept).map(keep));
    }
    moves
}

fn tid(mv: &Move) -> Option<u32> {
    if let Move::Thread { tid, .. } = mv { Some(*tid) } else { None }
}

/// Binds a thread that the plan counts on.
fn keep(thread: &Thread) -> Move {
    let reason = if thread.home() == Some(thread.node) { Reason::ReadLocality } else { Reason::CpuContention };
    stay(thread, reason, format!("the plan counts on it on node {}", thread.node))
}

fn bind(thread: &Thread) -> Move {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let (here, all) = (mb(thread.read_bytes.get(thread.node)), mb(thread.read_bytes.total()));
    let why = format!("{here:.1} MB of {all:.1} MB read from node {}, where it is", thread.node);
    stay(thread, Reason::ReadLocality, why)
}

/// A move from a thread's node to itself.
fn stay(thread: &Thread, reason: Reason, why: String) -> Move {
    Move::Thread {
        tid: thread.tid,
        pid: thread.pid,
        start_ns: thread.start_ns,
        from: thread.node,
        to: thread.node,
        reason,
        why: (why + ": bound before the kernel balances it away").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeBytes, Why};

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn thread(tid: u32, node: NodeId, from_a: u64) -> Thread {
        let read_bytes: NodeBytes = [(A, from_a)].into_iter().collect();
        Thread { tid, pid: tid, node, allowed_nodes: vec![A, B], read_bytes, ..Thread::default() }
    }

    fn to_a(tid: u32, reason: Reason) -> Move {
        Move::Thread { tid, pid: tid, start_ns: None, from: B, to: A, reason, why: Why::default() }
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
    fn all_that_read_a_good_part_of_what_who_comes_reads() {
        // The busiest who comes reads 12: 3 and more are bound, the busiest first.
        let threads = vec![thread(1, A, 5), thread(2, A, 9), thread(3, A, 2), thread(8, B, 12), thread(9, B, 4)];
        let moves = vec![to_a(8, Reason::ReadLocality), to_a(9, Reason::ReadLocality)];
        assert_eq!(bound(moves, threads, &[]), [2, 1]);
    }

    /// Seen in a virtual machine: of four readers one was moved, one was bound, and 17 windows later the kernel pulled a third away.
    #[test]
    fn also_later_beside_those_that_came_before() {
        let threads = vec![thread(1, A, 8), thread(2, A, 9), thread(3, B, 9)];
        assert_eq!(bound(Vec::new(), threads.clone(), &[2]), [1]);
        // One that was moved elsewhere, against its reads, is no reason.
        assert_eq!(bound(Vec::new(), threads, &[3]), [] as [u32; 0]);
    }

    /// Seen on a simulated machine: 78 threads of one program on a node with 8 CPUs, and in each of 60 windows the kernel pulled another
    /// one to an idle CPU elsewhere, where it got done nine times as much as those that stayed.
    #[test]
    fn of_the_same_process_those_too_that_get_little_done() {
        let of = |pid: u32, thread: Thread| Thread { pid, ..thread };
        let threads =
            vec![of(7, thread(1, A, 10)), of(9, thread(2, A, 10)), of(7, thread(3, A, 1)), of(7, thread(8, B, 90))];
        assert_eq!(bound(vec![to_a(8, Reason::ReadLocality)], threads, &[]), [1, 3]);
    }

    /// Seen on the same machine: threads that share a file are not moved to where CPUs are free, and then not bound either.
    #[test]
    fn who_stays_with_its_file_but_not_who_was_left_alone() {
        let declined = |tid, reason: &str| Declined { tid, reason: reason.into(), why: String::new() };
        let plan = Plan {
            moves: vec![to_a(8, Reason::ReadLocality)],
            declined: vec![declined(1, Declined::SHARES_FILE), declined(2, "below_margin")],
            ..Plan::default()
        };
        let threads = vec![thread(1, A, 9), thread(2, A, 9), thread(8, B, 9)];
        let moves = to_bind(&plan, &Snapshot { threads, ..Snapshot::default() }, &FxHashSet::default());
        assert_eq!(moves.iter().filter_map(tid).collect::<Vec<_>>(), [1]);
    }

    /// Seen on a simulated machine: a process was moved and its thread bound where it had been, so that it came straight back.
    #[test]
    fn nobody_whose_process_goes() {
        let threads = vec![thread(1, A, 9), thread(2, A, 9), thread(8, B, 9)];
        let process = Move::Process { pid: 1, from: A, to: B, reason: Reason::CacheAffinity, why: Why::default() };
        assert_eq!(bound(vec![process, to_a(8, Reason::ReadLocality)], threads, &[]), [2]);
    }

    #[test]
    fn nobody_without_a_reason() {
        let held = Thread { held: Some("its own affinity".into()), ..thread(2, A, 9) };
        let threads = vec![thread(1, A, 9), held, thread(3, B, 9), thread(4, A, 0), thread(8, B, 9)];
        // Bound already, an affinity of its own, away itself, reads nothing.
        let moves = vec![to_a(8, Reason::ReadLocality)];
        assert_eq!(bound(moves, threads.clone(), &[1]), [] as [u32; 0]);
        // Nobody comes, or not for data.
        assert_eq!(bound(Vec::new(), threads.clone(), &[]), [] as [u32; 0]);
        assert_eq!(bound(vec![to_a(8, Reason::CpuContention)], threads, &[]), [] as [u32; 0]);
    }
}
