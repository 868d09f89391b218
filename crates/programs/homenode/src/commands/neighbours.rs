//! Other programs that place threads or memory, and come while homenode runs.
//!
//! **Problem.** Who starts numad an hour later sees only that nothing settles.
//!
//! **Approach.** The search of the start ([`linux::interference`]) is made again every
//! [`EVERY`] windows, in a thread of its own: it may take seconds, and no window waits for it.
//!
//! **Limits.** Those of the search. A program that comes and goes between two of them is not seen.

use std::sync::mpsc::{self, Receiver, TryRecvError};

use linux::interference::Interference;
use session::windows::Output;

use crate::commands::plane;
use crate::exit::Failure;

/// A minute with windows of a second. Each search reads the names of all processes: some 20 µs for
/// each.
const EVERY: u32 = 60;

pub struct Neighbours {
    known: Vec<Interference>,
    windows: u32,
    search: Option<Receiver<Vec<Interference>>>,
}

impl Neighbours {
    /// With those that are there at the start.
    pub fn new(known: Vec<Interference>) -> Self {
        Self { known, windows: 0, search: None }
    }

    /// After each window: says who has come and who has gone.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub fn window(&mut self, out: &mut Output) -> Result<(), Failure> {
        self.windows += 1;
        match self.search.as_ref().map(Receiver::try_recv) {
            Some(Ok(now)) => {
                self.search = None;
                let only = |these: &[Interference], those: &[Interference]| -> Vec<Interference> {
                    these.iter().filter(|it| !those.contains(it)).cloned().collect()
                };
                let (came, gone) = (only(&now, &self.known), only(&self.known, &now));
                self.known = now;
                out.neighbours(&came, &gone)
            }
            Some(Err(TryRecvError::Empty)) => Ok(()),
            // None, or no thread could be started.
            _ => {
                self.search = None;
                if self.windows.is_multiple_of(EVERY) {
                    let (tell, told) = mpsc::channel();
                    let search = move || _ = tell.send(plane::interference(&|| false));
                    let started = std::thread::Builder::new().name("homenode-ask".into()).spawn(search);
                    self.search = started.ok().map(|_| told);
                }
                Ok(())
            }
        }
    }
}
