//! The heat of ranges of files: how much of each was read lately, and in how many windows. Pure.
//!
//! **Problem.** One window cannot tell what a program comes back to from what it reads through
//! once, and a machine has more ranges of files than may be remembered.
//!
//! **Approach.** An entry is a range of a file, the node of its data and that of its readers. It
//! has a sum of bytes of which half is lost in [`HALF_LIFE`] windows, and a bit for each of the
//! last 32 windows. Both are brought up to date when the range is read or asked for, so a window
//! costs nothing for what it did not read. What 32 windows have not read is *idle*: it is kept,
//! because what is to go down to slower memory is what was not read for longest. Every [`SWEEP`]
//! windows all but the latest [`MOST_IDLE`] of these are forgotten; and whenever there are more
//! than [`MOST`] entries, the coldest are. A range that homenode moves takes its heat along.
//!
//! **Limits.** An entry takes 25 bytes and the table has room for up to 2^21 of them: 52 MB for
//! [`MOST`], and in proportion for fewer. A file takes up to 84 bytes more, so a million files of
//! one range take 140 MB, and 80 MB more for a moment when idle ones are searched. A window lists
//! at most [`LISTED`] entries, the hottest of those that it read; a machine on which more are hot
//! is told so by the bytes of its nodes, not by its ranges. Of those that it did not read it lists
//! [`LISTED_IDLE`] of each node: half of them the oldest, while the others change from search to
//! search, so that all are listed in turn. Where the kernel moved or reclaimed an idle range shows
//! only when it is read again, or when a move of it finds nothing. Reads through a mapping are not
//! counted: what is only mapped looks idle.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use rustc_hash::{FxHashMap, FxHashSet};
use topology::{FileId, NodeId};

use crate::{FileRange, IdleRange, RANGE_BYTES, RangeHeat};

/// Windows in which heat is halved. A policy asks for several windows of reuse, and by then the
/// first of them must still count; and what a load left is to be cold after half a minute.
const HALF_LIFE: f32 = 8.0;
/// Most entries: 2 TB of data that is read by one node each.
const MOST: usize = 1_000_000;
/// Most entries that a window lists: half a megabyte, and of so many the last has hardly a
/// hundredth of a per cent of the bytes.
const LISTED: usize = 16_384;
/// Windows between two looks for what is not read any more.
const SWEEP: u32 = 32;
/// Most entries that are kept of what 32 windows have not read: half a terabyte of cold cache.
const MOST_IDLE: usize = MOST / 4;
/// Most idle ranges that a window lists of a node: half a gigabyte, twice what promotion copies in
/// a second.
const LISTED_IDLE: usize = 256;
/// Windows between two searches of the whole table for idle ranges, unless most of those found are
/// gone.
const SEARCH: u32 = 8;
/// Most windows between the reads of two parts of a range on two nodes by one who reads through it:
/// a window may end between them.
const APART: u32 = 1;

/// What a plane counts the bytes of: one range of a file, the node of its data, and that of the
/// CPUs that read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeKey {
    /// The file, in one life of its inode number.
    pub file: FileId,
    /// Position in the file / [`RANGE_BYTES`].
    pub range: u32,
    /// The node that the bytes were on.
    pub node: u16,
    /// The node that they were read from.
    pub by: u16,
}

/// A range, the node of its data and that of its readers. The file by its number in
/// [`Ranges::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    file: u32,
    range: u32,
    node: u16,
    by: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Heat {
    /// Bytes, as of the window `last`.
    bytes: f32,
    last: u32,
    /// A bit for each window in which it was read; the lowest is that of `last`.
    seen: u32,
}

impl Heat {
    /// The same as of a later window.
    fn at(self, window: u32) -> Self {
        let passed = window.saturating_sub(self.last);
        let bytes = self.bytes * (-(passed as f32) / HALF_LIFE).exp2();
        Self { bytes, last: window, seen: self.seen.checked_shl(passed).unwrap_or(0) }
    }
}

/// What is known of a range on one node.
#[derive(Clone, Copy, Debug)]
struct OnNode {
    /// The entry of those who read it last.
    newest: Key,
    /// When that was, and what all have read.
    heat: Heat,
    /// It was read on another node, clearly later.
    elsewhere: bool,
}

