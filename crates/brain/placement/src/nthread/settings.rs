//! NThread's settings. The defaults are the paper's, except the value of `min_bytes`, which it does
//! not state.

use serde::{Deserialize, Serialize};

use crate::load::Limits;
use crate::numbers::{positive, share};

/// Settings of NThread: the `[nthread]` table of `homenode.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Threads that read and wrote fewer file bytes than this in a window are ignored (IV: "we skip
    /// some threads").
    #[serde(deserialize_with = "topology::units::bytes")]
    pub min_bytes: u64,
    /// Lead in reads of one node over every other node that makes it the target, bytes/s (III-A:
    /// 200 MB in a second).
    #[serde(deserialize_with = "topology::units::rate")]
    pub locality_margin: f64,
    /// `BWr_weight` of Eq. 1: controller cost of a byte read, relative to a byte written.
    #[serde(deserialize_with = "positive")]
    pub read_weight: f64,
    /// Fraction of a controller's capacity above which it can be overloaded (III-C1).
    #[serde(deserialize_with = "share")]
    pub controller_limit: f64,
    /// `CPU_limit` of Eq. 5: fraction of a node's CPUs; infinite: no limit.
    #[serde(deserialize_with = "share")]
    pub cpu_limit: f64,
}

impl From<&Settings> for Limits {
    fn from(settings: &Settings) -> Self {
        let Settings { cpu_limit, controller_limit, read_weight, .. } = *settings;
        Self { cpu_limit, controller_limit, read_weight }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            min_bytes: 4 * 1024 * 1024,
            locality_margin: 200e6,
            read_weight: 1.0 / 3.0,
            controller_limit: 0.8,
            cpu_limit: 0.9,
        }
    }
}
