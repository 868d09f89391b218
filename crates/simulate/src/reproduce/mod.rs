//! The papers' experiments, side by side with what the papers print.
//!
//! **Problem.** A model earns trust by predicting what it was not told.
//!
//! **Approach.** Each figure that decides something is a function here that sets the experiment up, runs it through the same engine
//! and policies as a host, and returns [`Figure`]: its points, beside the [stated](crate::papers) ones, and the orderings that the
//! paper reads off its bars. What a figure was calibrated on ([`calibration`](crate::calibration)) is marked point by point. A miss
//! stays a miss; [`causes`] says why it is one, where that is known. [`report`] writes it all down.
//!
//! **Limits.** Bars are compared only where the text has a number; pictures are not measured with a ruler.

mod arc;
mod bench;
mod causes;
mod csv;
mod dragonfly;
mod files;
pub mod holdout;
mod npolicy;
mod nthread_apps;
mod nthread_fio;
mod plot;
mod report;
pub mod sensitivity;
#[cfg(test)]
mod tests;
mod trial;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

pub use bench::Bench;
pub use csv::csv;
pub use files::{WriteError, prepare, write};
pub use trial::{Came, Trials, steps, trials};

use crate::calibration::CALIBRATED;
use crate::papers::Paper;
use crate::run::RunError;

/// A stated ratio counts as met within this fraction of it.
pub const TOLERANCE: f64 = 0.15;

/// One figure of a paper, reproduced.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Paper.
    pub paper: Paper,
    /// Number in the paper, such as `5a`.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// How the experiment was set up here.
    pub setup: String,
    /// Its points.
    pub points: Vec<Point>,
    /// What the paper reads off it.
    pub checks: Vec<Check>,
    /// How it is drawn.
    #[serde(skip)]
    pub plot: Plot,
}

/// One number.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Series, as in the paper's data file.
    pub series: String,
    /// Point of the series.
    pub point: String,
    /// Unit; `x` is a ratio.
    pub unit: &'static str,
    /// What the paper states, if it states a number.
    pub paper_value: Option<f64>,
    /// What comes out here.
    pub homenode_value: f64,
    /// Whether a constant was chosen on it.
    pub kind: Kind,
}

/// Whether a number was fitted or comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A constant was chosen so that it comes out.
    Calibrated,
    /// It comes out.
    Predicted,
}

impl Kind {
    /// Word for the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calibrated => "calibrated",
            Self::Predicted => "predicted",
        }
    }
}

/// Something that the paper says of its figure without a number: who beats whom.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The paper's statement.
    pub statement: String,
    /// Whether it holds here.
    pub holds: bool,
    /// The figures here.
    pub seen: String,
}

/// How a figure is drawn.
#[derive(Clone, Debug)]
pub enum Plot {
    /// Groups of bars: one group per point, one colour per series.
    Bars {
        /// Label of the value axis.
        y: &'static str,
        /// Names of the groups.
        groups: Vec<String>,
        /// Name and one value per group.
        series: Vec<(String, Vec<f64>)>,
    },
    /// Lines.
    Lines {
        /// Label of the horizontal axis.
        x: &'static str,
        /// Label of the value axis.
        y: &'static str,
        /// Name and points.
        series: Vec<(String, Vec<(f64, f64)>)>,
    },
}

impl Point {
    /// How far from the paper's value, as a fraction of it; a difference where the paper says 0.
    pub fn difference(&self) -> Option<f64> {
        self.paper_value.map(|paper| match paper {
            0.0 => self.homenode_value,
            paper => self.homenode_value / paper - 1.0,
        })
    }

    /// Whether a predicted number is not as near to the stated value as asked.
    pub fn missed(&self) -> bool {
        self.kind == Kind::Predicted && self.met() == Some(false)
    }

    /// Whether it is as near to the stated value as asked; absent where none is stated. Percentages count by the ratio they stand
    /// for: 10 % less is 0.9.
    pub fn met(&self) -> Option<bool> {
        let paper = self.paper_value?;
        let (paper, here) = match self.unit {
            "%" => (1.0 - paper / 100.0, 1.0 - self.homenode_value / 100.0),
            _ => (paper, self.homenode_value),
        };
        Some((here / paper - 1.0).abs() <= TOLERANCE)
    }
}

