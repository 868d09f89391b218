//! The machine: cores that are held, memory controllers and links that queue, and the kernel's
//! placement of threads.
//!
//! **Problem.** What a placement wins or loses is waiting: for a core, a lock, a controller, a
//! link. A machine that only reckons these times, without giving a core to one thread at a time,
//! lets more calls wait for memory than it has cores, and charges each of them for the queue.
//!
//! **Approach.** A thread works only while it holds a core of its node. It holds it while it
//! computes and while it loads and stores, also while these wait for a controller: a load occupies
//! its core. It gives the core away when it sleeps, when it waits for a lock ([`clock::Seat`]), and
//! when its slice is over at the end of a call and another one waits. Threads that wait for a core
//! are served in the order of arrival.
//!
//! The kernel's placement of threads that nobody has bound: a new thread starts on the node with
//! the fewest threads per core, the seed breaking ties. When a core has nothing to do while two or
//! more threads wait on another node, it takes the one that has waited longest. A node that wakes a
//! thread keeps it. A move by a policy binds a thread to a node: from the next dispatch on, or at
//! once if it waits for a core.
//!
//! A controller serves one access at a time, in the order of arrival, as long as the profile says
//! ([`Memory::cost`]): a reader waits until that is over, a store is posted and waited for at the
//! next fence. An access larger than [`PIECE`] queues piece by piece. A link carries the bytes of
//! remote accesses, both directions together, at the same time as the controller.
//!
//! **Limits.** Switching threads and moving them costs nothing. Cores are all alike, and do not
//! share caches. Memory other than the volume's costs nothing. There is no coherence directory. The
//! kernel does not shuffle a balanced machine.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clock::{TaskId, now_ns, sleep_until};
use memory_model::{Direction, Memory, hops};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use topology::{NodeId, Topology};

/// Bytes of an access that queue as one: more would let short accesses wait for long ones as no
/// controller does.
pub const PIECE: usize = 16384;
/// Seconds after which the kernel gives a core to the next thread that waits: the base slice of
/// Linux on eight or more CPUs (0.75 ms × 4). Divided by the factor of the figure.
pub const SLICE_S: f64 = 3e-3;

/// What threads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Core,
    Lock,
    /// A memory controller that serves others.
    Controller,
    /// A link that carries for others.
    Link,
    Sleep,
}

impl Wait {
    /// All, and their names in reports.
    pub const ALL: [(Self, &str); 5] = [
        (Self::Core, "core"),
        (Self::Lock, "lock"),
        (Self::Controller, "controller"),
        (Self::Link, "link"),
        (Self::Sleep, "sleep"),
    ];
}

#[derive(Clone, Debug)]
pub struct Build {
    /// The nodes, and what is told of them.
    pub topology: Topology,
    /// The memory of each node, in the order of the topology.
    pub memory: Vec<Memory>,
    /// Bytes/s of a link between two nodes; infinite: it is never waited for.
    pub link_bw: f64,
    pub slice_s: f64,
    /// Breaks ties of the kernel's placement.
    pub seed: u64,
}

/// A thread of the machine, by number.
pub type ThreadId = usize;

/// What a thread has used since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    pub core_s: f64,
    pub waited_s: f64,
}

/// What a controller has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Carried {
    pub read: u64,
    pub written: u64,
    pub busy_s: f64,
}

#[derive(Default)]
struct Node {
    cores: usize,
    idle: usize,
    queue: VecDeque<ThreadId>,
    busy_ns: u64,
    threads: usize,
}

struct Worker {
    task: TaskId,
    /// Where it runs, or will at its next dispatch.
    node: usize,
    bound: bool,
    /// By its load, not by a policy.
    pinned: bool,
    /// It is none of a load.
    copies: bool,
    /// The node of the core that it holds.
    holds: Option<usize>,
    /// Since when that is counted, and when it is to be given up.
    since: u64,
    slice_ends: u64,
    core_ns: u64,
    ready_ns: u64,
    waits: [u64; 5],
    lock_since: u64,
    /// When its posted stores are done, and how much of that is a wait for others.
    due: u64,
    queued: [u64; 2],
    /// Controllers, by bit, where it counts as a writer.
    writes: u64,
    /// Software that it still owes: that of a name, which is under the directory's lock.
    owed_ns: u64,
    /// Part of what it reads that a cache has.
    cached: f64,
    ended: bool,
}

