//! A figure of a paper as data, and its runs.
//!
//! **Approach.** `figures/*.toml` says of each figure the machine, the load, its points (groups of
//! bars), the series, and the effects as the paper states them, each with its kind and source. A
//! [`Case`] is one bar: [`Experiment::run`] makes a world for it, in which everything is new.
//! Cases know nothing of each other, so they can run in any order and on any thread.
//!
//! The papers' own settings are those of the policies' defaults; a figure says so where it has
//! others. Their systems have no rails of homenode's ([`Rails::Open`]).
//!
//! **Limits.** The papers' data is divided by the factor and by what the run is shorter than
//! theirs, so each byte is read and written as often as there.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use engine::{Engine, EngineError};
use fs::format::Ino;
use memory_model::Profile;
use memory_model::figures::PORT_BW;
use placement::{Policy, dragonfly, nthread};
use rustc_hash::FxHashSet;
use serde::Deserialize;

use crate::host::Kernel;
use crate::loads::programs::{Programs, on_machine};
use crate::loads::recorded::Recorded;
use crate::loads::{Begin, filebench, fio, lsm};
use crate::machine::{Build, Machine, SLICE_S};
use crate::plane::LabPlane;
use crate::thread::{Done, Lab, PROCESS, Program};

/// The figures that come with the laboratory, by the name of `homenode-lab run`.
pub const FIGURES: &[(&str, &str)] = &[
    ("nthread-5a", include_str!("../figures/nthread-5a.toml")),
    ("nthread-5b", include_str!("../figures/nthread-5b.toml")),
    ("nthread-6a", include_str!("../figures/nthread-6a.toml")),
    ("npolicy-2", include_str!("../figures/npolicy-2.toml")),
    ("npolicy-3a", include_str!("../figures/npolicy-3a.toml")),
    ("npolicy-3b", include_str!("../figures/npolicy-3b.toml")),
    ("thesis-5.2", include_str!("../figures/thesis-5.2.toml")),
    ("thesis-6.1", include_str!("../figures/thesis-6.1.toml")),
    ("thesis-6.2", include_str!("../figures/thesis-6.2.toml")),
    ("thesis-8.1", include_str!("../figures/thesis-8.1.toml")),
    ("thesis-8.3", include_str!("../figures/thesis-8.3.toml")),
    ("thesis-8.5", include_str!("../figures/thesis-8.5.toml")),
    ("thesis-8.6", include_str!("../figures/thesis-8.6.toml")),
    ("nthread-6b", include_str!("../figures/nthread-6b.toml")),
    ("nthread-7a", include_str!("../figures/nthread-7a.toml")),
    ("nthread-7b", include_str!("../figures/nthread-7b.toml")),
    ("dragonfly-2", include_str!("../figures/dragonfly-2.toml")),
    ("dragonfly-6a", include_str!("../figures/dragonfly-6a.toml")),
    ("dragonfly-6b", include_str!("../figures/dragonfly-6b.toml")),
    ("audit", include_str!("../figures/audit.toml")),
];

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub paper: String,
    pub figure: String,
    /// What it shows, and with what.
    pub title: String,
    pub value: Value,
    /// Seconds of a run, in the paper's time.
    pub seconds: f64,
    /// Seconds of the paper's own runs.
    pub paper_seconds: f64,
    /// How many times as short as in the paper all times are.
    pub factor: f64,
    /// Seconds after which counting begins.
    #[serde(default)]
    pub count_from: f64,
    pub machine: MachineSpec,
    /// Groups of bars.
    pub point: Vec<Point>,
    /// The bars of a group.
    pub series: Vec<Series>,
    #[serde(default)]
    pub effect: Vec<Effect>,
    /// How a name becomes a policy; by default homenode's own.
    #[serde(skip)]
    pub policies: Policies,
}

/// Makes policies: of a name, settings and a seed.
#[derive(Clone)]
pub struct Policies(pub Arc<Make>);

