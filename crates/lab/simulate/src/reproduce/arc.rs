//! The thesis: reading a file from the ARC of the other node, and moving the process to it.

use super::bench::{Bench, Who, experiment, launch, thesis};
use super::{Bars, Draft, Figure, Plot};
use crate::constants::Constants;
use crate::filesystem::FileSystem;
use crate::papers::Paper;
use crate::run::{RunError, Scenario};
use crate::workload::Place;
use crate::workload::fio::{Fio, fio};
use crate::workload::simpleread::{SimpleRead, simpleread};
use crate::world::Start;

const KB: f64 = 1024.0;
const MB: f64 = KB * KB;
const GB: f64 = KB * MB;
const FILES: [(&str, f64); 7] = [
    ("256 MB", 256.0 * MB),
    ("512 MB", 512.0 * MB),
    ("1 GB", GB),
    ("2 GB", 2.0 * GB),
    ("4 GB", 4.0 * GB),
    ("8 GB", 8.0 * GB),
    ("16 GB", 16.0 * GB),
];
const ARC: Who = Who::Policy("arc");

fn small(file_size: f64) -> SimpleRead {
    SimpleRead { file_size, read_size: MB, process_size: 0.0, passes: 1.0 }
}

/// simpleread with its file in the ARC of node 0, started on `node`.
fn scenario(c: &Constants, p: &SimpleRead, node: usize) -> Scenario {
    let job = simpleread(c, "simpleread", FileSystem::Zfs, 0, Place::Node(0), p);
    // Long enough for the slowest; a run ends with its process.
    let mut scenario = experiment(thesis(c), vec![launch(job, Start::On(node))], 600.0);
    scenario.engine.window_s = c.arc_window_s;
    scenario
}

/// Seconds from start to end, as `time` says.
fn run_time(bench: &Bench<'_>, scenario: &Scenario, who: Who) -> Result<f64, RunError> {
    bench.mean(scenario, who, |o| o.workloads[0].runtime_s.unwrap_or(f64::NAN))
}

fn less(here: f64, there: f64) -> f64 {
    100.0 * (1.0 - here / there)
}

/// Run times of the small process over all files.
fn times(bench: &Bench<'_>, node: usize, autonuma: bool, who: Who) -> Result<Vec<f64>, RunError> {
    let time = |size: f64| {
        let scenario = Scenario { autonuma, ..scenario(&bench.constants, &small(size), node) };
        run_time(bench, &scenario, who)
    };
    FILES.iter().map(|(_, size)| time(*size)).collect()
}

fn names() -> [&'static str; 7] {
    FILES.map(|f| f.0)
}

/// Per cent less run time for each file, as points.
fn percents(d: &mut Draft, series: &str, here: &[f64], there: &[f64]) -> Vec<f64> {
    let values: Vec<f64> = here.iter().zip(there).map(|(h, t)| less(*h, *t)).collect();
    for (name, value) in names().into_iter().zip(&values) {
        d.point(series, name, "%", *value);
    }
    values
}

pub(super) fn fig5_2(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let (same, other) = (times(bench, 0, false, Who::Kernel)?, times(bench, 1, false, Who::Kernel)?);
    let mut d = Draft::new(
        Paper::Arc,
        "5.2",
        "Reading from the ARC of the same and of the other node",
        "simpleread, reads of 1 MB, small process, file in the ARC of node 0; run time from start to end.",
    );
    let values = percents(&mut d, "less run time on the data's node", &same, &other);
    d.more_points("the loss grows with the file", values[6], values[0]);
    let mut bars = Bars::new(names());
    bars.push("same node", same);
    bars.push("different node", other);
    bars.all(&mut d, "s");
    Ok(d.plot(bars.plot("run time, s")))
}

pub(super) fn fig6_1(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let (off, on) = (times(bench, 1, false, Who::Kernel)?, times(bench, 1, true, Who::Kernel)?);
    let same = times(bench, 0, false, Who::Kernel)?;
    let mut d = Draft::new(
        Paper::Arc,
        "6.1",
        "AutoNUMA does not help",
        "As Fig. 5.2 on the other node, without and with NUMA balancing, which moves a process's own memory and never the ARC.",
    );
    let values = percents(&mut d, "less run time with NUMA balancing", &on, &off);
    let best = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    d.point("less run time with NUMA balancing", "best", "%", best);
    d.check("NUMA balancing regains 3 % at best", best <= 3.0, format!("{best:.2} %"));
    d.better("with NUMA balancing the other node is slower than the same with 16 GB", on[6], same[6]);
    let mut bars = Bars::new(names());
    bars.push("same node", same);
    bars.push("different node", off);
    bars.push("different node, NUMA balancing", on);
    Ok(d.plot(bars.plot("run time, s")))
}

