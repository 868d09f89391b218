//! filebench's personalities, flow-op by flow-op, as published with filebench 1.4.9.
//!
//! **Approach.** A thread goes through the round of its personality. Each flow-op takes
//! [`FLOWOP_S`] of its core. Those that pick a file hold the lock of the file set for [`PICK_S`],
//! and up to [`CROSS_LOCK`] times as long as more of the other threads run on another node: any of
//! them is as likely to have held it last. (Who did is no measure here: threads that wait in turn
//! keep their first order, in which the nodes alternate.)
//! webproxy and varmail keep all files in one directory (`dirwidth=1000000`), the others 20 in
//! each. An append draws its bytes from 0 to 16 KiB.
//!
//! A thread of videoserver streams one video again and again, a file that no other reads; nobody
//! writes in the papers' runs ("RO").
//!
//! **Limits.** Files have the mean size when they are made, also new ones until something is
//! appended; webserver's log is cut off at [`LOG`]. `PICK_S`, `CROSS_LOCK` and `FLOWOP_S` are
//! calibrated: see there.

use std::rc::Rc;
use std::sync::{Arc, PoisonError};

use clock::sync::Mutex;
use fs::format::Ino;
use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::Begin;
use crate::thread::{File, Lab, Thread};

/// filebench's own CPU seconds per flow-op. Calibrated on Dragonfly Fig. 2, webserver (Node0):
/// 972,000 operations a second.
pub const FLOWOP_S: f64 = 2.72e-6;
/// Seconds of it that picking a file holds the lock of the file set. Chosen with NThread Fig. 6(a),
/// NThread_rl / NOVA_n in view, by an earlier model; it does not come out here.
pub const PICK_S: f64 = 0.640e-6;
/// Factor on that if the last holder was one hop away. Calibrated on NThread Fig. 6(a), NThread_rl
/// / NOVA.
pub const CROSS_LOCK: f64 = 8.28;
/// Bytes of webserver's log that are kept.
pub const LOG: u64 = 16_000_000;
/// `iosize` of `appendfilerand` in every personality.
const APPEND: u64 = 16384;
/// Files of a directory where it has not all.
const FEW: u64 = 20;
/// A file set has at least so many files, so that a thread finds one that is free. They keep their
/// size, on which the time of an operation depends: such a set is larger than the factor says.
const LEAST_FILES: f64 = 50.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Personality {
    /// Create, write, append, read, delete whole files.
    Fileserver,
    /// Ten whole-file reads, then an append to the log.
    Webserver,
    /// Delete, create, append, then five whole-file reads.
    Webproxy,
    /// Mail: delete; create, append, fsync; read, append, fsync; read.
    Varmail,
    /// Each thread streams one video.
    Videoserver,
    /// Of no filebench: webserver without its log.
    Readers,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub personality: Personality,
    pub threads: u32,
    /// Files, in the paper.
    pub files: f64,
    pub file_bytes: f64,
    pub io_bytes: f64,
    /// All files are in one directory, whatever the personality says.
    #[serde(default)]
    pub one_directory: bool,
    /// In place of [`CROSS_LOCK`]: 1, the lock of the file set costs the same from everywhere.
    #[serde(default = "cross_lock")]
    pub cross_lock: f64,
}

fn cross_lock() -> f64 {
    CROSS_LOCK
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Open,
    Close,
    Create,
    Delete,
    Stat,
    Read,
    Write,
    Append,
    Log,
    Fsync,
    Stream,
}

impl Personality {
    fn round(self) -> Vec<Op> {
        use Op::*;
        let reads = |n: usize| [Open, Read, Close].repeat(n);
        match self {
            Self::Fileserver => vec![Create, Write, Close, Open, Append, Close, Open, Read, Close, Delete, Stat],
            Self::Webserver => [reads(10), vec![Log]].concat(),
            Self::Webproxy => [vec![Delete, Create, Append, Close], reads(5)].concat(),
            Self::Varmail => {
                let (create, update) = ([Delete, Create, Append, Fsync, Close], [Open, Read, Append, Fsync, Close]);
                [&create[..], &update, &reads(1)].concat()
            }
            Self::Videoserver => vec![Stream],
            Self::Readers => reads(10),
        }
    }

