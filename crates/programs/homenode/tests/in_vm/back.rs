//! `run --move-back`: what a run has moved is where it was after it.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lab::readers::Readers;
use lab::{cache, threads};
use rustix::process::Signal;
use testing::{Case, cases};

use crate::lab_bench::{Bench, Outcome, cpus, load, masks, set_mask, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[nodes([2])] memory_returns_after_a_run];

pub const MEMORY_MIB: u64 = 32;
/// Program, stacks and what the kernel allocates meanwhile.
pub const SLACK: u64 = 4 << 20;

/// A reader of a file that begins on node 1, with memory there. It is bound, so that only homenode
/// moves it.
pub fn reader(bench: &Bench, file: PathBuf, memory_mib: u64) -> Result<Readers> {
    let (memory, on) = (memory_mib.to_string(), bench.machine.list_of(1));
    let options = ["--seconds", "3600", "--duty", "0.3", "--memory", &memory, "--begin-on", &on];
    let load = load(&options, &[file])?;
    for tid in masks(load.pid()).into_keys() {
        set_mask(tid, cpus(&bench.machine, 1)?)?;
    }
    Ok(load)
}

/// Bytes of a process on a node, by `numa_maps`.
pub fn memory(pid: u32, node: u32) -> Result<u64> {
    Ok(threads::memory(pid)?.get(&node).copied().unwrap_or(0) * rustix::param::page_size() as u64)
}

/// A process on node 1 reads a file on node 0: arc moves it there with its memory.
fn memory_returns_after_a_run() -> Outcome {
    let bench = Bench::new()?;
    let file = bench.dir().join("file");
    cache::put(&file, 32 << 20, 0)?;
    let load = reader(&bench, file, MEMORY_MIB)?;
    let (before, on) = (masks(load.pid()), |node: u32| memory(load.pid(), node));
    ensure!(on(1)? >= MEMORY_MIB << 20, "the memory of the load: {:?}", threads::memory(load.pid())?);
    let options = ["--policy", "arc", "--touch-own-affinity", "--move-back"];
    let manager = UnixDatagram::bind(bench.manager())?;
    let mut daemon = bench.daemon_for(&[load.pid()], &options)?;
    let home = bench.machine.list_of(0);
    windows_until(&mut daemon, 60, "process with its memory on node 0", |_| {
        Ok(masks(load.pid()).values().all(|mask| *mask == home) && on(1)? <= SLACK && on(0)? >= MEMORY_MIB << 20)
    })?;
    // The job has ended, and its end was seen.
    daemon.window()?;
    daemon.window()?;
    let (end, status) = daemon.stop(Signal::TERM)?;
    say!("{end:?}, memory {:?}", threads::memory(load.pid())?);
    ensure!(
        on(1)? >= MEMORY_MIB << 20 && on(0)? <= SLACK,
        "the memory is not back: {:?}",
        threads::memory(load.pid())?
    );
    ensure!(masks(load.pid()) == before, "{:?}, before {before:?}", masks(load.pid()));
    ensure!(status.success(), "homenode ended with {status}: {end:?}");
    // Copies that took longer than TimeoutStopSec were killed, and where the data was forgotten.
    manager.set_nonblocking(true)?;
    let mut message = [0; 256];
    let mut told = Vec::new();
    while let Ok(length) = manager.recv(&mut message) {
        told.push(String::from_utf8_lossy(message.get(..length).unwrap_or_default()).into_owned());
    }
    let stopping = told.iter().position(|message| message == "STOPPING=1").context("STOPPING=1")?;
    let extended = told.iter().skip(stopping).any(|message| message.starts_with("EXTEND_TIMEOUT_USEC="));
    ensure!(extended, "systemd is not told that undoing goes on: {told:?}");
    Ok(())
}
