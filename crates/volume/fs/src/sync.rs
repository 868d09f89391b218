//! The locks and atomics that threads of one volume meet at, and what each thread has for itself.
//!
//! They are those of the standard library. In this crate's unit tests the locks are shuttle's: such
//! a test runs its threads in an order that is drawn at random, with a change of threads at each
//! lock and each atomic, many times over (`interleavings`). The laboratory compiles these sources
//! once more, as the package `homenode-virtual-fs`, for tasks of its clock (`virtual_time`).
//!
//! **Limits.** Byte counters and record locks keep the standard library's.

#[cfg(virtual_time)]
pub use clock::sync::{
    AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

#[cfg(not(any(test, virtual_time)))]
pub use std::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64},
};

#[cfg(all(test, not(virtual_time)))]
pub use shuttle::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64},
};

/// What each thread, or task of the laboratory, has for itself.
#[cfg(not(virtual_time))]
pub type Local<T> = std::thread::LocalKey<T>;
#[cfg(virtual_time)]
pub type Local<T> = clock::TaskLocal<T>;

/// Declares a [`Local`], as `thread_local!` does.
macro_rules! task_local {
    ($($(#[$doc:meta])* static $name:ident: $of:ty = $first:expr;)*) => {
        #[cfg(not(virtual_time))]
        thread_local! {
            $($(#[$doc])* static $name: $of = const { $first };)*
        }
        $(
            #[cfg(virtual_time)]
            $(#[$doc])*
            static $name: $crate::sync::Local<$of> = $crate::sync::Local::new(|| $first);
        )*
    };
}
pub(crate) use task_local;

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
