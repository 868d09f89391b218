//! Each thread's demand, apart from where it runs: seconds of software and of sleep per byte, and
//! the data it uses.
//!
//! **Problem.** A window shows what threads did at their current placement. To predict another
//! placement, the thread's own demand must be separated from the effect of its place.
//!
//! **Approach.** Three steps for each thread. [`Bytes`] sorts the bytes of the window by what can
//! be done about them: private data can move with the thread, shared data draws threads together,
//! writes land where the plane says ([`Writes`]). [`Bytes::work`] turns them into fractions and
//! divides the time by them. CPU time per byte includes memory and waiting at controllers, and time
//! asleep includes waiting for a [lock](super::locks); [`fit`](super::assignment::fit) subtracts
//! what the model of the current placement explains, and the rest is software and sleep. Threads
//! whose accesses a server makes sleep while it does so: memory then explains sleep and takes no
//! CPU of theirs.
//!
//! **Limits.** Where the plane does not say how long a thread waited for a CPU, it counts as
//! asleep. Where no plane says where writes land, they land where they land now.

use memory_model::{Shares, add, total};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use topology::{FileId, ProcessId};

use super::data::Groups;
use super::hardware::{Hardware, Node};
use super::mapped::{Mapped, mapped_of};
use crate::processes::{sane, starts};
use crate::{Snapshot, Thread, Writes};

/// Where the plane does not say so: a thread that uses less than this share of its memory time on a
/// CPU does not make its accesses itself, but sleeps while a server makes them. Chosen, not
/// derived: memory may be twice as fast as its data sheet.
const OWN_ACCESSES: f64 = 0.5;

/// The use of one group of shared data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Use {
    pub group: usize,
    /// Bytes, or fractions of a thread's bytes.
    pub read: f64,
    pub written: f64,
}

/// What a thread does for each of its file bytes, wherever it runs. Fractions are of these bytes,
/// read and written.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// Observed bytes/s.
    pub rate: f64,
    /// CPU seconds per byte that software takes: what [`fit`](super::assignment::fit) leaves of
    /// `seen_on_s` without the accesses to memory and the time of a lock.
    pub soft_s: f64,
    /// Seconds asleep per byte.
    pub off_s: f64,
    /// Observed seconds per byte on a CPU, and asleep, all included.
    pub seen_on_s: f64,
    pub seen_off_s: f64,
    /// Reads of data that no other thread reads, by node.
    pub private: Shares,
    /// Reads and writes of shared data, as fractions.
    pub shared: SmallVec<[Use; 2]>,
    /// Writes outside `shared`.
    pub writes: f64,
    /// The nodes where these writes landed.
    pub wrote: Shares,
    /// The share of its private data that the thread rewrites each second (new blocks land where
    /// its writes land).
    pub renewed: f64,
    /// Another process makes its accesses: memory time passes asleep.
    pub served: bool,
    /// Another process answers its calls, so its sleep tells nothing of locks.
    pub asks: bool,
    /// Whether it shares data with other threads of its process, and thus possibly locks.
    pub shares: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// Index in the snapshot.
    pub thread: usize,
    pub node: usize,
    pub process: usize,
    pub work: Work,
    /// Its private files, if all its private data can move with them: (index in the snapshot's
    /// files, bytes).
    pub files: Files,
    /// The nodes where it may run, as an index into [`Demands::allowed`].
    pub allowed: usize,
    pub pinned: bool,
}

type Files = SmallVec<[(usize, f64); 1]>;

#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub id: ProcessId,
    /// Resident bytes by node; empty if unknown.
    pub memory: Shares,
    /// Where its writes land; `None` if no plane says so.
    pub writes: Option<Writes>,
    /// Seconds per byte that its sharing threads would hold a lock if all were on one node; 0 if no
    /// lock is observed.
    pub lock_s: f64,
    /// The nodes, by index, where all its threads may go, including those without file I/O; no node
    /// if one thread must stay.
    pub allowed: Vec<bool>,
    /// Seconds since its oldest thread started; one window if unknown.
    pub age_s: f64,
}

/// All threads that count in one window.
#[derive(Clone, Debug, Default)]
pub(super) struct Demands {
    pub threads: Vec<Demand>,
    pub processes: Vec<Process>,
    pub groups: Groups,
    pub allowed: Vec<Vec<bool>>,
}

impl Demands {
    /// Apart from what only the windows before know: `History::add_to`.
    pub fn new(hardware: &Hardware, snapshot: &Snapshot, listed: &[usize], mapped: &FxHashMap<u32, Mapped>) -> Self {
        let window_s = sane(snapshot.window_s);
        if window_s <= 0.0 {
            return Self::default();
        }
        let mut demands = Self { groups: Groups::new(hardware, snapshot, listed), ..Self::default() };
        demands.find_processes(hardware, snapshot, listed);
        for p in demands.processes.iter_mut().filter(|p| mapped.contains_key(&p.id.pid)) {
            // Mapped pages stay where they are.
            p.writes = Some(Writes::Stay);
        }
        for i in listed.iter().copied() {
            let demand = demands.thread(hardware, snapshot, i, window_s, mapped);
            demands.threads.push(demand);
        }
        demands
    }

