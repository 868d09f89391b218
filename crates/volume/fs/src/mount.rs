//! Mounting: which regions make the volume, and recovery.
//!
//! **Problem.** A crash can come at any store, also at those of recovery itself.
//!
//! **Approach.** Recovery writes as little as it can, and each step only takes away work: it
//! finishes committed journals, then frees orphans. Stopped anywhere, it does the rest the next
//! time. The order ([`recover`]): the mount is numbered (`number_mount`, the one store that begins
//! something); twins of tables are made alike, journals finished, twins of pages made alike; names
//! are walked; who owns each block is found; orphans are freed; last comes the state word. Any
//! damage empties the lists of free blocks.
//!
//! Damage stops nobody: what is damaged gives an error at use, and a volume that is changed
//! nevertheless gives away no block that something damaged may own.
//!
//! After a clean unmount only its checkpoint is read. In both cases an inode's log is read when the
//! inode is first used.
//!
//! **Limits.** See `scan` for recovery, `checkpoint` for the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::alloc::Allocator;
use crate::checkpoint::{self, Checkpoint};
use crate::commit::finish_journal;
use crate::dir::Named;
use crate::error::{Damage, Error, Result, UNREADABLE};
use crate::format::entry::{Attributes, Entry, Kind};
use crate::format::inode;
use crate::format::superblock::{self, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES, Ino};
use crate::inode::{Inode, State};
use crate::lines;
use crate::log::{Log, NO_TAIL};
use crate::medium::{At, Medium, Overlay};
use crate::placement::Placement;
use crate::scan::{self, Found, Inodes, Journals, Use};
use crate::store::{Flushed, Store};
use crate::sync::lock;
use crate::twins;
use crate::volume::{Options, Slots, Volume};

/// The superblock of one region: the first copy that is valid.
pub fn superblock_of(medium: &dyn Medium, region: usize) -> Result<Superblock> {
    first_valid(medium.len(region), |offset, block| medium.read(At { region, offset }, block).is_ok())
        .map_err(|why| Error::NotAVolume(format!("region {region}: {why}")))
}

/// The first copy of a superblock in so many bytes that `read` finds at its offset and that is
/// valid, or why there is none.
pub(crate) fn first_valid(
    len: u64,
    read: impl Fn(u64, &mut [u8; BLOCK]) -> bool,
) -> std::result::Result<Superblock, &'static str> {
    let mut why = None;
    for copy in superblock::copies(len / BLOCK_BYTES) {
        let mut block = [0; BLOCK];
        if read(copy * BLOCK_BYTES, &mut block) {
            match Superblock::decode(&block) {
                Ok(found) => return Ok(found),
                // The first copy says most.
                Err(what) => _ = why.get_or_insert(what),
            }
        }
    }
    Err(why.unwrap_or("the region is too small, or cannot be read"))
}

/// Checks that the regions of `medium` are those of one volume, in order.
pub fn open(medium: Box<dyn Medium>) -> Result<Store> {
    (0..medium.regions()).try_for_each(|region| superblock_of(&*medium, region).map(drop))?;
    open_lacking(medium)
}

/// The same, but regions of which no superblock can be read are taken for what their places say, as
/// long as there is one that can.
pub fn open_lacking(medium: Box<dyn Medium>) -> Result<Store> {
    let known = (0..medium.regions()).find_map(|region| superblock_of(&*medium, region).ok());
    let first = known.map_or_else(|| superblock_of(&*medium, 0), Ok)?;
    for region in 0..medium.regions() {
        let Ok(own) = superblock_of(&*medium, region) else { continue };
        if own.volume != first.volume {
            return Err(Error::NotAVolume(format!("region {region} belongs to another volume than region 0")));
        }
        if own.index != region {
            return Err(Error::NotAVolume(format!("region {} was given as region {region}", own.index)));
        }
        if own.regions != first.regions || own.journals != first.journals || own.features != first.features {
            return Err(Error::NotAVolume(format!("region {region} describes the volume otherwise than region 0")));
        }
        let needed = first.regions.get(region).map_or(0, |r| r.blocks * BLOCK_BYTES);
        if medium.len(region) < needed {
            let len = medium.len(region);
            return Err(Error::NotAVolume(format!("region {region} has {len} of {needed} bytes")));
        }
    }
    if medium.regions() != first.regions.len() {
        let (given, all) = (medium.regions(), first.regions.len());
        return Err(Error::NotAVolume(format!("{given} of its {all} regions were given")));
    }
    let unknown = (0..medium.regions()).filter(|region| !medium.is_missing(*region));
    let unknown = unknown.map(|region| superblock_of(&*medium, region)).find_map(std::result::Result::err);
    let store = Store::new(medium, first);
    match scan::mount_numbers(&store) {
        // It is another volume's, or nothing's.
        Err(Error::NotAVolume(why)) => Err(unknown.unwrap_or(Error::NotAVolume(why))),
        numbers => numbers.map(|_| store),
    }
}

