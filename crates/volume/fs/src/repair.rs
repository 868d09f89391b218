//! Repairing a volume that is damaged.
//!
//! **Problem.** After damage to one log nobody knows what a file held, or what a directory named;
//! the rest of the volume is whole.
//!
//! **Approach.** What is whole stays as it is. Whole inodes that only something damaged can have
//! named get a name in `lost+found`; names that stand for nothing, or for an inode whose line
//! cannot be read, go; another damaged inode with a name becomes an empty file or directory. The
//! last comes last: as long as a directory or a journal is damaged, neither a mount nor a later
//! repair takes the inodes without a name for orphans. So a repair can stop anywhere. It uses no
//! journal, as all may be damaged: each of its commits is of one inode.
//!
//! **Limits.** Of two inodes that say that they own a block one loses all it has, as nobody can
//! tell which one wrote the block; but a page of a log shows whose it is. File data is not looked
//! at.

use std::collections::{BTreeMap, BTreeSet};

use crate::alloc::{Allocator, Purpose};
use crate::checkpoint::Checkpoint;
use crate::commit::finish_journal;
use crate::dir::{FIRST_COOKIE, Named};
use crate::error::{Damage, Error, Result, UNREADABLE};
use crate::format::entry::{Attributes, Entry, Kind, Run};
use crate::format::{Block, Ino, get_u64, inode as line};
use crate::inode::{Inode, State};
use crate::lines;
use crate::log::{self, NO_TAIL};
use crate::mount::{self, Recovered};
use crate::ops::names_to_change;
use crate::scan::{self, BadName, Blocks, Inodes, SHARED, Tree, Use};
use crate::store::{Flushed, Store};
use crate::twins;
use crate::volume::{Locked, Options, Volume};

/// The directory for what has lost its name.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Names that are tried for it, where something else than a directory has the first ones.
const NAMES: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Files and directories that got a name in `lost+found`.
    pub found: usize,
    /// Damaged files and directories that are empty now.
    pub emptied: usize,
    /// Names that stood for nothing, and went.
    pub removed: usize,
    /// Files and directories that have lost entries of their logs, and keep the rest.
    pub kept: usize,
    /// Files and directories of which a flipped bit was put right, or the line was found again.
    pub mended: usize,
}

/// What a repair will drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Files and directories that become empty: nothing of their logs can be read.
    pub emptied: Vec<Ino>,
    /// Files and directories that become empty as another owns one of their blocks.
    pub shared: Vec<Ino>,
    /// Files and directories that lose what lines of their logs said, and how many lines.
    pub lines: Vec<(Ino, usize)>,
    /// Names that stand for nothing.
    pub names: usize,
    /// Blocks of file data that belong to another file by now.
    pub blocks: u64,
}

impl Losses {
    fn is_none(&self) -> bool {
        self.emptied.is_empty()
            && self.shared.is_empty()
            && self.lines.is_empty()
            && self.names == 0
            && self.blocks == 0
    }
}

/// A damaged inode that becomes empty.
#[derive(Debug)]
struct Empty {
    kind: Kind,
    links: u32,
    parent: Ino,
}

