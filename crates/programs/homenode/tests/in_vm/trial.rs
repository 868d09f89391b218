//! `homenode trial`: its verdicts on loads that the test makes, and everything is back afterwards.
//!
//! An emulated machine does not model how far memory is. So the reader whose remote reads
//! are slower makes them slower itself: it computes after each read away from its file. A reader
//! that computes after each read *near* its file makes the policy one that hurts.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::machine::parse_list;
use lab::threads;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use testing::{Case, cases, is_long};
use topology::measured::{Cached, Measured, Pair, Writes};

use crate::lab_bench::{Bench, Ends, Outcome, homenode, masks, play, vm_config};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![
    [is_long(), nodes([2])]
        a_load_with_slower_remote_reads_is_helped,
        a_load_for_which_nothing_matters_is_not_helped;
    [nodes([2])]
        a_policy_that_hurts_is_stopped_early,
        memory_goes_back_in_every_round,
        check_says_who_reads_away_and_what_that_costs;
];

/// Bytes of one read.
const BLOCK: usize = 64 << 10;

/// The reader: begins on some CPUs, may run on all, and reads a file again and again. On the slow
/// CPUs each read costs `factor` times its CPU time, by computing. If the scheduler, not homenode,
/// takes it away from where it began, it goes back: else chance decides how many reads are remote
/// without homenode. There is one reader: several cost the more CPU time the more emulated CPUs
/// they are spread over, as these share a few real ones.
pub fn be_slowed(args: &[String]) -> Result<()> {
    let [file, begin, slow, factor] = args else { anyhow::bail!("FILE CPUS CPUS FACTOR") };
    let factor: f64 = factor.parse()?;
    let (begin, slow, all) = (parse_list(begin)?, parse_list(slow)?, threads::affinity()?);
    let file = File::open(file)?;
    let blocks = file.metadata()?.len() / BLOCK as u64;
    threads::set_affinity(0, &begin)?;
    let mut buffer = vec![0; BLOCK];
    threads::set_affinity(0, &all)?;
    println!("ready");
    std::io::stdout().flush()?;
    let cpu_time = || clock_gettime(ClockId::ThreadCPUTime);
    let ns = |t: rustix::time::Timespec| t.tv_sec * 1_000_000_000 + t.tv_nsec;
    for n in 0_u64.. {
        let before = ns(cpu_time());
        file.read_exact_at(&mut buffer, n % blocks * BLOCK as u64)?;
        if slow.contains(&(rustix::thread::sched_getcpu() as u32)) {
            let read = ns(cpu_time()) - before;
            while ((ns(cpu_time()) - before) as f64) < factor * read as f64 {
                std::hint::spin_loop();
            }
        }
        // A third of a CPU or so.
        if n % 8 == 0 {
            std::thread::sleep(Duration::from_millis(2));
            // Asked wherever it is: the question takes a quarter of the CPU time of eight reads.
            let free = threads::affinity()? == all;
            if free && !begin.contains(&(rustix::thread::sched_getcpu() as u32)) {
                threads::set_affinity(0, &begin)?;
                threads::set_affinity(0, &all)?;
            }
        }
    }
    Ok(())
}

/// The reader: begins on node 1, and is slow on the CPUs of this node.
fn slowed(bench: &Bench, file: &Path, slow: u32, factor: f64) -> Result<Ends> {
    let (begin, slow) = (bench.machine.list_of(1), bench.machine.list_of(slow));
    play("slowed", [file.as_os_str(), begin.as_ref(), slow.as_ref(), factor.to_string().as_ref()])
}

/// `homenode trial --json` with short periods, for one process.
fn trial(bench: &Bench, pid: u32, rounds: u32) -> Command {
    let mut command = Command::new(homenode());
    command.args(["trial", "--json", "--steady", "--margin", "2MB/s", "--min-bytes", "1MB", "--window", "0.5"]);
    let minutes = f64::from(rounds) * 2.0 * 2.0 / 60.0;
    command.args(["--period", "2", "--wash-out", "1", "--minutes", &minutes.to_string()]);
    command.args(["--pid", &pid.to_string(), "--config"]).arg(vm_config()).arg("--state-dir").arg(bench.state_dir());
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

fn lines(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line.get("kind").and_then(Value::as_str) == Some(kind)).collect()
}

/// What a trial said: its periods, and the result of its only policy.
struct Said {
    periods: Vec<Value>,
    result: Value,
}

impl Said {
    fn verdict(&self) -> &str {
        self.result.get("verdict").and_then(Value::as_str).unwrap_or_default()
    }
}