/// What is said of a region that is not there.
pub(crate) const MISSING: &str = "the region is missing, or nothing of it can be read: what is there gives EIO";

/// What a mount found.
#[derive(Default)]
pub(crate) struct Recovered {
    /// What an unmount would have written down.
    pub checkpoint: Checkpoint,
    pub damage: Vec<Damage>,
    /// Inodes that are not to be used, and why.
    pub damaged: BTreeMap<Ino, Damage>,
    /// What has lost its name, where the volume is only looked at.
    pub lost: Vec<(Ino, Kind)>,
    /// Journals that nobody uses, as they cannot be read; nothing is under way in them.
    pub unused: Vec<Damage>,
    /// Inodes without a name that a kernel may know.
    pub orphans: Vec<Ino>,
    /// Other ones are left, as their lines have failed: no checkpoint is right.
    pub stuck: bool,
}

impl Volume {
    /// Mounts a volume, after recovering it from a crash. Where that finds damage,
    /// [`Volume::damage`] says so: what is damaged gives [`Error::Damaged`] at use, and every block
    /// that no log owns counts as used, as it may belong to what is damaged. Fails where the root
    /// directory is damaged.
    pub fn mount(medium: Box<dyn Medium>, options: Options) -> Result<Self> {
        let store = open(medium)?;
        check_features(store.superblock())?;
        check_placement(store.superblock(), &options)?;
        let state = scan::state(&store)?;
        if state == Use::Repairing || scan::mount_numbers(&store)?.contains(&None) {
            return Err(Damage::State.into());
        }
        // Its server died with it.
        if options.inherits && state != Use::Mounted {
            return Err(Error::NotAVolume("it was in use elsewhere since its server died".into()));
        }
        scan::number_mount(&store, (options.clock)())?;
        if state == Use::Mounted {
            twins::mend(&store, twins::tables(&store))?;
        }
        let (journals, damage) = scan::journals(&store)?;
        scan::check_journals(&store, &journals)?;
        // Nothing is under way in a volume that was unmounted.
        if state != Use::Mounted && !damage.is_empty() {
            clear_journals(&store, &damage)?;
        }
        // Without a root, what it named has to be found.
        let has_root = scan::inode(&store, Ino::ROOT, true).is_ok();
        let mut found = match read_checkpoint(&store, state, &journals)?.filter(|_| has_root) {
            Some(checkpoint) => Recovered { checkpoint, ..Recovered::default() },
            None if state == Use::Mounted => recover(&store, &journals, damage.clone(), (true, options.inherits))?,
            None => recover(&store, &journals, Vec::new(), (true, options.inherits))?,
        };
        if state != Use::Mounted {
            found.unused = damage.into_iter().filter(is_unreadable).collect();
            let nothing = Flushed::nothing().fence(&store)?;
            store.commit(&[(scan::state_block(), 0, scan::state_word(Use::Mounted))], &nothing)?;
        }
        let volume = Self::with(store, found, options)?;
        volume.load_quotas();
        Ok(volume)
    }

