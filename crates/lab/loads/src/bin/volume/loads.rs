//! The papers' loads, scaled down by one factor.
//!
//! **Approach.** A load of the emulated machine is that of the paper with the same threads, blocks
//! and files of the same size, but fewer: memory is `scale` times as slow and a run takes `seconds`
//! in place of the papers' 60, so all data is divided by `scale × 60 / seconds`, and each byte is
//! read and overwritten as often as there. The sizes of filebench's files are kept while there are
//! at least [`LEAST_FILES`]; then files become smaller.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use lab::filebench::{DRAGONFLY, Done, Filebench, NTHREAD, Personality};
use simulate::calibration::{DB_GET_BLOCKS, DB_GET_S, DB_PUT_S, FLOWOP_S};
use simulate::papers::Paper;
use simulate::reproduce::measured::Ratio;
use simulate::workload::filebench::FlowOp;

/// Seconds of a run in the papers (Dragonfly Fig. 6; NThread names none: as in the simulator).
const PAPER_SECONDS: f64 = 60.0;
/// NThread V-C: bytes of a file of fio.
const FIO_FILE: f64 = 4e9;
/// Of no paper: four readers that rest long enough to leave each controller less than half full.
/// The papers say what a policy does where none is overloaded, but each of their loads fills an
/// emulated module.
const LIGHT: Load =
    Load { name: "light", program: Program::Light(4, 1000), applications: 1, spread: false, placed: false };

/// NThread V-E: keys of a RocksDB, bytes of a value, threads.
const ROCKSDB: (f64, u32, u32) = (10e6, 4096, 10);
/// RocksDB's write buffer and target size of a table are 64 MB by default: a 600th of the paper's
/// 40 GB. Not below this, the size in a run of 12 s at the scale 200 that keeps ten tables.
const LEAST_TABLE: u64 = 4 << 20;
/// A file set has at least so many files.
const LEAST_FILES: f64 = 10.0;

/// Bytes that one request of a mount carries at most.
const LARGEST_CALL: f64 = 1048576.0;

/// A load.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// fio: threads, and per cent of operations that read.
    Fio(u32, u32),
    /// fio: as many threads that read and rest for so many microseconds after each operation.
    Light(u32, u32),
    /// db_bench with this benchmark.
    Db(&'static str),
    /// A personality, already scaled down.
    Filebench(Filebench),
}

/// One group of bars.
#[derive(Clone, Debug)]
pub struct Load {
    /// As the figure calls it.
    pub name: &'static str,
    pub program: Program,
    /// How many instances run at once.
    pub applications: u32,
    /// Whether application `i` has its data on node `i`, as where the paper makes a file system for
    /// each; else all data is on node 0.
    pub spread: bool,
    /// Whether application `i` begins on node `2 i / applications`; else the kernel chooses.
    pub placed: bool,
}

impl Load {
    /// Whether a paper has it.
    pub fn published(&self) -> bool {
        !matches!(self.program, Program::Light(..))
    }
}

/// A figure that can be measured.
#[derive(Clone, Debug)]
pub struct Figure {
    pub paper: Paper,
    pub id: &'static str,
    pub loads: Vec<Load>,
    /// Policy, and the name of its series.
    pub series: &'static [(&'static str, &'static str)],
    /// The series that others are relative to.
    pub base: &'static str,
    pub ratios: &'static [Ratio],
    pub unit: &'static str,
}

impl Figure {
    /// CPUs of a node of the paper's machine, as it was for this figure: as the simulator has them.
    pub fn cores(&self) -> u32 {
        match (self.paper, self.id) {
            // V-C: all others are offline.
            (Paper::NThread, "5a" | "5b") => 4,
            // Table I.
            (Paper::Dragonfly, _) => 28,
            // 4.1.
            (Paper::Arc, _) => 8,
            // V-A.
            _ => 10,
        }
    }
}

const fn ratio(of: &'static str, over: &'static str) -> Ratio {
    Ratio { of, over, stated: None }
}

