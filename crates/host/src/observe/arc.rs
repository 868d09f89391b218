//! Reads of OpenZFS, which has a cache of its own (ARC) instead of the page cache.
//!
//! **Problem.** The hooks on the page cache see none of its reads. Its module seldom has BTF, and its structures differ between
//! versions.
//!
//! **Approach.** Two kprobes (`bpf/arc.h`) on functions of which only the arguments matter: the call that reads a file, and the
//! copy of each cached block, whose address tells the node. This module finds what the programs need for that: the direct map, and
//! the frames of each node.
//!
//! **Limits.** x86-64 only. Run with OpenZFS 2.3. The module must be loaded before homenode starts. Direct I/O goes past the cache
//! and is not seen, nor are writes. ARC keeps most blocks in scattered pages, or compressed. For a reader OpenZFS makes a copy of the
//! block that is whole, and keeps it for some time (its dbuf cache, a 32nd of the ARC); the node is that of the copy, and what making
//! the copy reads is not seen. Of a block, 16 pages stand for all.

use std::path::Path;

use topology::Topology;

use super::hooks::Hook;
use super::mapped::kernel::Kernel;
use super::mapped::places::Places;
use super::probe::Fact;
use super::types::ObserveError;

/// The hooks: either both or none.
pub(super) const HOOKS: [Hook; 2] = [Hook::ArcCall, Hook::ArcRead];

/// As many as `bpf/arc.h` has room for.
const FRAMES_MAX: usize = 64;

/// Frames of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frames {
    pub first: u64,
    /// The first frame beyond them.
    pub end: u64,
    pub node: u32,
}

/// How the programs get from an address of the kernel's to a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pub direct_map: u64,
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

/// Whether OpenZFS is here.
pub(super) fn loaded(sys: &Path) -> bool {
    sys.join("module/zfs").exists()
}

/// Whether the kernel has the function of each hook shows when it is attached.
pub(super) fn facts(sys: &Path) -> [(Hook, Fact); 2] {
    let fact = if loaded(sys) { Fact::Available } else { Fact::missing("the module zfs is not loaded") };
    HOOKS.map(|hook| (hook, fact.clone()))
}
