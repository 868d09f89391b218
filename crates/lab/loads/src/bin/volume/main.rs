//! `homenode-volume`: the papers' programs measured on a wall clock, on a mounted volume over two
//! emulated nodes.
//!
//! **Problem.** The simulator shares its equations with the policies that it judges. A measurement
//! does not.
//!
//! **Approach.** fio, RocksDB's db_bench and filebench's personalities run with the papers' loads
//! ([`loads`]) on a mount whose memory is emulated. Every run begins with the same image of the
//! volume. Rounds go through all loads and policies in turn, so that other work on the machine
//! meets all of them. A round of everything takes hours, so each run is put to disk as soon as it
//! is done ([`state`]): the same command goes on where an interrupted one ended. The report has
//! each ratio as the paper states it, as the simulator has it, and as measured, with the verdict of
//! one rule on both.
//!
//! Software is emulated, too, on as many cores a node as the paper's machine has.
//!
//! **Limits.** What programs do between their calls is a constant of each call. With `--cores 0`
//! software is faster, relative to the memory, than on a real machine, and waiting takes no CPU
//! time, so policies for contention of CPUs have nothing to show. Two emulated nodes share one real
//! memory and its caches.

mod loads;
mod place;
mod state;
mod trial;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use loads::{Figure, Load, Program, Runner};
use place::{Line, Place};
use simulate::papers::Paper;
use simulate::reproduce::measured::{Measured, Spread, page, table};
use simulate::workload::fio::Fio;
use simulate::workload::rocksdb::Benchmark;
use state::{Done, Loads, Run, State};

/// NThread's settings in the simulated experiments, at full speed: `min_bytes`, and the margin in
/// bytes/s.
const LEAST: f64 = 4_194_304.0;
/// Seeds of the simulated figures, as `homenode reproduce` has them.
const SEEDS: u64 = 3;

/// Measure the policies on a mounted volume over two emulated nodes.
#[derive(Parser)]
struct Args {
    /// The homenode command; homenode-filebench is beside it
    #[arg(long)]
    homenode: PathBuf,
    /// Directory for the regions and the mount point: in memory
    #[arg(long, default_value = "/dev/shm")]
    data: PathBuf,
    /// Directory for report.html, report.md, table.md, results.json and runs.jsonl, which has every
    /// run and from which an interrupted measurement goes on
    #[arg(long, overrides_with = "out")]
    out: PathBuf,
    /// Rounds, those of runs.jsonl counted: each load once under each policy; 0 only reports
    #[arg(long, visible_alias = "runs", default_value_t = 5)]
    rounds: usize,
    /// Seconds of a run in place of the papers' 60; data shrinks with it
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// How many times as slow as Optane; Dragonfly's six modules a node are twice as slow as this
    #[arg(long, default_value_t = 200.0)]
    scale: f64,
    /// Emulate so many cores a node, and software on them; 0: neither [default: those of each
    /// paper]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    cores: Option<u32>,
    /// One round of 12 s
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,
    /// Take over the runs of another runs.jsonl, as further rounds
    #[arg(long, value_name = "FILE")]
    add: Vec<PathBuf>,
    /// Order the policies of each load by lot in each round, and judge each beside `off` as
    /// `homenode trial` does; writes trial.md, too
    #[arg(long, conflicts_with = "quick")]
    trial: bool,
    /// Also print the results as JSON
    #[arg(long)]
    json: bool,
    /// Only these figures, such as nthread-5a
    #[arg(long, value_delimiter = ',', value_name = "PAPER-FIGURE")]
    figure: Vec<String>,
    /// Only these loads, such as rw80
    #[arg(long, value_delimiter = ',')]
    load: Vec<String>,
    /// Only these policies; `node0` and `random` decide nothing and write to node 0, or to any
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
}

/// Figure, load, series.
type Key = (usize, usize, usize);

/// Changes with any load, as runs of another one are no runs of this one.
const LOADS: u32 = 3;

fn main() -> ExitCode {
    lab::exit(run(&Args::parse()))
}

