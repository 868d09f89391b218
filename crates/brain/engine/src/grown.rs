//! Finds threads that are bound to a part of their node, because CPUs of it came online later.
//!
//! **Problem.** A bound thread may use the CPUs that its node had when it was bound, and none that
//! come online later.
//!
//! **Approach.** It is bound again where it is, by a move like any other: the rails judge it, and
//! its undo record is written first.
//!
//! **Limits.** The rails may hold this move back like any other. A thread that is missing from a
//! window waits until it is seen again.

use std::collections::BTreeMap;

use placement::{Move, Snapshot};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{CpuSet, NodeId, ThreadId, Topology};

use crate::{MoveEvent, Subject, Undo, owned};

/// The CPUs that nodes had in the last window, and the threads to bind again.
#[derive(Debug, Default)]
pub(crate) struct Grown {
    cpus: BTreeMap<NodeId, CpuSet>,
    pub(crate) due: FxHashMap<u32, NodeId>,
}

impl Grown {
    /// Compares each node's CPUs with those of the last window. `owned`: the threads that are
    /// bound.
    pub fn window(&mut self, topology: &Topology, owned: &[Undo]) {
        for node in &topology.nodes {
            let Some(before) = self.cpus.get(&node.id).filter(|before| **before != node.cpus) else { continue };
            let gained = node.cpus.difference(before);
            let lacks = |ours: &CpuSet| !ours.intersection(before).is_empty() && !gained.is_subset(ours);
            for undo in owned.iter().filter(|undo| undo.masks.as_ref().is_some_and(|masks| lacks(&masks.ours))) {
                if let Subject::Thread(ThreadId { tid, .. }) = undo.subject {
                    self.due.insert(tid, node.id);
                }
            }
        }
        if !self.cpus.iter().eq(topology.nodes.iter().map(|node| (&node.id, &node.cpus))) {
            self.cpus = topology.nodes.iter().map(|node| (node.id, node.cpus.clone())).collect();
        }
    }

    /// Moves from a node to itself, of the threads that are due and that the plan leaves where they
    /// are.
    pub fn moves(&mut self, snapshot: &Snapshot, planned: &[Move], bound: &FxHashSet<u32>) -> Vec<Move> {
        self.due.retain(|tid, _| bound.contains(tid));
        if self.due.is_empty() {
            return Vec::new();
        }
        let named: FxHashSet<u32> = planned.iter().filter_map(|mv| owned::id(&mv.subject)).collect();
        let due = |t: &&placement::Thread| {
            self.due.get(&t.tid) == Some(&t.node) && !named.contains(&t.tid) && !named.contains(&t.pid)
        };
        snapshot.threads.iter().filter(due).map(placement::at_home::again).collect()
    }

    /// Takes in what became of a move. A thread that was moved, or cannot be moved, is no longer
    /// due.
    pub fn judged(&mut self, mv: &Move, event: &MoveEvent) {
        if let Some(tid) = mv.tid()
            && (event.refusal().is_some() || matches!(event, MoveEvent::Applied | MoveEvent::Gone))
        {
            self.due.remove(&tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use placement::Thread;
    use topology::Node;

    use super::*;
    use crate::Masks;

    fn machine(cpus: &str) -> Topology {
        Topology::from_iter([Node::new(NodeId(0), cpus.parse().unwrap(), 1)])
    }

    fn undo(tid: u32, ours: &str) -> Undo {
        let masks = Masks { before: "0-7".parse().unwrap(), ours: ours.parse().unwrap(), unbound: true };
        Undo { subject: Subject::Thread(ThreadId::new(tid, 1)), pid: tid, masks: Some(masks), payload: None }
    }

    #[test]
    fn a_thread_bound_to_half_of_a_node_gets_the_rest_once() {
        let owned = [undo(5, "0-1"), undo(6, "0-3"), undo(7, "6-7")];
        let bound = [5, 6, 7].into_iter().collect();
        let thread = |tid| Thread { tid, pid: tid, node: NodeId(0), ..Thread::default() };
        let snapshot = Snapshot { threads: vec![thread(5), thread(6), thread(7)], ..Snapshot::default() };
        let mut grown = Grown::default();
        grown.window(&machine("0-1"), &owned);
        assert_eq!(grown.moves(&snapshot, &[], &bound), []);
        grown.window(&machine("0-3"), &owned);
        let moves = grown.moves(&snapshot, &[], &bound);
        let all: Vec<_> = moves.iter().map(|mv| (mv.tid(), mv.from, mv.to)).collect();
        assert_eq!(all, [(Some(5), NodeId(0), NodeId(0))]);
        assert_eq!(grown.moves(&snapshot, &moves, &bound), [], "the plan has it already");
        grown.judged(&moves[0], &MoveEvent::Queued);
        assert_eq!(grown.moves(&snapshot, &[], &bound).len(), 1, "held back: again in the next window");
        grown.judged(&moves[0], &MoveEvent::Applied);
        grown.window(&machine("0-3"), &owned);
        assert_eq!(grown.moves(&snapshot, &[], &bound), []);
    }
}
