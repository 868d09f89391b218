//! A machine in memory: threads with masks, and a script for what is observed and decided.

#![allow(dead_code)] // each test target uses its own part

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::settings::{Settings, Settle};
use engine::{
    Copies, Cost, Inherited, JobId, JobState, Masks, Plane, PlaneError, Progress, Started, Subject, Thrift, Undo,
    Undone, Write,
};
use placement::{Move, Plan, Policy, Reason, Snapshot, Thread};
use topology::{CpuSet, FileId, Node, NodeId, ProcessId, ThreadId, Topology};

/// Nodes of the machine; node n has the CPUs 2n and 2n+1.
pub const NODES: u32 = 3;

/// The reason for which a thread's first undo fails, and no other: it does not answer in time.
pub const LATE: &str = "unreadable";

/// Settings under which no load counts as settled, for tests of the other rails on one that stays
/// the same.
pub fn restless() -> Settings {
    Settings { dwell_s: 10.0, settle: Settle { windows: 0, ..Settle::default() }, ..Settings::default() }
}

pub fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

pub fn node_cpus(node: u32) -> CpuSet {
    [2 * node, 2 * node + 1].into_iter().collect()
}

/// The file that a thread reads.
pub fn file_of(tid: u32) -> FileId {
    placement::testing::file(tid.into())
}

pub fn all_cpus() -> CpuSet {
    (0..2 * NODES).collect()
}

pub fn topology() -> Topology {
    let node = |id| Node {
        distance: (0..NODES).map(|to| (NodeId(to), if to == id { 10 } else { 21 })).collect(),
        ..Node::new(NodeId(id), node_cpus(id), 1 << 30)
    };
    (0..NODES).map(node).collect()
}

#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub pid: u32,
    pub start: u64,
    pub mask: CpuSet,
    pub node: u32,
    /// Node its file bytes come from.
    pub home: u32,
    /// The kernel's answer to a change.
    pub refuse: Option<&'static str>,
    pub parent: Option<u32>,
}

/// Everything a crash leaves behind: the state file's bytes and the masks.
pub type Wreck = (Option<Vec<u8>>, BTreeMap<u32, Task>);

/// A copy that runs.
#[derive(Clone, Debug)]
pub struct Copying {
    pub mv: Move,
    pub done: u64,
    pub stop: bool,
}

#[derive(Default)]
pub struct World {
    pub tasks: BTreeMap<u32, Task>,
    pub clock: f64,
    pub windows: usize,
    /// Moves made: time, tid, node.
    pub made: Vec<(f64, u32, u32)>,
    /// Attempts to prepare a move: time and tid.
    pub asked: Vec<(f64, u32)>,
    /// Threads that end between prepare and apply.
    pub die_before_apply: Vec<u32>,
    /// Threads that a move of their process does not bind, and those of the last such move.
    pub unbindable: Vec<u32>,
    /// Children that appear during each of the next calls of `inherited`.
    pub births: Vec<(u32, u32)>,
    /// Values that were set: a plane that goes on knows them.
    pub given: Vec<Undo>,
    /// Children that are born just before the affinity of their parent changes.
    pub late_births: Vec<(u32, u32)>,
    /// Threads that end as soon as somebody asks, and their last children.
    pub last_births: Vec<(u32, u32)>,
    /// Children whose fork was under way while their parent was put back: parent, child, mask.
    pub forks_under_way: Vec<(u32, u32, CpuSet)>,
    /// Threads of moved processes are kept.
    pub adopts: bool,
    /// `inherited` fails, as when no file descriptor is left.
    pub blind: bool,
    pub cost: Option<Cost>,
    pub sheds: usize,
    pub sheds_left: usize,
    pub epoch: Option<String>,
    pub broken: bool,
    /// Moves of files and processes copy: this many bytes each, this many a window; 0: they are
    /// made at once.
    pub copy_bytes: u64,
    pub copy_step: u64,
    /// The copies that run, with what to do when done.
    pub copies: BTreeMap<u64, Copying>,
    next_job: u64,
    /// Of their bytes, so many are in place when the copy meets them.
    pub copies_there: u64,
    /// Copies end with this state before anything was copied.
    pub copies_refused: Option<JobState>,
    /// Copies end early, with this reason.
    pub copies_fail: Option<&'static str>,
    /// It can take back the copies that it remembers.
    pub moves_back: bool,
    /// It remembers copies that end.
    pub remembers: bool,
    /// Those that ended, oldest first.
    pub ended: Vec<Move>,
    /// Copies that are told to stop go on.
    pub deaf: bool,
    /// Bytes a second that the engine allows.
    pub pace: f64,
    /// Largest number of copies at once.
    pub most_copies: usize,
    /// Files whose moves were taken back.
    pub taken_back: Vec<Move>,
    /// Copies that were started: time, subject.
    pub started: Vec<(f64, String)>,
    /// With a state file, every call leaves a wreck.
    pub state: Option<PathBuf>,
    pub wrecks: Vec<Wreck>,
    next_start: u64,
}

