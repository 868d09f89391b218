//! Whether a plan paid: what the moved threads get done before and after it.
//!
//! **Problem.** A plan that is right by its rule can still do harm, for a reason that the rule does
//! not know.
//!
//! **Approach.** The work of a thread is its file bytes per busy second: per CPU second, and on a
//! volume also per second in which its server made accesses for it. Waiting for remote memory, or
//! for a full controller, is busy time, so work falls where memory is slower, and it does not
//! depend on how much the program has to do. [`Rollback`] keeps the work of every thread over the
//! last `n` windows. The moves of one window are watched together, over the threads that they are
//! about: the moved threads, the threads of moved processes, the readers of moved files. When all
//! copies of the plan are done, and one window more has passed, `n` windows are compared with the
//! `n` before. The plan has not paid if every window after it is worse than every window before,
//! and the mean is worse by [`MARGIN`].
//!
//! **Limits.** Parts of a file that move one plan after the other end each other's watch: the last
//! plan is judged alone. They stay where they are, and are not moved again for long. By chance
//! alone, all of `n` windows are worse than all of `n` others once in `(2n choose n)` plans: 252
//! for n = 5. That holds for windows that know nothing of each other. Of 1,000 plans without effect
//! it takes back, for n = 5 and windows that scatter by 10 %: 5 of such windows, 32 where half of
//! each window is in the next, 92 where four fifths are. A load that becomes slower by itself, by
//! 2 % a window, is taken for a plan that does not pay in 370. Of plans that cost 20 % it finds
//! 47 % where windows scatter by 10 %, and 98 % where by 5 %; of those that cost 35 %, 97 %. So it
//! is a rail and no judge: `homenode trial`, which may draw lots, is one. A plan that is taken back
//! wrongly costs what it would have brought. A program that turns to dearer work in the very
//! windows of a plan cannot be told from a plan that does not pay; on a volume, neither can other
//! programs that begin to use its controllers, or the CPUs of its server. Threads without a past of
//! `n` windows are not watched, nor are more than [`MOST`] plans at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use placement::{Move, Snapshot, Subject, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::{ProcessId, ThreadId};

use crate::attempt::Attempt;
use crate::audit::Bytes;
use crate::plane::JobId;

/// Least loss that is worth a second move: a seventh of what NThread measured for reads that are
/// all remote (34.6 % of the bandwidth), so that a plan is taken back for a change in the place of
/// memory, not for a slightly dearer mix of work.
const MARGIN: f64 = 0.05;
/// Most plans that are watched at a time: one a window for the longest time that a small plan
/// takes.
const MOST: usize = 16;
/// How long the copies of a plan may take before it is not watched any more, in windows: an hour of
/// 1 s.
const PATIENCE: u32 = 3600;

/// Activity of a thread, or of a group of threads, in one window.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    bytes: u64,
    reads: Bytes,
    busy_s: f64,
    served: bool,
}

impl Work {
    fn of(thread: &Thread) -> Self {
        Self {
            bytes: thread.file_bytes(),
            reads: Bytes::of_thread(thread),
            busy_s: thread.cpu_s + thread.served_s.unwrap_or(0.0),
            served: thread.served_s.is_some(),
        }
    }

    fn add(mut self, more: &Self) -> Self {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.reads.add(more.reads);
        self.busy_s += more.busy_s;
        self.served |= more.served;
        self
    }

    /// Bytes per busy second; `None` where nothing was done.
    fn rate(&self) -> Option<f64> {
        (self.bytes > 0 && self.busy_s > 0.0).then(|| self.bytes as f64 / self.busy_s)
    }
}

type Window = FxHashMap<Subject, Work>;

/// The work of these threads in one window.
fn sum(window: &Window, members: &FxHashSet<Subject>) -> Work {
    members.iter().filter_map(|m| window.get(m)).fold(Work::default(), Work::add)
}

#[derive(Debug, Default)]
struct Watched {
    moves: Vec<Move>,
    members: FxHashSet<Subject>,
    /// Copies that are not done yet.
    waits: FxHashSet<JobId>,
    windows: u32,
    before: Vec<Arc<Window>>,
    /// The first of them, right after the last change, is not compared.
    after: Vec<Work>,
}

