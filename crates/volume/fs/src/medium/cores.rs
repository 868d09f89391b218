//! The CPUs of emulated nodes: what software takes of them, and threads that wait for one.
//!
//! **Problem.** Where memory is slowed by a factor and software is not, memory is always the limit:
//! threads that crowd the CPUs of one node, and locks, cost nothing.
//!
//! **Approach.** Each node has a number of emulated cores. A call for a thread
//! ([`Cores::work`]) takes the one of its node that is free first, for the time of the call's
//! software ([`Software`], times the scale) and then of its accesses to memory: a load or store
//! occupies its core. The call goes on when its software is done, and ends with its accesses. All
//! is reckoned in times of the clock, as with controllers: nobody holds a core.
//!
//! ```text
//! begin = max(end of the thread's call before, now − real)    real ≤ min(S × software, TRANSIT)
//! start = max(begin, free[core])     ready = start + S × software
//! free[core] = ready + the time of the accesses, which arrive at `ready`
//! ```
//!
//! How long the accesses will take is not known before: until they are done, the mean of the calls
//! of that kind stands for it.
//!
//! The software of a call that makes or removes a name ends under the lock of the directory, as
//! NOVA's does; that of other calls is over before the volume takes a lock.
//!
//! `real` is what the real software has taken since the call before: it is a part of the emulated
//! software, not an addition. A read of a file that others read at this moment finds
//! [`CACHE_SHARED`](memory_model::figures::CACHE_SHARED) of it in the last-level cache, times the
//! share of these others that are on its node (NThread III-D).
//!
//! **What it takes.** A sleeping thread takes nothing; what costs is waking up, twice a call, and
//! the request through FUSE. A core makes `1 / (S × (software + memory))` calls a second. At scale
//! 200 four threads of fio that read 4 KiB (0.5 + 2.7 µs) make 6,200 together. A round of
//! webserver, 32 calls and 240 µs, is done 210 times a second by ten cores: 6,700 calls; by twenty
//! 13,400. On paper a call takes 31 µs of real CPUs (15 for the request, 8 for each wake-up): 0.2
//! CPUs for fio and 0.4 for 20 cores of webserver. In a virtual machine with two CPUs, beside other
//! work, 4,800 calls and 1,200 closes a second of webserver took half a CPU, so 20 cores would take
//! 1.3 of two. Hence scale 200 for two CPUs and one load at a time; for more at once, a larger one.
//! Scale 20 makes ten times as many calls, for 16 CPUs; there `real` is half of a call.
//!
//! **Limits.** A core that has been promised is not taken back: who was promised it for earlier
//! than an access turns out to end starts then, and the next one waits for both. Switching between
//! threads costs nothing. What a program does between its calls is a constant of each call
//! ([`Software::program_s`]). Locks of the program are held for real time. Copies in the background
//! take no core.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memory_model::figures::CACHE_SHARED;
use memory_model::{Call, Software};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use topology::Topology;

use super::clock::{Clock, Owed, sleep_until};
use super::emulated::here;
use crate::caller;

/// Most of the real time since a thread's last call that counts as part of its software: a request
/// through FUSE to a worker that sleeps on another CPU takes as long.
const TRANSIT_NS: u64 = 50_000;
/// Parts of the tables that all workers use.
const PARTS: usize = 32;
/// Threads of one part after which those are forgotten that have been idle for [`IDLE_NS`].
const MANY: usize = 256;
/// Kinds of [`Call`].
const CALLS: usize = Call::Other as usize + 1;
/// The mean of accesses moves by one of so many parts of each new one.
const WEIGHT: u64 = 8;
const IDLE_NS: u64 = 10_000_000_000;

/// CPU time of a thread, in seconds of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreTime {
    /// Software and accesses to memory.
    pub busy_s: f64,
    /// Waiting for a core.
    pub waited_s: f64,
}

/// A thread that has made calls.
#[derive(Clone, Copy, Default)]
struct Account {
    /// End of its last call, and by how much it returned late.
    done: u64,
    late: u64,
    /// Since they were last asked for.
    busy: u64,
    waited: u64,
}

/// The cores of one node.
struct Pool {
    node: u32,
    turns: Mutex<Turns>,
    busy: AtomicU64,
}

/// The cores of a node, and what calls have taken there.
struct Turns {
    /// When each is free.
    free: Vec<u64>,
    /// Mean time of the accesses of a call of each kind.
    accesses: [u64; CALLS],
}

/// A core, as it was promised to a call.
struct Turn {
    core: usize,
    /// From when on.
    start: u64,
    /// How long its accesses would take.
    accesses: u64,
}

/// Nodes of the threads that read a file at the moment.
type Readers = SmallVec<[u32; 8]>;

/// The cores of all nodes; see the module.
pub struct Cores {
    instance: u64,
    clock: Arc<dyn Clock>,
    scale: f64,
    software: Software,
    count: u32,
    topology: Topology,
    pools: Vec<Pool>,
    accounts: [Mutex<FxHashMap<u32, Account>>; PARTS],
    readers: [Mutex<FxHashMap<u64, Readers>>; PARTS],
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cores").field("count", &self.count).field("software", &self.software).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cores {
    pub(super) fn new(
        instance: u64,
        (count, software, scale): (u32, Software, f64),
        topology: Topology,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let pool = |node: &topology::Node| Pool {
            node: node.id.0,
            turns: Mutex::new(Turns { free: vec![0; count.max(1) as usize], accesses: [0; CALLS] }),
            busy: AtomicU64::new(0),
        };
        let pools = topology.nodes.iter().map(pool).collect();
        let (accounts, readers) =
            (std::array::from_fn(|_| Mutex::default()), std::array::from_fn(|_| Mutex::default()));
        Self { instance, clock, scale, software, count: count.max(1), topology, pools, accounts, readers }
    }

