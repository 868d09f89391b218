//! What a program that makes moves needs beside plane and engine: the choice of a policy, output,
//! undoing what a crash left behind, and what other commands may see.
//!
//! **Problem.** The daemon and the server of a mount observe in different ways but run the same
//! loop, and their users should see the same.
//!
//! **Approach.** [`policies`] chooses, [`external`] is a policy that is a program, [`windows`] runs
//! window after window and prints, in the forms of [`report`]. [`undo`] opens a state directory and
//! undoes what a crash left there. [`map`] adds up windows by control group, process and file;
//! [`services`] gives the name of a service. [`published`] is what the server of a mount lets `top`
//! and `explain` see: its last [`window`]. [`totals`] is what the daemon lets `export` see, and
//! [`history`] what it keeps of the last week.
//!
//! **Limits.** How a program starts, stops and gives up privileges is its own.

pub mod external;
pub mod history;
pub mod map;
pub mod policies;
pub mod published;
pub mod report;
pub mod services;
pub mod status;
pub mod totals;
pub mod undo;
pub mod window;
pub mod windows;
