//! Undoes everything: on exit, on `restore`, and at the next start after a crash.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use rustc_hash::FxHashSet;

use crate::journal::{About, Counts, Entry, Event, Journal, unix_s};
use crate::state::file::StateFile;
use crate::state::records::{Job, Owned};
use crate::{EngineError, Finished, Plane, PlaneError, Settings, StateDir, Subject, Undo, Undone};

/// How often to look for threads started by moved ones. Once the moved threads are restored, only
/// threads that had inherited our value can still pass it on, and each round restores all of them:
/// a tree of processes that fork without pause is done after two or three.
const ROUNDS: usize = 16;

/// The pause after which an undo is tried again whose thread could not be examined: a late answer
/// comes within some tenths of a second.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

pub(crate) struct Restored {
    pub finished: Finished,
    /// Moves that could not be undone.
    pub failed: Vec<Owned>,
    pub events: Vec<(About, Event)>,
}

/// Undoes these records, oldest first, then whatever threads have inherited from them.
pub(crate) fn undo_all<P: Plane>(plane: &mut P, owned: Vec<(Owned, Option<About>)>, occasion: &str) -> Restored {
    let mut restored = Restored { finished: Finished::default(), failed: Vec::new(), events: Vec::new() };
    let all: Vec<Owned> = owned.iter().map(|h| h.0.clone()).collect();
    let records: Vec<Undo> = owned.iter().flat_map(|h| h.0.candidates.iter().cloned()).collect();
    plane.undoing(&records);
    let mut tried: Vec<_> = owned
        .into_iter()
        .map(|(owned, about)| {
            let result = undo_one(plane, &owned.candidates);
            (owned, about, result)
        })
        .collect();
    let late = |result: &Result<_, _>| result.as_ref().is_err_and(is_late);
    let late = tried.iter_mut().filter(|(_, _, result)| late(result)).map(|(owned, _, result)| (&*owned, result));
    undo_again(plane, late.collect());
    for (owned, about, result) in tried {
        let Some(newest) = owned.candidates.last() else { continue };
        let before = newest.before();
        let about = about.unwrap_or_else(|| About::new(&newest.subject, newest.pid, &owned.comm));
        let finished = &mut restored.finished;
        let event = match result {
            Ok(result) => {
                match result {
                    Undone::Restored => finished.restored += 1,
                    Undone::ChangedByOthers => finished.changed_by_others += 1,
                    Undone::Gone => finished.gone += 1,
                }
                Event::Undone { result, affinity: before, occasion: occasion.to_owned() }
            }
            Err(error) => {
                finished.failed += 1;
                let what = if before.is_empty() { "what was changed".into() } else { format!("affinity {before}") };
                let why = format!("cannot restore {what} of {}: {error}", newest.subject);
                tracing::error!(pid = newest.pid, "{why}");
                finished.note(why.clone());
                restored.failed.push(owned);
                Event::UndoFailed { why }
            }
        };
        restored.events.push((about, event));
    }
    match put_back_inherited(plane, &records, &mut restored.finished) {
        Some(left) => restored.failed.extend(left),
        // Descendants are found by these records, so all of them stay. Undoing one twice does no
        // harm.
        None => restored.failed = all,
    }
    restored
}

/// Tries again the undos whose threads could not be examined: on a busy machine a thread may not
/// have answered in time.
fn undo_again<P: Plane>(plane: &mut P, late: Vec<(&Owned, &mut Result<Undone, PlaneError>)>) {
    if late.is_empty() {
        return;
    }
    std::thread::sleep(AGAIN_AFTER);
    let undos: Vec<Undo> = late.iter().flat_map(|(owned, _)| owned.candidates.iter().cloned()).collect();
    plane.undoing(&undos);
    for (owned, result) in late {
        *result = undo_one(plane, &owned.candidates);
    }
}

/// Whether a thread could not be examined, as one that answers late.
fn is_late(error: &PlaneError) -> bool {
    matches!(error, PlaneError::Refused { reason: "unreadable", .. })
}

/// Undoes whichever of these values is in force.
fn undo_one<P: Plane>(plane: &mut P, candidates: &[Undo]) -> Result<Undone, PlaneError> {
    for undo in candidates.iter().rev() {
        match plane.undo(undo) {
            Ok(Undone::ChangedByOthers) => {}
            Err(PlaneError::Gone { .. }) => return Ok(Undone::Gone),
            other => return other,
        }
    }
    Ok(Undone::ChangedByOthers)
}

