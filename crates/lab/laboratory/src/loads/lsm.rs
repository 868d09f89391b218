//! RocksDB's `db_bench`: puts and gets of a log-structured merge tree.
//!
//! **Problem.** RocksDB's own threads cannot run on the clock.
//!
//! **Approach.** What of it reads and writes files: a log, memtables, a thread that flushes them to
//! level 0, and one that compacts, with RocksDB's defaults for sizes, triggers and stalls. Tables
//! hold real keys, so that what a get, a flush and a compaction read and write follows from them. A
//! get looks at each table of level 0 whose range has its key, then at one of each level: without
//! Bloom filters, `db_bench`'s default, each costs a block. Indexes are in memory. Threads that put
//! at the same time write one piece of the log together. Tables and levels are smaller as the data
//! is, so there are as many as in the paper.
//!
//! **Sources.** Bytes, calls and CPU are of one run of `db_bench` 7.8.3 with `--num=50000
//! --value_size=4096 --compression_type=none` on tmpfs, its sizes divided by 200:
//!
//! * `readrandom` after `fillseq`: 199,963 blocks for 200,000 gets, 4,128 bytes each.
//! * `overwrite` of 25,000 records at 2.5 MB/s, so that compactions keep pace: for each put 4,128
//!   bytes of log, 4,160 of level 0, and 44,010 read and 41,893 written by compactions, which read
//!   block by block. (At 10 MB/s 40,005 and 37,883: level 0 waits, and more is merged at once.)
//! * `readrandom` after that, with three tables in level 0: 5.74 blocks for each get.
//! * CPU seconds in user mode: 1.9 µs for each block of a get beyond the first, 1.7 ns for each
//!   byte that a flush or compaction writes.
//!
//! **Limits.** No block cache: it has 1 % of the gets there. Values are 4 KiB. Threads of `fillseq`
//! go hand in hand, so a memtable has each key once from each of them and a flush writes it once;
//! on two CPUs the real ones drift apart, and flush all (4,092 bytes a put). What a program does
//! for a get with one block ([`GET_S`]) and for a put ([`PUT_S`]) is a guess.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::PoisonError;

use clock::sync::{Condvar, Mutex, MutexGuard};
use fs::format::Ino;
use serde::Deserialize;

use super::Begin;
use crate::thread::{File, Lab, Thread};

/// CPU seconds of a get, its first block's included, but not the file system's.
pub const GET_S: f64 = 5e-6;
/// CPU seconds of each further block.
pub const BLOCK_S: f64 = 1.9e-6;
/// CPU seconds of a put, and the part of it under the lock of the log.
pub const PUT_S: f64 = 3e-6;
/// See [`PUT_S`].
pub const LOCK_S: f64 = 0.5e-6;
/// CPU seconds of each byte that a flush or compaction writes.
pub const WRITE_S: f64 = 1.7e-9;
/// Bytes of a record in the log.
pub const LOGGED: u64 = 4128;
/// Bytes of a block, which has one record.
pub const BLOCK: u64 = 4128;
/// Bytes of a record in a table, with its part of the index.
pub const STORED: u64 = 4152;

/// `write_buffer_size` and `target_file_size_base`.
const TABLE: f64 = 67_108_864.0;
/// `max_bytes_for_level_base`.
const LEVEL_1: f64 = 268_435_456.0;
/// `max_bytes_for_level_multiplier`.
const GROWTH: usize = 10;
const LEVELS: usize = 7;
/// `level0_file_num_compaction_trigger`, `level0_slowdown_writes_trigger` and
/// `level0_stop_writes_trigger`.
const COMPACT: usize = 4;
const SLOW: usize = 20;
const STOP: usize = 36;
/// `max_write_buffer_number`: so many full ones stop all puts.
const MEMTABLES: usize = 2;
/// `delayed_write_rate` where nothing is set, in bytes/s.
const DELAYED: f64 = 16e6;
/// `writable_file_max_buffer_size`.
const BUFFER: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Benchmark {
    /// Puts in key order into an empty database. As in `db_bench`, each thread puts all keys.
    Fillseq,
    /// Gets of random keys.
    Readrandom,
    /// The same beside one thread that puts random keys and does not count.
    Readwhilewriting,
    /// Puts of random keys.
    Overwrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub benchmark: Benchmark,
    /// Threads, the one that puts beside gets included.
    pub threads: u32,
    /// Keys, in the paper.
    pub keys: f64,
    /// Bytes/s of each thread that puts; by default as fast as it can.
    #[serde(default)]
    pub put_bw: Option<f64>,
}

