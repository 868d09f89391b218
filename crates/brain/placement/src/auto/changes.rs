//! The changes of an assignment that the [search](super::search) tries, in the order in which it
//! tries them.
//!
//! **Problem.** The search solves the network for each change, and 10,000 threads on 64 nodes have
//! far more changes than it may solve.
//!
//! **Approach.** Threads come first, those that lose most to their place before the others; then
//! whole processes, and shared data. On large machines, only the nodes nearest to a thread's data
//! and the emptiest nodes are tried.
//!
//! **Limits.** When the allowance ends, the changes at the end of the list have not been tried; the
//! next window continues.

use smallvec::SmallVec;

use super::assignment::{Assignment, Model, Placed, Scratch};
use super::search::Change;

/// Largest number of [`Placed`] considered in one step: more than the allowance can solve on most
/// machines.
const MOST_SEATS: usize = 512;
/// Largest number of target nodes per class: half of them near its data, half of them empty.
const MOST_TARGETS: usize = 8;

impl Model<'_> {
    /// All changes worth considering; `scratch` holds the solution of this assignment.
    pub fn changes(&self, assignment: &Assignment, scratch: &Scratch) -> Vec<Change> {
        let mut changes = Vec::new();
        for (t, placed) in self.worst_off(assignment, scratch) {
            self.thread_changes(t, &placed, assignment, scratch, &mut changes);
        }
        self.process_changes(assignment, &mut changes);
        self.group_changes(assignment, &mut changes);
        changes
    }

    /// The threads that may move, those first that lose most to distance, queues and crowds.
    fn worst_off(&self, assignment: &Assignment, scratch: &Scratch) -> Vec<(usize, Placed)> {
        let placed =
            assignment.threads.iter().enumerate().flat_map(|(t, threads)| threads.iter().map(move |p| (t, *p)));
        let mut all: Vec<(f64, usize, Placed)> = (placed.zip(scratch.solver.rates()))
            .filter(|((t, _), _)| !self.classes[*t].pinned)
            .map(|((t, placed), rate)| {
                let ideal = 1.0 / (self.classes[t].work.soft_s + self.classes[t].work.off_s).max(f64::MIN_POSITIVE);
                (placed.count as f64 * (ideal - rate.ops), t, placed)
            })
            .collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        all.truncate(MOST_SEATS);
        all.into_iter().map(|s| (s.1, s.2)).collect()
    }

    /// The nodes that a class might move to.
    fn targets(&self, t: usize, scratch: &Scratch) -> Vec<usize> {
        let mut targets: Vec<usize> = (0..self.hardware.len()).filter(|n| self.may_sit(t, *n)).collect();
        if targets.len() > MOST_TARGETS {
            let reads = self.reads(t);
            let far =
                |node: usize| -> f64 { reads.iter().map(|(m, share)| share * self.hardware.hops(node, *m)).sum() };
            let full = |node: usize| {
                let (cpus, others) = scratch.system.cpus[node];
                (scratch.solver.wanted(node) + others) / cpus.max(1.0)
            };
            targets.sort_by(|a, b| far(*a).total_cmp(&far(*b)).then(a.cmp(b)));
            targets[MOST_TARGETS / 2..].sort_by(|a, b| full(*a).total_cmp(&full(*b)).then(a.cmp(b)));
            targets.truncate(MOST_TARGETS);
        }
        targets
    }

    fn thread_changes(
        &self,
        t: usize,
        placed: &Placed,
        assignment: &Assignment,
        scratch: &Scratch,
        changes: &mut Vec<Change>,
    ) {
        let class = &self.classes[t];
        let moves_data = class.file_bytes > 0.0 && self.file_copy_s(class.file_bytes) <= self.settings.horizon_s;
        let mut counts: SmallVec<[usize; 4]> = SmallVec::new();
        for count in [placed.count, placed.count.div_ceil(2), placed.count.div_ceil(4), 1] {
            if !counts.contains(&count) {
                counts.push(count);
            }
        }
        let process_moved = assignment.processes[class.process].is_some();
        for node in self.targets(t, scratch) {
            let home = self.hardware.nodes[node].home;
            let mut data: SmallVec<[Option<usize>; 3]> = SmallVec::from_slice(&[None]);
            if moves_data && class.file_bytes <= self.hardware.nodes[home].free {
                data.push(Some(home));
            }
            if placed.data.is_some() && !data.contains(&placed.data) {
                data.push(placed.data);
            }
            for data in data {
                if (node != placed.node && !process_moved) || (node == placed.node && data != placed.data) {
                    let change = |count: &usize| Change::Threads { class: t, from: *placed, count: *count, node, data };
                    changes.extend(counts.iter().map(change));
                }
            }
        }
    }

    fn process_changes(&self, assignment: &Assignment, changes: &mut Vec<Change>) {
        for (process, one) in self.demands.processes.iter().enumerate() {
            let classes = &self.of_process[process];
            for node in (0..self.hardware.len()).filter(|n| one.allowed[*n]) {
                let home = self.hardware.nodes[node].home;
                let away: f64 = one.memory.iter().filter(|m| m.0 != home).map(|m| m.1).sum();
                if assignment.processes[process] != Some(node)
                    && away > 0.0
                    && away <= self.hardware.nodes[home].free
                    && self.process_copy_s(process, node) < self.settings.horizon_s
                {
                    changes.push(Change::Process { process, node, memory: true });
                }
                let mut placed = classes.iter().flat_map(|t| &assignment.threads[*t]);
                if placed.clone().count() > 1 && placed.any(|s| s.node != node) {
                    changes.push(Change::Process { process, node, memory: false });
                }
            }
        }
    }

    fn group_changes(&self, assignment: &Assignment, changes: &mut Vec<Change>) {
        for group in 0..self.demands.groups.list.len() {
            for node in (0..self.hardware.len()).filter(|n| assignment.groups[group] != Some(*n)) {
                let (n, away) = (&self.hardware.nodes[node], self.group_bytes(group, node));
                if n.home == node && away > 0.0 && away <= n.free && self.file_copy_s(away) <= self.settings.horizon_s {
                    changes.push(Change::Group { group, node });
                }
            }
        }
    }
}
