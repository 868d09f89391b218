//! How much of a process's own memory is on each node, at a bounded cost.
//!
//! **Problem.** `numa_maps` tells it exactly, but the kernel walks every page table for that: its
//! cost grows with the process.
//!
//! **Approach.** `/proc/PID/status` has the sum for nothing: `RssAnon`, `RssShmem` and
//! `HugetlbPages`. The nodes of a sample of pages, spread evenly over the address space, share it
//! out. A small process is looked at page by page.
//!
//! **Limits.** A share is off by about 1.6 percentage points (one standard deviation at [`PAGES`]
//! sampled pages and a share of one half), by more if the pages of a group are alike. A process
//! whose pages are fewer than one in 10,000 of its readable address space may show no page in the
//! sample; its nodes are then unknown.

use std::io;
use std::path::Path;

use topology::{NodeBytes, NodeId, sysfs};

use super::regions;
use super::space::Space;
use crate::random;
use crate::threads::{Threads, field, is_gone};

/// Sampled pages that suffice: the standard deviation of a share is at most sqrt(0.25 / 1024).
const PAGES: usize = 1024;

/// Neighbouring pages looked at together: one system call for each group, and neighbours are often
/// on one node.
const GROUP: u64 = 4;

/// Groups of a round, and rounds: at most 2,048 calls of about a microsecond.
const GROUPS: u64 = 256;
const ROUNDS: u32 = 8;

/// Estimates the bytes of a process's own memory (anonymous, shared memory, huge pages) on each
/// node. `None` if the process has ended or has no memory of its own; empty if the sample shows no
/// page.
pub fn resident(proc_root: &Path, pid: u32) -> io::Result<Option<NodeBytes>> {
    let threads = Threads::new(proc_root);
    let Some(stat) = threads.stat(pid)? else { return Ok(None) };
    let Some(space) = Space::open(&threads, stat.process())? else { return Ok(None) };
    let Some(total) = own_bytes(&threads, pid)? else { return Ok(None) };
    match sample(&space) {
        Err(error) if is_gone(&error) => Ok(None),
        counts => Ok(counts?.map(|counts| share_out(total, &counts))),
    }
}

/// Bytes of memory of its own that a process has; `None` if it has ended or is a kernel thread.
pub fn own_bytes(threads: &Threads, pid: u32) -> io::Result<Option<u64>> {
    match threads.status(pid) {
        Ok(status) => Ok(parse(&status)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sums fields such as `RssAnon:     1024 kB`; `None` without them.
fn parse(status: &str) -> Option<u64> {
    let sizes = ["RssAnon", "RssShmem", "HugetlbPages"].map(|name| field(status, name).and_then(sysfs::bytes));
    sizes.into_iter().flatten().reduce(u64::saturating_add)
}

/// Sampled pages per node; `None` if the process has ended.
fn sample(space: &Space) -> io::Result<Option<NodeBytes>> {
    let page = space.page_size();
    let regions: Vec<_> = regions::read(space.dir())?.into_iter().filter(|r| r.readable).collect();
    let all: u64 = regions.iter().map(|r| (r.range.end - r.range.start) / page).sum();
    let mut counts = NodeBytes::default();
    let mut pages = Vec::new();
    for round in 0..ROUNDS {
        // Each round has a place of its own between the groups of the rounds before. In a small
        // process the first takes all pages.
        let step = (all / GROUPS).max(GROUP);
        let mut at = if step == GROUP { 0 } else { random::secret()? % (step - GROUP) };
        pages.clear();
        // Pages before this region, in all regions.
        let mut before = 0;
        for region in &regions {
            let (first, count) = (region.range.start / page, (region.range.end - region.range.start) / page);
            while at < before + count {
                let inside = at - before;
                let group = GROUP.min(count - inside);
                if !space.present(first + inside, group, region.shared_memory, &mut pages)? {
                    return Ok(None);
                }
                // What a region cuts off from a group, the next region takes in a small process.
                at += if step == GROUP { group } else { step };
            }
            before += count;
        }
        let Some(nodes) = space.nodes(&pages)? else { return Ok(None) };
        for node in nodes.into_iter().filter_map(|n| u32::try_from(n).ok()) {
            counts.add(NodeId(node), 1);
        }
        if step == GROUP || counts.total() >= PAGES as u64 || all == 0 {
            break;
        }
        tracing::trace!(round, found = counts.total(), "sampled");
    }
    Ok(Some(counts))
}

/// Shares bytes out by counts. The parts add up to the whole, but for what rounding takes.
fn share_out(total: u64, counts: &NodeBytes) -> NodeBytes {
    let all = u128::from(counts.total().max(1));
    let part = |n: u64| u64::try_from(u128::from(total) * u128::from(n) / all).unwrap_or(u64::MAX);
    counts.iter().map(|(node, n)| (node, part(n))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_its_own_is_summed() {
        let status = "Name:\tx\nVmRSS:\t   99 kB\nRssAnon:\t   10 kB\nRssFile:\t  70 kB\nRssShmem:\t 4 kB\nHugetlbPages:\t 2048 kB\n";
        assert_eq!(parse(status), Some(2062 * 1024));
        // A kernel thread.
        assert_eq!(parse("Name:\tkthreadd\nThreads:\t1\n"), None);
    }

    #[test]
    fn counts_share_the_bytes_out() {
        let counts: NodeBytes = [(NodeId(0), 3), (NodeId(5), 1)].into_iter().collect();
        let shared = share_out(1 << 40, &counts);
        assert_eq!((shared.get(NodeId(0)), shared.get(NodeId(5))), (3 << 38, 1 << 38));
        assert_eq!(share_out(4096, &NodeBytes::default()), NodeBytes::default());
    }

    #[test]
    fn ended_processes_and_kernel_threads_have_none() {
        let proc = Path::new("/proc");
        assert_eq!(resident(proc, u32::MAX >> 1).unwrap(), None);
        // The first kernel thread, where one is visible.
        if Threads::new(proc).stat(2).unwrap().is_some_and(|stat| stat.kernel_thread) {
            assert_eq!(resident(proc, 2).unwrap(), None);
        }
    }
}
