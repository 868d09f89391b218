//! Memory of forgotten files, back to the system.
//!
//! **Problem.** The server forgets the names, extents and attributes of files that the kernel has forgotten, in small pieces that
//! lie between others. The C library keeps what is freed: a server that once knew many files would stay as large for good.
//!
//! **Approach.** After every [`MANY`] forgotten inodes a thread has the C library give back the free pages within its heaps
//! (malloc_trim(3), the only call that does so for memory between pieces in use). It does so [`REST`] later, as the kernel
//! forgets in bulk and one look at the heaps is enough.
//!
//! **Limits.** A page that holds one piece in use stays. An arena is locked while it is trimmed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Forgotten inodes between two looks at the heaps: some MiB of metadata.
const MANY: u64 = 4096;
/// Time from the [`MANY`]th inode to the look.
const REST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    due: bool,
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    forgotten: AtomicU64,
    state: Mutex<State>,
    more: Condvar,
}

/// Counts forgotten inodes; a thread trims the heaps.
#[derive(Debug)]
pub(crate) struct Trim(Arc<Shared>);

impl Default for Trim {
    fn default() -> Self {
        let shared = Arc::new(Shared::default());
        let thread = Arc::clone(&shared);
        let begun = std::thread::Builder::new().name("mount-trim".to_owned()).spawn(move || serve(&thread));
        if let Err(error) = begun {
            tracing::warn!("memory of forgotten files stays with the server: no thread: {error}");
        }
        Self(shared)
    }
}

impl Drop for Trim {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.0.more.notify_one();
    }
}

impl Trim {
    /// The server has forgotten so many inodes.
    pub(crate) fn forgotten(&self, count: u64) {
        let before = self.0.forgotten.fetch_add(count, Ordering::Relaxed);
        if before / MANY != (before + count) / MANY {
            self.0.state.lock().unwrap_or_else(PoisonError::into_inner).due = true;
            self.0.more.notify_one();
        }
    }
}

fn serve(shared: &Shared) {
    let lock = || shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let state = shared.more.wait_while(lock(), |state| !state.due && !state.ended);
        drop(state.unwrap_or_else(PoisonError::into_inner));
        let (mut state, _) =
            shared.more.wait_timeout_while(lock(), REST, |state| !state.ended).unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return;
        }
        state.due = false;
        drop(state);
        linux::heap::trim();
    }
}
