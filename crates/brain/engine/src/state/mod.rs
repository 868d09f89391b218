//! The undo records on disk: with them everything can be undone after a crash.
//!
//! **Problem.** A daemon that is killed leaves its affinities behind; the previous ones must not be
//! lost.
//!
//! **Approach.** A directory with one owner at a time ([`StateDir`], an flock) holds `state.jsonl`:
//! one JSON record a line ([`records`]), appended and fsync'd before the first move of a thread
//! ([`file`]). The next start, or `restore`, replays it. A line that is cut short or damaged is
//! skipped: the last line cannot describe a move that was made, because moves wait for the fsync.
//! The file is rewritten (to a new file, then renamed) when most of it is history.
//!
//! A process that was killed while one of its threads waits in the kernel keeps its lock until that
//! wait ends, perhaps for ever. If it is a zombie, and SIGKILL awaits each of its threads, it runs
//! no more code of homenode. Then the lock is passed: a new file takes the place of the locked one,
//! under a lock of the directory.
//!
//! **Limits.** A record of another boot is void, and so is one whose thread has ended. A user who
//! can write the directory, or one on the way to it, could make homenode set affinities:
//! [`trusted`] refuses such a path.

pub mod file;
pub mod records;
mod trust;

pub use trust::trusted;
use trust::trusted_file;

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use linux::locks;
use linux::threads::field;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::EngineError;
use records::Replayed;

pub const VERSION: u32 = 2;
pub const STATE: &str = "state.jsonl";
const LOCK: &str = "lock";

/// Opens a file of the state directory that only its owner may read: it has names of everybody's
/// threads, and paths of files in directories that not everybody may read. One that an earlier
/// version made is closed to others.
pub(crate) fn open_private(options: &mut OpenOptions, path: &Path) -> std::io::Result<File> {
    let file = options.mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// The state directory, held by this process until dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Holds the flock; its content is our pid, for the message that the second daemon prints.
    _lock: File,
}

impl StateDir {
    /// Creates the directory where it is missing, and takes it. Others may pass through it (0711):
    /// its files are private but for those that are meant for everybody. [`EngineError::Busy`] when
    /// another process has it.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        Self::make(path)?;
        match Self::lock(path)? {
            Ok(lock) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(Some(pid)) if is_killed(Path::new("/proc"), pid) && has_locked(&path.join(LOCK), pid) => {
                tracing::warn!(pid, "a process that was killed and waits in the kernel had {}", path.display());
                Self::pass(path, pid).map(|lock| Self { path: path.to_owned(), _lock: lock })
            }
            Err(pid) => Err(EngineError::Busy { path: path.to_owned(), pid }),
        }
    }

    /// Creates the directory where it is missing, without taking it.
    pub fn make(path: &Path) -> Result<(), EngineError> {
        trusted(path)?;
        match DirBuilder::new().mode(0o711).recursive(true).create(path) {
            Err(source) if source.kind() != ErrorKind::AlreadyExists => Err(EngineError::io("create", path)(source)),
            _ => trusted(path),
        }
    }

    /// The same directory once more, for one engine after the other; it is held until all are
    /// dropped.
    pub fn again(&self) -> Result<Self, EngineError> {
        // A duplicate descriptor shares the lock.
        let lock = self._lock.try_clone().map_err(EngineError::io("open", &self.path))?;
        Ok(Self { path: self.path.clone(), _lock: lock })
    }

    /// Takes the lock from a killed process.
    fn pass(path: &Path, from: u32) -> Result<File, EngineError> {
        let io = |what| EngineError::io(what, path);
        let busy = |pid| EngineError::Busy { path: path.to_owned(), pid };
        let directory = File::open(path).map_err(io("open"))?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(busy(None)),
            Err(errno) => return Err(io("lock")(errno.into())),
        }
        // Another one may have taken it before this one had the directory.
        match Self::lock(path)? {
            Ok(lock) => return Ok(lock),
            Err(Some(pid)) if pid == from => {}
            Err(pid) => return Err(busy(pid)),
        }
        let lock_path = path.join(LOCK);
        std::fs::remove_file(&lock_path).map_err(EngineError::io("remove", &lock_path))?;
        Self::lock(path)?.map_err(busy)
    }

    /// The locked file; or the process that has it, if it is known.
    fn lock(path: &Path) -> Result<Result<File, Option<u32>>, EngineError> {
        let lock_path = path.join(LOCK);
        let io = |what| EngineError::io(what, &lock_path);
        // Nobody else may open it: whoever can read a file can lock it, and so keep `restore` from
        // running.
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut lock = open_private(options, &lock_path).map_err(io("open"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let pid = lock.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Ok(Err(pid));
            }
            Err(errno) => return Err(io("lock")(errno.into())),
        }
        // Another file may have taken its place since it was opened.
        let (open, named) = (lock.metadata().map_err(io("look at"))?, std::fs::metadata(&lock_path));
        if named.map_or(true, |named| (named.dev(), named.ino()) != (open.dev(), open.ino())) {
            return Ok(Err(None));
        }
        // A full disk must not keep `restore` from running: the pid is a courtesy.
        let _ = lock
            .set_len(0)
            .and_then(|()| lock.seek(SeekFrom::Start(0)))
            .and_then(|_| writeln!(lock, "{}", std::process::id()));
        Ok(Ok(lock))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Contents of the state file. An absent file is empty.
    pub fn load(&self) -> Result<Replayed, EngineError> {
        let path = self.path.join(STATE);
        trusted_file(&path)?;
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) if source.kind() == ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(EngineError::io("read", &path)(source)),
        };
        records::replay(&bytes).map_err(|found| EngineError::Version { path, found })
    }
}

