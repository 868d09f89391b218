//! `homenode-demo`: shows each of homenode's moves on this machine, in five acts.
//!
//! **Problem.** A claim such as "the reads become local" is best believed when seen.
//!
//! **Approach.** Each act runs a workload first while homenode only observes, then while it moves
//! threads, a file or a process. `move_pages(2)` and `/proc` show where pages are, where threads
//! ran and which affinities they have. The demo fails if the result is not as claimed.
//!
//! The first act needs one node only; the others run in a virtual machine where there is no second
//! one, so a run adds to the summary that is there.
//!
//! **Limits.** On an emulated machine the acts show where reads go, not how fast they are.

mod acts;
mod follow;
mod volume;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lab::daemon::Window;
use lab::machine::Machine;
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
    #[arg(long, value_delimiter = ',', value_parser = ["volume", "threads", "file", "process", "mapped"])]
    acts: Vec<String>,
}

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
    let machine = Machine::read()?;
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let data = lab::scratch(&args.data, "homenode-demo-")?;
    let data = data.path();
    let wanted = |name: &str| args.acts.is_empty() || args.acts.iter().any(|act| act == name);
    let path = args.out.join("summary.json");
    let mut summary = read_summary(&path)?;
    let mut shown = Vec::new();
    if wanted("volume") {
        println!("\n== threads move to the files they read, on homenode's own file system over two emulated nodes");
        let (act, keys) = volume::show(args, data)?;
        keys.into_iter().for_each(|(key, value)| summary[key] = value);
        shown.push(act);
    }
    if ["threads"].into_iter().chain(acts::ACTS.iter().map(|act| act.name)).any(wanted) {
        ensure!(
            machine.nodes.len() >= 2,
            "this machine has one node: every read is local, so there is nothing to show"
        );
        let cpus: usize = machine.nodes.values().map(Vec::len).sum();
        let place = match args.place.as_str() {
            "vm" => "a virtual machine (it shows where reads go, not how fast they are)",
            _ => "this machine",
        };
        println!("{} nodes, {cpus} CPUs, {place}", machine.nodes.len());
        summary["nodes"] = json!(machine.nodes.len());
        summary["where"] = json!(args.place);
    }
    if wanted("threads") {
        println!("\n== threads move to the data they read");
        let (act, keys) = follow::show(args, &machine, data)?;
        keys.into_iter().for_each(|(key, value)| summary[key] = value);
        shown.push(act);
    }
    for act in acts::ACTS.iter().filter(|act| wanted(act.name)) {
        println!("\n== {}", act.title);
        shown.push(act.show(args, &machine, data)?);
    }
    let act = |act: &Shown| {
        json!({"name": act.name, "before": {"remote_share": act.before}, "after": {"remote_share": act.after},
            "moves": act.moves, "restored": act.restored})
    };
    let mut acts: Vec<Value> = summary["acts"].as_array().cloned().unwrap_or_default();
    acts.extend(shown.iter().map(act));
    summary["acts"] = acts.into();
    fs::write(&path, format!("{summary}\n")).with_context(|| path.display().to_string())?;
    println!("\nact        remote before   after   moves   affinity as before");
    for act in &shown {
        let (before, after) = (act.before * 100.0, act.after * 100.0);
        let restored = if act.restored { "yes" } else { "no" };
        println!("{:<10} {before:>11.0} % {after:>5.1} % {:>7}   {restored}", act.name, act.moves);
    }
    println!("summary    {}", path.display());
    for act in &shown {
        ensure!(act.restored, "{}: some threads did not get back their affinity", act.name);
    }
    Ok(())
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
