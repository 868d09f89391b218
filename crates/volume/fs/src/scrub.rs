//! Reading all of a volume while it is used, so that damage is found as long as a backup has what
//! it hit.
//!
//! **Problem.** A bit that flips in a file that nobody reads shows years later. A check that takes
//! a write under way for damage is turned off.
//!
//! **Approach.** [`Volume::scrub`] goes through the inodes by number. Of each it reads its line,
//! its log and its data again, the data a few blocks at a time, under the lock that readers share:
//! what is mapped then is committed, and stays as it is. What has a second copy is mended: a
//! superblock from another one, a line and a log from what memory knows of the inode, or from their
//! twin where there is one. File data has one copy. The place is kept in memory, and the inode's
//! number on the medium, so that a scrub that was stopped goes on there, also at the next mount.
//!
//! **Limits.** Where the volume has no checksums of data, only memory that cannot be read is found.
//! What is made while it runs may be left out: it was written just now. Names are not compared with
//! inodes; `fsck` does that.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::clean;
use crate::error::{Damage, Error, Result, UNREADABLE};
use crate::format::inode as line;
use crate::format::page::{NEXT, SLOTS, next_word};
use crate::format::superblock::{STATE_BLOCK, Superblock, copies};
use crate::format::word::{self, Field, Owner};
use crate::format::{BLOCK, BLOCK_BYTES, Block, Ino, LINE, LogPos, get_u64};
use crate::fsck::FLIPPED;
use crate::inode::{Inode, State};
use crate::log;
use crate::store::Flushed;
use crate::twins;
use crate::volume::Volume;

/// Blocks that are read under one lock.
const STEP: u64 = 64;
/// Longest sleep of a scrub that has a rate: after it the caller is asked again whether to go on.
const NAP: Duration = Duration::from_millis(50);
/// Where block 2 of region 0 has the number of the inode that is next.
const PLACE: u64 = 128;
const PLACE_OWNER: Owner = Owner { id: STATE_BLOCK, generation: 0 };
/// How often the place is stored.
const STORED: Duration = Duration::from_secs(10);
/// Names of a directory that are looked at under one lock.
const NAMES: usize = 1000;

/// Where a scrub is: all below was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrubPlace {
    /// The number of the inode that is next; 0 at the beginning.
    pub ino: u64,
    /// The block of that file that is next.
    pub file_block: u64,
    /// Damage before it is known to whoever has this place, and to nobody else: a scrub of another
    /// mount begins anew.
    pub damaged: bool,
}

/// How far a scrub is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    pub place: ScrubPlace,
    pub inodes: u64,
    /// Bytes of data read.
    pub bytes: u64,
    pub done: bool,
}

/// Damage that a scrub has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The inode; `None`: it is a superblock.
    pub ino: Option<Ino>,
    /// The bytes of the file; `None`: it is no data.
    pub bytes: Option<Range<u64>>,
    pub damage: Damage,
    /// It was put right from a second copy.
    pub mended: bool,
}

/// Told of each fault.
type Found<'a> = &'a mut dyn FnMut(Fault);

