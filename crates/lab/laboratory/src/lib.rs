//! The shipped file system, engine and policies in virtual time, on a machine that is modelled.
//!
//! **Problem.** What a policy wins is seen on machines that few have, and a simulator that shares
//! its equations with a policy is no judge of it.
//!
//! **Approach.** Everything that decides, stores or moves is the shipped code: `fs` and the
//! snapshots of a volume are compiled once more, for tasks of a virtual [`clock`]; `engine` and
//! `placement` are the very crates. The laboratory supplies what a machine would: cores, memory and
//! links ([`machine`], [`medium`]), and programs ([`thread`], [`loads`]). An [`experiment`] is a
//! figure of a paper as data.
//!
//! **Limits.** Modelled, not run: the memory, the kernel's scheduler, the way of a call into the
//! file system, and the programs. The modules say how.

mod acting;
pub mod experiment;
pub mod host;
pub mod host_plane;
mod host_run;
pub mod loads;
pub mod machine;
pub mod medium;
pub mod plane;
pub mod regret;
pub mod report;
pub mod thread;

pub use clock::Stuck;