fn run(args: &Args) -> Result<()> {
    let seconds = if args.quick { 12.0 } else { args.seconds };
    let rounds = if args.quick { 1 } else { args.rounds };
    ensure!(seconds >= 1.0, "--seconds is {seconds}, it must be at least 1");
    let figures = chosen(args, loads::figures(args.scale, seconds));
    ensure!(figures.iter().any(|f| !f.loads.is_empty()), "no load is left: see --figure and --load");
    let mut papers: Vec<Paper> = figures.iter().map(|f| f.paper).collect();
    papers.dedup();
    let bench = simulate::reproduce::Bench::new(SEEDS, &|_, _| {});
    let simulated = simulate::reproduce::reproduce(&papers, &bench).context("simulation")?;
    let cpus = lab::threads::affinity()?;
    ensure!(cpus.len() >= 2, "two emulated nodes need two CPUs");
    // As `homenode mount --emulate-nodes 2` shares them out.
    let list = |cpus: &[u32]| cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let (first, second) = cpus.split_at(cpus.len() / 2);
    let cpus = [list(first), list(second)];
    let built = args.homenode.parent().context("--homenode has no directory")?;
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let mut state = State::open(
        &args.out.join("runs.jsonl"),
        Loads { version: LOADS, scale: args.scale, seconds, cores: args.cores },
    )?;
    args.add.iter().try_for_each(|file| state.add(file))?;
    let mut all: BTreeMap<Key, Vec<Run>> = BTreeMap::new();
    let keys = keys(args, &figures);
    for key in &keys {
        all.insert(*key, state.runs(&name(&figures, *key)));
    }
    let left =
        |all: &BTreeMap<Key, Vec<Run>>| keys.iter().map(|key| rounds.saturating_sub(all[key].len())).sum::<usize>();
    let (began, to_do) = (Instant::now(), left(&all));
    if args.trial {
        trial::check(args, &figures, &keys, all.values().map(Vec::len).sum())?;
    }
    let lot = args.trial.then(trial::Order::by_lot);
    eprintln!("{} of {} runs are left", to_do, rounds * keys.len());
    let place = if to_do == 0 { None } else { Some(Place::new(&args.data, &args.homenode)?) };
    for round in 0..rounds {
        let in_turn = lot.as_ref().map_or_else(|| keys.clone(), |lot| lot.of(round, &keys));
        for (f, figure) in figures.iter().enumerate() {
            let slow = |scale| (args.cores != Some(0)).then_some(scale);
            let runner = |scale| Runner { built, seconds, scale, cpus: cpus.clone(), slow: slow(scale) };
            let mut more = false;
            for key in in_turn.iter().filter(|key| key.0 == f) {
                let Some(place) = place.as_ref().filter(|_| all[key].len() <= round) else { continue };
                let ((_, l, s), name) = (*key, name(&figures, *key));
                let scale = args.scale * figure.memory.1;
                let cores = args.cores.unwrap_or_else(|| figure.cores());
                let run = one(place, &runner(scale), figure, (&figure.loads[l], cores), figure.series[s].0)
                    .with_context(|| name.join(" "))?;
                state.put(&Done { name: name.clone(), run: run.clone() })?;
                all.entry(*key).or_default().push(run.clone());
                let (done, still) = (to_do - left(&all), left(&all));
                let hours = began.elapsed().as_secs_f64() / done.max(1) as f64 * still as f64 / 3600.0;
                eprintln!(
                    "emulated, round {round}, {done} of {to_do}, {hours:.1} h left: {}: {:.2} {}",
                    name.join(" "),
                    run.value,
                    figure.unit
                );
                more = true;
            }
            if more {
                write(args, seconds, &figures, &simulated, &all)?;
            }
        }
    }
    write(args, seconds, &figures, &simulated, &all)?;
    if args.trial {
        let values: BTreeMap<Key, Vec<f64>> =
            all.iter().map(|(key, runs)| (*key, runs.iter().map(|run| run.value).collect())).collect();
        let table = trial::table(&figures, &keys, |key| values.get(&key).map_or(&[], Vec::as_slice))?;
        let path = args.out.join("trial.md");
        fs::write(&path, &table).with_context(|| path.display().to_string())?;
        print!("{table}");
    }
    if args.json {
        let path = args.out.join("results.json");
        println!("{}", fs::read_to_string(&path).with_context(|| path.display().to_string())?);
    }
    Ok(())
}

