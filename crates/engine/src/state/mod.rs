//! The undo records on disk: with them everything can be undone after a crash.
//!
//! **Problem.** A daemon that is killed leaves its affinities behind; the previous ones must not be lost.
//!
//! **Approach.** A directory with one owner at a time ([`StateDir`], an flock) holds `state.jsonl`: one JSON record a line
//! ([`records`]), appended and fsync'd before the first move of a thread ([`file`]). The next start, or `restore`, replays
//! it. A line that is cut short or damaged is skipped: the last line cannot describe a move that was made, because moves
//! wait for the fsync. The file is rewritten (to a new file, then renamed) when most of it is history.
//!
//! **Limits.** A record of another boot is void, and so is one whose thread has ended. A user who can write the directory, or
//! one on the way to it, could make homenode set affinities: [`trusted`] refuses such a path.

pub mod file;
pub mod records;
mod trust;
mod v1;

pub use trust::trusted;
use trust::trusted_file;

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::EngineError;
use records::Replayed;

/// The version of the state file.
pub const VERSION: u32 = 2;
/// Name of the state file.
pub const STATE: &str = "state.jsonl";
const LOCK: &str = "lock";

/// The state directory, held by this process until dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Holds the flock; its content is our pid, for the message that the second daemon prints.
    _lock: File,
}

impl StateDir {
    /// Creates the directory (0755) where it is missing, and takes it. [`EngineError::Busy`] when another process has it.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        trusted(path)?;
        match DirBuilder::new().mode(0o755).recursive(true).create(path) {
            Err(source) if source.kind() != ErrorKind::AlreadyExists => {
                return Err(EngineError::io("create", path)(source));
            }
            _ => trusted(path)?,
        }
        let lock_path = path.join(LOCK);
        let io = |what| EngineError::io(what, &lock_path);
        // Nobody else may open it: whoever can read a file can lock it, and so keep `restore` from running.
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(io("open"))?;
        lock.set_permissions(Permissions::from_mode(0o600)).map_err(io("set the mode of"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let pid = lock.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(EngineError::Busy { path: path.to_owned(), pid });
            }
            Err(errno) => return Err(io("lock")(errno.into())),
        }
        // A full disk must not keep `restore` from running: the pid is a courtesy.
        let _ = lock
            .set_len(0)
            .and_then(|()| lock.seek(SeekFrom::Start(0)))
            .and_then(|_| writeln!(lock, "{}", std::process::id()));
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The directory.
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_second_owner_is_refused_by_name_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let first = StateDir::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
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
        let _held = StateDir::open(dir.path()).unwrap();
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
