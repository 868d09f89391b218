//! A crash-safe file system across the memory of several NUMA nodes.
//!
//! **Problem.** A program reads its files fast when they are in the memory of the node where it
//! runs. A file system that knows the node of every block can write beside the caller and can move
//! a file that is in use.
//!
//! **Approach.** One volume spans one region of memory per node. Each inode has a log; an operation
//! appends entries to it and commits by one 8-byte store of its tail, or, when it changes several
//! inodes, by way of a journal. File data is copied on write. The indexes are in DRAM and are
//! rebuilt from the logs at mount. `docs/FORMAT.md` draws the format, `docs/SEMANTICS.md` says what
//! is promised.
//!
//! Where to begin reading: [`format`](mod@format) is the medium, `store` the order of stores, `log`
//! and `commit` how a change becomes durable, `scan` and `mount` how it is found again, `ops` what
//! a caller can do.
//!
//! **Limits.** Mounting after a crash reads all logs, and an inode's index stays in DRAM from its
//! first use until the kernel forgets it.

pub mod acl;
mod alloc;
mod caller;
mod checkpoint;
mod clean;
mod commit;
mod counters;
pub mod debug;
mod dir;
mod error;
mod extents;
pub mod format;
mod free;
pub mod fsck;
mod inode;
#[cfg(test)]
mod interleavings;
mod locks;
mod log;
pub mod medium;
mod mkfs;
mod mount;
mod open;
mod ops;
mod placement;
mod recent;
mod repair;
mod scan;
mod store;
mod sync;
mod unread;
mod volume;

pub use caller::{as_thread, on_node};
pub use clean::Background;
pub use counters::{Traffic, Use};
pub use dir::Named;
pub use error::{Damage, Error, Result};
pub use format::entry::{Attributes, Kind, Run};
pub use format::{Block, Ino};
pub use locks::{FileLock, LockMode, LockSpace, Locks};
pub use mkfs::{Layout, mkfs};
pub use mount::superblock_of;
pub use open::{open_files, open_files_to_look, reserve};
pub use ops::{
    Migrated, Migration, Name, NewFile, Progress, RegionUsage, Rename, SetAttributes, SetXattr, Stat, Usage,
};
pub use placement::Placement;
pub use recent::Recent;
pub use volume::{Options, Visit, Volume};
