//! Policy promote with real programs: PostgreSQL's pgbench and RocksDB's db_bench read some keys
//! often and most seldom, from files that are cached on the node without CPUs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use lab::daemon::Window;
use lab::pages;
use rustix::param::page_size;
use rustix::process::Signal;
use testing::{Case, cases, is_long};

use super::{RANGE, SLOW, daemon, memory_node};
use crate::lab_bench::{Bench, Ends, Outcome, ends, windows_until};
use crate::programs::{Server, finished, start, to_node};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[is_long(), nodes([2])]
    a_skewed_pgbench_reads_from_its_own_node,
    a_skewed_db_bench_reads_from_its_own_node,
];

/// The programs' node.
const HERE: u32 = 0;

/// Of how many bytes of these files, cached or not, the pages are on a node.
fn on(files: &[PathBuf], node: i32) -> Result<(u64, u64)> {
    let (mut there, mut all) = (0, 0);
    for file in files {
        there += pages::cached(file)?.iter().filter(|(_, on)| *on == node).count() as u64 * page_size() as u64;
        all += fs::metadata(file)?.len();
    }
    Ok((there, all))
}

/// Share of the reads, by homenode's own count, that come from the slow node in the last windows.
fn from_slow(windows: &[Window]) -> f64 {
    let last = windows.get(windows.len().saturating_sub(3)..).unwrap_or_default();
    lab::daemon::remote_share(last).unwrap_or(1.0)
}

/// Accounts of pgbench for each unit of its scale.
const ACCOUNTS: u64 = 100_000;
const SCALE: u64 = 3;

/// The exponent of the keys' Zipf distribution: a tenth of them gets 96 % of the reads.
const SKEW: f64 = 1.2;

/// Reads that go to the range of the table with this number, of all reads of the table: rows are
/// stored in the order of their keys, and the lowest keys are read most.
fn weight(range: u64, table_bytes: u64) -> f64 {
    let rows = SCALE * ACCOUNTS;
    // The first n terms of the sum of 1 / k^s.
    let sum = |n: u64| -> f64 { (1..=n).map(|k| (k as f64).powf(-SKEW)).sum() };
    let row = |byte: u64| (byte.min(table_bytes) as f64 / table_bytes as f64 * rows as f64) as u64;
    (sum(row((range + 1) * RANGE)) - sum(row(range * RANGE))) / sum(rows)
}

fn a_skewed_pgbench_reads_from_its_own_node() -> Outcome {
    memory_node()?;
    let bench = Bench::new()?;
    fs::set_permissions(bench.dir(), fs::Permissions::from_mode(0o755))?;
    let dir = tempfile::Builder::new().prefix("pg-").tempdir_in(bench.dir())?;
    let server = Server::start(dir.path(), bench.machine.list_of(HERE))?;
    finished(server.command("pgbench").args(["--initialize", "--quiet", &format!("--scale={SCALE}")]))?;
    finished(server.command("psql").args(["--quiet", "--command", "CHECKPOINT"]))?;
    let file = |relation: &str| -> Result<PathBuf> {
        let query = format!("SELECT pg_relation_filepath('{relation}')");
        let output = server.command("psql").args(["-At", "--command", &query]).stderr(Stdio::inherit()).output()?;
        Ok(server.data.join(String::from_utf8(output.stdout)?.trim()))
    };
    let files = [file("pgbench_accounts")?, file("pgbench_accounts_pkey")?];
    let [table, _] = &files;
    to_node(&files, SLOW as u32)?;
    let script = server.data.join("skewed.sql");
    // Several keys for each request, of which an emulated machine makes few in a second.
    let keys = (0..8).map(|n| format!("\\set k{n} random_zipfian(1, {}, {SKEW})\n", SCALE * ACCOUNTS));
    let names: Vec<String> = (0..8).map(|n| format!(":k{n}")).collect();
    let query = "SELECT sum(abalance) FROM pgbench_accounts WHERE aid IN";
    let text = format!("{}{query} ({});\n", keys.collect::<String>(), names.join(", "));
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o644))?;
    let mut client = server.command("pgbench");
    let _client = Ends(start(client.arg("--file").arg(&script).args(["-c", "2", "-j", "1", "-n", "-T", "300"]))?);
    let bytes = fs::metadata(table)?.len();
    let weights: Vec<f64> = (0..bytes.div_ceil(RANGE)).map(|range| weight(range, bytes)).collect();
    // The share of the reads of the table that the readers' node serves.
    let near = || -> Result<f64> {
        let mut of_range = vec![(0u64, 0u64); weights.len()];
        for (page, node) in pages::cached(table)? {
            let range = of_range.get_mut((page * page_size() as u64 / RANGE) as usize).context("a page beyond it")?;
            *range = (range.0 + u64::from(node == HERE as i32), range.1 + 1);
        }
        Ok(weights.iter().zip(of_range).map(|(weight, (near, all))| weight * near as f64 / all.max(1) as f64).sum())
    };
    ensure!(near()? < 0.1, "{:.2} of the reads are near before", near()?);
    let mut daemon = daemon(&bench, 2e7, &[])?;
    let mut windows = windows_until(&mut daemon, 120, "promotion of 90 % of the reads", |_| Ok(near()? >= 0.9))?;
    for _ in 0..4 {
        windows.push(daemon.window()?);
    }
    told(&files, near()?, &windows)?;
    ends(daemon, Signal::INT)
}

