//! `homenode map`: which services read file bytes from which node, over some windows, or at an
//! earlier time.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use command::args::Global;
use engine::Plane;
use placement::flow::Flow;
use placement::{Snapshot, Traits};
use session::map::{Map, NetworkDevice, Report};
use topology::{NodeId, sysfs};

use crate::commands::past::{self, PastArgs};
use crate::commands::plane;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine::SYS;
use crate::options::ObserveArgs;
use crate::output::limits::Limits;
use crate::output::table::Table;
use crate::output::units::{bytes, count, percent, seconds, size};
use crate::output::{self, progress};
use crate::signals::Stop;

/// `homenode map`.
#[derive(Debug, Args)]
pub struct MapArgs {
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// What was, in the place of what is.
    #[command(flatten)]
    pub past: PastArgs,
    /// Number of windows to observe
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..))]
    pub windows: u64,
    /// Number of processes and of files to show
    #[arg(long, value_name = "N", default_value = "10")]
    pub top: usize,
}

pub fn run(global: &Global, args: &MapArgs) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let (report, limits) = match args.past.map(global, args.top, |_| ()) {
        Some(past) => (past?, Limits::recorded(global.verbose)),
        None => observe(global, &config, &args.observe, args.windows, args.top, |_| ())?,
    };
    output::tell(global.json, &report, || text(&report, &limits))?;
    Ok(Exit::Done)
}

/// Observes `windows` windows, for at most `top` processes and files; `each` has every window's
/// snapshot. Gives up all privileges but those that observing takes.
pub fn observe(
    global: &Global,
    config: &Config,
    args: &ObserveArgs,
    windows: u64,
    top: usize,
    mut each: impl FnMut(&Snapshot),
) -> Result<(Report, Limits), Failure> {
    let window = Duration::from_secs_f64(args.window.unwrap_or(config.engine.window_s));
    let stop = Stop::or_killed()?;
    let mut plane = plane::open(config, args, plane::looked_at(&args.scope, config)?, Traits::default(), false)?;
    let unknown = plane.topology().of_unknown_kind();
    plane::observe_only()?;
    let limits = Limits::of(plane.limits(), global.verbose);
    let mut map = Map::default();
    let bar = progress::bar(global.json, windows, "observing {wide_bar} window {pos} of {len}");
    for done in 0..windows {
        if stop.requested() {
            break;
        }
        bar.set_position(done);
        let snapshot = plane::observe(&mut plane, window)?;
        each(&snapshot);
        map.add(&snapshot);
    }
    bar.finish_and_clear();
    let mut report = map.report(top);
    if report.sum.handed_bytes > 0 {
        let all = sysfs::network_devices(Path::new(SYS)).into_iter();
        report.network_devices = all.map(|(name, node)| NetworkDevice { name, node }).collect();
    }
    for node in unknown {
        let cached = sysfs::cached_files(Path::new(SYS), node).map_or("unknown".to_owned(), bytes);
        report.notes.push(format!("cached files on node {node}, whose memory is of unknown kind: {cached}"));
    }
    Ok((report, limits))
}

pub fn name(service: &str) -> String {
    if service.is_empty() { "(unknown)".to_owned() } else { service.to_owned() }
}

/// `network devices: eth0 on node 0, eth1 on node 1`.
fn devices(all: &[NetworkDevice]) -> String {
    if all.is_empty() {
        return "no network device says which node it is on".to_owned();
    }
    let each = all.iter().map(|device| format!("{} on node {}", output::escape(&device.name), device.node));
    format!("network devices: {}", each.collect::<Vec<_>>().join(", "))
}

pub fn share(part: u64, all: u64) -> String {
    if all == 0 { "-".to_owned() } else { percent(part as f64 / all as f64) }
}

