//! What `homenode status` shows: the rules of a daemon, what each applies to, its last reload, and
//! why nothing moves.
//!
//! **Approach.** The daemon adds each window to a [`Status`], which is part of the file that
//! everybody may read ([`crate::totals`]): it names services and rules, no files and no threads.
//!
//! **Limits.** Moves of files count for no rule, so what they win is not shown. Services that a
//! rule ignores are not seen, so their rule has none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::SystemTime;

use command::rules::Service;
use engine::{MoveEvent, WindowReport};
use placement::flow::Sums;
use placement::{Subject, Thread};

use serde::{Deserialize, Serialize};

use crate::services;

/// Services of a rule that are named.
const NAMED: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// When the daemon began, in seconds since 1970.
    pub since_unix_s: f64,
    /// Rules in their order; empty: there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleStatus>,
    /// Control groups whose owners have chosen a policy that does not count, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Threads that the last window left in place or held back, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stays: BTreeMap<String, u64>,
    /// How often rules were read again.
    #[serde(default)]
    pub reloads: u64,
    /// The last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload: Option<Reload>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStatus {
    pub rule: String,
    /// `ignore`, `observe` or the policy.
    pub policy: String,
    /// Threads of the last window that it applies to.
    pub threads: u64,
    /// Services that it applied to lately, the first twenty by name.
    pub services: Vec<String>,
    /// Moves of threads and processes that were made since the daemon began.
    pub moves: u64,
    /// What its threads read from the daemon's start until the rule's first move.
    #[serde(default)]
    pub before: Sums,
    /// What they read in the last window with any, after that move.
    #[serde(default)]
    pub now: Sums,
}

impl RuleStatus {
    /// Adds a window, at whose end so many moves were made.
    fn add(&mut self, read: Sums, moves: u64) {
        if self.moves == 0 {
            self.before.add(read);
        } else if read.read_bytes > 0 {
            self.now = read;
        }
        self.moves += moves;
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reload {
    /// When homenode began to read its files.
    pub unix_s: f64,
    /// Why the rules stayed as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What has changed and needs a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub later: Vec<String>,
}

/// Seconds since 1970.
pub fn now_s() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64())
}

impl Status {
    pub fn begun() -> Self {
        Self { since_unix_s: now_s(), ..Self::default() }
    }

    /// Takes these rules; a rule that was there keeps what it has moved.
    pub fn rule(&mut self, rules: &[Service]) {
        let before = std::mem::take(&mut self.rules);
        let rule = |service: &Service| {
            let rule = service.name().to_string();
            let kept = before.iter().find(|kept| kept.rule == rule).cloned().unwrap_or_default();
            RuleStatus { policy: service.says().to_owned(), rule, threads: 0, services: Vec::new(), ..kept }
        };
        self.rules = rules.iter().map(rule).collect();
    }

    pub fn reloaded(&mut self, unix_s: f64, result: Result<Vec<String>, String>) {
        self.reloads += 1;
        let (error, later) = result.map_or_else(|error| (Some(error), Vec::new()), |later| (None, later));
        self.reload = Some(Reload { unix_s, error, later });
    }

    pub(crate) fn window(&mut self, report: &WindowReport) {
        self.stays.clear();
        self.refused.clone_from(&report.snapshot.refused);
        let held = report.outcomes.iter().filter_map(|outcome| match &outcome.result {
            MoveEvent::HeldBack { rail, .. } => Some(format!("{rail:?}")),
            MoveEvent::Refused { reason, .. } => Some(reason.clone()),
            _ => None,
        });
        let declined = report.plan.declined.iter().map(|declined| declined.reason.clone());
        declined.chain(held).for_each(|reason| *self.stays.entry(reason).or_default() += 1);
        if self.rules.is_empty() {
            return;
        }
        let threads = &report.snapshot.threads;
        let by_pid: HashMap<u32, &Thread> = threads.iter().map(|thread| (thread.pid, thread)).collect();
        let mut made: HashMap<&str, u64> = HashMap::new();
        for outcome in &report.outcomes {
            let pid = match outcome.mv.subject {
                Subject::File(_) => continue,
                _ => outcome.mv.pid,
            };
            let rule = by_pid.get(&pid).and_then(|thread| thread.rule.as_deref());
            if let (Some(rule), MoveEvent::Applied | MoveEvent::Started) = (rule, &outcome.result) {
                *made.entry(rule).or_default() += 1;
            }
        }
        for rule in &mut self.rules {
            let of = threads.iter().filter(|thread| thread.rule.as_deref() == Some(&*rule.rule));
            let mut services: BTreeSet<String> = BTreeSet::new();
            rule.threads = 0;
            let mut read = Sums::default();
            for thread in of {
                rule.threads += 1;
                read.add(Sums::of_thread(thread));
                if services.len() < NAMED {
                    services.extend(thread.group.as_deref().map(services::name));
                }
            }
            if rule.threads > 0 {
                rule.services = services.into_iter().collect();
            }
            rule.add(read, made.get(&*rule.rule).copied().unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rule_read_before_its_first_move_stands_beside_what_it_reads_now() {
        let read = |read_bytes, remote_bytes| Sums { read_bytes, remote_bytes, ..Sums::default() };
        let mut rule = RuleStatus::default();
        rule.add(read(100, 80), 0);
        rule.add(read(100, 100), 2); // the window after which threads were moved
        assert_eq!((rule.before, rule.now.remote_share()), (read(200, 180), None));
        rule.add(read(50, 5), 1);
        rule.add(read(0, 0), 0);
        assert_eq!((rule.before, rule.now, rule.moves), (read(200, 180), read(50, 5), 3));
    }
}
