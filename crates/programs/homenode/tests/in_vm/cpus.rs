//! CPUs that go offline and come back while homenode runs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lab::daemon::Daemon;
use lab::machine::Machine;
use lab::readers::Readers;
use rustix::process::Signal;
use testing::{Case, Skip, cases, is_long};

use crate::lab_bench::{self, Bench, Outcome, cpus, masks, restores, set_mask, windows, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![
    [nodes([2])] threads_follow_the_cpus_of_their_node;
    [is_long(), nodes([2])] threads_on_a_new_cpu_are_moved, offline_cpus_are_no_capacity;
];

/// A load that stays the same for so many windows is left alone.
const SETTLE: usize = 4;
/// Longer than that.
const SETTLED: usize = 5;
/// In which homenode, by default, would crowd a CPU if it did.
const OBSERVED: usize = 14;
/// Windows, for the rules that hold a move back: so many moves a second, some time between two.
const PATIENCE: usize = 40;

/// Threads that were started on some CPUs only begin away from their data for sure, and are moved.
const OPTIONS: &[&str] = &["--policy", "nthread", "--touch-own-affinity"];

/// CPUs that are offline until this is dropped.
struct Offline(Vec<u32>);

impl Offline {
    fn take(cpus: &[u32]) -> Result<Self> {
        if let Some(cpu) = cpus.iter().find(|cpu| !file(**cpu).exists()) {
            return Err(Skip(format!("the kernel cannot take CPU {cpu} offline")).into());
        }
        let mut taken = Self(Vec::new());
        for cpu in cpus {
            switch(*cpu, "0")?;
            taken.0.push(*cpu);
        }
        Ok(taken)
    }

    fn back(mut self) -> Result<()> {
        self.0.drain(..).try_for_each(|cpu| switch(cpu, "1"))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        for error in self.0.iter().filter_map(|cpu| switch(*cpu, "1").err()) {
            say!("{error:#}");
        }
    }
}

fn file(cpu: u32) -> PathBuf {
    PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"))
}

fn switch(cpu: u32, to: &str) -> Result<()> {
    let file = file(cpu);
    fs::write(&file, to).with_context(|| format!("{to} to {}", file.display()))
}

/// CPUs of a node from the second on: one that can go offline leaves another one there.
fn spare(machine: &Machine, node: u32) -> Result<&[u32]> {
    match cpus(machine, node)? {
        [_, spare @ ..] if !spare.is_empty() => Ok(spare),
        one => Err(Skip(format!("node {node} has the CPUs {one:?} only")).into()),
    }
}

/// Starts homenode for these processes, or for all, with a load that settles soon.
fn daemon(bench: &Bench, pids: &[u32]) -> Result<Daemon> {
    // Without the guardrail: what readers get on emulated CPUs depends on what else the host does.
    let config = bench.config(&format!("[engine.settle]\nwindows = {SETTLE}\n[guardrail]\nwindows = 0"))?;
    bench.daemon_of(&config, pids, OPTIONS)
}

/// One reader for each file, and `how` says on which CPUs.
fn load(duty: &str, how: &[&str], files: &[PathBuf]) -> Result<Readers> {
    lab_bench::load(&[&["--seconds", "900", "--duty", duty], how].concat(), files)
}

/// How many readers may run on just these CPUs.
fn bound_to(readers: &Readers, cpus: &str) -> usize {
    let masks = masks(readers.pid());
    readers.threads.iter().filter(|t| masks.get(&t.tid).is_some_and(|mask| mask == cpus)).count()
}

/// Readers of node 1's data: some are bound to the whole node before one of its CPUs goes, others
/// to the rest of it after that. With the CPU all of them get the whole node, and a reader of node
/// 0's data that runs on it is moved.
fn threads_follow_the_cpus_of_their_node() -> Outcome {
    let bench = Bench::new()?;
    let (files, other) = (bench.files(1, 2)?, bench.files(0, 1)?);
    let (elsewhere, whole) = (bench.machine.list_of(0), bench.machine.list_of(1));
    let last = |node| spare(&bench.machine, node)?.last().copied().context("a CPU");
    let (lost, lost_elsewhere) = (last(1)?, last(0)?);
    let early = load("0.15", &["--on", &elsewhere], &files)?;
    let third = load("0.15", &["--on", &elsewhere], &other)?;
    let early_before = masks(early.pid());
    let mut daemon = daemon(&bench, &[])?;
    windows_until(&mut daemon, PATIENCE, "early reader on node 1", |_| Ok(bound_to(&early, &whole) == 2))?;

    let offline = Offline::take(&[lost, lost_elsewhere])?;
    let rest = Machine::read()?.list_of(1);
    ensure!(rest != whole, "CPU {lost} is still there: {rest}");
    // Given CPUs of which one is offline.
    let late = load("0.15", &["--on", &elsewhere], &files)?;
    let late_before = masks(late.pid());
    windows_until(&mut daemon, PATIENCE, "late reader on what is left of node 1", |_| Ok(bound_to(&late, &rest) == 2))?;
    windows(&mut daemon, SETTLED)?;
    say!("without CPU {lost}: early {:?}, late {:?}", masks(early.pid()), masks(late.pid()));
    ensure!(bound_to(&late, &rest) == 2, "late readers: {:?}", masks(late.pid()));

    offline.back()?;
    let what = "reader on all of node 1 that was on a part of it";
    windows_until(&mut daemon, PATIENCE, what, |_| Ok(bound_to(&early, &whole) + bound_to(&late, &whole) == 4))?;
    let its = third.threads.first().context("a reader")?.tid;
    set_mask(its, &[lost])?;
    let third_before = masks(third.pid());
    windows_until(&mut daemon, PATIENCE, "third reader on node 0", |_| Ok(bound_to(&third, &elsewhere) == 1))?;
    daemon.stop(Signal::TERM)?;
    for (who, readers, before) in
        [("early", early, early_before), ("late", late, late_before), ("third", third, third_before)]
    {
        ensure!(masks(readers.pid()) == before, "{who}: before {before:?}, after {:?}", masks(readers.pid()));
    }
    Ok(())
}

/// homenode starts without a CPU of node 1, and the load stays the same for long. Then the CPU
/// comes: readers of node 1's data get it, and a reader of node 0's data that runs on it is moved.
fn threads_on_a_new_cpu_are_moved() -> Outcome {
    let bench = Bench::new()?;
    let files = [bench.files(1, 2)?, bench.files(0, 1)?].concat();
    let (home, whole) = (bench.machine.list_of(0), bench.machine.list_of(1));
    let new = *spare(&bench.machine, 1)?.last().context("a CPU")?;
    let offline = Offline::take(&[new])?;
    let rest = Machine::read()?.list_of(1);
    let readers = load("0.15", &["--on", &home], &files)?;
    let mut before = masks(readers.pid());
    let mut daemon = daemon(&bench, &[readers.pid()])?;
    windows_until(&mut daemon, PATIENCE, "readers on node 1", |_| Ok(bound_to(&readers, &rest) == 2))?;
    windows(&mut daemon, SETTLED)?;
    offline.back()?;
    windows_until(&mut daemon, PATIENCE, "readers on all of it", |_| Ok(bound_to(&readers, &whole) == 2))?;
    let third = readers.threads.last().context("a reader")?.tid;
    set_mask(third, &[new])?;
    before.insert(third, new.to_string());
    windows_until(&mut daemon, PATIENCE, "third reader on node 0", |_| Ok(bound_to(&readers, &home) == 1))?;
    restores(daemon, readers.pid(), &before)
}

/// Six readers of node 1's data need more than the last CPU there. With its other CPUs the node has
/// room for as many.
fn offline_cpus_are_no_capacity() -> Outcome {
    let bench = Bench::new()?;
    let files = bench.files(1, 6)?;
    let spare = spare(&bench.machine, 1)?;
    let (elsewhere, whole) = (bench.machine.list_of(0), bench.machine.list_of(1));
    let mut daemon = bench.daemon(OPTIONS)?;
    // homenode is slow in an emulated machine, so it is kept off the node in question.
    set_mask(daemon.pid(), cpus(&bench.machine, 0)?)?;
    windows(&mut daemon, 2)?;
    let offline = Offline::take(spare)?;
    let rest = Machine::read()?.list_of(1);
    let readers = load("0.3", &["--on", &elsewhere], &files)?;
    let mut most = 0;
    windows_until(&mut daemon, PATIENCE, "reader on the last CPU of node 1", |_| {
        most = most.max(bound_to(&readers, &rest));
        Ok(most > 0)
    })?;
    for _ in 0..OBSERVED {
        daemon.window()?;
        most = most.max(bound_to(&readers, &rest));
        ensure!(most < 6, "all readers are on CPU {rest}: {:?}", masks(readers.pid()));
    }
    say!("at most {most} of 6 readers on CPU {rest}");
    offline.back()?;
    // Some of them were there and had to go, and do not return for a minute.
    drop(readers);
    let readers = load("0.3", &["--on", &elsewhere], &files)?;
    let before = masks(readers.pid());
    windows_until(&mut daemon, PATIENCE, "six readers on node 1", |_| Ok(bound_to(&readers, &whole) == 6))?;
    restores(daemon, readers.pid(), &before)
}
