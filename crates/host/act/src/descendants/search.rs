//! Descendants of moved threads, found in procfs where births were not watched: after a crash.
//!
//! A thread counts as a descendant that inherited our value if its mask is the value we set, it
//! started after the move was prepared, and one of these holds:
//!
//! 1. it belongs to the same process as the moved thread;
//! 2. the moved thread's process is among its ancestors;
//! 3. it, or its eldest ancestor that started after the move, is an orphan: it is in the moved
//!    thread's session or control group, but its parent is in neither. A process enters a session
//!    or group only by birth (or through the manager that made the group), so its real parent was a
//!    descendant and has ended.
//!
//! The moved thread itself may have another id by now: a thread that calls exec takes the id and
//! the start time of its process's first thread. So the first thread counts as the moved one if the
//! moved one is gone and the first thread has our value now, but did not have it at the time of the
//! move, or was given another value by us since.
//!
//! **Limits.** A program of the same session or group that set exactly our value itself, after the
//! move, looks like one that inherited it, and loses it. Two kinds of descendants are not found:
//! those that left the session and lost their parents, on a machine where everything is in the root
//! group; and those whose mask a cpuset has narrowed since. In normal operation this does not
//! matter, because births are watched ([`super::descendants`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;

use engine::{Masks, Undo};
use linux::affinity;
use linux::cpuset::group_name;
use linux::threads::{Stat, Threads, is_gone};
use placement::Subject;
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{CpuSet, ThreadId};

use super::context::MoveContext;
use crate::mover::{key_of, shown};

/// Longest chain of parents to follow.
const GENERATIONS: usize = 64;

/// Where the rules find facts about threads, as a trait so that tests need no processes.
pub trait Source {
    /// Facts of a thread; `None` when it has ended.
    fn stat(&self, tid: u32) -> io::Result<Option<Stat>>;
    /// Name of a thread's control group; `None` for the root group.
    fn group(&self, tid: u32) -> io::Result<Option<String>>;
}

impl Source for Threads {
    fn stat(&self, tid: u32) -> io::Result<Option<Stat>> {
        Threads::stat(self, tid)
    }

    fn group(&self, tid: u32) -> io::Result<Option<String>> {
        self.cgroups(tid).map(|c| group_name(&c))
    }
}

/// The relation of a thread to the moved one, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    SameProcess,
    Descendant,
    Orphan,
}

/// The relation of a thread of process `pid` to a moved thread of process `of`.
pub fn relation(
    source: &impl Source,
    pid: u32,
    stat: &Stat,
    of: u32,
    context: &MoveContext,
) -> io::Result<Option<Relation>> {
    if stat.id.start_ns() < Some(context.at) {
        return Ok(None);
    }
    if pid == of {
        return Ok(Some(Relation::SameProcess));
    }
    let Some(process) = source.stat(pid)? else { return Ok(None) };
    // The process, then the eldest of its ancestors that is younger than the move.
    let (mut eldest, mut eldest_stat) = (pid, process);
    let mut elder = None;
    for _ in 0..GENERATIONS {
        let parent = eldest_stat.ppid;
        let Some(parent_stat) = source.stat(parent)? else { break };
        if parent_stat.id.start_ns() < Some(context.at) {
            elder = Some((parent, parent_stat));
            break;
        }
        (eldest, eldest_stat) = (parent, parent_stat);
    }
    // All further ancestors are older than the move too, so a process with the moved one's id is
    // the moved one.
    let mut above = elder.clone();
    for _ in 0..GENERATIONS {
        let Some((ancestor, ancestor_stat)) = above else { break };
        if ancestor == of {
            return Ok(Some(Relation::Descendant));
        }
        above = source.stat(ancestor_stat.ppid)?.map(|s| (ancestor_stat.ppid, s));
    }
    // A parent that is not visible (the kernel, or one outside of our PID namespace) is no
    // descendant.
    let parent_session = elder.as_ref().map(|e| e.1.session);
    let of_session = context.session != 0 && eldest_stat.session == context.session;
    if of_session && parent_session != Some(context.session) {
        return Ok(Some(Relation::Orphan));
    }
    if context.cgroup.is_none() || source.group(eldest)? != context.cgroup {
        return Ok(None);
    }
    let orphan = match elder {
        Some((parent, _)) => source.group(parent)? != context.cgroup,
        None => true,
    };
    Ok(orphan.then_some(Relation::Orphan))
}

