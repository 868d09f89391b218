//! Persistent-memory and CXL regions: the node of a range of physical addresses, or of a block
//! device.

use std::io;

use crate::source::Source;
use crate::{NodeId, Region, TopologyError};

const NVDIMM: &str = "bus/nd/devices";
const CXL: &str = "bus/cxl/devices";

/// Children of an nvdimm region that can have a block device: a raw namespace, fsdax (`pfn`) or
/// sector mode (`btt`).
const CARRIERS: [&str; 3] = ["namespace", "pfn", "btt"];

pub(crate) fn read(source: &Source<'_>) -> Result<Vec<Region>, TopologyError> {
    let mut regions = Vec::new();
    for (_, name) in source.numbered(NVDIMM, "region")? {
        regions.push(nvdimm(source, name)?);
    }
    for (_, name) in source.numbered(CXL, "region")? {
        regions.extend(cxl(source, &name)?);
    }
    Ok(regions)
}

/// `drivers/nvdimm/region_devs.c`: `numa_node` and `size` are decimal, `resource` is hexadecimal
/// and for root only.
fn nvdimm(source: &Source<'_>, name: String) -> Result<Region, TopologyError> {
    let dir = format!("{NVDIMM}/{name}");
    let mut devices = Vec::new();
    for child in source.names(&dir)? {
        if !CARRIERS.iter().any(|c| child.strip_prefix(c).is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit())))
        {
            continue;
        }
        for device in source.names(&format!("{dir}/{child}/block"))? {
            // Not needed for the name, but with it a person can tell from a capture which mounts
            // used the device.
            source.optional(&format!("{dir}/{child}/block/{device}/dev"))?;
            devices.push(device);
        }
    }
    Ok(Region {
        node: numa_node(source, &format!("{dir}/numa_node"))?,
        start: start(source, &format!("{dir}/resource"))?,
        size: size(source, &format!("{dir}/size"))?,
        devices,
        name,
    })
}

/// `drivers/cxl/core/region.c`: `size` and `resource` are hexadecimal; a region that is not yet set
/// up has size 0.
fn cxl(source: &Source<'_>, name: &str) -> Result<Option<Region>, TopologyError> {
    let dir = format!("{CXL}/{name}");
    let size = size(source, &format!("{dir}/size"))?;
    if size == 0 {
        return Ok(None);
    }
    let start = start(source, &format!("{dir}/resource"))?;
    let name = format!("cxl-{name}");
    Ok(Some(Region { node: cxl_node(source, &dir)?, start, size, devices: Vec::new(), name }))
}

/// The node that a CXL region's memory is, or would be, onlined as: that of its DAX device. Before
/// there is one, the node of the memory device behind its first target is the best guess.
fn cxl_node(source: &Source<'_>, dir: &str) -> Result<Option<NodeId>, TopologyError> {
    for (_, region) in source.numbered(dir, "dax_region")? {
        let dax = format!("{dir}/{region}");
        for device in source.names(&dax)? {
            let file = format!("{dax}/{device}/target_node");
            if device.starts_with("dax") && source.optional(&file)?.is_some() {
                return numa_node(source, &file);
            }
        }
    }
    // target0 is an endpoint decoder, `decoder<port>.<n>`; the endpoint's uport is the memory
    // device.
    let Some(target) = source.optional(&format!("{dir}/target0"))? else { return Ok(None) };
    let Some(port) = target.trim().strip_prefix("decoder").and_then(|d| d.split_once('.')).map(|(port, _)| port) else {
        return Ok(None);
    };
    let file = format!("{CXL}/endpoint{port}/uport/numa_node");
    match source.optional(&file)? {
        Some(_) => numa_node(source, &file),
        None => Ok(None),
    }
}

/// A node number; -1 means none.
fn numa_node(source: &Source<'_>, file: &str) -> Result<Option<NodeId>, TopologyError> {
    let text = source.text(file)?;
    match text.trim().parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(node) => {
            u32::try_from(node).map(|n| Some(NodeId(n))).map_err(|_| source.wrong(file, &text, "is not a node"))
        }
        Err(_) => Err(source.wrong(file, &text, "is not a node")),
    }
}

/// First physical address; `None` if only root may read it, or if the region has none yet (all
/// ones).
fn start(source: &Source<'_>, file: &str) -> Result<Option<u64>, TopologyError> {
    match source.optional(file) {
        Ok(None) => Ok(None),
        Ok(Some(text)) => number(source, file, &text).map(|start| (start != u64::MAX).then_some(start)),
        Err(TopologyError::Read { source: e, .. }) if e.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(e) => Err(e),
    }
}

fn size(source: &Source<'_>, file: &str) -> Result<u64, TopologyError> {
    let text = source.text(file)?;
    number(source, file, &text)
}

/// A number as the kernel prints it: decimal, or hexadecimal with 0x.
fn number(source: &Source<'_>, file: &str, text: &str) -> Result<u64, TopologyError> {
    let digits = text.trim();
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    }
    .map_err(|_| source.wrong(file, text, "is not a number"))
}