/// A plan that has not paid.
#[derive(Debug, PartialEq)]
pub(crate) struct Unpaid {
    pub moves: Vec<Move>,
    pub why: String,
}

/// Plans whose effect is not known yet.
#[derive(Debug, Default)]
pub(crate) struct Rollback {
    /// Windows to compare; 0: nothing is watched.
    n: usize,
    /// The moves that were made since the last window, and the copies that they began.
    made: Vec<Move>,
    jobs: FxHashSet<JobId>,
    past: VecDeque<Arc<Window>>,
    watched: Vec<Watched>,
}

impl Rollback {
    /// Compares this many windows; 0: never.
    pub fn new(n: u32) -> Self {
        Self { n: n as usize, ..Self::default() }
    }

    /// A window has ended. Returns the plans that have turned out not to pay.
    pub fn window(&mut self, snapshot: &Snapshot) -> Vec<Unpaid> {
        if self.n == 0 {
            return Vec::new();
        }
        let busy = snapshot.threads.iter().filter(|t| t.file_bytes() > 0);
        let window: Window = busy.map(|t| (Subject::thread(t), Work::of(t))).collect();
        let mut unpaid = Vec::new();
        let n = self.n;
        self.watched.retain_mut(|plan| {
            plan.windows += 1;
            if !plan.waits.is_empty() {
                return plan.windows < PATIENCE;
            }
            let work = sum(&window, &plan.members);
            // A group that does nothing now is another load than before.
            if work.rate().is_none() {
                return false;
            }
            plan.after.push(work);
            if plan.after.len() <= n {
                return true;
            }
            let before: Vec<Work> = plan.before.iter().map(|w| sum(w, &plan.members)).collect();
            if let Some(why) = judge(&before, plan.after.get(1..).unwrap_or_default()) {
                unpaid.push(Unpaid { moves: std::mem::take(&mut plan.moves), why });
            }
            false
        });
        self.past.push_back(Arc::new(window));
        if self.past.len() > n {
            self.past.pop_front();
        }
        unpaid
    }

    /// A move was made, or has begun to copy.
    pub fn made(&mut self, attempt: &Attempt) {
        if self.n > 0 {
            self.made.extend((!attempt.back).then(|| attempt.mv.clone()));
            self.jobs.extend(attempt.job);
        }
    }

    /// Watches what was made after this window, all together.
    pub fn begin(&mut self, snapshot: &Snapshot) {
        let (moves, waits) = (std::mem::take(&mut self.made), std::mem::take(&mut self.jobs));
        if moves.is_empty() {
            return;
        }
        let members = members(&moves, snapshot);
        // Once a subject is moved again, the effect of its first move cannot be seen any more.
        self.watched.retain(|t| t.members.is_disjoint(&members));
        let before: Vec<Arc<Window>> = self.past.iter().map(Arc::clone).collect();
        if self.watched.len() < MOST && before.len() == self.n && worked(&before, &members) {
            self.watched.push(Watched { moves, members, waits, before, ..Watched::default() });
        }
    }

    /// A plan waits for this copy.
    #[cfg(test)]
    pub fn wait_for(&mut self, job: JobId) {
        self.watched.push(Watched { waits: FxHashSet::from_iter([job]), ..Watched::default() });
    }

    /// Moves that are to be watched, and copies that are waited for.
    #[cfg(test)]
    pub fn heard(&self) -> [usize; 2] {
        [self.made.len(), self.jobs.len() + self.watched.iter().map(|t| t.waits.len()).sum::<usize>()]
    }

