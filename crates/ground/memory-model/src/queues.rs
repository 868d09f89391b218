//! The throughput of all threads together: the steady state of a closed queueing network.
//!
//! **Problem.** Threads that do one operation after the other share CPUs, memory controllers,
//! interconnect ports and locks. Others make an operation take longer, and a longer operation loads
//! the stations less often. A sum of demands shows neither when a station is full nor what that
//! costs.
//!
//! **Approach.** Approximate mean-value analysis (Bard 1979, Schweitzer 1979; first come first
//! served), for classes of similar threads. One operation of a thread of class *i* takes
//!
//! ```text
//! T_i = s_n (1 + o_n) (on_i + Σ_m v_im A_im) + L_i + off_i  on a CPU, waiting for its lock, asleep
//! A_im = z_m − S_im q_im             queue at station m, without the thread itself
//! z_m = Σ_j k_j S_jm q_jm            queue of station m, in local requests
//! q_jm = (R_jm + v_jm A_jm) / T_j    mean number of a class-j thread's requests at m
//! ```
//!
//! `v` is the work in seconds of an idle station with local requests, `S` the ratio of a request's
//! service time to that of a local one, `R ≥ v S` its time there without other requests. A station
//! of `m` modules is modelled as one that is `m` times as fast and whose requests alone take `m`
//! times as long: the queue spreads over all modules. Multiplying the definition of `z` out gives
//! `U_m = Σ_j k_j v_jm S_jm / T_j = 1 − Σ_j (k_j S_j / T_j) (R_j − v_j S_j q_j) / z_m ≤ 1`: no
//! station serves more than it can, whatever the load.
//!
//! CPUs: while a node's threads want more CPU time than it has, each gets the same share
//! (`s_n ≥ 1`), and time-slicing itself costs a share `o_n` of the work. A thread without a CPU
//! waits in no controller's queue. Locks are stations that are visited once, and who waits for one
//! sleeps. So does who waits for another process that makes its accesses.
//!
//! Newton steps for each station find the queues, starting from the last solution, because
//! neighbouring placements have similar ones.
//!
//! An operation is what the caller counts: a byte in the policy `auto`, one round of a program in
//! the simulator. [`Detail`] says what the policy leaves out.
//!
//! **Limits.** A steady state: bursts and the phases of two threads are averaged away. Waiting is
//! the same for a read and a write of equal work.

use std::ops::Range;

/// How exactly a network is solved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// For a policy, which tries thousands of placements in a window. A lock is held for a fixed
    /// time, time-slicing costs its whole share as soon as threads share CPUs, a memory is one
    /// module, and steps are Newton's: there are few passes.
    Coarse,
    /// For the simulator. A lock is held for longer while threads share CPUs and, if memory is
    /// visited under it, while that has a queue; so its queue is counted in seconds. Time-slicing
    /// costs the more the longer threads wait for a CPU. Steps that turn round become smaller.
    #[default]
    Fine,
}

/// Demand of one operation at one station.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visit {
    /// Station.
    pub station: usize,
    /// Work in seconds, as if local and alone (`v`).
    pub work: f64,
    /// Ratio of its service time to that of local work (`S`).
    pub service: f64,
    /// Seconds there without other requests (`R`), part of the class's `on_s`: `work × service`, or
    /// more where one of several modules serves the request. [`Detail::Coarse`] takes the former
    /// and does not read this.
    pub alone: f64,
}

/// The part of an operation that only one thread at a time can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lock {
    /// Its station.
    pub station: usize,
    /// Seconds it is held, without waiting for memory. Part of the class's `on_s`.
    pub hold_s: f64,
    /// Whether the memory is visited under the lock.
    pub media: bool,
}

/// Similar threads: same node, same operation, same places of data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// Number of threads (`k`).
    pub count: f64,
    /// Node index they run on.
    pub node: usize,
    /// CPU seconds of one operation, alone: software and memory, the lock's hold included.
    pub on_s: f64,
    /// Seconds asleep in one operation.
    pub off_s: f64,
    /// Seconds of memory that another process spends for it; then its waits for stations pass
    /// asleep, too. 0: its own accesses, part of `on_s`.
    pub away_s: f64,
    /// Its visits, in [`System::visits`].
    pub visits: Range<usize>,
    /// Its lock.
    pub lock: Option<Lock>,
}