    fn find_processes(&mut self, hardware: &Hardware, snapshot: &Snapshot, listed: &[usize]) {
        let (now_s, window_s) = (sane(snapshot.time_s), sane(snapshot.window_s));
        let mut pids: Vec<u32> = listed.iter().map(|i| snapshot.threads[*i].pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let starts = starts(snapshot);
        // A process is as old as its oldest thread.
        let mut began_s = vec![now_s; pids.len()];
        for t in &snapshot.threads {
            if let (Some(ns), Ok(p)) = (t.start_ns, pids.binary_search(&t.pid)) {
                began_s[p] = f64::min(began_s[p], ns as f64 / 1e9);
            }
        }
        self.processes = (pids.iter().zip(began_s))
            .map(|(pid, began_s)| (ProcessId::new(*pid, starts.get(pid).copied()), began_s))
            .map(|(id, began_s)| Process {
                id,
                memory: Shares::new(),
                lock_s: 0.0,
                writes: None,
                allowed: hardware.nodes.iter().map(|n| n.cpus > 0.0).collect(),
                age_s: (now_s - began_s).max(window_s),
            })
            .collect();
        self.writes(snapshot, listed);
        let mut last: Option<&Thread> = None;
        for t in &snapshot.threads {
            if last.is_some_and(|l| l.pid == t.pid && l.pinned == t.pinned && l.allowed_nodes == t.allowed_nodes) {
                continue;
            }
            if let Ok(p) = pids.binary_search(&t.pid) {
                for (node, allowed) in hardware.nodes.iter().zip(&mut self.processes[p].allowed) {
                    *allowed &= t.pinned.is_none() && t.allowed_nodes.contains(&node.id);
                }
            }
            last = Some(t);
        }
        for process in &snapshot.processes {
            if let Ok(p) = pids.binary_search(&process.pid) {
                let memory = &mut self.processes[p].memory;
                hardware.by_node(&process.resident).for_each(|(n, bytes)| add(memory, n, bytes));
            }
        }
    }

    /// Where each process's writes land: as in most of the files that it writes, or else reads.
    fn writes(&mut self, snapshot: &Snapshot, listed: &[usize]) {
        let facts: FxHashMap<FileId, Writes> =
            snapshot.files.iter().filter_map(|f| Some((f.file, f.writes?))).collect();
        let mut bytes: FxHashMap<(u32, Writes), u64> = FxHashMap::default();
        for t in listed.iter().map(|i| &snapshot.threads[*i]) {
            for used in &t.files {
                if let Some(fact) = facts.get(&used.file) {
                    *bytes.entry((t.pid, *fact)).or_default() += 1 + used.write_bytes.total();
                }
            }
        }
        for p in &mut self.processes {
            let all = [Writes::Follow, Writes::InPlace, Writes::Stay, Writes::Spread];
            let of = |w: &Writes| bytes.get(&(p.id.pid, *w)).copied();
            p.writes = all.into_iter().filter(|w| of(w).is_some()).max_by_key(of);
        }
    }

    fn thread(
        &mut self,
        hardware: &Hardware,
        snapshot: &Snapshot,
        index: usize,
        window_s: f64,
        mapped: &FxHashMap<u32, Mapped>,
    ) -> Demand {
        let t = &snapshot.threads[index];
        let node = hardware.index(t.node).unwrap_or(0);
        let allowed = match self.threads.last() {
            Some(last) if snapshot.threads[last.thread].allowed_nodes == t.allowed_nodes => last.allowed,
            _ => self.allowed(hardware, t),
        };
        let bytes = Bytes::of(t, hardware, &self.groups, mapped_of(mapped, t));
        let files = if bytes.all_in_files { bytes.files.clone() } else { Files::new() };
        let process = self.processes.partition_point(|p| p.id.pid < t.pid);
        let work = bytes.work(t, &hardware.nodes[node], window_s);
        Demand { thread: index, node, process, work, files, allowed, pinned: t.pinned.is_some() }
    }

    /// The index, in [`Self::allowed`], of the nodes with CPUs where a thread may run.
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
}

/// The file bytes of one thread in one window, by what can be done about them.
#[derive(Default)]
struct Bytes {
    /// Reads of data that no other thread reads, by node.
    private: Shares,
    /// The private files: (index in the snapshot's files, resident bytes).
    files: Files,
    /// Whether `files` hold all of the private data, so that it can move with them.
    all_in_files: bool,
    /// Reads and writes of shared data.
    shared: SmallVec<[Use; 2]>,
    /// Writes outside `shared`, and the nodes where all writes landed.
    writes: f64,
    wrote: Shares,
}

impl Bytes {
    fn of(t: &Thread, hardware: &Hardware, groups: &Groups, mapped: Option<&Mapped>) -> Self {
        let mut b = Self { writes: t.write_bytes.total() as f64, ..Self::default() };
        hardware.by_node(&t.read_bytes).for_each(|(n, bytes)| add(&mut b.private, n, bytes));
        hardware.by_node(&t.write_bytes).for_each(|(n, bytes)| add(&mut b.wrote, n, bytes));
        // A plane may list only the files with the most bytes.
        let listed: u64 = t.files.iter().map(|used| used.read_bytes.total()).sum();
        let mut complete = listed as f64 >= 0.99 * t.read_bytes.total() as f64;
        for used in &t.files {
            let (read, written) = (used.read_bytes.total() as f64, used.write_bytes.total() as f64);
            match (groups.of(used.file), groups.file(used.file)) {
                (Some(group), _) => {
                    // The rest is private.
                    hardware.by_node(&used.read_bytes).for_each(|(n, bytes)| add(&mut b.private, n, -bytes));
                    b.writes -= written;
                    match b.shared.iter_mut().find(|s| s.group == group) {
                        Some(s) => (s.read, s.written) = (s.read + read, s.written + written),
                        None => b.shared.push(Use { group, read, written }),
                    }
                }
                (None, Some((file, bytes))) if bytes > 0.0 => b.files.push((file, bytes)),
                _ => complete &= read <= 0.0,
            }
        }
        b.private.retain(|s| s.1 > 0.0);
        if let Some(m) = mapped {
            // Loads are counted per process; each thread gets its share by CPU time.
            let share = m.share(t);
            for (id, read, written) in &m.nodes {
                if let Some(n) = hardware.index(*id) {
                    add(&mut b.private, n, read * share);
                    add(&mut b.wrote, n, written * share);
                    b.writes += written * share;
                    complete = false;
                }
            }
        }
        b.writes = b.writes.max(0.0);
        b.all_in_files = complete && b.file_bytes() > 0.0;
        b
    }

