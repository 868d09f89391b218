//! `homenode move`: moves data to a node, once and by hand.
//!
//! **Problem.** A move takes up to hours and can stop half-way: by a signal, by pages that cannot
//! be moved, by a full node.
//!
//! **Approach.** Each kind of subject has a module of its own, which prepares a [`Copying`].
//! [`Pace`] steps through it. [`Done`] says what became of it, in words or as JSON.

mod by_hand;
mod files;
mod process;
mod volume;

use std::ops::Range;
use std::path::{Path, PathBuf};

use act::copying::Copying;
use clap::Args;
use command::args::{Global, pid};
use serde_json::{Value, json};
use topology::{NodeId, ProcessId, Topology};

use super::pace::Pace;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine;
use crate::output::units::{parse_positive_rate, parse_range, size};
use crate::output::{self, escape};
use crate::signals::Stop;

/// `homenode move`.
#[derive(Debug, Args)]
pub struct MoveArgs {
    /// Files to move
    #[arg(required_unless_present = "pid", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Process to move instead: its threads, then its memory
    #[arg(long, value_name = "PID", conflicts_with = "files", value_parser = pid)]
    pub pid: Option<u32>,
    /// Leave the memory of the process where it is
    #[arg(long, requires = "pid", conflicts_with = "files")]
    pub no_memory: bool,
    /// Node to move to
    #[arg(long, value_name = "NODE")]
    pub to: u32,
    /// Move only this part of each file: OFFSET+LENGTH, such as 1GiB+256MiB. Not of files on DAX or
    /// on a volume of homenode's own
    #[arg(long, value_name = "RANGE", value_parser = parse_range, conflicts_with = "pid")]
    pub range: Option<Range<u64>>,
    /// Most bytes to move in a second, such as 1GB/s [default: as fast as possible]
    #[arg(long, value_name = "RATE", value_parser = parse_positive_rate)]
    pub rate: Option<f64>,
}

pub fn run(global: &Global, args: &MoveArgs) -> Result<Exit, Failure> {
    let job = Job {
        topology: machine::read(Path::new(machine::SYS), &Config::default())?,
        to: NodeId(args.to),
        range: args.range.clone(),
        rate: args.rate,
        json: global.json,
        stop: Stop::on_signals()?,
    };
    output::detach();
    let done = match args.pid {
        Some(pid) => vec![process::run(&job, global, pid, !args.no_memory)?],
        None => files::run(&job, &args.files)?,
    };
    by_hand::write(&global.state_dir, &done);
    if global.json {
        output::print_json(&json!({"moved": done.iter().map(Done::json).collect::<Vec<_>>()}))?;
    }
    Ok(if done.iter().all(|d| d.why.is_none()) { Exit::Done } else { Exit::Partly })
}

/// The request, the same for each subject.
struct Job {
    pub topology: Topology,
    pub to: NodeId,
    /// Only these bytes of each file.
    pub range: Option<Range<u64>>,
    /// Most bytes a second.
    pub rate: Option<f64>,
    pub json: bool,
    pub stop: Stop,
}

/// A process as it was before its move.
struct Process {
    pub id: ProcessId,
    pub comm: String,
    /// Threads that are bound now.
    pub bound: usize,
}

struct Done {
    /// The subject's key in JSON (`path` or `pid`) and its value.
    pub subject: (&'static str, Value),
    pub to: NodeId,
    /// Bytes that were elsewhere.
    pub bytes: u64,
    /// Bytes of these that are on the target now.
    pub moved: u64,
    /// Bytes of these that could not be moved.
    pub failed: u64,
    /// Bytes that were on the target before.
    pub there: u64,
    pub seconds: f64,
    pub why: Option<String>,
    pub process: Option<Process>,
    /// Further keys of this kind of subject, for JSON.
    pub more: Vec<(&'static str, Value)>,
}

impl Done {
    /// A move that was not begun.
    pub fn refused(subject: (&'static str, Value), to: NodeId, why: String) -> Self {
        Self {
            subject,
            to,
            bytes: 0,
            moved: 0,
            failed: 0,
            there: 0,
            seconds: 0.0,
            why: Some(why),
            process: None,
            more: Vec::new(),
        }
    }

    fn json(&self) -> Value {
        let mut object = json!({
            self.subject.0: self.subject.1,
            "to": self.to,
            "bytes": self.bytes,
            "moved_bytes": self.moved,
            "failed_bytes": self.failed,
            "already_bytes": self.there,
            "seconds": self.seconds,
            "why": self.why,
        });
        for (key, value) in &self.more {
            object[*key] = value.clone();
        }
        object
    }

    /// One line for a person; `name` is the subject.
    pub fn line(&self, name: &str) -> String {
        let name = escape(name);
        let mut line = match (self.bytes, self.there) {
            (0, 0) => format!("{name}: nothing to move to node {}", self.to),
            (0, there) => format!("{name}: {} are on node {} already", size(there), self.to),
            (_, there) => {
                let before = if there > 0 { format!(", {} were there before", size(there)) } else { String::new() };
                format!("{name}: moved {} to node {} in {:.1} s{before}", size(self.moved), self.to, self.seconds)
            }
        };
        if let Some(why) = &self.why {
            line.push_str("; ");
            line.push_str(&escape(why));
        }
        line + "\n"
    }
}

/// Makes a move, step by step, until it is over or a signal comes.
fn drive(job: &Job, name: &str, subject: (&'static str, Value), work: &mut dyn Copying) -> Done {
    let pace = Pace { rate: job.rate, json: job.json, stop: &job.stop };
    let (took, stopped) = pace.drive(name, work);
    let after = work.copied();
    let (bytes_all, moved) = (after.total.saturating_sub(after.there), after.copied());
    let mut whys: Vec<String> = stopped.iter().cloned().collect();
    whys.extend(after.left.iter().map(|(why, n)| format!("{} stayed: {why}", size(*n))));
    let rest = bytes_all.saturating_sub(moved + after.failed());
    if rest > 0 {
        let what = if stopped.is_some() { "not tried" } else { "left the memory meanwhile" };
        whys.push(format!("{} {what}", size(rest)));
    }
    Done {
        subject,
        to: job.to,
        bytes: bytes_all,
        moved,
        failed: after.failed(),
        there: after.there,
        seconds: took.as_secs_f64(),
        why: (!whys.is_empty()).then(|| whys.join("; ")),
        process: None,
        more: Vec::new(),
    }
}
