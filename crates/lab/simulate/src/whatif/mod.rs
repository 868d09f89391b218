//! Runs a load that was recorded on a host on another, simulated machine.
//!
//! **Problem.** Before buying a four-socket machine one wants to know whether it would be faster,
//! and whether homenode would help there. A snapshot gives the throughput of threads on *this*
//! machine only.
//!
//! **Approach.** Each thread becomes a closed loop: a round reads and writes the bytes per file of
//! a thousandth of a second of its window, and takes CPU time and sleep. Both are [fitted](fit) on
//! a model of the recorded machine, with threads and data where they were observed, so that the
//! model reproduces the observed throughput and CPU time. The costs that depend on placement
//! (latency, queueing, the interconnect, CPUs) are then those of the other machine. Nodes map in
//! order ([`load`]): data of the recorded machine's i-th node with memory goes to the other
//! machine's i-th such node, starting over when there are fewer. Threads keep their nodes in the
//! same way if both machines have the same number of nodes with CPUs; otherwise the kernel places
//! them. Threads that must not be moved are bound to the node they start on.
//!
//! **Limits.** One window stands for the load: there are no phases. A file's bytes are on its
//! nodes in proportion to the reads in the window. Memory is assumed to be DRAM with the
//! configured bandwidth, or else [`DRAM_READ_BW`](crate::calibration::DRAM_READ_BW); all CPUs are
//! equally fast. Load that the snapshot does not list, and mapped memory, are missing.

mod fit;
mod load;

use placement::{Policy, Snapshot};
use serde::Serialize;
use topology::Topology;

use crate::calibration as cal;
use crate::constants::Constants;
use crate::machine::{Machine, MachineError, Memory};
use crate::plane::SimulatedPlane;
use crate::run::{Outcome, RunError, Scenario, WindowOutcome, drive, start};
use crate::world::World;

use load::Load;

/// Seconds that are simulated, and of these the warm-up.
const DURATION_S: f64 = 60.0;
const WARMUP_S: f64 = 10.0;

/// A recorded load on another machine.
#[derive(Clone, Debug)]
pub struct WhatIf {
    scenario: Scenario,
    load: Load,
    recorded: Recorded,
}

/// The recorded machine's results, and those of its model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recorded {
    /// File bytes read per second by the listed threads.
    pub read_bw: f64,
    /// File bytes written per second.
    pub write_bw: f64,
    /// Remote file bytes / all file bytes read.
    pub remote_share: Option<f64>,
    /// Throughput, read and written, of the model of the recorded machine / that observed: 1 where
    /// the model fits.
    pub fit: f64,
    /// Assumptions, and what does not fit.
    pub notes: Vec<String>,
}

/// A load that cannot run there.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    /// Nothing runs.
    #[error("the snapshot lists no thread that did anything")]
    Nothing,
    /// The window has no length.
    #[error("window_s is {0}: a load cannot be told from it")]
    Window(f64),
    /// The recorded machine cannot be modelled.
    #[error("the snapshot's machine: {0}")]
    Source(MachineError),
    /// The other machine cannot run anything.
    #[error(transparent)]
    Target(#[from] MachineError),
    /// It does not fit.
    #[error("files and processes of the snapshot are {need:.1} GiB, all memory of the machine is {have:.1} GiB")]
    Memory {
        /// GiB that are needed.
        need: f64,
        /// GiB that there are.
        have: f64,
    },
}

