//! How many moves became what, since the engine began.

use std::collections::BTreeMap;

use crate::{MoveEvent, Subject};

/// Kind of subject: `thread`, `process` or `file`.
pub type Kind = &'static str;
/// A stable word for what became of a move; [`word_of`] lists them.
pub type Result = &'static str;

/// Counts of moves by kind of subject and by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<(Kind, Result), u64>);

impl Tally {
    pub(crate) fn count(&mut self, subject: &Subject, event: &MoveEvent) {
        let kind = match subject {
            Subject::Thread(_) => "thread",
            Subject::Process(_) => "process",
            Subject::File(_) => "file",
        };
        if let Some(word) = word_of(event) {
            *self.0.entry((kind, word)).or_default() += 1;
        }
    }

    /// The counts, in order of kind and result.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, Result, u64)> + '_ {
        self.0.iter().map(|((kind, result), n)| (*kind, *result, *n))
    }
}

impl FromIterator<(Kind, Result, u64)> for Tally {
    fn from_iter<I: IntoIterator<Item = (Kind, Result, u64)>>(counts: I) -> Self {
        Self(counts.into_iter().map(|(kind, result, n)| ((kind, result), n)).collect())
    }
}

/// The word for an event; `None` for one that changes nothing. A move of a thread ends as `made`;
/// one that copies has `begun`, and then `copied` or `failed`. A move that is held back or waits
/// counts once in each window.
fn word_of(event: &MoveEvent) -> Option<Result> {
    Some(match event {
        MoveEvent::HeldBack { .. } => "held_back",
        MoveEvent::Refused { .. } | MoveEvent::NotWritten { .. } => "refused",
        MoveEvent::Gone => "gone",
        MoveEvent::Queued => "queued",
        MoveEvent::Dropped { .. } => "dropped",
        MoveEvent::Applied => "made",
        MoveEvent::Started => "begun",
        MoveEvent::Ended { why: None, .. } => "copied",
        MoveEvent::Ended { why: Some(_), .. } => "failed",
        MoveEvent::Unpaid { .. } => "unpaid",
        MoveEvent::Harmful { .. } => "guardrail",
        MoveEvent::Progress(_) => return None,
    })
}
