//! Runs a scenario: the engine's loop over the simulated plane.
//!
//! **Problem.** Policies must be compared by the throughput of the machine, not by what they
//! promise.
//!
//! **Approach.** [`run`] starts the scenario's jobs, lets [`engine::Engine`] run window after
//! window with the given policy and its own rails, and adds up the results. Without a policy only
//! the simulated kernel decides: that is the base line.
//!
//! **Limits.** A simulation has no state directory, writes no journal and undoes nothing at the
//! end.

use std::time::Duration;

use engine::{Engine, MoveEvent, WindowReport};
use placement::{Move, NodeLoad, Policy, Subject};
use serde::Serialize;
use topology::NodeId;

use crate::machine::Machine;
use crate::plane::SimulatedPlane;
use crate::world::{JobTally, Launch, World};

/// A scenario, checked and ready to run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(crate) name: String,
    pub(crate) machine: Machine,
    pub(crate) launches: Vec<Launch>,
    pub(crate) duration_s: f64,
    pub(crate) warmup_s: f64,
    pub(crate) autonuma: bool,
    pub(crate) engine: engine::Settings,
}

/// Result of a scenario under a policy. Throughputs are those after the warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The scenario.
    pub scenario: String,
    /// The policy; `none` where only the kernel decided.
    pub policy: String,
    /// The seed of the threads' first places.
    pub seed: u64,
    /// Seconds that were measured.
    pub measured_s: f64,
    /// Per workload, in the scenario's order.
    pub workloads: Vec<WorkloadOutcome>,
    /// Remote file bytes / all file bytes read; absent where nothing was read.
    pub remote_share: Option<f64>,
    /// Moves made.
    pub moves: Moves,
    /// Number of the last window in which a move was made, counting from 1; 0: none ever.
    pub last_move: usize,
    /// Every window, the warm-up's included.
    pub windows: Vec<WindowOutcome>,
    /// Notes of the engine and the policy, each once.
    pub notes: Vec<String>,
}

/// Result of one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadOutcome {
    /// Its name.
    pub name: String,
    /// Operations per second, as the benchmark counts them.
    pub ops_per_s: f64,
    /// File bytes read per second.
    pub read_bw: f64,
    /// File bytes written per second.
    pub write_bw: f64,
    /// Remote file bytes / all file bytes read.
    pub remote_share: Option<f64>,
    /// Seconds from start to end, for workloads that ended.
    pub runtime_s: Option<f64>,
}

impl WorkloadOutcome {
    /// Bandwidth as NThread counts it: `BW = read_bw / 3 + write_bw` (Eq. 1).
    pub fn weighted_bw(&self) -> f64 {
        self.read_bw / 3.0 + self.write_bw
    }
}

/// Moves made, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moves {
    /// Of threads.
    pub threads: usize,
    /// Of processes.
    pub processes: usize,
    /// Of files.
    pub files: usize,
    /// Held back by a rail, counted in every window again.
    pub held_back: usize,
    /// Refused by the plane.
    pub refused: usize,
}

/// One window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowOutcome {
    /// Its end.
    pub time_s: f64,
    /// Operations per second of each workload.
    pub ops_per_s: Vec<f64>,
    /// Remote share of all file bytes read.
    pub remote_share: Option<f64>,
    /// Moves made in it.
    pub moves: usize,
    /// Of these, those of files.
    pub files: usize,
    /// Every node.
    pub nodes: Vec<NodeOutcome>,
}

/// One node in one window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeOutcome {
    /// Which.
    pub node: NodeId,
    /// Bytes/s read from its memory.
    pub read_bw: f64,
    /// Bytes/s written to its memory.
    pub write_bw: f64,
    /// CPU time used, as a fraction of its CPUs; absent for a node without CPUs.
    pub cpu: Option<f64>,
}

/// A run that failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The engine refused its settings, or broke.
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    /// The plane broke.
    #[error(transparent)]
    Plane(#[from] engine::PlaneError),
}

impl Scenario {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The machine it runs on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Number of programs.
    pub fn jobs(&self) -> usize {
        self.launches.len()
    }

    /// Number of threads of all programs.
    pub fn threads(&self) -> usize {
        self.launches.iter().map(|l| l.job.threads() as usize).sum()
    }

    /// Seconds it lasts, unless everything ends before.
    pub fn duration_s(&self) -> f64 {
        self.duration_s
    }

    /// Of these, the seconds at the beginning that do not count.
    pub fn warmup_s(&self) -> f64 {
        self.warmup_s
    }

    /// Number of windows, unless everything ends earlier.
    pub fn windows(&self) -> usize {
        (self.duration_s / self.engine.window_s).ceil().max(1.0) as usize
    }

    /// The window in which something that happens at this time shows first, counting from 1; 0:
    /// before all.
    fn window_of(&self, time_s: f64) -> usize {
        (time_s / self.engine.window_s).ceil() as usize
    }
}

