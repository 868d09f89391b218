//! Reading a whole volume: what mount and fsck have in common.
//!
//! **Problem.** After a crash the indexes in DRAM are gone, and what the medium holds may be the
//! work of an operation that never ended, or damage.
//!
//! **Approach.** Every inode in use is replayed; a walk from the root finds which ones are named;
//! what is named must be whole, and owns its blocks alone. What is not named is an orphan, whatever
//! state it is in.
//!
//! Of each inode only what these need is kept ([`Known`]): a mount reads an inode again when it is
//! first used.
//!
//! **Limits.** Names are followed in one thread, and those of all directories are in memory until
//! the mount is done.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;

use crate::commit::place;
use crate::dir::{Dir, Named};
use crate::error::{Damage, Error, Result, UNREADABLE};
use crate::extents::Extents;
use crate::format::entry::{Entry, Kind, Run};
use crate::format::inode::{self, Inode as Line};
use crate::format::superblock::STATE_BLOCK;
use crate::format::word::{self, Field, Owner};
use crate::format::{BLOCK, BLOCK_BYTES, Block, Ino, LINE, LogPos, journal, put};
use crate::inode::{Gaps, State};
use crate::log::{self, Log, Sorted};
use crate::salvage::{Item, salvage};
use crate::store::{Flushed, Store};

/// Most directories on the way to a file that is named.
const MAX_DEPTH: usize = 4096;

/// Bytes of an inode's line that say something.
const WORDS: usize = 24;

const CLEAN: u64 = 1;
const MOUNTED: u64 = 2;
const CHECKPOINT: u64 = 3;
const REPAIRING: u64 = 4;
const STATE_BITS: u32 = 7;

/// The state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Clean,
    /// It was unmounted, and a checkpoint begins in this block.
    Checkpoint(Block),
    /// It is mounted, or was when the machine stopped.
    Mounted,
    /// A repair was under way: something may have lost its name.
    Repairing,
}

/// The state word that says so.
pub fn state_word(state: Use) -> u64 {
    let payload = match state {
        Use::Clean => CLEAN,
        Use::Mounted => MOUNTED,
        Use::Repairing => REPAIRING,
        Use::Checkpoint(block) => block.raw() << STATE_BITS | CHECKPOINT,
    };
    word::seal(Owner { id: STATE_BLOCK, generation: 0 }, Field::State, payload)
}

/// Where the state word is.
pub fn state_block() -> Block {
    Block::new(0, STATE_BLOCK)
}

/// Whether the volume was unmounted, and how.
pub fn state(store: &Store) -> Result<Use> {
    let word = store.load_word(state_block(), 0).map_err(|error| error.unread_is(Damage::State))?;
    let payload = word::unseal(Owner { id: STATE_BLOCK, generation: 0 }, Field::State, word).ok_or(Damage::State)?;
    match (payload & ((1 << STATE_BITS) - 1), Block::from_raw(payload >> STATE_BITS)) {
        (CLEAN, Some(Block::NONE)) => Ok(Use::Clean),
        (MOUNTED, Some(Block::NONE)) => Ok(Use::Mounted),
        (REPAIRING, Some(Block::NONE)) => Ok(Use::Repairing),
        (CHECKPOINT, Some(block)) if block != Block::NONE => Ok(Use::Checkpoint(block)),
        _ => Err(Damage::State.into()),
    }
}

/// Offset of the number of the last mount.
pub(crate) const MOUNT_NUMBER: u64 = 64;
/// In region 0: the other regions do not have this number yet.
const JOINING: u64 = 1;
const MOUNT_BITS: u32 = 47;

fn mount_number(store: &Store, region: usize) -> Result<Option<u64>> {
    let block = Block::new(region, STATE_BLOCK);
    let word = match store.load_word(block, MOUNT_NUMBER) {
        Err(Error::Io(_)) => return Ok(None),
        word => word?,
    };
    Ok(word::unseal(Owner { id: block.raw(), generation: 0 }, Field::Mount, word))
}

/// The numbers of the last mount of each region; `None` where it is damaged. An error: they are of
/// different mounts, so that one of them is a copy, or was replaced by one.
pub fn mount_numbers(store: &Store) -> Result<Vec<Option<u64>>> {
    let regions = store.superblock().regions.len();
    let numbers = (0..regions).map(|region| mount_number(store, region)).collect::<Result<Vec<_>>>()?;
    let joining = numbers.first().copied().flatten().is_some_and(|first| first & JOINING != 0);
    let mut readable = numbers.iter().enumerate().filter_map(|(region, number)| Some((region, (*number)?)));
    let Some((known, number)) = readable.next().filter(|_| !joining) else { return Ok(numbers) };
    match readable.find(|(_, other)| *other != number) {
        None => Ok(numbers),
        Some((region, _)) => Err(Error::NotAVolume(format!(
            "region {region} and region {known} were last mounted apart from each other: one of them is a copy, or was replaced by one"
        ))),
    }
}

