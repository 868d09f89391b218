//! Moves of files and of processes with their memory, as the plane makes them: prepared in a
//! window, started, then examined and copied in the background ([`crate::jobs`]).
//!
//! **Problem.** The engine names a file by device, inode number and generation. Opening a file and
//! counting its pages takes long, and its paths belong to its users. Between the look at a file or
//! process and its move, another one may have taken its name.
//!
//! **Approach.** In the window only the identity is compared: a file is moved if the last window
//! had it. Its job opens it by inode ([`crate::files`] says how), so that no other file is opened,
//! or by the path of that window where no way leads to the inode; then the file found must have the
//! device, the inode number and, where the file system tells it, the generation. What the job
//! refuses becomes the job's end. A process keeps what was found out when its move was prepared
//! until the move is started, in the same window; its memory is looked through by its job.
//!
//! **Limits.** Each thread of a process is examined in the window. A file on a file system that
//! asks a server is refused. So are files on DAX: moving them takes CAP_SYS_ADMIN, which the daemon
//! gives up. On the way back, each page goes where it was; of several moves of one file or process,
//! the first says where. Until then, two files of procfs are open for each process whose memory was
//! moved. A limited number of moves is remembered: the data of older ones stays, and the output
//! says so.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use engine::{Copies, JobId, JobState, PlaneError, Progress, Started, Subject, Undo};
use placement::ranges::Ranges;
use placement::{FileRange, Move, ObservedFile, RANGE_BYTES, Reason, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{FileId, NodeId, ProcessId, Topology};

use super::Mover;
use super::copying::{Back, Copying};
use super::memory::Layout;
use super::pages::{self, FileMove, FileMoveError};
use super::process::{self, ProcessMove};
use crate::files::{Inodes, MOST_READERS};
use crate::jobs::Jobs;

/// Most moves of files that are remembered, running ones included: more than there are layouts of
/// pages.
const LATEST: usize = 256;
/// Most files that are remembered from a window.
const FILES: usize = 65_536;

/// A file of the last window.
#[derive(Clone, Debug)]
struct Seen {
    id: FileId,
    path: Option<PathBuf>,
    /// Processes that may have it open.
    readers: Vec<u32>,
}

/// Moves of files and processes.
#[derive(Debug, Default)]
pub struct DataMoves {
    /// The moves that copy.
    pub jobs: Jobs,
    proc_root: PathBuf,
    /// Files of the last window, of any generation.
    seen: FxHashMap<FileId, Seen>,
    /// Moves that were prepared in this window, by subject and target.
    processes: FxHashMap<(Subject, NodeId), ProcessMove>,
    files: FxHashMap<(Subject, NodeId), Seen>,
    /// The files that copies have open, with their moves.
    open: FxHashMap<JobId, (FileId, Move)>,
    /// The latest moves of files that take none back, oldest first.
    latest: VecDeque<Latest>,
    /// Moves of files that have ended since they were asked for.
    ended: Vec<Ended>,
    /// What each copy moves, if it is to be sent back.
    copies: FxHashMap<JobId, Copied>,
    /// The first subject whose data stays because there were too many moves to remember, and the
    /// number of these moves.
    forgotten: Option<(Subject, u64)>,
}

/// A move of a file.
#[derive(Debug)]
struct Latest {
    job: JobId,
    mv: Move,
    /// The file, unless its plane copies it by itself.
    seen: Option<Seen>,
}

impl Latest {
    /// Whether a move takes this one back.
    fn is_taken_back_by(&self, mv: &Move) -> bool {
        let own = &self.mv;
        (&own.subject, own.from, own.to, &own.ranges) == (&mv.subject, mv.to, mv.from, &mv.ranges)
    }
}

/// What became of a move of a file.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The file as the move opened it.
    pub file: FileId,
    /// The move.
    pub mv: Move,
    /// How it ended.
    pub progress: Progress,
}

/// What became of the parts of a move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Parts {
    /// These are on the target.
    moved: Vec<FileRange>,
    /// Of these, nothing or little was there to be moved.
    absent: Vec<FileRange>,
}

impl Ended {
    /// Lets the heat of ranges follow: it goes with what moved, and out with what is gone.
    pub fn tell(&self, ranges: &mut Ranges) {
        let (Move { from, to, .. }, parts) = (&self.mv, self.parts());
        if self.gone() {
            ranges.gone(self.file);
        }
        ranges.moved(self.file, &parts.moved, *from, *to);
        ranges.forget(self.file, &parts.absent, *from);
    }

