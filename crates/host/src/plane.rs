//! The host as a plane: joins observations with the rules about moving threads.
//!
//! **Problem.** The observer knows which thread reads which data; the mover knows which affinities are ours. A policy needs
//! one picture. The engine needs one object to drive, even where observing is impossible (`restore` on a machine without
//! BPF).
//!
//! **Approach.** [`HostPlane`] gets a window from an [`Observe`] and adds to each thread the nodes it may run on and the
//! reason it must not be moved, if any. A thread that we moved is shown with the nodes it could use before. [`act`](crate::act)
//! makes and undoes moves and finds descendants.
//!
//! CPUs and nodes may come and go: each window asks for that, and then reads the topology again.
//!
//! **Limits.** The counters of memory controllers and the programs that look at mapped files know the nodes of the start. Facts
//! about control groups in a snapshot may be a few windows old; preparing a move reads them again.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::{Cost, Heir, JobId, JobState, Plane, PlaneError, Progress, Started, Undo, Undone, Write};
use linux::{affinity, interference};
use placement::{Move, NodeLoad, ObservedFile, Process, Snapshot, Subject, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::config::NodeConfig;
use topology::{CpuSet, NodeId, Topology};

use crate::act::copying::Copying;
use crate::act::data::DataMoves;
use crate::act::hands::Hands;
use crate::act::lineage::Lineage;
use crate::act::memory::Layout;
use crate::act::mover::{Given, Key, NS_PER_TICK, Rules, key_of, own_affinity, refused};
use crate::act::{Mover, kin};
use crate::bandwidth::Meter;
use crate::facts::Facts;
use crate::observe::mapped::{self, Watcher};
use crate::observe::{self, FileSeen, Kin, ObserveError, Observed, ObservedThread, Observer, Origin};

/// How far windows may be stretched. A run ends only when its window does.
const STRETCH_MAX: u32 = 4;

/// How often to look for an exec that has taken effect and is not reported yet. The kernel reports it when the new program is
/// loaded, which takes milliseconds, or longer from a slow disk.
const EXEC_LOOKS: u32 = 50;
/// The pause between two such looks.
const EXEC_PAUSE: Duration = Duration::from_millis(20);

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
    /// Also observe which pages of mapped files processes use. Default false: only some policies look at it.
    pub mapped: bool,
    /// Also move files on DAX. Default false: it takes CAP_SYS_ADMIN, which two threads keep then.
    pub dax: bool,
    /// Processes that map such a file shared and writable may be stopped while a part of it moves. Default false.
    pub freeze: bool,
    /// Remember where data was that moves copy, so that it can be sent back at the end. Default false: it stays.
    pub move_back: bool,
    /// The nodes are made up, and stay as they are when CPUs of the machine come or go. Default false.
    pub fixed_nodes: bool,
    /// Thousandths of a CPU that homenode may use in all. Default 30. A third of it is for looking at files and processes.
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
            mapped: false,
            dax: false,
            freeze: false,
            move_back: false,
            fixed_nodes: false,
            budget_milli_cpus: 30,
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
    /// The plane was opened without an observer.
    #[error("this plane was opened for restoring only: it cannot observe")]
    ActOnly,
}

/// The interface between the plane and its observer: [`Observer`], or a script in tests.
pub trait Observe {
    /// Blocks for one window and returns the observations.
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError>;
    /// Starts to watch a thread that is about to be moved, and its future descendants.
    fn watch(&mut self, tid: u32, start_ns: u64) -> Result<(), ObserveError>;
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

