//! The paths of control groups (v2), by id.
//!
//! **Problem.** The programs know a group's number; people and rules know its path from the root of
//! the hierarchy, also when homenode runs in a control-group namespace, and after the group has
//! gone.
//!
//! **Approach.** One walk of a mount of the hierarchy at the start; from then on the kernel tells
//! which groups come, with their paths, and which go. Where it does not, or some of that was lost,
//! an id that is not known makes it walk again. Groups that have gone keep their path for [`KEPT`]
//! windows. They cannot be renamed (only those of version 1 can).
//!
//! **Limits.** Version 2 only: without it nobody has a path, and a note says so. Of a mount in a
//! container that does not show the root of the hierarchy, nor say which part it shows, only groups
//! that came later are known.

use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::mounts::{self, Mount};
use rustc_hash::FxHashMap;

/// Windows for which the path of a group that has gone is kept.
const KEPT: u32 = 10;
/// Groups that are known at once: some 10 MB. Those that come after have no name.
const MOST: usize = 65_536;
/// A walk may take this part of the time.
const SHARE: u32 = 50;
/// Number of the directory of the root group: the first of a kernfs.
const ROOT: u64 = 1;

/// A group's id and path; `None`: it has gone.
pub(super) type Event = (u64, Option<String>);

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
    /// Why groups that come and go within a window are not known.
    unseen: Option<String>,
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
            let whole = std::fs::metadata(&mount.point).is_ok_and(|directory| directory.ino() == ROOT);
            let base = if whole { String::new() } else { linux::shown(mount.root.as_os_str()) };
            // In a control-group namespace the table has the path from the root of the namespace.
            let known = whole || (base != "/" && !base.starts_with("/.."));
            known.then_some((!whole, mount.point, base))
        };
        Self::of(mounts.filter_map(base).min().map(|(_, point, base)| (point, base)))
    }

    fn of(mount: Option<(PathBuf, String)>) -> Self {
        let (known, not_before) = (FxHashMap::default(), Instant::now());
        let mut groups = Self { mount, unseen: None, known, window: 0, walked: false, not_before };
        groups.walk();
        groups
    }

    /// A directory and those below it, for tests.
    #[cfg(test)]
    pub(super) fn at(point: &Path) -> Self {
        Self::of(Some((point.to_owned(), String::new())))
    }

    /// What is not known.
    pub fn note(&self) -> Option<String> {
        match (&self.mount, &self.unseen) {
            (None, _) => {
                Some("services: the control groups of version 2 are not mounted here: most have no name".into())
            }
            (_, Some(cause)) => {
                Some(format!("services: groups that came and went within a window have no name: {cause}"))
            }
            _ => None,
        }
    }

    /// A window ends in which these came and went, as far as the kernel told; `true`: some are
    /// missing.
    pub(super) fn window(&mut self, events: Result<(Vec<Event>, bool), &str>) {
        self.window += 1;
        self.walked = false;
        let window = self.window;
        self.known.retain(|_, known| known.gone.is_none_or(|gone| window - gone <= KEPT));
        self.unseen = events.as_ref().err().map(|cause| (*cause).to_owned());
        let (events, missing) = events.unwrap_or_default();
        // What is missing is found by the next walk, which keeps its share of the time.
        self.unseen = self.unseen.take().or(missing.then(|| "too many came at once".to_owned()));
        for (id, path) in events.into_iter().take(MOST.saturating_sub(self.known.len())) {
            let known = self.known.entry(id).or_insert(Known { path: None, gone: None });
            match path {
                Some(path) => *known = Known { path: Some(path.into()), gone: None },
                None => known.gone = Some(window),
            }
        }
    }

    /// The path of a group from the root of the hierarchy, `/` for the root group.
    pub fn path(&mut self, id: u64) -> Option<Arc<str>> {
        if id == 0 {
            return None;
        }
        if !self.known.contains_key(&id) && !self.walked && Instant::now() >= self.not_before {
            self.walk();
        }
        if self.known.len() >= MOST && !self.known.contains_key(&id) {
            return None;
        }
        let gone = Some(self.window);
        self.known.entry(id).or_insert(Known { path: None, gone }).path.clone()
    }

    /// Whether all groups of the machine were listed at the last walk.
    pub fn shows_all(&self) -> bool {
        self.mount.as_ref().is_some_and(|(_, base)| base.is_empty()) && self.known.len() < MOST
    }

    /// The groups that were there at the last walk, by path.
    pub fn paths(&self) -> Vec<Arc<str>> {
        let here = self.known.values().filter(|known| known.gone.is_none());
        here.filter_map(|known| known.path.clone()).collect()
    }

    /// The directory of the group with this path, as far as one is mounted.
    pub(super) fn directory(&self, path: &str) -> Option<PathBuf> {
        let (point, base) = self.mount.as_ref()?;
        Some(point.join(path.strip_prefix(base.as_str())?.trim_start_matches('/')))
    }

    /// Learns the groups that there are now, and which have gone.
    fn walk(&mut self) {
        let Some((point, base)) = &self.mount else { return };
        let begun = Instant::now();
        let here: FxHashMap<u64, Arc<str>> = below(point, base).into_iter().take(MOST).collect();
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

    const NONE: Result<(Vec<Event>, bool), &str> = Err("not attached");

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
        let (dir, mut groups) = hierarchy("/docker/3f2a", &["a.slice/b.service"]);
        let (service, top) = (id(&dir, "a.slice/b.service"), id(&dir, ""));
        assert_eq!(path(&mut groups, service).as_deref(), Some("/docker/3f2a/a.slice/b.service"));
        assert_eq!(path(&mut groups, top).as_deref(), Some("/docker/3f2a"));
        assert_eq!((path(&mut groups, 0), groups.note()), (None, None));
        let mut whole = Groups::at(&dir.path().join("cg"));
        assert_eq!(path(&mut whole, service).as_deref(), Some("/a.slice/b.service"));
        assert_eq!(path(&mut whole, top).as_deref(), Some("/"));
    }

    /// A container's own mount shows a part of the hierarchy as if it were all.
    #[test]
    fn a_path_that_would_be_wrong_is_not_known() {
        for root in ["/", "/..", "/../../x"] {
            let (dir, mut groups) = hierarchy(root, &["b.service"]);
            assert!(path(&mut groups, id(&dir, "b.service")).is_none() && groups.note().is_some(), "{root}");
            groups.window(Ok((vec![(7, Some("/c.scope".to_owned()))], false)));
            assert_eq!(path(&mut groups, 7).as_deref(), Some("/c.scope"));
        }
    }

    #[test]
    fn the_kernel_tells_which_groups_come_and_go() {
        let (dir, mut groups) = hierarchy("/d", &["a"]);
        let (first, second, a) = (1 << 40, 1 << 41, id(&dir, "a"));
        let made = |id, path: &str| (id, Some(path.to_owned()));
        groups.window(Ok((vec![made(first, "/x/1"), (first, None), made(second, "/x/2"), (a, None)], false)));
        for window in 0..=KEPT {
            let paths = [first, second, a].map(|id| path(&mut groups, id));
            assert_eq!(paths, ["/x/1", "/x/2", "/d/a"].map(|path| Some(path.to_owned())), "{window}");
            groups.window(Ok((vec![], false)));
        }
        assert_eq!([first, second].map(|id| path(&mut groups, id)), [None, Some("/x/2".to_owned())]);
        // Some were lost: a note says so, and it looks again, but no sooner than its share of the
        // time allows: any user can make more groups than the kernel can tell of.
        std::fs::create_dir(dir.path().join("cg/b")).unwrap();
        groups.not_before = Instant::now() + Duration::from_secs(3600);
        groups.window(Ok((vec![], true)));
        assert_eq!(path(&mut groups, id(&dir, "b")), None);
        assert!(groups.note().is_some_and(|note| note.contains("too many came at once")));
        groups.not_before = Instant::now();
        assert_eq!(path(&mut groups, u64::MAX), None);
        assert_eq!(path(&mut groups, id(&dir, "b")).as_deref(), Some("/d/b"));
    }

    #[test]
    fn a_group_that_came_is_found_and_one_that_went_keeps_its_path_for_a_while() {
        let (dir, mut groups) = hierarchy("/d", &["a"]);
        let a = id(&dir, "a");
        std::fs::create_dir(dir.path().join("cg/b")).unwrap();
        let b = id(&dir, "b");
        groups.not_before = Instant::now();
        groups.window(NONE);
        assert_eq!(path(&mut groups, b).as_deref(), Some("/d/b"));
        std::fs::remove_dir(dir.path().join("cg/a")).unwrap();
        for window in 0..=KEPT {
            groups.window(NONE);
            groups.not_before = Instant::now();
            // An id that nobody has makes it look.
            assert_eq!(path(&mut groups, u64::MAX), None);
            assert_eq!(path(&mut groups, a).as_deref(), Some("/d/a"), "{window}");
        }
        groups.window(NONE);
        assert_eq!((path(&mut groups, a), path(&mut groups, b).as_deref()), (None, Some("/d/b")));
        assert!(groups.note().is_some_and(|note| note.contains("not attached")));
    }

    #[test]
    fn memory_for_groups_that_come_and_go_is_bounded() {
        let (_dir, mut groups) = hierarchy("/d", &["a"]);
        for window in 0..100u64 {
            groups.window(NONE);
            (0..1_000).for_each(|i| assert_eq!(path(&mut groups, u64::MAX - 1_000 * window - i), None));
        }
        assert!(groups.known.len() <= 1_000 * (KEPT as usize + 2), "{}", groups.known.len());
    }
}
