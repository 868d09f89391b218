//! What `homenode nodes --measure` found: the form of its file, and the bandwidths it gives.
//!
//! **Problem.** Most firmware tells no bandwidth, and what it tells is rated. Policies, the
//! simulator and the people who compare machines need figures of this machine.
//!
//! **Approach.** One JSON file (`docs/nodes.schema.json`) with a curve of latency over bandwidth
//! for each pair of a node with CPUs and a node with memory, and the machine that it was measured
//! on. [`Measured::bandwidths`] gives the highest read and write bandwidth of each node's memory.
//!
//! **Limits.** A file fits a machine with the same processor and the same nodes and CPUs
//! ([`Measured::why_not`]); a change of memory modules goes unnoticed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::NodeConfig;
use crate::error::MeasuredError;
use crate::{CpuSet, NodeId, Topology, TopologyError};

/// The only version of the file.
pub const VERSION: u32 = 1;

/// Largest file that is read: 64 nodes with all their pairs are below it.
const LARGEST: u64 = 64 << 20;

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Format version, 1.
    pub version: u32,
    /// Version of the homenode that measured.
    pub homenode: String,
    /// When it was measured: seconds since 1970, UTC.
    pub unix_s: u64,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// The processor's name, as `/proc/cpuinfo` has it; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// The hypervisor, such as `kvm` or `tcg` (QEMU's emulation); absent on a machine of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// The processor is emulated, and with it every time.
    #[serde(default)]
    pub emulated: bool,
    /// The machine, without bandwidths.
    pub topology: Topology,
    /// Bytes of memory that loads go through on each node.
    pub buffer_bytes: u64,
    /// Bytes of the largest cache of the processor, all of them together; 0 if unknown.
    #[serde(default)]
    pub cache_bytes: u64,
    /// How writes were made: `non_temporal` (past the cache) or `cached` (each line is read first,
    /// which is not counted).
    pub writes: Writes,
    /// Each node with CPUs and each node with memory.
    pub pairs: Vec<Pair>,
    /// What used the machine meanwhile: its memory is at least as fast as these figures say. Absent
    /// where it was quiet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<String>,
    /// What limits these figures, in plain sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How writes were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Writes {
    /// Past the cache.
    NonTemporal,
    /// Through the cache.
    Cached,
}

/// Memory of one node as CPUs of one node reach it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Node of the CPUs.
    pub cpu_node: NodeId,
    /// Node of the memory.
    pub memory_node: NodeId,
    /// Seconds of one load that waits for the one before, while nothing else runs.
    pub latency_s: f64,
    /// Under rising reads.
    pub reads: Vec<Point>,
    /// Under rising writes.
    pub writes: Vec<Point>,
    /// Under two reads for each write.
    pub reads_2_writes_1: Vec<Point>,
    /// Reads of a file in the page cache, by one thread.
    pub cached: Vec<Cached>,
    /// CPUs that others used meanwhile.
    pub others_cpus: f64,
    /// All this was measured several times, and these are the best figures: the largest share of
    /// the lowest by which the highest of a kind was above it. Absent where there was time for once
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
}

/// One step of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Threads of the load.
    pub threads: u32,
    /// Bytes that the load moved per second.
    pub bytes_per_s: f64,
    /// Seconds of a load that waits for the one before, beside it; absent at full load, which takes
    /// the CPU that waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_s: Option<f64>,
}

/// `pread` of a cached file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cached {
    /// Bytes of one call.
    pub bytes: u64,
    /// Seconds of one call.
    pub call_s: f64,
}

impl Measured {
    /// Reads a file's text, and checks its figures.
    ///
    /// # Errors
    ///
    /// [`MeasuredError`].
    pub fn from_json(text: &str) -> Result<Self, MeasuredError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        // Another version may have other fields.
        let Versioned { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(MeasuredError::Version { version, read: VERSION });
        }
        let measured: Self = serde_json::from_str(text)?;
        for pair in &measured.pairs {
            pair.check()?;
        }
        Ok(measured)
    }

    /// Reads a file, of at most 64 MiB.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Read`], or [`TopologyError::Measured`] for something else than such a file.
    pub fn read(path: &Path) -> Result<Self, TopologyError> {
        // To open a pipe would wait for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let text = File::options().read(true).custom_flags(flags).open(path).and_then(|file| {
            let mut text = String::new();
            // To read one, too.
            let regular = file.metadata()?.is_file();
            file.take(if regular { LARGEST } else { 0 }).read_to_string(&mut text).map(|_| text)
        });
        let text = text.map_err(|e| TopologyError::read(path, e))?;
        Self::from_json(&text).map_err(|source| TopologyError::Measured { path: path.to_owned(), source })
    }

    /// The largest spread of a pair.
    pub fn spread(&self) -> Option<f64> {
        self.pairs.iter().filter_map(|pair| pair.spread).reduce(f64::max)
    }

    /// What a load from this node's memory takes its nearest CPUs, seconds; `None` if it was not
    /// measured.
    pub fn latency_s(&self, memory: NodeId) -> Option<f64> {
        let own = self.pairs.iter().filter(|pair| pair.memory_node == memory);
        own.map(|pair| pair.latency_s).reduce(f64::min)
    }

    /// The highest bandwidth of each node's memory, from whichever node reaches it fastest.
    pub fn bandwidths(&self) -> BTreeMap<NodeId, NodeConfig> {
        let mut all: BTreeMap<NodeId, NodeConfig> = BTreeMap::new();
        let more =
            |have: Option<f64>, points: &[Point]| points.iter().map(|p| p.bytes_per_s).chain(have).reduce(f64::max);
        for pair in &self.pairs {
            let node = all.entry(pair.memory_node).or_default();
            node.read_bw_max = more(node.read_bw_max, &pair.reads);
            node.write_bw_max = more(node.write_bw_max, &pair.writes);
        }
        all
    }

    /// Why these figures are not of this machine; `None` if they are.
    pub fn why_not(&self, topology: &Topology, processor: Option<&str>) -> Option<String> {
        if let (Some(then), Some(now)) = (self.processor.as_deref(), processor)
            && then != now
        {
            return Some(format!("measured on another processor ({then})"));
        }
        let shape = |topology: &Topology| -> Vec<(NodeId, CpuSet)> {
            topology.nodes.iter().map(|n| (n.id, n.cpus.union(&n.offline_cpus))).collect()
        };
        (shape(&self.topology) != shape(topology)).then(|| "measured on a machine with other nodes or CPUs".to_owned())
    }

    /// The machine that was measured, with its bandwidths.
    pub fn machine(&self) -> Topology {
        let bandwidths = self.bandwidths();
        let mut topology = self.topology.clone();
        for node in &mut topology.nodes {
            if let Some(found) = bandwidths.get(&node.id) {
                (node.read_bw_max, node.write_bw_max) = (found.read_bw_max, found.write_bw_max);
            }
        }
        topology
    }
}