/// Everything that is to be run in a round, in order.
fn keys(args: &Args, figures: &[Figure]) -> Vec<Key> {
    let mut keys = Vec::new();
    for (f, figure) in figures.iter().enumerate() {
        for (l, load) in figure.loads.iter().enumerate() {
            for (s, (policy, _)) in figure.series.iter().enumerate() {
                let wanted = args.policy.is_empty() || args.policy.iter().any(|p| p == policy);
                if wanted && !missing(load, policy) {
                    keys.push((f, l, s));
                }
            }
        }
    }
    keys
}

/// Paper, figure, load and policy, as in runs.jsonl.
fn name(figures: &[Figure], (f, l, s): Key) -> [String; 4] {
    let figure = &figures[f];
    [figure.paper.name(), figure.id, &figure.loads[l].name, figure.series[s].0].map(str::to_owned)
}

/// The figures that the user wants.
fn chosen(args: &Args, figures: Vec<Figure>) -> Vec<Figure> {
    let wanted = |figure: &Figure| {
        let name = format!("{}-{}", figure.paper.name(), figure.id);
        args.figure.is_empty() || args.figure.contains(&name)
    };
    let mut figures: Vec<Figure> = figures.into_iter().filter(wanted).collect();
    for figure in &mut figures {
        figure.loads.retain(|load| args.load.is_empty() || args.load.iter().any(|wanted| *wanted == load.name));
    }
    figures
}

/// Whether a series cannot be had: a mount has no second file system on a node of its own.
fn missing(load: &Load, policy: &str) -> bool {
    policy == "node0" && load.spread && load.applications > 1
}

/// One run of a load under one policy.
fn one(place: &Place, runner: &Runner<'_>, figure: &Figure, (load, cores): (&Load, u32), policy: &str) -> Result<Run> {
    let placement = |i: u32| match policy {
        // NThread V-C has all data on node 0 before, for NOVA_n, too.
        "random" if !matches!(load.program, Program::Fio(..)) => "random".to_owned(),
        _ if load.spread => format!("node{}", i % 2),
        _ => "node0".to_owned(),
    };
    let placements: Vec<String> = (0..load.applications).map(placement).collect();
    let data = match load.program {
        Program::Fio(Fio { threads, .. }) | Program::Light(threads, _) => format!("fio{threads}"),
        Program::Db(Benchmark::FillSeq) => "empty".to_owned(),
        Program::Db(_) => "db".to_owned(),
        Program::Filebench(what) => format!("{}-{}-{:.0}", what.personality.name(), what.files, what.file_size),
    };
    let bytes = runner.bytes(load) * f64::from(load.applications);
    // Data differs with the scale.
    let image = format!("{data}-{}-{}", runner.scale, placements.join("-"));
    place.restore(&image, bytes, &placements, |dir| runner.fill(load, dir))?;
    let scale = runner.scale.to_string();
    let (margin, least) = (format!("{:.0}B/s", LEAST / runner.scale), format!("{:.0}", LEAST / runner.scale));
    let config = place.file("homenode.toml", &loads::configuration(policy, load.window_s))?;
    let config = config.display().to_string();
    let mut options = vec!["--emulate-nodes", "2", "--profile", figure.memory.0, "--scale", &scale];
    let (cores, program) = (cores.to_string(), format!("{:.3}", loads::program_s(load) * 1e6));
    if runner.slow.is_some() {
        options.extend(["--emulate-cores", &cores, "--program-us", &program]);
    }
    match policy {
        "off" => {}
        "random" | "node0" => options.extend(["--placement", policy]),
        "pinned" | "split" => options.extend(["--placement", "node0"]),
        "observed" => options.extend(["--policy", "nthread", "--dry-run"]),
        _ => {
            let policy = loads::policy(policy);
            options.extend(["--policy", policy, "--margin", &margin, "--min-bytes", &least, "--config", &config]);
        }
    }
    let server = place.serve(&options)?;
    let value = runner.run(load, policy, |i| place.of(i));
    let lines = server.stop()?;
    let windows: Vec<&Line> = lines.iter().filter(|line| line.kind == "window").collect();
    let busy: Vec<&&Line> =
        windows.iter().filter(|w| w.nodes.iter().any(|n| n.read_bytes + n.write_bytes > 0)).collect();
    let half = busy.get(busy.len() / 2..).unwrap_or_default();
    let sum = |of: &dyn Fn(&Line) -> f64| half.iter().map(|line| of(line)).sum::<f64>();
    let share = |part: f64, all: f64| (all > 0.0).then(|| part / all);
    let load_of = |node: &place::Node| node.read_bytes as f64 / 3.0 + node.write_bytes as f64;
    let carried =
        |line: &Line, wanted: fn(u32) -> bool| line.nodes.iter().filter(|n| wanted(n.node)).map(load_of).sum();
    let bytes = |of: fn(&place::Node) -> u64| sum(&|line| line.nodes.iter().map(|n| of(n) as f64).sum());
    let seconds = sum(&|line| line.window_s);
    let carries = [bytes(|n| n.read_bytes), bytes(|n| n.write_bytes)].map(|bytes| bytes / 1e6 / seconds);
    let moves = |kind: &str| windows.iter().flat_map(|w| &w.moves).filter(|m| m.kind == kind && m.from != m.to).count();
    Ok(Run {
        value: value?,
        remote: share(sum(&|line| line.remote_bytes as f64), sum(&|line| line.read_bytes as f64)),
        elsewhere: share(sum(&|line| carried(line, |node| node == 1)), sum(&|line| carried(line, |_| true))),
        carried: (seconds > 0.0).then_some(carries),
        threads_moved: moves("thread"),
        files_moved: moves("file"),
    })
}

