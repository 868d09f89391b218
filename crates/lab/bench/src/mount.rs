//! The cost of an operation on a mounted volume, beside a mount with nothing behind it, ext4 and
//! tmpfs.
//!
//! ```text
//! homenode-bench mount DIR ROUNDS JSON [OPERATION]      DIR in memory: for the regions, the image of ext4 and the mount
//!                                                       points; only operations whose names contain OPERATION
//! ```
//!
//! **Approach.** Every file system is there at once, each mount with a server process of its own,
//! and every measurement takes its turn in each round, so that other work on the machine meets all
//! of them. A figure is a median over rounds, a ratio is the median of the rounds' ratios. CPU time
//! is that of the caller and the server.
//!
//! **Limits.** Small batches, so that a round is short. CPU time of kernel threads, such as those
//! of the loop device under ext4, is not counted.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use mount::plane::Callers;
use mount::{Cache, Options, null};

use crate::systems::{Mount, region, volume};
use crate::{Result, quartiles, random_numbers};

/// Bytes of the file that is read and written, and of a volume, which needs room for what replaces
/// it.
const FILE: u64 = null::FILE_BYTES;
const VOLUME: u64 = 2 * FILE;
/// How often the file is written before anything is measured: until a volume has used each of its
/// blocks. A page of memory that is used for the first time costs the kernel more than the whole
/// operation.
const FILLS: usize = 4;
const SMALL: usize = 4096;
const LARGE: usize = 1 << 20;
/// Operations of a batch: of 4 KiB, of 1 MiB, and of names.
const SMALLS: usize = 256;
const LARGES: usize = 16;
const NAMES: usize = 128;
const APPENDS: usize = 1024;

pub fn main(args: &[&str]) -> Result<()> {
    match *args {
        ["--serve", kind, dir] => serve(kind, Path::new(dir)),
        [dir, rounds, json] => measure(Path::new(dir), rounds.parse().unwrap(), Path::new(json), ""),
        [dir, rounds, json, only] => measure(Path::new(dir), rounds.parse().unwrap(), Path::new(json), only),
        _ => return Err("usage: mount DIR ROUNDS JSON [OPERATION]".into()),
    }
    Ok(())
}

/// Kinds of mounts by the name that the report shows: whether a volume is behind it, and whether
/// requests come by io_uring.
const SERVED: &[(&str, bool, bool)] = &[
    ("homenode", true, false),
    ("null", false, false),
    ("homenode, io_uring", true, true),
    ("null, io_uring", false, true),
    (WRITE_BACK, true, false),
];
const WRITE_BACK: &str = "homenode, write-back";

/// Serves until standard input ends.
fn serve(kind: &str, dir: &Path) {
    let (_, of_volume, ring) = *SERVED.iter().find(|(name, ..)| *name == kind).unwrap();
    let cache = if kind == WRITE_BACK { Cache::Writeback } else { Cache::Kernel };
    let options = Options { source: "bench".to_owned(), cache, ring, ..Options::default() };
    let mountpoint = dir.join(kind);
    let session = if of_volume {
        let volume = volume(&region(dir, kind), VOLUME);
        mount::serve(Arc::new(volume), &mountpoint, &options).unwrap()
    } else {
        null::serve(&mountpoint, &options).unwrap()
    };
    assert_eq!(session.by_ring(), ring, "{kind}: io_uring needs Linux 6.14 and fuse.enable_uring=1");
    println!("mounted");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    session.unmount().unwrap();
    session.wait().unwrap();
}

struct System {
    name: &'static str,
    mount: Mount,
    /// The file, by way of the page cache and past it.
    files: [File; 2],
    /// One that only grows.
    log: File,
}

impl System {
    fn new(name: &'static str, place: &Path) -> Self {
        let mount = Mount::new(name, place, VOLUME);
        let dir = &mount.dir;
        // Names that a null mount has anyway.
        let open = |flags| {
            OpenOptions::new().read(true).write(true).create(true).custom_flags(flags).open(dir.join("file00000"))
        };
        let files = [open(0).unwrap(), open(libc::O_DIRECT).unwrap()];
        let data = vec![7; LARGE];
        for at in (0..FILE).step_by(LARGE).cycle().take(FILLS * FILE as usize / LARGE) {
            files[0].write_all_at(&data, at).unwrap();
        }
        if !name.starts_with("null") {
            for n in 1..null::ENTRIES {
                File::create(dir.join(format!("file{n:05}"))).unwrap();
            }
        }
        files[0].sync_all().unwrap();
        let log = OpenOptions::new().append(true).create(true).open(dir.join("file00001")).unwrap();
        Self { name, mount, files, log }
    }
}

