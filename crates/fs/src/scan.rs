//! Reading a whole volume: what mount and fsck have in common.
//!
//! **Problem.** After a crash the indexes in DRAM are gone, and what the medium holds may be the work of an operation
//! that never ended, or damage.
//!
//! **Approach.** Every inode in use is replayed; a walk from the root finds which ones are named; what is named must be
//! whole, and owns its blocks alone. What is not named is an orphan, whatever state it is in.
//!
//! **Limits.** All inodes are read, in one thread: the time grows with the volume.

use std::collections::BTreeMap;

use crate::alloc::Allocator;
use crate::dir::Dir;
use crate::error::{Damage, Error, Result};
use crate::format::entry::Kind;
use crate::format::inode::{self, Inode as Line};
use crate::format::superblock::STATE_BLOCK;
use crate::format::word::{self, Field, Owner};
use crate::format::{BLOCK, BLOCK_BYTES, Block, Ino, LINE, LogPos, journal, put};
use crate::inode::State;
use crate::log::{self, Log};
use crate::store::Store;

/// The state word's payload.
pub const CLEAN: u64 = 1;
/// The volume is mounted, or was when the machine stopped.
pub const MOUNTED: u64 = 2;

/// The state word with this payload.
pub fn state_word(state: u64) -> u64 {
    word::seal(Owner { id: STATE_BLOCK, generation: 0 }, Field::State, state)
}

/// Where the state word is.
pub fn state_block() -> Block {
    Block::new(0, STATE_BLOCK)
}

/// Whether the volume was unmounted.
pub fn is_clean(store: &Store) -> Result<bool> {
    let word = store.load_word(state_block(), 0)?;
    let state = word::unseal(Owner { id: STATE_BLOCK, generation: 0 }, Field::State, word).ok_or(Damage::State)?;
    match state {
        CLEAN => Ok(true),
        MOUNTED => Ok(false),
        _ => Err(Damage::State.into()),
    }
}

/// An inode that is in use.
#[derive(Debug)]
pub struct Found {
    /// Which life of the number this is, as far as known.
    pub generation: u32,
    /// What its log says, or why it cannot be read.
    pub state: Result<State>,
}

/// All inodes in use, whether named or not.
pub type Inodes = BTreeMap<Ino, Found>;

/// Journals that were committed, and their records.
pub type Journals = Vec<(Block, Vec<journal::Record>)>;

/// The journals that were committed and not finished.
pub fn journals(store: &Store) -> Result<Journals> {
    let superblock = store.superblock();
    let mut found = Vec::new();
    for at in (0..superblock.regions.len()).flat_map(|region| superblock.journals_of(region)) {
        let block = store.read_block(at)?;
        let records = journal::decode(at, block.as_slice()).map_err(|what| Damage::Journal { block: at, what })?;
        if records.iter().any(|record| superblock.inode_at(record.ino).is_none()) {
            return Err(
                Damage::Journal { block: at, what: "a record names an inode that the volume does not have" }.into()
            );
        }
        if !records.is_empty() {
            found.push((at, records));
        }
    }
    Ok(found)
}

/// Reads all inodes, as they are once `journals` are finished. Fails only when the medium does.
pub fn inodes(store: &Store, journals: &Journals) -> Result<Inodes> {
    let pending: Vec<_> = journals.iter().flat_map(|(_, records)| records).collect();
    let mut found = Inodes::new();
    for (region, layout) in store.superblock().regions.iter().enumerate() {
        for first in (0..layout.inodes).step_by(inode::PER_BLOCK as usize) {
            let Some((at, _)) = store.superblock().inode_at(Ino::new(region, first.max(1) as u32)) else { continue };
            let mut block = store.read_block(at)?;
            for (slot, line) in (first..layout.inodes).zip(block.chunks_exact_mut(LINE)).filter(|(slot, _)| *slot != 0)
            {
                let ino = Ino::new(region, slot as u32);
                for record in pending.iter().filter(|record| record.ino == ino) {
                    put(line, record.place() as usize, &record.word.to_le_bytes());
                }
                match inode::decode(ino, line) {
                    Ok(Line::Free(_)) => {}
                    Ok(Line::Used { generation, head, tail }) => {
                        let state = replay(store, (ino, generation), head, tail);
                        found.insert(ino, Found { generation, state });
                    }
                    Err(what) => {
                        let generation = crate::format::get_u32(line, 0);
                        found.insert(ino, Found { generation, state: Err(Damage::Inode { ino, what }.into()) });
                    }
                }
            }
        }
    }
    Ok(found)
}