/// Whether the kernel says that this process has locked the file. What the file itself says may be
/// out of date. Unknown counts as no.
/// The process that has a state directory, as far as that can be seen.
///
/// # Errors
///
/// The lock cannot be read: it is root's.
pub fn holder(path: &Path) -> Result<Option<u32>, EngineError> {
    let lock = path.join(LOCK);
    let text = match std::fs::read_to_string(&lock) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(EngineError::io("read", &lock))?,
    };
    Ok(text.trim().parse().ok().filter(|pid| has_locked(&lock, *pid)))
}

fn has_locked(path: &Path, pid: u32) -> bool {
    // By its inode alone: on btrfs, the list has another device than the file.
    std::fs::metadata(path)
        .is_ok_and(|file| locks::flock(|lock| lock.ino == file.ino() && lock.pid as u32 == pid).is_some())
}

/// Whether a process was killed: none of its threads runs user code again, because each exits or
/// has exited, has SIGKILL pending or belongs to a process that dumps core. Unknown counts as no.
fn is_killed(proc_root: &Path, pid: u32) -> bool {
    let killed = |path: &Path| std::fs::read_to_string(path).is_ok_and(|status| ends_by_kill(&status));
    let Ok(threads) = std::fs::read_dir(proc_root.join(pid.to_string()).join("task")) else { return false };
    let mut threads = threads.map(|thread| thread.is_ok_and(|thread| killed(&thread.path().join("status"))));
    threads.next().is_some_and(|first| first && threads.all(|killed| killed))
}

