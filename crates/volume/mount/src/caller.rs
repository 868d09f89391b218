//! Whom a request is done for.

use crate::plane::Callers;

/// Does the work of a request of the thread `tid`; 0 if the kernel itself asks.
pub(crate) fn enter<T>(callers: Option<&Callers>, tid: u32, work: impl FnOnce() -> T) -> T {
    match callers {
        Some(callers) => callers.enter(tid, work),
        None => fs::as_thread(tid, work),
    }
}
