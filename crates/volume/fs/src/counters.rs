//! Bytes read and written, by thread, file and region, cheap enough to stay on.
//!
//! **Problem.** A policy wants to know which thread's file bytes come from which node. Counting
//! must not make threads wait for each other.
//!
//! **Approach.** Each thread has counters of its own and keeps hold of them ([`Recent`]); a thread
//! that works for others, as that of a mount does, says for whom ([`crate::as_thread`]). What each
//! thread does with each file is counted likewise, once somebody wants to know
//! ([`Counters::watch_files`]), and handed out as it is since the last time. What is read of each
//! range of a file is counted by the reader's node instead of its thread
//! ([`Counters::watch_ranges`]), in tables that threads share, as a range has any number of
//! readers.
//!
//! **Limits.** Thread numbers are reused: the reader of the counters knows which thread a number
//! is. Whoever reads many ranges of files soon after each taking can fill the table of ranges, and
//! what others read first after that is counted by file only.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use crate::caller;
use crate::format::Ino;
use crate::recent::Recent;
use crate::sync::task_local;
use crate::volume::lock;

/// Bytes from and to the memory of one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of file data read.
    pub read: u64,
    /// Bytes of file data written.
    pub written: u64,
    /// Blocks that went here because the region they were meant for was full, and all others of its
    /// node.
    pub fallback_blocks: u64,
}

/// Threads with counters of their own; beyond it those that are not at work are added up. At 64
/// bytes a region.
const MOST_THREADS: usize = 16_384;

/// Pairs of a thread and a file that are counted at a time; beyond it bytes count for threads only.
/// At 64 bytes a region, and as much again.
const MOST_USES: usize = 65_536;

/// Ranges that are counted at a time, apart by node of data and of readers; beyond it bytes are not
/// told apart. At 40 bytes.
const MOST_RANGES: usize = 65_536;
/// Tables that share them: two threads seldom meet at one.
const TABLES: usize = 16;

static VOLUMES: AtomicU64 = AtomicU64::new(1);

type OfThreads = Recent<(u64, u32), Arc<[Cells]>>;

task_local! {
    /// The counters used lately: of which volume, for which thread.
    static THREADS: RefCell<OfThreads> = RefCell::new(Recent::NOTHING);
    /// The uses of files that were counted lately: of which volume, by which thread, of which file.
    static USES: RefCell<Recent<(u64, u32, Ino), Arc<FileCells>>> = RefCell::new(Recent::NOTHING);
}

/// Bytes of one thread and one file since the last call ([`crate::Volume::take_uses`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub tid: u32,
    pub ino: Ino,
    /// Bytes, by region.
    pub regions: Vec<Traffic>,
    pub reads: u64,
    /// Of these, calls that began where the one before ended.
    pub sequential: u64,
}

/// Bytes read from one range of a file since the last call ([`crate::Volume::take_ranges`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeUse {
    pub ino: Ino,
    pub range: u32,
    pub region: usize,
    /// The node of those who read them, where it is known.
    pub by: Option<u32>,
    pub bytes: u64,
}

/// A file, a range of it, the region of its data, and the node of its readers.
type RangeKey = (Ino, u32, usize, Option<u32>);

#[derive(Debug)]
pub(crate) struct Counters {
    volume: u64,
    regions: usize,
    threads: Mutex<FxHashMap<u32, Arc<[Cells]>>>,
    /// Threads that are no longer listed.
    others: Box<[Cells]>,
    files: AtomicBool,
    uses: Mutex<FxHashMap<(u32, Ino), Arc<FileCells>>>,
    /// Bytes for which `uses` had no room.
    untold: AtomicU64,
    /// Bytes of a range; 0: nobody wants to know.
    range_bytes: AtomicU64,
    ranges: [Mutex<FxHashMap<RangeKey, u64>>; TABLES],
    /// Bytes for which `ranges` had no room.
    untold_ranges: AtomicU64,
}

#[derive(Debug)]
struct FileCells {
    regions: Box<[Cells]>,
    reads: AtomicU64,
    sequential: AtomicU64,
    /// Where the last read call ended.
    end: AtomicU64,
}

