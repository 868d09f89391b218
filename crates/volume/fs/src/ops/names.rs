//! Names: looking up, making, linking, removing, listing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::account::Space;
use crate::acl::{self, Acl};
use crate::alloc::Purpose;
use crate::dir::{Dir, Named};
use crate::error::{Damage, Error, Result, UNREADABLE};
use crate::format::entry::{Attributes, Entry, Kind, Run};
use crate::format::inode::{self, Inode as Line};
use crate::format::{BLOCK, Ino, MAX_NAME, get_u32, put};
use crate::inode::{Inode, State};
use crate::log::{self, NO_TAIL};
use crate::ops::Stat;
use crate::placement::Regions;
use crate::scan;
use crate::store::{Dirty, Durable, Flushed};
use crate::sync::lock;
use crate::volume::{Locked, Volume};
use crate::xattrs::PROJECT;

/// Most directories of a path that [`Volume::path`] tells.
const MAX_DEPTH: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
pub struct NewFile<'a> {
    /// Kind and permissions; permissions alone for a regular file.
    pub mode: u32,
    /// Permissions that it does not get, unless its directory has a default access control list.
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

/// Inodes that were in use when they were forgotten, and of which each [`Volume::forget`] tries to
/// let go.
const TRIES: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub name: Vec<u8>,
    /// Its target, and its cookie.
    pub named: Named,
}

/// The project that a new inode gets from its directory, as an attribute.
pub(crate) fn project_of(parent: &State) -> Acls {
    let project = parent.xattrs.project();
    (project != 0).then(|| (PROJECT, project.to_le_bytes().to_vec())).into_iter().collect()
}

