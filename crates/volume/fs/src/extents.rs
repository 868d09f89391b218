//! Which blocks a file has: the index in DRAM.
//!
//! Of a file with many extents, *pieces* may still be on the medium only: pages of its log that
//! hold 63 of them each. A piece is read before somebody uses its file blocks, or those beside it
//! ([`Extents::unread`]). What is mapped by then is newer. Using file blocks of a piece that was
//! not read is a fault of the program, and a panic: it would give another's blocks away, or zeros.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::format::Block;
use crate::format::entry::Run;
use crate::format::page::SLOTS;

/// Blocks of a run that are no longer used.
pub type Freed = Vec<(Block, u64)>;

/// Runs by their first file block, which do not overlap, and how many blocks they have in each
/// region.
#[derive(Clone, Debug, Default)]
pub struct Extents {
    runs: BTreeMap<u64, Run>,
    blocks: SmallVec<[u64; 2]>,
    /// By their first file blocks.
    pieces: BTreeMap<u64, Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    page: Block,
}

/// Runs of a piece.
const PIECE: usize = SLOTS - 1;

impl Extents {
    /// Maps a run; what it displaces goes to `freed`.
    pub fn insert(&mut self, run: Run, freed: &mut Freed) {
        self.check(run.file_block, run.count);
        self.map(run, freed);
    }

    fn map(&mut self, run: Run, freed: &mut Freed) {
        let region = run.block.region();
        if self.blocks.len() <= region {
            self.blocks.resize(region + 1, 0);
        }
        if let Some(blocks) = self.blocks.get_mut(region) {
            *blocks += run.count;
        }
        // Appending is the rule: nothing to displace, and as a rule the last run grows.
        match self.runs.last_entry() {
            Some(mut last) if last.get().end() <= run.file_block => {
                if last.get().adjoins(&run) {
                    last.get_mut().count += run.count;
                } else {
                    self.runs.insert(run.file_block, run);
                }
                return;
            }
            _ => {}
        }
        if self.overwrite(run, freed) {
            return;
        }
        let mut at = freed.len();
        self.unmap(run.file_block, run.count, freed);
        // What is mapped again, as unwritten blocks are that were written where they are, stays in
        // use.
        let (first, end) = (run.block, run.block.index() + run.count);
        while let Some((block, count)) = freed.get(at) {
            let again = block.region() == first.region() && (first.index()..end).contains(&block.index());
            if again && block.index() + count <= end {
                freed.swap_remove(at);
            } else {
                at += 1;
            }
        }
        self.put(run);
    }

    /// Adds a run where nothing is, and joins it with its neighbours.
    fn put(&mut self, mut run: Run) {
        if let Some(before) = self.runs.range(..run.file_block).next_back().map(|(_, r)| *r).filter(|r| r.adjoins(&run))
        {
            run = Run { count: before.count + run.count, ..before };
        }
        if let Some(after) = self.runs.get(&run.end()).copied().filter(|r| run.adjoins(r)) {
            self.runs.remove(&after.file_block);
            run.count += after.count;
        }
        self.runs.insert(run.file_block, run);
    }

    /// While a log is read: the next piece, which has its first run here. False: it is out of
    /// order.
    pub fn add_piece(&mut self, first: u64, page: Block) -> bool {
        let last = self.pieces.last_key_value().map_or(0, |(start, _)| start + 1);
        self.end_pieces(first);
        self.pieces.insert(first, Piece { end: u64::MAX, page });
        last <= first
    }

    /// The last piece ends here at the latest, unless its end is known. False: it begins there or
    /// later.
    pub fn end_pieces(&mut self, end: u64) -> bool {
        if let Some(mut last) = self.pieces.last_entry().filter(|last| last.get().end == u64::MAX) {
            last.get_mut().end = end;
            return *last.key() < end;
        }
        true
    }

    /// Once a log was read: what its inode has in each region, pieces included.
    pub fn set_blocks(&mut self, blocks: &[u64]) {
        self.blocks = blocks.into();
    }

    /// While a log is read: maps a run, also in front of pieces.
    pub fn map_over(&mut self, run: Run) {
        self.map(run, &mut Vec::new());
    }

