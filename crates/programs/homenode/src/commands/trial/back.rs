//! Sends threads back to the nodes from which a period has moved them.
//!
//! **Problem.** A thread whose affinity is restored may run anywhere again, so it stays where it is
//! until the kernel's balancing has a reason. The next period, with homenode off, would see the
//! placement of the one before.
//!
//! **Approach.** One more window with a policy that only moves such threads back, by an engine of
//! its own: its moves are written down before they are made, and undone at once, like all others.
//!
//! **Limits.** A thread that reads nothing in that window, or sleeps through it, stays. Of a
//! process that was moved as a whole, memory goes back, and its threads stay. At the end of a trial
//! that is cut short, threads stay too: there is no next period, and they may run anywhere.

use std::collections::BTreeMap;

use engine::WindowReport;
use placement::{Move, Plan, Policy, Reason, Snapshot, Subject};
use topology::{NodeId, Topology};

use super::outcome::was_made;

/// Where threads were before the first move of each.
#[derive(Clone, Debug, Default)]
pub struct Back(BTreeMap<Subject, NodeId>);

impl Back {
    /// Notes the moves of a window.
    pub fn note(&mut self, report: &WindowReport) {
        let made = report.outcomes.iter().filter(|outcome| was_made(&outcome.result)).map(|outcome| &outcome.mv);
        for mv in made.filter(|mv| mv.tid().is_some() && mv.from != mv.to) {
            self.0.entry(mv.subject).or_insert(mv.from);
        }
    }

    /// Whether there is nothing to send back.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Policy for Back {
    fn name(&self) -> &'static str {
        "back"
    }

    fn decide(&mut self, _: &Topology, snapshot: &Snapshot) -> Plan {
        let mut plan = Plan::new(self.name());
        for thread in snapshot.threads.iter().filter(|thread| thread.pinned.is_none()) {
            if let Some(home) = self.0.get(&Subject::thread(thread)).filter(|home| **home != thread.node) {
                let why = format!("it was on node {home} before the trial moved it");
                plan.moves.push(Move::thread(thread, *home, Reason::ReadLocality, why));
            }
        }
        plan
    }
}
