//! A load that stays the same keeps its placement.
//!
//! **Problem.** A policy that decides each window anew can move threads in circles, each time for a
//! good reason: its own moves change what it sees next. Dwell and cool-down only slow this down.
//!
//! **Approach.** Policies place a load in its first windows. After
//! [`Settle::windows`](crate::settings::Settle) decision periods of the policy without a change,
//! threads and processes stay. The load is new when a busy thread
//!
//! - appears, or has been gone for 10 windows;
//! - starts or stops using files, or turns to data on another node (suddenly, or in another file),
//!   or reads where it wrote;
//! - becomes so much faster or slower that no placement explains it.
//!
//! It is also new when CPUs or nodes come or go: another machine has another placement.
//!
//! Threads that no policy may move do not count: the kernel's, homenode's own, which copy what is
//! moved, and those with an affinity of their own. The effects of our own moves do not count as a
//! change: neither the rates right after them, nor that a process stands still while its memory is
//! copied. Data that drifts to another node bit by bit does not count either, because written data
//! lands on the writer's node. After [`Settle::again_s`](crate::settings::Settle) a load counts as
//! new in any case.
//!
//! Two kinds of moves are still made in a settled load. A move that the policy asked for in time
//! may have had to wait, for the rate limit or after a refusal. And a thread that something else
//! displaced may return to the node it was on, but to no other: otherwise a kernel that spreads a
//! crowd and a policy that fills a free node could empty a node thread by thread. A thread that is
//! displaced in window after window is left there, because the kernel and the policy would never
//! agree.
//!
//! **Limits.** A machine whose busy threads come and go all the time never settles; the other rails
//! have to suffice. At most 300 windows of moved threads that have gone are remembered.

use std::hash::{BuildHasher, BuildHasherDefault};

use placement::{Snapshot, Thread};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use topology::NodeId;

use super::{HeldBack, Rail};
use crate::Subject;
use crate::settings::Settle;

/// A thread is busy from this many file bytes/s, or this share of a CPU, on.
const BUSY_BYTES_S: f64 = 1048576.0;
const BUSY_CPU: f64 = 0.05;
/// A thread not seen for this many windows is gone for good.
const GONE: u64 = 10;
/// A thread does something else if its rate changes by this factor at once (twice the factor if
/// gradually),
const FACTOR: f64 = 8.0;
/// or if the share of reads in its file bytes changes by this much.
const READS: f64 = 0.25;
/// A thread clearly reads from a node if at least this share of its reads does.
const CLEAR: f64 = 0.75;
/// Windows after a move in which rates change because of it, and of a young thread's life in which
/// its rates mean little.
const OURS: u64 = 3;
/// A moved thread may stand still for this many windows, as a process does while its memory is
/// copied.
const STANDING: u64 = 300;
/// A thread turns to other data within this many windows; data that drifts takes longer.
const AT_ONCE: u64 = 3;
/// A thread may be displaced in this many windows and still return.
const DISPLACED: u32 = 3;

/// The behaviour of a busy thread, apart from its place.
#[derive(Clone, Copy, Debug)]
struct Doing {
    bytes_s: f64,
    /// Share of reads.
    reads: f64,
    /// Where most of its reads come from, where that is clear.
    home: Option<NodeId>,
    node: NodeId,
    pid: u32,
    /// The file it reads most of.
    file: Option<u64>,
    /// Windows in which it was last seen, in which its reads last came from `home`, and in which it
    /// was last about as fast.
    seen: u64,
    at_home: u64,
    at_rate: u64,
    /// Since when it is seen without a break.
    since: u64,
    /// It has stood still since we moved it.
    stands: bool,
}

impl Doing {
    fn of(t: &Thread, window_s: f64, seen: u64) -> Option<Self> {
        let (bytes, read) = (t.file_bytes() as f64, t.read_bytes.total() as f64);
        let bytes_s = bytes / window_s;
        let busy = bytes_s >= BUSY_BYTES_S || t.cpu_s >= BUSY_CPU * window_s;
        let reads = if bytes > 0.0 { read / bytes } else { 0.0 };
        let home = t.home().filter(|home| t.read_bytes.get(*home) as f64 >= CLEAR * read);
        let most = t.files.iter().max_by_key(|f| (f.read_bytes.total(), std::cmp::Reverse(&f.file)));
        let file = most.map(|f| file_hash(&f.file));
        let (node, pid) = (t.node, t.pid);
        let (at_home, at_rate, since) = (seen, seen, seen);
        busy.then_some(Self { bytes_s, reads, home, node, pid, file, seen, at_home, at_rate, since, stands: false })
    }

