//! Moves that copy: which run, which wait, and how much they may copy.
//!
//! **Problem.** A move of a file or of a process's memory takes seconds to hours. Many at once
//! would take the bandwidth of the load that they are for, and persistent memory wears out by
//! writing.
//!
//! **Approach.** A plane copies in the background and reports [`Progress`]. [`Jobs`] keeps the few
//! that run, a bounded queue of those that wait, and the bytes copied in the last 24 hours
//! ([`Spent`]). A rule's moves may take twice as many places of the queue as are free, so that none
//! takes it from others.
//!
//! **Limits.** The count of the last 24 hours begins anew with each start of homenode (not with
//! each engine: [`Spent`] can be handed on). A full queue refuses further moves.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use placement::{Move, Subject};
use rustc_hash::FxHashMap;
use serde::Serialize;
use topology::NodeId;

use crate::attempt::Attempt;
use crate::plane::JobId;

/// Most moves that wait. Two thirds are one rule's: what two copies at a time finish in 10 minutes
/// if each takes a tenth of a second.
pub(crate) const QUEUE_MAX: usize = 18_000;

/// A job as [`crate::WindowReport`] shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobReport {
    pub subject: Subject,
    /// Its name: of a process, or the path of a file.
    pub name: String,
    pub from: NodeId,
    pub to: NodeId,
    /// Bytes to move.
    pub bytes: u64,
    /// Of these, in place.
    pub done: u64,
    /// Bytes that could not be moved.
    pub failed: u64,
    /// Bytes/s since the last window.
    pub rate: f64,
}

/// A move that copies.
#[derive(Debug)]
pub(crate) struct Running {
    pub attempt: Attempt,
    /// On the snapshots' clock.
    pub started_s: f64,
    pub polled_s: f64,
    pub bytes: u64,
    pub done: u64,
    /// Bytes that were copied: those in place before are left out.
    pub copied: u64,
    pub failed: u64,
    pub rate: f64,
    /// Tenths of the copy that are in the journal.
    pub tenths: u64,
    /// Why the engine has stopped it.
    pub stopped: Option<String>,
}

/// A move that waits until others have been copied.
#[derive(Debug)]
pub(crate) struct Queued {
    pub attempt: Attempt,
    pub since_s: f64,
}

impl Queued {
    /// Whether this move and another one exclude each other. A process goes to one node. A file,
    /// too, but it may come from several. A move that takes back an earlier one gives way to none.
    fn excludes(&self, mv: &Move) -> bool {
        let own = &self.attempt.mv;
        let parts = mv.subject.is_file() && own.to == mv.to && own.from != mv.from;
        own.subject == mv.subject && !parts && !self.attempt.back
    }
}

#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub running: BTreeMap<JobId, Running>,
    queue: VecDeque<Queued>,
    /// How many moves of each subject wait.
    of: FxHashMap<Subject, usize>,
    /// How many of each rule.
    of_rule: FxHashMap<Option<Arc<str>>, usize>,
    pub spent: Spent,
}

impl Jobs {
    /// A prepared move has begun to copy.
    pub fn begin(&mut self, attempt: Attempt, now: f64) {
        let Some(job) = attempt.job else { return };
        let attempt = Attempt { place: None, undo: Some(Vec::new()), ..attempt };
        let running = Running {
            attempt,
            started_s: now,
            polled_s: now,
            bytes: 0,
            done: 0,
            copied: 0,
            failed: 0,
            rate: 0.0,
            tenths: 0,
            stopped: None,
        };
        self.running.insert(job, running);
    }

    /// The move that copies this subject, of which there is one at a time.
    pub fn copies(&self, subject: &Subject) -> Option<&Move> {
        self.running.values().map(|running| &running.attempt.mv).find(|mv| mv.subject == *subject)
    }

    /// Whether a move of this subject waits to be taken back.
    pub fn goes_back(&self, subject: &Subject) -> bool {
        self.of(subject).any(|queued| queued.attempt.back)
    }

    fn of(&self, subject: &Subject) -> impl Iterator<Item = &Queued> {
        let any = self.of.contains_key(subject);
        self.queue.iter().filter(move |queued| any && queued.attempt.mv.subject == *subject)
    }

