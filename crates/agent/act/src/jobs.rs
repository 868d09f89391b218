//! Runs moves that copy, each in a thread of its own.
//!
//! **Problem.** A copy takes up to hours, and the loop that makes windows must not wait for it.
//!
//! **Approach.** [`Jobs::start`] gives a function to a thread. The thread calls it to prepare a
//! [`Copying`], because opening and examining takes long, too, and then makes step after step: each
//! of what its share of the allowed rate is in [`STEP`], then a pause for the rest of that time. It
//! publishes its progress after each step; [`Jobs::poll`] reads it.
//!
//! A step that the kernel does not return from (a disk or a process that does not answer) cannot be
//! stopped. After [`STUCK`] its copy has failed, and its place is free.
//!
//! **Limits.** The thread of such a copy is left behind. It makes no further step. While
//! [`MOST_LEFT`] are, no copy is started.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::{JobId, JobState, Progress};
use linux::clock::{self, ClockId};
use rustc_hash::FxHashSet;

use crate::copying::{Back, Copied, Copying};
use crate::memory::Layout;

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
/// Most ended copies whose way back is kept. That of a process keeps two files open.
const WAYS_BACK: usize = 1024;
/// Most ended moves of files whose layout of pages is kept, in case the plan does not pay, and the
/// most bytes of each (350 MiB of pages from two nodes in turn, or any number in long runs) and of
/// all.
const LAYOUTS: usize = 256;
const LAYOUT_BYTES: usize = 256 << 10;
const LAYOUTS_BYTES: usize = 8 << 20;

/// Copies that run.
#[derive(Debug, Default)]
pub struct Jobs {
    running: BTreeMap<JobId, Arc<Shared>>,
    next: u64,
    limits: Arc<Limits>,
    /// The ways back of ended copies, oldest first; `None`: they are not kept.
    moved: Option<Vec<(JobId, Option<Back>)>>,
    /// Copies whose way back was dropped, because there are too many.
    given_up: Vec<JobId>,
    /// The layouts of files that copies moved lately, oldest first.
    layouts: VecDeque<(JobId, Layout)>,
}

/// State that all copies share.
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

