//! Makes the moves of a window.
//!
//! **Problem.** Each move must pass the rails, must be undone after a crash at any point, and may
//! share the machine with copies that take hours.
//!
//! **Approach.** [`Engine::carry_out`] reads as a move goes: it is judged, waits in the queue or is
//! prepared, is written down, and is made. What becomes of it at each step is
//! [published](Engine::publish).
//!
//! **Limits.** A thread is in one move of a window, because undo after a crash could not tell which
//! of two records came first.

use std::sync::Arc;

use placement::{Move, Snapshot, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::ProcessId;

use crate::attempt::{Attempt, MoveEvent};
use crate::audit;
use crate::engine::Engine;
use crate::jobs::Queued;
use crate::journal::About;
use crate::rails::{self, HeldBack, Rail};
use crate::state::records::Record;
use crate::{EngineError, Plane, PlaneError, Started, Subject, Undo};

/// Why a move is held back that shares a thread with an earlier one.
const TWICE: &str = "another move of this window has it already";

/// The moves of a window that are about to be made.
#[derive(Default)]
struct Batch {
    attempts: Vec<Attempt>,
    /// The processes that are moved, and each thread that is bound. A file has no record, and its
    /// parts on several nodes move at once.
    claimed: FxHashSet<Subject>,
}

impl Batch {
    fn push(&mut self, attempt: Attempt) {
        let itself = Some(&attempt.mv.subject).filter(|subject| !subject.is_file());
        let bound = attempt.undo.iter().flatten().map(|undo| &undo.subject);
        self.claimed.extend(itself.into_iter().chain(bound).copied());
        self.attempts.push(attempt);
    }

    fn copies(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.copies())
    }
}

/// Most moves that a window takes from the queue, begun or dropped. Each takes a look at the whole
/// queue.
const MOST_TAKEN: u32 = 256;

impl<P: Plane> Engine<P> {
    /// Makes what waited longest, then judges and makes moves: first `planned` ones of the policy,
    /// then our own of threads that are bound where they are. Returns what became of each move.
    pub(crate) fn carry_out(
        &mut self,
        moves: &[Move],
        planned: usize,
        snapshot: &Snapshot,
    ) -> Result<Vec<MoveEvent>, PlaneError> {
        self.judged.clear();
        self.waited = std::mem::take(&mut self.waiting);
        let threads: FxHashMap<u32, &Thread> = match moves.is_empty() {
            true => FxHashMap::default(),
            false => snapshot.threads.iter().map(|t| (t.tid, t)).collect(),
        };
        let mut batch = self.next_in_queue()?;
        for (place, mv) in moves.iter().enumerate() {
            let thread = mv.tid().and_then(|tid| threads.get(&tid).copied());
            let mut attempt = Attempt::new(mv.clone(), about(mv, snapshot, thread));
            attempt.place = Some(place);
            let fits = if place < planned { rails::fits(self.plane.topology(), thread, mv) } else { Ok(()) };
            // Whether it waits already, or another move of its subject does that it replaces.
            let waits = self
                .jobs
                .waits(mv)
                .map(|queued| (queued.from, queued.to, &queued.ranges) == (mv.from, mv.to, &mv.ranges));
            if let Err(HeldBack { rail, why }) = fits.and_then(|()| self.judge(mv, waits, &batch, snapshot)) {
                self.publish(&attempt, MoveEvent::HeldBack { rail, why });
                continue;
            }
            attempt.passed = true;
            if waits == Some(true) {
                self.publish(&attempt, MoveEvent::Queued);
                continue;
            }
            attempt.rule = rule(mv, snapshot, thread);
            attempt.remote_share = audit::remote_share(&mv.subject, snapshot);
            let later = waits.is_some() || self.slots(&batch) == 0 || self.copying(&mv.subject, &batch);
            match attempt.copies() && later && !self.settings.dry_run {
                true => self.enqueue(&attempt),
                false => self.prepare(attempt, &mut batch)?,
            }
        }
        let over_rate =
            |(_, event): &&(usize, MoveEvent)| matches!(event, MoveEvent::HeldBack { rail: Rail::Rate, .. });
        let over_rate = self.judged.iter().filter(over_rate).count();
        if over_rate > 0 {
            let rate = self.settings.moves_per_s;
            self.say(format!("{over_rate} moves wait: more than {rate} moves per second"));
        }
        self.make(batch.attempts)?;
        self.judged.sort_by_key(|(place, _)| *place);
        Ok(self.judged.drain(..).map(|(_, event)| event).collect())
    }

