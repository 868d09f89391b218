//! NThread step by step and equation by equation, with the arithmetic beside each case. All figures
//! are in MB and MB/s, with windows of 1 s.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{
    MB, bytes, decide, decide_with, declined, file, moves, next_window, node, node_with_bandwidth, snapshot, thread,
    why,
};
use placement::nthread::{MAX_DECLINED, Settings};
use placement::{FileUse, NodeLoad, ObservedFile, Plan, Reason, Snapshot, Thread};
use topology::{MemoryKind, NodeId};

fn two_nodes(threads: Vec<Thread>) -> Snapshot {
    snapshot(vec![node(0, 2), node(1, 2)], threads)
}

/// Two nodes whose controllers have a capacity of 1000 MB/s each; above 800 they are overloaded.
fn two_controllers(threads: Vec<Thread>) -> Snapshot {
    snapshot(vec![node_with_bandwidth(0, 2, 1000.0), node_with_bandwidth(1, 2, 1000.0)], threads)
}

fn with_cpu(cpu_s: f64, thread: Thread) -> Thread {
    Thread { cpu_s, ..thread }
}

fn node_forecast(plan: &Plan, node: usize) -> &placement::NodeForecast {
    &plan.predicted.as_ref().unwrap().nodes[node]
}

fn close(a: Option<f64>, b: f64) {
    assert!((a.unwrap() - b).abs() < 1e-9, "{a:?} is not {b}");
}

// Step 1: III-A.

#[test]
fn step_1_the_node_read_most_from_is_the_target_when_it_leads_by_the_margin() {
    // 300 − 100 = 200 ≥ 200: equality counts.
    let plan = decide("nthread-rl", &two_nodes(vec![thread(1, 1, &[(0, 300), (1, 100)], 0)]));
    assert_eq!(moves(&plan), [(1, 0, Reason::ReadLocality)]);
    assert_eq!(why(&plan, 1), "300.0 MB of 400.0 MB read from node 0");
}

#[test]
fn step_1_below_the_margin_a_thread_stays() {
    // 299 − 100 = 199 < 200.
    let plan = decide("nthread-rl", &two_nodes(vec![thread(1, 1, &[(0, 299), (1, 100)], 0)]));
    assert_eq!(moves(&plan), []);
    let why = "299.0 MB of 399.0 MB read from node 0: a lead of 199.0 MB, below the margin of 200.0 MB";
    assert_eq!(declined(&plan, 1), Some(("below_margin", why)));
}

#[test]
fn step_1_a_thread_on_its_target_does_not_move() {
    let plan = decide("nthread", &two_nodes(vec![thread(1, 0, &[(0, 300), (1, 50)], 0)]));
    assert_eq!((moves(&plan), plan.declined.as_slice()), (vec![], [].as_slice()));
}

#[test]
fn step_1_even_without_a_margin_two_equal_nodes_give_no_target() {
    let settings = Settings { locality_margin: 0.0, ..Settings::default() };
    let window = snapshot(vec![node(0, 1), node(1, 1), node(2, 1)], vec![thread(1, 2, &[(0, 300), (1, 300)], 0)]);
    assert_eq!(moves(&decide_with("nthread", &settings, &window.topology(), &window)), []);
}

#[test]
fn a_thread_that_moved_little_data_is_left_alone() {
    // min_bytes counts reads and writes together: 3 + 1 MB = 4,000,000 bytes < 4 MiB = 4,194,304;
    // one MB more is enough.
    let settings = Settings { locality_margin: 0.0, ..Settings::default() };
    for (writes, expected) in [(1, 0), (2, 1)] {
        let window = two_nodes(vec![thread(1, 1, &[(0, 3)], writes)]);
        let plan = decide_with("nthread", &settings, &window.topology(), &window);
        assert_eq!((moves(&plan).len(), plan.declined.len()), (expected, 0));
    }
}

#[test]
fn min_bytes_itself_is_enough() {
    let settings = Settings { locality_margin: 0.0, ..Settings::default() };
    for (read, expected) in [(4 * 1024 * 1024 - 1, 0), (4 * 1024 * 1024, 1)] {
        let mut window = two_nodes(vec![thread(1, 1, &[], 0)]);
        window.threads[0].read_bytes = [(NodeId(0), read)].into_iter().collect();
        assert_eq!(moves(&decide_with("nthread", &settings, &window.topology(), &window)).len(), expected);
    }
}

