//! Files by their inodes: how one is opened without a name, and what its file system does with its
//! data.

mod inode;
mod kinds;

pub use inode::{Inodes, MOST_READERS, Opened, path};
pub use kinds::{Data, data};
