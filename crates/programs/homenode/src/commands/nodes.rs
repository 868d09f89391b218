//! `homenode nodes`: what the machine is, and what its memory does.

pub mod measure;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use command::args::Global;
use serde_json::{Value, json};
use topology::{MemoryKind, Node, NodeId, Topology};

use self::measure::MeasureArgs;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine::{self, Machine};
use crate::output::table::Table;
use crate::output::units::{count, rate, size};
use crate::output::{self, escape};

/// `homenode nodes`.
#[derive(Debug, Args)]
pub struct NodesArgs {
    /// Save the kernel's description of this machine's nodes to DIR, for tests and bug reports
    #[arg(long, value_name = "DIR")]
    pub capture: Option<PathBuf>,
    /// Show the machine saved in DIR instead of this one
    #[arg(long, value_name = "DIR", conflicts_with = "measure")]
    pub sys: Option<PathBuf>,
    /// Measure latency, bandwidth and cached reads between all nodes
    #[arg(long, conflicts_with = "capture")]
    pub measure: bool,
    /// Options of `--measure`.
    #[command(flatten)]
    pub measuring: MeasureArgs,
}

/// Prints the machine, and saves it where asked; or measures it.
pub fn run(global: &Global, args: &NodesArgs) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    if args.measure {
        return measure::run(global, &args.measuring, &config);
    }
    let sys = args.sys.as_deref().unwrap_or(Path::new(machine::SYS));
    let machine = Machine::read(sys, &config)?;
    let captured = args.capture.as_deref().map(|dir| topology::capture::capture(sys, dir)).transpose();
    let captured = captured.map_err(|e| Failure::from_error(Exit::Usage, "cannot save this machine", &e))?;
    let free = topology::sysfs::free_memory(sys, &machine.topology);
    output::tell(global.json, &json(&machine, &free), || {
        let saved = captured.map(|saved| format!("saved {} to {}\n", count(saved.files, "file"), saved.dir.display()));
        text(&machine, &free) + &saved.unwrap_or_default()
    })?;
    Ok(Exit::Done)
}

/// The machine as text and as JSON. Without `names`, the file of measured figures is not named.
pub fn described(machine: &Machine, names: bool) -> (String, Value) {
    let free = topology::sysfs::free_memory(Path::new(machine::SYS), &machine.topology);
    let (mut text, mut value) = (text(machine, &free), json(machine, &free));
    if !names {
        let file = machine.file.display().to_string();
        text = text.lines().filter(|line| !line.contains(&file)).map(|line| format!("{line}\n")).collect();
        if let Some(measured) = value.get_mut("measured").and_then(Value::as_object_mut) {
            measured.remove("file");
        }
    }
    (text, value)
}