    /// Files of one directory.
    fn width(self) -> u64 {
        match self {
            Self::Webproxy | Self::Varmail => u64::MAX,
            _ => FEW,
        }
    }
}

impl Load {
    /// Files and their bytes, where there is so much less data than in the paper.
    fn scaled(&self, less: f64) -> (u64, u64) {
        if self.personality == Personality::Videoserver {
            // Nobody streams the others.
            return (self.files.min(f64::from(self.threads)) as u64, (self.file_bytes / less) as u64);
        }
        let files = (self.files / less).round().max(LEAST_FILES);
        (files as u64, self.file_bytes as u64)
    }

    pub fn bytes(&self, less: f64) -> f64 {
        let (files, bytes) = self.scaled(less);
        // Each has a log, and grows by appends.
        files as f64 * (bytes as f64 + 3.0 * APPEND as f64) + LOG as f64
    }
}

/// The files of a set, by number.
struct Set {
    existing: Vec<u64>,
    free: Vec<u64>,
    next: u64,
    files: FxHashMap<u64, File>,
    directories: Vec<Ino>,
    width: u64,
    /// How many threads were on each node when they last held it.
    on: FxHashMap<usize, u32>,
}

impl Set {
    fn place(&self, number: u64) -> (Ino, String) {
        let at = number / self.width % self.directories.len().max(1) as u64;
        (self.directories.get(at as usize).copied().unwrap_or(Ino::ROOT), format!("file{number}"))
    }
}

/// Makes the files in a directory; what starts the threads.
///
/// # Errors
///
/// The volume is full.
pub fn fill(load: &Load, lab: &Rc<Lab>, home: Ino, less: f64, at_first: fs::Placement) -> fs::Result<Begin> {
    let (count, bytes) = load.scaled(less);
    let width = if load.one_directory { u64::MAX } else { load.personality.width() };
    let directory = |n: u64| lab.directory(home, &format!("dir{n}"));
    let directories = (0..count.div_ceil(width)).map(directory).collect::<fs::Result<Vec<_>>>()?;
    let (existing, free, files) = ((0..count).collect(), Vec::new(), FxHashMap::default());
    let mut set = Set { existing, free, next: count, files, directories, width, on: FxHashMap::default() };
    for number in 0..count {
        let (dir, name) = set.place(number);
        let file = lab.fill(dir, &name, bytes, at_first)?;
        set.files.insert(number, file);
    }
    let log = lab.fill(home, "log", 0, at_first)?;
    let (set, load) = (Arc::new(Mutex::new(set)), *load);
    Ok(Box::new(move |lab| {
        for own in 0..load.threads {
            let set = Arc::clone(&set);
            lab.spawn(move |thread| {
                let mut worker = Worker { thread, set, load, own, bytes, log, open: None, was_on: None };
                let round = load.personality.round();
                while !worker.thread.is_over() {
                    round.iter().for_each(|op| worker.step(*op));
                }
            });
        }
    }))
}

struct Worker<'a> {
    thread: &'a mut Thread,
    set: Arc<Mutex<Set>>,
    load: Load,
    own: u32,
    bytes: u64,
    log: File,
    open: Option<File>,
    was_on: Option<usize>,
}

