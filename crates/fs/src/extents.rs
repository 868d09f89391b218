//! Which blocks a file has: the index in DRAM.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::format::Block;
use crate::format::entry::Run;

/// Blocks of a run that are no longer used.
pub type Freed = Vec<(Block, u64)>;

/// Runs by their first file block, which do not overlap, and how many blocks they have in each region.
#[derive(Clone, Debug, Default)]
pub struct Extents {
    runs: BTreeMap<u64, Run>,
    blocks: SmallVec<[u64; 2]>,
}

impl Extents {
    /// Maps a run; what it displaces goes to `freed`.
    pub fn insert(&mut self, run: Run, freed: &mut Freed) {
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
                if adjoin(last.get(), &run) {
                    last.get_mut().count += run.count;
                } else {
                    self.runs.insert(run.file_block, run);
                }
                return;
            }
            _ => self.remove(run.file_block, run.count, freed),
        }
        let mut run = run;
        if let Some(before) = self.runs.range(..run.file_block).next_back().map(|(_, r)| *r).filter(|r| adjoin(r, &run))
        {
            run = Run { count: before.count + run.count, ..before };
        }
        if let Some(after) = self.runs.get(&run.end()).copied().filter(|r| adjoin(&run, r)) {
            self.runs.remove(&after.file_block);
            run.count += after.count;
        }
        self.runs.insert(run.file_block, run);
    }

    /// Unmaps `count` file blocks.
    pub fn remove(&mut self, file_block: u64, count: u64, freed: &mut Freed) {
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

    /// The runs that have any of `count` file blocks, each cut to that range.
    pub fn range(&self, file_block: u64, count: u64) -> impl Iterator<Item = Run> + '_ {
        let end = file_block.saturating_add(count);
        let first = self.runs.range(..=file_block).next_back().map(|(_, r)| *r);
        let first = first.filter(|r| r.end() > file_block && count > 0);
        // As a rule the first run has all of them, and the map is searched once.
        let rest =
            first.is_none_or(|r| r.end() < end).then(|| self.runs.range(file_block.saturating_add(1).min(end)..end));
        let rest = rest.into_iter().flatten().map(|(_, r)| *r);
        first.into_iter().chain(rest).map(move |r| cut(r, r.file_block.max(file_block), r.end().min(end)))
    }

    /// All runs.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.values().copied()
    }

    /// The first run at or after a file block that was written, cut to begin there at the earliest.
    pub fn next_written(&self, file_block: u64) -> Option<Run> {
        self.range(file_block, u64::MAX).find(|run| !run.unwritten)
    }

    /// How many runs there are.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// How many blocks are mapped.
    pub fn blocks(&self) -> u64 {
        self.blocks.iter().sum()
    }

    /// How many blocks are mapped in each region, up to the last region that ever had one.
    pub fn blocks_by_region(&self) -> &[u64] {
        &self.blocks
    }
}

fn adjoin(a: &Run, b: &Run) -> bool {
    let same_region = a.block.region() == b.block.region();
    let adjacent = a.end() == b.file_block && same_region && a.block.index() + a.count == b.block.index();
    adjacent && a.unwritten == b.unwritten && a.count + b.count <= Run::MAX
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