    /// Whether its reads come from where they came from, or their data has drifted.
    fn same_home(&self, before: &Self) -> bool {
        let (Some(now), Some(then)) = (self.home, before.home) else { return true };
        let other_file = self.file.is_some() && before.file.is_some() && self.file != before.file;
        now == then || !(other_file || self.seen <= before.at_home + AT_ONCE)
    }

    fn like(&self, before: &Self) -> bool {
        let busy = |doing: &Self| doing.bytes_s >= BUSY_BYTES_S;
        let at_once = self.seen <= before.at_rate + AT_ONCE;
        self.near(before, if at_once { FACTOR } else { 2.0 * FACTOR })
            && (!busy(self) || !busy(before) || (self.reads - before.reads).abs() < READS && self.same_home(before))
    }

    /// Whether it is less than so many times as fast or slow; little is like nothing.
    fn near(&self, before: &Self, factor: f64) -> bool {
        let rate = |doing: &Self| doing.bytes_s.max(BUSY_BYTES_S / FACTOR);
        let times = rate(self) / rate(before);
        1.0 / factor < times && times < factor
    }
}

fn file_hash(file: &str) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one(file)
}

/// A thread that something else displaced.
#[derive(Clone, Copy, Debug)]
struct Displaced {
    /// Where it was before.
    from: NodeId,
    /// And that was not moved since.
    now: bool,
    /// In how many windows.
    windows: u32,
}

/// Whether the load has been the same for long enough.
#[derive(Debug, Default)]
pub struct Settled {
    settings: Settle,
    threads: FxHashMap<Subject, Doing>,
    /// Threads displaced since the load was new.
    displaced: FxHashMap<Subject, Displaced>,
    /// Moved subjects and the window: threads may appear at their new place some windows later.
    moved: FxHashMap<Subject, u64>,
    /// Files that were moved since the load was new, as [`Doing::file`].
    files: FxHashSet<u64>,
    /// Moves that were asked for in time and wait for something else, in the last window and in
    /// this one.
    owed: FxHashSet<Subject>,
    owing: FxHashSet<Subject>,
    /// The CPUs of each node.
    machine: Vec<(NodeId, Vec<u32>)>,
    window: u64,
    last_move: u64,
    new_since_s: f64,
    /// Windows, and seconds, since the load was new.
    windows: u32,
    seconds: f64,
}

impl Settled {
    /// Nothing seen yet.
    pub fn new(settings: &Settle) -> Self {
        Self { settings: settings.clone(), ..Self::default() }
    }

