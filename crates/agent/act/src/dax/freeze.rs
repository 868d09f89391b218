//! Stops the processes that map a file, by freezing their control groups.
//!
//! **Problem.** Frozen processes stay frozen if homenode ends before it thaws them, however it
//! ends.
//!
//! **Approach.** Before a group is frozen, a child process is there that thaws it when a pipe from
//! us ends. The kernel closes the pipe when homenode ends, however it ends. A frozen process is
//! stopped on its way out of the kernel, never in the middle of a fault.
//!
//! **Limits.** Whole groups are frozen, with processes that do not map the file. The root group and
//! homenode's own groups cannot be frozen, groups that somebody else has frozen, or another move of
//! homenode, are left alone, and version 1 of control groups is not used. If the child is killed
//! together with homenode (`systemctl kill -s KILL`), the group stays frozen:
//! `echo 0 >…/cgroup.freeze` thaws it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use linux::cpuset::Cpusets;

/// How long a group may take until it is frozen. A process in a system call that cannot be
/// interrupted delays it; what the others in the group wait is part of their stall.
const PATIENCE: Duration = Duration::from_millis(100);

/// Frozen control groups. Dropping it thaws them.
pub(super) struct Frozen {
    groups: BTreeMap<PathBuf, Group>,
    mounts: Cpusets,
    since: Instant,
}

/// One frozen group.
struct Group {
    freeze: File,
    guard: Guard,
    /// The last to be dropped.
    _lock: File,
}

/// Where homenode's own files of this boot are.
const RUNTIME: &str = "/run/homenode";

/// Locks the group whose freezer has this inode number, against other moves on this machine.
/// `None`: another has it. Anybody may open `cgroup.freeze` and lock that, so the lock is on a byte
/// of a file of our own.
fn lock(dir: &Path, group: u64) -> io::Result<Option<File>> {
    match fs::DirBuilder::new().mode(0o755).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let path = dir.join("freeze.lock");
    let no_link = OFlags::NOFOLLOW.bits() as i32;
    let file = File::options().read(true).write(true).create(true).mode(0o600).custom_flags(no_link).open(path)?;
    // SAFETY: a structure of integers.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = libc::F_WRLCK as libc::c_short;
    wanted.l_start = libc::off_t::try_from(group).unwrap_or(libc::off_t::MAX - 1);
    wanted.l_len = 1;
    // SAFETY: an open descriptor and a structure that outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) } {
        0 => Ok(Some(file)),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
            error => Err(error),
        },
    }
}

impl Frozen {
    /// Freezes the groups of these processes. `None` if that cannot be done: nothing is frozen
    /// then.
    pub(super) fn new(pids: &BTreeSet<u32>) -> io::Result<Option<Self>> {
        let mounts = Cpusets::new(Path::new("/proc"))?;
        let own = mounts.unified(&fs::read_to_string("/proc/self/cgroup")?);
        let mut frozen = Self { groups: BTreeMap::new(), mounts, since: Instant::now() };
        for pid in pids {
            let Some(directory) = frozen.directory(*pid) else { return Ok(None) };
            if frozen.groups.contains_key(&directory) {
                continue;
            }
            if own.as_ref().is_none_or(|own| own.starts_with(&directory)) {
                return Ok(None);
            }
            let Some(group) = Group::freeze(&directory)? else { return Ok(None) };
            frozen.groups.insert(directory, group);
        }
        Ok(Some(frozen))
    }

