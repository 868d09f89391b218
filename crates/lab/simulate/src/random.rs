//! Random scenarios: machines and loads that were not chosen to favour any policy.
//!
//! **Problem.** A policy tuned on ten scenarios is good at ten scenarios.
//!
//! **Approach.** Scenario K of a seed is drawn from its own random stream, as the text of a
//! scenario file, so that it can be printed, read, changed and run again. The machine has 2 to 8
//! nodes of Optane or DRAM, sometimes one without CPUs, at equal distances, in a ring or at
//! arbitrary distances. It runs 1 to 256 threads in up to five programs of every kind on every
//! file system. Their data is on one node, spread, or local to its threads; the kernel places the
//! threads, or they start on one node, or they are bound. Every fourth scenario is small, with at
//! most [`SMALL_NODES`] nodes and [`SMALL_THREADS`] threads, so that its optimum can be searched
//! for.
//!
//! **Limits.** Loads are constant: nothing starts or ends during a run, so a policy that keeps
//! moving things oscillates.

use std::fmt::Write as _;
use std::path::Path;

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use crate::scenario::{ScenarioError, ScenarioFile};

/// Most nodes of a small scenario.
pub const SMALL_NODES: u32 = 4;
/// Most threads of a small scenario.
pub const SMALL_THREADS: u32 = 8;
/// Most threads of any.
pub const MOST_THREADS: u32 = 256;
/// Seconds of each, and of its warm-up, which is not measured.
const DURATION_S: u32 = 60;
/// Ten windows: after them, no policy should move anything.
pub const WARMUP_S: u32 = 10;

/// The text of the scenario file with number `index` of a seed.
pub fn text(seed: u64, index: u32) -> String {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    rng.set_stream(u64::from(index));
    let mut draft = Draft { rng, text: String::new(), seed, index };
    draft.file();
    draft.text
}

/// The scenario with number `index` of a seed.
///
/// # Errors
///
/// [`ScenarioError`] only if this module draws what `scenario` refuses: a mistake in one of them.
pub fn scenario(seed: u64, index: u32) -> Result<ScenarioFile, ScenarioError> {
    ScenarioFile::parse(&text(seed, index), Path::new(&name(index)))
}

/// Name of the scenario with this number.
pub fn name(index: u32) -> String {
    format!("random {index}")
}

/// Draws a scenario file.
struct Draft {
    rng: ChaCha12Rng,
    text: String,
    seed: u64,
    index: u32,
}

/// The machine's shape, for drawing its workloads.
struct Shape {
    nodes: u32,
    /// Nodes with CPUs come first.
    seats: u32,
    small: bool,
}

impl Draft {
    fn below(&mut self, n: u32) -> u32 {
        self.rng.random_range(0..n.max(1))
    }

