//! The identity of a thread, a process or a file: one key for moves, rails, records and outcomes.
//!
//! Ids are reused. A start time tells a thread or process from a later one with its id, a generation tells a file from a
//! later one with its inode number.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Move, Snapshot, Thread};

/// A thread, a process or a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
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
        file: String,
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

    /// Identifies the subject of a move. A move that lacks the start time or generation ([`Move::identify`]) counts as one of
    /// an unknown subject with this id.
    pub fn of(mv: &Move) -> Self {
        match mv {
            Move::Thread { tid, start_ns, .. } => Self::Thread { tid: *tid, start: start_ns.unwrap_or(0) },
            Move::Process { pid, start_ns, .. } => Self::Process { pid: *pid, start: start_ns.unwrap_or(0) },
            Move::File { file, generation, .. } => {
                Self::File { file: file.clone(), generation: generation.unwrap_or(0) }
            }
        }
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

impl Move {
    /// Adds the start time or the generation that the snapshot knows, if the move lacks it.
    pub fn identify(&mut self, snapshot: &Snapshot) {
        match self {
            Self::Thread { tid, start_ns, .. } if start_ns.is_none() => {
                *start_ns = snapshot.threads.iter().find(|t| t.tid == *tid).and_then(|t| t.start_ns);
            }
            Self::Process { pid, start_ns, .. } if start_ns.is_none() => {
                let process = snapshot.processes.iter().find(|p| p.pid == *pid).and_then(|p| p.start_ns);
                let of = || snapshot.threads.iter().filter(|t| t.pid == *pid).find_map(Thread::of_process_since);
                *start_ns = process.or_else(of);
            }
            Self::File { file, generation, .. } if generation.is_none() => {
                *generation = snapshot.files.iter().find(|f| f.file == *file).and_then(|f| f.generation);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_identified_by_what_the_snapshot_knows() {
        let snapshot = Snapshot::from_json(
            r#"{"version":1,"window_s":1,"nodes":[{"id":0,"cpus":[0],"distance":{"0":10,"1":21}}],
                "threads":[{"tid":7,"pid":7,"start_ns":70,"node":0,"allowed_nodes":[0],"cpu_s":0},
                           {"tid":8,"pid":8,"start_ns":80,"node":0,"allowed_nodes":[0],"cpu_s":0},
                           {"tid":12,"pid":11,"start_ns":99,"process_start_ns":98,"node":0,"allowed_nodes":[0],"cpu_s":0}],
                "processes":[{"pid":7,"start_ns":71}],"files":[{"file":"8:1:9","generation":5}]}"#,
        );
        let snapshot = snapshot.unwrap();
        let subject = |text: &str| {
            let text = text.replace('}', r#","from":0,"to":1,"reason":"hotness","why":""}"#);
            let mut mv: Move = serde_json::from_str(&text).unwrap();
            mv.identify(&snapshot);
            Subject::of(&mv)
        };
        assert_eq!(subject(r#"{"kind":"thread","tid":7,"pid":7}"#), Subject::Thread { tid: 7, start: 70 });
        assert_eq!(subject(r#"{"kind":"thread","tid":7,"pid":7,"start_ns":3}"#), Subject::Thread { tid: 7, start: 3 });
        assert_eq!(subject(r#"{"kind":"process","pid":7}"#), Subject::Process { pid: 7, start: 71 });
        assert_eq!(subject(r#"{"kind":"process","pid":8}"#), Subject::Process { pid: 8, start: 80 });
        assert_eq!(subject(r#"{"kind":"process","pid":9}"#), Subject::Process { pid: 9, start: 0 });
        // Its first thread is idle, as the one that waits for the others often is.
        assert_eq!(subject(r#"{"kind":"process","pid":11}"#), Subject::Process { pid: 11, start: 98 });
        let file = Subject::File { file: "8:1:9".into(), generation: 5 };
        assert_eq!(subject(r#"{"kind":"file","file":"8:1:9"}"#), file);
    }
}