    /// Prepares moves that waited, as many as may begin now, and of each subject only one: those of
    /// the rules with the fewest running copies, and of these the one that waited longest. A rule
    /// without any need not wait for other rules' copies to end. A move that has waited for as long
    /// as a settled load is trusted is dropped, because what it was decided from is out of date.
    fn next_in_queue(&mut self) -> Result<Batch, PlaneError> {
        let mut batch = Batch::default();
        if self.jobs.spent.day(self.now) as f64 >= self.settings.moves.bytes_per_day {
            return Ok(batch);
        }
        // Those in front waited longest. They keep no fresh ones from being looked at below.
        let late = self.now - self.settings.settle.again_s;
        while self.slots(&batch) > 0
            && self.jobs.queue().front().is_some_and(|queued| queued.since_s < late)
            && let Some(queued) = self.jobs.take(0)
        {
            self.out_of_date(&queued);
        }
        for _ in 0..MOST_TAKEN {
            let Some(queued) = self.next(&batch).and_then(|at| self.jobs.take(at)) else { break };
            if queued.since_s < late {
                self.out_of_date(&queued);
                continue;
            }
            let attempt = queued.attempt;
            if let Err(HeldBack { why, .. }) = self.guardrail.check(&attempt.mv, self.now) {
                self.publish(&attempt, MoveEvent::Dropped { reason: "guardrail", why });
                continue;
            }
            if !attempt.mv.subject.is_file() && !self.plane.allows(attempt.mv.pid) {
                let why = "no rule allows it any more".to_owned();
                self.publish(&attempt, MoveEvent::Dropped { reason: "no_rule", why });
                continue;
            }
            self.prepare(attempt, &mut batch)?;
        }
        Ok(batch)
    }

    fn out_of_date(&mut self, queued: &Queued) {
        let why = format!("waited {:.0} s for other copies: out of date", self.now - queued.since_s);
        self.publish(&queued.attempt, MoveEvent::Dropped { reason: "out_of_date", why });
    }

    /// Whether nothing speaks against making a move now.
    fn judge(&mut self, mv: &Move, waits: Option<bool>, batch: &Batch, snapshot: &Snapshot) -> Result<(), HeldBack> {
        let Move { subject, from, to, .. } = mv;
        self.free(mv, batch)?;
        self.guardrail.check(mv, self.now)?;
        // Files, too: half of a plan can be worse than none of it.
        let period_s = if subject.is_file() { self.policy.data_period_s() } else { self.policy.period_s() };
        // A policy that moves parts of files knows how long each stays, whatever the load does.
        if !mv.is_of_parts() {
            self.settled.check(subject, *to, period_s)?;
        }
        self.endurance(mv, snapshot)?;
        // One that was asked for again keeps its place, and one that takes the place of another has
        // its token.
        match waits {
            Some(true) => Ok(()),
            Some(false) => self.rails.check_again(subject, *from, *to),
            None => self.rails.check(subject, *from, *to),
        }
    }

    /// Holds back a move of something that another move of this window has, or that is still being
    /// copied.
    fn free(&self, mv: &Move, batch: &Batch) -> Result<(), HeldBack> {
        let held = |why: &str| Err(HeldBack { rail: Rail::Dwell, why: why.into() });
        let Move { subject, from, to, .. } = mv;
        match self.jobs.copies(subject) {
            _ if batch.claimed.contains(subject) => held(TWICE),
            _ if self.jobs.goes_back(subject) => held("it waits to be moved back"),
            Some(copy) if copy.to != *to => held("it is still being copied to another node"),
            Some(copy) if copy.from == *from || !subject.is_file() => held("it is being copied there already"),
            _ => Ok(()),
        }
    }

