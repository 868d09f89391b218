//! A mounted volume as a plane: which thread reads which data from which node, and moves of threads
//! and files.
//!
//! **Problem.** On a host homenode samples what the kernel does with its page cache. The server of
//! a volume serves every request itself, so it can know everything exactly: the thread, the file,
//! the node of each byte.
//!
//! **Approach.** [`VolumePlane`] makes a snapshot of what `fs` has counted since the last one, by
//! thread and file, and of what `/proc` says of these threads. Threads move as on a host: [`Actor`]
//! prepares, makes and undoes their moves, by the same rules and records. Files move by
//! `fs::Volume::migrate`, as jobs of the actor. The nodes are those of the machine, or emulated
//! ones: then a move of a thread to a node binds it to the CPUs of the node's group.
//!
//! Where the policy looks at ranges of files, `fs` counts the bytes of each, and [`Ranges`] makes
//! heat of them, as on a host. Nothing reclaims memory of a volume: what is free there is free.
//!
//! **Limits.** Threads that reached the volume through the page cache are not seen: mount with the
//! direct cache for exact sums. Of processes nothing is observed, so no policy moves them. CPU time
//! is that of the caller alone; what the server spends on a request counts for the node where the
//! server's thread runs. What this costs is part of what the server costs, and has no budget of its
//! own.

mod callers;
mod copy;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use act::memory::Layout;
use act::watched::Unwatched;
use act::{Actor, Seen};
use engine::Copies as _;
use engine::{Inherited, JobId, JobState, Plane, PlaneError, Progress, Started, Subject, Undo, Undone, Write};
use fs::format::BLOCK_BYTES;
use fs::{Ino, Placement, Traffic, Use, Volume};
use linux::affinity;
use placement::ranges::{RangeKey, Ranges};
use placement::{IdleFile, IdleRange, Move, NodeLoad, ObservedFile, RANGE_BYTES, RangeHeat, Reclaim, Snapshot, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::time::{ClockId, clock_gettime};
use topology::{FileId, NodeId, Topology};
use window::Window;

use callers::Caller;
pub use callers::Callers;
use copy::{Copies, FileCopy};

/// Files whose paths a window tells, and names of a directory that are searched for one: a path
/// takes a look at each name.
const NAMED: usize = 16;
const NAMES: usize = 10_000;

#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Device of the mount, as [`FileId::dev`]. Files are named by it.
    pub device: u32,
    /// The directory that it is mounted on.
    pub directory: PathBuf,
    /// A note for every window: that its nodes are emulated.
    pub notes: Vec<String>,
    /// They are emulated: they stay as they are when CPUs of the machine come or go.
    pub emulated: bool,
    /// Also move threads with an affinity of their own.
    pub touch_own_affinity: bool,
    /// Also show and move threads of this process.
    pub own_threads: bool,
    /// How the volume places what is written.
    pub placement: Placement,
    /// The policy looks at ranges of files.
    pub ranges: bool,
    /// It looks at those that were not read, too.
    pub idle: bool,
}

pub struct VolumePlane {
    volume: Arc<Volume>,
    callers: Arc<Callers>,
    /// Moves threads; its topology is ours.
    actor: Actor<Unwatched>,
    settings: Settings,
    copies: Copies,
    /// The files of moves that were prepared in this window.
    prepared: FxHashMap<(Subject, NodeId), FileCopy>,
    /// Traffic of each region until the last window.
    before: Vec<Traffic>,
    /// CPU seconds of each CPU until the last window.
    cpu_before: FxHashMap<u32, f64>,
    began: Instant,
    /// The heat of ranges of files, where the policy looks at it.
    ranges: Option<Ranges>,
    /// Is told each window.
    tell: Option<Box<Tell>>,
}

/// Is told a window; an error ends the loop.
type Tell = dyn FnMut(&Snapshot) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

