//! Where a file system is mounted.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};

/// Opens a directory of the file system on a device, by a mount that is writable in our mount namespace; the file system's own
/// root if possible.
pub(crate) fn directory(device: (u32, u32)) -> io::Result<File> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let mut mounts: Vec<_> = text.split(|b| *b == b'\n').filter_map(|line| mount(line, device)).collect();
    // Stable: the oldest mount first.
    mounts.sort_by_key(|m| !m.whole);
    for mount in mounts {
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

struct Mount {
    point: PathBuf,
    /// The root of the mount is that of the file system.
    whole: bool,
}

/// The mount of a line of mountinfo, `36 35 253:0 / /mnt/pmem rw,relatime shared:1 - xfs /dev/mapper/volume rw`, if it is of
/// the device and writable.
fn mount(line: &[u8], device: (u32, u32)) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ').skip(2);
    if fields.next()? != format!("{}:{}", device.0, device.1).as_bytes() {
        return None;
    }
    let whole = fields.next()? == b"/";
    let point = unescape(fields.next()?);
    if !fields.next()?.split(|b| *b == b',').any(|option| option == b"rw") {
        return None;
    }
    // A directory in the place of the file system is enough, a file is not; opening tells.
    Some(Mount { point: std::ffi::OsString::from_vec(point).into(), whole })
}

/// Blanks, tabs, newlines and backslashes are written as `\040` and so on (`mangle`, fs/seq_file.c).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                plain.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_device() {
        let of = |line: &str| mount(line.as_bytes(), (253, 0)).map(|m| (m.point.display().to_string(), m.whole));
        let line = r"36 35 253:0 / /mnt/a\040b\134 rw,relatime shared:1 - xfs /dev/mapper/volume rw";
        assert_eq!(of(line), Some(("/mnt/a b\\".to_owned(), true)));
        assert_eq!(of(&line.replace(" / ", " /sub ")).map(|m| m.1), Some(false));
        assert_eq!(of(&line.replace("rw,", "ro,")), None);
        assert_eq!(of(&line.replace("253:0", "253:1")), None);
        assert_eq!(of(""), None);
    }
}
