//! `move_pages(2)` on this process's own mappings.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{null, null_mut, with_exposed_provenance_mut};

use rustix::io::Errno;
use rustix::mm::Advice;
use topology::NodeId;

/// Move pages that other processes map, too (`linux/mempolicy.h`).
const MPOL_MF_MOVE_ALL: c_int = 1 << 2;

/// Whether the kernel lets this thread move pages of others.
pub(super) fn may_move() -> io::Result<()> {
    // SAFETY: no page, no node and no status: the kernel only checks the flag.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            0_usize,
            null::<*const c_void>(),
            null::<c_int>(),
            null_mut::<c_int>(),
            MPOL_MF_MOVE_ALL,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks the kernel to move the pages at these addresses. The answer says little: query afterwards.
pub(super) fn move_to(pages: &[usize], to: NodeId) -> io::Result<()> {
    let to = c_int::try_from(to.0).map_err(|_| io::Error::from(Errno::NODEV))?;
    let (nodes, mut status) = (vec![to; pages.len()], vec![0; pages.len()]);
    call(pages, nodes.as_ptr(), &mut status, MPOL_MF_MOVE_ALL)
}

/// The node of the page at each address; `None` where our page table has no page.
pub(super) fn nodes_of(pages: &[usize]) -> io::Result<impl Iterator<Item = Option<NodeId>> + use<>> {
    let mut status = vec![0; pages.len()];
    call(pages, null(), &mut status, 0)?;
    Ok(status.into_iter().map(|node| u32::try_from(node).ok().map(NodeId)))
}

fn call(pages: &[usize], nodes: *const c_int, status: &mut [c_int], flags: c_int) -> io::Result<()> {
    // SAFETY: `pages` and `status`, and `nodes` unless null, have `pages.len()` elements. An
    // address is as large as a pointer; the kernel checks each. Moving a page changes no content.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr().cast::<*const c_void>(),
            nodes,
            status.as_mut_ptr(),
            flags,
        )
    };
    if rc >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Enters pages of a mapping of ours into our page table. Fails at the first page that the file
/// does not have any more.
pub(super) fn populate(start: usize, len: usize) -> rustix::io::Result<()> {
    // SAFETY: populating reads from the file and changes no memory; a range that is not mapped is
    // an error code.
    unsafe { rustix::mm::madvise(with_exposed_provenance_mut(start), len, Advice::LinuxPopulateRead) }
}
