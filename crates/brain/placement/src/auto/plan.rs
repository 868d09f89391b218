//! Turns an assignment into a plan: moves, reasons, the gain they promise and the alternatives they
//! beat.
//!
//! **Problem.** A joint decision is right as a whole, but a person asks why this thread moves to
//! that node.
//!
//! **Approach.** Each move states what the whole plan saves, in seconds of the horizon that the
//! machine's threads save. The largest moves also state their own part: the model evaluates the
//! same assignment without them. The reason of a move is the first that applies: its threads get
//! nearer to their data, or leave crowded CPUs, or else a crowded controller.
//!
//! **Limits.** Parts are solved for the largest [`EXPLAINED`] moves. Smaller moves state the gain
//! of the whole plan.

use std::cmp::Reverse;

use memory_model::{Shares, add};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use topology::{NodeId, ProcessId, ThreadId};

use super::assignment::{Assignment, Model, Placed, Scratch};
use super::data::main_node;
use super::demand::Demands;
use super::search::Found;
use crate::processes::show;
use crate::{Move, NodeForecast, Prediction, Reason, Snapshot, Subject, Thread};

/// Number of moves whose own part is solved: more than a person reads.
const EXPLAINED: usize = 16;
/// Number of cells that may be solved for this: about as much work as the allowance of the search.
const EXPLAINED_CELLS: usize = 20_000;

/// Of a file on several nodes, parts smaller than this share are not moved: each is a copy of its
/// own, and the file system aligns data so that some bytes stay behind.
const CRUMBS: f64 = 0.02;

/// Threads of one class that move together.
struct Part {
    class: usize,
    to: Placed,
    members: Vec<usize>,
}

/// The moves of an assignment in the order to make them.
pub(super) fn moves(model: &Model, snapshot: &Snapshot, found: &Found, scratch: &mut Scratch) -> Vec<Move> {
    let mut parts = parts(model, &found.assignment);
    parts.sort_by_key(|p| {
        (Reverse((model.classes[p.class].work.rate * p.members.len() as f64) as u64), p.class, p.to.node)
    });
    let mut moves = Vec::new();
    // Threads that stay with their moved process have no reason of their own.
    let going = |p: &Part| {
        p.to.node != model.classes[p.class].node && found.assignment.processes[model.classes[p.class].process].is_none()
    };
    let reasons = reasons(model, found, &parts, scratch);
    let explained = (EXPLAINED_CELLS / model.classes.len().max(1)).clamp(1, EXPLAINED);
    processes(model, found, &mut moves);
    groups(model, snapshot, found, &mut moves);
    for (i, part) in parts.iter().enumerate() {
        let why = why(model, found, part, i < explained, scratch);
        if let Some(to) = part.to.data {
            private_files(model, snapshot, part, to, &why, &mut moves);
        }
        if going(part) {
            let reason = reasons[i];
            let why = why + &stays_behind(model, part);
            for member in &part.members {
                let t = &snapshot.threads[model.demands.threads[*member].thread];
                moves.push(Move::thread(t, model.hardware.nodes[part.to.node].id, reason, why.as_str()));
            }
        }
    }
    moves
}

/// Threads that stay on nodes where others arrive; if they stayed unbound, the kernel would move
/// them away.
pub(super) fn keeps(snapshot: &Snapshot, demands: &Demands, moves: &[Move]) -> Vec<u32> {
    let (mut moved, mut processes, mut joined) = (FxHashSet::default(), FxHashSet::default(), FxHashSet::default());
    for mv in moves {
        joined.insert(mv.to);
        match mv.subject {
            Subject::Thread(ThreadId { tid, .. }) => _ = moved.insert(tid),
            Subject::Process(ProcessId { pid, .. }) => _ = processes.insert(pid),
            Subject::File(_) => {}
        }
    }
    let threads = demands.threads.iter().map(|d| &snapshot.threads[d.thread]);
    let stays = |t: &&Thread| {
        joined.contains(&t.node) && t.pinned.is_none() && !moved.contains(&t.tid) && !processes.contains(&t.pid)
    };
    threads.filter(stays).map(|t| t.tid).collect()
}

