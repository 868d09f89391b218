//! Lines of the inode table that are lost, found again by the logs that they led to.
//!
//! **Problem.** A line has 24 bytes, and without it nobody knows where a log of any length begins
//! and ends.
//!
//! **Approach.** Pages of logs say whose they are, and lead to each other. Of a line that a name
//! stands for, the words that can be read are believed; what is missing is the first page of the
//! chain, the last page, and the end of its last whole entry. Where several chains are left, as a
//! log that was replaced may be, the one counts whose last entry is the latest, and of those the
//! one that was written to its end.
//!
//! **Limits.** After a crash an operation that did not end may be taken for one that did. What is
//! found belongs to no whole inode, and is a guess: a mount for changes does not make it.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Damage, Error, Result};
use crate::format::entry::{Entry, Kind};
use crate::format::inode::{self, HEAD, TAIL};
use crate::format::page::{self, SLOTS, Seal};
use crate::format::word::{self, Field, Owner};
use crate::format::{Block, Ino, LogPos, get_u64};
use crate::salvage;
use crate::scan::{self, Found, Inodes};
use crate::store::Store;

/// Where a log is.
type Place = (u32, LogPos, LogPos);

/// Finds the logs of inodes with lost lines that have a name, and takes them into `inodes`: where
/// they are, for [`write`].
pub(crate) fn find(store: &Store, inodes: &mut Inodes) -> Result<BTreeMap<Ino, Place>> {
    let mut all = BTreeMap::new();
    if inodes.values().all(|found| found.state.is_ok()) {
        return Ok(all);
    }
    loop {
        let tree = scan::walk_lost(store, inodes, false);
        let mut wanted: BTreeMap<Ino, Kind> = BTreeMap::new();
        wanted.extend(tree.bad.iter().filter(|bad| bad.damaged).map(|bad| (bad.named.ino, bad.named.kind)));
        wanted.extend(tree.astray.contains_key(&Ino::ROOT).then_some((Ino::ROOT, Kind::Directory)));
        let mut more = false;
        wanted.retain(|ino, _| !all.contains_key(ino));
        for (ino, kind) in wanted {
            let Some(place) = place(store, ino)? else { continue };
            let known = match scan::known(store, (ino, place.0), place.1, place.2) {
                Err(Error::Damaged(_)) => continue,
                known => known?,
            };
            if known.kind == kind {
                inodes.insert(ino, Found { generation: place.0, state: Ok(known) });
                all.insert(ino, place);
                more = true;
            }
        }
        if !more {
            return Ok(all);
        }
    }
}

pub(crate) fn words(store: &Store, lines: &BTreeMap<Ino, Place>) -> Result<Vec<(Block, u64, u64)>> {
    let mut words = Vec::new();
    for (ino, (generation, head, tail)) in lines {
        let (block, at) = store.inode_at(*ino)?;
        let line = inode::encode(*ino, *generation, *head, *tail);
        words.extend([inode::STATE, HEAD, TAIL].map(|place| (block, at + place, get_u64(&line, place as usize))));
    }
    Ok(words)
}

/// What a lost line said, as far as that can be found.
fn place(store: &Store, ino: Ino) -> Result<Option<Place>> {
    let line = match store.read_inode(ino) {
        Err(Error::Damaged(Damage::Inode { .. })) => return Ok(None), // a store there could end the process
        line => line?,
    };
    if inode::decode(ino, &line).is_ok() {
        return Ok(None); // it is the log that is damaged
    }
    let pages = store.log_pages(|| salvage::all_pages(store))?;
    let pages = pages.get(&ino).map_or(&[][..], Vec::as_slice);
    // Pages of another volume that was here may have a later one.
    let said = Owner { id: ino.raw(), generation: 0 };
    let said = word::unseal_mended(said, Field::State, get_u64(&line, inode::STATE as usize));
    let said = said.filter(|state| state >> 32 == 1).map(|state| state as u32);
    let last = || pages.iter().map(|(generation, ..)| *generation).max();
    let Some(generation) = said.or_else(last) else { return Ok(None) };
    let own: BTreeMap<Block, u32> =
        pages.iter().filter(|page| page.0 == generation).map(|(_, sequence, at)| (*at, *sequence)).collect();
    let owner = Owner { id: ino.raw(), generation };
    let word =
        |field, at: u64| word::unseal_mended(owner, field, get_u64(&line, at as usize)).and_then(LogPos::from_raw);
    let (head, tail) = (word(Field::Head, HEAD), word(Field::Tail, TAIL));
    let mut before: BTreeMap<Block, Block> = BTreeMap::new();
    for (at, sequence) in &own {
        let next = page::next(store.read_block(*at)?.as_slice(), *at, generation);
        if let Some(next) = next.ok().filter(|next| own.get(next).is_some_and(|next| next > sequence)) {
            before.insert(next, *at);
        }
    }
    let leads: BTreeSet<Block> = before.values().copied().collect();
    let mut best = None;
    for last in own.keys().filter(|at| !leads.contains(at) || tail.is_some_and(|tail| tail.page == **at)) {
        let mut first = *last;
        while let Some(at) = before.get(&first).filter(|_| head.is_none_or(|head| head.page != first)) {
            first = *at;
        }
        let fits = head.is_none_or(|head| head.page == first) && tail.is_none_or(|tail| tail.page == *last);
        let Some(sequence) = own.get(last).filter(|_| fits) else { continue };
        let page = store.read_block(*last)?;
        let (end, time, ended) = end(page.as_slice(), Seal { ino, generation, sequence: *sequence }, first == *last);
        let Some(end) = end else { continue };
        let here = (time, ended, *sequence);
        if best.as_ref().is_none_or(|(before, _)| *before < here) {
            let tail = tail.unwrap_or(LogPos { page: *last, slot: end });
            best = Some((here, (generation, LogPos { page: first, slot: 1 }, tail)));
        }
    }
    Ok(best.map(|(_, place)| place))
}

/// The slot behind the last whole entry of a page, that entry's time, and whether the page has
/// attributes behind the first entry of the log: a log that is written anew ends with them.
fn end(page: &[u8], seal: Seal, is_first: bool) -> (Option<usize>, i64, bool) {
    let (mut end, mut last, mut ended, mut at) = (None, i64::MIN, false, 1);
    while at < SLOTS {
        let Ok((entry, slots, time)) = Entry::decode(page, seal, at) else {
            at += 1;
            continue;
        };
        ended |= matches!(entry, Entry::Attributes(..)) && !(is_first && at == 1);
        if entry == Entry::Pad {
            return (Some(SLOTS), last, ended);
        }
        (end, last, at) = (Some(at + slots), time, at + slots);
    }
    (end, last, ended)
}