    /// Mounts a volume for reading only, and stores nothing: recovery happens in memory. Where it
    /// finds damage, [`Volume::damage`] says so, and everything that can be reached otherwise can
    /// be read.
    pub fn look(medium: Box<dyn Medium>, options: Options) -> Result<Self> {
        let lost: Vec<usize> = (0..medium.regions()).filter(|region| medium.is_missing(*region)).collect();
        let store = open_lacking(Box::new(Overlay::new(Arc::<dyn Medium>::from(medium))))?;
        // Those of which the metadata is lost, too.
        let missing: Vec<usize> = (0..store.superblock().regions.len()).filter(|r| store.is_missing(*r)).collect();
        check_placement(store.superblock(), &options)?;
        let state = match scan::state(&store) {
            Err(Error::Damaged(_)) | Ok(Use::Repairing) => Use::Mounted,
            state => state?,
        };
        let (journals, mut damage) = scan::journals(&store)?;
        damage.retain(|damage| !matches!(damage, Damage::Journal { block, .. } if missing.contains(&block.region())));
        // What a root or a directory that is lost had named has to be found.
        let has_all = missing.is_empty() && damage.is_empty() && scan::inode(&store, Ino::ROOT, true).is_ok();
        let mut found = match read_checkpoint(&store, state, &journals)?.filter(|_| has_all) {
            Some(checkpoint) => Recovered { checkpoint, ..Recovered::default() },
            None => recover(&store, &journals, damage, (false, false))?,
        };
        store.freeze();
        found.damage.splice(..0, lost.iter().map(|region| Damage::Superblock { region: *region, what: MISSING }));
        let (lost, rootless) = (std::mem::take(&mut found.lost), found.damaged.contains_key(&Ino::ROOT));
        let volume = Self::with(store, found, options)?;
        if rootless || !lost.is_empty() {
            volume.name_lost(&lost, rootless)?;
        }
        Ok(volume)
    }

    /// Names what has lost its name in the root, after its number, where the volume is only looked
    /// at; in a root of its own where nothing of that can be read.
    fn name_lost(&self, lost: &[(Ino, Kind)], rootless: bool) -> Result<()> {
        if rootless {
            let time = self.now();
            let mode = Kind::Directory.mode_bits() | 0o755;
            let (uid, gid, links, rdev) = (0, 0, 2, 0);
            let attributes = Attributes { mode, uid, gid, links, atime: time, mtime: time, ctime: time, rdev };
            let mut state = State::new(Log::none(NO_TAIL));
            state.apply(&Entry::Attributes(attributes, 0), time, &mut Vec::new()).map_err(Error::Invalid)?;
            self.add_inode(Inode::new(Ino::ROOT, 0, Kind::Directory, state));
        }
        let root = self.inode(Ino::ROOT)?;
        let mut state = root.write();
        let Some(names) = &mut state.dir else { return Ok(()) };
        for (ino, kind) in lost {
            let cookie = names.new_cookie()?;
            names.insert(format!("#{ino}").as_bytes(), Named { ino: *ino, kind: *kind, cookie });
        }
        Ok(())
    }

    fn with(store: Store, mut found: Recovered, options: Options) -> Result<Self> {
        let allocator = Allocator::new(store.superblock(), options.parts, &found.checkpoint.free);
        let allocator = allocator.without(store.failed());
        let slots = slots(&store, &found.checkpoint.inodes);
        let why = found.damage.iter().chain(&found.unused).next().cloned();
        let inherits = options.inherits && !store.is_frozen();
        let inodes = if inherits { found.checkpoint.inodes.clone() } else { Vec::new() };
        let orphans = std::mem::take(&mut found.orphans);
        let mut volume = Self::new(store, allocator, slots, found, options);
        if inherits {
            volume.take_over(&inodes, &orphans)?;
        }
        match why.filter(|_| volume.journals.is_empty() && !volume.is_look()) {
            Some(damage) => Err(damage.into()),
            None => Ok(volume),
        }
    }

