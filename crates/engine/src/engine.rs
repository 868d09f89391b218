//! The loop itself.

use std::time::{Duration, SystemTime};

use placement::{Move, Policy, Snapshot, Thread};
use rustc_hash::FxHashMap;
use topology::NodeId;

use crate::audit::{self, Audit};
use crate::held::HeldTable;
use crate::journal::{About, Entry, Event, Journal, unix_s};
use crate::rails::budget::{self, BudgetWatch};
use crate::rails::settled::Settled;
use crate::rails::{self, HeldBack, Rail, Rails};
use crate::restore::{Restored, recover_held, store, undo_all};
use crate::state::file::StateFile;
use crate::state::records::{Held, Record};
use crate::{
    Cost, EngineError, Finished, Outcome, Plane, PlaneError, Settings, StateDir, Subject, Undo, Undone, Verdict,
    WindowReport,
};

/// Least number of records checked in each window for threads that have ended.
const ENDED_CHECKS: usize = 64;

/// The open state directory.
struct Disk {
    dir: StateDir,
    file: StateFile,
    journal: Journal,
}

/// Drives a plane: one [`step`](Self::step) a window, then [`finish`](Self::finish). An engine that is dropped without
/// finishing (a panic) undoes its moves all the same.
pub struct Engine<P: Plane> {
    plane: P,
    policy: Box<dyn Policy>,
    settings: Settings,
    rails: Rails,
    settled: Settled,
    audit: Audit,
    budget: BudgetWatch,
    held: HeldTable,
    /// Records of an earlier run that could not be undone yet.
    left_over: Vec<Held>,
    recovered: Finished,
    disk: Option<Disk>,
    clock: Box<dyn Fn() -> SystemTime + Send>,
    now: f64,
    /// Moves held back in the last window: written to the journal once, not every window.
    waiting: FxHashMap<Subject, (Rail, NodeId)>,
    finished: bool,
}

/// A move whose undo record is still to be written.
struct Ready<'a> {
    index: usize,
    mv: &'a Move,
    from: NodeId,
    to: NodeId,
    undo: Undo,
    subject: Subject,
    about: About,
    remote_share: Option<f64>,
}

impl<P: Plane> Engine<P> {
    /// An engine for this plane. First puts back what an earlier run has left in the state directory. Without a directory
    /// nothing outlives a crash (a simulation); in a dry run the directory is not touched.
    pub fn new(
        mut plane: P,
        policy: Box<dyn Policy>,
        settings: Settings,
        state: Option<StateDir>,
    ) -> Result<Self, EngineError> {
        settings.validate()?;
        let mut recovered = Finished::default();
        let mut left_over = Vec::new();
        let disk = match state {
            Some(dir) if !settings.dry_run => {
                (recovered, left_over) = recover_held(&mut plane, &dir, settings.journal_bytes)?;
                let file = StateFile::create(&dir, plane.epoch().as_deref(), &left_over)?;
                let journal = Journal::open(dir.path(), settings.journal_bytes);
                Some(Disk { dir, file, journal })
            }
            _ => None,
        };
        let mut engine = Self {
            rails: Rails::new(&settings),
            settled: Settled::new(&settings.settle),
            audit: Audit::default(),
            budget: BudgetWatch::default(),
            held: HeldTable::default(),
            clock: Box::new(SystemTime::now),
            now: 0.0,
            waiting: FxHashMap::default(),
            finished: false,
            plane,
            policy,
            settings,
            left_over,
            recovered,
            disk,
        };
        let (daemon, policy) = (std::process::id(), engine.policy.name().to_owned());
        engine.write(None, Event::Started { daemon, policy });
        Ok(engine)
    }

    /// Takes wall-clock times for the journal from here, for tests and replays.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> SystemTime + Send + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// The plane.
    pub fn plane(&self) -> &P {
        &self.plane
    }

    /// The plane, for a caller that changes its scope or settings.
    pub fn plane_mut(&mut self) -> &mut P {
        &mut self.plane
    }

    /// The policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// What was undone at the start for an earlier run.
    pub fn recovered(&self) -> &Finished {
        &self.recovered
    }