    /// The file is gone, or cannot be moved: what is known of it is of no use.
    fn gone(&self) -> bool {
        match &self.progress.state {
            JobState::Gone => true,
            JobState::Refused { reason, .. } => *reason != "no_memory",
            _ => false,
        }
    }

    /// What became of its parts. A move that ended early has made the first of them.
    fn parts(&self) -> Parts {
        let Progress { done, state, left, .. } = &self.progress;
        let ranges = self.mv.ranges.clone();
        match state {
            JobState::Done if left.contains_key(pages::NO_MEMORY) => self.first(*done),
            JobState::Done if *done > self.progress.failed() => Parts { moved: ranges, absent: Vec::new() },
            JobState::Done => Parts { moved: Vec::new(), absent: ranges },
            JobState::Failed { .. } | JobState::Cancelled => self.first(*done),
            JobState::Running | JobState::Refused { .. } | JobState::Gone => Parts::default(),
        }
    }

    /// The first of its parts, so many bytes, have moved.
    fn first(&self, mut left: u64) -> Parts {
        let mut first = |range: &FileRange| {
            let bytes = range.bytes.min(left) / RANGE_BYTES * RANGE_BYTES;
            left = left.saturating_sub(range.bytes);
            Some(FileRange { bytes, ..*range }).filter(|range| range.bytes > 0)
        };
        Parts { moved: self.mv.ranges.iter().filter_map(&mut first).collect(), absent: Vec::new() }
    }
}

/// What a copy moves.
#[derive(Clone, Debug)]
struct Copied {
    subject: Subject,
    /// A file, and the node that the move names as its origin.
    file: Option<(Seen, NodeId)>,
    /// Only ranges of it were moved: without a layout nobody knows which pages to send back.
    ranged: bool,
}

impl DataMoves {
    /// No moves yet, on the machine whose procfs is mounted here.
    pub fn new(proc_root: &Path) -> Self {
        Self { proc_root: proc_root.to_owned(), ..Self::default() }
    }

    /// The moves of files that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Starts a window. Moves that were prepared and not started become void.
    pub fn begin_window(&mut self) {
        self.processes.clear();
        self.files.clear();
    }

