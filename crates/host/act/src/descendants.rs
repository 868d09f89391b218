//! Threads that descend from moved ones and have inherited their affinity.
//!
//! **Problem.** A child is born with the affinity of its parent. No policy has decided that the
//! child should have it, so it must be put back.
//!
//! **Approach.** While homenode runs, the kernel reports births ([`Descendants`]). After a crash,
//! and without a watcher, procfs is searched ([`search`]) for threads that the undo record of a
//! move describes ([`context`]). A descendant that set its affinity itself keeps it, even if it
//! equals ours. A descendant is put back once; whatever it has afterwards is its own.
//!
//! **Limits.** Before Linux 6.2 the kernel does not show that an affinity was set. A descendant
//! that set exactly our value before it was put back (`numactl -N 0 …` started by a thread that was
//! moved to node 0, for example) then loses it. From 6.2 on this can happen only to a program that
//! sets its affinity twice between two windows: the kernel's allocator reuses an address that was
//! freed last, so the second value often lies where ours did.

pub mod context;
pub mod search;

use std::io;

use engine::{Masks, Undo};
use linux::affinity;
use linux::births::{Descendant, Origin};
use linux::threads::is_gone;
use rustc_hash::FxHashMap;
use topology::{CpuSet, ThreadId};

use self::search::record_of;
use super::mover::{Moved, Mover};

/// Remembers the moved thread that each descendant descends from, as long as it or a child of it
/// lives.
#[derive(Debug, Default)]
pub struct Descendants {
    ancestors: FxHashMap<u32, ThreadId>,
}

impl Descendants {
    /// Undo records for the living descendants that have a value of ours.
    ///
    /// A child is traced to its moved ancestor through its parents, including ended ones that an
    /// earlier call saw. A child without a trace still descends from some moved thread; its mask
    /// shows which one.
    ///
    /// An error means that none was found and that some threads could not be examined.
    pub fn inherited(&mut self, mover: &Mover, descendants: &[Descendant]) -> io::Result<Vec<Undo>> {
        let mut moved: FxHashMap<u32, ThreadId> = FxHashMap::default();
        // Thousands of threads were given few values.
        let mut values: FxHashMap<&CpuSet, &Moved> = FxHashMap::default();
        for (key, one) in mover.all_moved() {
            moved.insert(key.tid, key);
            one.ours.iter().for_each(|ours| _ = values.entry(ours).or_insert(one));
        }
        let mut children: Vec<&Descendant> = descendants.iter().filter(|d| d.origin != Origin::Moved).collect();
        children.sort_unstable_by_key(|c| (c.start_ns, c.tid));
        let mut trouble = None;
        let mut ancestors: FxHashMap<u32, ThreadId> = FxHashMap::default();
        let mut inherited = Vec::new();
        for child in &children {
            let key = child.id();
            let of_parent = ancestors.get(&child.parent_tid).or_else(|| self.ancestors.get(&child.parent_tid));
            let ancestor = of_parent.copied().or_else(|| moved.get(&child.parent_tid).copied());
            if let Some(ancestor) = ancestor {
                ancestors.insert(child.tid, ancestor);
                ancestors.insert(child.parent_tid, ancestor);
            }
            // A descendant that was moved itself has its own record, unless the record is of the
            // thread whose id it took by exec.
            if child.own || child.origin == Origin::Born && mover.moved(key).is_some_and(|m| m.over.is_none()) {
                continue;
            }
            let mask = match affinity::get(child.tid) {
                Ok(mask) => mask,
                Err(error) if is_gone(&error) => continue,
                Err(error) => {
                    trouble = Some(error);
                    continue;
                }
            };
            let of_ancestor = ancestor.and_then(|s| mover.moved(s));
            let exact =
                of_ancestor.filter(|ancestor| ancestor.ours.contains(&mask)).or_else(|| values.get(&mask).copied());
            let source = exact.map(|moved| (moved, mask.clone())).or_else(|| {
                let of_ancestor =
                    of_ancestor.into_iter().flat_map(|ancestor| ancestor.ours.iter().map(move |ours| (ours, ancestor)));
                narrowed(mover, child.tid, &mask, of_ancestor.chain(values.iter().map(|(ours, moved)| (*ours, *moved))))
            });
            if let Some((source, ours)) = source {
                let masks = Masks { before: source.before.clone(), ours, unbound: source.unbound };
                inherited.push(record_of(key, child.pid, masks));
            }
        }
        self.ancestors = ancestors;
        match trouble {
            Some(error) if inherited.is_empty() => Err(error),
            _ => Ok(inherited),
        }
    }
}

/// The moved thread whose value, narrowed by the thread's cpuset since, is this mask, and that
/// value.
fn narrowed<'a>(
    mover: &Mover,
    tid: u32,
    mask: &CpuSet,
    mut candidates: impl Iterator<Item = (&'a CpuSet, &'a Moved)>,
) -> Option<(&'a Moved, CpuSet)> {
    let mut default = None;
    let found = candidates.find(|(ours, _)| {
        mask.is_subset(ours)
            && default
                .get_or_insert_with(|| mover.defaults.of(tid).ok())
                .as_ref()
                .is_some_and(|default| *mask == ours.intersection(default))
    })?;
    Some((found.1, found.0.clone()))
}
