//! `homenode move FILE…`: a file's cached pages, or its blocks if it is on DAX or on a volume.

use std::path::{Path, PathBuf};
use std::time::Duration;

use act::dax::DaxMove;
use act::pages::{self, FileMove, FileMoveError};
use serde_json::{Value, json};

use super::volume::VolumeMove;
use super::{Done, Job, drive};
use crate::exit::{Exit, Failure, chain};
use crate::output;

/// Moves one file after the other. A file that fails does not stop the others.
pub(super) fn run(job: &Job, files: &[PathBuf]) -> Result<Vec<Done>, Failure> {
    // A volume may have nodes of its own, which its server knows.
    if files.iter().any(|path| !super::volume::has(path)) {
        pages::target(&job.topology, job.to).map_err(|e| {
            let wrong = matches!(e, FileMoveError::Target { reason: "no_such_node" | "no_memory", .. });
            Failure::from_error(if wrong { Exit::Usage } else { Exit::Unsupported }, "move", &e)
        })?;
    }
    let mut done = Vec::new();
    for path in files {
        let name = path.display().to_string();
        let subject = ("path", json!(path.to_string_lossy()));
        if job.stop.requested() {
            done.push(Done::refused(subject, job.to, "stopped by a signal before its turn".to_owned()));
            continue;
        }
        match VolumeMove::start(path, job) {
            Ok(None) => {}
            Ok(Some(mut work)) => {
                let one = work.make(job, &name, &subject);
                if !job.json {
                    output::print(&one.line(&name))?;
                }
                done.push(one);
                continue;
            }
            // As where the node of all files is wrong, or nothing may be moved at all.
            Err(failure) if files.len() == 1 => return Err(failure),
            Err(failure) => {
                failure.report(job.json);
                done.push(Done::refused(subject, job.to, failure.line()));
                continue;
            }
        }
        match one(job, path, &name, &subject) {
            Ok((one, stall)) => {
                if !job.json {
                    output::print(&one.line(&name))?;
                    if !stall.is_zero() {
                        let most = stall.as_secs_f64() * 1e3;
                        output::print(&format!(
                            "  processes that map it were stopped for at most {most:.0} ms at a time\n"
                        ))?;
                    }
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

/// Moves one file. Also returns the longest time for which processes were stopped.
fn one(job: &Job, path: &Path, name: &str, subject: &(&'static str, Value)) -> Result<(Done, Duration), FileMoveError> {
    let range = job.range.clone().unwrap_or(0..u64::MAX);
    match FileMove::of_range(path, &range, job.to) {
        Ok(mut work) => Ok((drive(job, name, subject.clone(), &mut work), Duration::ZERO)),
        Err(FileMoveError::Refused { reason: "dax", .. }) if job.range.is_none() => {
            let mut work = DaxMove::open(path, job.to, job.freeze)?;
            let done = drive(job, name, subject.clone(), &mut work);
            Ok((done, work.longest_stall()))
        }
        Err(e) => Err(e),
    }
}
