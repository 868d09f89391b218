//! Reasons for which files are not moved.

use std::io;
use std::path::Path;

use linux::memory::{self, Room};
use linux::pages::{MOVE_ALL, move_pages};
use linux::residency::open::{Fs, Opened};
use linux::{processor, reclaim};
use topology::{CpuSet, NodeId, Topology};

use super::FileMoveError;

/// Checks that this process may move pages to a node.
///
/// # Errors
///
/// [`FileMoveError::Target`]: the node has no memory, this process's cpuset forbids it, or the
/// kernel grants nothing.
pub fn target(topology: &Topology, to: NodeId) -> Result<(), FileMoveError> {
    let refused = |reason, why, source| Err(FileMoveError::Target { to, reason, why, source });
    match topology.node(to) {
        None => return refused("no_such_node", "this machine has no such node".to_owned(), None),
        Some(node) if node.memory_bytes == 0 => {
            return refused("no_memory", "the node has no memory".to_owned(), None);
        }
        Some(_) => {}
    }
    // Without a page the kernel only checks the flag.
    if let (_, Err(e)) = move_pages(0, &[], None, MOVE_ALL) {
        let (reason, why) = match e.raw_os_error() {
            Some(libc::EPERM) => ("eperm", "moving pages that others use takes CAP_SYS_NICE"),
            Some(libc::ENOSYS) => ("no_numa", "this kernel was built without NUMA"),
            _ => ("move_pages", "the kernel refuses move_pages(2)"),
        };
        return refused(reason, why.to_owned(), Some(e));
    }
    match allowed() {
        Ok(Some(allowed)) if !allowed.contains(to.0) => {
            let why = format!("the cpuset of homenode allows it memory on nodes {allowed} only (Mems_allowed)");
            refused("cpuset", why, None)
        }
        Ok(_) => Ok(()),
        Err(e) => refused("cpuset", "the nodes that homenode may use are unknown".to_owned(), Some(e)),
    }
}

/// The nodes whose memory this thread may use; `None` on a kernel without cpusets.
pub(crate) fn allowed() -> io::Result<Option<CpuSet>> {
    processor::allowed(Path::new("/proc"), "Mems_allowed_list")
}

/// Refuses files whose pages are not in the page cache: a word, and why.
pub(crate) fn file(file: &Opened) -> Result<(), (&'static str, String)> {
    if file.dax {
        return Err((
            "dax",
            "it is accessed directly in persistent memory (DAX), which has no cached pages".to_owned(),
        ));
    }
    if file.fs == Fs::Hugetlb {
        return Err(("hugetlbfs", "its huge pages belong to the processes that map them".to_owned()));
    }
    if file.size > LARGEST && file.cached(0, 1).is_none() {
        return Err((
            "too_large",
            "its cached pages cannot be counted, and it has too many to ask for each".to_owned(),
        ));
    }
    Ok(())
}

/// Most bytes of a file whose pages are asked about one by one, which takes up to 50 ns for each:
/// ext4's largest file. A sparse file can be a million times as large.
const LARGEST: u64 = 16 << 40;

/// Refuses a move for which the node has no room. Room is what is free, and what the kernel frees
/// first: cached pages that were not used lately, but not the `there` bytes of the file itself. The
/// zones' high watermarks are not room, because the kernel keeps that much free.
pub(crate) fn room(to: NodeId, bytes: u64, there: u64) -> Result<(), String> {
    let known = memory::room(Path::new("/sys"), to).zip(reclaim::high_watermark(Path::new("/proc"), to));
    // Unknown is no refusal: the move itself ends when nothing is free.
    let Some((room, reserve)) = known else { return Ok(()) };
    let room = to_spare(room, reserve, there);
    if bytes <= room {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    Err(format!("it takes {} MiB, and the node has {} MiB to spare", mib(bytes).max(1), mib(room)))
}

/// The bytes that a node can take without its reserve, which is in pages. The `there` bytes of the
/// file itself do not count: they are what the kernel would free.
fn to_spare(Room { free, unused }: Room, reserve: u64, there: u64) -> u64 {
    let reserve = reserve.saturating_mul(rustix::param::page_size() as u64);
    free.saturating_add(unused.saturating_sub(there)).saturating_sub(reserve)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_is_free_or_freed_first() {
        let page = rustix::param::page_size() as u64;
        let room = Room { free: 102_400 << 10, unused: 4096 << 10 };
        assert_eq!(to_spare(room, 1024, 0), (102_400 + 4096) * 1024 - 1024 * page);
        // The kernel could free all of the unused pages, but those are the file's own.
        assert_eq!(to_spare(room, 1024, 1 << 30), 102_400 * 1024 - 1024 * page);
        assert_eq!(to_spare(room, u64::MAX, 0), 0);
    }
}
