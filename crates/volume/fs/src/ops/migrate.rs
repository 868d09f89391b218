//! Moving a file to another node while it is read and written.
//!
//! **Problem.** A copy takes time, and a writer may change a block that was copied already: its
//! write must win.
//!
//! **Approach.** Run by run, at most 256 KiB: note which file blocks are being copied, copy them
//! together with other readers, then commit the new places in one log entry, unless a writer
//! changed any of the blocks meanwhile ([`State::apply`] notes that). After three such defeats the
//! run is copied with writers kept out. Each step is a commit like a write's, so the migration can
//! stop anywhere: cancelled, by a crash, or by a full region.
//!
//! At the end the log is written anew there, in steps as when it is cleaned. Without room for all
//! of it there, it stays where it is; so it does where only ranges of the file move.
//!
//! **Limits.** One migration per file at a time. The inode itself stays: its number says where it
//! is.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::alloc::{Fresh, Purpose};
use crate::clean;
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Run};
use crate::format::{BLOCK_BYTES, Ino};
use crate::inode::{Inode, Moving, State};
use crate::placement::{Regions, STRIPE};
use crate::store::Flushed;
use crate::volume::{Locked, Volume};

/// Most blocks of one step.
const STEP: u64 = 64;
/// Times that writers may win before they are kept out for one step.
const DEFEATS: u32 = 3;
/// Longest sleep of a migration that has a rate: after it the caller is asked again whether to go
/// on.
const NAP: Duration = Duration::from_millis(50);

/// How far a migration is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub moved: u64,
    /// Blocks that the file has now.
    pub blocks: u64,
    /// Of the blocks moved, those since the last question: the first file block, and how many. Told
    /// once.
    pub latest: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    pub moved: u64,
    /// Steps that a concurrent change won.
    pub overtaken: u64,
    pub cancelled: bool,
    /// File block at which [`Volume::migrate_from`] goes on.
    pub next: u64,
    /// Runs of the file that were looked at.
    pub looked: u64,
}

/// What a migration moves, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    pub to: u32,
    /// Only what is on this node; `None`: all that is elsewhere.
    pub from: Option<u32>,
    /// From this file block on, such as where a migration was stopped ([`Migrated::next`]). What is
    /// written before it meanwhile stays where the writer put it.
    pub first: u64,
    /// Only below this file block.
    pub end: Option<u64>,
    /// At most so many bytes a second.
    pub rate: Option<u64>,
    /// The file's log stays where it is: only some of its blocks are to move.
    pub leave_log: bool,
    /// All that is in this region, to the nearest other ones that have room; `to` and `from` mean
    /// nothing then.
    pub out_of: Option<usize>,
}

impl Volume {
    /// Moves the blocks of a file, and its log if there is room, to a node. `go_on` is asked before
    /// each step, and while the migration waits. `rate` limits it to so many bytes a second.
    pub fn migrate_file(
        &self,
        ino: Ino,
        node: u32,
        rate: Option<u64>,
        go_on: impl FnMut(Progress) -> bool,
    ) -> Result<Migrated> {
        self.migrate(ino, Migration { to: node, rate, ..Migration::default() }, go_on)
    }

    /// Whether a file is being migrated right now: the migration has it open.
    pub fn is_migrating(&self, ino: Ino) -> bool {
        self.known_inode(ino).is_some_and(|inode| inode.migrating.load(Ordering::Acquire))
    }