/// See [`Policies`]; an error is a sentence.
pub type Make = dyn Fn(&str, &placement::Settings, u64) -> Result<Box<dyn Policy>, String> + Send + Sync;

/// What the name of a policy begins with that only the caller can make: a program.
pub const PROGRAM: &str = "exec:";

impl Default for Policies {
    fn default() -> Self {
        Self(Arc::new(|name, settings, _| {
            placement::policy_with(name, settings).ok_or_else(|| "no policy has this name".to_owned())
        }))
    }
}

impl std::fmt::Debug for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Policies")
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// Nodes, every pair one hop apart.
    pub nodes: u32,
    pub cores: u32,
    /// Profile of its memory.
    pub memory: String,
    /// Bytes/s of a link; by default two UPI links of 10.4 GT/s.
    #[serde(default = "port_bw")]
    pub link_bw: f64,
    /// How strongly many writers crowd a module, in place of the profile's: 0, not at all.
    #[serde(default)]
    pub crowding: Option<f64>,
    /// Bytes/s that a node carries, in place of the profile's.
    #[serde(default)]
    pub bandwidth: Option<f64>,
    /// Modules of a node, of the profile's memory.
    #[serde(default)]
    pub modules: Option<f64>,
    /// How many times as long a read takes from one hop away, in place of the profile's.
    #[serde(default)]
    pub remote_read: Option<f64>,
    /// Bytes of a node's memory, on a host.
    #[serde(default)]
    pub memory_bytes: Option<f64>,
}

fn port_bw() -> f64 {
    PORT_BW
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// Bandwidth by NThread's Eq. 1, in MB/s: a third of the reads, and the writes.
    WeightedMbS,
    /// Operations per second, as the load counts them.
    OperationsS,
    /// MB read and written per second.
    MbS,
    /// Seconds from the start of a program to its end, on average. Of hosts.
    RuntimeS,
    /// Microseconds of the median call that reads. Of hosts.
    MedianReadUs,
}

impl Value {
    pub const fn unit(self) -> &'static str {
        match self {
            Self::WeightedMbS => "MB/s by Eq. 1",
            Self::OperationsS => "operations/s",
            Self::MbS => "MB/s",
            Self::RuntimeS => "s",
            Self::MedianReadUs => "µs",
        }
    }
}

/// A group of bars: a name and a load, or several at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// As the figure calls it.
    pub name: String,
    #[serde(default)]
    pub load: Option<Load>,
    /// The loads, where they are several.
    #[serde(default)]
    pub loads: Vec<One>,
}

impl Point {
    fn all(&self) -> impl Iterator<Item = &Load> {
        self.load.iter().chain(self.loads.iter().map(|one| &one.load))
    }
}

/// One of several loads that run at once, each a program with a directory of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct One {
    pub load: Load,
    /// The node where its files begin, and where all of its data goes if each program has a file
    /// system of one node.
    #[serde(default)]
    pub files_on: u32,
    /// The node where its threads start; by default where the kernel puts them.
    #[serde(default)]
    pub starts_on: Option<usize>,
    /// They stay there.
    #[serde(default)]
    pub bound: bool,
    /// Its operations do not count.
    #[serde(default)]
    pub beside: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Load {
    Fio {
        /// Threads, each with a file of its own.
        threads: u32,
        /// Bytes of a call.
        block: u64,
        /// Bytes of a file, in the paper.
        file_bytes: f64,
        /// Share of calls that read.
        read: f64,
        /// Seconds asleep after each call.
        #[serde(default)]
        think_s: f64,
    },
    Filebench(filebench::Load),
    /// Of a host: see [`programs`](crate::loads::programs).
    Programs(Programs),
    /// Of a host: see [`recorded`](crate::loads::recorded).
    Recorded(Recorded),
    Lsm(lsm::Load),
}

