//! The few facts about a thread that acting needs, from one read of procfs.
//!
//! A general parser of `/proc/<tid>/stat` builds 52 fields. This one runs several times for each
//! move, so it reads only the fields it needs. A process that hangs in `execve()` may not show it:
//! see [`patient`](crate::patient).

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use topology::CpuSet;

use crate::affinity;
use crate::patient::{self, STAT};

/// Nanoseconds in a unit of `/proc/<tid>/stat` (`USER_HZ` is 100 on every architecture we know).
pub const NS_PER_TICK: u64 = 10_000_000;

/// `PF_KTHREAD` in `task->flags` (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// More than the longest line of `/proc/<tid>/stat`: 52 numbers and a name.
const STAT_BYTES: usize = 2048;

/// One thread as `/proc/<tid>/stat` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name.
    pub comm: String,
    /// Process id of the parent.
    pub ppid: u32,
    /// Session id.
    pub session: u32,
    /// Whether it is a kernel thread.
    pub kernel_thread: bool,
    /// Start time in hundredths of a second since boot. It distinguishes the thread from a later
    /// one with its id.
    pub start: u64,
}

/// A thread's open `stat` file. It never shows a later thread with the same id, and reading it
/// again needs no new file descriptor.
#[derive(Debug)]
pub struct Open {
    tid: u32,
    file: Arc<File>,
}

impl Open {
    /// The facts as they are now; `None` if the thread has ended.
    ///
    /// # Errors
    ///
    /// `TimedOut` if it does not answer; others as the kernel gives them.
    pub fn stat(&self) -> io::Result<Option<Stat>> {
        let again = Self { tid: self.tid, file: Arc::clone(&self.file) };
        patient::ask(self.tid, STAT, move || again.read())
    }

    fn read(&self) -> io::Result<Option<Stat>> {
        let mut bytes = [0; STAT_BYTES];
        let mut length = 0;
        while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, length as u64) {
                Ok(0) => break,
                Ok(n) => length += n,
                Err(error) if is_gone(&error) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match parse(bytes.get(..length).unwrap_or_default()) {
            Some((b'Z' | b'X' | b'x', _)) => Ok(None),
            Some((_, stat)) => Ok(Some(stat)),
            None => Err(io::Error::new(ErrorKind::InvalidData, format!("/proc/{}/stat has an unknown form", self.tid))),
        }
    }
}

/// Threads of a machine.
#[derive(Clone, Debug)]
pub struct Threads {
    proc_root: PathBuf,
}

impl Threads {
    /// Threads of the procfs mounted here.
    pub fn new(proc_root: &Path) -> Self {
        Self { proc_root: proc_root.to_owned() }
    }

    /// The procfs.
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