/// Memory for O_DIRECT.
#[repr(align(4096))]
struct Buffer([u8; LARGE]);

fn buffer() -> Box<Buffer> {
    // On the heap from the start: it is larger than some stacks.
    let zeroed = Box::<Buffer>::new_zeroed();
    // SAFETY: zeros are bytes.
    unsafe { zeroed.assume_init() }
}

/// The same places of a file each time, without order.
fn places(size: usize, count: usize, seed: u64) -> impl Iterator<Item = u64> {
    random_numbers(seed, FILE / size as u64).take(count).map(move |at| at * size as u64)
}

/// An operation: its name, number of threads, and repetitions of each thread.
struct Load {
    name: &'static str,
    count: usize,
    threads: usize,
    work: fn(&System, &mut Buffer, u64),
}

fn read(system: &System, buffer: &mut Buffer, direct: usize, size: usize, count: usize, seed: u64) {
    for at in places(size, count, seed) {
        system.files[direct].read_exact_at(&mut buffer.0[..size], at).unwrap();
    }
}

fn write(system: &System, buffer: &mut Buffer, direct: usize, size: usize, count: usize, seed: u64) {
    for at in places(size, count, seed) {
        system.files[direct].write_all_at(&buffer.0[..size], at).unwrap();
    }
}

/// Small records behind one another, and what makes them durable at the end.
fn append(system: &System, buffer: &Buffer, size: usize, sync: bool) {
    if !system.name.starts_with("null") {
        system.log.set_len(0).unwrap();
    }
    (0..APPENDS).for_each(|_| (&system.log).write_all(&buffer.0[..size]).unwrap());
    if sync {
        system.log.sync_all().unwrap();
    }
}

