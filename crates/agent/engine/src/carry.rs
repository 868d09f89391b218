//! Judges moves by the rails, writes down what undoes them, and makes them.

use placement::{Move, Snapshot, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::NodeId;

use crate::audit;
use crate::engine::Engine;
use crate::jobs::{JobId, Queued, Running};
use crate::journal::{About, Event};
use crate::rails::{self, HeldBack, Rail};
use crate::state::records::{Job, Record};
use crate::{Plane, PlaneError, Subject, Undo, Verdict};

/// A move whose undo record is still to be written.
pub(crate) struct Ready {
    /// Its place among the moves of this window; none: it comes from the queue.
    index: Option<usize>,
    mv: Move,
    undo: Vec<Undo>,
    about: About,
    remote_share: Option<f64>,
    /// Whether its effect is to be tried; if not, it takes back one that did not pay.
    tried: bool,
}

/// The moves of one window that were made, and the copies that they began.
#[derive(Default)]
pub(crate) struct Made {
    pub moves: Vec<Move>,
    pub jobs: Vec<JobId>,
}

/// Why a move is held back that shares a thread with an earlier one.
const TWICE: &str = "another move of this window has it already";

impl Ready {
    /// The process that is moved, and each thread that is bound. A file has no record, and its
    /// parts on several nodes move at once.
    fn claims(&self) -> impl Iterator<Item = &Subject> {
        let itself = Some(&self.mv.subject).filter(|subject| !subject.is_file());
        itself.into_iter().chain(self.undo.iter().map(|undo| &undo.subject))
    }
}

impl<P: Plane> Engine<P> {
    /// Makes what waited longest, then judges and makes moves: first `planned` ones of the policy,
    /// then our own of threads that are bound where they are. One verdict per move.
    pub(crate) fn carry_out(
        &mut self,
        moves: &[Move],
        planned: usize,
        snapshot: &Snapshot,
        notes: &mut Vec<String>,
    ) -> Result<(Vec<Verdict>, Made), PlaneError> {
        let threads: FxHashMap<u32, &Thread> = match moves.is_empty() {
            true => FxHashMap::default(),
            false => snapshot.threads.iter().map(|t| (t.tid, t)).collect(),
        };
        let mut verdicts = Vec::with_capacity(moves.len());
        let mut ready = self.next_in_queue()?;
        // A thread is in one move of a window: two records of it could not be told apart after a
        // crash.
        let mut claimed: FxHashSet<Subject> = ready.iter().flat_map(Ready::claims).cloned().collect();
        let mut waiting = FxHashMap::default();
        let mut over_rate = 0;
        for (index, mv) in moves.iter().enumerate() {
            let thread = mv.tid().and_then(|tid| threads.get(&tid).copied());
            let Move { subject, from, to, .. } = mv.clone();
            let about = about(mv, snapshot, thread);
            let fits = if index < planned { rails::fits(self.plane.topology(), thread, mv) } else { Ok(()) };
            // Files, too: half of a plan can be worse than none of it.
            let period_s = if subject.is_file() { self.policy.data_period_s() } else { self.policy.period_s() };
            let settled = || self.settled.check(&subject, to, period_s);
            let judged = fits.and_then(|()| self.free(&subject, (from, to), &claimed));
            let judged = judged.and_then(|()| settled()).and_then(|()| self.endurance(mv, snapshot));
            // One that was asked for again keeps its place, and one that takes the place of another
            // has its token.
            let waits = self.jobs.waits(mv).map(|queued| (queued.mv.from, queued.mv.to) == (from, to));
            let judged = judged.and_then(|()| match waits {
                Some(true) => Ok(()),
                Some(false) => self.rails.check_again(&subject, from, to),
                None => self.rails.check(&subject, from, to),
            });
            match judged {
                Ok(()) => {}
                Err(HeldBack { rail, why }) => {
                    tracing::debug!(tid = about.tid, ?rail, %why, "held back");
                    if matches!(rail, Rail::Rate | Rail::Backoff | Rail::Full | Rail::BytesPerDay) {
                        self.settled.owe(subject.clone());
                    }
                    if rail == Rail::Rate {
                        over_rate += 1;
                    } else if self.waiting.get(&subject) != Some(&(rail, to)) {
                        self.write(Some(about), Event::HeldBack { from, to, rail, why: why.clone() });
                    }
                    waiting.insert(subject, (rail, to));
                    verdicts.push(Verdict::HeldBack { rail, why });
                    continue;
                }
            }
            if waits == Some(true) {
                verdicts.push(Verdict::Queued);
                continue;
            }
            let remote_share = audit::remote_share(&subject, snapshot);
            let later = waits.is_some() || self.slots(&ready) == 0 || self.copying(&subject, &ready);
            if !self.settings.dry_run && copies(mv) && later {
                let (mv, since_s) = (mv.clone(), self.now);
                verdicts.push(self.enqueue(Queued { mv, about, remote_share, since_s, back: false }));
                continue;
            }
            // The verdict of a move that is ready is set when it has been made.
            verdicts.push(match self.plane.prepare(mv) {
                Ok(_) if self.settings.dry_run => {
                    self.rails.made(&subject, from, to);
                    Verdict::HeldBack { rail: Rail::DryRun, why: "dry run: nothing is changed".into() }
                }
                Ok(undo) if undo.iter().any(|undo| claimed.contains(&undo.subject)) => {
                    self.rails.not_tried();
                    self.settled.owe(subject);
                    Verdict::HeldBack { rail: Rail::Dwell, why: TWICE.into() }
                }
                Ok(undo) => {
                    let undo = self.first(undo);
                    let (index, mv) = (Some(index), mv.clone());
                    let one = Ready { index, mv, undo, about, remote_share, tried: true };
                    claimed.extend(one.claims().cloned());
                    ready.push(one);
                    Verdict::Gone
                }
                Err(error) => self.not_made(error, &subject, (from, to), about)?,
            });
        }
        self.waiting = waiting;
        if over_rate > 0 {
            let rate = self.settings.moves_per_s;
            self.say(notes, format!("{over_rate} moves wait: more than {rate} moves per second"));
        }
        let made = self.make(ready, &mut verdicts, notes)?;
        Ok((verdicts, made))
    }

    /// Holds back a move of something that another move of this window has, or that is still being
    /// copied.
    fn free(
        &self,
        subject: &Subject,
        (from, to): (NodeId, NodeId),
        claimed: &FxHashSet<Subject>,
    ) -> Result<(), HeldBack> {
        let held = |why: &str| Err(HeldBack { rail: Rail::Dwell, why: why.into() });
        let is_file = subject.is_file();
        match self.jobs.copies(subject) {
            _ if claimed.contains(subject) => held(TWICE),
            _ if self.jobs.goes_back(subject) => held("it waits to be moved back"),
            Some((_, now)) if now != to => held("it is still being copied to another node"),
            Some((now, _)) if now == from || !is_file => held("it is being copied there already"),
            _ => Ok(()),
        }
    }

    /// Whether a copy of this subject runs, or is about to begin.
    fn copying(&self, subject: &Subject, ready: &[Ready]) -> bool {
        self.jobs.copies(subject).is_some() || ready.iter().any(|r| copies(&r.mv) && r.mv.subject == *subject)
    }

    /// Lets a move wait until others have been copied, in the place of those that it excludes.
    fn enqueue(&mut self, queued: Queued) -> Verdict {
        let replaced = match self.jobs.enqueue(queued) {
            Ok(replaced) => replaced,
            Err(_) => {
                self.rails.not_tried();
                return Verdict::HeldBack { rail: Rail::Full, why: "too many moves wait already".into() };
            }
        };
        for queued in replaced {
            self.dropped(queued, "replaced", "a later move took its place".into());
        }
        Verdict::Queued
    }

    /// A move that waited will not be made.
    fn dropped(&mut self, Queued { mv, about, .. }: Queued, reason: &str, why: String) {
        let Move { subject, from, to, .. } = mv;
        self.ended(subject, from, to, placement::OutcomeState::Failed { bytes: 0, why: why.clone() });
        self.write(Some(about), Event::Refused { from, to, reason: reason.into(), why });
    }

    /// How many more copies may begin.
    fn slots(&self, ready: &[Ready]) -> usize {
        let begin = ready.iter().filter(|r| copies(&r.mv)).count();
        (self.settings.moves.at_once as usize).saturating_sub(self.jobs.running.len() + begin)
    }

    /// The moves that waited longest, as many as may begin now, and of each subject only one. One
    /// that has waited for as long as a settled load is trusted is dropped, because what it was
    /// decided from is out of date.
    fn next_in_queue(&mut self) -> Result<Vec<Ready>, PlaneError> {
        let mut ready = Vec::new();
        if self.jobs.spent.day(self.now) as f64 >= self.settings.moves.bytes_per_day {
            return Ok(ready);
        }
        while self.slots(&ready) > 0
            && let Some(at) = self.jobs.queue().iter().position(|queued| !self.copying(&queued.mv.subject, &ready))
            && let Some(queued) = self.jobs.take(at)
        {
            let waited_s = self.now - queued.since_s;
            if waited_s > self.settings.settle.again_s {
                self.dropped(queued, "out_of_date", format!("waited {waited_s:.0} s for other copies: out of date"));
                continue;
            }
            let Queued { mv, about, remote_share, back, .. } = queued;
            match self.plane.prepare(&mv) {
                Ok(undo) => {
                    let undo = self.first(undo);
                    let (index, tried) = (None, !back);
                    ready.push(Ready { index, mv, undo, about, remote_share, tried });
                }
                Err(error) => {
                    let verdict = self.not_made(error, &mv.subject, (mv.from, mv.to), about)?;
                    self.told_later(mv.subject, mv.from, mv.to, &verdict);
                }
            }
        }
        Ok(ready)
    }

    /// Writes down what undoes these moves, then makes them.
    fn make(
        &mut self,
        ready: Vec<Ready>,
        verdicts: &mut [Verdict],
        notes: &mut Vec<String>,
    ) -> Result<Made, PlaneError> {
        let mut records: Vec<Record> = Vec::new();
        for r in &ready {
            let hold = |undo: &Undo| Record::Hold { comm: r.about.comm.clone(), undo: undo.clone() };
            records.extend(r.undo.iter().map(hold));
            if copies(&r.mv) {
                let (comm, mv) = (r.about.comm.clone(), r.mv.clone());
                records.push(Record::Job(Job { comm, subject: mv.subject, from: mv.from, to: mv.to }));
            }
        }
        // What was copied is not undone, so its record may be lost.
        let sync = ready.iter().any(|r| !r.undo.is_empty());
        if let Some(Err(error)) = self.disk.as_mut().map(|d| d.file.append(&records, sync)) {
            let why = format!("not moved, because its undo record cannot be written: {error}");
            for r in ready {
                self.rails.not_tried();
                let verdict = Verdict::Refused { reason: "state_not_written".into(), why: why.clone() };
                self.settle_verdict(&r, verdict, verdicts);
                self.settled.owe(r.mv.subject);
            }
            tracing::error!("{error}");
            notes.push(why);
            return Ok(Made::default());
        }
        let mut settled = Vec::with_capacity(records.len());
        let mut made = Made::default();
        let mut broken = Ok(());
        for mut r in ready {
            let mut more = Vec::new();
            let mut write = |undos: &[Undo]| {
                let hold = |undo: &Undo| Record::Hold { comm: r.about.comm.clone(), undo: undo.clone() };
                let holds: Vec<Record> = undos.iter().map(hold).collect();
                match self.disk.as_mut().map(|d| d.file.append(&holds, true)) {
                    Some(Err(error)) => {
                        let why = format!("not moved, because its undo record cannot be written: {error}");
                        Err(PlaneError::Refused { reason: "state_not_written", why })
                    }
                    _ => {
                        more.extend_from_slice(undos);
                        Ok(())
                    }
                }
            };
            let started = match r.tried {
                true => self.plane.start(&r.mv, &r.undo, &mut write),
                false => match self.plane.copies() {
                    Some(copies) => copies.take_back(&r.mv),
                    None => Err(PlaneError::not_known(&r.mv)),
                },
            };
            r.undo.extend(more);
            let over = copies(&r.mv).then(|| Record::JobOver { subject: r.mv.subject.clone(), from: r.mv.from });
            match started {
                Ok(started) => {
                    // Of a thread that was not bound, what an earlier move did is still to be
                    // undone.
                    r.undo.retain(|undo| {
                        let bound = !started.not_bound.contains(&undo.subject);
                        settled.push(if bound { Record::made(undo) } else { Record::not_made(undo) });
                        bound
                    });
                    self.settled.made(r.mv.subject.clone());
                    made.moves.extend(r.tried.then(|| r.mv.clone()));
                    let verdict = if started.job.is_none() { Verdict::Applied } else { Verdict::Started };
                    self.settle_verdict(&r, verdict, verdicts);
                    match started.job {
                        None => settled.extend(over),
                        Some(job) => made.jobs.push(job),
                    }
                    self.made(r, started.job, notes);
                }
                Err(error) => {
                    settled.extend(r.undo.iter().map(Record::not_made));
                    settled.extend(over);
                    match self.not_made(error, &r.mv.subject, (r.mv.from, r.mv.to), r.about.clone()) {
                        Ok(verdict) => self.settle_verdict(&r, verdict, verdicts),
                        Err(error) => {
                            broken = Err(error);
                            break;
                        }
                    }
                }
            }
        }
        self.append(&settled, notes);
        broken.map(|()| made)
    }

    /// The verdict of a move of this window, or what the policy is told of one that waited.
    fn settle_verdict(&mut self, r: &Ready, verdict: Verdict, verdicts: &mut [Verdict]) {
        match r.index.and_then(|index| verdicts.get_mut(index)) {
            Some(of) => *of = verdict,
            None => self.told_later(r.mv.subject.clone(), r.mv.from, r.mv.to, &verdict),
        }
    }

    fn made(&mut self, r: Ready, job: Option<JobId>, notes: &mut Vec<String>) {
        let Ready { mv, undo, about, remote_share, .. } = r;
        let Move { subject, from, to, reason, why, .. } = mv;
        let why = why.to_string();
        tracing::info!(tid = about.tid, pid = about.pid, comm = %about.comm, %from, %to, ?reason, %why, "moved");
        let event = match job {
            None => Event::Moved { from, to, reason, why, remote_share },
            Some(_) => Event::CopyStarted { from, to, reason, why, remote_share },
        };
        self.write(Some(about.clone()), event);
        if let Some(text) = self.rails.made(&subject, from, to) {
            notes.push(format!("{subject} ({}) {text}", about.comm));
            self.write(Some(about.clone()), Event::Note { text });
        }
        for undo in undo {
            let about = match undo.subject == subject {
                true => about.clone(),
                false => About::new(&undo.subject, undo.pid, &about.comm),
            };
            self.held.put(undo, about);
        }
        match job {
            None => {
                self.data_stays(&subject);
                self.audit.moved(subject, about, remote_share);
            }
            Some(job) => {
                let (started_s, polled_s) = (self.now, self.now);
                let running = Running {
                    subject,
                    from,
                    to,
                    about,
                    remote_share,
                    started_s,
                    polled_s,
                    bytes: 0,
                    done: 0,
                    copied: 0,
                    failed: 0,
                    rate: 0.0,
                    tenths: 0,
                    stopped: None,
                };
                self.jobs.running.insert(job, running);
            }
        }
    }

    /// Turns a plane's refusal into an outcome. A broken plane stays an error.
    pub(crate) fn not_made(
        &mut self,
        error: PlaneError,
        subject: &Subject,
        (from, to): (NodeId, NodeId),
        about: About,
    ) -> Result<Verdict, PlaneError> {
        match error {
            PlaneError::Gone { .. } => {
                self.rails.gone(subject);
                tracing::debug!(tid = about.tid, "ended before it was moved");
                self.write(Some(about), Event::Gone);
                Ok(Verdict::Gone)
            }
            PlaneError::Refused { reason, why } => {
                self.rails.refused(subject);
                self.settled.owe(subject.clone());
                tracing::debug!(tid = about.tid, reason, %why, "refused");
                let reason = reason.to_owned();
                self.write(Some(about), Event::Refused { from, to, reason: reason.clone(), why: why.clone() });
                Ok(Verdict::Refused { reason, why })
            }
            broken => Err(broken),
        }
    }

    /// The undo of a second move leads back to what was before the first, not to our own value.
    fn first(&self, undo: Vec<Undo>) -> Vec<Undo> {
        let first = |undo: Undo| match self.held.get(&undo.subject) {
            Some(held) => undo.back_to(held),
            None => undo,
        };
        undo.into_iter().map(first).collect()
    }
}

/// Whether a move can take long.
fn copies(mv: &Move) -> bool {
    !mv.subject.is_thread()
}

/// The subject of a move as the journal names it.
fn about(mv: &Move, snapshot: &Snapshot, thread: Option<&Thread>) -> About {
    let name = |id: u32| snapshot.threads.iter().find(|t| t.tid == id).map_or("", |t| t.comm.as_str());
    let name = match &mv.subject {
        Subject::Thread { .. } => thread.map_or("", |t| t.comm.as_str()),
        Subject::Process { pid, .. } => name(*pid),
        Subject::File { file, .. } => {
            let path = snapshot.files.iter().find(|f| f.file == *file).and_then(|f| f.path.as_deref());
            path.unwrap_or_default()
        }
    };
    About::new(&mv.subject, mv.pid, name)
}
