//! Measures moving a process's memory against copying as many bytes, against one move_pages(2) for
//! all of it, and against migratepages(8); and estimating where it is against reading `numa_maps`.
//!
//! ```text
//! homenode-bench process MIB ROUNDS      on two nodes; on one node, only what looks and moves nothing
//! homenode-bench process --hold MIB KIND a process with so much memory in `small` or `huge` pages
//! ```
//!
//! Each takes its turn in every round; ratios are medians over rounds, with quartiles.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use act::copying::Copying;
use act::memory::MemoryMove;
use linux::threads::Threads;
use topology::NodeId;

use crate::{Part, Result, quartiles};

const PROC: &str = "/proc";
/// `MPOL_MF_MOVE`, include/uapi/linux/mempolicy.h.
const MOVE: i32 = 2;
/// Bytes of a step of `homenode move` without a limit.
const STEP: u64 = 64 << 20;

pub fn main(args: &[&str]) -> Result<()> {
    match *args {
        ["--hold", mib, kind] => hold(mib.parse::<usize>().unwrap() << 20, kind == "huge"),
        [mib, rounds] => {
            println!("| pages | work | median, ms | against memcpy | quartiles |\n|---|---|---|---|---|");
            for kind in ["small", "huge"] {
                measure(mib, rounds.parse().unwrap(), kind);
            }
        }
        _ => return Err("usage: process MIB ROUNDS".into()),
    }
    Ok(())
}

/// Private memory with something in each page.
fn memory(len: usize, huge: bool) -> *mut u8 {
    const HUGE: usize = 2 << 20;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses, with room to align it; advice
    // and stores stay inside.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), len + HUGE, protection, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.cast::<u8>().wrapping_add(at.addr().next_multiple_of(HUGE) - at.addr());
        libc::madvise(at.cast(), len, if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
        at.write_bytes(1, len);
        at
    }
}

fn hold(len: usize, huge: bool) {
    println!("{}", memory(len, huge).expose_provenance());
    // Until the other end is closed.
    let _ = std::io::stdin().lines().count();
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e3
}

/// What a move takes at the least: one call, by somebody who knows where the memory is.
fn by_hand(pid: u32, at: usize, len: usize, huge: bool, node: i32) {
    let pages: Vec<_> = (at..at + len).step_by(if huge { 2 << 20 } else { 4096 }).collect();
    let (nodes, mut status) = (vec![node; pages.len()], vec![-1_i32; pages.len()]);
    let count = pages.len();
    // SAFETY: each array has an element for each page; the addresses are another process's, which
    // the kernel checks.
    let result = unsafe {
        let (pages, nodes, status) = (pages.as_ptr(), nodes.as_ptr(), status.as_mut_ptr());
        libc::syscall(libc::SYS_move_pages, pid, count, pages, nodes, status, MOVE)
    };
    let moved = status.iter().filter(|there| **there == node).count();
    assert!(result >= 0 && moved > status.len() / 2, "{result}: {moved} of {} moved", status.len());
}

/// Moves all to a node; returns the bytes that are there then.
fn move_to(pid: u32, node: u32) -> u64 {
    let process = Threads::new(Path::new(PROC)).stat(pid).unwrap().unwrap().process();
    let mut work = MemoryMove::new(Path::new(PROC), process, NodeId(node)).unwrap().unwrap();
    while !work.step(STEP).unwrap() {}
    work.copied().moved
}

fn measure(mib: &str, rounds: usize, kind: &str) {
    let len = mib.parse::<usize>().unwrap() << 20;
    let holder = Part::start("process", ["--hold", mib, kind]).unwrap();
    let (pid, at) = (holder.child.id(), holder.said.trim().parse().unwrap());
    let two_nodes = Path::new("/sys/devices/system/node/node1").exists();
    let (from, to) = (memory(len, kind == "huge"), memory(len, kind == "huge"));
    let mut took: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut add = |name: &'static str, time: f64| match took.iter_mut().find(|t| t.0 == name) {
        Some(times) => times.1.push(time),
        None => took.push((name, vec![time])),
    };
    let all_moved = |node: u32| assert!(move_to(pid, node) >= len as u64, "not all of it moved");
    for _ in 0..rounds {
        // SAFETY: two mappings of this length that do not overlap.
        add("memcpy", milliseconds(|| unsafe { black_box(to).copy_from_nonoverlapping(black_box(from), len) }));
        if two_nodes {
            all_moved(0);
            add("homenode, all of it to the other node", milliseconds(|| all_moved(1)));
            let migrate = || {
                assert!(Command::new("migratepages").args([&pid.to_string(), "1", "0"]).status().unwrap().success());
            };
            add("migratepages", milliseconds(migrate));
            all_moved(0);
            add("one move_pages", milliseconds(|| by_hand(pid, at, len, kind == "huge", 1)));
        }
        all_moved(0);
        add("homenode, nothing to move", milliseconds(|| all_moved(0)));
        add(
            "estimate of the bytes on each node",
            milliseconds(|| {
                assert!(linux::memory::resident(Path::new(PROC), pid).unwrap().unwrap().total() >= len as u64);
            }),
        );
        add(
            "numa_maps",
            milliseconds(|| {
                assert!(!std::fs::read(format!("{PROC}/{pid}/numa_maps")).unwrap().is_empty());
            }),
        );
    }
    let memcpy = took[0].1.clone();
    for (name, times) in took {
        let [low, ratio, high] = quartiles(times.iter().zip(&memcpy).map(|(time, memcpy)| time / memcpy).collect());
        println!("| {kind} | {name} | {:.2} | {ratio:.3} | {low:.3} to {high:.3} |", quartiles(times)[1]);
    }
    // SAFETY: the mappings made above; nothing refers to them any more. The rest of each, for
    // alignment, ends with the process.
    unsafe {
        libc::munmap(from.cast(), len);
        libc::munmap(to.cast(), len);
    }
}
