//! The format on media, drawn in `docs/FORMAT.md`: encoding and decoding only, no I/O.
//!
//! **Problem.** After a crash, or on a damaged medium, any byte may be anything.
//!
//! **Approach.** Each structure has one module with its offsets, an encoder, and a decoder that
//! checks before it believes: CRC32C on what is written as a whole, a 16-bit check inside each word
//! that is stored alone ([`word`]).
//!
//! **Limits.** File data has checksums only where mkfs was told so.

mod address;
pub mod entry;
pub mod inode;
pub mod journal;
pub mod mend;
pub mod page;
pub mod superblock;
pub mod whole;
pub mod word;

pub use address::{Block, Ino, LogPos};

/// Bytes in a block.
pub const BLOCK: usize = 4096;
/// Bytes in a block, as the type that offsets have.
pub const BLOCK_BYTES: u64 = BLOCK as u64;
/// Bytes in a line: what the processor writes back as one.
pub const LINE: usize = 64;
pub const MAX_REGIONS: usize = 64;
/// Longest name of a directory entry or extended attribute.
pub const MAX_NAME: usize = 255;
/// Largest file in bytes: its last block number still fits 40 bits.
pub const MAX_SIZE: u64 = 1 << 52;

/// Copies `N` bytes at `at`; zeros where `from` is too short, which the callers' length checks
/// exclude.
fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    at.checked_add(N).and_then(|end| from.get(at..end)).and_then(|slice| slice.try_into().ok()).unwrap_or([0; N])
}

pub(crate) fn get_u16(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes(from, at))
}

pub(crate) fn get_u32(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes(from, at))
}

pub(crate) fn get_u64(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes(from, at))
}

pub(crate) fn get_i64(from: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(bytes(from, at))
}

/// Writes `what` at `at`. Encoders call it with buffers of their own, which are large enough.
pub(crate) fn put(into: &mut [u8], at: usize, what: &[u8]) {
    if let Some(place) = into.get_mut(at..at + what.len()) {
        place.copy_from_slice(what);
    } else {
        debug_assert!(false, "an encoder's buffer is too small");
    }
}
