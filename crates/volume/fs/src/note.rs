//! What outlives a server that is killed: which of its requests are committed.
//!
//! **Problem.** The kernel sends a request again to the next server where the last one died before
//! its answer. One that is committed already must not be done again: `mkdir` would find its own
//! directory.
//!
//! **Approach.** A worker has a note in memory that outlives it. Before an operation's commit,
//! while its inodes are locked, the note gets the word that will commit it ([`Word`]), and after it
//! that it is committed. If it says only the first, nobody has changed that place since, so the
//! medium says which ([`crate::Volume::has_stored`]). A process that is killed has made its stores
//! in the order of its program, so no fence is needed between the two.
//!
//! **Limits.** Of a request with several commits it says no more than that the last one that began
//! has happened; all such requests can be done again. After a power cut there is no note, and
//! nobody who asks.

use std::cell::RefCell;
use std::sync::Arc;

use crate::commit::place;
use crate::error::{Error, Result};
use crate::format::Block;
use crate::format::journal::Record;
use crate::store::{Durable, Flushed};
use crate::sync::task_local;
use crate::volume::Volume;

/// A word of the medium that commits an operation: block, offset in it, and the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub [u64; 3]);

/// Where a thread notes how far its request is.
pub trait Note {
    /// It is committed as soon as the medium has this word.
    fn commits_by(&self, word: Word);
    fn committed(&self);
}

task_local! {
    static NOTE: RefCell<Option<Arc<dyn Note>>> = RefCell::new(None);
}

/// From now on the operations of this thread are noted there.
pub fn note_in(note: Arc<dyn Note>) {
    NOTE.set(Some(note));
}

impl Volume {
    /// Stores the words of an operation ([`Volume::store_records`]), and notes it.
    pub(crate) fn store_noted(&self, records: &[Record], before: Flushed) -> Result<Durable> {
        NOTE.with_borrow(|note| {
            let Some((note, first)) = note.as_ref().zip(records.first()) else {
                return self.store_records(records, before);
            };
            let (block, offset, word) = place(&self.store, first)?;
            note.commits_by(Word([block.raw(), offset, word]));
            let durable = self.store_records(records, before)?;
            note.committed();
            Ok(durable)
        })
    }

    /// Whether the medium has a word, which is durable then. To be asked before anything changes.
    pub fn has_stored(&self, Word([block, offset, word]): Word) -> Result<bool> {
        let block = Block::from_raw(block).ok_or(Error::Invalid("no block can have this address"))?;
        let stored = self.store.load_word(block, offset)? == word;
        if stored && !self.is_look() {
            // Who was killed may have stored it and not begun to write it back. Where that fails in
            // one of two copies, it is in the other one.
            match self.store.flush_line(block, offset) {
                Err(Error::Io(_)) => {}
                flushed => _ = flushed?.fence(&self.store)?,
            }
        }
        Ok(stored)
    }
}
