//! The possible changes of a seating, and what each promises by the prices of the last solution.
//!
//! **Problem.** Solving the network for every possible change of 10,000 threads takes minutes.
//!
//! **Approach.** A change is priced without solving: what the moving threads would get at the
//! current queues and crowds, and what their coming and going does to the others by the
//! [prices](Model::prices) of queues and CPUs. On large machines, only the seats that lose most to
//! their place are considered; for each, the nodes nearest to its data and the emptiest nodes.
//!
//! **Limits.** Prices are slopes, so the promise for many threads at once is too high. The
//! [search](super::search) solves the changes it considers.

use smallvec::SmallVec;

use super::search::Change;
use super::seating::{Model, Prices, Scratch, Seat, Seating};

/// Largest number of seats, and of processes, considered in one step: those that lose most to their
/// place.
const MOST_SEATS: usize = 512;
/// See [`MOST_SEATS`].
const MOST_PROCESSES: usize = 64;
/// Largest number of target nodes per team on large machines.
const MOST_TARGETS: usize = 8;
/// Number of seats considered for swaps, the largest.
const SWAPPERS: usize = 24;

impl Model<'_> {
    /// All changes worth considering, with what each promises in bytes/s.
    pub fn changes(&self, seating: &Seating, scratch: &Scratch, prices: &Prices) -> Vec<(f64, Change)> {
        let mut changes = Vec::new();
        let mut sitting: Vec<(usize, Seat, Gone)> = Vec::new();
        for (t, seat) in self.worst_off(seating, scratch) {
            let gone = self.gone(t, &seat, seating, scratch);
            self.thread_changes(t, &seat, &gone, seating, scratch, prices, &mut changes);
            sitting.push((t, seat, gone));
        }
        self.swaps(&mut sitting, seating, scratch, prices, &mut changes);
        self.process_changes(seating, scratch, prices, &mut changes);
        self.group_changes(seating, scratch, prices, &mut changes);
        changes
    }

    /// The seats that lose most to distance, queues and crowds, in the order of teams; all seats if
    /// there are few.
    fn worst_off(&self, seating: &Seating, scratch: &Scratch) -> Vec<(usize, Seat)> {
        let seats = seating.seats.iter().enumerate().flat_map(|(t, seats)| seats.iter().map(move |s| (t, *s)));
        let mut all: Vec<(f64, usize, Seat)> = (seats.zip(&scratch.steady.rate))
            .map(|((t, seat), rate)| {
                let ideal = 1.0 / (self.teams[t].soft_s + self.teams[t].off_s).max(f64::MIN_POSITIVE);
                (seat.count as f64 * (ideal - rate), t, seat)
            })
            .collect();
        if all.len() > MOST_SEATS {
            all.retain(|s| !self.teams[s.1].held);
            all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            all.truncate(MOST_SEATS);
            all.sort_by_key(|s| (s.1, s.2.node, s.2.data));
        }
        all.into_iter().map(|s| (s.1, s.2)).collect()
    }

    fn gone(&self, t: usize, seat: &Seat, seating: &Seating, scratch: &Scratch) -> Gone {
        let (rate, wants, queued) = self.alone(t, seat, seating, scratch);
        Gone { rate, wants, queued }
    }

    /// The promise of moving `count` threads from one seat to another: their own gain, plus the
    /// gain and loss of others.
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
        promise += k * (gone.queue(prices) - come.queue(prices));
        if from.node != to.node {
            promise += self.crowding(from.node, -k * gone.wants, scratch, prices);
            promise += self.crowding(to.node, k * come.wants, scratch, prices);
        }
        promise
    }

    /// The gain of all threads on a node when `more` CPUs' worth of work is added to it.
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

    /// The nodes that a team might move to.
    fn targets(&self, t: usize, scratch: &Scratch, prices: &Prices) -> SmallVec<[usize; MOST_TARGETS]> {
        let n = self.hardware.len();
        let allowed: Vec<usize> = (0..n).filter(|n| self.may_sit(t, *n)).collect();
        if allowed.len() <= MOST_TARGETS {
            return allowed.into();
        }
        // The node of its data, the nodes nearest to that, and the nodes with most free CPUs.
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
        let moves_data = team.file_bytes > 0.0 && self.file_copy_s(team.file_bytes) <= self.settings.horizon_s;
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

    /// Swaps of two threads on different nodes where each would do better, or less harm, on the
    /// other's node.
    fn swaps(
        &self,
        sitting: &mut [(usize, Seat, Gone)],
        seating: &Seating,
        scratch: &Scratch,
        prices: &Prices,
        changes: &mut Vec<(f64, Change)>,
    ) {
        // Where CPUs are free, a thread can come without another's leaving.
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
                    come.rate - from.2.rate + from.2.queue(prices) - come.queue(prices)
                };
                let promise = one(a, b.1.node) + one(b, a.1.node);
                if promise > 0.0 {
                    changes.push((promise, Change::Swap { a: (a.0, a.1), b: (b.0, b.1) }));
                }
            }
        }
    }

    fn process_changes(&self, seating: &Seating, scratch: &Scratch, prices: &Prices, changes: &mut Vec<(f64, Change)>) {
        let mut order: Vec<usize> = (0..self.demands.programs.len()).collect();
        if order.len() > MOST_PROCESSES {
            let rate = |p: &usize| -> f64 {
                self.of_process[*p].iter().map(|t| self.teams[*t].rate * self.teams[*t].members.len() as f64).sum()
            };
            let rates: Vec<f64> = order.iter().map(rate).collect();
            order.sort_by(|a, b| rates[*b].total_cmp(&rates[*a]).then(a.cmp(b)));
            order.truncate(MOST_PROCESSES);
        }
        for (process, program) in order.into_iter().map(|p| (p, &self.demands.programs[p])) {
            let teams = &self.of_process[process];
            let Some(first) = teams.first() else { continue };
            let targets = self.targets(*first, scratch, prices);
            let memory: f64 = program.memory.iter().map(|m| m.1).sum();
            for node in targets.into_iter().filter(|n| program.allowed[*n]) {
                let mut promise = 0.0;
                let mut elsewhere = false;
                for t in teams {
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
            // The pressure of the readers on the controllers where the group is now.
            let pressed: f64 = group.places.iter().map(|(m, share)| share * prices.queue[*m]).sum();
            let mut users: Vec<(usize, f64)> = Vec::new();
            for t in &self.of_group[g] {
                let read = self.teams[*t].shared.iter().find(|s| s.0 == g).map_or(0.0, |s| s.1);
                for seat in &seating.seats[*t] {
                    let (rate, _, _) = self.alone(*t, seat, seating, scratch);
                    users.push((seat.node, seat.count as f64 * rate * rate * read));
                }
            }
            for node in 0..self.hardware.len() {
                let away = self.group_bytes(g, node);
                let home = self.hardware.nodes[node].home;
                if seating.groups[g] == Some(node)
                    || home != node
                    || away <= 0.0
                    || away > self.hardware.nodes[node].free
                    || self.file_copy_s(away) > self.settings.horizon_s
                {
                    continue;
                }
                let mut promise = pressed - prices.queue[node];
                for (at, weight) in &users {
                    let now: f64 = group.places.iter().map(|(m, s)| s * self.hardware.read_s(*at, *m)).sum();
                    promise += weight * (now - self.hardware.read_s(*at, node));
                }
                changes.push((promise, Change::Group { group: g, node, users: false }));
                if self.hardware.nodes[node].cpus > 0.0 {
                    changes.push((promise, Change::Group { group: g, node, users: true }));
                }
            }
        }
    }
}

/// One thread of a seat by itself: its throughput, its CPU demand, and its queueing at controllers.
struct Gone {
    rate: f64,
    wants: f64,
    queued: SmallVec<[(usize, f64); 2]>,
}

impl Gone {
    /// The cost of its queueing to the others.
    fn queue(&self, prices: &Prices) -> f64 {
        self.queued.iter().map(|(m, q)| prices.queue[*m] * q).sum()
    }
}
