//! A record of all moves and their reasons, for `homenode explain`.
//!
//! **Problem.** A thread runs on another node than yesterday, and its owner wants to know why.
//!
//! **Approach.** `journal.jsonl` in the state directory has one JSON object per line ([`Entry`])
//! and only grows at its end; `homenode move` adds to it beside the daemon. A move has its reason
//! and figures, and later its effect ([`Event::Audited`]). [`read()`] reads entries,
//! [`history()`] joins moves with their effects.
//!
//! **Limits.** The size is bounded: at half of the limit the file becomes `journal.1.jsonl` and
//! replaces the previous one, so the two files keep between half and all of the limit. A move that
//! a rail holds back window after window is written once. The journal is not synced to disk,
//! because undoing needs only the state file.

mod read;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use placement::{Reason, Subject};
use serde::{Deserialize, Serialize};
use topology::{FileId, NodeId};

pub use read::{Line, history, read};

use crate::state::open_private;
use crate::{EngineError, Finished, Rail, Undone};

pub const JOURNAL: &str = "journal.jsonl";
pub const OLDER: &str = "journal.1.jsonl";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Wall-clock time, seconds since 1970-01-01 UTC.
    pub time: f64,
    /// The thread, process or file it is about, if it is about one.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<About>,
    #[serde(flatten)]
    pub event: Event,
}

/// A thread, a process or a file as the journal names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Thread id; of a process, its id; 0 for a file.
    pub tid: u32,
    /// Process id; 0 for a file.
    pub pid: u32,
    /// Name of the thread or process; of a file, its path or else its id.
    #[serde(default)]
    pub comm: String,
    /// Start time as in the snapshot, where it is known: a later thread with this id is another
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Kind::is_thread")]
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileId>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    #[default]
    Thread,
    /// A process with all its threads.
    Process,
    File,
}

impl Kind {
    fn is_thread(&self) -> bool {
        *self == Self::Thread
    }
}

impl About {
    /// This subject and its name; of a thread, with its process.
    pub fn new(subject: &Subject, pid: u32, comm: &str) -> Self {
        let of = |tid, pid, start, kind| Self { tid, pid, comm: comm.to_owned(), start_ns: start, kind, file: None };
        match subject {
            Subject::Thread(id) => of(id.tid, pid, id.start_ns(), Kind::Thread),
            Subject::Process(id) => of(id.pid, id.pid, id.start_ns(), Kind::Process),
            Subject::File(file) => {
                let comm = if comm.is_empty() { file.to_string() } else { comm.to_owned() };
                Self { comm, file: Some(file.any_generation()), ..of(0, 0, None, Kind::File) }
            }
        }
    }
}

/// What became of the moves that were to be undone, in threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub restored: usize,
    /// Left alone because something else had changed them.
    pub changed_by_others: usize,
    pub gone: usize,
    pub failed: usize,
}

impl From<&Finished> for Counts {
    fn from(Finished { restored, changed_by_others, gone, failed, .. }: &Finished) -> Self {
        Self { restored: *restored, changed_by_others: *changed_by_others, gone: *gone, failed: *failed }
    }
}

/// A move that is made, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    pub from: NodeId,
    pub to: NodeId,
    pub reason: Reason,
    pub why: String,
    /// Remote share of the thread, or of the readers, in the window that decided; absent where
    /// nothing was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_share: Option<f64>,
    /// The rule that allowed it; absent if none applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Started {
        /// The daemon's process id.
        daemon: u32,
        policy: String,
    },
    /// The daemon stopped, after it had undone everything it could.
    Stopped(Counts),
    /// The moves of an earlier daemon were undone.
    Recovered(Counts),
    Moved(Decided),
    /// A copy began: of a file, or of a process's memory.
    CopyStarted(Decided),
    /// A copy has come a tenth or more farther.
    CopyProgress {
        /// Bytes to move.
        bytes: u64,
        /// Of these, in place.
        done: u64,
        /// Bytes that could not be moved.
        failed: u64,
    },
    /// A copy is over. What was copied stays.
    CopyEnded {
        from: NodeId,
        to: NodeId,
        /// Bytes to move.
        bytes: u64,
        /// Of these, in place.
        done: u64,
        /// Bytes that could not be moved, by reason.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        left: BTreeMap<String, u64>,
        /// How long it took; absent where that is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<f64>,
        /// Why it ended early; absent if it did not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// `homenode move` has ended.
    MovedByHand {
        to: NodeId,
        /// Bytes that were elsewhere.
        bytes: u64,
        /// Of these, on the target now.
        done: u64,
        /// Threads of a process that are bound to the node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        threads: Option<usize>,
        seconds: f64,
        /// The user who gave the command.
        user: u32,
        /// Why not all of it moved; absent if all did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// A move did not pay and was taken back.
    RolledBack {
        why: String,
    },
    /// Its service went worse, and its affinity was restored.
    Guardrail {
        why: String,
    },
    Audited {
        /// Remote share in the window that decided the move.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<f64>,
        /// Remote share afterwards; absent where it read no more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<f64>,
    },
    HeldBack {
        from: NodeId,
        to: NodeId,
        rail: Rail,
        why: String,
    },
    Refused {
        from: NodeId,
        to: NodeId,
        /// Stable word for programs.
        reason: String,
        why: String,
    },
    /// A thread ended between decision and move.
    Gone,
    /// A thread's affinity was restored, or left alone.
    Undone {
        result: Undone,
        /// The affinity before our first move.
        affinity: String,
        /// On what occasion ("on exit", "after a crash").
        occasion: String,
    },
    UndoFailed {
        why: String,
    },
    Note {
        text: String,
    },
}

#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    older: PathBuf,
    file: Option<File>,
    half: u64,
    pending: Vec<u8>,
}