/// Writes what is known so far.
fn write(
    args: &Args,
    seconds: f64,
    figures: &[Figure],
    simulated: &[simulate::reproduce::Figure],
    all: &BTreeMap<Key, Vec<Run>>,
) -> Result<()> {
    let measured: Vec<Measured<'_>> =
        figures.iter().enumerate().filter_map(|(f, figure)| measured(f, figure, simulated, all)).collect();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let about = [
        format!(
            "All measured figures are emulated: two nodes share out {cpus} CPUs, and each access takes as long as on Optane memory that is {} \
             times as slow (homenode mount --emulate-nodes 2 --profile optane): a node carries {:.0} MB/s of reads or {:.0} MB/s of writes. \
             What a mount costs is left out, as a request to the server does not take {0} times as long: on real Optane a read of 4 KiB gains \
             at most about 1.8 µs by locality, of the 10 to 15 µs that a request takes. Dragonfly's nodes have six modules, at twice the \
             scale. Runs take {} s in place of 60, so all data is divided by {:.0}. Load average of the machine at the end: {}.",
            args.scale,
            6e3 / args.scale,
            2e3 / args.scale,
            seconds,
            loads::factor(args.scale, seconds),
            load.split(' ').next().unwrap_or_default()
        ),
        "“off” decides nothing and writes where the writer runs, as a homenode volume does; “NOVA” decides nothing and has all data on one \
         node, and “NOVA_n” on any, each for the file system of that name. The papers' policies run without homenode's rails."
            .to_owned(),
        match args.cores {
            Some(0) => {
                "Software takes the time that it takes here: neither contention for CPUs (a waiting thread sleeps), nor caches, crowds of \
                 writers and the links between nodes can show, nor software that is as fast, relative to the memory, as on a real machine."
            }
            _ => {
                "Software is emulated, too: each call takes the time of NOVA's and of the program's on one of as many emulated cores a node \
                 as the paper's machine has, and filebench's lock of its files is held for as long. The programs' figures are the \
                 simulator's, some of them calibrated on the papers (FLOWOP_S, PICK_S, CROSS_LOCK, DB_GET_BLOCKS) or guessed (DB_GET_S, \
                 DB_PUT_S); nothing is fitted to what is measured here. Caches serve what threads of a node read at the same time, and more \
                 than four writers crowd a module. The links between nodes cannot show."
            }
        }
            .to_owned(),
        "An effect is met within 25 % of the stated one, or within 3 points; of the right sign beyond 3 points. Simulated effects are \
         scored by the same rule."
            .to_owned(),
    ];
    let html = page("The papers' programs on a mounted volume", &about, &measured).context("report.html")?;
    let path = |name: &str| args.out.join(name);
    let put = |name: &str, text: &str| fs::write(path(name), text).with_context(|| path(name).display().to_string());
    put("report.html", &html)?;
    put("report.md", &markdown(&about, &measured)?)?;
    put("table.md", &table(simulated, &measured))?;
    let runs: Vec<serde_json::Value> = (all.iter())
        .filter(|(_, runs)| !runs.is_empty())
        .map(|(key, runs)| {
            let [paper, figure, load, policy] = name(figures, *key);
            let unit = figures[key.0].unit;
            serde_json::json!({"paper": paper, "figure": figure, "load": load, "policy": policy, "unit": unit, "runs": runs})
        })
        .collect();
    let ratios: Vec<serde_json::Value> = (measured.iter())
        .map(|m| serde_json::json!({"paper": m.simulated.paper.name(), "figure": m.simulated.id, "ratios": m.rows()}))
        .collect();
    let json = serde_json::json!({
        "emulated": true, "loads": LOADS, "scale": args.scale, "seconds": seconds, "cores": args.cores, "load_average": load.trim(), "runs": runs, "ratios": ratios
    });
    put("results.json", &serde_json::to_string_pretty(&json)?)
}

