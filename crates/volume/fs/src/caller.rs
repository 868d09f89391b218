//! For whom a thread works, and where that one runs.
//!
//! **Problem.** A file system server's threads read and write for the threads of other processes:
//! bytes count for those, and "local" is the node where those run.
//!
//! **Approach.** A server says for whom it works, and on which node that thread runs, around each
//! piece of work ([`as_thread`], [`on_node`]). Otherwise a thread works for itself, on the node of
//! its CPU.
//!
//! **Limits.** Threads that the work starts do not inherit either.

use std::cell::Cell;

use crate::sync::{Local, task_local};

task_local! {
    /// The thread that this one works for; 0 for itself.
    static ACTING_FOR: Cell<u32> = Cell::new(0);
    /// The node where that thread runs; `None` for the node of this thread's CPU.
    static NODE: Cell<Option<u32>> = Cell::new(None);
}

/// Puts the value back also when the work panics.
struct Back<T: Copy + 'static>(&'static Local<Cell<T>>, T);

impl<T: Copy + 'static> Drop for Back<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Does `work`, and counts its bytes for the thread `tid`.
pub fn as_thread<T>(tid: u32, work: impl FnOnce() -> T) -> T {
    let _back = Back(&ACTING_FOR, ACTING_FOR.replace(tid));
    work()
}

/// Does `work` as if this thread ran on `node`: blocks go there, and emulated memory
/// ([`crate::medium::Emulated`]) is near or far from there.
pub fn on_node<T>(node: u32, work: impl FnOnce() -> T) -> T {
    let _back = Back(&NODE, NODE.replace(Some(node)));
    work()
}

/// The thread that this one works for, itself otherwise.
pub(crate) fn tid() -> u32 {
    match ACTING_FOR.get() {
        0 => rustix::thread::gettid().as_raw_nonzero().get() as u32,
        tid => tid,
    }
}

/// The thread that this one was told to work for; 0: for itself.
pub(crate) fn acting_for() -> u32 {
    ACTING_FOR.get()
}

/// The node that this thread was told to be on.
pub(crate) fn node() -> Option<u32> {
    NODE.get()
}

/// The CPU of this thread; in the laboratory, where one thread of the system runs all tasks, one
/// for each that it works for.
pub(crate) fn cpu() -> usize {
    if cfg!(virtual_time) { acting_for() as usize } else { rustix::thread::sched_getcpu() }
}
