//! Real mounts on this machine. Where `/dev/fuse` or root is missing, a test says so and counts as
//! skipped.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod acl;
mod control;
mod crowd;
mod harness;
mod lifecycle;
mod semantics;
mod testers;
mod writeback;

use testing::roles;

fn main() {
    let cases = [
        semantics::CASES,
        lifecycle::CASES,
        crowd::CASES,
        control::CASES,
        writeback::CASES,
        testers::CASES,
        acl::CASES,
        harness::CASES,
    ];
    testing::run(roles!["server": harness::be_server, "load": crowd::be_load], cases.concat());
}
