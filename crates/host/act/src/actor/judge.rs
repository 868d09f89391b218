//! Which threads may be moved, and to which nodes.

use placement::Thread;
use topology::{CpuSet, ThreadId};

use super::{Actor, Seen};
use crate::mover::own_affinity;
use crate::watched::Births;

/// Where a thread may be moved to.
enum Leeway {
    /// Within the mask that was seen.
    AsSeen,
    /// Within these CPUs: its mask is a value of ours, or says nothing.
    Within(CpuSet),
    /// Nowhere, for this reason.
    Pinned(String),
}

impl<B: Births> Actor<B> {
    /// Completes a thread for the policies: the nodes it may run on, and the reason it must not be
    /// moved.
    pub fn complete(&mut self, seen: Seen) -> Thread {
        let Seen { mut thread, mask, asked, kernel_thread } = seen;
        let online = self.mover.defaults.online();
        // The task's own mask may contain offline CPUs; sched_getaffinity leaves them out.
        let mask = if mask.is_subset(online) {
            mask
        } else {
            let shown = mask.intersection(online);
            thread.allowed_nodes = self.machine.topology().nodes_of_cpus(&shown);
            shown
        };
        let leeway = if kernel_thread {
            Leeway::Pinned("is a kernel thread".to_owned())
        } else if thread.pid == self.own_pid {
            Leeway::Pinned("is homenode itself".to_owned())
        } else if let Some(scheduler) = &self.scheduler {
            Leeway::Pinned(format!("a sched_ext {scheduler} may treat a bound thread worse than others"))
        } else if mask == *online {
            // It may use every CPU, so its cpuset allows every CPU.
            Leeway::AsSeen
        } else {
            let key = thread.id();
            if asked == Some(false) {
                self.mover.not_asked(key, mask.clone());
            }
            self.leeway(key, &mask, asked)
        };
        // For most masks the observer has already filled in the nodes.
        thread.pinned = match leeway {
            Leeway::AsSeen => None,
            Leeway::Within(allowed) => {
                thread.allowed_nodes = self.machine.topology().nodes_of_cpus(&allowed);
                None
            }
            Leeway::Pinned(why) => Some(why),
        };
        thread
    }

    /// Where a thread may be moved to whose mask lacks some CPUs.
    fn leeway(&mut self, key: ThreadId, mask: &CpuSet, asked: Option<bool>) -> Leeway {
        let default = match self.mover.defaults.remembered(key) {
            Ok(default) => default,
            Err(why) => return Leeway::Pinned(format!("its cpuset is unknown: {why}")),
        };
        let spares_isolated = self.mover.defaults.spares_isolated(mask, &default);
        let touch_own = self.mover.rules.touch_own_affinity;
        match self.mover.moved(key) {
            Some(moved) if moved.holds(mask, &default) => match moved.unbound || touch_own {
                true => Leeway::Within(default),
                false => Leeway::Within(moved.before.clone()),
            },
            _ if *mask == default || touch_own => Leeway::Within(default),
            // Narrower than its cpuset, but nobody asked for that: the kernel was booted with
            // `isolcpus`, for example.
            _ if asked == Some(false) => Leeway::AsSeen,
            // The same value, after somebody has set it: we have put it back, for example.
            _ if spares_isolated => Leeway::AsSeen,
            _ => Leeway::Pinned(own_affinity(mask)),
        }
    }
}