impl Volume {
    /// Reads what is behind a place, at most so many bytes of data a second, and hands what is
    /// damaged to `found`. `go_on` is asked before each step, and while the scrub waits.
    ///
    /// # Errors
    ///
    /// Those of the medium that are no damage.
    pub fn scrub(
        &self,
        from: ScrubPlace,
        rate: Option<u64>,
        found: Found<'_>,
        go_on: &mut dyn FnMut(&Scrubbed) -> bool,
    ) -> Result<Scrubbed> {
        // A place with damage before it is none to go on from: only this scrub knows of that.
        let damaged = Cell::new(from.damaged);
        let found: Found<'_> = &mut |fault: Fault| {
            damaged.set(damaged.get() || !fault.mended);
            found(fault);
        };
        let kept = |place| if damaged.get() { ScrubPlace::default() } else { place };
        let mut pass = Pass { place: from, inodes: 0, bytes: 0, rate, began: Instant::now(), go_on };
        if (from.ino, from.file_block) == (0, 0) {
            self.scrub_superblocks(found)?;
        }
        let all = self.all_inodes();
        let (mut on, mut stored) = (true, Instant::now());
        for ino in all.iter().copied().filter(|ino| ino.raw() >= from.ino) {
            if ino.raw() != pass.place.ino {
                pass.place = ScrubPlace { ino: ino.raw(), ..ScrubPlace::default() };
            }
            if stored.elapsed() > STORED {
                self.keep_scrub_place(kept(pass.place))?;
                stored = Instant::now();
            }
            on = self.scrub_inode(ino, &mut pass, found)?;
            if !on {
                break;
            }
            pass.inodes += 1;
            pass.place = ScrubPlace { ino: ino.raw() + 1, ..ScrubPlace::default() };
        }
        // What a drain has given another number meanwhile was not written just now.
        let mut new = if on { self.all_inodes() } else { Vec::new() };
        new.retain(|ino| all.binary_search(ino).is_err());
        for ino in new {
            pass.place = ScrubPlace { ino: ino.raw(), ..ScrubPlace::default() };
            on = self.scrub_inode(ino, &mut pass, found)?;
            if !on {
                pass.place = ScrubPlace::default();
                break;
            }
            pass.inodes += 1;
        }
        let place = if on { ScrubPlace::default() } else { pass.place };
        self.keep_scrub_place(kept(place))?;
        let place = ScrubPlace { damaged: !on && damaged.get(), ..place };
        Ok(Scrubbed { place, done: on, ..pass.now() })
    }

    /// Where the last scrub was stopped, also before the mount: then at the beginning of a file.
    pub fn scrub_place(&self) -> ScrubPlace {
        let word = self.store.load_word(Block::new(0, STATE_BLOCK), PLACE).unwrap_or(0);
        ScrubPlace { ino: word::unseal(PLACE_OWNER, Field::Scrub, word).unwrap_or(0), ..ScrubPlace::default() }
    }

    fn keep_scrub_place(&self, place: ScrubPlace) -> Result<()> {
        if self.store.check_writable().is_err() || self.scrub_place().ino == place.ino {
            return Ok(());
        }
        let word = if place.ino == 0 { 0 } else { word::seal(PLACE_OWNER, Field::Scrub, place.ino) };
        self.store.store_word(Block::new(0, STATE_BLOCK), PLACE, word)?.flush(&self.store)?.fence(&self.store)?;
        Ok(())
    }

    /// A path of each of these inodes, as far as they have one. Takes a look at all names, as long
    /// as `go_on` says so.
    pub fn paths_of(&self, wanted: &BTreeSet<Ino>, go_on: &dyn Fn() -> bool) -> BTreeMap<Ino, Vec<u8>> {
        let (mut paths, mut dirs) = (BTreeMap::new(), vec![(Ino::ROOT, Vec::new())]);
        if wanted.contains(&Ino::ROOT) {
            paths.insert(Ino::ROOT, b"/".to_vec());
        }
        while let Some((dir, path)) = dirs.pop().filter(|_| paths.len() < wanted.len() && go_on()) {
            let mut after = 0;
            // What cannot be read, or is gone by now, has no names.
            while let Ok(part) = self.briefly(dir, |_| self.names(dir, after, NAMES)).unwrap_or(Err(Error::NotFound)) {
                let Some(last) = part.last().filter(|_| go_on()) else { break };
                after = last.named.cookie;
                for name in part {
                    let below: Vec<u8> = path.iter().chain(b"/").chain(name.name.iter()).copied().collect();
                    if wanted.contains(&name.named.ino) {
                        paths.entry(name.named.ino).or_insert_with(|| below.clone());
                    }
                    if name.named.kind == crate::Kind::Directory {
                        dirs.push((name.named.ino, below));
                    }
                }
            }
        }
        paths
    }

    /// Reads one inode. False: it was stopped.
    fn scrub_inode(&self, ino: Ino, pass: &mut Pass<'_>, found: Found<'_>) -> Result<bool> {
        let was_known = self.known_inode(ino).is_some();
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(Error::Damaged(damage)) => {
                found(Fault { ino: Some(ino), bytes: None, damage, mended: false });
                return Ok(true);
            }
            Err(Error::NotFound) => return Ok(true), // it has gone meanwhile
            Err(error) => return Err(error),
        };
        let metadata = if pass.place.file_block == 0 { self.scrub_metadata(&inode, pass, found) } else { Ok(true) };
        let done = metadata.and_then(|on| if on { self.scrub_data(&inode, pass, found) } else { Ok(false) });
        if !was_known {
            self.let_go(inode);
        }
        done
    }

    /// Reads the line and the log of an inode again, and writes anew what memory knows better.
    fn scrub_metadata(&self, inode: &Inode, pass: &mut Pass<'_>, found: Found<'_>) -> Result<bool> {
        let ino = inode.ino;
        let mut fault = |damage, mended| found(Fault { ino: Some(ino), bytes: None, damage, mended });
        let (block, offset) = self.store.inode_at(ino)?;
        let copies = self.scrub_copies(&inode.read(), block, (offset, LINE));
        copies?.into_iter().for_each(|(damage, mended)| fault(damage, mended));
        let line = self.look_at_line(inode, &inode.read());
        if let Some(damage) = line? {
            let state = inode.write();
            // Again, as it may have been written meanwhile.
            if self.look_at_line(inode, &state)?.is_some() {
                let mut mended = self.store.check_writable().is_ok() && !is_unreadable(&damage);
                if mended {
                    match self.store.write(block, offset, &expected(inode, &state)) {
                        Err(Error::Io(_)) => mended = false, // of two copies one has failed
                        line => _ = line?.flush(&self.store)?.fence(&self.store)?,
                    }
                }
                fault(damage, mended);
            }
        }
        for at in 0.. {
            if !pass.goes_on() {
                return Ok(false);
            }
            let copies = {
                let state = inode.read();
                let len = if at + 1 == state.log.pages.len() { state.log.tail.slot * LINE } else { BLOCK };
                let page = state.log.pages.get(at).copied();
                page.map_or(Ok(None), |page| self.scrub_copies(&state, page, (0, len)))
            };
            copies?.into_iter().for_each(|(damage, mended)| fault(damage, mended));
            let looked = self.look_at_page(inode, &inode.read(), at);
            match looked? {
                Some(None) => {}
                None => break,
                Some(Some(damage)) => {
                    let writable = self.store.check_writable().is_ok();
                    fault(damage, writable && self.clean_in_steps(ino, clean::STEP, || true).unwrap_or(false));
                    break; // all of it is new, or nobody can write it anew
                }
            }
        }
        Ok(true)
    }

    /// Compares both copies of metadata that nobody changes as long as this `state` is locked, and
    /// writes the damaged one anew: the fault, and whether it is mended.
    fn scrub_copies(&self, state: &State, block: Block, (from, len): (u64, usize)) -> Result<Option<(Damage, bool)>> {
        // What is in doubt, or only looked at, may differ.
        if state.gone || self.store.check_writable().is_err() {
            return Ok(None);
        }
        let found = self.store.compare(block, from, len, true)?;
        if !found.first && !found.twin {
            return Ok(None);
        }
        Flushed::nothing().fence(&self.store)?;
        let what = if found.unreadable { UNREADABLE } else { twins::DAMAGED };
        Ok(Some((Damage::Copy { block, what }, !found.unreadable)))
    }

    /// What is wrong with an inode's line.
    fn look_at_line(&self, inode: &Inode, state: &State) -> Result<Option<Damage>> {
        if state.gone || state.log.pages.is_empty() {
            return Ok(None);
        }
        match self.store.read_inode(inode.ino) {
            Err(Error::Damaged(damage)) => Ok(Some(damage)),
            Ok(line) if line == expected(inode, state) => Ok(None),
            line => line.map(|_| Some(Damage::Inode { ino: inode.ino, what: "its line is not as it was written" })),
        }
    }

    /// What is wrong with a page of an inode's log; the outer `None`: there is no such page.
    fn look_at_page(&self, inode: &Inode, state: &State, at: usize) -> Result<Option<Option<Damage>>> {
        let pages = &state.log.pages;
        let Some(page) = pages.get(at).copied().filter(|_| !state.gone) else { return Ok(None) };
        let damage = |what| Ok(Some(Some(Damage::Inode { ino: inode.ino, what })));
        let contents = match self.store.read_block(page) {
            Err(Error::Io(_)) => return damage("the memory of its log cannot be read"),
            contents => contents?,
        };
        let (whose, next) = ((inode.ino, inode.generation), pages.get(at + 1).copied());
        let end = if next.is_none() { state.log.tail.slot } else { SLOTS };
        let read = log::read_page(contents.as_slice(), whose, LogPos { page, slot: 1 }, end, |_, _| Ok(()));
        match (read, next) {
            (Err(what), _) => damage(what),
            (Ok((_, true)), _) => damage(FLIPPED),
            (Ok(_), Some(next)) if get_u64(contents.as_slice(), NEXT as usize) != next_word(page, whose.1, next) => {
                damage("the way to its log's next page is not as it was written")
            }
            _ => Ok(Some(None)),
        }
    }

    /// Reads the data of an inode from the place of the pass on.
    fn scrub_data(&self, inode: &Inode, pass: &mut Pass<'_>, found: Found<'_>) -> Result<bool> {
        let mut buffer = Vec::new();
        loop {
            if !pass.goes_on() {
                return Ok(false);
            }
            let state = inode.read();
            let at = pass.place.file_block;
            let Some(run) = state.extents.next_written(at).filter(|_| !state.gone) else { return Ok(true) };
            let from = run.file_block.max(at);
            let (block, count) = (run.block.offset(from - run.file_block), (run.end() - from).min(STEP));
            buffer.resize(count as usize * BLOCK, 0);
            let read = self.store.read_data(block, 0, &mut buffer);
            if is_damage(&read)? {
                for i in 0..count {
                    if is_damage(&self.store.read_data(
                        block.offset(i),
                        0,
                        buffer.get_mut(..BLOCK).unwrap_or_default(),
                    ))? {
                        let begin = (from + i) * BLOCK_BYTES;
                        let bytes = Some(begin..(begin + BLOCK_BYTES).min(state.size.max(begin + 1)));
                        let damage = Damage::Data { block: block.offset(i), path: None };
                        found(Fault { ino: Some(inode.ino), bytes, damage, mended: false });
                    }
                }
            }
            pass.bytes += count * BLOCK_BYTES;
            pass.place.file_block = from + count;
        }
    }

    /// Reads all copies of the superblocks, and copies a good one over those that are not.
    fn scrub_superblocks(&self, found: Found<'_>) -> Result<()> {
        for region in (0..self.store.superblock().regions.len()).filter(|region| !self.store.is_lost(*region)) {
            let blocks = self.store.superblock().regions.get(region).map_or(0, |region| region.blocks);
            let read =
                copies(blocks).map(|copy| (Block::new(region, copy), self.store.read_block(Block::new(region, copy))));
            let good =
                read.iter().filter_map(|(_, read)| read.as_ref().ok()).find(|block| Superblock::decode(block).is_ok());
            for (at, read) in &read {
                let what = match read.as_ref().map(|block| Superblock::decode(block)) {
                    Ok(Ok(_)) => continue,
                    Ok(Err(what)) => what,
                    Err(_) => UNREADABLE,
                };
                let good = good.filter(|_| what != UNREADABLE && self.store.check_writable().is_ok());
                if let Some(good) = good {
                    self.store.write(*at, 0, good.as_slice())?.flush(&self.store)?.fence(&self.store)?;
                }
                let damage = Damage::Superblock { region, what };
                found(Fault { ino: None, bytes: None, damage, mended: good.is_some() });
            }
        }
        Ok(())
    }
}

