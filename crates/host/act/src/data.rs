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
//! **The way back.** For each job that has ended and moved something there is one [`Way`], in the
//! order of their ends, however the job ended; of processes only with `--move-back`. It goes when
//!
//! 1. a later job has taken all of it back: a plan that did not pay ([`DataMoves::way_back`]),
//! 2. the end of homenode comes to it ([`DataMoves::move_back`]),
//! 3. its process is gone, or
//! 4. it is the oldest of too many. With `--move-back` that is said.
//!
//! Nothing else knows what a job has moved. While a job runs, [`Running`] has what its way will
//! need, and [`Jobs`] has the copy itself.
//!
//! **Limits.** Each thread of a process is examined in the window. A file on a file system that
//! asks a server is refused. So are files on DAX: moving them takes CAP_SYS_ADMIN, which the daemon
//! gives up. On the way back, each page goes where it was; of several moves of one file or process,
//! the first says where. Until then, two files of procfs are open for each process whose memory was
//! moved.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use engine::{Copies, JobId, JobState, PlaneError, Progress, Started, Subject, Undo};
use placement::ranges::Ranges;
use placement::{FileRange, Move, ObservedFile, RANGE_BYTES, Reason, Thread};
use rustc_hash::FxHashMap;
use topology::{FileId, NodeId, Topology};

use super::Mover;
use super::copying::{Back, Copying};
use super::memory::Layout;
use super::pages::{self, FileMove, FileMoveError};
use super::process::{self, ProcessMove};
use crate::files::{Inodes, MOST_READERS};
use crate::jobs::Jobs;

/// Most ways that are kept with `--move-back`. That of a process keeps two files open.
const WAYS: usize = 1024;
/// The same for plans that may not pay, and most bytes of their layouts.
const FEW: usize = 256;
const LAYOUTS_BYTES: usize = 8 << 20;
/// Most files that are remembered from a window.
const FILES: usize = 65_536;

#[derive(Clone, Debug)]
struct Seen {
    id: FileId,
    path: Option<PathBuf>,
    /// Processes that may have it open.
    readers: Vec<u32>,
}

#[derive(Debug, Default)]
pub struct DataMoves {
    pub jobs: Jobs,
    proc_root: PathBuf,
    /// Files of the last window, of any generation.
    seen: FxHashMap<FileId, Seen>,
    /// Moves that were prepared in this window, by subject and target.
    prepared: FxHashMap<(Subject, NodeId), Prepared>,
    /// What the jobs move, but for those of [`Copies::move_back`].
    running: FxHashMap<JobId, Running>,
    ways: VecDeque<Way>,
    /// All data is to go back at the end.
    moves_back: bool,
    /// The first subject whose data stays because its way was the oldest of too many, and the
    /// number of such ways.
    dropped: Option<(Subject, u64)>,
    /// Moves of files that have ended since they were asked for.
    ended: Vec<Ended>,
}

/// A move that was prepared in this window.
#[derive(Debug)]
enum Prepared {
    Process(Box<ProcessMove>),
    File(Seen),
}

/// What a job moves.
#[derive(Debug)]
struct Running {
    mv: Move,
    /// `None`: the memory of a process.
    file: Option<Seen>,
    /// The job whose way this one goes back.
    takes_back: Option<JobId>,
}

/// How to send back what a job has moved.
#[derive(Debug)]
struct Way {
    job: JobId,
    mv: Move,
    /// `None`: the memory of a process.
    file: Option<Seen>,
    /// `None`: its move has not kept where its pages were.
    back: Option<Back>,
}

impl Way {
    /// Whether a move goes this way back.
    fn is_of(&self, mv: &Move) -> bool {
        let own = &self.mv;
        (&own.subject, own.from, own.to, &own.ranges) == (&mv.subject, mv.to, mv.from, &mv.ranges)
    }

    fn gone(&self) -> bool {
        self.back.as_ref().is_some_and(Back::gone)
    }

