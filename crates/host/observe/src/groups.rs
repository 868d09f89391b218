//! The paths of control groups (v2), by id.
//!
//! **Problem.** The programs know a group's number; people and rules know its path from the root of
//! the hierarchy, also when homenode runs in a control-group namespace, and after the group has
//! gone.
//!
//! **Approach.** One walk of a mount of the hierarchy at the start. An id that is not known, and
//! has no directory there any more, is remembered as such. Groups that have gone keep their path
//! for [`KEPT`] windows.
//!
//! **Limits.** Version 2 only: a machine without it has no paths, and a note says so. A mount that
//! shows a part of the hierarchy gives the paths below that part.

use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::mounts::{self, Mount};
use rustc_hash::FxHashMap;

/// Windows for which the path of a group that has gone is kept.
const KEPT: u32 = 10;
/// A walk may take this part of the time.
const SHARE: u32 = 50;
/// Number of the directory of the root group: the first of a kernfs.
const ROOT: u64 = 1;

#[derive(Debug)]
struct Known {
    /// `None`: nobody knows.
    path: Option<Arc<str>>,
    /// The window in which it was found to have gone.
    gone: Option<u32>,
}

#[derive(Debug)]
pub struct Groups {
    /// Where the hierarchy is mounted, and the path of what is visible there.
    mount: Option<(PathBuf, String)>,
    known: FxHashMap<u64, Known>,
    window: u32,
    /// Since the last window began, and the time before which there is none.
    walked: bool,
    not_before: Instant,
}

impl Groups {
    /// Walks the mount of version 2 that shows most, by the table of mounts of a proc mount.
    pub fn new(proc_root: &Path) -> Self {
        let table = std::fs::read(proc_root.join("self/mountinfo")).unwrap_or_default();
        let mounts = mounts::list(&table).filter(|mount| mount.fs_type == "cgroup2");
        let base = |mount: Mount| {
            let ino = std::fs::metadata(&mount.point).ok()?.ino();
            let root = linux::shown(mount.root.as_os_str());
            // In a control-group namespace, the table has the path from the namespace's root.
            let base = if ino == ROOT || root.starts_with("/..") { String::new() } else { root };
            Some((ino != ROOT, mount.point, base.trim_end_matches('/').to_owned()))
        };
        let mount = mounts.filter_map(base).min().map(|(_, point, base)| (point, base));
        let known = FxHashMap::default();
        let mut groups = Self { mount, known, window: 0, walked: false, not_before: Instant::now() };
        groups.walk();
        groups
    }

    /// Why no group has a path.
    pub fn missing(&self) -> Option<&'static str> {
        self.mount
            .is_none()
            .then_some("services: no control groups of version 2 are mounted here, so no thread has one")
    }

    /// A window begins.
    pub fn window(&mut self) {
        self.window += 1;
        self.walked = false;
        let window = self.window;
        self.known.retain(|_, known| known.gone.is_none_or(|gone| window - gone <= KEPT));
    }

    /// The path of a group from the root of the hierarchy, `/` for the root group.
    pub fn path(&mut self, id: u64) -> Option<Arc<str>> {
        if id == 0 || self.mount.is_none() {
            return None;
        }
        if !self.known.contains_key(&id) && !self.walked && Instant::now() >= self.not_before {
            self.walk();
        }
        let gone = Some(self.window);
        self.known.entry(id).or_insert(Known { path: None, gone }).path.clone()
    }

    /// Learns the groups that there are now, and which have gone.
    fn walk(&mut self) {
        let Some((point, base)) = &self.mount else { return };
        let begun = Instant::now();
        let here: FxHashMap<u64, Arc<str>> = below(point, base).into_iter().collect();
        for (id, known) in &mut self.known {
            if known.gone.is_none() && !here.contains_key(id) {
                known.gone = Some(self.window);
            }
        }
        self.known.extend(here.into_iter().map(|(id, path)| (id, Known { path: Some(path), gone: None })));
        self.walked = true;
        self.not_before = Instant::now() + begun.elapsed().min(Duration::from_secs(1)) * SHARE;
    }
}

