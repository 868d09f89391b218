//! The single programs of N-Policy and of the ARC thesis, by where their accesses go.
//!
//! **Problem.** Both papers move one program to the node of its file, and state times. An emulated
//! machine has no such times, but it has places: which share of the accesses is remote, before and
//! after?
//!
//! **Approach.** `homenode-load` begins, and allocates its memory, on one node; its file is cached
//! on the other. Ten times a second `/proc` shows the node of its thread and that of each page of
//! its own memory; `move_pages(2)` shows the nodes of the file's pages at the beginning and the
//! end. The program goes over its file evenly, so the share of its time on a node is the share of
//! its accesses from there.
//!
//! **Limits.** One program and no other load: whether a move overloads a node is not asked here.

use std::fmt::Write as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::daemon::Daemon;
use lab::machine::Machine;
use lab::readers::Readers;
use lab::{cache, pages, threads};
use rustix::process::Signal;

use super::{Args, Numad, Way, date, read, write};

/// A program.
pub struct Load {
    /// As `--load` has it.
    pub name: &'static str,
    /// What it is and whose.
    about: &'static str,
    /// MiB of memory of its own.
    memory: u64,
    /// Options of `homenode-load`.
    options: &'static [&'static str],
    ways: &'static [Way],
}

pub const LOADS: [Load; 2] = [
    Load {
        name: "mapped",
        about: "N-Policy, 3: a program maps a file, of which all pages are on the other node",
        memory: 1,
        options: &["--mapped"],
        ways: &[Way::Kernel, Way::AutoNuma, Way::Numad, Way::Homenode("npolicy"), Way::Homenode("auto")],
    },
    Load {
        name: "reader",
        about: "ARC thesis, 5.1: a program reads a file that is cached on the other node",
        memory: 16,
        options: &[],
        ways: &[
            Way::Kernel,
            Way::AutoNuma,
            Way::Numad,
            Way::Homenode("arc"),
            Way::Homenode("arc-guarded"),
            Way::Homenode("auto"),
        ],
    },
];

/// The guard's limits for sizes, which here are those of smaller files and reads.
const LIMITS: &str = "[arc]\nmin_file = 1048576\nmin_read_size = 4096\n";
/// Time between two looks at `/proc`.
const PERIOD: Duration = Duration::from_millis(100);

/// One look.
struct Look {
    /// Seconds since homenode, or what was to place the program, began.
    at_s: f64,
    /// CPU ticks that the reading thread took since the last look.
    ticks: u64,
    /// The share of the file's pages, and of the program's own, that are on another node than the
    /// thread.
    file: f64,
    own: f64,
}

struct Run {
    way: Way,
    looks: Vec<Look>,
    /// Share of the file's pages that are on its first node at the end.
    stayed: f64,
    moves: Option<usize>,
}

impl Run {
    /// Means over these seconds, by CPU time: of the file, and of the program's own memory.
    fn remote(&self, from_s: f64, to_s: f64) -> Option<(f64, f64)> {
        let looks = || self.looks.iter().filter(|look| look.at_s >= from_s && look.at_s < to_s);
        let ticks: u64 = looks().map(|look| look.ticks).sum();
        let mean = |of: fn(&Look) -> f64| looks().map(|l| of(l) * l.ticks as f64).sum::<f64>() / ticks as f64;
        (ticks > 0).then(|| (mean(|look| look.file), mean(|look| look.own)))
    }
}

/// Runs these programs under each of their ways, and writes compare-single.md.
pub fn compare(args: &Args, machine: &Machine, dir: &Path, loads: &[&Load]) -> Result<()> {
    let mut nodes = machine.nodes.keys().copied();
    let (home, other) = (nodes.next().context("no node")?, nodes.next().context("one node")?);
    let mut text = format!(
        "# One program and its file, by where accesses go\n\nThe file has {} MiB on node {home}, and the program begins on \
         node {other}. Share of its accesses that go to another node, in three spans of seconds, by `/proc` and \
         `move_pages(2)` alone; Linux {}, {}, one boot, the program restarted for each row.\n",
        args.size,
        read("/proc/sys/kernel/osrelease")?,
        date()?,
    );
    let seconds = args.windows as f64;
    let spans = [(0.0, 5.0), (5.0, seconds / 2.0), (seconds / 2.0, seconds)];
    for load in loads {
        let file = dir.join(load.name);
        write!(text, "\n## {}\n\n| file, own memory |", load.about)?;
        spans.iter().try_for_each(|(from, to)| write!(text, " {from:.0} to {to:.0} s |"))?;
        text.push_str(
            " the file's pages on their first node at the end | moves |\n| --- | ---: | ---: | ---: | ---: | ---: |",
        );
        for way in load.ways {
            println!("{}, {}", load.name, way.name());
            cache::put(&file, args.size << 20, home)?;
            let run = one(args, machine, home, other, load, *way, &file)?;
            write!(text, "\n| {} |", run.way.name())?;
            for (from_s, to_s) in spans {
                let percent = |(file, own): (f64, f64)| format!("{:.0} %, {:.0} %", file * 100.0, own * 100.0);
                write!(text, " {} |", run.remote(from_s, to_s).map_or("–".to_owned(), percent))?;
            }
            let moves = run.moves.map_or("–".to_owned(), |moves| moves.to_string());
            write!(text, " {:.0} % | {moves} |", run.stayed * 100.0)?;
        }
        text.push('\n');
    }
    print!("\n{text}");
    write(&args.out.join("compare-single.md"), &text)
}

