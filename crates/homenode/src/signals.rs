//! Stopping: SIGTERM, SIGINT and SIGHUP set a flag, and the window that is under way is the last.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{Exit, Failure};

/// Whether somebody wants us to stop.
#[derive(Clone, Default)]
pub struct Stop {
    any: Arc<AtomicBool>,
    interrupt: Arc<AtomicBool>,
}

impl Stop {
    /// From now on signals do not kill the process but are noted here.
    pub fn on_signals() -> Result<Self, Failure> {
        let failure = |e: io::Error| Failure::from_error(Exit::Unsupported, "cannot handle signals", &e);
        let stop = Self::default();
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop.any)).map_err(failure)?;
        }
        signal_hook::flag::register(SIGINT, Arc::clone(&stop.interrupt)).map_err(failure)?;
        Ok(stop)
    }

    /// Whether it is time to stop.
    pub fn requested(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Whether it was Ctrl-C, which the terminal sends to a command we started, too.
    pub fn by_interrupt(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }
}