impl Figure {
    /// Adds an ordering that was checked when the rest was done.
    pub(crate) fn check(&mut self, statement: impl Into<String>, holds: bool, seen: impl Into<String>) {
        self.checks.push(Check { statement: statement.into(), holds, seen: seen.into() });
    }

    /// What to call it: `Figure 5a`, `Table II`.
    pub fn name(&self) -> String {
        match self.id.starts_with(|c: char| c.is_ascii_digit()) {
            true => format!("Figure {}", self.id),
            false => self.id.to_owned(),
        }
    }

    /// Name of its plot's file.
    pub fn png_name(&self) -> String {
        format!("{}-{}.png", self.paper.name(), self.id.replace(' ', "-").to_lowercase())
    }

    /// Whether a constant was chosen on one of its numbers.
    pub fn calibrated(&self) -> bool {
        self.points.iter().any(|p| p.kind == Kind::Calibrated)
    }

    /// Why a stated number or an ordering was missed.
    pub fn cause(&self, series: &str, point: &str) -> Option<&'static str> {
        causes::of(self.paper, self.id, series, point)
    }

    /// Why an ordering was missed.
    pub fn cause_of(&self, check: &Check) -> Option<&'static str> {
        causes::of(self.paper, self.id, "ordering", &check.statement)
    }
}

/// A figure in the making.
pub(crate) struct Draft {
    figure: Figure,
}

impl Draft {
    pub fn new(paper: Paper, id: &'static str, title: &'static str, setup: impl Into<String>) -> Self {
        let plot = Plot::Bars { y: "", groups: Vec::new(), series: Vec::new() };
        let figure = Figure { paper, id, title, setup: setup.into(), points: Vec::new(), checks: Vec::new(), plot };
        Self { figure }
    }

    /// Adds a number, beside the one that the paper states for the same series and point.
    pub fn point(&mut self, series: impl Into<String>, point: impl Into<String>, unit: &'static str, value: f64) {
        let (series, point) = (series.into(), point.into());
        let Figure { paper, id, .. } = self.figure;
        let paper_value = paper.stated(id, &series, &point).map(|s| s.value);
        let chosen_on = |on: &(Paper, [&str; 3])| *on == (paper, [id, &series, &point]);
        let kind = match CALIBRATED.iter().any(|c| c.on.iter().any(chosen_on)) {
            true => Kind::Calibrated,
            false => Kind::Predicted,
        };
        self.figure.points.push(Point { series, point, unit, paper_value, homenode_value: value, kind });
    }

    /// The order of those whom `who` is compared with, as it follows from the stated ratios: by how much each is beaten. Neighbours
    /// within 3 % of each other have none.
    pub fn ranking(&mut self, who: &str, others: &[&str], point: &str) {
        let ratio = |other: &&str| {
            let series = format!("{who} / {other}");
            let of = self.figure.points.iter().find(|p| p.series == series && p.point == point)?;
            Some((of.paper_value?, of.homenode_value))
        };
        let mut ratios: Vec<(&str, f64, f64)> =
            others.iter().filter_map(|other| ratio(other).map(|(paper, here)| (*other, paper, here))).collect();
        ratios.sort_by(|a, b| a.1.total_cmp(&b.1));
        for pair in ratios.windows(2) {
            let [(better, paper, here), (worse, paper_worse, here_worse)] = [pair[0], pair[1]];
            if paper_worse > 1.03 * paper {
                let when = if point == "average" { "on average".to_owned() } else { format!("for {point}") };
                let seen = format!("{who} beats them by {here:.2} x and {here_worse:.2} x");
                self.check(format!("{better} beats {worse} {when}"), here < here_worse, seen);
            }
        }
    }

    pub fn check(&mut self, statement: impl Into<String>, holds: bool, seen: impl Into<String>) {
        self.figure.check(statement, holds, seen);
    }

    pub fn plot(mut self, plot: Plot) -> Figure {
        self.figure.plot = plot;
        self.figure
    }
}

/// Values by series and group, as bars are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bars {
    pub groups: Vec<String>,
    pub series: Vec<(String, Vec<f64>)>,
}

