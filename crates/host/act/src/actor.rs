//! Moves threads, processes and files of this machine, and undoes it: the part of a plane that
//! acts.
//!
//! **Problem.** The host and a mounted volume observe in different ways and move threads by the
//! same rules, with the same records. `restore` only undoes: it neither observes nor moves.
//!
//! **Approach.** [`Actor`] has the methods of [`engine::Plane`] that act; a plane passes them on.
//! It completes the threads that a plane has seen: with the nodes that each may run on, and the
//! reason why one must not be moved. A thread that we moved is shown with the nodes it could use
//! before. [`judge`] says which threads may be moved and where to, [`bind`] binds them, and
//! [`undo`] puts back what was bound, with what its threads have started.
//!
//! **Limits.** Facts about control groups in a window may be a few windows old; preparing a move
//! reads them again.

mod bind;
mod judge;
mod undo;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{Copies, Inherited, Plane, PlaneError, Started, Undo, Undone, Write};
use linux::interference;
use linux::threads::Tasks;
use placement::{Move, Snapshot, Subject, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{CpuSet, FileId, ProcessId, ThreadId, Topology};

use super::data::DataMoves;
use super::descendants::Descendants;
use super::machine::Machine;
use super::mover::{Given, Mover, Rules, key_of};
use super::watched::{Births, Watched};

/// The longest that a fork takes from the copy of the parent's affinity to a child that can be
/// found, on a machine whose CPUs all have other work, too.
const FORK_ENDS: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub proc_root: PathBuf,
    pub sys_root: PathBuf,
    /// Also move threads with an affinity of their own. Default false.
    pub touch_own_affinity: bool,
    /// Also bind threads while a sched_ext scheduler runs. Default false.
    pub beside_sched_ext: bool,
    /// Remember where data was that moves copy, so that it can be sent back at the end. Default
    /// false: it stays.
    pub move_back: bool,
    /// The nodes are made up, and stay as they are when CPUs of the machine come or go. Default
    /// false.
    pub fixed_nodes: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            proc_root: PathBuf::from("/proc"),
            sys_root: PathBuf::from("/sys"),
            touch_own_affinity: false,
            beside_sched_ext: false,
            move_back: false,
            fixed_nodes: false,
        }
    }
}

/// A thread that a plane has seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The thread, with the nodes of its mask.
    pub thread: Thread,
    pub mask: CpuSet,
    /// Whether an affinity was ever asked for, by the thread, for it, or for a thread it descends
    /// from; `None` if that is not known.
    pub asked: Option<bool>,
    pub kernel_thread: bool,
}

/// Acts on this machine. `B` watches births.
pub struct Actor<B> {
    machine: Machine,
    mover: Mover,
    descendants: Descendants,
    watched: Watched<B>,
    settings: Settings,
    own_pid: u32,
    /// The sched_ext scheduler because of which no thread is bound.
    scheduler: Option<String>,
    /// A move was undone since the last window: the engine is finishing, or recovering from a
    /// crash.
    finishing: bool,
    /// Descendants put back since the last window. What they have now is their own.
    were_put_back: FxHashSet<ThreadId>,
    epoch: Option<String>,
    moves: DataMoves,
    /// Processes that were moved as a whole and not put back, and the values of their threads.
    processes: FxHashMap<u32, (ProcessId, Given)>,
}

impl<B: Births> Actor<B> {
    /// Acts on the machine with this topology. Needs no more than procfs and sysfs.
    pub fn new(settings: Settings, topology: Topology, births: Option<B>) -> io::Result<Self> {
        let rules = Rules { touch_own_affinity: settings.touch_own_affinity };
        let moves = DataMoves::new(&settings.proc_root, settings.move_back);
        Ok(Self {
            machine: Machine::new(topology, settings.sys_root.clone(), settings.fixed_nodes),
            mover: Mover::new(&settings.proc_root, &settings.sys_root, rules)?,
            descendants: Descendants::default(),
            watched: Watched::new(births),
            epoch: boot_id(&settings.proc_root)?,
            settings,
            own_pid: std::process::id(),
            scheduler: None,
            finishing: false,
            were_put_back: FxHashSet::default(),
            moves,
            processes: FxHashMap::default(),
        })
    }

    /// Allows moves of this process's own threads, for tests in which they are the load.
    pub fn move_own_threads(&mut self) {
        self.own_pid = 0;
    }

    /// Asks this list about threads before procfs, from now on.
    pub fn ask(&mut self, tasks: Option<Arc<dyn Tasks>>) {
        self.mover.threads_mut().ask(tasks);
    }

    pub fn watcher(&self) -> Option<&B> {
        self.watched.births.as_ref()
    }

    pub fn watcher_mut(&mut self) -> Option<&mut B> {
        self.watched.births.as_mut()
    }

    /// Births were missed: descendants of moved threads are searched for at the end.
    pub fn births_lost(&mut self) {
        self.watched.lost = true;
    }