    /// These, and all of these processes, were put back already. The rest of their plans is
    /// watched anew, over the threads that are left.
    pub fn put_back(&mut self, subjects: &FxHashSet<Subject>, pids: &FxHashSet<u32>, snapshot: &Snapshot) {
        let back: FxHashSet<Subject> =
            snapshot.threads.iter().filter(|t| pids.contains(&t.pid)).map(Subject::thread).collect();
        self.watched.retain_mut(|plan| {
            let made = plan.moves.len();
            plan.moves.retain(|mv| !subjects.contains(&mv.subject));
            if plan.moves.len() == made {
                return true;
            }
            let left = members(&plan.moves, snapshot);
            plan.members.retain(|member| left.contains(member) && !back.contains(member));
            plan.after.clear();
            worked(&plan.before, &plan.members)
        });
    }

    pub fn copied(&mut self, job: JobId) {
        self.watched.iter_mut().for_each(|t| _ = t.waits.remove(&job));
    }
}

/// Whether these threads did something in each window: of fewer windows, chance alone says too
/// often that a plan has not paid.
fn worked(windows: &[Arc<Window>], members: &FxHashSet<Subject>) -> bool {
    windows.iter().all(|window| sum(window, members).rate().is_some())
}

/// The threads that these moves are about. Of a file that moves, those that no policy may move
/// count only if it has no other readers: they may be the copy itself.
fn members(moves: &[Move], snapshot: &Snapshot) -> FxHashSet<Subject> {
    let (mut tids, mut pids, mut files) = (FxHashSet::default(), FxHashSet::default(), FxHashSet::default());
    for mv in moves {
        match &mv.subject {
            Subject::Thread(ThreadId { tid, .. }) => _ = tids.insert(*tid),
            Subject::Process(ProcessId { pid, .. }) => _ = pids.insert(*pid),
            Subject::File(file) => _ = files.insert(file.any_generation()),
        }
    }
    let about =
        |t: &&Thread| tids.contains(&t.tid) || pids.contains(&t.pid) || t.files.iter().any(|f| files.contains(&f.file));
    let of = |pinned: bool| snapshot.threads.iter().filter(move |t| t.pinned.is_some() == pinned).filter(about);
    let free: FxHashSet<Subject> = of(false).map(Subject::thread).collect();
    if free.is_empty() { of(true).map(Subject::thread).collect() } else { free }
}

/// Why the windows after a plan are clearly worse than those before; `None` if they are not.
fn judge(before: &[Work], after: &[Work]) -> Option<String> {
    let rates = |works: &[Work]| works.iter().filter_map(Work::rate).collect::<Vec<f64>>();
    let (b, a) = (rates(before), rates(after));
    let least = b.iter().copied().fold(f64::INFINITY, f64::min);
    let most = a.iter().copied().fold(0.0, f64::max);
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let (was, is) = (mean(&b), mean(&a));
    if a.is_empty() || b.is_empty() || most >= least || is > was * (1.0 - MARGIN) {
        return None;
    }
    let reads = |works: &[Work]| works.iter().fold(Work::default(), Work::add).reads;
    let share = |works: &[Work]| reads(works).remote_share().unwrap_or(0.0) * 100.0;
    let second = if before.iter().any(|work| work.served) { "second of CPU time and service" } else { "CPU second" };
    Some(format!(
        "{:.1} MB of file data per {second} in {} windows before, {:.1} MB in {} after (remote share {:.0} % → {:.0} %)",
        was / 1e6,
        b.len(),
        is / 1e6,
        a.len(),
        share(before),
        share(after)
    ))
}

#[cfg(test)]
mod tests {
    use placement::{FileUse, Reason, testing};
    use topology::NodeId;

    use super::*;
    use crate::journal::About;

    /// One thread that reads this many MB in one CPU second, from node 1.
    fn window(mb: u64) -> Snapshot {
        let files = vec![FileUse { file: testing::file(1), ..FileUse::default() }];
        let thread = Thread { cpu_s: 1.0, files, ..testing::thread(7, 0, &[(1, mb)], 0) };
        Snapshot { window_s: 1.0, threads: vec![thread], ..Snapshot::default() }
    }

