//! Moves a process: its threads by their affinity, then its memory.
//!
//! **Problem.** Affinities belong to threads, and a process starts threads while it is moved.
//! Memory that arrives before the threads is taken back: AutoNUMA moves pages to the node of the
//! thread that touches them.
//!
//! **Approach.** [`prepare`] examines the process, refuses what must not be moved, and returns a
//! [`ProcessMove`]. Its owner calls [`bind`](ProcessMove::bind), which gives the undo records of
//! the threads to be written down, binds those threads, and looks for new ones until there are
//! none. Each thread has a record of its own ([`Undo`]), by the rules for moving threads
//! ([`super::mover`]): a thread with an affinity of its own keeps it. Then the owner drives
//! [`memory`](ProcessMove::memory) step by step ([`Copying`](super::copying::Copying)). Undoing
//! means [`Mover::undo`] for each record. The memory stays where it is, unless the owner sends it
//! back with [`MemoryMove::back`] and the layout that the move has kept ([`MemoryMove::before`]). A
//! crash at any step leaves records of threads and nothing else to undo: memory has no owner.
//!
//! **Limits.** A thread that a bound thread starts after the last look is bound, but has no record
//! until the next window finds it as a descendant ([`super::descendants`]) and gives it one. The
//! same holds for threads beyond [`MOST_THREADS`]. Child processes are not moved.

use engine::{PlaneError, Undo};
use linux::memory;
use linux::patient::{self, MEMORY};
use linux::threads::{Threads, field};
use placement::{Move, Reason, Subject, Why};
use rustc_hash::FxHashSet;
use topology::{CpuSet, NodeId, ProcessId, ThreadId, Topology};

use super::copying::Copying;
use super::memory::MemoryMove;
use super::mover::{Given, Mover, key_of};

/// How often to look for new threads. After the first look only threads that had not been seen then
/// can start threads that are not bound, so a process that starts threads without pause is done
/// after two or three.
const LOOKS: usize = 16;

/// Most threads of a process that is moved as a whole. Each takes some 0.2 ms to examine and as
/// long to bind, while no window ends and nothing else can be undone: 2,000 take a second.
const MOST_THREADS: usize = 2_000;

#[derive(Debug, Default)]
pub struct ProcessMove {
    id: ProcessId,
    to: NodeId,
    /// The memory; `None` if it stays.
    pub memory: Option<MemoryMove>,
    /// Threads that keep an affinity of their own, and why.
    left: Vec<(u32, String)>,
    bound: Vec<Undo>,
    given: Given,
    /// Records of threads that are ready to be bound.
    ready: Vec<Undo>,
    seen: FxHashSet<ThreadId>,
}

/// Examines a process that is to be moved to a node. Changes nothing.
pub fn prepare(
    mover: &mut Mover,
    topology: &Topology,
    id: ProcessId,
    to: NodeId,
    with_memory: bool,
) -> Result<ProcessMove, PlaneError> {
    let pid = id.pid;
    if pid == std::process::id() {
        return Err(PlaneError::refused("itself", "is homenode itself"));
    }
    let Some(stat) = mover.threads().stat(pid).map_err(|e| unreadable(pid, e))? else { return Err(gone(pid)) };
    if !id.first_thread().may_be(stat.id) {
        return Err(gone(pid));
    }
    if stat.kernel_thread {
        return Err(PlaneError::refused("kernel_thread", "is a kernel thread"));
    }
    let node =
        topology.node(to).ok_or_else(|| PlaneError::refused("no_such_node", format!("there is no node {to}")))?;
    let status = Status::read(mover.threads(), pid)?;
    if status.process != pid {
        return Err(PlaneError::refused("not_a_process", format!("is a thread of process {}", status.process)));
    }
    let id = stat.process();
    let mut process = ProcessMove { id, to, ..ProcessMove::default() };
    process.look(mover, topology)?;
    if process.ready.is_empty() && !process.left.iter().any(|(tid, _)| runs_on(*tid, &node.cpus)) {
        return Err(match process.left.first() {
            Some((_, why)) => {
                PlaneError::refused("own_affinity", format!("none of its threads may be moved: each {why}"))
            }
            None => gone(pid),
        });
    }
    if with_memory {
        if node.memory_bytes == 0 {
            return Err(PlaneError::refused("no_memory_on_node", format!("node {to} has no memory")));
        }
        // A kernel without cpusets has no such line.
        if status.memory_nodes.as_ref().is_some_and(|nodes| !nodes.contains(to.0)) {
            return Err(PlaneError::refused("mems_forbid_node", format!("its cpuset forbids memory of node {to}")));
        }
        process.memory = Some(memory(mover, id, to)?);
    }
    Ok(process)
}

