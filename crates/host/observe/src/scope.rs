//! Decides which threads are reported.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use linux::pods;
use linux::threads::{Threads, is_gone};
use placement::rules::{Does, Facts, Rules};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::ProcessId;

use super::groups::Groups;
use super::owners::Owners;
use super::records::intf::{COMM_LEN, task_record};
use super::records::{Task, text};
use super::types::{ObserveError, Scope};

/// A scope, and what it has learned.
#[derive(Debug)]
pub(super) enum Filter {
    Ruled(Ruled),
    /// Processes known to descend from the root, and the root.
    Tree(Processes),
}

impl Filter {
    pub fn new(scope: &Scope, proc_root: &Path) -> Result<Self, ObserveError> {
        Ok(match scope {
            Scope::Ruled(rules) => Self::Ruled(Ruled::new(rules.clone(), proc_root)),
            Scope::Tree(root) => Self::Tree(Processes::alive(proc_root, *root)?),
        })
    }

    pub fn is_all(&self) -> bool {
        matches!(self, Self::Ruled(ruled) if ruled.rules.list.is_empty() && ruled.rules.rest != Does::Ignore)
    }

    /// Learns from everything that a pass showed. Comes before [`Filter::of`].
    pub fn learn(&mut self, tasks: &[Task], groups: &mut Groups) {
        match self {
            Self::Tree(tree) => {
                // Parents come before their children in most passes, not in all: repeat until
                // nothing is new.
                let mut grown = true;
                while grown {
                    grown = false;
                    for task in tasks {
                        if task.in_tree() || tree.known.contains(&task.parent()) {
                            grown |= tree.known.insert(task.process());
                        }
                    }
                }
                tree.forget_ended();
            }
            Self::Ruled(ruled) => ruled.learn(tasks, groups),
        }
    }

    /// What is done with a thread.
    pub fn of(&self, task: &Task) -> Ruling {
        let (rule, does) = match self {
            Self::Ruled(ruled) => ruled.of(task),
            Self::Tree(tree) if task.in_tree() || tree.known.contains(&task.process()) => (None, Does::Move),
            Self::Tree(_) => (None, Does::Ignore),
        };
        Ruling { rule, does }
    }

    pub fn contains(&self, task: &Task) -> bool {
        self.of(task).does != Does::Ignore
    }

    /// Choices of owners that do not count, and why.
    pub fn refused(&self) -> Vec<String> {
        if let Self::Ruled(ruled) = self { ruled.owners.refused() } else { Vec::new() }
    }

    /// Whether what has ended in this control group is in scope, as far as its group alone tells.
    pub fn has(&self, group: &str) -> bool {
        match self {
            Self::Ruled(ruled) => ruled.of_group(group) != Does::Ignore,
            Self::Tree(_) => false,
        }
    }

    /// Whether what no listed thread has touched counts for its control group, whichever that is.
    pub fn knows_groups(&self) -> bool {
        matches!(self, Self::Ruled(ruled) if ruled.rules.rest != Does::Ignore)
    }

    /// Whether threads of a process may be moved, as far as a pass has shown it.
    pub fn allows(&self, pid: u32) -> bool {
        match self {
            Self::Ruled(ruled) => ruled.allows(pid),
            Self::Tree(_) => true,
        }
    }
}

/// What is done with a thread, and the rule that says so.
#[derive(Debug)]
pub(super) struct Ruling {
    pub rule: Option<Arc<str>>,
    pub does: Does,
}

/// What a rule is chosen by, and the place of the rule.
#[derive(Debug)]
struct Chosen {
    process: ProcessId,
    group: u64,
    /// Real and effective.
    users: [u32; 2],
    /// The policy that its owner has chosen.
    chosen: Option<Arc<str>>,
    command: [u8; COMM_LEN as usize],
    rule: Option<usize>,
    does: Does,
    /// All was known that it is chosen by; otherwise it is chosen anew.
    sure: bool,
    /// The last pass that showed the process.
    seen: u32,
}

