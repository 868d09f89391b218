//! Memory of a host, by node and touch: what lies below programs where no code of ours does.
//!
//! **Problem.** The page cache, the ARC of ZFS and mapped memory are the kernel's. What a policy
//! wins there depends on which node a page is on, and that on who touched it first.
//!
//! **Approach.** [`Memory`] knows the node of each page of each [`Object`]. A page that is nowhere
//! comes to the node of who touches it; if that node is full, to the nearest one with room, as
//! Linux does on fewer than four nodes and all Linux does since 3.16; if all are, the page of the
//! toucher's node that came first and was not touched since gives way (a clock, for the kernel's
//! two lists). Pages of files give way, pages of processes do not. The processor's accessed bits
//! are kept for mapped objects; [`Memory::scan`] reads and clears them, four times a window, and a
//! page is hot that had it in two of the last four scans, as in the agent's own observer.
//!
//! [`Host`] is such a memory on a [`Machine`]: threads that read, write, load and store
//! ([`Program`](crate::loads::programs)), processes, and the kernel's copying of pages between
//! nodes, by a thread on a core of the target, no faster than the papers measured.
//!
//! **Limits.** What a process does with memory of its own takes no time but that of filling it. No
//! swap: processes that have more than the machine do so beyond the capacity of a node. AutoNUMA
//! ([`Kernel::autonuma`]) is its effect after the first second, without its page faults.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use clock::TaskId;
use memory_model::Direction;
use memory_model::figures::DRAM_COPY_S;
use serde::Deserialize;

use crate::machine::{Machine, PIECE, ThreadId};
use crate::thread::Done;

/// A page that is on no node.
const NOWHERE: u8 = u8::MAX;
/// Bits of a page: touched since the clock's hand passed, touched since the last scan, and in the
/// last four scans.
const AGAIN: u8 = 0x80;
const ACCESSED: u8 = 0x40;
const SCANS: u8 = 0x0f;

/// Scans of the accessed bits in a window.
pub const SCANS_A_WINDOW: u64 = 4;

pub type ObjectId = usize;

/// What has pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A file in the page cache.
    #[default]
    PageCache,
    /// A file in the ARC of ZFS: memory of the kernel, which stays where it is.
    Arc,
    /// A file in persistent memory, where it stays.
    Persistent,
    /// Memory of a process.
    #[serde(skip)]
    Own,
}

impl Kind {
    /// Whether the kernel can move its pages to another node.
    pub fn moves(self) -> bool {
        matches!(self, Self::PageCache | Self::Own)
    }
}

/// A file, or memory of a process.
#[derive(Clone, Debug)]
pub struct Object {
    pub kind: Kind,
    pub bytes: u64,
    /// Bytes of a page: those that come, go and are counted together.
    pub page: u64,
    nodes: Vec<u8>,
    bits: Vec<u8>,
}

impl Object {
    fn size(&self, page: usize) -> u64 {
        (self.bytes - (page as u64 * self.page).min(self.bytes)).min(self.page)
    }

    pub fn node(&self, page: usize) -> Option<usize> {
        self.nodes.get(page).filter(|node| **node != NOWHERE).map(|node| usize::from(*node))
    }

    pub fn pages(&self) -> usize {
        self.nodes.len()
    }
}

/// Bytes of a mapped object on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    /// In pages that were touched in the last four scans.
    pub touched: u64,
    /// Of these, in pages that were touched in two of them.
    pub hot: u64,
    pub all: u64,
}

#[derive(Clone, Debug, Default)]
struct Frames {
    capacity: u64,
    used: u64,
    order: VecDeque<(ObjectId, usize)>,
    /// The other nodes, the nearest first.
    nearest: Vec<usize>,
}

/// Which page is on which node.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    nodes: Vec<Frames>,
    objects: Vec<Object>,
    evicted: u64,
}

impl Memory {
    /// Memory of the nodes of this topology, with nothing in it.
    pub fn new(topology: &topology::Topology) -> Self {
        let nodes = topology.nodes.iter().enumerate().map(|(own, node)| {
            let mut nearest: Vec<usize> = (0..topology.nodes.len()).filter(|other| *other != own).collect();
            nearest.sort_by_key(|other| topology.nodes.get(*other).and_then(|other| node.distance.get(&other.id)));
            Frames { capacity: node.memory_bytes, nearest, ..Frames::default() }
        });
        Self { nodes: nodes.collect(), ..Self::default() }
    }

