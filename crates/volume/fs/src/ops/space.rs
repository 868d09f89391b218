//! Where the bytes are, how many are left, and who moved how many.

use std::collections::BTreeMap;

use crate::counters::{RangeUse, Traffic, Use};
use crate::error::Result;
use crate::format::entry::Run;
use crate::format::{BLOCK_BYTES, Ino};
use crate::ops::names::check_live;
use crate::sync::{Mutex, lock};
use crate::volume::{Slots, Volume};

/// Figures as `statfs` gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    pub regions: Vec<RegionUsage>,
}

/// Space and traffic of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionUsage {
    /// Node of the memory, where it is known.
    pub node: Option<u32>,
    /// Blocks for data and logs.
    pub blocks: u64,
    /// Of these, free.
    pub free_blocks: u64,
    /// Of these, only for operations that free something, or for logs.
    pub reserved_blocks: u64,
    pub inodes: u64,
    pub free_inodes: u64,
    /// Bytes read and written since the volume was mounted.
    pub traffic: Traffic,
}

impl Volume {
    /// Space and traffic of each region.
    pub fn usage(&self) -> Usage {
        let region = |(i, slots): (usize, &Mutex<Slots>)| {
            let (free_blocks, blocks) = self.allocator.usage(i);
            RegionUsage {
                node: self.regions.node(i),
                blocks,
                free_blocks: free_blocks + self.room.leaving.blocks(i),
                reserved_blocks: self.allocator.reserve(i),
                inodes: self.store.superblock().regions.get(i).map_or(0, |r| r.inodes),
                free_inodes: lock(slots).count().min(self.allocator.free_pages(i).unwrap_or(u64::MAX)),
                traffic: self.counters.total(i),
            }
        };
        Usage { regions: self.slots.iter().enumerate().map(region).collect() }
    }

    /// Traffic of each thread, by region, since the volume was mounted. Threads of which `alive`
    /// says no are listed for the last time.
    pub fn traffic_by_thread(&self, alive: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<Traffic>> {
        self.counters.by_thread(alive)
    }

    /// From now on counts what each thread does with each file, for [`Volume::take_uses`].
    pub fn watch_files(&self) {
        self.counters.watch_files();
    }

    /// Bytes of each thread and file since the last call, and the bytes that could not be told
    /// apart because there were too many. A migration is nobody's use.
    pub fn take_uses(&self) -> (Vec<Use>, u64) {
        self.counters.take_uses()
    }

    /// Counts the bytes read from each range of each file, for [`Volume::take_ranges`]. A range has
    /// so many bytes; 0 ends the counting.
    pub fn watch_ranges(&self, bytes: u64) {
        self.counters.watch_ranges(bytes);
    }

    /// Bytes read from each range since the last call, and the bytes that could not be told apart
    /// because there were too many. A migration is nobody's use.
    pub fn take_ranges(&self) -> (Vec<RangeUse>, u64) {
        self.counters.take_ranges()
    }

    /// The runs of a file, in order. The region of each is in its address.
    pub fn map(&self, ino: Ino) -> Result<Vec<Run>> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        check_live(&state)?;
        Ok(state.extents.iter().collect())
    }

    /// The node of a run's memory, where it is known.
    pub fn node_of(&self, run: &Run) -> Option<u32> {
        self.regions.node(run.block.region())
    }

    /// The node of a region's memory, where it is known.
    pub fn node_of_region(&self, region: usize) -> Option<u32> {
        self.regions.node(region)
    }

    /// Bytes of a file's blocks from `first` on, below `end`, on a node.
    pub fn bytes_on_node(&self, ino: Ino, (first, end): (u64, u64), node: u32) -> Result<u64> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        check_live(&state)?;
        let runs = state.extents.range(first, end.saturating_sub(first));
        let here = runs.filter(|run| self.regions.node(run.block.region()) == Some(node));
        Ok(here.map(|run| run.count * BLOCK_BYTES).sum())
    }

    /// How many runs of adjacent blocks a file has.
    pub fn extents(&self, ino: Ino) -> Result<usize> {
        Ok(self.inode(ino)?.read().extents.len())
    }

    /// Bytes of a file's blocks on each node; `None` for regions of which no node is known.
    pub fn bytes_by_node(&self, ino: Ino) -> Result<BTreeMap<Option<u32>, u64>> {
        let mut nodes = BTreeMap::new();
        let inode = self.inode_partly(ino)?;
        let state = inode.read();
        check_live(&state)?;
        for (region, blocks) in state.extents.blocks_by_region().iter().enumerate().filter(|(_, blocks)| **blocks > 0) {
            *nodes.entry(self.regions.node(region)).or_insert(0) += blocks * BLOCK_BYTES;
        }
        Ok(nodes)
    }
}
