//! Opens the host plane, for observing or only for undoing, and gives up privileges.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::Plane;
use host::HostPlane;
use linux::interference::{self, Interference};
use linux::privileges;
use linux::threads::{Threads, is_gone};
use observe::Scope;
use observe::groups::Groups;
use placement::rules::{Does, Of, Pattern, Rule, Rules};
use placement::{Snapshot, Traits};
use rustix::thread::CapabilitySet;
use topology::ProcessId;

use super::absent;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine;
pub use crate::machine::PROC;
use crate::options::{ObserveArgs, ScopeArgs};

/// Name of a process; empty if it is gone.
pub fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("{PROC}/{pid}/comm")).map(|name| name.trim_end().to_owned()).unwrap_or_default()
}

/// Opens a plane that observes the threads in this scope. What the policy wants beside its threads
/// and files is observed, too. `move_back`: moves remember where data was.
pub fn open(
    config: &Config,
    args: &ObserveArgs,
    scope: Scope,
    policy: Traits,
    move_back: bool,
) -> Result<HostPlane, Failure> {
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

/// The threads that options choose, or the process tree below `root`, or all.
pub fn scope(args: &ScopeArgs, root: Option<u32>) -> Result<Scope, Failure> {
    match root {
        Some(pid) => Ok(Scope::Tree(pid)),
        None => Ok(Scope::Ruled(chosen(args)?.unwrap_or_default())),
    }
}

/// The threads that options choose; without such options all, with the rules of homenode.toml that
/// apply to them.
pub fn looked_at(args: &ScopeArgs, config: &Config) -> Result<Scope, Failure> {
    if let Some(rules) = chosen(args)? {
        return Ok(Scope::Ruled(rules));
    }
    let mut rules = config.rules();
    if rules.list.is_empty() {
        return Ok(Scope::default());
    }
    // Who looks wants to see all.
    rules.list.iter_mut().filter(|rule| rule.does == Does::Ignore).for_each(|rule| rule.does = Does::Observe);
    Ok(Scope::Ruled(rules))
}

/// Whether options choose threads.
pub fn is_chosen(args: &ScopeArgs) -> bool {
    let ScopeArgs { pid, unit, not_unit, cgroup, .. } = args;
    !(pid.is_empty() && unit.is_empty() && not_unit.is_empty() && cgroup.is_empty())
}

/// Rules for what options choose, if any do.
fn chosen(args: &ScopeArgs) -> Result<Option<Rules>, Failure> {
    if !is_chosen(args) {
        return Ok(None);
    }
    let ScopeArgs { pid, unit, not_unit, cgroup, .. } = args;
    let threads = Threads::new(Path::new(PROC));
    let process = |&pid: &u32| match threads.started(pid) {
        Ok(start_ns) => Ok(ProcessId::new(pid, start_ns)),
        Err(error) if is_gone(&error) => Err(Failure::new(Exit::Usage, format!("process {pid}"), "no such process")),
        Err(error) => Err(Failure::io("look at", &Path::new(PROC).join(pid.to_string()), &error)),
    };
    let processes = pid.iter().map(process).collect::<Result<Vec<_>, _>>()?;
    let mut groups = (!cgroup.is_empty()).then(|| Groups::new(Path::new(PROC)));
    let group = |dir: &PathBuf| {
        let id = control_group(dir)?;
        let path = groups.as_mut().and_then(|groups| groups.path(id));
        let path =
            path.ok_or_else(|| Failure::new(Exit::Usage, format!("control group {}", dir.display()), "it has ended"))?;
        Ok(Pattern::new(&Pattern::escape(&path)).unwrap_or_default())
    };
    let groups = cgroup.iter().map(group).collect::<Result<Vec<_>, Failure>>()?;
    let none = Of::default();
    let all = [
        ("--not-unit", Of { units: not_unit.clone(), ..none.clone() }, Does::Ignore),
        ("--pid", Of { processes, ..none.clone() }, Does::Move),
        ("--unit", Of { units: unit.clone(), ..none.clone() }, Does::Move),
        ("--cgroup", Of { groups, ..none }, Does::Move),
    ];
    let rule = |(name, of, does): (&str, Of, Does)| Rule { name: name.into(), of, does };
    let list: Vec<Rule> = all.into_iter().map(rule).filter(|rule| !rule.of.is_empty()).collect();
    let rest = if list.iter().any(|rule| rule.does == Does::Move) { Does::Ignore } else { Does::Move };
    let rules = Rules { list, rest };
    say_absent("", &rules);
    Ok(Some(rules))
}

/// Says on stderr which of these rules name a service that is not there. It may come later.
pub fn say_absent(what: &str, rules: &Rules) {
    for absent in absent::told(rules) {
        tracing::warn!("{what}{absent}");
    }
}

/// The id of a control group. Refuses what is none of version 2: nothing would be found in it.
fn control_group(path: &Path) -> Result<u64, Failure> {
    let what = || format!("control group {}", path.display());
    let failed = |e: io::Error| Failure::from_error(Exit::Io, what(), &e).hint(NAME_GROUP);
    let kind = rustix::fs::statfs(path).map_err(|e| failed(e.into()))?;
    let why = match kind.f_type {
        libc::CGROUP2_SUPER_MAGIC if path.is_dir() => {
            return std::fs::metadata(path).map(|dir| dir.ino()).map_err(failed);
        }
        libc::CGROUP2_SUPER_MAGIC => "a control group is a directory",
        libc::CGROUP_SUPER_MAGIC => "this is a control group of version 1; homenode sees those of version 2",
        _ => "this is no control group",
    };
    Err(Failure::new(Exit::Usage, what(), why).hint(NAME_GROUP))
}

const NAME_GROUP: &str =
    "name a directory of the cgroup2 file system, below /sys/fs/cgroup; --unit takes the name of a service";

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