    /// Takes a window in that ended at `now` seconds.
    pub fn window(&mut self, snapshot: &Snapshot, now: f64) {
        if self.settings.windows == 0 || snapshot.window_s.is_nan() || snapshot.window_s <= 0.0 {
            return;
        }
        self.window += 1;
        self.owed = std::mem::take(&mut self.owing);
        let ours = self.window <= self.last_move + OURS;
        let mut new = now - self.new_since_s >= self.settings.again_s;
        if !self.machine.iter().map(|(id, cpus)| (id, cpus)).eq(snapshot.nodes.iter().map(|n| (&n.id, &n.cpus))) {
            tracing::debug!("new load: CPUs or nodes came or went");
            self.machine = snapshot.nodes.iter().map(|n| (n.id, n.cpus.clone())).collect();
            new = true;
        }
        // A thread knows the id of its process, not when the process started.
        let process = |(subject, at): (&Subject, &u64)| match subject {
            Subject::Process { pid, .. } => Some((*pid, *at)),
            _ => None,
        };
        let processes: FxHashMap<u32, u64> = self.moved.iter().filter_map(process).collect();
        for t in snapshot.threads.iter().filter(|t| t.held.is_none()) {
            let key = Subject::thread(t);
            let Some(mut doing) = Doing::of(t, snapshot.window_s, self.window) else {
                if let Some(before) = self.threads.get_mut(&key) {
                    before.seen = self.window;
                }
                continue;
            };
            // Data that we move comes from elsewhere, when its copy is done.
            doing.home = doing.home.filter(|_| doing.file.is_none_or(|file| !self.files.contains(&file)));
            let Some(before) = self.threads.get_mut(&key) else {
                tracing::debug!(tid = t.tid, "new load: a thread came");
                new = true;
                self.threads.insert(key, doing);
                continue;
            };
            let ours_moved = self.moved.contains_key(&key) || processes.contains_key(&t.pid);
            if doing.node != before.node && !ours_moved && !before.stands {
                let never = Displaced { from: before.node, now: false, windows: 0 };
                let displaced = self.displaced.entry(key).or_insert(never);
                let from = if displaced.now { displaced.from } else { before.node };
                *displaced = Displaced { from, now: true, windows: displaced.windows + 1 };
            }
            let back = std::mem::take(&mut before.stands);
            doing.since = if back { self.window } else { before.since };
            let young = self.window < doing.since + OURS;
            let like = doing.like(before);
            if !like && !ours && !young {
                tracing::debug!(tid = t.tid, ?before, now = ?doing, "new load: a thread does something else");
                new = true;
            }
            // Compared with what it did when the load was new, so that slow changes are seen, too.
            let at_home = if doing.home == before.home { self.window } else { before.at_home };
            let at_rate = if doing.near(before, FACTOR / 2.0) { self.window } else { before.at_rate };
            *before = match like && !ours && !young {
                true => Doing { node: doing.node, seen: doing.seen, since: doing.since, at_home, at_rate, ..*before },
                false => doing,
            };
        }
        let (window, moved) = (self.window, &self.moved);
        for (key, t) in self.threads.iter_mut().filter(|(_, t)| t.seen + 1 == window) {
            let at = moved.get(key).max(processes.get(&t.pid));
            t.stands = at.is_some_and(|at| window <= at + OURS);
        }
        let known = self.threads.len();
        self.threads.retain(|_, t| t.seen + if t.stands { STANDING } else { GONE } > window);
        if self.threads.len() < known {
            tracing::debug!(threads = known - self.threads.len(), "new load: threads are gone");
            new = true;
        }
        self.moved.retain(|_, at| *at + GONE > self.window);
        self.windows += 1;
        self.seconds += snapshot.window_s;
        if new {
            self.displaced.clear();
            self.files.clear();
            (self.new_since_s, self.windows, self.seconds) = (now, 1, snapshot.window_s);
        }
    }

    /// Whether a thread, a process or a file may be moved to a node by a policy that decides every
    /// `period_s` seconds.
    pub fn check(&self, subject: &Subject, to: NodeId, period_s: f64) -> Result<(), HeldBack> {
        let most = self.settings.windows;
        let fresh = self.windows <= most || self.seconds <= period_s * f64::from(most);
        let back = |d: &Displaced| d.now && d.from == to && d.windows <= DISPLACED;
        let displaced = self.displaced.get(subject).is_some_and(back);
        if most == 0 || fresh || displaced || self.owed.contains(subject) {
            return Ok(());
        }
        Err(HeldBack::new(Rail::Settled, format!("the load has been the same for {} windows: it stays", self.windows)))
    }

    /// How many entries are kept.
    #[cfg(test)]
    pub(crate) fn retained(&self) -> usize {
        self.threads.len()
            + self.displaced.len()
            + self.moved.len()
            + self.files.len()
            + self.owed.len()
            + self.owing.len()
    }

    /// A move that might have been made has to wait, for its turn or because it was refused: it may
    /// be made later.
    pub fn owe(&mut self, subject: Subject) {
        if self.settings.windows > 0 {
            self.owing.insert(subject);
        }
    }

    /// A move was made.
    pub fn made(&mut self, subject: Subject) {
        if self.settings.windows == 0 {
            return;
        }
        self.last_move = self.window;
        if let Subject::File { file, .. } = &subject {
            self.files.insert(file_hash(file));
        }
        if let Some(displaced) = self.displaced.get_mut(&subject) {
            displaced.now = false;
        }
        self.moved.insert(subject, self.window);
    }