impl VolumePlane {
    /// Observes a volume from now on. `callers` is what its server asks for the nodes of threads.
    ///
    /// # Errors
    ///
    /// procfs or sysfs cannot be read.
    pub fn open(volume: Arc<Volume>, callers: Arc<Callers>, settings: Settings) -> io::Result<Self> {
        let acting = act::Settings {
            touch_own_affinity: settings.touch_own_affinity,
            fixed_nodes: settings.emulated,
            ..act::Settings::default()
        };
        let mut actor = Actor::new(acting, Topology::clone(&callers.topology()), None)?;
        if settings.own_threads {
            actor.move_own_threads();
        }
        volume.watch_files();
        if settings.ranges {
            volume.watch_ranges(RANGE_BYTES);
        }
        callers.watch();
        volume.take_uses();
        volume.take_ranges();
        let mut plane = Self {
            before: window::traffic(&volume),
            cpu_before: FxHashMap::default(),
            began: Instant::now(),
            copies: Copies::default(),
            prepared: FxHashMap::default(),
            volume,
            callers,
            actor,
            ranges: settings.ranges.then(Ranges::default),
            settings,
            tell: None,
        };
        plane.cpu_before = cpu_seconds().into_iter().collect();
        Ok(plane)
    }

    /// Also tells each window to `tell`, such as to record it. An error ends the loop.
    pub fn telling(
        mut self,
        tell: impl FnMut(&Snapshot) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + 'static,
    ) -> Self {
        self.tell = Some(Box::new(tell));
        self
    }

    /// To be called before everything is undone: that takes open files, and those of the threads
    /// that are watched are not needed any more.
    pub fn ends(&self) {
        self.callers.close();
    }

    /// The snapshot of the window that ends now.
    fn window(&mut self) -> Snapshot {
        let (uses, untold) = self.volume.take_uses();
        let window_s = self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        self.prepared.clear();
        if self.actor.begin_window() {
            self.callers.follow(self.actor.topology());
        }
        let mut threads = Vec::new();
        // By rising tid, then file.
        let mut own = FxHashSet::default();
        for (tid, of_one) in window::by_thread(&uses) {
            let Some(caller) = self.callers.of(tid) else { continue }; // it has ended
            if caller.watched.pid == std::process::id() && !self.settings.own_threads {
                own.insert(tid);
            } else {
                threads.extend(self.thread(tid, &caller, of_one));
            }
        }
        self.callers.end_window();
        // Nobody asks for a single thread's total here: those that are forgotten count in the sum
        // only.
        self.volume.traffic_by_thread(|tid| self.callers.knows(tid));
        // What the kernel writes back for nobody in particular is no use by another thread.
        let readers = window::readers(&uses, |tid| own.contains(&tid));
        for seen in &mut threads {
            seen.thread.shares_file = window::shares(seen.thread.tid, &uses, &readers);
        }
        let mut notes = self.settings.notes.clone();
        notes.extend(self.actor.take_notes());
        if untold > 0 {
            notes.push(format!("{untold} bytes of so many files at once that they were not counted by file"));
        }
        if let Some(why) = self.callers.take_failure() {
            notes.push(format!("threads that use the volume could not be looked at: {why}"));
        }
        let (mut heat, untold) = self.heat();
        if untold > 0 {
            notes.push(format!("{untold} bytes of so many ranges at once that they were not counted by range"));
        }
        let seen = self.seen();
        let file = |(ino, readers): (Ino, _)| {
            seen.file(ino, readers, heat.remove(&ino).unwrap_or_default(), self.copies.contains(ino))
        };
        let mut files: Vec<ObservedFile> = readers.into_iter().filter_map(file).collect();
        self.name_files(&uses, &mut files);
        let idle = if self.settings.idle { self.idle() } else { Vec::new() };
        self.volume.let_go_again(usize::MAX);
        let time = clock_gettime(ClockId::Boottime);
        Snapshot {
            version: placement::snapshot::VERSION,
            time_s: time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9,
            window_s,
            nodes: self.nodes(),
            threads: threads.into_iter().map(|seen| self.actor.complete(seen)).collect(),
            files,
            idle,
            processes: Vec::new(),
            notes,
            ..Snapshot::default()
        }
    }

