//! The machine's nodes and the utilisation of their CPUs, from sysfs and `/proc/stat`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

/// The nodes that have CPUs.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CPUs by node id.
    pub nodes: BTreeMap<u32, Vec<u32>>,
}

impl Machine {
    /// Reads this machine. Without NUMA in sysfs, node 0 has every CPU.
    pub fn read() -> Result<Self> {
        let mut nodes = BTreeMap::new();
        if let Ok(entries) = fs::read_dir("/sys/devices/system/node") {
            for entry in entries {
                let entry = entry.context("/sys/devices/system/node")?;
                let name = entry.file_name();
                let Some(id) = name.to_str().and_then(|n| n.strip_prefix("node")?.parse().ok()) else { continue };
                let path = entry.path().join("cpulist");
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                let cpus = parse_list(&text)?;
                if !cpus.is_empty() {
                    nodes.insert(id, cpus);
                }
            }
        }
        if nodes.is_empty() {
            nodes.insert(0, cpu_ticks()?.into_keys().collect());
        }
        Ok(Self { nodes })
    }

    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map(|(id, _)| *id)
    }

    /// CPUs of one node as the kernel writes them (`0-1,4`), as in `Cpus_allowed_list`.
    pub fn list_of(&self, node: u32) -> String {
        list(self.nodes.get(&node).map_or(&[][..], Vec::as_slice))
    }

    /// All CPUs as the kernel writes them.
    pub fn list_of_all(&self) -> String {
        let mut all: Vec<u32> = self.nodes.values().flatten().copied().collect();
        all.sort_unstable();
        list(&all)
    }
}

/// Busy time of every CPU at one moment; utilisation is measured between two.
#[derive(Clone, Debug)]
pub struct Busy(BTreeMap<u32, (u64, u64)>);

impl Busy {
    pub fn now() -> Result<Self> {
        cpu_ticks().map(Self)
    }

    /// Share of a node's CPU time that was not idle since `before`, 0 to 1.
    pub fn share_since(&self, before: &Self, cpus: &[u32]) -> f64 {
        let (mut busy, mut all) = (0, 0);
        for cpu in cpus {
            if let (Some(now), Some(then)) = (self.0.get(cpu), before.0.get(cpu)) {
                busy += now.0.saturating_sub(then.0);
                all += now.1.saturating_sub(then.1);
            }
        }
        if all == 0 { 0.0 } else { busy as f64 / all as f64 }
    }
}

/// Per CPU: busy ticks and all ticks since boot.
fn cpu_ticks() -> Result<BTreeMap<u32, (u64, u64)>> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let mut cpus = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(id) = words.next().and_then(|w| w.strip_prefix("cpu")?.parse::<u32>().ok()) else { continue };
        // user nice system idle iowait irq softirq steal; guest time is contained in user time.
        let ticks: Vec<u64> = words.take(8).filter_map(|w| w.parse().ok()).collect();
        let all: u64 = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        cpus.insert(id, (all - idle, all));
    }
    Ok(cpus)
}

/// The CPUs of a list as the kernel writes it.
pub fn parse_list(text: &str) -> Result<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let bound = |s: &str| s.parse::<u32>().with_context(|| format!("CPU list {text:?}"));
        cpus.extend(bound(first)?..=bound(last)?);
    }
    Ok(cpus)
}

/// Writes `0-3,8`.
fn list(cpus: &[u32]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = cpus;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(first..).take_while(|(cpu, expected)| **cpu == *expected).count();
        let last = rest[run - 1];
        parts.push(if run == 1 { first.to_string() } else { format!("{first}-{last}") });
        rest = &rest[run..];
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_have_the_format_of_the_kernel() {
        for (text, cpus) in
            [("0-3,8\n", vec![0, 1, 2, 3, 8]), ("5", vec![5]), ("", vec![]), ("0,2,4-5", vec![0, 2, 4, 5])]
        {
            assert_eq!(parse_list(text).unwrap(), cpus);
            assert_eq!(list(&cpus), text.trim());
        }
        assert!(parse_list("0-x").is_err());
    }

    #[test]
    fn this_machine_has_a_node_for_every_cpu() {
        let machine = Machine::read().unwrap();
        for cpu in cpu_ticks().unwrap().into_keys() {
            assert!(machine.node_of(cpu).is_some(), "CPU {cpu}");
        }
    }

    #[test]
    fn utilisation_is_busy_ticks_over_all_ticks() {
        let before = Busy([(0, (10, 100)), (1, (0, 100))].into());
        let after = Busy([(0, (60, 200)), (1, (100, 200))].into());
        // CPU 0: 50 of 100 ticks, CPU 1: 100 of 100; together 150 of 200.
        assert_eq!(after.share_since(&before, &[0, 1]), 0.75);
        assert_eq!(after.share_since(&before, &[7]), 0.0);
    }
}