#[test]
fn a_pinned_thread_stays_and_its_load_counts() {
    let pinned = Thread { pinned: Some("has an affinity of its own: 100".into()), ..thread(1, 1, &[(0, 300)], 0) };
    let plan = decide("nthread", &two_nodes(vec![pinned]));
    assert_eq!(moves(&plan), []);
    assert_eq!(
        declined(&plan, 1),
        Some(("pinned", "has an affinity of its own: 100; 300.0 MB of 300.0 MB read from node 0"))
    );

    // Thread 1 holds 600 of node 0's 900 MB of writes: the node is overloaded (900 > 800, node 1:
    // 0 < 450), average 450; only thread 2 can go (0 + 300 ≤ 450).
    let pinned = Thread { pinned: Some("own affinity".into()), ..thread(1, 0, &[], 600) };
    let plan = decide("nthread", &two_controllers(vec![pinned, thread(2, 0, &[], 300)]));
    assert_eq!(moves(&plan), [(2, 1, Reason::ControllerContention)]);
    close(node_forecast(&plan, 0).controller_after, 0.6);
}

#[test]
fn a_thread_moves_only_where_it_is_allowed() {
    let confined = Thread { allowed_nodes: vec![NodeId(1)], ..thread(1, 1, &[(0, 300)], 0) };
    let plan = decide("nthread", &two_nodes(vec![confined]));
    assert_eq!(moves(&plan), []);
    let why = "300.0 MB of 300.0 MB read from node 0, where it may not run";
    assert_eq!(declined(&plan, 1), Some(("not_allowed", why)));
}

#[test]
fn data_on_a_node_without_cpus_attracts_to_the_nearest_node_with_some() {
    let far = |mut n: NodeLoad, distance| {
        n.distance.insert(NodeId(2), distance);
        n
    };
    // Node 2 is memory only, 14 from node 0 and 24 from node 1.
    let nodes = vec![far(node(0, 2), 14), far(node(1, 2), 24), node(2, 0)];
    let plan =
        decide("nthread", &snapshot(nodes.clone(), vec![thread(1, 1, &[(2, 300)], 0), thread(2, 0, &[(2, 300)], 0)]));
    assert_eq!(moves(&plan), [(1, 0, Reason::ReadLocality)]);
    assert_eq!(why(&plan, 1), "300.0 MB of 300.0 MB read from node 2, which has no CPUs; node 0 is the nearest");
    let why = "300.0 MB of 300.0 MB read from node 2, which has no CPUs; node 0 is the nearest";
    assert_eq!(declined(&plan, 2), Some(("no_cpus", why)));

    // If it may not run on node 0, node 1 is the nearest, and it runs there already.
    let confined = Thread { allowed_nodes: vec![NodeId(1)], ..thread(1, 1, &[(2, 300)], 0) };
    assert_eq!(moves(&decide("nthread", &snapshot(nodes.clone(), vec![confined]))), []);

    // A node that is named twice is one.
    let twice = Thread { allowed_nodes: vec![NodeId(0); 2], ..thread(1, 1, &[(2, 300)], 0) };
    assert_eq!(moves(&decide("nthread", &snapshot(nodes, vec![twice]))), [(1, 0, Reason::ReadLocality)]);

    // Equally near: no target.
    let nodes = vec![far(node(0, 2), 20), far(node(1, 2), 20), node(2, 0)];
    let plan = decide("nthread", &snapshot(nodes, vec![thread(1, 1, &[(2, 300)], 0)]));
    assert_eq!(moves(&plan), []);
    assert_eq!(declined(&plan, 1).unwrap().0, "no_cpus");
}

