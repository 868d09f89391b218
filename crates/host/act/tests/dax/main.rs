//! Moves files on DAX between nodes, on an XFS that covers the persistent memory of two
//! (`vm/run --pmem-volume`). Where a file's blocks are is read from the file system and the
//! device-mapper table here, not by homenode's code.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test stops at the first surprise

mod crash;
mod edges;
mod load;
mod refusals;
mod volume;
mod waits;

use testing::roles;

fn main() {
    let roles = roles![
        "mover": crash::be_mover,
        "mapped-writer": load::be_mapped_writer,
        "killed": crash::be_killed,
        "syncing-writer": crash::be_syncing_writer,
    ];
    testing::run(roles, [edges::CASES, load::CASES, waits::CASES, crash::CASES, refusals::CASES].concat());
}
