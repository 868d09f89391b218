//! SQLite on a volume of its own process, beside SQLite on a mount of such a volume, on tmpfs and
//! on ext4.
//!
//! ```text
//! homenode-bench sqlite DIR ROUNDS JSON      DIR in memory: for the regions, the image of ext4 and the mount points
//! ```
//!
//! **Approach.** The same program, library and statements each way; only the files are reached
//! differently: through `sqlite::register`, or through SQLite's own VFS and the kernel. In each
//! round all ways take turns, each with a new database. A figure is a median over rounds, a ratio
//! the median of the rounds' ratios. CPU time is that of the program and the server. Each way ends
//! with `PRAGMA integrity_check` and the same rows, and each volume with a check that finds
//! nothing.
//!
//! **Limits.** One thread. The database fits in the kernel's page cache. CPU time of kernel threads
//! (the loop device under ext4, io_uring's) is not counted.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ::fs::{Ino, NewFile, Volume, fsck};
use mount::{Cache, Options, Unmounted};
use rusqlite::{Connection, OpenFlags};

use crate::systems::{self, Mount, medium, region};
use crate::{Result, quartiles, random_numbers};

/// Bytes of a volume and of ext4's image.
const VOLUME: u64 = 96 << 20;
const ROWS: u64 = 100_000;
const ROWS_OF_A_TRANSACTION: u64 = 1000;
const VALUE: usize = 100;
const READS: u64 = 20_000;
const UPDATES: u64 = 2000;
/// Pages that SQLite keeps while it reads: the upper levels of the tree, not its leaves.
const FEW_PAGES: u32 = 32;

/// Ways to the files; of a mount, its cache and whether requests come by io_uring.
const WAYS: &[(&str, Option<(Cache, bool)>)] = &[
    ("library", None),
    ("mount", Some((Cache::Kernel, false))),
    ("mount, io_uring", Some((Cache::Kernel, true))),
    ("mount, cache=direct", Some((Cache::Direct, false))),
    ("mount, cache=direct, io_uring", Some((Cache::Direct, true))),
    ("tmpfs", None),
    ("ext4", None),
];

pub fn main(args: &[&str]) -> Result<()> {
    match *args {
        ["--serve", way, dir] => serve(way, Path::new(dir)),
        [dir, rounds, json] => measure(Path::new(dir), rounds.parse()?, Path::new(json)),
        _ => return Err("usage: sqlite DIR ROUNDS JSON".into()),
    }
    Ok(())
}

/// A new volume, of which each block was used: memory that is used for the first time costs more.
fn volume(region: &Path) -> Volume {
    let volume = systems::volume(region, VOLUME);
    let fill = volume.create(Ino::ROOT, b"fill", NewFile { mode: 0o600, ..NewFile::default() }).unwrap().ino;
    while volume.append(fill, &vec![7; 1 << 20]).is_ok() {}
    volume.unlink(Ino::ROOT, b"fill").unwrap();
    volume
}

/// Fails if a volume that was unmounted has damage or anything left over.
fn check(region: &Path) {
    let report = fsck::check(medium(region)).unwrap();
    let sound = report.damage.is_empty() && report.orphans.is_empty() && report.clean;
    assert!(sound, "{}: {report:?}", region.display());
}

/// Serves until standard input ends.
fn serve(way: &str, place: &Path) {
    let (cache, ring) = WAYS.iter().find(|(name, _)| *name == way).unwrap().1.unwrap();
    let options = Options { source: "bench".to_owned(), cache, ring, ..Options::default() };
    let volume = Arc::new(volume(&region(place, way)));
    let session = mount::serve(volume.clone(), &place.join(way), &options).unwrap();
    assert_eq!(session.by_ring(), ring, "{way}");
    println!("mounted");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    assert!(session.unmount().unwrap() == Unmounted::Done, "{way} is in use");
    session.wait().unwrap();
    drop(session);
    Arc::into_inner(volume).unwrap().unmount().unwrap();
    check(&region(place, way));
}

/// A way to the database.
struct Way {
    name: &'static str,
    files: Files,
}

