//! Inodes that are on the medium only.
//!
//! **Problem.** An inode in memory takes hundreds of bytes, a directory more than its names: with
//! millions of files more than a server should keep of what nobody uses.
//!
//! **Approach.** An inode is read from its log when it is first used. When the kernel has forgotten
//! it, so does the volume. What is in memory says no more than the log, but for a directory's
//! parent, which is kept here.
//!
//! Of a [long](Long) log the first use reads a small part ("Long logs" of docs/FORMAT.md).
//!
//! **Limits.** Of a forgotten file [`crate::Volume::path`] is not known until it is looked up
//! again. A directory of many names takes long to read again.

use std::collections::BTreeMap;
use std::iter;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use rustc_hash::FxHashMap;

use crate::checkpoint::Checkpoint;
use crate::error::{Damage, Result};
use crate::format::Ino;
use crate::inode::Inode;
use crate::scan::{self, Long};
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
    /// Those of which not all of the log needs to be read.
    long: Mutex<FxHashMap<Ino, Long>>,
}

impl Unread {
    /// All inodes of a checkpoint, of which `damaged` ones are errors, with room for those of
    /// tables of these sizes.
    pub fn new(
        checkpoint: Checkpoint,
        tables: impl Iterator<Item = u64>,
        shards: usize,
        damaged: BTreeMap<Ino, Damage>,
    ) -> Self {
        let mut found = checkpoint.inodes.into_iter();
        let words = |inodes: u64| {
            let words = found.next().unwrap_or_default();
            let rest = (inodes.div_ceil(64) as usize).saturating_sub(words.len());
            words.into_iter().chain(iter::repeat_n(0, rest)).map(AtomicU64::new).collect()
        };
        Self {
            inodes: tables.map(words).collect(),
            parents: RwLock::new(checkpoint.parents.into_iter().collect()),
            reading: (0..shards).map(|_| Mutex::new(())).collect(),
            damaged,
            long: Mutex::new(checkpoint.long.into_iter().collect()),
        }
    }

    fn word(&self, ino: Ino) -> Option<(&AtomicU64, u64)> {
        Some((self.inodes.get(ino.region())?.get(ino.slot() as usize / 64)?, 1 << (ino.slot() % 64)))
    }

    /// Whether the inode is not in memory.
    fn has(&self, ino: Ino) -> bool {
        self.word(ino).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
            || self.damaged.contains_key(&ino)
    }

    /// Reads an inode and hands it to `add`, unless it is `known`, as where another thread read it
    /// meanwhile. `None`: there is no such inode. Nothing but this makes an inode known that was
    /// not read, so the medium stands still while its log is read.
    pub fn read(
        &self,
        store: &Store,
        ino: Ino,
        shard: usize,
        known: impl FnOnce() -> Option<Arc<Inode>>,
        add: impl FnOnce(Inode) -> Arc<Inode>,
    ) -> Result<Option<Arc<Inode>>> {
        if let Some(damage) = self.damaged.get(&ino) {
            return Err(damage.clone().into());
        }
        let _guard = self.reading.get(shard).map(lock);
        let Some((word, bit)) = self.word(ino).filter(|_| self.has(ino)) else { return Ok(known()) };
        let (generation, mut state) = {
            let long = lock(&self.long).get(&ino).cloned();
            scan::inode_partly(store, ino, store.is_frozen(), long.as_ref())?
        };
        if let Some(dir) = &mut state.dir {
            let parents = self.parents.read().unwrap_or_else(PoisonError::into_inner);
            let parent = parents.get(&ino).copied();
            dir.parent = parent.ok_or(Damage::Inode { ino, what: "the checkpoint does not have its parent" })?;
        }
        let inode = add(Inode::found(ino, generation, state)?);
        self.in_memory(ino, (word, bit));
        Ok(Some(inode))
    }

    fn in_memory(&self, ino: Ino, (word, bit): (&AtomicU64, u64)) {
        self.parents.write().unwrap_or_else(PoisonError::into_inner).remove(&ino);
        lock(&self.long).remove(&ino);
        word.fetch_and(!bit, Ordering::AcqRel);
    }

    /// Notes that an inode is in memory that was read otherwise.
    pub fn was_read(&self, ino: Ino) {
        if let Some(place) = self.word(ino) {
            self.in_memory(ino, place);
        }
    }

    /// Notes that an inode is on the medium only, once `remove` has made it unknown: its parent if
    /// it is a directory, and what is to be known of a long log; `None` if it stays known. Where
    /// another one of its shard is being read nobody waits: it stays for now, and `remove` is not
    /// called.
    pub fn let_go(&self, ino: Ino, shard: usize, remove: impl FnOnce() -> Option<(Option<Ino>, Option<Long>)>) {
        let Some(Ok(_guard)) = self.reading.get(shard).map(Mutex::try_lock) else { return };
        let Some((word, bit)) = self.word(ino) else { return };
        let Some((parent, long)) = remove() else { return };
        lock(&self.long).extend(long.map(|long| (ino, long)));
        if let Some(parent) = parent {
            self.parents.write().unwrap_or_else(PoisonError::into_inner).insert(ino, parent);
        }
        word.fetch_or(bit, Ordering::AcqRel);
    }

    /// Notes that the parent of a directory has another number. If memory has the directory, its
    /// inode, for doing the same there: as long as somebody holds that, it is not let go.
    pub fn change_parent(
        &self,
        ino: Ino,
        shard: usize,
        (from, to): (Ino, Ino),
        known: impl FnOnce() -> Option<Arc<Inode>>,
    ) -> Option<Arc<Inode>> {
        let _guard = self.reading.get(shard).map(lock);
        let mut parents = self.parents.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(noted) = parents.get_mut(&ino).filter(|noted| **noted == from) {
            *noted = to;
        }
        drop(parents);
        known()
    }

    pub fn inodes(&self) -> Vec<Ino> {
        let mut all = Vec::new();
        for (region, words) in self.inodes.iter().enumerate() {
            for (at, _) in words.iter().enumerate().filter(|(_, word)| word.load(Ordering::Acquire) != 0) {
                let slots = (at * 64..at * 64 + 64).map(|slot| Ino::new(region, slot as u32));
                all.extend(slots.filter(|ino| self.has(*ino)));
            }
        }
        all
    }

    /// State for the next checkpoint, which has no more in it.
    pub fn rest(&self) -> Checkpoint {
        let words = |words: &Vec<AtomicU64>| words.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let parents = self.parents.read().unwrap_or_else(PoisonError::into_inner);
        Checkpoint {
            inodes: self.inodes.iter().map(words).collect(),
            parents: parents.iter().map(|(dir, parent)| (*dir, *parent)).collect(),
            long: lock(&self.long).iter().map(|(ino, long)| (*ino, long.clone())).collect(),
            ..Checkpoint::default()
        }
    }
}
