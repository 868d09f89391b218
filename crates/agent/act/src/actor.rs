//! Moves threads, processes and files of this machine, and undoes it: the part of a plane that
//! acts.
//!
//! **Problem.** The host and a mounted volume observe in different ways and move threads by the
//! same rules, with the same records. `restore` only undoes: it neither observes nor moves.
//!
//! **Approach.** [`Actor`] has the methods of [`engine::Plane`] that act; a plane passes them on.
//! It completes the threads that a plane has seen: with the nodes that each may run on, and the
//! reason why one must not be moved. A thread that we moved is shown with the nodes it could use
//! before.
//!
//! **Limits.** Facts about control groups in a window may be a few windows old; preparing a move
//! reads them again.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::{Copies, Inherited, Plane, PlaneError, Started, Undo, Undone, Write};
use linux::births::Descendant;
use linux::threads::as_shown;
use linux::{affinity, interference};
use placement::{Move, Snapshot, Subject, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{CpuSet, FileId, ProcessId, ThreadId, Topology};

use super::data::DataMoves;
use super::descendants::{Descendants, search};
use super::machine::Machine;
use super::mover::{Given, Mover, Rules, key_of, own_affinity};
use super::privileged::PrivilegedWorker;
use super::watched::{Births, Trouble, Watched};

/// How often to look for an exec that has taken effect and is not reported yet. The kernel reports
/// it when the new program is loaded, which takes milliseconds, or longer from a slow disk.
const EXEC_LOOKS: u32 = 50;
/// The pause between two such looks.
const EXEC_PAUSE: Duration = Duration::from_millis(20);

/// How to act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The procfs mount.
    pub proc_root: PathBuf,
    /// The sysfs mount.
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
    /// Its affinity.
    pub mask: CpuSet,
    /// Whether an affinity was ever asked for, by the thread, for it, or for a thread it descends
    /// from; `None` if that is not known.
    pub asked: Option<bool>,
    /// Whether it is a kernel thread.
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
    /// Descendants restored since the last window.
    put_back: FxHashSet<ThreadId>,
    epoch: Option<String>,
    /// Moves of files and processes.
    moves: DataMoves,
    /// Processes that were moved as a whole and not put back, and the values of their threads.
    processes: FxHashMap<u32, (ProcessId, Given)>,
}

