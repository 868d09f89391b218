//! The early stop.

use crate::Settings;

/// Shares of the stake, by how boldly each bets: relative to one over the typical difference.
const BOLD: [f64; 4] = [0.25, 0.5, 1.0, 2.0];

/// Looks after each round whether a policy clearly hurts.
///
/// The factor of a round is `2 / (1 + exp(2 λ x))` for a difference of `x` (positive: better):
/// below 2, and 1 on average over the two signs, whatever `|x|` is. λ may depend on all `|x|` so
/// far, this one included, because the lot is not in them. The stake is divided between several λ.
#[derive(Clone, Debug)]
pub struct Harm {
    stakes: [f64; BOLD.len()],
    sizes: Vec<f64>,
    limit: f64,
    came: bool,
}

impl Harm {
    /// Before the first round.
    pub fn new(settings: &Settings) -> Self {
        let stakes = [1.0 / BOLD.len() as f64; BOLD.len()];
        Self { stakes, sizes: Vec::new(), limit: 1.0 / settings.each(settings.harm), came: false }
    }

    /// After a round in which the policy was better by this much (negative: worse).
    pub fn round(&mut self, better: f64) {
        if !better.is_finite() {
            return;
        }
        let at = self.sizes.partition_point(|size| *size < better.abs());
        self.sizes.insert(at, better.abs());
        let typical = self.sizes.get(self.sizes.len() / 2).copied().unwrap_or(0.0);
        if typical > 0.0 {
            for (stake, bold) in self.stakes.iter_mut().zip(BOLD) {
                *stake *= 2.0 / (1.0 + (2.0 * bold * better / typical).exp());
            }
        }
        self.came |= self.stake() >= self.limit;
    }

    /// The stake; 1 at the beginning.
    pub fn stake(&self) -> f64 {
        self.stakes.iter().sum()
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
                harm.round(if signs >> n & 1 == 1 { -size } else { *size });
            }
            harm.stake()
        };
        let mean = (0..64).map(stake).sum::<f64>() / 64.0;
        assert!((mean - 1.0).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn steady_harm_stops_and_steady_help_never_does() {
        let mut harm = Harm::new(&Settings::of(1));
        let rounds = (1..).take_while(|_| {
            harm.round(-1.0);
            !harm.clear()
        });
        assert_eq!(rounds.count() + 1, 9);
        let mut harm = Harm::new(&Settings::of(1));
        (0..1000).for_each(|_| harm.round(1.0));
        assert!(!harm.clear() && harm.stake() < 1e-3);
        // Nothing to bet on.
        let mut harm = Harm::new(&Settings::of(1));
        [0.0, f64::NAN, f64::INFINITY, 0.0].into_iter().for_each(|x| harm.round(x));
        assert_eq!(harm.stake(), 1.0);
    }
}
