//! Inodes that have not been used since the mount.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;

use crate::checkpoint::Checkpoint;
use crate::error::{Damage, Result};
use crate::format::Ino;
use crate::inode::Inode;
use crate::scan;
use crate::store::Store;
use crate::sync::{AtomicU64, Mutex, RwLock, lock};

/// Inodes that are on the medium only.
#[derive(Debug, Default)]
pub struct Unread {
    /// A bit for each slot, as in the checkpoint.
    inodes: Vec<Vec<AtomicU64>>,
    /// The parents of directories among them.
    parents: RwLock<FxHashMap<Ino, Ino>>,
    reading: Vec<Mutex<()>>,
    /// Why these are not to be read.
    damaged: BTreeMap<Ino, Damage>,
}

impl Unread {
    /// All inodes of a checkpoint, of which `damaged` ones are errors.
    pub fn new(checkpoint: Checkpoint, shards: usize, damaged: BTreeMap<Ino, Damage>) -> Self {
        let atomic = |words: Vec<u64>| words.into_iter().map(AtomicU64::new).collect();
        Self {
            inodes: checkpoint.inodes.into_iter().map(atomic).collect(),
            parents: RwLock::new(checkpoint.parents.into_iter().collect()),
            reading: (0..shards).map(|_| Mutex::new(())).collect(),
            damaged,
        }
    }

    fn word(&self, ino: Ino) -> Option<(&AtomicU64, u64)> {
        Some((self.inodes.get(ino.region())?.get(ino.slot() as usize / 64)?, 1 << (ino.slot() % 64)))
    }

    /// Whether the inode was not read yet.
    pub fn has(&self, ino: Ino) -> bool {
        self.word(ino).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
            || self.damaged.contains_key(&ino)
    }

    /// Reads an inode and hands it to `add`, unless another thread did meanwhile. Nothing but this makes an inode known
    /// that was not read, so the medium stands still while its log is read.
    pub fn read(&self, store: &Store, ino: Ino, shard: usize, add: impl FnOnce(Inode)) -> Result<()> {
        if let Some(damage) = self.damaged.get(&ino) {
            return Err(damage.clone().into());
        }
        let _guard = self.reading.get(shard).map(lock);
        let Some((word, bit)) = self.word(ino).filter(|_| self.has(ino)) else { return Ok(()) };
        let (generation, mut state) = scan::inode(store, ino)?;
        if let Some(dir) = &mut state.dir {
            let parents = self.parents.read().unwrap_or_else(PoisonError::into_inner);
            let parent = parents.get(&ino).copied();
            dir.parent = parent.ok_or(Damage::Inode { ino, what: "the checkpoint does not have its parent" })?;
        }
        add(Inode::found(ino, generation, state)?);
        self.parents.write().unwrap_or_else(PoisonError::into_inner).remove(&ino);
        word.fetch_and(!bit, Ordering::AcqRel);
        Ok(())
    }

    /// All that were not read yet.
    pub fn inodes(&self) -> Vec<Ino> {
        let slots = |(region, words): (usize, &Vec<AtomicU64>)| {
            (0..words.len() * 64).map(move |slot| Ino::new(region, slot as u32))
        };
        self.inodes.iter().enumerate().flat_map(slots).filter(|ino| self.has(*ino)).collect()
    }

    /// State for the next checkpoint: the bits of a region, and the parents.
    pub fn rest(&self) -> (Vec<Vec<u64>>, Vec<(Ino, Ino)>) {
        let words = |words: &Vec<AtomicU64>| words.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let parents = self.parents.read().unwrap_or_else(PoisonError::into_inner);
        (self.inodes.iter().map(words).collect(), parents.iter().map(|(dir, parent)| (*dir, *parent)).collect())
    }
}