    /// The control group of a process.
    fn directory(&self, pid: u32) -> Option<PathBuf> {
        self.mounts.unified(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
    }

    /// Whether a process is in one of the groups.
    pub(super) fn holds(&self, pid: u32) -> bool {
        self.directory(pid).is_some_and(|directory| directory.ancestors().any(|d| self.groups.contains_key(d)))
    }

    /// Whether there is still time before a guard thaws them.
    pub(super) fn lasts(&self) -> bool {
        self.since.elapsed() < STOPPED_MOST / 2
    }

    /// Thaws the groups; returns how long they were frozen.
    pub(super) fn thaw(mut self) -> io::Result<Duration> {
        let result = self.groups.values_mut().map(Group::thaw).reduce(Result::and).unwrap_or(Ok(()));
        result.map(|()| self.since.elapsed())
    }
}

impl Group {
    /// `None` if it cannot be frozen: it is gone, has no such file (the root group), we may not, or
    /// somebody else has frozen it.
    fn freeze(directory: &Path) -> io::Result<Option<Self>> {
        use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
        let mut freeze = match File::options().read(true).write(true).open(directory.join("cgroup.freeze")) {
            Ok(file) => file,
            Err(e) if matches!(e.kind(), NotFound | PermissionDenied | ReadOnlyFilesystem) => return Ok(None),
            Err(e) => return Err(e),
        };
        // Two moves, of two programs, that freeze one group: the first to end would thaw it under
        // the other.
        let Some(lock) = lock(Path::new(RUNTIME), freeze.metadata()?.ino())? else { return Ok(None) };
        let mut state = String::new();
        freeze.read_to_string(&mut state)?;
        if state.trim() != "0" {
            return Ok(None);
        }
        let events = File::open(directory.join("cgroup.events"))?;
        let mut group = Self { guard: Guard::new(&freeze)?, freeze, _lock: lock };
        group.freeze.write_all(b"1")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if is_frozen(&events)? {
                return Ok(Some(group));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            // The kernel reports each change of the file.
            poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&left))?;
        }
    }

    fn thaw(&mut self) -> io::Result<()> {
        self.freeze.write_all(b"0")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // If this fails, so does the guard, whose write comes next; the group is gone, then.
        let _ = self.thaw();
        self.guard.end();
    }
}

fn is_frozen(mut events: &File) -> io::Result<bool> {
    let mut text = String::new();
    io::Seek::rewind(&mut events)?;
    events.read_to_string(&mut text)?;
    Ok(text.lines().any(|line| line == "frozen 1"))
}

/// A group is thawed after this long, whatever happens: reading another process's mappings can wait
/// for a lock that a stopped process holds.
pub(super) const STOPPED_MOST: Duration = Duration::from_secs(1);

/// A child process that thaws a group when we end, or when it has been frozen for too long.
struct Guard {
    pid: libc::pid_t,
    /// The pipe's end that the kernel closes with us.
    alive: Option<OwnedFd>,
}

impl Guard {
    fn new(freeze: &File) -> io::Result<Self> {
        let (ended, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        let freeze = freeze.as_fd().as_raw_fd();
        let (wait, close) = (ended.as_raw_fd(), alive.as_raw_fd());
        // SAFETY: the sets are initialised by sigfillset; the child makes system calls only
        // (`watch`), so that it needs no lock that another thread may have held.
        let pid = unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            // No signal to our group (Ctrl-C) may end the child before it has thawed.
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let pid = libc::fork();
            if pid == 0 {
                watch(wait, close, freeze);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            pid
        };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            pid => Ok(Self { pid, alive: Some(alive) }),
        }
    }

    fn end(&mut self) {
        self.alive = None;
        // SAFETY: no pointer is read. The child is ours, and it ends by itself now.
        while unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// The child: waits for the end of the pipe, or for [`STOPPED_MOST`], then thaws.
///
/// # Safety
///
/// To be called in a child process after `fork`, with open descriptors.
unsafe fn watch(wait: i32, close: i32, freeze: i32) -> ! {
    // SAFETY: system calls on open descriptors, with a buffer of one byte.
    unsafe {
        libc::setsid();
        libc::close(close);
        // Nothing else of ours may stay open here: another guard waits for the end of its own pipe.
        libc::dup2(wait, 0);
        libc::dup2(freeze, 1);
        libc::syscall(libc::SYS_close_range, 2, u32::MAX, 0);
        let mut end = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
        libc::poll(&raw mut end, 1, STOPPED_MOST.as_millis() as i32);
        libc::write(1, c"0".as_ptr().cast(), 1);
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_can_lock_a_group_that_a_move_freezes() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("homenode");
        let first = lock(&dir, 7).unwrap();
        assert!(first.is_some());
        // Another move of this process or another; other groups are free.
        assert!(lock(&dir, 7).unwrap().is_none());
        assert!(lock(&dir, 8).unwrap().is_some());
        drop(first);
        assert!(lock(&dir, 7).unwrap().is_some());
        // Other users cannot open the file, so they cannot lock it.
        assert_eq!(fs::metadata(dir.join("freeze.lock")).unwrap().mode() & 0o777, 0o600);
    }
}
