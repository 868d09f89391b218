//! Page-cache files: finds cached pages, enters them into our page table, and has the kernel count
//! them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use topology::NodeBytes;
use topology::NodeId;

use super::cached::{self, Pages};
use super::map::{Arena, Toucher};
use super::open::Opened;
use super::{Residency, ResidencyError, SAMPLE, count};
use crate::random;

/// File bytes that one thread queries, touches and counts at a time. Small, so that little can be
/// evicted between the query and the touch, and so that the kernel's data on these pages stays in
/// the processor's cache until it counts them.
const CHUNK: u64 = 16 << 20;

/// Bytes that one page fault enters: the kernel's fault-around, 64 KiB unless an administrator
/// changed it. A smaller value there costs only time.
const AROUND: usize = 64 << 10;

/// Most threads for one file: one at a time counts, and finding takes at most three times as long
/// as counting.
const THREADS: usize = 4;

/// Number of parts into which a range of the file is split if some of it is cached.
const FAN: u64 = 256;

const ASK: &str = "ask which pages are cached of";
const TOUCH: &str = "touch the cached pages of";

/// Locates the cached bytes of `len` bytes from a page's start in a file whose residency the kernel
/// shows us.
pub(super) fn locate(
    file: &Opened,
    (offset, len): (u64, u64),
    residency: &mut Residency,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ResidencyError> {
    // Nothing cannot be mapped.
    if len == 0 {
        progress(0, 0);
        return Ok(());
    }
    let chunks = usize::try_from(len.div_ceil(CHUNK)).unwrap_or(THREADS);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(THREADS).min(chunks);
    residency.nodes = count_ranges(file, vec![(offset, len)], threads, &mut |done, _| progress(done, len))?;
    progress(len, len);
    residency.resident = residency.nodes.total();
    Ok(())
}

/// Counts the cached bytes of these ranges (offset, length), in reverse order, with this many
/// threads.
fn count_ranges(
    file: &Opened,
    ranges: Vec<(u64, u64)>,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<NodeBytes, ResidencyError> {
    // Mappings are counted in slot 0; each thread fills its mapping in a slot of its own.
    let arena = Arena::reserve(threads + 1, CHUNK as usize, page_size())
        .map_err(|e| ResidencyError::file("reserve address space for", &file.path, e))?;
    let walk = Walk {
        file,
        arena,
        ranges: Mutex::new(Ranges { file, left: ranges }),
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
    Ok(walk.nodes.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Bytes of a sample that are mapped at a time: they count as our memory meanwhile.
const PIECE: u64 = 1 << 20;

const PIECES: u64 = SAMPLE / PIECE;

/// The cached bytes per node of a file, from one piece in each of [`PIECES`] parts of it at a
/// random place, and the share of the file that was looked at. Files of up to [`SAMPLE`] bytes are
/// counted.
pub(super) fn sample(file: &Opened) -> Result<(NodeBytes, f64), ResidencyError> {
    if file.size == 0 {
        return Ok((NodeBytes::default(), 1.0));
    }
    let whole = file.size <= SAMPLE;
    let part = if whole { PIECE } else { file.size / PIECES };
    let piece = |i: u64| {
        let within = if whole { 0 } else { (part.saturating_sub(PIECE) as f64 * random()) as u64 };
        // Mappings start with a page, and fault-around with so many.
        let start = (i * part + within) / AROUND as u64 * AROUND as u64;
        (start, PIECE.min(file.size.saturating_sub(start)))
    };
    let ranges: Vec<_> = (0..if whole { file.size.div_ceil(PIECE) } else { PIECES }).map(piece).collect();
    let looked: u64 = ranges.iter().map(|range| range.1).sum();
    let found = count_ranges(file, ranges, 1, &mut |_, _| ())?;
    let share = (looked as f64 / file.size as f64).min(1.0);
    let scaled = |bytes: u64| if whole { bytes } else { (bytes as f64 / share).round() as u64 };
    Ok((found.iter().map(|(node, bytes)| (node, scaled(bytes))).collect(), share))
}

/// One file that a few threads inspect.
struct Walk<'a> {
    file: &'a Opened,
    arena: Arena,
    ranges: Mutex<Ranges<'a>>,
    /// Whether touching one page has entered its neighbours so far.
    around: AtomicBool,
    done: AtomicU64,
    /// Bytes found so far. Its lock also guards slot 0: the kernel walks every mapping below the
    /// one that we ask for, so each mapping is moved to slot 0, the lowest address, and counted
    /// alone.
    nodes: Mutex<NodeBytes>,
}

impl Walk<'_> {
    /// The work of one thread: chunk after chunk until none is left.
    fn run(&self, slot: usize, progress: &mut dyn FnMut(u64)) -> Result<(), ResidencyError> {
        let toucher = Toucher::new().map_err(self.failed(TOUCH))?;
        loop {
            let next = lock(&self.ranges).next();
            let Some((offset, len, skipped)) = next else { return Ok(()) };
            if let Err(e) = self.chunk(slot, &toucher, offset, len) {
                // The other threads stop after their present chunk.
                lock(&self.ranges).left.clear();
                return Err(e);
            }
            progress(self.done.fetch_add(len + skipped, Ordering::Relaxed) + len + skipped);
        }
    }

    /// Finds, touches and counts the cached pages of one chunk.
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
        let count = || count::mapping(mapped, (cached_pages * page_size()) as u64).map_err(self.failed(count::COUNT));
        let mut found = count()?;
        let entered = (total(&found) / page_size() as u64) as usize;
        if entered < cached_pages {
            // The kernel does not enter a locked page, or one marked for readahead, with its
            // neighbours, and some file systems have no fault-around. So touch each page.
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
        // Now the processor's cache still holds the kernel's data for it; later this would be as
        // slow as entering.
        self.arena.leave(mapped, bytes);
        Ok(())
    }

    /// The cached pages of a chunk according to `cachestat`, if that says all or none.
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

    /// Subtracts the part of the file's last page that is beyond the file's end.
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

/// Hands out chunks; leaves out large ranges if the kernel says at once that nothing of them is
/// cached.
struct Ranges<'a> {
    file: &'a Opened,
    /// Ranges (start, length) not yet handed out, in reverse order.
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
            // Each chunk has a query of its own; a query for a whole range pays only if the range
            // is large.
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
