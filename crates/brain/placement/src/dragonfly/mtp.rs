//! The model of the Migration Trigger Policy (Dragonfly III-C, Eq. 7 to 9): does moving this data
//! pay back within a window?
//!
//! The paper's own example (IV-B, Webserver heavy: TH_l 20.7 GB/s, TH_r 13.5 GB/s, T_m 3.5 s)
//! contradicts its text. The text defines O_m as the difference of TH_l × T_m and TH_r × T_m, which
//! is 7.2 × 3.5 = 25.2 GB. It then prints 30.6 GB, K = 4.25 s (30.6 / 7.2) and T_window = 6 s. The
//! equations here take O_m as given. The printed figures then yield the printed K and a break-even
//! of K + T_m / 2 = 6.0 s, the printed T_window. A window of 6 s thus neither wins nor loses, and
//! Eq. 9, a strict inequality, does not trigger. Until O_m is measured, homenode follows the *rule
//! in the text*: O_m = 25.2 GB, K = T_m = 3.5 s and a break-even of 5.25 s. The first whole second
//! beyond it is the paper's T_window of 6 s as well.

use std::fmt;

use crate::processes::show;

/// The known figures of a migration before it starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mtp {
    /// TH_l: bytes/s of the readers when all of the data is local.
    pub local_bw: f64,
    /// TH_r: bytes/s of the readers now, with all of the data remote.
    pub remote_bw: f64,
    /// O_m: bytes of I/O lost to the migration itself.
    pub overhead: f64,
    /// T_m: duration of the migration in seconds.
    pub migration_s: f64,
}

/// What K is made of.
impl fmt::Display for Mtp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [local, remote, overhead] = [self.local_bw, self.remote_bw, self.overhead].map(show);
        write!(f, "TH_l {local}/s, TH_r {remote}/s, O_m {overhead}")
    }
}

impl Mtp {
    /// O_m by the rule in the text of IV-B: `TH_l × T_m − TH_r × T_m`.
    pub fn overhead_by_rule(local_bw: f64, remote_bw: f64, migration_s: f64) -> f64 {
        local_bw * migration_s - remote_bw * migration_s
    }

    /// K of Eq. 7, in seconds; infinite if local reads are no faster.
    pub fn k(&self) -> f64 {
        let gain = self.local_bw - self.remote_bw;
        if gain > 0.0 { self.overhead / gain } else { f64::INFINITY }
    }

    /// Eq. 9: `T_m < 2 (T_window − K)`. By Eq. 1, the window must also be at least as long as the
    /// migration.
    pub fn pays(&self, window_s: f64) -> bool {
        self.migration_s < 2.0 * (window_s - self.k()) && self.migration_s <= window_s
    }

    /// The window that neither wins nor loses: Eq. 9 with equality, `K + T_m / 2`.
    pub fn break_even_s(&self) -> f64 {
        (self.k() + self.migration_s / 2.0).max(self.migration_s)
    }

    /// T_window: the first multiple of `step_s` beyond the break-even. Longer windows trigger
    /// later; shorter ones do not pay (Fig. 6c).
    pub fn window_s(&self, step_s: f64) -> f64 {
        let steps = (self.break_even_s() / step_s).floor() + 1.0;
        steps * step_s
    }
}
