//! The thread that looks at files and processes, on a budget.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linux::memory;
use linux::patient::{self, MEMORY};
use linux::residency;
use linux::threads::Threads;
use placement::Process;
use rustix::thread::CapabilitySet;

use super::known::{FileFacts, Known, Look, Resident, order};
use super::wanted::{Wanted, WantedFile};
use act::files::{self, Inodes};
use observe::FileSeen;
use topology::{FileId, ProcessId};

/// CPU time that can be saved up, and that is there at the start: one window of `plan` then shows
/// some twenty large files.
const SAVED: Duration = Duration::from_millis(100);

/// A look that takes longer than this waits for somebody. With two CPUs for ten busy programs, one
/// took half a second.
const STUCK: Duration = Duration::from_secs(10);

/// How long the end of the worker is awaited before it is left behind.
const END: Duration = Duration::from_millis(200);

/// Gaps in a window's facts.
#[derive(Debug, Default)]
pub(super) struct Missing {
    pub wanted: usize,
    /// Never looked at.
    pub unseen: usize,
    /// Could not be looked at, with one cause.
    pub troubled: usize,
    pub trouble: Option<String>,
    /// The subject on which the worker has been busy since an earlier window.
    pub stuck: Option<String>,
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of the round asked for, and of the one that has ended.
    round: u64,
    ended: u64,
    wanted: Wanted,
    earned: Duration,
    files: Known<FileId, FileFacts>,
    processes: Known<ProcessId, Resident>,
    /// The subject that is looked at, and since when.
    busy: Option<(String, Instant)>,
    stop: bool,
    over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        most: Duration,
        until: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout_while(state, most, |state| !until(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Worker {
    pub fn start(proc_root: &Path) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (theirs, proc_root) = (Arc::clone(&shared), proc_root.to_owned());
        let thread = std::thread::Builder::new().name("facts".to_owned()).spawn(move || {
            let keep = CapabilitySet::DAC_READ_SEARCH
                // To look without changing the time of the last access.
                | CapabilitySet::FOWNER
                // What other users' processes have open and in memory.
                | CapabilitySet::SYS_PTRACE
                | CapabilitySet::SYS_NICE;
            if let Err(error) = linux::privileges::keep_only(keep) {
                tracing::warn!(%error, "a thread keeps its privileges");
            }
            Looker {
                inodes: Inodes::new(&proc_root),
                threads: Threads::new(&proc_root),
                proc_root,
                left_s: SAVED.as_secs_f64(),
            }
            .run(&theirs);
            theirs.lock().over = true;
            theirs.changed.notify_all();
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether all of these were looked at before.
    pub fn knows(&self, wanted: &Wanted) -> bool {
        let state = self.shared.lock();
        let files = wanted.files.iter().all(|file| state.files.found(file.id) > 0);
        files && wanted.processes.iter().all(|id| state.processes.found(*id) > 0)
    }

    /// Whether it was never asked for a look.
    pub fn is_new(&self) -> bool {
        self.shared.lock().round == 0
    }

    /// Asks for a look at these, for which `earned` CPU time is there more, and waits for it up to
    /// `wait`.
    pub fn look(&self, wanted: Wanted, earned: Duration, wait: Duration) {
        let mut state = self.shared.lock();
        // A worker that did not end the last round is waiting for something.
        let late = state.ended < state.round;
        state.wanted = wanted;
        state.earned += earned;
        state.round += 1;
        let round = state.round;
        self.shared.changed.notify_all();
        if !late {
            drop(self.shared.wait(state, wait, |state| state.ended >= round || state.over));
        }
    }

    /// Adds what is known to the files of a window.
    pub fn fill(&self, files: &mut [FileSeen]) -> (Vec<Process>, Missing) {
        let state = self.shared.lock();
        for seen in files {
            if let Some((facts, age)) = state.files.get(seen.id, state.round) {
                facts.fill(age, &mut seen.file);
            }
        }
        let mut missing =
            Missing { wanted: state.wanted.files.len() + state.wanted.processes.len(), ..Missing::default() };
        for file in &state.wanted.files {
            match state.files.get(file.id, state.round) {
                None => missing.unseen += 1,
                Some((FileFacts { trouble: Some(trouble), .. }, _)) => {
                    missing.troubled += 1;
                    missing.trouble.get_or_insert_with(|| trouble.clone());
                }
                Some(_) => {}
            }
        }
        let mut processes = Vec::new();
        for id in &state.wanted.processes {
            match state.processes.get(*id, state.round) {
                None => missing.unseen += 1,
                Some((Some(resident), _)) => {
                    let (pid, start_ns, resident) = (id.pid, id.start_ns(), resident.clone());
                    processes.push(Process { pid, start_ns, resident, ..Process::default() });
                }
                Some((None, _)) => {}
            }
        }
        processes.sort_by_key(|process| process.pid);
        let late = |since: &Instant| state.ended < state.round && since.elapsed() > STUCK;
        missing.stuck = state.busy.as_ref().filter(|busy| late(&busy.1)).map(|busy| busy.0.clone());
        (processes, missing)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        self.shared.changed.notify_all();
        let over = self.shared.wait(state, END, |state| state.over).over;
        // One that waits in the kernel ends with the process.
        if let Some(thread) = self.thread.take().filter(|_| over) {
            _ = thread.join();
        }
    }
}

struct Looker {
    inodes: Inodes,
    threads: Threads,
    proc_root: PathBuf,
    /// CPU time left; below 0 after a look that took more.
    left_s: f64,
}

impl Looker {
    fn run(&mut self, shared: &Shared) {
        let mut round = 0;
        loop {
            let state = shared.lock();
            let asked = shared.changed.wait_while(state, |state| !state.stop && state.round == round);
            let mut state = asked.unwrap_or_else(PoisonError::into_inner);
            if state.stop {
                return;
            }
            round = state.round;
            let wanted = state.wanted.clone();
            let earned = std::mem::take(&mut state.earned);
            let ids: Vec<FileId> = wanted.files.iter().map(|file| file.id).collect();
            let order = order(&ids, &wanted.processes, &state.files, &state.processes);
            drop(state);
            self.left_s = (self.left_s + earned.as_secs_f64()).min(SAVED.as_secs_f64());
            self.round(shared, round, &wanted, &order, earned.is_zero());
            let mut state = shared.lock();
            state.busy = None;
            state.ended = round;
            shared.changed.notify_all();
        }
    }

    /// Looks at one after the other while time is left, and nobody wants something else.
    fn round(&mut self, shared: &Shared, round: u64, wanted: &Wanted, order: &[Look], off: bool) {
        self.look_around(shared, round, wanted, order, off);
        self.inodes.let_go();
    }

    fn look_around(&mut self, shared: &Shared, round: u64, wanted: &Wanted, order: &[Look], off: bool) {
        let mut before = patient::cpu_ns() as f64 * 1e-9;
        if off || self.left_s <= 0.0 {
            return;
        }
        self.inodes.refresh();
        for look in order {
            let mut spend = || {
                let now = patient::cpu_ns() as f64 * 1e-9;
                self.left_s -= now - std::mem::replace(&mut before, now);
            };
            spend();
            {
                let mut state = shared.lock();
                if self.left_s <= 0.0 || state.stop || state.round != round {
                    return;
                }
                state.busy = Some((named(*look, wanted), Instant::now()));
            }
            match *look {
                Look::File(i) => {
                    let Some(file) = wanted.files.get(i) else { continue };
                    let facts = self.file(file);
                    shared.lock().files.put(file.id, facts, round);
                }
                Look::Process(i) => {
                    let Some(process) = wanted.processes.get(i) else { continue };
                    match self.process(*process) {
                        Some(resident) => shared.lock().processes.put(*process, resident, round),
                        None => shared.lock().processes.forget(*process),
                    }
                }
            }
        }
        let now = patient::cpu_ns() as f64 * 1e-9;
        self.left_s -= now - before;
    }

    fn file(&mut self, file: &WantedFile) -> FileFacts {
        let mut facts = FileFacts::default();
        match self.inodes.open(file.id, &file.readers) {
            Ok(opened) => {
                facts.path = files::path(&opened.fd);
                let name = facts.path.clone().unwrap_or_else(|| PathBuf::from(format!("inode {}", file.id.ino)));
                match residency::estimate(opened.fd, &name) {
                    Ok(estimate) => {
                        facts.size = Some(estimate.size);
                        facts.bytes = Some((estimate.nodes, estimate.looked));
                        facts.data = files::data(&opened.mount, Some(estimate.dax));
                    }
                    Err(error) => facts.trouble = Some(error.to_string()),
                }
            }
            Err(error) => {
                if let Some(mount) = self.inodes.mount(file.id.dev) {
                    facts.data = files::data(mount, None);
                }
                facts.trouble = Some(format!("inode {} cannot be opened: {error}", file.id.ino));
            }
        }
        facts
    }

    /// `None` if it has ended.
    fn process(&self, process: ProcessId) -> Option<Resident> {
        let (pid, proc_root) = (process.pid, self.proc_root.clone());
        let resident = patient::ask(pid, MEMORY, move || memory::resident(&proc_root, pid));
        let resident = resident.inspect_err(|error| tracing::debug!(pid, %error, "its memory cannot be looked at"));
        let resident = resident.ok().flatten().filter(|bytes| bytes.total() > 0);
        // Another process may have its id by now.
        let same = self.threads.stat(pid).ok().flatten().is_some_and(|stat| stat.process() == process);
        same.then_some(resident)
    }
}

fn named(look: Look, wanted: &Wanted) -> String {
    match look {
        Look::File(i) => wanted.files.get(i).map_or_else(String::new, |file| format!("file {}", file.id.ino)),
        Look::Process(i) => wanted.processes.get(i).map_or_else(String::new, |id| format!("process {}", id.pid)),
    }
}
