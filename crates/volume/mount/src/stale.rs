//! Cached pages that an asynchronous direct write leaves behind.
//!
//! **Problem.** The kernel drops the pages of a range when an O_DIRECT write of it begins. A
//! buffered read that comes before the write ends caches the old bytes again, and after an
//! asynchronous write (libaio, io_uring) FUSE drops nothing, as other file systems do: the pages
//! stay wrong after the write has ended.
//!
//! **Approach.** [`Readers`] remembers roughly when each inode was last read into the cache. After
//! a direct write to an inode that was read lately, [`Stale`] makes the kernel drop the range, and
//! only then answers. It does so in a thread of its own: the kernel waits for pages that are being
//! read, and those reads wait for a worker. They also wait for one of the kernel's slots for
//! requests in the background, and each direct write has one until it is answered: at most
//! [`MOST_WAITING`] answers wait, so that reading ahead and writing back always go on. Ranges that
//! touch are merged, and so are the nearest ones of an inode that has more than [`MOST_RANGES`].
//!
//! **Limits.** By io_uring only the queue's worker can answer: there the range is dropped just
//! after the answer. So it is where [`MOST_WAITING`] answers wait already. They are too many where
//! root has set the connection's `max_background` to no more than that. A mapping that was made by
//! an O_DIRECT descriptor reads as direct reads do, and is not seen. Synchronous direct writes,
//! which look the same, wait too.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use fs::Ino;
use rustc_hash::FxHashMap;
use rustix::io::Errno;

use crate::connection::BACKGROUND;
use crate::wire::{Range, range_notice};

/// Entries of the table of readers. Inodes that share one cost a notice in vain; 32 KiB hold those
/// in use.
const SLOTS: usize = 4096;
/// Seconds for which a read counts. It has to span the time from a read to the end of a write that
/// began before it: more than the kernel and the workers keep a request waiting.
const LATELY: u64 = 60;

/// Answers that wait at a time, at most: the rest of the slots is for reading ahead and writing
/// back, whose pages those answers may wait for.
const MOST_WAITING: usize = BACKGROUND.0 as usize / 2;
/// Ranges of an inode that are kept apart, at most.
const MOST_RANGES: usize = 32;

/// Times of the last reads into the kernel's cache.
pub(crate) struct Readers {
    begin: Instant,
    /// Seconds since `begin`, plus one; 0: never.
    read: Vec<AtomicU64>,
}

