//! A hypothetical placement of everything that can move, and its value.
//!
//! **Problem.** Whether a thread, its process or its data should move depends on where everything
//! else is.
//!
//! **Approach.** A [`Seating`] gives the number of threads of each team per node and the node of
//! their data, the node of each shared group, and the node of each process's memory.
//! [`Model::value`] turns it into a [`System`] of classes and solves it, which yields bytes/s of
//! all threads.
//!
//! **Limits.** The model assumes that the load stays the same for the horizon. It does not foresee
//! that data which is rewritten follows its writers, nor what sharers of data save in a common
//! cache.

use memory_model::Shares;
use memory_model::queues::{Class, Detail, Lock, Solver, System};
use smallvec::SmallVec;

use super::Settings;
use super::demand::Demands;
use super::hardware::{Hardware, Visits};
use super::locks::{crossed, own_memory};
use super::team::Team;
use crate::Writes;

/// Some threads of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// The node they run on.
    pub node: usize,
    /// The node that their private data moves to; `None`: it stays.
    pub data: Option<usize>,
    pub count: usize,
}

/// The place of everything that can move.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seating {
    /// By team; the counts add up to its members.
    pub seats: Vec<SmallVec<[Seat; 2]>>,
    /// By group: the node that it moves to.
    pub groups: Vec<Option<usize>>,
    /// By process: the node that it moves to with its memory.
    pub processes: Vec<Option<usize>>,
}

impl Seating {
    /// The current placement.
    pub fn current(teams: &[Team], demands: &Demands) -> Self {
        let seat = |t: &Team| Seat { node: t.node, data: None, count: t.members.len() };
        Self {
            seats: teams.iter().map(|t| SmallVec::from_slice(&[seat(t)])).collect(),
            groups: vec![None; demands.groups.list.len()],
            processes: vec![None; demands.programs.len()],
        }
    }

    /// Moves `count` threads of a team's seat, or their data, or both.
    pub fn shift(&mut self, team: usize, seat: usize, count: usize, node: usize, data: Option<usize>) {
        let seats = &mut self.seats[team];
        seats[seat].count -= count;
        match seats.iter_mut().find(|s| s.node == node && s.data == data) {
            Some(same) => same.count += count,
            None => seats.push(Seat { node, data, count }),
        }
        seats.retain(|s| s.count > 0);
    }
}

/// The value of a seating.
#[derive(Clone, Debug, Default)]
pub(super) struct Worth {
    /// Bytes/s of all listed threads, less the loss of others.
    pub rate: f64,
    /// `rate × horizon`, less the cost of the moves, in bytes.
    pub net: f64,
}

/// The inputs that stay the same while placements are tried.
pub(super) struct Model<'a> {
    pub hardware: &'a Hardware,
    pub demands: &'a Demands,
    pub teams: &'a [Team],
    pub settings: &'a Settings,
    /// The teams of each process, and the teams that use each group.
    pub of_process: Vec<Vec<usize>>,
    pub of_group: Vec<Vec<usize>>,
    /// Listed bytes/s per thread that is busy now: the value of a CPU second of others.
    pub cpu_worth: f64,
}

/// Reusable buffers of a [`Model`].
#[derive(Default)]
pub(super) struct Scratch {
    pub system: System,
    pub solver: Solver,
    spent: u64,
    /// Sharing threads by process and node.
    sharers: Vec<Vec<f64>>,
}

impl Scratch {
    /// Work done so far, in visits of a solver pass.
    pub fn spent(&self) -> u64 {
        self.spent
    }
}

/// How many times the model is fitted to the window it was made from. Chosen, not derived: a
/// fixed number bounds the work.
const FITTED: usize = 4;
/// The least share of CPU time per byte that is software, so that no rate is infinite. Chosen, not
/// derived.
pub(super) const LEAST_SOFTWARE: f64 = 0.02;

