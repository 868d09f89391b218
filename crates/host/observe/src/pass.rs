//! Reads what an iterator of the kernel gives.
//!
//! **Problem.** Such output has no end that can be relied on. A `task_vma` iterator for one thread
//! finds the thread again at each `read(2)` after its end, and gives its last part once more: of
//! 300 mappings it gave 400,000 records in ten seconds, and would not have stopped.
//!
//! **Approach.** There is one reader for all iterators. Records have places (addresses, ids of
//! threads) that must rise. One that does not is left out, and a read that brings none that does is
//! the end. Bytes, records and CPU time are bounded while it reads. Records are handed on as they
//! come, so the only buffer is small and of one size.
//!
//! **Limits.** A read that waits in the kernel is not cut short. A thread that takes the id of its
//! process's first one by exec, just as a pass is there, is left out of that pass.

use std::io::{self, Read};
use std::time::Duration;

use linux::clock::{self, ClockId};

/// More than the kernel gives in one read (32 KiB), and than the longest record (1,112 bytes).
const CHUNK: usize = 64 << 10;

/// What one pass may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub records: usize,
    pub bytes: u64,
    pub cpu: Duration,
}

/// Most of a pass over all threads: a million of them that run, with masks for 8,192 CPUs. One
/// takes some 0.5 µs.
pub(super) const TASKS: Most = Most { records: 1 << 20, bytes: 2 << 30, cpu: Duration::from_secs(5) };

/// Whether a pass came to its end, or to a bound.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Whole,
    Cut,
}

/// Hands on each record. `first` has the length and the place of the first record of these bytes;
/// `None` if it is not all there.
///
/// # Errors
///
/// As the kernel gives them; `InvalidData` for a record that is longer than the buffer.
pub(super) fn read(
    source: &mut impl Read,
    most: Most,
    first: impl Fn(&[u8]) -> Option<(usize, u64)>,
    mut take: impl FnMut(&[u8]),
) -> io::Result<Ended> {
    let cpu = || Duration::from_nanos(clock::ns(ClockId::ThreadCPUTime));
    let begun = cpu();
    let mut buffer = vec![0; CHUNK];
    let (mut filled, mut bytes, mut records, mut last) = (0, 0, 0, None);
    loop {
        if bytes > most.bytes || cpu().saturating_sub(begun) > most.cpu {
            return Ok(Ended::Cut);
        }
        let room = buffer.get_mut(filled..).filter(|room| !room.is_empty()).ok_or(io::ErrorKind::InvalidData)?;
        let more = match source.read(room) {
            Ok(0) => return Ok(Ended::Whole),
            Ok(more) => more,
            // EAGAIN: the program was called a million times and wrote nothing; the next read goes
            // on from there.
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => continue,
            Err(e) => return Err(e),
        };
        (filled, bytes) = (filled + more, bytes + more as u64);
        let (mut at, mut rose) = (0, false);
        while let Some(rest) = buffer.get(at..filled)
            && let Some((length @ 1.., place)) = first(rest)
            && let Some(record) = rest.get(..length)
        {
            at += length;
            if last.is_some_and(|last| place <= last) {
                continue;
            }
            if records == most.records {
                return Ok(Ended::Cut);
            }
            (records, last, rose) = (records + 1, Some(place), true);
            take(record);
        }
        if at > 0 && !rose {
            return Ok(Ended::Whole);
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Most = Most { records: 100_000, bytes: 1 << 30, cpu: Duration::from_secs(60) };

    /// Gives so many records of ten bytes, each with its place, at most `each` bytes at a time.
    /// After its end it gives the last part again, for ever.
    struct Again {
        given: Vec<u8>,
        at: usize,
        each: usize,
        again: usize,
        reads: usize,
    }

    impl Again {
        fn new(places: impl Iterator<Item = u64>, each: usize, again: usize) -> Self {
            let given = places.flat_map(|place| place.to_ne_bytes().into_iter().chain([7, 7])).collect();
            Self { given, at: 0, each, again: 10 * again, reads: 0 }
        }
    }

    impl Read for Again {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            assert!(self.reads < 1_000_000, "it is read for ever");
            if self.reads % 5 == 2 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if self.at == self.given.len() {
                self.at -= self.again;
            }
            let n = self.each.min(to.len()).min(self.given.len() - self.at);
            to[..n].copy_from_slice(&self.given[self.at..self.at + n]);
            self.at += n;
            Ok(n)
        }
    }

    fn first(bytes: &[u8]) -> Option<(usize, u64)> {
        Some((10, u64::from_ne_bytes(*bytes.first_chunk()?)))
    }

    fn places(source: &mut Again, most: Most) -> (Vec<u64>, Ended) {
        let mut places = Vec::new();
        let ended = read(source, most, first, |record| {
            assert_eq!(record.len(), 10);
            places.push(first(record).unwrap().1);
        });
        (places, ended.unwrap())
    }

    /// 300 mappings were 400,000 records.
    #[test]
    fn an_iterator_that_gives_its_last_part_again_ends() {
        for count in [1u64, 10, 300, 3_000, 65_000] {
            for each in [7, 32, 10_000, CHUNK] {
                for again in [0, 1, count as usize / 2, count as usize] {
                    let mut source = Again::new(1..=count, each, again);
                    let all = (1..=count).collect::<Vec<_>>();
                    assert_eq!(places(&mut source, MOST), (all, Ended::Whole), "{count} {each} {again}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_rise_is_left_out() {
        let mut source = Again::new([5, 6, 2, 6, 7].into_iter(), CHUNK, 0);
        assert_eq!(places(&mut source, MOST), (vec![5, 6, 7], Ended::Whole));
    }

    #[test]
    fn records_bytes_and_time_are_bounded_while_it_reads() {
        let cut = |most| {
            let mut source = Again::new(1..=65_000, 100, 0);
            let (places, ended) = places(&mut source, most);
            (places.len(), ended, source.at)
        };
        assert_eq!(cut(Most { records: 65_000, ..MOST }).1, Ended::Whole);
        assert_eq!(cut(Most { records: 1_000, ..MOST }), (1_000, Ended::Cut, 10_100));
        assert_eq!(cut(Most { bytes: 4_999, ..MOST }), (500, Ended::Cut, 5_000));
        let (records, ended, _) = cut(Most { cpu: Duration::ZERO, ..MOST });
        assert!(ended == Ended::Cut && records < 65_000, "{records}");
    }

    #[test]
    fn a_record_that_never_ends_is_an_error() {
        let mut source = Again::new(1..=65_000, 1_000, 0);
        let error = read(&mut source, MOST, |_| Some((CHUNK + 1, 1)), |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
