//! Who was born of moved threads, from the births that the kernel has told us of.
//!
//! A descendant that has set its affinity itself keeps it, even if it equals ours, and so does one that was put back once.
//!
//! **Limits.** Before Linux 6.2 the kernel does not show that an affinity was set: a descendant that set exactly our value before
//! it was first put back (`numactl -N 0 …` started by a thread that was moved to node 0, say) cannot be told from one that
//! inherited it. From 6.2 on the same goes for one that set its affinity twice or more, where the kernel happened to store the
//! last in the memory of the first.

use rustc_hash::FxHashMap;

use std::io;

use super::affinity;
use super::mover::{Key, Moved, Mover, NS_PER_TICK};
use super::threads::is_gone;
use crate::observe::{Kin, Origin};
use engine::Undo;

/// Remembers of each descendant which moved thread it stems from, as long as it or a child of it lives.
#[derive(Debug, Default)]
pub struct Lineage {
    stems: FxHashMap<u32, Key>,
}

impl Lineage {
    /// Undo records for those of the living descendants that hold a value of ours.
    ///
    /// A child is traced to the moved thread it stems from through its parents, also ones that have ended since, if they
    /// were seen once. Where no trace is left it is known as a descendant of some moved thread all the same, and its mask
    /// tells which one's value it holds.
    ///
    /// An error says that none was found, and that some could not be looked at.
    pub fn heirs(&mut self, mover: &Mover, kin: &[Kin]) -> io::Result<Vec<Undo>> {
        let moved: FxHashMap<u32, (Key, &Moved)> = mover.all_moved().map(|(key, m)| (key.0, (key, m))).collect();
        let mut children: Vec<&Kin> = kin.iter().filter(|kin| kin.origin != Origin::Moved).collect();
        children.sort_unstable_by_key(|c| (c.start_ns, c.tid));
        let mut trouble = None;
        let mut stems: FxHashMap<u32, Key> = FxHashMap::default();
        let mut heirs = Vec::new();
        for child in &children {
            let key = (child.tid, child.start_ns / NS_PER_TICK);
            let of_parent = stems.get(&child.parent_tid).or_else(|| self.stems.get(&child.parent_tid));
            let stem = of_parent.copied().or_else(|| moved.get(&child.parent_tid).map(|m| m.0));
            if let Some(stem) = stem {
                stems.insert(child.tid, stem);
                stems.insert(child.parent_tid, stem);
            }
            // One that has been moved itself has a record of its own; by exec it is another thread's that has its id.
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
            let holds = |m: &&Moved| m.ours.contains(&mask);
            let source = stem.and_then(|s| mover.moved(s)).filter(holds).or_else(|| {
                let mut all = mover.all_moved().map(|(_, m)| m);
                all.find(holds)
            });
            if let Some(source) = source {
                heirs.push(Undo::Thread {
                    tid: child.tid,
                    pid: child.pid,
                    start: key.1,
                    before: source.before.clone(),
                    ours: mask,
                    unbound: source.unbound,
                    family: None,
                });
            }
        }
        self.stems = stems;
        match trouble {
            Some(error) if heirs.is_empty() => Err(error),
            _ => Ok(heirs),
        }
    }
}
