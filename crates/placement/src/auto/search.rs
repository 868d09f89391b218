//! From the seating that is to one that is worth more: a deterministic local search.
//!
//! **Problem.** Threads compete for CPUs and controllers, so each one's best place depends on all others': thread by thread
//! greedily ends in crowds. All placements of 10,000 threads on 8 nodes cannot be tried.
//!
//! **Approach.** From two starts, what is and everybody at home with their data, step by step: every possible change is priced with
//! what the last solution says about queues and CPUs (what it wins for those who move, what it does to the others); the
//! most promising are solved exactly; the best is taken. A change is some threads of a team, with or without their data; data to
//! its threads; a whole process, with or without its memory; a shared group, with or without its users; or two threads that swap.
//! It ends when no change is worth its cost, or the work allowed is used up.
//!
//! **Limits.** A local optimum of a model. With very many teams the allowance ends the search early; the next window goes on.

use smallvec::SmallVec;

use super::data::{Shares, add, main_node};
use super::seating::{Model, Prices, Scratch, Seat, Seating, Worth};

/// Work allowed per decision, in visits of a solver pass (some nanoseconds each): about 10 ms.
const ALLOWANCE: u64 = 1_500_000;
/// Promising changes that are solved before the best of them is taken; while none was good, all are.
const FEW: usize = 8;
/// Target nodes that are looked at for each team on large machines.
const MOST_TARGETS: usize = 8;
/// Seats that may swap, the largest.
const SWAPPERS: usize = 24;
/// Processes that are tried together on each node.
const MOST_TOGETHER: usize = 16;
/// Ways of taking back one move that are tried.
const MOST_PRUNED: usize = 12;
/// Steps of the search.
const MOST_STEPS: usize = 400;
/// What counts as better: this share of everything.
const EPSILON: f64 = 1e-5;

/// One possible change.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Threads of a team's seat to a node and their private data to a node.
    Threads { team: usize, from: Seat, count: usize, node: usize, data: Option<usize> },
    /// A whole process, with its memory or without.
    Process { process: usize, node: usize, memory: bool },
    /// A shared group's data, with the threads that use it or without.
    Group { group: usize, node: usize, users: bool },
    /// One thread of each of two seats change places.
    Swap { a: (usize, Seat), b: (usize, Seat) },
}

/// What the search found.
pub(super) struct Found {
    pub seating: Seating,
    pub worth: Worth,
    pub stays: Worth,
}

