//! The heat of ranges of files: how much of each was read lately, and in how many windows. Pure.
//!
//! **Problem.** One window cannot tell what a program comes back to from what it reads through
//! once, and a machine has more ranges of files than may be remembered.
//!
//! **Approach.** An entry is a range of a file, the node of its data and that of its readers. It
//! has a sum of bytes of which half is lost in [`HALF_LIFE`] windows, and a bit for each of the
//! last 32 windows. Both are brought up to date when the range is read or asked for, so a window
//! costs nothing for what it did not read. Every [`SWEEP`] windows, what 32 windows have not read
//! is forgotten; and whenever there are more than [`MOST`] entries, the coldest are.
//!
//! **Limits.** An entry takes 25 bytes and the table has room for up to 2^21 of them: 52 MB for
//! [`MOST`], and in proportion for fewer. A window lists at most [`LISTED`] entries, the hottest of
//! those that it read. A machine on which more than these are hot is told so by the bytes of its
//! nodes, not by its ranges.

use std::collections::BTreeMap;

use placement::{RANGE_BYTES, RangeHeat};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{FileId, NodeId};

use super::records::RangeKey;

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

/// A range, the node of its data and that of its readers. The file by its number in
/// [`Ranges::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// What is remembered of ranges.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    files: FxHashMap<FileId, u32>,
    next: u32,
    heat: FxHashMap<Key, Heat>,
    window: u32,
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
            let of = Key { file: number, range: key.range, node: key.node, by: key.here };
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

    /// Forgets what none of the last 32 windows has read, and files without a range.
    fn sweep(&mut self) {
        let window = self.window;
        self.heat.retain(|_, heat| heat.at(window).seen != 0);
        self.heat.shrink_to(2 * self.heat.len());
        let used: FxHashSet<u32> = self.heat.keys().map(|key| key.file).collect();
        self.files.retain(|_, number| used.contains(number));
        self.files.shrink_to(2 * self.files.len());
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

/// The hottest of these, by file.
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
    use crate::records::intf::RANGE_SHIFT;

    const MIB: u64 = 1 << 20;

    fn file(ino: u64) -> FileId {
        FileId { dev: 1, ino, generation: 7 }
    }

    fn key(ino: u64, range: u32, node: u16, here: u16) -> RangeKey {
        RangeKey { file: file(ino), range, node, here }
    }

    #[test]
    fn ranges_are_those_of_snapshots() {
        assert_eq!(1 << RANGE_SHIFT, RANGE_BYTES);
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

    #[test]
    fn what_is_read_once_is_forgotten_with_its_file() {
        let mut ranges = Ranges::default();
        ranges.window(&[(key(5, 0, 0, 0), 9)]);
        for _ in 1..2 * SWEEP {
            ranges.window(&[(key(6, 0, 0, 0), 9)]);
        }
        assert_eq!((ranges.heat.len(), ranges.files.len()), (1, 1));
        let listed = ranges.window(&[(key(6, 0, 0, 0), 9)]);
        assert_eq!(listed[&file(6)][0].windows, 32);
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

    #[test]
    fn another_file_with_that_inode_number_begins_cold() {
        let mut ranges = Ranges::default();
        ranges.window(&[(key(5, 0, 0, 0), 9)]);
        let again = RangeKey { file: FileId { generation: 8, ..file(5) }, ..key(5, 0, 0, 0) };
        let listed = ranges.window(&[(again, 9)]);
        assert_eq!(listed[&again.file][0].windows, 1);
    }
}
