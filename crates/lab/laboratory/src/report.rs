//! What a figure's runs say: effects beside the paper's, waits, and rows for other programs.
//!
//! **Approach.** An effect is the mean, over its groups, of the ratio of two series; with several
//! seeds each is computed by itself, and the mean is given with the lowest and the highest. It is
//! judged by one rule: within a quarter of the stated effect, or three points where that is small,
//! it is met. Beside it stands what "no effect at all" would score.
//!
//! **Limits.** The band is a convention. The papers print no errors of measurement.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::experiment::{Case, Effect, Experiment, Outcome};
use crate::machine::Wait;

/// Fraction of a stated effect within which it counts as met.
pub const BAND: f64 = 0.25;
/// Points within which a small effect counts as met.
pub const POINTS: f64 = 3.0;

/// How near a ratio is to a stated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within the band.
    Met,
    /// On the stated side of 1, by more than [`POINTS`].
    Sign,
    /// No further than [`POINTS`] from 1.
    None,
    /// On the other side.
    Reversed,
    /// An effect where the paper has none.
    Some,
}

impl Verdict {
    /// Of a ratio, where the paper states another.
    pub fn of(paper: f64, here: f64) -> Self {
        let [stated, points] = [paper, here].map(|ratio| 100.0 * (ratio - 1.0));
        // A value on the edge of the band is in it, whatever its last bit.
        match (points - stated).abs() <= POINTS.max(BAND * stated.abs()) * (1.0 + 1e-9) {
            true => Self::Met,
            false if stated.abs() < 1e-9 => Self::Some,
            false if points.abs() <= POINTS => Self::None,
            false if (stated > 0.0) == (points > 0.0) => Self::Sign,
            false => Self::Reversed,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Sign => "missed, right sign",
            Self::None => "missed, no effect",
            Self::Reversed => "missed, reversed",
            Self::Some => "missed, an effect",
        }
    }
}

/// The outcomes of a figure, by bar and seed.
#[derive(Clone, Debug, Default)]
pub struct Results(BTreeMap<(usize, usize, u64), Outcome>);

impl Results {
    pub fn add(&mut self, case: Case, seed: u64, outcome: Outcome) {
        self.0.insert((case.point, case.series, seed), outcome);
    }

    pub fn seeds(&self) -> Vec<u64> {
        let all: std::collections::BTreeSet<u64> = self.0.keys().map(|key| key.2).collect();
        all.into_iter().collect()
    }

    fn of(&self, point: usize, series: usize) -> impl Iterator<Item = &Outcome> {
        self.0.range((point, series, 0)..=(point, series, u64::MAX)).map(|(_, outcome)| outcome)
    }

    /// A bar: the mean over the seeds.
    pub fn mean(&self, point: usize, series: usize) -> Option<f64> {
        mean(self.of(point, series).map(|outcome| outcome.value))
    }

    /// The lowest and the highest of a bar over the seeds.
    pub fn range(&self, point: usize, series: usize) -> Option<(f64, f64)> {
        let values = || self.of(point, series).map(|outcome| outcome.value);
        Some((values().reduce(f64::min)?, values().reduce(f64::max)?))
    }

    /// An effect in each seed; empty if one of its bars was not run.
    pub fn effect(&self, experiment: &Experiment, effect: &Effect) -> Vec<f64> {
        let series = |name: &str| experiment.series.iter().position(|series| series.name == *name);
        let (Some(of), Some(over)) = (series(&effect.of), series(&effect.over)) else { return Vec::new() };
        let at = |name: &String| experiment.point.iter().position(|point| point.name == *name);
        let points: Vec<usize> = match effect.points.is_empty() {
            true => (0..experiment.point.len()).collect(),
            false => effect.points.iter().filter_map(at).collect(),
        };
        let others: Vec<usize> = effect.over_points.iter().filter_map(at).collect();
        let others = if others.is_empty() { &points } else { &others };
        let of_seed = |seed: u64| {
            let value = |point, series| self.0.get(&(point, series, seed)).map(|outcome| outcome.value);
            let ratio = |(a, b): (&usize, &usize)| Some(value(*a, of)? / value(*b, over)?);
            let ratios: Option<Vec<f64>> = points.iter().zip(others).map(ratio).collect();
            mean(ratios?.into_iter())
        };
        self.seeds().into_iter().filter_map(of_seed).collect()
    }

    pub fn csv(&self, experiment: &Experiment) -> String {
        let waits = Wait::ALL.map(|(_, name)| format!("{name}_wait")).join(",");
        let mut text = format!("figure,point,series,seed,value,unit,operations,calls,moves,file_moves,pulls,{waits}\n");
        for ((point, series, seed), outcome) in &self.0 {
            let (Some(point), Some(series)) = (experiment.point.get(*point), experiment.series.get(*series)) else {
                continue;
            };
            let Outcome { value, done, moves, pulls, waits, .. } = outcome;
            let waits = waits.map(|wait| format!("{wait:.4}")).join(",");
            _ = writeln!(
                text,
                "{},{},{},{seed},{value:.3},{},{},{},{},{},{pulls},{waits}",
                quoted(&experiment.figure),
                quoted(&point.name),
                quoted(&series.name),
                experiment.value.unit(),
                done.operations,
                done.calls,
                moves.0,
                moves.1,
            );
        }
        text
    }

