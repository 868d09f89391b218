//! Moving a file to another node while it is read and written.
//!
//! **Problem.** A copy takes time, and a writer may change a block that was copied already: its write must win.
//!
//! **Approach.** Run by run, at most 256 KiB: note which file blocks are being copied, copy them together with other
//! readers, then commit the new places in one log entry, unless a writer changed any of the blocks meanwhile
//! ([`State::apply`] notes that). After three such defeats the run is copied with writers kept out. Each step is a commit
//! like a write's, so the migration can stop anywhere: cancelled, by a crash, or by a full region.
//!
//! **Limits.** One migration per file at a time. The inode itself stays: its number says where it is.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::alloc::{Fresh, Purpose};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Run};
use crate::format::{BLOCK, BLOCK_BYTES, Ino};
use crate::inode::{Inode, Moving, State};
use crate::store::Flushed;
use crate::volume::{Locked, Volume};

/// Most blocks of one step.
const STEP: u64 = 64;
/// Times that writers may win before they are kept out for one step.
const DEFEATS: u32 = 3;

/// How far a migration is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Blocks moved so far.
    pub moved: u64,
    /// Blocks that the file has now.
    pub blocks: u64,
}

/// How a migration ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Blocks moved.
    pub moved: u64,
    /// Steps that a concurrent change won.
    pub overtaken: u64,
    /// The caller stopped it.
    pub cancelled: bool,
}

impl Volume {
    /// Moves the blocks of a file, and its log, to a node. `go_on` is asked before each step. `rate` limits it to so many
    /// bytes a second.
    pub fn migrate_file(
        &self,
        ino: Ino,
        node: u32,
        rate: Option<u64>,
        mut go_on: impl FnMut(Progress) -> bool,
    ) -> Result<Migrated> {
        let region = self.regions.on_node(node).ok_or(Error::NoRegionOnNode(node))?;
        self.open(ino)?;
        let inode = self.inode(ino)?;
        if inode.migrating.swap(true, Ordering::AcqRel) {
            self.close(ino)?;
            return Err(Error::Busy);
        }
        let result = self.migrate_steps(&inode, region, rate, &mut go_on);
        inode.write().moving = None;
        inode.migrating.store(false, Ordering::Release);
        self.close(ino)?;
        result
    }

    fn migrate_steps(
        &self,
        inode: &Inode,
        region: usize,
        rate: Option<u64>,
        go_on: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Migrated> {
        let began = Instant::now();
        let (mut done, mut at, mut defeats) = (Migrated::default(), 0, 0);
        loop {
            let blocks = inode.read().extents.blocks();
            if !go_on(Progress { moved: done.moved, blocks }) {
                return Ok(Migrated { cancelled: true, ..done });
            }
            let Some(run) = self.next_step(inode, region, at)? else { break };
            if self.migrate_run(inode, region, run, defeats >= DEFEATS)? {
                (done.moved, at, defeats) = (done.moved + run.count, run.end(), 0);
            } else {
                (done.overtaken, defeats) = (done.overtaken + 1, defeats + 1);
            }
            if let Some(rate) = rate.filter(|rate| *rate > 0) {
                let due = Duration::from_secs_f64((done.moved * BLOCK_BYTES) as f64 / rate as f64);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
        }
        let mut state = inode.write();
        if state.log.pages.iter().any(|page| page.region() != region) {
            self.clean_log_to(inode, &mut state, region)?;
        }
        Ok(done)
    }

    /// The next run that is elsewhere, at most one step long, and notes that it is being copied.
    fn next_step(&self, inode: &Inode, region: usize, from: u64) -> Result<Option<Run>> {
        let mut state = inode.write();
        let elsewhere = state.extents.range(from, u64::MAX).find(|run| run.block.region() != region);
        let run = elsewhere.map(|run| Run { count: run.count.min(STEP), ..run });
        state.moving = run.map(|run| Moving { file_block: run.file_block, count: run.count, overtaken: false });
        Ok(run)
    }

    /// Moves one run. False: a concurrent change won.
    fn migrate_run(&self, inode: &Inode, region: usize, run: Run, alone: bool) -> Result<bool> {
        let mut fresh = self.allocator.fresh();
        let new = self.blocks_in(region, run, &mut fresh)?;
        let mut copied = None;
        if !alone {
            let state = inode.read();
            copied = Some(self.copy(&state, run, &new)?);
        }
        let mut locked = Locked::new(&[inode]);
        let state = locked.get(inode.ino)?;
        if state.gone || state.moving.is_none_or(|moving| moving.overtaken) {
            return Ok(false);
        }
        let flushed = match copied.flatten() {
            Some(flushed) => flushed,
            None => self.copy(state, run, &new)?.unwrap_or_else(Flushed::nothing),
        };
        let entries: Vec<_> = new.iter().map(|run| (inode.ino, Entry::Extent(*run, None))).collect();
        locked.get_mut(inode.ino)?.moving = None;
        self.commit(&mut locked, &entries, self.now(), flushed, Purpose::Growth)?;
        fresh.keep();
        Ok(true)
    }

    /// Blocks for a run in one region, with no way out to another.
    fn blocks_in<'a>(&'a self, region: usize, run: Run, fresh: &mut Fresh<'a>) -> Result<Vec<Run>> {
        let mut new: Vec<Run> = Vec::new();
        let mut at = run.file_block;
        while at < run.end() {
            let want = run.end() - at;
            let (block, count) = self.allocator.allocate(&[region], want, self.cpu(), Purpose::Growth, fresh)?;
            new.push(Run { file_block: at, block, count, ..run });
            at += count;
        }
        Ok(new)
    }

    /// Copies a run to its new places. `None`: a change came first, so there is nothing to copy.
    fn copy(&self, state: &State, run: Run, new: &[Run]) -> Result<Option<Flushed>> {
        if state.gone || state.moving.is_none_or(|moving| moving.overtaken) {
            return Ok(None);
        }
        let mut flushed = Flushed::nothing();
        let mut buffer = vec![0; if run.unwritten { 0 } else { STEP as usize * BLOCK }];
        for to in new.iter().filter(|_| !run.unwritten) {
            let part = buffer.get_mut(..to.count as usize * BLOCK).unwrap_or_default();
            self.store.read(run.block.offset(to.file_block - run.file_block), 0, part)?;
            flushed = flushed.and(self.store.write_data(to.block, 0, part)?.flush(&self.store)?);
            self.counters.written(self.cpu(), to.block.region(), to.count * BLOCK_BYTES);
        }
        Ok(Some(flushed))
    }
}
