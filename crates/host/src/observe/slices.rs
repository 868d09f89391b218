//! The hook on the read path, attached for as much of the time as it may cost.
//!
//! **Problem.** An attached program costs every read of the machine some 60 ns even if it only decides not to count it: a tenth of
//! a 4 KiB `pread` of cached data. Sampling cannot lower that, detaching can.
//!
//! **Approach.** While no CPU makes so many reads that the hook takes more than [`BUDGET`] of it, it stays attached. Beyond
//! that it is attached for one slice of every [`CYCLE`], at a random place in it, as long as the budget allows; what was read within the
//! slices of a window is scaled by the window's length over theirs. Every moment has the same chance to be in a slice, whatever the rhythm of the
//! load. Within a slice a busy thread is slowed down by the very hook: that is taken out again, thread by thread ([`Slices::scale`]), by
//! what the hook costs on this machine, which is measured when it starts ([`HookCost`]). The hooks of faults and writes, which are rare
//! beside reads, stay attached throughout.
//!
//! **Limits.** A thread that reads in bursts shorter than a cycle is known less exactly in a single window, and a file that two threads touch a
//! few times only may not be seen as shared. With `exact`, and in windows of less than 0.8 s, nothing is
//! sliced.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use rustix::time::ClockId;

use super::clock_s;

/// What the hook may take of a CPU's time.
const BUDGET: f64 = 0.012;
/// What an attached hook costs a read, seconds, where it cannot be measured: 55 to 65 ns seen (AMD EPYC, Linux 6.18).
const HOOK_S: f64 = 60e-9;
/// What counting an event costs more, seconds, as seen there.
const COUNT_S: f64 = 150e-9;
/// It is attached for at least this share of the time: more than the fastest reads of one CPU need.
const LEAST: f64 = 0.05;
/// One slice in each. Attaching and detaching take 0.2 ms each; and slices should be longer than the kernel's own, in which threads
/// take turns on a CPU.
const CYCLE: Duration = Duration::from_millis(200);

/// More than this share of its time the hook cannot have taken from a thread, whatever was estimated.
const MOST_SLOWED: f64 = 0.3;
/// Windows of fewer cycles are not sliced: too few slices, or none, would fall into one.
const CYCLES_A_WINDOW: u32 = 4;

/// What the attached hook adds to a read that it does not count, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HookCost(f64);

impl Default for HookCost {
    fn default() -> Self {
        Self(HOOK_S)
    }
}

impl HookCost {
    /// Measures it with cached reads of this program's own file, a few ten milliseconds; where those are slow (an emulated machine, a
    /// network file system), the default.
    fn measure(program: &OwnedFd) -> io::Result<Self> {
        let file = File::open("/proc/self/exe")?;
        // The first reads may wait for a disk.
        read_s(&file, 4)?;
        if read_s(&file, 4)? > 20e-6 {
            return Ok(Self::default());
        }
        let (mut with, mut without) = (f64::MAX, f64::MAX);
        for _ in 0..3 {
            let link = attach(program)?;
            with = fastest_s(&file)?.min(with);
            drop(link);
            without = fastest_s(&file)?.min(without);
        }
        Ok(Self((with - without).clamp(20e-9, 200e-9)))
    }

    /// For how much of the time the hook may be attached, 0 to 1, where windows are so long and the busiest CPU makes so many reads a
    /// second.
    pub fn share(self, window: Duration, reads_per_s: f64) -> f64 {
        if window < CYCLE * CYCLES_A_WINDOW {
            return 1.0;
        }
        let share = BUDGET / (reads_per_s * self.0);
        // Near 1, slices save nothing; and no reads give infinity.
        if share > 0.8 { 1.0 } else { share.max(LEAST) }
    }
}

/// Seconds of CPU time per cached read of a page.
fn read_s(file: &File, reads: u32) -> io::Result<f64> {
    let (mut buffer, start) = ([0; 4096], clock_s(ClockId::ThreadCPUTime));
    for _ in 0..reads {
        file.read_at(&mut buffer, 0)?;
    }
    Ok((clock_s(ClockId::ThreadCPUTime) - start) / f64::from(reads))
}

/// The fastest of some rounds: what else the machine does makes them slower, never faster; and of the first, the sampler counts many.
fn fastest_s(file: &File) -> io::Result<f64> {
    (0..40).map(|_| read_s(file, 512)).try_fold(f64::MAX, |least, s| Ok(least.min(s?)))
}

/// For how long the hook has been attached, and how often it was attached or detached.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attached {
    time: Duration,
    switches: u64,
}

impl Attached {
    /// Seconds since `before`, of a window of `length_s`. Where nothing was switched, it is the whole window, whatever the clocks, which are not
    /// read at the same moment, say.
    pub fn since(self, before: Self, length_s: f64) -> f64 {
        match self.switches == before.switches && self.time > before.time {
            true => length_s,
            false => self.time.saturating_sub(before.time).as_secs_f64().min(length_s),
        }
    }
}

