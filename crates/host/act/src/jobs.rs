//! Runs moves that copy, each in a thread of its own.
//!
//! **Problem.** A copy takes up to hours, and the loop that makes windows must not wait for it.
//!
//! **Approach.** [`Jobs::start`] gives a function to a thread. The thread calls it to prepare a
//! [`Copying`], because opening and examining takes long, too, and then makes step after step: each
//! of what its share of the allowed rate is in [`STEP`], then a pause for the rest of that time. It
//! publishes its progress after each step; [`Jobs::poll`] reads it. With the end of a copy it hands
//! out its way back; what becomes of that is the caller's affair ([`crate::data`]).
//!
//! A step that the kernel does not return from (a disk or a process that does not answer) cannot be
//! stopped. After [`STUCK`] its copy has failed, and its place is free.
//!
//! **Limits.** The thread of such a copy is left behind. It makes no further step. While
//! [`MOST_LEFT`] are, no copy is started.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::{JobId, JobState, Progress};
use linux::clock::{self, ClockId};

use crate::copying::{Back, Copied, Copying};

/// How long a step and its pause take together: short beside a window, so that progress is known at
/// its end.
const STEP: Duration = Duration::from_millis(100);
/// Most bytes of a step, whatever the rate: what moves in tens of milliseconds (50 ms/GiB natively,
/// 16 times as long emulated), so that a copy stops soon when it is told to.
const STEP_BYTES: u64 = 64 << 20;
/// A step takes tens of milliseconds, and opening and examining seconds; writeback on a slow disk
/// may take a minute.
const STUCK: Duration = Duration::from_secs(120);
/// Most threads that are left behind: each keeps its stack, its files and up to 2 MiB. More are no
/// accident of one disk or process.
const MOST_LEFT: usize = 8;

#[derive(Debug, Default)]
pub struct Jobs {
    running: BTreeMap<JobId, Arc<Shared>>,
    next: u64,
    limits: Arc<Limits>,
}

#[derive(Debug, Default)]
struct Limits {
    /// Bytes a second of all copies together; 0: no limit.
    rate: AtomicU64,
    copies: AtomicUsize,
    /// Threads of copies that were given up: the kernel has not returned from their steps.
    left: AtomicUsize,
    /// CPU time of the steps of all copies so far, ns.
    cpu_ns: AtomicU64,
}

impl Limits {
    /// Bytes a second for one of the copies.
    fn share(&self) -> Option<u64> {
        let rate = self.rate.load(Ordering::Relaxed);
        (rate > 0).then(|| (rate / self.copies.load(Ordering::Relaxed).max(1) as u64).max(1))
    }
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    state: Mutex<(Copied, Option<JobState>)>,
    back: Mutex<Option<Back>>,
    /// When its thread began what it is doing; `None` in a pause.
    busy: Mutex<Option<Instant>>,
    /// It no longer takes a share of the rate.
    over: AtomicBool,
}

