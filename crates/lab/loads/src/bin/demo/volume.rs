//! The act that needs no second node: threads follow files of homenode's own file system, over
//! emulated nodes.
//!
//! **Approach.** A volume with one region for each of two emulated nodes is mounted three times
//! without a policy and three times with one, in turns. Four processes of fio read four files, two
//! on each node. fio measures the throughput; `/proc` shows on which CPU, and so on which emulated
//! node, each reader runs.
//!
//! **Limits.** One pair of runs says little about throughput: on a busy machine it differs by half
//! from pair to pair. So the median and the range of three are given. The nodes are emulated: the
//! server delays each access as the profile says. What is shown is how the policy changes the
//! delays, not how fast persistent memory is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::fio::Measured;
use lab::mounted::Server;
use lab::plot::{self, Series};
use lab::threads;
use serde_json::{Value, json};

use crate::{Args, Shown};

const READERS: usize = 4;
const NODES: usize = 2;
/// How long mounting and unmounting may take.
const WITHIN: Duration = Duration::from_secs(20);
const POLICY: &str = "nthread";
const FILE_MIB: usize = 16;
/// Bytes of one read.
const BLOCK: u32 = 64 << 10;
/// Seconds of each phase.
const SECONDS: u64 = 8;
/// Pairs of phases, without and with the policy.
const PAIRS: usize = 3;
/// Seconds until threads have moved and the throughput counts.
const SETTLED: usize = 4;
/// With homenode at most this share of the readers may be away from their files.
const REMOTE_AT_MOST: f64 = 0.1;

/// One way of running.
struct Phase {
    /// Bytes per second, by second.
    throughput: Vec<(f64, f64)>,
    /// By second, the share of readers that run on another node than that of their file.
    remote: Vec<f64>,
    moved: usize,
    restored: bool,
}

/// Shows the act. Also returns its keys of the summary.
pub(crate) fn show(args: &Args, data: &Path) -> Result<(Shown, Vec<(&'static str, Value)>)> {
    let volume = Volume::new(args, data)?;
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        off.push(volume.phase("off")?);
        on.push(volume.phase(POLICY)?);
    }
    let share = |phases: &[Phase]| mean(phases.iter().flat_map(|phase| phase.remote.iter().skip(SETTLED).copied()));
    let speed = |phase: &Phase| mean(phase.throughput.iter().skip(SETTLED).map(|p| p.1));
    let (before, after) = (share(&off), share(&on));
    let (slow, fast) = (sorted(off.iter().map(speed)), sorted(on.iter().map(speed)));
    let ratio = sorted(off.iter().zip(&on).map(|(off, on)| speed(on) / speed(off)));
    let png = args.out.join("volume.png");
    let (Some(first_off), Some(first_on)) = (off.first(), on.first()) else { bail!("no phases") };
    let series = [("policy off".to_owned(), first_off), (format!("policy {POLICY}"), first_on)]
        .map(|(name, phase)| Series { name, points: phase.throughput.clone() });
    let title =
        format!("fio, {READERS} readers, a mounted volume over {NODES} emulated nodes (first of {PAIRS} pairs)");
    plot::throughput(&png, &title, &series)?;
    println!(
        "\nthroughput   {:.0} → {:.0} MB/s, {:.2} × ({:.2} to {:.2} in {PAIRS} pairs), says fio; emulated memory, without what a mount \
         costs: on real Optane a 4 KiB read gains about 1.69 µs of the 10 to 15 µs that a request takes\nplot         {}",
        slow[PAIRS / 2] / 1e6,
        fast[PAIRS / 2] / 1e6,
        ratio[PAIRS / 2],
        ratio[0],
        ratio[PAIRS - 1],
        png.display()
    );
    ensure!(after <= REMOTE_AT_MOST, "with homenode {:.0} % of the readers were away from their files", after * 100.0);
    let keys = vec![(
        "volume",
        json!({"emulated": true, "off": {"bytes_per_s": slow}, "on": {"bytes_per_s": fast}, "ratio": ratio}),
    )];
    let (moves, restored) = (on.iter().map(|phase| phase.moved).sum(), on.iter().all(|phase| phase.restored));
    Ok((Shown { name: "volume", before, after, moves, restored }, keys))
}

/// Of each pair one, least first.
fn sorted(values: impl Iterator<Item = f64>) -> [f64; PAIRS] {
    let mut sorted = [f64::NAN; PAIRS];
    sorted.iter_mut().zip(values).for_each(|(to, value)| *to = value);
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    sum / f64::max(n, 1.0)
}

/// A volume of two regions, and the directory where it is mounted.
struct Volume<'a> {
    args: &'a Args,
    /// Memory for the regions.
    memory: tempfile::TempDir,
    mountpoint: PathBuf,
    logs: PathBuf,
}

