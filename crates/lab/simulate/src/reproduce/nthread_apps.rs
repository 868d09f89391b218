//! NThread's applications: RocksDB (Fig. 2, 7), filebench (Fig. 6), and the gain of each of its
//! parts (Table II).

use super::bench::{Bench, Contestant, OTHERS, VARIANTS, Who, experiment, kops, launch, nthread, nthread_four};
use super::{Bars, Draft, Figure};
use crate::constants::Constants;
use crate::filesystem::FileSystem;
use crate::machine::Machine;
use crate::papers::Paper;
use crate::run::{RunError, Scenario};
use crate::workload::filebench::{NTHREAD, filebench};
use crate::workload::fio::{Fio, fio};
use crate::workload::rocksdb::{self, Benchmark, RocksDb, rocksdb};
use crate::workload::{Job, Place};
use crate::world::Start;

const KB: f64 = 1024.0;
const NAMES: [&str; 4] = ["ext4-dax", "PMFS", "NOVA", "NOVA_n"];
/// The paper's abbreviations.
const DATABASES: [(&str, Benchmark); 3] =
    [("W", Benchmark::FillSeq), ("R", Benchmark::ReadRandom), ("RW", Benchmark::ReadWhileWriting)];

/// The place of an application's data at the start: on the device of its file system, or on all
/// devices.
fn placed(fs: FileSystem, device: usize) -> Place {
    match fs {
        FileSystem::NovaN => Place::Spread,
        _ => Place::Node(device),
    }
}

/// Applications with one thread placement by the kernel, each on a file system of its own node ("we
/// run one application on each").
fn applications(machine: &Machine, count: usize, job: impl Fn(usize, Place) -> Job, fs: FileSystem) -> Scenario {
    let launches = (0..count).map(|i| launch(job(i, placed(fs, i)), Start::Kernel)).collect();
    experiment(machine.clone(), launches, 60.0)
}

fn db(c: &Constants, fs: FileSystem, benchmark: Benchmark, keys: f64, device: usize, place: Place) -> Job {
    let (_, value, threads) = rocksdb::NTHREAD;
    let p = RocksDb { benchmark, threads: benchmark.option(threads), keys, value };
    rocksdb(c, &format!("rocksdb{device}"), fs, device, place, &p)
}

/// II-C: two RocksDB on two file systems, against all threads at their data and all threads away
/// from it.
pub(super) fn fig2(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let mut d = Draft::new(
        Paper::NThread,
        "2",
        "Share of the best throughput that existing file systems reach",
        "Two RocksDB of 10 threads, 40 GB each, each on a file system of its own node (NOVA_n: one over both). The kernel places \
         the threads; best is all threads on their data's node, worst all on the other one. NOVA_n, whose data is never on one \
         node, is compared with the best of NOVA.",
    );
    let machine = nthread(&bench.constants, 10);
    let mut bars = Bars::new(DATABASES.map(|d| d.0));
    let run = |fs: FileSystem, benchmark: Benchmark, start: Option<usize>| {
        let mut scenario =
            applications(&machine, 2, |i, place| db(&bench.constants, fs, benchmark, 10e6, i, place), fs);
        if let Some(shift) = start {
            scenario.launches.iter_mut().enumerate().for_each(|(i, l)| l.start = Start::Pinned((i + shift) % 2));
        }
        bench.mean(&scenario, Who::Kernel, kops)
    };
    let mut low = Vec::new();
    for Contestant { name, fs, .. } in &OTHERS {
        let best_of = if *fs == FileSystem::NovaN { FileSystem::Nova } else { *fs };
        let mut shares = Vec::new();
        for (_, benchmark) in DATABASES {
            let best = run(best_of, benchmark, Some(0))?;
            shares.push(run(*fs, benchmark, None)? / best);
            low.push((*name, run(*fs, benchmark, Some(1))? / best));
        }
        bars.push(*name, shares);
    }
    for name in NAMES {
        d.better(format!("{name} falls short of its best for RW"), 1.0, bars.at(name, "RW"));
    }
    let [ext4, pmfs, nova, nova_n] = NAMES.map(|name| bars.at(name, "RW"));
    // NOVA_n stays furthest from its best, but by less than the margin.
    d.better("for RW ext4-dax comes nearest to its best", ext4, pmfs.max(nova).max(nova_n));
    for (i, (name, share)) in low.iter().enumerate() {
        d.point(format!("{name}, all threads away from the data"), DATABASES[i % 3].0, "x max", *share);
    }
    bars.all(&mut d, "x max");
    Ok(d.plot(bars.plot("throughput, best = 1")))
}

fn bench_job(c: &Constants, fs: FileSystem, row: usize, device: usize, place: Place) -> Job {
    filebench(c, &format!("filebench{device}"), fs, device, place, &NTHREAD[row])
}