/// Makes the model of the current placement yield the observed rates. The unexplained time becomes
/// software or sleep.
pub(super) fn fit(
    hardware: &Hardware,
    demands: &Demands,
    teams: &mut [Team],
    settings: &Settings,
    scratch: &mut Scratch,
) {
    let current = Seating::current(teams, demands);
    // Nothing has been rewritten yet.
    let now = Settings { horizon_s: 0.0, ..settings.clone() };
    for _ in 0..FITTED {
        let model = Model::new(hardware, demands, teams, &now, 0.0);
        model.value(&current, scratch);
        for (t, team) in teams.iter_mut().enumerate() {
            let (on_s, waiting_s) = scratch.solver.spent(&scratch.system, t);
            team.soft_s = (team.soft_s + team.seen_on_s - on_s).max(LEAST_SOFTWARE * team.seen_on_s);
            team.off_s = (team.seen_off_s - waiting_s).max(0.0);
        }
    }
}

impl<'a> Model<'a> {
    pub fn new(
        hardware: &'a Hardware,
        demands: &'a Demands,
        teams: &'a [Team],
        settings: &'a Settings,
        busy: f64,
    ) -> Self {
        let rate: f64 = teams.iter().map(|t| t.rate * t.members.len() as f64).sum();
        let mut of_process = vec![Vec::new(); demands.programs.len()];
        let mut of_group = vec![Vec::new(); demands.groups.list.len()];
        for (t, team) in teams.iter().enumerate() {
            of_process[team.process].push(t);
            team.shared.iter().for_each(|s| of_group[s.0].push(t));
        }
        Self {
            of_process,
            of_group,
            hardware,
            demands,
            teams,
            settings,
            cpu_worth: if busy > 0.0 { rate / busy } else { 0.0 },
        }
    }

    /// The value of this seating. The solution stays in `scratch`, with classes in the order of
    /// teams and their seats.
    pub fn value(&self, seating: &Seating, scratch: &mut Scratch) -> Worth {
        self.build(seating, scratch);
        let Scratch { system, solver, spent, .. } = scratch;
        let passes = solver.solve(system);
        *spent += (passes * (1 + system.classes.len() + system.visits.len())) as u64;
        let mut rate: f64 = system.classes.iter().zip(solver.rates()).map(|(c, r)| c.count * r.ops).sum();
        for (node, stretch) in self.hardware.nodes.iter().zip(solver.stretch()) {
            rate -= self.cpu_worth * node.others * (1.0 - 1.0 / stretch);
        }
        let cost = self.cost(seating);
        Worth { rate, net: rate * self.settings.horizon_s - cost }
    }

    fn build(&self, seating: &Seating, scratch: &mut Scratch) {
        let Scratch { system, sharers, .. } = scratch;
        system.detail = Detail::Coarse;
        system.stations = self.hardware.stations() + self.demands.programs.len();
        self.sharers(seating, sharers);
        system.cpus.clear();
        system.cpus.extend(self.hardware.nodes.iter().map(|n| (n.cpus, n.others)));
        system.slicing = self.settings.time_slicing;
        system.classes.clear();
        system.visits.clear();
        let mut visits = Visits::default();
        for (t, team) in self.teams.iter().enumerate() {
            for seat in &seating.seats[t] {
                let lock = self.lock(team, seat.node, sharers);
                let (software_s, memory_s) = self.demand(team, seat, seating, &mut visits);
                let (own_s, away_s) = if team.served { (0.0, memory_s) } else { (memory_s, 0.0) };
                let on_s = software_s + own_s + lock.map_or(0.0, |l| l.hold_s);
                let first = system.visits.len();
                system.visits.extend(visits.drain(..));
                let (count, visits) = (seat.count as f64, first..system.visits.len());
                system.classes.push(Class { count, node: seat.node, on_s, off_s: team.off_s, away_s, visits, lock });
            }
        }
    }

    fn sharers(&self, seating: &Seating, sharers: &mut Vec<Vec<f64>>) {
        sharers.resize_with(self.demands.programs.len(), Vec::new);
        for crowd in sharers.iter_mut() {
            crowd.clear();
            crowd.resize(self.hardware.len(), 0.0);
        }
        for (team, seats) in self.teams.iter().zip(&seating.seats).filter(|(t, _)| t.shares) {
            for seat in seats {
                sharers[team.process][seat.node] += seat.count as f64;
            }
        }
    }

    /// The lock that a team's threads on a node take, if any.
    fn lock(&self, team: &Team, node: usize, sharers: &[Vec<f64>]) -> Option<Lock> {
        let lock_s = self.demands.programs[team.process].lock_s;
        (team.shares && lock_s > 0.0).then(|| Lock {
            station: self.hardware.stations() + team.process,
            hold_s: lock_s * crossed(self.hardware, self.settings, &sharers[team.process], node),
            media: false,
        })
    }

