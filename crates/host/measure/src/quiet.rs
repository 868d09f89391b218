//! Whether this is a time and a place to measure: asked before, and between pairs.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use topology::{CpuSet, MemoryKind, NodeId, Topology, sysfs};

/// Share of the CPUs above which others keep the machine busy.
pub const BUSY: f64 = 0.1;

/// Largest share of the last ten seconds in which something waited: for memory, or for a CPU.
const PRESSURE: f64 = 0.1;

/// Least share of the memory that must be available.
const AVAILABLE: f64 = 0.1;

/// Why not to measure.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// A container or cpuset hides nodes.
    Hidden(Vec<NodeId>),
    /// The machine runs on its battery, where processors are slower.
    Battery,
    Memory(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hidden(nodes) => {
                let nodes: Vec<_> = nodes.iter().map(NodeId::to_string).collect();
                write!(f, "this process may not use node {}: a container or cpuset hides it", nodes.join(", "))
            }
            Self::Battery => f.write_str("the machine runs on its battery"),
            Self::Memory(why) => write!(f, "memory is short: {why}"),
        }
    }
}

/// What this process may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allowed {
    /// CPUs; absent if the kernel does not tell.
    pub cpus: Option<CpuSet>,
    /// Memory of these nodes; absent if the kernel does not tell.
    pub nodes: Option<CpuSet>,
}

impl Allowed {
    pub fn of_self(proc_root: &Path) -> Self {
        // Unknown is no limit: the kernel has the last word.
        let list = |what| linux::processor::allowed(proc_root, what).ok().flatten();
        Self { cpus: list("Cpus_allowed_list"), nodes: list("Mems_allowed_list") }
    }

    /// Those of these CPUs that may be used.
    pub fn of(&self, cpus: &CpuSet) -> Vec<u32> {
        self.cpus.as_ref().map_or_else(|| cpus.clone(), |allowed| cpus.intersection(allowed)).iter().collect()
    }

    /// Nodes of which all CPUs, or the memory, are out of reach.
    pub fn hidden(&self, topology: &Topology) -> Vec<NodeId> {
        let hidden = |n: &&topology::Node| {
            let memory = n.memory != MemoryKind::None && self.nodes.as_ref().is_some_and(|m| !m.contains(n.id.0));
            memory || !n.cpus.is_empty() && self.of(&n.cpus).is_empty()
        };
        topology.nodes.iter().filter(hidden).map(|n| n.id).collect()
    }
}

/// Whether a power supply says that the machine runs on its battery.
pub fn on_battery(sys_root: &Path) -> bool {
    let supplies = fs::read_dir(sys_root.join("class/power_supply")).into_iter().flatten().flatten();
    let is = |dir: &Path, file: &str, text: &str| fs::read_to_string(dir.join(file)).is_ok_and(|t| t.trim() == text);
    // A mouse has a battery, too, with `Device` as its scope.
    supplies
        .map(|supply| supply.path())
        .any(|dir| is(&dir, "type", "Battery") && is(&dir, "status", "Discharging") && !is(&dir, "scope", "Device"))
}

/// Why memory is too short; `None` if it is not, or the kernel does not tell.
pub fn short_of_memory(proc_root: &Path) -> Option<String> {
    if let Some(waited) = pressure(proc_root, "memory").filter(|waited| *waited > PRESSURE) {
        return Some(format!("something waited for it in {:.0} % of the last 10 s", waited * 100.0));
    }
    let meminfo = fs::read_to_string(proc_root.join("meminfo")).ok()?;
    let of = |name: &str| sysfs::bytes(meminfo.lines().find_map(|line| line.strip_prefix(name))?);
    let share = of("MemAvailable:")? as f64 / of("MemTotal:")?.max(1) as f64;
    (share < AVAILABLE).then(|| format!("{:.0} % of it are available", share * 100.0))
}

/// Why the CPUs are too busy, by what was waited for them; `None` if they are not, or the kernel
/// does not tell.
pub fn waited_for_cpus(proc_root: &Path) -> Option<String> {
    let waited = pressure(proc_root, "cpu").filter(|waited| *waited > PRESSURE)?;
    Some(format!("threads waited for a CPU in {:.0} % of the last 10 s", waited * 100.0))
}

/// The share of the last ten seconds in which something waited (`some avg10=`).
fn pressure(proc_root: &Path, what: &str) -> Option<f64> {
    let text = fs::read_to_string(proc_root.join("pressure").join(what)).ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let percent: f64 = some.split_whitespace().find_map(|f| f.strip_prefix("avg10="))?.parse().ok()?;
    Some(percent / 100.0)
}

/// CPU time of the machine and of this process, to tell what others used.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    all_s: f64,
    own_s: f64,
    at: std::time::Instant,
}

