//! Group commit: one `msync` for all threads that wait for one.
//!
//! **Problem.** `msync` takes a disk's time, whatever it writes. One after the other, sixteen
//! threads commit as often as one.
//!
//! **Approach.** Each flush takes a number. A fence waits for an `msync` that began after its
//! thread's last flush: it joins the next one, or makes it if none is under way.
//!
//! **Limits.** Numbers are those of the region, not of the thread: a fence also waits for what
//! other threads have flushed before it.

use std::io;
use std::sync::atomic::Ordering;

use crate::sync::{AtomicU64, Condvar, Mutex, lock, wait};

/// What is known of a region that msync makes durable.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Flushes so far.
    flushed: AtomicU64,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The first so many flushes are durable.
    durable: u64,
    syncing: bool,
    /// An msync has failed. The kernel forgets pages that it could not write: no later call makes
    /// them durable.
    failed: bool,
}

impl Group {
    /// Says that this thread has stored something.
    pub(super) fn flush(&self) {
        self.flushed.fetch_add(1, Ordering::Release);
    }

    /// Waits until all that this thread has stored and flushed is durable. `sync` makes durable
    /// what was stored before it began.
    ///
    /// # Errors
    ///
    /// This `sync`, or any one before it, has failed.
    pub(super) fn fence(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let own = self.flushed.load(Ordering::Acquire);
        let mut state = lock(&self.state);
        while state.syncing && state.durable < own && !state.failed {
            state = wait(&self.ended, state);
        }
        if state.failed {
            return Err(io::Error::other("an earlier msync of a region failed"));
        }
        if state.durable >= own {
            return Ok(());
        }
        state.syncing = true;
        drop(state);
        // Of other threads, too: they join.
        let all = self.flushed.load(Ordering::Acquire);
        let synced = sync();
        let mut state = lock(&self.state);
        state.syncing = false;
        match synced {
            Ok(()) => state.durable = all,
            Err(_) => state.failed = true,
        }
        drop(state);
        self.ended.notify_all();
        synced
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use shuttle::thread;

    use super::*;
    use crate::interleavings::{check, once};

    /// Threads store a word each, some twice; `sync` copies what it sees when it begins, and
    /// nothing later.
    fn commit(threads: usize, syncs: &Arc<AtomicUsize>) {
        let group = Arc::new(Group::default());
        let (memory, disk) = (Arc::new(words(threads)), Arc::new(words(threads)));
        let commits = (0..threads).map(|thread| {
            let (group, memory, disk, syncs) =
                (Arc::clone(&group), Arc::clone(&memory), Arc::clone(&disk), Arc::clone(syncs));
            thread::spawn(move || {
                for value in 1..=2 {
                    memory[thread].store(value, Ordering::SeqCst);
                    group.flush();
                    let sync = || {
                        syncs.fetch_add(1, Ordering::SeqCst);
                        let seen: Vec<u64> = memory.iter().map(|word| word.load(Ordering::SeqCst)).collect();
                        thread::yield_now();
                        for (word, seen) in disk.iter().zip(seen) {
                            word.store(seen, Ordering::SeqCst);
                        }
                        Ok(())
                    };
                    group.fence(sync).unwrap();
                    assert_eq!(disk[thread].load(Ordering::SeqCst), value, "durable when the fence returns");
                }
            })
        });
        commits.collect::<Vec<_>>().into_iter().for_each(|commit| commit.join().unwrap());
    }

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    /// A thread that waited for an msync had to make its own: 16 threads wrote as much as one.
    #[test]
    fn threads_that_wait_for_an_msync_share_the_next() {
        let (syncs, orders) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, ran) = (Arc::clone(&syncs), Arc::clone(&orders));
        check(300, move || {
            ran.fetch_add(1, Ordering::SeqCst);
            commit(4, &counted);
        });
        let (syncs, commits) = (syncs.load(Ordering::SeqCst), orders.load(Ordering::SeqCst) * 8);
        assert!(syncs * 5 < commits * 4, "{syncs} msyncs for {commits} commits");
    }

    #[test]
    fn after_a_failed_msync_every_fence_fails() {
        once(|| {
            let group = Group::default();
            group.fence(|| panic!("nothing was flushed")).unwrap();
            group.flush();
            assert!(group.fence(|| Err(io::Error::other("EIO"))).is_err());
            assert!(group.fence(|| Ok(())).is_err(), "also with nothing to do");
            group.flush();
            assert!(group.fence(|| Ok(())).is_err());
        });
    }
}
