//! The memory of a process: what is its own, on which nodes it is, what it asked for, and moving
//! its pages.
//!
//! Ask through [`patient`](crate::patient): a process can hold the lock that its memory is listed
//! under.

pub mod policy;
pub mod regions;
mod resident;
mod room;
pub mod space;

pub use resident::{own_bytes, resident};
pub use room::{Room, of_group, room};