    /// One window: observe, decide, let the rails judge, make the moves that are left. Errors are faults of the plane;
    /// after one the caller should [`finish`](Self::finish).
    pub fn step(&mut self) -> Result<WindowReport, EngineError> {
        let snapshot = self.plane.observe(Duration::from_secs_f64(self.settings.window_s))?;
        self.advance(&snapshot);
        let mut notes = Vec::new();
        for (about, event) in self.audit.window(&snapshot) {
            self.write(Some(about), event);
        }
        let inherited_restored = self.put_back_inherited(&mut notes);
        // After a failed look, the record of an ended thread may be all that leads to its children.
        if inherited_restored.is_some() {
            self.forget_ended(&mut notes);
        }
        let plan = self.policy.decide(self.plane.topology(), &snapshot);
        self.rails.begin(self.now);
        self.settled.window(&snapshot, self.now);
        let bound = self.held.undos().iter().map(|undo| undo.key().0).collect();
        let mut moves = plan.moves.clone();
        moves.extend(placement::at_home::to_bind(&plan, &snapshot, &bound));
        let carried_out = self.carry_out(&moves, plan.moves.len(), &snapshot, &mut notes);
        let cost = self.plane.cost();
        if let Some(cost) = cost {
            self.keep_budget(cost, &mut notes);
        }
        self.tidy(&mut notes);
        let verdicts = carried_out?;
        let outcomes = moves.into_iter().zip(verdicts).map(|(mv, result)| Outcome { mv, result }).collect();
        Ok(WindowReport {
            remote_share: snapshot.remote_share(),
            held_threads: self.held.len(),
            snapshot,
            plan,
            outcomes,
            inherited_restored: inherited_restored.unwrap_or(0),
            notes,
            cost,
        })
    }

    /// Puts everything back. Afterwards the engine makes no more moves of its own; a second call does nothing.
    pub fn finish(&mut self) -> Finished {
        if std::mem::replace(&mut self.finished, true) {
            return Finished::default();
        }
        let mut held: Vec<_> = std::mem::take(&mut self.left_over).into_iter().map(|h| (h, None)).collect();
        held.extend(std::mem::take(&mut self.held).in_order());
        let Restored { mut finished, failed, events } = undo_all(&mut self.plane, held, "on exit");
        for (about, event) in events {
            self.write(Some(about), event);
        }
        let Finished { restored, changed_by_others, gone, failed: failures, .. } = finished;
        tracing::info!(restored, changed_by_others, gone, failed = failures, "finished");
        self.write(None, Event::Stopped { restored, changed_by_others, gone, failed: failures });
        let epoch = self.plane.epoch();
        if let Some(disk) = &mut self.disk {
            let written = disk.journal.flush();
            let stored = store(&disk.dir, epoch.as_deref(), &failed);
            for error in [written, stored].into_iter().filter_map(Result::err) {
                tracing::error!("{error}");
                finished.note(error.to_string());
            }
        }
        finished
    }

    /// The time of a window's end. A plane whose clock stands still or goes back is taken to have spent the window.
    fn advance(&mut self, snapshot: &Snapshot) {
        let forward = snapshot.time_s.is_finite() && snapshot.time_s > self.now;
        self.now = if forward { snapshot.time_s } else { self.now + snapshot.window_s.max(0.0) };
    }

    /// Restores the affinity of threads started by moved ones: the policy has not decided on them. It may move them later for
    /// what they read themselves.
    fn put_back_inherited(&mut self, notes: &mut Vec<String>) -> Option<usize> {
        let mut restored = 0;
        let heirs = match self.plane.inherited(self.held.undos()) {
            Ok(heirs) => heirs,
            Err(error) => {
                self.say(notes, format!("threads that inherited our affinity cannot be found in this window: {error}"));
                return None;
            }
        };
        for heir in heirs {
            match self.plane.undo(&heir) {
                Ok(Undone::Restored) => restored += 1,
                Ok(_) | Err(PlaneError::Gone { .. }) => {}
                Err(error) => {
                    self.say(
                        notes,
                        format!("cannot restore the inherited affinity of thread {}: {error}", heir.key().0),
                    );
                }
            }
        }
        if restored > 0 {
            tracing::debug!(restored, "restored inherited affinities");
            let text = format!("restored the inherited affinity of {restored} threads");
            self.write(None, Event::Note { text });
        }
        Some(restored)
    }

    /// Looks at some of the held threads, so that records of ended ones do not pile up.
    fn forget_ended(&mut self, notes: &mut Vec<String>) {
        let pace = (self.settings.moves_per_s * self.settings.window_s).ceil() as usize;
        let mut done = Vec::new();
        for undo in self.held.some(pace.max(ENDED_CHECKS)) {
            if self.plane.ended(&undo) {
                let (tid, start) = undo.key();
                if let Some(about) = self.held.remove((tid, start)) {
                    self.settled.ended(&Subject::Thread { tid: about.tid, start: about.start_ns.unwrap_or(0) });
                }
                done.push(Record::Done { tid, start });
            }
        }
        self.append(&done, notes);
    }

