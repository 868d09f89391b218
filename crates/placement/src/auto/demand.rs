//! What each thread asks of the machine, apart from where it is: seconds of software and of sleep per byte, and which data.
//!
//! **Problem.** A window shows what threads did at the placement they had. To predict another placement, what is the thread's own
//! must be told from what its place did to it.
//!
//! **Approach.** CPU time per byte is software + memory (by distance) + waiting at controllers. The waiting follows from the rates
//! observed, by the equations of [`network`](super::network) read backwards; memory from the constants, corrected per process
//! where its threads show by themselves what distance costs (local and remote threads that do the same); software is
//! the rest. Time asleep is what is neither on a CPU nor waiting for one.
//!
//! **Limits.** Where it is not known how long a thread waited for a CPU, all the time missing on a node whose CPUs are full is
//! taken for waiting.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Settings;
use super::data::{Groups, Shares, add};
use super::hardware::Hardware;
use super::history::History;
use crate::processes::sane;
use crate::{Snapshot, Thread};

/// One thread's demand. Fractions are of its file bytes, read and written.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// Index in the snapshot.
    pub thread: usize,
    /// Node it is on.
    pub node: usize,
    /// Index of its process.
    pub process: usize,
    /// Bytes/s as observed.
    pub rate: f64,
    /// CPU seconds per byte without memory.
    pub soft_s: f64,
    /// Seconds asleep per byte.
    pub off_s: f64,
    /// What its own latency is against the constants, and what distance adds to it: 1 is as in the settings.
    pub memory: f64,
    pub distance: f64,
    /// Reads of data that nobody else reads, by node.
    pub private: Shares,
    /// Files behind `private`, if all of it can move: (index in the snapshot's files, bytes).
    pub files: SmallVec<[(usize, f64); 1]>,
    /// Reads and writes of shared data: group, fraction read, fraction written.
    pub shared: SmallVec<[(usize, f64, f64); 2]>,
    /// Writes that are not in `shared`.
    pub writes: f64,
    /// Where they landed, by node.
    pub wrote: Shares,
    /// How much of its private data a thread writes anew each second (new blocks land where it runs).
    pub renewed: f64,
    /// Whether it shares data with others of its process, and so perhaps locks.
    pub shares: bool,
    /// Nodes it may run on, by index, as an index into [`Demands::allowed`].
    pub allowed: usize,
    /// Whether it must stay.
    pub held: bool,
}

/// One process.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub pid: u32,
    /// Resident bytes by node; empty where it is not known.
    pub memory: Shares,
    /// Whether what its threads write lands where they run (else: where the data is).
    pub writes_follow: bool,
    /// Whether its file system spreads what is written over nodes, wherever thread and data are.
    pub writes_spread: bool,
    /// Seconds per byte for which its sharing threads hold a lock, were they all on one node; 0 where none is seen.
    pub lock_s: f64,
    /// Nodes, by index, that all its threads may go to, those that do no file work included; none if one of them must stay.
    pub allowed: Vec<bool>,
    /// What distance costs its threads, against the constants, if they show it.
    pub measured: Option<f64>,
    /// Seconds for which it has been seen.
    pub age_s: f64,
}

/// All threads that count in one window.
#[derive(Clone, Debug, Default)]
pub(super) struct Demands {
    pub threads: Vec<Demand>,
    pub programs: Vec<Program>,
    pub groups: Groups,
    pub allowed: Vec<Vec<bool>>,
}

/// What was learned about a process in earlier windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Known {
    /// Correction of the memory constants.
    pub memory: Option<f64>,
    /// When it was first seen.
    pub since_s: Option<f64>,
    /// Seen writing to another node than the one its thread was on.
    pub writes_stay: bool,
    /// Seen writing to several nodes alike.
    pub writes_spread: bool,
}