/// What has the database.
enum Files {
    Library(Arc<Volume>),
    Mounted(Mount),
}

impl Way {
    fn new(name: &'static str, place: &Path) -> Self {
        if name != "library" {
            return Self { name, files: Files::Mounted(Mount::new("sqlite", name, place, VOLUME)) };
        }
        let volume = Arc::new(volume(&region(place, name)));
        ::sqlite::register(name, &volume).unwrap();
        Self { name, files: Files::Library(volume) }
    }

    fn connect(&self, pragmas: &str) -> Connection {
        let database = match &self.files {
            Files::Library(_) => Connection::open_with_flags_and_vfs("/db", OpenFlags::default(), self.name),
            Files::Mounted(mount) => Connection::open(mount.dir.join("db")),
        };
        let database = database.unwrap();
        database.execute_batch(&format!("{pragmas}; PRAGMA synchronous = FULL")).unwrap();
        database
    }

    fn remove(&self) {
        match &self.files {
            Files::Library(volume) => volume.unlink(Ino::ROOT, b"db").unwrap(),
            Files::Mounted(mount) => fs::remove_file(mount.dir.join("db")).unwrap(),
        }
    }

    /// CPU time until now, ns.
    fn cpu(&self) -> u64 {
        match &self.files {
            Files::Library(_) => systems::cpu_ns(None),
            Files::Mounted(mount) => mount.cpu_ns(),
        }
    }

    /// All files are closed.
    fn end(self, place: &Path) {
        match self.files {
            Files::Library(volume) => {
                Arc::into_inner(volume).unwrap().unmount().unwrap();
                check(&region(place, self.name));
            }
            Files::Mounted(mount) => mount.end(),
        }
    }
}

/// The same keys each time, in no order.
fn keys(count: u64, seed: u64) -> impl Iterator<Item = u64> {
    random_numbers(seed, ROWS).take(count as usize)
}

/// What a row has after so many changes.
fn value(key: u64, change: u64) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    for (at, byte) in value.iter_mut().enumerate() {
        *byte = (key.wrapping_mul(31) + change.wrapping_mul(17) + at as u64) as u8;
    }
    value
}

fn load(database: &Connection) {
    database.execute_batch("CREATE TABLE t (key INTEGER PRIMARY KEY, value BLOB NOT NULL)").unwrap();
    let mut insert = database.prepare("INSERT INTO t VALUES (?1, ?2)").unwrap();
    for first in (0..ROWS).step_by(ROWS_OF_A_TRANSACTION as usize) {
        database.execute_batch("BEGIN").unwrap();
        for key in first..first + ROWS_OF_A_TRANSACTION {
            insert.execute((key as i64, &value(key, 0)[..])).unwrap();
        }
        database.execute_batch("COMMIT").unwrap();
    }
}

fn read(database: &Connection) {
    let mut select = database.prepare("SELECT value FROM t WHERE key = ?1").unwrap();
    for key in keys(READS, 1) {
        let right = select.query_row([key as i64], |row| Ok(*row.get_ref(0)?.as_blob()? == value(key, 0)));
        assert!(right.unwrap());
    }
}

fn read_in_one_transaction(database: &Connection) {
    database.execute_batch("BEGIN").unwrap();
    read(database);
    database.execute_batch("COMMIT").unwrap();
}

fn update(database: &Connection, seed: u64) {
    let mut update = database.prepare("UPDATE t SET value = ?2 WHERE key = ?1").unwrap();
    for (change, key) in (1..).zip(keys(UPDATES, seed)) {
        assert_eq!(update.execute((key as i64, &value(key, change)[..])).unwrap(), 1);
    }
}