/// Gives all regions of a volume the number of a new mount. Stopped anywhere, it is done again by
/// the next mount.
pub fn number_mount(store: &Store, now_ns: i64) -> Result<()> {
    let numbers = mount_numbers(store)?;
    if numbers.len() < 2 && !numbers.contains(&None) {
        return Ok(());
    }
    let mask = (1u64 << MOUNT_BITS) - 1;
    let last = numbers.first().copied().flatten().unwrap_or(0) >> 1;
    // Of the time and the process, so that two copies that are mounted apart get different ones.
    let own = (now_ns as u64 >> 10).wrapping_add(u64::from(std::process::id()) << 24);
    let number = (last.wrapping_add(1).wrapping_add(own) & mask).max(1) << 1;
    let put = |region: usize, payload: u64| {
        let block = Block::new(region, STATE_BLOCK);
        let word = word::seal(Owner { id: block.raw(), generation: 0 }, Field::Mount, payload);
        let nothing = Flushed::nothing().fence(store)?;
        store.commit(&[(block, MOUNT_NUMBER, word)], &nothing).map(drop)
    };
    put(0, number | JOINING)?;
    (1..numbers.len()).try_for_each(|region| put(region, number))?;
    put(0, number)
}

/// An inode that is in use.
#[derive(Debug)]
pub struct Found {
    /// Which life of the number this is, as far as known.
    pub generation: u32,
    /// What its log says, or why it cannot be read.
    pub state: Result<Known>,
}

/// What the log of an inode says about its place in the volume.
#[derive(Debug)]
pub struct Known {
    pub kind: Kind,
    /// How many names it says it has.
    links: u32,
    /// It has data beyond its size.
    beyond: bool,
    /// Names, if it is a directory.
    pub dir: Option<Box<Dir>>,
    /// Blocks: pages of the log first.
    owned: Box<[(Block, u32)]>,
    /// How many of `owned` are pages of the log.
    pages: u32,
    /// Slots up to the tail in the last of them.
    last: u8,
    /// Runs of `owned` that are allocated only.
    unwritten: Box<[u32]>,
    /// The runs of `owned` that hold data, if entries of its log are lost, so that it may have
    /// given them up; and whether an entry behind those says that it has them.
    weak: Box<[(u32, bool)]>,
    /// What is not known of it.
    pub gaps: Option<Box<Gaps>>,
    /// A bit of its log has flipped: nothing is lost.
    pub flipped: bool,
    /// See [`Long::of`].
    pub long: Option<Box<Long>>,
}

/// What has to be known of an inode with many extents, so that not all of its log has to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Long {
    /// The extents in order with which it begins ([`log::Sorted`]).
    pub runs: u32,
    /// Its blocks in each region.
    pub blocks: SmallVec<[u64; 2]>,
}

impl Long {
    /// That of an inode, unless its log is short or a part of it is not in order.
    pub fn of(state: &State) -> Option<Self> {
        let is_long =
            Sorted::of(state.log.sorted).pieces() > 0 && state.gaps.is_none() && !state.log.flipped && !state.gone;
        is_long.then(|| {
            let blocks = state.extents.blocks_by_region();
            // As a log tells it that has moved out of the last regions.
            let upto = blocks.iter().rposition(|blocks| *blocks > 0).map_or(0, |last| last + 1);
            Self { runs: state.log.sorted, blocks: blocks.iter().take(upto).copied().collect() }
        })
    }
}

impl Found {
    /// Its line cannot be read: nobody knows whether it is in use, and a store there could end the
    /// process.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self.state, Err(Error::Damaged(Damage::Inode { what: UNREADABLE, .. })))
    }
}

impl Known {
    fn new(state: State) -> Option<Self> {
        let pages = state.log.pages.iter().map(|page| (*page, 1));
        let runs = state.extents.iter().map(|run| (run.block, run.count as u32));
        let written_to = state.extents.iter().filter(|run| !run.unwritten).last().map_or(0, |run| run.end());
        let sure = |run: &Run| state.gaps.as_ref().map(|gaps| gaps.has_sure(run.file_block, run.count));
        let weak = state.extents.iter().zip(state.log.pages.len() as u32..);
        let weak = weak.filter_map(|(run, at)| Some((at, sure(&run)?)));
        let unwritten = state.extents.iter().zip(state.log.pages.len() as u32..).filter(|(run, _)| run.unwritten);
        Some(Self {
            long: Long::of(&state).map(Box::new),
            kind: Kind::of_mode(state.attributes.mode)?,
            links: state.attributes.links,
            beyond: state.gaps.is_none() && written_to > state.size.div_ceil(BLOCK_BYTES),
            owned: pages.chain(runs).collect(),
            pages: state.log.pages.len() as u32,
            last: state.log.tail.slot as u8,
            unwritten: unwritten.map(|(_, at)| at).collect(),
            weak: weak.collect(),
            flipped: state.log.flipped && state.gaps.is_none(),
            gaps: state.gaps.clone(),
            dir: state.dir.map(Box::new),
        })
    }

    /// Whether it has a page of its log in this block.
    pub fn has_page(&self, block: Block) -> bool {
        self.owned.iter().take(self.pages as usize).any(|(page, _)| *page == block)
    }

    /// The pages of its log, and the bytes of each up to the tail.
    pub fn pages(&self) -> impl Iterator<Item = (Block, usize)> + '_ {
        let pages = self.owned.iter().take(self.pages as usize).enumerate();
        let last = self.pages as usize - usize::from(self.pages > 0);
        pages.map(move |(i, (page, _))| (*page, if i == last { usize::from(self.last) * LINE } else { BLOCK }))
    }

    /// The runs that hold file data.
    fn data(&self) -> impl Iterator<Item = (Block, u32)> + '_ {
        let runs = self.owned.iter().zip(0..).skip(self.pages as usize);
        runs.filter(|(_, at)| self.unwritten.binary_search(at).is_err()).map(|(run, _)| *run)
    }
}

