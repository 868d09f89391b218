//! Properties that hold for every workload, on random ones.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use std::collections::BTreeMap;

use common::{Case, Size, VARIANTS, case, decide_with, memory_of, moves, moves_for, next_window};
use placement::nthread::Settings;
use placement::{NodeBytes, Plan, Reason, Snapshot};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use topology::{NodeId, Topology};

const ANY: Size = Size { nodes: 4, threads: 9, odd_nodes: true };

fn plan(name: &str, case: &Case) -> Plan {
    decide_with(name, &Settings::default(), &case.topology, &case.snapshot)
}

/// The controller load of each node with memory in the window after the plan, counted from scratch.
fn controller_loads(topology: &Topology, after: &Snapshot) -> BTreeMap<NodeId, u64> {
    let mut loads: BTreeMap<_, _> = after.nodes.iter().map(|n| (n.id, n.read_bytes / 3 + n.write_bytes)).collect();
    // The writes of a movable thread are predicted to land where it runs, wherever they landed in
    // this window.
    for t in after.threads.iter().filter(|t| t.pinned.is_none() && t.file_bytes() >= 4 * 1024 * 1024) {
        t.write_bytes.iter().for_each(|(node, n)| *loads.get_mut(&node).unwrap() -= n);
        *loads.get_mut(&memory_of(topology, t.node)).unwrap() += t.write_bytes.total();
    }
    loads.retain(|id, _| memory_of(topology, *id) == *id);
    loads
}

proptest! {
    #![proptest_config(Config { cases: 2000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn generated_snapshots_are_valid(case in case(ANY)) {
        prop_assert!(case.snapshot.validate().is_ok(), "{:?}", case.snapshot.validate());
    }

    #[test]
    fn a_plan_never_names_a_node_a_thread_may_not_run_on(case in case(ANY), name in prop::sample::select(&VARIANTS)) {
        for (tid, to, reason) in moves(&plan(name, &case)) {
            let thread = case.snapshot.threads.iter().find(|t| t.tid == tid).unwrap();
            let to = NodeId(to);
            prop_assert!(thread.allowed_nodes.contains(&to), "{tid} may not run on {to}");
            prop_assert!(!case.topology.node(to).unwrap().cpus.is_empty(), "{tid}: node {to} has no CPUs");
            prop_assert!(thread.node != to, "{tid} is on node {to} already");
            prop_assert!(thread.pinned.is_none(), "{tid} is pinned");
            prop_assert!(thread.file_bytes() >= 4 * 1024 * 1024, "{tid} is idle");
            prop_assert!(reason != Reason::ControllerContention || name.ends_with("nm") || name == "nthread");
            prop_assert!(reason != Reason::CpuContention || name != "nthread-rl");
        }
    }

    #[test]
    fn step_3_never_lifts_a_node_above_the_average(case in case(ANY), name in prop::sample::select(&["nthread-nm", "nthread"])) {
        let plan = plan(name, &case);
        // Step 4 uses no average. It may also assign a thread to its current node, which is no
        // move.
        prop_assume!(moves_for(&plan, Reason::CpuContention).is_empty());
        prop_assume!(plan.declined.iter().all(|d| d.reason != "cpu_contention"));
        let loads = controller_loads(&case.topology, &next_window(&case.topology, &case.snapshot, &plan));
        let (total, nodes) = (loads.values().sum::<u64>(), loads.len() as u64);
        for (tid, to) in moves_for(&plan, Reason::ControllerContention) {
            prop_assert!(loads[&NodeId(to)] * nodes <= total, "{tid} lifts node {to} to {} of {total}/{nodes}", loads[&NodeId(to)]);
        }
    }

    #[test]
    fn step_4_never_lifts_a_node_above_the_limit(case in case(ANY), name in prop::sample::select(&VARIANTS)) {
        let plan = plan(name, &case);
        let after = next_window(&case.topology, &case.snapshot, &plan);
        for (tid, to) in moves_for(&plan, Reason::CpuContention) {
            let node = after.nodes.iter().find(|n| n.id.0 == to).unwrap();
            let listed: f64 = after.threads.iter().filter(|t| t.node == node.id).map(|t| t.cpu_s).sum();
            let used = node.cpu_s.unwrap_or(0.0).max(listed) / (after.window_s * node.cpus.len() as f64);
            prop_assert!(used <= 0.9 + 1e-9, "{tid} lifts node {to} to {used}");
        }
    }

    #[test]
    fn sharers_are_never_moved_by_steps_3_and_4(case in case(ANY)) {
        for (tid, _, reason) in moves(&plan("nthread", &case)) {
            let thread = case.snapshot.threads.iter().find(|t| t.tid == tid).unwrap();
            prop_assert!(!thread.shares_file || reason == Reason::ReadLocality, "{tid} shares a file: {reason:?}");
        }
    }

    #[test]
    fn the_same_snapshot_gives_the_same_plan(case in case(ANY), name in prop::sample::select(&VARIANTS)) {
        let mut policy = placement::policy(name, &Settings::default()).unwrap();
        let first = policy.decide(&case.topology, &case.snapshot);
        prop_assert_eq!(&first, &policy.decide(&case.topology, &case.snapshot));
        prop_assert_eq!(&first, &plan(name, &case));
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(
        (case, shuffled) in case(ANY).prop_flat_map(|c| {
            let threads = Just(c.snapshot.threads.clone()).prop_shuffle();
            let nodes = Just(c.snapshot.nodes.clone()).prop_shuffle();
            (Just(c), (threads, nodes))
        }),
        name in prop::sample::select(&VARIANTS),
    ) {
        let mut other = case.clone();
        (other.snapshot.threads, other.snapshot.nodes) = shuffled;
        other.snapshot.threads.iter_mut().for_each(|t| t.allowed_nodes.reverse());
        prop_assert_eq!(plan(name, &case), plan(name, &other));
    }

    #[test]
    fn a_repeated_decision_makes_no_moves(case in case(ANY), name in prop::sample::select(&VARIANTS)) {
        let first = plan(name, &case);
        let snapshot = next_window(&case.topology, &case.snapshot, &first);
        let second = plan(name, &Case { snapshot, ..case });
        prop_assert!(second.moves.is_empty(), "first {:#?}\nthen {:#?}", first.moves, second.moves);
    }

    #[test]
    fn the_forecast_matches_the_next_window(case in case(ANY), name in prop::sample::select(&VARIANTS)) {
        let first = plan(name, &case).predicted.unwrap();
        let snapshot = next_window(&case.topology, &case.snapshot, &plan(name, &case));
        let then = plan(name, &Case { snapshot, ..case }).predicted.unwrap();
        let same = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() < 1e-6,
            _ => a == b,
        };
        prop_assert!(same(first.remote_share_after, then.remote_share_before));
        for (a, b) in first.nodes.iter().zip(&then.nodes) {
            prop_assert!(same(a.controller_after, b.controller_before), "{a:?} {b:?}");
            prop_assert!(same(a.cpu_after, b.cpu_before), "{a:?} {b:?}");
        }
    }

    #[test]
    fn no_snapshot_makes_it_panic(
        case in case(ANY),
        window_s in prop::num::f64::ANY,
        numbers in prop::collection::vec((any::<u64>(), prop::num::f64::ANY, any::<u32>()), 4),
        name in prop::sample::select(&VARIANTS),
    ) {
        let mut wrong = case.snapshot.clone();
        let settings = Settings { min_bytes: 0, ..Settings::default() };
        let _ = wrong.validate();
        for (node, (n, f, id)) in wrong.nodes.iter_mut().zip(&numbers) {
            (node.read_bytes, node.write_bytes, node.cpu_s, node.read_bw_max) = (*n, !*n, Some(*f), Some(-*f));
            node.distance.insert(NodeId(*id), *id);
        }
        for (thread, (n, f, id)) in wrong.threads.iter_mut().zip(numbers.iter().cycle()) {
            let both = [(NodeId(*id), *n), (NodeId(0), u64::MAX)];
            (thread.cpu_s, thread.tid, thread.remote_read_bytes) = (*f, *id, Some(*n));
            (thread.read_bytes, thread.write_bytes) = (NodeBytes::from_iter(both), NodeBytes::from_iter(both));
            if n % 3 == 0 {
                (thread.node, thread.allowed_nodes) = (NodeId(*id), vec![NodeId(*id), NodeId(0)]);
            }
        }
        for window_s in [window_s, 1.0, 1e18, 1e-18] {
            wrong.window_s = window_s;
            let _ = wrong.validate();
            for topology in [&case.topology, &wrong.topology(), &Topology::default()] {
                let _ = decide_with(name, &settings, topology, &wrong);
            }
        }
    }
}