/// The kernel lets go of the file's pages, and reads them again.
fn read_cold(system: &System, buffer: &mut Buffer) {
    let fd = system.files[0].as_raw_fd();
    // SAFETY: advice about a file that is open.
    assert_eq!(unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    for at in 0..LARGES {
        system.files[0].read_exact_at(&mut buffer.0, (at * LARGE) as u64).unwrap();
    }
}

fn new_names(system: &System, seed: u64) -> impl Iterator<Item = PathBuf> {
    (0..NAMES).map(move |n| system.mount.dir.join(format!("new{seed}-{n}")))
}

fn create(system: &System, _: &mut Buffer, seed: u64) {
    new_names(system, seed).for_each(|path| drop(File::create_new(path).unwrap()));
}

fn remove(system: &System, _: &mut Buffer, seed: u64) {
    new_names(system, seed).for_each(|path| fs::remove_file(path).unwrap());
}

/// Asks the file system, not what the kernel remembers of it.
fn stat(system: &System, _: &mut Buffer, seed: u64) {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    for path in new_names(system, seed) {
        statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap();
    }
}

fn list(system: &System, _: &mut Buffer, _: u64) {
    assert!(fs::read_dir(&system.mount.dir).unwrap().count() >= null::ENTRIES);
}

fn open(system: &System, _: &mut Buffer, _: u64) {
    (0..NAMES).for_each(|n| drop(File::open(system.mount.dir.join(format!("file{:05}", n + 1))).unwrap()));
}

const LOADS: &[Load] = &[
    Load { name: "read 4 KiB, direct", count: SMALLS, threads: 1, work: |s, b, n| read(s, b, 1, SMALL, SMALLS, n) },
    Load { name: "read 1 MiB, direct", count: LARGES, threads: 1, work: |s, b, n| read(s, b, 1, LARGE, LARGES, n) },
    Load { name: "write 4 KiB, direct", count: SMALLS, threads: 1, work: |s, b, n| write(s, b, 1, SMALL, SMALLS, n) },
    Load { name: "write 1 MiB, direct", count: LARGES, threads: 1, work: |s, b, n| write(s, b, 1, LARGE, LARGES, n) },
    Load { name: "read 1 MiB, not cached yet", count: LARGES, threads: 1, work: |s, b, _| read_cold(s, b) },
    Load { name: "read 4 KiB, cached", count: SMALLS, threads: 1, work: |s, b, n| read(s, b, 0, SMALL, SMALLS, n) },
    Load { name: "read 1 MiB, cached", count: LARGES, threads: 1, work: |s, b, n| read(s, b, 0, LARGE, LARGES, n) },
    Load { name: "write 4 KiB, cached", count: SMALLS, threads: 1, work: |s, b, n| write(s, b, 0, SMALL, SMALLS, n) },
    Load { name: "write 1 MiB, cached", count: LARGES, threads: 1, work: |s, b, n| write(s, b, 0, LARGE, LARGES, n) },
    Load { name: "append 100 bytes", count: APPENDS, threads: 1, work: |s, b, _| append(s, b, 100, false) },
    Load { name: "append 100 bytes, and fsync", count: APPENDS, threads: 1, work: |s, b, _| append(s, b, 100, true) },
    Load { name: "append 4 KiB", count: APPENDS, threads: 1, work: |s, b, _| append(s, b, SMALL, false) },
    Load { name: "append 4 KiB, and fsync", count: APPENDS, threads: 1, work: |s, b, _| append(s, b, SMALL, true) },
    Load { name: "create and close", count: NAMES, threads: 1, work: create },
    Load { name: "stat, asked", count: NAMES, threads: 1, work: stat },
    Load { name: "unlink", count: NAMES, threads: 1, work: remove },
    Load { name: "open and close", count: NAMES, threads: 1, work: open },
    Load { name: "readdir, a name", count: null::ENTRIES, threads: 1, work: list },
    Load {
        name: "read 4 KiB, direct, 4 threads",
        count: SMALLS,
        threads: 4,
        work: |s, b, n| read(s, b, 1, SMALL, SMALLS, n),
    },
    Load {
        name: "read 4 KiB, direct, 8 threads",
        count: SMALLS,
        threads: 8,
        work: |s, b, n| read(s, b, 1, SMALL, SMALLS, n),
    },
    Load { name: "create and close, 4 threads", count: NAMES, threads: 4, work: create },
    Load { name: "unlink, 4 threads", count: NAMES, threads: 4, work: remove },
];

/// Time of an operation on the clock and of the processors, ns.
fn once(system: &System, load: &Load, round: u64) -> [f64; 2] {
    if load.name.ends_with(", cached") {
        let mut buffer = buffer();
        (0..FILE).step_by(LARGE).for_each(|at| system.files[0].read_exact_at(&mut buffer.0, at).unwrap());
    }
    let threads = load.threads as u64;
    let barrier = Barrier::new(load.threads + 1);
    let work = |thread| {
        let mut buffer = buffer();
        buffer.0.fill(thread as u8);
        barrier.wait(); // all are ready
        barrier.wait(); // the CPU time is taken
        let began = Instant::now();
        (load.work)(system, &mut buffer, round * 64 + thread + 1);
        (began, Instant::now())
    };
    let (cpu, times) = std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        barrier.wait();
        let cpu = system.mount.cpu_ns();
        barrier.wait();
        (cpu, workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>())
    });
    let cpu = system.mount.cpu_ns() - cpu;
    let (first, last) = (times.iter().map(|t| t.0).min().unwrap(), times.iter().map(|t| t.1).max().unwrap());
    let all = (load.count * load.threads) as f64;
    [(last - first).as_nanos() as f64 / all, cpu as f64 / all]
}

fn measure(place: &Path, rounds: u64, json: &Path, only: &str) {
    let loads: Vec<&Load> = LOADS.iter().filter(|load| load.name.contains(only)).collect();
    let names = SERVED.iter().map(|(name, ..)| *name).chain(["ext4", "tmpfs"]);
    let systems: Vec<System> = names.map(|name| System::new(name, place)).collect();
    let mut seen: BTreeMap<(usize, usize), Vec<[f64; 2]>> = BTreeMap::new();
    for round in 0..=rounds {
        for (l, load) in loads.iter().enumerate() {
            for turn in 0..systems.len() {
                let s = (turn + round as usize) % systems.len();
                let took = once(&systems[s], load, round);
                if round > 0 {
                    seen.entry((l, s)).or_default().push(took);
                }
            }
        }
    }
    println!("{}", heading());
    let mut records = Vec::new();
    for (l, load) in loads.iter().enumerate() {
        for (s, system) in systems.iter().enumerate() {
            let of = |which: usize| seen[&(l, s)].iter().map(|took| took[which]).collect::<Vec<_>>();
            let base = SERVED.iter().position(|(name, ..)| *name == system.name.replace("homenode", "null"));
            let ext4 = (system.name != "ext4").then(|| systems.iter().position(|other| other.name == "ext4")).flatten();
            let to_ext4 = ext4.map(|ext4| {
                let ratios = seen[&(l, s)].iter().zip(&seen[&(l, ext4)]).map(|(took, ext4)| took[0] / ext4[0]);
                quartiles(ratios.collect())
            });
            let ratio = |which: usize| {
                let base = base.filter(|base| *base != s)?;
                let ratios = seen[&(l, s)].iter().zip(&seen[&(l, base)]).map(|(took, null)| took[which] / null[which]);
                Some(quartiles(ratios.collect()))
            };
            let (clock, cpu) = (quartiles(of(0)), quartiles(of(1)));
            println!("{}", row(load.name, system.name, [clock, cpu], [ratio(0), ratio(1), to_ext4]));
            records.push(serde_json::json!({
                "operation": load.name, "system": system.name, "threads": load.threads, "rounds": rounds,
                "ns": clock, "cpu_ns": cpu, "to_null": ratio(0), "cpu_to_null": ratio(1), "to_ext4": to_ext4,
            }));
        }
    }
    println!("\n| who is told of a read of 4 KiB, without the kernel | ns | more |\n|---|---:|---:|");
    for (who, ns, more) in &told(place, rounds) {
        println!("| {who} | {ns:.0} | {more:.0} |");
        records.push(serde_json::json!({ "told": who, "ns": ns, "more_ns": more, "rounds": rounds }));
    }
    fs::write(json, serde_json::to_string_pretty(&records).unwrap()).unwrap();
}

