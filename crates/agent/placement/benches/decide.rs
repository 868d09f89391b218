//! The time of a decision, and its growth with threads and nodes.
//!
//!     cargo bench -p homenode-placement --bench decide
//!     PLACEMENT_SUMMARY=placement.json cargo bench -p homenode-placement --bench decide -- --noplot
//!
//! The second command also writes JSON:
//! `[{"workload":"settled","threads":10000,"nodes":8,"seconds":…,"median_seconds":…,"moves":…},
//! …]`, where `seconds` is the fastest sample. Times are the CPU time of the deciding thread, so
//! other load on the machine matters little.
//!
//! Workloads: in `settled`, 1 % of the threads are away from home. In `all_move`, all are, so each
//! needs a sentence. In `relief`, the data of all threads is on one node, a quarter of them mostly
//! write, and that node's controller is overloaded. `crowd` is the same with readers only, and that
//! node's CPUs are overloaded. Snapshots are made beforehand; the time covers `decide` and dropping
//! the plan. These workloads are for `nthread`; those for `auto` are in [`AUTO`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode};
use placement::auto::{self, Auto};
use placement::nthread::{NThread, Settings, Variant};
use placement::{NodeBytes, NodeLoad, Policy, Snapshot, Thread};
use rustix::time::{ClockId, clock_gettime};
use topology::NodeId;

const WORKLOADS: [&str; 4] = ["settled", "all_move", "relief", "crowd"];
const THREADS: [u32; 4] = [100, 1_000, 10_000, 100_000];
const NODES: [u32; 3] = [2, 8, 64];
const MB: u64 = 1_000_000;

/// Seconds per decision of each sample, and the number of moves.
type Samples = (Vec<f64>, usize);

fn snapshot(workload: &str, threads: u32, nodes: u32) -> Snapshot {
    let all: Vec<_> = (0..nodes).map(NodeId).collect();
    // Enough for all threads to be at home, so that only the workload causes contention.
    let bandwidth = 1e9 * f64::from(threads);
    let cpus = 16;
    let threads: Vec<_> = (0..threads)
        .map(|i| {
            let (home, writes) = match workload {
                "relief" => (0, if i % 4 == 0 { 900 + u64::from(i % 97) } else { 0 }),
                "crowd" => (0, 0),
                _ => (i % nodes, 5),
            };
            let away = workload != "settled" || i % 100 == 0;
            let node = NodeId(if away { (home + 1 + i / 7 % (nodes - 1)) % nodes } else { home });
            Thread {
                tid: 1000 + i,
                pid: 1000 + i / 16,
                comm: "reader".to_owned(),
                start_ns: Some(u64::from(i)),
                node,
                allowed_nodes: all.clone(),
                cpu_s: f64::from(cpus * nodes) * if workload == "crowd" { 0.6 } else { 0.3 } / f64::from(threads),
                read_bytes: NodeBytes::from_iter([(NodeId(home), (250 + u64::from(i % 89)) * MB), (node, MB)]),
                write_bytes: NodeBytes::from_iter([(node, writes * MB)]),
                shares_file: i % 10 == 0,
                ..Thread::default()
            }
        })
        .collect();
    let nodes = all
        .iter()
        .map(|id| NodeLoad {
            id: *id,
            cpus: (id.0 * cpus..(id.0 + 1) * cpus).collect(),
            distance: all.iter().map(|other| (*other, if other == id { 10 } else { 20 })).collect(),
            read_bw_max: Some(bandwidth),
            write_bw_max: Some(if workload == "relief" { bandwidth / 10.0 } else { bandwidth }),
            memory_free: 1 << 34,
            ..NodeLoad::default()
        })
        .collect();
    Snapshot { version: 2, window_s: 1.0, nodes, threads, ..Snapshot::default() }
}

