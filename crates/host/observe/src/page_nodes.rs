//! Where a page's flags hold the number of its node.
//!
//! **Problem.** The node is in the top `NODES_SHIFT` bits of `page->flags`. The kernel says this
//! width nowhere, and the types that depend on it change between versions.
//!
//! **Approach.** Several types have one element for each of `MAX_NUMNODES = 1 << NODES_SHIFT`
//! nodes; the first that the kernel's BTF has tells the width. Where none does, a probe run: a
//! BPF program reads the flags of one page of our own on each node, and the kernel tells the page's
//! node (`move_pages`).
//!
//! **Limits.** A probe run on a machine where only node 0 has memory finds no bits, so memory of
//! other nodes that is added later counts on node 0.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use libbpf_rs::btf::types::{Array, Struct, Typedef};
use libbpf_rs::btf::{Btf, BtfType};
use linux::allocation::{self, Spread};
use linux::residency::count;
use linux::residency::map::{Arena, Toucher};
use serde::Serialize;
use topology::{CpuSet, NodeId};

use super::probe_run::page_flags;

/// Width of the node's number at the top of a page's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodeBits {
    /// Bits; 0: every page is on node 0.
    pub bits: u32,
    pub source: NodeSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeSource {
    /// `struct kmem_cache`'s `node[]`, before Linux 7.1.
    CacheNode,
    /// Its `per_node[]`, since Linux 7.1.
    CachePerNode,
    /// `struct hstate`'s `hugepage_freelists[]`.
    HugePages,
    /// `nodemask_t`, of 64 nodes or more: it has whole words.
    NodeMask,
    /// Pages of our own, one on each node.
    ProbeRun,
}

impl fmt::Display for NodeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CacheNode => "kmem_cache.node",
            Self::CachePerNode => "kmem_cache.per_node",
            Self::HugePages => "hstate.hugepage_freelists",
            Self::NodeMask => "nodemask_t",
            Self::ProbeRun => "pages of our own",
        })
    }
}

/// The largest `NODES_SHIFT` of any architecture (`CONFIG_NODES_SHIFT`).
const MOST_BITS: u32 = 10;

impl NodeBits {
    /// What the kernel's types tell, else a probe run.
    ///
    /// # Errors
    ///
    /// Why neither does, in a sentence.
    pub(super) fn find(btf: Option<&Btf<'_>>, sys: &Path) -> Result<Self, String> {
        if let Some(found) = btf.and_then(Self::of_types) {
            return Ok(found);
        }
        Self::by_probe_run(sys)
            .map_err(|why| format!("no type of the kernel's BTF tells it, nor does a probe run: {why}"))
    }

    /// What pages of our own tell, one on each node with memory that the kernel gives us.
    ///
    /// # Errors
    ///
    /// What failed, or flags that no width fits.
    pub fn by_probe_run(sys: &Path) -> Result<Self, String> {
        // A kernel without NUMA has no such file.
        let nodes = std::fs::read_to_string(sys.join("devices/system/node/has_memory")).unwrap_or_default();
        let nodes: CpuSet = nodes.parse().unwrap_or_default();
        // The thread's memory policy ends with it.
        let pages = std::thread::scope(|scope| scope.spawn(|| own_pages(&nodes)).join());
        let pages = pages.map_err(|_| "the thread that makes the pages panicked".to_owned())??;
        let bits = fitting(&pages).ok_or_else(|| {
            let shown: Vec<_> = pages.iter().map(|(flags, node)| format!("{flags:#x} on node {node}")).collect();
            format!("the flags of our own pages do not begin with their nodes: {}", shown.join(", "))
        })?;
        Ok(Self { bits, source: NodeSource::ProbeRun })
    }

