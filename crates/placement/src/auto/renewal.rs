//! How fast the data that threads share is written anew.
//!
//! **Problem.** A database that compacts its tables, or a log that others read, is another set of blocks within a minute. New
//! blocks land where their writer runs, so a plan that moves writers also decides where readers will find their data.
//!
//! **Approach.** [`Renewal`] sums what is written to each file; older bytes fade over the horizon. The share of a process's
//! shared reads that hits such bytes, over the time in which they were written, is the rate at which its data is renewed.
//!
//! **Limits.** All bytes of a file count as equally likely to be read. What one process writes for another to read does not
//! count.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use crate::Snapshot;
use crate::processes::sane;

/// The largest share of reads that counts as new, so that the rate is finite.
const MOST_NEW: f64 = 0.99;
/// Written files that are remembered at a time, at most: as many as a snapshot is expected to list.
const MOST_FILES: usize = 100_000;

/// Bytes written to a file lately, and the last time it was touched.
#[derive(Clone, Copy, Debug)]
struct Written {
    bytes: f64,
    touched_s: f64,
}

/// What was written lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Renewal {
    /// By the hash of the file's name.
    files: FxHashMap<u64, Written>,
    /// How long each process has been seen, in seconds.
    seen_s: FxHashMap<u32, f64>,
}

fn key(file: &str) -> u64 {
    let mut hasher = FxHasher::default();
    file.hash(&mut hasher);
    hasher.finish()
}

impl Renewal {
    /// Takes one window in.
    pub fn window(&mut self, snapshot: &Snapshot, horizon_s: f64) {
        let (now_s, window_s) = (sane(snapshot.time_s), sane(snapshot.window_s));
        let kept = (-window_s / horizon_s).exp();
        for written in self.files.values_mut() {
            written.bytes *= kept;
        }
        let mut seen_s = FxHashMap::default();
        for t in &snapshot.threads {
            seen_s.entry(t.pid).or_insert_with(|| self.seen_s.get(&t.pid).copied().unwrap_or(0.0) + window_s);
            for used in &t.files {
                let (key, bytes) = (key(&used.file), used.write_bytes.total() as f64);
                if let Some(written) = self.files.get_mut(&key) {
                    (written.bytes, written.touched_s) = (written.bytes + bytes, now_s);
                } else if bytes > 0.0 && self.files.len() < MOST_FILES {
                    self.files.insert(key, Written { bytes, touched_s: now_s });
                }
            }
        }
        self.seen_s = seen_s;
        self.files.retain(|_, written| (0.0..horizon_s).contains(&(now_s - written.touched_s)));
    }

    /// The share of a file's bytes that is new.
    pub fn new_share(&self, file: &str, bytes: f64) -> f64 {
        self.files.get(&key(file)).map_or(0.0, |written| (written.bytes / bytes.max(f64::MIN_POSITIVE)).min(1.0))
    }

    /// The rate per second at which a process's data is renewed, this share of its reads being new.
    pub fn rate(&self, pid: u32, new_share: f64, horizon_s: f64) -> f64 {
        let seen_s = self.seen_s.get(&pid).copied().unwrap_or(0.0);
        // Bytes written t ago count as exp(-t / horizon).
        let written_in_s = horizon_s * (1.0 - (-seen_s / horizon_s).exp());
        -(1.0 - new_share.clamp(0.0, MOST_NEW)).ln() / written_in_s.max(f64::MIN_POSITIVE)
    }
}
