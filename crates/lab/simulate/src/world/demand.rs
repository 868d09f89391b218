//! From the state of the machine to a network of classes and stations.
//!
//! Stations are, in this order: one controller per node, one interconnect port per node, one lock
//! per job.

use memory_model::queues::{Class, Detail, Lock, System, Visit};
use smallvec::SmallVec;

use super::flows::{Flow, Flows};
use super::{Copied, World, total};
use crate::filesystem::{FileSystem, Layout};
use crate::machine::Memory;

/// Threads and flows of the current network's classes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    /// Threads of each class; a copy's class comes after these and has none.
    pub threads: Vec<Vec<u32>>,
    /// Bytes that a thread of each class reads per operation.
    pub reads: Flows,
    /// Bytes of the program that it writes, those of the file system left out. Also what is only
    /// the file system's: as nothing.
    pub writes: Flows,
    /// Of the bytes read, those from other nodes than the class's own.
    pub remote: Vec<f64>,
    /// First class of the copies, in their order.
    pub copies: usize,
    /// Threads that have not started, or stand still.
    pub idle: Vec<u32>,
}

/// Bytes that a copy moves in one operation.
const CHUNK: f64 = 65536.0;

/// Most classes of its job, role and node that a thread is compared with before it gets its own
/// class.
const MOST_COMPARED: usize = 8;
/// Threads belong to one class if less than this fraction of their bytes is on different nodes.
const ALIKE: f64 = 1e-3;

/// State of the machine that many classes need.
struct Crowds {
    /// Running threads per job and node.
    on_node: Vec<f64>,
    /// Running threads per job.
    of_job: Vec<f64>,
    /// Running threads per node of jobs whose threads read the same data.
    caching: Vec<f64>,
    /// Bytes that each file has.
    bytes: Vec<f64>,
}

/// Builds one class.
struct Builder {
    on_s: f64,
    media_s: f64,
    visits: Vec<Visit>,
    /// Of each visit's work, what is written.
    written: Vec<f64>,
    /// Position of each station in `visits`.
    of_station: Vec<Option<u32>>,
}

impl Builder {
    fn new(stations: usize) -> Self {
        Self { on_s: 0.0, media_s: 0.0, visits: Vec::new(), written: Vec::new(), of_station: vec![None; stations] }
    }

    /// Ready for the next class.
    fn clear(&mut self) {
        (self.on_s, self.media_s) = (0.0, 0.0);
        for visit in self.visits.drain(..) {
            self.of_station[visit.station] = None;
        }
        self.written.clear();
    }

    fn visit(&mut self, visit: Visit, written: f64) {
        match self.of_station[visit.station] {
            Some(at) => {
                let before = &mut self.visits[at as usize];
                before.work += visit.work;
                before.alone += visit.alone;
                self.written[at as usize] += written;
            }
            None => {
                self.of_station[visit.station] = Some(self.visits.len() as u32);
                self.visits.push(visit);
                self.written.push(written);
            }
        }
    }

    /// Bytes at a memory: `work` seconds of all its modules, `media_s` for a thread that is alone.
    fn media(&mut self, node: usize, memory: &Memory, load: f64, (work, media_s): (f64, f64), written: f64) {
        self.media_s += media_s;
        let alone = (work * load * memory.modules).min(media_s).max(work * load);
        self.visit(Visit { station: node, work, service: load, alone }, written);
    }
}

