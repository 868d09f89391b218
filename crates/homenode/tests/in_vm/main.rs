//! Behaviour on a machine with several nodes, as `make test` runs it in virtual machines.
//!
//! What is asserted comes from `/proc` and `move_pages(2)` (the laboratory, `lab`), not from homenode's own word. On a machine
//! with one node, or without root, they are skipped and say why.

mod four_nodes;
mod lab_bench;
mod masks;
mod two_nodes;

use lab::machine::Machine;
use lab_bench::Outcome;
use libtest_mimic::{Arguments, Completion, Trial};

/// A test, and the numbers of nodes it is for.
struct Test {
    name: &'static str,
    nodes: &'static [usize],
    run: fn() -> Outcome,
}

fn main() {
    let mut arguments = Arguments::from_args();
    // They measure where busy threads run: one at a time.
    arguments.test_threads = Some(1);
    let nodes = Machine::read().map_or(0, |machine| machine.nodes.len());
    let root = rustix::process::geteuid().is_root();
    let trials = two_nodes::TESTS
        .iter()
        .chain(masks::TESTS)
        .chain(four_nodes::TESTS)
        .map(|test: &'static Test| {
            Trial::ignorable_test(test.name, move || match () {
                () if !test.nodes.contains(&nodes) => {
                    let needed: Vec<_> = test.nodes.iter().map(usize::to_string).collect();
                    let needed = needed.join(" or ");
                    Ok(Completion::ignored_with(format!("needs {needed} NUMA nodes, this machine has {nodes}")))
                }
                () if !root => Ok(Completion::ignored_with("needs root")),
                () => (test.run)().map(|()| Completion::Completed).map_err(|e| format!("{e:#}").into()),
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
