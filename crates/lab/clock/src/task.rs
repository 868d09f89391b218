//! Tasks, and who of them runs.

use std::any::Any;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::rc::Rc;

use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Number of a task, in the order of [`spawn`].
pub type TaskId = usize;

/// Where a task sits while it works, such as a core: it leaves while it waits for a lock.
pub trait Seat {
    /// The task is going to wait for a lock.
    fn leave(&self);
    /// The lock may be free: returns when the task is seated again.
    fn come_back(&self);
}

/// Tasks that wait for each other for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub at_ns: u64,
    pub tasks: Vec<TaskId>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} ns of virtual time tasks {:?} wait for each other", self.at_ns, self.tasks)
    }
}

impl std::error::Error for Stuck {}

type Body = Coroutine<(), (), ()>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    Sleeps,
    Blocked,
    Ended,
}

struct Task {
    body: Option<Body>,
    yielder: *const Yielder<(), ()>,
    state: State,
    /// It was woken before it blocked.
    woken: bool,
    seat: Option<Rc<dyn Seat>>,
    locals: Vec<Option<Rc<dyn Any>>>,
}

#[derive(Default)]
struct World {
    now: u64,
    switches: u64,
    due: BinaryHeap<Reverse<(u64, TaskId)>>,
    tasks: Vec<Task>,
    current: Option<TaskId>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// Values of code that runs in no task.
    static OUTSIDE: RefCell<Vec<Option<Rc<dyn Any>>>> = const { RefCell::new(Vec::new()) };
}

fn with<T>(look: impl FnOnce(&mut World) -> T) -> Option<T> {
    WORLD.with_borrow_mut(|world| world.as_mut().map(look))
}

impl World {
    fn me(&mut self) -> Option<&mut Task> {
        self.tasks.get_mut(self.current?)
    }

    /// The task that is due first, which runs now.
    fn next(&mut self) -> Option<(TaskId, Body)> {
        let Reverse((at, id)) = self.due.pop()?;
        self.now = self.now.max(at);
        self.switches += 1;
        self.current = Some(id);
        let task = self.tasks.get_mut(id)?;
        task.state = State::Runs;
        Some((id, task.body.take()?))
    }
}

/// Ends the world of this thread, also after a panic.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let world = WORLD.with_borrow_mut(Option::take);
        if std::thread::panicking() {
            // Tasks cannot be unwound while this thread is.
            std::mem::forget(world);
        }
    }
}

/// Runs `main` as the first task, and all tasks that it starts, until all have ended. Returns what
/// `main` returned.
///
/// # Errors
///
/// Tasks are left that nobody wakes.
///
/// # Panics
///
/// This thread runs a world already, or a task panicked.
pub fn run<T: 'static>(main: impl FnOnce() -> T + 'static) -> Result<T, Stuck> {
    WORLD.with_borrow_mut(|world| {
        assert!(world.is_none(), "a thread runs one world at a time");
        *world = Some(World::default());
    });
    let _end = End;
    let (out, put) = {
        let out = Rc::new(RefCell::new(None));
        (Rc::clone(&out), out)
    };
    spawn(move || *put.borrow_mut() = Some(main()));
    while let Some((id, mut body)) = with(World::next).flatten() {
        let result = body.resume(());
        with(|world| {
            world.current = None;
            if let Some(task) = world.tasks.get_mut(id) {
                match result {
                    CoroutineResult::Yield(()) => task.body = Some(body),
                    CoroutineResult::Return(()) => {
                        (task.state, task.seat) = (State::Ended, None);
                        task.locals.clear();
                    }
                }
            }
        });
    }
    let (at_ns, tasks) = with(|world| {
        let left = world.tasks.iter().enumerate().filter(|(_, task)| task.state != State::Ended);
        (world.now, left.map(|(id, _)| id).collect::<Vec<_>>())
    })
    .unwrap_or_default();
    let out = out.borrow_mut().take();
    match out {
        Some(out) if tasks.is_empty() => Ok(out),
        _ => Err(Stuck { at_ns, tasks }),
    }
}