#[test]
fn nodes_the_topology_does_not_have_are_no_targets() {
    let window = two_nodes(vec![thread(1, 1, &[(0, 300)], 0), thread(2, 0, &[(1, 300)], 0)]);
    let mut topology = window.topology();
    topology.nodes.remove(0);
    let plan = decide_with("nthread", &Settings::default(), &topology, &window);
    assert_eq!(moves(&plan), []);
    assert_eq!(declined(&plan, 1).unwrap().0, "not_allowed");
    assert!(
        plan.notes.contains(&"threads left alone because the topology lacks their node: 1".to_owned()),
        "{:?}",
        plan.notes
    );
}

// Step 2: the what-if analysis.

#[test]
fn step_2_reads_stay_and_writes_go_with_the_thread() {
    // Threads 1 and 2 write 300 each on node 1 and read 300 each from node 0. If both ran on node
    // 0, node 0 would have 600 / 3 + 600 + 100 of unlisted threads = 900 > 800, and node 1 nothing:
    // an overload, although it has only 200 + 100 = 300 now. Average 450: thread 1 goes to (stays
    // on) node 1, 0 + 300 ≤ 450; thread 2 would make 600.
    let mut window = two_controllers(vec![thread(1, 1, &[(0, 300)], 300), thread(2, 1, &[(0, 300)], 300)]);
    window.nodes[0].write_bytes = 100;
    window.nodes[0].write_bytes *= MB;
    let plan = decide("nthread", &window);
    assert_eq!(moves(&plan), [(2, 0, Reason::ReadLocality)]);
    let why = "300.0 MB of 300.0 MB read from node 0; node 0's memory controller would be at 90 %";
    assert_eq!(declined(&plan, 1), Some(("controller_contention", why)));
    close(node_forecast(&plan, 0).controller_before, 0.3);
    close(node_forecast(&plan, 0).controller_after, 0.6);
    close(node_forecast(&plan, 1).controller_before, 0.6);
    close(node_forecast(&plan, 1).controller_after, 0.3);
}

// Step 3: III-C1.

#[test]
fn equation_1_weighs_reads_a_third() {
    // 300 / 3 + 100 = 200 of min(1000, 3000 / 3) = 1000.
    let plan = decide("nthread", &two_controllers(vec![thread(1, 0, &[(0, 300)], 100)]));
    close(node_forecast(&plan, 0).controller_before, 0.2);
}

#[test]
fn capacity_is_the_lesser_of_writes_and_weighted_reads() {
    for (read, write, capacity) in [(6800.0, 1850.0, 1850.0), (3000.0, 1850.0, 1000.0)] {
        let mut window = two_nodes(vec![thread(1, 0, &[], 370)]);
        (window.nodes[0].read_bw_max, window.nodes[0].write_bw_max) = (Some(read * 1e6), Some(write * 1e6));
        close(node_forecast(&decide("nthread", &window), 0).controller_before, 370.0 / capacity);
    }
}

#[test]
fn step_3_overloaded_is_above_80_percent() {
    // 800 of 1000 is not above; 801 is. Average 400: thread 2 may bring its 101 or 100 to node 1.
    assert_eq!(moves(&decide("nthread", &two_controllers(vec![thread(1, 0, &[], 700), thread(2, 0, &[], 100)]))), []);
    let plan = decide("nthread", &two_controllers(vec![thread(1, 0, &[], 700), thread(2, 0, &[], 101)]));
    assert_eq!(moves(&plan), [(2, 1, Reason::ControllerContention)]);
    assert_eq!(why(&plan, 2), "101.0 MB of 101.0 MB are writes; node 0's memory controller would be at 80 %");
}

#[test]
fn step_3_overloaded_means_that_every_other_node_has_less_than_half() {
    // 900 against 450: not less than half. Against 449: average 674.5, so 225.5 of room: thread 2
    // goes.
    for (other, expected) in [(450, 0), (449, 1)] {
        let threads = vec![thread(1, 0, &[], 700), thread(2, 0, &[], 200), thread(3, 1, &[], other)];
        assert_eq!(moves(&decide("nthread", &two_controllers(threads))).len(), expected);
    }
    // A third node at 450 prevents it as well.
    let nodes = (0..3).map(|id| node_with_bandwidth(id, 2, 1000.0)).collect();
    let threads = vec![thread(1, 0, &[], 700), thread(2, 0, &[], 200), thread(3, 2, &[], 450)];
    assert_eq!(moves(&decide("nthread", &snapshot(nodes, threads))), []);
}