    /// Moves blocks of a file to a node, and its log if that is to move as well. The regions of the
    /// node share them. `go_on` is asked before each step, and while the migration waits.
    pub fn migrate(&self, ino: Ino, migration: Migration, mut go_on: impl FnMut(Progress) -> bool) -> Result<Migrated> {
        let regions = match migration.out_of {
            Some(region) => self.regions.nearest(region).get(1..).unwrap_or_default(),
            None => self.regions.on_node(migration.to),
        };
        if regions.is_empty() {
            return Err(Error::NoRegionOnNode(migration.to));
        }
        let _visit = Self::visit(self, ino);
        self.open(ino)?;
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(error) => {
                self.close(ino)?;
                return Err(error);
            }
        };
        if inode.migrating.swap(true, Ordering::AcqRel) {
            self.close(ino)?;
            return Err(Error::Busy);
        }
        let result = self.migrate_steps(&inode, &migration, regions, &mut go_on);
        inode.write().moving = None;
        inode.migrating.store(false, Ordering::Release);
        self.close(ino)?;
        result
    }

    fn migrate_steps(
        &self,
        inode: &Inode,
        migration: &Migration,
        regions: &[usize],
        go_on: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Migrated> {
        let began = Instant::now();
        let (mut done, mut defeats) = (Migrated { next: migration.first, ..Migrated::default() }, 0);
        let mut latest = None;
        loop {
            loop {
                let blocks = inode.read().extents.blocks();
                if !go_on(Progress { moved: done.moved, blocks, latest: latest.take() }) {
                    return Ok(Migrated { cancelled: true, ..done });
                }
                let moved = (done.moved * BLOCK_BYTES) as f64;
                let rate = migration.rate.filter(|rate| *rate > 0);
                let due = rate.map_or(0.0, |rate| moved / rate as f64);
                let left = Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX).saturating_sub(began.elapsed());
                if left.is_zero() {
                    break;
                }
                std::thread::sleep(left.min(NAP));
            }
            let alone = defeats >= DEFEATS;
            let (run, looked, moved) =
                self.with_room(|| self.migrate_step(inode, migration, regions, done.next, alone))?;
            done.looked += looked;
            let Some(run) = run else { break };
            if moved {
                (done.moved, done.next, defeats) = (done.moved + run.count, run.end(), 0);
                latest = Some((run.file_block, run.count));
            } else {
                (done.overtaken, defeats) = (done.overtaken + 1, defeats + 1);
            }
        }
        let log_moves = || inode.read().log.pages.iter().any(|page| self.is_to_move(migration, page.region()));
        if !migration.leave_log && log_moves() {
            let turns = self.take_turns(regions).then(|| Regions::turn(regions, inode.ino.slot().into(), 0));
            let regions: Vec<_> = turns.into_iter().chain(regions.iter().copied()).collect();
            let blocks = inode.read().extents.blocks();
            let mut on = || go_on(Progress { moved: done.moved, blocks, latest: None });
            match self.in_steps(inode, clean::STEP, self.log_pages(&regions, Purpose::Growth), &mut on) {
                Ok(_) | Err(Error::NoSpace) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Whether regions are alike: those of one node.
    fn take_turns(&self, regions: &[usize]) -> bool {
        regions.iter().all(|one| regions.first().is_some_and(|first| self.regions.together(*one, *first)))
    }

    /// Whether a migration moves what is in a region.
    fn is_to_move(&self, migration: &Migration, region: usize) -> bool {
        if let Some(from) = migration.out_of {
            return region == from;
        }
        let node = self.regions.node(region);
        node != Some(migration.to) && (migration.from.is_none() || node == migration.from)
    }

    /// Moves the next run: which, how many runs it took to find it, and whether it moved, or a
    /// concurrent change won. That cannot be where writers are kept out.
    fn migrate_step(
        &self,
        inode: &Inode,
        migration: &Migration,
        regions: &[usize],
        from: u64,
        alone: bool,
    ) -> Result<(Option<Run>, u64, bool)> {
        let mut fresh = self.allocator.fresh();
        let mut locked = Locked::new(&[inode]);
        let (run, looked) = self.next_step(locked.get_mut(inode.ino)?, migration, from);
        let Some(run) = run else { return Ok((None, looked, false)) };
        let moved = if alone {
            let new = self.blocks_in(inode.ino, regions, run, &mut fresh)?;
            let copied = self.copy(locked.get(inode.ino)?, run, &new)?;
            self.switch_over(&mut locked, inode.ino, &new, copied)?
        } else {
            drop(locked);
            let new = self.blocks_in(inode.ino, regions, run, &mut fresh)?;
            let copied = self.copy(&inode.read(), run, &new)?;
            self.switch_over(&mut Locked::new(&[inode]), inode.ino, &new, copied)?
        };
        if moved {
            fresh.keep();
        }
        Ok((Some(run), looked, moved))
    }

    /// The next run that is to move, at most one step long, and how many runs it took to find it.
    /// Notes that it is being copied.
    fn next_step(&self, state: &mut State, migration: &Migration, from: u64) -> (Option<Run>, u64) {
        let mut looked = 0;
        let count = migration.end.map_or(u64::MAX, |end| end.saturating_sub(from));
        let mut runs = state.extents.range(from, count).inspect(|_| looked += 1);
        let found = runs.find(|run| self.is_to_move(migration, run.block.region()));
        drop(runs);
        let run = found.map(|run| Run { count: run.count.min(STEP), ..run });
        state.moving = run.map(|run| Moving { file_block: run.file_block, count: run.count, overtaken: false });
        (run, looked)
    }

    /// Maps a run that was copied to its new places. False: a concurrent change won.
    fn switch_over(&self, locked: &mut Locked<'_>, ino: Ino, new: &[Run], copied: Option<Flushed>) -> Result<bool> {
        let state = locked.get(ino)?;
        let Some(flushed) = copied.filter(|_| !overtaken(state)) else { return Ok(false) };
        let entries: Vec<_> = new.iter().map(|run| (ino, Entry::Extent(*run, None))).collect();
        self.commit(locked, &entries, self.now(), flushed, Purpose::Growth)?;
        Ok(true)
    }

    /// Blocks for a run in these regions and no other: those of one node take turns.
    fn blocks_in<'a>(&'a self, ino: Ino, regions: &[usize], run: Run, fresh: &mut Fresh<'a>) -> Result<Vec<Run>> {
        let mut new: Vec<Run> = Vec::new();
        let mut at = run.file_block;
        while at < run.end() {
            let turns = regions.len() > 1 && self.take_turns(regions);
            let upto = if turns { run.end().min((at / STRIPE + 1) * STRIPE) } else { run.end() };
            let first = if turns {
                Regions::turn(regions, ino.slot().into(), at)
            } else {
                regions.first().copied().unwrap_or(0)
            };
            let first = [first];
            let take = |from: &[usize], fresh: &mut Fresh<'a>| {
                self.allocator.allocate(from, upto - at, self.cpu(), Purpose::Growth, fresh)
            };
            let (block, count) = take(&first, fresh).or_else(|_| take(regions, fresh))?;
            new.push(Run { file_block: at, block, count, ..run });
            at += count;
        }
        Ok(new)
    }

    /// Copies a run to its new places. `None`: a change came first, so there is nothing to copy.
    fn copy(&self, state: &State, run: Run, new: &[Run]) -> Result<Option<Flushed>> {
        if overtaken(state) {
            return Ok(None);
        }
        let mut flushed = Flushed::nothing();
        for to in new.iter().filter(|_| !run.unwritten) {
            let from = run.block.offset(to.file_block - run.file_block);
            flushed = flushed.and(self.store.copy_data(from, to.block, to.count)?.flush(&self.store)?);
            self.counters.read(None, run.block.region(), to.count * BLOCK_BYTES);
            self.counters.written(None, to.block.region(), to.count * BLOCK_BYTES);
        }
        Ok(Some(flushed))
    }
}