impl Model<'_> {
    /// The best seating that the search finds; `keep` forbids some changes.
    pub fn search(&self, scratch: &mut Scratch, may: &dyn Fn(&Change) -> bool) -> Found {
        let current = Seating::current(self.teams, self.demands);
        let stays = self.value(&current, scratch);
        let begun = scratch.steady.passes;
        let (seating, worth) = self.climb(current.clone(), scratch, may, begun + ALLOWANCE * 2 / 3);
        let mut found = Found { seating, worth, stays };
        for start in [self.at_home(&current, may), self.together(&current, scratch, may)].into_iter().flatten() {
            let until = scratch.steady.passes + ALLOWANCE / 3;
            let (seating, worth) = self.climb(start, scratch, may, until);
            if worth.net > found.worth.net + EPSILON * found.stays.rate * self.settings.horizon_s {
                (found.seating, found.worth) = (seating, worth);
            }
        }
        found
    }

    /// Every team where most of its data is. None where that is as it is.
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

    /// Every process on one node, the largest first, each on the best one for all that came before it.
    fn together(&self, current: &Seating, scratch: &mut Scratch, may: &dyn Fn(&Change) -> bool) -> Option<Seating> {
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
                if may(&change) {
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

    /// Fractions read by a team, by node.
    fn reads(&self, t: usize) -> Shares {
        let team = &self.teams[t];
        let mut reads = team.private.clone();
        for (g, read, _) in &team.shared {
            for (node, share) in &self.demands.groups.list[*g].places {
                add(&mut reads, *node, read * share);
            }
        }
        reads
    }

    fn may_sit(&self, team: usize, node: usize) -> bool {
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
            // Prices need the solution of this very seating.
            self.value(&seating, scratch);
            let prices = self.prices(scratch);
            let mut changes = self.changes(&seating, scratch, &prices);
            changes.retain(|(_, c)| may(c));
            changes.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut best: Option<(Seating, Worth)> = None;
            for (tried, (_, change)) in changes.iter().enumerate() {
                if scratch.steady.passes > until || (tried >= FEW && best.is_some()) {
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
        self.prune(&mut seating, &mut worth, scratch);
        (seating, worth)
    }

    /// Takes back what turned out not to be needed: every move costs something, and a person has to understand it.
    fn prune(&self, seating: &mut Seating, worth: &mut Worth, scratch: &mut Scratch) {
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
        // Alike moves in opposite directions (one thread there, another one here) cancel.
        for t in 0..self.teams.len() {
            let home = self.teams[t].node;
            for seat in seating.seats[t].clone() {
                if seat.node == home && seat.data.is_none() {
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

    /// What a change must win at least, in bytes over the horizon. Going back to where things are is always welcome.
    fn least_gain(&self, change: &Change, all: f64) -> f64 {
        let of = |team: usize, count: usize| self.teams[team].rate * count as f64;
        let moved = match change {
            Change::Threads { team, node, data, .. } if *node == self.teams[*team].node && data.is_none() => 0.0,
            Change::Threads { team, count, .. } => of(*team, *count),
            Change::Process { process, .. } => (0..self.teams.len())
                .filter(|t| self.teams[*t].process == *process)
                .map(|t| of(t, self.teams[t].members.len()))
                .sum(),
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
                for team in (0..self.teams.len()).filter(|t| self.teams[*t].process == *process) {
                    for from in seating.seats[team].clone() {
                        shift(seating, team, &from, from.count, *node, from.data);
                    }
                }
                seating.processes[*process] = memory.then_some(*node);
            }
            Change::Group { group, node, users } => {
                seating.groups[*group] = Some(*node);
                for team in (0..self.teams.len()).filter(|_| *users) {
                    let uses = self.teams[team].shared.iter().any(|s| s.0 == *group);
                    if uses && self.may_sit(team, *node) {
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

    /// Every change worth looking at, with what it promises in bytes/s.
    fn changes(&self, seating: &Seating, scratch: &Scratch, prices: &Prices) -> Vec<(f64, Change)> {
        let mut changes = Vec::new();
        let mut sitting: Vec<(usize, Seat, Gone)> = Vec::new();
        for (t, seats) in seating.seats.iter().enumerate() {
            for seat in seats {
                let gone = self.gone(t, seat, seating, scratch);
                self.thread_changes(t, seat, &gone, seating, scratch, prices, &mut changes);
                sitting.push((t, *seat, gone));
            }
        }
        self.swaps(&mut sitting, seating, scratch, prices, &mut changes);
        self.process_changes(seating, scratch, prices, &mut changes);
        self.group_changes(seating, scratch, prices, &mut changes);
        changes
    }

    fn gone(&self, t: usize, seat: &Seat, seating: &Seating, scratch: &Scratch) -> Gone {
        let (rate, wants, queued) = self.alone(t, seat, seating, scratch);
        Gone { rate, wants, queued }
    }

    /// What `count` threads promise when they go from one seat to another: what they win, and what others win and lose.
    #[allow(clippy::too_many_arguments, reason = "two seats and all prices")]
    fn promise(
        &self,
        t: usize,
        (from, gone): (&Seat, &Gone),
        to: &Seat,
        count: usize,
        seating: &Seating,
        scratch: &Scratch,
        prices: &Prices,
    ) -> f64 {
        let k = count as f64;
        let come = self.gone(t, to, seating, scratch);
        let mut promise = k * (come.rate - gone.rate);
        let queue = |g: &Gone| g.queued.iter().map(|(m, q)| prices.queue[*m] * q).sum::<f64>();
        promise += k * (queue(gone) - queue(&come));
        if from.node != to.node {
            promise += self.crowding(from.node, -k * gone.wants, scratch, prices);
            promise += self.crowding(to.node, k * come.wants, scratch, prices);
        }
        promise
    }

    /// What everybody on a node wins when it has `more` CPUs' worth of work more.
    fn crowding(&self, node: usize, more: f64, scratch: &Scratch, prices: &Prices) -> f64 {
        let (cpus, others) = scratch.network.cpus[node];
        if cpus <= 0.0 {
            return f64::NEG_INFINITY;
        }
        let stretch = |wanted: f64| ((wanted + others) / cpus).max(1.0);
        let wanted = scratch.steady.wanted(node);
        let (now, then) = (stretch(wanted), stretch((wanted + more).max(0.0)));
        prices.rate[node] * (now / then - 1.0)
    }

    /// Nodes that a team might go to.
    fn targets(&self, t: usize, scratch: &Scratch, prices: &Prices) -> SmallVec<[usize; MOST_TARGETS]> {
        let n = self.hardware.len();
        let allowed: Vec<usize> = (0..n).filter(|n| self.may_sit(t, *n)).collect();
        if allowed.len() <= MOST_TARGETS {
            return allowed.into();
        }
        // Where its data is, the nearest to that, and where most CPUs are free.
        let reads = self.reads(t);
        let near = |node: usize| -> f64 { reads.iter().map(|(m, share)| share * self.hardware.hops(node, *m)).sum() };
        let crowded = |node: usize| {
            let (cpus, others) = scratch.network.cpus[node];
            (scratch.steady.wanted(node) + others) / cpus.max(1.0)
        };
        let queue = |node: usize| prices.queue[node];
        let mut targets: SmallVec<[usize; MOST_TARGETS]> = SmallVec::new();
        let take = |key: &dyn Fn(usize) -> f64, most: usize, targets: &mut SmallVec<[usize; MOST_TARGETS]>| {
            let mut order = allowed.clone();
            order.sort_by(|a, b| key(*a).total_cmp(&key(*b)).then(a.cmp(b)));
            for node in order {
                if targets.len() < most && !targets.contains(&node) {
                    targets.push(node);
                }
            }
        };
        take(&|node| if node == self.teams[t].node { 0.0 } else { 1.0 }, 1, &mut targets);
        take(&near, 4, &mut targets);
        take(&|node| near(node) + 4.0 * crowded(node), 6, &mut targets);
        take(&crowded, 7, &mut targets);
        take(&queue, MOST_TARGETS, &mut targets);
        targets
    }

    #[allow(clippy::too_many_arguments, reason = "one seat and all prices")]
    fn thread_changes(
        &self,
        t: usize,
        seat: &Seat,
        gone: &Gone,
        seating: &Seating,
        scratch: &Scratch,
        prices: &Prices,
        changes: &mut Vec<(f64, Change)>,
    ) {
        let team = &self.teams[t];
        let moves_data = team.file_bytes > 0.0
            && self.file_copy_s(team.file_bytes) * self.settings.file_move_overhead <= self.settings.horizon_s;
        let mut counts: SmallVec<[usize; 4]> = SmallVec::new();
        for count in [seat.count, seat.count.div_ceil(2), seat.count.div_ceil(4), 1] {
            if !counts.contains(&count) {
                counts.push(count);
            }
        }
        let process_moved = seating.processes[team.process].is_some();
        for node in self.targets(t, scratch, prices) {
            let room = self.hardware.nodes[self.hardware.nodes[node].home].free;
            let with_data = moves_data && team.file_bytes <= room;
            let mut data: SmallVec<[Option<usize>; 3]> = SmallVec::from_slice(&[None]);
            if with_data {
                data.push(Some(self.hardware.nodes[node].home));
            }
            if seat.data.is_some() && !data.contains(&seat.data) {
                data.push(seat.data);
            }
            for data in data {
                let to = Seat { node, data, count: seat.count };
                if (node == seat.node && data == seat.data) || (process_moved && node != seat.node) {
                    continue;
                }
                for count in &counts {
                    let promise = self.promise(t, (seat, gone), &to, *count, seating, scratch, prices);
                    let change = Change::Threads { team: t, from: *seat, count: *count, node, data };
                    changes.push((promise, change));
                }
            }
        }
    }

    /// Two threads on different nodes that would each be better off, or do less harm, at the other's.
    fn swaps(
        &self,
        sitting: &mut [(usize, Seat, Gone)],
        seating: &Seating,
        scratch: &Scratch,
        prices: &Prices,
        changes: &mut Vec<(f64, Change)>,
    ) {
        // Where CPUs are free, one thread can go without another's coming.
        let full = |node: usize| scratch.steady.stretch[node] > 1.0 || self.crowding(node, 1.0, scratch, prices) < 0.0;
        sitting.sort_by(|a, b| {
            let rate = |s: &(usize, Seat, Gone)| s.2.rate * s.1.count as f64;
            rate(b).total_cmp(&rate(a)).then(a.0.cmp(&b.0))
        });
        let able: Vec<&(usize, Seat, Gone)> = (sitting.iter())
            .filter(|s| full(s.1.node) && !self.teams[s.0].held && seating.processes[self.teams[s.0].process].is_none())
            .take(SWAPPERS)
            .collect();
        for (i, a) in able.iter().enumerate() {
            for b in &able[i + 1..] {
                if a.1.node == b.1.node || !self.may_sit(a.0, b.1.node) || !self.may_sit(b.0, a.1.node) {
                    continue;
                }
                let one = |from: &(usize, Seat, Gone), node: usize| {
                    let to = Seat { node, ..from.1 };
                    let come = self.gone(from.0, &to, seating, scratch);
                    let queue = |g: &Gone| g.queued.iter().map(|(m, q)| prices.queue[*m] * q).sum::<f64>();
                    come.rate - from.2.rate + queue(&from.2) - queue(&come)
                };
                let promise = one(a, b.1.node) + one(b, a.1.node);
                if promise > 0.0 {
                    changes.push((promise, Change::Swap { a: (a.0, a.1), b: (b.0, b.1) }));
                }
            }
        }
    }

    fn process_changes(&self, seating: &Seating, scratch: &Scratch, prices: &Prices, changes: &mut Vec<(f64, Change)>) {
        for (process, program) in self.demands.programs.iter().enumerate() {
            let teams: Vec<usize> = (0..self.teams.len()).filter(|t| self.teams[*t].process == process).collect();
            let memory: f64 = program.memory.iter().map(|m| m.1).sum();
            for node in (0..self.hardware.len()).filter(|n| program.allowed[*n]) {
                let mut promise = 0.0;
                let mut elsewhere = false;
                for t in &teams {
                    for seat in &seating.seats[*t] {
                        let gone = self.gone(*t, seat, seating, scratch);
                        let to = Seat { node, ..*seat };
                        elsewhere |= node != seat.node;
                        promise += self.promise(*t, (seat, &gone), &to, seat.count, seating, scratch, prices);
                    }
                }
                let home = self.hardware.nodes[node].home;
                let away: f64 = program.memory.iter().filter(|m| m.0 != home).map(|m| m.1).sum();
                let stands_s = self.process_copy_s(process, node);
                if memory > 0.0
                    && seating.processes[process] != Some(node)
                    && away > 0.0
                    && away <= self.hardware.nodes[home].free
                    && stands_s < self.settings.horizon_s
                {
                    changes.push((promise, Change::Process { process, node, memory: true }));
                }
                if elsewhere && (teams.len() > 1 || seating.seats[teams[0]].len() > 1) {
                    changes.push((promise, Change::Process { process, node, memory: false }));
                }
            }
        }
    }

    fn group_changes(&self, seating: &Seating, scratch: &Scratch, prices: &Prices, changes: &mut Vec<(f64, Change)>) {
        for (g, group) in self.demands.groups.list.iter().enumerate() {
            let total: f64 = group.bytes.iter().map(|b| b.1).sum();
            if total <= 0.0 {
                continue;
            }
            // How hard the readers press on the controllers where it is now.
            let pressed: f64 = group.places.iter().map(|(m, share)| share * prices.queue[*m]).sum();
            for node in 0..self.hardware.len() {
                let away = self.group_bytes(g, node);
                let copy_s = self.file_copy_s(away) * self.settings.file_move_overhead;
                let home = self.hardware.nodes[node].home;
                if seating.groups[g] == Some(node)
                    || home != node
                    || away <= 0.0
                    || away > self.hardware.nodes[node].free
                    || copy_s > self.settings.horizon_s
                {
                    continue;
                }
                let mut promise = pressed - prices.queue[node];
                for (t, team) in self.teams.iter().enumerate() {
                    if let Some((_, read, _)) = team.shared.iter().find(|s| s.0 == g) {
                        for seat in &seating.seats[t] {
                            let (rate, _, _) = self.alone(t, seat, seating, scratch);
                            let now: f64 =
                                group.places.iter().map(|(m, s)| s * self.hardware.read_s(seat.node, *m)).sum();
                            let then = self.hardware.read_s(seat.node, node);
                            promise += seat.count as f64 * rate * rate * read * (now - then);
                        }
                    }
                }
                changes.push((promise, Change::Group { group: g, node, users: false }));
                if self.hardware.nodes[node].cpus > 0.0 {
                    changes.push((promise, Change::Group { group: g, node, users: true }));
                }
            }
        }
    }
}

/// A seat's thread by itself: what it gets, wants of a CPU, and queues at controllers.
struct Gone {
    rate: f64,
    wants: f64,
    queued: SmallVec<[(usize, f64); 2]>,
}
