//! Scores effects, not ratios.
//!
//! **Problem.** A ratio near 1 meets any generous band: a model in which nothing has an effect
//! "reproduces" a gain of 10 %.
//!
//! **Approach.** The effect of a ratio is its distance from 1, with its sign; the effect of a share
//! is the share itself; both are counted in points. A stated effect is met within [`BAND`] of it,
//! or within [`POINTS`] where it is small. A stated amount that is compared with nothing (seconds,
//! GB/s) has no effect; it is a *level* and met within the same fraction of itself.
//!
//! **Limits.** The band is a convention. The papers print no errors of measurement.

use serde::Serialize;

/// Fraction of a stated effect, or level, within which it counts as met.
pub const BAND: f64 = 0.25;
/// Points within which a small effect counts as met.
pub const POINTS: f64 = 3.0;
/// Fraction within which two values count as similar. One is better than the other only beyond it.
pub const MARGIN: f64 = 0.08;

/// The meaning of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A ratio to something else; 1 is no effect.
    Ratio,
    /// Per cent less of something.
    Less,
    /// Per cent more of something.
    More,
    /// An amount.
    Level,
}

impl Meaning {
    pub fn of(unit: &str) -> Self {
        match unit {
            "%" => Self::Less,
            "% more" => Self::More,
            _ if unit == "x" || unit.starts_with("x ") => Self::Ratio,
            _ => Self::Level,
        }
    }

    /// The ratio that a value stands for.
    pub fn ratio(self, value: f64) -> Option<f64> {
        match self {
            Self::Ratio => Some(value),
            Self::Less => Some(1.0 - value / 100.0),
            Self::More => Some(1.0 + value / 100.0),
            Self::Level => None,
        }
    }

    /// The effect of a value, in points.
    fn points(self, value: f64) -> f64 {
        match self {
            Self::Ratio => 100.0 * (value - 1.0),
            Self::Less | Self::More | Self::Level => value,
        }
    }

    /// Whether a value is as near to the stated one as asked.
    pub fn met(self, stated: f64, value: f64) -> bool {
        let (stated, value) = (self.points(stated), self.points(value));
        let least = if self == Self::Level { 0.0 } else { POINTS };
        // A value on the edge of the band is in it, whatever its last bit.
        (value - stated).abs() <= least.max(BAND * stated.abs()) * (1.0 + 1e-9)
    }
}

/// Half of the band around a stated ratio.
pub(super) fn band(ratio: f64) -> f64 {
    (POINTS / 100.0).max(BAND * (ratio - 1.0).abs())
}

/// A stated effect beside what comes out, all as ratios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// In the paper.
    pub paper: f64,
    /// Here.
    pub homenode: f64,
    /// With the constants alone: nobody waits for anybody.
    pub alone: Option<f64>,
}

impl Effect {
    /// How many times too large or too small a ratio is, as a logarithm.
    fn off(stated: f64, ratio: f64) -> f64 {
        // A run that takes no time at all, or less, is as wrong as one of a hundredth.
        (ratio.max(0.01) / stated.max(0.01)).ln().abs()
    }
}

/// A ratio beside a stated one, by the rule for all: its sign, and the band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Within the band.
    Met,
    /// On the stated side of 1, by more than [`POINTS`].
    Sign,
    /// No further than [`POINTS`] from 1.
    None,
    /// On the other side.
    Reversed,
}

impl Verdict {
    /// Of a ratio, where the paper states another.
    pub fn of(paper: f64, here: f64) -> Self {
        let (stated, points) = (Meaning::Ratio.points(paper), Meaning::Ratio.points(here));
        match () {
            () if Meaning::Ratio.met(paper, here) => Self::Met,
            () if points.abs() <= POINTS => Self::None,
            () if (stated > 0.0) == (points > 0.0) => Self::Sign,
            () => Self::Reversed,
        }
    }

    /// Words for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Sign => "missed, right sign",
            Self::None => "missed, no effect",
            Self::Reversed => "missed, reversed",
        }
    }
}

