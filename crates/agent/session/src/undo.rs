//! Undoes what a crash left behind.

use std::path::Path;

use act::Actor;
use act::watched::Unwatched;
use command::exit::{Exit, Failure};
use engine::{Finished, StateDir};
use topology::Topology;

/// A plane that only undoes. That needs no topology, so sysfs is not read for one.
///
/// # Errors
///
/// procfs or sysfs cannot be read.
pub fn plane() -> Result<Actor<Unwatched>, Failure> {
    Actor::new(act::Settings::default(), Topology::default(), None, None)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot act on threads", &e))
}

/// Undoes what this state directory lists.
///
/// # Errors
///
/// Another process uses the directory, or it cannot be used.
pub fn undo(state_dir: &Path) -> Result<Finished, Failure> {
    let state = open_state(state_dir)?;
    engine::recover(&mut plane()?, &state).map_err(|e| Failure::from_error(Exit::Unsupported, "cannot restore", &e))
}

/// Takes the state directory.
///
/// # Errors
///
/// See [`unusable`].
pub fn open_state(state_dir: &Path) -> Result<StateDir, Failure> {
    StateDir::open(state_dir).map_err(|e| unusable(&e))
}

/// The state directory is busy, or not to be trusted, or worse.
pub fn unusable(error: &engine::EngineError) -> Failure {
    let busy = matches!(error, engine::EngineError::Busy { .. });
    let exit = if busy { Exit::Busy } else { Exit::Unsupported };
    Failure::from_error(exit, "cannot use the state directory", error)
}
