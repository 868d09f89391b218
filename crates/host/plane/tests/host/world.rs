//! A scripted observer and policy for real processes on made-up nodes.

use std::path::Path;
use std::time::Duration;

use engine::{Engine, MoveEvent, Plane, Settings, StateDir};
use host::Observe;
use host::{HostPlane, Settings as HostSettings};
use linux::affinity;
use linux::births::Descendant;
use linux::threads::Threads;
use observe::{ObserveError, Observed, ObservedThread};
use placement::{Move, Plan, Policy, Reason, Snapshot, Thread};
use testing::world::{node, tids, topology};
use topology::{NodeId, ThreadId, Topology};

pub use crate::moves::{a_move, made, move_of};

/// Shows all threads of some processes as busy on node 0, unless they are bound to node 1.
pub struct Scripted {
    pub pids: Vec<u32>,
    pub clock: f64,
    /// Whether the threads have asked for an affinity.
    pub asked: Option<bool>,
}

impl Scripted {
    pub fn of(pids: &[u32]) -> Box<Self> {
        Box::new(Self { pids: pids.to_vec(), clock: 0.0, asked: None })
    }
}

impl Observe for Scripted {
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError> {
        std::thread::sleep(length);
        self.clock += 1.0;
        let procfs = Threads::new(Path::new("/proc"));
        let mut threads = Vec::new();
        for pid in &self.pids {
            for tid in tids(*pid) {
                let (Ok(Some(stat)), Ok(mask)) = (procfs.stat(tid), affinity::get(tid)) else { continue };
                let thread = Thread {
                    pid: *pid,
                    comm: stat.comm,
                    start_ns: stat.id.start_ns(),
                    allowed_nodes: (0..2).filter(|n| !mask.intersection(&node(*n)).is_empty()).map(NodeId).collect(),
                    cpu_s: 0.1,
                    ..placement::testing::thread(tid, u32::from(mask == node(1)), &[(1, 100)], 0)
                };
                threads.push(ObservedThread { thread, mask, asked: self.asked, kernel_thread: stat.kernel_thread });
            }
        }
        Ok(Observed { time_s: self.clock, window_s: 1.0, threads, births_lost: true, ..Observed::default() })
    }

    fn watch(&mut self, _: ThreadId) -> Result<(), ObserveError> {
        Ok(())
    }

    fn release(&mut self, _: u32) -> Result<(), ObserveError> {
        Ok(())
    }

    fn descendants(&mut self) -> Result<Vec<Descendant>, ObserveError> {
        Ok(Vec::new())
    }
}

/// A policy that is a closure.
struct Script<F>(F);

impl<F: FnMut(&Snapshot) -> Plan + Send> Policy for Script<F> {
    fn name(&self) -> &'static str {
        "script"
    }

    fn decide(&mut self, _: &Topology, snapshot: &Snapshot) -> Plan {
        Plan { version: 2, policy: "script".into(), ..(self.0)(snapshot) }
    }
}

pub fn script(decide: impl FnMut(&Snapshot) -> Plan + Send + 'static) -> Box<dyn Policy> {
    Box::new(Script(decide))
}

/// Sends every thread to one node.
pub fn all_to(to: u32) -> Box<dyn Policy> {
    script(move |snapshot| {
        let away = snapshot.threads.iter().filter(|t| t.node != NodeId(to));
        let why = "100.0 MB of 100.0 MB read from there";
        let moves = away.map(|t| Move::thread(t, NodeId(to), Reason::ReadLocality, why)).collect();
        Plan { moves, ..Plan::default() }
    })
}

pub fn plane(observer: Option<Box<dyn Observe>>) -> HostPlane {
    HostPlane::with_observer(HostSettings::default(), topology(), observer).unwrap()
}

pub fn settings() -> Settings {
    Settings { window_s: 0.05, burst: 10_000, moves_per_s: 10_000.0, ..Settings::default() }
}

pub fn engine(plane: HostPlane, to: u32, state: Option<StateDir>) -> Engine<HostPlane> {
    Engine::new(plane, all_to(to), settings(), state).unwrap()
}

/// Verdicts of one window.
pub fn step<P: Plane>(engine: &mut Engine<P>) -> Vec<MoveEvent> {
    let report = engine.step().unwrap();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    report.outcomes.into_iter().map(|o| o.result).collect()
}
