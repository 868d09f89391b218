//! Whether a load is still the one that it was.
//!
//! **Problem.** A placement is good for the load that it was made for. The engine lets a load be
//! moved about in its first windows only, and `auto` plans only then. Both must notice when another
//! load begins, and at the same time: what one plans too early, the other holds back.
//!
//! **Approach.** A [`Detector`] compares what each thread does with what it did when the load
//! began. These are [`Changes`]:
//!
//! - a thread appears, or has been gone for 10 windows;
//! - it starts or stops using files, turns to data on another node (suddenly, or in another file),
//!   or reads where it wrote;
//! - it becomes so much faster or slower that no placement explains it;
//! - CPUs or nodes come or go: another machine has another placement.
//!
//! The caller decides how many of them make another load, and says so ([`Detector::begin`]).
//!
//! Threads that no policy may move do not count: the kernel's, homenode's own, which copy what is
//! moved, and those with an affinity of their own. Effects of our own moves
//! ([`Detector::moved`]) are no changes: neither the rates right after them, nor that a process
//! stands still while its memory is copied. Nor is data that drifts to another node bit by bit,
//! because written data lands on the writer's node.
//!
//! **Limits.** Threads that were moved and have gone are remembered for up to 300 windows.

use std::cmp::Reverse;

use rustc_hash::{FxHashMap, FxHashSet};
use topology::{FileId, NodeId};

use crate::{Snapshot, Subject, Thread};

/// A thread is busy from this many file bytes/s, or this share of a CPU, on.
pub const BUSY_BYTES_S: f64 = 1048576.0;
const BUSY_CPU: f64 = 0.05;
/// A thread not seen for this many windows is gone for good.
const GONE: u64 = 10;
/// A thread does something else if its rate changes by this factor at once (twice the factor if
/// gradually),
const FACTOR: f64 = 8.0;
/// or if the share of reads in its file bytes changes by this much.
const READS: f64 = 0.25;
/// A thread clearly reads from a node if at least this share of its reads does.
const CLEAR: f64 = 0.75;
/// Windows after a move in which rates change because of it, and of a young thread's life in which
/// its rates mean little.
const OURS: u64 = 3;
/// A moved thread may stand still for this many windows, as a process does while its memory is
/// copied.
const STANDING: u64 = 300;
/// A thread turns to other data, or another rate, within this many windows; drift takes longer.
const AT_ONCE: u64 = 3;

/// Whether a thread does enough in a window of `window_s` seconds to count: `least` file bytes/s
/// ([`BUSY_BYTES_S`]), or CPU time.
pub fn busy(thread: &Thread, window_s: f64, least: f64) -> bool {
    thread.file_bytes() as f64 / window_s >= least || thread.cpu_s >= BUSY_CPU * window_s
}

/// How a load differs from what it was when it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// CPUs or nodes came or went.
    pub machine: bool,
    /// Threads that came.
    pub came: usize,
    /// Threads that are gone.
    pub gone: usize,
    /// Threads that do something else.
    pub other: usize,
    /// All threads of the load, those that are gone included.
    pub of: usize,
}

impl Changes {
    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.machine || self.came + self.gone + self.other > 0
    }

    /// Whether more than this share of the threads has changed, or the machine. One that takes
    /// another's place counts once.
    pub fn exceed(&self, share: f64) -> bool {
        self.machine || (self.came.max(self.gone) + self.other) as f64 > share * self.of as f64
    }
}

/// What a thread does, apart from its place.
#[derive(Clone, Copy, Debug)]
struct Doing {
    /// File bytes/s; little is like nothing.
    rate: f64,
    /// So many that it matters which they are.
    busy: bool,
    /// Share of reads.
    reads: f64,
    /// Where most of its reads come from, where that is clear.
    home: Option<NodeId>,
    /// The file it reads most of.
    file: Option<FileId>,
}

impl Doing {
    fn of(t: &Thread, window_s: f64, least: f64, moved: &FxHashSet<FileId>) -> Self {
        let (bytes, read) = (t.file_bytes() as f64, t.read_bytes.total() as f64);
        let most = t.files.iter().max_by_key(|f| (f.read_bytes.total(), Reverse(f.file)));
        let file = most.map(|f| f.file);
        // Data that we move comes from elsewhere when its copy is done.
        let ours = file.is_some_and(|file| moved.contains(&file));
        let clear = |home: &NodeId| !ours && t.read_bytes.get(*home) as f64 >= CLEAR * read;
        let reads = if bytes > 0.0 { read / bytes } else { 0.0 };
        let rate = (bytes / window_s).max(least / FACTOR);
        Self { rate, busy: rate >= least, reads, home: t.home().filter(clear), file }
    }