    /// Ends the use of a volume, and writes down what the next mount need not find out, as far as
    /// there is room. Dropping it instead is like a crash: nothing is lost, but the next mount
    /// reads all logs. So it does where this one found damage, or removed the name of something
    /// damaged, which leaves an orphan, or took no block back whose memory has failed, or could not
    /// make both copies of something alike.
    pub fn unmount(self) -> Result<()> {
        if self.store.is_frozen() {
            return Ok(());
        }
        // After a commit in doubt, blocks that look free may hold data.
        self.store.check_writable()?;
        self.close_all()?;
        if !self.damage().is_empty() {
            return Ok(());
        }
        self.give_back_all();
        // Who frees an inode waits for nothing, and this thread's fence only for what it flushes:
        // one that the medium still has in use would never be used again.
        let (mut freed, mut all) = (Flushed::nothing(), true);
        for (region, slots) in self.slots.iter().enumerate() {
            for slot in &lock(slots).free {
                let (block, line) = self.store.inode_at(Ino::new(region, *slot))?;
                match self.store.flush_line(block, line) {
                    Err(Error::Io(_)) => all = false, // it may be an orphan
                    flushed => freed = freed.and(flushed?),
                }
            }
        }
        let checkpoint = self.checkpoint();
        let blocks = checkpoint.places();
        let known = all && !self.orphaned.load(Ordering::Acquire) && !self.allocator.has_lost();
        let write = blocks.len() == checkpoint.blocks() && known;
        let (durable, state) = match blocks.first().filter(|_| write) {
            _ if self.store.is_one_sided() => (freed.fence(&self.store)?, Use::Mounted),
            None => (freed.fence(&self.store)?, Use::Clean),
            Some(first) => match checkpoint.write(&self.store, &blocks, self.now() as u64) {
                // A free block has failed: the next mount reads the logs.
                Err(Error::Io(_)) => (freed.fence(&self.store)?, Use::Clean),
                dirty => (freed.and(dirty?.flush(&self.store)?).fence(&self.store)?, Use::Checkpoint(*first)),
            },
        };
        self.store.commit(&[(scan::state_block(), 0, scan::state_word(state))], &durable)?;
        Ok(())
    }
}

/// Whether this version may write to a volume.
pub(crate) fn check_features(superblock: &Superblock) -> Result<()> {
    let unknown = superblock.ro_features & !superblock::DATA_CHECKSUMS;
    if unknown == 0 { Ok(()) } else { Err(Error::NotAVolume("made by a later version of homenode".into())) }
}

fn check_placement(superblock: &Superblock, options: &Options) -> Result<()> {
    match options.placement {
        Placement::Node(node) if superblock.regions.iter().all(|region| region.node != Some(node)) => {
            Err(Error::NoRegionOnNode(node))
        }
        _ => Ok(()),
    }
}

fn read_checkpoint(store: &Store, state: Use, journals: &Journals) -> Result<Option<Checkpoint>> {
    match state {
        Use::Checkpoint(at) if journals.is_empty() => Checkpoint::read(store, at),
        _ => Ok(None),
    }
}

/// A journal that cannot be read.
pub(crate) fn is_unreadable(damage: &Damage) -> bool {
    matches!(damage, Damage::Journal { what, .. } if *what == UNREADABLE)
}

/// Empties journals that are damaged. Those that cannot be read stay.
pub(crate) fn clear_journals(store: &Store, damage: &[Damage]) -> Result<()> {
    for damage in damage.iter().filter(|damage| !is_unreadable(damage)) {
        if let Damage::Journal { block, .. } = damage {
            store.end_journal(*block, &Flushed::nothing().fence(store)?)?;
        }
    }
    Ok(())
}

