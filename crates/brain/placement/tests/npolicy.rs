//! N-Policy (Fig. 2 of the paper), through the public interface.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{MB, declined, moves, node, snapshot, thread, why};
use placement::npolicy::{NPolicy, Settings};
use placement::{MappedMemory, Plan, Policy, Process, Reason, Snapshot, Thread, Wish};
use topology::NodeId;

/// (node, hot MB, cold MB)
fn mapped(pid: u32, nodes: &[(u32, u64, u64)]) -> Process {
    let on = |(node, hot, cold): &(u32, u64, u64)| MappedMemory {
        node: NodeId(*node),
        hot_bytes: hot * MB,
        cold_bytes: cold * MB,
        touched_bytes: None,
    };
    Process { pid, mapped: nodes.iter().map(on).collect(), ..Process::default() }
}

fn window(nodes: u32, threads: Vec<Thread>, processes: Vec<Process>) -> Snapshot {
    let nodes = (0..nodes).map(|id| node(id, 4)).collect();
    Snapshot { processes, ..snapshot(nodes, threads) }
}

/// Runs ten windows of 1 s and returns the last plan, after asserting that the others move nothing.
fn epoch(policy: &mut NPolicy, begin_s: u32, snapshot: &Snapshot) -> Plan {
    let mut plan = Plan::default();
    for second in 1..=10 {
        let snapshot = Snapshot { time_s: f64::from(begin_s + second), ..snapshot.clone() };
        plan = policy.decide(&snapshot.topology(), &snapshot);
        assert!(second == 10 || plan.moves.is_empty(), "moved after {second} s of an epoch of 10 s");
    }
    plan
}

fn first(snapshot: &Snapshot) -> Plan {
    epoch(&mut NPolicy::new(Settings::default()), 0, snapshot)
}

#[test]
fn a_process_with_all_its_data_elsewhere_moves_there_after_ten_seconds() {
    // Fig. 3: fio on node 0, all its data on node 1.
    let plan = first(&window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(1, 100, 20)])]));
    assert_eq!(moves(&plan), [(7, 1, Reason::RemoteOnly)]);
    assert_eq!(why(&plan, 7), "it runs on no node that holds mapped data it touched; 100 % is on node 1");
}

/// What the earlier process touched moved the later one.
#[test]
fn a_process_that_got_the_id_of_another_within_an_epoch_begins_anew() {
    let started = |ns: u64, node: u32| {
        let threads = vec![Thread { process_start_ns: Some(ns), ..thread(7, 0, &[], 0) }];
        window(2, threads, vec![Process { start_ns: Some(ns), ..mapped(1000, &[(node, 100, 20)]) }])
    };
    for (then, expected) in [(1, vec![(7, 1, Reason::RemoteOnly)]), (2, vec![])] {
        let mut policy = NPolicy::new(Settings::default());
        let mut plan = Plan::default();
        for second in 1..=10 {
            // Its last windows touch little, on its own node.
            let (ns, node) = if second < 9 { (1, 1) } else { (then, u32::from(then == 1)) };
            let snapshot = Snapshot { time_s: f64::from(second), ..started(ns, node) };
            plan = policy.decide(&snapshot.topology(), &snapshot);
        }
        assert_eq!(moves(&plan), expected);
    }
}

#[test]
fn all_threads_of_the_process_move_and_no_other() {
    let mut other = thread(9, 0, &[], 0);
    other.pid = 2000;
    let threads = vec![thread(7, 0, &[], 0), thread(8, 0, &[], 0), other];
    let plan = first(&window(2, threads, vec![mapped(1000, &[(1, 100, 0)]), mapped(2000, &[(0, 100, 0)])]));
    assert_eq!(moves(&plan), [(7, 1, Reason::RemoteOnly), (8, 1, Reason::RemoteOnly)]);
}

#[test]
fn coverage_decides_above_80_percent_and_not_at_it() {
    // Node 1 holds 81 of 100 MB.
    let plan = first(&window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(0, 10, 9), (1, 10, 71)])]));
    assert_eq!(moves(&plan), [(7, 1, Reason::Coverage)]);
    assert_eq!(why(&plan, 7), "81 % of the mapped data it touched is on node 1");
    // 80 of 100, and equally many hot pages on both nodes.
    let plan = first(&window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(0, 10, 10), (1, 10, 70)])]));
    assert_eq!(moves(&plan), []);
}

