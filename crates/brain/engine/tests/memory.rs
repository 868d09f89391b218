//! Memory over the life of a daemon: threads, processes and files that come, are moved and end
//! leave nothing behind.
//!
//! An allocator that counts says how much is in use. The load is a few threads that stay and a
//! crowd that changes: some threads are seen once, some skip a window, some are displaced, some
//! moves are refused. The engine runs with each policy in turn. A debug build takes 12,000
//! short-lived threads for each policy, a release build 1,000,000, ten million in all.

#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::settings::Moves;
use engine::{
    Copies, Engine, JobId, JobState, Masks, Plane, PlaneError, Progress, Settings, Started, Subject, Undo, Undone,
    Write,
};
use placement::{FileUse, MappedMemory, Move, NodeLoad, ObservedFile, Process, Snapshot, Thread, testing};
use topology::{CpuSet, NodeId, ProcessId, ThreadId, Topology};

/// Short-lived threads for each policy.
const THREADS: u32 = if cfg!(debug_assertions) { 12_000 } else { 1_000_000 };
/// Threads that start in each window.
const CROWD: u32 = if cfg!(debug_assertions) { 6 } else { 100 };
/// Windows in which what is remembered for a time may grow.
const WARM_UP: u32 = 400;

/// Most growth per short-lived thread. An entry kept for each takes some 60 bytes; a table that
/// doubles once takes less.
const BYTES_EACH: f64 = if cfg!(debug_assertions) { 40.0 } else { 4.0 };

struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A machine with two nodes whose threads are made anew for each window.
struct Crowd {
    topology: Topology,
    window: u32,
    first: u32,
    copies: Vec<JobId>,
    jobs: u64,
    /// Copies whose end was told.
    ended: u64,
}

impl Crowd {
    fn new(topology: Topology) -> Self {
        Self { topology, window: 0, first: 1, copies: Vec::new(), jobs: 0, ended: 0 }
    }
}

impl Crowd {
    /// Thread `n` as seen `age` windows after its start, on this node.
    fn thread(n: u32, tid: u32, node: u32) -> Thread {
        let data = 1 - n % 2;
        let thread = testing::thread(tid, node, &[(data, 400)], 0);
        let used =
            FileUse { file: testing::file(tid.into()), read_bytes: thread.read_bytes.clone(), ..FileUse::default() };
        Thread { pid: tid, cpu_s: 0.3, files: vec![used], ..thread }
    }

    fn threads(&self) -> Vec<Thread> {
        let stays = |n: u32| Self::thread(0, 1_000_000_000 + n, 1);
        let mut threads: Vec<Thread> = (0..4).map(stays).collect();
        for (age, start) in (0..4).filter_map(|age| Some((age, self.window.checked_sub(age)?))) {
            for n in start * CROWD..(start + 1) * CROWD {
                let away = n % 2;
                let seen = match n / 2 % 4 {
                    0 => age == 0,
                    1 => age != 1,
                    _ => age < 3,
                };
                let displaced = n / 2 % 4 == 3 && age == 2;
                if seen {
                    threads.push(Self::thread(n, self.first + n, if displaced { 1 - away } else { away }));
                }
            }
        }
        threads
    }
}

impl Copies for Crowd {
    /// Every copy is done at the next look.
    fn poll(&mut self) -> Vec<Progress> {
        let over = |job| {
            self.ended += 1;
            Progress { job, bytes: 9, done: 9, there: 0, left: BTreeMap::new(), state: JobState::Done }
        };
        std::mem::take(&mut self.copies).into_iter().map(over).collect()
    }

    fn cancel(&mut self, _: JobId) {}
}