/// Starts a task; it runs when the calling one waits. Outside of [`run`] nothing happens.
pub fn spawn(work: impl FnOnce() + 'static) -> TaskId {
    // A coroutine takes up to a page with it.
    let work = Box::new(work);
    let body = Coroutine::new(move |yielder: &Yielder<(), ()>, ()| {
        with(|world| world.me().map(|me| me.yielder = yielder));
        work();
    });
    let new = |world: &mut World| {
        let id = world.tasks.len();
        world.due.push(Reverse((world.now, id)));
        let (state, seat, locals) = (State::Sleeps, None, Vec::new());
        world.tasks.push(Task { body: Some(body), yielder: std::ptr::null(), state, woken: false, seat, locals });
        id
    };
    with(new).unwrap_or_default()
}

/// Lets the others run until this task is due again, or woken.
fn suspend() {
    let yielder = with(|world| world.me().map(|me| me.yielder)).flatten();
    // SAFETY: it was set by the task that runs now, at its start, and its coroutine gives it to the
    // task's function by reference until that returns.
    if let Some(yielder) = yielder.and_then(|yielder| unsafe { yielder.as_ref() }) {
        yielder.suspend(());
    }
}

/// Nanoseconds since the world began; 0 outside.
pub fn now_ns() -> u64 {
    with(|world| world.now).unwrap_or_default()
}

/// How often a task has begun or gone on.
pub fn switches() -> u64 {
    with(|world| world.switches).unwrap_or_default()
}

pub fn current() -> Option<TaskId> {
    with(|world| world.current).flatten()
}

/// Returns at this time; at once if it is over.
pub fn sleep_until(at_ns: u64) {
    let others = with(|world| {
        let Some(id) = world.current.filter(|_| at_ns > world.now) else { return false };
        if world.due.peek().is_none_or(|Reverse(first)| *first > (at_ns, id)) {
            // Nobody else is due before.
            world.now = at_ns;
            return false;
        }
        world.due.push(Reverse((at_ns, id)));
        if let Some(me) = world.me() {
            me.state = State::Sleeps;
        }
        true
    });
    if others == Some(true) {
        suspend();
    }
}

/// Waits until another task [wakes](wake) this one, or returns at once if one has since the last
/// wait.
pub fn block() {
    let waits = with(|world| {
        world.me().is_some_and(|me| {
            let waits = !std::mem::take(&mut me.woken);
            if waits {
                me.state = State::Blocked;
            }
            waits
        })
    });
    if waits == Some(true) {
        suspend();
    }
}

/// Ends the wait of a task, or its next one.
pub fn wake(id: TaskId) {
    with(|world| {
        let Some(task) = world.tasks.get_mut(id) else { return };
        match task.state {
            State::Blocked => {
                task.state = State::Sleeps;
                world.due.push(Reverse((world.now, id)));
            }
            State::Runs | State::Sleeps => task.woken = true,
            State::Ended => {}
        }
    });
}

/// From now on the calling task sits there.
pub fn set_seat(seat: Option<Rc<dyn Seat>>) {
    with(|world| world.me().map(|me| me.seat = seat));
}

pub(crate) fn seat() -> Option<Rc<dyn Seat>> {
    with(|world| world.me().and_then(|me| me.seat.clone())).flatten()
}

/// The value at this place of the calling task, made if it is not there.
pub(crate) fn local(place: usize, make: impl FnOnce() -> Rc<dyn Any>) -> Rc<dyn Any> {
    let look = |locals: &mut Vec<Option<Rc<dyn Any>>>| {
        if locals.len() <= place {
            locals.resize(place + 1, None);
        }
        match locals.get_mut(place) {
            Some(value) => Rc::clone(value.get_or_insert_with(make)),
            None => make(),
        }
    };
    let mut look = Some(look);
    let of_task = with(|world| {
        let me = world.me()?;
        Some(look.take()?(&mut me.locals))
    });
    match (of_task.flatten(), look) {
        (Some(value), _) => value,
        (None, Some(look)) => OUTSIDE.with_borrow_mut(look),
        // Not reached: what was looked at gave a value.
        (None, None) => Rc::new(()),
    }
}
