//! Measures moves of cached pages: homenode's against a copy of as many bytes, against one
//! move_pages(2) for all of them, and against migratepages(8); and what readers notice.
//!
//! ```text
//! homenode-bench move FILE MIB ROUNDS OUT.json    measure; needs root and two nodes with memory
//! homenode-bench move --hold FILE                 map the file until stdin ends: migratepages moves the pages of a process
//! ```
//!
//! Everything runs once per round, in turn, so that other work on the machine affects all alike;
//! ratios are medians over rounds, with quartiles. Each move is checked page by page.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use act::copying::Copying;
use act::pages::FileMove;
use linux::residency;
use serde_json::{Value, json};
use topology::NodeId;

use crate::{Part, Result, quartiles};

const PAGE: usize = 4096;
/// `MPOL_MF_MOVE_ALL`, include/uapi/linux/mempolicy.h.
const MOVE_ALL: i32 = 4;

pub fn main(args: &[&str]) -> Result<()> {
    match *args {
        ["--hold", file] => hold(Path::new(file)),
        [file, mib, rounds, out] => {
            measure(Path::new(file), mib.parse::<usize>().unwrap() << 20, rounds.parse().unwrap(), Path::new(out));
        }
        _ => return Err("usage: move FILE MIB ROUNDS OUT.json | --hold FILE".into()),
    }
    Ok(())
}

fn measure(path: &Path, size: usize, rounds: usize, out: &Path) {
    let machine = topology::sysfs::read(Path::new("/sys")).unwrap();
    let nodes: Vec<_> = machine.nodes.iter().filter(|n| n.memory_bytes > 0).map(|n| n.id).collect();
    let [a, b, ..] = nodes[..] else { panic!("needs two nodes with memory") };
    let mut file = File::create(path).unwrap();
    for _ in 0..size >> 20 {
        file.write_all(&[7; 1 << 20]).unwrap();
    }
    file.sync_all().unwrap();
    let (from, mut to) = (vec![1_u8; size], vec![2_u8; size]);
    go(path, a);

    let mut took = Vec::new();
    for _ in 0..rounds {
        let ours = timed(|| go(path, b));
        check(path, b, size);
        let copy = timed(|| black_box(&mut to).copy_from_slice(black_box(&from)));
        let peer = migratepages(path, b, a);
        check(path, a, size);
        let mut moved = 0;
        let hand = timed(|| moved = by_hand(path, b));
        // It gives up where a page is in use; most must have moved for its time to mean anything.
        assert!(moved > size / 2, "{moved} of {size} bytes moved by hand");
        go(path, a);
        took.push([ours, peer, hand, copy].map(|t| t.as_secs_f64()));
    }
    drop((from, to));
    println!("{:<22} {:>10} {:>16} {:>16}", "moving the file", "ms", "a copy = 1", "quartiles");
    let mut moves = Vec::new();
    for (i, what) in ["homenode", "migratepages", "one move_pages", "a copy in memory"].into_iter().enumerate() {
        let seconds = quartiles(took.iter().map(|t| t[i]).collect())[1];
        let [low, ratio, high] = quartiles(took.iter().map(|t| t[i] / t[3]).collect());
        println!("{what:<22} {:>10.1} {ratio:>16.2} {:>16}", seconds * 1e3, format!("{low:.2} to {high:.2}"));
        moves.push(json!({"what": what, "seconds": seconds, "ratio": ratio, "quartiles": [low, high]}));
    }

    println!("\n{:<22} {:>10} {:>10} {:>10} {:>10}", "a reader's page, µs", "p50", "p99", "p99.9", "most");
    let mut readers = Vec::new();
    for (name, read) in [("pread", preads as fn(&Path, &AtomicBool) -> Vec<u32>), ("mapped", loads)] {
        for (when, moving) in [("before", false), ("during the move", true)] {
            readers.push(latencies(path, &format!("{name}, {when}"), read, moving.then_some([a, b])));
        }
    }
    fs::remove_file(path).unwrap();
    let all = json!({"bytes": size, "rounds": rounds, "moves": moves, "readers": readers});
    fs::write(out, format!("{all:#}\n")).unwrap();
}

fn timed(f: impl FnOnce()) -> Duration {
    let start = Instant::now();
    f();
    start.elapsed()
}

/// Moves the file as `homenode move` does.
fn go(path: &Path, to: NodeId) {
    let mut work = FileMove::prepare(path, to).unwrap();
    while !work.step(64 << 20).unwrap() {}
    assert_eq!(work.copied().failed(), 0);
}

