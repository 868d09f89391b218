//! Bandwidth of each node's memory controllers, where the hardware counts it.
//!
//! **Problem.** The programs in the kernel count file bytes. A controller also carries everything
//! else that programs do with memory, and does not carry what a CPU's cache had.
//!
//! **Approach.** The first of these that the machine has, in this order:
//!
//! | source | counts | node |
//! |---|---|---|
//! | Intel `uncore_imc` ([`uncore`]) | reads and writes of each memory channel | of the socket |
//! | beside it, its queues of persistent memory ([`pmem`]) | the same | of the socket, if it has NVDIMMs |
//! | PMUs of CXL devices ([`cxl`], Linux 6.5) | the same | of the device |
//! | AMD `amd_umc` (Zen 4 and later, Linux 6.9) | the same | of the socket |
//!
//! Without any, the counted file bytes are all that is known, and a note says so. That can be so of
//! one node: counters of DRAM are no measurement of a node with persistent memory.
//!
//! **Limits.** Counters of a socket do not tell the nodes of a socket that was split into several
//! (sub-NUMA clustering, NPS2 and above) apart; they are not used there. None of the hardware was
//! at hand: the parsing is tested with the files that the kernel documents, the counting is not.

mod cxl;
mod pmem;
mod uncore;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use placement::MeasuredLoad;
use topology::{NodeId, Topology};

/// Bytes since some beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Carried {
    source: &'static str,
    read: f64,
    written: f64,
}

/// The counters, and what they showed last.
pub struct Meter {
    counters: uncore::Counters,
    before: BTreeMap<NodeId, Carried>,
}

impl Meter {
    /// Opens the best source of each node. The error says why there is none.
    pub fn open(sys_root: &Path, proc_root: &Path, topology: &Topology) -> Result<Self, String> {
        let cpuinfo = std::fs::read_to_string(proc_root.join("cpuinfo")).unwrap_or_default();
        let mut counters = uncore::Counters::open(sys_root, &cpuinfo, topology)?;
        let before = counters.carried();
        Ok(Self { counters, before })
    }

    /// The sources, such as `uncore_imc`, and why some nodes have none.
    pub fn said(&self) -> String {
        let sources: BTreeSet<&str> = self.before.values().map(|carried| carried.source).collect();
        let sources = Vec::from_iter(sources).join(" and ");
        match self.gap() {
            Some(gap) => format!("measured by {sources}; {gap}"),
            None => format!("measured by {sources}"),
        }
    }

    /// Why some nodes are not measured.
    pub fn gap(&self) -> Option<String> {
        (!self.counters.gaps.is_empty()).then(|| self.counters.gaps.join("; "))
    }

    /// Bytes that each node's controllers carried since the last call.
    pub fn window(&mut self) -> BTreeMap<NodeId, MeasuredLoad> {
        let before = std::mem::replace(&mut self.before, self.counters.carried());
        between(&before, &self.before)
    }
}

fn between(before: &BTreeMap<NodeId, Carried>, now: &BTreeMap<NodeId, Carried>) -> BTreeMap<NodeId, MeasuredLoad> {
    let since = |now: f64, before: f64| (now - before).round() as u64;
    let load = |(node, now): (&NodeId, &Carried)| {
        let before = before.get(node)?;
        let read = since(now.read, before.read);
        let bytes = read.saturating_add(since(now.written, before.written));
        Some((*node, MeasuredLoad { source: now.source.to_owned(), bytes, read_bytes: Some(read) }))
    };
    now.iter().filter_map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_difference_of_two_readings() {
        let at = |read, written| BTreeMap::from([(NodeId(1), Carried { source: "x", read, written })]);
        let both = between(&at(100.0, 10.0), &at(400.0, 30.0)).remove(&NodeId(1)).unwrap();
        assert_eq!((both.bytes, both.read_bytes), (320, Some(300)));
        // A node that was not there before has no window yet.
        assert_eq!(between(&BTreeMap::new(), &at(1.0, 1.0)), BTreeMap::new());
    }

    #[test]
    fn a_machine_without_counters_says_what_is_missing() {
        let sys = tempfile::tempdir().unwrap();
        let why = Meter::open(sys.path(), sys.path(), &Topology::default()).err().unwrap();
        assert!(why.contains("no memory controller PMU"), "{why}");
    }
}
