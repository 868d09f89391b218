//! Saves a machine as a directory that [`sysfs::read`] reads like the machine.
//!
//! **Problem.** A bug report about a machine with eight nodes needs that machine.
//!
//! **Approach.** The capture holds every file that the reader used, with the kernel's text, and
//! five lists for people. Nothing is missing and nothing else is copied. At the end it is read back
//! and compared.
//!
//! **Limits.** Without root, the physical ranges of persistent memory are absent, as they are for
//! the reader. Links to CPUs that `cpulist` names are left out: they add nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::source::{Seen, Source};
use crate::{Topology, TopologyError, sysfs};

/// Files that help people who inspect a capture, though the reader does not need them; copied if
/// they exist.
const FOR_PEOPLE: [&str; 5] = [
    "devices/system/node/possible",
    "devices/system/node/has_cpu",
    "devices/system/node/has_memory",
    "devices/system/cpu/present",
    "devices/system/cpu/possible",
];

/// The result of a capture.
#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// The directory.
    pub dir: PathBuf,
    /// Files and links below it.
    pub files: usize,
    /// The machine as captured.
    pub topology: Topology,
}

/// Copies the topology files below the sysfs mount `sys` into the new or empty directory `dir`.
///
/// # Errors
///
/// Those of [`sysfs::read`]; [`TopologyError::NotEmpty`] for a directory that holds something,
/// [`TopologyError::Write`] when a file cannot be written, [`TopologyError::Changed`] when the
/// machine changed meanwhile. Then nothing is left behind.
pub fn capture(sys: &Path, dir: &Path) -> Result<Captured, TopologyError> {
    let source = Source::new(sys);
    let topology = sysfs::read_from(&source)?;
    for file in FOR_PEOPLE {
        source.optional(file)?;
    }
    let created = match fs::create_dir(dir) {
        Ok(()) => true,
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let mut entries = fs::read_dir(dir).map_err(|e| TopologyError::read(dir, e))?;
            if entries.next().is_some() {
                return Err(TopologyError::NotEmpty { dir: dir.to_owned() });
            }
            false
        }
        Err(e) => return Err(TopologyError::write(dir, e)),
    };
    let written = write(source, dir).and_then(|files| match sysfs::read(dir)? == topology {
        true => Ok(Captured { dir: dir.to_owned(), files, topology }),
        false => Err(TopologyError::Changed { dir: dir.to_owned() }),
    });
    if written.is_err() {
        // The directory was empty or absent before. The first error matters more than one from
        // cleaning up.
        for below in ["devices", "bus"] {
            let _ = fs::remove_dir_all(dir.join(below));
        }
        if created {
            let _ = fs::remove_dir(dir);
        }
    }
    written
}

fn write(source: Source<'_>, dir: &Path) -> Result<usize, TopologyError> {
    let seen = source.into_seen();
    for (file, what) in &seen {
        let path = dir.join(file);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|e| TopologyError::write(parent, e))?;
        }
        match what {
            Seen::File(text) => fs::write(&path, text),
            Seen::Link(target) => symlink(target, &path),
        }
        .map_err(|e| TopologyError::write(&path, e))?;
    }
    Ok(seen.len())
}
