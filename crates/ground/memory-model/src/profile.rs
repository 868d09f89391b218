//! Profiles of emulated memory: the figures, their sources, and the machine that they make.
//!
//! **Problem.** A policy is judged by what memory costs, and the machine at hand has one node, or
//! other memory than the one that is of interest.
//!
//! **Approach.** A [`Profile`] names the figures of the nodes' memory ([`Memory`]) as the real one
//! has them, and a *scale* by which everything takes longer: real memory carries more than the
//! processors at hand can copy through a file system, and a policy is worth nothing where the
//! processor is the limit. The figures are those of [`figures`](crate::figures), but for the
//! bandwidths of `cxl`.
//!
//! **Limits.** The processors are as fast as they are: relative to the memory, software is `scale`
//! times too fast, unless a volume charges its time ([`Software`](crate::Software)).

use serde::Deserialize;
use topology::{CpuSet, Node, NodeId, Topology, tiers};

use crate::figures::*;
use crate::{LOCAL, ONE_HOP, at_hops};

/// Memory of one node, at full speed (scale 1).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Bytes/s that the controller carries if it only reads.
    pub read_bw: f64,
    /// Bytes/s that it carries if it only writes.
    pub write_bw: f64,
    /// Bytes/s of reads that policies are told, the data sheet's; `read_bw` if absent.
    #[serde(default)]
    pub read_peak: Option<f64>,
    /// Bytes/s of writes that policies are told; `write_bw` if absent.
    #[serde(default)]
    pub write_peak: Option<f64>,
    /// Seconds that the smallest local read takes.
    pub read_latency_s: f64,
    /// Seconds that the smallest local write takes.
    pub write_latency_s: f64,
    /// Seconds that one thread alone needs to read a byte of a larger piece.
    #[serde(default)]
    pub read_s: f64,
    /// Seconds that one thread alone needs to write a byte of a larger piece.
    #[serde(default)]
    pub write_s: f64,
    /// How many times as long a thread takes to read from one hop away.
    pub remote_read: f64,
    /// How many times as long a thread takes to write one hop away.
    pub remote_write: f64,
    /// How many times as long a byte from one hop away occupies the controller.
    #[serde(default = "one")]
    pub remote_load: f64,
    /// Bytes of the smallest access: smaller ones cost as much.
    #[serde(default = "one_line")]
    pub line: u64,
    /// Modules of a node, among which writers are spread evenly.
    #[serde(default = "one")]
    pub modules: f64,
    /// How strongly many writers crowd a module's buffer: 0, it has none; 1, as
    /// [`crowded`](crate::crowded) has it.
    #[serde(default)]
    pub crowding: f64,
}

fn one() -> f64 {
    1.0
}

fn one_line() -> u64 {
    64 // the processor's
}

/// Profile of emulated memory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name, for people.
    pub name: String,
    /// How many times as long everything takes as on the machine that the figures are of.
    pub scale: f64,
    /// Memory of every node.
    pub memory: Memory,
}

/// Whether an access reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the memory.
    Read,
    /// To the memory.
    Write,
}

/// Cost of an access, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Time that the controller is occupied.
    pub service_ns: u64,
    /// Time until the access is done if nobody else wants the controller.
    pub alone_ns: u64,
}

impl Cost {
    /// The cost if the controller takes this many times as long.
    #[must_use]
    pub fn crowded(self, times: f64) -> Self {
        let service_ns = (self.service_ns as f64 * times) as u64;
        Self { service_ns, alone_ns: self.alone_ns.max(service_ns) }
    }
}

impl Memory {
    /// One module of Optane DC persistent memory of 128 GB.
    pub const OPTANE: Self = Self {
        read_bw: OPTANE_READ_BW,
        write_bw: OPTANE_WRITE_BW,
        read_peak: Some(OPTANE_READ_PEAK),
        write_peak: Some(OPTANE_WRITE_PEAK),
        read_latency_s: OPTANE_READ_LATENCY_S,
        write_latency_s: OPTANE_WRITE_LATENCY_S,
        read_s: OPTANE_READ_S,
        write_s: OPTANE_WRITE_S,
        remote_read: REMOTE_READ_LATENCY,
        remote_write: REMOTE_WRITE_LATENCY,
        remote_load: REMOTE_LOAD,
        line: OPTANE_LINE as u64,
        modules: 1.0,
        crowding: 1.0,
    };

    /// So many of them on a node: data and writers are spread over all, so the node carries that
    /// many times as much, a module is crowded by its share of the writers, and one thread alone is
    /// no faster.
    #[must_use]
    pub fn modules(self, modules: f64) -> Self {
        let more = |bw: f64| bw * modules;
        Self {
            read_bw: more(self.read_bw),
            write_bw: more(self.write_bw),
            read_peak: self.read_peak.map(more),
            write_peak: self.write_peak.map(more),
            modules: self.modules * modules,
            ..self
        }
    }

    /// DRAM: eight channels of DDR4-3200 a node. Bandwidths, and the times of a thread that reads
    /// or writes a file, are the guesses of [`figures`](crate::figures) for current machines; the
    /// latency and the factor of a hop were measured (AT 4.1).
    pub const DRAM: Self = Self {
        read_bw: DRAM_READ_BW,
        write_bw: DRAM_WRITE_BW,
        read_peak: None,
        write_peak: None,
        read_latency_s: DRAM_LATENCY_S,
        write_latency_s: DRAM_LATENCY_S,
        read_s: DRAM_READ_S,
        write_s: DRAM_WRITE_S,
        remote_read: DRAM_REMOTE_LATENCY,
        remote_write: DRAM_REMOTE_LATENCY,
        remote_load: 1.0,
        line: 64,
        modules: 1.0,
        crowding: 0.0,
    };

