//! What becomes of a move: one [`Attempt`], its [`MoveEvent`]s, and [`Engine::publish`], which
//! tells everything that keeps account of moves.
//!
//! **Problem.** The rails, the state file, the journal, the policy and others must all know what
//! became of a move. One that is not told holds back too much or too little, or keeps a record of
//! something that never was.
//!
//! **Approach.** A move is one [`Attempt`] from the first look at it to the end of its copy. Each
//! step is one [`MoveEvent`], and `publish` alone passes it on. The JSON forms of an event are made
//! from it here: [`OutcomeState`] in snapshots, [`Event`] in the journal.
//!
//! Their order: held back, refused, gone, not written, applied, queued (then dropped, or one of the
//! former) or started; a start is followed by progress, then by ended, refused or gone. Unpaid and
//! harmful may come after any that moved something. [`Attempt::undo`] says what the state file has
//! of it; once a copy runs, that is its job's ([`crate::jobs::Jobs::begin`] empties it), so the end
//! writes `JobOver` alone.
//!
//! **Limits.** The policy hears of the moves of a window in the order of its plan, so `publish`
//! keeps their events, and [`Engine::step`] tells them at the end of the window.

use std::sync::Arc;

use placement::{Move, Outcome, OutcomeState};
use serde::Serialize;

use crate::engine::Engine;
use crate::journal::{About, Decided, Event};
use crate::plane::NOT_WRITTEN;
use crate::rails::Rail;
use crate::state::records::{Job, Record};
use crate::{JobId, Plane, PlaneError, Progress, Undo};

/// What became of a move, or how far it is.
#[derive(Clone, Debug, PartialEq)]
pub enum MoveEvent {
    HeldBack {
        rail: Rail,
        why: String,
    },
    /// It must not or cannot be made.
    Refused {
        /// Stable word for programs.
        reason: String,
        why: String,
    },
    /// It was prepared and is not made, because what undoes it could not be written down. The fault
    /// is the disk's: one note says so for all moves of the window.
    NotWritten {
        why: String,
    },
    /// Its subject ended before it was made.
    Gone,
    Queued,
    /// It waited, and is not made.
    Dropped {
        /// Stable word for programs.
        reason: &'static str,
        why: String,
    },
    Applied,
    Started,
    /// Its copy has come a tenth or more farther.
    Progress(Progress),
    /// Its copy is over. What was copied stays.
    Ended {
        progress: Progress,
        seconds: f64,
        /// Why it ended early; `None` if it did not.
        why: Option<String>,
    },
    /// It did not pay, and is taken back.
    Unpaid {
        why: String,
        /// It is not taken back.
        stays: bool,
    },
    /// Its service went worse, and its threads got their affinities back. What was copied stays.
    Harmful {
        why: String,
    },
}

/// A move that is considered, waits, is made or copies.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub mv: Move,
    /// Its subject, as the journal names it.
    pub about: About,
    /// Remote share in the window that decided it.
    pub remote_share: Option<f64>,
    /// The rule that allows it.
    pub rule: Option<Arc<str>>,
    /// Its place among the moves of this window; `None`: an earlier window decided it.
    pub place: Option<usize>,
    /// It has passed the rails in this window.
    pub passed: bool,
    /// It takes back a move that did not pay, and is not tried itself.
    pub back: bool,
    /// What undoes it, once it is prepared.
    pub undo: Option<Vec<Undo>>,
    pub job: Option<JobId>,
}

impl Attempt {
    pub fn new(mv: Move, about: About) -> Self {
        let (remote_share, rule, place) = (None, None, None);
        Self { mv, about, remote_share, rule, place, passed: false, back: false, undo: None, job: None }
    }

    /// Whether it can take long.
    pub fn copies(&self) -> bool {
        !self.mv.subject.is_thread()
    }

