//! The host as a plane: what the observer saw, joined with what may be moved.
//!
//! **Problem.** The observer knows who reads what; the mover knows whose affinity is whose. A policy wants one picture, and
//! the engine one thing to drive, also where nothing can be observed (`restore` on a machine without BPF).
//!
//! **Approach.** [`HostPlane`] asks an [`Observe`] for a window and completes each thread: the nodes it may run on, and why
//! it must not be moved. A thread that we have moved is shown with the nodes it could run on before. Moves, undoing and
//! descendants go to [`act`](crate::act).
//!
//! **Limits.** What is said here about control groups may be a few windows old; a move is prepared on what is read then.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use engine::{Cost, Plane, PlaneError, Undo, Undone};
use placement::{Move, NodeLoad, Snapshot, Thread};
use rustc_hash::FxHashSet;
use topology::{CpuSet, NodeId, Topology};

use crate::act::lineage::Lineage;
use crate::act::mover::{Key, NS_PER_TICK, Rules, key_of, own_affinity};
use crate::act::{Mover, kin};
use crate::observe::{self, Child, ObserveError, Observed, ObservedThread, Observer};

/// Longest windows, in times of what is asked for: ending a run waits for the window to end.
const STRETCH_MAX: u32 = 4;

/// How to observe and what may be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How to observe; its procfs is used for acting too.
    pub observe: observe::Settings,
    /// The sysfs mount.
    pub sys_root: PathBuf,
    /// Also move threads that have an affinity of their own. Default false.
    pub touch_own_affinity: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { observe: observe::Settings::default(), sys_root: PathBuf::from("/sys"), touch_own_affinity: false }
    }
}

/// Why the host cannot be driven.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Nothing can be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// procfs or sysfs cannot be read.
    #[error("cannot act on threads: {0}")]
    Act(#[from] std::io::Error),
    /// The plane was opened without an observer.
    #[error("this plane was opened to put things back only: it cannot observe")]
    ActOnly,
}

