//! `homenode-volume`: the policies measured on a wall clock, on a mounted volume over two emulated nodes.
//!
//! **Problem.** The simulator shares its equations with the policies that it judges. A measurement does not.
//!
//! **Approach.** fio runs NThread's jobs (Fig. 5: private files on node 0, random 4 KiB reads and writes, unbound
//! threads) on a mount whose memory is emulated. Every run begins with the same image of the volume. Rounds go through
//! all policies in turn, so that other work on the machine meets all of them. The figure is NThread's, Eq. 1: a third
//! of the bytes read, and the bytes written, per second.
//!
//! **Limits.** Files and run times are smaller than in the paper by the same factor, so each byte is overwritten as
//! often. Waiting takes no CPU time here, so policies for contention of CPUs have nothing to show.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lab::mounted::Server;
use serde::Deserialize;

/// NThread's settings in the simulated experiments, at full speed: `min_bytes`, and the margin in bytes/s.
const LEAST: f64 = 4_194_304.0;
/// Size of a file in the paper, and how long a run takes there.
const PAPER: (f64, f64) = (4e9, 60.0);
/// Most files.
const FILES: usize = 8;

/// Measure the policies on a mounted volume over two emulated nodes.
#[derive(Parser)]
struct Args {
    /// The homenode command
    #[arg(long)]
    homenode: PathBuf,
    /// Directory for the regions and the mount point: in memory
    #[arg(long, default_value = "/dev/shm")]
    data: PathBuf,
    /// File for the report
    #[arg(long)]
    out: PathBuf,
    /// Rounds through all policies
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a run; files shrink with it
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// How many times as slow as Optane
    #[arg(long, default_value_t = 200.0)]
    scale: f64,
    /// Loads: rw80, rw60, …, ro (four threads), ro8 (eight readers), simpleread
    #[arg(long, value_delimiter = ',', default_value = "rw80,rw60,ro8,simpleread")]
    load: Vec<String>,
    /// Ways to decide; `observed` decides and changes nothing, `random` writes to any node and decides nothing, as
    /// NThread's NOVA_n
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "off,random,observed,nthread-rl,nthread-cpu,nthread-nm,nthread,dragonfly,auto"
    )]
    policy: Vec<String>,
}

/// A load: threads, share of reads, and whether each reads in sequence in large pieces.
struct Load {
    threads: usize,
    reads: u32,
    sequential: bool,
}

impl Load {
    fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "ro" => Self { threads: 4, reads: 100, sequential: false },
            "ro8" => Self { threads: 8, reads: 100, sequential: false },
            "simpleread" => Self { threads: 1, reads: 100, sequential: true },
            _ => {
                let reads = name.strip_prefix("rw").and_then(|n| n.parse().ok()).filter(|n| *n <= 100);
                Self {
                    threads: 4,
                    reads: reads.with_context(|| format!("no load is called {name}"))?,
                    sequential: false,
                }
            }
        })
    }
}

/// What one run showed.
#[derive(Clone, Debug)]
struct Run {
    read: f64,
    written: f64,
    /// In the second half.
    remote: Option<f64>,
    threads_moved: usize,
    files_moved: usize,
}

impl Run {
    /// NThread's Eq. 1, in MB/s.
    fn weighted(&self) -> f64 {
        (self.read / 3.0 + self.written) / 1e6
    }
}

#[derive(Deserialize)]
struct Line {
    kind: String,
    #[serde(default)]
    read_bytes: u64,
    #[serde(default)]
    remote_bytes: u64,
    #[serde(default)]
    moves: Vec<Move>,
}

#[derive(Deserialize)]
struct Move {
    kind: String,
    from: u32,
    to: u32,
}

/// Files of a volume, and where it is mounted; taken away when dropped.
struct Place {
    dir: PathBuf,
    regions: [PathBuf; 2],
    mount: PathBuf,
}

impl Place {
    fn new(data: &Path) -> Result<Self> {
        let dir = data.join(format!("homenode-volume-{}", std::process::id()));
        let mount = dir.join("mount");
        fs::create_dir_all(&mount).with_context(|| mount.display().to_string())?;
        Ok(Self { regions: [dir.join("a"), dir.join("b")], mount, dir })
    }