    fn watch(&mut self, tid: u32, start_ns: u64) -> Result<(), ObserveError> {
        Observer::watch(self, tid, start_ns)
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

/// The host.
pub struct HostPlane {
    topology: Topology,
    /// What sysfs said about CPUs and nodes when the topology was read; `None` if it cannot be read,
    /// or does not matter.
    outline: Option<String>,
    /// The bandwidth of each node that was ever there: what is configured is not in sysfs.
    bandwidths: BTreeMap<NodeId, NodeConfig>,
    observer: Option<Box<dyn Observe>>,
    mover: Mover,
    lineage: Lineage,
    settings: Settings,
    own_pid: u32,
    cost: Option<Cost>,
    /// CPU time of copies up to the last window, in seconds.
    copied_s: f64,
    /// Facts about files and processes, found out beside the windows; `None` without an observer of this kernel.
    facts: Option<Facts>,
    /// Counts what the memory controllers carry; the error says why nothing does.
    meter: Result<Meter, String>,
    /// Factor by which windows are longer than requested, to cost less.
    stretch: u32,
    /// A note about moved threads whose births could not be watched, for the next window.
    unwatched: Option<String>,
    /// The sched_ext scheduler because of which no thread is bound.
    scheduler: Option<String>,
    /// A note about CPUs and nodes that came or went, for the next window.
    changed: Option<String>,
    /// A move was undone since the last window: the engine is finishing, or recovering from a crash.
    finishing: bool,
    /// Threads were moved since the last look at the watched threads.
    moves_made: bool,
    /// The last look at the watched threads succeeded.
    looked: bool,
    /// Watched threads and descendants that lived at the last look.
    alive: FxHashSet<Key>,
    /// Watched threads and descendants with an affinity of their own, as of the last look.
    own: FxHashSet<Key>,
    /// First threads of processes whose place a watched thread took by exec, as of the last look.
    execs: FxHashSet<Key>,
    /// Some moved threads, or descendants, are not watched.
    births_lost: bool,
    /// Descendants restored since the last window.
    put_back: FxHashSet<Key>,
    epoch: Option<String>,
    /// Moves of files and processes.
    moves: DataMoves,
    /// Processes that were moved as a whole and not put back: start time in ticks, and the values of their threads.
    processes: FxHashMap<u32, (u64, Given)>,
    /// Samples mapped files, where the policy looks at them.
    mapped: Option<Watcher>,
    /// Threads of the process that was moved last that were not bound after all.
    not_bound: Vec<Subject>,
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
        let mapped = match settings.mapped {
            true => Some(Watcher::start(&settings.observe.proc_root, &topology, budget)?),
            false => None,
        };
        let meter = Meter::open(&settings.sys_root, &topology);
        let mut moves = DataMoves::new(&settings.observe.proc_root, hands);
        if settings.move_back {
            moves.keep_ways_back();
        }
        let plane = Self::with_observer(settings, topology, Some(Box::new(observer)))?;
        Ok(Self { facts: Some(facts), mapped, meter, moves, ..plane })
    }

    /// Opens the host for restoring only. Needs no more than procfs and sysfs.
    pub fn open_act_only(settings: Settings, topology: Topology) -> Result<Self, HostError> {
        Self::with_observer(settings, topology, None)
    }

    /// Opens the host with the given observer.
    pub fn with_observer(
        settings: Settings,
        topology: Topology,
        observer: Option<Box<dyn Observe>>,
    ) -> Result<Self, HostError> {
        let rules = Rules { touch_own_affinity: settings.touch_own_affinity };
        let mover = Mover::new(&settings.observe.proc_root, &settings.sys_root, rules)?;
        let epoch = boot_id(&settings.observe.proc_root)?;
        let mut moves = DataMoves::new(&settings.observe.proc_root, None);
        if settings.move_back {
            moves.keep_ways_back();
        }
        let follows = (!settings.fixed_nodes).then(|| topology::sysfs::outline(&settings.sys_root));
        let outline = follows.and_then(Result::ok);
        Ok(Self {
            outline,
            bandwidths: bandwidths(&topology),
            topology,
            observer,
            mover,
            lineage: Lineage::default(),
            settings,
            own_pid: std::process::id(),
            cost: None,
            copied_s: 0.0,
            facts: None,
            meter: Err("not looked for".to_owned()),
            stretch: 1,
            unwatched: None,
            changed: None,
            scheduler: None,
            finishing: false,
            moves_made: false,
            looked: false,
            alive: FxHashSet::default(),
            own: FxHashSet::default(),
            execs: FxHashSet::default(),
            births_lost: false,
            put_back: FxHashSet::default(),
            epoch,
            moves,
            processes: FxHashMap::default(),
            mapped: None,
            not_bound: Vec::new(),
        })
    }

    /// Lists watched threads and descendants, and notes which of them have an affinity of their own.
    fn look(&mut self) -> Result<Vec<Kin>, ObserveError> {
        let Some(observer) = &mut self.observer else { return Ok(Vec::new()) };
        // After an error nothing is known: what an earlier look showed is out of date.
        self.looked = false;
        self.alive.clear();
        self.own.clear();
        self.execs.clear();
        let kin = observer.kin()?;
        self.looked = true;
        self.moves_made = false;
        self.alive.extend(kin.iter().map(key_of_kin));
        self.own.extend(kin.iter().filter(|kin| kin.own).map(key_of_kin));
        self.execs.extend(kin.iter().filter(|kin| kin.origin == Origin::Exec).map(key_of_kin));
        for kin in kin.iter().filter(|kin| kin.own) {
            self.mover.end(key_of_kin(kin));
        }
        Ok(kin)
    }

    /// Binds the threads of a process, and lets its memory follow.
    fn start_process(&mut self, mv: &Move, undo: &[Undo], write: &mut Write<'_>) -> Result<Started, PlaneError> {
        let mut process = self.moves.take_process(mv)?;
        undo.iter().for_each(|undo| self.watch(undo));
        self.moves_made = true;
        let mut written: FxHashSet<Subject> = undo.iter().map(|undo| undo.subject.clone()).collect();
        let topology = self.topology.clone();
        let Self { observer, births_lost, unwatched, mover, .. } = self;
        let bound = process.bind(mover, &topology, &mut |ready| {
            // Those that it begins with are written down already.
            let new: Vec<Undo> = ready.iter().filter(|u| !written.contains(&u.subject)).cloned().collect();
            if new.is_empty() {
                return Ok(());
            }
            write(&new)?;
            written.extend(new.iter().map(|undo| undo.subject.clone()));
            // Before they are bound: a child born right after inherits our value.
            new.iter().for_each(|undo| watch(observer, births_lost, unwatched, undo));
            Ok(())
        });
        if let Err(error) = bound {
            let mut stuck = false;
            for undo in process.bound() {
                match self.mover.undo(undo) {
                    Ok(_) => key_of(undo).into_iter().for_each(|key| self.release(key)),
                    Err(error) => {
                        tracing::warn!(%error, "a thread stays bound until the end");
                        written.remove(&undo.subject);
                        stuck = true;
                    }
                }
            }
            if !stuck {
                return Err(error);
            }
            // Its record must stay as long as a thread is bound; the others keep those of their earlier moves.
            self.not_bound.extend(written);
            return Ok(Started::Done);
        }
        process.bound().iter().for_each(|undo| _ = written.remove(&undo.subject));
        self.not_bound.extend(written);
        let (pid, start) = process.process();
        if !process.bound().is_empty() {
            self.processes.insert(pid, (start, process.given().clone()));
        }
        self.moves.start_memory(process)
    }

    /// A thread that inherited our value keeps it if its process was moved as a whole, and is moved itself from now on.
    fn heir(&mut self, heir: Undo) -> Heir {
        // By exec, the first thread's id and start time may stand for another program: the policy has not decided on that.
        let by_exec = key_of(&heir).is_none_or(|key| self.execs.contains(&key));
        let given = self.processes.get(&heir.pid).filter(|_| !by_exec && !self.finishing);
        let Some(parent) = heir.masks.as_ref().and_then(|masks| given?.1.get(&masks.ours)) else {
            return Heir { undo: heir, keeps: false };
        };
        let undo = Undo { subject: heir.subject, ..parent.clone() };
        self.mover.adopt(&undo);
        self.watch(&undo);
        Heir { undo, keeps: true }
    }

    /// Watches the births of a thread that is about to be moved: a child born right after the move inherits our value.
    fn watch(&mut self, undo: &Undo) {
        watch(&mut self.observer, &mut self.births_lost, &mut self.unwatched, undo);
    }

    /// Sets the affinity of one thread.
    fn bind(&mut self, undo: &Undo) -> Result<(), PlaneError> {
        let key = key_of(undo);
        self.watch(undo);
        self.moves_made = true;
        let applied = self.mover.apply(undo);
        if applied.is_err()
            && let Some(key) = key
            && self.mover.moved(key).is_none_or(|moved| moved.over.is_some())
        {
            self.release(key);
        }
        applied
    }

    /// [`Self::look`]. While everything is being restored it waits for execs that have taken effect and are not reported yet:
    /// there is no later look that could find them.
    fn look_for_kin(&mut self, held: &[Undo]) -> Result<Vec<Kin>, ObserveError> {
        let mut kin = self.look()?;
        let mut looks = 0;
        while self.finishing && looks < EXEC_LOOKS && held.iter().any(|undo| self.may_be_in_exec(undo)) {
            std::thread::sleep(EXEC_PAUSE);
            looks += 1;
            kin = self.look()?;
        }
        Ok(kin)
    }

    /// Whether a watched thread is gone and the first thread of its process has our value for a reason that is not known: the
    /// moved thread is becoming the first by exec, or the first thread set our value itself.
    fn may_be_in_exec(&self, undo: &Undo) -> bool {
        let watched = !self.births_lost && key_of(undo).is_some_and(|key| self.mover.moved(key).is_some());
        watched
            && matches!(self.became_first(undo), Ok(Some(first)) if !self.own.contains(&first) && !self.execs.contains(&first))
    }

    /// The first thread of a process whose place a moved thread may have taken by exec.
    fn became_first(&self, undo: &Undo) -> std::io::Result<Option<Key>> {
        let given = |first| self.mover.moved(first).and_then(|moved| moved.ours.last().cloned());
        kin::became_first(self.mover.threads(), undo, given).map(|first| first.as_ref().and_then(key_of))
    }

    /// Records that the affinity of this thread, and of its future children, is not ours.
    fn release(&mut self, (tid, _): Key) {
        if let Some(Err(error)) = self.observer.as_mut().map(|observer| observer.release(tid)) {
            tracing::warn!(tid, %error, "still watched");
        }
    }

    /// Lists the limits of this kernel: the notes that every window has.
    pub fn limits(&self) -> Vec<String> {
        self.observer.as_ref().map(|observer| observer.limits()).unwrap_or_default()
    }

    /// Reads the topology again if CPUs or nodes have come or gone, for a plane that observes by
    /// itself. Says what has changed.
    pub fn follow_machine(&mut self) -> Option<String> {
        self.follow();
        self.changed.take()
    }

    /// Reads the topology again if CPUs or nodes have come or gone.
    fn follow(&mut self) {
        if self.outline.is_none() {
            return;
        }
        let Ok(outline) = topology::sysfs::outline(&self.settings.sys_root) else { return };
        if self.outline.as_ref() == Some(&outline) {
            return;
        }
        // While a node comes or goes its files may contradict each other: then the next window reads them.
        let read = topology::sysfs::read(&self.settings.sys_root).and_then(|mut topology| {
            for (id, told) in bandwidths(&topology) {
                self.bandwidths.entry(id).or_insert(told);
            }
            let known = self.bandwidths.iter().filter(|(id, _)| topology.node(**id).is_some());
            let known = known.map(|(id, bandwidth)| (*id, bandwidth.clone())).collect();
            topology.configure(&known).map(|()| topology)
        });
        match read {
            Ok(topology) => {
                self.outline = Some(outline);
                let (before, now) = (shape(&self.topology), shape(&topology));
                self.topology = topology;
                if let Some(observer) = &mut self.observer {
                    observer.follow(&self.topology);
                }
                self.changed = Some(format!("CPUs or nodes came or went: {now} (before: {before})"));
            }
            Err(error) => self.changed = Some(format!("CPUs or nodes come or go: {error}")),
        }
    }

    /// Begins a window: moves that were prepared and not made become void.
    fn begin_window(&mut self) {
        self.follow();
        let looked = (!self.settings.beside_sched_ext).then(|| interference::scheduler(&self.settings.sys_root));
        self.scheduler = looked.flatten();
        self.finishing = false;
        self.put_back.clear();
        self.mover.begin_window();
        self.moves.begin_window();
        let threads = self.mover.threads();
        self.processes.retain(|pid, (start, _)| !threads.ended(*pid, *start));
    }

    /// Starts a copy that another plane makes by way of this one, which polls, paces and cancels it like its own.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start_copy(
        &mut self,
        begin: impl FnOnce() -> Result<Box<dyn Copying>, JobState> + Send + 'static,
    ) -> std::io::Result<JobId> {
        self.moves.jobs.start(begin)
    }

