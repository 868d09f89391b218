//! Other programs that place threads or memory, and come while homenode runs.
//!
//! **Problem.** Who starts numad an hour later sees only that nothing settles.
//!
//! **Approach.** The search of the start ([`linux::interference`]) is made again every
//! [`EVERY`] windows, in a thread of its own: it may take seconds, and no window waits for it. With
//! the rights that a run keeps it can say less of a program than at the start, so it is compared
//! with such a search in the first window, and one that did not end with none.
//!
//! **Limits.** Those of the search. A program that comes and goes between two of them is not seen,
//! nor one that comes just before the first.

use std::sync::mpsc::{self, Receiver, TryRecvError};

use linux::interference::{Interference, NOT_KNOWN};
use session::windows::Output;

use crate::commands::plane;
use crate::exit::Failure;

/// A minute with windows of a second. Each search reads the names of all processes: some 20 µs for
/// each.
const EVERY: u32 = 60;

#[derive(Default)]
pub struct Neighbours {
    /// As of the last search that came to its end.
    known: Option<Vec<Interference>>,
    windows: u32,
    search: Option<Receiver<Vec<Interference>>>,
}

impl Neighbours {
    /// After each window: says who has come and who has gone.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub fn window(&mut self, out: &mut Output) -> Result<(), Failure> {
        self.windows = self.windows.wrapping_add(1);
        match self.search.as_ref().map(Receiver::try_recv) {
            Some(Ok(now)) => {
                self.search = None;
                if now.iter().any(|found| found.name == NOT_KNOWN) {
                    return Ok(());
                }
                let Some(before) = self.known.replace(now.clone()) else { return Ok(()) };
                let only = |these: &[Interference], those: &[Interference]| -> Vec<Interference> {
                    these.iter().filter(|it| !those.contains(it)).cloned().collect()
                };
                out.neighbours(&only(&now, &before), &only(&before, &now))
            }
            Some(Err(TryRecvError::Empty)) => Ok(()),
            // None, or no thread could be started.
            _ => {
                self.search = None;
                if self.windows % EVERY == 1 {
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
