//! Who was born of moved threads, when nobody watched the births: after a crash, from what procfs can prove.
//!
//! A thread is taken for a descendant that inherited our value when its mask is the value we had set, it started after
//! the move was prepared, and one of these holds:
//!
//! 1. it belongs to the same process as the moved thread;
//! 2. the moved thread's process is among its ancestors;
//! 3. it, or the eldest of its ancestors that started after the move, is an orphan of the family: in the moved thread's
//!    session or control group, while its parent is in neither. A session or group is only come by through birth
//!    (or through the manager that made the group), so the real parent was in the family and has ended.
//!
//! **Limits.** A program of the same family that set exactly our value itself, after the move, cannot be told from one
//! that inherited it, and is widened. A descendant that has left the session and, on a machine where everything is in the
//! root group, has lost its parents is not found. Neither is one whose mask a cpuset has narrowed since. In normal
//! operation neither matters: births are watched ([`super::lineage`]).

use std::io;

use engine::{Family, Undo};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::CpuSet;

use super::affinity;
use super::cpuset::family_name;
use super::mover::{Key, key_of};
use super::threads::{Stat, Threads};

/// Longest chain of parents that is followed.
const GENERATIONS: usize = 64;

/// What is asked of procfs, so that the rule can be tested without processes.
pub trait Facts {
    /// Facts of a thread; `None` when it has ended.
    fn stat(&self, tid: u32) -> Option<Stat>;
    /// Family name of a thread's control group; empty for the root group.
    fn group(&self, tid: u32) -> String;
}

impl Facts for Threads {
    fn stat(&self, tid: u32) -> Option<Stat> {
        Threads::stat(self, tid).ok().flatten()
    }

    fn group(&self, tid: u32) -> String {
        self.cgroups(tid).map(|c| family_name(&c)).unwrap_or_default()
    }
}

/// How close a thread is to the one that was moved; nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kinship {
    /// Rule 1.
    SameProcess,
    /// Rule 2.
    Descendant,
    /// Rule 3.
    Orphan,
}

/// How a thread of process `pid` is related to a moved thread of process `of`.
pub fn kinship(facts: &impl Facts, pid: u32, stat: &Stat, of: u32, family: &Family) -> Option<Kinship> {
    if stat.start < family.at {
        return None;
    }
    if pid == of {
        return Some(Kinship::SameProcess);
    }
    // The process, then the eldest of its ancestors that is younger than the move.
    let (mut eldest, mut eldest_stat) = (pid, facts.stat(pid)?);
    let mut elder = None;
    for _ in 0..GENERATIONS {
        let parent = eldest_stat.ppid;
        let Some(parent_stat) = facts.stat(parent) else { break };
        if parent_stat.start < family.at {
            elder = Some((parent, parent_stat));
            break;
        }
        (eldest, eldest_stat) = (parent, parent_stat);
    }
    // An ancestor above this one is older than the move too, so a process that has the moved one's id is the moved one.
    let mut above = elder.clone();
    for _ in 0..GENERATIONS {
        let Some((ancestor, ancestor_stat)) = above else { break };
        if ancestor == of {
            return Some(Kinship::Descendant);
        }
        above = facts.stat(ancestor_stat.ppid).map(|s| (ancestor_stat.ppid, s));
    }
    // Without a parent that we can see (its parent is the kernel, or outside of our pid namespace) nothing is in the family.
    let parent_session = elder.as_ref().map(|e| e.1.session);
    let of_session = family.session != 0 && eldest_stat.session == family.session;
    if of_session && parent_session != Some(family.session) {
        return Some(Kinship::Orphan);
    }
    let in_group = |tid: u32| !family.cgroup.is_empty() && facts.group(tid) == family.cgroup;
    let orphan = in_group(eldest) && elder.is_none_or(|e| !in_group(e.0));
    orphan.then_some(Kinship::Orphan)
}

/// Undo records for every thread of the machine that is kin of one in `held` and holds its value.
pub fn heirs(threads: &Threads, held: &[Undo]) -> io::Result<Vec<Undo>> {
    let records: FxHashSet<Key> = held.iter().filter_map(key_of).collect();
    let mut by_value: Vec<(&CpuSet, Vec<&Undo>)> = Vec::new();
    for undo in held {
        let Undo::Thread { ours, family: Some(_), .. } = undo else { continue };
        match by_value.iter_mut().find(|v| v.0 == ours) {
            Some(value) => value.1.push(undo),
            None => by_value.push((ours, vec![undo])),
        }
    }
    let mut heirs = Vec::new();
    if by_value.is_empty() {
        return Ok(heirs);
    }
    for (pid, tid) in threads.all()? {
        let Ok(mask) = affinity::get(tid) else { continue };
        let Some((_, undos)) = by_value.iter().find(|v| *v.0 == mask) else { continue };
        let Ok(Some(stat)) = threads.stat(tid) else { continue };
        if stat.kernel_thread || records.contains(&(tid, stat.start)) {
            continue;
        }
        heirs.extend(nearest(threads, (pid, tid), &stat, undos));
    }
    Ok(heirs)
}