    /// The places of a group's data.
    pub fn places(&self, group: usize, seating: &Seating) -> Shares {
        let stays = || self.demands.groups.list[group].places.clone();
        seating.groups[group].map_or_else(stays, |node| Shares::from_slice(&[(node, 1.0)]))
    }

    /// Seconds of software and of memory per byte of a class, alone, and time per byte by station.
    fn demand(&self, team: &Team, seat: &Seat, seating: &Seating, visits: &mut Visits) -> (f64, f64) {
        let hardware = self.hardware;
        let program = &self.demands.programs[team.process];
        let here = hardware.nodes[seat.node].home;
        let (follow, in_place) = (program.writes == Some(Writes::Follow), program.writes == Some(Writes::InPlace));
        let mut memory_s = 0.0;
        let mut flow = |node: usize, read: f64, written: f64| {
            memory_s += read * hardware.read_s(seat.node, node) + written * hardware.write_s(seat.node, node);
            hardware.flow(visits, seat.node, node, read, written);
        };
        // The share of private data that is not rewritten by the end of the horizon: the lasting
        // state counts.
        let old = (-team.renewed * self.settings.horizon_s).exp();
        match seat.data {
            Some(node) => flow(node, old * team.private.iter().map(|p| p.1).sum::<f64>(), 0.0),
            None => team.private.iter().for_each(|(node, share)| flow(*node, old * share, 0.0)),
        }
        if old < 1.0 {
            let new = (1.0 - old) * team.private.iter().map(|p| p.1).sum::<f64>();
            let all: f64 = team.wrote.iter().map(|w| w.1).sum();
            match follow {
                true => flow(here, new, 0.0),
                false => team.wrote.iter().for_each(|(node, share)| flow(*node, new * share / all, 0.0)),
            }
        }
        for (g, read, written) in &team.shared {
            let places = self.places(*g, seating);
            places.iter().for_each(|(node, share)| flow(*node, read * share, 0.0));
            let lands = if in_place { &places } else { &self.demands.groups.list[*g].places };
            match follow {
                true => flow(here, 0.0, *written),
                false => lands.iter().for_each(|(node, share)| flow(*node, 0.0, written * share)),
            }
        }
        match seat.data.filter(|_| in_place) {
            _ if follow => flow(here, 0.0, team.writes),
            Some(node) => flow(node, 0.0, team.writes),
            None => team.wrote.iter().for_each(|(node, share)| flow(*node, 0.0, *share)),
        }
        let far = match seating.processes[team.process] {
            Some(node) => {
                let home = hardware.nodes[node].home;
                hardware.hops(seat.node, home) * hardware.nodes[home].read_hop
            }
            None => own_memory(hardware, program, seat.node),
        };
        (team.soft_s * (1.0 + self.settings.own_memory * far), memory_s)
    }

    /// Seconds per byte of one thread of a team, alone: software and memory.
    pub fn alone_s(&self, team: usize, seat: &Seat, seating: &Seating) -> f64 {
        let (software_s, memory_s) = self.demand(&self.teams[team], seat, seating, &mut Visits::default());
        software_s + memory_s
    }

    /// Remote reads / all reads, of all teams, at the rates of the solution in `scratch`.
    pub fn remote_share(&self, seating: &Seating, scratch: &Scratch) -> f64 {
        let (mut all, mut remote) = (0.0, 0.0);
        let mut classes = scratch.system.classes.iter().zip(scratch.solver.rates());
        for (team, seats) in self.teams.iter().zip(&seating.seats) {
            for seat in seats {
                let Some((class, rate)) = classes.next() else { return 0.0 };
                let weight = class.count * rate.ops;
                let mut read = |node: usize, share: f64| {
                    all += weight * share;
                    remote += if node == seat.node { 0.0 } else { weight * share };
                };
                match seat.data {
                    Some(node) => read(node, team.private.iter().map(|p| p.1).sum()),
                    None => team.private.iter().for_each(|(node, share)| read(*node, *share)),
                }
                for (g, share, _) in &team.shared {
                    self.places(*g, seating).iter().for_each(|(node, place)| read(*node, share * place));
                }
            }
        }
        if all > 0.0 { remote / all } else { 0.0 }
    }
}
