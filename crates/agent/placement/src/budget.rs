//! A budget of file bytes that may still be moved: a bucket that fills slowly.
//!
//! **Problem.** NVM wears with writes, and moving a file writes it once more.
//!
//! **Approach.** In any time t, at most `burst_bytes + t × bytes_per_day / 86,400` bytes move.
//!
//! **Limits.** There is one bucket for the machine, not one per module.

use crate::processes::sane;

const DAY_S: f64 = 86_400.0;

/// The bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    burst_bytes: f64,
    bytes_per_day: f64,
    left: f64,
    filled_s: Option<f64>,
}

impl Budget {
    pub fn full(burst_bytes: f64, bytes_per_day: f64) -> Self {
        Self {
            burst_bytes: sane(burst_bytes),
            bytes_per_day: sane(bytes_per_day),
            left: sane(burst_bytes),
            filled_s: None,
        }
    }

    /// Fills the bucket for the time up to now. A clock that goes back fills nothing.
    pub fn fill(&mut self, now_s: f64) {
        let since = self.filled_s.map_or(0.0, |then| (now_s - then).max(0.0));
        self.left = (self.left + since * self.bytes_per_day / DAY_S).min(self.burst_bytes);
        self.filled_s = Some(now_s);
    }

    pub fn left(&self) -> f64 {
        self.left
    }

    pub fn take(&mut self, bytes: f64) {
        self.left = (self.left - bytes).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_fills_a_days_bytes_up_to_the_burst() {
        let mut budget = Budget::full(5_000.0, 86_400.0);
        budget.fill(100.0);
        budget.take(4_000.0);
        assert_eq!(budget.left(), 1_000.0);
        // 1,000 s × 1 byte/s.
        budget.fill(1_100.0);
        assert_eq!(budget.left(), 2_000.0);
        // The clock went back: nothing is filled, and time counts from the new reading.
        budget.fill(50.0);
        budget.fill(60.0);
        assert_eq!(budget.left(), 2_010.0);
        budget.fill(1e9);
        assert_eq!(budget.left(), 5_000.0);
        budget.take(1e12);
        assert_eq!(budget.left(), 0.0);
    }
}