/// The threads that move, or whose data does. Of a class, the members that stay are the first ones.
fn parts(model: &Model, assignment: &Assignment) -> Vec<Part> {
    let mut parts = Vec::new();
    for (t, class) in model.classes.iter().enumerate() {
        let mut placed: SmallVec<[Placed; 4]> = assignment.threads[t].iter().copied().collect();
        placed.sort_by_key(|s| (s.node != class.node || s.data.is_some(), s.node, s.data));
        let mut next = 0;
        for to in placed {
            let members: Vec<usize> = class.members[next..next + to.count].to_vec();
            next += to.count;
            if to.node != class.node || to.data.is_some() {
                parts.push(Part { class: t, to, members });
            }
        }
    }
    parts
}

fn processes(model: &Model, found: &Found, moves: &mut Vec<Move>) {
    for (p, to) in found.assignment.processes.iter().enumerate() {
        let Some(to) = *to else { continue };
        let process = &model.demands.processes[p];
        let Some(from) = leaves(model, p, to) else { continue };
        let bytes: f64 = process.memory.iter().filter(|m| m.0 != model.hardware.nodes[to].home).map(|m| m.1).sum();
        let takes_s = model.process_copy_s(p, to);
        let why = format!("{}; moves with {} of memory, stops for {takes_s:.2} s", whole(model, found), show(bytes));
        let (from, to) = (model.hardware.nodes[from].id, model.hardware.nodes[to].id);
        let subject = Subject::Process(process.id);
        let (pid, reason, why) = (process.id.pid, Reason::CacheAffinity, why.into());
        moves.push(Move { subject, pid, from, to, reason, why, ranges: Vec::new() });
    }
}

/// The node that most of a process leaves: by the work of its threads, or if all of them are there
/// already, by its memory.
fn leaves(model: &Model, process: usize, to: usize) -> Option<usize> {
    let mut threads = Shares::new();
    for t in model.classes.iter().filter(|t| t.process == process && t.node != to) {
        add(&mut threads, t.node, t.work.rate * t.members.len() as f64);
    }
    main_node(&threads).or_else(|| {
        let away = model.demands.processes[process].memory.iter().filter(|m| m.0 != to);
        main_node(&away.copied().collect())
    })
}

fn groups(model: &Model, snapshot: &Snapshot, found: &Found, moves: &mut Vec<Move>) {
    for (g, to) in found.assignment.groups.iter().enumerate() {
        let Some(to) = *to else { continue };
        let takes_s = model.file_copy_s(model.group_bytes(g, to));
        for file in &model.demands.groups.list[g].files {
            let why = format!("{}; its readers share it; moving takes {takes_s:.1} s", whole(model, found));
            file_moves(snapshot, *file, model.hardware.nodes[to].id, &why, moves);
        }
    }
}

fn private_files(model: &Model, snapshot: &Snapshot, part: &Part, to: usize, why: &str, moves: &mut Vec<Move>) {
    for member in &part.members {
        for (file, _) in &model.demands.threads[*member].files {
            file_moves(snapshot, *file, model.hardware.nodes[to].id, why, moves);
        }
    }
}

fn file_moves(snapshot: &Snapshot, file: usize, to: NodeId, why: &str, moves: &mut Vec<Move>) {
    let observed = &snapshot.files[file];
    for (from, bytes) in observed.bytes.iter().filter(|(from, bytes)| *from != to && *bytes > 0) {
        // Small remainders are not worth a move.
        if bytes as f64 >= CRUMBS * observed.bytes.total() as f64 {
            moves.push(Move::file(observed, from, to, why));
        }
    }
}

/// Seconds of the horizon that the machine's threads save with `net` compared with `other`.
fn saved_s(found: &Found, net: f64, other: f64) -> f64 {
    if found.worth.rate > 0.0 { (net - other) / found.worth.rate } else { 0.0 }
}

/// The gain of the whole plan.
pub(super) fn whole(model: &Model, found: &Found) -> String {
    format!(
        "all threads {}/s → {}/s, {:.2} s of {:.0} s saved",
        show(found.stays.rate),
        show(found.worth.rate),
        saved_s(found, found.worth.net, found.stays.net),
        model.settings.horizon_s
    )
}

