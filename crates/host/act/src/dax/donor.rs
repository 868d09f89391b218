//! The file that lends blocks on the target node, and gets the old ones.
//!
//! XFS puts a file's blocks into the allocation group of its directory, and each new directory into
//! the next group in turn. So a donor is an unnamed file in a directory that is made for it and
//! removed at once; where its blocks really are is looked up, and a donor elsewhere is given back.
//! It has no name from the start: nothing is left of it after a crash, but perhaps the empty
//! directory, `.homenode-` and a number, if the crash comes in the microseconds between making and
//! removing it.

use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use topology::NodeId;

use linux::block::Layout;
use linux::block::fiemap::{self, Extent};
use linux::random;

/// Names to try for the directory: one is enough unless somebody guesses them.
const NAMES: usize = 8;

#[derive(Debug)]
pub(super) struct Donor {
    pub file: File,
    pub inode: u64,
    size: u64,
}

impl Donor {
    /// A new donor in the next allocation group. `root` is a directory of the file system.
    pub(super) fn new(root: &File) -> io::Result<Self> {
        for _ in 0..NAMES {
            let name = format!(".homenode-{:016x}", random::secret()?);
            match rustix::fs::mkdirat(root, &name, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(e.into()),
            }
            let donor = Self::inside(root, &name);
            // Its blocks stay as long as it is open.
            let removed = rustix::fs::unlinkat(root, &name, AtFlags::REMOVEDIR);
            let file = donor?;
            removed?;
            return Ok(Self { inode: rustix::fs::fstat(&file)?.st_ino, file, size: 0 });
        }
        Err(Errno::EXIST.into())
    }

    fn inside(root: &File, name: &str) -> io::Result<File> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(root, name, flags, Mode::empty())?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&directory, ".", flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Allocates blocks where the file has some, unless an earlier try left them here; the donor
    /// gets the file's size. Returns whether all are on the node; if not, or on an error, this
    /// donor has none in that range.
    pub(super) fn reserve(&mut self, like: &[Extent], size: u64, layout: &Layout, to: NodeId) -> io::Result<bool> {
        if self.size != size {
            rustix::fs::ftruncate(&self.file, size)?;
            self.size = size;
        }
        let (Some(first), Some(last)) = (like.first(), like.last()) else { return Ok(true) };
        let len = last.offset + last.len - first.offset;
        let suits = || {
            let got = fiemap::extents(&self.file, first.offset, len)?;
            let there = got.iter().all(|e| !e.unknown && layout.is_on(e.physical, e.len, to));
            io::Result::Ok(there && runs(&got) == runs(like))
        };
        // A failed try may have written to blocks that must stay unwritten.
        if like.iter().all(|e| !e.unwritten) && suits()? {
            return Ok(true);
        }
        self.give_back(first.offset, len)?;
        let there = self.allocate(like).and_then(|()| suits());
        if !matches!(there, Ok(true)) {
            self.give_back(first.offset, len)?;
        }
        there
    }

    fn allocate(&self, like: &[Extent]) -> io::Result<()> {
        like.iter().try_for_each(|e| Ok(rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, e.offset, e.len)?))
    }

    /// Frees the blocks in a range. A range up to the file's end includes its last block.
    pub(super) fn give_back(&self, at: u64, len: u64) -> io::Result<()> {
        let block = rustix::fs::fstatfs(&self.file)?.f_bsize as u64;
        let end = (at + len).next_multiple_of(block.max(1));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, at, end - at)?)
    }
}

/// Runs of blocks without a hole between them: offset and end.
fn runs(extents: &[Extent]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for e in extents {
        match runs.last_mut() {
            Some(last) if last.1 == e.offset => last.1 += e.len,
            _ => runs.push((e.offset, e.offset + e.len)),
        }
    }
    runs
}

/// Waits until nobody has a page of the file pinned; EINTR if a signal comes first. The file stays
/// as it is, through a descriptor that leaves its times alone: a hole is punched where no file has
/// blocks.
pub(super) fn wait_for_pinned(file: &File) -> io::Result<()> {
    const BEYOND: u64 = 1 << 62;
    Ok(rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, BEYOND, 1 << 16)?)
}