    /// A new object, of which nothing is in memory; persistent memory is on `node`.
    pub fn add(&mut self, kind: Kind, bytes: u64, page: u64, node: usize) -> ObjectId {
        let pages = bytes.div_ceil(page.max(1)) as usize;
        let at = if kind == Kind::Persistent { node as u8 } else { NOWHERE };
        self.objects.push(Object { kind, bytes, page: page.max(1), nodes: vec![at; pages], bits: vec![0; pages] });
        self.objects.len() - 1
    }

    pub fn object(&self, object: ObjectId) -> Option<&Object> {
        self.objects.get(object)
    }

    pub fn free(&self, node: usize) -> u64 {
        self.nodes.get(node).map_or(0, |node| node.capacity.saturating_sub(node.used))
    }

    /// Bytes that gave way.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    pub fn resident(&self, object: ObjectId) -> Vec<u64> {
        let mut sums = vec![0; self.nodes.len()];
        let Some(object) = self.objects.get(object) else { return sums };
        for page in 0..object.pages() {
            if let Some(sum) = object.node(page).and_then(|node| sums.get_mut(node)) {
                *sum += object.size(page);
            }
        }
        sums
    }

    /// A thread on a node touches a page: where the page is, and whether it had to come first.
    pub fn touch(&mut self, object: ObjectId, page: usize, by: usize) -> (usize, bool) {
        let Some(of) = self.objects.get_mut(object) else { return (by, false) };
        if let Some(bits) = of.bits.get_mut(page) {
            *bits |= AGAIN | ACCESSED;
        }
        if let Some(node) = of.node(page) {
            return (node, false);
        }
        let bytes = of.size(page);
        let node = self.frame(by, bytes);
        self.put(object, page, node);
        (node, true)
    }

    /// A node with room for so many bytes, for a thread on `by`.
    fn frame(&mut self, by: usize, bytes: u64) -> usize {
        let nearest = self.nodes.get(by).map_or_else(Vec::new, |node| node.nearest.clone());
        let near = || std::iter::once(by).chain(nearest.iter().copied());
        if let Some(node) = near().find(|node| self.free(*node) >= bytes) {
            return node;
        }
        near().find(|node| self.make_room(*node, bytes)).unwrap_or(by)
    }

    /// Pages that came first and were not touched again give way.
    fn make_room(&mut self, node: usize, bytes: u64) -> bool {
        // Each page at most twice: it was touched, and it was not since.
        let mut looks = self.nodes.get(node).map_or(0, |node| 2 * node.order.len());
        while self.free(node) < bytes {
            let Some((object, page)) = self.nodes.get_mut(node).and_then(|node| node.order.pop_front()) else {
                return false;
            };
            let Some(of) = self.objects.get_mut(object).filter(|of| of.node(page) == Some(node)) else { continue };
            let Some(bits) = of.bits.get_mut(page) else { continue };
            if looks == 0 {
                return false;
            }
            looks -= 1;
            if of.kind == Kind::Own || std::mem::replace(bits, *bits & !AGAIN) & AGAIN != 0 {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.order.push_back((object, page));
                }
                continue;
            }
            self.evicted += of.size(page);
            self.take(object, page);
        }
        true
    }

    fn put(&mut self, object: ObjectId, page: usize, node: usize) {
        let Some(of) = self.objects.get_mut(object) else { return };
        let bytes = of.size(page);
        let (Some(at), Some(frames)) = (of.nodes.get_mut(page), self.nodes.get_mut(node)) else { return };
        *at = node as u8;
        frames.used += bytes;
        frames.order.push_back((object, page));
    }

    fn take(&mut self, object: ObjectId, page: usize) {
        let Some(of) = self.objects.get_mut(object) else { return };
        let bytes = of.size(page);
        let Some(at) = of.nodes.get_mut(page) else { return };
        let node = usize::from(std::mem::replace(at, NOWHERE));
        if let Some(frames) = self.nodes.get_mut(node) {
            frames.used -= bytes;
        }
    }

    /// Moves a page; whether there was room, and it can move.
    pub fn move_page(&mut self, object: ObjectId, page: usize, to: usize) -> bool {
        let Some(of) = self.objects.get(object).filter(|of| of.kind.moves()) else { return false };
        if of.node(page).is_none_or(|node| node == to) || self.free(to) < of.size(page) {
            return false;
        }
        self.take(object, page);
        self.put(object, page, to);
        true
    }

    /// Reads and clears the accessed bits of all objects.
    pub fn scan(&mut self) {
        for bits in self.objects.iter_mut().flat_map(|object| &mut object.bits) {
            *bits = *bits & AGAIN | (*bits << 1 | u8::from(*bits & ACCESSED != 0)) & SCANS;
        }
    }

    /// What the last four scans say of an object, by node.
    pub fn heat(&self, object: ObjectId) -> Vec<Heat> {
        let mut sums = vec![Heat::default(); self.nodes.len()];
        let Some(object) = self.objects.get(object) else { return sums };
        for (page, bits) in object.bits.iter().enumerate() {
            let Some(sum) = object.node(page).and_then(|node| sums.get_mut(node)) else { continue };
            let (bytes, times) = (object.size(page), (bits & SCANS).count_ones());
            sum.all += bytes;
            sum.touched += if times > 0 { bytes } else { 0 };
            sum.hot += if times > 1 { bytes } else { 0 };
        }
        sums
    }

    /// The first page from `from` on that is on another node than `to`, or only on `only`.
    fn next_to_move(&self, object: ObjectId, from: usize, only: Option<usize>, to: usize) -> Option<usize> {
        let object = self.objects.get(object)?;
        let wanted = |node: usize| node != to && only.is_none_or(|only| only == node);
        (from..object.pages()).find(|page| object.node(*page).is_some_and(wanted))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moving {
    /// It goes on: another program moves the pages, as homenode does.
    #[default]
    GoesOn,
    /// It stands still: it moves them itself, as the thesis's prototype does.
    Stands,
}

/// How the kernel and the machine behave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kernel {
    /// Programs start on this node, where the load names none.
    pub start: Option<usize>,
    /// Memory of a process follows its threads, once it has run for a second ("it also only scans
    /// once every second", thesis 6). Memory of the kernel does not.
    pub autonuma: bool,
    pub moving: Moving,
    /// Moves of a process leave its memory behind.
    pub threads_only: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Process {
    pub threads: Vec<ThreadId>,
    pub own: Option<ObjectId>,
    pub mapped: Vec<ObjectId>,
    started_ns: u64,
    pub ended_ns: Option<u64>,
    stands: bool,
    waiting: Vec<TaskId>,
}

/// What a thread did with an object since the last window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Use {
    pub read: Vec<u64>,
    pub written: Vec<u64>,
    pub read_calls: u64,
    pub sequential: u64,
    next: u64,
}

