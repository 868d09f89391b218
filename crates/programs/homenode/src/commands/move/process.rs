//! `homenode move --pid`: a process, its threads and its memory.
//!
//! **Problem.** A command ends, the affinities that it set stay, and it may be killed between two
//! of them.
//!
//! **Approach.** The undo records go to the state file first, as the daemon's do. A move that is
//! complete takes its records out again: the affinity is now the one that the user asked for, and
//! the output says how to undo it. A move that fails or is stopped is undone from its records;
//! after a crash `homenode restore` does that. Memory that has moved stays.
//!
//! **Limits.** A daemon that uses the same state directory must stop first.

use std::collections::BTreeMap;
use std::path::Path;

use act::mover::Rules;
use act::process::{self, ProcessMove};
use act::{Mover, copying};
use command::args::Global;
use engine::state::file::StateFile;
use engine::state::records::{Owned, Record};
use engine::{Plane, PlaneError, StateDir, Subject, Undo};
use serde_json::{Value, json};

use super::{Done, Job, Process, drive};
use session::undo;
use topology::{ProcessId, ThreadId};

use crate::commands::plane;
use crate::exit::{Exit, Failure};
use crate::machine;
use crate::output;
use crate::output::units::count;

pub(super) fn run(job: &Job, global: &Global, pid: u32, with_memory: bool) -> Result<Done, Failure> {
    let name = format!("process {pid}");
    let failure = |e: &PlaneError| failure(&name, e);
    let cannot_act = |e: std::io::Error| Failure::from_error(Exit::Unsupported, "cannot act on threads", &e);
    let mut mover =
        Mover::new(Path::new(plane::PROC), Path::new(machine::SYS), Rules::default()).map_err(cannot_act)?;
    let mut process = process::prepare(&mut mover, &job.topology, ProcessId::new(pid, None), job.to, with_memory)
        .map_err(|e| failure(&e))?;
    let comm = plane::name_of(pid);
    let mut records = Records::open(global)?;
    let bound = process.bind(&mut mover, &job.topology, &mut |undos| records.write(undos));
    let (mut done, whole) = match bound {
        Ok(_) => memory(job, &name, pid, &mut process),
        Err(error) => {
            let back = records.undo()?;
            let failure = failure(&error);
            return Err(if process.bound().is_empty() { failure } else { failure.hint(back) });
        }
    };
    match whole {
        true => records.forget()?,
        false => {
            let back = records.undo()?;
            let why = done.why.get_or_insert_default();
            why.push_str(&format!("; {back}"));
        }
    }
    let bound = if whole { process.bound().len() } else { 0 };
    done.process = Some(Process { id: process.id(), comm, bound });
    describe(&mut done, &process, bound, whole);
    if !job.json {
        output::print(&text(&name, &done, &process, whole))?;
    }
    Ok(done)
}

/// Why a process is not moved, with the exit codes that files have for the same.
fn failure(name: &str, error: &PlaneError) -> Failure {
    let (reason, why, cause) = match error {
        PlaneError::Gone { .. } => {
            return Failure::new(Exit::Usage, name, "there is no such process").errno(libc::ESRCH);
        }
        PlaneError::Refused { reason, why, cause } => (*reason, why.as_str(), cause),
        PlaneError::Broken(error) => return Failure::from_error(Exit::Partly, name, &**error),
    };
    let exit = match reason {
        "no_such_node" | "no_memory_on_node" | "itself" | "kernel_thread" | "not_a_process" => Exit::Usage,
        "mems_forbid_node" | "no_cpu_on_node" => Exit::Unsupported,
        _ => Exit::Partly,
    };
    match cause {
        Some(cause) => Failure::from_error(exit, why, &**cause),
        None => Failure::new(exit, name, why),
    }
}

fn subject(pid: u32) -> (&'static str, Value) {
    ("pid", json!(pid))
}

/// Moves the memory; returns whether the move is complete.
fn memory(job: &Job, name: &str, pid: u32, process: &mut ProcessMove) -> (Done, bool) {
    let Some(memory) = &mut process.memory else {
        let done = drive(job, name, subject(pid), &mut Nothing);
        let whole = done.why.is_none();
        return (done, whole);
    };
    let mut done = drive(job, name, subject(pid), memory);
    if memory.ended() {
        done.why = Some("the process ended, or started another program".to_owned());
    }
    (done, memory.complete())
}

/// The memory of a process that leaves it where it is.
struct Nothing;

impl copying::Copying for Nothing {
    fn step(&mut self, _: u64) -> std::io::Result<bool> {
        Ok(true)
    }

    fn copied(&self) -> copying::Copied {
        copying::Copied::default()
    }
}

fn describe(done: &mut Done, process: &ProcessMove, bound: usize, whole: bool) {
    let left: Vec<Value> = process.left().iter().map(|(tid, why)| json!({"tid": tid, "why": why})).collect();
    done.more = vec![("threads", json!(bound)), ("threads_left", json!(left))];
    if whole {
        done.more.push(("undo", json!(undo_by(process.bound()))));
    }
}