    /// The move that waits and that this one would replace, or repeat.
    pub fn waits(&self, mv: &Move) -> Option<&Move> {
        self.of(&mv.subject).find(|queued| queued.excludes(mv)).map(|queued| &queued.attempt.mv)
    }

    /// Adds a move to the queue, in the place of those that it excludes, which are returned.
    /// `None`: the queue is full, or its rule's share of it.
    #[must_use = "a move that finds no place is not made"]
    pub fn enqueue(&mut self, attempt: Attempt, now: f64) -> Option<Vec<Attempt>> {
        let mut replaced = Vec::new();
        let mut place = self.queue.len();
        while !attempt.back
            && self.of.contains_key(&attempt.mv.subject)
            && let Some(at) = self.queue.iter().position(|other| other.excludes(&attempt.mv))
        {
            place = place.min(at);
            replaced.extend(self.take(at).map(|queued| queued.attempt));
        }
        let of_rule = self.of_rule.entry(attempt.rule.clone()).or_default();
        if replaced.is_empty() && *of_rule >= 2 * QUEUE_MAX.saturating_sub(self.queue.len()) {
            return None;
        }
        *of_rule += 1;
        *self.of.entry(attempt.mv.subject).or_default() += 1;
        let attempt = Attempt { place: None, passed: false, ..attempt };
        self.queue.insert(place.min(self.queue.len()), Queued { attempt, since_s: now });
        Some(replaced)
    }

    /// The moves that wait. The one that has waited longest comes first.
    pub fn queue(&self) -> &VecDeque<Queued> {
        &self.queue
    }

    /// Takes a move out of the queue, by its place.
    pub fn take(&mut self, at: usize) -> Option<Queued> {
        let queued = self.queue.remove(at)?;
        one_less(&mut self.of, &queued.attempt.mv.subject);
        one_less(&mut self.of_rule, &queued.attempt.rule);
        Some(queued)
    }

    /// The rules whose moves wait.
    pub fn rules(&self) -> impl Iterator<Item = Option<&str>> {
        self.of_rule.keys().map(Option::as_deref)
    }

    pub fn clear(&mut self) {
        self.queue.clear();
        self.of.clear();
        self.of_rule.clear();
    }

    pub fn report(&self) -> Vec<JobReport> {
        let report = |r: &Running| JobReport {
            subject: r.attempt.mv.subject,
            name: r.attempt.about.comm.clone(),
            from: r.attempt.mv.from,
            to: r.attempt.mv.to,
            bytes: r.bytes,
            done: r.done,
            failed: r.failed,
            rate: r.rate,
        };
        self.running.values().map(report).collect()
    }
}

fn one_less<K: Eq + Hash>(counts: &mut FxHashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Bytes copied in the last 24 hours, by the hour.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    hours: VecDeque<(u64, u64)>,
}

const HOUR_S: f64 = 3600.0;
const DAY_HOURS: u64 = 24;

impl Spent {
    pub(crate) fn add(&mut self, now_s: f64, bytes: u64) {
        let hour = (now_s / HOUR_S) as u64;
        match self.hours.back_mut() {
            Some(last) if last.0 == hour => last.1 = last.1.saturating_add(bytes),
            _ => self.hours.push_back((hour, bytes)),
        }
        self.hours.retain(|h| h.0 + DAY_HOURS > hour);
    }

    /// Bytes copied in the 24 hours until now, counted in whole hours.
    pub(crate) fn day(&self, now_s: f64) -> u64 {
        let hour = (now_s / HOUR_S) as u64;
        let within = self.hours.iter().filter(|h| h.0 + DAY_HOURS > hour);
        within.fold(0, |sum, h| sum.saturating_add(h.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_24_hours_and_keeps_25_entries_at_most() {
        let mut spent = Spent::default();
        for minute in 0..60 * 24 * 30 {
            spent.add(f64::from(minute) * 60.0, 1);
            assert!(spent.hours.len() <= 25);
        }
        let end = f64::from(60 * 24 * 30 - 1) * 60.0;
        assert_eq!(spent.day(end), 60 * 24);
        assert_eq!(spent.day(end + 12.0 * HOUR_S), 60 * 12);
        assert_eq!(spent.day(end + 24.0 * HOUR_S), 0);
    }
}