impl World {
    /// Builds the network anew.
    pub(super) fn build(&mut self) {
        self.book();
        let n = self.machine.nodes().len();
        let mut network = std::mem::take(&mut self.network);
        let mut system = std::mem::take(&mut self.system);
        let before = std::mem::replace(&mut network.threads, std::mem::take(&mut self.spare));
        network.threads.iter_mut().for_each(Vec::clear);
        // Those of the network before this one, once for what was booked of them.
        let (mut old_reads, mut old_writes) = (std::mem::take(&mut network.reads), std::mem::take(&mut network.writes));
        std::mem::swap(&mut network.reads, &mut self.spare_flows.0);
        std::mem::swap(&mut network.writes, &mut self.spare_flows.1);
        network.reads.clear();
        network.writes.clear();
        network.remote.clear();
        network.idle.clear();
        system.classes.clear();
        system.visits.clear();
        let mut written = std::mem::take(&mut self.written);
        written.clear();
        system.cpus.clear();
        system.detail = Detail::Fine;
        system.cpus.extend(self.machine.nodes().iter().map(|node| (node.cpus, 0.0)));
        system.stations = 2 * n + self.jobs.len();
        system.slicing = self.machine.constants().time_slicing;

        let crowds = self.crowds();
        let roles: Vec<usize> =
            self.jobs.iter().scan(0, |sum, j| Some(std::mem::replace(sum, *sum + j.roles.len()))).collect();
        let groups = roles.last().map_or(0, |last| last + self.jobs.last().map_or(0, |j| j.roles.len()));
        let mut group: Vec<SmallVec<[usize; 1]>> = vec![SmallVec::new(); groups * n];
        let mut builder = Builder::new(system.stations);
        for t in 0..self.threads.len() {
            let thread = &self.threads[t];
            if !thread.runs(self.now) {
                if thread.ended_s.is_none() {
                    network.idle.push(t as u32);
                }
                continue;
            }
            let slot = &mut group[(roles[thread.job] + thread.role) * n + thread.node];
            let alike =
                |class: &&usize| network.threads[**class].first().is_some_and(|first| self.as_near(t, *first as usize));
            // The newest first: threads that were moved together come together.
            if let Some(class) = slot.iter().rev().take(MOST_COMPARED).find(alike).copied() {
                network.threads[class].push(t as u32);
                system.classes[class].count += 1.0;
                continue;
            }
            let class = system.classes.len();
            slot.push(class);
            if network.threads.len() <= class {
                network.threads.push(Vec::new());
            }
            network.threads[class].push(t as u32);
            let built = self.class(t, &crowds, &mut builder, &mut system.visits, &mut network);
            written.extend_from_slice(&builder.written);
            system.classes.push(built);
        }
        network.copies = system.classes.len();
        network.threads.truncate(network.copies);
        if before == network.threads {
            network.reads.go_on(&mut old_reads);
            network.writes.go_on(&mut old_writes);
        } else {
            self.hand_out(&before, &old_reads, &old_writes);
            network.reads.start();
            network.writes.start();
        }
        (self.spare, self.spare_flows) = (before, (old_reads, old_writes));
        for copy in &self.copies {
            let class = self.copier(copy, &mut builder, &mut system.visits);
            written.extend_from_slice(&builder.written);
            system.classes.push(class);
        }
        self.crowd(&mut system, &written);
        self.written = written;
        for file in &mut self.files {
            if std::mem::take(&mut file.touched) || file.built.is_empty() {
                file.built.clone_from(&file.bytes);
            }
        }
        self.network = network;
        self.system = system;
        self.changed = false;
    }

