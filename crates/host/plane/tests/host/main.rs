//! Moves real threads of this machine and undoes the moves: inheritance, ended threads, refusals,
//! cpusets, crashes.
//!
//! A machine with one node is enough: the tests invent two nodes of one CPU each, which differ only
//! in the affinity that a move sets. A test that lacks something (two CPUs, root, control groups,
//! BPF) is ignored, with the reason.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test stops at the first surprise

mod basics;
mod claims;
mod cpusets;
mod crash;
mod forks;
mod machine;
#[path = "../../../act/tests/act/moves.rs"]
mod moves;
mod whole;
mod world;

use testing::roles;

fn main() {
    let roles = roles![
        "threads": testing::world::be_threads,
        "daemon": crash::be_daemon,
        "readers": whole::be_readers,
        "nobody": basics::be_nobody,
        "exec": claims::be_exec,
        "ending": claims::be_ending,
        "pinner": claims::be_pinner,
        "late": forks::be_late,
    ];
    testing::run(
        roles,
        [basics::CASES, cpusets::CASES, forks::CASES, claims::CASES, machine::CASES, whole::CASES, crash::CASES]
            .concat(),
    );
}
