//! `homenode-demo`: shows fio without and with homenode on this machine.
//!
//! **Problem.** A claim such as "the reads become local" is best believed when seen.
//!
//! **Approach.** The same four threads read files cached on one node, first while homenode only observes, then while it moves
//! them. homenode measures the remote shares; `move_pages(2)` and `/proc` show where the pages are, where the threads ran and
//! which affinities they have. The demo fails if the result is not as claimed.
//!
//! **Limits.** The kernel places unpinned threads by chance. If it happens to put them beside their data, the demo says so and
//! starts fio again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use lab::daemon::{Daemon, Window, remote_share, settled_after};
use lab::fio::Fio;
use lab::machine::Machine;
use lab::plot::{self, Series};
use lab::threads::{self, Whereabouts};
use lab::{cache, pages};
use rustix::process::Signal;

/// Threads of fio, and files.
const THREADS: usize = 4;
/// Without homenode at least this share must be remote; otherwise there is nothing to show.
const REMOTE_AT_LEAST: f64 = 0.30;
/// With homenode at most this share may be remote …
const REMOTE_AT_MOST: f64 = 0.03;
/// … after at most this many windows.
const SETTLE_WITHIN: usize = 5;
/// How often fio is started while the kernel happens to put its threads beside their data.
const TRIES: usize = 5;

/// Show fio without and with homenode on this machine.
#[derive(Parser)]
struct Args {
    /// The homenode command
    #[arg(long)]
    homenode: PathBuf,
    /// Directory for the files that fio reads; not on tmpfs
    #[arg(long)]
    data: PathBuf,
    /// Directory for summary.json and the plot
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
}

fn main() -> ExitCode {
    lab::exit(run_with(&Args::parse()))
}

fn run_with(args: &Args) -> Result<()> {
    let machine = Machine::read()?;
    ensure!(machine.nodes.len() >= 2, "this machine has one node: every read is local, so there is nothing to show");
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let data = Data::new(&args.data)?;
    let result = Demo { args, machine: &machine, files: &data.files }.run();
    drop(data);
    result
}

/// The files, removed at the end.
struct Data {
    dir: PathBuf,
    files: Vec<PathBuf>,
}

impl Data {
    fn new(dir: &Path) -> Result<Self> {
        let dir = dir.join("homenode-demo");
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let files = (0..THREADS).map(|i| dir.join(format!("file{i}"))).collect();
        Ok(Self { dir, files })
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            eprintln!("{} could not be removed: {e}", self.dir.display());
        }
    }
}

struct Demo<'a> {
    args: &'a Args,
    machine: &'a Machine,
    files: &'a [PathBuf],
}

/// The observations of one phase.
struct Phase {
    windows: Vec<Window>,
    /// Share of samples in which `/proc` showed a reader away from its data, once the reads had settled.
    away: Option<f64>,
}