/// `auto` on a load that it has planned for (`auto_settled`: its work in each later window), and on
/// first sight of a load, when it decides (`auto_few`: 1 % are away; `auto_all_move`, `auto_crowd`:
/// as above).
const AUTO: [(&str, &str, usize); 4] = [
    ("auto_settled", "settled", 12),
    ("auto_few", "settled", 0),
    ("auto_all_move", "all_move", 0),
    ("auto_crowd", "crowd", 0),
];

/// By name, threads and nodes.
type All = RefCell<BTreeMap<(&'static str, u32, u32), Samples>>;

fn record(samples: &All, of: (&'static str, u32, u32), took: Duration, iterations: u64, moves: usize) {
    let mut samples = samples.borrow_mut();
    let entry = samples.entry(of).or_default();
    entry.0.push(took.as_secs_f64() / iterations as f64);
    entry.1 = moves;
}

fn auto(criterion: &mut Criterion, samples: &All) {
    for (name, workload, seen) in AUTO {
        let mut group = criterion.benchmark_group(name);
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        for (threads, nodes) in [(100, 2), (1_000, 8), (10_000, 8), (10_000, 64)] {
            let snapshot = snapshot(workload, threads, nodes);
            let topology = snapshot.topology();
            group.bench_function(BenchmarkId::from_parameter(format_args!("{threads}x{nodes}")), |bencher| {
                bencher.iter_custom(|iterations| {
                    let (mut took, mut moves) = (Duration::ZERO, 0);
                    for _ in 0..iterations {
                        let mut policy = Auto::new(auto::Settings::default(), placement::promote::Settings::default());
                        let mut window = snapshot.clone();
                        // No thread has just started.
                        window.time_s = 100.0;
                        for _ in 0..seen {
                            window.time_s += 1.0;
                            policy.decide(&topology, &window);
                        }
                        window.time_s += 1.0;
                        let started = cpu_time();
                        moves = black_box(policy.decide(black_box(&topology), black_box(&window))).moves.len();
                        took += cpu_time() - started;
                    }
                    record(samples, (name, threads, nodes), took, iterations, moves);
                    took
                });
            });
        }
        group.finish();
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000))
        .configure_from_args();
    let samples = All::default();
    for workload in WORKLOADS {
        let mut group = criterion.benchmark_group(workload);
        // One decision takes up to a tenth of a second: equal samples, not growing ones.
        group.sampling_mode(SamplingMode::Flat);
        for threads in THREADS {
            for nodes in NODES {
                let (snapshot, mut policy) =
                    (snapshot(workload, threads, nodes), NThread::new(Variant::Full, Settings::default()));
                let topology = snapshot.topology();
                group.bench_function(BenchmarkId::from_parameter(format_args!("{threads}x{nodes}")), |bencher| {
                    bencher.iter_custom(|iterations| {
                        let (started, mut moves) = (cpu_time(), 0);
                        for _ in 0..iterations {
                            moves = black_box(policy.decide(black_box(&topology), black_box(&snapshot))).moves.len();
                        }
                        let took = cpu_time() - started;
                        record(&samples, (workload, threads, nodes), took, iterations, moves);
                        took
                    });
                });
            }
        }
        group.finish();
    }
    auto(&mut criterion, &samples);
    criterion.final_summary();
    if let Some(path) = std::env::var_os("PLACEMENT_SUMMARY") {
        let summary: Vec<_> =
            samples.into_inner().into_iter().map(|(of, (seconds, moves))| entry(of, seconds, moves)).collect();
        let text = serde_json::Value::from(summary).to_string() + "\n";
        if let Err(error) = std::fs::write(&path, text) {
            eprintln!("{}: {error}", path.display());
            std::process::exit(1);
        }
    }
}

/// CPU time that this thread has used.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

fn entry((workload, threads, nodes): (&str, u32, u32), mut seconds: Vec<f64>, moves: usize) -> serde_json::Value {
    seconds.sort_by(f64::total_cmp);
    let (fastest, median) = (seconds.first(), seconds.get(seconds.len() / 2));
    serde_json::json!({"workload": workload, "threads": threads, "nodes": nodes, "seconds": fastest,
        "median_seconds": median, "moves": moves})
}
