//! An inode in DRAM: what its log says, ready for use.
//!
//! The state is changed in one way only: [`State::apply`] of a log entry. Operations apply their
//! entries after the commit, recovery applies the same entries from the log, so the two cannot
//! differ.

use std::iter;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::account::Account;
use crate::dir::{Dir, LAST_COOKIE, Named};
use crate::error::{Damage, Result};
use crate::extents::{Extents, Freed};
use crate::format::entry::{Attributes, Entry, Kind};
use crate::format::page::SLOTS;
use crate::format::{BLOCK_BYTES, Ino, LINE, MAX_SIZE};
use crate::log::Log;
use crate::store::{Durable, Store};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::xattrs::{Values, Xattrs};

/// An inode that is in use.
#[derive(Debug)]
pub struct Inode {
    pub ino: Ino,
    /// Which life of the number this is.
    pub generation: u32,
    /// Its type: never changes.
    pub kind: Kind,
    pub opens: AtomicU32,
    /// How many times a kernel was told its number and has not forgotten it.
    pub remembered: AtomicU64,
    pub migrating: AtomicBool,
    /// Held while its log is cleaned step by step.
    pub stepping: Mutex<()>,
    /// It is among those whose logs changed ([`crate::clean::Room`]).
    pub listed: AtomicBool,
    /// Pieces of its extents may not be read.
    pub partly: AtomicBool,
    /// The directory in which it was last made, found or renamed, as a number; 0: none.
    pub named_in: AtomicU64,
    /// What it was counted with.
    pub(crate) account: std::sync::Mutex<Account>,
    state: RwLock<State>,
}

impl Inode {
    /// An inode with what its log says.
    pub fn new(ino: Ino, generation: u32, kind: Kind, state: State) -> Self {
        Self {
            ino,
            generation,
            kind,
            opens: AtomicU32::new(0),
            remembered: AtomicU64::new(0),
            migrating: AtomicBool::new(false),
            stepping: Mutex::new(()),
            listed: AtomicBool::new(false),
            partly: AtomicBool::new(!state.extents.is_whole()),
            named_in: AtomicU64::new(0),
            account: std::sync::Mutex::default(),
            state: RwLock::new(state),
        }
    }

    /// An inode that was read from its log.
    pub fn found(ino: Ino, generation: u32, state: State) -> Result<Self> {
        let kind = Kind::of_mode(state.attributes.mode);
        let kind = kind.ok_or(Damage::Inode { ino, what: "its mode has an unknown kind" })?;
        let account = std::sync::Mutex::new(Account::of(&state));
        Ok(Self { account, ..Self::new(ino, generation, kind, state) })
    }

    /// Notes in which directory it was last named. As a rule it is noted already, and nobody waits
    /// for the word.
    pub fn note_directory(&self, dir: Ino) {
        if self.named_in.load(Ordering::Relaxed) != dir.raw() {
            self.named_in.store(dir.raw(), Ordering::Relaxed);
        }
    }

    /// Its number, and which life of it.
    pub fn whose(&self) -> (Ino, u32) {
        (self.ino, self.generation)
    }

