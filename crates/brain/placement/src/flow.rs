//! The flow of file bytes: how many a thread, a service or a file has read and written, from which
//! node to which, and what of it could be local.
//!
//! What could become local is counted thread by thread: the bytes from its home node, less those of
//! the node where it runs, if it may run at its home. Where threads could run says nothing of
//! whether they would find CPUs and bandwidth there: that is a policy's question.

use std::ops::Deref;

use serde::{Deserialize, Serialize};
use topology::{NodeBytes, NodeId};

use crate::{FileUse, Thread};

/// Bytes, whatever their nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Bytes read.
    pub read_bytes: u64,
    /// Of these, bytes from another node than the reader's.
    pub remote_bytes: u64,
    /// Of these, bytes that would be local if threads ran at their home nodes.
    pub could_be_local_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes handed on by sendfile or splice, which are not among those read.
    #[serde(default)]
    pub handed_bytes: u64,
}

impl Sums {
    /// All bytes of a thread.
    pub fn of_thread(thread: &Thread) -> Self {
        Self {
            read_bytes: thread.read_bytes.total(),
            remote_bytes: thread.remote_bytes(),
            could_be_local_bytes: could_be_local(thread),
            write_bytes: thread.write_bytes.total(),
            handed_bytes: thread.handed_bytes.total(),
        }
    }

    /// A thread's bytes of one file.
    pub fn of_use(thread: &Thread, used: &FileUse) -> Self {
        let read_bytes = used.read_bytes.total();
        let remote_bytes = read_bytes.saturating_sub(used.read_bytes.get(thread.node));
        Self { read_bytes, remote_bytes, write_bytes: used.write_bytes.total(), ..Self::default() }
    }

    /// Adds the bytes of others.
    pub fn add(&mut self, more: Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.read_bytes, more.read_bytes);
        add(&mut self.remote_bytes, more.remote_bytes);
        add(&mut self.could_be_local_bytes, more.could_be_local_bytes);
        add(&mut self.write_bytes, more.write_bytes);
        add(&mut self.handed_bytes, more.handed_bytes);
    }

    /// Bytes read, written and handed on.
    pub fn total(&self) -> u64 {
        self.read_bytes.saturating_add(self.write_bytes).saturating_add(self.handed_bytes)
    }

    /// Share of the bytes read that is from another node; `None` where nothing was read.
    pub fn remote_share(&self) -> Option<f64> {
        self.share(self.remote_bytes)
    }

    /// Share of the bytes read that would be local if threads ran at their home nodes; `None` where
    /// nothing was read.
    pub fn could_be_local_share(&self) -> Option<f64> {
        self.share(self.could_be_local_bytes)
    }

    fn share(&self, part: u64) -> Option<f64> {
        (self.read_bytes > 0).then(|| part as f64 / self.read_bytes as f64)
    }
}

/// Remote bytes of a thread that would be local at its home node.
fn could_be_local(thread: &Thread) -> u64 {
    match thread.home() {
        Some(home) if thread.pinned.is_none() && thread.allowed_nodes.contains(&home) => {
            let gain = thread.read_bytes.get(home).saturating_sub(thread.read_bytes.get(thread.node));
            gain.min(thread.remote_bytes())
        }
        _ => 0,
    }
}

/// Bytes of one pair of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// The node where the threads ran.
    pub cpu_node: NodeId,
    /// The node that holds the bytes.
    pub data_node: NodeId,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Of the bytes read, those that would be local if the threads ran at their home, which is
    /// `data_node` then. No part of the JSON form.
    #[serde(skip)]
    pub could_be_local_bytes: u64,
}

/// Bytes with their nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Whatever their nodes.
    #[serde(flatten)]
    pub sums: Sums,
    /// By pair of nodes, those without bytes left out.
    pub pairs: Vec<Pair>,
}

impl Flow {
    /// Adds all bytes of a thread.
    pub fn add_thread(&mut self, thread: &Thread) {
        let sums = Sums::of_thread(thread);
        self.sums.add(sums);
        self.add_pairs(thread.node, &thread.read_bytes, &thread.write_bytes);
        if let (Some(home), 1..) = (thread.home(), sums.could_be_local_bytes) {
            self.add_pair(Pair {
                cpu_node: thread.node,
                data_node: home,
                could_be_local_bytes: sums.could_be_local_bytes,
                ..Pair::default()
            });
        }
    }

