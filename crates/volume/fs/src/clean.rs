//! Log cleaning.
//!
//! **Problem.** A log grows with every change, and most of what it says is soon history.
//!
//! **Approach.** Two ways. *Fast*: a page of which no entry matters any more is taken out of the
//! chain by one 8-byte store to the page before it. *Thorough*: what is still true is written to a
//! new log. An operation writes the logs it changed anew once more than half of one is history.
//! Where a thread cleans in the background ([`Background`]), it leaves the long ones to that: the
//! thread writes the new log step by step, lets others change the inode between the steps, and adds
//! what they appended to the old log. So no operation waits for more than a step. An operation that
//! finds no room has every log cleaned that would lose a page, and tries again
//! ([`Volume::with_room`]).
//!
//! A step leaves the new log with what is true up to some place, in extents or names. What changes
//! a file meanwhile is added at the end, so that the extents before stay in order
//! ([`crate::log::Sorted`]): the last entry that says something of a block counts. Names cannot be
//! twice, so of changes of names only those up to that place are added, before the next step, which
//! has the others.
//!
//! **Limits.** Fast cleaning drops only pages that hold nothing but mappings of blocks that are
//! mapped otherwise by now. Thorough cleaning needs room for the new log beside the old one: a log
//! stays as it is if what is still true of it takes more blocks than are free, those kept for such
//! operations included. In the background it leaves those alone. An operation that finds no room
//! may clean a long log, in steps and once for each 64th of it that became history.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::{fmt, io, iter};

use crate::alloc::Purpose;
use crate::commit::record;
use crate::error::{Error, Result};
use crate::extents::Extents;
use crate::format::entry::{Entry, Run};
use crate::format::inode as line;
use crate::format::page::{self, SLOTS};
use crate::format::word::Field;
use crate::format::{Block, Ino, LINE, LogPos};
use crate::inode::{Inode, State};
use crate::leaving::Leaving;
use crate::log::{self, Appended, Log, NO_TAIL, Pages, Sorted};
use crate::ops::check_live;
use crate::store::{Flushed, Store};
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, lock, wait};
use crate::volume::Volume;
use crate::xattrs::Values;

/// A log shorter than two pages is not worth cleaning: a file has one page in any case.
const CLEAN_FROM: usize = 2 * (SLOTS - 1);

/// Slots that become history before a log is looked at again. What a page loses to entries that do
/// not fit into its rest is less.
const LOOK_AFTER: usize = SLOTS / 4;

/// A log is also not looked at again before a part of its live slots has become history: a look
/// takes as long as reading them.
const LOOK_PART: usize = 64;

/// Live slots that an operation, or a step of the thread in the background, writes at most: 0.1 to
/// 0.2 ms.
pub(crate) const STEP: usize = 1024;

/// How often what came to a log while it was rewritten is added before others have to wait for the
/// rest.
const ROUNDS: usize = 3;

/// Where cleaning may give back blocks.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Inodes whose logs have more than one page and changed since they were last looked at, each
    /// once ([`Inode::listed`]).
    changed: Mutex<BTreeSet<Ino>>,
    /// The inodes that were not read since the mount were looked at.
    looked: AtomicBool,
    /// Blocks given back so far.
    made: AtomicU64,
    /// Logs of which each entry was looked at for want of room.
    looks: AtomicU64,
    /// Held while logs are cleaned for want of room; taken before the lock of any inode.
    making: Mutex<()>,
    /// Held by a write that uses the reserve; taken before the lock of any inode.
    replacing: Mutex<()>,
    left: Mutex<Left>,
    /// Blocks that the thread is to give back.
    pub(crate) leaving: Leaving,
    /// Somebody left a log or blocks, or the thread is to end.
    left_one: Condvar,
}

/// Logs that operations leave to somebody else.
#[derive(Debug, Default)]
struct Left {
    /// With more live slots than these; `None`: none, as nobody else would clean them.
    longer_than: Option<usize>,
    inodes: BTreeSet<Ino>,
    /// There are blocks to give back.
    blocks: bool,
}

impl Room {
    /// Notes that the log of an inode changed. As a rule it is too short to lose a page, or noted
    /// already, and nobody waits.
    pub(crate) fn changed(&self, inode: &Inode, state: &State) {
        let long = state.log.pages.len() > 1;
        if long && !inode.listed.load(Ordering::Relaxed) && !inode.listed.swap(true, Ordering::AcqRel) {
            lock(&self.changed).insert(inode.ino);
        }
    }

