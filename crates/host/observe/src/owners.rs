//! Which control groups have owners who have chosen a policy for them
//! ([`placement::delegated`]).
//!
//! **Problem.** Any user can make groups by thousands, with any value and any processes, and change
//! all of that at any moment.
//!
//! **Approach.** The directories of groups that no rule of root's is for are looked at once a
//! window, with at most [`LOOKS`] looks in all, those first that were looked at longest ago; the
//! second one of a user comes after the first one of each. What was found holds from the next
//! window on. Beside it each process has to be the owner's in each window, so one that gets into
//! the group between two looks is not moved. Who changes from one policy to another has none for a
//! window, in which his threads are put back.
//!
//! **Limits.** A user with a range of subordinate ids counts as that many users.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use linux::threads::{Threads, field, is_gone};
use placement::delegated::{self, ATTRIBUTE, LONGEST};
use placement::rules::Rules;
use rustc_hash::FxHashMap;
use rustix::fs::{Mode, OFlags, fgetxattr, fstat, open, openat};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::groups::Groups;

/// Directories and processes that are looked at in a window.
const LOOKS: usize = 1024;
/// Processes of a group; in one with more nobody's choice counts.
const MOST: usize = 512;
/// Bytes of a process's id and the end of its line.
const LINE: usize = 8;
/// Windows after which a group is looked at again whose processes are all idle.
const REST: u32 = 60;
/// Refusals that are told.
const TOLD: usize = 20;

/// A policy and the user who has chosen it, if one has; or why what he has chosen does not count.
type Choice = Result<Option<(u32, Arc<str>)>, String>;

#[derive(Debug)]
struct Known {
    choice: Choice,
    path: Arc<str>,
    /// The window of the last look.
    window: u32,
}

/// Real and effective user of a process, if they are known.
pub(super) type Users<'a> = dyn Fn(u32) -> Option<[u32; 2]> + 'a;

#[derive(Debug)]
pub(super) struct Owners {
    /// Policies that owners may choose.
    may: Vec<Arc<str>>,
    threads: Threads,
    known: FxHashMap<u64, Known>,
    window: u32,
}

impl Owners {
    pub fn new(rules: &Rules, proc_root: &Path) -> Self {
        let (threads, known) = (Threads::new(proc_root), FxHashMap::default());
        let mut owners = Self { may: Vec::new(), threads, known, window: 0 };
        owners.rule(rules);
        owners
    }

    /// Owners may choose what these rules are for.
    pub fn rule(&mut self, rules: &Rules) {
        self.may = rules.list.iter().filter_map(|rule| rule.of.chosen.clone()).collect();
    }

    /// The policy that was chosen for a process of these users in this group.
    pub fn of(&self, group: u64, users: [u32; 2]) -> Option<&Arc<str>> {
        let Ok(Some((owner, policy))) = &self.known.get(&group)?.choice else { return None };
        (users == [*owner; 2]).then_some(policy)
    }