impl Load {
    fn keys(&self, less: f64) -> u32 {
        (self.keys / less).max(1.0) as u32
    }

    /// Bytes of its data: old tables stay until a compaction is done, and puts in key order may
    /// come more than once round.
    pub fn bytes(&self, less: f64) -> f64 {
        f64::from(self.keys(less)) * STORED as f64 * if self.benchmark == Benchmark::Readrandom { 1.0 } else { 3.0 }
    }
}

/// A table: rising keys, a block each.
#[derive(Debug)]
struct Table {
    file: File,
    name: String,
    keys: Vec<u32>,
}

impl Table {
    fn range(&self) -> (u32, u32) {
        (self.keys.first().copied().unwrap_or_default(), self.keys.last().copied().unwrap_or_default())
    }

    fn overlaps(&self, (first, last): (u32, u32)) -> bool {
        let own = self.range();
        own.0 <= last && first <= own.1
    }

    fn bytes(&self) -> u64 {
        self.keys.len() as u64 * STORED
    }
}

type Tables = Vec<Rc<Table>>;

/// Level 0 has the newest table first, the others rising ranges.
type Levels = Vec<Tables>;

/// A memtable, its records and the log that has them.
#[derive(Default)]
struct Memtable {
    keys: BTreeSet<u32>,
    records: u64,
    log: Option<(File, String)>,
}

struct State {
    active: Memtable,
    full: Vec<Memtable>,
    levels: Rc<Levels>,
    /// What no version has any more, until no get reads it.
    old: Vec<Rc<Table>>,
    /// Puts that the next one at the log writes.
    pending: Vec<u32>,
    put: u64,
    names: u64,
}

/// What a database has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Gets, and blocks that they read.
    pub gets: (u64, u64),
    /// Puts, and bytes of the log.
    pub puts: (u64, u64),
    /// Bytes that flushes wrote.
    pub flushed: u64,
    /// Bytes that compactions read and wrote.
    pub compacted: (u64, u64),
}

pub struct Db {
    home: Ino,
    state: Mutex<State>,
    /// Puts whose records are in the log.
    log: Mutex<u64>,
    to_flush: Condvar,
    to_compact: Condvar,
    room: Condvar,
    keys: u32,
    table: u64,
    level_1: u64,
    counts: std::cell::Cell<Counts>,
}

/// Fills a database; what starts its threads.
///
/// # Errors
///
/// The volume is full.
pub fn fill(load: &Load, lab: &Rc<Lab>, home: Ino, less: f64, at_first: fs::Placement) -> fs::Result<Begin> {
    let (db, load) = (Db::new(load, lab, home, less, at_first)?, *load);
    Ok(Box::new(move |lab| db.start(lab, load)))
}

impl Db {
    /// A database as `fillseq` leaves it: each level is full but the last, the lowest keys deepest.
    ///
    /// # Errors
    ///
    /// The volume is full.
    pub fn new(load: &Load, lab: &Rc<Lab>, home: Ino, less: f64, at_first: fs::Placement) -> fs::Result<Rc<Self>> {
        let (table, level_1) = ((TABLE / less) as u64, (LEVEL_1 / less) as u64);
        let (keys, each) = (load.keys(less), (table / STORED).max(1) as u32);
        let mut levels: Levels = vec![Vec::new(); LEVELS];
        let (mut end, mut names) = (if load.benchmark == Benchmark::Fillseq { 0 } else { keys }, 0);
        for (depth, level) in levels.iter_mut().enumerate().skip(1) {
            let mut room = if depth + 1 < LEVELS { level_1 * GROWTH.pow(depth as u32 - 1) as u64 } else { u64::MAX };
            while end > 0 && room >= table {
                let first = end.saturating_sub(each);
                let (name, keys) = (format!("{names}.sst"), (first..end).collect::<Vec<_>>());
                let file = lab.fill(home, &name, keys.len() as u64 * STORED, at_first)?;
                level.push(Rc::new(Table { file, name, keys }));
                (end, names, room) = (first, names + 1, room - table);
            }
            level.reverse();
        }
        let (active, full, old, pending) = (Memtable::default(), Vec::new(), Vec::new(), Vec::new());
        let state = State { active, full, levels: Rc::new(levels), old, pending, put: 0, names };
        Ok(Rc::new(Self {
            home,
            state: Mutex::new(state),
            log: Mutex::new(0),
            to_flush: Condvar::new(),
            to_compact: Condvar::new(),
            room: Condvar::new(),
            keys,
            table,
            level_1,
            counts: std::cell::Cell::default(),
        }))
    }

