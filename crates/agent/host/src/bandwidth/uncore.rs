//! Counters of memory controllers, through perf.
//!
//! **Problem.** Each vendor has its own devices in `/sys/bus/event_source/devices`, one for each
//! channel or one for all of a socket, and some say nothing about their events.
//!
//! **Approach.** A table of devices and events. The codes of an event are put where the device's
//! `format` says; `type` and `cpumask` say how and where to open it. A counter that shares its
//! hardware with others is scaled by the time it ran.
//!
//! **Limits.** A socket's counters are its node's only where the socket is one node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::path::Path;

use topology::{CpuSet, NodeId, Topology};

use super::Carried;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    Written,
    Either,
}

/// Where the codes of an event come from.
#[derive(Clone, Copy, Debug)]
enum Codes {
    /// The device's file `events/NAME`, with `NAME.scale` in MiB.
    Listed(&'static str),
    /// These fields; one count is 64 bytes.
    Known(&'static [(&'static str, u64)]),
}

/// A kind of device.
struct Device {
    prefix: &'static str,
    name: &'static str,
    events: &'static [(What, Codes)],
}

use Codes::{Known, Listed};
use What::{Either, Read as Reads, Written};

/// In the order of preference.
const DEVICES: [Device; 4] = [
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
    // `dram_channel_data_controller_0` to `_7` of amdzen1/data-fabric.json (the same in amdzen2 and
    // amdzen3).
    Device {
        prefix: "amd_df",
        name: "amd_df",
        events: &[
            (Either, Known(&[("event", 0x07), ("umask", 0x38)])),
            (Either, Known(&[("event", 0x47), ("umask", 0x38)])),
            (Either, Known(&[("event", 0x87), ("umask", 0x38)])),
            (Either, Known(&[("event", 0xc7), ("umask", 0x38)])),
            (Either, Known(&[("event", 0x107), ("umask", 0x38)])),
            (Either, Known(&[("event", 0x147), ("umask", 0x38)])),
            (Either, Known(&[("event", 0x187), ("umask", 0x38)])),
            (Either, Known(&[("event", 0x1c7), ("umask", 0x38)])),
        ],
    },
];

/// A counter to open.
#[derive(Clone, Debug, PartialEq)]
struct Spec {
    what: What,
    kind: u32,
    config: u64,
    cpu: u32,
    node: NodeId,
    bytes: f64,
}

/// An open counter.
struct Counter {
    spec: Spec,
    file: File,
    /// The last reading: count, time enabled, time running.
    last: [u64; 3],
    sum: f64,
}

/// The counters of all nodes.
pub(super) struct Counters {
    name: &'static str,
    all: Vec<Counter>,
}

impl Counters {
    pub fn open(sys_root: &Path, topology: &Topology) -> Result<Self, String> {
        let (name, specs) = specs(sys_root, topology)?;
        let opened = |spec: Spec| {
            let file = open(&spec).map_err(|error| format!("{name} on CPU {}: {error}", spec.cpu))?;
            Ok::<_, String>(Counter { spec, file, last: [0; 3], sum: 0.0 })
        };
        Ok(Self { name, all: specs.into_iter().map(opened).collect::<Result<_, _>>()? })
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether reads are told from writes.
    pub fn apart(&self) -> bool {
        self.all.iter().all(|counter| counter.spec.what != Either)
    }

    pub fn carried(&mut self) -> Result<BTreeMap<NodeId, Carried>, String> {
        let mut carried: BTreeMap<NodeId, Carried> = BTreeMap::new();
        for counter in &mut self.all {
            counter.read().map_err(|error| format!("{} on CPU {}: {error}", self.name, counter.spec.cpu))?;
            let node = carried.entry(counter.spec.node).or_default();
            match counter.spec.what {
                Reads => node.read += counter.sum,
                Written => node.written += counter.sum,
                Either => node.either += counter.sum,
            }
        }
        Ok(carried)
    }
}

impl Counter {
    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0u8; 24];
        self.file.read_exact(&mut bytes)?;
        let mut now = [0u64; 3];
        for (word, bytes) in now.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
        }
        self.sum += scaled(self.last, now) * self.spec.bytes;
        self.last = now;
        Ok(())
    }
}

/// Events between two readings, as if the counter had run all the time.
fn scaled(last: [u64; 3], now: [u64; 3]) -> f64 {
    let [count, enabled, running] = [0, 1, 2].map(|i| now[i].wrapping_sub(last[i]) as f64);
    if running > 0.0 { count * (enabled / running).max(1.0) } else { 0.0 }
}

/// The counters of the first kind of device that this machine has.
fn specs(sys_root: &Path, topology: &Topology) -> Result<(&'static str, Vec<Spec>), String> {
    let devices = sys_root.join("bus/event_source/devices");
    let mut names: Vec<String> = std::fs::read_dir(&devices)
        .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    let mut trouble = None;
    for device in &DEVICES {
        let mut specs = Vec::new();
        // `uncore_imc_free_running_0` and others like it have other events.
        for name in names.iter().filter(|name| numbered(name, device.prefix)) {
            match of_device(&devices.join(name), device, topology) {
                Ok(found) => specs.extend(found),
                Err(why) => _ = trouble.get_or_insert(format!("{name}: {why}")),
            }
        }
        let counted: BTreeSet<NodeId> = specs.iter().map(|spec: &Spec| spec.node).collect();
        let nodes: BTreeSet<NodeId> =
            topology.nodes.iter().filter(|node| node.memory_bytes > 0).map(|node| node.id).collect();
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
    Err(trouble.unwrap_or_else(|| "no memory controller PMU (uncore_imc, amd_umc, amd_df)".to_owned()))
}

/// Whether a name is the prefix, and a number or nothing.
fn numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
}

