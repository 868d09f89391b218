//! What homenode sees of a window: the same snapshot that a host gives, without its sampling errors.

use std::collections::BTreeMap;

use placement::{FileUse, MappedMemory, NodeBytes, NodeLoad, ObservedFile, Process, Snapshot, Thread, snapshot};
use topology::NodeId;

use super::{Shares, Tally, World};

impl World {
    /// The window since the last call, and a new window.
    pub fn observe(&mut self) -> Snapshot {
        self.book();
        let classes = std::mem::take(&mut self.network.threads);
        let mut sums = std::mem::take(&mut self.network.sums);
        self.hand_out(&classes, &mut sums);
        (self.network.threads, self.network.sums) = (classes, sums);
        let window_s = self.now - self.window_began;
        let nodes = self.nodes();
        let mut snapshot = Snapshot {
            version: snapshot::VERSION,
            time_s: self.now,
            window_s,
            nodes,
            threads: Vec::with_capacity(self.threads.len()),
            files: Vec::new(),
            processes: Vec::new(),
            notes: Vec::new(),
        };
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); self.files.len()];
        let all: Vec<NodeId> = self.machine.seats().map(|n| self.machine.nodes()[n].id).collect();
        let mut mapped: BTreeMap<u32, BTreeMap<usize, (f64, f64)>> = BTreeMap::new();
        for t in 0..self.threads.len() {
            let tally = std::mem::take(&mut self.threads[t].window);
            let thread = &self.threads[t];
            if tally.cpu_s <= 0.0 && tally.ops <= 0.0 {
                continue;
            }
            let job = &self.jobs[thread.job];
            if !job.fs.counted() {
                let touched = mapped.entry(thread.pid).or_default();
                for (_, node, read, written) in &tally.flows {
                    let file = &self.files[thread.files[0]];
                    let there: f64 = file.bytes.iter().filter(|s| s.0 == *node).map(|s| s.1).sum();
                    let sum = touched.entry(*node).or_default();
                    sum.0 += (read + written).min(there);
                    sum.1 = there;
                }
            }
            let seen = self.seen(t, &tally);
            for file in self.used(t).filter(|_| job.fs.counted()) {
                if readers[file].last() != Some(&thread.tid) {
                    readers[file].push(thread.tid);
                }
            }
            let allowed_nodes = match &thread.mask {
                None => all.clone(),
                Some(mask) => {
                    let nodes = &self.machine.topology().nodes;
                    nodes.iter().filter(|n| !n.cpus.intersection(mask).is_empty()).map(|n| n.id).collect()
                }
            };
            snapshot.threads.push(Thread {
                // Homenode moves what it has bound itself: only an affinity of the thread's own limits it.
                allowed_nodes: if thread.own_affinity { allowed_nodes } else { all.clone() },
                held: thread.own_affinity.then(|| "has an affinity of its own".to_owned()),
                ..seen
            });
        }
        for thread in &mut snapshot.threads {
            thread.shares_file = self.thread(thread.tid).is_some_and(|t| self.used(t).any(|f| readers[f].len() > 1));
        }
        for (file, readers) in self.files.iter().zip(readers).filter(|(_, r)| !r.is_empty()) {
            snapshot.files.push(ObservedFile {
                file: file.id.clone(),
                path: Some(file.path.clone()),
                size: Some(file.size as u64),
                bytes: self.node_bytes(&file.bytes),
                readers,
            });
        }
        for process in &self.processes {
            let touched = mapped.remove(&process.pid).unwrap_or_default();
            let mapped = touched.into_iter().map(|(node, (hot, there))| MappedMemory {
                node: self.machine.nodes()[node].id,
                hot_bytes: hot as u64,
                cold_bytes: (there - hot).max(0.0) as u64,
                touched_bytes: Some(hot as u64),
            });
            snapshot.processes.push(Process {
                pid: process.pid,
                resident: self.node_bytes(&process.resident),
                mapped: mapped.collect(),
            });
        }
        self.window_began = self.now;
        snapshot
    }

    fn nodes(&mut self) -> Vec<NodeLoad> {
        let topology = self.machine.topology().clone();
        let nodes = topology.nodes.iter().enumerate().map(|(i, node)| NodeLoad {
            id: node.id,
            cpus: node.cpus.iter().collect(),
            distance: node.distance.clone(),
            read_bw_max: node.read_bw_max,
            write_bw_max: node.write_bw_max,
            read_bytes: std::mem::take(&mut self.node_read[i]) as u64,
            write_bytes: std::mem::take(&mut self.node_written[i]) as u64,
            cpu_s: Some(std::mem::take(&mut self.node_cpu_s[i])),
            memory_free: self.free(i).max(0.0) as u64,
        });
        let nodes: Vec<NodeLoad> = nodes.collect();
        nodes
    }

    fn seen(&self, t: usize, tally: &Tally) -> Thread {
        let thread = &self.threads[t];
        let job = &self.jobs[thread.job];
        let op = &job.roles[thread.role].op;
        let mut files: Vec<FileUse> = Vec::new();
        let (mut read_bytes, mut write_bytes) = (NodeBytes::default(), NodeBytes::default());
        if job.fs.counted() {
            for (p, part) in op.parts.iter().enumerate() {
                let mut used = FileUse {
                    file: self.files[thread.files[part.files]].id.clone(),
                    read_size: (part.read > 0.0).then_some(part.call as u64),
                    sequential: (part.read > 0.0).then_some(part.sequential),
                    ..FileUse::default()
                };
                for (_, node, read, written) in tally.flows.iter().filter(|f| f.0 == p) {
                    let node = self.machine.nodes()[*node].id;
                    for (sum, bytes) in [(&mut used.read_bytes, *read), (&mut used.write_bytes, *written)] {
                        if bytes >= 1.0 {
                            sum.add(node, bytes as u64);
                        }
                    }
                }
                used.read_bytes.iter().for_each(|(n, b)| read_bytes.add(n, b));
                used.write_bytes.iter().for_each(|(n, b)| write_bytes.add(n, b));
                files.push(used);
            }
        }
        Thread {
            tid: thread.tid,
            pid: thread.pid,
            comm: job.roles[thread.role].comm.clone(),
            start_ns: Some(thread.start_ns),
            node: self.machine.nodes()[thread.node].id,
            allowed_nodes: Vec::new(),
            held: None,
            cpu_s: tally.cpu_s,
            wait_s: Some(tally.wait_s),
            remote_read_bytes: job.fs.counted().then_some(tally.remote_read as u64),
            read_bytes,
            write_bytes,
            files,
            shares_file: false,
        }
    }

    /// The files that a thread's operations touch.
    fn used(&self, t: usize) -> impl Iterator<Item = usize> + '_ {
        let thread = &self.threads[t];
        self.jobs[thread.job].roles[thread.role].op.parts.iter().map(|p| thread.files[p.files])
    }

    fn node_bytes(&self, shares: &Shares) -> NodeBytes {
        let bytes = shares.iter().filter(|s| s.1 >= 1.0).map(|(n, bytes)| (self.machine.nodes()[*n].id, *bytes as u64));
        bytes.collect()
    }
}
