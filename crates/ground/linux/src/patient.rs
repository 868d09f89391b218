//! Questions about one process that may never be answered.
//!
//! **Problem.** A process in `execve()` holds its `exec_update_lock` while it closes descriptors. A
//! FUSE or NFS server that does not answer keeps it there. Meanwhile each read of `/proc/PID/maps`,
//! `pagemap` or `numa_maps` waits in the kernel, on some kernels of each `stat` and of links in
//! `fd`, too; so does what needs the lock of its memory. Only SIGKILL ends such a wait.
//!
//! **Approach.** [`ask`] puts the question on a second thread, which the calling thread keeps for
//! its next questions, and waits for a limited time. A thread that is late is left behind, and the
//! next question gets a new one. What did not answer is not asked again before the first question
//! has returned, so each subject keeps one thread at most of each that asks. The more subjects are
//! silent about the same, the less time the next one gets. Silence about memory or descriptors
//! takes nothing from questions for `stat`. Undo needs those of many at once: [`ask_all`] gives all
//! of them one common end, so that who is silent takes no time from the others; it comes later
//! while answers come.
//!
//! **Limits.** On a machine that is too busy, a process may seem silent; it is asked again once the
//! late answer came. A thread left behind ends with its wait, or with homenode: the waits are
//! killable. While [`MOST_SILENT`] subjects are silent about their memory or descriptors, nobody is
//! asked about those one by one, and the answer is "unknown"; about `stat` while
//! [`MOST_SILENT_STAT`] are. [`ask_all`] leaves [`MOST_ASKED`] behind at most.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::{self, ClockId};

/// How long an answer is awaited. procfs answers in microseconds; a busy machine lets a thread wait
/// for a tenth of a second.
const PATIENCE: Duration = Duration::from_millis(400);

/// The same after many have not answered: all that can be silent together take less than 2 s, in
/// which homenode must end.
const LEAST_PATIENCE: Duration = Duration::from_millis(20);

/// The same for [`STAT`] after [`MANY_SILENT`] have not answered: a hundred times what an answer
/// takes.
const LEAST_PATIENCE_STAT: Duration = Duration::from_millis(2);
const MANY_SILENT: usize = 8;

/// Subjects that may be silent about the same at a time: each keeps a thread.
const MOST_SILENT: usize = 32;

/// The same for [`STAT`]. Together they take 1.9 s.
const MOST_SILENT_STAT: usize = 512;

/// The common end of [`ask_all`]: homenode must end within 2 s of a signal.
const END: Duration = Duration::from_secs(1);

/// The same while answers come, each within [`PATIENCE`] of the one before: the machine is slow,
/// and who gets no answer stays bound.
const END_WHILE_ANSWERED: Duration = Duration::from_secs(10);

/// When none of those asked at once has answered for so long, twice as many threads ask.
const MORE_AFTER: Duration = Duration::from_millis(5);

/// Threads that ask at once: the most that can be left behind.
const MOST_ASKED: usize = 8192;

/// What is asked of a thread: the facts in its `stat`, by which it is known again.
pub const STAT: &str = "stat";

/// What is asked of a process where it takes its memory's locks: `maps`, `pagemap`, `numa_maps`.
pub const MEMORY: &str = "pagemap";

/// What is asked: an id, and what of it.
type Subject = (u32, &'static str);

type Question = Box<dyn FnOnce() + Send>;

static SILENT: Mutex<Vec<Subject>> = Mutex::new(Vec::new());

fn silent() -> MutexGuard<'static, Vec<Subject>> {
    SILENT.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The thread that answers this one's questions.
    static WORKER: RefCell<Option<Sender<Question>>> = const { RefCell::new(None) };
    /// This thread answers questions: those that it has itself it asks directly.
    static ANSWERS: Cell<bool> = const { Cell::new(false) };
    /// CPU time that answers to this thread have taken.
    static SPENT_NS: Cell<u64> = const { Cell::new(0) };
}

/// Asks about a process or thread, and waits less than half a second. `what` of it: two questions
/// with one lock have one word.
///
/// # Errors
///
/// `TimedOut` if it does not answer, or did not before: nothing is known of it. Others are the
/// question's own, or no thread can be started.
pub fn ask<T: Send + 'static>(
    id: u32,
    what: &'static str,
    question: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    ask_for(PATIENCE, id, what, question)
}

/// How often to ask whether to stop.
const PAUSE: Duration = Duration::from_millis(100);

/// [`ask`] with another limit, for what takes long by itself.
pub fn ask_for<T: Send + 'static>(
    patience: Duration,
    id: u32,
    what: &'static str,
    question: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    ask_until(&|| false, patience, id, what, question)
}

