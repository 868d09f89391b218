//! Errors of reading, configuring and capturing a machine.

use std::io;
use std::path::{Path, PathBuf};

use crate::NodeId;

/// Longest part of an offending text that an error shows, in characters.
const SHOWN: usize = 80;

/// Why a topology could not be read, configured or captured. Every message names the file or the
/// key.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A file or directory could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause, with its errno.
        source: io::Error,
    },
    /// A file has a content that no kernel would write.
    #[error("{}: `{text}` {why}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The offending text, shortened.
        text: String,
        /// The fault.
        why: String,
    },
    /// A file of measured figures cannot be used.
    #[error("{}: {source}", path.display())]
    Measured {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: MeasuredError,
    },
    /// The configuration names a node that the machine does not have.
    #[error("[node.{node}] in the configuration: this machine has no node {node}, only {present}")]
    NoSuchNode {
        /// The configured node.
        node: NodeId,
        /// The machine's nodes, as `node 0, 1`.
        present: String,
    },
    /// A bandwidth that is not a positive, finite number.
    #[error("{key} of node {node}: {value} is not a positive number of bytes per second")]
    Bandwidth {
        /// The configured node.
        node: NodeId,
        /// `read_bw_max` or `write_bw_max`.
        key: &'static str,
        /// The refused value.
        value: f64,
    },
    /// The directory for a capture is not empty.
    #[error("{} is not empty: a capture never overwrites", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
    /// A captured file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Cause, with its errno.
        source: io::Error,
    },
    /// The capture does not read back as the machine that was read.
    #[error("the machine changed while it was captured into {}: try again", dir.display())]
    Changed {
        /// The directory.
        dir: PathBuf,
    },
}

impl TopologyError {
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        Self::Write { path: path.to_owned(), source }
    }

    pub(crate) fn text(path: &Path, text: &str, why: impl Into<String>) -> Self {
        let text = text.trim_end_matches('\n');
        let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
        if text.chars().nth(SHOWN).is_some() {
            shown.push('…');
        }
        Self::Text { path: path.to_owned(), text: shown, why: why.into() }
    }

    /// Whether a file or directory does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// A file of measured figures that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MeasuredError {
    /// Not JSON, or not of this form.
    #[error("not measured figures of nodes: {0}")]
    Parse(#[from] serde_json::Error),
    /// A version that this build does not support.
    #[error("version {version} of measured figures is not supported, this build reads version {read}")]
    Version {
        /// The file's version.
        version: u32,
        /// This build's.
        read: u32,
    },
    /// A value that cannot be.
    #[error("{what} is {value}: it must be a positive, finite number")]
    Value {
        /// Which figure.
        what: String,
        /// Its value.
        value: f64,
    },
}