impl World {
    pub fn spawn(&mut self, tid: u32, node: u32, home: u32) {
        self.next_start += 1;
        let (start, mask) = (self.next_start, all_cpus());
        self.tasks.insert(tid, Task { pid: tid, start, mask, node, home, refuse: None, parent: None });
    }

    pub fn fork(&mut self, parent: u32, tid: u32) {
        self.next_start += 1;
        let child = Task { start: self.next_start, parent: Some(parent), pid: tid, ..self.tasks[&parent].clone() };
        self.tasks.insert(tid, child);
    }

    /// The affinity of this thread is about to change.
    fn born_late(&mut self, parent: u32) {
        if let Some(at) = self.late_births.iter().position(|birth| birth.0 == parent) {
            let (parent, child) = self.late_births.remove(at);
            self.fork(parent, child);
        }
    }

    /// A thread of the same process.
    pub fn spawn_thread(&mut self, parent: u32, tid: u32) {
        self.fork(parent, tid);
        self.tasks.get_mut(&tid).unwrap().pid = self.tasks[&parent].pid;
    }

    /// Somebody else sets an affinity.
    pub fn taskset(&mut self, tid: u32, cpus: &str) {
        self.tasks.get_mut(&tid).unwrap().mask = set(cpus);
    }

    pub fn mask(&self, tid: u32) -> CpuSet {
        self.tasks[&tid].mask.clone()
    }

    /// A copy is over: the data is where it should be.
    fn arrive(&mut self, mv: &Move) {
        match &mv.subject {
            Subject::Process(ProcessId { pid, .. }) => {
                self.tasks.values_mut().filter(|t| t.pid == *pid).for_each(|t| t.node = mv.to.0);
            }
            Subject::File(file) => {
                self.tasks.iter_mut().filter(|t| file_of(*t.0) == *file).for_each(|t| t.1.home = mv.to.0);
            }
            Subject::Thread(_) => {}
        }
    }

    fn wreck(&mut self) {
        if let Some(path) = &self.state {
            self.wrecks.push((std::fs::read(path).ok(), self.tasks.clone()));
        }
    }
}

#[derive(Clone)]
pub struct Fake {
    pub world: Arc<Mutex<World>>,
    topology: Arc<Topology>,
}

impl Fake {
    pub fn new(tasks: impl IntoIterator<Item = (u32, u32, u32)>) -> Self {
        let mut world = World::default();
        for (tid, node, home) in tasks {
            world.spawn(tid, node, home);
        }
        Self { world: Arc::new(Mutex::new(world)), topology: Arc::new(topology()) }
    }

    pub fn of(tasks: BTreeMap<u32, Task>) -> Self {
        let fake = Self::new([]);
        fake.world().tasks = tasks;
        fake
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }
}

