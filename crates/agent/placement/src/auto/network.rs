//! The steady state of a closed queueing network: the throughput of all threads when all of them
//! run.
//!
//! **Problem.** Threads that do one file operation after the other wait for each other at memory
//! controllers and for CPUs, and a waiting thread makes fewer requests. A sum of demands shows
//! neither when a controller is full nor what that costs.
//!
//! **Approach.** Approximate mean-value analysis (Bard 1979, Schweitzer 1979) over cells of similar
//! threads, counted in seconds per byte. A byte of a thread in cell *i* on node *n* takes
//!
//! ```text
//! T_i = s_n × (on_i + Σ_m v_im × A_im) + h_i × A_i + off_i    CPU and memory, waiting at controller m, for a lock, asleep;
//!       where another process makes the accesses, memory and the waiting for it do not take s_n times as long
//! A_im = z_m − S_im × q_im                          the queue at m, without the thread's own requests
//! q_im = v_im × (S_im + A_im) / T_i                 the thread's own share of the queue
//! z_m = Σ_i k_i × S_im × q_im                       the queue at m, in local requests
//! s_n = 1 if the node has a CPU for every thread, otherwise the stretch at which its threads use exactly its CPUs
//! ```
//!
//! Here v is controller time per byte and S how much more of it a remote byte takes. A lock that is held for h is a station like a controller,
//! with S = 1, but a thread that waits for it sleeps. Newton steps for each controller find z,
//! starting from the last solution, because neighbouring placements have similar solutions.
//!
//! **Limits.** The solution is a mean: it averages bursts away.

use smallvec::SmallVec;

use super::hardware::Hardware;

/// The time of a byte of a thread at one station: a node's controller, or its port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Visit {
    pub station: usize,
    /// Seconds per byte if it were local.
    pub work: f64,
    /// The factor for the distance of the thread.
    pub service: f64,
}

/// The visits of one thread, one for each station.
pub(super) type Visits = SmallVec<[Visit; 8]>;

/// Adds the visits of the bytes that a thread on `at` reads and writes on `node`.
pub(super) fn flow(visits: &mut Visits, hardware: &Hardware, at: usize, node: usize, read: f64, written: f64) {
    let mut visit = |station: usize, work: f64, service: f64| match visits.iter_mut().find(|v| v.station == station) {
        _ if work <= 0.0 => {}
        Some(visit) => visit.work += work,
        None => visits.push(Visit { station, work, service }),
    };
    let n = &hardware.nodes[node];
    visit(node, read * n.read_work + written * n.write_work, hardware.service(at, node));
    let port = (read + written) * hardware.port_s(at, node);
    visit(hardware.len() + at, port, 1.0);
    visit(hardware.len() + node, port, 1.0);
}

/// Work that only one thread of a process can do at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lock {
    /// The lock's station; locks come after controllers and ports.
    pub station: usize,
    /// Seconds per byte that it is held; part of `on_s`.
    pub hold_s: f64,
}

/// Similar threads on one node with their data in the same places.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cell {
    pub threads: f64,
    pub node: usize,
    /// CPU seconds per byte, alone: software and memory.
    pub on_s: f64,
    /// Seconds asleep per byte.
    pub off_s: f64,
    /// Seconds of memory per byte that another process spends for it; then its waits for stations
    /// pass asleep, too. 0: its own accesses, part of `on_s`.
    pub away_s: f64,
    /// Its visits, as a range of [`Network::visits`].
    pub first: usize,
    pub last: usize,
    /// The lock it takes.
    pub lock: Option<Lock>,
}

/// A network to solve.
#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    /// CPUs of each node, and how many of them unlisted threads keep busy.
    pub cpus: Vec<(f64, f64)>,
    /// The number of stations: controllers, ports, locks.
    pub stations: usize,
    /// The cost of taking turns.
    pub time_slicing: f64,
    pub cells: Vec<Cell>,
    pub visits: Vec<Visit>,
}

/// The steady state.
#[derive(Clone, Debug, Default)]
pub(super) struct Steady {
    /// Bytes/s of one thread of each cell.
    pub rate: Vec<f64>,
    /// The thread's share of the queue for each visit, and of its lock for each cell.
    queued: Vec<f64>,
    locked: Vec<f64>,
    /// Queue of each controller, port and lock.
    pub queue: Vec<f64>,
    /// How many times as long CPU work takes on each node.
    pub stretch: Vec<f64>,
    wanted: Vec<f64>,
    next: Vec<f64>,
    slope: Vec<f64>,
    /// Passes made so far, which measure the work.
    pub passes: u64,
}

