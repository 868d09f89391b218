//! Moving a file's cached pages to a node.
//!
//! **Problem.** A file's pages stay where they were read in, also when its readers run elsewhere or
//! that node's memory is overloaded. The kernel moves pages of a process, not of a file.
//!
//! **Approach.** Map the file, enter the pages that are cached, and let `move_pages(2)` move them:
//! with `MPOL_MF_MOVE_ALL` it moves pages that others map, too. Its own answer cannot be relied on
//! (a call that fails in part leaves its status array unwritten), so each call is checked by a
//! query. What stays is tried again, up to five times and after ever longer pauses, because most
//! references to a page last milliseconds. A call moves [`CHUNK`] bytes: a thread that touches one
//! of these pages by a mapping waits until the call is done, and `pread` does not wait. Only a
//! window of the file is mapped at a time.
//!
//! Nothing is read in, and no access time changes (see [`linux::residency`]). No page is touched by
//! a load, so that a file that shrinks meanwhile gives an error code instead of SIGBUS. A file
//! keeps its identity, because it stays open; a file that loses its last name is let go, because an
//! open file keeps its blocks.
//!
//! **Limits.**
//! - Pages with extra references stay: pages in a pipe (`splice`), pages pinned for direct or
//!   registered I/O. A large folio moves as a whole or not at all.
//! - A move that leaves mapped pages ([`FileMove::leave_mapped`]) leaves small folios as the kernel
//!   counts their mappings; of a large folio it knows them only by estimate before Linux 6.15.
//! - Pages that are read in later go to the reader's node, and what is appended during the move
//!   stays where it is.
//! - `move_pages` waits for pages under writeback. A file system that hangs makes it hang.
//! - It needs CAP_SYS_NICE, and what opening the file takes: for other users' files that is
//!   CAP_DAC_READ_SEARCH, and CAP_FOWNER to leave the access time alone and to be told what is
//!   cached.

mod refuse;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::residency::map::Arena;
use linux::residency::open::{self, Opened};
use linux::residency::{self, ResidencyError};
use topology::{NodeBytes, NodeId};

use self::window::{Pick, Tally, Window};
use super::copying::{Back, Copied, Copying, Several};
use super::memory::Layout;

pub use self::refuse::target;
pub(crate) use self::refuse::{allowed, file as uncached, room};

/// Bytes that one call moves. A mapped reader's stall grows with it, and so does the speed: in an
/// emulated machine, 256 pages stalled readers half as long as 512 at the same speed, while 64
/// pages took twice as long in all, because each call first drains every CPU's batches of pages.
pub const CHUNK: u64 = 1 << 20;

/// File bytes that are mapped at a time, of which the pages are known one by one.
const WINDOW: u64 = 16 << 20;

/// File bytes that one step inspects at most, so that it returns soon also where nothing is to be
/// moved: about 0.1 s for a fully cached file (0.12 s/GiB).
const SCAN: u64 = 1 << 30;

/// File bytes that are left out at once if the kernel says that none of them is cached. A cached
/// file costs one question more in 256.
const SKIP: u64 = FAN * WINDOW;

/// After a range without cached pages, one so many times as large is asked about: few questions
/// even for the largest sparse file.
const FAN: u64 = 256;

/// How often each page is tried: once, and five times more.
const TRIES: usize = 6;

/// The pause before the first try again; each further pause is twice as long: 0.3 s in all.
const PAUSE: Duration = Duration::from_millis(10);

/// Calls in a row that may move nothing for want of memory. Each makes the kernel look for memory
/// on the target.
const STARVED: u32 = 8;

/// Why data stays: something refers to it.
pub const IN_USE: &str = "pinned or in use for I/O";
/// Why data stays of a move that leaves what programs map: it is mapped, or something refers to it.
pub const MAPPED: &str = "mapped by a program, pinned or in use for I/O";
/// Why data stays: the target has no room.
pub const NO_MEMORY: &str = "no free memory on the target node";
/// Why data stays: nobody can open the file any more.
pub const DELETED: &str = "the file was deleted";

