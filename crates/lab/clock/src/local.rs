//! Values of each task, with the interface of a thread's.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

static PLACES: AtomicUsize = AtomicUsize::new(0);

/// A value of which each task has its own, as `std::thread::LocalKey` is of threads.
pub struct TaskLocal<T: 'static> {
    place: OnceLock<usize>,
    first: fn() -> T,
    of: PhantomData<fn() -> T>,
}

impl<T: 'static> TaskLocal<T> {
    /// One that begins with what `first` makes.
    pub const fn new(first: fn() -> T) -> Self {
        Self { place: OnceLock::new(), first, of: PhantomData }
    }

    pub fn with<R>(&'static self, look: impl FnOnce(&T) -> R) -> R {
        let place = *self.place.get_or_init(|| PLACES.fetch_add(1, Ordering::Relaxed));
        let value = crate::task::local(place, || Rc::new((self.first)()));
        match value.downcast_ref() {
            Some(value) => look(value),
            // Not reached: a place belongs to one type.
            None => look(&(self.first)()),
        }
    }
}

impl<T: 'static> TaskLocal<Cell<T>> {
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> TaskLocal<RefCell<T>> {
    pub fn with_borrow<R>(&'static self, look: impl FnOnce(&T) -> R) -> R {
        self.with(|cell| look(&cell.borrow()))
    }

    pub fn with_borrow_mut<R>(&'static self, look: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| look(&mut cell.borrow_mut()))
    }

    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.replace(value));
    }
}
