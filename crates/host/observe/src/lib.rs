//! Which thread reads and writes which file, and on which node the file's pages are.
//!
//! **Problem.** The kernel counts file bytes per process, but not which node they come from.
//!
//! **Approach.** Small BPF programs (`src/bpf`) on the page cache's read, fault and write paths
//! inspect the folios and add up bytes per (thread, file, node); they count one event in 2^k. Once
//! a window, an `iter/task` pass reports every thread's CPU time, affinity and start time.
//! [`probe`] finds out what the kernel lets us attach, and pure rules turn that into a
//! configuration ([`choose`]). Every byte between two calls of [`Observer::window`] is in the later
//! call's window.
//!
//! **Limits.** What each kind of hook sees of each path:
//!
//! | path | function hooks (fexit) | tracepoints only |
//! |---|---|---|
//! | read, pread, readv, copy_file_range, io_uring, libaio | exact range of every batch | whole pages, except read and pread (exact on x86-64); misses pages that the kernel reads in singly because readahead failed |
//! | splice, sendfile | counted apart, as handed on: the caller's CPU does not touch the bytes. Also where they go to a file, for which the kernel copies them | the same; those of io_uring and of 32-bit programs count as read |
//! | mapped files | pages mapped by fault-around, by 2 MiB mappings (x86-64), and single faults; does not see reads of a page that is already mapped | does not see 2 MiB mappings (of 2 MiB folios); a fault in a system call, or not on x86-64, counts all pages around it, mapped before or not |
//! | writes to ext4, xfs | exact | exact; xfs is counted before the write: pages that do not exist yet count on the writer's node |
//! | writes to tmpfs, f2fs, fat, nfs, gfs2, block devices | exact | tmpfs: not seen; others: once per page until written back |
//! | writes to btrfs, 9p and others with their own write path | once per page until written back | the same |
//! | writes through a mapping | as the fault's read | the same, and also as writes where no hook of its own covers the file system |
//! | tmpfs reads | exact | not seen |
//! | mapped files of tmpfs | pages mapped by fault-around; not single faults, which go past the page cache's | the same |
//! | hugetlbfs | not seen: it reads and faults past the page cache's functions | not seen |
//! | DAX read and write | on the node of the block device; of device-mapper's, on the node that all its parts are on, once a window has listed the file ([`Observer::locate`]); not counted if they are on several, or the node is unknown (virtiofs), and a note says so | not seen |
//! | OpenZFS: reads through its cache | on the node of the copied block (x86-64) | not seen |
//! | OpenZFS: writes; FUSE without page cache, O_DIRECT | not seen: no page cache | not seen |
//!
//! A counted event costs about 0.2 µs and a skipped one 20 ns, on top of what the kernel spends on
//! any BPF program there (an empty program took 55 ns on a machine with retpolines); where somebody
//! reads fast, the hook is attached for a part of the time only (`slices`). `bench/observe/run`
//! measures this.
//!
//! What homenode's own processes touch is not counted ([`Observer::ignore_own_program`]): processes
//! whose program is the same file.
//!
//! A file's name is its superblock's device and its inode number; on btrfs it is the subvolume's
//! device, which `stat` shows. On overlayfs `stat` shows another inode than the one that is read
//! ([`inode`] finds that). Files of one name are one to everybody: those of bcachefs that have the
//! same number in several snapshots; those of FUSE, 9p and CIFS whose servers give a number twice;
//! and on btrfs, where it is a module that was loaded after homenode, those of several subvolumes.

/// The module of a skeleton that the build has made. Lints are for code that people write.
macro_rules! skeleton {
    ($(#[$attribute:meta])* $visibility:vis mod $module:ident = $file:literal) => {
        $(#[$attribute])*
        #[allow(
            clippy::all,
            clippy::pedantic,
            clippy::undocumented_unsafe_blocks,
            clippy::unwrap_used,
            clippy::expect_used
        )]
        $visibility mod $module {
            include!(concat!(env!("OUT_DIR"), "/", $file));
        }
    };
}

