//! Turns decided places into a plan: the moves, the threads that stay, and a sentence with the
//! figures for each.
//!
//! **Problem.** A person must be able to check the reason for each move, and for each thread that
//! stays although it reads remotely.
//!
//! **Approach.** Moves get the figures of their sentence ([`Why`]); threads that stay get the
//! sentence itself. Moves that relieve overloaded nodes come first, then the threads that gain
//! most, so that a plan cut short keeps its best moves.
//!
//! **Limits.** A plan lists at most [`MAX_DECLINED`] threads that stay, those with most remote
//! bytes. A note counts the rest.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use topology::{FileId, NodeId};

use super::Settings;
use super::order;
use super::state::{Candidate, Contention, Relief, State};
use super::target::{self, Target};
use crate::load::Machine;
use crate::why::{Bytes, Fact, Overload};
use crate::{Declined, Move, ObservedFile, Plan, Reason, Snapshot, Thread, Why};

/// Largest number of threads that a plan lists as staying.
pub const MAX_DECLINED: usize = 1000;

#[derive(Clone, Copy)]
enum Stay<'a> {
    Pinned(&'a str),
    SharesFile,
    Relieved(Target, Relief),
    Untargeted(Target),
}

/// Fills in moves, declined threads and notes.
pub(super) fn fill(plan: &mut Plan, machine: &Machine, settings: &Settings, snapshot: &Snapshot, state: &State) {
    moves(plan, machine, snapshot, state);
    declined(plan, machine, settings, snapshot, state);
    for node in (0..machine.len()).map(|n| machine.id(n)).filter(|id| snapshot.nodes.iter().all(|n| n.id != *id)) {
        plan.notes
            .push(format!("node {node}: not described in this snapshot; assumed idle apart from the listed threads"));
    }
    if state.lost > 0 {
        plan.notes.push(format!("threads left alone because the topology lacks their node: {}", state.lost));
    }
}

/// Notes the nodes that step 3 could not judge.
pub(super) fn note_unknown_bandwidth(plan: &mut Plan, machine: &Machine) {
    let unknown: Vec<_> =
        machine.controllers().filter(|n| machine.capacity[*n].is_none()).map(|n| machine.id(n).to_string()).collect();
    let nodes = match unknown.as_slice() {
        [] => return,
        [one] => format!("node {one}"),
        several => format!("nodes {}", several.join(", ")),
    };
    plan.notes.push(format!("{nodes}: bandwidth unknown, contention not judged"));
}

fn moves(plan: &mut Plan, machine: &Machine, snapshot: &Snapshot, state: &State) {
    let mut order: Vec<_> = state
        .candidates
        .iter()
        .enumerate()
        .filter(|(_, c)| c.place != c.node)
        .map(|(i, c)| {
            let read = &snapshot.threads[c.thread].read_bytes;
            let (class, gain) = match relief(state, c).map(|r| r.kind) {
                Some(Contention::Controller) => (0, c.writes),
                Some(Contention::Cpu) => (1, c.cpu),
                None => (2, read.get(machine.id(c.place)).saturating_sub(read.get(machine.id(c.node)))),
            };
            order::key(order::class_and_falling(class, gain), c.tid, i)
        })
        .collect();
    order.sort_unstable();
    plan.moves.reserve_exact(order.len());
    for i in order.into_iter().map(order::index) {
        let c = &state.candidates[i];
        let thread = &snapshot.threads[c.thread];
        let (reason, why) = match relief(state, c) {
            Some(relief) => contention(machine, thread, c, relief),
            None => (Reason::ReadLocality, locality(machine, thread, c)),
        };
        plan.moves.push(Move::thread(thread, machine.id(c.place), reason, why));
    }
}

fn relief(state: &State, c: &Candidate) -> Option<Relief> {
    c.relief.and_then(|r| state.reliefs.get(r as usize)).copied()
}

fn locality(machine: &Machine, thread: &Thread, c: &Candidate) -> Why {
    let near = machine.id(c.place);
    Why::of(match c.target {
        Target::Near { home, .. } => {
            let (bytes, total) = (thread.read_bytes.get(home), thread.read_bytes.total());
            Fact::ReadNear { bytes, total, node: home, near }
        }
        _ => read_from(thread, near),
    })
}

fn contention(machine: &Machine, thread: &Thread, c: &Candidate, relief: Relief) -> (Reason, Why) {
    let node = machine.id(relief.node);
    let (reason, fact) = match relief.kind {
        Contention::Controller => {
            let total = c.writes.saturating_add(c.reads);
            (Reason::ControllerContention, Fact::Writes { bytes: c.writes, total })
        }
        Contention::Cpu => (Reason::CpuContention, Fact::Read { bytes: thread.read_bytes.get(node), node }),
    };
    (reason, Why::with(fact, overload(machine, relief)))
}

fn overload(machine: &Machine, relief: Relief) -> Overload {
    let controller = relief.kind == Contention::Controller;
    Overload { node: machine.id(relief.node), controller, load: relief.load }
}

fn read_from(thread: &Thread, node: NodeId) -> Fact {
    Fact::ReadOf { bytes: thread.read_bytes.get(node), total: thread.read_bytes.total(), node }
}

