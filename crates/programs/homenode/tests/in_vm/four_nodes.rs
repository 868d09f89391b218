//! Four nodes of two CPUs: threads go home, and no node is overcrowded.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lab::daemon::{Window, last_notes};
use lab::machine::Busy;
use lab::readers::Readers;
use rustix::process::Signal;
use testing::{Case, cases, is_long};

use crate::lab_bench::{Bench, Outcome, cpus, ends, masks, set_mask, windows, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![
    [nodes([4])] four_programs_go_home, a_crowd_is_put_back_by_the_guardrail;
    [is_long(), nodes([4])] nthread_neither_crowds_a_node_nor_splits_sharers;
];

/// CPU share of each of the eight readers. Together they need 2.16 CPUs, more than a node's two;
/// six fit below 90 %.
const DUTY: f64 = 0.27;

/// Windows sampled after the moves.
const SAMPLES: usize = 10;
/// Windows after which the test gives up waiting.
const PATIENCE: usize = 40;

/// Each program reads a file that is cached on another node.
fn four_programs_go_home() -> Outcome {
    let bench = Bench::new()?;
    let files: Vec<PathBuf> = (0..4).map(|node| bench.files(node, 1)).collect::<Result<Vec<_>>>()?.concat();
    // By chance all four may start at home; then the test would show nothing.
    let away = |programs: &[Readers]| -> Result<Vec<u32>> {
        let mut away = Vec::new();
        for (node, program) in (0..).zip(programs) {
            let tids: Vec<u32> = program.threads.iter().map(|t| t.tid).collect();
            let nodes = bench.nodes_of(program.pid(), &tids)?;
            ensure!(nodes.len() == tids.len(), "a reader ended");
            if nodes.values().any(|n| *n != Some(node)) {
                away.push(node);
            }
        }
        Ok(away)
    };
    let mut tries = 0;
    let programs = loop {
        let programs =
            files.iter().map(|f| bench.readers(0.3, std::slice::from_ref(f))).collect::<Result<Vec<Readers>>>()?;
        if !away(&programs)?.is_empty() {
            break programs;
        }
        tries += 1;
        ensure!(tries < 5, "all programs started at home, {tries} times");
    };
    let pids: Vec<u32> = programs.iter().map(Readers::pid).collect();
    let mut daemon = bench.daemon_for(&pids, &[])?;
    windows(&mut daemon, 5)?;
    for _ in 0..3 {
        daemon.window()?;
        let away = away(&programs)?;
        ensure!(away.is_empty(), "not at home: the programs that read files of nodes {away:?}");
    }
    daemon.stop(Signal::TERM)?;
    Ok(())
}

/// Observations after the moves.
struct Crowd {
    /// Utilisation of node 0's CPUs by all threads of the machine.
    node_0_busy: f64,
    /// Number of samples.
    samples: usize,
    /// The number of samples in which each thread was on node 0.
    at_home: BTreeMap<u32, usize>,
}

/// Eight readers of node 0's data under nthread, for [`SAMPLES`] windows and until `enough` agrees.
fn crowd(
    bench: &Bench,
    files: &[PathBuf],
    enough: impl Fn(&Readers, &BTreeMap<u32, usize>) -> bool,
) -> Result<(Readers, Crowd)> {
    let readers = bench.readers(DUTY, files)?;
    let tids: Vec<u32> = readers.threads.iter().map(|t| t.tid).collect();
    ensure!(tids.len() == 8, "eight readers");
    // The guardrail would put a crowd back; `a_crowd_is_put_back_by_the_guardrail` leaves it on.
    let config = bench.config("[guardrail]\nwindows = 0")?;
    let mut daemon = bench.daemon_of(&config, &[readers.pid()], &["--policy", "nthread"])?;
    // homenode is slow in an emulated machine, so it is kept off the node in question.
    set_mask(daemon.pid(), cpus(&bench.machine, 3)?)?;
    windows(&mut daemon, 6)?;
    let before = Busy::now()?;
    let mut at_home: BTreeMap<u32, usize> = BTreeMap::new();
    let mut samples = 0;
    while samples < SAMPLES || (samples < PATIENCE && !enough(&readers, &at_home)) {
        daemon.window()?;
        samples += 1;
        for (tid, node) in bench.nodes_of(readers.pid(), &tids)? {
            *at_home.entry(tid).or_default() += usize::from(node == Some(0));
        }
    }
    let node_0_busy = Busy::now()?.share_since(&before, cpus(&bench.machine, 0)?);
    daemon.stop(Signal::TERM)?;
    say!("node 0 is {:.0} % busy; of {samples} samples on node 0, by thread: {at_home:?}", node_0_busy * 100.0);
    Ok((readers, Crowd { node_0_busy, samples, at_home }))
}

/// By read locality alone, eight readers crowd a node. Under the guardrail as shipped, once they
/// wait for CPUs, all of them get their affinities back, and stay with them.
fn a_crowd_is_put_back_by_the_guardrail() -> Outcome {
    let bench = Bench::new()?;
    let readers = bench.readers(DUTY, &bench.files(0, 8)?)?;
    let before = masks(readers.pid());
    let mut daemon = bench.daemon_for(&[readers.pid()], &["--policy", "nthread-rl"])?;
    set_mask(daemon.pid(), cpus(&bench.machine, 3)?)?;
    let rang = |window: &Window| window.notes.iter().any(|note| note.starts_with("guardrail: "));
    let seen = windows_until(&mut daemon, 20, "guardrail", |window| Ok(rang(window)))?;
    say!("{}", last_notes(&seen));
    ensure!(seen.iter().any(|window| !window.moves.is_empty()), "it rang and nothing was moved");
    let after = windows(&mut daemon, 3)?;
    ensure!(after.iter().all(|window| window.moves.is_empty()), "moved again: {after:?}");
    ensure!(masks(readers.pid()) == before, "before {before:?}, now {:?}", masks(readers.pid()));
    ends(daemon, Signal::TERM)
}

/// With two of the readers on one file, the node stays at or below 90 %, and the sharers stay
/// together.
fn nthread_neither_crowds_a_node_nor_splits_sharers() -> Outcome {
    let bench = Bench::new()?;
    let mut files = bench.files(0, 7)?;
    let shared = files.first().context("a file")?.clone();
    files.push(shared.clone());
    // A node that is not crowded is not empty either: other readers stay or come back. How many fit
    // depends on how long threads wait for a CPU, which is long on a slow emulated machine: one is
    // enough.
    let others = |readers: &Readers, at_home: &BTreeMap<u32, usize>| {
        let sharers = readers.of_file(&shared);
        at_home.iter().any(|(tid, seen)| *seen > 0 && !sharers.contains(tid))
    };
    let (readers, crowd) = crowd(&bench, &files, others)?;
    ensure!(crowd.node_0_busy <= 0.9, "node 0 is {:.2} busy", crowd.node_0_busy);
    let sharers = readers.of_file(&shared);
    ensure!(sharers.len() == 2, "two sharers, not {sharers:?}");
    for tid in &sharers {
        ensure!(crowd.at_home.get(tid) == Some(&crowd.samples), "sharer {tid} left its home: {:?}", crowd.at_home);
    }
    ensure!(others(&readers, &crowd.at_home), "none of the six other readers was ever at home: {:?}", crowd.at_home);
    Ok(())
}
