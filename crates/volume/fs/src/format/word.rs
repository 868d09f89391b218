//! Sealed words: eight bytes that are stored at once and carry their own check.
//!
//! ```text
//! 63         48 47                             0
//! [   check   ][          payload              ]      0 = nothing
//! ```

use super::mend;

const PAYLOAD_BITS: u32 = 48;

/// Which word it is: part of the seal, so that no word passes for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Field {
    /// State and generation of an inode, or the state of the volume.
    State = 1,
    Head = 2,
    Tail = 3,
    /// Next page of a log.
    Next = 4,
    /// A journal's commit word.
    Journal = 5,
    /// Number of a mount.
    Mount = 6,
    /// Where a scrub was stopped.
    Scrub = 7,
}

/// Owner of the word: inode number or block address, and generation.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Inode number or block address, as stored.
    pub id: u64,
    /// Generation of the inode, 0 where there is none.
    pub generation: u32,
}

/// Makes a word of `payload`, which has at most 48 bits.
pub fn seal(owner: Owner, field: Field, payload: u64) -> u64 {
    debug_assert!(payload >> PAYLOAD_BITS == 0);
    payload | u64::from(check(owner, field, payload)) << PAYLOAD_BITS
}

/// The payload of a word; 0 for a word that was never stored. `None`: the check fails.
pub fn unseal(owner: Owner, field: Field, word: u64) -> Option<u64> {
    if word == 0 {
        return Some(0);
    }
    let payload = word & ((1 << PAYLOAD_BITS) - 1);
    (word >> PAYLOAD_BITS == u64::from(check(owner, field, payload))).then_some(payload)
}

/// The same, also of a word of which one bit has flipped.
pub fn unseal_mended(owner: Owner, field: Field, word: u64) -> Option<u64> {
    unseal(owner, field, word).or_else(|| {
        let mut bytes = word.to_le_bytes();
        mend::flip(&mut bytes, |bytes| unseal(owner, field, super::get_u64(bytes, 0)).is_some())?;
        unseal(owner, field, u64::from_le_bytes(bytes))
    })
}

fn check(owner: Owner, field: Field, payload: u64) -> u16 {
    /// Aligned, which the checksum is faster for.
    #[repr(align(8))]
    struct Sum([u8; 24]);
    let mut sum = Sum([0; 24]);
    super::put(&mut sum.0, 0, &owner.id.to_le_bytes());
    super::put(&mut sum.0, 8, &owner.generation.to_le_bytes());
    super::put(&mut sum.0, 12, &(field as u32).to_le_bytes());
    super::put(&mut sum.0, 16, &payload.to_le_bytes());
    let crc = crc32c::crc32c(&sum.0);
    (crc ^ crc >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_valid_only_for_its_owner_generation_and_field() {
        let owner = Owner { id: 7, generation: 3 };
        let word = seal(owner, Field::Tail, 0x1234_5678_9abc);
        assert_eq!(unseal(owner, Field::Tail, word), Some(0x1234_5678_9abc));
        assert_eq!(unseal(owner, Field::Head, word), None);
        assert_eq!(unseal(Owner { id: 8, ..owner }, Field::Tail, word), None);
        assert_eq!(unseal(Owner { generation: 4, ..owner }, Field::Tail, word), None);
        for bit in 0..64 {
            assert_eq!(unseal(owner, Field::Tail, word ^ 1 << bit), None, "bit {bit}");
        }
    }

    /// Whatever the word says, the 64 flips of a bit change its check in 64 ways, as a checksum is
    /// linear; and no two of these together are a third one.
    #[test]
    fn one_flipped_bit_of_a_word_is_known_and_two_are_not_taken_for_one() {
        for (payload, id) in [(0x1234_5678_9abc, 7), (1, 8), ((1 << 48) - 1, 1 << 40)] {
            let owner = Owner { id, generation: 3 };
            let word = seal(owner, Field::Tail, payload);
            let mut wrong = 0;
            for bit in 0..64 {
                assert_eq!(unseal_mended(owner, Field::Tail, word ^ 1 << bit), Some(payload), "bit {bit}");
                let two = (0..bit).map(|second| unseal_mended(owner, Field::Tail, word ^ 1 << bit ^ 1 << second));
                wrong += two.flatten().count();
            }
            assert_eq!(wrong, 0, "of 2016 double flips");
        }
    }
}