mod arc;
mod assemble;
mod cause;
pub mod choose;
mod crowd;
mod drain;
mod fact;
mod frames;
mod grace;
pub mod groups;
pub mod hooks;
pub mod inode;
pub mod mapped;
mod owners;
mod page_nodes;
mod pass;
pub mod probe;
mod probe_run;
mod programs;
mod records;
mod scope;
mod slices;
mod types;
mod weights;
pub mod who;

skeleton!(
    /// Programs that only tests load.
    #[doc(hidden)]
    pub mod checks = "checks.skel.rs"
);

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use placement::ranges::Ranges;
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{FileId, NodeId, ThreadId, Topology};

/// Decodes bytes as each record of the BPF programs, for tests with any bytes.
#[doc(hidden)]
pub fn decode_any(bytes: &[u8]) {
    let mut all = records::Pass::default();
    let most = pass::Most { records: 1000, bytes: 1 << 20, cpu: Duration::from_secs(1) };
    _ = pass::read(&mut &*bytes, most, records::Pass::first, |record| all.take(record));
    let pass = all;
    pass.tasks.iter().for_each(|task| _ = (pass.mask(task), task.comm(), task.key(), task.process(), task.parent()));
    _ = (records::pending_entry(bytes), Counters::decode(bytes), records::Watched::decode(bytes));
    _ = (records::range(bytes, bytes), records::descendant(bytes), records::group(bytes));
}

pub use choose::{Configuration, choose};
pub use fact::Fact;
pub use hooks::Hook;
pub use page_nodes::{NodeBits, NodeSource};
pub use probe::Capabilities;
pub use types::{Cost, FileSeen, Hooks, ObserveError, Observed, ObservedThread, Scope, Settings};

use assemble::{Assembled, Places};
use crowd::Crowd;
use groups::Groups;
use linux::births::Descendant;
use linux::clock::{self, ClockId};
use linux::threads::Threads;
use placement::rules::Rules;
use programs::{Machine, Programs, Refused};
use records::intf::{MARK_MOVED, MARK_TREE, WEIGHT_ONE};
use records::{Counters, Record};
use scope::Filter;
use slices::{Attached, HookCost, Slicer, Slices};

/// Observes until dropped; then nothing stays in the kernel.
pub struct Observer {
    programs: Programs,
    configuration: Configuration,
    capabilities: Capabilities,
    places: Places,
    filter: Filter,
    groups: Groups,
    crowd: Crowd,
    settings: Settings,
    /// Of a table.
    entries: u32,
    before: Before,
    /// Files of the last window on DAX that the kernel told no node for, and the nodes of those of
    /// the window before.
    unplaced: FxHashSet<FileId>,
    located: FxHashMap<FileId, NodeId>,
    /// The heat of ranges of files, if it is asked for.
    ranges: Option<Ranges>,
    /// Whether a thread has ever been watched.
    watching: Cell<bool>,
}

/// Reads what threads have used, and says when: the middle of a pass, which reads one thread after
/// the other.
fn pass_now(programs: &mut Programs) -> Result<(records::Pass, Instant), ObserveError> {
    let begun = Instant::now();
    let pass = programs.pass()?;
    Ok((pass, begun + begun.elapsed() / 2))
}

/// Where the last window ended.
struct Before {
    at: Instant,
    /// When the CPU times of threads were read.
    passed: Instant,
    /// How long the hook on the read path had been attached by then.
    attached: Attached,
    counters: Vec<Counters>,
    tasks_passed: u64,
    cpu_s: f64,
}

