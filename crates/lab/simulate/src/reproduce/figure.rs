//! One figure of a paper, reproduced: numbers, orderings, plot.

use serde::Serialize;

use super::effect::{Effect, Meaning};
pub use crate::papers::Kind;
use crate::papers::{Note, Paper};

/// One figure of a paper, reproduced.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Paper.
    pub paper: Paper,
    /// Number in the paper, such as `5a`.
    pub id: &'static str,
    /// Its subject.
    pub title: &'static str,
    /// How the experiment was set up here.
    pub setup: String,
    /// Its points.
    pub points: Vec<Point>,
    /// The orderings that the paper reads off it.
    pub checks: Vec<Check>,
    /// How it is drawn.
    #[serde(skip)]
    pub plot: Plot,
    /// The same plot for each seed alone; empty where there is only one seed.
    #[serde(skip)]
    pub(super) by_seed: Vec<Plot>,
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
    /// The number that the paper states, if it states one.
    pub paper_value: Option<f64>,
    /// The number that comes out here.
    pub homenode_value: f64,
    /// The lowest and the highest number of any one seed.
    pub range: Option<[f64; 2]>,
    /// The number with the constants alone: nobody waits for anybody. For stated numbers only.
    pub alone_value: Option<f64>,
    /// Whether something was fitted to it.
    pub kind: Kind,
    /// Series that the effect is measured against, at the same point or at the second one; a ratio
    /// needs none.
    #[serde(skip)]
    pub(super) against: Option<&'static [String; 2]>,
}

/// A statement of the paper about its figure without a number, such as one system beating another.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The paper's statement.
    pub statement: String,
    /// Whether it holds here.
    pub holds: bool,
    /// The figures here.
    pub seen: String,
    /// Whether something was fitted to it.
    pub kind: Kind,
    /// With how many of the seeds alone it holds, and how many there are.
    pub seeds: Option<[usize; 2]>,
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

impl Figure {
    /// Its name, such as `Figure 5a` or `Table II`.
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

    /// The number of a series at a point.
    pub fn point(&self, series: &str, point: &str) -> Option<&Point> {
        self.points.iter().find(|p| p.series == series && p.point == point)
    }

    /// Points for which the paper states a number.
    pub fn stated(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|p| p.paper_value.is_some())
    }

    /// A stated number and ours as ratios; absent for levels.
    pub fn effect(&self, point: &Point) -> Option<Effect> {
        let paper = self.ratio(point, |p| p.paper_value)?;
        let homenode = self.ratio(point, |p| Some(p.homenode_value))?;
        Some(Effect { paper, homenode, alone: self.ratio(point, |p| p.alone_value) })
    }

    /// The lowest and the highest ratio of any one seed.
    pub fn effect_range(&self, point: &Point) -> Option<[f64; 2]> {
        let [low, high] = [0, 1].map(|end| self.ratio(point, |p| p.range.map(|r| r[end])));
        let [low, high] = [low?, high?];
        Some([low.min(high), low.max(high)])
    }

    fn ratio(&self, point: &Point, value: impl Fn(&Point) -> Option<f64>) -> Option<f64> {
        match point.against {
            Some([series, at]) => Some(value(point)? / value(self.point(series, at)?)?),
            None => Meaning::of(point.unit).ratio(value(point)?),
        }
    }

    /// Whether the number is as near to the stated one as asked; absent where none is stated.
    pub fn met(&self, point: &Point) -> Option<bool> {
        self.met_by(point, |p| Some(p.homenode_value))
    }

    /// Whether the constants alone come as near.
    pub fn alone_met(&self, point: &Point) -> Option<bool> {
        self.met_by(point, |p| p.alone_value)
    }

    /// Whether no effect at all comes as near; absent for levels.
    pub fn null_met(&self, point: &Point) -> Option<bool> {
        self.effect(point).map(|effect| Meaning::Ratio.met(effect.paper, 1.0))
    }

    fn met_by(&self, point: &Point, value: impl Fn(&Point) -> Option<f64>) -> Option<bool> {
        let stated = self.ratio(point, |p| p.paper_value).zip(self.ratio(point, &value));
        match (point.against, stated) {
            (Some(_), stated) => stated.map(|(paper, here)| Meaning::Ratio.met(paper, here)),
            (None, _) => Some(Meaning::of(point.unit).met(point.paper_value?, value(point)?)),
        }
    }

    /// Whether a number that counts is not as near to the stated one as asked.
    pub fn missed(&self, point: &Point) -> bool {
        point.kind.counts() && self.met(point) == Some(false)
    }

    /// Why a stated number was missed.
    pub(super) fn cause(&self, point: &Point) -> Option<&'static Note> {
        self.paper.cause([self.id, &point.series, &point.point])
    }

    /// Why an ordering was missed.
    pub(super) fn cause_of(&self, check: &Check) -> Option<&'static Note> {
        self.paper.cause([self.id, "ordering", &check.statement])
    }
}

impl Check {
    /// Whether an ordering that counts does not hold.
    pub fn missed(&self) -> bool {
        self.kind.counts() && !self.holds
    }
}