    fn of_types(btf: &Btf<'_>) -> Option<Self> {
        let structs = [
            ("kmem_cache", "node", NodeSource::CacheNode),
            ("kmem_cache", "per_node", NodeSource::CachePerNode),
            ("hstate", "hugepage_freelists", NodeSource::HugePages),
        ];
        let of_struct = |(name, member, source)| {
            let of = btf.type_by_name::<Struct<'_>>(name)?;
            Some(Self { bits: bits(elements(btf, &of, member)?)?, source })
        };
        structs.into_iter().find_map(of_struct).or_else(|| {
            let mask = btf.type_by_name::<Typedef<'_>>("nodemask_t")?;
            let mask: Struct<'_> = mask.next_type()?.skip_mods_and_typedefs().try_into().ok()?;
            // A single word holds any number of nodes up to 64.
            let words = elements(btf, &mask, "bits").filter(|words| *words > 1)?;
            Some(Self { bits: bits(words.checked_mul(64)?)?, source: NodeSource::NodeMask })
        })
    }
}

/// Elements of a structure's member, an array.
fn elements(btf: &Btf<'_>, of: &Struct<'_>, member: &str) -> Option<usize> {
    let member = of.iter().find(|m| m.name == Some(OsStr::new(member)))?;
    let array: Array<'_> = btf.type_by_id::<BtfType<'_>>(member.ty)?.skip_mods_and_typedefs().try_into().ok()?;
    Some(array.capacity())
}

/// A flexible array member has no elements.
fn bits(nodes: usize) -> Option<u32> {
    nodes.is_power_of_two().then(|| nodes.ilog2()).filter(|bits| *bits <= MOST_BITS)
}

/// The width by which every page's flags give its node.
fn fitting(pages: &[(u64, u32)]) -> Option<u32> {
    let node = |flags: u64, bits: u32| flags.checked_shr(64 - bits).unwrap_or(0);
    // A page on a node other than 0 fits one width only.
    (0..=MOST_BITS)
        .find(|bits| !pages.is_empty() && pages.iter().all(|(flags, on)| node(*flags, *bits) == u64::from(*on)))
}

/// Flags and node of a new page on each of these nodes, as far as the kernel gives us pages there.
fn own_pages(nodes: &CpuSet) -> Result<Vec<(u64, u32)>, String> {
    /// Times that a page may move between the two looks.
    const TRIES: usize = 3;
    let mut pages = Vec::new();
    let mut cause = None;
    let wanted: Vec<Option<u32>> = if nodes.is_empty() { vec![None] } else { nodes.iter().map(Some).collect() };
    for node in wanted {
        // A cpuset can forbid the node: the page is elsewhere then, which is as good.
        let _preferred = node.map(|node| allocation::spread(Spread::Prefer, &[NodeId(node)]));
        for _ in 0..TRIES {
            match own_page() {
                Ok(Some(page)) => {
                    pages.push(page);
                    break;
                }
                Ok(None) => {}
                Err(error) => cause = Some(error),
            }
        }
    }
    match (pages.is_empty(), cause) {
        (true, Some(cause)) => Err(cause),
        (true, None) => Err("our own pages moved all the time".to_owned()),
        (false, _) => Ok(pages),
    }
}

