//! Rules of homenode.toml: nothing is moved that none allows, and a reload takes effect while
//! programs run.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use lab::daemon::{Daemon, Window};
use rustix::process::Signal;
use testing::{Case, cases};

use crate::lab_bench::{Bench, Group, Outcome, home_of, homenode, masks, windows, windows_until};
use crate::nodes;

pub const CASES: &[Case] = cases![[nodes([2])] nothing_moves_that_no_rule_allows_and_a_reload_puts_back];

const NAME: &str = "homenode-test-rules";

/// What readers get on emulated CPUs depends on what else the host does, and a service that reads
/// less after a move is put back.
const NO_GUARDRAIL: &str = "[guardrail]\nwindows = 0\n";

fn rule(policy: &str) -> String {
    let settings =
        if policy == "nthread" { "nthread = { min_bytes = \"1 MB\", locality_margin = \"2 MB/s\" }" } else { "" };
    format!("{NO_GUARDRAIL}[[service]]\ngroup = \"/{NAME}\"\npolicy = \"{policy}\"\n{settings}\n")
}

/// Two processes read away from their data, and one of them is allowed to be moved.
fn nothing_moves_that_no_rule_allows_and_a_reload_puts_back() -> Outcome {
    let bench = Bench::new()?;
    // Threads that share a file with others stay, so each process has its own.
    let (first, second) = (bench.files(0, 4)?, bench.files(1, 4)?);
    let half = |from: usize| [&first[from..from + 2], &second[from..from + 2]].concat();
    // The group goes after the reader in it.
    let group = Group::new(NAME)?;
    let others = bench.readers_away(0.2, &half(0), home_of)?;
    let ours = bench.readers_away(0.2, &half(2), home_of)?;
    group.take(ours.pid())?;
    let (before, of_others) = (masks(ours.pid()), masks(others.pid()));
    let config = bench.config(&rule("nthread"))?;
    let mut daemon = bench.daemon_of(&config, &[], &[])?;
    let state = bench.state_dir();
    let told = |what: &str| -> Result<Output> {
        let mut command = Command::new(homenode());
        command.arg("--state-dir").arg(&state).arg("--json").arg(what);
        command.output().context("homenode")
    };
    let untouched = |windows: &[Window]| -> Outcome {
        let other = windows.iter().flat_map(|window| &window.moves).find(|mv| mv.pid != ours.pid());
        ensure!(other.is_none(), "no rule is for {other:?}");
        ensure!(masks(others.pid()) == of_others, "before {of_others:?}, now {:?}", masks(others.pid()));
        Ok(())
    };
    let moved = |daemon: &mut Daemon| -> Outcome {
        let seen = windows_until(daemon, 15, "move", |window| {
            if window.moves.is_empty() {
                bench.send_away(&ours, home_of)?;
            }
            Ok(!window.moves.is_empty())
        })?;
        ensure!(masks(ours.pid()) != before, "a move changed no affinity: {before:?}");
        untouched(&seen)?;
        untouched(&windows(daemon, 2)?)
    };
    let put_back = |daemon: &mut Daemon, why: &str| -> Outcome {
        // The next window may have begun before.
        let seen = windows_until(daemon, 5, why, |_| Ok(masks(ours.pid()) == before))?;
        untouched(&seen)
    };
    moved(&mut daemon)?;
    let status: serde_json::Value = serde_json::from_slice(&told("status")?.stdout)?;
    let share = |when: &str| {
        let read = &status["status"]["rules"][0][when];
        Some(read["remote_bytes"].as_f64()? / read["read_bytes"].as_f64().filter(|read| *read > 0.0)?)
    };
    ensure!(share("before").is_some_and(|before| before > 0.0) && share("now").is_some(), "{status}");

    // A mistake in the file changes nothing, and is named with its line.
    let line =
        1 + std::fs::read_to_string(&config)?.lines().position(|line| line.starts_with("policy")).context("policy")?;
    bench.config(&rule("nthreads"))?;
    // The rule of before may move another one.
    let bound: Vec<_> = masks(ours.pid()).into_iter().filter(|(tid, mask)| before.get(tid) != Some(mask)).collect();
    let refused = told("reload")?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(2) && said.contains(&format!("homenode.toml:{line}:")), "{refused:?}");
    untouched(&windows(&mut daemon, 1)?)?;
    let now = masks(ours.pid());
    ensure!(bound.iter().all(|(tid, mask)| now.get(tid) == Some(mask)), "a bad file: {bound:?}, now {now:?}");
    ensure!(told("status")?.status.code() == Some(1), "{:?}", told("status")?);

    bench.config(&rule("observe"))?;
    let reloaded = told("reload")?;
    ensure!(reloaded.status.success(), "{reloaded:?}");
    put_back(&mut daemon, "restoration after a reload")?;
    let calm = windows(&mut daemon, 2)?;
    ensure!(calm.iter().all(|window| window.moves.is_empty()), "{calm:?}");
    ensure!(told("status")?.status.success(), "{:?}", told("status")?);

    bench.config(&rule("nthread"))?;
    ensure!(told("reload")?.status.success());
    moved(&mut daemon)?;
    // A process that leaves its group leaves the rule.
    group.give_back(ours.pid())?;
    put_back(&mut daemon, "restoration after a change of groups")?;

    // The owner of a group that no rule is for chooses a policy that root's file lists.
    group.take(ours.pid())?;
    let delegate =
        "[delegate]\npolicies = [\"nthread\"]\n[nthread]\nmin_bytes = \"1 MB\"\nlocality_margin = \"2 MB/s\"\n";
    bench.config(&format!("{NO_GUARDRAIL}{delegate}"))?;
    ensure!(told("reload")?.status.success());
    group.choose(b"nthread")?;
    moved(&mut daemon)?;
    group.choose(b"observe")?;
    put_back(&mut daemon, "restoration after the owner's choice of nothing")?;
    let (_, status) = daemon.stop(Signal::TERM)?;
    ensure!(status.success(), "{status}");
    ensure!(masks(ours.pid()) == before, "{:?}", masks(ours.pid()));
    Ok(())
}
