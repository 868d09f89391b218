//! `homenode-demo`: shows each of homenode's moves on this machine, in five acts.
//!
//! **Problem.** A claim such as "the reads become local" is best believed when seen.
//!
//! **Approach.** Each act runs a workload first while homenode only observes, then while it moves
//! threads, a file or a process. `move_pages(2)` and `/proc` show where pages are, where threads
//! ran and which affinities they have. The demo fails if the result is not as claimed.
//!
//! The first act needs one node only; the others run in a virtual machine where there is no second
//! one, so a run adds to the summary that is there. Each act is a process of its own, with a limit
//! for its time that goes by the speed of the machine: how long `homenode doctor` takes, which
//! loads BPF programs. An act that fails or does not end costs only itself.
//!
//! **Limits.** On an emulated machine the acts show where reads go, not how fast they are.

mod acts;
mod follow;
mod volume;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use lab::daemon::Window;
use lab::machine::Machine;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// Show homenode's moves on this machine, in five acts.
#[derive(Parser)]
struct Args {
    /// The homenode command
    #[arg(long)]
    homenode: PathBuf,
    /// The load generator
    #[arg(long)]
    load: PathBuf,
    /// Directory for the files that are read; not on tmpfs
    #[arg(long)]
    data: PathBuf,
    /// Directory for summary.json and the plots
    #[arg(long)]
    out: PathBuf,
    /// The kind of machine, for the summary
    #[arg(long = "where", value_parser = ["vm", "host"])]
    place: String,
    /// Size of each file in MiB
    #[arg(long, default_value_t = 64)]
    size: u64,
    /// Windows of one second without homenode
    #[arg(long, default_value_t = 8)]
    off_windows: usize,
    /// Windows of one second with homenode
    #[arg(long, default_value_t = 15)]
    on_windows: usize,
    /// Options for `homenode run`, separated by blanks
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    options: String,
    /// Configuration for `homenode run`
    #[arg(long)]
    config: Option<PathBuf>,
    /// Acts to show, by name [default: all]
    #[arg(long, value_delimiter = ',', value_parser = ACTS)]
    acts: Vec<String>,
    /// Show this act in this process, without a limit, whatever `--acts` says
    #[arg(long, hide = true, value_parser = ACTS)]
    one: Option<String>,
}

/// The acts, in order, by name.
const ACTS: [&str; 5] = ["volume", "threads", "file", "process", "mapped"];

/// An act may take this long on a machine that is fast …
const LEAST: Duration = Duration::from_secs(120);
/// … and so many times as long as `homenode doctor`: a quarter of a second on an idle machine, 5 to
/// 15 s on an emulated one, where an act takes one to four minutes.
const TIMES: u32 = 60;

/// The outcome of an act.
struct Shown {
    name: &'static str,
    /// Shares of remote reads before and after.
    before: f64,
    after: f64,
    moves: usize,
    restored: bool,
}

fn main() -> ExitCode {
    lab::exit(run_with(&Args::parse()))
}

