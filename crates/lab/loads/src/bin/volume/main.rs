//! `homenode-volume`: the papers' programs measured on a wall clock, on a mounted volume over two
//! emulated nodes.
//!
//! **Problem.** The simulator shares its equations with the policies that it judges. A measurement
//! does not.
//!
//! **Approach.** fio, RocksDB's db_bench and filebench's personalities run with the papers' loads
//! ([`loads`]) on a mount whose memory is emulated. Every run begins with the same image of the
//! volume. Rounds go through all loads and policies in turn, so that other work on the machine
//! meets all of them. The report has each ratio as the paper states it, as the simulator has it,
//! and as measured.
//!
//! Software is emulated, too, on as many cores a node as the paper's machine has.
//!
//! **Limits.** What programs do between their calls is a constant of each call. With `--cores 0`
//! software is faster, relative to the memory, than on a real machine, and waiting takes no CPU
//! time, so policies for contention of CPUs have nothing to show. Two emulated nodes share one real
//! memory and its caches.

mod loads;
mod place;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use loads::{Figure, Load, Program, Runner};
use place::{Line, Place};
use serde::{Deserialize, Serialize};
use simulate::papers::Paper;
use simulate::reproduce::measured::{Measured, Spread, page};

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
    /// Directory for report.html, report.md and results.json
    #[arg(long, overrides_with = "out")]
    out: PathBuf,
    /// Runs of each load under each policy
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds of a run; data shrinks with it [default: 12, more than Dragonfly's T_window]
    #[arg(long, default_value_t = 12.0)]
    seconds: f64,
    /// How many times as slow as Optane
    #[arg(long, default_value_t = 200.0)]
    scale: f64,
    /// Emulate so many cores a node, and software on them; 0: neither [default: those of each
    /// paper]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    cores: Option<u32>,
    /// One run of each
    #[arg(long, conflicts_with = "runs")]
    quick: bool,
    /// Also report the runs of an earlier results.json; with --runs 0, nothing else
    #[arg(long, value_name = "FILE")]
    add: Vec<PathBuf>,
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

/// Figures of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    /// In the figure's unit.
    value: f64,
    /// Share of bytes read from the other node, in the second half.
    remote: Option<f64>,
    /// Share of the second half's controller load (Eq. 1) that node 1 carried.
    elsewhere: Option<f64>,
    /// MB/s read and written by all programs, in the second half: what the unit does not count.
    #[serde(default)]
    carried: Option<[f64; 2]>,
    threads_moved: usize,
    files_moved: usize,
}

/// The runs of one load under one policy, as results.json has them.
#[derive(Serialize, Deserialize)]
struct Entry {
    paper: String,
    figure: String,
    load: String,
    policy: String,
    unit: String,
    runs: Vec<Run>,
}

/// Changes with any load, as runs of another one are no runs of this one.
const LOADS: u32 = 3;

/// What of results.json is read again.
#[derive(Deserialize)]
struct Results {
    #[serde(default)]
    loads: u32,
    scale: f64,
    seconds: f64,
    /// Absent: those of each paper.
    #[serde(default)]
    cores: Option<u32>,
    runs: Vec<Entry>,
}

/// Figure, load, series.
type Key = (usize, usize, usize);

fn main() -> ExitCode {
    lab::exit(run(&Args::parse()))
}

fn run(args: &Args) -> Result<()> {
    let factor = loads::factor(args.scale, args.seconds);
    let figures = chosen(args, loads::figures(factor));
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
    let built = args.homenode.parent().context("--homenode has no directory")?;
    let slow = (args.cores != Some(0)).then_some(args.scale);
    let runner = Runner { built, seconds: args.seconds, factor, cpus: [list(first), list(second)], slow };
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let place = Place::new(&args.data, &args.homenode)?;
    let mut all: BTreeMap<Key, Vec<Run>> = BTreeMap::new();
    args.add.iter().try_for_each(|file| add(args, file, &figures, &mut all))?;
    for round in 0..if args.quick { 1 } else { args.runs } {
        for (f, figure) in figures.iter().enumerate() {
            for (l, load) in figure.loads.iter().enumerate() {
                for (s, (policy, series)) in figure.series.iter().enumerate() {
                    if !args.policy.is_empty() && !args.policy.iter().any(|p| p == policy) || missing(load, policy) {
                        continue;
                    }
                    let what = || format!("{} {}, {}, {series}", figure.paper.name(), figure.id, load.name);
                    let cores = args.cores.unwrap_or_else(|| figure.cores());
                    let run = one(args, &place, &runner, (load, cores), policy).with_context(what)?;
                    eprintln!("emulated, round {round}: {}: {:.2} {}, {run:?}", what(), run.value, figure.unit);
                    all.entry((f, l, s)).or_default().push(run);
                }
            }
            // Also after an interruption there is something to see.
            write(args, &figures, &simulated, &all)?;
        }
    }
    write(args, &figures, &simulated, &all)?;
    if args.json {
        let path = args.out.join("results.json");
        println!("{}", fs::read_to_string(&path).with_context(|| path.display().to_string())?);
    }
    Ok(())
}