    /// It copies, as the state file has it.
    pub fn job(&self) -> Job {
        let Move { subject, from, to, .. } = &self.mv;
        Job { comm: self.about.comm.clone(), subject: *subject, from: *from, to: *to }
    }
}

impl MoveEvent {
    /// The plane did not make a move. A broken plane stays an error.
    pub(crate) fn not_made(error: PlaneError) -> Result<Self, PlaneError> {
        match error {
            PlaneError::Gone { .. } => Ok(Self::Gone),
            PlaneError::Refused { reason, .. } => {
                Ok(Self::Refused { reason: reason.to_owned(), why: error.to_string() })
            }
            PlaneError::Broken(_) => Err(error),
        }
    }

    /// The stable word and the sentence of a move that must not or cannot be made.
    pub fn refusal(&self) -> Option<(&str, &str)> {
        match self {
            Self::Refused { reason, why } => Some((reason, why)),
            Self::NotWritten { why } => Some((NOT_WRITTEN, why)),
            _ => None,
        }
    }

    /// The form in the next snapshot; `None` where the queue and the running copies say it.
    pub(crate) fn outcome(&self, mv: &Move) -> Option<Outcome> {
        let result = match self.clone() {
            Self::Queued | Self::Started | Self::Progress(_) => return None,
            Self::Applied => OutcomeState::Done { bytes: 0, failed: 0 },
            Self::Ended { progress, why: None, .. } => {
                OutcomeState::Done { bytes: progress.done, failed: progress.failed() }
            }
            Self::Ended { progress, why: Some(why), .. } => OutcomeState::Failed { bytes: progress.done, why },
            Self::Dropped { why, .. } | Self::Unpaid { why, stays: true } => OutcomeState::Failed { bytes: 0, why },
            Self::Unpaid { why, .. } | Self::Harmful { why } => OutcomeState::RolledBack { why },
            Self::HeldBack { rail, why } => OutcomeState::HeldBack { rail: word(&rail), why },
            Self::Refused { reason, why } => OutcomeState::Refused { reason, why },
            Self::NotWritten { why } => OutcomeState::Refused { reason: NOT_WRITTEN.to_owned(), why },
            Self::Gone => OutcomeState::Gone,
        };
        Some(outcome(mv, result))
    }

    /// The form in the journal, if it has one.
    fn entry(&self, attempt: &Attempt) -> Option<Event> {
        let Attempt { mv: Move { from, to, reason, why: decided, .. }, remote_share, rule, .. } = attempt;
        let (from, to, reason, remote_share) = (*from, *to, *reason, *remote_share);
        let decided = || Decided { from, to, reason, why: decided.to_string(), remote_share, rule: rule.clone() };
        Some(match self.clone() {
            Self::HeldBack { rail, why } => Event::HeldBack { from, to, rail, why },
            Self::Refused { reason, why } => Event::Refused { from, to, reason, why },
            Self::Dropped { reason, why } => Event::Refused { from, to, reason: reason.to_owned(), why },
            Self::Gone => Event::Gone,
            Self::Applied => Event::Moved(decided()),
            Self::Started => Event::CopyStarted(decided()),
            Self::Progress(p) => Event::CopyProgress { bytes: p.bytes, done: p.done, failed: p.failed() },
            Self::Ended { progress: Progress { bytes, done, left, .. }, seconds, why } => {
                Event::CopyEnded { from, to, bytes, done, left, seconds: Some(seconds), why }
            }
            // Each thread that is put back has an entry of its own.
            Self::Queued | Self::NotWritten { .. } | Self::Unpaid { .. } | Self::Harmful { .. } => return None,
        })
    }

