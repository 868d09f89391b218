//! filebench's personalities, flow-op by flow-op.
//!
//! **Problem.** NThread (Table III) and Dragonfly (Table II) run fileserver, webserver, webproxy,
//! varmail and videoserver.
//!
//! **Approach.** The personalities as published with filebench 1.4.9 are lists of [`FlowOp`]s; one
//! operation of a thread is one round of its list. Picking a file takes filebench's file-set lock.
//! webproxy and varmail keep all files in one directory (`dirwidth=1000000`), so creating and
//! deleting them takes that directory's lock, too; the others have 20 files per directory.
//!
//! A large set is split into several [`FileSet`]s of about a GB each, so that it can be moved in
//! parts. The chance that one of `t − 1` other threads uses the same of `n` files at the same time
//! is `1 − (1 − 1/n)^(t − 1)`. A thread of videoserver opens the next file of the set once and
//! streams it for ever (`flowop read`, which keeps its descriptor), so each has a file of its own
//! while there are enough.
//!
//! **Limits.** Files are as large as the mean, also those that webproxy and varmail create with one
//! append; webserver's log, a file of its own, does not grow beyond [`LOG`].

use super::{FileSet, Job, Operation, Part, Place, Role};
use crate::constants::Constants;
use crate::filesystem::FileSystem;

/// A personality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Personality {
    /// Create, write, append, read, delete whole files.
    Fileserver,
    /// Ten whole-file reads, then an append to the log.
    Webserver,
    /// Delete, create, append, then five whole-file reads.
    Webproxy,
    /// Mail: delete; create, append, fsync; read, append, fsync; read.
    Varmail,
    /// Each thread streams one video, again and again.
    Videoserver,
}

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filebench {
    /// Which.
    pub personality: Personality,
    /// Threads.
    pub threads: u32,
    /// Files.
    pub files: f64,
    /// Mean bytes of a file.
    pub file_size: f64,
    /// Bytes per call.
    pub io_size: f64,
}

/// One step of a round; each counts as one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FlowOp {
    /// Opens a file that exists, picked at random.
    Open,
    /// Closes the file that was opened or created last.
    Close,
    /// Creates a file that does not exist.
    Create,
    /// Deletes a file, picked at random.
    Delete,
    /// Asks for a file's attributes.
    Stat,
    /// Reads the whole file.
    Read,
    /// Writes the whole file.
    Write,
    /// Goes on reading the thread's one file, in a call of the I/O size, and from its beginning at
    /// its end.
    Stream,
    /// Appends less than so many bytes: any number is as likely, half of it is the mean.
    Append(f64),
    /// Appends as many to the log, a separate file that is never read.
    Log(f64),
    /// Makes the file's data durable.
    Fsync,
}

use FlowOp::{Append, Close, Create, Delete, Fsync, Log, Open, Read, Stat, Stream, Write};

/// `iosize` of `appendfilerand` in every personality: it draws the bytes from 0 to this.
const APPEND: f64 = 16.0 * 1024.0;

impl Personality {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Fileserver, Self::Webserver, Self::Webproxy, Self::Varmail, Self::Videoserver];

    /// Name as filebench knows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fileserver => "fileserver",
            Self::Webserver => "webserver",
            Self::Webproxy => "webproxy",
            Self::Varmail => "varmail",
            Self::Videoserver => "videoserver",
        }
    }

    /// The loop of a thread.
    pub fn round(self) -> Vec<FlowOp> {
        let reads = |n: usize| [Open, Read, Close].repeat(n);
        match self {
            Self::Fileserver => {
                vec![Create, Write, Close, Open, Append(APPEND), Close, Open, Read, Close, Delete, Stat]
            }
            Self::Webserver => [reads(10), vec![Log(APPEND)]].concat(),
            Self::Webproxy => [vec![Delete, Create, Append(APPEND), Close], reads(5)].concat(),
            Self::Varmail => {
                let create = [Delete, Create, Append(APPEND), Fsync, Close];
                let update = [Open, Read, Append(APPEND), Fsync, Close];
                [&create[..], &update, &[Open, Read, Close]].concat()
            }
            Self::Videoserver => vec![Stream],
        }
    }

    /// Bytes of a call where nothing else is said: filebench's `iosize`.
    pub const fn io_size(self) -> f64 {
        match self {
            Self::Videoserver => 256.0 * KB,
            _ => KB * KB,
        }
    }

    /// The personality of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|personality| personality.name() == name)
    }

    /// Files in the directory that a name is created in or deleted from.
    fn directory(self, files: f64) -> f64 {
        if matches!(self, Self::Webproxy | Self::Varmail) { files } else { 20.0 }
    }
}

const KB: f64 = 1024.0;
const GB: f64 = KB * KB * KB;

const fn row(personality: Personality, file_size: f64, files: f64, io_size: f64, threads: u32) -> Filebench {
    Filebench { personality, threads, files, file_size, io_size }
}

/// NThread's Table III.
pub const NTHREAD: [Filebench; 4] = [
    row(Personality::Fileserver, 128.0 * KB, 100e3, KB * KB, 50),
    row(Personality::Webserver, 16.0 * KB, 100e3, KB * KB, 100),
    row(Personality::Webproxy, 16.0 * KB, 100e3, 16.0 * KB, 100),
    row(Personality::Varmail, 16.0 * KB, 100e3, KB * KB, 16),
];