/// The record that a thread has inherited from, as one of its own.
fn nearest(threads: &Threads, (pid, tid): (u32, u32), stat: &Stat, undos: &[&Undo]) -> Option<Undo> {
    let memory = Remembering { facts: threads, stats: Default::default(), groups: Default::default() };
    let related = undos.iter().filter_map(|undo| {
        let Undo::Thread { pid: of, family: Some(family), .. } = undo else { return None };
        Some((kinship(&memory, pid, stat, *of, family)?, *undo))
    });
    let (_, Undo::Thread { before, ours, unbound, .. }) = related.min_by_key(|r| r.0)? else { return None };
    let (before, ours, unbound) = (before.clone(), ours.clone(), *unbound);
    Some(Undo::Thread { tid, pid, start: stat.start, before, ours, unbound, family: None })
}

/// Asks for every thread once, however many records it is compared with.
struct Remembering<'a> {
    facts: &'a Threads,
    stats: std::cell::RefCell<FxHashMap<u32, Option<Stat>>>,
    groups: std::cell::RefCell<FxHashMap<u32, String>>,
}

impl Facts for Remembering<'_> {
    fn stat(&self, tid: u32) -> Option<Stat> {
        self.stats.borrow_mut().entry(tid).or_insert_with(|| Facts::stat(self.facts, tid)).clone()
    }

    fn group(&self, tid: u32) -> String {
        self.groups.borrow_mut().entry(tid).or_insert_with(|| self.facts.group(tid)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// pid → (ppid, start, session, group)
    struct Table(Vec<(u32, u32, u64, u32, &'static str)>);

    impl Facts for Table {
        fn stat(&self, tid: u32) -> Option<Stat> {
            let (_, ppid, start, session, _) = *self.0.iter().find(|t| t.0 == tid)?;
            Some(Stat { comm: String::new(), ppid, session, kernel_thread: false, start })
        }

        fn group(&self, tid: u32) -> String {
            self.0.iter().find(|t| t.0 == tid).map_or(String::new(), |t| t.4.to_owned())
        }
    }

    /// The moved thread is of process 50, moved at time 1000, session 40, group `/pg`.
    fn related(table: &Table, pid: u32) -> Option<Kinship> {
        let family = Family { at: 1000, session: 40, cgroup: "/pg".into() };
        kinship(table, pid, &Facts::stat(table, pid).unwrap(), 50, &family)
    }

    fn family(more: &[(u32, u32, u64, u32, &'static str)]) -> Table {
        let mut all = vec![
            (1, 0, 1, 1, ""),
            (40, 1, 500, 40, "/pg"), // the shell that leads the session
            (50, 40, 600, 40, "/pg"),
            (41, 1, 510, 41, "/user"), // another session's shell
        ];
        all.extend_from_slice(more);
        Table(all)
    }

    #[test]
    fn threads_of_the_process_and_descendants_are_kin_if_younger_than_the_move() {
        let table = family(&[(60, 50, 1000, 40, "/pg"), (61, 60, 1200, 61, "/x"), (62, 50, 999, 40, "/pg")]);
        assert_eq!(related(&table, 60), Some(Kinship::Descendant));
        assert_eq!(related(&table, 61), Some(Kinship::Descendant)); // own session and group: still a grandchild
        assert_eq!(related(&table, 62), None);
        let young = Stat { comm: String::new(), ppid: 40, session: 40, kernel_thread: false, start: 1001 };
        let family = Family { at: 1000, session: 40, cgroup: String::new() };
        assert_eq!(kinship(&table, 50, &young, 50, &family), Some(Kinship::SameProcess));
    }

    #[test]
    fn a_parent_with_older_ancestors_between_is_found() {
        // 55 was born of 50 before the move and has a child after it: its mask is inherited from 55, which was not moved,
        // unless 55 was: it is of the family all the same, and only a mask that is ours counts.
        let table = family(&[(55, 50, 900, 40, "/pg"), (60, 55, 1100, 40, "/pg")]);
        assert_eq!(related(&table, 60), Some(Kinship::Descendant));
    }

    #[test]
    fn orphans_are_known_by_session_or_group() {
        let table = family(&[(70, 1, 1100, 40, ""), (71, 1, 1100, 71, "/pg"), (72, 70, 1200, 72, "")]);
        assert_eq!(related(&table, 70), Some(Kinship::Orphan));
        assert_eq!(related(&table, 71), Some(Kinship::Orphan));
        assert_eq!(related(&table, 72), Some(Kinship::Orphan)); // child of an orphan
    }

    #[test]
    fn what_others_of_the_session_start_is_not_kin() {
        // `numactl` typed into the same shell, and into another one.
        let table = family(&[(80, 40, 1100, 40, "/pg"), (81, 41, 1100, 41, "/user"), (82, 1, 1100, 82, "/user")]);
        assert_eq!(related(&table, 80), None);
        assert_eq!(related(&table, 81), None);
        assert_eq!(related(&table, 82), None);
    }

    #[test]
    fn a_process_that_got_the_moved_ones_id_later_is_nobody() {
        let mut table = family(&[(60, 50, 1200, 41, "/user")]);
        table.0.retain(|t| t.0 != 50);
        table.0.push((50, 41, 1100, 41, "/user"));
        assert_eq!(related(&table, 60), None);
    }

    #[test]
    fn the_root_group_and_session_0_prove_nothing() {
        let table = family(&[(60, 1, 1200, 0, "")]);
        let family = Family { at: 1000, session: 0, cgroup: String::new() };
        assert_eq!(kinship(&table, 60, &Facts::stat(&table, 60).unwrap(), 50, &family), None);
    }

    #[test]
    fn a_ring_of_parents_ends() {
        let table = Table(vec![(60, 61, 1200, 9, ""), (61, 60, 1200, 9, "")]);
        assert_eq!(related(&table, 60), None);
    }
}
