//! The papers' figures measured on a wall clock: paper, simulated and measured side by side.
//!
//! **Problem.** The simulator shares its equations with the policies that it judges. A measurement
//! does not, and a reader wants the three numbers in one line.
//!
//! **Approach.** Who measures gives the values of each bar, run by run. The ratios of a figure are
//! formed within each round, over the same groups of the paper, the simulation and the measurement.
//! A measured effect is scored as a simulated one is ([`Verdict`]), beside no effect and the
//! constants alone. The page looks as that of `homenode reproduce` and needs nothing else;
//! [`table`] has all stated effects.
//!
//! **Limits.** The paper's averages are over all groups of its figure, even where fewer were
//! measured; the table says of how many.

use maud::{Markup, html};
use serde::Serialize;

use super::report::{self, picture};
use super::{Effect, Figure, Plot, PlotError, Point, Verdict, plot};
use crate::papers::Paper;

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
    /// How many of the groups the average is over; others follow them.
    pub published: usize,
    /// How many groups the paper's average is over.
    pub of_published: usize,
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
    /// As the constants alone have it; stated effects only.
    pub alone: Option<f64>,
    /// As measured.
    pub measured: Spread,
    /// Of the mean, where the paper states an effect.
    pub verdict: Option<Verdict>,
    /// Series and point of the stated effect.
    #[serde(skip)]
    stated: Option<[String; 2]>,
}

impl Row {
    /// What the rule says of it, and of the two models that know less.
    pub fn scored(&self) -> String {
        let Some((paper, verdict)) = self.paper.zip(self.verdict) else { return "–".to_owned() };
        let met = |value: f64| Verdict::of(paper, value) == Verdict::Met;
        let also = [(met(1.0), "no effect"), (self.alone.is_some_and(met), "the constants alone")];
        let also: Vec<&str> = also.iter().filter(|a| a.0).map(|a| a.1).collect();
        match also.is_empty() {
            true => verdict.name().to_owned(),
            false => format!("{}; met by {}", verdict.name(), also.join(" and ")),
        }
    }
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

    /// The groups that a point of the paper's is over, in its own words: one, a list of them, the
    /// average, the average without one, or the best or worst of those whose names begin so. None
    /// if one was not measured.
    fn groups_of(&self, point: &str, ratio: impl Fn(usize) -> f64) -> Option<Vec<usize>> {
        let published = 0..self.published;
        let at = |name: &str| published.clone().find(|g| self.groups[*g] == name);
        let named = |names: &str| -> Vec<usize> {
            let begins = |g: &usize| names.split(", ").any(|name| self.groups[*g].starts_with(&format!("{name}_")));
            published.clone().filter(begins).filter(|g| ratio(*g).is_finite()).collect()
        };
        let by = |a: &usize, b: &usize| ratio(*a).total_cmp(&ratio(*b));
        if let Some(names) = point.strip_suffix(", best") {
            return named(names).into_iter().max_by(by).map(|g| vec![g]);
        }
        if let Some(names) = point.strip_suffix(", worst") {
            return named(names).into_iter().min_by(by).map(|g| vec![g]);
        }
        match point.strip_prefix("average without ") {
            Some(other) => Some(published.clone().filter(|g| self.groups[*g] != other).collect()),
            None if point == "average" => Some(published.collect()),
            None => point.split(", ").map(at).collect(),
        }
    }