/// Share of written bytes on other nodes above which writes do not follow the thread.
const ELSEWHERE: f64 = 0.1;
/// Writes of one thread of which no node gets more than this share are spread by the file system.
const ON_ONE: f64 = 0.7;
/// Threads that share data and sleep for this part of the time are taken to wait for a lock.
const BLOCKED: f64 = 0.1;
/// A node whose CPUs are busier than this is full.
const FULL: f64 = 0.95;
/// Software takes at least this share of CPU time per byte.
const LEAST_SOFTWARE: f64 = 0.02;
/// Bounds of what a process's threads can say about the memory constants.
const LEAST_MEMORY: f64 = 0.05;
const MOST_MEMORY: f64 = 5.0;
/// Threads' distances must make this much of what a byte takes to say anything about distance.
const SPREAD: f64 = 0.05;
/// Controllers are never taken to be fuller than this when waiting is worked out.
const BUSIEST: f64 = 0.97;

impl Demands {
    pub fn new(hardware: &Hardware, snapshot: &Snapshot, settings: &Settings, history: &History) -> Self {
        let window_s = sane(snapshot.window_s);
        if window_s <= 0.0 {
            return Self::default();
        }
        let mapped = mapped_bytes(snapshot);
        let counts = |t: &Thread| t.file_bytes().saturating_add(mapped_of(&mapped, t).map_or(0, |m| m.total));
        let mut listed: Vec<usize> = (0..snapshot.threads.len())
            .filter(|i| {
                let t = &snapshot.threads[*i];
                counts(t) >= settings.min_bytes && hardware.index(t.node).is_some_and(|n| hardware.nodes[n].cpus > 0.0)
            })
            .collect();
        listed.sort_by_key(|i| snapshot.threads[*i].tid);
        listed.dedup_by_key(|i| snapshot.threads[*i].tid);
        let mut demands = Self { groups: Groups::new(hardware, snapshot, &listed), ..Self::default() };
        demands.programs(hardware, snapshot, &listed, &history.known);
        let busy = busy(hardware, snapshot, window_s);
        for i in listed {
            let mut demand = demands.thread(hardware, snapshot, i, window_s, &busy, &mapped);
            let t = &snapshot.threads[i];
            demand.held = t.held.is_some() || !history.may_move_thread(t.tid, t.pid);
            demands.threads.push(demand);
        }
        demands.tell_memory_from_software(hardware, snapshot, settings);
        demands.tell_locks_from_sleep(hardware, settings);
        demands
    }

    fn programs(&mut self, hardware: &Hardware, snapshot: &Snapshot, listed: &[usize], known: &FxHashMap<u32, Known>) {
        let (now_s, window_s) = (sane(snapshot.time_s), sane(snapshot.window_s));
        let mut pids: Vec<u32> = listed.iter().map(|i| snapshot.threads[*i].pid).collect();
        pids.sort_unstable();
        pids.dedup();
        // Bytes written by each process, those of them to other nodes, and those of threads that write here and there.
        let mut written = vec![(0.0, 0.0, 0.0); pids.len()];
        for i in listed {
            let t = &snapshot.threads[*i];
            if let Ok(p) = pids.binary_search(&t.pid) {
                let home = hardware.index(t.node).map(|n| hardware.nodes[hardware.nodes[n].home].id);
                let all = t.write_bytes.total() as f64;
                written[p].0 += all;
                written[p].1 += all - home.map_or(0.0, |h| t.write_bytes.get(h) as f64);
                let most = t.write_bytes.iter().map(|(_, bytes)| bytes).max().unwrap_or(0) as f64;
                written[p].2 += if most <= ON_ONE * all { all } else { 0.0 };
            }
        }
        self.programs = (pids.iter().zip(written))
            .map(|(pid, (all, elsewhere, spread))| {
                let known = known.get(pid).copied().unwrap_or_default();
                Program {
                    pid: *pid,
                    memory: Shares::new(),
                    lock_s: 0.0,
                    writes_follow: !known.writes_stay && elsewhere <= ELSEWHERE * all,
                    writes_spread: known.writes_spread || spread > 0.5 * all,
                    allowed: hardware.nodes.iter().map(|n| n.cpus > 0.0).collect(),
                    measured: known.memory,
                    age_s: (now_s - known.since_s.unwrap_or(now_s)).max(window_s),
                }
            })
            .collect();
        for t in &snapshot.threads {
            if let Ok(p) = pids.binary_search(&t.pid) {
                for (node, allowed) in hardware.nodes.iter().zip(&mut self.programs[p].allowed) {
                    *allowed &= t.held.is_none() && t.allowed_nodes.contains(&node.id);
                }
            }
        }
        for process in &snapshot.processes {
            if let Ok(p) = pids.binary_search(&process.pid) {
                for (node, bytes) in process.resident.iter() {
                    if let Some(n) = hardware.index(node) {
                        add(&mut self.programs[p].memory, n, bytes as f64);
                    }
                }
            }
        }
    }

