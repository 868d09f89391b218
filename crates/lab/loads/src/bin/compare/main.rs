//! `homenode-compare`: runs the same load under the kernel's default, AutoNUMA, numad and homenode.
//!
//! **Problem.** There are other ways to place threads on a NUMA machine. Do they follow the page
//! cache?
//!
//! **Approach.** One boot of one machine; the load is restarted for each way. Of fio the same
//! observer measures the remote share of every window (`homenode run --dry-run`, or homenode itself
//! in its own turn), and `/proc` shows where the threads are. Of reads of slow memory ([`tiers`])
//! the load's own counts and `move_pages(2)` tell, under the kernel's tiering and policy `promote`.
//!
//! **Limits.** It compares remote shares, not speed: in an emulated machine remote memory is as
//! fast as local memory.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use lab::cache;
use lab::daemon::{Daemon, Window, remote_share};
use lab::fio::Fio;
use lab::machine::Machine;
use lab::plot::{self, Series};
use lab::threads::{self, Whereabouts};
use rustix::process::Signal;

mod tiers;

const THREADS: usize = 4;
const NUMAD_LOG: &str = "/var/log/numad.log";
const AUTONUMA: &str = "/proc/sys/kernel/numa_balancing";

/// Run the same loads under the kernel's default, AutoNUMA, numad and homenode.
#[derive(Parser)]
struct Args {
    /// The homenode command
    #[arg(long)]
    homenode: PathBuf,
    /// Directory for the files that are read; not on tmpfs
    #[arg(long)]
    data: PathBuf,
    /// Directory for compare.md, compare-tiers.md and the plots
    #[arg(long)]
    out: PathBuf,
    /// Size of each file in MiB
    #[arg(long, default_value_t = 64)]
    size: u64,
    /// Windows of one second for each way
    #[arg(long, default_value_t = 30)]
    windows: usize,
    /// Options for `homenode run`, separated by blanks
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    options: String,
    /// Configuration of homenode, to which `tiers` adds its own
    #[arg(long)]
    config: Option<PathBuf>,
    /// Only this load: fio or tiers (which needs a node without CPUs)
    #[arg(long, value_parser = ["fio", "tiers"])]
    load: Option<String>,
}

impl Args {
    /// The homenode configuration, with these lines added.
    fn config(&self, more: &str) -> Result<tempfile::NamedTempFile> {
        let given =
            self.config.as_ref().map(|path| fs::read_to_string(path).with_context(|| path.display().to_string()));
        let file = tempfile::NamedTempFile::new().context("a temporary file")?;
        fs::write(&file, format!("{}\n{more}", given.transpose()?.unwrap_or_default())).context("a temporary file")?;
        Ok(file)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Kernel,
    AutoNuma,
    Numad,
    Homenode,
}

impl Way {
    const ALL: [Self; 4] = [Self::Kernel, Self::AutoNuma, Self::Numad, Self::Homenode];

    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel scheduler",
            Self::AutoNuma => "AutoNUMA",
            Self::Numad => "numad",
            Self::Homenode => "homenode",
        }
    }

    /// Turns the kernel's balancing on or off.
    fn begin(self) -> Result<()> {
        fs::write(AUTONUMA, if self == Self::AutoNuma { "1" } else { "0" }).context(AUTONUMA)
    }
}

struct Run {
    way: Way,
    windows: Vec<Window>,
    /// Decisions: homenode's moves, numad's placements of the process.
    decisions: usize,
    /// Share of samples of `/proc` that showed a reader away from its data, in the second half of
    /// the run.
    away: Option<f64>,
}

fn main() -> ExitCode {
    lab::exit(run_with(&Args::parse()))
}

fn run_with(args: &Args) -> Result<()> {
    let machine = Machine::read()?;
    ensure!(machine.nodes.len() >= 2, "this machine has one node, so there is nothing to compare");
    let dir = lab::scratch(&args.data, "homenode-compare-")?;
    let dir = dir.path();
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let balancing = fs::read_to_string(AUTONUMA).context(AUTONUMA)?;
    let wanted = |load: &str| args.load.as_ref().is_none_or(|only| only == load);
    let result = (|| {
        if wanted("fio") {
            fio(args, &machine, dir)?;
        }
        // Without a node for it, it is left out unless it is all that is asked for.
        let tiers = wanted("tiers") && (args.load.is_some() || tiers::slow_node(&machine)?.is_some());
        if tiers { tiers::compare(args, &machine, dir) } else { Ok(()) }
    })();
    fs::write(AUTONUMA, balancing.trim()).context(AUTONUMA)?;
    result
}

/// Four readers, each of a file of its own, all cached on the first node.
fn fio(args: &Args, machine: &Machine, dir: &Path) -> Result<()> {
    let home = *machine.nodes.keys().next().context("no node")?;
    let files: Vec<_> = (0..THREADS).map(|i| dir.join(format!("file{i}"))).collect();
    for file in &files {
        cache::put(file, args.size << 20, home)?;
    }
    let runs = Way::ALL.into_iter().map(|way| run(args, machine, home, way, &files)).collect::<Result<Vec<_>>>();
    files.iter().try_for_each(|file| fs::remove_file(file).with_context(|| file.display().to_string()))?;
    report(args, machine, home, &runs?)
}