/// `NOVA` keeps all data on node 0, `NOVA_n` writes to any node: no policy. `off` writes where the
/// writer runs, as homenode does.
const FIO: &[(&str, &str)] = &[
    ("node0", "NOVA"),
    ("random", "NOVA_n"),
    ("off", "off"),
    ("nthread-rl", "NThread_rl"),
    ("nthread-cpu", "NThread_cpu"),
    ("nthread-nm", "NThread_nm"),
    ("nthread", "NThread"),
    ("dragonfly", "Dragonfly"),
    ("auto", "auto"),
];
const NTHREAD_RATIOS: &[Ratio] = &[
    ratio("NThread_rl", "NOVA"),
    ratio("NThread_rl", "NOVA_n"),
    ratio("NThread_rl", "off"),
    ratio("NThread", "NThread_rl"),
    ratio("NThread", "NThread_cpu"),
    ratio("NThread", "NOVA"),
    ratio("NThread", "NOVA_n"),
    ratio("NThread", "off"),
    ratio("Dragonfly", "NThread"),
    ratio("auto", "NThread"),
    ratio("auto", "off"),
];
const DRAGONFLY_SERIES: &[(&str, &str)] =
    &[("off", "baseline"), ("nthread", "NThread"), ("dragonfly", "Dragonfly"), ("auto", "auto")];
const DRAGONFLY_RATIOS: &[Ratio] = &[
    ratio("NThread", "baseline"),
    ratio("Dragonfly", "NThread"),
    ratio("Dragonfly", "baseline"),
    ratio("auto", "NThread"),
    ratio("auto", "Dragonfly"),
];
const READ_SERIES: &[(&str, &str)] =
    &[("off", "off"), ("nthread-rl", "NThread_rl"), ("nthread", "NThread"), ("auto", "auto")];
/// The thesis moves the process; a mount moves its thread.
const READ_RATIOS: &[Ratio] = &[
    Ratio { of: "NThread_rl", over: "off", stated: Some(("more bandwidth with task migration", "all")) },
    Ratio { of: "NThread", over: "off", stated: None },
    Ratio { of: "auto", over: "off", stated: None },
];

/// All figures that can be measured; `factor` is how many times as little data there is.
pub fn figures(factor: f64) -> Vec<Figure> {
    let load = |name, program| Load { name, program, applications: 1, spread: false, placed: false };
    let fio = |threads| {
        let mixes = [("read-only", 100), ("rw80", 80), ("rw60", 60)];
        mixes.map(|(name, reads)| load(name, Program::Fio(threads, reads))).to_vec()
    };
    let databases = |applications| {
        let all = [("W", "fillseq"), ("R", "readrandom"), ("RW", "readwhilewriting")];
        all.map(|(name, benchmark)| Load { applications, spread: true, ..load(name, Program::Db(benchmark)) }).to_vec()
    };
    let scaled = |what: Filebench| Program::Filebench(scaled(what, factor));
    let nthread = |applications| {
        let one = |what: Filebench| Load { applications, spread: true, ..load(what.personality.name(), scaled(what)) };
        NTHREAD.map(one).to_vec()
    };
    let dragonfly = |heavy| {
        let one = |rows: lab::filebench::Rows| {
            let what = if heavy { rows.heavy } else { rows.light };
            Load { applications: rows.applications, placed: true, ..load(what.personality.name(), scaled(what)) }
        };
        DRAGONFLY.into_iter().map(one).chain((!heavy).then_some(LIGHT)).collect()
    };
    let figure = |paper, id, loads, unit| match paper {
        Paper::Dragonfly => {
            let (series, ratios) = (DRAGONFLY_SERIES, DRAGONFLY_RATIOS);
            Figure { paper, id, loads, series, base: "baseline", ratios, unit }
        }
        Paper::Arc => Figure { paper, id, loads, series: READ_SERIES, base: "off", ratios: READ_RATIOS, unit },
        _ => Figure { paper, id, loads, series: FIO, base: "NOVA_n", ratios: NTHREAD_RATIOS, unit },
    };
    // Thesis 5.1: one thread reads one file, of 1 GB here, in pieces of 1 MB, from the other node.
    let gb = 1024.0 * 1024.0 * 1024.0;
    let (personality, mb) = (Personality::Videoserver, 1024.0 * 1024.0);
    let read = Filebench { personality, threads: 1, files: 1.0, file_size: (gb / factor).round(), io_size: mb };
    let simpleread = Load { placed: true, ..load("simpleread", Program::Filebench(read)) };
    vec![
        figure(Paper::NThread, "5a", fio(4), "MB/s by Eq. 1"),
        figure(Paper::NThread, "5b", fio(8), "MB/s by Eq. 1"),
        figure(Paper::NThread, "6a", nthread(1), "operations/s"),
        figure(Paper::NThread, "6b", nthread(2), "operations/s"),
        figure(Paper::NThread, "7a", databases(1), "operations/s"),
        figure(Paper::NThread, "7b", databases(2), "operations/s"),
        figure(Paper::Dragonfly, "6a", dragonfly(true), "operations/s"),
        figure(Paper::Dragonfly, "6b", dragonfly(false), "operations/s"),
        figure(Paper::Arc, "8.3", vec![simpleread], "MB/s"),
    ]
}

