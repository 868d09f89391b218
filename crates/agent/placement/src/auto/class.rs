//! Teams: threads so similar that it does not matter which of them moves.
//!
//! **Problem.** Ten thousand threads have far more placements than one thread, but most of them do
//! the same as others.
//!
//! **Approach.** Threads of one process on one node with the same allowed nodes form a team if
//! their demands are equal to within a few percent. The team has their mean demand. A thread's own
//! (private) files count as "its files", wherever they are in the list.
//!
//! **Limits.** Threads whose private data is spread over nodes in different ways are in different
//! teams, however little they read.

use std::collections::BTreeMap;

use memory_model::{Shares, add};
use smallvec::SmallVec;

use super::demand::{Demand, Demands};

/// Similar threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Team {
    /// Indices in [`Demands::threads`], by rising tid.
    pub members: Vec<usize>,
    pub node: usize,
    pub process: usize,
    pub allowed: usize,
    pub held: bool,
    /// Mean demand, see [`Demand`].
    pub rate: f64,
    pub soft_s: f64,
    pub off_s: f64,
    /// Observed seconds per byte on a CPU, and asleep.
    pub seen_on_s: f64,
    pub seen_off_s: f64,
    /// Another process makes its accesses: memory time passes asleep.
    pub served: bool,
    pub private: Shares,
    pub shared: SmallVec<[(usize, f64, f64); 2]>,
    pub writes: f64,
    pub wrote: Shares,
    pub renewed: f64,
    pub shares: bool,
    /// Bytes of private files of one member, if they can move.
    pub file_bytes: f64,
}

/// Number of steps in which fractions are compared. Chosen, not derived: finer steps make more
/// teams.
const STEPS: f64 = 16.0;
/// Number of steps per factor of e in which times and rates are compared: 12 steps are 8 % each.
const TIMES: f64 = 12.0;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    process: usize,
    node: usize,
    allowed: usize,
    held: bool,
    served: bool,
    files: bool,
    times: [i64; 2],
    private: SmallVec<[(usize, i64); 2]>,
    shared: SmallVec<[(usize, i64, i64); 2]>,
    writes: i64,
}

fn fraction(x: f64) -> i64 {
    (x * STEPS).round() as i64
}

fn time(x: f64) -> i64 {
    if x > 0.0 { (x.ln() * TIMES).round() as i64 } else { i64::MIN }
}

impl Key {
    fn of(d: &Demand) -> Self {
        let mut private: SmallVec<[(usize, i64); 2]> = d.private.iter().map(|(n, x)| (*n, fraction(*x))).collect();
        private.retain(|p| p.1 > 0);
        private.sort_unstable();
        let mut shared: SmallVec<[(usize, i64, i64); 2]> =
            d.shared.iter().map(|(g, r, w)| (*g, fraction(*r), fraction(*w))).collect();
        shared.sort_unstable();
        let busy = d.soft_s + d.off_s;
        Self {
            process: d.process,
            node: d.node,
            allowed: d.allowed,
            held: d.held,
            served: d.served,
            files: !d.files.is_empty(),
            // Sleep matters only as a share of the whole.
            times: [time(busy), fraction(d.off_s / busy.max(f64::MIN_POSITIVE))],
            private,
            shared,
            writes: fraction(d.writes),
        }
    }
}

/// All teams, in a fixed order.
pub(super) fn teams(demands: &Demands) -> Vec<Team> {
    let mut by_key: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    for (i, d) in demands.threads.iter().enumerate().filter(|(_, d)| d.rate > 0.0) {
        by_key.entry(Key::of(d)).or_default().push(i);
    }
    by_key.into_values().map(|members| team(demands, members)).collect()
}

fn team(demands: &Demands, members: Vec<usize>) -> Team {
    let all = members.len() as f64;
    let mut team = Team::default();
    for i in &members {
        let d = &demands.threads[*i];
        (team.node, team.process, team.allowed) = (d.node, d.process, d.allowed);
        (team.held, team.shares, team.served) = (d.held, d.shares, d.served);
        team.rate += d.rate / all;
        team.soft_s += d.soft_s / all;
        team.off_s += d.off_s / all;
        team.seen_on_s += d.seen_on_s / all;
        team.seen_off_s += d.seen_off_s / all;
        team.writes += d.writes / all;
        team.renewed += d.renewed / all;
        team.file_bytes += d.files.iter().map(|f| f.1).sum::<f64>() / all;
        d.private.iter().for_each(|(n, x)| add(&mut team.private, *n, x / all));
        d.wrote.iter().for_each(|(n, x)| add(&mut team.wrote, *n, x / all));
        for (g, r, w) in &d.shared {
            match team.shared.iter_mut().find(|s| s.0 == *g) {
                Some(s) => (s.1, s.2) = (s.1 + r / all, s.2 + w / all),
                None => team.shared.push((*g, r / all, w / all)),
            }
        }
    }
    team.members = members;
    team
}