    /// Where the data was that a copy of another plane has moved, if the copy has kept that and is among the latest.
    pub fn take_layout(&mut self, job: JobId) -> Option<Layout> {
        self.moves.jobs.take_layout(job)
    }

    /// Completes the threads that another plane saw in a window, for policies that move them by way of this one: with the nodes that
    /// they may run on, and the reason why one must not be moved. `threads` are with their affinities.
    pub fn complete_window(&mut self, threads: Vec<(Thread, CpuSet)>) -> Vec<Thread> {
        self.begin_window();
        let complete = |(mut thread, mask): (Thread, CpuSet)| {
            thread.allowed_nodes = nodes_of(&self.topology, &mask);
            self.complete(ObservedThread { thread, ppid: 0, mask, asked: None, kernel_thread: false, cgroup_id: 0 })
        };
        threads.into_iter().map(complete).collect()
    }

    /// Threads of this very process may be moved, too: where it is a load that is being tested.
    pub fn move_own_threads(&mut self) {
        self.own_pid = 0;
    }

    /// Completes a thread for the policies: the nodes it may run on, and the reason it must not be moved.
    fn complete(&mut self, seen: ObservedThread) -> Thread {
        let ObservedThread { mut thread, mask, asked, kernel_thread, .. } = seen;
        // In whole ticks, as procfs has it: one name for a thread in snapshots and in undo records.
        let in_ticks = |ns: Option<u64>| ns.map(|ns| ns - ns % NS_PER_TICK);
        (thread.start_ns, thread.process_start_ns) = (in_ticks(thread.start_ns), in_ticks(thread.process_start_ns));
        let online = self.mover.defaults().online();
        // The task's own mask may contain offline CPUs; sched_getaffinity leaves them out.
        let mask = if mask.is_subset(online) {
            mask
        } else {
            let shown = mask.intersection(online);
            thread.allowed_nodes = nodes_of(&self.topology, &shown);
            shown
        };
        let (allowed, held) = if kernel_thread {
            (None, Some("is a kernel thread".to_owned()))
        } else if thread.pid == self.own_pid {
            (None, Some("is homenode itself".to_owned()))
        } else if let Some(scheduler) = &self.scheduler {
            (None, Some(format!("a sched_ext {scheduler} may treat a bound thread worse than others")))
        } else if mask == *online {
            // It may use every CPU, so its cpuset allows every CPU.
            (None, None)
        } else {
            let key: Key = (thread.tid, thread.start_ns.unwrap_or(0) / NS_PER_TICK);
            if asked == Some(false) {
                self.mover.not_asked(key, mask.clone());
            }
            self.judge(key, &mask, asked)
        };
        // For most masks the observer has already filled in the nodes.
        if let Some(allowed) = allowed {
            thread.allowed_nodes = nodes_of(&self.topology, &allowed);
        }
        thread.held = held;
        thread
    }