impl Shared {
    fn busy(&self, since: Option<Instant>) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Gives a copy up that has been busy with one step for so long.
    fn give_up(&self, limits: &Limits, stuck: Duration) {
        let since = *self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if since.is_some_and(|since| since.elapsed() >= stuck) {
            self.stop.store(true, Ordering::Relaxed);
            let why = format!("the kernel has not returned from a step for {} s", stuck.as_secs());
            self.set(None, Some(JobState::Failed { why }));
            // Counted first, because its thread takes this back if it ends now.
            limits.left.fetch_add(1, Ordering::Relaxed);
            if !self.end(limits) {
                limits.left.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Leaves the rate to the other copies. False if it has ended before.
    fn end(&self, limits: &Limits) -> bool {
        let first = !self.over.swap(true, Ordering::AcqRel);
        if first {
            limits.copies.fetch_sub(1, Ordering::Relaxed);
        }
        first
    }

    fn set(&self, copied: Option<Copied>, state: Option<JobState>) {
        let mut now = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copied) = copied {
            now.0 = copied;
        }
        if now.1.is_none() {
            now.1 = state;
        }
    }
}

impl Jobs {
    /// CPU time that all copies have taken so far, in seconds. It is the price of moves, which the
    /// limits of moves bound, and not of observing.
    pub fn cpu_s(&self) -> f64 {
        self.limits.cpu_ns.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// All copies together move no more than so many bytes a second.
    pub fn pace(&self, bytes_per_s: f64) {
        self.limits.rate.store(bytes_per_s.max(1.0) as u64, Ordering::Relaxed);
    }

    /// Starts a copy. `begin` prepares it, in the copy's own thread, or says how it ended at once:
    /// refused, or gone.
    ///
    /// # Errors
    ///
    /// No thread can be started, or too many are left behind. Nothing was moved.
    pub fn start(
        &mut self,
        begin: impl FnOnce() -> Result<Box<dyn Copying>, JobState> + Send + 'static,
    ) -> io::Result<JobId> {
        let left = self.stuck();
        if left >= MOST_LEFT {
            return Err(io::Error::other(format!("the kernel has not returned from a step of {left} earlier copies")));
        }
        let shared = Arc::new(Shared::default());
        let (of, limits) = (Arc::clone(&shared), Arc::clone(&self.limits));
        // The copy's thread ends the count, not this function. If the thread does not start,
        // dropping its closure does.
        limits.copies.fetch_add(1, Ordering::Relaxed);
        let end = End { shared: of, limits };
        shared.busy(Some(Instant::now()));
        std::thread::Builder::new().name("homenode-copy".into()).spawn(move || {
            let state = begin().map_or_else(|state| state, |work| copy(work, &end.shared, &end.limits));
            end.shared.set(None, Some(state));
        })?;
        self.next += 1;
        self.running.insert(JobId(self.next), shared);
        Ok(JobId(self.next))
    }

    /// Copies whose step the kernel has not returned from for long. Beside [`MOST_LEFT`] of them,
    /// no other copy starts.
    pub fn stuck(&self) -> usize {
        self.limits.left.load(Ordering::Relaxed)
    }

    /// What a window says about them.
    pub fn note(&self) -> Option<String> {
        let (stuck, then) = (self.stuck(), "no copy starts until one of them ends, or homenode is started again");
        let then = if stuck >= MOST_LEFT { then } else { "beside eight such copies no other starts" };
        (stuck > 0).then(|| format!("copies that the kernel does not return from: {stuck}; {then}"))
    }

    /// The progress of every copy. The end of each is reported once, with its way back, if it knows
    /// one.
    pub fn poll(&mut self) -> Vec<(Progress, Option<Back>)> {
        self.poll_for(STUCK)
    }

    fn poll_for(&mut self, stuck: Duration) -> Vec<(Progress, Option<Back>)> {
        let mut all = Vec::with_capacity(self.running.len());
        let limits = &self.limits;
        self.running.retain(|job, shared| {
            shared.give_up(limits, stuck);
            let (copied, state) = shared.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let over = state.is_some();
            let progress = Progress {
                job: *job,
                bytes: copied.total,
                done: copied.moved,
                there: copied.there,
                left: copied.left.into_iter().map(|(why, bytes)| (why.to_owned(), bytes)).collect(),
                state: state.unwrap_or(JobState::Running),
            };
            // It is there before the state is.
            let back = shared.back.lock().unwrap_or_else(PoisonError::into_inner).take_if(|_| over);
            all.push((progress, back));
            !over
        });
        all
    }

    /// Tells a copy to stop after its step.
    pub fn cancel(&self, job: JobId) {
        if let Some(shared) = self.running.get(&job) {
            shared.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Ends a copy however its thread ends.
struct End {
    shared: Arc<Shared>,
    limits: Arc<Limits>,
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.shared.end(&self.limits) {
            // It was given up, but its thread has come back.
            self.limits.left.fetch_sub(1, Ordering::Relaxed);
        }
        // Without effect if the copy has said how it ended.
        self.shared.set(None, Some(JobState::Failed { why: "a fault of homenode ended it".into() }));
    }
}

/// Makes a copy, step by step, and keeps its way back.
fn copy(mut work: Box<dyn Copying>, shared: &Shared, limits: &Limits) -> JobState {
    let state = steps(&mut *work, shared, limits);
    *shared.back.lock().unwrap_or_else(PoisonError::into_inner) = work.back();
    state
}

fn steps(work: &mut dyn Copying, shared: &Shared, limits: &Limits) -> JobState {
    loop {
        if shared.stop.load(Ordering::Relaxed) {
            return JobState::Cancelled;
        }
        let began = Instant::now();
        let share = limits.share();
        let step = share.map_or(STEP_BYTES, |rate| (rate as f64 * STEP.as_secs_f64()) as u64).clamp(1, STEP_BYTES);
        let before = work.copied().copied();
        let cpu = clock::ns(ClockId::ThreadCPUTime);
        shared.busy(Some(began));
        let over = work.step(step);
        shared.busy(None);
        let cpu = clock::ns(ClockId::ThreadCPUTime).saturating_sub(cpu);
        limits.cpu_ns.fetch_add(cpu, Ordering::Relaxed);
        let copied = work.copied();
        let moved = copied.copied().saturating_sub(before);
        shared.set(Some(copied), None);
        match over {
            Ok(true) => return JobState::Done,
            Ok(false) => {}
            Err(error) => return JobState::Failed { why: error.to_string() },
        }
        // A step may move more than it was asked for, such as one huge page.
        let due = share.map(|rate| Duration::from_secs_f64(moved as f64 / rate as f64));
        while let Some(left) = due.and_then(|due| due.checked_sub(began.elapsed())).filter(|left| !left.is_zero())
            && !shared.stop.load(Ordering::Relaxed)
        {
            std::thread::sleep(left.min(STEP));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many steps of as many bytes as asked for; a negative number of bytes left: an error.
    struct Steps {
        total: u64,
        moved: u64,
        asked: Arc<Mutex<Vec<u64>>>,
        fails: bool,
        panics: bool,
    }

    impl Copying for Steps {
        fn step(&mut self, bytes: u64) -> io::Result<bool> {
            assert!(!self.panics, "on purpose");
            self.asked.lock().unwrap().push(bytes);
            self.moved = (self.moved + bytes).min(self.total);
            if self.fails {
                return Err(io::Error::other("no memory"));
            }
            Ok(self.moved == self.total)
        }

        fn copied(&self) -> Copied {
            Copied { total: self.total, moved: self.moved, there: 0, left: [("pinned", 7)].into() }
        }
    }

    fn steps(total: u64) -> (Box<Steps>, Arc<Mutex<Vec<u64>>>) {
        let asked = Arc::default();
        let of = Arc::clone(&asked);
        (Box::new(Steps { total, moved: 0, asked: of, fails: false, panics: false }), asked)
    }

    /// The last word about a copy.
    fn end(jobs: &mut Jobs, job: JobId) -> Progress {
        loop {
            let (progress, _) = jobs.poll().into_iter().find(|p| p.0.job == job).unwrap();
            if progress.state != JobState::Running {
                assert!(jobs.poll().iter().all(|p| p.0.job != job));
                return progress;
            }
            std::thread::yield_now();
        }
    }

    /// Their CPU time counted as the cost of observing, and a long copy switched off what policies
    /// look at.
    #[test]
    fn the_cpu_time_of_copies_is_told_apart() {
        struct Busy(u64);
        impl Copying for Busy {
            fn step(&mut self, _: u64) -> io::Result<bool> {
                let until = clock::ns(ClockId::ThreadCPUTime) + 5_000_000;
                while clock::ns(ClockId::ThreadCPUTime) < until {}
                self.0 += 1;
                Ok(self.0 == 4)
            }

            fn copied(&self) -> Copied {
                Copied::default()
            }
        }
        let mut jobs = Jobs::default();
        assert_eq!(jobs.cpu_s(), 0.0);
        let job = jobs.start(|| Ok(Box::new(Busy(0)))).unwrap();
        end(&mut jobs, job);
        assert!(jobs.cpu_s() >= 0.02, "{}", jobs.cpu_s());
    }

    /// It kept one of few places for ever, and its part of the rate.
    #[test]
    fn a_copy_whose_step_does_not_return_is_given_up() {
        struct Hangs(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);
        impl Copying for Hangs {
            fn step(&mut self, _: u64) -> io::Result<bool> {
                // Without effect once the test waits for the end.
                let _ = self.0.send(());
                self.1.recv().map_err(io::Error::other)?;
                Ok(false)
            }

            fn copied(&self) -> Copied {
                Copied::default()
            }
        }
        let mut jobs = Jobs::default();
        let (go_on, wait) = std::sync::mpsc::channel();
        let (begins, begun) = std::sync::mpsc::channel();
        let job = jobs.start(|| Ok(Box::new(Hangs(begins, wait)))).unwrap();
        assert_eq!(jobs.poll()[0].0.state, JobState::Running);
        // One that is given up before its first step makes none, and leaves no thread behind.
        begun.recv().unwrap();
        let (progress, _) = jobs.poll_for(Duration::ZERO).remove(0);
        assert_eq!(progress.job, job);
        assert!(matches!(&progress.state, JobState::Failed { why } if why.contains("not returned")), "{progress:?}");
        assert_eq!(jobs.limits.copies.load(Ordering::Relaxed), 0);
        assert_eq!(jobs.limits.left.load(Ordering::Relaxed), 1);
        // Its thread makes no further step: then it drops what a step waits for.
        while go_on.send(()).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!((jobs.poll().len(), jobs.limits.copies.load(Ordering::Relaxed)), (0, 0));
    }

    /// Each new move left one more thread behind, without end.
    #[test]
    fn no_copy_starts_while_too_many_are_left_behind() {
        let mut jobs = Jobs::default();
        let hang = |jobs: &mut Jobs| {
            let (go_on, wait) = std::sync::mpsc::channel::<()>();
            let begin = move || Err(JobState::Failed { why: format!("{:?}", wait.recv()) });
            jobs.start(begin).map(|_| go_on)
        };
        let mut hung: Vec<_> = (0..MOST_LEFT).map(|_| hang(&mut jobs).unwrap()).collect();
        jobs.poll_for(Duration::ZERO);
        let why = hang(&mut jobs).unwrap_err().to_string();
        assert_eq!(why, "the kernel has not returned from a step of 8 earlier copies");
        // Only the journal said so.
        let note = jobs.note().unwrap();
        assert!(note.contains("does not return from: 8; no copy starts until"), "{note}");
        hung.pop();
        while hang(&mut jobs).is_err() {
            std::thread::yield_now();
        }
        hung.clear();
        while jobs.note().is_some() {
            jobs.poll();
            std::thread::yield_now();
        }
        while jobs.limits.left.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn copies_go_at_their_share_of_the_rate_to_their_end() {
        let mut jobs = Jobs::default();
        jobs.pace(1e4);
        let (one, asked) = steps(3_000);
        let job = jobs.start(|| Ok(one)).unwrap();
        let progress = end(&mut jobs, job);
        assert_eq!((progress.bytes, progress.done, progress.state), (3_000, 3_000, JobState::Done));
        assert_eq!(progress.left, BTreeMap::from([("pinned".to_owned(), 7)]));
        // A tenth of a second at 10,000 bytes a second.
        assert_eq!(*asked.lock().unwrap(), [1_000, 1_000, 1_000]);
        assert_eq!(jobs.limits.copies.load(Ordering::Relaxed), 0);
        jobs.pace(1e15);
        let (one, asked) = steps(STEP_BYTES + 1);
        let job = jobs.start(|| Ok(one)).unwrap();
        end(&mut jobs, job);
        assert_eq!(*asked.lock().unwrap(), [STEP_BYTES, STEP_BYTES]);
    }

    #[test]
    fn a_copy_stops_when_it_is_told_to_and_says_why_it_failed() {
        let mut jobs = Jobs::default();
        jobs.pace(1.0);
        // At one byte a second it would take centuries.
        let job = jobs.start(|| Ok(steps(u64::MAX).0)).unwrap();
        jobs.cancel(job);
        assert_eq!(end(&mut jobs, job).state, JobState::Cancelled);
        let (mut fails, _) = steps(9);
        fails.fails = true;
        let job = jobs.start(|| Ok(fails)).unwrap();
        assert_eq!(end(&mut jobs, job).state, JobState::Failed { why: "no memory".into() });
        let (mut panics, _) = steps(9);
        panics.panics = true;
        let job = jobs.start(|| Ok(panics)).unwrap();
        assert_eq!(end(&mut jobs, job).state, JobState::Failed { why: "a fault of homenode ended it".into() });
        assert!(jobs.running.is_empty());
    }
}
