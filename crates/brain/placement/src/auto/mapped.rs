//! The use of mapped files, which no call shows.
//!
//! **Problem.** For mapped memory, a window shows which pages a process touched, not how often. A
//! program that goes over 64 MB six times a second counts as one that reads 64 MB, which makes
//! everything else look important.
//!
//! **Approach.** The traffic of a node's controller beyond what calls account for belongs to the
//! processes whose hot pages are there, in proportion to the CPU time of their threads. It never
//! exceeds what these threads could have moved in that time if they were next to the node.
//!
//! Where no counter shows a controller's traffic, a program waits for its own memory for a share of
//! its CPU time ([`Settings::own_memory`](super::Settings::own_memory)), and what it touches of
//! mapped files is a part of that memory, beside what else it has resident. The traffic is what it
//! could move in that part of its time from where it runs. As long as nobody knows what else it has
//! resident, only what it touched counts.
//!
//! **Limits.** Other memory traffic counts as mapped-file traffic too, as far as controllers are
//! observed. Without counters the share is a guess, the same for all programs. Reads and writes are
//! told apart by node only. Mapped files do not move, unless they are read by calls as well.

use memory_model::{Shares, add};
use rustc_hash::FxHashMap;
use topology::NodeId;

use super::hardware::Hardware;
use crate::processes::sane;
use crate::{Snapshot, Thread};

/// Mapped memory that a process read and wrote in a window.
pub(super) struct Mapped {
    /// (node, bytes read, bytes written)
    pub nodes: Vec<(NodeId, f64, f64)>,
    pub total: u64,
    /// CPU time of its threads that use no calls, and the number of these threads.
    pub cpu_s: f64,
    pub threads: f64,
    /// Of this, by the node where it was used.
    at: Shares,
    /// Bytes of its own memory; 0 if unknown.
    resident: f64,
}

impl Mapped {
    pub fn share(&self, t: &Thread) -> f64 {
        if self.cpu_s > 0.0 { sane(t.cpu_s) / self.cpu_s } else { 1.0 / self.threads }
    }
}

pub(super) fn mapped(hardware: &Hardware, snapshot: &Snapshot, own_memory: f64) -> FxHashMap<u32, Mapped> {
    let mut mapped: FxHashMap<u32, Mapped> = FxHashMap::default();
    for process in &snapshot.processes {
        let touched = process.mapped.iter().map(|m| (m.node, m.touched_bytes.unwrap_or(m.hot_bytes)));
        let nodes: Vec<_> = touched.filter(|m| m.1 > 0).map(|(node, bytes)| (node, bytes as f64, 0.0)).collect();
        if !nodes.is_empty() {
            let resident = process.resident.total() as f64;
            let (total, cpu_s, threads, at) = Default::default();
            mapped.insert(process.pid, Mapped { nodes, total, cpu_s, threads, at, resident });
        }
    }
    if mapped.is_empty() {
        return mapped;
    }
    let mut called: FxHashMap<NodeId, (f64, f64)> = FxHashMap::default();
    for t in &snapshot.threads {
        t.read_bytes.iter().for_each(|(n, bytes)| called.entry(n).or_default().0 += bytes as f64);
        t.write_bytes.iter().for_each(|(n, bytes)| called.entry(n).or_default().1 += bytes as f64);
        if let Some(m) = mapped.get_mut(&t.pid).filter(|_| t.file_bytes() == 0) {
            m.cpu_s += sane(t.cpu_s);
            m.threads += 1.0;
            hardware.index(t.node).into_iter().for_each(|at| add(&mut m.at, at, sane(t.cpu_s)));
        }
    }
    // CPU time spent on each node's mapped pages.
    let mut pids: Vec<u32> = mapped.keys().copied().collect();
    pids.sort_unstable();
    let mut users: FxHashMap<NodeId, f64> = FxHashMap::default();
    for m in pids.iter().filter_map(|pid| mapped.get(pid)) {
        let hot: f64 = m.nodes.iter().map(|n| n.1).sum();
        m.nodes.iter().for_each(|n| *users.entry(n.0).or_default() += m.cpu_s * n.1 / hot);
    }
    for m in mapped.values_mut() {
        let hot: f64 = m.nodes.iter().map(|n| n.1).sum();
        for (id, read, written) in &mut m.nodes {
            let (Some(load), Some(node)) = (snapshot.nodes.iter().find(|l| l.id == *id), hardware.index(*id)) else {
                continue;
            };
            let (by_calls, all_s) =
                (called.get(id).copied().unwrap_or_default(), users.get(id).copied().unwrap_or(0.0));
            let Some((all_read, all_written)) = load.whole() else {
                // Nobody knows what part of its memory this is.
                if m.resident <= 0.0 {
                    continue;
                }
                // Seconds of its time there, and seconds per byte from where its threads run.
                let waits_s = own_memory * m.cpu_s * *read / (hot + m.resident);
                let far_s: f64 = m.at.iter().map(|(at, cpu_s)| cpu_s * hardware.read_s(*at, node)).sum();
                if far_s > 0.0 {
                    *read = (waits_s * m.cpu_s / far_s).max(*read);
                }
                continue;
            };
            let (reads, writes) = ((all_read - by_calls.0).max(0.0), (all_written - by_calls.1).max(0.0));
            let cpu_s = m.cpu_s * *read / hot;
            let needs_s = reads * hardware.read_s(node, node) + writes * hardware.write_s(node, node);
            if all_s <= 0.0 || needs_s <= 0.0 {
                continue;
            }
            let share = (cpu_s / all_s).min(cpu_s / needs_s);
            // At least the bytes observed as touched, split into reads and writes like the
            // controller's traffic.
            let total = ((reads + writes) * share).max(*read);
            let reads = reads / (reads + writes);
            (*read, *written) = (total * reads, total * (1.0 - reads));
        }
        m.total = m.nodes.iter().map(|n| n.1 + n.2).sum::<f64>() as u64;
    }
    mapped
}