/// [`ask_for`], given up soon after `stop` is true.
pub fn ask_until<T: Send + 'static>(
    stop: &dyn Fn() -> bool,
    patience: Duration,
    id: u32,
    what: &'static str,
    question: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if ANSWERS.get() {
        return question();
    }
    let no_answer = || no_answer(id, what);
    let asking = Arc::new(Mutex::new(Asking::default()));
    let (patience, asked) = {
        let silent = silent();
        let others = silent.iter().filter(|subject| subject.1 == what).count();
        match patience_after(others, patience, what) {
            Some(patience) if !silent.contains(&(id, what)) => (patience, One::new((id, what), &asking)),
            _ => return Err(no_answer()),
        }
    };
    let (tell, told) = sync_channel(1);
    put(Box::new(move || {
        let before = own_cpu_ns();
        let answer = question();
        // Nobody listens after the time is over.
        let _ = tell.send((answer, own_cpu_ns().saturating_sub(before)));
        drop(asked);
    }))?;
    let end = Instant::now() + patience;
    let answer = loop {
        match told.recv_timeout(PAUSE.min(end.saturating_duration_since(Instant::now()))) {
            Err(RecvTimeoutError::Timeout) if Instant::now() < end && !stop() => {}
            answer => break answer,
        }
    };
    let answer = match answer {
        Err(RecvTimeoutError::Timeout) => {
            if give_up(&asking, what) > 0 {
                forget_worker();
                return Err(no_answer());
            }
            // It came meanwhile.
            told.recv().ok()
        }
        answer => answer.ok(),
    };
    let Some((answer, cpu_ns)) = answer else {
        // Its thread has panicked, and may still take a question that it does not answer.
        forget_worker();
        return Err(no_answer());
    };
    SPENT_NS.set(SPENT_NS.get().saturating_add(cpu_ns));
    answer
}

/// Asks the same about many, all at once and with one common end. Those that do not answer have the
/// error `TimedOut`, as in [`ask`].
pub fn ask_all<T: Send + 'static>(
    ids: Vec<u32>,
    what: &'static str,
    question: impl Fn(u32) -> io::Result<T> + Send + Sync + 'static,
) -> HashMap<u32, io::Result<T>> {
    let mut answers: HashMap<_, _> = ids.iter().map(|id| (*id, Err(no_answer(*id, what)))).collect();
    let mut left = answers.len();
    let asking = Arc::new(Mutex::new(Asking::default()));
    // Each once.
    let ids: Vec<u32> = answers.keys().copied().collect();
    let (asked, question) = (Arc::new(Mutex::new(ids.into_iter())), Arc::new(question));
    let (tell, told) = channel();
    let start = || {
        let (asked, question, tell, asking) =
            (Arc::clone(&asked), Arc::clone(&question), tell.clone(), Arc::clone(&asking));
        let thread = std::thread::Builder::new().name("homenode-ask".into()).stack_size(128 << 10);
        let started = thread.spawn(move || {
            ANSWERS.set(true);
            loop {
                let Some(id) = asked.lock().unwrap_or_else(PoisonError::into_inner).next() else { break };
                let one = match One::begin((id, what), &asking) {
                    Begun::Asked(one) => one,
                    // Those that did not answer before are not asked again.
                    Begun::Silent => {
                        let _ = tell.send((id, Err(no_answer(id, what)), 0));
                        continue;
                    }
                    Begun::Over => break,
                };
                let before = own_cpu_ns();
                let answer = question(id);
                drop(one);
                // Nobody listens after the end.
                let _ = tell.send((id, answer, own_cpu_ns().saturating_sub(before)));
            }
        });
        started.is_ok()
    };
    let (mut threads, mut more) = (0, 4);
    let begun = Instant::now();
    let mut heard = begun;
    while left > 0 && begun.elapsed() < if heard.elapsed() < PATIENCE { END_WHILE_ANSWERED } else { END } {
        let waiting = asked.lock().unwrap_or_else(PoisonError::into_inner).len();
        for _ in 0..std::mem::take(&mut more).min(waiting).min(MOST_ASKED.saturating_sub(threads)) {
            threads += usize::from(start());
        }
        // The rest has had as long as a single one.
        if waiting == 0 && heard.elapsed() >= PATIENCE {
            break;
        }
        match told.recv_timeout(MORE_AFTER) {
            Ok((id, answer, cpu_ns)) => {
                SPENT_NS.set(SPENT_NS.get().saturating_add(cpu_ns));
                answers.insert(id, answer);
                left = left.saturating_sub(1);
                heard = Instant::now();
            }
            Err(_) => more = threads.max(4),
        }
    }
    give_up(&asking, what);
    answers
}

/// Waits no longer. Silent are those that are asked still, so many; until now others may ask them
/// too.
fn give_up(asking: &Mutex<Asking>, what: &'static str) -> usize {
    let mut silent = silent();
    let mut asking = asking.lock().unwrap_or_else(PoisonError::into_inner);
    asking.over = true;
    silent.extend(asking.ids.iter().map(|id| (*id, what)));
    asking.ids.len()
}