/// All inodes in use, whether named or not.
pub type Inodes = BTreeMap<Ino, Found>;

/// Journals that were committed, and their records.
pub type Journals = Vec<(Block, Vec<journal::Record>)>;

/// The journals that were committed and not finished, and those that are damaged, so that nobody
/// knows what they say.
pub fn journals(store: &Store) -> Result<(Journals, Vec<Damage>)> {
    let superblock = store.superblock();
    let (mut found, mut damage) = (Vec::new(), Vec::new());
    for at in (0..superblock.regions.len()).flat_map(|region| superblock.journals_of(region)) {
        let block = match store.read_block(at) {
            Err(Error::Io(_)) => {
                damage.push(Damage::Journal { block: at, what: UNREADABLE });
                continue;
            }
            block => block?,
        };
        let known = |records: &Vec<journal::Record>| records.iter().all(|r| superblock.inode_at(r.ino).is_some());
        match journal::decode(at, block.as_slice()) {
            Ok(records) if records.is_empty() => {}
            Ok(mut records) if known(&records) => {
                // Nobody waits for what did not end: it has not happened where a line of it can be
                // stored to in one of two copies only, unless it was under way.
                let is_half = |r: &journal::Record| store.read_inode(r.ino).is_ok() && !can_store(store, r.ino);
                if records.iter().any(is_half) && !records.iter().any(|record| is_stored(store, record)) {
                    records.clear();
                }
                // What is in a line that cannot be read is lost in any case. What one copy refuses
                // and the other one lacks stays: see `check_journals`.
                let is_left = |r: &journal::Record| can_store(store, r.ino) || is_half(r) && !is_stored(store, r);
                records.retain(is_left);
                found.push((at, records));
            }
            Ok(_) => {
                let what = "a record names an inode that the volume does not have";
                damage.push(Damage::Journal { block: at, what });
            }
            Err(what) => damage.push(Damage::Journal { block: at, what }),
        }
    }
    Ok((found, damage))
}

/// Fails where journals cannot be finished: a part has happened, and the rest names a line that can
/// be stored to in one of two copies only. Without the rest, a name could be lost.
pub(crate) fn check_journals(store: &Store, journals: &Journals) -> Result<()> {
    let is_stuck = |(_, records): &&(Block, Vec<journal::Record>)| records.iter().any(|r| !can_store(store, r.ino));
    match journals.iter().find(is_stuck) {
        Some((block, _)) => Err(Damage::Journal { block: *block, what: HALF }.into()),
        None => Ok(()),
    }
}

/// Whether an inode's line can be stored to.
pub(crate) fn can_store(store: &Store, ino: Ino) -> bool {
    store.inode_at(ino).is_ok_and(|(block, line)| store.can_store(block, line).is_ok())
}

/// Whether an inode has the word of a record.
fn is_stored(store: &Store, record: &journal::Record) -> bool {
    place(store, record).is_ok_and(|(block, at, word)| store.load_word(block, at).is_ok_and(|now| now == word))
}

/// Told how many steps of reading inode tables were begun, and of how many; says whether to go on.
pub type Watch<'a> = &'a (dyn Fn(u64, u64) -> bool + Sync);

/// Blocks of inode tables that a thread takes at a time: 2048 inodes.
const STEP: u64 = 32;
/// Steps that make it worth starting a thread: reading 2048 unused inodes takes about as long as
/// that (30 µs).
const STEPS_PER_THREAD: usize = 8;

/// Reads all inodes, as they are once `journals` are finished, with a thread for each CPU. Fails
/// only when the medium does.
pub fn inodes(store: &Store, journals: &Journals, watch: Watch<'_>) -> Result<Inodes> {
    let mut pending: BTreeMap<Ino, Vec<journal::Record>> = BTreeMap::new();
    for record in journals.iter().flat_map(|(_, records)| records) {
        pending.entry(record.ino).or_default().push(*record);
    }
    let tables = store.superblock().regions.iter().enumerate();
    let steps: Vec<(usize, u64, u64)> = tables
        .flat_map(|(region, layout)| {
            let step = STEP * inode::PER_BLOCK;
            (0..layout.inodes).step_by(step as usize).map(move |from| (region, from, layout.inodes.min(from + step)))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(step) = steps.get(at) else { return Ok(found) };
            if !watch(at as u64, steps.len() as u64) {
                return Err(Error::Interrupted);
            }
            read_table(store, &pending, *step, &mut found)?;
        }
    };
    let worth = 1 + steps.len() / STEPS_PER_THREAD;
    // Asking how many processors there are reads files: as long as mounting a small volume takes.
    let threads = if worth == 1 { 1 } else { std::thread::available_parallelism().map_or(1, usize::from).min(worth) };
    let parts: Vec<Result<Vec<(Ino, Found)>>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut parts = vec![work()];
        parts.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic))));
        parts
    });
    let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(parts.into_iter().flatten().collect())
}

