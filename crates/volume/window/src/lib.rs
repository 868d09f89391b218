//! What a window of a volume shows, as a snapshot has it.
//!
//! **Problem.** The server of a mount and the laboratory let the same policies judge the same file
//! system. What they count must mean the same.
//!
//! **Approach.** `fs` has counted bytes by thread and file. This crate makes of them what a
//! snapshot says of each thread's files, of sharing, of files and of the nodes' traffic. Who the
//! threads are, where they run and what CPU time they took, its users add: a mount asks the kernel,
//! the laboratory its machine. The laboratory compiles these sources once more, against its file
//! system.
//!
//! **Limits.** Heat of ranges and paths are left to the mount.

use std::collections::BTreeMap;

use fs::format::BLOCK_BYTES;
use fs::{Ino, Placement, Traffic, Use, Volume};
use placement::{FileUse, NodeBytes, NodeLoad, ObservedFile, RangeHeat, Thread, Writes};
use topology::{FileId, NodeId, Topology};

/// A volume, as snapshots describe it.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    pub volume: &'a Volume,
    /// Device of the mount, as [`FileId::dev`].
    pub device: u32,
    /// How the volume places what is written.
    pub placement: Placement,
    pub regions: usize,
}

/// The uses of each thread, by rising number.
pub fn by_thread(uses: &[Use]) -> impl Iterator<Item = (u32, &[Use])> {
    uses.chunk_by(|a, b| a.tid == b.tid).filter_map(|of_one| Some((of_one.first()?.tid, of_one)))
}

/// The threads that used each file, by rising number; those of which `is_own` says yes are none.
pub fn readers(uses: &[Use], is_own: impl Fn(u32) -> bool) -> BTreeMap<Ino, Vec<u32>> {
    let mut readers: BTreeMap<Ino, Vec<u32>> = BTreeMap::new();
    for one in uses.iter().filter(|one| !is_own(one.tid)) {
        readers.entry(one.ino).or_default().push(one.tid);
    }
    readers
}

/// Whether the thread used a file that another one used.
pub fn shares(tid: u32, uses: &[Use], readers: &BTreeMap<Ino, Vec<u32>>) -> bool {
    let from = uses.partition_point(|one| one.tid < tid);
    let mut own = uses.iter().skip(from).take_while(|one| one.tid == tid);
    own.any(|one| readers.get(&one.ino).is_some_and(|readers| readers.len() > 1))
}

/// Bytes to and from each region since the mount.
pub fn traffic(volume: &Volume) -> Vec<Traffic> {
    volume.usage().regions.iter().map(|region| region.traffic).collect()
}

impl Window<'_> {
    /// A file, as snapshots name it.
    pub fn id(&self, ino: Ino) -> FileId {
        FileId { dev: self.device, ino: ino.raw(), generation: 0 }
    }

    /// Tells of a thread what it did with files.
    pub fn fill(&self, thread: &mut Thread, uses: &[Use]) {
        let files: Vec<FileUse> = uses.iter().map(|one| self.file_use(one)).collect();
        let sum = |of: fn(&FileUse) -> &NodeBytes| -> NodeBytes { files.iter().flat_map(|f| of(f).iter()).collect() };
        (thread.read_bytes, thread.write_bytes) = (sum(|f| &f.read_bytes), sum(|f| &f.write_bytes));
        thread.files = files;
    }

    fn file_use(&self, one: &Use) -> FileUse {
        let read: u64 = one.regions.iter().map(|t| t.read).sum();
        FileUse {
            file: self.id(one.ino),
            read_bytes: self.by_node(&one.regions, |t| t.read),
            write_bytes: self.by_node(&one.regions, |t| t.written),
            read_size: read.checked_div(one.reads),
            // The first read of a window began where the last one of the window before ended, or
            // did not.
            sequential: (one.reads > 0).then_some(2 * one.sequential > one.reads),
        }
    }

    fn by_node(&self, regions: &[Traffic], bytes: fn(&Traffic) -> u64) -> NodeBytes {
        let of_region = |(region, traffic)| Some((NodeId(self.volume.node_of_region(region)?), bytes(traffic)));
        regions.iter().enumerate().filter_map(of_region).filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// A file; `None` if it was removed. `is_copied`: whoever copies it opens it from time to time.
    pub fn file(&self, ino: Ino, readers: Vec<u32>, ranges: Vec<RangeHeat>, is_copied: bool) -> Option<ObservedFile> {
        let _visit = Volume::visit(self.volume, ino);
        let (stat, bytes) = (self.volume.stat(ino).ok()?, self.volume.bytes_by_node(ino).ok()?);
        let pinned = match (self.volume.is_look(), self.regions > 1) {
            (true, _) => Some("the volume is mounted read-only"),
            (_, false) => Some("the volume has one region"),
            _ => None,
        };
        Some(ObservedFile {
            file: self.id(ino),
            generation: Some(stat.generation),
            path: None,
            size: Some(stat.size),
            bytes: bytes.into_iter().filter_map(|(node, bytes)| Some((NodeId(node?), bytes))).collect(),
            sampled: None,
            touched_by_others: false,
            writes: Some(match self.placement {
                Placement::Local => Writes::Follow,
                Placement::Random | Placement::Interleave => Writes::Spread,
                Placement::Node(_) => Writes::Stay,
            }),
            movable: Some(pinned.is_none()),
            pinned: pinned.map(str::to_owned),
            opens: match is_copied || self.volume.is_migrating(ino) {
                true => None,
                false => self.volume.open_count(ino).ok(),
            },
            readers,
            ranges,
        })
    }

    /// The nodes, with their traffic since it was `before`, which becomes that of now.
    pub fn nodes(&self, topology: &Topology, before: &mut Vec<Traffic>) -> Vec<NodeLoad> {
        let usage = self.volume.usage();
        let now: Vec<Traffic> = usage.regions.iter().map(|region| region.traffic).collect();
        let before = std::mem::replace(before, now);
        let load = |node: &topology::Node| {
            let mut load = NodeLoad::of(node);
            let here = usage.regions.iter().zip(&before).filter(|(region, _)| region.node == Some(node.id.0));
            for (region, before) in here {
                load.read_bytes += region.traffic.read.saturating_sub(before.read);
                load.write_bytes += region.traffic.written.saturating_sub(before.written);
                load.memory_free += region.free_blocks.saturating_sub(region.reserved_blocks) * BLOCK_BYTES;
            }
            load
        };
        topology.nodes.iter().map(load).collect()
    }
}
