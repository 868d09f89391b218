//! Binds threads that are already at home on nodes where others arrive.
//!
//! **Problem.** The kernel evens out the number of busy threads per node. When homenode moves
//! threads to a node and binds them there, the kernel pulls away other threads, those that ran
//! beside their data without being bound. Their reads become remote, homenode brings them back a
//! window later, and so on until the kernel has pulled each of them away once.
//!
//! **Approach.** The paper binds every thread to its node (NThread, V-B). homenode binds a thread
//! that is at home once others have come to its node for their data, because these displace it
//! sooner or later. It binds only threads that read a good part of what the newcomers read, and
//! leaves alone threads that the policy finds too small to move. For a thread of a newcomer's
//! process, a small part is enough: on a crowded node such threads get less done than one that the
//! kernel pulled away to an idle CPU. homenode also binds the threads that a policy counts on where
//! they are ([`Plan::keeps`]).
//!
//! **Limits.** homenode binds no thread on a node to which it moved none.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use topology::{NodeId, ProcessId, ThreadId};

use crate::{Declined, Move, Plan, Reason, Snapshot, Subject, Thread};

/// A thread at home is bound if it reads at least this part (one in so many) of the reads of the
/// busiest thread that was moved to its node.
const GOOD_PART: u64 = 4;
/// The same for a thread of a moved thread's process.
const PART_BESIDE_ITS_PROCESS: u64 = 64;

/// Returns moves from a node to itself, for threads to bind where they are because the plan moves
/// others there, or an earlier one did. `bound` holds the ids of threads that already have an
/// affinity set by homenode.
pub fn to_bind(plan: &Plan, snapshot: &Snapshot, bound: &FxHashSet<u32>) -> Vec<Move> {
    if plan.moves.is_empty() && plan.keeps.is_empty() && bound.is_empty() {
        return Vec::new();
    }
    // A thread that stays because it shares a file stays for good.
    let undecided = plan.declined.iter().filter(|d| d.reason != Declined::SHARES_FILE);
    let mut named: FxHashSet<u32> = undecided.map(|d| d.tid).collect();
    let mut coming: FxHashMap<u32, NodeId> = FxHashMap::default();
    let mut going: FxHashSet<u32> = FxHashSet::default();
    for mv in &plan.moves {
        match mv.subject {
            Subject::Thread(ThreadId { tid, .. }) => {
                named.insert(tid);
                if mv.reason == Reason::ReadLocality {
                    coming.insert(tid, mv.to);
                }
            }
            Subject::Process(ProcessId { pid, .. }) => _ = going.insert(pid),
            Subject::File(_) => {}
        }
    }
    // For each node and rule, the bytes read from it by the busiest thread that came or comes: a
    // rule binds nothing of another one.
    let mut busiest: FxHashMap<(NodeId, Option<&Arc<str>>), u64> = FxHashMap::default();
    let mut joined: FxHashSet<(NodeId, u32)> = FxHashSet::default();
    for thread in snapshot.threads.iter().filter(|thread| thread.pinned.is_none()) {
        let at_home = bound.contains(&thread.tid) && thread.home() == Some(thread.node);
        let node = coming.get(&thread.tid).copied().or(at_home.then_some(thread.node));
        if let Some(node) = node {
            let most = busiest.entry((node, thread.rule.as_ref())).or_default();
            *most = (*most).max(thread.read_bytes.get(node));
            joined.insert((node, thread.pid));
        }
    }
    let candidate = |t: &&Thread| {
        let part = if joined.contains(&(t.node, t.pid)) { PART_BESIDE_ITS_PROCESS } else { GOOD_PART };
        busiest.get(&(t.node, t.rule.as_ref())).is_some_and(|most| t.read_bytes.get(t.node) >= most / part)
            && t.pinned.is_none()
            && t.home() == Some(t.node)
            && !named.contains(&t.tid)
            && !going.contains(&t.pid)
            && !bound.contains(&t.tid)
    };
    let mut staying: Vec<&Thread> = snapshot.threads.iter().filter(candidate).collect();
    staying.sort_by_key(|t| (std::cmp::Reverse(t.read_bytes.get(t.node)), t.tid));
    let mut moves: Vec<Move> = staying.into_iter().map(bind).collect();
    if !plan.keeps.is_empty() {
        let binds: FxHashSet<u32> = moves.iter().chain(&plan.moves).filter_map(Move::tid).collect();
        let keeps: FxHashSet<u32> = plan.keeps.iter().copied().collect();
        let kept = |t: &&Thread| {
            keeps.contains(&t.tid) && t.pinned.is_none() && !bound.contains(&t.tid) && !binds.contains(&t.tid)
        };
        moves.extend(snapshot.threads.iter().filter(kept).map(keep));
    }
    moves
}

/// Binds a thread that the plan counts on.
fn keep(thread: &Thread) -> Move {
    stay(thread, format!("the plan relies on it running on node {}", thread.node))
}

fn bind(thread: &Thread) -> Move {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let (here, all) = (mb(thread.read_bytes.get(thread.node)), mb(thread.read_bytes.total()));
    stay(thread, format!("{here:.1} MB of {all:.1} MB read from node {}, where it runs", thread.node))
}

/// Binds a thread again where it is, because its node has more CPUs than when it was bound.
pub fn again(thread: &Thread) -> Move {
    stay(thread, format!("node {} has more CPUs than when it was bound there", thread.node))
}

