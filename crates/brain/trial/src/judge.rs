//! The verdict at the end.

use serde::Serialize;

use crate::lot::Lot;
use crate::quantiles::student;
use crate::{FEWEST, Settings};

/// Most rounds of which all signs are tried.
const ALL_SIGNS: usize = 13;

/// Seed of the signs that are drawn: the same rounds give the same interval.
const SEED: u64 = 0x7219_0d2c_55aa_0b6e;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Throughput.
    Higher,
    /// Waiting.
    Lower,
}

impl Better {
    /// A difference, positive if it is for the better.
    pub fn gain(self, difference: f64) -> f64 {
        match self {
            Self::Higher => difference,
            Self::Lower => -difference,
        }
    }
}

/// What a trial found of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better, beyond chance.
    Helps,
    /// Worse, beyond chance.
    Hurts,
    /// Better, beyond chance, and worse by another outcome, as the caller says.
    Mixed,
    /// As chance alone could have given.
    NoDifferenceSeen,
    /// Too few rounds.
    TooShort,
    /// None is given, as the caller says: the rounds are not those that the lot chose.
    NoVerdict,
}

/// The effect of a policy on one outcome, in its own unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// Rounds that count.
    pub rounds: usize,
    /// Mean with homenode off; absent where no round counts.
    pub off: Option<f64>,
    /// Mean difference, policy minus off; absent where no round counts.
    pub mean: Option<f64>,
    /// Lower end of the interval; absent where there are too few rounds for one.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// How often chance alone gives a difference as large; absent where there are too few rounds to
    /// tell.
    pub p: Option<f64>,
    /// The smallest effect, either way, that as many rounds of as much noise show with the power of
    /// the settings; absent where too few rounds can show any.
    pub smallest: Option<f64>,
    pub verdict: Verdict,
}

impl Effect {
    /// A value relative to the mean with homenode off; `None` where that is no positive number.
    pub fn relative(&self, value: f64) -> Option<f64> {
        self.off.filter(|off| *off > 0.0 && off.is_finite()).map(|off| value / off)
    }
}

/// Judges a policy by its rounds: the values of an outcome with homenode off, and with the policy.
/// Rounds with a value that is not finite are left out.
pub fn judge(rounds: &[(f64, f64)], better: Better, settings: &Settings) -> Effect {
    let rounds: Vec<_> = rounds.iter().copied().filter(|(off, on)| off.is_finite() && on.is_finite()).collect();
    let n = rounds.len();
    let differences: Vec<f64> = rounds.iter().map(|(off, on)| on - off).collect();
    let mean_of = |values: &mut dyn Iterator<Item = f64>| (n > 0).then(|| values.sum::<f64>() / n as f64);
    let off = mean_of(&mut rounds.iter().map(|round| round.0));
    let mean = mean_of(&mut differences.iter().copied());
    let alpha = settings.each(settings.alpha);
    let signs = Signs::of(&differences, settings.draws).filter(|_| n >= FEWEST);
    let Some((signs, mean)) = signs.zip(mean) else {
        return Effect {
            rounds: n,
            off,
            mean,
            low: None,
            high: None,
            p: None,
            smallest: None,
            verdict: Verdict::TooShort,
        };
    };
    let p = signs.p();
    let interval = signs.interval(alpha);
    let verdict = match interval {
        None => Verdict::TooShort,
        Some(_) if p > alpha => Verdict::NoDifferenceSeen,
        Some(_) if better.gain(mean) > 0.0 => Verdict::Helps,
        Some(_) => Verdict::Hurts,
    };
    let smallest = interval.and_then(|_| smallest(&differences, mean, signs.real(alpha), settings.power));
    let (low, high) = interval.unzip();
    Effect { rounds: n, off, mean: Some(mean), low, high, p: Some(p), smallest, verdict }
}

/// The effect that a test at level `alpha` sees with this power: Student's approximation, from the
/// scatter of the rounds.
fn smallest(differences: &[f64], mean: f64, alpha: f64, power: f64) -> Option<f64> {
    let n = differences.len() as f64;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let smallest = (student(1.0 - alpha / 2.0, n - 1.0) + student(power, n - 1.0)) * (variance / n).sqrt();
    smallest.is_finite().then_some(smallest)
}

/// The mean difference of each choice of rounds whose sign is turned.
///
/// The sum of all differences minus an effect δ is exceeded, after the rounds in F were turned,
/// exactly if the mean over F is below δ. So these means, in order, are the ends of all intervals
/// (Hartigan 1969), and those below zero tell how likely the observed sum is by chance.
struct Signs {
    means: Vec<f64>,
    /// Choices without any round: chance gave the observed sum itself.
    none: usize,
}

impl Signs {
    fn of(differences: &[f64], draws: usize) -> Option<Self> {
        let n = differences.len();
        if n == 0 {
            return None;
        }
        let mean = |chosen: &mut dyn Iterator<Item = bool>| {
            let (mut sum, mut count) = (0.0, 0_u32);
            for (difference, _) in differences.iter().zip(chosen).filter(|(_, chosen)| *chosen) {
                sum += difference;
                count += 1;
            }
            (count > 0).then(|| sum / f64::from(count))
        };
        let mut means = Vec::new();
        // The observed signs count as drawn.
        let mut none = 1;
        if n <= ALL_SIGNS {
            for signs in 1_u32..1 << n {
                means.extend(mean(&mut (0..n).map(|i| signs >> i & 1 == 1)));
            }
        } else {
            let mut lot = Lot::new(SEED);
            for _ in 0..draws.max(1) {
                let (mut bits, mut left) = (0, 0);
                let mut chosen = std::iter::from_fn(|| {
                    if left == 0 {
                        (bits, left) = (lot.next(), 64);
                    }
                    let bit = bits & 1 == 1;
                    (bits, left) = (bits >> 1, left - 1);
                    Some(bit)
                });
                match mean(&mut chosen) {
                    Some(mean) => means.push(mean),
                    None => none += 1,
                }
            }
        }
        Some(Self { means, none })
    }

