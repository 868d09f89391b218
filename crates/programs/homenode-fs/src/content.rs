//! What `mkfs` would overwrite.
//!
//! **Problem.** File systems, pools and partition tables begin at many places, some near the end,
//! and a list of their magic numbers is never complete.
//!
//! **Approach.** Any byte that is not zero is content. homenode looks where the known ones are (the
//! first 4 MiB and the last 1 MiB), at samples of the rest, and, in a file, where its first extents
//! are.
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

/// Looks for content in `len` bytes, which `read` gives at an offset: where a byte is that is not
/// zero. `extents` are the first ones of a file.
///
/// # Errors
///
/// Those of `read`.
pub fn find(
    len: u64,
    extents: &[u64],
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Option<u64>> {
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
            return Ok(Some(at + first as u64));
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

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 1 << 30;

    /// What is found in so many zeros with `bytes` at `at`, as in a device.
    fn with(at: u64, bytes: &[u8]) -> Option<u64> {
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
    fn what_is_at_the_beginning_or_the_end_is_seen() {
        // Labels of ZFS, and the ends at which RAID and others keep theirs.
        let labels = [(128 << 10) + (17 << 10), LEN - (512 << 10) + (145 << 10), LEN - 65_536, LEN - 8192];
        for at in labels.into_iter().chain([0, HEAD - 1, LEN - TAIL, LEN - 1]) {
            assert_eq!(with(at, b"x"), Some(at));
        }
    }

    #[test]
    fn what_is_in_the_middle_is_sampled() {
        for power in 22..30 {
            assert_eq!(with((1 << power) + 100, b"x"), Some((1 << power) + 100));
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
        assert_eq!(look(), Some(LEN / 2 - 4096));
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
