//! A load that stays the same keeps its placement.
//!
//! **Problem.** A policy that decides each window anew can move threads in circles, each time for a
//! good reason: its own moves change what it sees next. Dwell and cool-down only slow this down.
//!
//! **Approach.** Policies place a load in its first windows. After
//! [`Settle::windows`](crate::settings::Settle) decision periods of the policy without a change,
//! threads and processes stay. Any change that [`placement::load_change`] finds in a busy thread
//! begins a new load. After [`Settle::again_s`](crate::settings::Settle) a load counts as new in
//! any case.
//!
//! Two kinds of moves are still made in a settled load. A move that the policy asked for in time
//! may have had to wait, for the rate limit or after a refusal. And a thread that something else
//! displaced may return to the node it was on, but to no other: otherwise a kernel that spreads a
//! crowd and a policy that fills a free node could empty a node thread by thread. A thread that is
//! displaced in window after window is left there, because the kernel and the policy would never
//! agree.
//!
//! **Limits.** A machine whose busy threads come and go all the time never settles; the other rails
//! have to suffice.

use placement::load_change::{self, Detector};
use placement::{Snapshot, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use topology::NodeId;

use super::{HeldBack, Rail};
use crate::Subject;
use crate::settings::Settle;

/// A thread may be displaced in this many windows and still return.
const DISPLACED: u32 = 3;

/// A thread that something else displaced.
#[derive(Clone, Copy, Debug)]
struct Displaced {
    from: NodeId,
    /// It was not moved since.
    now: bool,
    /// In how many windows.
    windows: u32,
}

/// Whether the load has been the same for long enough.
#[derive(Debug, Default)]
pub struct Settled {
    settings: Settle,
    /// File bytes/s from which on a thread is busy.
    least: f64,
    detector: Detector,
    /// Threads displaced since the load was new.
    displaced: FxHashMap<Subject, Displaced>,
    /// Moves that were asked for in time and wait for something else, in the last window and in
    /// this one.
    owed: FxHashSet<Subject>,
    owing: FxHashSet<Subject>,
    new_since_s: f64,
    /// Windows, and seconds, since the load was new.
    windows: u32,
    seconds: f64,
}

impl Settled {
    pub fn new(settings: &Settle) -> Self {
        Self { settings: settings.clone(), ..Self::default() }.busy_from(load_change::BUSY_BYTES_S)
    }

    /// A thread is busy if it uses at least this many file bytes/s.
    pub fn busy_from(self, least: f64) -> Self {
        Self { least, detector: Detector::new(least), ..self }
    }

    /// Takes a window in that ended at `now` seconds.
    pub fn window(&mut self, snapshot: &Snapshot, now: f64) {
        if self.settings.windows == 0 || snapshot.window_s.is_nan() || snapshot.window_s <= 0.0 {
            return;
        }
        self.owed = std::mem::take(&mut self.owing);
        let busy = |t: &Thread| load_change::busy(t, snapshot.window_s, self.least);
        for (thread, from) in self.detector.window(snapshot, busy) {
            let before = self.displaced.get(&thread).copied().unwrap_or(Displaced { from, now: false, windows: 0 });
            let from = if before.now { before.from } else { from };
            self.displaced.insert(thread, Displaced { from, now: true, windows: before.windows + 1 });
        }
        self.windows += 1;
        self.seconds += snapshot.window_s;
        let changes = self.detector.changes();
        if changes.any() || now - self.new_since_s >= self.settings.again_s {
            tracing::debug!(?changes, "new load");
            self.detector.begin();
            self.displaced.clear();
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

    /// Remembers a move that was asked for in time and has to wait, for its turn or after a
    /// refusal. It may still be made later.
    pub fn owe(&mut self, subject: Subject) {
        if self.settings.windows > 0 {
            self.owing.insert(subject);
        }
    }

    pub fn made(&mut self, subject: Subject) {
        if self.settings.windows == 0 {
            return;
        }
        if let Some(displaced) = self.displaced.get_mut(&subject) {
            displaced.now = false;
        }
        self.detector.moved(subject);
    }

    pub fn parts_made(&mut self, file: &Subject) {
        if self.settings.windows > 0 {
            self.detector.data_moves(file);
        }
    }

    /// A moved thread has ended. It is not just idle.
    pub fn ended(&mut self, subject: &Subject) {
        self.detector.ended(subject);
    }

    #[cfg(test)]
    pub(crate) fn retained(&self) -> usize {
        self.detector.remembered() + self.displaced.len() + self.owed.len() + self.owing.len()
    }
}

#[cfg(test)]
mod tests {
    use placement::{NodeBytes, Thread, testing};
    use topology::ProcessId;

    use super::*;

    /// A thread not seen for this many windows is gone.
    const GONE: u32 = 10;

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
            let now = settled.new_since_s + settled.seconds;
            settled.window(&snapshot, now);
        }
    }

    /// Emulated memory is 200 times as slow: programs on it were no load, and one that began was no
    /// new one.
    #[test]
    fn slow_threads_are_busy_where_the_memory_is_slow() {
        let slow = |tid| {
            let read_bytes = [(NodeId(0), 20_000)].into_iter().collect();
            Thread { pid: tid, cpu_s: 0.0, read_bytes, ..testing::thread(tid, 0, &[], 0) }
        };
        let held = |least: f64| {
            let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 }).busy_from(least);
            after(&mut settled, 5, &[slow(1)]);
            assert!(settled.check(&subject(1), NodeId(0), 0.0).is_err());
            after(&mut settled, 3, &[slow(1), slow(2)]);
            let held = settled.check(&subject(1), NodeId(0), 0.0).is_err();
            after(&mut settled, 9, &[slow(1), slow(2)]);
            let elsewhere = [(NodeId(1), 20_000)].into_iter().collect();
            after(&mut settled, 1, &[Thread { read_bytes: elsewhere, ..slow(1) }, slow(2)]);
            assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).is_err(), held);
            held
        };
        assert_eq!([load_change::BUSY_BYTES_S, load_change::BUSY_BYTES_S / 200.0].map(held), [true, false]);
    }

    /// Threads that were bound to a part of their node stayed there for ten minutes.
    #[test]
    fn cpus_that_come_or_go_make_a_load_new() {
        let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
        let load = [thread(1, 0, 100), thread(2, 1, 100)];
        let mut moves_with = |cpus: &[u32]| {
            for _ in 0..5 {
                let now = settled.new_since_s + settled.seconds;
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
    fn a_window_without_a_length_says_nothing_and_off_is_off() {
        for (windows, window_s) in [(3, 0.0), (3, f64::NAN), (0, 1.0)] {
            let mut settled = Settled::new(&Settle { windows, again_s: 600.0 });
            settled.window(&Snapshot { window_s, threads: vec![thread(1, 0, 100)], ..Snapshot::default() }, 1.0);
            if windows == 0 {
                settled.parts_made(&Subject::File(testing::file(1)));
            }
            assert_eq!((settled.windows, settled.retained()), (0, 0));
        }
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
        after(&mut settled, 26, &load);
        assert_eq!(settled.check(&subject(1), NodeId(0), 10.0), Ok(()));
        after(&mut settled, 574, &load);
        assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).unwrap_err().rail, Rail::Settled);
    }

    #[test]
    fn threads_that_come_go_or_change_make_a_new_load() {
        let load = [thread(1, 0, 100), thread(2, 1, 100)];
        let cases: [(&[Thread], u32); 6] = [
            // As much as before, but of a file on another node.
            (&[thread(1, 0, 100), reader(2, 1, 1, 100)], 1),
            (&[thread(1, 0, 100), thread(2, 1, 100), thread(3, 1, 100)], 1),
            (&[thread(1, 0, 100)], GONE),
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
        for pinned in [None, Some("is homenode itself".to_owned())] {
            let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
            after(&mut settled, 9, &load);
            let [one, two] = load.clone();
            let fresh = pinned.is_none();
            after(&mut settled, 3, &[one, two, Thread { pinned, ..thread(3, 1, 900) }]);
            assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).is_ok(), fresh);
            after(&mut settled, GONE, &load);
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
        settled.made(Subject::Process(ProcessId::new(2, 0)));
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
            let mut retained = Vec::new();
            for tid in 100..1_100 {
                after(&mut settled, 1, &[thread(1, 0, 100), thread(tid, 1, 100)]);
                settled.made(subject(tid));
                settled.owe(subject(tid));
                retained.push(settled.retained());
            }
            after(&mut settled, 1, &[thread(1, 0, 100)]);
            assert!(
                retained[999] <= retained[699],
                "windows {windows}: {} entries, then {}",
                retained[699],
                retained[999]
            );
        }
    }

    #[test]
    fn data_that_drifts_is_no_new_load_but_another_file_is() {
        let mixed = |parts: [u64; 2], ino: u64| {
            let read_bytes = testing::bytes(&[(0, parts[0]), (1, parts[1])]);
            let used =
                placement::FileUse { file: testing::file(ino), read_bytes: read_bytes.clone(), ..Default::default() };
            [Thread { read_bytes, files: vec![used], ..thread(1, 0, 0) }]
        };
        let drifted = |to: u64| {
            let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
            (0..=100).step_by(5).for_each(|share| after(&mut settled, 1, &mixed([100 - share, share], 1)));
            after(&mut settled, 1, &mixed([0, 100], to));
            settled.check(&subject(1), NodeId(0), 0.0).is_ok()
        };
        assert!(!drifted(1));
        assert!(drifted(2));
        // Nor is it one when the copy of a file that we move is done at last, whichever thread it
        // is.
        for (ours, parts) in [(true, false), (false, false), (true, true), (false, true)] {
            let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
            after(&mut settled, 3, &mixed([100, 0], 1));
            let file = Subject::File(testing::file(if ours { 1 } else { 2 }));
            if parts {
                settled.parts_made(&file)
            } else {
                settled.made(file)
            }
            after(&mut settled, 20, &mixed([100, 0], 1));
            after(&mut settled, 1, &mixed([0, 100], 1));
            assert_eq!(settled.check(&subject(1), NodeId(0), 0.0).is_ok(), !ours);
        }
    }

    #[test]
    fn a_rate_about_the_least_that_counts_is_no_new_load() {
        let mut settled = Settled::new(&Settle { windows: 3, again_s: 600.0 });
        for window in 0..20 {
            let reads: NodeBytes = [(NodeId(0), (1 << 20) - 9 + window)].into_iter().collect();
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
            // As a move does that is not remembered any more.
            settled.displaced.get_mut(&subject(1)).unwrap().now = false;
            after(&mut settled, 1, &[thread(1, 0, 100), thread(2, 1, 100)]);
            settled.displaced.get_mut(&subject(1)).unwrap().now = false;
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
