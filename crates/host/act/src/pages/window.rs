//! One mapped window of a file, and its pages that are elsewhere.

use std::io;
use std::ops::Range;
use std::ptr::with_exposed_provenance_mut;

use linux::pages::{self, MOVE, MOVE_ALL};
use linux::residency::cached::{self, Pages};
use linux::residency::map::Arena;
use linux::residency::open::Opened;
use rustix::io::Errno;
use rustix::mm::Advice;
use topology::NodeId;

use super::CHUNK;
use crate::memory::Layout;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub there: u64,
    pub in_use: u64,
    pub no_memory: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.there += other.there;
        self.in_use += other.in_use;
        self.no_memory += other.no_memory;
    }

    pub(super) fn left(&self) -> u64 {
        self.in_use + self.no_memory
    }
}

/// Pages of a file, by number.
#[derive(Debug)]
pub(super) struct Pick {
    /// First page and end of each run, by rising number.
    runs: Vec<(u64, u64)>,
}

impl Pick {
    /// The pages of a layout that were on this node.
    pub(super) fn on(layout: &Layout, node: NodeId) -> Self {
        let runs = layout.runs().filter(|run| run.node == node);
        Self { runs: runs.map(|run| (run.first, run.first.saturating_add(run.pages))).collect() }
    }

    /// The pages of these ranges of a file, by rising offset.
    pub(super) fn of(ranges: &[Range<u64>]) -> Self {
        let page = rustix::param::page_size() as u64;
        Self { runs: ranges.iter().map(|range| (range.start / page, range.end.div_ceil(page))).collect() }
    }

    /// The first page from this one on; `None`: none is left.
    pub(super) fn next(&self, page: u64) -> Option<u64> {
        let after = self.runs.partition_point(|run| run.1 <= page);
        self.runs.get(after).map(|run| run.0.max(page))
    }

    pub(super) fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.1 - run.0).sum()
    }

    fn has(&self, page: u64) -> bool {
        let after = self.runs.partition_point(|run| run.0 <= page);
        after.checked_sub(1).and_then(|at| self.runs.get(at)).is_some_and(|run| page < run.1)
    }
}

#[derive(Debug, Default)]
pub(super) struct Tried {
    pub bytes: u64,
    pub moved: u64,
    /// Nothing moved for want of memory.
    pub starved: bool,
}

#[derive(Debug)]
pub(super) struct Window {
    pub offset: u64,
    at: usize,
    len: u64,
    /// As in [`super::FileMove`].
    from: Option<NodeId>,
    to: NodeId,
    leave_mapped: bool,
    /// Addresses of pages that are elsewhere; taken from the end.
    queue: Vec<usize>,
    /// Cached pages for which the kernel named no node: they have left the memory, or something
    /// else moves them just now.
    lost: Vec<usize>,
    /// Pages of one call.
    chunk: usize,
    /// One page of so many is asked for first.
    stride: usize,
    tally: Tally,
}

impl Window {
    /// Maps a window and enters its cached pages; `None` if it has none. `tries` is how often it
    /// has been visited, `stride` what the window before ended with.
    pub(super) fn open(
        arena: &Arena,
        file: &Opened,
        offset: u64,
        most: u64,
        (from, to, leave_mapped): (Option<NodeId>, NodeId, bool),
        (tries, stride): (usize, usize),
        (only, before): (Option<&Pick>, &mut Layout),
    ) -> io::Result<Option<Self>> {
        // A mapping may reach beyond the end of a file that shrinks; its pages there are not
        // cached.
        let len = most.min(file.size.saturating_sub(offset));
        if len == 0 || file.cached(offset, len) == Some(0) {
            return Ok(None);
        }
        let bytes = usize::try_from(len).map_err(io::Error::other)?;
        let at = arena.map(0, &file.fd, offset, bytes)?;
        let mut window = Self {
            offset,
            at,
            len,
            from,
            to,
            leave_mapped,
            queue: Vec::new(),
            lost: Vec::new(),
            chunk: 0,
            stride,
            tally: Tally::default(),
        };
        let page = rustix::param::page_size();
        let mut found = Vec::new();
        let mut start = at;
        for run in window.cached()?.chunk_by(|a, b| a & 1 == b & 1) {
            let bytes = run.len() * page;
            if run.first().is_some_and(|c| c & 1 == 1) {
                populate(start, bytes)?;
                found.extend((start..start + bytes).step_by(page));
            }
            start += bytes;
        }
        let number = |address: usize| (offset + (address - at) as u64) / page as u64;
        if let Some(pick) = only {
            found.retain(|address| pick.has(number(*address)));
        }
        // A later try adds only pages above all others; those that it finds were read in meanwhile.
        window.queue = window.sort(&found, &mut |address, node| before.push(number(address), node))?;
        // A page that stays makes the kernel give up the rest of its call. So calls get smaller
        // from try to try, and every second try begins at the other end.
        let whole = (CHUNK as usize / page).max(1);
        window.chunk = (whole >> (tries / 2 * 2)).max(1);
        if tries % 2 == 0 {
            window.queue.reverse();
        }
        Ok(Some(window))
    }