    /// For reading, together with other readers.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of an inode, from its log.
#[derive(Debug)]
pub struct State {
    /// Attributes. The links of a directory are in `dir`.
    pub attributes: Attributes,
    /// Size in bytes.
    pub size: u64,
    pub extents: Extents,
    pub xattrs: Xattrs,
    /// Names, if it is a directory.
    pub dir: Option<Dir>,
    pub log: Log,
    /// No directory names it any more, durably: it goes when the last handle is closed.
    pub unnamed: Option<Durable>,
    /// Without a name and not open: it goes when the kernel has forgotten it.
    pub leaving: bool,
    /// Its blocks and its number are free.
    pub gone: bool,
    /// A migration's copy under way; see `ops::migrate`.
    pub moving: Option<Moving>,
    /// A new log is being written beside this one; see `clean`. None as soon as this one is
    /// replaced by another.
    pub rewriting: Option<Box<Mutex<Rewriting>>>,
    /// Entries of its log cannot be read.
    pub gaps: Option<Box<Gaps>>,
}

/// What is not known of an inode, as entries of its log cannot be read.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    /// The first fault of its log.
    pub what: &'static str,
    /// Slots of its log that are lost, at least.
    pub slots: usize,
    /// Its kind was told from later entries.
    pub kind_is_a_guess: bool,
    /// Names with cookies below may have been removed.
    pub names_below: u64,
    /// File blocks, from and to, that no entry behind the last gap maps: in order.
    old: Vec<(u64, u64)>,
    /// Those of them that may have been written by what is lost.
    doubt: Vec<(u64, u64)>,
    /// The same before the last gap, and the end of the file then, if an entry that adds one extent
    /// behind that would explain all that is lost.
    before: Option<(Vec<(u64, u64)>, u64)>,
}

/// The file block after the last one that there can be.
const END: u64 = MAX_SIZE / BLOCK_BYTES;

impl Gaps {
    /// Whether any of these file blocks may be lost, or older than it should be.
    pub fn doubts(&self, file_block: u64, count: u64) -> bool {
        overlaps(&self.doubt, file_block, count)
    }

    /// Whether an entry behind the last gap says where these file blocks are: what is lost may have
    /// given up all others, also where it is guessed that they were not written.
    pub fn has_sure(&self, file_block: u64, count: u64) -> bool {
        !overlaps(&self.old, file_block, count)
    }

    /// What it doubts of so many bytes.
    pub fn ranges(&self, size: u64) -> Vec<(u64, u64)> {
        let bytes = |(from, to): &(u64, u64)| (from * BLOCK_BYTES, (to * BLOCK_BYTES).min(size));
        self.doubt.iter().map(bytes).filter(|(from, to)| from < to).collect()
    }

    fn is_known(&mut self, file_block: u64, count: u64) {
        cut_out(&mut self.old, file_block, count);
        cut_out(&mut self.doubt, file_block, count);
    }
}

fn overlaps(ranges: &[(u64, u64)], file_block: u64, count: u64) -> bool {
    ranges.iter().any(|(from, to)| *from < file_block.saturating_add(count) && file_block < *to)
}

fn cut_out(ranges: &mut Vec<(u64, u64)>, file_block: u64, count: u64) {
    let end = file_block.saturating_add(count);
    let cut = |(from, to): (u64, u64)| [(from, to.min(file_block)), (from.max(end), to)];
    *ranges = ranges.drain(..).flat_map(cut).filter(|(from, to)| from < to).collect();
}

/// How much a new log has of an inode that is in use.
#[derive(Debug, Default)]
pub struct Rewriting {
    /// The file blocks below, or the names up to this cookie.
    pub upto: u64,
    /// For each name that came or went since the last step: whether it was among those.
    pub among: Vec<bool>,
}

/// File blocks that a migration copies while nobody holds the lock.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    /// First file block.
    pub file_block: u64,
    pub count: u64,
    /// The mapping of one of them changed meanwhile.
    pub overtaken: bool,
}

impl State {
    /// The state before the first entry.
    pub fn new(log: Log) -> Self {
        let attributes = Attributes { mode: 0, uid: 0, gid: 0, links: 0, atime: 0, mtime: 0, ctime: 0, rdev: 0 };
        Self {
            attributes,
            size: 0,
            extents: Extents::default(),
            xattrs: Xattrs::default(),
            dir: None,
            log,
            unnamed: None,
            leaving: false,
            gone: false,
            moving: None,
            rewriting: None,
            gaps: None,
        }
    }

