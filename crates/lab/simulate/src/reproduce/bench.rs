//! Machines of the papers, repeated runs, and policies with the settings of the experiments.

use std::ops::RangeInclusive;

use placement::{Policy, dragonfly, nthread};

use crate::constants::Constants;
use crate::filesystem::FileSystem;
use crate::machine::{Machine, Memory, topology};
use crate::papers::Paper;
use crate::run::{Outcome, RunError, Scenario, run};
use crate::workload::Job;
use crate::world::{Launch, Start};

/// Runs experiments.
pub struct Bench<'a> {
    /// Seeds of the kernel's first placements.
    seeds: RangeInclusive<u64>,
    /// Whether nobody waits for anybody.
    alone: bool,
    /// The model's numbers.
    pub(super) constants: Constants,
    say: &'a (dyn Fn(Paper, &str) + Sync),
}

/// The policy that decides where threads and data go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Who {
    /// The kernel alone.
    Kernel,
    /// A policy by name, with the settings of the NThread experiments.
    Policy(&'static str),
    /// NThread with this limit for CPUs.
    CpuLimit(f64),
    /// Dragonfly with this T_window.
    Window(f64),
    /// NThread as Dragonfly's paper describes it, "if the target node's iMC is overloaded, NThread
    /// stops migrating threads": a Dragonfly that may not move a byte. (By its own paper, NThread
    /// sends threads that share files to their node all the same.)
    NoData,
    /// NThread's step 2 alone for a thread that reads anything at all: the thesis's prototype as
    /// its Listing A.7 is printed, which moves no memory.
    ThreadOnly,
}

/// Settings of NThread for the papers' experiments. Two differ from the paper, because its own
/// statements exclude its numbers. With a margin of 200 MB/s no thread of Fig. 6 could have a
/// target (100 threads share 6.8 GB/s), yet all of them move. With 90 % of four CPUs, four busy
/// threads would not stay together, yet "NThread_cpu performs similar to NThread_rl".
pub(super) fn settings(c: &Constants) -> nthread::Settings {
    let least = nthread::Settings::default();
    nthread::Settings { locality_margin: c.margin, cpu_limit: c.cpu_limit, ..least }
}

/// Dragonfly's paper leaves NThread's rule for CPUs out (IV-A).
fn dragonfly(c: &Constants, window: dragonfly::Settings) -> Box<dyn Policy> {
    Box::new(dragonfly::Dragonfly::new(window, nthread::Settings { cpu_limit: f64::from(u16::MAX), ..settings(c) }))
}

impl Who {
    fn policy(self, c: &Constants) -> Option<Box<dyn Policy>> {
        match self {
            Self::Kernel => None,
            Self::Policy(name) => placement::policy(name, &settings(c)),
            Self::CpuLimit(limit) => {
                let settings = nthread::Settings { cpu_limit: limit, ..settings(c) };
                placement::policy("nthread-cpu", &settings)
            }
            Self::ThreadOnly => placement::policy(
                "nthread-rl",
                &nthread::Settings { locality_margin: 1e3, min_bytes: 1, ..settings(c) },
            ),
            Self::Window(seconds) => Some(dragonfly(
                c,
                dragonfly::Settings { min_window_s: seconds, max_window_s: seconds, ..Default::default() },
            )),
            Self::NoData => {
                Some(dragonfly(c, dragonfly::Settings { bytes_per_day: 0.0, burst_bytes: 0.0, ..Default::default() }))
            }
        }
    }
}

impl<'a> Bench<'a> {
    /// A bench that repeats every run with this many seeds and reports each figure that is done.
    pub fn new(seeds: u64, say: &'a (dyn Fn(Paper, &str) + Sync)) -> Self {
        Self { seeds: 1..=seeds.max(1), alone: false, constants: Constants::CALIBRATED, say }
    }

    /// The same with other numbers.
    #[must_use]
    pub fn with_constants(self, constants: Constants) -> Self {
        Self { constants, ..self }
    }

    /// The same bench on machines where nobody waits for anybody: no queues for memory, links, CPUs
    /// or locks, and no cache that threads share. Only the constants are left: each operation takes
    /// the time that its thread's and its data's places imply.
    pub(super) fn alone(&self) -> Self {
        Self { seeds: self.seeds.clone(), alone: true, constants: self.constants, say: self.say }
    }

    /// A bench for each seed alone; none if there is only one.
    pub(super) fn each_seed(&self) -> impl Iterator<Item = Self> + '_ {
        let one = self.seeds.start() == self.seeds.end();
        let each = |seed| Self { seeds: seed..=seed, alone: self.alone, constants: self.constants, say: self.say };
        self.seeds.clone().filter(move |_| !one).map(each)
    }

    pub(super) fn say(&self, paper: Paper, figure: &str) {
        (self.say)(paper, figure);
    }

    /// Mean of a measure over the seeds.
    pub(super) fn mean(
        &self,
        scenario: &Scenario,
        who: Who,
        measure: impl Fn(&Outcome) -> f64,
    ) -> Result<f64, RunError> {
        let (mut sum, mut runs) = (0.0, 0.0);
        for seed in self.seeds.clone() {
            sum += measure(&self.run(scenario, who, seed)?);
            runs += 1.0;
        }
        Ok(sum / runs)
    }

    /// One run, for its course in time.
    pub(super) fn once(&self, scenario: &Scenario, who: Who) -> Result<Outcome, RunError> {
        self.run(scenario, who, *self.seeds.start())
    }

    fn run(&self, scenario: &Scenario, who: Who, seed: u64) -> Result<Outcome, RunError> {
        match self.alone {
            true => run(&alone(scenario), who.policy(&self.constants), seed),
            false => run(scenario, who.policy(&self.constants), seed),
        }
    }
}

