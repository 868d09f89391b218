//! `homenode run` on an XFS over the persistent memory of two nodes: npolicy moves a process to the
//! file that it maps. Where blocks are is read by filefrag(8) and dmsetup(8).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testing::{Case, Skip, cases, is_long};
use topology::CpuSet;

use crate::lab_bench::{Bench, Outcome, cpus, homenode, load, masks, restores, windows_until};
use crate::nodes;

pub const CASES: &[Case] = cases![[is_long(), nodes([2])]
    a_process_moves_to_what_it_maps = || with_volume(process_to_file),
];

const MOUNT: &str = "/mnt/pmem";

const FILE: u64 = 16 << 20;

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
        let bound = mask.parse::<CpuSet>()? == home;
        // The kernel may have brought it home, where there is nothing to do.
        if !bound && bench.nodes_of(load.pid(), &[reader])?.get(&reader) == Some(&Some(0)) {
            bench.send_away(&load, |_| 0)?;
        }
        Ok(bound)
    })?;
    restores(daemon, load.pid(), &before)
}