pub fn text(report: &Report, limits: &Limits) -> String {
    let sum = &report.sum;
    let mut text = report.between_unix_s.map_or_else(String::new, |between| format!("{}\n", past::between(between)));
    text += &format!("{} · {}", seconds(report.seconds), count(report.services.len(), "service"));
    text.push_str(&match sum.read_bytes {
        0 => " · no file data was read\n".to_owned(),
        read => format!(
            " read {} of file data, {} of it from another node; {} could become local\n",
            bytes(read),
            share(sum.remote_bytes, read),
            share(sum.could_be_local_bytes, read)
        ),
    });
    if sum.handed_bytes > 0 {
        text.push_str(&format!(
            "{} were handed on by sendfile or splice, which counts as no read; {}\n",
            bytes(sum.handed_bytes),
            devices(&report.network_devices)
        ));
    }
    let unlisted = report.unlisted_read_bytes.total();
    if unlisted > 0 {
        text.push_str(&format!(
            "{} more were read by threads out of scope, or that ended within a window and had no service\n",
            bytes(unlisted)
        ));
    }
    let nodes: BTreeSet<NodeId> = sum.pairs.iter().map(|pair| pair.data_node).collect();
    let from = |head: &str| nodes.iter().map(|node| format!(">{head} node {node}")).collect::<Vec<_>>();
    if !report.services.is_empty() {
        let mut heads =
            ["service", ">processes", ">read", ">remote", ">could be local", "run on"].map(str::to_owned).to_vec();
        heads.extend(from("from"));
        heads.extend([">written", ">handed on"].map(str::to_owned));
        let mut table = Table::new(&heads);
        for row in &report.services {
            group_rows(&mut table, &[name(&row.service), row.processes.to_string()], &row.bytes, &nodes);
        }
        text = text + "\n" + &table.render();
    }
    if !report.processes.is_empty() {
        let heads = ["process", "service", ">read", ">remote", ">could be local", ">written", ">handed on"];
        let mut table = Table::new(&heads);
        for row in &report.processes {
            let b = &row.bytes;
            table.row([
                format!("{} ({})", row.comm, row.pid),
                name(&row.service),
                bytes(b.read_bytes),
                share(b.remote_bytes, b.read_bytes),
                share(b.could_be_local_bytes, b.read_bytes),
                bytes(b.write_bytes),
                bytes(b.handed_bytes),
            ]);
        }
        text = text + "\n" + &table.render();
    }
    if !report.files.is_empty() {
        let mut heads = ["file", ">size"].map(str::to_owned).to_vec();
        heads.extend(from("on"));
        heads.extend([">read", ">remote", ">written"].map(str::to_owned));
        let mut table = Table::new(&heads);
        for row in &report.files {
            let b = &row.bytes;
            let mut cells = vec![
                row.path.clone().unwrap_or_else(|| format!("{} (no path known)", row.file)),
                row.size.map_or("-".to_owned(), size),
            ];
            cells.extend(nodes.iter().map(|node| share(row.nodes.get(*node), row.nodes.total())));
            cells.extend([bytes(b.read_bytes), share(b.remote_bytes, b.read_bytes), bytes(b.write_bytes)]);
            table.row(cells);
        }
        text = text + "\n" + &table.render();
    }
    text + &output::notes(limits.lines(&report.notes))
}

/// A row for each node on which the threads of a service ran; the first has the sums.
fn group_rows(table: &mut Table, name: &[String; 2], sum: &Flow, nodes: &BTreeSet<NodeId>) {
    let ran: BTreeSet<NodeId> = sum.pairs.iter().map(|pair| pair.cpu_node).collect();
    if ran.is_empty() {
        // It only handed on.
        let mut cells = name.to_vec();
        cells.extend(vec!["-".to_owned(); nodes.len() + 5]);
        cells.push(bytes(sum.handed_bytes));
        table.row(cells);
    }
    for (i, cpu_node) in ran.iter().enumerate() {
        let here = || sum.pairs.iter().filter(|pair| pair.cpu_node == *cpu_node);
        let read: u64 = here().map(|pair| pair.read_bytes).sum();
        let written: u64 = here().map(|pair| pair.write_bytes).sum();
        let mut cells = match i {
            0 => name.to_vec(),
            _ => vec![String::new(); 2],
        };
        cells.push(bytes(read));
        cells.extend(match i {
            0 => [share(sum.remote_bytes, sum.read_bytes), share(sum.could_be_local_bytes, sum.read_bytes)],
            _ => [String::new(), String::new()],
        });
        cells.push(format!("node {cpu_node}"));
        let from = |node: &NodeId| here().filter(|pair| pair.data_node == *node).map(|pair| pair.read_bytes).sum();
        cells.extend(nodes.iter().map(|node| share(from(node), read)));
        cells.push(bytes(written));
        cells.push(if i == 0 { bytes(sum.handed_bytes) } else { String::new() });
        table.row(cells);
    }
}
