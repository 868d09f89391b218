//! N-Policy: Fig. 3, a process that maps persistent memory of the other node, and the third
//! condition of Fig. 2.

use engine::Plane as _;

use super::bench::{Bench, Who, experiment, launch, npolicy_machine};
use super::{Draft, Figure, Plot};
use crate::constants::Constants;
use crate::filesystem::FileSystem;
use crate::papers::Paper;
use crate::plane::SimulatedPlane;
use crate::run::{Outcome, RunError, Scenario};
use crate::workload::fio::{Fio, fio};
use crate::workload::{FileSet, Part, Place};
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

/// A process on node 0 that scans a large file there, and reads a small one on node 1 again and
/// again.
fn scan_and_cache(c: &Constants) -> Scenario {
    let p =
        Fio { threads: 1, block: 4096.0, read: 1.0, file_size: 14e9, shared: false, sequential: true, think_s: 0.0 };
    let mut job = fio(c, "scan", FileSystem::Mapped, 0, Place::Node(0), &p);
    job.files.push(FileSet::new("cache.data".into(), 0.2e9, Place::Node(1)));
    for op in job.roles.iter_mut().map(|role| &mut role.op) {
        let whole = op.parts[0];
        op.parts = vec![
            Part { read: 0.2 * whole.read, ..whole },
            Part { files: 1, read: 0.8 * whole.read, sequential: false, ..whole },
        ];
    }
    experiment(npolicy_machine(c), vec![launch(job, Start::On(0))], 20.0)
}

/// Fig. 2: coverage does not decide, so hotness does, against it.
pub(super) fn fig2(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let block = BLOCKS[0].1;
    let scenario = scan_and_cache(&bench.constants);
    let outcome = bench.once(&scenario, Who::Policy("npolicy"))?;
    let [alone, moved] = [&bench.once(&scenario, Who::Kernel)?, &outcome].map(|o| course(o, block));
    let (before, after) = (mean(&moved, BEFORE), mean(&moved, AFTER));
    let mut d = Draft::new(
        Paper::NPolicy,
        "2",
        "The third condition: hot pages against coverage",
        "One thread on node 0 that maps a file of 14 GB there and reads it once through (a fifth of its reads), and one of \
         0.2 GB on node 1 that it reads at random (four fifths), 4 KiB at a time. The paper has no such experiment.",
    );
    // What N-Policy saw: the world of the first window.
    let mapped = first_window(&scenario);
    let share = |of: fn(&placement::MappedMemory) -> u64| {
        let [here, there] = [0, 1].map(|n| mapped.iter().filter(|m| m.node.0 == n).map(of).sum::<u64>() as f64);
        100.0 * here / (here + there)
    };
    let (coverage, hot) = (share(|m| m.touched_bytes.unwrap_or(0)), share(|m| m.hot_bytes));
    d.point("touched pages on the process's node", "before", "%", coverage);
    d.point("hot pages on the process's node", "before", "%", hot);
    d.point("N-Policy / before", "scan and cache", "x", after / before);
    d.check(
        "where most of what is touched is on one node and most of what is hot on the other, N-Policy moves to the latter",
        (50.0..80.0).contains(&coverage) && hot < 50.0 && outcome.moves.threads == 1,
        format!("{coverage:.0} % touched and {hot:.0} % hot on node 0, {} moves", outcome.moves.threads),
    );
    d.check("the move to the hot pages pays", after > before, format!("{:.3} ×", after / before));
    let line = |course: Vec<f64>| course.iter().enumerate().map(|(i, v)| (i as f64 + 1.0, *v)).collect();
    let series = vec![("unmanaged".to_owned(), line(alone)), ("N-Policy".to_owned(), line(moved))];
    Ok(d.plot(Plot::Lines { x: "seconds", y: "MiB/s", series }))
}

/// Mapped memory of the scenario's first process as its first window shows it.
fn first_window(scenario: &Scenario) -> Vec<placement::MappedMemory> {
    let window = std::time::Duration::from_secs_f64(scenario.engine.window_s);
    let snapshot = SimulatedPlane::start(scenario, 1).observe(window);
    snapshot.ok().and_then(|s| s.processes.into_iter().next()).map(|p| p.mapped).unwrap_or_default()
}
