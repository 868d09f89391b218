//! `homenode restore`: undoes the moves that a crashed run left behind.

use engine::StateDir;
use serde_json::json;

use crate::cli::Global;
use crate::commands::{report, session};
use crate::exit::{Exit, Failure};
use crate::output;

/// Undoes what the state directory lists.
pub fn run(global: &Global) -> Result<Exit, Failure> {
    // Reads no configuration: a mistake there must not prevent undoing.
    if !global.state_dir.try_exists().map_err(|e| Failure::io("look at", &global.state_dir, &e))? {
        // Nothing has run since boot: do not create the directory only to find it empty.
        if global.json {
            output::print_json(&json!(engine::Finished::default()))?;
        } else {
            output::print(&format!("nothing to restore: {} does not exist\n", global.state_dir.display()))?;
        }
        return Ok(Exit::Done);
    }
    let state = open_state(global)?;
    let mut plane = session::open_act_only()?;
    let finished = engine::recover(&mut plane, &state)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot restore", &e))?;
    if global.json {
        output::print_json(&json!(finished))?;
    } else {
        output::print(&report::finished(&finished))?;
    }
    Ok(if finished.complete() { Exit::Done } else { Exit::Partly })
}

/// Takes the state directory.
pub fn open_state(global: &Global) -> Result<StateDir, Failure> {
    StateDir::open(&global.state_dir).map_err(|e| {
        let busy = matches!(e, engine::EngineError::Busy { .. });
        let exit = if busy { Exit::Busy } else { Exit::Unsupported };
        Failure::from_error(exit, "cannot use the state directory", &e)
    })
}
