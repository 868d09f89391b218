//! Behaviour on machines with several nodes. `make test` runs these tests in virtual machines.
//!
//! Assertions rely on `/proc` and `move_pages(2)` (by way of the laboratory, `lab`), not on
//! homenode's own output. On a machine with one node, or without root, the tests are skipped and
//! say why. The machine with persistent memory and the one with OpenZFS run one module each
//! (`HOMENODE_LEG`).

mod acts;
mod back;
mod conditions;
mod cpus;
mod dax;
mod file_users;
mod files;
mod four_nodes;
mod kills;
mod lab_bench;
mod map;
mod masks;
mod policies;
mod process;
mod programs;
mod promote;
mod promote_programs;
mod trial;
mod two_nodes;
mod warm;
mod zfs;

use std::process::ExitCode;

use lab::machine::Machine;
use lab_bench::Outcome;
use libtest_mimic::{Arguments, Completion, Trial};

/// A test, and the numbers of nodes on which it runs.
struct Test {
    name: &'static str,
    nodes: &'static [usize],
    run: fn() -> Outcome,
}

/// A reason why a test cannot run here.
#[derive(Debug)]
struct Skip(String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

fn main() -> ExitCode {
    // This program also plays the users of a file, and the process that is moved.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, role @ ..] = args.as_slice()
        && flag == "--role"
    {
        return match role {
            [holder, mib] if holder == "holder" => lab::exit(process::be_holder(mib)),
            [program, files @ ..] if program == "hot-and-cold" => lab::exit(conditions::be_hot_and_cold(files)),
            [forker, file] if forker == "forker" => lab::exit(kills::be_forker(file)),
            [reader, cpus, file] if reader == "map-reader" => lab::exit(map::be_reader(cpus, file)),
            [reader, file, begin, slow, factor] if reader == "slowed" => {
                lab::exit(trial::be_slowed(file, begin, slow, factor))
            }
            [reader, cpus, file, ranges @ ..] if reader == "range-reader" => {
                lab::exit(promote::be_reader(cpus, file, ranges))
            }
            role => file_users::play(role),
        };
    }
    let mut arguments = Arguments::from_args();
    // The tests measure where busy threads run, so only one runs at a time.
    arguments.test_threads = Some(1);
    let nodes = Machine::read().map_or(0, |machine| machine.nodes.len());
    let root = rustix::process::geteuid().is_root();
    let all = [
        two_nodes::TESTS,
        masks::TESTS,
        kills::TESTS,
        cpus::TESTS,
        files::TESTS,
        warm::TESTS,
        map::TESTS,
        process::TESTS,
        back::TESTS,
        conditions::TESTS,
        four_nodes::TESTS,
        acts::TESTS,
        policies::TESTS,
        programs::TESTS,
        trial::TESTS,
        promote::TESTS,
        promote_programs::TESTS,
        dax::TESTS,
        zfs::TESTS,
    ];
    let tests: &[&[Test]] = match std::env::var("HOMENODE_LEG").as_deref() {
        Ok("pmem") => &[dax::TESTS],
        Ok("zfs") => &[zfs::TESTS],
        _ => &all,
    };
    let trials = tests
        .iter()
        .copied()
        .flatten()
        .map(|test: &'static Test| {
            Trial::ignorable_test(test.name, move || match () {
                () if !test.nodes.contains(&nodes) => {
                    let needed: Vec<_> = test.nodes.iter().map(usize::to_string).collect();
                    let needed = needed.join(" or ");
                    Ok(Completion::ignored_with(format!("needs {needed} NUMA nodes, this machine has {nodes}")))
                }
                () if !root => Ok(Completion::ignored_with("needs root")),
                () => match (test.run)() {
                    Ok(()) => Ok(Completion::Completed),
                    Err(e) if e.is::<Skip>() => Ok(Completion::ignored_with(e.to_string())),
                    Err(e) => Err(format!("{e:#}").into()),
                },
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
