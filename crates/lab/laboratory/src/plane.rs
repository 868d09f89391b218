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

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::{Copies, JobId, JobState, Plane, PlaneError, Progress, Started, Subject, Undo, Undone, Write};
use fs::{Ino, Migration, Traffic};
use placement::{Move, Snapshot};
use topology::{FileId, Topology};
use window::Window;

use crate::acting::{Job, Jobs, Pace, gone, locked, magnify};
use crate::machine::{Machine, ThreadId};
use crate::thread::{Lab, tid};

/// The device of files: any.
const DEVICE: u32 = 7;
/// Bytes of a step of a copy, after which it looks at its rate.
const STEP: u64 = 64 << 10;

/// The laboratory's volume and machine, as the engine sees them.
pub struct LabPlane {
    lab: Rc<Lab>,
    before: Vec<Traffic>,
    busy_before: Vec<f64>,
    began_ns: u64,
    jobs: Jobs,
}

impl LabPlane {
    pub fn new(lab: Rc<Lab>) -> Self {
        let (before, busy_before) = (window::traffic(&lab.volume), lab.machine.busy_s());
        Self { lab, before, busy_before, began_ns: clock::now_ns(), jobs: Jobs::default() }
    }

    /// Waits until no copy runs: they stop at the end of the run.
    pub fn settle(&self) {
        self.jobs.settle();
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
            let (used, node) = (lab.machine.take(index), lab.machine.id(lab.machine.node_of(index)));
            let (allowed_nodes, pinned) = lab.machine.may_run(index);
            let mut thread = placement::Thread {
                tid,
                pid: lab.process_of(index),
                comm: format!("t{tid}"),
                start_ns: Some(u64::from(tid)),
                process_start_ns: Some(1),
                node,
                cpu_s: used.core_s,
                wait_s: Some(used.waited_s),
                allowed_nodes,
                pinned,
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

    fn file(&self, file: FileId) -> Result<Ino, PlaneError> {
        let ino = Ino::from_raw(file.ino).filter(|_| file.dev == DEVICE).ok_or_else(|| gone("file", file))?;
        let stat = self.lab.volume.stat(ino).map_err(|_| gone("file", file))?;
        match file.generation > 0 && file.generation != stat.generation {
            true => Err(gone("file", file)),
            false => Ok(ino),
        }
    }

    fn start_copy(&mut self, mv: &Move, file: FileId) -> Result<Started, PlaneError> {
        let ino = self.file(file)?;
        let (to, node) = (mv.to.0, self.machine().index(mv.to)?);
        if self.lab.volume.is_migrating(ino) {
            return Err(PlaneError::refused("busy", format!("file {file} is being moved")));
        }
        let bytes = self.lab.volume.bytes_by_node(ino).map_err(|_| gone("file", file))?;
        let bytes = bytes.get(&Some(mv.from.0)).copied().unwrap_or_default();
        let (job, pace) = self.jobs.start(bytes);
        let id = job.id;
        let (lab, from) = (Rc::clone(&self.lab), mv.from.0);
        self.machine().spawn(Some(node), move |thread| copy(&lab, thread, &job, ino, (from, to, node), &pace));
        Ok(Started::job(id))
    }
}

/// Copies a file, on a core of the node that it goes to. After each step, the last one too, it
/// waits as long as its share of the rate says, which is less while more copies run.
fn copy(lab: &Rc<Lab>, thread: ThreadId, job: &Job, ino: Ino, (from, to, node): (u32, u32, usize), pace: &Pace) {
    lab.machine.bind_copying(thread, node);
    let (mut moved, mut first) = (0, 0);
    let is_over = || *locked(&job.cancelled) || clock::now_ns() >= lab.end_ns;
    let ended = loop {
        if is_over() {
            break JobState::Cancelled;
        }
        let began = clock::now_ns();
        lab.machine.take_core(thread);
        let migration = Migration { from: Some(from), to, first, ..Migration::default() };
        let step = fs::as_thread(tid(thread), || {
            lab.volume.migrate(ino, migration, |progress| progress.moved * 4096 < STEP && !is_over())
        });
        lab.machine.end_call(thread);
        let step = match step {
            Err(error) => break JobState::Failed { why: error.to_string() },
            Ok(step) => step,
        };
        (moved, first) = (moved + step.moved * 4096, step.next);
        locked(&job.state).0 = moved;
        pace.pause(&lab.machine, thread, began, step.moved * 4096);
        if !step.cancelled {
            break JobState::Done;
        }
    };
    pace.end();
    locked(&job.state).1 = ended;
}

impl Copies for LabPlane {
    fn poll(&mut self) -> Vec<Progress> {
        self.jobs.poll(self.lab.factor)
    }

    fn cancel(&mut self, job: JobId) {
        self.jobs.cancel(job);
    }

    fn pace(&mut self, bytes_per_s: f64) {
        self.jobs.set_pace(bytes_per_s);
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
        let machine = self.machine();
        machine.index(mv.to)?;
        match mv.subject {
            Subject::Thread(topology::ThreadId { tid, .. }) => {
                let (to, thread) = (machine.seat(mv.to)?, machine.movable(tid)?);
                Ok(vec![machine.undo_of(thread, mv.subject, self.lab.process_of(thread), to)])
            }
            Subject::File(file) => self.file(file).map(|_| Vec::new()),
            Subject::Process(_) => {
                Err(PlaneError::refused("not_supported", "the laboratory's volume moves no processes"))
            }
        }
    }

    fn start(&mut self, mv: &Move, _: &[Undo], _: &mut Write<'_>) -> Result<Started, PlaneError> {
        match mv.subject {
            Subject::File(file) => self.start_copy(mv, file),
            Subject::Thread(topology::ThreadId { tid, .. }) => {
                let machine = self.machine();
                machine.bind(machine.alive(tid)?, Some(machine.index(mv.to)?));
                Ok(Started::done())
            }
            Subject::Process(_) => Err(PlaneError::not_known(mv)),
        }
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        let Subject::Thread(topology::ThreadId { tid, .. }) = undo.subject else { return Ok(Undone::Gone) };
        let machine = self.machine();
        Ok(machine.alive(tid).map_or(Undone::Gone, |thread| machine.unbind(thread, undo)))
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        matches!(undo.subject, Subject::Thread(topology::ThreadId { tid, .. }) if self.machine().alive(tid).is_err())
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }
}
