//! Memory of forgotten files, back to the system.
//!
//! **Problem.** The server forgets the names, extents and attributes of files that the kernel has
//! forgotten, in small pieces that lie between others. The C library keeps what is freed: a server
//! that once knew many files would stay as large for good.
//!
//! **Approach.** After every [`MANY`] bytes of forgotten inodes a thread has the C library give
//! back the free pages within its heaps (malloc_trim(3), the only call that does so for memory
//! between pieces in use). It does so [`REST`] later, as the kernel forgets in bulk and one look at
//! the heaps is enough. The thread also tries again to forget what somebody was at when the kernel
//! forgot it, such as a policy or another request.
//!
//! Where inodes take more memory than they may ([`Volume::bound_memory`]), it has the volume let go
//! of those that nobody is using at once, and trims the heaps as well.
//!
//! **Limits.** A page that holds one piece in use stays. An arena is locked while it is trimmed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fs::Volume;

/// Bytes of forgotten inodes between two looks at the heaps: attributes of one take up to 64 KiB.
const MANY: u64 = 3 << 20;
/// Time from the [`MANY`]th byte to the look.
const REST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    /// The heaps are to be looked at.
    due: bool,
    /// Some inodes are still to be forgotten.
    left: bool,
    /// Inodes take more memory than they may.
    over: bool,
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    /// What the volume had released at the last look.
    released: AtomicU64,
    state: Mutex<State>,
    more: Condvar,
}

impl Shared {
    fn tell(&self, what: impl FnOnce(&mut State)) {
        what(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.more.notify_one();
    }
}

/// Counts forgotten inodes; a thread trims the heaps.
#[derive(Debug)]
pub(crate) struct Trim {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Trim {
    /// Also waits for the thread, which has the volume.
    fn drop(&mut self) {
        self.shared.tell(|state| state.ended = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Trim {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        let shared = Arc::new(Shared::default());
        let thread = Arc::clone(&shared);
        let begun = std::thread::Builder::new().name("mount-trim".to_owned()).spawn(move || serve(&thread, &volume));
        let begun = begun.inspect_err(|error| {
            tracing::warn!("memory of forgotten files stays with the server: no thread: {error}");
        });
        Self { shared, thread: begun.ok() }
    }

    /// The volume has [released](Volume::released) so many bytes by now.
    pub(crate) fn released(&self, bytes: u64) {
        let last = self.shared.released.load(Ordering::Relaxed);
        let due = bytes.saturating_sub(last) >= MANY;
        let exchanged = || self.shared.released.compare_exchange(last, bytes, Ordering::Relaxed, Ordering::Relaxed);
        if due && exchanged().is_ok() {
            self.shared.tell(|state| state.due = true);
        }
    }

    /// Inodes take more memory than they may.
    pub(crate) fn over(&self) {
        self.shared.tell(|state| state.over = true);
    }

    /// Some are still to be forgotten ([`Volume::let_go_again`]).
    pub(crate) fn left(&self) {
        self.shared.tell(|state| state.left = true);
    }
}

fn serve(shared: &Shared, volume: &Volume) {
    let lock = || shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let state = shared.more.wait_while(lock(), |state| !state.due && !state.left && !state.over && !state.ended);
        let over = std::mem::take(&mut state.unwrap_or_else(PoisonError::into_inner).over);
        if over {
            volume.shrink();
        }
        let (mut state, _) =
            shared.more.wait_timeout_while(lock(), REST, |state| !state.ended).unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return;
        }
        let due = std::mem::take(&mut state.due) || over;
        state.left = false;
        drop(state);
        if volume.let_go_again(usize::MAX) > 0 {
            lock().left = true;
        }
        let last = shared.released.load(Ordering::Relaxed);
        let more = volume.released().saturating_sub(last) >= MANY;
        if due || more {
            shared.released.store(volume.released(), Ordering::Relaxed);
            linux::heap::trim();
        }
    }
}