    /// All ratios: of each group, over the groups for which the paper states one, and the average.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for Ratio { of, over } in &self.ratios {
            let ratio = format!("{of} / {over}");
            let runs = |g: usize| self.by_round(of, over, &[g]).len();
            let stated: Vec<&Point> = self.simulated.stated().filter(|p| p.series == ratio).collect();
            let mut row = |at: &str, groups: &[usize], stated: Option<&Point>| {
                // An average over other runs than those of its parts would be none of them.
                if groups.windows(2).any(|pair| runs(pair[0]) != runs(pair[1])) {
                    return;
                }
                let Some(measured) = Spread::of(&self.by_round(of, over, groups)) else { return };
                let effect: Option<Effect> = stated.and_then(|point| self.simulated.effect(point));
                rows.push(Row {
                    ratio: ratio.clone(),
                    at: at.to_owned(),
                    paper: effect.map(|e| e.paper),
                    simulated: self.simulated(of, over, groups).or(effect.map(|e| e.homenode)),
                    alone: effect.and_then(|e| e.alone),
                    verdict: effect.map(|e| Verdict::of(e.paper, measured.mean)),
                    measured,
                    stated: stated.map(|p| [p.series.clone(), p.point.clone()]),
                });
            };
            for (g, group) in self.groups.iter().enumerate() {
                row(group, &[g], stated.iter().find(|p| p.point == *group).copied());
            }
            for point in stated.iter().filter(|p| !self.groups.contains(&p.point)) {
                let mean = |g| Spread::of(&self.by_round(of, over, &[g])).map_or(f64::NAN, |spread| spread.mean);
                let groups = self.groups_of(&point.point, mean);
                let Some(groups) = groups.filter(|groups| !groups.is_empty()) else { continue };
                let fewer = point.point.starts_with("average") && self.published < self.of_published;
                let part = if fewer { format!(", {} of {}", self.published, self.of_published) } else { String::new() };
                row(&format!("{}{part}", point.point), &groups, Some(point));
            }
            if self.published > 1 && !stated.iter().any(|p| p.point.starts_with("average")) {
                row("average", &(0..self.published).collect::<Vec<_>>(), None);
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
                thead { tr { th { "ratio" } th { "at" } th.n { "paper" } th.n { "simulated" } th.n { "measured" } th.n { "least to most" } th.n { "runs" } th { "by the rule" } } }
                tbody { @for row in self.rows() { tr {
                    td { (row.ratio) } td { (row.at) } td.n { (optional(row.paper)) } td.n { (optional(row.simulated)) }
                    td.n { strong { (optional(Some(row.measured.mean))) } }
                    td.n { (format!("{:.2} … {:.2}", row.measured.least, row.measured.most)) } td.n { (row.measured.runs) }
                    td { (row.scored()) }
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

/// A cell of a table in Markdown.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Every effect that the papers of these figures state, in Markdown: as stated, simulated and
/// measured, the verdict on both, and the cause of a miss.
pub fn table(figures: &[Figure], measured: &[Measured<'_>]) -> String {
    let mut text =
        "| effect | paper | simulated | measured (least to most) | simulated: | measured: | cause of a miss |\n\
                    | --- | ---: | ---: | ---: | --- | --- | --- |\n"
            .to_owned();
    for figure in figures {
        let rows: Vec<Row> = measured
            .iter()
            .filter(|m| (m.simulated.paper, m.simulated.id) == (figure.paper, figure.id))
            .flat_map(Measured::rows)
            .collect();
        for point in figure.stated() {
            let Some(effect) = figure.effect(point) else { continue };
            let row = rows
                .iter()
                .find(|row| row.stated.as_ref().is_some_and(|at| *at == [point.series.as_str(), point.point.as_str()]));
            text.push_str(&line(figure, point, effect, row));
        }
    }
    text
}

fn line(figure: &Figure, point: &Point, effect: Effect, row: Option<&Row>) -> String {
    let counts = point.kind.counts();
    let simulated = Verdict::of(effect.paper, effect.homenode);
    // A share is met in points of itself, not of the ratio that it stands for.
    let met = figure.met(point) == Some(true);
    let simulated = if met { Verdict::Met } else { simulated };
    let scored = if counts { simulated.name() } else { "not scored" };
    let mut causes = Vec::new();
    if counts && !met {
        causes.push(figure.cause(point).map_or("unknown".to_owned(), |n| n.why.clone()));
    }
    let missed = row.and_then(|row| row.verdict).filter(|verdict| *verdict != Verdict::Met);
    if missed.is_some() {
        let at = [figure.id, point.series.as_str(), point.point.as_str()];
        causes.push(format!("measured: {}", measured_cause(figure.paper, at).unwrap_or("not known yet")));
    }
    let title = format!("{} {}: {}, {}", figure.paper.name(), figure.id, point.series, point.point);
    format!(
        "| {} | {:.2} | {:.2} | {} | {}, {scored} | {} | {} |\n",
        cell(&title),
        effect.paper,
        effect.homenode,
        row.map_or("–".to_owned(), |row| row.measured.text()),
        point.kind.name(),
        row.map_or("–".to_owned(), Row::scored),
        cell(&causes.join(" "))
    )
}

/// Why a measured effect is missed, where that is known.
const MEASURED_CAUSES: &[(Paper, [&str; 3], &str)] = &[
    (Paper::Dragonfly, ["6a", "Dragonfly / NThread", "videoserver"], CEILING),
    (Paper::Dragonfly, ["6a", "Dragonfly / NThread", "average without fileserver"], CEILING),
];
const CEILING: &str = "Two nodes' controllers carry no more than twice what one does, so 7.1 cannot come out.";

fn measured_cause(paper: Paper, at: [&str; 3]) -> Option<&'static str> {
    MEASURED_CAUSES.iter().find(|cause| (cause.0, cause.1) == (paper, at)).map(|cause| cause.2)
}

/// The page: a title, paragraphs on how and where it was measured, and the figures.
///
/// # Errors
///
/// [`PlotError`] when a plot cannot be drawn.
pub fn page(title: &str, about: &[String], figures: &[Measured<'_>]) -> Result<String, PlotError> {
    let sections = figures.iter().map(Measured::section).collect::<Result<Vec<_>, _>>()?;
    let body = html! {
        h1 { (title) }
        @for line in about { p { (line) } }
        p {
            "A ratio is formed within each round, and its mean is over the rounds; thin lines in the plots and “least to most” span "
            "the rounds. The paper's averages are over all groups of its figure. A dash means that the paper states no number, or that "
            "the simulated figure lacks the series."
        }
        @for section in &sections { (section) }
    };
    Ok(report::page(title, &body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::Paper;
    use crate::reproduce::draft::{Bars, Draft};

    #[test]
    fn every_cause_of_a_measured_miss_is_of_a_number_that_is_stated() {
        for (paper, [figure, series, point], _) in MEASURED_CAUSES {
            assert!(paper.stated(figure, series, point).is_some(), "{figure}: {series}, {point}");
        }
    }

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
            of_published: 6,
            series: vec![
                series("NThread_rl", [[1.0, 2.0], [4.0, 5.0], [1.0, 1.0]]),
                series("NThread", [[2.0, 3.0], [8.0, 5.0], [9.0, 9.0]]),
            ],
            base: "NThread_rl",
            ratios: vec![Ratio { of: "NThread", over: "NThread_rl" }, Ratio { of: "NThread", over: "nobody" }],
            counted: Vec::new(),
        };
        let rows = measured.rows();
        let at: Vec<&str> = rows.iter().map(|row| row.at.as_str()).collect();
        assert_eq!(at, ["rw80", "rw60", "ours", "rw80, rw60", "average"], "nothing of what was not measured");
        let (first, average) = (&rows[0], &rows[3]);
        assert_eq!(rows[4].paper, None, "the paper states no average of these");
        assert_eq!((first.paper, first.simulated), (None, Some(1.5)));
        assert_eq!(first.measured, Spread { mean: 1.75, least: 1.5, most: 2.0, runs: 2 });
        assert_eq!((average.paper, average.simulated), (Some(1.126), Some(1.5)));
        // Stated 1.126: a gain five times as large is of the right sign, and missed.
        assert_eq!((first.verdict, average.verdict), (None, Some(Verdict::Sign)));
        assert_eq!(average.scored(), "missed, right sign");
        let stated = table(std::slice::from_ref(&simulated), std::slice::from_ref(&measured));
        let line = stated.lines().nth(2).unwrap();
        assert!(
            line.contains("| 1.13 | 1.50 | 1.62 (1.25 to 2.00) | dependent, missed, right sign | missed"),
            "{line}"
        );
        // Rounds: (2 + 2) / 2 and (1.5 + 1) / 2.
        assert_eq!(average.measured, Spread { mean: 1.625, least: 1.25, most: 2.0, runs: 2 });
        let page = page("measured", &["Two nodes.".to_owned()], &[measured]).unwrap();
        for text in ["data:image/png;base64,", "1.13", "1.62", "1.25 … 2.00", "Two nodes."] {
            assert!(page.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn the_best_and_the_worst_bar_are_of_those_whose_names_begin_so() {
        let mut draft = Draft::new(Paper::NThread, "4", "fio", "threads moved");
        draft.point("moved / stayed", "1 KB, best", "x", 1.1);
        draft.point("moved / stayed", "4 KB, 16 KB, worst", "x", 0.9);
        let simulated = draft.plot(Bars::new(["1 KB_8 rw80"]).plot("x"));
        let of = |name: &str, values: [f64; 5]| (name.to_owned(), values.map(|value| vec![value]).to_vec());
        let measured = Measured {
            simulated: &simulated,
            setup: String::new(),
            unit: "MB/s",
            groups: ["1 KB_8 rw80", "1 KB_16 rw80", "4 KB_8 rw80", "16 KB_8 rw80", "16 KB_8 rw20"]
                .map(str::to_owned)
                .to_vec(),
            published: 5,
            of_published: 5,
            series: vec![of("stayed", [2.0; 5]), of("moved", [2.2, 2.6, 3.0, 1.8, 1.2])],
            base: "stayed",
            ratios: vec![Ratio { of: "moved", over: "stayed" }],
            counted: Vec::new(),
        };
        let found = |at: &str| measured.rows().into_iter().find(|row| row.at == at).unwrap().measured.mean;
        assert_eq!(found("1 KB, best"), 1.3);
        assert_eq!(found("4 KB, 16 KB, worst"), 0.6);
    }
}