    /// For each page of the window, whether it is cached: bit 0.
    fn cached(&self) -> io::Result<Vec<u8>> {
        let pages = (self.len as usize).div_ceil(rustix::param::page_size());
        Ok(match cached::pages(self.at, pages)? {
            Pages::Some(cached) => cached,
            Pages::All(pages) => vec![1; pages],
            Pages::None => Vec::new(),
        })
    }

    /// Looks again at the pages for which the kernel named no node. Those still cached count as in
    /// use: something else, such as the kernel's own balancing of a program that maps them, moved
    /// them at that moment.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if self.lost.is_empty() {
            return Ok(());
        }
        let cached = self.cached()?;
        let page = rustix::param::page_size();
        let is_cached = |lost: &usize| cached.get((lost - self.at) / page).is_some_and(|c| c & 1 == 1);
        let cached: u64 = self.lost.iter().filter(|lost| is_cached(lost)).map(|lost| self.bytes(*lost)).sum();
        self.lost.clear();
        self.tally.in_use += cached;
        Ok(())
    }

    /// Whether all its pages have been tried.
    pub(super) fn done(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Moves one chunk and looks where its pages are now.
    ///
    /// A large folio moves when any of its pages is asked for. Asking for all of them costs some
    /// four times as much, and ends the kernel's batch at each folio. So one page of each `stride`
    /// is asked for first, as long as the others come with it.
    pub(super) fn step(&mut self) -> io::Result<Tried> {
        let chunk = self.queue.split_off(self.queue.len().saturating_sub(self.chunk));
        if chunk.is_empty() {
            return Ok(Tried::default());
        }
        let before = self.tally.there;
        let some: Vec<usize> = chunk.iter().copied().step_by(self.stride).collect();
        let mut starved = self.ask(&some)?;
        let mut left = self.sort(&chunk, &mut |_, _| ())?;
        if self.stride > 1 && !left.is_empty() {
            if left.len() > chunk.len() / 2 {
                self.stride = (self.stride / 4).max(1);
            }
            starved = self.ask(&left)?;
            left = self.sort(&left, &mut |_, _| ())?;
        }
        let bytes = left.iter().map(|page| self.bytes(*page)).sum::<u64>();
        if starved {
            self.tally.no_memory += bytes;
        } else {
            self.tally.in_use += bytes;
        }
        let moved = self.tally.there - before;
        Ok(Tried { bytes: moved + bytes, moved, starved: starved && moved == 0 })
    }

    /// Asks the kernel to move these pages; returns whether it lacked memory.
    fn ask(&self, pages: &[usize]) -> io::Result<bool> {
        let flags = if self.leave_mapped { MOVE } else { MOVE_ALL };
        match pages::move_pages(0, pages, Some(self.to), flags).1 {
            Ok(()) => Ok(false),
            Err(e) => match Errno::from_io_error(&e) {
                Some(Errno::NOMEM) => Ok(true),
                // Something else moves or frees these pages just now; or none is left (before Linux
                // 4.17).
                Some(Errno::AGAIN | Errno::INTR | Errno::BUSY | Errno::FAULT | Errno::NOENT) => Ok(false),
                _ => Err(e),
            },
        }
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Asks where these pages are: counts those on the target, and returns those that are to be
    /// moved, after it has shown their nodes.
    fn sort(&mut self, pages: &[usize], show: &mut dyn FnMut(usize, NodeId)) -> io::Result<Vec<usize>> {
        let mut elsewhere = Vec::new();
        for (page, node) in pages.iter().zip(pages::nodes(pages)?) {
            match node {
                Some(node) if node == self.to => self.tally.there += self.bytes(*page),
                Some(node) if self.from.is_some_and(|from| from != node) => {}
                Some(node) => {
                    elsewhere.push(*page);
                    show(*page, node);
                }
                None => self.lost.push(*page),
            }
        }
        Ok(elsewhere)
    }

    /// The bytes that the file has in the page at an address.
    fn bytes(&self, page: usize) -> u64 {
        self.len.saturating_sub((page - self.at) as u64).min(rustix::param::page_size() as u64)
    }
}

/// Pages of the folios that are tried as a whole at first: readahead makes some of this size. After
/// it come 4, and 1.
pub(super) const STRIDE: usize = 16;

/// Pages of a part that is populated by itself when the whole was not possible: the kernel's
/// fault-around.
const PART: usize = 64 << 10;

/// Enters pages of a mapping of ours into our page table. Fails at the first page that the file
/// does not have any more.
fn enter(start: usize, len: usize) -> rustix::io::Result<()> {
    // SAFETY: populating reads from the file and changes no memory; a range that is not mapped is
    // an error code.
    unsafe { rustix::mm::madvise(with_exposed_provenance_mut(start), len, Advice::LinuxPopulateRead) }
}

/// Enters cached pages; leaves out those that have gone meanwhile.
fn populate(start: usize, len: usize) -> io::Result<()> {
    let gone = |e| matches!(e, Errno::FAULT | Errno::NOMEM | Errno::HWPOISON);
    match enter(start, len) {
        Err(e) if gone(e) => {}
        other => return Ok(other?),
    }
    let part = PART.next_multiple_of(rustix::param::page_size());
    for from in (start..start + len).step_by(part) {
        match enter(from, part.min(start + len - from)) {
            Err(e) if !gone(e) => return Err(e.into()),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use linux::residency::open;

    use super::*;

    #[test]
    fn a_page_that_something_else_moves_just_now_counts_as_in_use_and_one_that_has_gone_does_not() {
        let page = rustix::param::page_size();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 4 * page]).unwrap();
        // The fifth page was never written: it is not cached.
        file.as_file().set_len(5 * page as u64).unwrap();
        let opened = open::open(file.path()).unwrap();
        let arena = Arena::reserve(1, 8 * page, page).unwrap();
        let mut window = Window::open(
            &arena,
            &opened,
            0,
            8 * page as u64,
            (None, NodeId(0), false),
            (0, 1),
            (None, &mut Layout::default()),
        )
        .unwrap()
        .unwrap();
        window.lost = vec![window.at + page, window.at + 4 * page];
        let before = window.tally.in_use;
        window.settle().unwrap();
        assert_eq!(window.tally.in_use - before, page as u64);
        assert!(window.lost.is_empty());
    }

    /// A file on three nodes lost what its readers on the third had near them.
    #[test]
    fn pages_that_are_not_on_the_node_of_the_move_are_left_alone() {
        let page = rustix::param::page_size();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 4 * page]).unwrap();
        let opened = open::open(file.path()).unwrap();
        let arena = Arena::reserve(1, 8 * page, page).unwrap();
        let at = arena.map(0, &opened.fd, 0, page).unwrap();
        populate(at, page).unwrap();
        let on = pages::nodes(&[at]).unwrap().next().flatten().unwrap();
        let (other, third) = (NodeId(on.0 + 1), NodeId(on.0 + 2));
        for (from, pages) in [(None, 4), (Some(on), 4), (Some(third), 0)] {
            let mut before = Layout::default();
            let window =
                Window::open(&arena, &opened, 0, 8 * page as u64, (from, other, false), (0, 1), (None, &mut before));
            let window = window.unwrap().unwrap();
            assert_eq!((window.queue.len(), before.pages(), window.tally.there), (pages, pages as u64, 0), "{from:?}");
        }
    }
}