/// A bar of each group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    pub name: String,
    /// Where the file system puts what is written.
    #[serde(default)]
    pub placement: Where,
    /// The policy; none: nobody moves anything.
    #[serde(default)]
    pub policy: Option<String>,
    /// Its settings, where they are not the paper's.
    #[serde(default)]
    pub nthread: nthread::Settings,
    /// The same of Dragonfly.
    #[serde(default)]
    pub dragonfly: dragonfly::Settings,
    #[serde(default)]
    pub rails: Rails,
    /// Bytes/s that all copies together may take, where that is not what the rails say.
    #[serde(default)]
    pub copy_bw: Option<f64>,
    /// Seconds of a window, where it is not homenode's.
    #[serde(default)]
    pub window_s: Option<f64>,
    #[serde(default)]
    pub kernel: Kernel,
    /// It is run only if it is asked for by name.
    #[serde(default)]
    pub extra: bool,
}

impl Series {
    /// The engine with its policy, if it has one.
    pub(crate) fn engine<P: engine::Plane>(
        &self,
        plane: P,
        policies: &Policies,
        seed: u64,
    ) -> Result<Option<Engine<P>>, Error> {
        let Some(name) = &self.policy else { return Ok(None) };
        let (nthread, dragonfly) = (self.nthread.clone(), self.dragonfly.clone());
        let settings = placement::Settings { nthread, dragonfly, ..Default::default() };
        let policy = (policies.0)(name, &settings, seed).map_err(|why| Error::Policy { name: name.clone(), why })?;
        let mut rails = self.rails.settings();
        rails.window_s = self.window_s.unwrap_or(rails.window_s);
        rails.moves.rate = self.copy_bw.unwrap_or(rails.moves.rate);
        Ok(Some(Engine::new(plane, policy, rails, None)?))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// On node 0, from the beginning.
    Node0,
    /// On any node, from the beginning.
    Random,
    /// Where the writer runs; all files begin on node 0.
    #[default]
    Local,
}

impl Where {
    fn of_writes(self) -> fs::Placement {
        match self {
            Self::Node0 => fs::Placement::Node(0),
            Self::Random => fs::Placement::Random,
            Self::Local => fs::Placement::Local,
        }
    }

    fn at_first(self) -> fs::Placement {
        match self {
            Self::Random => fs::Placement::Random,
            Self::Node0 | Self::Local => fs::Placement::Node(0),
        }
    }
}

/// Whether the engine's rails hold moves back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rails {
    /// They let everything through: the papers' systems have none.
    #[default]
    Open,
    Homenode,
}

impl Rails {
    fn settings(self) -> engine::Settings {
        let moves = engine::settings::Moves::default();
        let mut settings = engine::Settings { moves, ..engine::Settings::default() };
        if self == Self::Open {
            settings.moves = engine::settings::Moves::unlimited();
            (settings.dwell_s, settings.cooldown_s) = (0.0, 0.0);
            (settings.moves_per_s, settings.burst) = (1e6, 1_000_000);
            settings.oscillation.leave_alone_s = 0.0;
            settings.settle.windows = 0;
        }
        settings
    }
}

/// An effect, as the paper states it: a ratio.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    pub of: String,
    /// The one that it is compared with.
    pub over: String,
    /// The groups whose ratios are averaged; none: all.
    #[serde(default)]
    pub points: Vec<String>,
    /// The groups of the series that it is compared with, where they are others, one for each.
    #[serde(default)]
    pub over_points: Vec<String>,
    /// The number of the paper.
    pub paper: f64,
    /// Whether it was known when a constant was chosen.
    pub kind: Kind,
    /// Where the paper says so.
    pub source: String,
    /// Why it is of that kind.
    #[serde(default)]
    pub why: String,
}

