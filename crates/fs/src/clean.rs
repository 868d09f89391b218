//! Log cleaning.
//!
//! **Problem.** A log grows with every change, and most of what it says is soon history.
//!
//! **Approach.** Two ways. *Fast*: a page of which no entry matters any more is taken out of the chain by one 8-byte store
//! to the page before it. *Thorough*: what is still true is written to a new log. An operation writes the logs it changed
//! anew once more than half of one is history; [`Volume::clean_logs`] does both for all, for a thread in the background. An
//! operation that finds no room has every log cleaned that would lose a page, and tries again ([`Volume::with_room`]).
//!
//! **Limits.** Fast cleaning drops only pages that hold nothing but mappings of blocks that are mapped otherwise by now.
//! Thorough cleaning needs room for the new log beside the old one: a log stays as it is if what is still true of it takes
//! more blocks than are free, those kept for such operations included.

use std::sync::atomic::Ordering;

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
use crate::log::{self, Log, NO_TAIL};
use crate::ops::check_live;
use crate::store::Flushed;
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, lock};
use crate::volume::Volume;

/// A log shorter than two pages is not worth cleaning: a file has one page in any case.
const CLEAN_FROM: usize = 2 * (SLOTS - 1);

/// Slots that become history before a log is looked at again. What a page loses to entries that do not fit into its rest is less.
const LOOK_AFTER: usize = SLOTS / 4;

/// Result of cleaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Pages that were taken out of a log.
    pub dropped: u64,
    /// Logs that were written anew.
    pub rewritten: u64,
}

/// Where cleaning may give back blocks.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Inodes whose logs have more than one page and changed since they were last looked at, each once ([`Inode::listed`]).
    changed: Mutex<Vec<Ino>>,
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
}

impl Room {
    /// Notes that the log of an inode changed. As a rule it is too short to lose a page, or noted already, and nobody waits.
    pub(crate) fn changed(&self, inode: &Inode, state: &State) {
        let long = state.log.pages.len() > 1;
        if long && !inode.listed.load(Ordering::Relaxed) && !inode.listed.swap(true, Ordering::AcqRel) {
            lock(&self.changed).push(inode.ino);
        }
    }

    /// Keeps others from the half of the reserve that is for what replaces something.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        lock(&self.replacing)
    }
}

