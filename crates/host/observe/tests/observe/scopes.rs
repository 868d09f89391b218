//! Scopes: which threads are reported, also when process ids are reused.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use observe::{Hooks, Observer, Scope, Settings};
use rustix::process::{Pid, Signal, WaitOptions};
use testing::{Tried, ensure, skip};

use crate::common::*;
use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    WithKernels: our_own_copies_count_for_nobody;
    // Scopes are the same with every hook.
    Never: only_the_scope_is_reported, a_reused_process_id_is_out_of_scope, what_only_others_read_is_not_idle;
];

fn only(pid: u32) -> Tried<Scope> {
    Ok(Scope::of(&[pid], Path::new("/proc"))?)
}

fn only_the_scope_is_reported(hooks: Hooks) -> Tried {
    let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
    let mut tree = Command::new("sh")
        .args(["-c", "(while :; do :; done) & while :; do (:) ; done"])
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()?;
    let mut other = busy()?;
    let result = (|| -> Tried {
        // Until all of `wanted` were reported; on a busy machine they may have to wait for a CPU.
        let pids = |scope: Scope, wanted: &[u32]| -> Tried<BTreeSet<u32>> {
            let mut observer = open(&Settings { scope, ..settings(false, hooks) })?;
            let mut pids = BTreeSet::new();
            for _ in 0..50 {
                let observed = observer.window(Duration::from_millis(100))?;
                pids.extend(observed.threads.iter().map(|t| t.thread.pid));
                if wanted.iter().all(|pid| pids.contains(pid)) {
                    break;
                }
            }
            Ok(pids)
        };
        let (root, outside) = (tree.id(), other.id());
        let only = pids(only(outside)?, &[outside])?;
        ensure!(only == BTreeSet::from([outside]), "of {outside}: {only:?}");
        let inside = pids(Scope::Tree(root), &[root])?;
        ensure!(inside.contains(&root) && inside.len() >= 2, "the tree of {root}: {inside:?}");
        ensure!(!inside.contains(&outside), "{outside} is not below {root}: {inside:?}");
        let all = pids(Scope::default(), &[root, outside])?;
        ensure!(all.contains(&root) && all.contains(&outside), "all: {all:?}");
        Ok(())
    })();
    for child in [&mut tree, &mut other] {
        kill_group(child);
    }
    result
}

/// Another process gets the id of a process in scope.
fn a_reused_process_id_is_out_of_scope(hooks: Hooks) -> Tried {
    let scopes: [fn(u32) -> Tried<Scope>; 2] = [only, |pid| Ok(Scope::Tree(pid))];
    for scope in scopes {
        let first = Busy::start(None)?;
        let pid = first.0.as_raw_pid() as u32;
        let scope = scope(pid)?;
        let mut scoped = open(&Settings { scope: scope.clone(), ..settings(false, hooks) })?;
        ensure!(shows(&mut scoped, pid)?, "{scope:?}: the process itself is not reported");
        drop(first);
        // /proc shows start times to a hundredth of a second.
        let _second = loop {
            std::thread::sleep(Duration::from_millis(20));
            match Busy::start(Some(pid)) {
                Ok(second) => break second,
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => continue,
                Err(error) => {
                    return skip(format!("a process id cannot be chosen here: {error}"));
                }
            }
        };
        let mut all = open(&settings(false, hooks))?;
        ensure!(shows(&mut all, pid)?, "the second process with id {pid} is not busy");
        let seen = scoped.window(Duration::ZERO)?;
        let stranger = seen.threads.iter().find(|t| t.thread.pid == pid);
        ensure!(stranger.is_none(), "{scope:?}: {stranger:?} is another process");
    }
    Ok(())
}

/// A run that is limited to some processes sent down what others had read.
fn what_only_others_read_is_not_idle(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let own = cached_file(directory.path(), "own", 4 * MIB, 1 << 16)?;
    let others = cached_file(directory.path(), "others", 4 * MIB, 1 << 16)?;
    let nodes: Vec<_> = topology()?.nodes.iter().map(|node| node.id).collect();
    for (scope, seen) in [(Scope::default(), true), (only(std::process::id())?, false)] {
        let said = format!("{scope:?}");
        let mut observer = open(&Settings { scope, ranges: true, ..settings(true, hooks) })?;
        pread_all(&own, 1 << 16)?;
        let other = Command::new("cat").arg(&others).stdout(Stdio::null()).status()?;
        ensure!(other.success(), "cat: {other}");
        observer.window(Duration::ZERO)?;
        observer.window(Duration::ZERO)?;
        let ranges = observer.ranges().ok_or("no heat of ranges")?;
        let idle: BTreeSet<u64> = ranges.idle(&nodes).into_keys().map(|file| file.ino).collect();
        for (file, expected) in [(&own, true), (&others, seen)] {
            let ino = std::fs::metadata(file)?.ino();
            ensure!(idle.contains(&ino) == expected, "{said}: {} is not as it should be: {idle:?}", file.display());
        }
    }
    Ok(())
}

