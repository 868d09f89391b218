//! The header of a log page: slot 0 of 64.
//!
//! ```text
//!  0  CRC32C of bytes 4–31     u32
//!  4  magic "HLOG"             4 bytes
//!  8  inode number             u64
//! 16  generation               u32
//! 20  sequence                 u32
//! 24  address of this page     u64
//! 32  sealed word: next page   u64
//! 40  reserved, 0
//! ```

use super::mend;
use super::word::{self, Field, Owner};
use super::{Block, Ino, LINE, get_u32, get_u64, put};

/// Slots of a page.
pub const SLOTS: usize = super::BLOCK / LINE;
/// Offset of the word that names the next page.
pub const NEXT: u64 = 32;

const MAGIC: &[u8; 4] = b"HLOG";

/// Owner of the page, with which header and entries are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    pub ino: Ino,
    /// Which life of the inode.
    pub generation: u32,
    /// Sequence of the page within the log.
    pub sequence: u32,
}

/// The header of page `at`, with no next page.
pub fn encode(seal: Seal, at: Block) -> [u8; LINE] {
    let mut line = [0; LINE];
    put(&mut line, 4, MAGIC);
    put(&mut line, 8, &seal.ino.raw().to_le_bytes());
    put(&mut line, 16, &seal.generation.to_le_bytes());
    put(&mut line, 20, &seal.sequence.to_le_bytes());
    put(&mut line, 24, &at.raw().to_le_bytes());
    let crc = crc32c::crc32c(&line[4..32]);
    put(&mut line, 0, &crc.to_le_bytes());
    line
}

/// The sequence of page `at` of this inode, also where a bit of its header has flipped. An error
/// says what is wrong with the header.
pub fn decode(page: &[u8], ino: Ino, generation: u32, at: Block) -> Result<u32, &'static str> {
    decode_whole(page, ino, generation, at).or_else(|what| {
        let mut header: [u8; 32] = super::bytes(page, 0);
        mend::flip(&mut header, |header| decode_whole(header, ino, generation, at).is_ok()).ok_or(what)?;
        decode_whole(&header, ino, generation, at)
    })
}

/// The same of a header that is whole.
pub fn decode_whole(page: &[u8], ino: Ino, generation: u32, at: Block) -> Result<u32, &'static str> {
    let body = page.get(4..32).ok_or("a log page is short")?;
    if crc32c::crc32c(body) != get_u32(page, 0) {
        return Err("a log page's checksum is wrong");
    }
    let whose = (get_u64(page, 8), get_u32(page, 16), get_u64(page, 24));
    if body.get(..4) != Some(MAGIC.as_slice()) || whose != (ino.raw(), generation, at.raw()) {
        return Err("a log page is another inode's");
    }
    Ok(get_u32(page, 20))
}

/// The word that names `next` as the page after `at`.
pub fn next_word(at: Block, generation: u32, next: Block) -> u64 {
    word::seal(Owner { id: at.raw(), generation }, Field::Next, next.raw())
}

/// The page after `at`. An error says what is wrong.
pub fn next(page: &[u8], at: Block, generation: u32) -> Result<Block, &'static str> {
    let owner = Owner { id: at.raw(), generation };
    let raw = word::unseal_mended(owner, Field::Next, get_u64(page, NEXT as usize))
        .ok_or("a log's next page fails the check")?;
    match Block::from_raw(raw) {
        Some(block) if block != Block::NONE => Ok(block),
        _ => Err("the log ends before its tail"),
    }
}