fn replay(store: &Store, whose: (Ino, u32), head: LogPos, tail: LogPos) -> Result<State> {
    let mut state = State::new(Log { pages: Vec::new(), sequence: 0, tail });
    let mut freed = Vec::new();
    let log = log::replay(store, whose, head, tail, |entry, time| {
        freed.clear();
        if let crate::format::entry::Entry::Extent(run, _) = entry
            && !store.superblock().is_data(run.block, run.count)
        {
            return Err("an extent is outside of its region");
        }
        state.apply(entry, time, &mut freed)
    })?;
    if Kind::of_mode(state.attributes.mode).is_none() {
        return Err(Damage::Inode { ino: whose.0, what: "its log is empty" }.into());
    }
    state.log = log;
    Ok(state)
}

/// What is wrong with the tree, and which inodes are orphans.
#[derive(Debug, Default)]
pub struct Tree {
    /// Everything that cannot be true.
    pub damage: Vec<Damage>,
    /// Inodes that no directory names.
    pub orphans: Vec<Ino>,
}

/// Walks from the root: finds the orphans, checks names against inodes, and tells directories their parents.
pub fn walk(found: &mut Inodes) -> Tree {
    let mut tree = Tree::default();
    let mut names: BTreeMap<Ino, u32> = BTreeMap::from([(Ino::ROOT, 1)]);
    let mut todo = vec![(Ino::ROOT, Ino::ROOT)];
    match found.get(&Ino::ROOT).map(|f| f.state.as_ref().map(|s| s.dir.is_some())) {
        Some(Ok(true)) => {}
        Some(Err(Error::Damaged(damage))) => tree.damage.push(damage.clone()),
        _ => tree.damage.push(Damage::Inode { ino: Ino::ROOT, what: "there is no root directory" }),
    }
    while let Some((ino, parent)) = todo.pop() {
        let Some(Ok(state)) = found.get_mut(&ino).map(|f| f.state.as_mut()) else { continue };
        let Some(mut dir) = state.dir.take() else { continue };
        dir.parent = parent;
        for (name, named) in dir.after(0) {
            let seen = names.entry(named.ino).or_insert(0);
            *seen += 1;
            match check_name(found, named.ino, named.kind, *seen) {
                Ok(()) if named.kind == Kind::Directory => todo.push((named.ino, ino)),
                Ok(()) => {}
                Err(what) => {
                    let name = String::from_utf8_lossy(name).into_owned();
                    tree.damage.push(Damage::Name { ino, name, what });
                }
            }
        }
        put_back(found, ino, dir);
    }
    for (ino, found) in found.iter() {
        let (Some(seen), Ok(state)) = (names.get(ino), &found.state) else { continue };
        if state.dir.is_none() && state.attributes.links != *seen {
            tree.damage.push(Damage::Inode { ino: *ino, what: "its number of names is wrong" });
        }
    }
    tree.orphans = found.keys().filter(|ino| !names.contains_key(ino)).copied().collect();
    tree
}

fn put_back(found: &mut Inodes, ino: Ino, dir: Dir) {
    if let Some(Ok(state)) = found.get_mut(&ino).map(|f| f.state.as_mut()) {
        state.dir = Some(dir);
    }
}

fn check_name(found: &Inodes, ino: Ino, kind: Kind, seen: u32) -> std::result::Result<(), &'static str> {
    let Some(target) = found.get(&ino) else { return Err("stands for an inode that is free") };
    let Ok(state) = &target.state else { return Err("stands for an inode that is damaged") };
    if Kind::of_mode(state.attributes.mode) != Some(kind) {
        return Err("stands for an inode of another kind");
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
    let states = named.filter_map(|(_, found)| found.state.as_ref().ok());
    let written = states.flat_map(|state| state.extents.iter()).filter(|run| !run.unwritten);
    let mut contents = [0; BLOCK];
    for block in written.flat_map(|run| (0..run.count).map(move |i| run.block.offset(i))) {
        match store.read_data(block, 0, &mut contents) {
            Err(Error::Damaged(found)) => damage.push(found),
            done => done?,
        }
    }
    Ok(damage)
}

/// Claims the blocks of every named inode: logs and data.
pub fn claim(store: &Store, found: &Inodes, orphans: &[Ino], allocator: &Allocator) -> Vec<Damage> {
    let mut damage = Vec::new();
    for (ino, found) in found.iter().filter(|(ino, _)| orphans.binary_search(ino).is_err()) {
        let Ok(state) = &found.state else { continue };
        let pages = state.log.pages.iter().map(|page| (*page, 1));
        for (block, count) in pages.chain(state.extents.iter().map(|run| (run.block, run.count))) {
            if !store.superblock().is_data(block, count) || !allocator.claim(block, count) {
                damage.push(Damage::Block { ino: *ino, block, what: "has a second owner" });
            }
        }
        let written_to = state.extents.iter().filter(|run| !run.unwritten).last().map_or(0, |run| run.end());
        if written_to > state.size.div_ceil(BLOCK_BYTES) {
            damage.push(Damage::Inode { ino: *ino, what: "it has data beyond its size" });
        }
    }
    damage
}