    /// Makes a volume with files on node 0, and keeps a copy of its regions.
    fn fill(&self, homenode: &Path, file_bytes: u64) -> Result<()> {
        // What is written anew goes to new blocks before the old ones are free.
        let size = (3 * FILES as u64 * file_bytes + (32 << 20)).to_string();
        let at = |region: usize| format!("{}@{region}", self.regions[region].display());
        let made = Command::new(homenode).args(["mkfs", "--size", &size, &at(0), &at(1)]).output()?;
        ensure!(made.status.success(), "mkfs: {}", String::from_utf8_lossy(&made.stderr));
        let server = Serving::start(homenode, self, &["--placement", "node0"])?;
        let piece: Vec<u8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for file in 0..FILES {
            let path = self.mount.join(format!("file{file}"));
            let mut left = file_bytes;
            let mut out = fs::File::create(&path).with_context(|| path.display().to_string())?;
            while left > 0 {
                let part = &piece[..left.min(piece.len() as u64) as usize];
                std::io::Write::write_all(&mut out, part).with_context(|| path.display().to_string())?;
                left -= part.len() as u64;
            }
        }
        server.stop()?;
        self.copies(true)
    }

    fn copies(&self, save: bool) -> Result<()> {
        for region in &self.regions {
            let saved = region.with_extension("saved");
            let (from, to) = if save { (region, &saved) } else { (&saved, region) };
            fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            eprintln!("{}: {e}", self.dir.display());
        }
    }
}

/// A mount, and what its server says.
struct Serving {
    server: Server,
    lines: JoinHandle<Vec<Line>>,
}

impl Serving {
    fn start(homenode: &Path, place: &Place, options: &[&str]) -> Result<Self> {
        let state = place.dir.join("state");
        let mut command = Command::new(homenode);
        command.args(["mount", "--foreground", "--json", "--state-dir"]).arg(state).args(options);
        command.args([&place.regions[0], &place.mount]).stdin(Stdio::null()).stdout(Stdio::piped());
        let (server, out) = Server::start(&mut command, &place.mount, Duration::from_secs(60))?;
        let out = out.context("no standard output")?;
        let lines = std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(std::io::Result::ok);
            lines.filter_map(|line| serde_json::from_str(&line).ok()).collect()
        });
        Ok(Self { server, lines })
    }

    /// Unmounts, and returns what was said.
    fn stop(mut self) -> Result<Vec<Line>> {
        self.server.stop()?;
        self.server.wait(Duration::MAX)?;
        Ok(self.lines.join().unwrap_or_default())
    }
}

fn main() -> ExitCode {
    lab::exit(run(&Args::parse()))
}

fn run(args: &Args) -> Result<()> {
    let shorter = args.seconds / PAPER.1;
    let file_bytes = ((PAPER.0 / args.scale * shorter) as u64).next_multiple_of(4096);
    let loads: Vec<_> = args.load.iter().map(|name| Ok((name, Load::named(name)?))).collect::<Result<_>>()?;
    let place = Place::new(&args.data)?;
    place.fill(&args.homenode, file_bytes)?;
    let mut all: BTreeMap<(usize, usize), Vec<Run>> = BTreeMap::new();
    for round in 0..args.rounds {
        for (l, (name, load)) in loads.iter().enumerate() {
            for (p, policy) in args.policy.iter().enumerate() {
                let run = one(args, &place, load, policy, file_bytes).with_context(|| format!("{name}, {policy}"))?;
                println!("emulated, round {round}: {name} {policy}: {:.2} MB/s (Eq. 1), {run:?}", run.weighted());
                all.entry((l, p)).or_default().push(run);
                // Also after an interruption there is something to see.
                fs::write(&args.out, report(args, &all, file_bytes)?)
                    .with_context(|| args.out.display().to_string())?;
            }
        }
    }
    Ok(())
}

