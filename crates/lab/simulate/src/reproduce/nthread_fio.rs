//! NThread's micro-benchmarks: Fig. 4, 5, 8 and 9.

use super::bench::{Bench, OTHERS, VARIANTS, Who, experiment, launch, nthread};
use super::{Bars, Draft, Figure, Plot};
use crate::constants::Constants;
use crate::filesystem::FileSystem;
use crate::papers::Paper;
use crate::run::{Outcome, RunError, Scenario};
use crate::workload::Place;
use crate::workload::fio::{Fio, NTHREAD_MIXES, fio};
use crate::world::Start;

const MIXED: [&str; 4] = ["rw80", "rw60", "rw40", "rw20"];

/// V-C: 4 cores a node, private files of 4 GB on node 0, blocks of 4 KB.
fn scenario(c: &Constants, fs: FileSystem, n: u32, read: f64) -> Scenario {
    let job = fio(c, "fio", fs, 0, Place::Node(0), &Fio::nthread(n, 4096.0, read));
    experiment(nthread(c, 4), vec![launch(job, Start::Kernel)], 60.0)
}

fn weighted(outcome: &Outcome) -> f64 {
    outcome.weighted_bw() / 1e9
}

fn fig5(bench: &Bench<'_>, n: u32) -> Result<Bars, RunError> {
    let mut bars = Bars::new(NTHREAD_MIXES.map(|r| r.0));
    for c in OTHERS.iter().chain(&VARIANTS).filter(|c| c.name != "NThread_nm") {
        let of = |(_, read): (&str, f64)| bench.mean(&scenario(&bench.constants, c.fs, n, read), c.who, weighted);
        bars.run(c.name, NTHREAD_MIXES.into_iter().map(of))?;
    }
    Ok(bars)
}

pub(super) fn fig5a(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let bars = fig5(bench, 4)?;
    let mut d = Draft::new(
        Paper::NThread,
        "5a",
        "Bandwidth of fio, 4 threads",
        "4 threads, 4 cores a node, 4 GB private files on node 0, 4 KB blocks, 60 s; bandwidth by Eq. 1.",
    );
    for other in ["ext4-dax", "PMFS", "NOVA", "NOVA_n"] {
        d.point(format!("NThread_rl / {other}"), "average", "x", bars.ratio("NThread_rl", other));
    }
    let gain = |over: &str, groups: &[&str]| bars.ratio_in("NThread", over, groups);
    let others =
        |who: &str, groups: &[&str]| OTHERS.iter().map(|o| bars.ratio_in(who, o.name, groups)).sum::<f64>() / 4.0;
    d.point("NThread_rl / the four others", "rw40", "x", others("NThread_rl", &["rw40"]));
    d.point("NThread / the four others", MIXED.join(", "), "x", others("NThread", &MIXED));
    d.point("NThread / NThread_rl", "rw80, rw60", "x", gain("NThread_rl", &["rw80", "rw60"]));
    d.point("NThread / NThread_cpu", "rw80, rw60", "x", gain("NThread_cpu", &["rw80", "rw60"]));
    for other in ["ext4-dax", "PMFS", "NOVA", "NOVA_n"] {
        d.better(format!("NThread_rl beats {other} on average"), bars.ratio("NThread_rl", other), 1.0);
    }
    d.ranking("NThread_rl", &["ext4-dax", "PMFS", "NOVA", "NOVA_n"], "average");
    d.similar("NThread_cpu performs similar to NThread_rl", bars.ratio("NThread_cpu", "NThread_rl"), 1.0);
    for group in ["rw80", "rw60"] {
        d.better(format!("NThread beats NThread_rl for {group}"), gain("NThread_rl", &[group]), 1.0);
    }
    for group in ["rw40", "rw20", "write-only", "read-only"] {
        d.similar(format!("NThread is similar to NThread_rl for {group}"), gain("NThread_rl", &[group]), 1.0);
    }
    let drawn = |series: &&(String, Vec<f64>)| series.0 != "NThread_cpu";
    let tallest = bars.series.iter().filter(drawn).flat_map(|s| MIXED.map(|group| bars.at(&s.0, group)));
    let tallest = tallest.fold(0.0, f64::max);
    let statement = "no bar from rw80 to rw20 is taller than slide 27, 2.0 GB/s";
    d.check(statement, tallest <= 2.0, format!("{tallest:.2} GB/s"));
    bars.all(&mut d, "GB/s");
    Ok(d.plot(bars.plot("GB/s (Eq. 1)")))
}