/// Ids and paths of a directory and all below it. A group that may not be listed hides those below
/// it; groups come and go during the walk.
fn below(point: &Path, base: &str) -> Vec<(u64, Arc<str>)> {
    let id = std::fs::metadata(point).map(|directory| directory.ino());
    let root = if base.is_empty() { "/" } else { base };
    let mut found: Vec<_> = id.into_iter().map(|id| (id, Arc::from(root))).collect();
    let mut left = vec![(point.to_owned(), base.to_owned())];
    while let Some((directory, path)) = left.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().map_while(io::Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = format!("{path}/{}", linux::shown(&entry.file_name()));
                found.push((entry.ino(), Arc::from(path.as_str())));
                left.push((entry.path(), path));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as the mount of these control groups, of which `root` is visible.
    fn hierarchy(root: &str, groups: &[&str]) -> (tempfile::TempDir, Groups) {
        let dir = tempfile::tempdir().unwrap();
        for group in groups {
            std::fs::create_dir_all(dir.path().join("cg").join(group)).unwrap();
        }
        std::fs::create_dir_all(dir.path().join("self")).unwrap();
        let point = dir.path().join("cg");
        let table = format!("30 23 0:28 {root} {} rw - cgroup2 cgroup2 rw\n", point.display());
        std::fs::write(dir.path().join("self/mountinfo"), table).unwrap();
        let mut found = Groups::new(dir.path());
        found.not_before = Instant::now();
        (dir, found)
    }

    fn id(dir: &tempfile::TempDir, group: &str) -> u64 {
        std::fs::metadata(dir.path().join("cg").join(group)).unwrap().ino()
    }

    fn path(groups: &mut Groups, id: u64) -> Option<String> {
        groups.path(id).map(|path| path.to_string())
    }

    #[test]
    fn a_group_has_its_path_from_the_root() {
        for (root, top) in [("/", ""), ("/docker/3f2a", "/docker/3f2a")] {
            let (dir, mut groups) = hierarchy(root, &["a.slice/b.service"]);
            let service = id(&dir, "a.slice/b.service");
            assert_eq!(path(&mut groups, service), Some(format!("{top}/a.slice/b.service")));
            assert_eq!(path(&mut groups, id(&dir, "")).as_deref(), Some(if top.is_empty() { "/" } else { top }));
            assert_eq!((path(&mut groups, 0), groups.missing()), (None, None));
        }
        let mut none = Groups::new(Path::new("/nowhere"));
        assert!(path(&mut none, 1).is_none() && none.missing().is_some());
    }

    #[test]
    fn a_group_that_came_is_found_and_one_that_went_keeps_its_path_for_a_while() {
        let (dir, mut groups) = hierarchy("/", &["a"]);
        let a = id(&dir, "a");
        std::fs::create_dir(dir.path().join("cg/b")).unwrap();
        let b = id(&dir, "b");
        groups.not_before = Instant::now();
        groups.window();
        assert_eq!(path(&mut groups, b).as_deref(), Some("/b"));
        std::fs::remove_dir(dir.path().join("cg/a")).unwrap();
        for window in 0..=KEPT {
            groups.window();
            groups.not_before = Instant::now();
            // An id that nobody has makes it look.
            assert_eq!(path(&mut groups, u64::MAX), None);
            assert_eq!(path(&mut groups, a).as_deref(), Some("/a"), "{window}");
        }
        groups.window();
        assert_eq!((path(&mut groups, a), path(&mut groups, b).as_deref()), (None, Some("/b")));
    }

    #[test]
    fn memory_for_groups_that_come_and_go_is_bounded() {
        let (_dir, mut groups) = hierarchy("/", &["a"]);
        for window in 0..100u64 {
            groups.window();
            (0..1_000).for_each(|i| assert_eq!(path(&mut groups, u64::MAX - 1_000 * window - i), None));
        }
        assert!(groups.known.len() <= 1_000 * (KEPT as usize + 2), "{}", groups.known.len());
    }
}
