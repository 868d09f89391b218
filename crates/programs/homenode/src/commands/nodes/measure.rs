//! `homenode nodes --measure`.
//!
//! **Problem.** A user waits a minute for figures. That they cannot be written must show before,
//! and figures that were half written must not be read.
//!
//! **Approach.** The new file is created beside the old one before anything is measured, and takes
//! its place when it is whole.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use command::args::{Global, MEASURED_FILE, seconds};
use measure::quiet::Refusal;
use measure::{MeasureError, Progress, Settings};
use topology::measured::{Measured, Pair, Point};

use crate::commands::replace::{Draft, Place};
use crate::commands::{plane, replace};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine;
use crate::output::table::Table;
use crate::output::units::{percent, rate, size};
use crate::output::{self, progress};
use crate::signals::Stop;

/// Options of `--measure`.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Longest time for measuring
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, requires = "measure")]
    pub seconds: f64,
    /// File for what was measured [default: /var/lib/homenode/nodes.json, or `measured` of
    /// homenode.toml]
    #[arg(long, value_name = "FILE", requires = "measure")]
    pub output: Option<PathBuf>,
    /// Measure on a battery, too, and let figures of a busy machine take the place of a quiet one's
    #[arg(long, requires = "measure")]
    pub force: bool,
}

/// A file that takes the place of another when it is whole.
struct Figures {
    path: PathBuf,
    draft: Option<Draft>,
    /// The directory, if it was made for it.
    made: Option<PathBuf>,
}

impl Figures {
    /// `usual`: the file for whose sake a directory is made.
    fn create(path: &Path, usual: &Path) -> Result<Self, Failure> {
        let hint = |failure: Failure| failure.hint("name another file with --output");
        if path.is_dir() {
            return Err(Failure::new(Exit::Io, format!("cannot write {}", path.display()), "it is a directory"));
        }
        replace::replaceable(path)?;
        let dir = path.parent().filter(|dir| usual.parent() == Some(dir) && !dir.exists());
        if let Some(dir) = dir {
            fs::create_dir_all(dir).map_err(|e| hint(Failure::io("create", dir, &e)))?;
        }
        let draft = Place::of(path).and_then(|place| place.draft(0o644));
        let draft = draft.map_err(|e| hint(Failure::io("write", path, &e)))?;
        Ok(Self { path: path.to_owned(), draft: Some(draft), made: dir.map(Path::to_owned) })
    }

    fn finish(mut self, text: &str) -> Result<(), Failure> {
        let Some(mut draft) = self.draft.take() else { return Ok(()) };
        let written = draft.file.write_all(text.as_bytes()).and_then(|()| draft.file.sync_all());
        written.and_then(|()| draft.publish()).map_err(|e| Failure::io("write", &self.path, &e))
    }
}

impl Drop for Figures {
    fn drop(&mut self) {
        self.draft = None;
        // Not empty once there are figures.
        let _ = self.made.as_ref().map(fs::remove_dir);
    }
}

pub fn run(global: &Global, args: &MeasureArgs, config: &Config) -> Result<Exit, Failure> {
    let path = args.output.clone().or_else(|| config.measured.clone()).unwrap_or_else(|| MEASURED_FILE.into());
    let figures = Figures::create(&path, Path::new(MEASURED_FILE))?;
    let stop = Stop::on_signals()?;
    let measured = measure(global, args.seconds, args.force, false, &stop)?;
    let json = serde_json::to_string_pretty(&measured).map_err(|e| Failure::io("write", &path, &e.into()))? + "\n";
    let kept = measured.busy.as_ref().filter(|_| !args.force && better(&path, &measured));
    let wrote = match kept {
        Some(_) => {
            let what = "its figures are of a quiet machine, or of more nodes (--force replaces them)";
            format!("kept {}: {what}\n", path.display())
        }
        None => {
            figures.finish(&json)?;
            format!("wrote {}\n", path.display())
        }
    };
    match global.json {
        true => output::print(&json)?,
        false => output::print(&(text(&measured) + &wrote))?,
    }
    Ok(if kept.is_some() { Exit::Partly } else { Exit::Done })
}

