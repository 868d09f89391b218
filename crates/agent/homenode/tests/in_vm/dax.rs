//! `homenode run` on an XFS over the persistent memory of two nodes: dragonfly moves a file to its
//! readers because the controller of its node is overloaded, npolicy a process to the file that it
//! maps. Where blocks are is read by filefrag(8) and dmsetup(8).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lab::daemon::{Daemon, Window};
use rustix::process::Signal;
use topology::CpuSet;

use crate::lab_bench::{Bench, Outcome, cpus, homenode, load, masks, restores, windows, windows_until};
use crate::{Skip, Test, say};

pub const TESTS: &[Test] = &[
    Test { name: "dax::a_file_moves_to_its_readers", nodes: &[2], run: || with_volume(file_to_readers) },
    Test { name: "dax::a_process_moves_to_what_it_maps", nodes: &[2], run: || with_volume(process_to_file) },
];

const MOUNT: &str = "/mnt/pmem";

const FILE: u64 = 16 << 20;

/// Of the bandwidth that the readers have: what their node can do, so that it counts as overloaded,
/// also when a busy host slows them down. A tenth of their reads is of the file that moves: the
/// other node can do that.
const CROWDED: f64 = 0.2;

/// CAP_SYS_ADMIN (linux/capability.h).
const SYS_ADMIN: u32 = 21;

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Blocks of 4 KiB of a file on each node.
fn blocks(file: &Path) -> Result<BTreeMap<u32, u64>> {
    // "0 983040 linear 259:0 0": the next line is of the other node.
    let table = output(Command::new("dmsetup").args(["table", "volume"]))?;
    let border: u64 = table.lines().nth(1).and_then(|l| l.split(' ').next()?.parse().ok()).context("one node")?;
    let mut nodes = BTreeMap::new();
    // "   0:        0..    4095:      61952..     66047:   4096:             last,eof"
    for line in output(Command::new("filefrag").args(["-b4096", "-v"]).arg(file))?.lines() {
        let fields: Vec<&str> = line.split(':').map(str::trim).collect();
        let [_, _, physical, len, ..] = fields.as_slice() else { continue };
        let (Some(at), Ok(len)) =
            (physical.split("..").next().and_then(|n| n.trim().parse::<u64>().ok()), len.parse::<u64>())
        else {
            continue;
        };
        *nodes.entry(u32::from(at * 8 >= border)).or_default() += len;
    }
    Ok(nodes)
}

/// A file whose blocks are on node 0.
fn create(path: PathBuf) -> Result<PathBuf> {
    fs::write(&path, vec![7; FILE as usize])?;
    output(Command::new(homenode()).args(["move", "--to", "0"]).arg(&path))?;
    ensure!(blocks(&path)? == BTreeMap::from([(0, FILE >> 12)]), "{:?}", blocks(&path)?);
    Ok(path)
}

/// Threads of a process that hold CAP_SYS_ADMIN, by name.
fn powerful(pid: u32) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
        let permitted = u64::from_str_radix(&field("CapPrm:").context("CapPrm")?, 16)?;
        if permitted >> SYS_ADMIN & 1 == 1 {
            names.push(field("Name:").context("Name")?);
        }
    }
    names.sort();
    Ok(names)
}

/// Runs a test with a directory on the volume.
fn with_volume(test: fn(&Bench, &Path) -> Outcome) -> Outcome {
    if !fs::read_to_string("/proc/self/mounts")?.lines().any(|line| line.split(' ').nth(1) == Some(MOUNT)) {
        return Err(Skip("no XFS over the persistent memory of two nodes is mounted as /mnt/pmem".to_owned()).into());
    }
    test(&Bench::new()?, tempfile::tempdir_in(MOUNT)?.path())
}