#[test]
fn equation_3_and_4_a_node_may_be_filled_up_to_the_average() {
    // Node 0 has 1000: thread 1's part and that of unlisted threads. Average 500, D_migrate of node
    // 1 is −500: −500 + 500 = 0 ≤ 0 is allowed, −500 + 501 = 1 is not.
    for (writes, expected) in [(500, 1), (501, 0)] {
        let mut window = two_controllers(vec![thread(1, 0, &[], writes)]);
        window.nodes[0].write_bytes = 1000 * MB;
        assert_eq!(moves(&decide("nthread", &window)).len(), expected);
    }
}

#[test]
fn step_3_stops_when_h_has_no_surplus_though_there_is_room() {
    // Loads 1000, 490, 0, 0: average 372.5. Twenty writers of 50 on node 0: thirteen bring it to
    // 350, no surplus. Node 1 has one, which is why nodes 2 and 3 have room for a fourteenth: 7 ×
    // 50 = 350 ≤ 372.5.
    let nodes = (0..4).map(|id| node_with_bandwidth(id, 2, 1000.0)).collect();
    let mut window = snapshot(nodes, (1..=20).map(|tid| thread(tid, 0, &[], 50)).collect());
    window.nodes[1].write_bytes = 490 * MB;
    let plan = decide("nthread", &window);
    assert_eq!(moves(&plan).len(), 13);
    close(node_forecast(&plan, 0).controller_after, 0.35);
}

#[test]
fn step_3_gives_a_thread_the_emptiest_node_it_may_use_then_the_nearest() {
    // Loads 900, 100, 0, 0: average 250. Nodes 2 and 3 are empty; node 3 is nearer to node 0.
    let mut nodes: Vec<_> = (0..4).map(|id| node_with_bandwidth(id, 2, 1000.0)).collect();
    nodes[0].distance.insert(NodeId(3), 12);
    let threads = |allowed: &[u32]| {
        let mover = Thread { allowed_nodes: allowed.iter().map(|id| NodeId(*id)).collect(), ..thread(1, 0, &[], 100) };
        vec![mover, thread(2, 0, &[], 800), thread(3, 1, &[], 100)]
    };
    let to = |allowed: &[u32]| moves(&decide("nthread", &snapshot(nodes.clone(), threads(allowed))));
    assert_eq!(to(&[0, 1, 2, 3]), [(1, 3, Reason::ControllerContention)]);
    assert_eq!(to(&[0, 1, 2]), [(1, 2, Reason::ControllerContention)]);
    assert_eq!(to(&[0, 1]), [(1, 1, Reason::ControllerContention)]);
    assert_eq!(to(&[0]), []);
}

#[test]
fn step_3_does_not_judge_nodes_of_unknown_bandwidth_and_says_so() {
    let mut window = two_controllers(vec![thread(1, 0, &[], 500), thread(2, 0, &[], 400)]);
    assert_eq!(moves(&decide("nthread", &window)).len(), 1);
    window.nodes[0].read_bw_max = None;
    let plan = decide("nthread", &window);
    assert_eq!(moves(&plan), []);
    assert_eq!(plan.notes, ["node 0: bandwidth unknown, contention not judged"]);
    assert_eq!(node_forecast(&plan, 0).controller_before, None);
    assert!(decide("nthread-cpu", &window).notes.is_empty());
}

#[test]
fn step_3_uses_no_node_without_memory() {
    // Node 1 has CPUs but no memory. Its writes land on node 0, so it offers no relief; node 2
    // does.
    let nodes = (0..3).map(|id| node_with_bandwidth(id, 2, 1000.0)).collect();
    let window = snapshot(nodes, vec![thread(1, 0, &[], 450), thread(2, 1, &[], 0), thread(3, 0, &[], 450)]);
    let mut topology = window.topology();
    topology.nodes[1].memory = MemoryKind::None;
    let plan = decide_with("nthread", &Settings::default(), &topology, &window);
    // Average over the two controllers: 450.
    assert_eq!(moves(&plan), [(1, 2, Reason::ControllerContention)]);
}