impl Bars {
    pub fn new(groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { groups: groups.into_iter().map(Into::into).collect(), series: Vec::new() }
    }

    pub fn push(&mut self, series: impl Into<String>, values: Vec<f64>) {
        self.series.push((series.into(), values));
    }

    pub fn of(&self, series: &str) -> &[f64] {
        self.series.iter().find(|s| s.0 == series).map_or(&[], |s| &s.1)
    }

    pub fn at(&self, series: &str, group: &str) -> f64 {
        let value = self.groups.iter().position(|g| g == group).and_then(|g| self.of(series).get(g).copied());
        value.unwrap_or(f64::NAN)
    }

    /// Mean over the groups of `a / b`, as the papers average.
    pub fn ratio(&self, a: &str, b: &str) -> f64 {
        let ratios: Vec<f64> = self.of(a).iter().zip(self.of(b)).map(|(a, b)| a / b).collect();
        ratios.iter().sum::<f64>() / ratios.len() as f64
    }

    /// The same over some groups.
    pub fn ratio_in(&self, a: &str, b: &str, groups: &[&str]) -> f64 {
        groups.iter().map(|g| self.at(a, g) / self.at(b, g)).sum::<f64>() / groups.len() as f64
    }

    pub fn all(&self, draft: &mut Draft, unit: &'static str) {
        for (series, values) in &self.series {
            for (group, value) in self.groups.iter().zip(values) {
                draft.point(series, group, unit, *value);
            }
        }
    }

    pub fn plot(self, y: &'static str) -> Plot {
        Plot::Bars { y, groups: self.groups, series: self.series }
    }
}

/// Whether two values are as alike as "similar" means in the papers.
pub(crate) fn similar(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() <= 0.08
}

type Experiment = fn(&Bench<'_>) -> Result<Figure, RunError>;

/// Every experiment, in the order of the papers.
const EXPERIMENTS: &[(Paper, &str, Experiment)] = &[
    (Paper::NThread, "2", nthread_apps::fig2),
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
    let results: Vec<OnceLock<Result<Figure, RunError>>> = chosen.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(((paper, id, experiment), result)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            chosen.get(i).zip(results.get(i))
        } {
            // Each is taken by one thread only, so it is never set before.
            let _ = result.set(experiment(bench));
            bench.say(*paper, id);
        }
    };
    std::thread::scope(|scope| {
        let helpers = std::thread::available_parallelism().map_or(0, |n| n.get() - 1).min(chosen.len());
        (0..helpers).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    results.into_iter().filter_map(OnceLock::into_inner).collect()
}

/// How many stated numbers and orderings were met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Score {
    /// Stated numbers that came out within [`TOLERANCE`], of figures that nothing was calibrated on.
    pub met: usize,
    /// Stated numbers of those figures that did not.
    pub missed: usize,
    /// Stated numbers that came out, of figures that something was calibrated on: predicted, but not by much.
    pub beside_met: usize,
    /// Stated numbers of those figures that did not.
    pub beside_missed: usize,
    /// Stated numbers that a constant was chosen on; neither met nor missed.
    pub calibrated: usize,
    /// Orderings that came out.
    pub orderings: usize,
    /// Orderings that did not.
    pub orderings_missed: usize,
}

/// Scores by paper.
pub fn score(figures: &[Figure]) -> BTreeMap<Paper, Score> {
    let mut scores: BTreeMap<Paper, Score> = BTreeMap::new();
    for figure in figures {
        let score = scores.entry(figure.paper).or_default();
        for point in &figure.points {
            let counter = match (point.kind, point.met(), figure.calibrated()) {
                (_, None, _) => continue,
                (Kind::Calibrated, ..) => &mut score.calibrated,
                (_, Some(true), false) => &mut score.met,
                (_, Some(false), false) => &mut score.missed,
                (_, Some(true), true) => &mut score.beside_met,
                (_, Some(false), true) => &mut score.beside_missed,
            };
            *counter += 1;
        }
        for check in &figure.checks {
            *(if check.holds { &mut score.orderings } else { &mut score.orderings_missed }) += 1;
        }
    }
    scores
}
