//! Several policies at once: each decides on the processes of its rules alone.
//!
//! **Problem.** Rules allow one policy for a database and another one for a batch job, and nothing
//! for all others, whose load still counts.
//!
//! **Approach.** Each part of [`ByRule`] is a policy with its rules. It gets the window as it was,
//! but threads of other rules are pinned, files that they touch are not movable, and their
//! processes are left out. So it judges nodes by all that they carry, and plans moves of its own
//! only. Outcomes go to the part that asked for the move.
//!
//! **Limits.** Parts do not know each other's plans of the same window: two of them may send
//! threads to one node at once, and see that in the next window. Bytes that a part has copied are
//! forgotten at a restart.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use topology::{FileId, Topology};

use crate::{ObservedFile, OutcomeState, Plan, Policy, Snapshot, Subject, Thread, Traits};

/// Seconds of a day, over which a budget of bytes is spread.
const DAY_S: f64 = 86_400.0;
/// Subjects whose part is remembered before those of an hour ago are forgotten.
const REMEMBERED: usize = 65_536;
const HOUR_S: f64 = 3600.0;

/// A policy, and what it decides on.
pub struct Part {
    /// Names of its rules; `None`: processes that no rule matches.
    pub rules: Vec<Option<Arc<str>>>,
    /// What decides.
    pub policy: Box<dyn Policy>,
    /// Bytes that its moves may copy in 24 hours; infinite: no limit but that of all moves.
    pub bytes_per_day: f64,
}

/// A part, and what it has left.
struct Running {
    part: Part,
    /// Bytes that it may still copy.
    left: f64,
    /// Files that only its own threads touched when they were last seen.
    own: FxHashSet<FileId>,
}

/// Policies by rule.
pub struct ByRule {
    parts: Vec<Running>,
    /// Which part asked for a move of this subject, and when.
    asked: FxHashMap<Subject, (usize, f64)>,
    time_s: Option<f64>,
}

impl ByRule {
    /// Of no parts: a policy that moves nothing.
    pub fn new(parts: Vec<Part>) -> Self {
        let running = |part: Part| Running { left: part.bytes_per_day, part, own: FxHashSet::default() };
        Self { parts: parts.into_iter().map(running).collect(), asked: FxHashMap::default(), time_s: None }
    }

    /// Adds what copies have taken since the last window, and what time has given back.
    fn account(&mut self, snapshot: &Snapshot) {
        let passed_s = self.time_s.map_or(0.0, |before| (snapshot.time_s - before).max(0.0));
        self.time_s = Some(snapshot.time_s);
        for running in self.parts.iter_mut().filter(|running| running.part.bytes_per_day.is_finite()) {
            let day = running.part.bytes_per_day;
            running.left = (running.left + day * passed_s / DAY_S).min(day);
        }
        for outcome in &snapshot.outcomes {
            let bytes = match outcome.result {
                OutcomeState::Done { bytes, .. } | OutcomeState::Failed { bytes, .. } => bytes,
                _ => 0,
            };
            let part = self.asked.get(&outcome.subject).map(|(part, _)| *part);
            if let Some(running) = part.and_then(|part| self.parts.get_mut(part)) {
                running.left -= bytes as f64;
            }
        }
        if self.asked.len() > REMEMBERED {
            self.asked.retain(|_, (_, since)| snapshot.time_s - *since < HOUR_S);
        }
    }

    /// The window as one part sees it.
    fn seen_by(&self, at: usize, snapshot: &Snapshot) -> Snapshot {
        let mut seen = snapshot.clone();
        seen.outcomes.retain(|outcome| self.asked.get(&outcome.subject).is_some_and(|(part, _)| *part == at));
        let Some(running) = self.parts.get(at) else { return seen };
        let mut others = FxHashSet::default();
        let mut processes = FxHashSet::default();
        for thread in &mut seen.threads {
            if running.part.decides(thread) {
                processes.insert(thread.pid);
                continue;
            }
            others.insert(thread.tid);
            thread.pinned.get_or_insert_with(|| "another rule applies to it".to_owned());
        }
        seen.processes.retain(|process| processes.contains(&process.pid));
        for file in seen.files.iter_mut().filter(|file| is_of(file, &others)) {
            file.movable = Some(false);
            file.pinned.get_or_insert_with(|| "services of other rules use it".to_owned());
        }
        seen.idle.retain(|idle| running.own.contains(&idle.file));
        seen
    }
}

fn is_of(file: &ObservedFile, threads: &FxHashSet<u32>) -> bool {
    file.readers.iter().any(|reader| threads.contains(reader))
}

impl Part {
    /// Whether its policy decides on a thread.
    fn decides(&self, thread: &Thread) -> bool {
        !thread.only_observed && self.rules.contains(&thread.rule)
    }
}

impl Policy for ByRule {
    fn name(&self) -> &'static str {
        match self.parts.as_slice() {
            [only] => only.part.policy.name(),
            _ => "rules",
        }
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        self.account(snapshot);
        let mut plan = Plan::new(self.name());
        let threads: FxHashMap<u32, &Thread> = snapshot.threads.iter().map(|thread| (thread.tid, thread)).collect();
        for at in 0..self.parts.len() {
            let seen = self.seen_by(at, snapshot);
            let Some(Running { part, left, own }) = self.parts.get_mut(at) else { continue };
            let touched = seen.files.iter().map(|file| file.file);
            let others = seen.files.iter().filter(|file| file.movable == Some(false)).map(|file| file.file);
            let others: FxHashSet<FileId> = others.collect();
            let mut now: FxHashSet<FileId> = touched.filter(|file| !others.contains(file)).collect();
            now.extend(seen.idle.iter().map(|idle| idle.file));
            *own = now;
            let mut decided = part.policy.decide(topology, &seen);
            let before = decided.moves.len();
            decided.moves.retain(|mv| *left > 0.0 || matches!(mv.subject, Subject::Thread(_)));
            if decided.moves.len() < before {
                let rules: Vec<&str> = part.rules.iter().flatten().map(|rule| &**rule).collect();
                plan.notes.push(format!("rule {}: its bytes_per_day are spent", rules.join(", ")));
            }
            // Of threads that nobody decides on, the first part says why they stay.
            let tells = |tid: u32| threads.get(&tid).is_none_or(|thread| {
                part.decides(thread) || at == 0 && thread.only_observed
            });
            plan.declined.extend(decided.declined.into_iter().filter(|declined| tells(declined.tid)));
            plan.keeps.extend(decided.keeps.into_iter().filter(|tid| {
                threads.get(tid).is_some_and(|thread| part.decides(thread))
            }));
            plan.predicted = decided.predicted.filter(|_| at == 0);
            decided.notes.retain(|note| !plan.notes.contains(note));
            plan.notes.extend(decided.notes);
            for mv in decided.moves {
                self.asked.insert(mv.subject, (at, snapshot.time_s));
                plan.moves.push(mv);
            }
        }
        if self.parts.len() > 1 {
            plan.predicted = None;
        }
        plan
    }

    fn period_s(&self) -> f64 {
        self.parts.iter().map(|running| running.part.policy.period_s()).fold(0.0, f64::max)
    }

    fn data_period_s(&self) -> f64 {
        self.parts.iter().map(|running| running.part.policy.data_period_s()).fold(0.0, f64::max)
    }

    fn traits(&self) -> Traits {
        let all = self.parts.iter().map(|running| running.part.policy.traits());
        all.fold(Traits::default(), Traits::union)
    }

    fn trouble(&self) -> Option<&str> {
        self.parts.iter().find_map(|running| running.part.policy.trouble())
    }
}
