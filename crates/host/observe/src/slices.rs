//! Attaches the hook on the read path for only as much of the time as its budget allows.
//!
//! **Problem.** An attached program costs every read on the machine some 60 ns, even a read that it
//! does not count: a tenth of a 4 KiB `pread` of cached data. Sampling cannot lower this cost;
//! detaching can.
//!
//! **Approach.** The hook stays attached while it takes no more than [`BUDGET`] of any CPU:
//! everybody's reads are counted for certain. The program itself adds up what it takes ([`BURST`]
//! may be used at once), and wakes the slicer when it takes more. A burst therefore pays for its
//! first milliseconds only. From then on the hook is attached for one slice of every [`CYCLE`], at
//! a random place, so that every moment has the same chance to be in a slice, whatever the rhythm
//! of the load. What is read in a slice weighs the inverse of this chance. The chance for a cycle
//! follows from the cycles before it and from nothing within it, so that sums are unbiased. It
//! rises when there is less to read; at last the hook stays attached again.
//!
//! A cycle's slice can become longer than intended where the slicer waits for a CPU:
//! [`Slices::scale`] corrects what slices stand for by the time that they should stand for. Within
//! a slice the hook slows busy threads down, which is corrected thread by thread, with the hook's
//! cost as measured at the start ([`HookCost`]). The hooks on faults and writes, which are rare
//! beside reads, stay attached.
//!
//! **Limits.** A thread that reads in bursts shorter than a cycle is known less exactly in a single
//! window, and a file that two threads touch only a few times may not be seen as shared, while
//! somebody on the machine reads fast. Windows of less than 0.8 s are not sliced.
//!
//! Attaching and detaching patch the kernel's code, for which the kernel interrupts every CPU a few
//! times: with slices, each CPU gets some 30 to 40 interrupts a second that it would not get
//! otherwise (hook on a tracepoint; `bench/observe/run` counts them). CPUs that run without a timer
//! tick (`nohz_full`) are there to avoid just that. With `steady`, which `exact` and such CPUs
//! imply, the hook is attached once and stays.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use linux::clock::{self, ClockId};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::CapabilitySet;

use super::records::{Counters, Record, intf};

/// The part of a CPU's time that the hook may take. With the counting of events (0.25 %) and the
/// interrupts it stays below 2 %.
const BUDGET: f64 = 0.01;
/// The time that it may take at once beyond this: a quarter of a percent of a burst of 0.2 s.
const BURST: Duration = Duration::from_micros(500);
/// Cost of an attached hook per read in seconds, where it cannot be measured: it was 55 to 65 ns on
/// AMD EPYC, Linux 6.18.
const HOOK_S: f64 = 60e-9;
/// What the budget charges for it at least. The fastest of a few hundred reads in a row, which the
/// measurement sees, is not what a program pays: beside other work, whose code and data take turns
/// in the caches, the hook took 150 to 200 ns where 60 were measured. It is no measure of what a
/// thread that only reads would have read: 26 ns on a machine that reads a page in 220.
const LEAST_HOOK_S: f64 = 120e-9;
/// The fastest read of a page there.
const READ_S: f64 = 600e-9;
/// Additional cost of counting an event in seconds, measured there.
const COUNT_S: f64 = 150e-9;
/// Least share of the time that the hook is attached: more than the fastest reads of one CPU need.
const LEAST: f64 = 0.05;
/// Each cycle has one slice. Attaching and detaching take 0.2 ms each, and slices should be longer
/// than the time that the kernel gives each of the threads that share a CPU.
const CYCLE: Duration = Duration::from_millis(200);
/// The share grows by no more than this from one cycle to the next: a slice may have met a pause.
const GROWTH: f64 = 2.0;

/// Largest share of a thread's time that the hook can have taken, whatever the estimate.
const MOST_SLOWED: f64 = 0.3;
/// Windows of fewer cycles are not sliced: they would contain too few slices, or none.
const CYCLES_A_WINDOW: u32 = 4;
/// The weight of a slice without end, in the programs' unit.
const WEIGHT_ONE: f64 = intf::WEIGHT_ONE as f64;