    /// A piece that has to be read before `count` file blocks are used: its first file block and
    /// its page.
    pub fn unread(&self, file_block: u64, count: u64) -> Option<(u64, Block)> {
        // With the runs on both sides, of which one goes on, or a new one joins them.
        self.piece_in(file_block.saturating_sub(2), file_block.saturating_add(count).saturating_add(2))
    }

    #[inline]
    fn piece_in(&self, from: u64, to: u64) -> Option<(u64, Block)> {
        if self.is_whole() {
            return None; // as a rule
        }
        let last = self.pieces.range(..to).next_back().filter(|(_, piece)| piece.end > from);
        last.map(|(first, piece)| (*first, piece.page))
    }

    /// Whether no piece is left to be read.
    pub fn is_whole(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The runs of a piece were read. False: they are not those of that piece.
    pub fn fill(&mut self, first: u64, runs: &[Run]) -> bool {
        let Some(piece) = self.pieces.get(&first).copied() else { return true };
        let mut at = first;
        for run in runs {
            if run.file_block < at || run.end() > piece.end {
                return false;
            }
            at = run.end();
        }
        if runs.len() != PIECE || runs.first().is_none_or(|run| run.file_block != first) {
            return false;
        }
        self.pieces.remove(&first);
        for run in runs {
            let newer: SmallVec<[(u64, u64); 2]> =
                self.within(run.file_block, run.count).map(|newer| (newer.file_block, newer.end())).collect();
            let mut at = run.file_block;
            for (from, to) in newer.into_iter().chain([(run.end(), run.end())]) {
                if at < from {
                    self.put(cut(*run, at, from));
                }
                at = to;
            }
        }
        true
    }

    fn check(&self, file_block: u64, count: u64) {
        assert!(self.piece_in(file_block, file_block.saturating_add(count)).is_none(), "extents were not read");
    }

    /// Maps a run that lies within another one, as an overwrite does, with one search for it and
    /// its neighbours. False: the run does not, or it joins what comes after it; nothing changed.
    fn overwrite(&mut self, run: Run, freed: &mut Freed) -> bool {
        let mut near = self.runs.range_mut(..=run.end()).rev().map(|(_, r)| r);
        let mut next = near.next();
        let after = next.take_if(|r| r.file_block == run.end());
        let found = if after.is_some() { near.next() } else { next };
        let Some(found) = found.filter(|r| r.file_block <= run.file_block && run.end() <= r.end()) else {
            return false;
        };
        let (old, head) = (*found, run.file_block - found.file_block);
        let rest = (run.end() < old.end()).then(|| cut(old, run.end(), old.end()));
        // The same blocks again would join what is left of the old run, and are not free.
        if run.block == old.block.offset(head) || after.is_some_and(|after| run.adjoins(after)) {
            return false;
        }
        if let Some(before) = near.next().filter(|before| before.adjoins(&run)) {
            before.count += run.count;
            self.runs.remove(&run.file_block);
        } else if head == 0 {
            *found = run;
        } else {
            found.count = head;
            self.runs.insert(run.file_block, run);
        }
        if let Some(rest) = rest {
            self.runs.insert(rest.file_block, rest);
        }
        freed.push((old.block.offset(head), run.count));
        if let Some(blocks) = self.blocks.get_mut(old.block.region()) {
            *blocks -= run.count;
        }
        true
    }

    /// Unmaps `count` file blocks.
    pub fn remove(&mut self, file_block: u64, count: u64, freed: &mut Freed) {
        self.check(file_block, count);
        self.unmap(file_block, count, freed);
    }

    fn unmap(&mut self, file_block: u64, count: u64, freed: &mut Freed) {
        let end = file_block.saturating_add(count);
        while let Some(run) = self.runs.range(..end).next_back().map(|(_, r)| *r).filter(|r| r.end() > file_block) {
            self.runs.remove(&run.file_block);
            let (from, to) = (run.file_block.max(file_block), run.end().min(end));
            if run.file_block < from {
                self.runs.insert(run.file_block, cut(run, run.file_block, from));
            }
            if to < run.end() {
                self.runs.insert(to, cut(run, to, run.end()));
            }
            freed.push((run.block.offset(from - run.file_block), to - from));
            if let Some(blocks) = self.blocks.get_mut(run.block.region()) {
                *blocks -= to - from;
            }
        }
    }

    /// Takes away all from a file block on.
    pub fn cut_off(&mut self, file_block: u64) -> Self {
        self.check(file_block, u64::MAX);
        if let Some(run) = self.runs.range(..file_block).next_back().map(|(_, r)| *r).filter(|r| r.end() > file_block) {
            self.runs.insert(run.file_block, cut(run, run.file_block, file_block));
            self.runs.insert(file_block, cut(run, file_block, run.end()));
        }
        let mut tail = Self { runs: self.runs.split_off(&file_block), blocks: self.blocks.clone(), ..Self::default() };
        if self.runs.is_empty() {
            self.blocks.fill(0);
            return tail;
        }
        tail.blocks.fill(0);
        for run in tail.runs.values() {
            let region = run.block.region();
            if let (Some(all), Some(own)) = (self.blocks.get_mut(region), tail.blocks.get_mut(region)) {
                (*all, *own) = (*all - run.count, *own + run.count);
            }
        }
        tail
    }

    /// All blocks, for giving them back.
    pub fn into_runs(self) -> impl Iterator<Item = (Block, u64)> + Send + 'static {
        self.check(0, u64::MAX);
        self.runs.into_values().map(|run| (run.block, run.count))
    }

