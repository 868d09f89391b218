//! `kill -9` at any instant: what a run has bound, `restore` finds.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lab::threads;
use rustix::process::Signal;

use crate::lab_bench::{Bench, Ends, Outcome, cpus, home_of, homenode, load, masks, set_mask};
use crate::{Test, say};

pub const TESTS: &[Test] = &[Test {
    name: "kills::nothing_stays_bound_after_kills_at_random_instants",
    nodes: &[2],
    run: nothing_stays_bound,
}];

/// Threads, processes with their memory, files, and whatever `auto` chooses.
const POLICIES: [&str; 4] = ["nthread", "arc", "dragonfly", "auto"];

/// Numbers that look random (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Threads of these processes and their descendants that may not use all CPUs.
fn bound(pids: &[u32], all: &str) -> BTreeMap<u32, String> {
    let tree: Vec<u32> = pids.iter().flat_map(|pid| threads::tree(*pid)).collect();
    threads::affinities(&tree).into_iter().filter(|(_, mask)| mask != all).collect()
}

/// `HOMENODE_UNDO_KILLS`: how often (10).
fn nothing_stays_bound() -> Outcome {
    let times = std::env::var("HOMENODE_UNDO_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let seed = std::env::var("HOMENODE_UNDO_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0x5eed);
    let mut random = Random(seed);
    let bench = Bench::new()?;
    let files = [bench.files(0, 2)?, bench.files(1, 2)?].concat();
    let readers = load(&["--seconds", "36000", "--duty", "0.2", "--memory", "8"], &files)?;
    // A parent whose children come and go, and inherit what it has.
    let loop_of = |file: &Path| format!("while :; do cat {file} {file} >/dev/null; done", file = file.display());
    let shell = Command::new("sh").arg("-c").arg(loop_of(&files[0])).stdin(Stdio::null()).spawn()?;
    let shell = Ends(shell);
    let pids = [readers.pid(), shell.0.id()];
    let all = masks(std::process::id()).into_values().next().context("our own affinity")?;
    let every: Vec<u32> = bench.machine.nodes.values().flatten().copied().collect();
    let (mut had_bound, mut put_back) = (0, 0);
    for time in 0..times {
        // Away from their data: the kernel lets them stay there.
        for reader in &readers.threads {
            let away = 1 - home_of(&reader.file);
            set_mask(reader.tid, cpus(&bench.machine, away)?)?;
            set_mask(reader.tid, &every)?;
        }
        let policy = POLICIES[time % POLICIES.len()];
        let daemon = bench.daemon_for(&pids, &["--policy", policy, "--window", "0.3"])?;
        // Half of the kills come at any time, and half around the first moves.
        if time % 2 == 0 {
            sleep(Duration::from_millis(random.below(6000)));
        } else {
            let began = Instant::now();
            while bound(&pids, &all).is_empty() && began.elapsed() < Duration::from_secs(15) {
                sleep(Duration::from_millis(1 + random.below(20)));
            }
            sleep(Duration::from_millis(random.below(400)));
        }
        daemon.stop(Signal::KILL)?;
        let left = bound(&pids, &all).len();
        let restored =
            Command::new(homenode()).args(["--json", "restore", "--state-dir"]).arg(bench.state_dir()).output()?;
        let now = bound(&pids, &all);
        let said = String::from_utf8_lossy(&restored.stdout);
        ensure!(now.is_empty(), "kill {time}, {policy}: {left} were bound, after {said} {now:?} are ({seed:#x})");
        ensure!(restored.status.success(), "kill {time}, {policy}: {restored:?}");
        had_bound += usize::from(left > 0);
        put_back += left;
    }
    say!("{times} kills, {had_bound} while something was bound, {put_back} threads put back");
    ensure!(had_bound > 0, "no kill came while something was bound");
    Ok(())
}