/// The line of an inode as it should be.
fn expected(inode: &Inode, state: &State) -> [u8; LINE] {
    let head = LogPos { page: state.log.pages.first().copied().unwrap_or(Block::NONE), slot: 1 };
    line::encode(inode.ino, inode.generation, head, state.log.tail)
}

fn is_unreadable(damage: &Damage) -> bool {
    matches!(damage, Damage::Inode { what: UNREADABLE, .. })
}

/// Whether data cannot be read, or is not what was written.
fn is_damage(read: &Result<()>) -> Result<bool> {
    match read {
        Ok(()) => Ok(false),
        Err(Error::Damaged(_) | Error::Io(_)) => Ok(true),
        Err(Error::OutOfRange(block)) => Err(Error::OutOfRange(*block)),
        Err(_) => Err(Error::ReadOnly),
    }
}

struct Pass<'a> {
    place: ScrubPlace,
    inodes: u64,
    bytes: u64,
    rate: Option<u64>,
    began: Instant,
    go_on: &'a mut dyn FnMut(&Scrubbed) -> bool,
}

impl Pass<'_> {
    fn now(&self) -> Scrubbed {
        Scrubbed { place: self.place, inodes: self.inodes, bytes: self.bytes, done: false }
    }

    /// Asks whether to go on, and waits as long as the rate wants.
    fn goes_on(&mut self) -> bool {
        loop {
            let now = self.now();
            if !(self.go_on)(&now) {
                return false;
            }
            let Some(rate) = self.rate.filter(|rate| *rate > 0) else { return true };
            let due = Duration::from_secs_f64(self.bytes as f64 / rate as f64);
            match due.checked_sub(self.began.elapsed()).filter(|early| !early.is_zero()) {
                Some(early) => std::thread::sleep(early.min(NAP)),
                None => return true,
            }
        }
    }
}
