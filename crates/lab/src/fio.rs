//! fio as the workload: unpinned threads, each of which reads one cached file.

use std::path::PathBuf;
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
    /// Starts one thread for each file and waits until all of them read. They read until fio is killed.
    pub fn start(files: &[PathBuf]) -> Result<Self> {
        let mut command = Command::new("fio");
        command.args(["--thread", "--ioengine=psync", "--rw=read", "--bs=64k", "--time_based", "--runtime=3600"]);
        // By default fio drops the files from the cache before it starts, and gives the kernel advice about them.
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

    /// Its process id.
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

impl Drop for Fio {
    fn drop(&mut self) {
        let ended: io::Result<_> = self.child.kill().and_then(|()| self.child.wait());
        if let Err(e) = ended {
            eprintln!("fio (pid {}) could not be ended: {e}", self.child.id());
        }
    }
}
