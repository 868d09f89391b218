//! Undoes moves, and puts back what moved threads have started.
//!
//! **Problem.** A moved thread passes our value on to its children, may become another thread by
//! exec, and may end between any two looks. Its record must stay for as long as anything is left
//! that only this record leads to.
//!
//! **Approach.** While windows pass, the watcher reports descendants, and each is put back once.
//! The first record of a move that is undone between two windows says that the engine is finishing,
//! or recovers from a crash. From then on no process keeps what its threads were given, and procfs
//! is searched for what the watcher did not see ([`search`]).
//!
//! **Limits.** Those of [`crate::descendants`].

use std::io;
use std::time::Duration;

use engine::{Inherited, Masks, PlaneError, Undo, Undone};
use linux::affinity;
use linux::births::Descendant;
use rustc_hash::FxHashSet;
use topology::ThreadId;

use super::Actor;
use crate::descendants::search;
use crate::mover::key_of;
use crate::watched::{Births, Trouble, Watched};

/// How often to look for an exec that has taken effect and is not reported yet. The kernel reports
/// it when the new program is loaded, which takes milliseconds, or longer from a slow disk.
const EXEC_LOOKS: u32 = 50;
/// The pause between two such looks.
const EXEC_PAUSE: Duration = Duration::from_millis(20);

impl<B: Births> Actor<B> {
    pub(super) fn undo_move(&mut self, thread: ThreadId, undo: &Undo) -> Result<Undone, PlaneError> {
        if !self.finishing {
            self.finishing = true;
            // CPUs may have come or gone since the last window.
            self.mover.defaults.refresh();
            if let Err(error) = self.look() {
                tracing::warn!(%error, "every affinity that equals ours is treated as ours");
            }
        }
        // From now on, what the threads of its process start is put back, too. That does not hold
        // if a single thread goes back that was moved by itself.
        let value = undo.masks.as_ref().map(|masks| &masks.ours);
        if value.is_some_and(|value| self.processes.get(&undo.pid).is_some_and(|(_, given)| given.has(value))) {
            self.processes.remove(&undo.pid);
        }
        if self.watched.own.contains(&thread) {
            self.mover.end(thread);
            return Ok(Undone::ChangedByOthers);
        }
        self.mover.undo(undo)
    }

    /// Puts a descendant back. What it has afterwards is its own.
    pub(super) fn put_back(&mut self, thread: ThreadId, undo: &Undo) -> Result<Undone, PlaneError> {
        let undone = self.mover.undo(undo)?;
        if undone == Undone::Restored {
            self.were_put_back.insert(thread);
            self.watched.release(thread);
        }
        Ok(undone)
    }

