//! The whole loop over a machine in memory.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test stops at the first surprise

#[path = "../fake/mod.rs"]
mod fake;

mod copies;
mod crash;
mod journal;
mod rails;
mod undo;
