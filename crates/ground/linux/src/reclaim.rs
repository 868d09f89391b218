//! What the kernel does to keep memory of each node free.
//!
//! **Problem.** Data that is moved to a node whose memory is full pushes out something else, and
//! the kernel does not say beforehand what.
//!
//! **Approach.** `/proc/zoneinfo` has the watermarks of each zone and the lists of CPUs, and
//! `vmstat` of each node counts refaults and demotions. Few kernels count there what reclaim looked
//! at. Otherwise the machine's count (`/proc/vmstat`) is told apart by the kernel's own threads:
//! what kswapd looked at is of the nodes whose kswapd has run ([`Kswapds`], `/proc/PID/schedstat`).
//! What programs reclaimed themselves (`pgscan_direct`) can be of any node and is of all. The
//! machine's counts of pages looked at are without the reclaim of control groups that have reached
//! their limit; refaults and swap are not.
//!
//! **Limits.** The kernel counts on each CPU and adds up once a second (`vm.stat_interval`), so
//! what happened at the end of a window can show in the next. Where kernel threads are not visible
//! (in a container), what kswapd looked at is of all nodes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use topology::NodeId;

use crate::named;

/// The kernel threads that keep memory of each node free, by process id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kswapds(BTreeMap<NodeId, u32>);

impl Kswapds {
    /// Finds them among the kernel's threads, the children of its thread 2. None are found where
    /// procfs hides them, or a kernel lists no children. Other processes are not asked: a look at
    /// one that hangs in `execve` waits for it.
    pub fn find(proc_root: &Path) -> Self {
        let children = fs::read_to_string(proc_root.join("2/task/2/children")).unwrap_or_default();
        let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        Self(pids.filter_map(|pid| Some((node_of(proc_root, pid)?, pid))).collect())
    }

    /// Nanoseconds for which the thread of a node has run; `None` if that is not known.
    fn ran_ns(&self, proc_root: &Path, node: NodeId) -> Option<u64> {
        let pid = *self.0.get(&node)?;
        // Another process can have its id, after the node's memory has gone and come back.
        node_of(proc_root, pid).filter(|of| *of == node)?;
        fs::read_to_string(proc_root.join(format!("{pid}/schedstat"))).ok()?.split(' ').next()?.parse().ok()
    }
}

/// The node whose kswapd a process is: a child of the kernel's thread 2 with that name.
fn node_of(proc_root: &Path, pid: u32) -> Option<NodeId> {
    let stat = fs::read_to_string(proc_root.join(format!("{pid}/stat"))).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let parent = rest.split(' ').nth(1)?;
    name.strip_prefix("kswapd").filter(|_| parent == "2")?.parse().ok().map(NodeId)
}

/// Counts since boot, in pages, and the watermark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that the kernel wants to be free: the high watermarks of all zones of the node.
    pub high: u64,
    /// Free pages that the kernel keeps on lists of each CPU. They do not count as free memory.
    pub on_lists: u64,
    /// Pages that kswapd looked at, of this node or of the machine.
    kswapd: u64,
    /// Pages that programs looked at when they needed memory, of this node or of the machine.
    direct: u64,
    /// Nanoseconds for which the node's kswapd has run, where `kswapd` is of the machine.
    ran_ns: Option<u64>,
    /// Pages that were written to swap, of all nodes.
    pub swapped_out: u64,
    /// Pages that were read in again soon after they were reclaimed.
    pub refaulted: u64,
    /// Pages that were demoted to slower memory.
    pub demoted: u64,
}

impl Counts {
    /// Pages that reclaim has looked at since earlier counts of the same node.
    pub fn scanned_since(&self, before: &Self) -> u64 {
        let idle = self.ran_ns.is_some() && self.ran_ns == before.ran_ns;
        let kswapd = if idle { 0 } else { self.kswapd.saturating_sub(before.kswapd) };
        kswapd.saturating_add(self.direct.saturating_sub(before.direct))
    }
}

/// Reads the counts of each of these nodes.
///
/// # Errors
///
/// A file that is missing, refused, or not of the kernel's form.
pub fn read(
    proc_root: &Path,
    sys_root: &Path,
    nodes: &[NodeId],
    kswapds: &Kswapds,
) -> io::Result<BTreeMap<NodeId, Counts>> {
    let text = |path: &Path| fs::read_to_string(path).map_err(|e| named(path.display(), e));
    let zones = zones(&text(&proc_root.join("zoneinfo"))?);
    let machine = text(&proc_root.join("vmstat"))?;
    let mut all = BTreeMap::new();
    for node in nodes {
        let own = text(&sys_root.join(format!("devices/system/node/node{node}/vmstat")))?;
        // Without a watermark nobody knows how much must stay free.
        let Some(Zones { high: Some(high), on_lists }) = zones.get(node).copied() else { continue };
        let is_own = sum(&own, &["pgscan_kswapd"]).is_some();
        let sum = |names: &[&str]| sum(&own, names).or_else(|| sum(&machine, names)).unwrap_or(0);
        all.insert(
            *node,
            Counts {
                high,
                on_lists,
                kswapd: sum(&["pgscan_kswapd"]),
                direct: sum(&["pgscan_direct"]),
                ran_ns: if is_own { None } else { kswapds.ran_ns(proc_root, *node) },
                swapped_out: sum(&["pswpout"]),
                refaulted: sum(&["workingset_refault_file", "workingset_refault_anon"]),
                demoted: sum(&["pgdemote_kswapd", "pgdemote_direct"]),
            },
        );
    }
    Ok(all)
}

