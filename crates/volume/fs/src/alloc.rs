//! Blocks: which are free, and on which node a new one goes.
//!
//! **Problem.** A write should land on the node of its caller, threads should not wait for each
//! other, and a full region must neither fail the write nor keep anybody from deleting.
//!
//! **Approach.** Nothing of this is on media while a volume is mounted: mount finds out what the
//! logs refer to, or reads a checkpoint. Each region is cut into as many parts as there are CPUs,
//! each with its own lock; a thread begins with its CPU's part. A region that is full hands over to
//! the next nearest one. A few blocks are kept for operations that free space, or take no more than
//! they give back.
//!
//! Where the metadata has twins, log pages are taken from an area of their own, and data from the
//! rest: a log that finds no page there fails as on a full volume.
//!
//! Blocks whose memory has failed are not taken back.
//!
//! **Limits.** The parts are fixed: a run never spans two of them when it is allocated.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::format::Block;
use crate::format::superblock::Superblock;
use crate::free::FreeMap;
use crate::store::Failed;
use crate::sync::{Apart, AtomicBool, AtomicU64, Mutex, lock};

/// Use of blocks. What frees something must find room on a full volume, what leaves as much as
/// there was should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// File data, and logs of operations that add something.
    Growth,
    /// What takes the place of something that goes: a write over blocks of a file, other
    /// attributes, another name. It may use half of the reserve, so that no user can take from
    /// others what removing files needs.
    Replacing,
    /// Logs of operations that free something: these may use all of the reserve but a block.
    Freeing,
    /// A shorter log in place of one that goes at once: it may use that block, so that cleaning can
    /// always begin.
    Cleaning,
}

/// The free blocks of a volume.
#[derive(Debug)]
pub struct Allocator {
    regions: Vec<Region>,
    /// For log pages, where the volume has an area for them in each region; else none.
    logs: Vec<Region>,
    failed: Arc<Failed>,
    /// Some of them would be free.
    lost: AtomicBool,
    /// A bit for each region that gets nothing new.
    avoided: AtomicU64,
}

#[derive(Debug)]
struct Region {
    from: u64,
    total: u64,
    part_len: u64,
    reserve: u64,
    /// The one word that threads with different parts meet at.
    free: Apart<AtomicU64>,
    parts: Vec<Apart<Mutex<FreeMap>>>,
}

/// Blocks that were allocated for an operation that may still fail: freed when dropped.
#[derive(Debug)]
pub struct Fresh<'a> {
    allocator: &'a Allocator,
    runs: SmallVec<[(Block, u64); 2]>,
}

impl Allocator {
    /// The free runs of each region, in order, each region in `parts` parts.
    pub fn new(superblock: &Superblock, parts: usize, free: &[Vec<(u64, u64)>]) -> Self {
        let region = |i: usize, blocks: Range<u64>| {
            let (from, total) = (blocks.start, blocks.end.saturating_sub(blocks.start));
            let part_len = total.div_ceil(parts.max(1) as u64).max(1);
            let runs = free.get(i).map_or(&[][..], Vec::as_slice);
            let mut count = 0;
            let cut = |part: u64| {
                let (begin, end) =
                    (from + part * part_len, blocks.end.min(from + (part + 1) * part_len).max(from + part * part_len));
                let first = runs.partition_point(|(start, len)| start + len <= begin);
                let own = runs.get(first..).unwrap_or_default().iter().take_while(|(start, _)| *start < end);
                let own = own.map(|(start, len)| (*start.max(&begin), (start + len).min(end) - start.max(&begin)));
                let own: Vec<_> = own.collect();
                count += own.iter().map(|(_, len)| len).sum::<u64>();
                Apart(Mutex::new(FreeMap::new(&own)))
            };
            let parts = (0..parts.max(1) as u64).map(cut).collect();
            let reserve = (total / 64).clamp(4, 256);
            Region { from, total, part_len, reserve, free: Apart(AtomicU64::new(count)), parts }
        };
        let all = 0..superblock.regions.len();
        let logs = all.clone().filter(|_| superblock.has_twins()).map(|i| region(i, superblock.pages(i))).collect();
        let regions = all.map(|i| region(i, superblock.data(i))).collect();
        Self { regions, logs, failed: Arc::default(), lost: AtomicBool::new(false), avoided: AtomicU64::new(0) }
    }

