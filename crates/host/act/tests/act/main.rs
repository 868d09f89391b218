//! Moves real threads, processes and files of this machine, and undoes the moves: each thread with
//! a record of its own, memory and cached pages by node, refusals, calls that fail.
//!
//! A machine with one node is enough for most: the tests invent two (`testing::world`). A test that
//! lacks something is skipped and says why.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test stops at the first surprise

mod failures;
mod jobs;
mod moves;
mod pages;
mod process;

use act::Actor;
use act::watched::Unwatched;
use testing::roles;

fn actor() -> Actor<Unwatched> {
    Actor::new(Default::default(), testing::world::topology(), None).unwrap()
}

fn main() {
    let roles = roles![
        "threads": testing::world::be_threads,
        "spawner": process::be_spawner,
        "deadline": process::be_deadline,
        "binder": process::be_binder,
        "owner": process::be_owner,
        "starved": failures::be_starved,
        "flickering": failures::be_flickering,
    ];
    testing::run(roles, [failures::CASES, process::CASES, jobs::CASES, pages::CASES].concat());
}
