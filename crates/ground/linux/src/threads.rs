//! The few facts about a thread that acting needs, from one read of procfs.
//!
//! A general parser of `/proc/<tid>/stat` builds 52 fields. This one runs several times for each
//! move, so it reads only the fields it needs. A process that hangs in `execve()` may not show it:
//! see [`patient`](crate::patient). The kernel's list of tasks does, without any lock ([`Tasks`]).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use topology::{CpuSet, ProcessId, ThreadId};

use crate::affinity;
use crate::patient::{self, STAT};

/// Nanoseconds in a unit of `/proc/<tid>/stat` (`USER_HZ` is 100 on every architecture we know).
pub const NS_PER_TICK: u64 = 10_000_000;

/// `PF_KTHREAD` in `task->flags` (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// More than the longest line of `/proc/<tid>/stat`: 52 numbers and a name.
const STAT_BYTES: usize = 2048;

/// A time in nanoseconds as procfs shows it: in whole hundredths of a second. BPF programs see more
/// of a start time.
pub fn as_shown(ns: u64) -> u64 {
    ns - ns % NS_PER_TICK
}

/// Serialises a time in nanoseconds as the hundredths of a second that procfs shows
/// (`#[serde(with = …)]`).
pub mod ticks {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::NS_PER_TICK;

    /// Writes whole hundredths.
    pub fn serialize<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        (ns / NS_PER_TICK).serialize(serializer)
    }

    /// Reads hundredths.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        Ok(u64::deserialize(deserializer)?.saturating_mul(NS_PER_TICK))
    }
}

/// One thread as `/proc/<tid>/stat` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The thread: its start time is in whole hundredths of a second.
    pub id: ThreadId,
    pub comm: String,
    pub ppid: u32,
    pub session: u32,
    pub kernel_thread: bool,
    /// The CPU it runs on, or ran on last.
    pub cpu: u32,
}

impl Stat {
    /// The process that this is the first thread of.
    pub fn process(&self) -> ProcessId {
        ProcessId { pid: self.id.tid, start_ns: self.id.start_ns }
    }
}

/// The kernel's list of tasks, which takes no lock, so it answers also about a thread that hangs.
/// Reading it takes BPF, and those who move threads have none: who starts them passes it in.
pub trait Tasks: Debug + Send + Sync {
    /// The facts of the thread with this id; `None` if it has ended. A zombie has.
    ///
    /// # Errors
    ///
    /// The kernel's: procfs is asked instead.
    fn stat(&self, tid: u32) -> io::Result<Option<Stat>>;
}

/// A thread whose end does not go unnoticed, even if another one gets its id.
#[derive(Debug)]
pub enum Pinned {
    /// Its directory in procfs, which never shows a later thread.
    Dir(OwnedFd),
    /// Who is asked again.
    Tasks(Arc<dyn Tasks>),
}

impl Pinned {
    /// Whether the thread with this id is still the one that was pinned. Waits for nobody.
    pub fn is_still(&self, id: ThreadId) -> io::Result<bool> {
        match self {
            // Looking up a file takes no lock of the thread, whatever reading it takes.
            Self::Dir(dir) => match openat(dir, "stat", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Ok(_) => Ok(true),
                Err(Errno::NOENT | Errno::SRCH) => Ok(false),
                Err(error) => Err(error.into()),
            },
            Self::Tasks(tasks) => Ok(tasks.stat(id.tid)?.is_some_and(|stat| stat.id == id)),
        }
    }
}

/// A thread's open `stat` file, which never shows a later thread with the same id.
#[derive(Debug)]
pub(crate) struct Open {
    tid: u32,
    file: File,
}

impl Open {
    pub fn new(tid: u32, file: File) -> Self {
        Self { tid, file }
    }

    /// The state and the facts, also of a zombie. Waits for the thread.
    pub fn read(&self) -> io::Result<Option<(u8, Stat)>> {
        let mut bytes = [0; STAT_BYTES];
        let Some(bytes) = read_again(&self.file, &mut bytes)? else { return Ok(None) };
        let unknown = || io::Error::new(ErrorKind::InvalidData, format!("/proc/{}/stat has an unknown form", self.tid));
        parse(bytes).map(Some).ok_or_else(unknown)
    }
}

