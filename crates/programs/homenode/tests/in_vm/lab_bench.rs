//! Shared by the tests: files on nodes, readers, homenode with its options, and waiting for a
//! condition.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::cache;
use lab::daemon::{Daemon, Window, last_notes};
use lab::machine::Machine;
use lab::readers::Readers;
use lab::threads::{self, Thread};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_setaffinity};
pub use testing::Ends;

pub type Outcome = Result<()>;

/// Prints a measurement below the line with the test's name.
#[macro_export]
macro_rules! say {
    ($($what:tt)+) => { println!("\n      {}", format_args!($($what)+)) };
}

/// The command under test.
pub fn homenode() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_homenode"))
}

/// The workload program, built beside homenode.
pub fn homenode_load() -> PathBuf {
    homenode().with_file_name("homenode-load")
}

/// The configuration for an emulated machine.
pub fn vm_config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vm/homenode.toml")
}

/// A directory on a real file system, with the files of a test.
pub struct Bench {
    pub machine: Machine,
    dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Result<Self> {
        Self::at(&std::env::var_os("HOMENODE_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from))
    }

    /// In a directory of its own within this one.
    pub fn at(base: &Path) -> Result<Self> {
        Ok(Self { machine: Machine::read()?, dir: tempfile::Builder::new().prefix("in-vm-").tempdir_in(base)? })
    }

    /// Creates files of 16 MiB, and checks that their cached pages are on `node`.
    pub fn files(&self, node: u32, count: usize) -> Result<Vec<PathBuf>> {
        (0..count)
            .map(|i| {
                let path = self.dir.path().join(format!("node{node}-{i}"));
                cache::put(&path, 16 << 20, node)?;
                Ok(path)
            })
            .collect()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Where a test can listen to what the next daemon tells its service manager.
    pub fn manager(&self) -> PathBuf {
        self.dir.path().join("notify")
    }

    /// Starts one reader for each file, each with this share of a CPU.
    pub fn readers(&self, duty: f64, files: &[PathBuf]) -> Result<Readers> {
        load(&["--seconds", "600", "--duty", &duty.to_string()], files)
    }

    /// Starts homenode with these options, and with a margin and a budget that fit an emulated
    /// machine. `--steady`: an emulated CPU may run a hook's breakpoint after it was taken out
    /// again, which stops the machine.
    pub fn daemon(&self, options: &[&str]) -> Result<Daemon> {
        self.daemon_from("2MB/s", options)
    }

    /// The same, with another margin.
    pub fn daemon_from(&self, margin: &str, options: &[&str]) -> Result<Daemon> {
        self.start(&vm_config(), margin, options)
    }

    /// The same, with another configuration, for these processes only, or for all if there are
    /// none.
    pub fn daemon_of(&self, config: &Path, pids: &[u32], options: &[&str]) -> Result<Daemon> {
        let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let only = if pids.is_empty() { &[][..] } else { &["--pid", list.as_str()] };
        self.start(config, "2MB/s", &[only, options].concat())
    }

    fn start(&self, config: &Path, margin: &str, options: &[&str]) -> Result<Daemon> {
        let mut all: Vec<OsString> =
            ["--steady", "--margin", margin, "--min-bytes", "1MB", "--config"].map(Into::into).into();
        all.extend([config.into(), "--state-dir".into(), self.state_dir().into()]);
        all.extend(options.iter().map(OsString::from));
        let manager = self.manager();
        Daemon::start_under(Some(manager.as_path()).filter(|socket| socket.exists()), &homenode(), all)
    }

    /// A configuration for an emulated machine, with these keys besides.
    pub fn config(&self, more: &str) -> Result<PathBuf> {
        let config = self.dir().join("homenode.toml");
        std::fs::write(&config, format!("{}\n{more}\n", std::fs::read_to_string(vm_config())?))?;
        Ok(config)
    }

    /// Starts homenode for these processes only.
    pub fn daemon_for(&self, pids: &[u32], options: &[&str]) -> Result<Daemon> {
        self.daemon_of(&vm_config(), pids, options)
    }

    /// The node on which each of these threads ran last.
    pub fn nodes_of(&self, pid: u32, tids: &[u32]) -> Result<BTreeMap<u32, Option<u32>>> {
        let node = |t: Thread| (t.tid, self.machine.node_of(t.cpu));
        Ok(threads::of(pid)?.into_iter().filter(|t| tids.contains(&t.tid)).map(node).collect())
    }

    /// Starts readers until the kernel puts at least one of them away from its data, whose node
    /// `home` gives.
    pub fn readers_away(&self, duty: f64, files: &[PathBuf], home: impl Fn(&Path) -> u32) -> Result<Readers> {
        for _ in 0..10 {
            let readers = self.readers(duty, files)?;
            sleep(Duration::from_secs(1));
            let nodes = self.nodes_of(readers.pid(), &readers.threads.iter().map(|t| t.tid).collect::<Vec<_>>())?;
            if readers.threads.iter().any(|t| nodes.get(&t.tid).is_some_and(|node| *node != Some(home(&t.file)))) {
                return Ok(readers);
            }
        }
        bail!("the kernel put every reader beside its data, ten times")
    }

    /// Sends each reader to another node than its data's, whose node `home` gives, and lets it free
    /// again: where a policy has moved it once, the kernel leaves it. One that is bound stays: it
    /// may have been moved a moment ago.
    pub fn send_away(&self, readers: &Readers, home: impl Fn(&Path) -> u32) -> Result<()> {
        let all: Vec<u32> = self.machine.nodes.values().flatten().copied().collect();
        let now = masks(readers.pid());
        let is_bound = |tid: u32| {
            now.get(&tid)
                .and_then(|mask| mask.parse::<topology::CpuSet>().ok())
                .is_some_and(|cpus| cpus.len() < all.len())
        };
        for thread in readers.threads.iter().filter(|thread| !is_bound(thread.tid)) {
            let home = home(&thread.file);
            let away = self.machine.nodes.iter().find(|(node, _)| **node != home).context("a second node")?;
            set_mask(thread.tid, away.1)?;
            set_mask(thread.tid, &all)?;
        }
        Ok(())
    }
}

/// Starts the workload program: one thread for each file.
pub fn load(options: &[&str], files: &[PathBuf]) -> Result<Readers> {
    let options = options.iter().map(OsString::from);
    Readers::start(&homenode_load(), options.chain(files.iter().map(|file| file.clone().into())))
}

/// A control group, removed when dropped.
pub struct Group(PathBuf);

impl Group {
    pub fn new(name: &str) -> Result<Self> {
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let Some(mount) = mounts.into_iter().find(|dir| dir.join("cgroup.procs").exists()) else {
            bail!("no control groups of version 2 are mounted")
        };
        let dir = mount.join(name);
        std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self(dir))
    }

    /// Takes a process in.
    pub fn take(&self, pid: u32) -> Result<()> {
        put(&self.0, pid)
    }

    /// Puts a process into the group above.
    pub fn give_back(&self, pid: u32) -> Result<()> {
        put(self.0.parent().context("the root group")?, pid)
    }

    /// Its owner chooses a policy for it.
    pub fn choose(&self, policy: &[u8]) -> Result<()> {
        Ok(rustix::fs::setxattr(&self.0, "user.homenode.policy", policy, rustix::fs::XattrFlags::empty())?)
    }
}

fn put(group: &Path, pid: u32) -> Result<()> {
    std::fs::write(group.join("cgroup.procs"), pid.to_string()).with_context(|| group.display().to_string())
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Starts this program in another role, and waits until it says `ready`. Its input is a pipe.
pub fn play(role: &str, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Ends> {
    let mut command = testing::myself(role);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Ends(command.spawn()?);
    let mut line = String::new();
    BufReader::new(child.0.stdout.as_mut().context("stdout")?).read_line(&mut line)?;
    ensure!(line == "ready\n", "the {role} said {line:?}");
    Ok(child)
}

/// Switches off the kernel's own balancing (AutoNUMA), which takes pages back to the nodes of the
/// threads that map them, until dropped.
pub struct NoBalancing(Option<String>);

const BALANCING: &str = "/proc/sys/kernel/numa_balancing";

impl NoBalancing {
    pub fn set() -> Result<Self> {
        // A kernel without it has no such file.
        let Ok(before) = std::fs::read_to_string(BALANCING) else { return Ok(Self(None)) };
        std::fs::write(BALANCING, "0").context(BALANCING)?;
        Ok(Self(Some(before)))
    }
}

impl Drop for NoBalancing {
    fn drop(&mut self) {
        let _ = self.0.as_ref().map(|before| std::fs::write(BALANCING, before));
    }
}

/// The node of a file that [`Bench::files`] created, by its name.
pub fn home_of(file: &Path) -> u32 {
    let name = file.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("node"));
    name.and_then(|n| n.split('-').next()?.parse().ok()).unwrap_or(u32::MAX)
}

/// Affinities of a process's threads, from `/proc`.
pub fn masks(pid: u32) -> BTreeMap<u32, String> {
    threads::affinities(&[pid])
}

/// Stops homenode, which ends well.
pub fn ends(daemon: Daemon, signal: Signal) -> Outcome {
    let (end, status) = daemon.stop(signal)?;
    ensure!(status.success(), "homenode ended with {status}: {end:?}");
    Ok(())
}

/// The same; then the threads of this process have these affinities.
pub fn restores(daemon: Daemon, pid: u32, before: &BTreeMap<u32, String>) -> Outcome {
    ends(daemon, Signal::TERM)?;
    ensure!(masks(pid) == *before, "affinities before {before:?}, after {:?}", masks(pid));
    Ok(())
}

/// Sets a thread's affinity, as `taskset` does.
pub fn set_mask(tid: u32, cpus: &[u32]) -> Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(usize::try_from(*cpu)?);
    }
    let tid = i32::try_from(tid).ok().and_then(Pid::from_raw).context("thread id")?;
    sched_setaffinity(Some(tid), &set).with_context(|| format!("affinity of {tid:?}"))
}

/// The CPUs of a node.
pub fn cpus(machine: &Machine, node: u32) -> Result<&[u32]> {
    machine.nodes.get(&node).map(Vec::as_slice).with_context(|| format!("node {node}"))
}

/// Waits for a window in which `done` holds; fails if there is none among `most`, and says that
/// `what` did not happen.
pub fn windows_until(
    daemon: &mut Daemon,
    most: usize,
    what: &str,
    mut done: impl FnMut(&Window) -> Result<bool>,
) -> Result<Vec<Window>> {
    let mut windows = Vec::new();
    while windows.len() < most {
        let window = daemon.window()?;
        let end = done(&window)?;
        windows.push(window);
        if end {
            return Ok(windows);
        }
    }
    let shares: Vec<_> = windows.iter().map(|w| (w.remote_share, w.moves.len(), w.held_back.len())).collect();
    let notes = last_notes(&windows);
    bail!("no {what} within {most} windows (remote share, moves, held back: {shares:?}); notes: {notes}")
}

/// Waits for this many windows.
pub fn windows(daemon: &mut Daemon, count: usize) -> Result<Vec<Window>> {
    (0..count).map(|_| daemon.window()).collect()
}
