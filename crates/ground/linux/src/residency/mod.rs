//! Finds out on which node a file's bytes are, right now.
//!
//! **Problem.** The kernel knows which node holds each cached page, but no tool shows it: `fincore`
//! knows no nodes, `numactl` knows no files.
//!
//! **Approach.** Map the file, let the kernel enter its cached pages into our page table, and have
//! the kernel count these entries per node (`count`): `/proc/self/numa_maps` counts a mapping five
//! times faster than a `move_pages(2)` query per page. One page fault enters sixteen pages
//! (fault-around), because the kernel also enters cached neighbours. A few threads share the file's
//! pieces (`cache`). DAX files have no page cache; their bytes are where their device is (`dax`).
//!
//! Nothing is read in: homenode touches only pages that the kernel reports as cached, with
//! readahead off. `MADV_RANDOM` does that, and also keeps the touch from counting as use of the
//! page. Holes stay holes, and `O_NOATIME` keeps the access time. A note reports a file that
//! shrinks meanwhile; touching by a system call turns SIGBUS into an error code.
//!
//! **Limits.**
//! - A page evicted in the fraction of a millisecond between the query and the touch is read in
//!   again, alone.
//! - Linux (5.2 and later) shows residency only to the file's owner, to users who may write the
//!   file, and to root. Other callers get [`Residency::hidden`], not a guess. A caller who may only
//!   write the file cannot use `O_NOATIME`; for them the mapping updates the access time as a read
//!   would.
//! - A process that called `mlockall(MCL_FUTURE)` must not use this module: the kernel would read
//!   in all that it maps.

mod cache;
pub mod cached;
pub mod count;
mod dax;
mod hugetlb;
pub mod map;
pub mod open;

use std::io;
use std::path::{Path, PathBuf};

use topology::NodeBytes;

/// The place of a file's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    pub path: PathBuf,
    pub size: u64,
    /// Bytes in memory: in the page cache, or allocated on a DAX device. The last page counts with
    /// the bytes the file has in it, so this is never more than `size`.
    pub resident: u64,
    /// Bytes in each node's memory. The sum is `resident`, unless a note says which bytes have no
    /// known node.
    pub nodes: NodeBytes,
    /// Whether the file is accessed directly in persistent memory (`STATX_ATTR_DAX`).
    pub dax: bool,
    /// Why the kernel hides this file's residency from the caller; then `resident` and `nodes` mean
    /// nothing.
    pub hidden: Option<String>,
    /// Remarks on these figures, such as that the file shrank meanwhile.
    pub notes: Vec<String>,
}

impl Residency {
    fn nothing(file: &open::Opened) -> Self {
        Self { path: file.path.clone(), size: file.size, dax: file.dax, ..Self::default() }
    }
}

/// Why a file's residency is unknown. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum ResidencyError {
    /// A system call on the file failed.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// The attempted action, such as `open`.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is a {kind}: homenode looks at regular files only", path.display())]
    NotAFile {
        path: PathBuf,
        /// The kind of file, such as `directory`.
        kind: &'static str,
    },
}

impl ResidencyError {
    pub fn file(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::File { what, path: path.to_owned(), source: source.into() }
    }
}

/// Where the bytes of an open file are, at a bounded cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    pub size: u64,
    /// Bytes in each node's memory.
    pub nodes: NodeBytes,
    /// The share of the file that was looked at.
    pub looked: f64,
    /// Whether the file is accessed directly in persistent memory.
    pub dax: bool,
}

/// Estimates where the bytes of an open file are, without reading any of them in. Looks at no more
/// than [`SAMPLE`] bytes of it, at random places. The file must have been opened with `O_NOATIME`;
/// `path` is for errors.
///
/// # Errors
///
/// [`ResidencyError`] when the file cannot be mapped.
pub fn estimate(file: std::fs::File, path: &Path) -> Result<Estimate, ResidencyError> {
    let file = open::from_fd(path, file, true)?;
    let mut estimate = Estimate { size: file.size, dax: file.dax, looked: 1.0, ..Estimate::default() };
    let mut all = Residency::nothing(&file);
    if located(&file, &mut all)? {
        estimate.nodes = all.nodes;
    } else {
        (estimate.nodes, estimate.looked) = cache::sample(&file)?;
    }
    Ok(estimate)
}

/// Finds out where a file's bytes are, without reading any of them in. Follows symbolic links; does
/// not need root.
///
/// Calls `progress` from this thread with the bytes done so far and the file's size.
///
/// # Errors
///
/// [`ResidencyError`] when the path is not a regular file, or cannot be opened or mapped.
pub fn of(path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Residency, ResidencyError> {
    of_opened(&open::open(path)?, progress)
}

/// Locates a file whose bytes are not in the page cache: on DAX, or in huge pages. `false` for any
/// other file.
fn located(file: &open::Opened, residency: &mut Residency) -> Result<bool, ResidencyError> {
    if file.dax {
        dax::locate(file, Path::new("/sys"), residency)?;
    } else if file.fs == open::Fs::Hugetlb {
        hugetlb::locate(file, residency)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// Bytes of a file that suffice as a sample, one in each of 64 parts: the share of a node is then
/// known to 6 %, in 5 ms.
pub const SAMPLE: u64 = 64 << 20;

/// Estimates the cached bytes of an open file by node, from [`SAMPLE`] bytes of it at random
/// places.
pub fn sample(file: &open::Opened) -> Result<NodeBytes, ResidencyError> {
    cache::sample(file).map(|sample| sample.0)
}

/// The same for a file that is open already.
pub fn of_opened(file: &open::Opened, progress: &mut dyn FnMut(u64, u64)) -> Result<Residency, ResidencyError> {
    let mut residency = Residency::nothing(file);
    if located(file, &mut residency)? {
        progress(file.size, file.size);
    } else if let Some(why) = file.hidden_cause()? {
        residency.hidden = Some(why);
    } else {
        cache::locate(file, (0, file.size), &mut residency, progress)?;
    }
    let now = file.size_now()?;
    if now < residency.size {
        residency.notes.push(format!("the file shrank from {} to {now} bytes during the count", residency.size));
    }
    Ok(residency)
}

/// The cached bytes of a range of an open file by node. The range begins with a page and ends with
/// one, or with the file. `progress` as in [`of`], of the range's bytes.
///
/// # Errors
///
/// As [`of`]. A file whose residency the kernel hides ([`open::Opened::hidden_cause`]) counts as
/// one without cached bytes.
pub fn of_range(
    file: &open::Opened,
    range: &std::ops::Range<u64>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<NodeBytes, ResidencyError> {
    let mut residency = Residency::nothing(file);
    let end = range.end.min(file.size);
    cache::locate(file, (range.start, end.saturating_sub(range.start)), &mut residency, progress)?;
    Ok(residency.nodes)
}