/// Why a file's pages are not moved. Every message names the file, or the node.
#[derive(Debug, thiserror::Error)]
pub enum FileMoveError {
    #[error(transparent)]
    File(#[from] ResidencyError),
    #[error("cannot move {} to node {to}: {why}", path.display())]
    Refused {
        path: PathBuf,
        to: NodeId,
        /// Stable word for programs, such as `dax`.
        reason: &'static str,
        why: String,
    },
    /// No file can be moved to this node.
    #[error("cannot move pages to node {to}: {why}")]
    Target {
        to: NodeId,
        /// Stable word for programs, such as `cpuset`.
        reason: &'static str,
        why: String,
        source: Option<io::Error>,
    },
}

/// A move of a file's cached pages, prepared and not finished.
#[derive(Debug)]
pub struct FileMove {
    file: Opened,
    /// Start and end of the bytes that it is about.
    start: u64,
    end: u64,
    /// Only pages on this node; `None`: on all others.
    from: Option<NodeId>,
    to: NodeId,
    leave_mapped: bool,
    arena: Arena,
    /// The file had a name when it was opened.
    named: bool,
    /// Cached bytes when the move began, and whether they were counted or only estimated.
    counted: u64,
    exact: bool,
    /// Of these, bytes that were on the target.
    there: u64,
    /// Bytes that this move has brought to the target.
    arrived: u64,
    /// Windows of the present try that are still to come, and those of the next.
    turn: Turn,
    again: Vec<Visit>,
    /// Bytes to leave out next if none of them is cached.
    skip: u64,
    tries: usize,
    /// As the last window had it.
    stride: usize,
    window: Option<Window>,
    /// The sum of all windows that are not visited again.
    sum: Tally,
    /// Calls in a row that moved nothing for want of memory.
    starved: u32,
    /// Bytes left because the file lost its last name.
    deleted: u64,
    over: bool,
    /// It ended before all had been tried.
    early: bool,
    /// Only these pages; `None`: all.
    only: Option<Pick>,
    /// Where the pages were that this move has tried to move.
    before: Layout,
}

#[derive(Debug)]
enum Turn {
    /// All, from this offset on.
    All(u64),
    /// Some, again.
    Some(VecDeque<Visit>),
}

/// A window, with what an earlier visit left.
#[derive(Debug, Clone)]
struct Visit {
    offset: u64,
    left: Tally,
}

impl FileMove {
    /// Opens a file and counts its cached pages. Moves nothing. [`target`] says whether pages can
    /// be moved to this node at all.
    pub fn prepare(path: &Path, to: NodeId) -> Result<Self, FileMoveError> {
        Self::of_opened(open::open(path)?, &(0..u64::MAX), to)
    }

    /// The same for a range of bytes of a file that is open already, widened to whole pages. A page
    /// that shares a large folio with others takes them along.
    pub fn of_opened(file: Opened, range: &Range<u64>, to: NodeId) -> Result<Self, FileMoveError> {
        let file = movable(file, to)?;
        let range = whole_pages(range, file.size);
        let found = residency::of_range(&file, &range, &mut |_, _| ())?;
        let counted = (found.total(), found.get(to));
        let (start, turn) = (range.start, Turn::All(range.start));
        Ok(Self { start, end: range.end, turn, ..Self::with(file, (None, to), counted, true)? })
    }