fn check(path: &Path, node: NodeId, size: usize) {
    let there = residency::of(path, &mut |_, _| ()).unwrap().nodes.get(node);
    assert!(there as usize > size / 100 * 99, "{there} of {size} bytes are on node {node}");
}

/// Moves the file with the process that maps it; measures migratepages alone.
fn migratepages(path: &Path, from: NodeId, to: NodeId) -> Duration {
    let holder = Part::start("move", ["--hold".as_ref(), path.as_os_str()]).unwrap();
    let mut command = Command::new("migratepages");
    command.args([holder.child.id().to_string(), from.to_string(), to.to_string()]);
    let took = timed(|| assert!(command.status().unwrap().success()));
    holder.end().unwrap();
    took
}

/// What a move takes at the least: maps the file, enters its pages and moves all of them by one
/// call. Returns the bytes that are on the node then.
fn by_hand(path: &Path, to: NodeId) -> usize {
    let (base, len) = map(path);
    let pages: Vec<_> = (0..len).step_by(PAGE).map(|at| base.wrapping_add(at)).collect();
    let (nodes, mut status) = (vec![to.0; pages.len()], vec![-1_i32; pages.len()]);
    // SAFETY: each array has an element for each page; the mapping is that of `map`.
    unsafe {
        let call = libc::SYS_move_pages;
        libc::syscall(call, 0, pages.len(), pages.as_ptr(), nodes.as_ptr(), status.as_mut_ptr(), MOVE_ALL);
        let none = std::ptr::null::<i32>();
        assert_eq!(libc::syscall(call, 0, pages.len(), pages.as_ptr(), none, status.as_mut_ptr(), 0), 0);
        assert_eq!(libc::munmap(base.cast_mut().cast(), len), 0);
    }
    status.iter().filter(|node| **node == to.0.cast_signed()).count() * PAGE
}

/// Maps a file and enters its pages.
fn map(path: &Path) -> (*const u8, usize) {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: a new mapping at an address that the kernel chooses. It stays until the process ends.
    unsafe {
        let at = libc::mmap(null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::madvise(at, len, libc::MADV_POPULATE_READ), 0);
        (at.cast(), len)
    }
}

fn hold(path: &Path) {
    map(path);
    println!("ready");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Pages in an order that jumps about.
fn pages(len: usize) -> impl Iterator<Item = usize> {
    (0..usize::MAX).map(move |i| i.wrapping_mul(4_099) % (len / PAGE))
}

fn until(stop: &AtomicBool, len: usize, mut use_page: impl FnMut(usize)) -> Vec<u32> {
    let mut took = Vec::with_capacity(1 << 20);
    for page in pages(len) {
        let start = Instant::now();
        use_page(page * PAGE);
        took.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    took
}

fn preads(path: &Path, stop: &AtomicBool) -> Vec<u32> {
    let file = File::open(path).unwrap();
    let mut page = [0; PAGE];
    let len = file.metadata().unwrap().len() as usize;
    until(stop, len, |at| assert_eq!(file.read_at(&mut page, at as u64).unwrap(), PAGE))
}

fn loads(path: &Path, stop: &AtomicBool) -> Vec<u32> {
    let (base, len) = map(path);
    // SAFETY: inside the mapping; the file keeps its size.
    until(stop, len, |at| assert_eq!(unsafe { base.add(at).read_volatile() }, 7))
}

/// How long a reader takes for a page, in as much time as two moves take.
fn latencies(path: &Path, what: &str, read: fn(&Path, &AtomicBool) -> Vec<u32>, moves: Option<[NodeId; 2]>) -> Value {
    let stop = AtomicBool::new(false);
    let mut took = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(path, &stop));
        match moves {
            Some([a, b]) => [b, a].into_iter().for_each(|to| go(path, to)),
            None => std::thread::sleep(Duration::from_secs(3)),
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    took.sort_unstable();
    let at = |share: f64| f64::from(took[((took.len() - 1) as f64 * share) as usize]) / 1e3;
    let [p50, p99, p999, most] = [0.5, 0.99, 0.999, 1.0].map(at);
    println!("{what:<22} {p50:>10.1} {p99:>10.1} {p999:>10.1} {most:>10.1}");
    json!({"what": what, "p50_us": p50, "p99_us": p99, "p999_us": p999, "most_us": most, "reads": took.len()})
}