fn why(model: &Model, found: &Found, part: &Part, explained: bool, scratch: &mut Scratch) -> String {
    let mut why = whole(model, found);
    if !explained {
        return why;
    }
    let class = &model.classes[part.class];
    let back = Placed { node: class.node, data: None, count: part.to.count };
    let at = found.assignment.threads[part.class].iter().position(|s| s.node == part.to.node && s.data == part.to.data);
    let Some(at) = at else { return why };
    let mut without = found.assignment.clone();
    without.processes[class.process] = None;
    without.shift(part.class, at, part.to.count, back.node, back.data);
    let stays = model.value(&without, scratch).net;
    let part_s = saved_s(found, found.worth.net, stays);
    why.push_str(&format!("; this move of {} thread(s) saves {part_s:.2} s of it", part.to.count));
    why
}

/// That threads move and the memory of their process does not, which is a choice of its own.
fn stays_behind(model: &Model, part: &Part) -> String {
    let home = model.hardware.nodes[part.to.node].home;
    let memory = &model.demands.processes[model.classes[part.class].process].memory;
    let bytes: f64 = memory.iter().filter(|m| m.0 != home).map(|m| m.1).sum();
    if bytes > 0.0 { format!("; without {} of its process's memory", show(bytes)) } else { String::new() }
}

/// The main reason of each move.
fn reasons(model: &Model, found: &Found, parts: &[Part], scratch: &mut Scratch) -> Vec<Reason> {
    let current = Assignment::current(model.classes, model.demands);
    model.value(&current, scratch);
    let reason = |part: &Part| {
        let from = Placed { node: model.classes[part.class].node, data: None, count: 1 };
        if model.alone_s(part.class, &part.to, &found.assignment) < model.alone_s(part.class, &from, &current) {
            Reason::ReadLocality
        } else if scratch.solver.stretch()[from.node] > 1.0 {
            Reason::CpuContention
        } else {
            Reason::ControllerContention
        }
    };
    parts.iter().map(reason).collect()
}

/// The effect of the plan on nodes and on the remote share.
pub(super) fn predict(model: &Model, snapshot: &Snapshot, found: &Found, scratch: &mut Scratch) -> Prediction {
    let current = Assignment::current(model.classes, model.demands);
    let before = forecast(model, &current, scratch);
    let after = forecast(model, &found.assignment, scratch);
    Prediction {
        remote_share_before: snapshot.remote_share(),
        remote_share_after: snapshot.remote_share().map(|_| after.0),
        nodes: (0..model.hardware.len())
            .map(|n| NodeForecast {
                node: model.hardware.nodes[n].id,
                controller_before: before.1[n].0,
                controller_after: after.1[n].0,
                cpu_before: before.1[n].1,
                cpu_after: after.1[n].1,
            })
            .collect(),
    }
}

/// Used shares of a node's controller and CPUs; `None` if it has none.
type Use = (Option<f64>, Option<f64>);

/// The remote share of reads, and for each node the use of its controller and the demand for its
/// CPUs.
fn forecast(model: &Model, assignment: &Assignment, scratch: &mut Scratch) -> (f64, Vec<Use>) {
    model.value(assignment, scratch);
    let mut used = vec![0.0; model.hardware.len()];
    for (class, rate) in scratch.system.classes.iter().zip(scratch.solver.rates()) {
        for v in &scratch.system.visits[class.visits.clone()] {
            if let Some(used) = used.get_mut(v.station) {
                *used += class.count * rate.ops * v.work * v.service;
            }
        }
    }
    let nodes = (model.hardware.nodes.iter().enumerate())
        .map(|(i, node)| {
            let controller = (node.read_work > 0.0).then_some(used[i]);
            let cpu = (node.cpus > 0.0).then(|| (scratch.solver.wanted(i) + node.others) / node.cpus);
            (controller, cpu)
        })
        .collect();
    (model.remote_share(assignment, scratch), nodes)
}