/// The contents of a short file of procfs; `None` if its thread has ended.
pub(crate) fn read_again<'a>(file: &File, into: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    loop {
        match file.read_at(into, 0) {
            Ok(len) => return Ok(into.get(..len).filter(|text| !text.is_empty())),
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Threads {
    proc_root: PathBuf,
    tasks: Option<Arc<dyn Tasks>>,
}

impl Threads {
    /// Threads of the procfs mounted here.
    pub fn new(proc_root: &Path) -> Self {
        Self { proc_root: proc_root.to_owned(), tasks: None }
    }

    /// Asks this list before procfs, from now on.
    pub fn ask(&mut self, tasks: Option<Arc<dyn Tasks>>) {
        self.tasks = tasks;
    }

    pub fn root(&self) -> &Path {
        &self.proc_root
    }

    /// The threads of a process; none if it has ended.
    pub fn of(&self, pid: u32) -> io::Result<Vec<u32>> {
        match numbers(&self.proc_root.join(format!("{pid}/task"))) {
            Err(error) if is_gone(&error) => Ok(Vec::new()),
            tids => tids,
        }
    }

    /// Whether this thread is one of the process's now.
    pub fn belongs(&self, pid: u32, thread: ThreadId) -> io::Result<bool> {
        let tid = thread.tid;
        match started(tid, self.proc_root.join(format!("{pid}/task/{tid}/stat"))) {
            Ok(started) => Ok(ThreadId::new(tid, started) == thread),
            Err(error) if is_gone(&error) || error.kind() == ErrorKind::InvalidData => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// When the thread with this id started, as in [`Stat::id`]. A zombie counts as one.
    ///
    /// # Errors
    ///
    /// `NotFound` or ESRCH if there is none, `TimedOut` if it does not answer; others as the kernel
    /// gives them.
    pub fn started(&self, tid: u32) -> io::Result<u64> {
        started(tid, self.proc_root.join(format!("{tid}/stat")))
    }

    /// The facts of the thread with this id; `None` if it has ended. A zombie has.
    pub fn stat(&self, tid: u32) -> io::Result<Option<Stat>> {
        Ok(self.pin(tid)?.map(|pinned| pinned.1))
    }

    /// Pins the thread with this id; `None` if it has ended.
    ///
    /// # Errors
    ///
    /// `TimedOut` if it does not answer; others as the kernel gives them.
    pub fn pin(&self, tid: u32) -> io::Result<Option<(Pinned, Stat)>> {
        if let Some(tasks) = &self.tasks
            && let Ok(stat) = tasks.stat(tid)
        {
            return Ok(stat.map(|stat| (Pinned::Tasks(Arc::clone(tasks)), stat)));
        }
        let this = self.clone();
        patient::ask(tid, STAT, move || this.pin_now(tid))
    }

    /// [`Self::pin`] for many, who are asked at once: those that do not answer take no time from
    /// the others.
    pub fn pin_all(&self, tids: Vec<u32>) -> HashMap<u32, io::Result<Option<(Pinned, Stat)>>> {
        if self.tasks.is_some() {
            return tids.into_iter().map(|tid| (tid, self.pin(tid))).collect();
        }
        if tids.len() > 100 {
            // Each keeps a descriptor.
            crate::files::raise_limit();
        }
        let this = self.clone();
        patient::ask_all(tids, STAT, move |tid| this.pin_now(tid))
    }

    fn pin_now(&self, tid: u32) -> io::Result<Option<(Pinned, Stat)>> {
        // 0 is the parent of the first process and of one with a parent outside of our namespace.
        // For system calls 0 means us.
        if tid == 0 {
            return Ok(None);
        }
        let look = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::open(self.proc_root.join(tid.to_string()), flags, Mode::empty())?;
            let file = openat(&dir, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let living = Open::new(tid, file.into()).read()?.filter(|(state, _)| !matches!(state, b'Z' | b'X' | b'x'));
            Ok(living.map(|(_, stat)| (Pinned::Dir(dir), stat)))
        };
        for _ in 0..2 {
            match look() {
                Err(error) if is_gone(&error) => {}
                seen => return seen,
            }
            // procfs may hide a thread (`hidepid`); the system call does not.
            if affinity::get(tid).is_err_and(|error| is_gone(&error)) {
                return Ok(None);
            }
            // Another thread got the id meanwhile.
        }
        Err(io::Error::new(ErrorKind::PermissionDenied, format!("{} does not show it", self.proc_root.display())))
    }

    /// Whether this thread has certainly ended. After an error it is not certain.
    pub fn ended(&self, thread: ThreadId) -> bool {
        self.stat(thread.tid).is_ok_and(|stat| stat.is_none_or(|stat| stat.id != thread))
    }

    /// Every thread with its process: (pid, tid). Threads that end meanwhile may be missing.
    pub fn all(&self) -> io::Result<Vec<(u32, u32)>> {
        let mut all = Vec::new();
        for pid in numbers(&self.proc_root)? {
            match numbers(&self.proc_root.join(format!("{pid}/task"))) {
                Ok(tids) => all.extend(tids.into_iter().map(|tid| (pid, tid))),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// The CPUs that a thread was given, also those that are offline now, which the system call
    /// leaves out.
    pub fn affinity(&self, tid: u32) -> io::Result<CpuSet> {
        let unknown = || io::Error::new(ErrorKind::InvalidData, format!("/proc/{tid}/status has an unknown form"));
        field(&self.status(tid)?, "Cpus_allowed_list").and_then(|list| list.parse().ok()).ok_or_else(unknown)
    }

    /// The text of `/proc/<tid>/status`; [`field`] reads it.
    ///
    /// # Errors
    ///
    /// `NotFound` or ESRCH if the thread has ended, `TimedOut` if it does not answer; others as the
    /// kernel gives them.
    pub fn status(&self, tid: u32) -> io::Result<String> {
        let path = self.proc_root.join(format!("{tid}/status"));
        let status = patient::ask(tid, STAT, move || std::fs::read(path))?;
        Ok(String::from_utf8_lossy(&status).into_owned())
    }

    /// The text of `/proc/<tid>/cgroup`; empty if the thread has ended.
    pub fn cgroups(&self, tid: u32) -> io::Result<String> {
        match std::fs::read(self.proc_root.join(format!("{tid}/cgroup"))) {
            Ok(bytes) => Ok(crate::shown(OsStr::from_bytes(&bytes))),
            Err(error) if is_gone(&error) => Ok(String::new()),
            Err(error) => Err(error),
        }
    }
}

/// The id of the calling thread.
pub fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// Whether the kernel says that there is no such thread.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// A field of a text of procfs with a name and a value in each line.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// When the thread of this `stat` file started.
fn started(tid: u32, stat: PathBuf) -> io::Result<u64> {
    let bytes = patient::ask(tid, STAT, move || std::fs::read(stat))?;
    parse(&bytes).map(|(_, stat)| stat.id.start_ns().unwrap_or(0)).ok_or_else(|| ErrorKind::InvalidData.into())
}

fn numbers(dir: &Path) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        match entry {
            Ok(entry) => found.extend(entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok())),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// State and facts from `pid (comm) state ppid pgrp session tty tpgid flags … starttime … processor …`
/// (proc_pid_stat(5)); a name may hold spaces, parentheses and any bytes.
fn parse(bytes: &[u8]) -> Option<(u8, Stat)> {
    let open = bytes.iter().position(|b| *b == b'(')?;
    let close = bytes.iter().rposition(|b| *b == b')')?;
    let tid = std::str::from_utf8(bytes.get(..open)?).ok()?.trim().parse().ok()?;
    let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let ppid = fields.next()?.parse().ok()?;
    let session: i32 = fields.nth(1)?.parse().ok()?; // after pgrp
    let flags: u64 = fields.nth(2)?.parse().ok()?; // after tty_nr and tpgid
    let start: u64 = fields.nth(12)?.parse().ok()?; // field 22, flags is field 9
    let cpu = fields.nth(16)?.parse().ok()?; // field 39
    let stat = Stat {
        id: ThreadId::new(tid, start.saturating_mul(NS_PER_TICK)),
        comm,
        ppid,
        session: session.try_into().unwrap_or(0),
        kernel_thread: flags & PF_KTHREAD != 0,
        cpu,
    };
    Some((state, stat))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"4121 (a) b\xff (c)) S 990 4121 870 0 -1 4194368 1 2 3 4 5 6 7 8 20 0 1 0 123456 \
        9 9 9 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0\n";

    #[test]
    fn names_with_parentheses_and_odd_bytes_are_read() {
        let (state, stat) = parse(LINE).unwrap();
        assert_eq!((state, stat.comm.as_str()), (b'S', "a) b\u{fffd} (c)"));
        assert_eq!((stat.ppid, stat.session, stat.kernel_thread), (990, 870, false));
        assert_eq!((stat.id, stat.cpu), (ThreadId::new(4121, 1_234_560_000_000), 3));
    }

    #[test]
    fn a_truncated_line_never_panics() {
        for end in 0..LINE.len() {
            let _ = parse(&LINE[..end]);
        }
        assert_eq!(parse(b")("), None);
    }

    #[test]
    fn a_thread_that_procfs_does_not_show_has_not_ended() {
        let hidden = Threads::new(Path::new("/nonexistent"));
        let me = std::process::id();
        let error = hidden.stat(me).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(!hidden.ended(ThreadId::new(me, None)));
        assert_eq!(hidden.stat(u32::MAX >> 1).unwrap(), None);
        assert_eq!(hidden.stat(0).unwrap(), None);
    }

    #[test]
    fn our_own_threads_are_found_and_others_are_gone() {
        let threads = Threads::new(Path::new("/proc"));
        let me = std::process::id();
        let stat = threads.stat(me).unwrap().unwrap();
        assert!(!stat.kernel_thread && stat.id.tid == me && stat.id.start_ns.is_some());
        let later = ThreadId::new(me, stat.id.start_ns().unwrap() + NS_PER_TICK);
        assert!(!threads.ended(stat.id) && threads.ended(later));
        assert!(threads.belongs(me, stat.id).unwrap() && !threads.belongs(me, later).unwrap());
        let (pinned, same) = threads.pin(me).unwrap().unwrap();
        assert_eq!((pinned.is_still(stat.id).unwrap(), same.id), (true, stat.id));
        assert!(threads.all().unwrap().contains(&(me, me)));
        assert_eq!(threads.stat(u32::MAX >> 1).unwrap(), None);
        assert!(threads.cgroups(me).unwrap().contains(':'));
        assert!(affinity::get(me).unwrap().is_subset(&threads.affinity(me).unwrap()));
        assert!(is_gone(&threads.affinity(u32::MAX >> 1).unwrap_err()));
    }
}
