//! What logs that are kept twice cost: the same operations on a volume with logs once and on one
//! with logs twice, in turns, in one run.
//!
//! `twice [ROUNDS]` (31) prints a table: the median of the ratios within a round, as a ratio of a
//! busy machine says more than its times.
//!
//! `twice OPERATION once|twice CALLS` does no more than that, for counting its instructions
//! (`valgrind --tool=callgrind`).

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use fs::format::Ino;
use fs::medium::{Mapped, RegionFile};
use fs::{Layout, NewFile, Options, Placement, Rename, Volume};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const FILE: NewFile<'static> = NewFile { mode: 0o644, uid: 0, gid: 0, umask: 0, rdev: 0, target: &[] };
const OPERATIONS: [&str; 5] = ["create", "append, 4 KiB", "overwrite, 4 KiB", "rename", "unlink"];
/// Calls in a round, of each operation.
const BATCH: usize = 200;
/// Blocks of the file that is written over.
const BLOCKS: usize = 512;

struct Side {
    volume: Volume,
    log: Ino,
    data: Ino,
}

impl Side {
    fn new(logs_twice: bool, data_checksums: bool, options: Options) -> Result<Self> {
        let region = |_| {
            let file = File::from(rustix::fs::memfd_create("twice", rustix::fs::MemfdFlags::CLOEXEC)?);
            file.set_len(192 << 20)?;
            Ok(RegionFile { file, bind: None })
        };
        let files = (0..2).map(region).collect::<Result<Vec<_>>>()?;
        let nodes = vec![Some(0), Some(1)];
        let layout =
            Layout { nodes, journals: 4, data_checksums, logs_twice, bytes_per_inode: 32 << 10, ..Layout::default() };
        fs::mkfs(Box::new(Mapped::new(&files)?), &layout)?;
        let mut mapped = Mapped::new(&files)?;
        mapped.assume_persistent();
        let options = Options { placement: Placement::Node(0), ..options };
        let volume = Volume::mount(Box::new(mapped), options)?;
        let [log, data] = [&b"log"[..], b"data"].map(|name| volume.create(Ino::ROOT, name, FILE).map(|stat| stat.ino));
        let (log, data) = (log?, data?);
        volume.write(data, 0, &vec![1; BLOCKS * 4096])?;
        Ok(Self { volume, log, data })
    }

    /// Does an operation `calls` times, as often as it can be done in a row; the time of one.
    fn run(&self, operation: &str, calls: usize) -> Result<f64> {
        let (volume, names) = (&self.volume, |i: usize| format!("file {i}").into_bytes());
        let new = |i: usize| format!("new {i}").into_bytes();
        let rename = |i| volume.rename((Ino::ROOT, &names(i)), (Ino::ROOT, &new(i)), Rename::Replace);
        let create = |i| volume.create(Ino::ROOT, &names(i), FILE).map(drop);
        let unlink = |name: Vec<u8>| volume.unlink(Ino::ROOT, &name);
        if ["rename", "unlink"].contains(&operation) {
            (0..calls).try_for_each(create)?;
        }
        let begin = Instant::now();
        match operation {
            "create" => (0..calls).try_for_each(create)?,
            "rename" => (0..calls).try_for_each(rename)?,
            "unlink" => (0..calls).try_for_each(|i| unlink(names(i)))?,
            "append, 4 KiB" => (0..calls).try_for_each(|_| volume.append(self.log, &[2; 4096]).map(drop))?,
            _ => (0..calls)
                .try_for_each(|i| volume.write(self.data, (i * 7 % BLOCKS * 4096) as u64, &[3; 4096]).map(drop))?,
        }
        let took = begin.elapsed().as_nanos() as f64 / calls as f64;
        match operation {
            "create" => (0..calls).try_for_each(|i| unlink(names(i)))?,
            "rename" => (0..calls).try_for_each(|i| unlink(new(i)))?,
            "append, 4 KiB" => volume.truncate(self.log, 0)?,
            _ => {}
        }
        Ok(took)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [operation, logs, calls] = args.as_slice() {
        // Valgrind does not let a program find the clock.
        let options = Options { clock: Arc::new(|| 1), ..Options::default() };
        Side::new(logs == "twice", false, options)?.run(operation, calls.parse()?)?;
        return Ok(());
    }
    let rounds: usize = args.first().map_or(Ok(31), |rounds| rounds.parse())?;
    println!(
        "| operation | once | twice | twice / once | fastest | with checksums of data: once | twice | twice / once | fastest |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut lines: Vec<String> = OPERATIONS.iter().map(|operation| format!("| {operation} |")).collect();
    for data_checksums in [false, true] {
        let new = |logs_twice| Side::new(logs_twice, data_checksums, Options::default());
        let (once, twice) = (new(false)?, new(true)?);
        for (operation, line) in OPERATIONS.iter().zip(&mut lines) {
            let mut times = [Vec::new(), Vec::new()];
            for round in 0..=rounds {
                let both = if round % 2 == 0 { [(0, &once), (1, &twice)] } else { [(1, &twice), (0, &once)] };
                for (at, side) in both {
                    let took = side.run(operation, BATCH)?;
                    // The first round makes what the others find in the caches.
                    times[at].extend((round > 0).then_some(took));
                }
            }
            let ratios = times[0].iter().zip(&times[1]).map(|(once, twice)| twice / once).collect();
            let fastest = times.clone().map(|times| times.into_iter().fold(f64::INFINITY, f64::min));
            let [once, twice] = times.map(median);
            let (ratio, fastest) = (median(ratios), fastest[1] / fastest[0]);
            *line += &format!(" {once:.0} ns | {twice:.0} ns | {ratio:.2} | {fastest:.2} |");
        }
    }
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}
