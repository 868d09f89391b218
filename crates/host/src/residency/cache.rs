//! Page-cache files: finds what is cached, enters it into our page table, and has it counted.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use placement::NodeBytes;
use topology::NodeId;

use super::cached::{self, Pages};
use super::map::{Arena, Toucher};
use super::open::Opened;
use super::{Residency, ResidencyError, count};

/// File bytes that one thread asks about, touches and counts at a time. Small, so that little can be evicted between
/// question and touch, and so that what the kernel knows of these pages stays in the processor's cache until it counts.
const CHUNK: u64 = 16 << 20;

/// What one page fault enters: the kernel's fault-around, 64 KiB unless an administrator changed it. If it is less,
/// nothing is lost but time.
const AROUND: usize = 64 << 10;

/// Most threads for one file: counting is one at a time, and finding is not more than three times that.
const THREADS: usize = 4;

/// Parts that a range of the file is split into when something in it is cached.
const FAN: u64 = 256;

const ASK: &str = "ask which pages are cached of";
const TOUCH: &str = "touch the cached pages of";

/// Locates the cached bytes of a file whose residency the kernel shows to us.
pub(super) fn locate(
    file: &Opened,
    residency: &mut Residency,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ResidencyError> {
    // Nothing can be mapped of it, and before 6.5 nothing said so earlier.
    if file.size == 0 {
        progress(0, 0);
        return Ok(());
    }
    let chunks = usize::try_from(file.size.div_ceil(CHUNK)).unwrap_or(THREADS);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(THREADS).min(chunks);
    // Slot 0 is where mappings are counted, the others are where each thread fills its own.
    let arena = Arena::reserve(threads + 1, CHUNK as usize, page_size())
        .map_err(|e| ResidencyError::file("reserve address space for", &file.path, e))?;
    let walk = Walk {
        file,
        arena,
        ranges: Mutex::new(Ranges { file, left: vec![(0, file.size)] }),
        around: AtomicBool::new(true),
        done: AtomicU64::new(0),
        nodes: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|slot| {
                let walk = &walk;
                scope.spawn(move || walk.run(slot + 1, &mut |_| ()))
            })
            .collect();
        let mine = walk.run(1, &mut |done| progress(done, file.size));
        others
            .into_iter()
            .fold(mine, |all, other| all.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
    })?;
    progress(file.size, file.size);
    residency.nodes = walk.nodes.into_inner().unwrap_or_else(PoisonError::into_inner);
    residency.resident = residency.nodes.total();
    Ok(())
}

/// One file being looked at by a few threads.
struct Walk<'a> {
    file: &'a Opened,
    arena: Arena,
    ranges: Mutex<Ranges<'a>>,
    /// Whether touching one page enters its neighbours, as far as seen.
    around: AtomicBool,
    done: AtomicU64,
    /// What was found. Its lock is also the right to slot 0: the kernel walks every mapping below the one we ask for, so
    /// each is moved there, to the lowest address, and counted alone.
    nodes: Mutex<NodeBytes>,
}

