//! `homenode map`: its bytes agree with what the programs counted themselves, by control group and
//! by pair of nodes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::{Case, cases};

use crate::lab_bench::{Bench, Ends, Group, Outcome, cpus, homenode};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[nodes([2])] agrees_with_the_readers];

/// One load: its control group, the node that it runs on, and the node of its file.
const LOADS: [(&str, u32, u32); 3] =
    [("homenode-map-a.service", 0, 1), ("homenode-map-a.service", 0, 0), ("homenode-map-b.service", 1, 0)];

/// Bytes that a program reads at most to start: its libraries, and the shell that puts it into its
/// group.
const START: u64 = 8 << 20;

/// Reads a file again and again, says how many bytes that were, and lives on until
/// its standard input ends: a thread that ends within a window is in no group's sum.
pub fn be_reader(args: &[String]) -> Result<()> {
    let [cpus, file] = args else { anyhow::bail!("CPUS FILE") };
    lab::threads::set_affinity(0, &lab::machine::parse_list(cpus)?)?;
    let file = File::open(file)?;
    let (mut buffer, mut bytes) = (vec![0; 64 << 10], 0u64);
    for pass in 0..16 {
        let mut at = 0;
        loop {
            match file.read_at(&mut buffer, at)? {
                0 => break,
                n => at += n as u64,
            }
        }
        bytes += at;
        if pass % 8 == 0 {
            sleep(Duration::from_millis(300));
        }
    }
    println!("{bytes}");
    std::io::stdin().read_to_end(&mut buffer)?;
    Ok(())
}

fn agrees_with_the_readers() -> Outcome {
    let bench = Bench::new()?;
    let files = [bench.files(0, 1)?.remove(0), bench.files(1, 1)?.remove(0)];
    let _groups = [Group::new("homenode-map-a.service")?, Group::new("homenode-map-b.service")?];
    let map = Command::new(homenode())
        .args(["--json", "map", "--exact", "--steady", "--windows", "300", "--top", "3"])
        .stdout(Stdio::piped())
        .spawn()?;
    // It gives up capabilities once it observes, which takes an emulated machine seconds.
    let powers = |pid: &str| -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok(status.lines().find(|line| line.starts_with("CapEff:")).context("CapEff")?.to_owned())
    };
    for _ in 0..600 {
        if powers(&map.id().to_string())? != powers("self")? {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    // The first window is as long as any.
    sleep(Duration::from_secs(1));
    let mut readers = LOADS
        .map(|(group, on, data)| {
            let cpus: Vec<String> = cpus(&bench.machine, on)?.iter().map(u32::to_string).collect();
            let script = r#"echo $$ >"/sys/fs/cgroup/$1/cgroup.procs" && shift && exec "$@""#;
            let mut reader = Command::new("sh");
            reader.args(["-c", script, "sh", group]).arg(std::env::current_exe()?).args(["--role", "map-reader"]);
            reader.arg(cpus.join(",")).arg(&files[data as usize]).stdin(Stdio::piped()).stdout(Stdio::piped());
            Ok(Ends(reader.spawn()?))
        })
        .into_iter()
        .collect::<Result<Vec<Ends>>>()?;
    let mut read = Vec::new();
    for reader in &mut readers {
        let mut line = String::new();
        BufReader::new(reader.0.stdout.take().context("no stdout")?).read_line(&mut line)?;
        read.push(line.trim().parse::<u64>().context(line)?);
    }
    // A busy machine takes its time: the map ends when the readers have, and a whole window later.
    sleep(Duration::from_secs(2));
    kill_process(Pid::from_child(&map), Signal::INT)?;
    let output = map.wait_with_output()?;
    let map: Value = serde_json::from_slice(&output.stdout).context("no JSON")?;
    let pair = |group: &str, on: u32, data: u32| -> u64 {
        let services = map["services"].as_array().into_iter().flatten();
        let pairs =
            services.filter(|row| row["cgroup"] == format!("/{group}")).filter_map(|row| row["pairs"].as_array());
        let here = pairs.flatten().filter(|pair| pair["cpu_node"] == on && pair["data_node"] == data);
        here.filter_map(|pair| pair["read_bytes"].as_u64()).sum()
    };
    drop(readers);
    for ((group, on, data), read) in LOADS.into_iter().zip(read) {
        let seen = pair(group, on, data);
        say!("{group} on node {on} read {read} bytes from node {data}; the map has {seen}");
        ensure!(read > 4 * START, "{read} bytes are too few to tell");
        let start = LOADS.iter().filter(|load| load.0 == group).count() as u64 * START;
        ensure!(seen + read / 50 >= read && seen <= read + read / 50 + start, "{seen} of {read}: {map}");
    }
    let b =
        map["services"].as_array().and_then(|rows| rows.iter().find(|row| row["cgroup"] == "/homenode-map-b.service"));
    let b = b.context("no group b")?;
    // Bound, it can go nowhere; before that, it read what it takes to start.
    let local = b["could_be_local_bytes"].as_u64().context("could_be_local_bytes")?;
    ensure!(b["processes"] == 1 && local < START, "{b}");
    // The budget of an emulated machine may leave no time to ask for its path.
    let stat = fs::metadata(&files[0])?;
    let id = format!("{}:{}:{}", rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()), stat.ino());
    let file = map["files"].as_array().and_then(|files| files.iter().find(|file| file["file"] == *id));
    ensure!(file.is_some(), "the file that most was read from is not among the first three: {map}");
    Ok(())
}
