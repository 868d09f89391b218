//! `run --move-back`: what a run has moved is where it was after it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use act::copying::{Back, Copying};
use act::pages::FileMove;
use anyhow::{Context, Result, bail, ensure};
use lab::readers::Readers;
use lab::{cache, pages, threads};
use rustix::process::Signal;
use testing::{Case, cases};
use topology::NodeId;

use crate::lab_bench::{Bench, Outcome, cpus, load, masks, set_mask, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![
    [nodes([2])] memory_returns_after_a_run;
    [nodes([2, 4])] pages_of_a_file_return_one_by_one;
];

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

fn open(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(path).context("open")
}

/// A file whose first part is on node 1 and whose rest is on node 0 goes to node 1 as a whole, and
/// back.
fn pages_of_a_file_return_one_by_one() -> Outcome {
    let bench = Bench::new()?;
    let path = bench.dir().join("file");
    cache::put(&path, 40 << 20, 0)?;
    let part = |bytes: u64| -> Result<FileMove> {
        let mut work = FileMove::prepare(&path, NodeId(1))?;
        while work.copied().copied() < bytes && !work.step(1 << 20)? {}
        Ok(work)
    };
    part(10 << 20)?;
    let before = pages::each(&path)?;
    let there = before.iter().filter(|node| **node == 1).count();
    ensure!(there > 0 && there < before.len(), "{there} of {} pages are on node 1", before.len());
    let work = part(u64::MAX)?;
    ensure!(pages::each(&path)?.iter().all(|node| *node == 1), "{:?}", pages::nodes_of(&path)?);
    let Some(Back::Pages(layout)) = Box::new(work).back() else { bail!("the move does not know its way back") };
    // What is written meanwhile is not undone, and pages do not move because of it.
    OpenOptions::new().write(true).open(&path)?.write_all_at(b"new", 20 << 20)?;
    let mut back = FileMove::back(&open(&path)?, &path, &layout)?;
    while !back.step(16 << 20)? {}
    let now = pages::each(&path)?;
    let wrong = now.iter().zip(&before).filter(|(now, then)| now != then).count();
    ensure!(wrong == 0, "{wrong} of {} pages are not where they were: {:?}", before.len(), back.copied());
    let mut content = [0; 3];
    open(&path)?.read_exact_at(&mut content, 20 << 20)?;
    ensure!(&content == b"new", "{content:?}");
    let nodes: BTreeMap<i32, usize> = pages::nodes_of(&path)?;
    say!("{nodes:?} of {} pages are back on their nodes: {:?}", before.len(), back.copied());
    Ok(())
}
