//! The best placement, found by trying all.
//!
//! **Problem.** The best of nine policies may still be far from the best possible.
//!
//! **Approach.** Every placement of the threads is simulated like a policy's run: same machine,
//! same start, same duration, with threads fixed on their nodes from the beginning. Identical
//! threads (same program, same role, data and process memory in the same places) are
//! interchangeable, so that only their number on each node counts: `k` of them on `n` nodes have
//! `C(k + n − 1, n − 1)` placements.
//!
//! Scenarios whose programs end are left out: no placement can recover the time before the first
//! window.
//!
//! **Limits.** Data and processes stay where they start, and nothing moves later: a policy that
//! also moves data may beat this optimum. Scenarios with more than [`MOST_PLACEMENTS`] placements
//! are skipped. Threads with an affinity of their own keep it.

use crate::run::{RunError, Scenario, drive, start};

/// Most placements that are tried.
pub const MOST_PLACEMENTS: usize = 10_000;

/// The best fixed placement of a scenario's threads.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Optimum {
    /// File bytes read and written per second with it.
    pub bytes_per_s: f64,
    /// Number of placements tried.
    pub placements: usize,
}

/// Finds the best fixed placement; none where there are more than [`MOST_PLACEMENTS`], or where
/// programs end.
///
/// # Errors
///
/// [`RunError`], as any run.
pub fn search(scenario: &Scenario, seed: u64) -> Result<Option<Optimum>, RunError> {
    let world = start(scenario, seed);
    let seats: Vec<usize> = scenario.machine.seats().collect();
    let groups = world.alike();
    let placements = groups.iter().try_fold(1usize, |all, g| all.checked_mul(ways(g.len(), seats.len())?));
    let Some(placements) = placements.filter(|n| *n <= MOST_PLACEMENTS) else { return Ok(None) };
    if ends(scenario, seed)? {
        return Ok(None);
    }
    let choices: Vec<Vec<Vec<usize>>> = groups.iter().map(|g| spreads(g.len(), seats.len())).collect();
    let mut best = 0.0f64;
    for mut number in 0..placements {
        let mut fixed = Vec::new();
        for (group, choices) in groups.iter().zip(&choices) {
            let choice = &choices[number % choices.len()];
            number /= choices.len();
            let nodes = choice.iter().zip(&seats).flat_map(|(count, seat)| std::iter::repeat_n(*seat, *count));
            fixed.extend(group.iter().copied().zip(nodes));
        }
        best = best.max(with(scenario, seed, &fixed)?);
    }
    Ok(Some(Optimum { bytes_per_s: best, placements }))
}

/// Whether a program ends before the scenario does.
fn ends(scenario: &Scenario, seed: u64) -> Result<bool, RunError> {
    let outcome = drive(scenario, start(scenario, seed), None, seed, &mut |_| {})?;
    Ok(outcome.workloads.iter().any(|w| w.runtime_s.is_some()))
}

/// File bytes per second with these threads fixed on these nodes, by index.
pub(super) fn with(scenario: &Scenario, seed: u64, fixed: &[(usize, usize)]) -> Result<f64, RunError> {
    let mut world = start(scenario, seed);
    for (thread, node) in fixed {
        world.fix(*thread, *node);
    }
    Ok(drive(scenario, world, None, seed, &mut |_| {})?.bytes_per_s())
}

/// `C(k + n − 1, n − 1)`; none where that is more than a `usize` holds.
fn ways(threads: usize, nodes: usize) -> Option<usize> {
    let mut ways: usize = 1;
    for i in 1..nodes {
        // The product of i consecutive numbers is divisible by i!.
        ways = ways.checked_mul(threads.checked_add(i)?)? / i;
    }
    Some(ways)
}

/// Every way to spread identical threads over nodes, as counts per node.
fn spreads(threads: usize, nodes: usize) -> Vec<Vec<usize>> {
    if nodes <= 1 {
        return vec![vec![threads; nodes]];
    }
    let mut all = Vec::new();
    for first in (0..=threads).rev() {
        for rest in spreads(threads - first, nodes - 1) {
            all.push([vec![first], rest].concat());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn ways_are_counted_as_they_are_listed() {
        assert_eq!(spreads(2, 2), [[2, 0], [1, 1], [0, 2]]);
        for threads in 1..=8 {
            for nodes in 1..=4 {
                assert_eq!(Some(spreads(threads, nodes).len()), ways(threads, nodes), "{threads} on {nodes}");
            }
        }
        assert_eq!(ways(usize::MAX, 3), None);
    }

    /// Without the shortcut: every thread on every node.
    fn by_hand(scenario: &Scenario, seed: u64) -> f64 {
        let seats: Vec<usize> = scenario.machine.seats().collect();
        let threads: Vec<usize> = start(scenario, seed).alike().concat();
        let all = seats.len().pow(threads.len() as u32);
        let of = |mut number: usize| -> Vec<(usize, usize)> {
            let mut digit = || {
                let digit = number % seats.len();
                number /= seats.len();
                seats[digit]
            };
            threads.iter().map(|t| (*t, digit())).collect()
        };
        (0..all).map(|number| with(scenario, seed, &of(number)).unwrap()).fold(0.0, f64::max)
    }

    #[test]
    fn no_placement_at_all_beats_the_optimum() {
        let mut tried = 0;
        for index in (3..).step_by(4).take(60) {
            let file = random::scenario(2, index).unwrap();
            let mut scenario = file.scenario;
            (scenario.duration_s, scenario.warmup_s) = (3.0, 1.0);
            let threads = start(&scenario, file.seed).alike().concat().len() as u32;
            if scenario.machine.nodes().len().pow(threads) > 256 {
                continue;
            }
            let optimum = search(&scenario, file.seed).unwrap().unwrap();
            let best = by_hand(&scenario, file.seed);
            assert!((optimum.bytes_per_s / best - 1.0).abs() < 1e-6, "random {index}: {} {best}", optimum.bytes_per_s);
            tried += 1;
        }
        assert!(tried >= 15, "{tried}");
    }

    #[test]
    fn too_many_placements_are_not_tried() {
        let file = random::scenario(1, 0).unwrap();
        assert_eq!(search(&file.scenario, 1).unwrap(), None);
    }
}
