//! A deterministic local search from the current seating to a better one.
//!
//! **Problem.** Threads compete for CPUs and controllers, so each thread's best place depends on
//! all others. A greedy search thread by thread ends in crowds, and there are too many placements
//! of 10,000 threads on 8 nodes to try all.
//!
//! **Approach.** The search starts from the current seating, from all threads at home with their
//! data, and from each process on one node. In each step, it prices all possible changes with the
//! last solution's queues and CPUs (the gain of the moving threads, the effect on others). It
//! solves the most promising ones exactly and takes the best. A change is one of: some threads of a
//! team, with or without their data; data to its threads; a whole process, with or without its
//! memory; a shared group, with or without its users; two threads that swap. The search ends when
//! no change is worth its cost, or when the allowance is used up.
//!
//! **Limits.** The result is a local optimum of a model. With very many teams, the allowance ends
//! the search early; the next window continues.

use super::data::{Shares, add, main_node};
use super::seating::{Model, Scratch, Seat, Seating, Worth};

/// Work allowed per decision, in visits of a solver pass (some nanoseconds each): a few tens of
/// milliseconds.
const ALLOWANCE: u64 = 2_000_000;
/// With at least this many promising changes of different teams, the search first tries all of them
/// at once, then half of them, and so on.
const BATCH: usize = 32;
/// Number of promising changes that are solved before the best one is taken; all are solved until
/// one is good.
const FEW: usize = 8;
/// Number of processes that are placed together on each node.
const MOST_TOGETHER: usize = 16;
/// Number of ways to take back one move that are tried.
const MOST_PRUNED: usize = 12;
/// Number of search steps.
const MOST_STEPS: usize = 400;
/// Smallest improvement that counts, as a share of the total.
const EPSILON: f64 = 1e-5;

/// One possible change.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Moves threads of a team's seat to a node, and their private data to a node.
    Threads { team: usize, from: Seat, count: usize, node: usize, data: Option<usize> },
    /// Moves a whole process, with or without its memory.
    Process { process: usize, node: usize, memory: bool },
    /// Moves a shared group's data, with or without the threads that use it.
    Group { group: usize, node: usize, users: bool },
    /// Swaps one thread of each of two seats.
    Swap { a: (usize, Seat), b: (usize, Seat) },
}

impl Change {
    /// Whether it moves files, which file systems can refuse to do.
    pub fn moves_data(&self) -> bool {
        match self {
            Self::Threads { data, .. } => data.is_some(),
            Self::Group { .. } => true,
            Self::Process { .. } | Self::Swap { .. } => false,
        }
    }
}

/// The result of the search.
pub(super) struct Found {
    pub seating: Seating,
    pub worth: Worth,
    pub stays: Worth,
}

