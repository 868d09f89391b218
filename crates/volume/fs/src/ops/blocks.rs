//! New blocks for a file: allocated on the right node and filled, before anybody sees them.

use smallvec::SmallVec;

use crate::alloc::{Fresh, Purpose};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Run};
use crate::format::{BLOCK, BLOCK_BYTES, Ino};
use crate::inode::{Inode, State};
use crate::ops::check_live;
use crate::placement::{Placement, Regions, STRIPE};
use crate::store::{Dirty, Flushed};
use crate::volume::{Locked, Volume};

/// Blocks of the largest write that is atomic, 1 MiB.
pub(super) const MANY: u64 = 256;

/// Blocks and entries of an operation on a file that is not committed yet.
pub(super) struct Draft<'a> {
    pub fresh: Fresh<'a>,
    pub dirty: Dirty,
    pub entries: SmallVec<[(Ino, Entry<'static>); 2]>,
    /// The size of the file afterwards.
    pub size: u64,
    pub purpose: Purpose,
}

impl Volume {
    pub(super) fn draft(&self, size: u64) -> Draft<'_> {
        let (fresh, purpose) = (self.allocator.fresh(), Purpose::Growth);
        Draft { fresh, dirty: Dirty::default(), entries: SmallVec::new(), size, purpose }
    }

    /// Commits a draft.
    pub(super) fn finish(&self, draft: Draft<'_>, locked: &mut Locked<'_>, time: i64, purpose: Purpose) -> Result<()> {
        let Draft { mut fresh, dirty, entries, .. } = draft;
        let flushed: Flushed = dirty.flush(&self.store)?;
        self.commit(locked, &entries, time, flushed, purpose)?;
        fresh.keep();
        Ok(())
    }

    /// Fails if there is no room for so many blocks. What asks for too many would otherwise take
    /// all there are before it fails, and others would find none meanwhile. Up to [`MANY`] blocks
    /// it is not worth reading the counters of all regions.
    pub(super) fn check_room(&self, blocks: u64) -> Result<()> {
        let lack = if blocks > MANY { blocks.saturating_sub(self.allocator.room()) } else { 0 };
        if lack > 0 { Err(Error::Lacks(lack)) } else { Ok(()) }
    }

    /// Blocks for a range of a file: adjacent ones as far as there are. A file that grows gets them
    /// behind its last block if that is free, whichever CPU this is; what takes the place of others
    /// takes the smallest hole, which costs half of what a search for a place does.
    pub(super) fn new_runs<'a>(
        &'a self,
        state: &State,
        ino: Ino,
        (file_block, count): (u64, u64),
        placement: Placement,
        purpose: Purpose,
        fresh: &mut Fresh<'a>,
    ) -> Result<SmallVec<[Run; 2]>> {
        self.check_room(count)?;
        // What takes the place of blocks that the file has takes no more than these.
        let has = || state.extents.range(file_block, count).map(|run| run.count).sum();
        self.quotas.check_blocks(state, if self.quotas.is_on() { count.saturating_sub(has()) } else { 0 })?;
        let cpu = self.cpu();
        let meant = self.regions.meant(placement, cpu);
        let mut goal = state.extents.end_before(file_block);
        let (mut runs, mut at, end): (SmallVec<_>, _, _) = (SmallVec::new(), file_block, file_block + count);
        while at < end {
            let upto = if meant.len() > 1 { end.min((at / STRIPE + 1) * STRIPE) } else { end };
            let want = (upto - at).min(Run::MAX);
            let region = match placement {
                Placement::Interleave => Regions::turn(meant, 0, at),
                Placement::Random => Regions::turn(meant, self.random(), 0),
                Placement::Local | Placement::Node(_) => Regions::turn(meant, ino.slot().into(), at),
            };
            let regions = self.regions.nearest(region);
            let (block, count) = self.allocator.allocate_behind(regions, want, (cpu, goal), purpose, fresh)?;
            goal = Some(block.offset(count));
            if !self.regions.together(block.region(), region) {
                self.counters.fell_back(block.region(), count);
            }
            runs.push(Run { file_block: at, block, count, unwritten: false });
            at += count;
        }
        Ok(runs)
    }

    /// Writes `data` at `offset` to new blocks. What the first and last block had elsewhere is
    /// copied, zeros where the file had nothing.
    pub(super) fn replace<'a>(
        &'a self,
        state: &State,
        ino: Ino,
        (offset, data): (u64, &[u8]),
        placement: Placement,
        draft: &mut Draft<'a>,
    ) -> Result<()> {
        let Some(last) = (offset + data.len() as u64).checked_sub(1).filter(|_| !data.is_empty()) else {
            return Ok(());
        };
        let first = offset / BLOCK_BYTES;
        let count = last / BLOCK_BYTES - first + 1;
        let runs = self.new_runs(state, ino, (first, count), placement, draft.purpose, &mut draft.fresh)?;
        let (mut at, mut rest) = (offset, data);
        for run in runs {
            // Before the data: an atomic operation waits for the stores on their way, which the
            // fence is for.
            self.counters.written(Some(ino), run.block.region(), run.count * BLOCK_BYTES);
            let run_from = run.file_block * BLOCK_BYTES;
            while at < run.end() * BLOCK_BYTES && !rest.is_empty() {
                let within = at % BLOCK_BYTES;
                let place = run.block.offset((at - run_from) / BLOCK_BYTES);
                let len = if within == 0 && rest.len() >= BLOCK {
                    let whole = rest.len() / BLOCK * BLOCK;
                    let len = whole.min((run.end() * BLOCK_BYTES - at) as usize);
                    draft.dirty.and(self.store.write_data(place, rest.get(..len).unwrap_or_default())?);
                    len
                } else {
                    let len = rest.len().min(BLOCK - within as usize);
                    let mut block = self.old_block(state, at / BLOCK_BYTES)?;
                    crate::format::put(block.as_mut_slice(), within as usize, rest.get(..len).unwrap_or_default());
                    draft.dirty.and(self.store.write_data(place, block.as_slice())?);
                    len
                };
                at += len as u64;
                rest = rest.get(len..).unwrap_or_default();
            }
            draft.entries.push((ino, Entry::Extent(run, Some(draft.size))));
        }
        Ok(())
    }

    /// Writes where no block is left for growth: over blocks that the file has, which takes no more
    /// than it gives back. Blocks that were allocated and not written are written where they are,
    /// as nobody sees them before the commit. Each run of those is a part of the write, and so is
    /// what lies between, in as many parts as the reserve makes it. A crash finds each whole or not
    /// at all.
    pub(super) fn write_over(&self, inode: &Inode, offset: u64, data: &[u8], placement: Placement) -> Result<()> {
        let _alone = self.room.alone(); // with others they would find less of the reserve, and none would fit
        let mut locked = Locked::new(&[inode]);
        let (first, end) = (offset / BLOCK_BYTES, offset + data.len() as u64);
        let count = end.div_ceil(BLOCK_BYTES) - first;
        self.read_around(&mut locked, inode.ino, offset, end)?;
        let state = locked.get(inode.ino)?;
        check_live(state)?;
        if state.extents.range(first, count).map(|run| run.count).sum::<u64>() < count {
            return Err(Error::Lacks(1));
        }
        if first > state.size / BLOCK_BYTES {
            let mut draft = Draft { purpose: Purpose::Replacing, ..self.draft(state.size) };
            self.zero_tail(state, inode.ino, offset, &mut draft)?;
            if !draft.entries.is_empty() {
                self.finish(draft, &mut locked, self.now(), Purpose::Replacing)?;
            }
        }
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (state, block) = (locked.get(inode.ino)?, at / BLOCK_BYTES);
            let runs = state.extents.range(block, end.div_ceil(BLOCK_BYTES) - block);
            let done = if let Some(last) = runs.take_while(|run| !run.unwritten).last() {
                let len = rest.len().min((last.end() * BLOCK_BYTES - at) as usize);
                self.write_some(&mut locked, inode.ino, (at, rest.get(..len).unwrap_or_default()), placement)?
            } else {
                let mut runs = state.extents.range(block / MANY * MANY, MANY);
                let run = runs.find(|run| run.end() > block).ok_or(Error::Lacks(1))?;
                drop(runs);
                let len = rest.len().min((run.end() * BLOCK_BYTES - at) as usize);
                self.write_in_place(&mut locked, inode.ino, run, (at, rest.get(..len).unwrap_or_default()))?;
                len
            };
            at += done as u64;
            rest = rest.get(done..).unwrap_or_default();
        }
        Ok(())
    }

    /// Writes all of an unwritten run, with zeros around the data: a file that is written here and
    /// there would else have a log of as many runs, for which there is no room either.
    fn write_in_place(&self, locked: &mut Locked<'_>, ino: Ino, run: Run, (at, data): (u64, &[u8])) -> Result<()> {
        let size = locked.get(ino)?.size.max(at + data.len() as u64);
        let mut draft = Draft { purpose: Purpose::Replacing, ..self.draft(size) };
        // What is beyond the size stays unwritten: recovery takes written blocks there for damage.
        let run = Run { count: run.count.min(size.div_ceil(BLOCK_BYTES).saturating_sub(run.file_block)), ..run };
        let mut blocks = vec![0; run.count as usize * BLOCK];
        crate::format::put(&mut blocks, (at - run.file_block * BLOCK_BYTES) as usize, data);
        self.counters.written(Some(ino), run.block.region(), run.count * BLOCK_BYTES);
        draft.dirty.and(self.store.write_data(run.block, &blocks)?);
        draft.entries.push((ino, Entry::Extent(Run { unwritten: false, ..run }, Some(size))));
        self.finish(draft, locked, self.now(), Purpose::Replacing)
    }

    /// Writes as much of `data` as there is room for, a block at least: how many bytes.
    fn write_some(
        &self,
        locked: &mut Locked<'_>,
        ino: Ino,
        (at, data): (u64, &[u8]),
        placement: Placement,
    ) -> Result<usize> {
        let mut len = data.len();
        loop {
            let part = data.get(..len).unwrap_or_default();
            let state = locked.get(ino)?;
            let mut draft = Draft { purpose: Purpose::Replacing, ..self.draft(state.size.max(at + len as u64)) };
            let replaced = self.replace(state, ino, (at, part), placement, &mut draft);
            let full = match replaced.and_then(|()| self.finish(draft, locked, self.now(), Purpose::Replacing)) {
                Err(full @ (Error::NoSpace | Error::Lacks(_))) => full,
                done => return done.map(|()| len),
            };
            let first = at / BLOCK_BYTES;
            let half = ((at + len as u64).div_ceil(BLOCK_BYTES) - first) / 2;
            if half == 0 {
                return Err(full);
            }
            len = ((first + half) * BLOCK_BYTES - at) as usize;
        }
    }

    /// Contents of a block of the file: zeros in holes, and beyond the size.
    fn old_block(&self, state: &State, file_block: u64) -> Result<Box<[u8; BLOCK]>> {
        let mut block = Box::new([0; BLOCK]);
        let valid = state.size.saturating_sub(file_block * BLOCK_BYTES).min(BLOCK_BYTES) as usize;
        if let Some(run) = state.extents.range(file_block, 1).next().filter(|run| !run.unwritten) {
            self.store.read_data(run.block, 0, block.get_mut(..valid).unwrap_or_default())?;
        }
        Ok(block)
    }

    /// Replaces bytes by zeros, where blocks were written: for a range within one block.
    pub(super) fn zero_part<'a>(
        &'a self,
        state: &State,
        ino: Ino,
        (from, to): (u64, u64),
        draft: &mut Draft<'a>,
    ) -> Result<()> {
        let written = state.extents.range(from / BLOCK_BYTES, 1).next().filter(|run| !run.unwritten);
        let Some(run) = written.filter(|_| from < to) else { return Ok(()) };
        let zeros = [0; BLOCK];
        let len = ((to - from) as usize).min(BLOCK);
        let node = self.regions.node(run.block.region());
        let placement = node.map_or(Placement::Local, Placement::Node);
        let purpose = std::mem::replace(&mut draft.purpose, Purpose::Replacing);
        let replaced = self.replace(state, ino, (from, zeros.get(..len).unwrap_or_default()), placement, draft);
        draft.purpose = purpose;
        replaced
    }

    /// Before a file grows to `upto` or beyond: what its last block has after the end becomes
    /// zeros.
    pub(super) fn zero_tail<'a>(&'a self, state: &State, ino: Ino, upto: u64, draft: &mut Draft<'a>) -> Result<()> {
        let block_end = state.size.next_multiple_of(BLOCK_BYTES);
        self.zero_part(state, ino, (state.size, block_end.min(upto)), draft)
    }
}
