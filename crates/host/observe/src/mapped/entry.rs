//! Entries of a page table (x86-64).

use crate::records::intf::{ENTRY_ADDRESS, ENTRY_PRESENT, ENTRY_PROTNONE};

/// Entries that stand one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// First address that the first entry maps.
    pub address: u64,
    /// Bytes that each maps: 4 KiB, 2 MiB or 1 GiB.
    pub bytes: u64,
    /// A whole last-level table, or one large entry.
    pub raw: &'a [u64],
}

impl Piece<'_> {
    /// The entries for addresses from the first to before the last.
    pub fn entries(&self, (from, to): (u64, u64)) -> impl Iterator<Item = (usize, Entry)> + '_ {
        let all = self.raw.iter().enumerate();
        let all = all
            .map(|(i, raw)| (i, Entry { address: self.address + i as u64 * self.bytes, bytes: self.bytes, raw: *raw }));
        all.filter(move |(_, entry)| entry.address < to && entry.address + entry.bytes > from)
    }
}

/// An entry that maps memory, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First address that it maps.
    pub address: u64,
    /// Bytes that it maps: 4 KiB, 2 MiB or 1 GiB.
    pub bytes: u64,
    /// As the processor sees it.
    pub raw: u64,
}

/// arch/x86/include/asm/pgtable_types.h
const ACCESSED: u64 = 1 << 5;

impl Entry {
    pub fn present(&self) -> bool {
        self.raw & (ENTRY_PRESENT | ENTRY_PROTNONE) != 0
    }

    /// Whether the memory was accessed since the bit was cleared.
    pub fn accessed(&self) -> bool {
        self.raw & ACCESSED != 0
    }

    /// The number of the 4 KiB frame that an address is in.
    pub fn frame_of(&self, address: u64) -> u64 {
        self.frame() + ((address & (self.bytes - 1)) >> 12)
    }

    /// The number of the memory's first 4 KiB frame.
    pub fn frame(&self) -> u64 {
        let raw = if self.raw & ENTRY_PRESENT == 0 { !self.raw } else { self.raw };
        // The low bits of a large entry's address hold other things.
        (raw & ENTRY_ADDRESS & !(self.bytes - 1)) >> 12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_cut_to_its_mapping() {
        let piece = Piece { address: 0x1000, bytes: 4096, raw: &[1, 2, 3] };
        let raw = |range| piece.entries(range).map(|(i, entry)| (i, entry.raw)).collect::<Vec<_>>();
        assert_eq!(raw((0x2000, 0x3000)), [(1, 2)]);
        assert_eq!(raw((0, 0x1800)), [(0, 1)]);
    }

    #[test]
    fn frames_are_those_of_the_entry() {
        let entry = |bytes, raw| Entry { address: 0, bytes, raw };
        assert_eq!(entry(4096, 0x8000_0001_2345_6027).frame(), 0x123456);
        assert!(entry(4096, 0x27).accessed() && entry(4096, 0x27).present());
        assert!(!entry(4096, 0x7).accessed() && !entry(4096, 0x20).present());
        // Bit 12 of a 2 MiB entry is its PAT bit.
        assert_eq!(entry(2 << 20, 0x0000_0001_2340_10e7).frame(), 0x123400);
        // AutoNUMA's: bit 0 off, bit 8 on, the address inverted.
        let hinted = (!0x0000_0001_2345_6000 & ENTRY_ADDRESS) | 0x160;
        assert!(entry(4096, hinted).present());
        assert_eq!(entry(2 << 20, 0x0000_0001_2340_10e7).frame_of(0x7f00_0012_3456), 0x123523);
        assert_eq!(entry(4096, hinted).frame(), 0x123456);
    }
}
