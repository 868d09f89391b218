//! The papers' figures measured on a wall clock: paper, simulated and measured side by side.
//!
//! **Problem.** The simulator shares its equations with the policies that it judges. A measurement
//! does not, and a reader wants the three numbers in one line.
//!
//! **Approach.** Who measures gives the values of each bar, run by run. The ratios of a figure are
//! formed within each round, over the same groups of the paper, the simulation and the measurement.
//! The page looks as that of `homenode reproduce` and needs nothing else.
//!
//! **Limits.** The paper's averages are over all groups of its figure, even where fewer were
//! measured.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;

use super::report::{STYLE, picture};
use super::{Figure, Plot, PlotError, plot};

/// A figure that was measured.
#[derive(Clone, Debug)]
pub struct Measured<'a> {
    /// The figure as simulated.
    pub simulated: &'a Figure,
    /// How the measurement differs from the paper's experiment.
    pub setup: String,
    /// Quantity of a bar, with its unit.
    pub unit: &'static str,
    /// Groups of bars, named as the figure's points.
    pub groups: Vec<String>,
    /// How many of the groups are the paper's, which the average is over; others follow them.
    pub published: usize,
    /// Name of each series, and for each group the values of its runs, one a round.
    pub series: Vec<(String, Vec<Vec<f64>>)>,
    /// The series that the plot's bars are relative to.
    pub base: &'static str,
    /// Runs to compare.
    pub ratios: Vec<Ratio>,
    /// Further counts: a header and rows.
    pub counted: Vec<Vec<String>>,
}

/// One series over another.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    /// The series that should be better.
    pub of: &'static str,
    /// The one that it is compared with.
    pub over: &'static str,
    /// Series and point of the paper's number, where they are not `A / B` at the group.
    pub stated: Option<(&'static str, &'static str)>,
}

/// Mean, least and most of some runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
    /// How many runs.
    pub runs: usize,
}

/// One ratio by all three.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `A / B`.
    pub ratio: String,
    /// The group, or several.
    pub at: String,
    /// As stated.
    pub paper: Option<f64>,
    /// As simulated.
    pub simulated: Option<f64>,
    /// As measured.
    pub measured: Spread,
}

impl Spread {
    /// Of these values; `None` of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let (least, most) = (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
        Some(Self { mean: values.iter().sum::<f64>() / values.len() as f64, least, most, runs: values.len() })
    }

    /// `1.23 (1.10 to 1.40)`.
    pub fn text(&self) -> String {
        format!("{:.2} ({:.2} to {:.2})", self.mean, self.least, self.most)
    }
}

