//! When a running homenode last moved each thread, from its journal.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use chrono::{DateTime, Local};
use engine::journal::{self, Entry, Event, Filter};
use placement::Thread;

use crate::commands::explain;

/// A thread: its id, and its start time where it is known, so that a later thread with this id is another one.
type Key = (u32, Option<u64>);

/// The last move of each thread.
#[derive(Default)]
pub struct LastMoves {
    state_dir: PathBuf,
    /// The journal's size and time when it was last read.
    seen: Option<(u64, SystemTime)>,
    moves: HashMap<Key, String>,
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
        let now = Local::now();
        for entry in journal::read(&self.state_dir, &Filter::default()).unwrap_or_default() {
            if let (Some(thread), Some(text)) = (&entry.thread, words(&entry, now)) {
                if thread.start_ns.is_none() {
                    // What a crashed run left behind is put back by one that does not know the start time.
                    self.moves.retain(|(tid, _), _| *tid != thread.tid);
                }
                self.moves.insert((thread.tid, thread.start_ns), text);
            }
        }
    }

    /// `10:02:31 1 → 0`, or `10:07:12 undone`.
    pub fn of(&self, thread: &Thread) -> Option<String> {
        let known = self.moves.get(&(thread.tid, thread.start_ns));
        known.or_else(|| self.moves.get(&(thread.tid, None))).cloned()
    }
}

fn words(entry: &Entry, now: DateTime<Local>) -> Option<String> {
    let time = explain::time(entry.time, now);
    match &entry.event {
        Event::Moved { from, to, .. } => Some(format!("{time} {from} → {to}")),
        Event::Undone { .. } => Some(format!("{time} undone")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: u32, start_ns: u64) -> Thread {
        let text = format!(r#"{{"tid":{tid},"pid":1,"start_ns":{start_ns},"node":0,"allowed_nodes":[0],"cpu_s":0.0}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_newest_counts_and_a_reused_id_is_another_thread() {
        let dir = tempfile::tempdir().unwrap();
        let mut moves = LastMoves::new(dir.path());
        moves.refresh();
        assert_eq!(moves.of(&thread(41, 5)), None);
        let line = |time: f64, from: u32, to: u32| {
            format!(
                r#"{{"time":{time},"tid":41,"pid":4,"comm":"fio","start_ns":5,"event":"moved","from":{from},"to":{to},"reason":"read_locality","why":"x"}}"#
            ) + "\n"
        };
        std::fs::write(dir.path().join(journal::JOURNAL), line(1.0, 0, 1) + &line(2.0, 1, 0)).unwrap();
        moves.refresh();
        assert!(moves.of(&thread(41, 5)).unwrap().ends_with(" 1 → 0"));
        assert_eq!(moves.of(&thread(41, 6)), None);
        let undone = r#"{"time":3.0,"tid":41,"pid":4,"comm":"fio","event":"undone","result":"restored","affinity":"0-3","occasion":"after a crash"}"#;
        std::fs::write(dir.path().join(journal::JOURNAL), line(1.0, 0, 1) + undone + "\n").unwrap();
        moves.refresh();
        assert!(moves.of(&thread(41, 5)).unwrap().ends_with(" undone"));
    }
}