/// Seconds after which AutoNUMA looks at a process (thesis 6), and between two looks.
const AUTONUMA_S: f64 = 1.0;
/// Bytes that one look moves at most: `numa_balancing_scan_size_mb`, 256 by default.
const AUTONUMA_BYTES: u64 = 256 << 20;

/// A memory on a machine, its processes, and what they have done.
pub struct Host {
    pub machine: Arc<Machine>,
    /// How many times as short as the paper's all times are.
    pub factor: f64,
    /// When the run ends, in nanoseconds.
    pub end_ns: u64,
    pub kernel: Kernel,
    /// Seconds that a byte takes from the disk, one after the other.
    pub disk_s: f64,
    pub(crate) seed: u64,
    pub memory: RefCell<Memory>,
    pub(crate) processes: RefCell<Vec<Process>>,
    pub(crate) uses: RefCell<BTreeMap<(ThreadId, ObjectId), Use>>,
    pub(crate) done: RefCell<Done>,
    /// Nanoseconds of each call that reads.
    pub(crate) calls_ns: RefCell<Vec<u32>>,
    disk_free: Cell<u64>,
}

impl Host {
    pub fn new(machine: Arc<Machine>, kernel: Kernel, seed: u64) -> Self {
        let memory = RefCell::new(Memory::new(machine.topology()));
        Self {
            machine,
            factor: 1.0,
            end_ns: 0,
            kernel,
            disk_s: 0.0,
            seed,
            memory,
            processes: RefCell::default(),
            uses: RefCell::default(),
            done: RefCell::default(),
            calls_ns: RefCell::default(),
            disk_free: Cell::new(0),
        }
    }

