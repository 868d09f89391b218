//! Moves that copy: step by step, so that their owner sets the pace and can stop between two steps.

use std::collections::BTreeMap;
use std::io;

/// A move of file data or of a process's memory, prepared and not finished.
pub trait Copying: Send {
    /// Moves about this many bytes more; returns whether the move is over. An error ends the move; what has been moved stays.
    fn step(&mut self, bytes: u64) -> io::Result<bool>;

    /// The bytes moved so far.
    fn copied(&self) -> Copied;
}

/// Progress of a move that copies. Units: bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// All that was to be moved when the move began.
    pub total: u64,
    /// Bytes that are on the target node now, those already there included.
    pub moved: u64,
    /// Of these, bytes that were there already: nothing was copied for them.
    pub there: u64,
    /// Bytes that could not be moved, by reason: a sentence fragment such as `pinned` or `no free memory on node 1`.
    pub left: BTreeMap<&'static str, u64>,
}

impl Copied {
    /// Bytes that this move has copied.
    pub fn copied(&self) -> u64 {
        self.moved.saturating_sub(self.there)
    }

    /// Bytes that could not be moved.
    pub fn failed(&self) -> u64 {
        self.left.values().sum()
    }
}
