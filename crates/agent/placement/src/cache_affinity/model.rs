//! The thesis's model of the gain of a task migration, and homenode's guard around it.

use serde::{Deserialize, Serialize};

use crate::numbers::{not_negative, positive};

/// The settings of both policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// M: largest improvement, as a fraction of the run time (Fig. 5.2: 15 % for a 16 GB file, 10 %
    /// for 1 GB).
    #[serde(deserialize_with = "positive")]
    pub max_improvement: f64,
    /// R: how fast process memory cancels the gain. The thesis expects I = 0 at P = F, so R = M,
    /// and then measures "a much larger reduction factor" (Fig. 8.5: a 1 GB process wins 2 to 5 %
    /// on files of 2 to 16 GB, nothing on 1 GB). With M = 0.15, I = 3.5 % gives R = 0.23 at 2 GB,
    /// 0.46 at 4 GB and 0.92 at 8 GB. homenode uses the middle value: break-even at P = F × 0.3.
    #[serde(deserialize_with = "not_negative")]
    pub reduction: f64,
    /// Guard: smallest mean read, bytes (section 8.2: no gain below one ZFS block, 128 KiB).
    pub min_read_size: u64,
    /// Guard: shortest file, bytes (chapter 9: "very large, over 1 GB").
    pub min_file: u64,
    /// Both: a process that was moved before must read this many times as much from the target as
    /// from its own node.
    #[serde(deserialize_with = "positive")]
    pub margin: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_improvement: 0.15, reduction: 0.46, min_read_size: 128 << 10, min_file: 1 << 30, margin: 1.25 }
    }
}

impl Settings {
    /// Section 8.1: `I = M − (P / F) × R`, a fraction of the run time. `process` is P and `file` is
    /// F, in bytes. With nothing left to read there is no gain, whatever P is.
    pub fn improvement(&self, process: f64, file: f64) -> f64 {
        if file > 0.0 { self.max_improvement - process / file * self.reduction } else { f64::NEG_INFINITY }
    }
}
