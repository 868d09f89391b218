//! Address space for mapping a file piece by piece, and a way to touch it without signals.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{null_mut, with_exposed_provenance_mut};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

/// Memory that one page-table page covers. The kernel moves mappings with this alignment by
/// page-table page, not by entry.
const GRAIN: usize = 2 << 20;

/// Reserved address space with slots of one size. A gap follows each slot, so that two mappings
/// never merge.
#[derive(Debug)]
pub struct Arena {
    base: usize,
    len: usize,
    slot: usize,
    first: usize,
}

impl Arena {
    /// Reserves `slots` slots for mappings of up to `size` bytes of a file with pages of `page`
    /// bytes.
    pub fn reserve(slots: usize, size: usize, page: usize) -> io::Result<Self> {
        let grain = GRAIN.max(page);
        let slot = size.next_multiple_of(grain) + grain;
        let len = slots * slot + grain;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses; it changes no existing
        // memory.
        let base = unsafe { rustix::mm::mmap_anonymous(null_mut(), len, ProtFlags::empty(), flags) }?;
        let base = base.expose_provenance();
        Ok(Self { base, len, slot, first: base.next_multiple_of(grain) })
    }

    /// Maps a part of a file into a slot, and replaces what was there. Returns its address.
    pub fn map(&self, slot: usize, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        let at = self.first + slot * self.slot;
        debug_assert!(at + len < self.base + self.len);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the slot is inside our reservation, and only the slot's thread uses it.
        unsafe {
            let map =
                rustix::mm::mmap(with_exposed_provenance_mut(at), len, ProtFlags::READ, flags, file.as_fd(), offset)?;
            // No readahead, and unmapping leaves no sign of use on the pages (`vma_has_recency`,
            // mm/memory.c).
            rustix::mm::madvise(map, len, Advice::Random)?;
        }
        Ok(at)
    }

    /// Removes a mapping's page-table entries; the file's pages stay as they are.
    pub fn leave(&self, mapped: usize, len: usize) {
        // This only saves time: the next use of the slot removes them anyway. SAFETY: the range is
        // a mapping of a file inside our reservation, whose pages are the file's.
        let _ = unsafe { rustix::mm::madvise(with_exposed_provenance_mut(mapped), len, Advice::LinuxDontNeed) };
    }

    /// Moves a mapping with its page-table entries to slot 0, the lowest, and replaces what was
    /// there. The old place stays reserved. If the kernel cannot (before 5.13), the mapping stays.
    /// Returns its address.
    pub fn move_to_first(&self, mapped: usize, len: usize) -> usize {
        // SAFETY: source and target are inside our reservation; DONTUNMAP keeps the source range
        // ours, so that no other thread's mapping can take it. Nobody holds a reference into
        // either.
        let moved = unsafe {
            rustix::mm::mremap_fixed(
                with_exposed_provenance_mut(mapped),
                len,
                len,
                MremapFlags::MAYMOVE | MremapFlags::from_bits_retain(libc::MREMAP_DONTUNMAP as _),
                with_exposed_provenance_mut(self.first),
            )
        };
        if moved.is_ok() { self.first } else { mapped }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the whole range is ours, and nothing refers to it any more.
        let unmapped = unsafe { rustix::mm::munmap(with_exposed_provenance_mut(self.base), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Touches memory by a system call: the kernel copies a byte from each address, and returns EFAULT
/// where a load would raise SIGBUS because the file ended.
pub struct Toucher(OwnedFd);

/// Most addresses per system call: the kernel's `UIO_MAXIOV`.
const BATCH: usize = 1024;

impl Toucher {
    pub fn new() -> io::Result<Self> {
        // A file in memory takes the copied bytes: a write to /dev/null copies nothing, and so
        // touches nothing.
        Ok(Self(rustix::fs::memfd_create("homenode-touch", rustix::fs::MemfdFlags::CLOEXEC)?))
    }

    /// Touches the page at each address. Skips pages that no longer exist.
    pub fn touch(&self, mut addresses: impl Iterator<Item = usize>) -> io::Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            batch.clear();
            batch.extend(
                addresses.by_ref().take(BATCH).map(|address| libc::iovec {
                    iov_base: with_exposed_provenance_mut::<c_void>(address),
                    iov_len: 1,
                }),
            );
            let mut left = batch.as_slice();
            if left.is_empty() {
                return Ok(());
            }
            while !left.is_empty() {
                // SAFETY: the kernel checks every address as it copies, so that one without memory
                // is an error code.
                let touched = unsafe { libc::pwritev(self.0.as_raw_fd(), left.as_ptr(), left.len() as libc::c_int, 0) };
                let touched = match usize::try_from(touched) {
                    Ok(touched) => touched,
                    Err(_) => match io::Error::last_os_error() {
                        e if e.raw_os_error() == Some(libc::EFAULT) => 0,
                        e if e.kind() == io::ErrorKind::Interrupted => continue,
                        e => return Err(e),
                    },
                };
                // A short count ends before an address that could not be touched. Continue after
                // that address.
                left = left.get(touched + 1..).unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Touches a mapping of a file that ends after its first page.
    #[test]
    fn touching_beyond_the_end_of_a_file_raises_no_signal() {
        let page = rustix::param::page_size();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; page]).unwrap();
        let arena = Arena::reserve(2, 16 * page, page).unwrap();
        let at = arena.map(1, &file, 0, 16 * page).unwrap();
        // More than one batch, with one page in a thousand that is there.
        let addresses = (0..3000).map(|i| if i % 1000 == 999 { at } else { at + (1 + i % 15) * page });
        Toucher::new().unwrap().touch(addresses).unwrap();
        let counted = super::super::count::mapping(at, page as u64).unwrap();
        assert_eq!(counted.iter().map(|n| n.1).sum::<u64>(), page as u64);
    }

    #[test]
    fn page_table_entries_move_with_the_mapping() {
        let page = rustix::param::page_size();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; 40 * page]).unwrap();
        let arena = Arena::reserve(3, 40 * page, page).unwrap();
        for slot in [1, 2, 1] {
            let at = arena.map(slot, &file, 0, 40 * page).unwrap();
            Toucher::new().unwrap().touch((0..40).map(|i| at + i * page)).unwrap();
            let moved = arena.move_to_first(at, 40 * page);
            let counted = super::super::count::mapping(moved, 40 * page as u64).unwrap();
            assert_eq!(counted.iter().map(|n| n.1).sum::<u64>(), 40 * page as u64);
        }
    }
}
