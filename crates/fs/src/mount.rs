//! Mounting: which regions make the volume, and recovery.
//!
//! **Problem.** A crash can come at any store, also at those of recovery itself.
//!
//! **Approach.** Recovery writes as little as it can, and each step only takes away work: it finishes committed journals,
//! then frees orphans. Stopped anywhere, it does the rest the next time.
//!
//! **Limits.** See `scan`: the whole volume is read, also after a clean unmount.

use crate::alloc::Allocator;
use crate::commit::finish_journal;
use crate::error::{Damage, Error, Result};
use crate::format::inode;
use crate::format::superblock::{self, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES, Ino};
use crate::inode::Inode;
use crate::medium::{At, Medium};
use crate::scan::{self, CLEAN, Found, Inodes, MOUNTED};
use crate::store::{Flushed, Store};
use crate::volume::{Options, Slots, Volume};

/// The superblock of one region: the first copy that is valid.
pub fn superblock_of(medium: &dyn Medium, region: usize) -> Result<Superblock> {
    let mut why = "the region is too small";
    for copy in superblock::COPIES {
        let mut block = [0; BLOCK];
        if medium.read(At { region, offset: copy * BLOCK_BYTES }, &mut block).is_ok() {
            match Superblock::decode(&block) {
                Ok(found) => return Ok(found),
                Err(what) => why = what,
            }
        }
    }
    Err(Error::NotAVolume(format!("region {region}: {why}")))
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
    Ok(Store::new(medium, first))
}

impl Volume {
    /// Mounts a volume, after recovering it from a crash.
    pub fn mount(medium: Box<dyn Medium>, options: Options) -> Result<Self> {
        let store = open(medium)?;
        if store.superblock().ro_features & !superblock::DATA_CHECKSUMS != 0 {
            return Err(Error::NotAVolume("made by a later version of homenode".into()));
        }
        let was_clean = scan::is_clean(&store)?;
        for (at, records) in scan::journals(&store)? {
            finish_journal(&store, at, &records, &Flushed::nothing().fence(&store)?)?;
        }
        let mut found = scan::inodes(&store, &Vec::new())?;
        let tree = scan::walk(&mut found);
        let allocator = Allocator::new(store.superblock(), options.parts);
        let damage = tree.damage.into_iter().chain(scan::claim(&store, &found, &tree.orphans, &allocator)).next();
        if let Some(damage) = damage {
            return Err(damage.into());
        }
        free_orphans(&store, &mut found, &tree.orphans)?;
        if was_clean {
            let nothing = Flushed::nothing().fence(&store)?;
            store.commit(&[(scan::state_block(), 0, scan::state_word(MOUNTED))], &nothing)?;
        }
        let slots = slots(&store, &found);
        let inode = |(ino, f): (Ino, Found)| {
            let state = f.state?;
            let kind = crate::format::entry::Kind::of_mode(state.attributes.mode);
            let kind = kind.ok_or(Damage::Inode { ino, what: "its mode has an unknown kind" })?;
            Ok(Inode::new(ino, f.generation, kind, state))
        };
        let inodes = found.into_iter().map(inode).collect::<Result<_>>()?;
        Ok(Self::new(store, allocator, slots, inodes, options))
    }

    /// Ends the use of a volume. Dropping it instead is like a crash: nothing is lost, and the next mount says so.
    pub fn unmount(self) -> Result<()> {
        let durable = Flushed::nothing().fence(&self.store)?;
        self.store.commit(&[(scan::state_block(), 0, scan::state_word(CLEAN))], &durable)?;
        Ok(())
    }
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

fn slots(store: &Store, found: &Inodes) -> Vec<Slots> {
    let regions = store.superblock().regions.iter().enumerate();
    let slots_of = |(region, layout): (usize, &superblock::Region)| {
        let mut slots = Slots { free: Vec::new(), next: 1, end: layout.inodes as u32 };
        for (ino, _) in found.range(Ino::new(region, 0)..=Ino::new(region, u32::MAX)) {
            slots.free.extend(slots.next..ino.slot());
            slots.next = ino.slot() + 1;
        }
        slots
    };
    regions.map(slots_of).collect()
}
