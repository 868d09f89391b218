//! Undoes what a crash left behind.

use std::path::Path;
use std::sync::Arc;

use act::Actor;
use act::watched::Unwatched;
use command::exit::{Exit, Failure};
use engine::{Finished, StateDir};
use linux::threads::Tasks;
use topology::Topology;

/// A plane that only undoes. That needs no topology, so sysfs is not read for one. `tasks`: who is
/// asked about threads before procfs.
pub fn plane(tasks: Option<Arc<dyn Tasks>>) -> Result<Actor<Unwatched>, Failure> {
    let mut actor = Actor::new(act::Settings::default(), Topology::default(), None)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot act on threads", &e))?;
    actor.ask(tasks);
    Ok(actor)
}

/// Undoes what this state directory lists.
///
/// # Errors
///
/// Another process uses the directory, or it cannot be used.
pub fn undo(state_dir: &Path, tasks: Option<Arc<dyn Tasks>>) -> Result<Finished, Failure> {
    let state = open_state(state_dir)?;
    engine::recover(&mut plane(tasks)?, &state)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot restore", &e))
}

/// Takes the state directory.
pub fn open_state(state_dir: &Path) -> Result<StateDir, Failure> {
    StateDir::open(state_dir).map_err(|e| unusable(&e))
}

/// The state directory is busy, or not to be trusted, or worse.
pub fn unusable(error: &engine::EngineError) -> Failure {
    let busy = matches!(error, engine::EngineError::Busy { .. });
    let exit = if busy { Exit::Busy } else { Exit::Unsupported };
    Failure::from_error(exit, "cannot use the state directory", error)
}
