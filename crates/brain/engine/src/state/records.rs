//! The records of the state file, and what they come to when replayed.
//!
//! Each move of a thread has a `hold` (the thread is about to be moved; this record undoes it),
//! then `made` or `not_made`. `done` says that the thread is put back, was changed by others, or
//! has ended. Only `hold` is synced to disk. A `made` that is missing does no harm: every value
//! that may be in force is a candidate, and undoing checks which one is. `made` and `not_made` name
//! the value of their `hold`, so that they touch no other `hold` if their own is damaged. A value
//! that is known to have been set stays a candidate until a later move of the thread is made, or
//! until `done`.
//!
//! A move that copies has a `job` (it is about to begin), then `job_over`. A `job` without its end
//! was interrupted by a crash. Nothing is undone then: what was copied stays.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use topology::{CpuSet, NodeId};

use super::VERSION;
use crate::{Subject, Undo};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// First line: who wrote it, and in which run of the machine.
    Run {
        version: u32,
        /// The plane's epoch (a host's boot id).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<String>,
    },
    /// A thread is about to be moved.
    Hold {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        comm: String,
        undo: Undo,
    },
    /// The last `hold` of this thread with this value was followed by the move.
    Made {
        subject: Subject,
        /// The value; absent in records of earlier versions: that of the last `hold`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ours: Option<CpuSet>,
    },
    /// The last `hold` of this thread with this value was not followed by the move.
    NotMade {
        subject: Subject,
        /// As in [`Record::Made`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ours: Option<CpuSet>,
    },
    /// Nothing is to be put back for this thread any more.
    Done { subject: Subject },
    /// A move that may copy is about to begin.
    Job(Job),
    /// It is over, or it had nothing to copy.
    JobOver { subject: Subject, from: NodeId },
}

impl Record {
    /// A thread of this name is about to be moved.
    pub fn hold(comm: &str, undo: &Undo) -> Self {
        Self::Hold { comm: comm.to_owned(), undo: undo.clone() }
    }

    /// The move of this `hold` was made.
    pub fn made(undo: &Undo) -> Self {
        Self::Made { subject: undo.subject, ours: undo.masks.as_ref().map(|masks| masks.ours.clone()) }
    }

    /// The move of this `hold` was not made.
    pub fn not_made(undo: &Undo) -> Self {
        Self::NotMade { subject: undo.subject, ours: undo.masks.as_ref().map(|masks| masks.ours.clone()) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Name of the process, or path of the file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comm: String,
    pub subject: Subject,
    pub from: NodeId,
    pub to: NodeId,
}

/// A thread that may have a value of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub comm: String,
    /// Values of ours that may be in force, oldest first; never empty. They all lead back to the
    /// same affinity.
    pub candidates: Vec<Undo>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The run of the machine it was written in.
    pub epoch: Option<String>,
    /// Threads that may have a value of ours, in the order of their first move.
    pub owned: Vec<Owned>,
    /// Moves that were copying, in the order of their beginning.
    pub jobs: Vec<Job>,
    /// Lines that could not be read.
    pub damaged: usize,
}

/// Replays a state file. `Err` is a version that this build does not know.
pub fn replay(bytes: &[u8]) -> Result<Replayed, u32> {
    let mut replayed = Replayed::default();
    let mut threads: FxHashMap<Subject, Replay> = FxHashMap::default();
    for (n, line) in bytes.split(|b| *b == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let Ok(record) = serde_json::from_slice(line) else {
            replayed.damaged += 1;
            continue;
        };
        match record {
            Record::Run { version: VERSION, epoch } => replayed.epoch = epoch,
            Record::Run { version, .. } => return Err(version),
            Record::Hold { comm, undo } => {
                let new = || Replay { line: n, comm, candidates: Vec::new() };
                threads.entry(undo.subject).or_insert_with(new).candidates.push((undo, false));
            }
            Record::Made { subject, ours } => {
                if let Some(thread) = threads.get_mut(&subject)
                    && let Some(at) = thread.last_unmade(ours.as_ref())
                {
                    thread.candidates.drain(..at);
                    thread.candidates.iter_mut().take(1).for_each(|made| made.1 = true);
                }
            }
            Record::NotMade { subject, ours } => {
                if let Some(thread) = threads.get_mut(&subject)
                    && let Some(at) = thread.last_unmade(ours.as_ref())
                {
                    thread.candidates.remove(at);
                    if thread.candidates.is_empty() {
                        threads.remove(&subject);
                    }
                }
            }
            Record::Done { subject } => {
                threads.remove(&subject);
            }
            Record::Job(job) => replayed.jobs.push(job),
            Record::JobOver { subject, from } => replayed.jobs.retain(|j| j.subject != subject || j.from != from),
        }
    }
    let mut owned: Vec<_> = threads.into_values().collect();
    owned.sort_unstable_by_key(|thread| thread.line);
    let of = |thread: Replay| Owned {
        comm: thread.comm,
        candidates: thread.candidates.into_iter().map(|candidate| candidate.0).collect(),
    };
    replayed.owned = owned.into_iter().map(of).collect();
    Ok(replayed)
}

/// A thread while its records are replayed.
struct Replay {
    /// Number of its first line.
    line: usize,
    comm: String,
    /// Values that may be in force, oldest first, and whether they are known to have been.
    candidates: Vec<(Undo, bool)>,
}

impl Replay {
    /// The last candidate with this value of which it is not known that it was made. `None`: any
    /// value.
    fn last_unmade(&self, ours: Option<&CpuSet>) -> Option<usize> {
        let of = |undo: &Undo| undo.masks.as_ref().map(|masks| &masks.ours) == ours;
        self.candidates.iter().rposition(|(undo, made)| !made && (ours.is_none() || of(undo)))
    }
}

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
    use placement::testing::subject as thread;
    use topology::{FileId, ProcessId, ThreadId};