#[derive(Clone, Copy, Default)]
struct Controller {
    free: u64,
    /// The thread that came last, and when the accesses of those before it end.
    last: (Option<ThreadId>, u64),
    busy: u64,
    read: u64,
    written: u64,
    writers: u32,
}

struct State {
    nodes: Vec<Node>,
    workers: Vec<Worker>,
    by_task: Vec<Option<ThreadId>>,
    controllers: Vec<Controller>,
    /// When each pair's link is free, and how long it has worked.
    links: Vec<(u64, u64)>,
    pulls: u64,
    rng: ChaCha12Rng,
}

/// The machine; all that shares it is on one clock.
pub struct Machine {
    build: Build,
    slice_ns: u64,
    state: Mutex<State>,
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl Machine {
    pub fn new(build: Build) -> Self {
        let count = build.topology.nodes.len();
        let node = |node: &topology::Node| Node { cores: node.cpus.len(), idle: node.cpus.len(), ..Node::default() };
        let state = State {
            nodes: build.topology.nodes.iter().map(node).collect(),
            workers: Vec::new(),
            by_task: Vec::new(),
            controllers: vec![Controller::default(); count],
            links: vec![(0, 0); count * count],
            pulls: 0,
            rng: ChaCha12Rng::seed_from_u64(build.seed),
        };
        Self { slice_ns: ns(build.slice_s).max(1), build, state: Mutex::new(state) }
    }

    pub fn topology(&self) -> &Topology {
        &self.build.topology
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, thread: ThreadId, look: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        self.state().workers.get_mut(thread).map(look)
    }

    /// Starts a thread, where the kernel puts it, or on this node, free to go.
    pub fn spawn(self: &Arc<Self>, on: Option<usize>, work: impl FnOnce(ThreadId) + 'static) -> ThreadId {
        let thread = {
            let mut state = self.state();
            let node = on.unwrap_or_else(|| state.idlest());
            if let Some(on) = state.nodes.get_mut(node) {
                on.threads += 1;
            }
            state.workers.push(Worker {
                task: 0,
                node,
                bound: false,
                pinned: false,
                copies: false,
                holds: None,
                since: 0,
                slice_ends: 0,
                core_ns: 0,
                ready_ns: 0,
                waits: [0; 5],
                lock_since: 0,
                due: 0,
                queued: [0; 2],
                writes: 0,
                owed_ns: 0,
                cached: 0.0,
                ended: false,
            });
            state.workers.len() - 1
        };
        let machine = Arc::clone(self);
        let task = clock::spawn(move || {
            clock::set_seat(Some(Rc::new(OnCore { machine: Arc::clone(&machine), thread })));
            work(thread);
            machine.leave_core(thread);
            machine.with(thread, |worker| worker.ended = true);
        });
        let mut state = self.state();
        if let Some(worker) = state.workers.get_mut(thread) {
            worker.task = task;
        }
        if state.by_task.len() <= task {
            state.by_task.resize(task + 1, None);
        }
        if let Some(of) = state.by_task.get_mut(task) {
            *of = Some(thread);
        }
        thread
    }

    pub fn current(&self) -> Option<ThreadId> {
        let task = clock::current()?;
        self.state().by_task.get(task).copied().flatten()
    }

    pub fn node_of(&self, thread: ThreadId) -> usize {
        self.with(thread, |worker| worker.holds.unwrap_or(worker.node)).unwrap_or_default()
    }

    pub fn bound(&self, thread: ThreadId) -> Option<usize> {
        self.with(thread, |worker| worker.bound.then_some(worker.node)).flatten()
    }

    /// The node that its load has bound it to: no policy moves it.
    pub fn pinned(&self, thread: ThreadId) -> Option<usize> {
        self.with(thread, |worker| worker.pinned.then_some(worker.node)).flatten()
    }

    /// Binds a thread to a node for its load.
    pub fn pin(&self, thread: ThreadId, to: usize) {
        self.bind(thread, Some(to));
        self.with(thread, |worker| worker.pinned = true);
    }

    /// Binds a thread that copies data in the background.
    pub(crate) fn bind_copying(&self, thread: ThreadId, to: usize) {
        self.bind(thread, Some(to));
        self.with(thread, |worker| worker.copies = true);
    }

    pub fn has_ended(&self, thread: ThreadId) -> bool {
        self.with(thread, |worker| worker.ended).unwrap_or(true)
    }

    /// Binds a thread to a node, or lets it go.
    pub fn bind(&self, thread: ThreadId, to: Option<usize>) {
        let mut state = self.state();
        let Some(worker) = state.workers.get_mut(thread) else { return };
        worker.bound = to.is_some();
        let Some(to) = to.filter(|to| *to != worker.node) else { return };
        let from = std::mem::replace(&mut worker.node, to);
        let queue = state.nodes.get_mut(from).map(|node| {
            node.threads -= 1;
            &mut node.queue
        });
        let waits = queue.and_then(|queue| queue.remove(queue.iter().position(|waits| *waits == thread)?)).is_some();
        if let Some(node) = state.nodes.get_mut(to) {
            node.threads += 1;
            if waits {
                node.queue.push_back(thread);
            }
        }
        state.dispatch(to, self.slice_ns);
    }

    /// Gets a core for the calling thread, if it has none on its node.
    pub fn take_core(&self, thread: ThreadId) {
        let now = now_ns();
        let at_once = {
            let mut state = self.state();
            let Some(worker) = state.workers.get(thread) else { return };
            match worker.holds {
                Some(node) if node == worker.node => return,
                Some(_) => state.release(thread, self.slice_ns),
                None => {}
            }
            let Some(node) = state.workers.get(thread).map(|worker| worker.node) else { return };
            if let Some(on) = state.nodes.get_mut(node) {
                on.queue.push_back(thread);
            }
            state.dispatch(node, self.slice_ns);
            state.balance(self.slice_ns);
            state.workers.get(thread).is_some_and(|worker| worker.holds.is_some())
        };
        if !at_once {
            self.wait_for_core(thread, now);
        }
    }

    fn wait_for_core(&self, thread: ThreadId, from: u64) {
        // A grant of the core wakes this task once; another wake has no meaning.
        while self.with(thread, |worker| worker.holds.is_none()) == Some(true) {
            clock::block();
        }
        self.with(thread, |worker| {
            let waited = now_ns() - from;
            worker.ready_ns += waited;
            worker.add(Wait::Core, waited);
        });
    }

    pub fn leave_core(&self, thread: ThreadId) {
        self.state().release(thread, self.slice_ns);
    }

    pub fn compute(&self, thread: ThreadId, ns: u64) {
        self.take_core(thread);
        sleep_until(now_ns() + ns);
    }

    /// Sleeps without a core.
    pub fn sleep(&self, thread: ThreadId, ns: u64) {
        self.leave_core(thread);
        sleep_until(now_ns() + ns);
        self.with(thread, |worker| worker.add(Wait::Sleep, ns));
    }

    /// Software that the next access to memory, or the end of the call, pays for.
    pub fn owe(&self, thread: ThreadId, ns: u64) {
        self.with(thread, |worker| worker.owed_ns += ns);
    }

    /// This part of what the thread reads is in a cache.
    pub fn cached(&self, thread: ThreadId, part: f64) {
        self.with(thread, |worker| worker.cached = part);
    }

    fn pay(&self, thread: ThreadId) {
        let owed = self.with(thread, |worker| std::mem::take(&mut worker.owed_ns)).unwrap_or_default();
        if owed > 0 {
            self.compute(thread, owed);
        }
    }

    /// The end of a call: nothing is owed any more, and the next thread has its turn if the slice
    /// is over.
    pub fn end_call(&self, thread: ThreadId) {
        self.pay(thread);
        self.fence(thread);
        let mut state = self.state();
        let over = state.workers.get(thread).is_some_and(|worker| {
            let others = worker.holds.and_then(|node| state.nodes.get(node)).is_some_and(|node| !node.queue.is_empty());
            worker.holds != Some(worker.node) || others && now_ns() >= worker.slice_ends
        });
        if over {
            state.release(thread, self.slice_ns);
        }
    }

    /// An access to the memory of a node. A read is waited for, a write at the next fence.
    pub fn access(&self, thread: ThreadId, to: usize, direction: Direction, bytes: usize) {
        self.pay(thread);
        let mut left = bytes;
        loop {
            let piece = left.min(PIECE);
            left -= piece;
            self.enter(thread, to, direction, piece);
            if direction == Direction::Read || left > 0 {
                self.wait_for_memory(thread);
            }
            if left == 0 {
                return;
            }
        }
    }

    fn enter(&self, thread: ThreadId, to: usize, direction: Direction, bytes: usize) {
        let now = now_ns();
        let mut state = self.state();
        let State { workers, controllers, links, .. } = &mut *state;
        let (Some(worker), Some(controller)) = (workers.get_mut(thread), controllers.get_mut(to)) else { return };
        let Some(memory) = self.build.memory.get(to) else { return };
        let from = worker.holds.unwrap_or(worker.node);
        let id = |index: usize| self.build.topology.nodes.get(index).map_or(NodeId(0), |node| node.id);
        let far = if from == to { 0.0 } else { hops(self.build.topology.distance(id(from), id(to))) };
        let bytes = match direction {
            Direction::Read => (bytes as f64 * (1.0 - worker.cached)) as u64,
            Direction::Write => bytes as u64,
        };
        let mut cost = memory.cost(direction, bytes, far, 1.0);
        match direction {
            Direction::Read => controller.read += bytes,
            Direction::Write => {
                controller.written += bytes;
                let own = 1 << (to % 64);
                controller.writers += u32::from(worker.writes & own == 0);
                worker.writes |= own;
                cost = cost.crowded(memory.crowded(controller.writers));
            }
        }
        let start = controller.free.max(now);
        if controller.last.0 != Some(thread) {
            controller.last = (Some(thread), controller.free);
        }
        let behind_others = controller.last.1.saturating_sub(now);
        controller.free = start + cost.service_ns;
        controller.busy += cost.service_ns;
        let mut done = start + cost.alone_ns;
        let mut link_wait = 0;
        if from != to && self.build.link_bw.is_finite() {
            let takes = ns(bytes as f64 / self.build.link_bw);
            let count = self.build.memory.len();
            if let Some((free, busy)) = links.get_mut(from.min(to) * count + from.max(to)) {
                *free = (*free).max(now) + takes;
                *busy += takes;
                link_wait = free.saturating_sub(done);
                done = done.max(*free);
            }
        }
        worker.due = worker.due.max(done);
        worker.queued = [worker.queued[0].max(behind_others), worker.queued[1] + link_wait];
    }

    /// Waits until the accesses of the thread are done.
    fn wait_for_memory(&self, thread: ThreadId) {
        let Some((due, queued)) = self.with(thread, |worker| (worker.due, std::mem::take(&mut worker.queued))) else {
            return;
        };
        let now = now_ns();
        if due <= now {
            return;
        }
        sleep_until(due);
        self.with(thread, |worker| {
            let controller = queued[0].min(due - now);
            worker.add(Wait::Controller, controller);
            worker.add(Wait::Link, queued[1].min(due - now - controller));
        });
    }

    /// Waits until all stores of the thread are done.
    pub fn fence(&self, thread: ThreadId) {
        self.wait_for_memory(thread);
        let mut state = self.state();
        let State { workers, controllers, .. } = &mut *state;
        let writes = workers.get_mut(thread).map_or(0, |worker| std::mem::take(&mut worker.writes));
        if writes != 0 {
            let of = controllers.iter_mut().enumerate().filter(|(node, _)| writes & (1 << (node % 64)) != 0);
            of.for_each(|(_, controller)| controller.writers -= 1);
        }
    }

    /// What a thread has used since the last call.
    pub fn take(&self, thread: ThreadId) -> Used {
        let mut state = self.state();
        state.count(thread);
        let Some(worker) = state.workers.get_mut(thread) else { return Used::default() };
        let [core_s, waited_s] = [&mut worker.core_ns, &mut worker.ready_ns].map(|ns| std::mem::take(ns) as f64 * 1e-9);
        Used { core_s, waited_s }
    }

    /// Seconds that the cores of each node have worked since the start.
    pub fn busy_s(&self) -> Vec<f64> {
        let mut state = self.state();
        (0..state.workers.len()).for_each(|thread| state.count(thread));
        state.nodes.iter().map(|node| node.busy_ns as f64 * 1e-9).collect()
    }

    /// What each node's controller has carried.
    pub fn carried(&self) -> Vec<Carried> {
        let of = |c: &Controller| Carried { read: c.read, written: c.written, busy_s: c.busy as f64 * 1e-9 };
        self.state().controllers.iter().map(of).collect()
    }

    /// Seconds that all threads of loads together have waited, by kind: not those that copy.
    pub fn waits_s(&self) -> [f64; 5] {
        let state = self.state();
        let sum = |kind: usize| {
            let loads = state.workers.iter().filter(|worker| !worker.copies);
            loads.filter_map(|worker| worker.waits.get(kind)).sum::<u64>()
        };
        [0, 1, 2, 3, 4].map(|kind| sum(kind) as f64 * 1e-9)
    }

    /// How often the kernel has pulled a thread to another node.
    pub fn pulls(&self) -> u64 {
        self.state().pulls
    }
}

impl Worker {
    fn add(&mut self, kind: Wait, ns: u64) {
        if let Some(sum) = self.waits.get_mut(kind as usize) {
            *sum += ns;
        }
    }
}

impl State {
    /// The node with the fewest threads per core.
    fn idlest(&mut self) -> usize {
        let load = |node: &Node| node.threads as f64 / node.cores as f64;
        let seats = || self.nodes.iter().enumerate().filter(|(_, node)| node.cores > 0);
        let least = seats().map(|(_, node)| load(node)).fold(f64::INFINITY, f64::min);
        let idlest: Vec<usize> = seats().filter(|(_, node)| load(node) <= least).map(|(at, _)| at).collect();
        let at = self.rng.random_range(0..idlest.len().max(1));
        idlest.get(at).copied().unwrap_or_default()
    }