pub(super) fn fig6_2(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let p = SimpleRead { passes: 100.0, ..small(GB) };
    let run = |node: usize| {
        let mut scenario = Scenario { autonuma: true, ..scenario(&bench.constants, &p, node) };
        scenario.engine.window_s = 1.0;
        bench.once(&scenario, Who::Kernel)
    };
    let latency = |outcome: crate::run::Outcome| -> Vec<(f64, f64)> {
        // The first window has the start of the process in it, the last one its end.
        let windows = outcome.windows.get(1..outcome.windows.len().saturating_sub(1)).unwrap_or_default().to_vec();
        windows.iter().map(|w| (w.time_s, 1e6 / w.ops_per_s[0])).collect()
    };
    let (same, other) = (latency(run(0)?), latency(run(1)?));
    let [first, last] = [other.first(), other.last()].map(|p| p.map_or(f64::NAN, |p| p.1));
    let mut d = Draft::new(
        Paper::Arc,
        "6.2",
        "Reading again and again does not help AutoNUMA either",
        "A file of 1 GB in the ARC of the other node, read 100 times in reads of 1 MB, NUMA balancing on.",
    );
    d.point("latency, last run / first run", "100 runs", "x", last / first);
    let nearest = other.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let near = same.first().map_or(f64::NAN, |p| p.1);
    d.better("the latency stays above that of the same node", nearest, near);
    let series = vec![("same node".to_owned(), same), ("different node, NUMA balancing".to_owned(), other)];
    Ok(d.plot(Plot::Lines { x: "seconds", y: "latency of a read of 1 MB, µs", series }))
}

pub(super) fn fig8_1(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let (stay, moved) = (times(bench, 1, false, Who::Kernel)?, times(bench, 1, false, ARC)?);
    let mut d = Draft::new(
        Paper::Arc,
        "8.1",
        "Task migration against none",
        "As Fig. 5.2 on the other node; the policy `arc` moves the process at the first remote read (windows of 20 ms).",
    );
    let values = percents(&mut d, "less run time with task migration", &moved, &stay);
    let least = values[2..].iter().copied().fold(f64::INFINITY, f64::min);
    d.more_points("task migration helps from 1 GB on", least, 0.0);
    d.more_points("it helps more the larger the file", values[6], values[0]);
    let mut bars = Bars::new(names());
    bars.push("ZFS", stay);
    bars.push("task migration", moved);
    bars.all(&mut d, "s");
    Ok(d.plot(bars.plot("run time, s")))
}

pub(super) fn fig8_2(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let (local, moved) = (times(bench, 0, false, Who::Kernel)?, times(bench, 1, false, ARC)?);
    let mut d = Draft::new(
        Paper::Arc,
        "8.2",
        "Task migration against starting at the data",
        "As Fig. 8.1; the process starts on the other node and is moved, or starts on the node that has the file.",
    );
    let ratios = local.iter().zip(&moved).map(|(l, m)| m / l);
    let worst = ratios.fold(1.0, |worst: f64, r| if (r - 1.0).abs() > (worst - 1.0).abs() { r } else { worst });
    d.point("run time, migrated / local", "all", "x", worst);
    let mut bars = Bars::new(names());
    bars.push("same node", local);
    bars.push("different node, task migration", moved);
    bars.all(&mut d, "s");
    Ok(d.plot(bars.plot("run time, s")))
}

/// Bytes/s of one thread of fio that starts on a node, its file in the ARC of node 0.
fn bandwidth(bench: &Bench<'_>, size: f64, node: usize, who: Who) -> Result<f64, RunError> {
    let c = &bench.constants;
    let p =
        Fio { threads: 1, block: 2.0 * MB, read: 1.0, file_size: size, shared: false, sequential: true, think_s: 0.0 };
    let job = fio(c, "fio", FileSystem::Zfs, 0, Place::Node(0), &p);
    let mut scenario = experiment(thesis(c), vec![launch(job, Start::On(node))], 10.0);
    scenario.engine.window_s = c.arc_window_s;
    bench.mean(&scenario, who, |o| o.workloads[0].read_bw / 1e9)
}

fn bandwidths(bench: &Bench<'_>, runs: [(&str, usize, Who); 2]) -> Result<Bars, RunError> {
    let mut bars = Bars::new(names());
    for (name, node, who) in runs {
        bars.run(name, FILES.iter().map(|(_, size)| bandwidth(bench, *size, node, who)))?;
    }
    Ok(bars)
}

