//! A medium that is only looked at.
//!
//! **Problem.** After a crash a volume must be recovered before it can be read, and recovery stores. A look must change nothing: the
//! volume may be a backup, a snapshot or evidence, and its memory may be read-only.
//!
//! **Approach.** What is stored goes to pages in this process's memory, which lie over those of the medium. The medium sees reads only.
//!
//! **Limits.** Nothing that is stored is durable, or seen by anybody else. Each page that is stored to takes 4096 bytes.

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use rustc_hash::FxHashMap;

use super::{At, Medium};
use crate::error::Result;
use crate::format::{BLOCK, BLOCK_BYTES};

type Pages = FxHashMap<(usize, u64), Box<[u8; BLOCK]>>;

/// Stores to it stay in this process.
pub struct Overlay<M> {
    below: M,
    pages: RwLock<Pages>,
    /// Whether there are pages, so that a clean volume is read as fast as without this.
    any: AtomicBool,
}

impl<M: Medium> Overlay<M> {
    /// Nothing was stored yet.
    pub fn new(below: M) -> Self {
        Self { below, pages: RwLock::default(), any: AtomicBool::new(false) }
    }

    fn check(&self, at: At, len: usize) -> Result<()> {
        at.within(len, self.below.len(at.region)).map(drop)
    }
}

/// The part of a page that `len` bytes at `at` begin with: the page, the place in it, and how many bytes.
fn part(at: At, len: usize) -> ((usize, u64), usize, usize) {
    let within = (at.offset % BLOCK_BYTES) as usize;
    ((at.region, at.offset / BLOCK_BYTES), within, len.min(BLOCK - within))
}

impl<M: Medium> Medium for Overlay<M> {
    fn regions(&self) -> usize {
        self.below.regions()
    }

    fn len(&self, region: usize) -> u64 {
        self.below.len(region)
    }

    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return self.below.read(at, out);
        }
        self.check(at, out.len())?;
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let (mut at, mut out) = (at, out);
        while !out.is_empty() {
            let (page, within, len) = part(at, out.len());
            let (now, rest) = out.split_at_mut(len);
            match pages.get(&page).and_then(|page| page.get(within..within + len)) {
                Some(stored) => now.copy_from_slice(stored),
                None => self.below.read(at, now)?,
            }
            (at, out) = (at.plus(len as u64), rest);
        }
        Ok(())
    }

    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        self.check(at, data.len())?;
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        let (mut at, mut data) = (at, data);
        while !data.is_empty() {
            let (page, within, len) = part(at, data.len());
            let (now, rest) = data.split_at(len);
            let stored = match pages.entry(page) {
                Entry::Occupied(stored) => stored.into_mut(),
                Entry::Vacant(none) => {
                    let mut copy = Box::new([0; BLOCK]);
                    self.below.read(At { offset: page.1 * BLOCK_BYTES, ..at }, copy.as_mut_slice())?;
                    none.insert(copy)
                }
            };
            if let Some(stored) = stored.get_mut(within..within + len) {
                stored.copy_from_slice(now);
            }
            (at, data) = (at.plus(len as u64), rest);
        }
        self.any.store(true, Ordering::Release);
        Ok(())
    }

    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        self.write(at, data)
    }

    fn load_u64(&self, at: At) -> Result<u64> {
        if !self.any.load(Ordering::Acquire) {
            return self.below.load_u64(at);
        }
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        self.write(at, &word.to_le_bytes())
    }

    fn flush(&self, at: At, len: u64) -> Result<()> {
        self.check(at, usize::try_from(len).unwrap_or(usize::MAX))
    }

    fn fence(&self) -> Result<()> {
        Ok(())
    }
}