/// A solution is found when no figure changes by more than this share.
const TOLERANCE: f64 = 1e-5;
/// Largest number of passes of a solution.
const MOST_PASSES: usize = 60;
/// Upper bound of a Newton step, in plain steps.
const MOST_LEAP: f64 = 20.0;
/// Lower bound of the time per byte, which keeps rates finite.
const LEAST_S: f64 = 1e-15;

impl Steady {
    pub fn solve(&mut self, network: &Network) {
        self.queue.resize(network.stations, 0.0);
        self.stretch.resize(network.cpus.len(), 1.0);
        self.rate.resize(network.cells.len(), 0.0);
        // A cell's rate and queue shares are functions of the queues, so these need no initial
        // values.
        self.queued.clear();
        self.queued.resize(network.visits.len(), 0.0);
        self.locked.clear();
        self.locked.resize(network.cells.len(), 0.0);
        for pass in 0..MOST_PASSES {
            let change = self.pass(network);
            self.passes += (1 + network.cells.len() + network.visits.len()) as u64;
            if change < TOLERANCE && pass > 0 {
                break;
            }
        }
    }

    fn pass(&mut self, network: &Network) -> f64 {
        let nodes = network.cpus.len();
        for (sum, len) in
            [(&mut self.wanted, nodes), (&mut self.next, self.queue.len()), (&mut self.slope, self.queue.len())]
        {
            sum.clear();
            sum.resize(len, 0.0);
        }
        let mut change = 0.0f64;
        for (i, (cell, rate)) in network.cells.iter().zip(&mut self.rate).enumerate() {
            let stretch = self.stretch[cell.node];
            let slicing = if stretch > 1.0 { 1.0 + network.time_slicing } else { 1.0 };
            let visits = &network.visits[cell.first..cell.last];
            let queued = &mut self.queued[cell.first..cell.last];
            let waits: f64 = visits
                .iter()
                .zip(queued.iter())
                .map(|(v, q)| v.work * ahead(self.queue[v.station], v.service, *q))
                .sum();
            let (on_waits, off_waits) = if cell.away_s > 0.0 { (0.0, waits) } else { (waits, 0.0) };
            let on = slicing * (cell.on_s + on_waits);
            // A queue is part of the thread's time as often as it is stretched.
            let stretched = if cell.away_s > 0.0 { 1.0 } else { stretch * slicing };
            let locked = &mut self.locked[i];
            let lock_wait = cell.lock.map_or(0.0, |l| l.hold_s * ahead(self.queue[l.station], 1.0, *locked));
            let new = 1.0 / (stretch * on + cell.off_s + cell.away_s + off_waits + lock_wait).max(LEAST_S);
            change = change.max((new - *rate).abs() / new);
            *rate = new;
            for (v, q) in visits.iter().zip(queued.iter_mut()) {
                *q = v.work * (v.service + ahead(self.queue[v.station], v.service, *q)) * new;
                let weight = cell.threads * v.service;
                self.next[v.station] += weight * *q;
                self.slope[v.station] += weight * v.work * new * (1.0 - (stretched * *q).min(1.0));
            }
            if let Some(l) = cell.lock {
                *locked = ((l.hold_s + lock_wait) * new).min(1.0);
                self.next[l.station] += cell.threads * *locked;
                self.slope[l.station] += cell.threads * l.hold_s * new * (1.0 - *locked);
            }
            self.wanted[cell.node] += cell.threads * on * new;
        }
        for station in 0..self.queue.len() {
            let gap = self.next[station] - self.queue[station];
            let leap = (1.0 / (1.0 - self.slope[station]).max(1.0 / MOST_LEAP)).max(1.0);
            let new = (self.queue[station] + gap * leap).max(0.0);
            change = change.max((new - self.queue[station]).abs() / (1.0 + new));
            self.queue[station] = new;
        }
        for (m, (cpus, others)) in network.cpus.iter().enumerate() {
            // Unlisted threads wait as well if there are too few CPUs: all get the same share.
            let stretch = self.stretch[m];
            let new = if *cpus > 0.0 { ((self.wanted[m] * stretch + others) / cpus).max(1.0) } else { 1.0 };
            change = change.max((new - stretch).abs() / new);
            self.stretch[m] = new;
        }
        change
    }

    /// Seconds per byte of a cell on a CPU, including waits at stations; and seconds waiting for
    /// its lock and for another process that makes its accesses.
    pub fn spent(&self, network: &Network, i: usize) -> (f64, f64) {
        let cell = &network.cells[i];
        let slicing = if self.stretch[cell.node] > 1.0 { 1.0 + network.time_slicing } else { 1.0 };
        let visits = cell.first..cell.last;
        let waits: f64 = (network.visits[visits.clone()].iter().zip(&self.queued[visits]))
            .map(|(v, q)| v.work * ahead(self.queue[v.station], v.service, *q))
            .sum();
        let lock = cell.lock.map_or(0.0, |l| l.hold_s * ahead(self.queue[l.station], 1.0, self.locked[i]));
        match cell.away_s > 0.0 {
            true => (slicing * cell.on_s, lock + cell.away_s + waits),
            false => (slicing * (cell.on_s + waits), lock),
        }
    }

