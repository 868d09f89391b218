//! The words for windows, plans and moves: identical in `plan`, `run`, `replay`, `top` and
//! `explain`.

use std::collections::HashMap;

use engine::{Rail, word};
use linux::interference::Interference;
use placement::{Move, Plan, Prediction, Reason, Snapshot, Subject, Thread};
use topology::{NodeId, ProcessId, ThreadId};

use super::limits::Limits;
use super::table::Table;
use super::units::{bytes, count, percent, seconds};

/// How many threads that stay are listed before the rest is only counted; JSON has them all.
const STAY_LINES: usize = 20;

pub struct Names<'a>(HashMap<u32, &'a Thread>);

impl<'a> Names<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Self {
        Self(snapshot.threads.iter().map(|t| (t.tid, t)).collect())
    }

    /// `rocksdb:low3 (tid 4121)`.
    pub fn thread(&self, tid: u32) -> String {
        thread(self.comm(tid), tid)
    }

    /// The thread's name; empty where it is not known.
    pub fn comm(&self, tid: u32) -> &str {
        self.0.get(&tid).map_or("", |t| t.comm.as_str())
    }

    /// The subject of a move: a thread, a process or a file.
    pub fn moved(&self, mv: &Move) -> String {
        match &mv.subject {
            Subject::Thread(ThreadId { tid, .. }) => self.thread(*tid),
            Subject::Process(ProcessId { pid, .. }) => process(self.comm(*pid), *pid),
            Subject::File(file) => format!("file {file}"),
        }
    }
}

/// `rocksdb:low3 (tid 4121)`, or `tid 4121` where the name is not known.
pub fn thread(comm: &str, tid: u32) -> String {
    if comm.is_empty() { format!("tid {tid}") } else { format!("{comm} (tid {tid})") }
}

/// `postgres (pid 4121)`, or `pid 4121` where the name is not known.
pub fn process(comm: &str, pid: u32) -> String {
    if comm.is_empty() { format!("pid {pid}") } else { format!("{comm} (pid {pid})") }
}

/// `node 1 → 0`; `stays on 0` for a thread that is bound where it is.
pub fn direction(from: NodeId, to: NodeId) -> String {
    if from == to { format!("stays on {to}") } else { format!("node {from} → {to}") }
}

/// A rule's name as in JSON: `read_locality`.
pub fn reason(reason: Reason) -> String {
    word(&reason)
}

/// A rail's name as in JSON: `dwell`.
pub fn rail(rail: Rail) -> String {
    word(&rail)
}

/// `numad: process 812; moves threads too; stop it`.
pub fn interference(found: &Interference) -> String {
    format!("{}: {}; {}; {}", found.name, found.found, found.effect, found.advice)
}

/// `38 threads read 4.1 GB of file data, 47 % of it from another node`.
pub fn read_summary(snapshot: &Snapshot) -> String {
    let readers = snapshot.threads.iter().filter(|t| t.read_bytes.total() > 0).count();
    let read = snapshot.threads.iter().fold(0u64, |sum, t| sum.saturating_add(t.read_bytes.total()));
    match snapshot.remote_share() {
        Some(share) => format!(
            "{} read {} of file data, {} of it from another node",
            count(readers, "thread"),
            bytes(read),
            percent(share)
        ),
        None => "no thread read file data".to_owned(),
    }
}

/// `window 1.0 s · 2 nodes · 38 threads read 4.1 GB of file data, 47 % of it from another node`.
pub fn window(snapshot: &Snapshot) -> String {
    format!(
        "window {} · {} · {}",
        seconds(snapshot.window_s),
        count(snapshot.nodes.len(), "node"),
        read_summary(snapshot)
    )
}

/// A plan as text: its window, moves, threads that stay, notes and forecast.
pub fn plan(plan: &Plan, snapshot: &Snapshot, limits: &Limits) -> String {
    let names = Names::new(snapshot);
    let mut text = window(snapshot) + "\n";
    let mut table = Table::plain(4);
    for mv in &plan.moves {
        let Move { from, to, why, .. } = mv;
        table.row(["move".to_owned(), names.moved(mv), direction(*from, *to), why.to_string()]);
    }
    for stay in plan.declined.iter().take(STAY_LINES) {
        table.row(["stay".to_owned(), names.thread(stay.tid), String::new(), stay.why.clone()]);
    }
    text.push_str(&table.render());
    if let Some(more) = plan.declined.len().checked_sub(STAY_LINES).filter(|n| *n > 0) {
        text.push_str(&format!("and {} more stay\n", count(more, "thread")));
    }
    text.push_str(&super::notes(limits.lines(&snapshot.notes).iter().chain(&plan.notes)));
    if plan.moves.is_empty() {
        text.push_str("nothing to move\n");
    } else if let Some(predicted) = &plan.predicted {
        text.push_str(&forecast(predicted));
    }
    text
}

/// `would cut the remote share to 3 %, node 0 controller 41 % → 44 %, CPU 55 % → 71 %`.
fn forecast(predicted: &Prediction) -> String {
    let mut parts = Vec::new();
    if let (Some(before), Some(after)) = (predicted.remote_share_before, predicted.remote_share_after) {
        parts.push(match after.partial_cmp(&before) {
            Some(std::cmp::Ordering::Less) => format!("cut the remote share to {}", percent(after)),
            Some(std::cmp::Ordering::Greater) => format!("raise the remote share to {}", percent(after)),
            _ => format!("keep the remote share at {}", percent(after)),
        });
    }
    for node in &predicted.nodes {
        let change = |name: &str, before: Option<f64>, after: Option<f64>| {
            let (before, after) = (percent(before?), percent(after?));
            (before != after).then(|| format!("{name} {before} → {after}"))
        };
        let changes: Vec<_> = [
            change("controller", node.controller_before, node.controller_after),
            change("CPU", node.cpu_before, node.cpu_after),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !changes.is_empty() {
            parts.push(format!("node {} {}", node.node, changes.join(", ")));
        }
    }
    if parts.is_empty() { String::new() } else { format!("would {}\n", parts.join(", ")) }
}
