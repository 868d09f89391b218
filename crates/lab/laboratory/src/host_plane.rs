//! A [`Host`] as a plane: the engine with its rails and the policies drive it as they drive a real
//! one.
//!
//! **Approach.** A window shows what the agent's observer shows: threads that used a core, the
//! bytes that they read and wrote of files in the kernel by the node of the data, the files, and of
//! processes their resident and mapped memory. It is told in the paper's time ([`crate::plane`]).
//! Threads move at their next dispatch, processes with their memory, files of the page cache page
//! by page. A file in the ARC or in persistent memory does not move.
//!
//! **Limits.** Observing costs nothing. Heat of ranges is not observed: no policy moves parts of
//! files.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::{Copies, JobId, JobState, Plane, PlaneError, Progress, Started, Subject, Undo, Undone, Write};
use placement::{FileUse, MappedMemory, MeasuredLoad, Move, NodeBytes, NodeLoad, ObservedFile, Snapshot, Writes};
use topology::{FileId, ProcessId, Topology};

use crate::acting::{Job, Jobs, Pace, gone, locked, magnify};
use crate::host::{Heat, Host, Kind, Moving, ObjectId, SCANS_A_WINDOW, Use};
use crate::machine::{Carried, ThreadId};
use crate::thread::tid;

/// The device of files.
const DEVICE: u32 = 7;
/// The first process.
const PID: u32 = 1000;

/// The laboratory's host, as the engine sees it.
pub struct HostPlane {
    host: Rc<Host>,
    carried: Vec<Carried>,
    busy_s: Vec<f64>,
    began_ns: u64,
    jobs: Jobs,
}

fn file_id(object: ObjectId) -> FileId {
    FileId { dev: DEVICE, ino: object as u64 + 1, generation: 0 }
}

fn pid(process: usize) -> u32 {
    PID + process as u32
}

impl HostPlane {
    pub fn new(host: Rc<Host>) -> Self {
        let (carried, busy_s) = (host.machine.carried(), host.machine.busy_s());
        Self { host, carried, busy_s, began_ns: clock::now_ns(), jobs: Jobs::default() }
    }

    /// Waits until no copy runs: they stop at the end of the run.
    pub fn settle(&self) {
        self.jobs.settle();
    }

    fn by_node(&self, bytes: &[u64]) -> NodeBytes {
        let all = bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        all.map(|(node, bytes)| (self.host.machine.id(node), *bytes)).collect()
    }

    fn window(&mut self) -> Snapshot {
        let host = Rc::clone(&self.host);
        let uses = std::mem::take(&mut *host.uses.borrow_mut());
        let now = clock::now_ns();
        let window_s = (now - std::mem::replace(&mut self.began_ns, now)) as f64 * 1e-9;
        let mut readers: BTreeMap<ObjectId, Vec<u32>> = BTreeMap::new();
        for (thread, object) in uses.keys() {
            readers.entry(*object).or_default().push(tid(*thread));
        }
        let (mut threads, mut processes) = (Vec::new(), Vec::new());
        for (number, process) in host.processes.borrow().iter().enumerate() {
            if process.ended_ns.is_some() {
                continue;
            }
            threads.extend(process.threads.iter().filter_map(|thread| self.thread(*thread, number, &uses, &readers)));
            let memory = host.memory.borrow();
            let mut mapped: Vec<Heat> = Vec::new();
            for heat in process.mapped.iter().map(|object| memory.heat(*object)) {
                mapped.resize(mapped.len().max(heat.len()), Heat::default());
                for (sum, heat) in mapped.iter_mut().zip(heat) {
                    (sum.all, sum.touched, sum.hot) =
                        (sum.all + heat.all, sum.touched + heat.touched, sum.hot + heat.hot);
                }
            }
            let mapped = mapped.iter().enumerate().filter(|(_, heat)| heat.all > 0).map(|(node, heat)| MappedMemory {
                node: host.machine.id(node),
                hot_bytes: heat.hot,
                cold_bytes: heat.all - heat.hot,
                touched_bytes: Some(heat.touched),
            });
            processes.push(placement::Process {
                pid: pid(number),
                start_ns: Some(u64::from(pid(number))),
                resident: process.own.map_or_else(NodeBytes::default, |own| self.by_node(&memory.resident(own))),
                mapped: mapped.collect(),
            });
        }
        threads.sort_by_key(|thread| thread.tid);
        let nodes = self.nodes(&uses);
        let files = readers.into_iter().filter_map(|(object, readers)| self.file(object, readers)).collect();
        let (version, time_s) = (placement::snapshot::VERSION, now as f64 * 1e-9);
        let mut snapshot =
            Snapshot { version, time_s, window_s, nodes, threads, files, processes, ..Snapshot::default() };
        magnify(&mut snapshot, host.factor);
        snapshot
    }

