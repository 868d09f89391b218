//! `homenode-lab run`: figures of the papers with the shipped code, in virtual time.
//!
//! **Approach.** The bars of a figure know nothing of each other: as many threads as there are
//! CPUs take them in turn. The tables go to stdout, and with `--out` also to files.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use command::args::Global;
use command::exit::{Exit, Failure};
use command::output::{self, progress};
use laboratory::experiment::{Case, Experiment, FIGURES, Outcome};
use laboratory::report::Results;

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
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// How many times as short all times are, in place of the figure's own
    #[arg(long, value_name = "N")]
    factor: Option<f64>,
    /// Also write FIGURE.csv and FIGURE.md there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs the figures.
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
                let text =
                    std::fs::read_to_string(name).map_err(|error| Failure::from_error(Exit::Io, what, &error))?;
                vec![(name, text)]
            }
        },
    };
    for (name, text) in figures {
        let cannot = |error: &laboratory::experiment::Error| Failure::from_error(Exit::Usage, name, error);
        let mut experiment = Experiment::parse(&text).map_err(|error| cannot(&error))?;
        experiment.factor = args.factor.unwrap_or(experiment.factor);
        experiment.check().map_err(|error| cannot(&error))?;
        if let Some(unknown) = args.series.iter().find(|name| experiment.series.iter().all(|s| s.name != **name)) {
            return Err(Failure::new(
                Exit::Usage,
                format!("{name}: series {unknown}"),
                "the figure has none of this name",
            ));
        }
        let results = all(global, args, &experiment).map_err(|error| cannot(&error))?;
        let (csv, markdown) = (results.csv(&experiment), results.markdown(&experiment));
        output::print(&markdown)?;
        if let Some(out) = &args.out {
            let stem = PathBuf::from(name).file_stem().map_or_else(|| name.into(), std::ffi::OsStr::to_os_string);
            std::fs::create_dir_all(out).map_err(|error| Failure::io("make", out, &error))?;
            for (kind, text) in [("csv", csv), ("md", markdown)] {
                let path = out.join(format!("{}.{kind}", stem.display()));
                std::fs::write(&path, text).map_err(|error| Failure::io("write", &path, &error))?;
            }
        }
    }
    Ok(Exit::Done)
}

/// All bars of a figure.
fn all(global: &Global, args: &RunArgs, experiment: &Experiment) -> Result<Results, laboratory::experiment::Error> {
    let seeds = args.seed..args.seed.saturating_add(args.seeds);
    let cases: Vec<(Case, u64)> =
        seeds.flat_map(|seed| experiment.cases(&args.series).into_iter().map(move |case| (case, seed))).collect();
    let bar = progress::bar(global.json, cases.len() as u64, "{wide_bar} {pos} of {len} runs  {elapsed}  {msg:20}");
    let (next, done) = (Mutex::new(cases.iter()), Mutex::new(Ok(Results::default())));
    let workers = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(cases.len()) {
            scope.spawn(|| {
                loop {
                    let Some((case, seed)) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else { return };
                    let outcome: Result<Outcome, _> = experiment.run(*case, *seed);
                    bar.inc(1);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    match (&mut *done, outcome) {
                        (Ok(results), Ok(outcome)) => results.add(*case, *seed, outcome),
                        (Ok(_), Err(error)) => *done = Err(error),
                        (Err(_), _) => return,
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}
