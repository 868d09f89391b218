//! Starts `homenode-load` and learns the ids of its threads.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use serde::Deserialize;

/// A running `homenode-load`; killed when dropped.
pub struct Readers {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Its reading threads, in the order in which they started.
    pub threads: Vec<Reading>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Reading {
    pub tid: u32,
    pub file: PathBuf,
}

#[derive(Deserialize)]
struct Started {
    threads: Vec<Reading>,
}

impl Readers {
    /// Starts the program with these arguments and waits until its threads run.
    pub fn start<S: AsRef<OsStr>>(binary: &Path, args: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut child = Command::new(binary)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", binary.display()))?;
        let mut out = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut line = String::new();
        out.read_line(&mut line).context("homenode-load")?;
        match serde_json::from_str::<Started>(&line) {
            Ok(started) => Ok(Self { child, out, threads: started.threads }),
            Err(e) => {
                child.kill().and_then(|()| child.wait()).context("homenode-load could not be ended")?;
                Err(e).with_context(|| format!("homenode-load said {line:?}"))
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The ids of the threads that read `file`.
    pub fn of_file(&self, file: &Path) -> Vec<u32> {
        self.threads.iter().filter(|t| t.file == file).map(|t| t.tid).collect()
    }

    /// Waits until it ends by itself, and returns its last line.
    pub fn wait(mut self) -> Result<serde_json::Value> {
        let mut text = String::new();
        self.out.read_to_string(&mut text).context("homenode-load")?;
        self.child.wait().context("homenode-load")?;
        serde_json::from_str(&text).with_context(|| format!("homenode-load said {text:?}"))
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let ended = matches!(self.child.try_wait(), Ok(Some(_)));
        if !ended && self.child.kill().and_then(|()| self.child.wait()).is_err() {
            eprintln!("homenode-load (pid {}) could not be ended", self.child.id());
        }
    }
}
