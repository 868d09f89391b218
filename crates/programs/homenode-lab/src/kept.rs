//! Runs of a figure that are kept beside its tables, so that the same command goes on after it was
//! interrupted.
//!
//! **Approach.** `FIGURE.runs` begins with a line that says what was run: this program and the
//! text of the experiment. A line for each run follows. A file that begins otherwise is begun anew;
//! what stands from a line that cannot be read on is run again. A run of the user's own program is
//! not kept: it may be another by then.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use laboratory::experiment::{Case, Experiment, Outcome, PROGRAM};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    program: (u64, u64),
    factor: f64,
    experiment: String,
    /// When each recording that it names was written last, in ns.
    recordings: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    point: String,
    series: String,
    seed: u64,
    outcome: Outcome,
}

/// Bytes of this program, and when it was made, in ns.
fn program() -> std::io::Result<(u64, u64)> {
    let about = std::env::current_exe()?.metadata()?;
    Ok((about.len(), written_ns(&about)?))
}

fn written_ns(about: &std::fs::Metadata) -> std::io::Result<u64> {
    let age = about.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(age.as_nanos() as u64)
}

pub struct Kept {
    file: File,
    known: Vec<Line>,
}

impl Kept {
    /// Opens or begins it. `text` is that of the experiment, as changed.
    pub fn open(path: &Path, text: &str, experiment: &Experiment) -> std::io::Result<Self> {
        let recordings = experiment.recordings().map(|path| written_ns(&path.metadata()?)).collect::<Result<_, _>>()?;
        let head = Head { program: program()?, factor: experiment.factor, experiment: text.to_owned(), recordings };
        let (mut known, mut whole) = (Vec::new(), 0);
        let text = match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            if whole == 0 {
                if !serde_json::from_slice::<Head>(line).is_ok_and(|first| first == head) {
                    break;
                }
            } else {
                let Ok(run) = serde_json::from_slice(line) else { break };
                known.push(run);
            }
            whole += line.len() as u64;
        }
        let mut file = File::options().create(true).append(true).open(path)?;
        file.set_len(whole)?;
        if whole == 0 {
            writeln!(file, "{}", serde_json::to_string(&head)?)?;
        }
        Ok(Self { file, known })
    }

    /// What a run has shown, if it is kept.
    pub fn find(&self, experiment: &Experiment, case: Case, seed: u64) -> Option<&Outcome> {
        let (point, series) = names(experiment, case)?;
        let same = |line: &&Line| line.point == point && line.series == series && line.seed == seed;
        self.known.iter().find(same).map(|line| &line.outcome)
    }

    pub fn add(&mut self, experiment: &Experiment, case: Case, seed: u64, outcome: &Outcome) -> std::io::Result<()> {
        let Some((point, series)) = names(experiment, case) else { return Ok(()) };
        let line = Line { point: point.to_owned(), series: series.to_owned(), seed, outcome: outcome.clone() };
        // One write: two commands that share a file do not mix their lines.
        self.file.write_all((serde_json::to_string(&line)? + "\n").as_bytes())
    }
}

/// Point and series of a run that is kept.
fn names(experiment: &Experiment, case: Case) -> Option<(&str, &str)> {
    let (point, series) = (experiment.point.get(case.point)?, experiment.series.get(case.series)?);
    let program = series.policy.as_deref().is_some_and(|policy| policy.starts_with(PROGRAM));
    (!program).then_some((point.name.as_str(), series.name.as_str()))
}
