//! homenode leaves custom affinities alone and restores those it changed, however it ends.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lab::daemon::Daemon;
use lab::readers::Readers;
use rustix::process::Signal;
use testing::{Case, cases};

use crate::lab_bench::{Bench, Outcome, cpus, home_of, homenode, masks, set_mask, windows, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[nodes([2])]
    a_custom_affinity_is_left_alone,
    sigint_restores,
    a_normal_end_restores,
    restore_after_kill_leaves_later_changes_alone,
    the_next_start_after_kill_restores,
];

type Masks = BTreeMap<u32, String>;

/// One thread is bound to a whole node and one to a single CPU, both away from their data; two more
/// may be moved.
fn a_custom_affinity_is_left_alone() -> Outcome {
    let bench = Bench::new()?;
    let files = bench.files(0, 4)?;
    let readers = bench.readers(0.25, &files)?;
    let away = cpus(&bench.machine, 1)?;
    let [whole, single, free @ ..] = readers.threads.as_slice() else { anyhow::bail!("no readers") };
    set_mask(whole.tid, away)?;
    set_mask(single.tid, away.get(..1).context("a CPU")?)?;
    let own: Masks = masks(readers.pid()).into_iter().filter(|(t, _)| [whole.tid, single.tid].contains(t)).collect();
    let mut daemon = bench.daemon_for(&[readers.pid()], &[])?;
    for window in windows(&mut daemon, 8)? {
        let moved = window.moves.iter().find(|m| own.contains_key(&m.tid));
        ensure!(moved.is_none(), "moved a thread with a custom affinity: {moved:?}");
        let now = masks(readers.pid());
        ensure!(own.iter().all(|(tid, mask)| now.get(tid) == Some(mask)), "before {own:?}, now {now:?}");
    }
    let free: Vec<u32> = free.iter().map(|t| t.tid).collect();
    let nodes = bench.nodes_of(readers.pid(), &free)?;
    ensure!(nodes.values().all(|n| *n == Some(0)), "a movable thread is not at home: {nodes:?}");
    daemon.stop(Signal::TERM)?;
    let now = masks(readers.pid());
    ensure!(
        own.iter().all(|(tid, mask)| now.get(tid) == Some(mask)),
        "changed at the end: before {own:?}, now {now:?}"
    );
    Ok(())
}

/// Readers of both nodes' data, at least one of which homenode has moved.
struct Moved {
    bench: Bench,
    readers: Readers,
    daemon: Daemon,
    before: Masks,
    during: Masks,
}

impl Moved {
    /// Tries again where the kernel brings the readers home before homenode does, or where homenode
    /// ends before a move.
    fn new(options: &[&str]) -> Result<Self> {
        let bench = Bench::new()?;
        let files = [bench.files(0, 2)?, bench.files(1, 2)?].concat();
        let mut last = None;
        for _ in 0..3 {
            let readers = bench.readers_away(0.25, &files, home_of)?;
            let before = masks(readers.pid());
            let mut daemon = bench.daemon_for(&[readers.pid()], options)?;
            match windows_until(&mut daemon, 10, "move", |window| Ok(!window.moves.is_empty())) {
                Ok(_) => {
                    let during = masks(readers.pid());
                    ensure!(during != before, "homenode reports a move, but /proc shows the same masks: {before:?}");
                    return Ok(Self { bench, readers, daemon, before, during });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt")?)
    }

    /// Threads whose affinity homenode changed.
    fn changed(&self) -> Vec<u32> {
        self.during.iter().filter(|(tid, mask)| self.before.get(*tid) != Some(*mask)).map(|(tid, _)| *tid).collect()
    }
}

/// What SIGTERM restores, `reads_of_fio_become_and_stay_local` checks.
fn sigint_restores() -> Outcome {
    let Moved { readers, daemon, before, .. } = Moved::new(&[])?;
    let (end, status) = daemon.stop(Signal::INT)?;
    ensure!(masks(readers.pid()) == before, "before {before:?}, after {:?}", masks(readers.pid()));
    ensure!(status.success(), "{status}");
    ensure!(end.is_some_and(|end| end.restored > 0 && end.failed == 0), "{end:?}");
    Ok(())
}

fn a_normal_end_restores() -> Outcome {
    // homenode ends after the last window.
    let Moved { readers, mut daemon, before, .. } = Moved::new(&["--windows", "6"])?;
    while daemon.window().is_ok() {}
    ensure!(masks(readers.pid()) == before, "before {before:?}, after {:?}", masks(readers.pid()));
    Ok(())
}

fn restore_after_kill_leaves_later_changes_alone() -> Outcome {
    let moved = Moved::new(&[])?;
    let changed = moved.changed();
    let Moved { bench, readers, daemon, mut before, .. } = moved;
    daemon.stop(Signal::KILL)?;
    let left = masks(readers.pid());
    ensure!(changed.iter().all(|tid| left.get(tid) != before.get(tid)), "a killed homenode restored something");
    // Another program changes one of them: homenode must leave that one alone.
    let theirs = *changed.first().context("a moved thread")?;
    set_mask(theirs, cpus(&bench.machine, 1)?.get(..1).context("a CPU")?)?;
    before.insert(theirs, masks(readers.pid()).remove(&theirs).context("its mask")?);
    restore(&bench)?;
    ensure!(masks(readers.pid()) == before, "expected {before:?}, found {:?}", masks(readers.pid()));
    Ok(())
}

fn the_next_start_after_kill_restores() -> Outcome {
    let Moved { bench, readers, daemon, before, .. } = Moved::new(&[])?;
    daemon.stop(Signal::KILL)?;
    ensure!(masks(readers.pid()) != before, "a killed homenode restored something");
    // The next run observes only this test, which reads nothing: every change is a restoration.
    let mut next = bench.daemon_for(&[std::process::id()], &[])?;
    next.window()?;
    ensure!(masks(readers.pid()) == before, "before {before:?}, after {:?}", masks(readers.pid()));
    ensure!(next.recovered.is_some_and(|r| r.restored > 0), "it did not report that: {:?}", next.recovered);
    next.stop(Signal::TERM)?;
    Ok(())
}

fn restore(bench: &Bench) -> Result<()> {
    let output = Command::new(homenode())
        .args(["restore", "--state-dir"])
        .arg(bench.state_dir())
        .output()
        .context("homenode restore")?;
    say!("{}", String::from_utf8_lossy(&output.stdout).trim());
    ensure!(output.status.success(), "restore: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}