/// State that a copy and its owner share.
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

    /// From now on, keeps the ways back of copies.
    pub fn keep_ways_back(&mut self) {
        self.moved.get_or_insert_default();
    }

    /// Whether the ways back of copies are kept.
    pub fn keeps_ways_back(&self) -> bool {
        self.moved.is_some()
    }

    /// Takes the copy that ended last of those that moved anything, with its way back, if its move
    /// knows it.
    pub fn take_last(&mut self) -> Option<(JobId, Option<Back>)> {
        self.moved.as_mut()?.pop()
    }

    /// Takes the copies of this set, newest first: those that know their way back (`known`), or
    /// those that do not.
    pub fn take(&mut self, of: &FxHashSet<JobId>, known: bool) -> Vec<(JobId, Option<Back>)> {
        let mut taken = Vec::new();
        if let Some(moved) = &mut self.moved {
            moved.retain_mut(|(job, back)| {
                let takes = of.contains(job) && back.is_some() == known;
                if takes {
                    taken.push((*job, back.take()));
                }
                !takes
            });
        }
        taken.reverse();
        taken
    }

    /// Takes the layout of the pages that this copy has moved, if it is kept.
    pub fn take_layout(&mut self, job: JobId) -> Option<Layout> {
        let at = self.layouts.iter().position(|kept| kept.0 == job)?;
        self.layouts.remove(at).map(|kept| kept.1)
    }

    /// The copies that run, and those whose way back is kept.
    pub fn kept(&self) -> impl Iterator<Item = JobId> {
        self.running.keys().copied().chain(self.moved.iter().flatten().map(|moved| moved.0))
    }

    /// The copies whose way back was dropped since the last call, in favour of later ones.
    pub fn take_given_up(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.given_up)
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

    /// The progress of every copy. The end of each is reported once.
    pub fn poll(&mut self) -> Vec<Progress> {
        self.poll_for(STUCK)
    }

    fn poll_for(&mut self, stuck: Duration) -> Vec<Progress> {
        let mut all = Vec::with_capacity(self.running.len());
        let limits = &self.limits;
        self.running.retain(|job, shared| {
            shared.give_up(limits, stuck);
            let (copied, state) = shared.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let over = state.is_some();
            if over && copied.copied() > 0 {
                let back = shared.back.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(Back::Pages(layout)) = back.as_ref()
                    && layout.size() <= LAYOUT_BYTES
                {
                    self.layouts.push_back((*job, layout.clone()));
                    let mut bytes: usize = self.layouts.iter().map(|kept| kept.1.size()).sum();
                    while self.layouts.len() > LAYOUTS || bytes > LAYOUTS_BYTES {
                        let Some((_, oldest)) = self.layouts.pop_front() else { break };
                        bytes -= oldest.size();
                    }
                }
                if let Some(moved) = &mut self.moved {
                    moved.push((*job, back));
                }
            }
            all.push(Progress {
                job: *job,
                bytes: copied.total,
                done: copied.moved,
                there: copied.there,
                left: copied.left.into_iter().map(|(why, bytes)| (why.to_owned(), bytes)).collect(),
                state: state.unwrap_or(JobState::Running),
            });
            !over
        });
        if self.running.len() < all.len()
            && let Some(moved) = &mut self.moved
        {
            moved.retain(|(_, back)| !back.as_ref().is_some_and(Back::gone));
            let more = moved.len().saturating_sub(WAYS_BACK);
            self.given_up.extend(moved.drain(..more).map(|moved| moved.0));
        }
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
    use std::path::Path;

    use linux::threads::Threads;
    use topology::NodeId;

    use super::*;
    use crate::memory::MemoryMove;

    /// So many steps of as many bytes as asked for; a negative number of bytes left: an error.
    struct Steps {
        total: u64,
        moved: u64,
        asked: Arc<Mutex<Vec<u64>>>,
        fails: bool,
        panics: bool,
        back: Option<Back>,
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

        fn back(self: Box<Self>) -> Option<Back> {
            self.back
        }
    }

    fn steps(total: u64) -> (Box<Steps>, Arc<Mutex<Vec<u64>>>) {
        let asked = Arc::default();
        let (of, back) = (Arc::clone(&asked), None);
        (Box::new(Steps { total, moved: 0, asked: of, fails: false, panics: false, back }), asked)
    }

    /// The last word about a copy.
    fn end(jobs: &mut Jobs, job: JobId) -> Progress {
        loop {
            let progress = jobs.poll().into_iter().find(|p| p.job == job).unwrap();
            if progress.state != JobState::Running {
                assert!(jobs.poll().iter().all(|p| p.job != job));
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
        struct Hangs(std::sync::mpsc::Receiver<()>);
        impl Copying for Hangs {
            fn step(&mut self, _: u64) -> io::Result<bool> {
                self.0.recv().map_err(io::Error::other)?;
                Ok(false)
            }

            fn copied(&self) -> Copied {
                Copied::default()
            }
        }
        let mut jobs = Jobs::default();
        let (go_on, wait) = std::sync::mpsc::channel();
        let job = jobs.start(|| Ok(Box::new(Hangs(wait)))).unwrap();
        assert_eq!(jobs.poll()[0].state, JobState::Running);
        let progress = jobs.poll_for(Duration::ZERO).remove(0);
        assert_eq!(progress.job, job);
        assert!(matches!(&progress.state, JobState::Failed { why } if why.contains("not returned")), "{progress:?}");
        assert_eq!(jobs.limits.copies.load(Ordering::Relaxed), 0);
        assert_eq!(jobs.limits.left.load(Ordering::Relaxed), 1);
        // Its thread makes no further step: then it drops what a step waits for.
        while go_on.send(()).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!((jobs.poll(), jobs.limits.copies.load(Ordering::Relaxed)), (vec![], 0));
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

    /// Not of ended processes, nor of copies that moved nothing, nor of more than the last.
    #[test]
    fn ways_back_are_kept_of_what_can_go_back() {
        let mut jobs = Jobs::default();
        jobs.keep_ways_back();
        let mut copy = |bytes: u64, back: Back| {
            let (mut one, _) = steps(bytes);
            one.back = Some(back);
            let job = jobs.start(|| Ok(one)).unwrap();
            end(&mut jobs, job);
            (job, jobs.kept().collect::<Vec<_>>(), jobs.take_given_up())
        };
        let pages = || Back::Pages(Layout::default());
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let (proc, pid) = (Path::new("/proc"), child.id());
        let process = Threads::new(proc).stat(pid).unwrap().unwrap().process();
        let Some(memory) = MemoryMove::new(proc, process, NodeId(0)).unwrap() else { panic!("it has ended") };
        let (of_process, kept, _) = copy(1, Back::Memory(Box::new(memory)));
        assert_eq!(kept, [of_process]);
        assert_eq!(copy(0, pages()).1, [of_process], "nothing was moved");
        child.kill().unwrap();
        child.wait().unwrap();
        let (first, kept, given_up) = copy(1, pages());
        assert_eq!((kept, given_up), (vec![first], vec![]));
        for _ in 1..WAYS_BACK {
            assert_eq!(copy(1, pages()).2, []);
        }
        let (_, kept, given_up) = copy(1, pages());
        assert_eq!((kept.len(), kept.contains(&first), given_up), (WAYS_BACK, false, vec![first]));
    }

    /// After its first period a trial sent nothing back any more, and did not say so.
    #[test]
    fn ways_back_are_kept_again_once_all_were_taken() {
        let mut jobs = Jobs::default();
        jobs.keep_ways_back();
        for _ in 0..2 {
            let (mut one, _) = steps(1);
            one.back = Some(Back::Pages(Layout::default()));
            let job = jobs.start(|| Ok(one)).unwrap();
            end(&mut jobs, job);
            assert_eq!(jobs.take_last().map(|last| last.0), Some(job));
            assert!(jobs.take_last().is_none() && jobs.keeps_ways_back());
        }
    }

    /// A plan that is taken back took everything along that the file had on the node, also what had
    /// been there before.
    #[test]
    fn it_is_kept_which_pages_the_latest_moves_of_files_moved() {
        let mut jobs = Jobs::default();
        let mut copy = |bytes: u64, runs: u64| {
            let mut layout = Layout::default();
            (0..runs).for_each(|page| layout.push(2 * page, NodeId(0)));
            let (mut one, _) = steps(bytes);
            one.back = Some(Back::Pages(layout));
            let job = jobs.start(|| Ok(one)).unwrap();
            end(&mut jobs, job);
            (job, jobs.layouts.iter().map(|kept| kept.0).collect::<Vec<_>>())
        };
        let (first, kept) = copy(1, 3);
        assert_eq!(kept, [first]);
        assert_eq!(copy(0, 3).1, [first], "nothing was moved");
        assert_eq!(copy(1, LAYOUT_BYTES as u64).1, [first], "too large");
        for _ in 1..LAYOUTS {
            copy(1, 3);
        }
        let (last, kept) = copy(1, 3);
        assert_eq!((kept.len(), kept.contains(&first)), (LAYOUTS, false));
        assert_eq!(jobs.take_layout(last).map(|layout| layout.pages()), Some(3));
        assert_eq!((jobs.take_layout(last), jobs.take_layout(first)), (None, None));
    }

    /// The newest first, and apart those whose moves know the way back.
    #[test]
    fn the_copies_of_one_subject_are_taken_together() {
        let mut jobs = Jobs::default();
        jobs.keep_ways_back();
        let mut all = Vec::new();
        for known in [true, true, false, true, true] {
            let (mut one, _) = steps(1);
            one.back = known.then(|| Back::Pages(Layout::default()));
            let job = jobs.start(|| Ok(one)).unwrap();
            end(&mut jobs, job);
            all.push(job);
        }
        let last = jobs.take_last().map(|last| last.0);
        let of = all[1..].iter().copied().collect();
        let taken = jobs.take(&of, true);
        assert!(taken.iter().all(|taken| taken.1.is_some()));
        let ids = [taken[0].0, taken[1].0];
        assert_eq!((last, taken.len(), ids), (Some(all[4]), 2, [all[3], all[1]]));
        assert_eq!(jobs.kept().collect::<Vec<_>>(), [all[0], all[2]]);
    }
}
