//! `kill -9` at any instant: what a run has bound, `restore` finds.

use std::collections::{BTreeMap, VecDeque};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use act::copying::Copying;
use act::pages::FileMove;
use anyhow::{Context as _, Result, ensure};
use lab::threads;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use testing::{Case, Skip, cases};
use topology::NodeId;

use crate::lab_bench::{Bench, Ends, Outcome, cpus, homenode, load, masks, play, set_mask};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[nodes([2])] nothing_stays_bound_after_kills_at_random_instants];

/// Threads, processes with their memory, files, and whatever `auto` chooses.
const POLICIES: [&str; 4] = ["nthread", "arc", "dragonfly", "auto"];

/// Reads a file again and again, and starts children without pause, which inherit what it has.
pub fn be_forker(args: &[String]) -> Result<()> {
    println!("ready");
    let mut children = VecDeque::new();
    loop {
        std::fs::read(&args[0]).context("cannot read the file")?;
        children.push_back(Ends(Command::new("sleep").arg("1").spawn().context("cannot start sleep")?));
        if children.len() > 8 {
            children.pop_front();
        }
    }
}

/// Affinities of the threads of these processes and their descendants that are not this one. A
/// child that has ended and was not waited for yet runs nowhere, whatever it has.
fn others(pids: &[u32], mask: &str) -> BTreeMap<u32, String> {
    let tree: Vec<u32> = pids.iter().flat_map(|pid| threads::tree(*pid)).collect();
    let lives = |tid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    threads::affinities(&tree).into_iter().filter(|(tid, has)| has != mask && lives(tid)).collect()
}

/// What /proc says of these threads (proc_pid_stat(5): name, state, parent, start time in ticks).
fn tell<'a>(tids: impl Iterator<Item = &'a u32>) -> String {
    let stat = |tid| std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_else(|error| error.to_string());
    let field = |stat: &str, n: usize| stat.split(' ').nth(n).unwrap_or("?").to_owned();
    tids.map(stat)
        .map(|s| format!("[{}, since {}]", s.split(' ').take(8).collect::<Vec<_>>().join(" "), field(&s, 21)))
        .collect()
}

/// `HOMENODE_UNDO_KILLS`: how often (10).
fn nothing_stays_bound_after_kills_at_random_instants() -> Outcome {
    let times = std::env::var("HOMENODE_UNDO_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let seed = std::env::var("HOMENODE_UNDO_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0x5eed);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let bench = Bench::new()?;
    let files = bench.files(0, 3)?;
    // All of them run on node 1, away from their files, so that homenode moves them.
    let away = bench.machine.list_of(1);
    let readers = load(&["--seconds", "36000", "--duty", "0.2", "--memory", "8", "--begin-on", &away], &files)?;
    let mut forker = play("forker", [&files[0]])?;
    let pids = [readers.pid(), forker.0.id()];
    for tid in pids.iter().flat_map(|pid| masks(*pid).into_keys()) {
        set_mask(tid, cpus(&bench.machine, 1)?)?;
    }
    while !others(&pids, &away).is_empty() {
        sleep(Duration::from_millis(20));
    }
    let (mut had_bound, mut put_back) = (0, 0);
    for time in 0..times {
        let policy = POLICIES[time % POLICIES.len()];
        let daemon = bench.daemon_for(&pids, &["--policy", policy, "--touch-own-affinity"])?;
        // Half of the kills come at any time, and half around the first moves.
        if time / POLICIES.len() % 2 == 1 {
            sleep(Duration::from_millis(random.random_range(0..5_000)));
        } else {
            let began = Instant::now();
            while others(&pids, &away).is_empty() && began.elapsed() < Duration::from_secs(20) {
                sleep(Duration::from_millis(1 + random.random_range(0..20)));
            }
            sleep(Duration::from_millis(random.random_range(0..400)));
        }
        daemon.stop(Signal::KILL)?;
        let left = others(&pids, &away).len();
        let mut restore = Command::new(homenode());
        let restored = restore.args(["--json", "restore", "--state-dir"]).arg(bench.state_dir()).output()?;
        let now = others(&pids, &away);
        let said = String::from_utf8_lossy(&restored.stdout);
        ensure!(
            now.is_empty(),
            "kill {time}, {policy}: {left} were bound, after {said} {now:?} are ({seed:#x}): {}",
            tell(now.keys())
        );
        ensure!(restored.status.success(), "kill {time}, {policy}: {restored:?}");
        ensure!(forker.0.try_wait()?.is_none(), "kill {time}: the forker ended");
        had_bound += usize::from(left > 0);
        put_back += left;
        // What was moved of the files goes back, for the next one.
        for file in &files {
            let mut back = FileMove::prepare(file, NodeId(0))?;
            while !back.step(16 << 20)? {}
        }
        if (time + 1) % 50 == 0 && time + 1 < times {
            say!("{} kills, {had_bound} while something was bound", time + 1);
        }
    }
    say!("{times} kills, {had_bound} while something was bound, {put_back} threads put back");
    if had_bound == 0 {
        return Err(Skip("no kill came while something was bound".to_owned()).into());
    }
    Ok(())
}