    pub fn moves(&mut self) -> &mut DataMoves {
        &mut self.moves
    }

    pub fn has_open(&self, file: FileId) -> bool {
        self.moves.has_open(file)
    }

    pub fn take_notes(&mut self) -> Vec<String> {
        let beside = self.scheduler.as_ref().map(|scheduler| {
            format!("sched_ext {scheduler}: no thread is bound beside it; those that are stay so (--beside-sched-ext)")
        });
        let stuck = self.moves.jobs.note();
        self.watched
            .unwatched
            .take()
            .into_iter()
            .chain(self.machine.take_changed())
            .chain(beside)
            .chain(stuck)
            .collect()
    }

    /// Ends a window. From here on, changes to the affinity of threads that were moved in it are
    /// noticed.
    pub fn end_window(&mut self) {
        if self.watched.moves_made
            && let Err(error) = self.look()
        {
            tracing::warn!(%error, "affinities that equal ours may be treated as ours");
        }
    }

    /// Begins a window: moves that were prepared and not made become void. Says whether the
    /// topology is a new one.
    pub fn begin_window(&mut self) -> bool {
        let followed = self.machine.follow();
        let looked = (!self.settings.beside_sched_ext).then(|| interference::scheduler(&self.settings.sys_root));
        self.scheduler = looked.flatten();
        self.finishing = false;
        self.were_put_back.clear();
        self.mover.begin_window();
        self.moves.begin_window();
        let threads = self.mover.threads();
        self.processes.retain(|_, (process, _)| !threads.ended(process.first_thread()));
        followed
    }
}

impl<B: Births> Plane for Actor<B> {
    fn topology(&self) -> &Topology {
        self.machine.topology()
    }

    /// Fails: an actor does not observe.
    fn observe(&mut self, _: Duration) -> Result<Snapshot, PlaneError> {
        Err(PlaneError::Broken("this plane only acts: it cannot observe".into()))
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        if let Some(scheduler) = self.scheduler.as_ref().filter(|_| !mv.subject.is_file()) {
            return Err(PlaneError::refused(
                "sched_ext",
                format!("a sched_ext {scheduler} may treat a bound thread worse"),
            ));
        }
        self.moves.prepare(&mut self.mover, self.machine.topology(), mv)
    }

    fn start(&mut self, mv: &Move, undo: &[Undo], write: &mut Write<'_>) -> Result<Started, PlaneError> {
        match mv.subject {
            Subject::Thread(_) => undo.iter().try_for_each(|undo| self.bind(undo)).map(|()| Started::done()),
            Subject::Process(_) => self.start_process(mv, undo, write),
            Subject::File(_) => self.moves.start_file(mv),
        }
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(&mut self.moves)
    }

    fn undoing(&mut self, undos: &[Undo]) {
        self.mover.meet(undos);
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        match (key_of(undo), &undo.payload) {
            (None, _) => self.mover.undo(undo),
            (Some(thread), Some(_)) => self.undo_move(thread, undo),
            // The record of a descendant has no payload.
            (Some(thread), None) => self.put_back(thread, undo),
        }
    }

    fn inherited(&mut self, owned: &[Undo]) -> Result<Vec<Inherited>, PlaneError> {
        self.find_inherited(owned)
    }

    fn let_forks_end(&mut self) {
        std::thread::sleep(FORK_ENDS);
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        let over =
            key_of(undo).filter(|thread| undo.masks.as_ref().is_some_and(|masks| self.is_over(*thread, masks, undo)));
        over.into_iter().for_each(|thread| self.mover.end(thread));
        over.is_some()
    }

    fn epoch(&self) -> Option<String> {
        self.epoch.clone()
    }
}

/// The id of this boot; `None` where the kernel has none.
fn boot_id(proc_root: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(proc_root.join("sys/kernel/random/boot_id")) {
        Ok(id) => Ok(Some(id.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::watched::Unwatched;
    use super::*;
    use engine::Masks;

    #[test]
    fn a_thread_born_in_a_moved_process_gets_back_what_its_parent_had() {
        let set = |t: &str| t.parse::<CpuSet>().unwrap();
        let undo = |tid, before: &str| Undo {
            subject: Subject::Thread(ThreadId::new(tid, 10_000_000)),
            pid: 9,
            masks: Some(Masks { before: set(before), ours: set("4-7"), unbound: before == "0-7" }),
            payload: None,
        };
        let mut actor = Actor::<Unwatched>::new(Settings::default(), Topology::default(), None).unwrap();
        let mut given = Given::default();
        given.add(&Undo { payload: Some("context".to_owned()), ..undo(9, "3") });
        given.add(&undo(10, "0-7"));
        actor.processes.insert(9, (ProcessId::new(9, 10_000_000), given));
        // The child of the second thread.
        let thread = actor.keep_or_put_back(undo(11, "0-7"));
        assert!(thread.keeps);
        assert_eq!((thread.undo.masks, thread.undo.payload.as_deref()), (undo(11, "0-7").masks, Some("context")));
    }
}
