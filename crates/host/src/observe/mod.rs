//! Who reads and writes which file, and on which node that file's pages are.
//!
//! **Problem.** The kernel counts file bytes per process, but not where in memory they were.
//!
//! **Approach.** Small BPF programs (`src/bpf`) on the page cache's read, fault and write paths look at the folios
//! themselves and add up bytes per (thread, file, node), counting one event in 2^k; one `iter/task` pass per window tells
//! what every thread is and did. What the kernel lets us attach is probed ([`probe`]) and turned into a configuration by
//! pure rules ([`choose`]). Every byte between two calls of [`Observer::window`] is in the later one's window.
//!
//! **Limits.** What is seen of each path:
//!
//! | path | function hooks (fexit) | tracepoints only |
//! |---|---|---|
//! | read, pread, readv, splice, sendfile, io_uring, libaio | exact range of every batch | whole pages, except read and pread (exact on x86-64); a page that is read in one at a time because readahead failed is missed |
//! | mapped files | pages mapped by fault-around, by 2 MiB mappings (x86-64), and single faults; reads of a page that is mapped already are not seen | not 2 MiB mappings, which large folios of 2 MiB get; pages around a fault that had to wait for the disk can count again (seen: up to a quarter more) |
//! | writes to ext4, xfs | exact | exact; xfs before the write: pages that are not there yet count on the writer's node |
//! | writes to tmpfs, f2fs, fat, nfs, gfs2, block devices | exact | not tmpfs; others once per page until written back |
//! | writes to btrfs, 9p and others with a write path of their own | once per page until written back | the same |
//! | writes through a mapping | as the fault's read | the same, and as writes where no own hook knows the file system |
//! | tmpfs reads | exact | not seen |
//! | DAX read and write | on the node of the block device | not seen |
//! | file systems with a cache of their own (ZFS), FUSE without page cache, O_DIRECT | not seen: no page cache | not seen |
//!
//! A counted event costs about 0.2 µs, one that is passed over 20 ns beside what the kernel takes for any BPF program at
//! that place (an empty one took 55 ns on a machine with retpolines). `bench/observe/run` measures it.
//!
//! A file is named by its superblock's device and inode number; on btrfs and overlayfs `stat` shows another device.

mod assemble;
mod cause;
pub mod choose;
mod drain;
pub mod hooks;
pub mod probe;
mod programs;
mod records;
mod scope;
mod slices;
mod types;
mod weights;

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use topology::Topology;

pub use choose::{Configuration, choose};
pub use hooks::Hook;
pub use probe::{Capabilities, Fact};
pub use types::{Cost, Hooks, Kin, ObserveError, Observed, ObservedThread, Origin, Scope, Settings};

use assemble::Places;
use programs::{Machine, Programs, Refused};
use records::{Counters, MARK_MOVED, MARK_TREE};
use scope::Filter;
use slices::{Attached, HookCost, Slicer, Slices};

/// Observes until it is dropped; nothing stays in the kernel then.
pub struct Observer {
    programs: Programs,
    configuration: Configuration,
    capabilities: Capabilities,
    places: Places,
    filter: Filter,
    settings: Settings,
    before: Before,
    /// Whether a thread has ever been watched.
    watching: Cell<bool>,
}

/// Where the last window ended.
struct Before {
    at: Instant,
    /// How long the hook on the read path had been attached by then.
    attached: Attached,
    counters: Vec<Counters>,
    tasks_passed: u64,
    cpu_s: f64,
}

