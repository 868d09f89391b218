//! The conditions that a snapshot must satisfy before any decision.
//!
//! **Problem.** People record, edit and write snapshots by hand. A wrong one must lead to an error
//! message that helps them, not to a plan.
//!
//! **Approach.** One pass checks all fields and stops at the first impossible value, named by its
//! JSON path.
//!
//! **Limits.** The check rejects impossible values, not unlikely ones. It compares no sums, because
//! sampling makes sums differ from totals. A node is known if it is listed or if the distance table
//! of a listed node mentions it.

use std::fmt::Display;

use rustc_hash::{FxHashMap, FxHashSet};
use topology::NodeId;

use crate::snapshot::{FileUse, IdleFile, NodeLoad, ObservedFile, Process, RANGE_BYTES, Thread, VERSION};
use crate::{NodeBytes, Outcome, OutcomeState, Snapshot, SnapshotError};

/// Largest byte count: 2^53 (9 petabytes). Beyond it, JSON readers that hold numbers as doubles
/// lose digits.
pub const MAX_BYTES: u64 = 1 << 53;
/// Largest number of seconds (30 years).
const MAX_SECONDS: f64 = 1e9;
/// Largest bandwidth of a node, bytes/s (an exabyte per second).
const MAX_BANDWIDTH: f64 = 1e18;
/// Largest number of nodes: the kernel's own limit (`NODES_SHIFT` ≤ 10).
const MAX_NODES: usize = 1024;
/// Largest number of threads: the kernel's own limit (`PID_MAX_LIMIT`).
const MAX_THREADS: usize = 1 << 22;
/// Upper bound of CPU numbers (`NR_CPUS` ≤ 8,192, with room above).
const MAX_CPU: u32 = 65_536;
/// SLIT distances are one byte.
const MAX_DISTANCE: u32 = 255;

type Checked = Result<(), SnapshotError>;

fn wrong(field: impl Display, why: impl Display) -> Checked {
    Err(SnapshotError::Value { field: field.to_string(), why: why.to_string() })
}

impl Snapshot {
    /// Checks all values; the first impossible one is the error.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Version`], or [`SnapshotError::Value`] with the field's JSON path and its
    /// value.
    pub fn validate(&self) -> Result<(), SnapshotError> {
        if self.version != VERSION {
            return Err(SnapshotError::Version(self.version));
        }
        if !(self.window_s > 0.0 && self.window_s <= MAX_SECONDS) {
            return wrong("window_s", format_args!("{} is not a positive number of seconds", self.window_s));
        }
        seconds("time_s", self.time_s)?;
        count("nodes", self.nodes.len(), MAX_NODES)?;
        count("threads", self.threads.len(), MAX_THREADS)?;
        if self.nodes.is_empty() {
            return wrong("nodes", "empty: a machine has at least one node");
        }
        let known = nodes(&self.nodes)?;
        threads("threads", &self.threads, &known)?;
        count("ended", self.ended.len(), MAX_THREADS)?;
        threads("ended", &self.ended, &known)?;
        files(&self.files, &known)?;
        idle(&self.idle, &known)?;
        processes(&self.processes, &known)?;
        outcomes(&self.outcomes, &known)
    }
}

/// The ids of nodes that a snapshot describes or mentions.
struct Known(FxHashSet<NodeId>);

impl Known {
    fn check(&self, field: impl Display, node: NodeId) -> Checked {
        if self.0.contains(&node) {
            return Ok(());
        }
        let mut ids: Vec<_> = self.0.iter().map(|id| id.0).collect();
        ids.sort_unstable();
        let shown: Vec<_> = ids.iter().take(16).map(u32::to_string).collect();
        let more = if ids.len() > shown.len() { ", …" } else { "" };
        wrong(field, format_args!("node {node} is not among the nodes of this snapshot ({}{more})", shown.join(", ")))
    }

    fn check_bytes(&self, field: impl Display, bytes: &NodeBytes) -> Checked {
        for (node, n) in bytes.iter() {
            self.check(&field, node)?;
            self::bytes(format_args!("{field}.{node}"), n)?;
        }
        Ok(())
    }
}

