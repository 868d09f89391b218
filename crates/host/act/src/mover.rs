//! Prepares, makes and undoes moves of threads.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use engine::{Masks, PlaneError, Subject, Undo, Undone};
use linux::clock::{self, ClockId};
use linux::threads::{Pinned, Stat, Threads, as_shown, is_gone};
use linux::{affinity, cpuset};
use placement::Move;
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use topology::{CpuSet, NodeId, ThreadId, Topology};

use super::defaults::Defaults;
use super::descendants::context::MoveContext;

/// The values that the threads of one process were given.
#[derive(Clone, Debug, Default)]
pub struct Given(FxHashMap<CpuSet, (Undo, bool)>);

impl Given {
    pub fn add(&mut self, undo: &Undo) {
        let Some(masks) = &undo.masks else { return };
        let back = |undo: &Undo| undo.masks.as_ref().map(|masks| (masks.before.clone(), masks.unbound));
        let (first, alike) = self.0.entry(masks.ours.clone()).or_insert_with(|| (undo.clone(), true));
        *alike &= back(first) == back(undo);
    }

    pub fn has(&self, value: &CpuSet) -> bool {
        self.0.contains_key(value)
    }

    /// The record of the first thread that was given this value.
    pub fn first(&self, value: &CpuSet) -> Option<&Undo> {
        self.0.get(value).map(|(undo, _)| undo)
    }

    /// The same, if all threads that were given this value get the same affinity back.
    fn alike(&self, value: &CpuSet) -> Option<&Undo> {
        self.0.get(value).filter(|(_, alike)| *alike).map(|(undo, _)| undo)
    }
}

/// Rules about which threads may be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Threads with an affinity of their own may be moved, too.
    pub touch_own_affinity: bool,
}

#[derive(Clone, Debug)]
pub struct Moved {
    pub before: CpuSet,
    /// It had no affinity of its own.
    pub unbound: bool,
    /// The values we set; the last is in force.
    pub ours: Vec<CpuSet>,
    /// The window in which it stopped having our value. Children born before may still have it.
    pub over: Option<u64>,
}

impl Moved {
    /// Whether a mask shown by the kernel is our value in force.
    pub fn holds(&self, mask: &CpuSet, allowed: &CpuSet) -> bool {
        self.over.is_none() && self.ours.last().is_some_and(|ours| is_ours(mask, ours, allowed))
    }
}

#[derive(Debug)]
pub struct Mover {
    threads: Threads,
    pub(crate) defaults: Defaults,
    pub(crate) rules: Rules,
    moved: FxHashMap<ThreadId, Moved>,
    /// The masks found when the moves of this window were prepared.
    prepared: FxHashMap<ThreadId, CpuSet>,
    /// Masks of this window that nobody asked for. They count as the default of their threads.
    unasked: FxHashMap<ThreadId, CpuSet>,
    /// Threads that are about to be put back, as [`Self::meet`] found them.
    met: HashMap<u32, io::Result<Option<(Pinned, Stat)>>>,
    window: u64,
}

/// For how many windows the values of a restored or ended thread are remembered.
const REMEMBERED: u64 = 8;

/// Whether a mask shown by the kernel is the value we set: either all of it, or what the kernel
/// [shows](shown) of it with the CPUs allowed now (`allowed`: the online CPUs of the cpuset).
pub fn is_ours(mask: &CpuSet, ours: &CpuSet, allowed: &CpuSet) -> bool {
    mask == ours || *mask == shown(ours, allowed)
}

/// The value `ours` as the kernel shows it while only these CPUs are allowed: without any of its
/// own, a thread may use them all.
pub fn shown(ours: &CpuSet, allowed: &CpuSet) -> CpuSet {
    let left = ours.intersection(allowed);
    if left.is_empty() { allowed.clone() } else { left }
}

