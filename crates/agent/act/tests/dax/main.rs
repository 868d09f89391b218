//! Moves files on DAX between nodes, on an XFS that covers the persistent memory of two
//! (`vm/run --pmem-volume`). Where a file's blocks are is read from the file system and the
//! device-mapper table here, not by homenode's code.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test stops at the first surprise

mod crash;
mod edges;
#[path = "../harness/mod.rs"]
mod harness;
mod load;
mod refusals;
mod volume;
mod waits;

fn main() {
    let roles: &[harness::Role] = &[
        ("mover", crash::be_mover),
        ("mapped-writer", load::be_mapped_writer),
        ("killed", crash::be_killed),
        ("syncing-writer", crash::be_syncing_writer),
    ];
    let trial =
        |name: &str, test: fn()| harness::trial(name, move || volume::missing().map_or(Ok(()), Err).map(|()| test()));
    let tests = vec![
        trial("a_file_moves_and_keeps_all_else", edges::moved_and_kept),
        trial("moves_under_readers_and_writers_lose_nothing", load::under_load),
        trial("a_file_mapped_writable_stays", load::mapped_writable),
        trial("a_pinned_page_is_not_waited_for", waits::pinned),
        trial("a_file_that_grows_and_shrinks_stays_right", edges::resized),
        trial("a_full_node_is_said", edges::full),
        trial("a_crash_leaves_old_or_new_blocks", crash::crashed),
        trial("shared_blocks_stay", refusals::reflinked),
        trial("a_deleted_file_is_let_go", refusals::deleted),
        trial("what_must_not_be_moved_is_refused", refusals::refused),
    ];
    harness::run(roles, tests);
}