/// Whom the threads of one [`ask`] or [`ask_all`] ask now. Its lock is taken while [`SILENT`]'s is
/// held.
#[derive(Default)]
struct Asking {
    ids: HashSet<u32>,
    /// Nobody waits for answers any more.
    over: bool,
}

/// One question; ends however its thread ends.
struct One {
    subject: Subject,
    asking: Arc<Mutex<Asking>>,
}

enum Begun {
    Asked(One),
    Silent,
    Over,
}

impl One {
    fn begin(subject: Subject, asking: &Arc<Mutex<Asking>>) -> Begun {
        let silent = silent();
        if asking.lock().unwrap_or_else(PoisonError::into_inner).over {
            return Begun::Over;
        }
        if silent.contains(&subject) {
            return Begun::Silent;
        }
        Begun::Asked(Self::new(subject, asking))
    }

    /// While [`SILENT`]'s lock is held.
    fn new(subject: Subject, asking: &Arc<Mutex<Asking>>) -> Self {
        asking.lock().unwrap_or_else(PoisonError::into_inner).ids.insert(subject.0);
        Self { subject, asking: Arc::clone(asking) }
    }
}

impl Drop for One {
    fn drop(&mut self) {
        let mut silent = silent();
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        asking.ids.remove(&self.subject.0);
        // It counts as silent only since the end.
        if asking.over
            && let Some(at) = silent.iter().position(|other| *other == self.subject)
        {
            silent.swap_remove(at);
        }
    }
}

fn no_answer(id: u32, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("/proc/{id}/{what} does not answer"))
}

/// How long the next answer is awaited while so many are silent about the same; `None`: it is not
/// asked for.
fn patience_after(silent: usize, patience: Duration, what: &str) -> Option<Duration> {
    let (most, least) = match what {
        STAT if silent >= MANY_SILENT => (MOST_SILENT_STAT, LEAST_PATIENCE_STAT),
        STAT => (MOST_SILENT_STAT, LEAST_PATIENCE),
        _ => (MOST_SILENT, LEAST_PATIENCE),
    };
    (silent < most).then(|| (patience / (1 << silent.min(16))).max(least))
}

/// CPU time of the calling thread and of the answers that it was given, in nanoseconds.
pub fn cpu_ns() -> u64 {
    own_cpu_ns().saturating_add(SPENT_NS.get())
}

/// The next question of the calling thread gets a new thread, with the privileges that the calling
/// one has then.
pub fn forget_worker() {
    WORKER.with_borrow_mut(|worker| *worker = None);
}

/// Gives a question to this thread's worker, or to a new one.
fn put(question: Question) -> io::Result<()> {
    WORKER.with_borrow_mut(|worker| {
        let question = match worker {
            // The worker has panicked if it does not take it.
            Some(sender) => match sender.send(question) {
                Ok(()) => return Ok(()),
                Err(unsent) => unsent.0,
            },
            None => question,
        };
        let (sender, questions) = channel::<Question>();
        std::thread::Builder::new().name("homenode-ask".into()).spawn(move || {
            ANSWERS.set(true);
            questions.into_iter().for_each(|question| question());
        })?;
        // It waits for this one.
        let _ = sender.send(question);
        *worker = Some(sender);
        Ok(())
    })
}

