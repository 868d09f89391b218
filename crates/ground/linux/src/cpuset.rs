//! The CPUs of a thread's cpuset, which it may use by default.
//!
//! **Problem.** A thread has "an affinity of its own" if its mask differs from the default, the
//! CPUs of its cpuset. The place of that list depends on the control group version, the mounts, and
//! the groups visible to us.
//!
//! **Approach.** `/proc/<tid>/cgroup` names the group; `/proc/self/mountinfo` says where groups are
//! mounted. Version 1: `cpuset.effective_cpus` of the group. Version 2: `cpuset.cpus.effective` of
//! the nearest group upwards that has it (the controller need not be on further down). A machine
//! without cpusets gives every CPU.
//!
//! In a control-group namespace (a container) paths begin at its root, `/../x` beside it. Where the
//! whole hierarchy is mounted there, that root is the directory whose `cgroup.procs` has us.
//!
//! **Limits.** For a group outside of our mounts (homenode runs in a container without the host's
//! groups, the thread does not) the CPUs are unknown: [`Group::Hidden`].

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use topology::CpuSet;

use crate::mounts::{self, Mount};
use crate::named;

/// The place of a thread's cpuset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// This machine has no cpusets.
    None,
    /// A directory of the version-1 hierarchy.
    V1(PathBuf),
    /// A directory of the version-2 hierarchy.
    V2(PathBuf),
    /// A group hidden from us, with its name in the kernel.
    Hidden(String),
}

#[derive(Clone, Debug)]
pub struct Cpusets {
    v1: Option<Mount>,
    v2: Option<Mount>,
    /// The root of our namespace, below a mount of version 2 that shows more than it.
    namespace: Option<PathBuf>,
}

impl Cpusets {
    pub fn new(proc_root: &Path) -> std::io::Result<Self> {
        let path = proc_root.join("self/mountinfo");
        let bytes = std::fs::read(&path).map_err(|e| named(path.display(), e))?;
        let mut found = Self { v1: None, v2: None, namespace: None };
        for mount in mounts::list(&bytes) {
            match mount.fs_type.as_str() {
                "cgroup" if mount.options.split(',').any(|o| o == "cpuset") => _ = found.v1.get_or_insert(mount),
                "cgroup2" => _ = found.v2.get_or_insert(mount),
                _ => {}
            }
        }
        let own = std::fs::read_to_string(proc_root.join("self/cgroup")).unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        if let (Some(mount), Some(own)) = (&mut found.v2, own) {
            found.namespace = namespace(mount, own);
            if found.namespace.is_some() {
                mount.root = "/".into();
            }
        }
        Ok(found)
    }

    /// The cpuset of a thread, from its `/proc/<tid>/cgroup`.
    pub fn group(&self, cgroups: &str) -> Group {
        let mut v2_path = None;
        for line in cgroups.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            if controllers.split(',').any(|c| c == "cpuset") {
                return match &self.v1 {
                    Some(mount) => dir(mount, path).map_or_else(|| Group::Hidden(path.to_owned()), Group::V1),
                    None => Group::Hidden(path.to_owned()),
                };
            }
            if id == "0" && controllers.is_empty() {
                v2_path = Some(path);
            }
        }
        match (v2_path, &self.v2) {
            (Some(path), Some(mount)) => {
                let dir = match &self.namespace {
                    Some(root) => beside(root, path).and_then(|path| dir(mount, &path)),
                    None => dir(mount, path),
                };
                dir.map_or_else(|| Group::Hidden(path.to_owned()), Group::V2)
            }
            // Groups exist but are not mounted. The root group has no limits; those of other groups
            // are unknown.
            (Some(path), None) if path != "/" => Group::Hidden(path.to_owned()),
            _ => Group::None,
        }
    }

    /// The CPUs of a cpuset; `None` if it does not limit them. A group that has vanished or cannot
    /// be read is an error.
    pub fn cpus(&self, group: &Group) -> std::io::Result<Option<CpuSet>> {
        match group {
            Group::None => Ok(None),
            Group::V1(dir) => {
                let path = dir.join("cpuset.effective_cpus");
                let cpus = read(&path)?;
                let missing = || std::io::Error::new(ErrorKind::NotFound, format!("{} is not there", path.display()));
                cpus.map(Some).ok_or_else(missing)
            }
            Group::V2(dir) => {
                let top = self.v2.as_ref().map_or(Path::new("/"), |m| m.point.as_path());
                std::fs::metadata(dir).map_err(|e| named(dir.display(), e))?;
                for dir in dir.ancestors().take_while(|d| d.starts_with(top)) {
                    if let Some(cpus) = read(&dir.join("cpuset.cpus.effective"))? {
                        return Ok(Some(cpus));
                    }
                }
                Ok(None)
            }
            Group::Hidden(name) => {
                let why = format!("its control group {name} is outside of the groups visible here");
                Err(std::io::Error::new(ErrorKind::NotFound, why))
            }
        }
    }
}