    /// Whether it is less than so many times as fast or slow.
    fn near(&self, then: &Self, factor: f64) -> bool {
        let times = self.rate / then.rate;
        1.0 / factor < times && times < factor
    }
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// What it did when the load began, and does now.
    then: Doing,
    now: Doing,
    /// It came after that.
    came: bool,
    /// It does something else now.
    other: bool,
    node: NodeId,
    pid: u32,
    /// Windows in which it was last seen, in which its reads last came from `then.home`, and in
    /// which it was last about as fast.
    seen: u64,
    at_home: u64,
    at_rate: u64,
    /// Since when it is seen without a break.
    since: u64,
    /// It has stood still since we moved it.
    stands: bool,
}

impl Known {
    fn new(t: &Thread, now: Doing, window: u64) -> Self {
        let (node, pid) = (t.node, t.pid);
        let (seen, at_home, at_rate, since) = (window, window, window, window);
        let (then, came, other, stands) = (now, true, false, false);
        Self { then, now, came, other, node, pid, seen, at_home, at_rate, since, stands }
    }

    /// Takes in what it does in this window; `ours`: our own moves may be the reason.
    fn window(&mut self, now: Doing, node: NodeId, window: u64, ours: bool) {
        if std::mem::take(&mut self.stands) {
            self.since = window;
        }
        (self.now, self.node, self.seen) = (now, node, window);
        if ours || window < self.since + OURS {
            self.begin();
        } else if self.like() {
            self.other = false;
            // Compared with what it did when the load began, so that slow changes are seen, too.
            self.at_home = if now.home == self.then.home { window } else { self.at_home };
            self.at_rate = if now.near(&self.then, FACTOR / 2.0) { window } else { self.at_rate };
        } else {
            self.other = true;
        }
    }

    /// What it does now is what it is compared with from now on.
    fn begin(&mut self) {
        (self.then, self.other) = (self.now, false);
        (self.at_home, self.at_rate) = (self.seen, self.seen);
    }

    /// Whether it does what it did when the load began.
    fn like(&self) -> bool {
        let (now, then) = (&self.now, &self.then);
        let at_once = |last: u64| self.other || self.seen <= last + AT_ONCE;
        let other_file = now.file.is_some() && then.file.is_some() && now.file != then.file;
        let other_home = now.home.is_some() && then.home.is_some() && now.home != then.home;
        let turned = other_home && (other_file || at_once(self.at_home)) || (now.reads - then.reads).abs() >= READS;
        now.near(then, if at_once(self.at_rate) { FACTOR } else { 2.0 * FACTOR }) && !(turned && now.busy && then.busy)
    }
}

/// Compares the threads of a load with what they did when it began.
#[derive(Clone, Debug)]
pub struct Detector {
    least: f64,
    threads: FxHashMap<Subject, Known>,
    /// Threads that are gone since the load began.
    gone: usize,
    /// The CPUs of each node, and whether that is new.
    machine: Vec<(NodeId, Vec<u32>)>,
    other_machine: bool,
    /// Moved subjects and the window: threads may appear at their new place some windows later.
    moved: FxHashMap<Subject, u64>,
    /// Files that were moved since the load began.
    files: FxHashSet<FileId>,
    last_move: u64,
    window: u64,
}

impl Default for Detector {
    /// Bytes of busy threads matter.
    fn default() -> Self {
        Self::new(BUSY_BYTES_S)
    }
}

impl Detector {
    /// Nothing seen yet. From `least` file bytes/s of a thread on it matters which they are.
    pub fn new(least: f64) -> Self {
        Self {
            least: least.max(1.0),
            threads: FxHashMap::default(),
            gone: 0,
            machine: Vec::new(),
            other_machine: false,
            moved: FxHashMap::default(),
            files: FxHashSet::default(),
            last_move: 0,
            window: 0,
        }
    }

