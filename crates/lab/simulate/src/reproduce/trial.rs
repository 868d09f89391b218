//! Experiments again, with other numbers in the model.

use maud::{Markup, html};
use serde::Serialize;

use super::holdout::{self, Row};
use super::sensitivity::{self, Sensitivity};
use super::{Bench, EXPERIMENTS, Figure, Score};
use crate::constants::Constants;
use crate::papers::Paper;
use crate::run::RunError;

/// Seeds of a trial: it is compared with another trial, not with a paper.
const SEEDS: u64 = 1;

/// The figures of these papers with these constants.
pub(super) fn figures(papers: &[Paper], constants: &Constants) -> Result<Vec<Figure>, RunError> {
    let bench = Bench::new(SEEDS, &|_, _| {}).with_constants(*constants);
    EXPERIMENTS.iter().filter(|e| papers.contains(&e.0)).map(|(_, _, experiment)| experiment(&bench)).collect()
}

/// One figure with these constants.
pub(super) fn figure(paper: Paper, id: &str, constants: &Constants) -> Result<Option<Figure>, RunError> {
    let bench = Bench::new(SEEDS, &|_, _| {}).with_constants(*constants);
    EXPERIMENTS.iter().find(|e| e.0 == paper && e.1 == id).map(|(_, _, experiment)| experiment(&bench)).transpose()
}

/// Inputs on which the results depend.
#[derive(Clone, Debug, Serialize)]
pub struct Trials {
    /// Each constant changed.
    pub sensitivity: Sensitivity,
    /// Calibrated on one paper only.
    pub holdout: Vec<Row>,
}

/// How many times [`trials`] reports progress.
pub fn steps() -> usize {
    sensitivity::trials() + holdout::rows()
}

/// Changes each constant, and calibrates on each paper alone. `done` is called [`steps`] times.
///
/// # Errors
///
/// [`RunError`] when an experiment does not run, which none does unless homenode is broken.
pub fn trials(papers: &[Paper], done: &(dyn Fn() + Sync)) -> Result<Trials, RunError> {
    Ok(Trials { sensitivity: sensitivity::sensitivity(papers, done)?, holdout: holdout::holdout(done)? })
}

impl Trials {
    /// The report's sections.
    pub(super) fn sections(&self) -> Markup {
        html! { (sensitivity::section(&self.sensitivity)) (holdout::section(&self.holdout)) }
    }
}

/// The score of some figures, predicted and dependent results together: with other constants, other
/// results depend on a fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Came {
    /// Stated effects that were met, without those that a constant was chosen on.
    pub met: usize,
    /// Stated effects, likewise.
    pub effects: usize,
    /// Geometric mean of how many times their ratios are too large or too small, minus 1.
    pub error: f64,
    /// Effects met of those that nothing was fitted to.
    pub predicted_met: usize,
    /// Effects that nothing was fitted to.
    pub predicted: usize,
    /// Orderings that hold.
    pub held: usize,
    /// Orderings.
    pub orderings: usize,
}

impl From<Score> for Came {
    fn from(score: Score) -> Self {
        let Score { predicted, dependent, orderings, dependent_orderings, .. } = score;
        let effects = predicted.effects + dependent.effects;
        let logs: f64 = [predicted, dependent].iter().map(|t| t.effects as f64 * t.error.ln_1p()).sum();
        let held = orderings.held + dependent_orderings.held;
        Self {
            met: predicted.met + dependent.met,
            effects,
            error: (logs / effects.max(1) as f64).exp_m1(),
            predicted_met: predicted.met,
            predicted: predicted.effects,
            held,
            orderings: held + orderings.missed + dependent_orderings.missed,
        }
    }
}
