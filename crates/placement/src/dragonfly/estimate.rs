//! TH_l, TH_r, O_m and T_m from what the windows showed.
//!
//! **Problem.** Before the first migration only TH_r can be seen; the paper measures the others by hand.
//!
//! **Approach.** TH_r is the rate at which the queued files were read remotely while they waited. The rest begins with figures
//! from the papers ([`Settings`](super::Settings)) and is corrected by every migration: its speed gives T_m, what was read after it against
//! before gives TH_l / TH_r, and what was lost against the straight line of Eq. 2 while it ran gives O_m.
//!
//! **Limits.** One figure each for the machine, not per pair of nodes or application.

use super::Settings;
use super::mtp::Mtp;

/// Weight of the newest measurement.
const NEWEST: f64 = 0.5;
/// When a queue is emptied without a migration, estimates go back towards the papers' figures by this much: a single bad
/// measurement must not end migrations for good.
const FORGET: f64 = 0.1;
/// Measurements beyond these factors say more about the load's own ups and downs.
const MOST: f64 = 10.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimates {
    /// TH_l / TH_r.
    pub gain: f64,
    /// Bytes/s at which data moves.
    pub migration_bw: f64,
    /// O_m as a multiple of the text's rule, (TH_l − TH_r) × T_m.
    pub overhead: f64,
}

impl Estimates {
    pub fn initial(settings: &Settings) -> Self {
        Self { gain: settings.local_gain, migration_bw: settings.migration_bw, overhead: 1.0 }
    }

    /// The model for moving `bytes` that are read remotely at `remote_bw`.
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

    /// Readers had `before` bytes/s remote and have `after` bytes/s local.
    pub fn read(&mut self, before: f64, after: f64) {
        if before > 0.0 {
            blend(&mut self.gain, (after / before).clamp(1.0 / MOST, MOST), NEWEST);
        }
    }

    /// A migration lost `lost` bytes against Eq. 2, where the text's rule says `rule`.
    pub fn lost(&mut self, lost: f64, rule: f64) {
        if rule > 0.0 {
            blend(&mut self.overhead, (lost / rule).clamp(0.0, MOST), NEWEST);
        }
    }
}

fn blend(value: &mut f64, newest: f64, weight: f64) {
    *value += weight * (newest - *value);
}