    /// Watches a move of a file, which copies as this job.
    fn begin(rollback: &mut Rollback, job: Option<JobId>, snapshot: &Snapshot) {
        let (from, to, why) = (NodeId(0), NodeId(1), "".into());
        let subject = Subject::File(testing::file(1));
        let about = About::new(&subject, 0, "");
        let mv = Move { subject, pid: 0, from, to, reason: Reason::OverloadedHome, why, ranges: Vec::new() };
        rollback.made(&Attempt { job, ..Attempt::new(mv, about) });
        rollback.begin(snapshot);
    }

    /// The plans found not to pay, with the number of the window after the plan.
    fn run(before: &[u64], wait: usize, after: &[u64]) -> Vec<(usize, String)> {
        let mut rollback = Rollback::new(3);
        for mb in before {
            assert_eq!(rollback.window(&window(*mb)), []);
        }
        begin(&mut rollback, Some(JobId(1)), &window(1));
        let mut unpaid = Vec::new();
        for (i, mb) in after.iter().enumerate() {
            if i == wait {
                rollback.copied(JobId(1));
            }
            unpaid.extend(rollback.window(&window(*mb)).into_iter().map(|u| (i + 1, u.why)));
        }
        assert!(rollback.past.len() <= 3 && (unpaid.is_empty() || rollback.watched.is_empty()));
        unpaid
    }

    #[test]
    fn only_what_is_worse_in_every_window_and_clearly_so_has_not_paid() {
        let why =
            "100.0 MB of file data per CPU second in 3 windows before, 80.0 MB in 3 after (remote share 100 % → 100 %)";
        // The window right after the plan is not compared: 4 windows.
        assert_eq!(run(&[100, 100, 100], 0, &[999, 80, 80, 80, 80]), [(4, why.into())]);
        assert_eq!(run(&[100, 100, 79], 0, &[80, 80, 80, 80]), []); // one window before was worse
        assert_eq!(run(&[100, 100, 100], 0, &[80, 80, 80, 101]), []);
        assert_eq!(run(&[100, 100, 100], 0, &[97, 97, 97, 97]), []); // less than the margin
        assert_eq!(run(&[100, 100, 100], 0, &[95, 95, 95, 95]).len(), 1); // the margin
        assert_eq!(run(&[100, 100], 0, &[10, 10, 10, 10]), []); // no past of three windows
        assert_eq!(run(&[100, 100, 100], 0, &[80, 0, 80, 80, 80, 80]), []); // another load
    }

    #[test]
    fn a_plan_whose_copies_take_an_hour_is_not_watched_any_more() {
        let mut rollback = Rollback::new(1);
        rollback.window(&window(100));
        begin(&mut rollback, Some(JobId(1)), &window(100));
        (1..PATIENCE).for_each(|_| _ = rollback.window(&window(100)));
        assert_eq!(rollback.watched.len(), 1);
        rollback.window(&window(100));
        assert!(rollback.watched.is_empty());
    }

    #[test]
    fn threads_without_bytes_or_time_do_no_work() {
        let rate = |bytes: u64, busy_s: f64| Work { bytes, busy_s, ..Work::default() }.rate();
        assert_eq!([rate(6, 2.0), rate(0, 1.0), rate(1, 0.0)], [Some(3.0), None, None]);
        let mut rollback = Rollback::new(1);
        rollback.window(&window(0));
        assert!(rollback.past[0].is_empty(), "it computes, and reads nothing");
        let mut off = Rollback::new(0);
        begin(&mut off, Some(JobId(1)), &window(100));
        assert_eq!(off.heard(), [0, 0]);
        assert!(off.watched.is_empty());
        let one = [Work { bytes: 1, busy_s: 1.0, ..Work::default() }];
        assert_eq!([judge(&[], &one), judge(&one, &[])], [None, None]);
    }

