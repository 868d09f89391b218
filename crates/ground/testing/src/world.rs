//! Two made-up nodes of one CPU each, which differ only in the affinity that a move sets, and
//! processes to move.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use linux::affinity;
use topology::{CpuSet, Node, NodeId, Topology};

pub fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    cpus.into_iter().collect()
}

pub fn node(n: u32) -> CpuSet {
    set([first_two()[n as usize]])
}

pub fn all() -> CpuSet {
    crate::cpus().unwrap()
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

/// A process that is killed when dropped, with all that it has started.
pub struct Running(pub Child);

impl Running {
    /// Starts it in a process group of its own and waits for its first line.
    pub fn start(command: &mut Command) -> Self {
        use std::os::unix::process::CommandExt;
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        // A process that another test forks has a copy of a program open for writing until it
        // execs.
        let busy = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ExecutableFileBusy;
        let started = std::iter::repeat_with(|| command.spawn()).find(|started| !started.as_ref().is_err_and(busy));
        let mut process = started.unwrap().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(process)
    }

    /// This program in one of its roles.
    pub fn role(role: &str, args: &[&str]) -> Self {
        Self::start(crate::myself(role).args(args))
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
        crate::kill_group(&mut self.0);
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