impl Plane for Crowd {
    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        self.window += 1;
        let threads = self.threads();
        let files = threads.iter().map(|t| ObservedFile {
            file: t.files[0].file,
            generation: Some(t.tid),
            size: Some(1 << 30),
            bytes: t.read_bytes.clone(),
            readers: vec![t.tid],
            ..ObservedFile::default()
        });
        let processes = threads.iter().map(|t| Process {
            pid: t.pid,
            start_ns: t.start_ns,
            resident: [(t.node, 1 << 20)].into_iter().collect(),
            mapped: vec![MappedMemory {
                node: NodeId(1 - t.node.0),
                hot_bytes: 64 << 20,
                cold_bytes: 0,
                touched_bytes: None,
            }],
        });
        let node = |id| NodeLoad {
            id: NodeId(id),
            cpus: (8 * id..8 * id + 8).collect(),
            distance: [(NodeId(id), 10), (NodeId(1 - id), 21)].into(),
            read_bw_max: Some(6.8e9),
            write_bw_max: Some(1.85e9),
            read_bytes: 6 << 30,
            memory_free: 1 << 40,
            ..NodeLoad::default()
        };
        Ok(Snapshot {
            version: 2,
            time_s: f64::from(self.window) * window.as_secs_f64(),
            window_s: window.as_secs_f64(),
            nodes: vec![node(0), node(1)],
            files: files.collect(),
            processes: processes.collect(),
            threads,
            notes: Vec::new(),
            ..Snapshot::default()
        })
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let masks = Some(Masks { before: CpuSet::default(), ours: CpuSet::default(), unbound: false });
        if mv.tid().is_some_and(|tid| tid % 7 == 0) {
            return Err(PlaneError::refused("eperm", "the kernel says no"));
        }
        let undo = Undo { subject: mv.subject, pid: mv.pid, masks, payload: None };
        Ok(Some(undo).filter(|_| !mv.subject.is_file()).into_iter().collect())
    }

    fn start(&mut self, mv: &Move, _: &[Undo], _: &mut Write<'_>) -> Result<Started, PlaneError> {
        if mv.subject.is_thread() {
            return Ok(Started::done());
        }
        self.jobs += 1;
        self.copies.push(JobId(self.jobs));
        Ok(Started::job(JobId(self.jobs)))
    }

    fn undo(&mut self, _: &Undo) -> Result<Undone, PlaneError> {
        Ok(Undone::Restored)
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        let (Subject::Thread(ThreadId { tid: id, .. }) | Subject::Process(ProcessId { pid: id, .. })) = undo.subject
        else {
            return true;
        };
        id < 1_000_000_000 && (id - self.first) / CROWD + 4 < self.window
    }
}

fn made_it(verdict: &engine::MoveEvent) -> bool {
    matches!(verdict, engine::MoveEvent::Applied | engine::MoveEvent::Started)
}

/// The most that was in use after any of these windows, and moves made.
fn most(engine: &mut Engine<Crowd>, windows: u32) -> (usize, usize) {
    let mut made = 0;
    let most = (0..windows).map(|_| {
        let report = engine.step().unwrap();
        made += report.outcomes.iter().filter(|o| made_it(&o.result)).count();
        drop(report);
        IN_USE.load(Ordering::Relaxed)
    });
    (most.max().unwrap_or(0), made)
}

/// One test, not one for each policy: the allocator counts for all of them.
#[test]
fn short_lived_threads_leave_memory_flat() {
    let mut grown = Vec::new();
    for (name, settle) in placement::POLICIES.iter().map(|p| (p.0, 10)).chain([("nthread", 0)]) {
        let policy = placement::policy(name, &placement::nthread::Settings::default()).unwrap();
        let topology = Crowd::new(Topology::default()).observe(Duration::from_secs(1));
        let topology = topology.unwrap().topology();
        // The defaults of a host, but for the limits on the number of moves.
        let moves = Moves { at_once: 1_000_000, bytes_per_day: 1e18, ..Moves::default() };
        let mut settings = Settings { moves, moves_per_s: 1e6, burst: 1_000_000, ..Settings::default() };
        settings.settle.windows = settle;
        let mut engine = Engine::new(Crowd::new(topology), policy, settings, None).unwrap();
        let (before, _) = most(&mut engine, WARM_UP);
        let windows = (THREADS / CROWD).saturating_sub(WARM_UP);
        let (after, made) = most(&mut engine, windows);
        let threads = windows * CROWD;
        let each = after.saturating_sub(before) as f64 / f64::from(threads);
        println!("{name:12} settle {settle:2}: {made} moves; in use {before} B, then {after} B: {each:.2} B a thread");
        if each > BYTES_EACH {
            grown.push((name, each));
        }
    }
    assert!(grown.is_empty(), "bytes kept for each thread that has ended: {grown:?}");
}