#[test]
fn one_node_has_nowhere_to_go() {
    let sharer = Thread { shares_file: true, ..with_cpu(1.0, thread(1, 0, &[(0, 900)], 900)) };
    let mut window = snapshot(vec![node_with_bandwidth(0, 1, 100.0)], vec![sharer]);
    window.nodes[0].cpu_s = Some(1.0);
    for name in common::VARIANTS {
        let plan = decide(name, &window);
        assert_eq!((moves(&plan), plan.declined.len()), (vec![], 0));
    }
}

// Step 4: III-C2.

/// Four readers of node 0, each using half of one of its two CPUs: 100 %. The other node is idle.
fn crowd() -> Vec<Thread> {
    (1..=4).map(|tid| with_cpu(0.5, thread(tid, 0, &[(0, 200 + 100 * u64::from(5 - tid))], 0))).collect()
}

#[test]
fn equation_5_and_6_threads_that_read_least_from_h_go_until_it_is_within_the_limit() {
    // CPU_i = 0.5 / (1 s × 2) = 25 %. 100 % > 90 % and 0 %: thread 4 reads least (300 MB), 75 % is
    // within the limit.
    let plan = decide("nthread", &two_nodes(crowd()));
    assert_eq!(moves(&plan), [(4, 1, Reason::CpuContention)]);
    assert_eq!(why(&plan, 4), "300.0 MB read from node 0; node 0's CPUs would be at 100 %");
    close(node_forecast(&plan, 0).cpu_before, 1.0);
    close(node_forecast(&plan, 0).cpu_after, 0.75);
    close(node_forecast(&plan, 1).cpu_after, 0.25);
    // 300 of 300 + 400 + 500 + 600 MB are read from node 0 by a thread on node 1.
    close(plan.predicted.unwrap().remote_share_after, 300.0 / 1800.0);
}

#[test]
fn step_4_sees_the_crowd_that_step_1_would_make() {
    // The same four threads, spread over two nodes: the what-if puts all four on node 0.
    let mut threads = crowd();
    threads[2].node = NodeId(1);
    threads[3].node = NodeId(1);
    let plan = decide("nthread", &two_nodes(threads));
    assert_eq!(moves(&plan), [(3, 0, Reason::ReadLocality)]);
    let why = "300.0 MB of 300.0 MB read from node 0; node 0's CPUs would be at 100 %";
    assert_eq!(declined(&plan, 4), Some(("cpu_contention", why)));
    assert_eq!(moves(&decide("nthread-rl", &two_nodes(crowd()))), []);
}

#[test]
fn step_4_overloaded_is_above_90_percent_and_at_least_twice_the_others() {
    let with_totals = |h: f64, other: f64| {
        let mut window = two_nodes(vec![with_cpu(0.2, thread(1, 0, &[(0, 300)], 0))]);
        (window.nodes[0].cpu_s, window.nodes[1].cpu_s) = (Some(h), Some(other));
        moves(&decide("nthread", &window)).len()
    };
    // Of two CPUs: 1.8 s are exactly 90 %.
    assert_eq!(with_totals(1.8, 0.0), 0);
    assert_eq!(with_totals(1.81, 0.0), 1);
    // 100 % against 50 % is twice; against 51 % is less.
    assert_eq!(with_totals(2.0, 1.0), 1);
    assert_eq!(with_totals(2.0, 1.02), 0);
}

#[test]
fn step_4_gives_a_thread_the_least_used_node() {
    // 3.8 of four CPUs; nodes 1 to 3 at 30 %, 10 % and 20 %.
    let mut window =
        snapshot((0..4).map(|id| node(id, 4)).collect(), vec![with_cpu(0.5, thread(1, 0, &[(0, 300)], 0))]);
    for (node, cpu_s) in window.nodes.iter_mut().zip([3.8, 1.2, 0.4, 0.8]) {
        node.cpu_s = Some(cpu_s);
    }
    assert_eq!(moves(&decide("nthread", &window)), [(1, 2, Reason::CpuContention)]);
}

