//! A journal: one block with the words that one operation stores in several inodes.
//!
//! ```text
//!  0  sealed word: CRC32C of the records (bits 8–39), number of records (bits 0–7); 0 = empty.
//!     Of two copies, one of a number of 0 that is sealed has ended, whatever the other one says
//! 64  records of 32 bytes: inode number u64, field u64 (2 head, 3 tail), new word u64, reserved u64
//! ```

use super::word::{self, Field, Owner};
use super::{Block, Ino, get_u64, inode, put};

/// Offset of the first record.
pub const RECORDS: usize = 64;
/// Bytes of a record.
pub const RECORD: usize = 32;
pub const MAX_RECORDS: usize = (super::BLOCK - RECORDS) / RECORD;

/// One word to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub ino: Ino,
    /// `Head` or `Tail`.
    pub field: Field,
    pub word: u64,
}

impl Record {
    /// Offset of the word in the inode's line.
    pub fn place(&self) -> u64 {
        if self.field == Field::Head { inode::HEAD } else { inode::TAIL }
    }
}

pub fn encode(records: &[Record]) -> Vec<u8> {
    let mut out = vec![0; records.len() * RECORD];
    for (record, place) in records.iter().zip(out.chunks_exact_mut(RECORD)) {
        put(place, 0, &record.ino.raw().to_le_bytes());
        put(place, 8, &u64::from(record.field as u32).to_le_bytes());
        put(place, 16, &record.word.to_le_bytes());
    }
    out
}

/// The word that commits `records`, the bytes of `count` records.
pub fn commit_word(at: Block, count: usize, records: &[u8]) -> u64 {
    let payload = u64::from(crc32c::crc32c(records)) << 8 | count as u64;
    word::seal(Owner { id: at.raw(), generation: 0 }, Field::Journal, payload)
}

/// The word of a journal that has ended, of two copies.
pub fn ended_word(at: Block) -> u64 {
    commit_word(at, 0, &[])
}

/// The records of a committed journal; none when it is empty. An error says what is wrong with it.
pub fn decode(at: Block, block: &[u8]) -> Result<Vec<Record>, &'static str> {
    let owner = Owner { id: at.raw(), generation: 0 };
    let payload = word::unseal(owner, Field::Journal, get_u64(block, 0)).ok_or("its commit word fails the check")?;
    let count = (payload & 0xff) as usize;
    if count == 0 {
        return Ok(Vec::new());
    }
    if count > MAX_RECORDS {
        return Err("it has more records than fit");
    }
    let records = block.get(RECORDS..RECORDS + count * RECORD).ok_or("it is short")?;
    if u64::from(crc32c::crc32c(records)) != payload >> 8 {
        return Err("its checksum is wrong");
    }
    records.chunks_exact(RECORD).map(record).collect()
}

fn record(bytes: &[u8]) -> Result<Record, &'static str> {
    let field = match get_u64(bytes, 8) {
        2 => Field::Head,
        3 => Field::Tail,
        _ => return Err("a record names no field"),
    };
    let ino = Ino::from_raw(get_u64(bytes, 0)).ok_or("a record names no inode")?;
    Ok(Record { ino, field, word: get_u64(bytes, 16) })
}
