//! `homenode move FILE…`: a file's cached pages.

use std::path::PathBuf;

use host::act::pages::{self, FileMove, FileMoveError};
use serde_json::json;

use super::{Done, Job, drive};
use crate::exit::{Exit, Failure, chain};
use crate::output;

/// Moves one file after the other. A file that fails does not stop the others.
pub(super) fn run(job: &Job, files: &[PathBuf]) -> Result<Vec<Done>, Failure> {
    pages::target(&job.topology, job.to).map_err(|e| {
        let wrong = matches!(e, FileMoveError::Target { reason: "no_such_node" | "no_memory", .. });
        Failure::from_error(if wrong { Exit::Usage } else { Exit::Unsupported }, "move", &e)
    })?;
    let mut done = Vec::new();
    for path in files {
        let name = path.display().to_string();
        let subject = ("path", json!(path.to_string_lossy()));
        if job.stop.requested() {
            done.push(Done::refused(subject, job.to, "stopped by a signal before its turn".to_owned()));
            continue;
        }
        match FileMove::prepare(path, job.to) {
            Ok(mut work) => {
                let one = drive(job, &name, subject, &mut work);
                if !job.json {
                    output::print(&one.line(&name))?;
                }
                done.push(one);
            }
            Err(e) => {
                Failure::from_error(Exit::Partly, "move", &e).report(job.json);
                done.push(Done::refused(subject, job.to, chain(&e)));
            }
        }
    }
    Ok(done)
}
