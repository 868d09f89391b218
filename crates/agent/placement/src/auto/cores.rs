//! A window in seconds of cores, where emulated cores share out a node's CPUs.
//!
//! **Problem.** A node with one CPU that stands for 28 emulated cores is no CPU that is 28 times as
//! fast: a thread has one core at most, and waits for it in seconds of the clock. Counted in
//! seconds of the CPU, 56 threads that each wait half of the time seem to sleep.
//!
//! **Approach.** The model counts cores where the snapshot has them. An emulated core's time
//! includes accesses to memory, whoever makes them, so what a server works is no time of its own.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use topology::NodeId;

use crate::{NodeLoad, Snapshot};

/// How many cores a CPU of this node stands for.
fn times(node: &NodeLoad) -> Option<f64> {
    let cores = node.cores.filter(|cores| *cores > 0 && !node.cpus.is_empty())?;
    Some(f64::from(cores) / node.cpus.len() as f64)
}

/// The window, in seconds of cores.
pub(super) fn in_cores(snapshot: &Snapshot) -> Cow<'_, Snapshot> {
    let emulated: FxHashMap<NodeId, f64> = snapshot.nodes.iter().filter_map(|n| Some((n.id, times(n)?))).collect();
    if emulated.is_empty() {
        return Cow::Borrowed(snapshot);
    }
    let mut window = snapshot.clone();
    for node in &mut window.nodes {
        let times = emulated.get(&node.id).copied().unwrap_or(1.0);
        node.cpu_s = node.cpu_s.map(|s| s * times);
    }
    for thread in &mut window.threads {
        if let Some(times) = emulated.get(&thread.node) {
            thread.cpu_s *= times;
            thread.wait_s = thread.wait_s.map(|s| s * times);
            thread.served_s = thread.served_s.map(|_| 0.0);
        }
    }
    Cow::Owned(window)
}
