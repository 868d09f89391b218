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
//! forgotten at a restart; at a reload they are handed on ([`Spent`]).

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use topology::{FileId, Topology};

use crate::{
    IdleFile, Move, ObservedFile, Outcome, OutcomeState, Plan, Policy, Process, Snapshot, Subject, Thread, Traits,
};

/// Hours of a day, the running one twice.
const HOURS: usize = 25;
/// Seconds for which a file stays that services of other rules have used: a service that reads now
/// and then, or by processes that end at once, is seen in few windows.
const USED_S: f64 = 60.0;
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
    /// Bytes that it has copied in each of the last hours, by hour.
    copied: [f64; HOURS],
    /// Files that only its own threads touched when they were last seen.
    own: FxHashSet<FileId>,
    /// Files that others touched, and when they did last.
    foreign: FxHashMap<FileId, f64>,
}

/// What each part has copied by now, for the policy that takes its place: without it, each reload
/// would allow the bytes of a day once more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    parts: Vec<Copied>,
    /// Moves whose outcome is to come, each with the place of its part above.
    asked: FxHashMap<Subject, (usize, f64)>,
    time_s: Option<f64>,
}

/// Rules of one part, and the bytes that it has copied in each of the last hours.
#[derive(Clone, Debug, PartialEq)]
struct Copied {
    rules: Vec<Option<Arc<str>>>,
    bytes: [f64; HOURS],
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
        let running = |part: Part| Running {
            copied: [0.0; HOURS],
            part,
            own: FxHashSet::default(),
            foreign: FxHashMap::default(),
        };
        Self { parts: parts.into_iter().map(running).collect(), asked: FxHashMap::default(), time_s: None }
    }

    /// Goes on from here. A part with rules of several earlier ones has copied what they have, and
    /// so has a rule that had no limit and shared its part with others.
    pub fn go_on(&mut self, spent: &Spent) {
        self.time_s = spent.time_s;
        for running in &mut self.parts {
            let shares = |of: &&Copied| of.rules.iter().any(|rule| running.part.rules.contains(rule));
            for of in spent.parts.iter().filter(shares) {
                running.copied.iter_mut().zip(of.bytes).for_each(|(sum, bytes)| *sum += bytes);
            }
        }
        // A reload ends copies, and how far they came is told in the next window.
        for (subject, (at, since)) in &spent.asked {
            let Some(of) = spent.parts.get(*at) else { continue };
            let heir = self.parts.iter().position(|new| of.rules.iter().any(|rule| new.part.rules.contains(rule)));
            self.asked.extend(heir.map(|heir| (*subject, (heir, *since))));
        }
    }

    /// Adds what copies have taken since the last window, and what time has given back.
    fn account(&mut self, snapshot: &Snapshot) {
        let hour = |time_s: f64| (time_s / HOUR_S) as usize;
        let now = hour(snapshot.time_s);
        let before = self.time_s.map_or(now, hour);
        self.time_s = Some(snapshot.time_s);
        for running in &mut self.parts {
            (before..now).take(HOURS).for_each(|passed| running.copied[(passed + 1) % HOURS] = 0.0);
        }
        for outcome in &snapshot.outcomes {
            let bytes = match outcome.result {
                OutcomeState::Done { bytes, .. } | OutcomeState::Failed { bytes, .. } => bytes,
                _ => 0,
            };
            let part = self.asked.get(&outcome.subject).map(|(part, _)| *part);
            if let Some(running) = part.and_then(|part| self.parts.get_mut(part)) {
                running.copied[now % HOURS] += bytes as f64;
            }
        }
        if self.asked.len() > REMEMBERED {
            self.asked.retain(|_, (_, since)| snapshot.time_s - *since < HOUR_S);
        }
    }

    /// The window as one part sees it: no copy where all of it is the part's own.
    fn seen_by<'a>(&mut self, at: usize, snapshot: &'a Snapshot) -> Cow<'a, Snapshot> {
        let Self { parts, asked, .. } = self;
        let Some(Running { part, own, foreign, .. }) = parts.get_mut(at) else { return Cow::Borrowed(snapshot) };
        let (mut others, mut processes) = (FxHashSet::default(), FxHashSet::default());
        for thread in &snapshot.threads {
            _ = if part.decides(thread) { processes.insert(thread.pid) } else { others.insert(thread.tid) };
        }
        foreign.retain(|_, since| snapshot.time_s - *since < USED_S);
        let used = snapshot.files.iter().filter(|file| file.touched_by_others || is_of(file, &others));
        foreign.extend(used.map(|file| (file.file, snapshot.time_s)));
        let told = |outcome: &Outcome| asked.get(&outcome.subject).is_some_and(|(part, _)| *part == at);
        let of_it = |process: &Process| processes.contains(&process.pid);
        let idle = |file: &IdleFile| own.contains(&file.file);
        let all = others.is_empty() && foreign.is_empty() && snapshot.outcomes.iter().all(told);
        if all && snapshot.processes.iter().all(of_it) && snapshot.idle.iter().all(idle) {
            return Cow::Borrowed(snapshot);
        }
        let mut seen = snapshot.clone();
        seen.outcomes.retain(told);
        for thread in seen.threads.iter_mut().filter(|thread| !part.decides(thread)) {
            thread.pinned.get_or_insert_with(|| "another rule applies to it".to_owned());
        }
        seen.processes.retain(of_it);
        for file in seen.files.iter_mut().filter(|file| foreign.contains_key(&file.file)) {
            file.movable = Some(false);
            file.pinned.get_or_insert_with(|| "services of other rules use it".to_owned());
        }
        seen.idle.retain(idle);
        Cow::Owned(seen)
    }
}