    /// The same for a file that was opened with `O_NOATIME`. With `from`, only its pages on that
    /// node move. Its cached bytes are estimated from a sample, because counting takes as long as a
    /// part of the move; those of `ranges`, if there are any, are counted, and nothing else moves.
    /// Ranges rise and are apart from each other.
    pub fn of(
        file: File,
        path: &Path,
        ranges: &[Range<u64>],
        from: Option<NodeId>,
        to: NodeId,
    ) -> Result<Self, FileMoveError> {
        let file = movable(open::from_fd(path, file, true)?, to)?;
        let ranged = !ranges.is_empty();
        // A file may have become shorter since.
        let ranges = ranges.iter().map(|range| whole_pages(range, file.size)).filter(|range| !range.is_empty());
        let ranges: Vec<_> = ranges.collect();
        let nodes = match !ranged {
            true => residency::sample(&file)?,
            false => ranges.iter().try_fold(NodeBytes::default(), |mut sum, range| {
                let found = residency::of_range(&file, range, &mut |_, _| ())?;
                found.iter().for_each(|(node, bytes)| sum.add(node, bytes));
                Ok::<_, ResidencyError>(sum)
            })?,
        };
        let there = nodes.get(to);
        let counted = from.map_or(nodes.total(), |from| nodes.get(from).saturating_add(there));
        let only = ranged.then(|| Pick::of(&ranges));
        Ok(Self { only, ..Self::with(file, (from, to), (counted, there), false)? })
    }

    /// The same move without the pages that other processes map: mapped pages are read without a
    /// call, so nobody knows how often.
    #[must_use]
    pub fn leave_mapped(mut self) -> Self {
        self.leave_mapped = true;
        self
    }

    fn with(
        file: Opened,
        (from, to): (Option<NodeId>, NodeId),
        (counted, there): (u64, u64),
        exact: bool,
    ) -> Result<Self, FileMoveError> {
        let path = file.path.as_path();
        refuse::room(to, counted.saturating_sub(there), there).map_err(|why| FileMoveError::Refused {
            path: path.to_owned(),
            to,
            reason: "no_memory",
            why,
        })?;
        let page = rustix::param::page_size();
        let arena = Arena::reserve(1, WINDOW as usize, page)
            .map_err(|e| ResidencyError::file("reserve address space for", path, e))?;
        Ok(Self {
            named: links(&file)? > 0,
            start: 0,
            end: file.size,
            file,
            from,
            to,
            leave_mapped: false,
            arena,
            counted,
            exact,
            there,
            arrived: 0,
            turn: Turn::All(0),
            again: Vec::new(),
            skip: SKIP,
            tries: 0,
            stride: window::STRIDE,
            window: None,
            sum: Tally::default(),
            starved: 0,
            deleted: 0,
            over: false,
            early: false,
            only: None,
            before: Layout::default(),
        })
    }

    /// The way back of a move: sends the pages of this layout that are still cached to where they
    /// were. The file is open already, with `O_NOATIME`.
    pub fn back(file: &File, path: &Path, layout: &Layout) -> Result<Several, FileMoveError> {
        let nodes: BTreeSet<NodeId> = layout.runs().map(|run| run.node).collect();
        let (mut all, mut full) = (Vec::<Box<dyn Copying>>::new(), Vec::new());
        for node in nodes {
            let file = file.try_clone().map_err(|e| ResidencyError::file("open", path, e))?;
            let file = movable(open::from_fd(path, file, true)?, node)?;
            let pick = Pick::on(layout, node);
            // Pages that are evicted or there already take no room.
            let found = residency::sample(&file)?;
            let away = found.total().saturating_sub(found.get(node));
            let bytes = pick.pages().saturating_mul(rustix::param::page_size() as u64).min(away);
            match Self::with(file, (None, node), (bytes, 0), false) {
                Ok(work) => all.push(Box::new(Self { only: Some(pick), ..work })),
                Err(refused @ FileMoveError::Refused { reason: "no_memory", .. }) => full.push((refused, bytes)),
                Err(error) => return Err(error),
            }
        }
        // Lack of room on one node does not stop the others.
        if all.is_empty() && !full.is_empty() {
            return Err(full.swap_remove(0).0);
        }
        all.extend(full.into_iter().map(|(_, bytes)| Box::new(Stays(bytes)) as _));
        Ok(Several::new(all))
    }

