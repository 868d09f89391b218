//! Programs.

pub mod filebench;
pub mod fio;
