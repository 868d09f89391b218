//! How far the results depend on each number of the model.
//!
//! **Problem.** A conclusion may rest on one constant that was guessed.
//!
//! **Approach.** Every experiment runs again with each constant 30 % lower and 30 % higher, one
//! constant at a time. The report gives the interval of the score, and lists each stated effect and
//! each ordering that comes out differently, with the constants that change it. Of a ratio that
//! stands for an effect (a remote latency, say) the part above 1 is changed.
//!
//! **Limits.** One constant at a time, one seed: constants that make up for each other look more
//! important than they are together.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde::Serialize;

use super::report::percent;
use super::trial::{self, Came};
use super::{Figure, score};
use crate::constants::Constants;
use crate::papers::Paper;
use crate::parallel;
use crate::run::RunError;

/// By what fraction each constant is changed.
pub const CHANGE: f64 = 0.3;

/// Effect of changing each constant.
#[derive(Clone, Debug, Serialize)]
pub struct Sensitivity {
    /// By what fraction each constant was changed.
    pub change: f64,
    /// The score with the constants as they are.
    pub base: Came,
    /// Each constant.
    pub constants: Vec<Changed>,
    /// Results that come out differently, and the constants that change them, with the sign of the
    /// change.
    pub flips: Vec<Flip>,
}

/// Effect of changing one constant.
#[derive(Clone, Debug, Serialize)]
pub struct Changed {
    /// Its name.
    pub name: String,
    /// The score with less of it, and with more.
    pub scores: [Came; 2],
    /// How many orderings come out differently, with less of it and with more.
    pub orderings_flip: [usize; 2],
    /// How many stated effects and levels do.
    pub numbers_flip: [usize; 2],
}

/// A result that depends on a constant.
#[derive(Clone, Debug, Serialize)]
pub struct Flip {
    /// Paper.
    pub paper: Paper,
    /// Figure.
    pub figure: &'static str,
    /// The ordering, or the stated number's series and point.
    pub result: String,
    /// Whether it is an ordering.
    pub ordering: bool,
    /// Whether it comes out with the constants as they are.
    pub base: bool,
    /// Constants that change it, as `NAME −` or `NAME +`.
    pub by: Vec<String>,
}