    /// For a thread whose mask lacks some CPUs: the CPUs it may be moved within, if they differ from the mask, and the reason it
    /// must not be moved.
    fn judge(&mut self, key: Key, mask: &CpuSet, asked: Option<bool>) -> (Option<CpuSet>, Option<String>) {
        let default = match self.mover.defaults().remembered(key) {
            Ok(default) => default,
            Err(why) => return (None, Some(format!("its cpuset is unknown: {why}"))),
        };
        let spares_isolated = self.mover.defaults().spares_isolated(mask, &default);
        match self.mover.moved(key) {
            Some(moved) if moved.holds(mask, &default) => {
                match moved.unbound || self.mover.rules().touch_own_affinity {
                    true => (Some(default), None),
                    false => (Some(moved.before.clone()), None),
                }
            }
            _ if *mask == default || self.mover.rules().touch_own_affinity => (Some(default), None),
            // Narrower than its cpuset, but nobody asked for that: the kernel was booted with `isolcpus`, for example.
            _ if asked == Some(false) => (None, None),
            // The same value, after somebody has set it: we have put it back, for example.
            _ if spares_isolated => (None, None),
            _ => (None, Some(own_affinity(mask))),
        }
    }

    /// The file with what tells it from an earlier one with its inode number. How often others have it open is not known while a copy
    /// has.
    fn identified(&self, seen: FileSeen) -> ObservedFile {
        let generation = (seen.id.generation != 0).then_some(u64::from(seen.id.generation));
        let opens = seen.file.opens.filter(|_| !self.moves.has_open(&seen.file.file));
        ObservedFile { generation, opens, ..seen.file }
    }

