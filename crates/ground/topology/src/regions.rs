//! Persistent-memory and CXL regions: the node of a range of physical addresses, or of a block
//! device. And the nodes whose memory a device names.
//!
//! What a region does not tell, or tells in an odd way, is unknown. One without a size is left out.

use std::collections::BTreeSet;

use crate::source::Source;
use crate::{NodeId, Region};

const NVDIMM: &str = "bus/nd/devices";
const CXL: &str = "bus/cxl/devices";
const DAX: &str = "bus/dax/devices";

/// Children of an nvdimm region that can have a block device: a raw namespace, fsdax (`pfn`) or
/// sector mode (`btt`).
const CARRIERS: [&str; 3] = ["namespace", "pfn", "btt"];

pub(crate) fn read(source: &Source<'_>) -> Vec<Region> {
    let named = |dir| source.numbered(dir, "region").unwrap_or_default().into_iter().map(|(_, name)| name);
    let nvdimm = named(NVDIMM).filter_map(|name| nvdimm(source, name));
    nvdimm.chain(named(CXL).filter_map(|name| cxl(source, &name))).collect()
}

/// The nodes that a DAX device, or one of these regions, names as those of its memory.
pub(crate) fn named(source: &Source<'_>, regions: &[Region]) -> BTreeSet<NodeId> {
    let devices = |dir: &'static str| {
        let names = source.names(dir).unwrap_or_default().into_iter();
        names.filter_map(move |name| numa_node(source, &format!("{dir}/{name}/target_node")))
    };
    devices(DAX).chain(devices(NVDIMM)).chain(regions.iter().filter_map(|region| region.node)).collect()
}

/// `drivers/nvdimm/region_devs.c`: `numa_node` and `size` are decimal, `resource` is hexadecimal
/// and for root only.
fn nvdimm(source: &Source<'_>, name: String) -> Option<Region> {
    let dir = format!("{NVDIMM}/{name}");
    let mut devices = Vec::new();
    for child in source.names(&dir).unwrap_or_default() {
        if !CARRIERS.iter().any(|c| child.strip_prefix(c).is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit())))
        {
            continue;
        }
        for device in source.names(&format!("{dir}/{child}/block")).unwrap_or_default() {
            // Not needed for the name, but with it a person can tell from a capture which mounts
            // used the device.
            source.told::<String>(&format!("{dir}/{child}/block/{device}/dev"));
            devices.push(device);
        }
    }
    Some(Region {
        node: numa_node(source, &format!("{dir}/numa_node")),
        start: start(source, &format!("{dir}/resource")),
        size: number(source, &format!("{dir}/size"))?,
        devices,
        name,
    })
}

/// `drivers/cxl/core/region.c`: `size` and `resource` are hexadecimal; a region that is not yet set
/// up has size 0.
fn cxl(source: &Source<'_>, name: &str) -> Option<Region> {
    let dir = format!("{CXL}/{name}");
    let size = number(source, &format!("{dir}/size")).filter(|size| *size > 0)?;
    let start = start(source, &format!("{dir}/resource"));
    let name = format!("cxl-{name}");
    Some(Region { node: cxl_node(source, &dir), start, size, devices: Vec::new(), name })
}

/// The node that a CXL region's memory is, or would be, onlined as: that of its DAX device. Before
/// there is one, the node of the memory device behind its first target is the best guess.
fn cxl_node(source: &Source<'_>, dir: &str) -> Option<NodeId> {
    for (_, region) in source.numbered(dir, "dax_region").unwrap_or_default() {
        let dax = format!("{dir}/{region}");
        for device in source.names(&dax).unwrap_or_default() {
            let node = source.told::<i64>(&format!("{dax}/{device}/target_node"));
            if let Some(node) = node.filter(|_| device.starts_with("dax")) {
                return u32::try_from(node).ok().map(NodeId);
            }
        }
    }
    // target0 is an endpoint decoder, `decoder<port>.<n>`; the endpoint's uport is the memory
    // device.
    let target = source.told::<String>(&format!("{dir}/target0"))?;
    let (port, _) = target.strip_prefix("decoder")?.split_once('.')?;
    numa_node(source, &format!("{CXL}/endpoint{port}/uport/numa_node"))
}

/// A node number; -1 means none.
fn numa_node(source: &Source<'_>, file: &str) -> Option<NodeId> {
    source.told::<u32>(file).map(NodeId)
}

/// First physical address; `None` if only root may read it, or if the region has none yet (all
/// ones).
fn start(source: &Source<'_>, file: &str) -> Option<u64> {
    number(source, file).filter(|start| *start != u64::MAX)
}

/// A number as the kernel prints it: decimal, or hexadecimal with 0x.
fn number(source: &Source<'_>, file: &str) -> Option<u64> {
    let digits = source.told::<String>(file)?;
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}
