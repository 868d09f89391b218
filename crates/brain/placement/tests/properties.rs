//! Properties that hold for every workload, on random ones.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use std::collections::BTreeMap;

use common::{Case, Size, VARIANTS, case, decide_with, moves_for, next_window};
use placement::nthread::Settings;
use placement::{NodeBytes, Plan, Reason};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use topology::{NodeId, Topology};

const ANY: Size = Size { nodes: 4, threads: 9, odd_nodes: true };

fn plan(name: &str, case: &Case) -> Plan {
    decide_with(name, &Settings::default(), &case.topology, &case.snapshot)
}

proptest! {
    #![proptest_config(Config { cases: 2000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn generated_snapshots_are_valid(case in case(ANY)) {
        prop_assert!(case.snapshot.validate().is_ok(), "{:?}", case.snapshot.validate());
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