/// A trial of so many rounds with a reader of a file on node 0, which begins on node 1. Threads
/// move in periods with the policy only, they go back, and affinities are as before.
fn tried(slow: u32, factor: f64, rounds: u32) -> Result<Said> {
    let bench = Bench::new()?;
    let file = bench.files(0, 1)?.remove(0);
    let reader = slowed(&bench, &file, slow, factor)?;
    let before = masks(reader.0.id());
    let output = trial(&bench, reader.0.id(), rounds).output()?;
    let lines = lines(std::str::from_utf8(&output.stdout)?)?;
    let periods: Vec<Value> = of_kind(&lines, "period").into_iter().cloned().collect();
    let end = *of_kind(&lines, "end").first().context("no end")?;
    let result = end.pointer("/results/0").context("no result")?.clone();
    ensure!(output.status.success(), "{}: {end}", output.status);
    let (off, on): (Vec<_>, Vec<_>) =
        periods.iter().partition(|period| period.get("arm").and_then(Value::as_str) == Some("off"));
    ensure!(off.len() == on.len(), "{} periods off, {} on", off.len(), on.len());
    let moves = |periods: &[&Value]| -> Vec<u64> { periods.iter().filter_map(|p| p.get("moves")?.as_u64()).collect() };
    ensure!(moves(&off).iter().all(|moves| *moves == 0), "moves while off: {:?}", moves(&off));
    // Not in each: a thread that slept through the window in which it was sent back has stayed.
    let moved = moves(&on).iter().filter(|moves| **moves > 0).count();
    let shown = || periods.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    ensure!(2 * moved > on.len(), "moves in few periods:\n{}", shown());
    ensure!(periods.iter().all(|period| period.get("stayed") == Some(&Value::Null)), "something stayed");
    ensure!(masks(reader.0.id()) == before, "affinities before {before:?}, after {:?}", masks(reader.0.id()));
    say!("{} rounds: {result}", on.len());
    Ok(Said { periods, result })
}

/// Seconds of a read of 4 KiB, made up: so dear that more is saved than homenode's budget on an
/// emulated machine, a whole CPU.
const LOCAL_S: f64 = 4e-6;
const REMOTE_S: f64 = 400e-6;

/// Without figures `check` cannot tell what a move would save; with those of a real machine, as
/// they say, it can.
fn check_says_who_reads_away_and_what_that_costs() -> Outcome {
    let bench = Bench::new()?;
    let file = bench.files(0, 1)?.remove(0);
    let reader = slowed(&bench, &file, 1, 1.0)?;
    let before = masks(reader.0.id());
    let (figures, config) = (bench.dir().join("nodes.json"), bench.dir().join("check.toml"));
    let homenode = |arguments: &[&str]| -> Result<(Option<i32>, Value)> {
        let mut command = Command::new(homenode());
        command.arg("--json").arg("--config").arg(&config).arg("--state-dir").arg(bench.state_dir()).args(arguments);
        let output = command.stderr(Stdio::inherit()).output()?;
        Ok((output.status.code(), serde_json::from_slice(&output.stdout).context("not JSON")?))
    };
    let pid = reader.0.id().to_string();
    let check = || homenode(&["check", "--no-measure", "--steady", "--windows", "2", "--pid", &pid]);
    let says = |seen: &(Option<i32>, Value), verdict: &str, because: &str| -> Outcome {
        let text = |of: &str| seen.1.get(of).and_then(Value::as_str).unwrap_or_default();
        let right = text("verdict") == verdict && text("because").contains(because);
        ensure!(right, "not {verdict}, {because}: {seen:?}");
        ensure!((seen.0 == Some(1)) == (verdict == "cannot_tell"), "{seen:?}");
        Ok(())
    };
    std::fs::write(&config, std::fs::read_to_string(vm_config())?)?;
    let unknown = check()?;
    says(&unknown, "cannot_tell", "was not measured")?;
    let bytes = |of: &str| unknown.1.pointer(of).and_then(Value::as_u64).unwrap_or_default();
    let (read, could) = (bytes("/sum/read_bytes"), bytes("/sum/could_be_local_bytes"));
    ensure!(2 * could > read && could <= read, "it reads from another node: {unknown:?}");
    ensure!(bytes("/services/0/could_be_local_bytes") == could, "{unknown:?}");

    std::fs::write(&config, format!("measured = {figures:?}\n{}", std::fs::read_to_string(vm_config())?))?;
    let topology = topology::sysfs::read(Path::new("/sys"))?;
    let nodes = || topology.nodes.iter().map(|node| node.id);
    let pair = |cpu_node, memory_node| Pair {
        cpu_node,
        memory_node,
        latency_s: 1e-7,
        reads: Vec::new(),
        writes: Vec::new(),
        reads_2_writes_1: Vec::new(),
        cached: vec![Cached { bytes: 4096, call_s: if cpu_node == memory_node { LOCAL_S } else { REMOTE_S } }],
        others_cpus: 0.0,
        spread: Some(0.25),
    };
    let measured = Measured {
        version: topology::measured::VERSION,
        homenode: String::new(),
        unix_s: 0,
        took_s: 1.0,
        processor: None,
        hypervisor: None,
        emulated: false,
        pairs: nodes().flat_map(|cpu| nodes().map(move |memory| pair(cpu, memory))).collect(),
        topology,
        buffer_bytes: 0,
        cache_bytes: 0,
        writes: Writes::Cached,
        busy: Some("others used 43 % of its CPUs".to_owned()),
        notes: Vec::new(),
    };
    std::fs::write(&figures, serde_json::to_string(&measured)?)?;
    let known = check()?;
    let saved = known.1.pointer("/sum/saved_s/most").and_then(Value::as_f64).context("saved_s")?;
    let could = known.1.pointer("/sum/could_be_local_bytes").and_then(Value::as_f64).context("bytes")?;
    ensure!((saved - could * (REMOTE_S - LOCAL_S) / 4096.0).abs() <= 0.01 * saved, "{known:?}");
    says(&known, "worth_a_trial", "CPUs would be saved")?;
    says(&known, "worth_a_trial", "by figures of a busy machine")?;
    // What it saw can be sent.
    let report = known.1.pointer("/report").and_then(Value::as_str).context("report")?;
    let text = std::fs::read_to_string(report)?;
    ensure!(text.contains("by figures of a busy machine") && !text.contains(&*file.to_string_lossy()), "{text}");
    ensure!(std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(report)?.permissions()) & 0o777 == 0o600);
    ensure!(masks(reader.0.id()) == before, "it moved something");
    Ok(())
}

