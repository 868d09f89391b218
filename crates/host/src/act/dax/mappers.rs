//! The processes that map a file shared and writable.
//!
//! The exchange of blocks finds writes by the file's times. A store through a mapping changes the times at the fault before
//! the store, a moment before the fault takes the lock that the exchange waits for. So a store can be lost, once in some ten
//! million.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};

use rustix::io::Errno;

/// The processes with a mapping like `rw-s` of the file.
pub(super) fn writable(device: (u32, u32), inode: u64) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match maps(pid, device, inode) {
            Ok(true) => {
                found.insert(pid);
            }
            Ok(false) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
            Err(e) => {
                return Err(io::Error::new(e.kind(), format!("cannot look at the mappings of process {pid}: {e}")));
            }
        }
    }
    Ok(found)
}

fn maps(pid: u32, device: (u32, u32), inode: u64) -> io::Result<bool> {
    if let Some(found) = maps_at(format!("/proc/{pid}/maps"), device, inode)? {
        return Ok(found);
    }
    // The first thread has ended, and with it its view of the memory; the others still have theirs.
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Some(found) = maps_at(task?.path().join("maps"), device, inode)? {
            return Ok(found);
        }
    }
    Ok(false)
}

/// `None` if there is not one mapping.
fn maps_at(path: impl AsRef<std::path::Path>, device: (u32, u32), inode: u64) -> io::Result<Option<bool>> {
    let mut lines = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    // Bytes: names of files need not be UTF-8.
    let mut line = Vec::new();
    let mut any = None;
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(any),
            Ok(_) if is_writable(&line, device, inode) => return Ok(Some(true)),
            Ok(_) => any = Some(false),
            Err(e) if e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => return Ok(any),
            Err(e) => return Err(e),
        }
    }
}

/// Whether a line of `maps` is a shared and writable mapping of the file:
/// `7f20-7f40 rw-s 00000000 fd:00 131 /mnt/pmem/file`, the device in hexadecimal.
fn is_writable(line: &[u8], device: (u32, u32), inode: u64) -> bool {
    let mut fields = line.split(|b| *b == b' ').skip(1);
    let (Some([_, b'w', _, b's']), Some(_), Some(dev), Some(ino)) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return false;
    };
    dev == format!("{:02x}:{:02x}", device.0, device.1).as_bytes() && ino == inode.to_string().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::is_writable;

    #[test]
    fn only_shared_and_writable_mappings_of_the_file() {
        let of = |line: &str| is_writable(line.as_bytes(), (253, 10), 131);
        assert!(of("7f2000000000-7f2000200000 rw-s 00000000 fd:0a 131                        /mnt/pmem/a b\n"));
        assert!(of("7f2000000000-7f2000200000 -w-s 00000000 fd:0a 131 /mnt/pmem/a (deleted)\n"));
        for other in [
            "7f2000000000-7f2000200000 r--s 00000000 fd:0a 131 /mnt/pmem/a\n",
            "7f2000000000-7f2000200000 rw-p 00000000 fd:0a 131 /mnt/pmem/a\n",
            "7f2000000000-7f2000200000 rw-s 00000000 fd:00 131 /mnt/pmem/a\n",
            "7f2000000000-7f2000200000 rw-s 00000000 fd:0a 1310 /mnt/pmem/a\n",
            "7f2000000000-7f2000200000 rw-p 00000000 00:00 0 \n",
            "\n",
        ] {
            assert!(!of(other), "{other}");
        }
    }
}
