//! The throughput of all threads together: the steady state of a closed queueing network.
//!
//! **Problem.** Threads that run file operations in a loop share CPUs, memory controllers, interconnect ports and locks. Other
//! threads make an operation take longer, and a longer operation loads the stations less often.
//!
//! **Approach.** Schweitzer's approximate mean-value analysis (closed network, first come first served), for classes of
//! identical threads. One operation of a thread of class *i* takes
//!
//! ```text
//! T_i = s_n (1 + o_n) (on_i + Σ_m v_im A_im) + L_i + off_i         on its CPU, waiting for its lock, asleep
//! A_im = z_m − S_im q_im             queue at station m, without the thread itself
//! z_m = Σ_j k_j S_jm q_jm            backlog of station m
//! q_jm = (R_jm + v_jm A_jm) / T_j    mean number of a class-j thread's requests at m
//! ```
//!
//! `v` is the work in seconds of an idle station with local requests, `S` the ratio of a request's service time to that of a local
//! one ([`Memory::load_at`](crate::machine::Memory::load_at)), `R ≥ v S` its time there without other requests. A station of `m`
//! modules is modelled as one that is `m` times as fast and whose requests alone take `m` times as long: the queue spreads over all
//! modules.
//! Multiplying the definition of `z` out gives `U_m = Σ_j k_j v_jm S_jm / T_j = 1 − Σ_j (k_j S_j / T_j) (R_j − v_j S_j q_j) / z_m ≤ 1`: no
//! station serves more than it can, whatever the load.
//!
//! CPUs: while a node's threads want more CPU time than it has, each gets the same share (`s_n ≥ 1`), and time-slicing itself costs
//! [`TIME_SLICING`](crate::calibration::TIME_SLICING) of the work. A thread without a CPU waits in no controller's queue. Locks are
//! stations that are visited once. Their hold time contains the wait for memory that is written under the lock, but no wait for a
//! CPU: the threads that would compete for it wait for the lock.
//!
//! Backlogs are found by a diagonal Newton iteration from the last solution: a handful of passes over the classes.
//!
//! **Limits.** A steady state: bursts and the phases of two threads are averaged away. Waiting is the same for a read and a write of
//! equal work.

use std::ops::Range;

/// Demand of one operation at one station.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visit {
    /// Station.
    pub station: u32,
    /// Work in seconds, as if local and alone (`v`).
    pub work: f64,
    /// Ratio of its service time to that of local work (`S`).
    pub service: f64,
    /// Seconds there without other requests (`R`): `work × service`, or more where one of several modules serves the request. Part of
    /// the class's `on_s`.
    pub alone: f64,
}

/// The part of an operation that only one thread at a time can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Serial {
    /// Station of the lock.
    pub lock: u32,
    /// Seconds it is held, without waiting for memory. Part of the class's `on_s`.
    pub hold_s: f64,
    /// Whether the memory is visited under the lock.
    pub media: bool,
}

/// Identical threads: same node, same operation, same places of data.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Number of threads (`k`).
    pub count: f64,
    /// Node index they run on.
    pub node: usize,
    /// CPU seconds of one operation, alone: software and unloaded memory time, the lock's hold included.
    pub on_s: f64,
    /// Seconds asleep in one operation.
    pub off_s: f64,
    /// Its visits.
    pub visits: Range<usize>,
    /// Its lock.
    pub serial: Option<Serial>,
}

/// A network to solve.
#[derive(Clone, Debug, Default)]
pub struct System {
    /// CPUs per node.
    pub cpus: Vec<f64>,
    /// Number of stations.
    pub stations: usize,
    /// Classes.
    pub classes: Vec<Class>,
    /// Visits of all classes.
    pub visits: Vec<Visit>,
    /// Share of the work that time-slicing adds where threads share CPUs.
    pub slicing: f64,
}

/// Throughput of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Operations per second of one thread (`1 / T`).
    pub ops: f64,
    /// Fraction of the time that a thread is on a CPU.
    pub on: f64,
    /// Fraction of the time that a thread is ready and waits for a CPU.
    pub ready: f64,
}

