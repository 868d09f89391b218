//! Mounting: which regions make the volume, and recovery.
//!
//! **Problem.** A crash can come at any store, also at those of recovery itself.
//!
//! **Approach.** Recovery writes as little as it can, and each step only takes away work: it finishes committed journals,
//! then frees orphans. Stopped anywhere, it does the rest the next time.
//!
//! After a clean unmount only its checkpoint is read. In both cases an inode's log is read when the inode is first used.
//!
//! **Limits.** See `scan` for recovery, `checkpoint` for the rest.

use crate::alloc::Allocator;
use crate::checkpoint::{self, Checkpoint};
use crate::commit::finish_journal;
use crate::error::{Damage, Error, Result};
use crate::format::inode;
use crate::format::superblock::{self, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES, Ino};
use crate::medium::{At, Medium};
use crate::placement::Placement;
use crate::scan::{self, Found, Inodes, Journals, Use};
use crate::store::{Flushed, Store};
use crate::volume::{Options, Slots, Volume};

/// The superblock of one region: the first copy that is valid.
pub fn superblock_of(medium: &dyn Medium, region: usize) -> Result<Superblock> {
    first_valid(|offset, block| medium.read(At { region, offset }, block).is_ok())
        .map_err(|why| Error::NotAVolume(format!("region {region}: {why}")))
}

/// The first copy of a superblock that `read` finds at its offset and that is valid, or why there is none.
pub(crate) fn first_valid(
    read: impl Fn(u64, &mut [u8; BLOCK]) -> bool,
) -> std::result::Result<Superblock, &'static str> {
    let mut why = "the region is too small";
    for copy in superblock::COPIES {
        let mut block = [0; BLOCK];
        if read(copy * BLOCK_BYTES, &mut block) {
            match Superblock::decode(&block) {
                Ok(found) => return Ok(found),
                Err(what) => why = what,
            }
        }
    }
    Err(why)
}

