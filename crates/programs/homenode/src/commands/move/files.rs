//! `homenode move FILE…`: a file's cached pages, or its blocks if it is on DAX or on a volume.

use std::path::PathBuf;

use act::dax::DaxMove;
use act::pages::{self, FileMove, FileMoveError};
use linux::residency::open::{self, Opened};
use linux::volume;
use serde_json::{Value, json};

use super::volume::VolumeMove;
use super::{Done, Job, drive};
use crate::exit::{Exit, Failure, chain};
use crate::output;
use crate::output::units::within;

/// Moves one file after the other. A file that fails does not stop the others.
///
/// # Errors
///
/// Nothing was moved, and no other file can be: this machine cannot move pages to the node. A
/// volume may have nodes of its own, which its server knows.
pub(super) fn run(job: &Job, files: &[PathBuf]) -> Result<Vec<Done>, Failure> {
    let mut done = Vec::new();
    for path in files {
        let name = path.display().to_string();
        let subject = ("path", json!(linux::shown(path.as_os_str())));
        if job.stop.requested() {
            done.push(Done::refused(subject, job.to, "stopped by a signal before its turn".to_owned()));
            continue;
        }
        let moved = match open::open(path) {
            Ok(file) if volume::place(&file.fd).is_ok_and(|place| place.is_some()) => {
                match VolumeMove::start(file, job) {
                    Ok(work) => Ok(work.make(job, &name, &subject)),
                    // As where the node is wrong, or nothing may be moved at all.
                    Err(failure) if files.len() == 1 => return Err(failure),
                    Err(failure) => Err((failure.line(), failure)),
                }
            }
            opened => match target(job) {
                Ok(()) => opened
                    .map_err(FileMoveError::from)
                    .and_then(|file| one(job, file, &name, &subject))
                    .map_err(|e| (chain(&e), Failure::from_error(Exit::Partly, "move", &e))),
                Err(failure) if done.is_empty() => return Err(failure),
                Err(failure) => Err((failure.line(), failure)),
            },
        };
        match moved {
            Ok(one) => {
                if !job.json {
                    output::print(&one.line(&name))?;
                }
                done.push(one);
            }
            Err((why, failure)) => {
                failure.report(job.json);
                done.push(Done::refused(subject, job.to, why));
            }
        }
    }
    Ok(done)
}

/// Whether pages can be moved to the node at all.
fn target(job: &Job) -> Result<(), Failure> {
    pages::target(&job.topology, job.to).map_err(|e| {
        let wrong = matches!(e, FileMoveError::Target { reason: "no_such_node" | "no_memory", .. });
        Failure::from_error(if wrong { Exit::Usage } else { Exit::Unsupported }, "move", &e)
    })
}

fn one(job: &Job, file: Opened, name: &str, subject: &(&'static str, Value)) -> Result<Done, FileMoveError> {
    if file.dax && job.range.is_none() {
        let mut work = DaxMove::of_opened(&file, job.to)?;
        return Ok(drive(job, name, subject.clone(), &mut work));
    }
    let range = job.range.clone().unwrap_or(0..u64::MAX);
    let refused = |why| FileMoveError::Refused { path: file.path.clone(), to: job.to, reason: "range", why };
    within(&range, file.size).map_err(refused)?;
    let mut work = FileMove::of_opened(file, &range, job.to)?;
    Ok(drive(job, name, subject.clone(), &mut work))
}