    #[test]
    fn no_more_than_most_plans_are_watched_and_what_is_put_back_leaves_its_plan() {
        let thread = |tid: u32| Thread { cpu_s: 1.0, ..testing::thread(tid, 0, &[(1, 9)], 0) };
        let threads: Vec<Thread> = (0..20).map(thread).collect();
        let snapshot = Snapshot { window_s: 1.0, threads: threads.clone(), ..Snapshot::default() };
        let mut rollback = Rollback::new(1);
        rollback.window(&snapshot);
        for pair in threads.chunks(2).chain(threads.chunks(1).skip(10)) {
            for thread in pair {
                let mv = Move::thread(thread, NodeId(1), Reason::ReadLocality, "");
                rollback.made(&Attempt::new(mv.clone(), About::new(&mv.subject, 0, "")));
            }
            rollback.begin(&snapshot);
        }
        assert_eq!(rollback.watched.len(), 15, "what is moved again is watched anew");
        for thread in &threads[..4] {
            let mv = Move::thread(thread, NodeId(1), Reason::ReadLocality, "");
            rollback.made(&Attempt::new(mv.clone(), About::new(&mv.subject, 0, "")));
            rollback.begin(&snapshot);
        }
        assert_eq!(rollback.watched.len(), MOST);
        rollback.put_back(&FxHashSet::from_iter([Subject::thread(&threads[4])]), &FxHashSet::default(), &snapshot);
        let alone = |plan: &Watched| plan.members.contains(&Subject::thread(&threads[5])) && plan.members.len() == 1;
        assert!(rollback.watched.iter().any(alone));
    }

    /// Threads of a volume sleep while its server reads: their CPU time says nothing of how long
    /// that takes.
    #[test]
    fn on_a_volume_the_servers_time_counts() {
        let served = |seconds: f64| {
            let mut window = window(100);
            (window.threads[0].cpu_s, window.threads[0].served_s) = (0.01, Some(seconds));
            window
        };
        let mut rollback = Rollback::new(1);
        rollback.window(&served(0.49));
        begin(&mut rollback, None, &served(0.49));
        assert_eq!(rollback.window(&served(0.99)), []);
        let unpaid = rollback.window(&served(0.99));
        let why = "200.0 MB of file data per second of CPU time and service in 1 windows before, 100.0 MB in 1 after";
        assert!(unpaid.iter().any(|u| u.why.starts_with(why)), "{unpaid:?}");
    }

    /// The thread that copies reads the file, too, and does so only before and after the windows
    /// that are compared.
    #[test]
    fn threads_that_no_policy_may_move_are_not_watched() {
        let with_copy = |mb: u64| {
            let mut window = window(mb);
            let copy =
                Thread { tid: 9, pid: 9, pinned: Some("is homenode itself".into()), ..window.threads[0].clone() };
            window.threads.push(copy);
            window
        };
        let mut rollback = Rollback::new(1);
        rollback.window(&with_copy(100));
        begin(&mut rollback, None, &with_copy(100));
        assert_eq!(rollback.watched[0].members, [Subject::thread(&window(1).threads[0])].into_iter().collect());
        assert_eq!(sum(&rollback.watched[0].before[0], &rollback.watched[0].members).bytes, 100_000_000);
        // Where nobody else reads it, they are all there is to judge by.
        let mut rollback = Rollback::new(1);
        let alone = || Snapshot { threads: with_copy(100).threads.split_off(1), ..with_copy(100) };
        rollback.window(&alone());
        begin(&mut rollback, None, &alone());
        assert_eq!(rollback.watched[0].members.len(), 1);
    }