pub(super) fn fig8_3(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let mut d = Draft::new(
        Paper::Arc,
        "8.3",
        "Bandwidth of fio",
        "One thread of fio, sequential reads of 2 MB, file in the ARC of the other node, 10 s.",
    );
    let bars = bandwidths(bench, [("ZFS", 1, Who::Kernel), ("task migration", 1, ARC)])?;
    let more = 100.0 * (bars.ratio("task migration", "ZFS") - 1.0);
    d.point("more bandwidth with task migration", "all", "% more", more);
    d.better("task migration gives more bandwidth", 1.0 + more / 100.0, 1.0);
    bars.all(&mut d, "GB/s");
    Ok(d.plot(bars.plot("GB/s")))
}

pub(super) fn fig8_4(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let mut d = Draft::new(
        Paper::Arc,
        "8.4",
        "Bandwidth of fio with task migration, against starting at the data",
        "As Fig. 8.3; the thread starts on the other node and its process is moved, or it starts on the node that has the file.",
    );
    let bars = bandwidths(bench, [("same node", 0, Who::Kernel), ("different node, task migration", 1, ARC)])?;
    d.point("bandwidth, migrated / local", "all", "x", bars.ratio("different node, task migration", "same node"));
    bars.all(&mut d, "GB/s");
    Ok(d.plot(bars.plot("GB/s")))
}

pub(super) fn fig8_5(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let processes =
        [("small", 0.0), ("10 MB", 10.0 * MB), ("100 MB", 100.0 * MB), ("500 MB", 500.0 * MB), ("1 GB", GB)];
    let mut d = Draft::new(
        Paper::Arc,
        "8.5",
        "The size of the process",
        "As Fig. 8.1 with a process that fills memory of its own first, which moves with it. \"Thread only\" leaves that memory behind, as \
         Listing A.7 does: it moves the task first, and then the memory of the node that the task is on by then.",
    );
    let mut bars = Bars::new(names());
    let value = |process_size: f64, size: f64, who: Who| -> Result<f64, RunError> {
        let scenario = scenario(&bench.constants, &SimpleRead { process_size, ..small(size) }, 1);
        Ok(less(run_time(bench, &scenario, who)?, run_time(bench, &scenario, Who::Kernel)?))
    };
    for (name, process_size) in processes {
        bars.run(name, FILES.iter().map(|(_, size)| value(process_size, *size, ARC)))?;
    }
    let large = bars.of("1 GB").to_vec();
    bars.run("1 GB, thread only", FILES.iter().map(|(_, size)| value(GB, *size, Who::ThreadOnly)))?;
    let series = "less run time, process of 1 GB";
    let (least, most) = large[3..].iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    d.point(series, "1 GB", "%", large[2]);
    d.point(series, "files above 1 GB, least", "%", least);
    d.point(series, "files above 1 GB, most", "%", most);
    d.more_points("the larger the process, the less is gained with 4 GB", bars.at("small", "4 GB"), large[4]);
    bars.all(&mut d, "%");
    Ok(d.plot(bars.plot("less run time, %")))
}

pub(super) fn fig8_6(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let sizes = [
        ("4 KB", 4.0 * KB),
        ("16 KB", 16.0 * KB),
        ("64 KB", 64.0 * KB),
        ("128 KB", 128.0 * KB),
        ("256 KB", 256.0 * KB),
        ("512 KB", 512.0 * KB),
        ("1 MB", MB),
        ("2 MB", 2.0 * MB),
    ];
    let latency = |read_size: f64, who: Who| {
        let scenario = scenario(&bench.constants, &SimpleRead { read_size, ..small(4.0 * GB) }, 1);
        // The process moves in its first window, so the median is the latency of a window near the
        // end.
        let late = |o: &crate::run::Outcome| o.windows[o.windows.len() * 3 / 4].ops_per_s[0];
        bench.mean(&scenario, who, |o| 1.0 / late(o))
    };
    let mut bars = Bars::new(sizes.map(|s| s.0));
    let values: Result<Vec<f64>, RunError> =
        sizes.iter().map(|(_, size)| Ok(less(latency(*size, ARC)?, latency(*size, Who::Kernel)?))).collect();
    let values = values?;
    let mut d = Draft::new(
        Paper::Arc,
        "8.6",
        "The size of a read",
        "simpleread on a file of 4 GB, small process; median latency of a read with task migration against without.",
    );
    let series = "less latency with task migration";
    let (below, from) = values.split_at(3);
    let [least, most] = [f64::min, f64::max].map(|pick| from.iter().copied().reduce(pick).unwrap_or(f64::NAN));
    d.point(series, "below 128 KB", "%", below.iter().sum::<f64>() / below.len() as f64);
    d.point(series, "128 KB and more, least", "%", least);
    d.point(series, "128 KB and more, most", "%", most);
    let most_below = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    d.more_points("reads of 128 KB and more gain more than smaller ones", least, most_below);
    bars.push(series, values);
    bars.all(&mut d, "%");
    Ok(d.plot(bars.plot("less latency, %")))
}
