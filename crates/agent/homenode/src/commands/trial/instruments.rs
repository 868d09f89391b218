//! What only a trial measures: how long reads take, and what the processors count.
//!
//! **Problem.** Neither is in a window, because no policy needs it, and not every kernel and
//! machine has it.
//!
//! **Approach.** Opened once, read after each window, in all periods alike. How long reads take is
//! measured only if the user asks, as it makes them longer. What the processors cannot count is no
//! outcome, and a note says so.
//!
//! **Limits.** Where the counters need more open files than the limit allows, it is raised, also
//! for the commands that are started later.

use std::collections::BTreeMap;

use engine::Plane;
use host::HostPlane;
use host::processor::{Counted, Processors};
use observe::Scope;
use observe::times::{ReadTimes, Times};
use rustix::process::{Resource, getrlimit};

use super::outcome::{IPC, Outcome, READ_TIMES, REMOTE_LOADS};
use crate::exit::{Exit, Failure, errno_names};

/// The instruments.
pub struct Instruments {
    times: Option<ReadTimes>,
    processors: Processors,
}

/// What they showed of a window.
#[derive(Debug, Default)]
pub struct Seen {
    /// How long reads took, by process, if that is measured.
    pub times: Option<BTreeMap<u32, Times>>,
    /// Whether some timed reads are missing: the slowest first.
    pub lost: bool,
    /// Events of the observed threads.
    pub counted: Counted,
}

impl Instruments {
    /// Opens those that there are. The error says why reads cannot be timed.
    pub fn open(plane: &HostPlane, scope: &Scope, read_times: bool) -> Result<Self, Failure> {
        let times = read_times.then(|| ReadTimes::open(scope)).transpose().map_err(|why| {
            let failure = Failure::new(Exit::Unsupported, "cannot time reads (--read-times)", why);
            failure.hint("`homenode doctor` says whether this kernel has function hooks")
        })?;
        let cpus: Vec<u32> = plane.topology().cpus().iter().collect();
        let needed = if matches!(scope, Scope::Cgroup(_)) { 3 * cpus.len() as u64 } else { 0 };
        // Room for as many others as there are by default.
        if getrlimit(Resource::Nofile).current.is_some_and(|most| most < 512 + needed) && needed > 0 {
            linux::files::raise_limit();
        }
        Ok(Self { times, processors: Processors::open(scope, &cpus) })
    }

    /// The outcomes that they give.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let [cycles, instructions, remote_loads] = self.processors.known();
        let times = READ_TIMES.map(|(outcome, _)| (outcome, self.times.is_some()));
        let counted = [(IPC, cycles && instructions), (REMOTE_LOADS, instructions && remote_loads)];
        times.into_iter().chain(counted).filter(|(_, known)| *known).map(|(outcome, _)| outcome).collect()
    }

    /// What the processors do not count, and why.
    pub fn gap(&self) -> Option<String> {
        self.processors.gap().map(|gap| errno_names(&gap))
    }

    /// What they saw since the last call.
    pub fn take(&mut self) -> Result<Seen, Failure> {
        let counted = self.processors.take();
        let Some(times) = &mut self.times else { return Ok(Seen { counted, ..Seen::default() }) };
        let taken = times.take().map_err(|e| super::cannot(&e))?;
        let lost = times.take_lost();
        if lost > 0 {
            tracing::warn!(
                "--read-times: {lost} timed reads had no room: how long reads took in this period is unknown"
            );
        }
        Ok(Seen { times: Some(taken), lost: lost > 0, counted })
    }
}
