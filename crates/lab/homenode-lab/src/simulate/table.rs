//! Outcomes side by side, as tables that a person can check: the parts add up to the whole.

use simulate::whatif::Recorded;
use simulate::{Outcome, Scenario};

use command::output::table::Table;
use command::output::units::{count, percent, rate, seconds};

/// How many of a policy's remarks are shown.
const REMARKS: usize = 3;

/// Everything about these outcomes of one scenario.
pub fn text(scenario: &Scenario, recorded: Option<&Recorded>, outcomes: &[Outcome]) -> String {
    let Some(first) = outcomes.first() else { return String::new() };
    let mut text = head(scenario, first);
    if let Some(recorded) = recorded {
        text.push_str(&as_recorded(recorded));
    }
    for part in [policies(outcomes), workloads(outcomes), nodes(outcomes), remarks(outcomes)] {
        if !part.is_empty() {
            text.push('\n');
            text.push_str(&part);
        }
    }
    text
}

fn head(scenario: &Scenario, outcome: &Outcome) -> String {
    let machine = scenario.machine();
    format!(
        "{}: {}, {}, {} in {}, seed {}\n{} simulated, or until all work is done; the last {} count\n",
        command::output::escape(scenario.name()),
        count(machine.nodes().len(), "node"),
        count(machine.topology().cpus().len(), "CPU"),
        count(scenario.threads(), "thread"),
        count(scenario.jobs(), "program"),
        outcome.seed,
        seconds(scenario.duration_s()),
        seconds(scenario.duration_s() - scenario.warmup_s()),
    )
}

/// Figures of the machine on which the load was recorded.
fn as_recorded(recorded: &Recorded) -> String {
    let mut text = format!(
        "recorded: {} read, {} written, {} of it remote\n",
        rate(recorded.read_bw),
        rate(recorded.write_bw),
        recorded.remote_share.map_or("nothing".to_owned(), percent),
    );
    for note in &recorded.notes {
        text.push_str(&format!("note: {}\n", command::output::escape(note)));
    }
    text
}

/// One row per policy.
fn policies(outcomes: &[Outcome]) -> String {
    let best = outcomes.iter().map(Outcome::bytes_per_s).fold(0.0, f64::max);
    let mut table = Table::new(&[
        "policy",
        ">read",
        ">written",
        ">throughput",
        ">of best",
        ">remote share",
        ">threads moved",
        ">processes",
        ">files",
        ">held back",
        "last move",
    ]);
    for o in outcomes {
        let all = o.bytes_per_s();
        table.row([
            o.policy.clone(),
            rate(o.workloads.iter().map(|w| w.read_bw).sum()),
            rate(o.workloads.iter().map(|w| w.write_bw).sum()),
            rate(all),
            if best > 0.0 { percent(all / best) } else { "-".to_owned() },
            o.remote_share.map_or("-".to_owned(), percent),
            o.moves.threads.to_string(),
            o.moves.processes.to_string(),
            o.moves.files.to_string(),
            (o.moves.held_back + o.moves.refused).to_string(),
            if o.last_move == 0 { "never".to_owned() } else { format!("window {}", o.last_move) },
        ]);
    }
    table.render()
}

/// Bytes that each workload read and wrote under each policy.
fn workloads(outcomes: &[Outcome]) -> String {
    let names = outcomes.first().into_iter().flat_map(|o| o.workloads.iter().map(|w| w.name.clone())).collect();
    let of = |o: &Outcome, i: usize| {
        o.workloads.get(i).map_or(String::new(), |w| {
            let ended = w.runtime_s.map_or(String::new(), |s| format!(", done at {}", seconds(s)));
            format!("{}{ended}", rate(w.read_bw + w.write_bw))
        })
    };
    crossed("workload", names, outcomes, of)
}

/// Average bytes read from and written to each node's memory, and load of its CPUs, in the measured
/// part.
fn nodes(outcomes: &[Outcome]) -> String {
    let windows = outcomes.first().and_then(|o| o.windows.last());
    let names = windows.into_iter().flat_map(|w| w.nodes.iter().map(|n| format!("node {}", n.node))).collect();
    crossed("memory, CPU", names, outcomes, node)
}

fn node(o: &Outcome, i: usize) -> String {
    let (mut bytes, mut cpu, mut seconds) = (0.0, None, 0.0);
    let first = o.windows.last().map_or(0.0, |w| w.time_s) - o.measured_s;
    let mut began = 0.0;
    for window in &o.windows {
        let length = window.time_s - began;
        // A window counts if it began where counting did, or later.
        if let (true, Some(n)) = (began >= first - 1e-6, window.nodes.get(i)) {
            seconds += length;
            bytes += length * (n.read_bw + n.write_bw);
            cpu = n.cpu.map(|c| cpu.unwrap_or(0.0) + c * length).or(cpu);
        }
        began = window.time_s;
    }
    match (seconds > 0.0, cpu) {
        (false, _) => "-".to_owned(),
        (true, Some(cpu)) => format!("{}, {}", rate(bytes / seconds), percent(cpu / seconds)),
        (true, None) => format!("{}, no CPUs", rate(bytes / seconds)),
    }
}

/// Things and policies crossed; whichever are more become rows.
fn crossed(
    corner: &str,
    things: Vec<String>,
    outcomes: &[Outcome],
    cell: impl Fn(&Outcome, usize) -> String,
) -> String {
    let (rows, columns) = (things.len(), outcomes.len());
    let policies = || outcomes.iter().map(|o| o.policy.clone());
    let heads = |names: &mut dyn Iterator<Item = String>| -> Vec<String> {
        std::iter::once(corner.to_owned()).chain(names.map(|name| format!(">{name}"))).collect()
    };
    if rows >= columns {
        let mut table = Table::new(&heads(&mut policies()));
        for (i, thing) in things.into_iter().enumerate() {
            table.row(std::iter::once(thing).chain(outcomes.iter().map(|o| cell(o, i))));
        }
        return table.render();
    }
    let mut table = Table::new(&heads(&mut things.into_iter()));
    for (outcome, policy) in outcomes.iter().zip(policies()) {
        table.row(std::iter::once(policy).chain((0..rows).map(|i| cell(outcome, i))));
    }
    table.render()
}

/// Notes of the policies.
fn remarks(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for o in outcomes {
        for note in o.notes.iter().take(REMARKS) {
            text.push_str(&format!("{}: {}\n", o.policy, command::output::escape(note)));
        }
        if o.notes.len() > REMARKS {
            text.push_str(&format!("{}: {} more, see --json\n", o.policy, count(o.notes.len() - REMARKS, "remark")));
        }
    }
    text
}