fn run_with(args: &Args) -> Result<()> {
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let path = args.out.join("summary.json");
    if let Some(name) = &args.one {
        return show(args, name, &path);
    }
    let wanted: Vec<&str> =
        ACTS.into_iter().filter(|name| args.acts.is_empty() || args.acts.iter().any(|act| act == name)).collect();
    let limit = limit(args)?;
    let mut failed = Vec::new();
    for name in &wanted {
        if let Err(error) = in_a_process(args, name, limit) {
            println!("act {name} failed: {error:#}");
            failed.push(*name);
        }
    }
    let summary = read_summary(&path)?;
    let acts = summary["acts"].as_array().map(Vec::as_slice).unwrap_or_default();
    println!("\nact        remote before   after   moves   affinity as before");
    for act in acts {
        let share = |when: &str| act[when]["remote_share"].as_f64().unwrap_or(1.0) * 100.0;
        let restored = if act["restored"] == true { "yes" } else { "no" };
        let (name, moves) = (act["name"].as_str().unwrap_or_default(), &act["moves"]);
        println!("{name:<10} {:>11.0} % {:>5.1} % {moves:>7}   {restored}", share("before"), share("after"));
    }
    println!("summary    {}", path.display());
    let all = acts.len() + failed.len();
    println!("{} of {all} acts came out as claimed", acts.len());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// How long an act may take here.
fn limit(args: &Args) -> Result<Duration> {
    let began = Instant::now();
    let mut doctor = Command::new(&args.homenode);
    // What it finds, the acts will say.
    doctor
        .arg("doctor")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("homenode")?;
    Ok(LEAST.max(began.elapsed() * TIMES))
}

/// Shows an act in a process group of its own, which ends with all that it started when the time is
/// over; `homenode restore` then gives back what is bound.
fn in_a_process(args: &Args, name: &str, limit: Duration) -> Result<()> {
    let own = std::env::args_os().collect::<Vec<_>>();
    let (program, options) = own.split_first().context("no name of this program")?;
    let mut command = Command::new(program);
    command.args(options).args(["--one", name]).process_group(0);
    let mut child = command.spawn().context("the act could not be started")?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("the act")? {
            ensure!(status.success(), "it ended with {status}");
            return Ok(());
        }
        if began.elapsed() > limit {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("process id")?;
            kill_process_group(group, Signal::KILL).context("ending the act")?;
            child.wait().context("the act")?;
            let restored = Command::new(&args.homenode).arg("restore").stdin(Stdio::null()).status();
            restored.context("homenode restore")?;
            bail!("no end after {:.0} s, the limit on a machine of this speed", limit.as_secs_f64());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Shows one act, and adds it to the summary if it came out.
fn show(args: &Args, name: &str, path: &Path) -> Result<()> {
    let machine = Machine::read()?;
    let data = lab::scratch(&args.data, "homenode-demo-")?;
    let data = data.path();
    let mut summary = read_summary(path)?;
    let shown = if name == "volume" {
        println!("\n== threads move to the files they read, on homenode's own file system over two emulated nodes");
        let (act, keys) = volume::show(args, data)?;
        keys.into_iter().for_each(|(key, value)| summary[key] = value);
        act
    } else {
        ensure!(
            machine.nodes.len() >= 2,
            "this machine has one node: every read is local, so there is nothing to show"
        );
        let cpus: usize = machine.nodes.values().map(Vec::len).sum();
        let (emulated, place) = match args.place.as_str() {
            "vm" => (" (emulated machine)", "a virtual machine (it shows where reads go, not how fast they are)"),
            _ => ("", "this machine"),
        };
        summary["nodes"] = json!(machine.nodes.len());
        summary["where"] = json!(args.place);
        if let Some(act) = acts::ACTS.iter().find(|act| act.name == name) {
            println!("\n== {}{emulated}\n{} nodes, {cpus} CPUs, {place}", act.title, machine.nodes.len());
            act.show(args, &machine, data)?
        } else {
            println!(
                "\n== threads move to the data they read{emulated}\n{} nodes, {cpus} CPUs, {place}",
                machine.nodes.len()
            );
            let (act, keys) = follow::show(args, &machine, data)?;
            keys.into_iter().for_each(|(key, value)| summary[key] = value);
            act
        }
    };
    ensure!(shown.restored, "some threads did not get back their affinity");
    let act = json!({"name": shown.name, "before": {"remote_share": shown.before}, "after": {"remote_share": shown.after},
        "moves": shown.moves, "restored": shown.restored});
    let mut acts: Vec<Value> = summary["acts"].as_array().cloned().unwrap_or_default();
    acts.push(act);
    summary["acts"] = acts.into();
    fs::write(path, format!("{summary}\n")).with_context(|| path.display().to_string())
}

/// The summary of the acts that ran before; empty without one.
fn read_summary(path: &Path) -> Result<Value> {
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).with_context(|| path.display().to_string()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(json!({})),
        Err(e) => Err(e).with_context(|| path.display().to_string()),
    }
}

/// Prints a window: its number, what homenode saw, the share of remote reads, and the moves with
/// their reasons.
fn print_window(window: &Window, share: Option<f64>) {
    const WIDTH: usize = 30;
    let read = window.read_bytes as f64 / 1e6;
    match share {
        Some(share) => {
            let full = (share * WIDTH as f64).round() as usize;
            let bar = "█".repeat(full) + &"·".repeat(WIDTH.saturating_sub(full));
            println!("  {:>6}  {read:>7.1} MB   {:>5.1} %  {bar}", window.window, share * 100.0);
        }
        None => println!("  {:>6}  {read:>7.1} MB   nothing read", window.window),
    }
    for mv in &window.moves {
        let (verb, direction) = if mv.from == mv.to {
            ("hold", format!("on node {}", mv.to))
        } else {
            ("move", format!("node {} → {}", mv.from, mv.to))
        };
        println!("          {verb} {}  {direction}  {}: {}", mv.subject(), mv.reason, mv.why);
    }
    for mv in &window.refused {
        println!("          not moved: {}  {}", mv.subject(), mv.why);
    }
}
