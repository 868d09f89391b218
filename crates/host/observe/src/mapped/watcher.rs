//! [`Mapped`] in a thread of its own.
//!
//! **Problem.** A process can hold the lock of its memory for as long as it likes, for example in a
//! fault that a FUSE server of its own does not answer. Whatever asks the kernel about that memory
//! waits, and a window must not.
//!
//! **Approach.** A thread samples the processes named last, and keeps its results for whoever asks.
//! What takes the lock of a process's memory it asks of a thread that may be left behind
//! ([`linux::patient`]): the accessed bits of a process that does not answer are not cleared, and
//! those of others are. It gives up all privileges but that of opening other users' `clear_refs`.
//!
//! **Limits.** A process that does not answer makes its sample late by less than half a second.
//! Should the thread wait all the same, the figures are withheld after [`PATIENCE`], and a note
//! names the reason.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use linux::privileges;
use placement::Thread;
use rustix::thread::CapabilitySet;
use topology::Topology;

use super::{Mapped, MappedProcess};
use crate::types::ObserveError;

/// A sample takes tenths of a second at most. Figures that are older than this, N-Policy's epoch,
/// are out of date.
const PATIENCE: Duration = Duration::from_secs(10);

/// Results of the thread.
#[derive(Default)]
struct Latest {
    processes: Vec<MappedProcess>,
    notes: Vec<String>,
    /// Since when the thread has been sampling.
    busy: Option<Instant>,
}

/// The thread. It ends when this is dropped.
pub struct Watcher {
    ask: SyncSender<Vec<u32>>,
    latest: Arc<Mutex<Latest>>,
}

impl Watcher {
    /// Starts the thread and waits until it can sample. `budget`: what the daemon may use, as a
    /// share of one CPU. `pause`: see [`Mapped::pausing`].
    pub fn start(proc_root: &Path, topology: &Topology, budget: f64, pause: Duration) -> Result<Self, ObserveError> {
        // One question may wait; a newer one is worth no more.
        let (ask, asked) = mpsc::sync_channel::<Vec<u32>>(1);
        let (tell, told) = mpsc::channel();
        let latest = Arc::new(Mutex::new(Latest::default()));
        let (shared, proc_root, topology) = (latest.clone(), proc_root.to_owned(), topology.clone());
        thread::Builder::new()
            .name("hotness".to_owned())
            .spawn(move || {
                let mut mapped = match Mapped::open(&proc_root, &topology) {
                    Ok(mapped) => mapped.pausing(pause),
                    Err(error) => return drop(tell.send(Err(error))),
                };
                if let Err(error) =
                    privileges::keep_only(CapabilitySet::DAC_OVERRIDE | privileges::to_observe(&proc_root))
                {
                    tracing::warn!("the thread that samples mapped files keeps its privileges: {error}");
                }
                // The starter waits for this.
                let _ = tell.send(Ok(()));
                for pids in asked {
                    lock(&shared).busy = Some(Instant::now());
                    let sampled = mapped.sample(&pids, budget);
                    let mut latest = lock(&shared);
                    latest.busy = None;
                    match sampled {
                        Ok((processes, notes)) => (latest.processes, latest.notes) = (processes, notes),
                        Err(error) => {
                            latest.processes.clear();
                            latest.notes = vec![format!("mapped files: {error}")];
                        }
                    }
                }
            })
            .map_err(|source| ObserveError::Io { what: "starting a thread".to_owned(), source })?;
        told.recv().unwrap_or_else(|_| {
            Err(ObserveError::Io { what: "starting a thread".to_owned(), source: std::io::Error::other("it ended") })
        })?;
        Ok(Self { ask, latest })
    }

    /// Has these processes sampled, unless the thread has enough to do, and returns what it found
    /// last and what that does not show. Does not wait.
    pub fn window(&self, pids: Vec<u32>) -> (Vec<MappedProcess>, Vec<String>) {
        let asked = self.ask.try_send(pids);
        let latest = lock(&self.latest);
        if matches!(asked, Err(TrySendError::Disconnected(_))) {
            return (
                Vec::new(),
                vec!["mapped files are not observed any more: the thread that did has failed".to_owned()],
            );
        }
        match latest.busy {
            Some(since) if since.elapsed() > PATIENCE => {
                (Vec::new(), vec!["mapped files are not observed now: the kernel does not answer".to_owned()])
            }
            _ => (latest.processes.clone(), latest.notes.clone()),
        }
    }
}

/// Processes whose mapped files are worth sampling: those with a thread that may be moved, and that
/// used at least a hundredth of a CPU, because loads from memory take CPU time. The busiest come
/// first.
pub fn to_sample<'a>(threads: impl IntoIterator<Item = &'a Thread>, window_s: f64) -> Vec<u32> {
    let mut processes: BTreeMap<u32, (f64, bool)> = BTreeMap::new();
    for thread in threads {
        let (cpu_s, movable) = processes.entry(thread.pid).or_default();
        *cpu_s += thread.cpu_s;
        *movable |= thread.pinned.is_none();
    }
    let mut busy: Vec<(u32, f64)> = processes
        .into_iter()
        .filter(|(_, (cpu_s, movable))| *movable && *cpu_s >= 0.01 * window_s)
        .map(|(pid, (cpu_s, _))| (pid, cpu_s))
        .collect();
    busy.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    busy.into_iter().map(|(pid, _)| pid).collect()
}

fn lock(latest: &Mutex<Latest>) -> MutexGuard<'_, Latest> {
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_processes_that_may_be_moved_are_sampled_the_busiest_first() {
        let thread = |pid, cpu_s, pinned: Option<&str>| Thread {
            pid,
            cpu_s,
            pinned: pinned.map(str::to_owned),
            ..Thread::default()
        };
        let threads = [
            thread(1, 0.004, None),
            thread(2, 0.011, None),
            thread(3, 1.0, Some("is a kernel thread")),
            // Together as much as they need, and one of them may be moved.
            thread(4, 0.5, Some("has a custom affinity")),
            thread(4, 0.001, None),
            thread(5, 0.006, None),
            thread(5, 0.006, None),
        ];
        assert_eq!(to_sample(&threads, 1.0), [4, 5, 2]);
        assert_eq!(to_sample(&threads, 2.0), [4]);
        assert!(to_sample([], 1.0).is_empty());
    }
}
