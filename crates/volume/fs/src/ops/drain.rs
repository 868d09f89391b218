//! Emptying a region before its memory goes.
//!
//! **Problem.** When a node is taken out, all that is on its region is lost: data, logs, and the
//! lines of inodes, whose numbers say in which region they are.
//!
//! **Approach.** The region gets no new blocks and no new inodes from then on. What files and
//! directories have there moves as in a migration. What has its number there gets another one: a
//! new inode with the same log is written elsewhere, and one commit changes all of its names over
//! to it. Blocks belong to the old one before that commit and to the new one behind it, as the
//! other one has no name, so a crash leaves one of them, whole.
//!
//! **Limits.** What somebody has open, or a kernel remembers, keeps its number: it is told, and a
//! later call may find it free. The root directory is always number 1 of region 0. Each log of the
//! volume is read. After the mount the region gets new blocks again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::alloc::Purpose;
use crate::error::{Damage, Error, Result};
use crate::format::Ino;
use crate::format::entry::{Attributes, Entry, Kind};
use crate::format::inode;
use crate::inode::{Inode, State};
use crate::log::{Appended, NO_TAIL};
use crate::ops::names::names_of;
use crate::ops::{Migration, names_to_change};
use crate::sync::lock;
use crate::volume::{Locked, Volume};

/// Times that all inodes are gone through, as long as something moves.
const PASSES: usize = 8;
/// Names that can change over to another number in one commit.
const MOST_NAMES: usize = 32;
/// Inodes that are told to stay; there may be more.
const TOLD: usize = 1000;

/// What is in a region that is being drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Blocks of data and logs.
    pub blocks: u64,
    /// Inodes that have their numbers there.
    pub inodes: u64,
}

/// Why an inode, or a part of it, stays in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    Root,
    /// Somebody has it open, or works with it.
    Open,
    /// A kernel remembers its number.
    Remembered,
    /// It has more names than can change over at once, or some that could not be found.
    Names,
    Failed(String),
}

