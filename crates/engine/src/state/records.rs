//! The records of the state file, and what they come to when replayed.
//!
//! A thread's life in the file: `hold` (about to be moved, this undoes it), then `made` or `not_made`; again for each
//! further move; `done` once it is put back, taken by others, or ended. Only `hold` is fsync'd. A `made` that is missing
//! costs nothing: all values that may be in force are candidates, and undoing checks which one is.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::VERSION;
use crate::Undo;
use crate::plane::Key;

/// One line of the state file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// First line: who wrote it, and in which run of the machine.
    Run {
        /// Format version.
        version: u32,
        /// The plane's epoch (a host's boot id).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<String>,
    },
    /// A thread is about to be moved.
    Hold {
        /// Name of the thread.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        comm: String,
        /// What undoes the move.
        undo: Undo,
    },
    /// The last `hold` of this thread was followed by the move.
    Made {
        /// Thread id.
        tid: u32,
        /// Start time as in the undo record.
        start: u64,
    },
    /// The last `hold` of this thread was not followed by the move.
    NotMade {
        /// Thread id.
        tid: u32,
        /// Start time as in the undo record.
        start: u64,
    },
    /// Nothing is to be put back for this thread any more.
    Done {
        /// Thread id.
        tid: u32,
        /// Start time as in the undo record.
        start: u64,
    },
}

/// A thread that may hold a value of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Name of the thread.
    pub comm: String,
    /// Values of ours that may be in force, oldest first; never empty. They all lead back to the same affinity.
    pub candidates: Vec<Undo>,
}

/// What a state file comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The run of the machine it was written in.
    pub epoch: Option<String>,
    /// Threads that may hold a value of ours, in the order of their first move.
    pub held: Vec<Held>,
    /// Lines that could not be read.
    pub damaged: usize,
}

/// Replays a state file. `Err` is a version that this build does not know.
pub fn replay(bytes: &[u8]) -> Result<Replayed, u32> {
    let mut replayed = Replayed::default();
    let mut threads: FxHashMap<Key, (usize, Held)> = FxHashMap::default();
    for (n, line) in bytes.split(|b| *b == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let Ok(record) = serde_json::from_slice::<Record>(line) else {
            replayed.damaged += 1;
            continue;
        };
        match record {
            Record::Run { version, epoch } if version == VERSION => replayed.epoch = epoch,
            Record::Run { version, .. } => return Err(version),
            Record::Hold { comm, undo } => {
                let (_, held) = threads.entry(undo.key()).or_insert_with(|| (n, Held { comm, candidates: Vec::new() }));
                held.candidates.push(undo);
            }
            Record::Made { tid, start } => {
                if let Some((_, held)) = threads.get_mut(&(tid, start)) {
                    held.candidates.drain(..held.candidates.len().saturating_sub(1));
                }
            }
            Record::NotMade { tid, start } => {
                if let Some((_, held)) = threads.get_mut(&(tid, start)) {
                    held.candidates.pop();
                    if held.candidates.is_empty() {
                        threads.remove(&(tid, start));
                    }
                }
            }
            Record::Done { tid, start } => {
                threads.remove(&(tid, start));
            }
        }
    }
    let mut held: Vec<_> = threads.into_values().collect();
    held.sort_unstable_by_key(|h| h.0);
    replayed.held = held.into_iter().map(|h| h.1).collect();
    Ok(replayed)
}

/// The records as lines.
pub fn lines(records: &[Record]) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = Vec::with_capacity(records.len() * 160);
    for record in records {
        serde_json::to_writer(&mut bytes, record)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(tid: u32, ours: &str) -> Record {
        let undo = Undo::Thread {
            tid,
            pid: 1,
            start: 7,
            before: "0-3".parse().unwrap(),
            ours: ours.parse().unwrap(),
            unbound: false,
            family: None,
        };
        Record::Hold { comm: "fio".into(), undo }
    }

    fn ours(records: &[Record]) -> Vec<(u32, Vec<String>)> {
        let replayed = replay(&lines(records).unwrap()).unwrap();
        let candidate = |u: &Undo| u.masks().map(|m| m.1.to_string()).unwrap_or_default();
        replayed.held.iter().map(|h| (h.candidates[0].key().0, h.candidates.iter().map(candidate).collect())).collect()
    }

    #[test]
    fn every_value_that_may_be_in_force_is_kept_and_no_other() {
        let made = Record::Made { tid: 1, start: 7 };
        let not_made = Record::NotMade { tid: 1, start: 7 };
        let done = Record::Done { tid: 1, start: 7 };
        let of = |text: &[&str]| vec![(1, text.iter().map(|t| t.to_string()).collect::<Vec<_>>())];
        assert_eq!(ours(&[hold(1, "0-1")]), of(&["0-1"]));
        assert_eq!(ours(&[hold(1, "0-1"), not_made.clone()]), []);
        assert_eq!(ours(&[hold(1, "0-1"), made.clone(), hold(1, "2-3")]), of(&["0-1", "2-3"]));
        assert_eq!(ours(&[hold(1, "0-1"), made.clone(), hold(1, "2-3"), not_made.clone()]), of(&["0-1"]));
        assert_eq!(ours(&[hold(1, "0-1"), made.clone(), hold(1, "2-3"), made.clone()]), of(&["2-3"]));
        assert_eq!(ours(&[hold(1, "0-1"), made, done.clone()]), []);
        // Facts about threads that the file knows nothing of (their line was damaged) are ignored.
        assert_eq!(ours(&[done, not_made, hold(2, "1")]), [(2, vec!["1".to_owned()])]);
    }

    #[test]
    fn order_is_that_of_the_first_move() {
        let ids: Vec<u32> =
            ours(&[hold(9, "1"), hold(3, "1"), hold(9, "0"), hold(5, "1")]).iter().map(|o| o.0).collect();
        assert_eq!(ids, [9, 3, 5]);
    }

    #[test]
    fn damaged_lines_are_skipped_and_counted() {
        let mut bytes = lines(&[hold(1, "0")]).unwrap();
        bytes.extend_from_slice(b"\xff\x00{\n{\"record\":\"hold\"}\n");
        bytes.extend(lines(&[hold(2, "0")]).unwrap());
        let replayed = replay(&bytes).unwrap();
        assert_eq!((replayed.held.len(), replayed.damaged), (2, 2));
    }

    #[test]
    fn records_read_as_written() {
        for record in [
            Record::Run { version: 1, epoch: Some("b".into()) },
            hold(1, "0-1,4096"),
            Record::Made { tid: 1, start: u64::MAX },
            Record::NotMade { tid: 1, start: 0 },
            Record::Done { tid: 1, start: 0 },
        ] {
            let bytes = lines(std::slice::from_ref(&record)).unwrap();
            assert_eq!(serde_json::from_slice::<Record>(&bytes).unwrap(), record);
        }
    }
}
