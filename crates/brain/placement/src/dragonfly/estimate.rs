//! Estimates of TH_l, TH_r, O_m and T_m from the windows.
//!
//! **Problem.** Before the first migration, only TH_r can be observed. The paper measures the
//! others by hand.
//!
//! **Approach.** TH_r is the rate of remote reads of the queued files while they waited. The other
//! estimates start with figures from the papers ([`Settings`]), and each migration
//! corrects them. Its speed gives T_m; reads after it against reads before it give TH_l / TH_r; the
//! loss against the straight line of Eq. 2 while it ran gives O_m.
//!
//! **Limits.** There is one figure each for the machine, not one per pair of nodes or application.

use super::Settings;
use super::mtp::Mtp;

/// Weight of the newest measurement.
const NEWEST: f64 = 0.5;
/// When the queue is emptied without a migration, estimates go back towards the papers' figures by
/// this much. Otherwise a single bad measurement would end migrations for good.
const FORGET: f64 = 0.1;
/// Measurements beyond these factors reflect changes of the load itself.
const MOST: f64 = 10.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimates {
    /// TH_l / TH_r.
    pub gain: f64,
    /// Migration speed in bytes/s.
    pub migration_bw: f64,
    /// O_m as a multiple of the rule in the text, (TH_l − TH_r) × T_m.
    pub overhead: f64,
}

impl Estimates {
    pub fn initial(settings: &Settings) -> Self {
        Self { gain: settings.local_gain, migration_bw: settings.migration_bw, overhead: 1.0 }
    }

    /// The model of moving `bytes` that are read remotely at `remote_bw`.
    pub fn mtp(&self, remote_bw: f64, bytes: f64) -> Mtp {
        let (local_bw, migration_s) = (remote_bw * self.gain, bytes / self.migration_bw);
        let overhead = self.overhead * Mtp::overhead_by_rule(local_bw, remote_bw, migration_s);
        Mtp { local_bw, remote_bw, overhead, migration_s }
    }

    pub fn forget(&mut self, settings: &Settings) {
        let initial = Self::initial(settings);
        blend(&mut self.gain, initial.gain, FORGET);
        blend(&mut self.migration_bw, initial.migration_bw, FORGET);
        blend(&mut self.overhead, initial.overhead, FORGET);
    }

    /// A migration moved `bytes` in `seconds`.
    pub fn moved(&mut self, bytes: f64, seconds: f64) {
        if bytes > 0.0 && seconds > 0.0 {
            blend(&mut self.migration_bw, bytes / seconds, NEWEST);
        }
    }

    /// The readers had `before` bytes/s remotely and have `after` bytes/s locally.
    pub fn read(&mut self, before: f64, after: f64) {
        if before > 0.0 {
            blend(&mut self.gain, (after / before).clamp(1.0 / MOST, MOST), NEWEST);
        }
    }

    /// A migration lost `lost` bytes against Eq. 2, where the rule in the text gives `rule`.
    pub fn lost(&mut self, lost: f64, rule: f64) {
        if rule > 0.0 {
            blend(&mut self.overhead, (lost / rule).clamp(0.0, MOST), NEWEST);
        }
    }
}

fn blend(value: &mut f64, newest: f64, weight: f64) {
    *value += weight * (newest - *value);
}