    /// Counts the core time of a thread until now.
    fn count(&mut self, thread: ThreadId) {
        let Some(worker) = self.workers.get_mut(thread) else { return };
        let Some(node) = worker.holds else { return };
        let now = now_ns();
        let took = now - std::mem::replace(&mut worker.since, now);
        worker.core_ns += took;
        if let Some(node) = self.nodes.get_mut(node) {
            node.busy_ns += took;
        }
    }

    /// A thread gives its core to the next one.
    fn release(&mut self, thread: ThreadId, slice_ns: u64) {
        self.count(thread);
        let Some(node) = self.workers.get_mut(thread).and_then(|worker| worker.holds.take()) else { return };
        if let Some(node) = self.nodes.get_mut(node) {
            node.idle += 1;
        }
        self.dispatch(node, slice_ns);
        self.balance(slice_ns);
    }

    /// Gives idle cores of a node to who waits there.
    fn dispatch(&mut self, at: usize, slice_ns: u64) {
        while let Some(node) = self.nodes.get_mut(at).filter(|node| node.idle > 0) {
            let Some(thread) = node.queue.pop_front() else { return };
            self.grant(thread, at, slice_ns);
        }
    }

    fn grant(&mut self, thread: ThreadId, at: usize, slice_ns: u64) {
        let now = now_ns();
        if let Some(node) = self.nodes.get_mut(at) {
            node.idle -= 1;
        }
        if let Some(worker) = self.workers.get_mut(thread) {
            (worker.holds, worker.since, worker.slice_ends) = (Some(at), now, now + slice_ns);
            if clock::current() != Some(worker.task) {
                clock::wake(worker.task);
            }
        }
    }

