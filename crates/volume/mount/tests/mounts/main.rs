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

use libtest_mimic::{Arguments, Completion, Failed, Trial};

type Tests = &'static [(&'static str, fn())];

fn main() {
    if let Some(server) = harness::Serve::asked_for() {
        return server.run();
    }
    if let Some(path) = crowd::asked_for() {
        return crowd::load(&path);
    }
    let missing = harness::missing();
    let own = [semantics::TESTS, lifecycle::TESTS, crowd::TESTS, control::TESTS, writeback::TESTS]
        .concat()
        .into_iter()
        .map(|(name, test)| (name, test, None));
    let others =
        testers::TESTS.iter().chain(acl::TESTS).map(|(name, test, tool)| (*name, *test, testers::missing(tool)));
    let ring: (_, fn(), _) = ("all_of_this_holds_by_io_uring", harness::by_ring, harness::no_ring());
    let trials = own.chain(others).chain([ring]).map(|(name, test, lacks)| {
        let missing = missing.clone().or(lacks);
        Trial::ignorable_test(name, move || match missing {
            Some(why) => Ok(Completion::ignored_with(why)),
            None => {
                test();
                Ok::<_, Failed>(Completion::Completed)
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
