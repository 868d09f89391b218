//! The identity of a thread, a process or a file: one key for moves, rails, records and outcomes.
//!
//! Ids are reused. A start time tells a thread or process from a later one with its id, a
//! generation tells a file from a later one with its inode number.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use topology::FileId;

use crate::{IdleFile, ObservedFile, Thread};

/// A thread, a process or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    /// A thread.
    Thread {
        /// Thread id.
        tid: u32,
        /// Start time in nanoseconds, as in the snapshot; 0 if unknown.
        #[serde(default)]
        start: u64,
    },
    /// A process with all its threads.
    Process {
        /// Process id.
        pid: u32,
        /// Start time in nanoseconds, as in the snapshot; 0 if unknown.
        #[serde(default)]
        start: u64,
    },
    /// A file's data.
    File {
        /// File id: `major:minor:inode`.
        file: FileId,
        /// Generation of the inode, as in the snapshot; 0 if unknown.
        #[serde(default)]
        generation: u64,
    },
}

impl Subject {
    /// Identifies this thread.
    pub fn thread(thread: &Thread) -> Self {
        Self::Thread { tid: thread.tid, start: thread.start_ns.unwrap_or(0) }
    }

    /// Identifies a process.
    pub fn process(pid: u32, start_ns: Option<u64>) -> Self {
        Self::Process { pid, start: start_ns.unwrap_or(0) }
    }

    /// Identifies this file.
    pub fn file(file: &ObservedFile) -> Self {
        Self::File { file: file.file, generation: file.generation.unwrap_or(0) }
    }

    /// A file that was not read in a window.
    pub fn idle_file(file: &IdleFile) -> Self {
        Self::File { file: file.file, generation: file.generation.unwrap_or(0) }
    }

    /// The thread's id, if it is a thread.
    pub fn tid(&self) -> Option<u32> {
        if let Self::Thread { tid, .. } = self { Some(*tid) } else { None }
    }

    /// Whether it is a thread.
    pub fn is_thread(&self) -> bool {
        matches!(self, Self::Thread { .. })
    }

    /// Whether it is a process.
    pub fn is_process(&self) -> bool {
        matches!(self, Self::Process { .. })
    }

    /// Whether it is a file.
    pub fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Thread { tid, .. } => write!(f, "thread {tid}"),
            Self::Process { pid, .. } => write!(f, "process {pid}"),
            Self::File { file, .. } => write!(f, "file {file}"),
        }
    }
}
