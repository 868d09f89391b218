//! Moves of files and of processes with their memory, as the plane makes them: prepared in a window, started, then copied in
//! the background ([`crate::jobs`]).
//!
//! **Problem.** The engine names a file by device and inode number, and the kernel opens files by path. Between the look at a
//! file or process and the move, it may have become another.
//!
//! **Approach.** A file is opened by the path of the last window, and must have the device, the inode number and, where it is
//! known, the generation that the move names. A process keeps what was found out when its move was prepared until the move is
//! started, in the same window.
//!
//! **Limits.** A file whose path homenode does not know, or that another file system covers, is refused. Files on DAX are
//! refused here: moving them takes CAP_SYS_ADMIN, which the daemon gives up.

use std::path::PathBuf;

use engine::{PlaneError, Started, Subject, Undo};
use placement::{Move, ObservedFile};
use rustc_hash::FxHashMap;
use topology::{NodeId, Topology};

use super::Mover;
use super::pages::{self, FileMove, FileMoveError};
use super::process::{self, ProcessMove};
use crate::jobs::Jobs;

/// Most files whose path is remembered from a window.
const PATHS: usize = 65_536;

/// Moves of files and processes.
#[derive(Debug, Default)]
pub struct DataMoves {
    /// Those that copy.
    pub jobs: Jobs,
    /// Paths of the files of the last window.
    paths: FxHashMap<String, PathBuf>,
    processes: FxHashMap<Subject, ProcessMove>,
    files: FxHashMap<(Subject, NodeId), FileMove>,
}

impl DataMoves {
    /// Starts a window. Moves that were prepared and not started become void.
    pub fn begin_window(&mut self) {
        self.processes.clear();
        self.files.clear();
    }

    /// Remembers where the files of a window are.
    pub fn seen<'a>(&mut self, files: impl Iterator<Item = &'a ObservedFile>) {
        self.paths.clear();
        let path = |file: &ObservedFile| Some((file.file.clone(), PathBuf::from(file.path.as_ref()?)));
        self.paths.extend(files.filter_map(path).take(PATHS));
    }

    /// See [`engine::Plane::prepare`].
    pub fn prepare(&mut self, mover: &mut Mover, topology: &Topology, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        match mv {
            Move::Thread { .. } => Ok(vec![mover.prepare(topology, mv)?]),
            Move::Process { pid, start_ns, to, .. } => {
                let process = process::prepare(mover, topology, (*pid, *start_ns), *to, true)?;
                let undo = process.ready().to_vec();
                self.processes.insert(Subject::of(mv), process);
                Ok(undo)
            }
            Move::File { file, generation, to, .. } => {
                let unknown = || refused("path_unknown", format!("the path of file {file} is not known"));
                let path = self.paths.get(file).ok_or_else(unknown)?;
                pages::target(topology, *to).map_err(|e| error(&e))?;
                let prepared = FileMove::prepare(path, *to).map_err(|e| error(&e))?;
                let id = prepared.id();
                let found = format!("{}:{}:{}", id.device.0, id.device.1, id.inode);
                let other = generation.zip(id.generation).is_some_and(|(then, now)| then != u64::from(now));
                if found != *file || other {
                    return Err(PlaneError::Gone { what: format!("file {file} ({})", path.display()) });
                }
                self.files.insert((Subject::of(mv), *to), prepared);
                Ok(Vec::new())
            }
        }
    }

    /// The process whose move was prepared.
    pub fn take_process(&mut self, mv: &Move) -> Result<ProcessMove, PlaneError> {
        self.processes.remove(&Subject::of(mv)).ok_or_else(|| not_prepared(mv))
    }

    /// Lets the memory of a process follow its threads.
    pub fn start_memory(&mut self, process: ProcessMove) -> Result<Started, PlaneError> {
        let Some(memory) = process.memory else { return Ok(Started::Done) };
        match self.jobs.start(Box::new(memory)) {
            Ok(job) => Ok(Started::Job(job)),
            Err(error) => {
                // The threads are where they should be; the kernel brings what they allocate there.
                tracing::warn!(%error, "the memory of a process stays: no thread for it");
                Ok(Started::Done)
            }
        }
    }

    /// Starts to move the cached pages of a file.
    pub fn start_file(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        let Move::File { to, .. } = mv else { return Err(not_prepared(mv)) };
        let prepared = self.files.remove(&(Subject::of(mv), *to)).ok_or_else(|| not_prepared(mv))?;
        let started = self.jobs.start(Box::new(prepared));
        started.map(Started::Job).map_err(|e| refused("no_thread", format!("no thread can be started: {e}")))
    }
}

fn not_prepared(mv: &Move) -> PlaneError {
    refused("not_prepared", format!("the move of {} was not prepared in this window", Subject::of(mv)))
}

fn error(error: &FileMoveError) -> PlaneError {
    let reason = match error {
        FileMoveError::Refused { reason, .. } | FileMoveError::Target { reason, .. } => reason,
        FileMoveError::File(_) => "unreadable",
    };
    refused(reason, error.to_string())
}

fn refused(reason: &'static str, why: impl Into<String>) -> PlaneError {
    PlaneError::Refused { reason, why: why.into() }
}
