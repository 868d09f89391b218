//! Which node's memory is under each byte of a block device, and where on its device a file's bytes
//! are.
//!
//! **Problem.** One file system can cover the persistent memory of several nodes: device-mapper
//! puts the devices one after the other (`dm-linear`, which is what LVM makes of a linear volume).
//! sysfs then says that the device has several parts, not where each begins.
//!
//! **Approach.** A device without parts is on the node of the nearest directory above it in sysfs
//! that has one (for `pmem0` that is its namespace or region). If all parts of a device are on one
//! node, so is the device. Else the device-mapper table says which range is on which part
//! ([`mapper`]), and the extents of a file ([`fiemap`]) say which ranges it has.
//!
//! **Limits.** Only root may read the table. Ranges of targets other than `linear` (stripes,
//! mirrors, RAID) have no known node unless all their parts are on one.

pub mod fiemap;
mod mapper;
pub mod mount;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use topology::NodeId;

use self::mapper::Target;

/// Deepest stack of device-mapper devices; no real one is deeper.
const DEPTH: usize = 8;

/// `SECTOR_SIZE`, `linux/blk_types.h`: the unit of device-mapper tables.
const SECTOR: u64 = 512;

/// The nodes of a block device's memory, by range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One after the other, from the device's first byte to beyond its end.
    pieces: Vec<Piece>,
}

/// A range of a device on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    start: u64,
    end: u64,
    /// `None`: not known.
    node: Option<NodeId>,
}

/// Reads the table of a device-mapper device.
type Table<'a> = &'a dyn Fn((u32, u32)) -> io::Result<Vec<Target>>;

impl Layout {
    /// The layout of a device, from this machine's sysfs at `sys`.
    pub fn of(sys: &Path, device: (u32, u32)) -> io::Result<Self> {
        Self::read(sys, device, &mapper::table)
    }

    fn read(sys: &Path, device: (u32, u32), table: Table<'_>) -> io::Result<Self> {
        Ok(Self { pieces: pieces(sys, device, DEPTH, table)? })
    }

    /// The nodes of the device; `None` among them if a range has no known node.
    pub fn nodes(&self) -> BTreeSet<Option<NodeId>> {
        self.pieces.iter().map(|p| p.node).collect()
    }

    /// The parts of a range of the device, as bytes on a node.
    pub fn split(&self, start: u64, len: u64) -> impl Iterator<Item = (u64, Option<NodeId>)> {
        let end = start.saturating_add(len);
        self.pieces
            .iter()
            .map(move |p| (p.end.min(end).saturating_sub(p.start.max(start)), p.node))
            .filter(|part| part.0 > 0)
    }

    /// Whether all of a range of the device is on the node.
    pub fn is_on(&self, start: u64, len: u64, node: NodeId) -> bool {
        let there: u64 = self.split(start, len).filter(|part| part.1 == Some(node)).map(|part| part.0).sum();
        there == len
    }
}

fn pieces(sys: &Path, device: (u32, u32), depth: usize, table: Table<'_>) -> io::Result<Vec<Piece>> {
    let path = fs::canonicalize(sys.join(format!("dev/block/{}:{}", device.0, device.1)))?;
    let mut nodes = BTreeSet::new();
    nodes_below(&path, depth, &mut nodes)?;
    let whole = |node| vec![Piece { start: 0, end: u64::MAX, node }];
    if nodes.len() < 2 {
        return Ok(whole(nodes.into_iter().next().flatten()));
    }
    if depth == 0 || !path.join("dm").exists() {
        return Ok(whole(None));
    }
    let mut all = Vec::new();
    for target in table(device)? {
        let (start, end) = (target.start.saturating_mul(SECTOR), target.end.saturating_mul(SECTOR));
        let Some((below, at)) = target.linear else {
            all.push(Piece { start, end, node: None });
            continue;
        };
        let at = at.saturating_mul(SECTOR);
        for piece in pieces(sys, below, depth - 1, table)? {
            // From the lower device's offsets to this one's.
            let from = piece.start.max(at).saturating_sub(at).saturating_add(start);
            let to = piece.end.saturating_sub(at).saturating_add(start).min(end);
            if from < to {
                all.push(Piece { start: from, end: to, node: piece.node });
            }
        }
    }
    Ok(all)
}

/// The block devices that a device consists of.
fn slaves(device: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(device.join("slaves")) {
        Ok(entries) => entries.map(|e| fs::canonicalize(e?.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Adds the nodes of a block device's memory; `None` for a device without a known node.
fn nodes_below(device: &Path, depth: usize, nodes: &mut BTreeSet<Option<NodeId>>) -> io::Result<()> {
    let parts = slaves(device)?;
    if depth > 0 && !parts.is_empty() {
        return parts.iter().try_for_each(|part| nodes_below(part, depth - 1, nodes));
    }
    for dir in device.ancestors() {
        match fs::read_to_string(dir.join("numa_node")) {
            Ok(text) => {
                nodes.insert(text.trim().parse().ok().map(NodeId));
                return Ok(());
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // A directory above may belong to another node.
            Err(e) => return Err(e),
        }
    }
    nodes.insert(None);
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
