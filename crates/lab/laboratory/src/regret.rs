//! Regret: what a policy loses against the best placement of random programs on random machines.
//!
//! **Problem.** `auto` predicts by equations. A judge that shares them is misled where it is, and a
//! load that was chosen shows what it was chosen for.
//!
//! **Approach.** [`draw`] makes a machine and programs of a seed, and no policy is looked at. The
//! judge has no equations: [`Scenario::best`] *runs* placements, with threads bound and files put
//! from the beginning, and keeps what moves the most bytes. It begins with each program at its
//! data, with threads spread evenly, at eight drawn placements and, if they are few, at each of
//! whole programs; then it moves single threads, exchanges two, and moves files, also with all
//! their threads, as long as that wins. A policy runs with homenode's rails from the kernel's
//! placement. Both count in the second half of the run.
//!
//! **Limits.** A local search: a policy can do better, and then its regret is negative. A policy's
//! copies may not be done when counting begins. All bytes count alike. Loads do not change within a
//! run.

use memory_model::figures::{DRAM_READ_BW, PORT_BW};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use crate::experiment::{Case, Error, Experiment, Load, MachineSpec, Point, Policies, Rails, Series, Value};
use crate::host::Kind;
use crate::loads::programs::{FileSpec, Program, Programs, Share};

/// Seconds of a run, of which the second half counts.
const SECONDS: f64 = 30.0;
/// Seconds of a run of the judge, whose placements do not change: as many counted calls, nearly.
const JUDGED: f64 = 10.0;
/// How many times as short all times are.
const FACTOR: f64 = 100.0;
/// Most placements of whole programs from which the search begins.
const MOST_STARTS: usize = 64;
const MOST_RUNS: usize = 1000;
/// Placements drawn at random from which the search begins, too.
const DRAWN: usize = 8;

#[derive(Clone, Debug)]
pub struct Scenario {
    machine: MachineSpec,
    programs: Programs,
    policies: Policies,
    seed: u64,
}

/// The best placement that was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Best {
    /// MB/s.
    pub value: f64,
    pub runs: usize,
    /// The node of each thread, program by program, and of each file.
    pub threads: Vec<usize>,
    pub files: Vec<usize>,
}

/// The scenario with this number of a seed.
pub fn draw(seed: u64, number: u32) -> Scenario {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    rng.set_stream(u64::from(number));
    let mut pick = |of: &[f64]| of.get(rng.random_range(0..of.len())).copied().unwrap_or_default();
    let (nodes, cores) = (pick(&[2.0, 2.0, 4.0]), pick(&[2.0, 4.0, 8.0]));
    let optane = pick(&[0.0, 1.0]) > 0.0;
    let machine = MachineSpec {
        nodes: nodes as u32,
        cores: cores as u32,
        memory: if optane { "optane" } else { "dram" }.to_owned(),
        link_bw: pick(&[0.25, 0.5, 1.0]) * PORT_BW,
        bandwidth: (!optane).then(|| pick(&[0.0625, 0.125, 0.25]) * DRAM_READ_BW),
        modules: optane.then(|| pick(&[1.0, 2.0, 6.0])),
        crowding: None,
        remote_read: None,
        memory_bytes: None,
    };
    let anywhere: Vec<f64> = (0..machine.nodes).map(f64::from).collect();
    let count = pick(&[2.0, 3.0, 4.0]) as usize;
    let mut programs = Programs::default();
    for number in 0..count {
        let shared = number > 0 && pick(&[0.0, 0.0, 0.0, 1.0]) > 0.0;
        if !shared {
            // An ARC's data stays; the page cache's can move.
            let cache = if pick(&[0.0, 0.0, 1.0]) > 0.0 { Kind::Arc } else { Kind::PageCache };
            let bytes = pick(&[0.5e9, 2e9, 8e9]);
            programs.file.push(FileSpec { bytes, cache, node: Some(pick(&anywhere) as usize) });
        }
        programs.program.push(Program {
            name: format!("p{number}"),
            threads: pick(&[1.0, 2.0, 4.0, 6.0]) as u32,
            on: None,
            bound: false,
            start_s: 0.0,
            own_bytes: pick(&[0.0, 0.1e9, 1e9]),
            block: pick(&[4096.0, 16384.0, 65536.0, 262_144.0]) as u64,
            read: pick(&[1.0, 1.0, 0.8, 0.5, 0.0]),
            random: pick(&[0.0, 1.0]) > 0.0,
            passes: None,
            cpu_s: pick(&[0.0, 1e-6, 5e-6, 20e-6]),
            sleep_s: pick(&[0.0, 0.0, 20e-6]),
            uses: vec![Share { file: programs.file.len() - 1, share: 1.0, random: false }],
        });
    }
    Scenario { machine, programs, policies: Policies::default(), seed: u64::from(number) + 1 }
}