    fn thread(
        &mut self,
        hardware: &Hardware,
        snapshot: &Snapshot,
        index: usize,
        window_s: f64,
        busy: &[f64],
        mapped: &FxHashMap<u32, Mapped>,
    ) -> Demand {
        let t = &snapshot.threads[index];
        let node = hardware.index(t.node).unwrap_or(0);
        let mut d = Demand { thread: index, node, memory: 1.0, distance: 1.0, ..Demand::default() };
        d.process = self.programs.partition_point(|p| p.pid < t.pid);
        let mut allowed = vec![false; hardware.len()];
        for n in t.allowed_nodes.iter().filter_map(|id| hardware.index(*id)) {
            allowed[n] = hardware.nodes[n].cpus > 0.0;
        }
        d.allowed = self.allowed.iter().position(|a| *a == allowed).unwrap_or_else(|| {
            self.allowed.push(allowed);
            self.allowed.len() - 1
        });

        // Bytes first, fractions at the end.
        let mut rest = Shares::new();
        for (id, bytes) in t.read_bytes.iter() {
            if let Some(n) = hardware.index(id) {
                add(&mut rest, n, bytes as f64);
            }
        }
        let mut writes = t.write_bytes.total() as f64;
        let mut whole = true;
        for used in &t.files {
            let (read, written) = (used.read_bytes.total() as f64, used.write_bytes.total() as f64);
            match self.groups.of(&used.file) {
                Some(group) => {
                    for (id, bytes) in used.read_bytes.iter() {
                        if let Some(n) = hardware.index(id) {
                            add(&mut rest, n, -(bytes as f64));
                        }
                    }
                    writes -= written;
                    match d.shared.iter_mut().find(|s| s.0 == group) {
                        Some(s) => (s.1, s.2) = (s.1 + read, s.2 + written),
                        None => d.shared.push((group, read, written)),
                    }
                }
                None => match self.groups.file(&used.file) {
                    Some((file, bytes)) if bytes > 0.0 => d.files.push((file, bytes)),
                    _ => whole &= read <= 0.0,
                },
            }
        }
        rest.retain(|s| s.1 > 0.0);
        if let Some(m) = mapped_of(mapped, t) {
            // Loads are counted per process: each thread by its share of the CPU time.
            let share = if m.cpu_s > 0.0 { sane(t.cpu_s) / m.cpu_s } else { 1.0 / m.threads };
            for (id, bytes) in &m.nodes {
                if let Some(n) = hardware.index(*id) {
                    add(&mut rest, n, bytes * share);
                    whole = false;
                }
            }
        }
        let files: f64 = d.files.iter().map(|f| f.1).sum();
        if !whole || files <= 0.0 {
            d.files.clear();
        }
        let writes = writes.max(0.0);
        let private: f64 = rest.iter().map(|s| s.1).sum();
        let all = private + writes + d.shared.iter().map(|s| s.1 + s.2).sum::<f64>();
        if all <= 0.0 {
            return d;
        }
        d.rate = all / window_s;
        d.private = rest.iter().map(|(n, b)| (*n, b / all)).collect();
        d.shared.iter_mut().for_each(|s| (s.1, s.2) = (s.1 / all, s.2 / all));
        d.writes = writes / all;
        let landed = t.write_bytes.total() as f64;
        let share =
            |(id, bytes): (topology::NodeId, u64)| Some((hardware.index(id)?, writes / all * bytes as f64 / landed));
        d.wrote = t.write_bytes.iter().filter_map(share).filter(|s| s.1 > 0.0).collect();
        d.renewed = if files > 0.0 { writes / window_s / files } else { 0.0 };

        let cpu_s = sane(t.cpu_s).min(window_s);
        let missing = (window_s - cpu_s).max(0.0);
        let waited = t.wait_s.map_or(if busy[node] > FULL { missing } else { 0.0 }, |w| sane(w).min(missing));
        d.shares = !d.shared.is_empty();
        d.soft_s = cpu_s / all;
        d.off_s = (missing - waited) / all;
        d
    }

