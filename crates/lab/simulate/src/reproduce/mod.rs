//! The papers' experiments, side by side with the papers' numbers.
//!
//! **Problem.** A model earns trust by predicting numbers that it was not given.
//!
//! **Approach.** Each figure is a function here that sets the experiment up, runs it through the
//! engine and the policies of a host, and returns a [`Figure`]: its points beside the
//! [stated](crate::papers) ones, and the orderings that the paper reads off its bars. [`effect`]
//! scores effects with their sign, beside a model without any effect and the constants alone.
//! [`fitted`] says of each number whether it is predicted. A miss stays a miss; the
//! [papers' notes](crate::papers::Note) give its cause, where that is known. [`report`] writes
//! everything down.
//!
//! **Limits.** Bars are compared only where the text has a number; pictures are not measured with a
//! ruler.

mod arc;
mod bench;
mod canvas;
mod csv;
mod draft;
mod dragonfly;
mod effect;
mod figure;
mod files;
mod fitted;
pub mod holdout;
pub mod measured;
mod npolicy;
mod nthread_apps;
mod nthread_fio;
mod overview;
mod plot;
mod report;
mod score;
pub mod sensitivity;
mod stated;
#[cfg(test)]
mod tests;
mod trial;

pub use bench::Bench;
pub use canvas::{Area, Drawn, LINE, PlotError, WIDTH, png, text};
pub use csv::csv;
pub(crate) use draft::{Bars, Draft};
pub use effect::{Effect, Tally, Verdict};
pub use figure::{Check, Figure, Kind, Plot, Point};
pub use files::{WriteError, prepare, write};
pub use score::{Held, Score, score, scores};
pub use trial::{Came, Trials, steps, trials};

use crate::papers::Paper;
use crate::parallel;
use crate::run::RunError;

type Experiment = fn(&Bench<'_>) -> Result<Figure, RunError>;

/// Every experiment, in the order of the papers.
const EXPERIMENTS: &[(Paper, &str, Experiment)] = &[
    (Paper::NThread, "2", nthread_apps::fig2),
    (Paper::NThread, "III-B", nthread_fio::contention),
    (Paper::NThread, "4", nthread_fio::fig4),
    (Paper::NThread, "5a", nthread_fio::fig5a),
    (Paper::NThread, "5b", nthread_fio::fig5b),
    (Paper::NThread, "6a", nthread_apps::fig6a),
    (Paper::NThread, "6b", nthread_apps::fig6b),
    (Paper::NThread, "7a", nthread_apps::fig7a),
    (Paper::NThread, "7b", nthread_apps::fig7b),
    (Paper::NThread, "7c", nthread_apps::fig7c),
    (Paper::NThread, "8", nthread_fio::fig8),
    (Paper::NThread, "9", nthread_fio::fig9),
    (Paper::NThread, "Table II", nthread_apps::table2),
    (Paper::Dragonfly, "2", dragonfly::fig2),
    (Paper::Dragonfly, "MTP", dragonfly::mtp),
    (Paper::Dragonfly, "6a", dragonfly::fig6a),
    (Paper::Dragonfly, "6b", dragonfly::fig6b),
    (Paper::Dragonfly, "6c", dragonfly::fig6c),
    (Paper::Dragonfly, "6d", dragonfly::fig6d),
    (Paper::NPolicy, "2", npolicy::fig2),
    (Paper::NPolicy, "3a", npolicy::fig3a),
    (Paper::NPolicy, "3b", npolicy::fig3b),
    (Paper::Arc, "5.2", arc::fig5_2),
    (Paper::Arc, "6.1", arc::fig6_1),
    (Paper::Arc, "6.2", arc::fig6_2),
    (Paper::Arc, "8.1", arc::fig8_1),
    (Paper::Arc, "8.2", arc::fig8_2),
    (Paper::Arc, "8.3", arc::fig8_3),
    (Paper::Arc, "8.4", arc::fig8_4),
    (Paper::Arc, "8.5", arc::fig8_5),
    (Paper::Arc, "8.6", arc::fig8_6),
];

/// How many figures the papers have here.
pub fn figures(papers: &[Paper]) -> usize {
    EXPERIMENTS.iter().filter(|e| papers.contains(&e.0)).count()
}

/// Runs all experiments of these papers, as many at a time as there are CPUs.
///
/// # Errors
///
/// [`RunError`] when an experiment does not run, which none does unless homenode is broken.
pub fn reproduce(papers: &[Paper], bench: &Bench<'_>) -> Result<Vec<Figure>, RunError> {
    let chosen: Vec<_> = EXPERIMENTS.iter().filter(|e| papers.contains(&e.0)).collect();
    let figure = |(paper, id, experiment): &&(Paper, &str, Experiment)| {
        let figure = repeated(*experiment, bench);
        bench.say(*paper, id);
        figure
    };
    parallel::each(&chosen, parallel::workers(), figure).into_iter().collect()
}

/// One experiment: with all seeds, with each of them alone, and with the constants alone.
fn repeated(experiment: Experiment, bench: &Bench<'_>) -> Result<Figure, RunError> {
    let mut figure = experiment(bench)?;
    let alone = experiment(&bench.alone())?;
    let each: Vec<Figure> = bench.each_seed().map(|bench| experiment(&bench)).collect::<Result<_, _>>()?;
    for point in &mut figure.points {
        let value =
            |f: &Figure| f.point(&point.series, &point.point).map(|p| p.homenode_value).filter(|v| v.is_finite());
        point.alone_value = point.paper_value.and_then(|_| value(&alone));
        point.range = each.iter().filter_map(value).fold(None, |range: Option<[f64; 2]>, v| {
            Some(range.map_or([v, v], |[low, high]| [low.min(v), high.max(v)]))
        });
    }
    for check in figure.checks.iter_mut().filter(|_| !each.is_empty()) {
        let holds = |f: &&Figure| f.checks.iter().any(|c| c.statement == check.statement && c.holds);
        check.seeds = Some([each.iter().filter(holds).count(), each.len()]);
    }
    figure.by_seed = each.into_iter().map(|f| f.plot).collect();
    Ok(figure)
}