impl Copies for Fake {
    fn poll(&mut self) -> Vec<Progress> {
        let mut world = self.world();
        let (bytes, step, fail, deaf) = (world.copy_bytes, world.copy_step, world.copies_fail, world.deaf);
        let mut all = Vec::new();
        for (job, mut copy) in std::mem::take(&mut world.copies) {
            copy.done = (copy.done + step).min(bytes);
            let state = match fail {
                _ if copy.stop && !deaf => JobState::Cancelled,
                _ if world.copies_refused.is_some() => world.copies_refused.clone().unwrap(),
                Some(why) => JobState::Failed { why: why.into() },
                None if copy.done == bytes => JobState::Done,
                None => JobState::Running,
            };
            let left = BTreeMap::from([("pinned".to_owned(), 7)]);
            let there = world.copies_there.min(copy.done);
            all.push(Progress { job: JobId(job), bytes, done: copy.done, there, left, state: state.clone() });
            match state {
                JobState::Running => _ = world.copies.insert(job, copy),
                JobState::Done => {
                    world.arrive(&copy.mv);
                    if world.remembers {
                        world.ended.push(copy.mv);
                    }
                }
                _ => {}
            }
        }
        all
    }

    fn moves_back(&self) -> bool {
        self.world().moves_back
    }

    fn move_back(&mut self) -> Option<(Subject, Result<JobId, PlaneError>)> {
        let mut world = self.world();
        // What is taken back is not remembered.
        let mv = world.ended.pop().filter(|_| world.moves_back)?;
        assert!(mv.subject.is_file(), "{mv:?}");
        let mv = Move { from: mv.to, to: mv.from, ..mv };
        world.remembers = false;
        drop(world);
        let subject = mv.subject;
        let Ok(Started { job: Some(job), .. }) = self.start(&mv, &[], &mut |_| Ok(())) else { panic!("{subject}") };
        Some((subject, Ok(job)))
    }

    fn cancel(&mut self, job: JobId) {
        if let Some(copy) = self.world().copies.get_mut(&job.0) {
            copy.stop = true;
        }
    }

    fn pace(&mut self, bytes_per_s: f64) {
        self.world().pace = bytes_per_s;
    }

    fn take_back(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        self.world().taken_back.push(mv.clone());
        self.start(mv, &[], &mut |_| Ok(()))
    }
}

impl Plane for Fake {
    fn thrift(&mut self) -> Option<&mut dyn Thrift> {
        Some(self)
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        let mut world = self.world();
        if world.broken {
            return Err(PlaneError::Broken("the machine is on fire".into()));
        }
        world.clock += window.as_secs_f64();
        world.windows += 1;
        let thread = |(tid, t): (&u32, &Task)| -> Thread {
            let value = serde_json::json!({
                "tid": tid, "pid": t.pid, "comm": format!("t{tid}"), "start_ns": t.start, "node": t.node,
                "allowed_nodes": (0..NODES).collect::<Vec<_>>(), "cpu_s": 0.1, "rule": "db",
                "read_bytes": {t.home.to_string(): 1_000_000},
                "files": [{"file": file_of(*tid), "read_bytes": {t.home.to_string(): 1_000_000}}],
            });
            serde_json::from_value(value).unwrap()
        };
        Ok(Snapshot {
            version: 2,
            time_s: world.clock,
            window_s: window.as_secs_f64(),
            threads: world.tasks.iter().map(thread).collect(),
            ..Snapshot::default()
        })
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let to = mv.to;
        let tid = match &mv.subject {
            Subject::Thread(ThreadId { tid, .. }) => tid,
            Subject::Process(ProcessId { pid, .. }) => {
                // One record for each thread, as on a host.
                let mut world = self.world();
                world.wreck();
                let masks = |t: &Task| Masks { before: t.mask.clone(), ours: node_cpus(to.0), unbound: false };
                let of = world.tasks.iter().filter(|t| t.1.pid == *pid);
                return Ok(of.map(|(tid, t)| undo(*tid, t, masks(t))).collect());
            }
            Subject::File(_) => return Ok(Vec::new()),
        };
        let mut world = self.world();
        world.wreck();
        let now = world.clock;
        world.asked.push((now, *tid));
        let Some(task) = world.tasks.get(tid) else {
            return Err(PlaneError::Gone { what: format!("thread {tid}") });
        };
        let ours = (0..NODES).any(|n| task.mask == node_cpus(n));
        if task.mask != all_cpus() && !ours {
            let why = format!("has an affinity of its own: {}", task.mask);
            return Err(PlaneError::refused("own_affinity", why));
        }
        let masks = Masks { before: task.mask.clone(), ours: node_cpus(to.0), unbound: false };
        assert_eq!(task.pid, mv.pid);
        Ok(vec![undo(*tid, task, masks)])
    }