    /// Cores of each node.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Seconds that the cores of a node have worked since the start.
    pub fn busy_s(&self, node: u32) -> f64 {
        let pool = self.pools.iter().find(|pool| pool.node == node);
        pool.map_or(0.0, |pool| pool.busy.load(Ordering::Relaxed) as f64 * 1e-9)
    }

    /// What a thread has used since the last call.
    pub fn take(&self, tid: u32) -> CoreTime {
        let mut accounts = self.accounts(tid);
        let Some(account) = accounts.get_mut(&tid) else { return CoreTime::default() };
        let [busy_s, waited_s] = [&mut account.busy, &mut account.waited].map(|ns| std::mem::take(ns) as f64 * 1e-9);
        CoreTime { busy_s, waited_s }
    }

    fn accounts(&self, tid: u32) -> MutexGuard<'_, FxHashMap<u32, Account>> {
        locked(&self.accounts[tid as usize % PARTS])
    }

    /// Does the work of a call for the thread that this one acts for ([`crate::as_thread`]), on a
    /// core of the node where that one is. `reads`: the file, if it reads one. What is done for
    /// nobody in particular takes no core.
    pub fn work<T>(&self, call: Call, reads: Option<u64>, work: impl FnOnce() -> T) -> T {
        let (tid, node) = (caller::acting_for(), here(&self.topology));
        let Some(pool) = self.pools.iter().find(|pool| tid != 0 && Some(pool.node) == node) else { return work() };
        let software = (self.software.of(call) * self.scale * 1e9) as u64;
        let before = self.accounts(tid).get(&tid).copied().unwrap_or_default();
        let now = self.clock.now_ns();
        let begin = before.done.max(now.saturating_sub(before.late + software.min(TRANSIT_NS)));
        let turn = pool.take(call, begin, software);
        let start = turn.start;
        let due = start + software;
        let ready = if call == Call::Name { start } else { due };
        let late = sleep_until(&*self.clock, ready);
        let reading = reads.map(|file| Reading::begin(self, file, pool.node));
        let cached = reading.as_ref().map_or(0.0, |reading| reading.cached);
        Owed { due, ready, late, cached, held: 0, ..Owed::to(self.instance) }.keep();
        let done = work();
        let owed = Owed { cached: 0.0, ready: 0, ..Owed::to(self.instance) };
        drop(reading);
        let owed = owed.wait(&*self.clock);
        pool.end(call, &turn, owed.held);
        pool.busy.fetch_add(software + owed.held, Ordering::Relaxed);
        let mut accounts = self.accounts(tid);
        if accounts.len() >= MANY && !accounts.contains_key(&tid) {
            accounts.retain(|_, account| account.done + IDLE_NS > now);
        }
        let account = accounts.entry(tid).or_default();
        (account.done, account.late) = (owed.due, owed.late);
        account.busy += software + owed.held;
        account.waited += start - begin;
        done
    }
}

impl Pool {
    /// Takes the core that is free first, from `begin` or later on, for a call with so long
    /// software.
    fn take(&self, call: Call, begin: u64, software: u64) -> Turn {
        let mut turns = locked(&self.turns);
        let accesses = turns.accesses.get(call as usize).copied().unwrap_or_default();
        let first = turns.free.iter_mut().enumerate().min_by_key(|(_, at)| **at);
        let Some((core, at)) = first else { return Turn { core: 0, start: begin, accesses } };
        let start = begin.max(*at);
        *at = start + software + accesses;
        Turn { core, start, accesses }
    }

    /// The accesses of a call took so long.
    fn end(&self, call: Call, turn: &Turn, accesses: u64) {
        let mut turns = locked(&self.turns);
        if let Some(at) = turns.free.get_mut(turn.core) {
            *at = (*at + accesses).saturating_sub(turn.accesses);
        }
        if let Some(mean) = turns.accesses.get_mut(call as usize) {
            *mean = (*mean * (WEIGHT - 1) + accesses) / WEIGHT;
        }
    }
}

/// A read of a file, as long as it lasts.
struct Reading<'a> {
    cores: &'a Cores,
    file: u64,
    node: u32,
    /// Part that the last-level cache has.
    cached: f64,
}

impl<'a> Reading<'a> {
    fn begin(cores: &'a Cores, file: u64, node: u32) -> Self {
        let mut files = Self::files(cores, file);
        let readers = files.entry(file).or_default();
        let here = readers.iter().filter(|other| **other == node).count();
        let cached = if here > 0 { CACHE_SHARED * here as f64 / readers.len() as f64 } else { 0.0 };
        readers.push(node);
        Self { cores, file, node, cached }
    }

    fn files(cores: &Cores, file: u64) -> MutexGuard<'_, FxHashMap<u64, Readers>> {
        locked(&cores.readers[file as usize % PARTS])
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut files = Self::files(self.cores, self.file);
        let Some(readers) = files.get_mut(&self.file) else { return };
        if let Some(own) = readers.iter().position(|node| *node == self.node) {
            readers.swap_remove(own);
        }
        if readers.is_empty() {
            files.remove(&self.file);
        }
    }
}