    /// A moved thread has ended: it does not merely stand still.
    pub fn ended(&mut self, subject: &Subject) {
        if let Some(doing) = self.threads.get_mut(subject) {
            doing.stands = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use placement::{NodeBytes, testing};

    use super::*;

    fn thread(tid: u32, node: u32, mb: u64) -> Thread {
        reader(tid, node, 0, mb)
    }

    fn subject(tid: u32) -> Subject {
        testing::subject(tid, u64::from(tid))
    }

    fn reader(tid: u32, node: u32, from: u32, mb: u64) -> Thread {
        Thread { pid: tid, cpu_s: 0.5, ..testing::thread(tid, node, &[(from, mb)], 0) }
    }

    fn after(settled: &mut Settled, windows: u32, threads: &[Thread]) {
        for _ in 0..windows {
            let snapshot = Snapshot { window_s: 1.0, threads: threads.to_vec(), ..Snapshot::default() };
            let now = settled.window as f64 + 1.0;
            settled.window(&snapshot, now);
        }
    }

    /// Threads that were bound to a part of their node stayed there for ten minutes.
    #[test]
    fn cpus_that_come_or_go_make_a_load_new() {
        let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
        let load = [thread(1, 0, 100), thread(2, 1, 100)];
        let mut moves_with = |cpus: &[u32]| {
            for _ in 0..5 {
                let now = settled.window as f64 + 1.0;
                let node = placement::NodeLoad { cpus: cpus.to_vec(), ..placement::NodeLoad::default() };
                let (nodes, threads) = (vec![node], load.to_vec());
                settled.window(&Snapshot { window_s: 1.0, nodes, threads, ..Snapshot::default() }, now);
                if settled.check(&subject(1), NodeId(0), 0.0).is_ok() {
                    continue;
                }
                return settled.windows;
            }
            panic!("never settled")
        };
        assert_eq!([moves_with(&[0, 1]), moves_with(&[0, 1])], [4, 5]);
        assert_eq!([moves_with(&[0]), moves_with(&[0, 1])], [4, 4]);
    }

    #[test]
    fn a_load_that_stays_the_same_is_left_alone_after_its_windows() {
        let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
        let load = [thread(1, 0, 100), thread(2, 1, 100)];
        after(&mut settled, 3, &load);
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0), Ok(()));
        after(&mut settled, 1, &load);
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).unwrap_err().rail, Rail::Settled);
        // A policy that decides every 10 s has ten times as long.
        assert_eq!(settled.check(&subject(1), NodeId(0), 10.0), Ok(()));
        after(&mut settled, 600, &load);
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).unwrap_err().rail, Rail::Settled);
    }

    #[test]
    fn threads_that_come_go_or_change_make_a_new_load() {
        let load = [thread(1, 0, 100), thread(2, 1, 100)];
        let cases: [(&[Thread], u32); 6] = [
            // As much as before, but of a file on another node.
            (&[thread(1, 0, 100), reader(2, 1, 1, 100)], 1),
            (&[thread(1, 0, 100), thread(2, 1, 100), thread(3, 1, 100)], 1),
            (&[thread(1, 0, 100)], GONE as u32),
            (&[thread(1, 0, 100), thread(2, 1, 900)], 1),
            (&[thread(1, 0, 100), thread(2, 1, 0)], 1),
            (&[thread(1, 0, 300), thread(2, 1, 60)], 0), // neither is eight times
        ];
        for (then, windows) in cases {
            let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
            after(&mut settled, 9, &load);
            after(&mut settled, windows.max(1), then);
            assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).is_ok(), windows > 0, "{then:?}");
        }
    }

    /// Each copy has a thread, so each move of data was followed by ten windows in which everything
    /// might move.
    #[test]
    fn threads_that_no_policy_may_move_make_no_new_load() {
        let load = [thread(1, 0, 100), thread(2, 1, 100)];
        for held in [None, Some("is homenode itself".to_owned())] {
            let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
            after(&mut settled, 9, &load);
            let [one, two] = load.clone();
            let fresh = held.is_none();
            after(&mut settled, 3, &[one, two, Thread { held, ..thread(3, 1, 900) }]);
            assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).is_ok(), fresh);
            after(&mut settled, GONE as u32, &load);
            assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).is_ok(), fresh);
        }
    }

    #[test]
    fn what_a_move_makes_of_rates_is_no_new_load() {
        let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
        after(&mut settled, 3, &[thread(1, 1, 100)]);
        settled.made(subject(1));
        after(&mut settled, 1, &[thread(1, 0, 5000)]);
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).unwrap_err().rail, Rail::Settled);
    }

    #[test]
    fn a_process_that_stands_still_after_our_move_is_not_gone_and_not_new() {
        let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
        let load = [thread(1, 0, 100), thread(2, 1, 100)];
        after(&mut settled, 2, &load);
        settled.made(Subject::Process { pid: 2, start: 0 });
        after(&mut settled, 40, &load[..1]);
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).unwrap_err().rail, Rail::Settled);
        after(&mut settled, 1, &[thread(1, 0, 100), thread(2, 0, 3)]); // it ran at the end of the window only
        after(&mut settled, 9, &[thread(1, 0, 100), thread(2, 0, 100)]);
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).unwrap_err().rail, Rail::Settled);
    }

    #[test]
    fn a_moved_thread_that_never_comes_back_is_forgotten() {
        for windows in [0, 3] {
            let mut settled = Settled::new(&Settle { windows, again_s: 600.0 });
            let mut held = Vec::new();
            for tid in 100..1_100 {
                after(&mut settled, 1, &[thread(1, 0, 100), thread(tid, 1, 100)]);
                settled.made(subject(tid));
                settled.owe(subject(tid));
                held.push(settled.retained());
            }
            after(&mut settled, 1, &[thread(1, 0, 100)]);
            assert!(held[999] <= held[699], "windows {windows}: {} entries, then {}", held[699], held[999]);
        }
    }

    #[test]
    fn data_that_drifts_is_no_new_load_but_another_file_is() {
        let mixed = |parts: [u64; 2], file: &str| {
            let read_bytes = testing::bytes(&[(0, parts[0]), (1, parts[1])]);
            let used = placement::FileUse { file: file.into(), read_bytes: read_bytes.clone(), ..Default::default() };
            [Thread { read_bytes, files: vec![used], ..thread(1, 0, 0) }]
        };
        let drifted = |to: &str| {
            let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
            (0..=100).step_by(5).for_each(|share| after(&mut settled, 1, &mixed([100 - share, share], "a")));
            after(&mut settled, 1, &mixed([0, 100], to));
            settled.check(&subject(1), NodeId(0), 0.0).is_ok()
        };
        assert!(!drifted("a"));
        assert!(drifted("b"));
        // Nor is it one when the copy of a file that we move is done at last, whichever thread it
        // is.
        for ours in [true, false] {
            let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
            after(&mut settled, 3, &mixed([100, 0], "a"));
            settled.made(Subject::File { file: if ours { "a" } else { "other" }.into(), generation: 0 });
            after(&mut settled, 20, &mixed([100, 0], "a"));
            after(&mut settled, 1, &mixed([0, 100], "a"));
            assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).is_ok(), !ours);
        }
    }

    #[test]
    fn a_rate_about_the_least_that_counts_is_no_new_load() {
        let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
        for window in 0..20 {
            let reads: NodeBytes = [(NodeId(0), BUSY_BYTES_S as u64 - 9 + window)].into_iter().collect();
            after(&mut settled, 1, &[Thread { read_bytes: reads, ..thread(1, 0, 0) }]);
        }
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).unwrap_err().rail, Rail::Settled);
    }

    #[test]
    fn a_thread_displaced_in_window_after_window_stays_there() {
        let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
        after(&mut settled, 9, &[thread(1, 0, 100), thread(2, 1, 100)]);
        let mut brought_back = 0;
        for _ in 0..20 {
            after(&mut settled, 1, &[thread(1, 1, 100), thread(2, 1, 100)]);
            brought_back += u32::from(settled.check(&subject(1), NodeId(0), 0.0).is_ok());
            settled.displaced.get_mut(&subject(1)).unwrap().now = false; // as a move does that is not remembered any more
            after(&mut settled, 1, &[thread(1, 0, 100), thread(2, 1, 100)]);
        }
        assert!((1..=DISPLACED).contains(&brought_back), "{brought_back}");
    }

    #[test]
    fn a_displaced_thread_may_return_to_where_it_was() {
        let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
        after(&mut settled, 9, &[thread(1, 0, 100), thread(2, 1, 100)]);
        after(&mut settled, 1, &[thread(1, 1, 100), thread(2, 1, 100)]);
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0), Ok(()));
        // To where it was: what was away from a third node's data before is so still.
        assert_eq!(settled.check(&subject(1), NodeId(2), 0.0).unwrap_err().rail, Rail::Settled);
        assert_eq!(settled.check(&subject(2), NodeId(0), 0.0).unwrap_err().rail, Rail::Settled);
        settled.made(subject(1));
        after(&mut settled, 9, &[thread(1, 0, 100), thread(2, 1, 100)]); // back: not by others
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).unwrap_err().rail, Rail::Settled);
    }
}
