//! Regret: the same whoever computes it, never below nothing, and what it adds up to.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use simulate::regret::{Regret, Request, regret};

fn quiet(_: usize, _: usize) {}

/// Pinned: 12 random scenarios of seed 1.
fn few(workers: usize) -> Regret {
    regret(Request { scenarios: 12, seed: 1, papers: false, workers }, &quiet).unwrap()
}

#[test]
fn the_result_does_not_depend_on_who_computes_it() {
    let (one, many) = (few(1), few(3));
    assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&many).unwrap());
    // Every fourth is small, and one more is by chance.
    assert_eq!((one.scenarios, one.results.len(), one.searched), (12, 12, 4));
    for result in &one.results {
        let best = &result.policies[&result.best];
        assert_eq!(best.regret, 0.0, "{}", result.scenario);
        for (name, policy) in &result.policies {
            assert!((0.0..=1.0).contains(&policy.regret), "{} {name}: {policy:?}", result.scenario);
            assert!(policy.bytes_per_s <= best.bytes_per_s && (policy.moves > 0) == (policy.last_move > 0));
        }
    }
    // The kernel alone moves nothing, but leaves something on the table.
    let none = &one.policies["none"];
    assert!(none.late == 0 && none.all.mean > 0.0 && none.all.worst_scenario.is_some());
    assert!(one.results.iter().all(|r| r.policies["none"].moves == 0));
    assert_eq!(one.policies.len(), 1 + placement::POLICIES.len());
    for policy in one.policies.values() {
        assert_eq!(policy.all, policy.random);
        assert!(policy.optimum.worst >= policy.optimum.mean && policy.late == policy.late_scenarios.len());
    }
}
