//! Tests of a rule without the condition that precedes it, which public functions cannot reach.

use topology::{CpuSet, Node, NodeId, Topology};

use super::state::State;
use super::{Settings, controller};
use crate::load::Machine;
use crate::{Snapshot, Thread, testing};

fn two_nodes() -> Topology {
    [0, 1].into_iter().map(|id| Node::new(NodeId(id), CpuSet::from_iter([id]), 1 << 30)).collect()
}

/// A thread of the slides: one unit (1 GB) of access to its node in a window, `percent` of it
/// writes.
fn thread(tid: u32, node: u32, percent: u64) -> Thread {
    testing::thread(tid, node, &[(node, 10 * (100 - percent))], 10 * percent)
}

#[test]
fn page_19_equation_4_keeps_the_heavy_writers() {
    // Slides, page 19: access 4 on node 0 (T1 W 90 %, T2 70 %, T3 20 %, T4 10 %), 3 on node 1 (T5
    // to T7), average 3.5. To relieve node 0: D_migrate = +0.5 and −0.5.
    //     T1: −0.5 + 0.9 > 0 stays. T2: −0.5 + 0.7 > 0 stays. T3: −0.5 + 0.2 = −0.3 goes. T4: −0.3 + 0.1 = −0.2 goes.
    let threads = [(1, 0, 90), (2, 0, 70), (3, 0, 20), (4, 0, 10), (5, 1, 90), (6, 1, 70), (7, 1, 70)];
    let threads = threads.map(|(tid, node, percent)| thread(tid, node, percent)).to_vec();
    let snapshot = Snapshot { version: 2, window_s: 1.0, threads, ..Snapshot::default() };
    let settings = Settings { read_weight: 1.0, ..Settings::default() };
    let machine = Machine::new(&two_nodes(), &settings, 1.0);
    let mut state = State::new(&machine, &settings, &snapshot);
    let mut loads = state.what_if(&machine);
    assert_eq!((loads.controller(0), loads.controller(1)), (4_000_000_000, 3_000_000_000));

    controller::relieve(&machine, &snapshot, &mut loads, &mut state.candidates, 0, 0, false);
    let moved: Vec<_> = state.candidates.iter().filter(|c| c.place != c.initial).map(|c| c.tid).collect();
    assert_eq!(moved, [3, 4]);
    assert_eq!((loads.controller(0), loads.controller(1)), (3_700_000_000, 3_300_000_000));
}

#[test]
fn a_machine_without_distances_or_nodes_is_still_a_machine() {
    let machine = Machine::new(&two_nodes(), &Settings::default(), 1.0);
    assert_eq!(machine.distance(0, 1), u32::MAX);
    assert_eq!(Machine::new(&Topology::default(), &Settings::default(), 1.0).len(), 0);
}

#[test]
fn large_ids_are_found_as_well_as_small_ones() {
    let mut topology = two_nodes();
    topology.nodes[1].id = NodeId(5_000);
    let machine = Machine::new(&topology, &Settings::default(), 1.0);
    assert_eq!([0, 1, 5_000, u32::MAX].map(|id| machine.index(NodeId(id))), [Some(0), None, Some(1), None]);
}

#[test]
fn a_thread_has_a_data_home_from_the_least_bytes_on() {
    let settings = Settings { min_bytes: 10_000_000, locality_margin: 0.0, ..Settings::default() };
    let machine = Machine::new(&two_nodes(), &settings, 1.0);
    let home = |mb| super::data_home(&machine, &settings, 1.0, &testing::thread(1, 0, &[(1, mb)], 0));
    assert_eq!([home(9), home(10)], [None, Some(NodeId(1))]);
}