/// Reads part of an inode table.
fn read_table(
    store: &Store,
    pending: &BTreeMap<Ino, Vec<journal::Record>>,
    (region, from, to): (usize, u64, u64),
    found: &mut Vec<(Ino, Found)>,
) -> Result<()> {
    if store.is_missing(region) {
        return Ok(()); // names say which of them are in use
    }
    for first in (from..to).step_by(inode::PER_BLOCK as usize) {
        let Some((at, _)) = store.superblock().inode_at(Ino::new(region, first.max(1) as u32)) else { continue };
        let (mut block, unreadable) = match store.read_block(at) {
            Err(Error::Io(_)) => readable_lines(store, at)?,
            block => (block?, 0),
        };
        for (slot, line) in (first..to).zip(block.chunks_exact_mut(LINE)).filter(|(slot, _)| *slot != 0) {
            let ino = Ino::new(region, slot as u32);
            for record in pending.get(&ino).into_iter().flatten() {
                put(line, record.place() as usize, &record.word.to_le_bytes());
            }
            match inode::decode(ino, line) {
                Ok(Line::Free(_)) => {}
                Ok(Line::Used { generation, head, tail }) => {
                    let unknown = Damage::Inode { ino, what: "its mode has an unknown kind" };
                    let state = replay(store, (ino, generation), head, tail, true);
                    let state = state.and_then(|mut state| {
                        state.log.flipped |= !line.starts_with(&inode::encode(ino, generation, head, tail)[..WORDS]);
                        Known::new(state).ok_or(unknown.into())
                    });
                    found.push((ino, Found { generation, state }));
                }
                Err(what) => {
                    let is_unreadable = unreadable >> (slot % inode::PER_BLOCK) & 1 == 1;
                    let what = if is_unreadable { UNREADABLE } else { what };
                    let generation = crate::format::get_u32(line, 0);
                    found.push((ino, Found { generation, state: Err(Damage::Inode { ino, what }.into()) }));
                }
            }
        }
    }
    Ok(())
}

/// What a log says of its inode's place in the volume, also past what is bad.
pub(crate) fn known(store: &Store, whose: (Ino, u32), head: LogPos, tail: LogPos) -> Result<Known> {
    let unknown = Damage::Inode { ino: whose.0, what: "its mode has an unknown kind" };
    Known::new(replay(store, whose, head, tail, true)?).ok_or(unknown.into())
}

/// What of a block of an inode table can be read, and a bit for each line that cannot; such a line
/// fails its checks.
pub(crate) fn readable_lines(store: &Store, at: Block) -> Result<(Box<[u8; BLOCK]>, u64)> {
    let (mut block, mut unreadable) = (Box::new([0; BLOCK]), 0);
    for (i, line) in block.chunks_exact_mut(LINE).enumerate() {
        match store.read(at, (i * LINE) as u64, line) {
            Err(Error::Io(_)) => {
                line.fill(0xff);
                unreadable |= 1 << i;
            }
            read => read?,
        }
    }
    Ok((block, unreadable))
}

/// Reads one inode, as a mount does that found a checkpoint; where the volume is only looked at, or
/// repaired, also what stands `past` entries that cannot be read.
pub fn inode(store: &Store, ino: Ino, past: bool) -> Result<(u32, State)> {
    inode_partly(store, ino, past, None)
}

/// The same, but of a `long` log only some pages: the others are pieces of its extents.
pub fn inode_partly(store: &Store, ino: Ino, past: bool, long: Option<&Long>) -> Result<(u32, State)> {
    let line = store.read_inode(ino)?;
    match inode::decode(ino, &line).map_err(|what| Damage::Inode { ino, what })? {
        Line::Free(_) => Err(Damage::Inode { ino, what: "it is free, and the checkpoint says that it is used" }.into()),
        Line::Used { generation, head, tail } => {
            let whose = (ino, generation);
            // One that has it wrong, or damage: a look at all of it says what it is.
            let partly = long.filter(|_| !past).and_then(|long| replay_partly(store, whose, (head, tail), long).ok());
            Ok((generation, partly.map_or_else(|| replay(store, whose, head, tail, past), Ok)?))
        }
    }
}

/// What a long log says, with pieces.
fn replay_partly(store: &Store, whose: (Ino, u32), places: (LogPos, LogPos), long: &Long) -> Result<State> {
    let (mut state, mut freed) = (State::new(Log::none(places.1)), Vec::new());
    // What pieces have is not counted while the rest is.
    state.extents.set_blocks(&vec![1 << 62; store.superblock().regions.len()]);
    let mut failed = None;
    let log = log::replay_partly(store, whose, places, Sorted::of(long.runs), |entry, time, piece| {
        freed.clear();
        match (entry, piece) {
            (Entry::Extent(run, _), _) if !store.superblock().is_data(run.block, run.count) => {
                return Err("an extent is outside of its region");
            }
            (Entry::Extent(run, Some(_)), Some(page)) if state.extents.add_piece(run.file_block, page) => return Ok(()),
            (_, Some(_)) => return Err("its extents are out of order"),
            (Entry::Extent(run, size), None) if !state.extents.is_whole() => {
                if !state.extents.end_pieces(run.file_block) {
                    return Err("its extents are out of order");
                }
                state.extents.map_over(*run);
                if let Some(size) = size {
                    state.size = *size;
                    (state.attributes.mtime, state.attributes.ctime) = (time, time);
                }
                return Ok(());
            }
            (Entry::Hole { file_block, count, .. }, None) => {
                failed = read_pieces(store, whose, &mut state.extents, (*file_block, *count), usize::MAX).err();
            }
            (Entry::Size(size), None) => {
                let range = (size.div_ceil(BLOCK_BYTES), u64::MAX);
                failed = read_pieces(store, whose, &mut state.extents, range, usize::MAX).err();
            }
            _ => {}
        }
        if failed.is_some() { Err("a piece cannot be read") } else { state.apply(entry, time, &mut freed) }
    });
    state.log = log?;
    state.extents.set_blocks(&long.blocks);
    if !matches!(Kind::of_mode(state.attributes.mode), Some(Kind::File | Kind::Symlink)) {
        return Err(Damage::Inode { ino: whose.0, what: "data in something that has none" }.into());
    }
    Ok(state)
}

