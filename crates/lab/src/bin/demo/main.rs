//! `homenode-demo`: shows each of homenode's moves on this machine, in four acts.
//!
//! **Problem.** A claim such as "the reads become local" is best believed when seen.
//!
//! **Approach.** Each act runs a workload first while homenode only observes, then while it moves threads, a file or a process.
//! `move_pages(2)` and `/proc` show where pages are, where threads ran and which affinities they have. The demo fails if the
//! result is not as claimed.
//!
//! **Limits.** On an emulated machine the acts show where reads go, not how fast they are.

mod acts;
mod follow;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lab::daemon::Window;
use lab::machine::Machine;
use serde_json::json;

/// Show homenode's moves on this machine, in four acts.
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
    #[arg(long, value_delimiter = ',', value_parser = ["threads", "file", "process", "mapped"])]
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
    ensure!(machine.nodes.len() >= 2, "this machine has one node: every read is local, so there is nothing to show");
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let cpus: usize = machine.nodes.values().map(Vec::len).sum();
    let place = match args.place.as_str() {
        "vm" => "a virtual machine (it shows where reads go, not how fast they are)",
        _ => "this machine",
    };
    println!("{} nodes, {cpus} CPUs, {place}", machine.nodes.len());
    let data = Data::new(&args.data)?;
    let wanted = |name: &str| args.acts.is_empty() || args.acts.iter().any(|act| act == name);
    let mut summary = json!({"nodes": machine.nodes.len(), "where": args.place});
    let mut shown = Vec::new();
    if wanted("threads") {
        println!("\n== threads move to the data they read");
        let (act, keys) = follow::show(args, &machine, &data)?;
        keys.into_iter().for_each(|(key, value)| summary[key] = value);
        shown.push(act);
    }
    for act in acts::ACTS.iter().filter(|act| wanted(act.name)) {
        println!("\n== {}", act.title);
        shown.push(act.show(args, &machine, &data)?);
    }
    let act = |act: &Shown| {
        json!({"name": act.name, "before": {"remote_share": act.before}, "after": {"remote_share": act.after},
            "moves": act.moves, "restored": act.restored})
    };
    summary["acts"] = shown.iter().map(act).collect();
    let path = args.out.join("summary.json");
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

/// A directory for files, removed at the end.
struct Data {
    dir: PathBuf,
}

impl Data {
    fn new(dir: &Path) -> Result<Self> {
        let dir = dir.join("homenode-demo");
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self { dir })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            eprintln!("{} could not be removed: {e}", self.dir.display());
        }
    }
}

/// Prints a window: its number, what homenode saw, the share of remote reads, and the moves with their reasons.
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