impl Pair {
    fn check(&self) -> Result<(), MeasuredError> {
        let of = format!("of CPUs of node {} and memory of node {}", self.cpu_node, self.memory_node);
        let loads = [("read", &self.reads), ("write", &self.writes), ("2:1", &self.reads_2_writes_1)];
        let loads = loads.iter().flat_map(|(what, points)| {
            points.iter().flat_map(move |p| {
                [
                    Some((format!("{what} bandwidth"), p.bytes_per_s)),
                    p.latency_s.map(|s| (format!("{what} latency"), s)),
                ]
            })
        });
        let cached = self.cached.iter().map(|c| (format!("time of a cached read of {} bytes", c.bytes), c.call_s));
        let all = loads.flatten().chain(cached).chain([("latency".to_owned(), self.latency_s)]);
        for (what, value) in all {
            if !(value.is_finite() && value > 0.0) {
                return Err(MeasuredError::Value { what: format!("the {what} {of}"), value });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    fn measured() -> Measured {
        let node = |id: u32| Node::new(NodeId(id), [2 * id, 2 * id + 1].into_iter().collect(), 1 << 30);
        let point = |bytes_per_s| Point { threads: 2, bytes_per_s, latency_s: None };
        let pair = |cpu: u32, memory: u32, read: f64| Pair {
            cpu_node: NodeId(cpu),
            memory_node: NodeId(memory),
            latency_s: 1e-7,
            reads: vec![point(read / 2.0), point(read)],
            writes: vec![point(read / 4.0)],
            reads_2_writes_1: vec![point(read / 3.0)],
            cached: vec![Cached { bytes: 4096, call_s: 1e-6 }],
            others_cpus: 0.0,
            spread: None,
        };
        Measured {
            version: 1,
            homenode: "0.1.0".to_owned(),
            unix_s: 0,
            took_s: 1.0,
            processor: Some("P".to_owned()),
            hypervisor: None,
            emulated: false,
            topology: [node(0), node(1)].into_iter().collect(),
            buffer_bytes: 1 << 26,
            cache_bytes: 0,
            writes: Writes::NonTemporal,
            pairs: vec![pair(0, 0, 8e9), pair(0, 1, 4e9), pair(1, 0, 4e9), pair(1, 1, 9e9)],
            busy: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_fastest_pair_gives_a_nodes_bandwidth() {
        let machine = measured().machine();
        let of = |id| machine.node(NodeId(id)).map(|n| (n.read_bw_max, n.write_bw_max));
        assert_eq!(of(0), Some((Some(8e9), Some(2e9))));
        assert_eq!(of(1), Some((Some(9e9), Some(2.25e9))));
    }

    #[test]
    fn figures_of_another_machine_are_recognised() {
        let measured = measured();
        let mut machine = measured.topology.clone();
        assert_eq!(measured.why_not(&machine, Some("P")), None);
        assert_eq!(measured.why_not(&machine, None), None);
        assert!(measured.why_not(&machine, Some("Q")).is_some_and(|why| why.contains("another processor (P)")));
        // A CPU that went offline is no other machine; one that is not there is.
        let node = &mut machine.nodes[1];
        (node.cpus, node.offline_cpus) = ([2].into_iter().collect(), [3].into_iter().collect());
        assert_eq!(measured.why_not(&machine, Some("P")), None);
        machine.nodes[1].offline_cpus = CpuSet::default();
        assert!(measured.why_not(&machine, Some("P")).is_some_and(|why| why.contains("other nodes")));
    }

    #[test]
    fn a_pipe_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
        assert!(matches!(Measured::read(&pipe), Err(TopologyError::Measured { .. })));
    }

    #[test]
    fn what_is_written_reads_back_and_what_cannot_be_is_named() {
        let good = measured();
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(Measured::from_json(&text).unwrap(), good);
        let mut bad = good.clone();
        bad.pairs[1].reads[0].bytes_per_s = 0.0;
        let error = Measured::from_json(&serde_json::to_string(&bad).unwrap()).unwrap_err().to_string();
        assert_eq!(
            error,
            "the read bandwidth of CPUs of node 0 and memory of node 1 is 0: it must be a positive, finite number"
        );
        assert!(Measured::from_json("{\"version\":2}").unwrap_err().to_string().contains("version 2"));
        for text in ["", "{}", "[1]", "{\"version\":1}"] {
            assert!(Measured::from_json(text).unwrap_err().to_string().contains("not measured figures"), "{text}");
        }
    }
}
