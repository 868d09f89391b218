//! Behaviour on machines with several nodes. `make test` runs these tests in virtual machines.
//!
//! Assertions rely on `/proc` and `move_pages(2)` (by way of the laboratory, `lab`), not on homenode's own output. On a machine
//! with one node, or without root, the tests are skipped and say why.

mod four_nodes;
mod lab_bench;
mod masks;
mod process;
mod two_nodes;

use lab::machine::Machine;
use lab_bench::Outcome;
use libtest_mimic::{Arguments, Completion, Trial};

/// A test, and the numbers of nodes on which it runs.
struct Test {
    name: &'static str,
    nodes: &'static [usize],
    run: fn() -> Outcome,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, mib] = args.as_slice()
        && flag == "--role"
    {
        // This program also plays the process that is moved.
        if let Err(error) = process::be_holder(mib) {
            eprintln!("{error:#}");
            std::process::exit(1);
        }
        return;
    }
    let mut arguments = Arguments::from_args();
    // The tests measure where busy threads run, so only one runs at a time.
    arguments.test_threads = Some(1);
    let nodes = Machine::read().map_or(0, |machine| machine.nodes.len());
    let root = rustix::process::geteuid().is_root();
    let trials = two_nodes::TESTS
        .iter()
        .chain(masks::TESTS)
        .chain(process::TESTS)
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