/// What a plane needs of an observer: [`Observer`], or a scripted one in tests.
pub trait Observe {
    /// Waits for the window and tells what it showed.
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError>;
    /// From now on tells of the descendants of this thread.
    fn watch_children(&mut self, tid: u32) -> Result<(), ObserveError>;
    /// Living descendants of watched threads.
    fn children(&mut self) -> Vec<Child>;
    /// What this kernel does not show; part of each window's notes.
    fn limits(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Observe for Observer {
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError> {
        Observer::window(self, length)
    }

    fn watch_children(&mut self, tid: u32) -> Result<(), ObserveError> {
        Observer::watch_children(self, tid)
    }

    fn children(&mut self) -> Vec<Child> {
        Observer::children(self)
    }

    fn limits(&self) -> Vec<String> {
        self.configuration().notes.clone()
    }
}

/// The host.
pub struct HostPlane {
    topology: Topology,
    observer: Option<Box<dyn Observe>>,
    mover: Mover,
    lineage: Lineage,
    settings: Settings,
    own_pid: u32,
    cost: Option<Cost>,
    /// How many times as long as asked for windows are, to cost less.
    stretch: u32,
    /// Threads whose births could not be watched, with the window's notes.
    unwatched: Option<String>,
    /// Something that was moved has been put back since the last window: we are on the way out, or cleaning up at a start.
    finishing: bool,
}

impl HostPlane {
    /// Opens the host for observing and acting.
    pub fn open(settings: Settings, topology: Topology) -> Result<Self, HostError> {
        let observer = Observer::open(&settings.observe, &topology)?;
        Self::with_observer(settings, topology, Some(Box::new(observer)))
    }

    /// Opens the host for putting things back: needs nothing but procfs and sysfs.
    pub fn open_act_only(settings: Settings, topology: Topology) -> Result<Self, HostError> {
        Self::with_observer(settings, topology, None)
    }

    /// Opens the host with an observer of the caller's.
    pub fn with_observer(
        settings: Settings,
        topology: Topology,
        observer: Option<Box<dyn Observe>>,
    ) -> Result<Self, HostError> {
        let rules = Rules { touch_own_affinity: settings.touch_own_affinity };
        let mover = Mover::new(&settings.observe.proc_root, &settings.sys_root, rules)?;
        Ok(Self {
            topology,
            observer,
            mover,
            lineage: Lineage::default(),
            settings,
            own_pid: std::process::id(),
            cost: None,
            stretch: 1,
            unwatched: None,
            finishing: false,
        })
    }

    /// What this kernel does not show: the notes that every window has.
    pub fn limits(&self) -> Vec<String> {
        self.observer.as_ref().map(|observer| observer.limits()).unwrap_or_default()
    }

    /// One thread as policies see it: completed by the nodes it may run on, and why it must not be moved.
    fn complete(&mut self, seen: ObservedThread) -> Thread {
        let ObservedThread { mut thread, mask, kernel_thread, .. } = seen;
        let online = self.mover.defaults().online();
        // The task's own mask may contain CPUs that are offline; what the kernel shows does not.
        let mask = if mask.is_subset(online) {
            mask
        } else {
            let shown = mask.intersection(online);
            thread.allowed_nodes = nodes_of(&self.topology, &shown);
            shown
        };
        let (allowed, held) = if kernel_thread {
            (None, Some("is a kernel thread".to_owned()))
        } else if thread.pid == self.own_pid {
            (None, Some("is homenode itself".to_owned()))
        } else if mask == *online {
            // Whatever its cpuset is, it allows all of this.
            (None, None)
        } else {
            let key: Key = (thread.tid, thread.start_ns.unwrap_or(0) / NS_PER_TICK);
            self.judge(key, &mask)
        };
        // The observer has found the nodes of most masks once for all threads that have them.
        if let Some(allowed) = allowed {
            thread.allowed_nodes = nodes_of(&self.topology, &allowed);
        }
        thread.held = held;
        thread
    }

    /// The CPUs that a thread with a mask of less than all may be moved within, if not the mask, and why it must not be.
    fn judge(&mut self, key: Key, mask: &CpuSet) -> (Option<CpuSet>, Option<String>) {
        let default = match self.mover.defaults().remembered(key) {
            Ok(default) => default,
            Err(why) => return (None, Some(format!("its cpuset is not known: {why}"))),
        };
        match self.mover.moved(key) {
            Some(moved) if moved.holds(mask, &default) => match moved.unbound {
                true => (Some(default), None),
                false => (Some(moved.before.clone()), None),
            },
            _ if *mask == default || self.mover.rules().touch_own_affinity => (Some(default), None),
            _ => (None, Some(own_affinity(mask))),
        }
    }

    fn nodes(&self, seen: &Observed) -> Vec<NodeLoad> {
        let free = topology::sysfs::free_memory(&self.settings.sys_root, &self.topology);
        let load = |node: &topology::Node| NodeLoad {
            id: node.id,
            cpus: node.cpus.iter().collect(),
            distance: node.distance.clone(),
            read_bw_max: node.read_bw_max,
            write_bw_max: node.write_bw_max,
            read_bytes: seen.node_read.get(node.id),
            write_bytes: seen.node_write.get(node.id),
            cpu_s: cpu_s(&seen.node_cpu_s, node.id),
            memory_free: free.get(&node.id).copied().unwrap_or(0),
        };
        self.topology.nodes.iter().map(load).collect()
    }
}

fn cpu_s(node_cpu_s: &BTreeMap<NodeId, f64>, node: NodeId) -> Option<f64> {
    node_cpu_s.get(&node).copied()
}

/// Nodes that have a CPU in the set.
fn nodes_of(topology: &Topology, cpus: &CpuSet) -> Vec<NodeId> {
    topology.nodes.iter().filter(|n| n.cpus.iter().any(|cpu| cpus.contains(cpu))).map(|n| n.id).collect()
}

impl Plane for HostPlane {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        let broken = |e: HostError| PlaneError::Broken(Box::new(e));
        let Some(observer) = &mut self.observer else { return Err(broken(HostError::ActOnly)) };
        let mut seen = observer.window(window * self.stretch).map_err(|e| broken(e.into()))?;
        self.finishing = false;
        self.mover.begin_window();
        let window_s = seen.window_s;
        self.cost = Some(Cost {
            cpu: if window_s > 0.0 { seen.cost.cpu_s / window_s } else { 0.0 },
            memory_bytes: seen.cost.rss_bytes.saturating_add(seen.cost.kernel_bytes),
        });
        let nodes = self.nodes(&seen);
        let threads = std::mem::take(&mut seen.threads).into_iter().map(|t| self.complete(t)).collect();
        let mut notes = seen.notes;
        notes.extend(self.unwatched.take());
        Ok(Snapshot {
            version: placement::snapshot::VERSION,
            time_s: seen.time_s,
            window_s,
            nodes,
            threads,
            files: seen.files,
            processes: Vec::new(),
            notes,
        })
    }

    fn prepare(&mut self, mv: &Move) -> Result<Undo, PlaneError> {
        self.mover.prepare(&self.topology, mv)
    }

    fn apply(&mut self, _: &Move, undo: &Undo) -> Result<(), PlaneError> {
        // Before the move: a child that is born right after it inherits our value.
        if let Some(((tid, _), observer)) = key_of(undo).zip(self.observer.as_mut())
            && let Err(error) = observer.watch_children(tid)
        {
            tracing::warn!(tid, %error, "births are not watched");
            self.unwatched = Some(format!(
                "births of moved threads are not watched ({error}): what they inherit is put back at the end"
            ));
        }
        self.mover.apply(undo)
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        // Records of moves name the family; those of descendants do not.
        self.finishing |= matches!(undo, Undo::Thread { family: Some(_), .. });
        self.mover.undo(undo)
    }

    /// With an observer, who was born of moved threads is known from their births; while everything is put back, and
    /// without one, procfs is searched as well.
    fn inherited(&mut self, held: &[Undo]) -> Vec<Undo> {
        let mut heirs = match &mut self.observer {
            Some(observer) => self.lineage.heirs(&self.mover, observer.children()),
            None => Vec::new(),
        };
        if self.observer.is_none() || self.finishing {
            match kin::heirs(self.mover.threads(), held) {
                Ok(more) => {
                    let known: FxHashSet<Key> = heirs.iter().filter_map(key_of).collect();
                    heirs.extend(more.into_iter().filter(|h| key_of(h).is_none_or(|key| !known.contains(&key))));
                }
                Err(error) => {
                    tracing::warn!(%error, "processes cannot be listed: descendants of moved threads are not found")
                }
            }
        }
        heirs
    }

    fn ended(&mut self, undo: &Undo) -> bool {
        let Some(key) = key_of(undo) else { return false };
        let ended = !self.mover.threads().alive(key.0, key.1);
        if ended {
            self.mover.forget(key);
        }
        ended
    }

    fn epoch(&self) -> Option<String> {
        let path = self.settings.observe.proc_root.join("sys/kernel/random/boot_id");
        std::fs::read_to_string(path).ok().map(|id| id.trim().to_owned())
    }

    fn cost(&self) -> Option<Cost> {
        self.cost
    }

    /// Counting adapts to the load by itself; what costs us is each window's pass over all threads and their entries. So
    /// there are fewer, longer windows.
    fn shed(&mut self) -> Option<String> {
        if self.stretch >= STRETCH_MAX {
            return None;
        }
        self.stretch *= 2;
        Some(format!("windows are {} times as long from now on", self.stretch))
    }

    fn relax(&mut self) -> Option<String> {
        if self.stretch == 1 {
            return None;
        }
        self.stretch /= 2;
        Some(match self.stretch {
            1 => "windows are as long as set again".to_owned(),
            n => format!("windows are {n} times as long from now on"),
        })
    }
}
