//! The file system, called as a library, beside ext4 and tmpfs, called through the kernel; and a migration beside a plain copy.
//!
//! `cargo run --release -p homenode-fs --example peers DIR`, where DIR is on ext4. All contenders take turns in one run; a line
//! shows the median batch and the fastest: on a busy machine only the fastest says something. The library saves the system call, and its memory is lost with the machine: the lines
//! compare what a program waits for, not media. Migrations go between two regions on one node.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fs::medium::{Mapped, RegionFile};
use fs::{Ino, Layout, NewFile, Options, Placement, Volume};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;
/// Size of each file that is read.
const FILE: usize = 128 * MIB;
/// Many short batches: on a busy machine some are not interrupted.
const ROUNDS: usize = 101;
/// Appends in a batch.
const APPENDS: usize = 100;
/// Size of the file that moves while nobody reads it.
const SMALL: usize = 8 * MIB;

struct Contender<'a> {
    name: &'a str,
    call: Box<dyn FnMut(usize) -> Result<()> + 'a>,
    /// Between two batches: empties what was appended.
    reset: Box<dyn FnMut() -> Result<()> + 'a>,
}

fn contender<'a>(name: &'a str, call: impl FnMut(usize) -> Result<()> + 'a) -> Contender<'a> {
    Contender { name, call: Box::new(call), reset: Box::new(|| Ok(())) }
}

/// Batches of `calls` calls, in turn; the median and the fastest, and the fastest relative to that of the first contender.
fn compare(what: &str, calls: usize, mut contenders: Vec<Contender<'_>>) -> Result<()> {
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..ROUNDS {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            let begin = Instant::now();
            (round * calls..(round + 1) * calls).try_for_each(&mut contender.call)?;
            times.push(begin.elapsed().as_nanos() as f64 / calls as f64);
            (contender.reset)()?;
        }
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let own = times[0][0];
    for (contender, times) in contenders.iter().zip(times) {
        let (median, fastest) = (times[ROUNDS / 2], times[0]);
        println!("| {what} | {} | {median:.0} | {fastest:.0} | {:.2} |", contender.name, fastest / own);
    }
    Ok(())
}

fn volume() -> Result<Volume> {
    let regions: Vec<RegionFile> = (0..2)
        .map(|_| {
            let file = File::from(rustix::fs::memfd_create("peers", rustix::fs::MemfdFlags::CLOEXEC)?);
            file.set_len(4 * FILE as u64)?;
            Ok(RegionFile { file, bind: None })
        })
        .collect::<Result<_>>()?;
    let map = || -> Result<Box<Mapped>> {
        let mut mapped = Mapped::new(&regions)?;
        mapped.assume_persistent();
        Ok(Box::new(mapped))
    };
    let layout = Layout {
        volume: [1; 16],
        created: 0,
        nodes: vec![Some(0), Some(1)],
        names: Vec::new(),
        bytes_per_inode: 16384,
        journals: 2,
        data_checksums: false,
        owner: (0, 0),
    };
    fs::mkfs(map()?, &layout)?;
    Ok(Volume::mount(map()?, Options { placement: Placement::Node(0), ..Options::default() })?)
}