    /// Seconds that the processes ran, on average; those that did not end, until the run did.
    pub fn runtime_s(&self) -> f64 {
        let processes = self.processes.borrow();
        let ran = |process: &Process| process.ended_ns.unwrap_or(self.end_ns).saturating_sub(process.started_ns);
        processes.iter().map(ran).sum::<u64>() as f64 * 1e-9 / processes.len().max(1) as f64
    }

    /// When the last one ended.
    pub fn last_s(&self) -> f64 {
        let processes = self.processes.borrow();
        processes.iter().map(|process| process.ended_ns.unwrap_or(self.end_ns)).max().unwrap_or(self.end_ns) as f64
            * 1e-9
    }

    /// Seconds of the median call that read.
    pub fn median_read_s(&self) -> f64 {
        let mut calls = self.calls_ns.borrow_mut();
        let middle = calls.len() / 2;
        if calls.is_empty() { f64::NAN } else { f64::from(*calls.select_nth_unstable(middle).1) * 1e-9 }
    }

    pub fn done(&self) -> Done {
        *self.done.borrow()
    }

    pub fn runs(&self) -> bool {
        self.processes.borrow().iter().any(|process| process.ended_ns.is_none())
    }

    pub(crate) fn start(&self, own: Option<ObjectId>, mapped: Vec<ObjectId>) -> usize {
        let mut processes = self.processes.borrow_mut();
        processes.push(Process { own, mapped, started_ns: clock::now_ns(), ..Process::default() });
        processes.len() - 1
    }

    pub(crate) fn ended(&self, process: usize) {
        let mut processes = self.processes.borrow_mut();
        let Some(process) = processes.get_mut(process) else { return };
        // The last one that asks is not yet counted as ended itself.
        let left = process.threads.iter().filter(|thread| !self.machine.has_ended(**thread)).count();
        if left <= 1 {
            process.ended_ns = Some(clock::now_ns());
        }
    }

    /// Waits while the process of a thread stands still.
    pub(crate) fn stand(&self, thread: ThreadId, process: usize) {
        let stands = |task: Option<TaskId>| {
            let mut processes = self.processes.borrow_mut();
            let process = processes.get_mut(process).filter(|process| process.stands);
            process.map(|process| process.waiting.extend(task)).is_some()
        };
        if stands(None) {
            self.machine.leave_core(thread);
            while stands(clock::current()) {
                clock::block();
            }
        }
    }

    /// All of a process stands still, or goes on.
    pub(crate) fn set_standing(&self, process: usize, stands: bool) {
        let mut processes = self.processes.borrow_mut();
        if let Some(process) = processes.get_mut(process) {
            process.stands = stands;
            std::mem::take(&mut process.waiting).into_iter().for_each(clock::wake);
        }
    }

    /// A thread touches bytes of an object: pages come, and each access takes its time.
    pub(crate) fn access(&self, thread: ThreadId, object: ObjectId, at: u64, len: u64, direction: Direction) {
        let page = self.memory.borrow().object(object).map_or(1, |object| object.page);
        let (mut at, end) = (at, at + len);
        let (mut run, mut on) = (0, None);
        while at < end {
            let bytes = (page - at % page).min(end - at);
            let by = self.machine.node_of(thread);
            let (node, first) = self.memory.borrow_mut().touch(object, (at / page) as usize, by);
            if on != Some(node) && run > 0 {
                self.carry(thread, on, direction, std::mem::take(&mut run));
            }
            if first {
                self.load_page(thread, page);
            }
            (on, run, at) = (Some(node), run + bytes, at + bytes);
        }
        self.carry(thread, on, direction, run);
    }

    /// Counts a call: in all, and of files in the kernel for its thread, by the node of the data.
    pub(crate) fn note(&self, thread: ThreadId, object: ObjectId, at: u64, len: u64, direction: Direction, kind: Kind) {
        let mut done = self.done.borrow_mut();
        done.calls += 1;
        match direction {
            Direction::Read => done.read += len,
            Direction::Write => done.written += len,
        }
        if matches!(kind, Kind::Persistent | Kind::Own) {
            return;
        }
        let memory = self.memory.borrow();
        let Some(of) = memory.object(object) else { return };
        let mut uses = self.uses.borrow_mut();
        let used = uses.entry((thread, object)).or_default();
        if direction == Direction::Read {
            used.read_calls += 1;
            used.sequential += u64::from(used.next == at);
            used.next = at + len;
        }
        let mut from = at;
        while from < at + len {
            let bytes = (of.page - from % of.page).min(at + len - from);
            let sums = if direction == Direction::Read { &mut used.read } else { &mut used.written };
            if let Some(node) = of.node((from / of.page) as usize) {
                sums.resize(sums.len().max(node + 1), 0);
                if let Some(sum) = sums.get_mut(node) {
                    *sum += bytes;
                }
            }
            from += bytes;
        }
    }

