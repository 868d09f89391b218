//! The host as a plane: a stack of observing, facts and acting.
//!
//! **Problem.** The observer knows which thread reads which data; the mover knows which affinities
//! are ours. A policy needs one picture. The engine needs one object to drive, even where observing
//! is impossible (`restore` on a machine without BPF).
//!
//! **Approach.** A window goes up the stack once ([`HostPlane::observe`]). An [`Observe`] says what
//! happened, and a [`Meter`] what the memory controllers carried. The [`Actor`] adds to each thread
//! where it may run and why it must not be moved. [`Facts`] and a [`Watcher`] add what is known
//! about files and processes. The actor keeps what the window showed, because only that may be
//! moved; the observer keeps where files are, to place accesses of the next window. Everything else
//! is the actor's: it makes and undoes moves and finds descendants.
//!
//! CPUs and nodes may come and go: each window asks for that, and then reads the topology again.
//!
//! **Limits.** The counters of memory controllers and the programs that look at mapped files know
//! the nodes of the start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use act::{Actor, Seen};
use engine::{Copies, Inherited, Plane, PlaneError, Started, Thrift, Undo, Undone, Write};
use observe::mapped::{self, MappedProcess, Watcher};
use observe::{FileSeen, Observed, ObservedThread, Observer};
use placement::ranges::Ranges;
use placement::rules::Rules;
use placement::{IdleFile, IdleRange, Move, NodeLoad, ObservedFile, Process, Snapshot, Subject, Thread, Wish};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{FileId, Node, Topology};

use crate::bandwidth::Meter;
use crate::facts::Facts;
use crate::observer::Observe;
use crate::reclaim::Reclaimed;
use crate::settings::{HostError, Settings};
use crate::thrift::Spent;

pub struct HostPlane {
    /// It also has the observer, because it watches the births of the threads that it moves.
    actor: Actor<Box<dyn Observe>>,
    settings: Settings,
    /// Facts about files and processes, found out beside the windows; `None` without an observer of
    /// this kernel.
    pub(crate) facts: Option<Facts>,
    /// Samples mapped files, where the policy looks at them.
    mapped: Option<Watcher>,
    /// Why nothing does, where the policy would look at it.
    unmapped: Option<String>,
    /// What the kernel reclaims, where the policy looks at ranges of files.
    reclaimed: Option<Reclaimed>,
    /// Counts what the memory controllers carry; the error says why nothing does.
    meter: Result<Meter, String>,
    pub(crate) spent: Spent,
}

impl HostPlane {
    pub fn open(settings: Settings, topology: Topology) -> Result<Self, HostError> {
        let mut observer = Observer::open(&settings.observe, &topology)?;
        let budget = f64::from(settings.budget_milli_cpus) / 1000.0;
        let facts = Facts::start(&settings.observe.proc_root, budget)?;
        observer.ignore_own_program();
        let pause = if settings.mapped == Wish::Needed { Duration::ZERO } else { mapped::EPOCH };
        let start = || Watcher::start(&settings.observe.proc_root, &topology, budget, pause);
        let (mapped, unmapped) = match settings.mapped {
            Wish::No => (None, None),
            Wish::Needed => (Some(start()?), None),
            Wish::IfPossible => match start() {
                Ok(watcher) => (Some(watcher), None),
                Err(error) => (None, Some(format!("mapped files are not observed: {error}"))),
            },
        };
        let meter = Meter::open(&settings.act.sys_root, &settings.observe.proc_root, &topology);
        let reclaimed = settings
            .observe
            .ranges
            .then(|| Reclaimed::new(&settings.observe.proc_root, &settings.act.sys_root, &topology));
        let who = observe::who::tasks(&settings.observe.proc_root);
        let mut plane = Self::with_observer(settings, topology, Some(Box::new(observer)))?;
        plane.actor.ask(who);
        // Scoped threads of the above have unparked this one when they ended, which would end the
        // first window as it begins.
        std::thread::park_timeout(Duration::ZERO);
        Ok(Self { facts: Some(facts), mapped, unmapped, meter, reclaimed, ..plane })
    }

    pub fn with_observer(
        settings: Settings,
        topology: Topology,
        observer: Option<Box<dyn Observe>>,
    ) -> Result<Self, HostError> {
        Ok(Self {
            actor: Actor::new(settings.act.clone(), topology, observer)?,
            settings,
            facts: None,
            mapped: None,
            unmapped: None,
            reclaimed: None,
            meter: Err("not looked for".to_owned()),
            spent: Spent::default(),
        })
    }

    /// Lists the limits of this kernel: the notes that every window has.
    pub fn limits(&self) -> Vec<String> {
        let observer = self.actor.watcher().and_then(|observer| observer.real());
        let limits = observer.map(|observer| observer.configuration().notes.clone()).unwrap_or_default();
        limits.into_iter().chain(self.unmapped.clone()).collect()
    }