    fn start(&mut self, mv: &Move, undo: &[Undo], _: &mut Write<'_>) -> Result<Started, PlaneError> {
        let mut world = self.world();
        world.wreck();
        let Subject::Thread(ThreadId { tid, .. }) = &mv.subject else {
            let now = world.clock;
            world.started.push((now, mv.subject.to_string()));
            let mut not_bound = Vec::new();
            for undo in undo {
                let Subject::Thread(ThreadId { tid, .. }) = undo.subject else { panic!("{undo:?}") };
                if world.unbindable.contains(&tid) {
                    not_bound.push(undo.subject);
                    continue;
                }
                world.tasks.get_mut(&tid).unwrap().mask = undo.masks.clone().unwrap().ours;
            }
            if world.copy_bytes == 0 {
                world.arrive(mv);
                return Ok(Started { not_bound, ..Started::done() });
            }
            world.next_job += 1;
            let job = world.next_job;
            world.copies.insert(job, Copying { mv: mv.clone(), done: 0, stop: false });
            world.most_copies = world.most_copies.max(world.copies.len());
            world.wreck();
            return Ok(Started { not_bound, ..Started::job(JobId(job)) });
        };
        let Undo { subject: Subject::Thread(id), masks: Some(Masks { ours, .. }), .. } = &undo[0] else {
            panic!("{mv:?} was never prepared");
        };
        if world.die_before_apply.contains(tid) {
            world.tasks.remove(tid);
        }
        world.born_late(*tid);
        let now = world.clock;
        let Some(task) = world.tasks.get_mut(tid).filter(|t| Some(t.start) == id.start_ns()) else {
            return Err(PlaneError::Gone { what: format!("thread {tid}") });
        };
        if let Some(reason) = task.refuse {
            return Err(PlaneError::refused(reason, "the kernel says no"));
        }
        task.mask = ours.clone();
        task.node = mv.to.0;
        world.given.push(undo[0].clone());
        world.made.push((now, *tid, mv.to.0));
        world.wreck();
        Ok(Started::done())
    }

    fn let_forks_end(&mut self) {
        let mut world = self.world();
        for (parent, child, mask) in std::mem::take(&mut world.forks_under_way) {
            world.fork(parent, child);
            world.tasks.get_mut(&child).unwrap().mask = mask;
        }
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        let (Subject::Thread(id), Some(Masks { before, ours, .. })) = (&undo.subject, &undo.masks) else {
            return Ok(Undone::Restored);
        };
        let tid = &id.tid;
        let mut world = self.world();
        world.born_late(*tid);
        world.wreck();
        let same = |t: &&mut Task| Some(t.start) == id.start_ns();
        let Some(task) = world.tasks.get_mut(tid).filter(same) else { return Ok(Undone::Gone) };
        if task.mask != *ours {
            return Ok(Undone::ChangedByOthers);
        }
        if let Some(reason) = task.refuse {
            // Next time it answers.
            task.refuse = task.refuse.filter(|reason| *reason != LATE);
            return Err(PlaneError::refused(reason, "the kernel says no"));
        }
        task.mask = before.clone();
        world.wreck();
        Ok(Undone::Restored)
    }

