//! `homenode-filebench`: one of filebench's personalities, on any file system.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lab::filebench::{Filebench, Personality, Slow, fill, run};
use lab::threads::{affinity, of, set_affinity};

/// Work like one of filebench's personalities. Prints one JSON line with what was done.
#[derive(Parser)]
struct Args {
    /// fileserver, webserver, webproxy, varmail or videoserver
    #[arg(long, value_parser = |name: &str| Personality::named(name).ok_or("no such personality"))]
    personality: Personality,
    /// Directory of the files
    #[arg(long)]
    dir: PathBuf,
    /// Make the files, and end
    #[arg(long)]
    fill: bool,
    /// Files
    #[arg(long)]
    files: u64,
    /// Bytes of a file
    #[arg(long)]
    file_size: u64,
    /// Bytes of a call [default: the personality's, 1 MiB or for videoserver 256 KiB]
    #[arg(long)]
    io_size: Option<u64>,
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Duration in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Begin on these CPUs (as in `0-3,8`); afterwards the threads may run on every CPU again
    #[arg(long, value_name = "CPUS")]
    begin_on: Option<String>,
    /// Picking a file holds the lock of the file set for the time of filebench's, so many times as
    /// slow
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
    /// The CPUs of one node (as in `0-3,8`), where the lock moves from node to node; given again,
    /// of the next
    #[arg(long, value_name = "CPUS", requires = "scale")]
    node: Vec<String>,
}

fn main() -> ExitCode {
    lab::exit(work(&Args::parse()))
}

fn work(args: &Args) -> Result<()> {
    let what = Filebench {
        personality: args.personality,
        threads: args.threads,
        files: args.files as f64,
        file_size: args.file_size as f64,
        io_size: args.io_size.map_or(args.personality.io_size(), |bytes| bytes.max(1) as f64),
    };
    if args.fill {
        return fill(&args.dir, &what);
    }
    let time = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    let anywhere = affinity()?;
    if let Some(cpus) = &args.begin_on {
        set_affinity(0, &lab::machine::parse_list(cpus)?).with_context(|| format!("--begin-on {cpus}"))?;
    }
    let slow = args.scale.map(|scale| slow(scale, &args.node)).transpose()?;
    let done = run(&args.dir, &what, slow.as_ref(), time, || match args.begin_on {
        Some(_) => of(std::process::id())?.iter().try_for_each(|thread| set_affinity(thread.tid, &anywhere)),
        None => Ok(()),
    })?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&done)?).context("stdout")
}

/// The lock of software so many times as slow, on nodes of these CPUs.
fn slow(scale: f64, nodes: &[String]) -> Result<Slow> {
    ensure!((1.0..=1e6).contains(&scale), "--scale {scale}: it must be 1 to 1000000");
    let nodes: Vec<Vec<u32>> = nodes
        .iter()
        .map(|cpus| lab::machine::parse_list(cpus).with_context(|| format!("--node {cpus}")))
        .collect::<Result<_>>()?;
    let end = nodes.iter().flatten().max().map_or(0, |last| last + 1);
    let of = |cpu: u32| nodes.iter().position(|cpus| cpus.contains(&cpu)).unwrap_or(usize::MAX);
    Ok(Slow { scale, node_of_cpu: (0..end).map(of).collect() })
}
