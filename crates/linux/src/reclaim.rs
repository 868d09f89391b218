//! What the kernel does to keep memory of each node free.
//!
//! **Problem.** Data that is moved to a node whose memory is full pushes out something else, and
//! the kernel does not say beforehand what.
//!
//! **Approach.** `/proc/zoneinfo` has the watermarks of each zone, and `vmstat` of each node counts
//! refaults and demotions. Counts of reclaim and of swap are those of the node where the kernel
//! has them, otherwise of the machine (`/proc/vmstat`).
//!
//! **Limits.** The kernel counts on each CPU and adds up once a second (`vm.stat_interval`), so
//! what happened at the end of a window can show in the next.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use topology::NodeId;

/// Counts since boot, in pages, and the watermark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that the kernel wants to be free: the high watermarks of all zones of the node.
    pub high: u64,
    /// Pages that reclaim looked at.
    pub scanned: u64,
    /// Pages that were written to swap, of all nodes.
    pub swapped_out: u64,
    /// Pages that were read in again soon after they were reclaimed.
    pub refaulted: u64,
    /// Pages that were demoted to slower memory.
    pub demoted: u64,
}

/// Reads the counts of each of these nodes.
///
/// # Errors
///
/// A file that is missing, refused, or not of the kernel's form.
pub fn read(proc_root: &Path, sys_root: &Path, nodes: &[NodeId]) -> io::Result<BTreeMap<NodeId, Counts>> {
    let text = |path: &Path| {
        fs::read_to_string(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    };
    let high = high_watermarks(&text(&proc_root.join("zoneinfo"))?);
    let machine = text(&proc_root.join("vmstat"))?;
    let mut all = BTreeMap::new();
    for node in nodes {
        let own = text(&sys_root.join(format!("devices/system/node/node{node}/vmstat")))?;
        // Without a watermark nobody knows how much must stay free.
        let Some(high) = high.get(node).copied() else { continue };
        let sum = |names: &[&str]| sum(&own, names).or_else(|| sum(&machine, names)).unwrap_or(0);
        all.insert(
            *node,
            Counts {
                high,
                scanned: sum(&["pgscan_kswapd", "pgscan_direct"]),
                swapped_out: sum(&["pswpout"]),
                refaulted: sum(&["workingset_refault_file", "workingset_refault_anon"]),
                demoted: sum(&["pgdemote_kswapd", "pgdemote_direct"]),
            },
        );
    }
    Ok(all)
}

/// The sum of these counters; `None` if the text has none of them.
fn sum(text: &str, names: &[&str]) -> Option<u64> {
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        names.contains(&name).then(|| value.trim().parse::<u64>().ok())?
    });
    values.reduce(u64::saturating_add)
}

/// The high watermarks of each node's zones, in pages.
fn high_watermarks(zoneinfo: &str) -> BTreeMap<NodeId, u64> {
    let mut all = BTreeMap::new();
    let mut node = None;
    for line in zoneinfo.lines() {
        if let Some(rest) = line.strip_prefix("Node ") {
            node = rest.split(',').next().and_then(|id| id.trim().parse().ok()).map(NodeId);
        } else if let (Some(node), Some(value)) = (node, line.strip_prefix("        high ")) {
            // Sets of pages of each CPU have a line `high:` further in.
            let sum: &mut u64 = all.entry(node).or_default();
            *sum = sum.saturating_add(value.trim().parse().unwrap_or(0));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONEINFO: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 12
  pages free     3776
        boost    0
        min      90
        low      187
        high     284
        spanned  4095
  pagesets
    cpu: 0
              count:    7
              high:  3908
Node 0, zone    DMA32
  pages free     116193
        high     9306
Node 2, zone  Movable
        high     32
";

    /// Each node's own counts come first, and the machine's take the place of those it lacks.
    #[test]
    fn counts_are_read_as_the_kernel_writes_them() {
        let tmp = tempfile::tempdir().unwrap();
        let (proc, sys) = (tmp.path().join("proc"), tmp.path().join("sys"));
        let put = |path: std::path::PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(proc.join("zoneinfo"), ZONEINFO);
        put(proc.join("vmstat"), "pswpout 3\npgscan_kswapd 40\npgscan_direct 2\nworkingset_refault_file 99\n");
        put(sys.join("devices/system/node/node0/vmstat"), "workingset_refault_file 5\nworkingset_refault_anon 1\n");
        put(sys.join("devices/system/node/node2/vmstat"), "pgdemote_kswapd 8\npgdemote_direct 1\npgscan_kswapd 7\n");
        let all = read(&proc, &sys, &[NodeId(0), NodeId(2)]).unwrap();
        let node0 = Counts { high: 9590, scanned: 42, swapped_out: 3, refaulted: 6, demoted: 0 };
        let node2 = Counts { high: 32, scanned: 7, swapped_out: 3, refaulted: 99, demoted: 9 };
        assert_eq!((all[&NodeId(0)], all[&NodeId(2)]), (node0, node2));
        let missing = read(&proc, &sys, &[NodeId(1)]).unwrap_err().to_string();
        assert!(missing.contains("node1/vmstat"), "{missing}");
    }

    #[test]
    fn this_kernel_has_watermarks() {
        let all = read(Path::new("/proc"), Path::new("/sys"), &[NodeId(0)]);
        // A kernel without NUMA has no nodes.
        if let Ok(all) = all {
            assert!(all[&NodeId(0)].high > 0, "{all:?}");
        }
    }
}