    /// A thread that used a core.
    fn thread(
        &self,
        thread: ThreadId,
        process: usize,
        uses: &BTreeMap<(ThreadId, ObjectId), Use>,
        readers: &BTreeMap<ObjectId, Vec<u32>>,
    ) -> Option<placement::Thread> {
        let machine = &self.host.machine;
        let used = machine.take(thread);
        if used.core_s <= 0.0 || machine.has_ended(thread) {
            return None;
        }
        let (allowed_nodes, pinned) = machine.may_run(thread);
        let (mut read_bytes, mut write_bytes, mut files) = (NodeBytes::default(), NodeBytes::default(), Vec::new());
        let mut shares_file = false;
        for ((_, object), used) in uses.range((thread, 0)..=(thread, ObjectId::MAX)) {
            let (read, written) = (self.by_node(&used.read), self.by_node(&used.written));
            read.iter().for_each(|(node, bytes)| read_bytes.add(node, bytes));
            written.iter().for_each(|(node, bytes)| write_bytes.add(node, bytes));
            shares_file |= readers.get(object).is_some_and(|readers| readers.len() > 1);
            files.push(FileUse {
                file: file_id(*object),
                read_size: read.total().checked_div(used.read_calls),
                sequential: (used.read_calls > 0).then_some(2 * used.sequential >= used.read_calls),
                read_bytes: read,
                write_bytes: written,
            });
        }
        Some(placement::Thread {
            tid: tid(thread),
            pid: pid(process),
            comm: format!("t{}", tid(thread)),
            start_ns: Some(u64::from(tid(thread))),
            process_start_ns: Some(u64::from(pid(process))),
            node: machine.id(machine.node_of(thread)),
            allowed_nodes,
            pinned,
            cpu_s: used.core_s,
            wait_s: Some(used.waited_s),
            read_bytes,
            write_bytes,
            files,
            shares_file,
            ..placement::Thread::default()
        })
    }

    fn file(&self, object: ObjectId, readers: Vec<u32>) -> Option<ObservedFile> {
        let memory = self.host.memory.borrow();
        let of = memory.object(object)?;
        Some(ObservedFile {
            file: file_id(object),
            size: Some(of.bytes),
            bytes: self.by_node(&memory.resident(object)),
            writes: Some(if of.kind.moves() { Writes::InPlace } else { Writes::Stay }),
            movable: Some(of.kind.moves()),
            pinned: (!of.kind.moves()).then(|| "its file system cannot move data between nodes".to_owned()),
            opens: Some(readers.len() as u32),
            readers,
            ..ObservedFile::default()
        })
    }

    fn nodes(&mut self, uses: &BTreeMap<(ThreadId, ObjectId), Use>) -> Vec<NodeLoad> {
        let (machine, memory) = (&self.host.machine, self.host.memory.borrow());
        let (carried, busy_s) = (machine.carried(), machine.busy_s());
        let mut nodes: Vec<NodeLoad> = machine.topology().nodes.iter().map(NodeLoad::of).collect();
        for (at, load) in nodes.iter_mut().enumerate() {
            let sum = |of: fn(&Use) -> &Vec<u64>| uses.values().filter_map(|used| of(used).get(at)).sum();
            (load.read_bytes, load.write_bytes) = (sum(|used| &used.read), sum(|used| &used.written));
            load.memory_free = memory.free(at);
            let [now, before] = [&carried, &self.carried].map(|all| all.get(at).copied().unwrap_or_default());
            let (read, written) = (now.read - before.read, now.written - before.written);
            load.measured =
                Some(MeasuredLoad { source: "laboratory".into(), bytes: read + written, read_bytes: Some(read) });
            let [now, before] = [&busy_s, &self.busy_s].map(|all| all.get(at).copied().unwrap_or_default());
            load.cpu_s = Some(now - before);
        }
        (self.carried, self.busy_s) = (carried, busy_s);
        nodes
    }

    fn process(&self, id: u32) -> Result<usize, PlaneError> {
        let process = id.checked_sub(PID).map(|process| process as usize);
        let alive = |process: &usize| {
            self.host.processes.borrow().get(*process).is_some_and(|process| process.ended_ns.is_none())
        };
        process.filter(alive).ok_or_else(|| gone("process", id))
    }

    fn threads(&self, process: usize) -> Vec<ThreadId> {
        let processes = self.host.processes.borrow();
        let threads = processes.get(process).into_iter().flat_map(|process| &process.threads);
        threads.copied().filter(|thread| !self.host.machine.has_ended(*thread)).collect()
    }

    fn object(&self, file: FileId) -> Result<ObjectId, PlaneError> {
        let object = (file.ino as usize).checked_sub(1).filter(|_| file.dev == DEVICE);
        let memory = self.host.memory.borrow();
        let known = object.and_then(|object| Some((object, memory.object(object)?.kind)));
        match known {
            Some((object, kind)) if kind.moves() && kind != Kind::Own => Ok(object),
            Some(_) => Err(PlaneError::refused("not_supported", "its file system cannot move data between nodes")),
            None => Err(gone("file", file)),
        }
    }

