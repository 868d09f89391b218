//! The rails: what keeps a policy that is right on average from doing harm to one thread, or to all
//! at once.
//!
//! **Problem.** A policy that decides from one window alone changes its mind whenever a figure
//! crosses a threshold, and a change of phase can ask for thousands of moves at once. Users of
//! AutoNUMA and of affinity daemons complain of both.
//!
//! **Approach.** Each move passes these rails in turn: it fits the observation; the load has not
//! [`settled`]; its service did not go worse lately ([`crate::guardrail`]); the thread is not left
//! alone after going back and forth ([`history`]); dwell; cool-down after a reversal; back-off
//! after a refusal; a machine-wide token bucket ([`rate`]). Moves pass in plan order, so a scarce
//! token goes to the move that the policy put first. The report names the rail that holds a move
//! back, and why.
//!
//! **Limits.** Memory is bounded: the rails remember at most [`TRACKED_MAX`] threads. They forget a
//! thread as soon as its past cannot hold it back any more, and not earlier. When the table is
//! full, new threads are held back.

pub mod budget;
pub mod history;
pub mod rate;
pub mod settled;

use placement::{Move, Thread};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use topology::{NodeId, Topology};

use crate::{Settings, Subject};
use history::History;
use rate::TokenBucket;

/// Most threads that are remembered: some 10 MB.
pub const TRACKED_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rail {
    /// The plan names a node that is not there, or a move from a node to itself.
    BadPlan,
    /// The thread was not seen in this window.
    NotObserved,
    /// The thread is not where the plan thinks it is.
    Stale,
    /// The snapshot says that no policy may move the thread. Journals have it as `held`, too.
    #[serde(alias = "held")]
    Pinned,
    /// The thread went back and forth and is left alone.
    LeftAlone,
    /// The thread was moved too recently.
    Dwell,
    /// The thread was moved back too recently.
    Cooldown,
    /// Its service went worse after a move and was put back.
    Guardrail,
    /// The move was refused recently.
    Backoff,
    /// The load has been the same for long enough to keep its placement.
    Settled,
    /// Too many moves at once on this machine.
    Rate,
    /// Too many threads are remembered, or too many moves wait.
    Full,
    /// As much as is allowed has been copied in the last 24 hours.
    BytesPerDay,
    DryRun,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    pub rail: Rail,
    pub why: String,
}

impl HeldBack {
    fn new(rail: Rail, why: impl Into<String>) -> Self {
        Self { rail, why: why.into() }
    }
}

#[derive(Debug)]
pub struct Rails {
    settings: Settings,
    threads: FxHashMap<Subject, History>,
    bucket: TokenBucket,
    /// Moves let through in this window: from which node, and to which.
    passed: FxHashMap<Subject, (NodeId, NodeId)>,
    /// How many refused moves of this window may still give their token back.
    refunds: u32,
    now: f64,
}

impl Rails {
    pub fn new(settings: &Settings) -> Self {
        Self {
            bucket: TokenBucket::new(settings.moves_per_s, settings.burst),
            settings: settings.clone(),
            threads: FxHashMap::default(),
            passed: FxHashMap::default(),
            refunds: 0,
            now: f64::NEG_INFINITY,
        }
    }

    /// Starts a window at `now` seconds (which never go back).
    pub fn begin(&mut self, now: f64) {
        self.now = now;
        self.passed.clear();
        self.refunds = self.settings.burst;
        self.bucket.refill(now);
        let settings = &self.settings;
        self.threads.retain(|_, h| h.matters_until(settings) > now);
    }

    /// Whether a move may be made now. Letting it through takes a token.
    pub fn check(&mut self, subject: &Subject, from: NodeId, to: NodeId) -> Result<(), HeldBack> {
        self.may(subject, from, to)?;
        if !self.bucket.take() {
            let why = format!("more than {} moves per second: node {from} → {to} waits", self.settings.moves_per_s);
            return Err(HeldBack::new(Rail::Rate, why));
        }
        self.passed.insert(*subject, (from, to));
        // From now on it counts against the bound. The next window drops it again if the move is
        // not made.
        self.threads.entry(*subject).or_default();
        Ok(())
    }

    /// The same for a move that replaces one which already has a token.
    pub fn check_again(&mut self, subject: &Subject, from: NodeId, to: NodeId) -> Result<(), HeldBack> {
        self.may(subject, from, to)?;
        self.passed.insert(*subject, (from, to));
        Ok(())
    }