#[test]
fn coverage_counts_touched_pages_where_they_are_known() {
    // 900 MB are mapped on node 1, but only 30 of them were touched: 30 of 130. Node 0 has the hot
    // pages.
    let mut process = mapped(1000, &[(0, 100, 0), (1, 20, 880)]);
    process.mapped[1].touched_bytes = Some(30 * MB);
    assert_eq!(moves(&first(&window(2, vec![thread(7, 0, &[], 0)], vec![process]))), []);
}

#[test]
fn hotness_decides_where_coverage_does_not() {
    // 50 % each; hot pages 40 MB there, 30 MB here: 40 > 1.2 × 30 = 36.
    let plan = first(&window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(0, 30, 40), (1, 40, 30)])]));
    assert_eq!(moves(&plan), [(7, 1, Reason::Hotness)]);
    assert_eq!(why(&plan, 7), "40.0 MB of hot mapped pages on node 1, 30.0 MB on node 0");
    // 36 MB is not more than 36 MB.
    let plan = first(&window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(0, 30, 36), (1, 36, 30)])]));
    assert_eq!(moves(&plan), []);
}

#[test]
fn hotness_has_hysteresis_both_ways() {
    let mut policy = NPolicy::new(Settings::default());
    let there = window(2, vec![thread(7, 1, &[], 0)], vec![mapped(1000, &[(0, 40, 30), (1, 35, 35)])]);
    // 40 against 35 on its own node is within the margin of 1.2, so it moves neither to node 1 nor
    // back.
    assert_eq!(moves(&epoch(&mut policy, 0, &there)), []);
    let here = window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(0, 35, 35), (1, 40, 30)])]);
    assert_eq!(moves(&epoch(&mut policy, 10, &here)), []);
}

#[test]
fn of_nodes_that_hold_as_much_its_own_comes_first() {
    let mut policy = NPolicy::new(Settings { coverage: 0.4, ..Settings::default() });
    let w = window(2, vec![thread(7, 1, &[], 0)], vec![mapped(1000, &[(0, 50, 0), (1, 50, 0)])]);
    assert_eq!(moves(&epoch(&mut policy, 0, &w)), []);
}

#[test]
fn an_epoch_begins_with_its_first_window_and_gaps_count() {
    let decided = |times: &[f64], window_s: f64| {
        let mut policy = NPolicy::new(Settings::default());
        let w = window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(1, 100, 0)])]);
        let at = |time_s: &f64| Snapshot { time_s: *time_s, window_s, ..w.clone() };
        times.iter().position(|time_s| !policy.decide(&w.topology(), &at(time_s)).moves.is_empty())
    };
    assert_eq!(decided(&[1001.0, 1002.0, 1009.0, 1010.0], 1.0), Some(3));
    // A part of half a window may be missing.
    assert_eq!(decided(&[2.4, 4.8, 7.2, 9.6, 12.0], 2.4), Some(3));
}

#[test]
fn an_epoch_sums_its_windows() {
    // Hot pages flicker: 60 MB on node 1 in even seconds, 35 MB on node 0 in every second: 300
    // against 350.
    let mut policy = NPolicy::new(Settings::default());
    let mut all = Vec::new();
    for second in 1..=10u32 {
        let hot = if second % 2 == 0 { 60 } else { 0 };
        let w = window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(0, 35, 0), (1, hot, 0)])]);
        let w = Snapshot { time_s: f64::from(second), ..w };
        all.extend(policy.decide(&w.topology(), &w).moves);
    }
    assert_eq!(all, []);
}

#[test]
fn data_on_a_node_without_cpus_attracts_to_the_nearest_then_least_used_node() {
    // Node 2 has no CPUs. It is equally near to 0 and 1, and farther from 3, where the thread is.
    let mut w = window(4, vec![thread(7, 3, &[], 0)], vec![mapped(1000, &[(2, 100, 0)])]);
    w.nodes[2].cpus.clear();
    w.nodes[2].distance.insert(NodeId(3), 40);
    w.nodes[3].distance.insert(NodeId(2), 40);
    w.nodes[0].cpu_s = Some(3.0);
    w.nodes[1].cpu_s = Some(2.0);
    assert_eq!(moves(&first(&w)), [(7, 1, Reason::RemoteOnly)]);
    // From node 0, which is as near as node 1, the thread does not move.
    w.threads[0].node = NodeId(0);
    let plan = first(&w);
    assert_eq!(moves(&plan), []);
    assert_eq!(declined(&plan, 7).unwrap().0, "not_allowed");
}