    /// So many slots of its log are lost here.
    pub fn gap(&mut self, slots: usize) {
        let (end, names) = (self.extents.end(), self.dir.as_ref().map_or(0, Dir::next_cookie));
        let gaps = self.gaps.get_or_insert_default();
        gaps.slots += slots;
        gaps.names_below = names;
        gaps.old = vec![(0, END)];
        let doubt = std::mem::replace(&mut gaps.doubt, vec![(0, END)]);
        gaps.before = (slots == 1).then_some((doubt, end));
    }

    /// Takes in an entry behind a gap: what contradicts those before it comes from what is lost.
    /// `kind` is what other entries say, as far as they do.
    pub fn apply_past(&mut self, entry: &Entry<'_>, time: i64, kind: Option<Kind>, freed: &mut Freed) {
        let Some(gaps) = &mut self.gaps else {
            // Those before a gap cannot contradict each other.
            if self.apply(entry, time, freed).is_err() {
                self.gap(entry.slots());
            }
            return;
        };
        if let Some((mut before, end)) = gaps.before.take()
            && let Entry::Extent(run, Some(_)) = entry
            && run.file_block > end
        {
            before.retain(|(from, _)| *from < end);
            before.iter_mut().for_each(|(_, to)| *to = end.min(*to));
            before.push((end, run.file_block));
            gaps.doubt = before;
        }
        match entry {
            Entry::Extent(run, _) => gaps.is_known(run.file_block, run.count),
            Entry::Hole { file_block, count, .. } => gaps.is_known(*file_block, *count),
            Entry::Size(size) => gaps.is_known(size.div_ceil(BLOCK_BYTES), END),
            _ => {}
        }
        let guess = match kind.unwrap_or(Kind::File) {
            Kind::Directory => Kind::Directory.mode_bits() | 0o700,
            kind => kind.mode_bits() | 0o600,
        };
        let is = Kind::of_mode(self.attributes.mode);
        match entry {
            Entry::Attributes(attributes, _) if is.is_some() && is != Kind::of_mode(attributes.mode) => {
                gaps.kind_is_a_guess = false;
                self.attributes = Attributes { mode: 0, ..self.attributes };
            }
            Entry::Attributes(..) => gaps.kind_is_a_guess = false,
            Entry::Pad => {}
            _ if is.is_none() => {
                gaps.kind_is_a_guess = true;
                let attributes = Attributes { mode: guess, links: 1, ..self.attributes };
                self.attributes = Attributes { atime: time, mtime: time, ctime: time, ..attributes };
                if guess & libc::S_IFMT == libc::S_IFDIR {
                    self.dir.get_or_insert_with(|| Dir::new(Ino::ROOT));
                }
            }
            _ => {}
        }
        if let (Entry::Link { cookie, name, .. }, Some(dir)) = (entry, &mut self.dir) {
            let same: Option<Box<[u8]>> =
                dir.after(cookie.saturating_sub(1)).next().filter(|(_, n)| n.cookie == *cookie).map(|(n, _)| n.into());
            same.into_iter().chain([(*name).into()]).for_each(|name| {
                dir.remove(&name);
            });
        }
        // What is left are values that cannot be, names and attributes that are gone already.
        let _ = self.apply(entry, time, freed);
        match entry {
            Entry::Extent(_, Some(size)) | Entry::Hole { size, .. } | Entry::Size(size) => self.ends_at(*size, freed),
            // Nothing is moved that was never written.
            Entry::Extent(run, None) if !run.unwritten => self.size = self.size.max(run.end() * BLOCK_BYTES),
            _ => {}
        }
    }

    /// Behind a gap: what is beyond the size that an entry says was cut off by what is lost.
    fn ends_at(&mut self, size: u64, freed: &mut Freed) {
        let first = size.div_ceil(BLOCK_BYTES);
        let beyond: Vec<_> = self.extents.range(first, END).filter(|run| !run.unwritten).collect();
        beyond.iter().for_each(|run| self.extents.remove(run.file_block, run.count, freed));
        if let Some(gaps) = &mut self.gaps {
            cut_out(&mut gaps.doubt, first, END);
        }
    }

