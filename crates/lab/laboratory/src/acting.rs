//! What both planes do alike: binding threads of the machine, copies in the background, and telling
//! a window in the paper's time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::rc::Rc;

use clock::sync::{Mutex, MutexGuard};
use engine::{JobId, JobState, Masks, PlaneError, Progress, Subject, Undo, Undone};
use placement::{NodeBytes, Snapshot};
use topology::{CpuSet, NodeId};

use crate::machine::{Machine, ThreadId};

pub(crate) struct Job {
    pub id: JobId,
    pub state: Mutex<(u64, JobState)>,
    pub bytes: u64,
    /// Bytes for which there was no room.
    pub left: Mutex<u64>,
    pub cancelled: Mutex<bool>,
}

#[derive(Default)]
pub(crate) struct Jobs {
    running: Vec<Rc<Job>>,
    next: u64,
    pace: Rc<Pace>,
}

/// What all copies share.
pub(crate) struct Pace {
    /// Bytes/s of all together.
    rate: Cell<f64>,
    copies: Cell<usize>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rate: Cell::new(f64::INFINITY), copies: Cell::new(0) }
    }
}

impl Pace {
    /// Waits after a step of so many bytes, as long as the share of one of the copies that run now
    /// says.
    pub fn pause(&self, machine: &Machine, thread: ThreadId, began_ns: u64, bytes: u64) {
        let share = self.rate.get() / self.copies.get().max(1) as f64;
        let due = began_ns + (bytes as f64 / share * 1e9) as u64;
        machine.sleep(thread, due.saturating_sub(clock::now_ns()));
    }

    /// A copy is over: the others share the rate.
    pub fn end(&self) {
        self.copies.set(self.copies.get().saturating_sub(1));
    }
}

impl Jobs {
    /// A new one of so many bytes, and the pace that it keeps until its end.
    pub fn start(&mut self, bytes: u64) -> (Rc<Job>, Rc<Pace>) {
        self.next += 1;
        let (id, state) = (JobId(self.next), Mutex::new((0, JobState::Running)));
        let job = Rc::new(Job { id, state, bytes, left: Mutex::default(), cancelled: Mutex::default() });
        self.running.push(Rc::clone(&job));
        self.pace.copies.set(self.pace.copies.get() + 1);
        (job, Rc::clone(&self.pace))
    }

    /// All copies together take no more than so many bytes/s.
    pub fn set_pace(&self, bytes_per_s: f64) {
        self.pace.rate.set(bytes_per_s);
    }

    /// Waits until none runs: they stop at the end of the run.
    pub fn settle(&self) {
        while self.running.iter().any(|job| locked(&job.state).1 == JobState::Running) {
            clock::sleep_until(clock::now_ns() + 1_000_000);
        }
    }

    /// How far they are, in the paper's bytes.
    pub fn poll(&mut self, factor: f64) -> Vec<Progress> {
        let told = |bytes: u64| (bytes as f64 * factor).round() as u64;
        let progress = |job: &Rc<Job>| {
            let (done, state) = locked(&job.state).clone();
            let (bytes, left) = (told(job.bytes.max(done)), told(*locked(&job.left)));
            let left: BTreeMap<_, _> = (left > 0).then(|| ("no_memory".to_owned(), left)).into_iter().collect();
            Progress { job: job.id, bytes, done: told(done), there: 0, left, state }
        };
        let all: Vec<Progress> = self.running.iter().map(progress).collect();
        self.running.retain(|job| locked(&job.state).1 == JobState::Running);
        all
    }

