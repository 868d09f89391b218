//! The subject of a move: the key for everything that remembers moves.

use placement::{Move, Thread};

/// A thread, a process or a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A thread.
    Thread {
        /// Thread id.
        tid: u32,
        /// Start time as in the snapshot, 0 where it is not known: a later thread with this id is another one.
        start: u64,
    },
    /// A process with all its threads.
    Process {
        /// Process id.
        pid: u32,
    },
    /// A file's data.
    File {
        /// File id, as in the move.
        file: String,
    },
}

impl Subject {
    /// This thread.
    pub fn thread(thread: &Thread) -> Self {
        Self::Thread { tid: thread.tid, start: thread.start_ns.unwrap_or(0) }
    }

    /// The subject of a move. `thread` is the moved thread in the snapshot, because a move may omit the start time.
    pub fn of(mv: &Move, thread: Option<&Thread>) -> Self {
        match mv {
            Move::Thread { tid, start_ns, .. } => {
                let start = start_ns.or(thread.and_then(|t| t.start_ns)).unwrap_or(0);
                Self::Thread { tid: *tid, start }
            }
            Move::Process { pid, .. } => Self::Process { pid: *pid },
            Move::File { file, .. } => Self::File { file: file.clone() },
        }
    }
}
