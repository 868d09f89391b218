//! What tells the papers' policies from each other: where they move, and where they must not.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use lab::readers::Readers;
use testing::{Case, cases, is_long};

use crate::lab_bench::{Bench, Outcome, load, masks, restores, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[is_long(), nodes([2])] arc_guarded_moves_a_process_only_under_its_conditions];

/// Readers of files on node 0 that begin on node 1, by an affinity that homenode may touch.
fn away(bench: &Bench, files: &[PathBuf], memory_mib: &str) -> Result<Readers> {
    let on = bench.machine.list_of(1);
    let options = ["--seconds", "600", "--duty", "0.2", "--on", &on, "--memory", memory_mib];
    load(&options, files)
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
