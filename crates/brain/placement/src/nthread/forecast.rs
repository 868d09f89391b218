//! The effect of a plan: remote share, controllers and CPUs, before and after its moves.
//!
//! **Problem.** A person decides on "would cut the remote share to 3 %, node 0 controller 41 % → 44
//! %", not on a list of moves.
//!
//! **Approach.** The forecast starts from the observed loads and moves the writes and CPU time of
//! each moving thread. Reads stay with the data.
//!
//! **Limits.** The forecast assumes that each thread continues as in this window; threads do not
//! speed up when their reads become local.

use super::state::State;
use crate::load::Machine;
use crate::{NodeForecast, Prediction, Snapshot};

/// Forecasts the effect of the moves in `state`.
pub(super) fn predict(machine: &Machine, snapshot: &Snapshot, state: &State) -> Prediction {
    let mut after = state.observed.clone();
    let (mut all, mut remote_before) = (0u64, 0u64);
    for thread in &snapshot.threads {
        all = all.saturating_add(thread.read_bytes.total());
        remote_before = remote_before.saturating_add(thread.remote_bytes());
    }
    let mut remote_after = remote_before;
    for c in state.candidates.iter().filter(|c| c.place != c.node) {
        let thread = &snapshot.threads[c.thread];
        for (node, bytes) in thread.write_bytes.iter() {
            if let Some(node) = machine.index(node) {
                after.writes[node] = after.writes[node].saturating_sub(bytes);
            }
        }
        after.cpu[c.node] = after.cpu[c.node].saturating_sub(c.used);
        after.add(machine, c.place, c.writes, c.cpu);
        remote_after = remote_after.saturating_sub(thread.remote_bytes());
        remote_after = remote_after.saturating_add(c.reads - thread.read_bytes.get(machine.id(c.place)).min(c.reads));
    }
    let share = |remote: u64| (all > 0).then(|| remote as f64 / all as f64);
    let before = &state.observed;
    Prediction {
        remote_share_before: share(remote_before),
        remote_share_after: share(remote_after),
        nodes: (0..machine.len())
            .map(|n| NodeForecast {
                node: machine.id(n),
                controller_before: machine.controller_fraction(n, before.controller(n)),
                controller_after: machine.controller_fraction(n, after.controller(n)),
                cpu_before: machine.cpu_fraction(n, before.cpu[n]),
                cpu_after: machine.cpu_fraction(n, after.cpu[n]),
            })
            .collect(),
    }
}
