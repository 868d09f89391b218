//! The papers' loads, scaled down by one factor.
//!
//! **Approach.** A load of the emulated machine is that of the paper with the same threads, blocks
//! and files of the same size, but fewer: memory is `scale` times as slow and a run takes `seconds`
//! in place of the papers' 60, so all data is divided by `scale × 60 / seconds`, and each byte is
//! read and overwritten as often as there. The sizes of filebench's files are kept while there are
//! at least [`LEAST_FILES`]; then files become smaller. RocksDB's tables and levels shrink as its
//! data, and its writes are no faster than those of the real software on a real module, divided by
//! the scale.
//!
//! **Limits.** RocksDB's own software is not slowed down otherwise.

use std::borrow::Cow;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use lab::filebench::{DRAGONFLY, Done, Filebench, NTHREAD, Personality};
use simulate::calibration::{DB_GET_BLOCKS, DB_GET_S, DB_PUT_S, FLOWOP_S};
use simulate::constants::Constants;
use simulate::papers::Paper;
use simulate::reproduce::measured::Ratio;
use simulate::workload::filebench::FlowOp;
use simulate::workload::fio::{Fio, NTHREAD_FILE, NTHREAD_MIXES};
use simulate::workload::rocksdb::{self, Benchmark};

/// Seconds of a run in the papers (Dragonfly Fig. 6; NThread names none: as in the simulator).
const PAPER_SECONDS: f64 = 60.0;
/// Of no paper: four readers that rest long enough to leave each controller less than half full.
/// The papers say what a policy does where none is overloaded, but each of their loads fills an
/// emulated module.
const LIGHT: Program = Program::Light(4, 1000);

/// RocksDB's defaults for data of any size, in bytes: write buffer and tables, level 1, cache of
/// blocks. With 256 MB for a level 1 and the data divided by 200, each compaction rewrote all of
/// it: 208 MB of 199. Divided as well, the same load had 235 compactions of 1.4 MB.
const TABLE: f64 = 67_108_864.0;
const LEVEL_1: f64 = 268_435_456.0;
const CACHE: f64 = 8_388_608.0;
/// Bytes/s that one thread of RocksDB compacts where memory is no limit: `db_bench compact` of 198
/// MB into 132 MB in 0.97 s, on tmpfs, on the machine of bench/volume.md.
const COMPACTION_BW: f64 = 137e6;
/// A file set has at least so many files: one for each thread of Dragonfly's videoserver, as there.
const LEAST_FILES: f64 = 50.0;

/// Bytes that one request of a mount carries at most.
const LARGEST_CALL: f64 = 1048576.0;

/// A load.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// fio, for its bandwidth.
    Fio(Fio),
    /// fio: as many threads that read and rest for so many microseconds after each operation.
    Light(u32, u32),
    /// db_bench with this benchmark.
    Db(Benchmark),
    /// A personality, already scaled down.
    Filebench(Filebench),
}

/// One group of bars.
#[derive(Clone, Debug)]
pub struct Load {
    /// As the figure calls it.
    pub name: Cow<'static, str>,
    pub program: Program,
    /// How many instances run at once.
    pub applications: u32,
    /// Whether application `i` has its data on node `i`, as where the paper makes a file system for
    /// each; else all data is on node 0.
    pub spread: bool,
    /// Whether application `i` begins on node `2 i / applications`; else the kernel chooses.
    pub placed: bool,
    /// Length of the run, as a fraction of the others'.
    pub length: f64,
    /// T_window of Dragonfly.
    pub window_s: f64,
}

impl Load {
    /// A load with all data on node 0, its threads where the kernel puts them.
    fn new(name: impl Into<Cow<'static, str>>, program: Program) -> Self {
        Self { name: name.into(), program, applications: 1, spread: false, placed: false, length: 1.0, window_s: 6.0 }
    }

    /// Whether a paper has it.
    pub fn published(&self) -> bool {
        !matches!(self.program, Program::Light(..)) && self.name != SIMPLEREAD
    }
}