impl Measured<'_> {
    fn runs(&self, series: &str, group: usize) -> &[f64] {
        let series = self.series.iter().find(|s| s.0 == series);
        series.and_then(|s| s.1.get(group)).map_or(&[], Vec::as_slice)
    }

    /// `of / over` of each round, the mean over some groups.
    fn by_round(&self, of: &str, over: &str, groups: &[usize]) -> Vec<f64> {
        let both = |g: &usize| self.runs(of, *g).len().min(self.runs(over, *g).len());
        let rounds = groups.iter().map(both).min().unwrap_or(0);
        let ratio = |round: usize| {
            groups.iter().map(|g| self.runs(of, *g)[round] / self.runs(over, *g)[round]).sum::<f64>()
                / groups.len() as f64
        };
        (0..rounds).map(ratio).collect()
    }

    fn simulated(&self, of: &str, over: &str, groups: &[usize]) -> Option<f64> {
        let value =
            |series: &str, group: &usize| Some(self.simulated.point(series, &self.groups[*group])?.homenode_value);
        let ratios: Option<Vec<f64>> = groups.iter().map(|g| Some(value(of, g)? / value(over, g)?)).collect();
        Spread::of(&ratios?).map(|spread| spread.mean)
    }

    /// All ratios: of each group, and of all of them together.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for Ratio { of, over, stated } in &self.ratios {
            let ratio = format!("{of} / {over}");
            let mut row = |at: &str, points: &[&str], groups: &[usize]| {
                let Some(measured) = Spread::of(&self.by_round(of, over, groups)) else { return };
                let stated = match stated {
                    Some((series, point)) => self.simulated.point(series, point),
                    None => points
                        .iter()
                        .find_map(|at| self.simulated.point(&ratio, at).filter(|p| p.paper_value.is_some())),
                };
                let effect = stated.and_then(|point| self.simulated.effect(point));
                let simulated = self.simulated(of, over, groups).or(effect.map(|e| e.homenode));
                rows.push(Row {
                    ratio: ratio.clone(),
                    at: at.to_owned(),
                    paper: effect.map(|e| e.paper),
                    simulated,
                    measured,
                });
            };
            for (g, group) in self.groups.iter().enumerate() {
                row(group, &[group], &[g]);
            }
            // An average over other runs than those of its parts would be none of them.
            let runs = |g: usize| self.by_round(of, over, &[g]).len();
            if self.published > 1 && (1..self.published).all(|g| runs(g) == runs(0)) {
                let (all, every): (Vec<usize>, _) =
                    ((0..self.published).collect(), self.groups[..self.published].join(", "));
                row("average", &["average", &every, "average without fileserver"], &all);
            }
        }
        rows
    }

    /// The bars, relative to those of one series in the same round; where that is missing, as they
    /// are.
    fn plot(&self) -> Result<Vec<u8>, PlotError> {
        let values = |of: &str, g: usize| self.by_round(of, self.base, &[g]);
        let rounds = (0..self.groups.len()).flat_map(|g| self.series.iter().map(move |s| values(&s.0, g).len())).max();
        let bars = |pick: &dyn Fn(&[f64]) -> Option<f64>| Plot::Bars {
            y: "relative throughput",
            groups: self.groups.clone(),
            series: (self.series.iter())
                .map(|(name, _)| {
                    let bar = |g| pick(&values(name, g)).unwrap_or(0.0);
                    (name.clone(), (0..self.groups.len()).map(bar).collect())
                })
                .collect(),
        };
        let mean = |values: &[f64]| Spread::of(values).map(|s| s.mean);
        let figure = Figure {
            points: Vec::new(),
            checks: Vec::new(),
            plot: bars(&mean),
            // A round that a bar lacks draws as its mean.
            by_seed: (0..rounds.unwrap_or(0))
                .map(|r| bars(&|values| values.get(r).copied().or(mean(values))))
                .collect(),
            ..self.simulated.clone()
        };
        plot::png(&figure)
    }

    fn section(&self) -> Result<Markup, PlotError> {
        let plot = self.plot()?;
        let optional = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.2}"));
        Ok(html! {
            h3 { (self.simulated.paper.title()) ", " (self.simulated.name()) ": " (self.simulated.title) }
            p.soft { "Paper: " (self.simulated.setup) }
            p.soft { "Measured: " (self.setup) }
            (picture(&format!("Bars of {}, measured", self.simulated.title), &plot))
            p.soft { "Bars are relative to " (self.base) ", round by round." }
            table {
                thead { tr { th { "ratio" } th { "at" } th.n { "paper" } th.n { "simulated" } th.n { "measured" } th.n { "least to most" } th.n { "runs" } } }
                tbody { @for row in self.rows() { tr {
                    td { (row.ratio) } td { (row.at) } td.n { (optional(row.paper)) } td.n { (optional(row.simulated)) }
                    td.n { strong { (optional(Some(row.measured.mean))) } }
                    td.n { (format!("{:.2} … {:.2}", row.measured.least, row.measured.most)) } td.n { (row.measured.runs) }
                } } }
            }
            details open {
                summary { "All values, " (self.unit) }
                table {
                    thead { tr { th { "" } @for group in &self.groups { th.n { (group) } } } }
                    tbody { @for (name, groups) in &self.series { tr {
                        td { (name) }
                        @for values in groups { td.n { (Spread::of(values).map_or("–".to_owned(), |s| s.text())) } }
                    } } }
                }
                @if let Some((head, rows)) = self.counted.split_first() { table {
                    thead { tr { @for cell in head { th { (cell) } } } }
                    tbody { @for row in rows { tr { @for cell in row { td { (cell) } } } } }
                } }
            }
        })
    }
}

