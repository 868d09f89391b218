//! Why the engine cannot go on.

use std::io;
use std::path::{Path, PathBuf};

use crate::PlaneError;

/// Why the engine cannot go on, or not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("{} is in use by homenode{}: stop it first (systemctl stop homenode, if it is the service)", path.display(), pid.map_or(String::new(), |p| format!(" (pid {p})")))]
    Busy {
        path: PathBuf,
        /// Process that holds it, where its lock file says so.
        pid: Option<u32>,
    },
    /// The state directory cannot be trusted with undo records.
    #[error("{}: {why}", path.display())]
    Untrusted {
        /// The component of its path at fault.
        path: PathBuf,
        /// The fault, and the remedy.
        why: String,
    },
    /// The state file was written by a homenode that this one does not understand.
    #[error("{}: state version {found} is not supported, this build reads version {}", path.display(), crate::state::VERSION)]
    Version { path: PathBuf, found: u32 },
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation, such as `write`.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{0}")]
    Settings(String),
    #[error(transparent)]
    Plane(#[from] PlaneError),
}

impl EngineError {
    /// For `map_err`: names the operation and the file.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}
