//! Data in the cost model: files that one thread uses, and groups of files that several threads
//! use.
//!
//! **Problem.** Data that one thread reads can move with it. Data that many threads read draws them
//! together or keeps them apart. Snapshots may list a hundred thousand files.
//!
//! **Approach.** While there are few files with several readers, each is a group of its own. Beyond
//! [`MOST_GROUPS`], files of the same process with most of their bytes on the same node form one
//! group.
//!
//! **Limits.** A merged group moves as a whole or not at all.

use memory_model::{Shares, add};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use topology::FileId;

use super::hardware::Hardware;
use crate::{ObservedFile, Snapshot};

/// The node with the largest share; in a tie, the first.
pub(super) fn main_node(shares: &Shares) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (node, share) in shares {
        if *share > 0.0 && best.is_none_or(|b| *share > b.1 || (*share == b.1 && *node < b.0)) {
            best = Some((*node, *share));
        }
    }
    best.map(|b| b.0)
}

/// Beyond this many shared files, they are merged by process and node: the allowance of a decision
/// solves some thousand changes, and each group has one for each node.
const MOST_GROUPS: usize = 64;

/// Files that several threads use.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// Indices in the snapshot's files.
    pub files: SmallVec<[usize; 1]>,
    /// Shares of its reads by node; if nobody reads it, of its bytes.
    pub places: Shares,
    /// Bytes resident, by node.
    pub bytes: Shares,
    /// Bytes/s written to it.
    pub written: f64,
}

/// All data that the listed threads use.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    pub list: Vec<Group>,
    of: FxHashMap<FileId, usize>,
    files: FxHashMap<FileId, (usize, f64)>,
}

impl Groups {
    pub fn new(hardware: &Hardware, snapshot: &Snapshot, listed: &[usize]) -> Self {
        let mut groups = Self::default();
        let mut users: FxHashMap<FileId, SmallVec<[usize; 4]>> = FxHashMap::default();
        for i in listed {
            for used in &snapshot.threads[*i].files {
                let by = users.entry(used.file).or_default();
                if by.last() != Some(i) {
                    by.push(*i);
                }
            }
        }
        let used = |f: &ObservedFile| users.get(&f.file).map_or(0, SmallVec::len);
        let merge = snapshot.files.iter().filter(|f| used(f) > 1).count() > MOST_GROUPS;
        let mut merged: FxHashMap<(u32, Option<usize>), usize> = FxHashMap::default();
        for (f, observed) in snapshot.files.iter().enumerate() {
            let bytes: Shares = hardware.by_node(&observed.bytes).collect();
            let total: f64 = bytes.iter().map(|b| b.1).sum();
            let Some(by) = users.get(&observed.file).filter(|by| by.len() > 1) else {
                groups.files.insert(observed.file, (f, total));
                continue;
            };
            let pid = snapshot.threads[by[0]].pid;
            let new = groups.list.len();
            let group = if merge { *merged.entry((pid, main_node(&bytes))).or_insert(new) } else { new };
            if group == new {
                groups.list.push(Group::default());
            }
            let g = &mut groups.list[group];
            g.files.push(f);
            bytes.iter().for_each(|(n, b)| add(&mut g.bytes, *n, *b));
            groups.of.insert(observed.file, group);
        }
        groups.use_of(hardware, snapshot, listed);
        groups
    }

    fn use_of(&mut self, hardware: &Hardware, snapshot: &Snapshot, listed: &[usize]) {
        for i in listed {
            let t = &snapshot.threads[*i];
            for used in &t.files {
                let Some(group) = self.of(used.file) else { continue };
                let g = &mut self.list[group];
                hardware.by_node(&used.read_bytes).for_each(|(n, bytes)| add(&mut g.places, n, bytes));
                g.written += used.write_bytes.total() as f64 / snapshot.window_s;
            }
        }
        for g in &mut self.list {
            if g.places.iter().all(|p| p.1 <= 0.0) {
                g.places = g.bytes.clone();
            }
            let all: f64 = g.places.iter().map(|p| p.1).sum();
            g.places.retain(|p| p.1 > 0.0);
            g.places.iter_mut().for_each(|p| p.1 /= all);
        }
    }

    /// The group of a file, if it is shared.
    pub fn of(&self, file: FileId) -> Option<usize> {
        self.of.get(&file).copied()
    }

    /// Index and resident bytes of a file that is not shared.
    pub fn file(&self, file: FileId) -> Option<(usize, f64)> {
        self.files.get(&file).copied()
    }
}