fn nodes(nodes: &[NodeLoad]) -> Result<Known, SnapshotError> {
    let mut known = FxHashSet::default();
    let mut node_of_cpu: FxHashMap<u32, NodeId> = FxHashMap::default();
    for (i, node) in nodes.iter().enumerate() {
        let at = format!("nodes[{i}] (node {})", node.id);
        if !known.insert(node.id) {
            wrong(&at, "listed twice")?;
        }
        for &cpu in &node.cpus {
            if cpu >= MAX_CPU {
                wrong(format_args!("{at}.cpus"), format_args!("{cpu} is larger than any CPU number"))?;
            }
            if let Some(other) = node_of_cpu.insert(cpu, node.id) {
                wrong(format_args!("{at}.cpus"), format_args!("CPU {cpu} is already on node {other}"))?;
            }
        }
        for (&other, &distance) in &node.distance {
            if distance == 0 || distance > MAX_DISTANCE {
                wrong(
                    format_args!("{at}.distance.{other}"),
                    format_args!("{distance} is not within 1 to {MAX_DISTANCE}"),
                )?;
            }
        }
        for (key, value) in [("read_bw_max", node.read_bw_max), ("write_bw_max", node.write_bw_max)] {
            if let Some(value) = value.filter(|v| !(*v > 0.0 && *v <= MAX_BANDWIDTH)) {
                wrong(
                    format_args!("{at}.{key}"),
                    format_args!("{value} is not a positive number of bytes per second"),
                )?;
            }
        }
        bytes(format_args!("{at}.read_bytes"), node.read_bytes)?;
        bytes(format_args!("{at}.write_bytes"), node.write_bytes)?;
        bytes(format_args!("{at}.memory_free"), node.memory_free)?;
        seconds(format_args!("{at}.cpu_s"), node.cpu_s.unwrap_or(0.0))?;
        if let Some(reclaim) = &node.reclaim {
            bytes(format_args!("{at}.reclaim.high_watermark"), reclaim.high_watermark)?;
            bytes(format_args!("{at}.reclaim.free_on_lists"), reclaim.free_on_lists)?;
            bytes(format_args!("{at}.reclaim"), reclaim.pressure().saturating_add(reclaim.after_pressure()))?;
        }
        if let Some(measured) = &node.measured {
            bytes(format_args!("{at}.measured.bytes"), measured.bytes)?;
            if measured.read_bytes.is_some_and(|read| read > measured.bytes) {
                wrong(format_args!("{at}.measured.read_bytes"), "more than the bytes read and written together")?;
            }
        }
    }
    known.extend(nodes.iter().flat_map(|n| n.distance.keys().copied()));
    count("nodes", known.len(), MAX_NODES)?;
    Ok(Known(known))
}

fn threads(name: &str, threads: &[Thread], known: &Known) -> Checked {
    let mut tids = FxHashSet::default();
    for (i, thread) in threads.iter().enumerate() {
        let at = format!("{name}[{i}] (tid {})", thread.tid);
        if name == "threads" && !tids.insert(thread.tid) {
            wrong(&at, "listed twice")?;
        }
        known.check(format_args!("{at}.node"), thread.node)?;
        for (k, &node) in thread.allowed_nodes.iter().enumerate() {
            known.check(format_args!("{at}.allowed_nodes[{k}]"), node)?;
        }
        seconds(format_args!("{at}.cpu_s"), thread.cpu_s)?;
        seconds(format_args!("{at}.wait_s"), thread.wait_s.unwrap_or(0.0))?;
        seconds(format_args!("{at}.served_s"), thread.served_s.unwrap_or(0.0))?;
        known.check_bytes(format_args!("{at}.read_bytes"), &thread.read_bytes)?;
        known.check_bytes(format_args!("{at}.write_bytes"), &thread.write_bytes)?;
        known.check_bytes(format_args!("{at}.handed_bytes"), &thread.handed_bytes)?;
        bytes(format_args!("{at}.remote_read_bytes"), thread.remote_read_bytes.unwrap_or(0))?;
        for (k, FileUse { read_bytes, write_bytes, read_size, .. }) in thread.files.iter().enumerate() {
            known.check_bytes(format_args!("{at}.files[{k}].read_bytes"), read_bytes)?;
            known.check_bytes(format_args!("{at}.files[{k}].write_bytes"), write_bytes)?;
            bytes(format_args!("{at}.files[{k}].read_size"), read_size.unwrap_or(0))?;
        }
    }
    Ok(())
}