    /// Judges and makes moves: first `planned` ones of the policy, then our own of threads that are bound where they are. One
    /// verdict per move.
    fn carry_out(
        &mut self,
        moves: &[Move],
        planned: usize,
        snapshot: &Snapshot,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Verdict>, PlaneError> {
        let threads: FxHashMap<u32, &Thread> = match moves.is_empty() {
            true => FxHashMap::default(),
            false => snapshot.threads.iter().map(|t| (t.tid, t)).collect(),
        };
        let mut verdicts = Vec::with_capacity(moves.len());
        let mut ready = Vec::new();
        let mut waiting = FxHashMap::default();
        let mut over_rate = 0;
        for (index, mv) in moves.iter().enumerate() {
            let thread = match mv {
                Move::Thread { tid, .. } => threads.get(tid).copied(),
                _ => None,
            };
            let subject = Subject::of(mv, thread);
            let (from, to, about) = about(mv, thread);
            let fits = if index < planned { rails::fits(self.plane.topology(), thread, mv) } else { Ok(()) };
            // Files, too: half of a plan can be worse than none of it.
            let period_s = match mv {
                Move::File { .. } => self.policy.data_period_s(),
                _ => self.policy.period_s(),
            };
            let settled = || self.settled.check(&subject, to, period_s);
            let judged = fits.and_then(|()| settled()).and_then(|()| self.rails.check(&subject, from, to));
            if let Err(HeldBack { rail, why }) = judged {
                tracing::debug!(tid = about.tid, ?rail, %why, "held back");
                if matches!(rail, Rail::Rate | Rail::Backoff | Rail::Full) {
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
            // The verdict of a move that is ready is set when it has been made.
            verdicts.push(match self.plane.prepare(mv) {
                Ok(_) if self.settings.dry_run => {
                    self.rails.made(&subject, from, to);
                    Verdict::HeldBack { rail: Rail::DryRun, why: "dry run: nothing is changed".into() }
                }
                Ok(undo) => {
                    let undo = self.first(undo);
                    let remote_share = audit::remote_share(&subject, snapshot);
                    ready.push(Ready { index, mv, from, to, undo, subject, about, remote_share });
                    Verdict::Gone
                }
                Err(error) => self.not_made(error, subject, from, to, about)?,
            });
        }
        self.waiting = waiting;
        if over_rate > 0 {
            let rate = self.settings.moves_per_s;
            self.say(notes, format!("{over_rate} moves wait: more than {rate} moves per second"));
        }
        self.make(ready, &mut verdicts, notes)?;
        Ok(verdicts)
    }

    /// Writes down what undoes these moves, then makes them.
    fn make(
        &mut self,
        ready: Vec<Ready<'_>>,
        verdicts: &mut [Verdict],
        notes: &mut Vec<String>,
    ) -> Result<(), PlaneError> {
        let hold = |r: &Ready<'_>| Record::Hold { comm: r.about.comm.clone(), undo: r.undo.clone() };
        let holds: Vec<Record> = ready.iter().filter(|r| r.undo.masks().is_some()).map(hold).collect();
        if let Some(Err(error)) = self.disk.as_mut().map(|d| d.file.append(&holds, true)) {
            let why = format!("not moved, because its undo record cannot be written: {error}");
            for r in ready {
                self.rails.not_tried();
                self.settled.owe(r.subject);
                verdicts[r.index] = Verdict::Refused { reason: "state_not_written".into(), why: why.clone() };
            }
            tracing::error!("{error}");
            notes.push(why);
            return Ok(());
        }
        let mut settled = Vec::with_capacity(ready.len());
        let mut broken = Ok(());
        for r in ready {
            let (tid, start) = r.undo.key();
            let written = r.undo.masks().is_some();
            match self.plane.apply(r.mv, &r.undo) {
                Ok(()) => {
                    settled.extend(written.then_some(Record::Made { tid, start }));
                    verdicts[r.index] = Verdict::Applied;
                    self.settled.made(r.subject.clone());
                    self.made(r, notes);
                }
                Err(error) => {
                    settled.extend(written.then_some(Record::NotMade { tid, start }));
                    match self.not_made(error, r.subject, r.from, r.to, r.about) {
                        Ok(verdict) => verdicts[r.index] = verdict,
                        Err(error) => {
                            broken = Err(error);
                            break;
                        }
                    }
                }
            }
        }
        self.append(&settled, notes);
        broken
    }

    fn made(&mut self, r: Ready<'_>, notes: &mut Vec<String>) {
        let Ready { mv, from, to, undo, subject, about, remote_share, .. } = r;
        let (reason, why) = because(mv);
        tracing::info!(tid = about.tid, pid = about.pid, comm = %about.comm, %from, %to, ?reason, %why, "moved");
        let event = Event::Moved { from, to, reason, why: why.to_string(), remote_share };
        self.write(Some(about.clone()), event);
        if let Some(text) = self.rails.made(&subject, from, to) {
            notes.push(format!("thread {} ({}) {text}", about.tid, about.comm));
            self.write(Some(about.clone()), Event::Note { text });
        }
        self.audit.moved(subject, about.clone(), remote_share);
        if undo.masks().is_some() {
            self.held.put(undo, about);
        }
    }

    /// What a plane's refusal comes to. A broken plane stays an error.
    fn not_made(
        &mut self,
        error: PlaneError,
        subject: Subject,
        from: NodeId,
        to: NodeId,
        about: About,
    ) -> Result<Verdict, PlaneError> {
        match error {
            PlaneError::Gone { .. } => {
                self.rails.gone(&subject);
                tracing::debug!(tid = about.tid, "ended before it was moved");
                self.write(Some(about), Event::Gone);
                Ok(Verdict::Gone)
            }
            PlaneError::Refused { reason, why } => {
                self.rails.refused(&subject);
                self.settled.owe(subject);
                tracing::debug!(tid = about.tid, reason, %why, "refused");
                let reason = reason.to_owned();
                self.write(Some(about), Event::Refused { from, to, reason: reason.clone(), why: why.clone() });
                Ok(Verdict::Refused { reason, why })
            }
            broken => Err(broken),
        }
    }

    /// The undo of a second move leads back to the affinity before the first, not to our own value.
    fn first(&self, undo: Undo) -> Undo {
        let Some(held) = self.held.get(undo.key()) else { return undo };
        match (held.masks(), undo.masks()) {
            (Some((_, ours)), Some((before, _))) if before == ours => undo.back_to(held),
            _ => undo,
        }
    }

    fn keep_budget(&mut self, cost: Cost, notes: &mut Vec<String>) {
        let said = match self.budget.window(cost, &self.settings.budget) {
            Some(budget::Verdict::TooMuchCpu(over)) => match self.plane.shed() {
                Some(less) => Some(format!("{over}: {less}")),
                None => Some(format!("{over}: there is nothing left to save")),
            },
            Some(budget::Verdict::TooMuchMemory(over)) => Some(over),
            Some(budget::Verdict::Calm) => self.plane.relax(),
            None => None,
        };
        if let Some(text) = said {
            self.say(notes, text);
        }
    }

    /// End of a window: the journal reaches the file, and a state file that is mostly history is rewritten.
    fn tidy(&mut self, notes: &mut Vec<String>) {
        let epoch = self.plane.epoch();
        let Some(disk) = &mut self.disk else { return };
        let mut results = vec![disk.journal.flush()];
        if disk.file.worth_rewriting() {
            let live = self.held.in_order().into_iter().map(|h| h.0);
            let held: Vec<Held> = self.left_over.iter().cloned().chain(live).collect();
            results.push(disk.file.rewrite(epoch.as_deref(), &held));
        }
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!("{error}");
            notes.push(error.to_string());
        }
    }

    /// Appends records that need not be on disk at once.
    fn append(&mut self, records: &[Record], notes: &mut Vec<String>) {
        if let Some(Err(error)) = self.disk.as_mut().map(|d| d.file.append(records, false)) {
            tracing::warn!("{error}");
            notes.push(error.to_string());
        }
    }

    /// Adds an entry to the journal, which is written at the end of the window.
    fn write(&mut self, thread: Option<About>, event: Event) {
        let time = unix_s((self.clock)());
        if let Some(disk) = &mut self.disk {
            disk.journal.add(&Entry { time, thread, event });
        }
    }

    fn say(&mut self, notes: &mut Vec<String>, text: String) {
        tracing::warn!("{text}");
        self.write(None, Event::Note { text: text.clone() });
        notes.push(text);
    }
}

impl<P: Plane> Drop for Engine<P> {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A move's nodes, and its subject as the journal names it.
fn about(mv: &Move, thread: Option<&Thread>) -> (NodeId, NodeId, About) {
    let comm = thread.map(|t| t.comm.clone()).unwrap_or_default();
    match mv {
        Move::Thread { tid, pid, start_ns, from, to, .. } => {
            let start_ns = start_ns.or(thread.and_then(|t| t.start_ns));
            (*from, *to, About { tid: *tid, pid: *pid, comm, start_ns })
        }
        Move::Process { pid, from, to, .. } => (*from, *to, About { tid: *pid, pid: *pid, comm, start_ns: None }),
        Move::File { file, from, to, .. } => (*from, *to, About { tid: 0, pid: 0, comm: file.clone(), start_ns: None }),
    }
}

fn because(mv: &Move) -> (placement::Reason, &placement::Why) {
    let (Move::Thread { reason, why, .. } | Move::Process { reason, why, .. } | Move::File { reason, why, .. }) = mv;
    (*reason, why)
}