    fn carry(&self, thread: ThreadId, on: Option<usize>, direction: Direction, bytes: u64) {
        if let Some(node) = on.filter(|_| bytes > 0) {
            self.machine.take_core(thread);
            self.machine.access(thread, node, direction, bytes as usize);
        }
    }

    /// A page comes from the disk, which brings one at a time; its thread gives its core away.
    fn load_page(&self, thread: ThreadId, bytes: u64) {
        let takes = (bytes as f64 * self.disk_s * 1e9) as u64;
        if takes > 0 {
            let now = clock::now_ns();
            self.disk_free.set(self.disk_free.get().max(now) + takes);
            self.machine.sleep(thread, self.disk_free.get() - now);
        }
    }

    /// Moves pages of an object (those on `only`) to a node, by a thread that runs there. Returns
    /// bytes moved and bytes for which there was no room. `go_on` is asked before each step.
    pub(crate) fn migrate(
        &self,
        thread: ThreadId,
        object: ObjectId,
        (only, to): (Option<usize>, usize),
        mut go_on: impl FnMut(u64) -> bool,
    ) -> (u64, u64) {
        let (mut moved, mut left, mut next) = (0, 0, 0);
        while go_on(moved) {
            let page = self.memory.borrow().next_to_move(object, next, only, to);
            let Some(page) = page else { break };
            next = page + 1;
            let (from, bytes) = {
                let memory = self.memory.borrow();
                let Some(object) = memory.object(object) else { break };
                (object.node(page).unwrap_or(to), object.size(page))
            };
            if !self.memory.borrow_mut().move_page(object, page, to) {
                left += bytes;
                continue;
            }
            self.copy(thread, from, to, bytes);
            moved += bytes;
        }
        self.machine.leave_core(thread);
        (moved, left)
    }

    /// The kernel's copy of a page: no faster than NThread measured it between DRAMs.
    fn copy(&self, thread: ThreadId, from: usize, to: usize, bytes: u64) {
        for at in (0..bytes).step_by(PIECE) {
            let piece = (bytes - at).min(PIECE as u64);
            let due = clock::now_ns() + (piece as f64 * DRAM_COPY_S * 1e9) as u64;
            self.machine.take_core(thread);
            self.machine.access(thread, from, Direction::Read, piece as usize);
            self.machine.access(thread, to, Direction::Write, piece as usize);
            self.machine.fence(thread);
            self.machine.compute(thread, due.saturating_sub(clock::now_ns()));
            self.machine.end_call(thread);
        }
    }

    /// AutoNUMA: once a second, memory of processes follows their threads, 256 MB at a time.
    pub(crate) fn balance(self: &Rc<Self>) {
        let host = Rc::clone(self);
        let second = (AUTONUMA_S / self.factor * 1e9) as u64;
        self.machine.spawn(None, move |thread| {
            while clock::now_ns() + second < host.end_ns && host.runs() {
                host.machine.sleep(thread, second);
                let count = host.processes.borrow().len();
                (0..count).for_each(|process| host.follow(thread, process, second));
            }
        });
    }

    fn follow(&self, thread: ThreadId, process: usize, second: u64) {
        let found = {
            let processes = self.processes.borrow();
            let Some(process) = processes.get(process) else { return };
            let old = clock::now_ns() > process.started_ns + second && process.ended_ns.is_none();
            let mut nodes = process.threads.iter().map(|thread| self.machine.node_of(*thread));
            nodes.next().filter(|node| old && nodes.all(|other| other == *node)).zip(process.own)
        };
        if let Some((to, own)) = found {
            let most = (AUTONUMA_BYTES as f64 / self.factor) as u64;
            self.migrate(thread, own, (None, to), |moved| moved < most);
        }
    }
}
