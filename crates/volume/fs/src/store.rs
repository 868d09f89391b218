//! The volume's memory, addressed by block, with the order of stores in the types.
//!
//! **Problem.** A commit is wrong if anything it refers to is not durable yet. Forgetting one flush
//! is the classic fault of file systems on persistent memory, and no test that does not crash sees
//! it.
//!
//! **Approach.** What was stored is [`Dirty`]; flushing makes it [`Flushed`], a fence makes it
//! [`Durable`]. The values cannot be copied, ignoring one is a compiler warning, and
//! [`Store::commit`] takes only the last.
//!
//! When a fence or a commit fails, or an operation panics while it commits, nobody knows what a
//! crash would find. From then on the volume is *in doubt*: it stores nothing more, in no block, as
//! the medium may name blocks that this mount takes for free. It only reads; the next mount
//! recovers. A commit of one word is not in doubt when the store of it fails: it has not happened.
//!
//! Where memory fails, the access is an error, and the [`Failed`] blocks are given to nobody until
//! the next mount, which may meet them again.
//!
//! **Limits.** The types do not know *which* stores a commit refers to: the caller brings them
//! together with `and`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use crate::error::{Damage, Error, Result, UNREADABLE};
use crate::format::superblock::{SUM, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES, Block, Ino, LINE, journal};
use crate::medium::{At, Copies, Medium, Twins};
use crate::salvage::LogPages;
use crate::volume::lock;

const LINE_BYTES: u64 = LINE as u64;

/// Stored, not yet flushed: lines.
#[must_use = "stores that are not flushed may be lost"]
#[derive(Debug, Default)]
pub struct Dirty(SmallVec<[(At, u64); 2]>);

/// Flushed, not yet fenced.
#[must_use = "flushed stores are durable only after a fence"]
#[derive(Debug)]
pub struct Flushed(());

/// Durable: survives a crash from now on.
#[derive(Debug)]
pub struct Durable(());

impl Dirty {
    fn new(at: At, len: u64) -> Self {
        let from = at.offset / LINE_BYTES * LINE_BYTES;
        let len = (at.offset + len).next_multiple_of(LINE_BYTES) - from;
        let mut lines = SmallVec::new();
        lines.push((At { offset: from, ..at }, len));
        Self(lines)
    }

    /// Adds other stores. Lines that follow one another, or are the same, are flushed once.
    pub fn and(&mut self, other: Self) {
        if self.0.is_empty() {
            *self = other;
            return;
        }
        for (at, len) in other.0 {
            // Two, because blocks with checksums come in turn with the line of their checksums.
            let near = self.0.iter_mut().rev().take(2).find(|(known, known_len)| {
                known.region == at.region && (known.offset..=known.offset + known_len).contains(&at.offset)
            });
            match near {
                Some((known, known_len)) => *known_len = (*known_len).max(at.offset + len - known.offset),
                None => self.0.push((at, len)),
            }
        }
    }

    /// Begins to write them back.
    pub fn flush(self, store: &Store) -> Result<Flushed> {
        for (at, len) in &self.0 {
            store.medium.flush(*at, *len)?;
        }
        Ok(Flushed(()))
    }
}

impl Flushed {
    /// Nothing to wait for.
    pub fn nothing() -> Self {
        Self(())
    }

    pub fn and(self, _other: Self) -> Self {
        self
    }

    pub fn fence(self, store: &Store) -> Result<Durable> {
        store.certain(|| store.medium.fence())?;
        Ok(Durable(()))
    }
}

pub struct Store {
    medium: Box<dyn Medium>,
    superblock: Superblock,
    in_doubt: AtomicBool,
    /// One of two copies may say otherwise once it can be read again.
    one_sided: AtomicBool,
    frozen: AtomicBool,
    failed: Arc<Failed>,
    /// Regions that are not there, also where a twin has their metadata.
    lost: Vec<usize>,
    /// Where a damaged log was met.
    pages: Mutex<Option<Arc<LogPages>>>,
}

/// Blocks whose memory has failed since the mount.
#[derive(Debug, Default)]
pub struct Failed {
    any: AtomicBool,
    blocks: Mutex<BTreeSet<Block>>,
}