    /// `soft_s` is all CPU time per byte so far: takes out the waiting at controllers, then memory.
    fn tell_memory_from_software(&mut self, hardware: &Hardware, snapshot: &Snapshot, settings: &Settings) {
        let queue = self.queues(hardware);
        let seen: Vec<Seen> = self.threads.iter().map(|d| self.seen(hardware, settings, &queue, d)).collect();
        // What distance costs, where threads of a process that do the same are at different distances: of y = own × software +
        // distance × far, by least squares, with software of each such set of threads its own.
        let mut alike: FxHashMap<(usize, &str, u32), Vec<usize>> = FxHashMap::default();
        for (i, d) in self.threads.iter().enumerate() {
            let reads: f64 = d.private.iter().map(|s| s.1).sum::<f64>() + d.shared.iter().map(|s| s.1).sum::<f64>();
            let key = (d.process, snapshot.threads[d.thread].comm.as_str(), (8.0 * reads).round() as u32);
            if !d.shares || d.off_s * d.rate <= BLOCKED {
                alike.entry(key).or_default().push(i);
            }
        }
        let mut sums = vec![(0.0, 0.0); self.programs.len()];
        for ((process, _, _), members) in alike {
            let spread = |f: &dyn Fn(&Seen) -> f64| {
                let of = |i: &usize| f(&seen[*i]);
                members.iter().map(of).fold(0.0, f64::max) - members.iter().map(of).fold(f64::INFINITY, f64::min)
            };
            let on = members.iter().map(|i| seen[*i].on).sum::<f64>() / members.len() as f64;
            if members.len() < 2 || spread(&|s| s.far) < SPREAD * on {
                continue;
            }
            let (mut oo, mut of, mut ff, mut oy, mut fy) = (0.0, 0.0, 0.0, 0.0, 0.0);
            for s in members.iter().map(|i| &seen[*i]) {
                let y = s.on - (s.memory - s.far);
                (oo, of, ff) = (oo + s.own * s.own, of + s.own * s.far, ff + s.far * s.far);
                (oy, fy) = (oy + s.own * y, fy + s.far * y);
            }
            sums[process].0 += fy - of * oy / oo;
            sums[process].1 += ff - of * of / oo;
        }
        for (program, (xy, xx)) in self.programs.iter_mut().zip(sums) {
            if xx > 0.0 {
                let now = (xy / xx).clamp(LEAST_MEMORY, MOST_MEMORY);
                program.measured = Some(program.measured.map_or(now, |before| (before * now).sqrt()));
            }
        }
        for (d, s) in self.threads.iter_mut().zip(&seen) {
            d.distance = self.programs[d.process].measured.unwrap_or(1.0);
            // Memory cannot take longer than everything.
            let memory = s.memory - s.far + d.distance * s.far;
            if memory > 0.0 {
                d.memory = f64::min(1.0, (1.0 - LEAST_SOFTWARE) * s.on / memory);
            }
            d.soft_s = (s.on - d.memory * memory).max(LEAST_SOFTWARE * s.on) / s.own;
        }
    }