    fn log(&self, attempt: &Attempt) {
        let Attempt { mv: Move { from, to, reason, why, .. }, about: About { tid, pid, comm, .. }, .. } = attempt;
        match self {
            Self::HeldBack { rail, why } => tracing::debug!(tid, ?rail, %why, "held back"),
            Self::Refused { reason, why } => tracing::debug!(tid, reason, %why, "refused"),
            Self::Gone => tracing::debug!(tid, "ended before it was moved"),
            Self::Applied | Self::Started => tracing::info!(tid, pid, %comm, %from, %to, ?reason, %why, "moved"),
            Self::Ended { progress, why, .. } => {
                let (bytes, done, failed) = (progress.bytes, progress.done, progress.failed());
                tracing::info!(pid, %comm, %from, %to, bytes, done, failed, ?why, "copied");
            }
            Self::Queued
            | Self::NotWritten { .. }
            | Self::Dropped { .. }
            | Self::Progress(_)
            | Self::Unpaid { .. }
            | Self::Harmful { .. } => {}
        }
    }
}

/// What the policy is told of a move.
pub(crate) fn outcome(mv: &Move, result: OutcomeState) -> Outcome {
    Outcome { subject: mv.subject, from: mv.from, to: mv.to, result }
}

/// The word that a unit variant has in JSON.
pub fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

impl<P: Plane> Engine<P> {
    /// Tells everything that keeps account of moves what became of this one.
    pub(crate) fn publish(&mut self, attempt: &Attempt, event: MoveEvent) {
        use MoveEvent::*;
        let Attempt { mv, about, .. } = attempt;
        let (subject, to) = (&mv.subject, mv.to);
        // Parts of a file go one way and other parts the other: that is no going back and forth.
        let from = if mv.ranges.is_empty() { mv.from } else { to };
        event.log(attempt);
        self.tally.count(subject, &event);
        let made = matches!(event, Applied | Started);
        let over = matches!(event, Refused { .. } | Gone | Ended { .. });

        // What may be moved again, and when: the rails, the settled load, threads to bind again.
        let mut left_alone = None;
        match &event {
            HeldBack { rail: Rail::DryRun, .. } => _ = self.rails.made(subject, from, to),
            HeldBack { rail, .. } => {
                if attempt.passed {
                    self.rails.give_back();
                }
                if attempt.passed || matches!(rail, Rail::Rate | Rail::Backoff | Rail::Full | Rail::BytesPerDay) {
                    self.settled.owe(*subject);
                }
            }
            Refused { .. } => {
                self.rails.refused(subject);
                self.settled.owe(*subject);
            }
            NotWritten { .. } => {
                self.rails.give_back();
                self.settled.owe(*subject);
            }
            Gone => self.rails.gone(subject),
            Applied | Started => {
                left_alone = self.rails.made(subject, from, to);
                match mv.is_of_parts() {
                    true => self.settled.parts_made(subject),
                    false => self.settled.made(*subject),
                }
            }
            Unpaid { .. } => self.rails.did_not_pay(subject),
            Queued | Dropped { .. } | Progress(_) | Ended { .. } | Harmful { .. } => {}
        }
        self.grown.judged(mv, &event);

        // What is to be undone: the state file, the threads that are ours, the data that stays.
        if made || over {
            self.close(attempt, made);
        }
        for undo in attempt.undo.iter().flatten().filter(|_| made) {
            let about = match undo.subject == *subject {
                true => about.clone(),
                false => About::new(&undo.subject, undo.pid, &about.comm),
            };
            self.owned.put(undo.clone(), about);
        }
        let copied = if let Ended { progress, .. } = &event { progress.copied() > 0 } else { event == Applied };
        if copied {
            self.data_stays(subject);
        }

        // What it brings: the audit, and the watch over its plan.
        if let Applied | Ended { .. } = event {
            self.audit.moved(*subject, about.clone(), attempt.remote_share);
        }
        if made {
            self.rollback.made(attempt);
        }
        if (made || copied) && !attempt.back {
            self.guarded.push(mv.clone());
        }
        if let Some(job) = attempt.job.filter(|_| over) {
            self.rollback.copied(job);
        }

        // What is said of it: the journal, the report of the window, the policy.
        let news = match &event {
            // Once, and moves that wait for the rate are counted in a note.
            HeldBack { rail, .. } => {
                self.waiting.insert(*subject, (*rail, to));
                *rail != Rail::Rate && self.waited.get(subject) != Some(&(*rail, to))
            }
            _ => true,
        };
        if let Some(entry) = event.entry(attempt).filter(|_| news) {
            self.write(Some(about.clone()), entry);
        }
        if let Some(text) = left_alone {
            self.notes.push(format!("{subject} ({}) {text}", about.comm));
            self.write(Some(about.clone()), Event::Note { text });
        }
        if attempt.back
            && let Refused { why, .. } | Dropped { why, .. } = &event
        {
            self.say(format!("{subject} stays on node {}, where it did not pay: {why}", mv.from));
        }
        match attempt.place {
            Some(place) => self.judged.push((place, event)),
            None => self.outcomes.extend(event.outcome(mv)),
        }
    }