fn open(dir: &Path, name: &str) -> Result<File> {
    let path = dir.join(format!("homenode-peers-{}-{name}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// Reads 4 KiB at random until told to stop, at least `least` times: ns of each, in order.
fn reads(volume: &Volume, file: Ino, least: usize, stop: &AtomicBool) -> Result<Vec<u64>> {
    let (mut times, mut out) = (Vec::new(), [0; BLOCK]);
    while times.len() < least || !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        volume.read(file, random(times.len()), &mut out)?;
        times.push(begin.elapsed().as_nanos() as u64);
        black_box(&out);
    }
    times.sort_unstable();
    Ok(times)
}

/// The offset of a block of a file.
fn random(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (FILE / BLOCK) as u64 * BLOCK as u64
}

fn percentiles(what: &str, times: &[u64]) {
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{what}: {} reads, median {} ns, p99 {} ns, p99.9 {} ns", times.len(), at(0.5), at(0.99), at(0.999));
}

fn main() -> Result<()> {
    let dir = std::env::args_os().nth(1).ok_or("the argument is missing: a directory on ext4")?;
    let volume = volume()?;
    let new = |name: &str| volume.create(Ino::ROOT, name.as_bytes(), NewFile { mode: 0o644, ..NewFile::default() });
    let (own, log) = (new("data")?.ino, new("log")?.ino);
    let (ext4, tmpfs) = (open(Path::new(&dir), "data")?, open(Path::new("/dev/shm"), "data")?);
    let (ext4_log, tmpfs_log) = (open(Path::new(&dir), "log")?, open(Path::new("/dev/shm"), "log")?);
    let (small, large) = (vec![7; BLOCK], vec![9; MIB]);
    for i in 0..FILE / MIB {
        let at = (i * MIB) as u64;
        volume.write(own, at, &large)?;
        ext4.write_all_at(&large, at)?;
        tmpfs.write_all_at(&large, at)?;
    }
    ext4.sync_data()?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    println!("load average {}\n", load.split(' ').next().unwrap_or_default());
    println!("| operation | by | median, ns | fastest, ns | fastest, relative |\n|---|---|---|---|---|");

    let empty = |file: &File| file.set_len(0).map_err(Into::into);
    let append = |file: &File, i: usize| file.write_all_at(&small, (i % APPENDS * BLOCK) as u64);
    compare(
        "append, 4 KiB",
        APPENDS,
        vec![
            Contender {
                reset: Box::new(|| Ok(volume.truncate(log, 0)?)),
                ..contender("homenode, durable", |_| Ok(volume.append(log, &small).map(|_| ())?))
            },
            Contender { reset: Box::new(|| empty(&tmpfs_log)), ..contender("tmpfs", |i| Ok(append(&tmpfs_log, i)?)) },
            Contender {
                reset: Box::new(|| empty(&ext4_log)),
                ..contender("ext4, cache", |i| Ok(append(&ext4_log, i)?))
            },
        ],
    )?;
    compare(
        "append, 4 KiB, and wait for the medium",
        1,
        vec![
            Contender {
                reset: Box::new(|| Ok(volume.truncate(log, 0)?)),
                ..contender("homenode, durable", |_| Ok(volume.append(log, &small).map(|_| ())?))
            },
            Contender {
                reset: Box::new(|| empty(&ext4_log)),
                ..contender("ext4, fdatasync", |i| Ok(append(&ext4_log, i).and_then(|()| ext4_log.sync_data())?))
            },
        ],
    )?;
    let at = |i: usize| (i * MIB % FILE) as u64;
    compare(
        "write in sequence, 1 MiB",
        4,
        vec![
            contender("homenode, durable", |i| Ok(volume.write(own, at(i), &large)?)),
            contender("tmpfs", |i| Ok(tmpfs.write_all_at(&large, at(i))?)),
            contender("ext4, cache", |i| Ok(ext4.write_all_at(&large, at(i))?)),
        ],
    )?;
    let mut out = vec![0; MIB];
    let (mut tmpfs_out, mut ext4_out) = (out.clone(), out.clone());
    compare(
        "read in sequence, 1 MiB",
        4,
        vec![
            contender("homenode", |i| Ok(volume.read(own, at(i), &mut out).map(|_| ())?)),
            contender("tmpfs", |i| Ok(tmpfs.read_exact_at(&mut tmpfs_out, at(i))?)),
            contender("ext4, cached", |i| Ok(ext4.read_exact_at(&mut ext4_out, at(i))?)),
        ],
    )?;
    let mut out = [0; BLOCK];
    let (mut tmpfs_out, mut ext4_out) = (out, out);
    compare(
        "read at random, 4 KiB",
        500,
        vec![
            contender("homenode", |i| Ok(volume.read(own, random(i), &mut out).map(|_| ())?)),
            contender("tmpfs", |i| Ok(tmpfs.read_exact_at(&mut tmpfs_out, random(i))?)),
            contender("ext4, cached", |i| Ok(ext4.read_exact_at(&mut ext4_out, random(i))?)),
        ],
    )?;

    let moving = new("moving")?.ino;
    volume.write(moving, 0, &vec![5; SMALL])?;
    let (from, mut to) = (vec![1_u8; SMALL], vec![2_u8; SMALL]);
    let mut node = 0;
    compare(
        "move of a file of 8 MiB",
        1,
        vec![
            contender("migrate_file", |_| {
                node = 1 - node;
                Ok(volume.migrate_file(moving, node, None, |_| true).map(|_| ())?)
            }),
            contender("memcpy", |_| {
                to.copy_from_slice(&from);
                black_box(&to);
                Ok(())
            }),
        ],
    )?;
    println!();
    let stop = AtomicBool::new(true);
    let quiet = reads(&volume, own, 100_000, &stop)?;
    stop.store(false, Ordering::Relaxed);
    let moving = std::thread::scope(|scope| {
        let reader = scope.spawn(|| reads(&volume, own, 100_000, &stop));
        let moved = (0..8).try_for_each(|i| volume.migrate_file(own, (i + 1) % 2, None, |_| true).map(|_| ()));
        stop.store(true, Ordering::Relaxed);
        moved?;
        reader.join().map_err(|_| "the reader panicked")?
    })?;
    percentiles("4 KiB at random from a file that stays", &quiet);
    percentiles("4 KiB at random from a file that moves to and fro", &moving);
    Ok(())
}