/// Whether there are figures of this machine from a quiet time, or of more pairs of nodes.
fn better(path: &Path, now: &Measured) -> bool {
    let fits = |then: &Measured| then.why_not(&now.topology, now.processor.as_deref()).is_none();
    Measured::read(path).is_ok_and(|then| (then.busy.is_none() || then.pairs.len() > now.pairs.len()) && fits(&then))
}

/// Measures for so many seconds at most, with a bar. `careful`: on a busy machine, only the times
/// of cached reads.
pub fn measure(global: &Global, seconds: f64, force: bool, careful: bool, stop: &Stop) -> Result<Measured, Failure> {
    // Without what was measured before: it may be of another machine.
    let sys = Path::new(machine::SYS);
    let topology = topology::sysfs::read(sys)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot tell this machine's nodes", &e))?;
    let settings = Settings {
        limit: Duration::from_secs_f64(seconds),
        step: None,
        most_bytes: measure::MOST_BYTES,
        force,
        careful,
        sys: sys.to_owned(),
        proc: plane::PROC.into(),
    };
    let bar = progress::bar(global.json, 1, "{wide_bar} {percent} %  {msg}  {elapsed}");
    let mut tell = |told: Progress| {
        bar.set_length(told.all as u64);
        bar.set_position(told.done as u64);
        bar.set_message(format!("CPUs of node {}, memory of node {}", told.cpu_node, told.memory_node));
    };
    let measured = measure::measure(&topology, &settings, &mut tell, &|| stop.requested());
    bar.finish_and_clear();
    measured.map_err(|e| failure(&e))
}

