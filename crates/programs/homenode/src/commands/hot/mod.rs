//! `homenode hot`: which mapped file data a process uses, and on which node it is; or which ranges
//! of files are read ([`files`]).
//!
//! **Problem.** A process can hold the lock of its memory for as long as it likes (a fault that a
//! FUSE server of its own does not answer). Whatever asks the kernel about that memory then waits.
//!
//! **Approach.** A thread of its own asks; the command waits for it with an eye on Ctrl-C and the
//! clock.
//!
//! **Limits.** A thread that waits in the kernel ends with the command.

pub(super) mod files;
mod map;
mod view;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use command::args::{Global, pid, seconds};
use command::machine;
use linux::threads::Threads;
use observe::ObserveError;
use observe::mapped::{Mapped, Region};
use serde_json::json;
use topology::Topology;
use view::View;

use crate::commands::plane;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::output::{self, progress};
use crate::signals::Stop;

/// `homenode hot`.
#[derive(Debug, Args)]
pub struct HotArgs {
    /// Files whose reads to look at
    #[arg(value_name = "FILE", required_unless_present = "pid", conflicts_with = "pid")]
    pub files: Vec<PathBuf>,
    /// Process whose mapped files to look at
    #[arg(long, value_name = "PID", value_parser = pid)]
    pub pid: Option<u32>,
    /// Watch for so long; longer if sampling would slow the process down by more than 5 %
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub seconds: f64,
}

/// Samples: as many as a page remembers.
const SAMPLES: u32 = 8;

/// Share of its time that the process may lose by sampling: five times as much as in the daemon, as
/// it was asked for and ends soon.
const SHARE: f64 = 0.05;

/// How long beyond a sample's time to wait for an answer of the kernel.
const PATIENCE: Duration = Duration::from_secs(10);

/// Message of the sampling thread.
enum News {
    /// So many samples are done; the next comes after this time.
    Sampled(u32, Duration),
    Ended(Result<Seen, Failure>),
}

/// Result of the samples.
struct Seen {
    views: Vec<View>,
    notes: Vec<String>,
    samples: u32,
    took_s: f64,
}

/// Prints how hot the mapped data of a process is.
pub fn run(global: &Global, args: &HotArgs) -> Result<Exit, Failure> {
    let Some(pid) = args.pid else { return files::run(global, &args.files, args.seconds) };
    // The kernel answers as for a debugger: not about a process of another user, or one that runs
    // with more rights.
    let maps = Path::new(plane::PROC).join(pid.to_string()).join("maps");
    if let Err(cause) = File::open(&maps) {
        return Err(match cause.kind() {
            std::io::ErrorKind::NotFound => Failure::new(Exit::Usage, format!("process {pid}"), "no such process"),
            _ => Failure::io("open", &maps, &cause),
        });
    }
    if Threads::new(Path::new(plane::PROC)).stat(pid).ok().flatten().is_some_and(|stat| stat.kernel_thread) {
        return Err(Failure::new(Exit::Usage, format!("process {pid}"), "is a kernel thread"));
    }
    let topology = machine::read(Path::new(machine::SYS), &Config::load(global.config.as_deref())?)?;
    let stop = Stop::or_killed()?;
    let seen = watched(global, args, pid, topology, &stop)?;
    let process = format!("{} (pid {pid})", plane::name_of(pid)).trim_start().to_owned();
    let told = json!({
        "pid": pid,
        "samples": seen.samples,
        "seconds": seen.took_s,
        "regions": seen.views.iter().map(View::json).collect::<Vec<_>>(),
        "notes": seen.notes,
    });
    output::tell(global.json, &told, || {
        let style = map::Style::of_stdout();
        map::text(&process, &seen.views, seen.samples, seen.took_s, style) + &output::notes(&seen.notes)
    })?;
    Ok(Exit::Done)
}

/// Whether a thread of ours waits in the kernel for what no signal but SIGKILL ends, as for a lock.
fn waits(tid: u32) -> bool {
    let stat = fs::read_to_string(format!("{}/self/task/{tid}/stat", plane::PROC)).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
}

