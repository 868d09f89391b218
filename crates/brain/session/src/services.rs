//! Which service a process belongs to.
//!
//! **Problem.** People think in services; the kernel has control groups.
//!
//! **Approach.** [`Groups`] remembers the groups of processes, so that a window asks for few.
//!
//! **Limits.** A process that has joined another group shows up there some windows later.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use linux::cpuset;
use linux::threads::Threads;
pub use placement::services::{name, path};

/// Processes that are remembered before those that were idle for long are forgotten.
const MOST: usize = 20_000;
/// Windows after which an idle process may be forgotten.
const IDLE: u32 = 60;
/// Processes that are asked for in a window, at most; one takes some 20 µs.
#[derive(Clone, Copy, Debug)]
pub struct Asks {
    /// For the first time.
    pub new: usize,
    /// Again: a service's manager puts them into their group after they have started.
    pub again: usize,
}

impl Asks {
    /// Of a loop of windows, which must not be late.
    pub const FEW: Self = Self { new: 450, again: 50 };
    /// Of a command that tells each process's group.
    pub const ALL: Self = Self { new: usize::MAX, again: 500 };
}

/// The control group of a process, which started then: `/` for the root group; `None` if it has
/// ended or cannot be asked.
pub fn group(threads: &Threads, pid: u32, start_ns: Option<u64>) -> Option<String> {
    let groups = threads.cgroups(pid).ok().filter(|groups| !groups.is_empty())?;
    // Another process may have its id by now.
    if start_ns.is_some_and(|start| threads.started(pid).ok() != Some(start)) {
        return None;
    }
    Some(cpuset::group_name(&groups).unwrap_or_else(|| "/".to_owned()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: Arc<str>,
    pub group: Arc<str>,
}

/// A service, the window in which it was asked for, and the last one in which it was looked for.
type Asked = (Option<Service>, u32, u32);

/// The services of processes, as last seen.
#[derive(Debug)]
pub struct Groups {
    threads: Threads,
    /// By id and start time.
    processes: HashMap<(u32, u64), Asked>,
    window: u32,
    /// Windows until each was asked again.
    turn: u32,
    /// Of each window, and left in this one.
    asks: Asks,
    left: Asks,
}

impl Groups {
    /// Knows nothing yet. `proc_root` is a proc mount (`/proc`).
    pub fn new(proc_root: &Path, asks: Asks) -> Self {
        let threads = Threads::new(proc_root);
        Self { threads, processes: HashMap::new(), window: 0, turn: 1, asks, left: asks }
    }

    pub fn window(&mut self) {
        let window = self.window;
        if self.processes.len() > MOST {
            self.processes.retain(|_, (_, _, seen)| window - *seen < IDLE);
        }
        (self.window, self.left) = (window + 1, self.asks);
        self.turn = self.processes.len().div_ceil(self.asks.again).max(1) as u32;
    }

    /// The service of a process, by id and start time. `None` if it had ended before it could be
    /// asked, or too many others were asked in this window.
    pub fn service(&mut self, pid: u32, start_ns: Option<u64>) -> Option<Service> {
        let id = (pid, start_ns.unwrap_or(0));
        let window = self.window;
        let named = |group: String| Service { name: Arc::from(name(&group)), group: Arc::from(group) };
        let known = self.processes.get_mut(&id);
        let left = if known.is_some() { &mut self.left.again } else { &mut self.left.new };
        match known {
            Some((service, asked, seen)) => {
                *seen = window;
                // Those that were asked longest ago: all come round.
                if window - *asked >= self.turn && *left > 0 {
                    *left -= 1;
                    *asked = window;
                    // One that has ended keeps its last.
                    let now = group(&self.threads, pid, start_ns);
                    if let Some(now) = now.filter(|now| service.as_ref().is_none_or(|had| *had.group != **now)) {
                        *service = Some(named(now));
                    }
                }
                service.clone()
            }
            None if *left == 0 => None,
            None => {
                *left -= 1;
                let service = group(&self.threads, pid, start_ns).map(named);
                self.processes.insert(id, (service.clone(), window, window));
                service
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: usize = 500;
    const ASKED_AGAIN: usize = 50;

    fn called(groups: &mut Groups, pid: usize) -> Option<String> {
        groups.service(pid as u32, None).map(|service| service.name.to_string())
    }

    #[test]
    fn few_processes_are_asked_and_a_move_to_another_group_is_noticed() {
        let proc_root = tempfile::tempdir().unwrap();
        let of = |pid: usize, group: &str| {
            let dir = proc_root.path().join(pid.to_string());
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cgroup"), format!("0::{group}\n")).unwrap();
        };
        let mut groups = Groups::new(proc_root.path(), Asks { new: ASKED - ASKED_AGAIN, again: ASKED_AGAIN });
        of(1, "/first.service");
        groups.window();
        assert_eq!(called(&mut groups, 1).as_deref(), Some("first.service"));
        of(1, "/second.service");
        assert_eq!(called(&mut groups, 1).as_deref(), Some("first.service"), "once in a window");
        groups.window();
        assert_eq!(called(&mut groups, 1).as_deref(), Some("second.service"));
        // It has ended.
        std::fs::remove_dir_all(proc_root.path().join("1")).unwrap();
        groups.window();
        assert_eq!(called(&mut groups, 1).as_deref(), Some("second.service"));
        (2..=ASKED * 2).for_each(|pid| of(pid, "/many.service"));
        groups.window();
        let known = |groups: &mut Groups| (2..=ASKED * 2).filter(|p| called(groups, *p).is_some()).count();
        assert_eq!(known(&mut groups), ASKED - ASKED_AGAIN);
        groups.window();
        assert_eq!(known(&mut groups), 2 * (ASKED - ASKED_AGAIN));
        // Each of them comes round.
        (2..=ASKED * 2).for_each(|pid| of(pid, "/moved.service"));
        for _ in 0..4 * ASKED / ASKED_AGAIN {
            groups.window();
            known(&mut groups);
        }
        let moved = (2..=ASKED * 2).filter(|p| called(&mut groups, *p).as_deref() == Some("moved.service"));
        assert_eq!(moved.count(), 2 * ASKED - 1);
    }
}