/// A record for the first thread of the process, if the moved thread has become the first by exec.
/// `given` is the value that we gave a first thread last: one that has another value now has it
/// from the moved thread.
pub fn became_first(
    threads: &Threads,
    undo: &Undo,
    online: &CpuSet,
    given: impl Fn(ThreadId) -> Option<CpuSet>,
) -> io::Result<Option<Undo>> {
    let (Some(thread), Some(masks), Some(context)) = (key_of(undo), &undo.masks, MoveContext::of(undo)) else {
        return Ok(None);
    };
    let pid = undo.pid;
    if thread.tid == pid {
        return Ok(None);
    }
    // Asked first: it never waits.
    match affinity::get(pid) {
        Ok(mask) if mask == shown(&masks.ours, online) => {}
        Err(error) if !is_gone(&error) => return Err(error),
        _ => return Ok(None),
    }
    if threads.stat(thread.tid)?.is_some_and(|stat| stat.id == thread) {
        return Ok(None);
    }
    // A later process with this id would have started after the move, at a later tick.
    let Some(first) = threads.stat(pid)?.filter(|first| first.id.start_ns() <= Some(context.at)) else {
        return Ok(None);
    };
    match given(first.id) {
        // It has the value from us, and a record of its own.
        Some(given) if given == masks.ours => return Ok(None),
        None if !context.first_differs => return Ok(None),
        _ => {}
    }
    Ok(Some(record_of(first.id, pid, masks.clone())))
}

fn ours_of(undo: &Undo) -> Option<CpuSet> {
    undo.masks.as_ref().map(|masks| masks.ours.clone())
}

/// For each value, as the kernel shows it now, the threads that were given it. The threads of one
/// process count as one, the first that was moved: a process has tens of thousands of them.
/// Process, session and control group decide what descends from it.
type Parents<'a> = FxHashMap<CpuSet, FxHashMap<Family, (&'a Undo, MoveContext)>>;
type Family = (u32, u32, Option<String>);

/// Undo records for every thread of the machine that descends from one in `all` and has its
/// value. Descendants are searched only for records for which `searched` is true. A thread that has
/// a record itself is left out. An error means that none was found and that some threads could not
/// be examined.
pub fn inherited(
    threads: &Threads,
    all: &[Undo],
    online: &CpuSet,
    searched: impl Fn(&Undo) -> bool,
) -> io::Result<Vec<Undo>> {
    let records: FxHashSet<ThreadId> = all.iter().filter_map(key_of).collect();
    let mut by_value = Parents::default();
    let traced: Vec<&Undo> = all.iter().filter(|undo| searched(undo)).collect();
    for undo in &traced {
        let (Some(masks), Some(context)) = (&undo.masks, MoveContext::of(undo)) else { continue };
        let of = (undo.pid, context.session, context.cgroup.clone());
        let first = by_value
            .entry(shown(&masks.ours, online))
            .or_default()
            .entry(of)
            .or_insert_with(|| (undo, context.clone()));
        if context.at < first.1.at {
            *first = (undo, context);
        }
    }
    let mut inherited = Vec::new();
    if by_value.is_empty() {
        return Ok(inherited);
    }
    let mut trouble = None;
    let mut having = Vec::new();
    for (pid, tid) in threads.all()? {
        match affinity::get(tid) {
            Ok(mask) => having.extend(by_value.get(&mask).map(|parents| (pid, tid, parents))),
            Err(error) if is_gone(&error) => {}
            Err(error) => trouble = Some(error),
        }
    }
    // All at once: those that do not answer take no time from the others.
    let met = threads.pin_all(having.iter().flat_map(|(pid, tid, _)| [*pid, *tid]).collect());
    let stats = met.into_iter().map(|(tid, met)| (tid, met.map(|met| met.map(|(_, stat)| stat))));
    let memory = Remembering { source: threads, stats: RefCell::new(stats.collect()), groups: RefCell::default() };
    for (pid, tid, parents) in having {
        match search(&memory, (pid, tid), parents, &records) {
            Ok(thread) => inherited.extend(thread),
            Err(error) => trouble = Some(error),
        }
    }
    let last: FxHashMap<ThreadId, &Undo> = all.iter().filter_map(|undo| Some((key_of(undo)?, undo))).collect();
    let given = |first: ThreadId| last.get(&first).and_then(|undo| ours_of(undo));
    for undo in traced {
        match became_first(threads, undo, online, given) {
            Ok(thread) => inherited.extend(thread),
            Err(error) => trouble = Some(error),
        }
    }
    match trouble {
        Some(error) if inherited.is_empty() => Err(error),
        _ => Ok(inherited),
    }
}