    /// Takes other rules from the next window on, in which nothing of the rules `anew` counts as
    /// allowed: their policy has changed.
    pub fn rule(&mut self, rules: Rules, anew: FxHashSet<Arc<str>>) {
        if let Some(observer) = self.observer() {
            observer.rule(rules, anew);
        }
    }

    pub(crate) fn observer(&mut self) -> Option<&mut Observer> {
        self.actor.watcher_mut()?.real_mut()
    }

    /// The heat of ranges of files, where the observer counts it.
    fn ranges(&mut self) -> Option<&mut Ranges> {
        self.observer()?.ranges()
    }

    /// Waits for a window to end, and begins the next. `None`: there is no observer.
    fn window(&mut self, length: Duration) -> Result<Option<Observed>, HostError> {
        let length = length * self.spent.stretch;
        let Some(observer) = self.actor.watcher_mut() else { return Ok(None) };
        let seen = observer.window(length)?;
        if seen.births_lost {
            self.actor.births_lost();
        }
        if self.actor.begin_window() {
            let topology = self.actor.topology().clone();
            self.observer().into_iter().for_each(|observer| observer.follow(&topology));
        }
        Ok(Some(seen))
    }

    /// The load of each node, and notes about what measured it.
    fn nodes(&mut self, seen: &Observed) -> (Vec<NodeLoad>, Vec<String>) {
        let (measured, note) = match &mut self.meter {
            Ok(meter) => (meter.window(), format!("controllers: {}", meter.said())),
            Err(why) => (BTreeMap::new(), format!("controllers: counted file bytes only: {why}")),
        };
        let (mut reclaimed, unknown) = match &mut self.reclaimed {
            Some(reclaimed) => {
                reclaimed.window(&self.settings.observe.proc_root, &self.settings.act.sys_root, self.actor.topology())
            }
            None => (BTreeMap::new(), None),
        };
        let free = topology::sysfs::free_memory(&self.settings.act.sys_root, self.actor.topology());
        let mut load = |node: &Node| NodeLoad {
            read_bytes: seen.node_read.get(node.id),
            write_bytes: seen.node_write.get(node.id),
            cpu_s: seen.node_cpu_s.get(&node.id).copied(),
            memory_free: free.get(&node.id).copied().unwrap_or(0),
            measured: measured.get(&node.id).cloned(),
            reclaim: reclaimed.remove(&node.id),
            ..NodeLoad::of(node)
        };
        (
            self.actor.topology().nodes.iter().map(&mut load).collect(),
            [Some(note), unknown].into_iter().flatten().collect(),
        )
    }

    /// Adds what is known to files, and returns the processes of which something is known.
    fn add_facts(
        &mut self,
        window: Duration,
        files: &mut [FileSeen],
        threads: &[Thread],
        mapped: &[MappedProcess],
        notes: &mut Vec<String>,
    ) -> Vec<Process> {
        let Some(facts) = &self.facts else { return Vec::new() };
        let mapped = mapped.iter().map(|of| of.pid).collect();
        let (processes, more) = facts.window(window, files, threads, &mapped);
        notes.extend(more);
        self.observer().into_iter().for_each(|observer| observer.locate(files));
        processes
    }

    /// The mapped files of busy processes that could be moved, and what they do not show.
    fn mapped(&self, threads: &[Thread], window_s: f64) -> (Vec<MappedProcess>, Vec<String>) {
        let Some(watcher) = &self.mapped else { return (Vec::new(), self.unmapped.iter().cloned().collect()) };
        // What a thread reads by calls says more about it than what it has mapped.
        let all = self.settings.mapped == Wish::Needed;
        let loads = threads.iter().filter(|thread| all || thread.file_bytes() == 0);
        let (mut mapped, limits) = watcher.window(mapped::to_sample(loads, window_s));
        // The sample is older than this window.
        let listed: FxHashSet<u32> = threads.iter().map(|thread| thread.pid).collect();
        mapped.retain(|of| listed.contains(&of.pid));
        (mapped, limits)
    }

    /// Lets the heat of ranges follow the moves of files that have ended.
    fn tell_ended(&mut self) {
        for ended in self.actor.moves().take_ended() {
            let Some(ranges) = self.ranges() else { return };
            ended.tell(ranges);
        }
    }

    /// What was read earlier and not in this window, on nodes with slower memory below them: what a
    /// policy may send down.
    fn idle(&mut self) -> BTreeMap<FileId, Vec<IdleRange>> {
        if !self.settings.idle {
            return BTreeMap::new();
        }
        let on = self.actor.topology().above_the_slowest();
        match on.is_empty() {
            true => BTreeMap::new(),
            false => self.ranges().map(|ranges| ranges.idle(&on)).unwrap_or_default(),
        }
    }