/// What it costs to tell who reads, within one process and without the kernel: for each way, ns of
/// a 4 KiB read, and how much more than without; medians of alternating batches.
fn told(place: &Path, rounds: u64) -> Vec<(&'static str, f64, f64)> {
    const WAYS: [&str; 3] = ["nobody", "no policy: the thread", "a policy: the thread, its node and its file"];
    const BATCHES: usize = 20;
    let callers = Callers::start(topology::sysfs::read(Path::new("/sys")).unwrap()).unwrap();
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    callers.enter(tid, || ());
    callers.look(); // from now on it is known where this thread runs
    let volumes = ["told.region", "watched.region"].map(|name| {
        let volume = volume(&place.join(name), VOLUME);
        let new = ::fs::NewFile { mode: libc::S_IFREG | 0o600, ..::fs::NewFile::default() };
        let ino = volume.create(::fs::Ino::ROOT, b"f", new).unwrap().ino;
        (0..FILE).step_by(LARGE).for_each(|at| volume.write(ino, at, &vec![7; LARGE]).unwrap());
        (volume, ino)
    });
    volumes[1].0.watch_files();
    let mut buffer = buffer();
    let mut batch = |way: usize, seed| {
        let (volume, ino) = &volumes[way / 2];
        let mut read = |at| assert_eq!(volume.read(*ino, at, &mut buffer.0[..SMALL]).unwrap(), SMALL);
        let began = Instant::now();
        for at in places(SMALL, SMALLS, seed) {
            match way {
                0 => read(at),
                1 => ::fs::as_thread(tid, || read(at)),
                _ => callers.enter(tid, || read(at)),
            }
        }
        began.elapsed().as_nanos() as f64 / SMALLS as f64
    };
    let mut seen = WAYS.map(|_| Vec::new());
    for n in 0..rounds as usize * BATCHES {
        for turn in 0..WAYS.len() {
            let way = (turn + n) % WAYS.len();
            seen[way].push(batch(way, (n * WAYS.len() + way + 1) as u64)); // each at places of its own
        }
    }
    let more = |way: usize| quartiles(seen[way].iter().zip(&seen[0]).map(|(ns, bare)| ns - bare).collect())[1];
    (0..WAYS.len()).map(|way| (WAYS[way], quartiles(seen[way].clone())[1], more(way))).collect()
}

fn heading() -> &'static str {
    "| operation | on | µs (quartiles) | CPU µs | to null (quartiles) | CPU to null | to ext4 |\n|---|---|---:|---:|---:|---:|---:|"
}

fn row(operation: &str, system: &str, times: [[f64; 3]; 2], ratios: [Option<[f64; 3]>; 3]) -> String {
    let ratio = |of: Option<[f64; 3]>| match of {
        Some([low, middle, high]) => format!("{middle:.2} ({low:.2} to {high:.2})"),
        None => "–".to_owned(),
    };
    let [[low, middle, high], [_, cpu, _]] = times.map(|all| all.map(|ns| ns / 1000.0));
    let [clock, cpu_ratio, to_ext4] = ratios.map(ratio);
    format!(
        "| {operation} | {system} | {middle:.2} ({low:.2} to {high:.2}) | {cpu:.2} | {clock} | {cpu_ratio} | {to_ext4} |"
    )
}
