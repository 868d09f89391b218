//! The standard library's locks, for tasks.
//!
//! Outside of a task they are the standard library's. A task that finds one taken leaves its
//! [`Seat`](crate::Seat) and is woken when it is free. Readers do not overtake a writer that waits.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{self, LockResult, PoisonError, TryLockError, TryLockResult};

use crate::task::{self, TaskId};

pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// The tasks that wait, in the order of arrival; true: for a lock alone.
#[derive(Debug, Default)]
struct Queue(sync::Mutex<VecDeque<(TaskId, bool)>>);

impl Queue {
    const fn new() -> Self {
        Self(sync::Mutex::new(VecDeque::new()))
    }

    fn all(&self) -> sync::MutexGuard<'_, VecDeque<(TaskId, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer_waits(&self) -> bool {
        self.all().iter().any(|(_, alone)| *alone)
    }

    /// Wakes the first one, and readers behind a reader.
    fn wake(&self) {
        let mut all = self.all();
        while let Some((id, alone)) = all.pop_front() {
            task::wake(id);
            if alone || all.front().is_none_or(|(_, alone)| *alone) {
                return;
            }
        }
    }

    /// Waits until an attempt succeeds; `None` outside of a task.
    fn wait<G>(&self, alone: bool, mut attempt: impl FnMut() -> Option<G>) -> Option<G> {
        let me = task::current()?;
        self.all().push_back((me, alone));
        loop {
            block_off_seat();
            let guard = attempt();
            let mut all = self.all();
            // It is in the queue still where a wake from elsewhere ended the wait.
            if guard.is_some() {
                all.retain(|(id, _)| *id != me);
                return guard;
            }
            if all.iter().all(|(id, _)| *id != me) {
                all.push_front((me, alone));
            }
        }
    }
}

/// Waits until another task wakes this one, off its seat meanwhile.
fn block_off_seat() {
    let seat = task::seat();
    if let Some(seat) = &seat {
        seat.leave();
    }
    task::block();
    if let Some(seat) = &seat {
        seat.come_back();
    }
}

/// Wakes who waits, when the guard beside it is gone.
#[derive(Debug)]
struct Wakes<'a>(&'a Queue);

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// What an attempt brought; `None`: it is taken.
fn got<G>(result: TryLockResult<G>) -> Option<LockResult<G>> {
    match result {
        Ok(guard) => Some(Ok(guard)),
        Err(TryLockError::Poisoned(error)) => Some(Err(error)),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Passes a guard or a poisoned one on.
fn map<G, H>(result: LockResult<G>, to: impl FnOnce(G) -> H) -> LockResult<H> {
    match result {
        Ok(guard) => Ok(to(guard)),
        Err(error) => Err(PoisonError::new(to(error.into_inner()))),
    }
}

/// A lock that is held: `G` is the standard library's guard.
#[derive(Debug)]
pub struct Guard<'a, L: ?Sized, G> {
    // Dropped in this order.
    inner: G,
    _wakes: Wakes<'a>,
    lock: &'a L,
}

impl<L: ?Sized, G: Deref> Deref for Guard<'_, L, G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<L: ?Sized, G: DerefMut> DerefMut for Guard<'_, L, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

pub type MutexGuard<'a, T> = Guard<'a, Mutex<T>, sync::MutexGuard<'a, T>>;
pub type RwLockReadGuard<'a, T> = Guard<'a, RwLock<T>, sync::RwLockReadGuard<'a, T>>;
pub type RwLockWriteGuard<'a, T> = Guard<'a, RwLock<T>, sync::RwLockWriteGuard<'a, T>>;

#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized> {
    queue: Queue,
    inner: sync::Mutex<T>,
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self { queue: Queue::new(), inner: sync::Mutex::new(value) }
    }

    pub fn into_inner(self) -> LockResult<T> {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    fn guard<G>(&self, inner: G) -> Guard<'_, Self, G> {
        Guard { inner, _wakes: Wakes(&self.queue), lock: self }
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let attempt = || got(self.inner.try_lock());
        let guard = attempt().or_else(|| self.queue.wait(true, attempt)).unwrap_or_else(|| self.inner.lock());
        map(guard, |guard| self.guard(guard))
    }

    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match got(self.inner.try_lock()) {
            Some(guard) => Ok(map(guard, |guard| self.guard(guard))?),
            None => Err(TryLockError::WouldBlock),
        }
    }

    /// The value, of one that nobody else has.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.inner.get_mut()
    }
}

#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized> {
    queue: Queue,
    inner: sync::RwLock<T>,
}

impl<T> RwLock<T> {
    pub const fn new(value: T) -> Self {
        Self { queue: Queue::new(), inner: sync::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    fn guard<G>(&self, inner: G) -> Guard<'_, Self, G> {
        Guard { inner, _wakes: Wakes(&self.queue), lock: self }
    }

    /// Waits until nobody has it alone, and takes it with others.
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        let attempt = || got(self.inner.try_read());
        let first = if self.queue.writer_waits() { None } else { attempt() };
        let guard = first.or_else(|| self.queue.wait(false, attempt)).unwrap_or_else(|| self.inner.read());
        map(guard, |guard| self.guard(guard))
    }

    /// Waits until nobody has it, and takes it alone.
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        let attempt = || got(self.inner.try_write());
        let guard = attempt().or_else(|| self.queue.wait(true, attempt)).unwrap_or_else(|| self.inner.write());
        map(guard, |guard| self.guard(guard))
    }

    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        match got(self.inner.try_write()) {
            Some(guard) => Ok(map(guard, |guard| self.guard(guard))?),
            None => Err(TryLockError::WouldBlock),
        }
    }

    /// The value, of one that nobody else has.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.inner.get_mut()
    }
}

#[derive(Debug, Default)]
pub struct Condvar {
    queue: Queue,
    outside: sync::Condvar,
}

impl Condvar {
    pub const fn new() -> Self {
        Self { queue: Queue::new(), outside: sync::Condvar::new() }
    }

    /// Lets the mutex go, waits until told, and takes it again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let lock = guard.lock;
        let Some(me) = task::current() else {
            let Guard { inner, .. } = guard;
            return map(self.outside.wait(inner), |inner| lock.guard(inner));
        };
        drop(guard);
        self.queue.all().push_back((me, true));
        block_off_seat();
        lock.lock()
    }

    /// Tells the one that waits longest.
    pub fn notify_one(&self) {
        self.queue.wake();
        self.outside.notify_one();
    }

    pub fn notify_all(&self) {
        std::mem::take(&mut *self.queue.all()).into_iter().for_each(|(id, _)| task::wake(id));
        self.outside.notify_all();
    }
}