/// A move from a thread's node to itself.
fn stay(thread: &Thread, why: String) -> Move {
    let reason = if thread.home() == Some(thread.node) { Reason::ReadLocality } else { Reason::CpuContention };
    Move::thread(thread, thread.node, reason, why + "; bound so that the kernel does not move it away")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Why, testing};

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn thread(tid: u32, node: NodeId, from_a: u64) -> Thread {
        Thread { pid: tid, ..testing::thread(tid, node.0, &[(0, from_a)], 0) }
    }

    fn to_a(tid: u32, reason: Reason) -> Move {
        Move::thread(&thread(tid, B, 0), A, reason, Why::default())
    }

    fn bound(moves: Vec<Move>, threads: Vec<Thread>, already: &[u32]) -> Vec<u32> {
        let plan = Plan { moves, ..Plan::default() };
        let snapshot = Snapshot { threads, ..Snapshot::default() };
        let already = already.iter().copied().collect();
        let tid = |mv: Move| mv.tid().filter(|_| mv.from == mv.to).unwrap();
        to_bind(&plan, &snapshot, &already).into_iter().map(tid).collect()
    }

    #[test]
    fn binds_threads_that_read_a_good_part_of_what_newcomers_read() {
        // The busiest newcomer reads 12. Threads that read 3 or more are bound, busiest first.
        let threads = vec![thread(1, A, 5), thread(2, A, 9), thread(3, A, 2), thread(8, B, 12), thread(9, B, 4)];
        let moves = vec![to_a(8, Reason::ReadLocality), to_a(9, Reason::ReadLocality)];
        assert_eq!(bound(moves, threads, &[]), [2, 1]);
    }

    /// Seen in a virtual machine: of four readers, one was moved and one was bound. 17 windows
    /// later the kernel pulled a third away.
    #[test]
    fn binds_threads_beside_earlier_newcomers() {
        let threads = vec![thread(1, A, 8), thread(2, A, 9), thread(3, B, 9)];
        assert_eq!(bound(Vec::new(), threads.clone(), &[2]), [1]);
        // A bound thread that was moved away from its data is no reason to bind others.
        assert_eq!(bound(Vec::new(), threads.clone(), &[3]), [] as [u32; 0]);
        // Nor is one that has got an affinity of its own since.
        let pinned = Thread { pinned: Some("has an affinity of its own".into()), ..thread(2, A, 9) };
        assert_eq!(bound(Vec::new(), vec![threads[0].clone(), pinned, threads[2].clone()], &[2]), [] as [u32; 0]);
    }

    /// Seen on a simulated machine: 78 threads of one program ran on a node with 8 CPUs. In each of
    /// 60 windows the kernel pulled another one to an idle CPU on another node, where it did nine
    /// times as much as those that stayed.
    #[test]
    fn binds_slow_threads_of_a_newcomers_process() {
        let of = |pid: u32, thread: Thread| Thread { pid, ..thread };
        let threads =
            vec![of(7, thread(1, A, 10)), of(9, thread(2, A, 10)), of(7, thread(3, A, 2)), of(7, thread(8, B, 90))];
        assert_eq!(bound(vec![to_a(8, Reason::ReadLocality)], threads, &[]), [1, 3]);
    }

    /// Seen on the same machine: threads that share a file were not moved to free CPUs, and then
    /// not bound either.
    #[test]
    fn binds_sharers_but_not_other_declined_threads() {
        let declined = |tid, reason: &str| Declined { tid, reason: reason.into(), why: String::new() };
        let plan = Plan {
            moves: vec![to_a(8, Reason::ReadLocality)],
            declined: vec![declined(1, Declined::SHARES_FILE), declined(2, "below_margin")],
            ..Plan::default()
        };
        let threads = vec![thread(1, A, 9), thread(2, A, 9), thread(8, B, 9)];
        let moves = to_bind(&plan, &Snapshot { threads, ..Snapshot::default() }, &FxHashSet::default());
        assert_eq!(moves.iter().filter_map(Move::tid).collect::<Vec<_>>(), [1]);
    }

    /// Seen on a simulated machine: a process moved while its thread was bound to the old node, so
    /// it came straight back.
    #[test]
    fn binds_no_thread_of_a_process_that_moves() {
        let threads = vec![thread(1, A, 9), thread(2, A, 9), thread(8, B, 9)];
        let (subject, reason, why) = (Subject::process(1, None), Reason::CacheAffinity, Why::default());
        let process = Move { subject, pid: 1, from: A, to: B, reason, why, ranges: Vec::new() };
        assert_eq!(bound(vec![process, to_a(8, Reason::ReadLocality)], threads, &[]), [2]);
    }

    #[test]
    fn binds_no_thread_without_a_reason() {
        let pinned = Thread { pinned: Some("its own affinity".into()), ..thread(2, A, 9) };
        let threads = vec![thread(1, A, 9), pinned, thread(3, B, 9), thread(4, A, 0), thread(8, B, 9)];
        // Threads that are already bound, have a custom affinity, run away from home, or read
        // nothing.
        let moves = vec![to_a(8, Reason::ReadLocality)];
        assert_eq!(bound(moves, threads.clone(), &[1]), [] as [u32; 0]);
        // No thread comes, or it does not come for its data.
        assert_eq!(bound(Vec::new(), threads.clone(), &[]), [] as [u32; 0]);
        assert_eq!(bound(vec![to_a(8, Reason::CpuContention)], threads, &[]), [] as [u32; 0]);
    }
}