/// Whether a thread, by its `/proc/PID/status`, runs no user code again.
fn ends_by_kill(status: &str) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    let pending = field(status, "SigPnd").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    field(status, "State").is_some_and(|state| state.starts_with(['Z', 'X']))
        // A thread that exits gives up its memory first, and then may wait while it closes files.
        || field(status, "VmSize").is_none() && field(status, "State").is_some()
        || pending.is_some_and(|mask| mask & SIGKILL != 0)
        // The thread that dumps waits for the others, which have SIGKILL pending, and has none.
        || field(status, "CoreDumping") == Some("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that waits in the kernel kept the lock after `kill -9`, and nothing could be
    /// restored.
    #[test]
    fn a_killed_process_that_waits_in_the_kernel_does_not_keep_the_lock() {
        let proc_root = tempfile::tempdir().unwrap();
        let of = |tid: u32, state: &str, pending: &str| {
            let task = proc_root.path().join(format!("7/task/{tid}"));
            std::fs::create_dir_all(&task).unwrap();
            let status = format!(
                "Name:\tState: Z\nState:\t{state}\nVmSize:\t1 kB\nSigPnd:\t{pending}\nShdPnd:\t0000000000000100\n"
            );
            std::fs::write(task.join("status"), &status).unwrap();
        };
        of(7, "Z (zombie)", "0000000000000000");
        of(8, "D (disk sleep)", "0000000000000100");
        assert!(is_killed(proc_root.path(), 7));
        of(8, "D (disk sleep)", "0000000000000000");
        assert!(!is_killed(proc_root.path(), 7), "it will come back");
        of(8, "D (disk sleep)", "0000000000000100");
        of(7, "S (sleeping)", "0000000000000000");
        assert!(!is_killed(proc_root.path(), 7), "it lives");
        // Its first thread is what waits.
        of(7, "D (disk sleep)", "0000000000000100");
        assert!(is_killed(proc_root.path(), 7), "its first thread never exits");
        // After the watchdog's SIGABRT.
        of(7, "D (disk sleep)", "0000000000000000\nCoreDumping:\t1");
        assert!(is_killed(proc_root.path(), 7), "it dumps core");
        of(7, "D (disk sleep)", "0000000000000000\nCoreDumping:\t0");
        assert!(!is_killed(proc_root.path(), 7), "it will come back");
        assert!(!is_killed(proc_root.path(), 9));
        // It took the signal, and closes a file whose server does not answer.
        let exits = "Name:\thomenode\nState:\tD (disk sleep)\nSigPnd:\t0000000000000000\n";
        std::fs::write(proc_root.path().join("7/task/7/status"), exits).unwrap();
        assert!(is_killed(proc_root.path(), 7), "it exits");

        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path()).unwrap();
        assert!(has_locked(&dir.path().join(LOCK), std::process::id()) && !has_locked(&dir.path().join(LOCK), 1));
        let second = StateDir::pass(dir.path(), std::process::id()).unwrap();
        let error = StateDir::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("(pid "), "{error}");
        drop(first);
        StateDir::open(dir.path()).unwrap_err();
        drop(second);
        StateDir::open(dir.path()).unwrap();
    }

    #[test]
    fn a_second_owner_is_refused_by_name_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let first = StateDir::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o711);
        let error = StateDir::open(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())) && error.contains("a/b"), "{error}");
        drop(first);
        StateDir::open(&path).unwrap();
    }

    #[test]
    fn a_directory_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = StateDir::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("writable by others (mode 777)"), "{error}");
    }

    #[test]
    fn a_lock_that_others_could_take_is_closed_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join(LOCK);
        std::fs::write(&lock, "").unwrap();
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).unwrap();
        let _open = StateDir::open(dir.path()).unwrap();
        assert_eq!(std::fs::metadata(&lock).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn records_that_others_may_write_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join(STATE);
        std::fs::write(&state, "").unwrap();
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o666)).unwrap();
        let error = StateDir::open(dir.path()).unwrap().load().unwrap_err().to_string();
        assert!(error.contains("state.jsonl: is writable by others (mode 666)"), "{error}");
    }

    #[test]
    fn a_file_in_its_place_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        let error = StateDir::open(&path).unwrap_err().to_string();
        assert!(error.contains("file: is not a directory"), "{error}");
    }

    #[test]
    fn a_later_version_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let text = "{\"record\":\"run\",\"version\":3,\"new\":1}\n";
        std::fs::write(dir.path().join(STATE), text).unwrap();
        let error = StateDir::open(dir.path()).unwrap().load().unwrap_err().to_string();
        assert!(error.contains("state.jsonl: state version 3"), "{error}");
    }
}