/// Reads up to so many pieces of extents in front of a use of file blocks: whether more are left.
pub(crate) fn read_pieces(
    store: &Store,
    whose: (Ino, u32),
    extents: &mut Extents,
    (file_block, count): (u64, u64),
    most: usize,
) -> Result<bool> {
    for _ in 0..most {
        let Some((first, page)) = extents.unread(file_block, count) else { return Ok(false) };
        if !extents.fill(first, &log::read_piece(store, whose, page)?) {
            return Err(Damage::Inode { ino: whose.0, what: "its extents are out of order" }.into());
        }
    }
    Ok(extents.unread(file_block, count).is_some())
}

/// What inodes own of which the whole log can be read, in order: first blocks and counts.
pub(crate) fn owned(store: &Store) -> Result<Vec<(Block, u64)>> {
    let tables = store.superblock().regions.iter().enumerate().filter(|(region, _)| !store.is_missing(*region));
    let mut owned = Vec::new();
    for ino in tables.flat_map(|(region, layout)| (1..layout.inodes).map(move |slot| Ino::new(region, slot as u32))) {
        match inode(store, ino, false) {
            Ok((_, state)) => {
                owned.extend(state.log.pages.iter().map(|page| (*page, 1)));
                owned.extend(state.extents.iter().map(|run| (run.block, run.count)));
            }
            Err(Error::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
    }
    owned.sort_unstable();
    Ok(owned)
}

/// What a log says. `past`: also what stands behind entries that cannot be read.
fn replay(store: &Store, whose: (Ino, u32), head: LogPos, tail: LogPos, past: bool) -> Result<State> {
    let is_here =
        |entry: &Entry<'_>| !matches!(entry, Entry::Extent(r, _) if !store.superblock().is_data(r.block, r.count));
    let (mut state, mut freed) = (State::new(Log::none(tail)), Vec::new());
    let strict = log::replay(store, whose, head, tail, |entry, time| {
        freed.clear();
        if !is_here(entry) {
            return Err("an extent is outside of its region");
        }
        state.apply(entry, time, &mut freed)
    });
    let log = match strict {
        Err(Error::Damaged(damage)) if past => {
            state = State::new(Log::none(tail));
            state.xattrs.keep_all();
            let mut kind = None;
            salvage(store, whose, head, tail, &mut |item| match item {
                Item::Entry(Entry::Attributes(attributes, _), _) => kind = Kind::of_mode(attributes.mode),
                Item::Entry(Entry::Link { .. } | Entry::Unlink { .. }, _) => kind = kind.or(Some(Kind::Directory)),
                _ => {}
            })?;
            let log = salvage(store, whose, head, tail, &mut |item| match item {
                Item::Gap(slots) => state.gap(slots),
                Item::Entry(entry, _) if !is_here(entry) => state.gap(entry.slots()),
                Item::Entry(entry, time) => state.apply_past(entry, time, kind, &mut Vec::new()),
            })?;
            match Kind::of_mode(state.attributes.mode) {
                None => return Err(damage.into()),
                Some(Kind::Directory) => {}
                // Damaged attributes in between had made it one.
                Some(_) => state.dir = None,
            }
            // It is another fault than one of an entry.
            let gaps = state.gaps.get_or_insert_default();
            if let Damage::Inode { what, .. } = damage {
                gaps.what = what;
            }
            log
        }
        log => log?,
    };
    if Kind::of_mode(state.attributes.mode).is_none() {
        return Err(Damage::Inode { ino: whose.0, what: "its log is empty" }.into());
    }
    state.log = log;
    Ok(state)
}

/// Faults of the tree, and orphan inodes.
#[derive(Debug, Default)]
pub struct Tree {
    /// Everything that cannot be true.
    pub damage: Vec<Damage>,
    /// Inodes that no directory names, but for those whose lines cannot be read.
    pub orphans: Vec<Ino>,
    /// Why no name that stands for one of these inodes can be followed.
    pub astray: BTreeMap<Ino, Damage>,
    /// A directory is damaged, so that orphans may be what it named.
    pub names_lost: bool,
    /// Names that cannot be followed.
    pub bad: Vec<BadName>,
    /// Files that have another number of names than they say, and that number.
    pub links: Vec<(Ino, u32)>,
    /// Inodes that [`walk_lost`] gave a parent, as what named them is gone; and how many names each
    /// has with that.
    pub lost: Vec<(Ino, u32)>,
    /// Inodes with names of which a bit of the log has flipped.
    pub flipped: Vec<Ino>,
    /// Inodes with names of which entries of the log are lost.
    pub gapped: Vec<Ino>,
    /// Names that may have been removed.
    doubtful: Vec<(Ino, Box<[u8]>, Named)>,
    /// Inodes that only a walk from those reaches, those among them.
    pub adopted: BTreeSet<Ino>,
    names: BTreeMap<Ino, u32>,
    /// Regions that are not there.
    missing: Vec<usize>,
}

/// A name that cannot be followed.
#[derive(Debug)]
pub struct BadName {
    pub dir: Ino,
    pub name: Box<[u8]>,
    /// What it should stand for.
    pub named: Named,
    /// That is in use, and damaged, but its line can be read.
    pub damaged: bool,
}

/// What is wrong with the name of a file that is damaged.
pub const LOST_FILE: &str = "stands for a file that is damaged";

/// What is wrong with the name of something in a region that is not there.
pub const ELSEWHERE: &str = "stands for something in a region that is missing";

/// What is wrong with a name that says what its inode does not say.
pub const OTHER_KIND: &str = "stands for an inode of another kind";

/// What is wrong with a journal of which one half is stored and the other half cannot be.
const HALF: &str = "its other half cannot be stored, as one of two copies of an inode has failed: look at the \
    volume (-o ro), or clear the errors of that memory";

/// What is wrong with a block of two inodes.
pub const SHARED: &str = "has a second owner";

/// What is wrong with a file that something damaged may name, too: it can be used.
pub const FEWER_NAMES: &str = "it has fewer names than it says";

/// Walks from the root: finds the orphans, checks names against inodes, and tells directories their
/// parents.
pub fn walk(store: &Store, found: &mut Inodes) -> Tree {
    let mut tree = Tree::of(store);
    tree.walk_root(found);
    tree.count(found);
    tree
}

/// The same. Where names are lost, whole inodes without any get the root for a parent: as few as
/// lead to all of them.
pub fn walk_lost(store: &Store, found: &mut Inodes, names_lost: bool) -> Tree {
    let mut tree = Tree::of(store);
    tree.walk_root(found);
    if tree.names_lost || names_lost {
        let whole: Vec<Ino> = found.iter().filter(|(_, f)| f.state.is_ok()).map(|(ino, _)| *ino).collect();
        let nameless: Vec<Ino> = whole.into_iter().filter(|ino| !tree.names.contains_key(ino)).collect();
        let dirs = nameless.iter().filter_map(|ino| found.get(ino)?.state.as_ref().ok()?.dir.as_ref());
        let inner: BTreeSet<Ino> = dirs.flat_map(|dir| dir.after(0).map(|(_, named)| named.ino)).collect();
        // Those in the circle of a directory with itself come last.
        let (inner, outer): (Vec<Ino>, Vec<Ino>) = nameless.iter().partition(|ino| inner.contains(ino));
        let mut tops = Vec::new();
        for ino in outer.into_iter().chain(inner) {
            if tree.names.contains_key(&ino) {
                continue;
            }
            tops.push(ino);
            tree.names.insert(ino, 1);
            tree.follow(found, ino, Ino::ROOT);
        }
        tree.lost = tops.iter().map(|ino| (*ino, tree.names.get(ino).copied().unwrap_or(1))).collect();
        tree.adopted = nameless.into_iter().filter(|ino| tree.names.contains_key(ino)).collect();
    }
    tree.count(found);
    tree
}

impl Tree {
    fn of(store: &Store) -> Self {
        let regions = 0..store.superblock().regions.len();
        Self { missing: regions.filter(|region| store.is_missing(*region)).collect(), ..Self::default() }
    }

    fn walk_root(&mut self, found: &mut Inodes) {
        match found.get(&Ino::ROOT).map(|f| f.state.as_ref().map(|s| s.dir.is_some())) {
            Some(Ok(true)) => {}
            found => {
                let none = Damage::Inode { ino: Ino::ROOT, what: "there is no root directory" };
                let damage = if let Some(Err(Error::Damaged(damage))) = found { damage.clone() } else { none };
                self.astray.insert(Ino::ROOT, damage.clone());
                self.damage.push(damage);
                self.names_lost = true;
            }
        }
        self.names.insert(Ino::ROOT, 1);
        self.follow(found, Ino::ROOT, Ino::ROOT);
    }

    fn follow(&mut self, found: &mut Inodes, from: Ino, parent: Ino) {
        let mut todo = vec![(from, parent)];
        while let Some((ino, parent)) = todo.pop() {
            let Some(Ok(state)) = found.get_mut(&ino).map(|f| f.state.as_mut()) else { continue };
            let Some(mut dir) = state.dir.take() else { continue };
            dir.parent = parent;
            let below = state.gaps.as_ref().map_or(0, |gaps| gaps.names_below);
            self.names_lost |= state.gaps.is_some();
            for (name, named) in dir.after(0) {
                if named.cookie < below {
                    self.doubtful.push((ino, name.into(), named));
                }
                let seen = self.names.get(&named.ino).map_or(1, |seen| seen + 1);
                let checked = match self.missing.contains(&named.ino.region()) {
                    true => Err(ELSEWHERE),
                    false => check_name(found, named.ino, named.kind, seen),
                };
                // What is whole and has another name, or should have, is not named by this one.
                if checked.is_ok() || found.get(&named.ino).is_none_or(|target| target.state.is_err()) {
                    self.names.insert(named.ino, seen);
                }
                match checked {
                    Ok(()) if named.kind == Kind::Directory => todo.push((named.ino, ino)),
                    Ok(()) => {}
                    Err(what) => {
                        self.names_lost |= what != LOST_FILE && what != ELSEWHERE || named.kind == Kind::Directory;
                        let is_damaged = |target: &Found| target.state.is_err() && !target.is_unreadable();
                        let damaged = found.get(&named.ino).is_some_and(is_damaged);
                        self.bad.push(BadName { dir: ino, name: name.into(), named, damaged });
                        let damage = Damage::Name { ino, name: String::from_utf8_lossy(name).into_owned(), what };
                        self.astray.entry(named.ino).or_insert_with(|| damage.clone());
                        self.damage.push(damage);
                    }
                }
            }
            put_back(found, ino, dir);
        }
    }

    fn count(&mut self, found: &Inodes) {
        let lost: BTreeSet<Ino> = self.lost.iter().map(|(ino, _)| *ino).collect();
        for (ino, found) in found.iter().filter(|(ino, _)| self.names.contains_key(ino)) {
            match &found.state {
                Ok(Known { gaps: Some(gaps), .. }) => {
                    self.gapped.push(*ino);
                    self.names_lost |= gaps.kind_is_a_guess;
                    self.damage.push(Damage::Lost { ino: *ino, what: gaps.what, slots: gaps.slots });
                }
                Ok(state) if state.flipped => self.flipped.push(*ino),
                _ => {}
            }
        }
        // Of too many names those go of which the removal may be lost.
        for (dir, name, named) in std::mem::take(&mut self.doubtful) {
            let links = found.get(&named.ino).and_then(|f| Some(f.state.as_ref().ok()?.links));
            if let (Some(links), Some(seen)) = (links, self.names.get_mut(&named.ino))
                && named.kind != Kind::Directory
                && *seen > links.max(1)
            {
                *seen -= 1;
                self.bad.push(BadName { dir, name, named, damaged: false });
            }
        }
        for (ino, found) in found.iter() {
            let (Some(seen), Ok(state)) = (self.names.get(ino), &found.state) else { continue };
            if state.dir.is_none() && state.links != *seen {
                self.links.push((*ino, *seen));
                // Those that have lost a name get one again.
                if !lost.contains(ino) {
                    let what = if *seen < state.links { FEWER_NAMES } else { "it has more names than it says" };
                    self.damage.push(Damage::Inode { ino: *ino, what });
                }
            }
        }
        let is_orphan = |(ino, found): &(&Ino, &Found)| !self.names.contains_key(ino) && !found.is_unreadable();
        self.orphans = found.iter().filter(is_orphan).map(|(ino, _)| *ino).collect();
    }
}

fn put_back(found: &mut Inodes, ino: Ino, dir: Box<Dir>) {
    if let Some(Ok(state)) = found.get_mut(&ino).map(|f| f.state.as_mut()) {
        state.dir = Some(dir);
    }
}

fn check_name(found: &Inodes, ino: Ino, kind: Kind, seen: u32) -> std::result::Result<(), &'static str> {
    let Some(target) = found.get(&ino) else { return Err("stands for an inode that is free") };
    let Ok(state) = &target.state else {
        return Err(if kind == Kind::Directory { "stands for a directory that is damaged" } else { LOST_FILE });
    };
    if state.kind != kind {
        return Err(OTHER_KIND);
    }
    if kind == Kind::Directory && seen > 1 {
        return Err("is the second one of a directory");
    }
    Ok(())
}

/// Reads the file data of every named inode against its checksums.
pub fn data(store: &Store, found: &Inodes, orphans: &[Ino]) -> Result<Vec<Damage>> {
    let mut damage = Vec::new();
    let named = found.iter().filter(|(ino, _)| orphans.binary_search(ino).is_err());
    let states = named.filter_map(|(ino, found)| Some((*ino, found.state.as_ref().ok()?)));
    let mut contents = [0; BLOCK];
    for (ino, block) in states.flat_map(|(ino, state)| {
        state.data().flat_map(move |(block, count)| (0..count.into()).map(move |i| (ino, block.offset(i))))
    }) {
        match store.read_data(block, 0, &mut contents) {
            Err(Error::Damaged(_) | Error::Io(_)) => damage.push((ino, block)),
            done => done?,
        }
    }
    let paths = if damage.is_empty() { BTreeMap::new() } else { paths(found, damage.iter().map(|(ino, _)| *ino)) };
    let path = |ino| paths.get(&ino).cloned();
    Ok(damage.into_iter().map(|(ino, block)| Damage::Data { block, path: path(ino) }).collect())
}

/// A path of each of these inodes that has one.
fn paths(found: &Inodes, wanted: impl Iterator<Item = Ino>) -> BTreeMap<Ino, String> {
    let dirs = found.iter().filter_map(|(ino, found)| Some((*ino, found.state.as_ref().ok()?.dir.as_ref()?)));
    let names: BTreeMap<Ino, (Ino, &[u8])> =
        dirs.flat_map(|(dir, names)| names.after(0).map(move |(name, named)| (named.ino, (dir, name)))).collect();
    let path = |ino: Ino| {
        let (mut at, mut path) = (ino, Vec::new());
        // A damaged volume may have directories in circles.
        for _ in 0..MAX_DEPTH {
            if at == Ino::ROOT {
                return Some((ino, String::from_utf8_lossy(&path).into_owned()));
            }
            let (dir, name) = names.get(&at)?;
            path.splice(..0, b"/".iter().chain(*name).copied());
            at = *dir;
        }
        None
    };
    wanted.collect::<BTreeSet<_>>().into_iter().filter_map(path).collect()
}

#[derive(Debug, Default)]
pub struct Blocks {
    /// Free runs of each region, in order: first block and count.
    pub free: Vec<Vec<(u64, u64)>>,
    /// Owners that cannot be.
    pub damage: Vec<Damage>,
    /// Blocks of which each of two inodes says that it owns them.
    pub twice: Vec<(Block, Ino, Ino)>,
    /// Blocks that others own, and inodes that do not know better, as entries of their logs are
    /// lost.
    pub others: Vec<(Ino, Block, u64)>,
}

/// Free blocks of each region: all but those of whole inodes that are no `orphans`.
pub fn blocks(store: &Store, found: &Inodes, orphans: &[Ino]) -> Blocks {
    let superblock = store.superblock();
    let (mut used, mut out) = (vec![Vec::new(); superblock.regions.len()], Blocks::default());
    let mut weak = Vec::new();
    for (ino, found) in found.iter().filter(|(ino, _)| orphans.binary_search(ino).is_err()) {
        let Ok(state) = &found.state else { continue };
        for (at, (block, count)) in state.owned.iter().map(|(block, count)| (*block, u64::from(*count))).enumerate() {
            let is_weak = state.weak.binary_search_by_key(&(at as u32), |(at, _)| *at);
            if let Some((_, sure)) = is_weak.ok().and_then(|at| state.weak.get(at)) {
                weak.push((!sure, *ino, block, count));
                continue;
            }
            let is_page = at < state.pages as usize;
            let fits = if is_page { superblock.is_page(block) } else { superblock.is_data(block, count) };
            match used.get_mut(block.region()).filter(|_| fits) {
                Some(used) => used.push((block.index(), count, *ino)),
                None => out.damage.push(Damage::Block { ino: *ino, block, what: "cannot be owned" }),
            }
        }
        if state.beyond {
            out.damage.push(Damage::Inode { ino: *ino, what: "it has data beyond its size" });
        }
    }
    for (region, mut used) in used.into_iter().enumerate() {
        used.sort_unstable();
        let (mut runs, mut end) = (Vec::new(), superblock.data_from(region).unwrap_or(0));
        let mut owner = Ino::ROOT;
        let all = superblock.data_end(region);
        for (start, count, ino) in used {
            if start < end {
                let block = Block::new(region, start);
                out.damage.extend([owner, ino].map(|ino| Damage::Block { ino, block, what: SHARED }));
                out.twice.push((block, owner, ino));
            } else if start > end {
                runs.push((end, start - end));
            }
            if start + count > end {
                (end, owner) = (start + count, ino);
            }
        }
        if end < all {
            runs.push((end, all - end));
        }
        // Between log pages and data there may be what is neither.
        let (pages, data) = (superblock.pages(region), superblock.data(region));
        if pages.end < data.start {
            take(&mut runs, pages.end, data.start - pages.end, |_, _| {});
        }
        out.free.push(runs);
    }
    // Of two of them the one that is sure has it.
    weak.sort_unstable();
    for (_, ino, block, count) in weak {
        let Some(free) = out.free.get_mut(block.region()) else { continue };
        take(free, block.index(), count, |index, count| {
            out.others.push((ino, Block::new(block.region(), index), count))
        });
    }
    out
}

/// Takes what is free of a run out of the free runs, and tells `other` what is not.
fn take(free: &mut Vec<(u64, u64)>, from: u64, count: u64, mut other: impl FnMut(u64, u64)) {
    let (mut at, end) = (from, from + count);
    let mut i = free.partition_point(|(start, count)| start + count <= at);
    while let Some((start, count)) = free.get(i).copied().filter(|(start, _)| *start < end) {
        if at < start {
            other(at, start - at);
        }
        let (first, last) = (at.max(start), end.min(start + count));
        let rest = [(start, first - start), (last, start + count - last)];
        drop(free.splice(i..=i, rest.into_iter().filter(|(_, count)| *count > 0)));
        i += usize::from(first > start);
        at = last;
    }
    if at < end {
        other(at, end - at);
    }
}

/// The slots in use of each region's inode table, as a checkpoint has them.
pub fn used_inodes<'a>(regions: usize, inos: impl Iterator<Item = &'a Ino>) -> Vec<Vec<u64>> {
    let mut used: Vec<Vec<u64>> = vec![Vec::new(); regions];
    for ino in inos {
        if let Some(words) = used.get_mut(ino.region()) {
            let at = ino.slot() as usize / 64;
            words.resize(words.len().max(at + 1), 0);
            if let Some(word) = words.get_mut(at) {
                *word |= 1 << (ino.slot() % 64);
            }
        }
    }
    used
}
