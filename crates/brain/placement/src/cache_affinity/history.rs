//! Per process: what it has read so far, and when it was moved. A single window does not show this.

use std::collections::BTreeMap;

use topology::{FileId, NodeId};

use crate::processes::other;

/// A process or file not seen for this many seconds is forgotten.
const FORGET_S: f64 = 60.0;
/// A move that was requested in this many consecutive windows but not made is not requested again.
const MAX_ASKED: u32 = 5;
/// Reading has changed when, after smoothing, this share of it comes from other nodes than before.
const CHANGED: f64 = 0.25;
/// Weight of the newest window in the smoothed profile. A reader that picks a node at random for
/// each of ten blocks a window has a standard deviation of 0.16, smoothed 0.16 × √(0.3 / 1.7) =
/// 0.07, which is far from `CHANGED`. A reader that turns to another node shows at once.
const NEWEST: f64 = 0.3;

/// Most readings that are kept of a process, some 100 kB: a scanner reads 16,384 files in a window,
/// and of the 60 windows that are remembered that was 100 MB. `arc-guarded` looks at files of 1 GiB
/// and more, of which none reads a thousand at a time.
const FILES: usize = 1024;

/// Share of a process's file bytes by the node they come from.
pub(super) type Profile = BTreeMap<NodeId, f64>;

/// Half the sum of the differences (total variation): 0 for equal profiles, 1 for disjoint ones.
pub(super) fn difference(a: &Profile, b: &Profile) -> f64 {
    let at = |p: &Profile, n: &NodeId| p.get(n).copied().unwrap_or(0.0);
    let gone: f64 = b.iter().filter(|(n, _)| !a.contains_key(n)).map(|(_, share)| share).sum();
    (a.iter().map(|(n, share)| (share - at(b, n)).abs()).sum::<f64>() + gone) / 2.0
}

/// One process's reading of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// Bytes read since it was first seen.
    pub total: f64,
    last_s: f64,
}

impl Reading {
    /// Whether the reader has started over: it has read more bytes than the file has.
    pub fn repeated(&self, size: f64) -> bool {
        size > 0.0 && self.total > size
    }

    /// Bytes still to be read of a file of `size` bytes. A first pass ends at the end of the file.
    /// A process that has read the file more than once is assumed to read as much again as it has
    /// so far.
    pub fn remaining(&self, size: f64) -> f64 {
        if self.repeated(size) { self.total } else { (size - self.total).max(0.0) }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Start of the process, if known.
    start: Option<u64>,
    pub files: BTreeMap<FileId, Reading>,
    last_s: f64,
    windows: u32,
    /// The latest requested move, and how often it was requested.
    asked: Option<(NodeId, u32)>,
    /// Moves made since the reading last changed, and the profile at that change.
    trips: u32,
    anchor: Profile,
    smooth: Profile,
}

fn smoothed(old: &Profile, new: &Profile) -> Profile {
    let nodes = old.keys().chain(new.keys());
    let at = |p: &Profile, n: &NodeId| p.get(n).copied().unwrap_or(0.0);
    nodes.map(|n| (*n, at(old, n) + NEWEST * (at(new, n) - at(old, n)))).collect()
}

impl History {
    /// Says when the process of this window started. The history of an earlier one with its id is
    /// forgotten.
    pub fn of(&mut self, start: Option<u64>) {
        if other(self.start, start) {
            *self = Self::default();
        }
        self.start = start.or(self.start);
    }

    /// Takes in one window. `files` holds bytes read per file, `profile` the shares by node, and
    /// `home` the node the process is on.
    pub fn observe(&mut self, now_s: f64, files: &BTreeMap<FileId, f64>, profile: &Profile, home: NodeId) {
        self.last_s = now_s;
        self.windows = self.windows.saturating_add(1);
        for (file, bytes) in files {
            let reading = self.files.entry(*file).or_default();
            reading.total += bytes;
            reading.last_s = now_s;
        }
        self.files.retain(|_, f| (0.0..=FORGET_S).contains(&(now_s - f.last_s)));
        self.keep_largest();
        if self.asked.is_some_and(|(to, _)| to == home) {
            self.asked = None;
            self.trips += 1;
        }
        self.smooth = smoothed(&self.smooth, profile);
        if self.anchor.is_empty() || difference(&self.smooth, &self.anchor) > CHANGED {
            self.anchor.clone_from(profile);
            self.smooth.clone_from(profile);
            self.trips = 0;
            self.asked = None;
        }
    }

    /// Forgets the readings with the fewest bytes beyond [`FILES`].
    fn keep_largest(&mut self) {
        let Some(more) = self.files.len().checked_sub(FILES).filter(|more| *more > 0) else { return };
        let mut totals: Vec<f64> = self.files.values().map(|reading| reading.total).collect();
        let (_, least, larger) = totals.select_nth_unstable_by(more, f64::total_cmp);
        let least = *least;
        let mut as_few = FILES - larger.iter().filter(|total| **total > least).count();
        self.files.retain(|_, reading| {
            let stays = reading.total > least || (reading.total == least && as_few > 0);
            as_few -= usize::from(stays && reading.total == least);
            stays
        });
    }

    pub fn windows(&self) -> u32 {
        self.windows
    }

    /// Moves made since the reading last changed.
    pub fn trips(&self) -> u32 {
        self.trips
    }

    /// Requests a move; false if it was requested in vain too often.
    pub fn ask(&mut self, to: NodeId) -> bool {
        let times = self.asked.filter(|(node, _)| *node == to).map_or(0, |(_, times)| times);
        self.asked = Some((to, times.saturating_add(1)));
        times < MAX_ASKED
    }

    pub fn forgotten(&self, now_s: f64) -> bool {
        !(0.0..=FORGET_S).contains(&(now_s - self.last_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::file;

    /// A program that scans a tree: 122 MB for one of them.
    #[test]
    fn of_many_files_the_largest_readings_are_kept() {
        let mut history = History::default();
        for window in 0..60 {
            let first = window * 4_000 + 1;
            let mut files: BTreeMap<FileId, f64> = (first..first + 4_000).map(|ino| (file(ino), 4096.0)).collect();
            files.insert(file(0), 1e9);
            history.observe(window as f64, &files, &Profile::from([(NodeId(0), 1.0)]), NodeId(0));
            assert!(history.files.len() <= FILES, "{}", history.files.len());
        }
        assert_eq!(history.files[&file(0)].total, 60e9);
        // Fewer than that are all kept, whatever their size.
        let mut few = History::default();
        let files = BTreeMap::from([(file(1), 1.0), (file(2), 1e9)]);
        few.observe(0.0, &files, &Profile::new(), NodeId(0));
        assert_eq!(few.files.len(), 2);
    }
}