pub(super) fn fig5b(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let (four, bars) = (fig5(bench, 4)?, fig5(bench, 8)?);
    let mut d = Draft::new(
        Paper::NThread,
        "5b",
        "Bandwidth of fio, 8 threads",
        "As Fig. 5(a) with 8 threads, twice as many as the node with the data has cores.",
    );
    for other in ["ext4-dax", "PMFS", "NOVA", "NOVA_n", "NThread_rl"] {
        d.point(format!("NThread / {other}"), "average", "x", bars.ratio("NThread", other));
    }
    let only_reads = bars.ratio_in("NThread", "NThread_rl", &["read-only"]);
    d.point("NThread / NThread_rl", "read-only", "x", only_reads);
    for other in ["ext4-dax", "PMFS", "NOVA", "NOVA_n", "NThread_rl"] {
        d.better(format!("NThread beats {other} on average"), bars.ratio("NThread", other), 1.0);
    }
    d.ranking("NThread", &["ext4-dax", "PMFS", "NOVA", "NOVA_n"], "average");
    d.similar("NThread_cpu performs similar to NThread", bars.ratio("NThread_cpu", "NThread"), 1.0);
    for group in MIXED {
        let (n, rl) = (bars.at("NOVA_n", group), bars.at("NThread_rl", group));
        d.better(format!("NOVA_n beats NThread_rl for {group}"), n, rl);
        let best = bars.at("NThread", group).min(bars.at("NThread_cpu", group));
        d.better(format!("NThread and NThread_cpu beat NOVA_n for {group}"), best, n);
    }
    for (group, _) in NTHREAD_MIXES {
        let (now, before) = (bars.at("NThread_rl", group), four.at("NThread_rl", group));
        match group {
            "write-only" => d.better("NThread_rl with 8 threads beats 4 threads for write-only", now, before),
            _ => d.better(format!("NThread_rl with 4 threads beats 8 threads for {group}"), before, now),
        }
    }
    for variant in ["NThread_cpu", "NThread"] {
        let writes = bars.ratio_in(variant, "NThread_rl", &["write-only"]);
        d.similar(format!("{variant} is similar to NThread_rl for write-only"), writes, 1.0);
    }
    bars.all(&mut d, "GB/s");
    Ok(d.plot(bars.plot("GB/s (Eq. 1)")))
}

