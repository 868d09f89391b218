//! The bottom of the stack: what the plane asks of its observer.

use std::sync::Arc;
use std::time::Duration;

use act::watched::{Births, Trouble};
use linux::births::Descendant;
use observe::{FileSeen, ObserveError, Observed, Observer};
use placement::ranges::Ranges;
use placement::rules::Rules;
use rustc_hash::FxHashSet;
use topology::{ThreadId, Topology};

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
    /// Says where the files of the last window are, as far as it was found out.
    fn locate(&mut self, _files: &[FileSeen]) {}
    /// The heat of ranges of files, where it is counted.
    fn ranges(&mut self) -> Option<&mut Ranges> {
        None
    }
    /// Takes the machine for this one from now on: CPUs or nodes have come or gone.
    fn follow(&mut self, _topology: &Topology) {}
    /// Takes other rules from the next window on ([`Observer::rule`]).
    fn rule(&mut self, _rules: Rules, _anew: FxHashSet<Arc<str>>) {}
    /// Whether rules allow moves of this process's threads.
    fn allows(&self, _pid: u32) -> bool {
        true
    }
    /// Looks at fewer threads of the user with the most ([`Observer::shed`]).
    fn shed(&mut self) -> Result<Option<String>, ObserveError> {
        Ok(None)
    }
    /// Looks at more threads again ([`Observer::relax`]).
    fn relax(&mut self) -> Result<Option<String>, ObserveError> {
        Ok(None)
    }
    /// Lists the limits of this kernel, which are part of each window's notes.
    fn limits(&self) -> Vec<String> {
        Vec::new()
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

    fn locate(&mut self, files: &[FileSeen]) {
        Observer::locate(self, files);
    }

    fn ranges(&mut self) -> Option<&mut Ranges> {
        Observer::ranges(self)
    }

    fn follow(&mut self, topology: &Topology) {
        Observer::follow(self, topology);
    }

    fn rule(&mut self, rules: Rules, anew: FxHashSet<Arc<str>>) {
        Observer::rule(self, rules, anew);
    }

    fn allows(&self, pid: u32) -> bool {
        Observer::allows(self, pid)
    }

    fn shed(&mut self) -> Result<Option<String>, ObserveError> {
        Observer::shed(self)
    }

    fn relax(&mut self) -> Result<Option<String>, ObserveError> {
        Observer::relax(self)
    }

    fn limits(&self) -> Vec<String> {
        self.configuration().notes.clone()
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
