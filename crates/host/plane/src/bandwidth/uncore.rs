//! Counters of memory controllers, through perf.
//!
//! **Problem.** Each vendor has its own devices in `/sys/bus/event_source/devices`, one for each
//! channel or one for all of a socket, and some say nothing about their events. What counts a
//! node's memory depends on its kind: the DRAM counters of a socket see nothing of the persistent
//! memory on the same channels, nor of CXL memory.
//!
//! **Approach.** A table of devices and events. The codes of an event are put where the device's
//! `format` says; `type` and `cpumask` say how and where to open it. A counter that shares its
//! hardware with others is scaled by the time it ran. Which counter a node gets:
//!
//! | node | counter |
//! |---|---|
//! | with a region of NVDIMMs | the sum of the DRAM counters and the inserts into the `PMM` queues |
//! | without CPUs, of CXL memory | the PMUs of all its devices ([`super::cxl`]) |
//! | others with CPUs | the DRAM counters of its socket |
//!
//! A node that has no counter of its kind, or one that cannot be opened or read, is not measured,
//! and a sentence says why.
//!
//! **Limits.** A socket's counters are its node's only where the socket is one node. The sum of
//! a node with persistent memory does not tell what went to which kind; where DRAM is a cache of
//! persistent memory (Memory Mode), a miss counts in both. NVDIMMs that the kernel runs as memory
//! of a node without CPUs (dax kmem) count for the node of their socket.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use topology::{CpuSet, Node, NodeId, Topology};

use super::{Carried, cxl, pmem};
use crate::perf::{self, Event};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Read,
    Written,
}

#[derive(Clone, Copy, Debug)]
enum Codes {
    /// The device's file `events/NAME`, with `NAME.scale` in MiB.
    Listed(&'static str),
    /// These fields; one count is 64 bytes.
    Known(&'static [(&'static str, u64)]),
}

struct Device {
    prefix: &'static str,
    name: &'static str,
    events: &'static [(What, Codes)],
}

use Codes::{Known, Listed};
use What::{Read as Reads, Written};

/// In the order of preference.
const DEVICES: [Device; 3] = [
    // Servers: one device for each channel.
    Device {
        prefix: "uncore_imc_",
        name: "uncore_imc",
        events: &[(Reads, Listed("cas_count_read")), (Written, Listed("cas_count_write"))],
    },
    // Clients: counters that always run.
    Device {
        prefix: "uncore_imc",
        name: "uncore_imc",
        events: &[(Reads, Listed("data_reads")), (Written, Listed("data_writes"))],
    },
    // `umc_cas_cmd.rd` and `.wr` of the kernel's
    // tools/perf/pmu-events/arch/x86/amdzen4/memory-controller.json.
    Device {
        prefix: "amd_umc_",
        name: "amd_umc",
        events: &[
            (Reads, Known(&[("event", 0x0a), ("rdwrmask", 1)])),
            (Written, Known(&[("event", 0x0a), ("rdwrmask", 2)])),
        ],
    },
];

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spec {
    pub source: &'static str,
    pub what: What,
    pub kind: u32,
    pub config: u64,
    pub cpu: u32,
    pub node: NodeId,
    /// Bytes that one count stands for.
    pub bytes: f64,
}

struct Counter {
    spec: Spec,
    counter: perf::Counter,
    sum: f64,
}

pub(super) struct Counters {
    all: Vec<Counter>,
    /// Why the other nodes have none, or have none any more.
    pub gaps: Vec<String>,
}

impl Counters {
    pub fn open(sys_root: &Path, cpuinfo: &str, topology: &Topology) -> Result<Self, String> {
        let Found { specs, gaps } = found(sys_root, cpuinfo, topology)?;
        Self::of(specs, gaps, open)
    }

    /// Opens these. A node of which one cannot be opened is not measured. The error says why no
    /// node is.
    fn of(
        specs: Vec<Spec>,
        gaps: Vec<String>,
        open: impl Fn(&Spec) -> io::Result<perf::Counter>,
    ) -> Result<Self, String> {
        let (mut all, mut without) = (Vec::new(), BTreeMap::new());
        for spec in specs {
            match open(&spec) {
                Ok(counter) => all.push(Counter { spec, counter, sum: 0.0 }),
                Err(error) => _ = without.entry(spec.node).or_insert_with(|| trouble(&spec, &error)),
            }
        }
        let mut counters = Self { all, gaps };
        counters.leave_out(without);
        if counters.all.is_empty() { Err(counters.gaps.join("; ")) } else { Ok(counters) }
    }

