//! The moves that a policy wants, with their reasons. Plain data with a documented JSON form
//! (`docs/plan.schema.json`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use topology::{FileId, NodeId, ProcessId, ThreadId};

use crate::{ObservedFile, RANGE_BYTES, Subject, Thread, Why};

/// The only plan version.
pub const VERSION: u32 = 2;

/// The moves decided from one snapshot, and the threads left in place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Format version, 2.
    pub version: u32,
    /// The policy that made the plan.
    pub policy: String,
    /// Moves, in the order to make them.
    pub moves: Vec<Move>,
    /// Threads that stay although they read from another node, with the reason.
    #[serde(default)]
    pub declined: Vec<Declined>,
    /// Ids of threads that the plan relies on where they are. They are bound there, because the
    /// kernel would otherwise move them away when others arrive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keeps: Vec<u32>,
    /// The effect that the policy expects of the moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Prediction>,
    /// Remarks on data that the policy could not judge, in plain sentences ("node 0: bandwidth
    /// unknown, contention not judged").
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Plan {
    /// Creates an empty plan of this policy.
    pub fn new(policy: &str) -> Self {
        Self { version: VERSION, policy: policy.to_owned(), ..Self::default() }
    }

    /// The plan as one line of JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}

/// One move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Form", into = "Form")]
pub struct Move {
    /// The thread, process or file that moves.
    pub subject: Subject,
    /// Its process; 0 for a file.
    pub pid: u32,
    /// The node it runs on, or its data is on.
    pub from: NodeId,
    /// The node it should be on.
    pub to: NodeId,
    /// The rule behind the move.
    pub reason: Reason,
    /// One sentence with the figures.
    pub why: Why,
    /// The parts of a file that move, by rising `start` and apart from each other; empty: all that
    /// it has on `from`.
    pub ranges: Vec<FileRange>,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileRange {
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes. It may end beyond the file.
    pub bytes: u64,
}

impl FileRange {
    /// The first byte after it.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// The numbers of the ranges of a file that it is in.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = u32> {
        (self.start / RANGE_BYTES..self.end().div_ceil(RANGE_BYTES)).filter_map(|range| u32::try_from(range).ok())
    }
}

impl Move {
    /// Moves a thread from the node it runs on; its data stays.
    pub fn thread(thread: &Thread, to: NodeId, reason: Reason, why: impl Into<Why>) -> Self {
        let (subject, pid, from) = (Subject::thread(thread), thread.pid, thread.node);
        Self { subject, pid, from, to, reason, why: why.into(), ranges: Vec::new() }
    }

    /// Moves a file's data.
    pub fn file(file: &ObservedFile, from: NodeId, to: NodeId, why: impl Into<Why>) -> Self {
        let (subject, reason) = (Subject::file(file), Reason::OverloadedHome);
        Self { subject, pid: 0, from, to, reason, why: why.into(), ranges: Vec::new() }
    }

    /// Whether parts of a file move.
    pub fn is_of_parts(&self) -> bool {
        self.subject.is_file() && !self.ranges.is_empty()
    }

    /// Bytes of the parts that move; 0 if all moves.
    pub fn range_bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.bytes))
    }

    /// The thread that moves.
    pub fn tid(&self) -> Option<u32> {
        self.subject.tid()
    }
}

/// One move.
// The JSON form of a move.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Form {
    /// Moves a thread to another node's CPUs; its data stays.
    Thread {
        /// Thread id.
        tid: u32,
        /// Process id.
        pid: u32,
        /// Start time, as in the snapshot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start_ns: Option<u64>,
        /// The node it runs on.
        from: NodeId,
        /// The node it should run on.
        to: NodeId,
        /// The rule behind the move.
        reason: Reason,
        /// One sentence with the figures.
        why: Why,
    },
    /// Moves a process with all its threads and its memory.
    Process {
        /// Process id.
        pid: u32,
        /// Start time, as in the snapshot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start_ns: Option<u64>,
        /// The node it is on.
        from: NodeId,
        /// The node it should be on.
        to: NodeId,
        /// The rule behind the move.
        reason: Reason,
        /// One sentence with the figures.
        why: Why,
    },
    /// Moves a file's data.
    File {
        /// File id: `major:minor:inode`.
        file: FileId,
        /// Generation of the inode, as in the snapshot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<u64>")]
        generation: Option<u32>,
        /// The node the data is on.
        from: NodeId,
        /// The node the data should be on.
        to: NodeId,
        /// The rule behind the move.
        reason: Reason,
        /// One sentence with the figures.
        why: Why,
        /// The parts that move; absent: all that it has on `from`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ranges: Vec<FileRange>,
    },
}