    pub fn cancel(&self, job: JobId) {
        self.running.iter().filter(|known| known.id == job).for_each(|job| *locked(&job.cancelled) = true);
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn gone(what: &str, id: impl Display) -> PlaneError {
    PlaneError::Gone { what: format!("{what} {id}") }
}

/// Why a thread that its load has bound is left alone.
const PINNED: &str = "its load has bound it";

/// Threads of a machine, as moves name them.
impl Machine {
    pub(crate) fn id(&self, node: usize) -> NodeId {
        self.topology().nodes.get(node).map_or(NodeId(0), |node| node.id)
    }

    pub(crate) fn seats(&self) -> Vec<NodeId> {
        self.topology().nodes.iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id).collect()
    }

    pub(crate) fn index(&self, node: NodeId) -> Result<usize, PlaneError> {
        let at = self.topology().nodes.iter().position(|known| known.id == node);
        at.ok_or_else(|| PlaneError::refused("no_node", format!("there is no node {node}")))
    }

    pub(crate) fn seat(&self, node: NodeId) -> Result<usize, PlaneError> {
        match self.seats().contains(&node) {
            true => self.index(node),
            false => {
                self.index(node).and_then(|_| Err(PlaneError::refused("no_cpus", format!("node {node} has no CPUs"))))
            }
        }
    }

    fn cpus(&self, node: Option<usize>) -> CpuSet {
        let topology = self.topology();
        node.and_then(|node| topology.nodes.get(node)).map_or_else(|| topology.cpus(), |node| node.cpus.clone())
    }

    pub(crate) fn alive(&self, tid: u32) -> Result<ThreadId, PlaneError> {
        let thread = (tid as usize).checked_sub(1).filter(|thread| !self.has_ended(*thread));
        thread.ok_or_else(|| gone("thread", tid))
    }

    /// The same of a thread that a policy may move.
    pub(crate) fn movable(&self, tid: u32) -> Result<ThreadId, PlaneError> {
        let thread = self.alive(tid)?;
        match self.pinned(thread) {
            None => Ok(thread),
            Some(_) => Err(PlaneError::refused("pinned", PINNED)),
        }
    }

    /// Where a thread may run, and why no policy may move it.
    pub(crate) fn may_run(&self, thread: ThreadId) -> (Vec<NodeId>, Option<String>) {
        match self.pinned(thread) {
            None => (self.seats(), None), // homenode moves what it has bound itself
            Some(node) => (vec![self.id(node)], Some(PINNED.to_owned())),
        }
    }

    /// What undoes a binding of a thread.
    pub(crate) fn undo_of(&self, thread: ThreadId, subject: Subject, pid: u32, to: usize) -> Undo {
        let bound = self.bound(thread);
        let masks = Masks { before: self.cpus(bound), ours: self.cpus(Some(to)), unbound: bound.is_none() };
        Undo { subject, pid, masks: Some(masks), payload: None }
    }

    pub(crate) fn unbind(&self, thread: ThreadId, undo: &Undo) -> Undone {
        let Some(masks) = &undo.masks else { return Undone::Restored };
        if self.cpus(self.bound(thread)) != masks.ours {
            return Undone::ChangedByOthers;
        }
        let nodes = &self.topology().nodes;
        self.bind(thread, nodes.iter().position(|node| !masks.unbound && node.cpus == masks.before));
        Undone::Restored
    }
}

/// Tells a window in the paper's time: each second and each byte as `factor`. See
/// [`crate::plane`].
pub(crate) fn magnify(snapshot: &mut Snapshot, factor: f64) {
    let times = |bytes: &mut u64| *bytes = (*bytes as f64 * factor).round() as u64;
    let all = |bytes: &NodeBytes| -> NodeBytes {
        bytes.iter().map(|(node, bytes)| (node, (bytes as f64 * factor).round() as u64)).collect()
    };
    snapshot.time_s *= factor;
    snapshot.window_s *= factor;
    for node in &mut snapshot.nodes {
        [&mut node.read_bytes, &mut node.write_bytes, &mut node.memory_free].into_iter().for_each(times);
        node.cpu_s = node.cpu_s.map(|seconds| seconds * factor);
        if let Some(measured) = &mut node.measured {
            times(&mut measured.bytes);
            measured.read_bytes.iter_mut().for_each(times);
        }
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
    for process in &mut snapshot.processes {
        process.resident = all(&process.resident);
        for mapped in &mut process.mapped {
            [&mut mapped.hot_bytes, &mut mapped.cold_bytes].into_iter().for_each(times);
            mapped.touched_bytes.iter_mut().for_each(times);
        }
    }
}