impl Observer {
    /// Probes the kernel, loads what it takes and attaches it.
    ///
    /// # Errors
    ///
    /// [`ObserveError::Missing`] names what the kernel lacks or does not allow; nothing stays attached.
    pub fn open(settings: &Settings, topology: &Topology) -> Result<Self, ObserveError> {
        let mut capabilities = Capabilities::probe();
        let mut filter = Filter::new(&settings.scope)?;
        let places = Places::new(topology);
        let machine = Machine {
            possible_cpus: libbpf_rs::num_possible_cpus()
                .map_err(|source| ObserveError::Bpf { step: "counting the possible CPUs".to_owned(), source })?,
            nodes: topology.nodes.iter().map(|n| n.id.0).collect(),
            kernel: capabilities.kernel.clone(),
            node_bits: capabilities.node_bits.unwrap_or(0),
            generic_pos_advanced: generic_pos_advanced(&capabilities),
        };
        let (mut programs, configuration) = loop {
            let configuration = choose(&capabilities, settings);
            if let Some((capability, cause)) = configuration.blocked {
                return Err(ObserveError::Missing { capability, cause });
            }
            match Programs::start(&configuration.hooks, settings, &machine) {
                Ok(programs) => break (programs, configuration),
                // Each round loses one hook, so this ends.
                Err(Refused::Hook(hook, cause)) => _ = capabilities.hooks.insert(hook, Fact::missing(cause)),
                Err(Refused::All(error)) => return Err(error),
            }
        };
        if let Scope::Tree(root) = settings.scope {
            mark_tree(&mut programs, &mut filter, root)?;
        }
        // Where the counting of CPU time starts.
        programs.pass()?;
        let ended = programs.flip();
        programs.drain(ended)?;
        let before = Before {
            at: Instant::now(),
            attached: programs.reads().map(Slicer::attached).unwrap_or_default(),
            counters: programs.counters()?,
            tasks_passed: programs.tasks_passed(),
            cpu_s: cpu_s(),
        };
        Ok(Self {
            programs,
            configuration,
            capabilities,
            places,
            filter,
            settings: settings.clone(),
            before,
            watching: Cell::new(false),
        })
    }

    /// What is attached, and what is not seen.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// What the kernel can do, with what turned out when the programs were attached.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Waits, then tells what happened since the last window ended (or since [`Observer::open`]). The wait ends early when
    /// the calling thread is unparked ([`std::thread::Thread::unpark`]): who is to stop need not wait for a long window.
    pub fn window(&mut self, length: Duration) -> Result<Observed, ObserveError> {
        std::thread::park_timeout(length);
        let ended = self.programs.flip();
        let at = Instant::now();
        // Programs that were running when the table was changed finish during the pass.
        let attached = self.programs.reads().map(Slicer::attached).unwrap_or_default();
        let pass = self.programs.pass()?;
        let mut entries = self.programs.drain(ended)?;
        let counters = self.programs.counters()?;
        let tasks_passed = self.programs.tasks_passed();

        let since: Vec<Counters> = counters
            .iter()
            .enumerate()
            .map(|(cpu, now)| now.since(&self.before.counters.get(cpu).copied().unwrap_or_default()))
            .collect();
        let mut sum = Counters::default();
        since.iter().for_each(|cpu| sum.add(cpu));
        let length_s = at.duration_since(self.before.at).as_secs_f64();
        let slices = Slices {
            attached_s: attached.since(self.before.attached, length_s),
            length_s,
            cost: self.programs.reads().map_or_else(HookCost::default, |reads| reads.cost),
            counted: 1024.0 * sum.counted as f64 / sum.stood_for.max(1) as f64,
            refused: self.programs.reads().and_then(Slicer::refused),
        };
        assemble::unslice(&slices, &pass, &mut entries);
        self.set_slices(&slices, &since);
        let exited: Vec<u64> = since.iter().map(|cpu| cpu.exited_cpu_ns).collect();
        self.filter.learn(&pass.tasks);
        let all = assemble::assemble(&pass, entries, &self.filter, &self.places, &exited);
        let notes = self.notes(&sum, &slices, all.odd_node_bytes);
        let cpu = cpu_s();
        let observed = Observed {
            time_s: clock_s(ClockId::Boottime),
            window_s: length_s,
            threads: all.threads,
            node_cpu_s: all.node_cpu_s,
            node_read: all.node_read,
            node_write: all.node_write,
            files: all.files,
            notes,
            tasks: tasks_passed.saturating_sub(self.before.tasks_passed) as usize,
            cost: Cost {
                cpu_s: cpu - self.before.cpu_s,
                rss_bytes: rss_bytes(),
                kernel_bytes: self.programs.kernel_bytes(),
            },
        };
        self.before = Before { at, attached, counters, tasks_passed, cpu_s: cpu };
        Ok(observed)
    }

    /// Decides how long the slices of the next window are.
    fn set_slices(&self, slices: &Slices, since: &[Counters]) {
        let busiest = since.iter().map(|cpu| cpu.reads).max().unwrap_or(0) as f64 / 1024.0;
        if let Some(reads) = self.programs.reads()
            && !self.settings.exact
            && slices.attached_s > 0.0
        {
            let length = Duration::from_secs_f64(slices.length_s);
            reads.set_share(slices.cost.share(length, busiest / slices.attached_s));
        }
    }