impl Scenario {
    #[must_use]
    pub fn with_policies(self, policies: Policies) -> Self {
        Self { policies, ..self }
    }

    pub fn describe(&self) -> String {
        let MachineSpec { nodes, cores, memory, .. } = &self.machine;
        let program = |program: &Program| {
            let Program { threads, block, read, cpu_s, sleep_s, uses, .. } = program;
            let file = uses.first().map_or(0, |used| used.file);
            let node = self.programs.file.get(file).and_then(|file| file.node).unwrap_or_default();
            let (read, cpu, sleep) = (100.0 * read, cpu_s * 1e6, sleep_s * 1e6);
            format!("{threads} of file {file} on {node}: {block} B, {read:.0} % reads, {cpu:.0}+{sleep:.0} µs")
        };
        let programs: Vec<String> = self.programs.program.iter().map(program).collect();
        format!("{nodes} nodes of {cores} cores, {memory}; {}", programs.join("; "))
    }

    /// MB/s with this policy; none: the kernel alone.
    ///
    /// # Errors
    ///
    /// There is no such policy, or it ended.
    pub fn with(&self, policy: Option<&str>) -> Result<f64, Error> {
        self.run(self.programs.clone(), policy, SECONDS)
    }

    fn run(&self, programs: Programs, policy: Option<&str>, seconds: f64) -> Result<f64, Error> {
        let series = Series {
            name: "run".to_owned(),
            placement: crate::experiment::Where::default(),
            policy: policy.map(str::to_owned),
            nthread: placement::nthread::Settings::default(),
            dragonfly: placement::dragonfly::Settings::default(),
            rails: Rails::Homenode,
            copy_bw: None,
            window_s: None,
            kernel: crate::host::Kernel::default(),
            extra: false,
        };
        let experiment = Experiment {
            paper: String::new(),
            figure: String::new(),
            title: String::new(),
            value: Value::MbS,
            seconds,
            paper_seconds: seconds,
            factor: FACTOR,
            count_from: seconds / 2.0,
            machine: self.machine.clone(),
            point: vec![Point { name: "random".to_owned(), load: Some(Load::Programs(programs)), loads: Vec::new() }],
            series: vec![series],
            effect: Vec::new(),
            policies: self.policies.clone(),
        };
        Ok(experiment.run(Case { point: 0, series: 0 }, self.seed)?.value)
    }

    fn threads(&self) -> Vec<usize> {
        let programs = self.programs.program.iter().enumerate();
        programs.flat_map(|(number, program)| std::iter::repeat_n(number, program.threads as usize)).collect()
    }

    /// MB/s with all threads bound and all files put from the beginning.
    fn placed(&self, threads: &[usize], files: &[usize]) -> Result<f64, Error> {
        let mut programs = Programs { program: Vec::new(), ..self.programs.clone() };
        for (file, node) in programs.file.iter_mut().zip(files) {
            file.node = Some(*node);
        }
        for (of, node) in self.threads().into_iter().zip(threads) {
            let Some(program) = self.programs.program.get(of) else { continue };
            let one = Program { threads: 1, on: Some(*node), bound: true, own_bytes: 0.0, ..program.clone() };
            programs.program.push(one);
        }
        self.run(programs, None, JUDGED)
    }

