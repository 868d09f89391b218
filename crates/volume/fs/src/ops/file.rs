//! File data: read, write, truncate, allocate, punch, seek.
//!
//! Data is never changed in place: a write goes to new blocks, one log entry per run maps them, and
//! the tail commits all of it at once. Bytes of the last block beyond the size are undefined, so
//! whatever grows a file zeroes them first.

use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, Run};
use crate::format::{BLOCK_BYTES, Ino, MAX_SIZE};
use crate::inode::{Inode, State};
use crate::ops::blocks::{Draft, MANY};
use crate::ops::names::check_live;
use crate::placement::Placement;
use crate::volume::{Locked, Volume};

impl Volume {
    /// Reads up to `out.len()` bytes; fewer at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, out: &mut [u8]) -> Result<usize> {
        let inode = self.inode_partly(ino)?;
        check_file(&inode)?;
        self.read_inode(&inode, offset, out)
    }

    pub(crate) fn read_inode(&self, inode: &Inode, offset: u64, out: &mut [u8]) -> Result<usize> {
        let mut state = inode.read();
        let wanted = (offset / BLOCK_BYTES, out.len() as u64 / BLOCK_BYTES + 2);
        while state.extents.unread(wanted.0, wanted.1).is_some() {
            drop(state);
            self.read_extents(inode, &mut inode.write(), wanted, usize::MAX)?;
            state = inode.read();
        }
        check_live(&state)?;
        let len = state.size.saturating_sub(offset).min(out.len() as u64);
        let out = out.get_mut(..len as usize).unwrap_or_default();
        let (first, end) = (offset / BLOCK_BYTES, offset + len);
        if let Some(gaps) = &state.gaps
            && gaps.doubts(first, end.div_ceil(BLOCK_BYTES) - first)
            && !self.takes_doubtful()
        {
            return Err(Error::Io(std::io::Error::from_raw_os_error(libc::EIO)));
        }
        let mut done = 0_usize;
        for run in state.extents.range(first, end.div_ceil(BLOCK_BYTES) - first) {
            let from = (run.file_block * BLOCK_BYTES).max(offset);
            let to = (run.end() * BLOCK_BYTES).min(end);
            let (start, stop) = ((from - offset) as usize, (to - offset) as usize);
            out.get_mut(done..start).unwrap_or_default().fill(0);
            let part = out.get_mut(start..stop).unwrap_or_default();
            if run.unwritten {
                part.fill(0);
            } else {
                self.store.read_data(run.block, from - run.file_block * BLOCK_BYTES, part)?;
                self.counters.read(Some(inode.ino), run.block.region(), to - from);
                let by = || self.regions.node_of_caller(self.cpu());
                self.counters.read_ranges(inode.ino, from..to, run.block.region(), by);
            }
            done = stop;
        }
        out.get_mut(done..).unwrap_or_default().fill(0);
        self.counters.read_call(inode.ino, offset, len);
        Ok(len as usize)
    }

    /// Writes all of `data`, at once: a crash leaves the old or the new. Where a full volume has
    /// room for less, what is written over blocks of the file is written in parts.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write_to(ino, offset, data, self.options.placement)
    }

    pub fn write_to(&self, ino: Ino, offset: u64, data: &[u8], placement: Placement) -> Result<()> {
        let inode = self.inode_partly(ino)?;
        check_file(&inode)?;
        self.with_room(|| {
            let written = self.write_locked(&mut Locked::new(&[&inode]), ino, offset, data, placement);
            match written {
                Err(full @ (Error::NoSpace | Error::Lacks(_))) => {
                    match (full, self.write_over(&inode, offset, data, placement)) {
                        // Cleaning logs makes room for that.
                        (Error::NoSpace, Err(Error::Lacks(_))) => Err(Error::NoSpace),
                        (_, done) => done,
                    }
                }
                done => done,
            }
        })
    }

    /// Writes at the end, wherever that is by then. Returns where it was.
    pub fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        let inode = self.inode_partly(ino)?;
        check_file(&inode)?;
        self.with_room(|| {
            let mut locked = Locked::new(&[&inode]);
            let offset = locked.get(ino)?.size;
            self.write_locked(&mut locked, ino, offset, data, self.options.placement)?;
            Ok(offset)
        })
    }

    fn write_locked(
        &self,
        locked: &mut Locked<'_>,
        ino: Ino,
        offset: u64,
        data: &[u8],
        placement: Placement,
    ) -> Result<()> {
        if let Placement::Node(node) = placement
            && self.regions.on_node(node).is_empty()
        {
            return Err(Error::NoRegionOnNode(node));
        }
        let end = end_of(offset, data.len() as u64)?;
        self.read_around(locked, ino, offset, end)?;
        let state = locked.get(ino)?;
        check_live(state)?;
        if data.is_empty() {
            return Ok(());
        }
        let mut draft = self.draft(state.size.max(end));
        if offset / BLOCK_BYTES > state.size / BLOCK_BYTES {
            self.zero_tail(state, ino, offset, &mut draft)?;
        }
        self.replace(state, ino, (offset, data), placement, &mut draft)?;
        self.finish(draft, locked, self.now(), Purpose::Growth)
    }

    /// Reads the extents that a write may use: also those at the end of the file, and those that it
    /// may write with its own.
    pub(super) fn read_around(&self, locked: &mut Locked<'_>, ino: Ino, offset: u64, end: u64) -> Result<()> {
        let (inode, state) = locked.get_both(ino)?;
        if state.extents.is_whole() {
            return Ok(());
        }
        let (first, end) = (offset.min(state.size) / BLOCK_BYTES / MANY * MANY, end.div_ceil(BLOCK_BYTES));
        self.read_extents(inode, state, (first, end.next_multiple_of(MANY) - first), usize::MAX)
    }

    /// Sets the size. What is added reads as zeros.
    pub fn truncate(&self, ino: Ino, size: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        check_file(&inode)?;
        end_of(size, 0)?;
        self.with_room(|| {
            let mut locked = Locked::new(&[&inode]);
            let state = locked.get(ino)?;
            check_live(state)?;
            let mut draft = self.draft(size);
            if size > state.size {
                self.zero_tail(state, ino, size, &mut draft)?;
            }
            draft.entries.push((ino, resized(state, size)));
            let frees =
                size <= state.size && state.extents.range(size.div_ceil(BLOCK_BYTES), u64::MAX >> 12).next().is_some();
            let purpose = if frees { Purpose::Freeing } else { Purpose::Growth };
            self.finish(draft, &mut locked, self.now(), purpose)
        })
    }

    /// Gives every block of a range that has none a place; it reads as zeros. Grows the file unless
    /// `keep_size`. Writing the range later takes new blocks, near the writer, as long as there are
    /// any, and then these.
    pub fn allocate(&self, ino: Ino, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        self.change_range(ino, offset, len, keep_size, |volume, state, draft, end| {
            let (first, last) = (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
            if offset < state.size {
                volume.zero_tail(state, ino, draft.size, draft)?;
            }
            let mapped: Vec<Run> = state.extents.range(first, last - first).collect();
            volume.check_room(last - first - mapped.iter().map(|run| run.count).sum::<u64>())?;
            let mut at = first;
            for (from, to) in mapped.iter().map(|run| (run.file_block, run.end())).chain([(last, last)]) {
                volume.add_unwritten(state, ino, (at, from - at), draft)?;
                at = to;
            }
            Ok(())
        })
    }

    /// Makes a range read as zeros and gives its blocks back. The size stays.
    pub fn punch_hole(&self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        self.change_range(ino, offset, len, true, |volume, state, draft, end| {
            let (first, last) = volume.zero_edges(state, ino, (offset, end), draft)?;
            if first < last {
                let hole = Entry::Hole { file_block: first, count: last - first, size: draft.size };
                draft.entries.push((ino, hole));
            }
            Ok(())
        })
    }

    /// Makes a range read as zeros and keeps blocks for it. Grows the file unless `keep_size`.
    pub fn zero_range(&self, ino: Ino, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        self.change_range(ino, offset, len, keep_size, |volume, state, draft, end| {
            let (first, last) = volume.zero_edges(state, ino, (offset, end), draft)?;
            volume.add_unwritten(state, ino, (first, last.saturating_sub(first)), draft)
        })
    }

    fn change_range<'a>(
        &'a self,
        ino: Ino,
        offset: u64,
        len: u64,
        keep_size: bool,
        change: impl Fn(&'a Self, &State, &mut Draft<'a>, u64) -> Result<()>,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        check_file(&inode)?;
        let end = end_of(offset, len)?;
        if len == 0 {
            return Err(Error::Invalid("the range is empty"));
        }
        self.with_room(|| {
            let mut locked = Locked::new(&[&inode]);
            let state = locked.get(ino)?;
            check_live(state)?;
            let mut draft = self.draft(if keep_size { state.size } else { state.size.max(end) });
            if draft.size > state.size && offset >= state.size {
                self.zero_tail(state, ino, draft.size, &mut draft)?;
            }
            change(self, state, &mut draft, end)?;
            if draft.size > state.size && draft.entries.is_empty() {
                draft.entries.push((ino, resized(state, draft.size)));
            }
            let frees = draft.entries.iter().any(|(_, entry)| match entry {
                Entry::Hole { file_block, count, .. } => state.extents.range(*file_block, *count).next().is_some(),
                _ => false,
            });
            let purpose = if frees { Purpose::Freeing } else { Purpose::Growth };
            if draft.entries.is_empty() { Ok(()) } else { self.finish(draft, &mut locked, self.now(), purpose) }
        })
    }

    /// Zeroes what a range has of its first and last block, and returns the whole blocks between. A
    /// last block that ends with the file counts as whole.
    fn zero_edges<'a>(
        &'a self,
        state: &State,
        ino: Ino,
        (offset, end): (u64, u64),
        draft: &mut Draft<'a>,
    ) -> Result<(u64, u64)> {
        let end = if end >= state.size { end.next_multiple_of(BLOCK_BYTES) } else { end };
        let (first, last) = (offset.div_ceil(BLOCK_BYTES), end / BLOCK_BYTES);
        let head_end = (first * BLOCK_BYTES).min(end).min(state.size);
        self.zero_part(state, ino, (offset, head_end.max(offset)), draft)?;
        if first <= last {
            let tail = last * BLOCK_BYTES;
            self.zero_part(state, ino, (tail, end), draft)?;
        }
        Ok((first, last))
    }

    fn add_unwritten<'a>(
        &'a self,
        state: &State,
        ino: Ino,
        (file_block, count): (u64, u64),
        draft: &mut Draft<'a>,
    ) -> Result<()> {
        for run in
            self.new_runs(state, ino, (file_block, count), self.options.placement, draft.purpose, &mut draft.fresh)?
        {
            draft.entries.push((ino, Entry::Extent(Run { unwritten: true, ..run }, Some(draft.size))));
        }
        Ok(())
    }
}

/// The entry that sets a size. Growing keeps blocks that were allocated beyond the end, so it is
/// said by a hole where nothing is, behind them; where they reach to the largest file they go.
fn resized(state: &State, size: u64) -> Entry<'static> {
    let end = state.extents.end();
    let keeps = size > state.size && end > size.div_ceil(BLOCK_BYTES) && end < MAX_SIZE / BLOCK_BYTES;
    if keeps { Entry::Hole { file_block: end, count: 1, size } } else { Entry::Size(size) }
}

fn check_file(inode: &Inode) -> Result<()> {
    match inode.kind {
        Kind::File => Ok(()),
        Kind::Directory => Err(Error::IsDirectory),
        _ => Err(Error::Invalid("not a regular file")),
    }
}

fn end_of(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|end| *end <= MAX_SIZE).ok_or(Error::TooLarge)
}
