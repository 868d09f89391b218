//! Per process: what it has read so far, and when it was moved. A single window does not show this.

use std::collections::BTreeMap;

use topology::NodeId;

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

/// One process.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub files: BTreeMap<String, Reading>,
    last_s: f64,
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
    /// Takes in one window. `files` holds bytes read per file, `profile` the shares by node, and
    /// `home` the node the process is on.
    pub fn observe(&mut self, now_s: f64, files: &BTreeMap<&str, f64>, profile: &Profile, home: NodeId) {
        self.last_s = now_s;
        for (file, bytes) in files {
            let reading = self.files.entry((*file).to_owned()).or_default();
            reading.total += bytes;
            reading.last_s = now_s;
        }
        self.files.retain(|_, f| (0.0..=FORGET_S).contains(&(now_s - f.last_s)));
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