    /// Whether somebody else will clean a log that is worth it.
    fn leave(&self, inode: &Inode, state: &State) -> bool {
        let mut left = lock(&self.left);
        let leaves = left.longer_than.is_some_and(|most| state.live_slots() > most);
        if leaves && left.inodes.insert(inode.ino) {
            self.left_one.notify_all();
        }
        leaves
    }

    /// Somebody else is to put the log of an inode in order, which nobody uses now.
    pub(crate) fn leave_unsorted(&self, ino: Ino) {
        let mut left = lock(&self.left);
        if left.longer_than.is_some() && left.inodes.insert(ino) {
            self.left_one.notify_all();
        }
    }

    /// Whether somebody else will give back the blocks of so many extents.
    fn leaves_blocks(&self, extents: usize) -> bool {
        extents > 1 && lock(&self.left).longer_than.is_some_and(|most| extents > most)
    }

    fn leave_blocks(&self, extents: Extents, whose: (Ino, u32), pages: Vec<Block>) {
        self.leaving.add(extents, whose, pages);
        lock(&self.left).blocks = true;
        self.left_one.notify_all();
    }

    /// Keeps others from the half of the reserve that is for what replaces something.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        lock(&self.replacing)
    }
}

impl Volume {
    /// Does `work`. When that finds no room, cleans logs and does it again, as long as cleaning
    /// gives back blocks.
    pub(crate) fn with_room<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            let made = self.room.made.load(Ordering::Acquire);
            let lack = match work() {
                Err(Error::NoSpace) => (1, true),
                Err(Error::Lacks(blocks)) => (blocks, !self.store.superblock().has_twins()),
                done => return done,
            };
            if !self.make_room(made, lack) {
                return Err(Error::NoSpace);
            }
        }
    }

    /// Cleans all logs that would lose a page, those that need least room first, unless all of them
    /// have less than is missing, or what is missing is not `of_logs`. False: there is no more room
    /// than when cleaning had `made` so many blocks.
    fn make_room(&self, made: u64, (lack, of_logs): (u64, bool)) -> bool {
        if lack > (0..self.slots.len()).map(|region| self.allocator.usage(region).1).sum() {
            return false;
        }
        self.give_back_all();
        let _alone = lock(&self.room.making);
        if self.room.made.load(Ordering::Acquire) != made {
            return true; // blocks were left, or another thread cleaned meanwhile
        }
        if !of_logs {
            return false;
        }
        // A full volume is full at once where none changed.
        let mut listed = std::mem::take(&mut *lock(&self.room.changed));
        if !self.room.looked.swap(true, Ordering::AcqRel) {
            listed.extend(self.unread_inodes().into_iter().filter(|ino| self.has_long_log(*ino)));
        }
        let (mut most, mut known, mut shorter) = (0, Vec::new(), Vec::new());
        for ino in listed {
            let Some(inode) = self.known_inode(ino) else {
                let gives = self.briefly(ino, |inode| (self.would_keep(inode), inode.read().log.pages.len()));
                if let Some((Some(needs), pages)) = gives {
                    most += pages.saturating_sub(needs) as u64;
                    shorter.push((needs, ino));
                }
                continue;
            };
            inode.listed.store(false, Ordering::Release);
            let state = inode.read();
            // How much of it is history shows once its pieces are read.
            let pages = if state.extents.is_whole() { may_lose(&state) } else { state.log.pages.len() };
            drop(state);
            if pages > 0 {
                most += pages as u64;
                known.push(inode);
            }
        }
        if most < lack {
            // Those that were read for this are cleaned nevertheless: nobody remembers them.
            known.drain(..).for_each(|inode| self.room.changed(&inode, &inode.read()));
        }
        shorter.extend(known.into_iter().filter_map(|inode| Some((self.would_keep(&inode)?, inode.ino))));
        shorter.sort_by_key(|(pages, _)| *pages);
        let shorten = |(needs, ino)| self.briefly(ino, |inode| self.shorten(needs, inode)).unwrap_or(0);
        let given = shorter.into_iter().map(shorten).sum::<u64>();
        self.room.made.fetch_add(given, Ordering::AcqRel);
        given > 0
    }

    /// Does something with an inode. Where memory had it not, it is let go again, and on no list
    /// until somebody else reads it. `None`: it is gone, or damaged, which shows when the file is
    /// used.
    pub(crate) fn briefly<T>(&self, ino: Ino, with: impl FnOnce(&Inode) -> T) -> Option<T> {
        let known = self.known_inode(ino);
        let read = known.is_none();
        let inode = known.map_or_else(|| self.inode_partly(ino), Ok).ok()?;
        let done = with(&inode);
        if read {
            inode.listed.store(false, Ordering::Release);
            lock(&self.room.changed).remove(&ino);
            self.let_go(inode);
        }
        Some(done)
    }

    /// Looks whether a log would lose a page by cleaning: the pages that it would have.
    fn would_keep(&self, inode: &Inode) -> Option<usize> {
        let mut state = inode.write();
        // What was written over counts twice until the pieces are read.
        let behind = state.log.slots().saturating_sub(state.log.sorted as usize);
        if !state.extents.is_whole() && behind >= LOOK_AFTER {
            self.read_extents(inode, &mut state, (0, u64::MAX), usize::MAX).ok()?;
        }
        if may_lose(&state) == 0 {
            return None;
        }
        self.room.looks.fetch_add(1, Ordering::Relaxed);
        let needs = pages_of(&state, &state.all_xattrs(&self.store, inode.whose()).ok()?);
        if needs < state.log.pages.len() {
            return Some(needs);
        }
        state.log.looked = 1 + history(&state);
        None
    }

    /// Cleans a log that will have so many pages, a long one in steps: how many blocks it gave
    /// back.
    fn shorten(&self, needs: usize, inode: &Inode) -> u64 {
        let mut state = inode.write();
        if state.gone {
            return 0;
        }
        let (had, region) = (state.log.pages.len() as u64, state.log.tail.page.region());
        let free: u64 = (0..self.slots.len()).map(|region| self.allocator.usage(region).0).sum();
        let long = state.live_slots() > STEP;
        let mut cleaned = if needs as u64 > free { Err(Error::NoSpace) } else { Ok(false) };
        if long && cleaned.is_ok() {
            drop(state);
            let pages = self.log_pages(self.regions.nearest(region), Purpose::Cleaning);
            cleaned = self.in_steps(inode, STEP, pages, &mut || true);
            state = inode.write();
        }
        if matches!(cleaned, Ok(false)) && !state.gone {
            cleaned = self.clean_log(inode, &mut state, Purpose::Cleaning).map(|()| true);
        }
        if cleaned.is_err() {
            let _ = self.drop_dead_pages(inode, &mut state);
            self.room.changed(inode, &state); // perhaps once others gave back theirs
        }
        if cleaned.is_err() || long {
            state.log.looked = 1 + history(&state);
        }
        had.saturating_sub(state.log.pages.len() as u64)
    }

    /// How many logs were read for want of room since the mount.
    pub fn looks(&self) -> u64 {
        self.room.looks.load(Ordering::Relaxed)
    }

    /// Whether the log of an inode that was not read has more than one page.
    fn has_long_log(&self, ino: Ino) -> bool {
        let mut bytes = [0; LINE];
        let read = self.store.inode_at(ino).and_then(|(block, offset)| self.store.read(block, offset, &mut bytes));
        let line = read.ok().and_then(|()| line::decode(ino, &bytes).ok());
        matches!(line, Some(line::Inode::Used { head, tail, .. }) if head.page != tail.page)
    }

    /// Cleans the log of an inode now, thoroughly.
    pub fn clean(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = inode.write();
        check_live(&state)?;
        self.clean_log(&inode, &mut state, Purpose::Cleaning)
    }

    /// Takes pages that are only history out of the log of an inode, for which there need be no
    /// room: how many.
    pub fn drop_history(&self, ino: Ino) -> Result<u64> {
        let inode = self.inode(ino)?;
        let mut state = inode.write();
        check_live(&state)?;
        self.drop_dead_pages(&inode, &mut state)
    }

    /// From now on operations leave logs with more than so many live slots to
    /// [`Volume::clean_left`], and the blocks of as many extents to [`Volume::give_back`]; with
    /// `None`, none.
    pub fn leave_logs(&self, longer_than: Option<usize>) {
        lock(&self.room.left).longer_than = longer_than;
        self.room.left_one.notify_all();
    }

    /// Cleans one of the logs that operations left, in steps of as many slots. False: there is
    /// none.
    pub fn clean_left(&self) -> bool {
        let (next, step) = {
            let mut left = lock(&self.room.left);
            (left.inodes.pop_first(), left.longer_than.unwrap_or(STEP))
        };
        let Some(ino) = next else { return false };
        let _visit = Self::visit(self, ino);
        let is_worth = |state: &State| worth_it(state) || state.is_unsorted();
        if self.inode_partly(ino).is_ok_and(|inode| is_worth(&inode.read())) {
            let go_on = || lock(&self.room.left).longer_than.is_some();
            // Without room, or damaged: not before it is twice as long.
            if self.clean_in_steps(ino, step, go_on).is_err()
                && let Ok(inode) = self.inode_partly(ino)
            {
                let mut state = inode.write();
                state.log.cleaned = state.log.slots();
            }
        }
        true
    }

    /// Gives back blocks that operations left, of as many extents as a step has. False: there are
    /// none.
    pub fn give_back(&self) -> bool {
        let step = lock(&self.room.left).longer_than.unwrap_or(STEP);
        // Whoever found no room meanwhile tries again.
        let given = self.room.leaving.step(&self.store, &self.allocator, step, &self.room.made);
        if given.is_err() {
            self.orphaned.store(true, Ordering::Release); // the next mount finds them
        }
        let more = !matches!(given, Ok(None));
        if more {
            lock(&self.room.left).blocks = true;
        }
        more
    }

    pub(crate) fn give_back_all(&self) {
        while self.give_back() {}
    }

    /// Gives back the blocks and the log of an inode that is gone.
    pub(crate) fn give_blocks(&self, inode: &Inode, state: &mut State) {
        let (extents, pages) = (std::mem::take(&mut state.extents), std::mem::take(&mut state.log.pages));
        if !extents.is_whole() || self.room.leaves_blocks(extents.len()) {
            return self.room.leave_blocks(extents, inode.whose(), pages);
        }
        self.free_pages(&pages);
        extents.iter().for_each(|run| self.allocator.free(run.block, run.count));
    }

    /// Before a file is cut off at a file block: takes away what is beyond, if that is much.
    pub(crate) fn leave_tail(&self, inode: &Inode, state: &mut State, file_block: u64) {
        if state.extents.end() > file_block && self.room.leaves_blocks(state.extents.len()) {
            self.room.leave_blocks(state.extents.cut_off(file_block), inode.whose(), Vec::new());
        }
    }

    /// Waits for a log or blocks that were left. False: none will be left any more.
    fn wait_for_left(&self) -> bool {
        let mut left = lock(&self.room.left);
        while left.longer_than.is_some() && left.inodes.is_empty() && !std::mem::take(&mut left.blocks) {
            left = wait(&self.room.left_one, left);
        }
        left.longer_than.is_some()
    }

    /// Cleans the log of an inode now, so many slots at a time, while others use it. `go_on` is
    /// asked before each step. False: it was stopped, the log was replaced by another meanwhile, or
    /// somebody else is at it.
    pub fn clean_in_steps(&self, ino: Ino, step: usize, mut go_on: impl FnMut() -> bool) -> Result<bool> {
        let inode = self.inode(ino)?;
        let regions = self.regions.nearest(inode.read().log.tail.page.region());
        let done = self.in_steps(&inode, step, self.log_pages(regions, Purpose::Growth), &mut go_on);
        if !matches!(done, Ok(true)) {
            let mut state = inode.write();
            state.log.cleaned = state.log.slots();
        }
        done
    }

    /// The same, to a new log of these pages.
    pub(crate) fn in_steps(
        &self,
        inode: &Inode,
        step: usize,
        pages: Pages<'_, '_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let Ok(_alone) = inode.stepping.try_lock() else { return Ok(false) };
        self.read_all(inode)?;
        let done = self.rewrite(inode, step, pages, go_on);
        if !matches!(done, Ok(true)) {
            inode.write().rewriting = None;
        }
        done
    }

    fn rewrite(
        &self,
        inode: &Inode,
        step: usize,
        pages: Pages<'_, '_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let mut new = {
            let mut state = inode.write();
            check_live(&state)?;
            state.rewriting = Some(Box::default());
            let whose = inode.whose();
            let xattrs = state.all_xattrs(&self.store, whose)?;
            let log = Appended::after(pages.allocator, (state.log.sequence, NO_TAIL));
            let mut new = Rewrite {
                whose,
                pages,
                log,
                flushed: Flushed::nothing(),
                from: state.log.tail,
                sorted: Sorted::default(),
            };
            state.first_entries(&xattrs).try_for_each(|(entry, time)| new.push(&self.store, &entry, time))?;
            new
        };
        let mut more = true;
        while more {
            if !go_on() {
                return Ok(false);
            }
            let state = inode.read();
            let Some(rewriting) = state.rewriting.as_ref().filter(|_| !state.gone) else { return Ok(false) };
            let mut place = lock(rewriting);
            if state.dir.is_some() {
                new.catch_up(&self.store, &state, std::mem::take(&mut place.among))?;
            }
            let mut slots = 0;
            more = false;
            for (upto, entry) in state.more_entries(place.upto) {
                if slots >= step {
                    more = true;
                    break;
                }
                new.push(&self.store, &entry, state.attributes.ctime)?;
                slots += entry.slots();
                place.upto = upto;
            }
            if !more {
                place.upto = u64::MAX;
                let (entry, time) = state.attributes_entry(); // the entries between changed the times
                new.push(&self.store, &entry, time)?;
            }
            new.flush(&self.store)?;
        }
        // What came to a file meanwhile follows its extents, which stay in order.
        for _ in 0..ROUNDS {
            let state = inode.read();
            if state.rewriting.is_none() || state.gone {
                return Ok(false);
            }
            if state.dir.is_some() || state.log.tail == new.from {
                break;
            }
            new.catch_up(&self.store, &state, Vec::new())?;
            new.flush(&self.store)?;
        }
        let mut state = inode.write();
        let rewriting = state.rewriting.take().filter(|_| !state.gone);
        let Some(rewriting) = rewriting else { return Ok(false) };
        let _watch = self.store.doubt_if_it_panics();
        new.catch_up(&self.store, &state, std::mem::take(&mut lock(&rewriting).among))?;
        new.flush(&self.store)?;
        let old = self.switch_log(inode, &mut state, (new.log, new.sorted), new.flushed)?;
        drop(state);
        self.free_pages(&old);
        Ok(true)
    }

    /// Cleans a log of which less than half is still true. To write it anew takes a line for each
    /// entry that is true, at most one for each change since the last time; to find dead pages
    /// takes two looks at every entry, which is ten times as long. So that is for a volume that has
    /// no room for the new log. A failure changes nothing but the time until the next try.
    pub(crate) fn clean_if_worth(&self, inode: &Inode, state: &mut State) {
        if !worth_it(state) || self.room.leave(inode, state) {
            return;
        }
        if self.clean_log(inode, state, Purpose::Freeing).is_err() {
            let _ = self.drop_dead_pages(inode, state);
            state.log.cleaned = state.log.slots();
        }
    }

    /// Writes what is still true to a new log, and switches over to it.
    fn clean_log(&self, inode: &Inode, state: &mut State, purpose: Purpose) -> Result<()> {
        self.read_extents(inode, state, (0, u64::MAX), usize::MAX)?;
        let pages = self.log_pages(self.regions.nearest(state.log.tail.page.region()), purpose);
        let mut new = Appended::after(&self.allocator, (state.log.sequence, NO_TAIL));
        let whose = inode.whose();
        let xattrs = state.all_xattrs(&self.store, whose)?;
        let mut sorted = Sorted::default();
        for (entry, time) in state.entries(&xattrs) {
            new.push(&self.store, pages, whose, (&entry, time))?;
            sorted.note(new.new_pages().saturating_sub(1) as usize, &entry);
        }
        let flushed = std::mem::take(&mut new.dirty).flush(&self.store)?;
        let old = self.switch_log(inode, state, (new, sorted), flushed)?;
        self.free_pages(&old);
        Ok(())
    }

    /// Nothing can be appended to a page whose memory has failed. What it says is in memory, too:
    /// the log is written anew, and the next change finds another page.
    pub(crate) fn leave_failed_page(&self, inode: &Inode, state: &mut State) {
        if self.store.failed().has(state.log.tail.page) && !state.gone {
            let _ = self.clean_log(inode, state, Purpose::Cleaning); // without room the next change tries again
        }
    }

    /// Makes a new log that of an inode. The old one's pages are not free yet.
    fn switch_log(
        &self,
        inode: &Inode,
        state: &mut State,
        (new, sorted): (Appended<'_>, Sorted),
        flushed: Flushed,
    ) -> Result<Vec<Block>> {
        let records = [record(inode, Field::Head, new.head()), record(inode, Field::Tail, new.tail)];
        self.store_records(&records, flushed)?;
        state.rewriting = None;
        let old = std::mem::replace(&mut state.log, new.into_log());
        (state.log.cleaned, state.log.sorted) = (state.log.slots(), sorted.runs);
        self.settle(inode, state);
        Ok(old.pages)
    }

    fn free_pages(&self, pages: &[Block]) {
        pages.iter().for_each(|page| self.allocator.free(*page, 1));
    }

    /// Takes pages that are only history out of a log: how many.
    fn drop_dead_pages(&self, inode: &Inode, state: &mut State) -> Result<u64> {
        let whose = inode.whose();
        self.read_extents(inode, state, (0, u64::MAX), usize::MAX)?;
        let Some((middle, last)) = state.log.pages.get(1..).and_then(|rest| rest.split_last().map(|(l, m)| (m, l)))
        else {
            return Ok(0);
        };
        // From the last page to the first: what the pages kept so far map, an earlier page need
        // not.
        let (mut later, mut keep) = (Extents::default(), vec![*last]);
        self.is_dead(whose, (*last, state.log.tail.slot), &mut later)?;
        for page in middle.iter().rev() {
            if !self.is_dead(whose, (*page, SLOTS), &mut later)? {
                keep.push(*page);
            }
        }
        keep.extend(state.log.pages.first());
        keep.reverse();
        let dropped = state.log.pages.len() - keep.len();
        if dropped == 0 || !self.says_the_same(whose, &keep, state)? {
            return Ok(0);
        }
        let words = |pages: &[Block]| -> Vec<(Block, Block)> {
            pages.iter().zip(pages.iter().skip(1)).map(|(at, next)| (*at, *next)).collect()
        };
        let old = words(&state.log.pages);
        let links = words(&keep).into_iter().filter(|link| !old.contains(link));
        let links: Vec<_> = links.map(|(at, next)| (at, page::NEXT, page::next_word(at, whose.1, next))).collect();
        // One that is stored without the next would leave the volume in doubt.
        if links.iter().any(|(at, next, _)| self.store.can_store(*at, *next).is_err()) {
            return Ok(0);
        }
        self.store.commit(&links, &Flushed::nothing().fence(&self.store)?)?;
        state.rewriting = None;
        state.log.sorted = 0;
        let pages = std::mem::replace(&mut state.log.pages, keep);
        for page in pages.iter().filter(|page| !state.log.pages.contains(page)) {
            self.allocator.free(*page, 1);
        }
        self.settle(inode, state);
        Ok(dropped as u64)
    }

    /// Whether a page holds only mappings of file blocks that `later` pages map again. If not, adds
    /// what it maps to those.
    fn is_dead(&self, whose: (Ino, u32), (at, end): (Block, usize), later: &mut Extents) -> Result<bool> {
        let page = self.store.read_block(at)?;
        let (mut dead, mut maps) = (true, Vec::new());
        let entries = log::read_page(page.as_slice(), whose, LogPos { page: at, slot: 1 }, end, |entry, _| {
            dead &= match entry {
                Entry::Pad => true,
                Entry::Extent(run, Some(_)) => {
                    maps.push(Run { block: Block::NONE, ..*run }); // only the file blocks matter
                    later.range(run.file_block, run.count).map(|again| again.count).sum::<u64>() == run.count
                }
                _ => false,
            };
            Ok(())
        });
        let dead = dead && entries.is_ok();
        if !dead {
            maps.into_iter().for_each(|run| later.insert(run, &mut Vec::new()));
        }
        Ok(dead)
    }

    /// Whether these pages of a log alone lead to the same state.
    fn says_the_same(&self, whose: (Ino, u32), pages: &[Block], state: &State) -> Result<bool> {
        let mut again = State::new(Log { pages: Vec::new(), ..state.log.clone() });
        for at in pages {
            let page = self.store.read_block(*at)?;
            let end = if *at == state.log.tail.page { state.log.tail.slot } else { SLOTS };
            let from = LogPos { page: *at, slot: 1 };
            let applied = log::read_page(page.as_slice(), whose, from, end, |entry, time| {
                again.apply(entry, time, &mut Vec::new())
            });
            if applied.is_err() {
                return Ok(false);
            }
        }
        let extents = again.extents.iter().eq(state.extents.iter());
        let rest = (again.attributes, again.size) == (state.attributes, state.size);
        Ok(extents && rest && again.xattrs.are(&state.xattrs) && again.dir.is_none() && state.dir.is_none())
    }
}