    /// Looks at these groups, each with a user of a process in it.
    pub fn look(&mut self, wanted: &FxHashMap<u64, u32>, groups: &mut Groups, users: &Users<'_>) {
        if self.may.is_empty() {
            return self.known.clear();
        }
        self.window += 1;
        let chosen = |known: &Known| matches!(known.choice, Ok(Some(_)));
        // Processes of a group may all be idle for long, and what was chosen counts when they wake.
        self.known.retain(|id, known| wanted.contains_key(id) || chosen(known) && groups.path(*id).is_some());
        let last = |id: &u64| self.known.get(id).map_or(0, |known| known.window);
        let rested = self.known.iter().filter_map(|(id, known)| match &known.choice {
            Ok(Some((owner, _))) if self.window - known.window >= REST => Some((id, owner)),
            _ => None,
        });
        let rested = rested.filter(|(id, _)| !wanted.contains_key(id));
        let mut order: Vec<_> = wanted.iter().chain(rested).map(|(id, user)| (last(id), *id, *user)).collect();
        order.sort_unstable();
        let mut of_user: FxHashMap<u32, usize> = FxHashMap::default();
        let mut order: Vec<_> = order
            .into_iter()
            .map(|(last, id, user)| {
                let nth = of_user.entry(user).or_default();
                *nth += 1;
                (*nth, last, id)
            })
            .collect();
        order.sort_unstable();
        let mut looks = LOOKS;
        for (.., id) in order {
            let Some(path) = groups.path(id) else { continue };
            let Some(directory) = groups.directory(&path) else { continue };
            let Some(mut choice) = self.choice(&directory, id, users, &mut looks) else { break };
            let before = self.known.get(&id).map(|known| &known.choice);
            if let (Some(Ok(before @ Some(_))), Ok(now @ Some(_))) = (before, &choice)
                && before != now
            {
                choice = Ok(None);
            }
            self.known.insert(id, Known { choice, path, window: self.window });
        }
    }

    /// What the owner of a directory has chosen; `None` if that takes more looks than are left.
    fn choice(&self, directory: &Path, id: u64, users: &Users<'_>, looks: &mut usize) -> Option<Choice> {
        *looks = looks.checked_sub(1)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // One that has gone, or is closed to us, says nothing.
        let Ok(directory) = open(directory, flags | OFlags::DIRECTORY, Mode::empty()) else { return Some(Ok(None)) };
        let owner = match fstat(&directory) {
            Ok(stat) if stat.st_ino == id => stat.st_uid,
            _ => return Some(Ok(None)),
        };
        let mut value = [0; LONGEST];
        let policy = match fgetxattr(&directory, ATTRIBUTE, value.as_mut_slice()) {
            Ok(length) => delegated::policy(value.get(..length).unwrap_or_default(), &self.may),
            Err(Errno::RANGE) => Err("the value is no name of a policy".to_owned()),
            Err(_) => return Some(Ok(None)),
        };
        let policy = match policy {
            Ok(policy) => policy,
            Err(why) => return Some(Err(why)),
        };
        let mut text = String::new();
        let most = (MOST + 1) * LINE;
        let read = openat(&directory, "cgroup.procs", flags, Mode::empty()).map_err(std::io::Error::from);
        if let Err(error) = read.and_then(|file| File::from(file).take(most as u64).read_to_string(&mut text)) {
            return Some(Err(format!("cgroup.procs: {error}")));
        }
        if text.split_whitespace().count() > MOST {
            return Some(Err(format!("more than {MOST} processes are in it")));
        }
        for process in text.split_whitespace().map(|process| process.parse().unwrap_or(0)) {
            let users = match users(process) {
                Some(users) => users,
                None => {
                    *looks = looks.checked_sub(1)?;
                    match self.users(process) {
                        Ok(Some(users)) => users,
                        Ok(None) => continue,
                        Err(why) => return Some(Err(why)),
                    }
                }
            };
            if let Some(why) = delegated::foreign(owner, users) {
                return Some(Err(why));
            }
        }
        Some(Ok(Some((owner, policy))))
    }

    /// Real and effective user of a process; `None` once it has ended.
    fn users(&self, process: u32) -> Result<Option<[u32; 2]>, String> {
        // The kernel writes 0 for one in a process namespace that we do not see.
        let hidden = || "a process in it cannot be looked at".to_owned();
        // A proc mount may hide those of others (`hidepid`) as if they had ended.
        let ended = || {
            let process = i32::try_from(process).ok().and_then(Pid::from_raw);
            process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
        };
        let status = match self.threads.status(process) {
            Err(error) if is_gone(&error) && ended() => return Ok(None),
            status => status.map_err(|_| hidden())?,
        };
        let mut ids = field(&status, "Uid").unwrap_or_default().split_whitespace().map(str::parse);
        match (ids.next(), ids.next()) {
            (Some(Ok(real)), Some(Ok(effective))) => Ok(Some([real, effective])),
            _ => Err(hidden()),
        }
    }