#[cfg(test)]
thread_local! {
    /// Calls of [`mask_of`] by this thread.
    pub static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn mask_of(tid: u32) -> std::io::Result<CpuSet> {
    #[cfg(test)]
    LOOKS.with(|looks| looks.set(looks.get() + 1));
    affinity::get(tid)
}

impl Mover {
    /// A mover on the machine whose procfs and sysfs are mounted here.
    pub fn new(proc_root: &Path, sys_root: &Path, rules: Rules) -> io::Result<Self> {
        Ok(Self {
            threads: Threads::new(proc_root),
            defaults: Defaults::new(proc_root, sys_root)?,
            rules,
            moved: FxHashMap::default(),
            prepared: FxHashMap::default(),
            unasked: FxHashMap::default(),
            met: HashMap::new(),
            window: 0,
        })
    }

    /// Starts a window. Moves prepared earlier and not made become void.
    pub fn begin_window(&mut self) {
        self.defaults.refresh();
        self.prepared.clear();
        self.unasked.clear();
        self.window += 1;
        let oldest = self.window.saturating_sub(REMEMBERED);
        self.moved.retain(|_, m| m.over.is_none_or(|window| window >= oldest));
    }

    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// The same, to say who else answers about them.
    pub fn threads_mut(&mut self) -> &mut Threads {
        &mut self.threads
    }

    /// These are about to be undone. Asks for the identity of all threads that still have our value
    /// at once: asked one after the other, the silent ones would take the time of the rest.
    pub fn meet(&mut self, undos: &[Undo]) {
        let holds = |undo: &Undo| {
            let (key, masks) = (key_of(undo)?, undo.masks.as_ref()?);
            let mask = mask_of(key.tid).ok()?;
            // A thread that cannot be judged is asked about, too.
            self.has_ours(key.tid, &mask, &masks.ours).unwrap_or(true).then_some(key.tid)
        };
        self.met = self.threads.pin_all(undos.iter().filter_map(holds).collect());
    }

    /// A thread that has our value, or recently did.
    pub fn moved(&self, key: ThreadId) -> Option<&Moved> {
        self.moved.get(&key)
    }

    /// Records that nobody asked for the mask this thread has in this window.
    pub fn not_asked(&mut self, key: ThreadId, mask: CpuSet) {
        self.unasked.insert(key, mask);
    }

    /// Records that a thread no longer has our value: it ended, was restored, or got an affinity of
    /// its own.
    pub fn end(&mut self, key: ThreadId) {
        if let Some(moved) = self.moved.get_mut(&key) {
            moved.over.get_or_insert(self.window);
        }
    }

    /// Every thread that has our value, or recently did.
    pub fn all_moved(&self) -> impl Iterator<Item = (ThreadId, &Moved)> {
        self.moved.iter().map(|(key, moved)| (*key, moved))
    }

    pub fn prepare(&mut self, topology: &Topology, mv: &Move) -> Result<Undo, PlaneError> {
        let Subject::Thread(id) = mv.subject else {
            return Err(not_a_thread());
        };
        let (tid, to, pid) = (id.tid, mv.to, mv.pid);
        let (_, stat) = self.pin(tid)?;
        let thread = stat.id;
        if !id.may_be(thread) {
            return Err(gone(tid));
        }
        if stat.kernel_thread {
            return Err(PlaneError::refused("kernel_thread", "is a kernel thread"));
        }
        let mask = mask_of(tid).map_err(|e| kernel(tid, "read", e))?;
        let unreadable =
            |e| PlaneError::failed("unreadable", format!("the control groups of thread {tid} cannot be read"), e);
        let cgroups = self.threads.cgroups(tid).map_err(unreadable)?;
        let default =
            self.defaults.of(tid).map_err(|e| PlaneError::failed("cpuset_unknown", "its cpuset is unknown", e))?;
        let (before, unbound) = match self.moved.get(&thread) {
            Some(m) if m.holds(&mask, &default) => (m.before.clone(), m.unbound),
            _ if mask == default => (mask.clone(), true),
            _ if self.unasked.get(&thread) == Some(&mask)
                || self.defaults.spares_isolated(&mask, &default)
                || self.rules.touch_own_affinity =>
            {
                (self.with_offline(tid, &mask)?, false)
            }
            _ => return Err(PlaneError::refused("own_affinity", own_affinity(&mask))),
        };
        // A thread that has less than its default, without anybody's asking, stays within that.
        let given = !unbound && !self.rules.touch_own_affinity;
        let ours = self.target(topology, to, &if given { before.intersection(&default) } else { default })?;
        let first_differs = tid != pid && mask_of(pid).is_ok_and(|first| first != ours);
        self.prepared.insert(thread, mask);
        let at = as_shown(clock::ns(ClockId::Boottime));
        let context = MoveContext { at, session: stat.session, cgroup: cpuset::group_name(&cgroups), first_differs };
        let subject = Subject::Thread(thread);
        let masks = Some(Masks { before, ours, unbound });
        Ok(Undo { subject, pid, masks, payload: context.payload() })
    }

    /// The mask that a thread gets back, with CPUs that are offline now: they may come back before.
    /// In any cpuset but the root's the kernel does not show these.
    fn with_offline(&self, tid: u32, mask: &CpuSet) -> Result<CpuSet, PlaneError> {
        if self.defaults.possible() == self.defaults.online() {
            return Ok(mask.clone());
        }
        let given = self.threads.affinity(tid);
        let given = given.map_err(|error| if is_gone(&error) { gone(tid) } else { unreadable(tid, error) })?;
        // Otherwise somebody has changed it meanwhile.
        Ok(if given.intersection(self.defaults.online()) == *mask { given } else { mask.clone() })
    }

    /// A record for a new thread of a process whose threads were given these values, if it was born
    /// with one of them. It is then moved as its parent was. Which thread that is is not known, so
    /// all threads with that value must get the same affinity back.
    pub fn inherited(&mut self, given: &Given, stat: &Stat) -> Option<Undo> {
        if given.0.is_empty() {
            return None;
        }
        let parent = given.alike(&mask_of(stat.id.tid).ok()?)?;
        let (masks, context) = (parent.masks.as_ref()?, MoveContext::of(parent)?);
        if stat.id.start_ns() < Some(context.at) {
            return None;
        }
        self.prepared.insert(stat.id, masks.ours.clone());
        Some(Undo { subject: Subject::Thread(stat.id), ..parent.clone() })
    }

    /// Takes a thread that has inherited our value for one that was moved.
    pub fn adopt(&mut self, undo: &Undo) {
        if let (Some(key), Some(masks)) = (key_of(undo), &undo.masks) {
            let Masks { before, ours, unbound } = masks.clone();
            self.moved.insert(key, Moved { before, unbound, ours: vec![ours], over: None });
        }
    }

    /// The CPUs of a node that a thread may use.
    fn target(&self, topology: &Topology, to: NodeId, default: &CpuSet) -> Result<CpuSet, PlaneError> {
        let cpus = topology.node(to).map(|n| n.cpus.intersection(default)).unwrap_or_default();
        match cpus.is_empty() {
            false => Ok(cpus),
            true => Err(PlaneError::refused(
                "no_cpu_on_node",
                format!("may use no CPU of node {to}: its cpuset is {default}"),
            )),
        }
    }

    pub fn apply(&mut self, undo: &Undo) -> Result<(), PlaneError> {
        let (Some(key), Some(Masks { before, ours, unbound })) = (key_of(undo), &undo.masks) else {
            return Err(not_a_thread());
        };
        let tid = key.tid;
        let Some(expected) = self.prepared.remove(&key) else {
            return Err(PlaneError::refused(
                "not_prepared",
                format!("the move of thread {tid} was not prepared in this window"),
            ));
        };
        self.replace(
            key,
            &self.pin(tid)?,
            |mask| Ok(*mask == expected),
            ours,
            |mask| PlaneError::refused("own_affinity", own_affinity(mask)),
        )?;
        let moved = self.moved.entry(key).or_insert_with(|| Moved {
            before: before.clone(),
            unbound: *unbound,
            ours: Vec::new(),
            over: None,
        });
        // With touch_own_affinity, another program may have set it between two moves of ours: go
        // back to that value.
        (moved.before, moved.unbound, moved.over) = (before.clone(), *unbound, None);
        moved.ours.retain(|o| o != ours);
        moved.ours.push(ours.clone());
        Ok(())
    }

    pub fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        let (Some(key), Some(Masks { before, ours, unbound })) = (key_of(undo), &undo.masks) else {
            return Err(not_a_thread());
        };
        let tid = key.tid;
        // A thread with another value needs no identity, and its process may not answer.
        let met = self.met.remove(&tid);
        match mask_of(tid) {
            Ok(mask) if !self.has_ours(tid, &mask, ours)? => {
                self.end(key);
                return Ok(Undone::ChangedByOthers);
            }
            Err(error) if is_gone(&error) => {
                self.end(key);
                return Ok(Undone::Gone);
            }
            _ => {}
        }
        let who = match met {
            // The id may have passed to another thread since.
            Some(Ok(Some(who))) if who.1.id == key => Ok(who),
            Some(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Err(unreadable(tid, error)),
            _ => self.pin(tid),
        };
        let is_ours = |mask: &CpuSet| self.has_ours(tid, mask, ours);
        let possible = self.defaults.possible();
        let changed = |_: &CpuSet| PlaneError::refused("changed_by_others", "was changed by others");
        let to = if *unbound { possible } else { before };
        let result = who.and_then(|who| match self.replace(key, &who, is_ours, to, changed) {
            // Its cpuset no longer contains any of the earlier CPUs: allow all that it does
            // contain.
            Err(PlaneError::Refused { reason: "einval", .. }) => self.replace(key, &who, is_ours, possible, changed),
            replaced => replaced,
        });
        let undone = match result {
            Ok(()) => Undone::Restored,
            Err(PlaneError::Gone { .. }) => Undone::Gone,
            Err(PlaneError::Refused { reason: "changed_by_others", .. }) => Undone::ChangedByOthers,
            Err(error) => return Err(error),
        };
        self.end(key);
        Ok(undone)
    }

    /// Sets a thread's mask if the present mask is as expected. After an error the mask is as
    /// before. The start time identifies the thread and is checked again afterwards: if another
    /// thread got the id in between, that thread gets its mask back.
    fn replace(
        &self,
        key: ThreadId,
        (pinned, stat): &(Pinned, Stat),
        expected: impl Fn(&CpuSet) -> Result<bool, PlaneError>,
        new: &CpuSet,
        otherwise: impl Fn(&CpuSet) -> PlaneError,
    ) -> Result<(), PlaneError> {
        let tid = key.tid;
        if stat.id != key {
            return Err(gone(tid));
        }
        let mask = mask_of(tid).map_err(|e| kernel(tid, "read", e))?;
        if !expected(&mask)? {
            return Err(otherwise(&mask));
        }
        affinity::set(tid, new).map_err(|e| kernel(tid, "set", e))?;
        let after = pinned.is_still(key);
        if matches!(after, Ok(true)) {
            return Ok(());
        }
        match (affinity::set(tid, &mask), after) {
            // The mask could not be put back, so the move stands.
            (Err(error), Err(_)) if !is_gone(&error) => Ok(()),
            (_, Err(error)) => Err(unreadable(tid, error)),
            (_, Ok(_)) => Err(gone(tid)),
        }
    }

    fn pin(&self, tid: u32) -> Result<(Pinned, Stat), PlaneError> {
        self.threads.pin(tid).map_err(|error| unreadable(tid, error))?.ok_or_else(|| gone(tid))
    }

    /// Whether this mask of a thread is our value.
    fn has_ours(&self, tid: u32, mask: &CpuSet, ours: &CpuSet) -> Result<bool, PlaneError> {
        if mask == ours {
            return Ok(true);
        }
        match self.defaults.of(tid) {
            Ok(allowed) => Ok(is_ours(mask, ours, &allowed)),
            // The cpuset is hidden from us or gone: judge by the plain mask.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unreadable(tid, error)),
        }
    }
}

/// The sentence about a thread that keeps its own affinity.
pub fn own_affinity(mask: &CpuSet) -> String {
    format!("has an affinity of its own: {mask}")
}

pub fn key_of(undo: &Undo) -> Option<ThreadId> {
    match undo.subject {
        Subject::Thread(id) => Some(id),
        _ => None,
    }
}

fn not_a_thread() -> PlaneError {
    PlaneError::refused("not_supported", "a host can move threads only")
}

fn gone(tid: u32) -> PlaneError {
    PlaneError::Gone { what: format!("thread {tid}") }
}

fn unreadable(tid: u32, error: io::Error) -> PlaneError {
    PlaneError::failed("unreadable", format!("thread {tid} cannot be examined"), error)
}

/// Translates the kernel's answer to an affinity call.
fn kernel(tid: u32, what: &str, error: io::Error) -> PlaneError {
    let reason = match Errno::from_io_error(&error) {
        Some(Errno::SRCH) => return gone(tid),
        Some(Errno::PERM) => "eperm",
        Some(Errno::INVAL) => "einval",
        _ => "kernel",
    };
    PlaneError::failed(reason, format!("the affinity of thread {tid} cannot be {what}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_value_is_recognised_as_the_kernel_shows_it() {
        let set = |t: &str| t.parse::<CpuSet>().unwrap();
        let case = |mask, ours, allowed| is_ours(&set(mask), &set(ours), &set(allowed));
        assert!(case("0-3", "0-3", "0-7"));
        assert!(case("0-2", "0-3", "0-2,4-7")); // CPU 3 went offline
        assert!(case("2-3", "0-3", "2-5")); // the cpuset was narrowed
        assert!(case("4-5", "0-3", "4-5")); // the cpuset has none of our CPUs left: the kernel fell back to all of it
        assert!(!case("0-2", "0-3", "0-7")); // another program narrowed it
        assert!(!case("0-7", "0-3", "0-7")); // another program reset it
        assert!(!case("0-1", "0-3", "0-2"));
    }

    /// A thread that was born in a moved process got what the first of its threads had before, for
    /// good: one CPU, if that had bound itself to it.
    #[test]
    fn what_a_thread_gets_back_is_known_only_if_all_get_the_same() {
        let set = |t: &str| t.parse::<CpuSet>().unwrap();
        let undo = |tid, before: &str| Undo {
            subject: Subject::Thread(ThreadId::new(tid, 10_000_000)),
            pid: 1,
            masks: Some(Masks { before: set(before), ours: set("4-7"), unbound: before == "0-7" }),
            payload: None,
        };
        let mut given = Given::default();
        given.add(&undo(1, "0-7"));
        given.add(&undo(2, "0-7"));
        assert_eq!(given.alike(&set("4-7")), Some(&undo(1, "0-7")));
        given.add(&undo(3, "3"));
        assert_eq!((given.alike(&set("4-7")), given.has(&set("4-7"))), (None, true));
        assert_eq!(given.alike(&set("0-3")), None);
    }
}
