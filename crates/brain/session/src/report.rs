//! One window of `run` and `replay`, as lines for people and as JSON for programs.

use std::collections::HashSet;

use engine::{Finished, MoveEvent, Outcome, Rail, WindowReport};
use placement::Move;
use serde_json::{Value, json};

use command::output::escape;
use command::output::limits::Limits;
use command::output::table::Table;
use command::output::units::{bytes, count};
use command::output::words::{self, Names};

/// Prints windows as text. A note, or a move held back again and again, is printed once.
pub struct Lines {
    limits: Limits,
    /// Lines printed in the previous window about moves that were not made.
    said: HashSet<String>,
    /// Notes printed so far, without their figures: "sampled: 1 event in 12" is printed once.
    notes: HashSet<String>,
}

/// Most notes remembered: a daemon runs for months.
const NOTES_MAX: usize = 1000;

impl Lines {
    pub fn new(limits: Limits) -> Self {
        Self { limits, said: HashSet::new(), notes: HashSet::new() }
    }

    /// The lines of one window; the second value tells whether anything but the first line is in
    /// it.
    pub fn window(&mut self, window: u64, report: &WindowReport) -> (String, bool) {
        let names = Names::new(&report.snapshot);
        let mut table = Table::plain(4);
        let mut said = HashSet::new();
        let mut rows = 0;
        for outcome in &report.outcomes {
            let (verb, why) = verdict(outcome);
            let Move { from, to, reason, .. } = outcome.mv;
            if !matches!(outcome.result, MoveEvent::Applied | MoveEvent::Started) {
                let what = format!("{verb} {} {from} {to} {reason:?} {}", names.moved(&outcome.mv), rail_word(outcome));
                let new = !self.said.contains(&what);
                said.insert(what);
                if !new {
                    continue;
                }
            }
            rows += 1;
            table.row([verb.to_owned(), names.moved(&outcome.mv), words::direction(from, to), why]);
        }
        self.said = said;
        let mut text = format!("{}\n{}", window_line(window, report), table.render());
        let observed = self.limits.lines(&report.snapshot.notes);
        for note in observed.iter().chain(&report.plan.notes).chain(&report.notes) {
            if self.notes.len() >= NOTES_MAX {
                self.notes.clear();
            }
            if self.notes.insert(note.chars().filter(|c| !c.is_ascii_digit()).collect()) {
                rows += 1;
                text.push_str(&format!("note: {}\n", escape(note)));
            }
        }
        if report.inherited_restored > 0 {
            rows += 1;
            let born = count(report.inherited_restored, "thread");
            text.push_str(&format!("note: restored the inherited affinity of {born}\n"));
        }
        (text, rows > 0)
    }
}

/// `window 12 · 1.0 s · 38 threads read 4.1 GB of file data, 47 % of it from another node`.
fn window_line(window: u64, report: &WindowReport) -> String {
    let seconds = command::output::units::seconds(report.snapshot.window_s);
    format!("window {window} · {seconds} · {}", words::read_summary(&report.snapshot))
}

fn verdict(outcome: &Outcome) -> (&'static str, String) {
    let why = &outcome.mv.why;
    match &outcome.result {
        MoveEvent::Applied => ("move", why.to_string()),
        MoveEvent::Queued => ("waits", format!("until other copies are done ({why})")),
        MoveEvent::HeldBack { rail: Rail::DryRun, .. } => ("would move", why.to_string()),
        MoveEvent::HeldBack { why: held, .. } => ("held back", format!("{held} ({why})")),
        MoveEvent::Refused { why: refused, .. } | MoveEvent::NotWritten { why: refused } => {
            ("refused", refused.clone())
        }
        MoveEvent::Dropped { why: dropped, .. } => ("dropped", dropped.clone()),
        MoveEvent::Gone => ("gone", "ended before it was moved".to_owned()),
        MoveEvent::Started
        | MoveEvent::Progress(_)
        | MoveEvent::Ended { .. }
        | MoveEvent::Unpaid { .. }
        | MoveEvent::Harmful { .. } => ("moving", why.to_string()),
    }
}

fn rail_word(outcome: &Outcome) -> String {
    match &outcome.result {
        MoveEvent::HeldBack { rail, .. } => format!("{rail:?}"),
        event => event.refusal().map(|(reason, _)| reason.to_owned()).unwrap_or_default(),
    }
}