/// The topology's own JSON, with what is free now.
fn json(machine: &Machine, free: &BTreeMap<NodeId, u64>) -> Value {
    let topology = &machine.topology;
    let mut value = json!(topology);
    // Programs find an empty list where there are none.
    if let Some(object) = value.as_object_mut() {
        object.entry("regions").or_insert_with(|| json!([]));
        if let Some(measured) = &machine.measured {
            let mut from = json!({"file": machine.file, "unix_s": measured.unix_s, "emulated": measured.emulated});
            if let (Some(busy), Some(from)) = (&measured.busy, from.as_object_mut()) {
                from.insert("busy".to_owned(), json!(busy));
            }
            object.insert("measured".to_owned(), from);
        }
    }
    // The same nodes in the same order.
    let values = value.get_mut("nodes").and_then(Value::as_array_mut).into_iter().flatten();
    for (value, node) in values.filter_map(Value::as_object_mut).zip(&topology.nodes) {
        let of = |write| machine.source(node, write).map(Value::from);
        let more = [
            ("memory_free", free.get(&node.id).map(|free| json!(free))),
            ("read_bw_from", of(false)),
            ("write_bw_from", of(true)),
        ];
        value.extend(more.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    }
    value
}

fn text(machine: &Machine, free: &BTreeMap<NodeId, u64>) -> String {
    let topology = &machine.topology;
    let ids: Vec<_> = topology.nodes.iter().map(|n| n.id.to_string()).collect();
    let mut heads =
        [">node", "CPUs", ">memory", ">free", "tier", ">read bandwidth", ">write bandwidth"].map(String::from).to_vec();
    heads.push(format!("distance to node {}", ids.join(" ")));
    let mut table = Table::new(&heads);
    for node in &topology.nodes {
        table.row([
            node.id.to_string(),
            cpus(node),
            memory(node),
            free.get(&node.id).map_or("unknown".to_owned(), |n| size(*n)),
            match (node.memory, node.tier) {
                (MemoryKind::Unknown, _) => "none (of unknown kind)".to_owned(),
                (_, tier) => tier.map_or("unknown".to_owned(), |tier| format!("{} ({})", tier.rank, tier.from)),
            },
            bandwidth(node.read_bw_max, machine.source(node, false)),
            bandwidth(node.write_bw_max, machine.source(node, true)),
            distances(topology, node),
        ]);
    }
    let mut text = table.render();
    if !topology.regions.is_empty() {
        let mut table = Table::new(&["region", ">node", ">size", "start", "devices"]);
        for region in &topology.regions {
            table.row([
                region.name.clone(),
                region.node.map_or("unknown".to_owned(), |n| n.to_string()),
                size(region.size),
                region.start.map_or("unknown".to_owned(), |at| format!("{at:#x}")),
                region.devices.join(" "),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render());
    }
    if let Some(why) = &machine.unused {
        text.push_str(&format!("note: {} is not used: {}\n", machine.file.display(), escape(why)));
    }
    if machine.measured.as_ref().is_some_and(|measured| measured.emulated) {
        text.push_str("note: measured on an emulated processor: its times are those of the emulation\n");
    }
    if let Some(why) = machine.measured.as_ref().and_then(|measured| measured.busy.as_deref()) {
        let why = escape(why);
        text.push_str(&format!("note: measured on a busy machine ({why}): its memory is at least as fast as that\n"));
    }
    if let Some(note) = of_unknown_kind(topology) {
        text.push_str(&format!("note: {note}\n"));
    }
    if topology.nodes.len() == 1 {
        text.push_str("one node: every read is local, there is nothing to move\n");
    }
    text
}

/// What is to be said of memory of unknown kind.
pub fn of_unknown_kind(topology: &Topology) -> Option<String> {
    let nodes: Vec<String> = topology.of_unknown_kind().iter().map(NodeId::to_string).collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "the memory of node {} is of unknown kind, perhaps a GPU's: no policy puts file data there \
             (`file_data = true` in [node.N] of homenode.toml)",
            nodes.join(", ")
        )
    })
}

/// `0-3,8`, with CPUs that are offline.
fn cpus(node: &Node) -> String {
    let online = if node.cpus.is_empty() { "none".to_owned() } else { node.cpus.to_string() };
    if node.offline_cpus.is_empty() { online } else { format!("{online} (offline: {})", node.offline_cpus) }
}

/// A kernel without NUMA does not always say how much memory there is.
fn memory(node: &Node) -> String {
    match node.memory {
        MemoryKind::None => "none".to_owned(),
        _ if node.memory_bytes == 0 => "unknown".to_owned(),
        _ => size(node.memory_bytes),
    }
}

/// `131.1 GB/s (firmware)`.
fn bandwidth(max: Option<f64>, from: Option<&str>) -> String {
    max.zip(from).map_or("unknown".to_owned(), |(max, from)| format!("{} ({from})", rate(max)))
}

fn distances(topology: &Topology, from: &Node) -> String {
    let distance = |to: &Node| topology.distance(from.id, to.id).map_or("?".to_owned(), |d| d.to_string());
    topology.nodes.iter().map(distance).collect::<Vec<_>>().join(" ")
}
