//! Follows the copies that run, tells the policy what became of its moves, and takes back plans
//! that did not pay.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use placement::{Move, OutcomeState, Snapshot, Subject};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::ProcessId;

use crate::attempt::{Attempt, MoveEvent, outcome};
use crate::engine::Engine;
use crate::guardrail::Harm;
use crate::jobs::Running;
use crate::journal::{About, Event};
use crate::plane::{JobId, JobState, Progress};
use crate::rails::{HeldBack, Rail};
use crate::rollback::Unpaid;
use crate::state::records::Record;
use crate::{Finished, Plane, PlaneError, Undo, Undone};

/// Pause between two looks at a job that sends data back: short beside its steps of 100 ms.
const POLL: Duration = Duration::from_millis(10);

/// How long homenode waits, on exit, for the copies that it has stopped. One step of a copy takes
/// tens of milliseconds; a plane that has not stopped by then is stuck in the kernel, and homenode
/// ends all the same.
const STOP_WITHIN: Duration = Duration::from_secs(2);
/// What is said of those that have not stopped by then.
const LATE: &str = "did not stop in time";

impl<P: Plane> Engine<P> {
    fn poll(&mut self) -> Vec<Progress> {
        self.plane.copies().map(|copies| copies.poll()).unwrap_or_default()
    }

    /// Whether data is sent back at the end.
    pub(crate) fn moves_back(&mut self) -> bool {
        self.plane.copies().is_some_and(|copies| copies.moves_back())
    }

    pub(crate) fn follow_copies(&mut self) {
        for progress in self.poll() {
            self.follow(progress);
        }
        self.append();
        let (day, most) = (self.jobs.spent.day(self.now), self.settings.moves.bytes_per_day);
        if day as f64 >= most && !self.jobs.running.is_empty() {
            let why = format!("{:.1} GB were copied in 24 hours, no more are allowed", day as f64 / 1e9);
            self.stop_copies(&|_| true, &why);
            self.say(why);
        }
    }

    fn follow(&mut self, progress: Progress) {
        let (job, now) = (progress.job, self.now);
        let Some(mut r) = self.jobs.running.remove(&job) else { return };
        let more = progress.copied().saturating_sub(r.copied);
        self.jobs.spent.add(now, more);
        let event = match progress.state.clone() {
            JobState::Running => {
                let seconds = now - r.polled_s;
                if seconds > 0.0 {
                    (r.rate, r.polled_s) = (more as f64 / seconds, now);
                }
                (r.bytes, r.done, r.failed) = (progress.bytes, progress.done, progress.failed());
                r.copied = r.copied.max(progress.copied());
                let tenths = r.done.saturating_add(r.failed).saturating_mul(10).checked_div(r.bytes).unwrap_or(0);
                if tenths > r.tenths {
                    r.tenths = tenths;
                    self.publish(&r.attempt, MoveEvent::Progress(progress));
                }
                self.jobs.running.insert(job, r);
                return;
            }
            // It found out before its first byte that it must not be made.
            JobState::Refused { reason, why } => MoveEvent::Refused { reason: reason.to_owned(), why },
            JobState::Gone => MoveEvent::Gone,
            JobState::Done | JobState::Failed { .. } | JobState::Cancelled => {
                let why = match &progress.state {
                    JobState::Failed { why } => Some(why.clone()),
                    JobState::Cancelled => Some(r.stopped.unwrap_or_else(|| "was stopped".into())),
                    _ => None,
                };
                MoveEvent::Ended { progress, seconds: now - r.started_s, why }
            }
        };
        self.publish(&r.attempt, event);
    }

    pub(crate) fn stop_copies(&mut self, of: &dyn Fn(&Subject) -> bool, why: &str) {
        for (job, r) in &mut self.jobs.running {
            if r.stopped.is_none() && of(&r.attempt.mv.subject) {
                r.stopped = Some(why.to_owned());
                if let Some(copies) = self.plane.copies() {
                    copies.cancel(*job);
                }
            }
        }
    }