/// III-B, I and slide 7: what it costs that all data, or all threads, are on node 0.
pub(super) fn contention(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let c = &bench.constants;
    let job = |name: &str, n: u32, block: f64, read: f64, node: usize| {
        let job = fio(c, name, FileSystem::Nova, node, Place::Node(node), &Fio::nthread(n, block, read));
        launch(job, Start::Pinned(node))
    };
    let value = |cores: u32, launches: Vec<_>| {
        bench.mean(&experiment(nthread(c, cores), launches, 10.0), Who::Kernel, weighted)
    };
    let mut bars = Bars::new(NTHREAD_MIXES.map(|r| r.0));
    for n in [8, 16] {
        let memory = |read: f64| -> Result<f64, RunError> {
            let all = value(n, vec![job("a", n, 4096.0, read, 0)])?;
            Ok(all / value(n, vec![job("a", n / 2, 4096.0, read, 0), job("b", n / 2, 4096.0, read, 1)])?)
        };
        bars.run(format!("NVMM, {n} threads"), NTHREAD_MIXES.iter().map(|(_, read)| memory(*read)))?;
        for (name, block) in [("1 KB", 1024.0), ("4 KB", 4096.0)] {
            let cpus = |read: f64| -> Result<f64, RunError> {
                let few = value(4, vec![job("a", n, block, read, 0)])?;
                Ok(few / value(n, vec![job("a", n, block, read, 0)])?)
            };
            bars.run(format!("CPUs, {n} threads, {name}"), NTHREAD_MIXES.iter().map(|(_, read)| cpus(*read)))?;
        }
    }
    let mut d = Draft::new(
        Paper::NThread,
        "III-B",
        "The cost of contention",
        "8 and 16 fio threads, NOVA, all mixes of Fig. 5. NVMM: all threads and data on node 0, against half of both on each node, 4 KB \
         blocks, a core for each thread. CPUs: 4 cores online, against a core for each thread. The text names neither threads nor mixes, \
         and says that contention \"can\" cost this much, so the worst bar is taken. Latency is that of a closed loop.",
    );
    let worst = |what: &str| {
        let of = bars.series.iter().filter(|s| s.0.starts_with(what)).flat_map(|s| &s.1);
        of.copied().fold(f64::INFINITY, f64::min)
    };
    d.point("performance under NVMM contention", "worst", "x", worst("NVMM"));
    d.point("performance under CPU contention", "worst", "x", worst("CPUs"));
    let reading = [8, 16].map(|n| 1.0 / bars.at(&format!("NVMM, {n} threads"), "read-only"));
    d.point("latency under NVMM contention", "read-only", "x", 0.5 * (reading[0] + reading[1]));
    d.point("latency under NVMM contention", "worst", "x", 1.0 / worst("NVMM"));
    d.better("contention for NVMM costs more than for CPUs", worst("CPUs"), worst("NVMM"));
    bars.all(&mut d, "x");
    Ok(d.plot(bars.plot("contended / not")))
}

/// III-B: all threads on node 0, against half of them on node 1, with all data on node 0.
pub(super) fn fig4(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let blocks = [("1 KB", 1024.0), ("4 KB", 4096.0), ("16 KB", 16384.0)];
    let ratio = |block: f64, n: u32, read: f64| -> Result<f64, RunError> {
        let value = |parts: &[(u32, usize)]| {
            let part = |(n, node): &(u32, usize)| {
                let p = Fio::nthread(*n, block, read);
                let job = fio(&bench.constants, &format!("on {node}"), FileSystem::Nova, 0, Place::Node(0), &p);
                launch(job, Start::Pinned(*node))
            };
            let launches = parts.iter().map(part).collect();
            bench.mean(&experiment(nthread(&bench.constants, 4), launches, 10.0), Who::Kernel, weighted)
        };
        Ok(value(&[(n / 2, 0), (n / 2, 1)])? / value(&[(n, 0)])?)
    };
    let mut bars = Bars::new(NTHREAD_MIXES.map(|r| r.0));
    for (name, block) in blocks {
        for n in [8, 16] {
            bars.run(format!("{name}_{n}"), NTHREAD_MIXES.into_iter().map(|(_, read)| ratio(block, n, read)))?;
        }
    }
    let mut d = Draft::new(
        Paper::NThread,
        "4",
        "Reducing CPU contention: threads moved away, data not",
        "8 and 16 fio threads on the 4 cores of node 0 with NOVA; against half of them on node 1, reading and writing node 0. \
         All mixes of Fig. 5: the text names none, and says that moving \"can\" bring 13.2 % and \"can\" cost 20 %, so its \
         numbers are compared with the best and the worst bar.",
    );
    let of = |names: &[&str], pick: fn(f64, f64) -> f64| {
        names.iter().flat_map(|s| bars.of(s)).copied().reduce(pick).unwrap_or(f64::NAN)
    };
    let worst = of(&["4 KB_8", "4 KB_16", "16 KB_8", "16 KB_16"], f64::min);
    d.point("moved / stayed", "1 KB, best", "x", of(&["1 KB_8", "1 KB_16"], f64::max));
    d.point("moved / stayed", "4 KB, 16 KB, worst", "x", worst);
    for (group, _) in NTHREAD_MIXES {
        let small = 0.5 * (bars.at("1 KB_8", group) + bars.at("1 KB_16", group));
        d.better(format!("with 1 KB blocks moving threads to free CPUs helps for {group}"), small, 1.0);
    }
    d.better("with 4 KB and 16 KB blocks it can hurt", 1.0, worst);
    bars.all(&mut d, "x");
    Ok(d.plot(bars.plot("moved / stayed")))
}

