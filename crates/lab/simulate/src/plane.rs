//! The simulated machine as a plane: the engine drives it as it drives a host.
//!
//! **Problem.** A simulation proves something only if the loop, the rails and the policies are
//! those of a host.
//!
//! **Approach.** [`SimulatedPlane`] implements [`Plane`]: observing a window advances virtual
//! time. A thread moves at once; a process or a file has moved when its bytes are copied.
//!
//! **Limits.** Threads do not start other threads, so nothing is inherited. Copies go as fast as
//! the machine lets them: the engine's limit on their rate is not modelled.

use std::time::Duration;

use engine::{Copies, JobId, Plane, PlaneError, Progress, Started, Undo, Undone, Write};
use placement::{Move, NodeLoad, Snapshot};
use topology::Topology;

use crate::run::{Scenario, start};
use crate::world::World;

/// A machine in virtual time.
pub struct SimulatedPlane {
    world: World,
}

impl SimulatedPlane {
    /// The machine of a scenario on which its jobs have just been started.
    pub fn start(scenario: &Scenario, seed: u64) -> Self {
        Self::new(start(scenario, seed))
    }

    pub(crate) fn new(world: World) -> Self {
        Self { world }
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// [`observe`](Plane::observe) without the threads.
    pub(crate) fn observe_nodes(&mut self, window: Duration) -> Vec<NodeLoad> {
        self.world.run(window.as_secs_f64());
        self.world.observe_nodes()
    }
}

impl Copies for SimulatedPlane {
    fn take_back(&mut self, mv: &Move) -> Result<Started, PlaneError> {
        self.world.take_back(mv)
    }

    fn poll(&mut self) -> Vec<Progress> {
        self.world.poll()
    }

    fn cancel(&mut self, job: JobId) {
        self.world.cancel(job);
    }
}

impl Plane for SimulatedPlane {
    fn copies(&mut self) -> Option<&mut dyn Copies> {
        Some(self)
    }

    fn topology(&self) -> &Topology {
        self.world.machine.topology()
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        self.world.run(window.as_secs_f64());
        Ok(self.world.observe())
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        self.world.prepare(mv)
    }

    fn start(&mut self, mv: &Move, _: &[Undo], _: &mut Write<'_>) -> Result<Started, PlaneError> {
        self.world.start(mv)
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        Ok(self.world.undo(undo))
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        self.world.ended(undo)
    }
}