    /// CPU time that a node's cells would use with enough CPUs, in CPUs.
    pub fn wanted(&self, node: usize) -> f64 {
        self.wanted[node] * self.stretch[node]
    }
}

/// The queue before a thread's request, without the thread's own.
fn ahead(queue: f64, service: f64, own: f64) -> f64 {
    (queue - service * own).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `k` threads that need `on_s` of CPU per byte, of which `work` is the controller's, on one node.
    fn one(k: f64, on_s: f64, work: f64, cpus: f64) -> f64 {
        let network = Network {
            cpus: vec![(cpus, 0.0)],
            stations: 1,
            time_slicing: 0.0,
            cells: vec![Cell { threads: k, node: 0, on_s, off_s: 0.0, away_s: 0.0, first: 0, last: 1, lock: None }],
            visits: vec![Visit { station: 0, work, service: 1.0 }],
        };
        let mut steady = Steady::default();
        steady.solve(&network);
        steady.rate[0] * k
    }

    #[test]
    fn alone_a_byte_takes_its_own_time() {
        assert!((one(1.0, 4.0, 1.0, 1.0) - 0.25).abs() < 1e-6);
    }

    #[test]
    fn two_threads_wait_for_each_other() {
        // Balanced: think 1, work 1. R = 1 + Q/2, Q = 2R / (1 + R), so R² − R − 1 = 0, R = 1.618: X = 2 / 2.618.
        assert!((one(2.0, 2.0, 1.0, 2.0) - 2.0 / 2.618_034).abs() < 1e-4);
    }

    #[test]
    fn a_controller_serves_no_more_than_it_can() {
        for k in [1.0, 2.0, 5.0, 50.0, 5000.0] {
            let x = one(k, 3.0, 1.0, 1e6);
            assert!(x <= 1.0 + 1e-6 && x <= k / 3.0 + 1e-9, "{k} threads: {x}");
        }
        assert!(one(50.0, 3.0, 1.0, 1e6) > 0.97);
    }

    #[test]
    fn cpus_are_shared_with_unlisted_threads() {
        assert!((one(8.0, 1.0, 0.0, 4.0) - 4.0).abs() < 1e-4);
        let network = Network {
            cpus: vec![(4.0, 2.0)],
            stations: 1,
            time_slicing: 0.0,
            cells: vec![Cell {
                threads: 6.0,
                node: 0,
                on_s: 1.0,
                off_s: 0.0,
                away_s: 0.0,
                first: 0,
                last: 0,
                lock: None,
            }],
            visits: vec![],
        };
        let mut steady = Steady::default();
        steady.solve(&network);
        // 6 and 2 wanted, 4 there: half of each.
        assert!((steady.rate[0] * 6.0 - 3.0).abs() < 1e-4);
        assert!((steady.wanted(0) - 6.0).abs() < 1e-3);
    }

    #[test]
    fn a_lock_serves_one_at_a_time() {
        // 50 threads, 2 s of work of which half a second under the lock: two a second.
        let lock = Some(Lock { station: 1, hold_s: 0.5 });
        let network = Network {
            cpus: vec![(50.0, 0.0)],
            stations: 2,
            time_slicing: 0.0,
            cells: vec![Cell { threads: 50.0, node: 0, on_s: 2.0, off_s: 0.0, away_s: 0.0, first: 0, last: 0, lock }],
            visits: vec![],
        };
        let mut steady = Steady::default();
        steady.solve(&network);
        let x = steady.rate[0] * 50.0;
        assert!(x <= 2.0 + 1e-6 && x > 1.9, "{x}");
    }

    #[test]
    fn sleeping_threads_leave_the_cpu_to_others() {
        let cell = |off_s| Cell { threads: 4.0, node: 0, on_s: 1.0, off_s, away_s: 0.0, first: 0, last: 0, lock: None };
        let network =
            Network { cpus: vec![(4.0, 0.0)], stations: 1, time_slicing: 0.0, cells: vec![cell(1.0)], visits: vec![] };
        let mut steady = Steady::default();
        steady.solve(&network);
        assert!((steady.rate[0] - 0.5).abs() < 1e-6 && (steady.stretch[0] - 1.0).abs() < 1e-9);
    }
}
