//! Moves threads by setting their affinity, processes with their memory, and files, and undoes it.
//!
//! **Problem.** An affinity belongs to the program that set it, but the kernel records no owner.
//! Threads inherit affinities at birth, ids are reused, cpusets and hot-plug change the meaning of
//! a mask, and a thread may end between any two system calls.
//!
//! **Approach.** A thread is movable when nobody asked for an affinity of it, or when its mask is
//! the default: the CPUs of its cpuset ([`linux::cpuset`]). A program that asked for exactly its
//! default counts as not having asked. A move sets the CPUs of the target node that the cpuset
//! allows ([`mover`]). Undoing first checks that the mask is still ours, as the kernel would show
//! it now, and that nobody has set it since. Descendants of a moved thread come from the kernel's
//! own record of births or, after a crash, from procfs ([`descendants`]). The kernel's
//! refusals are facts, not faults. A thread counts as ended only when the kernel says so: no other
//! error deletes a record. A process moves thread by thread ([`process`]), then its memory moves
//! batch by batch ([`memory`]).
//!
//! **Limits.** Threads in containers whose control groups are hidden from us are refused.

mod actor;
pub mod copying;
pub mod data;
pub mod dax;
pub mod defaults;
pub mod descendants;
pub mod files;
pub mod jobs;
mod machine;
pub mod memory;
pub mod mover;
pub mod pages;
pub mod process;
pub mod warm;
pub mod watched;

pub use actor::{Actor, Seen, Settings};
pub use mover::Mover;
