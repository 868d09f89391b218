//! One user at a time has a region.
//!
//! **Problem.** `flock` locks an inode, and a device has as many inodes as it has nodes: a
//! container runtime makes one of its own (mknod(2)), with a lock of its own.
//!
//! **Approach.** devtmpfs has one node for each device, and there is one devtmpfs for all
//! containers. A user of a device also locks that node. The kernel takes the lock away when its
//! owner ends, and only users of the device can open the node.
//!
//! **Limits.** Other machines are not kept out (memory of several hosts, files on NFS mounted with
//! `local_lock`). A node outside of devtmpfs takes CAP_SYS_ADMIN in the first user namespace, as a
//! mount does.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::error::{Error, Result};

/// Locks a region's file or device as long as it, and what this returns, are open.
///
/// # Errors
///
/// [`Error::InUse`], or the operating system refuses.
pub(super) fn lock(file: &File, operation: FlockOperation) -> Result<Option<OwnedFd>> {
    flock(file, operation)?;
    let metadata = file.metadata()?;
    if !metadata.file_type().is_char_device() || is_on_devtmpfs(metadata.dev())? {
        return Ok(None);
    }
    let node = node_of(metadata.rdev()).map_err(|e| {
        let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
        let why = format!("cannot lock device {major}:{minor} against users of its other nodes: {e}");
        io::Error::new(e.kind(), why)
    })?;
    flock(&node, operation)?;
    Ok(Some(node))
}

fn flock(file: impl std::os::fd::AsFd, operation: FlockOperation) -> Result<()> {
    match rustix::fs::flock(file, operation) {
        Err(Errno::WOULDBLOCK) => Err(Error::InUse),
        result => Ok(result.map_err(io::Error::from)?),
    }
}

/// Whether a file system, by its device number, is devtmpfs.
fn is_on_devtmpfs(device: u64) -> io::Result<bool> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().any(|line| line.contains(" - devtmpfs ") && line.split(' ').nth(2) == Some(number.as_str())))
}

/// A character device's node in devtmpfs, opened for reading.
fn node_of(device: u64) -> io::Result<OwnedFd> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let event = std::fs::read_to_string(Path::new("/sys/dev/char").join(format!("{major}:{minor}/uevent")))?;
    let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let name = name.ok_or_else(|| io::Error::other("sysfs has no name of it"))?;
    // Mounted nowhere: only this file descriptor leads to it.
    let context = rustix::mount::fsopen("devtmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
    // What it is comes first: to open some devices does something already.
    let found = rustix::fs::openat(&root, name, flags | OFlags::PATH, Mode::empty())?;
    let stat = rustix::fs::fstat(&found)?;
    let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice;
    if !is_device || stat.st_rdev != device {
        return Err(io::Error::other(format!("{name} of devtmpfs is another device")));
    }
    Ok(rustix::fs::openat(&root, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, makedev, mknodat};

    use super::*;

    /// A container's own node of the device took another lock, and two servers had one volume.
    #[test]
    fn two_nodes_of_one_device_take_one_lock() {
        let dir = tempfile::tempdir().unwrap();
        // Nobody else locks /dev/full.
        let nodes = ["one", "two"].map(|name| {
            let path = dir.path().join(name);
            mknodat(CWD, &path, FileType::CharacterDevice, 0o600.into(), makedev(1, 7))
                .and_then(|()| rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(File::from))
        });
        let (Ok(one), Ok(two)) = (&nodes[0], &nodes[1]) else {
            eprintln!("skipped: cannot make and open device nodes here");
            return;
        };
        let exclusively = FlockOperation::NonBlockingLockExclusive;
        if let Err(why) = node_of(rustix::fs::makedev(1, 7)) {
            eprintln!("skipped: no devtmpfs here: {why}");
            return;
        }
        let held = lock(one, exclusively).unwrap();
        assert!(held.is_some());
        assert!(matches!(lock(two, exclusively), Err(Error::InUse)));
        // The node that every host has.
        assert!(matches!(lock(&File::open("/dev/full").unwrap(), exclusively), Err(Error::InUse)));
        drop(held);
        // A process that another test has just started keeps it until it executes its program.
        while matches!(lock(two, exclusively), Err(Error::InUse)) {
            std::thread::yield_now();
        }
    }
}
