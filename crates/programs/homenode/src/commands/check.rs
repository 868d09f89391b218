//! `homenode check`: whether a trial is worth its time on this machine, in one command that moves
//! nothing.
//!
//! **Problem.** doctor, nodes, map and trial each answer a part of "does locality matter here?",
//! and who asks knows none of them yet.
//!
//! **Approach.** What works, what the nodes are, what a remote read costs (the figures of
//! `nodes --measure`, or measured now), and which services read what from where. For each thread,
//! the bytes that could become local cost what a `pread` of a cached file costs from their node,
//! less what it costs at home; of 4 KiB a call or of 1 MiB, which gives a span. [`judge`] compares
//! its upper end with what homenode itself may use (`[engine.budget]`), and says *worth a trial*,
//! *not worth it* or *cannot tell*.
//!
//! **Limits.** The costs are those of a quiet machine: a crowded memory controller or interconnect
//! makes remote reads dearer, which only a trial shows. Whether threads find CPUs at their home
//! nodes is a policy's question (`plan`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;

use clap::Args;
use command::args::Global;
use command::config::Config;
use engine::StateDir;
use placement::Snapshot;
use placement::flow::{Flow, Pair};
use serde::Serialize;
use serde_json::json;
use session::map::Report as Map;
use session::services;
use session::services::{OTHER, UNKNOWN};
use topology::NodeId;
use topology::measured::Measured;

use crate::commands::past::{self, PastArgs};
use crate::commands::{doctor, map, nodes, plane, replace, report};
use crate::exit::{Exit, Failure};
use crate::machine::{self, Machine};
use crate::options::ObserveArgs;
use crate::output::limits::Limits;
use crate::output::table::Table;
use crate::output::units::{bytes, count, percent, seconds, size};
use crate::output::{self, escape};
use crate::signals::Stop;

/// `homenode check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// What was, in the place of what is.
    #[command(flatten)]
    pub past: PastArgs,
    /// Number of windows to observe
    #[arg(long, value_name = "N", default_value = "60", value_parser = clap::value_parser!(u64).range(1..))]
    pub windows: u64,
    /// Do not measure what a remote read costs
    ///
    /// Without this, and where `nodes --measure` has left no figures, all CPUs load the memory for
    /// 20 s; if others use more than a tenth of them, one at a time reads a file in memory for some
    /// seconds.
    #[arg(long)]
    pub no_measure: bool,
}

/// Longest time for measuring, in seconds.
const MEASURE_S: f64 = 20.0;
/// Services in the text.
const SHOWN: usize = 10;

/// What a read of a cached file takes.
#[derive(Clone, Debug, Default)]
struct Costs {
    /// Seconds for a byte, by node of the CPU and of the memory; for each size of a call.
    by_call: BTreeMap<u64, BTreeMap<(NodeId, NodeId), f64>>,
    /// Why they are worth less.
    doubt: Option<String>,
    /// What differs by at most this share may be chance: how far figures of a busy machine lie
    /// apart, without end if they were taken once.
    noise: f64,
}

impl Costs {
    /// Those of these figures, or why they say nothing.
    fn of(measured: &Measured) -> Result<Self, String> {
        if measured.emulated {
            return Err("the processor is emulated, and with it every time".to_owned());
        }
        let apart = measured.spread().map_or_else(String::new, |s| format!(", figures up to {} apart", percent(s)));
        let doubt = measured.busy.as_ref().map(|why| format!("measured on a busy machine: {why}{apart}"));
        let most = measured.pairs.iter().map(|pair| pair.spread.unwrap_or(f64::INFINITY)).fold(0.0, f64::max);
        let noise = if doubt.is_some() { most } else { 0.0 };
        let mut costs = Self { doubt, noise, ..Self::default() };
        for pair in &measured.pairs {
            for cached in &pair.cached {
                let of_call = costs.by_call.entry(cached.bytes).or_default();
                of_call.insert((pair.cpu_node, pair.memory_node), cached.call_s / cached.bytes as f64);
            }
        }
        let known = costs.local_and_remote().is_some();
        known.then_some(costs).ok_or_else(|| "no cached reads were measured".to_owned())
    }