impl Failed {
    fn add(&self, block: Block) {
        lock(&self.blocks).insert(block);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there are any: as a rule not.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub fn has(&self, block: Block) -> bool {
        self.any() && lock(&self.blocks).contains(&block)
    }

    /// Those among `count` blocks from `block` on, as offsets from it, in order.
    pub fn within(&self, block: Block, count: u64) -> Vec<u64> {
        if !self.any() {
            return Vec::new();
        }
        let offset = |bad: &Block| bad.raw() - block.raw();
        lock(&self.blocks).range(block..).map(offset).take_while(|offset| *offset < count).collect()
    }

    pub fn count(&self) -> usize {
        lock(&self.blocks).len()
    }
}

impl Store {
    /// A store over regions that were checked against `superblock`.
    pub fn new(medium: Box<dyn Medium>, superblock: Superblock) -> Self {
        let lost = (0..medium.regions()).filter(|region| medium.is_missing(*region)).collect();
        let medium = if superblock.has_twins() { Box::new(Twins::new(medium, &superblock)) } else { medium };
        let [in_doubt, one_sided, frozen] = [false; 3].map(AtomicBool::new);
        Self { medium, superblock, in_doubt, one_sided, frozen, lost, failed: Arc::default(), pages: Mutex::default() }
    }

    pub fn failed(&self) -> &Arc<Failed> {
        &self.failed
    }