    /// The best placement of threads and files that a search finds by running them.
    ///
    /// # Errors
    ///
    /// As any run.
    pub fn best(&self) -> Result<Best, Error> {
        let (of, nodes) = (self.threads(), self.machine.nodes as usize);
        let at_first: Vec<usize> = self.programs.file.iter().map(|file| file.node.unwrap_or_default()).collect();
        let home = |program: usize| {
            let used = self.programs.program.get(program).and_then(|program| program.uses.first());
            used.and_then(|used| at_first.get(used.file)).copied().unwrap_or_default()
        };
        let mut starts = vec![
            of.iter().map(|program| home(*program)).collect::<Vec<_>>(),
            (0..of.len()).map(|thread| thread % nodes).collect(),
        ];
        let whole = nodes.saturating_pow(self.programs.program.len() as u32);
        for number in (0..whole).filter(|_| whole <= MOST_STARTS) {
            starts.push(of.iter().map(|program| number / nodes.pow(*program as u32) % nodes).collect());
        }
        let mut rng = ChaCha12Rng::seed_from_u64(self.seed);
        starts.extend((0..DRAWN).map(|_| of.iter().map(|_| rng.random_range(0..nodes)).collect()));
        let mut best = Best::default();
        for threads in starts {
            self.attempt(&mut best, threads, at_first.clone())?;
        }
        while best.runs < MOST_RUNS {
            let before = best.value;
            for (threads, files) in self.neighbours(&best, &of, nodes) {
                // From the better one on at once: a step at a time takes a run for each.
                if best.runs < MOST_RUNS && self.attempt(&mut best, threads, files)? {
                    break;
                }
            }
            if best.value <= before {
                break;
            }
        }
        Ok(best)
    }

    fn attempt(&self, best: &mut Best, threads: Vec<usize>, files: Vec<usize>) -> Result<bool, Error> {
        let value = self.placed(&threads, &files)?;
        best.runs += 1;
        // Half a percent is as much as an order of events makes.
        let better = value > best.value * 1.005;
        if better {
            *best = Best { value, runs: best.runs, threads, files };
        }
        Ok(better)
    }

    /// Placements that differ by one thread, an exchange of two, or one file, alone or with all its
    /// threads. Threads of one program on one node are alike.
    fn neighbours(&self, best: &Best, of: &[usize], nodes: usize) -> Vec<(Vec<usize>, Vec<usize>)> {
        let mut all = Vec::new();
        let set = |placed: &[usize], at: usize, to: usize| {
            let mut placed = placed.to_vec();
            if let Some(node) = placed.get_mut(at) {
                *node = to;
            }
            placed
        };
        let moves = |file: usize| self.programs.file.get(file).is_some_and(|file| file.cache.moves());
        for (file, node) in best.files.iter().enumerate().filter(|(file, _)| moves(*file)) {
            for to in (0..nodes).filter(|to| to != node) {
                let files = set(&best.files, file, to);
                all.push((best.threads.clone(), files.clone()));
                // With the threads of all that use it.
                let uses = |program: &usize| {
                    let program = self.programs.program.get(*program);
                    program.is_some_and(|program| program.uses.iter().any(|used| used.file == file))
                };
                let threads = of.iter().zip(&best.threads).map(|(program, at)| if uses(program) { to } else { *at });
                all.push((threads.collect(), files));
            }
        }
        let mut kinds: Vec<(usize, (usize, usize))> =
            of.iter().copied().zip(best.threads.iter().copied()).enumerate().collect();
        kinds.sort_by_key(|(_, kind)| *kind);
        kinds.dedup_by_key(|(_, kind)| *kind);
        for (thread, (program, node)) in &kinds {
            for to in (0..nodes).filter(|to| to != node) {
                let moved = set(&best.threads, *thread, to);
                all.push((moved.clone(), best.files.clone()));
                let back = kinds.iter().filter(|(_, (other, at))| *at == to && other > program);
                all.extend(back.map(|(other, _)| (set(&moved, *other, *node), best.files.clone())));
            }
        }
        all
    }
}
