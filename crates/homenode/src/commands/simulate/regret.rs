//! `homenode simulate --regret`: every policy on many scenarios.

use simulate::regret::{PolicyRegret, Regret, Request, SETTLED, Spread, regret};

use crate::cli::Global;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::output::table::Table;
use crate::output::units::count;

/// Compares the policies and prints the table, or all of it as JSON.
pub fn run(global: &Global, scenarios: u32, seed: u64) -> Result<Exit, Failure> {
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let bar = super::bar(global.json, 0, "scenarios");
    let result = regret(Request { scenarios, seed, papers: true, workers }, &|done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let result = result.map_err(|e| Failure::from_error(Exit::Usage, "simulate", &e))?;
    match global.json {
        true => output::print_json(&result)?,
        false => output::print(&text(&result))?,
    }
    Ok(Exit::Done)
}

fn text(result: &Regret) -> String {
    let mut text = format!(
        "{} and {} of the papers, seed {}; regret: how much less than the best policy, counting {}\n\n",
        count(result.scenarios as usize, "random scenario"),
        result.papers,
        result.seed,
        result.measure,
    );
    let mut by_mean: Vec<(&String, &PolicyRegret)> = result.policies.iter().collect();
    by_mean.sort_by(|a, b| a.1.all.mean.total_cmp(&b.1.all.mean).then(a.0.cmp(b.0)));
    let mut table = Table::new(&["policy", ">mean", ">worst", "in", ">gap to optimum", ">worst", "in", ">late"]);
    for (name, policy) in by_mean {
        let place = |spread: &Spread| spread.worst_scenario.clone().unwrap_or_default();
        table.row([
            name.clone(),
            fine(policy.all.mean),
            fine(policy.all.worst),
            place(&policy.all),
            fine(policy.optimum.mean),
            fine(policy.optimum.worst),
            place(&policy.optimum),
            policy.late.to_string(),
        ]);
    }
    text.push_str(&table.render());
    text.push_str(&format!(
        "\noptimum: the best of all fixed placements of threads, in {}; below 0 where moving data beats it\n\
         late: still moved something more than {SETTLED} windows after all had started\n",
        count(result.searched, "small scenario"),
    ));
    text
}

/// A regret: a tenth of a percent matters here.
fn fine(fraction: f64) -> String {
    // No minus before what rounds to nothing.
    format!("{:.1} %", (fraction * 1000.0).round() / 10.0 + 0.0)
}
