//! The request queue (Dragonfly III-A): files of threads that could not go to their overloaded home
//! node.
//!
//! **Problem.** One window does not show which files are hot, which threads need them, and whether
//! that lasts.
//!
//! **Approach.** While a node is overloaded, each window adds the reads of each queued file, by the
//! reader's node. When the queue is emptied, files are ranked by benefit per byte moved and taken
//! from the top.
//!
//! **Limits.** A file moves to one node, that of the readers who read most of it. The others read
//! it remotely.

use std::collections::BTreeMap;

use topology::{FileId, NodeId};

#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    /// Its bytes on the overloaded node, as last counted; 0 until counted.
    pub bytes: f64,
    /// Bytes of it read from the overloaded node, by the reader's node.
    readers: BTreeMap<NodeId, f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    pub file: FileId,
    /// The node whose threads read most of the file remotely.
    pub to: NodeId,
    pub bytes: f64,
    /// Bytes/s read by threads on `to`.
    pub remote_bw: f64,
    /// Bytes/s that threads on the overloaded node read; these would become remote.
    pub local_bw: f64,
}

impl Offer {
    /// Bytes/s that become local, less bytes/s that become remote, per byte moved.
    pub fn benefit(&self) -> f64 {
        (self.remote_bw - self.local_bw) / self.bytes
    }
}

/// Files that wait for the relief of one overloaded node.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub source: Option<NodeId>,
    /// Seconds since the first request.
    pub waited_s: f64,
    requests: BTreeMap<FileId, Request>,
    /// Files taken out because their data cannot be moved.
    immovable: usize,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn contains(&self, file: FileId) -> bool {
        self.requests.contains_key(&file)
    }

    /// Counts one more window. A queue for a different node starts anew.
    pub fn pass(&mut self, window_s: f64, source: NodeId) {
        if self.source != Some(source) {
            *self = Self { source: Some(source), ..Self::default() };
        }
        if !self.requests.is_empty() {
            self.waited_s += window_s;
        }
    }

    /// Records that a thread on `reader` read `bytes` of the file from the overloaded node. Only a
    /// remote reader adds a file.
    pub fn read(&mut self, window_s: f64, file: FileId, reader: NodeId, bytes: f64) {
        if Some(reader) != self.source && !self.requests.contains_key(&file) {
            if self.requests.is_empty() {
                self.waited_s = window_s;
            }
            self.requests.insert(file, Request::default());
        }
        if let Some(request) = self.requests.get_mut(&file) {
            *request.readers.entry(reader).or_default() += bytes;
        }
    }

    /// Records that `bytes` of the file are on the overloaded node.
    pub fn resident(&mut self, file: FileId, bytes: f64) {
        if let Some(request) = self.requests.get_mut(&file) {
            request.bytes = bytes;
        }
    }

    /// Takes a file out: its data cannot be moved.
    pub fn remove(&mut self, file: FileId) {
        if self.requests.remove(&file).is_some() {
            self.immovable += 1;
        }
    }

    /// Files taken out because their data cannot be moved, since the last call.
    pub fn take_immovable(&mut self) -> usize {
        std::mem::take(&mut self.immovable)
    }

    /// The effect of moving each file, most benefit per byte first; ties by file id. Files of
    /// unknown size are left out, because they cannot be ranked.
    pub fn offers(&self) -> Vec<Offer> {
        let mut offers: Vec<Offer> =
            self.requests.iter().filter(|(_, r)| r.bytes > 0.0).filter_map(|(f, r)| self.offer(*f, r)).collect();
        offers.sort_by(|a, b| b.benefit().total_cmp(&a.benefit()).then_with(|| a.file.cmp(&b.file)));
        offers
    }

    fn offer(&self, file: FileId, request: &Request) -> Option<Offer> {
        let source = self.source?;
        let remote = request.readers.iter().filter(|(node, _)| **node != source);
        let (to, most) = remote.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)))?;
        let here = request.readers.get(&source).copied().unwrap_or(0.0);
        let per_s = |bytes: f64| bytes / self.waited_s;
        let (remote_bw, local_bw) = (per_s(*most), per_s(here));
        Some(Offer { file, to: *to, bytes: request.bytes, remote_bw, local_bw })
    }

    pub fn unknown(&self) -> usize {
        self.requests.values().filter(|r| r.bytes <= 0.0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::file;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);
    const C: NodeId = NodeId(2);
    const LARGE: FileId = file(1);
    const SMALL: FileId = file(2);

    #[test]
    fn files_come_out_by_benefit_per_byte() {
        let mut queue = Queue::default();
        queue.pass(1.0, A);
        // Per window: B reads 100 MB of large; C reads 50 MB and A reads 20 MB of small.
        for window in 0..2 {
            if window > 0 {
                queue.pass(1.0, A);
            }
            queue.read(1.0, LARGE, B, 100e6);
            queue.read(1.0, SMALL, C, 50e6);
            queue.read(1.0, SMALL, A, 20e6);
        }
        queue.resident(LARGE, 2e9);
        queue.resident(SMALL, 100e6);
        let offers = queue.offers();
        assert_eq!(queue.waited_s, 2.0);
        // (50 − 20) MB/s / 100 MB = 0.3 per s; 100 MB/s / 2 GB = 0.05 per s.
        assert_eq!(offers.iter().map(|o| o.file).collect::<Vec<_>>(), [SMALL, LARGE]);
        assert!((offers[0].benefit() - 0.3).abs() < 1e-12 && (offers[1].benefit() - 0.05).abs() < 1e-12);
        assert_eq!((offers[0].to, offers[1].to), (C, B));
    }

    #[test]
    fn local_readers_add_no_file_and_another_source_starts_anew() {
        let mut queue = Queue::default();
        queue.pass(1.0, A);
        queue.read(1.0, SMALL, A, 1e9);
        assert!(queue.is_empty());
        queue.read(1.0, SMALL, B, 1.0);
        assert!(!queue.is_empty() && queue.offers().is_empty() && queue.unknown() == 1);
        queue.pass(1.0, B);
        assert!(queue.is_empty() && queue.waited_s == 0.0);
    }
}
