//! Classes of threads so similar that it does not matter which of them moves.
//!
//! **Problem.** Ten thousand threads have far more placements than one thread, but most of them do
//! the same as others.
//!
//! **Approach.** Threads of one process on one node with the same allowed nodes form a class if
//! their demands are equal to within a few percent. The class has their mean demand. A thread's own
//! (private) files count as "its files", wherever they are in the list.
//!
//! **Limits.** Threads whose private data is spread over nodes in different ways are in different
//! classes, however little they read.

use std::collections::BTreeMap;

use memory_model::add;
use smallvec::SmallVec;

use super::demand::{Demand, Demands, Use, Work};

#[derive(Clone, Debug, Default)]
pub(super) struct ThreadClass {
    /// Indices in [`Demands::threads`], by rising tid.
    pub members: Vec<usize>,
    pub node: usize,
    pub process: usize,
    pub allowed: usize,
    pub pinned: bool,
    pub work: Work,
    /// Bytes of private files of one member, if they can move.
    pub file_bytes: f64,
}

/// Number of steps in which fractions are compared. Chosen, not derived: finer steps make more
/// classes.
const STEPS: f64 = 16.0;
/// Number of steps per factor of e in which times and rates are compared: 12 steps are 8 % each.
const TIMES: f64 = 12.0;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    process: usize,
    node: usize,
    allowed: usize,
    pinned: bool,
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
        let w = &d.work;
        let mut private: SmallVec<[(usize, i64); 2]> = w.private.iter().map(|(n, x)| (*n, fraction(*x))).collect();
        private.retain(|p| p.1 > 0);
        private.sort_unstable();
        let mut shared: SmallVec<[(usize, i64, i64); 2]> =
            w.shared.iter().map(|s| (s.group, fraction(s.read), fraction(s.written))).collect();
        shared.sort_unstable();
        let busy = w.soft_s + w.off_s;
        Self {
            process: d.process,
            node: d.node,
            allowed: d.allowed,
            pinned: d.pinned,
            served: w.served,
            files: !d.files.is_empty(),
            // Sleep matters only as a share of the whole.
            times: [time(busy), fraction(w.off_s / busy.max(f64::MIN_POSITIVE))],
            private,
            shared,
            writes: fraction(w.writes),
        }
    }
}

/// All classes, in a fixed order.
pub(super) fn classes(demands: &Demands) -> Vec<ThreadClass> {
    let mut by_key: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    for (i, d) in demands.threads.iter().enumerate().filter(|(_, d)| d.work.rate > 0.0) {
        by_key.entry(Key::of(d)).or_default().push(i);
    }
    by_key.into_values().map(|members| class(demands, members)).collect()
}

fn class(demands: &Demands, members: Vec<usize>) -> ThreadClass {
    let all = members.len() as f64;
    let mut class = ThreadClass::default();
    for d in members.iter().map(|i| &demands.threads[*i]) {
        (class.node, class.process, class.allowed, class.pinned) = (d.node, d.process, d.allowed, d.pinned);
        class.file_bytes += d.files.iter().map(|f| f.1).sum::<f64>() / all;
        let (w, mean) = (&d.work, &mut class.work);
        (mean.shares, mean.served) = (w.shares, w.served);
        mean.rate += w.rate / all;
        mean.soft_s += w.soft_s / all;
        mean.off_s += w.off_s / all;
        mean.seen_on_s += w.seen_on_s / all;
        mean.seen_off_s += w.seen_off_s / all;
        mean.writes += w.writes / all;
        mean.renewed += w.renewed / all;
        w.private.iter().for_each(|(n, x)| add(&mut mean.private, *n, x / all));
        w.wrote.iter().for_each(|(n, x)| add(&mut mean.wrote, *n, x / all));
        for s in &w.shared {
            match mean.shared.iter_mut().find(|m| m.group == s.group) {
                Some(m) => (m.read, m.written) = (m.read + s.read / all, m.written + s.written / all),
                None => mean.shared.push(Use { read: s.read / all, written: s.written / all, ..*s }),
            }
        }
    }
    class.members = members;
    class
}