impl Worker<'_> {
    fn step(&mut self, op: Op) {
        if self.thread.is_over() {
            return;
        }
        let picks = matches!(op, Op::Open | Op::Create | Op::Delete | Op::Stat);
        self.thread.cpu(if picks { FLOWOP_S - PICK_S } else { FLOWOP_S });
        match op {
            Op::Open => {
                let random = self.thread.random(u64::MAX);
                self.open = self.pick(|set| {
                    let number = set.existing.get((random % set.existing.len().max(1) as u64) as usize)?;
                    set.files.get(number).copied()
                });
                self.open = self.open.filter(|file| self.thread.open(*file));
            }
            Op::Create => {
                let (number, (dir, name)) = self.pick(|set| {
                    let number = set.free.pop().unwrap_or_else(|| {
                        set.next += 1;
                        set.next - 1
                    });
                    (number, set.place(number))
                });
                self.open = self.thread.create(dir, &name);
                if let Some(file) = self.open {
                    let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
                    set.existing.push(number);
                    set.files.insert(number, file);
                }
            }
            Op::Delete => {
                let random = self.thread.random(u64::MAX);
                let picked = self.pick(|set| {
                    let count = set.existing.len() as u64;
                    let number = (count > 0).then(|| set.existing.swap_remove((random % count) as usize))?;
                    Some((number, set.place(number)))
                });
                let Some((number, (dir, name))) = picked else { return };
                self.thread.remove(dir, &name);
                self.set.lock().unwrap_or_else(PoisonError::into_inner).free.push(number);
            }
            Op::Stat => {
                self.pick(|_| ());
                self.thread.stat();
            }
            Op::Read => self.read_all(),
            Op::Write => self.append(self.bytes),
            Op::Append => {
                let bytes = self.thread.random(APPEND).max(1);
                self.append(bytes);
            }
            Op::Log => {
                let bytes = self.thread.random(APPEND).max(1);
                self.thread.open(self.log);
                if self.thread.size(self.log) > LOG {
                    self.thread.truncate(self.log, 0);
                }
                self.thread.append(self.log, bytes as usize);
                self.thread.close(self.log);
            }
            Op::Close => {
                if let Some(file) = self.open.take() {
                    self.thread.close(file);
                }
            }
            Op::Stream => {
                let video = |set: &Set| set.files.get(&(u64::from(self.own) % set.next)).copied();
                let video = video(&self.set.lock().unwrap_or_else(PoisonError::into_inner));
                self.stream(video);
                return;
            }
            // All is durable when its call returns.
            Op::Fsync => {}
        }
        self.thread.count(1);
    }

    fn read_all(&mut self) {
        let Some(file) = self.open else { return };
        let mut at = 0;
        while !self.thread.is_over() {
            let read = self.thread.read(file, at, self.load.io_bytes as usize);
            at += read as u64;
            if read == 0 {
                return;
            }
        }
    }

    /// Each call is an operation.
    fn stream(&mut self, video: Option<File>) {
        let (mut at, Some(video)) = (0, video) else { return };
        while !self.thread.is_over() {
            let read = self.thread.read(video, at, self.load.io_bytes as usize);
            at += read as u64;
            if read == 0 {
                return;
            }
            self.thread.count(1);
            self.thread.cpu(FLOWOP_S);
        }
    }

    fn append(&mut self, bytes: u64) {
        let Some(file) = self.open else { return };
        let mut left = bytes;
        while left > 0 {
            let part = left.min(self.load.io_bytes as u64).max(1);
            if !self.thread.append(file, part as usize) {
                return;
            }
            left -= part;
        }
    }

    /// Picks a file, under the lock of the set.
    fn pick<T>(&mut self, act: impl FnOnce(&mut Set) -> T) -> T {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let here = self.thread.node();
        if let Some(left) = self.was_on.replace(here).and_then(|before| set.on.get_mut(&before)) {
            *left -= 1;
        }
        let others: u32 = set.on.values().sum();
        let near = set.on.get(&here).copied().unwrap_or_default();
        *set.on.entry(here).or_default() += 1;
        let far = f64::from(others - near) / f64::from(others.max(1));
        self.thread.hold(PICK_S * (1.0 + (self.load.cross_lock - 1.0) * far));
        act(&mut set)
    }
}
