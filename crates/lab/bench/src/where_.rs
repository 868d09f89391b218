//! Compares `homenode where` with its peers on one cached file: fincore(1), which knows no nodes,
//! and a page-by-page query with `move_pages(2)`.
//!
//! ```text
//! homenode-bench where FILE GIB ROUNDS HOMENODE OUT.json    measure
//! homenode-bench where --query FILE                         the page-by-page query, as a process of its own
//! ```
//!
//! Each program runs once per round, in turn, so that other work on the machine affects all alike;
//! ratios are medians over rounds. The kernel works by folio, so the file is measured in the page
//! cache after each of three histories: written 1 MiB at a time (large folios, where the file
//! system has them), written 4 KiB at a time (a folio for each page) and read in sequence (folios
//! as large as readahead and free memory make them).
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::{Result, again, median};

const PROGRAMS: [&str; 3] = ["homenode where", "fincore", "page query"];

pub fn main(args: &[&str]) -> Result<()> {
    match *args {
        ["--query", file] => println!("{:?}", query(Path::new(file))),
        [file, gib, rounds, homenode, out] => {
            let size = gib.parse::<u64>().unwrap() << 30;
            measure(Path::new(file), size, rounds.parse().unwrap(), homenode, Path::new(out));
        }
        _ => return Err("usage: where FILE GIB ROUNDS HOMENODE OUT.json | --query FILE".into()),
    }
    Ok(())
}

/// Seconds of wall clock and of CPU that a command took.
fn run(command: &mut Command) -> (f64, f64) {
    let cpu = || {
        // SAFETY: an all-zero rusage is a valid one, and the call only fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), 0);
            usage
        };
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
        seconds(usage.ru_utime) + seconds(usage.ru_stime)
    };
    let (before, start) = (cpu(), Instant::now());
    let status = command.stdout(Stdio::null()).status().unwrap();
    let wall = start.elapsed().as_secs_f64();
    assert!(status.success(), "{command:?}: {status}");
    (wall, cpu() - before)
}

fn measure(file: &Path, size: u64, rounds: usize, homenode: &str, out: &Path) {
    let mut results = Vec::new();
    let histories = [
        ("written 1 MiB at a time", (|path, size| write(path, size, 1 << 20)) as fn(&Path, u64)),
        ("written 4 KiB at a time", |path, size| write(path, size, 4096)),
        ("read in sequence", read),
    ];
    for (history, prepare) in histories {
        prepare(file, size);
        let mut runs = Vec::new();
        let mut least = 1.0_f64;
        for _ in 0..rounds {
            least = least.min(keep(file, size));
            runs.push([
                run(Command::new(homenode).arg("where").arg(file)),
                run(Command::new("fincore").arg(file)),
                run(again("where").unwrap().arg("--query").arg(file)),
            ]);
        }
        results.push(report(history, &runs, least));
    }
    fs::remove_file(file).unwrap();
    fs::write(out, format!("{:#}\n", json!({ "bytes": size, "rounds": rounds, "results": results }))).unwrap();
}

/// Prints a table of one history and returns it as JSON.
fn report(history: &str, runs: &[[(f64, f64); 3]], least: f64) -> Value {
    println!("\n{history:<28} {:>10} {:>10} {:>14} {:>14}", "wall ms", "CPU ms", "wall, ours = 1", "CPU, ours = 1");
    let rows = PROGRAMS.iter().enumerate().map(|(i, program)| {
        let of = |value: fn(&[(f64, f64); 3], usize) -> f64| median(runs.iter().map(|run| value(run, i)).collect());
        let (wall, cpu) = (of(|run, i| run[i].0), of(|run, i| run[i].1));
        let (wall_ratio, cpu_ratio) = (of(|run, i| run[i].0 / run[0].0), of(|run, i| run[i].1 / run[0].1));
        println!("{program:<28} {:>10.1} {:>10.1} {wall_ratio:>14.2} {cpu_ratio:>14.2}", wall * 1e3, cpu * 1e3);
        json!({"program": program, "wall_s": wall, "cpu_s": cpu, "wall_ratio": wall_ratio, "cpu_ratio": cpu_ratio})
    });
    println!("{:<28} {:>9.2} %", "cached, at least", least * 100.0);
    json!({ "history": history, "cached": least, "programs": rows.collect::<Vec<_>>() })
}

/// Writes a new file, `step` bytes at a time.
fn write(path: &Path, size: u64, step: usize) {
    let _ = fs::remove_file(path);
    let file = File::create(path).unwrap();
    let block = vec![7; step];
    for offset in (0..size).step_by(step) {
        file.write_all_at(&block, offset).unwrap();
    }
    file.sync_all().unwrap();
}

/// Reads evicted pages again, for machines short of memory. Returns the cached share of the file.
fn keep(path: &Path, size: u64) -> f64 {
    let cached = || linux::residency::of(path, &mut |_, _| ()).unwrap().resident as f64 / size as f64;
    for _ in 0..3 {
        if cached() == 1.0 {
            return 1.0;
        }
        through(path);
    }
    let cached = cached();
    assert!(cached > 0.99, "the file does not stay cached ({cached:.3}): this machine is short of memory now");
    cached
}

/// Reads the file from start to end.
fn through(path: &Path) {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer).unwrap() > 0 {}
}

/// Evicts the file and reads it from start to end.
fn read(path: &Path, _: u64) {
    let file = File::open(path).unwrap();
    // SAFETY: advice on an open descriptor.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    through(path);
}

/// Pages per node (by its number) of a file: `mincore`, then populate, then `move_pages` for every
/// page.
fn query(path: &Path) -> Vec<usize> {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    let page = rustix::param::page_size();
    let mut nodes = vec![0; 1024];
    // SAFETY: a new mapping of an open file for as long as this process; every vector has an
    // element for each page.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        let mut resident = vec![0_u8; len.div_ceil(page)];
        assert_eq!(libc::mincore(at, len, resident.as_mut_ptr()), 0);
        for run in resident.chunk_by(|a, b| a == b).scan(0, |start, run| {
            *start += run.len();
            Some((*start - run.len(), run))
        }) {
            if run.1[0] & 1 == 1 {
                let from = at.byte_add(run.0 * page);
                assert_eq!(libc::madvise(from, run.1.len() * page, libc::MADV_POPULATE_READ), 0);
            }
        }
        let pages: Vec<_> =
            (0..resident.len()).filter(|i| resident[*i] & 1 == 1).map(|i| at.byte_add(i * page)).collect();
        for batch in pages.chunks(16_384) {
            let mut status = vec![0_i32; batch.len()];
            libc::syscall(libc::SYS_move_pages, 0, batch.len(), batch.as_ptr(), 0_usize, status.as_mut_ptr(), 0);
            status.iter().filter_map(|s| usize::try_from(*s).ok()).for_each(|node| nodes[node] += 1);
        }
    }
    nodes.into_iter().filter(|n| *n > 0).collect()
}