impl WhatIf {
    /// The load of this snapshot on that machine, called `name`.
    ///
    /// # Errors
    ///
    /// [`WhatIfError`].
    pub fn new(snapshot: &Snapshot, target: Topology, name: &str) -> Result<Self, WhatIfError> {
        if !(snapshot.window_s > 0.0 && snapshot.window_s.is_finite()) {
            return Err(WhatIfError::Window(snapshot.window_s));
        }
        let mut notes = Vec::new();
        let source = machine(load::roomy(snapshot), "the recorded machine", &mut notes).map_err(WhatIfError::Source)?;
        let target = machine(target, "the other machine", &mut notes)?;
        let here = Load::of(snapshot, &source, &source);
        if here.threads() == 0 {
            return Err(WhatIfError::Nothing);
        }
        let (costs, fit) = fit::costs(&here, &scenario(name, &source, &here));
        let mut there = Load::of(snapshot, &source, &target);
        there.set_costs(&costs);
        let have = target.nodes().iter().map(|n| n.capacity).sum::<f64>();
        if there.bytes() > have {
            let gib = |bytes: f64| bytes / (1u64 << 30) as f64;
            return Err(WhatIfError::Memory { need: gib(there.bytes()), have: gib(have) });
        }
        if (fit - 1.0).abs() > 0.05 {
            notes.push(format!(
                "the model of the recorded machine gets {:.0} % of the observed throughput done: threads were observed that \
                 are faster than its memory, or slower than their CPU time says",
                fit * 100.0
            ));
        }
        let per_s = |bytes: f64| bytes / snapshot.window_s;
        let sum = |of: fn(&placement::Thread) -> u64| snapshot.threads.iter().map(|t| of(t) as f64).sum::<f64>();
        let recorded = Recorded {
            read_bw: per_s(sum(|t| t.read_bytes.total())),
            write_bw: per_s(sum(|t| t.write_bytes.total())),
            remote_share: snapshot.remote_share(),
            fit,
            notes,
        };
        Ok(Self { scenario: scenario(name, &target, &there), load: there, recorded })
    }

    /// The scenario that runs; [`run`](Self::run) also knows the first node of every thread.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// The recorded machine's results.
    pub fn recorded(&self) -> &Recorded {
        &self.recorded
    }

    /// The other machine on which the load has just been started.
    pub fn plane(&self, seed: u64) -> SimulatedPlane {
        SimulatedPlane::new(world(&self.scenario, &self.load, seed))
    }

    /// Runs it under a policy, or under none, with a word after each window.
    ///
    /// # Errors
    ///
    /// As [`run`](crate::run()).
    pub fn run(
        &self,
        policy: Option<Box<dyn Policy>>,
        seed: u64,
        mut after: impl FnMut(&WindowOutcome),
    ) -> Result<Outcome, RunError> {
        drive(&self.scenario, world(&self.scenario, &self.load, seed), policy, seed, &mut after)
    }
}

fn scenario(name: &str, machine: &Machine, load: &Load) -> Scenario {
    Scenario {
        name: name.to_owned(),
        machine: machine.clone(),
        launches: load.launches.clone(),
        duration_s: DURATION_S,
        warmup_s: WARMUP_S,
        autonuma: false,
        engine: engine::Settings::default(),
    }
}

/// The load, started, with everything where the load says.
fn world(scenario: &Scenario, load: &Load, seed: u64) -> World {
    let mut world = start(scenario, seed);
    load.place(&mut world);
    world
}

/// A machine of DRAM, of the bandwidths that its topology says.
fn machine(mut topology: Topology, what: &str, notes: &mut Vec<String>) -> Result<Machine, MachineError> {
    if topology.nodes.iter().any(|n| n.read_bw_max.is_none() || n.write_bw_max.is_none()) {
        notes.push(format!(
            "the bandwidth of {what} is unknown: {:.0} GB/s read and {:.0} GB/s written per node are assumed",
            cal::DRAM_READ_BW / 1e9,
            cal::DRAM_WRITE_BW / 1e9
        ));
    }
    for node in &mut topology.nodes {
        node.read_bw_max.get_or_insert(cal::DRAM_READ_BW);
        node.write_bw_max.get_or_insert(cal::DRAM_WRITE_BW);
    }
    let c = &Constants::CALIBRATED;
    Machine::new(c, topology, c.port_bw, |node| {
        Memory::dram(c, node.read_bw_max.unwrap_or(cal::DRAM_READ_BW), node.write_bw_max.unwrap_or(cal::DRAM_WRITE_BW))
    })
}