/// Slots of a log that are history, or empty at the end of a page.
fn history(state: &State) -> usize {
    state.log.slots().saturating_sub(state.live_slots())
}

/// Pages that a log could lose at most. None where it was looked at in vain or is new, and little
/// of it has become history since: that is not worth a look at each of its entries.
fn may_lose(state: &State) -> usize {
    let (log, live) = (&state.log, state.live_slots());
    if state.gone || log.looked > 0 && history(state) < log.looked + LOOK_AFTER.max(live / LOOK_PART) {
        return 0;
    }
    log.pages.len().saturating_sub(live.div_ceil(SLOTS - 1))
}

/// Pages that the log would have if it was cleaned. Each extent takes one slot.
fn pages_of(state: &State, xattrs: &Values) -> usize {
    let first = state.first_entries(xattrs).map(|(entry, _)| entry.slots());
    let names = state.dir.iter().flat_map(|_| state.more_entries(0)).map(|(_, entry)| entry.slots());
    let again = usize::from(state.live_slots() > 1);
    log::pages_for(first.chain(iter::repeat_n(1, state.extents.len())).chain(names).chain(iter::repeat_n(1, again)))
}

/// More than half of the log is history, as far as can be told without reading it: what a rewritten
/// log had is still true.
fn worth_it(state: &State) -> bool {
    let slots = state.log.slots();
    slots >= CLEAN_FROM && slots > 2 * state.log.cleaned && slots > 2 * state.live_slots()
}

