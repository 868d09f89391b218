//! The superblock: what a region is part of, and where everything in it lies.
//!
//! ```text
//!    0  magic "HOMENOD1"                  8 bytes
//!    8  version                           u32
//!   12  CRC32C of the block, this 0       u32
//!   16  features: compatible              u64
//!   24  features: read-only compatible    u64
//!   32  features: incompatible            u64
//!   40  volume id                         16 bytes
//!   56  index of this region              u16
//!   58  number of regions                 u16
//!   60  journals in each region           u32
//!   64  time of mkfs                      i64
//!  128  regions: blocks u64, inodes u64, node i32, reserved 12 bytes
//! 2176  reserved, 0
//! ```

use std::ops::Range;

use super::{BLOCK, Block, Ino, MAX_REGIONS, get_i64, get_u16, get_u32, get_u64, inode, put};

/// Blocks of a region of so many blocks that hold its superblock. What is made on a region by
/// mistake lies at its beginning, or at both ends, as a partition table does with 17 KiB each:
/// behind the last copy there is nothing else of the volume.
pub fn copies(blocks: u64) -> [u64; 3] {
    [0, 1, data_end_of(blocks)]
}

fn data_end_of(blocks: u64) -> u64 {
    blocks.saturating_sub((blocks / 64).clamp(1, 32))
}
/// Block that holds the number of the last mount, and in region 0 the state word.
pub const STATE_BLOCK: u64 = 2;
/// First block of the names of the regions.
pub const NAMES_FROM: u64 = 3;
const NAME_RECORD: usize = 256;
pub const NAMES_PER_BLOCK: usize = BLOCK / NAME_RECORD;
pub const MAX_REGION_NAME: usize = NAME_RECORD - 8;
const JOURNALS_FROM: u64 = NAMES_FROM + (MAX_REGIONS / NAMES_PER_BLOCK) as u64;
pub const MAX_JOURNALS: u32 = 1024;

/// Read-only compatible feature: every block of file data has a checksum in its region's table.
pub const DATA_CHECKSUMS: u64 = 1;
/// Incompatible feature: the metadata of each region has a twin in the next one.
pub const LOGS_TWICE: u64 = 1;
/// Bytes of a checksum in the table.
pub const SUM: u64 = 4;
const SUMS_PER_BLOCK: u64 = super::BLOCK_BYTES / SUM;

const MAGIC: &[u8; 8] = b"HOMENOD1";
const VERSION: u32 = 2;
const REGIONS_FROM: usize = 128;
const REGION: usize = 32;

/// The record of a region's name: CRC32C of the rest u32, length u16, reserved, name.
pub fn encode_name(name: &[u8]) -> [u8; NAME_RECORD] {
    let mut out = [0; NAME_RECORD];
    put(&mut out, 4, &(name.len() as u16).to_le_bytes());
    put(&mut out, 8, name.get(..name.len().min(MAX_REGION_NAME)).unwrap_or_default());
    let crc = crc32c::crc32c(&out[4..]);
    put(&mut out, 0, &crc.to_le_bytes());
    out
}

/// The name that a record holds. `None`: it holds none.
pub fn decode_name(record: &[u8]) -> Option<&[u8]> {
    let length = usize::from(get_u16(record, 4));
    (crc32c::crc32c(record.get(4..)?) == get_u32(record, 0)).then_some(record.get(8..8 + length)?)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Size in blocks.
    pub blocks: u64,
    /// Slots in the inode table.
    pub inodes: u64,
    /// Node of the memory, where it is known.
    pub node: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Names the volume.
    pub volume: [u8; 16],
    pub index: usize,
    /// Journals in each region.
    pub journals: u32,
    /// When the volume was made, ns since 1970.
    pub created: i64,
    /// Features that a version must know to write; see [`DATA_CHECKSUMS`].
    pub ro_features: u64,
    /// Features that a version must know to read; see [`LOGS_TWICE`].
    pub features: u64,
    pub regions: Vec<Region>,
}

