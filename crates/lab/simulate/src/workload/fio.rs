//! fio: threads that read and write private files in blocks.
//!
//! **Problem.** The micro-benchmark of NThread (V-C: 4 KB blocks, 4 GB private files, read ratio 0
//! to 1) and of N-Policy (libpmem engine).
//!
//! **Approach.** One operation is one block: a read with the given probability, else an overwrite.
//!
//! **Limits.** fio's own bookkeeping is part of the call's cost.

use super::{FileSet, Job, Operation, Part, Place, Role};
use crate::constants::Constants;
use crate::filesystem::FileSystem;

/// NThread's mixes of reads and writes (Fig. 5), and the fraction of calls that read.
pub const NTHREAD_MIXES: [(&str, f64); 6] =
    [("read-only", 1.0), ("rw80", 0.8), ("rw60", 0.6), ("rw40", 0.4), ("rw20", 0.2), ("write-only", 0.0)];
/// Bytes of a thread's file (NThread V-C).
pub const NTHREAD_FILE: f64 = 4e9;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fio {
    /// Threads.
    pub threads: u32,
    /// Bytes per call.
    pub block: f64,
    /// Fraction of calls that read.
    pub read: f64,
    /// Bytes of each thread's file, or of the one file if `shared`.
    pub file_size: f64,
    /// Whether all threads use one file.
    pub shared: bool,
    /// Whether calls go on where the last one ended.
    pub sequential: bool,
    /// Seconds asleep after each call (`thinktime`).
    pub think_s: f64,
}

impl Fio {
    /// A job of NThread's micro-benchmarks: private files, of which any block may be next.
    pub fn nthread(threads: u32, block: f64, read: f64) -> Self {
        Self { threads, block, read, file_size: NTHREAD_FILE, shared: false, sequential: false, think_s: 0.0 }
    }

    /// The job of NThread Fig. 8: the paper does not say how busy its threads are.
    pub fn fig8(c: &Constants) -> Self {
        Self { think_s: c.fig8_think_s, ..Self::nthread(16, 1024.0, 1.0) }
    }
}

/// The job. `place` says where the files are at the start.
pub fn fio(c: &Constants, name: &str, fs: FileSystem, device: usize, place: Place, p: &Fio) -> Job {
    let costs = fs.costs(c);
    let write = 1.0 - p.read;
    // Copy-on-write and first-touch file systems write whole pages.
    let amplified = if matches!(fs, FileSystem::Nova | FileSystem::NovaN | FileSystem::Homenode) {
        p.block.max(4096.0)
    } else {
        p.block
    };
    let op = Operation {
        cpu_s: p.read * costs.reading(p.block, p.block) + write * costs.overwrite_s,
        off_s: p.think_s,
        counted: 1.0,
        parts: vec![Part {
            files: 0,
            read: p.read * p.block,
            write: write * (amplified + costs.overwrite_bytes),
            own: write * (amplified - p.block + costs.overwrite_bytes),
            call: p.block,
            sequential: p.sequential,
            picks: 0.0,
        }],
        ..Operation::default()
    };
    Job {
        name: name.into(),
        fs,
        device,
        roles: vec![Role { comm: "fio".into(), threads: p.threads, op, counts: true, limit: None }],
        files: vec![FileSet {
            private: !p.shared,
            together: if p.shared { 1.0 } else { 0.0 },
            ..FileSet::new(format!("{name}.data"), p.file_size, place)
        }],
        process_bytes: 16e6,
        start_s: 0.0,
    }
}