    /// Watches the thread that started then (at least in the same hundredth of a second), which is about to be moved, and the
    /// threads that will be born of it. On an error it is not watched.
    pub fn watch(&self, tid: u32, start_ns: u64) -> Result<(), ObserveError> {
        self.watching.set(true);
        // What an earlier move left must not judge this one.
        self.programs.mark(tid, start_ns, MARK_MOVED).inspect_err(|_| self.programs.unmark(tid))?;
        // The mark of a thread that ended before it was marked would stay for ever.
        if let Ok(false) = self.settings.proc_root.join(tid.to_string()).try_exists() {
            self.programs.unmark(tid);
        }
        Ok(())
    }

    /// The affinity of this thread is not ours any more, and those born of it from now on inherit nothing of ours.
    pub fn release(&self, tid: u32) -> Result<(), ObserveError> {
        self.programs.mark_own(tid)
    }

    /// Watched threads, and those born of them over any number of generations since, that are alive now.
    pub fn kin(&self) -> Result<Vec<Kin>, ObserveError> {
        if self.watching.get() { self.programs.kin() } else { Ok(Vec::new()) }
    }

    fn notes(&self, sum: &Counters, slices: &Slices, odd_node_bytes: u64) -> Vec<String> {
        let mut notes = self.configuration.notes.clone();
        if slices.sliced() {
            let part = 100.0 * slices.attached_s / slices.length_s;
            notes.push(format!("reads were looked at for {part:.0} % of the window, to cost them little, and scaled"));
        }
        if let Some(error) = &slices.refused {
            notes.push(format!("the hook on the read path could not be attached again for a while: {error}"));
        }
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        // In 1/1024ths; below one in 1.05 the sample is as good as everything.
        let stood_for = sum.stood_for as f64 / 1024.0 / sum.counted.max(1) as f64;
        if stood_for > 1.05 {
            notes.push(format!("sampled: 1 read, fault or write in {stood_for:.1} was counted"));
        }
        if sum.full_events > 0 {
            notes.push(format!(
                "the table of {} entries was full: {:.1} MB are in the nodes' sums but not in those of threads and files",
                self.settings.max_entries,
                megabytes(sum.full_bytes)
            ));
        }
        if sum.unknown_read + sum.unknown_written > 0 {
            notes.push(format!(
                "{:.1} MB read and {:.1} MB written were on pages that were gone before they could be looked at",
                megabytes(sum.unknown_read),
                megabytes(sum.unknown_written)
            ));
        }
        if odd_node_bytes > 0 {
            notes.push(format!("{:.1} MB were on nodes that this machine does not have", megabytes(odd_node_bytes)));
        }
        if sum.children_full > 0 {
            notes.push(format!("{} births of watched threads found no room", sum.children_full));
        }
        notes
    }
}

/// By trial where that can be, else by the kernel's version.
fn generic_pos_advanced(capabilities: &Capabilities) -> bool {
    let hooked = capabilities.hooks.get(&Hook::WriteGeneric).is_some_and(Fact::available);
    let tried = if hooked && capabilities.functions.available() { programs::generic_pos_advanced() } else { Ok(true) };
    tried.unwrap_or_else(|cause| {
        tracing::debug!(%cause, "where writes leave the file position was not found out");
        weights::at_least(&capabilities.kernel, 6, 5)
    })
}

/// Marks a process and its descendants as they are now; those that come later inherit the mark.
fn mark_tree(programs: &mut Programs, filter: &mut Filter, root: u32) -> Result<(), ObserveError> {
    programs.mark(root, 0, MARK_TREE)?;
    // The first pass shows every task; the second those that ran meanwhile, so also those born of a parent not marked yet.
    for _ in 0..2 {
        let pass = programs.pass()?;
        filter.learn(&pass.tasks);
        for task in pass.tasks.iter().filter(|task| filter.contains(task) && !task.in_tree) {
            programs.mark(task.tid, task.start_ns, MARK_TREE)?;
        }
    }
    Ok(())
}

/// Seconds on a clock.
fn clock_s(clock: ClockId) -> f64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// CPU seconds of this process so far.
fn cpu_s() -> f64 {
    clock_s(ClockId::ProcessCPUTime)
}

/// Resident memory of this process: second field of /proc/self/statm, in pages.
fn rss_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