    /// Seconds that threads would have needed less at their home node, which has the data; `None`
    /// if reads from there were not measured, or if all that they cost more may be chance.
    fn saved(&self, pair: &Pair) -> Option<Span> {
        let mut clear = false;
        let of_call = |costs: &BTreeMap<(NodeId, NodeId), f64>| {
            let home = pair.data_node;
            let (away, at_home) = (costs.get(&(pair.cpu_node, home))?, costs.get(&(home, home))?);
            clear |= self.doubt.is_none() || away - at_home > self.noise * at_home;
            Some((away - at_home).max(0.0) * pair.could_be_local_bytes as f64)
        };
        Span::over(self.by_call.values().filter_map(of_call)).filter(|_| clear)
    }

    /// Seconds of the smallest call: at home, and the dearest from another node.
    fn local_and_remote(&self) -> Option<(u64, f64, f64)> {
        let (call, costs) = self.by_call.first_key_value()?;
        let most = |local: bool| {
            let all = costs.iter().filter(|((cpu, memory), _)| (cpu == memory) == local);
            all.map(|(_, cost)| cost * *call as f64).reduce(f64::max)
        };
        Some((*call, most(true)?, most(false)?))
    }
}

/// From the cheapest to the dearest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Span {
    least: f64,
    most: f64,
}

impl Span {
    fn over(values: impl Iterator<Item = f64>) -> Option<Self> {
        let span = |all: Option<Self>, value: f64| {
            let all = all.unwrap_or(Self { least: value, most: value });
            Some(Self { least: all.least.min(value), most: all.most.max(value) })
        };
        values.fold(None, span)
    }

    fn add(&mut self, more: Self) {
        self.least += more.least;
        self.most += more.most;
    }
}

/// A service, or all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Row {
    /// Its name; empty if it is not known.
    service: String,
    read_bytes: u64,
    remote_bytes: u64,
    could_be_local_bytes: u64,
    /// CPU time of the threads that read, in seconds.
    cpu_s: f64,
    /// Seconds of it that would be saved at home; absent where costs are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_s: Option<Span>,
    /// Bytes that could become local and whose cost is not known.
    #[serde(skip)]
    unknown_bytes: u64,
}