/// Only for threads that use no file calls: for the others, bytes read and written say more.
pub(super) fn mapped_of<'a>(mapped: &'a FxHashMap<u32, Mapped>, t: &Thread) -> Option<&'a Mapped> {
    if t.file_bytes() == 0 { mapped.get(&t.pid) } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;
    use crate::{MappedMemory, MeasuredLoad, NodeLoad, Process, testing};

    /// Seen on a simulated machine: all touched bytes counted as read when the controller served no
    /// more than was touched.
    #[test]
    fn touched_bytes_split_into_reads_and_writes_like_the_controllers() {
        let of = |hot_bytes: u64| {
            let node = NodeId(0);
            let measured = MeasuredLoad { source: "x".into(), bytes: 400, read_bytes: Some(300) };
            let nodes = vec![NodeLoad { measured: Some(measured), ..testing::node(0, 1) }];
            let mapped = vec![MappedMemory { node, hot_bytes, cold_bytes: 0, touched_bytes: None }];
            let processes = vec![Process { pid: 1, mapped, ..Process::default() }];
            let threads = vec![Thread { tid: 1, pid: 1, cpu_s: 1.0, ..Thread::default() }];
            let snapshot = Snapshot { window_s: 1.0, nodes, threads, processes, ..Snapshot::default() };
            let hardware = Hardware::new(&snapshot.topology(), &snapshot, &Settings::default());
            super::mapped(&hardware, &snapshot, 0.2)[&1].nodes.clone()
        };
        assert_eq!(of(400), [(NodeId(0), 300.0, 100.0)]);
        assert_eq!(of(40), [(NodeId(0), 300.0, 100.0)]); // ten times over
        assert_eq!(of(800), [(NodeId(0), 600.0, 200.0)]); // half of it from caches
    }
    /// A program on node 1 goes over 64 MiB of a file on node 0, as fast as it can, and no counter
    /// says how often.
    #[test]
    fn without_counters_traffic_follows_from_the_time_of_the_program() {
        let of = |node: u32, resident: u64, hot_bytes: u64| {
            let mapped = vec![MappedMemory { node: NodeId(0), hot_bytes, cold_bytes: 0, touched_bytes: None }];
            let resident = [(NodeId(1), resident)].into_iter().collect();
            let processes = vec![Process { pid: 1, mapped, resident, ..Process::default() }];
            let threads = vec![Thread { tid: 1, pid: 1, node: NodeId(node), cpu_s: 1.0, ..Thread::default() }];
            let nodes = vec![testing::node(0, 1), testing::node(1, 1)];
            let snapshot = Snapshot { window_s: 1.0, nodes, threads, processes, ..Snapshot::default() };
            let settings = Settings { dram_s: 1e-10, remote_dram: 1.5, ..Settings::default() };
            let hardware = Hardware::new(&snapshot.topology(), &snapshot, &settings);
            let (read_s, far_s) = (hardware.read_s(0, 0), hardware.read_s(1, 0));
            (super::mapped(&hardware, &snapshot, 0.2)[&1].nodes[0].1, read_s, far_s)
        };
        // A fifth of its time.
        let (near, read_s, _) = of(0, 1, 64 << 20);
        assert!((near / (0.2 / read_s) - 1.0).abs() < 1e-6, "{near}");
        let (far, _, far_s) = of(1, 1, 64 << 20);
        assert!((far / (0.2 / far_s) - 1.0).abs() < 1e-6 && far_s > read_s, "{far}");
        // As much memory of its own: half of that.
        assert!((of(0, 64 << 20, 64 << 20).0 / near - 0.5).abs() < 1e-6);
        // It touched more than that: at least so much was read.
        assert_eq!(of(0, 1, 1 << 40).0, (1_u64 << 40) as f64);
        // A page, of a memory of unknown size.
        assert_eq!(of(1, 0, 4096).0, 4096.0);
    }
}
