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
//! | AMD `amd_umc` (Zen 4 and later, Linux 6.9) | the same | of the socket |
//! | AMD `amd_df` (Zen 1 to 3) | both together | of the socket |
//! | resctrl ([`resctrl`]): memory bandwidth monitoring, if somebody has mounted it | both together, by who asks | two nodes at most |
//!
//! Without any, the counted file bytes are all that is known, and a note says so.
//!
//! **Limits.** Counters of a socket do not tell the nodes of a socket that was split into several
//! (sub-NUMA clustering, NPS2 and above) apart; they are not used there. None of the hardware was
//! at hand: the parsing is tested with the files that the kernel documents, the counting is not.

mod resctrl;
mod uncore;

use std::collections::BTreeMap;
use std::path::Path;

use placement::MeasuredLoad;
use topology::{NodeId, Topology};

/// Bytes since some beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Carried {
    read: f64,
    written: f64,
    /// Read or written, from a counter that counts both together.
    either: f64,
}

enum Source {
    Uncore(uncore::Counters),
    Resctrl(resctrl::Groups),
}

/// A source, and what it showed last.
pub struct Meter {
    source: Source,
    name: &'static str,
    /// Whether reads are told from writes.
    apart: bool,
    before: BTreeMap<NodeId, Carried>,
}

impl Meter {
    /// Opens the best source. The error says why there is none.
    pub fn open(sys_root: &Path, topology: &Topology) -> Result<Self, String> {
        let (source, name, apart) = match uncore::Counters::open(sys_root, topology) {
            Ok(counters) => {
                let (name, apart) = (counters.name(), counters.apart());
                (Source::Uncore(counters), name, apart)
            }
            Err(no_pmu) => match resctrl::Groups::open(sys_root, topology) {
                Ok(groups) => (Source::Resctrl(groups), "resctrl", false),
                Err(no_resctrl) => return Err(format!("{no_pmu}; {no_resctrl}")),
            },
        };
        let mut meter = Self { source, name, apart, before: BTreeMap::new() };
        meter.before = meter.now()?;
        Ok(meter)
    }

    /// The source, such as `uncore_imc`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Bytes that each node's controllers carried since the last call.
    pub fn window(&mut self) -> Result<BTreeMap<NodeId, MeasuredLoad>, String> {
        let now = self.now()?;
        let before = std::mem::replace(&mut self.before, now);
        Ok(between(self.name, self.apart, &before, &self.before))
    }

    fn now(&mut self) -> Result<BTreeMap<NodeId, Carried>, String> {
        match &mut self.source {
            Source::Uncore(counters) => counters.carried(),
            Source::Resctrl(groups) => groups.carried(),
        }
    }
}

fn between(
    source: &str,
    apart: bool,
    before: &BTreeMap<NodeId, Carried>,
    now: &BTreeMap<NodeId, Carried>,
) -> BTreeMap<NodeId, MeasuredLoad> {
    // A counter that went backwards (a group that ended) shows nothing.
    let since = |now: f64, before: f64| (now - before).max(0.0).round() as u64;
    let load = |(node, now): (&NodeId, &Carried)| {
        let before = before.get(node)?;
        let read = since(now.read, before.read);
        let bytes =
            read.saturating_add(since(now.written, before.written)).saturating_add(since(now.either, before.either));
        Some((*node, MeasuredLoad { source: source.to_owned(), bytes, read_bytes: apart.then_some(read) }))
    };
    now.iter().filter_map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_difference_of_two_readings() {
        let at = |read, written, either| BTreeMap::from([(NodeId(1), Carried { read, written, either })]);
        let load = |apart, before, now| between("x", apart, &before, &now).remove(&NodeId(1)).unwrap();
        let both = load(true, at(100.0, 10.0, 0.0), at(400.0, 30.0, 0.0));
        assert_eq!((both.bytes, both.read_bytes), (320, Some(300)));
        let sum = load(false, at(0.0, 0.0, 7.0), at(0.0, 0.0, 107.0));
        assert_eq!((sum.bytes, sum.read_bytes), (100, None));
        assert_eq!(load(false, at(0.0, 0.0, 7.0), at(0.0, 0.0, 6.0)).bytes, 0);
        // A node that was not there before has no window yet.
        assert_eq!(between("x", true, &BTreeMap::new(), &at(1.0, 1.0, 0.0)), BTreeMap::new());
    }

    #[test]
    fn a_machine_without_counters_says_what_is_missing() {
        let sys = tempfile::tempdir().unwrap();
        let why = Meter::open(sys.path(), &Topology::default()).err().unwrap();
        assert!(why.contains("no memory controller PMU"), "{why}");
        assert!(why.contains("resctrl is not mounted"), "{why}");
    }
}
