//! The loop itself.

use std::time::{Duration, SystemTime};

use placement::{Move, Policy, Snapshot};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{NodeId, ThreadId};

use crate::attempt::MoveEvent;
use crate::audit::Audit;
use crate::carry::held_again;
use crate::grown::Grown;
use crate::guardrail::Guardrail;
use crate::jobs::{Jobs, Spent};
use crate::journal::{About, Counts, Entry, Event, Journal, unix_s};
use crate::owned::{self, OwnedTable};
use crate::rails::budget::{self, BudgetWatch};
use crate::rails::settled::Settled;
use crate::rails::{Rail, Rails};
use crate::restore::{Restored, recover_owned, store, undo_all};
use crate::rollback::Rollback;
use crate::state::file::StateFile;
use crate::state::records::{Owned, Record};
use crate::{
    Cost, EngineError, Finished, Inherited, Outcome, Plane, PlaneError, Settings, StateDir, Subject, Tally, Undo,
    Undone, WindowReport,
};

/// What a look for threads that inherited a value of ours came to.
struct Looked {
    restored: usize,
    /// Threads that keep the value, and have records now.
    kept: usize,
    /// No other one is left: what could not be put back is found by the values that others had.
    all: bool,
}

/// Most records that wait to be forgotten while looks fail.
const FORGETS: usize = 100_000;

/// Least number of records checked in each window for threads that have ended.
const ENDED_CHECKS: usize = 64;

pub(crate) struct Disk {
    dir: StateDir,
    pub(crate) file: StateFile,
    pub(crate) journal: Journal,
}

/// Drives a plane: one [`step`](Self::step) a window, then [`finish`](Self::finish). An engine that
/// is dropped without finishing (a panic) undoes its moves all the same.
pub struct Engine<P: Plane> {
    pub(crate) plane: P,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) settings: Settings,
    pub(crate) rails: Rails,
    pub(crate) settled: Settled,
    pub(crate) audit: Audit,
    pub(crate) grown: Grown,
    pub(crate) rollback: Rollback,
    pub(crate) guardrail: Guardrail,
    /// Moves that were made, or were copied, in this window.
    pub(crate) guarded: Vec<Move>,
    budget: BudgetWatch,
    pub(crate) owned: OwnedTable,
    pub(crate) jobs: Jobs,
    /// Outcomes of moves since the last decision of the policy.
    pub(crate) outcomes: Vec<placement::Outcome>,
    /// What became of the moves of this window, by their places.
    pub(crate) judged: Vec<(usize, MoveEvent)>,
    /// Moves that a rail held back: in the last window, and so far in this one.
    pub(crate) waited: FxHashMap<Subject, (Rail, NodeId)>,
    pub(crate) waiting: FxHashMap<Subject, (Rail, NodeId)>,
    /// Records that are not in the state file yet.
    pub(crate) records: Vec<Record>,
    /// Records by which the state file forgets a value. A thread may have been born with it since
    /// the last look for those that inherited, so they wait until the next one.
    pub(crate) forgets: Vec<Record>,
    pub(crate) notes: Vec<String>,
    /// Records of an earlier run that could not be undone yet.
    left_over: Vec<Owned>,
    recovered: Finished,
    /// How many moves of files, and of processes, have moved data.
    pub(crate) data_moved: (usize, usize),
    pub(crate) tally: Tally,
    pub(crate) disk: Option<Disk>,
    pub(crate) now: f64,
    finished: bool,
}