impl Default for Readers {
    fn default() -> Self {
        Self { begin: Instant::now(), read: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Readers {
    /// Those of a server before this one: nobody knows what it read.
    pub(crate) fn of_another() -> Self {
        let readers = Self::default();
        readers.read.iter().for_each(|slot| slot.store(1, Ordering::Relaxed));
        readers
    }

    fn slot(&self, ino: Ino) -> Option<&AtomicU64> {
        self.read.get(ino.raw() as usize % SLOTS)
    }

    /// The kernel reads an inode into its cache: to be said before the data is read, so that a
    /// write that the read misses does not miss the read.
    pub(crate) fn read(&self, ino: Ino) {
        let now = self.begin.elapsed().as_secs() + 1;
        if let Some(slot) = self.slot(ino)
            && slot.load(Ordering::Relaxed) != now
        {
            slot.store(now, Ordering::SeqCst);
        }
    }

    /// Whether an inode was read lately: to be asked after the data is written.
    pub(crate) fn lately(&self, ino: Ino) -> bool {
        let at = self.slot(ino).map_or(0, |slot| slot.load(Ordering::SeqCst));
        at != 0 && self.begin.elapsed().as_secs() <= at + LATELY
    }
}

/// An answer that waits: where to write it, and its bytes.
#[derive(Debug)]
pub(crate) struct Waiting(pub Arc<OwnedFd>, pub Vec<u8>);

/// Ranges of an inode that do not touch: from where to where, in order.
#[derive(Debug, Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn add(&mut self, begin: u64, end: u64) {
        let all = &mut self.0;
        let touched = all.partition_point(|known| known.1 < begin)..all.partition_point(|known| known.0 <= end);
        let known = all.get(touched.clone()).unwrap_or_default().iter();
        let merged = known.fold((begin, end), |merged, known| (merged.0.min(known.0), merged.1.max(known.1)));
        all.splice(touched, [merged]);
        if all.len() > MOST_RANGES {
            let gaps = all.iter().zip(all.iter().skip(1)).map(|(one, next)| next.0 - one.1).enumerate();
            if let Some((nearest, _)) = gaps.min_by_key(|(_, gap)| *gap) {
                let (_, end) = all.remove(nearest + 1);
                all.get_mut(nearest).into_iter().for_each(|one| one.1 = end);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    ranges: FxHashMap<Ino, Ranges>,
    answers: Vec<Waiting>,
    /// Answers that wait, here or until the notices before them are sent.
    waiting: usize,
    ended: bool,
}

/// What the kernel is to drop from its cache.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Stale {
    /// Drops a range from the kernel's cache soon.
    pub(crate) fn put(&self, range: Range) {
        self.put_before(range, None::<fn() -> Waiting>);
    }

    /// Drops a range from the kernel's cache soon, and sends the answer then. False: too many wait,
    /// and the caller is to answer.
    pub(crate) fn put_and_answer(&self, range: Range, answer: impl FnOnce() -> Waiting) -> bool {
        self.put_before(range, Some(answer))
    }

    fn put_before(&self, range: Range, answer: Option<impl FnOnce() -> Waiting>) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.ranges.entry(range.ino).or_default().add(range.offset, range.offset.saturating_add(range.len));
        let answer = answer.filter(|_| queue.waiting < MOST_WAITING).map(|answer| answer());
        let waits = answer.is_some();
        queue.waiting += usize::from(waits);
        queue.answers.extend(answer);
        self.more.notify_one();
        waits
    }

    /// Ends [`Stale::serve`] when nothing waits any more.
    pub(crate) fn end(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.more.notify_one();
    }

    /// Sends notices and answers until the end.
    pub(crate) fn serve(&self, connection: &OwnedFd) {
        let mut answered = 0;
        loop {
            let (ranges, answers) = {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                queue.waiting -= answered;
                let idle = |queue: &mut Queue| queue.ranges.is_empty() && !queue.ended;
                let mut queue = self.more.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
                if queue.ranges.is_empty() {
                    return;
                }
                (std::mem::take(&mut queue.ranges), std::mem::take(&mut queue.answers))
            };
            for (ino, Ranges(ranges)) in ranges {
                for (offset, end) in ranges {
                    send(connection, &range_notice(&Range { ino, offset, len: end - offset }));
                }
            }
            answered = answers.len();
            for Waiting(connection, answer) in answers {
                send(&connection, &answer);
            }
        }
    }
}

fn send(connection: &OwnedFd, bytes: &[u8]) {
    match rustix::io::write(connection, bytes) {
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {} // the inode, the caller, or the mount is gone
        Err(errno) => {
            tracing::warn!("the kernel does not take a notice of stale pages, or an answer after it: {errno}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_counts_for_its_inode_and_for_no_neighbour() {
        let readers = Readers::default();
        let (one, other) = (Ino::from_raw(7).unwrap(), Ino::from_raw(8).unwrap());
        assert!(!readers.lately(one));
        readers.read(one);
        assert!(readers.lately(one) && !readers.lately(other));
    }

    fn ranges(all: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let stale = Stale::default();
        all.into_iter().for_each(|(offset, end)| stale.put(Range { ino: Ino::ROOT, offset, len: end - offset }));
        let mut queue = stale.queue.lock().unwrap();
        queue.ranges.remove(&Ino::ROOT).unwrap().0
    }

    #[test]
    fn ranges_that_touch_are_merged() {
        assert_eq!(ranges((0..1000).map(|i| (i * 10, i * 10 + 10))), [(0, 10_000)]);
        assert_eq!(ranges((0..1000).rev().map(|i| (i * 10, i * 10 + 10))), [(0, 10_000)]);
        assert_eq!(ranges([(0, 5), (20, 30), (7, 9), (4, 8)]), [(0, 9), (20, 30)]);
        assert_eq!(ranges([(0, 5), (20, 30), (40, 50), (1, 60)]), [(0, 60)]);
    }

    /// One range from the first to the last byte had the kernel drop, and write back, what nobody
    /// had written.
    #[test]
    fn what_lies_between_two_writes_stays_in_the_cache() {
        assert_eq!(ranges([(8 << 30, (8 << 30) + 4096), (0, 4096)]), [(0, 4096), (8 << 30, (8 << 30) + 4096)]);
        let many = ranges((0..100).map(|i| (i * i * 100, i * i * 100 + 10)));
        assert_eq!((many.len(), many[0].0, many[MOST_RANGES - 1]), (MOST_RANGES, 0, (980_100, 980_110)));
        let covers = |at: &u64| many.iter().any(|(begin, end)| (*begin..*end).contains(at));
        assert!((0..100).all(|i| covers(&(i * i * 100))), "{many:?}");
    }

    /// The answers had all slots that the kernel has for requests in the background, and waited for
    /// a page whose reading waited for a slot.
    #[test]
    fn answers_that_wait_leave_slots_to_the_kernel() {
        let (stale, null) = (Stale::default(), std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap());
        let null = Arc::new(OwnedFd::from(null));
        let put = || {
            let range = Range { ino: Ino::ROOT, offset: 0, len: 1 };
            (0..usize::from(BACKGROUND.0))
                .filter(|_| stale.put_and_answer(range, || Waiting(Arc::clone(&null), vec![0])))
                .count()
        };
        for _ in 0..2 {
            assert_eq!(put(), MOST_WAITING);
            stale.end();
            stale.serve(&null);
        }
    }
}