    /// Takes in one log entry. Blocks that are no longer used go to `freed`. An error says why the
    /// entry cannot follow the ones before.
    pub fn apply(&mut self, entry: &Entry<'_>, time: i64, freed: &mut Freed) -> std::result::Result<(), &'static str> {
        let kind = Kind::of_mode(self.attributes.mode);
        if kind.is_none() && !matches!(entry, Entry::Attributes(..)) {
            return Err("its log does not begin with attributes");
        }
        let of_data = matches!(entry, Entry::Extent(..) | Entry::Hole { .. } | Entry::Size(_));
        if of_data && !matches!(kind, Some(Kind::File | Kind::Symlink)) {
            return Err("data in something that has none");
        }
        match *entry {
            Entry::Pad => return Ok(()),
            Entry::Attributes(attributes, next_cookie) => return self.apply_attributes(attributes, next_cookie),
            Entry::Extent(run, None) => {
                self.overtake(run.file_block, run.count);
                self.extents.insert(run, freed);
                return Ok(());
            }
            Entry::Extent(run, Some(size)) => {
                self.overtake(run.file_block, run.count);
                self.extents.insert(run, freed);
                self.size = size;
            }
            Entry::Hole { file_block, count, size } => {
                self.overtake(file_block, count);
                self.extents.remove(file_block, count, freed);
                self.size = size;
            }
            Entry::Size(size) => {
                let first = size.div_ceil(BLOCK_BYTES);
                self.overtake(first, u64::MAX);
                self.extents.remove(first, u64::MAX, freed);
                self.size = size;
            }
            Entry::Link { ino, cookie, kind, name } => {
                let dir = self.dir.as_mut().ok_or("a name in something that is no directory")?;
                if !dir.insert(name, Named { ino, kind, cookie }) {
                    return Err("a name or its cookie is there twice, or the cookie is none");
                }
                self.note_name(cookie);
            }
            Entry::Unlink { ino, name } => {
                let dir = self.dir.as_mut().ok_or("a name in something that is no directory")?;
                let Some(named) = dir.remove(name).filter(|named| named.ino == ino) else {
                    return Err("a name is removed that is not there");
                };
                self.note_name(named.cookie);
            }
            Entry::Xattr { name, value } => {
                self.xattrs.set(name, value);
                self.attributes.ctime = time;
                return Ok(());
            }
            Entry::XattrGone(name) => {
                if !self.xattrs.remove(name) {
                    return Err("an attribute is removed that is not there");
                }
                self.attributes.ctime = time;
                return Ok(());
            }
        }
        self.attributes.mtime = time;
        self.attributes.ctime = time;
        Ok(())
    }

    fn apply_attributes(&mut self, attributes: Attributes, next_cookie: u64) -> std::result::Result<(), &'static str> {
        let (was, is) = (Kind::of_mode(self.attributes.mode), Kind::of_mode(attributes.mode));
        if was.is_some() && was != is {
            return Err("its kind changes");
        }
        if next_cookie > LAST_COOKIE + 1 {
            return Err("its next cookie is beyond the last");
        }
        if is == Some(Kind::Directory) {
            self.dir.get_or_insert_with(|| Dir::new(Ino::ROOT)).raise_next_cookie(next_cookie);
        }
        self.attributes = attributes;
        Ok(())
    }

    fn note_name(&mut self, cookie: u64) {
        if let Some(rewriting) = &mut self.rewriting {
            let rewriting = rewriting.get_mut().unwrap_or_else(PoisonError::into_inner);
            rewriting.among.push(cookie <= rewriting.upto);
        }
    }

    fn overtake(&mut self, file_block: u64, count: u64) {
        if let Some(moving) = &mut self.moving {
            let apart =
                file_block >= moving.file_block + moving.count || moving.file_block >= file_block.saturating_add(count);
            moving.overtaken |= !apart;
        }
    }

