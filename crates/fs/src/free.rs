//! Free blocks of one part of a region.

use std::collections::{BTreeMap, BTreeSet};

/// Runs of free blocks, by place and by size.
#[derive(Debug, Default)]
pub struct FreeMap {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl FreeMap {
    /// Runs that do not touch each other, in order.
    pub fn new(runs: &[(u64, u64)]) -> Self {
        let by_len = runs.iter().map(|(start, len)| (*len, *start)).collect();
        Self { by_start: runs.iter().copied().collect(), by_len }
    }

    /// Gives up to `want` adjacent blocks: the smallest run that has them, else the largest. `None`: nothing is free.
    pub fn take(&mut self, want: u64) -> Option<(u64, u64)> {
        let (len, start) = self.by_len.range((want, 0)..).next().or_else(|| self.by_len.last()).copied()?;
        self.remove(start, len);
        let count = want.min(len);
        if count < len {
            self.insert(start + count, len - count);
        }
        Some((start, count))
    }

    /// Takes back blocks and joins them with their neighbours. False: some of them were free already.
    pub fn give(&mut self, start: u64, count: u64) -> bool {
        let (mut from, mut len) = (start, count);
        if let Some((&before, &before_len)) = self.by_start.range(..=start).next_back() {
            if before + before_len > start {
                return false;
            }
            if before + before_len == start {
                self.remove(before, before_len);
                from = before;
                len += before_len;
            }
        }
        if let Some((&after, &after_len)) = self.by_start.range(start..).next() {
            if after < start + count {
                return false;
            }
            if after == start + count {
                self.remove(after, after_len);
                len += after_len;
            }
        }
        self.insert(from, len);
        true
    }

    /// All runs, by place.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(start, len)| (*start, *len))
    }

    fn insert(&mut self, start: u64, len: u64) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_as_one_run_and_nothing_is_given_twice() {
        let mut map = FreeMap::default();
        assert!(map.give(10, 10));
        assert_eq!(map.take(4), Some((10, 4)));
        assert_eq!(map.take(100), Some((14, 6)));
        assert_eq!(map.take(1), None);
        assert!(map.give(10, 2) && map.give(16, 4) && map.give(12, 4));
        assert!(!map.give(15, 2), "free already");
        assert!(!map.give(5, 6), "free already at its end");
        assert_eq!(map.by_start, BTreeMap::from([(10, 10)]));
        let mut map = FreeMap::new(&[(10, 2), (15, 5)]);
        assert_eq!(map.take(2), Some((10, 2)), "the smallest run that is large enough");
        assert_eq!(map.runs().collect::<Vec<_>>(), [(15, 5)]);
    }
}