fn watched(global: &Global, args: &HotArgs, pid: u32, topology: Topology, stop: &Stop) -> Result<Seen, Failure> {
    let (tell, news) = mpsc::channel();
    let enough = Arc::new(AtomicBool::new(false));
    let period = Duration::from_secs_f64(args.seconds / f64::from(SAMPLES));
    let (ended, tid) = (enough.clone(), Arc::new(AtomicU32::new(0)));
    let own = tid.clone();
    let sampler = thread::spawn(move || {
        own.store(linux::threads::own_tid(), Ordering::Relaxed);
        let seen = sample(pid, period, &topology, &ended, &tell);
        // Nobody listens any more if the command has ended.
        let _ = tell.send(News::Ended(seen));
    });
    let bar = progress::bar(global.json, u64::from(SAMPLES), "{wide_bar} {pos} of {len} samples  {elapsed}");
    let mut patience = Instant::now() + PATIENCE;
    let seen = loop {
        match news.recv_timeout(Duration::from_millis(100)) {
            Ok(News::Sampled(done, next)) => {
                bar.set_position(u64::from(done));
                patience = Instant::now() + next + PATIENCE;
            }
            Ok(News::Ended(seen)) => break seen,
            Err(RecvTimeoutError::Timeout) if Instant::now() > patience => {
                let why = match waits(tid.load(Ordering::Relaxed)) {
                    true => "the kernel does not answer about its memory: something holds its lock",
                    false => "its memory could not be looked at in time",
                };
                break Err(Failure::new(Exit::Partly, format!("process {pid}"), why));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                break Err(Failure::new(Exit::Partly, format!("process {pid}"), "the sampling thread has failed"));
            }
        }
        if stop.requested() && !enough.swap(true, Ordering::Relaxed) {
            sampler.thread().unpark();
            patience = Instant::now() + PATIENCE;
        }
    };
    bar.finish_and_clear();
    seen
}

/// Takes the samples, as often as the time and the budget allow.
fn sample(
    pid: u32,
    period: Duration,
    topology: &Topology,
    enough: &AtomicBool,
    tell: &Sender<News>,
) -> Result<Seen, Failure> {
    let cannot = |e: ObserveError| {
        let failure = Failure::from_error(Exit::Unsupported, "cannot observe", &e);
        match rustix::process::geteuid().is_root() {
            true => failure,
            false => failure.hint("this needs root: try sudo"),
        }
    };
    let ended = || Failure::new(Exit::Partly, format!("process {pid}"), "it has ended");
    let mut mapped = Mapped::open(Path::new(plane::PROC), topology).map_err(cannot)?;
    let begun = Instant::now();
    // The first only clears the bits.
    let mut cost = mapped.sample_one(pid).map_err(cannot)?.ok_or_else(ended)?;
    let (mut samples, mut longest) = (0, period);
    while samples < SAMPLES && !enough.load(Ordering::Relaxed) {
        let pause = period.max(Duration::from_secs_f64(cost.lost_s / SHARE));
        longest = longest.max(pause);
        let _ = tell.send(News::Sampled(samples, pause));
        let until = Instant::now() + pause;
        while !enough.load(Ordering::Relaxed) {
            match until.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => thread::park_timeout(left),
                _ => break,
            }
        }
        cost = mapped.sample_one(pid).map_err(cannot)?.ok_or_else(ended)?;
        samples += 1;
    }
    let took_s = begun.elapsed().as_secs_f64();
    let views = mapped.regions(pid).into_iter().map(|region| View::new(region, path_of(pid, region)));
    let mut notes = mapped.notes(pid);
    if longest > period {
        let s = longest.as_secs_f64();
        notes.push(format!("{s:.1} s between samples: more often would slow the process down by more than 5 %"));
    }
    Ok(Seen { views: views.collect(), notes, samples, took_s })
}

/// The path of a mapped file; else its device and inode.
fn path_of(pid: u32, region: &Region) -> String {
    let mapping = &region.mapping;
    let link = format!("{}/{pid}/map_files/{:x}-{:x}", plane::PROC, mapping.start, mapping.end);
    match fs::read_link(link) {
        Ok(path) => linux::shown(path.as_os_str()),
        // The kernel's own form of device numbers: 20 bits for the minor.
        Err(_) => format!("device {}:{} inode {}", mapping.dev >> 20, mapping.dev & 0xf_ffff, mapping.ino),
    }
}