/// The memory of a process, if the node has room for it. How much is on the node already is looked
/// up only if all of it might be too much, because that takes milliseconds.
fn memory(mover: &Mover, process: ProcessId, to: NodeId) -> Result<MemoryMove, PlaneError> {
    let pid = process.pid;
    let unreadable = |e| unreadable(pid, e);
    let proc_root = mover.threads().root().to_owned();
    let new = {
        let proc_root = proc_root.clone();
        move || MemoryMove::new(&proc_root, process, to)
    };
    let work = patient::ask(pid, MEMORY, new).map_err(unreadable)?.ok_or_else(|| gone(pid))?;
    let room = memory::room(mover.defaults.sys_root(), to).map(|room| room.free.saturating_add(room.unused));
    let Some(room) = room.filter(|room| *room < work.copied().total) else {
        return Ok(work);
    };
    let nodes = patient::ask(pid, MEMORY, move || memory::resident(&proc_root, pid));
    let nodes = nodes.map_err(unreadable)?.ok_or_else(|| gone(pid))?;
    let needed = nodes.total().saturating_sub(nodes.get(to));
    if room < needed {
        let mib = |bytes: u64| bytes >> 20;
        let why = format!("node {to} has room for {} MiB, and {} MiB are to be moved", mib(room), mib(needed));
        return Err(PlaneError::refused("no_free_memory", why));
    }
    Ok(work)
}

impl ProcessMove {
    /// Binds the threads to the node, new ones too. Calls `write` with the records of the threads
    /// that are to be bound next; they are bound when it returns. Returns how many are bound. After
    /// an error, undo what [`bound`](Self::bound) lists.
    pub fn bind(
        &mut self,
        mover: &mut Mover,
        topology: &Topology,
        write: &mut dyn FnMut(&[Undo]) -> Result<(), PlaneError>,
    ) -> Result<usize, PlaneError> {
        for _ in 0..LOOKS {
            let ready = std::mem::take(&mut self.ready);
            if !ready.is_empty() {
                write(&ready)?;
            }
            for undo in ready {
                let Some(ThreadId { tid, .. }) = key_of(&undo) else { continue };
                match mover.apply(&undo) {
                    Ok(()) => self.is_bound(undo),
                    Err(PlaneError::Gone { .. }) => {}
                    // Its program has set its affinity meanwhile, or the kernel binds no such
                    // thread: SCHED_DEADLINE, workers of io_uring before Linux 6.3. Without
                    // permission, none of its threads can be bound.
                    Err(error) if matches!(&error, PlaneError::Refused { reason, .. } if *reason != "eperm") => {
                        self.left.push((tid, error.to_string()));
                    }
                    Err(error) => return Err(error),
                }
            }
            self.look(mover, topology)?;
            if self.ready.is_empty() {
                break;
            }
        }
        Ok(self.bound.len())
    }

    fn is_bound(&mut self, undo: Undo) {
        self.given.add(&undo);
        self.bound.push(undo);
    }

    pub fn given(&self) -> &Given {
        &self.given
    }