/// For how much of one window the hook was attached.
#[derive(Debug, Default)]
pub(super) struct Slices {
    pub attached_s: f64,
    pub length_s: f64,
    pub cost: HookCost,
    /// Events counted for each that there was, 0 to 1.
    pub counted: f64,
    /// Why it could not be attached, if it once could not.
    pub refused: Option<io::Error>,
}

impl Slices {
    /// Whether it was attached for a part of the window only.
    pub fn sliced(&self) -> bool {
        self.attached_s > 0.0 && self.attached_s < self.length_s
    }

    /// What a thread read in the window, as a multiple of what it read within the slices: `reads` of them, and in the whole window it used
    /// `cpu_s` of CPU time.
    pub fn scale(&self, reads: f64, cpu_s: f64) -> f64 {
        if !self.sliced() {
            return 1.0;
        }
        let times = self.length_s / self.attached_s;
        // Of its CPU time within the slices the hook took a part, in which it would have read on.
        let hook = reads * (self.cost.0 + self.counted * COUNT_S);
        let slowed = if cpu_s > 0.0 { (hook * times / cpu_s).clamp(0.0, MOST_SLOWED) } else { 0.0 };
        times / (1.0 - slowed)
    }
}

/// Attaches and detaches one program; detached when dropped.
pub(super) struct Slicer {
    /// What being attached costs.
    pub cost: HookCost,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    program: OwnedFd,
    on: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    share: f64,
    /// Since when the slice is on, if it is.
    since: Option<Instant>,
    /// Of slices that have ended.
    attached: Duration,
    switches: u64,
    refused: Option<io::Error>,
    stop: bool,
}