fn fig6(bench: &Bench<'_>, count: usize) -> Result<Bars, RunError> {
    let machine = nthread(&bench.constants, 10);
    let mut bars = Bars::new(NTHREAD.map(|row| row.personality.name()));
    for c in OTHERS.iter().chain(&VARIANTS) {
        let value = |row: usize| {
            let job = |i, place| bench_job(&bench.constants, c.fs, row, i, place);
            bench.mean(&applications(&machine, count, job, c.fs), c.who, kops)
        };
        bars.run(c.name, (0..NTHREAD.len()).map(value))?;
    }
    Ok(bars)
}

/// The largest of `a / b` in any group.
fn most(bars: &Bars, a: &str, b: &str) -> f64 {
    bars.of(a).iter().zip(bars.of(b)).map(|(a, b)| a / b).fold(f64::NEG_INFINITY, f64::max)
}

/// Averages over the others, and that each is beaten.
fn averages(d: &mut Draft, bars: &Bars, who: &str) {
    for other in NAMES {
        let ratio = bars.ratio(who, other);
        d.point(format!("{who} / {other}"), "average", "x", ratio);
        d.better(format!("{who} beats {other} on average"), ratio, 1.0);
        d.restates(d.kind(&format!("{who} / {other}"), "average"));
    }
    d.ranking(who, &NAMES, "average");
}

pub(super) fn fig6a(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let bars = fig6(bench, 1)?;
    let mut d = Draft::new(
        Paper::NThread,
        "6a",
        "filebench, one application",
        "Table III, 10 cores a node, files on node 0 (NOVA_n: on both nodes), 60 s.",
    );
    averages(&mut d, &bars, "NThread_rl");
    for other in &NAMES[..3] {
        d.point(format!("NThread / {other}"), "average", "x", bars.ratio("NThread", other));
    }
    for less in ["NThread_nm", "NThread_cpu"] {
        for more in ["NThread_rl", "NThread"] {
            d.better(format!("{more} beats {less} on average"), bars.ratio(more, less), 1.0);
        }
    }
    bars.all(&mut d, "kops/s");
    Ok(d.plot(bars.relative_to("NOVA").plot("throughput, NOVA = 1")))
}

pub(super) fn fig6b(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let bars = fig6(bench, 2)?;
    let mut d = Draft::new(
        Paper::NThread,
        "6b",
        "filebench, two applications",
        "Twice Fig. 6(a): the second application's files are on node 1.",
    );
    averages(&mut d, &bars, "NThread_rl");
    let most = [&fig6(bench, 1)?, &bars].map(|bars| most(bars, "NThread", "NOVA"));
    d.point("NThread / NOVA", "most, of Fig. 6(a) and (b)", "x", most[0].max(most[1]));
    for variant in ["NThread_cpu", "NThread_nm", "NThread"] {
        d.similar(format!("{variant} is similar to NThread_rl"), bars.ratio(variant, "NThread_rl"), 1.0);
    }
    bars.all(&mut d, "kops/s");
    Ok(d.plot(bars.relative_to("NOVA").plot("throughput, NOVA = 1")))
}

fn fig7(bench: &Bench<'_>, machine: &Machine, count: usize, keys: f64) -> Result<Bars, RunError> {
    let mut bars = Bars::new(DATABASES.map(|d| d.0));
    for c in OTHERS.iter().chain(VARIANTS.last()) {
        let value = |(_, benchmark): (&str, Benchmark)| {
            let job = |i, place| db(&bench.constants, c.fs, benchmark, keys, i, place);
            bench.mean(&applications(machine, count, job, c.fs), c.who, kops)
        };
        bars.run(c.name, DATABASES.into_iter().map(value))?;
    }
    Ok(bars)
}

fn rocksdb_figure(mut d: Draft, bars: Bars, single: bool) -> Figure {
    averages(&mut d, &bars, "NThread");
    match single {
        true => d.point("NThread / NOVA", "most", "x", most(&bars, "NThread", "NOVA")),
        false => {
            let all = NAMES.map(|other| bars.ratio("NThread", other)).iter().sum::<f64>() / NAMES.len() as f64;
            d.point("NThread / the four others", "average", "x", all);
        }
    }
    for group in ["R", "RW"].into_iter().filter(|_| single) {
        for other in NAMES {
            let ratio = bars.ratio_in("NThread", other, &[group]);
            d.point(format!("NThread / {other}"), group, "x", ratio);
            d.better(format!("NThread beats {other} for {group}"), ratio, 1.0);
        }
        d.ranking("NThread", &NAMES, group);
    }
    if single {
        d.similar("PMFS and NOVA are similar for R", bars.at("PMFS", "R"), bars.at("NOVA", "R"));
    }
    bars.all(&mut d, "kops/s");
    d.plot(bars.plot("kops/s"))
}