    /// Adds the mapped files of busy processes that could be moved.
    fn add_mapped(&self, processes: &mut Vec<Process>, threads: &[Thread], window_s: f64, notes: &mut Vec<String>) {
        let Some(watcher) = &self.mapped else { return };
        let (mapped, limits) = watcher.window(mapped::to_sample(threads, window_s));
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
                    format!("controllers: measured by {}", meter.name())
                }
                Err(why) => format!("controllers: counted file bytes only, in this window: {why}"),
            },
            Err(why) => format!("controllers: counted file bytes only: {why}"),
        };
        notes.push(said);
        let free = topology::sysfs::free_memory(&self.settings.sys_root, &self.topology);
        let load = |node: &topology::Node| NodeLoad {
            id: node.id,
            cpus: node.cpus.iter().collect(),
            distance: node.distance.clone(),
            read_bw_max: node.read_bw_max,
            write_bw_max: node.write_bw_max,
            read_bytes: seen.node_read.get(node.id),
            write_bytes: seen.node_write.get(node.id),
            cpu_s: cpu_s(&seen.node_cpu_s, node.id),
            memory_free: free.get(&node.id).copied().unwrap_or(0),
            measured: measured.get(&node.id).cloned(),
        };
        self.topology.nodes.iter().map(load).collect()
    }
}