    fn count(&self) -> usize {
        self.means.len() + self.none
    }

    /// How often chance gives a sum as far from zero, in either direction.
    fn p(&self) -> f64 {
        let of = |tail: &dyn Fn(f64) -> bool| self.none + self.means.iter().filter(|mean| tail(**mean)).count();
        let least = of(&|mean| mean <= 0.0).min(of(&|mean| mean >= 0.0));
        (2.0 * least as f64 / self.count() as f64).min(1.0)
    }

    /// The choices beyond each end of an interval.
    fn beyond(&self, alpha: f64) -> usize {
        (alpha / 2.0 * self.count() as f64 + 1e-9).floor() as usize
    }

    /// The level that an interval really has: there are only so many choices.
    fn real(&self, alpha: f64) -> f64 {
        2.0 * self.beyond(alpha) as f64 / self.count() as f64
    }

    /// The effects that a test at level `alpha` does not reject; `None` if it never rejects one.
    fn interval(&self, alpha: f64) -> Option<(f64, f64)> {
        let place = self.beyond(alpha).checked_sub(self.none)?;
        let mut means = self.means.clone();
        let (low, high) = (place, means.len().checked_sub(1 + place)?);
        let low = *means.select_nth_unstable_by(low, f64::total_cmp).1;
        let high = *means.select_nth_unstable_by(high, f64::total_cmp).1;
        Some((low.min(high), high.max(low)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(values: &[f64]) -> Vec<(f64, f64)> {
        values.iter().map(|d| (10.0, 10.0 + d)).collect()
    }

    #[test]
    fn six_rounds_with_one_sign_are_2_of_64() {
        let effect = judge(&differences(&[1.0, 2.0, 3.0, 1.5, 2.5, 2.0]), Better::Higher, &Settings::of(1));
        assert_eq!((effect.rounds, effect.p), (6, Some(2.0 / 64.0)));
        // One choice is beyond each end: the observed signs themselves, which are `none`. So the
        // ends are the smallest and the largest mean of a choice.
        assert_eq!((effect.low, effect.high), (Some(1.0), Some(3.0)));
        assert_eq!((effect.mean, effect.off, effect.verdict), (Some(2.0), Some(10.0), Verdict::Helps));
        assert_eq!(effect.relative(2.0), Some(0.2));
        let worse = judge(&differences(&[1.0, 2.0, 3.0, 1.5, 2.5, 2.0]), Better::Lower, &Settings::of(1));
        assert_eq!(worse.verdict, Verdict::Hurts);
        // Two policies share the error rate: six rounds show nothing.
        let shared = judge(&differences(&[1.0, 2.0, 3.0, 1.5, 2.5, 2.0]), Better::Higher, &Settings::of(2));
        assert_eq!((shared.verdict, shared.low), (Verdict::TooShort, None));
    }

    #[test]
    fn chance_is_counted() {
        // Seven rounds, one against: the sums of the signs ±1 ±1 … ±1 of size 1 are as far from
        // zero as 5 in 2 × (1 + 7) of 128 cases.
        let effect = judge(&differences(&[1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0]), Better::Higher, &Settings::of(1));
        assert_eq!(effect.p, Some(16.0 / 128.0));
        assert_eq!(effect.verdict, Verdict::NoDifferenceSeen);
        let nothing = judge(&differences(&[0.0; 8]), Better::Higher, &Settings::of(1));
        assert_eq!((nothing.p, nothing.verdict), (Some(1.0), Verdict::NoDifferenceSeen));
        assert_eq!((nothing.low, nothing.high, nothing.smallest), (Some(0.0), Some(0.0), Some(0.0)));
    }

    #[test]
    fn drawn_signs_give_nearly_what_all_signs_give() {
        let values: Vec<f64> = (0..13).map(|i| 1.0 + f64::from(i * 7 % 13) - 5.0).collect();
        let all = Signs::of(&values, 0).unwrap();
        let more: Vec<f64> = values.iter().copied().chain([0.2]).collect();
        let drawn = Signs::of(&more, 40_000).unwrap();
        assert!((all.p() - drawn.p()).abs() < 0.06, "{} {}", all.p(), drawn.p());
        let (a, d) = (all.interval(0.05).unwrap(), drawn.interval(0.05).unwrap());
        assert!((a.0 - d.0).abs() < 0.4 && (a.1 - d.1).abs() < 0.4, "{a:?} {d:?}");
    }

    #[test]
    fn few_and_odd_rounds_decide_nothing() {
        for rounds in [vec![], differences(&[1.0; 5]), vec![(f64::NAN, 1.0); 9]] {
            let effect = judge(&rounds, Better::Higher, &Settings::of(1));
            assert_eq!((effect.verdict, effect.low, effect.p), (Verdict::TooShort, None, None));
        }
    }

    /// A trial whose metric failed said `0.0000 +0.0000` and `"p":1.0`.
    #[test]
    fn what_no_round_has_shown_is_unknown() {
        for rounds in [vec![], vec![(f64::NAN, 1.0); 9]] {
            let effect = judge(&rounds, Better::Higher, &Settings::of(1));
            assert_eq!((effect.rounds, effect.off, effect.mean, effect.p), (0, None, None, None));
            assert_eq!(effect.relative(1.0), None);
        }
        let few = judge(&differences(&[1.0; 5]), Better::Higher, &Settings::of(1));
        assert_eq!((few.off, few.mean), (Some(10.0), Some(1.0)));
    }
}