    /// The runs that have any of `count` file blocks, each cut to that range.
    pub fn range(&self, file_block: u64, count: u64) -> impl Iterator<Item = Run> + '_ {
        self.check(file_block, count);
        self.within(file_block, count)
    }

    fn within(&self, file_block: u64, count: u64) -> impl Iterator<Item = Run> + '_ {
        let end = file_block.saturating_add(count);
        let first = self.runs.range(..=file_block).next_back().map(|(_, r)| *r);
        let first = first.filter(|r| r.end() > file_block && count > 0);
        // As a rule the first run has all of them, and the map is searched once.
        let rest =
            first.is_none_or(|r| r.end() < end).then(|| self.runs.range(file_block.saturating_add(1).min(end)..end));
        let rest = rest.into_iter().flatten().map(|(_, r)| *r);
        first.into_iter().chain(rest).map(move |r| cut(r, r.file_block.max(file_block), r.end().min(end)))
    }

    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.check(0, u64::MAX);
        self.runs.values().copied()
    }

    /// The first run at or after a file block that was written, cut to begin there at the earliest.
    pub fn next_written(&self, file_block: u64) -> Option<Run> {
        self.range(file_block, u64::MAX).find(|run| !run.unwritten)
    }

    /// The file block after the last run.
    pub fn end(&self) -> u64 {
        let piece = self.pieces.last_key_value().map_or(0, |(_, piece)| piece.end);
        self.runs.last_key_value().map_or(0, |(_, run)| run.end()).max(piece)
    }

    /// The block behind the file's last one, if this file block follows that.
    pub fn end_before(&self, file_block: u64) -> Option<Block> {
        let last = self.runs.last_key_value().map(|(_, run)| *run).filter(|run| run.end() == file_block)?;
        (self.end() == file_block).then(|| last.block.offset(last.count))
    }

    /// How many runs there are, at most where pieces are not read.
    pub fn len(&self) -> usize {
        self.runs.len() + PIECE * self.pieces.len()
    }

    /// How many runs and pieces memory has.
    pub fn in_memory(&self) -> usize {
        self.runs.len() + self.pieces.len()
    }

    pub fn blocks(&self) -> u64 {
        self.blocks.iter().sum()
    }

    /// How many blocks are mapped in each region, up to the last region that ever had one.
    pub fn blocks_by_region(&self) -> &[u64] {
        &self.blocks
    }
}

