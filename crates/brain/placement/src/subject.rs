//! The identity of a thread, a process or a file: one key for moves, rails, records and outcomes.
//!
//! Ids are reused. A start time tells a thread or process from a later one with its id, a
//! generation tells a file from a later one with its inode number.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use topology::{FileId, ProcessId, ThreadId};

use crate::{IdleFile, ObservedFile, Thread};

/// A thread, a process or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Form", into = "Form")]
pub enum Subject {
    /// A thread.
    Thread(ThreadId),
    /// A process with all its threads.
    Process(ProcessId),
    /// A file's data.
    File(FileId),
}

/// A thread, a process or a file.
// The JSON form of a subject.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename = "Subject", tag = "kind", rename_all = "snake_case")]
enum Form {
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
        #[schemars(with = "u64")]
        generation: u32,
    },
}

impl From<Form> for Subject {
    fn from(form: Form) -> Self {
        match form {
            Form::Thread { tid, start } => Self::Thread(ThreadId::new(tid, start)),
            Form::Process { pid, start } => Self::Process(ProcessId::new(pid, start)),
            Form::File { file, generation } => Self::File(FileId { generation, ..file }),
        }
    }
}

impl From<Subject> for Form {
    fn from(subject: Subject) -> Self {
        match subject {
            Subject::Thread(id) => Self::Thread { tid: id.tid, start: id.start_ns().unwrap_or(0) },
            Subject::Process(id) => Self::Process { pid: id.pid, start: id.start_ns().unwrap_or(0) },
            Subject::File(file) => Self::File { file, generation: file.generation },
        }
    }
}

impl Subject {
    /// Identifies this thread.
    pub fn thread(thread: &Thread) -> Self {
        Self::Thread(thread.id())
    }

    /// Identifies a process.
    pub fn process(pid: u32, start_ns: Option<u64>) -> Self {
        Self::Process(ProcessId::new(pid, start_ns))
    }

    /// Identifies this file.
    pub fn file(file: &ObservedFile) -> Self {
        Self::File(FileId { generation: file.generation.unwrap_or(0), ..file.file })
    }

    /// A file that was not read in a window.
    pub fn idle_file(file: &IdleFile) -> Self {
        Self::File(FileId { generation: file.generation.unwrap_or(0), ..file.file })
    }

    /// The thread's id, if it is a thread.
    pub fn tid(&self) -> Option<u32> {
        if let Self::Thread(id) = self { Some(id.tid) } else { None }
    }

    /// Whether it is a thread.
    pub fn is_thread(&self) -> bool {
        matches!(self, Self::Thread(_))
    }

    /// Whether it is a process.
    pub fn is_process(&self) -> bool {
        matches!(self, Self::Process(_))
    }

    /// Whether it is a file.
    pub fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Thread(id) => write!(f, "thread {}", id.tid),
            Self::Process(id) => write!(f, "process {}", id.pid),
            Self::File(file) => write!(f, "file {file}"),
        }
    }
}
