//! `homenode-lab run`: figures of the papers with the shipped code, in virtual time.
//!
//! **Approach.** The bars of a figure know nothing of each other: as many threads as there are
//! CPUs take them in turn. The tables go to stdout, and with `--out` also to files, beside a
//! picture.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use command::args::Global;
use command::exit::{Exit, Failure};
use command::output::{self, progress};
use laboratory::experiment::{Error, Experiment, FIGURES, PROGRAM, Policies, Rails, Series, Where};
use laboratory::report::Results;
use session::external::program::{Here, User};
use session::external::{ANSWER, External, Patience};

use crate::bars;
use crate::changes::{Sweep, changed};

/// `homenode-lab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// A figure, `all`, or the file of an experiment (.toml); without one the figures are listed
    #[arg(value_name = "FIGURE")]
    figure: Option<String>,
    /// Only these series (repeat, or separate with semicolons); also those that are run only if
    /// they are asked for
    #[arg(long, value_name = "NAME", value_delimiter = ';')]
    series: Vec<String>,
    /// One more series with this policy, or with this program of yours, `exec:PROGRAM [ARG]...`
    /// (docs/lab.md); repeat for more
    #[arg(long, value_name = "POLICY")]
    policy: Vec<String>,
    /// Nodes of the machine, in place of the figure's own
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Each group once for each value of a number of its load, as in threads=1,2,4; repeat for more
    #[arg(long, value_name = "KEY=N,N")]
    sweep: Vec<Sweep>,
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// How many times as short all times are, in place of the figure's own
    #[arg(long, value_name = "N")]
    factor: Option<f64>,
    /// Also write FIGURE.csv, FIGURE.md and FIGURE.png there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(global: &Global, args: &RunArgs) -> Result<Exit, Failure> {
    let Some(name) = &args.figure else {
        let list: Vec<String> = FIGURES.iter().map(|(name, _)| format!("{name}\n")).collect();
        output::print(&list.concat())?;
        return Ok(Exit::Done);
    };
    let figures: Vec<(&str, String)> = match name.as_str() {
        "all" => FIGURES.iter().map(|(name, text)| (*name, (*text).to_owned())).collect(),
        name => match FIGURES.iter().find(|(known, _)| *known == name) {
            Some((name, text)) => vec![(*name, (*text).to_owned())],
            None => {
                let what = format!("{name} is no figure (`homenode-lab run` lists them), and as a file");
                let text = fs::read_to_string(name).map_err(|error| Failure::from_error(Exit::Io, what, &error))?;
                vec![(name, text)]
            }
        },
    };
    for (name, text) in figures {
        let text = match args.nodes.is_some() || !args.sweep.is_empty() {
            true => changed(&text, args.nodes, &args.sweep)?,
            false => text,
        };
        let experiment = experiment(args, name, &text)?;
        // Figures have points in their names.
        let stem = Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or(name);
        let stem = stem.strip_suffix(".toml").unwrap_or(stem);
        if let Some(out) = &args.out {
            fs::create_dir_all(out).map_err(|error| Failure::io("make", out, &error))?;
        }
        let results = all(global, args, &experiment, name)?;
        let (csv, markdown) = (results.csv(&experiment), results.markdown(&experiment));
        output::print(&markdown)?;
        if let Some(out) = &args.out {
            let cannot = |error| Failure::from_error(Exit::Partly, format!("{name}: its picture"), &error);
            let picture = bars::draw(&experiment, &results).map_err(cannot)?;
            for (kind, bytes) in [("csv", csv.as_bytes()), ("md", markdown.as_bytes()), ("png", &picture)] {
                let path = out.join(format!("{stem}.{kind}"));
                fs::write(&path, bytes).map_err(|error| Failure::io("write", &path, &error))?;
            }
        }
    }
    Ok(Exit::Done)
}

fn experiment(args: &RunArgs, name: &str, text: &str) -> Result<Experiment, Failure> {
    let cannot = |error: &Error| Failure::from_error(Exit::Usage, name, error);
    let mut experiment = Experiment::parse(text).map_err(|error| cannot(&error))?;
    experiment.factor = args.factor.unwrap_or(experiment.factor);
    experiment.check().map_err(|error| cannot(&error))?;
    let own = experiment.policies.clone();
    let make = move |policy: &str, settings: &placement::Settings, seed| match policy.strip_prefix(PROGRAM) {
        Some(command) => {
            let program = Arc::new(Here::new(command, User::of(None)?));
            let policy = External::start(PROGRAM, program, seed, Patience::Waits(ANSWER))?;
            Ok(Box::new(policy) as Box<dyn placement::Policy>)
        }
        None => own.0(policy, settings, seed),
    };
    experiment.policies = Policies(Arc::new(make));
    let known = |name: &str, all: &[Series]| all.iter().any(|series| series.name == name);
    if let Some(unknown) = args.series.iter().find(|name| !known(name, &experiment.series)) {
        let why = "the figure has none of this name";
        return Err(Failure::new(Exit::Usage, format!("{name}: series {unknown}"), why));
    }
    for policy in &args.policy {
        if !policy.starts_with(PROGRAM) && placement::POLICIES.iter().all(|(name, _)| name != policy) {
            return Err(Failure::new(Exit::Usage, format!("policy {policy}"), "no policy has this name"));
        }
        let name = if known(policy, &experiment.series) { format!("{policy} of --policy") } else { policy.clone() };
        // On a host: it starts where the figure's own policies start.
        let like = experiment.series.iter().find(|series| series.policy.is_some());
        let (window_s, kernel, copy_bw) =
            like.map_or_else(Default::default, |series| (series.window_s, series.kernel, series.copy_bw));
        experiment.series.push(Series {
            name,
            placement: Where::Local,
            policy: Some(policy.clone()),
            nthread: placement::nthread::Settings::default(),
            dragonfly: placement::dragonfly::Settings::default(),
            rails: Rails::Open,
            copy_bw,
            window_s,
            kernel,
            extra: false,
        });
    }
    Ok(experiment)
}

/// All bars of a figure.
fn all(global: &Global, args: &RunArgs, experiment: &Experiment, name: &str) -> Result<Results, Failure> {
    let mut only = args.series.clone();
    if !only.is_empty() {
        only.extend(experiment.series.iter().rev().take(args.policy.len()).map(|series| series.name.clone()));
    }
    let seeds = args.seed..args.seed.saturating_add(args.seeds);
    let of_seed = |seed| experiment.cases(&only).into_iter().map(move |case| (case, seed));
    let cases: Vec<_> = seeds.flat_map(of_seed).collect();
    let bar = progress::bar(global.json, cases.len() as u64, "{wide_bar} {pos} of {len} runs  {elapsed}  {msg:20}");
    let (next, done) = (Mutex::new(cases.iter()), Mutex::new(Ok(Results::default())));
    let workers = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(cases.len()) {
            scope.spawn(|| {
                loop {
                    let Some((case, seed)) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else { return };
                    let outcome = experiment.run(*case, *seed);
                    bar.inc(1);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    let Ok(all) = &mut *done else { return };
                    match outcome {
                        Ok(outcome) => all.add(*case, *seed, outcome),
                        Err(error) => {
                            let exit = if matches!(error, Error::Ended(_)) { Exit::Partly } else { Exit::Usage };
                            *done = Err(Failure::from_error(exit, name, &error));
                        }
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}