/// One run of fio under one policy.
fn one(args: &Args, place: &Place, load: &Load, policy: &str, file_bytes: u64) -> Result<Run> {
    place.copies(false)?;
    let scale = args.scale.to_string();
    let (margin, least) = (format!("{:.0}B/s", LEAST / args.scale), format!("{:.0}", LEAST / args.scale));
    let mut options = vec!["--emulate-nodes", "2", "--profile", "optane", "--scale", &scale];
    match policy {
        "off" => {}
        "random" => options.extend(["--placement", "random"]),
        "observed" => options.extend(["--policy", "nthread", "--dry-run"]),
        _ => options.extend(["--policy", policy, "--margin", &margin, "--min-bytes", &least]),
    }
    let server = Serving::start(&args.homenode, place, &options)?;
    let mut fio = Command::new("fio");
    fio.args([
        "--output-format=json",
        "--name=job",
        "--thread",
        "--ioengine=psync",
        "--time_based",
        "--group_reporting",
    ]);
    fio.args([
        "--invalidate=0",
        "--fadvise_hint=0",
        "--randrepeat=0",
        "--norandommap",
        "--filename_format=file$jobnum",
    ]);
    fio.arg(format!("--runtime={}", args.seconds)).arg(format!("--numjobs={}", load.threads));
    fio.arg(format!("--directory={}", place.mount.display())).arg(format!("--size={file_bytes}"));
    match load.sequential {
        true => fio.args(["--rw=read", "--bs=128k"]),
        false => fio.args(["--rw=randrw", "--bs=4k"]).arg(format!("--rwmixread={}", load.reads)),
    };
    let done = fio.stdin(Stdio::null()).output().context("fio could not be started (is it installed?)")?;
    ensure!(done.status.success(), "fio: {}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout);
    let json = text.get(text.find('{').context("fio said nothing")?..).unwrap_or_default();
    let result: serde_json::Value = serde_json::from_str(json).context("fio's result")?;
    let bandwidth = |direction: &str| result["jobs"][0][direction]["bw_bytes"].as_f64().unwrap_or(0.0);
    let lines = server.stop()?;
    let windows: Vec<&Line> = lines.iter().filter(|line| line.kind == "window" && line.read_bytes > 0).collect();
    let half = windows.get(windows.len() / 2..).unwrap_or_default();
    let sum = |of: fn(&Line) -> u64| half.iter().map(|line| of(line)).sum::<u64>() as f64;
    let moves = |kind: &str| windows.iter().flat_map(|w| &w.moves).filter(|m| m.kind == kind && m.from != m.to).count();
    Ok(Run {
        read: bandwidth("read"),
        written: bandwidth("write"),
        remote: (!half.is_empty()).then(|| sum(|line| line.remote_bytes) / sum(|line| line.read_bytes)),
        threads_moved: moves("thread"),
        files_moved: moves("file"),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Mean, least and most.
fn spread(values: &[f64], digits: usize) -> String {
    let (least, most) = values.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), v| (l.min(*v), m.max(*v)));
    format!("{:.digits$} ({least:.digits$} to {most:.digits$})", mean(values))
}

fn report(args: &Args, all: &BTreeMap<(usize, usize), Vec<Run>>, file_bytes: u64) -> Result<String> {
    let rounds = all.values().map(Vec::len).min().unwrap_or(0);
    let load_now = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut text = format!(
        "# Policies on a mounted volume over two emulated nodes\n\nAll figures are *emulated*: memory as in the profile `optane`, {} times \
         as slow, so a node carries {:.0} MB/s of reads or {:.0} MB/s of writes. Bandwidth in MB/s by NThread's Eq. 1, a third of the \
         reads and the writes: mean (least to most) of {rounds} runs of {} s. Private files of {:.1} MB on node 0. Load average at the end: \
         {}.\n",
        args.scale,
        6e3 / args.scale,
        2e3 / args.scale,
        args.seconds,
        file_bytes as f64 / 1e6,
        load_now.split(' ').next().unwrap_or_default(),
    );
    for (l, load) in args.load.iter().enumerate() {
        let of = |p: usize| all.get(&(l, p)).map_or(&[][..], Vec::as_slice);
        let off: Vec<f64> = args.policy.iter().position(|p| p == "off").map_or(Vec::new(), |p| bandwidths(of(p)));
        write!(
            text,
            "\n## {load}\n\n| policy | MB/s | relative to off | remote reads, second half | threads moved | files moved |\n"
        )?;
        text.push_str("| --- | ---: | ---: | ---: | ---: | ---: |\n");
        for (p, policy) in args.policy.iter().enumerate().filter(|(p, _)| !of(*p).is_empty()) {
            let values = bandwidths(of(p));
            // Round by round, as what else the machine does changes more slowly than that.
            let ratios: Vec<f64> = values.iter().zip(&off).map(|(value, off)| value / off).collect();
            let remote: Vec<f64> = of(p).iter().filter_map(|run| run.remote).map(|share| share * 100.0).collect();
            let count =
                |n: fn(&Run) -> usize| format!("{:.1}", mean(&of(p).iter().map(|r| n(r) as f64).collect::<Vec<_>>()));
            writeln!(
                text,
                "| {policy} | {} | {} | {} | {} | {} |",
                spread(&values, 2),
                if ratios.is_empty() { "–".to_owned() } else { spread(&ratios, 2) },
                if remote.is_empty() { "–".to_owned() } else { format!("{:.0} %", mean(&remote)) },
                count(|run| run.threads_moved),
                count(|run| run.files_moved),
            )?;
        }
    }
    Ok(text)
}

fn bandwidths(runs: &[Run]) -> Vec<f64> {
    runs.iter().map(Run::weighted).collect()
}
