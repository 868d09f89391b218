//! One move: prepared, made, undone.

use std::io;
use std::path::Path;

use engine::{Family, PlaneError, Undo, Undone};
use placement::Move;
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use topology::{CpuSet, NodeId, Topology};

use super::defaults::Defaults;
use super::threads::{Open, Stat, Threads, is_gone};
use super::{affinity, cpuset};

/// Nanoseconds in a unit of `/proc/<tid>/stat` (`USER_HZ` is 100 on every architecture we know).
pub const NS_PER_TICK: u64 = 10_000_000;

/// A thread: id and start time in ticks.
pub type Key = (u32, u64);

/// What may be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Also threads that have an affinity of their own.
    pub touch_own_affinity: bool,
}

/// A thread that we have moved.
#[derive(Clone, Debug)]
pub struct Moved {
    /// Affinity before the first move.
    pub before: CpuSet,
    /// It had none of its own.
    pub unbound: bool,
    /// Values that we have set, the one in force last.
    pub ours: Vec<CpuSet>,
    /// The window in which it was put back, or ended; children born before may still hold what it had.
    pub over: Option<u64>,
}

impl Moved {
    /// Whether a mask that the kernel shows is our value in force.
    pub fn holds(&self, mask: &CpuSet, allowed: &CpuSet) -> bool {
        self.over.is_none() && self.ours.last().is_some_and(|ours| is_ours(mask, ours, allowed))
    }
}

/// Moves threads and puts them back.
#[derive(Debug)]
pub struct Mover {
    threads: Threads,
    defaults: Defaults,
    rules: Rules,
    moved: FxHashMap<Key, Moved>,
    /// Masks that the moves of this window were prepared on.
    prepared: FxHashMap<Key, CpuSet>,
    /// Masks of this window that nobody asked for: what the machine gave the threads is their default.
    unasked: FxHashMap<Key, CpuSet>,
    window: u64,
}

/// For how many windows it is remembered what a thread had that was put back or has ended.
const REMEMBERED: u64 = 8;

