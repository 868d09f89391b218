//! N-Policy: moves processes that map persistent memory to the node they belong on (Yang et al.,
//! "Monitoring Memory Behaviors and Mitigating NUMA Drawbacks on Tiered NVM Systems", NPC'20,
//! section 2.2).
//!
//! **Problem.** Programs read mapped files with loads, not with `read()`, so no byte counter sees
//! them. The pages' access bits tell which pages are hot. The data is persistent and large, so it
//! stays and the process moves.
//!
//! **Approach.** The policy adds windows up to epochs of 10 s ("receives messages from SysMon-N for
//! every 10 seconds"). At the end of each epoch it applies the conditional migration model of Fig.
//! 2 to each process: (a) none of the data it touched is on a node it runs on: move it to the data;
//! (b) one remote node holds more than 80 % of the access coverage: move it there; (c) otherwise,
//! move it to the node with more hot pages, if that node leads by a margin (the paper's "repeated
//! and meaningless migrations"). The paper binds the process's tasks with `sched_setaffinity` and
//! moves no memory, so the plan names threads, not processes.
//!
//! **Limits.** The paper chooses "the least utilized CPU on the node"; homenode leaves that choice
//! to the kernel. Of equally near nodes, the policy takes the least used. The paper binds a process
//! even to nodes outside its affinity (its case a compares with the nodes that the process is
//! *allowed*). homenode never does, so (a) compares with the nodes that the process runs on, and
//! falls back to the nearest node that it may use. The policy does not consider read and write
//! calls, CPU load or controller load.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use topology::{NodeId, Topology};

use crate::numbers::{fraction, positive};
use crate::processes::{by_pid, distance, nearest_to, node_of, other, sane, show, starts, utilisation};
use crate::{Declined, Move, Plan, Policy, Process, Reason, Snapshot, Thread, Traits, Wish};

/// The settings of N-Policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Length of an epoch in seconds.
    #[serde(deserialize_with = "positive")]
    pub epoch_s: f64,
    /// Share of the access coverage that one remote node must exceed (Fig. 2: 80 %).
    #[serde(deserialize_with = "fraction")]
    pub coverage: f64,
    /// The other node must have this many times as many hot bytes as the process's own node. 1 is
    /// the paper's comparison, without hysteresis.
    #[serde(deserialize_with = "positive")]
    pub hot_margin: f64,
    /// Processes that touched fewer bytes per window than this, on average, are ignored.
    #[serde(deserialize_with = "topology::units::bytes")]
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

#[derive(Clone, Debug, Default)]
struct Epoch {
    /// Its start, on the plane's clock.
    begin_s: f64,
    /// The end of its last window.
    end_s: f64,
    /// The summed length of its windows, in seconds (recorded windows may lack a clock).
    windows_s: f64,
    windows: u32,
    processes: BTreeMap<u32, Mapped>,
}

/// What a process has touched in the epoch.
#[derive(Clone, Debug, Default)]
struct Mapped {
    /// Its start, if known: another process may get its id within the epoch.
    start: Option<u64>,
    nodes: BTreeMap<NodeId, Touched>,
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
        let starts = starts(snapshot);
        for process in &snapshot.processes {
            let (of, start) = (self.processes.entry(process.pid).or_default(), starts.get(&process.pid).copied());
            if other(of.start, start) {
                *of = Mapped::default();
            }
            of.start = start.or(of.start);
            add_touched(&mut of.nodes, process);
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

/// The node where a process belongs, and the condition of Fig. 2 that says so.
#[derive(Clone, Debug, PartialEq)]
struct Verdict {
    node: NodeId,
    reason: Reason,
    why: String,
}

/// The policy; see the module.
#[derive(Debug, Default)]
pub struct NPolicy {
    settings: Settings,
    epoch: Epoch,
}

impl NPolicy {
    /// Creates a policy at the start of its first epoch.
    pub fn new(settings: Settings) -> Self {
        Self { settings, epoch: Epoch::default() }
    }

    /// Applies Fig. 2 to one process. `home` is the node it is on; `runs_on` lists all nodes that
    /// its threads are on.
    fn judge(&self, touched: &BTreeMap<NodeId, Touched>, home: NodeId, runs_on: &[NodeId]) -> Option<Verdict> {
        let total: f64 = touched.values().map(|t| t.all).sum();
        if total <= 0.0 {
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
            let why = format!("it runs on no node that holds mapped data it touched; {share:.0} % is on node {widest}");
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

    fn traits(&self) -> Traits {
        Traits { wants_mapped: Wish::Needed, ..Traits::default() }
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        self.epoch.add(snapshot);
        let mut plan = Plan::new(self.name());
        // Half a window of slack, because window lengths are measured: ten windows may last 9.99 s.
        if self.epoch.length_s() + 0.5 * sane(snapshot.window_s) < self.settings.epoch_s {
            let (seen, all) = (self.epoch.length_s(), self.settings.epoch_s);
            plan.notes.push(format!("observed {seen:.1} s of an epoch of {all:.1} s; decisions come at its end"));
            return plan;
        }
        let used = utilisation(topology, snapshot);
        let threads = by_pid(snapshot);
        let starts = starts(snapshot);
        for (pid, Mapped { start, nodes: touched }) in &self.epoch.processes {
            let same = !other(*start, starts.get(pid).copied());
            let Some(threads) = threads.get(pid).filter(|_| same) else {
                if !touched.is_empty() {
                    plan.notes.push(format!("process {pid}: left alone, because none of its threads is listed"));
                }
                continue;
            };
            let Some(home) = node_of(threads) else { continue };
            let runs_on: Vec<NodeId> = threads.iter().map(|t| t.node).collect();
            let total: f64 = touched.values().map(|t| t.all).sum();
            if total < self.settings.min_bytes as f64 * f64::from(self.epoch.windows) {
                if total > 0.0 {
                    let (a_window, least) = (total / f64::from(self.epoch.windows), self.settings.min_bytes as f64);
                    let text =
                        format!("it touched {} of mapped files a window, less than {}", show(a_window), show(least));
                    plan.notes.push(format!("process {pid}: left alone, because {text}"));
                }
                continue;
            }
            let Some(verdict) = self.judge(touched, home, &runs_on) else { continue };
            for thread in threads {
                let to = nearest_to(topology, &used, &thread.allowed_nodes, verdict.node);
                move_or_decline(&mut plan, topology, thread, &verdict, to);
            }
        }
        self.epoch = Epoch::default();
        plan
    }
}

fn move_or_decline(plan: &mut Plan, topology: &Topology, thread: &Thread, verdict: &Verdict, to: Option<NodeId>) {
    if thread.node == verdict.node {
        return;
    }
    let declined = |reason: &str, why: String| Declined { tid: thread.tid, reason: reason.into(), why };
    if let Some(pinned) = &thread.pinned {
        plan.declined.push(declined("pinned", pinned.clone()));
        return;
    }
    // This is not the data's own node: move only if it is nearer than the thread's current node.
    let nearer = |to: NodeId| {
        to == verdict.node || distance(topology, to, verdict.node) < distance(topology, thread.node, verdict.node)
    };
    match to.filter(|to| nearer(*to)) {
        Some(to) => {
            plan.moves.push(Move::thread(thread, to, verdict.reason, verdict.why.as_str()));
        }
        None => {
            let why = format!("{}, but it may run neither there nor on a nearer node", verdict.why);
            plan.declined.push(declined("not_allowed", why));
        }
    }
}
