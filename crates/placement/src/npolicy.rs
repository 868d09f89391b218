//! N-Policy: which node a process that maps persistent memory belongs on (Yang et al., "Monitoring Memory Behaviors and
//! Mitigating NUMA Drawbacks on Tiered NVM Systems", NPC'20, section 2.2).
//!
//! **Problem.** Mapped files are read by loads, not by `read()`: no byte is counted anywhere, but the pages' access bits tell
//! which are hot. The data is persistent and large, so it stays; the process moves.
//!
//! **Approach.** Windows are added up to epochs of 10 s ("receives messages from SysMon-N for every 10 seconds"). At the end of
//! each, per process, the conditional migration model of Fig. 2: (a) nothing it touched is on a node it runs on: move to the
//! data; (b) one remote node holds more than 80 % of the access coverage: move there; (c) else the node with more hot pages,
//! if it has more by a margin (the paper's "repeated and meaningless migrations").
//! The paper binds the process's tasks with `sched_setaffinity` and moves no memory, so the plan names threads, not processes.
//!
//! **Limits.** "The least utilized CPU on the node" is left to the kernel, which chooses inside the node's mask; between equally
//! near nodes the least used is taken here. The paper binds a process even to nodes outside its affinity (its case a compares
//! with the nodes that the process is *allowed*); homenode never does, so (a) compares with the nodes it runs on and falls back to
//! the nearest node that it may use. Read and write calls are not looked at, nor is CPU or controller load.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use topology::{NodeId, Topology};

use crate::processes::{by_pid, distance, node_of, sane, seat, show, utilisation};
use crate::{Declined, Move, Plan, Policy, Process, Reason, Snapshot, Thread, plan};

/// What can be set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Length of an epoch in seconds.
    pub epoch_s: f64,
    /// Share of the access coverage that one remote node must exceed (Fig. 2: 80 %).
    pub coverage: f64,
    /// The other node must have this many times the hot bytes of the process's own. 1 is the paper's comparison, without hysteresis.
    pub hot_margin: f64,
    /// A process that touched less than this many bytes a window, on average, is left alone.
    pub min_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epoch_s: 10.0, coverage: 0.8, hot_margin: 1.2, min_bytes: 4 << 20 }
    }
}

/// Mapped bytes of one process on one node, summed over the windows of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Touched {
    all: f64,
    hot: f64,
}

/// One epoch in the making.
#[derive(Clone, Debug, Default)]
struct Epoch {
    /// When it began, on the plane's clock.
    begin_s: f64,
    /// When its last window ended.
    end_s: f64,
    /// Seconds of windows in it (recorded windows may come without a clock).
    windows_s: f64,
    windows: u32,
    processes: BTreeMap<u32, BTreeMap<NodeId, Touched>>,
}

impl Epoch {
    fn add(&mut self, snapshot: &Snapshot) {
        let (now, window) = (sane(snapshot.time_s), sane(snapshot.window_s));
        if self.windows == 0 || now < self.end_s {
            *self = Self { begin_s: now - window, ..Self::default() };
        }
        self.end_s = now;
        self.windows_s += window;
        self.windows += 1;
        for process in &snapshot.processes {
            add_touched(self.processes.entry(process.pid).or_default(), process);
        }
    }

    fn length_s(&self) -> f64 {
        self.windows_s.max(self.end_s - self.begin_s)
    }
}

fn add_touched(nodes: &mut BTreeMap<NodeId, Touched>, process: &Process) {
    for mapped in &process.mapped {
        let listed = mapped.hot_bytes.saturating_add(mapped.cold_bytes);
        let all = mapped.touched_bytes.unwrap_or(listed);
        if all == 0 {
            continue;
        }
        let sum = nodes.entry(mapped.node).or_default();
        sum.all += all as f64;
        sum.hot += mapped.hot_bytes.min(all) as f64;
    }
}

/// Where a process belongs, and by which condition of Fig. 2.
#[derive(Clone, Debug, PartialEq)]
struct Verdict {
    node: NodeId,
    reason: Reason,
    why: String,
}

/// The policy: see the module.
#[derive(Debug, Default)]
pub struct NPolicy {
    settings: Settings,
    epoch: Epoch,
}

impl NPolicy {
    /// A policy at the beginning of its first epoch.
    pub fn new(settings: Settings) -> Self {
        Self { settings, epoch: Epoch::default() }
    }