/// Remote reads cost ten times as much, by the test itself.
fn a_load_with_slower_remote_reads_is_helped() -> Outcome {
    const ROUNDS: u32 = 8;
    let said = tried(1, 10.0, ROUNDS)?;
    ensure!(said.periods.len() == 2 * ROUNDS as usize, "{} periods", said.periods.len());
    ensure!(said.verdict() == "helps", "{}", said.result);
    Ok(())
}

/// One such trial in 64 says `helps` by chance: when all of six rounds look better.
fn a_load_for_which_nothing_matters_is_not_helped() -> Outcome {
    let said = tried(1, 1.0, 6)?;
    ensure!(said.verdict() != "helps", "{}", said.result);
    Ok(())
}

/// Reads cost ten times as much near the file. The early stop takes two rounds or so, and more for
/// each in which a busy host happens to slow the period without homenode.
fn a_policy_that_hurts_is_stopped_early() -> Outcome {
    const ROUNDS: u32 = 30;
    let said = tried(0, 10.0, ROUNDS)?;
    ensure!(said.result.get("stopped_early") == Some(&Value::Bool(true)), "{}", said.result);
    ensure!(said.verdict() == "hurts" && said.periods.len() < 2 * ROUNDS as usize, "{}", said.result);
    Ok(())
}

/// `arc` moves the reader with its memory to its file. That of the first round went back, and that
/// of later ones stayed.
fn memory_goes_back_in_every_round() -> Outcome {
    let bench = Bench::new()?;
    let file = bench.files(0, 1)?.remove(0);
    let reader = slowed(&bench, &file, 1, 1.0)?;
    let output = trial(&bench, reader.0.id(), 6).args(["--policy", "arc"]).output()?;
    let lines = lines(std::str::from_utf8(&output.stdout)?)?;
    let number = |line: &Value, key: &str| line.get(key).and_then(Value::as_u64).unwrap_or(0);
    let moved: Vec<_> = of_kind(&lines, "period").into_iter().filter(|line| number(line, "moves") > 0).collect();
    let stayed: Vec<_> = moved.iter().filter(|line| number(line, "moved_back") == 0).collect();
    ensure!(
        moved.len() > 1 && stayed.is_empty(),
        "{} periods with moves, nothing went back in {stayed:?}",
        moved.len()
    );
    let end = of_kind(&lines, "end").first().map(|end| end.to_string()).context("no end")?;
    ensure!(!end.contains("stays where it is"), "{end}");
    Ok(())
}
