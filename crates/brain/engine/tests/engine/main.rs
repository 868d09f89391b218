//! The whole loop over a machine in memory.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test stops at the first surprise

#[path = "../fake/mod.rs"]
mod fake;

mod copies;
mod crash;
mod journal;
mod rails;
mod undo;

use std::time::Duration;

use engine::{Copies, Plane, PlaneError, Started, Undo, Undone, Write};
use fake::Fake;
use placement::{Move, Snapshot};
use topology::Topology;

/// A machine whose snapshots are changed.
struct Shown<F>(Fake, F);

impl<F: FnMut(&Fake, &mut Snapshot)> Plane for Shown<F> {
    fn topology(&self) -> &Topology {
        self.0.topology()
    }

    fn observe(&mut self, window: Duration) -> Result<Snapshot, PlaneError> {
        let mut snapshot = self.0.observe(window)?;
        (self.1)(&self.0, &mut snapshot);
        Ok(snapshot)
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        self.0.prepare(mv)
    }

    fn start(&mut self, mv: &Move, undo: &[Undo], write: &mut Write<'_>) -> Result<Started, PlaneError> {
        self.0.start(mv, undo, write)
    }

    fn copies(&mut self) -> Option<&mut dyn Copies> {
        self.0.copies()
    }

    fn undo(&mut self, undo: &Undo) -> Result<Undone, PlaneError> {
        self.0.undo(undo)
    }
}