/// The nodes with their online CPUs.
fn shape(topology: &Topology) -> String {
    let node = |node: &topology::Node| match node.cpus.is_empty() {
        true => format!("node {} without CPUs", node.id),
        false => format!("node {} with CPUs {}", node.id, node.cpus),
    };
    topology.nodes.iter().map(node).collect::<Vec<_>>().join(", ")
}

/// The bandwidth of each node, where it is known.
fn bandwidths(topology: &Topology) -> BTreeMap<NodeId, NodeConfig> {
    let of = |node: &topology::Node| NodeConfig { read_bw_max: node.read_bw_max, write_bw_max: node.write_bw_max };
    topology.nodes.iter().map(|node| (node.id, of(node))).collect()
}

fn cpu_s(node_cpu_s: &BTreeMap<NodeId, f64>, node: NodeId) -> Option<f64> {
    node_cpu_s.get(&node).copied()
}

/// See [`HostPlane::watch`].
fn watch(observer: &mut Option<Box<dyn Observe>>, births_lost: &mut bool, unwatched: &mut Option<String>, undo: &Undo) {
    if let Some(((tid, start), observer)) = key_of(undo).zip(observer.as_mut())
        && let Err(error) = observer.watch(tid, start.saturating_mul(NS_PER_TICK))
    {
        tracing::warn!(tid, %error, "its children are not watched");
        *births_lost = true;
        *unwatched =
            Some(format!("children of moved threads are not watched ({error}): their affinity is restored at the end"));
    }
}

fn key_of_kin(kin: &Kin) -> Key {
    (kin.tid, kin.start_ns / NS_PER_TICK)
}