    /// A CXL memory expander on each node. The bandwidths are chosen, times per byte and the factor
    /// of a hop as of DRAM; the latency is a guess: three times that of local DRAM.
    pub const CXL: Self = Self {
        read_bw: 24e9,
        write_bw: 20e9,
        read_latency_s: 3.0 * DRAM_LATENCY_S,
        write_latency_s: 3.0 * DRAM_LATENCY_S,
        ..Self::DRAM
    };

    /// Cost of an access to so many bytes from `hops` away, everything taking `scale` times as
    /// long.
    pub fn cost(&self, direction: Direction, bytes: u64, hops: f64, scale: f64) -> Cost {
        let bytes = bytes.max(self.line) as f64;
        let (bw, latency_s, per_byte_s, remote) = match direction {
            Direction::Read => (self.read_bw, self.read_latency_s, self.read_s, self.remote_read),
            Direction::Write => (self.write_bw, self.write_latency_s, self.write_s, self.remote_write),
        };
        let service = bytes / bw * at_hops(self.remote_load, hops);
        let alone = latency_s.max(bytes * per_byte_s) * at_hops(remote, hops);
        let ns = |seconds: f64| (seconds * scale * 1e9) as u64;
        Cost { service_ns: ns(service), alone_ns: ns(alone.max(service)) }
    }

    /// Factor by which this many writers lengthen the write of a byte.
    pub fn crowded(&self, writers: u32) -> f64 {
        1.0 + self.crowding * (crate::crowded(f64::from(writers) / self.modules) - 1.0)
    }

    fn check(&self) -> Result<(), String> {
        let parts = [(1.0, self.modules), (0.0, self.crowding)];
        if !parts.iter().all(|(least, value)| (*least..=1000.0).contains(value)) {
            return Err(format!(
                "modules is {}, it must be 1 to 1000; crowding is {}, it must be 0 to 1000",
                self.modules, self.crowding
            ));
        }
        let positive = [("read_bw", self.read_bw), ("write_bw", self.write_bw)];
        let peaks = [("read_peak", self.read_peak), ("write_peak", self.write_peak)];
        let peaks = peaks.into_iter().filter_map(|(name, peak)| Some((name, peak?)));
        for (name, value) in positive.into_iter().chain(peaks) {
            if !(value >= 1e6 && value.is_finite()) {
                return Err(format!("{name} is {value}, it must be at least a million bytes per second"));
            }
        }
        let times = [
            ("read_latency_s", self.read_latency_s),
            ("write_latency_s", self.write_latency_s),
            ("read_s", self.read_s),
            ("write_s", self.write_s),
        ];
        for (name, value) in times {
            if !(0.0..=1.0).contains(&value) {
                return Err(format!("{name} is {value}, it must be 0 to 1 second"));
            }
        }
        let factors =
            [("remote_read", self.remote_read), ("remote_write", self.remote_write), ("remote_load", self.remote_load)];
        for (name, value) in factors {
            if !(1.0..=1000.0).contains(&value) {
                return Err(format!("{name} is {value}, it must be a factor from 1 to 1000"));
            }
        }
        Ok(())
    }
}

impl Profile {
    /// The profiles that need no file.
    pub const NAMES: [&str; 4] = ["optane", "optane-6", "cxl", "dram"];

    /// The profile of this name. Its scale lets a node carry 30 MB/s of reads, 7,300 a second of 4
    /// KiB: chosen so that two processors that serve it through FUSE are not the limit.
    pub fn named(name: &str) -> Option<Self> {
        let (memory, scale) = match name {
            "optane" => (Memory::OPTANE, 200.0),
            // Dragonfly Table I: six modules a node.
            "optane-6" => (Memory::OPTANE.modules(6.0), 1200.0),
            "cxl" => (Memory::CXL, 800.0),
            "dram" => (Memory::DRAM, 5000.0),
            _ => return None,
        };
        Some(Self { name: name.to_owned(), scale, memory })
    }

    /// Refuses figures that cannot be, naming the figure and its value.
    ///
    /// # Errors
    ///
    /// One sentence.
    pub fn check(&self) -> Result<(), String> {
        if !(self.scale >= 1.0 && self.scale <= 1e6) {
            return Err(format!("scale is {}, it must be 1 to 1000000", self.scale));
        }
        self.memory.check()
    }

    /// A machine of so many nodes, every pair one hop apart, that shares out these CPUs in groups
    /// of neighbours. A node beyond the number of CPUs has none. Bandwidths are the peaks, scaled;
    /// `bytes` is the memory of each node, all of one tier.
    pub fn topology(&self, cpus: &CpuSet, nodes: u32, bytes: u64) -> Topology {
        let count = cpus.len();
        let first = |id: u32| count * id as usize / nodes.max(1) as usize;
        let distance = |a: u32, b: u32| if a == b { LOCAL } else { ONE_HOP };
        let memory = &self.memory;
        let node = |id: u32| {
            let cpus: CpuSet = cpus.iter().skip(first(id)).take(first(id + 1) - first(id)).collect();
            Node {
                distance: (0..nodes).map(|to| (NodeId(to), distance(id, to))).collect(),
                read_bw_max: Some(memory.read_peak.unwrap_or(memory.read_bw) / self.scale),
                write_bw_max: Some(memory.write_peak.unwrap_or(memory.write_bw) / self.scale),
                ..Node::new(NodeId(id), cpus, bytes)
            }
        };
        let mut topology: Topology = (0..nodes).map(node).collect();
        let latencies = (0..nodes).map(|id| (NodeId(id), memory.read_latency_s)).collect();
        tiers::from_latencies(&mut topology.nodes, latencies);
        topology
    }
}
