//! Real processes, made-up nodes, a scripted observer and policy.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child as Process, Command, Stdio};
use std::time::Duration;

use engine::{Engine, MoveEvent, Plane, Settings, StateDir, Undo};
use host::Observe;
use host::{HostPlane, Settings as HostSettings};
use linux::affinity;
use linux::births::Descendant;
use linux::threads::Threads;
use observe::{ObserveError, Observed, ObservedThread};
use placement::{Move, Plan, Policy, Reason, Snapshot, Subject, Thread};
use topology::{CpuSet, Node, NodeId, ThreadId, Topology};

pub fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    cpus.into_iter().collect()
}

/// The mask of node `n`.
pub fn node(n: u32) -> CpuSet {
    set([first_two()[n as usize]])
}

/// All CPUs.
pub fn all() -> CpuSet {
    testing::cpus().unwrap()
}

/// The CPUs of node 0 and node 1.
pub fn first_two() -> [u32; 2] {
    let all = all();
    let mut cpus = all.iter();
    [cpus.next().unwrap(), cpus.next().unwrap()]
}

/// Two nodes of one CPU each.
pub fn topology() -> Topology {
    topology_of([node(0), node(1)])
}

pub fn topology_of(cpus: [CpuSet; 2]) -> Topology {
    let node = |(id, cpus)| Node {
        distance: (0..2).map(|to| (NodeId(to), if to == id { 10 } else { 21 })).collect(),
        ..Node::new(NodeId(id), cpus, 1 << 30)
    };
    (0..).zip(cpus).map(node).collect()
}

/// Shows all threads of some processes as busy on node 0, unless they are bound to node 1.
pub struct Scripted {
    pub pids: Vec<u32>,
    pub clock: f64,
    /// Whether the threads have asked for an affinity.
    pub asked: Option<bool>,
}

impl Scripted {
    pub fn of(pids: &[u32]) -> Box<Self> {
        Box::new(Self { pids: pids.to_vec(), clock: 0.0, asked: None })
    }
}