/// What is measured: its name, how often it is done, with which settings.
type Load = (&'static str, u64, String, fn(&Connection));

fn loads() -> Vec<Load> {
    let few = format!("PRAGMA cache_size = {FEW_PAGES}");
    let log = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL".to_owned();
    vec![
        ("load, a row", ROWS, String::new(), load),
        ("read a row, all in one transaction", READS, few.clone(), read_in_one_transaction),
        ("read a row", READS, few.clone(), read),
        ("change a row, journal", UPDATES, few, |database| update(database, 2)),
        ("change a row, write-ahead log", UPDATES, log, |database| update(database, 3)),
    ]
}

/// One number for all rows (FNV-1a), after a look at the database as a whole.
fn rows(database: &Connection) -> u64 {
    let whole: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(whole, "ok");
    let (mut sum, mut count) = (0xcbf2_9ce4_8422_2325_u64, 0);
    let mut select = database.prepare("SELECT key, value FROM t ORDER BY key").unwrap();
    let mut all = select.query([]).unwrap();
    while let Some(row) = all.next().unwrap() {
        let key = row.get_ref(0).unwrap().as_i64().unwrap().to_le_bytes();
        for byte in key.iter().chain(row.get_ref(1).unwrap().as_blob().unwrap()) {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        count += 1;
    }
    assert_eq!(count, ROWS);
    sum
}

fn measure(place: &Path, rounds: usize, json: &Path) {
    let ring = fs::read("/sys/module/fuse/parameters/enable_uring").is_ok_and(|on| on.starts_with(b"Y"));
    let named = WAYS.iter().filter(|(_, mount)| ring || !mount.is_some_and(|(_, ring)| ring));
    let ways: Vec<Way> = named.map(|(name, _)| Way::new(name, place)).collect();
    let (loads, mut sums) = (loads(), Vec::new());
    // For each load and way, for each round: time on the clock and of processors, ns.
    let mut seen: BTreeMap<(usize, usize), Vec<[f64; 2]>> = BTreeMap::new();
    for round in 0..=rounds {
        for turn in 0..ways.len() {
            let w = (turn + round) % ways.len();
            for (l, (_, count, pragmas, work)) in loads.iter().enumerate() {
                let database = ways[w].connect(pragmas);
                let (cpu, began) = (ways[w].cpu(), Instant::now());
                work(&database);
                let took = [began.elapsed().as_nanos() as u64, ways[w].cpu() - cpu];
                database.close().unwrap();
                // The first round is for what is done once.
                if round > 0 {
                    seen.entry((l, w)).or_default().push(took.map(|ns| ns as f64 / *count as f64));
                }
            }
            // A database with a write-ahead log stays one.
            let database = ways[w].connect("PRAGMA locking_mode = EXCLUSIVE");
            sums.push(rows(&database));
            database.close().unwrap();
            ways[w].remove();
        }
    }
    assert!(sums.windows(2).all(|two| two[0] == two[1]), "rows differ: {sums:?}");
    println!("| operation | by | µs (quartiles) | CPU µs | to the library (quartiles) | CPU to the library |");
    println!("|---|---|---:|---:|---:|---:|");
    let mut records = Vec::new();
    for (l, (load, ..)) in loads.iter().enumerate() {
        for (w, way) in ways.iter().enumerate() {
            let of = |which: usize| quartiles(seen[&(l, w)].iter().map(|took| took[which]).collect());
            let to = |which: usize| {
                quartiles(
                    seen[&(l, w)].iter().zip(&seen[&(l, 0)]).map(|(took, own)| took[which] / own[which]).collect(),
                )
            };
            let [[low, middle, high], [_, cpu, _]] = [of(0), of(1)].map(|all| all.map(|ns| ns / 1000.0));
            let ([from, ratio, upto], cpu_ratio) = (to(0), to(1)[1]);
            println!(
                "| {load} | {} | {middle:.2} ({low:.2} to {high:.2}) | {cpu:.2} | {ratio:.2} ({from:.2} to {upto:.2}) | {cpu_ratio:.2} |",
                way.name
            );
            records.push(serde_json::json!({
                "operation": load, "by": way.name, "rounds": rounds,
                "ns": of(0), "cpu_ns": of(1), "to_library": to(0), "cpu_to_library": to(1),
            }));
        }
    }
    println!("\nSQLite {}; each way ended with the rows {:016x}", rusqlite::version(), sums[0]);
    ways.into_iter().for_each(|way| way.end(place));
    fs::write(json, serde_json::to_string_pretty(&records).unwrap()).unwrap();
}