    fn inherited(&mut self, owned: &[Undo]) -> Result<Vec<Inherited>, PlaneError> {
        let mut world = self.world();
        if world.blind {
            return Err(PlaneError::refused("emfile", "too many open files"));
        }
        if !world.births.is_empty() {
            let (parent, child) = world.births.remove(0);
            world.fork(parent, child);
        }
        let records: HashSet<&Subject> = owned.iter().map(|undo| &undo.subject).collect();
        let mut inherited: Vec<Inherited> = Vec::new();
        for undo in owned.iter().chain(&world.given) {
            let (Subject::Thread(ThreadId { tid: parent, .. }), Some(masks)) = (&undo.subject, &undo.masks) else {
                continue;
            };
            for (tid, task) in &world.tasks {
                let subject = Subject::Thread(ThreadId::new(*tid, task.start));
                let known = records.contains(&subject) || inherited.iter().any(|thread| thread.undo.subject == subject);
                if task.parent == Some(*parent) && task.mask == masks.ours && !known {
                    let keeps = world.adopts && task.pid == undo.pid;
                    inherited.push(Inherited { undo: self::undo(*tid, task, masks.clone()), keeps });
                }
            }
        }
        Ok(inherited)
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        let Subject::Thread(id) = undo.subject else { return false };
        let tid = id.tid;
        let mut world = self.world();
        if let Some(at) = world.last_births.iter().position(|birth| birth.0 == tid) {
            let (parent, child) = world.last_births.remove(at);
            world.fork(parent, child);
            world.tasks.remove(&parent);
        }
        world.tasks.get(&tid).is_none_or(|t| Some(t.start) != id.start_ns())
    }

    fn epoch(&self) -> Option<String> {
        self.world().epoch.clone()
    }
}

impl Thrift for Fake {
    fn cost(&self) -> Option<Cost> {
        self.world().cost
    }

    fn shed(&mut self) -> Option<String> {
        let mut world = self.world();
        world.sheds += 1;
        world.sheds_left = world.sheds_left.checked_sub(1)?;
        Some("sampling half as much".into())
    }

    fn relax(&mut self) -> Option<String> {
        let mut world = self.world();
        world.sheds = world.sheds.checked_sub(1)?;
        Some("sampling as before".into())
    }
}

fn undo(tid: u32, task: &Task, masks: Masks) -> Undo {
    let subject = Subject::Thread(ThreadId::new(tid, task.start));
    Undo { subject, pid: task.pid, masks: Some(masks), payload: None }
}

fn a_move(subject: Subject, pid: u32, (from, to): (u32, u32), reason: Reason, why: &'static str) -> Move {
    Move { subject, pid, from: NodeId(from), to: NodeId(to), reason, why: why.into(), ranges: Vec::new() }
}

/// A move of the file that a thread reads.
pub fn file(tid: u32, from: u32, to: u32) -> Move {
    let subject = Subject::File(file_of(tid));
    a_move(subject, 0, (from, to), Reason::OverloadedHome, "its home is overloaded")
}

/// A move of a process.
pub fn process(pid: u32, from: u32, to: u32) -> Move {
    a_move(Subject::process(pid, None), pid, (from, to), Reason::CacheAffinity, "its file is cached there")
}

pub fn mv(tid: u32, start: Option<u64>, from: u32, to: u32) -> Move {
    let subject = Subject::Thread(ThreadId::new(tid, start));
    a_move(subject, tid, (from, to), Reason::ReadLocality, "1.0 MB of 1.0 MB read there")
}

/// A policy that is a closure.
pub struct Script<F>(pub F);

impl<F: FnMut(&Snapshot) -> Vec<Move> + Send> Policy for Script<F> {
    fn name(&self) -> &'static str {
        "script"
    }

    fn decide(&mut self, _: &Topology, snapshot: &Snapshot) -> Plan {
        Plan { version: 2, policy: "script".into(), moves: (self.0)(snapshot), ..Plan::default() }
    }
}

pub fn script(decide: impl FnMut(&Snapshot) -> Vec<Move> + Send + 'static) -> Box<dyn Policy> {
    Box::new(Script(decide))
}

/// Every thread to the node its bytes come from.
pub fn go_home() -> Box<dyn Policy> {
    script(|snapshot| {
        let home = |t: &Thread| t.read_bytes.iter().max_by_key(|b| b.1).map(|b| b.0.0);
        let moves = snapshot.threads.iter().filter_map(|t| {
            let to = home(t).filter(|to| *to != t.node.0)?;
            Some(mv(t.tid, t.start_ns, t.node.0, to))
        });
        moves.collect()
    })
}
