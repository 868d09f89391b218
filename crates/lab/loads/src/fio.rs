//! fio as the workload: unpinned threads or processes, each of which reads one file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use anyhow::{Context, Result, bail};

use crate::threads::{self, Thread};

/// A running fio; ended when dropped.
pub struct Fio {
    child: Child,
    /// Its reading threads, one for each file. fio has others, which wait and count.
    pub readers: Vec<u32>,
}

impl Fio {
    /// Starts one thread for each file and waits until all of them read. They read until fio is
    /// killed.
    pub fn start(files: &[PathBuf]) -> Result<Self> {
        let mut command = Command::new("fio");
        command.args(["--thread", "--ioengine=psync", "--rw=read", "--bs=64k", "--time_based", "--runtime=3600"]);
        // By default fio drops the files from the cache before it starts, and gives the kernel
        // advice about them.
        command.args(["--invalidate=0", "--fadvise_hint=0", "--allow_file_create=0", "--output=/dev/null"]);
        for (i, file) in files.iter().enumerate() {
            command.arg(format!("--name=reader{i}")).arg(format!("--filename={}", file.display()));
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("fio could not be started (is it installed?)")?;
        let mut fio = Self { child, readers: Vec::new() };
        fio.wait_until_busy(files.len())?;
        Ok(fio)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Finds the readers: the threads that use most CPU time, once enough of them are busy.
    fn wait_until_busy(&mut self, readers: usize) -> Result<()> {
        const MOMENT: Duration = Duration::from_millis(500);
        const BUSY_TICKS: u64 = 10;
        let began = Instant::now();
        loop {
            let before = threads::of(self.pid())?;
            thread::sleep(MOMENT);
            let used =
                |t: &Thread| before.iter().find(|b| b.tid == t.tid).map_or(0, |b| t.ticks.saturating_sub(b.ticks));
            let mut busy: Vec<_> = threads::of(self.pid())?.iter().map(|t| (used(t), t.tid)).collect();
            busy.sort_unstable_by(|a, b| b.cmp(a));
            busy.truncate(readers);
            if busy.len() == readers && busy.iter().all(|(ticks, _)| *ticks >= BUSY_TICKS) {
                self.readers = busy.into_iter().map(|(_, tid)| tid).collect();
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().context("fio")? {
                bail!("fio ended before it read: {status}");
            }
            if began.elapsed() > Duration::from_secs(60) {
                bail!("fio does not read after a minute: ticks used and thread ids {busy:?}");
            }
        }
    }
}

/// A run of fio of some seconds that logs what it reads: one process for each file.
pub struct Measured {
    fio: Fio,
    logs: PathBuf,
}

impl Measured {
    /// Starts random reads of `block` bytes past the page cache for `seconds`. Logs go to the
    /// directory `logs`.
    pub fn start(files: &[PathBuf], block: u32, seconds: u64, logs: &Path) -> Result<Self> {
        let mut command = Command::new("fio");
        command.args(["--ioengine=psync", "--rw=randread", "--direct=1", "--time_based", "--allow_file_create=0"]);
        command.args([format!("--bs={block}"), format!("--runtime={seconds}"), "--log_avg_msec=1000".to_owned()]);
        command.args([format!("--write_bw_log={}/read", logs.display()), "--output=/dev/null".to_owned()]);
        for (i, file) in files.iter().enumerate() {
            command.arg(format!("--name=reader{i}")).arg(format!("--filename={}", file.display()));
        }
        let spawned = command.current_dir(logs).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = spawned.context("fio could not be started (is it installed?)")?;
        Ok(Self { fio: Fio { child, readers: Vec::new() }, logs: logs.to_owned() })
    }

    /// fio's process; its children are the readers.
    pub fn pid(&self) -> u32 {
        self.fio.pid()
    }

    pub fn ended(&mut self) -> Result<bool> {
        match self.fio.child.try_wait().context("fio")? {
            Some(status) if !status.success() => bail!("fio: {status}"),
            ended => Ok(ended.is_some()),
        }
    }

    /// The bytes per second of all readers together, by second, as fio logged them.
    pub fn throughput(mut self) -> Result<Vec<(f64, f64)>> {
        let status = self.fio.child.wait().context("fio")?;
        if !status.success() {
            bail!("fio: {status}");
        }
        let mut seconds: BTreeMap<u64, f64> = BTreeMap::new();
        for entry in std::fs::read_dir(&self.logs).with_context(|| self.logs.display().to_string())? {
            let path = entry?.path();
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            for line in text.lines() {
                // Time in ms, KiB/s, direction, …
                let mut fields = line.split(',').map(|field| field.trim().parse::<u64>());
                let (Some(Ok(ms)), Some(Ok(kib))) = (fields.next(), fields.next()) else {
                    bail!("{}: not a line of fio's log: {line}", path.display());
                };
                *seconds.entry((ms + 500) / 1000).or_default() += kib as f64 * 1024.0;
            }
        }
        Ok(seconds.into_iter().map(|(second, bytes)| (second as f64, bytes)).collect())
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        let ended: io::Result<_> = self.child.kill().and_then(|()| self.child.wait());
        if let Err(e) = ended {
            eprintln!("fio (pid {}) could not be ended: {e}", self.child.id());
        }
    }
}