    /// The file with what tells it from an earlier one with its inode number. How often others have
    /// it open is not known while a copy has.
    fn identified(&self, seen: FileSeen) -> ObservedFile {
        let generation = Some(seen.id.generation).filter(|generation| *generation != 0);
        let opens = seen.file.opens.filter(|_| !self.actor.has_open(seen.id));
        ObservedFile { generation, opens, ..seen.file }
    }
}

fn seen(ObservedThread { thread, mask, asked, kernel_thread, .. }: ObservedThread) -> Seen {
    Seen { thread, mask, asked, kernel_thread }
}

/// Pins a thread that no rule allows to move.
fn unless_observed(mut thread: Thread) -> Thread {
    if thread.only_observed {
        thread.pinned = Some(match &thread.rule {
            Some(rule) => format!("rule {rule} says observe"),
            None => "no rule is for it".to_owned(),
        });
    }
    thread
}

fn add_mapped(processes: &mut Vec<Process>, mapped: Vec<MappedProcess>) {
    for of in mapped {
        match processes.iter_mut().find(|process| process.pid == of.pid) {
            Some(process) => process.mapped = of.mapped,
            None => processes.push(Process { pid: of.pid, mapped: of.mapped, ..Process::default() }),
        }
    }
    processes.sort_by_key(|process| process.pid);
}

/// Adds start times, where the threads of a process tell it.
fn add_starts(processes: &mut [Process], threads: &[Thread]) {
    let starts: FxHashMap<u32, u64> = threads.iter().filter_map(|t| Some((t.pid, t.of_process_since()?))).collect();
    for process in processes.iter_mut().filter(|process| process.start_ns.is_none()) {
        process.start_ns = starts.get(&process.pid).copied();
    }
}

impl Plane for HostPlane {
    fn topology(&self) -> &Topology {
        self.actor.topology()
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        self.actor.end_window();
        let observed = self.window(window).map_err(|e| PlaneError::Broken(Box::new(e)))?;
        // Without an observer it only acts.
        let Some(observed) = observed else { return self.actor.observe(window) };
        self.spent.window(&observed, self.actor.moves().jobs.cpu_s());
        let (nodes, controllers) = self.nodes(&observed);
        let Observed { time_s, window_s, threads, ended, mut files, mut notes, refused, .. } = observed;
        notes.extend(controllers);

        let threads: Vec<Thread> =
            threads.into_iter().map(|thread| unless_observed(self.actor.complete(seen(thread)))).collect();
        let (mapped, limits) = self.mapped(&threads, window_s);
        let mut processes = self.add_facts(window, &mut files, &threads, &mapped, &mut notes);
        notes.extend(self.actor.take_notes());
        notes.extend(limits);
        add_mapped(&mut processes, mapped);
        add_starts(&mut processes, &threads);

        self.tell_ended();
        let idle = self.idle();
        // They may be moved, too. Of those that were seen, more is known.
        let unseen = ObservedFile::default();
        let all = idle.keys().map(|id| (*id, &unseen)).chain(files.iter().map(|file| (file.id, &file.file)));
        self.actor.moves().seen(all, &threads);
        let idle = idle.into_iter().map(|(id, ranges)| {
            let generation = Some(id.generation).filter(|generation| *generation != 0);
            IdleFile { file: id.any_generation(), generation, ranges }
        });
        let idle = idle.collect();
        let files = files.into_iter().map(|file| self.identified(file)).collect();
        let version = placement::snapshot::VERSION;
        Ok(Snapshot {
            version,
            time_s,
            window_s,
            nodes,
            threads,
            ended,
            files,
            idle,
            processes,
            notes,
            refused,
            ..Snapshot::default()
        })
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let prepared = self.actor.prepare(mv);
        // Another file has its inode number now.
        if let (Err(PlaneError::Gone { .. }), Subject::File(file)) = (&prepared, mv.subject)
            && file.generation > 0
        {
            self.ranges().into_iter().for_each(|ranges| ranges.gone(file));
        }
        prepared
    }

    fn start(&mut self, mv: &Move, undo: &[Undo], write: &mut Write<'_>) -> Result<Started, PlaneError> {
        self.actor.start(mv, undo, write)
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        self.actor.copies()
    }

    fn thrift(&mut self) -> Option<&mut dyn Thrift> {
        Some(self)
    }

    fn undoing(&mut self, undos: &[Undo]) {
        self.actor.undoing(undos);
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        self.actor.undo(undo)
    }

    fn inherited(&mut self, owned: &[Undo]) -> Result<Vec<Inherited>, PlaneError> {
        self.actor.inherited(owned)
    }

    fn let_forks_end(&mut self) {
        self.actor.let_forks_end();
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        self.actor.ended(undo)
    }

    fn allows(&self, pid: u32) -> bool {
        self.actor.watcher().and_then(|observer| observer.real()).is_none_or(|observer| observer.allows(pid))
    }

    fn epoch(&self) -> Option<String> {
        self.actor.epoch()
    }
}
