//! Step 3, contention for a memory controller (NThread III-C1), the first priority.
//!
//! **Problem.** When every thread sits where its data is, one node's controller may have to carry most of the traffic.
//! Data stays where it is, and so do reads; what a thread writes lands where the thread runs.
//!
//! **Approach.** Node H is overloaded when its load (Eq. 1) exceeds 80 % of its capacity and every other node's is below half
//! of H's: at most one node can be. H's threads are taken by falling write ratio (Eq. 2) and each is given the node with
//! the most room, `D_migrate_N = (BW_N − BW_average) × W` (Eq. 3), if it still has room afterwards, `D_migrate_N + D_write_i
//! ≤ 0` (Eq. 4); until H has no surplus, `D_migrate_H ≤ 0`.
//!
//! Where the paper is silent: a thread that fits nowhere is passed over and the next is tried; equal write ratios go by tid,
//! equally loaded nodes by distance from H, then by id; a thread that writes nothing is not moved, as that would relieve
//! nobody. A node whose bandwidth is not known cannot be judged overloaded, but counts and takes threads like any other.
//! Memory-less nodes have no controller; the average is over those that do.

use super::order;
use super::state::{Candidate, Contention, Relief};
use crate::Snapshot;
use crate::load::{Loads, Machine};

/// The overloaded node, if there is one.
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
    // No second node: nowhere to go.
    let ((load, node), second) = (most?, second?);
    let limit = machine.controller_limit[node]?;
    (load > limit && u128::from(second) * 2 < u128::from(load)).then_some(node)
}

/// The relief that [`relieve`] would be, for its reason.
pub(super) fn relief(machine: &Machine, loads: &Loads, node: usize) -> Relief {
    let load = machine.controller_fraction(node, loads.controller(node)).unwrap_or(0.0);
    Relief { kind: Contention::Controller, node, load }
}

/// Moves threads away from `h` until it has no surplus over the average. With `keep_sharers`, threads that share a file stay.
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

/// Eq. 2. Not negative, so that its bits order as it does.
fn write_ratio(c: &Candidate) -> f64 {
    c.writes as f64 / (c.writes as f64 + c.reads as f64)
}
