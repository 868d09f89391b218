//! The Linux plane: observes which node each thread's file bytes come from, and moves threads.

pub mod bandwidth;
mod facts;
pub mod plane;

pub use plane::{HostError, HostPlane, Settings};
