//! Memory bandwidth monitoring (MBM) through resctrl (`Documentation/filesystems/resctrl.rst`).
//!
//! **Problem.** MBM counts by the last-level cache that asks, not by the controller that answers,
//! and apart for each control group.
//!
//! **Approach.** The default group and every other control group are added up (each includes its
//! monitoring groups). What is not local to one node of two must go to the other.
//!
//! **Limits.** With more nodes, the node that answers is unknown, so it is not used there, nor
//! where a node has persistent memory beside DRAM. homenode mounts nothing: mounting resctrl is a
//! decision about the whole machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use topology::{NodeId, Topology};

use super::uncore::named;
use super::{Carried, pmem};

/// The mounted resctrl.
pub(super) struct Groups {
    root: PathBuf,
    /// The node of each last-level cache.
    nodes: BTreeMap<u32, NodeId>,
}

impl Groups {
    pub fn open(sys_root: &Path, topology: &Topology) -> Result<Self, String> {
        let root = sys_root.join("fs/resctrl");
        if !root.join("mon_data").is_dir() {
            return Err("resctrl is not mounted, or monitors nothing".to_owned());
        }
        let persistent = pmem::nodes(topology);
        if !persistent.is_empty() {
            let nodes = named(persistent.into_iter());
            return Err(format!("resctrl does not tell persistent memory of {nodes} from DRAM"));
        }
        let with_memory = topology.nodes.iter().filter(|node| node.memory_bytes > 0).count();
        if with_memory > 2 {
            return Err(format!("resctrl does not say which of {with_memory} nodes answers"));
        }
        let mut nodes = BTreeMap::new();
        for node in &topology.nodes {
            for cpu in node.cpus.iter() {
                let id = sys_root.join(format!("devices/system/cpu/cpu{cpu}/cache/index3/id"));
                let Some(cache) = std::fs::read_to_string(id).ok().and_then(|id| id.trim().parse().ok()) else {
                    continue;
                };
                if nodes.insert(cache, node.id).is_some_and(|other| other != node.id) {
                    return Err(format!("resctrl: last-level cache {cache} belongs to several nodes"));
                }
            }
        }
        let groups = Self { root, nodes };
        groups.carried().map(|_| groups)
    }

    /// Bytes that each node's memory has carried.
    pub fn carried(&self) -> Result<BTreeMap<NodeId, Carried>, String> {
        // By the node that asked: all bytes, and those from its own memory.
        let mut asked: BTreeMap<NodeId, (f64, f64)> = self.nodes.values().map(|node| (*node, (0.0, 0.0))).collect();
        for group in self.groups()? {
            for (cache, node) in &self.nodes {
                let domain = group.join(format!("mon_data/mon_L3_{cache:02}"));
                let total = number(&domain.join("mbm_total_bytes"));
                let local = number(&domain.join("mbm_local_bytes"));
                match (total, local) {
                    (Ok(total), Ok(local)) => {
                        let sum = asked.entry(*node).or_default();
                        *sum = (sum.0 + total, sum.1 + local);
                    }
                    // A group can be removed at any moment.
                    _ if group != self.root && !group.exists() => {}
                    (Err(why), _) | (_, Err(why)) => return Err(why),
                }
            }
        }
        let all: f64 = asked.values().map(|(total, local)| (total - local).max(0.0)).sum();
        let answered = |(node, (total, local)): (&NodeId, &(f64, f64))| {
            let others = all - (total - local).max(0.0);
            (*node, Carried { source: "resctrl", either: local + others, ..Carried::default() })
        };
        Ok(asked.iter().map(answered).collect())
    }

    /// The default group and the other control groups.
    fn groups(&self) -> Result<Vec<PathBuf>, String> {
        let unreadable = |error| format!("resctrl: {}: {error}", self.root.display());
        let mut groups = vec![self.root.clone()];
        for entry in std::fs::read_dir(&self.root).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let own = ["info", "mon_data", "mon_groups"].iter().any(|name| path.ends_with(name));
            if !own && path.join("mon_data").is_dir() {
                groups.push(path);
            }
        }
        Ok(groups)
    }
}

/// The number in a file; `Unavailable` and `Unassigned` are none.
fn number(path: &Path) -> Result<f64, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("resctrl: {}: {error}", path.display()))?;
    let number: Option<u64> = text.trim().parse().ok();
    number.map(|n| n as f64).ok_or_else(|| format!("resctrl: {}: {}", path.display(), text.trim()))
}

#[cfg(test)]
mod tests {
    use super::super::uncore::tests::{machine, write};
    use super::*;

    /// Figures as (cache, total, local).
    type Figures<'a> = [(u32, &'a str, &'a str); 2];

    /// Two nodes with a cache each, and a control group `db`.
    fn mounted(groups: &[(&str, Figures<'_>)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (cpu, cache) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
            write(&sys, &format!("devices/system/cpu/cpu{cpu}/cache/index3/id"), &format!("{cache}\n"));
        }
        write(&sys, "fs/resctrl/info/L3_MON/mon_features", "mbm_total_bytes\n");
        for (group, figures) in groups {
            for (cache, total, local) in figures {
                let at = format!("fs/resctrl/{group}mon_data/mon_L3_{cache:02}");
                write(&sys, &format!("{at}/mbm_total_bytes"), total);
                write(&sys, &format!("{at}/mbm_local_bytes"), local);
            }
        }
        sys
    }

    #[test]
    fn what_is_not_local_goes_to_the_other_node() {
        let sys = mounted(&[
            ("", [(0, "1000\n", "700\n"), (1, "50\n", "50\n")]),
            ("db/", [(0, "10\n", "10\n"), (1, "400\n", "100\n")]),
        ]);
        let groups = Groups::open(sys.path(), &machine(2)).unwrap();
        let carried = groups.carried().unwrap();
        // Node 0: 710 of its own and 300 that node 1 asked for; node 1: 150 and 300.
        let either: Vec<_> = carried.iter().map(|(node, c)| (node.0, c.either)).collect();
        assert_eq!(either, [(0, 1010.0), (1, 450.0)]);
        // A group that ends takes its bytes with it.
        std::fs::remove_dir_all(sys.path().join("fs/resctrl/db")).unwrap();
        assert_eq!(groups.carried().unwrap()[&NodeId(0)].either, 700.0);
    }

    #[test]
    fn figures_that_are_not_there_are_no_figures() {
        let sys = mounted(&[("", [(0, "1000\n", "700\n"), (1, "Unavailable\n", "50\n")])]);
        let why = Groups::open(sys.path(), &machine(2)).err().unwrap();
        assert!(why.contains("mon_L3_01/mbm_total_bytes: Unavailable"), "{why}");
        let sys = mounted(&[("", [(0, "1\n", "1\n"), (1, "1\n", "1\n")])]);
        let why = Groups::open(sys.path(), &machine(3)).err().unwrap();
        assert!(why.contains("which of 3 nodes answers"), "{why}");
    }
}
