//! The bottom of the stack: what the plane asks of its observer.

use std::time::Duration;

use act::watched::{Births, Trouble};
use linux::births::Descendant;
use observe::{ObserveError, Observed, Observer};
use topology::ThreadId;

/// What the plane asks of its observer: [`Observer`], or a script in tests.
pub trait Observe {
    /// Blocks for one window and returns the observations.
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError>;
    /// Starts to watch a thread that is about to be moved, and its future descendants.
    fn watch(&mut self, thread: ThreadId) -> Result<(), ObserveError>;
    /// Records that the affinity of this thread is no longer ours.
    fn release(&mut self, tid: u32) -> Result<(), ObserveError>;
    /// Lists the living watched threads and their living descendants.
    fn descendants(&mut self) -> Result<Vec<Descendant>, ObserveError>;
    /// The observer of this kernel, for what only it does.
    fn real(&self) -> Option<&Observer> {
        None
    }
    fn real_mut(&mut self) -> Option<&mut Observer> {
        None
    }
}

impl Observe for Observer {
    fn window(&mut self, length: Duration) -> Result<Observed, ObserveError> {
        Observer::window(self, length)
    }

    fn watch(&mut self, thread: ThreadId) -> Result<(), ObserveError> {
        Observer::watch(self, thread)
    }

    fn release(&mut self, tid: u32) -> Result<(), ObserveError> {
        Observer::release(self, tid)
    }

    fn descendants(&mut self) -> Result<Vec<Descendant>, ObserveError> {
        Observer::descendants(self)
    }

    fn real(&self) -> Option<&Observer> {
        Some(self)
    }

    fn real_mut(&mut self) -> Option<&mut Observer> {
        Some(self)
    }
}

impl Births for Box<dyn Observe> {
    fn watch(&mut self, thread: ThreadId) -> Result<(), Trouble> {
        Ok(self.as_mut().watch(thread)?)
    }

    fn release(&mut self, tid: u32) -> Result<(), Trouble> {
        Ok(self.as_mut().release(tid)?)
    }

    fn descendants(&mut self) -> Result<Vec<Descendant>, Trouble> {
        Ok(self.as_mut().descendants()?)
    }
}
