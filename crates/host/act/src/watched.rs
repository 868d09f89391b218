//! Watched threads: those that were moved, and the descendants that a watcher in the kernel
//! reports.
//!
//! **Problem.** A child inherits the affinity that its parent was given. Whether it has that value
//! by birth or has set it by itself shows only to a watcher of births.
//!
//! **Approach.** [`Watched`] asks its watcher ([`Births`]) to watch each thread before it is bound,
//! and keeps what the last look showed. A watcher that fails, or misses births, is remembered:
//! then procfs is searched at the end ([`super::descendants::search`]).

use std::error::Error;

use engine::Undo;
use linux::births::{Descendant, Origin};
use rustc_hash::FxHashSet;
use topology::ThreadId;

use super::mover::key_of;

/// A watcher's error, for people to read.
pub type Trouble = Box<dyn Error + Send + Sync>;

pub trait Births {
    /// Starts to watch a thread that is about to be moved, and its future descendants.
    fn watch(&mut self, thread: ThreadId) -> Result<(), Trouble>;
    /// Records that the affinity of this thread is no longer ours.
    fn release(&mut self, tid: u32) -> Result<(), Trouble>;
    /// Lists the living watched threads and their living descendants.
    fn descendants(&mut self) -> Result<Vec<Descendant>, Trouble>;
}

/// No watcher: threads are moved and put back, and their descendants are searched for in procfs.
#[derive(Clone, Copy, Debug)]
pub enum Unwatched {}

impl Births for Unwatched {
    fn watch(&mut self, _: ThreadId) -> Result<(), Trouble> {
        match *self {}
    }

    fn release(&mut self, _: u32) -> Result<(), Trouble> {
        match *self {}
    }

    fn descendants(&mut self) -> Result<Vec<Descendant>, Trouble> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) struct Watched<B> {
    pub births: Option<B>,
    /// A note about moved threads whose births could not be watched, for the next window.
    pub unwatched: Option<String>,
    /// Some moved threads, or descendants, are not watched.
    pub lost: bool,
    /// Threads were moved since the last look.
    pub moves_made: bool,
    /// The last look succeeded.
    pub looked: bool,
    /// Watched threads and descendants that lived at the last look.
    pub alive: FxHashSet<ThreadId>,
    /// Watched threads and descendants with an affinity of their own, as of the last look.
    pub own: FxHashSet<ThreadId>,
    /// First threads of processes whose place a watched thread took by exec, as of the last look.
    pub execs: FxHashSet<ThreadId>,
}

impl<B: Births> Watched<B> {
    pub fn new(births: Option<B>) -> Self {
        Self {
            births,
            unwatched: None,
            lost: false,
            moves_made: false,
            looked: false,
            alive: FxHashSet::default(),
            own: FxHashSet::default(),
            execs: FxHashSet::default(),
        }
    }

    /// Lists watched threads and descendants, and notes which of them have an affinity of their
    /// own.
    pub fn look(&mut self) -> Result<Vec<Descendant>, Trouble> {
        let Some(births) = &mut self.births else { return Ok(Vec::new()) };
        // After an error nothing is known: what an earlier look showed is out of date.
        self.looked = false;
        self.alive.clear();
        self.own.clear();
        self.execs.clear();
        let descendants = births.descendants()?;
        self.looked = true;
        self.moves_made = false;
        self.alive.extend(descendants.iter().map(Descendant::id));
        self.own.extend(descendants.iter().filter(|d| d.own).map(Descendant::id));
        self.execs.extend(descendants.iter().filter(|d| d.origin == Origin::Exec).map(Descendant::id));
        Ok(descendants)
    }

    /// Watches the births of a thread that is about to be moved: a child born right after the move
    /// inherits our value.
    pub fn watch(&mut self, undo: &Undo) {
        if let Some((thread, births)) = key_of(undo).zip(self.births.as_mut())
            && let Err(error) = births.watch(thread)
        {
            tracing::warn!(tid = thread.tid, %error, "its children are not watched");
            self.lost = true;
            self.unwatched = Some(format!(
                "children of moved threads are not watched ({error}): their affinity is restored at the end"
            ));
        }
    }

    /// Records that the affinity of this thread, and of its future children, is not ours.
    pub fn release(&mut self, ThreadId { tid, .. }: ThreadId) {
        if let Some(Err(error)) = self.births.as_mut().map(|births| births.release(tid)) {
            tracing::warn!(tid, %error, "still watched");
        }
    }
}