/// Each thread's are behind those of another one by a line of the cache, so that they do not wait
/// for each other. They are padded and not aligned: the C library splits its heaps for aligned
/// memory, and these come and go with threads and files.
#[derive(Debug, Default)]
#[repr(C)]
struct Cells {
    read: AtomicU64,
    written: AtomicU64,
    fallback: AtomicU64,
    _apart: [u64; 5],
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
        let others = cells(regions).collect();
        let (files, untold) = (AtomicBool::default(), AtomicU64::default());
        let (range_bytes, ranges, untold_ranges) = Default::default();
        let (threads, uses) = (Mutex::default(), Mutex::default());
        Self { volume, regions, threads, others, files, uses, untold, range_bytes, ranges, untold_ranges }
    }

    /// From now on counts by file, too.
    pub(crate) fn watch_files(&self) {
        self.files.store(true, Ordering::Relaxed);
    }

    /// Counts by range of so many bytes, too; 0 ends it.
    pub(crate) fn watch_ranges(&self, bytes: u64) {
        self.range_bytes.store(bytes, Ordering::Relaxed);
    }

    /// These bytes of a file were read from a region, by a thread on a node.
    pub(crate) fn read_ranges(&self, ino: Ino, at: Range<u64>, region: usize, by: impl FnOnce() -> Option<u32>) {
        let length = self.range_bytes.load(Ordering::Relaxed);
        if length == 0 {
            return;
        }
        let (by, mut from) = (by(), at.start);
        while from < at.end {
            let range = from / length;
            let end = at.end.min((range + 1).saturating_mul(length));
            let (bytes, place) = (end - from, ino.raw().wrapping_mul(31).wrapping_add(range) as usize % TABLES);
            from = end;
            let (Some(table), Ok(range)) = (self.ranges.get(place), u32::try_from(range)) else { continue };
            let (mut table, key) = (lock(table), (ino, range, region, by));
            let has_room = table.len() < MOST_RANGES / TABLES;
            match table.get_mut(&key) {
                Some(sum) => *sum += bytes,
                None if has_room => _ = table.insert(key, bytes),
                None => _ = self.untold_ranges.fetch_add(bytes, Ordering::Relaxed),
            }
        }
    }

    /// Bytes read from each range since the last call, and the bytes that could not be told apart.
    pub(crate) fn take_ranges(&self) -> (Vec<RangeUse>, u64) {
        let tables = self.ranges.iter().flat_map(|table| std::mem::take(&mut *lock(table)));
        let of = |((ino, range, region, by), bytes)| RangeUse { ino, range, region, by, bytes };
        let mut list: Vec<RangeUse> = tables.map(of).collect();
        list.sort_unstable();
        (list, self.untold_ranges.swap(0, Ordering::Relaxed))
    }

    fn count(&self, region: usize, add: impl Fn(&Cells)) {
        let tid = caller::acting_for();
        THREADS.with_borrow_mut(|recent| {
            let own = recent.get(u64::from(tid), (self.volume, tid), || Some(self.of_thread(tid)));
            if let Some(cells) = own.and_then(|cells| cells.get(region)) {
                add(cells);
            }
        });
    }

    fn of_thread(&self, tid: u32) -> Arc<[Cells]> {
        let mut threads = lock(&self.threads);
        if threads.len() >= MOST_THREADS {
            self.retire(&mut threads, |_| false);
        }
        Arc::clone(
            threads.entry(if tid == 0 { caller::tid() } else { tid }).or_insert_with(|| cells(self.regions).collect()),
        )
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

    /// Bytes read; `of` is the file, if a thread read them for itself.
    pub(crate) fn read(&self, of: Option<Ino>, region: usize, bytes: u64) {
        let add = |cells: &Cells| {
            cells.read.fetch_add(bytes, Ordering::Relaxed);
        };
        self.count(region, add);
        self.count_use(of, bytes, |file| file.regions.get(region).map_or((), add));
    }

    /// Bytes written; `of` is the file, if a thread wrote them for itself.
    pub(crate) fn written(&self, of: Option<Ino>, region: usize, bytes: u64) {
        let add = |cells: &Cells| {
            cells.written.fetch_add(bytes, Ordering::Relaxed);
        };
        self.count(region, add);
        self.count_use(of, bytes, |file| file.regions.get(region).map_or((), add));
    }

    /// One read call of a file.
    pub(crate) fn read_call(&self, of: Ino, offset: u64, len: u64) {
        self.count_use(Some(of), 0, |file| {
            file.reads.fetch_add(1, Ordering::Relaxed);
            if file.end.swap(offset + len, Ordering::Relaxed) == offset {
                file.sequential.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    fn count_use(&self, of: Option<Ino>, bytes: u64, add: impl Fn(&FileCells)) {
        let Some(ino) = of.filter(|_| self.files.load(Ordering::Relaxed)) else { return };
        let tid = caller::acting_for();
        USES.with_borrow_mut(|recent| {
            let hash = u64::from(tid).wrapping_add(ino.raw());
            match recent.get(hash, (self.volume, tid, ino), || self.of_use(tid, ino)) {
                Some(file) => add(file),
                None => _ = self.untold.fetch_add(bytes, Ordering::Relaxed),
            }
        });
    }

    fn of_use(&self, tid: u32, ino: Ino) -> Option<Arc<FileCells>> {
        let key = (if tid == 0 { caller::tid() } else { tid }, ino);
        let mut uses = lock(&self.uses);
        if uses.len() >= MOST_USES && !uses.contains_key(&key) {
            return None;
        }
        let zero = AtomicU64::default;
        let new = || FileCells {
            regions: cells(self.regions).collect(),
            reads: zero(),
            sequential: zero(),
            end: AtomicU64::new(u64::MAX),
        };
        Some(Arc::clone(uses.entry(key).or_insert_with(|| Arc::new(new()))))
    }

    /// Bytes of each thread and file since the last call, and the bytes that could not be told
    /// apart. What was not used since the last call is forgotten.
    pub(crate) fn take_uses(&self) -> (Vec<Use>, u64) {
        let take = |cell: &AtomicU64| cell.swap(0, Ordering::Relaxed);
        let mut list = Vec::new();
        lock(&self.uses).retain(|(tid, ino), file| {
            let traffic = |c: &Cells| Traffic {
                read: take(&c.read),
                written: take(&c.written),
                fallback_blocks: take(&c.fallback),
            };
            let regions: Vec<Traffic> = file.regions.iter().map(traffic).collect();
            let (reads, sequential) = (take(&file.reads), take(&file.sequential));
            let used = reads > 0 || regions.iter().any(|t| *t != Traffic::default());
            if used {
                list.push(Use { tid: *tid, ino: *ino, regions, reads, sequential });
            }
            // Whoever holds it may be about to count.
            used || Arc::strong_count(file) > 1
        });
        list.sort_by_key(|of| (of.tid, of.ino));
        (list, take(&self.untold))
    }

    pub(crate) fn fell_back(&self, region: usize, blocks: u64) {
        self.count(region, |cells| {
            cells.fallback.fetch_add(blocks, Ordering::Relaxed);
        });
    }

    /// Bytes of each thread, by region, since the volume was mounted. Threads of which `alive` says
    /// no are listed this once more and then only count in the total.
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