fn files(files: &[ObservedFile], known: &Known) -> Checked {
    let mut ids = FxHashSet::default();
    for (i, file) in files.iter().enumerate() {
        // `size` has no bound: a sparse file may claim any length up to 2^64 − 1.
        let at = format!("files[{i}] (file {})", file.file);
        if !ids.insert(file.file) {
            wrong(&at, "listed twice")?;
        }
        known.check_bytes(format_args!("{at}.bytes"), &file.bytes)?;
        for (k, range) in file.ranges.iter().enumerate() {
            let at = format!("{at}.ranges[{k}]");
            known.check(format_args!("{at}.node"), range.node)?;
            known.check(format_args!("{at}.by"), range.by)?;
            bytes(format_args!("{at}.bytes"), range.bytes)?;
            start(&at, range.start)?;
        }
        if let Some(share) = file.sampled.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            wrong(format_args!("{at}.sampled"), format_args!("{share} is not a share above 0, up to 1"))?;
        }
        if file.pinned.is_some() && file.movable != Some(false) {
            wrong(format_args!("{at}.pinned"), "given for a file that is not said to be immovable")?;
        }
    }
    Ok(())
}

fn start(at: impl Display, start: u64) -> Checked {
    match start.is_multiple_of(RANGE_BYTES) {
        true => Ok(()),
        false => wrong(format_args!("{at}.start"), format_args!("{start} is no multiple of {RANGE_BYTES}")),
    }
}

fn idle(files: &[IdleFile], known: &Known) -> Checked {
    for (i, file) in files.iter().enumerate() {
        for (k, range) in file.ranges.iter().enumerate() {
            let at = format!("idle[{i}] (file {}).ranges[{k}]", file.file);
            known.check(format_args!("{at}.node"), range.node)?;
            bytes(format_args!("{at}.bytes"), range.bytes)?;
            start(&at, range.start)?;
        }
    }
    Ok(())
}

fn processes(processes: &[Process], known: &Known) -> Checked {
    let mut pids = FxHashSet::default();
    for (i, process) in processes.iter().enumerate() {
        let at = format!("processes[{i}] (pid {})", process.pid);
        if !pids.insert(process.pid) {
            wrong(&at, "listed twice")?;
        }
        known.check_bytes(format_args!("{at}.resident"), &process.resident)?;
        for (k, mapped) in process.mapped.iter().enumerate() {
            let at = format!("{at}.mapped[{k}]");
            known.check(format_args!("{at}.node"), mapped.node)?;
            bytes(format_args!("{at}.hot_bytes"), mapped.hot_bytes)?;
            bytes(format_args!("{at}.cold_bytes"), mapped.cold_bytes)?;
            bytes(format_args!("{at}.touched_bytes"), mapped.touched_bytes.unwrap_or(0))?;
        }
    }
    Ok(())
}

fn outcomes(outcomes: &[Outcome], known: &Known) -> Checked {
    for (i, Outcome { from, to, result, .. }) in outcomes.iter().enumerate() {
        let at = format!("outcomes[{i}]");
        known.check(format_args!("{at}.from"), *from)?;
        known.check(format_args!("{at}.to"), *to)?;
        let (all, some) = match result {
            OutcomeState::Done { bytes, failed } => (*bytes, *failed),
            OutcomeState::Running { bytes, done } => (*bytes, *done),
            OutcomeState::Failed { bytes, .. } => (*bytes, 0),
            _ => (0, 0),
        };
        bytes(format_args!("{at}.result"), all.max(some))?;
    }
    Ok(())
}

fn bytes(field: impl Display, value: u64) -> Checked {
    match value <= MAX_BYTES {
        true => Ok(()),
        false => wrong(field, format_args!("{value} bytes is more than any machine has ({MAX_BYTES})")),
    }
}

fn seconds(field: impl Display, value: f64) -> Checked {
    match (0.0..=MAX_SECONDS).contains(&value) {
        true => Ok(()),
        false => wrong(field, format_args!("{value} is not within 0 to {MAX_SECONDS} seconds")),
    }
}

fn count(field: &str, value: usize, most: usize) -> Checked {
    match value <= most {
        true => Ok(()),
        false => wrong(field, format_args!("{value} entries, more than the kernel's limit of {most}")),
    }
}