/// Repairs a volume if `agree` says so to what will be lost, and unmounts it.
pub fn repair(store: Store, agree: &mut dyn FnMut(&Losses) -> bool) -> Result<Option<Repaired>> {
    let options = Options::default();
    scan::number_mount(&store, (options.clock)())?;
    twins::mend(&store, twins::tables(&store))?;
    let (journals, damage) = scan::journals(&store)?;
    scan::check_journals(&store, &journals)?;
    for (at, records) in &journals {
        finish_journal(&store, *at, records, &Flushed::nothing().fence(&store)?)?;
    }
    let under_way = matches!(scan::state(&store), Ok(Use::Repairing));
    let names_lost = !damage.is_empty() || under_way;
    let superblock = store.superblock();
    let all = (0..superblock.regions.len()).flat_map(|region| superblock.journals_of(region)).count();
    // Nobody could change the volume afterwards.
    if damage.iter().filter(|damage| mount::is_unreadable(damage)).count() == all {
        return Err(damage.last().cloned().map_or(Error::NoSpace, Error::from));
    }
    let mut inodes = scan::inodes(&store, &Vec::new(), &|_, _| true)?;
    let lines = lines::find(&store, &mut inodes)?;
    twins::mend(&store, twins::pages(&inodes))?;
    let (mut tree, blocks) = settle(&store, &mut inodes, names_lost);
    // There is no other place for it, or for `lost+found`.
    if !scan::can_store(&store, Ino::ROOT) && (tree.astray.contains_key(&Ino::ROOT) || !tree.lost.is_empty()) {
        return Err(Damage::Inode { ino: Ino::ROOT, what: UNREADABLE }.into());
    }
    // What is in a line of which one of two copies has failed stays as it is.
    tree.gapped.retain(|ino| scan::can_store(&store, *ino));
    tree.flipped.retain(|ino| scan::can_store(&store, *ino));
    tree.links.retain(|(ino, _)| scan::can_store(&store, *ino));
    tree.bad.retain(|bad| scan::can_store(&store, bad.dir));
    let (empty, gone) = sort_out(&tree);
    let slots = |ino: &Ino| inodes.get(ino)?.state.as_ref().ok()?.gaps.as_ref().map(|gaps| gaps.slots);
    let shares = |ino: &Ino| {
        let found = inodes.get(ino).and_then(|found| found.state.as_ref().err());
        matches!(found, Some(Error::Damaged(Damage::Block { what: SHARED, .. })))
    };
    let (shared, emptied) = empty.keys().copied().partition(shares);
    let losses = Losses {
        emptied,
        shared,
        lines: tree.gapped.iter().map(|ino| (*ino, slots(ino).unwrap_or(0))).collect(),
        names: gone.len(),
        blocks: blocks.others.iter().map(|(_, _, count)| count).sum(),
    };
    if !losses.is_none() && !agree(&losses) {
        return Ok(None);
    }

    // From here on no checkpoint is right, and logs of which the blocks go to others are never read
    // again.
    // Until the end, what has no name may have lost it.
    let state = if names_lost || tree.names_lost { Use::Repairing } else { Use::Mounted };
    let mut words = vec![(scan::state_block(), 0, scan::state_word(state))];
    for ino in empty.keys() {
        let (block, at) = store.inode_at(*ino)?;
        words.extend([line::HEAD, line::TAIL].map(|place| (block, at + place, 0)));
    }
    store.commit(&words, &Flushed::nothing().fence(&store)?)?;
    let whole = |ino: &Ino| inodes.get(ino).is_some_and(|found| found.state.is_ok()) && scan::can_store(&store, *ino);
    let lines: BTreeMap<_, _> = lines.into_iter().filter(|(ino, _)| whole(ino)).collect();
    let words = lines::words(&store, &lines)?;
    if !words.is_empty() {
        store.commit(&words, &Flushed::nothing().fence(&store)?)?;
    }
    let stuck = !mount::free_orphans(&store, &mut inodes, &tree.orphans)?;

    // Damaged, and nameless once those names are gone.
    let nameless =
        gone.iter().filter(|bad| bad.damaged && !empty.contains_key(&bad.named.ino)).map(|bad| bad.named.ino);
    let nameless = nameless.filter(|ino| scan::can_store(&store, *ino));
    let nameless: Vec<(Ino, u32)> =
        nameless.filter_map(|ino| inodes.remove(&ino).map(|found| (ino, found.generation))).collect();
    let generations: BTreeMap<Ino, u32> =
        empty.keys().map(|ino| (*ino, inodes.get(ino).map_or(0, |found| found.generation))).collect();
    let used = scan::used_inodes(blocks.free.len(), inodes.keys().chain(empty.keys()));
    let parent = |(ino, found): (Ino, scan::Found)| Some((ino, found.state.ok()?.dir?.parent));
    let parents: Vec<(Ino, Ino)> = inodes.into_iter().filter_map(parent).collect();
    let parent_of: BTreeMap<Ino, Ino> = parents.iter().copied().collect();
    let checkpoint = Checkpoint { free: blocks.free, inodes: used, parents, long: Vec::new() };
    let mut volume = {
        let allocator = Allocator::new(store.superblock(), options.parts, &checkpoint.free);
        let slots = mount::slots(&store, &checkpoint.inodes);
        let found = Recovered { checkpoint, damage: damage.clone(), stuck, ..Recovered::default() };
        Volume::new(store, allocator, slots, found, options)
    };

    for ino in tree.gapped.iter().chain(&tree.flipped) {
        let others = blocks.others.iter().filter(|(whose, ..)| whose == ino).map(|(_, block, count)| (*block, *count));
        let others: Vec<(Block, u64)> = others.collect();
        volume.write_anew(*ino, parent_of.get(ino).copied(), &others)?;
    }
    let done = Repaired {
        found: tree.lost.len(),
        emptied: empty.len(),
        removed: gone.len(),
        kept: tree.gapped.len(),
        mended: tree.flipped.len() + lines.len(),
    };
    let place = if tree.lost.is_empty() { None } else { Some(volume.lost_and_found(empty.contains_key(&Ino::ROOT))?) };
    for (ino, links) in &tree.lost {
        volume.name_again(place.unwrap_or(Ino::ROOT), *ino, *links)?;
    }
    for bad in &gone {
        let dir = volume.inode(bad.dir)?;
        let entry = (bad.dir, Entry::Unlink { ino: bad.named.ino, name: &bad.name });
        let mut locked = Locked::new(&[&dir]);
        volume.commit(&mut locked, &[entry], volume.now(), Flushed::nothing(), Purpose::Freeing)?;
    }
    let named: BTreeSet<Ino> = tree.lost.iter().map(|(ino, _)| *ino).collect();
    for (ino, links) in tree.links.iter().filter(|(ino, _)| !named.contains(ino)) {
        let inode = volume.inode(*ino)?;
        let mut locked = Locked::new(&[&inode]);
        let attributes = Attributes { links: *links, ..locked.get(*ino)?.attributes };
        let entry = (*ino, Entry::Attributes(attributes, 0));
        volume.commit(&mut locked, &[entry], volume.now(), Flushed::nothing(), Purpose::Freeing)?;
    }
    for (ino, generation) in nameless {
        let (block, at) = volume.store.inode_at(ino)?;
        let word = (block, at + line::STATE, line::state_word(ino, false, generation));
        volume.store.commit(&[word], &Flushed::nothing().fence(&volume.store)?)?;
    }
    for (ino, empty) in &empty {
        let inside = place.filter(|_| *ino == Ino::ROOT);
        let generation = generations.get(ino).copied().unwrap_or(0).wrapping_add(1);
        volume.make_empty((*ino, generation), empty, inside)?;
    }
    mount::clear_journals(&volume.store, &damage)?;
    volume.forget_damage();
    volume.unmount()?;
    Ok(Some(done))
}

