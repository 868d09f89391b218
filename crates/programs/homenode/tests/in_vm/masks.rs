//! homenode leaves custom affinities alone and restores those it changed, however it ends.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use lab::daemon::Daemon;
use lab::readers::Readers;
use rustix::process::Signal;
use testing::{Case, cases};

use crate::lab_bench::{Bench, Outcome, cpus, home_of, masks, set_mask, windows_until};
use crate::nodes;

pub const CASES: &[Case] = cases![[nodes([2])] custom_affinities_stay_and_changed_ones_come_back];

type Masks = BTreeMap<u32, String>;

/// Readers of both nodes' data. Two of them are bound by hand, to a whole node and to a single CPU,
/// away from their data; homenode may move the others.
struct Load {
    bench: Bench,
    readers: Readers,
    bound: [u32; 2],
    before: Masks,
}

/// The same readers under three daemons, each of which ends in another way. What SIGTERM restores,
/// `reads_of_fio_become_and_stay_local` checks.
fn custom_affinities_stay_and_changed_ones_come_back() -> Outcome {
    let bench = Bench::new()?;
    let readers = bench.readers(0.2, &[bench.files(0, 4)?, bench.files(1, 2)?].concat())?;
    let away = cpus(&bench.machine, 1)?;
    let [whole, single, ..] = readers.threads.as_slice() else { anyhow::bail!("no readers") };
    set_mask(whole.tid, away)?;
    set_mask(single.tid, away.get(..1).context("a CPU")?)?;
    let (bound, before) = ([whole.tid, single.tid], masks(readers.pid()));
    let mut load = Load { bench, readers, bound, before };
    load.a_custom_affinity_is_left_alone().context("a_custom_affinity_is_left_alone")?;
    load.restore_after_kill_leaves_later_changes_alone().context("restore_after_kill_leaves_later_changes_alone")
}

impl Load {
    fn daemon(&self, options: &[&str]) -> Result<Daemon> {
        self.bench.send_away(&self.readers, home_of)?;
        self.bench.daemon_for(&[self.readers.pid()], options)
    }

    /// Threads whose affinity homenode has changed. All of them are at home.
    fn changed(&self) -> Result<Vec<u32>> {
        let now = masks(self.readers.pid());
        let mut changed = Vec::new();
        for thread in &self.readers.threads {
            let (mask, machine) = (now.get(&thread.tid).context("a reader ended")?, &self.bench.machine);
            if self.before.get(&thread.tid) != Some(mask) {
                ensure!(
                    !self.bound.contains(&thread.tid),
                    "bound by hand, and changed: {:?}, now {now:?}",
                    self.before
                );
                ensure!(*mask == machine.list_of(home_of(&thread.file)), "not at home: {thread:?}, {mask}");
                changed.push(thread.tid);
            }
        }
        Ok(changed)
    }

    fn as_before(&self) -> Outcome {
        let now = masks(self.readers.pid());
        ensure!(now == self.before, "before {:?}, now {now:?}", self.before);
        Ok(())
    }

    /// homenode is interrupted once it has moved something, and eight windows are over.
    fn a_custom_affinity_is_left_alone(&self) -> Outcome {
        let mut daemon = self.daemon(&[])?;
        let mut changed = 0;
        for number in 1..=20 {
            let window = daemon.window()?;
            let moved = window.moves.iter().find(|mv| self.bound.contains(&mv.tid));
            ensure!(moved.is_none(), "moved a thread with a custom affinity: {moved:?}");
            changed = self.changed()?.len();
            match changed {
                0 => self.bench.send_away(&self.readers, home_of)?,
                _ if number >= 8 => break,
                _ => (),
            }
        }
        ensure!(changed > 0, "nothing was moved");
        let (_, status) = daemon.stop(Signal::INT)?;
        ensure!(status.success(), "{status}");
        self.as_before()
    }

    /// The next start restores what a killed one has left, but for what another program has changed
    /// since.
    fn restore_after_kill_leaves_later_changes_alone(&mut self) -> Outcome {
        let mut daemon = self.daemon(&[])?;
        windows_until(&mut daemon, 20, "moves of two readers", |_| {
            let moved = self.changed()?.len() >= 2;
            if !moved {
                self.bench.send_away(&self.readers, home_of)?;
            }
            Ok(moved)
        })?;
        daemon.stop(Signal::KILL)?;
        let changed = self.changed()?;
        ensure!(changed.len() >= 2, "a killed homenode restored something");
        let theirs = *changed.first().context("a moved thread")?;
        set_mask(theirs, cpus(&self.bench.machine, 1)?.get(..1).context("a CPU")?)?;
        self.before.insert(theirs, masks(self.readers.pid()).remove(&theirs).context("its mask")?);
        // It observes only this test, which reads nothing: every change is a restoration.
        let mut next = self.bench.daemon_for(&[std::process::id()], &[])?;
        next.window()?;
        self.as_before()?;
        ensure!(next.recovered.as_ref().is_some_and(|r| r.restored > 0), "not reported: {:?}", next.recovered);
        let (_, status) = next.stop(Signal::INT)?;
        ensure!(status.success(), "{status}");
        self.as_before()
    }
}
