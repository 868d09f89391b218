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
use super::mapped::{Mapped, mapped_of};
use super::network::Visits;
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
    /// Seconds per byte on a CPU and asleep, all of it, as observed.
    pub seen_on_s: f64,
    pub seen_off_s: f64,
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
    /// Node that it was moved away from for this load.
    pub came_from: Option<usize>,
}

/// One process.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub pid: u32,
    /// Resident bytes by node; empty where it is not known.
    pub memory: Shares,
    /// The share of what its threads write that is taken to land where they run (the rest: where it lands now, or with the data): all
    /// or none of it where that was seen, else [`UNSURE`].
    pub writes_follow: f64,
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
    /// Whether distance costs so much that a port must be full.
    pub port_full: bool,
}

/// What was learned about a process in earlier windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Known {
    /// Correction of the memory constants.
    pub memory: Option<f64>,
    /// The longest that its lock was inferred to be held per byte, see [`Program::lock_s`].
    pub lock_s: f64,
    /// When it was first seen.
    pub since_s: Option<f64>,
    /// Seen writing to another node than the one its thread was on.
    pub writes_stay: bool,
    /// Seen writing to the nodes of its threads while they were on several.
    pub writes_follow: bool,
    /// Seen not to move data that it was asked to.
    pub files_stay: bool,
    /// Seen writing to several nodes alike.
    pub writes_spread: bool,
}

/// Share of written bytes on other nodes above which writes do not follow the thread.
const ELSEWHERE: f64 = 0.1;
/// Share of writes that follow the thread where all of a process's writers are, and write, on one node.
const UNSURE: f64 = 0.5;
/// The same where less than this share of what is written goes to where it reads: who writes to the device of its file system, or over
/// its data, would write there.
const LIKELY: f64 = 0.9;
const APART: f64 = 0.3;
/// Writes of one thread of which no node gets more than this share are spread by the file system.
const ON_ONE: f64 = 0.7;
/// A node whose CPUs are busier than this is full.
const FULL: f64 = 0.95;

/// What those threads of a process that have stayed where they were did with files, in bytes.
#[derive(Clone, Debug, Default)]
struct Writing {
    /// Written.
    all: f64,
    /// Of that, by threads that write here and there.
    spread: f64,
    /// Of that, to the writers' own nodes.
    near: Shares,
    read: Shares,
}

impl Writing {
    fn count(&mut self, hardware: &Hardware, t: &Thread) {
        let home = hardware.index(t.node).map_or(0, |n| hardware.nodes[n].home);
        let all = t.write_bytes.total() as f64;
        self.all += all;
        add(&mut self.near, home, t.write_bytes.get(hardware.nodes[home].id) as f64);
        let most = t.write_bytes.iter().map(|(_, bytes)| bytes).max().unwrap_or(0) as f64;
        self.spread += if most <= ON_ONE * all { all } else { 0.0 };
        for (id, bytes) in t.read_bytes.iter() {
            if let Some(n) = hardware.index(id) {
                add(&mut self.read, n, bytes as f64);
            }
        }
    }

    /// Share of the writes that follow the thread, as far as this tells.
    fn follow(&self, known: &Known) -> f64 {
        let sum = |shares: &Shares| shares.iter().map(|s| s.1).sum::<f64>();
        let (near, read) = (sum(&self.near), sum(&self.read));
        let most = self.near.iter().map(|s| s.1).fold(0.0, f64::max);
        let there = |n: usize| self.near.iter().find(|s| s.0 == n).map_or(0.0, |s| s.1 / near);
        let both: f64 = self.read.iter().map(|(n, r)| (r / read).min(there(*n))).sum();
        match () {
            _ if known.writes_stay || self.all - near > ELSEWHERE * self.all => 0.0,
            _ if known.writes_follow || near - most > ELSEWHERE * near => 1.0,
            // Where the data is nobody writes.
            _ if near > 0.0 && read > 0.0 && both < APART => LIKELY,
            _ => UNSURE,
        }
    }
}

