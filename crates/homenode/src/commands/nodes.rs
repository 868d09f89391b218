//! `homenode nodes`: what the machine is.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use topology::capture::Captured;
use topology::{MemoryKind, Node, NodeId, Topology};

use crate::cli::{Global, NodesArgs};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::output::table::Table;
use crate::output::units::{count, rate, size};

/// The kernel's sysfs.
pub const SYS: &str = "/sys";

/// Prints the machine, and saves it where asked.
pub fn run(global: &Global, args: &NodesArgs) -> Result<Exit, Failure> {
    let sys = args.sys.as_deref().unwrap_or(Path::new(SYS));
    let topology = read(sys, &Config::load(global.config.as_deref())?)?;
    let captured = args.capture.as_deref().map(|dir| capture(sys, dir)).transpose()?;
    let free = topology::sysfs::free_memory(sys, &topology);
    if global.json {
        output::print_json(&json(&topology, &free))?;
    } else {
        output::print(&text(&topology, &free))?;
        if let Some(captured) = captured {
            output::print(&format!("saved {} to {}\n", count(captured.files, "file"), captured.dir.display()))?;
        }
    }
    Ok(Exit::Done)
}

/// The machine under `sys`, with what homenode.toml adds.
pub fn read(sys: &Path, config: &Config) -> Result<Topology, Failure> {
    let mut topology = topology::sysfs::read(sys)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot tell this machine's nodes", &e))?;
    topology.configure(&config.node).map_err(|e| Failure::from_error(Exit::Usage, config.place(), &e))?;
    Ok(topology)
}

fn capture(sys: &Path, dir: &Path) -> Result<Captured, Failure> {
    topology::capture::capture(sys, dir).map_err(|e| Failure::from_error(Exit::Usage, "cannot save this machine", &e))
}

/// The topology's own JSON, with what is free now.
fn json(topology: &Topology, free: &BTreeMap<NodeId, u64>) -> Value {
    let mut value = json!(topology);
    for node in value.get_mut("nodes").and_then(Value::as_array_mut).into_iter().flatten() {
        let id = node.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok()).map(NodeId);
        if let (Some(object), Some(free)) = (node.as_object_mut(), id.and_then(|id| free.get(&id))) {
            object.insert("memory_free".to_owned(), json!(free));
        }
    }
    value
}

fn text(topology: &Topology, free: &BTreeMap<NodeId, u64>) -> String {
    let ids: Vec<_> = topology.nodes.iter().map(|n| n.id.to_string()).collect();
    let mut heads =
        [">node", "CPUs", ">memory", ">free", ">read bandwidth", ">write bandwidth"].map(String::from).to_vec();
    heads.push(format!("distance to node {}", ids.join(" ")));
    let mut table = Table::new(&heads);
    for node in &topology.nodes {
        table.row([
            node.id.to_string(),
            cpus(node),
            memory(node),
            free.get(&node.id).map_or("unknown".to_owned(), |n| size(*n)),
            bandwidth(node.read_bw_max),
            bandwidth(node.write_bw_max),
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
    if topology.nodes.len() == 1 {
        text.push_str("one node: every read is local, there is nothing to move\n");
    }
    text
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

fn bandwidth(max: Option<f64>) -> String {
    max.map_or("unknown".to_owned(), rate)
}

fn distances(topology: &Topology, from: &Node) -> String {
    let distance = |to: &Node| topology.distance(from.id, to.id).map_or("?".to_owned(), |d| d.to_string());
    topology.nodes.iter().map(distance).collect::<Vec<_>>().join(" ")
}