/// One window as one JSON object; docs/guide.md describes it.
pub fn json(window: u64, report: &WindowReport) -> Value {
    let snapshot = &report.snapshot;
    let names = Names::new(snapshot);
    let outcomes = |keep: fn(&MoveEvent) -> bool| -> Vec<Value> {
        report.outcomes.iter().filter(|o| keep(&o.result)).map(|o| outcome_json(o, &names)).collect()
    };
    let sum =
        |bytes: fn(&placement::Thread) -> u64| snapshot.threads.iter().fold(0u64, |s, t| s.saturating_add(bytes(t)));
    json!({
        "kind": "window",
        "window": window,
        "time_s": snapshot.time_s,
        "window_s": snapshot.window_s,
        "remote_share": report.remote_share,
        "threads": snapshot.threads.len(),
        "read_bytes": sum(|t| t.read_bytes.total()),
        "remote_bytes": sum(placement::Thread::remote_bytes),
        "write_bytes": sum(|t| t.write_bytes.total()),
        "nodes": snapshot.nodes.iter().map(|n| json!({
            "node": n.id,
            "read_bytes": n.read_bytes,
            "write_bytes": n.write_bytes,
            "cpu_s": n.cpu_s,
        })).collect::<Vec<_>>(),
        "policy": report.plan.policy,
        "moves": outcomes(|v| matches!(v, MoveEvent::Applied | MoveEvent::Started)),
        "queued": outcomes(|v| matches!(v, MoveEvent::Queued)),
        "jobs": report.jobs,
        "held_back": outcomes(|v| matches!(v, MoveEvent::HeldBack { .. })),
        "refused": outcomes(|v| v.refusal().is_some()),
        "gone": outcomes(|v| matches!(v, MoveEvent::Gone)),
        "declined": report.plan.declined,
        "predicted": report.plan.predicted,
        "owned_threads": report.owned_threads,
        "inherited_restored": report.inherited_restored,
        "notes": snapshot.notes.iter().chain(&report.plan.notes).chain(&report.notes).collect::<Vec<_>>(),
        "cost": report.cost,
    })
}

/// A move as in a plan, with the thread's name, and for one that was not made, why.
fn outcome_json(outcome: &Outcome, names: &Names<'_>) -> Value {
    let mut value = json!(outcome.mv);
    if let Value::Object(object) = &mut value {
        if let Some(tid) = outcome.mv.tid() {
            object.insert("comm".to_owned(), json!(names.comm(tid)));
        }
        if let MoveEvent::HeldBack { rail, why } = &outcome.result {
            object.insert("rail".to_owned(), json!(rail));
            object.insert("held_back_why".to_owned(), json!(why));
        }
        if let Some((reason, why)) = outcome.result.refusal() {
            object.insert("refused".to_owned(), json!(reason));
            object.insert("refused_why".to_owned(), json!(why));
        }
    }
    value
}

/// The result of undoing:
/// `restored the affinity of 4 threads, 1 left alone because something else changed them, 2 had ended`.
pub fn finished(finished: &Finished) -> String {
    if *finished == Finished::default() {
        return "nothing to restore\n".to_owned();
    }
    let mut parts = vec![format!("restored the affinity of {}", count(finished.restored, "thread"))];
    let mut part = |n: usize, what: &str| {
        if n > 0 {
            parts.push(format!("{n} {what}"));
        }
    };
    part(finished.changed_by_others, "left alone because something else changed them");
    part(finished.gone, "had ended");
    part(finished.copies, "copies stopped or interrupted");
    if finished.moved_back > 0 {
        parts.push(format!("moved {} back", bytes(finished.moved_back)));
    }
    if finished.failed > 0 {
        parts.push(format!("{} could not be restored", finished.failed));
    }
    let mut text = parts.join(", ") + "\n";
    for note in &finished.notes {
        text.push_str(&format!("note: {}\n", escape(note)));
    }
    text
}

/// The same as one JSON object of this kind.
pub fn finished_json(kind: &str, finished: &Finished) -> Value {
    let mut value = json!(finished);
    if let Value::Object(object) = &mut value {
        object.insert("kind".to_owned(), json!(kind));
    }
    value
}