    /// Choices that do not count, and why; the first by the names of their groups.
    pub fn refused(&self) -> Vec<String> {
        let refused = |known: &Known| Some(format!("{}: {}", known.path, known.choice.as_ref().err()?));
        let mut refused: Vec<String> = self.known.values().filter_map(refused).collect();
        refused.sort_unstable();
        let more = refused.len().saturating_sub(TOLD);
        refused.truncate(TOLD);
        refused.extend((more > 0).then(|| format!("{more} more")));
        refused
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use placement::rules::{Does, Of, Rule};

    use super::*;

    fn groups(names: impl IntoIterator<Item = String>) -> (tempfile::TempDir, Groups, Vec<u64>) {
        let root = tempfile::tempdir().unwrap();
        let make = |name: String| {
            let directory = root.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            std::fs::metadata(directory).unwrap().ino()
        };
        let mut ids: Vec<u64> = names.into_iter().map(make).collect();
        ids.sort_unstable();
        let groups = Groups::at(root.path());
        (root, groups, ids)
    }

    fn owners() -> Owners {
        let rule = |policy: &str| Rule {
            name: policy.into(),
            of: Of { chosen: Some(policy.into()), ..Of::default() },
            does: Does::Move,
        };
        let list = ["nthread", "arc"].map(rule).into();
        Owners::new(&Rules { list, rest: Does::Observe }, Path::new("/proc"))
    }

    /// Ten thousand groups of one user.
    #[test]
    fn looks_are_bounded_and_nobody_waits_for_the_groups_of_another() {
        let (_root, mut groups, ids) = groups((0..LOOKS + 100).map(|i| format!("g{i}")));
        let neighbour = *ids.last().unwrap();
        let wanted: FxHashMap<u64, u32> = ids.iter().map(|id| (*id, u32::from(*id == neighbour))).collect();
        let mut owners = owners();
        let mut look = |owners: &mut Owners| owners.look(&wanted, &mut groups, &|_| None);
        look(&mut owners);
        assert_eq!(owners.known.len(), LOOKS);
        assert!(owners.known.contains_key(&neighbour));
        // Those that had to wait come first.
        look(&mut owners);
        assert_eq!((owners.known.len(), owners.known[&neighbour].window), (ids.len(), 2));
    }

    /// Many users have a group each.
    #[test]
    fn no_user_waits_for_the_same_others_again() {
        let (_root, mut groups, ids) = groups((0..LOOKS + 100).map(|i| format!("g{i}")));
        let wanted: FxHashMap<u64, u32> = ids.iter().copied().zip(0..).collect();
        let mut owners = owners();
        owners.look(&wanted, &mut groups, &|_| None);
        owners.look(&wanted, &mut groups, &|_| None);
        assert_eq!(owners.known.len(), ids.len());
    }

    #[test]
    fn a_choice_counts_while_all_processes_are_the_owners() {
        let (root, mut groups, ids) = groups(["g".to_owned()]);
        let directory = root.path().join("g");
        let owner = std::fs::metadata(&directory).unwrap().uid();
        let choose = |value: &[u8]| rustix::fs::setxattr(&directory, ATTRIBUTE, value, rustix::fs::XattrFlags::empty());
        if let Err(error) = choose(b"nthread") {
            return println!("skipped: no attributes on {}: {error}", root.path().display());
        }
        let processes = |text: &str| std::fs::write(directory.join("cgroup.procs"), text).unwrap();
        let (id, wanted) = (ids[0], [(ids[0], owner)].into_iter().collect());
        let other = owner + 1;
        let mut owners = owners();
        let mut look = |owners: &mut Owners| {
            owners.look(&wanted, &mut groups, &|process| {
                (process > 1).then_some([owner, if process == 9 { other } else { owner }])
            });
            let chosen = owners.of(id, [owner; 2]).map(|policy| policy.to_string());
            (chosen, owners.refused().pop())
        };
        let chosen = |policy: &str| (Some(policy.to_owned()), None);
        processes("7\n8\n");
        assert_eq!(look(&mut owners), chosen("nthread"));
        for users in [[other, owner], [owner, other], [other; 2]] {
            assert_eq!(owners.of(id, users), None, "{users:?}: it came after the look");
        }
        choose(b"arc").unwrap();
        assert_eq!([look(&mut owners), look(&mut owners)], [(None, None), chosen("arc")], "first all are put back");
        for (text, why) in [
            ("7\n9\n".to_owned(), "is not of the user".to_owned()),
            ("7\n0\n".to_owned(), "a process in it cannot be looked at".to_owned()),
            ("7\n".repeat(MOST + 1), format!("more than {MOST} processes")),
            ("4194303\n".repeat(MOST + 1), format!("more than {MOST} processes")),
        ] {
            processes(&text);
            let (policy, refused) = look(&mut owners);
            assert_eq!(policy, None, "{why}");
            assert!(
                refused.as_ref().is_some_and(|line| line.starts_with("/g: ") && line.contains(&why)),
                "{refused:?}"
            );
            processes("7\n");
            assert_eq!(look(&mut owners), chosen("arc"));
        }
        for value in [&[b'x'; LONGEST + 1][..], b"dragonfly", b"numad", b"\x1b[31m"] {
            choose(value).unwrap();
            let (policy, refused) = look(&mut owners);
            assert!(policy.is_none() && refused.is_some(), "{value:?}");
        }
    }
    /// A group of this one process, whose owner has chosen nthread; `None`: no attributes here.
    fn chosen(proc_root: &Path) -> Option<(tempfile::TempDir, Groups, u64, u32, Owners)> {
        let (root, groups, ids) = groups(["g".to_owned()]);
        let directory = root.path().join("g");
        let set = rustix::fs::setxattr(&directory, ATTRIBUTE, b"nthread", rustix::fs::XattrFlags::empty());
        if let Err(error) = set {
            println!("skipped: no attributes on {}: {error}", root.path().display());
            return None;
        }
        std::fs::write(directory.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        let owner = std::fs::metadata(&directory).unwrap().uid();
        let owners = Owners { threads: Threads::new(proc_root), ..owners() };
        Some((root, groups, ids[0], owner, owners))
    }

    /// Each process that no pass shows is a look: here three groups have too many for one window.
    #[test]
    fn looks_at_processes_are_bounded() {
        let names = ["a", "b", "c"];
        let (root, mut groups, ids) = groups(names.map(str::to_owned));
        for name in names {
            let directory = root.path().join(name);
            let set = rustix::fs::setxattr(&directory, ATTRIBUTE, b"arc", rustix::fs::XattrFlags::empty());
            if let Err(error) = set {
                return println!("skipped: no attributes on {}: {error}", root.path().display());
            }
            std::fs::write(directory.join("cgroup.procs"), "4194303\n".repeat(MOST)).unwrap();
        }
        let wanted = ids.iter().copied().zip(0..).collect();
        let mut owners = owners();
        owners.look(&wanted, &mut groups, &|_| None);
        assert!(owners.known.len() < 3, "three groups are more than a thousand looks");
        owners.look(&wanted, &mut groups, &|_| None);
        owners.look(&wanted, &mut groups, &|_| None);
        assert_eq!(owners.known.len(), 3);
    }

    #[test]
    fn few_refusals_are_told_and_none_once_nobody_may_choose() {
        let (root, mut groups, ids) = groups((0..TOLD + 5).map(|i| format!("g{i:02}")));
        for name in (0..TOLD + 5).map(|i| format!("g{i:02}")) {
            let set = rustix::fs::setxattr(root.path().join(name), ATTRIBUTE, b"x", rustix::fs::XattrFlags::empty());
            if let Err(error) = set {
                return println!("skipped: no attributes on {}: {error}", root.path().display());
            }
        }
        let wanted = ids.iter().map(|id| (*id, 0)).collect();
        let mut owners = owners();
        owners.look(&wanted, &mut groups, &|_| None);
        let refused = owners.refused();
        assert_eq!((refused.len(), &*refused[TOLD]), (TOLD + 1, "5 more"));
        assert!(refused[0].starts_with("/g00: "), "{refused:?}");
        owners.rule(&Rules::default());
        owners.look(&wanted, &mut groups, &|_| None);
        assert_eq!(owners.refused(), [""; 0]);
    }

    /// Groups that come and go take no memory.
    #[test]
    fn a_group_that_has_gone_is_forgotten() {
        let Some((root, mut groups, id, owner, mut owners)) = chosen(Path::new("/proc")) else { return };
        let wanted = [(id, owner)].into_iter().collect();
        owners.look(&wanted, &mut groups, &|_| Some([owner; 2]));
        assert!(owners.of(id, [owner; 2]).is_some());
        std::fs::remove_dir_all(root.path().join("g")).unwrap();
        groups.window(Ok((vec![(id, None)], false)));
        for _ in 0..20 {
            owners.look(&FxHashMap::default(), &mut groups, &|_| Some([owner; 2]));
            groups.window(Ok((Vec::new(), false)));
        }
        owners.look(&FxHashMap::default(), &mut groups, &|_| Some([owner; 2]));
        assert!(owners.known.is_empty(), "{owners:?}");
    }

    #[test]
    fn another_directory_with_the_path_of_a_group_is_not_asked() {
        let Some((root, mut groups, id, owner, mut owners)) = chosen(Path::new("/proc")) else { return };
        std::fs::rename(root.path().join("g"), root.path().join("before")).unwrap();
        let directory = root.path().join("g");
        std::fs::create_dir(&directory).unwrap();
        rustix::fs::setxattr(&directory, ATTRIBUTE, b"nthread", rustix::fs::XattrFlags::empty()).unwrap();
        std::fs::write(directory.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        owners.look(&[(id, owner)].into_iter().collect(), &mut groups, &|_| Some([owner; 2]));
        assert!(owners.of(id, [owner; 2]).is_none());
    }

    /// With `hidepid`, processes of others looked as if they had ended, and the choice counted.
    #[test]
    fn a_process_that_proc_hides_has_not_ended() {
        let empty = tempfile::tempdir().unwrap();
        for (proc_root, counts) in [(Path::new("/proc"), true), (empty.path(), false)] {
            let Some((_root, mut groups, id, owner, mut owners)) = chosen(proc_root) else { return };
            // On a busy machine procfs may answer late.
            let seen = (0..100).any(|_| {
                owners.look(&[(id, owner)].into_iter().collect(), &mut groups, &|_| None);
                std::thread::sleep(Duration::from_millis(2));
                owners.of(id, [owner; 2]).is_some()
            });
            assert_eq!(seen, counts, "{:?}", owners.refused());
        }
    }

    /// It counted when they woke, however long ago it had been taken back.
    #[test]
    fn a_choice_is_looked_at_while_all_processes_are_idle() {
        let Some((root, mut groups, id, owner, mut owners)) = chosen(Path::new("/proc")) else { return };
        owners.look(&[(id, owner)].into_iter().collect(), &mut groups, &|_| Some([owner; 2]));
        let mut idle = |owners: &mut Owners| {
            (0..REST).for_each(|_| owners.look(&FxHashMap::default(), &mut groups, &|_| Some([owner; 2])));
            owners.of(id, [owner; 2]).is_some()
        };
        assert!(idle(&mut owners));
        rustix::fs::removexattr(root.path().join("g"), ATTRIBUTE).unwrap();
        assert!(!idle(&mut owners));
    }
}