    /// Tables for people: bars, waits and effects.
    pub fn markdown(&self, experiment: &Experiment) -> String {
        let Experiment { paper, figure, title, factor, seconds, .. } = experiment;
        let mut text = format!("## {paper}, Fig. {figure}\n\n{title}. {}.", experiment.value.unit());
        let seeds = self.seeds();
        _ = writeln!(
            text,
            " Times are {factor} times as short as in the paper: a run of {seconds} s takes {:.0} ms. Seeds: {}.\n",
            1e3 * seconds / factor,
            seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        );
        let series: Vec<usize> =
            (0..experiment.series.len()).filter(|series| self.mean(0, *series).is_some()).collect();
        let names = series.iter().filter_map(|at| experiment.series.get(*at)).map(|series| series.name.as_str());
        text.push_str(&row(std::iter::once("").chain(names).map(str::to_owned)));
        text.push_str(&row(std::iter::once("---".to_owned()).chain(series.iter().map(|_| "---:".to_owned()))));
        for (at, point) in experiment.point.iter().enumerate() {
            let value = |series: &usize| self.mean(at, *series).map_or_else(String::new, number);
            text.push_str(&row(std::iter::once(point.name.clone()).chain(series.iter().map(value))));
        }
        text.push_str("\nHow many threads wait, on average, for what; cores at work and controllers by node; moves of threads.\n\n");
        let kinds = Wait::ALL.iter().map(|(_, name)| (*name).to_owned());
        let heads = ["cores", "controllers", "moves"].map(str::to_owned);
        text.push_str(&row(std::iter::once("series".to_owned()).chain(kinds).chain(heads)));
        text.push_str(&row(std::iter::once("---".to_owned()).chain((0..8).map(|_| "---:".to_owned()))));
        for at in &series {
            text.push_str(&row(self.waits(experiment, *at)));
        }
        if !experiment.effect.is_empty() {
            text.push_str("\n| effect | paper | measured | kind | null | verdict |\n|---|---:|---:|---|---|---|\n");
        }
        for effect in &experiment.effect {
            text.push_str(&self.judged(experiment, effect));
        }
        text
    }

    fn waits(&self, experiment: &Experiment, series: usize) -> Vec<String> {
        let all: Vec<&Outcome> = (0..experiment.point.len()).flat_map(|point| self.of(point, series)).collect();
        let of = |value: &dyn Fn(&Outcome) -> f64| mean(all.iter().map(|outcome| value(outcome))).unwrap_or_default();
        let each = |values: &dyn Fn(&Outcome) -> &[f64], shown: fn(f64) -> String| {
            let nodes = all.first().map_or(0, |outcome| values(outcome).len());
            let mean = |node: usize| of(&|outcome: &Outcome| values(outcome).get(node).copied().unwrap_or_default());
            (0..nodes).map(|node| shown(mean(node))).collect::<Vec<_>>().join(", ")
        };
        let name = experiment.series.get(series).map_or("", |series| series.name.as_str());
        let waits = (0..Wait::ALL.len()).map(|kind| {
            format!("{:.2}", of(&|outcome: &Outcome| outcome.waits.get(kind).copied().unwrap_or_default()))
        });
        let mut cells: Vec<String> = std::iter::once(name.to_owned()).chain(waits).collect();
        cells.push(each(&|outcome| &outcome.cores, |cores| format!("{cores:.1}")));
        cells.push(each(&|outcome| &outcome.controllers, |share| format!("{:.0} %", 100.0 * share)));
        cells.push(format!("{:.1}", of(&|outcome: &Outcome| outcome.moves.0 as f64)));
        cells
    }

    fn judged(&self, experiment: &Experiment, effect: &Effect) -> String {
        let Effect { of, over, points, paper, kind, source, .. } = effect;
        let values = self.effect(experiment, effect);
        let points = if points.is_empty() { "average".to_owned() } else { points.join(", ") };
        let others = effect.over_points.join(", ");
        let name = match others.is_empty() {
            true => format!("{of} / {over}, {points} ({source})"),
            false => format!("{points} / {others} ({source})"),
        };
        let (low, high) = values.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(*v), high.max(*v)));
        let (measured, verdict) = match mean(values.iter().copied()) {
            None => ("not run".to_owned(), ""),
            Some(mean) => {
                let spread = if values.len() > 1 { format!(" ({low:.2} to {high:.2})") } else { String::new() };
                (format!("{mean:.2}{spread}"), Verdict::of(*paper, mean).name())
            }
        };
        let null = if Verdict::of(*paper, 1.0) == Verdict::Met { "met" } else { "missed" };
        row([name, format!("{paper:.2}"), measured, kind.name().to_owned(), null.to_owned(), verdict.to_owned()])
    }
}

/// A text field of a row.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

fn number(value: f64) -> String {
    match value {
        value if value >= 10_000.0 => format!("{value:.0}"),
        value if value >= 100.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_of_the_sign_and_the_band() {
        let of = [(1.4, 1.5), (1.4, 1.51), (1.4, 1.02), (1.4, 0.9), (0.6, 0.8), (0.6, 1.1), (1.0, 1.03), (1.02, 1.0)];
        use Verdict::{Met, None, Reversed, Sign, Some};
        assert_eq!([0.9, 1.1].map(|here| Verdict::of(1.0, here)), [Some; 2]);
        assert_eq!(
            of.map(|(paper, here)| Verdict::of(paper, here)),
            [Met, Sign, None, Reversed, Sign, Reversed, Met, Met]
        );
    }
}