    /// Adds the bytes of another one.
    pub fn add(&mut self, more: &Self) {
        self.sums.add(more.sums);
        more.pairs.iter().for_each(|pair| self.add_pair(*pair));
    }

    /// Adds a thread's bytes of one file.
    pub fn add_use(&mut self, thread: &Thread, used: &FileUse) {
        self.sums.add(Sums::of_use(thread, used));
        self.add_pairs(thread.node, &used.read_bytes, &used.write_bytes);
    }

    fn add_pairs(&mut self, cpu_node: NodeId, read: &NodeBytes, written: &NodeBytes) {
        for (data_node, read_bytes) in read.iter().filter(|(_, bytes)| *bytes > 0) {
            self.add_pair(Pair { cpu_node, data_node, read_bytes, ..Pair::default() });
        }
        for (data_node, write_bytes) in written.iter().filter(|(_, bytes)| *bytes > 0) {
            self.add_pair(Pair { cpu_node, data_node, write_bytes, ..Pair::default() });
        }
    }

    fn add_pair(&mut self, more: Pair) {
        let at = self.pairs.binary_search_by_key(&(more.cpu_node, more.data_node), |p| (p.cpu_node, p.data_node));
        match at.map(|at| self.pairs.get_mut(at)) {
            Ok(Some(pair)) => {
                pair.read_bytes = pair.read_bytes.saturating_add(more.read_bytes);
                pair.write_bytes = pair.write_bytes.saturating_add(more.write_bytes);
                pair.could_be_local_bytes = pair.could_be_local_bytes.saturating_add(more.could_be_local_bytes);
            }
            Ok(None) => {}
            Err(at) => self.pairs.insert(at, more),
        }
    }
}

impl Deref for Flow {
    type Target = Sums;

    fn deref(&self) -> &Sums {
        &self.sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bytes, thread};

    /// Reads 60 MB of node 1 and 20 MB of its own node 0, on which it writes 5 MB.
    fn reader() -> Thread {
        Thread { handed_bytes: bytes(&[(1, 7)]), ..thread(1, 0, &[(0, 20), (1, 60)], 5) }
    }

    #[test]
    fn a_threads_bytes_add_up_by_pair_of_nodes() {
        let mut flow = Flow::default();
        flow.add_thread(&reader());
        flow.add_thread(&thread(2, 1, &[(0, 10)], 0));
        let used =
            FileUse { read_bytes: bytes(&[(0, 1), (1, 4)]), write_bytes: bytes(&[(0, 3)]), ..FileUse::default() };
        flow.add_use(&reader(), &used);
        let mb = |bytes: u64| bytes / 1_000_000;
        let Sums { read_bytes, remote_bytes, could_be_local_bytes, write_bytes, handed_bytes } = flow.sums;
        assert_eq!([read_bytes, remote_bytes, could_be_local_bytes].map(mb), [95, 74, 50]);
        assert_eq!([write_bytes, handed_bytes, flow.total()].map(mb), [8, 7, 110]);
        let pair = |p: &Pair| [p.cpu_node.0.into(), p.data_node.0.into(), mb(p.read_bytes), mb(p.write_bytes)];
        assert_eq!(flow.pairs.iter().map(pair).collect::<Vec<_>>(), [[0, 0, 21, 8], [0, 1, 64, 0], [1, 0, 10, 0]]);
        // Thread 1 would read 60 MB at its home, and reads 20 MB where it is; thread 2 reads 10.
        let could: Vec<u64> = flow.pairs.iter().map(|p| mb(p.could_be_local_bytes)).collect();
        assert_eq!(could, [0, 40, 10]);
        let mut twice = flow.clone();
        twice.add(&flow);
        assert_eq!((twice.read_bytes, twice.pairs[1].read_bytes), (2 * flow.read_bytes, 2 * flow.pairs[1].read_bytes));
        assert_eq!((flow.remote_share(), flow.could_be_local_share()), (Some(74.0 / 95.0), Some(50.0 / 95.0)));
        assert_eq!(Flow::default().remote_share(), None);
    }

    #[test]
    fn what_could_be_local_is_of_threads_that_may_run_at_home() {
        let of = |thread: &Thread| Sums::of_thread(thread).could_be_local_bytes;
        assert_eq!(of(&Thread { pinned: Some("x".into()), ..reader() }), 0);
        assert_eq!(of(&Thread { allowed_nodes: vec![NodeId(0)], ..reader() }), 0);
    }
}
