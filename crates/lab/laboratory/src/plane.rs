//! The volume as a plane: the engine with its rails and the policies drive it as they drive a
//! mount.
//!
//! **Problem.** A minute of the papers is a minute of calls: hours of a processor for one figure.
//! Policies, rails and papers have times in seconds and amounts in bytes, in settings and in code.
//!
//! **Approach.** Memory, cores and software run at their real speed; what is shortened is the
//! window, by the factor of the figure. Policies and rails are told the paper's time: a window of 5
//! ms at factor 200 is told as one of a second, and each byte, each second of a core and each byte
//! of a file as 200. Rates, shares and ratios stay what they are, and no setting, threshold or line
//! of a policy changes. What is different is the number of calls that a window is made of.
//!
//! Threads move at their next dispatch. Files are copied by `fs::Volume::migrate` by a thread of
//! the machine on a core of the node that they go to, whose bytes queue at the controllers, and no
//! faster than the engine allows.
//!
//! **Limits.** Heat of ranges is not observed: no policy moves parts of files. Processes do not
//! move. Threads start no threads.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use clock::sync::Mutex;
use engine::{Copies, JobId, JobState, Masks, Plane, PlaneError, Progress, Started, Subject, Undo, Undone, Write};
use fs::{Ino, Migration, Traffic};
use placement::{Move, NodeBytes, Snapshot};
use topology::{CpuSet, FileId, NodeId, Topology};
use window::Window;

use crate::machine::{Machine, ThreadId};
use crate::thread::{Lab, tid};

/// The device of files, and the process of threads: any.
const DEVICE: u32 = 7;
const PROCESS: u32 = 1000;
/// Bytes of a step of a copy, after which it looks at its rate.
const STEP: u64 = 64 << 10;

/// A copy in the background.
struct Job {
    id: JobId,
    state: Mutex<(u64, JobState)>,
    bytes: u64,
    cancelled: Mutex<bool>,
}

/// The laboratory's volume and machine, as the engine sees them.
pub struct LabPlane {
    lab: Rc<Lab>,
    before: Vec<Traffic>,
    busy_before: Vec<f64>,
    began_ns: u64,
    jobs: Vec<Rc<Job>>,
    next_job: u64,
    /// Bytes/s that all copies together may take.
    pace: f64,
}

impl LabPlane {
    /// Observes from now on.
    pub fn new(lab: Rc<Lab>) -> Self {
        let (before, busy_before) = (window::traffic(&lab.volume), lab.machine.busy_s());
        Self { lab, before, busy_before, began_ns: clock::now_ns(), jobs: Vec::new(), next_job: 0, pace: f64::INFINITY }
    }

    /// Waits until no copy runs: they stop at the end of the run.
    pub fn settle(&mut self) {
        while self.jobs.iter().any(|job| locked(&job.state).1 == JobState::Running) {
            clock::sleep_until(clock::now_ns() + 1_000_000);
        }
    }

    fn machine(&self) -> &Arc<Machine> {
        &self.lab.machine
    }

    fn window(&mut self) -> Snapshot {
        let lab = Rc::clone(&self.lab);
        let (uses, untold) = lab.volume.take_uses();
        let now = clock::now_ns();
        let window_s = (now - std::mem::replace(&mut self.began_ns, now)) as f64 * 1e-9;
        let seen = Window { volume: &lab.volume, device: DEVICE, placement: lab.placement, regions: self.before.len() };
        let readers = window::readers(&uses, |_| false);
        let mut threads = Vec::new();
        for (tid, uses) in window::by_thread(&uses) {
            let Some(index) = (tid as usize).checked_sub(1) else { continue };
            let (used, node) = (lab.machine.take(index), self.id(lab.machine.node_of(index)));
            let mut thread = placement::Thread {
                tid,
                pid: PROCESS,
                comm: format!("t{tid}"),
                start_ns: Some(u64::from(tid)),
                process_start_ns: Some(1),
                node,
                cpu_s: used.core_s,
                wait_s: Some(used.waited_s),
                // Homenode moves what it has bound itself.
                allowed_nodes: self.seats(),
                shares_file: window::shares(tid, uses, &readers),
                ..placement::Thread::default()
            };
            seen.fill(&mut thread, uses);
            threads.push(thread);
        }
        let files = readers.into_iter().filter_map(|(ino, readers)| seen.file(ino, readers, Vec::new(), false));
        let files = files.collect();
        let mut nodes = seen.nodes(lab.machine.topology(), &mut self.before);
        let busy = lab.machine.busy_s();
        for (node, (now, before)) in nodes.iter_mut().zip(busy.iter().zip(&self.busy_before)) {
            node.cpu_s = Some(now - before);
        }
        self.busy_before = busy;
        let mut notes = Vec::new();
        if untold > 0 {
            notes.push(format!("{untold} bytes of so many files at once that they were not counted by file"));
        }
        let version = placement::snapshot::VERSION;
        let time_s = now as f64 * 1e-9;
        let mut snapshot = Snapshot { version, time_s, window_s, nodes, threads, files, notes, ..Snapshot::default() };
        magnify(&mut snapshot, lab.factor);
        snapshot
    }