fn one(args: &Args, machine: &Machine, home: u32, other: u32, load: &Load, way: Way, file: &Path) -> Result<Run> {
    way.begin()?;
    let (seconds, memory) = ((args.windows + 30).to_string(), load.memory.to_string());
    let begin = machine.list_of(other);
    let options = ["--seconds", &seconds, "--duty", "0.9", "--memory", &memory, "--begin-on", &begin];
    let options = options.into_iter().chain(load.options.iter().copied()).map(AsRef::as_ref).chain([file.as_os_str()]);
    let binary = args.homenode.with_file_name("homenode-load");
    let readers = Readers::start(&binary, options)?;
    let (pid, tids) = (readers.pid(), readers.of_file(file));
    let name = pid.to_string();
    let numad = (way == Way::Numad).then(|| Numad::start(&name)).transpose()?;
    let config = args.config(LIMITS)?;
    let mut daemon = match way {
        Way::Homenode(policy) => {
            let options = ["--pid", &name, "--policy", policy].into_iter().chain(args.options.split_ascii_whitespace());
            let config = ["--config".as_ref(), config.path().as_os_str()];
            Some(Daemon::start(&args.homenode, options.map(AsRef::as_ref).chain(config))?)
        }
        _ => None,
    };
    // It observes from here on; the first window is the first that counts.
    let first = daemon.as_mut().map(Daemon::window).transpose()?;
    let pages_on = || -> Result<Vec<(u32, f64)>> {
        machine.nodes.keys().map(|node| Ok((*node, pages::share_on(file, *node)?))).collect()
    };
    let before = pages_on()?;
    let began = Instant::now();
    let mut looks = Vec::new();
    let mut last = None;
    while began.elapsed().as_secs() < args.windows as u64 {
        sleep(PERIOD);
        let reading = threads::of(pid)?.into_iter().find(|thread| tids.contains(&thread.tid)).context("no reader")?;
        let memory = threads::memory(pid)?;
        let here = machine.node_of(reading.cpu).context("a CPU of no node")?;
        let (all, there) = (memory.values().sum::<u64>(), memory.get(&here).copied().unwrap_or(0));
        let on = before.iter().find(|(node, _)| *node == here).map_or(0.0, |(_, share)| *share);
        let ticks = reading.ticks - last.replace(reading.ticks).unwrap_or(reading.ticks);
        let own = if all == 0 { 0.0 } else { 1.0 - there as f64 / all as f64 };
        looks.push(Look { at_s: began.elapsed().as_secs_f64(), ticks, file: 1.0 - on, own });
    }
    let after = pages_on()?;
    let stayed = after.iter().find(|(node, _)| *node == home).map_or(0.0, |(_, share)| *share);
    let moved = (before.iter().zip(&after)).any(|(before, after)| (before.1 - after.1).abs() > 0.01);
    ensure!(!moved || way == Way::Homenode("auto"), "{}: the file's pages moved: {before:?}, {after:?}", way.name());
    let moves = match (daemon, &numad) {
        (Some(daemon), _) => {
            let made = first.map_or(0, |window| window.moves.len());
            let rest = daemon.rest(Signal::TERM)?;
            Some(made + rest.iter().map(|window| window.moves.len()).sum::<usize>())
        }
        (None, Some(numad)) => Some(Numad::placements()?.saturating_sub(numad.placements_before)),
        (None, None) => None,
    };
    Ok(Run { way, looks, stayed, moves })
}