/// The state of a network; kept from one solution to the next as a start.
#[derive(Clone, Debug, Default)]
pub struct Solver {
    backlog: Vec<f64>,
    stretch: Vec<f64>,
    rates: Vec<Rate>,
    /// `q` of every visit, and of every class's lock.
    queued: Vec<f64>,
    locked: Vec<f64>,
    next: Vec<f64>,
    /// Seconds at every station of the class at hand.
    residence: Vec<f64>,
    slope: Vec<f64>,
    wanted: Vec<f64>,
    /// Last step of every backlog, and how much of a Newton step is trusted: less where steps change direction.
    step: Vec<f64>,
    trust: Vec<f64>,
    /// The same for the CPU shares.
    pull: Vec<f64>,
    faith: Vec<f64>,
}

/// Relative change of a rate below which the network counts as solved.
const TOLERANCE: f64 = 1e-6;
/// Locks and crowded CPUs that hang together creep to their solution: a few hundred passes.
const MAX_PASSES: usize = 2000;
/// Steps are at most this many times a Newton step.
const MAX_CONFIDENCE: f64 = 4.0;
/// Newton steps are at most this many times a plain one.
const MAX_LEAP: f64 = 20.0;

impl Solver {
    /// Solves the network and returns the number of passes.
    pub fn solve(&mut self, system: &System) -> usize {
        self.fit(system);
        for pass in 1..=MAX_PASSES {
            let change = self.pass(system);
            if change < TOLERANCE {
                return pass;
            }
        }
        MAX_PASSES
    }

    /// Rates, per class of the system that was solved last.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// Slowdown of each node's threads because they share its CPUs, by node index.
    pub fn stretch(&self) -> &[f64] {
        &self.stretch
    }

    fn fit(&mut self, system: &System) {
        self.backlog.resize(system.stations, 0.0);
        self.next.resize(system.stations, 0.0);
        self.slope.resize(system.stations, 0.0);
        self.step.resize(system.stations, 0.0);
        self.trust.resize(system.stations, 1.0);
        self.trust.fill(1.0);
        self.pull.resize(system.cpus.len(), 0.0);
        self.faith.resize(system.cpus.len(), 1.0);
        self.faith.fill(1.0);
        self.stretch.resize(system.cpus.len(), 1.0);
        self.wanted.resize(system.cpus.len(), 0.0);
        if self.rates.len() != system.classes.len() || self.queued.len() != system.visits.len() {
            self.rates = vec![Rate::default(); system.classes.len()];
            self.locked = vec![0.0; system.classes.len()];
            self.queued = vec![0.0; system.visits.len()];
        }
    }

    fn pass(&mut self, system: &System) -> f64 {
        self.next.fill(0.0);
        self.slope.fill(0.0);
        self.wanted.fill(0.0);
        let mut change: f64 = 0.0;
        for (i, class) in system.classes.iter().enumerate() {
            let stretch = self.stretch[class.node];
            let slicing = 1.0 + system.slicing * (stretch - 1.0).min(1.0);
            let visits = &system.visits[class.visits.clone()];
            let queued = &mut self.queued[class.visits.clone()];
            let mut waits = 0.0;
            self.residence.clear();
            for (visit, queued) in visits.iter().zip(queued.iter()) {
                let wait = visit.work * ahead(self.backlog[visit.station as usize], visit.service * queued);
                waits += wait;
                self.residence.push(visit.alone + wait);
            }
            let on = (class.on_s + waits) * slicing;
            let (hold, lock_wait) = class.serial.map_or((0.0, 0.0), |serial| {
                let media = if serial.media { waits } else { 0.0 };
                let hold = (serial.hold_s + media) * slicing;
                (hold, ahead(self.backlog[serial.lock as usize], hold * self.locked[i]))
            });
            let cycle = on * stretch + lock_wait + class.off_s;
            let ops = 1.0 / cycle;
            for ((visit, queued), residence) in visits.iter().zip(queued).zip(&self.residence) {
                let station = visit.station as usize;
                *queued = residence * ops;
                let k = class.count * visit.service;
                self.next[station] += k * *queued;
                self.slope[station] += k * visit.work * ops * (1.0 - stretch * slicing * *queued);
            }
            if let Some(serial) = class.serial {
                let station = serial.lock as usize;
                self.locked[i] = (hold + lock_wait) * ops;
                self.next[station] += class.count * hold * self.locked[i];
                self.slope[station] += class.count * hold * ops * (1.0 - self.locked[i]);
            }
            self.wanted[class.node] += class.count * on * ops;
            let rate = &mut self.rates[i];
            change = change.max((ops - rate.ops).abs() / ops);
            *rate = Rate { ops, on: on * ops, ready: on * (stretch - 1.0) * ops };
        }
        for station in 0..self.backlog.len() {
            let leap = (1.0 / (1.0 - self.slope[station]).max(1.0 / MAX_LEAP)).max(1.0);
            let gap = self.next[station] - self.backlog[station];
            let trust = &mut self.trust[station];
            *trust = confidence(*trust, gap * self.step[station]);
            let step = gap * leap * *trust;
            self.step[station] = step;
            self.backlog[station] = (self.backlog[station] + step).max(0.0);
        }
        for node in 0..self.stretch.len() {
            let stretch = self.stretch[node];
            let cpus = system.cpus[node];
            let aim = if cpus > 0.0 { (stretch * self.wanted[node] / cpus).max(1.0) } else { 1.0 };
            let faith = &mut self.faith[node];
            let pull = aim - stretch;
            *faith = confidence(*faith, pull * self.pull[node]);
            self.pull[node] = pull;
            change = change.max(pull.abs() / stretch);
            self.stretch[node] = (stretch + pull * *faith).max(1.0);
        }
        change
    }
}

