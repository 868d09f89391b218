//! Starts homenode as a user does, and reads its JSON lines.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

/// One window of `homenode run --json`: the fields that the laboratory uses.
#[derive(Clone, Debug, Deserialize)]
pub struct Window {
    /// Number, from 1.
    pub window: u64,
    /// Length in seconds, as measured.
    pub window_s: f64,
    /// Share of file bytes read from another node; absent where nothing was read.
    pub remote_share: Option<f64>,
    pub read_bytes: u64,
    /// File bytes read from another node.
    pub remote_bytes: u64,
    pub moves: Vec<Move>,
    pub held_back: Vec<Move>,
    pub refused: Vec<Move>,
    /// Threads that stay although they read remotely.
    #[serde(default)]
    pub declined: Vec<Declined>,
    /// Limits of the observation, and remarks of the policy and the engine.
    pub notes: Vec<String>,
}

/// The notes of the last windows, each once: what to read when nothing moved.
pub fn last_notes(windows: &[Window]) -> String {
    let notes: BTreeSet<&str> =
        windows.iter().rev().take(12).flat_map(|window| &window.notes).map(String::as_str).collect();
    notes.into_iter().collect::<Vec<_>>().join("; ")
}

/// A thread that stays, with the reason.
#[derive(Clone, Debug, Deserialize)]
pub struct Declined {
    /// The rule that decided.
    pub reason: String,
    /// One sentence with the figures.
    pub why: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Move {
    /// Thread id; 0 for a process or a file.
    #[serde(default)]
    pub tid: u32,
    /// Process id; 0 for a file.
    #[serde(default)]
    pub pid: u32,
    /// File id; empty for a thread or a process.
    #[serde(default)]
    pub file: String,
    #[serde(default)]
    pub comm: String,
    pub from: u32,
    pub to: u32,
    pub reason: String,
    /// One sentence with the figures.
    pub why: String,
    #[serde(default)]
    pub refused_why: String,
}

impl Move {
    /// The thread, process or file as a person reads it.
    pub fn subject(&self) -> String {
        match self {
            Self { file, .. } if !file.is_empty() => format!("file {file}"),
            Self { tid: 0, pid, comm, .. } => format!("process {pid} {comm}").trim_end().to_owned(),
            Self { tid, comm, .. } => format!("{comm} (tid {tid})"),
        }
    }
}

/// The affinities that `homenode run` restored at its end.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct End {
    /// Threads whose affinity was restored.
    pub restored: usize,
    /// Threads whose affinity could not be restored.
    pub failed: usize,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Start {},
    Reload {},
    Recovered(End),
    Window(Box<Window>),
    End(End),
}

/// A running `homenode run --json`; killed when dropped while it runs.
pub struct Daemon {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Moves of a crashed run that this run restored at its start.
    pub recovered: Option<End>,
}

impl Daemon {
    /// Starts `BINARY run --json ARGS…`.
    pub fn start<S: AsRef<OsStr>>(binary: &Path, args: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::start_under(None, binary, args)
    }

