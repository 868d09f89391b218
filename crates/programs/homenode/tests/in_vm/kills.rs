//! `kill -9` at any instant: what a run has bound, `restore` finds.

use std::collections::{BTreeMap, VecDeque};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use act::copying::Copying;
use act::pages::FileMove;
use anyhow::{Context as _, Result, anyhow, ensure};
use lab::threads;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use testing::{Case, Skip, cases, is_long};
use topology::NodeId;

use crate::lab_bench::{Bench, Ends, Group, Outcome, cpus, home_of, homenode, load, masks, play, set_mask, vm_config};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![
    [nodes([2])] nothing_stays_bound_after_kills_at_random_instants;
    [is_long(), nodes([2])] nothing_stays_bound_after_kills_amid_rules_and_reloads;
];

/// Processes with their memory, whatever `auto` chooses, threads, and files.
const POLICIES: [&str; 4] = ["arc", "auto", "nthread", "dragonfly"];

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
    threads::affinities(&tree).into_iter().filter(|(tid, has)| has != mask && lives(*tid)).collect()
}

fn lives(tid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// What /proc says of these threads (proc_pid_stat(5): name, state, parent, start time in ticks).
fn tell<'a>(tids: impl Iterator<Item = &'a u32>) -> String {
    let stat = |tid| std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_else(|error| error.to_string());
    let field = |stat: &str, n: usize| stat.split(' ').nth(n).unwrap_or("?").to_owned();
    tids.map(stat)
        .map(|s| format!("[{}, since {}]", s.split(' ').take(8).collect::<Vec<_>>().join(" "), field(&s, 21)))
        .collect()
}

/// How often (`HOMENODE_UNDO_KILLS`), and the seed of what is random (`HOMENODE_UNDO_SEED`).
fn asked() -> (usize, u64) {
    let times = if testing::long() { 10 } else { 2 };
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    (number("HOMENODE_UNDO_KILLS").map_or(times, |n| n as usize), number("HOMENODE_UNDO_SEED").unwrap_or(0x5eed))
}

fn nothing_stays_bound_after_kills_at_random_instants() -> Outcome {
    let (times, seed) = asked();
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

/// Affinities of all threads of programs; those of the kernel go where it wants them
/// (`PF_KTHREAD`).
fn everybody() -> BTreeMap<u32, String> {
    let of_kernel = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let flags = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(6)?.parse::<u32>().ok());
        flags.is_none_or(|flags| flags & 0x20_0000 != 0)
    };
    threads::affinities(&threads::tree(0).into_iter().filter(|pid| !of_kernel(pid)).collect::<Vec<_>>())
}

/// Rules for the first two of three groups.
fn some_rules(random: &mut ChaCha8Rng) -> String {
    let policies = ["nthread", "nthread", "nthread", "nthread", "observe", "ignore", "auto"];
    let mut text = String::new();
    for group in 0..2 {
        let policy = policies[random.random_range(0..policies.len())];
        text += &format!("[[service]]\ngroup = \"/{GROUP}-{group}\"\npolicy = \"{policy}\"\n");
        if policy == "nthread" {
            text += "nthread = { min_bytes = \"1 MB\", locality_margin = \"2 MB/s\" }\n";
        }
    }
    text
}

const GROUP: &str = "homenode-test-kills";