    /// Whether a copy of this subject runs, or is about to begin.
    fn copying(&self, subject: &Subject, batch: &Batch) -> bool {
        self.jobs.copies(subject).is_some() || batch.copies().any(|attempt| attempt.mv.subject == *subject)
    }

    /// The place in the queue of the move that is to begin now.
    fn next(&self, batch: &Batch) -> Option<usize> {
        let mut of_rule: FxHashMap<Option<&str>, usize> = FxHashMap::default();
        let running = self.jobs.running.values().map(|running| &running.attempt);
        running.chain(batch.copies()).for_each(|attempt| *of_rule.entry(attempt.rule.as_deref()).or_default() += 1);
        if self.slots(batch) == 0 && self.jobs.rules().all(|rule| of_rule.contains_key(&rule)) {
            return None;
        }
        let copies = |queued: &Queued| of_rule.get(&queued.attempt.rule.as_deref()).copied().unwrap_or(0);
        let may_begin = |queued: &Queued| {
            (self.slots(batch) > 0 || copies(queued) == 0) && !self.copying(&queued.attempt.mv.subject, batch)
        };
        let queue = self.jobs.queue().iter().enumerate().filter(|(_, queued)| may_begin(queued));
        queue.min_by_key(|(at, queued)| (copies(queued), *at)).map(|(at, _)| at)
    }

    /// How many more copies may begin.
    fn slots(&self, batch: &Batch) -> usize {
        (self.settings.moves.at_once as usize).saturating_sub(self.jobs.running.len() + batch.copies().count())
    }

    /// Lets a move wait until others have been copied, in the place of those that it excludes.
    fn enqueue(&mut self, attempt: &Attempt) {
        let Some(replaced) = self.jobs.enqueue(attempt.clone(), self.now) else {
            let why = "too many moves wait already".into();
            return self.publish(attempt, MoveEvent::HeldBack { rail: Rail::Full, why });
        };
        for other in replaced {
            let why = "a later move took its place".into();
            self.publish(&other, MoveEvent::Dropped { reason: "replaced", why });
        }
        self.publish(attempt, MoveEvent::Queued);
    }

    /// Asks the plane what undoes a move, and adds it to those that are about to be made.
    fn prepare(&mut self, mut attempt: Attempt, batch: &mut Batch) -> Result<(), PlaneError> {
        let event = match self.plane.prepare(&attempt.mv) {
            Ok(_) if self.settings.dry_run => {
                MoveEvent::HeldBack { rail: Rail::DryRun, why: "dry run: nothing is changed".into() }
            }
            Ok(undo) if undo.iter().any(|undo| batch.claimed.contains(&undo.subject)) => {
                MoveEvent::HeldBack { rail: Rail::Dwell, why: TWICE.into() }
            }
            Ok(undo) => {
                // The undo of a second move leads back to what was before the first, not to our own
                // value.
                let first = |undo: Undo| match self.owned.get(&undo.subject) {
                    Some(owned) => undo.back_to(owned),
                    None => undo,
                };
                attempt.undo = Some(undo.into_iter().map(first).collect());
                batch.push(attempt);
                return Ok(());
            }
            Err(error) => MoveEvent::not_made(error)?,
        };
        self.publish(&attempt, event);
        Ok(())
    }

    /// Writes down what undoes these moves, then makes them.
    fn make(&mut self, attempts: Vec<Attempt>) -> Result<(), PlaneError> {
        if let Err(error) = self.write_down(&attempts) {
            tracing::error!("{error}");
            let why = PlaneError::not_written(error).to_string();
            for mut attempt in attempts {
                attempt.undo = None;
                self.publish(&attempt, MoveEvent::NotWritten { why: why.clone() });
            }
            self.notes.push(why);
            return Ok(());
        }
        let mut result = Ok(());
        for mut attempt in attempts {
            match self.start(&mut attempt).map_err(MoveEvent::not_made) {
                Ok(()) if attempt.job.is_none() => self.publish(&attempt, MoveEvent::Applied),
                Ok(()) => {
                    self.publish(&attempt, MoveEvent::Started);
                    self.jobs.begin(attempt, self.now);
                }
                Err(Ok(event)) => self.publish(&attempt, event),
                Err(Err(broken)) => {
                    self.close(&attempt, false);
                    result = Err(broken);
                    break;
                }
            }
        }
        self.append();
        result
    }