/// A scenario in which nobody waits for anybody.
fn alone(scenario: &Scenario) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.machine = scenario.machine.without_queues();
    for job in scenario.launches.iter_mut().map(|l| &mut l.job) {
        job.files.iter_mut().for_each(|f| f.together = 0.0);
        for role in &mut job.roles {
            (role.op.serial_s, role.op.serial_media) = (0.0, false);
        }
    }
    scenario
}

/// The engine's rails, wide open: none of the papers' systems has any. They decide anew in each
/// period, also when the load has been the same for ten.
fn rails() -> engine::Settings {
    let mut settings =
        engine::Settings { dwell_s: 0.0, cooldown_s: 0.0, moves_per_s: 1e6, burst: 1_000_000, ..Default::default() };
    settings.oscillation.leave_alone_s = 0.0;
    settings.settle.windows = 0;
    settings
}

/// An experiment that lasts this many seconds.
pub(super) fn experiment(machine: Machine, launches: Vec<Launch>, seconds: f64) -> Scenario {
    Scenario {
        name: "experiment".into(),
        machine,
        launches,
        duration_s: seconds,
        warmup_s: 0.0,
        autonuma: false,
        engine: rails(),
    }
}

/// Thousands of operations per second.
pub(super) fn kops(outcome: &Outcome) -> f64 {
    outcome.ops_per_s() / 1e3
}

pub(super) fn launch(job: Job, start: Start) -> Launch {
    Launch { job, start }
}

/// A file system as the papers name it, with the policy that decides.
pub(super) struct Contestant {
    pub name: &'static str,
    pub fs: FileSystem,
    pub who: Who,
}

const fn contestant(name: &'static str, fs: FileSystem, who: Who) -> Contestant {
    Contestant { name, fs, who }
}

/// The file systems that the paper compares NThread with.
pub(super) const OTHERS: [Contestant; 4] = [
    contestant("ext4-dax", FileSystem::Ext4Dax, Who::Kernel),
    contestant("PMFS", FileSystem::Pmfs, Who::Kernel),
    contestant("NOVA", FileSystem::Nova, Who::Kernel),
    contestant("NOVA_n", FileSystem::NovaN, Who::Kernel),
];

/// The variants of NThread's Table II.
pub(super) const VARIANTS: [Contestant; 4] = [
    contestant("NThread_rl", FileSystem::Homenode, Who::Policy("nthread-rl")),
    contestant("NThread_cpu", FileSystem::Homenode, Who::Policy("nthread-cpu")),
    contestant("NThread_nm", FileSystem::Homenode, Who::Policy("nthread-nm")),
    contestant("NThread", FileSystem::Homenode, Who::Policy("nthread")),
];

/// Machines. They are constants, so none of them can fail to build.
mod machines {
    use super::{Constants, Machine, Memory, topology};

    fn build(machine: Result<Machine, crate::machine::MachineError>, read: f64, write: f64) -> Machine {
        match machine {
            Ok(machine) => machine.with_peaks(read, write),
            Err(error) => unreachable!("the papers' machines are well-formed: {error}"),
        }
    }

    /// NThread V-A: two Xeon Gold 5215 (10 cores, two UPI links), one module of Optane each; some
    /// cores may be offline.
    pub fn nthread(c: &Constants, cpus: u32) -> Machine {
        let machine = Machine::uniform(c, (2, cpus, 128_000_000_000), Memory::optane(c, 1), 2.0 * c.upi_link_bw);
        build(machine, c.optane_read_peak, c.optane_write_peak)
    }

    /// NThread V-F: four of them with DRAM in place of Optane, 12 of each node's 16 GB (slide 26).
    /// With two links each they form a ring.
    pub fn nthread_four(c: &Constants) -> Machine {
        let ring = |a: u32, b: u32| [10, 21, 31, 21][((4 + b - a) % 4) as usize];
        let (read, write) = (c.four_read_bw, c.four_write_bw);
        let memory = Memory::dram(c, read, write);
        build(Machine::new(c, topology(4, 10, 12_000_000_000, ring), 2.0 * c.upi_link_bw, |_| memory), read, write)
    }

    /// Dragonfly Table I: two Xeon Platinum 8280M (28 cores, three UPI links), six modules each.
    pub fn dragonfly(c: &Constants) -> Machine {
        let machine = Machine::uniform(c, (2, 28, 768_000_000_000), Memory::optane(c, 6), 3.0 * c.upi_link_bw);
        build(machine, 6.0 * c.optane_read_peak, 6.0 * c.optane_write_peak)
    }

    /// N-Policy 3: two Xeon Gold 6240M (36 processors, three UPI links), 512 GB of Optane each.
    pub fn npolicy(c: &Constants) -> Machine {
        let machine = Machine::uniform(c, (2, 36, 512_000_000_000), Memory::optane(c, 4), 3.0 * c.upi_link_bw);
        build(machine, 4.0 * c.optane_read_peak, 4.0 * c.optane_write_peak)
    }

    /// Thesis 5.1: two Xeon X5570 (8 processors), 24 GB of DDR3 each; bandwidths as its author
    /// measured them (4.1).
    pub fn thesis(c: &Constants) -> Machine {
        let memory = Memory::dram(c, c.thesis_bw, c.thesis_bw);
        build(Machine::uniform(c, (2, 8, 24_000_000_000), memory, c.thesis_port_bw), c.thesis_bw, c.thesis_bw)
    }
}
pub(super) use machines::{dragonfly as dragonfly_machine, npolicy as npolicy_machine, nthread, nthread_four, thesis};