    /// Threads that share data and sleep a good part of their time wait for each other. For how long a lock must be held to
    /// make k threads with X bytes/s together wait w seconds per byte: w = h A with A = (k − 1) / k × X (h + w), so
    /// h² + w h − w k / ((k − 1) X) = 0.
    fn tell_locks_from_sleep(&mut self, hardware: &Hardware, settings: &Settings) {
        for p in 0..self.programs.len() {
            let mut crowd = vec![0.0; hardware.len()];
            let (mut rate, mut asleep) = (0.0, 0.0);
            for d in self.threads.iter().filter(|d| d.process == p && d.shares && d.rate > 0.0) {
                crowd[d.node] += 1.0;
                rate += d.rate;
                asleep += d.off_s * d.rate;
            }
            let k: f64 = crowd.iter().sum();
            if k >= 2.0 && asleep > BLOCKED * k {
                let w = asleep / rate;
                let hold_s = ((w * w + 4.0 * w * k / ((k - 1.0) * rate)).sqrt() - w) / 2.0;
                let on_node = |(n, threads): (usize, &f64)| threads * crossed(hardware, settings, &crowd, n);
                let factor = crowd.iter().enumerate().map(on_node).sum::<f64>() / k;
                self.programs[p].lock_s = hold_s / factor;
                for d in self.threads.iter_mut().filter(|d| d.process == p && d.shares) {
                    d.off_s = (d.off_s - w).max(0.0);
                    // Holding it is work; at any other placement it is held for another time.
                    let held_s = hold_s / factor * crossed(hardware, settings, &crowd, d.node);
                    d.soft_s = (d.soft_s - held_s).max(LEAST_SOFTWARE * d.soft_s);
                }
            }
        }
    }

    /// The queue at every controller that the observed rates imply.
    fn queues(&self, hardware: &Hardware) -> Vec<f64> {
        // z = Σ k S q with q = a (S + z), a = x v / (1 + x v S): linear in z, so z = Σ a S² / (1 − Σ a S).
        let (mut square, mut single) = (vec![0.0; hardware.len()], vec![0.0; hardware.len()]);
        for d in &self.threads {
            self.each_visit(hardware, d, |node, work, service| {
                let a = d.rate * work / (1.0 + d.rate * work * service);
                square[node] += a * service * service;
                single[node] += a * service;
            });
        }
        square.iter().zip(&single).map(|(s, a)| s / (1.0 - a.min(BUSIEST))).collect()
    }

    fn seen(&self, hardware: &Hardware, settings: &Settings, queue: &[f64], d: &Demand) -> Seen {
        let (mut memory, mut far, mut waits) = (0.0, 0.0, 0.0);
        self.each_visit(hardware, d, |node, work, service| {
            let q = d.rate * work * (service + queue[node]) / (1.0 + d.rate * work * service);
            waits += work * (queue[node] - service * q).max(0.0);
        });
        self.each_flow(hardware, d, |node, read, written, group| {
            let relief = group.map_or(1.0, |g| 1.0 - settings.cache_shared * self.groups.beside(g, d.node));
            let cost = |at: usize| relief * read * hardware.read_s(at, node) + written * hardware.write_s(at, node);
            memory += cost(d.node);
            far += cost(d.node) - cost(node);
        });
        let own = 1.0 + settings.own_memory * own_memory(hardware, &self.programs[d.process], d.node);
        // Behind a full controller any thread waits for whatever time is left: how much of its cycle is its own cannot be seen.
        // Then memory is taken to cost what the constants say, and only the rest to be waiting.
        let waits = waits.min((d.soft_s - memory / (1.0 - LEAST_SOFTWARE)).max(0.0));
        Seen { on: d.soft_s - waits, memory, far, own }
    }

    /// Controller time per byte, by node.
    fn each_visit(&self, hardware: &Hardware, d: &Demand, mut visit: impl FnMut(usize, f64, f64)) {
        let mut work = Shares::new();
        self.each_flow(hardware, d, |node, read, written, _| {
            let n = &hardware.nodes[node];
            add(&mut work, node, read * n.read_work + written * n.write_work);
        });
        for (node, work) in work.into_iter().filter(|w| w.1 > 0.0) {
            visit(node, work, hardware.service(d.node, node));
        }
    }