/// V-G: 16 threads of 1 KB operations that pause between them; the CPU limit decides how many run
/// at their data.
pub(super) fn fig8(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let limits = [("80 %", 0.8), ("90 %", 0.9), ("100 %", 1.0), ("110 %", 1.1), ("130 %", 1.3), ("no limit", 1e6)];
    let p = Fio::fig8(&bench.constants);
    let job = fio(&bench.constants, "fio", FileSystem::Homenode, 0, Place::Node(0), &p);
    let scenario = experiment(nthread(&bench.constants, 4), vec![launch(job, Start::Kernel)], 60.0);
    let mut bars = Bars::new(limits.map(|l| l.0));
    let values: Result<Vec<f64>, RunError> =
        limits.iter().map(|(_, limit)| bench.mean(&scenario, Who::CpuLimit(*limit), weighted)).collect();
    let values = values?;
    let at_100 = values[2];
    bars.push("bandwidth / at 100 %", values.iter().map(|v| v / at_100).collect());
    let mut d = Draft::new(
        Paper::NThread,
        "8",
        "The limit for a node's CPUs",
        "16 fio threads that think for 3 µs between reads of 1 KB (the paper does not say how busy its threads are), 4 cores a \
         node, files on node 0; NThread_cpu with different CPU limits. The think time is a guess.",
    );
    let of = |name: &str| bars.at("bandwidth / at 100 %", name);
    for limit in ["110 %", "130 %", "no limit"] {
        d.better(format!("100 % beats {limit}"), 1.0, of(limit));
    }
    d.similar("90 % costs little against 100 %", of("90 %"), 1.0);
    bars.all(&mut d, "x 100 %");
    Ok(d.plot(bars.plot("bandwidth, 100 % = 1")))
}

/// V-G: read ratio from 100 % to 0 %; bandwidth with different weights for reads.
pub(super) fn fig9(bench: &Bench<'_>) -> Result<Figure, RunError> {
    let ways =
        [("read + write", 1.0), ("read / 2 + write", 0.5), ("read / 3 + write", 1.0 / 3.0), ("read / 4 + write", 0.25)];
    let reads: Vec<f64> = (0..=10).map(|i| 1.0 - f64::from(i) / 10.0).collect();
    let outcomes: Result<Vec<Outcome>, RunError> = reads
        .iter()
        .map(|read| {
            let job =
                fio(&bench.constants, "fio", FileSystem::Nova, 0, Place::Node(0), &Fio::nthread(8, 4096.0, *read));
            bench
                .once(&experiment(nthread(&bench.constants, 4), vec![launch(job, Start::Pinned(0))], 10.0), Who::Kernel)
        })
        .collect();
    let outcomes = outcomes?;
    let mut d = Draft::new(
        Paper::NThread,
        "9",
        "Bandwidth of one Optane module under mixed load, with different weights for reads",
        "8 fio threads on the 4 cores of the node that has the data (V-G keeps 4 cores online), NOVA, 4 KB blocks; the machine's \
         capacities are hardware constants.",
    );
    let mut series = Vec::new();
    let mut spread = Vec::new();
    for (name, weight) in ways {
        let of = |o: &Outcome| o.workloads.iter().map(|w| w.read_bw * weight + w.write_bw).sum::<f64>() / 1e9;
        let points: Vec<(f64, f64)> = reads.iter().zip(&outcomes).map(|(read, o)| (read * 100.0, of(o))).collect();
        for (read, value) in &points {
            d.point(name, format!("{read:.0} % reads"), "GB/s", *value);
        }
        let values = points.iter().map(|p| p.1);
        let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
        spread.push((name, high / low));
        series.push((name.to_owned(), points));
    }
    let third = spread[2].1;
    for (name, other) in spread.iter().filter(|s| s.1 != third) {
        d.better(format!("{} is more stable than {name}", ways[2].0), *other, third);
    }
    Ok(d.plot(Plot::Lines { x: "reads, %", y: "GB/s", series }))
}
