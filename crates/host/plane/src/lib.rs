//! The Linux plane: observes which node each thread's file bytes come from, and moves threads.

pub mod bandwidth;
mod facts;
mod observer;
mod perf;
mod plane;
mod reclaim;
mod settings;
mod thrift;

pub use observer::Observe;
pub use plane::HostPlane;
pub use settings::{HostError, Settings};
