//! What tells the papers' policies from each other: where they move, and where they must not.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lab::pages;
use lab::readers::Readers;
use testing::{Case, cases};

use crate::lab_bench::{Bench, Outcome, load, masks, restores, windows, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[nodes([2])]
    dragonfly_is_nthread_where_no_controller_is_overloaded,
    arc_guarded_moves_a_process_only_under_its_conditions,
];

/// Readers of files on node 0 that begin on node 1, by an affinity that homenode may touch.
fn away(bench: &Bench, files: &[PathBuf], memory_mib: &str) -> Result<Readers> {
    let on = bench.machine.list_of(1);
    let options = ["--seconds", "600", "--duty", "0.2", "--on", &on, "--memory", memory_mib];
    load(&options, files)
}

/// Both move each reader to its data, once, and leave the files where they are.
fn dragonfly_is_nthread_where_no_controller_is_overloaded() -> Outcome {
    let bench = Bench::new()?;
    let files = bench.files(0, 2)?;
    let mut plans = Vec::new();
    for policy in ["nthread", "dragonfly"] {
        let readers = away(&bench, &files, "0")?;
        let before = masks(readers.pid());
        let mut daemon = bench.daemon_for(&[readers.pid()], &["--policy", policy, "--touch-own-affinity"])?;
        let home = bench.machine.list_of(0);
        let at_home = |tid: u32| masks(readers.pid()).get(&tid) == Some(&home);
        let mut seen = windows_until(&mut daemon, 30, "both readers on node 0", |_| {
            Ok(readers.threads.iter().all(|thread| at_home(thread.tid)))
        })?;
        // What comes late: a file, or a thread that turns around.
        seen.extend(windows(&mut daemon, 5)?);
        let moves: Vec<_> = seen.iter().flat_map(|window| &window.moves).collect();
        let mut plan: Vec<_> = moves
            .iter()
            .map(|mv| (readers.threads.iter().position(|thread| thread.tid == mv.tid), mv.from, mv.to))
            .collect();
        plan.sort_unstable();
        let why: Vec<_> = moves.iter().map(|mv| &mv.why).collect();
        ensure!(plan == [(Some(0), 1, 0), (Some(1), 1, 0)], "{policy}: {plan:?}: {why:?}");
        for file in &files {
            ensure!(pages::share_on(file, 0)? == 1.0, "{policy}: {} left node 0", file.display());
        }
        restores(daemon, readers.pid(), &before).context(policy)?;
        plans.push(plan);
    }
    ensure!(plans[0] == plans[1], "{plans:?}");
    Ok(())
}

/// A process under `arc-guarded` with these limits: declined for this reason, or moved to node 0.
/// Returns why.
pub fn guarded(bench: &Bench, readers: &Readers, limits: &str, declined: Option<&str>) -> Result<String> {
    let before = masks(readers.pid());
    let config = bench.config(&format!("[arc]\n{limits}"))?;
    let options = ["--policy", "arc-guarded", "--touch-own-affinity"];
    let mut daemon = bench.daemon_of(&config, &[readers.pid()], &options)?;
    let home = bench.machine.list_of(0);
    // A process that moves without its memory leaves its idle threads behind, too.
    let is_home = || readers.threads.iter().all(|t| masks(readers.pid()).get(&t.tid) == Some(&home));
    let what = declined.unwrap_or("process on node 0");
    let seen = windows_until(&mut daemon, 60, what, |window| {
        Ok(declined.map_or_else(is_home, |reason| window.declined.iter().any(|stay| stay.reason == reason)))
    })?;
    let why = if declined.is_some() {
        ensure!(seen.iter().all(|window| window.moves.is_empty()), "{limits}: moved");
        ensure!(masks(readers.pid()) == before, "{limits}: bound");
        let stay = seen.iter().flat_map(|window| &window.declined).find(|stay| stay.reason == what);
        stay.map_or(String::new(), |stay| stay.why.clone())
    } else {
        seen.iter().flat_map(|window| &window.moves).map(|mv| mv.why.as_str()).collect()
    };
    say!("{what}: {why}");
    restores(daemon, readers.pid(), &before)?;
    Ok(why)
}

/// The thesis's conditions (8.1, 8.2), but for "sequential or over and over": a reader of a small
/// file soon starts over.
fn arc_guarded_moves_a_process_only_under_its_conditions() -> Outcome {
    const LIMITS: &str = "min_read_size = 65536\nmin_file = 16777216\nprocess_copy_bw = \"200MB/s\"";
    let bench = Bench::new()?;
    // Of a file of 16 MiB, 64 KiB at a time, over and over, with so much memory.
    let readers = |memory_mib: &str| away(&bench, &bench.files(0, 1)?, memory_mib);
    guarded(&bench, &readers("0")?, "min_file = 16777216", Some("small_reads"))?;
    guarded(&bench, &readers("0")?, "min_read_size = 65536", Some("small_file"))?;
    // Copying 300 MiB takes 1.6 s, which a program that is expected to run for less than 20 more
    // does not win back. By the speed of real copies a busy machine, which decides later, did.
    for (memory_mib, choice) in [("300", "moves without its"), ("0", "moves with its")] {
        let why = guarded(&bench, &readers(memory_mib)?, LIMITS, None)?;
        ensure!(why.contains(choice), "{memory_mib} MiB: {why}");
    }
    Ok(())
}