pub(super) fn fig7a(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let d = Draft::new(
        Paper::NThread,
        "7a",
        "RocksDB, one application",
        "db_bench with 10 threads (RW: nine read, one writes), 10 M keys, values of 4 KB, 10 cores a node, 60 s. R and RW: database on node 0 (NOVA_n: on both).",
    );
    Ok(rocksdb_figure(d, fig7(bench, &nthread(&bench.constants, 10), 1, 10e6)?, true))
}

pub(super) fn fig7b(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let d = Draft::new(
        Paper::NThread,
        "7b",
        "RocksDB, two applications",
        "Twice Fig. 7(a): the second database is on node 1.",
    );
    Ok(rocksdb_figure(d, fig7(bench, &nthread(&bench.constants, 10), 2, 10e6)?, false))
}

pub(super) fn fig7c(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let d = Draft::new(
        Paper::NThread,
        "7c",
        "RocksDB on four nodes with DRAM",
        "As Fig. 7(a) with 1 M keys on four nodes in a ring, 12 GB of DRAM each as NVMM, and 4 GB for the rest (slide 26).",
    );
    Ok(rocksdb_figure(d, fig7(bench, &nthread_four(&bench.constants), 1, 1e6)?, false))
}

/// Table II lists the parts of each variant. The orderings are the gains that the text claims for
/// them.
pub(super) fn table2(bench: &Bench<'_>) -> Result<Figure, RunError> {
    const FS: FileSystem = FileSystem::Homenode;
    let (few, all) = (nthread(&bench.constants, 4), nthread(&bench.constants, 10));
    let fio_run = |threads: u32, read: f64| {
        let p = Fio { threads, block: 4.0 * KB, read, file_size: 4e9, shared: false, sequential: false, think_s: 0.0 };
        applications(&few, 1, |_, place| fio(&bench.constants, "fio", FS, 0, place, &p), FS)
    };
    let webservers = |count| applications(&all, count, |i, place| bench_job(&bench.constants, FS, 1, i, place), FS);
    let scenarios = [
        ("read-only, 4 threads", fio_run(4, 1.0)),
        ("rw80, 4 threads", fio_run(4, 0.8)),
        ("rw60, 4 threads", fio_run(4, 0.6)),
        ("rw80, 8 threads", fio_run(8, 0.8)),
        ("rw60, 8 threads", fio_run(8, 0.6)),
        ("webserver", webservers(1)),
        ("two webservers", webservers(2)),
    ];
    let mut bars = Bars::new(scenarios.each_ref().map(|s| s.0));
    // Weighted bandwidth of fio, operations of filebench; each against NThread_rl.
    let values = |who: Who| -> Result<Vec<f64>, RunError> {
        let value = |(i, s): (usize, &(&str, Scenario))| {
            bench.mean(&s.1, who, |o| if i < 5 { o.weighted_bw() } else { o.ops_per_s() })
        };
        scenarios.iter().enumerate().map(value).collect()
    };
    let base = values(Who::Policy("nthread-rl"))?;
    let kernel = [Contestant { name: "no policy", fs: FS, who: Who::Kernel }];
    for c in kernel.iter().chain(&VARIANTS) {
        bars.push(c.name, values(c.who)?.iter().zip(&base).map(|(v, b)| v / b).collect());
    }
    let mut d = Draft::new(
        Paper::NThread,
        "Table II",
        "The gain of each part of NThread",
        "The variants of Table II on the same file system: fio as in Fig. 5, webserver as in Fig. 6; bandwidth or operations \
         against NThread_rl.",
    );
    let mut beats = |statement: &str, group: usize, more: &str, less: &str| {
        let [a, b] = [more, less].map(|who| bars.at(who, scenarios[group].0));
        d.better(statement, a, b);
    };
    beats("reducing remote access helps 4 readers", 0, "NThread_rl", "no policy");
    beats("reducing NVMM contention helps 4 threads at rw80", 1, "NThread_nm", "NThread_cpu");
    beats("reducing NVMM contention helps 4 threads at rw60", 2, "NThread_nm", "NThread_cpu");
    beats("reducing CPU contention helps 8 threads on 4 cores at rw80", 3, "NThread_cpu", "NThread_rl");
    beats("reducing CPU contention helps 8 threads on 4 cores at rw60", 4, "NThread_cpu", "NThread_rl");
    beats("keeping sharers together helps webserver", 5, "NThread", "NThread_nm");
    let [a, b] = ["NThread", "NThread_rl"].map(|who| bars.at(who, scenarios[6].0));
    d.similar("two webservers need no more than locality", a, b);
    bars.all(&mut d, "x NThread_rl");
    Ok(d.plot(bars.plot("NThread_rl = 1")))
}
