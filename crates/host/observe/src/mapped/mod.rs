//! Which pages of mapped files a process uses, and on which node they are (SysMon-N, NPC'20,
//! section 2.1).
//!
//! **Problem.** Once a page of a file is mapped, the program reads it with loads that the kernel
//! does not see. The processor notes them: it sets a bit in the page table. SysMon-N reads these
//! bits in a kernel module.
//!
//! **Approach.** BPF programs read the page table ([`kernel`]), the frame gives the node
//! ([`places`]), and writing to the process's `clear_refs` clears the bits where the kernel can do
//! that ([`rows`]). [`heat`] has the rule for what is hot. Only mappings of files of at least
//! [`LEAST_BYTES`] are looked at, and not those that hold programs. [`Mapped`] samples the
//! processes it is asked about one after the other, as often as a share of a CPU allows, and a
//! share of each process's time: a program loses a third of a microsecond for each page whose bit
//! the processor must set again.
//!
//! **Where SysMon-N differs.** It looks at persistent memory only (section 2.1); here mapped files
//! in the page cache count as well. It does not say how many accesses make a page hot; here it is 2
//! of the last 4 samples. It compares nodes within the module; here the policy does.
//!
//! **Limits.** x86-64 only. Clearing the bits makes the kernel's reclaim take the pages for less
//! used than they are. A page that stays in a processor's translation cache looks cold, and so does
//! one whose bit something else has cleared: DAMON, or reclaim when memory is short. A private
//! mapping's own copies of pages count as the file's. A process whose first thread has ended is not
//! seen.

mod entry;
mod heat;
pub(super) mod kernel;
pub(super) mod places;
mod process;
mod rows;
mod watcher;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use placement::MappedMemory;
use rustc_hash::FxHashMap;
use topology::Topology;

pub use heat::{Heat, Rule, Sum, Sums};
pub use kernel::Mapping;
pub use process::Region;
pub use rows::Row;
pub use watcher::{Watcher, to_sample};

use super::types::ObserveError;
use super::weights::at_least;
use kernel::Kernel;
use places::Places;
use process::Process;

/// Smaller mappings are not looked at: N-Policy ignores processes that touch less than 4 MiB, and a
/// process has hundreds of small mappings (its libraries).
pub const LEAST_BYTES: u64 = 1 << 20;

/// The rule for windows: accessed in half of the last four samples. In windows of a second,
/// N-Policy's epoch of 10 s has room for twice as many.
pub const RULE: Rule = Rule { least: 2, of: 4 };

/// Part of the daemon's budget that sampling may take: of 3 % of a CPU, 1 %.
const SHARE: f64 = 1.0 / 3.0;

/// Share of its time that a process may lose by being sampled.
const LOST: f64 = 0.01;

/// N-Policy's epoch.
pub const EPOCH: Duration = Duration::from_secs(10);

/// What is known of a process is kept for so long after it was asked about last: a program that now
/// and then reads by calls is not a new one each time.
const REMEMBERED: Duration = Duration::from_secs(6 * EPOCH.as_secs());

/// Seconds for which an unused share is kept: an epoch.
const KEPT_S: f64 = EPOCH.as_secs() as f64;

/// Most processes that are remembered, and most pages of all of them together: 16 MiB. What has no
/// room is said in a note.
const PROCESSES_MOST: usize = 64;
const SLOTS_MOST: u64 = 2 * process::SLOTS_MOST;
const _: () = assert!(SLOTS_MOST * heat::SLOT_BYTES == 16 << 20);