    /// The same, but these blocks are not taken back.
    pub fn without(self, failed: &Arc<Failed>) -> Self {
        Self { failed: Arc::clone(failed), ..self }
    }

    /// The free runs of each region, in order and joined.
    pub fn free_runs(&self) -> Vec<Vec<(u64, u64)>> {
        let runs = |(i, region): (usize, &Region)| {
            let mut runs: Vec<(u64, u64)> = Vec::new();
            let logs = self.logs.get(i).map_or(&[][..], |logs| &logs.parts);
            for part in logs.iter().chain(&region.parts) {
                for (start, len) in lock(part).runs() {
                    match runs.last_mut() {
                        Some((last, last_len)) if *last + *last_len == start => *last_len += len,
                        _ => runs.push((start, len)),
                    }
                }
            }
            runs
        };
        self.regions.iter().enumerate().map(runs).collect()
    }

    /// Up to `want` adjacent blocks of one region: from `goal` on if that is free, else of the
    /// first part, beginning with `part`, that has any.
    fn take(
        &self,
        of: &[Region],
        region: usize,
        want: u64,
        (part, goal): (usize, Option<Block>),
        purpose: Purpose,
    ) -> Option<(Block, u64)> {
        let r = of.get(region)?;
        let reserve = match purpose {
            Purpose::Growth => r.reserve,
            Purpose::Replacing => r.reserve.div_ceil(2),
            Purpose::Freeing => 1,
            Purpose::Cleaning => 0,
        };
        let usable = |free: u64| free.saturating_sub(reserve).min(want);
        let promised = r
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(free - usable(free)))
            .map_or(0, usable);
        if promised == 0 {
            return None;
        }
        // What is promised is in some part, though others may fill and empty parts while this
        // thread goes round.
        let at_goal = || {
            let start = goal.filter(|goal| goal.region() == region)?.index();
            let part = r.parts.get((start.checked_sub(r.from)? / r.part_len) as usize)?;
            Some((start, lock(part).take_at(start, promised)?))
        };
        let anywhere = || {
            (part % r.parts.len()..).find_map(|i| {
                let mut part = lock(r.parts.get(i % r.parts.len())?);
                if goal.is_some() { part.take_with_room(promised) } else { part.take(promised) }
            })
        };
        let (start, got) = at_goal().or_else(anywhere)?;
        if got < promised {
            r.free.fetch_add(promised - got, Ordering::Relaxed);
        }
        Some((Block::new(region, start), got))
    }

    /// Up to `want` adjacent blocks from the first of `regions` that has any.
    pub fn allocate<'a>(
        &'a self,
        regions: &[usize],
        want: u64,
        part: usize,
        purpose: Purpose,
        into: &mut Fresh<'a>,
    ) -> Result<(Block, u64)> {
        self.allocate_behind(regions, want, (part, None), purpose, into)
    }

    /// Whether a region gets nothing new, but what frees something where there is no other room.
    pub fn avoid(&self, region: usize, avoid: bool) {
        let bit = 1 << region;
        match avoid {
            true => self.avoided.fetch_or(bit, Ordering::Relaxed),
            false => self.avoided.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    pub fn avoids(&self, region: usize) -> bool {
        self.avoided.load(Ordering::Relaxed) >> region & 1 == 1
    }

    /// The same, from `goal` on if that is free and in the region that is tried.
    pub fn allocate_behind<'a>(
        &'a self,
        regions: &[usize],
        want: u64,
        from: (usize, Option<Block>),
        purpose: Purpose,
        into: &mut Fresh<'a>,
    ) -> Result<(Block, u64)> {
        // Logs have an area of their own, perhaps: it is not for want of a page.
        let found = self.first_with(&self.regions, regions, want, from, purpose).map_err(|_| Error::Lacks(1))?;
        into.runs.push(found);
        Ok(found)
    }

    /// A block for a page of a log, of the area for these where there is one.
    pub fn allocate_page<'a>(
        &'a self,
        regions: &[usize],
        part: usize,
        purpose: Purpose,
        into: &mut Fresh<'a>,
    ) -> Result<Block> {
        let of = if self.logs.is_empty() { &self.regions } else { &self.logs };
        let (page, count) = self.first_with(of, regions, 1, (part, None), purpose)?;
        into.runs.push((page, count));
        Ok(page)
    }

    fn first_with(
        &self,
        of: &[Region],
        regions: &[usize],
        want: u64,
        from: (usize, Option<Block>),
        purpose: Purpose,
    ) -> Result<(Block, u64)> {
        let take = |region: &usize| self.take(of, *region, want, from, purpose);
        let found = regions.iter().filter(|region| !self.avoids(**region)).find_map(take);
        let last = matches!(purpose, Purpose::Freeing | Purpose::Cleaning);
        let found = found.or_else(|| regions.iter().filter(|region| last && self.avoids(**region)).find_map(take));
        found.ok_or(Error::NoSpace)
    }

    /// For collecting what [`Allocator::allocate`] gives.
    pub fn fresh(&self) -> Fresh<'_> {
        Fresh { allocator: self, runs: SmallVec::new() }
    }

    /// Takes blocks back. Blocks that are free already, as a damaged volume may have them, stay so.
    pub fn free(&self, block: Block, count: u64) {
        let mut from = 0;
        for bad in self.failed.within(block, count) {
            self.lost.store(true, Ordering::Release);
            if bad > from {
                self.free_whole(block.offset(from), bad - from);
            }
            from = bad + 1;
        }
        if from < count {
            self.free_whole(block.offset(from), count - from);
        }
    }

    /// Whether blocks were not taken back, of which the logs know no owner.
    pub fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn free_whole(&self, block: Block, count: u64) {
        let freed = self.by_part(block, count, |map, start, len| map.give(start, len));
        if let Some(region) = self.of(block).filter(|_| freed) {
            region.free.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// What a block is allocated from.
    fn of(&self, block: Block) -> Option<&Region> {
        let logs = self.logs.get(block.region()).filter(|logs| block.index() < logs.from + logs.total);
        logs.or_else(|| self.regions.get(block.region()))
    }

    fn by_part(&self, block: Block, count: u64, mut act: impl FnMut(&mut FreeMap, u64, u64) -> bool) -> bool {
        let Some(region) = self.of(block) else { return false };
        let (mut start, end) = (block.index(), block.index() + count);
        while start < end {
            let Some(offset) = start.checked_sub(region.from) else { return false };
            let part = offset / region.part_len;
            let Some(map) = region.parts.get(part as usize) else { return false };
            let upto = end.min(region.from + (part + 1) * region.part_len);
            if !act(&mut lock(map), start, upto - start) {
                return false;
            }
            start = upto;
        }
        true
    }

    /// Free and all blocks of a region, for log pages and data.
    pub fn usage(&self, region: usize) -> (u64, u64) {
        let both = self.regions.get(region).into_iter().chain(self.logs.get(region));
        both.fold((0, 0), |(free, all), r| (free + r.free.load(Ordering::Relaxed), all + r.total))
    }

    /// How many more logs a region has pages for; `None`: it has no area for these.
    pub fn free_pages(&self, region: usize) -> Option<u64> {
        self.logs.get(region).map(|logs| logs.free.load(Ordering::Relaxed).saturating_sub(logs.reserve))
    }

    /// Free blocks of all regions, without those that only operations that free space may use.
    pub fn room(&self) -> u64 {
        let room = |r: &Region| r.free.load(Ordering::Relaxed).saturating_sub(r.reserve);
        self.regions.iter().zip(0..).filter(|(_, region)| !self.avoids(*region)).map(|(r, _)| room(r)).sum()
    }

    /// Blocks that only operations that free space may use, and those that only logs may.
    pub fn reserve(&self, region: usize) -> u64 {
        let logs = self.logs.get(region).map_or(0, |logs| logs.free.load(Ordering::Relaxed));
        logs + self.regions.get(region).map_or(0, |r| r.reserve)
    }
}

impl Fresh<'_> {
    /// The blocks belong to a file or a log from now on.
    pub fn keep(&mut self) {
        self.runs.clear();
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        for (block, count) in self.runs.drain(..) {
            self.allocator.free(block, count);
        }
    }
}