/// Takes what cannot be for damaged, until the rest can.
fn settle(store: &Store, inodes: &mut Inodes, names_lost: bool) -> (Tree, Blocks) {
    loop {
        let tree = scan::walk_lost(store, inodes, names_lost);
        let blocks = scan::blocks(store, inodes, &tree.orphans);
        let mut losers: BTreeMap<Ino, Damage> = BTreeMap::new();
        for damage in &blocks.damage {
            match damage {
                Damage::Block { what: SHARED, .. } => {}
                Damage::Block { ino, .. } | Damage::Inode { ino, .. } => {
                    losers.insert(*ino, damage.clone());
                }
                _ => {}
            }
        }
        for (block, one, other) in &blocks.twice {
            if losers.contains_key(one) || losers.contains_key(other) {
                continue;
            }
            let known = |ino: Ino| inodes.get(&ino).and_then(|found| found.state.as_ref().ok());
            // The one that loses: what has lost entries, what has no name, what does not have its
            // log there, the later one.
            let weak = |ino: Ino| {
                let known = known(ino);
                let (gaps, page) = (known.map(|k| k.gaps.is_some()), known.map(|k| k.has_page(*block)));
                (gaps, tree.adopted.contains(&ino), page != Some(true), ino)
            };
            let loser = if weak(*one) > weak(*other) { *one } else { *other };
            losers.insert(loser, Damage::Block { ino: loser, block: *block, what: SHARED });
        }
        if losers.is_empty() {
            // Nor can that become empty of which one of two copies has failed.
            let is_readable = |ino: &Ino| inodes.get(ino).is_some_and(|found| !found.is_unreadable());
            let stuck = sort_out(&tree).0.into_keys().filter(|ino| !scan::can_store(store, *ino) && is_readable(ino));
            losers.extend(stuck.map(|ino| (ino, Damage::Inode { ino, what: UNREADABLE })));
        }
        if losers.is_empty() {
            return (tree, blocks);
        }
        for (ino, damage) in losers {
            if let Some(found) = inodes.get_mut(&ino) {
                found.state = Err(damage.into());
            }
        }
    }
}

