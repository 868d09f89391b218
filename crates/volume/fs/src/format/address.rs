//! Numbers that say where something is.

use std::fmt;

const BLOCK_BITS: u32 = 35;
const SLOT_BITS: u32 = 7;

/// Address of a block: the region in bits 35–40, the block within it in bits 0–34.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Block(u64);

impl Block {
    /// No block. The number is that of region 0's superblock, which nothing points to.
    pub const NONE: Self = Self(0);
    /// Most blocks of a region.
    pub const MAX_IN_REGION: u64 = 1 << BLOCK_BITS;

    pub fn new(region: usize, index: u64) -> Self {
        debug_assert!(region < super::MAX_REGIONS && index < Self::MAX_IN_REGION);
        Self((region as u64) << BLOCK_BITS | index)
    }

    /// Reads an address from a medium. `None`: no block can have it.
    pub fn from_raw(raw: u64) -> Option<Self> {
        (raw >> BLOCK_BITS < super::MAX_REGIONS as u64).then_some(Self(raw))
    }

    /// As stored on the medium.
    pub fn raw(self) -> u64 {
        self.0
    }

    pub fn region(self) -> usize {
        (self.0 >> BLOCK_BITS) as usize
    }

    pub fn index(self) -> u64 {
        self.0 & (Self::MAX_IN_REGION - 1)
    }

    /// The block `count` blocks further in the same region.
    pub fn offset(self, count: u64) -> Self {
        debug_assert!(self.index() + count < Self::MAX_IN_REGION);
        Self(self.0 + count)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.region(), self.index())
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Number of an inode: the region in bits 32–37, the slot of its inode table in bits 0–31.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(u64);

impl Ino {
    pub const ROOT: Self = Self(1);

    pub fn new(region: usize, slot: u32) -> Self {
        Self((region as u64) << 32 | u64::from(slot))
    }

    /// Reads a number from a medium or from a caller. `None`: no inode can have it.
    pub fn from_raw(raw: u64) -> Option<Self> {
        (raw >> 32 < super::MAX_REGIONS as u64 && raw as u32 != 0).then_some(Self(raw))
    }

    pub fn raw(self) -> u64 {
        self.0
    }

    pub fn region(self) -> usize {
        (self.0 >> 32) as usize
    }

    /// Slot in the region's inode table.
    pub fn slot(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}:{}", self.region(), self.slot())
    }
}

/// A place in a log: a page and a slot of it. Slot 64 means that the page is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPos {
    pub page: Block,
    /// The slot, 1–64.
    pub slot: usize,
}

impl LogPos {
    /// As the payload of a sealed word.
    pub fn raw(self) -> u64 {
        self.page.raw() << SLOT_BITS | self.slot as u64
    }

    /// Reads a position from a medium. `None`: no log can have it.
    pub fn from_raw(raw: u64) -> Option<Self> {
        let slot = (raw & ((1 << SLOT_BITS) - 1)) as usize;
        let page = Block::from_raw(raw >> SLOT_BITS)?;
        (page != Block::NONE && (1..=super::page::SLOTS).contains(&slot)).then_some(Self { page, slot })
    }
}
