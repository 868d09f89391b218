//! Where the bytes are, how many are left, and who moved how many.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::counters::Traffic;
use crate::error::Result;
use crate::format::entry::Run;
use crate::format::{BLOCK_BYTES, Ino};
use crate::ops::names::check_live;
use crate::volume::{Slots, Volume, lock};

/// What `statfs` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Each region.
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
    /// Of these, only for operations that free something.
    pub reserved_blocks: u64,
    /// Free inodes.
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
                free_blocks,
                reserved_blocks: self.allocator.reserve(i),
                free_inodes: lock(slots).count(),
                traffic: self.counters.total(i),
            }
        };
        Usage { regions: self.slots.iter().enumerate().map(region).collect() }
    }

    /// Traffic of each thread, by region, since the volume was mounted. Threads of which `alive` says no are listed for the
    /// last time.
    pub fn traffic_by_thread(&self, alive: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<Traffic>> {
        self.counters.by_thread(alive)
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

    /// Bytes of a file's blocks on each node; `None` for regions of which no node is known.
    pub fn bytes_by_node(&self, ino: Ino) -> Result<BTreeMap<Option<u32>, u64>> {
        let mut nodes = BTreeMap::new();
        for run in self.map(ino)? {
            *nodes.entry(self.node_of(&run)).or_insert(0) += run.count * BLOCK_BYTES;
        }
        Ok(nodes)
    }
}