impl Model<'_> {
    /// The best seating found; `may` forbids some changes.
    pub fn search(&self, scratch: &mut Scratch, may: &dyn Fn(&Change) -> bool) -> Found {
        let current = Seating::current(self.teams, self.demands);
        let stays = self.value(&current, scratch);
        let begun = scratch.spent();
        let (seating, worth) = self.climb(current.clone(), scratch, may, begun + ALLOWANCE * 2 / 3);
        let mut found = Found { seating, worth, stays };
        let until = scratch.spent() + ALLOWANCE / 3;
        for start in [self.at_home(&current, may), self.together(&current, scratch, may, until)].into_iter().flatten() {
            let until = scratch.spent() + ALLOWANCE / 3;
            let (seating, worth) = self.climb(start, scratch, may, until);
            if worth.net > found.worth.net + EPSILON * found.stays.rate * self.settings.horizon_s {
                (found.seating, found.worth) = (seating, worth);
            }
        }
        found
    }

    /// Each team on the node with most of its data; `None` if that changes nothing.
    fn at_home(&self, current: &Seating, may: &dyn Fn(&Change) -> bool) -> Option<Seating> {
        let mut home = current.clone();
        for (t, team) in self.teams.iter().enumerate() {
            let seat = Seat { node: team.node, data: None, count: team.members.len() };
            let data = main_node(&self.reads(t));
            if let Some(node) = data.filter(|n| *n != team.node && self.may_sit(t, *n)) {
                let change = Change::Threads { team: t, from: seat, count: seat.count, node, data: None };
                if may(&change) {
                    self.apply(&mut home, &change);
                }
            }
        }
        (home != *current).then_some(home)
    }

    /// Each process on one node, the largest first, on the node that is best with the processes
    /// placed before.
    fn together(
        &self,
        current: &Seating,
        scratch: &mut Scratch,
        may: &dyn Fn(&Change) -> bool,
        until: u64,
    ) -> Option<Seating> {
        let mut rates = vec![0.0; self.demands.programs.len()];
        for team in self.teams {
            rates[team.process] += team.rate * team.members.len() as f64;
        }
        let mut order: Vec<usize> = (0..rates.len()).collect();
        order.sort_by(|a, b| rates[*b].total_cmp(&rates[*a]).then(a.cmp(b)));
        order.truncate(MOST_TOGETHER);
        let mut seating = current.clone();
        for process in order {
            let mut best: Option<(Seating, f64)> = None;
            for node in (0..self.hardware.len()).filter(|n| self.demands.programs[process].allowed[*n]) {
                let change = Change::Process { process, node, memory: false };
                if scratch.spent() < until && may(&change) {
                    let mut next = seating.clone();
                    self.apply(&mut next, &change);
                    let net = self.value(&next, scratch).net;
                    if best.as_ref().is_none_or(|b| net > b.1) {
                        best = Some((next, net));
                    }
                }
            }
            seating = best.map_or(seating, |b| b.0);
        }
        (seating != *current).then_some(seating)
    }

    /// Fractions of a team's reads, by node.
    pub fn reads(&self, t: usize) -> Shares {
        let team = &self.teams[t];
        let mut reads = team.private.clone();
        for (g, read, _) in &team.shared {
            for (node, share) in &self.demands.groups.list[*g].places {
                add(&mut reads, *node, read * share);
            }
        }
        reads
    }

    pub fn may_sit(&self, team: usize, node: usize) -> bool {
        let t = &self.teams[team];
        node == t.node || (!t.held && self.demands.allowed[t.allowed][node])
    }

    fn climb(
        &self,
        mut seating: Seating,
        scratch: &mut Scratch,
        may: &dyn Fn(&Change) -> bool,
        until: u64,
    ) -> (Seating, Worth) {
        let mut worth = self.value(&seating, scratch);
        for _ in 0..MOST_STEPS {
            // The prices need the solution of this seating.
            self.value(&seating, scratch);
            let prices = self.prices(scratch);
            let mut changes = self.changes(&seating, scratch, &prices);
            changes.retain(|(_, c)| may(c));
            changes.sort_by(|a, b| b.0.total_cmp(&a.0));
            if let Some(next) = self.batch(&seating, &worth, &changes, scratch, until) {
                (seating, worth) = next;
                continue;
            }
            let mut best: Option<(Seating, Worth)> = None;
            for (tried, (_, change)) in changes.iter().enumerate() {
                if scratch.spent() > until || (tried >= FEW && best.is_some()) {
                    break;
                }
                let mut next = seating.clone();
                self.apply(&mut next, change);
                let value = self.value(&next, scratch);
                let least = worth.net + self.least_gain(change, worth.rate);
                if value.net > best.as_ref().map_or(least, |b| b.1.net) {
                    best = Some((next, value));
                }
            }
            match best {
                Some((next, value)) => (seating, worth) = (next, value),
                None => break,
            }
        }
        self.prune(&mut seating, &mut worth, scratch, until);
        (seating, worth)
    }

    /// Many changes at once, the most promising of each team; fewer if they interfere with each
    /// other.
    fn batch(
        &self,
        seating: &Seating,
        worth: &Worth,
        changes: &[(f64, Change)],
        scratch: &mut Scratch,
        until: u64,
    ) -> Option<(Seating, Worth)> {
        let mut taken = vec![false; self.teams.len()];
        let mut able: Vec<&Change> = Vec::new();
        for (promise, change) in changes {
            if let Change::Threads { team, .. } = change
                && *promise * self.settings.horizon_s > self.least_gain(change, 0.0)
                && !std::mem::replace(&mut taken[*team], true)
            {
                able.push(change);
            }
        }
        let mut count = able.len();
        while count >= BATCH && scratch.spent() < until {
            let mut next = seating.clone();
            able[..count].iter().for_each(|change| self.apply(&mut next, change));
            let value = self.value(&next, scratch);
            if value.net > worth.net + self.least_gain(able[0], worth.rate) {
                return Some((next, value));
            }
            count /= 2;
        }
        None
    }

    /// Takes back moves that turned out to be unnecessary: each move has a cost, and a person must
    /// understand it.
    fn prune(&self, seating: &mut Seating, worth: &mut Worth, scratch: &mut Scratch, until: u64) {
        let mut tries: Vec<Seating> = Vec::new();
        for (g, _) in seating.groups.iter().enumerate().filter(|(_, to)| to.is_some()) {
            let mut without = seating.clone();
            without.groups[g] = None;
            tries.push(without);
        }
        for (p, _) in seating.processes.iter().enumerate().filter(|(_, to)| to.is_some()) {
            let mut without = seating.clone();
            without.processes[p] = None;
            tries.push(without);
        }
        self.keep_best(seating, worth, scratch, tries);
        // Opposite moves of similar threads (one thread there, another one here) cancel.
        for t in 0..self.teams.len() {
            let home = self.teams[t].node;
            for seat in seating.seats[t].clone() {
                if (seat.node == home && seat.data.is_none()) || scratch.spent() > until {
                    continue;
                }
                let mut tries = Vec::new();
                for count in [seat.count, 1] {
                    let mut without = seating.clone();
                    let back = Change::Threads { team: t, from: seat, count, node: home, data: None };
                    if seating.processes[self.teams[t].process].is_some() {
                        continue;
                    }
                    self.apply(&mut without, &back);
                    tries.push(without.clone());
                    for other in (0..self.teams.len()).filter(|o| *o != t && self.teams[*o].node == seat.node) {
                        if let Some(there) = without.seats[other].iter().find(|s| s.node == home).copied() {
                            let mut both = without.clone();
                            let (node, count) = (self.teams[other].node, count.min(there.count));
                            let back = Change::Threads { team: other, from: there, count, node, data: None };
                            if both.processes[self.teams[other].process].is_none() {
                                self.apply(&mut both, &back);
                                tries.push(both);
                            }
                        }
                    }
                }
                self.keep_best(seating, worth, scratch, tries);
            }
        }
    }

    fn keep_best(&self, seating: &mut Seating, worth: &mut Worth, scratch: &mut Scratch, tries: Vec<Seating>) {
        for other in tries.into_iter().take(MOST_PRUNED) {
            let value = self.value(&other, scratch);
            if value.net >= worth.net {
                (*seating, *worth) = (other, value);
            }
        }
    }

    /// The least gain that a change must promise, in bytes over the horizon. Going back to the
    /// current placement needs none.
    fn least_gain(&self, change: &Change, all: f64) -> f64 {
        let of = |team: usize, count: usize| self.teams[team].rate * count as f64;
        let moved = match change {
            Change::Threads { team, node, data, .. } if *node == self.teams[*team].node && data.is_none() => 0.0,
            Change::Threads { team, count, .. } => of(*team, *count),
            Change::Process { process, .. } => {
                self.of_process[*process].iter().map(|t| of(*t, self.teams[*t].members.len())).sum()
            }
            Change::Group { .. } => 0.0,
            Change::Swap { a, b } => of(a.0, 1) + of(b.0, 1),
        };
        self.settings.horizon_s * (self.settings.min_move_gain * moved).max(EPSILON * all)
    }

    pub fn apply(&self, seating: &mut Seating, change: &Change) {
        let shift = |seating: &mut Seating, team: usize, from: &Seat, count: usize, node, data| {
            let at = seating.seats[team].iter().position(|s| s.node == from.node && s.data == from.data);
            if let Some(at) = at {
                let count = count.min(seating.seats[team][at].count);
                seating.shift(team, at, count, node, data);
            }
        };
        match change {
            Change::Threads { team, from, count, node, data } => shift(seating, *team, from, *count, *node, *data),
            Change::Process { process, node, memory } => {
                for team in self.of_process[*process].iter().copied() {
                    for from in seating.seats[team].clone() {
                        shift(seating, team, &from, from.count, *node, from.data);
                    }
                }
                seating.processes[*process] = memory.then_some(*node);
            }
            Change::Group { group, node, users } => {
                seating.groups[*group] = Some(*node);
                for team in self.of_group[*group].iter().copied().filter(|_| *users) {
                    if self.may_sit(team, *node) {
                        for from in seating.seats[team].clone() {
                            shift(seating, team, &from, from.count, *node, from.data);
                        }
                    }
                }
            }
            Change::Swap { a, b } => {
                shift(seating, a.0, &a.1, 1, b.1.node, a.1.data);
                shift(seating, b.0, &b.1, 1, a.1.node, b.1.data);
            }
        }
    }
}
