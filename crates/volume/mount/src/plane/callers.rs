//! The threads that use a volume, and the nodes that they run on.
//!
//! **Problem.** "Local" is where the caller runs, which a server's thread must ask the kernel for.
//! Asking takes longer than a small read.
//!
//! **Approach.** A thread of its own looks every [`TICK`] where the callers are that have asked for
//! something since. A request only reads what is known: it never waits for `/proc`, which may wait
//! for a thread that waits for the request. A worker keeps hold of what it knows of the threads
//! that it worked for lately. procfs files stay open, so a later thread with the same id is not
//! mistaken for the caller; those of ended and of idle threads are closed every [`SWEEP`] looks. A
//! thread whose files do not answer (it hangs in `execve()`: see [`linux::patient`]) keeps the one
//! that looks waiting; then another one looks at all others.
//!
//! **Invariants.** Whatever takes an entry out of the table calls `forgot`. A worker reads the
//! version first and the table then, so an old place is found under an old version at most. A
//! thread that is silent stays so over `watch` and `close`, as the one that asked it still waits.
//!
//! **Limits.** For up to [`TICK`] after a thread was moved, its accesses count for the node where
//! it was; those of a new thread count for the node of the server's thread, and so do those of
//! threads beyond [`MOST`] at a time, or fewer where the process may not have so many open files.
//! Without a plane, so do those of threads on a CPU that came online after the start.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use fs::Recent;
use linux::watched::{Time, Watched};
use rustc_hash::FxHashMap;
use topology::Topology;

/// How often to look where threads are.
const TICK: Duration = Duration::from_millis(5);
/// How long one thread may keep the one that looks waiting, which takes microseconds.
const PATIENCE: Duration = Duration::from_millis(400);
/// Most threads that may keep one waiting at a time.
const MOST_SILENT: usize = 32;
/// New threads that wait to be looked at, at most.
const MOST_NEW: usize = 4096;
/// Threads that are known at a time, at most: each has one open file, and [`FILES`] where a plane
/// watches.
const MOST: usize = 4096;
const FILES: usize = 2;
/// Open files that these threads leave to the rest of the server: to undo moves takes some, too.
const RESERVE: usize = 256;
/// Looks between two sweeps: a second.
const SWEEP: u32 = 200;
/// Sweeps without a request after which a thread is forgotten, where no plane watches.
const IDLE_SWEEPS: u32 = 10;
/// Windows without a request after which a thread is forgotten.
const IDLE_WINDOWS: u32 = 10;
/// No node: its CPU belongs to none.
const NOWHERE: u32 = u32::MAX;

/// A thread that has used the volume.
#[derive(Debug)]
pub(crate) struct Caller {
    pub watched: Watched,
    place: Arc<Place>,
    /// CPU time at the end of the last window, or at its first request.
    pub counted: Mutex<Time>,
    /// Windows without a request; sweeps, where no plane watches.
    idle: AtomicU32,
}

impl Caller {
    /// Seconds spent on its requests since the last call.
    pub fn take_served(&self) -> f64 {
        self.place.served_ns.swap(0, Ordering::Relaxed) as f64 * 1e-9
    }
}

/// Where a thread is. Workers keep hold of it without the files of its thread.
#[derive(Debug)]
struct Place {
    node: AtomicU32,
    /// It has asked for something since the last look.
    active: AtomicBool,
    /// Nanoseconds spent on its requests since the last window, where a plane watches.
    served_ns: AtomicU64,
}

thread_local! {
    /// The threads that this worker worked for lately, and of which version of which table they
    /// are.
    static RECENT: RefCell<Recent<(u64, u32), Arc<Place>>> = const { RefCell::new(Recent::NOTHING) };
}

thread_local! {
    /// The turn of the thread that looks, on that thread.
    static TURN: Cell<Option<u64>> = const { Cell::new(None) };
}

static VERSIONS: AtomicU64 = AtomicU64::new(0);

/// All threads that use a volume.
#[derive(Debug)]
pub struct Callers {
    proc_root: PathBuf,
    topology: RwLock<Arc<Topology>>,
    table: RwLock<FxHashMap<u32, Arc<Caller>>>,
    /// Threads that the table has room for.
    most: AtomicUsize,
    /// Another number, of all tables, whenever a thread was forgotten: its number may be that of
    /// another one.
    version: AtomicU64,
    /// Threads that are not in the table yet.
    new: Mutex<Vec<u32>>,
    /// A plane wants to know the CPU time of threads, and ends windows.
    watched: AtomicBool,
    /// Why a thread that is there could not be looked at since the last window.
    failed: Mutex<Option<String>>,
    looks: AtomicU32,
    /// Whose turn it is to look: one that was left behind looks no more.
    turn: AtomicU64,
    /// The thread that is looked at now in the lower half, 0 for none; each look has another number
    /// in the upper half.
    at: AtomicU64,
    /// Threads that keep one waiting that was left behind.
    silent: Mutex<Vec<u32>>,
}

