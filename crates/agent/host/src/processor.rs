//! What the processors count of a control group: cycles, instructions, and loads that another
//! node's memory served.
//!
//! **Problem.** Fewer instructions per cycle are what waiting for memory looks like. Virtual
//! machines seldom have such counters, and processors differ in them.
//!
//! **Approach.** The kernel's generic events, on each CPU, of the processes in a control group.
//! Cycles and instructions are in one group of events, so that both count at the same times. What
//! cannot be had is `None`, with the reason.
//!
//! **Limits.** All processes together are not counted, because homenode's own moves would be in it;
//! nor are single processes: each of their threads, and those to come, would need counters of its
//! own. `node-load-misses` is what the kernel takes for loads from another node; many processors
//! have no such event. CPUs that come later, or go and come back, are not counted. This never ran
//! on a machine with such counters: its tests have made-up ones.

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
    /// Opens what can be opened on these CPUs, which takes three descriptors for each.
    pub fn open(scope: &Scope, cpus: &[u32]) -> Self {
        let group = match scope {
            Scope::Cgroup(path) => File::open(path).map_err(|e| e.to_string()),
            Scope::All | Scope::Pids(_) | Scope::Tree(_) => {
                Err("only counted for a control group (--cgroup)".to_owned())
            }
        };
        Self::with(cpus, |event, cpu, leader| {
            let group = group.as_ref().map_err(Clone::clone)?.as_raw_fd();
            perf::open(event, cpu, Some(group), leader).map_err(|error| {
                // Whether it is the group or the processor, the error does not tell.
                match perf::open(event, cpu, None, None) {
                    Ok(_) => format!("not counted for this control group ({error})"),
                    Err(error) => cause(&error, cpu),
                }
            })
        })
    }

    fn with(cpus: &[u32], open: impl Fn(Event, u32, Option<&Counter>) -> Result<Counter, String>) -> Self {
        let all = |(_, event): (&str, Event), leaders: Option<&Vec<Counter>>| {
            let leader = |n| leaders.and_then(|leaders| leaders.get(n));
            cpus.iter().enumerate().map(|(n, cpu)| open(event, *cpu, leader(n))).collect::<Result<Vec<_>, _>>()
        };
        let [cycles, instructions, loads] = EVENTS;
        let cycles = all(cycles, None);
        let instructions = all(instructions, cycles.as_ref().ok());
        Self([cycles, instructions, all(loads, None)])
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

    /// Events since the last call. Where one of the CPUs did not count, the sum is not known.
    pub fn take(&mut self) -> Counted {
        let mut sums = self.0.iter_mut().map(|opened| {
            let counters = opened.as_mut().ok()?;
            // All are read: the next sum begins here for each.
            let all: Vec<io::Result<Option<f64>>> = counters.iter_mut().map(Counter::take).collect();
            let sum = all.into_iter().sum::<io::Result<Option<f64>>>();
            sum.map_err(|e| *opened = Err(e.to_string())).ok().flatten()
        });
        let mut next = || sums.next().flatten();
        Counted { cycles: next(), instructions: next(), remote_loads: next() }
    }

    /// Which of the three are counted.
    pub fn known(&self) -> [bool; 3] {
        [0, 1, 2].map(|event| self.0.get(event).is_some_and(Result::is_ok))
    }
}

fn cause(error: &io::Error, cpu: u32) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP) => format!("the processor has no such counter ({error})"),
        Some(libc::ENODEV) => format!("CPU {cpu} is offline ({error})"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::tests::readings;

    #[test]
    fn counters_of_all_cpus_are_added_up() {
        let mut processors = Processors::with(&[0, 3], |event, cpu, leader| {
            assert_eq!(leader.is_some(), event == EVENTS[1].1, "{event:?}");
            if event.kind == 3 {
                return Err("no such counter".to_owned());
            }
            let first = 100 * (1 + event.config) + u64::from(cpu);
            // CPU 0 does not run it the second time.
            let ran = if cpu == 0 { 10 } else { 20 };
            Ok(readings(&[[first, 10, 10], [first, 20, ran], [first + 50, 30, ran + 10]]))
        });
        assert_eq!(processors.known(), [true, true, false]);
        assert_eq!(processors.gap().as_deref(), Some("loads from other nodes: no such counter"));
        let counted = |cycles, instructions| Counted { cycles, instructions, remote_loads: None };
        assert_eq!(processors.take(), counted(Some(203.0), Some(403.0)));
        assert_eq!(processors.take(), Counted::default());
        assert_eq!(processors.take(), counted(Some(100.0), Some(100.0)));
        // They cannot be read any more.
        assert_eq!(processors.take(), Counted::default());
        assert_eq!(processors.known(), [false; 3]);
    }

    #[test]
    fn what_cannot_be_counted_is_said_once() {
        for scope in [Scope::Pids(vec![1]), Scope::All] {
            let gap = Processors::open(&scope, &[0]).gap().unwrap();
            assert!(gap.starts_with("cycles, instructions, loads from other nodes: only counted for"), "{gap}");
        }
        let processors = Processors::open(&Scope::Cgroup("/nowhere".into()), &[0]);
        assert!(processors.gap().unwrap().contains("No such file"), "{:?}", processors.gap());
        let cause = |errno| cause(&io::Error::from_raw_os_error(errno), 3);
        assert!(cause(libc::ENODEV).starts_with("CPU 3 is offline"), "{}", cause(libc::ENODEV));
        assert!(cause(libc::ENOENT).starts_with("the processor has no such counter"), "{}", cause(libc::ENOENT));
    }
}