fn overtaken(state: &State) -> bool {
    state.gone || state.moving.is_none_or(|moving| moving.overtaken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewFile;
    use crate::format::BLOCK;
    use crate::interleavings::{once, volume};

    /// A write between the copy and the switch, to the copied blocks or beside them; a truncation;
    /// the end of the file.
    #[test]
    fn a_change_during_the_copy_wins_and_one_beside_it_does_not_matter() {
        once(change_during_copy);
    }

    fn change_during_copy() {
        let volume = volume([256, 256]);
        let file = volume.create(Ino::ROOT, b"f", NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
        volume.write(file, 0, &[1; 20 * BLOCK]).unwrap();
        volume.write(file, 30 * BLOCK_BYTES, &[1; 20 * BLOCK]).unwrap();
        let inode = volume.inode(file).unwrap();
        let next =
            |from| volume.next_step(&mut inode.write(), &Migration { to: 1, ..Migration::default() }, from).0.unwrap();
        let step = |change: &dyn Fn()| {
            let run = next(0);
            let mut fresh = volume.allocator.fresh();
            let new = volume.blocks_in(file, &[1], run, &mut fresh).unwrap();
            let copied = volume.copy(&inode.read(), run, &new).unwrap();
            change();
            let moved = volume.switch_over(&mut Locked::new(&[&inode]), file, &new, copied).unwrap();
            if moved {
                fresh.keep();
            }
            (run.count, moved)
        };
        assert_eq!(step(&|| volume.write(file, 19 * BLOCK_BYTES, &[2; 10]).unwrap()), (20, false));
        assert_eq!(step(&|| volume.truncate(file, 40 * BLOCK_BYTES).unwrap()), (19, true));
        let mut now = [0; BLOCK];
        volume.read(file, 19 * BLOCK_BYTES, &mut now).unwrap();
        assert_eq!((now[9], now[10]), (2, 1));
        let run = next(20);
        assert_eq!((run.file_block, run.count), (30, 10));
        let new = volume.blocks_in(file, &[1], run, &mut volume.allocator.fresh()).unwrap();
        volume.punch_hole(file, 30 * BLOCK_BYTES, BLOCK_BYTES).unwrap();
        assert!(volume.copy(&inode.read(), run, &new).unwrap().is_none(), "changed before the copy");
        assert!(!volume.switch_over(&mut Locked::new(&[&inode]), file, &new, None).unwrap());
        let migrated = volume.migrate_file(file, 1, None, |_| true).unwrap();
        assert_eq!((migrated.moved, migrated.overtaken), (10, 0), "block 19 and those from 31 on");
    }

    /// The last step let the lock go between the look and the copy, so that a writer could win
    /// again and again.
    #[test]
    fn a_step_with_writers_kept_out_is_never_overtaken() {
        once(|| {
            let volume = volume([256, 256]);
            let file = volume.create(Ino::ROOT, b"f", NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
            volume.write(file, 0, &[1; 4 * BLOCK]).unwrap();
            let inode = volume.inode(file).unwrap();
            let migration = Migration { to: 1, ..Migration::default() };
            let (run, _, moved) = volume.migrate_step(&inode, &migration, &[1], 0, true).unwrap();
            assert_eq!((run.unwrap().count, moved), (4, true));
            // With a writer at each of the caller's turns the first tries may lose, and no more
            // than that.
            let again = Migration { to: 0, ..Migration::default() };
            let step = |_| volume.write(file, 0, &[2; BLOCK]).is_ok();
            assert_eq!(volume.migrate(file, again, step).unwrap().overtaken, 0);
        });
    }
}
