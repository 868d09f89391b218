//! `homenode reproduce`: the papers' experiments on the simulated machine, beside the numbers that
//! the papers state.

use std::path::PathBuf;

use command::args::{Global, PaperChoice, ReproduceArgs};
use command::exit::{Exit, Failure};
use command::output::table::Table;
use command::output::{self, progress};
use serde_json::{Value, json};
use simulate::papers::Paper;
use simulate::reproduce::{self, Bench, Figure, Score, Trials, WriteError};

/// Runs the experiments and writes the report. A miss is a result, not a failure.
pub fn run(global: &Global, args: &ReproduceArgs) -> Result<Exit, Failure> {
    let papers = papers(args.paper);
    reproduce::prepare(&args.out).map_err(|e| unwritten(&e))?;
    let template = "{wide_bar} {pos} of {len} figures  {elapsed}  {msg:20}";
    let bar = progress::bar(global.json, reproduce::figures(&papers) as u64, template);
    let say = |paper: Paper, figure: &str| {
        bar.set_message(format!("{} {figure}", paper.name()));
        bar.inc(1);
    };
    let figures = reproduce::reproduce(&papers, &Bench::new(args.seeds, &say))
        .map_err(|e| Failure::from_error(Exit::Partly, "reproduce", &e))?;
    let trials = args.sensitivity.then(|| trials(global, &papers)).transpose()?;
    bar.set_message("plots and report");
    let written = reproduce::write(&args.out, &figures, args.seeds, trials.as_ref()).map_err(|e| unwritten(&e))?;
    bar.finish_and_clear();
    if global.json {
        output::print_json(&as_json(&figures, args.seeds, &written, trials.as_ref()))?;
    } else {
        output::print(&text(&figures, args))?;
    }
    Ok(Exit::Done)
}

/// The papers of a choice.
fn papers(choice: PaperChoice) -> Vec<Paper> {
    match choice {
        PaperChoice::Nthread => vec![Paper::NThread],
        PaperChoice::Dragonfly => vec![Paper::Dragonfly],
        PaperChoice::Npolicy => vec![Paper::NPolicy],
        PaperChoice::Arc => vec![Paper::Arc],
        PaperChoice::All => Paper::ALL.to_vec(),
    }
}

/// The experiments with other constants.
fn trials(global: &Global, papers: &[Paper]) -> Result<Trials, Failure> {
    let template = "{wide_bar} {pos} of {len} runs of all experiments with other constants  {elapsed}";
    let bar = progress::bar(global.json, reproduce::steps() as u64, template);
    let trials = reproduce::trials(papers, &|| bar.inc(1));
    bar.finish_and_clear();
    trials.map_err(|e| Failure::from_error(Exit::Partly, "reproduce", &e))
}

fn unwritten(error: &WriteError) -> Failure {
    Failure::from_error(Exit::Io, "reproduce", error)
}

fn as_json(figures: &[Figure], seeds: u64, written: &[PathBuf], trials: Option<&Trials>) -> Value {
    let scores: serde_json::Map<String, Value> =
        reproduce::scores(figures).into_iter().map(|(paper, score)| (paper.name().to_owned(), json!(score))).collect();
    let mut all = json!({ "seeds": seeds, "scores": scores, "files": written, "figures": figures });
    if let Some(trials) = trials {
        all["trials"] = json!(trials);
    }
    all
}

fn text(figures: &[Figure], args: &ReproduceArgs) -> String {
    let mut table = Table::new(&[
        "paper",
        ">predicted",
        ">met",
        ">null model",
        ">constants",
        ">dependent",
        ">met",
        ">orderings",
        ">held",
        ">dependent",
        ">held",
    ]);
    for (paper, score) in reproduce::scores(figures) {
        let Score { predicted, dependent, orderings, dependent_orderings, .. } = score;
        let figures = [
            predicted.effects,
            predicted.met,
            predicted.null_met,
            predicted.alone_met,
            dependent.effects,
            dependent.met,
            orderings.held + orderings.missed,
            orderings.held,
            dependent_orderings.held + dependent_orderings.missed,
            dependent_orderings.held,
        ];
        table.row([paper.name().to_owned()].into_iter().chain(figures.map(|n| n.to_string())));
    }
    format!("{}\n{}\n", table.render(), args.out.join("report.html").display())
}
