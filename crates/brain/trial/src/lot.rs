//! The lot.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// homenode observes only.
    Off,
    /// The policy with this number.
    On(usize),
}

/// The order of the arms in a round, each order as likely as any other. The same seed and round
/// give the same order.
pub fn order(seed: u64, round: u64, policies: usize) -> Vec<Arm> {
    let mut arms: Vec<Arm> = std::iter::once(Arm::Off).chain((0..policies).map(Arm::On)).collect();
    let mut lot = Lot::new(seed ^ round.wrapping_mul(0xd6e8_feb8_6659_fd93));
    for last in (1..arms.len()).rev() {
        arms.swap(last, lot.below(last as u64 + 1) as usize);
    }
    arms
}

/// SplitMix64 (Steele, Lea, Flood 2014): every state gives another number.
#[derive(Clone, Debug)]
pub struct Lot(u64);

impl Lot {
    pub fn new(seed: u64) -> Self {
        let mut lot = Self(seed);
        // Neighbouring seeds are far apart after one step.
        Self(lot.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`. For the few arms of a trial the numbers are not equally likely by less
    /// than 2^-60.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_order_is_as_likely() {
        let mut seen: BTreeMap<Vec<Arm>, u32> = BTreeMap::new();
        for seed in 0..60 {
            for round in 0..100 {
                *seen.entry(order(seed, round, 2)).or_default() += 1;
            }
        }
        assert_eq!(seen.len(), 6);
        // 1,000 each, with a standard deviation of 29.
        assert!(seen.values().all(|n| (880..=1120).contains(n)), "{seen:?}");
        assert_eq!(order(3, 4, 2), order(3, 4, 2));
    }
}