    /// A thread from all that it did with files, with its affinity; `None` if it has ended.
    fn thread(&self, tid: u32, caller: &Arc<Caller>, uses: &[Use]) -> Option<Seen> {
        let of = Arc::clone(caller);
        let now = self.callers.ask(tid, move || of.watched.now()).ok().flatten()?;
        let time = caller.watched.time().ok().flatten()?;
        let mask = affinity::get(tid).ok()?;
        let node = self.callers.topology().node_of_cpu(now.cpu)?;
        let mut counted = caller.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *counted, time);
        let seconds = |now: u64, before: u64| now.saturating_sub(before) as f64 * 1e-9;
        let mut thread = Thread {
            tid,
            pid: caller.watched.pid,
            comm: now.comm,
            start_ns: caller.watched.start_ns,
            process_start_ns: caller.watched.process_start_ns,
            node,
            cpu_s: seconds(time.ran_ns, before.ran_ns),
            wait_s: Some(seconds(time.waited_ns, before.waited_ns)),
            served_s: Some(caller.take_served()),
            allowed_nodes: self.actor.topology().nodes_of_cpus(&mask),
            ..Thread::default()
        };
        self.seen().fill(&mut thread, uses);
        Some(Seen { thread, mask, asked: None, kernel_thread: false })
    }

    /// The volume, as snapshots describe it.
    fn seen(&self) -> Window<'_> {
        let Settings { device, placement, .. } = self.settings;
        Window { volume: &self.volume, device, placement, regions: self.before.len() }
    }

    fn id(&self, ino: Ino) -> FileId {
        self.seen().id(ino)
    }

    /// The heat of ranges that were read in the window, by file, and the bytes of which no range is
    /// known.
    fn heat(&mut self) -> (BTreeMap<Ino, Vec<RangeHeat>>, u64) {
        let Some(ranges) = &mut self.ranges else { return (BTreeMap::new(), 0) };
        self.actor.moves().take_ended().iter().for_each(|ended| ended.tell(ranges));
        let (uses, untold) = self.volume.take_ranges();
        let mut read: BTreeMap<RangeKey, u64> = BTreeMap::new();
        let mut sizes = Vec::new();
        for of_one in uses.chunk_by(|a, b| a.ino == b.ino) {
            let Some(ino) = of_one.first().map(|one| one.ino) else { continue };
            let _visit = Volume::visit(&*self.volume, ino);
            let Ok(stat) = self.volume.stat(ino) else { continue }; // it was removed
            let file = FileId { dev: self.settings.device, ino: ino.raw(), generation: stat.generation };
            sizes.push((ino, file, stat.size));
            for one in of_one {
                let of = |node: Option<u32>| u16::try_from(node?).ok();
                let (Some(node), Some(by)) = (of(self.volume.node_of_region(one.region)), of(one.by)) else { continue };
                // Regions of one node are one place.
                *read.entry(RangeKey { file, range: one.range, node, by }).or_default() += one.bytes;
            }
        }
        let mut heat = ranges.window(&read.into_iter().collect::<Vec<_>>());
        sizes.iter().for_each(|(_, file, size)| ranges.size(*file, Some(*size)));
        (sizes.into_iter().filter_map(|(ino, file, _)| Some((ino, heat.remove(&file)?))).collect(), untold)
    }

    /// What was read earlier and not in this window, on nodes with slower memory below them: what a
    /// policy may send down. Ranges that are mostly holes are none: they count as whole ones, and
    /// would make no room.
    fn idle(&mut self) -> Vec<IdleFile> {
        let on = self.actor.topology().above_the_slowest();
        let Some(ranges) = self.ranges.as_mut().filter(|_| !on.is_empty()) else { return Vec::new() };
        let mut idle = Vec::new();
        for (file, parts) in ranges.idle(&on) {
            let Some(ino) = Ino::from_raw(file.ino) else { continue };
            let _visit = Volume::visit(&*self.volume, ino);
            match self.volume.stat(ino) {
                Ok(stat) if stat.generation == file.generation => {
                    let is_full = |part: &IdleRange| {
                        let (first, end) = (part.start / BLOCK_BYTES, (part.start + RANGE_BYTES) / BLOCK_BYTES);
                        let bytes = self.volume.bytes_on_node(ino, (first, end), part.node.0);
                        bytes.is_ok_and(|bytes| bytes >= RANGE_BYTES / 2)
                    };
                    idle.push(IdleFile {
                        file: file.any_generation(),
                        generation: Some(file.generation),
                        ranges: parts.into_iter().filter(is_full).collect(),
                    });
                }
                _ => ranges.gone(file),
            }
        }
        idle
    }

    /// Tells the paths of the files with the most bytes: those that can be worth a move or a line.
    fn name_files(&self, uses: &[Use], files: &mut [ObservedFile]) {
        let mut bytes: FxHashMap<Ino, u64> = FxHashMap::default();
        for one in uses {
            *bytes.entry(one.ino).or_default() += one.regions.iter().map(|t| t.read + t.written).sum::<u64>();
        }
        let mut by_bytes: Vec<(u64, Ino)> = bytes.into_iter().map(|(ino, bytes)| (bytes, ino)).collect();
        by_bytes.sort_unstable_by(|a, b| b.cmp(a));
        for (_, ino) in by_bytes.into_iter().take(NAMED) {
            let id = self.id(ino);
            let path = self.volume.path(ino, NAMES);
            if let (Some(path), Some(file)) = (path, files.iter_mut().find(|file| file.file == id)) {
                let inside = Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or_default()));
                file.path = Some(linux::shown(self.settings.directory.join(inside).as_os_str()));
            }
        }
    }

    fn nodes(&mut self) -> Vec<NodeLoad> {
        let cpu_now: FxHashMap<u32, f64> = cpu_seconds().into_iter().collect();
        let cpu_before = std::mem::replace(&mut self.cpu_before, cpu_now);
        let (topology, mut before) = (self.callers.topology(), self.before.clone());
        let mut nodes = self.seen().nodes(&topology, &mut before);
        self.before = before;
        for load in &mut nodes {
            let used = |cpu: &u32| Some((self.cpu_before.get(cpu)? - cpu_before.get(cpu)?).max(0.0));
            load.reclaim = self.ranges.is_some().then(Reclaim::default);
            load.cpu_s = load.cpus.iter().map(used).sum();
        }
        nodes
    }

    /// Starts to move a file; with `back` only what that job has moved, which is this.
    fn start_file(&mut self, mv: &Move, back: Option<(JobId, Layout)>) -> Result<Started, PlaneError> {
        let prepared = self.prepared.remove(&(mv.subject, mv.to));
        let mut copy = prepared.ok_or_else(|| act::data::not_prepared(mv))?;
        let (takes_back, only) = back.unzip();
        only.iter().for_each(|only| copy.only(only));
        self.actor.moves().start_copy(mv, takes_back, copy)
    }

    /// The file that a move is of, ready to be copied.
    fn prepare_file(&self, file: FileId, mv: &Move) -> Result<FileCopy, PlaneError> {
        let to = mv.to;
        let Some(ino) = Ino::from_raw(file.ino).filter(|_| file.dev == self.settings.device) else {
            return Err(PlaneError::refused("not_of_this_volume", format!("file {file} is not on this volume")));
        };
        let _visit = Volume::visit(&*self.volume, ino);
        let stat = self.volume.stat(ino).map_err(|error| match error {
            fs::Error::NotFound => PlaneError::Gone { what: format!("file {file}") },
            error => PlaneError::failed("unreadable", format!("file {file} cannot be examined"), error),
        })?;
        if file.generation > 0 && file.generation != stat.generation {
            return Err(PlaneError::Gone { what: format!("file {file}") });
        }
        if !self.volume.usage().regions.iter().any(|region| region.node == Some(to.0)) {
            return Err(PlaneError::refused("no_region_on_node", format!("the volume has no region on node {to}")));
        }
        FileCopy::prepare(&self.volume, (ino, stat.generation), (mv.from, to), &mv.ranges, &self.copies)
            .map_err(|error| PlaneError::failed("unreadable", format!("file {file} cannot be examined"), error))
    }
}

