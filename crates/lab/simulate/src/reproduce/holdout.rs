//! Results for a paper on which no constant was calibrated.
//!
//! **Problem.** Constants that were chosen on all papers together may fit each of them.
//!
//! **Approach.** For each paper in turn, only the constants that were chosen on its numbers are
//! calibrated, anew, by the rule that is written beside them: so that the number comes out. All
//! others are [neutral](NEUTRAL): what they stand for is left out of the model. Then every
//! experiment of every paper runs. Beside it stand all constants neutral, and all as they are.
//!
//! **Limits.** Hardware constants and software costs that were published stay in each row. A
//! constant is sought between a tenth and ten times the value that it had before it was chosen, and
//! a number that no value of it brings about is approached as far as that goes.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde::Serialize;

use super::effect::Meaning;
use super::report::percent;
use super::scores;
use super::trial::{self, Came};
use crate::calibration::{CALIBRATED, Calibrated};
use crate::constants::Constants;
use crate::papers::Paper;
use crate::parallel;
use crate::run::RunError;

/// Calibrated on one paper, or on none, or on all.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// On what: a paper's name, all papers, or none.
    pub calibrated_on: String,
    /// The calibrated constants.
    pub constants: BTreeMap<String, f64>,
    /// Results of each paper.
    pub came: BTreeMap<Paper, Came>,
}

/// Value of a calibrated constant where nothing was calibrated: it leaves the effect out.
fn neutral(name: &str, c: &Constants) -> f64 {
    match name {
        // A thread alone reads as fast as the module.
        "OPTANE_READ_S" => 1.0 / c.optane_read_bw,
        // Mapped memory is read as far away as by a call.
        "MAPPED_REMOTE_READ" => c.remote_read_latency,
        "CROSS_LOCK" | "DB_GET_BLOCKS" => 1.0,
        _ => 0.0,
    }
}

const AS_THEY_ARE: &str = "all, as they are";

/// Figures are solved to a millionth, seeds differ by less than this.
const NEAR: f64 = 1e-3;
/// Halvings of the interval in which a constant is sought, and rounds over all constants of a
/// paper.
const STEPS: usize = 12;
const ROUNDS: usize = 3;
/// How many times smaller or larger than it is a constant may become.
const WIDEST: f64 = 10.0;

/// How far a constant's number is from the stated one: the logarithm of their ratio. None where no
/// number is stated.
fn error(on: &(Paper, [&str; 3]), c: &Constants) -> Result<Option<f64>, RunError> {
    let (paper, [id, series, point]) = *on;
    let figure = trial::figure(paper, id, c)?;
    let found = figure.iter().flat_map(|f| &f.points).find(|p| p.series == series && p.point == point);
    let ratio = |value: f64, unit: &str| Meaning::of(unit).ratio(value).unwrap_or(value);
    Ok(found.and_then(|p| Some((ratio(p.homenode_value, p.unit) / ratio(p.paper_value?, p.unit)).ln())))
}

/// The constants with one chosen anew, so that its number comes out as near as it can.
fn choose(constant: &Calibrated, c: Constants) -> Result<Constants, RunError> {
    // Chosen on two numbers: it is their difference, and does not depend on anything else.
    let [on] = constant.on else { return Ok(c) };
    let at = |log: f64| set(c, constant.name, constant.around * log.exp());
    let (mut low, mut high) = (-WIDEST.ln(), WIDEST.ln());
    let (Some(below), Some(above)) = (error(on, &at(low))?, error(on, &at(high))?) else { return Ok(c) };
    if below.signum() == above.signum() {
        return Ok(at(if below.abs() < above.abs() { low } else { high }));
    }
    for _ in 0..STEPS {
        let middle = 0.5 * (low + high);
        match error(on, &at(middle))? {
            Some(error) if error.abs() < NEAR => return Ok(at(middle)),
            Some(error) if error.signum() == below.signum() => low = middle,
            _ => high = middle,
        }
    }
    Ok(at(0.5 * (low + high)))
}