    /// Waits for the copies that were stopped, for a bounded time, and says what became of each.
    pub(crate) fn wait_for_copies(&mut self, finished: &mut Finished) {
        let until = Instant::now() + STOP_WITHIN;
        let moves_back = self.moves_back();
        let say = |r: &Running, what: &str, stays: bool| {
            let (mb, of) = (r.done as f64 / 1e6, r.bytes as f64 / 1e6);
            let Move { subject, from, to, .. } = &r.attempt.mv;
            let what = format!("the move of {subject} from node {from} to {to} {what}");
            let stays = if stays { ", what was moved stays" } else { "" };
            format!("{what}: {mb:.1} of {of:.1} MB moved{stays}")
        };
        while !self.jobs.running.is_empty() {
            for progress in self.poll() {
                let ended = progress.state != JobState::Running;
                if let Some(r) = self.jobs.running.get_mut(&progress.job).filter(|_| ended) {
                    (r.bytes, r.done) = (progress.bytes, progress.done);
                    let what = if progress.state == JobState::Done { "had ended" } else { "was stopped" };
                    finished.copies += 1;
                    finished.note(say(r, what, !moves_back));
                }
                self.follow(progress);
            }
            if Instant::now() >= until {
                break;
            }
            if !self.jobs.running.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for r in std::mem::take(&mut self.jobs.running).values() {
            finished.copies += 1;
            if moves_back {
                // It may have moved more than it has told.
                finished.not_moved_back += r.copied.max(1);
            }
            finished.note(say(r, LATE, true));
        }
    }

    /// Sends data back, newest move first, one after the other.
    pub(crate) fn move_back(&mut self, stop: &dyn Fn() -> bool, finished: &mut Finished) {
        loop {
            if stop() {
                finished.note("stopped by a signal: what else was moved stays where it is".to_owned());
                break;
            }
            let Some((subject, started)) = self.plane.copies().and_then(|copies| copies.move_back()) else { break };
            let text = match started {
                Ok(job) => {
                    let progress = self.follow_back(job, stop);
                    let (back, mut left) = (progress.copied(), progress.failed());
                    finished.moved_back += back;
                    let why = match progress.state {
                        JobState::Refused { why, .. } | JobState::Failed { why } => Some(why),
                        JobState::Cancelled => Some("stopped".to_owned()),
                        JobState::Gone => None,
                        JobState::Done | JobState::Running => {
                            let of = progress.left.iter();
                            let parts = of.map(|(why, bytes)| format!("{:.1} MB {why}", *bytes as f64 / 1e6));
                            Some(parts.collect::<Vec<_>>().join(", ")).filter(|_| !progress.left.is_empty())
                        }
                    };
                    if why.is_some() {
                        left = left.max(progress.bytes.saturating_sub(progress.done)).max(1);
                    }
                    finished.not_moved_back += left;
                    let why = why.map(|why| format!("; not all of it: {why}")).unwrap_or_default();
                    format!("moved {:.1} MB of {subject} back to where they were{why}", back as f64 / 1e6)
                }
                Err(PlaneError::Gone { .. }) => continue,
                Err(error) => {
                    finished.not_moved_back += 1;
                    format!("{subject} is not moved back: {error}")
                }
            };
            tracing::info!("{text}");
            self.write(Some(About::new(&subject, 0, "")), Event::Note { text: text.clone() });
            finished.note(text);
        }
    }

    /// Waits for a job that sends data back; from `stop` on for a bounded time.
    fn follow_back(&mut self, job: JobId, stop: &dyn Fn() -> bool) -> Progress {
        let (state, left) = (JobState::Running, BTreeMap::new());
        let mut last = Progress { job, bytes: 0, done: 0, there: 0, left, state };
        let mut until = None;
        loop {
            if until.is_none() && stop() {
                if let Some(copies) = self.plane.copies() {
                    copies.cancel(job);
                }
                until = Some(Instant::now() + STOP_WITHIN);
            }
            if let Some(now) = self.poll().into_iter().find(|p| p.job == job) {
                last = now;
            }
            if last.state != JobState::Running {
                return last;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                last.state = JobState::Failed { why: LATE.to_owned() };
                return last;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Data of this subject was moved, and undoing does not move it back.
    pub(crate) fn data_stays(&mut self, subject: &Subject) {
        match subject {
            Subject::File(_) => self.data_moved.0 += 1,
            Subject::Process(_) => self.data_moved.1 += 1,
            Subject::Thread(_) => {}
        }
    }

    /// Tells what undoing leaves where it is.
    pub(crate) fn say_what_stays(&self, finished: &mut Finished) {
        for (n, what) in [(self.data_moved.0, "a file"), (self.data_moved.1, "a process's memory")] {
            if n > 0 {
                finished.note(format!("{} of {what}: what was moved stays where it is", count(n)));
            }
        }
    }

    /// Whether a move's bytes may still be copied today.
    pub(crate) fn endurance(&self, mv: &Move, snapshot: &Snapshot) -> Result<(), HeldBack> {
        let bytes = match &mv.subject {
            Subject::Thread(_) => return Ok(()),
            Subject::Process(ProcessId { pid, .. }) => {
                let resident = snapshot.processes.iter().find(|p| p.pid == *pid).map(|p| &p.resident);
                resident.map_or(0, |r| r.total().saturating_sub(r.get(mv.to)))
            }
            Subject::File(_) if !mv.ranges.is_empty() => mv.range_bytes(),
            Subject::File(file) => {
                let seen = snapshot.files.iter().find(|f| f.file == file.any_generation());
                seen.map_or(0, |f| f.bytes.get(mv.from))
            }
        };
        let (day, most) = (self.jobs.spent.day(self.now), self.settings.moves.bytes_per_day);
        if day as f64 + bytes as f64 <= most && (day as f64) < most {
            return Ok(());
        }
        let gb = |bytes: f64| bytes / 1e9;
        let why = format!(
            "{:.1} GB more would exceed the {:.1} GB that may be copied in 24 hours ({:.1} GB were)",
            gb(bytes as f64),
            gb(most),
            gb(day as f64)
        );
        Err(HeldBack { rail: Rail::BytesPerDay, why })
    }

    /// Adds to a snapshot what the policy must know of the engine: its pace, and what became of
    /// earlier moves. A recording that has outcomes keeps them.
    pub(crate) fn add_outcomes(&mut self, snapshot: &mut Snapshot) {
        snapshot.pace = self.settings.pace();
        let mut outcomes = std::mem::take(&mut self.outcomes);
        if !snapshot.outcomes.is_empty() {
            return;
        }
        let running = |r: &Running| outcome(&r.attempt.mv, OutcomeState::Running { bytes: r.bytes, done: r.done });
        outcomes.extend(self.jobs.running.values().map(running));
        outcomes.extend(self.jobs.queue().iter().map(|q| outcome(&q.attempt.mv, OutcomeState::Queued)));
        snapshot.outcomes = outcomes;
    }

    /// Takes back moves that did not pay: threads get their affinity back, files go back to where
    /// they were. A process's memory stays, because copying it once more would cost as much again.
    /// So do parts of files, which are only left alone.
    pub(crate) fn take_back(&mut self, unpaid: Vec<Unpaid>) {
        for Unpaid { moves, why } in unpaid {
            let parts = moves.iter().filter(|mv| mv.is_of_parts()).count();
            let back = moves.len() - parts;
            if back > 0 {
                self.say(format!("{} did not pay and {} taken back: {why}", count(back), was(back)));
            }
            if parts > 0 {
                self.say(format!("{} of parts of files did not pay, what was moved stays: {why}", count(parts)));
            }
            // The newest first.
            for mv in moves.into_iter().rev() {
                let attempt = Attempt::new(mv.clone(), About::new(&mv.subject, 0, ""));
                let mut event = MoveEvent::Unpaid { why: why.clone(), stays: mv.is_of_parts() };
                if mv.is_of_parts() {
                    // It stays.
                } else if mv.subject.is_file() {
                    let to_back = format!("moved back: {why}").into();
                    let mv = Move { from: mv.to, to: mv.from, why: to_back, ..mv };
                    let (stays, node) = (mv.subject, mv.from);
                    if self.jobs.enqueue(Attempt { mv, back: true, ..attempt.clone() }, self.now).is_none() {
                        let why = format!("{stays} stays on node {node}: too many moves wait already");
                        self.say(why.clone());
                        event = MoveEvent::Unpaid { why, stays: true };
                    }
                } else {
                    let of_it = |undo: &Undo| match mv.subject {
                        Subject::Process(ProcessId { pid, .. }) => undo.pid == pid,
                        _ => undo.subject == mv.subject,
                    };
                    self.unbind(&of_it, "because it did not pay", Some(Event::RolledBack { why: why.clone() }));
                }
                self.publish(&attempt, event);
            }
        }
        self.append();
    }

    /// Puts back services that go worse, and stops what is still being copied for them.
    pub(crate) fn guard(&mut self, snapshot: &Snapshot) {
        let mut silent: FxHashMap<u32, u32> = FxHashMap::default();
        let watched = self.guardrail.watched();
        if !watched.is_empty() {
            let seen: FxHashSet<Subject> = snapshot.threads.iter().map(Subject::thread).collect();
            let Self { owned, plane, .. } = self;
            let unseen = |undo: &&Undo| watched.contains(&undo.pid) && !seen.contains(&undo.subject);
            for undo in owned.undos().iter().filter(unseen).filter(|undo| !plane.ended(undo)) {
                *silent.entry(undo.pid).or_default() += 1;
            }
        }
        for Harm { service, moves, pids, why } in self.guardrail.window(snapshot, &silent, self.now) {
            let occasion = "because its service went worse";
            let n =
                self.unbind(&|undo| pids.contains(&undo.pid), occasion, Some(Event::Guardrail { why: why.clone() }));
            let pause_s = self.settings.guardrail.pause_s;
            self.say(format!("guardrail: {service} went worse after a move: {why}; {n} threads were put back, and it is left alone for {pause_s} s"));
            let subjects: FxHashSet<Subject> = moves.iter().map(|mv| mv.subject).collect();
            self.rollback.put_back(&subjects, &pids, snapshot);
            self.stop_copies(&|subject| subjects.contains(subject), &why);
            for mv in moves {
                let attempt = Attempt::new(mv.clone(), About::new(&mv.subject, mv.pid, ""));
                self.publish(&attempt, MoveEvent::Harmful { why: why.clone() });
            }
        }
        self.append();
    }

    /// Restores the affinities of threads that no rule allows to be bound any more: rules were read
    /// again, or a process got into another control group.
    pub(crate) fn put_back_disallowed(&mut self) {
        let Self { owned, plane, .. } = self;
        let pids = owned.undos().iter().map(|undo| undo.pid).filter(|pid| !plane.allows(*pid));
        let pids: FxHashSet<u32> = pids.collect();
        if !pids.is_empty() {
            self.unbind(&|undo| pids.contains(&undo.pid), "because no rule allows it", None);
            self.append();
        }
    }

    /// Restores the affinities of these threads. Returns of how many.
    fn unbind(&mut self, which: &dyn Fn(&Undo) -> bool, occasion: &str, event: Option<Event>) -> usize {
        let undos: Vec<Undo> = self.owned.undos().iter().filter(|undo| which(undo)).cloned().collect();
        self.plane.undoing(&undos);
        let mut restored = 0;
        for undo in undos {
            // What cannot be undone now stays in the table and is tried again on exit.
            let Ok(result) = self.plane.undo(&undo) else { continue };
            let Some(about) = self.owned.remove(&undo.subject) else { continue };
            if let Some(event) = &event {
                self.write(Some(about.clone()), event.clone());
            }
            let occasion = occasion.to_owned();
            self.write(Some(about), Event::Undone { result, affinity: undo.before(), occasion });
            match result {
                Undone::Restored => restored += 1,
                Undone::Gone => self.settled.ended(&undo.subject),
                Undone::ChangedByOthers => {}
            }
            self.forgets.push(Record::Done { subject: undo.subject });
        }
        restored
    }
}

fn count(n: usize) -> String {
    if n == 1 { "1 move".into() } else { format!("{n} moves") }
}

fn was(n: usize) -> &'static str {
    if n == 1 { "was" } else { "were" }
}