/// How often to look whether the copies have ended.
const ENDING: Duration = Duration::from_millis(5);

impl Drop for VolumePlane {
    /// Ends the copies: whoever ends the use of the volume next has it for himself. The mount may
    /// go on.
    fn drop(&mut self) {
        self.callers.unwatch();
        self.volume.watch_ranges(0);
        self.volume.take_ranges();
        loop {
            let running: Vec<JobId> =
                self.actor.moves().poll().into_iter().filter(|p| p.state == JobState::Running).map(|p| p.job).collect();
            if running.is_empty() {
                return;
            }
            running.into_iter().for_each(|job| self.actor.moves().cancel(job));
            std::thread::sleep(ENDING);
        }
    }
}

/// CPU seconds that each CPU has worked since boot, in hundredths; none where `/proc/stat` cannot
/// be read.
fn cpu_seconds() -> Vec<(u32, f64)> {
    let text = std::fs::read_to_string(PathBuf::from("/proc/stat")).unwrap_or_default();
    let line = |line: &str| {
        let (cpu, ticks) = line.strip_prefix("cpu")?.split_once(' ')?;
        let ticks: Vec<u64> = ticks.split_ascii_whitespace().map_while(|t| t.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5)): all but idle and
        // iowait.
        let worked: u64 = ticks.iter().take(8).enumerate().filter(|(i, _)| !matches!(i, 3 | 4)).map(|(_, t)| t).sum();
        Some((cpu.parse().ok()?, worked as f64 / 100.0))
    };
    text.lines().filter_map(line).collect()
}