/// Whether a mask that the kernel shows is the value we have set: all of it, or what the CPUs allowed now (`allowed`: those
/// of the cpuset that are online) leave of it. Where they leave nothing the kernel falls back to all that are allowed.
pub fn is_ours(mask: &CpuSet, ours: &CpuSet, allowed: &CpuSet) -> bool {
    let left = ours.intersection(allowed);
    mask == ours || *mask == if left.is_empty() { allowed.clone() } else { left }
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
            window: 0,
        })
    }

    /// Starts a window: what was prepared and not made is void.
    pub fn begin_window(&mut self) {
        self.defaults.refresh();
        self.prepared.clear();
        self.unasked.clear();
        self.window += 1;
        let oldest = self.window.saturating_sub(REMEMBERED);
        self.moved.retain(|_, m| m.over.is_none_or(|window| window >= oldest));
    }

    /// Threads as procfs shows them.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Default affinities.
    pub fn defaults(&mut self) -> &mut Defaults {
        &mut self.defaults
    }

    /// What may be moved.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// A thread that holds our value, or did so until recently.
    pub fn moved(&self, key: Key) -> Option<&Moved> {
        self.moved.get(&key)
    }

    /// In this window a thread has this mask although nobody ever asked for an affinity of it.
    pub fn not_asked(&mut self, key: Key, mask: CpuSet) {
        self.unasked.insert(key, mask);
    }

    /// A thread does not hold our value any more: it has ended, was put back, or has an affinity of its own.
    pub fn end(&mut self, key: Key) {
        if let Some(moved) = self.moved.get_mut(&key) {
            moved.over.get_or_insert(self.window);
        }
    }

    /// Every thread that holds our value, or did so until recently.
    pub fn all_moved(&self) -> impl Iterator<Item = (Key, &Moved)> {
        self.moved.iter().map(|(key, moved)| (*key, moved))
    }

    /// See [`engine::Plane::prepare`].
    pub fn prepare(&mut self, topology: &Topology, mv: &Move) -> Result<Undo, PlaneError> {
        let Move::Thread { tid, pid, start_ns, to, .. } = mv else {
            return Err(not_a_thread());
        };
        let (tid, to) = (*tid, *to);
        let (_, stat) = self.open(tid)?;
        let start = stat.start;
        if start_ns.is_some_and(|ns| ns / NS_PER_TICK != start) {
            return Err(gone(tid));
        }
        if stat.kernel_thread {
            return Err(refused("kernel_thread", "is a kernel thread"));
        }
        let mask = affinity::get(tid).map_err(|e| kernel(tid, "read", e))?;
        let unreadable = |e| refused("unreadable", format!("the control groups of thread {tid} cannot be read: {e}"));
        let cgroups = self.threads.cgroups(tid).map_err(unreadable)?;
        let default = self
            .defaults
            .of(tid)
            .map_err(|why| refused("cpuset_unknown", format!("its cpuset is not known: {why}")))?;
        let (before, unbound) = match self.moved.get(&(tid, start)) {
            Some(m) if m.holds(&mask, &default) => (m.before.clone(), m.unbound),
            _ if mask == default => (mask.clone(), true),
            _ if self.unasked.get(&(tid, start)) == Some(&mask) => (mask.clone(), false),
            _ if self.rules.touch_own_affinity => (mask.clone(), false),
            _ => return Err(refused("own_affinity", own_affinity(&mask))),
        };
        // Nobody asked for less than the default, but the machine gives less: that is kept to.
        let given = !unbound && !self.rules.touch_own_affinity;
        let ours = self.target(topology, to, &if given { before.intersection(&default) } else { default })?;
        let first_differs = tid != *pid && affinity::get(*pid).is_ok_and(|first| first != ours);
        self.prepared.insert((tid, start), mask);
        let family =
            Family { at: now_ticks(), session: stat.session, cgroup: cpuset::family_name(&cgroups), first_differs };
        Ok(Undo::Thread { tid, pid: *pid, start, before, ours, unbound, family: Some(family) })
    }

    /// CPUs of a node that a thread's default allows.
    fn target(&self, topology: &Topology, to: NodeId, default: &CpuSet) -> Result<CpuSet, PlaneError> {
        let cpus = topology.node(to).map(|n| n.cpus.intersection(default)).unwrap_or_default();
        match cpus.is_empty() {
            false => Ok(cpus),
            true => Err(refused("no_cpu_on_node", format!("may use no CPU of node {to}: its cpuset is {default}"))),
        }
    }

    /// See [`engine::Plane::apply`].
    pub fn apply(&mut self, undo: &Undo) -> Result<(), PlaneError> {
        let Undo::Thread { tid, start, before, ours, unbound, .. } = undo else { return Err(not_a_thread()) };
        let (tid, key) = (*tid, (*tid, *start));
        let Some(expected) = self.prepared.remove(&key) else {
            return Err(refused("not_prepared", format!("the move of thread {tid} was prepared in an earlier window")));
        };
        self.replace(key, |mask| Ok(*mask == expected), ours, |mask| refused("own_affinity", own_affinity(mask)))?;
        let moved = self.moved.entry(key).or_insert_with(|| Moved {
            before: before.clone(),
            unbound: *unbound,
            ours: Vec::new(),
            over: None,
        });
        // Somebody may have changed it between two moves of ours (and wants it touched): that is what to go back to.
        (moved.before, moved.unbound, moved.over) = (before.clone(), *unbound, None);
        moved.ours.retain(|o| o != ours);
        moved.ours.push(ours.clone());
        Ok(())
    }

    /// See [`engine::Plane::undo`].
    pub fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        let Undo::Thread { tid, start, before, ours, unbound, .. } = undo else { return Err(not_a_thread()) };
        let key = (*tid, *start);
        let is_ours = |mask: &CpuSet| {
            if mask == ours {
                return Ok(true);
            }
            match self.defaults.of(*tid) {
                Ok(allowed) => Ok(is_ours(mask, ours, &allowed)),
                // A thread whose cpuset is hidden from us is judged by the plain mask.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(unreadable(*tid, &error)),
            }
        };
        let possible = self.defaults.possible();
        let changed = |_: &CpuSet| refused("changed_by_others", "was changed by others");
        let to = if *unbound { possible } else { before };
        let mut result = self.replace(key, is_ours, to, changed);
        if matches!(&result, Err(PlaneError::Refused { reason: "einval", .. })) {
            // Its cpuset has none of the CPUs of before: what it allows is all there can be.
            result = self.replace(key, is_ours, possible, changed);
        }
        let undone = match result {
            Ok(()) => Undone::Restored,
            Err(PlaneError::Gone { .. }) => Undone::Gone,
            Err(PlaneError::Refused { reason: "changed_by_others", .. }) => Undone::ChangedByOthers,
            Err(error) => return Err(error),
        };
        self.end(key);
        Ok(undone)
    }

    /// Sets a thread's mask if what is there is as expected. An error says that the mask is as it was. The thread is known by its
    /// start time; it is looked at again after its mask was set, and should its id have been given to another one in between,
    /// that one gets back what it had.
    fn replace(
        &self,
        (tid, start): Key,
        expected: impl Fn(&CpuSet) -> Result<bool, PlaneError>,
        new: &CpuSet,
        otherwise: impl Fn(&CpuSet) -> PlaneError,
    ) -> Result<(), PlaneError> {
        let (thread, stat) = self.open(tid)?;
        if stat.start != start {
            return Err(gone(tid));
        }
        let mask = affinity::get(tid).map_err(|e| kernel(tid, "read", e))?;
        if !expected(&mask)? {
            return Err(otherwise(&mask));
        }
        affinity::set(tid, new).map_err(|e| kernel(tid, "set", e))?;
        let after = thread.stat();
        if matches!(&after, Ok(Some(stat)) if stat.start == start) {
            return Ok(());
        }
        match (affinity::set(tid, &mask), after) {
            // The thread that was not recognised has kept what it was given.
            (Err(error), Err(_)) if !is_gone(&error) => Ok(()),
            (_, Err(error)) => Err(unreadable(tid, &error)),
            (_, Ok(_)) => Err(gone(tid)),
        }
    }

    fn open(&self, tid: u32) -> Result<(Open, Stat), PlaneError> {
        self.threads.open(tid).map_err(|error| unreadable(tid, &error))?.ok_or_else(|| gone(tid))
    }
}

