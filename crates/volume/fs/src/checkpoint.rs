//! The checkpoint that a clean unmount leaves, so that the next mount need not read all logs.
//!
//! **Problem.** Finding out which blocks and inodes are free takes a look at every log: seconds for
//! millions of extents.
//!
//! **Approach.** Unmounting writes both down, and the parent of each directory, as words in a chain
//! of blocks, with what lets a long log be read in part. These blocks are free, also by what they
//! say: nobody needs to give them back. The state word names the first one, so the checkpoint is
//! valid exactly until the volume is mounted. Inodes are read when they are first asked for.
//!
//! **Limits.** A checkpoint that cannot be used is no damage for a mount, which reads the logs
//! then. Only `fsck` compares it with them.

use crate::error::{Error, Result};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, Block, Ino, get_u32, get_u64, put};
use crate::scan::Long;
use crate::store::{Dirty, Store};

const MAGIC: &[u8; 4] = b"HCKP";
const WORDS_FROM: usize = 40;
const WORDS: usize = (BLOCK - WORDS_FROM) / 8;

/// Free blocks, and the parent of each inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// For each region its free runs, in order: first block and count.
    pub free: Vec<Vec<(u64, u64)>>,
    /// For each region a bit for each slot of the inode table up to the last one in use.
    pub inodes: Vec<Vec<u64>>,
    /// Directories and their parents.
    pub parents: Vec<(Ino, Ino)>,
    /// Inodes of which not all of the log has to be read.
    pub long: Vec<(Ino, Long)>,
}

impl Checkpoint {
    fn encode(&self) -> Vec<u64> {
        let mut words = Vec::new();
        for (free, inodes) in self.free.iter().zip(&self.inodes) {
            words.extend([free.len() as u64, inodes.len() as u64]);
            words.extend(free.iter().flat_map(|(start, count)| [*start, *count]));
            words.extend(inodes);
        }
        words.push(self.parents.len() as u64);
        words.extend(self.parents.iter().flat_map(|(dir, parent)| [dir.raw(), parent.raw()]));
        words.push(self.long.len() as u64);
        for (ino, long) in &self.long {
            words.extend([ino.raw(), u64::from(long.runs), long.blocks.len() as u64]);
            words.extend(&long.blocks);
        }
        words
    }