/// How near some stated numbers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Stated effects.
    pub effects: usize,
    /// Of these, met.
    pub met: usize,
    /// Of these, met by the null model: no effect anywhere.
    pub null_met: usize,
    /// Of these, met by the constants alone.
    pub alone_met: usize,
    /// Geometric mean of how many times the ratios are too large or too small, minus 1.
    pub error: f64,
    /// The same of the null model.
    pub null_error: f64,
    /// The same of the constants alone.
    pub alone_error: f64,
    /// Stated levels.
    pub levels: usize,
    /// Of these, met.
    pub levels_met: usize,
}

/// Adds up a [`Tally`].
#[derive(Default)]
pub(super) struct Count {
    tally: Tally,
    logs: [f64; 3],
}

impl Count {
    /// Adds a stated number. `met`, `null` and `alone`: whether homenode, the null model and the
    /// constants alone meet it.
    pub fn add(&mut self, effect: Option<Effect>, met: bool, null: bool, alone: bool) {
        let t = &mut self.tally;
        let Some(effect) = effect else {
            t.levels += 1;
            t.levels_met += usize::from(met);
            return;
        };
        t.effects += 1;
        t.met += usize::from(met);
        t.null_met += usize::from(null);
        t.alone_met += usize::from(alone);
        for (sum, ratio) in self.logs.iter_mut().zip([effect.homenode, 1.0, effect.alone.unwrap_or(1.0)]) {
            *sum += Effect::off(effect.paper, ratio);
        }
    }

    pub fn tally(self) -> Tally {
        let n = self.tally.effects.max(1) as f64;
        let [error, null_error, alone_error] = self.logs.map(|sum| (sum / n).exp_m1());
        Tally { error, null_error, alone_error, ..self.tally }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_that_comes_out_as_a_loss_is_missed() {
        // −12.5 % where the paper says +2 %: ratios 0.875 and 1.02 differ by 14 %.
        assert!(!Meaning::Less.met(2.0, -12.5));
        assert!(!Meaning::Ratio.met(1.02, 0.875));
    }

    #[test]
    fn a_verdict_is_of_the_sign_and_the_band() {
        let of = [(1.4, 1.5), (1.4, 1.2), (1.4, 1.02), (1.4, 0.9), (0.6, 0.8), (0.6, 1.1), (1.0, 1.02), (1.02, 1.0)];
        let verdicts = of.map(|(paper, here)| Verdict::of(paper, here));
        use Verdict::{Met, None, Reversed, Sign};
        assert_eq!(verdicts, [Met, Sign, None, Reversed, Sign, Reversed, Met, Met]);
    }

    #[test]
    fn no_effect_meets_only_effects_of_up_to_three_points() {
        for (stated, met) in [(1.0, true), (1.03, true), (0.97, true), (1.031, false), (1.1, false), (0.85, false)] {
            assert_eq!(Meaning::Ratio.met(stated, 1.0), met, "{stated}");
        }
        assert!(Meaning::Less.met(3.0, 0.0) && !Meaning::Less.met(10.0, 0.0));
    }

    #[test]
    fn the_band_is_a_quarter_of_the_effect_and_three_points_at_least() {
        // +40 points: 30 to 50.
        for (value, met) in [(1.30, true), (1.29, false), (1.50, true), (1.51, false)] {
            assert_eq!(Meaning::Ratio.met(1.4, value), met, "{value}");
        }
        // 10 %: 7 to 13. 20 %: 15 to 25.
        for (stated, value, met) in [(10.0, 7.0, true), (10.0, 6.9, false), (20.0, 25.0, true), (20.0, 25.1, false)] {
            assert_eq!(Meaning::Less.met(stated, value), met, "{stated} {value}");
        }
        // A level: a quarter of itself.
        assert!(Meaning::Level.met(4.0, 3.0) && !Meaning::Level.met(4.0, 2.9));
    }

    #[test]
    fn errors_are_geometric_means_of_ratios() {
        let mut count = Count::default();
        // Half and twice as much: both are a factor of two away, and no effect is a factor of two
        // and of four away.
        for (paper, homenode) in [(2.0, 1.0), (4.0, 8.0)] {
            count.add(Some(Effect { paper, homenode, alone: None }), false, false, false);
        }
        count.add(None, true, false, false);
        let tally = count.tally();
        assert!((tally.error - 1.0).abs() < 1e-12);
        assert!((tally.null_error - (8.0f64.sqrt() - 1.0)).abs() < 1e-12);
        assert_eq!((tally.effects, tally.levels, tally.levels_met), (2, 1, 1));
    }
}
