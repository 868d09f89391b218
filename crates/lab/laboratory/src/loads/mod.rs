//! Programs.

use std::rc::Rc;

use crate::thread::Lab;

pub mod filebench;
pub mod fio;
pub mod lsm;
pub mod programs;
pub mod recorded;

/// Starts the threads of a load whose files are made.
pub type Begin = Box<dyn FnOnce(&Rc<Lab>)>;
