//! Which threads are reported.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::records::Task;
use super::types::{ObserveError, Scope};

/// A scope with what it has learned.
#[derive(Debug)]
pub(super) enum Filter {
    All,
    Pids(HashSet<u32>),
    Cgroup {
        root: PathBuf,
        inside: HashSet<u64>,
        outside: HashSet<u64>,
    },
    /// Processes known to descend from the root.
    Tree(HashSet<u32>),
}

impl Filter {
    pub fn new(scope: &Scope) -> Result<Self, ObserveError> {
        Ok(match scope {
            Scope::All => Self::All,
            Scope::Pids(pids) => Self::Pids(pids.iter().copied().collect()),
            Scope::Tree(root) => Self::Tree(HashSet::from([*root])),
            Scope::Cgroup(root) => {
                let inside = ids_below(root)
                    .map_err(|source| ObserveError::Io { what: format!("control group {}", root.display()), source })?;
                Self::Cgroup { root: root.clone(), inside, outside: HashSet::new() }
            }
        })
    }

    /// Looks at everything a pass showed, before single threads are asked for.
    pub fn learn(&mut self, tasks: &[Task]) {
        match self {
            Self::Tree(tree) => {
                // Parents come before children in most passes, not in all: until nothing is new.
                loop {
                    let known = tree.len();
                    for task in tasks {
                        if task.in_tree || tree.contains(&task.ppid) {
                            tree.insert(task.tgid);
                        }
                    }
                    if tree.len() == known {
                        break;
                    }
                }
            }
            Self::Cgroup { root, inside, outside } => {
                // A group's place in the hierarchy never changes, so only new ids need a look at the directories.
                let new = |id: u64| !inside.contains(&id) && !outside.contains(&id);
                if tasks.iter().any(|task| new(task.cgroup_id)) {
                    // The group can be gone by now: then nothing new is in it.
                    inside.extend(ids_below(root).unwrap_or_default());
                    outside.extend(tasks.iter().map(|task| task.cgroup_id).filter(|id| !inside.contains(id)));
                }
            }
            Self::All | Self::Pids(_) => {}
        }
    }

    pub fn contains(&self, task: &Task) -> bool {
        match self {
            Self::All => true,
            Self::Pids(pids) => pids.contains(&task.tgid),
            Self::Cgroup { inside, .. } => inside.contains(&task.cgroup_id),
            Self::Tree(tree) => task.in_tree || tree.contains(&task.tgid),
        }
    }
}

/// Ids of a control group and all below it: the inode numbers of the directories.
fn ids_below(root: &Path) -> std::io::Result<HashSet<u64>> {
    let metadata = std::fs::metadata(root)?;
    if !metadata.is_dir() {
        return Err(std::io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    let mut ids = HashSet::from([metadata.ino()]);
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        // Groups come and go while we look.
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
            if let Ok(metadata) = entry.metadata() {
                ids.insert(metadata.ino());
                left.push(entry.path());
            }
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(tgid: u32, ppid: u32, cgroup_id: u64) -> Task {
        Task { tid: tgid, tgid, ppid, cgroup_id, ..Task::default() }
    }

    #[test]
    fn a_tree_grows_by_parents_in_any_order_and_by_marks() {
        let mut filter = Filter::new(&Scope::Tree(10)).unwrap();
        let orphan = Task { in_tree: true, ..task(40, 1, 0) };
        filter.learn(&[task(30, 20, 0), task(20, 10, 0), task(5, 1, 0), orphan, task(41, 40, 0)]);
        let contained: Vec<u32> =
            [10, 20, 30, 40, 41, 5].into_iter().filter(|pid| filter.contains(&task(*pid, 1, 0))).collect();
        assert_eq!(contained, [10, 20, 30, 40, 41]);
    }

    #[test]
    fn a_cgroup_holds_what_is_below_it_also_what_is_made_later() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("web");
        let made = |path: &Path| {
            std::fs::create_dir(path).unwrap();
            std::fs::metadata(path).unwrap().ino()
        };
        let web = made(&root);
        let mut filter = Filter::new(&Scope::Cgroup(root.clone())).unwrap();
        let worker = made(&root.join("worker"));
        let other = made(&directory.path().join("other"));
        filter.learn(&[task(1, 0, worker), task(2, 0, other)]);
        assert!(filter.contains(&task(1, 0, worker)) && filter.contains(&task(3, 0, web)));
        assert!(!filter.contains(&task(2, 0, other)));
    }

    #[test]
    fn a_cgroup_that_is_not_there_is_named() {
        let error = Filter::new(&Scope::Cgroup("/nowhere/at/all".into())).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
