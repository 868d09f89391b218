//! The laboratory: workloads, and instruments that look at a machine without homenode's help.
//!
//! **Problem.** Whether homenode is right cannot be judged by what homenode says. The demo, the tests in virtual machines and
//! the benchmarks need workloads whose CPU use and file data are where they should be, and a second opinion on where threads
//! and pages are.
//!
//! **Approach.** [`machine`] and [`threads`] read sysfs and procfs, [`pages`] asks `move_pages(2)`, [`cache`] puts a file's
//! pages on a node, [`load`] reads files with a controlled share of a CPU, [`fio`], [`readers`] and [`daemon`] start fio, such readers and homenode,
//! [`plot`] draws what was seen. Nothing here uses another crate of homenode.
//!
//! **Limits.** For measuring, not for servers: it polls, and it trusts the machine it runs on.

use std::process::ExitCode;

use anyhow::Result;

/// The end of a program of the laboratory: an error is one line with its causes, whatever `RUST_BACKTRACE` says.
pub fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let name = std::env::args().next().unwrap_or_default();
            let name = name.rsplit('/').next().unwrap_or_default();
            eprintln!("{name}: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

pub mod cache;
pub mod daemon;
pub mod fio;
pub mod load;
pub mod machine;
pub mod pages;
pub mod plot;
pub mod readers;
pub mod threads;