impl Row {
    fn add(&mut self, bytes: &Flow, cpu_s: f64, costs: Option<&Costs>) {
        self.read_bytes += bytes.read_bytes;
        self.remote_bytes += bytes.remote_bytes;
        self.could_be_local_bytes += bytes.could_be_local_bytes;
        self.cpu_s += cpu_s;
        let Some(costs) = costs else { return };
        if bytes.could_be_local_bytes == 0 {
            self.saved_s.get_or_insert_default();
        }
        for pair in bytes.pairs.iter().filter(|pair| pair.could_be_local_bytes > 0) {
            match costs.saved(pair) {
                Some(saved) => self.saved_s.get_or_insert_default().add(saved),
                None => self.unknown_bytes += pair.could_be_local_bytes,
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    WorthATrial,
    NotWorthIt,
    CannotTell,
}

/// What was found out, for people and programs.
#[derive(Debug, Serialize)]
struct Report {
    /// Format version, 1.
    version: u32,
    verdict: Verdict,
    because: String,
    /// What to run next.
    next: Vec<String>,
    /// What moving threads would take and is not here, with the cause.
    missing: Vec<String>,
    /// Nodes with memory.
    nodes: usize,
    /// Seconds observed.
    seconds: f64,
    /// Of the history: when they began and ended, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    between_unix_s: Option<(f64, f64)>,
    sum: Row,
    /// By falling bytes that could become local.
    services: Vec<Row>,
    notes: Vec<String>,
    /// A report of the machine that can be sent, without names; absent where none was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<PathBuf>,
}

/// The report, in the state directory: it is homenode's own, and each check replaces it.
const REPORT: &str = "report.md";

pub fn run(global: &Global, args: &CheckArgs) -> Result<Exit, Failure> {
    let looks_back = args.past.range()?.is_some();
    let config = Config::load(global.config.as_deref())?;
    let machine = Machine::read(Path::new(machine::SYS), &config)?;
    let nodes = machine.topology.nodes.iter().filter(|node| node.memory_bytes > 0).count();
    let report = |(verdict, because): (Verdict, String)| Report {
        version: 1,
        verdict,
        because,
        next: Vec::new(),
        missing: Vec::new(),
        nodes,
        seconds: 0.0,
        between_unix_s: None,
        sum: Row::default(),
        services: Vec::new(),
        notes: Vec::new(),
        report: None,
    };
    if nodes < 2 {
        let report = report((Verdict::NotWorthIt, "this machine has one node with memory".to_owned()));
        return tell(global, &report, "", &Limits::recorded(global.verbose));
    }
    // In this order: observing gives up the privileges that the others take.
    let missing = doctor::cannot_move(global);
    // Measuring takes all CPUs for seconds: not where nothing can be observed afterwards.
    let blocked = || observe::choose(&observe::Capabilities::probe(), &observe::Settings::default()).blocked;
    if let Some((capability, cause)) = (!looks_back).then(blocked).flatten() {
        let mut report = report((Verdict::CannotTell, format!("cannot observe: {capability} is missing: {cause}")));
        (report.missing, report.next) = (missing, vec!["sudo homenode doctor".to_owned()]);
        return tell(global, &report, "", &Limits::recorded(global.verbose));
    }
    // Before anything is measured: of that time there may be nothing.
    let mut kept: BTreeMap<String, (Flow, f64)> = BTreeMap::new();
    let past = args.past.map(global, report::MOST, |summary| {
        for (name, of) in &summary.services {
            let (bytes, cpu_s) = kept.entry(name.clone()).or_default();
            bytes.add(&of.bytes);
            *cpu_s += of.cpu_s;
        }
    });
    let past = past.transpose()?;
    let mut sent = report::Report::begun(global, false);
    let found = measured(global, args, &machine)?;
    if let Ok(found) = &found {
        sent.measured(found);
    }
    let costs = found.and_then(|found| Costs::of(&found));
    let measured = said_of(&costs);
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let mut sum = Row::default();
    let mut add = |name: &str, bytes: &Flow, cpu_s: f64| {
        let row = rows.entry(name.to_owned()).or_insert_with(|| Row { service: name.to_owned(), ..Row::default() });
        row.add(bytes, cpu_s, costs.as_ref().ok());
        sum.add(bytes, cpu_s, costs.as_ref().ok());
    };
    kept.iter().for_each(|(name, (bytes, cpu_s))| add(name, bytes, *cpu_s));
    let each = |snapshot: &Snapshot| {
        for thread in snapshot.touched() {
            let mut bytes = Flow::default();
            bytes.add_thread(thread);
            let name = thread.group.as_deref().map_or_else(String::new, services::name);
            add(&name, &bytes, thread.cpu_s);
        }
    };
    let observed = match past {
        Some(past) => Ok((past, Limits::recorded(global.verbose))),
        None => thread::scope(|scope| {
            scope.spawn(|| map::observe(global, &config, &args.observe, args.windows, report::MOST, each)).join()
        })
        .unwrap_or_else(|_| Err(Failure::new(Exit::Unsupported, "cannot observe", "a thread ended"))),
    };
    let (seen, limits) = match observed {
        Ok(observed) => observed,
        Err(failure) => {
            let mut report = report((Verdict::CannotTell, failure.line()));
            (report.missing, report.next) = (missing, vec!["sudo homenode doctor".to_owned()]);
            // The failure may name what the user has named: it stays on the terminal.
            let unseen = "nothing could be observed: see doctor".to_owned();
            let because = std::mem::replace(&mut report.because, unseen.clone());
            write(global, sent, Err(unseen), &mut report);
            report.because = because;
            return tell(global, &report, &measured, &Limits::recorded(global.verbose));
        }
    };
    let mut services: Vec<Row> = rows.into_values().filter(|row| row.read_bytes > 0).collect();
    services.sort_by_key(|row| std::cmp::Reverse((row.could_be_local_bytes, row.read_bytes)));
    let (doubt, why) = (costs.as_ref().is_ok_and(|costs| costs.doubt.is_some()), costs.err());
    let chosen = plane::is_chosen(&args.observe.scope);
    let mut report = report(judge(&sum, seen.seconds, why.as_deref(), config.engine.budget.cpu, chosen));
    if doubt && sum.could_be_local_bytes > 0 {
        report.because += ", by figures of a busy machine";
    }
    report.next = next(report.verdict, why.is_some() || sum.unknown_bytes > 0, &services);
    (report.missing, report.seconds, report.notes) = (missing, seen.seconds, seen.notes.clone());
    (report.sum, report.services, report.between_unix_s) = (sum, services, seen.between_unix_s);
    write(global, sent, Ok((seen, limits.clone())), &mut report);
    tell(global, &report, &measured, &limits)
}

/// Writes the report that can be sent, or notes why not.
fn write(global: &Global, sent: report::Report, mapped: Result<(Map, Limits), String>, report: &mut Report) {
    let verdict = format!("{}: {}\n", said(report.verdict), report.because);
    let verdict = (verdict, json!({ "verdict": report.verdict, "because": report.because }));
    let path = global.state_dir.join(REPORT);
    let written = StateDir::make(&global.state_dir)
        .map_err(|e| Failure::from_error(Exit::Io, "cannot write the report", &e))
        .and_then(|()| sent.ended(mapped, Some(verdict)))
        .and_then(|(text, _)| replace::write(&path, &text, 0o600));
    match written {
        Ok(()) => report.report = Some(path),
        Err(failure) => report.notes.push(format!("no report: {}", failure.line())),
    }
}

/// What was measured before, or now; or why nothing was.
fn measured(global: &Global, args: &CheckArgs, machine: &Machine) -> Result<Result<Measured, String>, Failure> {
    Ok(match &machine.measured {
        Some(measured) => Ok(measured.clone()),
        None if args.no_measure => Err("it was not measured (`nodes --measure`)".to_owned()),
        None => {
            let stop = Stop::or_killed()?;
            let measured = nodes::measure::measure(global, MEASURE_S, false, true, &stop).map_err(|f| f.line());
            if stop.requested() {
                return Err(Failure::new(Exit::Partly, "cannot check", "stopped"));
            }
            measured
        }
    })
}

fn said_of(known: &Result<Costs, String>) -> String {
    match known {
        Ok(costs) => costs.local_and_remote().map_or_else(String::new, |(call, local, remote)| {
            let times = |s: f64| format!("{:.2} µs", s * 1e6);
            let doubt = costs.doubt.as_ref().map_or_else(String::new, |doubt| format!(" ({doubt})"));
            format!(
                "a cached read of {} takes {} at home and {} from another node{doubt}",
                size(call),
                times(local),
                times(remote)
            )
        }),
        Err(why) => format!("what a read from another node costs is not known: {why}"),
    }
}

/// The verdict and its reason. `unknown`: why costs are not known; `own_cpu`: CPUs that homenode
/// may use; `chosen`: options choose threads.
fn judge(sum: &Row, seconds: f64, unknown: Option<&str>, own_cpu: f64, chosen: bool) -> (Verdict, String) {
    let share = |part: u64| percent(part as f64 / sum.read_bytes as f64);
    if sum.read_bytes == 0 || seconds <= 0.0 {
        let what = if chosen { "none of the threads that the options choose" } else { "nothing" };
        return (Verdict::CannotTell, format!("{what} read file data: check while the load runs"));
    }
    if sum.could_be_local_bytes == 0 {
        let why = match sum.remote_bytes {
            0 => "no byte came from another node".to_owned(),
            remote => format!(
                "{} of the bytes came from another node, and none could become local: their readers are bound, or read \
                 from several nodes alike",
                share(remote)
            ),
        };
        return (Verdict::NotWorthIt, why);
    }
    let could = share(sum.could_be_local_bytes);
    if let Some(why) = unknown {
        return (
            Verdict::CannotTell,
            format!("{could} of the bytes could become local, and what that saves is not known: {why}"),
        );
    }
    let cpus = |s: f64| format!("{:.3}", s / seconds);
    let saved = sum.saved_s.unwrap_or_default();
    if saved.most / seconds < own_cpu && sum.unknown_bytes > 0 {
        let unknown = share(sum.unknown_bytes);
        let why = format!(
            "what {unknown} of the bytes would save is not known: their nodes were not measured, or differ by \
             no more than figures of a busy machine lie apart"
        );
        return (Verdict::CannotTell, why);
    }
    if saved.most / seconds < own_cpu {
        let most = cpus(saved.most);
        return (
            Verdict::NotWorthIt,
            format!("at most {most} CPUs would be saved, less than the {own_cpu} that homenode itself may use"),
        );
    }
    let (least, most, all) = (cpus(saved.least), cpus(saved.most), cpus(sum.cpu_s));
    (Verdict::WorthATrial, format!("{least} to {most} CPUs would be saved, of {all} that the readers use"))
}

fn next(verdict: Verdict, unmeasured: bool, services: &[Row]) -> Vec<String> {
    let plain = |name: &&str| {
        !matches!(*name, "" | "/" | OTHER | UNKNOWN)
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._@:/-".contains(c))
    };
    let most = services.first().map(|row| row.service.as_str()).filter(plain).filter(|name| !name.starts_with('-'));
    let unit = most.map_or_else(String::new, |name| format!(" --unit {name}"));
    match verdict {
        Verdict::WorthATrial => vec![format!("sudo homenode trial{unit}")],
        Verdict::CannotTell if unmeasured && !services.is_empty() => {
            vec!["sudo homenode nodes --measure".to_owned(), format!("sudo homenode trial{unit}")]
        }
        Verdict::CannotTell => vec!["sudo homenode check".to_owned()],
        Verdict::NotWorthIt => Vec::new(),
    }
}

fn tell(global: &Global, report: &Report, measured: &str, limits: &Limits) -> Result<Exit, Failure> {
    output::tell(global.json, report, || text(report, measured, limits))?;
    Ok(if report.verdict == Verdict::CannotTell { Exit::Partly } else { Exit::Done })
}

fn text(report: &Report, measured: &str, limits: &Limits) -> String {
    let mut lines = vec![format!("{} with memory", count(report.nodes, "node"))];
    lines.extend((!measured.is_empty()).then(|| escape(measured)));
    lines.extend(report.between_unix_s.map(past::between));
    lines.extend(report.missing.iter().map(|missing| format!("missing: {missing}")));
    let sum = &report.sum;
    if sum.read_bytes > 0 {
        lines.push(format!(
            "in {} {} read {} of file data: {} from another node, {} could become local",
            seconds(report.seconds),
            count(report.services.len(), "service"),
            bytes(sum.read_bytes),
            map::share(sum.remote_bytes, sum.read_bytes),
            map::share(sum.could_be_local_bytes, sum.read_bytes),
        ));
    }
    let mut text = lines.join("\n") + "\n";
    if !report.services.is_empty() {
        let mut table = Table::new(&["service", ">read", ">remote", ">could be local", ">CPUs", ">would save"]);
        for row in report.services.iter().take(SHOWN) {
            let saved = |saved: Span| match row.cpu_s > 0.0 {
                true => format!("{} to {}", percent(saved.least / row.cpu_s), percent(saved.most / row.cpu_s)),
                false => "-".to_owned(),
            };
            table.row([
                map::name(&row.service),
                bytes(row.read_bytes),
                map::share(row.remote_bytes, row.read_bytes),
                map::share(row.could_be_local_bytes, row.read_bytes),
                format!("{:.2}", row.cpu_s / report.seconds),
                row.saved_s.map_or_else(|| "-".to_owned(), saved),
            ]);
        }
        text = text + "\n" + &table.render();
    }
    text += &output::notes(limits.lines(&report.notes));
    text += &format!("\n{}: {}\n", said(report.verdict), escape(&report.because));
    for next in &report.next {
        text += &format!("next: {next}\n");
    }
    text + &match &report.report {
        Some(path) => format!("to show others, without names: {}\n", escape(&path.display().to_string())),
        None if report.nodes > 1 => "to show others: sudo homenode report --output report.md\n".to_owned(),
        None => String::new(),
    }
}

fn said(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::WorthATrial => "worth a trial",
        Verdict::NotWorthIt => "not worth it",
        Verdict::CannotTell => "cannot tell",
    }
}

#[cfg(test)]
mod tests {
    use placement::testing;
    use serde_json::json;
    use topology::NodeBytes;

    use super::*;

    fn row(read: u64, remote: u64, could: u64, saved: Option<(f64, f64)>) -> Row {
        let saved_s = saved.map(|(least, most)| Span { least, most });
        Row {
            read_bytes: read,
            remote_bytes: remote,
            could_be_local_bytes: could,
            cpu_s: 20.0,
            saved_s,
            ..Row::default()
        }
    }

    #[test]
    fn each_verdict_has_its_reason() {
        let judged = |row: &Row, unknown| judge(row, 10.0, unknown, 0.03, false);
        let says = |(verdict, because): (Verdict, String), wanted, part: &str| {
            assert_eq!(verdict, wanted, "{because}");
            assert!(because.contains(part), "{because}");
        };
        says(judged(&row(0, 0, 0, None), None), Verdict::CannotTell, "nothing read file data");
        says(judged(&row(9, 0, 0, None), Some("busy")), Verdict::NotWorthIt, "no byte came from another node");
        says(judged(&row(8, 4, 0, None), None), Verdict::NotWorthIt, "50 % of the bytes");
        says(
            judged(&row(8, 4, 2, None), Some("it is busy")),
            Verdict::CannotTell,
            "25 % of the bytes could become local, and what that saves is not known: it is busy",
        );
        says(judged(&row(8, 4, 2, Some((0.1, 0.29))), None), Verdict::NotWorthIt, "at most 0.029 CPUs");
        let part = Row { unknown_bytes: 2, ..row(8, 4, 2, Some((0.1, 0.29))) };
        says(judged(&part, None), Verdict::CannotTell, "what 25 % of the bytes would save is not known");
        says(
            judged(&row(8, 4, 2, Some((0.1, 0.31))), None),
            Verdict::WorthATrial,
            "0.010 to 0.031 CPUs would be saved, of 2.000",
        );
    }

    /// A thread on node 1 reads 3 MB of node 0 and 1 MB of its own: 2 MB could become local. Each
    /// byte costs 1 ns at home; 1.5 ns from the other node in calls of 4 KiB, and 1.2 ns in those
    /// of 1 MiB.
    #[test]
    fn what_is_saved_lies_between_the_sizes_of_calls() {
        let mut costs = Costs::default();
        for (call, away) in [(4096, 1.5e-9), (1 << 20, 1.2e-9)] {
            let of_call = costs.by_call.entry(call).or_default();
            for (cpu, memory) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                of_call.insert((NodeId(cpu), NodeId(memory)), if cpu == memory { 1e-9 } else { away });
            }
        }
        let read: NodeBytes = [(NodeId(0), 3_000_000), (NodeId(1), 1_000_000)].into_iter().collect();
        let thread = placement::Thread {
            node: NodeId(1),
            allowed_nodes: vec![NodeId(0), NodeId(1)],
            read_bytes: read.clone(),
            files: vec![placement::FileUse { file: testing::file(1), read_bytes: read, ..Default::default() }],
            ..placement::Thread::default()
        };
        let mut bytes = Flow::default();
        bytes.add_thread(&thread);
        let mut row = Row::default();
        row.add(&bytes, 1.0, Some(&costs));
        assert_eq!((row.read_bytes, row.remote_bytes, row.could_be_local_bytes), (4_000_000, 3_000_000, 2_000_000));
        let saved = row.saved_s.unwrap();
        let all = costs.clone();
        assert!((saved.least - 0.0004).abs() < 1e-9 && (saved.most - 0.001).abs() < 1e-9, "{saved:?}");
        costs.by_call.values_mut().for_each(|of_call| _ = of_call.remove(&(NodeId(1), NodeId(0))));
        let mut unknown = Row::default();
        unknown.add(&bytes, 1.0, Some(&costs));
        assert_eq!((unknown.saved_s, unknown.unknown_bytes), (None, 2_000_000));
        // Figures of a busy machine that lie half of one apart, or as far as nobody knows.
        for (noise, known) in [(0.4, true), (0.6, false), (f64::INFINITY, false)] {
            let busy = Costs { doubt: Some("busy".to_owned()), noise, ..all.clone() };
            let mut row = Row::default();
            row.add(&bytes, 1.0, Some(&busy));
            assert_eq!((row.saved_s.is_some(), row.unknown_bytes == 0), (known, known), "{noise}");
        }
        let costs = all;
        let (call, local, remote) = costs.local_and_remote().unwrap();
        assert_eq!((call, (local * 1e9) as u64, (remote * 1e9) as u64), (4096, 4096, 6144));
    }

    #[test]
    fn figures_of_an_emulated_machine_say_nothing() {
        let pair = |cpu, memory| {
            json!({
                "cpu_node": cpu, "memory_node": memory, "latency_s": 1e-7, "reads": [], "writes": [],
                "reads_2_writes_1": [], "cached": [{ "bytes": 4096, "call_s": 1e-6 }], "others_cpus": 0.0
            })
        };
        let measured = |emulated: bool, pairs: &[serde_json::Value]| -> Measured {
            serde_json::from_value(json!({
                "version": 1, "homenode": "", "unix_s": 0, "took_s": 1.0, "emulated": emulated, "buffer_bytes": 0,
                "writes": "cached", "pairs": pairs, "topology": topology::Topology::default()
            }))
            .unwrap()
        };
        let both = [pair(0, 0), pair(0, 1)];
        assert!(Costs::of(&measured(false, &both)).is_ok());
        assert!(Costs::of(&measured(true, &both)).unwrap_err().contains("emulated"));
        assert!(Costs::of(&measured(false, &both[..1])).unwrap_err().contains("no cached reads"));
    }

    #[test]
    fn the_next_command_names_only_a_plain_service() {
        let named = |name: &str| vec![Row { service: name.to_owned(), ..Row::default() }];
        let trial = |name: &str| next(Verdict::WorthATrial, false, &named(name));
        assert_eq!(trial("postgresql.service"), ["sudo homenode trial --unit postgresql.service"]);
        for odd in ["", "/", "other", "a;reboot", "$(x)", "--policy", "a b"] {
            assert_eq!(trial(odd), ["sudo homenode trial"], "{odd}");
        }
        assert_eq!(next(Verdict::NotWorthIt, true, &named("a")), [""; 0]);
        assert_eq!(next(Verdict::CannotTell, true, &named("a")).len(), 2);
    }
}
