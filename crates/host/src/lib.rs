//! The Linux plane: observes which node each thread's file bytes come from, and moves threads.

pub mod act;
pub mod bandwidth;
mod facts;
pub mod interference;
pub mod jobs;
mod leases;
pub mod memory;
mod mounts;
pub mod observe;
pub mod patient;
pub mod plane;
pub mod privileges;
pub mod residency;
mod volume;

pub use plane::{HostError, HostPlane, Settings};
