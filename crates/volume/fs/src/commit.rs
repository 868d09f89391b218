//! Committing an operation: one tail, or several by way of a journal.

use smallvec::SmallVec;

use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::format::inode::pos_word;
use crate::format::journal::{self, Record};
use crate::format::word::Field;
use crate::format::{BLOCK_BYTES, Block, Ino, LogPos};
use crate::inode::{Inode, State};
use crate::log::{self, Appended};
use crate::store::{Durable, Flushed, Store};
use crate::sync::lock;
use crate::volume::{Locked, Volume};

impl Volume {
    /// Makes an operation happen: all of `entries`, each in the log of its inode, or none. `data`
    /// is what else must be durable before. Then applies the entries to `locked` and frees what
    /// they displace.
    pub(crate) fn commit(
        &self,
        locked: &mut Locked<'_>,
        entries: &[(Ino, Entry<'_>)],
        time: i64,
        data: Flushed,
        purpose: Purpose,
    ) -> Result<Durable> {
        self.store.check_writable()?;
        let _watch = self.store.doubt_if_it_panics();
        let mut flushed = data;
        let mut logs: SmallVec<[(usize, Appended<'_>); 2]> = SmallVec::new();
        let mut failed = None;
        for (i, (inode, state)) in locked.0.iter().enumerate() {
            let mut own = entries.iter().filter(|e| e.0 == inode.ino).map(|e| (&e.1, time)).peekable();
            if own.peek().is_some() {
                let at = (state.log.sequence, state.log.tail);
                let pages = self.log_pages(self.regions.nearest(state.log.tail.page.region()), purpose);
                let appended = log::append(&self.store, pages, (inode.ino, inode.generation), at, own);
                let mut appended = match appended {
                    Ok(appended) => appended,
                    Err(error) => {
                        failed = Some((i, error));
                        break;
                    }
                };
                if purpose == Purpose::Growth
                    && entries.iter().any(|(ino, entry)| *ino == inode.ino && grows(state, entry))
                    && let Err(error) = self.quotas.check_blocks(state, appended.new_pages())
                {
                    failed = Some((i, error));
                    break;
                }
                flushed = flushed.and(std::mem::take(&mut appended.dirty).flush(&self.store)?);
                logs.push((i, appended));
            }
        }
        if let Some((i, error)) = failed {
            drop(logs);
            if let Some((inode, state)) = locked.0.get_mut(i) {
                self.leave_failed_page(inode, state);
            }
            return Err(error);
        }
        let record = |(i, appended): &(usize, Appended<'_>)| {
            locked.0.get(*i).map(|locked| record(locked.0, Field::Tail, appended.tail))
        };
        let records: SmallVec<[Record; 4]> = logs.iter().filter_map(record).collect();
        let durable = self.store_noted(&records, flushed)?;

        let mut freed = Vec::new();
        for (i, appended) in &mut logs {
            if let Some((_, state)) = locked.0.get_mut(*i) {
                state.log.advance(appended);
            }
        }
        for (ino, entry) in entries {
            let (inode, state) = locked.get_both(*ino)?;
            if let Entry::Size(size) = entry {
                self.leave_tail(inode, state, size.div_ceil(BLOCK_BYTES));
            }
            let applied = state.apply(entry, time, &mut freed);
            self.store.certain(|| applied.map_err(Error::Invalid))?;
        }
        for (block, count) in freed {
            self.allocator.free(block, count);
        }
        for (inode, state) in &mut locked.0 {
            self.room.changed(inode, state);
            self.clean_if_worth(inode, state);
            self.settle(inode, state);
        }
        Ok(durable)
    }

    /// Stores words of inodes, all or none, after `before` is durable.
    pub(crate) fn store_records(&self, records: &[Record], before: Flushed) -> Result<Durable> {
        if let [only] = records {
            let durable = before.fence(&self.store)?;
            return self.store.commit(&[place(&self.store, only)?], &durable);
        }
        // Once the journal is committed there is no way back: lines that have failed are met
        // before.
        for record in records {
            let (block, offset, _) = place(&self.store, record)?;
            self.store.can_store(block, offset)?;
        }
        let (own, all) = (self.cpu(), self.journals.len());
        let mut turns = (0..all).filter_map(|i| self.journals.get((own + i) % all));
        let failed = self.store.failed();
        let usable = |journal: &&_| !failed.any() || !failed.has(*lock(journal));
        let Some(journal) = turns.find(usable) else {
            return Err(std::io::Error::from_raw_os_error(libc::EIO).into());
        };
        let held = lock(journal);
        let at = *held;
        let bytes = journal::encode(records);
        let written = self.store.write(at, journal::RECORDS as u64, &bytes)?.flush(&self.store)?;
        let durable = before.and(written).fence(&self.store)?;
        let durable = self.store.commit(&[(at, 0, journal::commit_word(at, records.len(), &bytes))], &durable)?;
        finish_journal(&self.store, at, records, &durable)
    }
}

pub(crate) fn record(inode: &Inode, field: Field, pos: LogPos) -> Record {
    Record { ino: inode.ino, field, word: pos_word(inode.ino, inode.generation, field, pos) }
}

pub(crate) fn place(store: &Store, record: &Record) -> Result<(Block, u64, u64)> {
    let (block, line) = store.inode_at(record.ino)?;
    Ok((block, line + record.place(), record.word))
}

/// The second half of a journaled operation: also what recovery does for a journal that was
/// committed.
pub(crate) fn finish_journal(store: &Store, at: Block, records: &[Record], committed: &Durable) -> Result<Durable> {
    store.certain(|| {
        let words = records.iter().map(|record| place(store, record)).collect::<Result<Vec<_>>>()?;
        let stored = store.commit(&words, committed)?;
        store.end_journal(at, &stored)
    })
}

/// Whether an entry gives an inode more than it has: what does not takes a page of the log at most,
/// also from who may have no more.
fn grows(state: &State, entry: &Entry<'_>) -> bool {
    match entry {
        Entry::Extent(run, Some(_)) => {
            state.extents.range(run.file_block, run.count).map(|mapped| mapped.count).sum::<u64>() < run.count
        }
        Entry::Link { .. } | Entry::Xattr { .. } => true,
        _ => false,
    }
}