    /// Where the thread's bytes go now: node, fraction read, fraction written, shared group.
    fn each_flow(&self, hardware: &Hardware, d: &Demand, mut flow: impl FnMut(usize, f64, f64, Option<usize>)) {
        let follow = self.programs[d.process].writes_follow;
        let here = hardware.nodes[d.node].home;
        for (node, read) in &d.private {
            flow(*node, *read, 0.0, None);
        }
        for (group, read, written) in &d.shared {
            for (node, share) in &self.groups.list[*group].places {
                flow(*node, read * share, if follow { 0.0 } else { written * share }, Some(*group));
            }
            if follow && *written > 0.0 {
                flow(here, 0.0, *written, Some(*group));
            }
        }
        if follow && d.writes > 0.0 {
            flow(here, 0.0, d.writes, None);
        } else {
            d.wrote.iter().for_each(|(node, share)| flow(*node, 0.0, *share, None));
        }
    }
}

/// CPU and memory seconds per byte that a thread was seen to take.
struct Seen {
    /// CPU time per byte without waiting at controllers.
    on: f64,
    /// Memory time per byte by the constants.
    memory: f64,
    /// Of that, what distance adds.
    far: f64,
    /// How much more software takes because the process's own memory is far away.
    own: f64,
}

/// How many times as long a lock is held on a node as if all who share it were there.
pub(super) fn crossed(hardware: &Hardware, settings: &Settings, crowd: &[f64], node: usize) -> f64 {
    let all: f64 = crowd.iter().sum();
    let hops: f64 = crowd.iter().enumerate().map(|(m, threads)| threads * hardware.hops(node, m)).sum();
    1.0 + (settings.cross_lock - 1.0) * hops / (all - 1.0).max(1.0)
}

/// How much more a process's own memory takes from a node than were it local, relative.
pub(super) fn own_memory(hardware: &Hardware, program: &Program, node: usize) -> f64 {
    let all: f64 = program.memory.iter().map(|s| s.1).sum();
    if all <= 0.0 {
        return 0.0;
    }
    program.memory.iter().map(|(m, bytes)| bytes / all * hardware.hops(node, *m) * hardware.nodes[*m].read_hop).sum()
}

/// CPU utilisation of every node.
fn busy(hardware: &Hardware, snapshot: &Snapshot, window_s: f64) -> Vec<f64> {
    let mut used = vec![0.0f64; hardware.len()];
    for t in &snapshot.threads {
        if let Some(n) = hardware.index(t.node) {
            used[n] += sane(t.cpu_s);
        }
    }
    for load in &snapshot.nodes {
        if let (Some(n), Some(all)) = (hardware.index(load.id), load.cpu_s) {
            used[n] = used[n].max(sane(all));
        }
    }
    used.iter().zip(&hardware.nodes).map(|(s, n)| if n.cpus > 0.0 { s / (window_s * n.cpus) } else { 0.0 }).collect()
}

/// Mapped memory that a process touched in a window.
struct Mapped {
    nodes: Vec<(topology::NodeId, f64)>,
    total: u64,
    cpu_s: f64,
    threads: f64,
}

fn mapped_bytes(snapshot: &Snapshot) -> FxHashMap<u32, Mapped> {
    let mut mapped: FxHashMap<u32, Mapped> = FxHashMap::default();
    for process in &snapshot.processes {
        let nodes: Vec<_> = process.mapped.iter().filter(|m| m.hot_bytes > 0).map(|m| (m.node, m.hot_bytes)).collect();
        if !nodes.is_empty() {
            let total = nodes.iter().fold(0u64, |sum, n| sum.saturating_add(n.1));
            let nodes = nodes.into_iter().map(|(node, bytes)| (node, bytes as f64)).collect();
            mapped.insert(process.pid, Mapped { nodes, total, cpu_s: 0.0, threads: 0.0 });
        }
    }
    for t in &snapshot.threads {
        if let Some(m) = mapped.get_mut(&t.pid) {
            m.cpu_s += sane(t.cpu_s);
            m.threads += 1.0;
        }
    }
    mapped
}

/// Only threads that use no file calls: for the others, bytes read and written say more.
fn mapped_of<'a>(mapped: &'a FxHashMap<u32, Mapped>, t: &Thread) -> Option<&'a Mapped> {
    if t.file_bytes() == 0 { mapped.get(&t.pid) } else { None }
}
