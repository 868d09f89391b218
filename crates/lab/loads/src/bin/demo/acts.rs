//! The other acts: a file, a process with its memory, and a process that maps files.
//!
//! **Approach.** Each act puts a file on one node and starts readers on another. The share of
//! remote reads is taken from `/proc` (the node on which each reader last ran) and `move_pages(2)`
//! (the nodes of the file's pages), not from homenode.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, bail, ensure};
use lab::daemon::{Daemon, Window, last_notes};
use lab::machine::Machine;
use lab::plot::{self, Series};
use lab::readers::Readers;
use lab::{cache, pages, threads};
use rustix::process::Signal;

use crate::{Args, Shown, print_window};

/// Before its move, at least this share must be remote; otherwise there is nothing to show.
const REMOTE_AT_LEAST: f64 = 0.5;
/// After it, at most this share may be.
const REMOTE_AT_MOST: f64 = 0.03;
/// The bandwidth of the small machine whose controller the readers overload, as a share of what
/// they read.
const CROWDED: f64 = 0.4;
/// Windows with few remote reads after which a phase may end.
const SETTLED: usize = 3;
/// How often an act is shown while the kernel happens to move the readers to their data itself.
const TRIES: usize = 5;

pub(crate) struct Act {
    /// Name in the summary.
    pub name: &'static str,
    pub title: &'static str,
    policy: &'static str,
    readers: &'static [&'static str],
    /// How many threads read the file from the other node.
    away: usize,
    /// How many threads read another file on its own node, so that the node is busy. With such
    /// threads, all are bound: the policy moves the file, and the kernel must not spread them.
    at_home: usize,
    /// MiB of memory of the readers' process.
    memory: u32,
    /// At most this many windows with homenode.
    windows: usize,
}

/// The acts after the first.
pub(crate) const ACTS: &[Act] = &[
    Act {
        name: "file",
        title: "a file moves to its readers, because the memory controller of its node is overloaded (dragonfly)",
        policy: "dragonfly",
        readers: &["--duty", "0.5"],
        // Far fewer than stay: their node must not become the next overloaded one.
        away: 1,
        at_home: 4,
        memory: 0,
        windows: 40,
    },
    Act {
        name: "process",
        title: "a process and its memory move to the file it reads (arc)",
        policy: "arc",
        readers: &["--duty", "0.5"],
        away: 1,
        at_home: 0,
        memory: 48,
        windows: 20,
    },
    Act {
        name: "mapped",
        title: "a process moves to the mapped pages it touches most (npolicy)",
        policy: "npolicy",
        readers: &["--duty", "0.5", "--mapped"],
        away: 1,
        at_home: 0,
        memory: 0,
        windows: 40,
    },
];

impl Act {
    pub(crate) fn show(&self, args: &Args, machine: &Machine, data: &Path) -> Result<Shown> {
        let mut nodes = machine.nodes.keys().copied();
        let (home, other) = (nodes.next().context("no node")?, nodes.next().context("one node")?);
        let (file, busy) = (data.join(self.name), data.join(format!("{}-busy", self.name)));
        cache::put(&file, args.size << 20, home)?;
        cache::put(&busy, args.size << 20, home)?;
        println!("a file of {} MiB is cached on node {home} (every page, says move_pages)", args.size);
        let start = |file: &Path, n: usize, node: u32, memory: u32| -> Result<Readers> {
            let mut command: Vec<String> = self.readers.iter().map(|&option| option.to_owned()).collect();
            command.extend(["--seconds".to_owned(), "3600".to_owned(), "--memory".to_owned(), memory.to_string()]);
            let on = if self.at_home > 0 { "--on" } else { "--begin-on" };
            command.extend([on.to_owned(), machine.list_of(node)]);
            command.extend(std::iter::repeat_n(file.display().to_string(), n));
            Readers::start(&args.load, command)
        };
        for _ in 0..TRIES {
            let away = start(&file, self.away, other, self.memory)?;
            let threads = if self.away == 1 { "thread" } else { "threads" };
            println!("{} {threads} on node {other} read it (process {})", self.away, away.pid());
            let at_home = (self.at_home > 0).then(|| start(&busy, self.at_home, home, 0)).transpose()?;
            if let Some(at_home) = &at_home {
                println!("{} threads on node {home} read another file there (process {})", self.at_home, at_home.pid());
            }
            let stage = Stage { act: self, args, machine, file: &file, away: &away, at_home: at_home.as_ref() };
            if let Some(shown) = stage.play(home)? {
                drop((away, at_home));
                for file in [file, busy] {
                    fs::remove_file(&file).with_context(|| file.display().to_string())?;
                }
                return Ok(shown);
            }
            println!("the kernel happened to move the readers to their data; again");
        }
        bail!("the kernel moved the readers to their data itself, {TRIES} times")
    }
}

