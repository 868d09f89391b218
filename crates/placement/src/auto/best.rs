//! Throughput, and the placement with the highest measured throughput.
//!
//! **Problem.** A plan is judged by the throughput before and after it, and must be undone as a
//! whole.
//!
//! **Approach.** The policy keeps the best measured placement of a load: where its threads were,
//! and what has moved since. The way back consists of ordinary moves.
//!
//! **Limits.** If the threads of a process were on several nodes, its memory stays where it was
//! moved.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use topology::NodeId;

use super::demand::{Demand, Demands};
use crate::processes::sane;
use crate::{Move, Snapshot, Why};

/// The best measured placement of this load.
#[derive(Clone, Debug, Default)]
pub(super) struct Best {
    /// Bytes/s of all threads, and by process.
    pub rate: f64,
    pub by: FxHashMap<u32, f64>,
    pub threads: FxHashMap<u32, NodeId>,
    /// Processes that have moved with their memory since, and their former nodes.
    pub processes: FxHashMap<u32, NodeId>,
    /// Files that have moved since: from where, and to where.
    pub files: BTreeMap<String, (NodeId, NodeId)>,
}

impl Best {
    /// Records where all threads are and their throughput there.
    pub fn measured(snapshot: &Snapshot, demands: &Demands, rate: f64) -> Self {
        let at = |d: &Demand| (snapshot.threads[d.thread].tid, snapshot.threads[d.thread].node);
        let mut by = FxHashMap::default();
        by_process(demands, &mut by);
        Self {
            rate,
            by,
            threads: demands.threads.iter().map(at).collect(),
            processes: FxHashMap::default(),
            files: BTreeMap::new(),
        }
    }

    /// The moves that lead back to a placement.
    pub fn back_to(&self, snapshot: &Snapshot, demands: &Demands) -> Vec<Move> {
        let reason = crate::Reason::ReadLocality;
        let file = |(file, (to, from)): (&String, &(NodeId, NodeId))| Move::File {
            file: file.clone(),
            generation: None,
            from: *from,
            to: *to,
            reason,
            why: Why::default(),
        };
        let mut back: Vec<Move> = self.files.iter().map(file).collect();
        // A process that was spread over nodes goes back thread by thread; its memory stays.
        let whole = |pid: u32, to: NodeId| {
            let mut own = snapshot.threads.iter().filter(|t| t.pid == pid);
            own.all(|t| self.threads.get(&t.tid).is_none_or(|node| *node == to))
        };
        let processes: FxHashMap<u32, NodeId> =
            self.processes.iter().filter(|(pid, to)| whole(**pid, **to)).map(|(pid, to)| (*pid, *to)).collect();
        for (pid, to) in &processes {
            let from = snapshot.threads.iter().find(|t| t.pid == *pid).map(|t| t.node).filter(|from| from != to);
            back.extend(from.map(|from| Move::Process {
                pid: *pid,
                start_ns: None,
                from,
                to: *to,
                reason,
                why: Why::default(),
            }));
        }
        back.sort_by_key(|mv| if let Move::Process { pid, .. } = mv { *pid } else { 0 }); // stable: files stay first
        for t in demands.threads.iter().map(|d| &snapshot.threads[d.thread]) {
            let to = self.threads.get(&t.tid).copied().filter(|to| *to != t.node && t.held.is_none());
            if let Some(to) = to.filter(|_| !processes.contains_key(&t.pid)) {
                let (tid, pid, start_ns, from) = (t.tid, t.pid, t.start_ns, t.node);
                back.push(Move::Thread { tid, pid, start_ns, from, to, reason, why: Why::default() });
            }
        }
        back
    }
}

/// Bytes/s of all programs. Mapped memory shows which pages are touched, not how often; where
/// programs use it, the traffic of the nodes' controllers counts.
pub(super) fn done(snapshot: &Snapshot, demands: &Demands) -> f64 {
    let mapped = |d: &Demand| snapshot.threads[d.thread].file_bytes() == 0;
    let served: f64 = snapshot.nodes.iter().map(|n| n.read_bytes as f64 + n.write_bytes as f64).sum();
    let window_s = sane(snapshot.window_s);
    if demands.threads.iter().any(mapped) && window_s > 0.0 {
        served / window_s
    } else {
        demands.threads.iter().map(|d| d.rate).sum()
    }
}

/// Adds the throughput of each process.
pub(super) fn by_process(demands: &Demands, by: &mut FxHashMap<u32, f64>) {
    for d in &demands.threads {
        *by.entry(demands.programs[d.process].pid).or_default() += d.rate;
    }
}
