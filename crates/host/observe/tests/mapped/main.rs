//! Hotness of mapped files on the kernel that runs these tests, compared with what the program that
//! maps them counted itself.
//!
//! Needs root and BTF; the test of persistent memory needs /mnt/pmem0 (see vm/run). What is missing
//! is said. Files are below `$HOMENODE_TEST_DIR`, or cargo's target.

mod load;
mod patterns;
mod program;

use std::path::Path;

use observe::mapped::Mapped;
use testing::{Tried, roles};

fn main() {
    // Each has half of a small machine's memory in files.
    testing::run_one_by_one(roles!["load": load::run], patterns::CASES.to_vec());
}

/// Needs what the object under test needs.
pub fn observing() -> Tried {
    open().map_or_else(|error| testing::skip(error.to_string()), |_| Ok(()))
}

/// The object under test.
pub fn open() -> Result<Mapped, observe::ObserveError> {
    Mapped::open(Path::new("/proc"), &topology::sysfs::read(Path::new("/sys")).unwrap_or_default())
}