    fn id(&self, node: usize) -> NodeId {
        self.machine().topology().nodes.get(node).map_or(NodeId(0), |node| node.id)
    }

    fn seats(&self) -> Vec<NodeId> {
        self.machine().topology().nodes.iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id).collect()
    }

    fn index(&self, node: NodeId) -> Result<usize, PlaneError> {
        let at = self.machine().topology().nodes.iter().position(|known| known.id == node);
        at.ok_or_else(|| PlaneError::refused("no_node", format!("there is no node {node}")))
    }

    fn cpus(&self, node: Option<usize>) -> CpuSet {
        let topology = self.machine().topology();
        node.and_then(|node| topology.nodes.get(node)).map_or_else(|| topology.cpus(), |node| node.cpus.clone())
    }

    fn alive(&self, tid: u32) -> Result<ThreadId, PlaneError> {
        let thread = (tid as usize).checked_sub(1).filter(|thread| !self.machine().has_ended(*thread));
        thread.ok_or_else(|| gone("thread", tid))
    }

    fn file(&self, file: FileId, generation: u64) -> Result<Ino, PlaneError> {
        let ino = Ino::from_raw(file.ino).filter(|_| file.dev == DEVICE).ok_or_else(|| gone("file", file))?;
        let stat = self.lab.volume.stat(ino).map_err(|_| gone("file", file))?;
        match generation > 0 && generation != u64::from(stat.generation) {
            true => Err(gone("file", file)),
            false => Ok(ino),
        }
    }

    fn start_copy(&mut self, mv: &Move, (file, generation): (FileId, u64)) -> Result<Started, PlaneError> {
        let ino = self.file(file, generation)?;
        let (to, node) = (mv.to.0, self.index(mv.to)?);
        if self.lab.volume.is_migrating(ino) {
            return Err(PlaneError::refused("busy", format!("file {file} is being moved")));
        }
        let bytes = self.lab.volume.bytes_by_node(ino).map_err(|_| gone("file", file))?;
        let bytes = bytes.get(&Some(mv.from.0)).copied().unwrap_or_default();
        self.next_job += 1;
        let job = Rc::new(Job {
            id: JobId(self.next_job),
            state: Mutex::new((0, JobState::Running)),
            bytes,
            cancelled: Mutex::default(),
        });
        let running = self.jobs.len() + 1;
        let (lab, own, from) = (Rc::clone(&self.lab), Rc::clone(&job), mv.from.0);
        let pace = self.pace / running as f64;
        self.machine().spawn(Some(node), move |thread| copy(&lab, thread, &own, ino, (from, to, node), pace));
        self.jobs.push(Rc::clone(&job));
        Ok(Started::job(job.id))
    }
}

/// Copies a file, on a core of the node that it goes to.
fn copy(lab: &Rc<Lab>, thread: ThreadId, job: &Job, ino: Ino, (from, to, node): (u32, u32, usize), pace: f64) {
    lab.machine.bind(thread, Some(node));
    let (began, mut moved, mut first) = (clock::now_ns(), 0, 0);
    let is_over = || *locked(&job.cancelled) || clock::now_ns() >= lab.end_ns;
    let ended = loop {
        if is_over() {
            break JobState::Cancelled;
        }
        lab.machine.take_core(thread);
        let migration = Migration { from: Some(from), to, first, ..Migration::default() };
        let step = fs::as_thread(tid(thread), || {
            lab.volume.migrate(ino, migration, |progress| progress.moved * 4096 < STEP && !is_over())
        });
        lab.machine.end_call(thread);
        match step {
            Err(error) => break JobState::Failed { why: error.to_string() },
            Ok(step) => {
                moved += step.moved * 4096;
                first = step.next;
                locked(&job.state).0 = moved;
                if !step.cancelled {
                    break JobState::Done;
                }
            }
        }
        let due = began + (moved as f64 / pace * 1e9) as u64;
        lab.machine.sleep(thread, due.saturating_sub(clock::now_ns()));
    };
    locked(&job.state).1 = ended;
}