    use super::*;
    use crate::Masks;

    fn hold(tid: u32, ours: &str) -> Record {
        let masks = Masks { before: "0-3".parse().unwrap(), ours: ours.parse().unwrap(), unbound: false };
        let undo = Undo { subject: thread(tid, 7), pid: 1, masks: Some(masks), payload: None };
        Record::Hold { comm: "fio".into(), undo }
    }

    fn tid(undo: &Undo) -> u32 {
        let Subject::Thread(ThreadId { tid, .. }) = undo.subject else { panic!("{undo:?}") };
        tid
    }

    fn ours(records: &[Record]) -> Vec<(u32, Vec<String>)> {
        let replayed = replay(&lines(records).unwrap()).unwrap();
        let candidate = |u: &Undo| u.masks.as_ref().unwrap().ours.to_string();
        replayed.owned.iter().map(|h| (tid(&h.candidates[0]), h.candidates.iter().map(candidate).collect())).collect()
    }

    #[test]
    fn every_value_that_may_be_in_force_is_kept_and_no_other() {
        let made = Record::Made { subject: thread(1, 7), ours: None };
        let not_made = Record::NotMade { subject: thread(1, 7), ours: None };
        let done = Record::Done { subject: thread(1, 7) };
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

    /// Moves of one thread as the engine writes them down, some made and some not; then one line is
    /// damaged, or two that follow one another trade places. The value in force stays a candidate,
    /// unless the damaged line is its own.
    #[test]
    fn a_damaged_or_displaced_line_takes_no_other_lines_undo_with_it() {
        let set = |n: u32| (0..=n).collect::<CpuSet>();
        let undo = |n: u32| {
            let masks = Some(Masks { before: set(9), ours: set(n), unbound: false });
            Undo { subject: thread(1, 7), pid: 1, masks, payload: None }
        };
        let candidates = |records: &[Record]| -> Vec<CpuSet> {
            let replayed = replay(&lines(records).unwrap()).unwrap();
            let owned = replayed.owned.into_iter().flat_map(|h| h.candidates);
            owned.map(|undo| undo.masks.unwrap().ours).collect()
        };
        // Three moves to one of two values each; every pattern of values and of success.
        for pattern in 0..64 {
            let (mut records, mut in_force) = (Vec::new(), None);
            for n in 0..3 {
                let (undo, made) = (undo(pattern >> n & 1), pattern >> (3 + n) & 1 == 1);
                records.push(Record::Hold { comm: String::new(), undo: undo.clone() });
                if made {
                    in_force = Some((records.len() - 1, undo.masks.clone().unwrap().ours));
                }
                records.push(if made { Record::made(&undo) } else { Record::not_made(&undo) });
            }
            let Some((hold, ours)) = in_force else { continue };
            assert_eq!(candidates(&records), std::slice::from_ref(&ours), "{records:?}");
            for damaged in (0..records.len()).filter(|n| *n != hold) {
                let mut left = records.clone();
                left.remove(damaged);
                assert!(candidates(&left).contains(&ours), "without line {damaged} of {records:?}");
            }
            for first in 1..records.len() {
                let mut swapped = records.clone();
                swapped.swap(first - 1, first);
                assert!(candidates(&swapped).contains(&ours), "lines {first} and before of {records:?}");
            }
        }
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
        assert_eq!((replayed.owned.len(), replayed.damaged), (2, 2));
    }

    #[test]
    fn records_read_as_written() {
        for record in [
            Record::Run { version: 2, epoch: Some("b".into()) },
            hold(1, "0-1,4096"),
            Record::Made { subject: thread(1, u64::MAX), ours: None },
            Record::NotMade { subject: thread(1, 0), ours: "0-3".parse().ok() },
            Record::Done { subject: Subject::Process(ProcessId::new(1, 0)) },
            Record::Job(job(0)),
            Record::JobOver { subject: job(0).subject, from: NodeId(0) },
        ] {
            let bytes = lines(std::slice::from_ref(&record)).unwrap();
            assert_eq!(serde_json::from_slice::<Record>(&bytes).unwrap(), record);
        }
    }

    fn job(from: u32) -> Job {
        let subject = Subject::File(FileId { generation: 5, ..placement::testing::file(9) });
        Job { comm: "/db/x".into(), subject, from: NodeId(from), to: NodeId(2) }
    }

    #[test]
    fn jobs_without_their_end_were_interrupted() {
        let over = |from| Record::JobOver { subject: job(from).subject, from: NodeId(from) };
        let records = [Record::Job(job(0)), Record::Job(job(1)), over(0), over(7)];
        assert_eq!(replay(&lines(&records).unwrap()).unwrap().jobs, [job(1)]);
    }

    #[test]
    fn another_version_is_refused() {
        assert_eq!(replay(br#"{"record":"run","version":1,"epoch":"b"}"#), Err(1));
    }
}