fn of_device(dir: &Path, device: &Device, topology: &Topology) -> Result<Vec<Spec>, String> {
    let read = |name: &str| {
        std::fs::read_to_string(dir.join(name)).map(|text| text.trim().to_owned()).map_err(|e| format!("{name}: {e}"))
    };
    let kind: u32 = read("type")?.parse().map_err(|_| "an odd type".to_owned())?;
    let cpus: CpuSet = read("cpumask")?.parse().map_err(|_| "an odd cpumask".to_owned())?;
    let mut specs = Vec::new();
    for (what, codes) in device.events {
        let (fields, bytes) = match codes {
            Known(fields) => (fields.iter().map(|(name, code)| ((*name).to_owned(), *code)).collect(), 64.0),
            Listed(name) => {
                let scale: f64 =
                    read(&format!("events/{name}.scale"))?.parse().map_err(|_| "an odd scale".to_owned())?;
                let unit = read(&format!("events/{name}.unit"))?;
                let unit = if unit == "MiB" { 1 << 20 } else { return Err(format!("unit {unit}")) };
                (terms(&read(&format!("events/{name}"))?)?, scale * f64::from(unit))
            }
        };
        let mut config = 0;
        for (field, code) in fields {
            config |= placed(&read(&format!("format/{field}"))?, code).ok_or_else(|| format!("field {field}"))?;
        }
        for cpu in cpus.iter() {
            let node = topology.nodes.iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id);
            let node = node.ok_or_else(|| format!("CPU {cpu} is on no node"))?;
            specs.push(Spec { what: *what, kind, config, cpu, node, bytes });
        }
    }
    Ok(specs)
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

/// The first version of `struct perf_event_attr` (include/uapi/linux/perf_event.h), which every
/// kernel takes.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

/// PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING.
const TIMES: u64 = 3;
/// PERF_FLAG_FD_CLOEXEC.
const CLOEXEC: libc::c_ulong = 8;

fn open(spec: &Spec) -> io::Result<File> {
    let size = size_of::<PerfEventAttr>() as u32;
    let attr =
        PerfEventAttr { kind: spec.kind, size, config: spec.config, read_format: TIMES, ..PerfEventAttr::default() };
    // SAFETY: the structure is as long as it says and outlives the call; all processes (-1) on one
    // CPU.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, spec.cpu, -1, CLOEXEC) };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor that nothing else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use topology::Node;

    /// Nodes of two CPUs each.
    pub fn machine(nodes: u32) -> Topology {
        (0..nodes).map(|id| Node::new(NodeId(id), (2 * id..2 * id + 2).collect(), 1 << 30)).collect()
    }

    pub fn write(sys: &tempfile::TempDir, path: &str, text: &str) {
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
        let (name, specs) = specs(intel("0,2\n").path(), &machine(2)).unwrap();
        assert_eq!((name, specs.len()), ("uncore_imc", 8));
        let spec = |what, kind, config, cpu, node| Spec { what, kind, config, cpu, node: NodeId(node), bytes: 64.0 };
        assert_eq!(specs[0], spec(Reads, 13, 0x304, 0, 0));
        assert_eq!(specs[1], spec(Reads, 13, 0x304, 2, 1));
        assert_eq!(specs[2], spec(Written, 13, 0xc04, 0, 0));
        assert_eq!(specs[4], spec(Reads, 14, 0x304, 0, 0));
    }

    #[test]
    fn sockets_of_several_nodes_are_not_guessed_at() {
        let why = specs(intel("0\n").path(), &machine(2)).unwrap_err();
        assert_eq!(why, "uncore_imc: counts 1 sockets, but there are 2 nodes with memory");
        let why = specs(intel("9\n").path(), &machine(2)).unwrap_err();
        assert_eq!(why, "uncore_imc_0: CPU 9 is on no node");
    }

    #[test]
    fn amd_devices_take_codes_from_the_table() {
        let sys = tempfile::tempdir().unwrap();
        let format = [
            ("type", "10\n"),
            ("cpumask", "0,2\n"),
            ("format/event", "config:0-7,32-35,59-60\n"),
            ("format/umask", "config:8-15\n"),
        ];
        device(&sys, "amd_df", &format);
        let (name, found) = specs(sys.path(), &machine(2)).unwrap();
        assert_eq!((name, found.len()), ("amd_df", 16));
        // Event 0x107: its ninth bit is bit 32.
        assert!(found.iter().any(|s| s.config == 1 << 32 | 0x3807 && s.what == Either && s.bytes == 64.0), "{found:?}");
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
        let (name, found) = specs(sys.path(), &machine(2)).unwrap();
        let configs: Vec<_> = found.iter().map(|s| (s.what, s.config)).collect();
        assert_eq!(name, "amd_umc");
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

    #[test]
    fn counters_that_share_hardware_are_scaled() {
        // Ran for half of the time.
        assert_eq!(scaled([100, 1000, 1000], [150, 3000, 2000]), 100.0);
        assert_eq!(scaled([100, 1000, 1000], [150, 2000, 2000]), 50.0);
        assert_eq!(scaled([0; 3], [0, 1000, 0]), 0.0);
    }
}