/// A new log that is being written while its inode is in use.
struct Rewrite<'a, 'r> {
    whose: (Ino, u32),
    pages: Pages<'a, 'r>,
    log: Appended<'a>,
    flushed: Flushed,
    /// The old log is in it as far as here, or not needed.
    from: LogPos,
    sorted: Sorted,
}

impl Rewrite<'_, '_> {
    fn push(&mut self, store: &Store, entry: &Entry<'_>, time: i64) -> Result<()> {
        self.log.push(store, self.pages, self.whose, (entry, time))?;
        self.sorted.note(self.log.new_pages().saturating_sub(1) as usize, entry);
        Ok(())
    }

    /// Adds what was appended to the old log since; `among` says which of the names.
    fn catch_up(&mut self, store: &Store, state: &State, among: Vec<bool>) -> Result<()> {
        let (mut among, mut failed) = (among.into_iter(), None);
        let (from, to) = (std::mem::replace(&mut self.from, state.log.tail), state.log.tail);
        if from == to {
            return Ok(());
        }
        let replayed = log::replay(store, self.whose, from, to, |entry, time| {
            let wanted = match entry {
                Entry::Pad => false,
                Entry::Link { .. } | Entry::Unlink { .. } => among.next().ok_or("a name that nobody noted")?,
                _ => true,
            };
            let pushed = if wanted { self.push(store, entry, time) } else { Ok(()) };
            pushed.map_err(|error| {
                failed = Some(error);
                "it cannot be copied"
            })
        });
        failed.map_or(replayed.map(drop), Err)
    }

    fn flush(&mut self, store: &Store) -> Result<()> {
        let dirty = std::mem::take(&mut self.log.dirty);
        let before = std::mem::replace(&mut self.flushed, Flushed::nothing());
        self.flushed = before.and(dirty.flush(store)?);
        Ok(())
    }
}

/// A thread that cleans the long logs of a volume. Dropping it ends the thread, which takes no
/// longer than a step.
pub struct Background {
    volume: Arc<Volume>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread: one for a volume.
    ///
    /// # Errors
    ///
    /// The system has no room for another thread.
    pub fn start(volume: Arc<Volume>) -> io::Result<Self> {
        let cleans = Arc::clone(&volume);
        volume.leave_logs(Some(STEP));
        let mut background = Self { volume, thread: None };
        let work = move || {
            // After a panic operations clean by themselves again.
            let _leaves = Leaves(&cleans);
            while cleans.wait_for_left() {
                cleans.give_back();
                cleans.clean_left();
            }
        };
        background.thread = Some(std::thread::Builder::new().name("clean-logs".into()).spawn(work)?);
        Ok(background)
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.volume.leave_logs(None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// As long as it lives, operations leave logs.
struct Leaves<'a>(&'a Volume);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.leave_logs(None);
    }
}