    /// The watcher reports the descendants of moved threads. While everything is being restored,
    /// and without a watcher, procfs is searched for those whose births it did not see. A thread
    /// that set our value itself looks like one of them, so the search leaves out the descendants
    /// of watched threads.
    pub(super) fn find_inherited(&mut self, owned: &[Undo]) -> Result<Vec<Inherited>, PlaneError> {
        let reported = self
            .look_for_descendants(owned)
            .and_then(|reported| Ok(self.descendants.inherited(&self.mover, &reported)?));
        let (mut inherited, mut trouble) = match reported {
            Ok(inherited) => (inherited, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        if self.watched.births.is_none() || self.finishing {
            let blind = !self.watched.looked || self.watched.lost;
            let searched = |undo: &Undo| blind || key_of(undo).is_some_and(|key| self.mover.moved(key).is_none());
            match search::inherited(self.mover.threads(), owned, self.mover.defaults.online(), searched) {
                Ok(more) => {
                    let mut known: FxHashSet<ThreadId> = inherited.iter().filter_map(key_of).collect();
                    known.extend(self.watched.own.iter().chain(&self.were_put_back));
                    inherited
                        .extend(more.into_iter().filter(|thread| key_of(thread).is_some_and(|key| known.insert(key))));
                }
                Err(error) => trouble = Some(error.into()),
            }
        }
        match trouble {
            Some(error) if inherited.is_empty() => Err(PlaneError::refused("unreadable", error.to_string())),
            _ => Ok(inherited.into_iter().map(|thread| self.keep_or_put_back(thread)).collect()),
        }
    }

    /// A thread that inherited our value keeps it if its process was moved as a whole, and is moved
    /// itself from now on.
    pub(super) fn keep_or_put_back(&mut self, thread: Undo) -> Inherited {
        // By exec, the first thread's id and start time may stand for another program: the policy
        // has not decided on that.
        let by_exec = key_of(&thread).is_none_or(|key| self.watched.execs.contains(&key));
        let given = self.processes.get(&thread.pid).filter(|_| !by_exec && !self.finishing);
        let Some(first) = thread.masks.as_ref().and_then(|masks| given?.1.first(&masks.ours)) else {
            return Inherited { undo: thread, keeps: false };
        };
        // It goes back to what its own parent had.
        let undo = Undo { payload: first.payload.clone(), ..thread };
        self.mover.adopt(&undo);
        self.watched.watch(&undo);
        Inherited { undo, keeps: true }
    }

    /// Looks at the watched threads; those with an affinity of their own are not ours any more.
    pub(super) fn look(&mut self) -> Result<Vec<Descendant>, Trouble> {
        let descendants = self.watched.look()?;
        self.watched.own.iter().for_each(|key| self.mover.end(*key));
        Ok(descendants)
    }

    /// Looks at the watched threads ([`Self::look`]). While everything is being restored, it waits
    /// for execs that have taken effect but are not reported yet, because no later look could find
    /// them.
    fn look_for_descendants(&mut self, owned: &[Undo]) -> Result<Vec<Descendant>, Trouble> {
        let mut descendants = self.look()?;
        let mut looks = 0;
        while self.finishing && looks < EXEC_LOOKS && owned.iter().any(|undo| self.may_be_in_exec(undo)) {
            std::thread::sleep(EXEC_PAUSE);
            looks += 1;
            descendants = self.look()?;
        }
        Ok(descendants)
    }

    /// Whether a watched thread is gone and the first thread of its process has our value for a
    /// reason that is not known: the moved thread is becoming the first by exec, or the first
    /// thread set our value itself.
    fn may_be_in_exec(&self, undo: &Undo) -> bool {
        let watched = !self.watched.lost && key_of(undo).is_some_and(|key| self.mover.moved(key).is_some());
        let Watched { own, execs, .. } = &self.watched;
        watched
            && matches!(self.became_first(undo), Ok(Some(first)) if !own.contains(&first) && !execs.contains(&first))
    }

    /// The first thread of a process whose place a moved thread may have taken by exec.
    fn became_first(&self, undo: &Undo) -> io::Result<Option<ThreadId>> {
        let moved = |first| self.mover.moved(first).filter(|moved| moved.over.is_none());
        let given = |first| moved(first).and_then(|moved| moved.ours.last().cloned());
        let found = search::became_first(self.mover.threads(), undo, self.mover.defaults.online(), given);
        found.map(|first| first.as_ref().and_then(key_of))
    }

    /// Whether a record leaves nothing to undo: its thread has ended, or has set our value itself.
    pub(super) fn is_over(&self, thread: ThreadId, masks: &Masks, undo: &Undo) -> bool {
        let watched = &self.watched;
        // The kernel's list of tasks takes no lock: procfs is asked only about those that it does
        // not have.
        let lives = watched.looked && watched.alive.contains(&thread);
        if lives || !self.mover.threads().ended(thread) {
            let own = watched.own.contains(&thread);
            return own && affinity::get(thread.tid).is_ok_and(|mask| mask == masks.ours);
        }
        match self.became_first(undo) {
            // It continues under another id. The record must stay until that thread is restored, in
            // case of a crash. A watched thread did so only if the kernel reported its exec; the
            // first thread may have our value for itself.
            Ok(Some(first)) => {
                let reported = watched.looked && !watched.lost && self.mover.moved(thread).is_some();
                watched.own.contains(&first) || reported && !watched.execs.contains(&first)
            }
            Ok(None) => true,
            Err(_) => false,
        }
    }
}
