//! RocksDB under `db_bench`.
//!
//! **Problem.** NThread V-E: fillseq, readrandom and readwhilewriting with values of 4 KB, 10
//! threads, 40 GB.
//!
//! **Approach.** A put appends to the write-ahead log under the writers' lock (one leader writes
//! for its group) and is written a second time when its memtable is flushed; in key order nothing
//! is compacted. A get reads a few blocks of an SSTable
//! ([`DB_GET_BLOCKS`](crate::calibration::DB_GET_BLOCKS)), index blocks being in memory.
//! readwhilewriting is the given number of readers, which count, and one writer, which does not, as
//! with `db_bench --threads`.
//!
//! **Limits.** No compaction, no block cache, no stalls.

use super::{FileSet, Job, Operation, Part, Place, Role};
use crate::constants::Constants;
use crate::filesystem::FileSystem;

/// Which benchmark of `db_bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Benchmark {
    /// Puts in key order into an empty database.
    FillSeq,
    /// Gets of random keys.
    ReadRandom,
    /// Gets of random keys beside one thread of puts.
    ReadWhileWriting,
}

impl Benchmark {
    /// `--threads` of `db_bench` for so many threads in all: readwhilewriting adds one that writes.
    pub const fn option(self, threads: u32) -> u32 {
        match self {
            Self::ReadWhileWriting => threads.saturating_sub(1),
            Self::FillSeq | Self::ReadRandom => threads,
        }
    }

    /// Name as `db_bench` knows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FillSeq => "fillseq",
            Self::ReadRandom => "readrandom",
            Self::ReadWhileWriting => "readwhilewriting",
        }
    }
}

/// Parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct RocksDb {
    /// Which.
    pub benchmark: Benchmark,
    /// Threads, as `db_bench --threads` counts them.
    pub threads: u32,
    /// Keys.
    pub keys: f64,
    /// Bytes of a value.
    pub value: f64,
}

/// NThread V-E: keys, bytes of a value, and threads in all ("each RocksDB runs 10 threads, which is
/// equal to the number of cores per CPU").
pub const NTHREAD: (f64, f64, u32) = (10e6, 4096.0, 10);

/// Bytes/s that so many threads put on NOVA, alone: as fast as their software and the medium go,
/// and no faster than the writers' lock is held. What limits writers where memory is slowed down
/// and software is not.
pub fn put_bw(c: &Constants, value: f64, threads: u32) -> f64 {
    let (costs, record) = (FileSystem::Nova.costs(c), value + RECORD);
    let log_s = costs.append_s + (record + costs.append_bytes) * c.optane_write_s;
    let put_s = c.db_put_s + 2.0 * log_s;
    record * (f64::from(threads) / put_s).min(1.0 / (c.db_write_lock_s + log_s))
}

/// A key, a header and a checksum.
const RECORD: f64 = 16.0 + 12.0 + 7.0;

/// The job.
pub fn rocksdb(c: &Constants, name: &str, fs: FileSystem, device: usize, place: Place, p: &RocksDb) -> Job {
    let costs = fs.costs(c);
    let record = p.value + RECORD;
    let put = Operation {
        // The memtable flush is another thread's work, but the same CPUs' and the same media's.
        cpu_s: c.db_put_s + 2.0 * costs.append_s,
        serial_s: c.db_write_lock_s + costs.append_s,
        serial_media: true,
        counted: 1.0,
        parts: vec![Part {
            files: 0,
            write: 2.0 * (record + costs.append_bytes),
            own: record + 2.0 * costs.append_bytes,
            call: record,
            sequential: true,
            ..Part::default()
        }],
        ..Operation::default()
    };
    let get = Operation {
        cpu_s: c.db_get_s + costs.reading(c.db_get_blocks * record, c.db_get_blocks * record),
        counted: 1.0,
        parts: vec![Part { files: 0, read: c.db_get_blocks * record, call: record, ..Part::default() }],
        ..Operation::default()
    };
    let role = |comm: &str, threads, op, counts| Role { comm: comm.into(), threads, op, counts, limit: None };
    let roles = match p.benchmark {
        Benchmark::FillSeq => vec![role("db_bench", p.threads, put, true)],
        Benchmark::ReadRandom => vec![role("db_bench", p.threads, get, true)],
        Benchmark::ReadWhileWriting => {
            vec![role("db_bench", p.threads, get, true), role("db_bench:writer", 1, put, false)]
        }
    };
    let filled = if p.benchmark == Benchmark::FillSeq { 0.0 } else { 1.0 };
    Job {
        name: name.into(),
        fs,
        device,
        roles,
        files: vec![FileSet { filled, together: 1.0, ..FileSet::new(format!("{name}.sst"), p.keys * record, place) }],
        process_bytes: 200e6,
        start_s: 0.0,
    }
}