impl Used {
    /// Until now; `None` if the kernel does not tell.
    pub fn now(proc_root: &Path) -> Option<Self> {
        let stat = fs::read_to_string(proc_root.join("stat")).ok()?;
        Some(Self {
            all_s: busy_ticks(&stat)? as f64 / rustix::param::clock_ticks_per_second() as f64,
            own_s: linux::clock::s(linux::clock::ClockId::ProcessCPUTime),
            at: std::time::Instant::now(),
        })
    }

    /// CPUs that others used since `before`, on average.
    pub fn by_others(&self, before: &Self) -> f64 {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let others = (self.all_s - before.all_s) - (self.own_s - before.own_s);
        if seconds > 0.0 { (others / seconds).max(0.0) } else { 0.0 }
    }
}

/// Ticks that all CPUs were not idle. Time that a hypervisor took away (`steal`) counts as used;
/// time of guests is in that of their programs.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).collect();
    let idle = |n: &usize| matches!(*n, 3 | 4 | 8 | 9);
    (ticks.len() >= 4).then(|| ticks.iter().enumerate().filter(|(n, _)| !idle(n)).map(|(_, t)| t).sum())
}

/// How long to look at what others use, before.
pub const LOOK: Duration = Duration::from_millis(500);

/// Whether others used so much that figures are worth less.
pub fn busy(others: f64, cpus: usize) -> Option<String> {
    let share = others / cpus.max(1) as f64;
    (share > BUSY).then(|| format!("others used {:.0} % of its CPUs", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::Node;

    #[test]
    fn a_battery_that_empties_counts_and_that_of_a_mouse_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let supply = |name: &str, files: &[(&str, &str)]| {
            let at = dir.path().join("class/power_supply").join(name);
            fs::create_dir_all(&at).unwrap();
            files.iter().for_each(|(file, text)| fs::write(at.join(file), format!("{text}\n")).unwrap());
        };
        assert!(!on_battery(dir.path()));
        supply("AC", &[("type", "Mains"), ("online", "0")]);
        supply("hid", &[("type", "Battery"), ("status", "Discharging"), ("scope", "Device")]);
        supply("BAT0", &[("type", "Battery"), ("status", "Full")]);
        assert!(!on_battery(dir.path()));
        supply("BAT0", &[("type", "Battery"), ("status", "Discharging")]);
        assert!(on_battery(dir.path()));
    }

    #[test]
    fn pressure_and_little_memory_are_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(short_of_memory(dir.path()), None);
        fs::write(dir.path().join("meminfo"), "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 99 kB\n").unwrap();
        assert_eq!(short_of_memory(dir.path()).as_deref(), Some("10 % of it are available"));
        fs::write(dir.path().join("meminfo"), "MemTotal: 1000 kB\nMemAvailable: 100 kB\n").unwrap();
        assert_eq!(short_of_memory(dir.path()), None);
        fs::create_dir(dir.path().join("pressure")).unwrap();
        let text = |avg10: &str| format!("some avg10={avg10} avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00\n");
        for what in ["memory", "cpu"] {
            fs::write(dir.path().join("pressure").join(what), text("9.99")).unwrap();
        }
        assert_eq!((short_of_memory(dir.path()), waited_for_cpus(dir.path())), (None, None));
        for what in ["memory", "cpu"] {
            fs::write(dir.path().join("pressure").join(what), text("12.00")).unwrap();
        }
        assert!(short_of_memory(dir.path()).is_some_and(|why| why.contains("12 %")));
        assert!(waited_for_cpus(dir.path()).is_some_and(|why| why.contains("12 %")));
    }

    #[test]
    fn nodes_that_are_hidden_are_named() {
        let topology: Topology = [
            Node::new(NodeId(0), [0, 1].into_iter().collect(), 1),
            Node::new(NodeId(1), [2, 3].into_iter().collect(), 1),
            Node::new(NodeId(2), CpuSet::default(), 1),
        ]
        .into_iter()
        .collect();
        let hidden = |cpus: &str, nodes: &str| {
            let allowed = Allowed { cpus: cpus.parse().ok(), nodes: nodes.parse().ok() };
            allowed.hidden(&topology).iter().map(|n| n.0).collect::<Vec<_>>()
        };
        assert_eq!(hidden("0-3", "0-2"), [0; 0]);
        assert_eq!(hidden("0,2", "0-2"), [0; 0]);
        assert_eq!(hidden("0-1", "0-2"), [1]);
        assert_eq!(hidden("0-3", "0,1"), [2]);
        assert_eq!(Allowed::default().hidden(&topology), [NodeId(0); 0]);
    }

    #[test]
    fn idle_time_and_that_of_guests_is_not_used() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 1\n"), Some(63));
        assert_eq!(busy_ticks("cpu  1 2\n"), None);
        assert_eq!(busy(0.5, 4), Some("others used 12 % of its CPUs".to_owned()));
        assert_eq!(busy(0.4, 4), None);
    }
}