    /// One time in `n`.
    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.random_range(0..of.len())]
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(line);
        self.text.push('\n');
    }

    fn file(&mut self) {
        let (seed, index) = (self.seed, self.index);
        self.line(format_args!("# Random scenario {index} of seed {seed}."));
        self.line(format_args!("name = \"{}\"", name(index)));
        self.line(format_args!("duration_s = {DURATION_S}\nwarmup_s = {WARMUP_S}"));
        let threads_seed = self.below(1000);
        self.line(format_args!("seed = {threads_seed}\npolicy = \"auto\""));
        let shape = self.machine();
        let jobs = if shape.small { 1 + self.below(2) } else { 1 + self.below(5) };
        let mut left = if shape.small { SMALL_THREADS } else { MOST_THREADS };
        for job in 0..jobs {
            // Small programs are as likely as large ones; those to come need a thread and, with a
            // writer beside the readers, two.
            let most = (left - 2 * (jobs - 1 - job)).min(if shape.small { SMALL_THREADS } else { 96 });
            left -= self.workload(&shape, job, most);
        }
    }

    fn machine(&mut self) -> Shape {
        let small = self.index % 4 == 3;
        let nodes = if small { 2 + self.below(SMALL_NODES - 1) } else { self.pick(&[2, 2, 2, 3, 4, 4, 5, 6, 8]) };
        let cpus = if small { self.pick(&[2, 4, 8]) } else { self.pick(&[4, 8, 16, 28]) };
        self.line(format_args!("\n[machine]\nnodes = {nodes}\ncpus = {cpus}\nmemory = \"256 GB\""));
        if self.one_in(3) {
            let (read, write) = self.pick(&[(20, 15), (60, 40), (160, 80)]);
            self.line(format_args!("read_bw = \"{read} GB/s\"\nwrite_bw = \"{write} GB/s\""));
        } else {
            let modules = self.pick(&[1, 2, 6]);
            self.line(format_args!("optane_modules = {modules}"));
        }
        let port = self.pick(&["20.8", "41.6", "62.4"]);
        self.line(format_args!("interconnect = \"{port} GB/s\""));
        self.distances(nodes);
        let without_cpus = nodes > 2 && self.one_in(6);
        if without_cpus {
            let (read, write) = self.pick(&[(12, 10), (24, 20)]);
            self.line(format_args!("\n[machine.node.{}]\ncpus = 0", nodes - 1));
            self.line(format_args!("read_bw = \"{read} GB/s\"\nwrite_bw = \"{write} GB/s\""));
        }
        Shape { nodes, seats: nodes - u32::from(without_cpus), small }
    }

    fn distances(&mut self, nodes: u32) {
        if nodes == 2 || self.one_in(2) {
            let all = self.pick(&[16, 21, 21, 32]);
            return self.line(format_args!("distance = {all}"));
        }
        let ring = self.one_in(2);
        let mut rows = vec![vec![10u32; nodes as usize]; nodes as usize];
        for a in 0..nodes {
            for b in 0..a {
                let around = (a - b).min(nodes - (a - b));
                let distance = if ring { 10 + 11 * around } else { self.pick(&[12, 16, 21, 32]) };
                rows[a as usize][b as usize] = distance;
                rows[b as usize][a as usize] = distance;
            }
        }
        self.line(format_args!("distance = {rows:?}"));
    }

    /// Draws a program of at most `most` threads and returns its number of threads.
    fn workload(&mut self, shape: &Shape, job: u32, most: u32) -> u32 {
        const KINDS: [&str; 12] = [
            "fio",
            "fio",
            "fio",
            "fio",
            "fileserver",
            "webserver",
            "webproxy",
            "varmail",
            "videoserver",
            "readrandom",
            "readwhilewriting",
            "fillseq",
        ];
        // A reader of one file on its own: one job in thirteen.
        let kind = if self.one_in(KINDS.len() as u32 + 1) { "simpleread" } else { self.pick(&KINDS) };
        // Half of the programs are much smaller than they could be.
        let most = if self.one_in(2) { most } else { most.min(8) };
        let writer = u32::from(kind == "readwhilewriting" && most > 1);
        let kind = if kind == "readwhilewriting" && writer == 0 { "readrandom" } else { kind };
        let threads = match kind {
            "simpleread" => 1,
            _ => 1 + self.below(most - writer),
        };
        let fs = self.file_system(kind);
        self.line(format_args!("\n[[workload]]\nname = \"w{job}\"\nkind = \"{kind}\"\nfs = \"{fs}\""));
        if kind != "simpleread" {
            self.line(format_args!("threads = {threads}"));
        }
        self.data(shape, fs);
        match self.below(8) {
            0..=1 => {
                let node = self.below(shape.seats);
                self.line(format_args!("start = {node}"));
            }
            2 if self.one_in(2) => {
                let node = self.below(shape.seats);
                self.line(format_args!("pin = {node}"));
            }
            _ => {}
        }
        self.parameters(kind, threads);
        threads + writer
    }

    fn file_system(&mut self, kind: &str) -> &'static str {
        match kind {
            "simpleread" => self.pick(&["zfs", "page-cache", "homenode"]),
            "fio" if self.one_in(8) => "mapped",
            _ => self.pick(&[
                "homenode",
                "homenode",
                "homenode",
                "page-cache",
                "page-cache",
                "nova-n",
                "nova",
                "ext4-dax",
                "pmfs",
                "zfs",
            ]),
        }
    }

    fn data(&mut self, shape: &Shape, fs: &str) {
        let node = self.below(shape.nodes);
        match fs {
            "nova" | "ext4-dax" | "pmfs" | "mapped" => self.line(format_args!("device = {node}")),
            "nova-n" => {}
            _ => match self.below(8) {
                0 => self.line(format_args!("data = \"spread\"")),
                1 => self.line(format_args!("data = \"threads\"")),
                2 => {
                    let mut shares = vec!["0.1"; shape.nodes as usize];
                    shares[node as usize] = "1.0";
                    self.line(format_args!("data = [{}]", shares.join(", ")));
                }
                _ => self.line(format_args!("data = {node}")),
            },
        }
    }

    fn parameters(&mut self, kind: &str, threads: u32) {
        match kind {
            "fio" => {
                let block = self.pick(&["1 KiB", "4 KiB", "4 KiB", "16 KiB", "64 KiB", "1 MiB"]);
                let read = self.pick(&["1.0", "1.0", "1.0", "0.8", "0.5", "0.2", "0.0"]);
                let shared = self.one_in(3);
                let mib = self.pick(&[64, 256, 1024, 4096]);
                let mib = if shared { mib } else { mib.min(32768 / threads) };
                self.line(format_args!("block = \"{block}\"\nread = {read}\nfile_size = \"{mib} MiB\""));
                if shared {
                    self.line(format_args!("shared = true"));
                }
                if self.one_in(4) {
                    self.line(format_args!("sequential = true"));
                }
                if self.one_in(4) {
                    let think = self.pick(&["10e-6", "100e-6", "1e-3"]);
                    self.line(format_args!("think_s = {think}"));
                }
            }
            "videoserver" => {
                let files = self.pick(&[5, 20, 50]);
                self.line(format_args!("files = {files}\nfile_size = \"500 MB\""));
            }
            "simpleread" => {
                let file = self.pick(&[1, 4, 16]);
                let read = self.pick(&["64 KiB", "128 KiB", "1 MiB"]);
                let process = self.pick(&["1 MB", "100 MB", "1 GB"]);
                self.line(format_args!("file_size = \"{file} GB\"\nread_size = \"{read}\""));
                // So many that it is not done when the scenario ends.
                self.line(format_args!("process_size = \"{process}\"\npasses = 1000000"));
            }
            "readrandom" | "readwhilewriting" | "fillseq" => {
                let keys = self.pick(&[100_000, 1_000_000, 5_000_000]);
                let value = self.pick(&["100 B", "1 KiB", "4 KiB"]);
                self.line(format_args!("keys = {keys}\nvalue = \"{value}\""));
            }
            _ => {
                let files = self.pick(&[1000, 10_000, 100_000]);
                let size = self.pick(&["16 KiB", "64 KiB", "160 KiB"]);
                self.line(format_args!("files = {files}\nfile_size = \"{size}\""));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_a_scenario_within_its_bounds() {
        let (mut most_nodes, mut most_threads, mut small) = (0, 0, 0);
        for index in 0..400 {
            let file = scenario(7, index).unwrap_or_else(|e| panic!("{e}\n{}", text(7, index)));
            let nodes = file.scenario.machine.nodes().len() as u32;
            let threads: u32 = file.scenario.launches.iter().map(|l| l.job.threads()).sum();
            assert!((2..=8).contains(&nodes) && (1..=MOST_THREADS).contains(&threads), "{}", text(7, index));
            if index % 4 == 3 {
                assert!(nodes <= SMALL_NODES && threads <= SMALL_THREADS, "{}", text(7, index));
                small += 1;
            }
            (most_nodes, most_threads) = (most_nodes.max(nodes), most_threads.max(threads));
        }
        assert_eq!((most_nodes, small), (8, 100));
        assert!(most_threads > 150, "{most_threads}");
    }

    #[test]
    fn every_kind_and_every_file_system_is_drawn() {
        let all: String = (0..200).map(|index| text(1, index)).collect();
        for kind in ["fio", "simpleread", "fillseq", "readrandom", "readwhilewriting", "fileserver", "webserver"] {
            assert!(all.contains(&format!("kind = \"{kind}\"")), "{kind}");
        }
        for fs in crate::filesystem::FileSystem::ALL {
            let name = serde_json::to_string(&fs).unwrap();
            assert!(all.contains(&format!("fs = {name}")), "{name}");
        }
        for key in ["start = ", "pin = ", "cpus = 0", "distance = [[", "data = [", "optane_modules", "read_bw"] {
            assert!(all.contains(key), "{key}");
        }
    }

    #[test]
    fn a_number_of_a_seed_is_always_the_same_scenario_and_no_other() {
        assert_eq!(text(3, 5), text(3, 5));
        assert_ne!(text(3, 5).replace('5', ""), text(3, 6).replace('6', ""));
        assert_ne!(text(3, 5), text(4, 5).replace("seed 4", "seed 3"));
    }
}
