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
mod neighbour;
mod policies;
mod process;
mod programs;
mod promote;
mod rules;
mod services;
mod trial;
mod two_nodes;
mod warm;
mod zfs;

use lab::machine::Machine;
use testing::{Case, Tried, need, roles, root};

/// Needs root, and one of these numbers of nodes.
fn nodes<const N: usize>(numbers: [usize; N]) -> Tried {
    let nodes = Machine::read().map_or(0, |machine| machine.nodes.len());
    let needed = numbers.map(|number| number.to_string()).join(" or ");
    need(numbers.contains(&nodes), format!("needs {needed} NUMA nodes, this machine has {nodes}"))?;
    root()
}

fn main() {
    // The users of a file, and the process that is moved.
    let roles = roles![
        "holder": process::be_holder,
        "hot-and-cold": conditions::be_hot_and_cold,
        "forker": kills::be_forker,
        "worst-neighbour": neighbour::be_worst,
        "idle": services::be_idle,
        "map-reader": map::be_reader,
        "slowed": trial::be_slowed,
        "range-reader": promote::be_reader,
        "reader": file_users::be_reader,
        "writer": file_users::be_writer,
        "mapper": file_users::be_mapper,
    ];
    let all = [
        two_nodes::CASES,
        masks::CASES,
        rules::CASES,
        neighbour::CASES,
        services::CASES,
        kills::CASES,
        cpus::CASES,
        files::CASES,
        warm::CASES,
        map::CASES,
        process::CASES,
        back::CASES,
        conditions::CASES,
        four_nodes::CASES,
        acts::CASES,
        policies::CASES,
        programs::CASES,
        trial::CASES,
        promote::CASES,
        promote::programs::CASES,
        dax::CASES,
        zfs::CASES,
    ];
    let cases = match testing::leg().as_deref() {
        Some("pmem") => dax::CASES.to_vec(),
        Some("zfs") => zfs::CASES.to_vec(),
        _ => all.concat(),
    };
    // They measure where busy threads run.
    testing::run_one_by_one(roles, cases.into_iter().map(Case::of_module));
}
