//! Runs on disk, so that a measurement of hours can be interrupted.
//!
//! **Approach.** `runs.jsonl` begins with a line that says of which loads its runs are; then each
//! run is a line, appended and synced when it is done. Who is interrupted loses one run. A line
//! that a crash cut off is dropped.
//!
//! **Limits.** One measurement at a time writes to a file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The loads that runs are of. Runs of others are no runs of these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loads {
    /// Changes with any load.
    pub version: u32,
    pub scale: f64,
    pub seconds: f64,
    /// Emulated cores a node; `None`: those of each paper.
    #[serde(default)]
    pub cores: Option<u32>,
}

/// What one run has shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// In the figure's unit.
    pub value: f64,
    /// Share of bytes read from the other node, in the second half.
    pub remote: Option<f64>,
    /// Share of the second half's controller load (Eq. 1) that node 1 carried.
    pub elsewhere: Option<f64>,
    /// MB/s read and written by all programs, in the second half: what the unit does not count.
    pub carried: Option<[f64; 2]>,
    pub threads_moved: usize,
    pub files_moved: usize,
}

/// A run, with its paper, figure, load and policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    pub name: [String; 4],
    #[serde(flatten)]
    pub run: Run,
}

/// All runs so far.
pub struct State {
    path: PathBuf,
    loads: Loads,
    runs: BTreeMap<[String; 4], Vec<Run>>,
}

impl State {
    /// Reads a file, or begins it.
    pub fn open(path: &Path, loads: Loads) -> Result<Self> {
        let mut state = Self { path: path.to_owned(), loads, runs: BTreeMap::new() };
        match fs::read_to_string(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => state.append(&loads)?,
            Err(e) => return Err(e).with_context(|| path.display().to_string()),
            Ok(text) => {
                // The rest of a line that was being written.
                let whole = text.rfind('\n').map_or(0, |end| end + 1);
                if whole < text.len() {
                    let file = OpenOptions::new().write(true).open(path);
                    file.and_then(|file| file.set_len(whole as u64)).with_context(|| path.display().to_string())?;
                }
                match whole {
                    0 => state.append(&loads)?,
                    _ => state.read(path, &text[..whole])?.into_iter().for_each(|done| state.take(done)),
                }
            }
        }
        Ok(state)
    }

    /// Takes over the runs of another file.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        self.read(path, &text)?.iter().try_for_each(|done| self.put(done))
    }

    /// The runs of a paper, figure, load and policy.
    pub fn runs(&self, name: &[String; 4]) -> Vec<Run> {
        self.runs.get(name).cloned().unwrap_or_default()
    }

    /// Keeps a run.
    pub fn put(&mut self, done: &Done) -> Result<()> {
        self.append(done)?;
        self.take(done.clone());
        Ok(())
    }

    fn take(&mut self, done: Done) {
        self.runs.entry(done.name).or_default().push(done.run);
    }

    fn read(&self, path: &Path, text: &str) -> Result<Vec<Done>> {
        let mut lines = text.lines();
        let loads: Loads = parse(path, 1, lines.next().unwrap_or_default())?;
        ensure!(
            loads == self.loads,
            "{}: its runs are of other loads (version, --scale or --seconds): choose another --out",
            path.display()
        );
        lines.enumerate().map(|(i, line)| parse(path, i + 2, line)).collect()
    }

    fn append(&self, line: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        let written = file.and_then(|mut file: File| file.write_all(text.as_bytes()).and_then(|()| file.sync_data()));
        written.with_context(|| self.path.display().to_string())
    }
}

fn parse<T: DeserializeOwned>(path: &Path, number: usize, line: &str) -> Result<T> {
    serde_json::from_str(line).with_context(|| format!("{}, line {number}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADS: Loads = Loads { version: 3, scale: 200.0, seconds: 60.0, cores: None };

    fn done(load: &str, value: f64) -> Done {
        let run = Run { value, remote: None, elsewhere: None, carried: None, threads_moved: 1, files_moved: 0 };
        Done { name: ["nthread", "5a", load, "off"].map(str::to_owned), run }
    }

    fn values(state: &State, load: &str) -> Vec<f64> {
        state.runs(&done(load, 0.0).name).iter().map(|run| run.value).collect()
    }

    #[test]
    fn a_measurement_goes_on_where_it_was_interrupted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.jsonl");
        let mut state = State::open(&path, LOADS).unwrap();
        state.put(&done("rw80", 1.0)).unwrap();
        state.put(&done("rw60", 2.0)).unwrap();
        state.put(&done("rw80", 3.0)).unwrap();
        // In the middle of the next line.
        let whole = fs::read_to_string(&path).unwrap();
        let line = whole.lines().last().unwrap();
        for cut in [1, line.len() / 2, line.len()] {
            fs::write(&path, format!("{whole}{}", &line[..cut])).unwrap();
            let state = State::open(&path, LOADS).unwrap();
            assert_eq!((values(&state, "rw80"), values(&state, "rw60")), (vec![1.0, 3.0], vec![2.0]));
            assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        }
        // Also before the first line was whole.
        fs::write(&path, "{\"version\"").unwrap();
        assert_eq!(values(&State::open(&path, LOADS).unwrap(), "rw80"), Vec::<f64>::new());
        State::open(&path, LOADS).unwrap();
    }

    #[test]
    fn rounds_of_another_file_follow_and_other_loads_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [here, there] = ["a", "b"].map(|name| dir.path().join(name));
        State::open(&there, LOADS).unwrap().put(&done("rw80", 2.0)).unwrap();
        let mut state = State::open(&here, LOADS).unwrap();
        state.put(&done("rw80", 1.0)).unwrap();
        state.add(&there).unwrap();
        assert_eq!(values(&state, "rw80"), [1.0, 2.0]);
        assert_eq!(values(&State::open(&here, LOADS).unwrap(), "rw80"), [1.0, 2.0]);
        for other in [Loads { version: 2, ..LOADS }, Loads { scale: 100.0, ..LOADS }, Loads { seconds: 12.0, ..LOADS }]
        {
            let refused = State::open(&here, other).err().unwrap().to_string();
            assert!(refused.contains("other loads"), "{refused}");
        }
        fs::write(&here, fs::read_to_string(&here).unwrap() + "nonsense\n").unwrap();
        assert!(State::open(&here, LOADS).err().unwrap().to_string().contains("line 4"));
    }
}
