//! `homenode-load`: reads cached files with a given share of a CPU for each, or forks.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use lab::load::{Reader, read};
use serde_json::json;

/// Read cached files again and again, with one thread and a given share of a CPU for each FILE.
///
/// Prints one JSON line when all threads run: the process id, and each thread's id and file. The
/// readers of a file given twice share it.
#[derive(Parser)]
struct Args {
    /// Duration in seconds
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Share of a CPU that each thread uses, 0 to 1
    #[arg(long, default_value_t = 0.25)]
    duty: f64,
    /// Load from mapped pages instead of calling `read`
    #[arg(long)]
    mapped: bool,
    /// Allocate and write so many MiB of memory before reading
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    memory: usize,
    /// Begin, and allocate memory, on these CPUs (as in `0-3,8`); afterwards the threads may run on
    /// every CPU again
    #[arg(long, value_name = "CPUS")]
    begin_on: Option<String>,
    /// Run, and allocate memory, on these CPUs only
    #[arg(long, value_name = "CPUS", conflicts_with = "begin_on")]
    on: Option<String>,
    /// Instead of reading, fork this many short-lived children a second
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "files")]
    forks: Option<u32>,
    /// Files to read
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    lab::exit(run_with(&Args::parse()))
}

fn run_with(args: &Args) -> Result<()> {
    let time = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    match args.forks {
        Some(rate) => fork(rate, time),
        None if args.files.is_empty() => bail!("nothing to read"),
        None => read_all(args, time),
    }
}

fn read_all(args: &Args, time: Duration) -> Result<()> {
    let anywhere = lab::threads::affinity()?;
    if let Some(cpus) = args.begin_on.as_ref().or(args.on.as_ref()) {
        let set = |cpus: &str| lab::threads::set_affinity(0, &lab::machine::parse_list(cpus)?);
        set(cpus).with_context(|| format!("running on CPUs {cpus}"))?;
    }
    // Not zero, so that every page is allocated.
    let memory = vec![1u8; args.memory << 20];
    let stop = AtomicBool::new(false);
    let (started, starts) = mpsc::channel();
    thread::scope(|scope| {
        let readers: Vec<_> = args
            .files
            .iter()
            .map(|file| {
                let (started, stop) = (started.clone(), &stop);
                scope.spawn(move || {
                    // The receiver lives as long as this scope.
                    let _ = started.send((rustix::thread::gettid().as_raw_nonzero().get(), file));
                    read(&Reader { file: file.clone(), duty: args.duty, mapped: args.mapped }, stop)
                })
            })
            .collect();
        let threads: Vec<_> =
            starts.iter().take(readers.len()).map(|(tid, file)| json!({"tid": tid, "file": file})).collect();
        if args.begin_on.is_some() {
            for thread in lab::threads::of(std::process::id())? {
                lab::threads::set_affinity(thread.tid, &anywhere)?;
            }
        }
        say(&json!({"pid": std::process::id(), "threads": threads}))?;
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        std::hint::black_box(&memory);
        let mut bytes = 0;
        for reader in readers {
            match reader.join() {
                Ok(read) => bytes += read?,
                Err(_) => bail!("a reader panicked"),
            }
        }
        say(&json!({"read_bytes": bytes}))
    })
}

/// Forks children that end at once, at this rate or as fast as the machine can.
fn fork(rate: u32, time: Duration) -> Result<()> {
    say(&json!({"pid": std::process::id(), "threads": []}))?;
    let began = Instant::now();
    let mut children = 0u64;
    while began.elapsed() < time {
        let due = (began.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        if children >= due {
            thread::sleep(Duration::from_millis(2));
            continue;
        }
        // SAFETY: the child does nothing but end, which is safe after a fork of a process with one
        // thread.
        match unsafe { libc::fork() } {
            // SAFETY: ends the child without running anything of the parent's.
            0 => unsafe { libc::_exit(0) },
            -1 => return Err(std::io::Error::last_os_error()).context("fork"),
            child => {
                // SAFETY: waits for our own child; no status is asked for.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                children += 1;
            }
        }
    }
    say(&json!({"forks": children, "seconds": began.elapsed().as_secs_f64()}))
}

fn say(value: &serde_json::Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush().context("stdout")
}
