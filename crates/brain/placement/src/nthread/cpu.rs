//! Step 4, contention for CPUs (NThread III-C2), only if step 3 found none.
//!
//! **Problem.** Data on one node draws all its readers to that node's CPUs.
//!
//! **Approach.** Node H is overloaded when its utilisation (Eq. 6) exceeds 90 % and is at least
//! twice that of each other node with CPUs. At most one node can be overloaded. The step takes H's
//! threads by what they lose, fewest bytes read from H first. Each moves to the least used node if
//! that node stays within the limit, `CPU_i + CPU_N ≤ CPU_limit` (Eq. 5). The step ends when H is
//! within the limit.
//!
//! Where the paper is silent: a thread that does not fit is skipped and the next, which may be
//! smaller, is tried. Ties are broken by tid; ties of nodes by distance from H, then by id. `CPU_i`
//! is counted against the CPUs of the node that the thread would move to. A thread that used no CPU
//! time does not move. The step makes no move after which step 3 would find an overloaded
//! controller: controllers go first, so the next window would take the move back.

use super::state::{Candidate, Contention, Relief};
use super::{controller, order};
use crate::Snapshot;
use crate::load::{Loads, Machine};

/// Returns the overloaded node, if there is one.
pub(super) fn overloaded(machine: &Machine, loads: &Loads) -> Option<usize> {
    let with_cpus = || (0..machine.len()).filter(|n| machine.cores[*n] > 0);
    let h = with_cpus().find(|n| {
        loads.cpu[*n] > machine.cpu_limit[*n]
            && with_cpus()
                .all(|other| other == *n || share(machine, loads, *n, other) >= 2 * share(machine, loads, other, *n))
    })?;
    // There is no second node to move threads to.
    (with_cpus().count() > 1).then_some(h)
}

/// Utilisation of a node, comparable with that of `other`: both are scaled by the product of the
/// two nodes' CPUs.
fn share(machine: &Machine, loads: &Loads, node: usize, other: usize) -> u128 {
    u128::from(loads.cpu[node]) * u128::from(machine.cores[other])
}

/// Describes the relief that [`relieve`] provides, for the moves' reasons.
pub(super) fn relief(machine: &Machine, loads: &Loads, node: usize) -> Relief {
    Relief { kind: Contention::Cpu, node, load: machine.cpu_fraction(node, loads.cpu[node]).unwrap_or(0.0) }
}

/// The rules that apply to step 4.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Threads that share a file stay (step 5).
    pub keep_sharers: bool,
    /// Step 3 is in force: step 4 must not overload a controller.
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
    // The start of the next window's what-if, in which threads with a target are back on it.
    let mut next = loads.clone();
    // Most threads may run on the same nodes as the thread before.
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
        // Without writes, the load of the controllers does not change, and step 3 found none
        // overloaded.
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
