//! A figure in the making.

use super::effect::{MARGIN, POINTS};
use super::figure::{Check, Figure, Kind, Plot, Point};
use super::fitted;
use crate::papers::Paper;
use crate::run::RunError;

/// Takes an experiment's numbers and orderings.
pub(crate) struct Draft {
    figure: Figure,
}

impl Draft {
    pub fn new(paper: Paper, id: &'static str, title: &'static str, setup: impl Into<String>) -> Self {
        let plot = Plot::Bars { y: "", groups: Vec::new(), series: Vec::new() };
        let (points, checks, by_seed) = (Vec::new(), Vec::new(), Vec::new());
        Self { figure: Figure { paper, id, title, setup: setup.into(), points, checks, plot, by_seed } }
    }

    /// Adds a number, beside the one that the paper states for the same series and point.
    pub fn point(&mut self, series: impl Into<String>, point: impl Into<String>, unit: &'static str, value: f64) {
        let (series, point) = (series.into(), point.into());
        let Figure { paper, id, .. } = self.figure;
        let stated = paper.stated(id, &series, &point);
        let kind = fitted::kind(paper, [id, &series, &point]);
        self.figure.points.push(Point {
            series,
            point,
            unit,
            paper_value: stated.map(|s| s.value),
            homenode_value: value,
            range: None,
            alone_value: None,
            kind,
            against: stated.and_then(|s| s.against.as_ref()),
        });
    }

    /// Adds an ordering.
    pub fn check(&mut self, statement: impl Into<String>, holds: bool, seen: impl Into<String>) {
        let statement = statement.into();
        let kind = fitted::kind(self.figure.paper, [self.figure.id, "ordering", &statement]);
        self.figure.checks.push(Check { statement, holds, seen: seen.into(), kind, seeds: None });
    }

    /// Adds that `a` is better than `b`, by more than the margin.
    pub fn better(&mut self, statement: impl Into<String>, a: f64, b: f64) {
        self.check(statement, a > (1.0 + MARGIN) * b, format!("{:.2} ×", a / b));
    }

    /// Adds that `a` is similar to `b`. If the two are the same to the last bit, nothing differed
    /// between the runs, and the ordering shows nothing.
    pub fn similar(&mut self, statement: impl Into<String>, a: f64, b: f64) {
        self.check(statement, (a / b - 1.0).abs() <= MARGIN, format!("{:.2} ×", a / b));
        if let Some(check) = self.figure.checks.last_mut().filter(|_| a == b) {
            check.kind = check.kind.max(Kind::Structural);
        }
    }

    /// Adds that `a` per cent is more than `b` per cent, by more than the band of a small effect.
    pub fn more_points(&mut self, statement: impl Into<String>, a: f64, b: f64) {
        self.check(statement, a > b + POINTS, format!("{a:.1} % and {b:.1} %"));
    }

    /// The order of those that `who` is compared with, as it follows from the stated ratios.
    /// Neighbours within the margin have none. An ordering can say no more than the two ratios it
    /// follows from.
    pub fn ranking(&mut self, who: &str, others: &[&str], point: &str) {
        let ratio = |other: &&str| {
            let of = self.figure.point(&format!("{who} / {other}"), point)?;
            Some((of.paper_value?, of.homenode_value, of.kind))
        };
        let mut ratios: Vec<_> = others.iter().filter_map(|other| ratio(other).map(|r| (*other, r))).collect();
        ratios.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
        for pair in ratios.windows(2) {
            let [(better, (paper, here, kind)), (worse, (paper_worse, here_worse, kind_worse))] = [pair[0], pair[1]];
            if paper_worse > (1.0 + MARGIN) * paper {
                let when = if point == "average" { "on average".to_owned() } else { format!("for {point}") };
                self.better(format!("{better} beats {worse} {when}"), here_worse, here);
                self.restates(kind.max(kind_worse));
            }
        }
    }

    /// Says that the last ordering follows from numbers of this kind.
    pub fn restates(&mut self, kind: Kind) {
        if let Some(check) = self.figure.checks.last_mut() {
            // Where a number was calibrated, its ordering restates that.
            let kind = if kind == Kind::Calibrated { Kind::Dependent } else { kind };
            check.kind = check.kind.max(kind);
        }
    }

    /// The kind of a number that was added.
    pub fn kind(&self, series: &str, point: &str) -> Kind {
        self.figure.point(series, point).map_or(Kind::Predicted, |p| p.kind)
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

    /// Adds a series of results, if all runs gave one.
    pub fn run(
        &mut self,
        series: impl Into<String>,
        values: impl Iterator<Item = Result<f64, RunError>>,
    ) -> Result<(), RunError> {
        self.push(series, values.collect::<Result<_, _>>()?);
        Ok(())
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

    /// Every series relative to one of them.
    pub fn relative_to(&self, base: &str) -> Self {
        let mut relative = Self::new(self.groups.clone());
        for (name, values) in &self.series {
            relative.push(name, values.iter().zip(self.of(base)).map(|(v, b)| v / b).collect());
        }
        relative
    }

    pub fn plot(self, y: &'static str) -> Plot {
        Plot::Bars { y, groups: self.groups, series: self.series }
    }
}
