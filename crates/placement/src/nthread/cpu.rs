//! Step 4, contention for CPUs (NThread III-C2), only where step 3 found none.
//!
//! **Problem.** Reads that all come from one node draw all their readers to that node's CPUs.
//!
//! **Approach.** Node H is overloaded when its utilisation (Eq. 6) exceeds 90 % and is at least twice that of every other node
//! with CPUs: at most one node can be. Its threads are taken by what they lose, fewest bytes read from H first, and each is
//! given the least used node if that stays within the limit, `CPU_i + CPU_N ≤ CPU_limit` (Eq. 5); until H is within the limit.
//!
//! Where the paper is silent: a thread that does not fit is passed over and the next, perhaps smaller, is tried; equal threads
//! go by tid, equally used nodes by distance from H, then by id. `CPU_i` is counted against the CPUs of the node it would
//! move to. A thread that used no CPU time is not moved. And no move is made after which step 3 would find an overloaded
//! controller: the next window would take it back, as controllers go first.

use super::state::{Candidate, Contention, Relief};
use super::{controller, order};
use crate::Snapshot;
use crate::load::{Loads, Machine};

/// The overloaded node, if there is one.
pub(super) fn overloaded(machine: &Machine, loads: &Loads) -> Option<usize> {
    let with_cpus = || (0..machine.len()).filter(|n| machine.cores[*n] > 0);
    let h = with_cpus().find(|n| {
        loads.cpu[*n] > machine.cpu_limit[*n]
            && with_cpus()
                .all(|other| other == *n || share(machine, loads, *n, other) >= 2 * share(machine, loads, other, *n))
    })?;
    // No second node: nowhere to go.
    (with_cpus().count() > 1).then_some(h)
}

/// Utilisation of a node, comparable with that of `other` the other way round: both over the product of their CPUs.
fn share(machine: &Machine, loads: &Loads, node: usize, other: usize) -> u128 {
    u128::from(loads.cpu[node]) * u128::from(machine.cores[other])
}

/// The relief that [`relieve`] would be, for its reason.
pub(super) fn relief(machine: &Machine, loads: &Loads, node: usize) -> Relief {
    Relief { kind: Contention::Cpu, node, load: machine.cpu_fraction(node, loads.cpu[node]).unwrap_or(0.0) }
}

/// How step 4 is carried out.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Threads that share a file stay (step 5).
    pub keep_sharers: bool,
    /// Step 3 is in force: do not overload a controller.
    pub spare_controllers: bool,
}

/// Moves threads away from `h` until it is within the limit or nothing fits.
pub(super) fn relieve(
    machine: &Machine,
    snapshot: &Snapshot,
    loads: &mut Loads,
    candidates: &mut [Candidate],
    h: usize,
    relief: u32,
    rules: Rules,
) {
    let home = machine.id(h);
    let mut order: Vec<_> = candidates
        .iter()
        .enumerate()
        .filter(|(_, c)| c.place == h && c.cpu > 0)
        .map(|(i, c)| order::key(snapshot.threads[c.thread].read_bytes.get(home), c.tid, i))
        .collect();
    order.sort_unstable();
    // What the next window's what-if will start from: there, threads with a target are back on it.
    let mut next = loads.clone();
    // Most threads may run on the same nodes as the one before.
    let (mut last_allowed, mut elsewhere) = (Vec::new(), Vec::new());
    for i in order.into_iter().map(order::index) {
        if loads.cpu[h] <= machine.cpu_limit[h] {
            break;
        }
        let c = &mut candidates[i];
        if rules.keep_sharers && c.shares {
            c.passed_over = true;
            continue;
        }
        let allowed = &snapshot.threads[c.thread].allowed_nodes;
        if *allowed != last_allowed {
            let fits = |n: &usize| *n != h && machine.cores[*n] > 0;
            elsewhere = allowed.iter().filter_map(|id| machine.index(*id)).filter(fits).collect();
            last_allowed.clone_from(allowed);
        }
        let to = elsewhere.iter().copied().reduce(|a, b| {
            let key = |n, other| (share(machine, loads, n, other), machine.distance(h, n), n);
            if key(b, a) < key(a, b) { b } else { a }
        });
        let Some(to) = to.filter(|n| loads.cpu[*n].saturating_add(c.cpu) <= machine.cpu_limit[*n]) else { continue };
        let shift = |loads: &mut Loads, from, to| {
            loads.remove(machine, from, c.writes, c.cpu);
            loads.add(machine, to, c.writes, c.cpu);
        };
        shift(loads, h, to);
        if !c.targeted() {
            shift(&mut next, h, to);
        }
        let overloads = |loads: &Loads| controller::overloaded(machine, loads).is_some();
        // Without writes the controllers carry what they did, and step 3 found none overloaded.
        let judge = rules.spare_controllers && c.writes > 0;
        if judge && (overloads(loads) || (!c.targeted() && overloads(&next))) {
            shift(loads, to, h);
            if !c.targeted() {
                shift(&mut next, to, h);
            }
            continue;
        }
        c.place = to;
        c.relief = Some(relief);
    }
}
