//! Regret: each policy's loss against the best policy for that machine and load.
//!
//! **Problem.** A mean over chosen scenarios hides the one in which a policy halves the
//! throughput.
//!
//! **Approach.** Every policy, and the kernel alone (`none`), runs through the same engine on the
//! [papers'](experiments) scenarios and on [random](crate::random) ones. Throughput is the file
//! bytes that all workloads together read and write per second after the warm-up. Regret is `1 −
//! throughput / best`, where best is the best policy on that scenario. On small scenarios the best
//! placement is [searched for](search) as well; the gap to it is `1 − throughput / optimum`, which
//! is negative where a policy that moves data beats every placement of threads. A policy is *late*
//! if it still moved something more than [`SETTLED`] windows (or of its own decision periods, if
//! those are longer) after a program had started or ended.
//!
//! **Limits.** All bytes count equally: a policy may starve a small program for a large one.
//! Scenarios run in parallel, which does not change the result.

pub mod experiments;
mod search;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::SeedableRng;
use rand::rngs::ChaCha12Rng;
use serde::Serialize;

use crate::machine::Machine;
use crate::parallel;
use crate::random;
use crate::run::{RunError, run};
use crate::scenario::{ScenarioError, ScenarioFile};
use experiments::Experiment;

pub use search::{MOST_PLACEMENTS, Optimum};

/// Windows after which nothing should be moved any more while the load is constant.
pub const SETTLED: usize = 10;

/// Within what fraction of its value each number of an unknown machine is drawn.
pub const SPREAD: f64 = 0.3;

/// The measure.
const MEASURE: &str = "file bytes read and written per second by all workloads, after each scenario's warm-up";

/// Results of all policies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Regret {
    /// Random scenarios.
    pub scenarios: u32,
    /// Seed of the random scenarios.
    pub seed: u64,
    /// Scenarios of the papers, run as well.
    pub papers: usize,
    /// Scenarios whose optimum was searched for.
    pub searched: usize,
    /// The measure of throughput.
    pub measure: &'static str,
    /// By policy.
    pub policies: BTreeMap<String, PolicyRegret>,
    /// Every scenario, the papers' first.
    pub results: Vec<ScenarioResult>,
}

/// Results of one policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PolicyRegret {
    /// Over all scenarios.
    #[serde(flatten)]
    pub all: Spread,
    /// Number of scenarios in which it still moved something after [`SETTLED`] windows.
    pub late: usize,
    /// Their names.
    pub late_scenarios: Vec<String>,
    /// Over the papers' scenarios.
    pub papers: Spread,
    /// Over the random scenarios.
    pub random: Spread,
    /// Gap to the optimum, over the scenarios whose optimum is known.
    pub optimum: Spread,
}

/// Mean and worst of some regrets; fractions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Mean; 0 of none.
    pub mean: f64,
    /// Highest.
    pub worst: f64,
    /// Where that was.
    pub worst_scenario: Option<String>,
}

/// One scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScenarioResult {
    /// Its name: `random K`, or paper, figure and point.
    pub scenario: String,
    /// The policy with the highest throughput; of equals the first in the list of policies, which
    /// `none` heads.
    pub best: String,
    /// By policy.
    pub policies: BTreeMap<String, PolicyResult>,
    /// The best fixed placement, where it was searched for.
    pub optimum: Option<Optimum>,
}

/// One policy on one scenario.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PolicyResult {
    /// Throughput.
    pub bytes_per_s: f64,
    /// `1 − throughput / best`.
    pub regret: f64,
    /// Moves made.
    pub moves: usize,
    /// The window of the last one; 0: none was made.
    pub last_move: usize,
    /// Whether that was too late.
    pub late: bool,
}

/// A scenario that could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum RegretError {
    /// The scenario is invalid: a fault of homenode, which wrote it.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// It did not run.
    #[error("{scenario} with {policy}: {source}")]
    Run {
        /// Which scenario.
        scenario: String,
        /// Which policy.
        policy: String,
        /// Why.
        source: RunError,
    },
}

/// Scenarios to compare the policies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of random scenarios.
    pub scenarios: u32,
    /// Their seed.
    pub seed: u64,
    /// Whether the papers' scenarios are run as well.
    pub papers: bool,
    /// Whether each scenario runs on a machine whose numbers are
    /// [drawn](crate::machine::Machine::drawn) within [`SPREAD`] of those that `auto` knows.
    pub unknown: bool,
    /// Scenarios that run at a time; does not change the result.
    pub workers: usize,
}

/// Compares all policies. `done` receives the number of finished scenarios and the number of all.
///
/// # Errors
///
/// [`RegretError`], only if homenode is broken.
pub fn regret(request: Request, done: &(dyn Fn(usize, usize) + Sync)) -> Result<Regret, RegretError> {
    let Request { scenarios, seed, workers, .. } = request;
    let papers = if request.papers { experiments::all() } else { Vec::new() };
    let count = papers.len() + scenarios as usize;
    let finished = AtomicUsize::new(0);
    let work = |i: &usize| {
        let result = nth(&papers, seed, *i).map_err(RegretError::from).and_then(|mut file| {
            if request.unknown {
                file.scenario.machine = unknown(&file.scenario.machine, seed, *i as u64);
            }
            compare(&file)
        });
        done(finished.fetch_add(1, Ordering::Relaxed) + 1, count);
        result
    };
    let results = parallel::each(&(0..count).collect::<Vec<_>>(), workers, work);
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(sum_up(scenarios, seed, papers.len(), results))
}

