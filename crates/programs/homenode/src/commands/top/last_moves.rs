//! When a running homenode last moved each thread, and what it copies now, from its journal.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use chrono::{DateTime, Local};
use engine::journal::{self, About, Decided, Entry, Event, Kind, Line};
use session::window::{Copy, Window};

use crate::commands::explain;

/// A thread: its id, and its start time where it is known, so that a later thread with this id is
/// another one.
type Key = (u32, Option<u64>);

/// The last move of each thread.
#[derive(Default)]
pub struct LastMoves {
    state_dir: PathBuf,
    /// The journal's size and time when it was last read.
    seen: Option<(u64, SystemTime)>,
    moves: HashMap<Key, String>,
    copies: Vec<(About, Copy)>,
    /// The journal, oldest first.
    pub lines: Arc<[Line]>,
}

impl LastMoves {
    /// Those in the journal of this state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), ..Self::default() }
    }

    /// Reads the journal if it has changed. No journal: nothing was moved.
    pub fn refresh(&mut self) {
        let journal = self.state_dir.join(journal::JOURNAL).metadata().ok();
        let seen = journal.and_then(|meta| Some((meta.len(), meta.modified().ok()?)));
        if seen == self.seen {
            return;
        }
        self.seen = seen;
        self.moves.clear();
        self.copies.clear();
        let now = Local::now();
        let entries = journal::read(&self.state_dir).unwrap_or_default();
        for entry in &entries {
            self.copy(entry);
            let thread = entry.thread.as_ref().filter(|about| about.kind == Kind::Thread);
            if let (Some(thread), Some(text)) = (thread, words(entry, now)) {
                if thread.start_ns.is_none() {
                    // What a crashed run left behind is put back by one that does not know the
                    // start time.
                    self.moves.retain(|(tid, _), _| *tid != thread.tid);
                }
                self.moves.insert((thread.tid, thread.start_ns), text);
            }
        }
        self.lines = journal::history(entries).into();
    }

    /// Adds the last move of each thread of a window, and the copies that go on.
    pub fn add_to(&self, window: &mut Window) {
        for thread in &mut window.threads {
            thread.last_move = self.of(thread.tid, thread.start_ns);
        }
        window.copies = self.copies.iter().map(|(_, copy)| copy.clone()).collect();
    }

    fn copy(&mut self, entry: &Entry) {
        if let Event::Started { .. } = entry.event {
            // What an earlier run copied has ended with it.
            self.copies.clear();
        }
        let Some(about) = &entry.thread else { return };
        match &entry.event {
            Event::CopyStarted(Decided { from, to, .. }) => {
                let name = explain::name_of(about);
                let copy = Copy { name, from: *from, to: *to, bytes: 0, done: 0, failed: 0 };
                self.copies.push((about.clone(), copy));
            }
            Event::CopyProgress { bytes, done, failed } => {
                if let Some((_, copy)) = self.copies.iter_mut().find(|(of, _)| of == about) {
                    (copy.bytes, copy.done, copy.failed) = (*bytes, *done, *failed);
                }
            }
            Event::CopyEnded { from, .. } => self.copies.retain(|(of, copy)| of != about || copy.from != *from),
            _ => {}
        }
    }

    /// `10:02:31 1 → 0`, or `10:07:12 undone`.
    fn of(&self, tid: u32, start_ns: Option<u64>) -> Option<String> {
        self.moves.get(&(tid, start_ns)).or_else(|| self.moves.get(&(tid, None))).cloned()
    }
}

fn words(entry: &Entry, now: DateTime<Local>) -> Option<String> {
    let time = explain::time(entry.time, now);
    match &entry.event {
        Event::Moved(Decided { from, to, .. }) => Some(format!("{time} {from} → {to}")),
        Event::Undone { .. } => Some(format!("{time} undone")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_shown_from_their_beginning_to_their_end() {
        let dir = tempfile::tempdir().unwrap();
        let about = r#""tid":0,"pid":0,"comm":"/db/x","kind":"file","file":"8:1:9""#;
        let lines = [
            r#"{"time":1.0,"event":"started","daemon":1,"policy":"dragonfly"}"#.to_owned(),
            format!(
                r#"{{"time":2.0,{about},"event":"copy_started","from":0,"to":1,"reason":"overloaded_home","why":"x"}}"#
            ),
            format!(r#"{{"time":3.0,{about},"event":"copy_progress","bytes":268435456,"done":67108864,"failed":0}}"#),
            format!(
                r#"{{"time":4.0,{about},"event":"copy_ended","from":0,"to":1,"bytes":268435456,"done":268435456}}"#
            ),
        ];
        let shown = |n: usize| {
            std::fs::write(dir.path().join(journal::JOURNAL), lines[..n].join("\n") + "\n").unwrap();
            let mut moves = LastMoves::new(dir.path());
            moves.refresh();
            moves.copies.iter().map(|(_, copy)| copy.line()).collect::<Vec<_>>()
        };
        assert_eq!(shown(1), [""; 0]);
        assert_eq!(shown(2), ["copying file /db/x: node 0 → 1, begun"]);
        assert_eq!(shown(3), ["copying file /db/x: node 0 → 1, 64.0 MiB of 256.0 MiB"]);
        assert_eq!(shown(4), [""; 0]);
    }

    #[test]
    fn the_newest_counts_and_a_reused_id_is_another_thread() {
        let dir = tempfile::tempdir().unwrap();
        let mut moves = LastMoves::new(dir.path());
        moves.refresh();
        assert_eq!(moves.of(41, Some(5)), None);
        let line = |time: f64, from: u32, to: u32| {
            format!(
                r#"{{"time":{time},"tid":41,"pid":4,"comm":"fio","start_ns":5,"event":"moved","from":{from},"to":{to},"reason":"read_locality","why":"x"}}"#
            ) + "\n"
        };
        std::fs::write(dir.path().join(journal::JOURNAL), line(1.0, 0, 1) + &line(2.0, 1, 0)).unwrap();
        moves.refresh();
        assert!(moves.of(41, Some(5)).unwrap().ends_with(" 1 → 0"));
        assert_eq!(moves.of(41, Some(6)), None);
        let undone = r#"{"time":3.0,"tid":41,"pid":4,"comm":"fio","event":"undone","result":"restored","affinity":"0-3","occasion":"after a crash"}"#;
        std::fs::write(dir.path().join(journal::JOURNAL), line(1.0, 0, 1) + undone + "\n").unwrap();
        moves.refresh();
        assert!(moves.of(41, Some(5)).unwrap().ends_with(" undone"));
    }
}