/// The thesis moves a process in DRAM with its memory. A mount moves a thread, on Optane's timing:
/// a load of no paper.
const SIMPLEREAD: &str = "simpleread";

/// A figure that can be measured.
#[derive(Clone, Debug)]
pub struct Figure {
    pub paper: Paper,
    pub id: &'static str,
    pub loads: Vec<Load>,
    /// How many of the loads the paper's averages are over, whichever the user chooses; none where
    /// they are points of a course.
    pub of_published: usize,
    /// Profile of emulated memory, and how many times as slow as in the other figures it is.
    pub memory: (&'static str, f64),
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
            // III-B and V-G, too.
            (Paper::NThread, "4" | "5a" | "5b" | "8") => 4,
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
    Ratio { of, over }
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
/// Fig. 4: the threads stay at the data, or half of them run on the other node. Nobody decides.
const PINNED: &[(&str, &str)] = &[("pinned", "stayed"), ("split", "moved")];
const PINNED_RATIOS: &[Ratio] = &[ratio("moved", "stayed")];
/// Fig. 8: NThread_cpu with different limits for CPUs.
const LIMITS: &[(&str, &str)] = &[
    ("limit-0.80", "80 %"),
    ("limit-0.90", "90 %"),
    ("limit-1.00", "100 %"),
    ("limit-1.10", "110 %"),
    ("limit-1.30", "130 %"),
    ("limit-inf", "no limit"),
];
const LIMIT_RATIOS: &[Ratio] = &[
    ratio("80 %", "100 %"),
    ratio("90 %", "100 %"),
    ratio("110 %", "100 %"),
    ratio("130 %", "100 %"),
    ratio("no limit", "100 %"),
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
/// NThread is the one of Dragonfly's paper, which moves nothing to an overloaded node: a Dragonfly
/// that may not move a byte. MSST_NThread is that of NThread's own paper.
const DRAGONFLY_SERIES: &[(&str, &str)] = &[
    ("off", "baseline"),
    ("no-data", "NThread"),
    ("nthread", "MSST_NThread"),
    ("dragonfly", "Dragonfly"),
    ("auto", "auto"),
];
const DRAGONFLY_RATIOS: &[Ratio] = &[
    ratio("NThread", "baseline"),
    ratio("Dragonfly", "NThread"),
    ratio("Dragonfly", "baseline"),
    ratio("auto", "NThread"),
    ratio("auto", "Dragonfly"),
];
/// Dragonfly Fig. 6(c) and (d).
const COURSE_SERIES: &[(&str, &str)] = &[("no-data", "NThread"), ("dragonfly", "Dragonfly")];
const COURSE_RATIOS: &[Ratio] = &[ratio("Dragonfly", "NThread")];
const READ_SERIES: &[(&str, &str)] =
    &[("off", "off"), ("nthread-rl", "NThread_rl"), ("nthread", "NThread"), ("auto", "auto")];
const READ_RATIOS: &[Ratio] = &[ratio("NThread_rl", "off"), ratio("NThread", "off"), ratio("auto", "off")];

/// NThread's nodes have one module. Dragonfly's have six, which two processors cannot serve at the
/// same scale.
const ONE_MODULE: (&str, f64) = ("optane", 1.0);
/// See [`ONE_MODULE`].
const SIX_MODULES: (&str, f64) = ("optane-6", 2.0);

/// All figures that can be measured. Memory is `scale` times as slow, and a run of the papers takes
/// `seconds`.
pub fn figures(scale: f64, seconds: f64) -> Vec<Figure> {
    let fio = |threads| {
        NTHREAD_MIXES.map(|(name, read)| Load::new(name, Program::Fio(Fio::nthread(threads, 4096.0, read)))).to_vec()
    };
    let pinned = [(1, 8), (1, 16), (4, 8), (4, 16), (16, 8), (16, 16)].into_iter().flat_map(|(kb, threads)| {
        NTHREAD_MIXES.map(|(mix, read)| {
            // Nothing has to settle.
            let name = format!("{kb} KB_{threads} {mix}");
            let job = Fio::nthread(threads, f64::from(kb << 10), read);
            Load { length: 1.0 / 6.0, ..Load::new(name, Program::Fio(job)) }
        })
    });
    let databases = |applications| {
        let all = [("W", Benchmark::FillSeq), ("R", Benchmark::ReadRandom), ("RW", Benchmark::ReadWhileWriting)];
        let one = |(name, benchmark)| Load { applications, spread: true, ..Load::new(name, Program::Db(benchmark)) };
        all.map(one).to_vec()
    };
    let nthread = |applications| {
        let program = |what| Program::Filebench(scaled(what, factor(scale, seconds)));
        let one =
            |what: Filebench| Load { applications, spread: true, ..Load::new(what.personality.name(), program(what)) };
        NTHREAD.map(one).to_vec()
    };
    let application = |heavy: bool, rows: lab::filebench::Rows| {
        let what = if heavy { rows.heavy } else { rows.light };
        let program = Program::Filebench(scaled(what, factor(scale * SIX_MODULES.1, seconds)));
        Load { applications: rows.applications, placed: true, ..Load::new(what.personality.name(), program) }
    };
    let dragonfly = |heavy| DRAGONFLY.map(|rows| application(heavy, rows)).to_vec();
    let webserver = |name: &'static str| Load { name: name.into(), ..application(true, DRAGONFLY[0]) };
    let windows = [("2 s", 2.0), ("4 s", 4.0), ("6 s", 6.0), ("12 s", 12.0), ("30 s", 30.0)];
    let lengths = [("10 s", 10.0), ("30 s", 30.0), ("60 s", 60.0), ("120 s", 120.0), ("180 s", 180.0)];
    let figure = |paper, id, loads: Vec<Load>, unit| {
        let (memory, series, base, ratios) = match (paper, id) {
            (Paper::Dragonfly, "6a" | "6b") => (SIX_MODULES, DRAGONFLY_SERIES, "baseline", DRAGONFLY_RATIOS),
            (Paper::Dragonfly, _) => (SIX_MODULES, COURSE_SERIES, "NThread", COURSE_RATIOS),
            (Paper::Arc, _) => (ONE_MODULE, READ_SERIES, "off", READ_RATIOS),
            (Paper::NThread, "4") => (ONE_MODULE, PINNED, "stayed", PINNED_RATIOS),
            (Paper::NThread, "8") => (ONE_MODULE, LIMITS, "100 %", LIMIT_RATIOS),
            _ => (ONE_MODULE, FIO, "NOVA_n", NTHREAD_RATIOS),
        };
        let course = std::ptr::eq(series, COURSE_SERIES);
        let of_published = loads.iter().filter(|load| load.published() && !course).count();
        Figure { paper, id, loads, of_published, memory, series, base, ratios, unit }
    };
    // Thesis 5.1: one thread reads one file, of 1 GB here, in pieces of 1 MB, from the other node.
    let gb = 1024.0 * 1024.0 * 1024.0;
    let (personality, mb) = (Personality::Videoserver, 1024.0 * 1024.0);
    let file_size = (gb / factor(scale, seconds)).round();
    let read = Filebench { personality, threads: 1, files: 1.0, file_size, io_size: mb };
    let simpleread = Load { placed: true, ..Load::new(SIMPLEREAD, Program::Filebench(read)) };
    let ops = "operations/s";
    vec![
        figure(Paper::NThread, "4", pinned.collect(), "MB/s by Eq. 1"),
        figure(Paper::NThread, "5a", fio(4), "MB/s by Eq. 1"),
        figure(Paper::NThread, "5b", fio(8), "MB/s by Eq. 1"),
        figure(Paper::NThread, "6a", nthread(1), ops),
        figure(Paper::NThread, "6b", nthread(2), ops),
        figure(Paper::NThread, "7a", databases(1), ops),
        figure(Paper::NThread, "7b", databases(2), ops),
        figure(
            Paper::NThread,
            "8",
            vec![Load::new("1 KB", Program::Fio(Fio::fig8(&Constants::CALIBRATED)))],
            "MB/s by Eq. 1",
        ),
        figure(Paper::Dragonfly, "6a", dragonfly(true), ops),
        figure(Paper::Dragonfly, "6b", [dragonfly(false), vec![Load::new("light", LIGHT)]].concat(), ops),
        figure(
            Paper::Dragonfly,
            "6c",
            windows.map(|(name, window_s)| Load { window_s, ..webserver(name) }).to_vec(),
            ops,
        ),
        figure(
            Paper::Dragonfly,
            "6d",
            lengths.map(|(name, s)| Load { length: s / PAPER_SECONDS, ..webserver(name) }).to_vec(),
            ops,
        ),
        figure(Paper::Arc, "8.3", vec![simpleread], "MB/s"),
    ]
}

/// How many times as little data a run of these seconds has, on memory so many times as slow.
pub fn factor(scale: f64, seconds: f64) -> f64 {
    scale * PAPER_SECONDS / seconds
}

/// The configuration of a mount under a policy. The papers' systems have none of homenode's rails:
/// they decide anew in each period. Their limit for CPUs and T_window are those of the simulated
/// experiments. `auto` is homenode's own, as it is.
pub fn configuration(policy: &str, window_s: f64) -> String {
    if policy == "auto" {
        return String::new();
    }
    let c = Constants::CALIBRATED;
    // Dragonfly IV-A leaves NThread's rule for CPUs out.
    let cpu_limit = match (policy, policy.strip_prefix("limit-")) {
        ("dragonfly" | "no-data", _) => f64::INFINITY,
        (_, Some(limit)) => limit.parse().unwrap_or(f64::INFINITY),
        _ => c.cpu_limit,
    };
    let bytes = if policy == "no-data" { "bytes_per_day = 0.0\nburst_bytes = 0.0\n" } else { "" };
    format!(
        "[nthread]\ncpu_limit = {cpu_limit:.2}\n\
         [dragonfly]\nmin_window_s = {window_s:.1}\nmax_window_s = {window_s:.1}\n{bytes}\
         [engine]\ndwell_s = 0.0\ncooldown_s = 0.0\nmoves_per_s = 1e6\nburst = 1000000\n\
         [engine.oscillation]\nleave_alone_s = 0.0\n[engine.settle]\nwindows = 0\n"
    )
}

/// The name of the policy for the command line.
pub fn policy(key: &str) -> &str {
    match key {
        "no-data" => "dragonfly",
        // V-G names no variant; this one moves threads for CPUs, not for controllers.
        key if key.starts_with("limit-") => "nthread-cpu",
        key => key,
    }
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
        Program::Db(Benchmark::FillSeq) => DB_PUT_S / 2.0,
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
                    FlowOp::Stream => pieces(what.io_size),
                    // Half of them is the mean.
                    FlowOp::Append(bytes) => pieces(*bytes / 2.0),
                    FlowOp::Log(bytes) => 1.0 + pieces(*bytes / 2.0),
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
    /// Of a run of the papers' 60.
    pub seconds: f64,
    /// How many times as slow memory is.
    pub scale: f64,
    /// The CPUs of each node.
    pub cpus: [String; 2],
    /// How many times as slow software is, where it is emulated, too.
    pub slow: Option<f64>,
}

impl Runner<'_> {
    fn factor(&self) -> f64 {
        factor(self.scale, self.seconds)
    }

    fn seconds(&self, load: &Load) -> f64 {
        self.seconds * load.length
    }

    /// Bytes of the data of one application.
    pub fn bytes(&self, load: &Load) -> f64 {
        match load.program {
            Program::Fio(Fio { threads, .. }) | Program::Light(threads, _) => {
                f64::from(threads) * NTHREAD_FILE / self.factor()
            }
            // The log has every value once more.
            Program::Db(_) => 2.0 * self.keys() * rocksdb::NTHREAD.1,
            Program::Filebench(what) => what.files * what.file_size,
        }
    }

    /// One CPU of each node.
    fn first(&self) -> String {
        self.cpus.each_ref().map(|cpus| cpus.split(',').next().unwrap_or_default()).join(",")
    }

    fn keys(&self) -> f64 {
        (rocksdb::NTHREAD.0 / self.factor()).round()
    }

    /// Makes the files of one application.
    pub fn fill(&self, load: &Load, dir: &Path) -> Result<()> {
        match load.program {
            Program::Fio(Fio { threads, .. }) | Program::Light(threads, _) => {
                let file_size = (NTHREAD_FILE / self.factor()).round();
                let personality = Personality::Videoserver;
                let files = f64::from(threads);
                lab::filebench::fill(dir, &Filebench { personality, threads, files, file_size, io_size: 4096.0 })
            }
            Program::Db(Benchmark::FillSeq) => std::fs::create_dir_all(dir).with_context(|| dir.display().to_string()),
            Program::Db(_) => output(&mut self.db_bench(dir, Benchmark::FillSeq, 1, self.keys())).map(drop),
            Program::Filebench(what) => lab::filebench::fill(dir, &what),
        }
    }

    fn db_bench(&self, dir: &Path, benchmark: Benchmark, threads: u32, keys: f64) -> Command {
        let mut command = Command::new("db_bench");
        let scaled = |bytes: f64| format!("{:.0}", bytes / self.factor());
        command.arg(format!("--benchmarks={}", benchmark.name())).arg(format!("--db={}", dir.display()));
        command.arg(format!("--num={keys}")).arg(format!("--value_size={}", rocksdb::NTHREAD.1));
        command.arg(format!("--threads={}", benchmark.option(threads))).arg("--compression_type=none");
        command.arg(format!("--write_buffer_size={}", scaled(TABLE)));
        command.arg(format!("--target_file_size_base={}", scaled(TABLE)));
        command.arg(format!("--max_bytes_for_level_base={}", scaled(LEVEL_1)));
        command.arg(format!("--cache_size={}", scaled(CACHE)));
        command
    }

    /// No faster than on a real machine: memory is slow here, RocksDB's software is not.
    fn limit(&self, command: &mut Command, benchmark: Benchmark) {
        let (_, value, threads) = rocksdb::NTHREAD;
        let writers = if benchmark == Benchmark::FillSeq { threads } else { 1 };
        let puts = rocksdb::put_bw(&Constants::CALIBRATED, value, writers);
        command.arg(format!("--benchmark_write_rate_limit={:.0}", puts / self.scale));
        // In key order nothing is compacted.
        if benchmark == Benchmark::ReadWhileWriting {
            command.arg(format!("--rate_limiter_bytes_per_sec={:.0}", COMPACTION_BW / self.scale));
        }
    }

    /// fio, whose threads rest for so many microseconds after each operation.
    fn fio(&self, load: &Load, job: &Fio, rest_us: u32, dir: &Path) -> Command {
        let mut fio = Command::new("fio");
        fio.args(["--output-format=json", "--name=job", "--thread", "--ioengine=psync", "--time_based"]);
        fio.args(["--group_reporting", "--invalidate=0", "--fadvise_hint=0", "--randrepeat=0", "--norandommap"]);
        fio.args(["--filename_format=file$jobnum", "--rw=randrw"]);
        fio.arg(format!("--rwmixread={:.0}", 100.0 * job.read)).arg(format!("--bs={:.0}", job.block));
        if rest_us > 0 {
            fio.arg(format!("--thinktime={rest_us}"));
        }
        fio.arg(format!("--runtime={}", self.seconds(load)));
        fio.arg(format!("--numjobs={}", job.threads)).arg(format!("--directory={}", dir.display()));
        fio.arg(format!("--size={:.0}", job.file_size / self.factor()));
        fio
    }

    /// The command of application `i`.
    fn command(&self, load: &Load, policy: &str, i: u32, dir: &Path) -> Command {
        match load.program {
            Program::Fio(job) => {
                let rest_us = (job.think_s * self.scale * 1e6) as u32;
                let pinned = match policy {
                    "pinned" => vec![format!("--cpus_allowed={}", self.cpus[0])],
                    // The threads in turn.
                    "split" => vec!["--cpus_allowed_policy=split".into(), format!("--cpus_allowed={}", self.first())],
                    _ => Vec::new(),
                };
                let mut fio = self.fio(load, &job, rest_us, dir);
                fio.args(pinned);
                fio
            }
            Program::Light(threads, rest_us) => self.fio(load, &Fio::nthread(threads, 4096.0, 1.0), rest_us, dir),
            // fillseq ends with its keys, not with a time; each thread writes them all.
            Program::Db(Benchmark::FillSeq) => {
                let (benchmark, threads) = (Benchmark::FillSeq, rocksdb::NTHREAD.2);
                let mut command = self.db_bench(dir, benchmark, threads, (self.keys() / f64::from(threads)).round());
                self.limit(&mut command, benchmark);
                command
            }
            Program::Db(benchmark) => {
                let mut command = self.db_bench(dir, benchmark, rocksdb::NTHREAD.2, self.keys());
                self.limit(&mut command, benchmark);
                command.args(["--use_existing_db=1".to_owned(), format!("--duration={:.0}", self.seconds(load))]);
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
                command.arg(format!("--seconds={}", self.seconds(load)));
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
    pub fn run(&self, load: &Load, policy: &str, dir: impl Fn(u32) -> std::path::PathBuf) -> Result<f64> {
        let start = |i| {
            let mut command = self.command(load, policy, i, &dir(i));
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
            Program::Filebench(_) => {
                let done: Done = serde_json::from_str(text).context("homenode-filebench")?;
                let per_s = |count: u64| count as f64 / self.seconds(load);
                Ok(if load.name == SIMPLEREAD { per_s(done.read_bytes) / 1e6 } else { per_s(done.operations) })
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
        let videos = scaled(DRAGONFLY[2].heavy, 400.0);
        assert_eq!((videos.files, videos.io_size), (50.0, 262144.0), "each of 28 threads has a file of its own");
        let webserver = scaled(NTHREAD[1], 1000.0);
        assert_eq!((webserver.files, webserver.file_size), (100.0, 16384.0));
        assert_eq!(factor(200.0, 12.0), 1000.0);
    }

    /// A webserver's round: ten times open, read, find the end and close, then the log.
    #[test]
    fn a_programs_own_time_is_shared_out_among_its_calls() {
        let load = |program| Load::new("", program);
        let webserver = program_s(&load(Program::Filebench(scaled(NTHREAD[1], 1000.0))));
        assert!((webserver * 32.0 - FLOWOP_S * 31.0).abs() < 1e-12, "{webserver}");
        assert_eq!(program_s(&load(LIGHT)), 0.0);
        assert!((program_s(&load(Program::Db(Benchmark::ReadRandom))) * DB_GET_BLOCKS - DB_GET_S).abs() < 1e-12);
    }

    /// Level 1 held the whole database, so each compaction rewrote all of it, and ten threads read
    /// beside the writer in place of nine.
    #[test]
    fn rocksdbs_levels_shrink_with_its_data_and_ten_threads_run() {
        let runner =
            Runner { built: Path::new("/"), seconds: 60.0, scale: 200.0, cpus: Default::default(), slow: None };
        let load = Load::new("RW", Program::Db(Benchmark::ReadWhileWriting));
        let command = runner.command(&load, "off", 0, Path::new("/db"));
        let args: Vec<&str> = command.get_args().filter_map(|arg| arg.to_str()).collect();
        let wanted = ["--num=50000", "--threads=9", "--write_buffer_size=335544", "--target_file_size_base=335544"];
        for wanted in
            wanted.iter().chain(&["--max_bytes_for_level_base=1342177", "--rate_limiter_bytes_per_sec=685000"])
        {
            assert!(args.contains(wanted), "{wanted}: {args:?}");
        }
        assert!(args.iter().any(|arg| arg.starts_with("--benchmark_write_rate_limit=2")), "{args:?}");
        let write = runner.command(&Load::new("W", Program::Db(Benchmark::FillSeq)), "off", 0, Path::new("/db"));
        let args: Vec<&str> = write.get_args().filter_map(|arg| arg.to_str()).collect();
        assert!(args.contains(&"--threads=10") && args.contains(&"--num=5000"), "{args:?}");
        assert!(!args.iter().any(|arg| arg.starts_with("--rate_limiter")), "{args:?}");
    }

    #[test]
    fn fio_has_the_papers_mix_blocks_and_rest_and_is_pinned_for_fig_4_alone() {
        let cpus = ["0,1".to_owned(), "2,3".to_owned()];
        let runner = Runner { built: Path::new("/"), seconds: 60.0, scale: 200.0, cpus, slow: None };
        let args = |program, policy: &str| -> Vec<String> {
            let command = runner.command(&Load::new("", program), policy, 0, Path::new("/d"));
            command.get_args().filter_map(|arg| arg.to_str()).map(str::to_owned).collect()
        };
        let has = |args: &[String], wanted: &[&str]| wanted.iter().all(|arg| args.iter().any(|given| given == arg));
        let mix = Program::Fio(Fio::nthread(16, 16384.0, 0.6));
        let split = args(mix, "split");
        assert!(has(&split, &["--rwmixread=60", "--bs=16384", "--numjobs=16", "--size=20000000"]), "{split:?}");
        assert!(has(&split, &["--cpus_allowed_policy=split", "--cpus_allowed=0,2"]), "{split:?}");
        assert!(has(&args(mix, "pinned"), &["--cpus_allowed=0,1"]));
        let free = args(mix, "nthread");
        assert!(!free.iter().any(|arg| arg.contains("cpus") || arg.contains("thinktime")), "{free:?}");
        // 3 µs, 200 times as long.
        let busy = args(Program::Fio(Fio::fig8(&Constants::CALIBRATED)), "limit-0.80");
        assert!(has(&busy, &["--thinktime=600", "--bs=1024", "--rwmixread=100"]), "{busy:?}");
        assert!(has(&args(LIGHT, "off"), &["--thinktime=1000", "--bs=4096", "--numjobs=4"]));
    }

    #[test]
    fn every_load_has_a_name_of_its_own_and_dragonflys_machine_six_modules() {
        for figure in figures(200.0, 60.0) {
            let names: std::collections::BTreeSet<&str> = figure.loads.iter().map(|load| &*load.name).collect();
            assert_eq!(names.len(), figure.loads.len(), "{}", figure.id);
            assert_eq!(figure.memory.0 == "optane-6", figure.paper == Paper::Dragonfly);
            let series: Vec<&str> = figure.series.iter().map(|series| series.1).collect();
            let known = |ratio: &Ratio| series.contains(&ratio.of) && series.contains(&ratio.over);
            assert!(figure.ratios.iter().all(known) && series.contains(&figure.base), "{}", figure.id);
        }
    }

    #[test]
    fn the_papers_policies_have_no_rails_and_dragonflys_nthread_moves_no_data() {
        let none = configuration("no-data", 6.0);
        assert!(none.contains("bytes_per_day = 0.0") && none.contains("[engine.settle]\nwindows = 0"), "{none}");
        assert!(configuration("dragonfly", 12.0).contains("max_window_s = 12.0"));
        assert_eq!((configuration("auto", 6.0).as_str(), policy("no-data"), policy("auto")), ("", "dragonfly", "auto"));
    }

    #[test]
    fn the_rate_of_db_bench_is_the_last_one() {
        let text =
            "fillseq : 1.0 micros/op 5 ops/sec 1 seconds\nreadrandom   :   12.5 micros/op 81000 ops/sec 12.000 seconds";
        assert_eq!(db_rate(text), Some(81000.0));
        assert_eq!(db_rate("nothing"), None);
    }
}