/// How many times as little data a run of these seconds has, on memory so many times as slow.
pub fn factor(scale: f64, seconds: f64) -> f64 {
    scale * PAPER_SECONDS / seconds
}

fn scaled(what: Filebench, factor: f64) -> Filebench {
    let files = (what.files / factor).round().max(LEAST_FILES);
    let fewer = what.files / files;
    let smaller = (factor / fewer).max(1.0);
    Filebench { files, file_size: (what.file_size / smaller).round(), ..what }
}

/// CPU seconds of the program itself for each call of a load that takes an emulated core.
pub fn program_s(load: &Load) -> f64 {
    match load.program {
        // A part of the calls' time, as in the simulator.
        Program::Fio(..) | Program::Light(..) => 0.0,
        // To the log, and to the table.
        Program::Db("fillseq") => DB_PUT_S / 2.0,
        Program::Db(_) => DB_GET_S / DB_GET_BLOCKS,
        Program::Filebench(what) => {
            let round = what.personality.round();
            let pieces = |bytes: f64| (bytes / what.io_size.min(LARGEST_CALL)).ceil();
            let calls: f64 = round
                .iter()
                .map(|op| match op {
                    FlowOp::Open | FlowOp::Create | FlowOp::Delete => 1.0,
                    // Another one finds the end.
                    FlowOp::Read => pieces(what.file_size) + 1.0,
                    FlowOp::Write => pieces(what.file_size),
                    FlowOp::Append(bytes) => pieces(*bytes),
                    FlowOp::Log(bytes) => 1.0 + pieces(*bytes),
                    // The kernel answers these by itself.
                    FlowOp::Stat | FlowOp::Close | FlowOp::Fsync => 0.0,
                })
                .sum();
            FLOWOP_S * round.len() as f64 / calls.max(1.0)
        }
    }
}

/// Makes and runs loads.
pub struct Runner<'a> {
    /// The directory of our programs.
    pub built: &'a Path,
    pub seconds: f64,
    pub factor: f64,
    /// The CPUs of each node.
    pub cpus: [String; 2],
    /// How many times as slow software is, where it is emulated, too.
    pub slow: Option<f64>,
}