/// A network to solve.
#[derive(Clone, Debug, Default)]
pub struct System {
    /// How exactly.
    pub detail: Detail,
    /// CPUs of each node, and how many of them threads of no class keep busy.
    pub cpus: Vec<(f64, f64)>,
    /// Number of stations: controllers, ports, locks.
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
    queue: Vec<f64>,
    stretch: Vec<f64>,
    rates: Vec<Rate>,
    /// `q` of every visit, and of every class's lock.
    queued: Vec<f64>,
    locked: Vec<f64>,
    next: Vec<f64>,
    slope: Vec<f64>,
    wanted: Vec<f64>,
    /// Course of the queues, and of the nodes' CPU shares.
    queue_steps: Vec<Steps>,
    stretch_steps: Vec<Steps>,
}

/// Newton steps are at most this many times a plain one.
const MAX_LEAP: f64 = 20.0;
/// Steps are at most this many times a Newton step.
const MAX_TRUST: f64 = 4.0;
/// Lower bound of an operation's time, which keeps rates finite.
const LEAST_S: f64 = 1e-15;

impl Detail {
    /// The relative change of a figure below which the network counts as solved, and the most
    /// passes. Locks and crowded CPUs that hang together creep to their solution: a few hundred
    /// passes.
    fn effort(self) -> (f64, usize) {
        match self {
            Self::Coarse => (1e-5, 60),
            Self::Fine => (1e-6, 2000),
        }
    }

    /// How many times as long work takes because threads take turns.
    fn slicing(self, system: &System, stretch: f64) -> f64 {
        match self {
            Self::Coarse if stretch > 1.0 => 1.0 + system.slicing,
            Self::Coarse => 1.0,
            Self::Fine => 1.0 + system.slicing * (stretch - 1.0).min(1.0),
        }
    }
}

impl Visit {
    /// The queue in front of a request, without its own thread's requests.
    fn ahead(&self, queue: &[f64], own: f64) -> f64 {
        (queue[self.station] - self.service * own).max(0.0)
    }
}

impl Lock {
    /// Its visit by a thread that waits so long for memory meanwhile.
    fn visit(&self, detail: Detail, waits: f64, slicing: f64) -> Visit {
        let media = if self.media { waits } else { 0.0 };
        let (work, service) = match detail {
            Detail::Coarse => (self.hold_s, 1.0),
            Detail::Fine => (1.0, (self.hold_s + media) * slicing),
        };
        Visit { station: self.station, work, service, alone: work * service }
    }
}

/// Seconds that an operation waits for other requests at all its stations.
fn waits(visits: &[Visit], queued: &[f64], queue: &[f64]) -> f64 {
    visits.iter().zip(queued).map(|(v, q)| v.work * v.ahead(queue, *q)).sum()
}

impl Solver {
    /// Solves the network and returns the number of passes.
    pub fn solve(&mut self, system: &System) -> usize {
        self.fit(system);
        let (tolerance, most) = system.detail.effort();
        (1..=most).find(|_| self.pass(system) < tolerance).unwrap_or(most)
    }

    /// Rates, per class of the system that was solved last.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// Slowdown of each node's threads because they share its CPUs, by node index.
    pub fn stretch(&self) -> &[f64] {
        &self.stretch
    }

    /// CPU time that the classes on a node would use with enough CPUs, in CPUs.
    pub fn wanted(&self, node: usize) -> f64 {
        self.wanted[node] * self.stretch[node]
    }

    /// Seconds of an operation of a class on a CPU, including waits at stations; and seconds
    /// waiting for its lock and for another process that makes its accesses.
    pub fn spent(&self, system: &System, class: usize) -> (f64, f64) {
        let (i, class) = (class, &system.classes[class]);
        let slicing = system.detail.slicing(system, self.stretch[class.node]);
        let waits = waits(&system.visits[class.visits.clone()], &self.queued[class.visits.clone()], &self.queue);
        let lock = class.lock.map(|l| l.visit(system.detail, waits, slicing));
        let lock_s = lock.map_or(0.0, |v| v.work * v.ahead(&self.queue, self.locked[i]));
        match class.away_s > 0.0 {
            true => (slicing * class.on_s, lock_s + class.away_s + waits),
            false => (slicing * (class.on_s + waits), lock_s),
        }
    }

