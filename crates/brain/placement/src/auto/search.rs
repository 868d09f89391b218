//! A deterministic local search from the current assignment to a better one.
//!
//! **Problem.** Threads compete for CPUs and controllers, so each thread's best place depends on
//! all others. A greedy search thread by thread ends in crowds, and there are too many placements
//! of 10,000 threads on 8 nodes to try all.
//!
//! **Approach.** The search starts from the current assignment, and from all threads at home with
//! their data. In each step, it solves the network for possible [changes](super::changes) in the
//! order of their list. It takes the best of the first [`FEW`], or else the next one that is good.
//! A change is one of: some threads of a class, with or without their data; data to its threads; a
//! whole process, with or without its memory; shared data. The search ends when no change is worth
//! its cost, or when the allowance is used up.
//!
//! **Limits.** The result is a local optimum of a model. With very many classes, the allowance ends
//! the search early; the next window continues.

use memory_model::{Shares, add};

use super::assignment::{Assignment, Model, Placed, Scratch, Worth};
use super::data::main_node;
use super::demand::Use;

/// Work allowed per decision, in visits of a solver pass (some nanoseconds each): a few tens of
/// milliseconds.
const ALLOWANCE: u64 = 2_000_000;
/// Number of changes that are solved before the best one is taken; beyond, the first good one is
/// taken. Chosen, not derived.
const FEW: usize = 8;
/// Number of search steps: one for each of a few hundred classes.
const MOST_STEPS: usize = 400;
/// Smallest improvement that counts, as a share of the total: the accuracy of a solution.
const EPSILON: f64 = 1e-5;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Moves some threads of a class to a node, and their private data to a node.
    Threads { class: usize, from: Placed, count: usize, node: usize, data: Option<usize> },
    /// Moves a whole process, with or without its memory.
    Process { process: usize, node: usize, memory: bool },
    /// Moves a shared group's data.
    Group { group: usize, node: usize },
}

pub(super) struct Found {
    pub assignment: Assignment,
    pub worth: Worth,
    pub stays: Worth,
}

impl Model<'_> {
    /// The best assignment found; `may` forbids some changes.
    pub fn search(&self, scratch: &mut Scratch, may: &dyn Fn(&Change) -> bool) -> Found {
        let current = Assignment::current(self.classes, self.demands);
        let stays = self.value(&current, scratch);
        let begun = scratch.spent();
        let (assignment, worth) = self.climb(current.clone(), scratch, may, begun + ALLOWANCE * 2 / 3);
        let mut found = Found { assignment, worth, stays };
        if let Some(start) = self.at_home(&current) {
            let until = scratch.spent() + ALLOWANCE / 3;
            let (assignment, worth) = self.climb(start, scratch, may, until);
            if worth.net > found.worth.net + EPSILON * found.stays.rate * self.settings.horizon_s {
                (found.assignment, found.worth) = (assignment, worth);
            }
        }
        found
    }

    /// Each class on the node with most of its data; `None` if that changes nothing.
    fn at_home(&self, current: &Assignment) -> Option<Assignment> {
        let mut home = current.clone();
        for t in 0..self.classes.len() {
            if let Some(node) = main_node(&self.reads(t)).filter(|n| self.may_sit(t, *n)) {
                home.shift(t, 0, self.classes[t].members.len(), node, None);
            }
        }
        (home != *current).then_some(home)
    }

    /// Fractions of a class's reads, by node.
    pub fn reads(&self, t: usize) -> Shares {
        let work = &self.classes[t].work;
        let mut reads = work.private.clone();
        for Use { group, read, .. } in &work.shared {
            for (node, share) in &self.demands.groups.list[*group].places {
                add(&mut reads, *node, read * share);
            }
        }
        reads
    }

    pub fn may_sit(&self, class: usize, node: usize) -> bool {
        let t = &self.classes[class];
        node == t.node || (!t.pinned && self.demands.allowed[t.allowed][node])
    }

    fn climb(
        &self,
        mut assignment: Assignment,
        scratch: &mut Scratch,
        may: &dyn Fn(&Change) -> bool,
        until: u64,
    ) -> (Assignment, Worth) {
        let mut worth = self.value(&assignment, scratch);
        for _ in 0..MOST_STEPS {
            // The changes need the solution of this assignment.
            self.value(&assignment, scratch);
            let changes = self.changes(&assignment, scratch).into_iter().filter(|c| may(c));
            let mut best: Option<(Assignment, Worth)> = None;
            for (tried, change) in changes.enumerate() {
                if scratch.spent() > until || (tried >= FEW && best.is_some()) {
                    break;
                }
                let mut next = assignment.clone();
                self.apply(&mut next, &change);
                let value = self.value(&next, scratch);
                let least = worth.net + self.least_gain(&change, worth.rate);
                if value.net > best.as_ref().map_or(least, |b| b.1.net) {
                    best = Some((next, value));
                }
            }
            match best {
                Some((next, value)) => (assignment, worth) = (next, value),
                None => break,
            }
        }
        (assignment, worth)
    }

    /// The least gain that a change must promise, in bytes over the horizon. Going back to the
    /// current placement needs none.
    fn least_gain(&self, change: &Change, all: f64) -> f64 {
        let of = |class: usize, count: usize| self.classes[class].work.rate * count as f64;
        let moved = match change {
            Change::Threads { class, node, data, .. } if *node == self.classes[*class].node && data.is_none() => 0.0,
            Change::Threads { class, count, .. } => of(*class, *count),
            Change::Process { process, .. } => self.process_rate(*process),
            Change::Group { .. } => 0.0,
        };
        self.settings.horizon_s * (self.settings.min_move_gain * moved).max(EPSILON * all)
    }

    pub fn apply(&self, assignment: &mut Assignment, change: &Change) {
        match change {
            Change::Threads { class, from, count, node, data } => shift(assignment, *class, from, *count, *node, *data),
            Change::Process { process, node, memory } => {
                for class in self.of_process[*process].iter().copied() {
                    for from in assignment.threads[class].clone() {
                        shift(assignment, class, &from, from.count, *node, from.data);
                    }
                }
                assignment.processes[*process] = memory.then_some(*node);
            }
            Change::Group { group, node } => assignment.groups[*group] = Some(*node),
        }
    }
}

/// Moves some threads of a class if they are still there.
fn shift(assignment: &mut Assignment, class: usize, from: &Placed, count: usize, node: usize, data: Option<usize>) {
    if let Some(at) = assignment.threads[class].iter().position(|s| s.node == from.node && s.data == from.data) {
        let count = count.min(assignment.threads[class][at].count);
        assignment.shift(class, at, count, node, data);
    }
}