impl Runner<'_> {
    /// Bytes of the data of one application.
    pub fn bytes(&self, load: &Load) -> f64 {
        match load.program {
            Program::Fio(threads, _) | Program::Light(threads, _) => f64::from(threads) * FIO_FILE / self.factor,
            // The log has every value once more.
            Program::Db(_) => 2.0 * self.keys() * f64::from(ROCKSDB.1),
            Program::Filebench(what) => what.files * what.file_size,
        }
    }

    fn keys(&self) -> f64 {
        (ROCKSDB.0 / self.factor).round()
    }

    /// Makes the files of one application.
    pub fn fill(&self, load: &Load, dir: &Path) -> Result<()> {
        match load.program {
            Program::Fio(threads, _) | Program::Light(threads, _) => {
                let file_size = (FIO_FILE / self.factor).round();
                let personality = Personality::Videoserver;
                let files = f64::from(threads);
                lab::filebench::fill(dir, &Filebench { personality, threads, files, file_size, io_size: 4096.0 })
            }
            Program::Db("fillseq") => std::fs::create_dir_all(dir).with_context(|| dir.display().to_string()),
            Program::Db(_) => output(&mut self.db_bench(dir, "fillseq", 1, self.keys())).map(drop),
            Program::Filebench(what) => lab::filebench::fill(dir, &what),
        }
    }

    fn db_bench(&self, dir: &Path, benchmark: &str, threads: u32, keys: f64) -> Command {
        let mut command = Command::new("db_bench");
        let table = LEAST_TABLE;
        command.arg(format!("--benchmarks={benchmark}")).arg(format!("--db={}", dir.display()));
        command.arg(format!("--num={keys}")).arg(format!("--value_size={}", ROCKSDB.1));
        command.arg(format!("--threads={threads}")).arg("--compression_type=none");
        command.args([format!("--write_buffer_size={table}"), format!("--target_file_size_base={table}")]);
        // As the data, so that it stays as small a part of it.
        command.arg(format!("--cache_size={:.0}", f64::from(8 << 20) / self.factor));
        command
    }

    /// The command of application `i`.
    fn command(&self, load: &Load, i: u32, dir: &Path) -> Command {
        match load.program {
            Program::Fio(threads, _) | Program::Light(threads, _) => {
                let mut fio = Command::new("fio");
                fio.args(["--output-format=json", "--name=job", "--thread", "--ioengine=psync", "--time_based"]);
                fio.args([
                    "--group_reporting",
                    "--invalidate=0",
                    "--fadvise_hint=0",
                    "--randrepeat=0",
                    "--norandommap",
                ]);
                fio.args(["--filename_format=file$jobnum", "--rw=randrw", "--bs=4k"]);
                match load.program {
                    Program::Fio(_, reads) => fio.arg(format!("--rwmixread={reads}")),
                    Program::Light(_, rest_us) => fio.args(["--rwmixread=100", &format!("--thinktime={rest_us}")]),
                    _ => &mut fio,
                };
                fio.arg(format!("--runtime={}", self.seconds));
                fio.arg(format!("--numjobs={threads}")).arg(format!("--directory={}", dir.display()));
                fio.arg(format!("--size={:.0}", FIO_FILE / self.factor));
                fio
            }
            // fillseq ends with its keys, not with a time; each thread writes them all.
            Program::Db("fillseq") => {
                self.db_bench(dir, "fillseq", ROCKSDB.2, (self.keys() / f64::from(ROCKSDB.2)).round())
            }
            Program::Db(benchmark) => {
                // readwhilewriting adds a thread that writes.
                let threads = ROCKSDB.2 - u32::from(benchmark == "readwhilewriting");
                let mut command = self.db_bench(dir, benchmark, threads, self.keys());
                command.args(["--use_existing_db=1".to_owned(), format!("--duration={:.0}", self.seconds)]);
                // By default a thread looks at the clock every 1,000 operations: beside a writer
                // these take 16 s.
                command.arg("--ops_between_duration_checks=10");
                command
            }
            Program::Filebench(what) => {
                let mut command = Command::new(self.built.join("homenode-filebench"));
                command.arg("--dir").arg(dir).arg(format!("--personality={}", what.personality.name()));
                command.arg(format!("--files={}", what.files)).arg(format!("--file-size={}", what.file_size));
                command.arg(format!("--io-size={}", what.io_size)).arg(format!("--threads={}", what.threads));
                command.arg(format!("--seconds={}", self.seconds));
                if let Some(slow) = self.slow {
                    command.arg(format!("--scale={slow}"));
                    command.args(self.cpus.iter().map(|cpus| format!("--node={cpus}")));
                }
                if load.placed {
                    // One application alone begins away from its data.
                    let node = if load.applications == 1 { 1 } else { (2 * i / load.applications) as usize };
                    command.arg("--begin-on").arg(&self.cpus[node]);
                }
                command
            }
        }
    }

    /// Runs all applications of a load at once; the sum of their values, in the figure's unit.
    pub fn run(&self, load: &Load, dir: impl Fn(u32) -> std::path::PathBuf) -> Result<f64> {
        let start = |i| {
            let mut command = self.command(load, i, &dir(i));
            let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            child
                .with_context(|| format!("{} could not be started (is it installed?)", command.get_program().display()))
        };
        let running: Vec<_> = (0..load.applications).map(start).collect();
        let mut sum = 0.0;
        // All are waited for, also after an error.
        let ended: Vec<Result<String>> = running.into_iter().map(|child| text(child?.wait_with_output()?)).collect();
        for text in ended {
            sum += self.value(load, &text?)?;
        }
        Ok(sum)
    }

    fn value(&self, load: &Load, text: &str) -> Result<f64> {
        match load.program {
            Program::Fio(..) | Program::Light(..) => {
                let json = text.get(text.find('{').context("fio said nothing")?..).unwrap_or_default();
                let result: serde_json::Value = serde_json::from_str(json).context("fio's result")?;
                let bandwidth = |direction: &str| result["jobs"][0][direction]["bw_bytes"].as_f64();
                let (read, written) =
                    bandwidth("read").zip(bandwidth("write")).context("fio's result has no bandwidth")?;
                Ok(match load.program {
                    Program::Light(..) => read / 4096.0,
                    _ => (read / 3.0 + written) / 1e6,
                })
            }
            Program::Db(_) => db_rate(text).context("db_bench said no rate"),
            Program::Filebench(what) => {
                let done: Done = serde_json::from_str(text).context("homenode-filebench")?;
                // An operation of videoserver is a whole file, of which a run of seconds reads a
                // part.
                let files = done.read_bytes as f64 / what.file_size / self.seconds;
                Ok(match (what.files == 1.0, what.personality) {
                    // simpleread.
                    (true, _) => done.read_bytes as f64 / 1e6 / self.seconds,
                    (false, Personality::Videoserver) => files,
                    _ => done.operations as f64 / self.seconds,
                })
            }
        }
    }
}

