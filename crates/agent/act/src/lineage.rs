//! Descendants of moved threads, from the births that the kernel reported.
//!
//! A descendant that set its affinity itself keeps it, even if it equals ours. A descendant is
//! restored once; whatever it has afterwards is its own.
//!
//! **Limits.** Before Linux 6.2 the kernel does not show that an affinity was set. A descendant
//! that set exactly our value before its first restoration (`numactl -N 0 …` started by a thread
//! that was moved to node 0, for example) then loses it. From 6.2 on this can happen only to a
//! program that sets its affinity twice between two windows: the allocator hands a freed address
//! out again first, so the second value often lies where ours did.

use rustc_hash::FxHashMap;

use std::io;

use linux::affinity;
use linux::births::{Kin, Origin};
use linux::threads::is_gone;

use super::kin::inherited;
use super::mover::{Moved, Mover};
use engine::{Masks, Undo};
use topology::{CpuSet, ThreadId};

/// Remembers the moved thread that each descendant stems from, as long as it or a child of it
/// lives.
#[derive(Debug, Default)]
pub struct Lineage {
    stems: FxHashMap<u32, ThreadId>,
}

impl Lineage {
    /// Undo records for the living descendants that hold a value of ours.
    ///
    /// A child is traced to its moved ancestor through its parents, including ended ones that an
    /// earlier call saw. A child without a trace still descends from some moved thread; its mask
    /// shows which one.
    ///
    /// An error means that no heir was found and that some threads could not be examined.
    pub fn heirs(&mut self, mover: &Mover, kin: &[Kin]) -> io::Result<Vec<Undo>> {
        let mut moved: FxHashMap<u32, ThreadId> = FxHashMap::default();
        // Thousands of threads were given few values.
        let mut values: FxHashMap<&CpuSet, &Moved> = FxHashMap::default();
        for (key, one) in mover.all_moved() {
            moved.insert(key.tid, key);
            one.ours.iter().for_each(|ours| _ = values.entry(ours).or_insert(one));
        }
        let mut children: Vec<&Kin> = kin.iter().filter(|kin| kin.origin != Origin::Moved).collect();
        children.sort_unstable_by_key(|c| (c.start_ns, c.tid));
        let mut trouble = None;
        let mut stems: FxHashMap<u32, ThreadId> = FxHashMap::default();
        let mut heirs = Vec::new();
        for child in &children {
            let key = child.id();
            let of_parent = stems.get(&child.parent_tid).or_else(|| self.stems.get(&child.parent_tid));
            let stem = of_parent.copied().or_else(|| moved.get(&child.parent_tid).copied());
            if let Some(stem) = stem {
                stems.insert(child.tid, stem);
                stems.insert(child.parent_tid, stem);
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
            let of_stem = stem.and_then(|s| mover.moved(s));
            let exact = of_stem.filter(|stem| stem.ours.contains(&mask)).or_else(|| values.get(&mask).copied());
            let source = exact.map(|moved| (moved, mask.clone())).or_else(|| {
                let of_stem = of_stem.into_iter().flat_map(|stem| stem.ours.iter().map(move |ours| (ours, stem)));
                narrowed(mover, child.tid, &mask, of_stem.chain(values.iter().map(|(ours, moved)| (*ours, *moved))))
            });
            if let Some((source, ours)) = source {
                let masks = Masks { before: source.before.clone(), ours, unbound: source.unbound };
                heirs.push(inherited(key, child.pid, masks));
            }
        }
        self.stems = stems;
        match trouble {
            Some(error) if heirs.is_empty() => Err(error),
            _ => Ok(heirs),
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
                .get_or_insert_with(|| mover.default_of(tid).ok())
                .as_ref()
                .is_some_and(|default| *mask == ours.intersection(default))
    })?;
    Some((found.1, found.0.clone()))
}
