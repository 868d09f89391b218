//! What the memory of each node does for the CPUs of each node: latency, bandwidth, and what a
//! cached `read()` costs.
//!
//! **Problem.** Firmware tells rated bandwidths, if any, and no latency under load. Whether moving
//! threads or files pays on a machine depends on both.
//!
//! **Approach.** For each pair of a node with CPUs and a node with memory: the latency of a chain
//! of dependent loads, alone ([`chase`](kernels::chase)); then reads, writes and two reads for each
//! write, first as fast as all CPUs can, then at rising shares of that while one CPU measures the
//! latency; then `pread` of 4 KiB and of 1 MiB of a file whose pages are on the node. The whole
//! takes no longer than the caller allows: each step gets its share of the time. Where that is long
//! enough, each pair is measured three times, and the best counts: others can only make memory
//! slower. How far the rounds lie apart ([`Pair::spread`](topology::measured::Pair)) and who used
//! the machine meanwhile ([`quiet`]) stands beside the figures. Who asks to be `careful` gets only
//! the times of cached reads on a busy machine, which one thread at a time measures.
//!
//! **Limits.** Other programs and other virtual machines on the same processor are seen only as far
//! as Linux counts their time. Stores on processors other than x86-64 go through the cache, where
//! each line is read first; those reads are not counted. The cached file is in tmpfs: its pages are
//! as in the page cache of any file system, but a file system with large folios spends less time
//! per page.

mod buffer;
mod cached;
pub mod kernels;
mod load;
pub mod quiet;
mod steps;

use std::io;
use std::time::Duration;

pub use steps::{MOST_BYTES, Progress, Settings, measure};

#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// This is no time or no place to measure.
    #[error("{0}")]
    Refused(quiet::Refusal),
    /// So many pairs do not fit into the time.
    #[error("it takes at least {} s here, for all pairs of nodes ({pairs})", needed.as_secs_f64().ceil())]
    TooShort {
        pairs: usize,
        /// Least time.
        needed: Duration,
    },
    #[error("the time was over after {done} of {pairs} pairs of nodes: something else had the CPUs or the memory")]
    TimeOver { done: usize, pairs: usize },
    #[error("stopped")]
    Stopped,
    #[error("{what}: {source}")]
    Failed {
        /// What could not be done.
        what: String,
        source: io::Error,
    },
}

impl MeasureError {
    pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Failed { what, source }
    }
}
