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
use crate::error::Result;
use crate::extents::Extents;
use crate::format::page::SLOTS;
use crate::format::{Block, Ino};
use crate::scan;
use crate::store::Store;
use crate::sync::{AtomicU64, Mutex, lock};

/// Blocks to give back.
#[derive(Default)]
pub(crate) struct Leaving(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    runs: VecDeque<Left>,
    /// Blocks by region that are counted as free already.
    blocks: BTreeMap<usize, u64>,
}

/// What was left of an inode.
enum Left {
    /// Extents of which pieces may not be read, and pages of a log, which may have these.
    Unread(Extents, (Ino, u32), Vec<Block>),
    Runs(Box<dyn Iterator<Item = (Block, u64)> + Send>),
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaving").finish_non_exhaustive()
    }
}

impl Leaving {
    /// Takes over extents of an inode, and pages of its log.
    pub(crate) fn add(&self, extents: Extents, whose: (Ino, u32), pages: Vec<Block>) {
        let mut queue = lock(&self.0);
        for (region, blocks) in blocks_of(&extents, &pages) {
            *queue.blocks.entry(region).or_default() += blocks;
        }
        queue.runs.push_back(Left::Unread(extents, whose, pages));
    }

    /// Blocks of a region that are to be given back.
    pub(crate) fn blocks(&self, region: usize) -> u64 {
        lock(&self.0).blocks.get(&region).copied().unwrap_or(0)
    }

    /// Gives back up to so many extents and pages: how many blocks; `None`: there was nothing.
    /// They are added to `made` as well. An error: what cannot be read stays in use until the next
    /// mount.
    pub(crate) fn step(
        &self,
        store: &Store,
        allocator: &Allocator,
        step: usize,
        made: &AtomicU64,
    ) -> Result<Option<u64>> {
        // Under the lock: who finds nothing here is to find it free, and made.
        let (mut queue, mut given) = (lock(&self.0), None);
        if queue.read(store, step)? {
            return Ok(Some(0));
        }
        for _ in 0..step {
            let Some((block, count)) = queue.next() else { break };
            allocator.free(block, count);
            given = Some(given.unwrap_or(0) + count);
            if let Some(blocks) = queue.blocks.get_mut(&block.region()) {
                *blocks = blocks.saturating_sub(count);
            }
        }
        made.fetch_add(given.unwrap_or(0), Ordering::AcqRel);
        Ok(given)
    }
}

/// Blocks of extents, by region, and of pages.
fn blocks_of(extents: &Extents, pages: &[Block]) -> impl Iterator<Item = (usize, u64)> {
    let blocks = extents.blocks_by_region().iter().copied().enumerate();
    blocks.chain(pages.iter().map(|page| (page.region(), 1)))
}

impl Queue {
    /// Reads up to so many extents of what was left first: whether there are more.
    fn read(&mut self, store: &Store, step: usize) -> Result<bool> {
        let Some(Left::Unread(extents, whose, _)) = self.runs.front_mut() else { return Ok(false) };
        let more = scan::read_pieces(store, *whose, extents, (0, u64::MAX), step.div_ceil(SLOTS - 1).max(1));
        match more {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => {
                let Some(Left::Unread(extents, _, pages)) = self.runs.pop_front() else { return Err(error) };
                for (region, lost) in blocks_of(&extents, &pages) {
                    self.blocks.entry(region).and_modify(|blocks| *blocks = blocks.saturating_sub(lost));
                }
                return Err(error);
            }
        }
        if let Some(Left::Unread(extents, _, pages)) = self.runs.pop_front() {
            let runs = extents.into_runs().chain(pages.into_iter().map(|page| (page, 1)));
            self.runs.push_front(Left::Runs(Box::new(runs)));
        }
        Ok(false)
    }

    fn next(&mut self) -> Option<(Block, u64)> {
        loop {
            let Left::Runs(runs) = self.runs.front_mut()? else { return None };
            match runs.next() {
                None => drop(self.runs.pop_front()),
                next => return next,
            }
        }
    }
}