/// What is remembered of ranges.
#[derive(Debug, Default)]
pub struct Ranges {
    files: FxHashMap<FileId, u32>,
    /// The sizes of files by their numbers, as far as they are known.
    sizes: FxHashMap<u32, u64>,
    next: u32,
    heat: FxHashMap<Key, Heat>,
    window: u32,
    /// Nodes that an entry has or had, of data or of readers.
    nodes: BTreeSet<u16>,
    /// What is left of what the last search found, how much that was, and in which window.
    idle: Vec<(FileId, Key)>,
    found: usize,
    searched: Option<u32>,
    /// How far the searches of each node have come: when the last range of one was read, and which
    /// it was.
    past: FxHashMap<NodeId, (u32, Key)>,
}

impl Ranges {
    /// Takes in what was read in a window from each range. Returns the ranges read in it by file,
    /// in the order of a snapshot.
    pub fn window(&mut self, read: &[(RangeKey, u64)]) -> BTreeMap<FileId, Vec<RangeHeat>> {
        self.window += 1;
        let mut seen = Vec::with_capacity(read.len());
        for (key, bytes) in read.iter().filter(|(_, bytes)| *bytes > 0) {
            let number = *self.files.entry(key.file).or_insert_with(|| {
                self.next += 1;
                self.next
            });
            let of = Key { file: number, range: key.range, node: key.node, by: key.by };
            self.nodes.extend([key.node, key.by]);
            let heat = self.heat.entry(of).or_default();
            *heat = heat.at(self.window);
            heat.bytes += *bytes as f32;
            heat.seen |= 1;
            seen.push((key.file, of, *heat));
        }
        if self.heat.len() > MOST {
            self.forget_coldest(MOST - MOST / 8);
        }
        if self.window.is_multiple_of(SWEEP) || self.files.len() > MOST {
            self.sweep();
        }
        list(seen)
    }

