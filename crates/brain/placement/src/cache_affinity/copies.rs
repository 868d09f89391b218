//! How fast the memory of processes has been copied, as far as the outcomes of moves show it.

use std::collections::BTreeMap;
use topology::ProcessId;

use crate::{Outcome, OutcomeState, Subject};

#[derive(Clone, Debug, Default)]
pub(super) struct Copies {
    /// Of each that runs: the time of the latest window, and the bytes copied until then.
    running: BTreeMap<u32, (f64, u64)>,
    bandwidth: Option<f64>,
}

impl Copies {
    /// Takes in what became of moves in the window that ended at this time.
    pub fn observe(&mut self, now_s: f64, outcomes: &[Outcome]) {
        let mut running = BTreeMap::new();
        for outcome in outcomes {
            let Subject::Process(ProcessId { pid, .. }) = outcome.subject else { continue };
            let OutcomeState::Running { done, .. } = outcome.result else { continue };
            if let Some((then_s, before)) = self.running.get(&pid).filter(|(then_s, _)| *then_s < now_s) {
                let copied = done.saturating_sub(*before) as f64;
                // What waits for its turn, or has just ended, shows no speed.
                if copied > 0.0 {
                    self.bandwidth = Some(copied / (now_s - then_s));
                }
            }
            running.insert(pid, (now_s, done));
        }
        self.running = running;
    }

    /// Bytes/s of the latest copy that was seen to go on.
    pub fn bandwidth(&self) -> Option<f64> {
        self.bandwidth
    }
}
