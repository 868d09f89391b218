//! The laboratory: workloads, and instruments that inspect a machine without homenode's help.
//!
//! **Problem.** homenode's own output cannot show that homenode is right. The demo, the tests in
//! virtual machines and the benchmarks need workloads with a known CPU use and known places of
//! their file data, and a second opinion on where threads and pages are.
//!
//! **Approach.** [`machine`] and [`threads`] read sysfs and procfs, [`pages`] calls
//! `move_pages(2)`, [`cache`] puts a file's pages on a node, [`load`] reads files with a controlled
//! share of a CPU, [`fio`], [`readers`], [`daemon`] and [`mounted`] start fio, such readers,
//! homenode and its mounts, [`damon`] the kernel's monitor of accesses, [`hot_set`] draws the
//! places of reads in a file of which a part is hot, [`plot`] and [`page`] show the results. No
//! instrument uses another crate of homenode.
//!
//! **Limits.** It polls and trusts the machine it runs on: good for measuring, not for servers.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Ends a program of the laboratory. An error is one line with its causes, whatever
/// `RUST_BACKTRACE` says.
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

/// A directory of its own for the files of a run; taken away when dropped.
pub fn scratch(parent: &Path, prefix: &str) -> Result<TempDir> {
    let make = || tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
    fs::create_dir_all(parent).and_then(|()| make()).with_context(|| parent.display().to_string())
}

pub mod cache;
pub mod daemon;
pub mod damon;
pub mod fio;
pub mod hot_set;
pub mod load;
pub mod machine;
pub mod mounted;
pub mod page;
pub mod pages;
pub mod plot;
pub mod readers;
pub mod threads;
