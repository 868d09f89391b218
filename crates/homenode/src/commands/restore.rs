//! `homenode restore`: puts back what a crashed run left behind.

use engine::StateDir;
use serde_json::json;

use crate::cli::Global;
use crate::commands::{report, session};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::output;

/// Undoes what the state directory lists.
pub fn run(global: &Global) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    if !global.state_dir.try_exists().map_err(|e| Failure::io("look at", &global.state_dir, &e))? {
        // Nothing has run since boot; to create the directory only to find it empty helps nobody.
        if global.json {
            output::print_json(&json!(engine::Finished::default()))?;
        } else {
            output::print(&format!("nothing to put back: {} does not exist\n", global.state_dir.display()))?;
        }
        return Ok(Exit::Done);
    }
    let state = open_state(global)?;
    let mut plane = session::open_act_only(&config)?;
    let finished = engine::recover(&mut plane, &state)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot put back", &e))?;
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
