//! Reads of OpenZFS, which has a cache of its own (ARC) instead of the page cache.
//!
//! **Problem.** The hooks on the page cache see none of its reads. Its module seldom has BTF, and
//! its structures differ between versions.
//!
//! **Approach.** Two kprobes (`bpf/arc.h`) on functions of which only the arguments matter: the
//! call that reads a file, and the copy of each cached block, whose address tells the node
//! (`super::frames`).
//!
//! **Limits.** x86-64 only. Run with OpenZFS 2.3. The module must be loaded before homenode starts.
//! Direct I/O goes past the cache and is not seen, nor are writes. ARC keeps most blocks in
//! scattered pages, or compressed. For a reader OpenZFS makes a copy of the block that is whole,
//! and keeps it for some time (its dbuf cache, a 32nd of the ARC); the node is that of the copy,
//! and what making the copy reads is not seen. Of a block, 16 pages stand for all.

use std::path::Path;

use super::fact::Fact;
use super::hooks::Hook;

/// The hooks: either both or none.
pub(super) const HOOKS: [Hook; 2] = [Hook::ArcCall, Hook::ArcRead];

/// Whether OpenZFS is here.
pub(super) fn loaded(sys: &Path) -> bool {
    sys.join("module/zfs").exists()
}

/// Whether the kernel has the function of each hook shows when it is attached.
pub(super) fn facts(sys: &Path) -> [(Hook, Fact); 2] {
    let fact = if loaded(sys) { Fact::Available } else { Fact::missing("the module zfs is not loaded") };
    HOOKS.map(|hook| (hook, fact.clone()))
}