    fn fit(&mut self, system: &System) {
        self.queue.resize(system.stations, 0.0);
        self.stretch.resize(system.cpus.len(), 1.0);
        for (sums, len) in [
            (&mut self.next, system.stations),
            (&mut self.slope, system.stations),
            (&mut self.wanted, system.cpus.len()),
        ] {
            sums.resize(len, 0.0);
        }
        for (steps, len) in [(&mut self.queue_steps, system.stations), (&mut self.stretch_steps, system.cpus.len())] {
            steps.resize(len, Steps::default());
            steps.iter_mut().for_each(|s| s.trust = 1.0);
        }
        let others = self.rates.len() != system.classes.len() || self.queued.len() != system.visits.len();
        // They follow from the queues. The classes of a policy's next placement are others.
        if others || system.detail == Detail::Coarse {
            self.rates.clear();
            self.rates.resize(system.classes.len(), Rate::default());
            for (own, len) in [(&mut self.locked, system.classes.len()), (&mut self.queued, system.visits.len())] {
                own.clear();
                own.resize(len, 0.0);
            }
        }
    }

    fn pass(&mut self, system: &System) -> f64 {
        let coarse = system.detail == Detail::Coarse;
        for sums in [&mut self.next, &mut self.slope, &mut self.wanted] {
            sums.fill(0.0);
        }
        let mut change: f64 = 0.0;
        for (i, class) in system.classes.iter().enumerate() {
            let stretch = self.stretch[class.node];
            let slicing = system.detail.slicing(system, stretch);
            let visits = &system.visits[class.visits.clone()];
            let queued = &mut self.queued[class.visits.clone()];
            let waits = waits(visits, queued, &self.queue);
            // A queue is part of the thread's time as often as it is stretched.
            let (on_waits, off_waits, stretched) =
                if class.away_s > 0.0 { (0.0, waits, 1.0) } else { (waits, 0.0, stretch * slicing) };
            let on = (class.on_s + on_waits) * slicing;
            let lock = class.lock.map(|l| l.visit(system.detail, waits, slicing));
            let lock_wait = lock.map_or(0.0, |v| v.work * v.ahead(&self.queue, self.locked[i]));
            // The order of the terms decides the last digit, and so that of recorded plans.
            let (early, late) = if coarse { (0.0, lock_wait) } else { (lock_wait, 0.0) };
            let cycle = on * stretch + early + class.off_s + class.away_s + off_waits + late;
            let ops = 1.0 / cycle.max(LEAST_S);
            let mut load = |v: &Visit, there_s: f64, stretched: f64| {
                let (queued, weight) = (there_s * ops, class.count * v.service);
                // By a policy's estimates a thread can be at a station for longer than in all.
                let part = if coarse { (stretched * queued).min(1.0) } else { stretched * queued };
                self.next[v.station] += weight * queued;
                self.slope[v.station] += weight * v.work * ops * (1.0 - part);
                queued
            };
            for (v, own) in visits.iter().zip(queued) {
                let ahead = v.ahead(&self.queue, *own);
                let there_s = if coarse { v.work * (v.service + ahead) } else { v.alone + v.work * ahead };
                *own = load(v, there_s, stretched);
            }
            if let Some(v) = lock {
                self.locked[i] = load(&v, v.alone + lock_wait, 1.0);
            }
            self.wanted[class.node] += class.count * on * ops;
            change = change.max((ops - self.rates[i].ops).abs() / ops);
            self.rates[i] = Rate { ops, on: on * ops, ready: on * (stretch - 1.0) * ops };
        }
        for (station, queue) in self.queue.iter_mut().enumerate() {
            let leap = (1.0 / (1.0 - self.slope[station]).max(1.0 / MAX_LEAP)).max(1.0);
            let gap = self.next[station] - *queue;
            let trust = if coarse { 1.0 } else { self.queue_steps[station].trust(gap) };
            let new = (*queue + gap * leap * trust).max(0.0);
            if coarse {
                change = change.max((new - *queue).abs() / (1.0 + new));
            }
            *queue = new;
        }
        for (node, (cpus, others)) in system.cpus.iter().enumerate() {
            let stretch = &mut self.stretch[node];
            // Others wait as well if there are too few CPUs: all get the same share.
            let aim = if *cpus > 0.0 { ((*stretch * self.wanted[node] + others) / cpus).max(1.0) } else { 1.0 };
            let pull = aim - *stretch;
            change = change.max(pull.abs() / if coarse { aim } else { *stretch });
            *stretch = match coarse {
                true => aim,
                false => (*stretch + pull * self.stretch_steps[node].trust(pull)).max(1.0),
            };
        }
        change
    }
}

/// How far to trust the next step of an iteration.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    last: f64,
    trust: f64,
}