impl Outcome {
    /// Whether something moved more than `most` windows (or decision periods of the policy, if
    /// those are longer) after the last change of the load, that is, after a program had started or
    /// ended.
    pub(crate) fn moved_late(&self, scenario: &Scenario, most: usize, period_s: f64, data_period_s: f64) -> bool {
        let starts = scenario.launches.iter().map(|l| l.job.start_s);
        let ends = self.workloads.iter().filter_map(|w| w.runtime_s);
        let changes: Vec<usize> = starts.chain(ends).map(|time_s| scenario.window_of(time_s)).collect();
        let most = |period_s: f64| most * scenario.window_of(period_s).max(1);
        let (most, most_of_files) = (most(period_s), most(data_period_s));
        self.windows.iter().enumerate().any(|(i, window)| {
            let number = i + 1;
            let change = changes.iter().copied().filter(|change| *change <= number).max().unwrap_or(0);
            (window.moves > window.files && number > change + most)
                || (window.files > 0 && number > change + most_of_files)
        })
    }

    /// File bytes read and written per second, by all workloads together.
    pub fn bytes_per_s(&self) -> f64 {
        self.workloads.iter().map(|w| w.read_bw + w.write_bw).sum()
    }

    /// Operations per second of all workloads together.
    pub fn ops_per_s(&self) -> f64 {
        self.workloads.iter().map(|w| w.ops_per_s).sum()
    }

    /// Weighted bandwidth of all workloads together (NThread Eq. 1).
    pub fn weighted_bw(&self) -> f64 {
        self.workloads.iter().map(WorkloadOutcome::weighted_bw).sum()
    }
}

/// Runs a scenario under a policy, or under none. The same scenario, policy and seed give the same
/// outcome, to the last bit.
///
/// # Errors
///
/// [`RunError`] when the engine's settings cannot be, or a policy names a node that is not there.
pub fn run(scenario: &Scenario, policy: Option<Box<dyn Policy>>, seed: u64) -> Result<Outcome, RunError> {
    run_with(scenario, policy, seed, |_| {})
}

/// [`run`], with a word after each window.
///
/// # Errors
///
/// As [`run`].
pub fn run_with(
    scenario: &Scenario,
    policy: Option<Box<dyn Policy>>,
    seed: u64,
    mut after: impl FnMut(&WindowOutcome),
) -> Result<Outcome, RunError> {
    drive(scenario, start(scenario, seed), policy, seed, &mut after)
}

/// A scenario's machine on which its jobs have just been started.
pub(crate) fn start(scenario: &Scenario, seed: u64) -> World {
    let mut world = World::new(scenario.machine.clone(), scenario.launches.clone(), seed);
    world.autonuma = scenario.autonuma;
    world
}

/// [`run`], from a world in which somebody has changed something since [`start`].
pub(crate) fn drive(
    scenario: &Scenario,
    world: World,
    policy: Option<Box<dyn Policy>>,
    seed: u64,
    after: &mut dyn FnMut(&WindowOutcome),
) -> Result<Outcome, RunError> {
    let mut sums = Sums::new(scenario, policy.as_ref().map_or("none", |p| p.name()), seed);
    let plane = SimulatedPlane::new(world);
    let window = scenario.engine.window_s;
    let mut driver = match policy {
        Some(policy) => Driver::Engine(Box::new(Engine::new(plane, policy, scenario.engine.clone(), None)?)),
        None => Driver::Kernel(Box::new(plane)),
    };
    for _ in 0..scenario.windows() {
        let report = driver.step(window)?;
        sums.window(driver.plane().world(), &report);
        if let Some(last) = sums.outcome.windows.last() {
            after(last);
        }
        if driver.plane().world().over() {
            break;
        }
    }
    Ok(sums.finish(driver.plane().world()))
}

enum Driver {
    Engine(Box<Engine<SimulatedPlane>>),
    Kernel(Box<SimulatedPlane>),
}

/// Result of a window, with or without an engine.
struct Report {
    nodes: Vec<NodeLoad>,
    moves: Vec<(Move, MoveEvent)>,
    notes: Vec<String>,
}

impl Driver {
    fn step(&mut self, window_s: f64) -> Result<Report, RunError> {
        match self {
            Self::Engine(engine) => {
                let WindowReport { snapshot, plan, outcomes, notes, .. } = engine.step()?;
                let moves = outcomes.into_iter().map(|o| (o.mv, o.result)).collect();
                Ok(Report { nodes: snapshot.nodes, moves, notes: plan.notes.into_iter().chain(notes).collect() })
            }
            Self::Kernel(plane) => {
                let nodes = plane.observe_nodes(Duration::from_secs_f64(window_s));
                Ok(Report { nodes, moves: Vec::new(), notes: Vec::new() })
            }
        }
    }

