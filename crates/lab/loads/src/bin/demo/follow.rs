//! The first act: threads follow the data that they read (NThread).
//!
//! **Approach.** The same four threads of fio read files cached on one node, first while homenode
//! only observes, then while it moves them. homenode measures the remote shares; `move_pages(2)`
//! and `/proc` show where the pages are, where the threads ran and which affinities they have.
//!
//! **Limits.** The kernel places unpinned threads by chance. If it happens to put them beside their
//! data, the demo says so and starts fio again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use lab::daemon::{Daemon, Window, remote_share, settled_after};
use lab::fio::Fio;
use lab::machine::Machine;
use lab::plot::{self, Series};
use lab::threads::{self, Whereabouts};
use lab::{cache, pages};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Args, Shown, print_window};

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

/// Shows the act. Also returns its keys of the summary.
pub(crate) fn show(args: &Args, machine: &Machine, data: &Path) -> Result<(Shown, Vec<(&'static str, Value)>)> {
    let files: Vec<PathBuf> = (0..THREADS).map(|i| data.join(format!("file{i}"))).collect();
    let shown = Demo { args, machine, files: &files }.run();
    for file in files {
        fs::remove_file(&file).with_context(|| file.display().to_string())?;
    }
    shown
}

struct Demo<'a> {
    args: &'a Args,
    machine: &'a Machine,
    files: &'a [PathBuf],
}

struct Phase {
    windows: Vec<Window>,
    /// Share of samples in which `/proc` showed a reader away from its data, once the reads had
    /// settled.
    away: Option<f64>,
}

impl Demo<'_> {
    fn run(&self) -> Result<(Shown, Vec<(&'static str, Value)>)> {
        let (home, off) = self.without()?;
        let (on, restored, moves) = self.with(home)?;

        let off_share = remote_share(&off.windows).context("fio read nothing without homenode")?;
        let settled = settled_after(&on.windows, REMOTE_AT_MOST);
        let on_share = remote_share(on.windows.get(settled..).unwrap_or_default()).unwrap_or(1.0);
        let series = [("without homenode", &off), ("with homenode", &on)].map(|(name, phase)| Series {
            name: name.to_owned(),
            points: plot::over_time(phase.windows.iter().map(|w| (w.window_s, w.remote_share))),
        });
        let png = self.args.out.join("remote-share.png");
        plot::remote_share(&png, &format!("fio, {THREADS} threads, files cached on node {home}"), &series)?;
        println!(
            "\nremote share  {:.0} % → {:.1} %   settled after {settled} windows, {moves} moves",
            off_share * 100.0,
            on_share * 100.0
        );
        println!("plot          {}", png.display());
        ensure!(off_share >= REMOTE_AT_LEAST, "without homenode only {:.0} % was remote", off_share * 100.0);
        ensure!(settled <= SETTLE_WITHIN, "it took {settled} windows until the reads were local");
        ensure!(on_share <= REMOTE_AT_MOST, "with homenode {:.1} % was remote", on_share * 100.0);
        ensure!(
            on.away.is_some_and(|away| away <= REMOTE_AT_MOST),
            "/proc showed threads away from their data: {:?} of the samples",
            on.away
        );
        let keys = vec![
            ("off", json!({"remote_share": off_share})),
            ("on", json!({"remote_share": on_share, "windows_to_settle": settled, "moves": moves})),
            ("restored", json!(restored)),
        ];
        Ok((Shown { name: "threads", before: off_share, after: on_share, moves, restored }, keys))
    }

    /// The first phase: homenode observes, the kernel decides. Also returns the node with the data.
    fn without(&self) -> Result<(u32, Phase)> {
        let mut last = None;
        for attempt in 0..TRIES {
            // On a large machine, where four threads fit on any node, the kernel may always choose
            // the same one: then the data is put on another node.
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

    /// The second phase: homenode moves threads. Also returns whether all affinities were restored,
    /// and the number of moves.
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
        let config = self.args.config.as_deref().and_then(|path| path.to_str());
        let config = config.into_iter().flat_map(|path| ["--config", path]);
        Daemon::start(&self.args.homenode, ["--pid", &pid].into_iter().chain(options).chain(config))
    }

    /// Prints windows as they come, and samples from `/proc` where the readers run.
    fn watch(&self, daemon: &mut Daemon, fio: &Fio, home: u32, windows: usize) -> Result<Phase> {
        println!("  window        read   from another node");
        let mut phase = Phase { windows: Vec::new(), away: None };
        let mut whereabouts = Whereabouts::default();
        while phase.windows.len() < windows {
            let window = daemon.window()?;
            print_window(&window, window.remote_share);
            phase.windows.push(window);
            if phase.windows.len() > SETTLE_WITHIN {
                whereabouts.sample(&threads::of(fio.pid())?, &fio.readers, self.machine, home);
            }
        }
        phase.away = whereabouts.away();
        Ok(phase)
    }
}
