//! `homenode-lab regret`: what policies lose against the best placement that running them finds.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use command::args::Global;
use command::exit::{Exit, Failure};
use command::output::{self, progress};
use laboratory::experiment::Error;
use laboratory::regret::{Scenario, draw};

/// `homenode-lab regret`.
#[derive(Debug, Args)]
pub struct RegretArgs {
    /// How many machines and loads are drawn
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    scenarios: u32,
    /// From where they are drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A policy; repeat for more
    #[arg(long, value_name = "POLICY", default_values = ["auto", "nthread", "dragonfly"])]
    policy: Vec<String>,
}

/// One scenario: MB/s of the best placement, of the kernel and of each policy.
struct Row {
    number: u32,
    what: String,
    best: f64,
    runs: usize,
    with: Vec<f64>,
}

impl Row {
    fn of(scenario: &Scenario, number: u32, policies: &[String]) -> Result<Self, Error> {
        let best = scenario.best()?;
        let names = std::iter::once(None).chain(policies.iter().map(|policy| Some(policy.as_str())));
        let with = names.map(|policy| scenario.with(policy)).collect::<Result<_, _>>()?;
        Ok(Self { number, what: scenario.describe(), best: best.value, runs: best.runs, with })
    }

    fn regret(&self, policy: usize) -> Option<f64> {
        Some(100.0 * (1.0 - self.with.get(policy)? / self.best))
    }
}

pub fn run(global: &Global, args: &RegretArgs) -> Result<Exit, Failure> {
    if let Some(unknown) = args.policy.iter().find(|name| placement::POLICIES.iter().all(|(known, _)| known != name)) {
        return Err(Failure::new(Exit::Usage, format!("policy {unknown}"), "no policy has this name"));
    }
    let bar = progress::bar(global.json, u64::from(args.scenarios), "{wide_bar} {pos} of {len} scenarios  {elapsed}");
    let (next, rows) = (Mutex::new(0..args.scenarios), Mutex::new(Ok(Vec::new())));
    let workers = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(number) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else { return };
                    let row = Row::of(&draw(args.seed, number), number, &args.policy);
                    bar.inc(1);
                    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                    match (&mut *rows, row) {
                        (Ok(rows), Ok(row)) => rows.push(row),
                        (Ok(_), Err(error)) => *rows = Err(error),
                        (Err(_), _) => return,
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut rows = rows.map_err(|error| Failure::from_error(Exit::Partly, "regret", &error))?;
    rows.sort_by_key(|row| row.number);
    output::print(&tables(&rows, &args.policy))?;
    Ok(Exit::Done)
}

/// Regret by policy, and all scenarios.
fn tables(rows: &[Row], policies: &[String]) -> String {
    let names: Vec<&str> = std::iter::once("the kernel").chain(policies.iter().map(String::as_str)).collect();
    let mut text = String::from(
        "Regret: per cent less than the best placement that was found by running placements.\n\n\
         | policy | mean | median | worst | in scenario | above 5 % |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for (at, name) in names.iter().enumerate() {
        let mut all: Vec<(f64, u32)> = rows.iter().filter_map(|row| Some((row.regret(at)?, row.number))).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mean = all.iter().map(|(regret, _)| regret).sum::<f64>() / all.len().max(1) as f64;
        let (Some((median, _)), Some((worst, number))) = (all.get(all.len() / 2), all.last()) else { continue };
        let above = all.iter().filter(|(regret, _)| *regret > 5.0).count();
        _ = writeln!(text, "| {name} | {mean:.1} | {median:.1} | {worst:.1} | {number} | {above} of {} |", all.len());
    }
    _ = writeln!(text, "\n| scenario | best, MB/s | runs | {} | what |", names.join(" | "));
    _ = writeln!(text, "|---:|---:|---:|{}---|", "---:|".repeat(names.len()));
    for row in rows {
        let regrets: Vec<String> = (0..names.len())
            .map(|at| row.regret(at).map_or_else(String::new, |regret| format!("{regret:.1}")))
            .collect();
        let Row { number, best, runs, what, .. } = row;
        _ = writeln!(text, "| {number} | {best:.0} | {runs} | {} | {what} |", regrets.join(" | "));
    }
    text
}
