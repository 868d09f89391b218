//! A file of a volume that moves to another node, as a job.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use act::copying::{Back, Copied, Copying};
use act::memory::Layout;
use act::memory::layout::Run;
use fs::format::BLOCK_BYTES;
use fs::{Ino, Migration, Visit, Volume};
use placement::FileRange;
use rustc_hash::FxHashSet;
use topology::NodeId;

/// Most bytes of a step: a copy stops soon when it is told to, also on memory as slow as emulated.
const STEP_BYTES: u64 = 1 << 20;

/// Files that are being copied.
#[derive(Clone, Debug, Default)]
pub(super) struct Copies(Arc<Mutex<FxHashSet<Ino>>>);

impl Copies {
    pub fn contains(&self, ino: Ino) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&ino)
    }
}

pub(super) struct FileCopy {
    volume: Arc<Volume>,
    ino: Ino,
    generation: u32,
    /// Only what is on this node moves.
    from: u32,
    to: u32,
    copied: Copied,
    copies: Copies,
    began: bool,
    /// File block at which the next step goes on.
    next: u64,
    /// Only these file blocks, as far as they are left to do; `None`: all.
    only: Option<VecDeque<Run>>,
    /// Only ranges of the file are to move, and not its log.
    ranged: bool,
    /// The file blocks that have moved, with the node that they were on.
    moved: Layout,
    /// Until the end what is known of the file stays, so that no step reads it again; then it goes,
    /// if the kernel has forgotten it.
    _visit: Visit<Arc<Volume>>,
}

impl FileCopy {
    /// Only the blocks of this layout move: those that an earlier copy has moved.
    pub fn only(&mut self, moved: &Layout) {
        self.copied.total = self.copied.there + moved.pages() * BLOCK_BYTES;
        self.only = Some(moved.runs().collect());
    }

    /// A copy of this inode, in this life of its number, or of these ranges of it, that has not
    /// begun.
    pub fn prepare(
        volume: &Arc<Volume>,
        (ino, generation): (Ino, u32),
        (from, to): (NodeId, NodeId),
        ranges: &[FileRange],
        copies: &Copies,
    ) -> fs::Result<Self> {
        let _visit = Volume::visit(Arc::clone(volume), ino);
        let ranged = !ranges.is_empty();
        let run = |range: &FileRange| {
            let (first, end) = (range.start / BLOCK_BYTES, range.end().div_ceil(BLOCK_BYTES));
            Run { first, pages: end.saturating_sub(first), node: from }
        };
        let only = ranged.then(|| ranges.iter().map(run).collect());
        let mut copy = Self {
            volume: Arc::clone(volume),
            ino,
            generation,
            from: from.0,
            to: to.0,
            copied: Copied::default(),
            copies: copies.clone(),
            began: false,
            next: 0,
            only,
            ranged,
            moved: Layout::default(),
            _visit,
        };
        copy.look()?;
        copy.copied.there = copy.copied.moved;
        Ok(copy)
    }

    /// Finds out how much of what is to move is in place now. Others may write meanwhile.
    fn look(&mut self) -> fs::Result<()> {
        if let Some(only) = &self.only {
            let on = |node: u32| {
                let of = |run: &Run| self.volume.bytes_on_node(self.ino, (run.first, run.end()), node);
                only.iter().map(of).sum::<fs::Result<u64>>()
            };
            self.copied.moved = on(self.to)?;
            self.copied.total = on(self.from)? + self.copied.moved;
            return Ok(());
        }
        let nodes = self.volume.bytes_by_node(self.ino)?;
        let on = |node| nodes.get(&Some(node)).copied().unwrap_or(0);
        self.copied.moved = on(self.to);
        self.copied.total = on(self.from) + self.copied.moved;
        Ok(())
    }
}

impl Copying for FileCopy {
    fn step(&mut self, bytes: u64) -> io::Result<bool> {
        if !self.began {
            self.began = true;
            self.copies.0.lock().unwrap_or_else(PoisonError::into_inner).insert(self.ino);
        }
        let error = |error: fs::Error| io::Error::other(error.to_string());
        if self.volume.stat(self.ino).map_err(error)?.generation != self.generation {
            return Err(io::Error::other("the file was removed"));
        }
        let most = bytes.min(STEP_BYTES).div_ceil(BLOCK_BYTES);
        let (from, leave_log) = (Some(self.from), self.ranged);
        let mut migration = Migration { from, to: self.to, first: self.next, leave_log, ..Migration::default() };
        if let Some(only) = &self.only {
            let Some(run) = only.front() else { return Ok(true) };
            (migration.first, migration.end) = (self.next.max(run.first), Some(run.end()));
        }
        let (volume, moved, node) = (&self.volume, &mut self.moved, NodeId(self.from));
        let go_on = |progress: fs::Progress| {
            if let Some((first, pages)) = progress.latest {
                moved.add(Run { first, pages, node });
            }
            progress.moved < most
        };
        let migrated = volume.migrate(self.ino, migration, go_on);
        match &self.only {
            Some(_) => self.copied.moved = self.copied.there + self.moved.pages() * BLOCK_BYTES,
            None => self.look().map_err(error)?,
        }
        let migrated = migrated.map_err(error)?;
        self.next = migrated.next;
        if let Some(only) = self.only.as_mut().filter(|_| !migrated.cancelled) {
            only.pop_front();
            return Ok(only.is_empty());
        }
        Ok(!migrated.cancelled)
    }

    fn back(self: Box<Self>) -> Option<Back> {
        Some(Back::Pages(self.moved.clone()))
    }

    fn copied(&self) -> Copied {
        self.copied.clone()
    }
}

impl Drop for FileCopy {
    fn drop(&mut self) {
        if self.began {
            self.copies.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.ino);
        }
    }
}
