//! `homenode-filebench`: one of filebench's personalities, on any file system.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use lab::filebench::{Filebench, Personality, fill, run};
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
    let done = run(&args.dir, &what, time, || match args.begin_on {
        Some(_) => of(std::process::id())?.iter().try_for_each(|thread| set_affinity(thread.tid, &anywhere)),
        None => Ok(()),
    })?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&done)?).context("stdout")
}
