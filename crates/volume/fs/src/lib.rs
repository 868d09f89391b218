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
//!
//! # Without a mount
//!
//! The library is the fast way into a volume: a call is a function call, where a request of a mount
//! goes through the kernel to a server. One process at a time has a volume. Files are inode
//! numbers, blocks go where the calling thread runs, and every operation is on the medium when it
//! returns. The package is `homenode-fs`, in `crates/volume/fs` of homenode's sources (it is in no
//! registry): `fs = { package = "homenode-fs", path = "…/crates/volume/fs" }`.
//!
//! ```
//! use std::fs::File;
//!
//! use fs::format::Ino;
//! use fs::medium::{Mapped, RegionFile};
//! use fs::{Layout, NewFile, Options, Volume};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two regions: DAX devices, or files on DAX, hugetlbfs or tmpfs. Here, files in a directory.
//! let dir = tempfile::tempdir()?;
//! let paths = [0, 1].map(|node| dir.path().join(format!("region{node}")));
//! let mut regions = Vec::new();
//! for path in &paths {
//!     let file = File::options().read(true).write(true).create_new(true).open(path)?;
//!     file.set_len(8 << 20)?;
//!     fs::reserve(&file)?;
//!     regions.push(RegionFile { file, bind: None });
//! }
//!
//! // A volume with a region on node 0 and one on node 1, as by `homenode-fs mkfs`.
//! let layout = Layout {
//!     volume: *b"a random number.",
//!     nodes: vec![Some(0), Some(1)],
//!     names: paths.iter().map(|path| path.as_os_str().as_encoded_bytes().to_vec()).collect(),
//!     ..Layout::default()
//! };
//! fs::mkfs(Box::new(Mapped::new(&regions)?), &layout)?;
//! drop(regions);
//!
//! // Any one region names the others.
//! let volume = Volume::mount(Box::new(fs::open_files(&paths[..1])?), Options::default())?;
//! let new = NewFile { mode: 0o644, ..NewFile::default() };
//! let file = volume.create(Ino::ROOT, b"data", new)?.ino;
//! fs::on_node(0, || volume.write(file, 0, b"where the writer runs"))?;
//! assert_eq!(volume.bytes_by_node(file)?.get(&Some(0)), Some(&4096));
//!
//! // Moved while others may use it; the closure is asked before each step whether to go on.
//! volume.migrate_file(file, 1, None, |_| true)?;
//! assert_eq!(volume.bytes_by_node(file)?.get(&Some(1)), Some(&4096));
//!
//! let mut data = [0; 32];
//! let len = volume.read(volume.resolve(b"/data")?, 0, &mut data)?;
//! assert_eq!(&data[..len], b"where the writer runs");
//!
//! // Without it the next mount reads all logs, as after a crash.
//! volume.unmount()?;
//! # Ok(())
//! # }
//! ```

mod account;
pub mod acl;
mod alloc;
mod caller;
mod checkpoint;
mod clean;
mod commit;
mod counters;
mod dir;
mod error;
mod extents;
pub mod format;
mod free;
pub mod fsck;
mod inherited;
mod inode;
#[cfg(test)]
mod interleavings;
mod leaving;
mod lines;
mod log;
pub mod medium;
mod mkfs;
mod mount;
mod note;
mod open;
mod ops;
mod placement;
mod recent;
mod repair;
mod salvage;
mod scan;
mod scrub;
mod store;
mod sync;
mod twins;
mod unread;
mod volume;
mod xattrs;

pub use account::{Quota, Space, Subject};
pub use caller::{as_thread, on_node};
pub use clean::Background;
pub use counters::{RangeUse, Traffic, Use};
pub use dir::Named;
pub use error::{Damage, Error, Result};
pub use format::entry::{Attributes, Kind, Run};
pub use format::{Block, Ino};
pub use mkfs::{Layout, mkfs};
pub use mount::superblock_of;
pub use note::{Note, Word, note_in};
pub use open::{is_copied_while_mounted, open_files, open_files_to_look, open_files_to_repair, reserve};
pub use ops::{
    Drained, Held, Migrated, Migration, Name, NewFile, Progress, RegionUsage, Rename, SetAttributes, SetXattr, Stat,
    Stays, Usage, Why,
};
pub use placement::Placement;
pub use recent::Recent;
pub use scrub::{Fault, ScrubPlace, Scrubbed};
#[doc(hidden)]
pub use twins::twins_agree;
pub use volume::{Options, Visit, Volume};