    /// Whether all rails but the rate let a move through.
    fn may(&self, subject: &Subject, from: NodeId, to: NodeId) -> Result<(), HeldBack> {
        // A file may come from several nodes, but only to one.
        if self.passed.get(subject).is_some_and(|passed| passed.0 == from || passed.1 != to) {
            return Err(HeldBack::new(Rail::Dwell, "already named in this window"));
        }
        match self.threads.get(subject) {
            Some(history) => history.check(self.now, &self.settings)?,
            None if self.threads.len() >= TRACKED_MAX => {
                return Err(HeldBack::new(Rail::Full, format!("{TRACKED_MAX} threads are being watched already")));
            }
            None => {}
        }
        Ok(())
    }

    /// Remembers that a move was made. Returns a sentence when the thread is left alone from now
    /// on.
    pub fn made(&mut self, subject: &Subject, from: NodeId, to: NodeId) -> Option<String> {
        self.threads.entry(*subject).or_default().made(self.now, from, to, &self.settings)
    }

    /// Remembers that a move was refused, so that it is not tried again at once. Its token is given
    /// back, up to a bound per window: a machine full of refusals must not keep homenode busy.
    pub fn refused(&mut self, subject: &Subject) {
        self.threads.entry(*subject).or_default().refused(self.now);
        self.give_back();
    }

    /// A move did not pay: its subject is left alone for as long as one that went back and forth.
    pub fn did_not_pay(&mut self, subject: &Subject) {
        self.threads.entry(*subject).or_default().did_not_pay(self.now, &self.settings);
    }

    /// Forgets a thread that has ended.
    pub fn gone(&mut self, subject: &Subject) {
        self.threads.remove(subject);
        self.give_back();
    }

    #[cfg(test)]
    pub fn tracked(&self) -> usize {
        self.threads.len()
    }

    /// Gives back the token of a move that was not made.
    pub fn give_back(&mut self) {
        if self.refunds > 0 {
            self.refunds -= 1;
            self.bucket.give_back();
        }
    }
}

