//! Attaches the hook on the read path for only as much of the time as its budget allows.
//!
//! **Problem.** An attached program costs every read on the machine some 60 ns, even a read that it
//! does not count: a tenth of a 4 KiB `pread` of cached data. Sampling cannot lower this cost;
//! detaching can.
//!
//! **Approach.** The hook stays attached while it takes no more than [`BUDGET`] of any CPU. Beyond
//! that it is attached for one slice of every [`CYCLE`], as long as the budget allows and at a
//! random place, so that every moment has the same chance to be in a slice, whatever the rhythm of
//! the load. The bytes read within a window's slices are scaled by the window's length over theirs.
//! Within a slice the hook slows busy threads down; [`Slices::scale`] corrects for that, thread by
//! thread, with the hook's cost as measured at the start ([`HookCost`]). The hooks on faults and
//! writes, which are rare beside reads, stay attached.
//!
//! **Limits.** A thread that reads in bursts shorter than a cycle is known less exactly in a single
//! window, and a file that two threads touch only a few times may not be seen as shared. Windows of
//! less than 0.8 s are not sliced.
//!
//! Attaching and detaching patch the kernel's code, for which the kernel interrupts every CPU a few
//! times: with slices, each CPU gets some 30 to 40 interrupts a second that it would not get otherwise
//! (hook on a tracepoint; `bench/observe/run` counts them). CPUs that run without a timer tick
//! (`nohz_full`) are there to avoid just that. With `steady`, which `exact` and such CPUs imply,
//! the hook is attached once and stays.

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

/// The part of a CPU's time that the hook may take.
const BUDGET: f64 = 0.012;
/// Cost of an attached hook per read in seconds, where it cannot be measured: it was 55 to 65 ns on
/// AMD EPYC, Linux 6.18.
const HOOK_S: f64 = 60e-9;
/// Additional cost of counting an event in seconds, measured there.
const COUNT_S: f64 = 150e-9;
/// Least share of the time that the hook is attached: more than the fastest reads of one CPU need.
const LEAST: f64 = 0.05;
/// Each cycle has one slice. Attaching and detaching take 0.2 ms each, and slices should be longer
/// than the time that the kernel gives each of the threads that share a CPU.
const CYCLE: Duration = Duration::from_millis(200);

/// Largest share of a thread's time that the hook can have taken, whatever the estimate.
const MOST_SLOWED: f64 = 0.3;
/// Windows of fewer cycles are not sliced: they would contain too few slices, or none.
const CYCLES_A_WINDOW: u32 = 4;

/// Seconds that the attached hook adds to a read that it does not count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HookCost(f64);

impl Default for HookCost {
    fn default() -> Self {
        Self(HOOK_S)
    }
}

impl HookCost {
    /// Measures the cost with cached reads of this program's own file, for some tens of
    /// milliseconds. Where these are slow (an emulated machine, a network file system), gives the
    /// default.
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

    /// The share of the time, 0 to 1, that the hook may be attached, for windows of this length and
    /// this many reads a second on the busiest CPU.
    pub fn share(self, window: Duration, reads_per_s: f64) -> f64 {
        if window < CYCLE * CYCLES_A_WINDOW {
            return 1.0;
        }
        let share = BUDGET / (reads_per_s * self.0);
        // Near 1, slices save nothing. Without reads the share is infinite.
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

/// The fastest of some rounds: other work makes them slower, never faster, and the sampler counts
/// many reads of the first.
fn fastest_s(file: &File) -> io::Result<f64> {
    (0..40).map(|_| read_s(file, 512)).try_fold(f64::MAX, |least, s| Ok(least.min(s?)))
}

/// How long the hook has been attached, and how often it was attached or detached.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attached {
    time: Duration,
    switches: u64,
}

impl Attached {
    /// Seconds attached since `before`, in a window of `length_s`. Without a switch this is the
    /// whole window, even though the clocks, read at different moments, may differ.
    pub fn since(self, before: Self, length_s: f64) -> f64 {
        match self.switches == before.switches && self.time > before.time {
            true => length_s,
            false => self.time.saturating_sub(before.time).as_secs_f64().min(length_s),
        }
    }
}

/// The part of one window during which the hook was attached.
#[derive(Debug, Default)]
pub(super) struct Slices {
    pub attached_s: f64,
    pub length_s: f64,
    pub cost: HookCost,
    /// Share of events that were counted, 0 to 1.
    pub counted: f64,
    /// Why the hook could not be attached, if an attempt failed.
    pub refused: Option<io::Error>,
}

impl Slices {
    /// Whether the hook was attached for only a part of the window.
    pub fn sliced(&self) -> bool {
        self.attached_s > 0.0 && self.attached_s < self.length_s
    }

