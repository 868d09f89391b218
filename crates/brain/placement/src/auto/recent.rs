//! The mean of the last windows, as one snapshot.
//!
//! **Problem.** A load like a database's varies by a fifth from one window to the next: compaction
//! writes in one and not in another. A model that is fitted to one window takes what happened in it
//! for what lasts.
//!
//! **Approach.** [`Recent`] keeps the windows since threads or data were last moved, at most
//! [`MOST`]. [`Recent::mean`] sums them up: the places and the facts are those of the last window,
//! bytes and seconds those of all.
//!
//! **Limits.** A thread that the kernel moved between two windows counts where it is now. A thread
//! without a use in the last window, whose process has one, counts as it was, but no plan moves it:
//! it may have ended.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};
use topology::FileId;

use crate::{MeasuredLoad, NodeBytes, NodeLoad, Process, Snapshot, Subject, Thread};

/// Windows that are averaged: as many as a plan waits for the next.
const MOST: usize = 3;

/// The windows since the last moves.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    before: VecDeque<Snapshot>,
}

impl Recent {
    pub fn push(&mut self, snapshot: &Snapshot) {
        if self.before.len() == MOST {
            self.before.pop_front();
        }
        self.before.push_back(snapshot.clone());
    }

    /// Forgets all windows: they are of another load, or of another placement.
    pub fn clear(&mut self) {
        self.before.clear();
    }

    /// All windows as one, whose length is the sum of theirs, and their number; `None` if there are
    /// not two.
    pub fn mean(&self) -> Option<(Snapshot, u32)> {
        if self.before.len() < 2 {
            return None;
        }
        let (last, before) = (self.before.back()?, self.before.iter().rev().skip(1));
        let mut all = last.clone();
        let mut at: FxHashMap<Subject, usize> =
            all.threads.iter().enumerate().map(|(i, t)| (Subject::thread(t), i)).collect();
        let pids: FxHashSet<u32> = last.threads.iter().map(|t| t.pid).collect();
        let process = |p: &Process| (p.pid, p.start_ns);
        let mapped: FxHashMap<_, usize> = all.processes.iter().enumerate().map(|(i, p)| (process(p), i)).collect();
        let mut known: FxHashMap<FileId, usize> = last.files.iter().enumerate().map(|(i, f)| (f.file, i)).collect();
        for window in before {
            all.window_s += window.window_s;
            for load in &window.nodes {
                if let Some(sum) = all.nodes.iter_mut().find(|n| n.id == load.id) {
                    add_load(sum, load);
                }
            }
            for thread in &window.threads {
                match at.get(&Subject::thread(thread)) {
                    Some(i) => add_thread(&mut all.threads[*i], thread),
                    None if pids.contains(&thread.pid) => {
                        at.insert(Subject::thread(thread), all.threads.len());
                        all.threads.push(thread.clone());
                    }
                    None => {}
                }
            }
            for file in &window.files {
                match known.get(&file.file) {
                    None => {
                        known.insert(file.file, all.files.len());
                        all.files.push(file.clone());
                    }
                    // Whether its ranges are counted at all.
                    Some(i) if all.files[*i].ranges.is_empty() => all.files[*i].ranges.clone_from(&file.ranges),
                    Some(_) => {}
                }
            }
            for more in &window.processes {
                if let Some(i) = mapped.get(&process(more)) {
                    add_mapped(&mut all.processes[*i], more);
                }
            }
        }
        Some((all, self.before.len() as u32))
    }
}

fn add_bytes(sum: &mut NodeBytes, more: &NodeBytes) {
    more.iter().for_each(|(node, bytes)| sum.add(node, bytes));
}

/// The sum of two figures that may be unknown.
fn both<T>(a: Option<T>, b: Option<T>, add: fn(T, T) -> T) -> Option<T> {
    Some(add(a?, b?))
}

fn add_load(sum: &mut NodeLoad, more: &NodeLoad) {
    sum.read_bytes = sum.read_bytes.saturating_add(more.read_bytes);
    sum.write_bytes = sum.write_bytes.saturating_add(more.write_bytes);
    sum.cpu_s = both(sum.cpu_s, more.cpu_s, |a, b| a + b);
    sum.measured = both(sum.measured.take(), more.measured.clone(), |a, b| MeasuredLoad {
        source: a.source,
        bytes: a.bytes.saturating_add(b.bytes),
        read_bytes: both(a.read_bytes, b.read_bytes, u64::saturating_add),
    });
}