/// The scenario with this number: one of the papers', or after them a random one of this seed.
///
/// # Errors
///
/// [`ScenarioError`], only if homenode is broken.
pub fn nth(papers: &[Experiment], seed: u64, number: usize) -> Result<ScenarioFile, ScenarioError> {
    match papers.get(number) {
        Some(paper) => ScenarioFile::parse(&paper.text, Path::new(&paper.name)),
        None => random::scenario(seed, (number - papers.len()) as u32),
    }
}

/// This machine with other numbers. The scenarios themselves are drawn from other streams of the
/// seed.
fn unknown(machine: &Machine, seed: u64, scenario: u64) -> Machine {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    rng.set_stream(u64::MAX - scenario);
    machine.drawn(&mut rng, SPREAD)
}

/// All policies on one scenario, and its optimum if it is small.
///
/// # Errors
///
/// [`RegretError::Run`].
pub fn compare(file: &ScenarioFile) -> Result<ScenarioResult, RegretError> {
    let scenario = &file.scenario;
    let failed = |policy: &str| {
        let (scenario, policy) = (scenario.name().to_owned(), policy.to_owned());
        move |source| RegretError::Run { scenario, policy, source }
    };
    let mut policies = BTreeMap::new();
    let mut best = ("none", 0.0);
    for name in names() {
        let policy = placement::policy(name, &file.nthread);
        let periods = policy.as_ref().map_or((0.0, 0.0), |p| (p.period_s(), p.data_period_s()));
        let outcome = run(scenario, policy, file.seed).map_err(failed(name))?;
        let bytes_per_s = outcome.bytes_per_s();
        if bytes_per_s > best.1 {
            best = (name, bytes_per_s);
        }
        let moves = outcome.moves;
        let result = PolicyResult {
            bytes_per_s,
            regret: 0.0,
            moves: moves.threads + moves.processes + moves.files,
            last_move: outcome.last_move,
            late: outcome.moved_late(scenario, SETTLED, periods.0, periods.1),
        };
        policies.insert(name.to_owned(), result);
    }
    for result in policies.values_mut() {
        result.regret = below(result.bytes_per_s, best.1);
    }
    let small = scenario.machine.nodes().len() <= random::SMALL_NODES as usize
        && scenario.launches.iter().map(|l| l.job.threads()).sum::<u32>() <= random::SMALL_THREADS;
    let optimum = match small {
        true => search::search(scenario, file.seed).map_err(failed("fixed placements"))?,
        false => None,
    };
    Ok(ScenarioResult { scenario: scenario.name().to_owned(), best: best.0.to_owned(), policies, optimum })
}

/// The kernel alone and every policy.
fn names() -> impl Iterator<Item = &'static str> {
    std::iter::once("none").chain(placement::POLICIES.iter().map(|p| p.0))
}

/// Loss as a fraction of the best; 0 if the best is 0.
fn below(value: f64, best: f64) -> f64 {
    if best > 0.0 { 1.0 - value / best } else { 0.0 }
}

fn sum_up(scenarios: u32, seed: u64, papers: usize, results: Vec<ScenarioResult>) -> Regret {
    let policies = names().map(|name| (name.to_owned(), policy_regret(name, papers, &results)));
    Regret {
        scenarios,
        seed,
        papers,
        searched: results.iter().filter(|r| r.optimum.is_some()).count(),
        measure: MEASURE,
        policies: policies.collect(),
        results,
    }
}

fn policy_regret(name: &str, papers: usize, results: &[ScenarioResult]) -> PolicyRegret {
    let of = |results: &[ScenarioResult]| {
        Spread::of(results.iter().filter_map(|r| Some((r.scenario.as_str(), r.policies.get(name)?.regret))))
    };
    let (from_papers, random) = results.split_at(papers.min(results.len()));
    let late: Vec<String> =
        results.iter().filter(|r| r.policies.get(name).is_some_and(|p| p.late)).map(|r| r.scenario.clone()).collect();
    let gaps = results
        .iter()
        .filter_map(|r| Some((r.scenario.as_str(), below(r.policies.get(name)?.bytes_per_s, r.optimum?.bytes_per_s))));
    PolicyRegret {
        all: of(results),
        late: late.len(),
        late_scenarios: late,
        papers: of(from_papers),
        random: of(random),
        optimum: Spread::of(gaps),
    }
}

impl Spread {
    fn of<'a>(regrets: impl Iterator<Item = (&'a str, f64)>) -> Self {
        let (mut count, mut sum) = (0, 0.0);
        let mut worst: Option<(&str, f64)> = None;
        for (scenario, regret) in regrets {
            count += 1;
            sum += regret;
            if worst.is_none_or(|w| regret > w.1) {
                worst = Some((scenario, regret));
            }
        }
        Self {
            mean: if count > 0 { sum / f64::from(count) } else { 0.0 },
            worst: worst.map_or(0.0, |w| w.1),
            worst_scenario: worst.map(|w| w.0.to_owned()),
        }
    }
}
