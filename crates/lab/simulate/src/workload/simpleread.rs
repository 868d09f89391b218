//! simpleread: reads one file from the beginning to the end, in calls of one size, and ends (thesis
//! listing 5.1).
//!
//! **Problem.** The thesis measures run times of a process of a given size that reads a file of a
//! given size.
//!
//! **Approach.** The process starts, fills its memory, reads; a thread's limit is the file.
//!
//! **Limits.** One thread. The read buffer is part of the process.

use super::{FileSet, Job, Operation, Part, Place, Role};
use crate::constants::Constants;
use crate::filesystem::FileSystem;

/// Parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct SimpleRead {
    /// Bytes of the file.
    pub file_size: f64,
    /// Bytes per call.
    pub read_size: f64,
    /// Bytes of the process's own memory, which it fills first.
    pub process_size: f64,
    /// How often the file is read.
    pub passes: f64,
}

/// The job.
pub fn simpleread(c: &Constants, name: &str, fs: FileSystem, device: usize, place: Place, p: &SimpleRead) -> Job {
    let costs = fs.costs(c);
    let calls = (p.file_size / p.read_size).ceil() * p.passes;
    let op = Operation {
        cpu_s: costs.reading(p.read_size, p.read_size),
        counted: 1.0,
        parts: vec![Part { files: 0, read: p.read_size, call: p.read_size, sequential: true, ..Part::default() }],
        ..Operation::default()
    };
    Job {
        name: name.into(),
        fs,
        device,
        roles: vec![Role { comm: "simpleread".into(), threads: 1, op, counts: true, limit: Some(calls) }],
        files: vec![FileSet::new(format!("{name}.file"), p.file_size, place)],
        process_bytes: p.process_size.max(1e6),
        start_s: c.process_start_s + c.fill_s * p.process_size,
    }
}