    fn file_bytes(&self) -> f64 {
        self.files.iter().map(|f| f.1).sum()
    }

    /// What the thread does per byte, from a window of `window_s` seconds on a node.
    fn work(self, t: &Thread, node: &Node, window_s: f64) -> Work {
        let (files, private) = (self.file_bytes(), total(&self.private));
        let mut w = Work { private: self.private, shared: self.shared, wrote: self.wrote, ..Work::default() };
        w.shares = !w.shared.is_empty();
        let all = private + self.writes + w.shared.iter().map(|s| s.read + s.written).sum::<f64>();
        if all <= 0.0 {
            return w;
        }
        w.rate = all / window_s;
        w.writes = self.writes / all;
        w.private.iter_mut().for_each(|s| s.1 /= all);
        w.shared.iter_mut().for_each(|s| (s.read, s.written) = (s.read / all, s.written / all));
        // Writes outside shared files landed as all writes did.
        let landed = total(&w.wrote).max(f64::MIN_POSITIVE);
        w.wrote.iter_mut().for_each(|s| s.1 *= w.writes / landed);
        w.wrote.retain(|s| s.1 > 0.0);
        w.renewed = if files > 0.0 { self.writes / window_s / files } else { 0.0 };

        let cpu_s = sane(t.cpu_s).min(window_s);
        let missing = (window_s - cpu_s).max(0.0);
        let waited = t.wait_s.map_or(0.0, |s| sane(s).min(missing));
        (w.seen_on_s, w.seen_off_s) = (cpu_s / all, (missing - waited) / all);
        (w.soft_s, w.off_s) = (w.seen_on_s, w.seen_off_s);
        let written = w.writes + w.shared.iter().map(|s| s.written).sum::<f64>();
        let little = w.seen_on_s < OWN_ACCESSES * ((1.0 - written) * node.read_s + written * node.write_s);
        w.asks = t.served_s.is_some() || little;
        w.served = w.asks;
        w
    }
}

/// Threads that count, by rising tid: threads with file I/O, of processes with at least `min_bytes`
/// of it together. Many threads that wait for each other each do little.
pub(super) fn listed(
    hardware: &Hardware,
    snapshot: &Snapshot,
    min_bytes: u64,
    mapped: &FxHashMap<u32, Mapped>,
) -> Vec<usize> {
    let bytes = |t: &Thread| t.file_bytes().saturating_add(mapped_of(mapped, t).map_or(0, |m| m.total));
    let mut of: FxHashMap<u32, u64> = FxHashMap::default();
    for t in &snapshot.threads {
        let sum = of.entry(t.pid).or_default();
        *sum = sum.saturating_add(bytes(t));
    }
    let here = |t: &Thread| hardware.index(t.node).is_some_and(|n| hardware.nodes[n].cpus > 0.0);
    let counts = |t: &Thread| bytes(t) > 0 && of.get(&t.pid).is_some_and(|all| *all >= min_bytes);
    let mut listed: Vec<usize> =
        (0..snapshot.threads.len()).filter(|i| counts(&snapshot.threads[*i]) && here(&snapshot.threads[*i])).collect();
    listed.sort_by_key(|i| snapshot.threads[*i].tid);
    listed.dedup_by_key(|i| snapshot.threads[*i].tid);
    listed
}
