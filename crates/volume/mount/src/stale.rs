//! Cached pages that an asynchronous direct write leaves behind.
//!
//! **Problem.** The kernel drops the pages of a range when an O_DIRECT write of it begins. A buffered read that comes before the
//! write ends caches the old bytes again, and after an asynchronous write (libaio, io_uring) FUSE drops nothing, as other file
//! systems do: the pages stay wrong after the write has ended.
//!
//! **Approach.** [`Readers`] remembers roughly when each inode was last read into the cache. After a direct write to an inode
//! that was read lately, [`Stale`] makes the kernel drop the range, and only then answers. It does so in a thread of its
//! own: the kernel waits for pages that are being read, and those reads wait for a worker. What waits is merged by
//! inode, and each answer belongs to a caller that waits for it, so neither grows without bound.
//!
//! **Limits.** By io_uring only the queue's worker can answer: there the range is dropped just after the answer. A mapping that was made by
//! an O_DIRECT descriptor reads as direct reads do, and is not seen. Synchronous direct writes, which look the same, wait too.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use fs::Ino;
use rustc_hash::FxHashMap;
use rustix::io::Errno;

use crate::wire::{Range, range_notice};

/// Entries of the table of readers. Inodes that share one cost a notice in vain; 32 KiB hold those in use.
const SLOTS: usize = 4096;
/// Seconds for which a read counts. It has to span the time from a read to the end of a write that began before it: more than the
/// kernel and the workers keep a request waiting.
const LATELY: u64 = 60;

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
    fn slot(&self, ino: Ino) -> Option<&AtomicU64> {
        self.read.get(ino.raw() as usize % SLOTS)
    }

    /// The kernel reads an inode into its cache: to be said before the data is read, so that a write that the read misses
    /// does not miss the read.
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

#[derive(Debug, Default)]
struct Queue {
    /// From where to where, by inode.
    ranges: FxHashMap<Ino, (u64, u64)>,
    answers: Vec<Waiting>,
    ended: bool,
}

/// What the kernel is to drop from its cache.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Stale {
    /// Drops a range from the kernel's cache soon, and answers then.
    pub(crate) fn put(&self, range: Range, answer: Option<Waiting>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (begin, end) = (range.offset, range.offset.saturating_add(range.len));
        let known = queue.ranges.entry(range.ino).or_insert((begin, end));
        *known = (known.0.min(begin), known.1.max(end));
        queue.answers.extend(answer);
        self.more.notify_one();
    }

    /// Ends [`Stale::serve`] when nothing waits any more.
    pub(crate) fn end(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.more.notify_one();
    }

    /// Sends notices and answers until the end.
    pub(crate) fn serve(&self, connection: &OwnedFd) {
        loop {
            let (ranges, answers) = {
                let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                let idle = |queue: &mut Queue| queue.ranges.is_empty() && !queue.ended;
                let mut queue = self.more.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
                if queue.ranges.is_empty() {
                    return;
                }
                (std::mem::take(&mut queue.ranges), std::mem::take(&mut queue.answers))
            };
            for (ino, (offset, end)) in ranges {
                send(connection, &range_notice(&Range { ino, offset, len: end - offset }));
            }
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

    #[test]
    fn what_waits_is_merged_by_inode() {
        let stale = Stale::default();
        for offset in 0..1000 {
            stale.put(Range { ino: Ino::ROOT, offset: offset * 4096, len: 4096 }, None);
        }
        assert_eq!(stale.queue.lock().unwrap().ranges.get(&Ino::ROOT), Some(&(0, 4_096_000)));
    }
}