impl engine::Copies for VolumePlane {
    fn poll(&mut self) -> Vec<Progress> {
        self.actor.moves().poll()
    }

    fn cancel(&mut self, job: JobId) {
        self.actor.moves().cancel(job);
    }

    fn pace(&mut self, bytes_per_s: f64) {
        self.actor.moves().pace(bytes_per_s);
    }

    fn take_back(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        if !mv.subject.is_file() {
            return self.actor.moves().take_back(mv);
        }
        let back = self.actor.moves().way_back(mv)?;
        self.start_file(mv, Some(back))
    }
}

impl Plane for VolumePlane {
    fn copies(&mut self) -> Option<&mut dyn engine::Copies> {
        Some(self)
    }

    fn topology(&self) -> &Topology {
        self.actor.topology()
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        // A signal unparks this thread, and the window ends.
        std::thread::park_timeout(window.saturating_sub(self.began.elapsed()));
        let window = self.window();
        if let Some(tell) = &mut self.tell {
            tell(&window)?;
        }
        Ok(window)
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let Subject::File(file) = mv.subject else { return self.actor.prepare(mv) };
        let copy = self.prepare_file(file, mv)?;
        self.prepared.insert((mv.subject, mv.to), copy);
        Ok(Vec::new())
    }

    fn start(&mut self, mv: &Move, undo: &[Undo], write: &mut Write<'_>) -> Result<Started, PlaneError> {
        match mv.subject.is_file() {
            true => self.start_file(mv, None),
            false => self.actor.start(mv, undo, write),
        }
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

    fn epoch(&self) -> Option<String> {
        self.actor.epoch()
    }
}