#[test]
fn step_4_does_not_make_work_for_step_3() {
    // 95 % CPU on node 0; its controller is at 600 / 3 + 590 = 790. Thread 1 writes 590 and so
    // would bring node 1 (250 of others) to 840 and node 0 to 200: overloaded. Thread 2 goes
    // instead.
    let threads = vec![
        with_cpu(0.5, thread(1, 0, &[], 590)),
        with_cpu(0.5, thread(2, 0, &[(0, 300)], 0)),
        with_cpu(0.9, thread(3, 0, &[(0, 300)], 0)),
    ];
    let mut window = two_controllers(threads);
    window.nodes[1].write_bytes = 250 * MB;
    assert_eq!(moves(&decide("nthread", &window)), [(2, 1, Reason::CpuContention)]);
    assert_eq!(moves(&decide("nthread-cpu", &window)), [(1, 1, Reason::CpuContention)]);
}

#[test]
fn step_4_does_not_make_work_for_step_3_of_the_next_window() {
    // t1: target node 0, writes 200. t2: no target (500 − 400 < 200), writes 850.
    // Node 0: (300 + 500) / 3 + 1050 = 1317 of 2000, node 1: 400 / 3 = 133, node 2: 300.
    // CPUs of node 0: 2.6 of 2.
    // t1 goes to node 2 (0 % CPU), which has 500 then. t2 to node 1 (5 %)? That would have 983
    // then: above 800, but node 2 is not below half of it. In the next window, though, t1 starts
    // from node 0 again: node 0 has 467, node 1 983, node 2 300; node 1 is overloaded. So t2 stays.
    let (t1, t2) = (thread(1, 0, &[(0, 300)], 200), thread(2, 0, &[(0, 500), (1, 400)], 850));
    let nodes = vec![
        NodeLoad { cpu_s: Some(2.6), ..node_with_bandwidth(0, 2, 2000.0) },
        NodeLoad { cpu_s: Some(0.1), ..node_with_bandwidth(1, 2, 1000.0) },
        NodeLoad { cpu_s: Some(0.0), write_bytes: 300 * MB, ..node_with_bandwidth(2, 2, 1000.0) },
    ];
    let window = snapshot(nodes, vec![with_cpu(0.5, t1), with_cpu(0.5, t2)]);
    assert_eq!(moves(&decide("nthread", &window)), [(1, 2, Reason::CpuContention)]);
}

#[test]
fn a_forecast_may_exceed_all_cpus() {
    // Four readers, each with its own CPU on node 1, would share two CPUs on node 0. Each may only
    // move to node 0 or stay.
    let threads = (1..=4).map(|tid| with_cpu(1.0, thread(tid, 1, &[(0, 300)], 0))).collect();
    let plan = decide("nthread-rl", &snapshot(vec![node(0, 2), node(1, 4)], threads));
    close(node_forecast(&plan, 0).cpu_after, 2.0);
}

// Step 5: III-D and Table II.

#[test]
fn step_5_skips_a_sharer_and_the_plan_says_what_it_shares() {
    let mut threads = crowd();
    threads[3].shares_file = true;
    // It reads more of a file of its own.
    let used = |ino, mb| FileUse { file: file(ino), read_bytes: bytes(&[(0, mb)]), ..FileUse::default() };
    threads[3].files = vec![used(1, 1), used(2, 9)];
    let mut window = two_nodes(threads);
    let readers = vec![1, 2, 3, 4];
    window.files = vec![
        ObservedFile { file: file(1), path: Some("/db/2619".into()), readers, ..Default::default() },
        ObservedFile { file: file(2), readers: vec![4], opens: Some(1), ..Default::default() },
    ];
    let plan = decide("nthread", &window);
    // Thread 3 is next: 400 MB.
    assert_eq!(moves(&plan), [(3, 1, Reason::CpuContention)]);
    assert_eq!(declined(&plan, 4), Some(("shares_file", "shares /db/2619 with 3 threads")));
    // The other variants ignore sharing.
    for name in ["nthread-cpu", "nthread-nm"] {
        assert_eq!(moves(&decide(name, &window)), [(4, 1, Reason::CpuContention)]);
    }
}