/// Says what was reached; fails if more than a part of the files moved.
fn told(files: &[PathBuf], near: f64, windows: &[Window]) -> Result<()> {
    let (slow, all) = on(files, SLOW)?;
    let moved = 1.0 - slow as f64 / all as f64;
    let seconds: f64 = windows.iter().map(|window| window.window_s).sum();
    say!(
        "{near:.3} of the reads are near after {seconds:.0} s, {:.3} from the slow node by homenode's count; {moved:.3} of {all} bytes \
         have moved",
        from_slow(windows)
    );
    ensure!(moved <= 0.25, "{moved} of the files has moved");
    Ok(())
}

/// RocksDB's mixgraph: 19 of 20 reads are of a thirtieth of the keys, which lie together. Which
/// ones it does not tell: so reads are judged by homenode's count, and only moves from outside.
fn a_skewed_db_bench_reads_from_its_own_node() -> Outcome {
    memory_node()?;
    let bench = Bench::new()?;
    let db = bench.dir().join("rocksdb");
    let command = |benchmark: &str| {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &bench.machine.list_of(HERE), "db_bench"]);
        command.arg(format!("--benchmarks={benchmark}")).arg(format!("--db={}", db.display()));
        command.args(["--num=100000", "--value_size=1000", "--compression_type=none", "--cache_size=262144"]);
        // Large blocks: an emulated machine makes few requests a second.
        command.args(["--write_buffer_size=2097152", "--block_size=65536"]);
        command
    };
    finished(&mut command("fillseq,compact"))?;
    let tables = |db: &Path| -> Result<Vec<PathBuf>> {
        let files = fs::read_dir(db)?.flatten().map(|entry| entry.path());
        Ok(files.filter(|path| path.extension().is_some_and(|e| e == "sst")).collect())
    };
    let files = tables(&db)?;
    to_node(&files, SLOW as u32)?;
    let mut client = command("mixgraph");
    client.args(["--use_existing_db", "--duration=300", "--reads=1000000000", "--mix_get_ratio=1"]);
    client.args(["--mix_put_ratio=0", "--mix_seek_ratio=0", "--keyrange_num=30", "--keyrange_dist_a=14.18"]);
    client.args(["--keyrange_dist_b=-2.917", "--keyrange_dist_c=0.0004", "--keyrange_dist_d=-0.08082"]);
    client.args(["--key_dist_a=0.002312", "--key_dist_b=0.3467"]);
    let client = Ends(start(&mut client)?);
    let mut daemon = daemon(&bench, 2e7, &["--pid", &client.0.id().to_string()])?;
    let mut last = Vec::new();
    let windows = windows_until(&mut daemon, 90, "promotion of what is read", |window| {
        last.push(window.clone());
        Ok(on(&files, HERE as i32)?.0 > 0 && last.len() > 3 && from_slow(&last) <= 0.1)
    })?;
    ensure!(tables(&db)? == files, "its files have changed");
    told(&files, 1.0 - from_slow(&windows), &windows)?;
    ends(daemon, Signal::INT)
}
