//! Moves that copy: step by step, so that their owner sets the pace and can stop between two steps.

use std::collections::BTreeMap;
use std::io;

use super::memory::{Layout, MemoryMove};

/// A move of file data or of a process's memory, prepared and not finished.
pub trait Copying: Send {
    /// Moves about this many bytes more; returns whether the move is over. An error ends the move;
    /// what has been moved stays.
    fn step(&mut self, bytes: u64) -> io::Result<bool>;

    /// Stops the move: [`step`](Self::step) is not called any more. For moves that another process
    /// makes.
    fn stop(&mut self) {}

    fn copied(&self) -> Copied;

    /// How to send back what was moved; `None` if the move has not kept where that was.
    fn back(self: Box<Self>) -> Option<Back> {
        None
    }
}

/// How to send back what a move has moved.
pub enum Back {
    /// The memory of a process: the move itself, which is over, knows where it was
    /// ([`MemoryMove::reversed`]).
    Memory(Box<MemoryMove>),
    /// A file's pages were here; numbers of pages count from the start of the file. Whoever sends
    /// them back opens the file again: a file that is kept open keeps its file system mounted, and
    /// its blocks after it was deleted.
    Pages(Layout),
}

impl Back {
    /// Whether nothing is left to send back: the process has ended, or runs another program.
    pub fn gone(&self) -> bool {
        match self {
            Self::Memory(memory) => memory.gone(),
            Self::Pages(_) => false,
        }
    }

    /// The way back of this move and of an earlier one of the same file or process, so that nothing
    /// moves twice.
    pub fn with_earlier(self, earlier: Self) -> Self {
        match (self, earlier) {
            (Self::Memory(mut memory), Self::Memory(earlier)) => {
                memory.follows(&earlier);
                Self::Memory(memory)
            }
            (Self::Pages(layout), Self::Pages(earlier)) => Self::Pages(earlier.then(&layout)),
            (this, _) => this,
        }
    }
}

impl std::fmt::Debug for Back {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(memory) => write!(f, "Memory({})", memory.before().pages()),
            Self::Pages(layout) => write!(f, "Pages({})", layout.pages()),
        }
    }
}

/// Moves one after the other, as one.
pub struct Several {
    /// Those that are over, then the present one and those to come.
    all: Vec<Box<dyn Copying>>,
    at: usize,
}

impl Several {
    /// Moves to be made in this order.
    pub fn new(all: Vec<Box<dyn Copying>>) -> Self {
        Self { all, at: 0 }
    }
}

impl Copying for Several {
    fn step(&mut self, bytes: u64) -> io::Result<bool> {
        if let Some(work) = self.all.get_mut(self.at)
            && work.step(bytes)?
        {
            self.at += 1;
        }
        Ok(self.at >= self.all.len())
    }

    fn copied(&self) -> Copied {
        let mut sum = Copied::default();
        for one in self.all.iter().map(|work| work.copied()) {
            (sum.total, sum.moved, sum.there) = (sum.total + one.total, sum.moved + one.moved, sum.there + one.there);
            for (why, bytes) in one.left {
                *sum.left.entry(why).or_default() += bytes;
            }
        }
        sum
    }
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
    /// Bytes that could not be moved, by reason: a sentence fragment such as `pinned` or
    /// `no free memory on node 1`.
    pub left: BTreeMap<&'static str, u64>,
}

impl Copied {
    pub fn copied(&self) -> u64 {
        self.moved.saturating_sub(self.there)
    }

    pub fn failed(&self) -> u64 {
        self.left.values().sum()
    }
}
