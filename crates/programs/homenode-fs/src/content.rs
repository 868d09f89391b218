//! What `mkfs` would overwrite.
//!
//! **Problem.** File systems, pools and partition tables begin at many places, some near the end,
//! and a list of their magic numbers is never complete.
//!
//! **Approach.** Any byte that is not zero is content. homenode looks where the known ones are (the
//! first 4 MiB and the last 1 MiB), at samples of the rest, and, in a file, where its first extents
//! are. Magic numbers only give it a name.
//!
//! **Limits.** Content that lies between the samples of a device is not seen.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Of a region's beginning, all is looked at: VMFS begins at 2 MiB, the others earlier.
const HEAD: u64 = 4 << 20;
/// And of its end: ZFS keeps its last two labels in 512 KiB.
const TAIL: u64 = 1 << 20;
/// In between: 4 KiB at each power of two (btrfs keeps copies at 64 MiB and 256 GiB), and at so
/// many places more.
const SAMPLES: u64 = 64;
const SAMPLE: usize = 4096;
/// Extents of a file: the first ones tell whether it has any content.
const EXTENTS: usize = 64;
const CHUNK: usize = 1 << 16;

/// Bytes from the beginning, what is there, and whose that is: as in libblkid.
const MAGICS: &[(u64, &[u8], &str)] = &[
    (0x10040, b"_BHRfS_M", "btrfs"),
    (0x438, b"\x53\xef", "ext2, ext3 or ext4"),
    (0, b"XFSB", "XFS"),
    (0, b"LUKS\xba\xbe", "LUKS"),
    (0x218, b"LVM2 001", "LVM"),
    (0x18, b"LVM2 001", "LVM"),
    (4086, b"SWAPSPACE2", "swap"),
    (3, b"NTFS    ", "NTFS"),
    (3, b"EXFAT   ", "exFAT"),
    (0x52, b"FAT32   ", "FAT"),
    (0x36, b"FAT1", "FAT"),
    (0x8001, b"CD001", "ISO 9660"),
    (0x8001, b"BEA01", "UDF"),
    (0x8000, b"JFS1", "JFS"),
    (0x1_055c, b"\x19\x01\x54\x19", "UFS"),
    (0x255c, b"\x54\x19\x01\x00", "UFS"),
    (0x400, b"\x10\x20\xf5\xf2", "F2FS"),
    (0x400, b"H+", "HFS+"),
    (0x20, b"NXSB", "APFS"),
    (0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache or bcachefs"),
    (0x1018, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "bcachefs"),
    (0, b"\xfc\x4e\x2b\xa9", "a part of a RAID (MD)"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a part of a RAID (MD)"),
    (0, b"PMEM", "a pool of PMDK"),
    (0, b"hsqs", "SquashFS"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (510, b"\x55\xaa", "a boot sector or a partition table"),
];

#[derive(Debug, PartialEq, Eq)]
pub struct Content {
    /// The first byte that was seen not to be zero.
    pub at: u64,
    /// Whose it is, where it has a known magic number.
    pub name: Option<&'static str>,
}

/// Looks for content in `len` bytes, which `read` gives at an offset. `extents` are the first ones
/// of a file.
///
/// # Errors
///
/// Those of `read`.
pub fn find(
    len: u64,
    extents: &[u64],
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Option<Content>> {
    let whole = [(0, len.min(HEAD)), (len.saturating_sub(TAIL), len)];
    let chunks = whole.into_iter().flat_map(|(from, to)| {
        let offsets = (from..to).step_by(CHUNK);
        offsets.map(move |at| (at, usize::try_from(to - at).map_or(CHUNK, |rest| rest.min(CHUNK))))
    });
    let powers = (0..u64::BITS).map(|power| 1 << power);
    let spread = (1..SAMPLES).map(|i| len / SAMPLES * i / SAMPLE as u64 * SAMPLE as u64);
    let samples = powers.chain(spread).chain(extents.iter().copied());
    let samples = samples.filter(|at| at.checked_add(SAMPLE as u64).is_some_and(|end| end <= len));
    let mut buffer = vec![0; CHUNK];
    for (at, size) in chunks.chain(samples.map(|at| (at, SAMPLE))) {
        let Some(part) = buffer.get_mut(..size) else { continue };
        read(at, part)?;
        if let Some(first) = part.iter().position(|byte| *byte != 0) {
            return Ok(Some(Content { at: at + first as u64, name: name(len, read)? }));
        }
    }
    Ok(None)
}

/// Offsets of the first extents of a file.
pub fn extents(file: &File) -> Vec<u64> {
    let mut found = Vec::new();
    let mut at = 0;
    while found.len() < EXTENTS
        && let Ok(data) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at))
    {
        found.push(data / SAMPLE as u64 * SAMPLE as u64);
        match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(data)) {
            Ok(hole) => at = hole,
            Err(_) => break,
        }
    }
    found
}

/// Reads all of `out` from a file.
pub fn read(file: &File, at: u64, out: &mut [u8]) -> io::Result<()> {
    file.read_exact_at(out, at)
}

fn name(len: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<Option<&'static str>> {
    let mut is = |at: Option<u64>, magic: &[u8]| {
        let mut there = vec![0; magic.len()];
        let Some(at) = at.filter(|at| at.checked_add(magic.len() as u64).is_some_and(|end| end <= len)) else {
            return Ok(false);
        };
        read(at, &mut there)?;
        io::Result::Ok(there == magic)
    };
    for (at, magic, name) in MAGICS {
        if is(Some(*at), magic)? {
            return Ok(Some(name));
        }
    }
    // A label of ZFS has 256 KiB; from 128 KiB on there are uberblocks, each of 1 KiB or more.
    const LABEL: u64 = 256 << 10;
    let end = len / LABEL * LABEL;
    for label in [Some(0), Some(LABEL), end.checked_sub(2 * LABEL), end.checked_sub(LABEL)] {
        for uberblock in 0..128 {
            if is(label.map(|label| label + (128 << 10) + (uberblock << 10)), b"\x0c\xb1\xba\0\0\0\0\0")? {
                return Ok(Some("ZFS"));
            }
        }
    }
    // MD 0.90 is 64 to 128 KiB before the end, 1.0 is 8 to 12 KiB before it.
    let old = (len / 65536 * 65536).checked_sub(65536);
    let new = len.checked_sub(8192).map(|at| at / 4096 * 4096);
    for at in [old, new] {
        if is(at, b"\xfc\x4e\x2b\xa9")? {
            return Ok(Some("a part of a RAID (MD)"));
        }
    }
    Ok(if is(len.checked_sub(512), b"EFI PART")? { Some("a partition table (GPT)") } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 1 << 30;

    /// What is found in so many zeros with `bytes` at `at`, as in a device.
    fn with(at: u64, bytes: &[u8]) -> Option<Content> {
        let mut read = |from: u64, out: &mut [u8]| {
            assert!(from + out.len() as u64 <= LEN, "past the end");
            for (i, byte) in out.iter_mut().enumerate() {
                let inside = (from + i as u64).checked_sub(at).and_then(|i| bytes.get(usize::try_from(i).unwrap()));
                *byte = inside.copied().unwrap_or(0);
            }
            Ok(())
        };
        find(LEN, &[], &mut read).unwrap()
    }

    #[test]
    fn each_magic_number_is_seen_and_named() {
        assert_eq!(with(0, &[]), None);
        for (at, magic, name) in MAGICS {
            let found = with(*at, magic).unwrap();
            assert_eq!(found.name, Some(*name));
            assert_eq!(found.at, at + magic.iter().position(|byte| *byte != 0).unwrap() as u64);
        }
    }

    #[test]
    fn what_is_at_the_end_is_seen_and_named() {
        let name = |at, bytes: &[u8]| with(at, bytes).unwrap().name;
        let zfs = b"\x0c\xb1\xba\0\0\0\0\0";
        for label in [0, 256 << 10, LEN - (512 << 10), LEN - (256 << 10)] {
            assert_eq!(name(label + (128 << 10) + (17 << 10), zfs), Some("ZFS"));
        }
        let md = b"\xfc\x4e\x2b\xa9";
        assert_eq!(name(LEN - 65536, md), Some("a part of a RAID (MD)"));
        assert_eq!(name(LEN - 8192, md), Some("a part of a RAID (MD)"));
        assert_eq!(name(LEN - 512, b"EFI PART"), Some("a partition table (GPT)"));
        assert_eq!(with(LEN - 1, b"x"), Some(Content { at: LEN - 1, name: None }));
    }

    #[test]
    fn what_is_in_the_middle_is_sampled() {
        for power in 22..30 {
            assert_eq!(with((1 << power) + 100, b"x"), Some(Content { at: (1 << power) + 100, name: None }));
        }
        assert_eq!(with(LEN / 2 - 4096, b"x"), None, "between samples; a file has its extents");
    }

    #[test]
    fn the_extents_of_a_sparse_file_are_looked_at() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(LEN).unwrap();
        let look = || find(LEN, &extents(&file), &mut |at, out| read(&file, at, out)).unwrap();
        assert_eq!(look(), None);
        file.write_all_at(b"x", LEN / 2 - 4096).unwrap();
        assert_eq!(look(), Some(Content { at: LEN / 2 - 4096, name: None }));
        for len in [0, 100, 512, 5000] {
            assert_eq!(
                find(len, &[], &mut |_, out| {
                    out.fill(0);
                    Ok(())
                })
                .unwrap(),
                None,
                "{len}"
            );
        }
    }
}