    /// Fig. 2 for one process. `home` is the node it is on, `runs_on` every node that a thread of it is on.
    fn judge(&self, touched: &BTreeMap<NodeId, Touched>, home: NodeId, runs_on: &[NodeId]) -> Option<Verdict> {
        let total: f64 = touched.values().map(|t| t.all).sum();
        if total < self.settings.min_bytes as f64 * f64::from(self.epoch.windows) || total <= 0.0 {
            return None;
        }
        let most = |key: fn(&Touched) -> f64| {
            let more = |a: &(&NodeId, &Touched), b: &(&NodeId, &Touched)| {
                key(a.1).total_cmp(&key(b.1)).then((*a.0 == home).cmp(&(*b.0 == home))).then(b.0.cmp(a.0))
            };
            touched.iter().max_by(more).map(|(node, t)| (*node, key(t)))
        };
        let (widest, covered) = most(|t| t.all)?;
        let share = 100.0 * covered / total;
        if !touched.keys().any(|node| runs_on.contains(node)) {
            let why =
                format!("none of the mapped data it touched is on a node it runs on, {share:.0} % is on node {widest}");
            return Some(Verdict { node: widest, reason: Reason::RemoteOnly, why });
        }
        if covered > self.settings.coverage * total {
            let why = format!("{share:.0} % of the mapped data it touched is on node {widest}");
            return Some(Verdict { node: widest, reason: Reason::Coverage, why });
        }
        let (hottest, hot) = most(|t| t.hot)?;
        let here = touched.get(&home).map_or(0.0, |t| t.hot);
        if hot <= here * self.settings.hot_margin.max(1.0) {
            return None;
        }
        let windows = f64::from(self.epoch.windows.max(1));
        let why = format!(
            "{} of hot mapped pages on node {hottest}, {} on node {home}",
            show(hot / windows),
            show(here / windows)
        );
        Some(Verdict { node: hottest, reason: Reason::Hotness, why })
    }
}

impl Policy for NPolicy {
    fn name(&self) -> &'static str {
        "npolicy"
    }

    fn period_s(&self) -> f64 {
        self.settings.epoch_s
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        self.epoch.add(snapshot);
        let mut plan = Plan { version: plan::VERSION, policy: self.name().into(), ..Plan::default() };
        // Half a window of slack: windows are measured, so ten of them may be 9.99 s.
        if self.epoch.length_s() + 0.5 * sane(snapshot.window_s) < self.settings.epoch_s {
            let (seen, all) = (self.epoch.length_s(), self.settings.epoch_s);
            plan.notes.push(format!("{seen:.1} s of an epoch of {all:.1} s observed, decided at its end"));
            return plan;
        }
        let used = utilisation(topology, snapshot);
        let threads = by_pid(snapshot);
        for (pid, touched) in &self.epoch.processes {
            let Some(threads) = threads.get(pid) else {
                if !touched.is_empty() {
                    plan.notes.push(format!("process {pid}: none of its threads was listed, left alone"));
                }
                continue;
            };
            let Some(home) = node_of(threads) else { continue };
            let runs_on: Vec<NodeId> = threads.iter().map(|t| t.node).collect();
            let Some(verdict) = self.judge(touched, home, &runs_on) else { continue };
            for thread in threads {
                let to = seat(topology, &used, &thread.allowed_nodes, verdict.node);
                move_or_decline(&mut plan, topology, thread, &verdict, to);
            }
        }
        self.epoch = Epoch::default();
        plan
    }
}

fn move_or_decline(plan: &mut Plan, topology: &Topology, thread: &Thread, verdict: &Verdict, seat: Option<NodeId>) {
    if thread.node == verdict.node {
        return;
    }
    let declined = |reason: &str, why: String| Declined { tid: thread.tid, reason: reason.into(), why };
    if let Some(held) = &thread.held {
        plan.declined.push(declined("held", held.clone()));
        return;
    }
    // Not the data's own node: worth a move only if it is nearer than where the thread is.
    let nearer = |to: NodeId| {
        to == verdict.node || distance(topology, to, verdict.node) < distance(topology, thread.node, verdict.node)
    };
    match seat.filter(|to| nearer(*to)) {
        Some(to) if to != thread.node => plan.moves.push(Move::Thread {
            tid: thread.tid,
            pid: thread.pid,
            start_ns: thread.start_ns,
            from: thread.node,
            to,
            reason: verdict.reason,
            why: verdict.why.as_str().into(),
        }),
        _ => {
            let why = format!("{}, but it may not run there or nearer", verdict.why);
            plan.declined.push(declined("not_allowed", why));
        }
    }
}