    /// Starts its threads.
    pub fn start(self: Rc<Self>, lab: &Rc<Lab>, load: Load) {
        for own in 0..load.threads {
            let db = Rc::clone(&self);
            lab.spawn(move |t| {
                let mut next = 0;
                let puts = match load.benchmark {
                    Benchmark::Fillseq | Benchmark::Overwrite => true,
                    Benchmark::Readrandom => false,
                    Benchmark::Readwhilewriting => own == 0,
                };
                let (began, mut done) = (t.now(), 0);
                while !t.is_over() {
                    let random = t.random(u64::from(db.keys)) as u32;
                    match puts {
                        true if load.benchmark == Benchmark::Fillseq => db.put(t, (next % u64::from(db.keys)) as u32),
                        true => db.put(t, random),
                        false => db.get(t, random),
                    }
                    (next, done) = (next + 1, done + LOGGED);
                    t.count(u64::from(!puts || load.benchmark != Benchmark::Readwhilewriting));
                    if let Some(bw) = load.put_bw.filter(|_| puts) {
                        t.sleep((began + done as f64 / bw - t.now()).max(0.0));
                    }
                }
                db.ends();
            });
        }
        let db = Rc::clone(&self);
        lab.spawn(move |t| {
            db.flush(t);
            db.ends();
        });
        lab.spawn(move |t| {
            self.compact(t);
            self.ends();
        });
    }

    /// Threads that wait for work or room see that the run is over.
    fn ends(&self) {
        [&self.to_flush, &self.to_compact, &self.room].into_iter().for_each(Condvar::notify_all);
    }

    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Tables of level 0.
    pub fn newest(&self) -> usize {
        self.state().levels.first().map_or(0, Vec::len)
    }

    fn note(&self, what: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        what(&mut counts);
        self.counts.set(counts);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, t: &mut Thread, key: u32) {
        t.cpu(GET_S);
        self.note(|counts| counts.gets.0 += 1);
        let levels = {
            let state = self.state();
            if state.active.keys.contains(&key) || state.full.iter().any(|full| full.keys.contains(&key)) {
                return;
            }
            Rc::clone(&state.levels)
        };
        let newest = levels.first().into_iter().flatten().filter(|table| table.overlaps((key, key)));
        let below = levels.iter().skip(1).filter_map(|level| {
            let at = level.partition_point(|table| table.range().1 < key);
            level.get(at).filter(|table| table.overlaps((key, key)))
        });
        for (number, table) in newest.chain(below).enumerate() {
            if number > 0 {
                t.cpu(BLOCK_S);
            }
            let found = table.keys.binary_search(&key);
            let at = found.unwrap_or_else(|next| next) as u64;
            t.read(table.file, at * BLOCK, BLOCK as usize);
            self.note(|counts| counts.gets.1 += 1);
            if found.is_ok() {
                return;
            }
        }
    }

    pub fn put(&self, t: &mut Thread, key: u32) {
        t.cpu(PUT_S - LOCK_S);
        let mine = {
            let mut state = self.state();
            state.pending.push(key);
            state.put += 1;
            state.put
        };
        let mut logged = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // Another put has written this one's record with its own.
        if *logged >= mine {
            return;
        }
        self.stall(t);
        let (group, log) = {
            let mut state = self.state();
            (std::mem::take(&mut state.pending), state.active.log.clone())
        };
        let log = log.map(|(file, _)| file).or_else(|| self.new_log(t));
        t.hold(LOCK_S);
        let bytes = group.len() as u64 * LOGGED;
        if let Some(file) = log {
            t.append(file, bytes as usize);
        }
        *logged += group.len() as u64;
        self.note(|counts| counts.puts = (counts.puts.0 + group.len() as u64, counts.puts.1 + bytes));
        let mut state = self.state();
        state.active.records += group.len() as u64;
        state.active.keys.extend(group);
        if state.active.records * LOGGED >= self.table {
            let full = std::mem::take(&mut state.active);
            state.full.push(full);
            self.to_flush.notify_one();
        }
    }

