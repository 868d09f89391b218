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
//! **Limits.** Other memory traffic counts as mapped-file traffic too, as far as controllers are
//! observed. Reads and writes are told apart by node only.

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
}

impl Mapped {
    /// A thread's share of it.
    pub fn share(&self, t: &Thread) -> f64 {
        if self.cpu_s > 0.0 { sane(t.cpu_s) / self.cpu_s } else { 1.0 / self.threads }
    }
}

/// By process.
pub(super) fn mapped(hardware: &Hardware, snapshot: &Snapshot) -> FxHashMap<u32, Mapped> {
    let mut mapped: FxHashMap<u32, Mapped> = FxHashMap::default();
    for process in &snapshot.processes {
        let touched = process.mapped.iter().map(|m| (m.node, m.touched_bytes.unwrap_or(m.hot_bytes)));
        let nodes: Vec<_> = touched.filter(|m| m.1 > 0).map(|(node, bytes)| (node, bytes as f64, 0.0)).collect();
        if !nodes.is_empty() {
            mapped.insert(process.pid, Mapped { nodes, total: 0, cpu_s: 0.0, threads: 0.0 });
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
            let (reads, writes) =
                ((load.read_bytes as f64 - by_calls.0).max(0.0), (load.write_bytes as f64 - by_calls.1).max(0.0));
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
    use crate::{MappedMemory, NodeLoad, Process};

    /// Seen on a simulated machine: all touched bytes counted as read when the controller served no
    /// more than was touched.
    #[test]
    fn touched_bytes_split_into_reads_and_writes_like_the_controllers() {
        let of = |hot_bytes: u64| {
            let node = NodeId(0);
            let nodes =
                vec![NodeLoad { id: node, cpus: vec![0], read_bytes: 300, write_bytes: 100, ..NodeLoad::default() }];
            let mapped = vec![MappedMemory { node, hot_bytes, cold_bytes: 0, touched_bytes: None }];
            let processes = vec![Process { pid: 1, mapped, ..Process::default() }];
            let threads = vec![Thread { tid: 1, pid: 1, cpu_s: 1.0, ..Thread::default() }];
            let snapshot = Snapshot { window_s: 1.0, nodes, threads, processes, ..Snapshot::default() };
            let hardware = Hardware::new(&snapshot.topology(), &snapshot, &Settings::default());
            super::mapped(&hardware, &snapshot)[&1].nodes.clone()
        };
        assert_eq!(of(400), [(NodeId(0), 300.0, 100.0)]);
        assert_eq!(of(40), [(NodeId(0), 300.0, 100.0)]); // ten times over
        assert_eq!(of(800), [(NodeId(0), 600.0, 200.0)]); // half of it from caches
    }
}
