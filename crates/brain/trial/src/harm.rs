//! The early stop.

use crate::{Better, Settings};

/// Shares of the stake, by how boldly each bets: relative to one over the typical difference.
const BOLD: [f64; 4] = [0.25, 0.5, 1.0, 2.0];

/// A loss of this share, in two rounds that agree, is a whole stake by its size.
const MUCH: f64 = 0.85;
/// A loss of more counts as this one: `0` and `nearly 0` are alike.
const MOST: f64 = 0.95;
/// The stake by size must be so many times as large from the third round on: there are many more
/// looks, and loads that swing come to a whole stake in some of them.
const LATER: f64 = 10.0;

/// Looks after each round whether a policy clearly hurts.
///
/// *By sign.* The factor of a round is `2 / (1 + exp(2 λ x))` for a difference of `x` (positive:
/// better), relative to the larger of both values: below 2, and 1 on average over the two signs,
/// whatever `|x|` is. λ may depend on all `|x|` so far, this one included, because the lot is not
/// in them. The stake is divided between several λ.
///
/// *By size.* No bet on signs alone can win in two rounds: there are four of them. So a second
/// stake has the factor `exp(k g)` for a loss whose logarithm is `g`, and is divided by what it
/// would gain by chance from normal `g` that scatter as those so far do. It is a rail and no test:
/// the synthetic trials of this crate show how often it is wrong. It needs values above zero.
#[derive(Clone, Debug)]
pub struct Harm {
    stakes: [f64; BOLD.len()],
    sizes: Vec<f64>,
    limit: f64,
    /// Logarithms of what was lost; `None` once a value was not above zero.
    losses: Option<Vec<f64>>,
    /// What the stake by size must reach, as a logarithm.
    enough: f64,
    came: bool,
}

impl Harm {
    pub fn new(settings: &Settings) -> Self {
        let stakes = [1.0 / BOLD.len() as f64; BOLD.len()];
        Self {
            stakes,
            sizes: Vec::new(),
            limit: 1.0 / settings.each(settings.harm),
            losses: Some(Vec::new()),
            enough: -settings.harm.ln(),
            came: false,
        }
    }

    /// After a round with this value with homenode off, and this one with the policy. One that is
    /// not known is as bad as can be.
    pub fn round(&mut self, off: f64, on: f64, better: Better) {
        let scale = off.abs().max(on.abs());
        let x = match (off.is_finite(), on.is_finite()) {
            (true, true) if scale > 0.0 => better.gain(on - off) / scale,
            (true, true) => 0.0,
            (false, false) => return,
            (known, _) => {
                if known {
                    -1.0
                } else {
                    1.0
                }
            }
        };
        let at = self.sizes.partition_point(|size| *size < x.abs());
        self.sizes.insert(at, x.abs());
        let typical = self.sizes.get(self.sizes.len() / 2).copied().unwrap_or(0.0);
        if typical > 0.0 {
            for (stake, bold) in self.stakes.iter_mut().zip(BOLD) {
                *stake *= 2.0 / (1.0 + (2.0 * bold * x / typical).exp());
            }
        }
        if off < 0.0 || on < 0.0 {
            self.losses = None;
        }
        if let Some(losses) = &mut self.losses {
            losses.push(-(1.0 - x.abs().min(MOST)).ln() * -x.signum());
        }
        self.came |= self.stake() >= self.limit || self.by_size();
    }

    /// The stake by sign; 1 at the beginning.
    pub fn stake(&self) -> f64 {
        self.stakes.iter().sum()
    }

    /// Whether the stake by size is large enough. One round alone does not tell how they scatter.
    fn by_size(&self) -> bool {
        let Some(losses) = self.losses.as_ref().filter(|losses| losses.len() > 1) else { return false };
        let k = self.enough / (-2.0 * (1.0 - MUCH).ln());
        let n = losses.len() as f64;
        let mean = losses.iter().sum::<f64>() / n;
        let variance = losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let later = if losses.len() > 2 { LATER.ln() } else { 0.0 };
        n * (k * mean - k * k * variance / 2.0) >= self.enough + later
    }

    /// Whether the policy clearly hurts. It stays so.
    pub fn clear(&self) -> bool {
        self.came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_signs_are_a_fair_game() {
        // All 2^6 signs of six sizes: the mean stake stays 1.
        let sizes = [3.0, 0.5, 1.0, 8.0, 0.0, 2.0];
        let stake = |signs: u32| {
            let mut harm = Harm::new(&Settings::of(1));
            for (n, size) in sizes.iter().enumerate() {
                let on = if signs >> n & 1 == 1 { 10.0 - size } else { 10.0 * 10.0 / (10.0 - size) };
                harm.round(10.0, on, Better::Higher);
            }
            harm.stake()
        };
        let mean = (0..64).map(stake).sum::<f64>() / 64.0;
        assert!((mean - 1.0).abs() < 1e-12, "{mean}");
    }

    /// Rounds until the early stop of a steady loss of this share.
    fn rounds(loss: f64, noise: f64, policies: usize) -> usize {
        let mut harm = Harm::new(&Settings::of(policies));
        let more = (1..).take_while(|n| {
            let noise = if n % 2 == 0 { 1.0 + noise } else { 1.0 - noise };
            harm.round(100.0, 100.0 * (1.0 - loss) * noise, Better::Higher);
            !harm.clear()
        });
        more.take(100).count() + 1
    }

    /// A loss of nine tenths went on for nine rounds, as one of half did.
    #[test]
    fn the_larger_the_loss_the_earlier_the_stop() {
        assert_eq!([0.9, 0.8, 0.7, 0.5, 0.1, 0.02].map(|loss| rounds(loss, 0.001, 1)), [2, 4, 5, 9, 9, 9]);
        assert_eq!([1, 2, 4].map(|policies| rounds(0.9, 0.2, policies)), [2, 2, 2]);
        // Waiting ten times as long is as bad.
        let mut harm = Harm::new(&Settings::of(1));
        (0..2).for_each(|_| harm.round(1.0, 10.0, Better::Lower));
        assert!(harm.clear());
    }

    /// 15 trials of which every period with the policy stood still were never stopped.
    #[test]
    fn what_is_not_known_with_the_policy_is_harm() {
        let mut harm = Harm::new(&Settings::of(1));
        (0..2).for_each(|_| harm.round(5.0, f64::NAN, Better::Higher));
        assert!(harm.clear());
        let mut harm = Harm::new(&Settings::of(1));
        (0..20).for_each(|_| harm.round(f64::NAN, 5.0, Better::Higher));
        assert!(!harm.clear() && harm.stake() < 1.0);
    }

    #[test]
    fn steady_help_never_stops() {
        let mut harm = Harm::new(&Settings::of(1));
        (0..1000).for_each(|_| harm.round(1.0, 2.0, Better::Higher));
        assert!(!harm.clear() && harm.stake() < 1e-3);
        // Nothing to bet on.
        let mut harm = Harm::new(&Settings::of(1));
        [0.0, f64::NAN, f64::INFINITY, 0.0].into_iter().for_each(|x| harm.round(x, x, Better::Higher));
        assert_eq!(harm.stake(), 1.0);
    }

    /// Of a number that can be negative, the ratio of two values says nothing.
    #[test]
    fn a_number_below_zero_has_no_size() {
        let mut harm = Harm::new(&Settings::of(1));
        harm.round(-1.0, -2.0, Better::Higher);
        (0..3).for_each(|_| harm.round(100.0, 1.0, Better::Higher));
        assert!(!harm.clear());
    }
}