/// III-D: the `i_count` of a file is above 1 also while its second user is quiet.
#[test]
fn a_file_that_somebody_else_has_open_and_does_not_touch_is_shared() {
    let window = |opens, mb: u64| {
        let mut threads = crowd();
        let read_bytes = common::bytes(&[(0, mb)]);
        threads[3].files = vec![FileUse { file: file(1), read_bytes, ..Default::default() }];
        let mut window = two_nodes(threads);
        let path = Some("/db/2619".into());
        window.files = vec![ObservedFile { file: file(1), path, opens, readers: vec![4], ..Default::default() }];
        window
    };
    let plan = decide("nthread", &window(Some(2), 300));
    assert_eq!(moves(&plan), [(3, 1, Reason::CpuContention)]);
    assert_eq!(declined(&plan, 4), Some(("shares_file", "shares /db/2619, which is open 2 times")));
    // Open once; unknown; and a few bytes of what every process has open, such as a library.
    for (opens, mb) in [(Some(1), 300), (None, 300), (Some(500), 3)] {
        assert_eq!(moves(&decide("nthread", &window(opens, mb))), [(4, 1, Reason::CpuContention)]);
    }
    assert_eq!(moves(&decide("nthread-nm", &window(Some(2), 300))), [(4, 1, Reason::CpuContention)]);
}

// A repeated decision makes no moves.

#[test]
fn a_thread_without_a_target_that_relieves_a_node_spares_those_with_one() {
    // Node 0: t1 writes 250 and has no target; t2 reads 300 from node 0 and writes 20; 450 are
    // others'. 100 + 720 = 820 > 800, average of three 273.3. Taken once, the rules send t1 to node
    // 1 and, as node 0 with 570 has a surplus still, t2 to node 2. But then the next window finds
    // 570 on node 0 with t2 at home, no overload, and calls t2 back. So t2 stays.
    let nodes = || (0..3).map(|id| node_with_bandwidth(id, 2, 1000.0)).collect::<Vec<_>>();
    let mut window = snapshot(nodes(), vec![thread(1, 0, &[], 250), thread(2, 0, &[(0, 300)], 20)]);
    window.nodes[0].write_bytes = 720 * MB;
    let plan = decide("nthread", &window);
    assert_eq!(moves(&plan), [(1, 1, Reason::ControllerContention)]);
    let next = next_window(&window.topology(), &window, &plan);
    assert_eq!(moves(&decide("nthread", &next)), []);
}

#[test]
fn a_thread_that_was_sent_away_stays_away() {
    for window in
        [two_nodes(crowd()), two_controllers(vec![thread(1, 0, &[(0, 300)], 500), thread(2, 0, &[(0, 600)], 400)])]
    {
        let plan = decide("nthread", &window);
        assert_eq!(moves(&plan).len(), 1);
        let next = next_window(&window.topology(), &window, &plan);
        let then = decide("nthread", &next);
        assert_eq!(moves(&then), []);
        // It now reads remotely, and the plan states why it stays there.
        assert!(then.declined[0].reason.ends_with("_contention"), "{:?}", then.declined);
    }
}

// The plan itself.

#[test]
fn moves_are_ordered_by_relief_then_gain() {
    let window = snapshot(
        vec![node_with_bandwidth(0, 2, 1000.0), node_with_bandwidth(1, 2, 1000.0)],
        vec![
            thread(1, 1, &[(0, 300)], 0),
            thread(2, 1, &[(0, 600)], 0),
            thread(3, 0, &[], 400),
            thread(4, 0, &[], 500),
        ],
    );
    // Node 0: 900 / 3 + 900 = 1200, average 600: t3 goes (400), t4 (900) does not fit.
    let order: Vec<_> =
        decide("nthread", &window).moves.iter().map(|m| serde_json::to_value(m).unwrap()["tid"].clone()).collect();
    assert_eq!(order, [3, 2, 1]);
}

