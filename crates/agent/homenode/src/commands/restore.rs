//! `homenode restore`: undoes the moves that a crashed run left behind, and those of crashed servers of mounts.

use engine::{Finished, StateDir};
use serde_json::json;

use crate::cli::Global;
use crate::commands::{mounts, report, session};
use crate::exit::{Exit, Failure};
use crate::output;

/// Undoes what the state directory lists, and what those of mounts in it list.
pub fn run(global: &Global) -> Result<Exit, Failure> {
    // Reads no configuration: a mistake there must not prevent undoing.
    if !global.state_dir.try_exists().map_err(|e| Failure::io("look at", &global.state_dir, &e))? {
        // Nothing has run since boot: do not create the directory only to find it empty.
        if global.json {
            output::print_json(&json!(Finished::default()))?;
        } else {
            output::print(&format!("nothing to restore: {} does not exist\n", global.state_dir.display()))?;
        }
        return Ok(Exit::Done);
    }
    // A run that goes on, or a state that cannot be read, does not keep the other ones from being undone.
    let (mut all, mut failed) = (Finished::default(), None);
    match undo(global) {
        Ok(finished) => all = finished,
        Err(failure) => failed = Some(failure),
    }
    for state_dir in mounts::state_dirs(&global.state_dir)? {
        match undo(&Global { state_dir, ..global.clone() }) {
            Ok(finished) => add(&mut all, finished),
            // Its server runs, and undoes it when it ends.
            Err(failure) if failure.exit() == Exit::Busy => {}
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    if failed.is_none() || all != Finished::default() {
        match global.json {
            true => output::print_json(&json!(all))?,
            false => output::print(&report::finished(&all))?,
        }
    }
    failed.map_or_else(|| Ok(if all.complete() { Exit::Done } else { Exit::Partly }), Err)
}

/// Undoes what this state directory lists.
pub fn undo(global: &Global) -> Result<Finished, Failure> {
    let state = open_state(global)?;
    engine::recover(&mut session::open_act_only()?, &state)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot restore", &e))
}

fn add(all: &mut Finished, one: Finished) {
    all.restored += one.restored;
    all.inherited += one.inherited;
    all.changed_by_others += one.changed_by_others;
    all.gone += one.gone;
    all.copies += one.copies;
    all.moved_back += one.moved_back;
    all.not_moved_back += one.not_moved_back;
    all.failed += one.failed;
    all.notes.extend(one.notes);
}

/// Takes the state directory.
pub fn open_state(global: &Global) -> Result<StateDir, Failure> {
    StateDir::open(&global.state_dir).map_err(|e| unusable(&e))
}

/// The state directory is busy, or not to be trusted, or worse.
pub fn unusable(error: &engine::EngineError) -> Failure {
    let busy = matches!(error, engine::EngineError::Busy { .. });
    let exit = if busy { Exit::Busy } else { Exit::Unsupported };
    Failure::from_error(exit, "cannot use the state directory", error)
}