    /// Whether two threads of one role and node have their bytes on the same nodes.
    fn as_near(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.threads[a], &self.threads[b]);
        let files = a.files.iter().zip(&b.files).filter(|(a, b)| a != b);
        let near = |a: &super::Shares, b: &super::Shares| match (total(a) > 0.0, total(b) > 0.0) {
            (true, true) => super::apart(a, b) < ALIKE && (total(a) / total(b) - 1.0).abs() < ALIKE,
            (a, b) => a == b,
        };
        let process = |pid: u32| self.processes.binary_search_by_key(&pid, |p| p.pid).ok();
        files.into_iter().all(|(a, b)| near(&self.files[*a].bytes, &self.files[*b].bytes))
            && (a.pid == b.pid
                || match (process(a.pid), process(b.pid)) {
                    (Some(a), Some(b)) => near(&self.processes[a].resident, &self.processes[b].resident),
                    _ => false,
                })
    }

    /// Lengthens writes where many threads write at a time. Their number follows from the bounds of
    /// a closed network: of `N` threads that need `D` of the station and are `Z` elsewhere,
    /// `N R / (Z + R)` are there while it is idle, and `N − Z / D` when it is not.
    fn crowd(&self, system: &mut System, written: &[f64]) {
        let running: SmallVec<[f64; 8]> = (0..system.cpus.len())
            .map(|n| system.classes.iter().filter(|c| c.node == n).map(|c| c.count).sum())
            .collect();
        for (station, node) in self.machine.nodes().iter().enumerate().filter(|(_, node)| node.memory.crowding > 0.0) {
            let (mut threads, mut demand, mut writes, mut there, mut cycle) = (0.0, 0.0, 0.0, 0.0, 0.0);
            let at = |v: &Visit| v.station == station;
            for class in &system.classes {
                let Some(v) = class.visits.clone().find(|v| at(&system.visits[*v])) else { continue };
                // A thread without a CPU writes nothing.
                let count = class.count * (system.cpus[class.node].0 / running[class.node]).min(1.0);
                let visit = &system.visits[v];
                threads += count;
                demand += count * visit.work * visit.service;
                writes += count * written[v] * visit.service;
                there += count * visit.alone;
                cycle += count * (class.on_s + class.off_s);
            }
            if writes <= 0.0 {
                continue;
            }
            let away = (cycle - there).max(0.0);
            let here = (threads * there / cycle).max(threads * (1.0 - away / (threads * demand)));
            let crowded = node.memory.crowded(here * writes / demand);
            for class in &mut system.classes {
                let Some(v) = class.visits.clone().find(|v| at(&system.visits[*v])) else { continue };
                let visit = &mut system.visits[v];
                visit.work += written[v] * (crowded - 1.0);
                // No shorter alone than what it takes of the station.
                let longer = (visit.work * visit.service - visit.alone).max(0.0);
                visit.alone += longer;
                class.on_s += longer;
                if let Some(lock) = class.lock.as_mut().filter(|l| l.media) {
                    lock.hold_s += longer;
                }
            }
        }
    }

    /// Running threads by node, and the size of each file.
    fn crowds(&self) -> Crowds {
        let n = self.machine.nodes().len();
        let mut on_node = vec![0.0; self.jobs.len() * n];
        for thread in self.threads.iter().filter(|t| t.runs(self.now)) {
            on_node[thread.job * n + thread.node] += 1.0;
        }
        let mut caching = vec![0.0; n];
        let cached = |j: &usize| self.jobs[*j].files.iter().any(|f| f.together > 0.0);
        for job in (0..self.jobs.len()).filter(cached) {
            caching.iter_mut().zip(&on_node[job * n..][..n]).for_each(|(sum, threads)| *sum += threads);
        }
        let of_job = on_node.chunks(n).map(|nodes| nodes.iter().sum()).collect();
        Crowds { on_node, of_job, caching, bytes: self.files.iter().map(|f| total(&f.bytes)).collect() }
    }

    /// The class of a thread; its flows go to the network.
    fn class(
        &self,
        t: usize,
        crowds: &Crowds,
        b: &mut Builder,
        visits: &mut Vec<Visit>,
        network: &mut Network,
    ) -> Class {
        let (n, c) = (self.machine.nodes().len(), self.machine.constants());
        let thread = &self.threads[t];
        let job = &self.jobs[thread.job];
        let op = &job.roles[thread.role].op;
        let at = thread.node;
        let crowd = &crowds.on_node[thread.job * n..][..n];
        let all = crowds.of_job[thread.job];
        let beside = if all > 1.0 { (crowd[at] - 1.0) / (all - 1.0) } else { 0.0 };
        // Jobs that leave data in a node's last-level cache for others share it by their threads.
        let share = if crowds.caching[at] > 0.0 { crowd[at] / crowds.caching[at] } else { 0.0 };
        let hits = c.cache_shared * beside * share;

        b.clear();
        let mut remote = 0.0;
        for (p, part) in op.parts.iter().enumerate() {
            let file = &self.files[thread.files[part.files]];
            let set = &job.files[part.files];
            let media = 1.0 - hits * set.together;
            let there = crowds.bytes[thread.files[part.files]];
            for (node, bytes) in &file.bytes {
                let read = if there > 0.0 { part.read * bytes / there } else { 0.0 };
                if read > 0.0 {
                    self.read(b, at, *node, read * media, job.fs);
                    network.reads.push(Flow::new(p, *node, read));
                    remote += if *node == at { 0.0 } else { read };
                }
            }
            if part.write > 0.0 {
                let own = (part.write - part.own) / part.write;
                for (node, write) in self.lands(t, part.files, part.write) {
                    self.write(b, at, node, write);
                    network.writes.push(Flow::new(p, node, write * own));
                }
            }
        }
        network.reads.end();
        network.writes.end();
        network.remote.push(remote);

        // The lock's line, and what it protects, come from the CPU of the last holder.
        let serial_s = if op.serial_s > 0.0 {
            let crossing: f64 = (0..n).map(|m| crowd[m] * self.machine.hops(at, m)).sum::<f64>() / (all - 1.0).max(1.0);
            op.serial_s * (1.0 + (c.cross_lock - 1.0) * crossing)
        } else {
            0.0
        };
        let own = self.own_memory(thread.pid, at);
        b.on_s += op.cpu_s * (1.0 + c.own_memory * (c.dram_remote_latency - 1.0) * own) + serial_s - op.serial_s;
        let lock = (op.serial_s > 0.0).then(|| Lock {
            station: 2 * n + thread.job,
            hold_s: serial_s + if op.serial_media { b.media_s } else { 0.0 },
            media: op.serial_media,
        });
        let first = visits.len();
        visits.extend_from_slice(&b.visits);
        let (on_s, visits) = (b.on_s + b.media_s, first..visits.len());
        Class { count: 1.0, node: at, on_s, off_s: op.off_s, visits, lock, ..Class::default() }
    }

    fn read(&self, b: &mut Builder, at: usize, node: usize, bytes: f64, fs: FileSystem) {
        let (hops, c) = (self.machine.hops(at, node), self.machine.constants());
        let (memory, reach) = (&self.machine.nodes()[node].memory, self.machine.reach(at, node));
        let media_s = bytes
            * match fs {
                FileSystem::Mapped => c.mapped_read_s * (1.0 + (c.mapped_remote_read - 1.0) * hops),
                _ => reach.read_s,
            };
        b.media(node, memory, reach.load, (bytes / memory.read_bw, media_s), 0.0);
        self.cross(b, at, node, hops, bytes);
    }

    fn write(&self, b: &mut Builder, at: usize, node: usize, bytes: f64) {
        let hops = self.machine.hops(at, node);
        let (memory, reach) = (&self.machine.nodes()[node].memory, self.machine.reach(at, node));
        let work = bytes / memory.write_bw;
        b.media(node, memory, reach.load, (work, bytes * reach.write_s), work);
        self.cross(b, at, node, hops, bytes);
    }

    /// Bytes that pass the ports of two nodes; those that go further than a hop pass more of the
    /// interconnect.
    fn cross(&self, b: &mut Builder, at: usize, node: usize, hops: f64, bytes: f64) {
        if hops > 0.0 {
            let n = self.machine.nodes().len();
            let work = bytes * hops.max(1.0) / self.machine.port_bw();
            for port in [n + at, n + node] {
                b.visit(Visit { station: port, work, service: 1.0, alone: work }, 0.0);
            }
        }
    }

    /// Where a thread's writes land.
    fn lands(&self, t: usize, set: usize, bytes: f64) -> SmallVec<[(usize, f64); 2]> {
        let thread = &self.threads[t];
        let job = &self.jobs[thread.job];
        let local = || SmallVec::from_slice(&[(self.machine.nearest_home(thread.node), bytes)]);
        match job.fs.layout() {
            Layout::Device => SmallVec::from_slice(&[(job.device, bytes)]),
            Layout::Local => local(),
            Layout::Random => {
                let homes: SmallVec<[usize; 8]> = self.machine.homes().collect();
                homes.iter().map(|n| (*n, bytes / homes.len() as f64)).collect()
            }
            Layout::InPlace => {
                let file = &self.files[thread.files[set]];
                let there = total(&file.bytes);
                if there < 0.999 * file.size {
                    return local();
                }
                file.bytes.iter().map(|(n, b)| (*n, bytes * b / there)).collect()
            }
        }
    }

    /// Mean hops between a process's memory and a node.
    fn own_memory(&self, pid: u32, at: usize) -> f64 {
        let Ok(p) = self.processes.binary_search_by_key(&pid, |p| p.pid) else { return 0.0 };
        let resident = &self.processes[p].resident;
        let all = total(resident);
        if all <= 0.0 {
            return 0.0;
        }
        resident.iter().map(|(n, bytes)| bytes / all * self.machine.hops(at, *n)).sum()
    }

    /// The copier of one move: it runs where the data goes.
    fn copier(&self, copy: &super::Copy, b: &mut Builder, visits: &mut Vec<Visit>) -> Class {
        let at = self.seat(copy.to);
        let (from, to) = (&self.machine.nodes()[copy.from].memory, &self.machine.nodes()[copy.to].memory);
        b.clear();
        self.read(b, at, copy.from, CHUNK, FileSystem::PageCache);
        self.write(b, at, copy.to, CHUNK);
        let alone = match copy.what {
            Copied::File(_) => from.copy_s.max(to.copy_s),
            Copied::Process(_) => self.machine.constants().dram_copy_s,
        };
        let on_s = (CHUNK * alone).max(b.media_s);
        let first = visits.len();
        visits.extend_from_slice(&b.visits);
        Class { count: 1.0, node: at, on_s, visits: first..visits.len(), ..Class::default() }
    }

    /// The node with CPUs that is nearest to a node.
    pub(super) fn seat(&self, node: usize) -> usize {
        let near =
            |a: &usize, b: &usize| self.machine.hops(node, *a).total_cmp(&self.machine.hops(node, *b)).then(a.cmp(b));
        self.machine.seats().min_by(near).unwrap_or(node)
    }

    /// Bytes per operation of a copier.
    pub(super) const CHUNK: f64 = CHUNK;
}
