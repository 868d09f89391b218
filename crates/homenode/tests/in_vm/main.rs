//! Behaviour on machines with several nodes. `make test` runs these tests in virtual machines.
//!
//! Assertions rely on `/proc` and `move_pages(2)` (by way of the laboratory, `lab`), not on homenode's own output. On a machine
//! with one node, or without root, the tests are skipped and say why.

mod acts;
mod four_nodes;
mod lab_bench;
mod masks;
mod programs;
mod two_nodes;

use lab::machine::Machine;
use lab_bench::Outcome;
use libtest_mimic::{Arguments, Completion, Trial};

/// A test, and the numbers of nodes on which it runs.
struct Test {
    name: &'static str,
    nodes: &'static [usize],
    run: fn() -> Outcome,
    /// The environment variable that asks for a long test.
    long: Option<&'static str>,
}

fn main() {
    let mut arguments = Arguments::from_args();
    // The tests measure where busy threads run, so only one runs at a time.
    arguments.test_threads = Some(1);
    let nodes = Machine::read().map_or(0, |machine| machine.nodes.len());
    let root = rustix::process::geteuid().is_root();
    let trials = two_nodes::TESTS
        .iter()
        .chain(masks::TESTS)
        .chain(four_nodes::TESTS)
        .chain(acts::TESTS)
        .chain(programs::TESTS)
        .map(|test: &'static Test| {
            Trial::ignorable_test(test.name, move || match () {
                () if !test.nodes.contains(&nodes) => {
                    let needed: Vec<_> = test.nodes.iter().map(usize::to_string).collect();
                    let needed = needed.join(" or ");
                    Ok(Completion::ignored_with(format!("needs {needed} NUMA nodes, this machine has {nodes}")))
                }
                () if !root => Ok(Completion::ignored_with("needs root")),
                () if test.long.is_some_and(|variable| std::env::var_os(variable).is_none()) => {
                    Ok(Completion::ignored_with(format!("a long test: set {}", test.long.unwrap_or_default())))
                }
                () => (test.run)().map(|()| Completion::Completed).map_err(|e| format!("{e:#}").into()),
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