impl Volume {
    /// Does `work`. When that finds no room, cleans logs and does it again, as long as cleaning gives back blocks.
    pub(crate) fn with_room<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            let made = self.room.made.load(Ordering::Acquire);
            match work() {
                Err(Error::NoSpace) if self.make_room(made) => {}
                done => return done,
            }
        }
    }

    /// Cleans all logs that would lose a page, those that need least room first. False: there is no more room than when
    /// cleaning had `made` so many blocks.
    fn make_room(&self, made: u64) -> bool {
        let _alone = lock(&self.room.making);
        if self.room.made.load(Ordering::Acquire) != made {
            return true; // another thread cleaned meanwhile
        }
        if !self.room.looked.swap(true, Ordering::AcqRel) {
            for ino in self.unread_inodes().into_iter().filter(|ino| self.has_long_log(*ino)) {
                let _ = self.inode(ino); // which lists it; damage shows when the file is used
            }
        }
        // A full volume is full at once where none changed.
        let changed = std::mem::take(&mut *lock(&self.room.changed));
        let mut shorter = Vec::new();
        for inode in changed.into_iter().filter_map(|ino| self.inode(ino).ok()) {
            inode.listed.store(false, Ordering::Release);
            let mut state = inode.write();
            let pages = state.log.pages.len();
            if state.gone || pages < 2 || state.live_slots().div_ceil(SLOTS - 1) >= pages || looked_at(&state) {
                continue;
            }
            self.room.looks.fetch_add(1, Ordering::Relaxed);
            let needs = log::pages_for(state.entries().iter().map(|(entry, _)| entry.slots()));
            if needs < pages {
                drop(state);
                shorter.push((needs, inode));
            } else {
                state.log.looked = 1 + history(&state);
            }
        }
        shorter.sort_by_key(|(pages, _)| *pages);
        let mut given = 0;
        for (_, inode) in shorter {
            let mut state = inode.write();
            if state.gone {
                continue;
            }
            let (had, region) = (state.log.pages.len() as u64, state.log.tail.page.region());
            if self.clean_log_to(&inode, &mut state, region).is_err() {
                let _ = self.drop_dead_pages(&inode, &mut state);
                state.log.looked = 1 + history(&state);
                self.room.changed(&inode, &state); // perhaps once others gave back theirs
            }
            given += had.saturating_sub(state.log.pages.len() as u64);
        }
        self.room.made.fetch_add(given, Ordering::AcqRel);
        given > 0
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
        let region = state.log.tail.page.region();
        self.clean_log_to(&inode, &mut state, region)
    }

    /// Cleans all logs that are worth it, of inodes that were used since the mount and that nobody is using right now.
    /// `go_on` is asked before each one.
    pub fn clean_logs(&self, mut go_on: impl FnMut() -> bool) -> Result<Cleaned> {
        let mut cleaned = Cleaned::default();
        for inode in self.known_inodes() {
            if !go_on() {
                break;
            }
            let Some(mut state) = inode.try_write().filter(|state| !state.gone) else { continue };
            cleaned.dropped += match self.drop_dead_pages(&inode, &mut state) {
                // A page of it cannot be read, which is no fault of the others.
                Err(Error::Io(_)) if self.store.check_writable().is_ok() => continue,
                dropped => dropped?,
            };
            if worth_it(&state) {
                let region = state.log.tail.page.region();
                self.clean_log_to(&inode, &mut state, region)?;
                cleaned.rewritten += 1;
            }
        }
        Ok(cleaned)
    }

    /// Cleans a log of which less than half is still true. To write it anew takes a line for each entry that is true, at most one
    /// for each change since the last time; to find dead pages takes two looks at every entry, which is ten times as long. So
    /// that is for a volume that has no room for the new log. A failure changes nothing but the time until the next try.
    pub(crate) fn clean_if_worth(&self, inode: &Inode, state: &mut State) {
        if worth_it(state) && self.clean_log_to(inode, state, state.log.tail.page.region()).is_err() {
            let _ = self.drop_dead_pages(inode, state);
            state.log.cleaned = state.log.slots();
        }
    }

    /// Writes what is still true to a new log in a region, if it has room, and switches over to it.
    pub(crate) fn clean_log_to(&self, inode: &Inode, state: &mut State, region: usize) -> Result<()> {
        let pages = self.log_pages(self.regions.nearest(region), Purpose::Freeing);
        let whose = (inode.ino, inode.generation);
        let (entries, from) = (state.entries(), (state.log.sequence, NO_TAIL));
        let mut new = log::append(&self.store, pages, whose, from, entries.iter().map(|(entry, time)| (entry, *time)))?;
        let flushed = std::mem::take(&mut new.dirty).flush(&self.store)?;
        let records = [record(inode, Field::Head, new.head()), record(inode, Field::Tail, new.tail)];
        self.store_records(&records, flushed)?;
        let old = std::mem::replace(&mut state.log, new.into_log());
        state.log.cleaned = state.log.slots();
        for page in old.pages {
            self.allocator.free(page, 1);
        }
        Ok(())
    }

    /// Takes pages that are only history out of a log: how many.
    fn drop_dead_pages(&self, inode: &Inode, state: &mut State) -> Result<u64> {
        let whose = (inode.ino, inode.generation);
        let Some((middle, last)) = state.log.pages.get(1..).and_then(|rest| rest.split_last().map(|(l, m)| (m, l)))
        else {
            return Ok(0);
        };
        // From the last page to the first: what the pages kept so far map, an earlier page need not.
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
        self.store.commit(&links, &Flushed::nothing().fence(&self.store)?)?;
        let pages = std::mem::replace(&mut state.log.pages, keep);
        for page in pages.iter().filter(|page| !state.log.pages.contains(page)) {
            self.allocator.free(*page, 1);
        }
        Ok(dropped as u64)
    }

    /// Whether a page holds only mappings of file blocks that `later` pages map again. If not, adds what it maps to those.
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
        let rest = (again.attributes, again.size, &again.xattrs) == (state.attributes, state.size, &state.xattrs);
        Ok(extents && rest && again.dir.is_none() && state.dir.is_none())
    }
}

/// Slots of a log that are history, or empty at the end of a page.
fn history(state: &State) -> usize {
    state.log.slots().saturating_sub(state.live_slots())
}

/// Whether a log was looked at in vain, and little of it has become history since: not worth a look at each of its entries.
fn looked_at(state: &State) -> bool {
    state.log.looked > 0 && history(state) < state.log.looked + LOOK_AFTER
}

/// More than half of the log is history, as far as can be told without reading it: what a rewritten log had is still true.
fn worth_it(state: &State) -> bool {
    let slots = state.log.slots();
    slots >= CLEAN_FROM && slots > 2 * state.log.cleaned && slots > 2 * state.live_slots()
}