    /// Remembers the files of a window, and the processes of their readers.
    pub fn seen<'a>(&mut self, files: impl Iterator<Item = (FileId, &'a ObservedFile)>, threads: &[Thread]) {
        let pids: FxHashMap<u32, u32> = threads.iter().map(|thread| (thread.tid, thread.pid)).collect();
        let seen = |(id, file): (FileId, &ObservedFile)| {
            let mut readers: Vec<u32> = Vec::new();
            for pid in file.readers.iter().filter_map(|tid| pids.get(tid)) {
                if readers.len() < MOST_READERS && !readers.contains(pid) {
                    readers.push(*pid);
                }
            }
            let path = file.path.as_ref().map(PathBuf::from);
            (id.any_generation(), Seen { id, path, readers })
        };
        self.seen.clear();
        self.seen.extend(files.take(FILES).map(seen));
    }

    /// See [`engine::Plane::prepare`].
    pub fn prepare(&mut self, mover: &mut Mover, topology: &Topology, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let to = mv.to;
        match &mv.subject {
            Subject::Thread { .. } => Ok(vec![mover.prepare(topology, mv)?]),
            Subject::Process { pid, start } => {
                let start_ns = Some(*start).filter(|start| *start > 0);
                let process = process::prepare(mover, topology, (*pid, start_ns), to, true)?;
                let undo = process.ready().to_vec();
                self.processes.insert((mv.subject, to), process);
                Ok(undo)
            }
            Subject::File { file, generation } => {
                let unknown =
                    || PlaneError::refused("file_unknown", format!("file {file} was not read in the last window"));
                let seen = self.known(mv).cloned().ok_or_else(unknown)?;
                if *generation > 0 && *generation != u64::from(seen.id.generation) {
                    return Err(PlaneError::Gone { what: format!("file {file}") });
                }
                pages::target(topology, to).map_err(|e| error(&e))?;
                self.files.insert((mv.subject, to), seen);
                Ok(Vec::new())
            }
        }
    }

    /// The file of a move: of the last window, or of the earlier move that this one takes back. A
    /// file that is to go back may not have been read since.
    fn known(&self, mv: &Move) -> Option<&Seen> {
        let Subject::File { file, .. } = &mv.subject else { return None };
        let now = self.seen.get(file);
        if now.is_some_and(|now| now.path.is_some() || !now.readers.is_empty()) {
            return now;
        }
        let earlier = self.latest.iter().rev().find(|latest| latest.is_taken_back_by(mv));
        let same = |earlier: &&Seen| now.is_none_or(|now| now.id == earlier.id);
        earlier.and_then(|latest| latest.seen.as_ref()).filter(same).or(now)
    }

    /// The process whose move was prepared.
    pub fn take_process(&mut self, mv: &Move) -> Result<ProcessMove, PlaneError> {
        self.processes.remove(&(mv.subject, mv.to)).ok_or_else(|| not_prepared(mv))
    }

    /// Lets the memory of a process follow its threads.
    pub fn start_memory(&mut self, process: ProcessMove) -> Started {
        let ProcessId { pid, start_ns } = process.id();
        let Some(memory) = process.memory else { return Started::done() };
        match self.jobs.start(|| Ok(Box::new(memory))) {
            Ok(job) => {
                self.keep(
                    job,
                    Copied { subject: Subject::Process { pid, start: start_ns }, file: None, ranged: false },
                );
                Started::job(job)
            }
            Err(error) => {
                // The threads are where they should be; the kernel brings what they allocate there.
                tracing::warn!(%error, "the memory of a process stays: its copy cannot be started");
                Started::done()
            }
        }
    }

    /// Starts to move the data of a file.
    pub fn start_file(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        self.start_file_with(mv, None)
    }

    fn start_file_with(&mut self, mv: &Move, back: Option<Layout>) -> Result<Started, PlaneError> {
        let seen = self.files.remove(&(mv.subject, mv.to)).ok_or_else(|| not_prepared(mv))?;
        let (id, ranged) = (seen.id, !mv.ranges.is_empty());
        let moved = Copied { subject: mv.subject, file: Some((seen.clone(), mv.from)), ranged };
        let kept = seen.clone();
        // Once a move is taken back, its data is where it was: there is nothing to remember.
        let taken_back = back.is_some();
        let job = self.file_job(seen, (Some(mv.from), mv.to), &mv.ranges, mv.reason == Reason::Demotion, back)?;
        self.open.insert(job, (id, mv.clone()));
        if !taken_back {
            self.remember(job, mv, Some(kept));
            self.keep(job, moved);
        }
        Ok(Started::job(job))
    }

    /// Starts a copy that a plane makes of a file's data by itself. It is polled, paced and
    /// cancelled like any other.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start_copy(&mut self, mv: &Move, copy: impl Copying + 'static) -> Result<Started, PlaneError> {
        let job = self.jobs.start(|| Ok(Box::new(copy))).map_err(no_thread)?;
        if let Subject::File { file, generation } = mv.subject
            && let Ok(generation) = u32::try_from(generation)
        {
            self.open.insert(job, (FileId { generation, ..file }, mv.clone()));
        }
        self.remember(job, mv, None);
        Ok(Started::job(job))
    }

    fn remember(&mut self, job: JobId, mv: &Move, seen: Option<Seen>) {
        self.latest.push_back(Latest { job, mv: mv.clone(), seen });
        self.latest.drain(..self.latest.len().saturating_sub(LATEST));
    }

    /// What was moved by the latest move of the same file that this one takes back, and where it
    /// was.
    ///
    /// # Errors
    ///
    /// That is not known, or not any more.
    pub fn taken_back(&mut self, mv: &Move) -> Result<Layout, PlaneError> {
        let at = self.latest.iter().rposition(|latest| latest.is_taken_back_by(mv));
        // Once: the next one that takes such a move back means the one before.
        let job = at.and_then(|at| self.latest.remove(at)).map(|latest| latest.job);
        job.and_then(|job| self.jobs.take_layout(job)).ok_or_else(|| PlaneError::not_known(mv))
    }

    /// Starts a job that moves a file, or these ranges, or the part on one node, to a node. With
    /// `back` it moves only the pages of this layout, to where they were. With `leave_mapped`,
    /// pages that other processes map stay.
    fn file_job(
        &mut self,
        seen: Seen,
        nodes: (Option<NodeId>, NodeId),
        ranges: &[FileRange],
        leave_mapped: bool,
        back: Option<Layout>,
    ) -> Result<JobId, PlaneError> {
        let proc_root = self.proc_root.clone();
        let ranges: Vec<Range<u64>> = ranges.iter().map(|range| range.start..range.end()).collect();
        let begin = move || open(&proc_root, &seen, nodes, &ranges, leave_mapped, back.as_ref());
        self.jobs.start(begin).map_err(no_thread)
    }

    fn keep(&mut self, job: JobId, moved: Copied) {
        if self.jobs.keeps_ways_back() {
            self.copies.insert(job, moved);
        }
    }

    /// Whether a copy has this file open.
    pub fn has_open(&self, file: FileId) -> bool {
        self.open.values().any(|(open, _)| open.any_generation() == file.any_generation())
    }

    /// Forgets the copies that cannot be sent back, or have nothing to be sent back.
    fn forget(&mut self) {
        for copied in self.jobs.take_given_up().iter().filter_map(|job| self.copies.remove(job)) {
            if self.forgotten.is_none() {
                tracing::warn!(subject = %copied.subject, "too many moves to remember: the oldest are not moved back");
            }
            self.forgotten.get_or_insert((copied.subject, 0)).1 += 1;
        }
        let kept: FxHashSet<JobId> = self.jobs.kept().collect();
        self.copies.retain(|job, _| kept.contains(job));
    }

    /// Joins what the latest move of a subject knows with what its earlier moves know. Together
    /// they say where the data was before all of them.
    fn with_earlier(
        &mut self,
        subject: &Subject,
        mut back: Option<Back>,
        mut file: Option<(Seen, NodeId)>,
    ) -> (Option<Back>, Option<(Seen, NodeId)>) {
        if back.is_none() && file.is_none() {
            return (back, file);
        }
        let of: FxHashSet<JobId> = self.copies.iter().filter(|c| c.1.subject == *subject).map(|c| *c.0).collect();
        for (job, earlier) in self.jobs.take(&of, back.is_some()) {
            let earlier_file = self.copies.remove(&job).and_then(|copied| copied.file);
            if let (Some(file), Some((_, from))) = (&mut file, earlier_file) {
                file.1 = from;
            }
            // If the process runs another program by now, the memory of the earlier one is gone.
            back = match (back, earlier.filter(|earlier| !earlier.gone())) {
                (Some(back), Some(earlier)) => Some(back.with_earlier(earlier)),
                (back, _) => back,
            };
        }
        (back, file)
    }
}