/// Adds the runs of an earlier report.
fn add(args: &Args, file: &Path, figures: &[Figure], all: &mut BTreeMap<Key, Vec<Run>>) -> Result<()> {
    let what = || file.display().to_string();
    let results: Results = serde_json::from_str(&fs::read_to_string(file).with_context(what)?).with_context(what)?;
    let same =
        (results.loads, results.scale, results.seconds, results.cores) == (LOADS, args.scale, args.seconds, args.cores);
    ensure!(same, "{}: made with another version, --scale, --seconds or --cores, so of other loads", file.display());
    let mut whole: BTreeMap<[String; 3], usize> = BTreeMap::new();
    let name = |entry: &Entry| [entry.paper.clone(), entry.figure.clone(), entry.load.clone()];
    for entry in &results.runs {
        let rounds = whole.entry(name(entry)).or_insert(usize::MAX);
        *rounds = (*rounds).min(entry.runs.len());
    }
    for mut entry in results.runs {
        // The rest of a round that was interrupted has nothing to be compared with.
        entry.runs.truncate(whole.get(&name(&entry)).copied().unwrap_or_default());
        let figure = figures.iter().position(|f| f.paper.name() == entry.paper && f.id == entry.figure);
        let Some((f, figure)) = figure.and_then(|f| Some((f, figures.get(f)?))) else { continue };
        let load = figure.loads.iter().position(|load| load.name == entry.load);
        let series = figure.series.iter().position(|series| series.0 == entry.policy);
        if let Some((l, s)) = load.zip(series) {
            all.entry((f, l, s)).or_default().extend(entry.runs);
        }
    }
    Ok(())
}

/// The figures that the user wants.
fn chosen(args: &Args, figures: Vec<Figure>) -> Vec<Figure> {
    let wanted = |figure: &Figure| {
        let name = format!("{}-{}", figure.paper.name(), figure.id);
        args.figure.is_empty() || args.figure.contains(&name)
    };
    let mut figures: Vec<Figure> = figures.into_iter().filter(wanted).collect();
    for figure in &mut figures {
        figure.loads.retain(|load| args.load.is_empty() || args.load.iter().any(|wanted| wanted == load.name));
    }
    figures
}

/// Whether a series cannot be had: a mount has no second file system on a node of its own.
fn missing(load: &Load, policy: &str) -> bool {
    policy == "node0" && load.spread && load.applications > 1
}

