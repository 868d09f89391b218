//! Blocks that belong to nobody any more, given back in steps.
//!
//! **Problem.** A file of millions of pieces is one request to remove or to cut off, and to give
//! back each piece takes a third of a microsecond: everybody else would wait for seconds.
//!
//! **Approach.** Where a thread cleans in the background, the operation hands over what it has of
//! such a file in one piece, and the thread gives it back. Nothing of this is on the medium: what
//! a commit took from a file is free there at once, so a crash has nothing to go on with. Whoever
//! finds no room gives all back first, and so does an unmount.
//!
//! **Limits.** A file that is cut off in its middle has to have what goes counted, 10 ns a piece.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::Ordering;

use crate::alloc::Allocator;
use crate::extents::Extents;
use crate::format::Block;
use crate::sync::{AtomicU64, Mutex, lock};

/// Blocks to give back.
#[derive(Default)]
pub(crate) struct Leaving(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    runs: VecDeque<Box<dyn Iterator<Item = (Block, u64)> + Send>>,
    /// Blocks by region that are counted as free already.
    blocks: BTreeMap<usize, u64>,
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaving").finish_non_exhaustive()
    }
}

impl Leaving {
    /// Takes over extents, and pages of a log.
    pub(crate) fn add(&self, extents: Extents, pages: Vec<Block>) {
        let mut queue = lock(&self.0);
        let blocks = extents.blocks_by_region().iter().copied().enumerate();
        for (region, blocks) in blocks.chain(pages.iter().map(|page| (page.region(), 1))) {
            *queue.blocks.entry(region).or_default() += blocks;
        }
        queue.runs.push_back(Box::new(extents.into_runs().chain(pages.into_iter().map(|page| (page, 1)))));
    }

    /// Blocks of a region that are to be given back.
    pub(crate) fn blocks(&self, region: usize) -> u64 {
        lock(&self.0).blocks.get(&region).copied().unwrap_or(0)
    }

    /// Gives back up to so many extents and pages: how many blocks; `None`: there was nothing.
    /// They are added to `made` as well.
    pub(crate) fn step(&self, allocator: &Allocator, step: usize, made: &AtomicU64) -> Option<u64> {
        // Under the lock: who finds nothing here is to find it free, and made.
        let (mut queue, mut given) = (lock(&self.0), None);
        for _ in 0..step {
            let Some((block, count)) = queue.next() else { break };
            allocator.free(block, count);
            given = Some(given.unwrap_or(0) + count);
            if let Some(blocks) = queue.blocks.get_mut(&block.region()) {
                *blocks = blocks.saturating_sub(count);
            }
        }
        made.fetch_add(given.unwrap_or(0), Ordering::AcqRel);
        given
    }
}

impl Queue {
    fn next(&mut self) -> Option<(Block, u64)> {
        loop {
            match self.runs.front_mut()?.next() {
                None => drop(self.runs.pop_front()),
                next => return next,
            }
        }
    }
}
