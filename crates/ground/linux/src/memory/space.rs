//! The pages of a process: which are present, on which node each is, and moving them.
//!
//! `/proc/PID/pagemap` has eight bytes a page (Documentation/admin-guide/mm/pagemap.rst). The open
//! file belongs to one address space: when the process calls exec or ends, it reads as empty.
//! `move_pages(2)` takes a process id, so each call is followed by a look at the process, through a
//! file that never shows a later process with the same id.
//!
//! Pages are sent with `MPOL_MF_MOVE`: the kernel refuses those that other processes map too. With
//! `MPOL_MF_MOVE_ALL` the memory that a parent shares with all its children would go wherever the
//! last child goes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use topology::{NodeId, ProcessId};

use crate::pages::{MOVE, move_pages};
use crate::threads::{Pinned, Threads, is_gone};

/// Bits of an entry: the page is in memory; it is a page of a file or of shared memory.
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;
const ENTRY: usize = 8;

/// The memory of a process.
#[derive(Debug)]
pub struct Space {
    id: ProcessId,
    process: Pinned,
    pagemap: File,
    dir: PathBuf,
    page: u64,
}

/// Outcome of a call for some pages.
#[derive(Debug)]
pub enum Sent {
    /// The kernel tried. For each page a node or a negative error;
    /// [`UNKNOWN`](crate::pages::UNKNOWN) where it did not say.
    Tried(Vec<i32>),
    /// It refused all that it had not done yet.
    Refused(Errno),
    /// The process has ended, or has another program now.
    Ended,
}

impl Space {
    /// Opens the memory of a process; `None` if it has ended, or if it has none (a kernel thread).
    pub fn open(threads: &Threads, id: ProcessId) -> io::Result<Option<Self>> {
        let Some((process, stat)) = threads.pin(id.pid)? else { return Ok(None) };
        let dir = threads.root().join(id.pid.to_string());
        let pagemap = match File::open(dir.join("pagemap")) {
            Err(error) if is_gone(&error) => return Ok(None),
            pagemap => pagemap?,
        };
        let page = rustix::param::page_size() as u64;
        let space = Self { id, process, pagemap, dir, page };
        // If the id is the process's still, the file is, too.
        Ok((stat.id == id.first_thread() && space.alive()?).then_some(space))
    }

    pub fn pid(&self) -> u32 {
        self.id.pid
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn page_size(&self) -> u64 {
        self.page
    }

    /// Whether the process still runs the same program. Never waits for it: a process may hold the
    /// lock of its own memory for ever (a page fault on a file whose FUSE server does not answer),
    /// and this runs between windows.
    pub fn alive(&self) -> io::Result<bool> {
        if !self.process.is_still(self.id.first_thread())? {
            return Ok(false);
        }
        // The kernel looks first for the address space (none: end of file), then at the length, and
        // takes the lock last.
        match self.pagemap.read_at(&mut [0], 0) {
            Ok(_) => Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Appends the addresses of the present pages among `count` pages from this one on.
    /// `shared_memory`: also pages that are not anonymous. Returns whether the address space is
    /// still there.
    pub fn present(&self, first: u64, count: u64, shared_memory: bool, found: &mut Vec<u64>) -> io::Result<bool> {
        let mut entries = vec![0; usize::try_from(count).unwrap_or(usize::MAX / ENTRY).saturating_mul(ENTRY)];
        let read = self.pagemap.read_at(&mut entries, first.saturating_mul(ENTRY as u64))?;
        for (entry, page) in entries.get(..read).unwrap_or_default().chunks_exact(ENTRY).zip(first..) {
            let entry = entry.try_into().map_or(0, u64::from_ne_bytes);
            if entry & PRESENT != 0 && (shared_memory || entry & OF_FILE == 0) {
                found.push(page.saturating_mul(self.page));
            }
        }
        Ok(read > 0)
    }

    /// The node of each page; negative where there is none (the page is gone, or is the kernel's
    /// page of zeros). `None` when the process has ended.
    pub fn nodes(&self, pages: &[u64]) -> io::Result<Option<Vec<i32>>> {
        match self.call(pages, None)? {
            Sent::Tried(nodes) => Ok(Some(nodes)),
            Sent::Ended => Ok(None),
            // A kernel without NUMA has one node.
            Sent::Refused(Errno::NOSYS) => Ok(Some(vec![0; pages.len()])),
            Sent::Refused(error) => Err(error.into()),
        }
    }

    /// Asks the kernel to move pages to a node. Where the pages are then, only
    /// [`nodes`](Self::nodes) tells: the kernel also reports errors for pages that it moved.
    pub fn send(&self, pages: &[u64], to: NodeId) -> io::Result<Sent> {
        self.call(pages, Some(to))
    }

    fn call(&self, pages: &[u64], to: Option<NodeId>) -> io::Result<Sent> {
        let addresses: Vec<usize> = pages.iter().map(|page| *page as usize).collect();
        let (status, result) = move_pages(self.id.pid, &addresses, to, to.map_or(0, |_| MOVE));
        let error = result.err().as_ref().and_then(Errno::from_io_error);
        if !self.alive()? {
            return Ok(Sent::Ended);
        }
        Ok(error.map_or(Sent::Tried(status), Sent::Refused))
    }
}