impl Volume {
    /// Target of a name of a directory.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Stat> {
        self.find(parent, name, Self::stat_of)
    }

    /// Attributes for the name of something damaged, so that a kernel can remove it: a file, or a
    /// directory where the name says so, that nobody but root may use. Any other use gives
    /// [`Error::Damaged`].
    pub fn stub(&self, parent: Ino, name: &[u8]) -> Result<Stat> {
        let dir = self.inode(parent)?;
        let (named, inode) = self.named_inode(&dir, name)?.ok_or(Error::NotFound)?;
        let inode = match inode {
            Ok(inode) => return Self::stat_of(&inode),
            Err(Error::Damaged(_)) => named.ino,
            Err(error) => return Err(error),
        };
        let kind = if named.kind == Kind::Directory { Kind::Directory } else { Kind::File };
        lock(&self.stubs).insert(inode, kind);
        Ok(stub_stat(inode, kind))
    }

    /// The same for an inode that [`Volume::stub`] has told about.
    pub fn stub_again(&self, ino: Ino) -> Option<Stat> {
        lock(&self.stubs).get(&ino).map(|kind| stub_stat(ino, *kind))
    }

    /// [`Volume::lookup`] and [`Volume::remember`] of the very inode that was found: in between its
    /// number could go to another file.
    pub fn lookup_to_remember(&self, parent: Ino, name: &[u8]) -> Result<Stat> {
        self.find(parent, name, |inode| {
            self.remember_inode(inode)?;
            Self::stat_of(inode)
        })
    }

    /// Does something with the target of a name.
    fn find(&self, parent: Ino, name: &[u8], with: impl Fn(&Inode) -> Result<Stat>) -> Result<Stat> {
        let dir = self.inode(parent)?;
        match name {
            b"." => return with(&dir),
            b".." => {
                let parent = names_of(&dir.read())?.parent;
                return with(&*self.inode(parent)?);
            }
            _ if name.len() > MAX_NAME => return Err(Error::NameTooLong),
            _ => {}
        }
        loop {
            let (_, inode) = self.named_inode(&dir, name)?.ok_or(Error::NotFound)?;
            let inode = inode?;
            inode.note_directory(dir.ino);
            match with(&inode) {
                Err(Error::NotFound) => {} // removed or replaced since
                done => return done,
            }
        }
    }

    /// A path from the root to a file that was looked up, made or renamed since the mount; `None`
    /// if it has no name any more where that was, if it or a directory on the way is not in memory,
    /// if such a directory has more than `most` names, or below 64 directories.
    pub fn path(&self, ino: Ino, most: usize) -> Option<Vec<u8>> {
        let (mut at, mut path) = (self.known_inode(ino)?, Vec::new());
        for _ in 0..MAX_DEPTH {
            if at.ino == Ino::ROOT {
                return Some(path);
            }
            let parent = at.read().dir.as_ref().map(|dir| dir.parent);
            let parent = parent.or_else(|| Ino::from_raw(at.named_in.load(Ordering::Relaxed)))?;
            let dir = self.known_inode(parent)?;
            let state = dir.read();
            let names = state.dir.as_ref().filter(|names| names.len() <= most)?;
            let name = names.after(0).find(|(_, named)| named.ino == at.ino)?.0;
            path.splice(..0, b"/".iter().chain(name).copied());
            drop(state);
            at = dir;
        }
        None
    }

    /// The inode at a path from the root. Symbolic links are not followed.
    pub fn resolve(&self, path: &[u8]) -> Result<Ino> {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(Ino::ROOT, |at, part| Ok(self.lookup(at, part)?.ino))
    }

    /// Makes a file, directory, symbolic link or special file and names it.
    pub fn create(&self, parent: Ino, name: &[u8], new: NewFile<'_>) -> Result<Stat> {
        check_name(name)?;
        let kind = kind_of(new.mode)?;
        if new.target.len() >= BLOCK || new.target.is_empty() == (kind == Kind::Symlink) {
            return Err(Error::Invalid("the target of a symbolic link has 1 to 4095 bytes"));
        }
        let dir = self.inode(parent)?;
        self.with_room(|| self.create_in(&dir, name, kind, new))
    }

    fn create_in(&self, dir: &Inode, name: &[u8], kind: Kind, new: NewFile<'_>) -> Result<Stat> {
        let parent = dir.ino;
        let mut locked = Locked::new(&[dir]);
        let names = names_to_change(locked.get(parent)?)?;
        if names.get(name).is_some() {
            return Err(Error::Exists);
        }
        let cookie = names.new_cookie()?;
        let (new, acls) = self.inherit(dir, locked.get(parent)?, kind, new)?;
        let time = self.now();
        let (inode, flushed) = self.new_inode(kind, (new, &acls), 1, time)?;
        let ino = inode.ino;
        let link = Entry::Link { ino, cookie, kind, name };
        let committed = self.commit(&mut locked, &[(parent, link)], time, flushed, Purpose::Growth);
        committed.inspect_err(|_| self.unmake_inode(&inode))?;
        if let Some(dir) = &mut inode.write().dir {
            dir.parent = parent;
        }
        inode.note_directory(parent);
        // Others may remove it as soon as the directory is unlocked.
        let stat = Self::stat_of(&inode)?;
        self.add_inode(inode);
        Ok(stat)
    }

    /// Makes a regular file without a name, as `O_TMPFILE` does, with the group and bits that it
    /// would get in a directory. It is open once: [`Volume::link`] can name it until
    /// [`Volume::close`], and a crash finds an orphan.
    pub fn create_unnamed(&self, parent: Ino, new: NewFile<'_>) -> Result<Stat> {
        if kind_of(new.mode)? != Kind::File || !new.target.is_empty() {
            return Err(Error::Invalid("only a regular file can be without a name"));
        }
        let dir = self.inode(parent)?;
        self.with_room(|| {
            let (new, acls) = {
                let state = dir.read();
                names_to_change(&state)?;
                self.inherit(&dir, &state, Kind::File, new)?
            };
            let (inode, flushed) = self.new_inode(Kind::File, (new, &acls), 0, self.now())?;
            let durable = flushed.fence(&self.store).inspect_err(|_| self.unmake_inode(&inode))?;
            inode.write().unnamed = Some(durable);
            inode.opens.store(1, Ordering::Release);
            let stat = Self::stat_of(&inode)?;
            self.add_inode(inode);
            Ok(stat)
        })
    }

    /// What a new inode gets from its directory: with the set-group-ID bit the group, and a
    /// directory the bit; a default access control list in place of the umask.
    fn inherit<'a>(&self, dir: &Inode, parent: &State, kind: Kind, new: NewFile<'a>) -> Result<(NewFile<'a>, Acls)> {
        let (gid, bit) = match parent.attributes.mode & libc::S_ISGID {
            0 => (new.gid, 0),
            bit if kind == Kind::Directory => (parent.attributes.gid, bit),
            _ => (parent.attributes.gid, 0),
        };
        let new = NewFile { gid, mode: new.mode | bit, ..new };
        let mut acls = project_of(parent);
        if kind == Kind::Symlink {
            return Ok((new, acls));
        }
        let with = |permissions| NewFile { mode: new.mode & !0o777 | permissions, ..new };
        let list = parent.xattr(&self.store, dir.whose(), acl::DEFAULT)?;
        let Some((default, list)) = list.and_then(|list| Some((Acl::parse(&list)?, list))) else {
            return Ok((with(new.mode & 0o777 & !new.umask), acls));
        };
        let access = default.for_new(new.mode);
        if !access.is_mode() {
            acls.push((acl::ACCESS, access.to_bytes()));
        }
        if kind == Kind::Directory {
            acls.push((acl::DEFAULT, list.into_vec()));
        }
        Ok((with(access.mode()), acls))
    }

    /// An inode near the caller that no directory names yet; `links` says how many will.
    pub(crate) fn new_inode(
        &self,
        kind: Kind,
        new: (NewFile<'_>, &Acls),
        links: u32,
        time: i64,
    ) -> Result<(Inode, Flushed)> {
        let project = new.1.iter().find(|(name, _)| *name == PROJECT).map_or(0, |(_, id)| get_u32(id, 0));
        self.quotas.check((new.0.uid, project), Space { blocks: 1, files: 1 })?;
        let near = self.regions.of_caller(self.cpu());
        let turn = if near.len() > 1 { self.random() } else { 0 };
        let regions = self.regions.nearest(Regions::turn(near, turn, 0));
        loop {
            let ino = self.take_slot(regions)?;
            match self.make_inode(ino, kind, new, links, time) {
                // A damaged number: this mount uses it no more.
                Err(Error::Damaged(Damage::Inode { .. })) => {}
                made => return made.inspect_err(|_| self.give_slot(ino)),
            }
        }
    }

    /// The generation of the next life of a number.
    pub(super) fn next_generation(&self, ino: Ino) -> Result<u32> {
        let line = self.store.read_inode(ino)?;
        if self.store.superblock().has_twins() && !scan::can_store(&self.store, ino) {
            return Err(Damage::Inode { ino, what: UNREADABLE }.into());
        }
        match inode::decode(ino, &line) {
            Ok(Line::Free(generation)) => Ok(generation.wrapping_add(1)),
            _ => Err(Damage::Inode { ino, what: "it was free and is not" }.into()),
        }
    }

    fn make_inode(
        &self,
        ino: Ino,
        kind: Kind,
        (new, acls): (NewFile<'_>, &Acls),
        links: u32,
        time: i64,
    ) -> Result<(Inode, Flushed)> {
        let (block, line) = self.store.inode_at(ino)?;
        let generation = self.next_generation(ino)?;
        let attributes = Attributes {
            mode: kind.mode_bits() | new.mode & 0o7777,
            uid: new.uid,
            gid: new.gid,
            links,
            atime: time,
            mtime: time,
            ctime: time,
            rdev: new.rdev,
        };
        let mut entries = vec![(Entry::Attributes(attributes, 0), time)];
        entries.extend(acls.iter().map(|(name, value)| (Entry::Xattr { name, value }, time)));
        let mut fresh = self.allocator.fresh();
        let pages = self.log_pages(self.regions.nearest(ino.region()), Purpose::Growth);
        let mut data = Flushed::nothing();
        if kind == Kind::Symlink {
            let (at, count) = self.allocator.allocate(pages.regions, 1, pages.part, pages.purpose, &mut fresh)?;
            let mut block = [0; BLOCK];
            put(&mut block, 0, new.target);
            data = self.store.write_data(at, &block)?.flush(&self.store)?;
            let run = Run { file_block: 0, block: at, count, unwritten: false };
            entries.push((Entry::Extent(run, Some(new.target.len() as u64)), time));
        }
        let mut log = log::append(
            &self.store,
            pages,
            (ino, generation),
            (0, NO_TAIL),
            entries.iter().map(|(entry, time)| (entry, *time)),
        )?;
        let mut dirty = std::mem::take(&mut log.dirty);
        dirty.and(self.store.write(block, line, &inode::encode(ino, generation, log.head(), log.tail))?);
        let flushed = data.and(self.flush_new(dirty)?);
        fresh.keep();
        let mut state = State::new(log.into_log());
        for (entry, time) in &entries {
            state.apply(entry, *time, &mut Vec::new()).map_err(Error::Invalid)?;
        }
        Ok((Inode::new(ino, generation, kind, state), flushed))
    }

    /// Begins to write a new inode back. Where that fails, its line may say already that it is
    /// used: recovery takes it for an orphan.
    pub(super) fn flush_new(&self, dirty: Dirty) -> Result<Flushed> {
        dirty.flush(&self.store).inspect_err(|_| self.orphaned.store(true, Ordering::Release))
    }

    /// Takes back an inode that could not be named. A crash finds an orphan, or nothing; in doubt,
    /// perhaps the name, and then the whole inode.
    pub(crate) fn unmake_inode(&self, inode: &Inode) {
        let free = inode::state_word(inode.ino, false, inode.generation);
        let stored = self
            .store
            .inode_at(inode.ino)
            .and_then(|(block, line)| self.store.store_word(block, line + inode::STATE, free)?.flush(&self.store));
        // Only now: another thread may take the number at once, and looks at that word.
        self.give_blocks(inode, &mut inode.write());
        match stored {
            Ok(_) => self.give_slot(inode.ino),
            // Its line has failed: recovery takes it for an orphan.
            Err(_) => self.orphaned.store(true, Ordering::Release),
        }
    }

    /// Closes and forgets all inodes, as a kernel that ends a mount need not say so of each, and
    /// frees those without a name.
    pub(crate) fn close_all(&self) -> Result<()> {
        self.inherited.end_all();
        for inode in self.known_inodes() {
            inode.opens.store(0, Ordering::Release);
            inode.remembered.store(0, Ordering::Release);
            self.reclaim(&inode, &mut inode.write())?;
        }
        Ok(())
    }

    /// Frees an inode that nobody names, has open or remembers. Nobody waits until its number is
    /// durably free: recovery takes it for an orphan, whatever its blocks hold by then.
    pub(crate) fn reclaim(&self, inode: &Inode, state: &mut State) -> Result<()> {
        let Some(unnamed) = state.unnamed.as_ref().filter(|_| !state.gone) else { return Ok(()) };
        if inode.opens.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        if self.is_remembered(inode) {
            if !std::mem::replace(&mut state.leaving, true) {
                self.leaving.fetch_add(1, Ordering::AcqRel);
            }
            return Ok(());
        }
        self.forget_inode(inode.ino);
        let (block, line) = self.store.inode_at(inode.ino)?;
        let word = inode::state_word(inode.ino, false, inode.generation);
        let stored = self.store.store_after(block, line + inode::STATE, word, unnamed);
        self.store.check_writable()?;
        state.gone = true;
        self.settle(inode, state);
        self.stays(state);
        self.give_blocks(inode, state);
        match stored {
            Ok(_) => self.give_slot(inode.ino),
            // Its line has failed: its number is used no more, and recovery takes it for an orphan.
            Err(_) => self.orphaned.store(true, Ordering::Release),
        }
        Ok(())
    }

    /// Keeps an inode alive until [`Volume::close`], also when its last name goes.
    pub fn open(&self, ino: Ino) -> Result<()> {
        let inode = self.inode_partly(ino)?;
        let state = inode.read();
        check_live(&state)?;
        inode.opens.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Ends one [`Volume::open`].
    pub fn close(&self, ino: Ino) -> Result<()> {
        let inode = self.inode_partly(ino)?;
        let was = inode.opens.fetch_update(Ordering::AcqRel, Ordering::Acquire, |opens| opens.checked_sub(1));
        if was.map_err(|_| Error::Invalid("the inode is not open"))? > 1 {
            return Ok(());
        }
        let mut state = inode.write();
        self.reclaim(&inode, &mut state)
    }

    /// Keeps an inode and its number alive until [`Volume::forget`], as `open` does, but is no use
    /// of its data: a kernel remembers what it looked up.
    pub fn remember(&self, ino: Ino) -> Result<()> {
        self.remember_inode(&*self.inode_partly(ino)?)
    }

    fn remember_inode(&self, inode: &Inode) -> Result<()> {
        let state = inode.read();
        check_live(&state)?;
        if !self.kernel.load(Ordering::Relaxed) {
            self.kernel.store(true, Ordering::Relaxed);
        }
        inode.remembered.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Ends so many [`Volume::remember`]. After the last one nothing of the inode is kept in
    /// memory, unless it is open.
    pub fn forget(&self, ino: Ino, times: u64) -> Result<()> {
        if self.forget_inherited(ino, times) {
            return Ok(());
        }
        let Some(inode) = self.forget_away(ino, times)? else { return Ok(()) };
        let was = inode.remembered.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(times));
        if was.map_err(|_| Error::Invalid("the inode is not remembered so many times"))? > times {
            return Ok(());
        }
        self.reclaim(&inode, &mut inode.write())?;
        self.let_go_again(TRIES);
        self.let_go(inode);
        Ok(())
    }

    /// Inodes that have lost their last name and that nobody has open: what they hold is free as
    /// soon as the kernel forgets them.
    pub fn leaving(&self) -> u64 {
        self.leaving.load(Ordering::Acquire)
    }

    /// An inode is not, or no longer, [leaving](Self::leaving).
    fn stays(&self, state: &mut State) {
        if std::mem::take(&mut state.leaving) {
            self.leaving.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub fn open_count(&self, ino: Ino) -> Result<u32> {
        Ok(self.inode_partly(ino)?.opens.load(Ordering::Acquire))
    }

    /// Gives a file another name, or one that has lost its last name or never had one, but is open,
    /// a name again.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Stat> {
        check_name(name)?;
        let (dir, inode) = (self.inode(parent)?, self.inode_partly(ino)?);
        self.with_room(|| {
            let mut locked = Locked::new(&[&dir, &inode]);
            let names = names_to_change(locked.get(parent)?)?;
            if names.get(name).is_some() {
                return Err(Error::Exists);
            }
            if inode.kind == Kind::Directory {
                return Err(Error::NotPermitted);
            }
            let state = locked.get(ino)?;
            check_live(state)?;
            let time = self.now();
            let links = state.attributes.links.checked_add(1).ok_or(Error::TooManyLinks)?;
            let attributes = Attributes { links, ctime: time, ..state.attributes };
            let link = Entry::Link { ino, cookie: names.new_cookie()?, kind: inode.kind, name };
            let entries = [(parent, link), (ino, Entry::Attributes(attributes, 0))];
            self.commit(&mut locked, &entries, time, Flushed::nothing(), Purpose::Growth)?;
            inode.note_directory(parent);
            let state = locked.get_mut(ino)?;
            state.unnamed = None;
            self.stays(state);
            Ok(())
        })?;
        self.stat(ino)
    }

    /// Removes a name that is not a directory's. The file goes with its last name, once nobody has
    /// it open.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false)
    }

    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        if name == b"." || name == b".." {
            return Err(Error::Invalid("a directory cannot remove itself"));
        }
        self.remove(parent, name, true)
    }

    fn remove(&self, parent: Ino, name: &[u8], directory: bool) -> Result<()> {
        let dir = self.inode(parent)?;
        self.with_room(|| self.remove_from(&dir, name, directory))
    }

    fn remove_from(&self, dir: &Inode, name: &[u8], directory: bool) -> Result<()> {
        let parent = dir.ino;
        loop {
            let (named, child) = self.named_inode(dir, name)?.ok_or(Error::NotFound)?;
            match (directory, named.kind == Kind::Directory) {
                (false, true) => return Err(Error::IsDirectory),
                (true, false) => return Err(Error::NotDirectory),
                _ => {}
            }
            let child = match child {
                Err(Error::Damaged(_)) => match self.remove_damaged(dir, name, named)? {
                    true => return Ok(()),
                    false => continue,
                },
                child => child?,
            };
            let mut locked = Locked::new(&[dir, &child]);
            if names_of(locked.get(parent)?)?.get(name) != Some(named) || locked.get(child.ino)?.gone {
                continue;
            }
            if directory {
                check_empty(locked.get(child.ino)?)?;
            }
            let time = self.now();
            let mut entries = vec![(parent, Entry::Unlink { ino: child.ino, name })];
            let last = self.drop_name(&child, locked.get(child.ino)?, time, &mut entries);
            let purpose = if last { Purpose::Freeing } else { Purpose::Replacing };
            let durable = self.commit(&mut locked, &entries, time, Flushed::nothing(), purpose)?;
            if last {
                self.lost_last_name(&child, locked.get_mut(child.ino)?, time, durable)?;
            }
            return Ok(());
        }
    }

    /// Removes the name of what is damaged. Nobody knows its blocks: what it leaves is an orphan,
    /// which recovery frees. False: the name stands for something else by now.
    fn remove_damaged(&self, dir: &Inode, name: &[u8], named: Named) -> Result<bool> {
        let mut locked = Locked::new(&[dir]);
        if names_of(locked.get(dir.ino)?)?.get(name) != Some(named) {
            return Ok(false);
        }
        let entry = (dir.ino, Entry::Unlink { ino: named.ino, name });
        self.commit(&mut locked, &[entry], self.now(), Flushed::nothing(), Purpose::Freeing)?;
        self.orphaned.store(true, Ordering::Release);
        Ok(true)
    }

    /// Adds what one name less means for an inode to an operation's entries. True: it was the last
    /// one, which needs no entry.
    pub(crate) fn drop_name(
        &self,
        inode: &Inode,
        state: &State,
        time: i64,
        entries: &mut Vec<(Ino, Entry<'_>)>,
    ) -> bool {
        if inode.kind == Kind::Directory || state.attributes.links <= 1 {
            return true;
        }
        let attributes = Attributes { links: state.attributes.links - 1, ctime: time, ..state.attributes };
        entries.push((inode.ino, Entry::Attributes(attributes, 0)));
        false
    }

    /// After the commit that removed the last name.
    pub(crate) fn lost_last_name(&self, inode: &Inode, state: &mut State, time: i64, durable: Durable) -> Result<()> {
        state.unnamed = Some(durable);
        state.attributes.links = 0;
        state.attributes.ctime = time;
        self.reclaim(inode, state)
    }

    /// Up to `most` names of a directory after a cookie; 0 begins. `.` and `..` are not among them.
    pub fn names(&self, ino: Ino, after: u64, most: usize) -> Result<Vec<Name>> {
        let dir = self.inode(ino)?;
        let state = dir.read();
        let names = names_of(&state)?.after(after).take(most);
        Ok(names.map(|(name, named)| Name { name: name.to_vec(), named }).collect())
    }

    /// The cookie of the next new name: where a listing that begins now ends.
    pub fn next_cookie(&self, ino: Ino) -> Result<u64> {
        Ok(names_of(&self.inode(ino)?.read())?.next_cookie())
    }

    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.kind != Kind::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let mut target = vec![0; inode.read().size.min(BLOCK as u64) as usize];
        let got = self.read_inode(&inode, 0, &mut target)?;
        target.truncate(got);
        Ok(target)
    }

    /// What a name of a directory stands for, which it may do no longer when this returns. While
    /// the directory is locked nobody can give the number to another file.
    pub(crate) fn named_inode(&self, dir: &Inode, name: &[u8]) -> Result<Option<(Named, Result<Arc<Inode>>)>> {
        let names = dir.read();
        let named = names_of(&names)?.get(name);
        Ok(named.map(|named| {
            // Recovery sees it, a mount from a checkpoint does not.
            let other = || {
                let name = String::from_utf8_lossy(name).into_owned();
                Error::from(Damage::Name { ino: dir.ino, name, what: scan::OTHER_KIND })
            };
            let inode = self.inode_partly(named.ino);
            (named, inode.and_then(|inode| if inode.kind == named.kind { Ok(inode) } else { Err(other()) }))
        }))
    }
}

fn stub_stat(ino: Ino, kind: Kind) -> Stat {
    let mode = kind.mode_bits();
    let attributes = Attributes { mode, uid: 0, gid: 0, links: 1, atime: 0, mtime: 0, ctime: 0, rdev: 0 };
    // Not empty: a kernel reads an empty file without asking.
    Stat { ino, generation: 0, kind, attributes, size: 1, blocks: 0 }
}

/// The kind that a mode says; none is a regular file.
fn kind_of(mode: u32) -> Result<Kind> {
    let kind = if mode >> 12 == 0 { Some(Kind::File) } else { Kind::of_mode(mode) };
    kind.ok_or(Error::Invalid("the mode has an unknown kind"))
}

/// Access control lists of a new inode, and its project: names and values of extended attributes.
pub(crate) type Acls = Vec<(&'static [u8], Vec<u8>)>;

pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::Invalid("the name is reserved")),
        _ if name.len() > MAX_NAME => Err(Error::NameTooLong),
        _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => {
            Err(Error::Invalid("the name has a slash or a zero byte"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_live(state: &State) -> Result<()> {
    if state.gone { Err(Error::NotFound) } else { Ok(()) }
}

pub(crate) fn check_empty(state: &State) -> Result<()> {
    if names_of(state)?.len() > 0 { Err(Error::NotEmpty) } else { Ok(()) }
}

pub(crate) fn names_of(state: &State) -> Result<&Dir> {
    check_live(state)?;
    state.dir.as_ref().ok_or(Error::NotDirectory)
}

/// The names of a directory that is to get a new one.
pub(crate) fn names_to_change(state: &State) -> Result<&Dir> {
    if state.unnamed.is_some() { Err(Error::NotFound) } else { names_of(state) }
}