/// How often `..` comes first in an absolute path, and what follows.
fn ups(path: &Path) -> (usize, PathBuf) {
    let mut parts = path.components().skip_while(|part| *part == Component::RootDir).peekable();
    let ups = std::iter::from_fn(|| parts.next_if_eq(&Component::ParentDir)).count();
    (ups, parts.collect())
}

/// The root of our namespace below a mount that shows the hierarchy from so many groups above it;
/// `own` is our group's path in it.
fn namespace(mount: &Mount, own: &str) -> Option<PathBuf> {
    let (above, rest) = ups(&mount.root);
    // We may be beside our namespace, which says nothing of its name.
    if above == 0 || rest != Path::new("") || own.split('/').any(|part| part == "..") {
        return None;
    }
    let us = std::process::id().to_string();
    let mut level = vec![PathBuf::new()];
    for _ in 0..above {
        let below = level.iter().flat_map(|path| {
            let entries = std::fs::read_dir(mount.point.join(path)).into_iter().flatten().map_while(Result::ok);
            let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            groups.map(|entry| path.join(entry.file_name())).collect::<Vec<_>>()
        });
        level = below.collect();
    }
    level.into_iter().find(|path| {
        let tasks = std::fs::read_to_string(mount.point.join(path).join(own).join("cgroup.procs"));
        tasks.is_ok_and(|tasks| tasks.lines().any(|pid| pid == us))
    })
}

/// A path in our namespace as one from the root of the hierarchy.
fn beside(namespace: &Path, path: &str) -> Option<String> {
    let (above, rest) = ups(Path::new(path));
    let base = namespace.ancestors().nth(above)?;
    Some(Path::new("/").join(base).join(rest).to_str()?.to_owned())
}

/// The directory of a group; `None` if it is not below the mounted hierarchy.
pub(crate) fn dir(mount: &Mount, path: &str) -> Option<PathBuf> {
    let below = Path::new(path).strip_prefix(&mount.root).ok()?;
    let inside = below.components().all(|c| matches!(c, Component::Normal(_)));
    inside.then(|| mount.point.join(below))
}

/// The hierarchies whose groups have the names of [`group_name`].
#[derive(Clone, Debug)]
pub struct Hierarchies(Vec<Mount>);

impl Hierarchies {
    /// Those that are mounted here; none if that cannot be found out.
    pub fn new(proc_root: &Path) -> Self {
        let table = std::fs::read(proc_root.join("self/mountinfo")).unwrap_or_default();
        let named = |mount: &Mount| match mount.fs_type.as_str() {
            "cgroup2" => true,
            "cgroup" => mount.options.split(',').any(|option| option == "name=systemd"),
            _ => false,
        };
        Self(mounts::list(&table).filter(named).collect())
    }

    /// Whether there is a group of this name; `None` if it cannot be seen from here.
    pub fn has(&self, group: &str) -> Option<bool> {
        let dirs: Vec<PathBuf> = self.0.iter().filter_map(|mount| dir(mount, group)).collect();
        (!dirs.is_empty()).then(|| dirs.iter().any(|dir| dir.is_dir()))
    }
}

/// The name of the group that descendants share with their ancestors; `None` for the root group,
/// which proves nothing.
pub fn group_name(cgroups: &str) -> Option<String> {
    // The version-2 group or, on a machine without, systemd's own: it holds a service or a login
    // session together.
    let path_of = |want: &str| {
        cgroups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.strip_prefix(want)
        })
    };
    let path = path_of(":").filter(|p| *p != "/").or_else(|| path_of("name=systemd:"));
    path.filter(|p| !matches!(*p, "" | "/")).map(str::to_owned)
}