    /// Measures these nodes no more, for these reasons.
    fn leave_out(&mut self, nodes: BTreeMap<NodeId, String>) {
        self.all.retain(|counter| !nodes.contains_key(&counter.spec.node));
        self.gaps.extend(nodes.into_iter().map(|(node, why)| format!("node {node}: {why}")));
    }

    /// What each node carried since the start. A node of which a counter cannot be read, because
    /// its device was removed, is not measured any more.
    pub fn carried(&mut self) -> BTreeMap<NodeId, Carried> {
        let mut without = BTreeMap::new();
        for counter in &mut self.all {
            if let Err(error) = counter.read() {
                without.entry(counter.spec.node).or_insert_with(|| trouble(&counter.spec, &error));
            }
        }
        self.leave_out(without);
        let mut carried: BTreeMap<NodeId, Carried> = BTreeMap::new();
        for counter in &self.all {
            let Spec { source, node, .. } = counter.spec;
            let node = carried.entry(node).or_insert(Carried { source, ..Carried::default() });
            match counter.spec.what {
                Reads => node.read += counter.sum,
                Written => node.written += counter.sum,
            }
        }
        carried
    }
}

fn trouble(spec: &Spec, error: &io::Error) -> String {
    format!("{} on CPU {}: {error}", spec.source, spec.cpu)
}

impl Counter {
    fn read(&mut self) -> io::Result<()> {
        // What never ran adds nothing, until it runs again.
        self.sum += self.counter.take()?.unwrap_or(0.0) * self.spec.bytes;
        Ok(())
    }
}

/// The counters of a machine, and why some of its nodes have none.
#[derive(Debug, Default, PartialEq)]
struct Found {
    specs: Vec<Spec>,
    gaps: Vec<String>,
}

/// The counters of all nodes with memory. The error says why no node has any.
fn found(sys_root: &Path, cpuinfo: &str, topology: &Topology) -> Result<Found, String> {
    let devices = sys_root.join("bus/event_source/devices");
    let mut names: Vec<String> = std::fs::read_dir(&devices)
        .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    let persistent = pmem::nodes(topology);
    let (sockets, cpuless): (Vec<&Node>, Vec<&Node>) =
        topology.nodes.iter().filter(|node| node.memory_bytes > 0).partition(|node| !node.cpus.is_empty());
    let mut found = Found::default();
    match of_sockets(&devices, &names, &sockets) {
        Ok((device, specs)) => {
            let (both, dram): (Vec<Spec>, Vec<Spec>) =
                specs.into_iter().partition(|spec| persistent.contains(&spec.node));
            found.specs.extend(dram);
            if !persistent.is_empty() {
                match pmem::specs(sys_root, cpuinfo, topology, &pmus(&devices, &names, "uncore_imc_")) {
                    // Files in the page cache are in its DRAM, also where nobody uses the region.
                    Ok(queues) => {
                        let both = both.into_iter().map(|spec| Spec { source: pmem::SOURCE, ..spec });
                        found.specs.extend(both.chain(queues));
                    }
                    Err(why) => found.gaps.push(format!(
                        "{}: persistent memory is not counted ({why}), and {device} counts DRAM",
                        named(persistent.iter().copied())
                    )),
                }
            }
        }
        Err(why) => found.gaps.push(why),
    }
    for node in cpuless {
        match cxl::specs(sys_root, topology, node.id, &pmus(&devices, &names, "cxl_pmu_mem")) {
            Ok(specs) => found.specs.extend(specs),
            Err(why) => found.gaps.push(format!("node {}: {why}", node.id)),
        }
    }
    if found.specs.is_empty() { Err(found.gaps.join("; ")) } else { Ok(found) }
}

/// `node 0` or `nodes 0 and 1`.
pub(super) fn named(nodes: impl Iterator<Item = NodeId>) -> String {
    let nodes: Vec<String> = nodes.map(|node| node.to_string()).collect();
    format!("node{} {}", if nodes.len() == 1 { "" } else { "s" }, nodes.join(" and "))
}

