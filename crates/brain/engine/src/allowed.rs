//! Puts back threads that no rule allows to be bound any more: rules were read again, or a process
//! got into another control group.

use crate::engine::Engine;
use crate::journal::Event;
use crate::state::records::Record;
use crate::{Plane, Undo, Undone};

impl<P: Plane> Engine<P> {
    /// Restores the affinity of each thread whose process may not be moved.
    pub(crate) fn put_back_disallowed(&mut self) {
        let Self { owned, plane, .. } = self;
        let undos: Vec<Undo> = owned.undos().iter().filter(|undo| !plane.allows(undo.pid)).cloned().collect();
        if undos.is_empty() {
            return;
        }
        self.plane.undoing(&undos);
        for undo in undos {
            // What cannot be undone now stays in the table and is tried again in the next window.
            let Ok(result) = self.plane.undo(&undo) else { continue };
            let Some(about) = self.owned.remove(&undo.subject) else { continue };
            let occasion = "because no rule allows it".to_owned();
            self.write(Some(about), Event::Undone { result, affinity: undo.before(), occasion });
            if result == Undone::Gone {
                self.settled.ended(&undo.subject);
            }
            self.forgets.push(Record::Done { subject: undo.subject });
        }
        self.append();
    }
}
