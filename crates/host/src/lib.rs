//! The Linux plane: what runs where, which node its file bytes come from, and how to move it.

pub mod interference;
pub mod residency;
pub mod observe;