/// The sentence for a thread that is not ours to move.
pub fn own_affinity(mask: &CpuSet) -> String {
    format!("has an affinity of its own: {mask}")
}

/// Now, in the units of a thread's start time.
fn now_ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let ns = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0);
    ns / NS_PER_TICK
}

/// The thread that a record is about.
pub fn key_of(undo: &Undo) -> Option<Key> {
    match undo {
        Undo::Thread { tid, start, .. } => Some((*tid, *start)),
        _ => None,
    }
}

fn not_a_thread() -> PlaneError {
    refused("not_supported", "only threads are moved on a host")
}

fn gone(tid: u32) -> PlaneError {
    PlaneError::Gone { what: format!("thread {tid}") }
}

fn unreadable(tid: u32, error: &io::Error) -> PlaneError {
    refused("unreadable", format!("thread {tid} cannot be looked at: {error}"))
}

fn refused(reason: &'static str, why: impl Into<String>) -> PlaneError {
    PlaneError::Refused { reason, why: why.into() }
}

/// What the kernel's answer to an affinity call comes to.
fn kernel(tid: u32, what: &str, error: io::Error) -> PlaneError {
    let reason = match Errno::from_io_error(&error) {
        Some(Errno::SRCH) => return gone(tid),
        Some(Errno::PERM) => "eperm",
        Some(Errno::INVAL) => "einval",
        _ => "kernel",
    };
    refused(reason, format!("the affinity of thread {tid} cannot be {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_value_is_known_as_the_kernel_shows_it() {
        let set = |t: &str| t.parse::<CpuSet>().unwrap();
        let case = |mask, ours, allowed| is_ours(&set(mask), &set(ours), &set(allowed));
        assert!(case("0-3", "0-3", "0-7"));
        assert!(case("0-2", "0-3", "0-2,4-7")); // CPU 3 went offline
        assert!(case("2-3", "0-3", "2-5")); // the cpuset was narrowed
        assert!(case("4-5", "0-3", "4-5")); // the cpuset has none of ours left: the kernel gave all of it
        assert!(!case("0-2", "0-3", "0-7")); // somebody narrowed it
        assert!(!case("0-7", "0-3", "0-7")); // somebody reset it
        assert!(!case("0-1", "0-3", "0-2"));
    }
}