    /// The same, under a service manager that listens on this socket.
    pub fn start_under<S: AsRef<OsStr>>(
        manager: Option<&Path>,
        binary: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Self> {
        let mut child = Command::new(binary)
            .args(["run", "--json"])
            .args(args)
            .envs(manager.map(|socket| ("NOTIFY_SOCKET", socket)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", binary.display()))?;
        let stdout = child.stdout.take().context("no standard output")?;
        Ok(Self { child, lines: BufReader::new(stdout).lines(), recovered: None })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next window; an error if homenode ends instead.
    pub fn window(&mut self) -> Result<Window> {
        loop {
            match self.line()? {
                Some(Line::Window(window)) => return Ok(*window),
                Some(Line::Recovered(end)) => self.recovered = Some(end),
                Some(Line::Start {} | Line::Reload {}) => {}
                Some(Line::End(_)) | None => bail!("homenode ended: {}", self.child.wait()?),
            }
        }
    }

    /// Sends a signal, reads until homenode has ended, and returns its final report, if there was
    /// one.
    pub fn stop(mut self, signal: Signal) -> Result<(Option<End>, ExitStatus)> {
        self.signal(signal)?;
        let mut end = None;
        while let Some(line) = self.line()? {
            if let Line::End(said) = line {
                end = Some(said);
            }
        }
        Ok((end, self.child.wait()?))
    }

    /// As [`stop`](Self::stop); returns the windows that nobody has read.
    pub fn rest(mut self, signal: Signal) -> Result<Vec<Window>> {
        self.signal(signal)?;
        let mut windows = Vec::new();
        while let Some(line) = self.line()? {
            if let Line::Window(window) = line {
                windows.push(*window);
            }
        }
        self.child.wait()?;
        Ok(windows)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("process id")?;
        kill_process(pid, signal).context("stopping homenode")
    }

    fn line(&mut self) -> Result<Option<Line>> {
        let Some(line) = self.lines.next() else { return Ok(None) };
        let line = line.context("reading from homenode")?;
        serde_json::from_str(&line).map(Some).with_context(|| format!("homenode said {line:?}"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) && self.child.kill().and_then(|()| self.child.wait()).is_err()
        {
            eprintln!("homenode (pid {}) could not be ended", self.child.id());
        }
    }
}

/// Share of file bytes read from another node over several windows; `None` if nothing was read.
pub fn remote_share(windows: &[Window]) -> Option<f64> {
    let read: u64 = windows.iter().map(|w| w.read_bytes).sum();
    let remote: u64 = windows.iter().map(|w| w.remote_bytes).sum();
    (read > 0).then(|| remote as f64 / read as f64)
}

/// The number of windows until the remote share stays at or below `limit`: the position of the last
/// window above it.
pub fn settled_after(windows: &[Window], limit: f64) -> usize {
    windows.iter().rposition(|w| w.remote_share.is_some_and(|s| s > limit)).map_or(0, |i| i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(read_bytes: u64, remote_bytes: u64) -> Window {
        let remote_share = (read_bytes > 0).then(|| remote_bytes as f64 / read_bytes as f64);
        let (moves, held_back, refused) = (Vec::new(), Vec::new(), Vec::new());
        Window {
            window: 1,
            window_s: 1.0,
            remote_share,
            read_bytes,
            remote_bytes,
            moves,
            held_back,
            refused,
            declined: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn settled_is_the_last_window_above_the_limit() {
        let windows = [window(100, 50), window(100, 2), window(100, 9), window(0, 0), window(100, 3)];
        assert_eq!(settled_after(&windows, 0.03), 3);
        assert_eq!(settled_after(&windows, 0.5), 0);
        assert_eq!(settled_after(&[], 0.03), 0);
    }

    #[test]
    fn shares_are_weighted_by_bytes() {
        // 90 of 100 and 0 of 900 bytes: 90 of 1000.
        assert_eq!(remote_share(&[window(100, 90), window(900, 0)]), Some(0.09));
        assert_eq!(remote_share(&[window(0, 0)]), None);
    }

    #[test]
    fn parses_the_lines_that_homenode_writes() {
        let text = r#"{"kind":"window","window":2,"time_s":7.5,"window_s":1.0,"remote_share":0.5,"threads":4,"read_bytes":8,
            "remote_bytes":4,"moves":[{"kind":"thread","tid":7,"pid":7,"comm":"fio","from":1,"to":0,"reason":"read_locality",
            "why":"8 B of 8 B read from node 0"}],"held_back":[],"refused":[],"notes":[]}"#;
        let Line::Window(window) = serde_json::from_str(text).unwrap() else { panic!("not a window") };
        assert_eq!((window.window, window.remote_share, window.moves[0].tid), (2, Some(0.5), 7));
        assert!(matches!(
            serde_json::from_str(r#"{"kind":"end","restored":4,"failed":0,"gone":1}"#).unwrap(),
            Line::End(End { restored: 4, failed: 0 })
        ));
        assert!(matches!(serde_json::from_str(r#"{"kind":"start","version":1}"#).unwrap(), Line::Start {}));
    }
}