/// One run of a load under one policy.
fn one(args: &Args, place: &Place, runner: &Runner<'_>, (load, cores): (&Load, u32), policy: &str) -> Result<Run> {
    let placement = |i: u32| match policy {
        "random" => "random".to_owned(),
        _ if load.spread => format!("node{}", i % 2),
        _ => "node0".to_owned(),
    };
    let placements: Vec<String> = (0..load.applications).map(placement).collect();
    let data = match load.program {
        Program::Fio(threads, _) | Program::Light(threads, _) => format!("fio{threads}"),
        Program::Db("fillseq") => "empty".to_owned(),
        Program::Db(_) => "db".to_owned(),
        Program::Filebench(what) => format!("{}-{}-{:.0}", what.personality.name(), what.files, what.file_size),
    };
    let bytes = runner.bytes(load) * f64::from(load.applications);
    let image = format!("{data}-{}", placements.join("-"));
    place.restore(&image, bytes, &placements, |dir| runner.fill(load, dir))?;
    let scale = args.scale.to_string();
    let (margin, least) = (format!("{:.0}B/s", LEAST / args.scale), format!("{:.0}", LEAST / args.scale));
    let mut options = vec!["--emulate-nodes", "2", "--profile", "optane", "--scale", &scale];
    let (cores, program) = (cores.to_string(), format!("{:.3}", loads::program_s(load) * 1e6));
    if runner.slow.is_some() {
        options.extend(["--emulate-cores", &cores, "--program-us", &program]);
    }
    match policy {
        "off" => {}
        "random" | "node0" => options.extend(["--placement", policy]),
        "observed" => options.extend(["--policy", "nthread", "--dry-run"]),
        _ => options.extend(["--policy", policy, "--margin", &margin, "--min-bytes", &least]),
    }
    let server = place.serve(&options)?;
    let value = runner.run(load, |i| place.of(i));
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
             Runs take {} s in place of 60, so all data is divided by {:.0}. Load average of the machine at the end: {}.",
            args.scale,
            6e3 / args.scale,
            2e3 / args.scale,
            args.seconds,
            loads::factor(args.scale, args.seconds),
            load.split(' ').next().unwrap_or_default()
        ),
        "“off” decides nothing and writes where the writer runs, as a homenode volume does; “NOVA” decides nothing and has all data on one \
         node, and “NOVA_n” on any, each for the file system of that name."
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
    ];
    let html = page("The papers' programs on a mounted volume", &about, &measured).context("report.html")?;
    let path = |name: &str| args.out.join(name);
    let put = |name: &str, text: &str| fs::write(path(name), text).with_context(|| path(name).display().to_string());
    put("report.html", &html)?;
    put("report.md", &markdown(&about, &measured)?)?;
    let entry = |((f, l, s), runs): (&Key, &Vec<Run>)| {
        let figure = &figures[*f];
        let [paper, id, load] = [figure.paper.name(), figure.id, figure.loads[*l].name].map(str::to_owned);
        let (policy, unit) = (figure.series[*s].0.to_owned(), figure.unit.to_owned());
        Entry { paper, figure: id, load, policy, unit, runs: runs.clone() }
    };
    let runs: Vec<Entry> = all.iter().map(entry).collect();
    let ratios: Vec<serde_json::Value> = (measured.iter())
        .map(|m| serde_json::json!({"paper": m.simulated.paper.name(), "figure": m.simulated.id, "ratios": m.rows()}))
        .collect();
    let json = serde_json::json!({
        "emulated": true, "loads": LOADS, "scale": args.scale, "seconds": args.seconds, "cores": args.cores, "load_average": load.trim(), "runs": runs, "ratios": ratios
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
            let names = [load.name.to_owned(), figure.series[*s].1.to_owned()];
            let rates = [rate(0), rate(1)];
            counted.push(names.into_iter().chain([remote, elsewhere]).chain(rates).chain(moved).collect());
        }
    }
    Some(Measured {
        simulated: simulated.iter().find(|s| s.paper == figure.paper && s.id == figure.id)?,
        setup: loads.iter().map(|l| setup(&figure.loads[*l])).collect::<Vec<_>>().join("; ") + ".",
        unit: figure.unit,
        groups: loads.iter().map(|l| figure.loads[*l].name.to_owned()).collect(),
        published: loads.iter().filter(|l| figure.loads[**l].published()).count(),
        base: figure.series[*shown.iter().find(|s| figure.series[**s].1 == figure.base).or(shown.first())?].1,
        series: shown.iter().map(names).collect(),
        ratios: figure.ratios.to_vec(),
        counted,
    })
}

/// The loads of this run.
fn setup(load: &Load) -> String {
    let what = match load.program {
        Program::Fio(threads, reads) => format!("fio, {threads} threads with a file each, {reads} % reads of 4 KiB"),
        Program::Light(threads, rest_us) => {
            format!(
                "fio, {threads} threads with a file each, reads of 4 KiB, {rest_us} µs of rest after each (of no paper)"
            )
        }
        Program::Db(benchmark) => format!("db_bench {benchmark}, 10 threads, 4 KB values"),
        Program::Filebench(f) => {
            format!("{} threads, {} files of {:.0} KB", f.threads, f.files, f.file_size / 1024.0)
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
            "| ratio | at | paper | simulated | measured (least to most) |\n| --- | --- | ---: | ---: | ---: |\n",
        );
        let optional = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.2}"));
        for row in m.rows() {
            let (paper, simulated) = (optional(row.paper), optional(row.simulated));
            writeln!(text, "| {} | {} | {paper} | {simulated} | {} |", row.ratio, row.at, row.measured.text())?;
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