    /// Whether this thread, by id and start time, is one of the process's now.
    pub fn belongs(&self, pid: u32, (tid, start): (u32, u64)) -> io::Result<bool> {
        let path = self.proc_root.join(format!("{pid}/task/{tid}/stat"));
        match patient::ask(tid, STAT, move || std::fs::read(path)) {
            Ok(bytes) => Ok(parse(&bytes).is_some_and(|(_, stat)| stat.start == start)),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The facts of the thread with this id; `None` if it has ended. A zombie has.
    pub fn stat(&self, tid: u32) -> io::Result<Option<Stat>> {
        Ok(self.open(tid)?.map(|open| open.1))
    }

    /// Opens the thread with this id; `None` if it has ended.
    ///
    /// # Errors
    ///
    /// `TimedOut` if it does not answer; others as the kernel gives them.
    pub fn open(&self, tid: u32) -> io::Result<Option<(Open, Stat)>> {
        let this = self.clone();
        patient::ask(tid, STAT, move || this.open_now(tid))
    }

    fn open_now(&self, tid: u32) -> io::Result<Option<(Open, Stat)>> {
        // 0 is the parent of the first process and of one with a parent outside of our namespace.
        // For system calls 0 means us.
        if tid == 0 {
            return Ok(None);
        }
        let path = self.proc_root.join(format!("{tid}/stat"));
        for _ in 0..2 {
            match File::open(&path) {
                Ok(file) => {
                    let open = Open { tid, file: Arc::new(file) };
                    return Ok(open.read()?.map(|stat| (open, stat)));
                }
                Err(error) if !is_gone(&error) => return Err(error),
                // procfs may hide a thread (`hidepid`); the system call does not.
                Err(_) if affinity::get(tid).is_err_and(|error| is_gone(&error)) => return Ok(None),
                // Another thread got the id meanwhile.
                Err(_) => {}
            }
        }
        Err(io::Error::new(ErrorKind::PermissionDenied, format!("{} does not show it", self.proc_root.display())))
    }

    /// Whether the thread with this id and start time has certainly ended. After an error it is not
    /// certain.
    pub fn ended(&self, tid: u32, start: u64) -> bool {
        self.stat(tid).is_ok_and(|stat| stat.is_none_or(|stat| stat.start != start))
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
    ///
    /// # Errors
    ///
    /// `NotFound` or ESRCH if it has ended, `TimedOut` if it does not answer; others as the kernel
    /// gives them.
    pub fn affinity(&self, tid: u32) -> io::Result<CpuSet> {
        let path = self.proc_root.join(format!("{tid}/status"));
        let status = patient::ask(tid, STAT, move || std::fs::read(path))?;
        let list = |line: &[u8]| std::str::from_utf8(line.strip_prefix(b"Cpus_allowed_list:")?).ok()?.parse().ok();
        let unknown = || io::Error::new(ErrorKind::InvalidData, format!("/proc/{tid}/status has an unknown form"));
        status.split(|byte| *byte == b'\n').find_map(list).ok_or_else(unknown)
    }

    /// The text of `/proc/<tid>/cgroup`; empty if the thread has ended.
    pub fn cgroups(&self, tid: u32) -> io::Result<String> {
        match std::fs::read(self.proc_root.join(format!("{tid}/cgroup"))) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if is_gone(&error) => Ok(String::new()),
            Err(error) => Err(error),
        }
    }
}

/// Whether the kernel says that there is no such thread.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// The numeric names in a directory.
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

/// State and facts from `pid (comm) state ppid pgrp session tty tpgid flags … starttime …`
/// (proc_pid_stat(5)); a name may hold spaces, parentheses and any bytes.
fn parse(bytes: &[u8]) -> Option<(u8, Stat)> {
    let open = bytes.iter().position(|b| *b == b'(')?;
    let close = bytes.iter().rposition(|b| *b == b')')?;
    let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let ppid = fields.next()?.parse().ok()?;
    let session: i32 = fields.nth(1)?.parse().ok()?; // after pgrp
    let flags: u64 = fields.nth(2)?.parse().ok()?; // after tty_nr and tpgid
    let start = fields.nth(12)?.parse().ok()?; // field 22, flags is field 9
    let stat =
        Stat { comm, ppid, session: session.try_into().unwrap_or(0), kernel_thread: flags & PF_KTHREAD != 0, start };
    Some((state, stat))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"4121 (a) b\xff (c)) S 990 4121 870 0 -1 4194368 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9 9\n";

    #[test]
    fn names_with_parentheses_and_odd_bytes_are_read() {
        let (state, stat) = parse(LINE).unwrap();
        assert_eq!((state, stat.comm.as_str()), (b'S', "a) b\u{fffd} (c)"));
        assert_eq!((stat.ppid, stat.session, stat.kernel_thread, stat.start), (990, 870, false, 123_456));
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
        assert!(!hidden.ended(me, 0));
        assert_eq!(hidden.stat(u32::MAX >> 1).unwrap(), None);
        assert_eq!(hidden.stat(0).unwrap(), None);
    }

    #[test]
    fn our_own_threads_are_found_and_others_are_gone() {
        let threads = Threads::new(Path::new("/proc"));
        let me = std::process::id();
        let stat = threads.stat(me).unwrap().unwrap();
        assert!(!stat.kernel_thread && stat.start > 0);
        assert!(!threads.ended(me, stat.start) && threads.ended(me, stat.start + 1));
        let (open, same) = threads.open(me).unwrap().unwrap();
        assert_eq!((open.stat().unwrap().map(|s| s.start), same.start), (Some(stat.start), stat.start));
        assert!(threads.all().unwrap().contains(&(me, me)));
        assert_eq!(threads.stat(u32::MAX >> 1).unwrap(), None);
        assert!(threads.cgroups(me).unwrap().contains(':'));
        assert!(affinity::get(me).unwrap().is_subset(&threads.affinity(me).unwrap()));
        assert!(is_gone(&threads.affinity(u32::MAX >> 1).unwrap_err()));
    }
}