/// Pages that the kernel wants to be free on a node ([`Counts::high`]); `None` where procfs does
/// not tell.
pub fn high_watermark(proc_root: &Path, node: NodeId) -> Option<u64> {
    zones(&fs::read_to_string(proc_root.join("zoneinfo")).ok()?).get(&node)?.high
}

/// The sum of these counters; `None` if the text has none of them.
fn sum(text: &str, names: &[&str]) -> Option<u64> {
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        names.contains(&name).then(|| value.trim().parse::<u64>().ok())?
    });
    values.reduce(u64::saturating_add)
}

/// What the zones of a node have, in pages.
#[derive(Clone, Copy, Debug, Default)]
struct Zones {
    high: Option<u64>,
    on_lists: u64,
}

fn zones(zoneinfo: &str) -> BTreeMap<NodeId, Zones> {
    let mut all = BTreeMap::<NodeId, Zones>::new();
    let mut node = None;
    for line in zoneinfo.lines() {
        if let Some(rest) = line.strip_prefix("Node ") {
            node = rest.split(',').next().and_then(|id| id.trim().parse().ok()).map(NodeId);
            continue;
        }
        let Some(node) = node else { continue };
        let pages = |value: &str| value.trim().parse::<u64>().unwrap_or(0);
        // Sets of pages of each CPU have a line `high:` further in.
        if let Some(value) = line.strip_prefix("        high ") {
            let high = &mut all.entry(node).or_default().high;
            *high = Some(high.unwrap_or(0).saturating_add(pages(value)));
        } else if let Some(value) = line.trim_start().strip_prefix("count:") {
            let on_lists = &mut all.entry(node).or_default().on_lists;
            *on_lists = on_lists.saturating_add(pages(value));
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
        let machine = |kswapd: u64, direct: u64| {
            let counts = format!("pgscan_kswapd {kswapd}\npgscan_direct {direct}\n");
            put(proc.join("vmstat"), &format!("pswpout 3\n{counts}workingset_refault_file 99\n"));
        };
        machine(40, 2);
        put(sys.join("devices/system/node/node0/vmstat"), "workingset_refault_file 5\nworkingset_refault_anon 1\n");
        let own =
            |kswapd: u64| format!("pgdemote_kswapd 8\npgdemote_direct 1\npgscan_kswapd {kswapd}\npgscan_direct 1\n");
        put(sys.join("devices/system/node/node2/vmstat"), &own(7));
        // Kswapd of node 0, and a program that goes by its name.
        put(proc.join("40/stat"), "40 (kswapd0) S 2 0 0 0 -1 0\n");
        put(proc.join("40/schedstat"), "1000 5 9\n");
        put(proc.join("41/stat"), "41 (kswapd0) S 1 0 0 0 -1 0\n");
        put(proc.join("2/task/2/children"), "40 41 42 ");
        let kswapds = Kswapds::find(&proc);
        assert_eq!(kswapds, Kswapds(BTreeMap::from([(NodeId(0), 40)])));
        let read = |kswapds: &Kswapds| super::read(&proc, &sys, &[NodeId(0), NodeId(2)], kswapds).unwrap();
        let before = read(&kswapds);
        let node0 = Counts {
            high: 9590,
            on_lists: 7,
            kswapd: 40,
            direct: 2,
            ran_ns: Some(1000),
            swapped_out: 3,
            refaulted: 6,
            demoted: 0,
        };
        let node2 = Counts {
            high: 32,
            on_lists: 0,
            kswapd: 7,
            direct: 1,
            ran_ns: None,
            swapped_out: 3,
            refaulted: 99,
            demoted: 9,
        };
        assert_eq!((before[&NodeId(0)], before[&NodeId(2)]), (node0, node2));
        assert_eq!([0, 2, 3].map(|node| high_watermark(&proc, NodeId(node))), [Some(9590), Some(32), None]);

        let scanned = |kswapds: &Kswapds, before: &BTreeMap<NodeId, Counts>| {
            let now = read(kswapds);
            [0, 2].map(|node| now[&NodeId(node)].scanned_since(&before[&NodeId(node)]))
        };
        // Another node's kswapd looked at pages.
        machine(90, 2);
        put(sys.join("devices/system/node/node2/vmstat"), &own(57));
        assert_eq!(scanned(&kswapds, &before), [0, 50]);
        // Where threads are hidden, it can have been any node's.
        let hidden = read(&Kswapds::default());
        machine(95, 2);
        assert_eq!(scanned(&Kswapds::default(), &hidden), [5, 0]);
        // Now its own ran, too, and a program needed memory.
        put(proc.join("40/schedstat"), "1001 5 9\n");
        machine(95, 6);
        assert_eq!(scanned(&kswapds, &before), [59, 50]);
        // It ended, and its id is another's.
        put(proc.join("40/stat"), "40 (bash) S 1 0 0 0 -1 0\n");
        assert_eq!(read(&kswapds)[&NodeId(0)].ran_ns, None);

        let missing = super::read(&proc, &sys, &[NodeId(1)], &kswapds).unwrap_err().to_string();
        assert!(missing.contains("node1/vmstat"), "{missing}");
    }

    #[test]
    fn this_kernel_has_watermarks() {
        let all = read(Path::new("/proc"), Path::new("/sys"), &[NodeId(0)], &Kswapds::find(Path::new("/proc")));
        // A kernel without NUMA has no nodes.
        if let Ok(all) = all {
            assert!(all[&NodeId(0)].high > 0, "{all:?}");
        }
    }
}