/// CPU time of the calling thread.
fn own_cpu_ns() -> u64 {
    clock::ns(ClockId::ThreadCPUTime)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_subject_that_does_not_answer_is_unknown_until_it_does() {
        let (go_on, wait) = channel::<()>();
        // Nobody has this id.
        let id = u32::MAX - 1;
        let hang = move || wait.recv().map_err(io::Error::other);
        let error = ask(id, "stat", hang).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), format!("/proc/{id}/stat does not answer"));
        // Not asked again, while others are, and another file of the same.
        let asked = Arc::new(AtomicBool::new(false));
        let ask_again = || {
            let asked = Arc::clone(&asked);
            ask(id, "stat", move || {
                asked.store(true, Ordering::Relaxed);
                Ok(7)
            })
        };
        assert_eq!(ask_again().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(!asked.load(Ordering::Relaxed));
        assert_eq!(ask(id, "maps", || Ok(1)).unwrap(), 1);
        assert_eq!(ask(id - 1, "stat", || Ok(2)).unwrap(), 2);
        go_on.send(()).unwrap();
        while ask_again().is_err() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_question_that_hangs_is_given_up_when_the_caller_stops() {
        let (_keep, wait) = channel::<()>();
        let hang = move || wait.recv().map_err(io::Error::other);
        let begun = Instant::now();
        let error = ask_until(&|| true, Duration::from_secs(600), u32::MAX - 5, "of_a_stop", hang).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    /// 32 readers that hung in `execve()` kept homenode from undoing anything.
    #[test]
    fn silence_about_one_thing_takes_nothing_from_another() {
        const OF_TEST: &str = "of_test";
        let id = |n: usize| u32::MAX - 100 - n as u32;
        silent().extend((0..MOST_SILENT).map(|n| (id(n), OF_TEST)));
        let error = ask(id(MOST_SILENT), OF_TEST, || Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(ask(id(0), STAT, || Ok(4)).unwrap(), 4);
        assert_eq!(ask(id(0), "of_another_test", || Ok(5)).unwrap(), 5);
        silent().retain(|subject| subject.1 != OF_TEST);
    }

    /// Two that undo at a time took each other's threads for silent; so did a single question.
    #[test]
    fn who_is_being_asked_is_not_silent() {
        const OF_TEST: &str = "of_asked";
        let id = |n: u32| u32::MAX - 2000 - n;
        let slow = |n| {
            std::thread::sleep(Duration::from_millis(30));
            Ok(n)
        };
        let ids: Vec<u32> = (0..16).map(id).collect();
        let both = || {
            std::thread::scope(|scope| {
                let one = scope.spawn(|| ask_all(ids.clone(), OF_TEST, slow));
                let other = scope.spawn(|| ask_all(ids.clone(), OF_TEST, slow));
                std::thread::sleep(Duration::from_millis(10));
                let single = ask(id(3), OF_TEST, move || slow(3));
                (one.join().unwrap(), other.join().unwrap(), single)
            })
        };
        let (one, other, single) = both();
        for answers in [one, other] {
            assert!(answers.values().all(Result::is_ok), "{answers:?}");
        }
        assert_eq!(single.unwrap(), 3);
    }

    /// One that was silent at first, or silent for two, took the place of another's answer.
    #[test]
    fn who_is_silent_takes_nobodys_answer() {
        const OF_TEST: &str = "of_twice";
        let id = u32::MAX - 4000;
        silent().extend([(id, OF_TEST), (id, OF_TEST)]);
        let answers = ask_all(vec![id, id - 1, id - 2], OF_TEST, |_| {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        });
        assert!(answers[&id].is_err() && answers[&(id - 1)].is_ok() && answers[&(id - 2)].is_ok(), "{answers:?}");
        assert!(ask_all(vec![id], OF_TEST, |_| Ok(()))[&id].is_err());
        silent().retain(|subject| subject.1 != OF_TEST);
    }

    /// Those that one call left behind are silent for the next, until they answer.
    #[test]
    fn who_is_left_behind_is_silent() {
        let (keep, wait) = channel::<()>();
        let wait = Mutex::new(wait);
        let id = u32::MAX - 3000;
        let mut answers = ask_all(vec![id, id - 1], "of_left", move |asked| match asked == id {
            true => wait.lock().unwrap().recv().map_err(io::Error::other),
            false => Ok(()),
        });
        answers.remove(&(id - 1)).unwrap().unwrap();
        answers.remove(&id).unwrap().unwrap_err();
        assert_eq!(ask(id, "of_left", || Ok(())).unwrap_err().kind(), io::ErrorKind::TimedOut);
        keep.send(()).unwrap();
        while ask(id, "of_left", || Ok(())).is_err() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_are_still_asked_after_many_were_silent_and_all_together_take_less_than_two_seconds() {
        let after = |silent| patience_after(silent, PATIENCE, STAT);
        assert_eq!((after(0), after(1)), (Some(PATIENCE), Some(PATIENCE / 2)));
        assert_eq!(after(MOST_SILENT), Some(LEAST_PATIENCE_STAT));
        assert_eq!((after(MOST_SILENT_STAT - 1), after(MOST_SILENT_STAT)), (Some(LEAST_PATIENCE_STAT), None));
        assert!((0..MOST_SILENT_STAT).filter_map(after).sum::<Duration>() < Duration::from_millis(1900));
        let memory = |silent| patience_after(silent, PATIENCE, MEMORY);
        assert_eq!((memory(MOST_SILENT - 1), memory(MOST_SILENT)), (Some(LEAST_PATIENCE), None));
    }

    #[test]
    fn a_question_that_panics_is_unknown_and_the_next_is_asked() {
        let id = u32::MAX - 3;
        assert!(ask::<()>(id, "stat", || panic!("on purpose")).is_err());
        // On a busy machine its message takes longer to print than an answer is awaited.
        while ask(id, "stat", || Ok(3)).is_err() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn answers_count_as_the_time_of_their_asker() {
        let before = cpu_ns();
        ask(u32::MAX - 4, "stat", || {
            let until = own_cpu_ns() + 5_000_000;
            while own_cpu_ns() < until {}
            Ok(())
        })
        .unwrap();
        assert!(cpu_ns() - before >= 5_000_000);
    }
}
