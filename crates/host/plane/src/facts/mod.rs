//! Facts about the files and processes that matter: size, path, bytes per node, where writes land,
//! what can be moved.
//!
//! **Problem.** The programs in the kernel see bytes go by, not how large a file is, where the rest
//! of it lies, or what else a process has in memory. Finding that out takes 25 ms for each GiB, and
//! opening somebody's file may wait for somebody.
//!
//! **Approach.** After each window a thread of its own ([`worker`]) looks at the files and
//! processes with at least a hundredth of the bytes, and at the processes whose mapped files are
//! sampled ([`wanted`]), the longest unseen first, until a budget of CPU time is used up. Large
//! files are sampled. The plane waits for it, but not for long: what is not finished then shows up
//! in a later window. Files are opened by inode, and what their file system does with their data is
//! a table ([`act::files`]).
//!
//! **Limits.** Figures can be up to a minute old; older ones are left out, and a note says how many
//! are missing. While a file is looked at, it is open once more.

mod known;
mod wanted;
mod worker;

use std::io;
use std::path::Path;
use std::time::Duration;

use placement::{Process, Thread};
use rustc_hash::FxHashSet;

use observe::FileSeen;
use wanted::Wanted;
use worker::Worker;

/// Parts of the daemon's budget that the worker may use, one for each step of shedding: of 3 % of a
/// CPU, 1 % and 0.25 %. Observing 10,000 threads takes about half of the budget.
const SHARES: [f64; 3] = [1.0 / 3.0, 1.0 / 12.0, 0.0];

/// Longest wait for the worker after the first window: the only one that `plan` has. The worker may
/// use a tenth of that then; the rest is for busy machines.
const WAIT_START: Duration = Duration::from_secs(1);
/// The same after a window in which something matters that was never looked at: ten large files
/// take as long.
const WAIT_NEW: Duration = Duration::from_millis(100);
/// The same where everything has been looked at before: twice what the worker earns in a window of
/// a second.
const WAIT: Duration = Duration::from_millis(20);

pub(crate) struct Facts {
    worker: Worker,
    /// The daemon's budget, as a share of one CPU.
    budget: f64,
    /// Index in [`SHARES`].
    step: usize,
}

impl Facts {
    /// Starts the worker. It keeps the privileges that it needs; others give up theirs later.
    pub fn start(proc_root: &Path, budget: f64) -> io::Result<Self> {
        Ok(Self { worker: Worker::start(proc_root)?, budget, step: 0 })
    }

    /// Looks at what matters in a window of this length, and adds what is known to its files.
    /// `mapped`: the processes whose mapped files are known. Returns the processes that are known,
    /// and notes.
    pub fn window(
        &self,
        length: Duration,
        files: &mut [FileSeen],
        threads: &[Thread],
        mapped: &FxHashSet<u32>,
    ) -> (Vec<Process>, Vec<String>) {
        let share = self.share();
        let wanted = Wanted::new(files, threads, mapped);
        let wait = match self.worker.knows(&wanted) {
            _ if share == 0.0 => Duration::ZERO,
            true => WAIT,
            false if self.worker.is_new() => WAIT_START,
            false => WAIT_NEW,
        };
        self.worker.look(wanted, length.mul_f64(share), wait);
        let (processes, missing) = self.worker.fill(files);
        let mut notes = Vec::new();
        if let Some(stuck) = missing.stuck {
            notes.push(format!("files: {stuck} has kept homenode waiting; figures of files and processes are old"));
        }
        if missing.unseen > 0 && share > 0.0 {
            notes.push(format!(
                "files: {} of {} files and processes that matter have no size or place yet: the budget is {} % of a CPU",
                missing.unseen,
                missing.wanted,
                (1e4 * share).round() / 100.0
            ));
        }
        if share == 0.0 {
            notes
                .push("files: sizes, places and the memory of processes are not looked at: over the budget".to_owned());
        }
        if let Some(why) = missing.trouble {
            notes.push(format!("files: {} could not be looked at: {why}", missing.troubled));
        }
        (processes, notes)
    }

    fn share(&self) -> f64 {
        self.budget * SHARES.get(self.step).copied().unwrap_or(0.0)
    }

    /// Looks less often; `None` if that is not possible.
    pub fn shed(&mut self) -> Option<String> {
        if self.step + 1 >= SHARES.len() {
            return None;
        }
        self.step += 1;
        Some(self.now())
    }

    /// Takes one [`Facts::shed`] back.
    pub fn relax(&mut self) -> Option<String> {
        self.step = self.step.checked_sub(1)?;
        Some(self.now())
    }

    fn now(&self) -> String {
        match self.share() {
            0.0 => "the places of files and the memory of processes are no longer looked at".to_owned(),
            share => format!(
                "looking for the places of files and the memory of processes may take {} % of a CPU",
                (1e4 * share).round() / 100.0
            ),
        }
    }
}
