//! Two nodes: unpinned threads of fio, and files cached on node 0.

use std::process::Command;

use anyhow::{Context, ensure};
use lab::daemon::{remote_share, settled_after};
use lab::fio::Fio;
use lab::pages;
use lab::threads::{self, Whereabouts};
use rustix::process::Signal;
use serde_json::Value;
use testing::{Case, cases, is_long};

use crate::lab_bench::{Bench, Outcome, cpus, load, masks, windows};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![
    [nodes([2])] reads_of_fio_become_and_stay_local;
    // Forks are slow on emulated CPUs.
    [if testing::long() { Ok(()) } else { nodes([1]) }, nodes([1, 2])] survives_forks_and_exits;
    [is_long(), nodes([2])] a_trial_that_cannot_tell_does_not_go_on;
];

/// A metric that did not work failed once a period, to the end of the trial.
fn a_trial_that_cannot_tell_does_not_go_on() -> Outcome {
    let dir = tempfile::tempdir()?;
    let state = dir.path().join("state").display().to_string();
    let trial = |metric: &str| {
        let options = ["--minutes", "0.5", "--period", "0.5", "--window", "0.2", "--state-dir", &state, "--json"];
        Command::new(env!("CARGO_BIN_EXE_homenode")).arg("trial").args(options).args(["--metric", metric]).output()
    };
    let refused = trial("exit 7")?;
    let said = String::from_utf8(refused.stderr)?;
    let error = r#""what":"--metric","why":"it ended with exit status: 7""#;
    ensure!(refused.status.code() == Some(2) && said.contains(error), "{said}");
    // It works before the first period, and never again: eight of 30 rounds are more than a
    // quarter.
    let mark = dir.path().join("asked");
    let ended = trial(&format!("test ! -e {0} && touch {0} && echo 1", mark.display()))?;
    let said = String::from_utf8(ended.stdout)?;
    let kinds = said.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let periods = kinds.iter().filter(|line| line["kind"] == "period").count();
    let end = kinds.last().context("it printed nothing")?;
    let result = &end["results"][0];
    ensure!((periods, ended.status.code()) == (16, Some(1)), "{periods} periods: {said}");
    ensure!(end["stopped"] == false && result["verdict"] == "too_short" && result["unknown"] == 8, "{end}");
    ensure!(result["outcomes"]["metric"]["mean"].is_null() && result["why"].is_string(), "{end}");
    Ok(())
}

/// Without homenode at least 30 % of the bytes are remote; with it, at most 3 % from the sixth
/// window on.
fn reads_of_fio_become_and_stay_local() -> Outcome {
    const WINDOWS_OFF: usize = 3;
    const WINDOWS_ON: usize = 10;
    let bench = Bench::new()?;
    // Each reader takes a whole CPU. Two are left, for homenode and others: a node that is crowded
    // takes no reader.
    let files = bench.files(0, cpus(&bench.machine, 0)?.len().saturating_sub(2).max(1))?;

    // The kernel places unpinned threads by chance: fio is started until enough of them are on the
    // other node.
    let mut tries = 0;
    let (fio, before, mut daemon, first) = loop {
        tries += 1;
        let fio = Fio::start(&files)?;
        let mut observing = bench.daemon_for(&[fio.pid()], &["--dry-run"])?;
        let mut whereabouts = Whereabouts::default();
        let mut off = Vec::new();
        for _ in 0..WINDOWS_OFF {
            off.push(observing.window()?);
            whereabouts.sample(&threads::of(fio.pid())?, &fio.readers, &bench.machine, 0);
        }
        observing.stop(Signal::TERM)?;
        let share = remote_share(&off).context("nothing was read")?;
        let away = whereabouts.away().context("no reader seen")?;
        say!("without homenode: remote share {share:.2}, threads away by /proc {away:.2}");
        if share >= 0.30 && away >= 0.30 {
            let before = masks(fio.pid());
            let mut daemon = bench.daemon_for(&[fio.pid()], &[])?;
            let first = daemon.window()?;
            // On a busy machine the kernel has moved them all meanwhile: nothing is left to do.
            if first.remote_share.is_some_and(|share| share >= 0.05) {
                break (fio, before, daemon, first);
            }
            daemon.stop(Signal::TERM)?;
        }
        ensure!(tries < 6, "the kernel put fio beside its data {tries} times");
    };

    let mut on = vec![first];
    let mut whereabouts = Whereabouts::default();
    while on.len() < WINDOWS_ON {
        on.push(daemon.window()?);
        if on.len() > 5 {
            whereabouts.sample(&threads::of(fio.pid())?, &fio.readers, &bench.machine, 0);
        }
    }
    let shares: Vec<_> = on.iter().map(|w| w.remote_share.map(|s| (s * 100.0).round())).collect();
    say!("with homenode: remote share per window in % {shares:?}");
    ensure!(settled_after(&on, 0.03) <= 5, "not settled after 5 windows: {shares:?}");
    ensure!(on.iter().skip(5).all(|w| w.remote_share.is_some()), "a window without a read: {shares:?}");
    ensure!(whereabouts.seen > 0 && whereabouts.away() == Some(0.0), "/proc showed threads away: {whereabouts:?}");

    // A moved thread may run on node 0 only; the others were there by chance.
    let held = masks(fio.pid());
    for tid in &fio.readers {
        let mask = held.get(tid).context("a reader ended")?;
        let allowed = [bench.machine.list_of(0), bench.machine.list_of_all()];
        ensure!(allowed.contains(mask), "reader {tid} may run on {mask}");
    }
    ensure!(
        fio.readers.iter().any(|tid| held.get(tid) == Some(&bench.machine.list_of(0))),
        "no reader was moved: {held:?}"
    );
    for file in &files {
        ensure!(pages::share_on(file, 0)? == 1.0, "{} left node 0", file.display());
    }
    let (end, status) = daemon.stop(Signal::TERM)?;
    ensure!(masks(fio.pid()) == before, "masks before {before:?}, after {:?}", masks(fio.pid()));
    ensure!(status.success(), "{status}");
    ensure!(end.is_some_and(|end| end.restored > 0 && end.failed == 0), "{end:?}");
    Ok(())
}

/// Among short-lived processes homenode reports no error and moves only the readers. An emulated
/// machine does not reach a thousand forks a second; its host does.
fn survives_forks_and_exits() -> Outcome {
    const WINDOWS: usize = 8;
    let bench = Bench::new()?;
    let files = bench.files(0, 2)?;
    let readers = bench.readers(0.2, &files)?;
    let forks = load(&["--forks", "1000", "--seconds", "15"], &[])?;
    let before = masks(readers.pid());
    // All processes of the machine, so that the forks are observed.
    let mut daemon = bench.daemon(&[])?;
    for window in windows(&mut daemon, WINDOWS)? {
        for mv in &window.moves {
            ensure!(readers.threads.iter().any(|t| t.tid == mv.tid), "moved a thread that reads nothing: {mv:?}");
        }
    }
    let (end, status) = daemon.stop(Signal::TERM)?;
    ensure!(status.success(), "homenode ended with {status}");
    let end = end.context("homenode did not report what it restored")?;
    ensure!(end.failed == 0, "{end:?}");
    ensure!(masks(readers.pid()) == before, "affinities were not restored");
    let made = forks.wait()?;
    say!("{made}");
    ensure!(made.get("forks").and_then(Value::as_u64) >= Some(500), "too few forks: {made}");
    Ok(())
}