    /// Reads the words. `None`: they cannot be true.
    fn decode(superblock: &Superblock, words: &[u64]) -> Option<Self> {
        let mut rest = words;
        let mut take = |count: u64| {
            let (taken, after) = rest.split_at_checked(usize::try_from(count).ok()?)?;
            rest = after;
            Some(taken)
        };
        let pairs = |words: &[u64]| -> Vec<(u64, u64)> {
            words.chunks_exact(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?))).collect()
        };
        let mut out = Self::default();
        for (i, region) in superblock.regions.iter().enumerate() {
            let [free, inodes] = *take(2)? else { return None };
            let free = pairs(take(free.checked_mul(2)?)?);
            let mut end = superblock.data_from(i)?;
            for (start, count) in &free {
                let next = start.checked_add(*count)?;
                if *start < end || *count == 0 || next > superblock.data_end(i) {
                    return None;
                }
                end = next;
            }
            let inodes = take(inodes)?.to_vec();
            let last = inodes.iter().rposition(|word| *word != 0);
            let last = last.and_then(|at| Some(at as u64 * 64 + 63 - u64::from(inodes.get(at)?.leading_zeros())));
            if last.is_some_and(|last| last >= region.inodes) || inodes.len() as u64 > region.inodes.div_ceil(64) {
                return None;
            }
            out.free.push(free);
            out.inodes.push(inodes);
        }
        let [count] = *take(1)? else { return None };
        let parents = pairs(take(count.checked_mul(2)?)?);
        out.parents =
            parents.into_iter().map(|(a, b)| Some((Ino::from_raw(a)?, Ino::from_raw(b)?))).collect::<Option<_>>()?;
        let [count] = *take(1)? else { return None };
        for _ in 0..count {
            let [ino, runs, regions] = *take(3)? else { return None };
            let blocks = take(regions).filter(|_| regions <= superblock.regions.len() as u64)?;
            if (0..).zip(blocks).any(|(region, blocks)| *blocks > superblock.data_end(region)) {
                return None;
            }
            let blocks = blocks.into();
            out.long.push((Ino::from_raw(ino)?, Long { runs: u32::try_from(runs).ok()?, blocks }));
        }
        Some(out)
    }

    /// Blocks that it takes.
    pub fn blocks(&self) -> usize {
        self.encode().len().div_ceil(WORDS)
    }

    /// Free blocks for it, from the last one of the volume down; fewer than it takes if there are
    /// not more.
    pub fn places(&self) -> Vec<Block> {
        let runs = self.free.iter().enumerate().rev();
        let runs =
            runs.flat_map(|(region, runs)| runs.iter().rev().map(move |(start, count)| (region, *start, *count)));
        let blocks = runs.flat_map(|(region, start, count)| {
            (start..start + count).rev().map(move |index| Block::new(region, index))
        });
        blocks.take(self.blocks()).collect()
    }

    /// Writes it to blocks, as many as it takes. `stamp` tells it from earlier ones.
    pub fn write(&self, store: &Store, blocks: &[Block], stamp: u64) -> Result<Dirty> {
        let words = self.encode();
        let mut dirty = Dirty::default();
        let nexts = blocks.iter().skip(1).copied().chain([Block::NONE]);
        for ((chunk, at), next) in words.chunks(WORDS).zip(blocks).zip(nexts) {
            let mut block = [0; BLOCK];
            put(&mut block, 4, MAGIC);
            put(&mut block, 8, &at.raw().to_le_bytes());
            put(&mut block, 16, &next.raw().to_le_bytes());
            put(&mut block, 24, &stamp.to_le_bytes());
            put(&mut block, 32, &(chunk.len() as u32).to_le_bytes());
            for (i, word) in chunk.iter().enumerate() {
                put(&mut block, WORDS_FROM + i * 8, &word.to_le_bytes());
            }
            let crc = crc32c::crc32c(block.get(4..).unwrap_or_default());
            put(&mut block, 0, &crc.to_le_bytes());
            dirty.and(store.write(*at, 0, &block)?);
        }
        Ok(dirty)
    }

    /// Reads a checkpoint. `Ok(None)`: it cannot be used.
    pub fn read(store: &Store, first: Block) -> Result<Option<Self>> {
        let superblock = store.superblock();
        let (mut at, mut words, mut stamp) = (first, Vec::new(), None);
        while at != Block::NONE {
            if !superblock.is_data(at, 1) && !superblock.is_page(at) {
                return Ok(None);
            }
            let block = match store.read_block(at) {
                Err(Error::Io(_)) => return Ok(None),
                block => block?,
            };
            let block = block.as_slice();
            let count = get_u32(block, 32) as usize;
            let valid = crc32c::crc32c(block.get(4..).unwrap_or_default()) == get_u32(block, 0)
                && block.get(4..8) == Some(MAGIC.as_slice())
                && get_u64(block, 8) == at.raw()
                && *stamp.get_or_insert(get_u64(block, 24)) == get_u64(block, 24)
                && count <= WORDS;
            // Each before the one that names it: a chain that leads back to itself would be read
            // for ever.
            let next = Block::from_raw(get_u64(block, 16)).filter(|next| valid && *next < at);
            let Some(next) = next else { return Ok(None) };
            words.extend((0..count).map(|i| get_u64(block, WORDS_FROM + i * 8)));
            at = next;
        }
        Ok(Self::decode(superblock, &words))
    }
}

/// Whether a region's bits say that a slot is in use.
pub fn is_used(inodes: &[u64], slot: u32) -> bool {
    inodes.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
}