/// An undo record for a thread that has our value, made from the nearest record it can have
/// inherited from.
fn search(
    memory: &Remembering<'_>,
    (pid, tid): (u32, u32),
    parents: &FxHashMap<Family, (&Undo, MoveContext)>,
    records: &FxHashSet<ThreadId>,
) -> io::Result<Option<Undo>> {
    let Some(stat) = memory.stat(tid)? else { return Ok(None) };
    if stat.kernel_thread || records.contains(&stat.id) {
        return Ok(None);
    }
    let mut nearest: Option<(Relation, &Undo)> = None;
    for (undo, context) in parents.values() {
        if let Some(relation) = relation(memory, pid, &stat, undo.pid, context)?
            && nearest.is_none_or(|n| relation < n.0)
        {
            nearest = Some((relation, undo));
        }
    }
    let Some(masks) = nearest.and_then(|(_, undo)| undo.masks.clone()) else { return Ok(None) };
    Ok(Some(record_of(stat.id, pid, masks)))
}

/// The record of a thread that inherited our value.
pub(super) fn record_of(key: ThreadId, pid: u32, masks: Masks) -> Undo {
    Undo { subject: Subject::Thread(key), pid, masks: Some(masks), payload: None }
}

/// Reads each thread's facts once, however many records it is compared with.
struct Remembering<'a> {
    source: &'a Threads,
    stats: RefCell<HashMap<u32, io::Result<Option<Stat>>>>,
    groups: RefCell<FxHashMap<u32, Option<String>>>,
}