/// Waits until a process is reported.
fn shows(observer: &mut Observer, pid: u32) -> Tried<bool> {
    for _ in 0..100 {
        let observed = observer.window(Duration::from_millis(50))?;
        if observed.threads.iter().any(|t| t.thread.pid == pid) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A process that uses a CPU until this is dropped.
struct Busy(Pid);

impl Busy {
    /// Starts it, with this process id if one is given.
    fn start(pid: Option<u32>) -> std::io::Result<Self> {
        let arguments = ["/bin/sh", "-c", "while :; do :; done"].map(|a| CString::new(a).unwrap_or_default());
        let [program, flag, script] = &arguments;
        let pointers = [program.as_ptr(), flag.as_ptr(), script.as_ptr(), std::ptr::null()];
        let environment = [std::ptr::null::<libc::c_char>()];
        let set_tid = [pid.unwrap_or(0) as libc::pid_t];
        // SAFETY: all zeros is a valid value: a plain fork.
        let mut clone: libc::clone_args = unsafe { std::mem::zeroed() };
        clone.exit_signal = libc::SIGCHLD as u64;
        if pid.is_some() {
            (clone.set_tid, clone.set_tid_size) = (set_tid.as_ptr() as u64, 1);
        }
        // SAFETY: without CLONE_VM the child has a copy of all memory; it calls nothing but execve
        // and _exit.
        let child = unsafe {
            let child = libc::syscall(libc::SYS_clone3, &raw const clone, size_of::<libc::clone_args>());
            if child == 0 {
                libc::execve(program.as_ptr(), pointers.as_ptr(), environment.as_ptr());
                libc::_exit(127);
            }
            child
        };
        match Pid::from_raw(child as i32) {
            Some(pid) if child > 0 => Ok(Self(pid)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        _ = rustix::process::kill_process(self.0, Signal::KILL);
        _ = rustix::process::waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// Copies within the daemon, and those of a `homenode move` beside it, make no file shared and
/// nobody a reader.
fn our_own_copies_count_for_nobody(hooks: Hooks) -> Tried {
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", 4 * MIB, 4096)?;
    let file = id(&path)?;
    let mut observer = open(&settings(true, hooks))?;
    let copy = || -> std::io::Result<()> {
        pread_all(&path, 65_536)?;
        drop(hold(&path).map_err(|_| std::io::ErrorKind::Other)?);
        Ok(())
    };
    let (seen, _) = watch_one(&mut observer, copy)?;
    ensure!(seen.read(&path)? >= 4 * MIB, "{seen:?}");
    observer.ignore_own_program();
    let mover = Reader::of_ours(&[&path])?;
    let reader = Reader::of(&[&path])?;
    let mut mover_s = 0.0;
    for _ in 0..200 {
        let (seen, observed) = watch_one(&mut observer, copy)?;
        ensure!(seen.thread.iter().all(|t| t.thread.file_bytes() == 0), "{seen:?}");
        let of = |pid| observed.threads.iter().filter(move |t| t.thread.pid == pid).map(|t| &t.thread);
        ensure!(of(mover.pid()).all(|t| t.file_bytes() == 0), "{:?}", of(mover.pid()).collect::<Vec<_>>());
        let (here, others): (Vec<_>, Vec<_>) =
            observed.threads.iter().map(|t| &t.thread).partition(|t| t.pid == reader.pid());
        ensure!(others.iter().all(|t| t.files.iter().all(|used| used.file != file)), "{others:?}");
        mover_s += of(mover.pid()).map(|t| t.cpu_s).sum::<f64>();
        // By then it has read the file some times.
        if mover_s > 0.05 && here.iter().any(|t| t.files.iter().any(|used| used.file == file)) {
            ensure!(here.iter().all(|t| !t.shares_file), "{here:?}");
            return Ok(());
        }
    }
    Err("the readers did not read".into())
}