/// Flags and node of a new page; `None` if it moved meanwhile.
fn own_page() -> Result<Option<(u64, u32)>, String> {
    let io = |error: io::Error| super::cause::of_io(&error);
    let file = rustix::fs::memfd_create("homenode-page", rustix::fs::MemfdFlags::CLOEXEC).map_err(|e| io(e.into()))?;
    let file = File::from(file);
    let size = rustix::param::page_size();
    file.write_all_at(&vec![1; size], 0).map_err(io)?;
    let arena = Arena::reserve(1, size, size).map_err(io)?;
    let at = arena.map(0, &file, 0, size).map_err(io)?;
    Toucher::new().and_then(|toucher| toucher.touch(std::iter::once(at))).map_err(io)?;
    let before = count::page(at);
    let flags = page_flags(file.as_raw_fd())?;
    Ok(before.filter(|node| count::page(at) == Some(*node)).map(|node| (flags, node.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The BTF of a kernel, cut to a few structures: each is a name and its members, which are
    /// arrays of numbers.
    fn kernel(structs: &[(&str, &[(&str, u32)])], typedef: Option<&str>) -> Vec<u8> {
        let (mut types, mut strings): (Vec<u32>, Vec<u8>) = (Vec::new(), vec![0]);
        let mut name = |name: &str| {
            let at = strings.len() as u32;
            strings.extend(name.bytes().chain([0]));
            at
        };
        const LONG: u32 = 1;
        // A type is its name, kind and number of members, size or type, and what follows. INT: 64
        // bits.
        types.extend([name("unsigned long"), 1 << 24, 8, 64]);
        let mut last = LONG;
        for (of, members) in structs {
            let first = last + 1;
            for (_, capacity) in *members {
                types.extend([0, 3 << 24, 0, LONG, LONG, *capacity]);
                last += 1;
            }
            let size = members.iter().map(|(_, capacity)| 8 * capacity).sum();
            types.extend([if of.is_empty() { 0 } else { name(of) }, 4 << 24 | members.len() as u32, size]);
            let mut at = 0;
            for (ty, (member, capacity)) in (first..).zip(*members) {
                types.extend([name(member), ty, at]);
                at += 64 * capacity;
            }
            last += 1;
        }
        if let Some(typedef) = typedef {
            types.extend([name(typedef), 8 << 24, last]);
        }
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let sizes = [24, 0, types.len(), types.len(), strings.len()].map(|n| (n as u32).to_ne_bytes());
        [&0xeb9fu16.to_ne_bytes()[..], &[1, 0], &sizes.concat(), &types, &strings].concat()
    }

    fn told(structs: &[(&str, &[(&str, u32)])], typedef: Option<&str>) -> Option<NodeBits> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), kernel(structs, typedef)).unwrap();
        NodeBits::of_types(&Btf::from_path(file.path()).unwrap())
    }

    #[test]
    fn linux_7_1_names_the_array_per_node() {
        let found = |bits, source| Some(NodeBits { bits, source });
        assert_eq!(told(&[("kmem_cache", &[("node", 1024)])], None), found(10, NodeSource::CacheNode));
        assert_eq!(told(&[("kmem_cache", &[("per_node", 64)])], None), found(6, NodeSource::CachePerNode));
        assert_eq!(told(&[("kmem_cache", &[("flags", 1), ("node", 1)])], None), found(0, NodeSource::CacheNode));
    }

    #[test]
    fn without_an_array_of_nodes_in_the_caches_other_types_tell_the_width() {
        let caches: (&str, &[(&str, u32)]) = ("kmem_cache", &[("per_node", 0)]);
        let hstate: (&str, &[(&str, u32)]) = ("hstate", &[("hugepage_freelists", 32)]);
        let found = |bits, source| Some(NodeBits { bits, source });
        assert_eq!(told(&[caches, hstate], None), found(5, NodeSource::HugePages));
        assert_eq!(told(&[caches, ("", &[("bits", 16)])], Some("nodemask_t")), found(10, NodeSource::NodeMask));
        // One word may stand for any number of nodes up to 64.
        assert_eq!(told(&[caches, ("", &[("bits", 1)])], Some("nodemask_t")), None);
        assert_eq!(told(&[("kmem_cache", &[("node", 24)])], None), None);
    }

    #[test]
    fn a_page_on_a_node_of_its_own_fits_one_width() {
        // Node 1 in 6 bits, with zone 2 below in 3 bits.
        let (zero, one) = (2 << 55, 1 << 58 | 2 << 55);
        assert_eq!(fitting(&[(zero, 0), (one, 1)]), Some(6));
        assert_eq!(fitting(&[(5 << 60, 5)]), Some(4));
        assert_eq!(fitting(&[(zero, 0)]), Some(0));
        assert_eq!(fitting(&[(one, 3)]), None);
        assert_eq!(fitting(&[]), None);
    }
}
