//! Memory of several nodes on a machine that has one: each access takes the time that it would take
//! there.
//!
//! **Problem.** What a placement wins is time: a remote access waits longer, and a crowded
//! controller lets everybody wait. A machine with one node shows neither, and a virtual machine
//! shows where memory is, not how fast it is.
//!
//! **Approach.** [`Emulated`] passes every access on to another medium and makes its thread wait
//! until the access would be done. All times are wall-clock times, in nanoseconds of a [`Clock`].
//! Of an access to `b` bytes (at least `Memory::line`) by a thread on node `t` to a region on
//! node `m`, `h = (SLIT(t, m) − 10) / 11` hops away, with the profile's figures and its scale `S`:
//!
//! ```text
//! service = S × b / bandwidth × (1 + (remote_load − 1) × h)           bandwidth of the direction: read_bw or write_bw
//! alone   = S × max(latency, b × s_per_byte) × (1 + (remote − 1) × h)  at least service
//! start   = max(now, free[m]);   free[m] = start + service;   done = start + alone
//! ```
//!
//! Each node has one controller (`free[m]`), which both directions share:
//! reading and writing at once, it carries `reads / read_bw + writes / write_bw ≤ 1 / S`. That is
//! what NThread's Eq. 1 says, `read / 3 + write` being constant (its Fig. 9). A reader waits for
//! `done`. A store is posted: its thread goes on, and the next fence waits for all that the thread
//! has posted. Waits that are too short to sleep for are carried over to the thread's next wait,
//! and what a sleep took too long is taken off the next access, so neither adds up. `t` is the node
//! of the CPU that the thread runs on, or what [`crate::on_node`] says. The sources of the figures
//! are with [`Memory::OPTANE`](memory_model::Memory::OPTANE), `DRAM` and `CXL`.
//!
//! **Limits.** A waiting thread only sleeps, software takes the time that it takes here, unscaled,
//! and neither contention for CPUs nor caches nor crowds of writers show (the laboratory has them).
//! The links between nodes are not modelled. Order within a controller is that of arrival, without
//! a preference for reads. Loads and stores of single words take no time; a log entry does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use topology::{NodeId, Topology};

use super::clock::{Clock, Owed};
use super::{At, Medium};
use crate::caller;
use crate::error::Result;
use memory_model::{Cost, Direction, Profile};

static INSTANCES: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Controller {
    node: u32,
    free: AtomicU64,
    busy: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
}

impl Controller {
    /// Enters an access that arrives now; returns when it is done.
    fn enter(&self, now: u64, cost: Cost) -> u64 {
        self.busy.fetch_add(cost.service_ns, Ordering::Relaxed);
        let next = |free: u64| Some(free.max(now).saturating_add(cost.service_ns));
        let free = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_else(|free| free);
        free.max(now).saturating_add(cost.alone_ns)
    }
}

/// Bytes that a controller has carried since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    pub node: u32,
    /// Bytes read, those of logs and copies too.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// How long the controller was occupied.
    pub busy: Duration,
}

/// A medium whose regions seem to be on several nodes; see the module.
pub struct Emulated<M> {
    inner: M,
    instance: u64,
    profile: Profile,
    topology: Topology,
    controllers: Vec<Controller>,
    of_region: Vec<usize>,
    clock: Arc<dyn Clock>,
    on: AtomicBool,
}

/// The node where the thread is that this one acts for.
pub(super) fn here(topology: &Topology) -> Option<u32> {
    caller::node().or_else(|| {
        let cpu = u32::try_from(rustix::thread::sched_getcpu()).ok()?;
        topology.node_of_cpu(cpu).map(|node| node.0)
    })
}

impl<M: Medium> Emulated<M> {
    /// Emulates the memory of `profile` on the nodes of `topology`. `nodes` has the node of each
    /// region; a region without one is on the first. Nothing takes time until [`Self::start`].
    pub fn new(inner: M, nodes: &[Option<u32>], profile: Profile, topology: Topology, clock: Arc<dyn Clock>) -> Self {
        let first = topology.nodes.first().map_or(0, |node| node.id.0);
        let node_of = |region: usize| nodes.get(region).copied().flatten().unwrap_or(first);
        let mut controllers: Vec<Controller> = Vec::new();
        let of_region = (0..inner.regions()).map(|region| {
            let node = node_of(region);
            controllers.iter().position(|c| c.node == node).unwrap_or_else(|| {
                let zero = AtomicU64::default;
                controllers.push(Controller { node, free: zero(), busy: zero(), read: zero(), written: zero() });
                controllers.len() - 1
            })
        });
        let of_region = of_region.collect();
        let instance = INSTANCES.fetch_add(1, Ordering::Relaxed);
        Self { inner, instance, profile, topology, controllers, of_region, clock, on: AtomicBool::new(false) }
    }

    /// From now on accesses take their time. (Mounting does not have to.)
    pub fn start(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    pub fn inner(&self) -> &M {
        &self.inner
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Bytes that each node's controller has carried since the start.
    pub fn carried(&self) -> Vec<Carried> {
        let carried = |c: &Controller| Carried {
            node: c.node,
            read: c.read.load(Ordering::Relaxed),
            written: c.written.load(Ordering::Relaxed),
            busy: Duration::from_nanos(c.busy.load(Ordering::Relaxed)),
        };
        self.controllers.iter().map(carried).collect()
    }

    /// Hops from the calling thread to a node's memory.
    fn hops(&self, to: &Controller) -> f64 {
        match here(&self.topology) {
            Some(from) if from != to.node => memory_model::hops(self.topology.distance(NodeId(from), NodeId(to.node))),
            _ => 0.0,
        }
    }

    /// Enters an access. The thread owes the time until it is done.
    fn charge(&self, direction: Direction, at: At, bytes: usize) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let Some(index) = self.of_region.get(at.region).copied() else { return };
        let Some(controller) = self.controllers.get(index) else { return };
        let mut owed = Owed::to(self.instance);
        let bytes = bytes as u64;
        match direction {
            Direction::Read => controller.read.fetch_add(bytes, Ordering::Relaxed),
            Direction::Write => controller.written.fetch_add(bytes, Ordering::Relaxed),
        };
        let cost = self.profile.memory.cost(direction, bytes, self.hops(controller), self.profile.scale);
        let now = self.clock.now_ns().saturating_sub(owed.late);
        // A reader that did not wait for its last access arrives when that is done.
        let now = if direction == Direction::Read { now.max(owed.due) } else { now };
        owed.late = 0;
        owed.due = owed.due.max(controller.enter(now, cost));
        owed.keep();
    }

    /// Waits until all accesses of this thread are done.
    fn wait(&self) {
        Owed::to(self.instance).wait(&*self.clock);
    }
}

impl<M: Medium> Medium for Emulated<M> {
    fn below(&self) -> Option<&dyn Medium> {
        Some(&self.inner)
    }

    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        self.inner.read(at, out)?;
        self.charge(Direction::Read, at, out.len());
        self.wait();
        Ok(())
    }

    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        self.inner.write(at, data)?;
        self.charge(Direction::Write, at, data.len());
        Ok(())
    }

    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        self.inner.write_data(at, data)?;
        self.charge(Direction::Write, at, data.len());
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        self.inner.fence()?;
        self.wait();
        Ok(())
    }
}
