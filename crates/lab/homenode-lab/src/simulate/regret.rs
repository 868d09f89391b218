//! `homenode simulate --regret`: every policy on many scenarios.

use serde_json::json;
use simulate::regret::{PolicyRegret, Regret, Request, SETTLED, SPREAD, Spread, regret};

use command::args::Global;
use command::exit::{Exit, Failure};
use command::output;
use command::output::table::Table;
use command::output::units::count;

/// Compares the policies and prints the table, or all of it as JSON.
pub fn run(global: &Global, scenarios: u32, seed: u64, unknown: bool) -> Result<Exit, Failure> {
    let request = Request { scenarios, seed, papers: true, unknown: false, workers: simulate::parallel::workers() };
    let known = compare(global, request)?;
    let unknown = unknown.then(|| compare(global, Request { unknown: true, ..request })).transpose()?;
    if global.json {
        let mut all = json!(known);
        if let Some(unknown) = &unknown {
            all["unknown_machines"] = json!(unknown);
        }
        output::print_json(&all)?;
    } else {
        output::print(&text(&known, unknown.as_ref()))?;
    }
    Ok(Exit::Done)
}

fn compare(global: &Global, request: Request) -> Result<Regret, Failure> {
    let bar = super::bar(global.json, 0, if request.unknown { "unknown machines" } else { "scenarios" });
    let result = regret(request, &|done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    result.map_err(|e| Failure::from_error(Exit::Usage, "simulate", &e))
}

fn text(result: &Regret, unknown: Option<&Regret>) -> String {
    let mut text = format!(
        "{} and {} from the papers, seed {}; regret: the loss against the best policy, counting {}\n\n",
        count(result.scenarios as usize, "random scenario"),
        result.papers,
        result.seed,
        result.measure,
    );
    let mut by_mean: Vec<(&String, &PolicyRegret)> = result.policies.iter().collect();
    by_mean.sort_by(|a, b| a.1.all.mean.total_cmp(&b.1.all.mean).then(a.0.cmp(b.0)));
    let mut header = vec!["policy", ">mean", ">worst", "in", ">gap to optimum", ">worst", "in", ">late"];
    if unknown.is_some() {
        header.extend([">unknown machines: mean", ">worst", "in", ">late"]);
    }
    let mut table = Table::new(&header);
    let place = |spread: &Spread| spread.worst_scenario.clone().unwrap_or_default();
    let regrets = |spread: &Spread| [fine(spread.mean), fine(spread.worst), place(spread)];
    for (name, policy) in by_mean {
        let known = regrets(&policy.all).into_iter().chain(regrets(&policy.optimum)).chain([policy.late.to_string()]);
        let there = unknown.and_then(|unknown| unknown.policies.get(name));
        let there = there.map(|p| regrets(&p.all).into_iter().chain([p.late.to_string()]));
        table.row([name.clone()].into_iter().chain(known).chain(there.into_iter().flatten()));
    }
    text.push_str(&table.render());
    text.push_str(&format!(
        "\noptimum: the best of all fixed placements of threads, in {}; below 0 where moving data beats it\n\
         late: still moved something more than {SETTLED} windows after every program had started\n",
        count(result.searched, "small scenario"),
    ));
    if unknown.is_some() {
        text.push_str(&format!(
            "unknown machines: the same scenarios; every number of each machine is drawn within {:.0} % of its value\n",
            100.0 * SPREAD,
        ));
    }
    text
}

/// A regret: a tenth of a percent matters here.
fn fine(fraction: f64) -> String {
    // No minus before what rounds to nothing.
    format!("{:.1} %", (fraction * 1000.0).round() / 10.0 + 0.0)
}
