//! Virtual time: tasks, the locks that they meet at, and a clock that no one waits for.
//!
//! **Problem.** A file system that is measured on the wall clock shows the machine at hand, and
//! never twice the same. shuttle runs the same code in an order that is drawn, but asks its
//! scheduler at each atomic: that finds races, and costs too much for millions of calls.
//!
//! **Approach.** A discrete-event simulation whose events are the code itself. A [task](spawn) is a
//! coroutine with a stack of its own. It runs until it [sleeps](sleep_until) or meets a lock that
//! another one holds ([`sync`]); then the task with the least wake time runs, of equal ones that
//! with the lowest number, and the clock jumps to that time. One thread of the system runs all
//! tasks of a world, so nothing depends on what else the machine does: two runs of the same program
//! are the same to the byte. Worlds on several threads know nothing of each other.
//!
//! The locks of [`sync`] have the interface of the standard library's, so code is compiled for
//! them by one line. A task can have a [`Seat`], such as a core, which it leaves while it waits for
//! a lock. Who waits longest is woken first, and whoever runs when a lock is free has it, as with
//! futexes.
//!
//! **Limits.** Code between two waits takes no time and is never interrupted: races of memory do
//! not show (shuttle's tests look for these). A task that spins for another one spins for ever.

mod local;
pub mod sync;
mod task;

pub use local::TaskLocal;
pub use task::{Seat, Stuck, TaskId, block, current, now_ns, run, set_seat, sleep_until, spawn, switches, wake};
