//! The host as a plane: joins observations with the rules about moving threads.
//!
//! **Problem.** The observer knows which thread reads which data; the mover knows which affinities
//! are ours. A policy needs one picture. The engine needs one object to drive, even where observing
//! is impossible (`restore` on a machine without BPF).
//!
//! **Approach.** [`HostPlane`] is a stack: an [`Observe`] gives a window, [`Facts`] add what is
//! known about its files and processes, and an [`Actor`] completes its threads, makes and undoes
//! moves and finds descendants.
//!
//! CPUs and nodes may come and go: each window asks for that, and then reads the topology again.
//!
//! **Limits.** The counters of memory controllers and the programs that look at mapped files know
//! the nodes of the start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use act::hands::Hands;
use act::watched::{Births, Trouble};
use act::{Actor, Seen};
use bandwidth::Meter;
use engine::{Copies, Cost, Heir, Plane, PlaneError, Started, Thrift, Undo, Undone, Write};
use facts::Facts;
use linux::births::Kin;
use observe::mapped::{self, Watcher};
use observe::{FileSeen, ObserveError, Observed, ObservedThread, Observer};
use placement::{Move, NodeLoad, ObservedFile, Process, Snapshot, Thread, Wish};
use rustc_hash::FxHashMap;
use topology::{NodeId, ThreadId, Topology};

use crate::{bandwidth, facts};

/// How far windows may be stretched. A run ends only when its window does.
const STRETCH_MAX: u32 = 4;

/// Settings of the host plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings of the observer. Acting uses the same procfs.
    pub observe: observe::Settings,
    /// The sysfs mount.
    pub sys_root: PathBuf,
    /// Also move threads with an affinity of their own. Default false.
    pub touch_own_affinity: bool,
    /// Also bind threads while a sched_ext scheduler runs. Default false.
    pub beside_sched_ext: bool,
    /// Also observe which pages of mapped files processes use. Default: no, as only some policies
    /// look at it. One that can do without looks at programs that read files by loads alone, and
    /// every [`mapped::EPOCH`] after the first samples.
    pub mapped: Wish,
    /// Also move files on DAX. Default false: it takes CAP_SYS_ADMIN, which two threads keep then.
    pub dax: bool,
    /// Processes that map such a file shared and writable may be stopped while a part of it moves.
    /// Default false.
    pub freeze: bool,
    /// Remember where data was that moves copy, so that it can be sent back at the end. Default
    /// false: it stays.
    pub move_back: bool,
    /// The nodes are made up, and stay as they are when CPUs of the machine come or go. Default
    /// false.
    pub fixed_nodes: bool,
    /// Thousandths of a CPU that homenode may use in all. Default 30. A third of it is for looking
    /// at files and processes.
    pub budget_milli_cpus: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let observe = observe::Settings::default();
        Self {
            observe,
            sys_root: PathBuf::from("/sys"),
            touch_own_affinity: false,
            beside_sched_ext: false,
            mapped: Wish::No,
            dax: false,
            freeze: false,
            move_back: false,
            fixed_nodes: false,
            budget_milli_cpus: 30,
        }
    }
}

impl Settings {
    /// Those of the acting part.
    fn act(&self) -> act::Settings {
        act::Settings {
            proc_root: self.observe.proc_root.clone(),
            sys_root: self.sys_root.clone(),
            touch_own_affinity: self.touch_own_affinity,
            beside_sched_ext: self.beside_sched_ext,
            move_back: self.move_back,
            fixed_nodes: self.fixed_nodes,
        }
    }
}

/// Why the plane cannot work.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Observing is impossible.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// procfs or sysfs cannot be read.
    #[error("cannot act on threads: {0}")]
    Act(#[from] std::io::Error),
}