    /// Takes a window in. Of the threads that a policy may move, those that `counts` names are the
    /// load. Returns the ones that run on another node than in the window before although we did
    /// not move them, with the node that they were on.
    pub fn window(&mut self, snapshot: &Snapshot, counts: impl Fn(&Thread) -> bool) -> Vec<(Subject, NodeId)> {
        self.window += 1;
        let (window, ours) = (self.window, self.window <= self.last_move + OURS);
        if !self.machine.iter().map(|(id, cpus)| (id, cpus)).eq(snapshot.nodes.iter().map(|n| (&n.id, &n.cpus))) {
            self.machine = snapshot.nodes.iter().map(|n| (n.id, n.cpus.clone())).collect();
            self.other_machine = true;
        }
        // A thread knows the id of its process, not when the process started.
        let process = |(subject, at): (&Subject, &u64)| match subject {
            Subject::Process(id) => Some((id.pid, *at)),
            _ => None,
        };
        let processes: FxHashMap<u32, u64> = self.moved.iter().filter_map(process).collect();
        let mut displaced = Vec::new();
        for t in snapshot.threads.iter().filter(|t| t.pinned.is_none()) {
            let subject = Subject::thread(t);
            if !counts(t) {
                if let Some(known) = self.threads.get_mut(&subject) {
                    known.seen = window;
                }
                continue;
            }
            let now = Doing::of(t, snapshot.window_s, self.least, &self.files);
            let Some(known) = self.threads.get_mut(&subject) else {
                self.threads.insert(subject, Known::new(t, now, window));
                continue;
            };
            let from = known.node;
            let moved = self.moved.contains_key(&subject) || processes.contains_key(&t.pid) || known.stands;
            known.window(now, t.node, window, ours);
            if t.node != from && !moved {
                displaced.push((subject, from));
            }
        }
        let moved = &self.moved;
        for (subject, known) in self.threads.iter_mut().filter(|(_, known)| known.seen + 1 == window) {
            let at = moved.get(subject).max(processes.get(&known.pid));
            known.stands = at.is_some_and(|at| window <= at + OURS);
        }
        let over = |known: &Known| known.seen + if known.stands { STANDING } else { GONE } <= window;
        // One that came after the load began and is gone is no change.
        self.gone += self.threads.values().filter(|known| over(known) && !known.came).count();
        self.threads.retain(|_, known| !over(known));
        self.moved.retain(|_, at| *at + GONE > window);
        displaced
    }

    /// How the load differs from what it was when it began.
    pub fn changes(&self) -> Changes {
        let came = self.threads.values().filter(|known| known.came && known.seen == self.window).count();
        let other = self.threads.values().filter(|known| known.other).count();
        let (machine, gone) = (self.other_machine, self.gone);
        Changes { machine, came, gone, other, of: self.threads.len() + gone }
    }

    /// Another load begins with this window, or the same one is looked at again.
    pub fn begin(&mut self) {
        (self.other_machine, self.gone) = (false, 0);
        self.files.clear();
        for known in self.threads.values_mut() {
            known.came = false;
            if known.other {
                known.begin();
            }
        }
    }

    /// We have moved this thread, process or file, or still do.
    pub fn moved(&mut self, subject: Subject) {
        self.last_move = self.window;
        self.data_moves(&subject);
        self.moved.insert(subject, self.window);
    }

    /// Parts of this file move, now and then: what its readers read of it comes from elsewhere. All
    /// other threads are watched as ever.
    pub fn data_moves(&mut self, subject: &Subject) {
        if let Subject::File(file) = subject {
            self.files.insert(file.any_generation());
        }
    }

    /// This was not moved after all.
    pub fn not_moved(&mut self, subject: &Subject) {
        if let Subject::File(file) = subject {
            self.files.remove(&file.any_generation());
        }
        self.moved.remove(subject);
    }

    /// Nothing that we moved stands still any more: a thread that is not seen from now on has
    /// ended.
    pub fn resumed(&mut self) {
        for known in self.threads.values_mut().filter(|known| known.stands) {
            (known.stands, known.seen) = (false, self.window.saturating_sub(1));
        }
    }

    /// A moved thread has ended: it does not merely stand still.
    pub fn ended(&mut self, subject: &Subject) {
        if let Some(known) = self.threads.get_mut(subject) {
            known.stands = false;
        }
    }

    /// How many threads, processes and files are remembered.
    pub fn remembered(&self) -> usize {
        self.threads.len() + self.moved.len() + self.files.len()
    }
}
