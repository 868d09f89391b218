//! An inode's log: appending to it and reading it back.
//!
//! **Problem.** Entries, a new page and the link to it must all be durable before the tail moves
//! past them, and none of them may be seen when the operation fails half-way.
//!
//! **Approach.** [`append`] writes behind the tail, where nobody looks, and hands back what must be
//! flushed. The caller stores the tail. [`replay`] walks from head to tail and believes nothing.
//!
//! **Limits.** An operation's entries must fit in memory, not in a page.

use smallvec::SmallVec;

use crate::alloc::{Allocator, Fresh, Purpose};
use crate::error::{Damage, Error, Result};
use crate::format::entry::{Entry, Run};
use crate::format::page::{self, SLOTS, Seal};
use crate::format::{BLOCK, Block, Ino, LINE, LogPos};
use crate::store::{Dirty, Store};

/// Where a log is.
#[derive(Clone, Debug)]
pub struct Log {
    /// Its pages, in order.
    pub pages: Vec<Block>,
    /// Sequence of the last page.
    pub sequence: u32,
    /// Where the next entry goes.
    pub tail: LogPos,
    /// Slots right after it was rewritten; 0 if it was not since the mount.
    pub cleaned: usize,
    /// Slots that were history when cleaning it for want of room was in vain, or long, and 1; 0 if
    /// there was no such time.
    pub looked: usize,
    /// A bit of it has flipped; what it says is known.
    pub flipped: bool,
    /// How many extents in order it had when it was read or written anew ([`Sorted`]).
    pub sorted: u32,
}

/// The extents in order with which a log begins: of these, pages need not be read before somebody
/// asks for their file blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// How many there are from the second page on, each in one slot.
    pub runs: u32,
    last: Option<Run>,
    over: bool,
}

impl Sorted {
    /// So many, and no more are taken in.
    pub fn of(runs: u32) -> Self {
        Self { runs, last: None, over: true }
    }

    /// Pages behind the first one that hold nothing else. The page of the last extent is none of
    /// them: its size and time hold for all.
    pub fn pieces(&self) -> usize {
        self.runs.saturating_sub(1) as usize / (SLOTS - 1)
    }

    /// Takes in the next entry of a log, in the page of this number.
    pub fn note(&mut self, page: usize, entry: &Entry<'_>) {
        match entry {
            _ if self.over => {}
            Entry::Extent(run, size)
                if self.last.is_none_or(|last| last.end() <= run.file_block && !last.adjoins(run))
                    && (page == 0 || size.is_some()) =>
            {
                self.last = Some(*run);
                self.runs += u32::from(page > 0);
            }
            _ => self.over = page > 0 || matches!(entry, Entry::Extent(..)),
        }
    }
}

impl Log {
    /// No page, up to this tail.
    pub fn none(tail: LogPos) -> Self {
        Self { pages: Vec::new(), sequence: 0, tail, cleaned: 0, looked: 0, flipped: false, sorted: 0 }
    }

    /// Slots up to the tail.
    pub fn slots(&self) -> usize {
        self.pages.len().saturating_sub(1) * (SLOTS - 1) + self.tail.slot - 1
    }

    /// Moves the tail, after the commit.
    pub fn advance(&mut self, appended: &mut Appended<'_>) {
        self.pages.extend(appended.pages.drain(..));
        self.sequence = appended.sequence;
        self.tail = appended.tail;
        appended.fresh.keep();
    }
}

/// Entries behind the tail.
#[derive(Debug)]
pub struct Appended<'a> {
    pages: SmallVec<[Block; 2]>,
    sequence: u32,
    /// The tail that commits the entries.
    pub tail: LogPos,
    /// Data that must be durable before.
    pub dirty: Dirty,
    fresh: Fresh<'a>,
}

impl<'a> Appended<'a> {
    /// Nothing yet, after `sequence` and `tail`.
    pub fn after(allocator: &'a Allocator, (sequence, tail): (u32, LogPos)) -> Self {
        Self { pages: SmallVec::new(), sequence, tail, dirty: Dirty::default(), fresh: allocator.fresh() }
    }

