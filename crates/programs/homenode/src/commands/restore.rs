//! `homenode restore`: undoes the moves that a crashed run left behind, and those of crashed
//! servers of mounts.

use std::path::Path;

use command::args::Global;
use engine::Finished;
use session::undo::undo;
use session::{published, report};

use crate::commands::plane;
use crate::exit::{Exit, Failure};
use crate::output;

/// Undoes what the state directory lists, and what those of mounts in it list.
pub fn run(global: &Global) -> Result<Exit, Failure> {
    // Reads no configuration: a mistake there must not prevent undoing.
    if !global.state_dir.try_exists().map_err(|e| Failure::io("look at", &global.state_dir, &e))? {
        // Nothing has run since boot: do not create the directory only to find it empty.
        let nothing = || format!("nothing to restore: {} does not exist\n", global.state_dir.display());
        output::tell(global.json, &Finished::default(), nothing)?;
        return Ok(Exit::Done);
    }
    // A run that goes on, or a state that cannot be read, does not keep the other ones from being
    // undone.
    let (mut all, mut failed) = (Finished::default(), None);
    plane::hurry();
    let tasks = observe::who::tasks(Path::new(plane::PROC));
    match undo(&global.state_dir, tasks.clone()) {
        Ok(finished) => all = finished,
        Err(failure) => failed = Some(failure),
    }
    for state_dir in published::state_dirs(&global.state_dir)? {
        match undo(&state_dir, tasks.clone()) {
            Ok(one) => {
                all.add_numbers(&one);
                all.notes.extend(one.notes);
            }
            // Its server runs, and undoes it when it ends.
            Err(failure) if failure.exit() == Exit::Busy => {}
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    if failed.is_none() || all != Finished::default() {
        output::tell(global.json, &all, || report::finished(&all))?;
    }
    failed.map_or_else(|| Ok(if all.complete() { Exit::Done } else { Exit::Partly }), Err)
}