impl Slicer {
    /// Attaches a program, at first for good. `program` is a descriptor of it, `on` of the map that tells it whether a slice is on. What
    /// being attached costs is measured only where it may be `sliced`.
    pub fn start(program: OwnedFd, on: OwnedFd, sliced: bool) -> io::Result<Self> {
        set(&on, true)?;
        // A kernel that refuses to attach it says so below.
        let cost = if sliced { HookCost::measure(&program).unwrap_or_default() } else { HookCost::default() };
        let link = Some(attach(&program)?);
        let state = State {
            share: 1.0,
            since: Some(Instant::now()),
            attached: Duration::ZERO,
            switches: 0,
            refused: None,
            stop: false,
        };
        let shared = Arc::new(Shared { program, on, state: Mutex::new(state), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("slices".to_owned()).spawn(move || {
            // Attaching again takes the program's descriptor and nothing else.
            if let Err(error) = crate::privileges::keep_only(CapabilitySet::empty()) {
                tracing::warn!(%error, "a thread keeps its privileges");
            }
            theirs.run(link);
        })?;
        Ok(Self { cost, shared, thread: Some(thread) })
    }

    /// From the next cycle on, attaches it for this share of the time.
    pub fn set_share(&self, share: f64) {
        let mut state = self.shared.lock();
        if state.share != share {
            state.share = share;
            self.shared.changed.notify_all();
        }
    }

    /// For how long it has been attached since the start.
    pub fn attached(&self) -> Attached {
        let state = self.shared.lock();
        let current = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        Attached { time: state.attached + current, switches: state.switches }
    }

    /// Why it could not be attached since the last call, if it could not.
    pub fn refused(&self) -> Option<io::Error> {
        self.shared.lock().refused.take()
    }
}

impl Drop for Slicer {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It ends in any case.
            _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut link: Option<OwnedFd>) {
        let mut state = self.lock();
        while !state.stop {
            if state.share >= 1.0 {
                state = self.begin(state, &mut link);
                if link.is_none() {
                    // Refused, which `attached` tells: tried again.
                    state = self.sleep(state, CYCLE);
                    continue;
                }
                let forever = |state: &mut State| !state.stop && state.share >= 1.0;
                state = self.changed.wait_while(state, forever).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let slice = CYCLE.mul_f64(state.share);
            let before = (CYCLE - slice).mul_f64(random());
            state = self.end(state, &mut link);
            state = self.sleep(state, before);
            state = self.begin(state, &mut link);
            state = self.sleep(state, slice);
            if state.share < 1.0 {
                state = self.end(state, &mut link);
                state = self.sleep(state, CYCLE - slice - before);
            }
        }
    }

    /// Waits, or until somebody stops it. A change of the share waits for the end of the cycle: a cycle cut short would favour its beginning.
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let result = self.changed.wait_timeout_while(state, time, |state| !state.stop);
        result.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Begins a slice. Attaching can take longer than one, so it is done without the lock.
    fn begin<'a>(&'a self, state: MutexGuard<'a, State>, link: &mut Option<OwnedFd>) -> MutexGuard<'a, State> {
        if link.is_some() || state.stop {
            return state;
        }
        drop(state);
        let attached = attach(&self.program).and_then(|link| set(&self.on, true).map(|()| link));
        let mut state = self.lock();
        match attached {
            Ok(attached) => {
                (*link, state.since) = (Some(attached), Some(Instant::now()));
                state.switches += 1;
            }
            Err(error) => state.refused = Some(error),
        }
        state
    }

    /// Ends a slice.
    fn end<'a>(&'a self, mut state: MutexGuard<'a, State>, link: &mut Option<OwnedFd>) -> MutexGuard<'a, State> {
        let Some(link) = link.take() else { return state };
        // Refused, it goes on counting for as long as detaching takes.
        if let Err(error) = set(&self.on, false) {
            state.refused = Some(error);
        }
        if let Some(since) = state.since.take() {
            state.attached += since.elapsed();
            state.switches += 1;
        }
        drop(state);
        drop(link);
        self.lock()
    }
}

/// A program of type tracing knows itself what it is attached to.
fn attach(program: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: without a name only the descriptor is used, which is open.
    let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Tells the program whether a slice is on.
fn set(on: &OwnedFd, value: bool) -> io::Result<()> {
    let (key, value) = (0u32, u32::from(value));
    // SAFETY: key and value are of the map's sizes, four bytes each, and outlive the call.
    let result = unsafe {
        libbpf_sys::bpf_map_update_elem(
            on.as_raw_fd(),
            std::ptr::from_ref(&key).cast(),
            std::ptr::from_ref(&value).cast(),
            libbpf_sys::BPF_ANY.into(),
        )
    };
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// From 0 to 1. The kernel's own generator: a few bytes, once a cycle.
fn random() -> f64 {
    let mut bytes = [0u8; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::INSECURE) {
        Ok(_) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_hook_takes_no_more_than_its_budget() {
        let cost = HookCost(60e-9);
        for reads in [0.0, 1e3, 1e5, 2e5] {
            assert_eq!(cost.share(SECOND, reads), 1.0, "{reads}");
        }
        // 1.6 million reads a second at 60 ns are 9.6 % of a CPU: attached an eighth of the time they are 1.2 %.
        assert!((cost.share(SECOND, 1.6e6) - 0.125).abs() < 1e-9);
        for reads in [3e5, 1e6, 3e6] {
            assert!(cost.share(SECOND, reads) * reads * 60e-9 <= BUDGET * 1.0001, "{reads}");
        }
        assert_eq!(cost.share(SECOND, 1e9), LEAST);
    }

    #[test]
    fn short_windows_are_not_sliced() {
        assert_eq!(HookCost::default().share(Duration::from_millis(799), 1e8), 1.0);
        assert_eq!(HookCost::default().share(Duration::from_millis(800), 1e8), LEAST);
    }

    #[test]
    fn what_the_hook_took_from_a_thread_is_given_back() {
        let slices = Slices { attached_s: 0.1, length_s: 1.0, cost: HookCost(60e-9), ..Slices::default() };
        // A busy thread makes 1/660 ns = 1.515 million reads a second within slices and 1/600 ns = 1.667 million outside.
        let within = 0.1 / 660e-9;
        assert!((within * slices.scale(within, 1.0) - 1.0 / 600e-9).abs() < 1.0);
        // One that reads little is not slowed down; one without CPU time not known to be.
        assert!((slices.scale(10.0, 0.5) - 10.0).abs() < 1e-3);
        assert_eq!(slices.scale(within, 0.0), 10.0);
        // An estimate out of all reason is bounded.
        assert!((slices.scale(1e9, 1.0) - 10.0 / 0.7).abs() < 1e-9);
    }

    #[test]
    fn attached_throughout_nothing_is_scaled() {
        for attached_s in [1.0, 0.0] {
            assert_eq!(Slices { attached_s, length_s: 1.0, ..Slices::default() }.scale(1e6, 1.0), 1.0);
        }
    }

    /// Seen in a virtual machine: a window of 5 ms whose clocks were read some milliseconds apart was scaled, although it was exact.
    #[test]
    fn clocks_that_are_read_apart_make_no_slices() {
        let ms = |n| Duration::from_millis(n);
        let (before, now) = (Attached { time: ms(1000), switches: 0 }, Attached { time: ms(1003), switches: 0 });
        assert_eq!(now.since(before, 0.005), 0.005);
        let now = Attached { time: ms(1003), switches: 2 };
        assert_eq!(now.since(before, 0.005), 0.003);
        assert_eq!(Attached { time: ms(1009), switches: 1 }.since(before, 0.005), 0.005);
        // Detached all the time.
        let idle = Attached { time: ms(1000), switches: 1 };
        assert_eq!(idle.since(idle, 0.005), 0.0);
    }

    #[test]
    fn random_places_fill_the_cycle() {
        let places: Vec<f64> = (0..1000).map(|_| random()).collect();
        assert!(places.iter().all(|p| (0.0..=1.0).contains(p)));
        let mean = places.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.06, "{mean}");
    }
}
