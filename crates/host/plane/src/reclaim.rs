//! What the kernel reclaimed on each node in a window.

use std::collections::BTreeMap;
use std::path::Path;

use linux::reclaim::{self, Counts, Kswapds};
use placement::Reclaim;
use topology::{NodeId, Topology};

/// The counts at the end of the window before.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    before: BTreeMap<NodeId, Counts>,
    kswapds: Kswapds,
}

impl Reclaimed {
    /// Begins to count.
    pub(crate) fn new(proc_root: &Path, sys_root: &Path, topology: &Topology) -> Self {
        let kswapds = Kswapds::find(proc_root);
        Self { before: read(proc_root, sys_root, topology, &kswapds).unwrap_or_default(), kswapds }
    }

    /// What happened since the last call. Nodes of which that is not known are left out, and a note
    /// says why.
    pub(crate) fn window(
        &mut self,
        proc_root: &Path,
        sys_root: &Path,
        topology: &Topology,
    ) -> (BTreeMap<NodeId, Reclaim>, Option<String>) {
        let now = match read(proc_root, sys_root, topology, &self.kswapds) {
            Ok(now) => now,
            Err(error) => return (BTreeMap::new(), Some(format!("what the kernel reclaims is not known: {error}"))),
        };
        let page = rustix::param::page_size() as u64;
        let before = std::mem::replace(&mut self.before, now);
        let of = |(node, now): (&NodeId, &Counts)| {
            let before = before.get(node)?;
            let bytes = |of: fn(&Counts) -> u64| of(now).saturating_sub(of(before)).saturating_mul(page);
            Some((
                *node,
                Reclaim {
                    high_watermark: now.high.saturating_mul(page),
                    free_on_lists: now.on_lists.saturating_mul(page),
                    scanned: now.scanned_since(before).saturating_mul(page),
                    swapped_out: bytes(|c| c.swapped_out),
                    refaulted: bytes(|c| c.refaulted),
                    demoted: bytes(|c| c.demoted),
                },
            ))
        };
        (self.before.iter().filter_map(of).collect(), None)
    }
}

fn read(
    proc_root: &Path,
    sys_root: &Path,
    topology: &Topology,
    kswapds: &Kswapds,
) -> std::io::Result<BTreeMap<NodeId, Counts>> {
    let nodes: Vec<NodeId> = topology.nodes.iter().map(|node| node.id).collect();
    reclaim::read(proc_root, sys_root, &nodes, kswapds)
}
