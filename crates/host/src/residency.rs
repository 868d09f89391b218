//! On which node a file's bytes are, right now.
//!
//! **Problem.** The kernel knows for every cached page which node's memory holds it, and tells no tool: `fincore` knows
//! no nodes, `numactl` knows no files.
//!
//! **Approach.** Map the file, make the kernel enter into our page table what the page cache holds already, and let it
//! count those entries per node (`count`): `/proc/self/numa_maps` counts a mapping five times faster than a
//! `move_pages(2)` query per page. Entering costs one page fault for sixteen pages (fault-around), since the kernel
//! enters neighbours that are cached and never reads for it. Pieces of the file are shared out to a few threads
//! (`cache`). DAX files have no page cache; their bytes are where their device is (`dax`).
//!
//! Nothing is read in: only pages that the kernel says are cached are touched, with readahead off (`MADV_RANDOM`, which
//! also keeps our touch out of the kernel's idea of how hot a page is), holes are left alone, and `O_NOATIME` keeps the
//! access time. A file that shrinks under us is reported; touching through a system call makes what would be SIGBUS an
//! error code.
//!
//! **Limits.**
//! - A page that is evicted in the fraction of a millisecond between question and touch is read in again, alone.
//! - Linux (5.2 and later) shows residency only to a file's owner, to who may write it, and to root; anybody else gets
//!   [`Residency::hidden`], not a guess. Such a caller cannot use `O_NOATIME` on a file they may only write either; there
//!   the mapping updates the access time as any read would.
//! - A process that called `mlockall(MCL_FUTURE)` must not use this: the kernel would read in all that it maps.

mod cache;
mod cached;
mod count;
mod dax;
mod hugetlb;
mod map;
mod open;

use std::io;
use std::path::{Path, PathBuf};

use placement::NodeBytes;

/// Where a file's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    /// The file as asked for.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes in memory: in the page cache, or allocated on a DAX device. The last page counts with the bytes the file
    /// has in it, so this is never more than `size`.
    pub resident: u64,
    /// Bytes in memory of each node. The sum is `resident`, unless a note says for which bytes no node is known.
    pub nodes: NodeBytes,
    /// Whether the file is accessed directly in persistent memory (`STATX_ATTR_DAX`).
    pub dax: bool,
    /// Why the kernel does not show this file's residency to the caller; `resident` and `nodes` say nothing then.
    pub hidden: Option<String>,
    /// What happened that a reader of these figures should know, such as a file that shrank meanwhile.
    pub notes: Vec<String>,
}

/// Why a file's residency cannot be told. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum ResidencyError {
    /// A system call on the file failed.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried, such as `open`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause, with its errno.
        source: io::Error,
    },
    /// Something without pages of its own.
    #[error("{} is a {kind}: only regular files have cached pages to locate", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is, such as `directory`.
        kind: &'static str,
    },
    /// The kernel's per-node counts could not be had.
    #[error("cannot count the cached pages of {} per node: {source}", path.display())]
    Count {
        /// The file.
        path: PathBuf,
        /// Cause, with its errno.
        source: io::Error,
    },
}

impl ResidencyError {
    fn file(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::File { what, path: path.to_owned(), source: source.into() }
    }
}

/// Tells where a file's bytes are, without reading any of them in. Follows symbolic links; needs no root.
///
/// `progress` is called from this thread with the bytes done so far and the bytes in all.
///
/// # Errors
///
/// [`ResidencyError`] when the path is not a regular file, or cannot be opened or mapped.
pub fn of(path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Residency, ResidencyError> {
    let file = open::open(path)?;
    let mut residency = Residency {
        path: path.to_owned(),
        size: file.size,
        resident: 0,
        nodes: NodeBytes::default(),
        dax: file.dax,
        hidden: None,
        notes: Vec::new(),
    };
    if file.dax {
        dax::locate(&file, Path::new("/sys"), &mut residency)?;
        progress(file.size, file.size);
    } else if file.fs == open::Fs::Hugetlb {
        hugetlb::locate(&file, &mut residency)?;
        progress(file.size, file.size);
    } else if let Some(why) = file.hidden_cause()? {
        residency.hidden = Some(why);
    } else {
        cache::locate(&file, &mut residency, progress)?;
    }
    let now = file.size_now()?;
    if now < residency.size {
        residency.notes.push(format!("the file shrank from {} to {now} bytes while it was looked at", residency.size));
    }
    Ok(residency)
}