impl Copies for DataMoves {
    fn stuck(&self) -> usize {
        self.jobs.stuck()
    }

    fn poll(&mut self) -> Vec<Progress> {
        let all = self.jobs.poll();
        for progress in all.iter().filter(|progress| progress.state != JobState::Running) {
            if let Some((file, mv)) = self.open.remove(&progress.job) {
                self.ended.push(Ended { file, mv, progress: progress.clone() });
                self.ended.drain(..self.ended.len().saturating_sub(LATEST));
            }
        }
        if all.iter().any(|progress| progress.state != JobState::Running) {
            self.forget();
        }
        all
    }

    fn cancel(&mut self, job: JobId) {
        self.jobs.cancel(job);
    }

    fn pace(&mut self, bytes_per_s: f64) {
        self.jobs.pace(bytes_per_s);
    }

    /// Works for the latest moves, whose layouts are kept.
    fn take_back(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        let layout = self.taken_back(mv)?;
        self.start_file_with(mv, Some(layout))
    }

    fn moves_back(&self) -> bool {
        self.jobs.keeps_ways_back()
    }

    fn move_back(&mut self) -> Option<(Subject, Result<JobId, PlaneError>)> {
        loop {
            let Some((job, back)) = self.jobs.take_last() else {
                let (subject, moves) = self.forgotten.take()?;
                let why = format!("{moves} of the oldest moves, this one first, were too many to remember");
                return Some((subject, Err(PlaneError::refused("too_many", why))));
            };
            let Some(Copied { subject, file, ranged }) = self.copies.remove(&job) else { continue };
            let (back, file) = self.with_earlier(&subject, back, file);
            let started = match (back, file) {
                (Some(Back::Memory(memory)), _) => {
                    self.jobs.start(|| Ok(Box::new(memory.reversed()))).map_err(no_thread)
                }
                (Some(Back::Pages(layout)), Some((seen, from))) => {
                    self.file_job(seen, (None, from), &[], false, Some(layout))
                }
                (None, Some(_)) if ranged => {
                    Err(PlaneError::refused("no_way_back", "where its pages were is not known any more"))
                }
                (None, Some((seen, from))) => self.file_job(seen, (None, from), &[], false, None),
                // Its thread has panicked.
                (_, None) => Err(PlaneError::refused("no_way_back", "where its memory was is not known any more")),
            };
            return Some((subject, started));
        }
    }
}

