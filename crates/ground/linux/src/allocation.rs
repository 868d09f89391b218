//! The memory policy of the calling thread: from which nodes the kernel takes the pages that this
//! thread allocates, those of the page cache included.
//!
//! **Limits.** A policy counts for pages that are allocated from then on. It cannot reach beyond
//! the thread's cpuset.

use std::io;

use topology::NodeId;

/// How pages are taken from a set of nodes. The numbers are those of `linux/mempolicy.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// From these nodes first.
    Prefer = 1,
    /// From these nodes and no others.
    Bind = 2,
    /// From one after the other.
    Interleave = 3,
    /// From one after the other, each as often as its weight says. Since Linux 6.9.
    Weighted = 6,
}

impl Spread {
    /// Stable word for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefer => "prefer",
            Self::Bind => "bind",
            Self::Interleave => "interleave",
            Self::Weighted => "weighted",
        }
    }
}

/// Words of a mask of nodes: 1024 nodes, the most that a kernel can be built for.
const WORDS: usize = 16;

/// Bits of such a mask, as calls are told them. The kernel reads one bit less.
pub const BITS: libc::c_ulong = 64 * WORDS as libc::c_ulong + 1;

/// The policy that a thread had; it gets it back when this is dropped.
#[derive(Debug)]
pub struct Before {
    mode: libc::c_int,
    mask: [u64; WORDS],
}

/// Sets the policy of the calling thread, until the returned value is dropped. Drop it on the same
/// thread.
///
/// # Errors
///
/// `EINVAL`: the cpuset allows none of these nodes, or this kernel has no such policy. `ENOSYS`: a
/// kernel without NUMA.
pub fn spread(how: Spread, nodes: &[NodeId]) -> io::Result<Before> {
    let mut before = Before { mode: 0, mask: [0; WORDS] };
    let (mode, into): (*mut libc::c_int, *mut u64) = (&raw mut before.mode, before.mask.as_mut_ptr());
    // SAFETY: both pointers are to live memory, the second with room for as many bits as are told.
    let got = unsafe { libc::syscall(libc::SYS_get_mempolicy, mode, into, BITS - 1, 0, 0) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    set(how as libc::c_int, &mask(nodes)?)?;
    Ok(before)
}

/// The mask of these nodes, of [`BITS`] bits.
///
/// # Errors
///
/// `EINVAL`: no kernel knows so many nodes.
pub fn mask(nodes: &[NodeId]) -> io::Result<[u64; WORDS]> {
    let mut mask = [0; WORDS];
    for node in nodes {
        let word = mask.get_mut(node.0 as usize / 64).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        *word |= 1 << (node.0 % 64);
    }
    Ok(mask)
}

impl Drop for Before {
    fn drop(&mut self) {
        // Refused only if the cpuset has changed meanwhile.
        let _ = set(self.mode, &self.mask);
    }
}

fn set(mode: libc::c_int, mask: &[u64; WORDS]) -> io::Result<()> {
    // A policy without nodes, such as the default, takes no mask.
    let empty = mask.iter().all(|word| *word == 0);
    let (mask, bits) = if empty { (std::ptr::null(), 0) } else { (mask.as_ptr(), BITS) };
    // SAFETY: the mask outlives the call, which changes only the calling thread's policy.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode() -> libc::c_int {
        let mut mode: libc::c_int = -1;
        // SAFETY: the pointer is to a live value; no mask is asked for.
        let got = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, std::ptr::null::<u64>(), 0, 0, 0) };
        assert_eq!(got, 0, "{}", io::Error::last_os_error());
        mode
    }

    #[test]
    fn a_thread_gets_back_the_policy_that_it_had() {
        let was = mode();
        let outer = match spread(Spread::Interleave, &[NodeId(0)]) {
            Ok(outer) => outer,
            Err(e) => return println!("skipped: set_mempolicy: {e}"),
        };
        {
            let _inner = spread(Spread::Bind, &[NodeId(0)]).unwrap();
            assert_eq!(mode(), Spread::Bind as libc::c_int);
        }
        assert_eq!(mode(), Spread::Interleave as libc::c_int);
        drop(outer);
        assert_eq!(mode(), was);
    }

    #[test]
    fn a_node_that_is_not_there_is_refused() {
        for node in [1023, 1024, u32::MAX] {
            assert!(spread(Spread::Bind, &[NodeId(node)]).is_err(), "node {node}");
        }
    }
}