    /// The next window to work on; `None` if all is done.
    fn next(&mut self) -> Option<Visit> {
        loop {
            match &mut self.turn {
                Turn::All(offset) if *offset < self.end => {
                    if let Some(pick) = &self.only {
                        let page = rustix::param::page_size() as u64;
                        // A window begins with a page that is wanted.
                        *offset = pick.next(*offset / page).map_or(self.end, |first| first.saturating_mul(page));
                        if *offset >= self.end {
                            continue;
                        }
                    }
                    if (*offset - self.start).is_multiple_of(SKIP) {
                        if self.file.cached(*offset, self.skip) == Some(0) {
                            *offset = offset.saturating_add(self.skip);
                            self.skip = self.skip.saturating_mul(FAN);
                            continue;
                        } else if self.skip > SKIP {
                            self.skip = (self.skip / FAN).max(SKIP);
                            continue;
                        }
                    }
                    let visit = Visit { offset: *offset, left: Tally::default() };
                    *offset += WINDOW;
                    return Some(visit);
                }
                Turn::Some(turn) if !turn.is_empty() => return turn.pop_front(),
                _ => {}
            }
            self.tries += 1;
            if self.again.is_empty() || self.tries == TRIES {
                return None;
            }
            std::thread::sleep(PAUSE * (1 << (self.tries - 1)));
            self.turn = Turn::Some(std::mem::take(&mut self.again).into());
        }
    }

    /// Ends the move; what is left of earlier visits stays as it was.
    fn end(&mut self) {
        let left = std::mem::take(&mut self.again);
        let turn = match std::mem::replace(&mut self.turn, Turn::All(u64::MAX)) {
            Turn::Some(turn) => turn,
            Turn::All(_) => VecDeque::new(),
        };
        for visit in left.iter().chain(&turn) {
            self.sum.add(&visit.left);
        }
        self.over = true;
    }

    /// Ends the move before all has been tried. Returns the bytes that were not.
    fn give_up(&mut self) -> u64 {
        if let Some(window) = self.window.take() {
            self.sum.add(window.tally());
        }
        self.end();
        self.early = true;
        self.counted.saturating_sub(self.there + self.arrived + self.sum.left())
    }

    /// Starts on a window: finds its cached pages that are elsewhere.
    fn enter(&mut self, visit: &Visit) -> io::Result<()> {
        let stride = if self.tries == 0 { self.stride } else { 1 };
        let (tries, pages) = ((self.tries, stride), (self.only.as_ref(), &mut self.before));
        let nodes = (self.from, self.to, self.leave_mapped);
        let most = WINDOW.min(self.end.saturating_sub(visit.offset));
        self.window = Window::open(&self.arena, &self.file, visit.offset, most, nodes, tries, pages)?;
        Ok(())
    }

    /// Moves one chunk of the present window. Returns the bytes that it tried.
    fn chunk(&mut self) -> io::Result<u64> {
        let Some(window) = &mut self.window else { return Ok(0) };
        let tried = window.step()?;
        self.stride = window.stride();
        self.arrived += tried.moved;
        if tried.starved {
            self.starved += 1;
        } else if tried.bytes > 0 {
            self.starved = 0;
        }
        if self.starved == STARVED {
            // What has not been tried would fail likewise.
            self.sum.no_memory += self.give_up();
        } else if window.done()
            && let Some(mut window) = self.window.take()
        {
            window.settle()?;
            let tally = window.tally().clone();
            if tally.left() > 0 {
                self.again.push(Visit { offset: window.offset, left: tally });
            } else {
                self.sum.add(&tally);
            }
        }
        Ok(tried.bytes)
    }
}

impl Copying for FileMove {
    fn step(&mut self, bytes: u64) -> io::Result<bool> {
        // An open file keeps its blocks: one that nobody can open any more is let go.
        if self.named && !self.over && links(&self.file).map_err(io::Error::other)? == 0 {
            self.deleted = self.give_up();
        }
        let (mut tried, mut seen) = (0, 0);
        while !self.over && tried < bytes.max(1) && seen < SCAN {
            if self.window.is_none() {
                match self.next() {
                    Some(visit) => {
                        seen += WINDOW;
                        self.enter(&visit)?;
                    }
                    None => self.end(),
                }
            }
            tried += self.chunk()?;
        }
        Ok(self.over)
    }

