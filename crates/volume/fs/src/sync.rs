//! The locks and atomics that threads of one volume meet at.
//!
//! They are those of the standard library. In this crate's unit tests they are shuttle's: such a
//! test runs its threads in an order that is drawn at random, with a change of threads at each lock
//! and each atomic, many times over (`interleavings`).
//!
//! **Limits.** Byte counters and record locks keep the standard library's.

#[cfg(not(test))]
pub use std::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64},
};

#[cfg(test)]
pub use shuttle::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64},
};

/// Locks, also after a panic elsewhere: all that these locks keep is changed in single steps.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for a condition variable, also after a panic elsewhere.
pub fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Keeps a value on cache lines of its own (two, because processors fetch them in pairs): threads
/// that use neighbours of an array do not wait for each other.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Apart<T>(pub T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
