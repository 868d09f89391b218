//! A hypothetical placement of everything that can move, and its value.
//!
//! **Problem.** Whether a thread, its process or its data should move depends on where everything
//! else is.
//!
//! **Approach.** A [`Assignment`] gives the number of threads of each class per node and the node
//! of their data, the node of each shared group, and the node of each process's memory.
//! [`Model::value`] turns it into a [`System`] of classes and solves it, which yields bytes/s of
//! all threads.
//!
//! **Limits.** The model assumes that the load stays the same for the horizon. It does not foresee
//! that data which is rewritten follows its writers, nor what sharers of data save in a common
//! cache.

use memory_model::queues::{Class, Lock, Solver, System};
use memory_model::{Shares, total};
use smallvec::SmallVec;

use super::Settings;
use super::class::ThreadClass;
use super::demand::{Demands, Use};
use super::hardware::{Hardware, Visits};
use super::locks::{LEAST_SOFTWARE, crossed, own_memory};
use crate::Writes;

/// Threads of one class on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub node: usize,
    /// The node that their private data moves to; `None`: it stays.
    pub data: Option<usize>,
    pub count: usize,
}

/// A place for everything that can move.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Assignment {
    /// By class; the counts add up to its members.
    pub threads: Vec<SmallVec<[Placed; 2]>>,
    /// By group: the node that it moves to.
    pub groups: Vec<Option<usize>>,
    /// By process: the node that it moves to with its memory.
    pub processes: Vec<Option<usize>>,
}

impl Assignment {
    pub fn current(classes: &[ThreadClass], demands: &Demands) -> Self {
        let here = |t: &ThreadClass| Placed { node: t.node, data: None, count: t.members.len() };
        Self {
            threads: classes.iter().map(|t| SmallVec::from_slice(&[here(t)])).collect(),
            groups: vec![None; demands.groups.list.len()],
            processes: vec![None; demands.processes.len()],
        }
    }

    /// Moves `count` of some threads of a class, or their data, or both.
    pub fn shift(&mut self, class: usize, at: usize, count: usize, node: usize, data: Option<usize>) {
        let placed = &mut self.threads[class];
        placed[at].count -= count;
        match placed.iter_mut().find(|s| s.node == node && s.data == data) {
            Some(same) => same.count += count,
            None => placed.push(Placed { node, data, count }),
        }
        placed.retain(|s| s.count > 0);
    }
}

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
    pub classes: &'a [ThreadClass],
    pub settings: &'a Settings,
    /// The classes of each process, and the classes that use each group.
    pub of_process: Vec<Vec<usize>>,
    pub of_group: Vec<Vec<usize>>,
    /// Listed bytes/s per thread that is busy now: the value of a CPU second of others.
    pub cpu_worth: f64,
}

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

/// Makes the model of the current placement yield the observed rates. The unexplained time becomes
/// software or sleep.
pub(super) fn fit(
    hardware: &Hardware,
    demands: &Demands,
    classes: &mut [ThreadClass],
    settings: &Settings,
    scratch: &mut Scratch,
) {
    let current = Assignment::current(classes, demands);
    // Nothing has been rewritten yet.
    let now = Settings { horizon_s: 0.0, ..settings.clone() };
    for _ in 0..FITTED {
        let model = Model::new(hardware, demands, classes, &now, 0.0);
        model.value(&current, scratch);
        for (t, class) in classes.iter_mut().enumerate() {
            let (on_s, waiting_s) = scratch.solver.spent(&scratch.system, t);
            let work = &mut class.work;
            work.soft_s = (work.soft_s + work.seen_on_s - on_s).max(LEAST_SOFTWARE * work.seen_on_s);
            work.off_s = (work.seen_off_s - waiting_s).max(0.0);
        }
    }
}