impl<'a> Volume<'a> {
    fn new(args: &'a Args, data: &Path) -> Result<Self> {
        let memory = lab::scratch(Path::new("/dev/shm"), "homenode-demo-")?;
        let (mountpoint, logs) = (data.join("volume"), data.join("logs"));
        for dir in [&mountpoint, &logs] {
            fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        let volume = Self { args, memory, mountpoint, logs };
        let regions: Vec<_> = (0..NODES).map(|node| format!("{}@{node}", volume.region(node).display())).collect();
        volume.homenode(["mkfs", "--size", "128M"].into_iter().chain(regions.iter().map(String::as_str)))?;
        let input = data.join("input");
        fs::write(&input, vec![0x5a; FILE_MIB << 20]).with_context(|| input.display().to_string())?;
        for reader in 0..READERS {
            let (region, name, node) = (volume.region(0), format!("/file{reader}"), (reader % NODES).to_string());
            let (region, input) = (region.to_string_lossy(), input.to_string_lossy());
            volume.homenode(["fs", "put", &region, &input, &name])?;
            volume.homenode(["fs", "migrate", &region, &name, "--to", &node])?;
        }
        println!("a volume over {NODES} emulated nodes, {READERS} files of {FILE_MIB} MiB, every second one on node 1");
        Ok(volume)
    }

    fn region(&self, node: usize) -> PathBuf {
        self.memory.path().join(format!("node{node}"))
    }

    fn file(&self, reader: usize) -> PathBuf {
        self.mountpoint.join(format!("file{reader}"))
    }

    /// The program of the file system, beside homenode.
    fn program(&self) -> PathBuf {
        self.args.homenode.with_file_name("homenode-fs")
    }

    fn homenode<'b>(&self, args: impl IntoIterator<Item = &'b str>) -> Result<()> {
        let mut command = Command::new(self.program());
        let out = command.args(args).output().context("homenode-fs could not be started")?;
        ensure!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(())
    }

    /// Mounts the volume with this policy and lets fio read for some seconds.
    fn phase(&self, policy: &str) -> Result<Phase> {
        println!("\npolicy {policy}");
        let state = self.memory.path().join("state");
        let mut command = Command::new(self.program());
        command.arg("--state-dir").arg(state).arg("mount").arg(self.region(0)).arg(&self.mountpoint);
        let nodes = NODES.to_string();
        command.args(["--foreground", "--cache", "direct", "--emulate-nodes", &nodes, "--policy", policy]);
        let (mut server, _) = Server::start(command.stdin(Stdio::null()), &self.mountpoint, WITHIN)?;
        let files: Vec<PathBuf> = (0..READERS).map(|reader| self.file(reader)).collect();
        let logs = tempfile::tempdir_in(&self.logs).context("a directory for fio's logs")?;
        // Two seconds longer, for a look at the affinities after homenode was told to stop.
        let fio = Measured::start(&files, BLOCK, SECONDS + 2, logs.path())?;
        let readers = self.readers(fio.pid())?;
        let pids: Vec<u32> = readers.iter().map(|r| r.0).collect();
        // They have what this process has, until the policy binds them: it may have by now.
        let own = threads::affinities(&[std::process::id()]).into_values().next();
        let as_before = || threads::affinities(&pids).into_values().filter(|mask| Some(mask) == own.as_ref()).count();
        println!("  second   readers away from their file's node (/proc)");
        let mut remote = Vec::new();
        for second in 1..=SECONDS {
            sleep(Duration::from_secs(1));
            let away = readers.iter().filter(|(pid, file)| on_node(*pid) != Some(file % NODES)).count();
            println!("  {second:>6}   {away} of {READERS}");
            remote.push(away as f64 / READERS as f64);
        }
        let moved = READERS - as_before();
        println!("homenode is told to end while fio reads on, so that its affinities can be seen");
        server.stop()?;
        let told = Instant::now();
        while as_before() < READERS && told.elapsed() < WITHIN {
            sleep(Duration::from_millis(20));
        }
        let restored = as_before() == READERS;
        if !restored {
            println!(
                "{:.1} s later, instead of {own:?}: {:?}",
                told.elapsed().as_secs_f64(),
                threads::affinities(&pids)
            );
        }
        let mut throughput = fio.throughput()?;
        throughput.retain(|(second, _)| *second <= SECONDS as f64);
        server.wait(WITHIN)?;
        Ok(Phase { throughput, remote, moved, restored })
    }

    /// The processes that have a file of the volume open, with the number of the file.
    fn readers(&self, fio: u32) -> Result<Vec<(u32, usize)>> {
        let began = Instant::now();
        loop {
            let open = |pid: u32, file: &Path| {
                let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
                files.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target == file)
            };
            let tree = threads::tree(fio);
            let reader =
                |file: usize| tree.iter().copied().filter(|pid| *pid != fio).find(|pid| open(*pid, &self.file(file)));
            let readers: Vec<_> = (0..READERS).filter_map(|file| Some((reader(file)?, file))).collect();
            if readers.len() == READERS {
                return Ok(readers);
            }
            ensure!(began.elapsed() < Duration::from_secs(20), "fio opened {} of {READERS} files", readers.len());
            sleep(Duration::from_millis(50));
        }
    }
}

/// The emulated node on which a process last ran: the CPUs are divided evenly, in order.
fn on_node(pid: u32) -> Option<usize> {
    let cpus = std::thread::available_parallelism().map_or(NODES, usize::from);
    let thread = threads::of(pid).ok()?.into_iter().next()?;
    Some(thread.cpu as usize * NODES / cpus)
}
