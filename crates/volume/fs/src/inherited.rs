//! Inodes that a kernel may know from the server before this one.
//!
//! **Problem.** A server that takes a mount over does not know which inodes the kernel remembers,
//! nor how often it was told of each. A number that the kernel knows must not go to another file,
//! and a file without a name lives as long as somebody has it open.
//!
//! **Approach.** Every inode that was in use when the server before ended may be known, orphans
//! among them, which recovery leaves alone. When the kernel forgets such an inode, or nobody can
//! say who knows an orphan, the kernel is asked, a while later: what was answered meanwhile has
//! come to it by then ([`Volume::take_forgotten`], [`Volume::is_unknown`]).
//!
//! **Limits.** What such an inode holds is free only after that while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::format::Ino;
use crate::inode::Inode;
use crate::scan;
use crate::store::Flushed;
use crate::sync::{AtomicU64, Mutex, lock};
use crate::volume::Volume;

/// Inodes that a kernel may know from another server.
#[derive(Debug, Default)]
pub struct Inherited {
    /// A bit for each slot, as in the checkpoint; empty without another server.
    inodes: Vec<Vec<AtomicU64>>,
    /// Those that the kernel has forgotten, and how often this server has told it of them that it
    /// did not say; and orphans.
    forgotten: Mutex<BTreeMap<Ino, u64>>,
}

impl Inherited {
    fn word(&self, ino: Ino) -> Option<(&AtomicU64, u64)> {
        Some((self.inodes.get(ino.region())?.get(ino.slot() as usize / 64)?, 1 << (ino.slot() % 64)))
    }

    /// Whether the kernel may know it.
    pub fn has(&self, ino: Ino) -> bool {
        self.word(ino).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    fn end(&self, ino: Ino) {
        if let Some((word, bit)) = self.word(ino) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// There is no kernel any more.
    pub fn end_all(&self) {
        self.inodes.iter().flatten().for_each(|word| word.store(0, Ordering::Release));
    }
}

impl Volume {
    /// Takes over what a kernel may know: all inodes of a checkpoint, and orphans, which are read.
    pub(crate) fn take_over(&mut self, inodes: &[Vec<u64>], orphans: &[Ino]) -> Result<()> {
        let words = |words: &Vec<u64>| words.iter().map(|word| AtomicU64::new(*word)).collect();
        self.inherited.inodes = inodes.iter().map(words).collect();
        self.kernel.store(true, Ordering::Relaxed);
        for ino in orphans {
            let (generation, mut state) = scan::inode(&self.store, *ino, false)?;
            state.attributes.links = 0;
            state.unnamed = Some(Flushed::nothing().fence(&self.store)?);
            self.add_read(Inode::found(*ino, generation, state)?);
            if let Some(inode) = self.known_inode(*ino) {
                self.reclaim(&inode, &mut inode.write())?; // it is leaving
            }
            lock(&self.inherited.forgotten).insert(*ino, 0);
        }
        Ok(())
    }

    /// Whether somebody who is not here knows an inode's number.
    pub(crate) fn is_remembered(&self, inode: &Inode) -> bool {
        inode.remembered.load(Ordering::Acquire) > 0 || self.inherited.has(inode.ino)
    }

    /// The kernel forgets an inode that it may know from another server, and says how often it was
    /// told of it. False: it cannot.
    pub(crate) fn forget_inherited(&self, ino: Ino, times: u64) -> bool {
        if !self.inherited.has(ino) {
            return false;
        }
        let less = |inode: Arc<Inode>| {
            let less = |n: u64| Some(n.saturating_sub(times));
            let was = inode.remembered.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
            was.unwrap_or_default().saturating_sub(times)
        };
        let left = self.brought_back(ino).map_or(0, less);
        lock(&self.inherited.forgotten).insert(ino, left);
        true
    }

    /// Inodes that the kernel has forgotten since the last call, or that nobody may know, each with
    /// what [`Volume::is_unknown`] wants to hear again. The kernel is to be asked of them: not at
    /// once, as it may have an answer on the way that tells of one.
    pub fn take_forgotten(&self) -> Vec<(Ino, u64)> {
        std::mem::take(&mut *lock(&self.inherited.forgotten)).into_iter().collect()
    }

    /// Has the kernel asked again, unless it has forgotten the inode once more since.
    pub fn ask_again(&self, ino: Ino, left: u64) {
        lock(&self.inherited.forgotten).entry(ino).or_insert(left);
    }

    /// Has the kernel asked of an inode that only a server before this one has told it of.
    pub(crate) fn ask_of(&self, inode: &Inode) {
        if self.inherited.has(inode.ino) && inode.remembered.load(Ordering::Acquire) == 0 {
            self.ask_again(inode.ino, 0);
        }
    }

    /// The kernel does not know an inode. `left` is what was taken with it.
    pub fn is_unknown(&self, ino: Ino, left: u64) -> Result<()> {
        let Some(inode) = self.brought_back(ino) else {
            self.inherited.end(ino);
            return Ok(());
        };
        let mut state = inode.write();
        // What this server has told since is still to come to the kernel.
        let less = |n: u64| Some(n.saturating_sub(left));
        let told = inode.remembered.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        self.inherited.end(ino);
        if told.unwrap_or_default() > left {
            return Ok(());
        }
        self.reclaim(&inode, &mut state)?;
        drop(state);
        self.let_go(inode);
        Ok(())
    }
}