fn run(args: &Args, machine: &Machine, home: u32, way: Way, files: &[PathBuf]) -> Result<Run> {
    println!("fio, {}", way.name());
    way.begin()?;
    let fio = Fio::start(files)?;
    let pid = fio.pid().to_string();
    let numad = (way == Way::Numad).then(|| Numad::start(&pid)).transpose()?;
    let dry = if way == Way::Homenode { None } else { Some("--dry-run") };
    let config = args.config("")?;
    let config = ["--config".as_ref(), config.path().as_os_str()];
    let options = ["--pid", &pid].into_iter().chain(dry).chain(args.options.split_ascii_whitespace());
    let options = options.map(AsRef::as_ref).chain(config);
    let mut daemon = Daemon::start(&args.homenode, options)?;
    let (mut windows, mut whereabouts) = (Vec::new(), Whereabouts::default());
    while windows.len() < args.windows {
        windows.push(daemon.window()?);
        if windows.len() > args.windows / 2 {
            whereabouts.sample(&threads::of(fio.pid())?, &fio.readers, machine, home);
        }
    }
    daemon.stop(Signal::TERM)?;
    let decisions = match &numad {
        Some(numad) if !Numad::runs() => bail!("numad (started as {}) is not running", numad.child.id()),
        Some(numad) => Numad::placements()?.saturating_sub(numad.placements_before),
        None => windows.iter().flat_map(|w| &w.moves).filter(|m| m.from != m.to).count(),
    };
    drop(numad);
    println!("  remote share {:.0} %", remote_share(&windows).unwrap_or(0.0) * 100.0);
    Ok(Run { way, windows, decisions, away: whereabouts.away() })
}

/// numad, told to watch this process whatever its size, as often as it can.
struct Numad {
    child: Child,
    placements_before: usize,
}

impl Numad {
    fn start(pid: &str) -> Result<Self> {
        let placements_before = Self::placements()?;
        // -S 0: only the given process; -i: seconds between scans.
        let child = Command::new("numad")
            .args(["-i", "1:2", "-S", "0", "-p", pid])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("numad could not be started (is it installed?)")?;
        Ok(Self { child, placements_before })
    }

    /// Whether numad, which becomes a daemon, runs.
    fn runs() -> bool {
        let pid = fs::read_to_string("/run/numad.pid").unwrap_or_default();
        fs::read_to_string(format!("/proc/{}/comm", pid.trim())).is_ok_and(|comm| comm.trim() == "numad")
    }

    /// How often it has placed a process, by its log.
    fn placements() -> Result<usize> {
        match fs::read(NUMAD_LOG) {
            Ok(log) => Ok(String::from_utf8_lossy(&log).lines().filter(|l| l.contains("Advising pid")).count()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(e) => Err(e).context(NUMAD_LOG),
        }
    }
}

impl Drop for Numad {
    fn drop(&mut self) {
        // numad runs in the background; -i 0 ends it.
        let told = Command::new("numad").args(["-i", "0"]).stdout(Stdio::null()).status();
        if let Err(e) = told.and_then(|_| self.child.wait()) {
            eprintln!("numad could not be ended: {e}");
        }
    }
}

fn report(args: &Args, machine: &Machine, home: u32, runs: &[Run]) -> Result<()> {
    let text = table(args, machine, home, runs)?;
    print!("\n{text}");
    write(&args.out.join("compare.md"), &text)?;
    let series: Vec<_> = runs
        .iter()
        .map(|run| Series {
            name: run.way.name().to_owned(),
            points: plot::over_time(run.windows.iter().map(|w| (w.window_s, w.remote_share))),
        })
        .collect();
    plot::remote_share(
        &args.out.join("compare.png"),
        &format!("fio, {THREADS} threads, files cached on node {home}"),
        &series,
    )
}

fn table(args: &Args, machine: &Machine, home: u32, runs: &[Run]) -> Result<String> {
    let cpus = machine.nodes.values().map(|c| c.len().to_string()).collect::<Vec<_>>().join(" + ");
    let mut text = format!(
        "# Remote share beside peers\n\nfio: {THREADS} unpinned threads, each of which reads a file of {} MiB cached on node \
         {home}. {} nodes ({cpus} CPUs), Linux {}, {}. One boot; fio is restarted for each column.\n\nShare of file bytes \
         read from another node, per span of time. The same observer measures every column:\n\n| seconds |",
        args.size,
        machine.nodes.len(),
        read("/proc/sys/kernel/osrelease")?,
        date()?,
    );
    for run in runs {
        write!(text, " {} |", run.way.name())?;
    }
    text.push_str("\n| --- |");
    text.push_str(&" ---: |".repeat(runs.len()));
    let span = (args.windows / 6).max(1);
    for first in (0..args.windows).step_by(span) {
        let last = (first + span).min(args.windows);
        write!(text, "\n| {first}–{last} |")?;
        for run in runs {
            write!(text, " {} |", percent(remote_share(run.windows.get(first..last).unwrap_or_default())))?;
        }
    }
    let mut row = |name: &str, value: &dyn Fn(&Run) -> String| -> Result<()> {
        write!(text, "\n| {name} |")?;
        for run in runs {
            write!(text, " {} |", value(run))?;
        }
        Ok(())
    };
    row("second half", &|run| percent(remote_share(run.windows.get(args.windows / 2..).unwrap_or_default())))?;
    row("threads away from their data in the second half, by /proc", &|run| percent(run.away))?;
    row("moves of threads (homenode), placements of the process (numad)", &|run| match run.way {
        Way::Numad | Way::Homenode => run.decisions.to_string(),
        Way::Kernel | Way::AutoNuma => "–".to_owned(),
    })?;
    text.push_str(
        "\n\n- kernel scheduler: `numa_balancing` 0. AutoNUMA: `numa_balancing` 1. numad: given fio's process id, looks every 1 to \
         2 s. homenode: `numa_balancing` 0.\n- Made by `make bench`.\n",
    );
    Ok(text)
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn read(path: &str) -> Result<String> {
    Ok(fs::read_to_string(path).with_context(|| path.to_owned())?.trim().to_owned())
}

/// Today, as `2026-11-21`.
fn date() -> Result<String> {
    let output = Command::new("date").arg("+%F").output().context("date")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}