/// Whether a move fits the machine and what was observed of its thread.
pub fn fits(topology: &Topology, thread: Option<&Thread>, mv: &Move) -> Result<(), HeldBack> {
    let (from, to) = (mv.from, mv.to);
    if topology.node(to).is_none() {
        return Err(HeldBack::new(Rail::BadPlan, format!("node {to} does not exist")));
    }
    if from == to {
        return Err(HeldBack::new(Rail::BadPlan, format!("node {from} → {to} moves nothing")));
    }
    let Subject::Thread(id) = mv.subject else { return Ok(()) };
    let tid = id.tid;
    let Some(thread) = thread else {
        return Err(HeldBack::new(Rail::NotObserved, format!("thread {tid} was not seen in this window")));
    };
    if thread.pid != mv.pid || (id.start_ns.is_some() && thread.id().start_ns.is_some() && id != thread.id()) {
        return Err(HeldBack::new(Rail::NotObserved, format!("thread {tid} is another thread than the plan means")));
    }
    if thread.node != from {
        return Err(HeldBack::new(Rail::Stale, format!("runs on node {}, not on {from}", thread.node)));
    }
    match &thread.pinned {
        Some(why) => Err(HeldBack::new(Rail::Pinned, why.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use placement::testing::subject as thread;
    use proptest::prelude::*;

    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn rails(change: impl FnOnce(&mut Settings)) -> Rails {
        let mut settings = Settings::default();
        change(&mut settings);
        Rails::new(&settings)
    }

    /// Tries the move at this time; makes it when it is let through.
    fn go(rails: &mut Rails, now: f64, tid: u32, from: NodeId, to: NodeId) -> Result<(), Rail> {
        rails.begin(now);
        rails.check(&thread(tid, 0), from, to).map_err(|h| h.rail)?;
        rails.made(&thread(tid, 0), from, to);
        Ok(())
    }

    #[test]
    fn dwell_then_cooldown_then_left_alone() {
        let mut rails = rails(|s| s.dwell_s = 10.0); // dwell 10, cool-down 60, 3 reversals within 300, alone for 3600
        assert_eq!(go(&mut rails, 0.0, 1, A, B), Ok(()));
        assert_eq!(go(&mut rails, 9.9, 1, B, A), Err(Rail::Dwell));
        assert_eq!(go(&mut rails, 10.0, 1, B, A), Ok(())); // reversal 1
        assert_eq!(go(&mut rails, 20.0, 1, A, B), Err(Rail::Cooldown));
        assert_eq!(go(&mut rails, 69.9, 1, A, B), Err(Rail::Cooldown));
        assert_eq!(go(&mut rails, 70.0, 1, A, B), Ok(())); // reversal 2
        assert_eq!(go(&mut rails, 130.0, 1, B, A), Ok(())); // reversal 3
        assert_eq!(go(&mut rails, 190.0, 1, A, B), Err(Rail::LeftAlone));
        assert_eq!(go(&mut rails, 3729.0, 1, A, B), Err(Rail::LeftAlone));
        assert_eq!(go(&mut rails, 3730.0, 1, A, B), Ok(()));
    }

    #[test]
    fn a_dry_run_does_not_say_that_something_was_moved() {
        for (dry_run, words) in [(false, "was moved 1.0 s ago"), (true, "would have been moved 1.0 s ago")] {
            let mut rails = rails(|s| s.dry_run = dry_run);
            assert_eq!(go(&mut rails, 0.0, 1, A, B), Ok(()));
            rails.begin(1.0);
            let why = rails.check(&thread(1, 0), B, A).unwrap_err().why;
            assert!(why.starts_with(words), "{why}");
        }
    }

    #[test]
    fn going_round_in_a_ring_is_going_back_too() {
        let mut rails = rails(|s| s.cooldown_s = 0.0);
        let ring = [NodeId(0), NodeId(1), NodeId(2)];
        let made =
            (0..100).filter(|i| go(&mut rails, *i as f64 * 11.0, 1, ring[i % 3], ring[(i + 1) % 3]).is_ok()).count();
        assert_eq!(made, 5); // 0→1, 1→2, then three returns: 2→0, 0→1, 1→2
    }

    #[test]
    fn a_node_left_long_ago_and_a_refusal_before_a_move_are_forgotten() {
        let (mut rails, c) = (rails(|s| s.dwell_s = 10.0), NodeId(2));
        assert_eq!([go(&mut rails, 0.0, 1, A, B), go(&mut rails, 200.0, 1, B, c)], [Ok(()), Ok(())]);
        assert_eq!([go(&mut rails, 400.0, 1, c, A), go(&mut rails, 410.0, 1, A, B)], [Ok(()), Ok(())]);
        rails.begin(1000.0);
        rails.refused(&thread(2, 0));
        assert_eq!(go(&mut rails, 1010.0, 2, A, B), Ok(()));
        rails.begin(1311.0);
        assert_eq!(rails.tracked(), 0);
        rails.did_not_pay(&thread(3, 0));
        assert_eq!(go(&mut rails, 4910.0, 3, A, B), Err(Rail::LeftAlone));
        assert_eq!(go(&mut rails, 4911.0, 3, A, B), Ok(()));
    }

    #[test]
    fn reversals_far_apart_are_no_oscillation() {
        let mut rails = rails(|_| {});
        for day in 0..20 {
            let (from, to) = if day % 2 == 0 { (A, B) } else { (B, A) };
            assert_eq!(go(&mut rails, day as f64 * 86_400.0, 1, from, to), Ok(()));
        }
    }

    #[test]
    fn a_burst_is_let_through_in_plan_order_and_the_rest_waits() {
        let mut rails = rails(|s| (s.burst, s.moves_per_s) = (3, 2.0));
        rails.begin(0.0);
        let passed: Vec<u32> = (0..10).filter(|tid| rails.check(&thread(*tid, 0), A, B).is_ok()).collect();
        assert_eq!(passed, [0, 1, 2]);
        rails.begin(1.0); // two tokens more
        let passed: Vec<u32> = (3..10).filter(|tid| rails.check(&thread(*tid, 0), A, B).is_ok()).collect();
        assert_eq!(passed, [3, 4]);
    }

    #[test]
    fn refusals_cost_no_token_and_back_off() {
        let mut rails = rails(|s| (s.burst, s.moves_per_s) = (1, 0.001));
        let mut tried = Vec::new();
        for second in 0..2000 {
            rails.begin(second as f64);
            if rails.check(&thread(1, 0), A, B).is_ok() {
                tried.push(second);
                rails.refused(&thread(1, 0));
            }
        }
        assert_eq!(tried, [0, 10, 30, 70, 150, 310, 630, 1270, 1910]); // 10, 20, 40 … at most 640
    }

    #[test]
    fn a_window_gives_back_no_more_tokens_than_a_burst() {
        let mut rails = rails(|s| (s.burst, s.moves_per_s) = (2, 1.0));
        for window in 0..2 {
            rails.begin(f64::from(window) * 10.0);
            let tids = (0..10).map(|tid| thread(window * 10 + tid, 0));
            let tried = tids.filter(|subject| rails.check(subject, A, B).map(|()| rails.refused(subject)).is_ok());
            assert_eq!(tried.count(), 4);
        }
    }

    #[test]
    fn a_move_that_replaces_one_takes_no_token_and_passes_the_other_rails() {
        let mut rails = rails(|s| (s.burst, s.moves_per_s) = (1, 0.001));
        assert_eq!(go(&mut rails, 0.0, 1, A, B), Ok(()));
        assert_eq!(rails.check(&thread(2, 0), A, B).unwrap_err().rail, Rail::Rate);
        assert_eq!(rails.check_again(&thread(2, 0), A, B), Ok(()));
        rails.begin(1.0);
        assert_eq!(rails.check_again(&thread(1, 0), B, A).unwrap_err().rail, Rail::Dwell);
    }

    #[test]
    fn one_thread_is_named_once_a_window() {
        let mut rails = rails(|s| (s.dwell_s, s.cooldown_s) = (0.0, 0.0));
        rails.begin(1.0);
        rails.check(&thread(1, 0), A, B).unwrap();
        rails.made(&thread(1, 0), A, B);
        assert_eq!(rails.check(&thread(1, 0), B, A).unwrap_err().rail, Rail::Dwell);
    }

    #[test]
    fn a_file_may_come_from_several_nodes_to_one() {
        let (c, file) = (NodeId(2), Subject::File(placement::testing::file(9)));
        let mut rails = rails(|_| {});
        rails.begin(1.0);
        assert_eq!([rails.check(&file, A, B), rails.check(&file, c, B)], [Ok(()), Ok(())]);
        assert_eq!(rails.check(&file, B, c).unwrap_err().rail, Rail::Dwell);
    }

    #[test]
    fn a_later_thread_with_the_same_id_has_a_history_of_its_own() {
        let mut rails = rails(|_| {});
        rails.begin(0.0);
        rails.check(&thread(1, 500), A, B).unwrap();
        rails.made(&thread(1, 500), A, B);
        rails.begin(1.0);
        assert_eq!(rails.check(&thread(1, 500), B, A).unwrap_err().rail, Rail::Dwell);
        assert_eq!(rails.check(&thread(1, 501), B, A), Ok(()));
    }

    #[test]
    fn memory_is_bounded_and_forgets_only_what_no_longer_matters() {
        let mut rails = rails(|s| (s.burst, s.moves_per_s) = (1_000_000, 1e6));
        rails.begin(0.0);
        for tid in 0..TRACKED_MAX as u32 {
            rails.check(&thread(tid, 0), A, B).unwrap();
            rails.made(&thread(tid, 0), A, B);
        }
        rails.begin(1.0);
        assert_eq!(rails.tracked(), TRACKED_MAX);
        assert_eq!(rails.check(&thread(u32::MAX, 0), A, B).unwrap_err().rail, Rail::Full);
        assert_eq!(rails.check(&thread(5, 0), B, A).unwrap_err().rail, Rail::Dwell);
        rails.begin(301.0); // dwell, cool-down and span are over for all
        assert_eq!(rails.tracked(), 0);
        assert_eq!(rails.check(&thread(u32::MAX, 0), A, B), Ok(()));
    }

    proptest! {
        /// Whatever is asked and whenever: no thread is moved twice within the dwell, nor within
        /// the cool-down after a return, and no stretch of time holds more moves than the burst and
        /// the rate allow.
        #[test]
        fn rails_hold_for_any_sequence(
            steps in prop::collection::vec((0.0..30.0f64, 0u32..6, 0u32..3), 1..200),
            dwell in 0.0..40.0f64, cooldown in 0.0..90.0f64, rate in 0.05..2.0f64, burst in 1u32..5,
        ) {
            let mut rails = rails(|s| (s.dwell_s, s.cooldown_s, s.moves_per_s, s.burst) = (dwell, cooldown, rate, burst));
            let mut at = [NodeId(0); 6];
            let mut now = 0.0;
            let mut made: Vec<(f64, usize, NodeId, NodeId)> = Vec::new();
            for (pause, tid, to) in steps {
                now += pause;
                let (from, to) = (at[tid as usize], NodeId(to));
                if from != to && go(&mut rails, now, tid, from, to).is_ok() {
                    at[tid as usize] = to;
                    made.push((now, tid as usize, from, to));
                }
            }
            for tid in 0..6 {
                let own: Vec<_> = made.iter().filter(|m| m.1 == tid).collect();
                for pair in own.windows(2) {
                    prop_assert!(pair[1].0 - pair[0].0 >= dwell - 1e-9 || pair[1].0 == pair[0].0 && dwell == 0.0);
                }
                for three in own.windows(3) {
                    let returned = three[1].3 == three[0].2 && three[1].0 - three[0].0 <= 300.0;
                    prop_assert!(!returned || three[2].0 - three[1].0 >= cooldown - 1e-9);
                }
            }
            for (i, first) in made.iter().enumerate() {
                for (n, last) in made[i..].iter().enumerate() {
                    prop_assert!((n + 1) as f64 <= f64::from(burst) + (last.0 - first.0) * rate + 1e-6);
                }
            }
        }
    }
}