impl Callers {
    /// Nobody yet, on this machine.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start(topology: Topology) -> io::Result<Arc<Self>> {
        let callers = Arc::new(Self::new(PathBuf::from("/proc"), topology));
        let looked_at = Arc::downgrade(&callers);
        std::thread::Builder::new().name("mount-callers".to_owned()).spawn(move || keep_looking(&looked_at))?;
        Ok(callers)
    }

    fn new(proc_root: PathBuf, topology: Topology) -> Self {
        let (table, new, failed) = (RwLock::default(), Mutex::default(), Mutex::default());
        let (watched, looks) = (AtomicBool::new(false), AtomicU32::new(0));
        let (version, turn, at) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (silent, topology) = (Mutex::default(), RwLock::new(Arc::new(topology)));
        let most = AtomicUsize::new(room(open_files()));
        let this = Self { proc_root, topology, table, most, version, new, watched, failed, looks, turn, at, silent };
        this.forgot();
        this
    }

    /// Asks about a thread. Where the thread that looks asks, it is left behind if there is no
    /// answer.
    ///
    /// # Errors
    ///
    /// `TimedOut` if there is no answer, or was none before; others are the question's own.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        tid: u32,
        question: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let Some(turn) = TURN.get() else { return linux::patient::ask(tid, linux::patient::STAT, question) };
        let silent = || self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let no_answer = || io::Error::new(io::ErrorKind::TimedOut, format!("/proc/{tid}/stat does not answer"));
        if self.turn.load(Ordering::Acquire) != turn || silent().contains(&tid) {
            return Err(no_answer());
        }
        let look = (self.at.load(Ordering::Relaxed) >> 32).wrapping_add(1) << 32;
        self.at.store(look | u64::from(tid), Ordering::Release);
        let answer = question();
        // Under the lock, so that it is either left behind or not.
        let mut silent = silent();
        if self.turn.load(Ordering::Acquire) != turn {
            // Another one looks now, and may look at this, too.
            silent.retain(|silent| *silent != tid);
            return Err(no_answer());
        }
        self.at.store(look, Ordering::Release);
        answer
    }

    /// Whether one has been looking at the same thread all the time since the last call. Then it
    /// looks no more, and the thread is not looked at until it answers.
    fn leave_behind(&self, before: &mut u64) -> bool {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.at.load(Ordering::Acquire);
        let tid = at as u32; // the lower half
        let waits = std::mem::replace(before, at) == at && tid != 0 && silent.len() < MOST_SILENT;
        if waits {
            self.turn.fetch_add(1, Ordering::AcqRel);
            self.at.store(at >> 32 << 32, Ordering::Release);
            silent.push(tid);
        }
        waits
    }

    /// Threads were forgotten: workers look again.
    fn forgot(&self) {
        self.version.store(VERSIONS.fetch_add(1, Ordering::Relaxed), Ordering::Release);
    }

    /// From now on a plane asks for the CPU time of threads.
    pub(crate) fn watch(&self) {
        // What is known of them lacks their CPU time.
        self.begin_anew(true);
    }

    /// No plane asks any more.
    pub(crate) fn unwatch(&self) {
        self.begin_anew(false);
    }

    /// Closes the files of all threads, and opens no more before [`Callers::watch`] or
    /// [`Callers::unwatch`].
    pub(crate) fn close(&self) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        self.most.store(0, Ordering::Relaxed);
        table.clear();
        self.forgot();
    }

    fn begin_anew(&self, watched: bool) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        self.watched.store(watched, Ordering::Relaxed);
        table.clear();
        self.most.store(room(open_files()), Ordering::Relaxed);
        self.forgot();
    }

    /// Why threads could not be looked at since the last call, if one could not.
    pub(crate) fn take_failure(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on threads are on these nodes: CPUs or nodes have come or gone.
    pub(crate) fn follow(&self, topology: &Topology) {
        let mut known = self.topology.write().unwrap_or_else(PoisonError::into_inner);
        if **known != *topology {
            *known = Arc::new(topology.clone());
        }
    }

    /// Does a piece of work for the thread `tid`: its bytes count for that thread, and "local" is
    /// where that thread runs. 0: for nobody in particular.
    pub fn enter<T>(&self, tid: u32, work: impl FnOnce() -> T) -> T {
        let work = || fs::as_thread(tid, work);
        let watched = self.watched.load(Ordering::Relaxed);
        let Some((node, timed)) = self.known(tid, |place| {
            (place.node.load(Ordering::Relaxed), watched.then(|| (Arc::clone(place), Instant::now())))
        }) else {
            return work();
        };
        let done = match node {
            NOWHERE => work(),
            node => fs::on_node(node, work),
        };
        if let Some((place, began)) = timed {
            place.served_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        done
    }

    /// What is known of where a thread is; `None` if nothing is yet.
    fn known<T>(&self, tid: u32, look: impl FnOnce(&Arc<Place>) -> T) -> Option<T> {
        if tid == 0 {
            return None;
        }
        let key = (self.version.load(Ordering::Acquire), tid);
        RECENT.with_borrow_mut(|recent| {
            let place = recent.get(u64::from(tid), key, || self.place(tid))?;
            if !place.active.load(Ordering::Relaxed) {
                place.active.store(true, Ordering::Relaxed);
            }
            Some(look(place))
        })
    }

    /// Where a thread is; one that is new is looked at soon.
    fn place(&self, tid: u32) -> Option<Arc<Place>> {
        if let Some(caller) = self.table.read().unwrap_or_else(PoisonError::into_inner).get(&tid) {
            return Some(Arc::clone(&caller.place));
        }
        let mut new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        if new.len() < MOST_NEW && !new.contains(&tid) {
            new.push(tid);
        }
        None
    }

    /// Looks where those threads are that have asked for something since the last look.
    pub fn look(&self) {
        let mut again = std::mem::take(&mut *self.new.lock().unwrap_or_else(PoisonError::into_inner));
        let active: Vec<_> = {
            let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
            let active = table.iter().filter(|(_, caller)| caller.place.active.swap(false, Ordering::Relaxed));
            active.map(|(tid, caller)| (*tid, Arc::clone(caller))).collect()
        };
        let watched = self.watched.load(Ordering::Relaxed);
        for (tid, caller) in active {
            if !watched {
                caller.idle.store(0, Ordering::Relaxed);
            }
            let of = Arc::clone(&caller);
            match self.ask(tid, move || of.watched.now()) {
                Ok(Some(seen)) => caller.place.node.store(self.node_of(seen.cpu), Ordering::Relaxed),
                // It has ended since, or another thread has its id by now.
                Ok(None) => {
                    self.forget(&[(tid, caller)]);
                    again.push(tid);
                }
                Err(error) => self.fail(&error),
            }
        }
        again.into_iter().for_each(|tid| {
            self.add(tid);
        });
        if self.looks.fetch_add(1, Ordering::Relaxed) % SWEEP == SWEEP - 1 {
            self.sweep();
        }
    }

    /// Forgets threads that have ended and, where no plane watches or there are too many, idle
    /// ones.
    fn sweep(&self) {
        let all: Vec<_> = {
            let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
            table.iter().map(|(tid, caller)| (*tid, Arc::clone(caller))).collect()
        };
        let (watched, full) = (self.watched.load(Ordering::Relaxed), all.len() >= self.most.load(Ordering::Relaxed));
        let idle = |caller: &Caller| match watched {
            true => full && caller.idle.load(Ordering::Relaxed) > 0,
            false => caller.idle.fetch_add(1, Ordering::Relaxed) >= if full { 1 } else { IDLE_SWEEPS },
        };
        let ended = |tid: u32, caller: &Arc<Caller>| {
            let of = Arc::clone(caller);
            matches!(self.ask(tid, move || of.watched.now()), Ok(None))
        };
        let past: Vec<_> = all.into_iter().filter(|(tid, caller)| idle(caller) || ended(*tid, caller)).collect();
        self.forget(&past);
    }

    /// Forgets these threads, but not later ones with their ids.
    fn forget(&self, past: &[(u32, Arc<Caller>)]) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        for (tid, caller) in past {
            if table.get(tid).is_some_and(|now| Arc::ptr_eq(now, caller)) {
                table.remove(tid);
            }
        }
        if !past.is_empty() {
            self.forgot();
        }
    }

    fn fail(&self, error: &io::Error) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    fn node_of(&self, cpu: u32) -> u32 {
        let topology = self.topology.read().unwrap_or_else(PoisonError::into_inner);
        topology.node_of_cpu(cpu).map_or(NOWHERE, |node| node.0)
    }

    /// Looks a thread up and remembers it; `None` if there is none, or no room for it.
    fn add(&self, tid: u32) -> Option<Arc<Caller>> {
        let most = self.most.load(Ordering::Relaxed);
        if most == 0 {
            return None; // everything is being undone
        }
        if self.table.read().unwrap_or_else(PoisonError::into_inner).len() >= most {
            self.fail(&io::Error::other(format!("more than {most} threads use the volume")));
            return None;
        }
        let timed = self.watched.load(Ordering::Relaxed);
        let proc_root = self.proc_root.clone();
        let look = move || -> io::Result<_> {
            let Some(watched) = Watched::open(&proc_root, tid, timed)? else { return Ok(None) };
            let (Some(seen), counted) = (watched.now()?, watched.time()?.unwrap_or_default()) else { return Ok(None) };
            Ok(Some((watched, seen, counted)))
        };
        let (watched, seen, counted) = self.ask(tid, look).inspect_err(|error| self.fail(error)).ok().flatten()?;
        let (node, served_ns) = (AtomicU32::new(self.node_of(seen.cpu)), AtomicU64::new(0));
        let place = Place { node, active: AtomicBool::new(false), served_ns };
        let caller =
            Arc::new(Caller { place: Arc::new(place), counted: Mutex::new(counted), idle: AtomicU32::new(0), watched });
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if timed != self.watched.load(Ordering::Relaxed) || self.most.load(Ordering::Relaxed) == 0 {
            return None; // a plane began or ended meanwhile: it is looked at again
        }
        match table.get(&tid) {
            // Somebody else added it meanwhile, and workers hold its place by now.
            Some(known) if known.watched.start_ns == caller.watched.start_ns => return Some(Arc::clone(known)),
            Some(_) => self.forgot(),
            None => {}
        }
        table.insert(tid, Arc::clone(&caller));
        Some(caller)
    }

    /// A thread that used the volume in the window that ends.
    pub(crate) fn of(&self, tid: u32) -> Option<Arc<Caller>> {
        let caller = self.table.read().unwrap_or_else(PoisonError::into_inner).get(&tid).cloned();
        let caller = caller.or_else(|| self.add(tid))?;
        caller.idle.store(0, Ordering::Relaxed);
        Some(caller)
    }

    pub(crate) fn knows(&self, tid: u32) -> bool {
        self.table.read().unwrap_or_else(PoisonError::into_inner).contains_key(&tid)
    }

    /// Ends a window: forgets threads that have not used the volume for long.
    pub(crate) fn end_window(&self) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let known = table.len();
        table.retain(|_, caller| {
            let idle = caller.idle.fetch_add(1, Ordering::Relaxed);
            if idle > 0 {
                // Requests without a use of a file are of no later window.
                caller.take_served();
            }
            idle < IDLE_WINDOWS
        });
        if table.len() < known {
            self.forgot();
        }
    }
}

