//! Free blocks of one part of a region.

use std::collections::{BTreeMap, BTreeSet};

/// Runs of free blocks, by place and by size.
#[derive(Debug, Default)]
pub struct FreeMap {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    /// The run that blocks were last taken from, as length and start, which is not in the maps:
    /// taking the next ones from it changes none.
    open: Option<(u64, u64)>,
}

impl FreeMap {
    /// Runs that do not touch each other, in order.
    pub fn new(runs: &[(u64, u64)]) -> Self {
        let by_len = runs.iter().map(|(start, len)| (*len, *start)).collect();
        Self { by_start: runs.iter().copied().collect(), by_len, open: None }
    }

    /// Gives up to `want` adjacent blocks: the smallest run that has them, else the largest.
    /// `None`: nothing is free.
    pub fn take(&mut self, want: u64) -> Option<(u64, u64)> {
        let fits = self.open.filter(|open| *open >= (want, 0));
        let other = match fits {
            Some(open) => self.by_len.range((want, 0)..open).next(),
            None => self.by_len.range((want, 0)..).next().or_else(|| self.by_len.last().max(self.open.as_ref())),
        };
        let (len, start) = other.copied().or(fits)?;
        if self.open != Some((len, start)) {
            self.close();
            self.remove(start, len);
        }
        let count = want.min(len);
        self.open = (count < len).then_some((len - count, start + count));
        Some((start, count))
    }

    /// The same from the smallest run that has room for more, for a file that grows: in the hole of
    /// a block the next one would have no room behind it.
    pub fn take_with_room(&mut self, want: u64) -> Option<(u64, u64)> {
        /// Blocks.
        const ROOM: u64 = 64;
        let has = |(len, _): &(u64, u64)| *len >= want + ROOM;
        let (len, start) = match self.by_len.range((want + ROOM, 0)..).next() {
            Some(run) => self.open.filter(|open| has(open) && open < run).unwrap_or(*run),
            None => match self.open.filter(has) {
                Some(open) => open,
                None => return self.take(want),
            },
        };
        debug_assert!(len > want);
        self.take_at(start, want).map(|count| (start, count))
    }

    /// Gives up to `want` blocks from `start` on, if that is free.
    pub fn take_at(&mut self, start: u64, want: u64) -> Option<u64> {
        if self.open.is_none_or(|(_, from)| from != start) {
            let (from, len) = self.by_start.range(..=start).next_back().map(|(from, len)| (*from, *len))?;
            let rest = (from + len).checked_sub(start).filter(|rest| *rest > 0)?;
            self.close();
            self.remove(from, len);
            if from < start {
                self.insert(from, start - from);
            }
            self.open = Some((rest, start));
        }
        let (len, from) = self.open.take()?;
        let count = want.min(len);
        self.open = (count < len).then_some((len - count, from + count));
        Some(count)
    }

    /// Takes back blocks and joins them with their neighbours. False: some of them were free
    /// already.
    pub fn give(&mut self, start: u64, count: u64) -> bool {
        let touches = |(len, open): &(u64, u64)| start <= open + len && *open <= start + count;
        if self.open.as_ref().is_some_and(touches) {
            self.close();
        }
        let before = self.by_start.range(..=start).next_back().map(|(from, len)| (*from, *len));
        let after = self.by_start.range(start..).next().map(|(from, len)| (*from, *len));
        if before.is_some_and(|(from, len)| from + len > start) || after.is_some_and(|(from, _)| from < start + count) {
            return false;
        }
        let (mut from, mut len) = (start, count);
        if let Some((before, before_len)) = before.filter(|(before, len)| before + len == start) {
            self.remove(before, before_len);
            from = before;
            len += before_len;
        }
        if let Some((after, after_len)) = after.filter(|(after, _)| *after == start + count) {
            self.remove(after, after_len);
            len += after_len;
        }
        self.insert(from, len);
        true
    }

    /// All runs, by place.
    pub fn runs(&mut self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.close();
        self.by_start.iter().map(|(start, len)| (*start, *len))
    }

    fn close(&mut self) {
        if let Some((len, start)) = self.open.take() {
            self.insert(start, len);
        }
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
        let mut both = FreeMap::new(&[(90, 10), (105, 10)]);
        assert!(!both.give(100, 10), "its second half is free already");
        assert_eq!(both.runs().collect::<Vec<_>>(), [(90, 10), (105, 10)], "and nothing that was free is lost");
        assert_eq!(map.runs().collect::<Vec<_>>(), [(10, 10)]);
        let mut map = FreeMap::new(&[(10, 2), (15, 5)]);
        assert_eq!(map.take(2), Some((10, 2)), "the smallest run that is large enough");
        assert_eq!(map.runs().collect::<Vec<_>>(), [(15, 5)]);
    }

    #[test]
    fn blocks_are_taken_where_they_are_asked_for() {
        let mut map = FreeMap::new(&[(10, 10), (30, 5)]);
        assert_eq!(map.take_at(9, 1), None);
        assert_eq!(map.take_at(20, 1), None);
        assert_eq!(map.take_at(13, 2), Some(2));
        assert_eq!(map.take_at(15, 100), Some(5), "the open run, as far as it goes");
        assert_eq!(map.take_at(30, 1), Some(1));
        assert_eq!(map.take_at(33, 1), None, "within the open run it is not looked for");
        assert_eq!(map.runs().collect::<Vec<_>>(), [(10, 3), (31, 4)]);
        assert_eq!((map.take_at(33, 1), map.take_at(12, 9)), (Some(1), Some(1)));
        assert_eq!(map.runs().collect::<Vec<_>>(), [(10, 2), (31, 2), (34, 1)]);
        assert!(map.give(33, 1) && map.give(12, 8), "and come back");
        assert_eq!(map.runs().collect::<Vec<_>>(), [(10, 10), (31, 4)]);
    }

    /// The open run is one among others: which run serves a call does not depend on it, nor does
    /// what is refused.
    #[test]
    fn an_open_run_changes_no_answer() {
        let mut random = 1_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut open, mut closed) = (FreeMap::new(&[(0, 500)]), FreeMap::new(&[(0, 500)]));
        let (mut taken, mut refused, mut none) = (Vec::new(), 0, 0);
        for _ in 0..20_000 {
            closed.close();
            if draw(2) == 0 {
                let want = 1 + draw(9);
                let (one, other) = (open.take(want), closed.take(want));
                assert_eq!(one, other);
                taken.extend(one);
                none += u64::from(one.is_none());
            } else {
                let (start, count) = match taken.len() as u64 {
                    0 => continue,
                    _ if draw(8) == 0 => (draw(500), 1),
                    len => taken.swap_remove(draw(len) as usize),
                };
                let free = closed.runs().any(|(from, len)| start < from + len && from < start + count);
                assert_eq!((open.give(start, count), closed.give(start, count)), (!free, !free));
                refused += u64::from(free);
                // What is left of the run that a block was given back of.
                let rest = |(from, len): (u64, u64)| {
                    let inside = from <= start && start < from + len && !free;
                    let end = if inside { start } else { from + len };
                    [(from, end - from), (start + 1, if inside { from + len - start - 1 } else { 0 })]
                };
                taken = taken.into_iter().flat_map(rest).filter(|(_, len)| *len > 0).collect();
            }
        }
        assert!(open.runs().eq(closed.runs()));
        assert!(refused > 50 && none > 50, "{refused} {none}");
    }
}
