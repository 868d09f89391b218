//! The demo's acts as tests: a file, a process with its memory, and a process that maps a file move
//! for real.
//!
//! The demo asserts what `/proc`, `move_pages(2)` and `numa_maps` show, and fails otherwise. These
//! tests add the counts.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::{Case, cases, is_long};

use crate::lab_bench::{Bench, Outcome, homenode, homenode_load, vm_config};
use crate::nodes;

pub const CASES: &[Case] = cases![
    [nodes([2])] a_file_moves_once_to_its_readers;
    [is_long(), nodes([2])] a_process_moves_with_its_memory, a_process_moves_to_what_it_maps;
];

/// Shows one act and returns its part of the summary.
fn show(name: &str) -> Result<Value> {
    let bench = Bench::new()?;
    let out = tempfile::tempdir()?;
    let status = Command::new(homenode().with_file_name("homenode-demo"))
        .args(["--one", name, "--where", "vm", "--size", "32", "--options", "--margin 5MB/s --steady", "--homenode"])
        .arg(homenode())
        .arg("--load")
        .arg(homenode_load())
        .arg("--data")
        .arg(bench.dir())
        .arg("--out")
        .arg(out.path())
        .arg("--config")
        .arg(vm_config())
        .stdin(Stdio::null())
        .status()
        .context("homenode-demo")?;
    ensure!(status.success(), "homenode-demo ended with {status}");
    let summary: Value = serde_json::from_str(&fs::read_to_string(out.path().join("summary.json"))?)?;
    let act = summary.pointer("/acts/0").context("no act in the summary")?;
    ensure!(act["restored"] == true, "{act}");
    Ok(act.clone())
}

/// Dragonfly moves the file, exactly once, where NThread would crowd its node.
fn a_file_moves_once_to_its_readers() -> Outcome {
    let act = show("file")?;
    ensure!(act["moves"] == 1, "{act}");
    Ok(())
}

fn a_process_moves_with_its_memory() -> Outcome {
    let act = show("process")?;
    ensure!(act["moves"] == 1, "{act}");
    Ok(())
}

/// N-Policy binds each thread of the process.
fn a_process_moves_to_what_it_maps() -> Outcome {
    let act = show("mapped")?;
    ensure!(act["moves"].as_u64() >= Some(1), "{act}");
    Ok(())
}