fn cut(run: Run, from: u64, to: u64) -> Run {
    Run { file_block: from, block: run.block.offset(from - run.file_block), count: to - from, ..run }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file_block: u64, index: u64, count: u64) -> Run {
        Run { file_block, block: Block::new(1, index), count, unwritten: false }
    }

    #[test]
    fn a_run_in_the_middle_of_another_cuts_it_in_three() {
        let (mut map, mut freed) = (Extents::default(), Vec::new());
        map.insert(run(0, 100, 10), &mut freed);
        map.insert(run(3, 200, 2), &mut freed);
        assert_eq!(freed, [(Block::new(1, 103), 2)]);
        assert_eq!(map.iter().collect::<Vec<_>>(), [run(0, 100, 3), run(3, 200, 2), run(5, 105, 5)]);
        assert_eq!(map.blocks_by_region(), [0, 10]);
        map.insert(Run { block: Block::new(0, 50), ..run(4, 0, 3) }, &mut freed);
        assert_eq!((map.blocks_by_region(), map.blocks()), (&[3, 7][..], 10));
        map.insert(run(4, 201, 1), &mut freed);
        map.insert(run(5, 105, 5), &mut freed);
        assert_eq!(map.blocks_by_region(), [0, 10]);
        assert_eq!(map.range(4, 2).collect::<Vec<_>>(), [run(4, 201, 1), run(5, 105, 1)]);
    }

    /// Against one entry for each block: which blocks are mapped, which are freed, and that all
    /// runs that can be one are one.
    #[test]
    fn any_sequence_of_changes_leaves_what_a_table_of_blocks_has() {
        const BLOCKS: u64 = 40;
        let mut random = 1_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut map, mut freed) = (Extents::default(), Vec::new());
        let mut table = vec![None; BLOCKS as usize];
        for _ in 0..50_000 {
            let (from, most) = (draw(BLOCKS), if draw(4) == 0 { 12 } else { 2 });
            let count = (1 + draw(most)).min(BLOCKS - from);
            // So few places that neighbours often adjoin; some runs map again what they displace.
            let block = Block::new(draw(2) as usize, 100 + from + 50 * draw(4));
            let new = Run { file_block: from, block, count, unwritten: draw(8) == 0 };
            let gone = draw(6) == 0;
            let old: Vec<_> = table.iter().skip(from as usize).take(count as usize).flatten().copied().collect();
            for i in 0..count {
                table[(from + i) as usize] = (!gone).then_some((block.offset(i), new.unwritten));
            }
            if gone {
                map.remove(from, count, &mut freed)
            } else {
                map.insert(new, &mut freed)
            }

            let mut blocks: Vec<Block> = freed.drain(..).flat_map(|(b, n)| (0..n).map(move |i| b.offset(i))).collect();
            let again = |old: &Block| !gone && (0..count).any(|i| block.offset(i) == *old);
            let mut expected: Vec<Block> = old.iter().map(|(block, _)| *block).filter(|old| !again(old)).collect();
            blocks.sort_unstable();
            expected.sort_unstable();
            assert_eq!(blocks, expected);
            let mapped = map
                .iter()
                .flat_map(|r| (0..r.count).map(move |i| (r.file_block + i, (r.block.offset(i), r.unwritten))));
            let all = table.iter().enumerate().filter_map(|(at, entry)| entry.map(|entry| (at as u64, entry)));
            assert_eq!(mapped.collect::<Vec<_>>(), all.collect::<Vec<_>>());
            let runs: Vec<Run> = map.iter().collect();
            assert!(runs.windows(2).all(|pair| !pair[0].adjoins(&pair[1])), "{runs:?}");
            let in_region =
                |region| table.iter().flatten().filter(|(block, _)| block.region() == region).count() as u64;
            let counted = |region| map.blocks_by_region().get(region).copied().unwrap_or_default();
            assert_eq!([counted(0), counted(1)], [in_region(0), in_region(1)]);
        }
    }

    #[test]
    fn adjacent_runs_join_and_ones_in_other_places_do_not() {
        let (mut map, mut freed) = (Extents::default(), Vec::new());
        map.insert(run(0, 100, 1), &mut freed);
        map.insert(run(2, 102, 1), &mut freed);
        map.insert(run(1, 101, 1), &mut freed);
        assert_eq!(map.iter().collect::<Vec<_>>(), [run(0, 100, 3)]);
        map.insert(run(3, 200, 1), &mut freed);
        assert_eq!((map.len(), freed.len()), (2, 0));
        map.remove(0, u64::MAX, &mut freed);
        assert_eq!((map.len(), freed.iter().map(|f| f.1).sum::<u64>()), (0, 4));
    }
}