impl Demo<'_> {
    fn run(&self) -> Result<()> {
        let cpus: usize = self.machine.nodes.values().map(Vec::len).sum();
        println!("{} nodes, {cpus} CPUs, {}", self.machine.nodes.len(), self.where_in_words());
        let (home, off) = self.without()?;
        let (on, restored, moves) = self.with(home)?;

        let off_share = remote_share(&off.windows).context("fio read nothing without homenode")?;
        let settled = settled_after(&on.windows, REMOTE_AT_MOST);
        let on_share = remote_share(on.windows.get(settled..).unwrap_or_default()).unwrap_or(1.0);
        let points = |phase: &Phase| {
            let mut time = 0.0;
            let point = |w: &Window| {
                time += w.window_s;
                w.remote_share.map(|share| (time, share))
            };
            phase.windows.iter().filter_map(point).collect()
        };
        let series = [
            Series { name: "without homenode".to_owned(), points: points(&off) },
            Series { name: "with homenode".to_owned(), points: points(&on) },
        ];
        let png = self.args.out.join("remote-share.png");
        plot::remote_share(&png, &format!("fio, {THREADS} threads, files cached on node {home}"), &series)?;
        let summary = format!(
            "{{\"nodes\":{},\"off\":{{\"remote_share\":{off_share:.4}}},\"on\":{{\"remote_share\":{on_share:.4},\
             \"windows_to_settle\":{settled},\"moves\":{moves}}},\"restored\":{restored},\"where\":\"{}\"}}",
            self.machine.nodes.len(),
            self.args.place
        );
        let path = self.args.out.join("summary.json");
        fs::write(&path, format!("{summary}\n")).with_context(|| path.display().to_string())?;

        println!(
            "\nremote share  {:.0} % → {:.1} %   settled after {settled} windows, {moves} moves",
            off_share * 100.0,
            on_share * 100.0
        );
        println!("plot          {}\nsummary       {}", png.display(), path.display());
        ensure!(off_share >= REMOTE_AT_LEAST, "without homenode only {:.0} % was remote", off_share * 100.0);
        ensure!(settled <= SETTLE_WITHIN, "it took {settled} windows until the reads were local");
        ensure!(on_share <= REMOTE_AT_MOST, "with homenode {:.1} % was remote", on_share * 100.0);
        ensure!(
            on.away.is_some_and(|away| away <= REMOTE_AT_MOST),
            "/proc showed threads away from their data: {:?} of the samples",
            on.away
        );
        ensure!(restored, "some threads did not get back their affinity");
        Ok(())
    }

    fn where_in_words(&self) -> &'static str {
        if self.args.place == "vm" {
            "a virtual machine (it shows where reads go, not how fast they are)"
        } else {
            "this machine"
        }
    }

    /// The first phase: homenode observes, the kernel decides. Also returns the node with the data.
    fn without(&self) -> Result<(u32, Phase)> {
        let mut last = None;
        for attempt in 0..TRIES {
            // On a large machine, where four threads fit on any node, the kernel may always choose the same one: then the data
            // is put on another node.
            let home = self.node_for(attempt)?;
            if last.as_ref().is_none_or(|(node, _)| *node != home) {
                self.put_data(home)?;
            }
            println!("\nwithout homenode: the kernel places the threads");
            let fio = Fio::start(self.files)?;
            let mut daemon = self.daemon(fio.pid(), &["--dry-run"])?;
            let phase = self.watch(&mut daemon, &fio, home, self.args.off_windows)?;
            daemon.stop(Signal::TERM)?;
            let share = remote_share(&phase.windows).unwrap_or(0.0);
            last = Some((home, phase));
            if share >= REMOTE_AT_LEAST {
                break;
            }
            println!("  the kernel happened to put the threads beside their data");
        }
        last.context("no try")
    }

    fn node_for(&self, attempt: usize) -> Result<u32> {
        let mut nodes = self.machine.nodes.keys().copied();
        let (first, second) = (nodes.next().context("no node")?, nodes.next().context("one node")?);
        Ok(if attempt < 3 { first } else { second })
    }

    fn put_data(&self, node: u32) -> Result<()> {
        for file in self.files {
            cache::put(file, self.args.size << 20, node)?;
        }
        println!(
            "fio: {THREADS} threads, unpinned, each reads a file of {} MiB that is cached on node {node} (every page, says move_pages)",
            self.args.size
        );
        Ok(())
    }

    /// The second phase: homenode moves threads. Also returns whether all affinities were restored, and the number of moves.
    fn with(&self, home: u32) -> Result<(Phase, bool, usize)> {
        println!("\nwith homenode");
        let fio = Fio::start(self.files)?;
        let before = threads::affinities(&threads::tree(fio.pid()));
        let mut daemon = self.daemon(fio.pid(), &[])?;
        let phase = self.watch(&mut daemon, &fio, home, self.args.on_windows)?;
        let during = threads::affinities(&threads::tree(fio.pid()));
        daemon.stop(Signal::TERM)?;
        let after = threads::affinities(&threads::tree(fio.pid()));
        let moved: Vec<_> = during.iter().filter(|(tid, mask)| before.get(*tid) != Some(*mask)).collect();
        println!("\naffinity of the moved threads, from /proc");
        let mut restored = true;
        for (tid, mask) in &moved {
            let (was, is) = (before.get(*tid), after.get(*tid));
            let name = |mask: Option<&String>| mask.map_or("none".to_owned(), |m| format!("CPUs {m}"));
            restored &= was == is;
            let verdict = if was == is { "as before" } else { "NOT as before" };
            println!("  tid {tid}  before {}, with homenode CPUs {mask}, now {}: {verdict}", name(was), name(is));
        }
        restored &= before == after;
        for file in self.files {
            let share = pages::share_on(file, home)?;
            ensure!(share == 1.0, "{} did not stay on node {home}", file.display());
        }
        let moves = phase.windows.iter().flat_map(|w| &w.moves).filter(|m| m.from != m.to).count();
        if moved.is_empty() && moves > 0 {
            bail!("homenode says it moved threads, but /proc shows no changed affinity");
        }
        Ok((phase, restored, moves))
    }

    fn daemon(&self, pid: u32, options: &[&str]) -> Result<Daemon> {
        let pid = pid.to_string();
        let options = options.iter().copied().chain(self.args.options.split_ascii_whitespace());
        Daemon::start(&self.args.homenode, ["--pid", &pid].into_iter().chain(options))
    }

    /// Prints windows as they come, and samples from `/proc` where the readers run.
    fn watch(&self, daemon: &mut Daemon, fio: &Fio, home: u32, windows: usize) -> Result<Phase> {
        println!("  window        read   from another node");
        let mut phase = Phase { windows: Vec::new(), away: None };
        let mut whereabouts = Whereabouts::default();
        while phase.windows.len() < windows {
            let window = daemon.window()?;
            print_window(&window);
            phase.windows.push(window);
            if phase.windows.len() > SETTLE_WITHIN {
                whereabouts.sample(&threads::of(fio.pid())?, &fio.readers, self.machine, home);
            }
        }
        phase.away = whereabouts.away();
        Ok(phase)
    }
}

fn print_window(window: &Window) {
    const WIDTH: usize = 30;
    let read = window.read_bytes as f64 / 1e6;
    match window.remote_share {
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
        println!("          {verb} {} (tid {})  {direction}  {}: {}", mv.comm, mv.tid, mv.reason, mv.why);
    }
    for mv in &window.refused {
        println!("          not moved: {} (tid {})  {}", mv.comm, mv.tid, mv.why);
    }
}