/// The id of this boot; `None` where the kernel has none.
fn boot_id(proc_root: &Path) -> std::io::Result<Option<String>> {
    match std::fs::read_to_string(proc_root.join("sys/kernel/random/boot_id")) {
        Ok(id) => Ok(Some(id.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Nodes with a CPU in the set.
fn nodes_of(topology: &Topology, cpus: &CpuSet) -> Vec<NodeId> {
    topology.nodes.iter().filter(|n| n.cpus.iter().any(|cpu| cpus.contains(cpu))).map(|n| n.id).collect()
}

impl Plane for HostPlane {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        let broken = |e: HostError| PlaneError::Broken(Box::new(e));
        // From here on, any change to the affinity of the threads just moved is visible.
        if self.moves_made
            && let Err(error) = self.look()
        {
            tracing::warn!(%error, "affinities that equal ours may be treated as ours");
        }
        let Some(observer) = &mut self.observer else { return Err(broken(HostError::ActOnly)) };
        let mut seen = observer.window(window * self.stretch).map_err(|e| broken(e.into()))?;
        self.births_lost |= seen.births_lost;
        self.begin_window();
        let window_s = seen.window_s;
        let copied_s = self.moves.jobs.cpu_s();
        let own_s = seen.cost.cpu_s - (copied_s - std::mem::replace(&mut self.copied_s, copied_s));
        self.cost = Some(Cost {
            cpu: if window_s > 0.0 { own_s.max(0.0) / window_s } else { 0.0 },
            memory_bytes: seen.cost.rss_bytes.saturating_add(seen.cost.kernel_bytes),
        });
        let threads: Vec<Thread> = std::mem::take(&mut seen.threads).into_iter().map(|t| self.complete(t)).collect();
        let mut notes = std::mem::take(&mut seen.notes);
        let nodes = self.nodes(&seen, &mut notes);
        let mut processes = Vec::new();
        if let Some(facts) = &self.facts {
            let more;
            (processes, more) = facts.window(window, &mut seen.files, &threads);
            notes.extend(more);
            if let Some(observer) = &mut self.observer {
                observer.locate(&seen.files);
            }
        }
        notes.extend(self.unwatched.take());
        notes.extend(self.changed.take());
        notes.extend(self.scheduler.as_ref().map(|scheduler| {
            format!("sched_ext {scheduler}: no thread is bound beside it; those that are stay so (--beside-sched-ext)")
        }));
        self.add_mapped(&mut processes, &threads, window_s, &mut notes);
        let starts: FxHashMap<u32, u64> = threads.iter().filter_map(|t| Some((t.pid, t.of_process_since()?))).collect();
        for process in processes.iter_mut().filter(|process| process.start_ns.is_none()) {
            process.start_ns = starts.get(&process.pid).copied();
        }
        self.moves.seen(&seen.files, &threads);
        Ok(Snapshot {
            version: placement::snapshot::VERSION,
            time_s: seen.time_s,
            window_s,
            nodes,
            threads,
            files: seen.files.into_iter().map(|file| self.identified(file)).collect(),
            processes,
            outcomes: Vec::new(),
            notes,
        })
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        if let Some(scheduler) = self.scheduler.as_ref().filter(|_| !mv.subject.is_file()) {
            return Err(refused("sched_ext", format!("a sched_ext {scheduler} may treat a bound thread worse")));
        }
        self.moves.prepare(&mut self.mover, &self.topology, mv)
    }

    fn start(&mut self, mv: &Move, undo: &[Undo], write: &mut Write<'_>) -> Result<Started, PlaneError> {
        match mv.subject {
            Subject::Thread { .. } => undo.iter().try_for_each(|undo| self.bind(undo)).map(|()| Started::Done),
            Subject::Process { .. } => self.start_process(mv, undo, write),
            Subject::File { .. } => self.moves.start_file(mv),
        }
    }

    fn take_back(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        self.moves.take_back(mv)
    }

    fn not_bound(&mut self) -> Vec<Subject> {
        std::mem::take(&mut self.not_bound)
    }

    fn poll(&mut self) -> Vec<Progress> {
        self.moves.poll()
    }

    fn cancel(&mut self, job: JobId) {
        self.moves.jobs.cancel(job);
    }

    fn pace(&mut self, bytes_per_s: f64) {
        self.moves.jobs.pace(bytes_per_s);
    }

    fn moves_back(&self) -> bool {
        self.settings.move_back
    }

    fn move_back(&mut self) -> Option<(Subject, Result<JobId, PlaneError>)> {
        self.moves.move_back()
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        // Only records of moves name a family; records of descendants do not.
        let of_move = !undo.payload.is_empty();
        if of_move && !self.finishing {
            self.finishing = true;
            if let Err(error) = self.look() {
                tracing::warn!(%error, "every affinity that equals ours is treated as ours");
            }
        }
        let Some(key) = key_of(undo) else { return self.mover.undo(undo) };
        let value = undo.masks.as_ref().map(|masks| &masks.ours);
        if of_move && value.is_some_and(|value| self.processes.get(&undo.pid).is_some_and(|p| p.1.contains_key(value)))
        {
            // What its threads start from now on is put back, too. Not so if one thread goes back that was moved by itself.
            self.processes.remove(&undo.pid);
        }
        if of_move && self.own.contains(&key) {
            self.mover.end(key);
            return Ok(Undone::ChangedByOthers);
        }
        let undone = self.mover.undo(undo)?;
        if !of_move && undone == Undone::Restored {
            self.put_back.insert(key);
            self.release(key);
        }
        Ok(undone)
    }

    /// The observer reports the descendants of moved threads. While everything is being restored, and without an observer,
    /// procfs is searched for those whose births it did not see. A thread that set our value itself looks like one of them, so
    /// the search leaves out the kin of watched threads.
    fn inherited(&mut self, held: &[Undo]) -> Result<Vec<Heir>, PlaneError> {
        let mut trouble: Option<String> = None;
        let mut heirs = match self.look_for_kin(held) {
            Ok(kin) => self.lineage.heirs(&self.mover, &kin).map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        }
        .unwrap_or_else(|error| {
            trouble = Some(error);
            Vec::new()
        });
        if self.observer.is_none() || self.finishing {
            let blind = !self.looked || self.births_lost;
            let searched = |undo: &Undo| blind || key_of(undo).is_some_and(|key| self.mover.moved(key).is_none());
            match kin::heirs(self.mover.threads(), held, searched) {
                Ok(more) => {
                    let mut known: FxHashSet<Key> = heirs.iter().filter_map(key_of).collect();
                    known.extend(self.own.iter().chain(&self.put_back));
                    heirs.extend(more.into_iter().filter(|heir| key_of(heir).is_some_and(|key| known.insert(key))));
                }
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        match trouble {
            Some(why) if heirs.is_empty() => Err(PlaneError::Refused { reason: "unreadable", why }),
            _ => Ok(heirs.into_iter().map(|heir| self.heir(heir)).collect()),
        }
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        let (Some(key), Some(masks)) = (key_of(undo), &undo.masks) else { return false };
        // The kernel's list of tasks takes no lock: procfs is asked only about those that it does not have.
        let lives = self.looked && self.alive.contains(&key);
        let over = if !lives && self.mover.threads().ended(key.0, key.1) {
            match self.became_first(undo) {
                // It continues under another id. The record must stay until that thread is restored, in case of a crash.
                // A watched thread did so only if the kernel reported its exec; the first thread may hold our value for itself.
                Ok(Some(first)) => {
                    let watched = self.looked && !self.births_lost && self.mover.moved(key).is_some();
                    self.own.contains(&first) || watched && !self.execs.contains(&first)
                }
                Ok(None) => true,
                Err(_) => false,
            }
        } else {
            self.own.contains(&key) && affinity::get(key.0).is_ok_and(|mask| mask == masks.ours)
        };
        if over {
            self.mover.end(key);
        }
        over
    }

    fn epoch(&self) -> Option<String> {
        self.epoch.clone()
    }

    fn cost(&self) -> Option<Cost> {
        self.cost
    }

    /// First looks at fewer files and processes. Sampling adapts to the load by itself; the remaining cost is each window's pass over
    /// all threads and entries. So then this makes windows longer.
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