impl Observer {
    /// Probes the kernel, then loads and attaches the programs that it accepts.
    ///
    /// # Errors
    ///
    /// [`ObserveError::Missing`] names what the kernel lacks or refuses; nothing stays attached.
    pub fn open(settings: &Settings, topology: &Topology) -> Result<Self, ObserveError> {
        let mut capabilities = Capabilities::probe();
        let memory = memory(&mut capabilities, settings, topology);
        let mut filter = Filter::new(&settings.scope, &settings.proc_root)?;
        let mut groups = Groups::new(&settings.proc_root);
        let places = Places::new(topology);
        let machine = Machine {
            possible_cpus: libbpf_rs::num_possible_cpus()
                .map_err(|source| ObserveError::Bpf { step: "counting the possible CPUs".to_owned(), source })?,
            nodes: topology.nodes.iter().map(|n| n.id.0).collect(),
            entries: settings.entries(topology.cpus().len()),
            kernel: capabilities.kernel.clone(),
            node_bits: capabilities.node_bits.as_ref().map_or(0, |found| found.bits),
            generic_pos_advanced: generic_pos_advanced(&capabilities),
            memory,
        };
        let (mut programs, configuration) = loop {
            let configuration = choose(&capabilities, settings);
            if let Some((capability, cause)) = configuration.blocked {
                return Err(ObserveError::Missing { capability, cause });
            }
            match Programs::start(&configuration, settings, &machine) {
                Ok(programs) => break (programs, configuration),
                // Each round loses one hook, so this ends.
                Err(Refused::Hook(hook, cause)) => _ = capabilities.hooks.insert(hook, Fact::missing(cause)),
                Err(Refused::All(error)) => return Err(error),
            }
        };
        if let Scope::Tree(root) = settings.scope {
            mark_tree(&mut programs, &mut filter, &mut groups, root)?;
        }
        let ended = programs.flip();
        let at = Instant::now();
        let attached = programs.reads().map(Slicer::attached).unwrap_or_default();
        let (_, passed) = pass_now(&mut programs)?;
        programs.drain(ended)?;
        let before = Before {
            at,
            passed,
            attached,
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
            groups,
            crowd: Crowd::default(),
            settings: settings.clone(),
            entries: machine.entries,
            before,
            unplaced: FxHashSet::default(),
            located: FxHashMap::default(),
            ranges: settings.ranges.then(Ranges::default),
            watching: Cell::new(false),
        })
    }

    /// Takes the machine for this one from now on: CPUs or nodes have come or gone.
    pub fn follow(&mut self, topology: &Topology) {
        self.places = Places::new(topology);
        self.programs.know(topology.nodes.iter().map(|n| n.id.0).collect());
    }

    /// Takes other rules from the next window on, which looks at every thread once. In that window
    /// nothing of the rules `anew` counts as allowed.
    pub fn rule(&mut self, rules: Rules, anew: FxHashSet<Arc<str>>) {
        if let Filter::Ruled(ruled) = &mut self.filter {
            ruled.rule(rules, anew);
            self.programs.pass_all();
        }
    }

    /// Whether rules allow moves of this process's threads, as far as it was seen.
    pub fn allows(&self, pid: u32) -> bool {
        self.filter.allows(pid)
    }

    /// The attached hooks, and what they do not see.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The kernel's capabilities, including what attaching the programs showed.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Waits, then reports what happened since the last window ended (or since [`Observer::open`]).
    /// Unparking the calling thread ([`std::thread::Thread::unpark`]) ends the wait early, so that
    /// a daemon can stop during a long window.
    pub fn window(&mut self, length: Duration) -> Result<Observed, ObserveError> {
        if let Some(reads) = self.programs.reads() {
            reads.window(length);
        }
        std::thread::park_timeout(length);
        let ended = self.programs.flip();
        let at = Instant::now();
        let attached = self.programs.reads().map(Slicer::attached).unwrap_or_default();
        let (mut pass, passed) = pass_now(&mut self.programs)?;
        let mut entries = self.programs.drain(ended)?;
        let counters = self.programs.counters()?;
        let tasks_passed = self.programs.tasks_passed();

        let since: Vec<Counters> = counters
            .iter()
            .enumerate()
            .map(|(cpu, now)| now.since(self.before.counters.get(cpu).copied().unwrap_or_default()))
            .collect();
        let mut sum = Counters::default();
        since.iter().for_each(|cpu| sum.add(*cpu));
        let length_s = at.duration_since(self.before.at).as_secs_f64();
        let slices = Slices {
            attached_s: attached.since(self.before.attached, length_s),
            length_s,
            correction: attached.correction(self.before.attached),
            cost: self.programs.reads().map_or_else(HookCost::default, |reads| reads.cost),
            counted: f64::from(WEIGHT_ONE) * sum.counted as f64 / sum.stood_for.max(1) as f64,
            refused: self.programs.reads().and_then(Slicer::refused),
        };
        let read_s = passed.duration_since(self.before.passed).as_secs_f64();
        self.crowd.window(&pass.tasks);
        let mut exited: Vec<u64> = since.iter().map(|cpu| cpu.exited_cpu_ns.wrapping_add(cpu.hidden_cpu_ns)).collect();
        assemble::of_window(&mut pass.tasks, &mut exited, length_s / read_s);
        assemble::unslice(&slices, &pass, &mut entries);
        self.unplaced = assemble::place(&mut entries, &self.located, &pass, &self.places);
        self.groups.window(self.programs.groups());
        self.filter.learn(&pass.tasks, &mut self.groups);
        let all = assemble::assemble(&pass, entries, &self.filter, &mut self.groups, &self.places, &exited);
        let mut notes = self.notes(&sum, &slices, &all);
        if pass.cut {
            notes.push(format!("threads: a pass was ended after {} of them", pass.tasks.len()));
        }
        let mut files = all.files;
        if let Some(ranges) = &mut self.ranges {
            let mut read = self.programs.drain_ranges()?;
            // Nodes that came since, which nobody knows yet.
            read.retain(|(key, _)| self.places.knows(key.node.into()) && self.places.knows(key.by.into()));
            // Files that only others use are none of ours: nothing of them may go down. Of one that
            // the scope has used, what others read counts, too.
            if !self.filter.is_all() {
                let touched: FxHashSet<FileId> = files.iter().map(|file| file.id).collect();
                read.retain(|(key, _)| touched.contains(&key.file) || ranges.knows(key.file));
            }
            let mut read = ranges.window(&read);
            files.iter_mut().for_each(|file| file.file.ranges = read.remove(&file.id).unwrap_or_default());
        }
        let cpu = cpu_s();
        let observed = Observed {
            time_s: clock::s(ClockId::Boottime),
            window_s: length_s,
            threads: all.threads,
            ended: all.ended,
            node_cpu_s: all.node_cpu_s,
            node_read: all.node_read,
            node_write: all.node_write,
            files,
            births_lost: sum.children_full > 0,
            notes,
            refused: self.filter.refused(),
            tasks: tasks_passed.saturating_sub(self.before.tasks_passed) as usize,
            cost: Cost {
                cpu_s: cpu - self.before.cpu_s,
                rss_bytes: rss_bytes(),
                kernel_bytes: self.programs.kernel_bytes(),
            },
        };
        self.before = Before { at, passed, attached, counters, tasks_passed, cpu_s: cpu };
        Ok(observed)
    }

    /// The heat of ranges of files ([`Settings::ranges`]), which moves change.
    pub fn ranges(&mut self) -> Option<&mut Ranges> {
        self.ranges.as_mut()
    }

    /// Looks no longer at every thread of the user with the most, if he has many: what his least
    /// busy ones touch counts for their services and nodes only. Says so; `None`: nobody has many.
    ///
    /// # Errors
    ///
    /// As the kernel gives them. Then every thread is looked at as before.
    pub fn shed(&mut self) -> Result<Option<String>, ObserveError> {
        let shed = if self.filter.knows_groups() { self.crowd.shed() } else { None };
        self.floor(shed)
    }

    /// Looks at more threads again of a user for whom [`Observer::shed`] left some out.
    ///
    /// # Errors
    ///
    /// As the kernel gives them.
    pub fn relax(&mut self) -> Result<Option<String>, ObserveError> {
        self.floor(self.crowd.relax())
    }

    fn floor(&mut self, wanted: Option<(crowd::Change, String)>) -> Result<Option<String>, ObserveError> {
        let Some((change, text)) = wanted else { return Ok(None) };
        self.programs.floor(change)?;
        self.crowd.changed(change);
        Ok(Some(text))
    }

    /// Watches a thread that is about to be moved, and its later descendants. After an error it is
    /// not watched.
    pub fn watch(&self, thread: ThreadId) -> Result<(), ObserveError> {
        self.watching.set(true);
        // What an earlier move left must not judge this one.
        self.programs.mark(thread, MARK_MOVED).inspect_err(|_| self.programs.unmark(thread.tid))?;
        // The exit hook removes the mark, unless the thread exited before it got one. procfs still
        // shows the first thread of a process after its exit, as a zombie.
        if Threads::new(&self.settings.proc_root).ended(thread) {
            self.programs.unmark(thread.tid);
        }
        Ok(())
    }

    /// The affinity of this thread is not ours any more, and those born of it from now on inherit
    /// nothing of ours.
    pub fn release(&self, tid: u32) -> Result<(), ObserveError> {
        self.programs.mark_own(tid)
    }

    /// Watched threads, and those born of them over any number of generations since, that are alive
    /// now.
    pub fn descendants(&self) -> Result<Vec<Descendant>, ObserveError> {
        if self.watching.get() { self.programs.descendants() } else { Ok(Vec::new()) }
    }

    /// Says where the files of the last window are. Those on DAX that the kernel told no node for,
    /// and that are on one, are counted there from now on.
    pub fn locate(&mut self, files: &[FileSeen]) {
        if let Some(ranges) = &mut self.ranges {
            files.iter().for_each(|file| ranges.size(file.id, file.file.size));
        }
        let unplaced = |file: &&FileSeen| self.unplaced.contains(&file.id.any_generation());
        let on_one = |file: &FileSeen| {
            let mut nodes = file.file.bytes.iter().map(|(node, _)| node);
            nodes.next().filter(|_| nodes.next().is_none()).map(|node| (file.id.any_generation(), node))
        };
        self.located = files.iter().filter(unplaced).filter_map(on_one).collect();
    }

    /// From now on, what processes that run this program touch counts for nobody: they look where
    /// other programs' files are, and copy them. A copy of the program in another file is another
    /// program.
    pub fn ignore_own_program(&mut self) {
        self.programs.ignore_own_program();
    }

    fn notes(&self, sum: &Counters, slices: &Slices, all: &Assembled) -> Vec<String> {
        let mut notes = self.configuration.notes.clone();
        notes.extend(self.groups.note());
        notes.extend(self.crowd.notes());
        if slices.sliced() {
            let part = 100.0 * slices.attached_s / slices.length_s;
            notes.push(format!(
                "reads: the hook was attached for {part:.0} % of the window, to keep reads fast; sums are scaled"
            ));
        }
        if let Some(error) = &slices.refused {
            notes.push(format!("reads: the hook could not be re-attached for a while: {error}"));
        }
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        // A sample of more than one in 1.05 is as good as all.
        let stood_for = sum.stood_for as f64 / f64::from(WEIGHT_ONE) / sum.counted.max(1) as f64;
        if stood_for > 1.05 {
            notes.push(format!("sampled: counted 1 read, fault or write in {stood_for:.1}"));
        }
        if sum.crowded_bytes > sum.full_bytes {
            notes.push(format!(
                "{:.1} MB count for threads and nodes but not for files: their processes or users read more files than they have room \
                 for in the table of {} entries",
                megabytes(sum.crowded_bytes - sum.full_bytes),
                self.entries
            ));
        }
        if sum.full_bytes > 0 {
            notes.push(format!(
                "{:.1} MB count for nodes but not for threads and files: their users have too many threads for the table of {} \
                 entries",
                megabytes(sum.full_bytes),
                self.entries
            ));
        }
        if sum.unknown_read + sum.unknown_written > 0 {
            notes.push(format!(
                "{:.1} MB read and {:.1} MB written are not counted: their pages were gone before homenode could inspect them",
                megabytes(sum.unknown_read),
                megabytes(sum.unknown_written)
            ));
        }
        if all.handed_bytes > 0 {
            notes.push(format!(
                "{:.1} MB were handed on by sendfile or splice: no thread has read them",
                megabytes(all.handed_bytes)
            ));
        }
        if all.no_node_bytes > 0 {
            notes.push(format!(
                "{:.1} MB of DAX files are not counted: they are on several nodes, or it is not known (yet) on which",
                megabytes(all.no_node_bytes)
            ));
        }
        if all.unlisted > 0 {
            notes.push(format!(
                "{} of {} files, those with the fewest bytes, are not listed: their bytes count for threads and nodes only",
                all.unlisted,
                all.unlisted + assemble::MOST_FILES
            ));
        }
        if all.odd_node_bytes > 0 {
            notes.push(format!(
                "{:.1} MB are not counted: they were on nodes that this machine does not have",
                megabytes(all.odd_node_bytes)
            ));
        }
        if sum.children_full > 0 {
            notes.push(format!(
                "{} children of watched threads are not tracked: their users have their shares of the table",
                sum.children_full
            ));
        }
        if sum.unranged_bytes > 0 {
            notes.push(format!(
                "{:.1} MB count for no range of a file: their users have their shares of the table",
                megabytes(sum.unranged_bytes)
            ));
        }
        notes
    }
}

