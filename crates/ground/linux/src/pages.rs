//! `move_pages(2)`: the node of each page, and moving pages.
//!
//! **Limits.** Of a move the kernel does not say reliably what came of it (large folios, partial
//! failures): ask for the nodes afterwards.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;

use topology::NodeId;

/// Moves pages that no other process maps (`MPOL_MF_MOVE`, include/uapi/linux/mempolicy.h).
pub const MOVE: c_int = 1 << 1;

/// Moves pages that other processes map, too (`MPOL_MF_MOVE_ALL`).
pub const MOVE_ALL: c_int = 1 << 2;

/// The status of a page of which the kernel said nothing.
pub const UNKNOWN: c_int = c_int::MIN;

/// Asks for the nodes of the pages at these addresses of a process (0: of this one) or, with a node
/// and flags, to move them there. For each page a node, or a negative error.
pub fn move_pages(pid: u32, pages: &[usize], to: Option<NodeId>, flags: c_int) -> (Vec<c_int>, io::Result<()>) {
    let to = to.map(|to| vec![c_int::try_from(to.0).unwrap_or(c_int::MAX); pages.len()]);
    let mut status = vec![UNKNOWN; pages.len()];
    // SAFETY: `pages`, `status`, and `to` unless null, have `pages.len()` elements. An address is
    // as large as a pointer; the kernel checks each. Moving a page changes no content.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr().cast::<*const c_void>(),
            to.as_ref().map_or(ptr::null(), |to| to.as_ptr()),
            status.as_mut_ptr(),
            flags,
        )
    };
    (status, if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) })
}

/// The node of each page of this process; `None` where its page table has none.
///
/// # Errors
///
/// The kernel's; ENOSYS without NUMA.
pub fn nodes(pages: &[usize]) -> io::Result<impl Iterator<Item = Option<NodeId>> + use<>> {
    let (status, asked) = move_pages(0, pages, None, 0);
    asked?;
    Ok(status.into_iter().map(|node| u32::try_from(node).ok().map(NodeId)))
}