impl Why {
    fn of(error: Error) -> Option<Self> {
        match error {
            Error::NotFound => None, // it has gone by itself
            Error::Busy => Some(Self::Open),
            Error::NoSpace | Error::Lacks(_) => Some(Self::Failed("there is no room for it elsewhere".to_owned())),
            error => Some(Self::Failed(error.to_string())),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("the root directory cannot leave region 0"),
            Self::Open => f.write_str("it is open"),
            Self::Remembered => f.write_str("the kernel remembers it"),
            Self::Names => write!(f, "it has more than {MOST_NAMES} names, or one that was not found"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// An inode of which something stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stays {
    pub ino: Ino,
    /// A path to it, if one was found.
    pub path: Option<Vec<u8>>,
    pub why: Why,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    pub left: Held,
    /// Who it belongs to, as far as known: up to 1000.
    pub stays: Vec<Stays>,
    pub cancelled: bool,
}

/// Where names of inodes are.
type Places = BTreeMap<Ino, Vec<(Ino, Box<[u8]>)>>;

impl Volume {
    /// What is in a region now.
    pub fn held(&self, region: usize) -> Held {
        let (free, blocks) = self.allocator.usage(region);
        let all = self.store.superblock().regions.get(region).map_or(0, |region| region.inodes);
        let slots = self.slots.get(region).map_or(all, |slots| lock(slots).count());
        // Slot 0 is never used.
        Held { blocks: blocks.saturating_sub(free), inodes: all.saturating_sub(slots + 1) }
    }

    /// Whether a region gets new blocks and inodes. A region that is [drained](Volume::drain) gets
    /// none, until this says that it does again.
    pub fn avoid(&self, region: usize, avoid: bool) -> Result<()> {
        let all = self.slots.len();
        if region >= all {
            return Err(Error::Invalid("the volume has no such region"));
        }
        if avoid && (0..all).all(|other| other == region || self.allocator.avoids(other)) {
            return Err(Error::Invalid("no other region would get what is written"));
        }
        self.allocator.avoid(region, avoid);
        Ok(())
    }

    /// The regions that get nothing new.
    pub fn avoided(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.len()).filter(|region| self.allocator.avoids(*region))
    }

    /// Moves all out of a region that can leave. `go_on` is told what is left before each step, and
    /// says whether to go on. Without a kernel nobody knows who uses a file that is not open: it
    /// gets another number.
    pub fn drain(&self, region: usize, mut go_on: impl FnMut(Held) -> bool) -> Result<Drained> {
        self.store.check_writable()?;
        self.avoid(region, true)?;
        let mut done = Drained::default();
        for _ in 0..PASSES {
            self.give_back_all();
            let before = self.held(region);
            done.stays.clear();
            done.cancelled = !self.drain_once(region, &mut done.stays, &mut go_on)?;
            self.give_back_all();
            done.left = self.held(region);
            if done.cancelled || done.left == Held::default() || done.left == before {
                break;
            }
        }
        done.stays.truncate(TOLD);
        let wanted = |ino: Ino| done.stays.binary_search_by_key(&ino, |stays| stays.ino).is_ok();
        let (all, mut places) = (self.all_inodes(), Places::new());
        all.iter().filter(|_| !done.stays.is_empty()).for_each(|ino| self.add_places(*ino, &wanted, &mut places));
        for stays in &mut done.stays {
            let place = places.get(&stays.ino).and_then(|places| places.first());
            stays.path = match stays.ino {
                Ino::ROOT => Some(b"/".to_vec()),
                _ => place.and_then(|(dir, name)| self.path_from_root(*dir, name)),
            };
        }
        Ok(done)
    }

    /// Goes through all inodes once. False: it was stopped.
    fn drain_once(&self, region: usize, stays: &mut Vec<Stays>, go_on: &mut dyn FnMut(Held) -> bool) -> Result<bool> {
        let (all, mut failed, mut places) = (self.all_inodes(), BTreeMap::new(), Places::new());
        let numbered = |ino: Ino| ino.region() == region;
        let migration = Migration { out_of: Some(region), ..Migration::default() };
        let is_there = |inode: &Inode| {
            let state = inode.read();
            let blocks = state.extents.blocks_by_region().get(region).copied().unwrap_or(0);
            !state.gone && (blocks > 0 || state.log.pages.iter().any(|page| page.region() == region))
        };
        for ino in &all {
            if !go_on(self.held(region)) {
                return Ok(false);
            }
            let _visit = Self::visit(self, *ino);
            self.add_places(*ino, &numbered, &mut places);
            let left = self.inode(*ino).and_then(|inode| match is_there(&inode) {
                false => Ok(()),
                true => {
                    self.migrate(*ino, migration, |_| go_on(self.held(region)))?;
                    // Without room for its log no migration fails.
                    if is_there(&inode) { Err(Error::NoSpace) } else { Ok(()) }
                }
            });
            failed.extend(left.err().and_then(Why::of).map(|why| (*ino, why)));
        }
        let mut renamed = BTreeMap::new();
        for ino in all.into_iter().filter(|ino| numbered(*ino)) {
            if !go_on(self.held(region)) {
                return Ok(false);
            }
            let _visit = Self::visit(self, ino);
            let mut names = places.remove(&ino).unwrap_or_default();
            for (dir, _) in &mut names {
                *dir = renamed.get(dir).copied().unwrap_or(*dir);
            }
            let why = match self.with_room(|| self.renumber(ino, &names)) {
                Ok(Ok(new)) => {
                    failed.remove(&ino);
                    renamed.insert(ino, new);
                    None
                }
                Ok(Err(why)) => Some(why),
                Err(error) => Why::of(error),
            };
            if let Some(why) = why {
                failed.entry(ino).or_insert(why);
            }
        }
        stays.extend(failed.into_iter().map(|(ino, why)| Stays { ino, path: None, why }));
        Ok(true)
    }

    /// All inodes that are in use, in order.
    pub(crate) fn all_inodes(&self) -> Vec<Ino> {
        let mut all: Vec<Ino> = self.known_inodes().map(|inode| inode.ino).collect();
        all.extend(self.unread_inodes());
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Adds the names that a directory has of these inodes.
    fn add_places(&self, dir: Ino, wanted: &dyn Fn(Ino) -> bool, places: &mut Places) {
        let _visit = Self::visit(self, dir);
        let Some(inode) = self.known_inode(dir).filter(|inode| inode.kind == Kind::Directory) else { return };
        let state = inode.read();
        let names = state.dir.iter().filter(|_| !state.gone).flat_map(|names| names.after(0));
        for (name, named) in names.filter(|(_, named)| wanted(named.ino)) {
            places.entry(named.ino).or_default().push((dir, name.into()));
        }
    }

    fn path_from_root(&self, mut at: Ino, name: &[u8]) -> Option<Vec<u8>> {
        let mut path = [b"/", name].concat();
        for _ in 0..u8::MAX {
            if at == Ino::ROOT {
                return Some(path);
            }
            let parent = names_of(&self.inode(at).ok()?.read()).ok()?.parent;
            let dir = self.inode(parent).ok()?;
            let state = dir.read();
            let name = names_of(&state).ok()?.after(0).find(|(_, named)| named.ino == at)?.0;
            path.splice(..0, b"/".iter().chain(name).copied());
            at = parent;
        }
        None
    }

    /// Gives an inode that nobody uses another number, in a region that is not avoided: which, or
    /// why it keeps its own.
    fn renumber(&self, ino: Ino, names: &[(Ino, Box<[u8]>)]) -> Result<std::result::Result<Ino, Why>> {
        if ino == Ino::ROOT {
            return Ok(Err(Why::Root));
        }
        let inode = self.inode(ino)?;
        let directory = inode.kind == Kind::Directory;
        let _moving = directory.then(|| lock(&self.moving_directories));
        let mut dirs: SmallVec<[Arc<Inode>; 1]> = SmallVec::new();
        for (dir, _) in names {
            dirs.push(self.inode(*dir)?);
        }
        let all: SmallVec<[&Inode; 4]> = dirs.iter().chain([&inode]).map(|inode| &**inode).collect();
        let mut locked = Locked::new(&all);
        let state = locked.get(ino)?;
        // Nobody can begin to use it while it is locked.
        if state.gone {
            return Err(Error::NotFound);
        }
        if inode.opens.load(Ordering::Acquire) > 0 || state.unnamed.is_some() {
            return Ok(Err(Why::Open));
        }
        if self.is_remembered(&inode) {
            self.ask_of(&inode); // a drain a little later finds the answer
            return Ok(Err(Why::Remembered));
        }
        if state.gaps.is_some() {
            return Ok(Err(Why::Failed("a part of its log cannot be read".to_owned())));
        }
        let links = if directory { 1 } else { state.attributes.links as usize };
        if names.len() != links || links > MOST_NAMES {
            return Ok(Err(Why::Names));
        }
        let time = self.now();
        let (new, (copy, flushed)) = loop {
            let new = self.take_slot(self.regions.nearest(ino.region()))?;
            match self.copy_of(&inode, state, new) {
                // A damaged number: this mount uses it no more.
                Err(Error::Damaged(Damage::Inode { ino: bad, .. })) if bad == new => {}
                made => break (new, made.inspect_err(|_| self.give_slot(new))?),
            }
        };
        let mut entries = Vec::new();
        let mut there = true;
        for (dir, name) in names {
            match names_to_change(locked.get(*dir)?).ok().and_then(|names| names.get(name)) {
                Some(named) if named.ino == ino => {
                    entries.push((*dir, Entry::Unlink { ino, name }));
                    entries.push((*dir, Entry::Link { ino: new, cookie: named.cookie, kind: named.kind, name }));
                }
                _ => there = false,
            }
        }
        // The users of a directory see no change.
        for dir in &dirs {
            let state = locked.get(dir.ino)?;
            entries.push((dir.ino, state.with_attributes(Attributes { ctime: time, ..state.attributes })));
        }
        if !there {
            self.unmake_inode(&copy);
            return Ok(Err(Why::Open));
        }
        let durable = self.commit(&mut locked, &entries, time, flushed, Purpose::Replacing);
        let durable = durable.inspect_err(|_| self.unmake_inode(&copy))?;
        let children: Vec<Ino> = {
            let old = locked.get_mut(ino)?;
            let mut state = copy.write();
            state.extents = std::mem::take(&mut old.extents);
            state.xattrs = std::mem::take(&mut old.xattrs);
            state.dir = old.dir.take();
            let names = state.dir.iter().flat_map(|dir| dir.after(0));
            names.filter(|(_, named)| named.kind == Kind::Directory).map(|(_, named)| named.ino).collect()
        };
        copy.note_directory(Ino::from_raw(inode.named_in.load(Ordering::Relaxed)).unwrap_or(Ino::ROOT));
        self.add_inode(copy);
        let old = locked.get_mut(ino)?;
        old.unnamed = Some(durable);
        self.reclaim(&inode, old)?;
        drop(locked);
        children.into_iter().for_each(|child| self.change_parent(child, (ino, new)));
        Ok(Ok(new))
    }

    /// Writes an inode with the log of another one, and no name yet. In memory it has no extents,
    /// attributes and names.
    fn copy_of(&self, inode: &Inode, state: &State, new: Ino) -> Result<(Inode, crate::store::Flushed)> {
        let generation = self.next_generation(new)?;
        let pages = self.log_pages(self.regions.nearest(new.region()), Purpose::Growth);
        let mut log = Appended::after(&self.allocator, (0, NO_TAIL));
        let xattrs = state.all_xattrs(&self.store, inode.whose())?;
        let mut entries = state.entries(&xattrs);
        entries.try_for_each(|(entry, time)| log.push(&self.store, pages, (new, generation), (&entry, time)))?;
        let mut dirty = std::mem::take(&mut log.dirty);
        let (block, line) = self.store.inode_at(new)?;
        dirty.and(self.store.write(block, line, &inode::encode(new, generation, log.head(), log.tail))?);
        let flushed = self.flush_new(dirty)?;
        let mut copy = State::new(log.into_log());
        (copy.attributes, copy.size) = (state.attributes, state.size);
        Ok((Inode::new(new, generation, inode.kind, copy), flushed))
    }
}