/// One row of Dragonfly's Table II: several applications, half of them on each node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rows {
    /// Each application where node 0's controller is overloaded.
    pub heavy: Filebench,
    /// Each application where it is not.
    pub light: Filebench,
    /// How many.
    pub applications: u32,
}

const fn rows(personality: Personality, heavy: (f64, f64, u32), light: (f64, f64, u32), applications: u32) -> Rows {
    Rows {
        heavy: row(personality, heavy.0, heavy.1, personality.io_size(), heavy.2),
        light: row(personality, light.0, light.1, personality.io_size(), light.2),
        applications,
    }
}

/// Dragonfly's Table II, and the numbers of applications of its IV-A.
pub const DRAGONFLY: [Rows; 4] = [
    rows(Personality::Webserver, (160.0 * KB, 10e3, 14), (16.0 * KB, 10e3, 7), 4),
    rows(Personality::Webproxy, (160.0 * KB, 100e3, 14), (64.0 * KB, 10e3, 7), 4),
    rows(Personality::Videoserver, (2.0 * GB, 50.0, 28), (GB, 50.0, 14), 2),
    rows(Personality::Fileserver, (128.0 * KB, 10e3, 14), (128.0 * KB, 1e3, 7), 4),
];

/// Bytes of a part of a set.
const PART: f64 = 1e9;
/// Most parts of a set: more would cost time without changing the result.
const MAX_PARTS: f64 = 16.0;

/// Bytes of webserver's log that are kept.
pub const LOG: f64 = 16e6;

/// The job.
pub fn filebench(c: &Constants, name: &str, fs: FileSystem, device: usize, place: Place, p: &Filebench) -> Job {
    let costs = fs.costs(c);
    let flat = p.personality.directory(p.files) > 20.0;
    let size = p.file_size;
    let calls = |bytes: f64| (bytes / p.io_size).ceil().max(1.0);
    let mut op = Operation::default();
    let mut part = Part { files: 0, call: p.io_size.min(size), sequential: true, ..Part::default() };
    let mut log = Part { call: 0.5 * APPEND, sequential: true, ..Part::default() };
    let naming = costs.name_s + costs.entry_s * p.personality.directory(p.files);
    for flow in p.personality.round() {
        op.counted += 1.0;
        op.cpu_s += c.flowop_s;
        match flow {
            Open => {
                part.picks += 1.0;
                op.cpu_s += costs.open_s;
                op.serial_s += c.pick_s;
            }
            Create | Delete => {
                part.picks += 1.0;
                op.cpu_s += naming;
                op.serial_s += c.pick_s + if flat { naming } else { costs.serial * costs.name_s };
                part.write += costs.append_bytes;
                part.own += costs.append_bytes;
            }
            Stat => op.cpu_s += costs.read_s,
            Close => {}
            Read => {
                op.cpu_s += costs.reading(size, p.io_size);
                part.read += size;
            }
            Stream => {
                op.cpu_s += costs.reading(part.call, part.call);
                part.read += part.call;
            }
            Write | Append(_) | Log(_) => {
                let (bytes, part) = match flow {
                    Append(most) => (0.5 * most, &mut part),
                    Log(most) => (0.5 * most, &mut log),
                    _ => (size, &mut part),
                };
                let n = calls(bytes);
                op.cpu_s += n * costs.append_s;
                op.serial_s += n * costs.serial * costs.append_s;
                part.write += bytes + n * costs.append_bytes;
                part.own += n * costs.append_bytes;
            }
            Fsync => {
                op.cpu_s += costs.fsync_s;
                op.serial_s += costs.serial * costs.fsync_s;
            }
        }
    }
    // A round that opens no file still reads one.
    part.picks = part.picks.max(1.0);
    // The files of a set that nobody streams are never touched.
    let private = p.personality == Personality::Videoserver && f64::from(p.threads) <= p.files;
    let (total, count) = if private { (size, 1.0) } else { (p.files * size, p.files) };
    let parts = (total / PART).ceil().clamp(1.0, MAX_PARTS.min(count).max(1.0)) as usize;
    let share = 1.0 / parts as f64;
    let together = 1.0 - (1.0 - 1.0 / count.max(1.0)).powf(f64::from(p.threads) - 1.0);
    let together = if private { 0.0 } else { together };
    let file_set = |name: String, size: f64, files: f64, together: f64| FileSet {
        private,
        files,
        together,
        ..FileSet::new(name, size, place.clone())
    };
    let mut files: Vec<FileSet> =
        (0..parts).map(|i| file_set(format!("{name}.fileset.{i}"), total * share, count * share, together)).collect();
    let (read, write, own, picks) = (part.read * share, part.write * share, part.own * share, part.picks * share);
    op.parts = (0..parts).map(|files| Part { files, read, write, own, picks, ..part }).collect();
    if log.write > 0.0 {
        op.parts.push(Part { files: parts, ..log });
        files.push(file_set(format!("{name}.log"), LOG, 1.0, 0.0));
    }
    Job {
        name: name.into(),
        fs,
        device,
        roles: vec![Role { comm: "filebench".into(), threads: p.threads, op, counts: true, limit: None }],
        files,
        process_bytes: 10e6 * f64::from(p.threads),
        start_s: 0.0,
    }
}