impl<'a> Model<'a> {
    pub fn new(
        hardware: &'a Hardware,
        demands: &'a Demands,
        classes: &'a [ThreadClass],
        settings: &'a Settings,
        busy: f64,
    ) -> Self {
        let rate: f64 = classes.iter().map(|t| t.work.rate * t.members.len() as f64).sum();
        let mut of_process = vec![Vec::new(); demands.processes.len()];
        let mut of_group = vec![Vec::new(); demands.groups.list.len()];
        for (t, class) in classes.iter().enumerate() {
            of_process[class.process].push(t);
            class.work.shared.iter().for_each(|s| of_group[s.group].push(t));
        }
        Self {
            of_process,
            of_group,
            hardware,
            demands,
            classes,
            settings,
            cpu_worth: if busy > 0.0 { rate / busy } else { 0.0 },
        }
    }

    /// The value of this assignment. The solution stays in `scratch`, with classes in the order of
    /// classes and of the nodes of their threads.
    pub fn value(&self, assignment: &Assignment, scratch: &mut Scratch) -> Worth {
        self.build(assignment, scratch);
        let Scratch { system, solver, spent, .. } = scratch;
        let passes = solver.solve(system);
        *spent += (passes * (1 + system.classes.len() + system.visits.len())) as u64;
        let mut rate: f64 = system.classes.iter().zip(solver.rates()).map(|(c, r)| c.count * r.ops).sum();
        for (node, stretch) in self.hardware.nodes.iter().zip(solver.stretch()) {
            rate -= self.cpu_worth * node.others * (1.0 - 1.0 / stretch);
        }
        let cost = self.cost(assignment);
        Worth { rate, net: rate * self.settings.horizon_s - cost }
    }

    fn build(&self, assignment: &Assignment, scratch: &mut Scratch) {
        let Scratch { system, sharers, .. } = scratch;
        system.stations = self.hardware.stations() + self.demands.processes.len();
        self.sharers(assignment, sharers);
        system.cpus.clear();
        system.cpus.extend(self.hardware.nodes.iter().map(|n| (n.cpus, n.others)));
        system.slicing = self.settings.time_slicing;
        system.classes.clear();
        system.visits.clear();
        let mut visits = Visits::default();
        for (t, class) in self.classes.iter().enumerate() {
            for placed in &assignment.threads[t] {
                let lock = self.lock(class, placed.node, sharers);
                let (software_s, memory_s) = self.demand(class, placed, assignment, &mut visits);
                let (own_s, away_s) = if class.work.served { (0.0, memory_s) } else { (memory_s, 0.0) };
                let on_s = software_s + own_s + lock.map_or(0.0, |l| l.hold_s);
                let first = system.visits.len();
                system.visits.extend(visits.drain(..));
                let (count, visits) = (placed.count as f64, first..system.visits.len());
                system.classes.push(Class {
                    count,
                    node: placed.node,
                    on_s,
                    off_s: class.work.off_s,
                    away_s,
                    visits,
                    lock,
                });
            }
        }
    }

    fn sharers(&self, assignment: &Assignment, sharers: &mut Vec<Vec<f64>>) {
        sharers.resize_with(self.demands.processes.len(), Vec::new);
        for crowd in sharers.iter_mut() {
            crowd.clear();
            crowd.resize(self.hardware.len(), 0.0);
        }
        for (class, threads) in self.classes.iter().zip(&assignment.threads).filter(|(t, _)| t.work.shares) {
            for placed in threads {
                sharers[class.process][placed.node] += placed.count as f64;
            }
        }
    }

    /// The lock that a class's threads on a node take, if any.
    fn lock(&self, class: &ThreadClass, node: usize, sharers: &[Vec<f64>]) -> Option<Lock> {
        let lock_s = self.demands.processes[class.process].lock_s;
        (class.work.shares && lock_s > 0.0).then(|| Lock {
            station: self.hardware.stations() + class.process,
            hold_s: lock_s * crossed(self.hardware, self.settings, &sharers[class.process], node),
        })
    }

    /// The places of a group's data.
    pub fn places(&self, group: usize, assignment: &Assignment) -> Shares {
        let stays = || self.demands.groups.list[group].places.clone();
        assignment.groups[group].map_or_else(stays, |node| Shares::from_slice(&[(node, 1.0)]))
    }