    pub fn push(
        &mut self,
        store: &Store,
        from: Pages<'a, '_>,
        (ino, generation): (Ino, u32),
        (entry, time): (&Entry<'_>, i64),
    ) -> Result<()> {
        if self.tail.slot + entry.slots() > SLOTS {
            add_page(store, from, (ino, generation), self, time)?;
        }
        let seal = Seal { ino, generation, sequence: self.sequence };
        let bytes = entry.encode(seal, self.tail.slot, time);
        self.dirty.and(store.write(self.tail.page, (self.tail.slot * LINE) as u64, &bytes)?);
        self.tail.slot += entry.slots();
        Ok(())
    }

    pub fn new_pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// As a log of its own: for entries that were not appended to one.
    pub fn into_log(mut self) -> Log {
        self.fresh.keep();
        Log { pages: self.pages.into_vec(), sequence: self.sequence, ..Log::none(self.tail) }
    }

    /// Where a log of its own begins.
    pub fn head(&self) -> LogPos {
        LogPos { page: self.pages.first().copied().unwrap_or(Block::NONE), slot: 1 }
    }
}

/// The tail of a log that has no page yet.
pub const NO_TAIL: LogPos = LogPos { page: Block::NONE, slot: SLOTS };

/// Where pages for logs come from.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a, 'r> {
    pub allocator: &'a Allocator,
    /// Regions to try, best first.
    pub regions: &'r [usize],
    /// Part of the region to begin with.
    pub part: usize,
    pub purpose: Purpose,
}

/// Writes entries after `sequence` and `tail`: those of a log, or a sequence and [`NO_TAIL`] to
/// begin a new one.
pub fn append<'a, 'e>(
    store: &Store,
    from: Pages<'a, '_>,
    whose: (Ino, u32),
    after: (u32, LogPos),
    mut entries: impl Iterator<Item = (&'e Entry<'e>, i64)>,
) -> Result<Appended<'a>> {
    let mut out = Appended::after(from.allocator, after);
    entries.try_for_each(|entry| out.push(store, from, whose, entry))?;
    Ok(out)
}

fn add_page<'a>(
    store: &Store,
    from: Pages<'a, '_>,
    (ino, generation): (Ino, u32),
    out: &mut Appended<'a>,
    time: i64,
) -> Result<()> {
    let next = from.allocator.allocate_page(from.regions, from.part, from.purpose, &mut out.fresh)?;
    if out.tail.page != Block::NONE {
        if out.tail.slot < SLOTS {
            let seal = Seal { ino, generation, sequence: out.sequence };
            let pad = Entry::Pad.encode(seal, out.tail.slot, time);
            out.dirty.and(store.write(out.tail.page, (out.tail.slot * LINE) as u64, &pad)?);
        }
        let word = page::next_word(out.tail.page, generation, next);
        out.dirty.and(store.store_word(out.tail.page, page::NEXT, word)?);
    }
    out.sequence = out.sequence.wrapping_add(1);
    let header = page::encode(Seal { ino, generation, sequence: out.sequence }, next);
    out.dirty.and(store.write(next, 0, &header)?);
    out.pages.push(next);
    out.tail = LogPos { page: next, slot: 1 };
    Ok(())
}

/// Pages of a log that has entries of so many slots, in this order.
pub fn pages_for(slots: impl Iterator<Item = usize>) -> usize {
    let (mut pages, mut at) = (0, SLOTS);
    for slots in slots {
        if at + slots > SLOTS {
            (pages, at) = (pages + 1, 1);
        }
        at += slots;
    }
    pages
}