    fn copied(&self) -> Copied {
        let mut sum = self.sum.clone();
        let turn = match &self.turn {
            Turn::Some(turn) => Some(turn.iter()),
            Turn::All(_) => None,
        };
        for visit in self.again.iter().chain(turn.into_iter().flatten()) {
            sum.add(&visit.left);
        }
        if let Some(window) = &self.window {
            sum.add(window.tally());
        }
        let in_use = if self.leave_mapped { MAPPED } else { IN_USE };
        let left = [(in_use, sum.in_use), (NO_MEMORY, sum.no_memory), (DELETED, self.deleted)];
        let left: BTreeMap<_, _> = left.into_iter().filter(|l| l.1 > 0).collect();
        // Pages that were there are met on the way. What the kernel evicts after its move is known
        // at the end.
        let all_visited = self.over && !self.early;
        let moved = if all_visited { sum.there } else { self.there + self.arrived };
        let known = moved + left.values().sum::<u64>();
        let total = if all_visited && !self.exact { known } else { self.counted.max(known) };
        Copied { total, moved, there: moved.saturating_sub(self.arrived), left }
    }

    fn back(self: Box<Self>) -> Option<Back> {
        Some(Back::Pages(self.before))
    }
}

/// Bytes that stay, because their node has no room for them.
struct Stays(u64);

impl Copying for Stays {
    fn step(&mut self, _: u64) -> io::Result<bool> {
        Ok(true)
    }

    fn copied(&self) -> Copied {
        Copied { total: self.0, left: [(NO_MEMORY, self.0)].into(), ..Copied::default() }
    }
}

fn look(file: &Opened) -> impl Fn(rustix::io::Errno) -> ResidencyError + '_ {
    |e| ResidencyError::file("look at", &file.path, e)
}

fn links(file: &Opened) -> Result<u64, ResidencyError> {
    Ok(rustix::fs::fstat(&file.fd).map_err(look(file))?.st_nlink as u64)
}

/// The pages of a file of this size that a range of bytes touches: their bytes, up to its end.
pub(crate) fn whole_pages(range: &Range<u64>, size: u64) -> Range<u64> {
    let page = rustix::param::page_size() as u64;
    let end = range.end.checked_next_multiple_of(page).unwrap_or(range.end).min(size);
    (range.start / page * page).min(end)..end
}

/// The file, if its pages may be moved.
fn movable(file: Opened, to: NodeId) -> Result<Opened, FileMoveError> {
    let refused = |reason, why| FileMoveError::Refused { path: file.path.clone(), to, reason, why };
    refuse::file(&file).map_err(|(reason, why)| refused(reason, why))?;
    match file.hidden_cause()? {
        Some(why) => Err(refused("hidden", why)),
        None => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only ranges from a multiple of 4 GiB on were skipped.
    #[test]
    fn what_a_range_has_not_cached_is_skipped_wherever_it_begins() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let long = file.as_file().set_len(15 << 40).is_ok();
        let opened = open::open(file.path()).unwrap();
        if !long || opened.cached(0, 1).is_none() {
            eprintln!("not tested: no file of 15 TiB, or the kernel does not count cached pages");
            return;
        }
        let from = rustix::param::page_size() as u64;
        let mut work = FileMove::of_opened(opened, &(from..u64::MAX), NodeId(0)).unwrap();
        assert_eq!(std::iter::from_fn(|| work.next()).count(), 0);
    }
}
