//! An inode: one line, three sealed words.
//!
//! ```text
//!  0  state (bits 32–47: 0 free, 1 in use), generation (bits 0–31)
//!  8  head of the log
//! 16  tail of the log
//! 24  reserved, 0
//! ```

use super::word::{self, Field, Owner};
use super::{Ino, LINE, LogPos, get_u64};

/// Bytes of an inode.
pub const SIZE: usize = LINE;
pub const PER_BLOCK: u64 = (super::BLOCK / SIZE) as u64;
/// Offset of the state word.
pub const STATE: u64 = 0;
/// Offset of the head word.
pub const HEAD: u64 = 8;
/// Offset of the tail word.
pub const TAIL: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inode {
    /// Free; the last life had this generation.
    Free(u32),
    Used {
        /// Which life of the slot this is.
        generation: u32,
        head: LogPos,
        tail: LogPos,
    },
}

pub fn state_word(ino: Ino, used: bool, generation: u32) -> u64 {
    word::seal(Owner { id: ino.raw(), generation: 0 }, Field::State, u64::from(used) << 32 | u64::from(generation))
}

/// A head or tail word of an inode.
pub fn pos_word(ino: Ino, generation: u32, field: Field, pos: LogPos) -> u64 {
    word::seal(Owner { id: ino.raw(), generation }, field, pos.raw())
}

/// Reads an inode's line, also where a bit of a word has flipped. An error says what is wrong with
/// it.
pub fn decode(ino: Ino, line: &[u8]) -> Result<Inode, &'static str> {
    let state = get_u64(line, STATE as usize);
    let state = word::unseal_mended(Owner { id: ino.raw(), generation: 0 }, Field::State, state)
        .ok_or("its state fails the check")?;
    let generation = state as u32;
    if state >> 32 == 0 {
        return Ok(Inode::Free(generation));
    }
    let owner = Owner { id: ino.raw(), generation };
    let head =
        word::unseal_mended(owner, Field::Head, get_u64(line, HEAD as usize)).ok_or("its head fails the check")?;
    let tail =
        word::unseal_mended(owner, Field::Tail, get_u64(line, TAIL as usize)).ok_or("its tail fails the check")?;
    let head = LogPos::from_raw(head).ok_or("its head is no position")?;
    let tail = LogPos::from_raw(tail).ok_or("its tail is no position")?;
    Ok(Inode::Used { generation, head, tail })
}

/// Writes the line of an inode in use.
pub fn encode(ino: Ino, generation: u32, head: LogPos, tail: LogPos) -> [u8; SIZE] {
    let mut line = [0; SIZE];
    super::put(&mut line, STATE as usize, &state_word(ino, true, generation).to_le_bytes());
    super::put(&mut line, HEAD as usize, &pos_word(ino, generation, Field::Head, head).to_le_bytes());
    super::put(&mut line, TAIL as usize, &pos_word(ino, generation, Field::Tail, tail).to_le_bytes());
    line
}
