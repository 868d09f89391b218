//! The `[machine]` table.

use std::collections::BTreeMap;

use toml::Spanned;
use topology::{Node, NodeId, Topology, measured};

use super::ScenarioError;
use super::amount::Amount;
use super::check::Checker;
use super::raw::{RawDistance, RawMachine, RawNode};
use crate::constants::Constants;
use crate::machine::{Machine, Memory, topology as alike};

/// Most nodes and CPUs of a machine: the kernel's own limits (`MAX_NUMNODES`, `NR_CPUS`).
const MOST_NODES: u32 = 1024;
const MOST_CPUS: u32 = 8192;

/// Memory of a node as stated for the machine or for the node.
#[derive(Clone, Copy)]
struct Words<'a> {
    optane: Option<&'a Spanned<u32>>,
    read: Option<&'a Spanned<Amount>>,
    write: Option<&'a Spanned<Amount>>,
}

impl Checker<'_> {
    pub fn machine(&self, raw: &Spanned<RawMachine>) -> Result<Machine, ScenarioError> {
        let m = raw.get_ref();
        let mut topology = match (&self.topology, &m.topology) {
            (Some(other), _) => other.clone(),
            (None, Some(dir)) => self.captured(m, dir)?,
            (None, None) => self.inline(raw)?,
        };
        for (id, node) in &m.node {
            if topology.node(*id).is_none() {
                return Err(self.error(node, &format!("machine.node.{id}"), format!("there is no node {id}")));
            }
        }
        let mut memories = BTreeMap::new();
        for node in &mut topology.nodes {
            let own = m.node.get(&node.id).map(Spanned::get_ref);
            self.shape(node, own)?;
            let (memory, peaks) = self.memory(node, m, own)?;
            (node.read_bw_max, node.write_bw_max) = (Some(peaks.0), Some(peaks.1));
            memories.insert(node.id, memory);
        }
        let c = &Constants::CALIBRATED;
        let interconnect = match &m.interconnect {
            Some(bw) => self.positive(bw, "machine.interconnect")?,
            None => c.port_bw,
        };
        let dram = Memory::dram(c, c.dram_read_bw, c.dram_write_bw);
        Machine::new(c, topology, interconnect, |node| memories.get(&node.id).copied().unwrap_or(dram))
            .map_err(|e| self.error(raw, "machine", e.to_string()))
    }

    fn captured(&self, m: &RawMachine, dir: &Spanned<String>) -> Result<Topology, ScenarioError> {
        for (key, span) in [
            ("nodes", m.nodes.as_ref().map(Spanned::span)),
            ("cpus", m.cpus.as_ref().map(Spanned::span)),
            ("memory", m.memory.as_ref().map(Spanned::span)),
            ("distance", m.distance.as_ref().map(Spanned::span)),
        ] {
            if let Some(span) = span {
                let why = "the topology sets it; [machine.node.N] changes one node".to_owned();
                return Err(self.error_at(span, format!("machine.{key}"), why));
            }
        }
        let path = self.path.parent().unwrap_or(std::path::Path::new("")).join(dir.get_ref());
        measured::saved(&path).map_err(|e| self.error(dir, "machine.topology", e.to_string()))
    }

    fn inline(&self, raw: &Spanned<RawMachine>) -> Result<Topology, ScenarioError> {
        let m = raw.get_ref();
        let missing = |key: &str| self.error(raw, &format!("machine.{key}"), "is missing (or `topology`)".to_owned());
        let nodes = m.nodes.as_ref().ok_or_else(|| missing("nodes"))?;
        let cpus = m.cpus.as_ref().ok_or_else(|| missing("cpus"))?;
        let memory = m.memory.as_ref().ok_or_else(|| missing("memory"))?;
        let n = *nodes.get_ref();
        if n == 0 || n > MOST_NODES {
            return Err(self.error(nodes, "machine.nodes", format!("{n} is not a number from 1 to {MOST_NODES}")));
        }
        if *cpus.get_ref() > MOST_CPUS / n {
            let why = format!("{} CPUs on each of {n} nodes: a kernel has at most {MOST_CPUS}", cpus.get_ref());
            return Err(self.error(cpus, "machine.cpus", why));
        }
        let table = match &m.distance {
            None => None,
            Some(d) => match d.get_ref() {
                RawDistance::All(all) => Some((d, vec![vec![*all; n as usize]; n as usize])),
                RawDistance::Table(rows) => Some((d, rows.clone())),
            },
        };
        if let Some((d, rows)) = &table {
            if rows.len() != n as usize || rows.iter().any(|row| row.len() != n as usize) {
                return Err(self.error(d, "machine.distance", format!("it must have {n} rows of {n} distances")));
            }
            if rows
                .iter()
                .enumerate()
                .any(|(i, row)| row.iter().enumerate().any(|(j, d)| i != j && !(10..=254).contains(d)))
            {
                return Err(self.error(d, "machine.distance", "distances are 10 to 254 (ACPI SLIT)".to_owned()));
            }
        }
        let distance = |from: u32, to: u32| match &table {
            _ if from == to => 10,
            Some((_, rows)) => rows[from as usize][to as usize],
            None => 21,
        };
        Ok(alike(n, *cpus.get_ref(), memory.get_ref().0 as u64, distance))
    }

    /// CPUs and memory of one node, where the file says so.
    fn shape(&self, node: &mut Node, own: Option<&RawNode>) -> Result<(), ScenarioError> {
        let Some(own) = own else { return Ok(()) };
        if let Some(cpus) = &own.cpus {
            let have = node.cpus.len() as u32;
            let want = *cpus.get_ref();
            if want > have {
                let why = format!("{want} CPUs: the node has {have}, a file can only take some away");
                return Err(self.error(cpus, &key(node.id, "cpus"), why));
            }
            node.cpus = node.cpus.iter().take(want as usize).collect();
        }
        if let Some(memory) = &own.memory {
            node.memory_bytes = memory.get_ref().0 as u64;
        }
        Ok(())
    }

    /// The node's memory, and the peak bandwidths that policies see.
    fn memory(
        &self,
        node: &Node,
        m: &RawMachine,
        own: Option<&RawNode>,
    ) -> Result<(Memory, (f64, f64)), ScenarioError> {
        let c = &Constants::CALIBRATED;
        let machine = Words { optane: m.optane_modules.as_ref(), read: m.read_bw.as_ref(), write: m.write_bw.as_ref() };
        let own = own.map(|o| Words {
            optane: o.optane_modules.as_ref(),
            read: o.read_bw.as_ref(),
            write: o.write_bw.as_ref(),
        });
        let says = |w: &Words<'_>| w.optane.is_some() || w.read.is_some() || w.write.is_some();
        let (words, prefix) = match own.filter(says) {
            Some(own) => (own, format!("machine.node.{}", node.id)),
            None => (machine, "machine".to_owned()),
        };
        match words {
            Words { optane: Some(modules), read: None, write: None } => {
                let n = *modules.get_ref();
                if n == 0 {
                    return Err(self.error(
                        modules,
                        &format!("{prefix}.optane_modules"),
                        "0 modules hold nothing".into(),
                    ));
                }
                let n_f = f64::from(n);
                Ok((Memory::optane(c, n), (n_f * c.optane_read_peak, n_f * c.optane_write_peak)))
            }
            Words { optane: Some(modules), .. } => {
                let why = "the bandwidth follows from the modules: give one or the other".to_owned();
                Err(self.error(modules, &format!("{prefix}.optane_modules"), why))
            }
            Words { optane: None, read, write } => {
                let read = match read {
                    Some(read) => self.positive(read, &format!("{prefix}.read_bw"))?,
                    None => node.read_bw_max.unwrap_or(c.dram_read_bw),
                };
                let write = match write {
                    Some(write) => self.positive(write, &format!("{prefix}.write_bw"))?,
                    None => node.write_bw_max.unwrap_or(c.dram_write_bw),
                };
                Ok((Memory::dram(c, read, write), (read, write)))
            }
        }
    }

    /// An amount above zero.
    pub fn positive(&self, value: &Spanned<Amount>, key: &str) -> Result<f64, ScenarioError> {
        match value.get_ref().0 {
            v if v > 0.0 => Ok(v),
            v => Err(self.error(value, key, format!("{v} is not above 0"))),
        }
    }
}

fn key(node: NodeId, key: &str) -> String {
    format!("machine.node.{node}.{key}")
}