/// What the programs must know to wake the slicer.
pub(super) struct Limits {
    /// In 1/1024ths of the time.
    pub budget: u32,
    pub burst_ns: u32,
    pub count_ns: u32,
}

impl Limits {
    pub const fn get() -> Self {
        Self { budget: (BUDGET * 1024.0) as u32, burst_ns: BURST.as_nanos() as u32, count_ns: (COUNT_S * 1e9) as u32 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HookCost {
    /// Seconds that the attached hook adds to a read that it does not count.
    hook_s: f64,
    /// Seconds of the fastest read without it.
    read_s: f64,
}

impl Default for HookCost {
    fn default() -> Self {
        Self { hook_s: HOOK_S, read_s: READ_S }
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
        Ok(Self { hook_s: (with - without).clamp(0.0, 300e-9), read_s: without })
    }

    /// The share of the time, 0 to 1, that the hook may be attached, for this many reads a second
    /// on the busiest CPU.
    fn share(self, reads_per_s: f64) -> f64 {
        let share = BUDGET / (reads_per_s * self.charged_s());
        // Near 1, slices save nothing. Without reads the share is infinite.
        if share > 0.8 { 1.0 } else { share.max(LEAST) }
    }

    /// Seconds that the budget charges for a read.
    fn charged_s(self) -> f64 {
        self.hook_s.max(LEAST_HOOK_S)
    }

    /// [`Self::charged_s`] in whole nanoseconds.
    pub fn charged_ns(self) -> u32 {
        (self.charged_s() * 1e9).round() as u32
    }
}

/// Seconds of CPU time per cached read of a page.
fn read_s(file: &File, reads: u32) -> io::Result<f64> {
    let (mut buffer, start) = ([0; 4096], clock::s(ClockId::ThreadCPUTime));
    for _ in 0..reads {
        file.read_at(&mut buffer, 0)?;
    }
    Ok((clock::s(ClockId::ThreadCPUTime) - start) / f64::from(reads))
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
    /// The time with slices, and what they stand for.
    sliced: Duration,
    stands_for: Duration,
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

    /// What slices since `before` should stand for, as a multiple of what they stand for.
    pub fn correction(self, before: Self) -> f64 {
        let sliced = self.sliced.saturating_sub(before.sliced);
        let stands_for = self.stands_for.saturating_sub(before.stands_for);
        // Of one or two cycles a part can be in another window.
        if sliced < 3 * CYCLE || stands_for.is_zero() {
            return 1.0;
        }
        // Half or double is beyond what a busy machine does.
        sliced.div_duration_f64(stands_for).clamp(0.5, 2.0)
    }
}

/// The part of one window during which the hook was attached.
#[derive(Debug, Default)]
pub(super) struct Slices {
    pub attached_s: f64,
    pub length_s: f64,
    /// See [`Attached::correction`].
    pub correction: f64,
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

    /// Bytes that a thread read, as a multiple of those that its slices stand for. They stand for
    /// `reads` reads, and it used `cpu_s` of CPU time in the window.
    pub fn scale(&self, reads: f64, cpu_s: f64) -> f64 {
        // The hook took a part of the thread's CPU time within the slices, in which it would have
        // read more.
        let hook = reads * (self.cost.hook_s + self.counted * COUNT_S);
        let slowed = if cpu_s > 0.0 { (hook / cpu_s).clamp(0.0, MOST_SLOWED) } else { 0.0 };
        self.correction / (1.0 - slowed)
    }
}

/// The maps by which program and slicer talk.
pub(super) struct Maps {
    /// The weight of the slice that is on.
    pub on: OwnedFd,
    /// Counts the reads of each CPU.
    pub counters: MapHandle,
    /// Has a record when the program takes more than its budget.
    pub over_budget: MapHandle,
}

/// Attaches and detaches one program; detaches it when dropped.
pub(super) struct Slicer {
    pub cost: HookCost,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    program: OwnedFd,
    on: OwnedFd,
    counters: MapHandle,
    cost: HookCost,
    state: Mutex<State>,
    /// Readable from the moment at which the slicer is to stop.
    stop: OwnedFd,
}

#[derive(Default)]
struct State {
    /// Windows are long enough for slices.
    allowed: bool,
    /// When the present slice began, if one is on, and its weight.
    since: Option<(Instant, f64)>,
    /// When the hook was last attached without slices no more.
    sliced_since: Option<Instant>,
    /// Slices and times with slices that have ended.
    attached: Attached,
    refused: Option<io::Error>,
}

impl Slicer {
    /// Attaches a program. It stays attached until it takes more than its budget in
    /// [`Slicer::window`]s long enough for slices; only if it may be `sliced` is its cost measured,
    /// by attaching it a few times.
    pub fn start(program: OwnedFd, maps: Maps, sliced: bool) -> io::Result<Self> {
        set(&maps.on, WEIGHT_ONE)?;
        // If the kernel refuses to attach it, the attempt below reports that.
        let cost = if sliced { HookCost::measure(&program).unwrap_or_default() } else { HookCost::default() };
        let mut signals = RingBufferBuilder::new();
        // Only that there is a record matters.
        signals.add(&maps.over_budget, |_| 0).map_err(io::Error::other)?;
        let signals = signals.build().map_err(io::Error::other)?;
        let link = Some(attach(&program)?);
        let state = State { since: Some((Instant::now(), 1.0)), ..State::default() };
        let shared = Arc::new(Shared {
            program,
            on: maps.on,
            counters: maps.counters,
            cost,
            state: Mutex::new(state),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("slices".to_owned()).spawn(move || {
            // Attaching again takes the program's descriptor and nothing else.
            if let Err(error) = linux::privileges::keep_only(CapabilitySet::empty()) {
                tracing::warn!(%error, "a thread keeps its privileges");
            }
            theirs.run(link, &signals);
        })?;
        Ok(Self { cost, shared, thread: Some(thread) })
    }

    pub fn window(&self, length: Duration) {
        self.shared.lock().allowed = length >= CYCLE * CYCLES_A_WINDOW;
    }

    /// How long the program has been attached since the start.
    pub fn attached(&self) -> Attached {
        let state = self.shared.lock();
        let mut attached = state.attached;
        if let Some((since, weight)) = state.since {
            attached.add(since.elapsed(), weight);
        }
        attached.sliced += state.sliced_since.map_or(Duration::ZERO, |since| since.elapsed());
        attached
    }

    /// Why the program could not be attached, if an attempt since the last call failed.
    pub fn refused(&self) -> Option<io::Error> {
        self.shared.lock().refused.take()
    }
}

impl Attached {
    fn add(&mut self, time: Duration, weight: f64) {
        self.time += time;
        if weight > 1.0 {
            self.stands_for += time.mul_f64(weight);
        }
    }
}

impl Drop for Slicer {
    fn drop(&mut self) {
        // The counter has room for one.
        _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has ended too.
            _ = thread.join();
        }
    }
}

struct Stop;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut link: Option<OwnedFd>, signals: &RingBuffer<'_>) {
        // Ends with `Stop`.
        while self.attached_throughout(&mut link, signals).and_then(|()| self.slices(&mut link)).is_ok() {}
    }

    /// Until the hook takes more than its budget.
    fn attached_throughout(&self, link: &mut Option<OwnedFd>, signals: &RingBuffer<'_>) -> Result<(), Stop> {
        loop {
            self.begin(link, 1.0);
            if link.is_none() {
                // Refused: `refused` keeps the cause. Try again.
                self.sleep(CYCLE)?;
                continue;
            }
            // SAFETY: the descriptor lives as long as `signals`.
            let signal = unsafe { BorrowedFd::borrow_raw(signals.epoll_fd()) };
            self.wait(Some(signal), None)?;
            _ = signals.consume_raw();
            if self.lock().allowed {
                return Ok(());
            }
        }
    }

    /// Until a slice shows that the hook may stay attached.
    fn slices(&self, link: &mut Option<OwnedFd>) -> Result<(), Stop> {
        // Until a slice has shown how fast somebody reads: as fast as a CPU can.
        let mut share = self.cost.share(1.0 / self.cost.read_s);
        self.end(link);
        self.lock().sliced_since = Some(Instant::now());
        while share < 1.0 && self.lock().allowed {
            let slice = CYCLE.mul_f64(share);
            let before = (CYCLE - slice).mul_f64(linux::random());
            self.sleep(before)?;
            let reads = self.reads();
            self.begin(link, 1.0 / share);
            self.sleep(slice)?;
            let length = self.end(link);
            let busiest = self.reads().iter().zip(&reads).map(|(now, before)| now.wrapping_sub(*before)).max();
            let next = match length {
                Some(length) => {
                    self.cost.share(busiest.unwrap_or(0) as f64 / WEIGHT_ONE / length.as_secs_f64().max(1e-6))
                }
                // Refused.
                None => share,
            };
            self.sleep(CYCLE - slice - before)?;
            share = next.min(share * GROWTH);
        }
        let mut state = self.lock();
        if let Some(since) = state.sliced_since.take() {
            state.attached.sliced += since.elapsed();
        }
        Ok(())
    }

    /// Reads that each CPU's counted ones stand for, in 1/1024ths.
    fn reads(&self) -> Vec<u64> {
        let values = self.counters.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
        values.iter().filter_map(|value| Counters::decode(value)).map(|cpu| cpu.reads).collect()
    }

    fn sleep(&self, time: Duration) -> Result<(), Stop> {
        self.wait(None, Some(time))
    }

    /// Waits for `signal`, or this long.
    fn wait(&self, signal: Option<BorrowedFd<'_>>, most: Option<Duration>) -> Result<(), Stop> {
        let end = most.map(|most| Instant::now() + most);
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
            fds.extend(signal.as_ref().map(|signal| PollFd::new(signal, PollFlags::IN)));
            let left = left.and_then(|left| left.try_into().ok());
            // EINTR is the only error that can come of this.
            let ready = poll(&mut fds, left.as_ref()).unwrap_or(0);
            if fds.first().is_some_and(|stop| !stop.revents().is_empty()) {
                return Err(Stop);
            }
            if ready > 0 || end.is_some_and(|end| Instant::now() >= end) {
                return Ok(());
            }
        }
    }

    /// Begins a slice of this weight. Attaching can take longer than a slice, so it is done without
    /// the lock.
    fn begin(&self, link: &mut Option<OwnedFd>, weight: f64) {
        if link.is_some() {
            return;
        }
        let attached = attach(&self.program).and_then(|link| set(&self.on, weight * WEIGHT_ONE).map(|()| link));
        let mut state = self.lock();
        match attached {
            Ok(attached) => {
                (*link, state.since) = (Some(attached), Some((Instant::now(), weight)));
                state.attached.switches += 1;
            }
            Err(error) => state.refused = Some(error),
        }
    }

    /// Ends a slice. Returns its length.
    fn end(&self, link: &mut Option<OwnedFd>) -> Option<Duration> {
        let link = link.take()?;
        let mut state = self.lock();
        // If refused, the program goes on counting until it is detached.
        if let Err(error) = set(&self.on, 0.0) {
            state.refused = Some(error);
        }
        let (since, weight) = state.since.take()?;
        let length = since.elapsed();
        state.attached.add(length, weight);
        state.attached.switches += 1;
        drop(state);
        drop(link);
        Some(length)
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

/// Tells the program the weight of the slice that is on, in its unit; 0: none.
fn set(on: &OwnedFd, weight: f64) -> io::Result<()> {
    let (key, value) = (0u32, weight.round() as u32);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_takes_no_more_than_its_budget() {
        let cost = HookCost { hook_s: 150e-9, ..HookCost::default() };
        for reads in [0.0, 1e3, 5e4, 8e4] {
            assert_eq!(cost.share(reads), 1.0, "{reads}");
        }
        // 640,000 reads a second at 150 ns are 9.6 % of a CPU: attached a tenth of the time they
        // are 1 %.
        assert!((cost.share(6.4e5) - 0.01 / 0.096).abs() < 1e-9);
        for reads in [2e5, 5e5, 1e6] {
            assert!(cost.share(reads) * reads * 150e-9 <= BUDGET * 1.0001, "{reads}");
        }
        assert_eq!(cost.share(1e9), LEAST);
    }

    /// The least that the budget charges scaled what fast threads read, by up to 1.36, on a machine
    /// whose hook takes 26 ns.
    #[test]
    fn what_the_budget_charges_does_not_scale_bytes() {
        let cost = HookCost { hook_s: 26e-9, read_s: 220e-9 };
        let slices = Slices { attached_s: 0.1, length_s: 1.0, correction: 1.0, cost, ..Slices::default() };
        let within = 1.0 / 246e-9;
        assert!((within * slices.scale(within, 1.0) - 1.0 / 220e-9).abs() < 1.0);
        assert_eq!((cost.charged_ns(), HookCost { hook_s: 150e-9, ..cost }.charged_ns()), (120, 150));
    }

    #[test]
    fn scaling_corrects_for_the_time_that_the_hook_took() {
        let slices = Slices { attached_s: 0.1, length_s: 1.0, correction: 1.0, ..Slices::default() };
        // A busy thread makes 1/660 ns = 1.515 million reads a second within slices and 1/600 ns =
        // 1.667 million outside.
        let within = 1.0 / 660e-9;
        assert!((within * slices.scale(within, 1.0) - 1.0 / 600e-9).abs() < 1.0);
        // A thread that reads little is hardly slowed down. Without CPU time there is no
        // correction.
        assert!((slices.scale(100.0, 0.5) - 1.0).abs() < 1e-4);
        assert_eq!(slices.scale(within, 0.0), 1.0);
        // An absurd estimate is bounded.
        assert!((slices.scale(1e9, 1.0) - 1.0 / 0.7).abs() < 1e-9);
    }

    #[test]
    fn slices_that_became_too_long_stand_for_the_time_that_they_should() {
        let ms = |n| Duration::from_millis(n);
        let mut now = Attached { sliced: ms(1000), ..Attached::default() };
        // Five slices of 10 ms that became 12 ms.
        (0..5).for_each(|_| now.add(ms(12), 20.0));
        assert!((now.correction(Attached::default()) - 1.0 / 1.2).abs() < 1e-9);
        // Without slices the hook sees everything, and of two cycles nothing is known.
        let mut whole = Attached::default();
        whole.add(ms(1000), 1.0);
        assert_eq!(whole.correction(Attached::default()), 1.0);
        now.sliced = ms(500);
        assert_eq!(now.correction(Attached::default()), 1.0);
    }

    /// In a virtual machine, an exact window of 5 ms was scaled because its clocks were read some
    /// milliseconds apart.
    #[test]
    fn clocks_read_at_different_moments_do_not_look_like_slices() {
        let ms = |n| Duration::from_millis(n);
        let (before, now) =
            (Attached { time: ms(1000), ..Attached::default() }, Attached { time: ms(1003), ..Attached::default() });
        assert_eq!(now.since(before, 0.005), 0.005);
        let now = Attached { time: ms(1003), switches: 2, ..Attached::default() };
        assert_eq!(now.since(before, 0.005), 0.003);
        assert_eq!(Attached { time: ms(1009), switches: 1, ..Attached::default() }.since(before, 0.005), 0.005);
        // Detached throughout.
        let idle = Attached { time: ms(1000), switches: 1, ..Attached::default() };
        assert_eq!(idle.since(idle, 0.005), 0.0);
    }
}