    /// Prepares the threads that have not been seen yet.
    fn look(&mut self, mover: &mut Mover, topology: &Topology) -> Result<(), PlaneError> {
        let pid = self.id.pid;
        let tids = mover.threads().of(pid).map_err(|e| unreadable(pid, e))?;
        if tids.len() > MOST_THREADS && self.bound.is_empty() {
            let why = format!("has {} threads: only processes with up to {MOST_THREADS} move as a whole", tids.len());
            return Err(PlaneError::refused("too_many_threads", why));
        }
        for tid in tids {
            // It starts threads faster than they are bound. The rest are descendants of bound
            // threads, and the next window finds them.
            if self.seen.len() > MOST_THREADS {
                break;
            }
            let Ok(Some(stat)) = mover.threads().stat(tid) else { continue };
            if !self.seen.insert(stat.id) {
                continue;
            }
            let prepared = match mover.inherited(&self.given, &stat) {
                Some(undo) => Ok(undo),
                None => mover.prepare(topology, &self.thread(stat.id)),
            };
            // The id may have become another process's since it was listed.
            let ours = mover.threads().belongs(pid, stat.id).map_err(|e| unreadable(pid, e))?;
            match prepared {
                _ if !ours => {}
                Ok(undo) => self.ready.push(undo),
                Err(PlaneError::Gone { .. }) => {}
                Err(PlaneError::Refused { reason: "own_affinity", why, .. }) => self.left.push((tid, why)),
                Err(error) => return Err(error),
            }
        }
        // The process may have become another with its id.
        match mover.threads().ended(self.id.first_thread()) {
            true => Err(gone(pid)),
            false => Ok(()),
        }
    }

    fn thread(&self, thread: ThreadId) -> Move {
        let (subject, pid, to, reason) = (Subject::Thread(thread), self.id.pid, self.to, Reason::CacheAffinity);
        Move { subject, pid, from: to, to, reason, why: Why::default(), ranges: Vec::new() }
    }

    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Records of the threads that [`bind`](Self::bind) begins with.
    pub fn ready(&self) -> &[Undo] {
        &self.ready
    }

    /// Records of the threads bound so far.
    pub fn bound(&self) -> &[Undo] {
        &self.bound
    }

    /// Threads that keep an affinity of their own, and why.
    pub fn left(&self) -> &[(u32, String)] {
        &self.left
    }
}

/// Whether a thread may run on one of these CPUs.
fn runs_on(tid: u32, cpus: &CpuSet) -> bool {
    linux::affinity::get(tid).is_ok_and(|mask| !mask.intersection(cpus).is_empty())
}

/// Fields of a process's `/proc/PID/status`.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    process: u32,
    /// Nodes from which its cpuset lets it take memory.
    memory_nodes: Option<CpuSet>,
}

impl Status {
    fn read(threads: &Threads, pid: u32) -> Result<Self, PlaneError> {
        match threads.status(pid) {
            Ok(status) => Self::parse(&status)
                .ok_or_else(|| PlaneError::refused("unreadable", format!("/proc/{pid}/status has an unknown form"))),
            Err(error) if linux::threads::is_gone(&error) => Err(gone(pid)),
            Err(error) => Err(unreadable(pid, error)),
        }
    }

    fn parse(status: &str) -> Option<Self> {
        let process = field(status, "Tgid")?.parse().ok()?;
        let memory_nodes = field(status, "Mems_allowed_list").map(str::parse).transpose().ok()?;
        Some(Self { process, memory_nodes })
    }
}

fn gone(pid: u32) -> PlaneError {
    PlaneError::Gone { what: format!("process {pid}") }
}

