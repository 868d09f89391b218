//! What the processors count of the observed threads: cycles, instructions, and loads that another
//! node's memory served.
//!
//! **Problem.** Fewer instructions per cycle are what waiting for memory looks like. Virtual
//! machines seldom have such counters, and processors differ in them.
//!
//! **Approach.** The kernel's generic events, on each CPU, of all processes or of a control group.
//! What cannot be had is `None`, with the reason.
//!
//! **Limits.** Single processes are not counted: each of their threads, and those to come, would
//! need counters of its own. `node-load-misses` is what the kernel takes for loads from another
//! node; many processors have no such event. CPUs that come later are not counted, and once one has
//! gone nothing is. This never ran on a machine with such counters: its tests have made-up ones.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use observe::Scope;

use crate::perf::{self, Counter, Event};

/// `PERF_TYPE_HARDWARE` and `PERF_TYPE_HW_CACHE` of include/uapi/linux/perf_event.h, and their
/// codes.
const EVENTS: [(&str, Event); 3] = [
    ("cycles", Event { kind: 0, config: 0 }),
    ("instructions", Event { kind: 0, config: 1 }),
    // PERF_COUNT_HW_CACHE_NODE | OP_READ << 8 | RESULT_MISS << 16.
    ("loads from other nodes", Event { kind: 3, config: 6 | 1 << 16 }),
];

/// The open counters of each event, one for each CPU.
pub struct Processors([Result<Vec<Counter>, String>; 3]);

/// Events between two calls; `None` where they are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Cycles in which a CPU ran the observed threads.
    pub cycles: Option<f64>,
    /// Instructions that they executed.
    pub instructions: Option<f64>,
    /// Their loads that another node's memory served.
    pub remote_loads: Option<f64>,
}

impl Processors {
    /// Opens what can be opened on these CPUs.
    pub fn open(scope: &Scope, cpus: &[u32]) -> Self {
        let group = match scope {
            Scope::All => Ok(None),
            Scope::Cgroup(path) => File::open(path).map(Some).map_err(|e| e.to_string()),
            Scope::Pids(_) | Scope::Tree(_) => {
                Err("not counted for single processes, but for a control group".to_owned())
            }
        };
        Self::with(cpus, |event, cpu| {
            let group = group.as_ref().map_err(Clone::clone)?;
            perf::open(event, cpu, group.as_ref().map(AsRawFd::as_raw_fd)).map_err(|e| cause(&e))
        })
    }

    fn with(cpus: &[u32], open: impl Fn(Event, u32) -> Result<Counter, String>) -> Self {
        Self(EVENTS.map(|(_, event)| cpus.iter().map(|cpu| open(event, *cpu)).collect()))
    }

    /// What is not counted, and why: `cycles, instructions: …`; `None` if all is.
    pub fn gap(&self) -> Option<String> {
        let mut gaps: Vec<(Vec<&str>, &str)> = Vec::new();
        for ((what, _), opened) in EVENTS.iter().zip(&self.0) {
            let Err(why) = opened else { continue };
            match gaps.iter_mut().find(|(_, known)| known == why) {
                Some((names, _)) => names.push(what),
                None => gaps.push((vec![what], why)),
            }
        }
        let gaps: Vec<String> = gaps.iter().map(|(names, why)| format!("{}: {why}", names.join(", "))).collect();
        (!gaps.is_empty()).then(|| gaps.join("; "))
    }

    /// Events since the last call.
    pub fn take(&mut self) -> Counted {
        let mut sums = self.0.iter_mut().map(|opened| {
            let sum = match opened {
                Ok(counters) => counters.iter_mut().map(Counter::take).sum::<io::Result<f64>>(),
                Err(_) => return None,
            };
            // A CPU has gone: a sum without it would be another one.
            sum.map_err(|e| *opened = Err(cause(&e))).ok()
        });
        let mut next = || sums.next().flatten();
        Counted { cycles: next(), instructions: next(), remote_loads: next() }
    }

    /// Which of the three are counted.
    pub fn known(&self) -> [bool; 3] {
        [0, 1, 2].map(|event| self.0.get(event).is_some_and(Result::is_ok))
    }
}

fn cause(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => format!("the processor has no such counter ({error})"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::tests::readings;

    #[test]
    fn counters_of_all_cpus_are_added_up() {
        let mut processors = Processors::with(&[0, 3], |event, cpu| match event.kind {
            3 => Err("no such counter".to_owned()),
            _ => {
                let first = 100 * (1 + event.config) + u64::from(cpu);
                Ok(readings(&[[first, 10, 10], [first + 50, 20, 20]]))
            }
        });
        assert_eq!(processors.known(), [true, true, false]);
        assert_eq!(processors.gap().as_deref(), Some("loads from other nodes: no such counter"));
        let counted = |cycles, instructions| Counted { cycles, instructions, remote_loads: None };
        assert_eq!(processors.take(), counted(Some(203.0), Some(403.0)));
        assert_eq!(processors.take(), counted(Some(100.0), Some(100.0)));
        // A CPU has gone.
        assert_eq!(processors.take(), Counted::default());
        assert_eq!(processors.known(), [false; 3]);
    }

    #[test]
    fn what_cannot_be_counted_is_said_once() {
        let processors = Processors::open(&Scope::Pids(vec![1]), &[0]);
        let gap = processors.gap().unwrap();
        assert!(gap.starts_with("cycles, instructions, loads from other nodes: not counted for"), "{gap}");
        let processors = Processors::open(&Scope::Cgroup("/nowhere".into()), &[0]);
        assert!(processors.gap().unwrap().contains("No such file"), "{:?}", processors.gap());
    }
}
