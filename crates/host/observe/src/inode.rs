//! Which inode is read through a path.
//!
//! **Problem.** A file of overlayfs has an inode of its own, which `stat` shows. What is read
//! through it are pages of the inode below, and that is what the programs in the kernel see.
//!
//! **Approach.** A page of the file is mapped, and a BPF program says of which inode the mapping
//! is. So it works for whatever is stacked, and to any depth.
//!
//! **Limits.** `stat` has the last word about what is no regular file, cannot be mapped or is under
//! a write lease, and where BPF may not be used.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use linux::leases;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use topology::FileId;

use crate::mapped::kernel::Kernel;

pub struct Inodes(Option<Kernel>);

impl Inodes {
    /// Loads the program, if that is possible.
    pub fn new() -> Self {
        let kernel = Kernel::of_mappings();
        Self(kernel.inspect_err(|error| tracing::debug!(%error, "inodes are those that stat shows")).ok())
    }

    /// The inode that is read through a path, of any generation.
    ///
    /// # Errors
    ///
    /// There is nothing at the path, or it may not be looked at.
    pub fn of(&mut self, path: &Path) -> io::Result<FileId> {
        let stat = rustix::fs::stat(path)?;
        let dev = FileId::device(rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let shown = FileId { dev, ino: stat.st_ino, generation: 0 };
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let Some(kernel) = self.0.as_mut().filter(|_| regular && leases::free(dev, stat.st_ino, true).is_ok()) else {
            return Ok(shown);
        };
        let below = open(path).and_then(|file| below(kernel, &file));
        Ok(below.inspect_err(|error| tracing::debug!(%error, "cannot be mapped")).ok().flatten().unwrap_or(shown))
    }
}

impl Default for Inodes {
    fn default() -> Self {
        Self::new()
    }
}

/// Only the owner of a file may read it without a trace.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let open = |more| rustix::fs::open(path, flags | more, Mode::empty());
    Ok(OwnedFd::into(open(OFlags::NOATIME).or_else(|_| open(OFlags::empty()))?))
}

fn below(kernel: &mut Kernel, file: &File) -> io::Result<Option<FileId>> {
    let bytes = rustix::param::page_size();
    // SAFETY: a new mapping at an address that the kernel chooses, which nothing reads.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE, file, 0)? };
    let found = kernel.mapped_at(at.addr() as u64).map_err(io::Error::other);
    // SAFETY: the mapping made above, to which nothing refers.
    unsafe { rustix::mm::munmap(at, bytes)? };
    Ok(found?.map(|mapping| FileId { dev: mapping.dev, ino: mapping.ino, generation: 0 }))
}