/// N-Policy binds a process to the node of the persistent memory that it maps, which the page table
/// alone tells.
fn process_to_file(bench: &Bench, dir: &Path) -> Outcome {
    let file = create(dir.join("file"))?;
    let on = bench.machine.list_of(1);
    let options = ["--seconds", "3600", "--duty", "0.3", "--mapped", "--begin-on", &on];
    let load = load(&options, std::slice::from_ref(&file))?;
    let before = masks(load.pid());
    let mut daemon = bench.daemon_for(&[load.pid()], &["--policy", "npolicy"])?;
    let reader = load.of_file(&file).first().copied().context("no reader")?;
    let home: CpuSet = cpus(&bench.machine, 0)?.iter().copied().collect();
    windows_until(&mut daemon, 60, "process on node 0", |_| {
        let mask = masks(load.pid()).remove(&reader).context("the reader ended")?;
        Ok(mask.parse::<CpuSet>()? == home)
    })?;
    restores(daemon, load.pid(), &before)
}

fn file_to_readers(bench: &Bench, dir: &Path) -> Outcome {
    let (file, busy) = (create(dir.join("file"))?, create(dir.join("busy"))?);
    // Bound, as the kernel would move them; only the file may move here.
    let start = |file: &PathBuf, count: usize, node: u32, duty: &str| {
        let on = bench.machine.list_of(node);
        load(&["--seconds", "3600", "--duty", duty, "--on", &on], &vec![file.clone(); count])
    };
    let (away, at_home) = (start(&file, 1, 1, "0.1")?, start(&busy, 3, 0, "0.3")?);
    let pids = format!("{},{}", away.pid(), at_home.pid());
    let daemon = |limit: Option<f64>, options: &[&str]| -> Result<Daemon> {
        let mut text = "[moves]\ndax = true\n".to_owned();
        if let Some(limit) = limit {
            for node in 0..2 {
                text += &format!("[node.{node}]\nread_bw_max = {limit}\nwrite_bw_max = {limit}\n");
            }
        }
        let config = bench.config(&text)?;
        Daemon::start(
            &homenode(),
            ["--steady", "--margin", "1MB/s", "--min-bytes", "100kB", "--pid", &pids, "--config"]
                .into_iter()
                .map(str::to_owned)
                .chain([config.display().to_string(), "--state-dir".into(), bench.state_dir().display().to_string()])
                .chain(options.iter().map(|&option| option.to_owned())),
        )
    };
    // What is read, from the second window on: in the first, it is not known where the files are.
    let mut looking = daemon(None, &["--policy", "nthread", "--dry-run"])?;
    let seen: Vec<Window> = windows(&mut looking, 4)?.split_off(1);
    looking.stop(Signal::TERM)?;
    let (bytes, seconds) = seen.iter().fold((0, 0.0), |sum, w| (sum.0 + w.read_bytes, sum.1 + w.window_s));
    let remote = seen.iter().filter_map(|w| w.remote_share).fold(0.0, f64::max);
    say!("{:.1} MB/s read, up to {:.0} % from another node", bytes as f64 / seconds / 1e6, remote * 100.0);
    ensure!(bytes > 0 && remote > 0.0, "no reads of files on DAX were seen");

    // The donor of blocks is made in the file system's root directory, which may be anybody's.
    std::os::unix::fs::chown(MOUNT, Some(1000), None)?;
    let mut moving = daemon(Some(CROWDED * bytes as f64 / seconds), &["--policy", "dragonfly"])?;
    windows_until(&mut moving, 40, "file on node 1", |_| Ok(blocks(&file)? == BTreeMap::from([(1, FILE >> 12)])))?;
    // The copy's own thread may not have ended yet.
    let with: Vec<String> = powerful(moving.pid())?.into_iter().filter(|name| name != "homenode-copy").collect();
    ensure!(with == ["dax", "facts"], "these threads keep CAP_SYS_ADMIN: {with:?}");
    moving.stop(Signal::TERM)?;
    let told = output(Command::new(homenode()).args(["explain", "--state-dir"]).arg(bench.state_dir()))?;
    let name = file.display().to_string();
    let copied: Vec<&str> = told.lines().filter(|line| line.contains(&name) && line.contains("copied")).collect();
    say!("{}", copied.join("; "));
    ensure!(copied.len() == 1 && told.contains("overloaded_home"), "{told}");
    ensure!(fs::read(&file)? == vec![7; FILE as usize], "the file has changed");
    drop((away, at_home));
    Ok(())
}