impl Steps {
    /// The part of this step to take: less after a step too far; more, and then more than all of
    /// it, while steps go one way.
    fn trust(&mut self, step: f64) -> f64 {
        let turns = step * self.last < 0.0;
        self.last = step;
        self.trust = if turns { (self.trust * 0.5).clamp(0.02, 0.5) } else { (self.trust * 1.1).min(MAX_TRUST) };
        self.trust
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::figures::TIME_SLICING;

    const BOTH: [Detail; 2] = [Detail::Coarse, Detail::Fine];

    /// `n` threads that compute for `think` seconds and ask for `work` seconds of one station, on
    /// enough CPUs.
    fn one(detail: Detail, n: f64, think: f64, work: f64) -> System {
        System {
            detail,
            cpus: vec![(1e6, 0.0)],
            stations: 1,
            classes: vec![Class { count: n, on_s: think + work, visits: 0..1, ..Class::default() }],
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
        for (detail, near) in [(Detail::Coarse, 1e-6), (Detail::Fine, 1e-9)] {
            assert!((throughput(&one(detail, 1.0, 3.0, 1.0)) - 0.25).abs() < near, "{detail:?}");
        }
    }

    #[test]
    fn two_threads_wait_for_each_other() {
        // Balanced: think 1, work 1. R = 1 + Q/2, Q = 2R / (1 + R), so R² − R − 1 = 0, R = 1.618.
        assert!(BOTH.iter().all(|d| (throughput(&one(*d, 2.0, 1.0, 1.0)) - 2.0 / 2.618_034).abs() < 1e-4));
    }

    #[test]
    fn many_threads_fill_the_station_and_no_more() {
        for (detail, k) in BOTH.iter().flat_map(|d| [1.0, 2.0, 5.0, 50.0, 100.0, 5000.0].map(|k| (*d, k))) {
            let x = throughput(&one(detail, k, 2.0, 1.0));
            assert!(x <= 1.0 + 1e-6 && x <= k / 3.0 + 1e-9, "{detail:?}, {k} threads: {x}");
            assert!(k < 50.0 || x > 0.97, "{detail:?}, {k} threads: {x}");
        }
    }

    #[test]
    fn near_exact_mean_value_analysis_at_the_knee() {
        // Exact MVA of 4 threads, think 1.8, work 1.247 (by hand): X = 0.767. Schweitzer's: −6 %.
        let x = throughput(&one(Detail::Fine, 4.0, 1.8, 1.247));
        assert!((x - 0.767).abs() < 0.06, "{x}");
    }

    #[test]
    fn modules_side_by_side_serve_as_many_and_let_each_wait_longer() {
        // Four modules, each a fourth of the station: alone, a request takes one's time.
        let modules = |n: f64| {
            let mut system = one(Detail::Fine, n, 3.0, 1.0);
            (system.visits[0].alone, system.classes[0].on_s) = (4.0, 7.0);
            throughput(&system)
        };
        assert!((modules(1.0) - 1.0 / 7.0).abs() < 1e-9);
        let (few, many) = (modules(7.0), modules(100.0));
        assert!(few < throughput(&one(Detail::Fine, 7.0, 6.0, 1.0)), "{few}");
        assert!(many <= 1.0 && many > 0.95, "{many}");
    }

    #[test]
    fn too_many_threads_share_the_cpus_and_pay_for_slicing() {
        for detail in BOTH {
            let mut system = one(detail, 8.0, 1.0, 0.0);
            system.cpus = vec![(4.0, 0.0)];
            assert!((throughput(&system) - 4.0 / (1.0 + TIME_SLICING)).abs() < 1e-6, "{detail:?}");
        }
    }

    #[test]
    fn cpus_are_shared_with_threads_of_no_class() {
        for detail in BOTH {
            let mut system = one(detail, 6.0, 1.0, 0.0);
            (system.cpus, system.slicing) = (vec![(4.0, 2.0)], 0.0);
            let mut solver = Solver::default();
            solver.solve(&system);
            // 6 and 2 wanted, 4 there: half of each.
            assert!((solver.rates()[0].ops * 6.0 - 3.0).abs() < 1e-4, "{detail:?}");
            assert!((solver.wanted(0) - 6.0).abs() < 1e-3, "{detail:?}");
        }
    }

    #[test]
    fn a_lock_serves_one_at_a_time() {
        // 50 threads, 2 s of work of which half a second under the lock: two a second.
        for detail in BOTH {
            let mut system = one(detail, 50.0, 2.0, 0.0);
            system.stations = 2;
            system.classes[0].lock = Some(Lock { station: 1, hold_s: 0.5, media: false });
            let x = throughput(&system);
            assert!(x <= 2.0 + 1e-6 && x > 1.95, "{detail:?}: {x}");
        }
    }

    #[test]
    fn sleeping_threads_leave_the_cpu_to_others() {
        // Asleep, or while another process makes the accesses.
        for (detail, off_s) in BOTH.iter().flat_map(|d| [(*d, 1.0), (*d, 0.0)]) {
            let mut system = one(detail, 4.0, 1.0, 0.0);
            system.cpus = vec![(4.0, 0.0)];
            (system.classes[0].off_s, system.classes[0].away_s) = (off_s, 1.0 - off_s);
            let mut solver = Solver::default();
            solver.solve(&system);
            assert!((solver.rates()[0].ops - 0.5).abs() < 1e-6 && (solver.stretch()[0] - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn remote_requests_take_more_of_the_station() {
        for detail in BOTH {
            let mut system = one(detail, 50.0, 0.0, 1.0);
            (system.visits[0].service, system.visits[0].alone) = (2.0, 2.0);
            system.classes[0].on_s = 2.0;
            let x = throughput(&system);
            assert!(x <= 0.5 * (1.0 + detail.effort().0) && x > 0.48, "{detail:?}: {x}");
        }
    }

    prop_compose! {
        fn classes(nodes: usize, stations: usize)(
            count in 1u32..40, node in 0..nodes, think in 0.01f64..5.0, off_s in 0.0f64..2.0,
            visits in prop::collection::vec((0..stations, 0.001f64..1.0, 1.0f64..3.0, 1.0f64..6.0), 0..4),
            lock in prop::option::of((0.0f64..1.0, any::<bool>())),
        ) -> (Class, Vec<Visit>) {
            let visits: Vec<Visit> = visits
                .into_iter()
                .map(|(station, work, service, modules)| Visit { station, work, service, alone: work * service * modules })
                .collect();
            let media: f64 = visits.iter().map(|v| v.alone).sum();
            let hold = |share: f64, m: bool| share * think + if m { media } else { 0.0 };
            let lock = lock.map(|(share, media)| Lock { station: stations, hold_s: hold(share, media), media });
            (Class { count: count.into(), node, on_s: think + media, off_s, lock, ..Class::default() }, visits)
        }
    }

    fn system(parts: Vec<(Class, Vec<Visit>)>, cpus: Vec<f64>, stations: usize) -> System {
        let cpus = cpus.into_iter().map(|cpus| (cpus, 0.0)).collect();
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
            prop_assert!(passes < system.detail.effort().1);
            let mut used = [0.0; 4];
            let mut cpu = [0.0; 3];
            for (class, rate) in system.classes.iter().zip(solver.rates()) {
                prop_assert!(rate.ops.is_finite() && rate.ops > 0.0);
                cpu[class.node] += class.count * rate.on;
                for v in &system.visits[class.visits.clone()] {
                    used[v.station] += class.count * rate.ops * v.work * v.service;
                }
            }
            for u in used {
                prop_assert!(u <= 1.0 + 1e-5, "station at {}", u);
            }
            for (u, (c, _)) in cpu.iter().zip(&system.cpus) {
                prop_assert!(*u <= c * (1.0 + 1e-5), "{} of {} CPUs", u, c);
            }
        }

        #[test]
        fn closed_loop_law(parts in prop::collection::vec(classes(1, 2), 1..5)) {
            // Little: threads = throughput × cycle, so rate × (on + ready + asleep + lock) = 1.
            let mut system = system(parts, vec![8.0], 2);
            system.classes.iter_mut().for_each(|c| c.lock = None);
            let mut solver = Solver::default();
            solver.solve(&system);
            for (class, rate) in system.classes.iter().zip(solver.rates()) {
                prop_assert!((rate.on + rate.ready + class.off_s * rate.ops - 1.0).abs() < 1e-6);
            }
        }

        #[test]
        fn a_faster_station_never_hurts_its_only_class(n in 1u32..200, think in 0.0f64..5.0, work in 0.01f64..2.0, faster in 1.01f64..10.0) {
            let slow = throughput(&one(Detail::Fine, n.into(), think + 1e-3, work));
            let fast = throughput(&one(Detail::Fine, n.into(), think + 1e-3, work / faster));
            prop_assert!(fast >= slow * (1.0 - 1e-6), "{} then {}", slow, fast);
        }
    }
}
