//! What a damaged log still says.
//!
//! **Problem.** One entry that cannot be read would take all others of its log along.
//!
//! **Approach.** Each entry is sealed by inode, generation, sequence of its page and slot, and each
//! page by its own address. So the reader goes on behind what is bad: at the next slot that holds
//! an entry, with the next page, or, where the way there is lost, with the next page of this inode
//! that leads to the tail. Whoever applies the entries is told of each [gap](Item::Gap).
//!
//! A line that the medium cannot read costs that line. Each page is tried once, and what a whole
//! inode owns is no page of another.
//!
//! **Limits.** Without the line of the inode it is a guess which pages are history (`lines`). To
//! find pages takes a look at each block of the volume and at each log, once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::format::page::{self, SLOTS, Seal};
use crate::format::{BLOCK, Block, Ino, LINE, LogPos, get_u32, get_u64};
use crate::log::Log;
use crate::scan;
use crate::store::Store;

/// How far the sequence of a page whose header is lost may be from that of its neighbours.
const NEAR: u32 = 64;

/// What a damaged log has.
#[derive(Debug)]
pub enum Item<'a> {
    /// An entry and its time.
    Entry(&'a Entry<'a>, i64),
    /// So many slots cannot be read.
    Gap(usize),
}

/// Reads what a log says from head to tail, past what is bad. Fails only where the medium does.
pub fn salvage(
    store: &Store,
    whose: (Ino, u32),
    head: LogPos,
    tail: LogPos,
    take: &mut dyn FnMut(Item<'_>),
) -> Result<Log> {
    let mut log = Log { flipped: true, ..Log::none(tail) };
    let (mut at, mut known) = (head, None);
    let mut tried = BTreeSet::new();
    loop {
        let is_new = store.superblock().is_page(at.page) && tried.insert(at.page);
        let next = match read(store, at.page).filter(|_| is_new) {
            None => None,
            Some(page) => {
                let end = if at.page == tail.page { tail.slot } else { SLOTS };
                match sequence(store, page.as_slice(), whose, (at, end), known) {
                    Some(own) if known.is_none_or(|known| own > known) => {
                        entries(
                            page.as_slice(),
                            Seal { ino: whose.0, generation: whose.1, sequence: own },
                            at.slot,
                            end,
                            take,
                        );
                        known = Some(own);
                        log.sequence = own;
                        log.pages.push(at.page);
                        if at.page == tail.page {
                            return Ok(log);
                        }
                        page::next(page.as_slice(), at.page, whose.1).ok()
                    }
                    _ => None,
                }
            }
        };
        // A page that is none of this log is looked for again from the one before.
        let next = next.filter(|next| !tried.contains(next) && leads_to(store, whose, *next, known, tail.page));
        let next = match next {
            Some(next) => next,
            None => {
                take(Item::Gap(1));
                let Some(next) = find(store, whose, known, (tail.page, &tried))? else { return Ok(log) };
                next
            }
        };
        at = LogPos { page: next, slot: 1 };
    }
}

/// What of a page can be read.
fn read(store: &Store, at: Block) -> Option<Box<[u8; BLOCK]>> {
    match store.read_block(at) {
        Err(Error::Io(_)) => scan::readable_lines(store, at).ok().map(|(page, _)| page),
        page => page.ok(),
    }
}

/// Whether a page is one of this inode, after that with the `known` sequence. The last one need not
/// have a header that can be read.
fn leads_to(store: &Store, (ino, generation): (Ino, u32), at: Block, known: Option<u32>, tail: Block) -> bool {
    if !store.superblock().is_page(at) {
        return false;
    }
    let Some(page) = read(store, at) else { return false };
    match page::decode(page.as_slice(), ino, generation, at) {
        Ok(own) => known.is_none_or(|known| own > known),
        Err(_) => {
            at == tail
                || sequence(store, page.as_slice(), (ino, generation), (LogPos { page: at, slot: 1 }, SLOTS), known)
                    .is_some()
        }
    }
}

/// The pages of logs by inode: generation, sequence and place of each.
pub type LogPages = FxHashMap<Ino, Vec<(u32, u32, Block)>>;

/// Looks for them in each block of the volume that no whole inode owns.
pub(crate) fn all_pages(store: &Store) -> Result<LogPages> {
    let (mut pages, owned) = (LogPages::default(), scan::owned(store)?);
    let is_owned = |block: Block| {
        let before = owned.partition_point(|(from, _)| *from <= block).checked_sub(1);
        before
            .and_then(|at| owned.get(at))
            .is_some_and(|(from, count)| from.region() == block.region() && block.index() < from.index() + count)
    };
    for region in (0..store.superblock().regions.len()).filter(|region| !store.is_missing(*region)) {
        for block in store.superblock().pages(region).map(|index| Block::new(region, index)) {
            let mut header = [0; LINE];
            match store.read(block, 0, &mut header) {
                Err(Error::Io(_)) => continue,
                read => read?,
            }
            let (ino, generation) = (Ino::from_raw(get_u64(&header, 8)), get_u32(&header, 16));
            if let Some(ino) = ino.filter(|_| !is_owned(block))
                && let Ok(sequence) = page::decode_whole(&header, ino, generation, block)
            {
                pages.entry(ino).or_default().push((generation, sequence, block));
            }
        }
    }
    Ok(pages)
}

/// The first page after the `known` sequence from which pages lead to the tail.
fn find(
    store: &Store,
    (ino, generation): (Ino, u32),
    known: Option<u32>,
    (tail, tried): (Block, &BTreeSet<Block>),
) -> Result<Option<Block>> {
    let pages = store.log_pages(|| all_pages(store))?;
    let own = pages
        .get(&ino)
        .into_iter()
        .flatten()
        .filter(|(of, own, at)| *of == generation && known.is_none_or(|known| *own > known) && !tried.contains(at));
    let mut found: Vec<(u32, Block)> = own.map(|(_, own, block)| (*own, *block)).collect();
    found.sort_unstable();
    let ends_at_tail = |first: &(u32, Block)| {
        let (mut own, mut at) = *first;
        while at != tail {
            let Some(next) = read(store, at).and_then(|page| page::next(page.as_slice(), at, generation).ok()) else {
                return false;
            };
            let page = Some(next).filter(|next| store.superblock().is_page(*next)).and_then(|next| read(store, next));
            match page.map(|page| page::decode(page.as_slice(), ino, generation, next)) {
                Some(Ok(later)) if later > own => (own, at) = (later, next),
                _ => return false,
            }
        }
        true
    };
    Ok(found.iter().find(|first| ends_at_tail(first)).map(|(_, at)| *at))
}

/// The sequence of a page; where its header is lost, the one near that of its neighbours with which
/// most entries of the log's part of it are whole. Behind a tail there may be some of an earlier
/// life of the page.
fn sequence(
    store: &Store,
    page: &[u8],
    (ino, generation): (Ino, u32),
    (at, end): (LogPos, usize),
    known: Option<u32>,
) -> Option<u32> {
    if let Ok(own) = page::decode(page, ino, generation, at.page) {
        return Some(own);
    }
    let behind = || {
        let next = page::next(page, at.page, generation).ok().filter(|next| store.superblock().is_page(*next))?;
        page::decode(read(store, next)?.as_slice(), ino, generation, next).ok()
    };
    let range = match (known, behind()) {
        (Some(known), _) => known.saturating_add(1)..=known.saturating_add(NEAR),
        (None, Some(next)) => next.saturating_sub(NEAR)..=next.saturating_sub(1),
        (None, None) => 0..=u32::MAX,
    };
    let mut fits: BTreeMap<u32, usize> = BTreeMap::new();
    for slot in at.slot..end {
        let own = Entry::sequence_of(page, (ino, generation), slot).filter(|own| range.contains(own));
        own.into_iter().for_each(|own| *fits.entry(own).or_default() += 1);
    }
    fits.into_iter().max_by_key(|(own, entries)| (*entries, Reverse(*own))).map(|(own, _)| own)
}

/// Hands over what a page has between two slots.
fn entries(page: &[u8], seal: Seal, from: usize, end: usize, take: &mut dyn FnMut(Item<'_>)) {
    let (mut at, mut gap) = (from, 0);
    while at < end {
        let mended;
        let found = match Entry::decode(page, seal, at) {
            Err(_) => {
                mended = Entry::mended(page, seal, at).unwrap_or_default();
                Entry::decode_mended(&mended).ok().filter(|_| !mended.is_empty())
            }
            decoded => decoded.ok(),
        };
        let found = found.filter(|(entry, slots, _)| at + slots <= end && (*entry != Entry::Pad || end == SLOTS));
        let Some((entry, slots, time)) = found else {
            // Where it should end, if that can be: what is within it may look like an entry.
            let said = page.get(at * LINE + 6).map_or(1, |slots| usize::from(*slots));
            let whole = |slot: &usize| *slot == end || Entry::decode(page, seal, *slot).is_ok();
            let next = Some(at + said).filter(|next| said > 0 && *next <= end && whole(next)).unwrap_or(at + 1);
            gap += next - at;
            at = next;
            continue;
        };
        if gap > 0 {
            take(Item::Gap(std::mem::take(&mut gap)));
        }
        take(Item::Entry(&entry, time));
        at = if entry == Entry::Pad { SLOTS } else { at + slots };
    }
    if gap > 0 {
        take(Item::Gap(gap));
    }
}