/// What becomes empty, and the names that go.
fn sort_out(tree: &Tree) -> (BTreeMap<Ino, Empty>, Vec<&BadName>) {
    let (mut empty, mut gone) = (BTreeMap::new(), Vec::new());
    if tree.astray.contains_key(&Ino::ROOT) {
        empty.insert(Ino::ROOT, Empty { kind: Kind::Directory, links: 2, parent: Ino::ROOT });
    }
    for bad in &tree.bad {
        let Named { ino, kind, .. } = bad.named;
        match (kind, empty.get_mut(&ino)) {
            (Kind::File | Kind::Directory, None) if bad.damaged => {
                empty.insert(ino, Empty { kind, links: 1, parent: bad.dir });
            }
            (Kind::File, Some(Empty { kind: Kind::File, links, .. })) => *links += 1,
            _ => gone.push(bad),
        }
    }
    (empty, gone)
}

impl Volume {
    /// The directory for what has lost its name: the one that there is, or a new one, which the
    /// root does not name yet where that is damaged itself.
    fn lost_and_found(&self, rootless: bool) -> Result<Ino> {
        let mut name = LOST_AND_FOUND.to_vec();
        for again in 1..=NAMES {
            let there = if rootless { Err(Error::NotFound) } else { self.lookup(Ino::ROOT, &name) };
            // A name that stands for nothing is there until the repair has removed it.
            let taken = || -> Result<bool> {
                let root = self.inode(Ino::ROOT)?;
                Ok(root.read().dir.as_ref().is_some_and(|names| names.get(&name).is_some()))
            };
            let taken = matches!(there, Err(Error::NotFound)) && !rootless && taken()?;
            match there {
                Ok(stat) if stat.kind == Kind::Directory && scan::can_store(&self.store, stat.ino) => {
                    return Ok(stat.ino);
                }
                Err(Error::NotFound) if !taken => {
                    let ino = self.new_directory()?;
                    if !rootless {
                        self.add_name(Ino::ROOT, ino, &name, None)?;
                    }
                    return Ok(ino);
                }
                Ok(_) | Err(Error::Damaged(_) | Error::NotFound) => {
                    name = [LOST_AND_FOUND, format!(".{again}").as_bytes()].concat();
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Exists)
    }

    /// An empty directory that only root can use and that has no name. As it frees nothing, it may
    /// use the reserve: the volume is of no use without it.
    fn new_directory(&self) -> Result<Ino> {
        loop {
            let ino = self.take_slot(self.regions.nearest(0))?;
            let old = match self.store.read_inode(ino) {
                Err(Error::Damaged(_)) => continue,
                old => old?,
            };
            if let Ok(line::Inode::Free(generation)) = line::decode(ino, &old)
                && scan::can_store(&self.store, ino)
            {
                let empty = Empty { kind: Kind::Directory, links: 2, parent: Ino::ROOT };
                self.make_empty((ino, generation.wrapping_add(1)), &empty, None)?;
                return Ok(ino);
            }
        }
    }

    /// Names something that has no name, after its number.
    fn name_again(&self, dir: Ino, ino: Ino, links: u32) -> Result<()> {
        for again in 0..NAMES {
            let end = if again == 0 { String::new() } else { format!(".{again}") };
            match self.add_name(dir, ino, format!("#{ino}{end}").as_bytes(), Some(links)) {
                Err(Error::Exists) => {}
                done => return done,
            }
        }
        Err(Error::Exists)
    }

    fn add_name(&self, dir: Ino, ino: Ino, name: &[u8], links: Option<u32>) -> Result<()> {
        let (dir, inode) = (self.inode(dir)?, self.inode(ino)?);
        let mut locked = Locked::new(&[&dir, &inode]);
        let attributes = locked.get(ino)?.attributes;
        let names = names_to_change(locked.get(dir.ino)?)?;
        if names.get(name).is_some() {
            return Err(Error::Exists);
        }
        let link = (dir.ino, Entry::Link { ino, cookie: names.new_cookie()?, kind: inode.kind, name });
        // One after the other: both at once takes a journal. What has no name may say that it has
        // any number.
        let number = |links| (ino, Entry::Attributes(Attributes { links, ..attributes }, 0));
        let counts = inode.kind != Kind::Directory && scan::can_store(&self.store, ino);
        let number = links.filter(|_| counts).map(number);
        for entry in number.into_iter().chain([link]) {
            self.commit(&mut locked, &[entry], self.now(), Flushed::nothing(), Purpose::Freeing)?;
        }
        if let Some(names) = &mut locked.get_mut(ino)?.dir {
            names.parent = dir.ino;
        }
        Ok(())
    }

    /// Writes a new log that says what can be read of the old one, but for blocks that are others'.
    /// The new head is stored before the new tail: in between the log is damaged, but behind its
    /// head there is all that it says, and nothing behind it leads to the old tail, as no sequence
    /// is larger.
    fn write_anew(&self, ino: Ino, parent: Option<Ino>, others: &[(Block, u64)]) -> Result<()> {
        /// More than pages of one log can be apart.
        const AHEAD: u32 = 1024;
        let (generation, mut state) = scan::inode(&self.store, ino, true)?;
        state.gaps = None;
        if let (Some(dir), Some(parent)) = (&mut state.dir, parent) {
            dir.parent = parent;
        }
        for (block, count) in others {
            let apart = |run: &Run| {
                run.block.region() != block.region()
                    || run.block.index() >= block.index() + count
                    || block.index() >= run.block.index() + run.count
            };
            let runs: Vec<Run> = state.extents.iter().filter(|run| !apart(run)).collect();
            for run in runs {
                let from = run.block.index().max(block.index());
                let to = (run.block.index() + run.count).min(block.index() + count);
                state.extents.remove(run.file_block + from - run.block.index(), to - from, &mut Vec::new());
            }
        }
        let pages = self.log_pages(self.regions.nearest(ino.region()), Purpose::Cleaning);
        let after = (state.log.sequence.saturating_add(AHEAD), NO_TAIL);
        let mut new = log::Appended::after(&self.allocator, after);
        let xattrs = state.all_xattrs(&self.store, (ino, generation))?;
        state
            .entries(&xattrs)
            .try_for_each(|(entry, time)| new.push(&self.store, pages, (ino, generation), (&entry, time)))?;
        let durable = std::mem::take(&mut new.dirty).flush(&self.store)?.fence(&self.store)?;
        let (block, at) = self.store.inode_at(ino)?;
        let line = line::encode(ino, generation, new.head(), new.tail);
        let word = |place: u64| (block, at + place, get_u64(&line, place as usize));
        let durable = self.store.commit(&[word(line::HEAD)], &durable)?;
        let durable = self.store.commit(&[word(line::TAIL)], &durable)?;
        self.store.commit(&[word(line::STATE)], &durable)?; // of which a bit may have flipped
        let old = std::mem::replace(&mut state.log, new.into_log());
        old.pages.iter().for_each(|page| self.allocator.free(*page, 1));
        self.add_read(Inode::found(ino, generation, state)?);
        Ok(())
    }

    /// Begins a life of an inode as something empty; `inside` is what an empty root names.
    fn make_empty(&self, (ino, generation): (Ino, u32), empty: &Empty, inside: Option<Ino>) -> Result<()> {
        let time = self.now();
        let permissions = match (ino, empty.kind) {
            (Ino::ROOT, _) => 0o755,
            (_, Kind::Directory) => 0o700,
            _ => 0,
        };
        let attributes = Attributes {
            mode: empty.kind.mode_bits() | permissions,
            uid: 0,
            gid: 0,
            links: empty.links,
            atime: time,
            mtime: time,
            ctime: time,
            rdev: 0,
        };
        let (cookie, kind) = (FIRST_COOKIE, Kind::Directory);
        let link = inside.map(|ino| Entry::Link { ino, cookie, kind, name: LOST_AND_FOUND });
        let entries: Vec<_> = std::iter::once(Entry::Attributes(attributes, 0)).chain(link).collect();
        let pages = self.log_pages(self.regions.nearest(ino.region()), Purpose::Freeing);
        let timed = entries.iter().map(|entry| (entry, time));
        let mut log = log::append(&self.store, pages, (ino, generation), (0, NO_TAIL), timed)?;
        let durable = std::mem::take(&mut log.dirty).flush(&self.store)?.fence(&self.store)?;
        let (block, at) = self.store.inode_at(ino)?;
        let new = line::encode(ino, generation, log.head(), log.tail);
        let words =
            [line::HEAD, line::TAIL, line::STATE].map(|place| (block, at + place, get_u64(&new, place as usize)));
        self.store.commit(&words, &durable)?;
        let mut state = State::new(log.into_log());
        for entry in &entries {
            state.apply(entry, time, &mut Vec::new()).map_err(Error::Invalid)?;
        }
        if let Some(dir) = &mut state.dir {
            dir.parent = empty.parent;
        }
        self.add_inode(Inode::new(ino, generation, empty.kind, state));
        Ok(())
    }
}
