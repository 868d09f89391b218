//! Opening the host plane: for observing, or only for putting back.

use std::path::Path;
use std::time::Duration;

use engine::Plane;
use host::HostPlane;
use host::interference::{self, Interference};
use host::observe::{self, Scope};
use placement::Snapshot;

use crate::cli::ObserveArgs;
use crate::commands::nodes;
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// The kernel's procfs.
pub const PROC: &str = "/proc";

/// A plane that observes the threads the user chose, or the tree of processes below `root`.
pub fn open(config: &Config, args: &ObserveArgs, root: Option<u32>) -> Result<HostPlane, Failure> {
    if let Some(pid) = args.scope.pid.iter().find(|pid| !Path::new(PROC).join(pid.to_string()).exists()) {
        return Err(Failure::new(Exit::Usage, format!("process {pid}"), "there is none"));
    }
    let scope = match (&args.scope.cgroup, root) {
        (_, Some(pid)) => Scope::Tree(pid),
        (Some(path), None) => Scope::Cgroup(path.clone()),
        (None, None) if !args.scope.pid.is_empty() => Scope::Pids(args.scope.pid.clone()),
        (None, None) => Scope::All,
    };
    host::memory::give_back_freed();
    let observe = observe::Settings { exact: args.exact, steady: args.steady, scope, ..observe::Settings::default() };
    let topology = nodes::read(Path::new(nodes::SYS), config)?;
    let touch_own_affinity = args.scope.touch_own_affinity;
    let settings = host::Settings { observe, touch_own_affinity, ..host::Settings::default() };
    HostPlane::open(settings, topology).map_err(|e| {
        let failure = Failure::from_error(Exit::Unsupported, "cannot observe", &e);
        match failure.exit() {
            Exit::Unsupported => failure.hint(
                "`homenode doctor` says what is missing; where, nodes, replay and plan --snapshot work all the same",
            ),
            _ => failure,
        }
    })
}

/// A plane that can only put back.
pub fn open_act_only(config: &Config) -> Result<HostPlane, Failure> {
    let topology = nodes::read(Path::new(nodes::SYS), config)?;
    HostPlane::open_act_only(host::Settings::default(), topology)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot act on threads", &e))
}

/// One window.
pub fn observe(plane: &mut HostPlane, window: Duration) -> Result<Snapshot, Failure> {
    plane.observe(window).map_err(|e| Failure::from_error(Exit::Unsupported, "cannot observe", &e))
}

/// Who else decides where threads run.
pub fn interference() -> Vec<Interference> {
    interference::detect(Path::new(PROC), Path::new(nodes::SYS))
}
