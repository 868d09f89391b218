//! What the persistent memory of a node carries: the queues of Intel's memory controllers.
//!
//! **Problem.** `cas_count_read` and `cas_count_write` are commands to DRAM. Persistent memory is
//! on the same channels behind queues of its own, so a node whose files are there looks idle. The
//! other way round, the queues see nothing of a node's page cache.
//! NThread measured it with ipmwatch.
//!
//! **Approach.** Each insert into the queue of reads (RPQ) or writes (WPQ) is a line of 64 bytes.
//! Where the kernel does not name the events, their codes are those of Intel's event files, which
//! are the same on the three generations of processors that take such memory. A region counts as
//! such memory if it lies on NVDIMMs whose interface is Optane's, not on batteries or on DRAM that
//! a boot parameter made look like it.
//!
//! **Limits.** No such machine was at hand. The files in the tests are those that the kernel's
//! drivers make (`arch/x86/events/intel/uncore_snbep.c`, `drivers/acpi/nfit/core.c`).

use std::collections::BTreeSet;
use std::path::Path;

use topology::{NodeId, Region, Topology};

use super::uncore::{Pmu, Spec, What, named, node_of};

/// Name of the sum of these queues and of the DRAM counters: the DRAM counters alone measure no
/// node with persistent memory.
pub(super) const SOURCE: &str = "uncore_imc+pmm";

/// Kernel names, and the event codes `UNC_M_PMM_RPQ_INSERTS` and `UNC_M_PMM_WPQ_INSERTS` of
/// `uncore-memory.json` in the kernel's tools/perf/pmu-events/arch/x86/{cascadelakex, icelakex,
/// sapphirerapids}.
const INSERTS: [(What, &str, u64); 2] =
    [(What::Read, "unc_m_pmm_rpq_inserts", 0xe3), (What::Written, "unc_m_pmm_wpq_inserts", 0xe7)];

/// A line of cache.
const INSERT_BYTES: f64 = 64.0;

/// Byte-addressable memory that needs no energy to keep its data (`NFIT_FIC_BYTEN` of
/// drivers/acpi/nfit.h): Optane.
const OPTANE_INTERFACE: &str = "0x0301";

fn nvdimm(region: &&Region) -> bool {
    !region.name.starts_with("cxl-")
}

pub(super) fn nodes(topology: &Topology) -> BTreeSet<NodeId> {
    topology.regions.iter().filter(nvdimm).filter_map(|region| region.node).collect()
}

/// The counters of all nodes with persistent memory, or why one has none.
pub(super) fn specs(
    sys_root: &Path,
    cpuinfo: &str,
    topology: &Topology,
    channels: &[(String, Pmu)],
) -> Result<Vec<Spec>, String> {
    for region in topology.regions.iter().filter(nvdimm) {
        is_optane(sys_root, region)?;
    }
    let nodes = nodes(topology);
    let codes_known = takes_optane(cpuinfo);
    let mut specs = Vec::new();
    for (number, pmu) in channels {
        for (what, event, code) in INSERTS {
            let of_channel = |why| format!("uncore_imc_{number}: {why}");
            let (config, bytes) = match () {
                () if pmu.lists(event) => pmu.listed(event).map_err(of_channel)?,
                () if codes_known => (pmu.config([("event".to_owned(), code)]).map_err(of_channel)?, INSERT_BYTES),
                () => return Err("no event of this processor is known for it".to_owned()),
            };
            for cpu in pmu.cpus.iter() {
                let node = node_of(&topology.nodes, cpu)?;
                if nodes.contains(&node) {
                    specs.push(Spec { source: SOURCE, what, kind: pmu.kind, config, cpu, node, bytes });
                }
            }
        }
    }
    let counted: BTreeSet<NodeId> = specs.iter().map(|spec| spec.node).collect();
    if counted == nodes {
        return Ok(specs);
    }
    Err(format!("no memory controller PMU of {}", named(nodes.difference(&counted).copied())))
}

/// Whether the DIMMs of a region are Optane: `mapping0` is `nmem0,OFFSET,SIZE,POSITION`.
fn is_optane(sys_root: &Path, region: &Region) -> Result<(), String> {
    let devices = sys_root.join("bus/nd/devices");
    let mapping = std::fs::read_to_string(devices.join(&region.name).join("mapping0"))
        .map_err(|_| format!("{} is not on NVDIMMs", region.name))?;
    let dimm = mapping.split(',').next().unwrap_or_default();
    let format = std::fs::read_to_string(devices.join(dimm).join("nfit/format"));
    let format = format.map_err(|error| format!("{}: {dimm}: nfit/format: {error}", region.name))?;
    match format.trim() {
        OPTANE_INTERFACE => Ok(()),
        other => Err(format!("{}: {dimm} has interface {other}, Optane has {OPTANE_INTERFACE}", region.name)),
    }
}

/// Whether the first processor of `/proc/cpuinfo` is of a generation that takes Optane: Cascade or
/// Cooper Lake, Ice Lake, Sapphire Rapids (by the models of the kernel's
/// tools/perf/pmu-events/arch/x86/mapfile.csv).
fn takes_optane(cpuinfo: &str) -> bool {
    let field = |name: &str| {
        let line = cpuinfo.lines().take_while(|line| !line.is_empty());
        line.filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    let number = |name| field(name).and_then(|value| value.parse::<u32>().ok());
    let Some((6, model)) = number("cpu family").zip(number("model")) else { return false };
    let stepping = number("stepping").unwrap_or(0);
    field("vendor_id") == Some("GenuineIntel")
        && match model {
            // Below stepping 5 it is a Skylake.
            0x55 => stepping >= 5,
            0x6a | 0x6c | 0x8f => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_that_take_optane_are_told_by_model_and_stepping() {
        let of = |vendor, family, model, stepping| {
            // As in the kernel's arch/x86/kernel/cpu/proc.c; the second processor is another one.
            takes_optane(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
                 model name\t: Intel(R) Xeon(R) Gold 6240M CPU @ 2.60GHz\nstepping\t: {stepping}\n\n\
                 processor\t: 1\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nstepping\t: 8\n"
            ))
        };
        assert!(of("GenuineIntel", 6, 85, 7), "Cascade Lake");
        assert!(!of("GenuineIntel", 6, 85, 4), "Skylake");
        assert!(of("GenuineIntel", 6, 106, 6), "Ice Lake");
        assert!(of("GenuineIntel", 6, 143, 8), "Sapphire Rapids");
        assert!(!of("GenuineIntel", 6, 207, 2), "Emerald Rapids");
        assert!(!of("AuthenticAMD", 25, 85, 7));
        assert!(!takes_optane(""));
    }
}
