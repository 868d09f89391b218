//! Metadata in two regions: what is stored in one is stored in its twin, too.
//!
//! **Problem.** A region that is lost takes along the names and logs of what was made there, and a
//! line that is damaged what it said.
//!
//! **Approach.** This medium lies over that of the volume. Each store to the metadata of a region,
//! and each flush of it, is done again at the same distance in the next region, so that both are in
//! front of the same fences. A read takes both copies. Where they differ, or one cannot be read,
//! each line is that of the first copy if it is whole by its own check, else that of the twin
//! ([`whole`]). After a crash both may be whole and differ, by what no fence had waited for: the
//! first counts, and the mount writes the twin anew.
//!
//! A read fails only where both copies do, a store where one of them does: what one copy has missed
//! could not be told from what it says, once it can be read again. So whoever stores what a reader
//! may see asks before whether both can be stored to ([`Medium::can_store`]). What is only looked
//! at is stored to nowhere, and there one copy is enough.
//!
//! **Limits.** Data has no twin, nor have its checksums, superblocks and the state word.

use std::ops::Range;

use super::{At, Medium};
use crate::error::{Error, Result};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, BLOCK_BYTES, Block, Ino, LINE, whole};

/// What two copies are worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// The first has lines that are damaged, or that cannot be read.
    pub first: bool,
    /// The twin has lines that are others than those of the first, or that cannot be read.
    pub twin: bool,
    /// One of them has lines that cannot be read.
    pub unreadable: bool,
}

/// Where the metadata of a region is, in bytes, and its twin.
#[derive(Clone, Debug)]
struct Area {
    first: Range<u64>,
    twin: At,
    /// Where in the region what begins.
    tables: u64,
    pages: u64,
}

/// A medium of which the metadata has twins.
pub struct Twins {
    below: Box<dyn Medium>,
    /// A store fails where it fails in one copy.
    strict: bool,
    areas: Vec<Area>,
}

/// Both copies of a block, line by line.
struct Both {
    first: [u8; BLOCK],
    twin: [u8; BLOCK],
    /// A bit for each line that cannot be read.
    unread: [u64; 2],
    says: [u8; BLOCK],
}

impl Twins {
    /// Over a medium of this layout.
    pub fn new(below: Box<dyn Medium>, superblock: &Superblock) -> Self {
        let area = |region: usize| {
            let (blocks, other, first) = superblock.twin(region)?;
            let bytes = |block: u64| block * BLOCK_BYTES;
            Some(Area {
                first: bytes(blocks.start)..bytes(blocks.end),
                twin: At { region: other, offset: bytes(first) },
                tables: bytes(blocks.start + u64::from(superblock.journals)),
                pages: bytes(superblock.pages(region).start),
            })
        };
        let strict = below.keeps();
        Self { below, strict, areas: (0..superblock.regions.len()).filter_map(area).collect() }
    }

    /// Where the twin of some bytes is; `None`: they have none.
    fn twin(&self, at: At) -> Option<At> {
        let area = self.areas.get(at.region).filter(|area| area.first.contains(&at.offset))?;
        Some(area.twin.plus(at.offset - area.first.start))
    }

    fn both(&self, at: At, act: impl Fn(At) -> Result<()>) -> Result<()> {
        match self.twin(at) {
            Some(twin) if self.strict => act(at).and_then(|()| act(twin)),
            Some(twin) => either(act(at), act(twin)),
            None => act(at),
        }
    }

    /// Whether these bytes are of a journal or an inode table: what is stored there is seen at
    /// once.
    fn is_seen(&self, at: At) -> bool {
        self.areas.get(at.region).is_some_and(|area| (area.first.start..area.pages).contains(&at.offset))
    }

    /// Whether a twin can be read, into a buffer of as many bytes or more, and says the same.
    fn is_alike(&self, twin: At, first: &[u8], buffer: &mut [u8]) -> bool {
        buffer.get_mut(..first.len()).is_some_and(|other| self.below.read(twin, other).is_ok() && *other == *first)
    }

    /// Reads one copy of a block, as far as it can be read; the bits of the lines that cannot.
    fn read_lines(&self, at: At, out: &mut [u8; BLOCK]) -> Result<u64> {
        match self.below.read(at, out) {
            Err(Error::Io(_)) => {}
            read => return read.map(|()| 0),
        }
        let mut unread = 0;
        for (i, line) in out.chunks_exact_mut(LINE).enumerate() {
            match self.below.read(at.plus((i * LINE) as u64), line) {
                Err(Error::Io(_)) => {
                    line.fill(0xff);
                    unread |= 1 << i;
                }
                read => read?,
            }
        }
        Ok(unread)
    }

    /// Both copies of the block that these bytes are in, and what it says.
    fn block(&self, at: At, twin: At) -> Result<Both> {
        let within = at.offset % BLOCK_BYTES;
        let begin = |at: At| At { offset: at.offset - within, ..at };
        let blank = [0; BLOCK];
        let mut both = Both { first: blank, twin: blank, unread: [0; 2], says: blank };
        both.unread = [self.read_lines(begin(at), &mut both.first)?, self.read_lines(begin(twin), &mut both.twin)?];
        both.says = both.first;
        let lines = both.says.chunks_exact_mut(LINE).zip(both.twin.chunks_exact(LINE)).enumerate();
        for (_, (line, twin)) in lines.filter(|(i, _)| both.unread[0] & !both.unread[1] >> i & 1 == 1) {
            line.copy_from_slice(twin);
        }
        let Some(area) = self.areas.get(at.region) else { return Ok(both) };
        let block = Block::new(at.region, at.offset / BLOCK_BYTES);
        if at.offset < area.tables {
            whole::journal(block, &mut both.says, &both.twin);
        } else if at.offset < area.pages {
            let slot = (begin(at).offset - area.tables) / LINE as u64;
            let ino = |i: usize| Ino::new(at.region, slot as u32 + i as u32);
            whole::inodes(ino, &mut both.says, &both.twin);
        } else {
            whole::page(block, &mut both.says, &both.twin);
        }
        Ok(both)
    }
}

