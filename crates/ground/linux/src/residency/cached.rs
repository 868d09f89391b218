//! Asks the kernel which pages of a file are cached, without reading or touching any.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `cachestat(2)`, since Linux 6.5; the number is the same on every architecture that homenode is
/// built for.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`, `linux/mman.h`.
#[repr(C)]
struct CachestatRange {
    off: u64,
    len: u64,
}

/// `struct cachestat`, `linux/mman.h`.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    nr_cache: u64,
    nr_dirty: u64,
    nr_writeback: u64,
    nr_evicted: u64,
    nr_recently_evicted: u64,
}

/// Number of cached pages in a range of a file; `None` if the kernel gives no answer. `len` is not
/// 0.
pub fn count(file: &File, offset: u64, len: u64) -> Option<u64> {
    let range = CachestatRange { off: offset, len };
    let mut stat = Cachestat::default();
    // SAFETY: both pointers are to live values of the layout that the system call documents.
    let rc = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0) };
    (rc == 0).then_some(stat.nr_cache)
}

/// Which pages of a mapped range are cached and up to date.
pub enum Pages {
    None,
    /// All; their number.
    All(usize),
    /// As `mincore(2)` reports: bit 0 of each page's byte.
    Some(Vec<u8>),
}

/// Queries each page of a range that is mapped at `start`.
pub fn pages(start: usize, pages: usize) -> io::Result<Pages> {
    let mut resident = vec![0; pages];
    // SAFETY: mincore changes only the vector, which has a byte for each page of the range; we
    // mapped the range.
    let rc = unsafe {
        libc::mincore(
            std::ptr::with_exposed_provenance_mut(start),
            pages * rustix::param::page_size(),
            resident.as_mut_ptr(),
        )
    };
    match rc {
        0 => Ok(Pages::Some(resident)),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Pages {
    pub fn count(&self) -> usize {
        match self {
            Self::None => 0,
            Self::All(pages) => *pages,
            Self::Some(resident) => resident.iter().filter(|r| **r & 1 == 1).count(),
        }
    }

    /// The first cached page of each run of `around` pages, if it has any.
    pub fn one_of_each(&self, around: usize) -> impl Iterator<Item = usize> + '_ {
        let (all, some): (usize, &[u8]) = match self {
            Self::None => (0, &[]),
            Self::All(pages) => (*pages, &[]),
            Self::Some(resident) => (0, resident),
        };
        let some = some.chunks(around).enumerate();
        let some = some.filter_map(move |(i, run)| Some(i * around + run.iter().position(|r| r & 1 == 1)?));
        (0..all).step_by(around).chain(some)
    }
}

#[cfg(test)]
mod tests {
    use super::Pages;

    #[test]
    fn one_page_of_each_run() {
        let of = |pages: &Pages, around| pages.one_of_each(around).collect::<Vec<_>>();
        let some = Pages::Some(vec![0, 0, 1, 1, 0, 0, 0, 0, 1]);
        assert_eq!((some.count(), of(&some, 4), of(&some, 1)), (3, vec![2, 8], vec![2, 3, 8]));
        assert_eq!(of(&Pages::All(9), 4), [0, 4, 8]);
        assert_eq!((Pages::None.count(), of(&Pages::None, 4)), (0, vec![]));
        // The upper bits of mincore's bytes are reserved.
        assert_eq!(Pages::Some(vec![0xfe, 0xff]).count(), 1);
    }
}