    #[test]
    fn a_plan_is_compared_when_its_copies_are_done() {
        let found = run(&[100, 100, 100], 5, &[10, 10, 10, 10, 10, 10, 80, 80, 80]);
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [9]);
        assert!(found[0].1.contains("80.0 MB in 3 after"), "{found:?}");
        assert_eq!(run(&[100, 100, 100], 99, &[10; 50]), []);
    }

    #[test]
    fn what_is_moved_again_is_watched_anew() {
        let mut rollback = Rollback::new(1);
        rollback.window(&window(100));
        begin(&mut rollback, None, &window(1));
        rollback.window(&window(50));
        begin(&mut rollback, None, &window(1));
        assert_eq!(rollback.window(&window(50)), []);
        assert_eq!(rollback.window(&window(50)), []); // as bad as before the second move
        assert!(rollback.watched.is_empty());
    }

    #[test]
    fn what_is_left_of_a_plan_is_watched_when_a_part_of_it_was_put_back() {
        let both = |first: u64, second: u64| {
            let thread = |tid: u32, mb: u64| Thread { pid: tid, cpu_s: 1.0, ..testing::thread(tid, 0, &[(1, mb)], 0) };
            Snapshot { window_s: 1.0, threads: vec![thread(7, first), thread(8, second)], ..Snapshot::default() }
        };
        let pids = |of: &Snapshot| FxHashSet::from_iter([of.threads[0].pid]);
        let run = |second: [u64; 2], after: u64| {
            let mut rollback = Rollback::new(2);
            second.into_iter().for_each(|mb| assert_eq!(rollback.window(&both(100, mb)), []));
            let before = both(100, 100);
            for thread in &before.threads {
                let mv = Move::thread(thread, NodeId(1), Reason::ReadLocality, "");
                rollback.made(&Attempt::new(mv.clone(), About::new(&mv.subject, 0, "")));
            }
            rollback.begin(&before);
            // The service of the first is put back after two bad windows.
            (0..2).for_each(|_| assert_eq!(rollback.window(&both(10, after)), []));
            rollback.put_back(&FxHashSet::from_iter([Subject::thread(&before.threads[0])]), &pids(&before), &before);
            // It is fast again, which says nothing of the second.
            let unpaid: Vec<_> = (0..3).flat_map(|_| rollback.window(&both(1000, after))).collect();
            assert!(rollback.watched.is_empty());
            unpaid.into_iter().flat_map(|plan| plan.moves).map(|mv| mv.subject).collect::<Vec<_>>()
        };
        assert_eq!(run([100, 100], 50), [Subject::thread(&both(0, 0).threads[1])]);
        assert_eq!(run([100, 100], 100), []);
        assert_eq!(run([0, 100], 50), [], "one window before says little");
    }

    /// Shares in a thousand of plans with this effect that are found not to pay. Windows scatter by
    /// `scatter`, carry over a part of the last one, and change by `drift` each.
    fn taken_back(scatter: f64, carried: f64, drift: f64, effect: f64) -> f64 {
        const PLANS: u64 = 4000;
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut normal = || {
            let mut uniform = || {
                seed ^= seed >> 12;
                seed ^= seed << 25;
                seed ^= seed >> 27;
                (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
            };
            (0..12).map(|_| uniform()).sum::<f64>() - 6.0
        };
        let plan = |_: &u64| {
            let mut x = normal();
            let mut work = |n: u32, of: f64| {
                x = carried * x + (1.0 - carried * carried).sqrt() * normal();
                let rate = (1.0 + scatter * x + drift * f64::from(n)).max(0.01) * of;
                Work { bytes: (1e9 * rate) as u64, busy_s: 1.0, ..Work::default() }
            };
            let before: Vec<Work> = (0..5).map(|n| work(n, 1.0)).collect();
            let after: Vec<Work> = (5..11).map(|n| work(n, 1.0 + effect)).collect();
            judge(&before, &after[after.len() - 5..]).is_some()
        };
        (0..PLANS).filter(plan).count() as f64 * 1000.0 / PLANS as f64
    }

    /// What the head of this module and docs/guide.md state.
    #[test]
    fn false_alarms_and_power_are_as_stated() {
        let near = |is: f64, stated: f64, by: f64| assert!((is - stated).abs() <= by, "{is} of 1000, stated {stated}");
        near(taken_back(0.1, 0.0, 0.0, 0.0), 5.0, 4.0);
        near(taken_back(0.1, 0.5, 0.0, 0.0), 32.0, 10.0);
        near(taken_back(0.1, 0.8, 0.0, 0.0), 92.0, 16.0);
        near(taken_back(0.05, 0.0, -0.02, 0.0), 370.0, 30.0);
        near(taken_back(0.1, 0.0, 0.0, -0.2), 470.0, 30.0);
        near(taken_back(0.05, 0.0, 0.0, -0.2), 980.0, 10.0);
        near(taken_back(0.1, 0.0, 0.0, -0.35), 970.0, 10.0);
    }
}