/// A policy that never moves anything would satisfy the properties above, so random workloads must
/// exercise each step.
#[test]
fn random_workloads_exercise_every_step() {
    let mut runner = TestRunner::deterministic();
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..2000 {
        let case = case(ANY).new_tree(&mut runner).unwrap().current();
        let plan = plan("nthread", &case);
        for reason in [Reason::ReadLocality, Reason::ControllerContention, Reason::CpuContention] {
            let name = match reason {
                Reason::ReadLocality => "read_locality",
                Reason::ControllerContention => "controller_contention",
                _ => "cpu_contention",
            };
            *count.entry(name).or_default() += usize::from(!moves_for(&plan, reason).is_empty());
        }
        for d in &plan.declined {
            let stays = ["pinned", "shares_file", "not_allowed", "no_cpus", "below_margin"];
            if let Some(known) = stays.into_iter().find(|k| **k == d.reason) {
                *count.entry(known).or_default() += 1;
            } else {
                assert!(["controller_contention", "cpu_contention"].contains(&d.reason.as_str()), "{}", d.reason);
                *count.entry("relieved and where it belongs").or_default() += 1;
            }
        }
    }
    println!("of 2000 workloads: {count:?}");
    for (name, least) in [("read_locality", 500), ("controller_contention", 50), ("cpu_contention", 50)] {
        assert!(count[name] >= least, "{name}: {count:?}");
    }
    for name in ["pinned", "shares_file", "not_allowed", "no_cpus", "below_margin", "relieved and where it belongs"] {
        assert!(count[name] >= 20, "{name}: {count:?}");
    }
}
