//! Which of two copies of a block of metadata is whole, part by part.
//!
//! Every part has its own check. `says` is the first copy; a part of it that fails its check is
//! replaced by that of the twin if that one does not.

use super::entry::Entry;
use super::inode::{self, Inode};
use super::page::{self, NEXT, SLOTS, Seal};
use super::word::{self, Field, Owner};
use super::{BLOCK, Block, Ino, LINE, bytes, get_u32, get_u64, journal};

/// A journal: all of it. What has ended, and is sealed, is believed before what is under way, and
/// that before zeros: whatever was under way when one of two copies ended is done.
pub fn journal(at: Block, says: &mut [u8; BLOCK], twin: &[u8; BLOCK]) {
    let worth = |block: &[u8; BLOCK]| match journal::decode(at, block) {
        Err(_) => 0,
        Ok(_) if get_u64(block, 0) == 0 => 1,
        Ok(records) if !records.is_empty() => 2,
        Ok(_) => 3,
    };
    let mut words = *says;
    copy(&mut words, twin, 0, LINE);
    let mut records = *twin;
    copy(&mut records, says, 0, LINE);
    // Neither is whole, perhaps, and each has what the other one lacks.
    for other in [*twin, words, records] {
        if worth(&other) > worth(says) {
            *says = other;
        }
    }
}

/// Lines of an inode table. A line of zeros, which says that the slot was never used, is not
/// believed where the other one says more.
pub fn inodes(ino: impl Fn(usize) -> Ino, says: &mut [u8; BLOCK], twin: &[u8; BLOCK]) {
    for (i, (line, other)) in says.chunks_exact_mut(LINE).zip(twin.chunks_exact(LINE)).enumerate() {
        let worth = |line: &[u8]| match inode::decode(ino(i), line) {
            Err(_) => 0,
            Ok(Inode::Free(_)) if line.iter().all(|byte| *byte == 0) => 1,
            Ok(Inode::Used { generation, head, tail }) if *line != inode::encode(ino(i), generation, head, tail) => {
                2 // a bit has flipped
            }
            Ok(Inode::Free(generation))
                if get_u64(line, inode::STATE as usize) != inode::state_word(ino(i), false, generation) =>
            {
                2
            }
            Ok(_) => 3,
        };
        if line != other && worth(other) > worth(line) {
            line.copy_from_slice(other);
        }
        if line != other && worth(line) == 0 {
            // Neither is whole: each may have words that the other one lacks.
            let own: [u8; LINE] = bytes(line, 0);
            for which in 1..7 {
                let mut mixed = own;
                (0..3)
                    .filter(|word| which >> word & 1 == 1)
                    .for_each(|word| copy(&mut mixed, other, word * 8, word * 8 + 8));
                if worth(&mixed) > worth(line) {
                    line.copy_from_slice(&mixed);
                }
            }
        }
    }
}

/// A page of a log: its header, the word that leads to the next page, and each entry.
pub fn page(at: Block, says: &mut [u8; BLOCK], twin: &[u8; BLOCK]) {
    let seal = |page: &[u8]| {
        let (ino, generation) = (Ino::from_raw(get_u64(page, 8))?, get_u32(page, 16));
        let sequence = page::decode_whole(page, ino, generation, at).ok()?;
        Some(Seal { ino, generation, sequence })
    };
    let seal = match (seal(says), seal(twin)) {
        (None, Some(other)) => {
            copy(says, twin, 0, LINE);
            other
        }
        (Some(own), _) => own,
        (None, None) => return, // it is free
    };
    let next = |page: &[u8]| {
        let owner = Owner { id: at.raw(), generation: seal.generation };
        let word = get_u64(page, NEXT as usize);
        // Zeros end a log; behind its tail nothing is lost by going on.
        word != 0 && word::unseal(owner, Field::Next, word).is_some()
    };
    if !next(says) && next(twin) {
        copy(says, twin, NEXT as usize, NEXT as usize + 8);
    }
    let mut slot = 1;
    while slot < SLOTS {
        let of = |page: &[u8]| Entry::decode(page, seal, slot).ok().map(|(_, slots, _)| slots);
        slot += match (of(says), of(twin)) {
            (Some(slots), _) => slots,
            (None, Some(slots)) => {
                copy(says, twin, slot * LINE, (slot + slots) * LINE);
                slots
            }
            (None, None) => 1,
        };
    }
}

fn copy(says: &mut [u8], twin: &[u8], from: usize, to: usize) {
    if let (Some(says), Some(twin)) = (says.get_mut(from..to), twin.get(from..to)) {
        says.copy_from_slice(twin);
    }
}
