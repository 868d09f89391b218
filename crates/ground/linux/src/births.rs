//! Births of threads, as a watcher in the kernel reports them.
//!
//! A thread that is moved passes its affinity on to its children. Who moves it asks a watcher for
//! its descendants, to put them back, too. The types are here, because the watcher takes BPF and
//! those who move threads do not.

use topology::ThreadId;

use crate::threads::as_shown;

/// A watched thread, or one that a watched thread started, directly or over several generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descendant {
    pub tid: u32,
    pub pid: u32,
    /// The thread that forked it; for [`Origin::Exec`] of a watched thread, the id which that had
    /// before.
    pub parent_tid: u32,
    /// When it started, ns since boot: to the nanosecond.
    pub start_ns: u64,
    pub origin: Origin,
    /// Its affinity is its own: set by others since it was watched or born, or put back by us.
    pub own: bool,
}

impl Descendant {
    pub fn id(&self) -> ThreadId {
        ThreadId::new(self.tid, as_shown(self.start_ns))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Moved,
    /// It was born of a watched thread.
    Born,
    /// It was a watched thread other than the first of its process and called exec: it has the
    /// first thread's id and start time now.
    Exec,
}