    /// An access to some blocks. Where it fails, those are noted that cannot be stored to.
    fn access<const N: usize>(&self, blocks: [(Block, u64); N], access: impl FnOnce() -> Result<()>) -> Result<()> {
        access().inspect_err(|error| {
            let all = blocks.into_iter().flat_map(|(block, count)| (0..count).map(move |i| block.offset(i)));
            let has_failed = |block: &Block| {
                let mut lines = (0..BLOCK_BYTES).step_by(LINE);
                lines.any(|line| matches!(self.medium.can_store(at(*block, line)), Err(Error::Io(_))))
            };
            if matches!(error, Error::Io(_)) {
                all.filter(has_failed).for_each(|block| self.failed.add(block));
            }
        })
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The pages of all logs, which `look` finds the first time.
    pub fn log_pages(&self, look: impl FnOnce() -> Result<LogPages>) -> Result<Arc<LogPages>> {
        let mut pages = lock(&self.pages);
        if let Some(pages) = &*pages {
            return Ok(Arc::clone(pages));
        }
        Ok(Arc::clone(pages.insert(Arc::new(look()?))))
    }

    /// Gives back the memory for them.
    pub fn forget_log_pages(&self) {
        lock(&self.pages).take();
    }

    /// Whether a region is not there, whatever a twin has of it.
    pub fn is_lost(&self, region: usize) -> bool {
        self.lost.contains(&region)
    }

    /// Whether a region is not there at all.
    pub fn is_missing(&self, region: usize) -> bool {
        self.medium.is_missing(region)
    }

    /// Fails when the volume is only looked at, or an earlier error left it in doubt.
    pub fn check_writable(&self) -> Result<()> {
        if self.is_frozen() || self.in_doubt() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Whether an earlier error left the volume in doubt.
    pub fn in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// Ends all stores: from here on the volume is only looked at.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// Whether the volume is only looked at.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    pub fn read(&self, block: Block, offset: u64, out: &mut [u8]) -> Result<()> {
        let blocks = (offset + out.len() as u64).div_ceil(BLOCK_BYTES);
        self.access([(block, blocks)], || self.medium.read(at(block, offset), out))
    }

    pub fn read_block(&self, block: Block) -> Result<Box<[u8; BLOCK]>> {
        let mut out = Box::new([0; BLOCK]);
        self.read(block, 0, out.as_mut_slice())?;
        Ok(out)
    }

    /// What the two copies of a part of a block are worth ([`Medium::compare`]). With `mend` they
    /// are alike afterwards, and after the next fence durably so.
    pub fn compare(&self, block: Block, offset: u64, len: usize, mend: bool) -> Result<Copies> {
        let found = self.medium.compare(at(block, offset), len, mend && self.check_writable().is_ok())?;
        if mend && found.unreadable {
            self.one_sided.store(true, Ordering::Relaxed);
        }
        Ok(found)
    }

    /// Whether a copy could not be made like the other one, or missed the end of a journal: only a
    /// mount that makes both alike may believe them.
    pub fn is_one_sided(&self) -> bool {
        self.one_sided.load(Ordering::Relaxed)
    }

    pub fn write(&self, block: Block, offset: u64, data: &[u8]) -> Result<Dirty> {
        self.check_writable()?;
        let at = at(block, offset);
        self.access([(block, 1)], || self.medium.write(at, data))?;
        Ok(Dirty::new(at, data.len() as u64))
    }

    /// Copies file data to one or more adjacent blocks, all of them, with their checksums where the
    /// volume has them: only these are left to flush. The blocks are new: nothing that is committed
    /// refers to them, so neither data nor checksum is seen before the commit.
    pub fn write_data(&self, block: Block, data: &[u8]) -> Result<Dirty> {
        debug_assert!(data.len().is_multiple_of(BLOCK));
        self.check_writable()?;
        let count = (data.len() / BLOCK) as u64;
        self.access([(block, count)], || self.medium.write_data(at(block, 0), data))?;
        let mut dirty = Dirty::default();
        if self.superblock.has_checksums() {
            for (i, contents) in data.chunks(BLOCK).enumerate() {
                let block = block.offset(i as u64);
                let (sums, offset) = self.superblock.sum_at(block).ok_or(Error::OutOfRange(block))?;
                let stored = self.write(sums, offset, &crc32c::crc32c(contents).to_le_bytes());
                dirty.and(stored.inspect_err(|_| {
                    // Data without a sum cannot be read: nobody gets it again.
                    if self.failed.has(sums) {
                        self.failed.add(block);
                    }
                })?);
            }
        }
        Ok(dirty)
    }

    /// Copies `count` blocks of file data to new blocks, after checking them where the volume has
    /// checksums.
    pub fn copy_data(&self, from: Block, to: Block, count: u64) -> Result<Dirty> {
        let len = usize::try_from(count * BLOCK_BYTES).map_err(|_| Error::OutOfRange(from))?;
        if !self.superblock.has_checksums() {
            self.check_writable()?;
            self.access([(from, count), (to, count)], || self.medium.copy_data(at(from, 0), at(to, 0), len))?;
            return Ok(Dirty::default());
        }
        let mut buffer = vec![0; len];
        self.read_data(from, 0, &mut buffer)?;
        self.write_data(to, &buffer)
    }

    /// Copies file data from one or more adjacent blocks, after checking it where the volume has
    /// checksums.
    pub fn read_data(&self, block: Block, offset: u64, out: &mut [u8]) -> Result<()> {
        if !self.superblock.has_checksums() {
            return self.read(block, offset, out);
        }
        let (mut at, mut out) = (offset, out);
        while !out.is_empty() {
            let (block, within) = (block.offset(at / BLOCK_BYTES), (at % BLOCK_BYTES) as usize);
            let (part, rest) = out.split_at_mut(out.len().min(BLOCK - within));
            if part.len() == BLOCK {
                self.read(block, 0, part)?;
                self.check_data(block, part)?;
            } else {
                let whole = self.read_block(block)?;
                self.check_data(block, whole.as_slice())?;
                part.copy_from_slice(whole.get(within..within + part.len()).unwrap_or_default());
            }
            at += part.len() as u64;
            out = rest;
        }
        Ok(())
    }

    fn check_data(&self, block: Block, contents: &[u8]) -> Result<()> {
        let (sums, offset) = self.superblock.sum_at(block).ok_or(Error::OutOfRange(block))?;
        let mut sum = [0; SUM as usize];
        self.read(sums, offset, &mut sum)?;
        if crc32c::crc32c(contents) == u32::from_le_bytes(sum) {
            Ok(())
        } else {
            Err(Damage::Data { block, path: None }.into())
        }
    }

    /// Stores a word that commits nothing.
    pub fn store_word(&self, block: Block, offset: u64, word: u64) -> Result<Dirty> {
        self.check_writable()?;
        let at = at(block, offset);
        self.access([(block, 1)], || self.medium.store_u64(at, word))?;
        Ok(Dirty::new(at, 8))
    }

    pub fn load_word(&self, block: Block, offset: u64) -> Result<u64> {
        let mut word = 0;
        self.access([(block, 1)], || {
            word = self.medium.load_u64(at(block, offset))?;
            Ok(())
        })?;
        Ok(word)
    }

    /// Fails where the memory of a line has failed: of two copies, in one of them.
    pub fn can_store(&self, block: Block, offset: u64) -> Result<()> {
        self.access([(block, 1)], || self.medium.can_store(at(block, offset)))
    }

    /// Commits: stores words after all that they refer to became durable, and waits until they are
    /// durable themselves.
    pub fn commit(&self, words: &[(Block, u64, u64)], _after: &Durable) -> Result<Durable> {
        if let [(block, offset, word)] = words {
            let stored = self.store_word(*block, *offset, *word).or_else(|error| {
                // Of two copies one may have it.
                match self.load_word(*block, *offset) {
                    Ok(seen) if seen == *word => self.certain(|| Err(error)),
                    _ => Err(error),
                }
            })?;
            return self.certain(|| stored.flush(self)?.fence(self));
        }
        self.certain(|| {
            let mut dirty = Dirty::default();
            for (block, offset, word) in words {
                dirty.and(self.store_word(*block, *offset, *word)?);
            }
            dirty.flush(self)?.fence(self)
        })
    }

    /// Ends a journal, after what it says was stored: in one copy if the other cannot be stored to,
    /// as one that says so is believed.
    pub fn end_journal(&self, journal: Block, after: &Durable) -> Result<Durable> {
        if !self.superblock.has_twins() {
            return self.commit(&[(journal, 0, 0)], after);
        }
        let word = journal::ended_word(journal);
        if self.can_store(journal, 0).is_ok() {
            return self.commit(&[(journal, 0, word)], after);
        }
        self.check_writable()?;
        self.one_sided.store(true, Ordering::Relaxed);
        self.medium.store_anywhere(at(journal, 0), word)?;
        Flushed(()).fence(self)
    }

    /// Stores a word that must not be seen before `after`, and that nobody waits for.
    pub fn store_after(&self, block: Block, offset: u64, word: u64, _after: &Durable) -> Result<()> {
        let Flushed(()) = self.store_word(block, offset, word)?.flush(self)?;
        Ok(())
    }

    /// Begins to write a line back that another thread has stored.
    pub fn flush_line(&self, block: Block, offset: u64) -> Result<Flushed> {
        Dirty::new(at(block, offset), 1).flush(self)
    }

    /// Runs a step that must not fail half-way. When it fails, the volume is in doubt.
    pub fn certain<T>(&self, step: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_writable()?;
        step().inspect_err(|_| self.in_doubt.store(true, Ordering::Relaxed))
    }

    /// Until it is dropped, a panic leaves the volume in doubt.
    pub fn doubt_if_it_panics(&self) -> impl Drop + '_ {
        struct Watch<'a>(&'a AtomicBool);
        impl Drop for Watch<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
        }
        Watch(&self.in_doubt)
    }

    /// An inode's line. One that cannot be read is damage of the inode.
    pub fn read_inode(&self, ino: Ino) -> Result<[u8; LINE]> {
        let ((block, offset), mut line) = (self.inode_at(ino)?, [0; LINE]);
        let unread = Damage::Inode { ino, what: UNREADABLE };
        self.read(block, offset, &mut line).map_err(|error| error.unread_is(unread))?;
        Ok(line)
    }

    /// Where an inode's line is.
    pub fn inode_at(&self, ino: Ino) -> Result<(Block, u64)> {
        self.superblock.inode_at(ino).ok_or(Error::NotFound)
    }
}

fn at(block: Block, offset: u64) -> At {
    At { region: block.region(), offset: block.index() * BLOCK_BYTES + offset }
}