/// The counters of the first kind of device that counts the DRAM of all sockets.
fn of_sockets(devices: &Path, names: &[String], sockets: &[&Node]) -> Result<(&'static str, Vec<Spec>), String> {
    let mut trouble = None;
    for device in &DEVICES {
        let mut specs = Vec::new();
        // `uncore_imc_free_running_0` and others like it have other events.
        for name in names.iter().filter(|name| numbered(name, device.prefix)) {
            match of_device(&devices.join(name), device, sockets) {
                Ok(found) => specs.extend(found),
                Err(why) => _ = trouble.get_or_insert(format!("{name}: {why}")),
            }
        }
        let counted: BTreeSet<NodeId> = specs.iter().map(|spec: &Spec| spec.node).collect();
        let nodes: BTreeSet<NodeId> = sockets.iter().map(|node| node.id).collect();
        match () {
            () if specs.is_empty() => {}
            () if counted == nodes => return Ok((device.name, specs)),
            () => {
                let why = format!(
                    "{}: counts {} sockets, but there are {} nodes with memory",
                    device.name,
                    counted.len(),
                    nodes.len()
                );
                trouble.get_or_insert(why);
            }
        }
    }
    Err(trouble.unwrap_or_else(|| "no memory controller PMU (uncore_imc, amd_umc)".to_owned()))
}

/// Whether a name is the prefix, and a number or nothing.
fn numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
}

/// The readable devices whose names are the prefix and a number, which may have a part after a dot.
fn pmus(devices: &Path, names: &[String], prefix: &str) -> Vec<(String, Pmu)> {
    let rest = |name: &String| name.strip_prefix(prefix).map(|rest| rest.to_owned());
    let numbers = |rest: &String| rest.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    names.iter().filter_map(|name| Some((rest(name).filter(numbers)?, Pmu::read(&devices.join(name)).ok()?))).collect()
}

/// A device that counts.
pub(super) struct Pmu {
    dir: PathBuf,
    pub kind: u32,
    /// The CPUs on which its events are opened, one for each socket.
    pub cpus: CpuSet,
}

impl Pmu {
    fn read(dir: &Path) -> Result<Self, String> {
        let mut pmu = Self { dir: dir.to_owned(), kind: 0, cpus: CpuSet::default() };
        pmu.kind = pmu.text("type")?.parse().map_err(|_| "an odd type".to_owned())?;
        pmu.cpus = pmu.text("cpumask")?.parse().map_err(|_| "an odd cpumask".to_owned())?;
        Ok(pmu)
    }

    fn text(&self, name: &str) -> Result<String, String> {
        let text = std::fs::read_to_string(self.dir.join(name)).map_err(|e| format!("{name}: {e}"))?;
        Ok(text.trim().to_owned())
    }

    pub fn lists(&self, event: &str) -> bool {
        self.dir.join("events").join(event).exists()
    }

    /// The event that the kernel lists under a name, and the bytes of one count: 64 unless it has a
    /// scale.
    pub fn listed(&self, event: &str) -> Result<(u64, f64), String> {
        let config = self.config(terms(&self.text(&format!("events/{event}"))?)?)?;
        if !self.lists(&format!("{event}.scale")) {
            return Ok((config, 64.0));
        }
        let scale: f64 = self.text(&format!("events/{event}.scale"))?.parse().map_err(|_| "an odd scale".to_owned())?;
        let unit = self.text(&format!("events/{event}.unit"))?;
        let unit = if unit == "MiB" { 1 << 20 } else { return Err(format!("unit {unit}")) };
        Ok((config, scale * f64::from(unit)))
    }

    /// The codes, put where the device's formats say. A code named `config` is all of it.
    pub fn config(&self, codes: impl IntoIterator<Item = (String, u64)>) -> Result<u64, String> {
        let mut config = 0;
        for (field, code) in codes {
            config |= match &*field {
                "config" => code,
                _ => placed(&self.text(&format!("format/{field}"))?, code).ok_or_else(|| format!("field {field}"))?,
            };
        }
        Ok(config)
    }
}