impl<B: Births> Actor<B> {
    /// Acts on the machine with this topology. Needs no more than procfs and sysfs. With `worker`,
    /// files on DAX are moved, too.
    ///
    /// # Errors
    ///
    /// procfs or sysfs cannot be read.
    pub fn new(
        settings: Settings,
        topology: Topology,
        births: Option<B>,
        worker: Option<PrivilegedWorker>,
    ) -> io::Result<Self> {
        let rules = Rules { touch_own_affinity: settings.touch_own_affinity };
        let mut moves = DataMoves::new(&settings.proc_root, worker);
        if settings.move_back {
            moves.keep_ways_back();
        }
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
            put_back: FxHashSet::default(),
            moves,
            processes: FxHashMap::default(),
        })
    }

    /// Allows moves of this process's own threads, for tests in which they are the load.
    pub fn move_own_threads(&mut self) {
        self.own_pid = 0;
    }

    /// The watcher of births.
    pub fn watcher(&self) -> Option<&B> {
        self.watched.births.as_ref()
    }

    /// The same, to use it.
    pub fn watcher_mut(&mut self) -> Option<&mut B> {
        self.watched.births.as_mut()
    }

    /// Births were missed: descendants of moved threads are searched for at the end.
    pub fn births_lost(&mut self) {
        self.watched.lost = true;
    }

    /// Files and processes that move.
    pub fn moves(&mut self) -> &mut DataMoves {
        &mut self.moves
    }

    /// Whether a copy has this file open.
    pub fn has_open(&self, file: FileId) -> bool {
        self.moves.has_open(file)
    }

    /// Notes for the window that begins.
    pub fn take_notes(&mut self) -> Vec<String> {
        let beside = self.scheduler.as_ref().map(|scheduler| {
            format!("sched_ext {scheduler}: no thread is bound beside it; those that are stay so (--beside-sched-ext)")
        });
        self.watched.unwatched.take().into_iter().chain(self.machine.take_changed()).chain(beside).collect()
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
        self.put_back.clear();
        self.mover.begin_window();
        self.moves.begin_window();
        let threads = self.mover.threads();
        self.processes.retain(|_, (process, _)| !threads.ended(process.first_thread()));
        followed
    }

    /// Completes a thread for the policies: the nodes it may run on, and the reason it must not be
    /// moved.
    pub fn complete(&mut self, seen: Seen) -> Thread {
        let Seen { mut thread, mask, asked, kernel_thread } = seen;
        // In whole ticks, as procfs has it: one name for a thread in snapshots and in undo records.
        (thread.start_ns, thread.process_start_ns) =
            (thread.start_ns.map(as_shown), thread.process_start_ns.map(as_shown));
        let online = self.mover.defaults().online();
        // The task's own mask may contain offline CPUs; sched_getaffinity leaves them out.
        let mask = if mask.is_subset(online) {
            mask
        } else {
            let shown = mask.intersection(online);
            thread.allowed_nodes = self.machine.topology().nodes_of_cpus(&shown);
            shown
        };
        let (allowed, pinned) = if kernel_thread {
            (None, Some("is a kernel thread".to_owned()))
        } else if thread.pid == self.own_pid {
            (None, Some("is homenode itself".to_owned()))
        } else if let Some(scheduler) = &self.scheduler {
            (None, Some(format!("a sched_ext {scheduler} may treat a bound thread worse than others")))
        } else if mask == *online {
            // It may use every CPU, so its cpuset allows every CPU.
            (None, None)
        } else {
            let key = ThreadId { tid: thread.tid, start_ns: thread.start_ns.unwrap_or(0) };
            if asked == Some(false) {
                self.mover.not_asked(key, mask.clone());
            }
            self.judge(key, &mask, asked)
        };
        // For most masks the observer has already filled in the nodes.
        if let Some(allowed) = allowed {
            thread.allowed_nodes = self.machine.topology().nodes_of_cpus(&allowed);
        }
        thread.pinned = pinned;
        thread
    }

    /// For a thread whose mask lacks some CPUs: the CPUs it may be moved within, if they differ
    /// from the mask, and the reason it must not be moved.
    fn judge(&mut self, key: ThreadId, mask: &CpuSet, asked: Option<bool>) -> (Option<CpuSet>, Option<String>) {
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
            // Narrower than its cpuset, but nobody asked for that: the kernel was booted with
            // `isolcpus`, for example.
            _ if asked == Some(false) => (None, None),
            // The same value, after somebody has set it: we have put it back, for example.
            _ if spares_isolated => (None, None),
            _ => (None, Some(own_affinity(mask))),
        }
    }

    /// Sets the affinity of one thread.
    fn bind(&mut self, undo: &Undo) -> Result<(), PlaneError> {
        let key = key_of(undo);
        self.watched.watch(undo);
        self.watched.moves_made = true;
        let applied = self.mover.apply(undo);
        if applied.is_err()
            && let Some(key) = key
            && self.mover.moved(key).is_none_or(|moved| moved.over.is_some())
        {
            self.watched.release(key);
        }
        applied
    }

    /// Binds the threads of a process, and lets its memory follow.
    fn start_process(&mut self, mv: &Move, undo: &[Undo], write: &mut Write<'_>) -> Result<Started, PlaneError> {
        let mut process = self.moves.take_process(mv)?;
        undo.iter().for_each(|undo| self.watched.watch(undo));
        self.watched.moves_made = true;
        let mut written: FxHashSet<Subject> = undo.iter().map(|undo| undo.subject.clone()).collect();
        let Self { watched, mover, machine, .. } = self;
        let bound = process.bind(mover, machine.topology(), &mut |ready| {
            // The records that it began with are written already.
            let new: Vec<Undo> = ready.iter().filter(|u| !written.contains(&u.subject)).cloned().collect();
            if new.is_empty() {
                return Ok(());
            }
            write(&new)?;
            written.extend(new.iter().map(|undo| undo.subject.clone()));
            // Before they are bound: a child born right after inherits our value.
            new.iter().for_each(|undo| watched.watch(undo));
            Ok(())
        });
        if let Err(error) = bound {
            let mut stuck = false;
            for undo in process.bound() {
                match self.mover.undo(undo) {
                    Ok(_) => key_of(undo).into_iter().for_each(|key| self.watched.release(key)),
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
            // Its record must stay as long as a thread is bound; the others keep those of their
            // earlier moves.
            return Ok(Started { not_bound: written.into_iter().collect(), ..Started::done() });
        }
        process.bound().iter().for_each(|undo| _ = written.remove(&undo.subject));
        let not_bound = written.into_iter().collect();
        let id = process.id();
        if !process.bound().is_empty() {
            self.processes.insert(id.pid, (id, process.given().clone()));
        }
        Ok(Started { not_bound, ..self.moves.start_memory(process) })
    }

    /// A thread that inherited our value keeps it if its process was moved as a whole, and is moved
    /// itself from now on.
    fn keep_or_put_back(&mut self, thread: Undo) -> Inherited {
        // By exec, the first thread's id and start time may stand for another program: the policy
        // has not decided on that.
        let by_exec = key_of(&thread).is_none_or(|key| self.watched.execs.contains(&key));
        let given = self.processes.get(&thread.pid).filter(|_| !by_exec && !self.finishing);
        let Some(first) = thread.masks.as_ref().and_then(|masks| given?.1.first(&masks.ours)) else {
            return Inherited { undo: thread, keeps: false };
        };
        // It goes back to what its own parent had.
        let undo = Undo { payload: first.payload.clone(), ..thread };
        self.mover.adopt(&undo);
        self.watched.watch(&undo);
        Inherited { undo, keeps: true }
    }

    /// Looks at the watched threads; those with an affinity of their own are not ours any more.
    fn look(&mut self) -> Result<Vec<Descendant>, Trouble> {
        let descendants = self.watched.look()?;
        self.watched.own.iter().for_each(|key| self.mover.end(*key));
        Ok(descendants)
    }

    /// Looks at the watched threads ([`Self::look`]). While everything is being restored, it waits
    /// for execs that have taken effect but are not reported yet, because no later look could find
    /// them.
    fn look_for_descendants(&mut self, owned: &[Undo]) -> Result<Vec<Descendant>, Trouble> {
        let mut descendants = self.look()?;
        let mut looks = 0;
        while self.finishing && looks < EXEC_LOOKS && owned.iter().any(|undo| self.may_be_in_exec(undo)) {
            std::thread::sleep(EXEC_PAUSE);
            looks += 1;
            descendants = self.look()?;
        }
        Ok(descendants)
    }

    /// Whether a watched thread is gone and the first thread of its process has our value for a
    /// reason that is not known: the moved thread is becoming the first by exec, or the first
    /// thread set our value itself.
    fn may_be_in_exec(&self, undo: &Undo) -> bool {
        let watched = !self.watched.lost && key_of(undo).is_some_and(|key| self.mover.moved(key).is_some());
        let Watched { own, execs, .. } = &self.watched;
        watched
            && matches!(self.became_first(undo), Ok(Some(first)) if !own.contains(&first) && !execs.contains(&first))
    }

    /// The first thread of a process whose place a moved thread may have taken by exec.
    fn became_first(&self, undo: &Undo) -> io::Result<Option<ThreadId>> {
        let moved = |first| self.mover.moved(first).filter(|moved| moved.over.is_none());
        let given = |first| moved(first).and_then(|moved| moved.ours.last().cloned());
        let found = search::became_first(self.mover.threads(), undo, self.mover.online(), given);
        found.map(|first| first.as_ref().and_then(key_of))
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
            Subject::Thread { .. } => undo.iter().try_for_each(|undo| self.bind(undo)).map(|()| Started::done()),
            Subject::Process { .. } => self.start_process(mv, undo, write),
            Subject::File { .. } => self.moves.start_file(mv),
        }
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(&mut self.moves)
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        // The record of a descendant has no payload.
        let of_move = undo.payload.is_some();
        if of_move && !self.finishing {
            self.finishing = true;
            // CPUs may have come or gone since the last window.
            self.mover.defaults().refresh();
            if let Err(error) = self.look() {
                tracing::warn!(%error, "every affinity that equals ours is treated as ours");
            }
        }
        let Some(key) = key_of(undo) else { return self.mover.undo(undo) };
        let value = undo.masks.as_ref().map(|masks| &masks.ours);
        if of_move && value.is_some_and(|value| self.processes.get(&undo.pid).is_some_and(|p| p.1.has(value))) {
            // From now on, what its threads start is put back, too. That does not hold if a single
            // thread goes back that was moved by itself.
            self.processes.remove(&undo.pid);
        }
        if of_move && self.watched.own.contains(&key) {
            self.mover.end(key);
            return Ok(Undone::ChangedByOthers);
        }
        let undone = self.mover.undo(undo)?;
        if !of_move && undone == Undone::Restored {
            self.put_back.insert(key);
            self.watched.release(key);
        }
        Ok(undone)
    }

    /// The watcher reports the descendants of moved threads. While everything is being restored,
    /// and without a watcher, procfs is searched for those whose births it did not see. A thread
    /// that set our value itself looks like one of them, so the search leaves out the descendants
    /// of watched threads.
    fn inherited(&mut self, owned: &[Undo]) -> Result<Vec<Inherited>, PlaneError> {
        let reported = self
            .look_for_descendants(owned)
            .and_then(|reported| Ok(self.descendants.inherited(&self.mover, &reported)?));
        let (mut inherited, mut trouble) = match reported {
            Ok(inherited) => (inherited, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        if self.watched.births.is_none() || self.finishing {
            let blind = !self.watched.looked || self.watched.lost;
            let searched = |undo: &Undo| blind || key_of(undo).is_some_and(|key| self.mover.moved(key).is_none());
            match search::inherited(self.mover.threads(), owned, self.mover.online(), searched) {
                Ok(more) => {
                    let mut known: FxHashSet<ThreadId> = inherited.iter().filter_map(key_of).collect();
                    known.extend(self.watched.own.iter().chain(&self.put_back));
                    inherited
                        .extend(more.into_iter().filter(|thread| key_of(thread).is_some_and(|key| known.insert(key))));
                }
                Err(error) => trouble = Some(error.into()),
            }
        }
        match trouble {
            Some(error) if inherited.is_empty() => Err(PlaneError::refused("unreadable", error.to_string())),
            _ => Ok(inherited.into_iter().map(|thread| self.keep_or_put_back(thread)).collect()),
        }
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        let (Some(key), Some(masks)) = (key_of(undo), &undo.masks) else { return false };
        let watched = &self.watched;
        // The kernel's list of tasks takes no lock: procfs is asked only about those that it does
        // not have.
        let lives = watched.looked && watched.alive.contains(&key);
        let over = if !lives && self.mover.threads().ended(key) {
            match self.became_first(undo) {
                // It continues under another id. The record must stay until that thread is
                // restored, in case of a crash. A watched thread did so only if the kernel reported
                // its exec; the first thread may hold our value for itself.
                Ok(Some(first)) => {
                    let reported = watched.looked && !watched.lost && self.mover.moved(key).is_some();
                    watched.own.contains(&first) || reported && !watched.execs.contains(&first)
                }
                Ok(None) => true,
                Err(_) => false,
            }
        } else {
            watched.own.contains(&key) && affinity::get(key.tid).is_ok_and(|mask| mask == masks.ours)
        };
        if over {
            self.mover.end(key);
        }
        over
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
            subject: Subject::Thread { tid, start: 10_000_000 },
            pid: 9,
            masks: Some(Masks { before: set(before), ours: set("4-7"), unbound: before == "0-7" }),
            payload: None,
        };
        let mut actor = Actor::<Unwatched>::new(Settings::default(), Topology::default(), None, None).unwrap();
        let mut given = Given::default();
        given.add(&Undo { payload: Some("context".to_owned()), ..undo(9, "3") });
        given.add(&undo(10, "0-7"));
        actor.processes.insert(9, (ProcessId { pid: 9, start_ns: 10_000_000 }, given));
        // The child of the second thread.
        let thread = actor.keep_or_put_back(undo(11, "0-7"));
        assert!(thread.keeps);
        assert_eq!((thread.undo.masks, thread.undo.payload.as_deref()), (undo(11, "0-7").masks, Some("context")));
    }
}