/// How much of the next step to take: less after a step too far, more, and then more than all of it, while steps go one way.
fn confidence(before: f64, turn: f64) -> f64 {
    if turn < 0.0 { (before * 0.5).clamp(0.02, 0.5) } else { (before * 1.1).min(MAX_CONFIDENCE) }
}

/// The queue in front of a request, without its own thread's requests.
fn ahead(backlog: f64, own: f64) -> f64 {
    (backlog - own).max(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calibration::TIME_SLICING;

    /// `n` threads that compute for `think` seconds and ask for `work` seconds of one station, on enough CPUs.
    fn one(n: f64, think: f64, work: f64) -> System {
        System {
            cpus: vec![1e6],
            stations: 1,
            classes: vec![Class { count: n, node: 0, on_s: think + work, off_s: 0.0, visits: 0..1, serial: None }],
            visits: vec![Visit { station: 0, work, service: 1.0, alone: work }],
            slicing: TIME_SLICING,
        }
    }

    fn throughput(system: &System) -> f64 {
        let mut solver = Solver::default();
        solver.solve(system);
        solver.rates().iter().zip(&system.classes).map(|(r, c)| r.ops * c.count).sum()
    }

    #[test]
    fn alone_an_operation_takes_its_own_time() {
        assert!((throughput(&one(1.0, 3.0, 1.0)) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn many_threads_fill_the_station_and_no_more() {
        let x = throughput(&one(100.0, 3.0, 1.0));
        assert!(x <= 1.0 && x > 0.98, "{x}");
    }

    #[test]
    fn near_exact_mean_value_analysis_at_the_knee() {
        // Exact MVA of 4 threads, think 1.8, work 1.247 (by hand): X = 0.767. Schweitzer's is 6 % below.
        let x = throughput(&one(4.0, 1.8, 1.247));
        assert!((x - 0.767).abs() < 0.06, "{x}");
    }

    #[test]
    fn modules_side_by_side_serve_as_many_and_let_each_wait_longer() {
        // Four modules, each a fourth of the station: alone a request takes as long as in one of them.
        let modules = |n: f64| {
            let mut system = one(n, 3.0, 1.0);
            (system.visits[0].alone, system.classes[0].on_s) = (4.0, 7.0);
            throughput(&system)
        };
        assert!((modules(1.0) - 1.0 / 7.0).abs() < 1e-9);
        let (few, many) = (modules(7.0), modules(100.0));
        assert!(few < throughput(&one(7.0, 6.0, 1.0)), "{few}");
        assert!(many <= 1.0 && many > 0.95, "{many}");
    }

    #[test]
    fn too_many_threads_share_the_cpus_and_pay_for_slicing() {
        let mut system = one(8.0, 1.0, 0.0);
        system.cpus = vec![4.0];
        assert!((throughput(&system) - 4.0 / (1.0 + TIME_SLICING)).abs() < 1e-6);
    }

    #[test]
    fn a_lock_serves_one_at_a_time() {
        let mut system = one(50.0, 2.0, 0.0);
        system.stations = 2;
        system.classes[0].serial = Some(Serial { lock: 1, hold_s: 0.5, media: false });
        let x = throughput(&system);
        assert!(x <= 2.0 && x > 1.95, "{x}");
    }

    #[test]
    fn remote_requests_take_more_of_the_station() {
        let mut system = one(50.0, 0.0, 1.0);
        (system.visits[0].service, system.visits[0].alone) = (2.0, 2.0);
        system.classes[0].on_s = 2.0;
        let x = throughput(&system);
        assert!(x <= 0.5 * (1.0 + TOLERANCE) && x > 0.48, "{x}");
    }

    prop_compose! {
        fn classes(nodes: usize, stations: u32)(
            count in 1u32..40, node in 0..nodes, think in 0.01f64..5.0, off_s in 0.0f64..2.0,
            visits in prop::collection::vec((0..stations, 0.001f64..1.0, 1.0f64..3.0, 1.0f64..6.0), 0..4),
            serial in prop::option::of((0.0f64..1.0, any::<bool>())),
        ) -> (Class, Vec<Visit>) {
            let visits: Vec<Visit> = visits
                .into_iter()
                .map(|(station, work, service, modules)| Visit { station, work, service, alone: work * service * modules })
                .collect();
            let media: f64 = visits.iter().map(|v| v.alone).sum();
            let hold = |share: f64, m: bool| share * think + if m { media } else { 0.0 };
            let serial = serial.map(|(share, media)| Serial { lock: stations, hold_s: hold(share, media), media });
            (Class { count: count.into(), node, on_s: think + media, off_s, visits: 0..0, serial }, visits)
        }
    }

    fn system(parts: Vec<(Class, Vec<Visit>)>, cpus: Vec<f64>, stations: usize) -> System {
        let mut system = System { cpus, stations, slicing: TIME_SLICING, ..System::default() };
        for (mut class, visits) in parts {
            class.visits = system.visits.len()..system.visits.len() + visits.len();
            system.visits.extend(visits);
            system.classes.push(class);
        }
        system
    }

    proptest! {
        #[test]
        fn no_station_and_no_cpu_serves_more_than_it_can(
            parts in prop::collection::vec(classes(3, 4), 1..8), cpus in prop::collection::vec(1.0f64..32.0, 3),
        ) {
            let system = system(parts, cpus, 5);
            let mut solver = Solver::default();
            let passes = solver.solve(&system);
            prop_assert!(passes < MAX_PASSES);
            let mut used = [0.0; 4];
            let mut cpu = [0.0; 3];
            for (class, rate) in system.classes.iter().zip(solver.rates()) {
                prop_assert!(rate.ops.is_finite() && rate.ops > 0.0);
                cpu[class.node] += class.count * rate.on;
                for v in &system.visits[class.visits.clone()] {
                    used[v.station as usize] += class.count * rate.ops * v.work * v.service;
                }
            }
            for u in used {
                prop_assert!(u <= 1.0 + 1e-5, "station at {}", u);
            }
            for (u, c) in cpu.iter().zip(&system.cpus) {
                prop_assert!(*u <= c * (1.0 + 1e-5), "{} of {} CPUs", u, c);
            }
        }

        #[test]
        fn closed_loop_law(parts in prop::collection::vec(classes(1, 2), 1..5)) {
            // Little: threads = throughput × cycle, so rate × (on + ready + asleep + lock) = 1. Without locks nothing else is left.
            let mut system = system(parts, vec![8.0], 2);
            system.classes.iter_mut().for_each(|c| c.serial = None);
            let mut solver = Solver::default();
            solver.solve(&system);
            for (class, rate) in system.classes.iter().zip(solver.rates()) {
                prop_assert!((rate.on + rate.ready + class.off_s * rate.ops - 1.0).abs() < 1e-6);
            }
        }

        #[test]
        fn a_faster_station_never_hurts_its_only_class(n in 1u32..200, think in 0.0f64..5.0, work in 0.01f64..2.0, faster in 1.01f64..10.0) {
            let slow = throughput(&one(n.into(), think + 1e-3, work));
            let fast = throughput(&one(n.into(), think + 1e-3, work / faster));
            prop_assert!(fast >= slow * (1.0 - 1e-6), "{} then {}", slow, fast);
        }
    }
}
