//! Step 3, contention for a memory controller (NThread III-C1), the first priority.
//!
//! **Problem.** With every thread on the node of its data, one node's controller may have to carry
//! most of the traffic. The data and its reads stay where they are; writes land where the thread
//! runs.
//!
//! **Approach.** Node H is overloaded when its load (Eq. 1) exceeds 80 % of its capacity and the
//! load of each other node is below half of H's. At most one node can be overloaded. The step takes
//! H's threads by falling write ratio (Eq. 2) and offers each the node with the most room,
//! `D_migrate_N = (BW_N − BW_average) × W` (Eq. 3). The thread moves if the node still has room
//! afterwards, `D_migrate_N + D_write_i ≤ 0` (Eq. 4). The step ends when H has no surplus,
//! `D_migrate_H ≤ 0`.
//!
//! Where the paper is silent: a thread that fits nowhere is skipped and the next is tried. Ties of
//! write ratio are broken by tid, ties of load by distance from H, then by id. A thread that writes
//! nothing does not move, because its move would relieve no node. A node of unknown bandwidth
//! cannot be judged overloaded, but it counts and takes threads like any other. Nodes without
//! memory have no controller; the average is over the nodes that have one.

use super::order;
use super::state::{Candidate, Contention, Relief};
use crate::Snapshot;
use crate::load::{Loads, Machine};

/// Returns the overloaded node, if there is one.
pub(super) fn overloaded(machine: &Machine, loads: &Loads) -> Option<usize> {
    let (mut most, mut second) = (None::<(u64, usize)>, None::<u64>);
    for node in machine.controllers() {
        let load = loads.controller(node);
        match most {
            Some((least, _)) if load <= least => second = second.max(Some(load)),
            _ => {
                second = second.max(most.map(|(load, _)| load));
                most = Some((load, node));
            }
        }
    }
    // There is no second node to move threads to.
    let ((load, node), second) = (most?, second?);
    let limit = machine.controller_limit[node]?;
    (load > limit && u128::from(second) * 2 < u128::from(load)).then_some(node)
}

/// Describes the relief that [`relieve`] provides, for the moves' reasons.
pub(super) fn relief(machine: &Machine, loads: &Loads, node: usize) -> Relief {
    let load = machine.controller_fraction(node, loads.controller(node)).unwrap_or(0.0);
    Relief { kind: Contention::Controller, node, load }
}

/// Moves threads away from `h` until it has no surplus over the average. With `keep_sharers`,
/// threads that share a file stay.
pub(super) fn relieve(
    machine: &Machine,
    snapshot: &Snapshot,
    loads: &mut Loads,
    candidates: &mut [Candidate],
    h: usize,
    relief: u32,
    keep_sharers: bool,
) {
    let total: u128 = machine.controllers().map(|n| u128::from(loads.controller(n))).sum();
    let nodes = machine.controllers().count() as u128;
    // D_migrate ≤ 0 without dividing: load ≤ total / nodes.
    let within_average = |load: u64| u128::from(load) * nodes <= total;

    let mut order: Vec<_> = candidates
        .iter()
        .enumerate()
        .filter(|(_, c)| machine.memory[c.place] == h && c.writes > 0)
        .map(|(i, c)| order::key(!write_ratio(c).to_bits(), c.tid, i))
        .collect();
    order.sort_unstable();
    for i in order.into_iter().map(order::index) {
        if within_average(loads.controller(h)) {
            break;
        }
        let c = &mut candidates[i];
        if keep_sharers && c.shares {
            c.passed_over = true;
            continue;
        }
        let allowed = snapshot.threads[c.thread].allowed_nodes.iter().filter_map(|id| machine.index(*id));
        let to = allowed
            .filter(|n| *n != h && machine.cores[*n] > 0 && machine.memory[*n] == *n)
            .min_by_key(|n| (loads.controller(*n), machine.distance(h, *n), *n));
        if let Some(to) = to.filter(|n| within_average(loads.controller(*n).saturating_add(c.writes))) {
            loads.remove(machine, c.place, c.writes, c.cpu);
            loads.add(machine, to, c.writes, c.cpu);
            c.place = to;
            c.relief = Some(relief);
        }
    }
}

/// Eq. 2. The ratio is not negative, so its bits sort like its value.
fn write_ratio(c: &Candidate) -> f64 {
    c.writes as f64 / (c.writes as f64 + c.reads as f64)
}
