//! How long reads take.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use libtest_mimic::Completion;
use observe::times::{READS_PER_TIMED, ReadTimes};
use observe::{Hooks, Scope};

use crate::common::*;
use crate::{Case, cases, ensure};

pub const CASES: &[Case] = cases![
    WithKernels: reads_are_timed;
];

/// Of the file that is read.
const SIZE: u64 = MIB;

/// Reads of it.
const READS: u64 = 64_000;

fn reads_are_timed(hooks: Hooks) -> Outcome {
    if hooks == Hooks::Tracepoints {
        return Ok(Completion::ignored_with("only functions tell when a read begins"));
    }
    let directory = directory()?;
    let path = cached_file(directory.path(), "data", SIZE, 4096)?;
    let _held = hold(&path)?;
    let (file, mut buffer) = (File::open(&path)?, vec![0; 4096]);
    let mut times = ReadTimes::open(&Scope::All)?;
    let mut ours = ReadTimes::open(&Scope::Pids(vec![std::process::id()]))?;
    let mut others = ReadTimes::open(&Scope::Pids(vec![1]))?;

    let own = |times: &mut ReadTimes| -> Result<_, libtest_mimic::Failed> {
        Ok(times.take()?.remove(&std::process::id()).unwrap_or_default())
    };
    own(&mut times)?;
    let begun = Instant::now();
    for read in 0..READS {
        file.read_exact_at(&mut buffer, read * 4096 % SIZE)?;
    }
    let took_s = begun.elapsed().as_secs_f64();
    let seen = own(&mut times)?;
    // One in 16, by lot: six standard deviations.
    let expected = READS as f64 / f64::from(READS_PER_TIMED);
    let allowed = 6.0 * (expected * (1.0 - 1.0 / f64::from(READS_PER_TIMED))).sqrt();
    ensure!((seen.count() as f64 - expected).abs() < allowed, "{} timed, {expected} expected", seen.count());
    // Half of the reads took as long as the median: no longer than all of them together, but for
    // the width of a bucket and the luck of the lot.
    let median = seen.quantile(0.5).unwrap_or_default();
    ensure!(median > 0.0 && READS as f64 / 2.0 * median < 1.2 * took_s, "median {median} s; all took {took_s} s");
    // What reads nothing is not timed.
    for _ in 0..READS / 4 {
        file.read_at(&mut buffer, SIZE)?;
    }
    let seen = own(&mut times)?;
    ensure!(seen.count() == 0, "{} reads at the end of the file were timed", seen.count());
    // Only those of the chosen processes take room.
    let (ours, others) = (ours.take()?, others.take()?);
    ensure!(ours.keys().eq([&std::process::id()]), "reads of {:?} were timed, too", ours.keys());
    ensure!(others.keys().all(|pid| *pid == 1), "reads of {:?} were timed, not of 1", others.keys());
    ensure!(times.take_lost() == 0, "timed reads were lost");
    Ok(Completion::Completed)
}