fn of_device(dir: &Path, device: &Device, sockets: &[&Node]) -> Result<Vec<Spec>, String> {
    let pmu = Pmu::read(dir)?;
    let mut specs = Vec::new();
    for (what, codes) in device.events {
        let (config, bytes) = match codes {
            Known(fields) => (pmu.config(fields.iter().map(|(name, code)| ((*name).to_owned(), *code)))?, 64.0),
            Listed(name) => pmu.listed(name)?,
        };
        for cpu in pmu.cpus.iter() {
            let node = node_of(sockets.iter().copied(), cpu)?;
            specs.push(Spec { source: device.name, what: *what, kind: pmu.kind, config, cpu, node, bytes });
        }
    }
    Ok(specs)
}

pub(super) fn node_of<'a>(nodes: impl IntoIterator<Item = &'a Node>, cpu: u32) -> Result<NodeId, String> {
    let node = nodes.into_iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id);
    node.ok_or_else(|| format!("CPU {cpu} is on no node"))
}

/// `event=0x04,umask=0x03`
fn terms(text: &str) -> Result<Vec<(String, u64)>, String> {
    let term = |term: &str| {
        let (name, code) = term.split_once('=')?;
        let code = match code.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => code.parse(),
        };
        Some((name.to_owned(), code.ok()?))
    };
    text.split(',').map(|t| term(t).ok_or_else(|| format!("event {text}"))).collect()
}

/// A code in the bits that a format names: `config:0-7,32-35` takes its low eight bits, then four
/// more. `None` for another word than `config`, or a code that does not fit.
fn placed(format: &str, mut code: u64) -> Option<u64> {
    let mut config = 0;
    for range in format.strip_prefix("config:")?.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        let bits = high.checked_sub(low)? + 1;
        let mask = u64::MAX.checked_shr(64u32.checked_sub(bits)?)?;
        config |= (code & mask).checked_shl(low)?;
        code = code.checked_shr(bits).unwrap_or(0);
    }
    (code == 0).then_some(config)
}