impl From<Form> for Move {
    fn from(form: Form) -> Self {
        match form {
            Form::Thread { tid, pid, start_ns, from, to, reason, why } => {
                let subject = Subject::Thread(ThreadId::new(tid, start_ns));
                Self { subject, pid, from, to, reason, why, ranges: Vec::new() }
            }
            Form::Process { pid, start_ns, from, to, reason, why } => {
                let subject = Subject::Process(ProcessId::new(pid, start_ns));
                Self { subject, pid, from, to, reason, why, ranges: Vec::new() }
            }
            Form::File { file, generation, from, to, reason, why, ranges } => {
                let subject = Subject::File(FileId { generation: generation.unwrap_or(0), ..file });
                Self { subject, pid: 0, from, to, reason, why, ranges }
            }
        }
    }
}

impl From<Move> for Form {
    fn from(mv: Move) -> Self {
        let Move { subject, pid, from, to, reason, why, ranges } = mv;
        match subject {
            Subject::Thread(id) => Self::Thread { tid: id.tid, pid, start_ns: id.start_ns(), from, to, reason, why },
            Subject::Process(id) => Self::Process { pid: id.pid, start_ns: id.start_ns(), from, to, reason, why },
            Subject::File(file) => {
                let generation = Some(file.generation).filter(|generation| *generation > 0);
                Self::File { file, generation, from, to, reason, why, ranges }
            }
        }
    }
}

/// The rules behind moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Most of the thread's file bytes are there (NThread III-A).
    ReadLocality,
    /// The memory controller of its home node is overloaded (NThread III-C1).
    ControllerContention,
    /// The CPUs of its home node are overloaded (NThread III-C2).
    CpuContention,
    /// None of the memory it touches is on a node it runs on (N-Policy a).
    RemoteOnly,
    /// One remote node holds most of the memory it touches (N-Policy b).
    Coverage,
    /// The other node has more hot pages (N-Policy c).
    Hotness,
    /// The file it reads is cached there (ARC task migration).
    CacheAffinity,
    /// Data moves because its home node is overloaded (Dragonfly).
    OverloadedHome,
    /// It is read often, and is on slower memory than its readers' node has (promote).
    Promotion,
    /// It was not read for long, and makes room for what is read often (promote).
    Demotion,
    /// A program of the user's decided it, and says why in its own words.
    External,
}

/// A thread that stays where it is, with the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Declined {
    /// Thread id.
    pub tid: u32,
    /// A stable word for programs, such as `shares_file`, `below_margin`, `pinned`, `not_allowed`.
    pub reason: String,
    /// One sentence with the figures.
    pub why: String,
}

impl Declined {
    /// The thread stays with the threads that it shares a file with.
    pub const SHARES_FILE: &str = "shares_file";
}

/// The effect that a policy expects of its plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Share of file bytes read from another node in the observed window; absent if nothing was
    /// read.
    pub remote_share_before: Option<f64>,
    /// The same after the moves, if all threads continue reading as before.
    pub remote_share_after: Option<f64>,
    /// One forecast per node.
    pub nodes: Vec<NodeForecast>,
}

/// One node before and after a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeForecast {
    /// Node id.
    pub node: NodeId,
    /// Controller load (NThread Eq. 1) as a fraction of the node's capacity; absent if the capacity
    /// is unknown.
    pub controller_before: Option<f64>,
    /// The same after the moves.
    pub controller_after: Option<f64>,
    /// CPU utilisation as a fraction of the node's CPUs; absent for a node without CPUs.
    pub cpu_before: Option<f64>,
    /// The same after the moves; may exceed 1.
    pub cpu_after: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_has_the_form_that_programs_read() {
        for text in [
            r#"{"kind":"thread","tid":7,"pid":6,"start_ns":70,"from":1,"to":0,"reason":"read_locality","why":"x"}"#,
            r#"{"kind":"thread","tid":7,"pid":6,"from":1,"to":0,"reason":"read_locality","why":"x"}"#,
            r#"{"kind":"process","pid":6,"start_ns":60,"from":1,"to":0,"reason":"cache_affinity","why":"x"}"#,
            r#"{"kind":"file","file":"8:1:9","generation":5,"from":1,"to":0,"reason":"overloaded_home","why":"x"}"#,
            r#"{"kind":"file","file":"8:1:9","from":2,"to":0,"reason":"promotion","why":"x","ranges":[{"start":0,"bytes":9}]}"#,
        ] {
            let mv: Move = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&mv).unwrap(), text);
            assert_eq!(mv.pid, if mv.subject.is_file() { 0 } else { 6 });
        }
    }
}
