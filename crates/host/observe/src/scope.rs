//! Decides which threads are reported.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use super::groups::Groups;
use super::records::Task;
use super::types::{ObserveError, Scope};
use linux::threads::{Threads, is_gone};
use topology::ProcessId;

/// A scope, and what it has learned.
#[derive(Debug)]
pub(super) enum Filter {
    All,
    Pids(Processes),
    /// The path of a control group: it and all below it.
    Cgroup(Arc<str>),
    /// Processes known to descend from the root, and the root.
    Tree(Processes),
}

impl Filter {
    pub fn new(scope: &Scope, proc_root: &Path, groups: &mut Groups) -> Result<Self, ObserveError> {
        Ok(match scope {
            Scope::All => Self::All,
            Scope::Pids(pids) => Self::Pids(Processes::alive(proc_root, pids)?),
            Scope::Tree(root) => Self::Tree(Processes::alive(proc_root, &[*root])?),
            Scope::Cgroup(root) => Self::Cgroup(group(root, groups)?),
        })
    }

    /// Learns from everything that a pass showed. Comes before [`Filter::contains`].
    pub fn learn(&mut self, tasks: &[Task]) {
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
            Self::All | Self::Pids(_) | Self::Cgroup(_) => {}
        }
    }

    pub fn contains(&self, task: &Task, groups: &mut Groups) -> bool {
        match self {
            Self::All => true,
            Self::Pids(pids) => pids.known.contains(&task.process()),
            Self::Cgroup(_) => groups.path(task.cgroup_id).is_some_and(|group| self.has(&group)),
            Self::Tree(tree) => task.in_tree() || tree.known.contains(&task.process()),
        }
    }

    /// Whether all that is in this control group is in scope, also what has ended.
    pub fn has(&self, group: &str) -> bool {
        match self {
            Self::All => true,
            Self::Pids(_) | Self::Tree(_) => false,
            Self::Cgroup(root) => {
                let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
                **root == *"/" || group.strip_prefix(&**root).is_some_and(below)
            }
        }
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
    /// The processes that have these ids now.
    fn alive(proc_root: &Path, pids: &[u32]) -> Result<Self, ObserveError> {
        let threads = Threads::new(proc_root);
        let process = |&pid: &u32| match threads.started(pid) {
            Ok(start_ns) => Ok(ProcessId::new(pid, start_ns)),
            Err(source) => Err(ObserveError::Io { what: format!("process {pid}"), source }),
        };
        let known = pids.iter().map(process).collect::<Result<_, _>>()?;
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

/// The path of the control group (v2) with this directory.
fn group(directory: &Path, groups: &mut Groups) -> Result<Arc<str>, ObserveError> {
    let path = std::fs::metadata(directory).and_then(|metadata| {
        let path = if metadata.is_dir() { groups.path(metadata.ino()) } else { None };
        path.ok_or_else(|| io::Error::other("it is no control group of version 2"))
    });
    path.map_err(|source| ObserveError::Io { what: format!("control group {}", directory.display()), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::intf::{TASK_IN_TREE, task_record};

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
            ..task_record::default()
        };
        Task { record, ..Task::default() }
    }

    fn none() -> Groups {
        Groups::new(Path::new("/nowhere"))
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

    #[test]
    fn a_reused_process_id_is_out_of_scope() {
        let proc_root = procfs(&[(10, 500)]);
        for scope in [Scope::Pids(vec![10]), Scope::Tree(10)] {
            let mut filter = Filter::new(&scope, proc_root.path(), &mut none()).unwrap();
            let stranger = process(10, 501);
            filter.learn(&[process(10, 500), stranger.clone(), task((11, 502), (10, 501), 0)]);
            assert!(filter.contains(&process(10, 500), &mut none()), "{scope:?}");
            assert!(!filter.contains(&stranger, &mut none()), "{scope:?}");
            assert!(!filter.contains(&process(11, 502), &mut none()), "{scope:?}: a child of the stranger");
        }
    }

    #[test]
    fn a_missing_process_is_named() {
        let error = Filter::new(&Scope::Pids(vec![7]), procfs(&[]).path(), &mut none()).unwrap_err().to_string();
        assert!(error.contains("process 7"), "{error}");
    }

    #[test]
    fn a_tree_grows_by_parents_in_any_order_and_by_marks() {
        let mut filter = Filter::new(&Scope::Tree(10), procfs(&[(10, 2)]).path(), &mut none()).unwrap();
        let mut orphan = process(40, 4);
        orphan.flags = TASK_IN_TREE;
        let child = |pid: u32, ppid: u32| task((pid, u64::from(pid / 10)), (ppid, u64::from(ppid / 10)), 0);
        filter.learn(&[child(30, 20), task((20, 2), (10, 2), 0), process(5, 0), orphan, child(41, 40)]);
        let contained: Vec<u32> = [(10, 2), (20, 2), (30, 3), (40, 4), (41, 4), (5, 0)]
            .into_iter()
            .filter(|(pid, start)| filter.contains(&process(*pid, *start), &mut none()))
            .map(|(pid, _)| pid)
            .collect();
        assert_eq!(contained, [10, 20, 30, 40, 41]);
    }

    #[test]
    fn a_tree_forgets_processes_that_have_ended() {
        let proc_root = procfs(&[(10, 2), (20, 3)]);
        let mut filter = Filter::new(&Scope::Tree(10), proc_root.path(), &mut none()).unwrap();
        for first in (1000..20_000).step_by(1000) {
            let children: Vec<Task> = (first..first + 1000).map(|pid| task((pid, 3), (10, 2), 0)).collect();
            filter.learn(&children);
        }
        filter.learn(&[task((20, 3), (10, 2), 0)]);
        let Filter::Tree(tree) = &filter else { panic!("{filter:?}") };
        assert!(tree.known.len() <= 2 * CHECK_AT, "{} processes are kept", tree.known.len());
        assert!(filter.contains(&process(10, 2), &mut none()) && filter.contains(&process(20, 3), &mut none()));
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
        let mut filter = Filter::new(&Scope::Tree(10), proc_root.path(), &mut none()).unwrap();
        let child = |pid: u32| task((pid, 3), (10, 2), 0);
        filter.learn(&[child(20)]);
        closed(&proc_root.path().join("20/stat"));
        let gone: Vec<Task> = (1000..1000 + CHECK_AT as u32).map(child).collect();
        without_privileges(|| filter.learn(&gone));
        let Filter::Tree(tree) = &filter else { panic!("{filter:?}") };
        assert_eq!(tree.known.len(), 2, "those that have ended are forgotten");
        assert!(filter.contains(&process(20, 3), &mut none()));
    }

    /// A group that may not be listed hides those below it, and no others.
    #[test]
    fn a_control_group_that_may_not_be_listed_is_in_scope_itself() {
        let directory = tempfile::tempdir().unwrap();
        let made = |name: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::metadata(path).unwrap().ino()
        };
        let (first, hidden, last) = (made("a"), made("b"), made("c"));
        closed(&directory.path().join("b"));
        without_privileges(|| {
            let mut groups = Groups::at(directory.path());
            assert!([first, hidden, last].iter().all(|id| groups.path(*id).is_some()), "{groups:?}");
        });
    }

    #[test]
    fn a_cgroup_contains_groups_below_it_even_those_made_later() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("web");
        let made = |path: &Path| {
            std::fs::create_dir(path).unwrap();
            std::fs::metadata(path).unwrap().ino()
        };
        let of = |pid: u32, group: u64| task((pid, 1), (1, 1), group);
        let web = made(&root);
        let mut groups = Groups::at(directory.path());
        let filter = Filter::new(&Scope::Cgroup(root.clone()), Path::new("/proc"), &mut groups).unwrap();
        let worker = made(&root.join("worker"));
        let other = made(&directory.path().join("website"));
        let mut groups = Groups::at(directory.path());
        assert!(filter.contains(&of(1, worker), &mut groups) && filter.contains(&of(3, web), &mut groups));
        assert!(!filter.contains(&of(2, other), &mut groups) && !filter.has("/"));
        assert!(filter.has("/web") && filter.has("/web/ended") && !filter.has("/other/web"));
    }

    #[test]
    fn a_missing_cgroup_is_named() {
        for path in ["/nowhere/at/all", "/proc"] {
            let error =
                Filter::new(&Scope::Cgroup(path.into()), Path::new("/proc"), &mut none()).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
    }
}