    fn new_log(&self, t: &mut Thread) -> Option<File> {
        let name = {
            let mut state = self.state();
            state.names += 1;
            format!("{}.log", state.names)
        };
        let file = t.create(self.home, &name)?;
        self.state().active.log = Some((file, name));
        Some(file)
    }

    /// Holds a put back while there are too many memtables, or tables in level 0.
    fn stall(&self, t: &mut Thread) {
        let newest = loop {
            let state = self.state();
            let newest = state.levels.first().map_or(0, Vec::len);
            if t.is_over() || state.full.len() < MEMTABLES && newest < STOP {
                break newest;
            }
            drop(self.room.wait(state).unwrap_or_else(PoisonError::into_inner));
        };
        if newest >= SLOW {
            let bytes = self.state().pending.len() as u64 * LOGGED;
            t.sleep(bytes as f64 / DELAYED);
        }
    }

    /// Writes full memtables, all that there are, to a table of level 0.
    fn flush(&self, t: &mut Thread) {
        loop {
            let (keys, count) = {
                let mut state = self.state();
                while state.full.is_empty() {
                    if t.is_over() {
                        return;
                    }
                    state = self.to_flush.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                let all: BTreeSet<u32> = state.full.iter().flat_map(|full| full.keys.iter().copied()).collect();
                (all.into_iter().collect::<Vec<_>>(), state.full.len())
            };
            let Some(table) = self.write_table(t, keys) else { return };
            self.note(|counts| counts.flushed += table.bytes());
            let logs: Vec<_> = {
                let mut state = self.state();
                if let Some(newest) = Rc::make_mut(&mut state.levels).first_mut() {
                    newest.insert(0, Rc::new(table));
                }
                state.full.drain(..count).filter_map(|full| full.log).collect()
            };
            self.to_compact.notify_one();
            self.room.notify_all();
            for (file, name) in logs {
                t.close(file);
                t.remove(self.home, &name);
            }
        }
    }

    fn write_table(&self, t: &mut Thread, keys: Vec<u32>) -> Option<Table> {
        let name = {
            let mut state = self.state();
            state.names += 1;
            format!("{}.sst", state.names)
        };
        let file = t.create(self.home, &name)?;
        let mut left = keys.len() as u64 * STORED;
        while left > 0 {
            let part = left.min(BUFFER);
            t.cpu(part as f64 * WRITE_S);
            t.append(file, part as usize);
            left -= part;
        }
        t.close(file);
        Some(Table { file, name, keys })
    }

    /// What a level may hold.
    fn most(&self, depth: usize) -> u64 {
        self.level_1.saturating_mul(GROWTH.pow(depth.saturating_sub(1) as u32) as u64)
    }

    /// The level that is fullest, what of it goes down, and what that meets there.
    fn pick(&self, levels: &Levels) -> Option<(usize, Tables, Tables)> {
        let bytes = |level: &Tables| level.iter().map(|table| table.bytes()).sum::<u64>() as f64;
        let score = |(depth, level): (usize, &Tables)| match depth {
            0 => (level.len() as f64 / COMPACT as f64)
                .max(bytes(level) / self.most(1) as f64 * f64::from(level.len() >= COMPACT)),
            _ => bytes(level) / self.most(depth) as f64,
        };
        let all = levels.iter().take(LEVELS - 1).enumerate().map(|at| (at.0, score(at)));
        let (depth, score) = all.reduce(|best, at| if at.1 > best.1 { at } else { best })?;
        if score < 1.0 {
            return None;
        }
        let below = levels.get(depth + 1)?;
        let meets = |from: &[Rc<Table>]| -> Tables {
            let first = from.iter().map(|table| table.range().0).min().unwrap_or_default();
            let last = from.iter().map(|table| table.range().1).max().unwrap_or_default();
            below.iter().filter(|table| table.overlaps((first, last))).cloned().collect()
        };
        let level = levels.get(depth)?;
        if depth == 0 {
            return Some((depth, level.clone(), meets(level)));
        }
        // `kMinOverlappingRatio`.
        let least = |table: &&Rc<Table>| {
            let overlap: u64 = meets(std::slice::from_ref(table)).iter().map(|table| table.bytes()).sum();
            overlap * 1024 / table.bytes().max(1)
        };
        let table = level.iter().min_by_key(least)?;
        Some((depth, vec![Rc::clone(table)], meets(std::slice::from_ref(table))))
    }

    /// Merges what is too much of a level into the next one, again and again.
    fn compact(&self, t: &mut Thread) {
        loop {
            let (depth, from, into) = {
                let mut state = self.state();
                loop {
                    if t.is_over() {
                        return;
                    }
                    if let Some(picked) = self.pick(&state.levels) {
                        break picked;
                    }
                    state = self.to_compact.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let alone =
                |(at, table): (usize, &Rc<Table>)| from.iter().skip(at + 1).all(|other| !other.overlaps(table.range()));
            let made = match into.is_empty() && from.iter().enumerate().all(alone) {
                // Nothing to merge: they only change their level.
                true => from.clone(),
                false => {
                    let Some(made) = self.merge(t, depth, from.iter().chain(&into)) else { return };
                    made
                }
            };
            let gone: Tables = {
                let mut state = self.state();
                let levels = Rc::make_mut(&mut state.levels);
                let keep = |table: &Rc<Table>, of: &[Rc<Table>]| !of.iter().any(|old| Rc::ptr_eq(old, table));
                if let Some(level) = levels.get_mut(depth) {
                    level.retain(|table| keep(table, &from));
                }
                if let Some(level) = levels.get_mut(depth + 1) {
                    level.retain(|table| keep(table, &into));
                    level.extend(made.iter().cloned());
                    level.sort_by_key(|table| table.range());
                }
                let old = from.into_iter().chain(into).filter(|table| keep(table, &made));
                state.old.extend(old);
                // Gets may read some of them still.
                let (gone, old) =
                    std::mem::take(&mut state.old).into_iter().partition(|old| Rc::strong_count(old) == 1);
                state.old = old;
                gone
            };
            self.room.notify_all();
            gone.iter().for_each(|table| _ = t.remove(self.home, &table.name));
        }
    }

    /// A new table begins where one of the level below the next ends, once it is half full and more
    /// so with each table that it spans already, or twice as large as it should be
    /// (`level_compaction_dynamic_file_size`).
    fn merge<'a>(&self, t: &mut Thread, depth: usize, tables: impl Iterator<Item = &'a Rc<Table>>) -> Option<Tables> {
        let levels = Rc::clone(&self.state().levels);
        let ends: Vec<u32> = levels.get(depth + 2).into_iter().flatten().map(|table| table.range().1).collect();
        let spans = |first: u32, last: u32| {
            (ends.partition_point(|end| *end < last) - ends.partition_point(|end| *end < first)) as u64
        };
        let is_full = |keys: &[u32], next: u32| {
            let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return false };
            let (bytes, spanned) = (keys.len() as u64 * STORED, spans(*first, next));
            let ends_here = spans(*last, next) > 0 && 100 * bytes >= self.table * (50 + 5 * spanned.min(8));
            bytes >= 2 * self.table || ends_here
        };
        let mut sources: Vec<(u32, File, u64)> = Vec::new();
        for table in tables {
            sources.extend(table.keys.iter().enumerate().map(|(at, key)| (*key, table.file, at as u64 * BLOCK)));
        }
        sources.sort_by_key(|(key, ..)| *key);
        let (mut made, mut keys) = (Vec::new(), Vec::new());
        let mut all = sources.into_iter().peekable();
        while let Some((key, file, at)) = all.next() {
            if t.is_over() {
                return None;
            }
            t.read(file, at, BLOCK as usize);
            self.note(|counts| counts.compacted.0 += BLOCK);
            if all.peek().is_none_or(|next| next.0 != key) {
                keys.push(key);
            }
            if !keys.is_empty() && all.peek().is_none_or(|next| next.0 != key && is_full(&keys, next.0)) {
                let table = self.write_table(t, std::mem::take(&mut keys))?;
                self.note(|counts| counts.compacted.1 += table.bytes());
                made.push(Rc::new(table));
            }
        }
        Some(made)
    }
}
