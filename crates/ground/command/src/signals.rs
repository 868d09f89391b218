//! Stopping: SIGTERM, SIGINT and, unless it is ignored, SIGHUP set a flag and end the window that
//! is under way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::CapabilitySet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::exit::{Exit, Failure};

/// How long a command may take to end after a signal. On a busy machine `map` took more than 1.5 s
/// to write down what it had seen, and was killed.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Clone, Default)]
pub struct Stop {
    came: Arc<AtomicUsize>,
    interrupt: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Stop {
    /// From now on these signals do not kill the process but are noted here, and unpark the calling
    /// thread (a window that it waits for ends).
    pub fn on_signals() -> Result<Self, Failure> {
        Self::noting(None, false)
    }

    /// The same, and SIGUSR1 asks for a reload; so does SIGHUP under a service manager, where no
    /// terminal sends it.
    pub fn or_reload() -> Result<Self, Failure> {
        Self::noting(None, true)
    }

    /// The same for a command that holds nothing that must be undone: if it still runs [`GRACE`]
    /// after a signal, because it writes to a pipe that nobody reads or waits in the kernel, the
    /// signal kills it.
    pub fn or_killed() -> Result<Self, Failure> {
        Self::noting(Some(GRACE), false)
    }

    fn noting(grace: Option<Duration>, reloads: bool) -> Result<Self, Failure> {
        let failure = |e: io::Error| Failure::from_error(Exit::Unsupported, "cannot handle signals", &e);
        let stop = Self::default();
        // nohup(1) has it ignored, and so it stays.
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        let reload = reloads.then_some(SIGUSR1);
        let hangup_reloads = reloads && std::env::var_os("NOTIFY_SOCKET").is_some();
        let all = [SIGTERM, SIGINT].into_iter().chain(hangup).chain(reload);
        let mut signals = Signals::new(all).map_err(failure)?;
        let (noted, waiting) = (stop.clone(), thread::current());
        thread::spawn(move || {
            if let Err(error) = linux::privileges::keep_only(CapabilitySet::empty()) {
                tracing::warn!("the thread that waits for signals keeps its privileges: {error}");
            }
            for signal in signals.forever() {
                if signal == SIGUSR1 || signal == SIGHUP && hangup_reloads {
                    noted.reload.store(true, Ordering::Release);
                    waiting.unpark();
                    continue;
                }
                if signal == SIGINT {
                    noted.interrupt.store(true, Ordering::Relaxed);
                }
                noted.came.fetch_add(1, Ordering::Release);
                waiting.unpark();
                if let Some(grace) = grace {
                    thread::sleep(grace);
                    // No more than a hint: the terminal may not take it.
                    let _ = crossterm::terminal::disable_raw_mode();
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            }
        });
        Ok(stop)
    }

    /// Whether a reload was asked for since the last call.
    pub fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::AcqRel)
    }

    pub fn requested(&self) -> bool {
        self.came() > 0
    }

    pub fn came(&self) -> usize {
        self.came.load(Ordering::Acquire)
    }

    /// Whether it was Ctrl-C, which the terminal also sends to a command we started.
    pub fn by_interrupt(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }
}

/// Whether the parent process has it ignore a signal.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