    /// Writes down what undoes these moves, all or none.
    fn write_down(&mut self, attempts: &[Attempt]) -> Result<(), EngineError> {
        let mut records = Vec::new();
        for attempt in attempts {
            let undo = attempt.undo.iter().flatten();
            records.extend(undo.map(|undo| Record::hold(&attempt.about.comm, undo)));
            records.extend(attempt.copies().then(|| Record::Job(attempt.job())));
        }
        held_again(&mut self.forgets, &records);
        // What was copied is not undone, so its record may be lost.
        let sync = attempts.iter().any(|attempt| attempt.undo.iter().flatten().next().is_some());
        self.disk.as_mut().map_or(Ok(()), |disk| disk.file.append(&records, sync))
    }

    /// Makes a prepared move, or lets it begin to copy. What undoes it is then only of the threads
    /// that were bound.
    fn start(&mut self, attempt: &mut Attempt) -> Result<(), PlaneError> {
        let Self { plane, disk, records, forgets, .. } = self;
        let Attempt { mv, about, undo, job, back, .. } = attempt;
        let undo = undo.get_or_insert_default();
        let mut more = Vec::new();
        let mut write = |undos: &[Undo]| {
            let holds: Vec<Record> = undos.iter().map(|undo| Record::hold(&about.comm, undo)).collect();
            held_again(forgets, &holds);
            let written = disk.as_mut().map_or(Ok(()), |disk| disk.file.append(&holds, true));
            written.map_err(PlaneError::not_written)?;
            more.extend_from_slice(undos);
            Ok(())
        };
        let started = match *back {
            false => plane.start(mv, undo, &mut write),
            true => plane.copies().ok_or_else(|| PlaneError::not_known(mv)).and_then(|copies| copies.take_back(mv)),
        };
        undo.extend(more);
        let Started { job: begun, not_bound } = started?;
        *job = begun;
        // Of a thread that was not bound, what an earlier move did is still to be undone.
        let (bound, free) = std::mem::take(undo).into_iter().partition(|undo| !not_bound.contains(&undo.subject));
        *undo = bound;
        records.extend(free.iter().map(Record::not_made));
        Ok(())
    }
}

/// A thread that is moved again is not done with: its earlier values stay beside the new one.
pub(crate) fn held_again(forgets: &mut Vec<Record>, holds: &[Record]) {
    if forgets.is_empty() {
        return;
    }
    let held: FxHashSet<Subject> = holds
        .iter()
        .filter_map(|record| if let Record::Hold { undo, .. } = record { Some(undo.subject) } else { None })
        .collect();
    forgets.retain(|record| !matches!(record, Record::Done { subject } if held.contains(subject)));
}

/// The rule that applies to the subject of a move; to a file, that of a reader.
fn rule(mv: &Move, snapshot: &Snapshot, thread: Option<&Thread>) -> Option<Arc<str>> {
    let of = |is: &dyn Fn(&Thread) -> bool| snapshot.threads.iter().find(|thread| is(thread));
    let thread = match &mv.subject {
        Subject::Thread(_) => thread,
        Subject::Process(process) => of(&|thread| thread.pid == process.pid),
        Subject::File(file) => of(&|thread| thread.files.iter().any(|used| used.file == file.any_generation())),
    };
    thread?.rule.clone()
}

/// The subject of a move as the journal names it.
fn about(mv: &Move, snapshot: &Snapshot, thread: Option<&Thread>) -> About {
    let name = |id: u32| snapshot.threads.iter().find(|t| t.tid == id).map_or("", |t| t.comm.as_str());
    let name = match &mv.subject {
        Subject::Thread(_) => thread.map_or("", |t| t.comm.as_str()),
        Subject::Process(ProcessId { pid, .. }) => name(*pid),
        Subject::File(file) => {
            let path = snapshot.files.iter().find(|f| f.file == file.any_generation()).and_then(|f| f.path.as_deref());
            path.unwrap_or_default()
        }
    };
    About::new(&mv.subject, mv.pid, name)
}
