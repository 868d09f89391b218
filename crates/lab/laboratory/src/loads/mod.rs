//! Programs.

pub mod filebench;
pub mod fio;
pub mod programs;
pub mod recorded;
