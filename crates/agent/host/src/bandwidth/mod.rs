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
//! | AMD `amd_df` (Zen 1 to 3) | both together | of the socket |
//! | resctrl ([`resctrl`]): memory bandwidth monitoring, if somebody has mounted it | both together, by who asks | two nodes at most |
//!
//! Without any, the counted file bytes are all that is known, and a note says so. That can be so of
//! one node: counters of DRAM are no measurement of a node with persistent memory.
//!
//! **Limits.** Counters of a socket do not tell the nodes of a socket that was split into several
//! (sub-NUMA clustering, NPS2 and above) apart; they are not used there. None of the hardware was
//! at hand: the parsing is tested with the files that the kernel documents, the counting is not.

mod cxl;
mod pmem;
mod resctrl;
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
    /// Read or written, from a counter that counts both together.
    either: f64,
    /// Whether reads are told from writes.
    apart: bool,
}

enum Source {
    Uncore(uncore::Counters),
    Resctrl(resctrl::Groups),
}

/// A source, and what it showed last.
pub struct Meter {
    source: Source,
    before: BTreeMap<NodeId, Carried>,
}

impl Meter {
    /// Opens the best source. The error says why there is none.
    pub fn open(sys_root: &Path, proc_root: &Path, topology: &Topology) -> Result<Self, String> {
        let cpuinfo = std::fs::read_to_string(proc_root.join("cpuinfo")).unwrap_or_default();
        let source = match uncore::Counters::open(sys_root, &cpuinfo, topology) {
            Ok(counters) => Source::Uncore(counters),
            Err(no_pmu) => match resctrl::Groups::open(sys_root, topology) {
                Ok(groups) => Source::Resctrl(groups),
                Err(no_resctrl) => return Err(format!("{no_pmu}; {no_resctrl}")),
            },
        };
        let mut meter = Self { source, before: BTreeMap::new() };
        meter.before = meter.now()?;
        Ok(meter)
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
        match &self.source {
            Source::Uncore(counters) if !counters.gaps.is_empty() => Some(counters.gaps.join("; ")),
            _ => None,
        }
    }

    /// Bytes that each node's controllers carried since the last call.
    pub fn window(&mut self) -> Result<BTreeMap<NodeId, MeasuredLoad>, String> {
        let now = self.now()?;
        let before = std::mem::replace(&mut self.before, now);
        Ok(between(&before, &self.before))
    }

    fn now(&mut self) -> Result<BTreeMap<NodeId, Carried>, String> {
        match &mut self.source {
            Source::Uncore(counters) => Ok(counters.carried()),
            Source::Resctrl(groups) => groups.carried(),
        }
    }
}

fn between(before: &BTreeMap<NodeId, Carried>, now: &BTreeMap<NodeId, Carried>) -> BTreeMap<NodeId, MeasuredLoad> {
    // A counter that went backwards (a group that ended) shows nothing.
    let since = |now: f64, before: f64| (now - before).max(0.0).round() as u64;
    let load = |(node, now): (&NodeId, &Carried)| {
        let before = before.get(node)?;
        let read = since(now.read, before.read);
        let bytes =
            read.saturating_add(since(now.written, before.written)).saturating_add(since(now.either, before.either));
        Some((*node, MeasuredLoad { source: now.source.to_owned(), bytes, read_bytes: now.apart.then_some(read) }))
    };
    now.iter().filter_map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_difference_of_two_readings() {
        let at = |read, written, either| {
            BTreeMap::from([(NodeId(1), Carried { source: "x", read, written, either, apart: either == 0.0 })])
        };
        let load = |before, now| between(&before, &now).remove(&NodeId(1)).unwrap();
        let both = load(at(100.0, 10.0, 0.0), at(400.0, 30.0, 0.0));
        assert_eq!((both.bytes, both.read_bytes), (320, Some(300)));
        let sum = load(at(0.0, 0.0, 7.0), at(0.0, 0.0, 107.0));
        assert_eq!((sum.bytes, sum.read_bytes), (100, None));
        assert_eq!(load(at(0.0, 0.0, 7.0), at(0.0, 0.0, 6.0)).bytes, 0);
        // A node that was not there before has no window yet.
        assert_eq!(between(&BTreeMap::new(), &at(1.0, 1.0, 0.0)), BTreeMap::new());
    }

    #[test]
    fn a_machine_without_counters_says_what_is_missing() {
        let sys = tempfile::tempdir().unwrap();
        let why = Meter::open(sys.path(), sys.path(), &Topology::default()).err().unwrap();
        assert!(why.contains("no memory controller PMU"), "{why}");
        assert!(why.contains("resctrl is not mounted"), "{why}");
    }
}
