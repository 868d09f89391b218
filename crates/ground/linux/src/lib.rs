//! What Linux says about processes, files and memory, and calls that change them. No policy, no
//! BPF.
//!
//! **Problem.** The agent, the file server and the laboratory ask the kernel the same questions.
//! Each answer has traps: a process that does not answer, an id that is used again, a mask larger
//! than libc's, a lease that a look breaks.
//!
//! **Approach.** One module a subject. A question about a process goes through [`patient`], which
//! waits for a limited time. Errors are the kernel's own: what they mean for a move is for the
//! caller to say.
//!
//! **Limits.** What only BPF sees is in `observe`. What a machine consists of is in `topology`.

pub mod affinity;
pub mod allocation;
pub mod births;
pub mod block;
pub mod clock;
pub mod cpuset;
pub mod files;
pub mod heap;
pub mod interference;
pub mod leases;
pub mod locks;
pub mod memory;
pub mod mounts;
mod named;
pub mod pages;
pub mod patient;
pub mod pods;
pub mod privileges;
pub mod processor;
pub mod quota;
pub mod random;
pub mod reclaim;
pub mod residency;
pub mod resident;
pub mod threads;
pub mod volume;
pub mod watched;

pub use named::{named, shown};
pub use random::random;