    /// The entry that says all attributes, with its time.
    pub fn attributes_entry(&self) -> (Entry<'static>, i64) {
        (self.with_attributes(self.attributes), self.attributes.ctime)
    }

    /// The entry that gives it other attributes.
    pub fn with_attributes(&self, attributes: Attributes) -> Entry<'static> {
        Entry::Attributes(attributes, self.dir.as_ref().map_or(0, Dir::next_cookie))
    }

    /// The value of an extended attribute of this inode.
    pub fn xattr(&self, store: &Store, whose: (Ino, u32), name: &[u8]) -> Result<Option<Box<[u8]>>> {
        self.xattrs.value(store, whose, &self.log, name)
    }

    pub fn all_xattrs(&self, store: &Store, whose: (Ino, u32)) -> Result<Values> {
        self.xattrs.values(store, whose, &self.log)
    }

    /// The entries with which a log begins that says the same as the whole log, with their times.
    /// `xattrs` are [all](State::all_xattrs) that it has.
    pub fn first_entries<'a>(&'a self, xattrs: &'a Values) -> impl Iterator<Item = (Entry<'a>, i64)> {
        let time = self.attributes.ctime;
        let size = (self.size > 0).then(|| (Entry::Size(self.size.min(MAX_SIZE)), time));
        let xattrs = xattrs.iter().map(move |(name, value)| (Entry::Xattr { name, value }, time));
        iter::once(self.attributes_entry()).chain(size).chain(xattrs)
    }

    /// Those that follow: extents from a file block on, or names after a cookie, each with the file
    /// block or cookie from which those after it follow.
    pub fn more_entries(&self, upto: u64) -> impl Iterator<Item = (u64, Entry<'_>)> {
        let runs = self.extents.range(upto, u64::MAX);
        let runs = runs.map(|run| (run.end(), Entry::Extent(run, Some(self.size))));
        let names = self.dir.iter().flat_map(move |dir| dir.after(upto));
        runs.chain(names.map(|(name, n)| (n.cookie, Entry::Link { ino: n.ino, cookie: n.cookie, kind: n.kind, name })))
    }

    /// All of them, and the attributes again where those between changed the times: what log
    /// cleaning writes.
    pub fn entries<'a>(&'a self, xattrs: &'a Values) -> impl Iterator<Item = (Entry<'a>, i64)> {
        let more = self.more_entries(0).map(|(_, entry)| (entry, self.attributes.ctime));
        let again = (self.live_slots() > 1).then(|| self.attributes_entry());
        self.first_entries(xattrs).chain(more).chain(again)
    }

    /// Bytes that it takes in memory, about.
    pub fn memory(&self) -> u64 {
        /// Of an inode, and of the pieces of memory that a name, an attribute or a run takes beside
        /// its bytes.
        const INODE: usize = 640;
        const PIECE: usize = 64;
        let names = self.dir.as_ref().map_or(0, |dir| 2 * LINE * dir.slots());
        (INODE + self.xattrs.memory() + names + PIECE * self.extents.in_memory()) as u64
    }

    /// Whether more than an eighth of a long log are extents in no order, so that whoever uses it
    /// next has to read these.
    pub fn is_unsorted(&self) -> bool {
        let slots = self.log.slots();
        let rest = slots.saturating_sub(self.log.cleaned.max(self.log.sorted as usize));
        // Where the rest fills the first page, no log of it is in order.
        let fits = 1 + usize::from(self.size > 0) + self.xattrs.slots() < SLOTS;
        fits && self.extents.len() > slots / 8 && slots > 4 * SLOTS && rest > (slots / 8).max(2 * SLOTS)
    }

    /// Slots that [`State::entries`] needs.
    pub fn live_slots(&self) -> usize {
        let others = usize::from(self.size > 0)
            + self.extents.len()
            + self.xattrs.slots()
            + self.dir.as_ref().map_or(0, Dir::slots);
        1 + others + usize::from(others > 0)
    }
}
