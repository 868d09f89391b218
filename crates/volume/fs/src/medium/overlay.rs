//! A medium that is only looked at.
//!
//! **Problem.** After a crash a volume must be recovered before it can be read, and recovery
//! stores. A look must change nothing: the volume may be a backup, a snapshot or evidence, and its
//! memory may be read-only.
//!
//! **Approach.** What is stored goes to lines in this process's memory, which lie over those of the
//! medium. The medium sees reads only.
//!
//! **Limits.** Nothing that is stored is durable, or seen by anybody else. A read of what lies in
//! memory that has failed fails, whatever was stored over it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use super::{At, Medium};
use crate::error::Result;
use crate::format::LINE;

const LINE_BYTES: u64 = LINE as u64;

/// By region, and number in it.
type Lines = BTreeMap<(usize, u64), [u8; LINE]>;

/// Stores to it stay in this process.
pub struct Overlay<M> {
    below: M,
    lines: RwLock<Lines>,
    /// Whether there are lines, so that a clean volume is read as fast as without this.
    any: AtomicBool,
}

impl<M: Medium> Overlay<M> {
    pub fn new(below: M) -> Self {
        Self { below, lines: RwLock::default(), any: AtomicBool::new(false) }
    }

    fn check(&self, at: At, len: usize) -> Result<()> {
        at.within(len, self.below.len(at.region)).map(drop)
    }
}

impl<M: Medium> Medium for Overlay<M> {
    fn below(&self) -> Option<&dyn Medium> {
        Some(&self.below)
    }

    fn keeps(&self) -> bool {
        false
    }

    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return self.below.read(at, out);
        }
        let lines = self.lines.read().unwrap_or_else(PoisonError::into_inner);
        self.below.read(at, out)?;
        let end = at.offset + out.len() as u64;
        let over = (at.region, at.offset / LINE_BYTES)..(at.region, end.div_ceil(LINE_BYTES));
        for ((_, line), stored) in lines.range(over) {
            let begin = line * LINE_BYTES;
            let (from, to) = (begin.max(at.offset), end.min(begin + LINE_BYTES));
            let place = out.get_mut((from - at.offset) as usize..(to - at.offset) as usize);
            let stored = stored.get((from - begin) as usize..(to - begin) as usize);
            if let (Some(place), Some(stored)) = (place, stored) {
                place.copy_from_slice(stored);
            }
        }
        Ok(())
    }

    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        self.check(at, data.len())?;
        let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
        let (mut at, mut data) = (at, data);
        while !data.is_empty() {
            let within = (at.offset % LINE_BYTES) as usize;
            let (now, rest) = data.split_at(data.len().min(LINE - within));
            let stored = match lines.entry((at.region, at.offset / LINE_BYTES)) {
                Entry::Occupied(stored) => stored.into_mut(),
                Entry::Vacant(none) => {
                    let mut copy = [0; LINE];
                    self.below.read(At { offset: at.offset - within as u64, ..at }, &mut copy)?;
                    none.insert(copy)
                }
            };
            if let Some(stored) = stored.get_mut(within..within + now.len()) {
                stored.copy_from_slice(now);
            }
            (at, data) = (at.plus(now.len() as u64), rest);
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
