//! How many stated numbers and orderings come out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::effect::{Count, Tally};
use super::figure::{Figure, Kind};
use crate::papers::Paper;

/// How many stated numbers and orderings were met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Stated numbers to which nothing was fitted.
    pub predicted: Tally,
    /// Stated numbers that restate a fit.
    pub dependent: Tally,
    /// Stated numbers that a constant was chosen on; neither met nor missed.
    pub calibrated: usize,
    /// Stated numbers that cannot come out otherwise; neither met nor missed.
    pub structural: usize,
    /// Orderings to which nothing was fitted.
    pub orderings: Held,
    /// Orderings that restate a fit.
    pub dependent_orderings: Held,
    /// Orderings that cannot come out otherwise; neither held nor missed.
    pub structural_orderings: usize,
}

/// How many orderings held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Held.
    pub held: usize,
    /// Did not.
    pub missed: usize,
}

impl Held {
    fn add(&mut self, holds: bool) {
        *(if holds { &mut self.held } else { &mut self.missed }) += 1;
    }
}

/// The score of some figures.
pub fn score<'a>(figures: impl IntoIterator<Item = &'a Figure>) -> Score {
    let mut score = Score::default();
    let mut counts: [Count; 2] = Default::default();
    for figure in figures {
        for point in figure.stated() {
            let count = match point.kind {
                Kind::Predicted => &mut counts[0],
                Kind::Dependent => &mut counts[1],
                Kind::Calibrated => {
                    score.calibrated += 1;
                    continue;
                }
                Kind::Structural => {
                    score.structural += 1;
                    continue;
                }
            };
            let [met, null, alone] =
                [figure.met(point), figure.null_met(point), figure.alone_met(point)].map(|met| met == Some(true));
            count.add(figure.effect(point), met, null, alone);
        }
        for check in &figure.checks {
            match check.kind {
                Kind::Predicted => score.orderings.add(check.holds),
                Kind::Dependent => score.dependent_orderings.add(check.holds),
                Kind::Structural | Kind::Calibrated => score.structural_orderings += 1,
            }
        }
    }
    let [predicted, dependent] = counts.map(Count::tally);
    Score { predicted, dependent, ..score }
}

/// Scores by paper.
pub fn scores(figures: &[Figure]) -> BTreeMap<Paper, Score> {
    let papers: std::collections::BTreeSet<Paper> = figures.iter().map(|f| f.paper).collect();
    papers.into_iter().map(|paper| (paper, score(figures.iter().filter(|f| f.paper == paper)))).collect()
}
