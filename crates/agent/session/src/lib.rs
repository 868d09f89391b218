//! The loop of a program that moves, beside what it observes: which policy decides, what it prints,
//! how what it left behind is undone, and what other commands see of it.
//!
//! **Problem.** The daemon and the server of a mount observe in different ways, and run the same
//! loop. A user of the one knows the other.
//!
//! **Approach.** [`policies`] chooses, [`windows`] runs window after window and prints, in the
//! forms of [`report`]. [`undo`] opens a state directory and undoes what a crash left there.
//! [`published`] is what the server of a mount lets `top` and `explain` see: its last [`window`].
//!
//! **Limits.** How a program starts, stops and gives up privileges is its own.

pub mod policies;
pub mod published;
pub mod report;
pub mod undo;
pub mod window;
pub mod windows;
