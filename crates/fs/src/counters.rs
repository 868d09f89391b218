//! Bytes read and written, by thread and region, cheap enough to stay on.
//!
//! **Problem.** A policy wants to know which thread's file bytes come from which node. Counting must not make threads wait
//! for each other.
//!
//! **Approach.** Each thread has counters of its own and keeps hold of them; a thread that works for others, as that of a
//! mount does, says for whom ([`as_thread`]).
//!
//! **Limits.** Thread numbers are reused: the reader of the counters knows which thread a number is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use crate::volume::lock;

/// What went from and to the memory of one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of file data read.
    pub read: u64,
    /// Bytes of file data written.
    pub written: u64,
    /// Blocks that went here because the region they were meant for was full.
    pub fallback_blocks: u64,
}

/// Threads with counters of their own; beyond it those that are not at work are added up. At 64 bytes a region.
const MOST_THREADS: usize = 16_384;

static VOLUMES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The thread that this one works for; 0 for itself.
    static ACTING_FOR: Cell<u32> = const { Cell::new(0) };
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// The counters used last: of which volume, for which thread.
type Last = (u64, u32, Arc<[Cells]>);

/// Does `work`, and counts its bytes for the thread `tid`.
pub fn as_thread<T>(tid: u32, work: impl FnOnce() -> T) -> T {
    let before = ACTING_FOR.replace(tid);
    let done = work();
    ACTING_FOR.set(before);
    done
}

/// The counters of a volume.
#[derive(Debug)]
pub(crate) struct Counters {
    volume: u64,
    regions: usize,
    threads: Mutex<FxHashMap<u32, Arc<[Cells]>>>,
    /// Threads that are no longer listed.
    others: Box<[Cells]>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Cells {
    read: AtomicU64,
    written: AtomicU64,
    fallback: AtomicU64,
}

impl Cells {
    fn now(&self) -> Traffic {
        Traffic {
            read: self.read.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            fallback_blocks: self.fallback.load(Ordering::Relaxed),
        }
    }

    fn add(&self, other: &Self) {
        let other = other.now();
        self.read.fetch_add(other.read, Ordering::Relaxed);
        self.written.fetch_add(other.written, Ordering::Relaxed);
        self.fallback.fetch_add(other.fallback_blocks, Ordering::Relaxed);
    }
}

fn cells(regions: usize) -> impl Iterator<Item = Cells> {
    (0..regions).map(|_| Cells::default())
}

impl Counters {
    pub(crate) fn new(regions: usize) -> Self {
        let volume = VOLUMES.fetch_add(1, Ordering::Relaxed);
        Self { volume, regions, threads: Mutex::default(), others: cells(regions).collect() }
    }

    fn count(&self, region: usize, add: impl Fn(&Cells)) {
        let tid = ACTING_FOR.get();
        LAST.with_borrow_mut(|last| {
            if !matches!(last, Some((volume, thread, _)) if (*volume, *thread) == (self.volume, tid)) {
                *last = Some((self.volume, tid, self.of_thread(tid)));
            }
            if let Some(cells) = last.as_ref().and_then(|(_, _, cells)| cells.get(region)) {
                add(cells);
            }
        });
    }

    fn of_thread(&self, tid: u32) -> Arc<[Cells]> {
        let own = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut threads = lock(&self.threads);
        if threads.len() >= MOST_THREADS {
            self.retire(&mut threads, |_| false);
        }
        Arc::clone(threads.entry(if tid == 0 { own() } else { tid }).or_insert_with(|| cells(self.regions).collect()))
    }

    /// Adds up the counters that nobody holds and of which `keep` says no.
    fn retire(&self, threads: &mut FxHashMap<u32, Arc<[Cells]>>, keep: impl Fn(u32) -> bool) {
        threads.retain(|tid, cells| {
            let stays = Arc::strong_count(cells) > 1 || keep(*tid);
            if !stays {
                self.others.iter().zip(cells.iter()).for_each(|(all, own)| all.add(own));
            }
            stays
        });
    }

    pub(crate) fn read(&self, region: usize, bytes: u64) {
        self.count(region, |cells| {
            cells.read.fetch_add(bytes, Ordering::Relaxed);
        });
    }

    pub(crate) fn written(&self, region: usize, bytes: u64) {
        self.count(region, |cells| {
            cells.written.fetch_add(bytes, Ordering::Relaxed);
        });
    }

    pub(crate) fn fell_back(&self, region: usize, blocks: u64) {
        self.count(region, |cells| {
            cells.fallback.fetch_add(blocks, Ordering::Relaxed);
        });
    }

    /// What each thread did, by region, since the volume was mounted. Threads of which `alive` says no are listed this once
    /// more and then only count in the total.
    pub(crate) fn by_thread(&self, alive: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<Traffic>> {
        let mut threads = lock(&self.threads);
        let list = threads.iter().map(|(tid, cells)| (*tid, cells.iter().map(Cells::now).collect())).collect();
        self.retire(&mut threads, alive);
        list
    }

    pub(crate) fn total(&self, region: usize) -> Traffic {
        let threads = lock(&self.threads);
        let all = threads.values().filter_map(|cells| cells.get(region)).chain(self.others.get(region));
        all.map(Cells::now).fold(Traffic::default(), |sum, cells| Traffic {
            read: sum.read + cells.read,
            written: sum.written + cells.written,
            fallback_blocks: sum.fallback_blocks + cells.fallback_blocks,
        })
    }
}
