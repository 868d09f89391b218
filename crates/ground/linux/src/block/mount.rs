//! Where a file system is mounted.

use std::fs::File;
use std::io;

use rustix::fs::{Mode, OFlags};

use crate::mounts::{Mount, Mounts};

/// Opens a directory of the file system on a device, by a mount that is writable in our mount
/// namespace; the file system's own root if possible.
pub fn directory(device: (u32, u32)) -> io::Result<File> {
    let mounts = Mounts::parse(&std::fs::read("/proc/self/mountinfo")?);
    for mount in writable(&mounts, device) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::open(&mount.point, flags, Mode::empty()) else { continue };
        // Another file system may be mounted on top, or be there by now.
        let stat = rustix::fs::fstat(&directory)?;
        if (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)) == device {
            return Ok(directory.into());
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "no writable mount of it in this mount namespace"))
}

/// The writable mounts of a device, those of the whole file system first.
fn writable(mounts: &Mounts, (major, minor): (u32, u32)) -> impl Iterator<Item = &Mount> {
    // A directory in the place of the file system is enough, a file is not; opening tells.
    mounts.of_dev(major << 20 | minor).filter(|mount| mount.writable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_device() {
        let of = |line: &str| {
            let mounts = Mounts::parse(line.as_bytes());
            writable(&mounts, (253, 0)).map(|m| (m.point.display().to_string(), m.whole())).next()
        };
        let line = r"36 35 253:0 / /mnt/a\040b\134 rw,relatime shared:1 - xfs /dev/mapper/volume rw";
        assert_eq!(of(line), Some(("/mnt/a b\\".to_owned(), true)));
        assert_eq!(of(&line.replace(" / ", " /sub ")).map(|m| m.1), Some(false));
        assert_eq!(of(&line.replace("rw,", "ro,")), None);
        assert_eq!(of(&line.replace("253:0", "253:1")), None);
        assert_eq!(of(""), None);
    }
}