/// Opens a file of a window, if it is the same inode still, and prepares its move. `back`: only the
/// pages of this layout, to where they were.
fn open(
    proc_root: &Path,
    seen: &Seen,
    (from, to): (Option<NodeId>, NodeId),
    ranges: &[Range<u64>],
    leave_mapped: bool,
    back: Option<&Layout>,
) -> Result<Box<dyn Copying>, JobState> {
    let failed =
        |what: &str, e: io::Error| JobState::Refused { reason: "unreadable", why: format!("{what} {}: {e}", seen.id) };
    let mut inodes = Inodes::new(proc_root);
    inodes.refresh();
    let opened = match (inodes.open(seen.id, &seen.readers), &seen.path) {
        (Err(e), Some(path)) => match inodes.by_path(seen.id, path) {
            // A way that could not be tried may still lead to it, so it does not count as gone.
            Err(other) if other.kind() == io::ErrorKind::NotFound => Err(e),
            opened => opened,
        },
        (opened, _) => opened,
    };
    let path = seen.path.clone().unwrap_or_else(|| PathBuf::from(format!("inode {}", seen.id.ino)));
    let opened = opened.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => JobState::Gone,
        _ => failed("cannot open file", e),
    })?;
    let work: Result<Box<dyn Copying>, FileMoveError> = match back {
        Some(layout) => FileMove::back(&opened.fd, &path, layout).map(|work| Box::new(work) as _),
        None => FileMove::of(opened.fd, &path, ranges, from, to)
            .map(|work| if leave_mapped { work.leave_mapped() } else { work })
            .map(|work| Box::new(work) as _),
    };
    work.map_err(|e| JobState::Refused { reason: reason(&e), why: e.to_string() })
}

fn no_thread(error: io::Error) -> PlaneError {
    PlaneError::failed("no_thread", "its copy cannot be started", error)
}

/// The move was not prepared in this window.
pub fn not_prepared(mv: &Move) -> PlaneError {
    PlaneError::refused("not_prepared", format!("the move of {} was not prepared in this window", mv.subject))
}

fn error(error: &FileMoveError) -> PlaneError {
    PlaneError::refused(reason(error), error.to_string())
}

fn reason(error: &FileMoveError) -> &'static str {
    match error {
        FileMoveError::Refused { reason, .. } | FileMoveError::Target { reason, .. } => reason,
        FileMoveError::File(_) => "unreadable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, ranges: u64) -> FileRange {
        FileRange { start: start * RANGE_BYTES, bytes: ranges * RANGE_BYTES }
    }

    fn moves() -> DataMoves {
        DataMoves::new(Path::new("/proc"))
    }

    fn mv(from: u32, to: u32) -> Move {
        let subject = Subject::File { file: FileId::parse("8:1:9").unwrap(), generation: 0 };
        let ranges = vec![range(3, 2), range(9, 1)];
        Move { subject, pid: 0, from: NodeId(from), to: NodeId(to), reason: Reason::Demotion, why: "".into(), ranges }
    }

    /// The whole of a move counted as moved when it began.
    #[test]
    fn what_a_move_has_not_moved_is_where_it_was() {
        let parts = |done: u64, failed: u64, state: JobState| {
            let left = [("x".to_owned(), failed)].into();
            let progress = Progress { job: JobId(1), bytes: 0, done, there: 0, left, state };
            Ended { file: FileId::default(), mv: mv(0, 2), progress }.parts()
        };
        let (all, none) = (mv(0, 2).ranges, Vec::new());
        assert_eq!(parts(RANGE_BYTES, 5, JobState::Done), Parts { moved: all.clone(), absent: none.clone() });
        for failed in [0, 7] {
            assert_eq!(parts(0, failed, JobState::Done), Parts { moved: none.clone(), absent: all.clone() });
        }
        let early = parts(RANGE_BYTES + 5, 0, JobState::Cancelled);
        assert_eq!(early, Parts { moved: vec![range(3, 1)], absent: none.clone() });
        let later = parts(3 * RANGE_BYTES, 0, JobState::Failed { why: String::new() });
        assert_eq!(later.moved, all);
        assert_eq!(parts(0, 0, JobState::Gone), Parts::default());
    }

    /// A cold file that was to come back was refused, because nobody had read it.
    #[test]
    fn a_file_that_nobody_reads_can_go_back() {
        let mut moves = moves();
        let id = FileId::parse("8:1:9").unwrap();
        let seen = Seen { id, path: None, readers: Vec::new() };
        moves.remember(JobId(1), &mv(0, 2), Some(seen));
        let known = |moves: &DataMoves, mv: &Move| moves.known(mv).is_some();
        assert!(known(&moves, &mv(2, 0)));
        assert!(!known(&moves, &mv(0, 2)) && !known(&moves, &Move { ranges: Vec::new(), ..mv(2, 0) }));
        // Once.
        assert!(moves.taken_back(&mv(2, 0)).is_err());
        assert!(!known(&moves, &mv(2, 0)));
    }
}