    fn plane(&self) -> &SimulatedPlane {
        match self {
            Self::Engine(engine) => engine.plane(),
            Self::Kernel(plane) => plane,
        }
    }
}

/// Adds up the outcome.
struct Sums {
    outcome: Outcome,
    warmup_s: f64,
    /// Totals at the end of the warm-up and of the last window.
    at_warmup: (f64, Vec<JobTally>),
    at_window: (f64, Vec<JobTally>),
}

/// Most notes that are kept.
const NOTES: usize = 64;

impl Sums {
    fn new(scenario: &Scenario, policy: &str, seed: u64) -> Self {
        let none = vec![JobTally::default(); scenario.launches.len()];
        Self {
            outcome: Outcome { scenario: scenario.name.clone(), policy: policy.to_owned(), seed, ..Outcome::default() },
            warmup_s: scenario.warmup_s,
            at_warmup: (0.0, none.clone()),
            at_window: (0.0, none),
        }
    }

    fn window(&mut self, world: &World, report: &Report) {
        let outcome = &mut self.outcome;
        let (mut made, mut files) = (0, outcome.moves.files);
        for (mv, verdict) in &report.moves {
            let moves = &mut outcome.moves;
            match verdict {
                MoveEvent::Applied | MoveEvent::Started => {
                    made += 1;
                    match mv.subject {
                        Subject::Thread { .. } => moves.threads += 1,
                        Subject::Process { .. } => moves.processes += 1,
                        Subject::File { .. } => moves.files += 1,
                    }
                }
                MoveEvent::HeldBack { .. } | MoveEvent::Queued => moves.held_back += 1,
                _ => moves.refused += 1,
            }
        }
        files = outcome.moves.files - files;
        for note in &report.notes {
            if outcome.notes.len() < NOTES && !outcome.notes.contains(note) {
                outcome.notes.push(note.clone());
            }
        }
        let (began, before) = &self.at_window;
        let seconds = world.now - began;
        let ops_per_s = world.totals.iter().zip(before).map(|(now, then)| (now.ops - then.ops) / seconds).collect();
        let nodes = report.nodes.iter().map(|n| NodeOutcome {
            node: n.id,
            read_bw: n.read_bytes as f64 / seconds,
            write_bw: n.write_bytes as f64 / seconds,
            cpu: n.cpu_s.filter(|_| !n.cpus.is_empty()).map(|s| s / seconds / n.cpus.len() as f64),
        });
        outcome.windows.push(WindowOutcome {
            time_s: world.now,
            ops_per_s,
            remote_share: share(world.totals.iter().zip(before)),
            moves: made,
            files,
            nodes: nodes.collect(),
        });
        if made > 0 {
            outcome.last_move = outcome.windows.len();
        }
        self.at_window = (world.now, world.totals.clone());
        if world.now <= self.warmup_s + 1e-9 {
            self.at_warmup = self.at_window.clone();
        }
    }

    fn finish(self, world: &World) -> Outcome {
        let Self { mut outcome, at_warmup: (began, before), .. } = self;
        let seconds = world.now - began;
        outcome.measured_s = seconds;
        outcome.remote_share = share(world.totals.iter().zip(&before));
        for (job, spec) in world.jobs.iter().enumerate() {
            let (now, then) = (&world.totals[job], &before[job]);
            let runtime_s = world.job_ended(job);
            let seconds = runtime_s.map_or(seconds, |end| (end - began).max(f64::MIN_POSITIVE));
            outcome.workloads.push(WorkloadOutcome {
                name: spec.name.clone(),
                ops_per_s: (now.ops - then.ops) / seconds,
                read_bw: (now.read - then.read) / seconds,
                write_bw: (now.written - then.written) / seconds,
                remote_share: share([(now, then)].into_iter()),
                runtime_s,
            });
        }
        outcome
    }
}

fn share<'a>(tallies: impl Iterator<Item = (&'a JobTally, &'a JobTally)>) -> Option<f64> {
    let (remote, all) = tallies
        .map(|(now, then)| (now.remote_read - then.remote_read, now.read - then.read))
        .fold((0.0, 0.0), |sum, t| (sum.0 + t.0, sum.1 + t.1));
    // Both are sums of the same bytes, the remote ones by class and step, all of them by flow:
    // rounded differently.
    (all > 0.0).then(|| remote.min(all) / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_remote_than_all() {
        let tally = |remote_read, read| JobTally { remote_read, read, ..JobTally::default() };
        let of = |remote, all| share([(&tally(remote, all), &tally(0.0, 0.0))].into_iter());
        assert_eq!(of(1.0 + 4e-15, 1.0), Some(1.0));
        assert_eq!(of(0.25, 1.0), Some(0.25));
        assert_eq!(of(0.0, 0.0), None);
    }
}