fn failure(error: &MeasureError) -> Failure {
    let (exit, hint) = match error {
        MeasureError::Refused(Refusal::Battery) => {
            (Exit::Partly, Some("--force measures all the same, and the figures say so"))
        }
        MeasureError::Refused(_) | MeasureError::Stopped => (Exit::Partly, None),
        MeasureError::TimeOver { .. } => (Exit::Partly, Some("--seconds allows more time")),
        MeasureError::TooShort { .. } => (Exit::Usage, Some("--seconds allows more time")),
        MeasureError::Failed { .. } => (Exit::Unsupported, None),
    };
    let failure = Failure::from_error(exit, "cannot measure", error);
    let failure = match error {
        MeasureError::Failed { .. } => failure,
        _ => failure.exiting(exit),
    };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

pub fn text(measured: &Measured) -> String {
    let mut text = String::new();
    let most = |points: &[Point]| points.iter().map(|p| p.bytes_per_s).fold(0.0, f64::max);
    // On a busy machine, `check` measures cached reads only.
    let known = |value: f64, said: fn(f64) -> String| if value > 0.0 { said(value) } else { "unknown".to_owned() };
    let mut table = Table::new(&[
        ">CPUs of node",
        ">memory of node",
        ">latency",
        ">reads",
        ">writes",
        ">2 reads, 1 write",
        ">4 KiB pread",
        ">1 MiB pread",
        ">spread",
    ]);
    for pair in &measured.pairs {
        let call = |bytes: u64| {
            let found = pair.cached.iter().find(|c| c.bytes == bytes);
            found.map_or("unknown".to_owned(), |c| format!("{:.2} µs", c.call_s * 1e6))
        };
        table.row([
            pair.cpu_node.to_string(),
            pair.memory_node.to_string(),
            known(pair.latency_s, ns),
            known(most(&pair.reads), rate),
            known(most(&pair.writes), rate),
            known(most(&pair.reads_2_writes_1), rate),
            call(4 << 10),
            call(1 << 20),
            pair.spread.map_or_else(|| "unknown".to_owned(), percent),
        ]);
    }
    text.push_str(&table.render());
    text.push_str("\nlatency under load:\n");
    let mut table = Table::new(&[">CPUs of node", ">memory of node", "load", "bandwidth and latency"]);
    for pair in &measured.pairs {
        for (load, points) in
            [("reads", &pair.reads), ("writes", &pair.writes), ("2 reads, 1 write", &pair.reads_2_writes_1)]
        {
            if points.is_empty() {
                continue;
            }
            let points = points.iter().filter_map(|p| Some(format!("{} {}", rate(p.bytes_per_s), ns(p.latency_s?))));
            let points: Vec<_> = points.collect();
            let points = if points.is_empty() { "needs a second CPU".to_owned() } else { points.join(", ") };
            table.row([pair.cpu_node.to_string(), pair.memory_node.to_string(), load.to_owned(), points]);
        }
    }
    text.push_str(&table.render());
    text.push('\n');
    text.push_str(&saved(measured));
    let busy = measured
        .busy
        .as_ref()
        .map(|why| format!("the machine was busy ({why}): its memory is at least as fast as these figures say"));
    text.push_str(&output::notes(busy.iter().chain(&measured.notes)));
    text.push_str(&format!("{} of memory, {:.1} s\n", size(measured.buffer_bytes), measured.took_s));
    text
}

/// What a local read saves: for each node with CPUs and memory, the times from it and from the
/// nearest other memory.
fn saved(measured: &Measured) -> String {
    let mut text = String::new();
    for local in measured.pairs.iter().filter(|pair| pair.cpu_node == pair.memory_node) {
        let others =
            measured.pairs.iter().filter(|pair| pair.cpu_node == local.cpu_node && pair.memory_node != pair.cpu_node);
        for remote in others {
            let shares: Vec<_> =
                local.cached.iter().filter_map(|near| share(near.bytes, near.call_s, remote)).collect();
            text.push_str(&format!(
                "on node {}, a cached read from node {} instead of node {}: {}\n",
                local.cpu_node,
                local.memory_node,
                remote.memory_node,
                shares.join(", ")
            ));
        }
    }
    if text.is_empty() {
        text.push_str("one pair of nodes: a read from another node cannot be measured here\n");
    }
    text
}

fn share(bytes: u64, near_s: f64, remote: &Pair) -> Option<String> {
    let far_s = remote.cached.iter().find(|c| c.bytes == bytes)?.call_s;
    let saved = 1.0 - near_s / far_s;
    let word = if saved < 0.0 { "longer" } else { "shorter" };
    Some(format!("{} {} {word}", size(bytes), percent(saved.abs())))
}

fn ns(seconds: f64) -> String {
    format!("{:.1} ns", seconds * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refusal left an empty directory behind.
    #[test]
    fn a_directory_that_was_made_for_nothing_goes_again() {
        let dir = tempfile::tempdir().unwrap();
        let usual = dir.path().join("homenode/nodes.json");
        drop(Figures::create(&usual, &usual).unwrap());
        assert!(!usual.parent().unwrap().exists());
        Figures::create(&usual, &usual).unwrap().finish("{}").unwrap();
        assert_eq!(fs::read_dir(usual.parent().unwrap()).unwrap().count(), 1);
        drop(Figures::create(&usual, &usual).unwrap());
        assert_eq!(fs::read_to_string(&usual).unwrap(), "{}");
    }

    #[test]
    fn only_a_quiet_machines_own_figures_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nodes.json");
        let figures = |busy: Option<&str>, processor: &str| -> Measured {
            serde_json::from_value(serde_json::json!({
                "version": 1, "homenode": "", "unix_s": 0, "took_s": 1.0, "processor": processor, "buffer_bytes": 0,
                "writes": "cached", "pairs": [], "busy": busy, "topology": topology::Topology::default()
            }))
            .unwrap()
        };
        let now = figures(Some("others used 43 % of its CPUs"), "P");
        assert!(!better(&path, &now));
        for (there, kept) in [(figures(None, "P"), true), (figures(None, "Q"), false), (now.clone(), false)] {
            fs::write(&path, serde_json::to_string(&there).unwrap()).unwrap();
            assert_eq!(better(&path, &now), kept, "{there:?}");
        }
        assert!(text(&now).contains("the machine was busy (others used 43 % of its CPUs)"), "{}", text(&now));
    }
}
