//! Homenode's view of a window: the snapshot that a host would give, without its sampling errors.

use std::collections::BTreeMap;

use placement::{
    FileUse, MeasuredLoad, NodeBytes, NodeLoad, ObservedFile, Process, Snapshot, Thread, Writes, snapshot,
};
use rand::RngExt;
use topology::NodeId;

use super::demand::Network;
use super::flows::{Flow, FlowSums, sum_up};
use super::mapped::Accesses;
use super::moves::IMMOVABLE;
use super::{Shares, Tally, World};
use crate::filesystem::Layout;
use crate::workload::Part;

/// Bytes that a thread read and wrote in a window.
#[derive(Clone, Default)]
struct Parts {
    /// Read and written, for each part of the operation.
    each: Vec<(NodeBytes, NodeBytes)>,
    read: NodeBytes,
    written: NodeBytes,
}

/// The class of each thread, and the reads and writes of each class.
struct OfClass {
    class: Vec<Option<u32>>,
    parts: Vec<Option<Parts>>,
}

impl OfClass {
    fn new(network: &Network, threads: usize) -> Self {
        let mut class = vec![None; threads];
        for (c, threads) in network.threads.iter().enumerate() {
            threads.iter().for_each(|t| class[*t as usize] = Some(c as u32));
        }
        Self { class, parts: vec![None; network.threads.len()] }
    }

    fn class(&self, thread: usize) -> Option<usize> {
        self.class[thread].map(|class| class as usize)
    }
}

fn writes(layout: Layout) -> Writes {
    match layout {
        Layout::Device => Writes::Stay,
        Layout::InPlace => Writes::InPlace,
        Layout::Local => Writes::Follow,
        Layout::Random => Writes::Spread,
    }
}

impl World {
    /// The nodes' load since the last call, without the threads; starts a new window.
    pub fn observe_nodes(&mut self) -> Vec<NodeLoad> {
        self.window_began = self.now;
        self.nodes()
    }