impl Running {
    /// Bytes that it may still copy.
    fn left(&self) -> f64 {
        self.part.bytes_per_day - self.copied.iter().sum::<f64>()
    }
}

/// The bytes that a move copies; of what the window does not show, more than any limit.
fn bytes_of(mv: &Move, seen: &Snapshot) -> u64 {
    match mv.subject {
        Subject::Thread(_) => 0,
        Subject::Process(_) => {
            let process = seen.processes.iter().find(|process| process.pid == mv.pid);
            process.map_or(u64::MAX, |process| process.resident.total().saturating_sub(process.resident.get(mv.to)))
        }
        Subject::File(_) if mv.is_of_parts() => mv.range_bytes(),
        Subject::File(file) => {
            let of = seen.files.iter().find(|of| of.file == file.any_generation());
            of.map_or(u64::MAX, |file| file.bytes.get(mv.from))
        }
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
        let alone = self.parts.len() == 1;
        for at in 0..self.parts.len() {
            let seen = self.seen_by(at, snapshot);
            let Some(running) = self.parts.get_mut(at) else { continue };
            let mut left = running.left();
            let Running { part, own, .. } = running;
            let touched = seen.files.iter().map(|file| file.file);
            let others = seen.files.iter().filter(|file| file.movable == Some(false)).map(|file| file.file);
            let others: FxHashSet<FileId> = others.collect();
            let mut now: FxHashSet<FileId> = touched.filter(|file| !others.contains(file)).collect();
            now.extend(seen.idle.iter().map(|idle| idle.file));
            *own = now;
            let mut decided = part.policy.decide(topology, &seen);
            let before = decided.moves.len();
            decided.moves.retain(|mv| {
                let bytes = bytes_of(mv, &seen) as f64;
                let fits = bytes <= left;
                left -= if fits { bytes } else { 0.0 };
                fits
            });
            if decided.moves.len() < before {
                let rules: Vec<&str> = part.rules.iter().flatten().map(|rule| &**rule).collect();
                plan.notes.push(format!("rule {}: its bytes_per_day do not allow a copy", rules.join(", ")));
            }
            // Of threads that nobody decides on, the first part says why they stay.
            let tells = |tid: u32| {
                threads.get(&tid).is_none_or(|thread| part.decides(thread) || at == 0 && thread.only_observed)
            };
            plan.declined.extend(decided.declined.into_iter().filter(|declined| tells(declined.tid)));
            plan.keeps.extend(
                decided.keeps.into_iter().filter(|tid| threads.get(tid).is_some_and(|thread| part.decides(thread))),
            );
            plan.predicted = decided.predicted.filter(|_| alone);
            decided.notes.retain(|note| !plan.notes.contains(note));
            plan.notes.extend(decided.notes);
            for mv in decided.moves {
                self.asked.insert(mv.subject, (at, snapshot.time_s));
                plan.moves.push(mv);
            }
        }
        plan
    }

    fn period_s(&self) -> f64 {
        self.parts.iter().map(|running| running.part.policy.period_s()).fold(0.0, f64::max)
    }

    fn data_period_s(&self) -> f64 {
        self.parts.iter().map(|running| running.part.policy.data_period_s()).fold(0.0, f64::max)
    }

    fn spent(&self) -> Spent {
        let copied = |running: &Running| Copied { rules: running.part.rules.clone(), bytes: running.copied };
        Spent { parts: self.parts.iter().map(copied).collect(), asked: self.asked.clone(), time_s: self.time_s }
    }

    fn traits(&self) -> Traits {
        let all = self.parts.iter().map(|running| running.part.policy.traits());
        all.fold(Traits::default(), Traits::union)
    }

    fn trouble(&self) -> Option<&str> {
        self.parts.iter().find_map(|running| running.part.policy.trouble())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{Declined, FileRange, NodeLoad, Prediction, Reason};
    use topology::{NodeId, ProcessId};

    /// Moves each thread that it may, and each file, to node 1; keeps and declines all threads;
    /// notes what it saw.
    struct All(&'static str, Arc<Mutex<Vec<Snapshot>>>);

    impl Policy for All {
        fn name(&self) -> &'static str {
            self.0
        }

        fn decide(&mut self, _: &Topology, snapshot: &Snapshot) -> Plan {
            self.1.lock().unwrap().push(snapshot.clone());
            let mut plan = Plan::new(self.0);
            let free = snapshot.threads.iter().filter(|thread| thread.pinned.is_none());
            plan.moves.extend(free.map(|thread| Move::thread(thread, NodeId(1), Reason::ReadLocality, "x")));
            let files = snapshot.files.iter().filter(|file| file.movable != Some(false));
            plan.moves.extend(files.map(|file| Move::file(file, NodeId(0), NodeId(1), "x")));
            let declined = |thread: &Thread| Declined { tid: thread.tid, reason: "x".into(), why: "x".into() };
            plan.declined = snapshot.threads.iter().map(declined).collect();
            plan.keeps = snapshot.threads.iter().map(|thread| thread.tid).collect();
            plan.predicted = Some(Prediction::default());
            plan.notes.push("seen".into());
            plan
        }

        fn period_s(&self) -> f64 {
            self.0.len() as f64
        }

        fn data_period_s(&self) -> f64 {
            10.0 * self.period_s()
        }

        fn trouble(&self) -> Option<&str> {
            (self.0 == "threads").then_some("ill")
        }

        fn traits(&self) -> Traits {
            Traits { moves_files: self.0 == "files", ..Traits::default() }
        }
    }

    fn part(name: &'static str, rule: &str, bytes_per_day: f64) -> (Part, Arc<Mutex<Vec<Snapshot>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let policy = Box::new(All(name, Arc::clone(&seen)));
        (Part { rules: vec![Some(rule.into())], policy, bytes_per_day }, seen)
    }

    fn thread(tid: u32, rule: Option<&str>) -> Thread {
        Thread { tid, pid: tid, rule: rule.map(Arc::from), ..Thread::default() }
    }

    fn file(ino: u64, readers: &[u32]) -> ObservedFile {
        let file = FileId { dev: 1, ino, generation: 0 };
        ObservedFile { file, readers: readers.to_vec(), ..ObservedFile::default() }
    }

    fn window(time_s: f64) -> Snapshot {
        let observed = Thread { only_observed: true, pinned: Some("no rule is for it".into()), ..thread(3, None) };
        Snapshot {
            time_s,
            window_s: 1.0,
            nodes: vec![NodeLoad::default()],
            threads: vec![thread(1, Some("a")), thread(2, Some("b")), observed],
            files: vec![file(11, &[1]), file(12, &[2]), file(13, &[1, 3]), file(14, &[1, 2])],
            processes: (1..=3).map(|pid| Process { pid, ..Process::default() }).collect(),
            ..Snapshot::default()
        }
    }

    fn subjects(plan: &Plan) -> Vec<Subject> {
        plan.moves.iter().map(|mv| mv.subject).collect()
    }

    #[test]
    fn each_policy_decides_on_the_services_of_its_rules_alone() {
        let ((a, saw_a), (b, saw_b)) = (part("threads", "a", f64::INFINITY), part("files", "b", f64::INFINITY));
        let mut rules = ByRule::new(vec![a, b]);
        assert_eq!((rules.name(), rules.traits().moves_files), ("rules", true));
        let snapshot = window(1.0);
        let plan = rules.decide(&Topology::default(), &snapshot);
        let of = |at: usize| Subject::thread(&snapshot.threads[at]);
        let file = |at: usize| Subject::file(&snapshot.files[at]);
        // Files that somebody else uses, too, stay.
        assert_eq!(subjects(&plan), [of(0), file(0), of(1), file(1)]);
        let saw = saw_a.lock().unwrap();
        let pinned: Vec<bool> = saw[0].threads.iter().map(|thread| thread.pinned.is_some()).collect();
        let processes: Vec<u32> = saw[0].processes.iter().map(|process| process.pid).collect();
        assert_eq!((pinned, processes), (vec![false, true, true], vec![1]));
        assert_eq!(saw[0].nodes, snapshot.nodes, "the load of others counts");
        // What became of a move concerns those who asked for it.
        let result = OutcomeState::Done { bytes: 5, failed: 0 };
        let outcome = Outcome { subject: file(1), from: NodeId(0), to: NodeId(1), result };
        let next = Snapshot { outcomes: vec![outcome.clone()], ..window(2.0) };
        drop(saw);
        rules.decide(&Topology::default(), &next);
        assert_eq!(saw_a.lock().unwrap()[1].outcomes, []);
        assert_eq!(saw_b.lock().unwrap()[1].outcomes, [outcome]);
    }

    #[test]
    fn each_policy_speaks_of_its_own_threads() {
        let (files, threads) = (|| part("files", "b", f64::INFINITY).0, || part("threads", "a", f64::INFINITY).0);
        let plan = ByRule::new(vec![threads(), files()]).decide(&Topology::default(), &window(1.0));
        let declined: Vec<u32> = plan.declined.iter().map(|declined| declined.tid).collect();
        // Of thread 3, for which no rule is, the first says why it stays.
        assert_eq!((declined, plan.keeps), (vec![1, 3, 2], vec![1, 2]));
        assert_eq!((plan.notes, plan.predicted), (vec!["seen".to_owned()], None), "no part knows the others' moves");
        let mut rules = ByRule::new(vec![files()]);
        assert!(rules.decide(&Topology::default(), &window(1.0)).predicted.is_some());
        assert_eq!((rules.trouble(), rules.period_s(), rules.data_period_s()), (None, 5.0, 50.0));
        let rules = ByRule::new(vec![files(), threads()]);
        assert_eq!((rules.trouble(), rules.period_s(), rules.data_period_s()), (Some("ill"), 7.0, 70.0));
    }

    #[test]
    fn a_policy_sees_the_idle_ranges_of_its_own_files() {
        let (a, saw) = part("files", "a", f64::INFINITY);
        let mut rules = ByRule::new(vec![a]);
        let idle = |ino: u64| IdleFile { file: file(ino, &[]).file, ..IdleFile::default() };
        let later = |time_s: f64| Snapshot { files: Vec::new(), idle: (11..15).map(idle).collect(), ..window(time_s) };
        for snapshot in [window(1.0), later(2.0), later(3.0)] {
            rules.decide(&Topology::default(), &snapshot);
        }
        let saw = saw.lock().unwrap();
        assert_eq!([&saw[1].idle, &saw[2].idle], [&[idle(11)]; 2]);
    }

    #[test]
    fn who_asked_an_hour_ago_is_forgotten_when_there_are_many() {
        for (more, left) in [(0, REMEMBERED), (1, 1)] {
            let mut rules = ByRule::new(Vec::new());
            let subject = |pid: usize| Subject::Process(ProcessId::new(pid as u32, None));
            let asked = |n: usize| (subject(n), (0, if n == 0 { 100.5 } else { 100.0 }));
            rules.asked = (0..REMEMBERED + more).map(asked).collect();
            rules.account(&window(100.0 + HOUR_S));
            assert_eq!(rules.asked.len(), left);
        }
    }

    #[test]
    fn a_rule_copies_no_more_than_its_bytes_a_day() {
        let (a, _) = part("files", "a", 100.0);
        let mut rules = ByRule::new(vec![a]);
        assert_eq!(rules.name(), "files");
        let at = |time_s: f64, bytes: u64| {
            let mut snapshot = window(30.0 * HOUR_S + time_s);
            snapshot.files[0].bytes.add(NodeId(0), bytes);
            snapshot
        };
        let moves = |rules: &mut ByRule, snapshot: &Snapshot| rules.decide(&Topology::default(), snapshot).moves.len();
        assert_eq!(moves(&mut rules, &at(1.0, 101)), 1, "threads copy nothing");
        let plan = rules.decide(&Topology::default(), &at(2.0, 60));
        assert_eq!(plan.moves.len(), 2);
        let result = OutcomeState::Done { bytes: 60, failed: 0 };
        let outcome = Outcome { subject: plan.moves[1].subject, from: NodeId(0), to: NodeId(1), result };
        let spent = rules.decide(&Topology::default(), &Snapshot { outcomes: vec![outcome], ..at(3.0, 41) });
        assert_eq!(subjects(&spent), [Subject::thread(&window(1.0).threads[0])]);
        assert!(spent.notes.iter().any(|note| note.contains("rule a")), "{:?}", spent.notes);
        // A reload, after which the rule has others beside it, allows nothing more.
        let (mut both, _) = part("files", "b", 100.0);
        both.rules.push(Some("a".into()));
        let (other, _) = part("files", "c", 100.0);
        let mut after = ByRule::new(vec![both, other]);
        after.go_on(&rules.spent());
        assert_eq!(after.parts.iter().map(Running::left).collect::<Vec<_>>(), [40.0, 100.0]);
        let plan = after.decide(&Topology::default(), &at(3.5, 41));
        assert!(!subjects(&plan).contains(&Subject::file(&window(1.0).files[0])), "{plan:?}");
        // What ended with it counts, too.
        let subject = rules.decide(&Topology::default(), &at(4.0, 10)).moves[1].subject;
        let mut last = ByRule::new(vec![part("files", "a", 100.0).0]);
        last.go_on(&rules.spent());
        let result = OutcomeState::Failed { bytes: 7, why: "another policy decides".to_owned() };
        let outcome = Outcome { subject, from: NodeId(0), to: NodeId(1), result };
        last.decide(&Topology::default(), &Snapshot { outcomes: vec![outcome], ..at(5.0, 0) });
        assert_eq!(last.parts.iter().map(Running::left).collect::<Vec<_>>(), [33.0]);
        assert_eq!(moves(&mut rules, &at(23.0 * 3600.0, 41)), 1);
        let mut two = at(25.0 * 3600.0, 41);
        assert_eq!(moves(&mut rules, &two), 2, "a day has passed");
        two.files.push(ObservedFile { bytes: two.files[0].bytes.clone(), ..file(15, &[1]) });
        assert_eq!(moves(&mut rules, &two), 3);
        two.files[0].bytes.add(NodeId(0), 19);
        assert_eq!(moves(&mut rules, &two), 2, "60 and 41 bytes are more than 100");
    }

    /// Its memory is larger than nothing, and owners may copy nothing unless root says so.
    #[test]
    fn memory_of_unknown_size_is_over_a_limit() {
        let mut seen = window(1.0);
        seen.processes[1].resident = [(NodeId(0), 5), (NodeId(1), 3)].into_iter().collect();
        let subject = Subject::Process(ProcessId::new(2, None));
        let mv = Move { subject, ..Move::thread(&seen.threads[1], NodeId(1), Reason::ReadLocality, "x") };
        assert_eq!(bytes_of(&mv, &seen), 5, "what is on the node is not copied");
        let ranges = vec![FileRange { start: 0, bytes: 9 }];
        assert_eq!(bytes_of(&Move { ranges, ..Move::file(&seen.files[0], NodeId(0), NodeId(1), "x") }, &seen), 9);
        let unseen = Snapshot { processes: Vec::new(), ..seen };
        assert!(bytes_of(&mv, &unseen) as f64 > 1e18);
    }

    /// PostgreSQL without a pooler reads by processes that end at once.
    #[test]
    fn a_file_that_others_have_used_lately_stays() {
        let (a, _) = part("files", "a", f64::INFINITY);
        let mut rules = ByRule::new(vec![a]);
        let mut moves = |time_s: f64, others: bool| {
            let mut snapshot = window(time_s);
            snapshot.files[0].touched_by_others = others;
            rules.decide(&Topology::default(), &snapshot).moves.len()
        };
        assert_eq!([moves(101.0, false), moves(102.0, true), moves(130.0, false), moves(162.0, false)], [2, 1, 1, 2]);
    }

    #[test]
    fn a_window_that_is_all_of_one_part_is_not_copied() {
        let (a, _) = part("threads", "a", f64::INFINITY);
        let mut rules = ByRule::new(vec![a]);
        let mut own = window(1.0);
        own.threads.truncate(1);
        own.files.truncate(1);
        let copied = |rules: &mut ByRule, of: &Snapshot| matches!(rules.seen_by(0, of), Cow::Owned(_));
        assert!(copied(&mut rules, &own), "processes 2 and 3 are not its own");
        own.processes.truncate(1);
        assert!(!copied(&mut rules, &own));
        let foreign = Snapshot { threads: window(1.0).threads, ..own.clone() };
        assert!(copied(&mut rules, &foreign));
        own.files[0].touched_by_others = true;
        assert!(copied(&mut rules, &own));
    }

    #[test]
    fn nothing_is_moved_without_a_part() {
        let mut rules = ByRule::new(Vec::new());
        assert_eq!(rules.decide(&Topology::default(), &window(1.0)).moves, []);
        assert_eq!(rules.traits(), Traits::default());
    }
}
