//! What the programs need to follow a page table and to know the node of what it maps
//! (`bpf/frames.h`): the direct map, and the frames of each node. x86-64 only.

use std::path::Path;

use topology::Topology;

use super::mapped::kernel::Kernel;
use super::mapped::places::{Frames, Places};
use super::records::intf;
use super::types::ObserveError;

/// As many as `bpf/frames.h` has room for.
const FRAMES_MAX: usize = intf::FRAMES_MAX as usize;

/// How the programs get from an address to a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pub direct_map: u64,
    /// The physical address at which memory ends; 0: nothing is known.
    pub memory_end: u64,
    pub five_levels: bool,
    pub frames: Vec<Frames>,
}

impl Memory {
    pub fn find(proc_root: &Path, topology: &Topology) -> Result<Self, ObserveError> {
        let places = Places::read(proc_root, topology)?;
        let frames = places.frames();
        if frames.len() > FRAMES_MAX {
            let cause = format!("memory is in {} ranges, the programs know {FRAMES_MAX}", frames.len());
            return Err(ObserveError::Missing { capability: "the node of a frame", cause });
        }
        let kernel = Kernel::open(places.end())?;
        let (direct_map, five_levels) = kernel.direct_map();
        Ok(Self { direct_map, memory_end: places.end(), five_levels, frames })
    }
}