impl Demands {
    pub fn new(
        hardware: &Hardware,
        snapshot: &Snapshot,
        settings: &Settings,
        history: &History,
        listed: &[usize],
        mapped: &FxHashMap<u32, Mapped>,
    ) -> Self {
        let window_s = sane(snapshot.window_s);
        if window_s <= 0.0 {
            return Self::default();
        }
        let mut demands = Self { groups: Groups::new(hardware, snapshot, listed), ..Self::default() };
        demands.programs(hardware, snapshot, listed, history);
        for p in demands.programs.iter_mut().filter(|p| mapped.contains_key(&p.pid)) {
            // Mapped pages stay where they are.
            p.writes_follow = 0.0;
        }
        let busy = busy(hardware, snapshot, window_s);
        for i in listed.iter().copied() {
            let mut demand = demands.thread(hardware, snapshot, i, window_s, &busy, mapped);
            let t = &snapshot.threads[i];
            demand.held = t.held.is_some() || !history.may_move_thread(t.tid, t.pid);
            demand.came_from = history.came_from(t.tid).and_then(|id| hardware.index(id));
            demands.threads.push(demand);
        }
        demands.tell_memory_from_software(hardware, snapshot, settings);
        demands.tell_locks_from_sleep(hardware, settings);
        demands
    }

