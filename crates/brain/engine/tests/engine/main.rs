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

use engine::{Copies, Engine, Plane, PlaneError, Settings, Started, StateDir, Undo, Undone, Write};
use fake::Fake;
use placement::{Move, Policy, Snapshot};
use topology::Topology;

/// An engine that keeps its state in a directory, and that.
fn kept<P: Plane>(plane: P, policy: Box<dyn Policy>, settings: Settings) -> (tempfile::TempDir, Engine<P>) {
    let tmp = tempfile::tempdir().unwrap();
    let state = StateDir::open(tmp.path()).unwrap();
    (tmp, Engine::new(plane, policy, settings, Some(state)).unwrap())
}

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
