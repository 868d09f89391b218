//! Memory on a given node.

use std::io;
use std::ptr::NonNull;

use linux::allocation::{self, Before, Spread};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use topology::NodeId;

use crate::MeasureError;

const ASKED: usize = 256;

/// Bytes that are taken between two questions whether to go on: a huge page.
pub const PIECE: usize = 2 << 20;

/// Anonymous memory of zeros, all of it present, on one node.
pub struct Buffer {
    base: NonNull<u64>,
    words: usize,
}

// SAFETY: the mapping is this value's own; access to it follows the borrows of this value.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared borrow gives shared slices only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes memory of a node, in huge pages where the kernel has some, and checks that it is
    /// there. Gives it back where `go_on`, asked after each 2 MiB, says no.
    pub fn on(node: NodeId, bytes: u64, go_on: &dyn Fn() -> Result<(), MeasureError>) -> Result<Self, MeasureError> {
        let failed = |e| MeasureError::failed(format!("cannot take memory on node {node}"))(e);
        let mut buffer = Self::of(node, bytes).map_err(failed)?;
        // Reads of memory that was never written are of one page of zeros.
        let page = rustix::param::page_size() / 8;
        for piece in buffer.words_mut().chunks_mut(PIECE / 8) {
            for word in piece.iter_mut().step_by(page) {
                // SAFETY: a store to a word of this slice, which the compiler is not to leave out.
                unsafe { std::ptr::write_volatile(word, 0) };
            }
            go_on()?;
        }
        buffer.check(node).map_err(failed)?;
        Ok(buffer)
    }

    /// Addresses for memory of a node.
    fn of(node: NodeId, bytes: u64) -> io::Result<Self> {
        let words = usize::try_from(bytes / 8).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: a new private mapping, at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                words * 8,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned no address"))?;
        let buffer = Self { base, words };
        let (mask, bits) = (allocation::mask(&[node])?, allocation::BITS);
        // SAFETY: the range is the new mapping; the mask has as many bits as the kernel reads.
        let bound = match unsafe {
            libc::syscall(libc::SYS_mbind, base.as_ptr(), words * 8, libc::MPOL_BIND, mask.as_ptr(), bits, 0)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        or_alone(node, bound)?;
        // Without huge pages each load also waits for the page table.
        // SAFETY: advice for the new mapping, which changes no content.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), words * 8, Advice::LinuxHugepage) };
        Ok(buffer)
    }

    /// Fails unless the pages are on the node.
    fn check(&self, node: NodeId) -> io::Result<()> {
        let bytes = self.words * 8;
        let step = (bytes / ASKED).next_multiple_of(rustix::param::page_size()).max(1);
        let pages: Vec<usize> = (0..bytes).step_by(step).map(|at| self.base.as_ptr() as usize + at).collect();
        let elsewhere = match linux::pages::nodes(&pages) {
            Ok(nodes) => nodes.filter(|at| at.is_some_and(|at| at != node)).count(),
            // A kernel without NUMA.
            Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => 0,
            Err(e) => return Err(e),
        };
        if elsewhere > 0 {
            return Err(io::Error::other(format!("{elsewhere} of {} pages are on another node", pages.len())));
        }
        Ok(())
    }

    pub fn words(&self) -> &[u64] {
        // SAFETY: `words` words of this value's own mapping, which lives as long as the borrow.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrows from it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * 8) };
    }
}

/// The calling thread takes memory for pages of files from this node only, while the returned value
/// is there.
pub fn bind_thread(node: NodeId) -> io::Result<Option<Before>> {
    or_alone(node, allocation::spread(Spread::Bind, &[node]).map(Some))
}

/// A kernel without NUMA has node 0 only, and no calls that bind memory to it.
fn or_alone<T: Default>(node: NodeId, bound: io::Result<T>) -> io::Result<T> {
    match bound {
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) && node.0 == 0 => Ok(T::default()),
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_there_and_zero() {
        let mut buffer = Buffer::on(NodeId(0), 4 << 20, &|| Ok(())).unwrap();
        assert_eq!(buffer.words().len(), (4 << 20) / 8);
        assert!(buffer.words().iter().all(|word| *word == 0));
        buffer.words_mut()[5] = 7;
        assert_eq!(buffer.words()[5], 7);
    }

    /// Nobody was asked until all memory was there, which took half a minute on a busy machine.
    #[test]
    fn a_stop_ends_what_is_taken_after_a_piece() {
        let asked = std::cell::Cell::new(0);
        let go_on = || {
            asked.set(asked.get() + 1);
            if asked.get() < 3 { Ok(()) } else { Err(MeasureError::Stopped) }
        };
        assert!(matches!(Buffer::on(NodeId(0), 1 << 30, &go_on), Err(MeasureError::Stopped)));
        asked.set(0);
        assert!(matches!(crate::cached::file(NodeId(0), 1 << 30, &go_on), Err(MeasureError::Stopped)));
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn memory_of_a_node_that_is_not_there_is_refused() {
        assert!(Buffer::on(NodeId(1000), 1 << 20, &|| Ok(())).is_err());
        assert!(Buffer::on(NodeId(5000), 1 << 20, &|| Ok(())).is_err());
    }
}
