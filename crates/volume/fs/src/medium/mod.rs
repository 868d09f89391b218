//! Where the bytes are: every access of the file system to its memory goes through [`Medium`].
//!
//! **Problem.** The same code must run on DAX memory (write back the lines, then fence), on memory
//! that a crash of the machine loses anyway (memfd, tmpfs, hugetlbfs) and on plain files (msync),
//! and tests must see every store.
//!
//! **Approach.** One trait with the operations that matter for ordering. [`Mapped`] is real memory,
//! [`Emulated`] makes it as slow as that of several nodes; tests bring a recording medium of their
//! own.
//!
//! **Limits.** Memory that fails is EIO on x86-64 alone; see `fault`.

mod clock;
mod durability;
mod emulated;
mod exclusive;
mod fault;
mod group;
mod mapped;
mod overlay;
mod persist;
mod twins;

pub use clock::{Clock, Monotonic};
pub use durability::Durability;
pub use emulated::{Carried, Emulated};
pub use fault::log_failures_to;
pub use mapped::{Mapped, RegionFile};
pub use memory_model::{Cost, Direction, Memory, Profile};
pub use overlay::Overlay;
pub use persist::Persistence;
pub use twins::{Copies, Twins};

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::{BLOCK_BYTES, Block};

/// A byte of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub region: usize,
    pub offset: u64,
}

impl At {
    pub fn plus(self, by: u64) -> Self {
        Self { offset: self.offset + by, ..self }
    }

    /// Its place in a region of `size` bytes. Fails unless `len` bytes from there on are in it.
    pub fn within(self, len: usize, size: u64) -> Result<usize> {
        let inside = self.offset.checked_add(len as u64).is_some_and(|end| end <= size);
        usize::try_from(self.offset).ok().filter(|_| inside).ok_or_else(|| self.outside())
    }

    fn outside(self) -> Error {
        Error::OutOfRange(Block::new(self.region % 64, self.offset / BLOCK_BYTES % Block::MAX_IN_REGION))
    }
}

/// The memory of a volume: one or more regions.
///
/// A store is durable after it was flushed and a later fence returned. Until then any part of it
/// may or may not be: only an aligned [`Medium::store_u64`] happens as a whole. Every method fails
/// on what is outside of a region.
pub trait Medium: Send + Sync {
    /// The medium that has the methods which this one leaves out.
    fn below(&self) -> Option<&dyn Medium> {
        None
    }
    fn regions(&self) -> usize {
        self.below().map_or(0, |below| below.regions())
    }
    /// Bytes of a region.
    fn len(&self, region: usize) -> u64 {
        self.below().map_or(0, |below| below.len(region))
    }
    /// Whether a region is not there: every access to it is an error.
    fn is_missing(&self, region: usize) -> bool {
        self.below().is_some_and(|below| below.is_missing(region))
    }
    /// Whether what is stored stays when this is dropped.
    fn keeps(&self) -> bool {
        true
    }
    /// Fails where the memory of the line that this byte is in has failed, so that nothing can be
    /// stored there.
    fn can_store(&self, at: At) -> Result<()> {
        self.read(At { offset: at.offset / 8 * 8, ..at }, &mut [0; 8])
    }
    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        there(self.below())?.read(at, out)
    }
    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        there(self.below())?.write(at, data)
    }
    /// Copies file data to the medium, past the caches where that is possible, and flushes it.
    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        there(self.below())?.write_data(at, data)
    }
    /// Does the same with data that is in another place of the medium.
    fn copy_data(&self, from: At, to: At, len: usize) -> Result<()> {
        let mut buffer = vec![0; len];
        self.read(from, &mut buffer)?;
        self.write_data(to, &buffer)
    }
    /// What the two copies of a part of a block of metadata are worth, where the medium keeps two:
    /// each that is not what it should be is written anew, if told so, and flushed.
    fn compare(&self, _at: At, _len: usize, _mend: bool) -> Result<Copies> {
        Ok(Copies::default())
    }
    /// Stores an aligned word where that can be done, of two copies in one if need be, and flushes
    /// it: for what a copy that missed it may not say otherwise.
    fn store_anywhere(&self, at: At, word: u64) -> Result<()> {
        self.store_u64(at, word)?;
        self.flush(at, 8)
    }
    /// Loads an aligned word.
    fn load_u64(&self, at: At) -> Result<u64> {
        there(self.below())?.load_u64(at)
    }
    /// Stores an aligned word at once.
    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        there(self.below())?.store_u64(at, word)
    }
    /// Begins to write lines back.
    fn flush(&self, at: At, len: u64) -> Result<()> {
        there(self.below())?.flush(at, len)
    }
    /// Waits until all that was flushed is durable.
    fn fence(&self) -> Result<()> {
        there(self.below())?.fence()
    }
}

fn there(below: Option<&dyn Medium>) -> Result<&dyn Medium> {
    below.ok_or(Error::Invalid("a medium without memory"))
}

impl<M: Medium + ?Sized> Medium for Arc<M> {
    fn regions(&self) -> usize {
        (**self).regions()
    }
    fn len(&self, region: usize) -> u64 {
        (**self).len(region)
    }
    fn is_missing(&self, region: usize) -> bool {
        (**self).is_missing(region)
    }
    fn keeps(&self) -> bool {
        (**self).keeps()
    }
    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        (**self).read(at, out)
    }
    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        (**self).write(at, data)
    }
    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        (**self).write_data(at, data)
    }
    fn copy_data(&self, from: At, to: At, len: usize) -> Result<()> {
        (**self).copy_data(from, to, len)
    }
    fn load_u64(&self, at: At) -> Result<u64> {
        (**self).load_u64(at)
    }
    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        (**self).store_u64(at, word)
    }
    fn flush(&self, at: At, len: u64) -> Result<()> {
        (**self).flush(at, len)
    }
    fn fence(&self) -> Result<()> {
        (**self).fence()
    }
}
