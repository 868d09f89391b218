//! Moving threads: their affinity, and nothing else.
//!
//! **Problem.** An affinity belongs to whoever set it. The kernel keeps no owner, threads inherit it at birth, ids are
//! reused, cpusets and hot-plug change what it means, and a thread may end between any two system calls.
//!
//! **Approach.** A thread is movable when its mask is what it would have by default: the CPUs of its cpuset ([`cpuset`]).
//! A move sets the CPUs of the target node that its cpuset allows ([`mover`]). Undoing checks first that the mask is still
//! ours, as the kernel would show it now. Who was born of a moved thread is known from the kernel's own lineage
//! ([`lineage`]) or, after a crash, from what procfs can prove ([`kin`]). Every answer of the kernel is a fact, never a fault.
//!
//! **Limits.** Threads of containers whose groups we cannot see are refused, not guessed at. Memory stays where it is.

pub mod affinity;
pub mod cpuset;
pub mod defaults;
pub mod kin;
pub mod lineage;
pub mod mover;
pub mod threads;

pub use mover::Mover;