impl Walk<'_> {
    /// What one thread does: chunk after chunk until none is left.
    fn run(&self, slot: usize, progress: &mut dyn FnMut(u64)) -> Result<(), ResidencyError> {
        let toucher = Toucher::new().map_err(self.failed(TOUCH))?;
        loop {
            let next = lock(&self.ranges).next();
            let Some((offset, len, skipped)) = next else { return Ok(()) };
            if let Err(e) = self.chunk(slot, &toucher, offset, len) {
                // The other threads stop after the chunk they have.
                lock(&self.ranges).left.clear();
                return Err(e);
            }
            progress(self.done.fetch_add(len + skipped, Ordering::Relaxed) + len + skipped);
        }
    }

    /// Finds, touches and counts what is cached of one chunk.
    fn chunk(&self, slot: usize, toucher: &Toucher, offset: u64, len: u64) -> Result<(), ResidencyError> {
        let bytes = len as usize;
        let pages = bytes.div_ceil(page_size());
        let known = self.counted(offset, len, pages);
        if matches!(known, Some(Pages::None)) {
            return Ok(());
        }
        let mapped = self.arena.map(slot, &self.file.fd, offset, bytes).map_err(self.failed("map"))?;
        let cached = match known {
            Some(known) => known,
            None => cached::pages(mapped, pages).map_err(self.failed(ASK))?,
        };
        let cached_pages = cached.count();
        if cached_pages == 0 {
            return Ok(());
        }
        let around = if self.around.load(Ordering::Relaxed) { AROUND / page_size() } else { 1 };
        let at = |mapped: usize| move |page: usize| mapped + page * page_size();
        toucher.touch(cached.one_of_each(around.max(1)).map(at(mapped))).map_err(self.failed(TOUCH))?;

        let mut nodes = lock(&self.nodes);
        let mapped = self.arena.move_to_first(mapped, bytes);
        let count = || {
            count::mapping(mapped, (cached_pages * page_size()) as u64)
                .map_err(|source| ResidencyError::Count { path: self.file.path.clone(), source })
        };
        let mut found = count()?;
        let entered = (total(&found) / page_size() as u64) as usize;
        if entered < cached_pages {
            // A page that was locked, or marked for readahead, is not entered with its neighbours; and some file
            // systems have no fault-around. So touch each.
            if entered < cached_pages / 2 {
                self.around.store(false, Ordering::Relaxed);
            }
            let cached = cached::pages(mapped, pages).map_err(self.failed(ASK))?;
            toucher.touch(cached.one_of_each(1).map(at(mapped))).map_err(self.failed(TOUCH))?;
            found = count()?;
        }
        self.trim_last_page(&mut found, mapped, offset, bytes);
        for (node, bytes) in found {
            nodes.add(node, bytes);
        }
        // Now, while the processor's cache has what the kernel needs for it; later it would be as slow as entering.
        self.arena.leave(mapped, bytes);
        Ok(())
    }

    /// What `cachestat` knows of a chunk, if that is all there is to know.
    fn counted(&self, offset: u64, len: u64, pages: usize) -> Option<Pages> {
        match self.file.cached(offset, len)? {
            0 => Some(Pages::None),
            n if n == pages as u64 => Some(Pages::All(pages)),
            _ => None,
        }
    }

    fn failed(&self, what: &'static str) -> impl Fn(io::Error) -> ResidencyError {
        move |e| ResidencyError::file(what, &self.file.path, e)
    }

    /// Takes off what the last page of the file has beyond the file's end.
    fn trim_last_page(&self, found: &mut [(NodeId, u64)], mapped: usize, offset: u64, bytes: usize) {
        let beyond = bytes.next_multiple_of(page_size()) - bytes;
        if beyond == 0 || offset + (bytes as u64) < self.file.size {
            return;
        }
        let last = mapped + bytes.next_multiple_of(page_size()) - page_size();
        if let Some(node) = count::page(last)
            && let Some(entry) = found.iter_mut().find(|entry| entry.0 == node)
        {
            entry.1 = entry.1.saturating_sub(beyond as u64);
        }
    }
}

/// Hands out chunks, and leaves out ranges of which nothing is cached where the kernel can say so at once.
struct Ranges<'a> {
    file: &'a Opened,
    /// Ranges (start, length) not yet handed out, the first one last.
    left: Vec<(u64, u64)>,
}

impl Ranges<'_> {
    /// The next chunk as (offset, length, bytes left out before it).
    fn next(&mut self) -> Option<(u64, u64, u64)> {
        let mut skipped = 0;
        while let Some((start, len)) = self.left.pop() {
            if len <= CHUNK {
                return Some((start, len, skipped));
            }
            // Each chunk is asked about by itself; a question about all of a range pays only where it is large.
            if len > FAN * CHUNK && self.file.cached(start, len) == Some(0) {
                skipped += len;
                continue;
            }
            let part = len.div_ceil(FAN).next_multiple_of(CHUNK);
            let parts = len.div_ceil(part);
            self.left.extend((0..parts).rev().map(|i| (start + i * part, part.min(len - i * part))));
        }
        None
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn total(found: &[(NodeId, u64)]) -> u64 {
    found.iter().map(|entry| entry.1).sum()
}

fn page_size() -> usize {
    rustix::param::page_size()
}
