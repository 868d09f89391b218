//! Asks the kernel which inodes of a server before this one it knows.
//!
//! **Problem.** See [`fs::Volume::take_forgotten`].
//!
//! **Approach.** A notice about the attributes of an inode that the kernel does not know is refused
//! (ENOENT), and harmless otherwise. The kernel may wait for an inode that it is about to forget,
//! and so for a worker; so a thread of its own asks.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fs::Volume;
use rustix::io::Errno;

use crate::wire::attributes_notice;

/// What was answered comes to the kernel within this time.
const REST: Duration = Duration::from_secs(1);

/// A thread that asks, until this is dropped.
#[derive(Debug)]
pub(crate) struct Asker {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Asker {
    pub(crate) fn start(volume: Arc<Volume>, connection: OwnedFd) -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        let ask = move || {
            let (mut due, mut once) = (Vec::new(), BTreeSet::new());
            while !over.load(Ordering::Acquire) {
                for (ino, left) in due {
                    let asked = rustix::io::write(&connection, &attributes_notice(ino));
                    if asked != Err(Errno::NOENT) {
                        once.remove(&ino);
                    } else if once.insert(ino) {
                        // What it has forgotten may be on its way to a worker.
                        volume.ask_again(ino, left);
                    } else {
                        once.remove(&ino);
                        volume
                            .is_unknown(ino, left)
                            .unwrap_or_else(|error| tracing::debug!("inode {}: {error}", ino.raw()));
                    }
                }
                due = volume.take_forgotten();
                thread::park_timeout(REST);
            }
        };
        let thread = thread::Builder::new().name("mount-asks".to_owned()).spawn(ask)?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Asker {
    /// Also waits for the thread, which has the volume.
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
