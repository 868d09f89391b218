//! The Linux plane: what runs where, which node its file bytes come from, and how to move it.

pub mod act;
pub mod interference;
pub mod memory;
pub mod observe;
pub mod plane;
pub mod privileges;
pub mod residency;

pub use plane::{HostError, HostPlane, Settings};