/// The constants calibrated anew on these papers and on no other.
fn calibrate(papers: &[Paper]) -> Result<Constants, RunError> {
    let chosen = |constant: &&Calibrated| constant.on.iter().any(|on| papers.contains(&on.0));
    let start = |all: Constants, constant: &Calibrated| set(all, constant.name, constant.value);
    let mut c = CALIBRATED.iter().filter(chosen).fold(uncalibrated(), start);
    for _ in 0..ROUNDS {
        for constant in CALIBRATED.iter().filter(chosen) {
            c = choose(constant, c)?;
        }
    }
    Ok(c)
}

/// The constants with one set, as far as that value can be.
fn set(c: Constants, name: &str, value: f64) -> Constants {
    let value = match name {
        "CROSS_LOCK" => value.max(1.0),
        "EXT4_SERIAL" => value.min(1.0),
        // Whole blocks.
        "DB_GET_BLOCKS" => value.round().max(1.0),
        _ => value,
    };
    c.with(&name.to_lowercase(), value).unwrap_or(c)
}

/// Every calibrated constant neutral.
fn uncalibrated() -> Constants {
    let c = Constants::CALIBRATED;
    CALIBRATED.iter().fold(c, |all, constant| set(all, constant.name, neutral(constant.name, &c)))
}

/// How many rows [`holdout`] has: none, each paper, all anew, all.
pub fn rows() -> usize {
    Paper::ALL.len() + 3
}

/// Calibrates on none, on each paper alone, and takes the constants as they are. `done` is called
/// after each of the [`rows`].
///
/// # Errors
///
/// [`RunError`] when an experiment does not run, which none does unless homenode is broken.
pub fn holdout(done: &(dyn Fn() + Sync)) -> Result<Vec<Row>, RunError> {
    // The row that takes longest first.
    let mut tasks: Vec<(&str, Vec<Paper>)> = vec![("all, chosen anew", Paper::ALL.to_vec())];
    tasks.extend(Paper::ALL.into_iter().map(|paper| (paper.name(), vec![paper])));
    tasks.extend([("none", Vec::new()), (AS_THEY_ARE, Paper::ALL.to_vec())]);
    let row = |(name, papers): &(&str, Vec<Paper>)| {
        let constants = if *name == AS_THEY_ARE { Constants::CALIBRATED } else { calibrate(papers)? };
        let figures = trial::figures(&Paper::ALL, &constants)?;
        let came = scores(&figures).into_iter().map(|(paper, score)| (paper, Came::from(score))).collect();
        let value = |c: &Calibrated| Some((c.name.to_owned(), constants.get(&c.name.to_lowercase())?));
        let constants = CALIBRATED.iter().filter_map(value).collect();
        done();
        Ok(Row { calibrated_on: (*name).to_owned(), constants, came })
    };
    parallel::each(&tasks, parallel::workers(), row).into_iter().collect()
}

/// The report's section.
pub(super) fn section(rows: &[Row]) -> Markup {
    html! {
        h2 id="hold-out" { "Hold-out" }
        p {
            "Calibrated on one paper only: the constants that were chosen on its numbers are chosen anew, all other calibrated \
             constants are neutral. Stated effects that were met, without those that a constant was chosen on, with the geometric \
             mean error of all of them; orderings that hold."
        }
        table {
            thead {
                tr { th { "calibrated on" } @for paper in Paper::ALL { th.n colspan="3" { (paper.name()) } } }
                tr { th { "" } @for _ in Paper::ALL { th.n { "effects" } th.n { "error" } th.n { "orderings" } } }
            }
            tbody { @for row in rows { tr {
                td { (row.calibrated_on) }
                @for paper in Paper::ALL { @let came = row.came.get(&paper).copied().unwrap_or_default();
                    td.n { (came.met) " of " (came.effects) }
                    td.n { (percent(came.error)) }
                    td.n { (came.held) " of " (came.orderings) }
                }
            } } }
        }
    }
}