/// A result's place, and whether it is an ordering.
type Key = (Paper, &'static str, bool, String);

/// Whether each ordering and each stated number that counts comes out.
fn verdicts(figures: &[Figure]) -> BTreeMap<Key, bool> {
    let of = |f: &Figure| {
        let (paper, id) = (f.paper, f.id);
        let orderings = f.checks.iter().filter(|c| c.kind.counts());
        let orderings = orderings.map(|c| ((paper, id, true, c.statement.clone()), c.holds));
        let numbers = f
            .points
            .iter()
            .filter(|p| p.kind.counts())
            .filter_map(|p| f.met(p).map(|met| ((paper, id, false, format!("{}, {}", p.series, p.point)), met)));
        orderings.chain(numbers).collect::<Vec<_>>()
    };
    figures.iter().flat_map(of).collect()
}

/// How many runs of all experiments [`sensitivity`] takes, the first with the constants as they
/// are.
pub fn trials() -> usize {
    1 + 2 * Constants::NAMES.len()
}

/// Changes each constant. `done` is called after each of the [`trials`].
///
/// # Errors
///
/// [`RunError`] when an experiment does not run, which none does unless homenode is broken.
pub fn sensitivity(papers: &[Paper], done: &(dyn Fn() + Sync)) -> Result<Sensitivity, RunError> {
    let figures = trial::figures(papers, &Constants::CALIBRATED)?;
    done();
    let (base, expected) = (Came::from(score(&figures)), verdicts(&figures));
    let tasks: Vec<(&str, f64)> =
        Constants::NAMES.iter().flat_map(|name| [(*name, 1.0 - CHANGE), (*name, 1.0 + CHANGE)]).collect();
    let run = |(name, factor): &(&str, f64)| {
        let constants = Constants::CALIBRATED.scaled(name, *factor).unwrap_or(Constants::CALIBRATED);
        let figures = trial::figures(papers, &constants);
        done();
        figures.map(|figures| (Came::from(score(&figures)), verdicts(&figures)))
    };
    let results = parallel::each(&tasks, parallel::workers(), run);
    let results = results.into_iter().collect::<Result<Vec<_>, RunError>>()?;
    let mut flips: BTreeMap<&Key, Vec<String>> = BTreeMap::new();
    let mut constants: Vec<Changed> = Vec::new();
    for ((name, factor), (score, seen)) in tasks.iter().zip(&results) {
        let more = *factor > 1.0;
        let at = usize::from(more);
        let name = name.to_uppercase();
        if !more {
            let none = [0; 2];
            let scores = [Came::default(); 2];
            constants.push(Changed { name: name.clone(), scores, orderings_flip: none, numbers_flip: none });
        }
        let Some(changed) = constants.last_mut() else { continue };
        changed.scores[at] = *score;
        // An ordering of two runs that are now the same is not listed, and is not lost.
        for (key, _) in expected.iter().filter(|(key, came)| seen.get(*key).is_some_and(|seen| seen != *came)) {
            *(if key.2 { &mut changed.orderings_flip[at] } else { &mut changed.numbers_flip[at] }) += 1;
            flips.entry(key).or_default().push(format!("{name} {}", if more { '+' } else { '−' }));
        }
    }
    let flip = |(key, by): (&Key, Vec<String>)| {
        let (paper, figure, ordering, result) = key.clone();
        Flip { paper, figure, result, ordering, base: expected.get(key).copied().unwrap_or(false), by }
    };
    Ok(Sensitivity { change: CHANGE, base, constants, flips: flips.into_iter().map(flip).collect() })
}

impl Sensitivity {
    /// Lowest and highest of something over all changes, and without any.
    fn interval<T: PartialOrd + Copy>(&self, of: impl Fn(&Came) -> T) -> (T, T) {
        let base = of(&self.base);
        let all = self.constants.iter().flat_map(|c| &c.scores).map(of);
        all.fold((base, base), |(low, high), n| (if n < low { n } else { low }, if n > high { n } else { high }))
    }

    /// Orderings of the base that hold whatever constant is changed.
    fn firm(&self) -> usize {
        self.base.held - self.flips.iter().filter(|f| f.ordering && f.base).count()
    }
}

/// The report's section.
pub(super) fn section(s: &Sensitivity) -> Markup {
    let (low, high) = s.interval(|came| came.met);
    let (least, best) = s.interval(|came| came.predicted_met);
    let (near, far) = s.interval(|came| came.error);
    let (fewest, most) = s.interval(|came| came.held);
    let (moves, idle): (Vec<&Changed>, Vec<&Changed>) =
        s.constants.iter().partition(|c| c.orderings_flip != [0; 2] || c.numbers_flip != [0; 2]);
    let idle: Vec<&str> = idle.iter().map(|c| c.name.as_str()).collect();
    html! {
        h2 id="sensitivity" { "Sensitivity" }
        p {
            "Each constant lower and higher by " (percent(s.change)) ", one at a time (of a ratio that stands for an effect, the part \
             above 1). With the constants as they are " (s.base.met) " of " (s.base.effects) " stated effects are met; the changes give "
            (low) " to " (high) ". Of the " (s.base.predicted) " that nothing was fitted to it is " (s.base.predicted_met) ", with the changes "
            (least) " to " (best) ". The error is " (percent(s.base.error)) ", with the changes " (percent(near)) " to " (percent(far)) ". "
            (s.base.held) " of " (s.base.orderings) " orderings hold; the changes give " (fewest) " to " (most) ". "
            (s.firm()) " orderings hold whatever constant is changed."
        }
        table {
            thead {
                tr { th { "" } th.n colspan="2" { "effects met" } th.n colspan="2" { "error" } th.n colspan="2" { "orderings that flip" } }
                tr { th { "constant" } @for _ in 0..3 { th.n { "−" } th.n { "+" } } }
            }
            tbody { @for c in &moves { tr {
                td { code { (c.name) } }
                @for score in &c.scores { td.n { (score.met) } }
                @for score in &c.scores { td.n { (percent(score.error)) } }
                @for n in &c.orderings_flip { td.n { (n) } }
            } } }
        }
        p { "No effect, level or ordering changes its verdict with " (idle.join(", ")) "." }
        h3 { "Orderings that depend on a constant" }
        table {
            thead { tr { th { "figure" } th { "ordering" } th { "as it is" } th { "flips with" } } }
            tbody { @for f in s.flips.iter().filter(|f| f.ordering) { tr {
                td { (f.paper.name()) " " (f.figure) }
                td { (f.result) }
                td { (if f.base { "holds" } else { "does not hold" }) }
                td { (f.by.join(", ")) }
            } } }
        }
    }
}