/// A figure's runs for the report; none if there are none.
fn measured<'a>(
    f: usize,
    figure: &Figure,
    simulated: &'a [simulate::reproduce::Figure],
    all: &BTreeMap<Key, Vec<Run>>,
) -> Option<Measured<'a>> {
    let of = |l: usize, s: usize| all.get(&(f, l, s)).map_or(&[][..], Vec::as_slice);
    let (loads, series) = (0..figure.loads.len(), 0..figure.series.len());
    let loads: Vec<usize> = loads.filter(|l| series.clone().any(|s| !of(*l, s).is_empty())).collect();
    let shown: Vec<usize> = series.filter(|s| loads.iter().any(|l| !of(*l, *s).is_empty())).collect();
    let values =
        |s: usize| -> Vec<Vec<f64>> { loads.iter().map(|l| of(*l, s).iter().map(|run| run.value).collect()).collect() };
    let names = |s: &usize| (figure.series[*s].1.to_owned(), values(*s));
    let head = [
        "load",
        "policy",
        "remote reads",
        "load on node 1",
        "read, MB/s",
        "written",
        "threads moved",
        "files moved, at least",
    ];
    let mut counted = vec![head.map(str::to_owned).to_vec()];
    for (l, load) in loads.iter().map(|l| (*l, &figure.loads[*l])) {
        for s in &shown {
            let share = |of_run: fn(&Run) -> Option<f64>| {
                let shares: Vec<f64> = of(l, *s).iter().filter_map(of_run).collect();
                Spread::of(&shares).map(|spread| format!("{:.0} %", 100.0 * spread.mean))
            };
            let rate = |way: usize| {
                let rates = of(l, *s).iter().filter_map(|run| run.carried?.get(way).copied());
                Spread::of(&rates.collect::<Vec<f64>>()).map_or("–".to_owned(), |spread| spread.text())
            };
            let count = |of_run: fn(&Run) -> usize| {
                let counts: Vec<f64> = of(l, *s).iter().map(|run| of_run(run) as f64).collect();
                Spread::of(&counts).map_or(String::new(), |spread| format!("{:.1}", spread.mean))
            };
            // Without a policy nobody counts.
            let Some(elsewhere) = share(|run| run.elsewhere) else { continue };
            let remote = share(|run| run.remote).unwrap_or_default();
            let moved = [count(|run| run.threads_moved), count(|run| run.files_moved)];
            let names = [load.name.to_string(), figure.series[*s].1.to_owned()];
            let rates = [rate(0), rate(1)];
            counted.push(names.into_iter().chain([remote, elsewhere]).chain(rates).chain(moved).collect());
        }
    }
    Some(Measured {
        simulated: simulated.iter().find(|s| s.paper == figure.paper && s.id == figure.id)?,
        setup: loads.iter().map(|l| setup(&figure.loads[*l])).collect::<Vec<_>>().join("; ") + ".",
        unit: figure.unit,
        groups: loads.iter().map(|l| figure.loads[*l].name.to_string()).collect(),
        published: loads.iter().filter(|l| figure.loads[**l].published()).count().min(figure.of_published),
        of_published: figure.of_published,
        base: figure.series[*shown.iter().find(|s| figure.series[**s].1 == figure.base).or(shown.first())?].1,
        series: shown.iter().map(names).collect(),
        ratios: figure.ratios.to_vec(),
        counted,
    })
}