/// Reads the whole volume, after finishing what a crash interrupted: what an unmount would have
/// written down, and `damage` with what else is damaged. Orphans are freed, unless a damaged
/// directory may have named them, or the volume `inherits` what a kernel knows. Where it is
/// `changed` later, nothing is given away that something damaged may own.
fn recover(
    store: &Store,
    journals: &Journals,
    damage: Vec<Damage>,
    (changed, inherits): (bool, bool),
) -> Result<Recovered> {
    for (at, records) in journals {
        finish_journal(store, *at, records, &Flushed::nothing().fence(store)?)?;
    }
    let mut inodes = scan::inodes(store, &Vec::new(), &|_, _| true)?;
    if changed {
        twins::mend(store, twins::pages(&inodes))?;
    }
    // What is only looked at may be guessed.
    let lines = if changed { BTreeMap::new() } else { lines::find(store, &mut inodes)? };
    let words = lines::words(store, &lines)?;
    if !words.is_empty() {
        store.commit(&words, &Flushed::nothing().fence(store)?)?;
    }
    let mut tree =
        if changed { scan::walk(store, &mut inodes) } else { scan::walk_lost(store, &mut inodes, !damage.is_empty()) };
    let kind = |ino: &Ino| Some((*ino, inodes.get(ino)?.state.as_ref().ok()?.kind));
    let lost = tree.lost.iter().filter_map(|(ino, _)| kind(ino)).collect();
    let whole = |ino: &Ino| inodes.get(ino).is_some_and(|found| found.state.is_ok());
    // Where names are lost they stay anyway.
    let taken = inherits && damage.is_empty() && !tree.names_lost;
    let mut orphans = if taken { std::mem::take(&mut tree.orphans) } else { Vec::new() };
    orphans.retain(whole);
    let mut blocks = scan::blocks(store, &inodes, &tree.orphans);
    // A drain was giving a file another number: both have its blocks, and no kernel knows the one
    // without a name.
    let twice: BTreeSet<Ino> = blocks.twice.iter().flat_map(|(_, one, other)| [*one, *other]).collect();
    if orphans.iter().any(|ino| twice.contains(ino)) {
        (tree.orphans, orphans) = orphans.into_iter().partition(|ino| twice.contains(ino));
        blocks = scan::blocks(store, &inodes, &tree.orphans);
    }
    let scan::Blocks { mut free, damage: owners, .. } = blocks;
    let stuck = damage.is_empty() && !tree.names_lost && !free_orphans(store, &mut inodes, &tree.orphans)?;
    let mut all = damage;
    all.extend(lines.into_keys().map(|ino| Damage::Inode { ino, what: "its line is lost, and its log was found" }));
    all.extend(tree.damage.into_iter().chain(owners));
    let mut damaged = tree.astray;
    if changed && !all.is_empty() {
        free.iter_mut().for_each(Vec::clear);
        for damage in &all {
            match damage {
                // No more than that it is not freed with the last of these names.
                Damage::Inode { what: scan::FEWER_NAMES, .. } => {}
                Damage::Inode { ino, .. } | Damage::Block { ino, .. } | Damage::Lost { ino, .. } => {
                    damaged.entry(*ino).or_insert_with(|| damage.clone());
                }
                _ => {}
            }
        }
        if let Some(damage) = damaged.remove(&Ino::ROOT) {
            return Err(damage.into());
        }
    }
    // Nothing else may get the number that a name stands for.
    let used = inodes.keys().chain(damaged.keys().filter(|ino| store.inode_at(**ino).is_ok()));
    let used = scan::used_inodes(free.len(), used);
    let is_used = |ino: &Ino| used.get(ino.region()).is_some_and(|used| checkpoint::is_used(used, ino.slot()));
    let long = |(ino, found): (&Ino, &Found)| Some((*ino, found.state.as_ref().ok()?.long.as_deref()?.clone()));
    let long = inodes.iter().filter(|(ino, _)| is_used(ino)).filter_map(long).collect();
    // What is damaged has no names in it.
    let parent = |(ino, found): (Ino, Found)| Some((ino, found.state.ok()?.dir?.parent));
    let parents = inodes.into_iter().filter_map(parent).collect();
    let checkpoint = Checkpoint { free, inodes: used, parents, long };
    store.forget_log_pages();
    Ok(Recovered { checkpoint, damage: all, damaged, lost, unused: Vec::new(), orphans, stuck })
}

/// Frees the inodes that nobody names: whether all of them, as one whose line has failed stays an
/// orphan.
pub(crate) fn free_orphans(store: &Store, found: &mut Inodes, orphans: &[Ino]) -> Result<bool> {
    let (mut words, mut all) = (Vec::new(), true);
    for ino in orphans {
        if let Some(orphan) = found.remove(ino) {
            if !scan::can_store(store, *ino) {
                all = false;
                continue;
            }
            let (block, line) = store.inode_at(*ino)?;
            words.push((block, line + inode::STATE, inode::state_word(*ino, false, orphan.generation)));
        }
    }
    if !words.is_empty() {
        store.commit(&words, &Flushed::nothing().fence(store)?)?;
    }
    Ok(all)
}

/// The free slots of each inode table.
pub(crate) fn slots(store: &Store, inodes: &[Vec<u64>]) -> Vec<Slots> {
    let slots_of = |(layout, used): (&superblock::Region, &Vec<u64>)| {
        let last = used.iter().rposition(|word| *word != 0);
        let last = last.map_or(0, |at| at as u32 * 64 + used.get(at).map_or(0, |word| 63 - word.leading_zeros()));
        let free = (1..last).filter(|slot| !checkpoint::is_used(used, *slot)).collect();
        Slots { free, next: last + 1, end: layout.inodes as u32 }
    };
    store.superblock().regions.iter().zip(inodes).map(slots_of).collect()
}
