//! N-Policy: Fig. 3, a process that maps persistent memory of the other node.

use super::bench::{Bench, Who, experiment, launch, npolicy_machine};
use super::{Draft, Figure, Plot};
use crate::constants::Constants;
use crate::filesystem::FileSystem;
use crate::papers::Paper;
use crate::run::{Outcome, RunError, Scenario};
use crate::workload::Place;
use crate::workload::fio::{Fio, fio};
use crate::world::Start;

const MIB: f64 = 1048576.0;
const BLOCKS: [(&str, f64); 2] = [("4 KiB", 4096.0), ("2 MiB", 2.0 * MIB)];
/// Windows of 1 s that count as before and after the move, well away from it.
const BEFORE: std::ops::Range<usize> = 2..8;
const AFTER: std::ops::Range<usize> = 14..20;

/// One thread of fio's libpmem engine on node 1, its file on node 0.
fn scenario(c: &Constants, block: f64, read: f64) -> Scenario {
    let p = Fio { threads: 1, block, read, file_size: 16e9, shared: false, sequential: true, think_s: 0.0 };
    let job = fio(c, "fio", FileSystem::Mapped, 0, Place::Node(0), &p);
    experiment(npolicy_machine(c), vec![launch(job, Start::On(1))], 20.0)
}

/// MiB/s in every window, by the benchmark's own count.
fn course(outcome: &Outcome, block: f64) -> Vec<f64> {
    outcome.windows.iter().map(|w| w.ops_per_s.iter().sum::<f64>() * block / MIB).collect()
}

fn mean(course: &[f64], windows: std::ops::Range<usize>) -> f64 {
    let of = course.get(windows).unwrap_or_default();
    of.iter().sum::<f64>() / of.len() as f64
}

fn figure(bench: &Bench<'_>, mut d: Draft, what: &str, read: f64) -> Result<(Draft, Plot, [f64; 2]), RunError> {
    let mut lines = Vec::new();
    let mut gains = [0.0; 2];
    for (gain, (name, block)) in gains.iter_mut().zip(BLOCKS) {
        let scenario = scenario(&bench.constants, block, read);
        let alone = course(&bench.once(&scenario, Who::Kernel)?, block);
        let outcome = bench.once(&scenario, Who::Policy("npolicy"))?;
        let moved = course(&outcome, block);
        let (before, after) = (mean(&moved, BEFORE), mean(&moved, AFTER));
        *gain = after / before;
        let point = format!("{name} {what}");
        d.point("before", &point, "MiB/s", before);
        d.point("N-Policy / before", &point, "x", *gain);
        if outcome.last_move > 0 {
            d.point("moved after", &point, "s", outcome.windows[outcome.last_move - 1].time_s);
        }
        let once = outcome.moves.threads == 1;
        d.check(format!("N-Policy moves the process once: {point}"), once, format!("{} moves", outcome.moves.threads));
        // Reads gain less than the margin of an ordering; the number itself is scored.
        if read == 0.0 {
            d.better(format!("N-Policy beats unmanaged: {point}"), *gain, 1.0);
        }
        d.similar(format!("unmanaged is stable: {point}"), mean(&alone, AFTER), mean(&alone, BEFORE));
        for (series, course) in [("unmanaged", alone), ("N-Policy", moved)] {
            let points = course.iter().enumerate().map(|(i, v)| (i as f64 + 1.0, *v)).collect();
            lines.push((format!("{series}, {name}"), points));
        }
    }
    Ok((d, Plot::Lines { x: "seconds", y: "MiB/s", series: lines }, gains))
}

pub(super) fn fig3a(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let d = Draft::new(
        Paper::NPolicy,
        "3a",
        "fio with libpmem, 100 % reads",
        "One thread on node 1 that maps a file of 16 GB on node 0, 20 s; N-Policy decides after an epoch of 10 s.",
    );
    figure(bench, d, "read", 1.0).map(|(d, plot, _)| d.plot(plot))
}

pub(super) fn fig3b(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let d = Draft::new(Paper::NPolicy, "3b", "fio with libpmem, 100 % writes", "As Fig. 3(a), writing.");
    let (mut d, plot, [small, large]) = figure(bench, d, "write", 0.0)?;
    d.better("large blocks gain more than small ones", large, small);
    let scenario = scenario(&bench.constants, BLOCKS[0].1, 1.0);
    let reads = course(&bench.once(&scenario, Who::Policy("npolicy"))?, BLOCKS[0].1);
    let reads = mean(&reads, AFTER) / mean(&reads, BEFORE);
    d.better("writes gain more than reads", small, reads);
    Ok(d.plot(plot))
}
