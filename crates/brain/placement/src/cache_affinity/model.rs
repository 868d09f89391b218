//! The thesis's model of the gain of a task migration, and homenode's guard around it.
//!
//! **Problem.** The thesis read R off Fig. 8.5, whose prototype moved no memory: it asks for the
//! pages of the process's node (Listing A.9) after the task has gone to the other node (A.7), so
//! source equals target. A process whose memory is copied pays more than that.
//!
//! **Approach.** What moving the memory costs follows from the copy: the process stands still for P
//! / c seconds (c: [`Settings::process_copy_bw`], or what earlier copies have reached) of the F / r
//! seconds that it goes on reading at rate r. As a share of the run time that is (P / F) × (r / c):
//! the thesis's form, with R = r / c. The third choice, beside this and staying, is to move the
//! threads alone. Then nobody copies, but the part of the program's own time that waits for its own
//! memory grows with the distance.
//!
//! **Limits.** One hop between the nodes, whatever the machine. On a real kernel a process does not
//! stand still for all of the copy, so moving with the memory is dearer here than there. How much
//! of a program's time waits for its own memory is a guess ([`OWN_MEMORY`]).

use memory_model::figures::{COPY_BYTES, COPY_S, DRAM_COPY_GAIN, DRAM_REMOTE_LATENCY, OWN_MEMORY};
use serde::{Deserialize, Serialize};

use crate::numbers::{maybe, not_negative, positive};

/// The settings of both policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// M: largest improvement, as a fraction of the run time (Fig. 5.2: 15 % for a 16 GB file, 10 %
    /// for 1 GB).
    #[serde(deserialize_with = "not_negative")]
    pub max_improvement: f64,
    /// R: how fast process memory cancels the gain. Default: none, it follows from
    /// `process_copy_bw` and the rate at which the process reads. The thesis expects R = M.
    #[serde(deserialize_with = "maybe", skip_serializing_if = "Option::is_none")]
    pub reduction: Option<f64>,
    /// Bytes/s at which a process's memory is copied, until copies of processes have shown their
    /// speed. Default: 16 KiB in 35 µs on Optane (NThread III-C1), on DRAM 2.8 times as fast (I).
    #[serde(deserialize_with = "topology::units::positive_rate")]
    pub process_copy_bw: f64,
    /// Guard: smallest mean read, bytes (section 8.2: no gain below one ZFS block, 128 KiB).
    #[serde(deserialize_with = "topology::units::bytes")]
    pub min_read_size: u64,
    /// Guard: shortest file, bytes (chapter 9: "very large, over 1 GB").
    #[serde(deserialize_with = "topology::units::bytes")]
    pub min_file: u64,
    /// Both: a process that was moved before must read this many times as much from the target as
    /// from its own node.
    #[serde(deserialize_with = "positive")]
    pub margin: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_improvement: 0.15,
            reduction: None,
            process_copy_bw: DRAM_COPY_GAIN * COPY_BYTES / COPY_S,
            min_read_size: 128 << 10,
            min_file: 1 << 30,
            margin: 1.25,
        }
    }
}

impl Settings {
    /// Section 8.1: `I = M − (P / F) × R`, a fraction of the run time. `process` is P and `file` is
    /// F, in bytes. With nothing left to read there is no gain, whatever P is.
    pub fn improvement(&self, process: f64, file: f64, reduction: f64) -> f64 {
        if file > 0.0 { self.max_improvement - process / file * reduction } else { f64::NEG_INFINITY }
    }

    /// R of a process that reads so many bytes/s, where copies of processes reach `copy_bw`.
    pub fn reduction(&self, read_bw: f64, copy_bw: Option<f64>) -> f64 {
        let derived = || read_bw / copy_bw.filter(|bw| *bw > 0.0).unwrap_or(self.process_copy_bw);
        self.reduction.unwrap_or_else(derived)
    }

    /// How much more time the program takes while all its own memory is one hop away, as a fraction
    /// of the run time. M is the share of the time that the distance of the file takes, so
    /// M / (1 − 1 / d) waits for the file, where d is the factor of the distance; the rest is the
    /// program's own.
    pub fn own_memory(&self) -> f64 {
        let waits = (self.max_improvement / (1.0 - 1.0 / DRAM_REMOTE_LATENCY)).min(1.0);
        (1.0 - waits) * OWN_MEMORY * (DRAM_REMOTE_LATENCY - 1.0)
    }
}