/// The page: a title, paragraphs on how and where it was measured, and the figures.
///
/// # Errors
///
/// [`PlotError`] when a plot cannot be drawn.
pub fn page(title: &str, about: &[String], figures: &[Measured<'_>]) -> Result<String, PlotError> {
    let sections = figures.iter().map(Measured::section).collect::<Result<Vec<_>, _>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "homenode: " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                @for line in about { p { (line) } }
                p {
                    "A ratio is formed within each round, and its mean is over the rounds; thin lines in the plots and “least to most” span "
                    "the rounds. The paper's averages are over all groups of its figure. A dash means that the paper states no number, or that "
                    "the simulated figure lacks the series."
                }
                @for section in &sections { (section) }
            }
        }
    };
    Ok(page.into_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::Paper;
    use crate::reproduce::draft::{Bars, Draft};

    #[test]
    fn ratios_are_formed_by_round_and_stand_beside_the_paper_and_the_simulation() {
        let mut bars = Bars::new(["rw80", "rw60"]);
        bars.push("NThread", vec![3.0, 6.0]);
        bars.push("NThread_rl", vec![2.0, 4.0]);
        let mut draft = Draft::new(Paper::NThread, "5a", "fio", "four threads");
        draft.point("NThread / NThread_rl", "rw80, rw60", "x", 1.5);
        bars.all(&mut draft, "GB/s");
        let simulated = draft.plot(bars.plot("GB/s"));
        let series = |name: &str, values: [[f64; 2]; 3]| (name.to_owned(), values.map(|v| v.to_vec()).to_vec());
        let measured = Measured {
            simulated: &simulated,
            setup: "small".to_owned(),
            unit: "MB/s",
            groups: ["rw80", "rw60", "ours"].map(str::to_owned).to_vec(),
            published: 2,
            series: vec![
                series("NThread_rl", [[1.0, 2.0], [4.0, 5.0], [1.0, 1.0]]),
                series("NThread", [[2.0, 3.0], [8.0, 5.0], [9.0, 9.0]]),
            ],
            base: "NThread_rl",
            ratios: vec![
                Ratio { of: "NThread", over: "NThread_rl", stated: None },
                Ratio { of: "NThread", over: "nobody", stated: None },
            ],
            counted: Vec::new(),
        };
        let rows = measured.rows();
        let at: Vec<&str> = rows.iter().map(|row| row.at.as_str()).collect();
        assert_eq!(at, ["rw80", "rw60", "ours", "average"], "nothing of what was not measured");
        let (first, average) = (&rows[0], &rows[3]);
        assert_eq!((first.paper, first.simulated), (None, Some(1.5)));
        assert_eq!(first.measured, Spread { mean: 1.75, least: 1.5, most: 2.0, runs: 2 });
        assert_eq!((average.paper, average.simulated), (Some(1.126), Some(1.5)));
        // Rounds: (2 + 2) / 2 and (1.5 + 1) / 2.
        assert_eq!(average.measured, Spread { mean: 1.625, least: 1.25, most: 2.0, runs: 2 });
        let page = page("measured", &["Two nodes.".to_owned()], &[measured]).unwrap();
        for text in ["data:image/png;base64,", "1.13", "1.62", "1.25 … 2.00", "Two nodes."] {
            assert!(page.contains(text), "{text} is missing");
        }
    }
}