    /// Bytes that a thread read in the window, as a multiple of those within the slices. It made
    /// `reads` reads within the slices and used `cpu_s` of CPU time in the window.
    pub fn scale(&self, reads: f64, cpu_s: f64) -> f64 {
        if !self.sliced() {
            return 1.0;
        }
        let times = self.length_s / self.attached_s;
        // The hook took a part of the thread's CPU time within the slices, in which it would have
        // read more.
        let hook = reads * (self.cost.0 + self.counted * COUNT_S);
        let slowed = if cpu_s > 0.0 { (hook * times / cpu_s).clamp(0.0, MOST_SLOWED) } else { 0.0 };
        times / (1.0 - slowed)
    }
}

/// Attaches and detaches one program; detaches it when dropped.
pub(super) struct Slicer {
    /// The cost of being attached.
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
    /// When the present slice began, if one is on.
    since: Option<Instant>,
    /// Length of the slices that have ended.
    attached: Duration,
    switches: u64,
    refused: Option<io::Error>,
    stop: bool,
}

impl Slicer {
    /// Attaches a program, without slices until [`Slicer::set_share`]. `program` is its descriptor,
    /// `on` that of the map that tells it whether a slice is on. The hook's cost is measured, by
    /// attaching it a few times, only if it may be `sliced`.
    pub fn start(program: OwnedFd, on: OwnedFd, sliced: bool) -> io::Result<Self> {
        set(&on, true)?;
        // If the kernel refuses to attach it, the attempt below reports that.
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

    /// From the next cycle on, attaches the program for this share of the time.
    pub fn set_share(&self, share: f64) {
        let mut state = self.shared.lock();
        if state.share != share {
            state.share = share;
            self.shared.changed.notify_all();
        }
    }

    /// How long the program has been attached since the start.
    pub fn attached(&self) -> Attached {
        let state = self.shared.lock();
        let current = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        Attached { time: state.attached + current, switches: state.switches }
    }

    /// Why the program could not be attached, if an attempt since the last call failed.
    pub fn refused(&self) -> Option<io::Error> {
        self.shared.lock().refused.take()
    }
}

impl Drop for Slicer {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has ended too.
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
                    // Refused: `refused` keeps the cause. Try again.
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

    /// Waits this long, or until the slicer stops. A new share waits for the end of the cycle:
    /// cutting a cycle short would favour its beginning.
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let result = self.changed.wait_timeout_while(state, time, |state| !state.stop);
        result.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Begins a slice. Attaching can take longer than a slice, so it is done without the lock.
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
        // If refused, the program goes on counting until it is detached.
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

/// A tracing program has its attach point built in.
fn attach(program: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: without a name, the call uses only the descriptor, which is open.
    let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor that nothing else owns.
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

/// A random number from 0 to 1, from the kernel: four bytes a cycle.
pub(crate) fn random() -> f64 {
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
        // 1.6 million reads a second at 60 ns are 9.6 % of a CPU: attached an eighth of the time
        // they are 1.2 %.
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
    fn scaling_corrects_for_the_time_that_the_hook_took() {
        let slices = Slices { attached_s: 0.1, length_s: 1.0, cost: HookCost(60e-9), ..Slices::default() };
        // A busy thread makes 1/660 ns = 1.515 million reads a second within slices and 1/600 ns =
        // 1.667 million outside.
        let within = 0.1 / 660e-9;
        assert!((within * slices.scale(within, 1.0) - 1.0 / 600e-9).abs() < 1.0);
        // A thread that reads little is hardly slowed down. Without CPU time there is no
        // correction.
        assert!((slices.scale(10.0, 0.5) - 10.0).abs() < 1e-3);
        assert_eq!(slices.scale(within, 0.0), 10.0);
        // An absurd estimate is bounded.
        assert!((slices.scale(1e9, 1.0) - 10.0 / 0.7).abs() < 1e-9);
    }

    #[test]
    fn a_window_with_the_hook_attached_throughout_is_not_scaled() {
        for attached_s in [1.0, 0.0] {
            assert_eq!(Slices { attached_s, length_s: 1.0, ..Slices::default() }.scale(1e6, 1.0), 1.0);
        }
    }

    /// In a virtual machine, an exact window of 5 ms was scaled because its clocks were read some
    /// milliseconds apart.
    #[test]
    fn clocks_read_at_different_moments_do_not_look_like_slices() {
        let ms = |n| Duration::from_millis(n);
        let (before, now) = (Attached { time: ms(1000), switches: 0 }, Attached { time: ms(1003), switches: 0 });
        assert_eq!(now.since(before, 0.005), 0.005);
        let now = Attached { time: ms(1003), switches: 2 };
        assert_eq!(now.since(before, 0.005), 0.003);
        assert_eq!(Attached { time: ms(1009), switches: 1 }.since(before, 0.005), 0.005);
        // Detached throughout.
        let idle = Attached { time: ms(1000), switches: 1 };
        assert_eq!(idle.since(idle, 0.005), 0.0);
    }

    #[test]
    fn random_places_cover_the_cycle() {
        let places: Vec<f64> = (0..1000).map(|_| random()).collect();
        assert!(places.iter().all(|p| (0.0..=1.0).contains(p)));
        let mean = places.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.06, "{mean}");
    }
}