/// Rules, and which of them applies to each process of the last passes.
#[derive(Debug)]
pub(super) struct Ruled {
    rules: Rules,
    /// By process id.
    processes: FxHashMap<u32, Chosen>,
    pass: u32,
    /// Rules with another policy than before: what was bound for them is put back once.
    anew: FxHashSet<Arc<str>>,
    owners: Owners,
}

/// Passes after which a process that ran in none of them is forgotten; its rule is then chosen
/// anew.
const IDLE: u32 = 60;

impl Ruled {
    fn new(rules: Rules, proc_root: &Path) -> Self {
        let (anew, owners) = (FxHashSet::default(), Owners::new(&rules, proc_root));
        Self { rules, processes: FxHashMap::default(), pass: 0, anew, owners }
    }

    /// Takes other rules. What owners have chosen goes on, where it may be chosen still.
    pub fn rule(&mut self, rules: Rules, anew: FxHashSet<Arc<str>>) {
        self.owners.rule(&rules);
        self.processes.clear();
        (self.rules, self.anew, self.pass) = (rules, anew, 0);
    }

    fn learn(&mut self, tasks: &[Task], groups: &mut Groups) {
        if self.rules.list.is_empty() && self.rules.rest == Does::Move {
            return;
        }
        if self.pass > 0 {
            self.anew.clear();
        }
        self.pass = self.pass.wrapping_add(1);
        let Self { rules, processes, pass, owners, .. } = self;
        for task in tasks {
            let process = task.process();
            let users = [task.real_uid, task.uid];
            let chosen = owners.of(task.process_cgroup_id, users);
            let same = |known: &&mut Chosen| known.is_of(task) && known.chosen.as_ref() == chosen;
            if let Some(known) = processes.get_mut(&task.tgid).filter(same) {
                known.seen = *pass;
                continue;
            }
            let (command, group) = (text(&task.command), groups.path(task.process_cgroup_id));
            let group = group.as_deref().unwrap_or_default();
            let pod = pods::name(group);
            let sure = !group.is_empty() && (pod.is_some() || !pods::is_of_one(group));
            let pod = pod.as_deref();
            let facts = Facts { group, pod, uid: task.uid, command: &command, process, chosen: chosen.map(|of| &**of) };
            let (rule, does) = rules.of(&facts);
            let &task_record { process_cgroup_id: group, command, .. } = &task.record;
            let chosen = chosen.cloned();
            let seen = *pass;
            processes.insert(task.tgid, Chosen { process, group, users, chosen, command, rule, does, sure, seen });
        }
        processes.retain(|_, known| pass.wrapping_sub(known.seen) < IDLE);
        // Rules of root's file come first.
        let asks = |at: usize| rules.list.get(at).is_some_and(|rule| rule.of.chosen.is_some());
        let free = processes.values().filter(|known| known.sure && known.rule.is_none_or(asks));
        let wanted = free.map(|known| (known.group, known.users[1])).collect();
        let seen = |known: &&Chosen| known.seen == *pass;
        owners.look(&wanted, groups, &|process| Some(processes.get(&process).filter(seen)?.users));
    }

    fn allows(&self, pid: u32) -> bool {
        let Some(known) = self.processes.get(&pid) else { return true };
        let rule = known.rule.and_then(|at| self.rules.list.get(at));
        known.does == Does::Move && rule.is_none_or(|rule| !self.anew.contains(&rule.name))
    }

    fn of_group(&self, group: &str) -> Does {
        let pod = pods::name(group);
        let process = ProcessId::new(0, None);
        self.rules.of(&Facts { group, pod: pod.as_deref(), uid: u32::MAX, command: "", process, chosen: None }).1
    }

    fn of(&self, task: &Task) -> (Option<Arc<str>>, Does) {
        let Some(known) = self.processes.get(&task.tgid) else { return (None, self.rules.rest) };
        let rule = known.rule.and_then(|at| self.rules.list.get(at));
        (rule.map(|rule| rule.name.clone()), known.does)
    }
}

impl Chosen {
    fn is_of(&self, task: &Task) -> bool {
        let of = (task.process(), task.process_cgroup_id, [task.real_uid, task.uid], task.command);
        self.sure && (self.process, self.group, self.users, self.command) == of
    }
}

