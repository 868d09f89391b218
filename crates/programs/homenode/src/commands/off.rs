//! The policy of an engine that moves nothing: `run --observe-only`, and the periods of a trial
//! with homenode off.
//!
//! **Problem.** The two arms of a trial must differ by the moves of a policy only. An engine works
//! between windows, writes its journal, and observes less when homenode costs too much. With an
//! engine in one arm only, periods would differ where a policy moves nothing.
//!
//! **Limits.** What the policy itself computes is in its own arm.

use placement::{Plan, Policy, Snapshot};
use topology::Topology;

#[derive(Debug)]
pub struct Off;

impl Policy for Off {
    fn name(&self) -> &'static str {
        "off"
    }

    fn decide(&mut self, _: &Topology, _: &Snapshot) -> Plan {
        Plan::new(self.name())
    }
}