pub fn tids(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks.flatten().map(|t| t.file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// A thread of a process that is not its first.
pub fn second_of(pid: u32) -> u32 {
    *tids(pid).iter().find(|tid| **tid != pid).unwrap()
}

/// The processes that a process has started and that have not ended.
pub fn children(pid: u32) -> std::io::Result<Vec<u32>> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(children.split_whitespace().map(|pid| pid.parse().unwrap()).collect())
}

/// Returns when this has come true.
pub fn wait_for(come_true: impl Fn() -> bool) {
    while !come_true() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn mask(tid: u32) -> CpuSet {
    affinity::get(tid).unwrap()
}

impl Observe for Scripted {
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError> {
        std::thread::sleep(length);
        self.clock += 1.0;
        let procfs = Threads::new(Path::new("/proc"));
        let mut threads = Vec::new();
        for pid in &self.pids {
            for tid in tids(*pid) {
                let (Ok(Some(stat)), Ok(mask)) = (procfs.stat(tid), affinity::get(tid)) else { continue };
                let thread = Thread {
                    pid: *pid,
                    comm: stat.comm,
                    start_ns: Some(stat.id.start_ns + 4_321),
                    allowed_nodes: (0..2).filter(|n| !mask.intersection(&node(*n)).is_empty()).map(NodeId).collect(),
                    cpu_s: 0.1,
                    ..placement::testing::thread(tid, u32::from(mask == node(1)), &[(1, 100)], 0)
                };
                threads.push(ObservedThread {
                    thread,
                    ppid: stat.ppid,
                    mask,
                    asked: self.asked,
                    kernel_thread: stat.kernel_thread,
                    cgroup_id: 0,
                });
            }
        }
        Ok(Observed { time_s: self.clock, window_s: 1.0, threads, births_lost: true, ..Observed::default() })
    }

    fn watch(&mut self, _: ThreadId) -> Result<(), ObserveError> {
        Ok(())
    }

    fn release(&mut self, _: u32) -> Result<(), ObserveError> {
        Ok(())
    }

    fn descendants(&mut self) -> Result<Vec<Descendant>, ObserveError> {
        Ok(Vec::new())
    }
}

/// A policy that is a closure.
struct Script<F>(F);

impl<F: FnMut(&Snapshot) -> Plan + Send> Policy for Script<F> {
    fn name(&self) -> &'static str {
        "script"
    }

    fn decide(&mut self, _: &Topology, snapshot: &Snapshot) -> Plan {
        Plan { version: 2, policy: "script".into(), ..(self.0)(snapshot) }
    }
}

pub fn script(decide: impl FnMut(&Snapshot) -> Plan + Send + 'static) -> Box<dyn Policy> {
    Box::new(Script(decide))
}

/// Sends every thread to one node.
pub fn all_to(to: u32) -> Box<dyn Policy> {
    script(move |snapshot| {
        let away = snapshot.threads.iter().filter(|t| t.node != NodeId(to));
        let why = "100.0 MB of 100.0 MB read from there";
        let moves = away.map(|t| Move::thread(t, NodeId(to), Reason::ReadLocality, why)).collect();
        Plan { moves, ..Plan::default() }
    })
}

/// A move to one node from the other.
pub fn a_move(subject: Subject, pid: u32, to: u32, reason: Reason) -> Move {
    Move { subject, pid, from: NodeId(1 - to), to: NodeId(to), reason, why: "".into(), ranges: Vec::new() }
}

pub fn move_of(tid: u32, to: u32) -> Move {
    let start = Threads::new(Path::new("/proc")).stat(tid).unwrap().map_or(0, |s| s.id.start_ns);
    a_move(Subject::Thread { tid, start }, tid, to, Reason::ReadLocality)
}

/// Prepares and makes a move.
pub fn made(plane: &mut HostPlane, mv: &Move) -> Vec<Undo> {
    let undo = plane.prepare(mv).unwrap();
    plane.start(mv, &undo, &mut |_| Ok(())).unwrap();
    undo
}

pub fn plane(observer: Option<Box<dyn Observe>>) -> HostPlane {
    HostPlane::with_observer(HostSettings::default(), topology(), observer).unwrap()
}

pub fn settings() -> Settings {
    Settings { window_s: 0.05, burst: 10_000, moves_per_s: 10_000.0, ..Settings::default() }
}

pub fn engine(plane: HostPlane, to: u32, state: Option<StateDir>) -> Engine<HostPlane> {
    Engine::new(plane, all_to(to), settings(), state).unwrap()
}

/// Verdicts of one window.
pub fn step<P: Plane>(engine: &mut Engine<P>) -> Vec<MoveEvent> {
    let report = engine.step().unwrap();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    report.outcomes.into_iter().map(|o| o.result).collect()
}

/// A process that is killed when dropped, with all that it has started.
pub struct Running(pub Process);

impl Running {
    /// Starts it in a process group of its own and waits for its first line.
    pub fn start(command: &mut Command) -> Self {
        use std::os::unix::process::CommandExt;
        let mut process = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(process)
    }

    /// This program in one of its roles.
    pub fn role(role: &str, args: &[&str]) -> Self {
        Self::start(testing::myself(role).args(args))
    }

    /// The same by a copy of this program, which is not homenode to an observer of this one.
    pub fn role_of_another(role: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("another");
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        Self::start(Command::new(copy).args(["--role", role]).args(args))
    }

    pub fn shell(script: &str) -> Self {
        Self::start(Command::new("sh").args(["-c", script]))
    }

    /// A shell that goes on with the script once a file is there.
    pub fn shell_after(go: &Path, script: &str) -> Self {
        Self::shell(&format!("echo ready; while [ ! -e {} ]; do sleep 0.02; done; {script}", go.display()))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends it and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.pid() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        self.kill();
    }
}

/// A process with some threads that do nothing.
pub fn be_threads(args: &[String]) {
    let threads: u32 = args[0].parse().unwrap();
    for _ in 1..threads {
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(600)));
    }
    println!("ready");
    std::thread::sleep(Duration::from_secs(600));
}