/// Processes: once one has ended, another one may get its id.
#[derive(Debug)]
pub(super) struct Processes {
    threads: Threads,
    known: HashSet<ProcessId>,
    /// Number of processes at which to look for ended ones.
    check_at: usize,
}

/// Number of processes that are kept without looking for ended ones.
const CHECK_AT: usize = 1024;

impl Processes {
    /// The process that has this id now.
    fn alive(proc_root: &Path, pid: u32) -> Result<Self, ObserveError> {
        let threads = Threads::new(proc_root);
        let failed = |source| ObserveError::Io { what: format!("process {pid}"), source };
        let known = HashSet::from([ProcessId::new(pid, threads.started(pid).map_err(failed)?)]);
        Ok(Self { threads, known, check_at: CHECK_AT })
    }

    /// Forgets processes that have ended, each time the number has doubled. Their children are
    /// known by now, or carry a mark.
    fn forget_ended(&mut self) {
        if self.known.len() < self.check_at {
            return;
        }
        self.known.retain(|process| match self.threads.started(process.pid) {
            Ok(start_ns) => ProcessId::new(process.pid, start_ns) == *process,
            // Any other error says nothing about the process.
            Err(error) => !is_gone(&error),
        });
        self.check_at = CHECK_AT.max(2 * self.known.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::intf::TASK_IN_TREE;
    use placement::rules::{Of, Rule};

    /// A process started at tick `start`, whose parent started at tick `parent_start`.
    fn task((tgid, start): (u32, u64), (ppid, parent_start): (u32, u64), cgroup_id: u64) -> Task {
        let (leader_start_ns, parent_start_ns) = (start * 10_000_000 + 1, parent_start * 10_000_000 + 1);
        let record = task_record {
            tid: tgid,
            tgid,
            ppid,
            leader_start_ns,
            parent_start_ns,
            cgroup_id,
            process_cgroup_id: cgroup_id,
            ..task_record::default()
        };
        Task { record, ..Task::default() }
    }

    fn process(pid: u32, start: u64) -> Task {
        task((pid, start), (1, 1), 0)
    }

    fn procfs(processes: &[(u32, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (pid, start) in processes {
            let directory = root.path().join(pid.to_string());
            std::fs::create_dir(&directory).unwrap();
            let (before, after) = ("0 ".repeat(18), " 0".repeat(30));
            std::fs::write(directory.join("stat"), format!("{pid} (a) 1 (b) S {before}{start}{after}\n")).unwrap();
        }
        root
    }

    /// A control group `/a`, and its id.
    fn group() -> (tempfile::TempDir, u64) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let id = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(dir.path().join("a")).unwrap());
        (dir, id)
    }

    fn learn(filter: &mut Filter, tasks: &[Task]) {
        filter.learn(tasks, &mut Groups::new(Path::new("/nowhere")));
    }

    #[test]
    fn a_reused_process_id_is_out_of_scope() {
        let proc_root = procfs(&[(10, 500)]);
        let only = Scope::Ruled(Rules::only(vec![process(10, 500).process()]));
        for scope in [only, Scope::Tree(10)] {
            let mut filter = Filter::new(&scope, proc_root.path()).unwrap();
            let stranger = process(10, 501);
            learn(&mut filter, &[process(10, 500), task((11, 502), (10, 501), 0)]);
            assert!(filter.contains(&process(10, 500)), "{scope:?}");
            learn(&mut filter, std::slice::from_ref(&stranger));
            assert!(!filter.contains(&stranger), "{scope:?}");
            assert!(!filter.contains(&process(11, 502)), "{scope:?}: a child of the stranger");
        }
    }

    /// A service's manager puts a process into its group after it has started, and a program calls
    /// exec.
    #[test]
    fn a_process_that_becomes_another_gets_another_rule() {
        let commands = vec![glob::Pattern::new("postgres").unwrap()];
        let rule = |name: &str, of: Of, does| Rule { name: name.into(), of, does };
        let of = Of { commands, ..Of::default() };
        let of_user = Of { users: vec![26], ..Of::default() };
        let of_group = Of { groups: vec![glob::Pattern::new("/b").unwrap()], ..Of::default() };
        let list =
            vec![rule("b", of_group, Does::Observe), rule("db", of, Does::Move), rule("user", of_user, Does::Observe)];
        let mut filter = Filter::new(&Scope::Ruled(Rules { list, rest: Does::Ignore }), Path::new("/proc")).unwrap();
        // In a known group: otherwise its rule is chosen anew in each window.
        let (dir, id) = group();
        let b = dir.path().join("b");
        std::fs::create_dir(&b).unwrap();
        let mut one = task((10, 500), (1, 1), id);
        let mut groups = Groups::at(dir.path());
        let mut seen = |one: &Task| {
            filter.learn(std::slice::from_ref(one), &mut groups);
            let Ruling { rule, does } = filter.of(one);
            (rule.as_deref().map(str::to_owned), does, filter.allows(10))
        };
        assert_eq!(seen(&one), (None, Does::Ignore, false));
        one.uid = 26;
        assert_eq!(seen(&one), (Some("user".to_owned()), Does::Observe, false));
        one.command[..8].copy_from_slice(b"postgres");
        assert_eq!(seen(&one), (Some("db".to_owned()), Does::Move, true));
        one.record.process_cgroup_id = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(b).unwrap());
        assert_eq!(seen(&one), (Some("b".to_owned()), Does::Observe, false));
    }

    /// What root's rules say is not up to the owner, so nobody is told of his choice.
    #[test]
    fn a_group_of_roots_rules_is_not_looked_at() {
        let (dir, id) = group();
        let set = |value: &[u8]| {
            let none = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(dir.path().join("a"), placement::delegated::ATTRIBUTE, value, none)
        };
        if let Err(error) = set(b"numad") {
            return println!("skipped: no attributes on {}: {error}", dir.path().display());
        }
        let rule = |name: &str, of: Of, does| Rule { name: name.into(), of, does };
        let of_user = Of { users: vec![26], ..Of::default() };
        let chosen = Of { chosen: Some("arc".into()), ..Of::default() };
        let list = vec![rule("user", of_user, Does::Observe), rule("delegated arc", chosen, Does::Move)];
        let rules = Scope::Ruled(Rules { list, rest: Does::Observe });
        let refused = |uid: u32| {
            let mut filter = Filter::new(&rules, Path::new("/proc")).unwrap();
            let mut one = task((10, 500), (1, 1), id);
            one.uid = uid;
            filter.learn(std::slice::from_ref(&one), &mut Groups::at(dir.path()));
            filter.refused().len()
        };
        assert_eq!([refused(27), refused(26)], [1, 0]);
    }

    /// A reload that takes the last rule away left everything bound.
    #[test]
    fn what_no_rule_names_is_not_allowed_also_without_rules() {
        let none = Scope::Ruled(Rules { list: Vec::new(), rest: Does::Observe });
        let mut filter = Filter::new(&none, Path::new("/proc")).unwrap();
        learn(&mut filter, &[process(10, 500)]);
        assert!(!filter.allows(10) && filter.contains(&process(10, 500)));
        let mut all = Filter::new(&Scope::default(), Path::new("/proc")).unwrap();
        learn(&mut all, &[process(10, 500)]);
        assert!(all.allows(10));
    }

    /// Its threads may have been bound for a policy that does not decide on them any more.
    #[test]
    fn a_rule_with_another_policy_is_not_allowed_for_one_window() {
        let Scope::Ruled(rules) = Scope::Ruled(Rules::only(vec![process(10, 500).process()])) else { panic!() };
        let anew = FxHashSet::from_iter([rules.list[0].name.clone()]);
        let mut ruled = Ruled::new(Rules::default(), Path::new("/proc"));
        ruled.rule(rules, anew);
        let mut filter = Filter::Ruled(ruled);
        let mut allowed = || {
            learn(&mut filter, &[process(10, 500)]);
            filter.allows(10)
        };
        assert_eq!([allowed(), allowed()], [false, true]);
    }

    #[test]
    fn a_group_that_is_not_known_yet_is_asked_for_again() {
        let (dir, id) = group();
        let of = Of { groups: vec![glob::Pattern::new("/a").unwrap()], ..Of::default() };
        let rules = Rules { list: vec![Rule { name: "a".into(), of, does: Does::Observe }], rest: Does::Move };
        let mut filter = Filter::new(&Scope::Ruled(rules), Path::new("/proc")).unwrap();
        let one = task((10, 500), (1, 1), id);
        learn(&mut filter, std::slice::from_ref(&one));
        assert_eq!(filter.of(&one).does, Does::Move);
        filter.learn(std::slice::from_ref(&one), &mut Groups::at(dir.path()));
        assert_eq!(filter.of(&one).does, Does::Observe);
    }

    #[test]
    fn a_missing_process_is_named() {
        let error = Filter::new(&Scope::Tree(7), procfs(&[]).path()).unwrap_err().to_string();
        assert!(error.contains("process 7"), "{error}");
    }

    #[test]
    fn a_tree_grows_by_parents_in_any_order_and_by_marks() {
        let mut filter = Filter::new(&Scope::Tree(10), procfs(&[(10, 2)]).path()).unwrap();
        let mut orphan = process(40, 4);
        orphan.flags = TASK_IN_TREE;
        let child = |pid: u32, ppid: u32| task((pid, u64::from(pid / 10)), (ppid, u64::from(ppid / 10)), 0);
        learn(&mut filter, &[child(30, 20), task((20, 2), (10, 2), 0), process(5, 0), orphan, child(41, 40)]);
        let contained: Vec<u32> = [(10, 2), (20, 2), (30, 3), (40, 4), (41, 4), (5, 0)]
            .into_iter()
            .filter(|(pid, start)| filter.contains(&process(*pid, *start)))
            .map(|(pid, _)| pid)
            .collect();
        assert_eq!(contained, [10, 20, 30, 40, 41]);
    }

    #[test]
    fn a_tree_forgets_processes_that_have_ended() {
        let proc_root = procfs(&[(10, 2), (20, 3)]);
        let mut filter = Filter::new(&Scope::Tree(10), proc_root.path()).unwrap();
        for first in (1000..20_000).step_by(1000) {
            let children: Vec<Task> = (first..first + 1000).map(|pid| task((pid, 3), (10, 2), 0)).collect();
            learn(&mut filter, &children);
        }
        learn(&mut filter, &[task((20, 3), (10, 2), 0)]);
        let Filter::Tree(tree) = &filter else { panic!("{filter:?}") };
        assert!(tree.known.len() <= 2 * CHECK_AT, "{} processes are kept", tree.known.len());
        assert!(filter.contains(&process(10, 2)) && filter.contains(&process(20, 3)));
    }

    /// Runs this in a thread that may do no more than the files' modes say, also if it is root's.
    fn without_privileges(run: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let unprivileged = move || {
                linux::privileges::keep_only(rustix::thread::CapabilitySet::empty()).unwrap();
                run();
            };
            scope.spawn(unprivileged).join().unwrap();
        });
    }

    fn closed(path: &Path) {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    }

    /// EACCES says nothing about the process, and without it in scope its threads would be left as
    /// they are.
    #[test]
    fn a_process_that_cannot_be_looked_at_has_not_ended() {
        let proc_root = procfs(&[(10, 2), (20, 3)]);
        let mut filter = Filter::new(&Scope::Tree(10), proc_root.path()).unwrap();
        let child = |pid: u32| task((pid, 3), (10, 2), 0);
        learn(&mut filter, &[child(20)]);
        closed(&proc_root.path().join("20/stat"));
        let gone: Vec<Task> = (1000..1000 + CHECK_AT as u32).map(child).collect();
        without_privileges(|| learn(&mut filter, &gone));
        let Filter::Tree(tree) = &filter else { panic!("{filter:?}") };
        assert_eq!(tree.known.len(), 2, "those that have ended are forgotten");
        assert!(filter.contains(&process(20, 3)));
    }
}