fn declined(plan: &mut Plan, machine: &Machine, settings: &Settings, snapshot: &Snapshot, state: &State) {
    let margin = target::margin(settings, snapshot.window_s);
    let away = |thread: &Thread| thread.home().is_some_and(|home| home != thread.node);
    let pinned = state.pinned.iter().filter_map(|i| {
        let thread = &snapshot.threads[*i];
        let pinned = thread.pinned.as_deref()?;
        away(thread).then_some((thread, Stay::Pinned(pinned)))
    });
    let stays = state.candidates.iter().filter(|c| c.place == c.node).filter_map(|c| {
        let thread = &snapshot.threads[c.thread];
        match relief(state, c) {
            _ if c.passed_over => Some((thread, Stay::SharesFile)),
            _ if !away(thread) => None,
            Some(relief) if c.targeted() => Some((thread, Stay::Relieved(c.target, relief))),
            _ => Some((thread, Stay::Untargeted(c.target))),
        }
    });
    let mut staying: Vec<_> =
        pinned.chain(stays).map(|(t, stay)| (order::key(!t.remote_bytes(), t.tid, 0), t, stay)).collect();
    let key = |s: &(u128, &Thread, Stay)| s.0;
    if staying.len() > MAX_DECLINED {
        plan.notes.push(format!("{} more threads stay than are listed", staying.len() - MAX_DECLINED));
        staying.select_nth_unstable_by_key(MAX_DECLINED, key);
        staying.truncate(MAX_DECLINED);
    }
    staying.sort_unstable_by_key(key);
    let files = Files::new(snapshot, staying.iter().any(|s| matches!(s.2, Stay::SharesFile)));
    plan.declined = staying
        .into_iter()
        .map(|(_, thread, stay)| {
            let (reason, why) = match stay {
                Stay::Pinned(pinned) => ("pinned", pinned_why(thread, pinned)),
                Stay::SharesFile => (Declined::SHARES_FILE, files.shared_by(thread)),
                Stay::Relieved(target, relief) => relieved(machine, target, thread, relief),
                Stay::Untargeted(target) => untargeted(machine, target, margin, thread),
            };
            Declined { tid: thread.tid, reason: reason.to_owned(), why }
        })
        .collect();
}

fn pinned_why(thread: &Thread, pinned: &str) -> String {
    let read = thread.home().map_or_else(String::new, |home| format!("; {}", Why::of(read_from(thread, home))));
    format!("{pinned}{read}")
}

fn relieved(machine: &Machine, target: Target, thread: &Thread, relief: Relief) -> (&'static str, String) {
    let home = match target {
        Target::Near { home, .. } => home,
        _ => machine.id(relief.node),
    };
    let why = Why::with(read_from(thread, home), overload(machine, relief)).to_string();
    let reason = match relief.kind {
        Contention::Controller => "controller_contention",
        Contention::Cpu => "cpu_contention",
    };
    (reason, why)
}

fn untargeted(machine: &Machine, target: Target, margin: f64, thread: &Thread) -> (&'static str, String) {
    let read_from = |home| Why::of(read_from(thread, home)).to_string();
    match target {
        Target::NotAllowed { home } => ("not_allowed", format!("{}, where it may not run", read_from(home))),
        Target::NoCpus { home } => {
            ("no_cpus", format!("{}, which has no CPUs; no single node is nearest", read_from(home)))
        }
        Target::Near { home, node } => {
            let near = machine.id(node);
            ("no_cpus", format!("{}, which has no CPUs; node {near} is the nearest", read_from(home)))
        }
        Target::Home(_) | Target::None => {
            let mut most: Vec<_> = thread.read_bytes.iter().map(|(_, bytes)| bytes).collect();
            most.sort_unstable_by_key(|bytes| Reverse(*bytes));
            let lead = most.first().copied().unwrap_or(0) - most.get(1).copied().unwrap_or(0);
            let read = thread.home().map_or_else(String::new, read_from);
            let (lead, margin) = (Bytes(lead), Bytes(margin as u64));
            ("below_margin", format!("{read}: a lead of {lead}, below the margin of {margin}"))
        }
    }
}

/// The files and their readers, for the sentences about sharers.
struct Files<'a>(FxHashMap<FileId, &'a ObservedFile>);

impl<'a> Files<'a> {
    fn new(snapshot: &'a Snapshot, needed: bool) -> Self {
        let files = if needed { snapshot.files.as_slice() } else { &[] };
        Self(files.iter().map(|f| (f.file, f)).collect())
    }

    /// `shares 8:1:2619 with 3 threads`, for the shared file that the thread read and wrote most
    /// of.
    fn shared_by(&self, thread: &Thread) -> String {
        let shared = thread
            .files
            .iter()
            .filter_map(|use_| Some((use_.file_bytes(), *self.0.get(&use_.file)?)))
            .filter(|(_, file)| file.readers.len() > 1 || file.opens.is_some_and(|opens| opens > 1))
            .max_by_key(|(bytes, file)| (*bytes, Reverse(file.file)));
        match shared {
            Some((_, file)) => {
                let others = file.readers.iter().filter(|tid| **tid != thread.tid).count();
                let name = file.path.clone().unwrap_or_else(|| file.file.to_string());
                if others == 0 {
                    return format!("shares {name}, which is open {} times", file.opens.unwrap_or(0));
                }
                format!("shares {name} with {others} thread{}", if others == 1 { "" } else { "s" })
            }
            None => "shares a file with another thread".to_owned(),
        }
    }
}