impl Superblock {
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut out = [0; BLOCK];
        put(&mut out, 0, MAGIC);
        put(&mut out, 8, &VERSION.to_le_bytes());
        put(&mut out, 24, &self.ro_features.to_le_bytes());
        put(&mut out, 32, &self.features.to_le_bytes());
        put(&mut out, 40, &self.volume);
        put(&mut out, 56, &(self.index as u16).to_le_bytes());
        put(&mut out, 58, &(self.regions.len() as u16).to_le_bytes());
        put(&mut out, 60, &self.journals.to_le_bytes());
        put(&mut out, 64, &self.created.to_le_bytes());
        for (i, region) in self.regions.iter().enumerate() {
            let at = REGIONS_FROM + i * REGION;
            put(&mut out, at, &region.blocks.to_le_bytes());
            put(&mut out, at + 8, &region.inodes.to_le_bytes());
            put(&mut out, at + 16, &region.node.map_or(-1, |n| n as i32).to_le_bytes());
        }
        let crc = crc32c::crc32c(&out);
        put(&mut out, 12, &crc.to_le_bytes());
        out
    }

    /// The superblock of another region of the same volume, from the block of this one as it is.
    pub fn of_other(mut block: [u8; BLOCK], index: usize) -> [u8; BLOCK] {
        put(&mut block, 56, &(index as u16).to_le_bytes());
        put(&mut block, 12, &[0; 4]);
        let crc = crc32c::crc32c(&block);
        put(&mut block, 12, &crc.to_le_bytes());
        block
    }

    /// Reads a superblock. An error says why it is none.
    pub fn decode(block: &[u8; BLOCK]) -> Result<Self, &'static str> {
        if !block.starts_with(MAGIC) {
            return Err("not a homenode region");
        }
        let mut blank = *block;
        put(&mut blank, 12, &[0; 4]);
        if crc32c::crc32c(&blank) != get_u32(block, 12) {
            return Err("the checksum is wrong");
        }
        if get_u32(block, 8) < VERSION {
            return Err("made by an earlier version of homenode, as format 1: copy the files with that version");
        }
        if get_u32(block, 8) != VERSION || get_u64(block, 32) & !LOGS_TWICE != 0 {
            return Err("made by a later version of homenode");
        }
        let count = usize::from(get_u16(block, 58));
        if count == 0 || count > MAX_REGIONS {
            return Err("the number of regions is impossible");
        }
        let regions = (0..count).map(|i| REGIONS_FROM + i * REGION).map(|at| Region {
            blocks: get_u64(block, at),
            inodes: get_u64(block, at + 8),
            node: u32::try_from(get_u32(block, at + 16) as i32).ok(),
        });
        let superblock = Self {
            volume: super::bytes(block, 40),
            index: usize::from(get_u16(block, 56)),
            journals: get_u32(block, 60),
            created: get_i64(block, 64),
            ro_features: get_u64(block, 24),
            features: get_u64(block, 32),
            regions: regions.collect(),
        };
        superblock.check()?;
        Ok(superblock)
    }

    /// Whether everything fits in its region.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.index >= self.regions.len() || self.regions.len() > MAX_REGIONS {
            return Err("the index of the region is impossible");
        }
        if self.journals == 0 || self.journals > MAX_JOURNALS {
            return Err("the number of journals is impossible");
        }
        if self.has_twins() && self.regions.len() < 2 {
            return Err("to keep the logs twice takes two regions or more");
        }
        let possible = |region: &Region| {
            region.blocks <= Block::MAX_IN_REGION && (2..=u64::from(u32::MAX)).contains(&region.inodes)
        };
        let fits = |(index, region): (usize, &Region)| {
            self.regions.iter().all(possible) && self.data_from_of(index, region) < data_end_of(region.blocks)
        };
        if self.regions.iter().enumerate().all(fits) { Ok(()) } else { Err("a region is too small or too large") }
    }

    pub fn journals_of(&self, region: usize) -> impl Iterator<Item = Block> + use<> {
        (0..u64::from(self.journals)).map(move |i| Block::new(region, JOURNALS_FROM + i))
    }

    /// First block of a region that may hold log pages or data.
    pub fn data_from(&self, region: usize) -> Option<u64> {
        let layout = self.regions.get(region)?;
        Some(if self.has_twins() { self.table_end(layout) } else { self.data_from_of(region, layout) })
    }

    /// The block after the last one of a region that may hold them.
    pub fn data_end(&self, region: usize) -> u64 {
        self.regions.get(region).map_or(0, |region| data_end_of(region.blocks))
    }

    /// The blocks of a region that may hold log pages.
    pub fn pages(&self, region: usize) -> Range<u64> {
        match self.regions.get(region) {
            Some(layout) if self.has_twins() => self.table_end(layout)..self.area_end(layout),
            _ => self.data(region),
        }
    }

    /// The blocks of a region that may hold data.
    pub fn data(&self, region: usize) -> Range<u64> {
        self.regions.get(region).map_or(0..0, |layout| self.data_from_of(region, layout)..data_end_of(layout.blocks))
    }

    /// The blocks of a region that have a twin, from its journals to the end of its log pages; and
    /// the region and the block where that begins.
    pub fn twin(&self, region: usize) -> Option<(Range<u64>, usize, u64)> {
        let own = self.regions.get(region).filter(|_| self.has_twins())?;
        let other = (region + 1) % self.regions.len();
        Some((JOURNALS_FROM..self.area_end(own), other, self.area_end(self.regions.get(other)?)))
    }

    /// Whether the metadata of each region has a twin in the next one.
    pub fn has_twins(&self) -> bool {
        self.features & LOGS_TWICE != 0
    }

    fn data_from_of(&self, index: usize, region: &Region) -> u64 {
        let sums = if self.has_checksums() { region.blocks.div_ceil(SUMS_PER_BLOCK) } else { 0 };
        self.sums_from(index, region) + sums
    }

    fn sums_from(&self, index: usize, region: &Region) -> u64 {
        if !self.has_twins() {
            return self.table_end(region);
        }
        let before = index.checked_sub(1).unwrap_or(self.regions.len() - 1);
        let twin = self.regions.get(before).map_or(0, |before| self.area_end(before) - JOURNALS_FROM);
        self.area_end(region) + twin
    }

    fn table_end(&self, region: &Region) -> u64 {
        self.table_from() + region.inodes.div_ceil(inode::PER_BLOCK)
    }

    /// Where a log page for each inode ends.
    fn area_end(&self, region: &Region) -> u64 {
        self.table_end(region) + region.inodes
    }

    pub fn has_checksums(&self) -> bool {
        self.ro_features & DATA_CHECKSUMS != 0
    }

    /// Where the checksum of a block of file data is: its block and the offset in it. `None`: there
    /// are none.
    pub fn sum_at(&self, block: Block) -> Option<(Block, u64)> {
        let region = self.regions.get(block.region()).filter(|_| self.has_checksums() && self.is_data(block, 1))?;
        let at = self.sums_from(block.region(), region) + block.index() / SUMS_PER_BLOCK;
        Some((Block::new(block.region(), at), block.index() % SUMS_PER_BLOCK * SUM))
    }

    fn table_from(&self) -> u64 {
        JOURNALS_FROM + u64::from(self.journals)
    }

    /// Where an inode is: its block and the offset in it. `None`: the volume has no such inode.
    pub fn inode_at(&self, ino: Ino) -> Option<(Block, u64)> {
        let slot = u64::from(ino.slot());
        let region = self.regions.get(ino.region()).filter(|r| slot != 0 && slot < r.inodes)?;
        debug_assert!(region.blocks <= Block::MAX_IN_REGION);
        let block = self.table_from() + slot / inode::PER_BLOCK;
        Some((Block::new(ino.region(), block), slot % inode::PER_BLOCK * inode::SIZE as u64))
    }

    /// Whether `count` blocks from `block` on can hold data.
    pub fn is_data(&self, block: Block, count: u64) -> bool {
        let (may, end) = (self.data(block.region()), block.index().checked_add(count));
        block.index() >= may.start && end.is_some_and(|end| end <= may.end) && may.start < may.end
    }

    /// Whether a block can hold a log page.
    pub fn is_page(&self, block: Block) -> bool {
        self.pages(block.region()).contains(&block.index())
    }
}