/// The loads of this run.
fn setup(load: &Load) -> String {
    let what = match load.program {
        Program::Fio(Fio { threads, read, block, think_s, .. }) => {
            let rest =
                if think_s > 0.0 { format!(", {:.0} µs of rest after each", think_s * 1e6) } else { String::new() };
            let (reads, kib) = (100.0 * read, block / 1024.0);
            format!("fio, {threads} threads with a file each, {reads:.0} % reads of {kib:.0} KiB{rest}")
        }
        Program::Light(threads, rest_us) => {
            format!(
                "fio, {threads} threads with a file each, reads of 4 KiB, {rest_us} µs of rest after each (of no paper)"
            )
        }
        Program::Db(benchmark) => format!("db_bench {}, 10 threads in all, 4 KB values", benchmark.name()),
        Program::Filebench(f) => {
            let ours = if load.published() {
                ""
            } else {
                " (of no paper: only the thread moves, and memory has Optane's timing)"
            };
            format!("{} threads, {} files of {:.0} KB{ours}", f.threads, f.files, f.file_size / 1024.0)
        }
    };
    let places = match (load.applications, load.spread, load.placed) {
        (1, _, true) => ", begun on node 1",
        (_, _, true) => ", half of them begun on each node",
        (2.., true, _) => ", each with its data on another node",
        _ => "",
    };
    format!("{}: {} × {what}{places}", load.name, load.applications)
}

fn markdown(about: &[String], measured: &[Measured<'_>]) -> Result<String> {
    let mut text = format!("# The papers' programs on a mounted volume\n\n{}\n", about.join("\n\n"));
    for m in measured {
        write!(text, "\n## {}, {}\n\n{}\n\n", m.simulated.paper.title(), m.simulated.name(), m.setup)?;
        text.push_str(
            "| ratio | at | paper | simulated | measured (least to most) | by the rule |\n| --- | --- | ---: | ---: | ---: | --- |\n",
        );
        let optional = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.2}"));
        for row in m.rows() {
            let (paper, simulated) = (optional(row.paper), optional(row.simulated));
            let measured = row.measured.text();
            writeln!(text, "| {} | {} | {paper} | {simulated} | {measured} | {} |", row.ratio, row.at, row.scored())?;
        }
        let groups = m.groups.join(" | ");
        write!(text, "\n| {} | {groups} |\n| --- |{}\n", m.unit, " ---: |".repeat(m.groups.len()))?;
        for (name, values) in &m.series {
            let cells: Vec<String> =
                values.iter().map(|v| Spread::of(v).map_or("–".to_owned(), |s| s.text())).collect();
            writeln!(text, "| {name} | {} |", cells.join(" | "))?;
        }
        if let Some((head, rows)) = m.counted.split_first() {
            write!(text, "\n| {} |\n|{}\n", head.join(" | "), " --- |".repeat(head.len()))?;
            for row in rows {
                writeln!(text, "| {} |", row.join(" | "))?;
            }
        }
    }
    Ok(text)
}