/// How much a number that comes out says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// No constant was chosen with it in view.
    Predicted,
    /// It restates a choice that was made with it in view.
    Dependent,
    /// A constant was chosen so that it comes out.
    Calibrated,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Dependent => "dependent",
            Self::Calibrated => "calibrated",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub point: usize,
    pub series: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// What the figure measures.
    pub value: f64,
    pub done: Done,
    /// Moves of threads, and of files, that were made.
    pub moves: (u64, u64),
    /// Threads that the kernel pulled.
    pub pulls: u64,
    /// Share of the time that each node's controller worked.
    pub controllers: Vec<f64>,
    /// Mean number of its cores that worked.
    pub cores: Vec<f64>,
    /// Mean number of threads that waited, by kind ([`crate::machine::Wait::ALL`]).
    pub waits: [f64; 5],
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no experiment: {0}")]
    Toml(#[from] toml::de::Error),
    /// It names something that does not exist.
    #[error("there is no {what} called {name}")]
    Unknown { what: &'static str, name: String },
    /// A group of bars has no load, or others beside those of a host.
    #[error("point {0} has one load, or several in `loads`, none of them of a host")]
    Loads(String),
    /// Two groups of bars, or two series, have the same name.
    #[error("{what} {name} is there twice")]
    Twice { what: &'static str, name: String },
    /// Points that are compared with others, one for each.
    #[error("effect {of} / {over}: as many `over_points` as `points`")]
    Points { of: String, over: String },
    /// What only programs on a host end with.
    #[error("only programs of a host have a value in {0}")]
    Value(&'static str),
    /// A number that no machine or run has.
    #[error("{what} is {value}: {least} to {most}")]
    Range { what: &'static str, value: f64, least: f64, most: f64 },
    /// A recorded load cannot be read.
    #[error("{0}")]
    Recorded(String),
    #[error("the file system: {0}")]
    Fs(#[from] fs::Error),
    /// A policy can decide nothing any more.
    #[error("the policy ended: {0}")]
    Ended(String),
    #[error("policy {name}: {why}")]
    Policy { name: String, why: String },
    #[error("the engine: {0}")]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Stuck(#[from] clock::Stuck),
}

impl Experiment {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// It is none, or names what does not exist.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let all: Self = toml::from_str(text)?;
        let unknown = |what, name: &str| Err(Error::Unknown { what, name: name.to_owned() });
        if Profile::named(&all.machine.memory).is_none() {
            return unknown("profile of memory", &all.machine.memory);
        }
        let of_host = |one: &One| matches!(one.load, Load::Programs(_) | Load::Recorded(_));
        let wrong = |point: &&Point| point.load.is_some() != point.loads.is_empty() || point.loads.iter().any(of_host);
        if let Some(point) = all.point.iter().find(wrong) {
            return Err(Error::Loads(point.name.clone()));
        }
        let points = all.point.iter().map(|point| ("point", &point.name));
        let mut known = FxHashSet::default();
        if let Some((what, name)) =
            points.chain(all.series.iter().map(|series| ("series", &series.name))).find(|one| !known.insert(*one))
        {
            return Err(Error::Twice { what, name: name.clone() });
        }
        for series in &all.series {
            if let Some(policy) = series
                .policy
                .as_deref()
                .filter(|policy| !policy.starts_with(PROGRAM) && placement::policy(policy, &series.nthread).is_none())
            {
                return unknown("policy", policy);
            }
        }
        for effect in &all.effect {
            for name in [&effect.of, &effect.over] {
                if !all.series.iter().any(|series| series.name == *name) {
                    return unknown("series", name);
                }
            }
            if !effect.over_points.is_empty() && effect.over_points.len() != effect.points.len() {
                return Err(Error::Points { of: effect.of.clone(), over: effect.over.clone() });
            }
            let mut points = effect.points.iter().chain(&effect.over_points);
            if let Some(name) = points.find(|name| !all.point.iter().any(|point| point.name == **name)) {
                return unknown("point", name);
            }
        }
        all.check()?;
        Ok(all)
    }

    /// Whether its numbers are those of a run that ends and fits into a machine.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] names the first one that is not.
    pub fn check(&self) -> Result<(), Error> {
        const GIB: f64 = (1_u64 << 30) as f64;
        let MachineSpec { nodes, cores, link_bw, crowding, bandwidth, modules, remote_read, memory_bytes, .. } =
            &self.machine;
        let mut numbers = vec![
            ("factor", self.factor, 1.0, 1e6),
            ("seconds", self.seconds, 1e-3, 86_400.0),
            ("paper_seconds", self.paper_seconds, 1e-3, 86_400.0),
            ("machine.nodes", f64::from(*nodes), 1.0, 8.0),
            ("machine.cores", f64::from(*cores), 1.0, 1024.0),
            ("machine.link_bw", *link_bw, 1e3, f64::INFINITY),
            ("machine.crowding", crowding.unwrap_or(0.0), 0.0, 1000.0),
            ("machine.bandwidth", bandwidth.unwrap_or(1e9), 1e6, f64::INFINITY),
            ("machine.modules", modules.unwrap_or(1.0), 1.0, 1000.0),
            ("machine.remote_read", remote_read.unwrap_or(1.0), 1.0, 1000.0),
            ("machine.memory_bytes", memory_bytes.unwrap_or(GIB), 1.0, 1e15),
            ("count_from", self.count_from, 0.0, self.seconds),
        ];
        let node = |what, node| on_machine(what, node, *nodes);
        numbers.extend(self.series.iter().map(|series| node("kernel.start", series.kernel.start)));
        for one in self.point.iter().flat_map(|point| &point.loads) {
            numbers.extend([node("files_on", Some(one.files_on as usize)), node("starts_on", one.starts_on)]);
        }
        let volume = |load: &Load| !matches!(load, Load::Programs(_) | Load::Recorded(_));
        if matches!(self.value, Value::RuntimeS | Value::MedianReadUs)
            && self.point.iter().flat_map(Point::all).any(volume)
        {
            return Err(Error::Value(self.value.unit()));
        }
        if self.value == Value::RuntimeS {
            // What a program does before its first access would be as many times too long.
            numbers.push(("paper_seconds", self.paper_seconds, self.seconds, self.seconds));
        }
        for load in self.point.iter().flat_map(Point::all) {
            match load {
                Load::Fio { threads, block, file_bytes, read, think_s } => numbers.extend([
                    ("threads", f64::from(*threads), 1.0, 10_000.0),
                    ("block", *block as f64, 1.0, GIB),
                    ("file_bytes", *file_bytes, 1.0, 1e15),
                    ("read", *read, 0.0, 1.0),
                    ("think_s", *think_s, 0.0, 3600.0),
                ]),
                Load::Filebench(load) => numbers.extend([
                    ("threads", f64::from(load.threads), 1.0, 10_000.0),
                    ("files", load.files, 1.0, 1e9),
                    ("file_bytes", load.file_bytes, 1.0, 1e15),
                    ("io_bytes", load.io_bytes, 1.0, GIB),
                    ("cross_lock", load.cross_lock, 1.0, 1000.0),
                ]),
                Load::Lsm(load) => numbers.extend([
                    ("threads", f64::from(load.threads), 1.0, 10_000.0),
                    ("keys", load.keys, 1.0, 1e12),
                    ("put_bw", load.put_bw.unwrap_or(1.0), 1.0, 1e12),
                ]),
                Load::Programs(programs) => numbers.extend(programs.numbers(*nodes)),
                Load::Recorded(_) => {}
            }
        }
        match numbers.into_iter().find(|(_, value, least, most)| !(*least..=*most).contains(value)) {
            Some((what, value, least, most)) => Err(Error::Range { what, value, least, most }),
            None => Ok(()),
        }
    }

    /// The bars of these series (none: all but extra ones), group by group.
    pub fn cases(&self, only: &[String]) -> Vec<Case> {
        let runs = |series: &Series| match only.is_empty() {
            true => !series.extra,
            false => only.contains(&series.name),
        };
        let series: Vec<usize> = (0..self.series.len()).filter(|at| self.series.get(*at).is_some_and(runs)).collect();
        (0..self.point.len())
            .flat_map(|point| series.iter().map(move |series| Case { point, series: *series }))
            .collect()
    }

    pub(crate) fn machine(&self, seed: u64, bytes: u64) -> Result<Machine, Error> {
        let MachineSpec { nodes, cores, memory, link_bw, crowding, bandwidth, modules, remote_read, .. } =
            &self.machine;
        let unknown = || Error::Unknown { what: "profile of memory", name: memory.clone() };
        let mut profile = Profile { scale: 1.0, ..Profile::named(memory).ok_or_else(unknown)? };
        let known = profile.memory.modules(modules.unwrap_or(1.0));
        profile.memory = memory_model::Memory {
            read_bw: bandwidth.unwrap_or(known.read_bw),
            write_bw: bandwidth.unwrap_or(known.write_bw),
            remote_read: remote_read.unwrap_or(known.remote_read),
            crowding: crowding.unwrap_or(known.crowding),
            ..known
        };
        let topology = profile.topology(&(0..nodes * cores).collect(), *nodes, bytes);
        let memory = vec![profile.memory; topology.nodes.len()];
        Ok(Machine::new(Build { topology, memory, link_bw: *link_bw, slice_s: SLICE_S / self.factor, seed }))
    }

    /// Runs one bar.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn run(&self, case: Case, seed: u64) -> Result<Outcome, Error> {
        let (Some(point), Some(series)) = (self.point.get(case.point).cloned(), self.series.get(case.series).cloned())
        else {
            return Err(Error::Unknown { what: "case", name: format!("{case:?}") });
        };
        match &point.load {
            Some(Load::Programs(programs)) => return self.run_host(programs.clone(), &series, seed),
            Some(Load::Recorded(recorded)) => {
                let programs = recorded.programs(self.machine.nodes as usize).map_err(Error::Recorded)?;
                return self.run_host(programs, &series, seed);
            }
            _ => {}
        }
        // The papers' data, by as much less as there is less time for it.
        let less = self.factor * self.paper_seconds / self.seconds;
        let bytes: f64 = point.all().map(|load| load.bytes(less)).sum();
        // Copy on write, logs, and whatever moves to one node.
        let blocks = (2.0 * bytes / 4096.0) as u64 + 20_000;
        let machine = Arc::new(self.machine(seed, blocks * 4096)?);
        // Where each program has a file system of its own, it says where data goes.
        let own = series.placement == Where::Node0 && !point.loads.is_empty();
        let placement = if own { fs::Placement::Local } else { series.placement.of_writes() };
        let mut lab = Lab::new(Arc::clone(&machine), blocks, placement, seed)?;
        lab.factor = self.factor;
        lab.end_ns = (self.seconds / self.factor * 1e9).round() as u64;
        let (seconds, value) = (lab.end_ns as f64 * 1e-9, self.value);
        let lab = Rc::new(lab);
        let (world, policies) = (Rc::clone(&lab), self.policies.clone());
        let moves = clock::run(move || -> Result<_, Error> {
            point.start(&world, less, series.placement)?;
            let moves = Rc::new(RefCell::new(Ok((0, 0))));
            if let Some(engine) = series.engine(LabPlane::new(Rc::clone(&world)), &policies, seed)? {
                let put = Rc::clone(&moves);
                clock::spawn(move || {
                    *put.borrow_mut() = drive(engine, || clock::now_ns() < world.end_ns, LabPlane::settle);
                });
            }
            Ok(moves)
        })??;
        let moves = std::mem::replace(&mut *moves.borrow_mut(), Ok((0, 0)))?;
        if lab.full.get() {
            return Err(Error::Fs(fs::Error::NoSpace));
        }
        let done = lab.done();
        let controllers = machine.carried().iter().map(|carried| carried.busy_s / seconds).collect();
        Ok(Outcome {
            value: match value {
                Value::WeightedMbS => (done.read as f64 / 3.0 + done.written as f64) / 1e6 / seconds,
                Value::OperationsS => done.operations as f64 / seconds,
                Value::MbS => (done.read + done.written) as f64 / 1e6 / seconds,
                Value::RuntimeS | Value::MedianReadUs => f64::NAN,
            },
            done,
            moves,
            pulls: machine.pulls(),
            controllers,
            cores: machine.busy_s().iter().map(|busy| busy / seconds).collect(),
            waits: machine.waits_s().map(|waited| waited / seconds),
        })
    }
}

/// Steps of the engine until the run is over; how many threads or processes, and files, it moved.
pub(crate) fn drive<P: engine::Plane>(
    mut engine: Engine<P>,
    goes_on: impl Fn() -> bool,
    settle: impl Fn(&P),
) -> Result<(u64, u64), Error> {
    let mut moves = (0, 0);
    while goes_on() {
        for outcome in engine.step()?.outcomes {
            // What is at home is bound where it is.
            let moves_on = outcome.mv.from != outcome.mv.to;
            if moves_on && matches!(outcome.result, engine::MoveEvent::Applied | engine::MoveEvent::Started) {
                match outcome.mv.subject.is_file() {
                    true => moves.1 += 1,
                    false => moves.0 += 1,
                }
            }
        }
    }
    settle(engine.plane_mut());
    match engine.policy().trouble() {
        Some(why) => Err(Error::Ended(why.to_owned())),
        None => Ok(moves),
    }
}

impl Load {
    fn bytes(&self, less: f64) -> f64 {
        match self {
            Self::Fio { threads, file_bytes, .. } => f64::from(*threads) * file_bytes / less,
            Self::Filebench(load) => load.bytes(less),
            Self::Programs(programs) => programs.bytes() / less,
            Self::Recorded(_) => 0.0,
            Self::Lsm(load) => load.bytes(less),
        }
    }

    /// Makes its files in a directory; what starts its threads.
    fn fill(&self, lab: &Rc<Lab>, home: Ino, less: f64, at_first: fs::Placement) -> Result<Begin, Error> {
        match *self {
            Self::Fio { threads, block, file_bytes, read, think_s } => {
                let mix = fio::Mix {
                    block: block as usize,
                    blocks: (file_bytes / less / block as f64).max(1.0) as u64,
                    read,
                    think_s,
                };
                let fill = |i| lab.fill(home, &format!("file{i}"), mix.blocks * block, at_first);
                let files = (0..threads).map(fill).collect::<fs::Result<Vec<_>>>()?;
                Ok(Box::new(move |lab: &Rc<Lab>| {
                    files.into_iter().for_each(|file| lab.spawn(move |thread| fio::worker(thread, file, mix)));
                }))
            }
            Self::Filebench(ref load) => Ok(filebench::fill(load, lab, home, less, at_first)?),
            Self::Lsm(ref load) => Ok(lsm::fill(load, lab, home, less, at_first)?),
            // They run on a host.
            Self::Programs(_) | Self::Recorded(_) => Ok(Box::new(|_| ())),
        }
    }
}

impl Point {
    /// Makes all files, then starts all threads.
    fn start(&self, lab: &Rc<Lab>, less: f64, placement: Where) -> Result<(), Error> {
        let mut begins = Vec::new();
        if let Some(load) = &self.load {
            begins.push((Program::new(PROCESS), load.fill(lab, Ino::ROOT, less, placement.at_first())?));
        }
        for (number, one) in self.loads.iter().enumerate() {
            let home = lab.directory(Ino::ROOT, &format!("program{number}"))?;
            let at_first = match placement {
                Where::Random => fs::Placement::Random,
                Where::Node0 | Where::Local => fs::Placement::Node(one.files_on),
            };
            let program = Program {
                device: (placement == Where::Node0).then_some(one.files_on),
                on: one.starts_on,
                bound: one.bound,
                counts: !one.beside,
                ..Program::new(PROCESS + 1 + number as u32)
            };
            begins.push((program, one.load.fill(lab, home, less, at_first)?));
        }
        lab.start();
        for (program, begin) in begins {
            lab.program.set(program);
            begin(lab);
        }
        Ok(())
    }
}