struct Stage<'a> {
    act: &'a Act,
    args: &'a Args,
    machine: &'a Machine,
    file: &'a Path,
    away: &'a Readers,
    at_home: Option<&'a Readers>,
}

/// Windows, each with the share of remote reads that the instruments show.
type Phase = Vec<(Window, f64)>;

impl Stage<'_> {
    /// Shows the act once; `None` if the kernel itself moves the readers to their data.
    fn play(&self, home: u32) -> Result<Option<Shown>> {
        let Act { name, policy, .. } = self.act;
        let pids: Vec<u32> = [Some(self.away), self.at_home].into_iter().flatten().map(Readers::pid).collect();
        let before = threads::affinities(&pids);
        println!("\nwithout homenode: it observes only");
        let config = self.config(None)?;
        let off = self.phase(&pids, &config, &["--dry-run", "--policy", "nthread"], 4)?;
        let mean = |phase: &[(Window, f64)]| phase.iter().map(|w| w.1).sum::<f64>() / phase.len().max(1) as f64;
        let was = mean(&off);
        if was < REMOTE_AT_LEAST {
            return Ok(None);
        }
        println!("\nwith homenode, policy {policy}");
        let config = self.config(self.at_home.is_some().then(|| bandwidth(&off)))?;
        let memory = self.memory_on(home)?;
        let on = self.phase(&pids, &config, &["--policy", policy], self.act.windows)?;
        let restored = threads::affinities(&pids) == before;
        let is = mean(on.get(on.len().saturating_sub(SETTLED)..).unwrap_or_default());
        let moves = on.iter().flat_map(|w| &w.0.moves).filter(|mv| mv.from != mv.to).count();
        if moves == 0 && is <= REMOTE_AT_MOST {
            return Ok(None);
        }
        println!(
            "\nthe file   {:.0} % of its pages are on node {home} (move_pages)",
            pages::share_on(self.file, home)? * 100.0
        );
        if self.act.memory > 0 {
            let now = self.memory_on(home)?;
            println!(
                "the memory {:.0} % of it was on node {home}, now {:.0} % (numa_maps)",
                memory * 100.0,
                now * 100.0
            );
            ensure!(now > 0.95, "only {:.0} % of the process's memory is on node {home}", now * 100.0);
        }
        let png = self.args.out.join(format!("{name}.png"));
        let series = [("without homenode", &off), ("with homenode", &on)].map(|(name, phase)| Series {
            name: name.to_owned(),
            points: plot::over_time(phase.iter().map(|(window, share)| (window.window_s, Some(*share)))),
        });
        plot::remote_share(&png, self.act.title.split_once(" (").map_or(self.act.title, |t| t.0), &series)?;
        println!("remote     {:.0} % → {:.1} %, {moves} moves\nplot       {}", was * 100.0, is * 100.0, png.display());
        let notes = || last_notes(&on.iter().map(|w| w.0.clone()).collect::<Vec<_>>());
        ensure!(is <= REMOTE_AT_MOST, "with homenode {:.1} % was remote; notes: {}", is * 100.0, notes());
        Ok(Some(Shown { name, before: was, after: is, moves, restored }))
    }

    /// Runs homenode until few reads have been remote for some windows, or these windows are over.
    fn phase(&self, pids: &[u32], config: &Path, options: &[&str], windows: usize) -> Result<Phase> {
        let mut command: Vec<String> = pids.iter().flat_map(|pid| ["--pid".to_owned(), pid.to_string()]).collect();
        command.extend(options.iter().map(|&option| option.to_owned()));
        command.extend(self.args.options.split_ascii_whitespace().map(str::to_owned));
        command.extend(["--config".to_owned(), config.display().to_string()]);
        let mut daemon = Daemon::start(&self.args.homenode, command)?;
        println!("  window        read   from another node (/proc and move_pages)");
        let mut phase = Phase::new();
        let settled =
            |phase: &Phase| phase.len() >= SETTLED && phase.iter().rev().take(SETTLED).all(|w| w.1 <= REMOTE_AT_MOST);
        while phase.len() < windows && !settled(&phase) {
            let window = daemon.window()?;
            let share = self.remote()?;
            print_window(&window, Some(share));
            phase.push((window, share));
        }
        daemon.stop(Signal::TERM)?;
        Ok(phase)
    }

    /// Share of the file's pages that are on another node than its readers, from `/proc` and
    /// `move_pages`.
    fn remote(&self) -> Result<f64> {
        let nodes = pages::nodes_of(self.file)?;
        let all: usize = nodes.values().sum();
        let on = |node: u32| i32::try_from(node).ok().and_then(|n| nodes.get(&n)).copied().unwrap_or(0);
        let readers = self.away.of_file(self.file);
        let mut remote = 0.0;
        let mut seen = 0.0;
        for thread in threads::of(self.away.pid())?.iter().filter(|t| readers.contains(&t.tid)) {
            let node = self.machine.node_of(thread.cpu).context("a CPU without a node")?;
            remote += 1.0 - on(node) as f64 / all.max(1) as f64;
            seen += 1.0;
        }
        ensure!(seen > 0.0, "the readers ended");
        Ok(remote / seen)
    }

    /// Share of the readers' own memory that is on this node.
    fn memory_on(&self, node: u32) -> Result<f64> {
        let nodes = threads::memory(self.away.pid())?;
        let all: u64 = nodes.values().sum();
        Ok(nodes.get(&node).copied().unwrap_or(0) as f64 / all.max(1) as f64)
    }

    /// The configuration, with a node bandwidth if one is given: that of a small machine, whose
    /// controller these readers fill.
    fn config(&self, bandwidth: Option<f64>) -> Result<PathBuf> {
        let base = self.args.config.as_deref().map(fs::read_to_string).transpose();
        let mut text = base.context("the configuration")?.unwrap_or_default();
        if let Some(bandwidth) = bandwidth {
            // Readers of an emulated machine are twice as fast in one second as in the next.
            let bandwidth = CROWDED * bandwidth;
            println!(
                "the limit of each node's memory in homenode.toml: {:.0} MB/s, {:.0} % of what is read now",
                bandwidth / 1e6,
                CROWDED * 100.0
            );
            for node in self.machine.nodes.keys() {
                let limit = format!("{bandwidth:.0} B/s");
                text += &format!("\n[node.{node}]\nread_bw_max = \"{limit}\"\nwrite_bw_max = \"{limit}\"\n");
            }
        }
        let path = self.args.data.join(format!("{}.toml", self.act.name));
        let write = |path: &Path| -> io::Result<()> { fs::write(path, &text) };
        write(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

/// Bytes read per second.
fn bandwidth(phase: &Phase) -> f64 {
    let (bytes, seconds) = phase.iter().fold((0, 0.0), |sum, w| (sum.0 + w.0.read_bytes, sum.1 + w.0.window_s));
    bytes as f64 / f64::max(seconds, 1e-3)
}
