//! What the CXL memory of a node carries: the PMUs of its devices.
//!
//! **Problem.** A node of CXL memory has no CPUs, so no socket's counters are its own.
//!
//! **Approach.** From Linux 6.5 on, a device with a PMU is `cxl_pmu_memN.M`, where `memN` is the
//! memory device. A region names the devices that it is interleaved over, and its node. Each answer
//! with data is 64 bytes read, each request with data 64 bytes written. A node is measured if all
//! devices of all its regions count both.
//!
//! **Limits.** A device with several regions counts for each of their nodes together; such nodes
//! are not measured. No such machine was at hand. The files in the tests are those that
//! `drivers/perf/cxl_pmu.c` and `drivers/cxl/core` make.

use std::collections::BTreeSet;
use std::path::Path;

use topology::{NodeId, Topology};

use super::uncore::{Pmu, Spec, What};

/// Events whose messages carry a line of 64 bytes. A partial write costs the device a whole one; a
/// device that does not list it has none.
const READS: &[&str] = &["s2m_drs_memdata"];
const WRITES: &[&str] = &["m2s_rwd_memwr", "m2s_rwd_memwrptl"];

/// The counters of a node's devices, or why it is not measured.
pub(super) fn specs(
    sys_root: &Path,
    topology: &Topology,
    node: NodeId,
    pmus: &[(String, Pmu)],
) -> Result<Vec<Spec>, String> {
    let cxl = sys_root.join("bus/cxl/devices");
    let (mut own, mut others) = (BTreeSet::new(), BTreeSet::new());
    for region in &topology.regions {
        let Some(name) = region.name.strip_prefix("cxl-") else { continue };
        match region.node == Some(node) {
            true => own.extend(devices(&cxl, name)?),
            false => others.extend(devices(&cxl, name).unwrap_or_default()),
        }
    }
    if own.is_empty() {
        return Err("no counter is known for its memory".to_owned());
    }
    if let Some(shared) = own.intersection(&others).next() {
        return Err(format!("{shared} also carries memory of another node"));
    }
    let mut specs = Vec::new();
    for device in &own {
        let of_device = |(name, _): &&(String, Pmu)| name.split('.').next() == device.strip_prefix("mem");
        for (what, events) in [(What::Read, READS), (What::Written, WRITES)] {
            let before = specs.len();
            for (number, pmu) in pmus.iter().filter(of_device) {
                let cpu = pmu.cpus.iter().next().ok_or_else(|| format!("cxl_pmu_mem{number} has no CPU"))?;
                for event in events.iter().filter(|event| pmu.lists(event)) {
                    let (config, bytes) = pmu.listed(event).map_err(|why| format!("cxl_pmu_mem{number}: {why}"))?;
                    specs.push(Spec { source: "cxl_pmu", what, kind: pmu.kind, config, cpu, node, bytes });
                }
                // Several PMUs of a device see the same messages.
                if specs.len() > before {
                    break;
                }
            }
            if specs.len() == before {
                return Err(format!("{device} has no PMU that counts {}", events.join(" or ")));
            }
        }
    }
    Ok(specs)
}

/// The memory devices of a region: its targets are endpoint decoders, `decoder<port>.<n>`, and the
/// endpoint's uport is the device.
fn devices(cxl: &Path, region: &str) -> Result<BTreeSet<String>, String> {
    let text = |path: &str| std::fs::read_to_string(cxl.join(path)).map_err(|error| format!("{path}: {error}"));
    let ways = text(&format!("{region}/interleave_ways"))?;
    let ways: u32 = ways.trim().parse().map_err(|_| format!("{region}/interleave_ways: {}", ways.trim()))?;
    let mut devices = BTreeSet::new();
    for target in 0..ways.min(64) {
        let decoder = text(&format!("{region}/target{target}"))?;
        let port = decoder.trim().strip_prefix("decoder").and_then(|decoder| decoder.split_once('.'));
        let (port, _) = port.ok_or_else(|| format!("{region}/target{target}: {}", decoder.trim()))?;
        let uport = format!("endpoint{port}/uport");
        let link = std::fs::read_link(cxl.join(&uport)).map_err(|error| format!("{uport}: {error}"))?;
        devices.extend(link.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    Ok(devices)
}