    fn programs(&mut self, hardware: &Hardware, snapshot: &Snapshot, listed: &[usize], history: &History) {
        let (now_s, window_s) = (sane(snapshot.time_s), sane(snapshot.window_s));
        let mut pids: Vec<u32> = listed.iter().map(|i| snapshot.threads[*i].pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let mut writing = vec![Writing::default(); pids.len()];
        // A thread that has moved may have written before it did.
        let stayed = |t: &&Thread| history.stayed(t.tid, t.node);
        for t in listed.iter().map(|i| &snapshot.threads[*i]).filter(stayed) {
            if let Ok(p) = pids.binary_search(&t.pid) {
                writing[p].count(hardware, t);
            }
        }
        // A process is as old as its oldest thread, or has been seen for longer.
        let mut began_s = vec![now_s; pids.len()];
        for t in &snapshot.threads {
            if let (Some(ns), Ok(p)) = (t.start_ns, pids.binary_search(&t.pid)) {
                began_s[p] = f64::min(began_s[p], ns as f64 / 1e9);
            }
        }
        self.programs = (pids.iter().zip(writing).zip(began_s))
            .map(|((pid, writing), began_s)| {
                let known = history.known.get(pid).copied().unwrap_or_default();
                Program {
                    pid: *pid,
                    memory: Shares::new(),
                    lock_s: known.lock_s,
                    writes_follow: writing.follow(&known),
                    writes_spread: known.writes_spread || writing.spread > 0.5 * writing.all,
                    allowed: hardware.nodes.iter().map(|n| n.cpus > 0.0).collect(),
                    measured: known.memory,
                    age_s: (now_s - known.since_s.map_or(began_s, |since_s| since_s.min(began_s))).max(window_s),
                }
            })
            .collect();
        let mut last: Option<&Thread> = None;
        for t in &snapshot.threads {
            if last.is_some_and(|l| l.pid == t.pid && l.held == t.held && l.allowed_nodes == t.allowed_nodes) {
                continue;
            }
            if let Ok(p) = pids.binary_search(&t.pid) {
                for (node, allowed) in hardware.nodes.iter().zip(&mut self.programs[p].allowed) {
                    *allowed &= t.held.is_none() && t.allowed_nodes.contains(&node.id);
                }
            }
            last = Some(t);
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
        d.allowed = match self.threads.last() {
            Some(last) if snapshot.threads[last.thread].allowed_nodes == t.allowed_nodes => last.allowed,
            _ => self.allowed(hardware, t),
        };

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
            let share = m.share(t);
            for (id, read, written) in &m.nodes {
                if let Some(n) = hardware.index(*id) {
                    add(&mut rest, n, read * share);
                    add(&mut d.wrote, n, written * share);
                    writes += written * share;
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
        for (id, bytes) in t.write_bytes.iter() {
            if let Some(n) = hardware.index(id) {
                add(&mut d.wrote, n, bytes as f64);
            }
        }
        let landed: f64 = d.wrote.iter().map(|s| s.1).sum();
        d.wrote.iter_mut().for_each(|s| s.1 *= d.writes / landed.max(f64::MIN_POSITIVE));
        d.wrote.retain(|s| s.1 > 0.0);
        d.renewed = if files > 0.0 { writes / window_s / files } else { 0.0 };

        let cpu_s = sane(t.cpu_s).min(window_s);
        let missing = (window_s - cpu_s).max(0.0);
        let waited = t.wait_s.map_or(if busy[node] > FULL { missing } else { 0.0 }, |w| sane(w).min(missing));
        d.shares = !d.shared.is_empty();
        d.soft_s = cpu_s / all;
        d.off_s = (missing - waited) / all;
        (d.seen_on_s, d.seen_off_s) = (d.soft_s, d.off_s);
        d
    }

    /// Index of the nodes with CPUs that a thread may run on, in [`Self::allowed`].
    fn allowed(&mut self, hardware: &Hardware, t: &Thread) -> usize {
        let mut allowed = vec![false; hardware.len()];
        for n in t.allowed_nodes.iter().filter_map(|id| hardware.index(*id)) {
            allowed[n] = hardware.nodes[n].cpus > 0.0;
        }
        self.allowed.iter().position(|a| *a == allowed).unwrap_or_else(|| {
            self.allowed.push(allowed);
            self.allowed.len() - 1
        })
    }

    /// Time per byte, by station.
    pub fn visits(&self, hardware: &Hardware, d: &Demand) -> Visits {
        let mut visits = Visits::default();
        self.each_flow(hardware, d, |node, read, written, _| {
            let media_s = read * hardware.read_s(d.node, node) + written * hardware.write_s(d.node, node);
            visits.flow(hardware, d.node, node, (read, written), media_s);
        });
        visits
    }

    /// Where the thread's bytes go now: node, fraction read, fraction written, shared group.
    pub fn each_flow(&self, hardware: &Hardware, d: &Demand, mut flow: impl FnMut(usize, f64, f64, Option<usize>)) {
        // Nobody's were seen elsewhere: this is where they are now.
        let follow = self.programs[d.process].writes_follow > 0.0;
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

/// Threads that count, by rising tid: those that do something with files, of processes that do enough together. Many threads that
/// wait for each other each do little.
pub(super) fn listed(
    hardware: &Hardware,
    snapshot: &Snapshot,
    settings: &Settings,
    mapped: &FxHashMap<u32, Mapped>,
) -> Vec<usize> {
    let bytes = |t: &Thread| t.file_bytes().saturating_add(mapped_of(mapped, t).map_or(0, |m| m.total));
    let mut of: FxHashMap<u32, u64> = FxHashMap::default();
    for t in &snapshot.threads {
        let sum = of.entry(t.pid).or_default();
        *sum = sum.saturating_add(bytes(t));
    }
    let here = |t: &Thread| hardware.index(t.node).is_some_and(|n| hardware.nodes[n].cpus > 0.0);
    let counts = |t: &Thread| bytes(t) > 0 && of.get(&t.pid).is_some_and(|all| *all >= settings.min_bytes);
    let mut listed: Vec<usize> =
        (0..snapshot.threads.len()).filter(|i| counts(&snapshot.threads[*i]) && here(&snapshot.threads[*i])).collect();
    listed.sort_by_key(|i| snapshot.threads[*i].tid);
    listed.dedup_by_key(|i| snapshot.threads[*i].tid);
    listed
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
