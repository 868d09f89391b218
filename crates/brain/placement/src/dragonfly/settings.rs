//! Settings, with their sources.

use memory_model::figures::{COPY_BYTES, COPY_S};
use serde::{Deserialize, Serialize};

use crate::numbers::{not_negative, positive};

/// Settings of Dragonfly. The settings of the thread rules are NThread's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Longest T_window in seconds: data that would not pay back by then does not move, with
    /// 0 none at all. Throughput falls beyond 6 s in Fig. 6(c).
    #[serde(deserialize_with = "not_negative")]
    pub max_window_s: f64,
    /// Shortest T_window in seconds, the paper's choice: a load must have lasted this long before
    /// data moves.
    #[serde(deserialize_with = "not_negative")]
    pub min_window_s: f64,
    /// TH_l / TH_r until measured. The paper measures 20.7 / 13.5 = 1.53. NThread's 34.6 % less
    /// bandwidth for remote reads gives the same: 1 / (1 − 0.346) = 1.53.
    #[serde(deserialize_with = "positive")]
    pub local_gain: f64,
    /// Migration speed in bytes/s until measured: 16 KiB in 35 µs (NThread III-C1).
    #[serde(deserialize_with = "topology::units::positive_rate")]
    pub migration_bw: f64,
    /// A file's readers on the target must read this many times as much as its readers on the
    /// source.
    #[serde(deserialize_with = "positive")]
    pub margin: f64,
    /// Within this many seconds, each moved byte must be read remotely at least once at the
    /// observed rate. This bounds write amplification.
    #[serde(deserialize_with = "positive")]
    pub reuse_s: f64,
    /// A file that moved stays for this many seconds, doubled with each further move.
    #[serde(deserialize_with = "not_negative")]
    pub cooldown_s: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_window_s: 60.0,
            min_window_s: 6.0,
            local_gain: 1.53,
            migration_bw: COPY_BYTES / COPY_S,
            margin: 1.25,
            reuse_s: 60.0,
            cooldown_s: 60.0,
        }
    }
}
