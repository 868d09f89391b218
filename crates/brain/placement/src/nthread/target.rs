//! Step 1, the initial target node (NThread III-A).
//!
//! **Problem.** A thread may read files on several nodes; moving it after each small shift would
//! make it wander.
//!
//! **Approach.** A node is a thread's target only if the thread reads at least `locality_margin`
//! more from it than from any other node. Writes never give a target: they land where the thread
//! runs.
//!
//! Where the paper is silent: a thread cannot run on a node without CPUs (CXL, persistent memory),
//! so its target is the single nearest node with CPUs where it may run. Two equally near nodes give
//! no target, and neither do two nodes with equal reads. Neither rule depends on where the thread
//! is, so a decision after the move is the same.

use topology::NodeId;

use super::Settings;
use crate::Thread;
use crate::load::Machine;

/// The result of step 1 for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The node that the thread reads most from, by the margin.
    Home(usize),
    /// That node, `home`, has no CPUs; `node` is the nearest node where the thread may run.
    Near { home: NodeId, node: usize },
    /// That node has no CPUs, and several nodes where the thread may run are equally near, or none
    /// exists.
    NoCpus { home: NodeId },
    /// The thread may not run on that node.
    NotAllowed { home: NodeId },
    /// No node leads by the margin.
    None,
}

impl Target {
    /// The node to move to.
    pub fn node(self) -> Option<usize> {
        match self {
            Self::Home(node) | Self::Near { node, .. } => Some(node),
            Self::NoCpus { .. } | Self::NotAllowed { .. } | Self::None => None,
        }
    }
}

/// The lead in bytes per window that makes a node the target.
pub(super) fn margin(settings: &Settings, window_s: f64) -> f64 {
    settings.locality_margin * window_s
}

/// Applies step 1 to one thread; `margin` is in bytes per window.
pub(super) fn of(machine: &Machine, margin: f64, thread: &Thread) -> Target {
    let (mut home, mut most, mut second) = (None, 0, 0);
    for (node, bytes) in thread.read_bytes.iter() {
        if bytes > most {
            (home, second, most) = (Some(node), most, bytes);
        } else if bytes > second {
            second = bytes;
        }
    }
    let Some(home) = home else { return Target::None };
    if most == second || ((most - second) as f64) < margin {
        return Target::None;
    }
    match machine.index(home) {
        Some(node) if machine.cores[node] > 0 => match thread.allowed_nodes.contains(&home) {
            true => Target::Home(node),
            false => Target::NotAllowed { home },
        },
        Some(node) => match nearest(machine, node, thread) {
            Some(node) => Target::Near { home, node },
            None => Target::NoCpus { home },
        },
        None => Target::NotAllowed { home },
    }
}

/// The single nearest node to `home` with CPUs where the thread may run.
fn nearest(machine: &Machine, home: usize, thread: &Thread) -> Option<usize> {
    let mut nearest: Option<(u32, usize)> = None;
    let mut tie = false;
    for node in thread.allowed_nodes.iter().filter_map(|id| machine.index(*id)).filter(|n| machine.cores[*n] > 0) {
        let distance = machine.distance(node, home);
        match nearest {
            Some((_, same)) if same == node => {}
            Some((least, _)) if distance > least => {}
            Some((least, _)) if distance == least => tie = true,
            _ => (nearest, tie) = (Some((distance, node)), false),
        }
    }
    nearest.filter(|_| !tie).map(|(_, node)| node)
}