/// The installed service (`run --by-rules`), while somebody rewrites its rules, reloads them, and
/// puts processes from one group into another.
fn nothing_stays_bound_after_kills_amid_rules_and_reloads() -> Outcome {
    let (times, seed) = asked();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let bench = Bench::new()?;
    let (config, state) = (bench.config("")?, bench.state_dir());
    let groups = (0..3).map(|n| Group::new(&format!("{GROUP}-{n}"))).collect::<Result<Vec<_>>>()?;
    let (first, second) = (bench.files(0, 3)?, bench.files(1, 3)?);
    let homes: Vec<_> = first.iter().zip(&second).map(|(first, second)| [first.clone(), second.clone()]).collect();
    let readers =
        homes.iter().map(|files| load(&["--seconds", "36000", "--duty", "0.1"], files)).collect::<Result<Vec<_>>>()?;
    let mut forker = play("forker", [&first[0]])?;
    for (group, reader) in groups.iter().zip(&readers) {
        group.take(reader.pid())?;
    }
    groups[0].take(forker.0.id())?;
    // One has an affinity of its own.
    let own = readers[1].threads[0].tid;
    let anywhere = threads::affinity()?;
    // As the kernel leaves them once in a while: away from their data, free to go.
    let scatter = || -> Outcome {
        for thread in readers.iter().flat_map(|reader| &reader.threads).filter(|thread| thread.tid != own) {
            set_mask(thread.tid, cpus(&bench.machine, 1 - home_of(&thread.file))?)?;
            set_mask(thread.tid, &anywhere)?;
        }
        Ok(())
    };
    set_mask(own, cpus(&bench.machine, 1)?.get(..1).context("a CPU")?)?;
    let before = everybody();
    let all = bench.machine.list_of_all();
    let changed = || -> BTreeMap<u32, String> {
        everybody().into_iter().filter(|(tid, mask)| before.get(tid).unwrap_or(&all) != mask && lives(*tid)).collect()
    };
    let told = |what: &str| {
        let mut command = Command::new(homenode());
        command.arg("--config").arg(&config).arg("--state-dir").arg(&state).args(["--json", what]);
        command
    };
    let stop = AtomicBool::new(false);
    let (mut had_bound, mut put_back, mut by_start) = (0, 0, 0);
    let mut other = ChaCha8Rng::seed_from_u64(!seed);
    let (reloads, refused) = std::thread::scope(|scope| -> Result<(usize, usize)> {
        let shaker = scope.spawn(|| -> Result<(usize, usize)> {
            let mut reloads = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                let rules = some_rules(&mut other);
                // A mistake must be away again before a start.
                let mistake = other.random_range(0..5) == 0;
                bench.config(&if mistake { rules.replace("policy", "police") } else { rules.clone() })?;
                if other.random_range(0..4) == 0 {
                    let reader = &readers[other.random_range(0..3)];
                    groups[other.random_range(0..3)].take(reader.pid())?;
                }
                match told("reload").output()?.status.code() {
                    Some(0) => reloads.0 += 1,
                    Some(2) => reloads.1 += 1,
                    _ => {}
                }
                bench.config(&rules)?;
                sleep(Duration::from_millis(other.random_range(0..1_000)));
            }
            Ok(reloads)
        });
        let kills = (0..times).try_for_each(|time| -> Outcome {
            scatter()?;
            let mut command = told("run");
            command.args(["--by-rules", "--steady"]).stdout(Stdio::null());
            let mut daemon = Ends(command.spawn()?);
            let began = Instant::now();
            // A third of the kills come at any time, and others after something was bound.
            if time % 3 > 0 {
                while changed().is_empty() && began.elapsed() < Duration::from_secs(20) {
                    if daemon.0.try_wait()?.is_some() {
                        daemon = Ends(command.spawn()?);
                    }
                    sleep(Duration::from_millis(20));
                }
            }
            sleep(Duration::from_millis(random.random_range(50..3_000)));
            drop(daemon);
            let left = changed();
            let mut undo = if random.random_range(0..4) == 0 {
                by_start += 1;
                // It moves nothing itself.
                let mut next = Command::new(homenode());
                next.arg("--config").arg(vm_config()).arg("--state-dir").arg(&state);
                next.args(["--json", "run", "--by-rules", "--steady", "--windows", "1"]);
                next
            } else {
                told("restore")
            };
            let undone = undo.output()?;
            let now = changed();
            let said = String::from_utf8_lossy(&undone.stdout);
            ensure!(
                now.is_empty(),
                "kill {time}: {left:?} were bound, after {said} {now:?} are ({seed:#x}): {}",
                tell(now.keys())
            );
            ensure!(undone.status.success(), "kill {time}: {undone:?}");
            ensure!(forker.0.try_wait()?.is_none(), "kill {time}: the forker ended");
            had_bound += usize::from(!left.is_empty());
            put_back += left.len();
            if (time + 1) % 20 == 0 && time + 1 < times {
                say!("{} kills, {had_bound} while something was bound", time + 1);
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        let shaken = shaker.join().map_err(|_| anyhow!("the shaker panicked"))?;
        kills.and(shaken)
    })?;
    say!(
        "{times} kills, {had_bound} while something was bound, {put_back} threads put back, {by_start} times by a start"
    );
    say!("{reloads} reloads, {refused} refused");
    if had_bound == 0 {
        return Err(Skip("no kill came while something was bound".to_owned()).into());
    }
    Ok(())
}