    /// The window since the last call, and a new window.
    pub fn observe(&mut self) -> Snapshot {
        self.book();
        let mut of_class = OfClass::new(&self.network, self.threads.len());
        let window_s = self.now - self.window_began;
        let nodes = self.nodes();
        let mut snapshot = Snapshot {
            version: snapshot::VERSION,
            time_s: self.now,
            window_s,
            nodes,
            threads: Vec::with_capacity(self.threads.len()),
            ..Snapshot::default()
        };
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); self.files.len()];
        let mut picks: Vec<(usize, f64)> = Vec::with_capacity(self.threads.len());
        let mut picked = vec![0.0; self.files.len()];
        let all: Vec<NodeId> = self.machine.seats().map(|n| self.machine.nodes()[n].id).collect();
        let mut mapped: BTreeMap<u32, Accesses> = BTreeMap::new();
        for t in 0..self.threads.len() {
            let tally = std::mem::take(&mut self.threads[t].window);
            let thread = &self.threads[t];
            if tally.cpu_s <= 0.0 && tally.ops <= 0.0 {
                continue;
            }
            let job = &self.jobs[thread.job];
            if !job.fs.counted() {
                let accesses = mapped.entry(thread.pid).or_default();
                let (mut both, written) = self.flows(t, &tally, &of_class);
                sum_up(&mut both, written.into_iter());
                for flow in both {
                    let part = &job.roles[thread.role].op.parts[flow.part()];
                    accesses.add(thread.files[part.files], flow.node(), flow.bytes, part.sequential);
                }
            }
            let seen = self.seen(t, &tally, &mut of_class);
            let own = (t, self.picks(t, tally.ops));
            for (file, part) in self.used(t).filter(|_| job.fs.counted()) {
                if readers[file].last() != Some(&thread.tid) {
                    readers[file].push(thread.tid);
                }
                picked[file] += own.1 * part.picks;
            }
            picks.push(own);
            // Homenode moves what it has bound itself: only an affinity of the thread's own limits
            // it.
            let allowed_nodes = match thread.mask.as_ref().filter(|_| thread.own_affinity) {
                None => all.clone(),
                Some(mask) => {
                    let nodes = &self.machine.topology().nodes;
                    nodes.iter().filter(|n| !n.cpus.intersection(mask).is_empty()).map(|n| n.id).collect()
                }
            };
            snapshot.threads.push(Thread {
                allowed_nodes,
                pinned: thread.own_affinity.then(|| "has an affinity of its own".to_owned()),
                ..seen
            });
        }
        for (thread, (t, own)) in snapshot.threads.iter_mut().zip(picks) {
            let chance = self.meets(t, own, &readers, &picked);
            thread.shares_file = chance > 0.0 && (chance >= 1.0 || self.chance.random_bool(chance));
        }
        for (file, readers) in self.files.iter().zip(readers).filter(|(_, r)| !r.is_empty()) {
            let fs = self.jobs[file.job].fs;
            let movable = fs.moves_files();
            snapshot.files.push(ObservedFile {
                generation: None,
                file: file.id,
                path: Some(file.path.clone()),
                size: Some(file.size as u64),
                bytes: self.node_bytes(&file.bytes),
                sampled: None,
                writes: Some(writes(fs.layout())),
                movable: Some(movable),
                pinned: (!movable).then(|| IMMOVABLE.to_owned()),
                // Each thread opens the files that it uses. Those of a set are closed again;
                // `shares_file` says whether two met.
                opens: Some(if self.jobs[file.job].files[file.set].files <= 1.0 { readers.len() as u32 } else { 1 }),
                readers,
                ranges: Vec::new(),
            });
        }
        for process in &self.processes {
            snapshot.processes.push(Process {
                pid: process.pid,
                start_ns: Some(process.start_ns),
                resident: self.node_bytes(&process.resident),
                mapped: mapped.remove(&process.pid).map_or_else(Vec::new, |accesses| self.mapped(accesses)),
            });
        }
        self.network.reads.start();
        self.network.writes.start();
        self.window_began = self.now;
        snapshot
    }

    /// Bytes read and written by a thread in the window, by part of its operation and node.
    fn flows(&self, t: usize, tally: &Tally, of_class: &OfClass) -> (FlowSums, FlowSums) {
        let (mut read, mut written) = (tally.read.clone(), tally.written.clone());
        if let Some(class) = of_class.class(t) {
            sum_up(&mut read, self.network.reads.booked(class));
            sum_up(&mut written, self.network.writes.booked(class));
        }
        (read, written)
    }

    /// A thread's reads and writes in the window, by part of its operation.
    fn parts(&self, t: usize, tally: &Tally, of_class: &OfClass) -> Parts {
        let thread = &self.threads[t];
        let parts = self.jobs[thread.job].roles[thread.role].op.parts.len();
        let mut done = Parts { each: vec![Default::default(); parts], ..Parts::default() };
        let (read, written) = self.flows(t, tally, of_class);
        let whole = |f: &Flow| (f.bytes >= 1.0).then(|| (f.part(), self.machine.nodes()[f.node()].id, f.bytes as u64));
        for (part, node, bytes) in read.iter().filter_map(whole) {
            done.each[part].0.add(node, bytes);
            done.read.add(node, bytes);
        }
        for (part, node, bytes) in written.iter().filter_map(whole) {
            done.each[part].1.add(node, bytes);
            done.written.add(node, bytes);
        }
        done
    }

    fn nodes(&mut self) -> Vec<NodeLoad> {
        let topology = self.machine.topology().clone();
        let nodes = topology.nodes.iter().enumerate().map(|(i, node)| {
            let read_bytes = std::mem::take(&mut self.node_read[i]) as u64;
            let write_bytes = std::mem::take(&mut self.node_written[i]) as u64;
            // What is counted here is exact, and all there is.
            let (source, bytes) = ("simulation".to_owned(), read_bytes.saturating_add(write_bytes));
            NodeLoad {
                read_bytes,
                write_bytes,
                cpu_s: Some(std::mem::take(&mut self.node_cpu_s[i])),
                memory_free: self.free(i).max(0.0) as u64,
                measured: Some(MeasuredLoad { source, bytes, read_bytes: Some(read_bytes) }),
                ..NodeLoad::of(node)
            }
        });
        nodes.collect()
    }

    fn seen(&self, t: usize, tally: &Tally, of_class: &mut OfClass) -> Thread {
        let thread = &self.threads[t];
        let job = &self.jobs[thread.job];
        let op = &job.roles[thread.role].op;
        let mut files: Vec<FileUse> = Vec::new();
        let (mut read_bytes, mut write_bytes) = (NodeBytes::default(), NodeBytes::default());
        if job.fs.counted() {
            // Threads of a class that have done nothing beside it, which is nearly all, are looked
            // at once.
            let as_its_class = tally.read.is_empty() && tally.written.is_empty();
            let own;
            let done = match of_class.class(t).filter(|_| as_its_class) {
                Some(class) => {
                    let known = of_class.parts[class].take().unwrap_or_else(|| self.parts(t, tally, of_class));
                    of_class.parts[class].insert(known)
                }
                None => {
                    own = self.parts(t, tally, of_class);
                    &own
                }
            };
            (read_bytes, write_bytes) = (done.read.clone(), done.written.clone());
            files.reserve_exact(op.parts.len());
            for (part, (read_bytes, write_bytes)) in op.parts.iter().zip(&done.each) {
                files.push(FileUse {
                    file: self.files[thread.files[part.files]].id,
                    read_size: (part.read > 0.0).then_some(part.call as u64),
                    sequential: (part.read > 0.0).then_some(part.sequential),
                    read_bytes: read_bytes.clone(),
                    write_bytes: write_bytes.clone(),
                });
            }
        }
        Thread {
            tid: thread.tid,
            pid: thread.pid,
            comm: job.roles[thread.role].comm.clone(),
            start_ns: Some(thread.start_ns),
            process_start_ns: None,
            node: self.machine.nodes()[thread.node].id,
            allowed_nodes: Vec::new(),
            pinned: None,
            cpu_s: tally.cpu_s,
            wait_s: Some(tally.wait_s),
            served_s: None,
            remote_read_bytes: job.fs.counted().then_some(tally.remote_read as u64),
            read_bytes,
            write_bytes,
            handed_bytes: NodeBytes::default(),
            files,
            shares_file: false,
        }
    }

    /// The files that a thread's operations touch, and in which part.
    fn used(&self, t: usize) -> impl Iterator<Item = (usize, &Part)> + '_ {
        let thread = &self.threads[t];
        self.jobs[thread.job].roles[thread.role].op.parts.iter().map(|p| (thread.files[p.files], p))
    }

    /// Rounds of a thread that pick files; it has at least one file in use at any time.
    fn picks(&self, t: usize, rounds: f64) -> f64 {
        let each: f64 = self.used(t).map(|used| used.1.picks).sum();
        if each > 0.0 { rounds.max(1.0 / each) } else { 0.0 }
    }

    /// Chance that a thread touched a file that another thread touched in the same window. `picked`
    /// counts the files that all threads picked from each file set. Of `n` files, a thread that
    /// picks `a` and others that pick `b` share `a b / n` on average.
    fn meets(&self, t: usize, rounds: f64, readers: &[Vec<u32>], picked: &[f64]) -> f64 {
        let mut common = 0.0;
        for (file, part) in self.used(t).filter(|used| readers[used.0].len() > 1) {
            let files = self.jobs[self.files[file].job].files[self.files[file].set].files;
            if files <= 1.0 {
                return 1.0;
            }
            let own = rounds * part.picks;
            common += own * (picked[file] - own).max(0.0) / files;
        }
        -f64::exp_m1(-common)
    }

    fn node_bytes(&self, shares: &Shares) -> NodeBytes {
        let bytes = shares.iter().filter(|s| s.1 >= 1.0).map(|(n, bytes)| (self.machine.nodes()[*n].id, *bytes as u64));
        bytes.collect()
    }
}