/// Shell commands that give threads their affinities back: one for each affinity.
fn undo_by(bound: &[Undo]) -> Vec<String> {
    let mut tids: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for undo in bound {
        if let (Subject::Thread(ThreadId { tid, .. }), Some(_)) = (&undo.subject, &undo.masks) {
            tids.entry(undo.before()).or_default().push(tid.to_string());
        }
    }
    let command = |(cpus, tids): (String, Vec<String>)| {
        format!("for tid in {}; do taskset --pid --cpu-list {cpus} $tid; done", tids.join(" "))
    };
    tids.into_iter().map(command).collect()
}

fn text(name: &str, done: &Done, process: &ProcessMove, whole: bool) -> String {
    let mut text = done.line(name);
    if !whole {
        return text;
    }
    text.push_str(&format!("bound {} to node {}", count(process.bound().len(), "thread"), done.to));
    match process.left() {
        [] => text.push('\n'),
        [(tid, why)] => text.push_str(&format!("; thread {tid} {why}\n")),
        left => text.push_str(&format!("; {} keep affinities of their own\n", count(left.len(), "thread"))),
    }
    for command in undo_by(process.bound()) {
        text.push_str(&format!("to undo: {command}\n"));
    }
    text
}

/// The records of this move in the state file, after those that a crashed run has left.
struct Records {
    dir: StateDir,
    file: StateFile,
    epoch: Option<String>,
    earlier: Vec<Owned>,
}

impl Records {
    fn open(global: &Global) -> Result<Self, Failure> {
        let dir = undo::open_state(&global.state_dir).map_err(|e| {
            e.hint("--state-dir DIR uses another directory; the daemon then takes the affinity for the program's own")
        })?;
        let failure = |e: engine::EngineError| Failure::from_error(Exit::Io, "cannot use the state directory", &e);
        let epoch = undo::plane(None)?.epoch();
        let loaded = dir.load().map_err(failure)?;
        // As `restore` has it: records of another run of the machine are void, and those of an
        // unknown one are not.
        let void = loaded.epoch.is_some() && epoch.is_some() && loaded.epoch != epoch;
        let earlier = if void { Vec::new() } else { loaded.owned };
        let file = StateFile::create(&dir, epoch.as_deref(), &earlier).map_err(failure)?;
        Ok(Self { dir, file, epoch, earlier })
    }

    /// Writes down what undoes the next affinities.
    fn write(&mut self, undos: &[Undo]) -> Result<(), PlaneError> {
        let hold = |undo: &Undo| Record::Hold { comm: String::new(), undo: undo.clone() };
        let holds: Vec<Record> = undos.iter().map(hold).collect();
        self.file.append(&holds, true).map_err(PlaneError::not_written)
    }

    /// Keeps the affinities: nothing of this move is to be undone.
    fn forget(self) -> Result<(), Failure> {
        engine::store(&self.dir, self.epoch.as_deref(), &self.earlier)
            .map_err(|e| Failure::from_error(Exit::Io, "`homenode restore` will undo this move", &e))
    }

    /// Undoes what the state file lists, as `homenode restore` does.
    fn undo(self) -> Result<String, Failure> {
        let finished = engine::recover(&mut undo::plane(observe::who::tasks(Path::new(plane::PROC)))?, &self.dir)
            .map_err(|e| Failure::from_error(Exit::Partly, "`homenode restore` undoes this move", &e))?;
        Ok(format!("restored the affinity of {}", count(finished.restored, "thread")))
    }
}

#[cfg(test)]
mod tests {
    use engine::Masks;

    use super::*;

    /// The errno was read out of the text of the refusal.
    #[test]
    fn a_refusal_of_the_kernel_has_its_errno_and_its_exit_code() {
        let eperm = || std::io::Error::from_raw_os_error(libc::EPERM);
        let line = |error| {
            let failure = failure("process 7", &error);
            (failure.line(), failure.exit())
        };
        let bound = PlaneError::failed("eperm", "the affinity of thread 8 cannot be set", eperm());
        let text = "the affinity of thread 8 cannot be set: Operation not permitted (EPERM)";
        assert_eq!(line(bound), (text.to_owned(), Exit::Unsupported));
        let cpuset = linux::named("/sys/fs/cgroup/a", eperm());
        let hidden = PlaneError::failed("cpuset_unknown", "its cpuset is unknown", cpuset);
        let text = "its cpuset is unknown: /sys/fs/cgroup/a: Operation not permitted (EPERM)";
        assert_eq!(line(hidden), (text.to_owned(), Exit::Unsupported));
        let kernel = PlaneError::refused("kernel_thread", "is a kernel thread (os error 1)");
        assert_eq!(line(kernel), ("process 7: is a kernel thread (os error 1)".to_owned(), Exit::Usage));
    }

    #[test]
    fn threads_with_one_affinity_are_undone_by_one_command() {
        let undo = |tid, before: &str| {
            let masks = Masks { before: before.parse().unwrap(), ours: "2-3".parse().unwrap(), unbound: true };
            let subject = Subject::Thread(ThreadId::new(tid, 1));
            Undo { subject, pid: 7, masks: Some(masks), payload: None }
        };
        assert_eq!(
            undo_by(&[undo(7, "0-3"), undo(9, "0-2"), undo(8, "0-3")]),
            [
                "for tid in 9; do taskset --pid --cpu-list 0-2 $tid; done",
                "for tid in 7 8; do taskset --pid --cpu-list 0-3 $tid; done"
            ]
        );
    }
}