/// What the hooks that follow page tables need, if there are any. If it is not to be had, they are
/// not.
fn memory(capabilities: &mut Capabilities, settings: &Settings, topology: &Topology) -> frames::Memory {
    let hooks = choose(capabilities, settings).hooks;
    if !hooks.iter().any(|hook| choose::FOLLOW.contains(hook)) {
        return frames::Memory::default();
    }
    frames::Memory::find(&settings.proc_root, topology).unwrap_or_else(|error| {
        capabilities.hooks.extend(choose::FOLLOW.map(|hook| (hook, Fact::missing(error.to_string()))));
        frames::Memory::default()
    })
}

/// By a probe run where possible, otherwise by the kernel's version.
fn generic_pos_advanced(capabilities: &Capabilities) -> bool {
    capabilities.pos_advanced.clone().unwrap_or_else(|cause| {
        tracing::debug!(%cause, "cannot find out where writes leave the file position");
        weights::at_least(&capabilities.kernel, 6, 5)
    })
}

/// Marks a process and its present descendants; later descendants inherit the mark.
fn mark_tree(programs: &mut Programs, filter: &mut Filter, groups: &mut Groups, root: u32) -> Result<(), ObserveError> {
    programs.mark(ThreadId::new(root, None), MARK_TREE)?;
    // The first pass shows every task; the second shows those that ran since, hence also children
    // of parents not yet marked.
    for _ in 0..2 {
        let pass = programs.pass()?;
        filter.learn(&pass.tasks, groups);
        for task in pass.tasks.iter().filter(|task| filter.contains(task) && !task.in_tree()) {
            programs.mark(ThreadId::new(task.tid, task.start_ns), MARK_TREE)?;
        }
    }
    Ok(())
}

/// CPU seconds of this process so far.
fn cpu_s() -> f64 {
    clock::s(ClockId::ProcessCPUTime)
}

/// Resident memory of this process: second field of /proc/self/statm, in pages.
fn rss_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
