//! What can be set, with its sources.

use serde::{Deserialize, Serialize};

/// Settings of Dragonfly; those of the thread rules are NThread's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Longest T_window in seconds: what would not pay back by then is left alone. Fig. 6(c) falls beyond 6 s.
    pub max_window_s: f64,
    /// Shortest T_window in seconds, the paper's choice: load must have lasted as long before data moves.
    pub min_window_s: f64,
    /// TH_l / TH_r until it has been measured. The paper measures 20.7 / 13.5 = 1.53; NThread's 34.6 % less bandwidth for remote
    /// reads is the same: 1 / (1 − 0.346) = 1.53.
    pub local_gain: f64,
    /// Bytes/s at which data moves until it has been measured: 16 KiB in 35 µs (NThread III-C1).
    pub migration_bw: f64,
    /// A file's readers on the target must read this many times what its readers on the source do.
    pub margin: f64,
    /// Seconds in which every byte moved must be read remotely at least once, at the rate seen: bounds write amplification.
    pub reuse_s: f64,
    /// A file that moved stays for this long, seconds; doubled with every further move.
    pub cooldown_s: f64,
    /// Bytes a day that may be moved, over all files: endurance. 10 TB is about a sixteenth of what one 128 GB Optane module is rated for.
    pub bytes_per_day: f64,
    /// Bytes that may be moved at once when nothing has moved for long.
    pub burst_bytes: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_window_s: 60.0,
            min_window_s: 6.0,
            local_gain: 1.0 / (1.0 - 0.346),
            migration_bw: 16.0 * 1024.0 / 35e-6,
            margin: 1.25,
            reuse_s: 60.0,
            cooldown_s: 60.0,
            bytes_per_day: 10e12,
            burst_bytes: 200e9,
        }
    }
}