    /// Cores with nothing to do take threads that wait elsewhere.
    fn balance(&mut self, slice_ns: u64) {
        while let Some(to) = self.nodes.iter().position(|node| node.idle > 0 && node.queue.is_empty()) {
            let free = |thread: &ThreadId| self.workers.get(*thread).is_some_and(|worker| !worker.bound);
            let waits = self.nodes.iter().enumerate().filter(|(_, node)| node.queue.len() >= 2);
            let first = |(at, node): (usize, &Node)| {
                let place = node.queue.iter().position(free)?;
                Some((node.queue.len(), std::cmp::Reverse(at), place))
            };
            let Some((_, std::cmp::Reverse(from), place)) = waits.filter_map(first).max() else { return };
            let Some(node) = self.nodes.get_mut(from) else { return };
            let Some(thread) = node.queue.remove(place) else { return };
            node.threads -= 1;
            self.pulls += 1;
            if let Some(node) = self.nodes.get_mut(to) {
                node.threads += 1;
            }
            if let Some(worker) = self.workers.get_mut(thread) {
                worker.node = to;
            }
            self.grant(thread, to, slice_ns);
        }
    }
}

/// A thread's core, while it waits for a lock.
struct OnCore {
    machine: Arc<Machine>,
    thread: ThreadId,
}

impl clock::Seat for OnCore {
    fn leave(&self) {
        self.machine.leave_core(self.thread);
        self.machine.with(self.thread, |worker| worker.lock_since = now_ns());
    }

    fn come_back(&self) {
        self.machine.with(self.thread, |worker| {
            let waited = now_ns() - worker.lock_since;
            worker.add(Wait::Lock, waited);
        });
        self.machine.take_core(self.thread);
    }
}
