//! The command of `run -- CMD`.
//!
//! **Problem.** homenode must observe a command and its children from the first moment, but it can
//! only start observing once there is a process.
//!
//! **Approach.** homenode starts itself as `__exec`, which stops at once. Once the observer is
//! attached, the child continues and becomes the command. If observing is impossible, the command
//! never starts.
//!
//! **Limits.** homenode passes SIGTERM and SIGHUP on to the command. It does not pass on SIGINT,
//! because Ctrl-C reaches the command from the terminal.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::thread;

use clap::Args;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, waitid};

use crate::exit::{Exit, Failure};
use crate::output::escape;

/// `homenode __exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Command to become
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

pub struct Child {
    inner: std::process::Child,
    pid: Pid,
    name: String,
    began: bool,
}

impl Child {
    /// Starts the command up to the moment before it runs; `None` for an empty command. `json`: the
    /// form of its failure.
    pub fn hold(command: &[OsString], json: bool) -> Result<Option<Self>, Failure> {
        let Some(program) = command.first() else { return Ok(None) };
        let name = escape(&program.to_string_lossy());
        let failure = |e: &io::Error| Failure::from_error(Exit::Io, format!("cannot start {name}"), e);
        let inner = Command::new("/proc/self/exe")
            .arg0("homenode")
            .args(json.then_some("--json"))
            .args(["__exec", "--"])
            .args(command)
            .spawn()
            .map_err(|e| failure(&e))?;
        let pid = Pid::from_child(&inner);
        match rustix::process::waitpid(Some(pid), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) if status.stopped() => Ok(Some(Self { inner, pid, name, began: false })),
            Ok(_) => Err(Failure::new(Exit::Io, format!("cannot start {name}"), "it ended before it began")),
            Err(errno) => Err(failure(&errno.into())),
        }
    }

    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// Its program, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets it run. Its end unparks the calling thread, so that the current window becomes the
    /// last.
    pub fn go(&mut self) -> Result<(), Failure> {
        let (pid, waiting) = (self.pid, thread::current());
        thread::spawn(move || {
            // NOWAIT: its exit status is left for `wait`.
            while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
            waiting.unpark();
        });
        self.signal(Signal::CONT)?;
        self.began = true;
        Ok(())
    }

    pub fn began(&self) -> bool {
        self.began
    }

    /// Passes a stop on to it, unless it has ended: its process id may be another process's by now.
    pub fn terminate(&mut self) -> Result<(), Failure> {
        if self.ended() { Ok(()) } else { self.signal(Signal::TERM) }
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        rustix::process::kill_process(self.pid, signal)
            .map_err(|e| Failure::from_error(Exit::Io, format!("cannot signal {}", self.name), &io::Error::from(e)))
    }

    pub fn ended(&mut self) -> bool {
        !matches!(self.inner.try_wait(), Ok(None))
    }

    pub fn wait(mut self) -> Exit {
        self.inner.wait().map_or(Exit::Io, exit)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.began {
            // The child is still a stopped homenode.
            let _ = self.inner.kill();
            let _ = self.inner.wait();
        }
    }
}

/// As shells have it: a command killed by signal N "returns" 128 + N.
fn exit(status: ExitStatus) -> Exit {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Exit::Command(u8::try_from(code).unwrap_or(u8::MAX))
}

/// `homenode __exec`: stops, and becomes the command when continued.
pub fn become_command(args: &ExecArgs, json: bool) -> Result<Exit, Failure> {
    let Some((program, rest)) = args.command.split_first() else {
        return Err(Failure::new(Exit::Usage, "cannot start a command", "there is none"));
    };
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)
        .map_err(|e| Failure::from_error(Exit::Io, "cannot wait", &io::Error::from(e)))?;
    let error = Command::new(program).args(rest).exec();
    let name = escape(&program.to_string_lossy());
    // As shells have it.
    let exit = Exit::Command(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
    Failure::from_error(Exit::Io, format!("cannot start {name}"), &error).exiting(exit).report(json);
    Ok(exit)
}