fn unreadable(pid: u32, error: std::io::Error) -> PlaneError {
    PlaneError::failed("unreadable", format!("process {pid} cannot be examined"), error)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Threads of this process that set an affinity of one CPU, and sleep.
    fn start(threads: usize) {
        use linux::affinity;
        let cpu: CpuSet = affinity::get(0).unwrap().iter().take(1).collect();
        let (ready, all_ready) = std::sync::mpsc::channel();
        for _ in 0..threads {
            let (ready, cpu) = (ready.clone(), cpu.clone());
            std::thread::spawn(move || {
                affinity::set(0, &cpu).unwrap();
                ready.send(()).unwrap();
                std::thread::park();
            });
        }
        drop(ready); // else a thread that panics is waited for
        assert_eq!(all_ready.iter().take(threads).count(), threads);
    }

    /// The work for a new thread does not grow with the number of those that are bound. With a
    /// comparison for each pair, a process of ten thousand threads took a hundred million system
    /// calls.
    #[test]
    fn a_look_takes_no_more_for_many_bound_threads_than_for_few() {
        use super::super::mover::LOOKS;
        use crate::mover::Rules;
        let mut mover = Mover::new(Path::new("/proc"), Path::new("/sys"), Rules::default()).unwrap();
        let (pid, to) = (std::process::id(), NodeId(0));
        let topology = Topology::from_iter([topology::Node::new(to, (0..1024).collect(), 1)]);
        let mut looks = Vec::new();
        for bound in [1, 1000] {
            let id = mover.threads().stat(pid).unwrap().unwrap().process();
            let context =
                crate::descendants::context::MoveContext { at: 0, session: 1, cgroup: None, first_differs: false };
            // As if of another process: their values are not those of the threads here.
            let record = |n: u32| Undo {
                subject: Subject::Thread(ThreadId::new(n, None)),
                pid,
                masks: Some(engine::Masks {
                    before: CpuSet::default(),
                    ours: [9999].into_iter().collect(),
                    unbound: false,
                }),
                payload: context.payload(),
            };
            let mut process = ProcessMove { id, to, ..ProcessMove::default() };
            (0..bound).map(record).for_each(|undo| process.is_bound(undo));
            let before = LOOKS.with(std::cell::Cell::get);
            start(8);
            process.look(&mut mover, &topology).unwrap();
            assert!(process.left.len() >= 8, "{:?}", process.left);
            looks.push((LOOKS.with(std::cell::Cell::get) - before) / process.seen.len());
        }
        println!("looks for a thread with 1 and 1,000 bound: {looks:?}");
        assert!(looks[1] <= looks[0] + 1, "{looks:?}");
    }

    /// A process that started threads without pause held up the loop, however many it had.
    #[test]
    fn no_more_threads_are_examined_once_too_many_are_seen() {
        let mut mover =
            Mover::new(Path::new("/proc"), Path::new("/sys"), super::super::mover::Rules::default()).unwrap();
        let topology = Topology { nodes: Vec::new(), regions: Vec::new() };
        let pid = std::process::id();
        let id = mover.threads().stat(pid).unwrap().unwrap().process();
        let mut process = ProcessMove { id, ..ProcessMove::default() };
        process.seen.extend((0..=MOST_THREADS as u32).map(|n| ThreadId::new(u32::MAX - n, None)));
        process.look(&mut mover, &topology).unwrap();
        assert_eq!((process.ready.len(), process.left.len(), process.seen.len()), (0, 0, MOST_THREADS + 1));
    }

    #[test]
    fn the_status_of_a_process_is_read() {
        let status = "Name:\tTgid: 9\nTgid:\t41\nPid:\t42\nMems_allowed:\t3\nMems_allowed_list:\t0-1,4\n";
        let read = Status::parse(status).unwrap();
        assert_eq!((read.process, read.memory_nodes.map(|n| n.to_string())), (41, Some("0-1,4".to_owned())));
        assert_eq!(Status::parse("Tgid:\t41\n").unwrap().memory_nodes, None);
        assert_eq!(Status::parse("Name:\tx\n"), None);
        assert_eq!(Status::parse("Tgid:\t41\nMems_allowed_list:\tx\n"), None);
    }
}