/// What became of both copies, where one is enough: memory that fails is an error where both do.
fn either(first: Result<()>, twin: Result<()>) -> Result<()> {
    match (first, twin) {
        (Err(Error::Io(_)), Ok(())) | (Ok(()), Err(Error::Io(_))) => Ok(()),
        (first, twin) => first.and(twin),
    }
}

/// The bits of the lines of a block that these bytes are in.
fn lines(at: At, len: usize) -> impl Iterator<Item = usize> {
    let from = (at.offset % BLOCK_BYTES) as usize;
    from / LINE..(from + len).min(BLOCK).div_ceil(LINE)
}

impl Medium for Twins {
    fn below(&self) -> Option<&dyn Medium> {
        Some(&*self.below)
    }

    /// Whether no metadata of a region is there.
    fn is_missing(&self, region: usize) -> bool {
        let twin = self.areas.get(region).is_none_or(|area| self.below.is_missing(area.twin.region));
        twin && self.below.is_missing(region)
    }

    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        let Some(twin) = self.twin(at) else { return self.below.read(at, out) };
        if self.below.is_missing(twin.region) {
            return self.below.read(at, out);
        }
        if self.below.is_missing(at.region) {
            return self.below.read(twin, out);
        }
        let first = self.below.read(at, out);
        // To clear a block takes longer than to read a line.
        let alike = if out.len() <= LINE {
            self.is_alike(twin, out, &mut [0; LINE])
        } else {
            self.is_alike(twin, out, &mut [0; BLOCK])
        };
        if first.is_ok() && alike {
            return Ok(());
        }
        let both = self.block(at, twin)?;
        let lost = both.unread[0] & both.unread[1];
        let from = (at.offset % BLOCK_BYTES) as usize;
        match both.says.get(from..from + out.len()) {
            Some(says) if !lines(at, out.len()).any(|line| lost >> line & 1 == 1) => out.copy_from_slice(says),
            _ => return first,
        }
        Ok(())
    }

    fn keeps(&self) -> bool {
        self.strict
    }

    fn can_store(&self, at: At) -> Result<()> {
        self.both(at, |at| self.below.can_store(at))
    }

    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        if self.is_seen(at) {
            let end = at.offset + data.len() as u64;
            let mut lines = (at.offset / LINE as u64 * LINE as u64..end).step_by(LINE);
            lines.try_for_each(|offset| self.can_store(At { offset, ..at }))?;
        }
        self.both(at, |at| self.below.write(at, data))
    }

    fn copy_data(&self, from: At, to: At, len: usize) -> Result<()> {
        self.below.copy_data(from, to, len)
    }

    fn compare(&self, at: At, len: usize, mend: bool) -> Result<Copies> {
        let gone = |at: At| self.below.is_missing(at.region);
        let Some(twin) = self.twin(at).filter(|twin| !gone(at) && !gone(*twin)) else {
            return Ok(Copies::default());
        };
        let both = self.block(at, twin)?;
        let mut found = Copies::default();
        for line in lines(at, len) {
            let bytes = line * LINE..(line + 1) * LINE;
            let unread = both.unread.map(|lines| lines >> line & 1 == 1);
            let says = both.says.get(bytes.clone()).unwrap_or_default();
            let mut is_bad = [false; 2];
            let places = [(&both.first, at), (&both.twin, twin)];
            for (((copy, at), unread), is_bad) in places.into_iter().zip(unread).zip(&mut is_bad) {
                *is_bad = unread || copy.get(bytes.clone()) != Some(says);
                // A store to memory that has failed could end the process.
                if mend && *is_bad && !unread {
                    let place = At { offset: at.offset / BLOCK_BYTES * BLOCK_BYTES + bytes.start as u64, ..at };
                    self.below.write(place, says)?;
                    self.below.flush(place, LINE as u64)?;
                }
            }
            let [first, twin] = is_bad;
            found = Copies {
                first: found.first || first,
                twin: found.twin || twin,
                unreadable: found.unreadable || unread.contains(&true),
            };
        }
        Ok(found)
    }

    fn load_u64(&self, at: At) -> Result<u64> {
        if self.twin(at).is_none() {
            return self.below.load_u64(at);
        }
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store_anywhere(&self, at: At, word: u64) -> Result<()> {
        match self.twin(at) {
            Some(twin) => either(self.below.store_anywhere(at, word), self.below.store_anywhere(twin, word)),
            None => self.below.store_anywhere(at, word),
        }
    }

    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        if self.is_seen(at) {
            self.can_store(at)?;
        }
        self.both(at, |at| self.below.store_u64(at, word))
    }

    fn flush(&self, at: At, len: u64) -> Result<()> {
        let Some(area) = self.areas.get(at.region) else { return self.below.flush(at, len) };
        let (from, end) = (at.offset.max(area.first.start), (at.offset + len).min(area.first.end));
        if from >= end {
            return self.below.flush(at, len);
        }
        let twin = area.twin.plus(from - area.first.start);
        let (first, twin) = (self.below.flush(at, len), self.below.flush(twin, end - from));
        if self.strict { first.and(twin) } else { either(first, twin) }
    }
}
