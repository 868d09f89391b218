//! A neighbour who does his worst: another user's service is moved as without him.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::daemon::Daemon;
use rustix::process::{Signal, Uid};
use testing::{Case, cases, is_long};

use crate::lab_bench::{Bench, Ends, Group, Outcome, home_of, masks, set_mask, windows, windows_until};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[is_long(), nodes([2])] a_neighbour_who_does_his_worst_changes_no_plan_of_others];

const NAME: &str = "homenode-test-neighbour";
const NOBODY: u32 = 65_534;

/// Threads that wake up and read a little; pieces of a file that are mapped; small files; locks.
const THREADS: usize = 400;
const PIECES: usize = 1000;
const FILES: usize = 2000;
const LOCKS: i64 = 6000;

/// What an unprivileged user can do, all at once, in this directory of his: hundreds of threads,
/// thousands of mappings, files and locks, children without end, and a name that no terminal should
/// get.
pub fn be_worst(args: &[String]) -> Result<()> {
    let dir = Path::new(&args[0]);
    rustix::fs::chown(dir, Some(Uid::from_raw(NOBODY)), None)?;
    // All threads come from this one.
    rustix::thread::set_thread_uid(Uid::from_raw(NOBODY))?;
    rustix::thread::set_name(c"\x1b]0;x\x07 4 1 (\n)")?;
    let data = dir.join("data");
    std::fs::write(&data, vec![1; 2 << 20])?;
    for n in 0..FILES {
        std::fs::write(dir.join(n.to_string()), [1; 64])?;
    }
    let locked = File::options().read(true).write(true).open(&data)?;
    for n in 0..LOCKS {
        lock(&locked, 2 * n)?;
    }
    let mapped = maps(&data)?;
    std::thread::scope(|scope| -> Result<()> {
        for _ in 0..THREADS {
            let wake = || loop {
                _ = locked.read_at(&mut [0; 64], 0);
                std::thread::sleep(Duration::from_millis(700));
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, wake)?;
        }
        scope.spawn(|| {
            loop {
                for n in 0..FILES {
                    _ = std::fs::read(dir.join(n.to_string()));
                }
            }
        });
        scope.spawn(|| {
            loop {
                for piece in &mapped {
                    // SAFETY: a byte of a mapping that stays, of a file that nobody cuts short.
                    _ = unsafe { std::ptr::read_volatile(*piece as *const u8) };
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        println!("ready");
        loop {
            Command::new("true").status().context("true")?;
        }
    })
}

/// Locks one byte.
fn lock(file: &File, at: i64) -> Result<()> {
    use std::os::fd::AsRawFd as _;
    let lock =
        libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: at, l_len: 1, l_pid: 0 };
    // SAFETY: the structure lives as long as the call.
    let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
    ensure!(locked == 0, "cannot lock: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Maps the file so many times; the address of each mapping.
fn maps(path: &Path) -> Result<Vec<usize>> {
    use rustix::mm::{MapFlags, ProtFlags};
    let file = File::open(path)?;
    let map = |_| {
        // SAFETY: a new mapping.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
        Ok(at?.addr())
    };
    // A page beside another one would be the same mapping.
    (0..PIECES).map(map).collect()
}

fn worst(bench: &Bench) -> Result<Ends> {
    let dir = bench.dir().join("nobody");
    std::fs::create_dir(&dir)?;
    // Nobody has to pass through it to a directory of his own.
    std::fs::set_permissions(bench.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
    let mut program = testing::myself("worst-neighbour");
    let mut child = Ends(program.arg(&dir).stdout(Stdio::piped()).spawn().context("cannot start the neighbour")?);
    let mut line = String::new();
    let out = child.0.stdout.take().context("no output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
    ensure!(line.trim() == "ready", "the neighbour says {line:?}");
    Ok(child)
}

/// CPU time of a process so far, in seconds.
fn cpu_s(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").context("no name")?;
    let ticks = |n: usize| rest.split(' ').nth(n).and_then(|n| n.parse::<u64>().ok()).context("no time");
    Ok((ticks(11)? + ticks(12)?) as f64 / 100.0)
}

/// The service with a rule reads away from its data. Moved are its threads to where their data is,
/// and no others, alone and beside the worst neighbour; what it costs is said.
fn a_neighbour_who_does_his_worst_changes_no_plan_of_others() -> Outcome {
    let bench = Bench::new()?;
    let files = [bench.files(0, 2)?, bench.files(1, 2)?].concat();
    let group = Group::new(NAME)?;
    let readers = bench.readers_away(0.2, &files, home_of)?;
    group.take(readers.pid())?;
    // Without the guardrail: what readers get on emulated CPUs depends on what else the host does.
    let rule = format!(
        "[guardrail]\nwindows = 0\n\n[[service]]\ngroup = \"/{NAME}\"\npolicy = \"nthread\"\nnthread = {{ min_bytes = \"1 MB\", locality_margin = \
         \"2 MB/s\" }}\n"
    );
    let config = bench.config(&rule)?;
    let before = masks(readers.pid());
    let homes: BTreeMap<u32, u32> = readers.threads.iter().map(|thread| (thread.tid, home_of(&thread.file))).collect();
    let all: Vec<u32> = bench.machine.nodes.values().flatten().copied().collect();
    let plan = |daemon: &mut Daemon| -> Result<(BTreeMap<u32, u32>, usize)> {
        bench.send_away(&readers, home_of)?;
        let mut moved = BTreeMap::new();
        let seen = windows_until(daemon, 100, "moves of all readers", |window| {
            for mv in &window.moves {
                ensure!(mv.pid == readers.pid(), "no rule is for {mv:?}");
                moved.insert(mv.tid, mv.to);
            }
            // The kernel may have brought the others home.
            for (tid, home) in homes.iter().filter(|(tid, _)| !moved.contains_key(tid)) {
                let away = bench.machine.nodes.iter().find(|(node, _)| *node != home).context("a second node")?;
                set_mask(*tid, away.1)?;
                set_mask(*tid, &all)?;
            }
            Ok(moved.len() == homes.len())
        })?;
        ensure!(moved == homes, "moved to {moved:?}, the data is at {homes:?}");
        Ok((moved, seen.len()))
    };
    let mut windows_taken = Vec::new();
    let mut costs = Vec::new();
    let mut neighbour = None;
    for beside in [false, true] {
        if beside {
            neighbour = Some(worst(&bench)?);
        }
        let mut daemon = bench.daemon_of(&config, &[], &[])?;
        let (_, taken) = plan(&mut daemon)?;
        windows_taken.push(taken);
        let (began, cpu) = (Instant::now(), cpu_s(daemon.pid())?);
        let seen = windows(&mut daemon, 8)?;
        costs.push((cpu_s(daemon.pid())? - cpu) / began.elapsed().as_secs_f64());
        let other = seen.iter().flat_map(|window| &window.moves).find(|mv| mv.pid != readers.pid());
        ensure!(other.is_none(), "no rule is for {other:?}");
        let (_, status) = daemon.stop(Signal::TERM)?;
        ensure!(status.success(), "{status}");
        ensure!(masks(readers.pid()) == before, "{:?}", masks(readers.pid()));
    }
    let [alone, beside] = costs[..] else { return Err(anyhow!("{costs:?}")) };
    say!(
        "all moved in {windows_taken:?} windows, alone and beside him; homenode took {alone:.2} and {beside:.2} of an \
         emulated CPU"
    );
    let ended = neighbour.context("no neighbour")?.0.try_wait()?;
    ensure!(ended.is_none(), "the neighbour ended with {ended:?}");
    Ok(())
}
