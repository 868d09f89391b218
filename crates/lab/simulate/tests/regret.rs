//! Regret: independent of the number of workers, never negative, and summed up correctly.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use simulate::random;
use simulate::regret::{Regret, Request, compare, regret};

fn quiet(_: usize, _: usize) {}

/// Pinned: 12 random scenarios of seed 1.
fn few(workers: usize) -> Regret {
    regret(Request { scenarios: 12, seed: 1, papers: false, unknown: false, workers }, &quiet).unwrap()
}

#[test]
fn unknown_machines_change_what_every_policy_gets_done_and_nothing_else() {
    let request = Request { scenarios: 8, seed: 424_242, papers: false, unknown: false, workers: 2 };
    let known = regret(request, &quiet).unwrap();
    let unknown = regret(Request { unknown: true, ..request }, &quiet).unwrap();
    let again = regret(Request { unknown: true, workers: 1, ..request }, &quiet).unwrap();
    assert_eq!(unknown, again);
    for (known, unknown) in known.results.iter().zip(&unknown.results) {
        assert_eq!(known.scenario, unknown.scenario);
        let [a, b] = [known, unknown].map(|r| r.policies["none"].bytes_per_s);
        assert!(a != b && (0.3..3.0).contains(&(a / b)), "{}: {a} and {b}", known.scenario);
    }
}

#[test]
fn the_result_does_not_depend_on_the_number_of_workers() {
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

/// Former losses of `auto` on random scenarios, with their causes; comparing it with the papers'
/// policies found each of them. Lost again since `auto` leaves trials to the engine, which has none
/// in a simulation, and no longer models the crowding of writers: randoms 362 of seed 7, 378 and
/// 257 of seed 20261122, 112 of seed 5, 357 of seed 1. Their causes were not told apart.
#[test]
fn auto_does_not_lose_again_what_it_lost() {
    let mut again = Vec::new();
    for (seed, scenario, lost, why) in [
        (5, 59, 0.106, "a thread was bound where its process was just leaving"),
        (20261122, 353, 0.080, "data that was refused was waited for and measured as if it had moved"),
        (7, 178, 0.230, "writes of a thread that had just moved were taken for writes that stay where they are"),
        (7, 277, 0.400, "each of 42 files was taken to move at once, while they move one after the other"),
        (7, 597, 0.120, "of a file on several nodes only one part was moved"),
    ] {
        let result = compare(&random::scenario(seed, scenario).unwrap()).unwrap();
        let regret = result.policies["auto"].regret;
        if regret >= 0.25 * lost {
            again.push(format!("random {scenario} of seed {seed}: {regret:.3} ({why})"));
        }
    }
    assert!(again.is_empty(), "{again:#?}");
}