impl Source for Remembering<'_> {
    fn stat(&self, tid: u32) -> io::Result<Option<Stat>> {
        let mut stats = self.stats.borrow_mut();
        match stats.entry(tid).or_insert_with(|| Source::stat(self.source, tid)) {
            Ok(stat) => Ok(stat.clone()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }

    fn group(&self, tid: u32) -> io::Result<Option<String>> {
        if let Some(known) = self.groups.borrow().get(&tid) {
            return Ok(known.clone());
        }
        let group = self.source.group(tid)?;
        self.groups.borrow_mut().insert(tid, group.clone());
        Ok(group)
    }
}

#[cfg(test)]
mod tests {
    use linux::threads::own_tid;

    use super::*;

    /// pid → (ppid, start, session, group)
    struct Table(Vec<(u32, u32, u64, u32, &'static str)>);

    impl Source for Table {
        fn stat(&self, tid: u32) -> io::Result<Option<Stat>> {
            let found = self.0.iter().find(|t| t.0 == tid);
            Ok(found.map(|(_, ppid, start, session, _)| Stat {
                id: ThreadId::new(tid, *start),
                ppid: *ppid,
                session: *session,
                ..Stat::default()
            }))
        }

        fn group(&self, tid: u32) -> io::Result<Option<String>> {
            Ok(self.0.iter().find(|t| t.0 == tid).map(|t| t.4.to_owned()).filter(|group| !group.is_empty()))
        }
    }

    /// The moved thread is of process 50, moved at time 1000, session 40, group `/pg`.
    fn related(table: &Table, pid: u32) -> Option<Relation> {
        let context = MoveContext { at: 1000, session: 40, cgroup: Some("/pg".into()), first_differs: false };
        relation(table, pid, &Source::stat(table, pid).unwrap().unwrap(), 50, &context).unwrap()
    }

    fn machine(more: &[(u32, u32, u64, u32, &'static str)]) -> Table {
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
    fn threads_of_the_process_and_descendants_are_related_if_younger_than_the_move() {
        let table = machine(&[(60, 50, 1000, 40, "/pg"), (61, 60, 1200, 61, "/x"), (62, 50, 999, 40, "/pg")]);
        assert_eq!(related(&table, 60), Some(Relation::Descendant));
        assert_eq!(related(&table, 61), Some(Relation::Descendant)); // own session and group: still a grandchild
        assert_eq!(related(&table, 62), None);
        let id = ThreadId::new(51, 1001);
        let young = Stat { id, ppid: 40, session: 40, ..Stat::default() };
        let context = MoveContext { at: 1000, session: 40, cgroup: None, first_differs: false };
        assert_eq!(relation(&table, 50, &young, 50, &context).unwrap(), Some(Relation::SameProcess));
    }

    #[test]
    fn a_parent_with_older_ancestors_between_is_found() {
        // 50 started 55 before the move, and 55 started 60 after it. Whether or not 55 was moved,
        // 60 is related; a mask of ours decides.
        let table = machine(&[(55, 50, 900, 40, "/pg"), (60, 55, 1100, 40, "/pg")]);
        assert_eq!(related(&table, 60), Some(Relation::Descendant));
    }

    #[test]
    fn orphans_are_known_by_session_or_group() {
        let table = machine(&[(70, 1, 1100, 40, ""), (71, 1, 1100, 71, "/pg"), (72, 70, 1200, 72, "")]);
        assert_eq!(related(&table, 70), Some(Relation::Orphan));
        assert_eq!(related(&table, 71), Some(Relation::Orphan));
        assert_eq!(related(&table, 72), Some(Relation::Orphan)); // child of an orphan
    }

    #[test]
    fn other_children_of_the_session_are_not_related() {
        // `numactl` typed into the same shell, and into another one.
        let table = machine(&[(80, 40, 1100, 40, "/pg"), (81, 41, 1100, 41, "/user"), (82, 1, 1100, 82, "/user")]);
        assert_eq!(related(&table, 80), None);
        assert_eq!(related(&table, 81), None);
        assert_eq!(related(&table, 82), None);
    }

    #[test]
    fn a_later_process_with_the_same_id_is_not_related() {
        let mut table = machine(&[(60, 50, 1200, 41, "/user")]);
        table.0.retain(|t| t.0 != 50);
        table.0.push((50, 41, 1100, 41, "/user"));
        assert_eq!(related(&table, 60), None);
    }

    #[test]
    fn the_root_group_and_session_0_prove_nothing() {
        let table = machine(&[(60, 1, 1200, 0, "")]);
        let context = MoveContext { at: 1000, session: 0, cgroup: None, first_differs: false };
        assert_eq!(relation(&table, 60, &Source::stat(&table, 60).unwrap().unwrap(), 50, &context).unwrap(), None);
    }

    /// A child that was born while a CPU of the node was offline was bound to the others for ever.
    #[test]
    fn a_child_is_found_while_a_cpu_of_the_node_is_offline() {
        let all = affinity::get(0).unwrap();
        let one: CpuSet = all.iter().take(1).collect();
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let value = one.clone();
        let child = std::thread::spawn(move || {
            affinity::set(0, &value).unwrap();
            tell.send(own_tid()).unwrap();
            _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        let threads = Threads::new(std::path::Path::new("/proc"));
        let context = MoveContext { at: 0, session: 0, cgroup: None, first_differs: false };
        let masks = Masks { before: all.clone(), ours: one.iter().chain([9999]).collect(), unbound: true };
        let gone = Undo {
            subject: Subject::Thread(ThreadId::new(u32::MAX, None)),
            pid: std::process::id(),
            masks: Some(masks.clone()),
            payload: context.payload(),
        };
        let found = inherited(&threads, &[gone], &all, |_| true).unwrap();
        let of_child = found.iter().find(|thread| key_of(thread).is_some_and(|key| key.tid == tid));
        assert_eq!(of_child.and_then(|thread| thread.masks.clone()), Some(masks));
        drop(end);
        child.join().unwrap();
    }

    #[test]
    fn a_ring_of_parents_ends() {
        let table = Table(vec![(60, 61, 1200, 9, ""), (61, 60, 1200, 9, "")]);
        assert_eq!(related(&table, 60), None);
    }
}