    /// Copies pages of an object by a thread on the node that they go to; `of` stands still.
    fn copy(&mut self, object: ObjectId, (only, to): (Option<usize>, usize), of: Option<usize>) -> Started {
        let host = Rc::clone(&self.host);
        let resident = host.memory.borrow().resident(object);
        let there =
            |(node, bytes): (usize, &u64)| (node != to && only.is_none_or(|only| only == node)).then_some(*bytes);
        let bytes = resident.iter().enumerate().filter_map(there).sum();
        if bytes == 0 {
            return Started::done();
        }
        let (job, pace) = self.jobs.start(bytes);
        let id = job.id;
        if let Some(process) = of {
            host.set_standing(process, true);
        }
        let own = Rc::clone(&self.host);
        host.machine.spawn(Some(to), move |thread| copy(&own, thread, &job, object, (only, to), &pace, of));
        Started::job(id)
    }
}

fn copy(
    host: &Host,
    thread: ThreadId,
    job: &Job,
    object: ObjectId,
    (only, to): (Option<usize>, usize),
    pace: &Pace,
    of: Option<usize>,
) {
    host.machine.bind_copying(thread, to);
    let (mut began, mut before) = (clock::now_ns(), 0);
    let over = || *locked(&job.cancelled) || clock::now_ns() >= host.end_ns;
    let (moved, left) = host.migrate(thread, object, (only, to), |moved| {
        locked(&job.state).0 = moved;
        pace.pause(&host.machine, thread, began, moved - before);
        (began, before) = (clock::now_ns(), moved);
        !over()
    });
    if let Some(process) = of {
        host.set_standing(process, false);
    }
    pace.end();
    (locked(&job.state).0, *locked(&job.left)) = (moved, left);
    locked(&job.state).1 = if over() { JobState::Cancelled } else { JobState::Done };
}

impl Copies for HostPlane {
    fn poll(&mut self) -> Vec<Progress> {
        self.jobs.poll(self.host.factor)
    }

    fn cancel(&mut self, job: JobId) {
        self.jobs.cancel(job);
    }

    fn pace(&mut self, bytes_per_s: f64) {
        self.jobs.set_pace(bytes_per_s);
    }
}

impl Plane for HostPlane {
    fn topology(&self) -> &Topology {
        self.host.machine.topology()
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        let window_ns = ((window.as_secs_f64() / self.host.factor * 1e9).round() as u64).max(1);
        for scan in 1..=SCANS_A_WINDOW {
            clock::sleep_until(self.began_ns + window_ns * scan / SCANS_A_WINDOW);
            self.host.memory.borrow_mut().scan();
        }
        Ok(self.window())
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let machine = &self.host.machine;
        match mv.subject {
            Subject::Thread(topology::ThreadId { tid, .. }) => {
                let (to, thread) = (machine.seat(mv.to)?, machine.movable(tid)?);
                Ok(vec![machine.undo_of(thread, mv.subject, mv.pid, to)])
            }
            Subject::Process(ProcessId { pid, .. }) => {
                let (to, process) = (machine.seat(mv.to)?, self.process(pid)?);
                let first = self.threads(process).first().copied().ok_or_else(|| gone("process", pid))?;
                Ok(vec![machine.undo_of(first, mv.subject, pid, to)])
            }
            Subject::File(file) => {
                machine.index(mv.to)?;
                self.object(file).map(|_| Vec::new())
            }
        }
    }

    fn start(&mut self, mv: &Move, _: &[Undo], _: &mut Write<'_>) -> Result<Started, PlaneError> {
        let machine = std::sync::Arc::clone(&self.host.machine);
        let to = machine.index(mv.to)?;
        match mv.subject {
            Subject::Thread(topology::ThreadId { tid, .. }) => {
                machine.bind(machine.alive(tid)?, Some(to));
                Ok(Started::done())
            }
            Subject::Process(ProcessId { pid, .. }) => {
                let process = self.process(pid)?;
                let free = self.threads(process).into_iter().filter(|thread| machine.pinned(*thread).is_none());
                free.for_each(|thread| machine.bind(thread, Some(to)));
                let kernel = self.host.kernel;
                let own = self.host.processes.borrow().get(process).and_then(|process| process.own);
                Ok(match own.filter(|_| !kernel.threads_only) {
                    Some(own) => self.copy(own, (None, to), (kernel.moving == Moving::Stands).then_some(process)),
                    None => Started::done(),
                })
            }
            Subject::File(file) => {
                let (object, from) = (self.object(file)?, machine.index(mv.from)?);
                Ok(self.copy(object, (Some(from), to), None))
            }
        }
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        let threads = match undo.subject {
            Subject::Thread(topology::ThreadId { tid, .. }) => self.host.machine.alive(tid).into_iter().collect(),
            Subject::Process(ProcessId { pid, .. }) => {
                self.process(pid).map_or_else(|_| Vec::new(), |at| self.threads(at))
            }
            Subject::File(_) => Vec::new(),
        };
        let unbind = |_, thread| self.host.machine.unbind(thread, undo);
        Ok(threads.into_iter().fold(Undone::Gone, unbind))
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        match undo.subject {
            Subject::Thread(topology::ThreadId { tid, .. }) => self.host.machine.alive(tid).is_err(),
            Subject::Process(ProcessId { pid, .. }) => self.process(pid).is_err(),
            Subject::File(_) => true,
        }
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }
}
