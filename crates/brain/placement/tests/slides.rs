//! The examples of the NThread slides (MSST 2020), pages 18 and 19.
//!
//! The slides count "access" without weighting reads. Each thread makes one unit of access, of
//! which W % are writes: T1 writes 0.9 and reads 0.1. Here, a unit is 1 GB/s and `read_weight` is
//! 1.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{decide_with, moves, node_with_bandwidth, snapshot, thread};
use placement::nthread::Settings;
use placement::{Plan, Reason, Snapshot, Thread};

/// A thread on a node with one unit of access to it, of which `percent` are writes.
fn t(tid: u32, node: u32, percent: u64) -> Thread {
    thread(tid, node, &[(node, 1000 - 10 * percent)], 10 * percent)
}

/// T1 to T4 on node 0: access 4.
fn t1_to_t4() -> Vec<Thread> {
    vec![t(1, 0, 90), t(2, 0, 70), t(3, 0, 20), t(4, 0, 10)]
}

/// Two controllers with a capacity of 3 units, for reads and for writes: 4 units overload one.
fn window(threads: Vec<Thread>) -> Snapshot {
    snapshot(vec![node_with_bandwidth(0, 4, 3000.0), node_with_bandwidth(1, 4, 3000.0)], threads)
}

fn plan(name: &str, window: &Snapshot) -> Plan {
    let settings = Settings { read_weight: 1.0, ..Settings::default() };
    decide_with(name, &settings, &window.topology(), window)
}

/// Access per node after a plan, in units.
fn access(plan: &Plan) -> Vec<f64> {
    let nodes = &plan.predicted.as_ref().unwrap().nodes;
    nodes.iter().map(|n| (n.controller_after.unwrap() * 3.0 * 1000.0).round() / 1000.0).collect()
}

#[test]
fn page_18_the_heaviest_writers_move_to_the_idle_node() {
    // Access 4 and 0, average 2: D_migrate = +2 and −2 (Eq. 3). By write ratio (Eq. 2): T1: −2.0 +
    // 0.9 = −1.1 ≤ 0 goes (Eq. 4). T2: −1.1 + 0.7 = −0.4 ≤ 0 goes. The slide ends there, with
    // access 4 − 0.9 − 0.7 = 2.4 and 1.6, and the movers' reads 0.1 + 0.3 = 0.4 remote. T3 and T4
    // are shown to stay; what keeps them here is that they share a file.
    let mut threads = t1_to_t4();
    threads[2].shares_file = true;
    threads[3].shares_file = true;
    let plan = plan("nthread", &window(threads));
    let why = Reason::ControllerContention;
    assert_eq!(moves(&plan), [(1, 1, why), (2, 1, why)]);
    assert_eq!(access(&plan), [2.4, 1.6]);
    // 0.4 of the 0.1 + 0.3 + 0.8 + 0.9 = 2.1 units that are read.
    assert!((plan.predicted.unwrap().remote_share_after.unwrap() - 0.4 / 2.1).abs() < 1e-9);
}

#[test]
fn page_18_without_sharing_equation_4_moves_all_four() {
    // After T1 and T2, D_migrate is +0.4 and −0.4: node 0 has a surplus still. T3: −0.4 + 0.2 =
    // −0.2 ≤ 0 goes. T4: −0.2 + 0.1 = −0.1 ≤ 0 goes, too; D_migrate of node 0 is +0.1. Access 4 −
    // 1.9 = 2.1 and 1.9. The slide stops sooner than the paper's rule does; the rule is what is
    // implemented.
    let plan = plan("nthread", &window(t1_to_t4()));
    assert_eq!(moves(&plan).iter().map(|m| (m.0, m.1)).collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 1), (4, 1)]);
    assert_eq!(access(&plan), [2.1, 1.9]);
}

#[test]
fn page_19_threads_do_not_move_to_a_busy_node() {
    // T5 to T7 make access 3 on node 1: 3 is not below half of 4, so there is no contention to
    // relieve. What Eq. 4 alone would say is in the unit test
    // `page_19_equation_4_keeps_the_heavy_writers` beside the rule.
    let mut threads = t1_to_t4();
    threads.extend([t(5, 1, 90), t(6, 1, 70), t(7, 1, 70)]);
    let plan = plan("nthread", &window(threads));
    assert_eq!(moves(&plan), []);
    assert_eq!(access(&plan), [4.0, 3.0]);
}