impl<P: Plane> Engine<P> {
    /// An engine for this plane. First puts back what an earlier run has left in the state
    /// directory. Without a directory nothing outlives a crash (a simulation); in a dry run the
    /// directory is not touched.
    pub fn new(
        mut plane: P,
        policy: Box<dyn Policy>,
        settings: Settings,
        state: Option<StateDir>,
    ) -> Result<Self, EngineError> {
        settings.validate()?;
        if let Some(copies) = plane.copies() {
            copies.pace(settings.moves.rate);
        }
        let mut recovered = Finished::default();
        let mut left_over = Vec::new();
        let disk = match state {
            Some(dir) if !settings.dry_run => {
                (recovered, left_over) = recover_owned(&mut plane, &dir, settings.journal_bytes)?;
                let file = StateFile::create(&dir, plane.epoch().as_deref(), &left_over)?;
                let journal = Journal::open(dir.path(), settings.journal_bytes);
                Some(Disk { dir, file, journal })
            }
            _ => None,
        };
        let mut engine = Self {
            rails: Rails::new(&settings),
            settled: Settled::new(&settings.settle).busy_from(settings.busy_bytes_s),
            audit: Audit::default(),
            grown: Grown::default(),
            rollback: Rollback::new(settings.moves.rollback),
            guardrail: Guardrail::new(&settings.guardrail),
            guarded: Vec::new(),
            jobs: Jobs::default(),
            outcomes: Vec::new(),
            judged: Vec::new(),
            waited: FxHashMap::default(),
            waiting: FxHashMap::default(),
            records: Vec::new(),
            forgets: Vec::new(),
            notes: Vec::new(),
            data_moved: (0, 0),
            tally: Tally::default(),
            budget: BudgetWatch::default(),
            owned: OwnedTable::default(),
            now: 0.0,
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

    /// Goes on with what an earlier engine had copied in the last 24 hours.
    #[must_use]
    pub fn with_spent(mut self, spent: Spent) -> Self {
        self.jobs.spent = spent;
        self
    }

    /// What was copied in the last 24 hours, for [`Self::with_spent`].
    pub fn spent(&self) -> Spent {
        self.jobs.spent.clone()
    }

    pub fn plane(&self) -> &P {
        &self.plane
    }

    /// The plane, for a caller that changes its scope or settings.
    pub fn plane_mut(&mut self) -> &mut P {
        &mut self.plane
    }

    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Lets another policy decide from the next window on. What the last one wanted copied, and has
    /// not begun, is dropped, and what is being copied stops.
    pub fn decide_by(&mut self, policy: Box<dyn Policy>) {
        self.jobs.clear();
        self.stop_copies(&|_| true, "another policy decides");
        self.policy = policy;
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Moves of an earlier run that were undone at the start.
    pub fn recovered(&self) -> &Finished {
        &self.recovered
    }

    /// One window: observe, decide, let the rails judge, make the moves that are left. Errors are
    /// faults of the plane; after one the caller should [`finish`](Self::finish).
    pub fn step(&mut self) -> Result<WindowReport, EngineError> {
        let mut snapshot = self.plane.observe(Duration::from_secs_f64(self.settings.window_s))?;
        self.advance(&snapshot);
        self.notes.clear();
        self.follow_copies();
        for (about, event) in self.audit.window(&snapshot) {
            self.write(Some(about), event);
        }
        let inherited = self.put_back_inherited(&snapshot);
        // After a failed look, the record of an ended thread may be all that leads to its children.
        if inherited.as_ref().is_some_and(|looked| looked.all) || self.forgets.len() > FORGETS {
            self.forget();
        }
        if let Some(looked) = &inherited {
            self.forget_ended(looked.kept);
        }
        self.put_back_disallowed();
        let unpaid = self.rollback.window(&snapshot);
        self.take_back(unpaid);
        self.guard(&snapshot);
        self.add_outcomes(&mut snapshot);
        let plan = self.policy.decide(self.plane.topology(), &snapshot);
        self.rails.begin(self.now);
        self.settled.window(&snapshot, self.now);
        let bound = self.bound();
        let mut moves = plan.moves.clone();
        moves.extend(placement::at_home::to_bind(&plan, &snapshot, &bound));
        self.grown.window(self.plane.topology(), self.owned.undos());
        moves.extend(self.grown.moves(&snapshot, &moves, &bound));
        let planned = plan.moves.len();
        let carried_out = self.carry_out(&moves, planned, &snapshot);
        let cost = self.plane.thrift().and_then(|thrift| thrift.cost());
        if let Some(cost) = cost {
            self.keep_budget(cost);
        }
        self.tidy();
        let outcomes = moves.into_iter().zip(carried_out?).map(|(mv, result)| Outcome { mv, result });
        let outcomes: Vec<Outcome> = outcomes.collect();
        self.outcomes.extend(outcomes.iter().take(planned).filter_map(|outcome| outcome.result.outcome(&outcome.mv)));
        self.rollback.begin(&snapshot);
        for mv in std::mem::take(&mut self.guarded) {
            self.guardrail.made(&mv, &snapshot);
        }
        Ok(WindowReport {
            remote_share: snapshot.remote_share(),
            jobs: self.jobs.report(),
            queued: self.jobs.queue().len(),
            stuck: self.plane.copies().map_or(0, |copies| copies.stuck()),
            owned_threads: self.owned.len(),
            snapshot,
            plan,
            outcomes,
            inherited_restored: inherited.map_or(0, |looked| looked.restored),
            notes: std::mem::take(&mut self.notes),
            cost,
        })
    }

    /// Puts everything back: affinities are restored, copies are stopped, and what they have copied
    /// stays. Afterwards the engine makes no more moves of its own; a second call does nothing.
    pub fn finish(&mut self) -> Finished {
        self.finish_until(&|| true)
    }

    /// The same. Then data goes back to where it was, if the plane remembers that: at the rate that
    /// all copies may take, and until `stop` says so.
    pub fn finish_until(&mut self, stop: &dyn Fn() -> bool) -> Finished {
        if std::mem::replace(&mut self.finished, true) {
            return Finished::default();
        }
        self.jobs.clear();
        self.stop_copies(&|_| true, "homenode ends");
        let mut owned: Vec<_> = std::mem::take(&mut self.left_over).into_iter().map(|h| (h, None)).collect();
        owned.extend(std::mem::take(&mut self.owned).in_order());
        let Restored { mut finished, failed, events } = undo_all(&mut self.plane, owned, "on exit");
        for (about, event) in events {
            self.write(Some(about), event);
        }
        self.wait_for_copies(&mut finished);
        let epoch = self.plane.epoch();
        // After a crash from here on, only data is out of place, and no record leads it back.
        let stored = self.disk.as_mut().map(|disk| store(&disk.dir, epoch.as_deref(), &failed));
        match self.moves_back() && !stop() {
            true => self.move_back(stop, &mut finished),
            false => self.say_what_stays(&mut finished),
        }
        let counts = Counts::from(&finished);
        let Counts { restored, changed_by_others, gone, failed: not_restored } = counts;
        tracing::info!(restored, changed_by_others, gone, failed = not_restored, "finished");
        self.write(None, Event::Stopped(counts));
        let written = self.disk.as_mut().map(|disk| disk.journal.flush());
        for error in [written, stored].into_iter().flatten().filter_map(Result::err) {
            tracing::error!("{error}");
            finished.note(error.to_string());
        }
        finished
    }

    /// Ids of threads and processes that are bound by us.
    fn bound(&self) -> FxHashSet<u32> {
        self.owned.undos().iter().filter_map(|undo| owned::id(&undo.subject)).collect()
    }

    /// Sets the time to the end of the window. If the plane's clock stands still or goes back, time
    /// advances by the length of the window.
    fn advance(&mut self, snapshot: &Snapshot) {
        let forward = snapshot.time_s.is_finite() && snapshot.time_s > self.now;
        self.now = if forward { snapshot.time_s } else { self.now + snapshot.window_s.max(0.0) };
    }

    /// Restores the affinity of threads started by moved ones: the policy has not decided on them.
    /// It may move them later for what they read themselves. Threads of a process that was moved as
    /// a whole get records instead. `None`: it is not known which there are.
    fn put_back_inherited(&mut self, snapshot: &Snapshot) -> Option<Looked> {
        let (mut restored, mut kept, mut all) = (0, Vec::new(), true);
        let inherited = match self.plane.inherited(self.owned.undos()) {
            Ok(inherited) => inherited,
            Err(error) => {
                self.say(format!("threads that inherited our affinity cannot be found in this window: {error}"));
                return None;
            }
        };
        for Inherited { undo: thread, keeps } in inherited {
            if keeps {
                kept.push(thread);
                continue;
            }
            match self.plane.undo(&thread) {
                Ok(Undone::Restored) => restored += 1,
                Ok(_) | Err(PlaneError::Gone { .. }) => {}
                Err(error) => {
                    all = false;
                    self.say(format!("cannot restore the inherited affinity of {}: {error}", thread.subject));
                }
            }
        }
        if restored > 0 {
            tracing::debug!(restored, "restored inherited affinities");
            let text = format!("restored the inherited affinity of {restored} threads");
            self.write(None, Event::Note { text });
        }
        let added = kept.len();
        if added > 0 {
            self.keep(kept, snapshot);
        }
        Some(Looked { restored, kept: added, all })
    }

    /// Adds records of threads that already have a value of ours. If homenode crashes before this,
    /// they are found as descendants.
    fn keep(&mut self, kept: Vec<Undo>, snapshot: &Snapshot) {
        let names: FxHashMap<u32, &str> = snapshot.threads.iter().map(|t| (t.tid, t.comm.as_str())).collect();
        let text =
            format!("{} threads that moved processes have started keep their affinity until the end", kept.len());
        tracing::debug!("{text}");
        self.write(None, Event::Note { text });
        for undo in kept {
            let name = |id: u32| names.get(&id).copied();
            let comm = match undo.subject {
                Subject::Thread(ThreadId { tid, .. }) => name(tid).or_else(|| name(undo.pid)).unwrap_or_default(),
                _ => "",
            };
            let about = About::new(&undo.subject, undo.pid, comm);
            let records = [Record::hold(comm, &undo), Record::made(&undo)];
            held_again(&mut self.forgets, &records);
            self.records.extend(records);
            self.owned.put(undo, about);
        }
        self.append();
    }

    /// Looks whether some of the owned threads have ended: at least twice as many as were `added`,
    /// so that records of ended threads do not pile up.
    fn forget_ended(&mut self, added: usize) {
        let pace = (self.settings.moves_per_s * self.settings.window_s).ceil() as usize;
        for undo in self.owned.some(pace.max(ENDED_CHECKS).max(2 * added)) {
            if self.plane.ended(&undo) {
                self.owned.remove(&undo.subject);
                self.settled.ended(&undo.subject);
                self.forgets.push(Record::Done { subject: undo.subject });
            }
        }
        self.append();
    }

    /// Removes from the state file the values whose heirs are all known, and rewrites the file if
    /// most of it is history.
    fn forget(&mut self) {
        self.records.append(&mut self.forgets);
        self.append();
        let epoch = self.plane.epoch();
        let Some(disk) = self.disk.as_mut().filter(|disk| disk.file.worth_rewriting()) else { return };
        let live = self.owned.in_order().into_iter().map(|h| h.0);
        let owned: Vec<Owned> = self.left_over.iter().cloned().chain(live).collect();
        let jobs: Vec<_> = self.jobs.running.values().map(|running| running.attempt.job()).collect();
        if let Err(error) = disk.file.rewrite(epoch.as_deref(), &owned, &jobs) {
            tracing::warn!("{error}");
            self.notes.push(error.to_string());
        }
    }

    fn keep_budget(&mut self, cost: Cost) {
        let said = match self.budget.window(cost, &self.settings.budget) {
            Some(budget::Verdict::TooMuchCpu(over)) => match self.plane.thrift().and_then(|thrift| thrift.shed()) {
                Some(less) => {
                    self.guardrail.forget();
                    Some(format!("{over}: {less}"))
                }
                None => Some(format!("{over}: there is nothing left to save")),
            },
            Some(budget::Verdict::TooMuchMemory(over)) => Some(over),
            Some(budget::Verdict::Calm) => {
                let more = self.plane.thrift().and_then(|thrift| thrift.relax());
                more.inspect(|_| self.guardrail.forget())
            }
            None => None,
        };
        if let Some(text) = said {
            self.say(text);
        }
    }

    /// End of a window: the journal reaches the file.
    fn tidy(&mut self) {
        if let Some(Err(error)) = self.disk.as_mut().map(|disk| disk.journal.flush()) {
            tracing::warn!("{error}");
            self.notes.push(error.to_string());
        }
    }

    /// Appends the records that need not be on disk at once.
    pub(crate) fn append(&mut self) {
        let records = std::mem::take(&mut self.records);
        if let Some(Err(error)) = self.disk.as_mut().map(|d| d.file.append(&records, false)) {
            tracing::warn!("{error}");
            self.notes.push(error.to_string());
        }
    }

    /// Adds an entry to the journal, which is written at the end of the window.
    pub(crate) fn write(&mut self, thread: Option<About>, event: Event) {
        let time = unix_s(SystemTime::now());
        if let Some(disk) = &mut self.disk {
            disk.journal.add(&Entry { time, thread, event });
        }
    }

    pub(crate) fn say(&mut self, text: String) {
        tracing::warn!("{text}");
        self.write(None, Event::Note { text: text.clone() });
        self.notes.push(text);
    }
}

impl<P: Plane> Drop for Engine<P> {
    fn drop(&mut self) {
        self.finish();
    }
}