fn add_thread(sum: &mut Thread, more: &Thread) {
    let remote = both(sum.remote_read_bytes, more.remote_read_bytes, u64::saturating_add);
    sum.remote_read_bytes = remote;
    sum.cpu_s += more.cpu_s;
    sum.wait_s = both(sum.wait_s, more.wait_s, |a, b| a + b);
    sum.served_s = both(sum.served_s, more.served_s, |a, b| a + b);
    add_bytes(&mut sum.read_bytes, &more.read_bytes);
    add_bytes(&mut sum.write_bytes, &more.write_bytes);
    add_bytes(&mut sum.handed_bytes, &more.handed_bytes);
    sum.shares_file |= more.shares_file;
    let at: FxHashMap<FileId, usize> = sum.files.iter().enumerate().map(|(i, f)| (f.file, i)).collect();
    for used in &more.files {
        match at.get(&used.file) {
            Some(i) => {
                add_bytes(&mut sum.files[*i].read_bytes, &used.read_bytes);
                add_bytes(&mut sum.files[*i].write_bytes, &used.write_bytes);
            }
            None => sum.files.push(used.clone()),
        }
    }
}

/// Pages that were touched in one window and in another have been touched twice.
fn add_mapped(sum: &mut Process, more: &Process) {
    for mapped in &more.mapped {
        if let Some(sum) = sum.mapped.iter_mut().find(|m| m.node == mapped.node) {
            sum.hot_bytes = sum.hot_bytes.saturating_add(mapped.hot_bytes);
            sum.touched_bytes = both(sum.touched_bytes, mapped.touched_bytes, u64::saturating_add);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use topology::NodeId;

    use super::*;
    use crate::{FileUse, ObservedFile, testing};

    const OLD: FileId = testing::file(1);
    const NEW: FileId = testing::file(2);

    fn window(tids: &[u32], file: FileId, bytes: u64) -> Snapshot {
        let read_bytes = NodeBytes::from_iter([(NodeId(1), bytes)]);
        let used = FileUse { file, read_bytes: read_bytes.clone(), ..FileUse::default() };
        let thread = |tid: &u32| Thread {
            cpu_s: 0.5,
            wait_s: Some(0.1),
            read_bytes: read_bytes.clone(),
            files: vec![used.clone()],
            ..testing::thread(*tid, 0, &[], 0)
        };
        let nodes = vec![
            NodeLoad { cpu_s: Some(1.0), ..testing::node(0, 1) },
            NodeLoad { read_bytes: bytes, ..testing::node(1, 1) },
        ];
        let files = vec![ObservedFile { file, movable: Some(true), ..ObservedFile::default() }];
        Snapshot { files, ..testing::snapshot(nodes, tids.iter().map(thread).collect()) }
    }

    #[test]
    fn the_mean_has_the_bytes_of_all_windows() {
        let mut recent = Recent::default();
        recent.push(&window(&[1, 2], OLD, 10));
        assert!(recent.mean().is_none());
        recent.push(&window(&[2, 3], NEW, 30));
        let (mean, windows) = recent.mean().unwrap();
        assert_eq!((windows, mean.window_s), (2, 2.0));
        let read = |i: usize| (mean.threads[i].tid, mean.threads[i].read_bytes.get(NodeId(1)), mean.threads[i].cpu_s);
        assert_eq!((mean.threads.len(), read(0), read(1), read(2)), (3, (2, 40, 1.0), (3, 30, 0.5), (1, 10, 0.5)));
        assert_eq!((mean.threads[0].wait_s, mean.threads[0].served_s), (Some(0.2), None));
        assert_eq!(mean.threads[0].files.len(), 2);
        assert_eq!((mean.nodes[1].read_bytes, mean.nodes[0].cpu_s, mean.nodes[1].cpu_s), (40, Some(2.0), None));
        assert_eq!(mean.files.iter().map(|f| f.file).collect::<Vec<_>>(), [NEW, OLD]);
        // Its process has no use of files any more.
        recent.push(&Snapshot { threads: Vec::new(), ..window(&[], NEW, 1) });
        assert!(recent.mean().unwrap().0.threads.is_empty());
    }

    #[test]
    fn old_windows_are_forgotten() {
        let mut recent = Recent::default();
        (0..10).for_each(|i| recent.push(&window(&[1], OLD, i)));
        assert_eq!(recent.mean().unwrap().0.threads[0].read_bytes.total(), 7 + 8 + 9);
        recent.clear();
        assert!(recent.mean().is_none());
    }
}