/// Checks that the regions of `medium` are those of one volume, in order.
pub fn open(medium: Box<dyn Medium>) -> Result<Store> {
    let first = superblock_of(&*medium, 0)?;
    for region in 0..medium.regions() {
        let own = superblock_of(&*medium, region)?;
        if own.volume != first.volume {
            return Err(Error::NotAVolume(format!("region {region} belongs to another volume than region 0")));
        }
        if own.index != region {
            return Err(Error::NotAVolume(format!("region {} was given as region {region}", own.index)));
        }
        if own.regions != first.regions || own.journals != first.journals {
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
    let store = Store::new(medium, first);
    scan::mount_numbers(&store)?;
    Ok(store)
}

impl Volume {
    /// Mounts a volume, after recovering it from a crash.
    pub fn mount(medium: Box<dyn Medium>, options: Options) -> Result<Self> {
        let store = open(medium)?;
        check_features(store.superblock())?;
        if let Placement::Node(node) = options.placement
            && store.superblock().regions.iter().all(|region| region.node != Some(node))
        {
            return Err(Error::NoRegionOnNode(node));
        }
        let state = scan::state(&store)?;
        if scan::mount_numbers(&store)?.contains(&None) {
            return Err(Damage::State.into());
        }
        Self::mount_as(store, Some(state), options)
    }

    /// The same from the logs alone, whatever the state word and a checkpoint say. Files whose logs are damaged do not keep it from
    /// mounting. Where it fails, the state is as before, but for the number of the mount.
    pub(crate) fn mount_from_logs(medium: Box<dyn Medium>) -> Result<Self> {
        Self::mount_as(open(medium)?, None, Options::default())
    }

    /// Mounts in a state that is believed, or in none.
    fn mount_as(store: Store, state: Option<Use>, options: Options) -> Result<Self> {
        scan::number_mount(&store, (options.clock)())?;
        let journals = scan::journals(&store)?;
        let checkpoint = match state {
            Some(Use::Checkpoint(at)) if journals.is_empty() => Checkpoint::read(&store, at)?,
            _ => None,
        };
        let checkpoint = match checkpoint {
            Some(checkpoint) => checkpoint,
            None => recover(&store, &journals, state.is_none())?,
        };
        // Recovery from the logs alone has stored it already.
        if state.is_some_and(|state| state != Use::Mounted) {
            let nothing = Flushed::nothing().fence(&store)?;
            store.commit(&[(scan::state_block(), 0, scan::state_word(Use::Mounted))], &nothing)?;
        }
        let allocator = Allocator::new(store.superblock(), options.parts, &checkpoint.free);
        let slots = slots(&store, &checkpoint.inodes);
        Ok(Self::new(store, allocator, slots, checkpoint, options))
    }

    /// Ends the use of a volume, and writes down what the next mount need not find out, as far as there is room. Dropping
    /// it instead is like a crash: nothing is lost, but the next mount reads all logs.
    pub fn unmount(self) -> Result<()> {
        // After a commit in doubt, blocks that look free may hold data.
        self.store.check_writable()?;
        self.close_all()?;
        let checkpoint = self.checkpoint();
        let blocks = checkpoint.places();
        let (durable, state) = match blocks.first().filter(|_| blocks.len() == checkpoint.blocks()) {
            None => (Flushed::nothing().fence(&self.store)?, Use::Clean),
            Some(first) => {
                let dirty = checkpoint.write(&self.store, &blocks, self.now() as u64)?;
                (dirty.flush(&self.store)?.fence(&self.store)?, Use::Checkpoint(*first))
            }
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

/// Reads the whole volume, after finishing what a crash interrupted: what an unmount would have written down. With `without_lost`
/// also where files have damaged logs: they own no block then.
fn recover(store: &Store, journals: &Journals, without_lost: bool) -> Result<Checkpoint> {
    for (at, records) in journals {
        finish_journal(store, *at, records, &Flushed::nothing().fence(store)?)?;
    }
    let mut found = scan::inodes(store, &Vec::new(), &|_, _| true)?;
    let tree = scan::walk(&mut found);
    let (free, damage) = scan::free_runs(store, &found, &tree.orphans);
    let lost = |damage: &Damage| matches!(damage, Damage::Name { what, .. } if *what == scan::LOST_FILE);
    if let Some(damage) = tree.damage.into_iter().chain(damage).find(|damage| !(without_lost && lost(damage))) {
        return Err(damage.into());
    }
    if without_lost {
        // From here on no checkpoint is right.
        let mut words = vec![(scan::state_block(), 0, scan::state_word(Use::Mounted))];
        for (ino, _) in found.iter().filter(|(ino, f)| f.state.is_err() && tree.orphans.binary_search(ino).is_err()) {
            // Its blocks are free for others, so its log is never read again, whatever they hold.
            let (block, line) = store.inode_at(*ino)?;
            words.extend([inode::HEAD, inode::TAIL].map(|place| (block, line + place, 0)));
        }
        store.commit(&words, &Flushed::nothing().fence(store)?)?;
    }
    free_orphans(store, &mut found, &tree.orphans)?;
    let inodes = scan::used_inodes(free.len(), found.keys());
    // What is damaged here is a file, which has no names in it.
    let parent = |(ino, found): (Ino, Found)| Some((ino, found.state.ok()?.dir?.parent));
    let parents = found.into_iter().filter_map(parent).collect();
    Ok(Checkpoint { free, inodes, parents })
}

/// Frees the inodes that nobody names.
pub(crate) fn free_orphans(store: &Store, found: &mut Inodes, orphans: &[Ino]) -> Result<()> {
    let mut words = Vec::new();
    for ino in orphans {
        if let Some(orphan) = found.remove(ino) {
            let (block, line) = store.inode_at(*ino)?;
            words.push((block, line + inode::STATE, inode::state_word(*ino, false, orphan.generation)));
        }
    }
    if !words.is_empty() {
        store.commit(&words, &Flushed::nothing().fence(store)?)?;
    }
    Ok(())
}

/// The free slots of each inode table.
fn slots(store: &Store, inodes: &[Vec<u64>]) -> Vec<Slots> {
    let slots_of = |(layout, used): (&superblock::Region, &Vec<u64>)| {
        let last = used.iter().rposition(|word| *word != 0);
        let last = last.map_or(0, |at| at as u32 * 64 + used.get(at).map_or(0, |word| 63 - word.leading_zeros()));
        let free = (1..last).filter(|slot| !checkpoint::is_used(used, *slot)).collect();
        Slots { free, next: last + 1, end: layout.inodes as u32 }
    };
    store.superblock().regions.iter().zip(inodes).map(slots_of).collect()
}