/// Reads a log from head to tail and hands each entry with its time to `take`.
pub fn replay(
    store: &Store,
    whose: (Ino, u32),
    head: LogPos,
    tail: LogPos,
    mut take: impl FnMut(&Entry<'_>, i64) -> std::result::Result<(), &'static str>,
) -> Result<Log> {
    replay_partly(store, whose, (head, tail), Sorted::default(), |entry, time, _| take(entry, time))
}

/// The same, but of the pages of `sorted` extents only the first one, with the page that has the
/// others.
pub fn replay_partly(
    store: &Store,
    (ino, generation): (Ino, u32),
    (head, tail): (LogPos, LogPos),
    sorted: Sorted,
    mut take: impl FnMut(&Entry<'_>, i64, Option<Block>) -> std::result::Result<(), &'static str>,
) -> Result<Log> {
    let damage = |what| Error::from(Damage::Inode { ino, what });
    let most: u64 = store.superblock().regions.iter().map(|r| r.blocks).sum();
    let mut advanced = 0_u32;
    let (mut log, mut noted) = (Log::none(tail), sorted);
    let (mut at, mut buffer) = (head, Box::new([0; BLOCK]));
    loop {
        if !store.superblock().is_page(at.page) || log.pages.len() as u64 >= most {
            return Err(damage("its log leads outside of the volume or in a circle"));
        }
        let number = log.pages.len();
        let piece = (1..=sorted.pieces()).contains(&number);
        let page = buffer.get_mut(..if piece { 2 * LINE } else { BLOCK }).unwrap_or_default();
        store.read(at.page, 0, page).map_err(|e| match e {
            Error::Io(_) => damage("the memory of its log cannot be read"),
            e => e,
        })?;
        let last = at.page == tail.page;
        let end = if piece {
            2
        } else if last {
            tail.slot
        } else {
            SLOTS
        };
        if last && (piece || end <= at.slot && number > 0) {
            return Err(damage("no entry of its log ends at the tail"));
        }
        let read = read_page(page, (ino, generation), at, end, |entry, time| {
            noted.note(number, entry);
            take(entry, time, piece.then_some(at.page))
        });
        let (sequence, flipped) = read.map_err(damage)?;
        log.flipped |= flipped;
        // Pages between may have been dropped, so the sequence may jump, but never back.
        if log.pages.last().is_some() {
            let step = sequence.wrapping_sub(log.sequence);
            // A circle comes back to its sequence, so its steps add up to at least 2^32.
            match advanced.checked_add(step).filter(|_| step.wrapping_sub(1) <= u32::MAX / 2) {
                Some(sum) => advanced = sum,
                None => return Err(damage("the pages of its log are out of order")),
            }
        }
        log.sequence = sequence;
        log.pages.push(at.page);
        if last {
            log.sorted = noted.runs;
            return Ok(log);
        }
        at = LogPos { page: page::next(page, at.page, generation).map_err(damage)?, slot: 1 };
    }
}

/// The extents of a page of which [`replay_partly`] read only the first.
pub fn read_piece(store: &Store, whose: (Ino, u32), page: Block) -> Result<Vec<Run>> {
    let mut runs = Vec::with_capacity(SLOTS);
    let from = LogPos { page, slot: 1 };
    let contents = store.read_block(page).map_err(|error| match error {
        Error::Io(_) => Damage::Inode { ino: whose.0, what: "the memory of its log cannot be read" }.into(),
        other => other,
    })?;
    let read = read_page(contents.as_slice(), whose, from, SLOTS, |entry, _| match entry {
        Entry::Extent(run, Some(_)) if store.superblock().is_data(run.block, run.count) => {
            runs.push(*run);
            Ok(())
        }
        _ => Err("an extent is outside of its region, or not there"),
    });
    read.map_err(|what| Damage::Inode { ino: whose.0, what })?;
    Ok(runs)
}

/// Hands the entries of a page from a slot to `end` to `take`; the page's sequence, and whether a
/// bit of it has flipped.
pub fn read_page(
    page: &[u8],
    (ino, generation): (Ino, u32),
    from: LogPos,
    end: usize,
    mut take: impl FnMut(&Entry<'_>, i64) -> std::result::Result<(), &'static str>,
) -> std::result::Result<(u32, bool), &'static str> {
    let sequence = page::decode(page, ino, generation, from.page)?;
    let mut flipped = page::decode_whole(page, ino, generation, from.page).is_err();
    let mut at = from.slot;
    while at < end {
        let seal = Seal { ino, generation, sequence };
        let mended;
        let (entry, slots, time) = match Entry::decode(page, seal, at) {
            Err(what) => {
                mended = Entry::mended(page, seal, at).ok_or(what)?;
                flipped = true;
                Entry::decode_mended(&mended)?
            }
            decoded => decoded?,
        };
        if at + slots > end {
            return Err("a log entry crosses the tail");
        }
        // Nobody would ever read what is appended behind it.
        if entry == Entry::Pad && end < SLOTS {
            return Err("the rest of a page is unused, and the tail is in it");
        }
        take(&entry, time)?;
        at = if entry == Entry::Pad { SLOTS } else { at + slots };
    }
    Ok((sequence, flipped))
}
