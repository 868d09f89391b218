//! How much data may still be moved: a bucket of bytes that fills slowly.
//!
//! NVM wears with writes and a moved file is written once more, so the bytes moved in any time t are at most
//! `burst_bytes + t × bytes_per_day / 86,400`.

use super::Settings;

const DAY_S: f64 = 86_400.0;

#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: f64,
    filled_s: Option<f64>,
}

impl Budget {
    pub fn full(settings: &Settings) -> Self {
        Self { left: settings.burst_bytes, filled_s: None }
    }

    /// Fills up to now. A clock that goes back fills nothing.
    pub fn fill(&mut self, settings: &Settings, now_s: f64) {
        let since = self.filled_s.map_or(0.0, |then| (now_s - then).max(0.0));
        self.left = (self.left + since * settings.bytes_per_day / DAY_S).min(settings.burst_bytes);
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
    fn a_day_fills_a_days_bytes_and_never_more_than_the_burst() {
        let settings = Settings { bytes_per_day: 86_400.0, burst_bytes: 5_000.0, ..Settings::default() };
        let mut budget = Budget::full(&settings);
        budget.fill(&settings, 100.0);
        budget.take(4_000.0);
        assert_eq!(budget.left(), 1_000.0);
        // 1,000 s × 1 byte/s.
        budget.fill(&settings, 1_100.0);
        assert_eq!(budget.left(), 2_000.0);
        // The clock went back: nothing is filled, and time counts from there.
        budget.fill(&settings, 50.0);
        budget.fill(&settings, 60.0);
        assert_eq!(budget.left(), 2_010.0);
        budget.fill(&settings, 1e9);
        assert_eq!(budget.left(), 5_000.0);
        budget.take(1e12);
        assert_eq!(budget.left(), 0.0);
    }
}
