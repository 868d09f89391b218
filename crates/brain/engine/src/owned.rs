//! The threads that have an affinity of ours.

use rustc_hash::FxHashMap;
use topology::{ProcessId, ThreadId};

use crate::journal::About;
use crate::state::records::Owned;
use crate::{Subject, Undo};

/// The id of a thread or process.
pub(crate) fn id(subject: &Subject) -> Option<u32> {
    match subject {
        Subject::Thread(ThreadId { tid: id, .. }) | Subject::Process(ProcessId { pid: id, .. }) => Some(*id),
        Subject::File(_) => None,
    }
}

/// Threads that have an affinity of ours, with their undo records, in the order of their first
/// moves. Removal takes constant time.
#[derive(Debug, Default)]
pub(crate) struct OwnedTable {
    undos: Vec<Undo>,
    entries: Vec<Entry>,
    index: FxHashMap<Subject, usize>,
    next: u64,
    /// Where the next call of [`Self::some`] begins.
    cursor: usize,
}

#[derive(Debug)]
struct Entry {
    about: About,
    order: u64,
}

impl OwnedTable {
    /// The records, in no order.
    pub fn undos(&self) -> &[Undo] {
        &self.undos
    }

    pub fn len(&self) -> usize {
        self.undos.len()
    }

    pub fn get(&self, subject: &Subject) -> Option<&Undo> {
        self.index.get(subject).and_then(|i| self.undos.get(*i))
    }

    /// A thread was moved, for the first time or again.
    pub fn put(&mut self, undo: Undo, about: About) {
        match self.index.get(&undo.subject) {
            Some(i) => self.undos[*i] = undo,
            None => {
                self.index.insert(undo.subject, self.undos.len());
                self.undos.push(undo);
                self.entries.push(Entry { about, order: self.next });
                self.next += 1;
            }
        }
    }

    /// Forgets a record; returns the thread as the journal names it.
    pub fn remove(&mut self, subject: &Subject) -> Option<About> {
        let i = self.index.remove(subject)?;
        self.undos.swap_remove(i);
        let entry = self.entries.swap_remove(i);
        if let Some(moved) = self.undos.get(i) {
            self.index.insert(moved.subject, i);
        }
        Some(entry.about)
    }

    /// The next `n` records in turn, so that all are seen every `len / n` calls.
    pub fn some(&mut self, n: usize) -> Vec<Undo> {
        let len = self.len();
        let some = (0..n.min(len)).map(|i| self.undos[(self.cursor + i) % len].clone()).collect();
        self.cursor = if len == 0 { 0 } else { (self.cursor + n) % len };
        some
    }

    /// All records as the state file has them, in the order of the first moves, each with its name
    /// in the journal.
    pub fn in_order(&self) -> Vec<(Owned, Option<About>)> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_unstable_by_key(|i| self.entries[*i].order);
        let owned = |i: usize| {
            let about = self.entries[i].about.clone();
            (Owned { comm: about.comm.clone(), candidates: vec![self.undos[i].clone()] }, Some(about))
        };
        order.into_iter().map(owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use placement::testing::subject as thread;

    use super::*;
    use crate::Masks;

    fn undo(tid: u32) -> Undo {
        let set = |t: &str| t.parse().unwrap();
        let masks = Some(Masks { before: set("0-3"), ours: set("0-1"), unbound: false });
        Undo { subject: thread(tid, 7), pid: 1, masks, payload: None }
    }

    fn about(tid: u32) -> About {
        About::new(&thread(tid, 7), 1, "x")
    }

    fn tid(undo: &Undo) -> u32 {
        let Subject::Thread(ThreadId { tid, .. }) = undo.subject else { panic!("{undo:?}") };
        tid
    }

    fn table(tids: &[u32]) -> OwnedTable {
        let mut table = OwnedTable::default();
        for tid in tids {
            table.put(undo(*tid), about(*tid));
        }
        table
    }

    fn tids(table: &OwnedTable) -> Vec<u32> {
        table.in_order().iter().map(|h| tid(&h.0.candidates[0])).collect()
    }

    #[test]
    fn order_survives_removal_and_a_second_move() {
        let mut table = table(&[5, 3, 9, 1]);
        table.remove(&thread(3, 7));
        table.remove(&thread(3, 7));
        table.put(undo(5), about(5));
        assert_eq!(tids(&table), [5, 9, 1]);
        assert!(table.get(&thread(1, 7)).is_some() && table.get(&thread(1, 8)).is_none());
    }

    #[test]
    fn all_are_seen_in_turn() {
        let mut table = table(&[1, 2, 3, 4, 5]);
        let mut seen: Vec<u32> = (0..3).flat_map(|_| table.some(2)).map(|u| tid(&u)).collect();
        assert_eq!(seen.len(), 6);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [1, 2, 3, 4, 5]);
        assert!(OwnedTable::default().some(4).is_empty());
    }
}