fn open(spec: &Spec) -> io::Result<perf::Counter> {
    perf::open(Event { kind: spec.kind, config: spec.config }, spec.cpu)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use topology::Node;

    /// Nodes of two CPUs each.
    fn machine(nodes: u32) -> Topology {
        (0..nodes).map(|id| Node::new(NodeId(id), (2 * id..2 * id + 2).collect(), 1 << 30)).collect()
    }

    fn write(sys: &tempfile::TempDir, path: &str, text: &str) {
        let path = sys.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn device(sys: &tempfile::TempDir, name: &str, files: &[(&str, &str)]) {
        for (file, text) in files {
            write(sys, &format!("bus/event_source/devices/{name}/{file}"), text);
        }
    }

    /// As on a Skylake server with two sockets.
    fn intel(cpumask: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (i, kind) in [(0, "13\n"), (1, "14\n")] {
            device(
                &sys,
                &format!("uncore_imc_{i}"),
                &[
                    ("type", kind),
                    ("cpumask", cpumask),
                    ("format/event", "config:0-7\n"),
                    ("format/umask", "config:8-15\n"),
                    ("events/cas_count_read", "event=0x04,umask=0x03\n"),
                    ("events/cas_count_read.scale", "6.103515625e-5\n"),
                    ("events/cas_count_read.unit", "MiB\n"),
                    ("events/cas_count_write", "event=0x04,umask=0x0c\n"),
                    ("events/cas_count_write.scale", "6.103515625e-5\n"),
                    ("events/cas_count_write.unit", "MiB\n"),
                ],
            );
        }
        device(&sys, "uncore_imc_free_running_0", &[("type", "99\n")]);
        device(&sys, "cpu", &[("type", "4\n")]);
        sys
    }

    #[test]
    fn intel_channels_count_for_the_node_of_their_socket() {
        let Found { specs, gaps } = found(intel("0,2\n").path(), "", &machine(2)).unwrap();
        assert_eq!((specs.len(), gaps.len()), (8, 0));
        let spec = |what, kind, config, cpu, node| Spec {
            source: "uncore_imc",
            what,
            kind,
            config,
            cpu,
            node: NodeId(node),
            bytes: 64.0,
        };
        assert_eq!(specs[0], spec(Reads, 13, 0x304, 0, 0));
        assert_eq!(specs[1], spec(Reads, 13, 0x304, 2, 1));
        assert_eq!(specs[2], spec(Written, 13, 0xc04, 0, 0));
        assert_eq!(specs[4], spec(Reads, 14, 0x304, 0, 0));
    }

    /// As the kernel shows a Cascade Lake (`/proc/cpuinfo`, arch/x86/kernel/cpu/proc.c).
    const CASCADE_LAKE: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nstepping\t: 7\n\n";

    fn region(name: &str, node: u32) -> topology::Region {
        topology::Region {
            name: name.into(),
            node: Some(NodeId(node)),
            start: None,
            size: 1 << 30,
            devices: Vec::new(),
        }
    }

    /// Adds a region of NVDIMMs to each node.
    fn with_nvdimms(sys: &tempfile::TempDir, nodes: u32, interface: &str) -> Topology {
        let mut topology = machine(nodes);
        for node in 0..nodes {
            topology.regions.push(region(&format!("region{node}"), node));
            write(sys, &format!("bus/nd/devices/region{node}/mapping0"), &format!("nmem{node},0,1073741824,0\n"));
            write(sys, &format!("bus/nd/devices/nmem{node}/nfit/format"), interface);
        }
        topology
    }

    #[test]
    fn persistent_memory_is_counted_by_its_own_queues_beside_dram() {
        let sys = intel("0,2\n");
        let topology = with_nvdimms(&sys, 2, "0x0301\n");
        let Found { specs, gaps } = found(sys.path(), CASCADE_LAKE, &topology).unwrap();
        assert_eq!(gaps, [""; 0]);
        let of = |node| {
            let of_node = specs.iter().filter(|spec| spec.node == NodeId(node));
            of_node.map(|spec| (spec.source, spec.what, spec.kind, spec.config, spec.bytes)).collect::<Vec<_>>()
        };
        // Of two channels, DRAM commands, and UNC_M_PMM_RPQ_INSERTS and UNC_M_PMM_WPQ_INSERTS. What
        // programs read from the page cache of such a node was missing.
        let spec = |what, kind, config| ("uncore_imc+pmm", what, kind, config, 64.0);
        let both = [
            [spec(Reads, 13, 0x304), spec(Written, 13, 0xc04), spec(Reads, 14, 0x304), spec(Written, 14, 0xc04)],
            [spec(Reads, 13, 0xe3), spec(Written, 13, 0xe7), spec(Reads, 14, 0xe3), spec(Written, 14, 0xe7)],
        ];
        assert_eq!((of(0), of(1)), (both.concat(), both.concat()));
        // Where the kernel names the events, no processor needs to be known.
        for channel in ["uncore_imc_0", "uncore_imc_1"] {
            device(
                &sys,
                channel,
                &[
                    ("events/unc_m_pmm_rpq_inserts", "event=0xe3,umask=0x01\n"),
                    ("events/unc_m_pmm_wpq_inserts", "event=0xe7\n"),
                ],
            );
        }
        let specs = found(sys.path(), "", &topology).unwrap().specs;
        assert_eq!((specs.len(), specs[8].config, specs[8].source), (16, 0x1e3, "uncore_imc+pmm"));
    }

    #[test]
    fn a_node_without_nvdimms_keeps_its_dram_counters() {
        let sys = intel("0,2\n");
        let mut topology = with_nvdimms(&sys, 1, "0x0301\n");
        topology.nodes = machine(2).nodes;
        let specs = found(sys.path(), CASCADE_LAKE, &topology).unwrap().specs;
        let of = |node| specs.iter().filter(|s| s.node == NodeId(node)).map(|s| s.source).collect::<BTreeSet<_>>();
        assert_eq!((of(0), of(1)), (BTreeSet::from(["uncore_imc+pmm"]), BTreeSet::from(["uncore_imc"])));
    }

    #[test]
    fn dram_counters_are_no_measurement_of_persistent_memory() {
        let sys = intel("0,2\n");
        let topology = with_nvdimms(&sys, 2, "0x0301\n");
        let why = found(sys.path(), "vendor_id\t: GenuineIntel\n", &topology).unwrap_err();
        assert_eq!(
            why,
            "nodes 0 and 1: persistent memory is not counted (no event of this processor is known for it), \
             and uncore_imc counts DRAM"
        );
        // NVDIMMs of DRAM with a battery, and DRAM that memmap= makes look like persistent memory.
        let topology = with_nvdimms(&sys, 2, "0x0101\n");
        let why = found(sys.path(), CASCADE_LAKE, &topology).unwrap_err();
        assert!(why.contains("region0: nmem0 has interface 0x0101, Optane has 0x0301"), "{why}");
        std::fs::remove_file(sys.path().join("bus/nd/devices/region0/mapping0")).unwrap();
        let why = found(sys.path(), CASCADE_LAKE, &topology).unwrap_err();
        assert!(why.contains("region0 is not on NVDIMMs"), "{why}");
        // AMD's counters, too.
        let sys = tempfile::tempdir().unwrap();
        let umc = [
            ("type", "20\n"),
            ("cpumask", "0,2\n"),
            ("format/event", "config:0-7\n"),
            ("format/rdwrmask", "config:8-9\n"),
        ];
        device(&sys, "amd_umc_0", &umc);
        let why = found(sys.path(), "", &with_nvdimms(&sys, 2, "0x0101\n")).unwrap_err();
        assert!(why.ends_with("and amd_umc counts DRAM"), "{why}");
    }

    /// Node 2: CXL memory of two devices, as `drivers/cxl/core` and `drivers/perf/cxl_pmu.c` show
    /// it.
    fn with_cxl(sys: &tempfile::TempDir) -> Topology {
        let mut topology = machine(2);
        topology.nodes.push(Node::new(NodeId(2), CpuSet::default(), 1 << 30));
        topology.regions.push(region("cxl-region0", 2));
        write(sys, "bus/cxl/devices/region0/interleave_ways", "2\n");
        for (target, port) in [(0, 3), (1, 5)] {
            write(sys, &format!("bus/cxl/devices/region0/target{target}"), &format!("decoder{port}.0\n"));
            write(sys, &format!("bus/cxl/devices/mem{target}/numa_node"), "0\n");
            std::fs::create_dir_all(sys.path().join(format!("bus/cxl/devices/endpoint{port}"))).unwrap();
            let uport = sys.path().join(format!("bus/cxl/devices/endpoint{port}/uport"));
            std::os::unix::fs::symlink(format!("../mem{target}"), uport).unwrap();
            device(
                sys,
                &format!("cxl_pmu_mem{target}.0"),
                &[
                    ("type", &*format!("{}\n", 40 + target)),
                    ("cpumask", "1\n"),
                    ("format/mask", "config:0-31\n"),
                    ("format/gid", "config:32-47\n"),
                    ("format/vid", "config:48-63\n"),
                    ("events/clock_ticks", "config=0x1e98000000000001\n"),
                    ("events/s2m_drs_memdata", "config=0x1e98002500000001\n"),
                    ("events/m2s_rwd_memwr", "config=0x1e98002100000002\n"),
                ],
            );
        }
        topology
    }

    #[test]
    fn cxl_memory_is_counted_by_its_devices() {
        let sys = intel("0,2\n");
        let topology = with_cxl(&sys);
        let Found { specs, gaps } = found(sys.path(), "", &topology).unwrap();
        assert_eq!(gaps, [""; 0]);
        let cxl: Vec<_> =
            specs.iter().filter(|s| s.node == NodeId(2)).map(|s| (s.what, s.kind, s.config, s.cpu)).collect();
        let (data, request) = (0x1e98_0025_0000_0001, 0x1e98_0021_0000_0002);
        assert_eq!(
            cxl,
            [(Reads, 40, data, 1), (Written, 40, request, 1), (Reads, 41, data, 1), (Written, 41, request, 1)]
        );
        assert_eq!(specs.iter().filter(|s| s.source == "uncore_imc").count(), 8, "the sockets as before");
        // One device without counters: the node is not measured, the others are.
        std::fs::remove_file(sys.path().join("bus/event_source/devices/cxl_pmu_mem1.0/events/m2s_rwd_memwr")).unwrap();
        let Found { specs, gaps } = found(sys.path(), "", &topology).unwrap();
        assert_eq!(specs.len(), 8);
        assert_eq!(gaps, ["node 2: mem1 has no PMU that counts m2s_rwd_memwr or m2s_rwd_memwrptl"]);
    }

    #[test]
    fn memory_without_cpus_or_counters_leaves_the_sockets_measured() {
        let mut topology = machine(2);
        topology.nodes.push(Node::new(NodeId(2), CpuSet::default(), 1 << 30));
        let Found { specs, gaps } = found(intel("0,2\n").path(), "", &topology).unwrap();
        assert_eq!((specs.len(), gaps), (8, vec!["node 2: no counter is known for its memory".to_owned()]));
    }

    /// One event of persistent memory that could not be opened, or a CXL device that was removed,
    /// left every socket unmeasured.
    #[test]
    fn trouble_with_one_nodes_counter_leaves_the_others_measured() {
        let dir = tempfile::tempdir().unwrap();
        let path = |node: NodeId, what: What| dir.path().join(format!("{node}{what:?}"));
        let spec = |node: u32, what| Spec {
            source: "uncore_imc",
            what,
            kind: 13,
            config: 0,
            cpu: 2 * node,
            node: NodeId(node),
            bytes: 64.0,
        };
        let specs: Vec<Spec> = (0..3).flat_map(|node| [spec(node, Reads), spec(node, Written)]).collect();
        let count = |events: u64| [events, 1, 1].map(u64::to_ne_bytes).concat();
        for spec in specs.iter().filter(|spec| (spec.node, spec.what) != (NodeId(1), Written)) {
            // The device of node 2 is there for one reading.
            let readings = if spec.node == NodeId(2) { 1 } else { 2 };
            std::fs::write(path(spec.node, spec.what), count(5).repeat(readings)).unwrap();
        }
        let open = |spec: &Spec| File::open(path(spec.node, spec.what)).map(perf::Counter::new);
        let mut counters = Counters::of(specs.clone(), vec!["x".to_owned()], open).unwrap();
        let nodes = |counters: &mut Counters| counters.carried().into_keys().map(|node| node.0).collect::<Vec<_>>();
        assert_eq!(nodes(&mut counters), [0, 2]);
        assert_eq!(counters.gaps.len(), 2);
        assert!(counters.gaps[1].starts_with("node 1: uncore_imc on CPU 2: No such file"), "{:?}", counters.gaps);
        assert_eq!(nodes(&mut counters), [0]);
        assert!(counters.gaps[2].starts_with("node 2: uncore_imc on CPU 4: "), "{:?}", counters.gaps);
        let none = Counters::of(specs, Vec::new(), |_| Err(io::ErrorKind::PermissionDenied.into())).err().unwrap();
        assert!(none.starts_with("node 0: uncore_imc on CPU 0: permission denied; node 1: "), "{none}");
    }

    #[test]
    fn sockets_of_several_nodes_are_not_guessed_at() {
        let why = found(intel("0\n").path(), "", &machine(2)).unwrap_err();
        assert_eq!(why, "uncore_imc: counts 1 sockets, but there are 2 nodes with memory");
        let why = found(intel("9\n").path(), "", &machine(2)).unwrap_err();
        assert_eq!(why, "uncore_imc_0: CPU 9 is on no node");
    }

    #[test]
    fn an_amd_device_takes_codes_from_the_table() {
        let sys = tempfile::tempdir().unwrap();
        device(
            &sys,
            "amd_umc_0",
            &[
                ("type", "20\n"),
                ("cpumask", "0,2\n"),
                ("format/event", "config:0-7\n"),
                ("format/rdwrmask", "config:8-9\n"),
            ],
        );
        let specs = found(sys.path(), "", &machine(2)).unwrap().specs;
        let configs: Vec<_> = specs.iter().map(|s| (s.what, s.config)).collect();
        assert_eq!((specs[0].source, specs[0].bytes), ("amd_umc", 64.0));
        assert_eq!(configs, [(Reads, 0x10a), (Reads, 0x10a), (Written, 0x20a), (Written, 0x20a)]);
    }

    #[test]
    fn codes_go_where_the_format_says() {
        for (format, code, config) in [
            ("config:0-7", 0x04, Some(0x04)),
            ("config:8-15", 0x03, Some(0x300)),
            ("config:0-7,32-35", 0x1c7, Some(0x1_0000_00c7)),
            ("config:18", 1, Some(1 << 18)),
            ("config:0-63", u64::MAX, Some(u64::MAX)),
            ("config:0-7", 0x100, None),
            ("config1:0-7", 1, None),
            ("config:7-0", 1, None),
            ("config:0-99", 1, None),
            ("config:70-71", 1, None),
            ("", 1, None),
        ] {
            assert_eq!(placed(format, code), config, "{format}");
        }
        assert_eq!(terms("event=0x04,umask=3").unwrap(), [("event".to_owned(), 4), ("umask".to_owned(), 3)]);
        assert!(terms("event").is_err() && terms("event=x").is_err());
    }
}