    /// Tells the state file whether a prepared move was made (after the next look for those that
    /// inherited an earlier value) and, unless it copies now, that it is over.
    pub(crate) fn close(&mut self, attempt: &Attempt, made: bool) {
        let Some(undo) = &attempt.undo else { return };
        match made {
            true => self.forgets.extend(undo.iter().map(Record::made)),
            false => self.records.extend(undo.iter().map(Record::not_made)),
        }
        if attempt.copies() && !(made && attempt.job.is_some()) {
            self.records.push(Record::JobOver { subject: attempt.mv.subject, from: attempt.mv.from });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use placement::{Plan, Policy, Reason, Snapshot};
    use topology::{NodeId, Topology};

    use topology::ThreadId;

    use super::*;
    use crate::journal::read;
    use crate::{JobState, Masks, Settings, Started, StateDir, Subject, Undone, Write};

    /// A machine without threads.
    struct Nowhere(Topology);

    impl Plane for Nowhere {
        fn topology(&self) -> &Topology {
            &self.0
        }
        fn observe(&mut self, _: Duration) -> Result<Snapshot, PlaneError> {
            Ok(Snapshot::default())
        }
        fn prepare(&mut self, _: &Move) -> Result<Vec<Undo>, PlaneError> {
            Ok(Vec::new())
        }
        fn start(&mut self, _: &Move, _: &[Undo], _: &mut Write<'_>) -> Result<Started, PlaneError> {
            Ok(Started::done())
        }
        fn undo(&mut self, _: &Undo) -> Result<Undone, PlaneError> {
            Ok(Undone::Restored)
        }
    }

    struct Idle;

    impl Policy for Idle {
        fn name(&self) -> &'static str {
            "idle"
        }
        fn decide(&mut self, _: &Topology, _: &Snapshot) -> Plan {
            Plan::default()
        }
    }

    const JOB: JobId = JobId(7);

    fn thread() -> Attempt {
        let subject = Subject::Thread(ThreadId::new(5, 1));
        let masks = Masks { before: "0-3".parse().unwrap(), ours: "0-1".parse().unwrap(), unbound: true };
        let undo = Undo { subject, pid: 5, masks: Some(masks), payload: None };
        let (reason, why) = (Reason::ReadLocality, "x".into());
        let mv = Move { subject, pid: 5, from: NodeId(1), to: NodeId(0), reason, why, ranges: Vec::new() };
        Attempt { undo: Some(vec![undo]), ..Attempt::new(mv.clone(), About::new(&mv.subject, 5, "fio")) }
    }

    /// A file's move; `job`: it copies already.
    fn file(job: Option<JobId>) -> Attempt {
        let subject = Subject::File(placement::testing::file(9));
        let about = About::new(&subject, 0, "");
        let mv = Move { subject, pid: 0, reason: Reason::OverloadedHome, ..thread().mv };
        Attempt { undo: Some(Vec::new()), job, ..Attempt::new(mv, about) }
    }

    /// What each listener has after one event: the rail that holds the next move back; entries of
    /// the settled load, threads to bind again; records for the state file, threads that are ours,
    /// moves of data; watched moves, moves and copies of the rollback; lines of the journal,
    /// outcomes for the policy.
    type Heard = (Option<Rail>, [usize; 2], [usize; 3], (usize, [usize; 2]), [usize; 2]);

    fn published(attempt: &Attempt, event: MoveEvent) -> (tempfile::TempDir, Engine<Nowhere>) {
        let tmp = tempfile::tempdir().unwrap();
        let moves = crate::settings::Moves { rollback: 1, ..Default::default() };
        let settings = Settings { burst: 1, moves_per_s: 0.001, moves, ..Settings::default() };
        let state = StateDir::open(tmp.path()).unwrap();
        let mut engine = Engine::new(Nowhere(Topology::default()), Box::new(Idle), settings, Some(state)).unwrap();
        let mv = &attempt.mv;
        engine.rails.begin(1.0);
        engine.rails.check(&mv.subject, mv.from, mv.to).unwrap();
        attempt.job.into_iter().filter(|_| event != MoveEvent::Started).for_each(|job| engine.rollback.wait_for(job));
        engine.grown.due.insert(5, NodeId(0));
        engine.publish(attempt, event);
        (tmp, engine)
    }

    fn heard(attempt: &Attempt, event: MoveEvent) -> Heard {
        let (mv, (tmp, mut engine)) = (&attempt.mv, published(attempt, event));
        engine.rails.begin(2.0);
        let rail = engine.rails.check(&mv.subject, mv.from, mv.to).err().map(|held_back| held_back.rail);
        engine.disk.as_mut().unwrap().journal.flush().unwrap();
        let lines = read(tmp.path()).unwrap().len() - 1; // without `started`
        let data = engine.data_moved.0 + engine.data_moved.1;
        let said = engine.outcomes.len() + engine.judged.len();
        (
            rail,
            [engine.settled.retained(), engine.grown.due.len()],
            [engine.records.len() + engine.forgets.len(), engine.owned.len(), data],
            (engine.audit.watched(), engine.rollback.heard()),
            [lines, said],
        )
    }

    #[test]
    fn each_listener_hears_each_event_once() {
        let why = || "why".to_owned();
        let (reason, passed) = ("eperm".to_owned(), Attempt { passed: true, undo: None, ..thread() });
        let considered = Attempt { passed: false, ..passed.clone() };
        let held = |rail| MoveEvent::HeldBack { rail, why: why() };
        let refused = |reason: &str| MoveEvent::Refused { reason: reason.to_owned(), why: why() };
        let (left, state) = (BTreeMap::new(), JobState::Running);
        let progress =
            |there| Progress { job: JOB, bytes: 9, done: 9, there, left: left.clone(), state: state.clone() };
        let ended = |there| MoveEvent::Ended { progress: progress(there), seconds: 1.0, why: None };
        let dropped = MoveEvent::Dropped { reason: "replaced", why: why() };
        let unpaid = MoveEvent::Unpaid { why: why(), stays: false };
        let copies = &file(Some(JOB));
        use Rail::{Backoff, Dwell, LeftAlone, Rate};
        let cases: [(&Attempt, MoveEvent, Heard); 18] = [
            // Only what would be made, were it not for a limit, is owed to it when the load has
            // settled.
            (&considered, held(Rail::Settled), (Some(Rate), [0, 1], [0, 0, 0], (0, [0, 0]), [1, 1])),
            (&considered, held(Rail::Rate), (Some(Rate), [1, 1], [0, 0, 0], (0, [0, 0]), [0, 1])),
            (&considered, held(Rail::BytesPerDay), (Some(Rate), [1, 1], [0, 0, 0], (0, [0, 0]), [1, 1])),
            // It has a token, and gives it back.
            (&passed, held(Rail::Dwell), (None, [1, 1], [0, 0, 0], (0, [0, 0]), [1, 1])),
            // Was neither owed nor in the journal when it found the queue full.
            (&passed, held(Rail::Full), (None, [1, 1], [0, 0, 0], (0, [0, 0]), [1, 1])),
            (&passed, held(Rail::DryRun), (Some(Dwell), [0, 1], [0, 0, 0], (0, [0, 0]), [1, 1])),
            (&passed, refused(&reason), (Some(Backoff), [1, 0], [0, 0, 0], (0, [0, 0]), [1, 1])),
            (&passed, MoveEvent::NotWritten { why: why() }, (None, [1, 0], [0, 0, 0], (0, [0, 0]), [0, 1])),
            (&thread(), MoveEvent::Gone, (None, [0, 0], [1, 0, 0], (0, [0, 0]), [1, 1])),
            (&thread(), MoveEvent::Applied, (Some(Dwell), [1, 0], [1, 1, 0], (1, [1, 0]), [1, 1])),
            (&file(None), MoveEvent::Queued, (Some(Rate), [0, 1], [0, 0, 0], (0, [0, 0]), [0, 0])),
            (&file(None), dropped, (Some(Rate), [0, 1], [0, 0, 0], (0, [0, 0]), [1, 1])),
            (copies, MoveEvent::Started, (Some(Dwell), [2, 1], [0, 0, 0], (0, [1, 1]), [1, 0])),
            (copies, MoveEvent::Progress(progress(0)), (Some(Rate), [0, 1], [0, 0, 0], (0, [0, 1]), [1, 0])),
            (copies, ended(0), (Some(Rate), [0, 1], [1, 0, 1], (1, [0, 0]), [1, 1])),
            (copies, refused(&reason), (Some(Backoff), [1, 1], [1, 0, 0], (0, [0, 0]), [1, 1])),
            (&thread(), unpaid, (Some(LeftAlone), [0, 1], [0, 0, 0], (0, [0, 0]), [0, 1])),
            (&thread(), MoveEvent::Harmful { why: why() }, (Some(Rate), [0, 1], [0, 0, 0], (0, [0, 0]), [0, 1])),
        ];
        for (attempt, event, expected) in cases {
            assert_eq!(heard(attempt, event.clone()), expected, "{event:?}");
        }
        // Bytes in place before are no data that was moved.
        assert_eq!(heard(copies, ended(9)).2, [1, 0, 0]);
    }

    #[test]
    fn the_policy_hears_the_word_of_the_rail() {
        let event = MoveEvent::HeldBack { rail: Rail::BytesPerDay, why: "x".into() };
        let result = event.outcome(&thread().mv).map(|outcome| outcome.result);
        assert_eq!(result, Some(OutcomeState::HeldBack { rail: "bytes_per_day".into(), why: "x".into() }));
    }

    #[test]
    fn the_guardrail_watches_what_was_made_and_is_not_taken_back() {
        let guarded = |attempt: &Attempt, event| published(attempt, event).1.guarded.len();
        assert_eq!(guarded(&thread(), MoveEvent::Applied), 1);
        assert_eq!(guarded(&Attempt { back: true, ..thread() }, MoveEvent::Applied), 0);
        assert_eq!(guarded(&thread(), MoveEvent::Queued), 0);
    }

    #[test]
    fn threads_of_a_moved_process_are_known_by_their_own_ids() {
        let subject = Subject::Process(topology::ProcessId::new(5, None));
        let (mv, about) = (Move { subject, ..thread().mv }, About::new(&subject, 5, "fio"));
        let (_tmp, engine) = published(&Attempt { mv, about, ..thread() }, MoveEvent::Applied);
        let known: Vec<_> = engine.owned.in_order().into_iter().filter_map(|(_, about)| about).collect();
        assert_eq!(known, [thread().about]);
    }
}
