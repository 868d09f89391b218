//! The processes that map a file shared and writable.
//!
//! The exchange of blocks finds writes by the file's times. A store through a mapping changes the
//! times at the fault before the store, a moment before the fault takes the lock that the exchange
//! waits for. So a store can be lost, once in some ten million.
//!
//! The look comes while the file must stay unwritten, so it has to be short: `PROCMAP_QUERY` leaves
//! out mappings that are not of this kind, where the text of `maps` has them all.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use linux::named;
use linux::patient::{self, MEMORY};
use linux::threads::is_gone;
use rustix::io::Errno;

/// Whether a process has a mapping like `rw-s` of the file.
///
/// # Errors
///
/// `TimedOut` if a process does not answer: it is not known whether it maps the file.
pub(super) fn writable(device: (u32, u32), inode: u64) -> io::Result<bool> {
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if ask(pid, device, inode)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a process has such a mapping. One that has ended has none.
fn ask(pid: u32, device: (u32, u32), inode: u64) -> io::Result<bool> {
    match patient::ask(pid, MEMORY, move || maps(pid, device, inode)) {
        Err(e) if is_gone(&e) => Ok(false),
        found => found.map_err(|e| named(format_args!("cannot look at the mappings of process {pid}"), e)),
    }
}

fn maps(pid: u32, device: (u32, u32), inode: u64) -> io::Result<bool> {
    if let Some(found) = maps_at(format!("/proc/{pid}/maps"), device, inode)? {
        return Ok(found);
    }
    // A process of the kernel, which has one thread (a directory has two links more than it has
    // directories in it). Or the first thread has ended, and with it its view of the memory; the
    // others still have theirs.
    if fs::metadata(format!("/proc/{pid}/task"))?.nlink() < 4 {
        return Ok(false);
    }
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Some(found) = maps_at(task?.path().join("maps"), device, inode)? {
            return Ok(found);
        }
    }
    Ok(false)
}

/// `None` if there is no memory.
fn maps_at(path: impl AsRef<std::path::Path>, device: (u32, u32), inode: u64) -> io::Result<Option<bool>> {
    let maps = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut query = Query { size: size_of::<Query>() as u64, flags: WRITABLE_SHARED_FILES, ..Query::default() };
    loop {
        // SAFETY: the kernel reads and writes the structure, whose size is in it.
        if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) } == 0 {
            if ((query.device[0], query.device[1]), query.inode) == (device, inode) {
                return Ok(Some(true));
            }
            query.address = query.end;
            continue;
        }
        let error = io::Error::last_os_error();
        return match Errno::from_io_error(&error) {
            // No more of these.
            Some(Errno::NOENT) => Ok(Some(false)),
            Some(Errno::SRCH) => Ok(None),
            _ => Err(error),
        };
    }
}

/// `struct procmap_query`, `linux/fs.h` (Linux 6.11).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_and_build_id_size: [u32; 2],
    name_and_build_id: [u64; 2],
}

const PROCMAP_QUERY: rustix::ioctl::Opcode = rustix::ioctl::opcode::read_write::<Query>(b'f', 17);

/// The mapping at an address or the next one that is writable (2), shared (8), and of a file (32):
/// `COVERING_OR_NEXT` is 16.
const WRITABLE_SHARED_FILES: u64 = 2 | 8 | 16 | 32;

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    /// It waited in the kernel for as long as any process hung in `execve()`, and the job with it.
    #[test]
    fn while_a_process_does_not_answer_it_is_not_known_who_maps_a_file() {
        // Nobody has this id.
        let pid = u32::MAX - 5;
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let silent = patient::ask(pid, MEMORY, move || wait.recv().map_err(io::Error::other));
        assert_eq!(silent.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let error = ask(pid, (0, 0), 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains(&format!("process {pid}")), "{error}");
        drop(go_on);
    }

    #[test]
    fn only_shared_and_writable_mappings_of_the_file() {
        assert_eq!((size_of::<Query>(), PROCMAP_QUERY as u64), (104, 0xc068_6611));
        let file = || {
            let file = memfd_create("mapped", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, 4096).unwrap();
            let stat = rustix::fs::fstat(&file).unwrap();
            (file, (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)), stat.st_ino)
        };
        let ((file, device, inode), (_, _, other)) = (file(), file());
        let write = ProtFlags::READ | ProtFlags::WRITE;
        for (prot, flags, found) in [
            (write, MapFlags::SHARED, true),
            (ProtFlags::WRITE, MapFlags::SHARED, true),
            (ProtFlags::READ, MapFlags::SHARED, false),
            (write, MapFlags::PRIVATE, false),
        ] {
            // SAFETY: a new mapping at an address that the kernel chooses.
            let at = unsafe { mmap(std::ptr::null_mut(), 4096, prot, flags, &file, 0) }.unwrap();
            let pid = std::process::id();
            let here = maps(pid, device, inode);
            if here.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENOTTY)) {
                println!("this kernel does not answer such questions (Linux 6.11 does), and exchanges no blocks");
                return;
            }
            assert_eq!(here.unwrap(), found, "{prot:?} {flags:?}");
            assert!(!maps(pid, device, other).unwrap());
            // SAFETY: the mapping just made, to which nothing refers.
            unsafe { munmap(at, 4096) }.unwrap();
        }
    }
}
