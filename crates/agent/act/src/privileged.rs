//! A thread that keeps the privileges for moving files on DAX, and works for the other threads.
//!
//! **Problem.** Moving a file on DAX takes CAP_SYS_ADMIN, which is nearly all of root's power.
//! Linux keeps capabilities by thread.
//!
//! **Approach.** [`PrivilegedWorker`] is a thread that is started before the daemon gives up root's
//! capabilities, and that keeps this one. It runs what it is given: it prepares a move, and starts
//! the thread that copies, which inherits the capability. The threads that observe, decide and
//! write the state never have it.
//!
//! **Limits.** Threads share their memory: this keeps mistakes apart, not an attacker who runs code
//! of their own in the daemon.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use linux::privileges;

type Task = Box<dyn FnOnce() + Send>;

/// The handle of the thread. When it is dropped, the thread finishes its tasks and ends.
#[derive(Debug)]
pub struct PrivilegedWorker {
    tasks: Sender<Task>,
    freeze: bool,
}

impl PrivilegedWorker {
    /// Starts the thread. `freeze`: processes may be stopped ([`PrivilegedWorker::freeze`]).
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start(freeze: bool) -> io::Result<Self> {
        let (tasks, given): (_, Receiver<Task>) = channel();
        std::thread::Builder::new().name("dax".into()).spawn(move || {
            if let Err(error) = privileges::keep_only(privileges::to_move_dax()) {
                tracing::warn!(%error, "a thread keeps its privileges");
            }
            given.into_iter().for_each(|task| task());
        })?;
        Ok(Self { tasks, freeze })
    }

    /// Whether processes that map a file shared and writable may be stopped while a part of it
    /// moves.
    pub fn freeze(&self) -> bool {
        self.freeze
    }

    /// Has the thread do something, and waits for the result.
    ///
    /// # Errors
    ///
    /// The thread has ended: a fault of homenode.
    pub fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let ended = || io::Error::other("the thread that moves files on DAX has ended");
        let (answer, result) = channel();
        // Nobody waits for the answer any more: nothing to do about it.
        self.tasks.send(Box::new(move || drop(answer.send(task())))).map_err(|_| ended())?;
        result.recv().map_err(|_| ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::thread::{CapabilitySet, capabilities};

    #[test]
    fn its_threads_have_what_the_others_gave_up() {
        let worker = PrivilegedWorker::start(true).unwrap();
        let has = || capabilities(None).unwrap().permitted;
        let here = has();
        let (its, of_a_child) = worker.run(move || (has(), std::thread::spawn(has).join().unwrap())).unwrap();
        assert_eq!(its, here & privileges::to_move_dax());
        assert_eq!((its, worker.freeze()), (of_a_child, true));
        assert!(!privileges::to_move_files().contains(CapabilitySet::SYS_ADMIN));
        // It starts the jobs of ordinary files, too, which can only give up more.
        assert!(its.contains(here & privileges::to_move_files()));
        // A task that panics gives an error, and so do later ones.
        assert!(worker.run(|| -> () { panic!("on purpose") }).is_err());
        assert!(worker.run(|| ()).is_err());
    }
}