/// Open files that this process may have, and has.
fn open_files() -> (usize, usize) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    (limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)), open)
}

/// How many threads may be known with so many open files, of which some are there.
fn room((limit, open): (usize, usize)) -> usize {
    (limit.saturating_sub(open + RESERVE) / FILES).clamp(1, MOST)
}

/// Lets one thread look as long as there are callers, and the next one when a caller keeps it
/// waiting.
fn keep_looking(callers: &Weak<Callers>) {
    loop {
        let Some(turn) = callers.upgrade().map(|callers| callers.turn.fetch_add(1, Ordering::AcqRel) + 1) else {
            return;
        };
        let looked_at = Weak::clone(callers);
        let looks = std::thread::Builder::new().name("mount-look".to_owned()).spawn(move || {
            TURN.set(Some(turn));
            while let Some(callers) = looked_at.upgrade().filter(|callers| callers.turn.load(Ordering::Acquire) == turn)
            {
                callers.look();
                drop(callers);
                std::thread::sleep(TICK);
            }
        });
        let mut before = 0;
        loop {
            std::thread::sleep(PATIENCE);
            let Some(callers) = callers.upgrade() else { return };
            if let Err(error) = &looks {
                callers.fail(error);
                break;
            }
            if callers.leave_behind(&mut before) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_tid() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    fn callers(proc_root: &str) -> Callers {
        Callers::new(PathBuf::from(proc_root), Topology::default())
    }

    fn known(callers: &Callers) -> Vec<u32> {
        callers.table.read().unwrap().keys().copied().collect()
    }

    /// Looks until the next sweep is over.
    fn look_for_a_sweep(callers: &Callers) {
        (0..SWEEP).for_each(|_| callers.look());
    }

    #[test]
    fn ended_threads_are_forgotten_without_a_plane() {
        let callers = callers("/proc");
        for _ in 0..20 {
            std::thread::scope(|scope| {
                let used = scope.spawn(|| {
                    callers.known(own_tid(), |_| ());
                    callers.look();
                    assert!(known(&callers).contains(&own_tid()));
                });
                used.join().unwrap();
            });
        }
        callers.known(own_tid(), |_| ());
        callers.look();
        // The kernel takes a thread away a little after join returns.
        while known(&callers) != [own_tid()] {
            callers.known(own_tid(), |_| ());
            look_for_a_sweep(&callers);
        }
    }

    #[test]
    fn idle_threads_are_forgotten_without_a_plane_and_kept_with_one() {
        for watched in [false, true] {
            let callers = callers("/proc");
            if watched {
                callers.watch();
            }
            callers.known(own_tid(), |_| ());
            (0..IDLE_SWEEPS).for_each(|_| look_for_a_sweep(&callers));
            assert_eq!(known(&callers), [own_tid()]);
            look_for_a_sweep(&callers);
            assert_eq!(known(&callers).len(), usize::from(watched));
        }
    }

    #[test]
    fn a_cpu_that_comes_has_a_node() {
        let topology = topology::sysfs::read(std::path::Path::new("/sys")).unwrap();
        let cpu = topology.cpus().iter().next().unwrap();
        let callers = callers("/proc");
        assert_eq!(callers.node_of(cpu), NOWHERE);
        callers.follow(&topology);
        assert_eq!(callers.node_of(cpu), topology.node_of_cpu(cpu).unwrap().0);
    }

    #[test]
    fn only_a_plane_needs_the_cpu_time() {
        let callers = callers("/proc");
        let timed = |callers: &Callers| callers.of(own_tid()).unwrap().watched.time().unwrap().is_some();
        assert!(!timed(&callers));
        callers.watch();
        assert!(timed(&callers));
    }

    #[test]
    fn a_plane_learns_how_long_the_server_worked_for_a_thread() {
        let callers = callers("/proc");
        let (tid, work) = (own_tid(), || std::thread::sleep(Duration::from_millis(2)));
        callers.look();
        callers.enter(tid, work);
        assert_eq!(callers.of(tid).unwrap().take_served(), 0.0, "nobody asks");
        callers.watch();
        let caller = callers.of(tid).unwrap();
        callers.enter(tid, work);
        callers.enter(tid, work);
        let served_s = caller.take_served();
        assert!((0.004..1.0).contains(&served_s), "{served_s}");
        assert_eq!(caller.take_served(), 0.0);
    }

    /// With a limit of 8,000 open files they took all of them, and no move could be undone.
    #[test]
    fn files_of_threads_leave_some_to_the_rest_of_the_server() {
        assert_eq!(room((usize::MAX, 40)), MOST);
        for (limit, open) in [(8000, 50), (4096, 1200), (1024, 30)] {
            assert!(open + FILES * room((limit, open)) + RESERVE <= limit);
        }
        assert!(room((1024, 30)) > 300);
        assert_eq!(room((64, 60)), 1);
    }

    #[test]
    fn no_file_of_a_thread_is_open_while_moves_are_undone() {
        let callers = callers("/proc");
        callers.watch();
        assert!(callers.of(own_tid()).is_some());
        callers.close();
        assert!(known(&callers).is_empty());
        assert!(callers.of(own_tid()).is_none());
        callers.known(own_tid(), |_| ());
        callers.look();
        assert!(known(&callers).is_empty());
        // The mount goes on without the plane.
        callers.unwatch();
        assert!(callers.of(own_tid()).is_some_and(|caller| caller.watched.time().unwrap().is_none()));
    }

    #[test]
    fn a_thread_that_cannot_be_looked_at_is_told() {
        let root = std::env::temp_dir().join(format!("callers-{}", std::process::id()));
        std::fs::create_dir_all(root.join("7")).unwrap();
        std::os::unix::fs::symlink("stat", root.join("7/stat")).unwrap();
        let callers = callers(root.to_str().unwrap());
        assert!(callers.of(8).is_none());
        assert_eq!(callers.take_failure(), None, "there is no such thread");
        assert!(callers.of(7).is_none());
        let why = callers.take_failure().unwrap();
        std::fs::remove_dir_all(root).unwrap();
        assert!(why.contains("7/stat") && why.contains("os error 40"), "{why}");
        assert_eq!(callers.take_failure(), None);
    }
}