    /// Bytes that its layout takes.
    fn size(&self) -> usize {
        match &self.back {
            Some(Back::Pages(layout)) => layout.size(),
            _ => 0,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Ended {
    /// The file as the move opened it.
    pub file: FileId,
    pub mv: Move,
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

impl DataMoves {
    /// No moves yet, on the machine whose procfs is mounted here. `moves_back`: all data is to go
    /// back at the end.
    pub fn new(proc_root: &Path, moves_back: bool) -> Self {
        Self { proc_root: proc_root.to_owned(), moves_back, ..Self::default() }
    }

    /// The moves of files that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Starts a window. Moves that were prepared and not started become void.
    pub fn begin_window(&mut self) {
        self.prepared.clear();
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

    pub fn prepare(&mut self, mover: &mut Mover, topology: &Topology, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let to = mv.to;
        match &mv.subject {
            Subject::Thread(_) => Ok(vec![mover.prepare(topology, mv)?]),
            Subject::Process(id) => {
                let process = process::prepare(mover, topology, *id, to, true)?;
                let undo = process.ready().to_vec();
                self.prepared.insert((mv.subject, to), Prepared::Process(Box::new(process)));
                Ok(undo)
            }
            Subject::File(file) => {
                let unknown =
                    || PlaneError::refused("file_unknown", format!("file {file} was not read in the last window"));
                let seen = self.known(mv).cloned().ok_or_else(unknown)?;
                if file.generation > 0 && file.generation != seen.id.generation {
                    return Err(PlaneError::Gone { what: format!("file {file}") });
                }
                pages::target(topology, to).map_err(|e| error(&e))?;
                self.prepared.insert((mv.subject, to), Prepared::File(seen));
                Ok(Vec::new())
            }
        }
    }

    /// The file of a move: of the last window, or of the way back that it goes. A file that is to
    /// go back may not have been read since.
    fn known(&self, mv: &Move) -> Option<&Seen> {
        let Subject::File(file) = &mv.subject else { return None };
        let now = self.seen.get(&file.any_generation());
        if now.is_some_and(|now| now.path.is_some() || !now.readers.is_empty()) {
            return now;
        }
        let same = |earlier: &&Seen| now.is_none_or(|now| now.id == earlier.id);
        self.way(mv).and_then(|way| way.file.as_ref()).filter(same).or(now)
    }

    /// The latest way that this move goes back.
    fn way(&self, mv: &Move) -> Option<&Way> {
        self.ways.iter().rev().find(|way| way.is_of(mv))
    }

    pub fn take_process(&mut self, mv: &Move) -> Result<ProcessMove, PlaneError> {
        match self.prepared.remove(&(mv.subject, mv.to)) {
            Some(Prepared::Process(process)) => Ok(*process),
            _ => Err(not_prepared(mv)),
        }
    }

    /// Lets the memory of a process follow its threads.
    pub fn start_memory(&mut self, mv: &Move, process: ProcessMove) -> Started {
        let id = process.id();
        let Some(memory) = process.memory else { return Started::done() };
        match self.jobs.start(|| Ok(Box::new(memory))) {
            Ok(job) => {
                let mv = Move { subject: Subject::Process(id), ..mv.clone() };
                self.running.insert(job, Running { mv, file: None, takes_back: None });
                Started::job(job)
            }
            Err(error) => {
                // The threads are where they should be; the kernel brings what they allocate there.
                tracing::warn!(%error, "the memory of a process stays: its copy cannot be started");
                Started::done()
            }
        }
    }

    pub fn start_file(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        self.start_file_with(mv, None)
    }

    fn start_file_with(&mut self, mv: &Move, back: Option<(JobId, Layout)>) -> Result<Started, PlaneError> {
        let Some(Prepared::File(file)) = self.prepared.remove(&(mv.subject, mv.to)) else {
            return Err(not_prepared(mv));
        };
        let (takes_back, back) = back.unzip();
        let leave_mapped = mv.reason == Reason::Demotion;
        let job = self.file_job(file.clone(), (Some(mv.from), mv.to), &mv.ranges, leave_mapped, back)?;
        self.running.insert(job, Running { mv: mv.clone(), file: Some(file), takes_back });
        Ok(Started::job(job))
    }

    /// Starts a copy that a plane makes of a file's data by itself. It is polled, paced and
    /// cancelled like any other. `takes_back`: the job whose way it goes back.
    pub fn start_copy(
        &mut self,
        mv: &Move,
        takes_back: Option<JobId>,
        copy: impl Copying + 'static,
    ) -> Result<Started, PlaneError> {
        let job = self.jobs.start(|| Ok(Box::new(copy))).map_err(no_thread)?;
        let file = match mv.subject {
            Subject::File(id) => Some(Seen { id, path: None, readers: Vec::new() }),
            _ => None,
        };
        self.running.insert(job, Running { mv: mv.clone(), file, takes_back });
        Ok(Started::job(job))
    }

    /// The latest job whose way this move goes back, with what it has moved and where that was.
    pub fn way_back(&self, mv: &Move) -> Result<(JobId, Layout), PlaneError> {
        match self.way(mv) {
            Some(Way { job, back: Some(Back::Pages(layout)), .. }) => Ok((*job, layout.clone())),
            _ => Err(PlaneError::not_known(mv)),
        }
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

    pub fn has_open(&self, file: FileId) -> bool {
        let mut open = self.running.values().filter_map(|running| running.file.as_ref());
        open.any(|open| open.id.any_generation() == file.any_generation())
    }

    fn end(&mut self, progress: &Progress, back: Option<Back>) {
        let Some(Running { mv, file, takes_back }) = self.running.remove(&progress.job) else { return };
        if let Some(file) = &file {
            self.ended.push(Ended { file: file.id, mv: mv.clone(), progress: progress.clone() });
            self.ended.drain(..self.ended.len().saturating_sub(FEW));
        }
        if let Some(job) = takes_back {
            if progress.state == JobState::Done && progress.failed() == 0 {
                self.ways.retain(|way| way.job != job);
            }
        } else if progress.copied() > 0 && (self.moves_back || mv.subject.is_file()) {
            self.keep(Way { job: progress.job, mv, file, back });
        }
    }

    fn keep(&mut self, way: Way) {
        self.ways.push_back(way);
        self.ways.retain(|way| !way.gone());
        let (most, most_bytes) = if self.moves_back { (WAYS, usize::MAX) } else { (FEW, LAYOUTS_BYTES) };
        let mut bytes: usize = self.ways.iter().map(Way::size).sum();
        while self.ways.len() > most || bytes > most_bytes {
            let Some(oldest) = self.ways.pop_front() else { break };
            bytes -= oldest.size();
            let subject = oldest.mv.subject;
            if self.moves_back && self.dropped.is_none() {
                tracing::warn!(%subject, "too many moves to remember: the oldest are not moved back");
            }
            self.dropped.get_or_insert((subject, 0)).1 += 1;
        }
    }

    /// Takes the latest way, joined with the earlier ones of its subject. Together they say where
    /// the data was before all of them. Ways that do not know it are taken apart from the others.
    fn take_way(&mut self) -> Option<Way> {
        let mut last = self.ways.pop_back()?;
        let joins = |way: &Way| way.mv.subject == last.mv.subject && way.back.is_some() == last.back.is_some();
        let (earlier, others) = std::mem::take(&mut self.ways).into_iter().partition::<VecDeque<Way>, _>(joins);
        self.ways = others;
        for Way { mv, back, .. } in earlier.into_iter().rev() {
            last.mv.from = mv.from;
            last.back = match (last.back, back) {
                // Else the process runs another program by now, and that memory is gone.
                (Some(back), Some(earlier)) if !earlier.gone() => Some(back.with_earlier(earlier)),
                (back, _) => back,
            };
        }
        Some(last)
    }
}

impl Copies for DataMoves {
    fn stuck(&self) -> usize {
        self.jobs.stuck()
    }

    fn poll(&mut self) -> Vec<Progress> {
        let mut all = Vec::new();
        for (progress, back) in self.jobs.poll() {
            if progress.state != JobState::Running {
                self.end(&progress, back);
            }
            all.push(progress);
        }
        all
    }

    fn cancel(&mut self, job: JobId) {
        self.jobs.cancel(job);
    }

    fn pace(&mut self, bytes_per_s: f64) {
        self.jobs.pace(bytes_per_s);
    }

    fn take_back(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        let back = self.way_back(mv)?;
        self.start_file_with(mv, Some(back))
    }

    fn moves_back(&self) -> bool {
        self.moves_back
    }

    fn move_back(&mut self) -> Option<(Subject, Result<JobId, PlaneError>)> {
        let Some(Way { mv, file, back, .. }) = self.take_way() else {
            let (subject, moves) = self.dropped.take()?;
            let why = format!("{moves} of the oldest moves, this one first, were too many to remember");
            return Some((subject, Err(PlaneError::refused("too_many", why))));
        };
        let to = (None, mv.from);
        let started = match (back, file) {
            (Some(Back::Memory(memory)), _) => self.jobs.start(|| Ok(Box::new(memory.reversed()))).map_err(no_thread),
            (Some(Back::Pages(layout)), Some(file)) => self.file_job(file, to, &[], false, Some(layout)),
            // All that is there. Of ranges it would be too much.
            (None, Some(file)) if mv.ranges.is_empty() => self.file_job(file, to, &[], false, None),
            // Of a process: its thread has panicked.
            _ => Err(PlaneError::refused("no_way_back", "where its data was is not known any more")),
        };
        Some((mv.subject, started))
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
    use std::process::Command;
    use topology::ProcessId;

    use linux::threads::Threads;

    use super::*;
    use crate::memory::MemoryMove;

    fn range(start: u64, ranges: u64) -> FileRange {
        FileRange { start: start * RANGE_BYTES, bytes: ranges * RANGE_BYTES }
    }

    fn mv(from: u32, to: u32) -> Move {
        let subject = Subject::File(FileId::parse("8:1:9").unwrap());
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

    /// A job that moves a file, or a process, has ended.
    fn ends(moves: &mut DataMoves, mv: Move, takes_back: Option<JobId>, progress: Progress, back: Option<Back>) {
        let id = FileId::parse("8:1:9").unwrap();
        let file = mv.subject.is_file().then(|| Seen { id, path: None, readers: Vec::new() });
        moves.running.insert(progress.job, Running { mv, file, takes_back });
        moves.end(&progress, back);
    }

    fn done(job: u64, done: u64) -> Progress {
        Progress { job: JobId(job), bytes: 9, done, there: 0, left: [].into(), state: JobState::Done }
    }

    fn pages(runs: u64) -> Option<Back> {
        let mut layout = Layout::default();
        (0..runs).for_each(|page| layout.push(2 * page, NodeId(0)));
        Some(Back::Pages(layout))
    }

    fn jobs(moves: &DataMoves) -> Vec<u64> {
        moves.ways.iter().map(|way| way.job.0).collect()
    }

    /// A cold file that was to come back was refused, because nobody had read it.
    #[test]
    fn a_file_that_nobody_reads_can_go_back() {
        let mut moves = DataMoves::new(Path::new("/proc"), false);
        ends(&mut moves, mv(0, 2), None, done(1, 5), pages(3));
        let known = |moves: &DataMoves, mv: &Move| moves.known(mv).is_some();
        assert!(known(&moves, &mv(2, 0)));
        assert!(!known(&moves, &mv(0, 2)) && !known(&moves, &Move { ranges: Vec::new(), ..mv(2, 0) }));
        // Once it is back. What was stopped, or left some of it, has not brought it back.
        let (stopped, mut left) = (Progress { state: JobState::Cancelled, ..done(2, 1) }, done(3, 1));
        left.left = [("pinned".to_owned(), 4096)].into();
        for (back, stays) in [(stopped, true), (left, true), (done(4, 5), false)] {
            let way = moves.way_back(&mv(2, 0)).unwrap();
            assert_eq!((way.0, way.1.pages()), (JobId(1), 3));
            ends(&mut moves, mv(2, 0), Some(JobId(1)), back, pages(3));
            assert_eq!(known(&moves, &mv(2, 0)), stays);
        }
        assert!(moves.way_back(&mv(2, 0)).is_err());
    }

    /// Not of jobs that moved nothing, nor of ended processes, nor of processes that only a plan
    /// could take back, nor of more than the last.
    #[test]
    fn ways_are_kept_of_what_can_go_back() {
        let (proc, mut child) = (Path::new("/proc"), Command::new("sleep").arg("600").spawn().unwrap());
        let id = Threads::new(proc).stat(child.id()).unwrap().unwrap().process();
        let memory = || Some(Back::Memory(Box::new(MemoryMove::new(proc, id, NodeId(0)).unwrap().unwrap())));
        let process = || Move { subject: Subject::Process(ProcessId::new(id.pid, 0)), ranges: Vec::new(), ..mv(0, 1) };
        let mut few = DataMoves::new(proc, false);
        ends(&mut few, process(), None, done(1, 5), memory());
        ends(&mut few, mv(0, 2), None, done(2, 0), pages(3));
        assert_eq!(jobs(&few), [0; 0]);
        let mut all = DataMoves::new(proc, true);
        ends(&mut all, process(), None, done(1, 5), memory());
        assert_eq!(jobs(&all), [1]);
        child.kill().unwrap();
        child.wait().unwrap();
        for job in 2..WAYS as u64 + 5 {
            ends(&mut all, mv(0, 2), None, done(job, 5), pages(3));
        }
        assert_eq!((all.ways.len(), all.ways[0].job.0, all.dropped.unwrap().1), (WAYS, 5, 3));
        // Of large layouts fewer, unless all data is to go back.
        let large = LAYOUTS_BYTES as u64 / 8;
        for job in 2..5 {
            ends(&mut few, mv(0, 2), None, done(job, 5), pages(large));
            ends(&mut all, mv(0, 2), None, done(WAYS as u64 + job, 5), pages(large));
        }
        assert_eq!((jobs(&few), all.ways.len()), (vec![3, 4], WAYS));
    }

    /// Apart from those that do not know where the data was. After its first period a trial sent
    /// nothing back any more, and did not say so.
    #[test]
    fn the_ways_of_one_subject_are_taken_together() {
        let mut moves = DataMoves::new(Path::new("/proc"), true);
        for _ in 0..2 {
            for (job, known) in [(1, true), (2, true), (3, false), (4, true)] {
                ends(&mut moves, mv(job as u32, 9), None, done(job, 5), pages(job).filter(|_| known));
            }
            let other = Subject::File(FileId::parse("8:1:7").unwrap());
            ends(&mut moves, Move { subject: other, ..mv(5, 9) }, None, done(5, 5), pages(1));
            let taken = std::iter::from_fn(|| moves.take_way());
            let taken: Vec<_> = taken.map(|way| (way.job.0, way.mv.from.0, way.back.is_some())).collect();
            assert_eq!(taken, [(5, 5, true), (4, 1, true), (3, 3, false)]);
        }
    }
}