/// `readrandom : 12.3 micros/op 81000 ops/sec 12.0 seconds …`.
fn db_rate(text: &str) -> Option<f64> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let at = words.iter().rposition(|word| *word == "ops/sec")?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

fn text(output: std::process::Output) -> Result<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "a program ended with {}: {}", output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let done = command.stdin(Stdio::null()).output();
    text(done.with_context(|| format!("{name} could not be started (is it installed?)"))?).context(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_shrinks_by_the_factor_and_keeps_the_size_of_files_while_there_are_enough() {
        let bytes = |what: Filebench| what.files * what.file_size;
        for what in NTHREAD.into_iter().chain(DRAGONFLY.into_iter().flat_map(|rows| [rows.heavy, rows.light])) {
            let small = scaled(what, 1000.0);
            let off = bytes(what) / bytes(small) / 1000.0;
            assert!((0.99..1.01).contains(&off) || small.file_size == what.file_size, "{what:?} {small:?}");
            assert!(small.files >= LEAST_FILES && small.threads == what.threads, "{small:?}");
        }
        let webserver = scaled(NTHREAD[1], 1000.0);
        assert_eq!((webserver.files, webserver.file_size), (100.0, 16384.0));
        assert_eq!(factor(200.0, 12.0), 1000.0);
    }

    /// A webserver's round: ten times open, read, find the end and close, then the log.
    #[test]
    fn a_programs_own_time_is_shared_out_among_its_calls() {
        let load = |program| Load { name: "", program, applications: 1, spread: false, placed: false };
        let webserver = program_s(&load(Program::Filebench(scaled(NTHREAD[1], 1000.0))));
        assert!((webserver * 32.0 - FLOWOP_S * 31.0).abs() < 1e-12, "{webserver}");
        assert_eq!(program_s(&load(Program::Fio(4, 80))), 0.0);
        assert!((program_s(&load(Program::Db("readrandom"))) * 3.0 - DB_GET_S).abs() < 1e-12);
    }

    #[test]
    fn the_rate_of_db_bench_is_the_last_one() {
        let text =
            "fillseq : 1.0 micros/op 5 ops/sec 1 seconds\nreadrandom   :   12.5 micros/op 81000 ops/sec 12.000 seconds";
        assert_eq!(db_rate(text), Some(81000.0));
        assert_eq!(db_rate("nothing"), None);
    }
}
