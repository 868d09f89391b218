//! Memory that is there when it is needed, for a server of a file system.
//!
//! **Problem.** Who waits for memory can wait for a file system to write pages back. The server of
//! that file system must not: a loop device on a mount hung for good, with its writer, where both
//! were in a limited memory group.
//!
//! **Approach.** The memory that requests come in is faulted in and locked before the first one
//! comes, and the kernel is told that the thread writes pages back, so that it does not wait for
//! others who do.
//!
//! **Limits.** To tell the kernel takes CAP_SYS_RESOURCE, and to lock much CAP_IPC_LOCK.

use std::io;
use std::ops::{Deref, DerefMut};

/// Bytes that stay in memory.
#[derive(Debug)]
pub struct Resident {
    bytes: Vec<u8>,
    locked: usize,
}

impl Resident {
    /// So many zeros, of which the first `kept` are in memory and stay there; an error says why
    /// they are only there for now.
    pub fn new(len: usize, kept: usize) -> (Self, io::Result<()>) {
        let mut this = Self { bytes: vec![0; len], locked: 0 };
        let kept = kept.min(len);
        for byte in this.bytes.iter_mut().take(kept).step_by(rustix::param::page_size()) {
            // SAFETY: a reference is valid for a store, which the compiler must not leave out: it
            // gives the page its memory.
            unsafe { std::ptr::from_mut(byte).write_volatile(0) };
        }
        // SAFETY: the range is borrowed from this value, and locking changes no byte.
        let done = unsafe { libc::mlock(this.bytes.as_ptr().cast(), kept) };
        if done != 0 {
            return (this, Err(io::Error::last_os_error()));
        }
        this.locked = kept;
        (this, Ok(()))
    }
}

impl Deref for Resident {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Resident {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own; where two of them share a page, the other may be
        // paged out, which costs time alone.
        unsafe { libc::munlock(self.bytes.as_ptr().cast(), self.locked) };
    }
}

/// Of prctl(2), since Linux 5.6; the libc crate does not have it.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Tells the kernel that this thread writes pages back for others (`PR_SET_IO_FLUSHER`).
pub fn write_back_for_others() -> io::Result<()> {
    // SAFETY: the call takes numbers alone.
    let done = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pages_are_there_before_anybody_uses_them() {
        let (memory, locked) = Resident::new(1 << 20, 1 << 20);
        let pages = memory.len() / rustix::param::page_size() - 1;
        let from = memory.as_ptr().addr().next_multiple_of(rustix::param::page_size());
        let mut there = vec![0_u8; pages];
        // SAFETY: the range is mapped, as it lies within `memory`, and there is a byte for each
        // page.
        let asked = unsafe { libc::mincore(from as *mut _, pages * rustix::param::page_size(), there.as_mut_ptr()) };
        assert_eq!(asked, 0);
        assert!(there.iter().all(|page| page & 1 == 1));
        assert!(locked.is_ok() || locked.is_err_and(|e| e.raw_os_error().is_some()));
        assert_eq!(Resident::new(10, 100).0.len(), 10);
    }
}