/// Restores what threads have inherited. Returns the records of those that could not be restored;
/// `None` if some may not have been found.
fn put_back_inherited<P: Plane>(plane: &mut P, records: &[Undo], finished: &mut Finished) -> Option<Vec<Owned>> {
    let mut given_up: FxHashSet<Subject> = FxHashSet::default();
    // Those that had one late answer. A second one is given up.
    let mut late: FxHashSet<Subject> = FxHashSet::default();
    let mut left = Vec::new();
    // By now every parent has its own affinity again, but for children that were being born.
    let mut waited = records.is_empty();
    for _ in 0..ROUNDS {
        let mut inherited = match plane.inherited(records) {
            Ok(inherited) => inherited.into_iter().map(|thread| thread.undo).collect::<Vec<Undo>>(),
            Err(error) => {
                finished.failed += 1;
                finished.note(format!("threads that inherited our affinity may be left: {error}"));
                return None;
            }
        };
        inherited.retain(|h| !given_up.contains(&h.subject));
        if inherited.is_empty() {
            if std::mem::replace(&mut waited, true) {
                return Some(left);
            }
            plane.let_forks_end();
            continue;
        }
        plane.undoing(&inherited);
        for thread in inherited {
            match plane.undo(&thread) {
                Ok(Undone::Restored) => {
                    finished.restored += 1;
                    finished.inherited += 1;
                }
                Ok(_) | Err(PlaneError::Gone { .. }) => {}
                // The next round finds it again.
                Err(error) if is_late(&error) && !late.contains(&thread.subject) => {
                    if late.is_empty() {
                        std::thread::sleep(AGAIN_AFTER);
                    }
                    late.insert(thread.subject);
                }
                Err(error) => {
                    finished.failed += 1;
                    finished.note(format!("cannot restore the inherited affinity of {}: {error}", thread.subject));
                    given_up.insert(thread.subject);
                    left.push(Owned { comm: String::new(), candidates: vec![thread] });
                }
            }
        }
    }
    finished.failed += 1;
    finished.note("moved threads keep starting threads with our affinity: `homenode restore` finds the rest".into());
    None
}

/// Undoes what an earlier homenode left behind, as `restore` and each start do. What cannot be
/// undone stays in the state file. Records of another run of the machine are dropped.
pub fn recover<P: Plane>(plane: &mut P, dir: &StateDir) -> Result<Finished, EngineError> {
    recover_owned(plane, dir, Settings::default().journal_bytes).map(|r| r.0)
}

/// [`recover`], and the records that could not be undone.
pub(crate) fn recover_owned<P: Plane>(
    plane: &mut P,
    dir: &StateDir,
    journal_bytes: u64,
) -> Result<(Finished, Vec<Owned>), EngineError> {
    let loaded = dir.load()?;
    let epoch = plane.epoch();
    let void = loaded.epoch.is_some() && epoch.is_some() && loaded.epoch != epoch;
    let (owned, jobs) = if void { Default::default() } else { (loaded.owned, loaded.jobs) };
    if owned.is_empty() && jobs.is_empty() && loaded.damaged == 0 {
        store(dir, epoch.as_deref(), &[])?;
        return Ok((Finished::default(), Vec::new()));
    }
    let Restored { mut finished, failed, events } =
        undo_all(plane, owned.into_iter().map(|h| (h, None)).collect(), "after a crash");
    if loaded.damaged > 0 {
        finished.note(format!(
            "{}: {} damaged lines skipped",
            dir.path().join(crate::state::STATE).display(),
            loaded.damaged
        ));
    }
    let mut journal = Journal::open(dir.path(), journal_bytes);
    let time = unix_s(SystemTime::now());
    for (about, event) in events {
        journal.add(&Entry { time, thread: Some(about), event });
    }
    for Job { comm, subject, from, to } in jobs {
        finished.copies += 1;
        finished.note(format!("the move of {subject} from node {from} to {to} was interrupted: what was moved stays"));
        let why = Some("interrupted by a crash of homenode".to_owned());
        let (left, seconds) = (BTreeMap::new(), None);
        let event = Event::CopyEnded { from, to, bytes: 0, done: 0, left, seconds, why };
        journal.add(&Entry { time, thread: Some(About::new(&subject, 0, &comm)), event });
    }
    let counts = Counts::from(&finished);
    let Counts { restored, changed_by_others, gone, failed: not_restored } = counts;
    tracing::info!(restored, changed_by_others, gone, failed = not_restored, "recovered from an earlier run");
    journal.add(&Entry { time, thread: None, event: Event::Recovered(counts) });
    if let Err(error) = journal.flush() {
        finished.note(error.to_string());
    }
    store(dir, epoch.as_deref(), &failed)?;
    Ok((finished, failed))
}

/// Keeps in the state file only what is still to be undone. With nothing left it removes the file,
/// which works on a full disk too.
pub fn store(dir: &StateDir, epoch: Option<&str>, left: &[Owned]) -> Result<(), EngineError> {
    if !left.is_empty() {
        return StateFile::create(dir, epoch, left).map(|_| ());
    }
    let path = dir.path().join(crate::state::STATE);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(EngineError::io("remove", &path)(source)),
        _ => Ok(()),
    }
}