#[test]
fn pinned_and_confined_threads_stay() {
    let mut pinned = thread(7, 0, &[], 0);
    pinned.pinned = Some("has an affinity of its own: 0-3".into());
    let mut confined = thread(8, 0, &[], 0);
    confined.allowed_nodes = vec![NodeId(0)];
    let plan = first(&window(2, vec![pinned, confined], vec![mapped(1000, &[(1, 100, 0)])]));
    assert_eq!(moves(&plan), []);
    assert_eq!(declined(&plan, 7), Some(("pinned", "has an affinity of its own: 0-3")));
    assert_eq!(declined(&plan, 8).unwrap().0, "not_allowed");
}

#[test]
fn little_touched_or_unlisted_processes_are_left_alone() {
    // 4 MB a window is less than 4 MiB.
    let plan = first(&window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(1, 4, 0)])]));
    assert_eq!(moves(&plan), []);
    let why = "process 1000: left alone, because it touched 4.0 MB of mapped files a window, less than 4.2 MB";
    assert_eq!(plan.notes, [why]);
    let plan = first(&window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(1, 0, 0)])]));
    assert_eq!((plan.moves, plan.notes), (vec![], Vec::<String>::new()));
    let mut enough = NPolicy::new(Settings { min_bytes: 4 * MB, ..Settings::default() });
    let plan = epoch(&mut enough, 0, &window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(1, 4, 0)])]));
    assert_eq!(moves(&plan).len(), 1);
    let plan = first(&window(2, vec![], vec![mapped(1000, &[(1, 400, 0)])]));
    assert_eq!(
        (plan.moves, plan.notes),
        (vec![], vec!["process 1000: left alone, because none of its threads is listed".into()])
    );
}

#[test]
fn recordings_without_a_clock_form_epochs_and_a_restarted_clock_starts_a_new_one() {
    let w = window(2, vec![thread(7, 0, &[], 0)], vec![mapped(1000, &[(1, 100, 0)])]);
    let mut policy = NPolicy::new(Settings::default());
    let counts: Vec<usize> = (0..20).map(|_| policy.decide(&w.topology(), &w).moves.len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 2);
    assert_eq!((counts[9], counts[19]), (1, 1));
    let mut policy = NPolicy::new(Settings::default());
    for time_s in [101.0, 102.0, 103.0, 1.0] {
        let w = Snapshot { time_s, ..w.clone() };
        policy.decide(&w.topology(), &w);
    }
    let notes = policy.decide(&w.topology(), &Snapshot { time_s: 2.0, ..w.clone() }).notes;
    assert_eq!(notes, ["observed 2.0 s of an epoch of 10.0 s; decisions come at its end"]);
}

#[test]
fn nothing_moves_twice_while_the_data_stays() {
    let mut policy = NPolicy::new(Settings::default());
    let threads = vec![thread(7, 0, &[], 0), thread(8, 1, &[], 0), thread(9, 2, &[], 0)];
    let mut w = window(3, threads, vec![mapped(1000, &[(0, 30, 30), (1, 31, 0), (2, 80, 10)])]);
    let mut made = 0;
    for round in 0..10 {
        let plan = epoch(&mut policy, round * 10, &w);
        for mv in &plan.moves {
            let tid = mv.tid().unwrap();
            w.threads.iter_mut().find(|t| t.tid == tid).unwrap().node = mv.to;
            assert_eq!(round, 0);
            made += 1;
        }
    }
    assert_eq!(made, 2);
    assert!(w.threads.iter().all(|t| t.node == NodeId(2)));
}

#[test]
fn it_decides_at_the_end_of_an_epoch_and_needs_mapped_memory() {
    let policy = NPolicy::new(Settings { epoch_s: 7.0, ..Settings::default() });
    assert_eq!((policy.period_s(), policy.traits().wants_mapped), (7.0, Wish::Needed));
}