    /// Whether a file has a range that is remembered, or had one lately.
    pub fn knows(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// A file is of this size.
    pub fn size(&mut self, file: FileId, size: Option<u64>) {
        if let Some((number, size)) = self.files.get(&file).zip(size) {
            self.sizes.insert(*number, size);
        }
    }

    /// Whether a range is less than 2 MiB, by what is known of its file.
    fn is_tail(&self, key: Key) -> bool {
        self.sizes.get(&key.file).is_some_and(|size| *size < (u64::from(key.range) + 1) * RANGE_BYTES)
    }

    /// The ranges of these nodes that the last window did not read, by file: of each node some that
    /// were not read for longest ([`Ranges::search`]). Without the ends of files and small files: a
    /// copy of their few pages brings little.
    pub fn idle(&mut self, on: &[NodeId]) -> BTreeMap<FileId, Vec<IdleRange>> {
        let due = self.searched.is_none_or(|searched| self.window >= searched + SEARCH);
        // More may be there for what has gone down.
        if due || self.idle.len() < self.found / 2 {
            self.search(on);
        }
        let mut all: BTreeMap<FileId, Vec<IdleRange>> = BTreeMap::new();
        let mut idle = std::mem::take(&mut self.idle);
        // What was read or moved since is idle no longer, or not there.
        idle.retain(|(file, key)| {
            let known = self.files.get(file) == Some(&key.file);
            let found = self.on_node(*key).filter(|of| known && !of.elsewhere && of.heat.last < self.window);
            if let Some(OnNode { heat, .. }) = found {
                let (start, node) = (u64::from(key.range) * RANGE_BYTES, NodeId(key.node.into()));
                let windows = self.window - heat.last;
                let bytes = heat.at(self.window).bytes as u64;
                all.entry(*file).or_default().push(IdleRange { start, node, bytes, windows });
            }
            found.is_some()
        });
        self.idle = idle;
        all
    }

    /// Finds ranges of these nodes that are not read: half of them those that were not read for
    /// longest, which a policy may have to leave there; the others from search to search the next
    /// in that order.
    fn search(&mut self, on: &[NodeId]) {
        self.searched = Some(self.window);
        self.idle.clear();
        let names: FxHashMap<u32, FileId> = self.files.iter().map(|(file, number)| (*number, *file)).collect();
        for node in on {
            let here = |key: &Key| u32::from(key.node) == node.0;
            let window = self.window;
            let of_node =
                self.heat.iter().filter(|(key, heat)| here(key) && heat.last < window && !self.is_tail(**key));
            let mut oldest: BinaryHeap<Reverse<(u32, Key)>> =
                of_node.map(|(key, heat)| Reverse((heat.last, *key))).collect();
            self.take(&mut oldest, LISTED_IDLE / 2, &names);
            if let Some(past) = self.past.remove(node) {
                oldest.retain(|Reverse(entry)| *entry > past);
            }
            let last = self.take(&mut oldest, LISTED_IDLE / 2, &names);
            // After the youngest, the oldest come again.
            if let Some(last) = last.filter(|_| !oldest.is_empty()) {
                self.past.insert(*node, last);
            }
        }
        self.idle.sort_unstable_by_key(|(file, key)| (*file, key.range, key.node));
        self.found = self.idle.len();
    }

    /// Lists so many of the oldest of these entries. Returns the last that it has taken.
    fn take(
        &mut self,
        oldest: &mut BinaryHeap<Reverse<(u32, Key)>>,
        most: usize,
        names: &FxHashMap<u32, FileId>,
    ) -> Option<(u32, Key)> {
        let (mut found, mut last) = (0, None);
        while found < most
            && let Some(Reverse((read, key))) = oldest.pop()
        {
            last = Some((read, key));
            let (Some(of), Some(file)) = (self.on_node(key), names.get(&key.file)) else {
                self.heat.remove(&key);
                continue;
            };
            // What others read since is younger than what it says, and what is read elsewhere is
            // not here. Such entries would be the oldest for good.
            let window = self.window;
            let stale = of.newest != key && self.heat.get(&key).is_some_and(|heat| heat.at(window).seen == 0);
            if of.elsewhere || stale {
                self.heat.remove(&key);
            } else if of.newest == key {
                found += 1;
                self.idle.push((*file, key));
            }
        }
        last
    }

    /// What is known of a range on the node of this entry, whoever read it.
    fn on_node(&self, of: Key) -> Option<OnNode> {
        let on = |node: u16| self.nodes.iter().map(move |by| Key { node, by: *by, ..of });
        let here: Vec<(Key, Heat)> = on(of.node).filter_map(|key| Some((key, *self.heat.get(&key)?))).collect();
        let (newest, latest) = *here.iter().max_by_key(|(key, heat)| (heat.last, *key))?;
        let bytes = here.iter().map(|(_, heat)| heat.at(latest.last).bytes).sum();
        let mut others = self.nodes.iter().filter(|node| **node != of.node).flat_map(|node| on(*node));
        let elsewhere = others.any(|key| self.heat.get(&key).is_some_and(|heat| heat.last > latest.last + APART));
        Some(OnNode { newest, heat: Heat { bytes, ..latest }, elsewhere })
    }

    /// These bytes of a file are moved from a node to another. Their heat goes with them.
    pub fn moved(&mut self, file: FileId, ranges: &[FileRange], from: NodeId, to: NodeId) {
        let (Some(number), Ok(from), Ok(to)) = (self.files.get(&file), u16::try_from(from.0), u16::try_from(to.0))
        else {
            return;
        };
        let number = *number;
        self.nodes.insert(to);
        for range in ranges.iter().flat_map(FileRange::ranges) {
            for by in &self.nodes {
                let key = |node| Key { file: number, range, node, by: *by };
                let Some(heat) = self.heat.remove(&key(from)) else { continue };
                let there = self.heat.entry(key(to)).or_default();
                let last = heat.last.max(there.last);
                let (a, b) = (heat.at(last), there.at(last));
                *there = Heat { bytes: a.bytes + b.bytes, last, seen: a.seen | b.seen };
            }
        }
    }

    /// Forgets these parts of a file on a node: nothing of them is there that could be moved.
    pub fn forget(&mut self, file: FileId, ranges: &[FileRange], node: NodeId) {
        let (Some(number), Ok(node)) = (self.files.get(&file), u16::try_from(node.0)) else { return };
        for range in ranges.iter().flat_map(FileRange::ranges) {
            for by in &self.nodes {
                self.heat.remove(&Key { file: *number, range, node, by: *by });
            }
        }
    }

    /// Forgets a file that is gone. Its entries go when they are met.
    pub fn gone(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    /// Forgets what was not read for longest, of what none of the last 32 windows has read, and
    /// files without a range.
    fn sweep(&mut self) {
        let window = self.window;
        let cold = |heat: &Heat| heat.at(window).seen == 0;
        let mut ages: Vec<u32> = self.heat.values().filter(|heat| cold(heat)).map(|heat| heat.last).collect();
        if let Some(mut over) = ages.len().checked_sub(MOST_IDLE).filter(|over| *over > 0) {
            let (_, oldest, _) = ages.select_nth_unstable(over - 1);
            let oldest = *oldest;
            self.heat.retain(|_, heat| {
                let goes = over > 0 && cold(heat) && heat.last <= oldest;
                over -= usize::from(goes);
                !goes
            });
        }
        self.heat.shrink_to(2 * self.heat.len());
        let used: FxHashSet<u32> = self.heat.keys().map(|key| key.file).collect();
        self.files.retain(|_, number| used.contains(number));
        self.files.shrink_to(2 * self.files.len());
        self.sizes.retain(|number, _| used.contains(number));
        self.sizes.shrink_to(2 * self.sizes.len());
    }

    /// Forgets the entries with the fewest bytes, until so many are left.
    fn forget_coldest(&mut self, left: usize) {
        let window = self.window;
        let mut bytes: Vec<f32> = self.heat.values().map(|heat| heat.at(window).bytes).collect();
        let over = bytes.len().saturating_sub(left);
        if over == 0 {
            return;
        }
        let (_, least, _) = bytes.select_nth_unstable_by(over - 1, f32::total_cmp);
        let least = *least;
        let mut over = over;
        self.heat.retain(|_, heat| {
            let goes = over > 0 && heat.at(window).bytes <= least;
            over -= usize::from(goes);
            !goes
        });
    }
}

fn list(mut seen: Vec<(FileId, Key, Heat)>) -> BTreeMap<FileId, Vec<RangeHeat>> {
    if seen.len() > LISTED {
        seen.select_nth_unstable_by(LISTED, |a, b| b.2.bytes.total_cmp(&a.2.bytes));
        seen.truncate(LISTED);
    }
    seen.sort_unstable_by_key(|(file, key, _)| (*file, key.range, key.node, key.by));
    let mut listed: BTreeMap<FileId, Vec<RangeHeat>> = BTreeMap::new();
    for (file, key, heat) in seen {
        listed.entry(file).or_default().push(RangeHeat {
            start: u64::from(key.range) * RANGE_BYTES,
            node: NodeId(key.node.into()),
            by: NodeId(key.by.into()),
            bytes: heat.bytes as u64,
            windows: heat.seen.count_ones(),
        });
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn file(ino: u64) -> FileId {
        FileId { dev: 1, ino, generation: 7 }
    }

    fn key(ino: u64, range: u32, node: u16, by: u16) -> RangeKey {
        RangeKey { file: file(ino), range, node, by }
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<(Key, Heat)>() <= 24, "{}", size_of::<(Key, Heat)>());
    }

    #[test]
    fn bytes_age_and_windows_are_counted_apart_by_reader() {
        let mut ranges = Ranges::default();
        for _ in 0..3 {
            ranges.window(&[(key(5, 9, 2, 0), 4 * MIB), (key(5, 9, 2, 1), MIB)]);
        }
        // Eight windows in which something else is read.
        for _ in 0..7 {
            assert_eq!(ranges.window(&[(key(6, 0, 2, 0), 1)])[&file(6)].len(), 1);
        }
        let listed = ranges.window(&[(key(5, 9, 2, 0), MIB)]);
        let [heat] = listed[&file(5)][..] else { panic!("{listed:?}") };
        assert_eq!((heat.start, heat.node, heat.by, heat.windows), (9 * RANGE_BYTES, NodeId(2), NodeId(0), 4));
        // The third of the first windows counts half, the others a little less.
        let half = 4.0 * MIB as f64 * 0.5 * (1.0 + 2f64.powf(-1.0 / 8.0) + 2f64.powf(-2.0 / 8.0));
        let expected = half + MIB as f64;
        assert!((heat.bytes as f64 - expected).abs() < 0.001 * expected, "{} of {expected}", heat.bytes);
    }

    fn idle(ranges: &mut Ranges, on: u32) -> Vec<(u64, u64, u64, u32)> {
        let all = ranges.idle(&[NodeId(on)]);
        let listed = all.iter().flat_map(|(file, idle)| idle.iter().map(move |range| (file.ino, range)));
        listed.map(|(ino, range)| (ino, range.start / RANGE_BYTES, range.bytes, range.windows)).collect()
    }

    #[test]
    fn what_is_not_read_any_more_is_idle() {
        let mut ranges = Ranges::default();
        ranges.window(&[(key(5, 0, 0, 0), 4 * MIB), (key(5, 7, 0, 1), MIB), (key(5, 8, 1, 0), MIB)]);
        assert_eq!(idle(&mut ranges, 0), []);
        for _ in 0..8 {
            ranges.window(&[(key(6, 0, 0, 0), 9)]);
        }
        assert_eq!(idle(&mut ranges, 0), [(5, 0, 2 * MIB, 8), (5, 7, MIB / 2, 8)]);
        // One is read again, by another node.
        ranges.window(&[(key(5, 7, 0, 0), MIB)]);
        let left: Vec<_> = idle(&mut ranges, 0).iter().map(|range| (range.0, range.1, range.3)).collect();
        assert_eq!(left, [(5, 0, 9)]);
        for _ in 0..SEARCH {
            ranges.window(&[(key(7, 0, 0, 0), 9)]);
        }
        let found: Vec<_> = idle(&mut ranges, 0).iter().map(|range| (range.0, range.1, range.3)).collect();
        assert_eq!(found, [(5, 0, 17), (5, 7, 8), (6, 0, 9)]);
    }

    /// What was moved was offered again, and what the kernel had moved for ever.
    #[test]
    fn what_is_elsewhere_is_not_idle_here() {
        let mut ranges = Ranges::default();
        for _ in 0..3 {
            ranges.window(&[(key(5, 3, 0, 0), MIB), (key(5, 4, 0, 0), MIB), (key(5, 5, 0, 0), MIB)]);
        }
        ranges.window(&[(key(6, 0, 1, 0), 9)]);
        assert_eq!(idle(&mut ranges, 0).len(), 3);
        let part = FileRange { start: 3 * RANGE_BYTES, bytes: 2 * RANGE_BYTES };
        ranges.moved(file(5), &[part], NodeId(0), NodeId(2));
        // The kernel moved the third, which shows when it is read.
        ranges.window(&[(key(5, 5, 2, 1), MIB)]);
        assert_eq!(idle(&mut ranges, 0), []);
        let entries = ranges.heat.len();
        for _ in 0..SEARCH {
            ranges.window(&[]);
        }
        assert_eq!((idle(&mut ranges, 0), ranges.heat.len()), (vec![], entries - 1));
        let there = idle(&mut ranges, 2);
        assert!(there.is_empty(), "searched for another node: {there:?}");
        // Its heat went along: it is as hot as before, in as many windows.
        let listed = ranges.window(&[(key(5, 3, 2, 0), MIB)]);
        assert_eq!((listed[&file(5)][0].node, listed[&file(5)][0].windows), (NodeId(2), 4));
        assert!(listed[&file(5)][0].bytes > 3 * MIB / 2, "{listed:?}");
    }

    /// Entries of earlier readers were the oldest for good, and left no place for others.
    #[test]
    fn what_others_read_since_hides_nothing() {
        let mut ranges = Ranges::default();
        let all = |by: u16| (0..2000).map(|range| (key(5, range, 0, by), MIB)).collect::<Vec<_>>();
        ranges.window(&all(1));
        ranges.window(&[(key(6, 0, 0, 0), MIB), (key(6, 1, 0, 0), MIB)]);
        for _ in 0..3 * SEARCH {
            ranges.window(&all(0));
            let idle: Vec<_> = idle(&mut ranges, 0).iter().map(|range| (range.0, range.1)).collect();
            assert_eq!(idle, [(6, 0), (6, 1)]);
        }
        // Once they are cold they are forgotten, and what all have read counts until then.
        for _ in 0..SWEEP + SEARCH {
            ranges.window(&all(0));
            idle(&mut ranges, 0);
        }
        assert_eq!(ranges.heat.len(), 2002);
    }

    /// One of the two was forgotten.
    #[test]
    fn a_range_on_two_nodes_is_idle_on_both() {
        let mut ranges = Ranges::default();
        ranges.window(&[(key(5, 0, 0, 0), MIB), (key(5, 0, 1, 0), MIB), (key(5, 1, 0, 0), MIB)]);
        // A window ended within the range.
        ranges.window(&[(key(5, 1, 1, 0), MIB)]);
        ranges.window(&[]);
        let all = ranges.idle(&[NodeId(0), NodeId(1)]);
        let listed: Vec<_> = all[&file(5)].iter().map(|idle| (idle.start / RANGE_BYTES, idle.node.0)).collect();
        assert_eq!(listed, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }

    /// Thousands of small files took the rate and the room of whole ranges.
    #[test]
    fn small_files_and_ends_are_not_idle() {
        let mut ranges = Ranges::default();
        ranges.window(&[
            (key(5, 0, 0, 0), MIB),
            (key(5, 1, 0, 0), MIB),
            (key(6, 0, 0, 0), MIB),
            (key(7, 0, 0, 0), MIB),
        ]);
        ranges.size(file(5), Some(2 * RANGE_BYTES - 1));
        ranges.size(file(6), Some(4096));
        ranges.size(file(7), None);
        ranges.window(&[]);
        let listed: Vec<_> = idle(&mut ranges, 0).iter().map(|range| (range.0, range.1)).collect();
        assert_eq!(listed, [(5, 0), (7, 0)]);
    }

    #[test]
    fn what_is_forgotten_is_not_listed() {
        let mut ranges = Ranges::default();
        ranges.window(&[
            (key(5, 0, 0, 0), MIB),
            (key(5, 0, 1, 0), MIB),
            (key(5, 1, 0, 1), MIB),
            (key(6, 0, 0, 0), MIB),
        ]);
        ranges.window(&[]);
        assert_eq!(idle(&mut ranges, 0).len(), 3);
        ranges.forget(file(5), &[FileRange { start: 0, bytes: 1 }], NodeId(0));
        ranges.gone(file(6));
        assert_eq!(idle(&mut ranges, 0), [(5, 1, (MIB as f32 * (-0.125f32).exp2()) as u64, 1)]);
        (0..SEARCH).for_each(|_| _ = ranges.window(&[]));
        assert_eq!((idle(&mut ranges, 0).len(), ranges.heat.len()), (1, 2));
    }

    /// Ranges that must stay, such as those of a file that cannot be moved, hid all that are
    /// younger.
    #[test]
    fn what_is_listed_and_stays_hides_nothing() {
        let mut ranges = Ranges::default();
        let most = LISTED_IDLE as u32;
        ranges.window(&(0..most).map(|range| (key(5, range, 0, 0), MIB)).collect::<Vec<_>>());
        ranges.window(&(most..5 * most).map(|range| (key(5, range, 0, 0), MIB)).collect::<Vec<_>>());
        let (mut seen, oldest) = (BTreeSet::new(), u64::from(most / 2));
        for _ in 0..9 * SEARCH {
            ranges.window(&[(key(6, 0, 0, 0), 9)]);
            let listed = idle(&mut ranges, 0);
            assert!(listed.len() <= LISTED_IDLE);
            assert!((0..oldest).all(|range| listed.iter().any(|of| of.1 == range)), "{listed:?}");
            seen.extend(listed.iter().map(|range| range.1));
        }
        assert_eq!(seen.len(), 5 * LISTED_IDLE);
        // And so on from the oldest.
        let again = (0..9 * SEARCH).flat_map(|_| {
            ranges.window(&[(key(6, 0, 0, 0), 9)]);
            idle(&mut ranges, 0)
        });
        assert_eq!(again.map(|range| range.1).collect::<BTreeSet<_>>(), seen);
    }

    #[test]
    fn of_what_is_idle_the_oldest_is_listed_and_no_more_than_fits_is_kept() {
        let mut ranges = Ranges::default();
        for n in 0..10 {
            let first = n * 60_000;
            ranges.window(&(first..first + 60_000).map(|range| (key(5, range, 0, 0), MIB)).collect::<Vec<_>>());
        }
        ranges.window(&[(key(6, 0, 0, 0), 9)]);
        let listed = idle(&mut ranges, 0);
        assert_eq!(listed.len(), LISTED_IDLE);
        assert!(listed.iter().all(|range| range.1 < 60_000 && range.3 == 10), "{listed:?}");
        // What has gone down makes place for the next, in the same window.
        for (_, range, ..) in &listed {
            let part = FileRange { start: range * RANGE_BYTES, bytes: RANGE_BYTES };
            ranges.moved(file(5), &[part], NodeId(0), NodeId(2));
        }
        assert_eq!(idle(&mut ranges, 0), []);
        let next = idle(&mut ranges, 0);
        assert!(next.len() == LISTED_IDLE && next.iter().all(|range| range.3 == 10 && !listed.contains(range)));
        for _ in 0..3 * SWEEP {
            ranges.window(&[]);
        }
        assert_eq!(ranges.heat.len(), MOST_IDLE);
        // Files go with their last range.
        for n in 0..5 {
            let from = n * 50_000;
            ranges.window(&(from..from + 50_000).map(|ino| (key(100 + ino, 0, 0, 0), 9)).collect::<Vec<_>>());
        }
        for _ in 0..3 * SWEEP {
            ranges.window(&[]);
        }
        assert_eq!((ranges.heat.len(), ranges.files.len()), (MOST_IDLE, MOST_IDLE));
    }

    /// A scan of files without end took ever more memory.
    #[test]
    fn memory_is_bounded_and_what_is_hot_stays() {
        let mut ranges = Ranges::default();
        let mut next = 0;
        for _ in 0..24 {
            let mut read: Vec<(RangeKey, u64)> = (next..next + 65_535).map(|n| (key(6, n, 0, 0), 2 * MIB)).collect();
            next += 65_535;
            read.push((key(5, 0, 0, 0), 8 * MIB));
            let listed = ranges.window(&read);
            assert_eq!(listed.values().map(Vec::len).sum::<usize>(), LISTED);
            assert!(ranges.heat.len() <= MOST, "{}", ranges.heat.len());
        }
        let listed = ranges.window(&[(key(5, 0, 0, 0), MIB)]);
        assert_eq!(listed[&file(5)][0].windows, 25);
        // 16 buckets of 25 bytes for each 7 entries at the most.
        assert!(ranges.heat.capacity() * 25 * 8 / 7 <= 64_000_000, "{}", ranges.heat.capacity());
    }

    /// All that is kept of a million ranges of files of 32 MiB, each read in the last windows.
    #[test]
    fn a_million_ranges_take_less_than_64_megabytes() {
        let mut ranges = Ranges::default();
        for part in 0..16u32 {
            let read = (0..MOST as u64 / 16).map(|ino| (key(ino, part, 0, 0), MIB));
            ranges.window(&read.collect::<Vec<_>>());
        }
        (0..MOST as u64 / 16).for_each(|ino| ranges.size(file(ino), Some(16 * RANGE_BYTES)));
        assert_eq!(ranges.heat.len(), MOST);
        // Each bucket has a byte of control, and of eight buckets one stays empty at least.
        fn bytes<K, V>(map: &FxHashMap<K, V>) -> usize {
            (map.capacity() * 8 / 7).next_power_of_two() * (size_of::<(K, V)>() + 1)
        }
        let all = [bytes(&ranges.heat), bytes(&ranges.files), bytes(&ranges.sizes)];
        assert!(all.iter().sum::<usize>() <= 64_000_000, "{all:?}");
    }

    #[test]
    fn another_file_with_that_inode_number_begins_cold() {
        let mut ranges = Ranges::default();
        ranges.window(&[(key(5, 0, 0, 0), 9)]);
        let again = RangeKey { file: FileId { generation: 8, ..file(5) }, ..key(5, 0, 0, 0) };
        let listed = ranges.window(&[(again, 9)]);
        assert_eq!(listed[&again.file][0].windows, 1);
    }
}