/// A list of CPUs from a file; `None` if it is missing or empty.
fn read(path: &Path) -> std::io::Result<Option<CpuSet>> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let cpus: CpuSet = text
                .parse()
                .map_err(|e| std::io::Error::new(ErrorKind::InvalidData, format!("{}: {e}", path.display())))?;
            Ok((!cpus.is_empty()).then_some(cpus))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(path.display(), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake machine: mounts as given (`{}` is its root), files with content.
    fn machine(mounts: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Cpusets) {
        machine_with(b"", mounts, files)
    }

    /// The same with other mounts before.
    fn machine_with(first: &[u8], mounts: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Cpusets) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display().to_string();
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let table = [first, mounts.replace("{}", &root).as_bytes()].concat();
        std::fs::write(dir.path().join("proc/self/mountinfo"), table).unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let cpusets = Cpusets::new(&dir.path().join("proc")).unwrap();
        (dir, cpusets)
    }

    const V2: &str = "30 23 0:28 / {}/cg rw - cgroup2 cgroup2 rw\n";
    const V1: &str =
        "34 31 0:31 / {}/cpuset rw - cgroup cgroup rw,cpuset\n41 31 0:38 / {}/cg rw - cgroup2 cgroup2 rw\n";

    fn cpus(cpusets: &Cpusets, cgroups: &str) -> Result<String, String> {
        let cpus = cpusets.cpus(&cpusets.group(cgroups)).map_err(|e| e.to_string())?;
        Ok(cpus.map_or("none".to_owned(), |c| c.to_string()))
    }

    #[test]
    fn version_2_is_looked_for_upwards() {
        let files = [
            ("cg/cpuset.cpus.effective", "0-31"),
            ("cg/a/cpuset.cpus.effective", "0-7\n"),
            ("cg/a/b/c/x", ""),
            ("cg/d/x", ""),
        ];
        let (_dir, cpusets) = machine(V2, &files);
        assert_eq!(cpus(&cpusets, "0::/a/b/c\n"), Ok("0-7".into()));
        assert_eq!(cpus(&cpusets, "0::/d\n"), Ok("0-31".into()));
        assert_eq!(cpus(&cpusets, "0::/\n"), Ok("0-31".into()));
    }

    #[test]
    fn version_1_wins_where_it_has_the_cpuset() {
        let files = [("cpuset/a/cpuset.effective_cpus", "4-5"), ("cg/b/x", "")];
        let (_dir, cpusets) = machine(V1, &files);
        assert_eq!(cpus(&cpusets, "5:cpu,cpuset:/a\n4:memory:/m\n0::/b\n"), Ok("4-5".into()));
        // The kernel names no version-1 cpuset: it is not in use.
        assert_eq!(cpus(&cpusets, "4:memory:/m\n0::/b\n"), Ok("none".into()));
    }

    #[test]
    fn odd_mounts_of_other_users_are_ignored() {
        let odd = b"50 23 0:40 / /tmp/\xff rw - fuse.x \xfe rw\nx y\n\n51 23 0:41\n";
        let (_dir, cpusets) = machine_with(odd, V2, &[("cg/a/cpuset.cpus.effective", "0-7\n")]);
        assert_eq!(cpus(&cpusets, "0::/a\n"), Ok("0-7".into()));
    }

    /// The table writes a space as `\040`: groups mounted at such a path were not found.
    #[test]
    fn groups_may_be_mounted_at_a_path_with_a_space() {
        let (_dir, cpusets) = machine(&V2.replace("/cg", r"/c\040g"), &[("c g/a/cpuset.cpus.effective", "0-7\n")]);
        assert_eq!(cpus(&cpusets, "0::/a\n"), Ok("0-7".into()));
    }

    #[test]
    fn no_cpusets_is_no_limit() {
        let (_dir, cpusets) = machine("1 0 0:1 / / rw - ext4 /dev/vda rw\n", &[]);
        assert_eq!(cpus(&cpusets, ""), Ok("none".into()));
        assert_eq!(cpus(&cpusets, "0::/\n"), Ok("none".into()));
    }

    #[test]
    fn the_cpus_of_hidden_groups_are_unknown() {
        let mounts = "30 23 0:28 /docker/1 {}/cg rw - cgroup2 cgroup2 rw\n";
        let files = [("cg/cpuset.cpus.effective", "0-3"), ("cg/in/cpuset.cpus.effective", "0-1")];
        let (_dir, cpusets) = machine(mounts, &files);
        assert_eq!(cpus(&cpusets, "0::/docker/1/in\n"), Ok("0-1".into()));
        for hidden in ["/docker/12", "/", "/docker/1/../2", "/../2"] {
            let error = cpus(&cpusets, &format!("0::{hidden}\n")).unwrap_err();
            assert!(error.contains(&format!("control group {hidden} is outside")), "{error}");
        }
        let (_dir, unmounted) = machine("1 0 0:1 / / rw - ext4 /dev/vda rw\n", &[]);
        assert!(cpus(&unmounted, "0::/a\n").unwrap_err().contains("/a is outside"));
    }

    /// A container with the host's groups refused each move: `/../reader.service` was hidden.
    #[test]
    fn groups_beside_our_namespace_are_found_where_all_are_mounted() {
        let us = std::process::id().to_string();
        let procs = format!("1\n{us}\n");
        let files = [
            ("proc/self/cgroup", "0::/init\n"),
            ("cg/pods/other/init/cgroup.procs", "1\n"),
            ("cg/pods/ours/init/cgroup.procs", procs.as_str()),
            ("cg/pods/ours/in/cpuset.cpus.effective", "0-1"),
            ("cg/pods/other/cpuset.cpus.effective", "2-3"),
            ("cg/reader/cpuset.cpus.effective", "4-5"),
            ("cg/cpuset.cpus.effective", "0-7"),
        ];
        let mounts = |root: &str| format!("30 23 0:28 {root} {{}}/cg rw - cgroup2 cgroup2 rw\n");
        // The table is read before the files are there.
        let (dir, _) = machine(&mounts("/../.."), &files);
        let cpusets = Cpusets::new(&dir.path().join("proc")).unwrap();
        for (path, seen) in
            [("/in", "0-1"), ("/../other", "2-3"), ("/../../reader", "4-5"), ("/../..", "0-7"), ("/init", "0-7")]
        {
            assert_eq!(cpus(&cpusets, &format!("0::{path}\n")), Ok(seen.into()), "{path}");
        }
        for hidden in ["/../../../x", "/../other/../x"] {
            assert!(cpus(&cpusets, &format!("0::{hidden}\n")).unwrap_err().contains("is outside"), "{hidden}");
        }
        // We got out of our namespace: each group beside it would do for it.
        std::fs::write(dir.path().join("proc/self/cgroup"), "0::/../ours/init\n").unwrap();
        let cpusets = Cpusets::new(&dir.path().join("proc")).unwrap();
        assert!(cpus(&cpusets, "0::/in\n").unwrap_err().contains("/in is outside"));
        std::fs::write(dir.path().join("proc/self/cgroup"), "0::/init\n").unwrap();
        // We are in none of them: nothing is known.
        std::fs::write(dir.path().join("cg/pods/ours/init/cgroup.procs"), "1\n").unwrap();
        let cpusets = Cpusets::new(&dir.path().join("proc")).unwrap();
        assert!(cpus(&cpusets, "0::/../other\n").unwrap_err().contains("/../other is outside"));
    }

    #[test]
    fn a_group_that_vanished_is_an_error_not_its_parent() {
        let (_dir, cpusets) = machine(V2, &[("cg/cpuset.cpus.effective", "0-31")]);
        assert!(cpus(&cpusets, "0::/gone\n").unwrap_err().contains("cg/gone: No such file"));
        let (_dir, cpusets) = machine(V1, &[("cpuset/cpuset.effective_cpus", "0-31")]);
        assert!(
            cpus(&cpusets, "3:cpuset:/gone\n").unwrap_err().contains("cpuset/gone/cpuset.effective_cpus is not there")
        );
    }

    #[test]
    fn damaged_lists_are_errors_that_name_the_file() {
        let (_dir, cpusets) = machine(V2, &[("cg/a/cpuset.cpus.effective", "0-")]);
        let error = cpus(&cpusets, "0::/a\n").unwrap_err();
        assert!(error.contains("cg/a/cpuset.cpus.effective"), "{error}");
    }

    #[test]
    fn descendants_are_known_by_the_group_that_managers_use() {
        let name = |text: &str| group_name(text);
        assert_eq!(name("0::/system.slice/pg.service\n").unwrap(), "/system.slice/pg.service");
        assert_eq!(name("9:name=systemd:/system.slice/pg\n3:cpuset:/\n0::/\n").unwrap(), "/system.slice/pg");
        assert_eq!(name("4:memory:/m\n3:cpuset:/x\n0::/\n"), None);
    }
}