    /// Seconds of software and of memory per byte of a class, alone, and time per byte by station.
    fn demand(&self, class: &ThreadClass, placed: &Placed, assignment: &Assignment, visits: &mut Visits) -> (f64, f64) {
        let hardware = self.hardware;
        let (process, work) = (&self.demands.processes[class.process], &class.work);
        let here = hardware.nodes[placed.node].home;
        let (follow, in_place) = (process.writes == Some(Writes::Follow), process.writes == Some(Writes::InPlace));
        let mut memory_s = 0.0;
        let mut flow = |node: usize, read: f64, written: f64| {
            memory_s += read * hardware.read_s(placed.node, node) + written * hardware.write_s(placed.node, node);
            hardware.flow(visits, placed.node, node, read, written);
        };
        // The share of private data that is not rewritten by the end of the horizon: the lasting
        // state counts.
        let old = (-work.renewed * self.settings.horizon_s).exp();
        match placed.data {
            Some(node) => flow(node, old * total(&work.private), 0.0),
            None => work.private.iter().for_each(|(node, share)| flow(*node, old * share, 0.0)),
        }
        if old < 1.0 {
            let new = (1.0 - old) * total(&work.private);
            let all = total(&work.wrote);
            match follow {
                true => flow(here, new, 0.0),
                false => work.wrote.iter().for_each(|(node, share)| flow(*node, new * share / all, 0.0)),
            }
        }
        for Use { group, read, written } in &work.shared {
            let places = self.places(*group, assignment);
            places.iter().for_each(|(node, share)| flow(*node, read * share, 0.0));
            let lands = if in_place { &places } else { &self.demands.groups.list[*group].places };
            match follow {
                true => flow(here, 0.0, *written),
                false => lands.iter().for_each(|(node, share)| flow(*node, 0.0, written * share)),
            }
        }
        match placed.data.filter(|_| in_place) {
            _ if follow => flow(here, 0.0, work.writes),
            Some(node) => flow(node, 0.0, work.writes),
            None => work.wrote.iter().for_each(|(node, share)| flow(*node, 0.0, *share)),
        }
        let far = match assignment.processes[class.process] {
            Some(node) => {
                let home = hardware.nodes[node].home;
                hardware.hops(placed.node, home) * hardware.nodes[home].read_hop
            }
            None => own_memory(hardware, process, placed.node),
        };
        (work.soft_s * (1.0 + self.settings.own_memory * far), memory_s)
    }

    /// Seconds per byte of one thread of a class, alone: software and memory.
    pub fn alone_s(&self, class: usize, placed: &Placed, assignment: &Assignment) -> f64 {
        let (software_s, memory_s) = self.demand(&self.classes[class], placed, assignment, &mut Visits::default());
        software_s + memory_s
    }

    /// Remote reads / all reads, of all classes, at the rates of the solution in `scratch`.
    pub fn remote_share(&self, assignment: &Assignment, scratch: &Scratch) -> f64 {
        let (mut all, mut remote) = (0.0, 0.0);
        let mut solved = scratch.system.classes.iter().zip(scratch.solver.rates());
        for (class, threads) in self.classes.iter().zip(&assignment.threads) {
            for placed in threads {
                let Some((load, rate)) = solved.next() else { return 0.0 };
                let weight = load.count * rate.ops;
                let mut read = |node: usize, share: f64| {
                    all += weight * share;
                    remote += if node == placed.node { 0.0 } else { weight * share };
                };
                match placed.data {
                    Some(node) => read(node, total(&class.work.private)),
                    None => class.work.private.iter().for_each(|(node, share)| read(*node, *share)),
                }
                for s in &class.work.shared {
                    self.places(s.group, assignment).iter().for_each(|(node, place)| read(*node, s.read * place));
                }
            }
        }
        if all > 0.0 { remote / all } else { 0.0 }
    }
}
