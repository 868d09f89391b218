//! A window that `homenode record` wrote, as programs of a host: the load of one machine on
//! another.
//!
//! **Approach.** Each thread that read or wrote files becomes a [`Program`]. A call has its mean
//! bytes; the calls go to its files and nodes in proportion to what it did there. Of the seconds of
//! a call on a core, those of the kernel and of local memory alone are taken off, as the laboratory
//! adds them again; the rest of the window it sleeps. Data of the recorded machine's i-th node goes
//! to the i-th node here, starting over if there are fewer; so do threads that are bound. The
//! kernel places the others.
//!
//! **Limits.** One window stands for the load. What a file has on two nodes is two files, and each
//! thread is a process of its own, with no memory but its files. A thread that was faster than the
//! modelled memory is too slow. Mapped memory, and load that no snapshot lists, are missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memory_model::figures::CALL_S;
use memory_model::{Direction, Memory};
use placement::{NodeBytes, Snapshot, Thread};
use serde::Deserialize;
use topology::{FileId, NodeId};

use super::programs::{FileSpec, Program, Programs, Share};
use crate::host::Kind;

/// Bytes of a call where the window does not say.
const CALL: u64 = 65536;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// The recording: a snapshot a line.
    pub path: PathBuf,
    /// Which of its lines, from 1.
    #[serde(default = "first")]
    pub window: usize,
}

fn first() -> usize {
    1
}

impl Recorded {
    /// Its load, for a machine of so many nodes.
    ///
    /// # Errors
    ///
    /// A sentence: the file cannot be read, or has no such window.
    pub fn programs(&self, nodes: usize) -> Result<Programs, String> {
        let name = |path: &Path| path.display().to_string();
        let text = std::fs::read_to_string(&self.path).map_err(|error| format!("{}: {error}", name(&self.path)))?;
        let line = self.window.checked_sub(1).and_then(|at| text.lines().nth(at));
        let line = line.ok_or_else(|| format!("{} has no window {}", name(&self.path), self.window))?;
        let snapshot = Snapshot::from_json(line).map_err(|error| format!("{}: {error}", name(&self.path)))?;
        let programs = programs(&snapshot, nodes.max(1));
        match programs.program.is_empty() {
            true => Err(format!("window {} of {} has no thread that used files", self.window, name(&self.path))),
            false => Ok(programs),
        }
    }
}

fn programs(snapshot: &Snapshot, nodes: usize) -> Programs {
    let index = |node: NodeId| snapshot.nodes.iter().position(|known| known.id == node).unwrap_or_default() % nodes;
    let mut all = Programs::default();
    let mut known: BTreeMap<(FileId, usize), usize> = BTreeMap::new();
    for thread in &snapshot.threads {
        let total = thread.read_bytes.total().saturating_add(thread.write_bytes.total());
        if total == 0 || snapshot.window_s <= 0.0 {
            continue;
        }
        let mut uses: BTreeMap<usize, (u64, bool)> = BTreeMap::new();
        for used in &thread.files {
            for (node, bytes) in used.read_bytes.iter().chain(used.write_bytes.iter()).filter(|(_, bytes)| *bytes > 0) {
                let node_bytes = |file: &placement::ObservedFile| file.bytes.get(node);
                let observed = snapshot.files.iter().find(|file| file.file == used.file);
                let file = *known.entry((used.file, index(node))).or_insert_with(|| {
                    let there = observed.map(node_bytes).filter(|there| *there > 0).unwrap_or(bytes);
                    let moves = observed.and_then(|file| file.movable) != Some(false);
                    let cache = if moves { Kind::PageCache } else { Kind::Arc };
                    all.file.push(FileSpec { bytes: there as f64, cache, node: Some(index(node)) });
                    all.file.len() - 1
                });
                let sum = uses.entry(file).or_default();
                *sum = (sum.0.saturating_add(bytes), used.sequential == Some(false));
            }
        }
        all.program.extend(program(thread, snapshot.window_s, total, uses, index(thread.node)));
    }
    all
}

fn program(
    thread: &Thread,
    window_s: f64,
    total: u64,
    uses: BTreeMap<usize, (u64, bool)>,
    node: usize,
) -> Option<Program> {
    let listed: u64 = uses.values().map(|(bytes, _)| bytes).sum();
    let sizes = thread.files.iter().filter_map(|used| Some((used.file_bytes() as f64, used.read_size? as f64)));
    let (bytes, calls) = sizes.fold((0.0, 0.0), |(bytes, calls), (more, size)| (bytes + more, calls + more / size));
    let block = if calls > 0.0 { (bytes / calls).round().max(1.0) as u64 } else { CALL };
    let calls = total as f64 / block as f64;
    let share = |bytes: &NodeBytes| bytes.total() as f64 / total as f64;
    let read = share(&thread.read_bytes);
    let alone = |direction| Memory::DRAM.cost(direction, block, 0.0, 1.0).alone_ns as f64 * 1e-9;
    let below_s = CALL_S + read * alone(Direction::Read) + (1.0 - read) * alone(Direction::Write);
    let of_core_s = (thread.cpu_s / calls).max(below_s);
    let bound = thread.pinned.is_some();
    let uses: Vec<Share> = uses
        .into_iter()
        .map(|(file, (bytes, random))| Share { file, share: bytes as f64 / listed.max(1) as f64, random })
        .collect();
    (!uses.is_empty()).then(|| Program {
        name: thread.comm.clone(),
        threads: 1,
        on: bound.then_some(node),
        bound,
        start_s: 0.0,
        own_bytes: 0.0,
        block,
        read,
        random: false,
        passes: None,
        cpu_s: of_core_s - below_s,
        sleep_s: (window_s / calls - of_core_s - thread.wait_s.unwrap_or(0.0) / calls).max(0.0),
        uses,
    })
}