pub struct Mapped {
    kernel: Kernel,
    places: Places,
    proc_root: PathBuf,
    clears_dax: bool,
    /// How long a process is left alone once it has had the samples of [`RULE`].
    pause: Duration,
    processes: FxHashMap<u32, Process>,
    /// CPU seconds that may be spent now. Negative after a dear sample.
    credit_s: f64,
    credited: Instant,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleCost {
    pub cpu_s: f64,
    /// Seconds that the process has lost, as estimated.
    pub lost_s: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MappedProcess {
    pub pid: u32,
    /// When it started, ns since boot.
    pub start_ns: u64,
    pub mapped: Vec<MappedMemory>,
}

impl Mapped {
    /// Loads the programs and checks that page tables can be read.
    ///
    /// # Errors
    ///
    /// [`ObserveError::Missing`] names what this kernel or machine lacks or refuses.
    pub fn open(proc_root: &Path, topology: &Topology) -> Result<Self, ObserveError> {
        let places = Places::read(proc_root, topology)?;
        Ok(Self {
            kernel: Kernel::open(places.end())?,
            places,
            proc_root: proc_root.to_owned(),
            clears_dax: at_least(&rustix::system::uname().release().to_string_lossy(), 6, 16),
            pause: Duration::ZERO,
            processes: FxHashMap::default(),
            credit_s: 0.0,
            credited: Instant::now(),
        })
    }

    /// The same, for whoever looks at it less often: once a process has had as many samples as it
    /// takes to tell what is hot, it is left alone for this long between two.
    #[must_use]
    pub fn pausing(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// Samples these processes, those first that have waited longest, until the budget is used up.
    /// Forgets others a minute after they were asked about last, or when their room is needed.
    /// Returns the latest figures of each that was asked about within an [`EPOCH`], whether sampled
    /// now or before, and what they do not show. `budget`: what the daemon may use, as a share of
    /// one CPU.
    pub fn sample(&mut self, pids: &[u32], budget: f64) -> Result<(Vec<MappedProcess>, Vec<String>), ObserveError> {
        let now = Instant::now();
        let share = budget * SHARE;
        let earned = now.duration_since(self.credited).as_secs_f64() * share;
        self.credit_s = (self.credit_s + earned).min(KEPT_S * share);
        self.credited = now;
        ask(&mut self.processes, pids, now);
        let mut order = pids.to_vec();
        // Never sampled comes first: `None` is less.
        order.sort_by_key(|pid| self.processes.get(pid).and_then(|process| process.sampled));
        for pid in order {
            if self.credit_s <= 0.0 {
                break;
            }
            make_room(&mut self.processes, pid, now);
            let later = match self.processes.get(&pid) {
                Some(process) => process.sampled.is_some_and(|at| {
                    at.elapsed() < self.pause(process.samples) || at.elapsed().as_secs_f64() * LOST < process.lost_s
                }),
                None => self.processes.len() >= PROCESSES_MOST,
            };
            if !later {
                let begun = cpu_s();
                let sampled = self.sample_one(pid);
                // A sample that fails, or whose process has ended, has its cost, too.
                self.credit_s -= cpu_s() - begun;
                sampled?;
            }
        }
        let mut notes = Vec::new();
        let mut all = Vec::new();
        for (pid, process) in &self.processes {
            if let Some(start_ns) = process.start_ns()
                && !process.mapped.is_empty()
                && now.saturating_duration_since(process.asked) < EPOCH
            {
                all.push(MappedProcess { pid: *pid, start_ns, mapped: process.mapped.clone() });
                notes.extend(process.notes.iter().cloned());
            }
        }
        all.sort_by_key(|process| process.pid);
        notes.sort();
        Ok((all, notes))
    }

    /// How long a process with so many samples is left alone.
    fn pause(&self, samples: u32) -> Duration {
        if samples < RULE.of { Duration::ZERO } else { self.pause }
    }

    /// Samples one process now, whatever the budget. Returns what it cost, or `None` if there is no
    /// such process (any more).
    pub fn sample_one(&mut self, pid: u32) -> Result<Option<SampleCost>, ObserveError> {
        let begun = cpu_s();
        let others: u64 = self.processes.iter().filter(|(other, _)| **other != pid).map(|(_, one)| one.slots()).sum();
        let process = self.processes.entry(pid).or_insert_with(|| Process::new(&self.proc_root, pid));
        process.limit(SLOTS_MOST.saturating_sub(others));
        if !process.sample(&mut self.kernel, &self.places, RULE, LEAST_BYTES, self.clears_dax)? {
            self.processes.remove(&pid);
            return Ok(None);
        }
        let lost_s = process.lost_s;
        Ok(Some(SampleCost { cpu_s: cpu_s() - begun, lost_s }))
    }

    /// The mappings of a sampled process, by rising address.
    pub fn regions(&self, pid: u32) -> Vec<&Region> {
        self.processes.get(&pid).map(|process| process.regions().collect()).unwrap_or_default()
    }

    /// Limits of the figures of a sampled process.
    pub fn notes(&self, pid: u32) -> Vec<String> {
        self.processes.get(&pid).map(|process| process.notes.clone()).unwrap_or_default()
    }
}

/// Notes that these processes were asked about, and forgets those that were not for too long.
fn ask(processes: &mut FxHashMap<u32, Process>, pids: &[u32], now: Instant) {
    for pid in pids {
        processes.get_mut(pid).into_iter().for_each(|process| process.asked = now);
    }
    processes.retain(|_, process| now.saturating_duration_since(process.asked) < REMEMBERED);
}

/// Forgets processes that are not asked about now, those first that were asked about longest ago,
/// until there is room for this one.
fn make_room(processes: &mut FxHashMap<u32, Process>, pid: u32, now: Instant) {
    loop {
        let others = || processes.iter().filter(|(other, _)| **other != pid);
        let slots: u64 = others().map(|(_, process)| process.slots()).sum();
        if others().count() < PROCESSES_MOST && slots + process::SLOTS_MOST <= SLOTS_MOST {
            return;
        }
        let left = others().filter(|(_, process)| process.asked < now);
        let Some(longest) = left.min_by_key(|(_, process)| process.asked).map(|(pid, _)| *pid) else { return };
        processes.remove(&longest);
    }
}

/// CPU seconds of the calling thread and of those that answer it.
fn cpu_s() -> f64 {
    linux::patient::cpu_ns() as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program wrote a line every other second, and was a new one each time.
    #[test]
    fn a_process_that_is_not_asked_about_for_a_while_is_remembered() {
        let now = Instant::now();
        let process = |pid| {
            let mut process = Process::new(Path::new("/none"), pid);
            (process.samples, process.asked) = (9, now);
            (pid, process)
        };
        let mut processes: FxHashMap<u32, Process> = (0..PROCESSES_MOST as u32).map(process).collect();
        ask(&mut processes, &[0], now + EPOCH);
        assert_eq!((processes.len(), processes[&1].samples), (PROCESSES_MOST, 9));
        // All but one left; they make room for others, one at a time.
        let others = 1..PROCESSES_MOST as u32;
        ask(&mut processes, &others.collect::<Vec<_>>(), now + 2 * EPOCH);
        make_room(&mut processes, 1, now + 2 * EPOCH);
        assert_eq!(processes.len(), PROCESSES_MOST, "it has its room");
        make_room(&mut processes, 1000, now + 2 * EPOCH);
        assert!(processes.len() == PROCESSES_MOST - 1 && !processes.contains_key(&0));
        processes.extend([process(1000)]);
        processes.get_mut(&1000).unwrap().asked = now + 2 * EPOCH;
        make_room(&mut processes, 1001, now + 2 * EPOCH);
        assert_eq!(processes.len(), PROCESSES_MOST, "all are asked about");
        ask(&mut processes, &[5], now + 2 * EPOCH + REMEMBERED);
        assert_eq!(processes.keys().collect::<Vec<_>>(), [&5]);
    }
}