fn locked<T>(mutex: &Mutex<T>) -> clock::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Tells a window in the paper's time: see the module.
fn magnify(snapshot: &mut Snapshot, factor: f64) {
    let times = |bytes: &mut u64| *bytes = (*bytes as f64 * factor).round() as u64;
    let all = |bytes: &NodeBytes| -> NodeBytes {
        bytes.iter().map(|(node, bytes)| (node, (bytes as f64 * factor).round() as u64)).collect()
    };
    snapshot.time_s *= factor;
    snapshot.window_s *= factor;
    for node in &mut snapshot.nodes {
        [&mut node.read_bytes, &mut node.write_bytes, &mut node.memory_free].into_iter().for_each(times);
        node.cpu_s = node.cpu_s.map(|seconds| seconds * factor);
    }
    for thread in &mut snapshot.threads {
        thread.cpu_s *= factor;
        thread.wait_s = thread.wait_s.map(|seconds| seconds * factor);
        (thread.read_bytes, thread.write_bytes) = (all(&thread.read_bytes), all(&thread.write_bytes));
        for file in &mut thread.files {
            (file.read_bytes, file.write_bytes) = (all(&file.read_bytes), all(&file.write_bytes));
        }
    }
    for file in &mut snapshot.files {
        file.bytes = all(&file.bytes);
        file.size.iter_mut().for_each(times);
    }
}

fn gone(what: &str, id: impl Display) -> PlaneError {
    PlaneError::Gone { what: format!("{what} {id}") }
}

impl Copies for LabPlane {
    fn poll(&mut self) -> Vec<Progress> {
        let factor = self.lab.factor;
        let told = |bytes: u64| (bytes as f64 * factor).round() as u64;
        let progress = |job: &Rc<Job>| {
            let (done, state) = locked(&job.state).clone();
            let bytes = told(job.bytes.max(done));
            Progress { job: job.id, bytes, done: told(done), there: 0, left: BTreeMap::new(), state }
        };
        let all: Vec<Progress> = self.jobs.iter().map(progress).collect();
        self.jobs.retain(|job| locked(&job.state).1 == JobState::Running);
        all
    }

    fn cancel(&mut self, job: JobId) {
        self.jobs.iter().filter(|known| known.id == job).for_each(|job| *locked(&job.cancelled) = true);
    }

    fn pace(&mut self, bytes_per_s: f64) {
        self.pace = bytes_per_s;
    }
}

impl Plane for LabPlane {
    fn topology(&self) -> &Topology {
        self.lab.machine.topology()
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        let window_ns = ((window.as_secs_f64() / self.lab.factor * 1e9).round() as u64).max(1);
        clock::sleep_until(self.began_ns + window_ns);
        Ok(self.window())
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let to = self.index(mv.to)?;
        match mv.subject {
            Subject::Thread { tid, start } => {
                let thread = self.alive(tid)?;
                if !self.seats().contains(&mv.to) {
                    return Err(PlaneError::refused("no_cpus", format!("node {} has no CPUs", mv.to)));
                }
                let bound = self.machine().bound(thread);
                let masks = Masks { before: self.cpus(bound), ours: self.cpus(Some(to)), unbound: bound.is_none() };
                let subject = Subject::Thread { tid, start };
                Ok(vec![Undo { subject, pid: PROCESS, masks: Some(masks), payload: None }])
            }
            Subject::File { file, generation } => self.file(file, generation).map(|_| Vec::new()),
            Subject::Process { .. } => {
                Err(PlaneError::refused("not_supported", "the laboratory's volume moves no processes"))
            }
        }
    }

    fn start(&mut self, mv: &Move, _: &[Undo], _: &mut Write<'_>) -> Result<Started, PlaneError> {
        match mv.subject {
            Subject::File { file, generation } => self.start_copy(mv, (file, generation)),
            Subject::Thread { tid, .. } => {
                let (thread, to) = (self.alive(tid)?, self.index(mv.to)?);
                self.machine().bind(thread, Some(to));
                Ok(Started::done())
            }
            Subject::Process { .. } => Err(PlaneError::not_known(mv)),
        }
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        let Subject::Thread { tid, .. } = undo.subject else { return Ok(Undone::Gone) };
        let Ok(thread) = self.alive(tid) else { return Ok(Undone::Gone) };
        let Some(masks) = &undo.masks else { return Ok(Undone::Restored) };
        if self.cpus(self.machine().bound(thread)) != masks.ours {
            return Ok(Undone::ChangedByOthers);
        }
        let nodes = &self.machine().topology().nodes;
        let before = nodes.iter().position(|node| !masks.unbound && node.cpus == masks.before);
        self.machine().bind(thread, before);
        Ok(Undone::Restored)
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        matches!(undo.subject, Subject::Thread { tid, .. } if self.alive(tid).is_err())
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }
}
