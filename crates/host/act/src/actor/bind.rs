//! Binds threads, one by one or all of a process.

use engine::{PlaneError, Started, Undo, Write};
use placement::{Move, Subject};
use rustc_hash::FxHashSet;

use super::Actor;
use crate::mover::key_of;
use crate::watched::Births;

impl<B: Births> Actor<B> {
    pub(super) fn bind(&mut self, undo: &Undo) -> Result<(), PlaneError> {
        let key = key_of(undo);
        self.watched.watch(undo);
        self.watched.moves_made = true;
        let applied = self.mover.apply(undo);
        if applied.is_err()
            && let Some(key) = key
            && self.mover.moved(key).is_none_or(|moved| moved.over.is_some())
        {
            self.watched.release(key);
        }
        applied
    }

    /// Binds the threads of a process, and lets its memory follow.
    pub(super) fn start_process(
        &mut self,
        mv: &Move,
        undo: &[Undo],
        write: &mut Write<'_>,
    ) -> Result<Started, PlaneError> {
        let mut process = self.moves.take_process(mv)?;
        undo.iter().for_each(|undo| self.watched.watch(undo));
        self.watched.moves_made = true;
        let mut written: FxHashSet<Subject> = undo.iter().map(|undo| undo.subject).collect();
        let Self { watched, mover, machine, .. } = self;
        let bound = process.bind(mover, machine.topology(), &mut |ready| {
            // The records that it began with are written already.
            let new: Vec<Undo> = ready.iter().filter(|u| !written.contains(&u.subject)).cloned().collect();
            if new.is_empty() {
                return Ok(());
            }
            write(&new)?;
            written.extend(new.iter().map(|undo| undo.subject));
            // Before they are bound: a child born right after inherits our value.
            new.iter().for_each(|undo| watched.watch(undo));
            Ok(())
        });
        if let Err(error) = bound {
            let mut stuck = false;
            for undo in process.bound() {
                match self.mover.undo(undo) {
                    Ok(_) => key_of(undo).into_iter().for_each(|key| self.watched.release(key)),
                    Err(error) => {
                        tracing::warn!(%error, "a thread stays bound until the end");
                        written.remove(&undo.subject);
                        stuck = true;
                    }
                }
            }
            if !stuck {
                return Err(error);
            }
            // Its record must stay as long as a thread is bound; the others keep those of their
            // earlier moves.
            return Ok(Started { not_bound: written.into_iter().collect(), ..Started::done() });
        }
        process.bound().iter().for_each(|undo| _ = written.remove(&undo.subject));
        let not_bound = written.into_iter().collect();
        let id = process.id();
        if !process.bound().is_empty() {
            self.processes.insert(id.pid, (id, process.given().clone()));
        }
        Ok(Started { not_bound, ..self.moves.start_memory(mv, process) })
    }
}
