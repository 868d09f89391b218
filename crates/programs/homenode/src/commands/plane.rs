//! Opens the host plane, for observing or only for undoing, and gives up privileges.

use std::io;
use std::path::Path;
use std::time::Duration;

use engine::Plane;
use host::HostPlane;
use linux::interference::{self, Interference};
use linux::privileges;
use observe::Scope;
use placement::{Snapshot, Traits};
use rustix::thread::CapabilitySet;

use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine;
pub use crate::machine::PROC;
use crate::options::{ObserveArgs, ScopeArgs};

/// Name of a process; empty if it is gone.
pub fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("{PROC}/{pid}/comm")).map(|name| name.trim_end().to_owned()).unwrap_or_default()
}

/// Opens a plane that observes the threads the user chose, or the process tree below `root`.
/// What the policy wants beside its threads and files is observed, too. `move_back`: moves remember
/// where data was.
pub fn open(
    config: &Config,
    args: &ObserveArgs,
    root: Option<u32>,
    policy: Traits,
    move_back: bool,
) -> Result<HostPlane, Failure> {
    if let Some(pid) = args.scope.pid.iter().find(|pid| !Path::new(PROC).join(pid.to_string()).exists()) {
        return Err(Failure::new(Exit::Usage, format!("process {pid}"), "no such process"));
    }
    if let Some(path) = args.scope.cgroup.as_deref() {
        control_group(path)?;
    }
    let scope = scope(&args.scope, root);
    linux::heap::give_back_freed();
    let topology = machine::read(Path::new(machine::SYS), config)?;
    let ranges = policy.wants_ranges.is_granted(topology.has_slow_memory());
    let observe = observe::Settings {
        exact: args.exact,
        steady: args.steady,
        scope,
        ranges,
        window: Duration::from_secs_f64(args.window.unwrap_or(config.engine.window_s)),
        ..observe::Settings::default()
    };
    let act = act::Settings {
        touch_own_affinity: args.scope.touch_own_affinity,
        beside_sched_ext: args.scope.beside_sched_ext || config.engine.beside_sched_ext,
        move_back,
        ..act::Settings::default()
    };
    // Whole thousandths: settings are compared.
    let budget_milli_cpus = (config.engine.budget.cpu * 1000.0).round() as u32;
    let settings = host::Settings {
        observe,
        act,
        mapped: policy.wants_mapped,
        idle: policy.wants_idle && ranges,
        budget_milli_cpus,
    };
    HostPlane::open(settings, topology).map_err(|e| {
        let failure = Failure::from_error(Exit::Unsupported, "cannot observe", &e);
        match failure.exit() {
            Exit::Unsupported => failure
                .hint("`homenode doctor` says what is missing; where, nodes, replay and plan --snapshot still work"),
            _ => failure,
        }
    })
}

/// The threads that the user chose, or the process tree below `root`.
pub fn scope(args: &ScopeArgs, root: Option<u32>) -> Scope {
    match (&args.cgroup, root) {
        (_, Some(pid)) => Scope::Tree(pid),
        (Some(path), None) => Scope::Cgroup(path.clone()),
        (None, None) if !args.pid.is_empty() => Scope::Pids(args.pid.clone()),
        (None, None) => Scope::All,
    }
}

/// Refuses what is no control group of version 2: nothing would be found in it.
fn control_group(path: &Path) -> Result<(), Failure> {
    let what = || format!("control group {}", path.display());
    let kind = rustix::fs::statfs(path)
        .map_err(|e| Failure::from_error(Exit::Io, what(), &io::Error::from(e)).hint(NAME_GROUP))?;
    let why = match kind.f_type {
        libc::CGROUP2_SUPER_MAGIC if path.is_dir() => return Ok(()),
        libc::CGROUP2_SUPER_MAGIC => "a control group is a directory",
        libc::CGROUP_SUPER_MAGIC => "this is a control group of version 1; homenode sees those of version 2",
        _ => "this is no control group",
    };
    Err(Failure::new(Exit::Usage, what(), why).hint(NAME_GROUP))
}

const NAME_GROUP: &str =
    "name a directory of the cgroup2 file system, below /sys/fs/cgroup, or a service of it as `homenode map` does";

/// Keeps only the capabilities that the moves of this policy need. Signalling a command that
/// changed its user needs one more.
pub fn move_only(policy: Traits, command: bool) -> Result<(), Failure> {
    let when = |needed: bool, set: CapabilitySet| if needed { set } else { CapabilitySet::empty() };
    let files = when(policy.moves_files, privileges::to_move_files());
    let memory = when(policy.moves_processes, privileges::to_move_memory());
    keep_only(privileges::to_move(Path::new(PROC)) | files | memory | when(command, CapabilitySet::KILL))
}

pub fn observe_only() -> Result<(), Failure> {
    keep_only(privileges::to_observe(Path::new(PROC)))
}

pub fn keep_only(keep: CapabilitySet) -> Result<(), Failure> {
    privileges::keep_only(keep)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot give up the privileges of root", &e))
}

/// Undoing comes before what the machine does otherwise: from now on the calling thread, and those
/// that it starts, have the highest priority of ordinary threads (nice -20). Without CAP_SYS_NICE
/// they keep theirs.
pub fn hurry() {
    if let Err(error) = rustix::process::setpriority_process(None, -20) {
        tracing::debug!(%error, "keeps its priority");
    }
}

pub fn observe(plane: &mut HostPlane, window: Duration) -> Result<Snapshot, Failure> {
    plane.observe(window).map_err(|e| Failure::from_error(Exit::Unsupported, "cannot observe", &e))
}

/// Finds other software that decides where threads run. Gives up once `stop` is true.
pub fn interference(stop: &dyn Fn() -> bool) -> Vec<Interference> {
    interference::detect(Path::new(PROC), Path::new(machine::SYS), stop)
}