impl Journal {
    /// The journal of this state directory; both files together stay within `max_bytes`.
    pub fn open(dir: &Path, max_bytes: u64) -> Self {
        Self { path: dir.join(JOURNAL), older: dir.join(OLDER), file: None, half: max_bytes / 2, pending: Vec::new() }
    }

    /// The journal of a daemon that may run: its limit is the daemon's to keep, which has the file
    /// open.
    pub fn beside(dir: &Path) -> Self {
        Self { half: u64::MAX, ..Self::open(dir, 0) }
    }

    /// Adds an entry; [`Self::flush`] writes it.
    pub fn add(&mut self, entry: &Entry) {
        let before = self.pending.len();
        match serde_json::to_writer(&mut self.pending, entry) {
            Ok(()) => self.pending.push(b'\n'),
            Err(_) => self.pending.truncate(before),
        }
    }

    /// Writes what was added since the last call. On an error it is lost, and the error says why;
    /// the file keeps whole lines.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.pending);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (part, after) = rest.split_at(part_len(rest, self.half));
            self.write(part)?;
            rest = after;
        }
        Ok(())
    }

    /// Appends whole lines that together fit into one file.
    fn write(&mut self, part: &[u8]) -> Result<(), EngineError> {
        if self.file.is_none() {
            self.open_file()?;
        }
        let mut len = self.len()?;
        if len > 0 && len.saturating_add(part.len() as u64) > self.half {
            self.file = None;
            std::fs::rename(&self.path, &self.older).map_err(EngineError::io("rotate", &self.path))?;
            self.open_file()?;
            len = self.len()?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(error) = file.write_all(part) {
            let _ = file.set_len(len);
            return Err(EngineError::io("write", &self.path)(error));
        }
        Ok(())
    }

    fn open_file(&mut self) -> Result<(), EngineError> {
        let private =
            |path: &Path, create: bool| open_private(OpenOptions::new().read(true).append(true).create(create), path);
        // An earlier version let everybody read it.
        let _ = private(&self.older, false);
        self.file = Some(private(&self.path, true).map_err(EngineError::io("open", &self.path))?);
        // A line that a crash has cut short must not swallow the next one.
        if !self.ends_with_newline()? {
            self.write(b"\n")?;
        }
        Ok(())
    }

    /// Length of the open file now: another process may have added to it.
    fn len(&self) -> Result<u64, EngineError> {
        let Some(file) = &self.file else { return Ok(0) };
        Ok(file.metadata().map_err(EngineError::io("look at", &self.path))?.len())
    }

    fn ends_with_newline(&self) -> Result<bool, EngineError> {
        use std::os::unix::fs::FileExt;
        let (Some(file), Some(last)) = (&self.file, self.len()?.checked_sub(1)) else { return Ok(true) };
        let mut byte = [0];
        file.read_exact_at(&mut byte, last).map_err(EngineError::io("read", &self.path))?;
        Ok(byte == *b"\n")
    }
}

/// Length of the longest start of `bytes` that is whole lines and at most `most` bytes, but at
/// least one line.
fn part_len(bytes: &[u8], most: u64) -> usize {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if bytes.len() <= most {
        return bytes.len();
    }
    let newline = |b: &u8| *b == b'\n';
    let within = bytes.get(..most).and_then(|b| b.iter().rposition(newline));
    within.or_else(|| bytes.iter().position(newline)).map_or(bytes.len(), |i| i + 1)
}

/// Seconds since 1970-01-01 UTC.
pub fn unix_s(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
