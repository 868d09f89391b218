//! A volume that a `homenode-fs mount` of ours serves.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

const MOMENT: Duration = Duration::from_millis(20);
/// How long a server that is dropped may take to unmount before it is killed, which leaves a dead
/// mount.
const GRACE: Duration = Duration::from_secs(5);

/// A running `homenode-fs mount --foreground`; ended when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts the command, and waits until something is mounted on `mountpoint`. Also returns its
    /// standard output, if that is piped.
    pub fn start(command: &mut Command, mountpoint: &Path, within: Duration) -> Result<(Self, Option<ChildStdout>)> {
        let mut child = command.spawn().context("homenode-fs could not be started")?;
        let out = child.stdout.take();
        let mut server = Self { child };
        let began = Instant::now();
        while !is_mounted(mountpoint) {
            if let Some(status) = server.child.try_wait().context("homenode-fs mount")? {
                bail!("homenode-fs mount ended: {status}");
            }
            ensure!(began.elapsed() < within, "the volume was not mounted within {} s", within.as_secs());
            sleep(MOMENT);
        }
        Ok((server, out))
    }

    pub fn stop(&self) -> Result<()> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("homenode-fs mount has no pid")?;
        kill_process(pid, Signal::TERM).context("homenode-fs mount could not be told to end")
    }

    /// Waits until it has ended, well.
    pub fn wait(&mut self, within: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.child.try_wait().context("homenode-fs mount")? {
                Some(status) => {
                    ensure!(status.success(), "homenode-fs mount: {status}");
                    return Ok(());
                }
                None if began.elapsed() > within => {
                    bail!("homenode-fs mount did not end within {} s", within.as_secs())
                }
                None => sleep(MOMENT),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let began = Instant::now();
        let mut told = false;
        while began.elapsed() < GRACE {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            if !told && self.stop().is_err() {
                break;
            }
            told = true;
            sleep(MOMENT);
        }
        if let Err(e) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("homenode-fs mount (pid {}) could not be ended: {e}", self.child.id());
        }
    }
}

/// Whether the directory is on another file system than its parent.
fn is_mounted(dir: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|m| m.dev()).ok();
    let parent = dir.parent().and_then(device);
    parent.is_some() && device(dir).is_some_and(|dev| Some(dev) != parent)
}