#[test]
fn staying_threads_are_listed_by_remote_bytes_up_to_a_bound() {
    let many = MAX_DECLINED as u32 + 7;
    let threads = (1..=many).map(|tid| thread(tid, 1, &[(0, 10 + u64::from(tid % 100))], 0)).collect();
    let plan = decide("nthread-rl", &two_nodes(threads));
    assert_eq!(plan.declined.len(), MAX_DECLINED);
    assert_eq!(plan.notes, ["7 more threads stay than are listed"]);
    assert!(plan.declined[0].why.starts_with("109.0 MB"), "{:?}", plan.declined[0]);
    // The seven threads left out have the least remote bytes: 10 MB each, tids 100, 200, …
    let listed = plan.declined.iter().filter(|d| d.why.starts_with("10.0 MB")).count();
    assert_eq!(listed, many as usize / 100 - 7);
    let threads = (1..=MAX_DECLINED as u32).map(|tid| thread(tid, 1, &[(0, 10)], 0)).collect();
    let all = decide("nthread-rl", &two_nodes(threads));
    assert_eq!((all.declined.len(), all.notes), (MAX_DECLINED, Vec::new()));
}

#[test]
fn forecasts_use_observed_remote_bytes_before_and_the_new_node_after() {
    // The thread read 300 MB from node 0, 120 of it while it still ran elsewhere.
    let t = Thread { remote_read_bytes: Some(120 * MB), ..thread(1, 1, &[(0, 300), (1, 0)], 0) };
    let plan = decide("nthread", &two_nodes(vec![t]));
    close(plan.predicted.as_ref().unwrap().remote_share_before, 0.4);
    close(plan.predicted.as_ref().unwrap().remote_share_after, 0.0);
}

#[test]
fn a_window_without_length_decides_nothing() {
    for window_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut window = two_nodes(vec![thread(1, 1, &[(0, 300)], 0)]);
        window.window_s = window_s;
        let plan = decide_with("nthread", &Settings::default(), &window.topology(), &window);
        assert_eq!((plan.moves.len(), plan.notes.len()), (0, 1));
    }
}

#[test]
fn every_policy_is_known_by_its_name() {
    for (name, about) in placement::POLICIES.iter().filter(|(name, _)| name.starts_with("nthread")) {
        assert_eq!(placement::policy(name, &Settings::default()).unwrap().name(), *name);
        assert!(!about.is_empty());
    }
    assert!(placement::policy("nthread-xl", &Settings::default()).is_none());
}

#[test]
fn settings_refuse_unknown_keys_and_impossible_values() {
    let read = |text: &str| serde_json::from_str::<Settings>(text).map_err(|e| e.to_string());
    assert_eq!(read("{}").unwrap(), Settings::default());
    assert_eq!(read(r#"{"cpu_limit":1.1}"#).unwrap().cpu_limit, 1.1);
    assert!(read(r#"{"cpu_limits":1}"#).unwrap_err().contains("unknown field `cpu_limits`"));
    assert!(read(r#"{"cpu_limit":0}"#).unwrap_err().contains("0 is not a share"));
    assert!(read(r#"{"read_weight":-1}"#).unwrap_err().contains("-1 is not a positive number"));
    assert!(read(r#"{"locality_margin":-1}"#).unwrap_err().contains("-1"));
    assert!(read(r#"{"min_bytes":-1}"#).is_err());
    let dragonfly =
        |text: &str| serde_json::from_str::<placement::dragonfly::Settings>(text).map_err(|e| e.to_string());
    assert!(dragonfly(r#"{"migration_bw":0}"#).unwrap_err().contains("at least 1 byte"));
    assert_eq!(dragonfly(r#"{"max_window_s":0}"#).unwrap().max_window_s, 0.0);
    let promote = |text: &str| serde_json::from_str::<placement::promote::Settings>(text).map_err(|e| e.to_string());
    assert!(promote(r#"{"rate":-1}"#).unwrap_err().contains("-1"));
    let npolicy = |text: &str| serde_json::from_str::<placement::npolicy::Settings>(text).map_err(|e| e.to_string());
    assert!(npolicy(r#"{"coverage":80}"#).unwrap_err().contains("80 is not a fraction"));
    assert!(npolicy(r#"{"epoch_s":-1}"#).is_err());
    let arc = |text: &str| serde_json::from_str::<placement::cache_affinity::Settings>(text).map_err(|e| e.to_string());
    assert!(arc(r#"{"reduction":-1}"#).is_err());
}