/// The interface between the plane and its observer: [`Observer`], or a script in tests.
pub trait Observe {
    /// Blocks for one window and returns the observations.
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError>;
    /// Starts to watch a thread that is about to be moved, and its future descendants.
    fn watch(&mut self, thread: ThreadId) -> Result<(), ObserveError>;
    /// Records that the affinity of this thread is no longer ours.
    fn release(&mut self, tid: u32) -> Result<(), ObserveError>;
    /// Lists the living watched threads and their living descendants.
    fn kin(&mut self) -> Result<Vec<Kin>, ObserveError>;
    /// Says where the files of the last window are, as far as it was found out.
    fn locate(&mut self, _files: &[FileSeen]) {}
    /// Takes the machine for this one from now on: CPUs or nodes have come or gone.
    fn follow(&mut self, _topology: &Topology) {}
    /// Lists the limits of this kernel, which are part of each window's notes.
    fn limits(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Observe for Observer {
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError> {
        Observer::window(self, length)
    }

    fn watch(&mut self, thread: ThreadId) -> Result<(), ObserveError> {
        Observer::watch(self, thread)
    }

    fn release(&mut self, tid: u32) -> Result<(), ObserveError> {
        Observer::release(self, tid)
    }

    fn kin(&mut self) -> Result<Vec<Kin>, ObserveError> {
        Observer::kin(self)
    }

    fn locate(&mut self, files: &[FileSeen]) {
        Observer::locate(self, files);
    }

    fn follow(&mut self, topology: &Topology) {
        Observer::follow(self, topology);
    }

    fn limits(&self) -> Vec<String> {
        self.configuration().notes.clone()
    }
}

impl Births for Box<dyn Observe> {
    fn watch(&mut self, thread: ThreadId) -> Result<(), Trouble> {
        Ok(self.as_mut().watch(thread)?)
    }

    fn release(&mut self, tid: u32) -> Result<(), Trouble> {
        Ok(self.as_mut().release(tid)?)
    }

    fn kin(&mut self) -> Result<Vec<Kin>, Trouble> {
        Ok(self.as_mut().kin()?)
    }
}

/// The host.
pub struct HostPlane {
    actor: Actor<Box<dyn Observe>>,
    settings: Settings,
    cost: Option<Cost>,
    /// CPU time of copies up to the last window, in seconds.
    copied_s: f64,
    /// Facts about files and processes, found out beside the windows; `None` without an observer of
    /// this kernel.
    facts: Option<Facts>,
    /// Counts what the memory controllers carry; the error says why nothing does.
    meter: Result<Meter, String>,
    /// Factor by which windows are longer than requested, to cost less.
    stretch: u32,
    /// Samples mapped files, where the policy looks at them.
    mapped: Option<Watcher>,
    /// Why nothing does, where the policy would look at it.
    unmapped: Option<String>,
}

impl HostPlane {
    /// Opens the host for observing and acting.
    pub fn open(settings: Settings, topology: Topology) -> Result<Self, HostError> {
        let mut observer = Observer::open(&settings.observe, &topology)?;
        let budget = f64::from(settings.budget_milli_cpus) / 1000.0;
        let facts = Facts::start(&settings.observe.proc_root, budget, settings.dax)?;
        let hands = match settings.dax {
            true => Some(Hands::start(settings.freeze)?),
            false => None,
        };
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
        let meter = Meter::open(&settings.sys_root, &settings.observe.proc_root, &topology);
        let plane = Self::with_hands(settings, topology, Some(Box::new(observer)), hands)?;
        Ok(Self { facts: Some(facts), mapped, unmapped, meter, ..plane })
    }

    /// Opens the host with the given observer.
    pub fn with_observer(
        settings: Settings,
        topology: Topology,
        observer: Option<Box<dyn Observe>>,
    ) -> Result<Self, HostError> {
        Self::with_hands(settings, topology, observer, None)
    }

    fn with_hands(
        settings: Settings,
        topology: Topology,
        observer: Option<Box<dyn Observe>>,
        hands: Option<Hands>,
    ) -> Result<Self, HostError> {
        Ok(Self {
            actor: Actor::new(settings.act(), topology, observer, hands)?,
            settings,
            cost: None,
            copied_s: 0.0,
            facts: None,
            meter: Err("not looked for".to_owned()),
            stretch: 1,
            mapped: None,
            unmapped: None,
        })
    }

    /// Lists the limits of this kernel: the notes that every window has.
    pub fn limits(&self) -> Vec<String> {
        let limits = self.actor.births().map(|observer| observer.limits()).unwrap_or_default();
        limits.into_iter().chain(self.unmapped.clone()).collect()
    }

    /// The file with what tells it from an earlier one with its inode number. How often others have
    /// it open is not known while a copy has.
    fn identified(&self, seen: FileSeen) -> ObservedFile {
        let generation = (seen.id.generation != 0).then_some(u64::from(seen.id.generation));
        let opens = seen.file.opens.filter(|_| !self.actor.has_open(seen.id));
        ObservedFile { generation, opens, ..seen.file }
    }

    /// Adds the mapped files of busy processes that could be moved.
    fn add_mapped(&self, processes: &mut Vec<Process>, threads: &[Thread], window_s: f64, notes: &mut Vec<String>) {
        notes.extend(self.unmapped.clone());
        let Some(watcher) = &self.mapped else { return };
        // What a thread reads by calls says more about it than what it has mapped.
        let all = self.settings.mapped == Wish::Needed;
        let loads = threads.iter().filter(|thread| all || thread.file_bytes() == 0);
        let (mapped, limits) = watcher.window(mapped::to_sample(loads, window_s));
        notes.extend(limits);
        for of in mapped {
            match processes.iter_mut().find(|process| process.pid == of.pid) {
                Some(process) => process.mapped = of.mapped,
                None => processes.push(Process { pid: of.pid, mapped: of.mapped, ..Process::default() }),
            }
        }
        processes.sort_by_key(|process| process.pid);
    }

    fn nodes(&mut self, seen: &Observed, notes: &mut Vec<String>) -> Vec<NodeLoad> {
        let mut measured = BTreeMap::new();
        let said = match &mut self.meter {
            Ok(meter) => match meter.window() {
                Ok(window) => {
                    measured = window;
                    format!("controllers: {}", meter.said())
                }
                Err(why) => format!("controllers: counted file bytes only, in this window: {why}"),
            },
            Err(why) => format!("controllers: counted file bytes only: {why}"),
        };
        notes.push(said);
        let free = topology::sysfs::free_memory(&self.settings.sys_root, self.actor.topology());
        let load = |node: &topology::Node| NodeLoad {
            read_bytes: seen.node_read.get(node.id),
            write_bytes: seen.node_write.get(node.id),
            cpu_s: cpu_s(&seen.node_cpu_s, node.id),
            memory_free: free.get(&node.id).copied().unwrap_or(0),
            measured: measured.get(&node.id).cloned(),
            ..NodeLoad::of(node)
        };
        self.actor.topology().nodes.iter().map(load).collect()
    }
}

fn cpu_s(node_cpu_s: &BTreeMap<NodeId, f64>, node: NodeId) -> Option<f64> {
    node_cpu_s.get(&node).copied()
}

fn seen(seen: ObservedThread) -> Seen {
    let ObservedThread { thread, mask, asked, kernel_thread, .. } = seen;
    Seen { thread, mask, asked, kernel_thread }
}

impl Plane for HostPlane {
    fn topology(&self) -> &Topology {
        self.actor.topology()
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        let broken = |e: HostError| PlaneError::Broken(Box::new(e));
        self.actor.end_window();
        // Without an observer it only acts.
        let Some(observer) = self.actor.births_mut() else { return self.actor.observe(window) };
        let mut seen = observer.window(window * self.stretch).map_err(|e| broken(e.into()))?;
        if seen.births_lost {
            self.actor.births_lost();
        }
        if self.actor.begin_window() {
            let topology = self.actor.topology().clone();
            self.actor.births_mut().into_iter().for_each(|observer| observer.follow(&topology));
        }
        let window_s = seen.window_s;
        let copied_s = self.actor.moves().jobs.cpu_s();
        let own_s = seen.cost.cpu_s - (copied_s - std::mem::replace(&mut self.copied_s, copied_s));
        self.cost = Some(Cost {
            cpu: if window_s > 0.0 { own_s.max(0.0) / window_s } else { 0.0 },
            memory_bytes: seen.cost.rss_bytes.saturating_add(seen.cost.kernel_bytes),
        });
        let threads: Vec<Thread> = std::mem::take(&mut seen.threads)
            .into_iter()
            .map(|thread| self.actor.complete(self::seen(thread)))
            .collect();
        let mut notes = std::mem::take(&mut seen.notes);
        let nodes = self.nodes(&seen, &mut notes);
        let mut processes = Vec::new();
        if let Some(facts) = &self.facts {
            let more;
            (processes, more) = facts.window(window, &mut seen.files, &threads);
            notes.extend(more);
            self.actor.births_mut().into_iter().for_each(|observer| observer.locate(&seen.files));
        }
        notes.extend(self.actor.take_notes());
        self.add_mapped(&mut processes, &threads, window_s, &mut notes);
        let starts: FxHashMap<u32, u64> = threads.iter().filter_map(|t| Some((t.pid, t.of_process_since()?))).collect();
        for process in processes.iter_mut().filter(|process| process.start_ns.is_none()) {
            process.start_ns = starts.get(&process.pid).copied();
        }
        self.actor.moves().seen(seen.files.iter().map(|file| (file.id, &file.file)), &threads);
        Ok(Snapshot {
            version: placement::snapshot::VERSION,
            time_s: seen.time_s,
            window_s,
            nodes,
            threads,
            files: seen.files.into_iter().map(|file| self.identified(file)).collect(),
            processes,
            notes,
            ..Snapshot::default()
        })
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        self.actor.prepare(mv)
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

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        self.actor.undo(undo)
    }

    fn inherited(&mut self, held: &[Undo]) -> Result<Vec<Heir>, PlaneError> {
        self.actor.inherited(held)
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        self.actor.ended(undo)
    }

    fn epoch(&self) -> Option<String> {
        self.actor.epoch()
    }
}

impl Thrift for HostPlane {
    fn cost(&self) -> Option<Cost> {
        self.cost
    }

    /// First looks at fewer files and processes. Sampling adapts to the load by itself; the
    /// remaining cost is each window's pass over all threads and entries. So then this makes
    /// windows longer.
    fn shed(&mut self) -> Option<String> {
        if let Some(less) = self.facts.as_mut().and_then(Facts::shed) {
            return Some(less);
        }
        if self.stretch >= STRETCH_MAX {
            return None;
        }
        self.stretch *= 2;
        Some(format!("windows are now {} times as long as set", self.stretch))
    }

    fn relax(&mut self) -> Option<String> {
        if self.stretch == 1 {
            return self.facts.as_mut().and_then(Facts::relax);
        }
        self.stretch /= 2;
        Some(match self.stretch {
            1 => "windows have their set length again".to_owned(),
            n => format!("windows are now {n} times as long as set"),
        })
    }
}
